/* images.h - labelled images: the digits that come with these examples, CIFAR-10 and MNIST
 * files, or a folder of pictures. Delivers rows of floats, or one byte a value with random
 * shifts, crops and mirroring for train.h's callback. To copy, with digits.h and train_data.h.
 * C99 or C++11.
 *
 *     images_set s;
 *     if (images_read(&s, folder) != 0)            // NULL selects the digits
 *         fprintf(stderr, "%s\n", s.error);
 *     ...                                          // s.rows images; the last s.validation validate
 *     images_free(&s);
 *
 * or, in a quarter of the memory, for train.h:
 *
 *     images_read_u8(&s, folder);
 *     s.flip = 1, s.padding = 4;                   // torchvision's flip, and RandomCrop(size, 4)
 *     train_data data = { { { "pixels", GCKPT_F32, images_row_size(&s), NULL }, // from images_batch
 *                           { "label", GCKPT_I32, 0, s.label } }, s.rows, s.validation };
 *     o.batch = images_batch, o.user = &s;         // or your callback that calls images_row
 *
 * A folder has one of:
 * - CIFAR-10's "binary version" (Krizhevsky 2009): test_batch.bin and one or more of
 *   data_batch_1.bin to data_batch_5.bin;
 * - MNIST's four files (LeCun 1998), unpacked, or other files of the same names and format:
 *   train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
 *   t10k-labels-idx1-ubyte;
 * - on POSIX systems, pictures of one size with a folder for each class, as for torchvision's
 *   ImageFolder: train/CLASS/NAME.ppm (or .pgm) and val/CLASS/NAME.ppm. Hidden files, Thumbs.db and
 *   desktop.ini are skipped. `magick mogrify -resize 32x32! -format ppm *.jpg` makes such pictures.
 * Pixels are (rows,height,width,channels), normalised by the training images' mean and
 * deviation.
 *
 * Instead of a folder, a FILE.npz of NumPy may be given, with bytes x_train and x_test,
 * (rows,height,width) or (rows,height,width,channels), and integers y_train and y_test, as Keras's
 * mnist.npz has them. */
#ifndef IMAGES_H
#define IMAGES_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__unix__) || defined(__APPLE__)
#include <dirent.h>
#include <strings.h>
#include <sys/stat.h>
#define IMAGES_FOLDERS
#endif

#include "digits.h"
#include "npy.h"
#include "train_data.h"

typedef struct {
    /* rows: number of images; validation: number of images, the last ones, that are not for
     * training */
    int64_t rows, validation;
    int64_t height, width, channels; /* size of each image */
    int64_t classes;
    /* names of the class folders, sorted; NULL if the images do not come from folders */
    char (*names)[256];
    float *pixels;        /* normalised pixels of all images, set by images_read */
    unsigned char *bytes; /* pixels of all images as in the files, set by images_read_u8 */
    int32_t *label;
    float value[256]; /* normalised value of each byte: (byte - mean) / deviation */
    /* Options of images_row. The caller may set them after images_read_u8. */
    /* if nonzero, half of the training images are mirrored left to right, at random */
    int flip;
    /* width of a black border around each image, in pixels; random crops of training images may
     * reach into it */
    int64_t padding;
    /* height and width of the part of an image that is used; 0 means the whole image */
    int64_t crop[2];
    char error[1400];
} images_set;

static inline int64_t images_size(const images_set *s)
{
    return s->height * s->width * s->channels;
}

static inline void images_free(images_set *s)
{
    free(s->pixels);
    free(s->bytes);
    free(s->label);
    free(s->names);
    s->names = NULL;
    s->pixels = NULL;
    s->bytes = NULL;
    s->label = NULL;
}

/* Sets the size of all images, at the first call. Returns -1 with s->error if a later image has
 * another size. */
static inline int images_check_size(images_set *s, int64_t height, int64_t width, int64_t channels,
                                    const char *path)
{
    if (s->rows > 0 && (height != s->height || width != s->width || channels != s->channels)) {
        snprintf(s->error, sizeof s->error,
                 "%s: images of %.0f x %.0f x %.0f after images of %.0f x %.0f x %.0f", path,
                 (double)height, (double)width, (double)channels, (double)s->height,
                 (double)s->width, (double)s->channels);
        return -1;
    }
    s->height = height, s->width = width, s->channels = channels;
    return 0;
}

/* Allocates space for n more images after the s->rows present ones. */
static inline int images_reserve(images_set *s, int64_t n)
{
    const size_t all = (size_t)(s->rows + n), size = (size_t)images_size(s);
    const int fits = s->rows + n <= (int64_t)(SIZE_MAX / 2 / sizeof(float) / size);
    unsigned char *bytes = fits ? (unsigned char *)realloc(s->bytes, all * size) : NULL;
    s->bytes = bytes != NULL ? bytes : s->bytes;
    int32_t *label = fits ? (int32_t *)realloc(s->label, all * sizeof *label) : NULL;
    s->label = label != NULL ? label : s->label;
    if (bytes == NULL || label == NULL) {
        snprintf(s->error, sizeof s->error, "out of memory: %.0f images", (double)(s->rows + n));
        return -1;
    }
    return 0;
}

static inline int images_set_label(images_set *s, int64_t row, int label, const char *path)
{
    s->label[row] = (int32_t)label;
    if (label < s->classes)
        return 0;
    snprintf(s->error, sizeof s->error, "%s: row %.0f has label %i of %.0f classes", path,
             (double)row, label, (double)s->classes);
    return -1;
}

/* Returns the number of bytes from the current position to the end of the file, or -1 if that is
 * unknown. */
static inline int64_t images_bytes_left(FILE *f)
{
    const long here = ftell(f), end = here >= 0 && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    return end >= here && fseek(f, here, SEEK_SET) == 0 ? (int64_t)end - here : -1;
}

/* Reads CIFAR-10's records from a file: a label, then 32 x 32 values of red, of green and of
 * blue. */
static inline int images_read_cifar(images_set *s, const char *path, FILE *f)
{
    enum { PLACES = 32 * 32 };
    unsigned char record[1 + 3 * PLACES];
    const int64_t left = images_bytes_left(f), rows = left / (int64_t)sizeof record;
    int failed = 0;
    if (left < 0 || left % (int64_t)sizeof record != 0)
        failed = snprintf(s->error, sizeof s->error,
                          "%s: not CIFAR-10's format: rows have 3073 bytes", path);
    failed = failed || (rows > 0 && images_reserve(s, rows) != 0);
    for (int64_t n = 0; n < rows && !failed; n++) {
        if (fread(record, 1, sizeof record, f) != sizeof record) {
            failed = snprintf(s->error, sizeof s->error, "%s: cannot be read", path);
            break;
        }
        unsigned char *to = s->bytes + s->rows * 3 * PLACES;
        for (int i = 0; i < 3 * PLACES; i++)
            to[i % PLACES * 3 + i / PLACES] = record[1 + i];
        failed = images_set_label(s, s->rows++, record[0], path) != 0;
    }
    return failed ? -1 : 0;
}

/* Reads a number of four bytes, the highest first. Returns -1 at the end of the file. */
static inline int64_t images_read_int(FILE *f)
{
    unsigned char b[4];
    if (fread(b, 1, 4, f) != 4)
        return -1;
    return (int64_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
}

/* Reads a pair of MNIST's files. One has the numbers 2051, rows, height and width, then the pixels;
 * the other one has 2049 and rows, then the labels. */
static inline int images_read_idx(images_set *s, const char *path, FILE *images, FILE *labels)
{
    const int64_t magic = images_read_int(images), rows = images_read_int(images);
    const int64_t height = images_read_int(images), width = images_read_int(images);
    int failed =
        magic != 2051 || images_read_int(labels) != 2049 || images_read_int(labels) != rows;
    if (failed || rows < 1 || height < 1 || width < 1 || height > 4096 || width > 4096) {
        snprintf(s->error, sizeof s->error, "%s: not in MNIST's format, or the labels do not match",
                 path);
        return -1;
    }
    /* the file's size is checked before memory is allocated */
    const int64_t left = images_bytes_left(images);
    if (left < rows * height * width) {
        snprintf(s->error, sizeof s->error, "%s: ends within row %.0f", path,
                 (double)(left / (height * width)));
        return -1;
    }
    if (images_check_size(s, height, width, 1, path) != 0 || images_reserve(s, rows) != 0)
        return -1;
    for (int64_t i = 0; i < rows && !failed; i++, s->rows++) {
        unsigned char *to = s->bytes + s->rows * images_size(s);
        int label = fgetc(labels), pixel = 0;
        for (int64_t k = 0; k < images_size(s) && pixel != EOF; k++)
            to[k] = (unsigned char)(pixel = fgetc(images));
        failed = label == EOF || pixel == EOF || images_set_label(s, s->rows, label, path) != 0;
        if (label == EOF || pixel == EOF)
            snprintf(s->error, sizeof s->error, "%s: ends within row %.0f", path, (double)i);
    }
    return failed ? -1 : 0;
}

/* Opens FOLDER/NAME for reading and writes its path to `path`. Returns NULL if that fails. */
static inline FILE *images_open(const char *folder, const char *name, char path[512])
{
    const int n = snprintf(path, 512, "%s/%s", folder, name);
    return n < 512 ? fopen(path, "rb") : NULL;
}

/* Appends the images of CIFAR-10 or MNIST for training (part 0) or validation (part 1). Returns 0,
 * -1 with s->error, or 1 if the folder does not have their files. */
static inline int images_read_part(images_set *s, const char *folder, int part)
{
    static const char *const idx[2][2] = { { "train-images-idx3-ubyte", "train-labels-idx1-ubyte" },
                                           { "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte" } };
    char path[512], name[32], other[512];
    int failed = 0, found = 0;
    for (int i = part ? 0 : 1; i < (part ? 1 : 6) && !failed; i++) {
        snprintf(name, sizeof name, i ? "data_batch_%i.bin" : "test_batch.bin", i);
        FILE *f = images_open(folder, name, path);
        if (f != NULL) {
            found = 1;
            failed =
                images_check_size(s, 32, 32, 3, path) != 0 ? -1 : images_read_cifar(s, path, f);
            fclose(f);
        }
    }
    if (found)
        return failed;
    FILE *images = images_open(folder, idx[part][0], path);
    FILE *labels = images_open(folder, idx[part][1], other);
    failed = images == NULL || labels == NULL ? 1 : images_read_idx(s, path, images, labels);
    if (images != NULL)
        fclose(images);
    if (labels != NULL)
        fclose(labels);
    return failed;
}

/* Appends the images of a .npz for training (part 0) or validation (part 1). Returns 0, or -1 with
 * s->error. */
static inline int images_read_npz(images_set *s, npy *f, int part)
{
    const npy_array *x = npy_find(f, part ? "x_test" : "x_train"),
                    *y = x != NULL ? npy_find(f, part ? "y_test" : "y_train") : NULL;
    int failed = y == NULL;
    if (!failed && ((x->dims != 3 && x->dims != 4) || x->count == 0 || y->count != x->shape[0]))
        failed = npy_fail(f, "%s needs 3 or 4 axes, and %s a label for each row", x->name, y->name);
    if (!failed && images_check_size(s, x->shape[1], x->shape[2], x->dims == 4 ? x->shape[3] : 1,
                                     f->path) != 0)
        return -1;
    if (!failed && images_reserve(s, x->shape[0]) != 0)
        return -1;
    if (failed || npy_bytes(f, x, s->bytes + s->rows * images_size(s)) != 0 ||
        npy_integers(f, y, s->label + s->rows) != 0) {
        snprintf(s->error, sizeof s->error, "%s", f->error);
        return -1;
    }
    s->classes = part ? s->classes : 0; /* the training labels tell the classes */
    for (int64_t i = 0; i < y->count && !part; i++)
        if (s->label[i] >= s->classes && s->label[i] < 1 << 20)
            s->classes = s->label[i] + 1;
    for (int64_t i = 0; i < y->count && !failed; i++, s->rows++)
        if (s->label[s->rows] < 0)
            failed = npy_fail(f, "%s: row %lld has label %d", y->name, (long long)i,
                              (int)s->label[s->rows]);
        else
            failed = images_set_label(s, s->rows, s->label[s->rows], f->path);
    if (failed && s->error[0] == 0)
        snprintf(s->error, sizeof s->error, "%s", f->error);
    return failed ? -1 : 0;
}

#ifdef IMAGES_FOLDERS
/* Returns whether a name in a folder is to be ignored: a hidden file, or a file that Windows
 * creates when a user opens a folder. */
static inline int images_is_skipped(const char *name)
{
    return name[0] == '.' || strcasecmp(name, "Thumbs.db") == 0 ||
           strcasecmp(name, "desktop.ini") == 0;
}

static inline int images_by_name(const void *a, const void *b)
{
    return strcmp((const char *)a, (const char *)b);
}

/* Lists the names in a folder, sorted, without those of images_is_skipped. Returns their number.
 * Returns -1 if the folder does not exist or, with s->error, if out of memory. */
static inline int64_t images_list(images_set *s, const char *path, char (**names)[256])
{
    DIR *folder = opendir(path);
    int64_t n = 0;
    *names = NULL;
    if (folder == NULL)
        return -1;
    for (struct dirent *d; (d = readdir(folder)) != NULL;) {
        if (images_is_skipped(d->d_name))
            continue;
        void *more = realloc(*names, (size_t)(n + 1) * sizeof **names);
        if (more == NULL) {
            snprintf(s->error, sizeof s->error, "%s: out of memory for its names", path);
            n = -1;
            break;
        }
        *names = (char(*)[256])more;
        snprintf((*names)[n++], sizeof **names, "%s", d->d_name);
    }
    closedir(folder);
    if (n > 0)
        qsort(*names, (size_t)n, sizeof **names, images_by_name);
    return n;
}

/* Reads a number in the header of a portable map, after white space and comments. Returns -1 if
 * there is no number. */
static inline int64_t images_pnm_number(FILE *f)
{
    int64_t n = -1;
    int c = fgetc(f);
    while (c == '#' || c == ' ' || c == '\t' || c == '\n' || c == '\r')
        for (int in = c == '#'; (c = fgetc(f)) != EOF && in;)
            in = c != '\n';
    for (; c >= '0' && c <= '9' && n < 1000000; c = fgetc(f))
        n = (n < 0 ? 0 : 10 * n) + c - '0';
    return n;
}

/* Appends a picture: a portable pixmap (P6) or graymap (P5) with one byte per value. If reserve is
 * nonzero, first allocates space for `reserve` images of this size. It is an error if these would
 * take more than `bytes`, the size of all files. */
static inline int images_read_pnm(images_set *s, const char *path, int64_t reserve, double bytes)
{
    FILE *f = fopen(path, "rb");
    const int p = f != NULL && fgetc(f) == 'P' ? fgetc(f) : 0, known = p == '5' || p == '6';
    const int64_t width = known ? images_pnm_number(f) : -1,
                  height = known ? images_pnm_number(f) : -1;
    const int64_t most = known ? images_pnm_number(f) : -1;
    int failed = 0;
    if (width < 1 || height < 1 || width > 16384 || height > 16384 || most != 255)
        failed = snprintf(s->error, sizeof s->error,
                          "%s: not a .ppm or .pgm with bytes of 0 to 255 (P6, P5)", path);
    failed = failed || images_check_size(s, height, width, p == '6' ? 3 : 1, path) != 0;
    const size_t size = (size_t)images_size(s);
    /* the file's size is checked before memory is allocated */
    if (!failed && images_bytes_left(f) < images_size(s))
        failed = snprintf(s->error, sizeof s->error, "%s: ends within the picture", path);
    if (!failed && bytes < (double)reserve * (double)size)
        failed = snprintf(s->error, sizeof s->error,
                          "%s: %lld pictures of its size take %.0f bytes, but the files have %.0f",
                          path, (long long)reserve, (double)reserve * (double)size, bytes);
    failed = failed || (reserve > 0 && images_reserve(s, reserve) != 0);
    if (!failed && fread(s->bytes + (size_t)s->rows * size, 1, size, f) != size)
        failed = snprintf(s->error, sizeof s->error, "%s: cannot be read", path);
    if (f != NULL)
        fclose(f);
    s->rows += !failed;
    return failed ? -1 : 0;
}

/* Appends all pictures in the folder `path`, with the label of their class. */
static inline int images_read_class(images_set *s, const char *path, int64_t label)
{
    char file[1100], (*names)[256];
    const int64_t n = images_list(s, path, &names);
    int failed = n <= 0;
    double bytes = 0;
    struct stat info;
    if (failed && s->error[0] == 0)
        snprintf(s->error, sizeof s->error, "%s: a folder with a class's pictures is expected",
                 path);
    for (int64_t i = 0; i < n; i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        bytes += stat(file, &info) == 0 ? (double)info.st_size : 0;
    }
    for (int64_t i = 0; i < n && !failed; i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        failed = images_read_pnm(s, file, i == 0 ? n : 0, bytes) != 0;
        if (!failed)
            s->label[s->rows - 1] = (int32_t)label;
    }
    free(names);
    return failed;
}

/* Appends all pictures in FOLDER/part, which has a folder for each class. Returns 0, -1 with
 * s->error, or 1 if the folder does not exist. */
static inline int images_read_folder(images_set *s, const char *folder, const char *part)
{
    char path[512], in[800], (*names)[256];
    snprintf(path, sizeof path, "%s/%s", folder, part);
    const int64_t n = images_list(s, path, &names);
    int failed = n <= 0;
    if (failed && s->error[0] == 0)
        return free(names), 1;
    if (!failed && s->names == NULL) {
        s->classes = n;
        s->names = names;
    }
    for (int64_t k = 0; k < n && !failed; k++) {
        snprintf(in, sizeof in, "%s/%s", path, names[k]);
        if (n != s->classes || strcmp(names[k], s->names[k]) != 0)
            failed = snprintf(s->error, sizeof s->error,
                              "%s: its classes differ from those of train", path) > 0;
        failed = failed || images_read_class(s, in, k);
    }
    if (names != s->names)
        free(names);
    return failed ? -1 : 0;
}
#endif

/* Reads the digits of digits.h, of 8 x 8 pixels. The last 360 are for validation; other people
 * wrote them than the rest. */
static inline int images_read_digits(images_set *s)
{
    s->height = s->width = 8, s->channels = 1;
    if (images_reserve(s, DIGITS) != 0)
        return -1;
    for (int i = 0; i < DIGITS; i++) {
        for (int k = 0; k < 64; k++)
            s->bytes[64 * i + k] = (unsigned char)(digits_rows[i][k] - 'A');
        s->label[i] = digits_rows[i][64] - '0';
    }
    s->rows = DIGITS;
    s->validation = 360;
    return 0;
}

/* Computes s->value from the mean and the standard deviation of the training images. */
static inline void images_normalise(images_set *s)
{
    const int64_t n = (s->rows - s->validation) * images_size(s);
    double mean = 0, variance = 0, inv_std = 1;
    for (int64_t i = 0; i < n; i++)
        mean += (double)s->bytes[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        variance += ((double)s->bytes[i] - mean) * ((double)s->bytes[i] - mean) / (double)n;
    /* 1 / sqrt by Newton's method, so that programs need no math library */
    for (int i = 0; i < 60 && variance > 0; i++)
        inv_std = inv_std * inv_std * variance > 2
                      ? inv_std / 2
                      : inv_std * (1.5 - 0.5 * variance * inv_std * inv_std);
    for (int i = 0; i < 256; i++)
        s->value[i] = (float)((i - mean) * inv_std);
}

/* Reads the images as bytes, into s->bytes. If folder is NULL, takes the digits of digits.h.
 * Returns 0, or -1 with s->error. */
static inline int images_read_u8(images_set *s, const char *folder)
{
    const size_t n = folder != NULL ? strlen(folder) : 0;
    const int zipped = n > 4 && strcmp(folder + n - 4, ".npz") == 0;
    int failed = 0;
    npy f;
    memset(s, 0, sizeof *s);
    s->classes = 10;
    if (folder == NULL)
        failed = images_read_digits(s);
    if (zipped && npy_open(&f, folder) != 0) {
        failed = -1;
        snprintf(s->error, sizeof s->error, "%s", f.error);
    }
    for (int part = 0; folder != NULL && part < 2 && !failed; part++) {
        s->validation = -s->rows;
        failed = zipped ? images_read_npz(s, &f, part) : images_read_part(s, folder, part);
#ifdef IMAGES_FOLDERS
        if (failed > 0)
            failed = images_read_folder(s, folder, part ? "val" : "train");
#endif
        s->validation += s->rows;
        if (!failed && s->validation == 0) {
            snprintf(s->error, sizeof s->error, "%s: no images in %s", folder,
                     part ? "test_batch.bin" : "data_batch_1.bin to data_batch_5.bin");
            failed = -1;
        } else if (failed > 0) {
            snprintf(s->error, sizeof s->error,
                     "%s has neither %s nor MNIST's %s-images-idx3-ubyte and its labels, nor "
                     "%s/CLASS/NAME.ppm",
                     folder, part ? "test_batch.bin" : "data_batch_1.bin", part ? "t10k" : "train",
                     part ? "val" : "train");
        }
    }
    if (zipped)
        npy_close(&f);
    if (!failed)
        images_normalise(s);
    else
        images_free(s);
    return failed ? -1 : 0;
}

/* Reads the images as normalised floats, into s->pixels. Returns 0, or -1 with s->error. */
static inline int images_read(images_set *s, const char *folder)
{
    if (images_read_u8(s, folder) != 0)
        return -1;
    const int64_t n = s->rows * images_size(s);
    s->pixels = (float *)malloc((size_t)n * sizeof *s->pixels);
    for (int64_t i = 0; i < n && s->pixels != NULL; i++)
        s->pixels[i] = s->value[s->bytes[i]];
    free(s->bytes);
    s->bytes = NULL;
    if (s->pixels != NULL)
        return 0;
    images_free(s);
    snprintf(s->error, sizeof s->error, "out of memory: %.0f images", (double)s->rows);
    return -1;
}

/* ---- images as bytes: rows of floats, plain or augmented ---- */
static inline int64_t images_side(const images_set *s, int axis)
{
    return s->crop[axis] > 0 ? s->crop[axis] : axis == 0 ? s->height : s->width;
}

/* Returns the number of floats that images_row writes: height and width of the part used, times
 * channels. */
static inline int64_t images_row_size(const images_set *s)
{
    return images_side(s, 0) * images_side(s, 1) * s->channels;
}

/* Writes image `row` as floats, cropped and mirrored as 64 random bits determine. If random_bits is
 * NULL, takes the middle of the image and does not mirror it. */
static inline void images_row(const images_set *s, int64_t row, const uint64_t *random_bits,
                              float *to)
{
    const int64_t side[2] = { s->height, s->width }, C = s->channels;
    const unsigned char *image = s->bytes + row * images_size(s);
    const int mirrored = random_bits != NULL && s->flip && (*random_bits & 1) != 0;
    int64_t from[2];
    for (int i = 0; i < 2; i++) {
        const int64_t positions = side[i] + 2 * s->padding - images_side(s, i) + 1;
        from[i] = (side[i] - images_side(s, i)) / 2;
        if (random_bits != NULL && positions > 0)
            from[i] = (int64_t)((*random_bits >> (32 * i + 1) & 0x7fffffff) % (uint64_t)positions) -
                      s->padding;
    }
    for (int64_t y = from[0]; y < from[0] + images_side(s, 0); y++)
        for (int64_t k = 0; k < images_side(s, 1); k++, to += C) {
            const int64_t x = from[1] + (mirrored ? images_side(s, 1) - 1 - k : k);
            const int inside = y >= 0 && y < s->height && x >= 0 && x < s->width;
            for (int64_t c = 0; c < C; c++)
                to[c] = s->value[inside ? image[(y * s->width + x) * C + c] : 0];
        }
}

/* A train_options.batch callback that fills column 0 with images; `user` is the images_set. Only
 * training images are augmented. */
static inline int images_batch(void *user, train_batch *b)
{
    const images_set *s = (const images_set *)user;
    for (int64_t i = 0; i < b->n; i++) {
        const uint64_t random_bits = train_random(b, i, 0);
        images_row(s, b->rows[i], b->epoch > 0 ? &random_bits : NULL,
                   (float *)b->values[0] + i * images_row_size(s));
    }
    return 0;
}
#endif

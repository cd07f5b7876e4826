/* images.h - labelled images as rows of floats: the digits that come with these examples, CIFAR-10
 * and MNIST from files that you have. To copy, and to change. C99 or C++11.
 *
 *     images_set s;
 *     if (images_read(&s, folder) != 0)            // NULL: the digits
 *         fprintf(stderr, "%s\n", s.error);
 *     ...                                          // s.rows, of which s.validation at the end
 *     images_free(&s);
 *
 * A folder has data_batch_1.bin to data_batch_5.bin (those that are there count) and
 * test_batch.bin, of CIFAR-10's "binary version" (Krizhevsky 2009); or MNIST's four files (LeCun
 * 1998), unpacked: train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte,
 * t10k-labels-idx1-ubyte, or others of these names and format. Pixels are
 * (rows,height,width,channels), less the mean and by the deviation of those to be trained on. */
#ifndef IMAGES_H
#define IMAGES_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digits.h"

typedef struct {
    int64_t rows, validation;        /* all; of them the last ones, which are not trained on */
    int64_t height, width, channels; /* of an image */
    int64_t classes;
    float *pixels;
    int32_t *label;
    char error[1400];
} images_set;

static inline int64_t images_size(const images_set *s)
{
    return s->height * s->width * s->channels;
}

static inline void images_free(images_set *s)
{
    free(s->pixels);
    free(s->label);
    s->pixels = NULL;
    s->label = NULL;
}

/* Rows from here on have this size: as those before, if there are any. */
static inline int images_like(images_set *s, int64_t height, int64_t width, int64_t channels,
                              const char *path)
{
    if (s->rows > 0 && (height != s->height || width != s->width || channels != s->channels)) {
        snprintf(s->error, sizeof s->error,
                 "%s: images of %.0f x %.0f x %.0f behind those of %.0f x %.0f x %.0f", path,
                 (double)height, (double)width, (double)channels, (double)s->height,
                 (double)s->width, (double)s->channels);
        return -1;
    }
    s->height = height, s->width = width, s->channels = channels;
    return 0;
}

/* Room for n more rows, which begin at row s->rows. */
static inline int images_room(images_set *s, int64_t n)
{
    const size_t all = (size_t)(s->rows + n), size = (size_t)images_size(s) * sizeof(float);
    const int fits = s->rows + n <= (int64_t)(SIZE_MAX / 2 / size);
    float *pixels = fits ? (float *)realloc(s->pixels, all * size) : NULL;
    s->pixels = pixels != NULL ? pixels : s->pixels;
    int32_t *label = fits ? (int32_t *)realloc(s->label, all * sizeof *label) : NULL;
    s->label = label != NULL ? label : s->label;
    if (pixels == NULL || label == NULL) {
        snprintf(s->error, sizeof s->error, "out of memory: %.0f images", (double)(s->rows + n));
        return -1;
    }
    return 0;
}

static inline int images_label(images_set *s, int64_t row, int label, const char *path)
{
    s->label[row] = (int32_t)label;
    if (label < s->classes)
        return 0;
    snprintf(s->error, sizeof s->error, "%s: row %.0f has label %i of %.0f classes", path,
             (double)row, label, (double)s->classes);
    return -1;
}

/* Records of CIFAR-10: the label, then 32 x 32 reds, greens and blues. */
static inline int images_cifar(images_set *s, const char *path, FILE *f)
{
    enum { PLACES = 32 * 32 };
    unsigned char record[1 + 3 * PLACES];
    size_t got = fread(record, 1, sizeof record, f);
    int failed = 0;
    for (int64_t n = 0; !failed && got == sizeof record; n++) {
        if (n % 1000 == 0 && images_room(s, 1000) != 0)
            return -1;
        float *to = s->pixels + s->rows * 3 * PLACES;
        for (int i = 0; i < 3 * PLACES; i++)
            to[i % PLACES * 3 + i / PLACES] = record[1 + i];
        failed = images_label(s, s->rows++, record[0], path) != 0;
        got = fread(record, 1, sizeof record, f);
    }
    if (!failed && got != 0)
        failed = snprintf(s->error, sizeof s->error,
                          "%s: not CIFAR-10's format: rows have 3073 bytes", path);
    return failed ? -1 : 0;
}

/* A number of four bytes, the highest first; -1: the file has ended. */
static inline int64_t images_number(FILE *f)
{
    unsigned char b[4];
    if (fread(b, 1, 4, f) != 4)
        return -1;
    return (int64_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
}

/* MNIST's files: 2051, rows, height, width, pixels; and 2049, rows, labels. */
static inline int images_idx(images_set *s, const char *path, FILE *images, FILE *labels)
{
    const int64_t magic = images_number(images), rows = images_number(images);
    const int64_t height = images_number(images), width = images_number(images);
    int failed = magic != 2051 || images_number(labels) != 2049 || images_number(labels) != rows;
    if (failed || rows < 1 || height < 1 || width < 1 || height > 4096 || width > 4096) {
        snprintf(s->error, sizeof s->error, "%s: not MNIST's format, or not like its labels", path);
        return -1;
    }
    if (images_like(s, height, width, 1, path) != 0 || images_room(s, rows) != 0)
        return -1;
    for (int64_t i = 0; i < rows && !failed; i++, s->rows++) {
        float *to = s->pixels + s->rows * images_size(s);
        int label = fgetc(labels), pixel = 0;
        for (int64_t k = 0; k < images_size(s) && pixel != EOF; k++)
            to[k] = (float)(pixel = fgetc(images));
        failed = label == EOF || pixel == EOF || images_label(s, s->rows, label, path) != 0;
        if (label == EOF || pixel == EOF)
            snprintf(s->error, sizeof s->error, "%s: ends within row %.0f", path, (double)i);
    }
    return failed ? -1 : 0;
}

/* FOLDER/NAME; NULL: there is none. */
static inline FILE *images_open(const char *folder, const char *name, char path[512])
{
    const int n = snprintf(path, 512, "%s/%s", folder, name);
    return n < 512 ? fopen(path, "rb") : NULL;
}

/* A part of the set: for training (0) or validation (1). 1: no such files. */
static inline int images_part(images_set *s, const char *folder, int part)
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
            failed = images_like(s, 32, 32, 3, path) != 0 ? -1 : images_cifar(s, path, f);
            fclose(f);
        }
    }
    if (found)
        return failed;
    FILE *images = images_open(folder, idx[part][0], path);
    FILE *labels = images_open(folder, idx[part][1], other);
    failed = images == NULL || labels == NULL ? 1 : images_idx(s, path, images, labels);
    if (images != NULL)
        fclose(images);
    if (labels != NULL)
        fclose(labels);
    return failed;
}

/* The digits, 8 x 8; the last 360 are by people of whom the others know nothing. */
static inline int images_digits(images_set *s)
{
    s->height = s->width = 8, s->channels = 1;
    if (images_room(s, DIGITS) != 0)
        return -1;
    for (int i = 0; i < DIGITS; i++) {
        for (int k = 0; k < 64; k++)
            s->pixels[64 * i + k] = (float)(digits_rows[i][k] - 'A');
        s->label[i] = digits_rows[i][64] - '0';
    }
    s->rows = DIGITS;
    s->validation = 360;
    return 0;
}

/* Less the mean, by the deviation, of the images to be trained on. */
static inline void images_scale(images_set *s)
{
    const int64_t n = (s->rows - s->validation) * images_size(s), all = s->rows * images_size(s);
    double mean = 0, squares = 0, slope = 1;
    for (int64_t i = 0; i < n; i++)
        mean += (double)s->pixels[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += ((double)s->pixels[i] - mean) * ((double)s->pixels[i] - mean) / (double)n;
    for (int i = 0; i < 60 && squares > 0; i++) /* 1 / sqrt, by Newton: nothing has to be linked */
        slope =
            slope * slope * squares > 2 ? slope / 2 : slope * (1.5 - 0.5 * squares * slope * slope);
    for (int64_t i = 0; i < all; i++)
        s->pixels[i] = (float)(((double)s->pixels[i] - mean) * slope);
}

/* folder NULL: the digits. -1: s->error says why. */
static inline int images_read(images_set *s, const char *folder)
{
    int failed = 0;
    memset(s, 0, sizeof *s);
    s->classes = 10;
    if (folder == NULL)
        failed = images_digits(s);
    for (int part = 0; folder != NULL && part < 2 && !failed; part++) {
        s->validation = -s->rows;
        failed = images_part(s, folder, part);
        s->validation += s->rows;
        if (failed > 0)
            snprintf(s->error, sizeof s->error,
                     "%s has neither %s nor MNIST's %s-images-idx3-ubyte and its labels", folder,
                     part ? "test_batch.bin" : "data_batch_1.bin", part ? "t10k" : "train");
    }
    if (!failed)
        images_scale(s);
    else
        images_free(s);
    return failed ? -1 : 0;
}
#endif

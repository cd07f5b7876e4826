/* test_images.c - tests examples/images.h: images stored as bytes must give the floats of images_read, and random crops
 * and mirrored images must equal those of a plain loop. It also tests folders of pictures, and files that must be
 * refused. */
#if defined(__unix__) || defined(__APPLE__)
#define _DEFAULT_SOURCE
#include <sys/stat.h>
#include <unistd.h>
#endif
#include "gradckpt.h"
#include "check.h"
#include "counted.h"
#include "examples/images.h" /* tests that images.h may be included before layers.h and train.h */
#include "examples/layers.h"
#include "examples/train.h"

static void test_bytes(void)
{
    images_set whole, narrow;
    float row[64];
    CHECK(images_read(&whole, NULL) == 0 && images_read_u8(&narrow, NULL) == 0);
    CHECK(whole.pixels != NULL && whole.bytes == NULL && narrow.pixels == NULL && narrow.rows == 1797);
    CHECK(images_row_size(&narrow) == 64 && narrow.validation == 360);
    double mean = 0;
    for (int64_t i = 0; i < narrow.rows; i++) {
        images_row(&narrow, i, NULL, row);
        CHECK(memcmp(row, whole.pixels + 64 * i, sizeof row) == 0 && whole.label[i] == narrow.label[i]);
        for (int k = 0; k < 64 && i < 1437; k++)
            mean += (double)row[k] / (64 * 1437);
    }
    CHECK(mean < 1e-6 && mean > -1e-6);
    images_free(&whole), images_free(&narrow);
}

/* Makes a set of one image of 5 x 7 pixels with 2 channels, in which byte i is i + 1. */
static void numbered(images_set *s, unsigned char *bytes)
{
    memset(s, 0, sizeof *s);
    s->rows = 1, s->height = 5, s->width = 7, s->channels = 2;
    s->bytes = bytes;
    for (int i = 0; i < 70; i++)
        bytes[i] = (unsigned char)(i + 1);
    for (int i = 0; i < 256; i++)
        s->value[i] = (float)i;
}

/* Searches all possible crops of image s for the one that equals `got`. Returns 1 if one does, and sets its offsets
 * `from` and whether it is mirrored. */
static int find(const images_set *s, const float *got, int from[2], int *mirrored)
{
    const int side[2] = { (int)images_side(s, 0), (int)images_side(s, 1) }, pad = (int)s->padding;
    for (from[0] = -pad; from[0] <= 5 + pad - side[0]; from[0]++)
        for (from[1] = -pad; from[1] <= 7 + pad - side[1]; from[1]++)
            for (*mirrored = 0; *mirrored < 2; ++*mirrored) {
                int wrong = 0;
                for (int y = 0; y < side[0]; y++)
                    for (int x = 0; x < side[1]; x++)
                        for (int c = 0; c < 2; c++) {
                            const int Y = from[0] + y, X = from[1] + (*mirrored ? side[1] - 1 - x : x);
                            const int want = Y < 0 || Y > 4 || X < 0 || X > 6 ? 0 : (Y * 7 + X) * 2 + c + 1;
                            wrong += got[(y * side[1] + x) * 2 + c] != (float)want;
                        }
                if (!wrong)
                    return 1;
            }
    return 0;
}

static void test_augmentation(void)
{
    static unsigned char bytes[70];
    static const int64_t crops[3][2] = { { 0, 0 }, { 4, 3 }, { 5, 7 } };
    images_set s;
    float got[70];
    numbered(&s, bytes);
    for (int crop = 0; crop < 3; crop++)
        for (s.padding = 0; s.padding < 3; s.padding++)
            for (s.flip = 0; s.flip < 2; s.flip++) {
                int times[16][16] = { { 0 } }, flips = 0, from[2], mirrored, least = 1 << 20;
                s.crop[0] = crops[crop][0], s.crop[1] = crops[crop][1];
                uint64_t chance = 7;
                images_row(&s, 0, NULL, got);
                CHECK(find(&s, got, from, &mirrored) && !mirrored);
                CHECK(from[0] == (5 - images_side(&s, 0)) / 2 && from[1] == (7 - images_side(&s, 1)) / 2);
                for (int i = 0; i < 4000; i++) {
                    chance = train_mix(chance + 0x9e3779b97f4a7c15u);
                    images_row(&s, 0, &chance, got);
                    CHECK(find(&s, got, from, &mirrored));
                    times[from[0] + 2][from[1] + 2]++;
                    flips += mirrored;
                }
                const int down = (int)(5 + 2 * s.padding - images_side(&s, 0)),
                          right = (int)(7 + 2 * s.padding - images_side(&s, 1));
                for (int y = 0; y <= down; y++) /* every offset must be equally likely */
                    for (int x = 0; x <= right; x++) {
                        const int n = times[y + 2 - s.padding][x + 2 - s.padding];
                        least = n < least ? n : least;
                    }
                CHECK_MSG(least > 4000 / ((down + 1) * (right + 1)) / 3, "a place came %d times", least);
                CHECK_MSG(s.flip ? flips > 1850 && flips < 2150 : flips == 0, "%d mirrored", flips);
            }
}

/* The model of test_training, one dense layer. That test checks that training with random shifts gives the same weights
 * for every micro-batch size, and other weights than training without shifts. */
static void model(train_net *net, void *user)
{
    (void)user;
    net->output = layers_dense(net->in[0], "fc", 10);
    net->loss = gckpt_cross_entropy(net->output, net->in[1], NULL, 0);
}

static void test_training(void)
{
    images_set s, whole;
    uint64_t hash[5];
    CHECK(images_read_u8(&s, NULL) == 0 && images_read(&whole, NULL) == 0);
    s.rows = whole.rows = 300, s.validation = whole.validation = 100;
    for (int way = 0; way < 5; way++) {
        train_data data = { { { "pixels", GCKPT_F32, 64, NULL }, { "label", GCKPT_I32, 0, s.label } }, 300, 100 };
        train_options o = train_defaults(1e-2f);
        train_report r;
        gckpt_store *weights = gckpt_store_new(NULL);
        o.epochs = 2, o.print_every = -1;
        o.batch = images_batch, o.user = &s;
        s.padding = way < 3, s.flip = way == 2;
        o.micro_batch = way == 1 ? 4 : 0;
        if (way == 4)
            o.batch = NULL, data.column[0].values = whole.pixels;
        CHECK_MSG(train_fit(weights, model, &data, &o, &r) == 0, "%s", r.error);
        hash[way] = gckpt_store_hash(weights);
        static float out[300][10], plain[300][10]; /* images for prediction must not be shifted */
        CHECK(train_predict(weights, model, &data, &o, out[0], &r) == 0);
        o.batch = NULL, data.column[0].values = whole.pixels;
        CHECK(train_predict(weights, model, &data, &o, plain[0], &r) == 0);
        CHECK(memcmp(out, plain, sizeof out) == 0);
        gckpt_store_free(weights);
    }
    CHECK(hash[0] == hash[1] && hash[0] != hash[2] && hash[0] != hash[3] && hash[3] == hash[4]);
    images_free(&s), images_free(&whole);
}

#ifdef IMAGES_FOLDERS
#define AT "build/pictures.test"

static void put(const char *name, const char *head, int bytes, int first)
{
    char path[200];
    snprintf(path, sizeof path, AT "/%s", name);
    FILE *f = fopen(path, "wb");
    CHECK_MSG(f != NULL && fputs(head, f) >= 0, "%s", path);
    for (int i = 0; f != NULL && i < bytes; i++)
        fputc((first + i) & 255, f);
    if (f != NULL)
        fclose(f);
}

static void refused(const char *why)
{
    images_set s;
    CHECK_MSG(images_read_u8(&s, AT) != 0 && strstr(s.error, why) != NULL, "%s; wanted %s", s.error, why);
    CHECK(s.bytes == NULL && s.names == NULL);
}

/* A file that claims to have many images must not make the reader allocate memory before their pixels are read. A set
 * without images must be refused. */
static void test_lies(void)
{
    static const char *const files[] = { "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "train/tea/1.ppm",
                                         "data_batch_1.bin" };
    static const unsigned char head[] = { 0, 0, 8,  3, 255, 255, 255, 255, 0,   0,   16,  0,
                                          0, 0, 16, 0, 0,   0,   8,   1,   255, 255, 255, 255 };
    char path[200];
    images_set s;
    mkdir(AT, 0777), mkdir(AT "/train", 0777), mkdir(AT "/train/tea", 0777);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, AT "/%s", files[i]);
        FILE *f = fopen(path, "wb");
        CHECK(f != NULL && fwrite(head + 16 * i, 1, i ? 8 : 16, f) == (i ? 8u : 16u) && fclose(f) == 0);
    }
    allocations = 0;
    refused("train-images-idx3-ubyte: ends within row 0");
    CHECK_MSG(allocations == 0, "%ld allocations", allocations);
    remove(AT "/train-images-idx3-ubyte"), remove(AT "/train-labels-idx1-ubyte");
    put(files[2], "P6\n16384 16384\n255\n", 100, 0);
    allocations = 0;
    refused("train/tea/1.ppm: ends within the picture");
    CHECK_MSG(allocations == 2, "%ld allocations; names of two folders alone are two", allocations);
    put(files[3], "", 0, 0);
    refused("no images in data_batch_1.bin to data_batch_5.bin");
    put(files[3], "\1", 3073, 0);
    allocations = 0;
    refused("data_batch_1.bin: not CIFAR-10's format: rows have 3073 bytes");
    CHECK_MSG(allocations == 0, "%ld allocations", allocations);
    put(files[3], "\12", 3072, 0);
    refused("data_batch_1.bin: row 0 has label 10 of 10 classes");
    put(files[3], "\1", 3072, 0);
    put("test_batch.bin", "", 0, 0);
    refused("no images in test_batch.bin");
    put("test_batch.bin", "\2\3\4", 3070, 5);
    memset(&s, 0, sizeof s);
    CHECK_MSG(images_read_u8(&s, AT) == 0, "%s", s.error);
    CHECK(s.rows == 2 && s.validation == 1 && s.label[0] == 1 && s.label[1] == 2 && s.channels == 3);
    for (int i = 0; i < 6 && s.bytes != NULL; i++) /* in the file, the red, green and blue values all begin with 3, 4 */
        CHECK(s.bytes[3072 + i] == 3 + i / 3);
    images_free(&s);
    remove(AT "/test_batch.bin");
    for (int i = 2; i < 4; i++)
        snprintf(path, sizeof path, AT "/%s", files[i]), remove(path);
    rmdir(AT "/train/tea"), rmdir(AT "/train"), rmdir(AT);
}

static void test_folders(void)
{
    static const char *const folders[] = { "",     "/train",   "/train/tea", "/train/coffee",
                                           "/val", "/val/tea", "/val/coffee" };
    static const char *const more[] = { "m", "c", "x", "d", "b", "a" };
    char(*names)[256];
    static const char *const files[] = { "train/tea/b.ppm", "train/tea/a.ppm", "train/coffee/x.ppm", "val/tea/1.ppm",
                                         "val/coffee/2.ppm" };
    char path[200];
    images_set s;
    for (int i = 0; i < 7; i++) {
        snprintf(path, sizeof path, AT "%s", folders[i]);
        mkdir(path, 0777);
        if (i == 0)
            refused(
                "has neither data_batch_1.bin nor MNIST's train-images-idx3-ubyte and its labels, nor train/CLASS/NAME.ppm");
    }
    refused("train/coffee: a folder with a class's pictures is expected");
    for (int i = 0; i < 5; i++)
        put(files[i], i == 1 ? "P6 # a comment\n# another\n2\t3\n#\n255\n" : "P6\n2 3\n255\n", 18, 20 * i);
    put("train/tea/.hidden", "", 0, 0);
    put("train/tea/Thumbs.db", "", 0, 0), put("train/desktop.ini", "", 0, 0),
        put("val/coffee/Desktop.ini", "", 0, 0); /* files that Windows writes */
    mkdir(AT "/names", 0777);
    for (int i = 0; i < 6; i++)
        snprintf(path, sizeof path, "names/%s", more[i]), put(path, "", 0, 0);
    memset(&s, 0, sizeof s);
    CHECK(images_list(&s, AT "/names", &names) == 6 && names != NULL);
    for (int i = 0; i < 6 && names != NULL; i++) {
        CHECK(strcmp(names[i], i < 4 ? (const char *[]){ "a", "b", "c", "d" }[i] : i < 5 ? "m" : "x") == 0);
        snprintf(path, sizeof path, AT "/names/%s", names[i]), remove(path);
    }
    free(names), rmdir(AT "/names");
    CHECK_MSG(images_read_u8(&s, AT) == 0, "%s", s.error);
    CHECK(s.rows == 5 && s.validation == 2 && s.classes == 2 && s.height == 3 && s.width == 2 && s.channels == 3);
    static const int order[] = { 2, 1, 0, 4, 3 }, label[] = { 0, 1, 1, 0, 1 };
    for (int i = 0; i < 5 && s.bytes != NULL; i++)
        CHECK(s.bytes[18 * i] == 20 * order[i] && s.bytes[18 * i + 17] == 20 * order[i] + 17 && s.label[i] == label[i]);
    CHECK(s.names != NULL && strcmp(s.names[0], "coffee") == 0 && strcmp(s.names[1], "tea") == 0);
    images_free(&s);
    for (long n = 1, failed = 1; failed && n < 50; n++) { /* every allocation fails once */
        allocations = 0;
        fail_at = n;
        failed = images_read(&s, AT) != 0;
        fail_at = 0;
        CHECK_MSG(!failed || strstr(s.error, "out of memory"), "allocation %ld: %s", n, s.error);
        CHECK(failed == (n <= allocations));
        images_free(&s);
    }
    /* The second picture says that it is larger than all files together; it must be refused before memory for such
     * pictures is allocated. */
    put("train/coffee/x.ppm", "P6\n60 70\n255\n", 12600, 0), put("train/tea/a.ppm", "P6\n60 70\n255\n", 12600, 0);
    refused("train/tea/a.ppm: 2 pictures of its size take 25200 bytes, but the files have 12642");
    put("train/coffee/x.ppm", "P6\n2 3\n255\n", 18, 40), put("train/tea/a.ppm", "P6\n2 3\n255\n", 18, 20);
    put("val/tea/1.ppm", "P6\n3 2\n255\n", 18, 0);
    refused("val/tea/1.ppm: images of 2 x 3 x 3 after images of 3 x 2 x 3");
    put("val/tea/1.ppm", "P5\n2 3\n255\n", 6, 0);
    refused("images of 3 x 2 x 1 after");
    put("val/tea/1.ppm", "P6\n2 3\n255\n", 17, 0);
    refused("val/tea/1.ppm: ends within the picture");
    static const char *const heads[] = { "",
                                         "P",
                                         "P6",
                                         "P6\n2 3\n65535\n",
                                         "P3\n2 3\n255\n",
                                         "P6\n99999999999999999999 3\n255\n",
                                         "P6\n-2 3\n255\n",
                                         "P6 # no end" };
    for (int i = 0; i < 8; i++) {
        put("val/tea/1.ppm", heads[i], 18, 0);
        refused("val/tea/1.ppm: not a .ppm or .pgm with bytes of 0 to 255 (P6, P5)");
    }
    remove(AT "/val/tea/1.ppm"), rmdir(AT "/val/tea");
    refused("val: its classes differ from those of train");
    mkdir(AT "/val/water", 0777);
    put("val/water/1.ppm", "P6\n2 3\n255\n", 18, 0);
    refused("val: its classes differ from those of train");
    remove(AT "/val/water/1.ppm"), rmdir(AT "/val/water");
    remove(AT "/val/coffee/2.ppm"), remove(AT "/val/coffee/Desktop.ini"), rmdir(AT "/val/coffee"), rmdir(AT "/val");
    refused("has neither test_batch.bin nor MNIST's t10k-images-idx3-ubyte and its labels, nor val/CLASS/NAME.ppm");
    remove(AT "/train/tea/.hidden"), remove(AT "/train/tea/Thumbs.db"), remove(AT "/train/desktop.ini");
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, AT "/%s", files[i]);
        remove(path);
    }
    rmdir(AT "/train/tea"), rmdir(AT "/train/coffee"), rmdir(AT "/train"), rmdir(AT);
}
#endif

int main(void)
{
    test_bytes();
    test_augmentation();
    test_training();
#ifdef IMAGES_FOLDERS
    test_folders();
    test_lies();
#endif
    CHECK(live_blocks == 0);
    return check_report("images");
}

/* fuzz_images.c - reads any bytes as image files: those of CIFAR-10 and MNIST, and folders of pictures.
 *
 * The input is a series of files. Each has a byte that selects one of NAMES, two bytes with the length, lowest
 * first, and the contents. The functions under test are images_read_u8 on a folder of these files, cropping and
 * mirroring of random rows as in a training, and images_read. The rules: a refusal has an error text; accepted data
 * have rows, labels below the number of classes and finite values; memory is only allocated for pixels that exist. */
#define _GNU_SOURCE
#include "gradckpt.h"
#include "images.h"
#include "input_hash.h"
#include "memfs.h"
#include "reader.h"

static const char *const names[] = { "data_batch_1.bin",
                                     "data_batch_2.bin",
                                     "test_batch.bin",
                                     "train-images-idx3-ubyte",
                                     "train-labels-idx1-ubyte",
                                     "t10k-images-idx3-ubyte",
                                     "t10k-labels-idx1-ubyte",
                                     "train/a/1.ppm",
                                     "train/a/2.ppm",
                                     "train/b/1.ppm",
                                     "val/a/1.ppm",
                                     "val/b/1.ppm",
                                     "val/c/1.pgm" };
enum { NAMES = sizeof names / sizeof names[0] };

static void try_rows(const images_set *s)
{
    images_set cut = *s;
    uint64_t chance = 0x9e3779b97f4a7c15u;
    cut.flip = 1, cut.padding = 2;
    cut.crop[0] = (s->height + 1) / 2, cut.crop[1] = s->width;
    if (images_size(s) > 1 << 16)
        return;
    float *row = (float *)malloc((size_t)images_size(s) * sizeof *row);
    must(row != NULL && images_row_size(&cut) <= images_size(s));
    for (int64_t i = 0; i < s->rows && i < 16; i++, chance *= 3) {
        images_row(s, i, NULL, row);
        for (int64_t k = 0; k < images_size(s); k++)
            must(row[k] == s->value[s->bytes[i * images_size(s) + k]] && row[k] - row[k] == 0);
        images_row(&cut, i, &chance, row);
    }
    free(row);
}

static void try_set(const char *folder, int as_floats)
{
    images_set s;
    if (images_read_u8(&s, folder) != 0) {
        must(s.error[0] != 0 && s.bytes == NULL && s.label == NULL && s.names == NULL);
        return;
    }
    must(s.error[0] == 0 && s.bytes != NULL && s.label != NULL && s.pixels == NULL);
    must(s.height > 0 && s.width > 0 && s.channels > 0 && s.classes > 0);
    must(s.validation > 0 && s.rows > s.validation);
    for (int64_t i = 0; i < s.rows; i++)
        must(s.label[i] >= 0 && s.label[i] < s.classes);
    try_rows(&s);
    images_free(&s);
    if (!as_floats)
        return;
    must(images_read(&s, folder) == 0 && s.pixels != NULL && s.bytes == NULL);
    for (int64_t i = 0; i < s.rows * images_size(&s); i++)
        must(s.pixels[i] - s.pixels[i] == 0);
    images_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    for (size_t at = 0; at + 3 <= size;) {
        const char *name = names[bytes[at] % NAMES];
        size_t n = bytes[at + 1] | (size_t)bytes[at + 2] << 8;
        at += 3;
        n = n < size - at ? n : size - at;
        memfs_put(name, bytes + at, n);
        at += n;
    }
    const uint64_t chosen = input_hash(bytes, size);
    try_set(memfs_folder(chosen / 4), chosen % 4 == 0);
    memfs_end();
    return 0;
}

static void add(reader_seed *s, int name, const void *bytes, size_t size)
{
    const unsigned char head[3] = { (unsigned char)name, (unsigned char)(size & 255),
                                    (unsigned char)(size >> 8) };
    reader_add(s, head, 3);
    reader_add(s, bytes, size);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static unsigned char rows[2 * 3073];
    static const unsigned char idx[2][24] = { { 0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2,
                                                0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8 },
                                              { 0, 0, 8, 1, 0, 0, 0, 2, 3, 9 } };
    reader_seed s = { NULL, 0 };
    (void)argc, (void)argv;
    if (reader_seeds() == NULL)
        return 0;
    for (size_t i = 0; i < sizeof rows; i++)
        rows[i] = (unsigned char)(i % 3073 == 0 ? i / 3073 : i * i % 251);
    add(&s, 0, rows, sizeof rows);
    add(&s, 2, rows, sizeof rows / 2);
    reader_end_seed(&s, "cifar");
    add(&s, 3, idx[0], 24);
    add(&s, 4, idx[1], 10);
    add(&s, 5, idx[0], 24);
    add(&s, 6, idx[1], 10);
    reader_end_seed(&s, "idx");
    for (int i = 7; i < 12; i++)
        add(&s, i, "P6 # two pixels\n2\n1 255\n\1\2\3\4\5\6", 31);
    reader_end_seed(&s, "maps");
    for (int i = 7; i < 12; i += i == 7 ? 2 : 1)
        add(&s, i, "P5\n1 2\n255\nab", 13);
    reader_end_seed(&s, "grey");
    exit(0);
}

/* A mutator. Replaces a number in a header by a large one; mutates the bytes of a file and corrects its length; or
 * adds or removes a file. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned seed)
{
    static const char *const numbers[] = { "0",     "1",      "2",     "16384", "16385", "1000000",
                                           "99999", "255\n#", "P5\n1", "P6\n2", "\n",    "#" };
    static const uint32_t odd[] = {
        0, 1, 2, 4096, 4097, 65536, 0x7fffffff, 0x80000000, 0xffffffff
    };
    size_t starts[32], n = 0;
    reader_state = seed;
    if (reader_draw(8) == 0)
        return reader_mutate_bytes(bytes, size, most);
    for (size_t at = 0; at + 3 <= size && n < 32;) {
        const size_t length = bytes[at + 1] | (size_t)bytes[at + 2] << 8;
        starts[n++] = at;
        at += 3 + length;
    }
    if (n == 0)
        return reader_mutate_bytes(bytes, size, most);
    const size_t at = starts[reader_draw(n)];
    size_t length = bytes[at + 1] | (size_t)bytes[at + 2] << 8;
    length = length < size - at - 3 ? length : size - at - 3;
    uint8_t *copy = (uint8_t *)malloc(length + 64 + 3);
    must(copy != NULL);
    memcpy(copy, bytes + at, length + 3);
    switch (reader_draw(5)) {
    case 0:
        copy[0] = (uint8_t)reader_draw(NAMES); /* sometimes under another name */
        size = reader_splice(bytes, size, most, at, reader_draw(2) == 0 ? at : at + 3 + length,
                             copy, length + 3);
        free(copy);
        return size;
    case 1: {
        const char *text = numbers[reader_draw(sizeof numbers / sizeof numbers[0])];
        const size_t from = 3 + reader_draw(length + 1 < 16 ? length + 1 : 16);
        const size_t to = from + reader_draw(4) < length + 3 ? from + reader_draw(2) : from;
        length = reader_splice(copy, length + 3, length + 64, from, to > length + 3 ? from : to,
                               text, strlen(text)) -
                 3;
        break;
    }
    case 2:
        if (length >= 16) {
            const uint32_t value = odd[reader_draw(sizeof odd / sizeof odd[0])];
            const size_t place = 3 + 4 * reader_draw(4);
            for (size_t i = 0; i < 4; i++)
                copy[place + i] = (uint8_t)(value >> (24 - 8 * i));
        }
        break;
    default:
        length = reader_mutate_bytes(copy + 3, length, length + 64 < 65535 ? length + 64 : length);
    }
    copy[1] = (uint8_t)(length & 255);
    copy[2] = (uint8_t)(length >> 8);
    const size_t old = bytes[at + 1] | (size_t)bytes[at + 2] << 8;
    size = reader_splice(bytes, size, most, at,
                         at + 3 + (old < size - at - 3 ? old : size - at - 3), copy, length + 3);
    free(copy);
    return size;
}

/* fuzz_npy.c - reads any bytes as NumPy's files, and unpacks any bytes.
 *
 * The first byte selects: 0 to 127, the others are a .npy or .npz, whose arrays are read in each way; 128 to 255, they
 * are packed, and are unpacked to 64 times that byte's lower bits. The rules: a refusal has an error text; an array has
 * as many values as its shape says, and its bytes exist in the file. */
#define _GNU_SOURCE
#include "gradckpt.h"
#include "input_hash.h"
#include "memfs.h"
#include "npy.h"
#include "reader.h"

static void try_array(npy *f, const npy_array *a)
{
    int64_t n = 1;
    for (int i = 0; i < a->dims; i++)
        n *= a->shape[i];
    must(n == a->count && (uint64_t)n * (uint64_t)a->size <= a->bytes && a->packed <= f->size);
    if (n > 1 << 16)
        return;
    float *x = (float *)malloc((size_t)n * sizeof *x + 1);
    must(x != NULL);
    must(npy_floats(f, a, x) == 0 || f->error[0] != 0);
    must(npy_integers(f, a, (int32_t *)x) == 0 || f->error[0] != 0);
    must(npy_bytes(f, a, (unsigned char *)x) == 0 || f->error[0] != 0);
    free(x);
}

static void try_file(const uint8_t *bytes, size_t size)
{
    char path[64];
    npy f;
    memfs_put("a", bytes, size);
    snprintf(path, sizeof path, "%s/a", memfs_folder(input_hash(bytes, size)));
    if (npy_open(&f, path) != 0)
        must(f.error[0] != 0 && f.file == NULL && f.arrays == NULL);
    for (int i = 0; i < f.count; i++)
        try_array(&f, &f.arrays[i]);
    must(f.count == 0 || npy_find(&f, f.arrays[f.count - 1].name) != NULL);
    npy_close(&f);
    memfs_end();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size > 0 && bytes[0] < 128) {
        try_file(bytes + 1, size - 1);
    } else if (size > 0) {
        const size_t n = 64 * (size_t)(bytes[0] & 127);
        unsigned char *to = (unsigned char *)malloc(n + 1);
        must(to != NULL);
        npy_inflate(bytes + 1, size - 1, to, n);
        free(to);
    }
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const names[] = { "f4.npy", "packed.npz", "halves.npz", "object.npy" };
    static char bytes[1 << 14];
    reader_seed s = { NULL, 0 };
    (void)argc, (void)argv;
    if (reader_seeds() == NULL)
        return 0;
    for (int i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof path, "tests/golden/npy/%s", names[i]);
        FILE *f = fopen(path, "rb");
        must(f != NULL);
        const size_t n = fread(bytes + 1, 1, sizeof bytes - 1, f);
        fclose(f);
        bytes[0] = 0;
        reader_add(&s, bytes, n + 1);
        reader_end_seed(&s, names[i]);
        bytes[0] = (char)200; /* the packed bytes of packed.npz, among others */
        reader_add(&s, bytes, 1);
        reader_add(&s, bytes + 50, n - 50);
        reader_end_seed(&s, names[i] + 1);
    }
    exit(0);
}

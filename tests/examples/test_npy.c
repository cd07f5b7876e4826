/* test_npy.c - examples/npy.h reads NumPy's files (tests/golden/make_npy.py): each type and byte order, Fortran order,
 * stored and compressed .npz; refuses other types by name; writes the bytes of np.save. A store goes through a .npz
 * without change. Files with any byte changed or cut off are read or refused; never is a wrong value returned. */
#include "gradckpt.h"
#include "check.h"
#include <math.h>
#include "examples/images.h"

#define FOLDER "tests/golden/npy/"
static const char *const made = "build/test_npy";

static void open_file(npy *f, const char *path)
{
    CHECK_MSG(npy_open(f, path) == 0, "%s", f->error);
}

/* Checks that array `name` of a file is element i - 3, or i % 2, in shape (2,3,2), by all readers that can. */
static void check_array(npy *f, const char *name, int parity)
{
    const npy_array *a = npy_find(f, name);
    float floats[12];
    int32_t integers[12];
    int good = a != NULL && a->dims == 3 && a->shape[0] == 2 && a->shape[1] == 3 &&
               a->shape[2] == 2 && npy_floats(f, a, floats) == 0 &&
               npy_integers(f, a, integers) == 0;
    for (int i = 0; i < 12 && good; i++) {
        const int expected = parity ? (i + 1) % 2 : i - 3;
        good = floats[i] == (float)expected && integers[i] == expected;
    }
    CHECK_MSG(good, "%s: %s", name, f->error);
}

static void test_types(void)
{
    static const char *const names[] = { "little.f2", "big.f2",    "big.f4",    "little.f8",
                                         "big.f8",    "i1",        "little.i2", "big.i2",
                                         "big.i4",    "little.i8", "big.i8",    "fortran",
                                         "bool",      "u1",        "little.u2", "big.u4",
                                         "little.u8" };
    npy f;
    float x[12];
    unsigned char bytes[12];
    open_file(&f, FOLDER "types.npz");
    CHECK(f.count == 18);
    for (int i = 0; i < 17; i++)
        check_array(&f, names[i], i > 11);
    CHECK(npy_find(&f, "empty")->count == 0 && npy_floats(&f, npy_find(&f, "empty"), x) == 0);
    CHECK(npy_bytes(&f, npy_find(&f, "u1"), bytes) == 0 && bytes[0] == 1 && bytes[1] == 0);
    CHECK(npy_bytes(&f, npy_find(&f, "i1"), bytes) != 0 &&
          strstr(f.error, "element 0 is -3; expected a whole number") != NULL);
    CHECK(npy_find(&f, "x") == NULL &&
          strstr(f.error, "no array \"x\"; it has fortran, empty, little.f2") != NULL);
    npy_close(&f);
    open_file(&f, FOLDER "f4.npy");
    check_array(&f, "", 0);
    npy_close(&f);
    open_file(&f, FOLDER "scalar.npy");
    CHECK(f.arrays[0].dims == 0 && f.arrays[0].count == 1 && npy_floats(&f, f.arrays, x) == 0 &&
          x[0] == 7);
    npy_close(&f);
}

static void test_halves(void)
{
    npy f;
    float x[9], y[9];
    open_file(&f, FOLDER "halves.npz");
    CHECK(npy_floats(&f, npy_find(&f, "halves"), x) == 0 &&
          npy_floats(&f, npy_find(&f, "floats"), y) == 0);
    for (int i = 0; i < 9; i++)
        CHECK(x[i] == y[i] || (isnan(x[i]) && isnan(y[i])));
    npy_close(&f);
}

static void test_packed(void)
{
    static unsigned char zeros[70000], noise[300];
    static int32_t text[1040];
    npy f;
    open_file(&f, FOLDER "packed.npz");
    check_array(&f, "x", 0);
    memset(zeros, 1, sizeof zeros);
    CHECK(npy_bytes(&f, npy_find(&f, "zeros"), zeros) == 0 &&
          npy_bytes(&f, npy_find(&f, "noise"), noise) == 0);
    CHECK(zeros[0] == 0 && memcmp(zeros, zeros + 1, sizeof zeros - 1) == 0);
    CHECK(npy_integers(&f, npy_find(&f, "text"), text) == 0);
    for (int i = 0; i < 1040; i++)
        CHECK(text[i] == "a tale of bits and bytes, "[i % 26]);
    npy_close(&f);
}

static void refuse(const char *path, const char *message)
{
    npy f;
    CHECK_MSG(npy_open(&f, path) != 0 && strstr(f.error, message) != NULL, "%s: %s", path, f.error);
}

/* A header that ends within the type of its values must be refused, without a read after its end. */
static void test_header(void)
{
    static const char keys[] = "\x93NUMPY\1\0\0\0{'fortran_order': False, 'shape': (), ";
    static const char *const types[] = { "'", "'<", "'<f", "'<f4" };
    char text[10 + 4095];
    npy f;
    for (size_t length = 4080; length < 4096; length++)
        for (int i = 0; i < 4; i++) {
            char path[64];
            const size_t n = strlen(types[i]);
            memset(text, ' ', sizeof text);
            memcpy(text, keys, sizeof keys - 1);
            text[8] = (char)(length & 255), text[9] = (char)(length >> 8);
            memcpy(text + 10 + length - n - 8, "'descr':", 8);
            memcpy(text + 10 + length - n, types[i], n);
            snprintf(path, sizeof path, "build/test_npy.header");
            FILE *file = fopen(path, "wb");
            CHECK(file != NULL && fwrite(text, 1, 10 + length, file) == 10 + length);
            CHECK(file != NULL && fclose(file) == 0);
            CHECK_MSG(npy_open(&f, path) != 0 && f.error[0] != 0, "%s", f.error);
            remove(path);
        }
}

static size_t read_file(const char *path, unsigned char *to, size_t most)
{
    FILE *f = fopen(path, "rb");
    const size_t n = f != NULL ? fread(to, 1, most, f) : 0;
    CHECK_MSG(n > 0 && n < most, "%s", path);
    if (f != NULL)
        fclose(f);
    return n;
}

static void write_file(const char *path, const unsigned char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    CHECK_MSG(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0, "%s", path);
}

/* Writing gives the bytes of np.save. */
static void test_written(const char *golden, const char *type, int dims, const void *values)
{
    static const int64_t shapes[][3] = { { 5 }, { 0 }, { 2, 3, 2 } };
    static unsigned char wanted[4096], got[4096];
    char path[64];
    npy_writer w;
    snprintf(path, sizeof path, "%s.npy", made);
    CHECK_MSG(npy_create(&w, path) == 0, "%s", w.error);
    npy_put_array(&w, "", type, dims, shapes[dims - 1], values);
    CHECK_MSG(npy_end(&w) == 0, "%s", w.error);
    const size_t n = read_file(golden, wanted, sizeof wanted);
    CHECK_MSG(read_file(path, got, sizeof got) == n && memcmp(got, wanted, n) == 0, "%s", golden);
}

static void test_store(void)
{
    char path[64], error[NPY_ERROR];
    const gckpt_store_desc desc = { .seed = 5 };
    uint64_t hashes[2];
    snprintf(path, sizeof path, "%s.npz", made);
    for (int i = 0; i < 2; i++) {
        gckpt_store *s = gckpt_store_new(i == 0 ? &desc : NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_param(g, "fc.weight", gckpt_shape2(7, 5), (gckpt_init){ 1, 0, 0 });
        gckpt_param(g, "fc.bias", gckpt_shape1(5), (gckpt_init){ 0, 1, 0 });
        CHECK_MSG((i == 0 ? npy_save : npy_load)(s, path, error) == 0, "%s", error);
        hashes[i] = gckpt_store_hash(s);
        gckpt_param(g, "more", gckpt_shape1(3), (gckpt_init){ 0, 1, 0 });
        CHECK(npy_load(s, path, error) != 0 &&
              strstr(error, "no array \"more\"; it has fc.weight, fc.bias") != NULL);
        gckpt_graph_free(g);
        gckpt_store_free(s);
    }
    CHECK(hashes[0] == hashes[1]);
}

/* Changes or cuts off each byte of a file. It must be refused, or have the values of the whole file: the checksum
 * of a .npz finds each change of an array. */
static void test_damage(const char *golden)
{
    static unsigned char bytes[8192];
    char path[64];
    const size_t n = read_file(golden, bytes, sizeof bytes);
    snprintf(path, sizeof path, "%s.damaged", made);
    for (size_t i = 0; i < 2 * n; i++) {
        const unsigned char was = bytes[i % n];
        npy f;
        bytes[i % n] ^= (unsigned char)(1 << (i % 7));
        write_file(path, bytes, i < n ? n : i - n);
        bytes[i % n] = was;
        if (npy_open(&f, path) != 0) {
            CHECK(f.error[0] != 0);
            continue;
        }
        for (int k = 0; k < f.count; k++) {
            const npy_array *a = &f.arrays[k];
            float *x = (float *)calloc((size_t)a->count + 1, sizeof *x);
            if (a->count == 12 && a->zipped && x != NULL && npy_floats(&f, a, x) == 0)
                CHECK_MSG(x[11] == 8 && x[4] == 1, "byte %zu of %s", i, golden);
            free(x);
        }
        npy_close(&f);
    }
}

/* Images in a .npz, as Keras's mnist.npz. */
static void test_images(void)
{
    static const char *const names[] = { "x_train", "y_train", "x_test", "y_test" };
    unsigned char pixels[5 * 12];
    int32_t labels[5] = { 2, 0, 1, 1, 0 };
    char path[64];
    images_set s;
    npy_writer w;
    for (int i = 0; i < 60; i++)
        pixels[i] = (unsigned char)(4 * i);
    snprintf(path, sizeof path, "%s.images.npz", made);
    for (int bad = 0; bad < 4; bad++) {
        npy_create(&w, path);
        labels[4] = bad == 1 ? 3 : bad == 2 ? -1 : 0;
        for (int i = 0; i < 4; i++)
            if (i % 2 == 0)
                npy_put(&w, names[i], "|u1", gckpt_shape3(i == 0 ? 3 : 2, 4, 3), pixels + 18 * i);
            else
                npy_put(&w, names[i], "<i4", gckpt_shape1(i == 1 ? 3 : 2 - (bad == 3)),
                        labels + (i == 1 ? 0 : 3));
        CHECK_MSG(npy_end(&w) == 0, "%s", w.error);
        const int failed = images_read_u8(&s, path);
        const char *message = bad == 1   ? "row 4 has label 3 of 3 classes"
                              : bad == 2 ? "y_test: row 1 has label -1"
                              : bad == 3 ? "y_test a label for each row"
                                         : "";
        CHECK_MSG(failed ? bad > 0 && strstr(s.error, message) != NULL : bad == 0, "%d: %s", bad,
                  s.error);
        if (!failed) {
            CHECK(s.rows == 5 && s.validation == 2 && s.height == 4 && s.width == 3 &&
                  s.channels == 1 && s.classes == 3);
            CHECK(memcmp(s.bytes, pixels, sizeof pixels) == 0 &&
                  memcmp(s.label, labels, sizeof labels) == 0);
            images_free(&s);
        }
    }
}

int main(void)
{
    float x[12];
    int32_t y[12];
    for (int i = 0; i < 12; i++)
        x[i] = (float)(y[i] = i - 3);
    test_types();
    test_halves();
    test_packed();
    test_written(FOLDER "f4.npy", "<f4", 3, x);
    test_written(FOLDER "i4.npy", "<i4", 3, y);
    for (int i = 0; i < 5; i++)
        x[i] = (float)i;
    test_written(FOLDER "one.npy", "<f4", 1, x);
    test_store();
    test_images();
    refuse(FOLDER "object.npy", "arrays of type '|O'");
    refuse(FOLDER "complex.npy", "convert them, as by x.astype('float32')");
    refuse("tests/check.h", "is no array of NumPy");
    refuse(FOLDER "none.npy", "cannot open it");
    test_header();
    npy f;
    open_file(&f, FOLDER "big.npy");
    CHECK(npy_integers(&f, f.arrays, y) != 0 &&
          strstr(f.error, "element 0 is 1.09951e+12") != NULL);
    npy_close(&f);
    test_damage(FOLDER "halves.npz");
    test_damage(FOLDER "packed.npz");
    test_damage(FOLDER "f4.npy");
    return check_report("test_npy");
}

/* npy.h - reads and writes NumPy's .npy and .npz files: data as arrays, and the parameters of a
 * store. To copy; it needs the C library, and gradckpt.h (included before) for stores.
 *
 *     npy f;
 *     if (npy_open(&f, "data.npz") != 0)            // or a .npy, which has one array named ""
 *         fprintf(stderr, "%s\n", f.error);
 *     const npy_array *x = npy_find(&f, "x_train"); // shape and type; NULL and f.error if missing
 *     float *values = malloc(x->count * sizeof *values);
 *     npy_floats(&f, x, values);                    // converts any numeric type
 *     npy_close(&f);
 *
 *     npy_writer w;
 *     npy_create(&w, "out.npz");
 *     npy_put(&w, "logits", "<f4", gckpt_shape2(rows, classes), logits);
 *     if (npy_end(&w) != 0)                         // the file exists only if all was written
 *         fprintf(stderr, "%s\n", w.error);
 *
 *     npy_save(store, "weights.npz", error);        // np.load("weights.npz")["fc1.weight"]
 *     npy_load(store, "weights.npz", error);        // np.savez("weights.npz", **arrays)
 *
 * Arrays are in C order; an array in Fortran order is transposed while it is read. Types are
 * booleans, integers and floats of 1 to 8 bytes in either byte order. Files of np.savez and of
 * np.savez_compressed are read, and their checksums compared; stored ones are written. Pickled
 * objects, structures, texts and complex numbers are refused by name. Functions return 0, or -1
 * after writing the error text. C99 or C++11. */
#ifndef NPY_H
#define NPY_H
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NPY_DIMS = 8, NPY_NAME = 256, NPY_ERROR = 1024 };

typedef struct {
    char name[NPY_NAME]; /* without .npy; "" in a .npy */
    char kind;           /* 'b' boolean, 'i' signed, 'u' unsigned, 'f' float */
    int size, big,
        fortran; /* bytes of an element; whether it is big-endian; whether the first axis varies fastest */
    int dims;
    int64_t shape[NPY_DIMS], count; /* count: number of elements */
    /* the part of a file: where it begins, its bytes there and unpacked, and its checksum */
    uint64_t at, packed, bytes;
    uint32_t crc;
    int deflated, zipped;
} npy_array;

typedef struct {
    FILE *file;
    char path[512], error[NPY_ERROR];
    npy_array *arrays;
    int count;
    uint64_t size;           /* bytes of the file */
    unsigned char *unpacked; /* all bytes of the array that was read last */
} npy;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline int
npy_fail(npy *f, const char *format, ...)
{
    va_list args;
    const int n = snprintf(f->error, sizeof f->error, "%s: ", f->path);
    va_start(args, format);
    vsnprintf(f->error + n, sizeof f->error - (size_t)n, format, args);
    va_end(args);
    return -1;
}

static inline uint64_t npy_little(const unsigned char *p, int bytes)
{
    uint64_t x = 0;
    for (int i = bytes; i-- > 0;)
        x = x << 8 | p[i];
    return x;
}

/* The checksum of zip files: CRC-32 of n bytes after those that gave `crc`; begin with 0. */
static inline uint32_t npy_crc(uint32_t crc, const unsigned char *p, size_t n)
{
    static uint32_t table[256];
    if (table[255] == 0)
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++)
                c = c >> 1 ^ (c & 1 ? 0xedb88320 : 0);
            table[i] = c;
        }
    crc = ~crc;
    for (size_t i = 0; i < n; i++)
        crc = crc >> 8 ^ table[(crc ^ p[i]) & 255];
    return ~crc;
}

/* ---- deflate (RFC 1951), in which np.savez_compressed packs arrays ---------------------------- */
typedef struct {
    const unsigned char *from, *end;
    unsigned char *to, *begin, *limit;
    uint32_t bits; /* the next bits, the lowest first */
    int held;      /* how many */
    int bad;       /* nonzero after an error */
} npy_inflater;

/* A code: how many symbols have each length, and the symbols in the order of their codes. */
typedef struct {
    uint16_t lengths[16], symbols[288];
} npy_code;

static inline uint32_t npy_bits(npy_inflater *z, int n)
{
    while (z->held < n) {
        z->bad |= z->from == z->end;
        z->bits |= (uint32_t)(z->bad ? 0 : *z->from++) << z->held;
        z->held += 8;
    }
    const uint32_t x = z->bits & ((1u << n) - 1);
    z->bits >>= n;
    z->held -= n;
    return x;
}

static inline void npy_make_code(npy_inflater *z, npy_code *c, const unsigned char *lengths, int n)
{
    int first[16], left = 1;
    memset(c->lengths, 0, sizeof c->lengths);
    for (int i = 0; i < n; i++)
        c->lengths[lengths[i]]++;
    c->lengths[0] = 0;
    first[1] = 0;
    for (int i = 1; i < 16; i++) {
        left = 2 * left - c->lengths[i];
        z->bad |= left < 0; /* more codes than there are */
        if (i < 15)
            first[i + 1] = first[i] + c->lengths[i];
    }
    for (int i = 0; i < n; i++)
        if (lengths[i] != 0)
            c->symbols[first[lengths[i]]++] = (uint16_t)i;
}

static inline int npy_symbol(npy_inflater *z, const npy_code *c)
{
    int code = 0, first = 0, index = 0;
    for (int i = 1; i < 16 && !z->bad; i++) {
        code |= (int)npy_bits(z, 1);
        if (code - c->lengths[i] < first)
            return c->symbols[index + code - first];
        index += c->lengths[i];
        first = (first + c->lengths[i]) << 1;
        code <<= 1;
    }
    z->bad = 1;
    return 256;
}

/* Unpacks a block with these codes: bytes, and copies of earlier bytes. */
static inline void npy_block(npy_inflater *z, const npy_code *literals, const npy_code *distances)
{
    for (int symbol; !z->bad && (symbol = npy_symbol(z, literals)) != 256;) {
        if (symbol < 256) {
            z->bad |= z->to == z->limit;
            if (!z->bad)
                *z->to++ = (unsigned char)symbol;
            continue;
        }
        const int s = symbol - 257, extra = s < 8 || s == 28 ? 0 : (s - 4) / 4;
        const int base = s < 8 ? s + 3 : s == 28 ? 258 : ((4 + s % 4) << extra) + 3;
        const int64_t length = base + (int64_t)npy_bits(z, extra);
        const int d = npy_symbol(z, distances), more = d < 4 ? 0 : (d - 2) / 2;
        z->bad |= s > 28 || d > 29;
        if (z->bad)
            return;
        const int64_t back =
            (d < 4 ? d + 1 : ((2 + d % 2) << more) + 1) + (int64_t)npy_bits(z, more);
        z->bad |= back > z->to - z->begin || length > z->limit - z->to;
        for (int64_t i = 0; i < length && !z->bad; i++, z->to++)
            *z->to = z->to[-back];
    }
}

/* Reads the codes of a block that has its own. */
static inline void npy_read_codes(npy_inflater *z, npy_code *literals, npy_code *distances)
{
    static const unsigned char order[19] = { 16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                             11, 4,  12, 3, 13, 2, 14, 1, 15 };
    unsigned char lengths[320] = { 0 };
    npy_code code;
    const int n = (int)npy_bits(z, 5) + 257, m = (int)npy_bits(z, 5) + 1;
    const int count = (int)npy_bits(z, 4) + 4;
    for (int i = 0; i < count; i++)
        lengths[order[i]] = (unsigned char)npy_bits(z, 3);
    npy_make_code(z, &code, lengths, 19);
    memset(lengths, 0, sizeof lengths);
    for (int i = 0; i < n + m && !z->bad;) {
        const int symbol = npy_symbol(z, &code);
        const int repeats = symbol < 16    ? 1
                            : symbol == 16 ? 3 + (int)npy_bits(z, 2)
                            : symbol == 17 ? 3 + (int)npy_bits(z, 3)
                                           : 11 + (int)npy_bits(z, 7);
        z->bad |= symbol > 18 || (symbol == 16 && i == 0) || i + repeats > n + m || n > 286;
        const int value = symbol < 16 ? symbol : symbol == 16 && !z->bad ? lengths[i - 1] : 0;
        for (int k = 0; k < repeats && !z->bad; k++)
            lengths[i++] = (unsigned char)value;
    }
    npy_make_code(z, literals, lengths, n);
    npy_make_code(z, distances, lengths + n, m);
}

/* Unpacks n bytes into exactly `size` bytes. Returns 0, or -1 if they are damaged. */
static inline int npy_inflate(const unsigned char *from, size_t n, unsigned char *to, size_t size)
{
    npy_inflater z;
    unsigned char fixed[288];
    npy_code literals, distances;
    memset(&z, 0, sizeof z);
    z.from = from, z.end = from + n, z.to = z.begin = to, z.limit = to + size;
    for (int last = 0; !last && !z.bad;) {
        last = (int)npy_bits(&z, 1);
        const uint32_t type = npy_bits(&z, 2);
        if (type == 0) { /* stored */
            z.bits = 0, z.held = 0;
            const size_t length = z.end - z.from < 4 ? 0 : (size_t)npy_little(z.from, 2);
            z.bad |= z.end - z.from < 4 || length != (npy_little(z.from + 2, 2) ^ 0xffff) ||
                     length > (size_t)(z.end - z.from - 4) || length > (size_t)(z.limit - z.to);
            if (!z.bad) {
                memcpy(z.to, z.from + 4, length);
                z.from += 4 + length, z.to += length;
            }
            continue;
        }
        z.bad |= type == 3;
        if (type == 1) { /* the codes that RFC 1951 gives */
            for (int i = 0; i < 288; i++)
                fixed[i] = (unsigned char)(i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8);
            npy_make_code(&z, &literals, fixed, 288);
            memset(fixed, 5, 30);
            npy_make_code(&z, &distances, fixed, 30);
        } else if (!z.bad) {
            npy_read_codes(&z, &literals, &distances);
        }
        if (!z.bad)
            npy_block(&z, &literals, &distances);
    }
    return z.bad || z.to != z.limit ? -1 : 0;
}

/* ---- headers ---------------------------------------------------------------------------------- */
/* Reads n bytes at an offset. Returns 0, or -1 with f->error. */
static inline int npy_read_at(npy *f, uint64_t at, void *to, size_t n)
{
    if (at > f->size || n > f->size - at)
        return npy_fail(f, "is cut off: it has %llu bytes, and more were described",
                        (unsigned long long)f->size);
#if defined(_WIN32)
    const int moved = _fseeki64(f->file, (int64_t)at, SEEK_SET);
#else
    const int moved = fseek(f->file, (long)at, SEEK_SET);
#endif
    if (moved != 0 || fread(to, 1, n, f->file) != n)
        return npy_fail(f, "cannot read it: %s", strerror(errno));
    return 0;
}

/* Returns the text after 'key': in a header, or NULL. */
static inline const char *npy_value(const char *header, const char *key)
{
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s':", key);
    const char *at = strstr(header, quoted);
    at = at != NULL ? at + strlen(quoted) : NULL;
    while (at != NULL && *at == ' ')
        at++;
    return at;
}

/* Sets the type from its text, such as '<f4'. Returns 0, or -1 with f->error. */
static inline int npy_set_type(npy *f, npy_array *a, const char *text)
{
    const char kind = *text == '\'' ? text[2] : 0, size = kind != 0 ? text[3] : (char)0;
    const int floats = kind == 'f', numbers = floats || kind == 'i' || kind == 'u' || kind == 'b';
    if (!numbers || text[4] != '\'' ||
        strchr(floats        ? "248"
               : kind == 'b' ? "1"
                             : "1248",
               size) == NULL)
        return npy_fail(f,
                        "%s%sarrays of type %.12s are not read; convert them, as by "
                        "x.astype('float32')",
                        a->name, *a->name ? ": " : "", text);
    a->kind = kind;
    a->size = size - '0';
    a->big = text[1] == '>';
    return 0;
}

/* Sets shape and count from the text of a tuple. Returns 0, or -1 with f->error. */
static inline int npy_set_shape(npy *f, npy_array *a, const char *text)
{
    a->count = 1;
    for (text += *text == '('; *text >= '0' && *text <= '9' && a->dims < NPY_DIMS;) {
        char *end;
        errno = 0;
        const long long n = strtoll(text, &end, 10);
        if (errno != 0 || (n > 0 && a->count > (INT64_MAX >> 4) / n))
            return npy_fail(f, "%s: its shape has too many elements", a->name);
        a->shape[a->dims++] = n;
        a->count *= n;
        for (text = end; *text == ',' || *text == ' ';)
            text++;
    }
    return *text == ')' ? 0
                        : npy_fail(f, "%s: expected a shape of at most %d axes, found %.40s",
                                   a->name, (int)NPY_DIMS, text);
}

/* Reads the header of an array at its beginning, of n bytes, and moves a->at to its values. */
static inline int npy_read_header(npy *f, npy_array *a, const unsigned char *p, size_t n)
{
    static const char magic[] = "\x93NUMPY";
    const int wide = n > 6 && p[6] > 1;
    const size_t begin = wide ? 12 : 10;
    if (n < begin || memcmp(p, magic, 6) != 0 || p[6] < 1 || p[6] > 3)
        return npy_fail(f, "%s%sis no array of NumPy: it must begin with \\x93NUMPY", a->name,
                        *a->name ? " " : "");
    const size_t length = (size_t)npy_little(p + 8, wide ? 4 : 2);
    char text[4096 + 8] = ""; /* with zeros after it: npy_set_type reads 5 bytes */
    if (length > n - begin || length >= sizeof text - 8)
        return npy_fail(f, "%s: the header of %zu bytes is cut off or too long", a->name, length);
    memcpy(text, p + begin, length);
    text[length] = 0;
    const char *type = npy_value(text, "descr"), *order = npy_value(text, "fortran_order"),
               *shape = npy_value(text, "shape");
    if (type == NULL || order == NULL || shape == NULL)
        return npy_fail(f, "%s: the header needs 'descr', 'fortran_order' and 'shape'", a->name);
    if (npy_set_type(f, a, type) != 0 || npy_set_shape(f, a, shape) != 0)
        return -1;
    a->fortran = *order == 'T';
    const uint64_t bytes = (uint64_t)a->count * (uint64_t)a->size;
    if (a->bytes != begin + length + bytes)
        return npy_fail(f, "%s: its shape needs %llu bytes, but there are %llu", a->name,
                        (unsigned long long)bytes, (unsigned long long)(a->bytes - begin - length));
    return 0;
}

/* ---- zip files -------------------------------------------------------------------------------- */
/* Finds the directory of a zip file: its offset and the number of entries. */
static inline int npy_find_directory(npy *f, uint64_t *at, uint64_t *entries)
{
    unsigned char end[22 + 65535], big[56];
    const size_t n = f->size < sizeof end ? (size_t)f->size : sizeof end;
    size_t i = n >= 22 ? n - 22 : 0;
    if (npy_read_at(f, f->size - n, end, n) != 0)
        return -1;
    while (i > 0 && npy_little(end + i, 4) != 0x06054b50)
        i--;
    if (n < 22 || npy_little(end + i, 4) != 0x06054b50)
        return npy_fail(f, "is cut off: a zip file (.npz) ends with its directory");
    *entries = npy_little(end + i + 10, 2);
    *at = npy_little(end + i + 16, 4);
    if (i >= 20 && npy_little(end + i - 20, 4) == 0x07064b50) { /* zip64 */
        if (npy_read_at(f, npy_little(end + i - 12, 8), big, sizeof big) != 0)
            return -1;
        *entries = npy_little(big + 32, 8);
        *at = npy_little(big + 48, 8);
    }
    return *entries <= f->size / 46 ? 0 : npy_fail(f, "its directory is damaged");
}

/* Sets the sizes and the offset of an entry of the directory, whose extra fields have n bytes. */
static inline void npy_set_sizes(npy_array *a, const unsigned char *entry,
                                 const unsigned char *extra, size_t n)
{
    uint64_t *const big[] = { &a->bytes, &a->packed, &a->at };
    static const int places[] = { 24, 20, 42 };
    a->crc = (uint32_t)npy_little(entry + 16, 4);
    for (int i = 0; i < 3; i++)
        *big[i] = npy_little(entry + places[i], 4);
    for (size_t i = 0, size; i + 4 <= n; i += 4 + size) { /* zip64: those that are 2^32 - 1 */
        const unsigned char *field = extra + i + 4;
        size = (size_t)npy_little(extra + i + 2, 2);
        if (size > n - i - 4 || npy_little(extra + i, 2) != 1)
            continue;
        const unsigned char *const stop = field + size;
        for (int k = 0; k < 3; k++)
            if (*big[k] == UINT32_MAX && stop - field >= 8) {
                *big[k] = npy_little(field, 8);
                field += 8;
            }
    }
}

/* Reads the whole array, unpacked and compared with its checksum, to f->unpacked. */
static inline int npy_unpack(npy *f, const npy_array *a)
{
    free(f->unpacked);
    f->unpacked = NULL;
    if (a->packed > f->size || (uint64_t)(size_t)a->bytes != a->bytes ||
        (a->deflated ? a->bytes > 1100 * a->packed + 1000 : a->bytes != a->packed))
        return npy_fail(f, "%s: its size is damaged", a->name);
    f->unpacked = (unsigned char *)malloc((size_t)a->bytes + 1);
    unsigned char *packed =
        a->deflated ? (unsigned char *)malloc((size_t)a->packed + 1) : f->unpacked;
    int failed =
        f->unpacked == NULL || packed == NULL
            ? npy_fail(f, "%s: out of memory: %llu bytes", a->name, (unsigned long long)a->bytes)
            : npy_read_at(f, a->at, packed, (size_t)a->packed);
    if (!failed && a->deflated &&
        npy_inflate(packed, (size_t)a->packed, f->unpacked, (size_t)a->bytes) != 0)
        failed = npy_fail(f, "%s: is damaged: it cannot be unpacked", a->name);
    if (!failed && a->zipped && npy_crc(0, f->unpacked, (size_t)a->bytes) != a->crc)
        failed = npy_fail(f, "%s: is damaged: its checksum differs", a->name);
    if (a->deflated)
        free(packed);
    return failed;
}

/* Reads entry `a` at offset *at of the directory, and moves *at to the next one. */
static inline int npy_read_entry(npy *f, npy_array *a, uint64_t *at)
{
    unsigned char entry[46], local[30], extra[4096];
    if (npy_read_at(f, *at, entry, sizeof entry) != 0)
        return -1;
    const size_t name = (size_t)npy_little(entry + 28, 2), more = (size_t)npy_little(entry + 30, 2);
    const uint64_t method = npy_little(entry + 10, 2);
    if (npy_little(entry, 4) != 0x02014b50 || name >= NPY_NAME || more > sizeof extra)
        return npy_fail(f, "its directory is damaged");
    if (npy_read_at(f, *at + 46, a->name, name) != 0 ||
        npy_read_at(f, *at + 46 + name, extra, more) != 0)
        return -1;
    npy_set_sizes(a, entry, extra, more);
    *at += 46 + name + more + npy_little(entry + 32, 2);
    if (name > 4 && strcmp(a->name + name - 4, ".npy") == 0)
        a->name[name - 4] = 0;
    if ((method != 0 && method != 8) || (npy_little(entry + 8, 2) & 1) != 0)
        return npy_fail(f, "%s: is packed by method %d or encrypted; save it by np.savez", a->name,
                        (int)method);
    if (npy_read_at(f, a->at, local, sizeof local) != 0)
        return -1;
    a->at += 30 + npy_little(local + 26, 2) + npy_little(local + 28, 2);
    a->deflated = method == 8;
    a->zipped = 1;
    if (npy_unpack(f, a) != 0)
        return -1;
    return npy_read_header(f, a, f->unpacked, (size_t)a->bytes);
}

static inline void npy_close(npy *f)
{
    if (f->file != NULL)
        fclose(f->file);
    free(f->arrays);
    free(f->unpacked);
    f->file = NULL;
    f->arrays = NULL;
    f->unpacked = NULL;
    f->count = 0;
}

/* Opens a .npy or .npz, which its first bytes tell, and reads the names, types and shapes of its
 * arrays. Returns 0, or -1 with f->error; then nothing needs to be closed. */
static inline int npy_open(npy *f, const char *path)
{
    unsigned char begin[4] = { 0 };
    uint64_t at = 0, entries = 1;
    memset(f, 0, sizeof *f);
    snprintf(f->path, sizeof f->path, "%s", path);
    f->file = fopen(path, "rb");
    if (f->file == NULL || fseek(f->file, 0, SEEK_END) != 0)
        npy_fail(f, "cannot open it: %s", strerror(errno));
    const long size = f->file != NULL ? ftell(f->file) : 0;
    f->size = size > 0 ? (uint64_t)size : 0;
    const int failed = f->error[0] != 0 || npy_read_at(f, 0, begin, f->size < 4 ? 0 : 4) != 0;
    const int zipped = !failed && npy_little(begin, 2) == 0x4b50; /* "PK" */
    if (!failed && zipped && npy_find_directory(f, &at, &entries) == 0 && entries == 0)
        npy_fail(f, "has no arrays");
    if (f->error[0] == 0) {
        f->arrays = (npy_array *)calloc((size_t)entries, sizeof *f->arrays);
        if (f->arrays == NULL)
            npy_fail(f, "out of memory");
    }
    for (uint64_t i = 0; i < entries && f->error[0] == 0; i++, f->count++) {
        npy_array *a = &f->arrays[i];
        if (zipped) {
            npy_read_entry(f, a, &at);
            continue;
        }
        a->packed = a->bytes = f->size;
        if (npy_unpack(f, a) == 0)
            npy_read_header(f, a, f->unpacked, (size_t)f->size);
    }
    if (f->error[0] != 0)
        npy_close(f);
    return f->error[0] != 0 ? -1 : 0;
}

/* Returns the array of this name, or NULL with f->error, which lists the names that there are. In a
 * .npy, every name is that of its only array. */
static inline const npy_array *npy_find(npy *f, const char *name)
{
    char names[300] = "";
    for (int i = 0; i < f->count; i++) {
        const size_t n = strlen(names);
        if (strcmp(f->arrays[i].name, name) == 0 || !f->arrays[i].zipped)
            return &f->arrays[i];
        snprintf(names + n, sizeof names - n, "%s%s", n > 0 ? ", " : "", f->arrays[i].name);
    }
    npy_fail(f, "has no array \"%s\"; it has %s", name, names);
    return NULL;
}

/* ---- values ----------------------------------------------------------------------------------- */
/* Returns binary16 as double. */
static inline double npy_half(uint64_t x)
{
    const int exponent = (int)(x >> 10 & 31);
    double y = (double)(x & 1023) / 1024 + (exponent > 0);
    if (exponent == 31)
        y = (x & 1023) != 0 ? (double)NAN : (double)INFINITY;
    for (int i = exponent; i > 15 && i < 31; i--)
        y *= 2;
    for (int i = exponent > 0 ? exponent : 1; i < 15; i++)
        y /= 2;
    return x >> 15 ? -y : y;
}

/* Returns an element as double. Integers above 2^53 are rounded. */
static inline double npy_number(const npy_array *a, const unsigned char *p)
{
    unsigned char little[8];
    for (int i = 0; i < a->size; i++)
        little[i] = p[a->big ? a->size - 1 - i : i];
    const uint64_t x = npy_little(little, a->size);
    if (a->kind == 'f' && a->size == 4) {
        const uint32_t bits = (uint32_t)x;
        float y;
        memcpy(&y, &bits, sizeof y);
        return (double)y;
    }
    if (a->kind == 'f') {
        double y;
        memcpy(&y, &x, sizeof y);
        return a->size == 2 ? npy_half(x) : y;
    }
    const int negative = a->kind == 'i' && (x >> (8 * a->size - 1)) != 0;
    return negative ? -(double)((~x & (UINT64_MAX >> (64 - 8 * a->size))) + 1) : (double)x;
}

/* Reads an array in C order as floats, or as integers from `low` to `high` of `size` bytes. */
static inline int npy_read(npy *f, const npy_array *a, int integers, double low, double high,
                           void *to, int size)
{
    const uint64_t values = (uint64_t)a->count * (uint64_t)a->size;
    int64_t index[NPY_DIMS] = { 0 }, step[NPY_DIMS], n = 1;
    if (npy_unpack(f, a) != 0)
        return -1;
    for (int i = 0; i < a->dims; n *= a->shape[a->fortran ? i : a->dims - 1 - i], i++)
        step[a->fortran ? i : a->dims - 1 - i] = n;
    const unsigned char *const first = f->unpacked + (a->bytes - values);
    for (int64_t k = 0; k < a->count; k++) {
        int64_t at = 0;
        for (int i = 0; i < a->dims; i++)
            at += index[i] * step[i];
        const double x = npy_number(a, first + at * a->size);
        if (integers && !(x >= low && x <= high && x == (double)(int64_t)x))
            return npy_fail(f, "%s: element %lld is %g; expected a whole number from %g to %g",
                            a->name, (long long)k, x, low, high);
        if (size == 1)
            ((unsigned char *)to)[k] = (unsigned char)x;
        else if (integers)
            ((int32_t *)to)[k] = (int32_t)x;
        else
            ((float *)to)[k] = (float)x;
        for (int i = a->dims; i-- > 0 && ++index[i] == a->shape[i];)
            index[i] = 0;
    }
    free(f->unpacked);
    f->unpacked = NULL;
    return 0;
}

/* Read all elements of an array in C order, converted: floats are rounded to binary32; integers and
 * bytes must be whole numbers that fit. `to` has room for a->count elements. */
static inline int npy_floats(npy *f, const npy_array *a, float *to)
{
    return npy_read(f, a, 0, 0, 0, to, 4);
}
static inline int npy_integers(npy *f, const npy_array *a, int32_t *to)
{
    return npy_read(f, a, 1, INT32_MIN, INT32_MAX, to, 4);
}
static inline int npy_bytes(npy *f, const npy_array *a, unsigned char *to)
{
    return npy_read(f, a, 1, 0, 255, to, 1);
}

/* ---- writing ---------------------------------------------------------------------------------- */
typedef struct {
    FILE *file;
    char path[512], error[NPY_ERROR];
    int zipped, count;
    uint64_t at;              /* bytes written so far */
    unsigned char *directory; /* the entries written so far */
    size_t used, capacity;
} npy_writer;

static inline int npy_write_fail(npy_writer *w, const char *what)
{
    if (w->error[0] == 0)
        snprintf(w->error, sizeof w->error, "%s: %s", w->path, what);
    return -1;
}

static inline void npy_write_bytes(npy_writer *w, const void *bytes, size_t n)
{
    if (w->error[0] == 0 && n > 0 && fwrite(bytes, 1, n, w->file) != n)
        npy_write_fail(w, strerror(errno));
    w->at += n;
}

static inline unsigned char *npy_store(unsigned char *p, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++, x >>= 8)
        *p++ = (unsigned char)x;
    return p;
}

/* Creates a .npz, or a .npy if the path does not end with .npz, as PATH.part; npy_end renames it. */
static inline int npy_create(npy_writer *w, const char *path)
{
    char part[520];
    const size_t n = strlen(path);
    memset(w, 0, sizeof *w);
    snprintf(w->path, sizeof w->path, "%s", path);
    snprintf(part, sizeof part, "%s.part", w->path);
    w->zipped = n > 4 && strcmp(path + n - 4, ".npz") == 0;
    w->file = n < sizeof w->path ? fopen(part, "wb") : NULL;
    return w->file != NULL ? 0
                           : npy_write_fail(w, strerror(n < sizeof w->path ? errno : ENAMETOOLONG));
}

/* Writes the header of an array as NumPy does; returns its bytes, a multiple of 64. */
static inline size_t npy_make_header(char *p, const char *type, int dims, const int64_t *shape)
{
    int n = 10 + snprintf(p + 10, 400, "{'descr': '%s', 'fortran_order': False, 'shape': (", type);
    for (int i = 0; i < dims; i++)
        n += snprintf(p + n, 40, i == 0 ? "%lld%s" : " %lld%s", (long long)shape[i],
                      i + 1 < dims || dims == 1 ? "," : "");
    n += snprintf(p + n, 8, "), }");
    while ((n + 1) % 64 != 0)
        p[n++] = ' ';
    p[n++] = '\n';
    memcpy(p, "\x93NUMPY\x01\x00", 8);
    npy_store((unsigned char *)p + 8, (uint64_t)n - 10, 2);
    return (size_t)n;
}

/* Writes the local header of an entry of a zip file, and adds it to the directory. All entries have
 * the sizes of zip64, as in NumPy's files. */
static inline void npy_begin_entry(npy_writer *w, const char *name, uint32_t crc, uint64_t bytes)
{
    unsigned char head[30 + NPY_NAME + 40], *p = head, *entry;
    const size_t n = strlen(name) + 4, room = 46 + n + 28;
    if (w->used + room > w->capacity) {
        w->capacity = 2 * w->capacity + room;
        entry = (unsigned char *)realloc(w->directory, w->capacity);
        if (entry == NULL) {
            npy_write_fail(w, "out of memory");
            return;
        }
        w->directory = entry;
    }
    /* version 4.5, no flags, stored, 1 January 1980 */
    p = npy_store(npy_store(npy_store(p, 0x04034b50, 4), 45, 2), 0, 4);
    p = npy_store(npy_store(npy_store(p, 0, 2), 33, 2), crc, 4);
    p = npy_store(npy_store(p, UINT64_MAX, 8), n | (uint64_t)20 << 16, 4);
    memcpy(p, name, n - 4);
    memcpy(p + n - 4, ".npy", 4);
    p = npy_store(npy_store(npy_store(p + n, 1 | 16 << 16, 4), bytes, 8), bytes, 8);
    entry = w->directory + w->used;
    memset(entry, 0, 46);
    npy_store(npy_store(npy_store(entry, 0x02014b50, 4), 45, 2), 45, 2);
    memcpy(entry + 10, head + 8, 22); /* method, date, checksum, sizes, length of the name */
    npy_store(entry + 30, 28, 2);     /* bytes of the extra field */
    npy_store(entry + 42, UINT32_MAX, 4);
    memcpy(entry + 46, head + 30, n);
    unsigned char *extra = npy_store(entry + 46 + n, 1 | 24 << 16, 4);
    npy_store(npy_store(npy_store(extra, bytes, 8), bytes, 8), w->at, 8);
    w->used += room;
    w->count++;
    npy_write_bytes(w, head, (size_t)(p - head));
}

/* Writes an array: type is '<f4', '<i4' or '|u1', and values are floats, int32_t or bytes in C
 * order. In a .npy, name has no effect, and there is one array. Returns 0, or -1 with w->error. */
static inline int npy_put_array(npy_writer *w, const char *name, const char *type, int dims,
                                const int64_t *shape, const void *values)
{
    char head[1024];
    unsigned char buffer[4096];
    const int size = type[2] - '0';
    const unsigned char *from = (const unsigned char *)values;
    int64_t n = 1;
    for (int i = 0; i < dims; i++)
        n *= shape[i];
    if (dims > NPY_DIMS || strlen(name) + 4 >= NPY_NAME || (!w->zipped && w->count > 0))
        return npy_write_fail(w, dims > NPY_DIMS ? "an array has more than 8 axes"
                                 : w->zipped     ? "the name of an array is longer than 250 bytes"
                                                 : "a .npy has one array; name the file .npz");
    const size_t length = npy_make_header(head, type, dims, shape);
    uint32_t crc = npy_crc(0, (unsigned char *)head, length);
    for (int pass = w->zipped ? 0 : 1; pass < 2; pass++) { /* first the checksum, then the values */
        if (pass == 1 && w->zipped)
            npy_begin_entry(w, name, crc, length + (uint64_t)n * (uint64_t)size);
        if (pass == 1)
            npy_write_bytes(w, head, length);
        for (int64_t k = 0, part; k < n; k += part) {
            part = n - k < 1024 ? n - k : 1024;
            if (size == 1)
                memcpy(buffer, from + k, (size_t)part);
            for (int64_t i = 0; i < part && size == 4; i++) {
                uint32_t x;
                memcpy(&x, from + (k + i) * 4, 4);
                npy_store(buffer + 4 * i, x, 4);
            }
            if (pass == 0)
                crc = npy_crc(crc, buffer, (size_t)part * (size_t)size);
            else
                npy_write_bytes(w, buffer, (size_t)part * (size_t)size);
        }
    }
    w->count += !w->zipped;
    return w->error[0] != 0 ? -1 : 0;
}

/* Completes the file: writes the directory, and gives the file its name. Returns 0, or -1 with
 * w->error after removing it. Call it after an error as well. */
static inline int npy_end(npy_writer *w)
{
    unsigned char end[98], *p = end;
    char part[520];
    snprintf(part, sizeof part, "%s.part", w->path);
    if (w->zipped && w->file != NULL) {
        const uint64_t at = w->at, n = (uint64_t)w->count;
        npy_write_bytes(w, w->directory, w->used);
        p = npy_store(npy_store(npy_store(p, 0x06064b50, 4), 44, 8), 45 | 45 << 16, 4);
        p = npy_store(npy_store(npy_store(p, 0, 8), n, 8), n, 8);
        p = npy_store(npy_store(p, w->used, 8), at, 8);
        p = npy_store(npy_store(npy_store(p, 0x07064b50, 4), 0, 4), at + w->used, 8);
        p = npy_store(npy_store(npy_store(p, 1, 4), 0x06054b50, 4), 0, 4);
        p = npy_store(npy_store(p, n < 65535 ? n | n << 16 : UINT32_MAX, 4), w->used, 4);
        p = npy_store(npy_store(p, UINT32_MAX, 4), 0, 2);
        npy_write_bytes(w, end, (size_t)(p - end));
    }
    if (w->file != NULL && fclose(w->file) != 0)
        npy_write_fail(w, strerror(errno));
    w->file = NULL;
    free(w->directory);
    w->directory = NULL;
#if defined(_WIN32)
    if (w->error[0] == 0)
        remove(w->path);
#endif
    if (w->error[0] == 0 && rename(part, w->path) != 0)
        npy_write_fail(w, strerror(errno));
    if (w->error[0] != 0)
        remove(part);
    return w->error[0] != 0 ? -1 : 0;
}

/* ---- parameters of a store -------------------------------------------------------------------- */
#ifdef GRADCKPT_H
static inline int npy_put(npy_writer *w, const char *name, const char *type, gckpt_shape shape,
                          const void *values)
{
    return npy_put_array(w, name, type, shape.n, shape.d, values);
}

/* Writes all parameters as floats into a .npz. Returns 0, or -1 with the error text. */
static inline int npy_save(gckpt_store *store, const char *path, char error[NPY_ERROR])
{
    npy_writer w;
    npy_create(&w, path);
    gckpt_store_pull(store, "*");
    for (int i = 0; i < gckpt_store_count(store) && w.error[0] == 0; i++) {
        gckpt_parameter p;
        if (gckpt_store_get(store, i, &p) != GCKPT_OK || p.values == NULL)
            npy_write_fail(&w, p.values == NULL ? "a parameter is not stored as floats"
                                                : gckpt_error_text(store));
        else
            npy_put(&w, p.name, "<f4", p.shape, p.values);
    }
    const int failed = npy_end(&w);
    snprintf(error, NPY_ERROR, "%s", w.error);
    return failed;
}

/* Reads the values of all parameters from a .npz, whose arrays need their names and shapes; others
 * are ignored. Returns 0, or -1 with the error text; then no parameter has changed. */
static inline int npy_load(gckpt_store *store, const char *path, char error[NPY_ERROR])
{
    npy f;
    int failed = npy_open(&f, path);
    for (int pass = 0; pass < 2; pass++) /* first checks that all are there */
        for (int i = 0; i < gckpt_store_count(store) && !failed; i++) {
            gckpt_parameter p;
            failed = gckpt_store_get(store, i, &p) != GCKPT_OK;
            const npy_array *a = failed ? NULL : npy_find(&f, p.name);
            int same = a != NULL && p.values != NULL && a->dims == p.shape.n;
            for (int k = 0; same && k < a->dims; k++)
                same = a->shape[k] == p.shape.d[k];
            if (a != NULL && !same)
                npy_fail(
                    &f,
                    "\"%s\" has another shape than the parameter, or that is not stored as floats",
                    p.name);
            failed = !same || (pass == 1 && npy_floats(&f, a, p.values) != 0);
        }
    gckpt_store_push(store, "*");
    snprintf(error, NPY_ERROR, "%s", f.error[0] != 0 ? f.error : gckpt_error_text(store));
    npy_close(&f);
    return failed ? -1 : 0;
}
#endif
#endif /* NPY_H */

/* gguf_write.h - writes GGUF files: keys with values, and tensors. To copy, with gguf.h and the
 * file that includes it, gguf_adapter.h or gguf_export.h.
 *
 *     gguf_writer w = { fopen("new.gguf", "wb"), 0 };
 *     gguf_put_begin(&w, 1, 2);                       // numbers of tensors and keys
 *     gguf_put_key(&w, "general.architecture", "llama");
 *     gguf_put_int(&w, "llama.block_count", 4);
 *     uint64_t offset = 0;
 *     gguf_put_tensor(&w, "output_norm.weight", GGUF_T_F32, 0, 64, &offset); // for each tensor
 *     gguf_put_align(&w);
 *     gguf_from_floats(GGUF_T_F32, values, 64, bytes);  // then the values of each
 *     gguf_put_bytes(&w, bytes, gguf_bytes(GGUF_T_F32, 64));
 *     gguf_put_align(&w);
 *     if (ferror(w.f)) ...
 *
 * Blocks of Q8_0 and Q4_0 have the bits that ggml writes. C99 or C++11. */
#ifndef GGUF_WRITE_H
#define GGUF_WRITE_H
#include "gguf.h"

typedef struct {
    FILE *f;
    uint64_t position;
} gguf_writer;

static inline void gguf_put_bytes(gguf_writer *w, const void *bytes, size_t n)
{
    fwrite(bytes, 1, n, w->f);
    w->position += n;
}

static inline void gguf_put(gguf_writer *w, uint64_t number, int n)
{
    unsigned char bytes[8];
    for (int i = 0; i < n; i++)
        bytes[i] = (unsigned char)(number >> 8 * i);
    gguf_put_bytes(w, bytes, (size_t)n);
}

static inline void gguf_put_float(gguf_writer *w, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    gguf_put(w, bits, 4);
}

static inline void gguf_put_string(gguf_writer *w, const char *text, size_t n)
{
    gguf_put(w, n, 8);
    gguf_put_bytes(w, text, n);
}

/* Writes the header. gguf_put_align after the last tensor's header ends it. */
static inline void gguf_put_begin(gguf_writer *w, uint64_t tensors, uint64_t keys)
{
    gguf_put_bytes(w, "GGUF", 4);
    gguf_put(w, 3, 4);
    gguf_put(w, tensors, 8);
    gguf_put(w, keys, 8);
}

/* Write a key with its value: a text; a whole number (u32); a real number (f32); a bool. */
static inline void gguf_put_name(gguf_writer *w, const char *name, gguf_type type)
{
    gguf_put_string(w, name, strlen(name));
    gguf_put(w, (uint64_t)type, 4);
}

static inline void gguf_put_key(gguf_writer *w, const char *name, const char *text)
{
    gguf_put_name(w, name, GGUF_STRING);
    gguf_put_string(w, text, strlen(text));
}

static inline void gguf_put_int(gguf_writer *w, const char *name, int64_t value)
{
    gguf_put_name(w, name, GGUF_U32);
    gguf_put(w, (uint64_t)value, 4);
}

static inline void gguf_put_real(gguf_writer *w, const char *name, double value)
{
    gguf_put_name(w, name, GGUF_F32);
    gguf_put_float(w, (float)value);
}

static inline void gguf_put_bool(gguf_writer *w, const char *name, int value)
{
    gguf_put_name(w, name, GGUF_BOOL);
    gguf_put(w, value != 0, 1);
}

/* Begins a key whose value is an array; its items follow. */
static inline void gguf_put_array(gguf_writer *w, const char *name, gguf_type type, uint64_t items)
{
    gguf_put_name(w, name, GGUF_ARRAY);
    gguf_put(w, (uint64_t)type, 4);
    gguf_put(w, items, 8);
}

static inline void gguf_put_align(gguf_writer *w)
{
    while (w->position % 32 != 0)
        gguf_put(w, 0, 1);
}

/* Writes the header of a tensor: of a matrix, or of a vector if `rows` is 0. Adds the size of its
 * values to *offset, which is 0 before the first tensor. */
static inline void gguf_put_tensor(gguf_writer *w, const char *name, int type, int64_t rows,
                                   int64_t columns, uint64_t *offset)
{
    gguf_put_string(w, name, strlen(name));
    gguf_put(w, rows > 0 ? 2 : 1, 4);
    gguf_put(w, (uint64_t)columns, 8);
    if (rows > 0)
        gguf_put(w, (uint64_t)rows, 8);
    gguf_put(w, (uint64_t)type, 4);
    gguf_put(w, *offset, 8);
    *offset += (gguf_bytes(type, (rows > 0 ? rows : 1) * columns) + 31) / 32 * 32;
}

/* ---- values ---------------------------------------------------------------------------------- */
/* Returns the binary16 number closest to x, the even one of two; an infinity if x is too large. */
static inline uint32_t gguf_to_f16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000)
        return sign | 0x7e00; /* NaN */
    if (size >= 0x477ff000)   /* 65520 and above */
        return sign | 0x7c00;
    /* below 2^-14 a binary16 has fewer bits: the last one is 2^-24 */
    const int lost = size >= 0x38800000 ? 13 : 126 - (int)(size >> 23);
    if (lost > 24)
        return sign;
    const uint32_t number = lost == 13 ? size - 0x38000000 : (size & 0x7fffff) | 0x800000;
    const uint32_t half = (uint32_t)1 << (lost - 1), odd = number >> lost & 1;
    return sign | (number + half - 1 + odd) >> lost;
}

/* Returns the upper half of the float closest to x, the even one of two. */
static inline uint32_t gguf_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return bits >> 16 | 64; /* NaN */
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* Writes a block of 32 values as Q8_0, or as Q4_0 if `four` is nonzero: a scale in binary16, then
 * whole numbers. */
static inline void gguf_put_block(const float *x, int four, unsigned char *to)
{
    float extreme = 0;
    for (int i = 0; i < 32; i++)
        extreme = (x[i] < 0 ? -x[i] : x[i]) > (extreme < 0 ? -extreme : extreme) ? x[i] : extreme;
    const float scale = four ? extreme / -8 : (extreme < 0 ? -extreme : extreme) / 127;
    const float divided = scale != 0 ? 1 / scale : 0;
    const float inverse = divided - divided == 0 ? divided : 0;
    const uint32_t half = gguf_to_f16(scale);
    to[0] = (unsigned char)(half & 255);
    to[1] = (unsigned char)(half >> 8);
    for (int i = 0; i < 32; i++) {
        const float y = x[i] * inverse;
        if (!four) { /* rounds to the closest number, halves away from 0 */
            const double up = (double)(y < 0 ? -y : y) + 0.5;
            to[2 + i] = (unsigned char)(y < 0 ? -(int)up : (int)up);
            continue;
        }
        const int q = (int)(y + 8.5f);
        const int low = q < 15 ? q : 15;
        to[2 + i % 16] = (unsigned char)(i < 16 ? low : to[2 + i % 16] | low << 4);
    }
}

/* Converts n finite floats to a type of tensors: F32, F16, BF16, Q8_0 or Q4_0, which need whole
 * blocks. Returns 0, or -1 if a value or a block's scale is too large for the type. */
static inline int gguf_from_floats(int type, const float *x, int64_t n, unsigned char *to)
{
    const int values = gguf_tensor_types[type].values, bytes = gguf_tensor_types[type].bytes;
    int failed = 0;
    for (int64_t i = 0; i < n; i += values, to += bytes) {
        if (values == 32) {
            gguf_put_block(x + i, type == GGUF_T_Q4_0, to);
            failed |= (to[1] & 0x7c) == 0x7c;
            continue;
        }
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        bits = type == GGUF_T_F16    ? gguf_to_f16(x[i])
               : type == GGUF_T_BF16 ? gguf_to_bf16(x[i])
                                     : bits;
        for (int k = 0; k < bytes; k++)
            to[k] = (unsigned char)(bits >> 8 * k);
        failed |= bytes == 2 && (bits & (type == GGUF_T_F16 ? 0x7c00u : 0x7f80u)) ==
                                    (type == GGUF_T_F16 ? 0x7c00u : 0x7f80u);
    }
    return failed ? -1 : 0;
}
#endif

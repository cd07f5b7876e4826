/* train_data.h - datasets for train.h: in memory, optionally as bytes, or from a callback, with
 * shuffling and augmentation. To copy, and to change: it uses public calls only. C99 or C++11; include
 * gradckpt.h first. */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H
#include <stdint.h>
#include <string.h>

enum { TRAIN_COLUMNS = 8 };

/* Values in fewer bytes than the graph's: each becomes the float that it is when a batch is put
 * together; in the graph the column is GCKPT_F32. */
enum {
    TRAIN_U8 = 100, /* unsigned char: 0 to 255 */
    TRAIN_F16       /* uint16_t: IEEE binary16 */
};

/* Arrays of rows. The last column is what is to be predicted. */
typedef struct {
    const char *name; /* of the graph's input */
    int type;         /* GCKPT_F32, GCKPT_I32, TRAIN_U8, TRAIN_F16 */
    int64_t width;    /* values a row, as (rows,width); 0: one, as (rows) */
    /* Of all rows, one after the other. NULL: the callback's, train_options.batch; without such a
     * callback (train_predict): unknown. */
    const void *values;
} train_column;
typedef struct {
    train_column column[TRAIN_COLUMNS]; /* up to the first without a name */
    /* all; of them the last ones, which are not trained on (train_shuffle_rows: any) */
    int64_t rows, validation;
} train_data;

/* What the callback is given: rows whose columns it fills, or changes. So that budgets, threads and
 * a training that was ended and gone on with give the same bits, what it makes of a row must be a
 * function of the row, epoch and seed: train_random is one. */
typedef struct {
    int epoch; /* from 1; 0: rows for validation or prediction, which are to be as they are */
    uint64_t seed;
    int64_t n;               /* rows, */
    const int64_t *rows;     /* and which: 0 to train_data.rows - 1 */
    void *values[TRAIN_COLUMNS]; /* of each column n rows of floats or int32_t, one after the other:
                                values, where the column has some, else to be filled */
    char error[256];         /* what went wrong, when it returns anything but 0 */
} train_batch;

/* The finaliser of splitmix64 (Steele 2014). */
static inline uint64_t train_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* 64 random bits for the batch's row i: a function of seed, epoch, row and `which`, and of nothing
 * else. */
static inline uint64_t train_random(const train_batch *b, int64_t i, uint64_t stream)
{
    const uint64_t key[4] = { b->seed, (uint64_t)b->epoch, (uint64_t)b->rows[i], stream };
    uint64_t x = 0;
    for (int k = 0; k < 4; k++)
        x = train_mix((x ^ key[k]) + 0x9e3779b97f4a7c15u);
    return x;
}

/* The same as a float in [0,1): its 24 high bits. */
static inline float train_uniform(const train_batch *b, int64_t i, uint64_t stream)
{
    return (float)(train_random(b, i, stream) >> 40) * 5.9604644775390625e-8f;
}

/* The order of rows in an epoch: Fisher & Yates 1938. */
static inline void train_shuffle(int64_t *order, int64_t n, uint64_t seed, int epoch)
{
    uint64_t state = seed * 0xd1342543de82ef95u + (uint64_t)epoch;
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = (int64_t)(train_mix(state += 0x9e3779b97f4a7c15u) % (uint64_t)(i + 1));
        order[i] = order[k];
        order[k] = i;
    }
}

static inline int64_t train_width(const train_column *c) { return c->width > 0 ? c->width : 1; }

/* Bytes of a value as it is stored. */
static inline int64_t train_value_bytes(const train_column *c)
{
    return c->type == TRAIN_U8 ? 1 : c->type == TRAIN_F16 ? 2 : 4;
}

static inline const void *train_row(const train_column *c, int64_t row)
{
    return (const char *)c->values + row * train_width(c) * train_value_bytes(c);
}

static inline float train_from_f16(uint16_t half)
{
    const uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
    uint32_t word = (uint32_t)(half >> 15) << 31;
    float x = (float)fraction * 5.9604644775390625e-8f; /* subnormal: times 2^-24 */
    if (exponent == 0)
        return word != 0 ? -x : x;
    word |= (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    memcpy(&x, &word, sizeof x);
    return x;
}

/* Puts the rows of all columns with values into an order that `seed` says, in place (the arrays must
 * not be const): before train_fit, where rows are sorted, so that the last ones, which validate, are
 * like the others. Each row keeps its columns. */
static inline void train_shuffle_rows(train_data *data, uint64_t seed)
{
    uint64_t state = seed;
    for (int64_t i = data->rows - 1; i > 0; i--) {
        const int64_t k = (int64_t)(train_mix(state += 0x9e3779b97f4a7c15u) % (uint64_t)(i + 1));
        for (int j = 0; j < TRAIN_COLUMNS && data->column[j].name != NULL; j++) {
            const train_column *c = &data->column[j];
            char *values = (char *)(uintptr_t)c->values;
            const int64_t size = train_width(c) * train_value_bytes(c);
            for (int64_t byte = 0; byte < size && values != NULL && k != i; byte++) {
                const char swap = values[i * size + byte];
                values[i * size + byte] = values[k * size + byte];
                values[k * size + byte] = swap;
            }
        }
    }
}

/* A row as the graph has it. */
static inline void train_convert_row(const train_column *c, int64_t row, void *to)
{
    const int64_t n = train_width(c);
    const void *from = train_row(c, row);
    float *x = (float *)to;
    if (c->type == TRAIN_U8)
        for (int64_t i = 0; i < n; i++)
            x[i] = ((const unsigned char *)from)[i];
    else if (c->type == TRAIN_F16)
        for (int64_t i = 0; i < n; i++)
            x[i] = train_from_f16(((const uint16_t *)from)[i]);
    else
        memcpy(to, from, (size_t)n * 4);
}

/* FNV-1a of all values in memory, by words (bytes, halves) as numbers: the same on any machine. */
static inline uint64_t train_hash(const train_data *data, int columns)
{
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < columns; i++) {
        const train_column *c = &data->column[i];
        const int64_t size = train_value_bytes(c), n = data->rows * train_width(c);
        for (int64_t k = 0; c->values != NULL && k < n; k++) {
            const char *at = (const char *)c->values + k * size;
            uint32_t word = *(const unsigned char *)at;
            uint16_t half;
            if (size == 4)
                memcpy(&word, at, sizeof word);
            else if (size == 2)
                memcpy(&half, at, sizeof half), word = half;
            hash = (hash ^ word) * 1099511628211u;
        }
    }
    return hash;
}
#endif

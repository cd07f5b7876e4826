/* train_data.h - datasets for train.h: in memory, optionally as bytes, or from a callback, with
 * shuffling and augmentation. To use it, copy it and change it as you like: it calls the public API
 * only. C99 or C++11; include gradckpt.h first. */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H
#include <stdint.h>
#include <string.h>

enum { TRAIN_COLUMNS = 8 };

/* Types of columns that take fewer bytes in memory than in the graph. Values are converted to float
 * when a batch is put together, so the graph's input is GCKPT_F32. */
enum {
    TRAIN_U8 = 100, /* unsigned char, values 0 to 255 */
    TRAIN_F16       /* uint16_t, a binary16 number of IEEE 754 */
};
enum { TRAIN_BY_LENGTH = -1 }; /* width of a column whose rows have different lengths */

/* A column of a dataset: an array with one element or vector per row. The last column is the one to
 * predict. */
typedef struct {
    const char *name; /* name of the input in the graph */
    int type;         /* GCKPT_F32, GCKPT_I32, TRAIN_U8 or TRAIN_F16 */
    /* values per row, for an input (rows,width); 0 means one value per row and an input (rows);
     * TRAIN_BY_LENGTH means that of the batch (train_options.length), for a column without values */
    int64_t width;
    /* Values of all rows, one row after the other. If NULL, the callback train_options.batch writes
     * them; without that callback (in train_predict), the values of the column are unknown. */
    const void *values;
} train_column;
typedef struct {
    /* the columns; the first one without a name ends the list */
    train_column column[TRAIN_COLUMNS];
    /* rows: number of rows; validation: how many of them are for validation, the last ones or,
     * after train_shuffle_rows, random ones */
    int64_t rows, validation;
} train_data;

/* Argument of the callback train_options.batch, which fills or changes columns of a batch. What it
 * writes for a row must depend only on row, epoch and seed (for example through train_random).
 * Otherwise budgets, threads and resuming would change the bits. */
typedef struct {
    /* epoch, counted from 1; 0 in validation and prediction, in which rows must not be augmented */
    int epoch;
    uint64_t seed;
    int64_t n;               /* number of rows in the batch */
    const int64_t *rows;     /* indices of the rows, 0 to train_data.rows - 1 */
    int64_t length;          /* width of the columns of width TRAIN_BY_LENGTH */
    /* for each column, n rows of floats or int32_t: the column's values or, if it has none, space
     * for them */
    void *values[TRAIN_COLUMNS];
    char error[256];         /* the callback's error message, if it returns a value other than 0 */
} train_batch;

/* Returns x scrambled by the finaliser of splitmix64 (Steele 2014). */
static inline uint64_t train_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Returns 64 random bits for row i of the batch. They depend only on seed, epoch, row and
 * `stream`. */
static inline uint64_t train_random(const train_batch *b, int64_t i, uint64_t stream)
{
    const uint64_t key[4] = { b->seed, (uint64_t)b->epoch, (uint64_t)b->rows[i], stream };
    uint64_t x = 0;
    for (int k = 0; k < 4; k++)
        x = train_mix((x ^ key[k]) + 0x9e3779b97f4a7c15u);
    return x;
}

/* Returns a random float in [0,1), made from the 24 high bits of train_random. */
static inline float train_uniform(const train_batch *b, int64_t i, uint64_t stream)
{
    return (float)(train_random(b, i, stream) >> 40) * 5.9604644775390625e-8f;
}

/* Writes the order of the n rows in an epoch, a random permutation (Fisher & Yates 1938). */
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

/* Returns the values per row in batches of this length. */
static inline int64_t train_column_width(const train_column *c, int64_t length)
{
    return c->width == TRAIN_BY_LENGTH ? length : train_width(c);
}

/* Returns the bytes that one value of the column takes in memory. */
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
    /* a subnormal number: fraction times 2^-24 */
    float x = (float)fraction * 5.9604644775390625e-8f;
    if (exponent == 0)
        return word != 0 ? -x : x;
    word |= (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    memcpy(&x, &word, sizeof x);
    return x;
}

/* Shuffles the rows by `seed`, equally in all columns that have values. It moves the values, so the
 * arrays must not be const. Call it before train_fit if rows are sorted: then the last rows, which
 * validate, resemble the others. */
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

/* Converts a row of a column to the type of the graph's input. */
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

/* Returns the FNV-1a hash of all values in memory, as numbers of 1, 2 or 4 bytes, so that the
 * result is the same on every machine. */
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

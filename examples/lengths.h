/* lengths.h - chooses a few lengths for rows of very different lengths, such as texts: a plan for each of them, to
 * which rows are padded, costs less than one plan for the longest row. To copy; C99 or C++11. */
#ifndef LENGTHS_H
#define LENGTHS_H
#include <stdint.h>
#include <stdlib.h>

enum {
    LENGTHS_STEPS = 512, /* most lengths that count as different */
    LENGTHS_MOST = 16    /* most lengths that can be chosen */
};

/* Returns the width of an interval of lengths, so that there are at most LENGTHS_STEPS. */
static inline int64_t lengths_interval(int64_t longest)
{
    return (longest + LENGTHS_STEPS - 1) / LENGTHS_STEPS;
}

/* Divides `count` ascending lengths into at most `classes` runs so that the total length is least
 * if each row is padded to the last length of its run. sums[i] is the number of rows with one of
 * the first i + 1 lengths. cost and from are tables of classes * (count + 1) numbers: the least
 * total of the first j lengths in k + 1 runs, and the index at which the last run begins. */
static inline void lengths_split(const int64_t *lengths, const uint64_t *sums, size_t count,
                                 size_t classes, uint64_t *cost, size_t *from)
{
    for (size_t k = 0; k < classes; k++)
        for (size_t j = 0; j <= count; j++) {
            uint64_t *best = &cost[k * (count + 1) + j];
            *best = j == 0 ? 0 : UINT64_MAX;
            for (size_t i = 0; i < (k > 0 || j == 0 ? j : 1); i++) {
                const uint64_t before = k > 0 ? cost[(k - 1) * (count + 1) + i] : 0;
                const uint64_t rows = sums[j - 1] - (i > 0 ? sums[i - 1] : 0);
                if (before != UINT64_MAX && before + rows * (uint64_t)lengths[j - 1] < *best) {
                    *best = before + rows * (uint64_t)lengths[j - 1];
                    from[k * (count + 1) + j] = i;
                }
            }
        }
}

/* Chooses at most `most` lengths (up to LENGTHS_MOST) that pad rows least, and writes them to
 * `lengths`, ascending; the last one is `longest`. weights[i] is the number of rows that need a
 * length above (i - 1) * interval and up to i * interval; i goes up to longest / interval + 1, at
 * most LENGTHS_STEPS + 1. Uses Bellman's recursion, and takes the smallest number of lengths within
 * 1 % of the least padding. Returns that number, or 0 if out of memory. */
static inline int lengths_choose(const uint64_t *weights, int64_t interval, int64_t longest,
                                 int most, int64_t *lengths)
{
    int64_t at[LENGTHS_STEPS + 1];
    uint64_t sums[LENGTHS_STEPS + 1], ideal = 0, rows = 0;
    size_t count = 0;
    const size_t table = LENGTHS_MOST * (size_t)(LENGTHS_STEPS + 2);
    uint64_t *cost = (uint64_t *)malloc(table * sizeof *cost);
    size_t *from = (size_t *)malloc(table * sizeof *from);
    int classes = 0;
    for (int64_t i = 1; cost != NULL && from != NULL && i <= longest / interval + 1; i++)
        if (weights[i] > 0) {
            at[count] = i * interval < longest ? i * interval : longest;
            rows += weights[i];
            ideal += weights[i] * (uint64_t)at[count];
            sums[count++] = rows;
        }
    if (count > 0) {
        at[count - 1] = longest;
        lengths_split(at, sums, count, (size_t)most, cost, from);
        while (++classes < most && 100 * cost[(size_t)classes * (count + 1) - 1] > 101 * ideal)
            continue;
        size_t end = count;
        for (int k = classes; k-- > 0; end = from[(size_t)k * (count + 1) + end])
            lengths[k] = at[end - 1];
    }
    free(cost);
    free(from);
    return classes;
}
#endif

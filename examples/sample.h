/* sample.h - chooses a token from logits by temperature, top-k and top-p. To use it, copy it; C99
 * or C++11, without any library.
 *
 *     sample_options o = { 0.8, 40, 0.95, 1 };     // temperature, top_k, top_p, seed
 *     sample_entry *heap = malloc(V * sizeof *heap);
 *     int32_t token = sample_token(logits, V, &o, sample, position, heap);
 *
 * The token is a function of seed, sample number and position (there is no state), computed by
 * arithmetic that is the same on every machine. The order is that of transformers: logits /
 * temperature, then the k greatest, then of these the greatest whose probabilities add up to p. */
#ifndef SAMPLE_H
#define SAMPLE_H
#include <stdint.h>

typedef struct {
    double temperature; /* divisor of the logits; 0 always selects the greatest logit */
    int64_t top_k;      /* number of greatest logits to sample from; 0 for all */
    /* sum of probabilities that the sampled tokens must reach (top-p); 0 or 1 samples from all
     * tokens */
    double top_p;
    uint64_t seed;
} sample_options;

typedef struct {
    double weight; /* exp((logit - greatest logit) / temperature) */
    int32_t token;
} sample_entry;

/* Returns z scrambled by the finaliser of splitmix64 (Steele 2014). */
static inline uint64_t sample_mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Returns 64 random bits, which depend on seed, a and b only. */
static inline uint64_t sample_random(uint64_t seed, uint64_t a, uint64_t b)
{
    return sample_mix(sample_mix(sample_mix(seed) ^ a) ^ b);
}

/* Returns exp(x) for x <= 0 with a relative error below 1e-12: sums the series for x / 4096 and
 * squares the result twelve times. */
static inline double sample_exp(double x)
{
    double y = x > -745 ? x / 4096 : 0, e = 1;
    for (int i = 10; i > 0; i--)
        e = 1 + y * e / i;
    for (int i = 0; i < 12; i++)
        e *= e;
    return x > -745 ? e : 0;
}

/* Returns whether entry a is more likely than entry b; of equal ones, the smaller token comes
 * first. */
static inline int sample_is_before(const sample_entry *a, const sample_entry *b)
{
    return a->weight > b->weight || (a->weight == b->weight && a->token < b->token);
}

/* Moves heap[i] down until the heap of n entries is in order again. */
static inline void sample_sift(sample_entry *heap, int64_t n, int64_t i)
{
    const sample_entry x = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && sample_is_before(&heap[child + 1], &heap[child]);
        if (!sample_is_before(&heap[child], &x))
            break;
        heap[i] = heap[child];
    }
    heap[i] = x;
}

/* Moves the most likely entry of a heap of n entries to its end, where it leaves the heap, and
 * returns its weight. */
static inline double sample_pop(sample_entry *heap, int64_t n)
{
    const sample_entry x = heap[0];
    heap[0] = heap[n - 1];
    sample_sift(heap, n - 1, 0);
    heap[n - 1] = x;
    return x.weight;
}

/* Returns a token from 0 to n - 1, chosen by n >= 1 logits. `heap` is scratch space for n entries.
 * Never chooses a token whose logit is NaN or -infinity; if all are, returns 0. */
static inline int32_t sample_token(const float *logits, int64_t n, const sample_options *o,
                                   uint64_t sample, uint64_t position, sample_entry *heap)
{
    int32_t best = 0;
    for (int64_t i = 0; i < n; i++)
        if (logits[i] > logits[best] || (logits[best] != logits[best] && logits[i] == logits[i]))
            best = (int32_t)i;
    const double greatest = (double)logits[best];
    if (!(o->temperature > 0) || !(greatest - greatest == 0))
        return best;
    double all = 0, sum = 0;
    /* kept: number of entries; popped: number of entries that were moved to the end of `heap`, the
     * most likely one to the very end; use: number of entries that may be chosen */
    int64_t kept = 0, popped = 0, use = 0;
    for (int64_t i = 0; i < n; i++) {
        heap[kept].weight = sample_exp(((double)logits[i] - greatest) / o->temperature);
        heap[kept].token = (int32_t)i;
        all += heap[kept].weight;
        kept += heap[kept].weight > 0;
    }
    const int by_k = o->top_k > 0 && o->top_k<kept, by_p = o->top_p> 0 && o->top_p < 1;
    for (int64_t i = by_k || by_p ? kept / 2 : 0; i-- > 0;)
        sample_sift(heap, kept, i);
    if (by_k)
        for (all = 0; popped < o->top_k; popped++)
            all += sample_pop(heap, kept - popped);
    const int64_t most = by_k ? popped : kept;
    for (; by_p && use < most && sum < o->top_p * all; use++) {
        if (use == popped)
            sample_pop(heap, kept - popped++);
        sum += heap[kept - 1 - use].weight;
    }
    use = by_p ? use : most;
    sum = by_p ? sum : all;
    const double u = (double)(sample_random(o->seed, sample, position) >> 11) / 9007199254740992.0;
    int64_t i = 0;
    for (double below = heap[kept - 1].weight; i < use - 1 && below <= u * sum; i++)
        below += heap[kept - 2 - i].weight;
    return heap[kept - 1 - i].token;
}
#endif

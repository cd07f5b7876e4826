/* test_contract.c - the numeric contract (manual, 5; version 3) again, written from its text in the
 * simplest form: libm's fmaf and sqrtf, a function a rule, a whole leaf at once, every value kept.
 * Whatever the library fetches, reports and updates must be these bits, for any plan, split of the
 * batch and kernels, in fp32 and bf16 (5l). Its curves (5b) are used as they are: test_numerics and
 * test_kernels have them; rounding by chance is in test_bf16. */
#include "num/num.h"
#include "ops/ops.h"

#include <math.h>
#include <stdlib.h>

#include "check.h"

enum { STEPS = 3, MOST = 64, USES = 8, LEAVES = 8, SETTINGS = 9, POOL = 1 << 23 };
#define SEED UINT64_C(0xfedcba9876543210)
enum {
    INPUT,
    PARAM,
    VIEW,
    PRODUCT,
    NORM,
    SOFTMAX,
    LOG_SOFTMAX,
    ATTENTION,
    REDUCE,
    LOSS,
    CE,
    LINEAR_CE,
    ENTROPY,
    ERRORS,
    PAD,
    GREATEST,
    NUMBER, /* argmax */
    UPSAMPLE
};
/* an element at a time */
enum { EMBED = 19, SLICE, ADD, MUL, DIV, GREATER, LESS, SCALE, DROPOUT, ROTARY, CLAMP, DETACH, WHERE, FROM_U8 };
enum { RELU = 40, GELU, GELU_ERF, SILU, TANH, SIGMOID, EXP, LOG, SQRT, ABS, RECIPROCAL, SOFTPLUS, SIN, COS, POW, LEAKY };

/* A tensor of the library's graph and, over the whole batch, what the contract says it holds. */
typedef struct {
    int op, in[3], once, base, trained; /* base: whose bytes a view shows; trained: by parameters */
    int flag, heads;                    /* transposed, causal, mean, ...: what the op has */
    int lengths;                        /* 1 + the node that says how many keys a row has; 0: all */
    int window;                         /* of attention: 0: all keys */
    float cap, by;                      /* of scores or logits; of scores, 0: 1 / sqrt */
    float factor;
    gckpt_tensor *t;
    gckpt_shape s;
    int64_t n, c;             /* elements; size of the last axis */
    int32_t *index;           /* values of an i32 input */
    unsigned char *bytes;     /* what y is, of a u8 input, as it is fed */
    float *y, *g, *aux;       /* value, gradient, what the backward needs besides */
    int have;                 /* g holds a contribution */
    float *use[USES];         /* once: an accumulator a use */
    int uses, by_batch[USES]; /* the user depends on the batch */
    double sum;               /* of a loss */
    int64_t count;
    float scale, *m, *v;     /* of a loss's gradient; state of a parameter */
    float *leaf[LEAVES];     /* once: sums of the leaves */
    double leaf_sum[LEAVES]; /* of a loss */
} node;

static node nodes[MOST];
static int count, batch, batch_rows, step;         /* nodes; rows, of a micro-batch; steps done */
static int leaves, planned, first_row, rows_shown; /* planned: desc.batch */
static int narrow, mixed;                          /* 5l: a bf16 plan; the op is one that rounds */
static gckpt_store *store;
static gckpt_graph *graph;
static gckpt_term terms[5];
static int term_node[5], term_count;
static float pool[POOL];
static size_t used;

static float *get(int64_t n) /* n zeros */
{
    used += (size_t)n;
    if (used > POOL)
        exit(2);
    return (float *)memset(pool + used - n, 0, (size_t)n * sizeof(float));
}

/* 5a: a product that is rounded, and one that feeds an addition. */
static float times(float a, float b)
{
    volatile float product = a * b;
    return product;
}
/* 5a: those that are rounded before they are added */
static float rounded(float a, float b) { return fmaf(a, b, 0.0f); }
/* 5f: the first contribution stores, the others add. */
static void put(float *d, float v, int add) { *d = add ? *d + v : v; }
static void put_product(float *d, float a, float b, int add)
{
    *d = add ? fmaf(a, b, *d) : times(a, b);
}

/* 5l: to nearest even, subnormals to 0 */
static float half(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7f800000u) == 0)
        u &= 0x80000000u;
    else if ((u & 0x7fffffffu) > 0x7f800000u)
        u |= 0x400000u;
    else
        u += 0x7fffu + (u >> 16 & 1);
    u &= 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}
static void round_all(float *x, int64_t n)
{
    for (int64_t i = 0; i < n && mixed; i++)
        x[i] = half(x[i]);
}
static const float *factors(const float *x, int64_t n)
{
    float *y = get(n);
    memcpy(y, x, (size_t)n * sizeof *y);
    round_all(y, n);
    return y;
}
#define LEAST 1.17549435e-38f /* 2^-126 */
static float flushed(float x) { return fabsf(x) < LEAST ? copysignf(0, x) : x; }
/* What ends as the least normal number is told from what is rounded to it by few bits far above. */
static float flushing(float a, float b, float c)
{
    const float scale = 18446744073709551616.0f, end = fmaf(a, b, c);
    if (fabsf(end) > LEAST)
        return end;
    if (fabsf(end) == LEAST && fabsf(fmaf(a * scale, b, c * scale)) < LEAST * scale)
        return copysignf(0, end);
    return flushed(end);
}

/* 5c: a chain of fma over k ascending. 5l: blocks of two chains, cut anew after `run` links (0:
 * never), or (less than 32) none. What comes before `from` takes no part. */
static float element(float d, const float *a, int64_t sa, const float *b, int64_t sb, int64_t from,
                     int64_t k, int64_t run)
{
    d = mixed ? flushed(d) : d;
    if (!mixed || (run > 0 && run < 32)) {
        for (int64_t p = from; p < k; p++)
            d = mixed ? flushing(a[p * sa], b[p * sb], d) : fmaf(a[p * sa], b[p * sb], d);
        return d;
    }
    for (int64_t entry = 0, end; entry < k; entry = end) {
        end = run ? entry + run : k;
        for (int64_t block = entry; block < end; block += 32) {
            float two[2] = { 0, 0 };
            for (int64_t p = block, i = 0; p < block + 32 && p < end; p++, i = !i)
                if (p >= from)
                    two[i] = flushing(a[p * sa], b[p * sb], two[i]);
            d = flushed(d + flushed(two[0] + two[1]));
        }
    }
    return d;
}
static float ended(float x) { return mixed && x == 0 ? 0 : x; } /* of attention */

/* Products made of elements. */
typedef struct {
    const float *x;
    int64_t row, column; /* steps */
} matrix;
static matrix turned(matrix a) { return (matrix){ a.x, a.column, a.row }; }
static void product(float *c, matrix a, matrix b, int64_t m, int64_t k, int64_t n, int add,
                    const float *bias, int64_t run)
{
    a.x = factors(a.x, m * k), b.x = factors(b.x, k * n);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float start = bias ? bias[j] : add ? c[i * n + j] : 0.0f;
            c[i * n + j] =
                element(start, a.x + i * a.row, a.column, b.x + j * b.column, b.row, 0, k, run);
        }
}

/* 5d: 32 lanes from +0, then halves; b NULL: the sum of a. */
static float lanes(const float *a, const float *b, int64_t n)
{
    float lane[32] = { 0 };
    for (int64_t i = 0; i < n; i++)
        lane[i % 32] = b ? fmaf(a[i], b[i], lane[i % 32]) : lane[i % 32] + a[i];
    for (int h = 16; h; h /= 2)
        for (int j = 0; j < h; j++)
            lane[j] += lane[j + h];
    return lane[0];
}

/* 5e: the next x of a vector's sum *d; its low part lies at the same place of `low`. */
static float *low, *summed;
static void sum_add(float *d, float x)
{
    float *l = low + (d - summed);
    volatile float y = x - *l, t = *d + y;
    *l = (t - *d) - y;
    *d = t;
}
static void add_rows(float *d, const float *g, int64_t rows, int64_t c)
{
    for (int64_t i = 0; i < rows * c; i++)
        sum_add(&d[i % c], g[i]);
}

/* s = x scale, or cap tanh(x (scale / cap)) */
static float capped(float x, float scale, float cap)
{
    return cap > 0 ? rounded(cap, gckpti_tanh(rounded(x, scale / cap))) : rounded(x, scale);
}

/* 5h, 5i: one more tile of an online softmax: x becomes exp(x - max); returns exp(old - new). */
static float online(float *x, int64_t n, float *max, float *sum, int first)
{
    float old = *max, factor, shift;
    *max = first ? -INFINITY : *max;
    for (int64_t i = 0; i < n; i++)
        *max = x[i] > *max ? x[i] : *max;
    shift = *max == -INFINITY ? 0 : *max;
    for (int64_t i = 0; i < n; i++)
        x[i] = gckpti_exp(x[i] - shift);
    factor = first ? 0 : gckpti_exp(old - shift);
    *sum = first ? lanes(x, NULL, n) : fmaf(*sum, factor, lanes(x, NULL, n));
    return factor;
}
static void online_end(float *max, float *sum) /* all scores were -inf */
{
    if (*sum == 0)
        *max = 0, *sum = 1;
}

/* 5j: Philox4x32-10 (Salmon 2011) from key and counter. */
static void philox(uint64_t key, uint64_t index, uint32_t stream, uint32_t at, uint32_t c[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    c[0] = (uint32_t)index, c[1] = (uint32_t)(index >> 32), c[2] = stream, c[3] = at;
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        uint64_t p0 = UINT64_C(0xD2511F53) * c[0], p1 = UINT64_C(0xCD9E8D57) * c[2];
        c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1, c[3] = (uint32_t)p0;
    }
}
static float uniform(uint32_t word) { return (float)(word >> 8) / 16777216.0f; }
static int kept(const node *o, int64_t i) /* by dropout */
{
    uint32_t word[4];
    i += o->once ? 0 : o->n / rows_shown * first_row;
    philox(SEED, (uint64_t)i / 4, (uint32_t)gckpt_id(o->t), (uint32_t)step, word);
    return uniform(word[i % 4]) >= o->factor;
}

/* 5k: FNV-1a. */
#define FNV_START UINT64_C(0xcbf29ce484222325)
static uint64_t fnv(uint64_t hash, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}
static uint64_t fnv_floats(uint64_t hash, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = 0x7fc00000u;
        if (x[i] == x[i])
            memcpy(&u, &x[i], 4);
        for (int j = 0; j < 32; j += 8)
            hash = (hash ^ (u >> j & 0xff)) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* 5j: initial values, two elements a block. */
static void initial(float *w, int64_t n, const char *name, gckpt_init init)
{
    unsigned char seed[8];
    for (int i = 0; i < 8; i++)
        seed[i] = (unsigned char)(SEED >> 8 * i);
    uint64_t key = fnv(fnv(FNV_START, seed, 8), name, strlen(name));
    for (int64_t i = 0; i < n; i++) {
        uint32_t word[4];
        float sc[2], r, u;
        philox(key, (uint64_t)i / 2, 0, 0, word);
        r = sqrtf(times(-2.0f, gckpti_log((float)((word[0] >> 8) + 1) / 16777216.0f)));
        gckpti_sincos(times(6.28318531f, uniform(word[1])), &sc[1], &sc[0]);
        u = fmaf(2, uniform(word[2 + i % 2]), -1);
        w[i] = fmaf(init.uniform, u, fmaf(init.normal, rounded(r, sc[i % 2]), init.constant));
    }
}

/* ---- ops; in < 0: the value into d; else input in's gradient, stored in or added to d ---- */
/* 5l: rows of x in an entry of its first axis */
static int64_t rows_of_entry(const node *x) { return x->n / x->c / x->s.d[0]; }
/* 5c, 5e, 5l: linear, matmul; w with two axes serves all leading indices */
static void compute_product(const node *o, int in, float *d, int add)
{
    const node *x = &nodes[o->in[0]], *w = &nodes[o->in[1]];
    int64_t k = x->c, n = o->c, leading = w->s.n == 2 ? 1 : w->n / (k * n), m = x->n / k / leading;
    int64_t run = w->s.n == 2 ? rows_of_entry(x) : m;
    for (int64_t l = 0; l < leading; l++) {
        matrix a = { x->y + l * m * k, k, 1 }, g = { o->g + l * m * n, n, 1 };
        matrix b = { w->y + l * k * n, o->flag ? 1 : n, o->flag ? k : 1 };
        if (in < 0)
            product(d + l * m * n, a, b, m, k, n, 0, o->in[2] < 0 ? NULL : nodes[o->in[2]].y, 0);
        else if (in == 0)
            product(d + l * m * k, g, turned(b), m, n, k, add, NULL, 0);
        else if (in == 2)
            add_rows(d, g.x, m, n);
        else if (o->flag)
            product(d + l * k * n, turned(g), a, n, m, k, add, NULL, run);
        else
            product(d + l * k * n, turned(a), g, k, m, n, add, NULL, run);
    }
}

/* 5d, 5e: a row of layernorm (flag) or rmsnorm */
static void compute_norm(const node *o, int in, const float *x, const float *g, float *d, int add)
{
    const float *gain = o->in[1] < 0 ? NULL : nodes[o->in[1]].y;
    const float *bias = o->in[2] < 0 ? NULL : nodes[o->in[2]].y;
    float *e = get(3 * o->c), *h = e + o->c, *u = h + o->c, n = (float)o->c, rstd, a = 0, b;
    float start = o->flag ? x[0] : 0, mean = 0;
    for (int again = 0; again < 2; again++) {
        for (int64_t j = 0; j < o->c; j++)
            e[j] = x[j] - start;
        mean = o->flag ? lanes(e, NULL, o->c) / n : 0;
        start += again ? 0 : mean;
    }
    for (int64_t j = 0; j < o->c; j++)
        e[j] -= mean;
    rstd = 1.0f / sqrtf(lanes(e, e, o->c) / n + (o->factor > 0 ? o->factor : 1e-5f));
    for (int64_t j = 0; j < o->c; j++) {
        h[j] = times(e[j], rstd);
        u[j] = in == 0 && gain ? rounded(g[j], gain[j]) : in == 0 ? g[j] : 0;
    }
    if (in == 0 && o->flag)
        a = lanes(u, NULL, o->c) / n;
    b = lanes(u, h, o->c) / n;
    for (int64_t j = 0; j < o->c; j++)
        if (in < 0)
            d[j] = gain && bias ? fmaf(h[j], gain[j], bias[j])
                   : gain       ? times(h[j], gain[j])
                   : bias       ? fmaf(e[j], rstd, bias[j])
                                : h[j];
        else if (in == 0)
            put_product(&d[j], rstd, fmaf(-h[j], b, u[j] - a), add);
        else
            sum_add(&d[j], in == 1 ? rounded(g[j], h[j]) : g[j]);
}

/* 5d: a row */
static void compute_softmax(const node *o, int in, const float *x, const float *y, const float *g,
                            float *d, int add)
{
    float max = 0, sum = 0, dot = in < 0 ? 0 : lanes(g, y, o->c);
    for (int64_t j = 0; j < o->c && in >= 0; j++)
        put_product(&d[j], y[j], g[j] - dot, add);
    if (in >= 0)
        return;
    memcpy(d, x, (size_t)o->c * sizeof *d);
    online(d, o->c, &max, &sum, 1);
    online_end(&max, &sum);
    for (int64_t j = 0; j < o->c; j++)
        d[j] /= sum;
}
static void compute_log_softmax(const node *o, int in, const float *x, const float *y,
                                const float *g, float *d, int add)
{
    float max = 0, sum = in < 0 ? 0 : lanes(g, NULL, o->c), *e = get(o->c);
    for (int64_t j = 0; j < o->c && in >= 0; j++)
        put(&d[j], fmaf(-gckpti_exp(y[j]), sum, g[j]), add);
    if (in >= 0)
        return;
    memcpy(e, x, (size_t)o->c * sizeof *e);
    online(e, o->c, &max, &sum, 1);
    online_end(&max, &sum);
    for (int64_t j = 0; j < o->c; j++)
        d[j] = (x[j] - max) - gckpti_log(sum);
}

/* 5h, 5l: head h of sequence b */
static void compute_head(const node *o, int in, float *d, int64_t b, int64_t h)
{
    const node *nq = &nodes[o->in[0]], *nk = &nodes[o->in[1]], *nv = &nodes[o->in[2]];
    int64_t c = o->c, size = c / o->heads, queries = o->s.d[1], keys = nk->s.d[1];
    const int64_t kc = nk->c, there = o->lengths ? nodes[o->lengths - 1].index[b] : keys;
    int64_t at = b * queries * c + h * size, first = b * keys * kc + h / (c / kc) * size;
    const int64_t most = (queries - 1) * c + size, of_keys = (keys - 1) * kc + size;
    const float *q = factors(nq->y + at, most), *g = factors(o->g + at, most);
    const float *k = factors(nk->y + first, of_keys), *v = factors(nv->y + first, of_keys);
    float *p = get(2 * queries * keys), *ds = p + queries * keys;
    const float scale = o->by > 0 ? o->by : 1.0f / sqrtf((float)size), cap = o->cap;
    for (int64_t t = 0; t < queries; t++, p += keys, ds += keys) {
        float *aux = o->aux + (b * o->heads + h) * queries + t, *to = d + at + t * c;
        float delta = in < 0 ? 0 : lanes(g + t * c, o->y + at + t * c, size), max = 0, sum = 0;
        const int64_t last = keys - (o->flag ? queries - 1 - t : 0), seen = last < there ? last : there;
        const int64_t begin = o->window && last > o->window ? last - o->window : 0, tile = begin / 64 * 64;
        for (int64_t j = tile; j < seen; j++)
            p[j] = j < begin ? -INFINITY
                             : capped(element(0, q + t * c, 1, k + j * kc, 1, 0, size, 0), scale, cap);
        for (int64_t j = tile; j < seen && in < 0; j += 64) {
            const int64_t n = seen - j < 64 ? seen - j : 64, skip = j < begin ? begin - j : 0;
            const float factor = online(p + j, n, &max, &sum, j == tile);
            round_all(p + j, n);
            for (int64_t i = 0; i < size; i++)
                to[i] = element(times(to[i], factor), p + j, 1, v + j * kc + i, kc, skip < n ? skip : n, n, 0);
        }
        online_end(&max, &sum);
        for (int64_t i = 0; i < size && in < 0; i++)
            to[i] = ended(to[i]) / sum;
        if (in < 0)
            *aux = max + gckpti_log(sum);
        for (int64_t j = begin; j < seen && in >= 0; j++) {
            const float inner = cap > 0 ? times(p[j], 1.0f / cap) : 0;
            p[j] = gckpti_exp(p[j] - *aux);
            ds[j] = element(0, g + t * c, 1, v + j * kc, 1, 0, size, 0) - delta;
            ds[j] = times(ds[j], fmaf(-inner, inner, 1.0f));
            ds[j] = times(times(p[j], ds[j]), scale);
        }
        round_all(p, keys), round_all(ds, keys);
        for (int64_t i = 0; i < size && in == 0 && there; i++)
            to[i] = ended(element(to[i], ds, 1, k + i, kc, begin < seen ? begin : seen, seen, 0));
    }
    p -= queries * keys, ds -= queries * keys;
    for (int64_t j = 0; j < there && in > 0; j++) {
        const int64_t before = j - (keys - queries), from = o->flag && before > 0 ? before : 0;
        const int64_t end = !o->window || before + o->window > queries ? queries : before + o->window;
        const int64_t first_tile = o->window ? (keys - queries + 1 - o->window) / 64 * 64 : 0;
        if (j < first_tile) /* no query's window has one of its tile: it stays what it is */
            continue;
        for (int64_t i = 0; i < size; i++) {
            float *to = d + first + j * kc + i;
            *to = ended(element(*to, (in == 1 ? ds : p) + j, keys, (in == 1 ? q : g) + i, c, from,
                                end < from ? from : end, 0));
        }
    }
}

/* 5i: a row of logits, capped or not; aux: maximum and log of the sum */
static void compute_cross_entropy(node *o, int in, const float *x, int32_t target, int64_t v,
                                  float *aux, float *d, int add)
{
    float sum = 0, chunk[1024];
    for (int64_t j = 0; in < 0 && target >= 0 && j < v; j += 1024) {
        int64_t n = v - j < 1024 ? v - j : 1024;
        memcpy(chunk, x + j, (size_t)n * sizeof *x);
        online(chunk, n, &aux[0], &sum, j == 0);
    }
    if (in < 0 && target >= 0) {
        online_end(&aux[0], &sum);
        aux[1] = gckpti_log(sum);
        o->sum += (double)(aux[1] - (x[target] - aux[0]));
        o->count++;
    }
    for (int64_t j = 0; in >= 0 && j < v; j++)
        if (target >= 0)
            put_product(&d[j],
                        times(gckpti_exp((x[j] - aux[0]) - aux[1]) - (j == target ? 1.0f : 0.0f),
                              o->cap > 0 ? fmaf(-times(x[j], 1.0f / o->cap), times(x[j], 1.0f / o->cap), 1.0f)
                                         : 1.0f),
                        o->scale, add);
        else if (!add)
            d[j] = 0;
}
static void compute_linear_cross_entropy(node *o, int in, float *d, int add)
{
    const node *x = &nodes[o->in[0]], *w = &nodes[o->in[1]];
    int64_t rows = x->n / x->c, v = w->s.d[0];
    matrix a = { x->y, x->c, 1 }, b = { w->y, x->c, 1 }, l = { get(rows * v), v, 1 };
    float *logits = get(rows * v), *dl = get(rows * v);
    product(logits, a, turned(b), rows, x->c, v, 0, NULL, 0);
    for (int64_t i = 0; i < rows * v && o->cap > 0; i++)
        logits[i] = capped(logits[i], 1, o->cap);
    l.x = dl;
    for (int64_t r = 0; r < rows; r++)
        compute_cross_entropy(o, in, logits + r * v, nodes[o->in[2]].index[r], v, o->aux + 2 * r,
                              dl + r * v, 0);
    if (in == 0)
        product(d, l, b, rows, v, x->c, add, NULL, 0);
    else if (in == 1)
        product(d, turned(l), a, v, rows, x->c, add, NULL, rows_of_entry(x));
}

/* 5d, 5e: sum of (x - y)^2, or of x: a float for each entry of axis 0, these in double */
static void compute_loss(node *o, int in, const node *x, const node *y, float *d, int add)
{
    int64_t size = x->n / x->s.d[0];
    float *e = get(x->n);
    for (int64_t i = 0; i < x->n; i++)
        e[i] = x->y[i] - (y ? y->y[i] : 0.0f);
    for (int64_t r = 0; r < x->s.d[0] && in < 0; r++)
        o->sum += (double)lanes(e + r * size, y ? e + r * size : NULL, size);
    for (int64_t i = 0; i < x->n && in >= 0; i++)
        y ? put_product(&d[i], in ? -2.0f * e[i] : 2.0f * e[i], o->scale, add)
          : put(&d[i], o->scale, add);
    o->count = x->n;
}

/* Losses with weights: that of piece i of n, 1 without; times it, but where it is 0 it itself. */
static float weight_of(const node *o, int64_t i, int64_t n)
{
    return o->in[2] < 0 ? 1.0f : nodes[o->in[2]].y[i / (n / nodes[o->in[2]].n)];
}
static float weighed(float w, float x) { return w == 0 ? w : times(w, x); }
/* The gradient of weights: sums by lanes of the n losses, each a b. */
static void send_weights(const node *o, const float *a, const float *b, int64_t n, float *d,
                         int add)
{
    int64_t weights = nodes[o->in[2]].n, share = n / weights;
    for (int64_t k = 0; k < weights; k++)
        put_product(&d[k], lanes(a + k * share, b ? b + k * share : NULL, share), o->scale, add);
}

/* 5i, with soft targets (flag) or smoothed by `factor` */
static void compute_entropy(node *o, int in, float *d, int add)
{
    const node *x = &nodes[o->in[0]], *targets = &nodes[o->in[1]];
    int64_t v = x->c, rows = x->n / v;
    float *loss = get(rows), *s = get(v), *t = get(v), other = o->factor / (float)v;
    for (int64_t r = 0; r < rows; r++) {
        float *aux = o->aux + 2 * r, w = weight_of(o, r, rows), mass = 1, p;
        int64_t hit = o->flag ? -1 : targets->index[r];
        if (hit < 0 && !o->flag) {
            if (in == 0 && !add)
                memset(d + r * v, 0, (size_t)v * sizeof *d);
            continue;
        }
        node one = { 0 };
        if (in < 0)
            compute_cross_entropy(&one, -1, x->y + r * v, 0, v, aux, NULL, 0);
        for (int64_t j = 0; j < v; j++) {
            t[j] = o->flag ? targets->y[r * v + j] : j == hit ? (1 - o->factor) + other : other;
            s[j] = o->flag && t[j] == 0 ? 0 : aux[1] - (x->y[r * v + j] - aux[0]);
        }
        if (o->flag)
            loss[r] = lanes(t, s, v), mass = lanes(t, NULL, v);
        else
            loss[r] = o->factor > 0 ? fmaf(other, lanes(s, NULL, v), rounded(1 - o->factor, s[hit]))
                                    : s[hit];
        if (in < 0)
            o->sum += (double)weighed(w, loss[r]), o->count++;
        for (int64_t j = 0; (in == 0 || in == 1) && j < v; j++) {
            p = gckpti_exp((x->y[r * v + j] - aux[0]) - aux[1]);
            if (w == 0)
                d[r * v + j] = add ? d[r * v + j] : 0;
            else
                put_product(&d[r * v + j],
                            in        ? aux[1] - (x->y[r * v + j] - aux[0])
                            : o->flag ? fmaf(p, mass, -t[j])
                                      : p - t[j],
                            times(w, o->scale), add);
        }
    }
    if (in == 2)
        send_weights(o, loss, NULL, rows, d, add);
}

/* Losses of elements, a b each; flag: 0 squared, 1 Huber's (delta: factor), 2 binary. */
static void compute_errors(node *o, int in, float *d, int add)
{
    const node *x = &nodes[o->in[0]], *y = &nodes[o->in[1]];
    int64_t size = x->n / x->s.d[0];
    float *a = get(x->n), *b = get(x->n);
    for (int64_t i = 0; i < x->n; i++) {
        float p = x->y[i], t = y->y[i], e = p - t, w = weight_of(o, i, x->n), u, slope = 2 * e;
        a[i] = o->flag ? 0.5f * e : e, b[i] = e;
        if (o->flag == 1)
            slope = e < -o->factor ? -o->factor : e > o->factor ? o->factor : e;
        if (o->flag == 1 && fabsf(e) >= o->factor)
            a[i] = o->factor, b[i] = fabsf(e) - o->factor / 2;
        if (o->flag == 2) {
            e = gckpti_exp(-fabsf(p)), u = 1 + e;
            u = u == 1 ? e : times(gckpti_log(u), e / (u - 1));
            a[i] = 1, b[i] = fmaf(-p, t, p > 0 ? p : 0) + u;
            slope = 1 / (1 + gckpti_exp(-p)) - t;
        }
        if (in == 0 || in == 1)
            put_product(&d[i],
                        weighed(w, in == 0        ? slope
                                   : o->flag == 2 ? -p
                                                  : -slope),
                        o->scale, add);
        if (in < 0 && w == 0)
            a[i] = b[i] = 0;
        else if (in < 0)
            a[i] = times(w, a[i]);
    }
    for (int64_t r = 0; r < x->s.d[0] && in < 0; r++)
        o->sum += (double)lanes(a + r * size, b + r * size, size);
    if (in == 2)
        send_weights(o, a, b, x->n, d, add);
    o->count = x->n;
}

/* 5d over the last axis, 5e over another one */
static void compute_reduce(const node *o, int in, const node *x, float *d, int add)
{
    int64_t size = x->s.d[o->heads], inner = 1;
    for (int i = o->heads + 1; i < x->s.n; i++)
        inner *= x->s.d[i];
    float divisor = o->flag ? (float)size : 1.0f;
    for (int64_t i = 0; i < o->n; i++) {
        int64_t at = i / inner * size * inner + i % inner;
        float sum = 0;
        for (int64_t j = 0; j < size; j++)
            if (in >= 0)
                put(&d[at + j * inner], o->g[i] / divisor, add);
            else
                sum += x->y[at + j * inner];
        if (in < 0)
            d[i] = (o->heads == x->s.n - 1 ? lanes(x->y + at, NULL, size) : sum) / divisor;
    }
}

/* flag elements of `factor` before those of axis 1, of x (rows,R,C) */
static void compute_pad(const node *o, int in, const node *x, float *d, int add)
{
    const int64_t more = o->flag * o->c, each = o->s.d[1] * o->c;
    for (int64_t i = 0; i < o->n; i++) {
        const int64_t from = i / each * (each - more) + i % each - more;
        if (in < 0)
            d[i] = i % each < more ? o->factor : x->y[from];
        else if (i % each >= more)
            put(&d[from], o->g[i], add);
    }
}
/* 5q: the first greatest of axis `heads` */
static void compute_greatest(node *o, int in, const node *x, float *d, int add)
{
    int64_t size = x->s.d[o->heads], inner = 1;
    for (int i = o->heads + 1; i < x->s.n; i++)
        inner *= x->s.d[i];
    for (int64_t i = 0; i < o->n; i++) {
        const int64_t at = i / inner * size * inner + i % inner;
        int64_t best = 0;
        for (int64_t j = 1; j < size; j++)
            best = x->y[at + j * inner] > x->y[at + best * inner] ? j : best;
        if (o->op == NUMBER)
            o->index[i] = (int32_t)best;
        else if (in < 0)
            d[i] = x->y[at + best * inner];
        for (int64_t j = 0; in >= 0 && j < size; j++)
            if (j == best)
                put(&d[at + j * inner], o->g[i], add);
            else if (!add)
                d[at + j * inner] = 0;
    }
}
/* 5q: how (flag) result i of n looks at `size`; the second place, from the first, is *part off */
static int64_t looks(int how, int64_t size, int64_t n, int64_t i, float *part)
{
    const float ratio = how == 2 && n > 1 ? (float)(size - 1) / (float)(n - 1) : (float)size / (float)n;
    volatile float p = ratio * (how == 1 ? (float)i + 0.5f : (float)i);
    if (how == 1)
        p = p - 0.5f;
    p = p < 0 ? 0 : p;
    const int64_t at = (int64_t)floorf(p) < size ? (int64_t)floorf(p) : size - 1;
    *part = how ? p - (float)at : 0;
    return at;
}
static void compute_upsample(const node *o, int in, const node *x, float *d, int add)
{
    const int64_t h = x->s.d[1], w = x->s.d[2], wide = o->s.d[2], c = o->c, lines = o->s.d[1];
    if (in >= 0 && !add)
        memset(d, 0, (size_t)x->n * sizeof *d);
    for (int64_t i = 0; i < o->n; i++) {
        float down, right, y = 0;
        const int64_t image = i / c / wide / lines * h;
        const int64_t row = looks(o->flag, h, lines, i / c / wide % lines, &down);
        const int64_t column = looks(o->flag, w, wide, i / c % wide, &right);
        for (int k = 0; k < 4; k++) {
            if ((k / 2 && down == 0) || (k % 2 && right == 0))
                continue;
            const int64_t line = image + (row + k / 2 < h ? row + k / 2 : h - 1);
            const int64_t at = (line * w + (column + k % 2 < w ? column + k % 2 : w - 1)) * c + i % c;
            const float weight = times(k / 2 ? down : 1 - down, k % 2 ? right : 1 - right);
            if (in >= 0)
                d[at] = fmaf(weight, o->g[i], d[at]);
            else
                y = o->flag ? fmaf(weight, x->y[at], y) : x->y[at];
        }
        if (in < 0)
            d[i] = y;
    }
}

static float gelu_tanh(float x)
{
    return gckpti_tanh(times(x, fmaf(times(x, x), 0.0356774081f, 0.797884561f)));
}
static float power(float x, float e)
{
    return e == 1 ? x : e == 2 ? times(x, x) : e == 3 ? times(times(x, x), x) : gckpti_pow(x, e);
}
static float curve(int op, float x, float factor)
{
    float h = times(0.5f, x);
    switch (op) {
    case RELU: return x < 0 ? 0.0f : x;
    case GELU: return fmaf(h, gelu_tanh(x), h);
    case GELU_ERF: return fmaf(h, gckpti_erf(times(0.707106781f, x)), h);
    case SILU: return x / (1.0f + gckpti_exp(-x));
    case TANH: return gckpti_tanh(x);
    case EXP: return gckpti_exp(x);
    case LOG: return gckpti_log(x);
    case SQRT: return sqrtf(x);
    case ABS: return fabsf(x);
    case RECIPROCAL: return 1.0f / x;
    case SOFTPLUS:
        h = gckpti_exp(-fabsf(x)), factor = 1 + h;
        h = factor == 1 ? h : times(gckpti_log(factor), h / (factor - 1));
        return (x > 0 ? x : 0) + h;
    case SIN: return gckpti_sin(x);
    case COS: return gckpti_cos(x);
    case POW: return power(x, factor);
    case LEAKY: return x > 0 ? x : times(factor, x);
    default: return 1.0f / (1.0f + gckpti_exp(-x));
    }
}
static float slope(int op, float x, float y, float factor)
{
    float t = gelu_tanh(x), h = times(0.5f, x), e = gckpti_erf(times(0.707106781f, x)),
          u = fmaf(times(x, x), times(3.0f, 0.0356774081f), 0.797884561f),
          s = 1.0f / (1.0f + gckpti_exp(-x));
    switch (op) {
    case GELU: return fmaf(times(h, fmaf(-t, t, 1.0f)), u, fmaf(0.5f, t, 0.5f));
    case GELU_ERF:
        return fmaf(times(0.398942280f, x), gckpti_exp(times(times(-0.5f, x), x)),
                    fmaf(0.5f, e, 0.5f));
    case SILU: return fmaf(times(x, s), 1.0f - s, s);
    case TANH: return fmaf(-y, y, 1.0f);
    case EXP: return y;
    case ABS: return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
    case RECIPROCAL: return times(-y, y);
    case SOFTPLUS: return gckpti_softplus_slope(y);
    case SIN: return gckpti_cos(x);
    case COS: return -gckpti_sin(x);
    case POW: return times(factor, power(x, factor - 1.0f));
    case LEAKY: return y > 0 ? 1.0f : factor;
    default: return fmaf(-y, y, y);
    }
}

/* The element of input `in` that meets element i of o: by index, by offset, or by broadcasting. */
static int64_t meets(const node *o, int in, int64_t i)
{
    const node *x = &nodes[o->in[in]];
    int64_t at = 0, size = 1;
    if (o->op == EMBED)
        return nodes[o->in[1]].index[i / o->c] * o->c + i % o->c;
    if (o->op == SLICE)
        return i / o->c * x->c + o->flag + i % o->c;
    for (int a = o->s.n - 1, b = x->s.n - 1; b >= 0; i /= o->s.d[a], a--, b--) {
        at += x->s.d[b] == 1 ? 0 : i % o->s.d[a] * size;
        size *= x->s.d[b];
    }
    return at;
}
/* rotary: base^(-1/n) by Newton's method, in binary64; a frequency's whole counts, modulo 2^64 */
static double ratio(float base, int64_t n)
{
    double r = (double)gckpti_pow(base, -1.0f / (float)n);
    for (int i = 0; i < 3; i++) {
        const double power = gckpti_powi(r, (uint64_t)n);
        r -= r * (power - 1.0 / (double)base) / ((double)n * power);
    }
    return r;
}
static uint64_t counts(double x) { return (uint64_t)fmod(x, 18446744073709551616.0); }
/* of rotary with a flag: so many columns of each head are turned by these, scaled */
static const float frequencies[3] = { 1.0f, 0.3f, 1e-7f };
/* the partner of element i, and what turns the pair; angles are counted in 2^-64 of a turn */
static int64_t turn(const node *o, int64_t i, float *sine, float *cosine)
{
    int64_t size = o->c / o->heads, half = (o->flag ? o->flag : size) / 2, at = i % size;
    double frequency = 2935890503282001226.0, next = o->flag ? 1 : ratio(o->factor, half);
    *sine = 0, *cosine = 1;
    if (at >= 2 * half) /* it passes */
        return i;
    for (int64_t j = 0; j < at % half; j++)
        frequency *= next;
    if (o->flag)
        frequency *= (double)frequencies[at % half];
    uint64_t p = counts(frequency) * (uint64_t)(i / o->c % o->s.d[1]);
    uint32_t quadrant = (uint32_t)((p + (UINT64_C(1) << 61)) >> 62);
    int64_t from = (int64_t)(p - ((uint64_t)quadrant << 62)), m = from < 0 ? -from : from;
    const float lower = times((float)(m >> 14 & 0xffffff), 5.5805896e-15f),
                h = fmaf((float)(m >> 38), 9.36267571e-08f, lower);
    const gckpti_angle angle = { quadrant, from < 0 ? -h : h, 0 };
    gckpti_sincos_of(angle, sine, cosine);
    if (o->flag)
        *sine = times(*sine, o->factor), *cosine = times(*cosine, o->factor);
    return at < half ? i + half : i - half;
}
/* What input `in` of a pair gets: of the quotient, all or half or none. */
static float share(const node *o, int in, float g, float own, float other)
{
    if (o->op == DIV)
        return in ? times(-g, other / own / own) : g / other;
    if (own == other)
        return 0.5f * g;
    return o->op == GREATER ? (own < other ? 0 : g) : own > other ? 0 : g;
}
/* 5e, 5f: an element at a time, in the order of the output */
static void compute_elements(const node *o, int in, float *d, int add)
{
    const node *x = &nodes[o->in[0]], *t = &nodes[o->in[in < 0 ? 0 : in]];
    const int repeated = in >= 0 && t->n != o->n; /* or a slice, or embedded */
    if (repeated && !add) {                       /* sums start at +0 */
        memset(d, 0, (size_t)t->n * sizeof *d);
        add = 1;
    }
    for (int64_t i = 0; i < o->n; i++) {
        int64_t to = in < 0 ? i : meets(o, in, i), pair;
        int two = o->op >= ADD && o->op <= LESS, peer = in == 1 ? 0 : 1;
        float v = in >= 0 ? o->g[i] : o->op == WHERE ? 0 : x->y[meets(o, 0, i)], s, c;
        float w = two ? nodes[o->in[peer]].y[meets(o, peer, i)] : 0;
        switch (o->op) {
        case ADD:
            w = in < 0 ? v + o->factor * w : in ? o->factor * v : v;
            repeated ? sum_add(&d[to], w) : put(&d[to], w, add);
            break;
        case MUL: repeated ? sum_add(&d[to], rounded(v, w)) : put_product(&d[to], v, w, add); break;
        case DIV:
        case GREATER:
        case LESS:
            if (in < 0)
                /* of equals the first: fmaxf may choose either zero */
                d[to] = o->op == DIV ? v / w : o->op == GREATER ? (v < w ? w : v) : w < v ? w : v;
            else if (repeated)
                sum_add(&d[to], rounded(1, share(o, in, v, t->y[to], w)));
            else if (o->op == DIV && in)
                put_product(&d[to], -v, w / t->y[to] / t->y[to], add);
            else
                put(&d[to], share(o, in, v, t->y[to], w), add);
            break;
        case CLAMP:
            s = fminf(fmaxf(x->y[i], -o->factor), o->factor);
            put(&d[to], in < 0 ? s : fabsf(x->y[i]) < o->factor ? v : 0.0f, add);
            break;
        case WHERE: /* by f32 or i32 */
            pair = meets(o, 0, i);
            pair = (x->index ? x->index[pair] != 0 : x->y[pair] != 0) ? 1 : 2;
            w = in == pair ? v : 0;
            if (in < 0)
                d[i] = nodes[o->in[pair]].y[meets(o, (int)pair, i)];
            else
                repeated ? sum_add(&d[to], w) : put(&d[to], w, add);
            break;
        case SCALE: put_product(&d[to], o->factor, v, add); break;
        case FROM_U8: d[to] = fmaf(v, o->factor, o->by); break;
        case DROPOUT:
            w = 1.0f / (1.0f - o->factor);
            kept(o, i) ? put_product(&d[to], w, v, add) : put(&d[to], 0.0f, add);
            break;
        case ROTARY:
            pair = turn(o, i, &s, &c);
            w = times(in < 0 ? x->y[pair] : o->g[pair], in < 0 ? s : -s);
            put(&d[to], pair == i ? v : fmaf(v, c, pair > i ? -w : w), add);
            break;
        case EMBED:
        case DETACH:
        case SLICE: put(&d[to], v, add); break;
        default: /* curves */
            if (in < 0)
                d[to] = curve(o->op, v, o->factor);
            else if (o->op == LOG || o->op == SQRT)
                put(&d[to], v / (o->op == LOG ? x->y[i] : 2 * o->y[i]), add);
            else if (o->op == RELU)
                put(&d[to], o->y[i] > 0 ? v : 0.0f, add);
            else
                put_product(&d[to], v, slope(o->op, x->y[i], o->y[i], o->factor), add);
        }
    }
}

static void compute(node *o, int in, float *d, int add)
{
    const node *x = &nodes[o->in[0]];
    int64_t rows = o->op == CE ? x->n / x->c : o->n / o->c, c = o->op == CE ? x->c : o->c;
    const size_t keep = used;
    low = get(in < 0 ? 0 : nodes[o->in[in]].n), summed = d, mixed = narrow && !o->once;
    if (o->op == PRODUCT)
        compute_product(o, in, d, add);
    else if (o->op == ATTENTION) {
        if (in >= 0 && !add)
            memset(d, 0, (size_t)nodes[o->in[in]].n * sizeof *d);
        for (int64_t i = 0; i < o->s.d[0] * o->heads; i++)
            compute_head(o, in, d, i / o->heads, i % o->heads);
    } else if (o->op == LINEAR_CE)
        compute_linear_cross_entropy(o, in, d, add);
    else if (o->op == LOSS)
        compute_loss(o, in, x, o->in[1] < 0 ? NULL : &nodes[o->in[1]], d, add);
    else if (o->op == ENTROPY)
        compute_entropy(o, in, d, add);
    else if (o->op == ERRORS)
        compute_errors(o, in, d, add);
    else if (o->op == REDUCE)
        compute_reduce(o, in, x, d, add);
    else if (o->op == PAD)
        compute_pad(o, in, x, d, add);
    else if (o->op == GREATEST || o->op == NUMBER)
        compute_greatest(o, in, x, d, add);
    else if (o->op == UPSAMPLE)
        compute_upsample(o, in, x, d, add);
    else if (o->op >= EMBED)
        compute_elements(o, in, d, add);
    else
        for (int64_t r = 0, at = 0; r < rows; r++, at += c)
            if (o->op == NORM)
                compute_norm(o, in, x->y + at, o->g + at, in > 0 ? d : d + at, add);
            else if (o->op == SOFTMAX)
                compute_softmax(o, in, x->y + at, o->y + at, o->g + at, d + at, add);
            else if (o->op == LOG_SOFTMAX)
                compute_log_softmax(o, in, x->y + at, o->y + at, o->g + at, d + at, add);
            else
                compute_cross_entropy(o, in, x->y + at, nodes[o->in[1]].index[r], c, o->aux + 2 * r,
                                      d + at, add);
    used = keep;
}

/* 5f: where contributions go, and in which order they come. */
static void send(node *o)
{
    for (int in = 0, apart; in < 3; in++) {
        node *t = o->in[in] < 0 ? NULL : &nodes[nodes[o->in[in]].base];
        if (!t || t->op == INPUT || t->op == NUMBER || o->op == DETACH || o->op == FROM_U8 || o->op == NUMBER ||
            (o->op == WHERE && in == 0))
            continue;
        if (t->once) {
            t->by_batch[t->uses] = !o->once;
            compute(o, in, t->use[t->uses++] = get(t->n), 1);
            continue;
        }
        apart = (in > 0 && &nodes[nodes[o->in[0]].base] == t) ||
                (in > 1 && &nodes[nodes[o->in[1]].base] == t);
        float *d = apart ? get(t->n) : t->g;
        compute(o, in, d, !apart && t->have);
        for (int64_t i = 0; apart && i < t->n; i++)
            t->g[i] += d[i];
        round_all(t->g, t->n);
        t->have = 1;
    }
}
static void add_uses(node *t, int by_batch)
{
    for (int u = 0; u < t->uses; u++)
        if (t->by_batch[u] == by_batch) {
            for (int64_t i = 0; i < t->n; i++)
                put(&t->g[i], t->use[u][i], t->have);
            t->have = 1;
        }
}

/* 5g: division, square sum, update number t */
static double divide(node *w, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < w->n; i++)
        w->g[i] /= (float)n;
    for (int64_t i = 0; i < w->n; i += 4096)
        sum += (double)lanes(w->g + i, w->g + i, w->n - i < 4096 ? w->n - i : 4096);
    return sum;
}
static void update(node *w, gckpt_optimiser how, const gckpt_hyper *h, float clip, int t)
{
    const double beta1 = (double)0.9f, beta2 = (double)0.999f;
    volatile double power1 = beta1, power2 = beta2; /* as by squaring, up to the third power */
    for (int i = 1; i < t; i++)
        power1 *= beta1, power2 *= beta2;
    float rest1 = (float)(1 - beta1), rest2 = (float)(1 - beta2);
    float rate = (float)((double)h->lr / (1 - power1)), correct = (float)(1 / (1 - power2));
    float decay = w->s.n < 2 ? 0.0f : times(h->lr, h->weight_decay);
    for (int64_t i = 0; i < w->n; i++) {
        float g = times(w->g[i], clip), decayed = fmaf(-decay, w->y[i], w->y[i]);
        if (how == GCKPT_ADAMW) {
            w->m[i] = fmaf(0.9f, w->m[i], times(rest1, g));
            w->v[i] = fmaf(0.999f, w->v[i], times(rest2, times(g, g)));
            w->y[i] = fmaf(-rate, w->m[i] / (sqrtf(times(w->v[i], correct)) + 1e-8f), decayed);
        } else {
            w->m[i] = how == GCKPT_MOMENTUM ? fmaf(0.9f, w->m[i], g) : g;
            w->y[i] = fmaf(-h->lr, w->m[i], decayed);
        }
    }
}

/* 5e: rows of leaf j; all nodes show these, or (-1) the whole batch */
static void show(const node *whole, int j)
{
    first_row = 0, rows_shown = 0;
    for (int r = 0; r < batch; r++) {
        int in = j < 0 || (int64_t)r * leaves / planned == j;
        first_row = in && rows_shown == 0 ? r : first_row;
        rows_shown += in;
    }
    for (int i = 0; i < count; i++) {
        node *o = &nodes[i];
        const node *w = &whole[i];
        if (o->once)
            continue;
        int64_t row = w->n / batch, before = first_row * row;
        int64_t pairs = w->op > VIEW ? 2 * whole[w->in[0]].n / batch : 0;
        o->n = rows_shown * row, o->s.d[0] = w->s.d[0] / batch * rows_shown;
        o->y = w->y ? w->y + before : NULL, o->g = w->g + before;
        o->index = w->index ? w->index + before : NULL;
        o->aux = w->aux ? w->aux + first_row * pairs : NULL;
    }
}
/* 5e: the tree over leaves from .. from + n - 1, of element i, or (i < 0) of a loss's sums */
static double tree(const node *t, int64_t i, int from, int n)
{
    if (n == 1)
        return i < 0 ? t->leaf_sum[from] : (double)t->leaf[from][i];
    double a = tree(t, i, from, n / 2), b = tree(t, i, from + n / 2, n / 2);
    volatile float sum = (float)a + (float)b;
    return i < 0 ? a + b : (double)sum;
}
/* The backward of a leaf, which all of them end in: uses by what depends on the batch, added up. */
static void send_leaf(int j)
{
    for (int i = count; i-- > 0;) {
        node *o = &nodes[i];
        if (!o->once && rows_shown > 0) {
            for (int l = 0; l < term_count; l++)
                o->have |= term_node[l] == i;
            if (o->have && o->op > VIEW)
                send(o);
        }
    }
    for (int i = 0; i < count; i++) {
        node *t = &nodes[i];
        if (t->once) {
            t->g = t->leaf[j] = get(t->n);
            add_uses(t, 1);
            t->by_batch[0] = t->by_batch[0] || t->uses; /* has such uses at all */
        }
        t->uses = 0;
        t->have = t->once && (t->have || t->by_batch[0]);
    }
}

/* 5e, 5f, 5g: one step over the whole batch (manual, 3). */
static void take_step(gckpt_optimiser how, const gckpt_hyper *h, gckpt_report *report)
{
    static node whole[MOST];
    double squares = 0, weight;
    memset(report, 0, sizeof *report);
    for (int i = 0; i < count; i++) {
        node *o = &nodes[i];
        o->uses = o->have = o->by_batch[0] = 0, o->sum = 0, o->count = 0;
        o->g = get(o->n);
        if (o->op == VIEW)
            o->y = nodes[o->in[0]].y;
        if (o->op <= VIEW)
            continue;
        o->aux = get(2 * nodes[o->in[0]].n);
        o->y = get(o->n);
        if (o->once)
            compute(o, -1, o->y, 0);
    }
    memcpy(whole, nodes, sizeof whole);
    int64_t total[MOST] = { 0 };
    for (int j = 0; j < leaves; j++) {
        show(whole, j);
        for (int i = 0; i < count; i++) {
            node *o = &nodes[i];
            o->leaf_sum[j] = 0;
            if (o->once || o->op <= VIEW || rows_shown == 0)
                continue;
            o->sum = 0, o->count = 0;
            compute(o, -1, o->y, 0);
            round_all(o->y, o->n);
            o->leaf_sum[j] = o->sum, total[i] += o->count;
        }
    }
    for (int i = 0; i < term_count; i++) {
        node *l = &nodes[term_node[i]];
        if (!l->once)
            l->sum = tree(l, -1, 0, leaves), l->count = total[term_node[i]];
    }
    int64_t n = report->count = nodes[term_node[0]].count;
    for (int i = 0; i < term_count; i++) {
        node *l = &nodes[term_node[i]];
        weight = (double)terms[i].weight;
        l->scale = (float)(i == 0 ? weight : weight * (double)n / (l->once ? 1 : (double)l->count));
        volatile double part = weight * (l->sum / (l->once ? 1 : (double)l->count));
        report->loss += part;
    }
    for (int j = 0; j < leaves; j++) {
        show(whole, j);
        send_leaf(j);
    }
    show(whole, -1);
    for (int i = 0; i < count; i++) {
        node *t = &nodes[i];
        t->have = t->once && t->have;
        t->g = t->once ? get(t->n) : t->g;
        for (int64_t k = 0; k < t->n && t->have; k++)
            t->g[k] = (float)tree(t, k, 0, leaves);
    }
    for (int i = count; i-- > 0;) {
        node *o = &nodes[i];
        for (int l = 0; l < term_count; l++)
            o->have |= o->once && term_node[l] == i;
        add_uses(o, 0);
        if (o->once && o->have && o->op > VIEW)
            send(o);
    }
    for (int i = 0; i < count; i++)
        squares += nodes[i].op == PARAM ? divide(&nodes[i], n) : 0;
    report->grad_norm = sqrt(squares);
    float clip = h->clip > 0 && report->grad_norm > (double)h->clip
                     ? (float)((double)h->clip / report->grad_norm)
                     : 1;
    report->step = (uint64_t)++step;
    for (int i = 0; i < count; i++)
        if (nodes[i].op == PARAM)
            update(&nodes[i], how, h, clip, step);
}

/* ---- the network, here and in the library ---- */
static int note(int op, gckpt_tensor *t, int a, int b, int c)
{
    node *k = &nodes[count];
    if (!CHECK_MSG(t != NULL, "node %d: %s", count, gckpt_error_text(graph)) || count == MOST - 1)
        exit(check_report("test_contract"));
    *k = (node){ 0 };
    k->op = op, k->t = t, k->in[0] = a, k->in[1] = b, k->in[2] = c;
    k->base = op == VIEW ? nodes[a].base : count;
    k->once = op != INPUT, k->trained = op == PARAM;
    for (int i = 0; i < 3; i++)
        if (k->in[i] >= 0)
            k->once &= nodes[k->in[i]].once, k->trained |= op != DETACH && op != NUMBER && (op != WHERE || i) && nodes[k->in[i]].trained;
    k->s = gckpt_shape_of(t);
    if (!k->once)
        k->s.d[0] = k->s.d[0] / batch_rows * batch;
    k->n = 1, k->c = k->s.n ? k->s.d[k->s.n - 1] : 1;
    for (int i = 0; i < k->s.n; i++)
        k->n *= k->s.d[i];
    return count++;
}
static int with(int i, int flag, int heads, float factor)
{
    nodes[i].flag = flag, nodes[i].heads = heads, nodes[i].factor = factor;
    return i;
}
static gckpt_tensor *T(int i) { return i < 0 ? NULL : nodes[i].t; }

static uint64_t state;
static unsigned below(unsigned n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % n;
}
static int input(const char *name, gckpt_shape s) /* within +-1, with zeros of either sign */
{
    node *k = &nodes[note(INPUT, gckpt_input(graph, name, GCKPT_F32, s), -1, -1, -1)];
    k->y = get(k->n);
    for (int64_t j = 0; j < k->n; j++) {
        unsigned r = below(1 << 24);
        k->y[j] = r % 23 == 0 ? 0.0f : r % 29 == 0 ? -0.0f : (float)r / 8388608.0f - 1.0f;
    }
    return count - 1;
}
static int indices(const char *name, gckpt_shape s, unsigned limit, int ignored)
{
    node *k = &nodes[note(INPUT, gckpt_input(graph, name, GCKPT_I32, s), -1, -1, -1)];
    k->index = (int32_t *)calloc((size_t)k->n, sizeof(int32_t));
    for (int64_t j = 0; j < k->n; j++)
        k->index[j] = ignored && below(4) == 0 ? -1 : (int32_t)below(limit);
    return count - 1;
}
/* what is made of bytes, all of them */
static int from_u8(const char *name, gckpt_shape s, float scale, float shift)
{
    const int x = note(INPUT, gckpt_input(graph, name, GCKPT_U8, s), -1, -1, -1);
    node *k = &nodes[x];
    k->y = get(k->n), k->bytes = (unsigned char *)malloc((size_t)k->n);
    for (int64_t j = 0; j < k->n; j++)
        k->y[j] = k->bytes[j] = (unsigned char)(j < 256 ? (unsigned)j : below(256));
    const int y = note(FROM_U8, gckpt_from_u8(T(x), scale, shift), x, -1, -1);
    nodes[y].factor = scale, nodes[y].by = shift;
    return y;
}
static int param(const char *name, gckpt_shape s, float normal, float range, float constant)
{
    gckpt_init init = { normal, range, constant };
    node *k = &nodes[note(PARAM, gckpt_param(graph, name, s, init), -1, -1, -1)];
    k->y = get(k->n), k->m = get(k->n), k->v = get(k->n);
    initial(k->y, k->n, name, init);
    return count - 1;
}
static int linear(int x, int w, int b, int transposed)
{
    gckpt_tensor *(*op)(gckpt_tensor *, gckpt_tensor *, gckpt_tensor *) =
        transposed ? gckpt_linear_transposed : gckpt_linear;
    return with(note(PRODUCT, op(T(x), T(w), T(b)), x, w, b), transposed, 0, 0);
}
static int matmul(int a, int b, int transposed)
{
    gckpt_tensor *(*op)(gckpt_tensor *, gckpt_tensor *) =
        transposed ? gckpt_matmul_transposed : gckpt_matmul;
    return with(note(PRODUCT, op(T(a), T(b)), a, b, -1), transposed, 0, 0);
}
static int layernorm(int x, int g, int b)
{
    return with(note(NORM, gckpt_layernorm(T(x), T(g), T(b)), x, g, b), 1, 0, 0);
}
static int rmsnorm(int x, int g) { return note(NORM, gckpt_rmsnorm(T(x), T(g)), x, g, -1); }
static int attention(int q, int k, int v, int heads, int causal)
{
    gckpt_tensor *t = gckpt_attention(T(q), T(k), T(v), heads, causal);
    return with(note(ATTENTION, t, q, k, v), causal, heads, 0);
}
static int attention_with(int q, int k, int v, int heads, int key_heads, int causal, int lengths)
{
    const gckpt_attention_desc desc = { heads, key_heads, causal, T(lengths), 0, 0, 0 };
    const int i = note(ATTENTION, gckpt_attention_with(T(q), T(k), T(v), &desc), q, k, v);
    nodes[i].lengths = lengths + 1;
    return with(i, causal, heads, 0);
}
/* The same with a window, a cap and a scale. */
static int attention_more(int q, int k, int v, int heads, int lengths, int window, float cap, float by)
{
    const gckpt_attention_desc desc = { heads, 0, window > 0, T(lengths), window, cap, by };
    const int i = note(ATTENTION, gckpt_attention_with(T(q), T(k), T(v), &desc), q, k, v);
    nodes[i].lengths = lengths + 1, nodes[i].window = window, nodes[i].cap = cap, nodes[i].by = by;
    return with(i, window > 0, heads, 0);
}
static int add(int a, int b) { return with(note(ADD, gckpt_add(T(a), T(b)), a, b, -1), 0, 0, 1); }
static int sub(int a, int b) { return with(note(ADD, gckpt_sub(T(a), T(b)), a, b, -1), 0, 0, -1); }
static int mul(int a, int b) { return note(MUL, gckpt_mul(T(a), T(b)), a, b, -1); }
static int pair(int op, int a, int b)
{
    gckpt_tensor *(*const pairs[])(gckpt_tensor *, gckpt_tensor *) = { gckpt_div, gckpt_maximum,
                                                                       gckpt_minimum };
    return note(op, pairs[op - DIV](T(a), T(b)), a, b, -1);
}
static int power_of(int x, float e)
{
    return with(note(POW, gckpt_pow(T(x), e), x, -1, -1), 0, 0, e);
}
static int apply(int op, int x) /* a curve or softmax */
{
    gckpt_tensor *(*const curves[])(gckpt_tensor *) = { gckpt_relu, gckpt_gelu,      gckpt_gelu_erf,
                                                        gckpt_silu, gckpt_tanh,      gckpt_sigmoid,
                                                        gckpt_exp,  gckpt_log,       gckpt_sqrt,
                                                        gckpt_abs,  gckpt_reciprocal, gckpt_softplus,
                                                        gckpt_sin,  gckpt_cos };
    return note(op,
                op == SOFTMAX       ? gckpt_softmax(T(x))
                : op == LOG_SOFTMAX ? gckpt_log_softmax(T(x))
                                    : curves[op - RELU](T(x)),
                x, -1, -1);
}
static int where(int condition, int a, int b)
{
    return note(WHERE, gckpt_where(T(condition), T(a), T(b)), condition, a, b);
}
static int slice(int x, int from, int to) /* of the last axis */
{
    return with(note(SLICE, gckpt_slice(T(x), -1, from, to), x, -1, -1), from, 0, 0);
}
static int reduce(int x, int axis, int mean)
{
    gckpt_tensor *t = (mean ? gckpt_mean : gckpt_sum)(T(x), axis);
    return with(note(REDUCE, t, x, -1, -1), mean, axis, 0);
}
static int squares(int x, int y)
{
    return note(LOSS, gckpt_mean_squared_error(T(x), T(y)), x, y, -1);
}
static int sum_loss(int x) { return note(LOSS, gckpt_sum_loss(T(x)), x, -1, -1); }
static int entropy(int x, int targets, int w, int soft, float smoothing)
{
    gckpt_tensor *t = soft ? gckpt_soft_cross_entropy(T(x), T(targets), T(w))
                           : gckpt_cross_entropy_with(T(x), T(targets), T(w), smoothing);
    return with(note(ENTROPY, t, x, targets, w), soft, 0, smoothing);
}
static int errors(int x, int y, int w, int kind, float delta)
{
    gckpt_tensor *t = kind == 0   ? gckpt_mean_squared_error_with(T(x), T(y), T(w))
                      : kind == 1 ? gckpt_huber(T(x), T(y), T(w), delta)
                                  : gckpt_binary_cross_entropy(T(x), T(y), T(w));
    return with(note(ERRORS, t, x, y, w), kind, 0, delta);
}
static void minimise(int i, float weight)
{
    terms[term_count] = (gckpt_term){ T(i), weight, nodes[i].once };
    term_node[term_count++] = i;
}

/* products both ways, norms, repeated inputs, a bias and a gain used twice, dropout, 4 losses */
static void mlp(void)
{
    int x = input("x", gckpt_shape2(batch_rows, 37)), y = input("y", gckpt_shape2(batch_rows, 70));
    int w = param("w", gckpt_shape2(37, 70), 0.3f, 0, 0);
    int wide = param("wide", gckpt_shape2(70, 70), 0.1f, 0, 0); /* more than a block of the norm */
    int b = param("b", gckpt_shape1(70), 0, 0.5f, 0.25f);
    int gain = param("gain", gckpt_shape1(70), 0.1f, 0.1f, 1);
    int in = apply(GELU, layernorm(linear(x, w, b, 0), gain, b)), zeros = apply(RELU, y);
    int h = with(note(DROPOUT, gckpt_dropout(T(in), 0.3f), in, -1, -1), 0, 0, 0.3f);
    h = add(h, linear(h, wide, b, 1));
    h = add(h, h);
    h = sub(apply(GELU_ERF, rmsnorm(h, gain)), mul(h, h));
    h = with(note(NORM, gckpt_rmsnorm_eps(T(h), T(gain), 0.3f), h, gain, -1), 0, 0, 0.3f);
    h = linear(mul(apply(SILU, h), gain), wide, -1, 0);
    h = sub(layernorm(h, -1, b), layernorm(h, gain, -1));
    x = layernorm(h, -1, -1);
    x = with(note(SCALE, gckpt_scale(T(x), -0.7f), x, -1, -1), 0, 0, -0.7f);
    h = add(rmsnorm(h, -1), apply(RELU, x));
    minimise(squares(h, y), 1);
    minimise(sum_loss(mul(apply(TANH, h), apply(SIGMOID, h))), 0.3f);
    minimise(sum_loss(mul(wide, wide)), 0.01f);
    /* gradients of -0, to which dropout and relu add +0 */
    minimise(sum_loss(add(mul(in, zeros), mul(x, zeros))), -0.1f);
}
/* more keys than a tile, more classes than a chunk, a tied embedding */
static void gpt(void)
{
    enum { LONG = 70, C = 12, V = 1030 };
    int tokens = indices("tokens", gckpt_shape2(batch_rows, LONG), V, 0);
    int targets = indices("targets", gckpt_shape2(batch_rows, LONG), V, 1);
    int w = param("w", gckpt_shape2(V, C), 0.7f, 0, 0), gain = param("g", gckpt_shape1(C), 0, 0, 1);
    int p = param("p", gckpt_shape2(LONG + 3, C), 0.3f, 0, 0);
    int qkv = param("qkv", gckpt_shape2(C, 3 * C), 0.9f, 0, 0);
    int h = note(EMBED, gckpt_embed(T(w), T(tokens)), w, tokens, -1);
    h = with(note(ADD, gckpt_positions(T(h), T(p)), h, p, -1), 0, 0, 1);
    int a = linear(rmsnorm(h, gain), qkv, -1, 0);
    int q = slice(a, 0, C), k = slice(a, C, 2 * C);
    q = with(note(ROTARY, gckpt_rotary(T(q), 2, 10000.0f), q, -1, -1), 0, 2, 10000.0f);
    k = with(note(ROTARY, gckpt_rotary(T(k), 1, 0.01f), k, -1, -1), 0, 1, 0.01f);
    const gckpt_rotary_desc some = { 2, 0, 0, 4, frequencies, 1.1f };
    k = with(note(ROTARY, gckpt_rotary_with(T(k), &some), k, -1, -1), 4, 2, 1.1f);
    h = add(h, attention(q, k, slice(a, 2 * C, 3 * C), 2, 1));
    gckpt_tensor *loss = gckpt_linear_cross_entropy(T(h), T(w), T(targets));
    minimise(note(LINEAR_CE, loss, h, w, targets), 1);
}
/* more keys, causal or not, which are the values, too; matmul, softmax, mean */
static void attend(void)
{
    enum { Q = 5, S = 1090, C = 8, V = 2050 };
    int x = input("x", gckpt_shape3(batch_rows, Q, C)),
        z = input("z", gckpt_shape3(batch_rows, S, C));
    int targets = indices("targets", gckpt_shape2(batch_rows, Q), V, 1);
    int w = param("w", gckpt_shape2(C, C), 1, 0, 0),
        top = param("top", gckpt_shape2(C, V), 1, 0, 0);
    int q = linear(x, w, -1, 0), k = linear(z, w, -1, 1);
    int h = add(add(attention(q, k, k, 1, 0), attention(q, k, k, 2, 1)),
                matmul(apply(SOFTMAX, matmul(q, k, 1)), k, 0));
    h = linear(add(h, matmul(h, apply(TANH, w), 0)), top, -1, 0);
    minimise(note(CE, gckpt_cross_entropy(T(h), T(targets)), h, targets, -1), 1);
    minimise(squares(reduce(k, 1, 1), reduce(z, 1, 0)), 0.5f);
    x = slice(apply(RELU, x), 0, 1); /* logits' gradients of -0 from here, before those above */
    minimise(sum_loss(mul(h, x)), -0.25f);
}
/* heads that share keys, which are the values, too, or what other heads read apart; lengths */
static void shared(void)
{
    enum { LONG = 70, S = 75, C = 12, K = 6 };
    int x = input("x", gckpt_shape3(batch_rows, LONG, C)),
        z = input("z", gckpt_shape3(batch_rows, S, C));
    int lengths = indices("lengths", gckpt_shape1(batch_rows), S + 1, 0);
    for (int64_t i = 0; i < nodes[lengths].n; i++) /* none, all, a tile, some, one */
        nodes[lengths].index[i] = (int32_t[]){ 0, S, 64, 37, 1 }[i % 5];
    int w = param("w", gckpt_shape2(C, C), 1, 0, 0), u = param("u", gckpt_shape2(C, K), 1, 0, 0);
    int few = param("few", gckpt_shape2(2, C), 1, 0, 0);
    int q = linear(x, w, -1, 0), k = linear(z, u, -1, 0), v = apply(TANH, k);
    int h = add(attention_with(q, k, v, 4, 2, 0, -1), attention_with(q, k, k, 6, 3, 1, lengths));
    h = add(h, attention_with(h, v, k, 2, 1, 0, lengths));
    h = add(h, attention_with(q, q, h, 3, 0, 1, -1));
    h = add(h, attention_more(h, q, q, 2, -1, 9, 1.5f, 0));
    h = add(h, add(attention_more(q, h, q, 3, -1, 66, 0, 0.25f), attention_more(q, q, h, 1, -1, 0, 2, 0.5f)));
    minimise(squares(h, x), 1);
    h = linear(h, few, -1, 1);
    minimise(sum_loss(mul(h, h)), 0.1f);
    minimise(sum_loss(mul(k, v)), -0.01f);
}
/* repetition on every side; functions of parameters, used often */
static void broadcast(void)
{
    enum { R = 6, C = 33 };
    int x = input("x", gckpt_shape3(batch_rows, R, C)),
        y = input("y", gckpt_shape3(batch_rows, 1, C));
    int w = param("w", gckpt_shape2(R, C), 1, 0, 0), c = param("c", gckpt_shape2(R, 1), 1, 0, 0);
    int u = param("u", gckpt_shape2(C, R), 0, 1, 0);
    int once = mul(add(w, c), w), twice = apply(RELU, add(once, once));
    int h = mul(add(add(x, c), once), y), m = mul(once, h);
    h = sub(apply(RELU, add(mul(h, twice), m)), c);
    m = add(matmul(h, u, 0), matmul(once, u, 0));
    y = reduce(h, 1, 0);
    y = note(VIEW, gckpt_reshape(T(y), gckpt_shape3(batch_rows, 1, C)), y, -1, -1);
    minimise(sum_loss(mul(reduce(m, 2, 1), reduce(mul(y, h), 2, 0))), 1);
    minimise(sum_loss(mul(twice, once)), -0.5f);
}
/* what losses are written with: kinks and ties, repetition, whole and other exponents, detached */
static void criterion(void)
{
    enum { R = 3, C = 37 };
    int x = input("x", gckpt_shape3(batch_rows, R, C)),
        z = input("z", gckpt_shape3(batch_rows, R, 1));
    int w = param("w", gckpt_shape2(C, C), 0.3f, 0, 0), b = param("b", gckpt_shape1(C), 0.1f, 0, 2);
    int v = param("v", gckpt_shape2(R, 1), 0.1f, 0, -3);
    int h = linear(x, w, -1, 0), p = apply(SIGMOID, h), zeros = apply(RELU, x), m, r, u;
    u = sub(apply(LOG, p), mul(apply(SQRT, p), apply(RECIPROCAL, p)));
    u = add(u,
            add(power_of(h, 2), add(power_of(h, 3), add(power_of(p, 2.5f), power_of(p, -0.5f)))));
    m = pair(GREATER, apply(RELU, h), zeros); /* ties at 0 */
    m = add(pair(LESS, m, b),
            with(note(CLAMP, gckpt_clamp(T(h), -0.5f, 0.5f), h, -1, -1), 0, 0, 0.5f));
    m = sub(m, pair(LESS, z, pair(GREATER, h, h)));
    r = pair(DIV, u, add(apply(ABS, h), b));
    r = add(pair(DIV, r, v), pair(DIV, b, apply(EXP, m)));
    r = add(r, mul(power_of(m, 1), from_u8("bytes", gckpt_shape3(batch_rows, R, C), 0.0123f, -1.5f)));
    minimise(sum_loss(mul(apply(LOG_SOFTMAX, r), x)), -1);
    m = apply(RELU, note(DETACH, gckpt_detach(T(r)), r, -1, -1));
    minimise(sum_loss(mul(mul(m, h), p)), 0.5f);
    minimise(sum_loss(apply(ABS, w)), 0.01f);
}
/* what is chosen, by what is fed, computed or has no rows; waves near and far */
static void choices(void)
{
    enum { R = 3, C = 37 };
    int x = input("x", gckpt_shape3(batch_rows, R, C)), one = indices("one", gckpt_shape3(batch_rows, R, 1), 2, 0);
    int w = param("w", gckpt_shape2(C, C), 0.3f, 0, 0), b = param("b", gckpt_shape1(C), 0.1f, 0, 2);
    int v = param("v", gckpt_shape2(R, 1), 0.1f, 0, -3);
    int h = linear(x, w, -1, 0), r = apply(RELU, w), y, z;
    y = where(one, h, b), z = where(apply(RELU, x), v, where(one, y, h));
    y = add(apply(SIN, y), mul(apply(COS, mul(z, mul(b, add(mul(b, b), b)))), apply(SOFTPLUS, mul(h, b))));
    y = sub(y, with(note(LEAKY, gckpt_leaky_relu(T(z), 0.125f), z, -1, -1), 0, 0, 0.125f));
    minimise(sum_loss(mul(y, where(x, b, v))), 0.5f);
    minimise(sum_loss(where(r, apply(SOFTPLUS, w), mul(b, r))), 0.01f);
}
/* losses with weights for some axes, which have gradients, and are 0 here and there */
static void losses(void)
{
    enum { R = 37, C = 5, V = 1030 };
    int x = input("x", gckpt_shape3(batch_rows, R, C)),
        soft = input("soft", gckpt_shape3(batch_rows, R, V));
    int targets = indices("targets", gckpt_shape2(batch_rows, R), V, 1);
    int w = param("w", gckpt_shape2(C, V), 0.5f, 0, 0), u = param("u", gckpt_shape2(C, C), 1, 0, 0);
    int rows = input("rows", gckpt_shape2(batch_rows, R)),
        gain = param("gain", gckpt_shape1(1), 1, 0, 0);
    int h = linear(x, w, -1, 0), some = mul(rows, gain), few = reduce(some, 1, 1);
    minimise(entropy(h, targets, few, 0, 0.1f), 1);
    minimise(entropy(h, targets, some, 0, 0), -0.2f);
    minimise(entropy(h, mul(soft, gain), some, 1, 0), 0.5f);
    minimise(errors(linear(x, u, -1, 0), x, -1, 1, 0.5f), 0.5f);
}
static void errors_of(void)
{
    enum { R = 7, C = 37 };
    int x = input("x", gckpt_shape3(batch_rows, R, C)),
        rows = input("rows", gckpt_shape2(batch_rows, R));
    int w = param("w", gckpt_shape2(C, C), 0.5f, 0, 0),
        gain = param("gain", gckpt_shape1(1), 1, 0, 0);
    int h = linear(x, w, -1, 0), some = mul(rows, gain), y = apply(SIGMOID, mul(x, gain));
    minimise(errors(h, y, apply(SIGMOID, h), 0, 0), 1);
    minimise(errors(h, y, some, 1, 0.4f), 0.5f);
    minimise(errors(h, y, reduce(some, 1, 0), 2, 0), 0.25f);
    minimise(errors(apply(SIGMOID, w), w, -1, 2, 0), 0.01f);
}
/* what moves, between neighbours too, and the greatest, with ties; rows of a table by their number */
static int padded(int x, int before, float value)
{
    return with(note(PAD, gckpt_pad(T(x), 1, before, 0, value), x, -1, -1), before, 0, value);
}
static int greatest(int x, int axis) { return with(note(GREATEST, gckpt_max(T(x), axis), x, -1, -1), 0, axis, 0); }
static int upsample(int x, int height, int width, int how)
{
    return with(note(UPSAMPLE, gckpt_upsample(T(x), height, width, (gckpt_upsampling)how), x, -1, -1), how, 0, 0);
}
static void moved(void)
{
    enum { R = 6, C = 35 };
    int x = input("x", gckpt_shape3(batch_rows, R, C)), y[4], at;
    int w = param("w", gckpt_shape2(C, C), 0.3f, 0, 0), table = param("table", gckpt_shape2(C, C), 0.3f, 0, 0);
    int h = padded(linear(x, w, -1, 0), 2, 0.3f), ties = apply(RELU, h);
    at = with(note(NUMBER, gckpt_argmax(T(h), 2), h, -1, -1), 0, 2, 0);
    nodes[at].index = (int32_t *)calloc((size_t)nodes[at].n, sizeof(int32_t));
    h = add(h, note(EMBED, gckpt_embed(T(table), T(at)), table, at, -1));
    minimise(note(LINEAR_CE, gckpt_linear_cross_entropy(T(h), T(table), T(at)), h, table, at), 0.1f);
    h = note(VIEW, gckpt_reshape(T(h), gckpt_shape4(batch_rows, 2 + R, 5, 7)), h, -1, -1);
    y[0] = upsample(h, 11, 3, 0), y[1] = upsample(h, 11, 3, 1), y[2] = upsample(h, 11, 3, 2);
    y[0] = add(mul(y[0], y[1]), y[2]), y[1] = upsample(mul(h, h), 3, 9, 1), y[2] = upsample(h, 1, 9, 2);
    y[3] = greatest(ties, 1);
    minimise(sum_loss(mul(y[0], y[0])), 1);
    minimise(sum_loss(mul(greatest(y[1], 3), greatest(y[1], 3))), 0.5f);
    w = note(VIEW, gckpt_reshape(T(w), gckpt_shape4(1, C, 5, 7)), w, -1, -1);
    minimise(sum_loss(add(mul(y[2], y[2]), mul(upsample(w, 1, 9, 1), y[2]))), 0.5f);
    minimise(sum_loss(mul(y[3], greatest(table, 0))), -0.25f);
}
/* rows with a large common offset, rows of one column, scalars */
static void odd(void)
{
    enum { R = 6, C = 33 };
    int x = input("x", gckpt_shape3(batch_rows, R, C)),
        far = input("far", gckpt_shape3(batch_rows, R, 1));
    int w = param("w", gckpt_shape2(C, C), 1, 0, 0), v = param("v", gckpt_shape2(C, 1), 1, 0, 0);
    int gain = param("gain", gckpt_shape1(C), 0, 0.5f, 1), s = param("s", gckpt_shape1(1), 0, 0, 3),
        b = param("b", gckpt_shape1(1), 0, 0, 0.3f);
    far = with(note(SCALE, gckpt_scale(T(far), 5000), far, -1, -1), 0, 0, 5000);
    int h = layernorm(add(linear(x, w, -1, 0), far), gain, -1);
    h = sub(mul(add(h, mul(s, s)), s), b);
    int c = linear(h, v, b, 0), m = reduce(c, 1, 1);
    c = add(layernorm(c, s, b), rmsnorm(c, s)); /* columns (batch, R, 1), scalars (batch, 1, 1) */
    m = note(VIEW, gckpt_reshape(T(m), gckpt_shape3(batch_rows, 1, 1)), m, -1, -1);
    minimise(sum_loss(mul(add(mul(h, c), m), mul(sub(x, m), s))), 1);
}
/* gradients of -0 times gains of either sign, and -0 that is added to -0 */
static void zeros(void)
{
    enum { R = 6, C = 33 };
    int x = input("x", gckpt_shape3(batch_rows, R, C)), none = sub(x, x), y[3];
    int w = param("w", gckpt_shape2(C, C), 1, 0, 0), gain = param("gain", gckpt_shape1(C), 1, 0, 0);
    for (int i = 0; i < 3; i++)
        y[i] = linear(x, w, -1, i & 1);
    const gckpt_shape row = gckpt_shape3(batch_rows, 1, C);
    int few = reduce(y[2], 1, 1), none_too = reduce(none, 1, 0), m;
    few = apply(SIGMOID, note(VIEW, gckpt_reshape(T(few), row), few, -1, -1));
    none_too = note(VIEW, gckpt_reshape(T(none_too), row), none_too, -1, -1);
    m = mul(few, apply(SIGMOID, x)); /* adds last */
    minimise(sum_loss(mul(x, linear(x, w, -1, 0))), 1);
    minimise(sum_loss(mul(add(layernorm(y[0], gain, -1), rmsnorm(y[1], gain)), none)), 1);
    minimise(sum_loss(mul(m, none)), -1);
    minimise(sum_loss(mul(few, none_too)), -1);
}
/* Scores of -inf. Columns 0 and 1 of all factors are given; a product of two of them overflows. */
static int hopeless; /* rows of -inf have a target: an infinite loss, finite gradients */
static int columns(const char *name, int x, int keep)
{
    int given = input(name, gckpt_shape_of(T(x)));
    memset(nodes[given].y, 0, (size_t)nodes[given].n * sizeof(float));
    return add(mul(x, keep), given);
}
static void masked(void)
{
    enum { LONG = 70, ROWS = 7, C = 8, V = 1030 };
    int x = input("x", gckpt_shape3(batch_rows, LONG, C));
    int keep = input("keep", gckpt_shape3(batch_rows, 1, C));
    int mask = input("mask", gckpt_shape3(batch_rows, LONG, LONG));
    int targets = indices("targets", gckpt_shape2(batch_rows, ROWS), V, 1);
    int w = param("w", gckpt_shape2(C, C), 1, 0, 0);
    int top = param("top", gckpt_shape2(V, C), 1, 0, 0);
    int v = linear(x, w, -1, 0), q = columns("q", v, keep),
        k = columns("k", linear(x, w, -1, 1), keep);
    int h = apply(SOFTMAX, add(matmul(x, v, 1), mask));
    h = add(matmul(h, v, 0), add(attention(q, k, v, 1, 0), attention(q, k, v, 1, 1)));
    gckpt_tensor *t = gckpt_reshape(T(h), gckpt_shape4(batch_rows, LONG / ROWS, ROWS, C));
    h = columns("h", reduce(note(VIEW, t, h, -1, -1), 1, 0), keep);
    for (int64_t i = 0; i < nodes[keep].n; i++)
        nodes[keep].y[i] = i % C > 1;
    for (int64_t i = 0; i < nodes[x].n / C; i++) { /* keys: all, a tile, none, the others, all */
        int64_t at = i % LONG, from = i / LONG == 3 ? 64 : 0, to = i / LONG == 1 ? 64 : LONG;
        nodes[nodes[q].in[1]].y[i * C] = at % 4 ? 1e30f : 0;
        nodes[nodes[k].in[1]].y[i * C] = i / LONG != 2 && at >= from && at < to ? -1e30f : 0;
        for (int64_t j = 0; j < LONG; j++)
            if (at % 3 == 1 || (at % 3 == 2 && j % 2))
                nodes[mask].y[i * LONG + j] = -INFINITY;
    }
    for (int64_t i = 0; i < nodes[targets].n; i++) { /* classes: none, the first chunk, all */
        int32_t *target = nodes[targets].index + i;
        if (i % 3 > 0)
            nodes[nodes[h].in[1]].y[i * C + i % 3 - 1] = 10;
        if (i % 3 == 1 && *target >= 0)
            *target = 1024 + *target % 6;
        if (i % 3 == 2 && !hopeless)
            *target = -1;
    }
    gckpt_parameter p;
    gckpt_store_get(store, gckpt_store_find(store, "top"), &p);
    for (int64_t i = 0; i < V; i++) { /* the first chunk of classes; all */
        nodes[top].y[i * C + 0] = p.values[i * C + 0] = i < 1024 ? -1e38f : 0;
        nodes[top].y[i * C + 1] = p.values[i * C + 1] = -1e38f;
    }
    gckpt_tensor *loss = gckpt_linear_cross_entropy(T(h), T(top), T(targets));
    minimise(note(LINEAR_CE, loss, h, top, targets), 1);
    h = linear(h, top, -1, 1);
    minimise(note(CE, gckpt_cross_entropy(T(h), T(targets)), h, targets, -1), 0.5f);
}
/* products of every kind with `length` rows in an entry, and twice as many; elements of more than a
 * block on every side */
static int length;
static void entries(void)
{
    enum { C = 36, V = 67 };
    int x = input("x", gckpt_shape3(batch_rows, length, 7));
    int targets = indices("targets", gckpt_shape2(batch_rows, length), V, 1);
    int w = param("w", gckpt_shape2(7, C), 0.5f, 0, 0), b = param("b", gckpt_shape1(C), 0, 0.2f, 0);
    int u = param("u", gckpt_shape2(C, C), 0.2f, 0, 0), s = param("s", gckpt_shape2(7, C), 1, 0, 0);
    int top = param("top", gckpt_shape2(V, C), 0.4f, 0, 0);
    int h = linear(x, w, b, 0), k = linear(h, u, -1, 1);
    h = add(h, attention(h, k, linear(x, s, -1, 0), 2, 1));
    h = add(attention(k, h, h, 1, 0), matmul(h, apply(TANH, u), 0));
    h = add(h, matmul(apply(SOFTMAX, matmul(h, k, 1)), k, 0));
    const gckpt_shape halves = gckpt_shape4(batch_rows, length, 2, C / 2);
    const gckpt_shape heads = gckpt_shape4(batch_rows, 2, length, C / 2);
    int v = note(VIEW, gckpt_reshape(T(k), halves), k, -1, -1);
    int z = note(VIEW, gckpt_reshape(T(h), heads), h, -1, -1);
    z = matmul(apply(TANH, z), note(VIEW, gckpt_reshape(T(k), heads), k, -1, -1), 1);
    v = linear(v, param("v", gckpt_shape2(C / 2, 5), 0.5f, 0, 0), -1, 0);
    gckpt_tensor *loss = gckpt_linear_cross_entropy(T(h), T(top), T(targets));
    minimise(note(LINEAR_CE, loss, h, top, targets), 1);
    const gckpt_linear_loss_desc desc = { 1.25f };
    const int capped_loss = note(LINEAR_CE, gckpt_linear_cross_entropy_with(T(h), T(top), T(targets), &desc), h, top, targets);
    nodes[capped_loss].cap = desc.cap;
    minimise(capped_loss, 0.75f);
    h = linear(h, top, -1, 1);
    minimise(note(CE, gckpt_cross_entropy(T(h), T(targets)), h, targets, -1), 0.5f);
    minimise(sum_loss(mul(v, v)), 0.3f);
    minimise(sum_loss(apply(TANH, z)), 0.2f);
}

typedef struct {
    gckpt_mode mode;
    int batch, rows,
        all; /* of a micro-batch; fetch every tensor, not only the parameters' gradients */
    gckpt_isa isa;
    int leaves, planned; /* desc.batch, 0: batch */
} setting;

static int fetched(const node *k, const setting *r)
{
    return k->op == PARAM || (r->all && k->op > VIEW && k->s.n > 0);
}
/* The bits of a parameter, or of another tensor's last micro-batch. */
static void same(const char *net, const setting *r, int i, const char *what, const float *ours,
                 const float *theirs)
{
    const node *k = &nodes[i];
    int64_t start = batch - 1, leaf = start * leaves / planned, first, j;
    while (start > 0 && (start - 1) * leaves / planned == leaf)
        start--;
    start += (batch - 1 - start) / r->rows * r->rows;
    first = j = k->once ? 0 : start * (k->n / batch);
    while (theirs && j < k->n && memcmp(&ours[j], &theirs[j - first], sizeof(float)) == 0)
        j++;
    CHECK_MSG(j == k->n, "%s%s, %d rows, mode %d: %s of tensor %d, element %d: %.9g, not %.9g", net,
              narrow ? " in bf16" : "", r->rows, (int)r->mode, what, gckpt_id(k->t), (int)j,
              theirs && j < k->n ? (double)theirs[j - first] : 0, j < k->n ? (double)ours[j] : 0);
}

/* A net in the library, built and planned as a setting says; the nodes are then of this one. */
typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
} trained;

static void forget(void)
{
    while (count > 0)
        free(nodes[--count].index), free(nodes[count].bytes);
}

static trained start(const char *name, void (*net)(void), gckpt_optimiser how, const setting *r)
{
    gckpt_store_desc store_desc = { { 0 }, SEED };
    gckpt_plan_desc plan_desc = { 0 };
    static gckpt_exec_desc exec_desc;
    gckpt_pick picks[2 * MOST];
    trained m = { 0 };
    forget();
    m.s = store = gckpt_store_new(&store_desc);
    m.g = graph = gckpt_graph_new(m.s, NULL);
    hopeless = strcmp(name, "hopeless") == 0;
    count = term_count = 0, used = 0, state = 1, batch = r->batch, batch_rows = r->rows;
    leaves = r->leaves, planned = r->planned ? r->planned : batch;
    net();
    for (int i = 0; i < count; i++) {
        const node *k = &nodes[i];
        if (fetched(k, r) && k->op != PARAM)
            picks[plan_desc.fetches++] = (gckpt_pick){ k->t, 0 };
        if (fetched(k, r) && k->trained)
            picks[plan_desc.fetches++] = (gckpt_pick){ k->t, 1 };
    }
    plan_desc.mode = r->mode, plan_desc.batch = planned, plan_desc.optimiser = how;
    plan_desc.leaves = leaves, plan_desc.precision = narrow ? GCKPT_BF16 : GCKPT_FP32;
    plan_desc.fetch = picks;
    exec_desc.isa = r->isa;
    m.p = gckpt_plan_new(graph, terms, term_count, &plan_desc);
    CHECK_MSG(m.p != NULL, "%s: %s", name, gckpt_error_text(graph));
    m.e = gckpt_exec_new(m.p, store, &exec_desc);
    CHECK_MSG(m.e != NULL, "%s: %s", name, gckpt_error_text(store));
    return m;
}

/* The library's step beside ours. */
static void compare(const char *name, const trained *m, const setting *r, const gckpt_report *ours,
                    const gckpt_report *theirs)
{
    gckpt_parameter w;
    CHECK_MSG(memcmp(ours, theirs, sizeof *ours) == 0,
              "%s%s: loss %.17g and norm %.17g, not %.17g and %.17g", name,
              narrow ? " in bf16" : "", theirs->loss, theirs->grad_norm, ours->loss,
              ours->grad_norm);
    for (int i = 0; i < count; i++) {
        const node *k = &nodes[i];
        if (fetched(k, r) && k->op != PARAM)
            same(name, r, i, "value", k->index ? (const float *)(const void *)k->index : k->y,
                 gckpt_fetch(m->e, gckpt_id(k->t), 0));
        if (fetched(k, r) && k->trained)
            same(name, r, i, "gradient", k->g, gckpt_fetch(m->e, gckpt_id(k->t), 1));
        if (k->op != PARAM)
            continue;
        gckpt_store_get(m->s, gckpt_store_find(m->s, gckpt_plan_name(m->p, gckpt_id(k->t))), &w);
        same(name, r, i, "weights", k->y, w.values);
    }
}

/* 5k, and that every NaN is the same one: behind the last step a parameter begins with one. */
static uint64_t hash_of(void)
{
    const uint32_t nan = 0x7fc00000u;
    uint64_t hash = FNV_START;
    for (int i = 0; i < count; i++) {
        if (nodes[i].op != PARAM)
            continue;
        if (step == STEPS)
            memcpy(nodes[i].y, &nan, 4);
        hash = fnv_floats(hash, nodes[i].y, nodes[i].n);
    }
    return hash;
}
static uint64_t hash_there(const trained *m)
{
    const uint32_t nan = 0xff812345u;
    for (int i = 0; i < gckpt_store_count(m->s) && step == STEPS; i++) {
        gckpt_parameter w;
        gckpt_store_get(m->s, i, &w);
        memcpy(w.values, &nan, 4);
    }
    return gckpt_store_hash(m->s);
}

/* Settings that differ in nothing that the contract's step knows of: that is made once. */
static void run(const char *name, void (*net)(void), gckpt_optimiser how, float clip,
                const setting *r, int n)
{
    gckpt_hyper hyper = { 0.011f, 0.1f, 0, 0, 0, 0, clip };
    gckpt_feed feeds[8];
    gckpt_report ours, theirs;
    trained m[SETTINGS];
    int feed_count = 0, ok = 1;
    for (int j = 0; j < n; j++) {
        m[j] = start(name, net, how, &r[j]);
        ok = ok && m[j].e;
    }
    for (int i = 0; i < count; i++) {
        const node *k = &nodes[i];
        const void *values = k->index ? (const void *)k->index : k->bytes ? (const void *)k->bytes : k->y;
        if (k->op == INPUT)
            feeds[feed_count++] = (gckpt_feed){ gckpt_id(k->t), values };
    }
    const size_t keep = used;
    for (step = 0; ok && step < STEPS;) {
        used = keep;
        take_step(how, &hyper, &ours);
        CHECK(ours.grad_norm > (double)clip && ours.grad_norm < HUGE_VAL);
        for (int j = 0; j < n; j++) {
            CHECK_MSG(gckpt_step(m[j].e, feeds, feed_count, batch, &hyper, &theirs) == GCKPT_OK,
                      "%s: %s", name, gckpt_error_text(m[j].e));
            compare(name, &m[j], &r[j], &ours, &theirs);
        }
        const uint64_t hash = hash_of();
        for (int j = 0; j < n; j++)
            CHECK_MSG(hash == hash_there(&m[j]), "%s: another hash", name);
    }
    for (int j = 0; j < n; j++) {
        gckpt_exec_free(m[j].e);
        gckpt_plan_free(m[j].p);
        gckpt_graph_free(m[j].g);
        gckpt_store_free(m[j].s);
    }
    forget();
}

int main(void)
{
    static const struct {
        const char *name;
        void (*net)(void);
        gckpt_optimiser how;
        float clip;
    } net[] = {
        { "mlp", mlp, GCKPT_ADAMW, 0.05f },      { "gpt", gpt, GCKPT_ADAMW, 0 },
        { "attend", attend, GCKPT_MOMENTUM, 0 }, { "broadcast", broadcast, GCKPT_SGD, 1 },
        { "odd", odd, GCKPT_ADAMW, 0 },          { "masked", masked, GCKPT_ADAMW, 0 },
        { "hopeless", masked, GCKPT_SGD, 0 },    { "criterion", criterion, GCKPT_ADAMW, 0 },
        { "choices", choices, GCKPT_ADAMW, 0 },
        { "losses", losses, GCKPT_ADAMW, 0 },    { "errors", errors_of, GCKPT_ADAMW, 0.01f },
        { "zeros", zeros, GCKPT_ADAMW, 0 },      { "shared", shared, GCKPT_ADAMW, 0 },
        { "moved", moved, GCKPT_ADAMW, 0 }
    };
    static const setting settings[SETTINGS] = {
        { GCKPT_STORE_ALL, 5, 5, 1, GCKPT_ISA_PLAIN, 1, 0 },
        { GCKPT_STORE_ALL, 5, 2, 1, GCKPT_ISA_AUTO, 1, 0 },
        { GCKPT_MEMORY_POOR, 5, 1, 0, GCKPT_ISA_AUTO, 1, 0 },
        { GCKPT_OPTIMAL, 5, 3, 0, GCKPT_ISA_AUTO, 1, 0 },
        { GCKPT_STORE_ALL, 1, 1, 1, GCKPT_ISA_AUTO, 1, 0 },
        { GCKPT_STORE_ALL, 5, 5, 1, GCKPT_ISA_PLAIN, 2, 0 },
        { GCKPT_MEMORY_POOR, 5, 2, 0, GCKPT_ISA_AUTO, 4, 0 },
        { GCKPT_OPTIMAL, 5, 1, 0, GCKPT_ISA_AUTO, 8, 0 },
        { GCKPT_STORE_ALL, 5, 3, 1, GCKPT_ISA_AUTO, 4, 11 },
    };
    static const int lengths[] = { 1, 7, 20, 32, 33, 64, 100 };
    const int nets = (int)(sizeof net / sizeof *net), all = nets + (int)(sizeof lengths / 4);
    for (int i = 0; i < 2 * all; i++)
        for (int j = 0, n = 4; j < SETTINGS; j += n, n = 1) { /* the first four, then each alone */
            const int at = i % all;
            narrow = i / all;
            length = at < nets ? 0 : lengths[at - nets];
            /* so much of what takes long is run */
            if (length > 33 ? !narrow || (j != 0 && j != 8)
                            : settings[j].leaves > 1 && (i + j) % (narrow ? 4 : 2) != narrow)
                continue;
            if (length)
                run("entries", entries, GCKPT_ADAMW, 0, &settings[j], n);
            else
                run(net[at].name, net[at].net, net[at].how, net[at].clip, &settings[j], n);
        }
    /* bits of rotary's frequencies that are seen only at positions far beyond those above */
    for (int n = 1; n < 40; n++)
        for (float base = 0.01f; base < 1e7f; base *= 7) {
            const double r = ratio(base, n), f = 2935890503282001226.0 * r;
            CHECK(r == gckpti_rotary_ratio(base, n) && counts(f) == gckpti_rotary_frequency(f));
        }
    return check_report("test_contract");
}

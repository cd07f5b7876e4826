/* ref.c - double-precision references of all ops; see ref.h. The indices of every element are computed
 * from its number, which is slow, but easy to check by reading. */
#include "ref.h"
#include <math.h>
#include <stdlib.h>

typedef struct block { struct block *next; ref_value value; } block;
static block *blocks;

void ref_reset(void)
{
    while (blocks) {
        block *b = blocks;
        blocks = b->next;
        free(b->value.v);
        free(b);
    }
}

ref_value *ref_new(int n, const long *d)
{
    block *b = (block *)calloc(1, sizeof *b);
    long elements = 1;
    if (!b)
        exit(2);
    b->next = blocks;
    blocks = b;
    b->value.n = n;
    for (int i = 0; i < n; i++) {
        b->value.d[i] = d[i];
        elements *= d[i];
    }
    /* two further doubles, since a loss (a scalar without elements) stores its sum and its count */
    b->value.v = (double *)calloc((size_t)elements + 2, sizeof(double));
    if (!b->value.v)
        exit(2);
    return &b->value;
}

long ref_elements(const ref_value *x)
{
    long elements = 1;
    for (int i = 0; i < x->n; i++)
        elements *= x->d[i];
    return elements;
}

static long last(const ref_value *x)
{
    return x->n ? x->d[x->n - 1] : 1;
}

/* Returns which element of x belongs to element at[0..n-1] of a result with n axes to which x was broadcast: an axis
 * of x that has size 1, or that x lacks, repeats. */
static long broadcast_index(const ref_value *x, int n, const long *at)
{
    long index = 0;
    for (int i = 0; i < x->n; i++)
        index = index * x->d[i] + (x->d[i] == 1 ? 0 : at[n - x->n + i]);
    return index;
}

/* Converts the flat index of an element of x to one index per axis, at[]. */
static void unravel(const ref_value *x, long flat, long *at)
{
    for (int i = x->n - 1; i >= 0; i--) {
        at[i] = flat % x->d[i];
        flat /= x->d[i];
    }
}

ref_value *ref_embed(const ref_value *table, const ref_value *index)
{
    ref_value *y;
    long d[6], c;
    if (!table || !index)
        return NULL;
    c = table->d[1];
    for (int i = 0; i < index->n; i++)
        d[i] = index->d[i];
    d[index->n] = c;
    y = ref_new(index->n + 1, d);
    for (long i = 0; i < ref_elements(y); i++)
        y->v[i] = table->v[(long)index->v[i / c] * c + i % c];
    return y;
}

ref_value *ref_gather(const ref_value *x, const ref_value *index)
{
    ref_value *y;
    long d[3], c;
    if (!x || !index)
        return NULL;
    d[0] = x->d[0], d[1] = index->d[1], d[2] = c = x->d[2];
    y = ref_new(3, d);
    for (long i = 0; i < ref_elements(y); i++)
        y->v[i] = x->v[(i / c / d[1] * x->d[1] + (long)index->v[i / c]) * c + i % c];
    return y;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* Returns element j of the product h wh plus bias; if h is NULL (a state of zeros), only the bias. */
static double of_state(const double *h, const ref_value *wh, const ref_value *bias, long j)
{
    double sum = bias ? bias->v[j] : 0;
    for (long k = 0; h && k < wh->d[0]; k++)
        sum += h[k] * wh->v[k * wh->d[1] + j];
    return sum;
}

/* Returns element j of the new gate's product (r h) wh plus bias, where r are the reset gates of p's step x. */
static double of_reset_state(const double *x, const double *h, const ref_value *wh, const ref_value *bias, long j)
{
    const long n = wh->d[0];
    double sum = bias ? bias->v[2 * n + j] : 0;
    for (long k = 0; h && k < n; k++)
        sum += sigmoid(x[k] + of_state(h, wh, bias, k)) * h[k] * wh->v[k * wh->d[1] + 2 * n + j];
    return sum;
}

/* Returns whether step i of all rows' T steps is not padding. */
static int is_step(const ref_value *p, const ref_value *lengths, long i)
{
    return !lengths || (double)(i % p->d[1]) < lengths->v[i / p->d[1]];
}

ref_value *ref_gru(const ref_value *p, const ref_value *wh, const ref_value *bh,
                   const ref_value *h0, const ref_value *lengths, int before)
{
    ref_value *y;
    long d[3], n;
    if (!p || !wh)
        return NULL;
    d[0] = p->d[0], d[1] = p->d[1], d[2] = n = wh->d[0];
    y = ref_new(3, d);
    for (long i = 0; i < d[0] * d[1]; i++)
        for (long j = 0; j < n && is_step(p, lengths, i); j++) {
            const double *x = p->v + i * 3 * n;
            const double *h = i % d[1] ? y->v + (i - 1) * n : h0 ? h0->v + i / d[1] * n : NULL;
            double r = sigmoid(x[j] + of_state(h, wh, bh, j));
            double z = sigmoid(x[n + j] + of_state(h, wh, bh, n + j));
            double fresh = tanh(x[2 * n + j] + (before ? of_reset_state(x, h, wh, bh, j)
                                                       : r * of_state(h, wh, bh, 2 * n + j)));
            y->v[i * n + j] = (1 - z) * fresh + z * (h ? h[j] : 0);
        }
    return y;
}

ref_value *ref_lstm(const ref_value *p, const ref_value *wh, const ref_value *h0,
                    const ref_value *c0, const ref_value *lengths)
{
    ref_value *y;
    long d[3], n;
    if (!p || !wh)
        return NULL;
    n = wh->d[0], d[0] = p->d[0], d[1] = p->d[1], d[2] = 2 * n;
    y = ref_new(3, d);
    for (long i = 0; i < d[0] * d[1]; i++)
        for (long j = 0; j < n && is_step(p, lengths, i); j++) {
            const double *x = p->v + i * 4 * n, *before = i % d[1] ? y->v + (i - 1) * 2 * n : NULL;
            const double *h = before ? before : h0 ? h0->v + i / d[1] * n : NULL;
            const double *c = before ? before + n : c0 ? c0->v + i / d[1] * n : NULL;
            double in = sigmoid(x[j] + of_state(h, wh, NULL, j));
            double keep = sigmoid(x[n + j] + of_state(h, wh, NULL, n + j));
            double fresh = tanh(x[2 * n + j] + of_state(h, wh, NULL, 2 * n + j));
            double out = sigmoid(x[3 * n + j] + of_state(h, wh, NULL, 3 * n + j));
            double cell = keep * (c ? c[j] : 0) + in * fresh;
            y->v[(2 * i + 1) * n + j] = cell;
            y->v[2 * i * n + j] = out * tanh(cell);
        }
    return y;
}

/* Returns the product of a (..,M,K) and b (..,K,N), or b (..,N,K) if transposed is nonzero; leading axes are broadcast. A
 * vector a is a row, a vector b a column, and the result has no axis for it. */
ref_value *ref_matmul(const ref_value *a, const ref_value *b, int transposed)
{
    ref_value *y;
    long d[6], at[6], k;
    if (!a || !b)
        return NULL;
    const int row = a->n > 1, column = b->n > 1, lead_a = row ? a->n - 2 : 0, lead_b = column ? b->n - 2 : 0;
    const int leads = lead_a > lead_b ? lead_a : lead_b;
    for (int i = 0; i < leads; i++) {
        const int i_a = i - leads + lead_a, i_b = i - leads + lead_b;
        d[i] = i_a < 0 || (i_b >= 0 && a->d[i_a] == 1) ? b->d[i_b] : a->d[i_a];
    }
    if (row)
        d[leads] = a->d[a->n - 2];
    if (column)
        d[leads + row] = b->d[b->n - 1 - transposed];
    y = ref_new(leads + row + column, d), k = last(a);
    for (long i = 0; i < ref_elements(y); i++) {
        unravel(y, i, at);
        ref_value left = *a, right = *b;
        left.n = lead_a, right.n = lead_b;
        const long m = row ? a->d[a->n - 2] : 1, n = column ? b->d[b->n - 1 - transposed] : 1;
        const double *av = a->v + (broadcast_index(&left, leads, at) * m + (row ? at[leads] : 0)) * k;
        const double *bv = b->v + broadcast_index(&right, leads, at) * k * n;
        const long j0 = column ? at[leads + row] : 0;
        for (long j = 0; j < k; j++)
            y->v[i] += av[j] * (transposed ? bv[j0 * k + j] : bv[j * n + j0]);
    }
    return y;
}

ref_value *ref_linear(const ref_value *x, const ref_value *w, const ref_value *bias, int transposed)
{
    ref_value *y;
    long d[6], in, out;
    if (!x || !w)
        return NULL;
    in = last(x), out = w->d[transposed ? 0 : 1];
    for (int i = 0; i < x->n; i++)
        d[i] = x->d[i];
    d[x->n - 1] = out;
    y = ref_new(x->n, d);
    for (long i = 0; i < ref_elements(y); i++) {
        long row = i / out, o = i % out;
        y->v[i] = bias ? bias->v[o] : 0;
        for (long j = 0; j < in; j++)
            y->v[i] += x->v[row * in + j] * w->v[transposed ? o * in + j : j * out + o];
    }
    return y;
}

/* Adds each input pixel times each weight to the output pixel that it reaches; a transposed convolution exchanges the
 * roles of x and y. */
ref_value *ref_convolution(const ref_value *x, const ref_value *w, const ref_value *bias,
                           const ref_window *z)
{
    ref_value *y;
    long d[6], place[2];
    if (!x || !w)
        return NULL;
    d[0] = x->d[0];
    for (int i = 0; i < 2; i++) {
        long over = (w->d[i] - 1) * z->dilation[i] + 1 - 2 * z->padding[i];
        d[1 + i] = z->transposed ? (x->d[1 + i] - 1) * z->stride[i] + over + z->more[i]
                                 : (x->d[1 + i] - over) / z->stride[i] + 1;
    }
    d[3] = z->transposed ? w->d[2] * z->groups : w->d[3];
    y = ref_new(4, d);
    const ref_value *image = z->transposed ? y : x, *places = z->transposed ? x : y;
    const long c = w->d[2], o = w->d[3] / z->groups;
    for (long i = 0; i < ref_elements(y); i++)
        y->v[i] = bias ? bias->v[i % d[3]] : 0;
    for (long p = 0; p < places->d[0] * places->d[1] * places->d[2]; p++)
        for (long k = 0; k < w->d[0] * w->d[1]; k++) {
            place[0] = p / places->d[2] % places->d[1], place[1] = p % places->d[2];
            for (int i = 0; i < 2; i++)
                place[i] = place[i] * z->stride[i] - z->padding[i] +
                           (i ? k % w->d[1] : k / w->d[1]) * z->dilation[i];
            if (place[0] < 0 || place[0] >= image->d[1] || place[1] < 0 || place[1] >= image->d[2])
                continue;
            long row = p / places->d[2] / places->d[1];
            long at = ((row * image->d[1] + place[0]) * image->d[2] + place[1]) * image->d[3];
            for (long g = 0; g < z->groups; g++)
                for (long i = 0; i < c * o; i++) {
                    double by = w->v[(k * c + i / o) * w->d[3] + g * o + i % o];
                    long a = at + g * c + i / o, b = p * places->d[3] + g * o + i % o;
                    y->v[z->transposed ? a : b] += by * x->v[z->transposed ? b : a];
                }
        }
    return y;
}

ref_value *ref_layernorm(const ref_value *x, const ref_value *gain, const ref_value *bias,
                         double epsilon)
{
    ref_value *y;
    long c;
    if (!x)
        return NULL;
    y = ref_new(x->n, x->d);
    c = last(x);
    for (long r = 0; r < ref_elements(x); r += c) {
        const double *row = x->v + r;
        double mean = 0, variance = 0;
        for (long j = 0; j < c; j++)
            mean += row[j] / (double)c;
        for (long j = 0; j < c; j++)
            variance += (row[j] - mean) * (row[j] - mean) / (double)c;
        for (long j = 0; j < c; j++)
            y->v[r + j] = (row[j] - mean) / sqrt(variance + epsilon) * (gain ? gain->v[j] : 1) +
                          (bias ? bias->v[j] : 0);
    }
    return y;
}

ref_value *ref_rmsnorm(const ref_value *x, const ref_value *gain, double epsilon)
{
    ref_value *y;
    long c;
    if (!x)
        return NULL;
    y = ref_new(x->n, x->d);
    c = last(x);
    for (long r = 0; r < ref_elements(x); r += c) {
        double square = 0;
        for (long j = 0; j < c; j++)
            square += x->v[r + j] * x->v[r + j] / (double)c;
        for (long j = 0; j < c; j++)
            y->v[r + j] = x->v[r + j] / sqrt(square + epsilon) * (gain ? gain->v[j] : 1);
    }
    return y;
}

ref_value *ref_groupnorm(const ref_value *x, long groups, const ref_value *gain, const ref_value *bias)
{
    ref_value *y;
    long c, m, images, image;
    if (!x)
        return NULL;
    y = ref_new(x->n, x->d);
    c = last(x);
    m = groups ? c / groups : 1;
    images = groups ? x->d[0] : 1;
    image = ref_elements(x) / images;
    for (long first = 0; first < images * image; first += image)
        for (long k = 0; k < c; k += m) {
            double mean = 0, variance = 0, n = (double)(image / c * m);
            for (long i = 0; i < image; i++)
                mean += i % c / m == k / m ? x->v[first + i] / n : 0;
            for (long i = 0; i < image; i++)
                variance += i % c / m == k / m ? (x->v[first + i] - mean) * (x->v[first + i] - mean) / n : 0;
            for (long i = 0; i < image; i++)
                if (i % c / m == k / m)
                    y->v[first + i] = (x->v[first + i] - mean) / sqrt(variance + 1e-5) * (gain ? gain->v[i % c] : 1) +
                                      (bias ? bias->v[i % c] : 0);
        }
    return y;
}

ref_value *ref_pool(const ref_value *x, const int *size, const int *stride, const int *padding, const int *dilation,
                    int ceil, int average)
{
    ref_value *y;
    long d[6], in[2], out[2], c;
    if (!x)
        return NULL;
    in[0] = x->n == 4 ? x->d[1] : 1;
    in[1] = x->d[x->n - 2];
    c = last(x);
    for (int i = 0; i < 6; i++)
        d[i] = x->d[i];
    for (int i = 0; i < 2; i++) {
        out[i] = (in[i] + 2 * padding[i] - dilation[i] * (size[i] - 1) - 1 + (ceil ? stride[i] - 1 : 0)) / stride[i] + 1;
        if (ceil && (out[i] - 1) * stride[i] - padding[i] >= in[i])
            out[i]--;
    }
    d[x->n - 2] = out[1];
    if (x->n == 4)
        d[1] = out[0];
    y = ref_new(x->n, d);
    for (long at = 0; at < ref_elements(y); at++) {
        long q = at / c % out[1], p = at / c / out[1] % out[0], b = at / c / out[1] / out[0];
        double sum = 0, most = -INFINITY;
        long inside = 0, padded = 0;
        for (long i = 0; i < size[0] * size[1]; i++) {
            long h = p * stride[0] - padding[0] + i / size[1] * dilation[0];
            long w = q * stride[1] - padding[1] + i % size[1] * dilation[1];
            double v = 0;
            padded += h < in[0] + padding[0] && w < in[1] + padding[1];
            if (h < 0 || h >= in[0] || w < 0 || w >= in[1])
                continue;
            inside++;
            v = x->v[((b * in[0] + h) * in[1] + w) * c + at % c];
            sum += v;
            most = v > most ? v : most;
        }
        y->v[at] = average ? sum / (double)(average == 1 ? padded : inside) : most;
    }
    return y;
}

ref_value *ref_map(const ref_value *x, double (*f)(double))
{
    ref_value *y;
    if (!x)
        return NULL;
    y = ref_new(x->n, x->d);
    for (long i = 0; i < ref_elements(x); i++)
        y->v[i] = f(x->v[i]);
    return y;
}


ref_value *ref_elu(const ref_value *x, double alpha)
{
    ref_value *y;
    if (!x)
        return NULL;
    y = ref_new(x->n, x->d);
    for (long i = 0; i < ref_elements(x); i++)
        y->v[i] = x->v[i] > 0 ? x->v[i] : alpha * expm1(x->v[i]);
    return y;
}

ref_value *ref_leaky_relu(const ref_value *x, double slope)
{
    ref_value *y;
    if (!x)
        return NULL;
    y = ref_new(x->n, x->d);
    for (long i = 0; i < ref_elements(x); i++)
        y->v[i] = x->v[i] > 0 ? x->v[i] : slope * x->v[i];
    return y;
}

ref_value *ref_pow(const ref_value *x, double exponent)
{
    ref_value *y;
    if (!x)
        return NULL;
    y = ref_new(x->n, x->d);
    for (long i = 0; i < ref_elements(x); i++)
        y->v[i] = pow(x->v[i], exponent);
    return y;
}

ref_value *ref_clamp(const ref_value *x, double low, double high)
{
    ref_value *y;
    if (!x)
        return NULL;
    y = ref_new(x->n, x->d);
    for (long i = 0; i < ref_elements(x); i++)
        y->v[i] = fmin(fmax(x->v[i], low), high);
    return y;
}

/* Computes the softmax of s[0..n-1] into p[0..n-1]. */
static void softmax(double *p, const double *s, long n)
{
    double most = s[0], sum = 0;
    for (long i = 1; i < n; i++)
        most = s[i] > most ? s[i] : most;
    for (long i = 0; i < n; i++)
        sum += p[i] = exp(s[i] - most);
    for (long i = 0; i < n; i++)
        p[i] /= sum;
}

ref_value *ref_softmax(const ref_value *x)
{
    ref_value *y;
    if (!x)
        return NULL;
    y = ref_new(x->n, x->d);
    for (long i = 0; i < ref_elements(x); i += last(x))
        softmax(y->v + i, x->v + i, last(x));
    return y;
}

ref_value *ref_log_softmax(const ref_value *x)
{
    ref_value *y;
    if (!x)
        return NULL;
    y = ref_new(x->n, x->d);
    for (long r = 0; r < ref_elements(x); r += last(x)) {
        double most = x->v[r], sum = 0;
        for (long j = 1; j < last(x); j++)
            most = fmax(most, x->v[r + j]);
        for (long j = 0; j < last(x); j++)
            sum += exp(x->v[r + j] - most);
        for (long j = 0; j < last(x); j++)
            y->v[r + j] = x->v[r + j] - most - log(sum);
    }
    return y;
}

static double capped(double x, double cap) { return cap > 0 ? cap * tanh(x / cap) : x; }

ref_value *ref_cap(const ref_value *x, double cap)
{
    ref_value *y = x ? ref_new(x->n, x->d) : NULL;
    for (long i = 0; x && i < ref_elements(x); i++)
        y->v[i] = capped(x->v[i], cap);
    return y;
}

/* Attention of q (B,T,C) to k and v (B,S,K). D = C / heads is the number of columns of a head. Head h reads columns h*D
 * .. h*D + D-1 of q; of k and v, it reads the D columns of its key head, which several heads may share. If causal, the
 * last query is aligned with the last key. */
ref_value *ref_attention(const ref_value *q, const ref_value *k, const ref_value *v, const ref_mask *o)
{
    ref_value *y, *s;
    long T, S, C, D, K;
    if (!q || !k || !v)
        return NULL;
    T = q->d[1], S = k->d[1], C = q->d[2], D = C / o->heads, K = k->d[2];
    const double scale = o->scale > 0 ? o->scale : 1 / sqrt((double)D);
    y = ref_new(q->n, q->d);
    s = ref_new(1, &S);
    for (long b = 0; b < q->d[0]; b++)
        for (long t = 0; t < T; t++)
            for (long h = 0; h < o->heads; h++) {
                const double *query = q->v + (b * T + t) * C + h * D;
                double *out = y->v + (b * T + t) * C + h * D;
                const long shared = h * (o->key_heads ? o->key_heads : o->heads) / o->heads * D;
                long end = o->causal ? S - T + t + 1 : S, first = o->window && o->window < end ? end - o->window : 0;
                if (o->lengths && o->lengths->v[b] < (double)end)
                    end = (long)o->lengths->v[b];
                if (first >= end)
                    continue;
                for (long i = first; i < end; i++) {
                    s->v[i] = 0;
                    for (long j = 0; j < D; j++)
                        s->v[i] += query[j] * k->v[(b * S + i) * K + shared + j] * scale;
                    s->v[i] = capped(s->v[i], o->cap);
                    if (o->mask)
                        s->v[i] += o->mask->v[broadcast_index(o->mask, 4, (const long[4]){ b, h, t, i })];
                }
                softmax(s->v + first, s->v + first, end - first);
                for (long i = first; i < end; i++)
                    for (long j = 0; j < D; j++)
                        out[j] += s->v[i] * v->v[(b * S + i) * K + shared + j];
            }
    return y;
}

ref_value *ref_delta(const ref_value *q, const ref_value *k, const ref_value *v, const ref_value *decay,
                     const ref_value *beta, int heads, int key_heads, double scale)
{
    ref_value *y, *s;
    if (!q || !k || !v || !decay || !beta)
        return NULL;
    const long T = q->d[1], K = q->d[2] / key_heads, D = v->d[2] / heads, state[2] = { K, D };
    y = ref_new(3, v->d);
    for (long b = 0; b < q->d[0]; b++)
        for (long h = 0; h < heads; h++) {
            s = ref_new(2, state);
            for (long t = 0; t < T; t++) {
                const long row = b * T + t;
                const double *key = k->v + (row * key_heads + h * key_heads / heads) * K;
                const double *query = q->v + (row * key_heads + h * key_heads / heads) * K;
                for (long i = 0; i < K * D; i++)
                    s->v[i] *= exp(decay->v[row * heads + h]);
                for (long j = 0; j < D; j++) {
                    double left = v->v[(row * heads + h) * D + j], *out = y->v + (row * heads + h) * D + j;
                    for (long i = 0; i < K; i++)
                        left -= key[i] * s->v[i * D + j];
                    for (long i = 0; i < K; i++) {
                        s->v[i * D + j] += key[i] * beta->v[row * heads + h] * left;
                        *out += query[i] * s->v[i * D + j] * (scale > 0 ? scale : 1 / sqrt((double)K));
                    }
                }
            }
        }
    return y;
}

ref_value *ref_rotary(const ref_value *x, const ref_rotation *by)
{
    ref_value *y;
    long T, C, D, R;
    if (!x)
        return NULL;
    y = ref_new(x->n, x->d);
    T = x->d[1], C = x->d[2], D = C / by->heads, R = by->turned ? by->turned : D;
    for (long i = 0; i < ref_elements(x); i++) {
        long t = i / C % T, j = i % D, pair = j % (R / 2);
        double base = by->base == 0 ? 10000 : by->base, scale = by->scale == 0 ? 1 : by->scale;
        double angle = by->frequencies ? (double)by->frequencies[pair] : pow(base, -2.0 * (double)pair / (double)R);
        angle *= (double)(by->first + t);
        if (j >= R)
            y->v[i] = x->v[i];
        else if (j < R / 2)
            y->v[i] = scale * (x->v[i] * cos(angle) - x->v[i + R / 2] * sin(angle));
        else
            y->v[i] = scale * (x->v[i - R / 2] * sin(angle) + x->v[i] * cos(angle));
    }
    return y;
}

ref_value *ref_positions(const ref_value *x, const ref_value *table, long first)
{
    ref_value *y;
    if (!x || !table)
        return NULL;
    y = ref_new(x->n, x->d);
    for (long i = 0; i < ref_elements(x); i++)
        y->v[i] = x->v[i] + table->v[first * x->d[2] + i % (x->d[1] * x->d[2])];
    return y;
}

ref_value *ref_binary(char op, const ref_value *a, const ref_value *b)
{
    ref_value *y;
    long d[6], at[6] = { 0 };
    int n;
    if (!a || !b)
        return NULL;
    n = a->n > b->n ? a->n : b->n;
    for (int i = 0; i < n; i++) {
        long da = i < n - a->n ? 1 : a->d[i - (n - a->n)],
             db = i < n - b->n ? 1 : b->d[i - (n - b->n)];
        d[i] = da > db ? da : db;
    }
    y = ref_new(n, d);
    for (long i = 0; i < ref_elements(y); i++) {
        double u, v;
        unravel(y, i, at);
        u = a->v[broadcast_index(a, n, at)], v = b->v[broadcast_index(b, n, at)];
        y->v[i] = op == '+'   ? u + v
                  : op == '-' ? u - v
                  : op == '*' ? u * v
                  : op == '/' ? u / v
                  : op == 'p' ? (u > 0 ? u : v * u)
                  : op == '>' ? fmax(u, v)
                              : fmin(u, v);
    }
    return y;
}

ref_value *ref_where(const ref_value *condition, const ref_value *a, const ref_value *b)
{
    ref_value *y;
    long at[6];
    if (!condition || !a || !b)
        return NULL;
    /* the sum of condition, a and b only provides the shape to which all three are broadcast; its values are
     * overwritten */
    y = ref_binary('+', ref_binary('+', condition, a), b);
    for (long i = 0; i < ref_elements(y); i++) {
        unravel(y, i, at);
        y->v[i] = condition->v[broadcast_index(condition, y->n, at)] != 0
                      ? a->v[broadcast_index(a, y->n, at)]
                      : b->v[broadcast_index(b, y->n, at)];
    }
    return y;
}

ref_value *ref_scale(const ref_value *x, double factor)
{
    ref_value *y;
    if (!x)
        return NULL;
    y = ref_new(x->n, x->d);
    for (long i = 0; i < ref_elements(x); i++)
        y->v[i] = x->v[i] * factor;
    return y;
}

ref_value *ref_reshape(const ref_value *x, int n, const long *d)
{
    ref_value *y;
    long sizes[6], known = 1;
    if (!x)
        return NULL;
    for (int i = 0; i < n; i++)
        known *= d[i] == -1 ? 1 : d[i];
    for (int i = 0; i < n; i++)
        sizes[i] = d[i] == -1 ? ref_elements(x) / known : d[i];
    y = ref_new(n, sizes);
    for (long i = 0; i < ref_elements(y); i++)
        y->v[i] = x->v[i];
    return y;
}

ref_value *ref_permute(const ref_value *x, const int *axes)
{
    ref_value *y;
    long d[6], at[6], source[6];
    if (!x)
        return NULL;
    for (int i = 0; i < x->n; i++)
        d[i] = x->d[axes[i]];
    y = ref_new(x->n, d);
    for (long i = 0; i < ref_elements(y); i++) {
        unravel(y, i, at);
        for (int j = 0; j < x->n; j++)
            source[axes[j]] = at[j];
        y->v[i] = x->v[broadcast_index(x, x->n, source)];
    }
    return y;
}

ref_value *ref_slice(const ref_value *x, int axis, long begin, long end)
{
    ref_value *y;
    long d[6], at[6];
    if (!x)
        return NULL;
    if (axis < 0)
        axis += x->n;
    for (int i = 0; i < x->n; i++)
        d[i] = i == axis ? end - begin : x->d[i];
    y = ref_new(x->n, d);
    for (long i = 0; i < ref_elements(y); i++) {
        unravel(y, i, at);
        at[axis] += begin;
        y->v[i] = x->v[broadcast_index(x, x->n, at)];
    }
    return y;
}

ref_value *ref_concat(const ref_value *const *x, int n, int axis)
{
    ref_value *y;
    long d[6] = { 0 }, at[6], total = 0, begin = 0;
    for (int i = 0; i < n; i++)
        if (!x[i])
            return NULL;
    if (axis < 0)
        axis += x[0]->n;
    for (int i = 0; i < n; i++)
        total += x[i]->d[axis];
    for (int i = 0; i < x[0]->n; i++)
        d[i] = i == axis ? total : x[0]->d[i];
    y = ref_new(x[0]->n, d);
    for (int j = 0; j < n; j++) {
        for (long i = 0; i < ref_elements(x[j]); i++) {
            unravel(x[j], i, at);
            at[axis] += begin;
            y->v[broadcast_index(y, y->n, at)] = x[j]->v[i];
        }
        begin += x[j]->d[axis];
    }
    return y;
}

ref_value *ref_reduce(const ref_value *x, int axis, int mean)
{
    ref_value *y;
    long d[6], at[6];
    int n = 0;
    if (!x)
        return NULL;
    if (axis < 0)
        axis += x->n;
    for (int i = 0; i < x->n; i++)
        if (i != axis)
            d[n++] = x->d[i];
    y = ref_new(n, d);
    for (long i = 0; i < ref_elements(x); i++) {
        unravel(x, i, at);
        for (int j = axis; j + 1 < x->n; j++)
            at[j] = at[j + 1];
        y->v[broadcast_index(y, n, at)] += x->v[i] / (mean ? (double)x->d[axis] : 1);
    }
    return y;
}

ref_value *ref_pad(const ref_value *x, int axis, long before, long after, int mode, double value)
{
    ref_value *y;
    long d[6], at[6] = { 0 };
    if (!x)
        return NULL;
    if (axis < 0)
        axis += x->n;
    for (int i = 0; i < x->n; i++)
        d[i] = i == axis ? before + x->d[i] + after : x->d[i];
    y = ref_new(x->n, d);
    for (long i = 0; i < ref_elements(y); i++) {
        const long n = x->d[axis];
        long place;
        unravel(y, i, at);
        place = at[axis] - before;
        at[axis] = mode == 1 ? labs(place) : place < 0 ? 0 : place;
        if (at[axis] >= n)
            at[axis] = mode == 1 ? 2 * n - 2 - at[axis] : n - 1;
        y->v[i] = mode == 0 && (place < 0 || place >= n) ? value : x->v[broadcast_index(x, x->n, at)];
    }
    return y;
}

ref_value *ref_max(const ref_value *x, int axis, int number)
{
    ref_value *y;
    long d[6], at[6];
    int n = 0;
    if (!x)
        return NULL;
    if (axis < 0)
        axis += x->n;
    for (int i = 0; i < x->n; i++)
        if (i != axis)
            d[n++] = x->d[i];
    y = ref_new(n, d);
    for (long i = 0; i < ref_elements(y); i++) {
        long best = 0;
        double most = -INFINITY;
        unravel(y, i, at);
        for (int j = x->n - 1; j > axis; j--)
            at[j] = at[j - 1];
        for (long k = 0; k < x->d[axis]; k++) {
            at[axis] = k;
            double v = x->v[broadcast_index(x, x->n, at)];
            if (v > most)
                most = v, best = k;
        }
        y->v[i] = number ? (double)best : most;
    }
    return y;
}

ref_value *ref_top_k(const ref_value *x, int axis, int k, int number)
{
    ref_value *y;
    long d[6] = { 0 }, at[6];
    if (!x)
        return NULL;
    if (axis < 0)
        axis += x->n;
    for (int i = 0; i < x->n; i++)
        d[i] = i == axis ? k : x->d[i];
    y = ref_new(x->n, d);
    for (long i = 0; i < ref_elements(x); i++) { /* an element's place is the number of those before it */
        long place = 0;
        unravel(x, i, at);
        const long own = at[axis];
        for (at[axis] = 0; at[axis] < x->d[axis]; at[axis]++) {
            const double v = x->v[broadcast_index(x, x->n, at)];
            place += v > x->v[i] || (v == x->v[i] && at[axis] < own);
        }
        at[axis] = place;
        if (place < k)
            y->v[broadcast_index(y, y->n, at)] = number ? (double)own : x->v[i];
    }
    return y;
}

/* Finds from which positions element i of a resized line takes its value. The line has n elements after and `size`
 * elements before resizing; the value is interpolated between elements *low and *high, where *high has the weight
 * *part. */
static void look(int how, long size, long n, long i, long *low, long *high, double *part)
{
    double at = how == 0   ? (double)(i * size / n)
                : how == 1 ? fmax((double)(size * (2 * i + 1) - n) / (double)(2 * n), 0)
                : n > 1    ? (double)(i * (size - 1)) / (double)(n - 1)
                           : 0;
    *low = (long)at;
    *high = *low + 1 < size ? *low + 1 : *low;
    *part = at - (double)*low;
}

ref_value *ref_upsample(const ref_value *x, long height, long width, int how)
{
    ref_value *y;
    long d[6], row[2], column[2], h, w, c;
    double down, right;
    if (!x)
        return NULL;
    h = x->d[1], w = x->d[2], c = x->d[3];
    d[0] = x->d[0], d[1] = height, d[2] = width, d[3] = c;
    y = ref_new(4, d);
    for (long i = 0; i < ref_elements(y); i++) {
        const double *image = x->v + i / c / width / height * h * w * c + i % c;
        look(how, h, height, i / c / width % height, &row[0], &row[1], &down);
        look(how, w, width, i / c % width, &column[0], &column[1], &right);
        for (int k = 0; k < 4; k++)
            y->v[i] += (k / 2 ? down : 1 - down) * (k % 2 ? right : 1 - right) *
                       image[(row[k / 2] * w + column[k % 2]) * c];
    }
    return y;
}

static ref_value *new_loss(void)
{
    return ref_new(0, NULL);
}

ref_value *ref_cross_entropy(const ref_value *logits, const ref_value *targets)
{
    ref_value *loss;
    long V;
    if (!logits || !targets)
        return NULL;
    loss = new_loss();
    V = last(logits);
    for (long i = 0; i < ref_elements(targets); i++) {
        const double *s = logits->v + i * V;
        double most = s[0], sum = 0;
        if (targets->v[i] < 0)
            continue;
        for (long j = 0; j < V; j++)
            most = s[j] > most ? s[j] : most;
        for (long j = 0; j < V; j++)
            sum += exp(s[j] - most);
        loss->v[0] += most + log(sum) - s[(long)targets->v[i]];
        loss->v[1] += 1;
    }
    return loss;
}

ref_value *ref_mean_squared_error(const ref_value *prediction, const ref_value *target)
{
    ref_value *loss;
    if (!prediction || !target)
        return NULL;
    loss = new_loss();
    for (long i = 0; i < ref_elements(prediction); i++)
        loss->v[0] += (prediction->v[i] - target->v[i]) * (prediction->v[i] - target->v[i]);
    loss->v[1] = (double)ref_elements(prediction);
    return loss;
}

ref_value *ref_sum_loss(const ref_value *x)
{
    ref_value *loss;
    if (!x)
        return NULL;
    loss = new_loss();
    for (long i = 0; i < ref_elements(x); i++)
        loss->v[0] += x->v[i];
    loss->v[1] = (double)ref_elements(x);
    return loss;
}

static double weight_of(const ref_value *weights, long i, long n)
{
    return weights ? weights->v[i / (n / ref_elements(weights))] : 1;
}

ref_value *ref_cross_entropy_with(const ref_value *logits, const ref_value *targets,
                                  const ref_value *weights, double smoothing)
{
    ref_value *loss;
    long V, rows;
    if (!logits || !targets)
        return NULL;
    loss = new_loss();
    V = last(logits);
    rows = ref_elements(logits) / V;
    for (long i = 0; i < rows; i++) {
        const double *s = logits->v + i * V;
        double most = s[0], sum = 0, all = 0;
        int soft = targets->n == logits->n;
        if (!soft && targets->v[i] < 0)
            continue;
        for (long j = 0; j < V; j++)
            most = s[j] > most ? s[j] : most;
        for (long j = 0; j < V; j++)
            sum += exp(s[j] - most);
        for (long j = 0; j < V; j++) {
            double t = soft ? targets->v[i * V + j]
                            : smoothing / (double)V + (j == (long)targets->v[i] ? 1 - smoothing : 0);
            all += t * (most + log(sum) - s[j]);
        }
        loss->v[0] += weight_of(weights, i, rows) * all;
        loss->v[1] += 1;
    }
    return loss;
}

ref_value *ref_errors(const ref_value *prediction, const ref_value *target,
                      const ref_value *weights, double (*f)(double x, double y, double option),
                      double option)
{
    ref_value *loss;
    long n;
    if (!prediction || !target)
        return NULL;
    loss = new_loss();
    n = ref_elements(prediction);
    for (long i = 0; i < n; i++)
        loss->v[0] += weight_of(weights, i, n) * f(prediction->v[i], target->v[i], option);
    loss->v[1] = (double)n;
    return loss;
}

double ref_squared(double x, double y, double unused)
{
    (void)unused;
    return (x - y) * (x - y);
}

double ref_huber(double x, double y, double delta)
{
    double size = fabs(x - y);
    return size < delta ? size * size / 2 : delta * (size - delta / 2);
}

/* Returns the binary cross-entropy of the logit x and the target y: -(y log s + (1 - y) log(1 - s)), s = 1 / (1 +
 * exp(-x)). */
double ref_binary_entropy(double x, double y, double unused)
{
    (void)unused;
    return y * log1p(exp(-x)) + (1 - y) * (log1p(exp(-x)) + x);
}

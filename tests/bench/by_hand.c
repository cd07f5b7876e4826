/* by_hand.c - implements by_hand.h. Loops are written so that compilers vectorise them: the innermost loop goes along
 * a row, and pragmas make gcc keep the sums of several rows in registers. Square roots and quotients are rounded as
 * in the library. */
#include "by_hand.h"
#include <math.h>
#include <string.h>

#define INLINED static inline __attribute__((always_inline))

/* Computes c = a b, or c += a b, for c (m,n), b (k,n) and a(i,p) = a[i * a_row + p * a_step], in blocks of `high`
 * rows and `wide` columns of c; high divides m, and wide divides n. */
#define PIECE(high, wide)                                                                          \
    for (int i = 0; i < m; i += high)                                                              \
        for (int j = 0; j < n; j += wide) {                                                        \
            float sum[high][wide];                                                                 \
            for (int r = 0; r < high; r++)                                                         \
                for (int l = 0; l < wide; l++)                                                     \
                    sum[r][l] = bias ? bias[j + l] : 0;                                            \
            for (int p = 0; p < k; p++)                                                            \
                _Pragma("GCC unroll 8") for (int r = 0; r < high; r++)                             \
                    _Pragma("GCC unroll 1") for (int l = 0; l < wide; l++) sum[r][l] +=            \
                    a[(i + r) * a_row + p * a_step] * b[p * n + j + l];                            \
            for (int r = 0; r < high; r++)                                                         \
                for (int l = 0; l < wide; l++)                                                     \
                    c[(i + r) * n + j + l] = sum[r][l];                                            \
        }
INLINED void product_8x32(int m, int n, int k, const float *a, int a_row, int a_step,
                          const float *b, const float *bias, float *c){ PIECE(8, 32) } INLINED
    void product_8x16(int m, int n, int k, const float *a, int a_row, int a_step, const float *b,
                      const float *bias, float *c){ PIECE(8, 16) } INLINED
    void product_8x10(int m, int n, int k, const float *a, int a_row, int a_step, const float *b,
                      const float *bias, float *c){ PIECE(8, 10) }

INLINED void transpose(const float *a, int rows, int columns, float *to)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            to[j * rows + i] = a[i * columns + j];
}

/* Returns e^x with a relative error of about 1e-7. */
INLINED float power_of_e(float x)
{
    float n = rintf(x * 1.44269504f), r = x - n * 0.693147181f, p = 1.0f / 720, power;
    int32_t bits = ((int32_t)n + 127) << 23;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1;
    p = p * r + 1;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

INLINED void adamw(float *restrict w, const float *restrict g, float *restrict m, float *restrict v,
                   int n, float lr, int step)
{
    const float rate = (float)((double)lr / (1 - pow((double)0.9f, step)));
    const float correct = (float)(1 / (1 - pow((double)0.999f, step)));
    for (int i = 0; i < n; i++) {
        m[i] = 0.9f * m[i] + 0.1f * g[i];
        v[i] = 0.999f * v[i] + 0.001f * (g[i] * g[i]);
        w[i] -= rate * (m[i] / (sqrtf(v[i] * correct) + 1e-8f));
    }
}

/* Replaces rows of logits by the gradients of the loss times scale. Returns the sum of losses. */
INLINED double cross_entropy(float *x, const int32_t *y, int rows, int n, float scale)
{
    double loss = 0;
    for (int r = 0; r < rows; r++, x += n) {
        float top = x[0], sum = 0;
        for (int j = 1; j < n; j++)
            top = x[j] > top ? x[j] : top;
        loss += (double)(top - x[y[r]]);
        for (int j = 0; j < n; j++)
            x[j] = power_of_e(x[j] - top);
        for (int j = 0; j < n; j++)
            sum += x[j];
        for (int j = 0; j < n; j++)
            x[j] *= scale / sum;
        loss += (double)logf(sum);
        x[y[r]] -= scale;
    }
    return loss;
}

INLINED void column_sums(const float *x, int rows, int n, float *to)
{
    memset(to, 0, (size_t)n * sizeof *to);
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < n; j++)
            to[j] += x[r * n + j];
}

double by_hand_mlp_128(mlp_state *s, const float *x, const int32_t *y, float lr, int step)
{
    enum { B = MLP_BATCH, I = MLP_IN, H = MLP_HIDDEN, O = MLP_OUT };
    static float h[B * H], dh[B * H], z[B * O], turned[O * H];
    product_8x32(B, H, I, x, I, 1, s->p.w1, s->p.b1, h);
    for (int i = 0; i < B * H; i++)
        h[i] = h[i] > 0 ? h[i] : 0;
    product_8x10(B, O, H, h, H, 1, s->p.w2, s->p.b2, z);
    double loss = cross_entropy(z, y, B, O, 1.0f / B) / B;
    product_8x10(H, O, B, h, 1, H, z, NULL, s->g.w2);
    column_sums(z, B, O, s->g.b2);
    transpose(s->p.w2, H, O, turned);
    product_8x32(B, H, O, z, O, 1, turned, NULL, dh);
    for (int i = 0; i < B * H; i++)
        dh[i] = h[i] > 0 ? dh[i] : 0;
    product_8x32(I, H, B, x, 1, I, dh, NULL, s->g.w1);
    column_sums(dh, B, H, s->g.b1);
    adamw(s->p.w1, s->g.w1, s->m.w1, s->v.w1, sizeof s->p / sizeof *s->p.w1, lr, step);
    return loss;
}

/* Trains on one row, for which the gradient of w1 is an outer product; the update computes it element by element. */
double by_hand_mlp_1(mlp_state *s, const float *x, const int32_t *y, float lr, int step)
{
    enum { I = MLP_IN, H = MLP_HIDDEN, O = MLP_OUT };
    float h[H], dh[H], z[O], g[H];
    memcpy(h, s->p.b1, sizeof h);
    for (int p = 0; p < I; p++)
        for (int j = 0; j < H; j++)
            h[j] += x[p] * s->p.w1[p * H + j];
    for (int j = 0; j < H; j++)
        h[j] = h[j] > 0 ? h[j] : 0;
    memcpy(z, s->p.b2, sizeof z);
    for (int p = 0; p < H; p++)
        for (int j = 0; j < O; j++)
            z[j] += h[p] * s->p.w2[p * O + j];
    double loss = cross_entropy(z, y, 1, O, 1);
    for (int p = 0; p < H; p++) {
        dh[p] = 0;
        for (int j = 0; j < O; j++) {
            s->g.w2[p * O + j] = h[p] * z[j];
            dh[p] += z[j] * s->p.w2[p * O + j];
        }
        dh[p] = h[p] > 0 ? dh[p] : 0;
    }
    adamw(s->p.w2, s->g.w2, s->m.w2, s->v.w2, H * O, lr, step);
    adamw(s->p.b2, z, s->m.b2, s->v.b2, O, lr, step);
    adamw(s->p.b1, dh, s->m.b1, s->v.b1, H, lr, step);
    for (int p = 0; p < I; p++) {
        for (int j = 0; j < H; j++)
            g[j] = x[p] * dh[j];
        adamw(s->p.w1 + p * H, g, s->m.w1 + p * H, s->v.w1 + p * H, H, lr, step);
    }
    return loss;
}

/* ---- the transformer ---- */
enum { T = GPT_T, C = GPT_C, UP = GPT_UP, V = GPT_V, HEADS = GPT_HEADS, D = C / HEADS };

INLINED void norm(const float *x, float *y, float *rstd)
{
    for (int t = 0; t < T; t++) {
        float sum = 0;
        for (int j = 0; j < C; j++)
            sum += x[t * C + j] * x[t * C + j];
        rstd[t] = 1 / sqrtf(sum / C + 1e-5f);
        for (int j = 0; j < C; j++)
            y[t * C + j] = x[t * C + j] * rstd[t];
    }
}

/* Adds the gradient of x to dx, where y = norm(x) and dy is the gradient of y. */
INLINED void norm_backward(const float *y, const float *rstd, const float *dy, float *dx)
{
    for (int t = 0; t < T; t++) {
        float dot = 0;
        for (int j = 0; j < C; j++)
            dot += dy[t * C + j] * y[t * C + j];
        for (int j = 0; j < C; j++)
            dx[t * C + j] += rstd[t] * (dy[t * C + j] - y[t * C + j] * (dot / C));
    }
}

/* Defines functions of a linear layer: the forward y = x w, and the backward dx = dy w', dw = x' dy, where '
 * transposes. */
#define LINEAR(name, in, out)                                                                      \
    INLINED void name(const float *x, const float *w, float *y)                                    \
    {                                                                                              \
        product_8x16(T, out, in, x, in, 1, w, NULL, y);                                            \
    }                                                                                              \
    INLINED void name##_backward(const float *x, const float *w, const float *dy, float *dx,       \
                                 float *dw)                                                        \
    {                                                                                              \
        float turned[in * out];                                                                    \
        transpose(w, in, out, turned);                                                             \
        product_8x16(T, in, out, dy, out, 1, turned, NULL, dx);                                    \
        product_8x16(in, out, T, x, 1, in, dy, NULL, dw);                                          \
    }
LINEAR(square, C, C)
LINEAR(upwards, C, UP)
LINEAR(downwards, UP, C)

/* Causal attention. part[h] (T,T) is the softmax of q k' / sqrt(D) over the keys up to the query's position, for head
 * h. */
INLINED void attention(const float *q, const float *k, const float *v, float (*part)[T][T],
                       float *out)
{
    const float scale = 1 / sqrtf(D);
    float keys[C * T];
    transpose(k, T, C, keys);
    memset(out, 0, T * C * sizeof *out);
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < T; t++) {
            float *p = part[h][t], sum = 0;
            memset(p, 0, T * sizeof *p);
            for (int d = h * D; d < h * D + D; d++)
                for (int s = 0; s < T; s++)
                    p[s] += q[t * C + d] * keys[d * T + s];
            for (int s = 0; s < T; s++)
                p[s] = s <= t ? power_of_e(p[s] * scale) : 0;
            for (int s = 0; s < T; s++)
                sum += p[s];
            for (int s = 0; s < T; s++)
                p[s] /= sum;
            for (int s = 0; s <= t; s++)
                for (int d = h * D; d < h * D + D; d++)
                    out[t * C + d] += p[s] * v[s * C + d];
        }
}

INLINED void attention_backward(const float *q, const float *k, const float *v, float (*part)[T][T],
                                const float *dout, float *dq, float *dk, float *dv)
{
    const float scale = 1 / sqrtf(D);
    float values[C * T];
    transpose(v, T, C, values);
    memset(dq, 0, T * C * sizeof *dq);
    memset(dk, 0, T * C * sizeof *dk);
    memset(dv, 0, T * C * sizeof *dv);
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < T; t++) {
            float *p = part[h][t], dp[T] = { 0 }, dot = 0;
            for (int d = h * D; d < h * D + D; d++)
                for (int s = 0; s < T; s++)
                    dp[s] += dout[t * C + d] * values[d * T + s];
            for (int s = 0; s < T; s++)
                dot += dp[s] * p[s];
            for (int s = 0; s < T; s++)
                dp[s] = p[s] * (dp[s] - dot) * scale;
            for (int s = 0; s <= t; s++)
                for (int d = h * D; d < h * D + D; d++) {
                    dv[s * C + d] += p[s] * dout[t * C + d];
                    dq[t * C + d] += dp[s] * k[s * C + d];
                    dk[s * C + d] += dp[s] * q[t * C + d];
                }
        }
}

/* The logistic function of 2 u with u = 0.797.. (x + 0.0447.. x^3); x times it is GELU by tanh. */
INLINED float logistic(float x)
{
    return 1 / (1 + power_of_e(-1.59576912f * (x + 0.044715f * x * x * x)));
}

double by_hand_gpt(gpt_state *s, const int32_t *tokens, const int32_t *targets, float lr, int step)
{
    static float x0[T * C], n1[T * C], q[T * C], k[T * C], v[T * C], part[HEADS][T][T], a[T * C];
    static float x1[T * C], n2[T * C], u[T * UP], y[T * UP], x2[T * C], n3[T * C], z[T * V];
    static float dx[T * C], dn[T * C], da[T * C], dq[T * C], dk[T * C], dv[T * C], du[T * UP];
    float r1[T], r2[T], r3[T];
    const gpt_params *w = &s->p;
    gpt_params *g = &s->g;
    for (int t = 0; t < T; t++)
        for (int j = 0; j < C; j++)
            x0[t * C + j] = w->letters[tokens[t] * C + j] + w->places[t * C + j];
    norm(x0, n1, r1);
    square(n1, w->q, q);
    square(n1, w->k, k);
    square(n1, w->v, v);
    attention(q, k, v, part, a);
    square(a, w->o, x1);
    for (int i = 0; i < T * C; i++)
        x1[i] += x0[i];
    norm(x1, n2, r2);
    upwards(n2, w->up, u);
    for (int i = 0; i < T * UP; i++)
        y[i] = u[i] * logistic(u[i]);
    downwards(y, w->down, x2);
    for (int i = 0; i < T * C; i++)
        x2[i] += x1[i];
    norm(x2, n3, r3);
    square(n3, w->head, z);
    double loss = cross_entropy(z, targets, T, V, 1.0f / T) / T;

    square_backward(n3, w->head, z, dn, g->head);
    memset(dx, 0, sizeof dx);
    norm_backward(n3, r3, dn, dx);
    downwards_backward(y, w->down, dx, du, g->down);
    for (int i = 0; i < T * UP; i++) {
        float l = logistic(u[i]);
        du[i] *= l + u[i] * l * (1 - l) * 1.59576912f * (1 + 0.134145f * u[i] * u[i]);
    }
    upwards_backward(n2, w->up, du, dn, g->up);
    norm_backward(n2, r2, dn, dx);
    square_backward(a, w->o, dx, da, g->o);
    attention_backward(q, k, v, part, da, dq, dk, dv);
    square_backward(n1, w->q, dq, dn, g->q);
    square_backward(n1, w->k, dk, da, g->k);
    for (int i = 0; i < T * C; i++)
        dn[i] += da[i];
    square_backward(n1, w->v, dv, da, g->v);
    for (int i = 0; i < T * C; i++)
        dn[i] += da[i];
    norm_backward(n1, r1, dn, dx);
    memcpy(g->places, dx, sizeof dx);
    memset(g->letters, 0, sizeof g->letters);
    for (int t = 0; t < T; t++)
        for (int j = 0; j < C; j++)
            g->letters[tokens[t] * C + j] += dx[t * C + j];
    adamw(s->p.letters, g->letters, s->m.letters, s->v.letters, sizeof s->p / sizeof *s->p.letters,
          lr, step);
    return loss;
}

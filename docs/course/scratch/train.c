/* train.c - training in few bytes, the whole idea from tensors to AdamW, without any library.
 *
 *     cc -std=c99 -O3 -march=native -ffp-contract=off train.c -o train -lm && ./train
 *
 * It trains the GPT of lesson 5 with several schedules and prints for each one the bytes that it
 * needed at its peak. The losses and the hash of the weights are the same for all of them, and the
 * same to the last bit as those of gradckpt.h. (Without -march=native it has the same bits, slowly.)
 *
 * Read it from top to bottom:
 *     1. Tensors     arrays of floats, whose bytes are counted
 *     2. Products    matrix products and sums, with a fixed order of additions
 *     3. Ops         each one with a forward, the formula of its derivative, and a backward
 *     4. The tape    the list of ops that is the network
 *     5. Schedules   lists of "forward i", "backward i", "forget i"
 *     6. A step      run the schedule for each micro-batch, divide once, update with AdamW
 *     7. main        trains with every schedule
 *     8. Functions   exp, log, random numbers: the same bits on every machine
 *
 * Floats round, so (a + b) + c is not a + (b + c). Equal bits need a fixed order of every sum.
 * Most sums here are a chain: s = fmaf(a, b, s) adds the product a b to s and rounds once. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 256, TILE = 64, LANES = 32, MOST_OPS = 256, MOST_PARAMETERS = 256 };

typedef struct {
    int blocks, heads, width, context; /* of the GPT; context is the number of tokens in a row */
    int rows, micro;                   /* rows of a step, and rows at once, which divide them */
    int unequal;                       /* if nonzero, rows have between 1 and `context` targets */
    float lr, weight_decay;
    uint64_t seed;
    const char *text; /* to learn */
} config;

typedef struct {
    char name[24];
    int rows, columns; /* vectors (biases, gains) have 1 row */
    float *value, *gradient;
    float *m, *v; /* state of AdamW: means of the gradient and of its square */
} parameter;

/* An op and its result, the tensor (tokens,width). The index of the op is also that of the tensor. */
typedef struct {
    const struct rule *rule;
    int in[3], inputs;       /* the tensors that it reads */
    int width, saved;        /* floats of the result for each token; more that the backward needs */
    parameter *weight, *bias;
    float *value, *gradient; /* of the result; NULL while they are not kept */
    float *dweight, *dbias;  /* sums over all rows of a step */
    float *lost;             /* digits that the vector's sum has lost (add_compensated) */
} op;

typedef struct {
    config c;
    op op[MOST_OPS]; /* the tape: an op reads tensors of earlier ops only */
    parameter parameter[MOST_PARAMETERS];
    int ops, parameters, tokens; /* tokens of a micro-batch: micro rows times context */
    int *token, *target;         /* of the micro-batch; target -1: no loss */
    float *cosine, *sine;        /* (context, head size / 2), for rotary */
    float scale;                 /* derivative of the training's loss by the sum of losses */
    double loss;                 /* sum of the losses of a step */
    size_t bytes, peak;          /* of kept values and gradients: now, and at most */
    int forwards;                /* forward ops of a micro-batch */
} model;

/* What the backward of an op reads, apart from the gradient of its result. */
enum { READS_NOTHING = 0, READS_INPUTS = 1, READS_RESULT = 2 };
typedef struct rule {
    const char *name;
    void (*forward)(model *m, op *o);
    void (*backward)(model *m, op *o);
    int reads;
} rule;

/* Section 8 defines these. The functions of math.h would have other bits on other machines. */
static float exact_exp(float x);
static float exact_log(float x);
static float exact_tanh(float x);
static uint64_t random_bits(uint64_t seed, uint64_t a, uint64_t b);
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n);
static void random_normal(float *x, int n, uint64_t seed, const char *name, float deviation);
static void rotary_table(float *cosine, float *sine, int context, int half);

static void fail(const char *what, int at, int op)
{
    fprintf(stderr, "entry %d of the schedule, op %d: %s\n", at, op, what);
    exit(1);
}

/* ---- 1. Tensors ------------------------------------------------------------------------------
 * Values of a network's tensors (activations) and their gradients are the memory that a schedule
 * can save. All of it comes from keep and returns by forget, which count. */
static float *zeros(size_t n)
{
    float *x = calloc(n, sizeof *x);
    if (x == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return x;
}

static float *keep(model *m, int floats)
{
    m->bytes += (size_t)floats * sizeof(float);
    m->peak = m->bytes > m->peak ? m->bytes : m->peak;
    return zeros((size_t)floats);
}

static void forget(model *m, float **x, int floats)
{
    if (*x != NULL)
        m->bytes -= (size_t)floats * sizeof(float);
    free(*x);
    *x = NULL;
}

static int value_floats(const model *m, const op *o) { return m->tokens * (o->width + o->saved); }

static const float *value_of(const model *m, int i) { return m->op[i].value; }

/* Returns the gradient of tensor i, to which backwards add. The first one finds zeros. */
static float *gradient_of(model *m, int i)
{
    op *o = &m->op[i];
    if (o->gradient == NULL)
        o->gradient = keep(m, m->tokens * o->width);
    return o->gradient;
}

/* ---- 2. Products and sums --------------------------------------------------------------------
 * Each element of a product is one chain over k, which continues the value that is there. So a
 * weight's gradient continues from one micro-batch to the next, in the order of the rows. */
static void add_a_b(float *y, const float *a, const float *b, int rows, int n, int columns)
{
    for (int i = 0; i < rows; i++) /* y (rows,columns) += a (rows,n) b (n,columns) */
        for (int k = 0; k < n; k++)
            for (int j = 0; j < columns; j++)
                y[i * columns + j] = fmaf(a[i * n + k], b[k * columns + j], y[i * columns + j]);
}

static void add_a_bt(float *y, const float *a, const float *b, int rows, int n, int columns)
{
    for (int i = 0; i < rows; i++) /* y (rows,columns) += a (rows,n) b' with b (columns,n) */
        for (int k = 0; k < n; k++)
            for (int j = 0; j < columns; j++)
                y[i * columns + j] = fmaf(a[i * n + k], b[j * n + k], y[i * columns + j]);
}

static void add_at_b(float *y, const float *a, const float *b, int rows, int n, int columns)
{
    for (int k = 0; k < n; k++) /* y (rows,columns) += a' b with a (n,rows) and b (n,columns) */
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++)
                y[i * columns + j] = fmaf(a[k * rows + i], b[k * columns + j], y[i * columns + j]);
}

/* Returns the sum of a b (b NULL: of a) in 32 lanes, so that a vector unit can add 32 at a time:
 * lane i has elements i, i + 32, ..; at the end the upper half is added to the lower half. */
static float lane_sum(const float *a, const float *b, int n)
{
    float lane[LANES] = { 0 };
    for (int i = 0; i < n; i++)
        lane[i % LANES] = b ? fmaf(a[i], b[i], lane[i % LANES]) : lane[i % LANES] + a[i];
    for (int h = LANES / 2; h > 0; h /= 2)
        for (int i = 0; i < h; i++)
            lane[i] += lane[i + h];
    return lane[0];
}

/* Adds x to *sum. *lost is what earlier additions have rounded away (Kahan 1965). A bias adds a term
 * for each token of the batch, where a plain sum would lose many digits. */
static void add_compensated(float *sum, float *lost, float x)
{
    const float y = x - *lost, t = *sum + y;
    *lost = (t - *sum) - y;
    *sum = t;
}

/* ---- 3. Ops ----------------------------------------------------------------------------------
 * g is the gradient of the loss by the op's result y. A backward adds to the gradient of each input
 * x what the chain rule gives, dx = g dy/dx, because x may have several readers. */

/* embed: y = the table's row of each token. Backward: that row's gradient gets g. */
static void embed_forward(model *m, op *o)
{
    for (int t = 0; t < m->tokens; t++)
        memcpy(o->value + t * o->width, o->weight->value + m->token[t] * o->width,
               (size_t)o->width * sizeof(float));
}

static void embed_backward(model *m, op *o)
{
    for (int t = 0; t < m->tokens; t++)
        for (int i = 0; i < o->width; i++)
            o->dweight[m->token[t] * o->width + i] += o->gradient[t * o->width + i];
}

/* linear: y = x w + bias. Backward: dx = g w', dw = x' g, dbias = sum of g over tokens. */
static void linear_forward(model *m, op *o)
{
    for (int t = 0; t < m->tokens; t++)
        memcpy(o->value + t * o->width, o->bias->value, (size_t)o->width * sizeof(float));
    add_a_b(o->value, value_of(m, o->in[0]), o->weight->value, m->tokens, o->weight->rows, o->width);
}

static void linear_backward(model *m, op *o)
{
    const int n = o->weight->rows;
    add_a_bt(gradient_of(m, o->in[0]), o->gradient, o->weight->value, m->tokens, o->width, n);
    add_at_b(o->dweight, value_of(m, o->in[0]), o->gradient, n, m->tokens, o->width);
    for (int t = 0; t < m->tokens; t++)
        for (int i = 0; i < o->width; i++)
            add_compensated(&o->dbias[i], &o->lost[i], o->gradient[t * o->width + i]);
}

/* logits: y = x table', a score for each class. Backward: dx = g table, dtable = g' x. */
static void logits_forward(model *m, op *o)
{
    const float *x = value_of(m, o->in[0]);
    add_a_bt(o->value, x, o->weight->value, m->tokens, o->weight->columns, o->width);
}

static void logits_backward(model *m, op *o)
{
    const int n = o->weight->columns;
    add_a_b(gradient_of(m, o->in[0]), o->gradient, o->weight->value, m->tokens, o->width, n);
    add_at_b(o->dweight, o->gradient, value_of(m, o->in[0]), o->width, m->tokens, n);
}

/* norm (rmsnorm): h = x r with r = 1 / sqrt(mean of x^2 + 1e-5), y = h gain.
 * Backward: with u = g gain, dx = r (u - h mean of (u h)), dgain = sum of g h over tokens. */
static float norm_row(float *h, const float *x, int n)
{
    const float r = 1 / sqrtf(lane_sum(x, x, n) / (float)n + 1e-5f);
    for (int i = 0; i < n; i++)
        h[i] = x[i] * r;
    return r;
}

static void norm_forward(model *m, op *o)
{
    for (int t = 0; t < m->tokens; t++) {
        float *y = o->value + t * o->width;
        norm_row(y, value_of(m, o->in[0]) + t * o->width, o->width);
        for (int i = 0; i < o->width; i++)
            y[i] *= o->weight->value[i];
    }
}

static void norm_backward(model *m, op *o)
{
    const int n = o->width;
    float *h = zeros((size_t)n), *u = zeros((size_t)n), *dx = gradient_of(m, o->in[0]);
    for (int t = 0; t < m->tokens; t++, dx += n) {
        const float *g = o->gradient + t * n;
        const float r = norm_row(h, value_of(m, o->in[0]) + t * n, n);
        for (int i = 0; i < n; i++) {
            u[i] = g[i] * o->weight->value[i];
            add_compensated(&o->dweight[i], &o->lost[i], g[i] * h[i]);
        }
        const float mean = lane_sum(u, h, n) / (float)n;
        for (int i = 0; i < n; i++)
            dx[i] = fmaf(r, fmaf(-h[i], mean, u[i]), dx[i]);
    }
    free(h), free(u);
}

/* add: y = a + b. Backward: da = g, db = g. */
static void add_forward(model *m, op *o)
{
    for (int i = 0; i < m->tokens * o->width; i++)
        o->value[i] = value_of(m, o->in[0])[i] + value_of(m, o->in[1])[i];
}

static void add_backward(model *m, op *o)
{
    for (int k = 0; k < 2; k++) {
        float *dx = gradient_of(m, o->in[k]);
        for (int i = 0; i < m->tokens * o->width; i++)
            dx[i] += o->gradient[i];
    }
}

/* gelu: y = x/2 (1 + t), t = tanh(x (k + c x^2)), k = sqrt(2/pi), c = 0.044715 k.
 * Backward: dx = g (x/2 (1 - t^2) (k + 3 c x^2) + (1 + t) / 2). */
static const float gelu_k = 0x1.988454p-1f, gelu_c = 0x1.2444f2p-5f;

static void gelu_forward(model *m, op *o)
{
    for (int i = 0; i < m->tokens * o->width; i++) {
        const float x = value_of(m, o->in[0])[i];
        o->value[i] = fmaf(x / 2, exact_tanh(x * fmaf(gelu_c, x * x, gelu_k)), x / 2);
    }
}

static void gelu_backward(model *m, op *o)
{
    float *dx = gradient_of(m, o->in[0]);
    for (int i = 0; i < m->tokens * o->width; i++) {
        const float x = value_of(m, o->in[0])[i];
        const float t = exact_tanh(x * fmaf(gelu_c, x * x, gelu_k));
        const float inner = fmaf(3 * gelu_c, x * x, gelu_k);
        const float derivative = fmaf(x / 2 * fmaf(-t, t, 1), inner, fmaf(0.5f, t, 0.5f));
        dx[i] = fmaf(o->gradient[i], derivative, dx[i]);
    }
}

/* rotary: turns each pair (x1, x2) of a head's halves by an angle that grows with the position, so
 * that a score depends on the distance of query and key. Backward: turns g back. */
static void turn_pairs(const model *m, float *y, const float *x, int width, float sign)
{
    const int size = width / m->c.heads, half = size / 2;
    for (int i = 0; i < m->tokens * width; i += size)
        for (int k = 0; k < half; k++) {
            const int at = i / width % m->c.context * half + k;
            const float cosine = m->cosine[at], sine = sign * m->sine[at];
            const float x1 = x[i + k], x2 = x[i + half + k];
            y[i + k] += fmaf(x1, cosine, -(x2 * sine));
            y[i + half + k] += fmaf(x2, cosine, x1 * sine);
        }
}

static void rotary_forward(model *m, op *o)
{
    turn_pairs(m, o->value, value_of(m, o->in[0]), o->width, 1);
}

static void rotary_backward(model *m, op *o)
{
    turn_pairs(m, gradient_of(m, o->in[0]), o->gradient, o->width, -1);
}

/* attention: for query t, s_j = q_t . k_j / sqrt(head size) for keys j <= t, p = softmax(s), and
 * y_t = sum of p_j v_j. It takes the keys in tiles of 64 and never keeps p: when a tile has a new
 * maximum, sum and y shrink by exp(old - new) (Milakov 2018). It saves log(sum of exp(s)) only, from
 * which the backward computes p again (Dao 2022): one more use of the idea of this file.
 * Backward: dp_j = g . v_j, ds_j = p_j (dp_j - g . y) / sqrt(head size),
 * dq = sum of ds_j k_j, dk_j += ds_j q, dv_j += p_j g. */
static float score(const float *q, const float *k, int size)
{
    float dot = 0;
    for (int i = 0; i < size; i++)
        dot = fmaf(q[i], k[i], dot);
    return dot * (1 / sqrtf((float)size));
}

static float attend(float *y, const float *q, const float *k, const float *v, int keys, int width,
                    int size)
{
    float e[TILE], max = -INFINITY, sum = 0;
    for (int first = 0; first < keys; first += TILE) {
        const int n = keys - first < TILE ? keys - first : TILE;
        const float old = max;
        for (int j = 0; j < n; j++) {
            e[j] = score(q, k + (first + j) * width, size);
            max = e[j] > max ? e[j] : max;
        }
        for (int j = 0; j < n; j++)
            e[j] = exact_exp(e[j] - max);
        const float shrink = exact_exp(old - max);
        sum = fmaf(sum, shrink, lane_sum(e, NULL, n));
        for (int i = 0; i < size; i++)
            y[i] *= shrink;
        for (int j = 0; j < n; j++)
            for (int i = 0; i < size; i++)
                y[i] = fmaf(e[j], v[(first + j) * width + i], y[i]);
    }
    for (int i = 0; i < size; i++)
        y[i] /= sum;
    return max + exact_log(sum);
}

static void attention_forward(model *m, op *o)
{
    const int width = o->width, heads = m->c.heads, size = width / heads, context = m->c.context;
    const float *q = value_of(m, o->in[0]), *k = value_of(m, o->in[1]), *v = value_of(m, o->in[2]);
    float *log_sum = o->value + m->tokens * width;
    for (int t = 0; t < m->tokens; t++)
        for (int h = 0; h < heads; h++) {
            const int at = t * width + h * size, first = (t - t % context) * width + h * size;
            log_sum[t * heads + h] =
                attend(o->value + at, q + at, k + first, v + first, t % context + 1, width, size);
        }
}

static void attention_backward(model *m, op *o)
{
    const int width = o->width, heads = m->c.heads, size = width / heads, context = m->c.context;
    const float *q = value_of(m, o->in[0]), *k = value_of(m, o->in[1]), *v = value_of(m, o->in[2]);
    const float *log_sum = o->value + m->tokens * width, scale = 1 / sqrtf((float)size);
    float *dq = gradient_of(m, o->in[0]), *dk = gradient_of(m, o->in[1]);
    float *dv = gradient_of(m, o->in[2]);
    for (int h = 0; h < heads; h++)
        for (int t = 0; t < m->tokens; t++) {
            const int at = t * width + h * size;
            const float *g = o->gradient + at, gy = lane_sum(g, o->value + at, size);
            for (int j = t - t % context; j <= t; j++) {
                const int key = j * width + h * size;
                const float p = exact_exp(score(q + at, k + key, size) - log_sum[t * heads + h]);
                float dp = 0;
                for (int i = 0; i < size; i++)
                    dp = fmaf(g[i], v[key + i], dp);
                const float ds = p * (dp - gy) * scale;
                for (int i = 0; i < size; i++) {
                    dq[at + i] = fmaf(ds, k[key + i], dq[at + i]);
                    dk[key + i] = fmaf(ds, q[at + i], dk[key + i]);
                    dv[key + i] = fmaf(p, g[i], dv[key + i]);
                }
            }
        }
}

/* loss (cross-entropy): y = log(sum of exp(z_j)) - z_target for each token that has a target.
 * Backward: dz_j = scale (p_j - 1 if j is the target, else p_j), p = softmax(z). The losses are
 * summed here, since a schedule may compute a forward twice but never a backward. */
static float log_sum_exp(const float *z, int n, float *max)
{
    float e[VOCABULARY];
    *max = -INFINITY;
    for (int j = 0; j < n; j++)
        *max = z[j] > *max ? z[j] : *max;
    for (int j = 0; j < n; j++)
        e[j] = exact_exp(z[j] - *max);
    return exact_log(lane_sum(e, NULL, n));
}

static void loss_forward(model *m, op *o)
{
    for (int t = 0; t < m->tokens; t++) {
        const float *z = value_of(m, o->in[0]) + t * VOCABULARY;
        float max;
        const float log_sum = log_sum_exp(z, VOCABULARY, &max);
        o->value[t] = m->target[t] < 0 ? 0 : log_sum - (z[m->target[t]] - max);
    }
}

static void loss_backward(model *m, op *o)
{
    float *dz = gradient_of(m, o->in[0]);
    for (int t = 0; t < m->tokens; t++, dz += VOCABULARY) {
        const float *z = value_of(m, o->in[0]) + t * VOCABULARY;
        float max;
        const float log_sum = log_sum_exp(z, VOCABULARY, &max);
        m->loss += (double)o->value[t];
        for (int j = 0; j < VOCABULARY && m->target[t] >= 0; j++) {
            const float p = exact_exp((z[j] - max) - log_sum);
            dz[j] += m->scale * (p - (j == m->target[t] ? 1.0f : 0.0f));
        }
    }
}

/* What a backward reads decides what must be kept: add and rotary need nothing of the forward. */
static const rule embed = { "embed", embed_forward, embed_backward, READS_NOTHING };
static const rule linear = { "linear", linear_forward, linear_backward, READS_INPUTS };
static const rule logits = { "logits", logits_forward, logits_backward, READS_INPUTS };
static const rule norm = { "norm", norm_forward, norm_backward, READS_INPUTS };
static const rule add = { "add", add_forward, add_backward, READS_NOTHING };
static const rule gelu = { "gelu", gelu_forward, gelu_backward, READS_INPUTS };
static const rule rotary = { "rotary", rotary_forward, rotary_backward, READS_NOTHING };
static const rule attention = { "attention", attention_forward, attention_backward,
                                READS_INPUTS | READS_RESULT };
static const rule cross_entropy = { "cross_entropy", loss_forward, loss_backward,
                                    READS_INPUTS | READS_RESULT };

/* ---- 4. The tape -----------------------------------------------------------------------------
 * The network is a list of ops. Forward is a walk from the first to the last, backward the walk back:
 * when op i is reached, all its readers have added to its gradient. */
enum { NONE = -1 };

static int record(model *m, const rule *r, int width, int a, int b, int c)
{
    const int in[3] = { a, b, c };
    op *o = &m->op[m->ops];
    o->rule = r, o->width = width;
    while (o->inputs < 3 && in[o->inputs] != NONE)
        o->in[o->inputs] = in[o->inputs], o->inputs++;
    return m->ops++;
}

static parameter *new_parameter(model *m, const char *part, int number, int rows, int columns)
{
    parameter *p = &m->parameter[m->parameters++];
    snprintf(p->name, sizeof p->name, "%s %d", part, number);
    const size_t n = (size_t)rows * (size_t)columns;
    p->rows = rows, p->columns = columns;
    p->value = zeros(n), p->gradient = zeros(n), p->m = zeros(n), p->v = zeros(n);
    return p;
}

static int elements(const parameter *p) { return p->rows * p->columns; }

/* Gives op i its parameters. Each use of a parameter has a separate sum for its gradient: the table
 * has two, of embed and of logits. */
static int with(model *m, int i, parameter *weight, parameter *bias)
{
    op *o = &m->op[i];
    o->weight = weight, o->bias = bias;
    o->dweight = zeros((size_t)elements(weight));
    o->dbias = zeros((size_t)o->width);
    o->lost = zeros((size_t)o->width);
    return i;
}

static int normalise(model *m, int x, const char *part, int number)
{
    const int y = record(m, &norm, m->op[x].width, x, NONE, NONE);
    parameter *gain = new_parameter(m, part, number, 1, m->op[x].width);
    for (int i = 0; i < gain->columns; i++)
        gain->value[i] = 1;
    return with(m, y, gain, NULL);
}

static int dense(model *m, int x, const char *part, int number, int width)
{
    const int n = m->op[x].width, y = record(m, &linear, width, x, NONE, NONE);
    char bias[16];
    snprintf(bias, sizeof bias, "%s bias", part);
    parameter *w = new_parameter(m, part, number, n, width);
    random_normal(w->value, n * width, m->c.seed, w->name, (float)(1 / sqrt((double)n)));
    return with(m, y, w, new_parameter(m, bias, number, 1, width));
}

static int block(model *m, int x, int number)
{
    const int c = m->c.width;
    int a = normalise(m, x, "norm", number);
    const int q = record(m, &rotary, c, dense(m, a, "q", number, c), NONE, NONE);
    const int k = record(m, &rotary, c, dense(m, a, "k", number, c), NONE, NONE);
    const int v = dense(m, a, "v", number, c);
    a = record(m, &attention, c, q, k, v);
    m->op[a].saved = m->c.heads;
    x = record(m, &add, c, x, dense(m, a, "out", number, c), NONE);
    a = dense(m, normalise(m, x, "norm2", number), "up", number, 4 * c);
    a = dense(m, record(m, &gelu, 4 * c, a, NONE, NONE), "down", number, c);
    return record(m, &add, c, x, a, NONE);
}

static model *new_gpt(const config *c)
{
    model *m = calloc(1, sizeof *m);
    if (m == NULL || c->rows % c->micro != 0 || c->width % (2 * c->heads) != 0 || c->blocks > 15)
        fail("rows must be a multiple of micro, width of 2 heads; at most 15 blocks", 0, 0);
    const int half = c->width / c->heads / 2;
    m->c = *c, m->tokens = c->micro * c->context, m->scale = 1;
    m->token = calloc((size_t)m->tokens, sizeof(int));
    m->target = calloc((size_t)m->tokens, sizeof(int));
    m->cosine = zeros((size_t)(c->context * half)), m->sine = zeros((size_t)(c->context * half));
    rotary_table(m->cosine, m->sine, c->context, half);
    parameter *table = new_parameter(m, "table", 0, VOCABULARY, c->width);
    random_normal(table->value, elements(table), c->seed, table->name, 0.02f);
    int x = with(m, record(m, &embed, c->width, NONE, NONE, NONE), table, NULL);
    for (int i = 0; i < c->blocks; i++)
        x = block(m, x, i);
    x = record(m, &logits, VOCABULARY, normalise(m, x, "last", 0), NONE, NONE);
    record(m, &cross_entropy, 1, with(m, x, table, NULL), NONE, NONE);
    return m;
}

static void free_gpt(model *m)
{
    for (int i = 0; i < m->ops; i++)
        free(m->op[i].dweight), free(m->op[i].dbias), free(m->op[i].lost);
    for (int i = 0; i < m->parameters; i++) {
        parameter *p = &m->parameter[i];
        free(p->value), free(p->gradient), free(p->m), free(p->v);
    }
    free(m->token), free(m->target), free(m->cosine), free(m->sine), free(m);
}

/* ---- 5. Schedules ----------------------------------------------------------------------------
 * A schedule is a list of entries that computes one micro-batch. Every schedule has each backward
 * once, in descending order. It may repeat forwards, so it need not keep every tensor. */
enum { FORWARD, BACKWARD, FORGET };
typedef struct {
    int what, op;
} entry;
typedef struct {
    entry *entry;
    int count;
} schedule;

static void append(schedule *s, int what, int op)
{
    s->entry = realloc(s->entry, (size_t)(s->count + 1) * sizeof *s->entry);
    if (s->entry == NULL)
        exit(1);
    s->entry[s->count].what = what, s->entry[s->count++].op = op;
}

/* Returns whether one of the ops in `readers` reads tensor i. */
static int is_read(const model *m, int i, const char *readers)
{
    for (int j = i + 1; j < m->ops; j++)
        for (int k = 0; k < m->op[j].inputs; k++)
            if (readers[j] && m->op[j].in[k] == i)
                return 1;
    return 0;
}

/* Appends the forwards that make the wanted tensors live: first it finds which are missing, from the
 * last op to the first, then it computes them in order. A tensor that is neither wanted nor held is
 * forgotten as soon as no missing op reads it. */
static void make_live(const model *m, schedule *s, char *live, const char *wanted, const char *held)
{
    char missing[MOST_OPS] = { 0 };
    for (int i = m->ops - 1; i >= 0; i--)
        missing[i] = !live[i] && (wanted[i] || is_read(m, i, missing));
    for (int i = 0; i < m->ops; i++) {
        if (!missing[i])
            continue;
        append(s, FORWARD, i);
        live[i] = 1, missing[i] = 0;
        for (int j = 0; j <= i; j++)
            if (live[j] && !wanted[j] && !held[j] && !is_read(m, j, missing)) {
                append(s, FORGET, j);
                live[j] = 0;
            }
    }
}

/* The schedule that keeps the tensors in `kept` during the forward, and those in `held` once the
 * backward has needed and recomputed them, until their own backward. */
static schedule keep_and_recompute(const model *m, const char *kept, const char *held)
{
    schedule s = { NULL, 0 };
    char live[MOST_OPS] = { 0 }, wanted[MOST_OPS] = { 0 };
    wanted[m->ops - 1] = 1;
    make_live(m, &s, live, wanted, kept);
    for (int i = m->ops - 1; i >= 0; i--) {
        const op *o = &m->op[i];
        memset(wanted, 0, sizeof wanted);
        wanted[i] = (o->rule->reads & READS_RESULT) != 0;
        for (int k = 0; k < o->inputs && o->rule->reads & READS_INPUTS; k++)
            wanted[o->in[k]] = 1;
        make_live(m, &s, live, wanted, held);
        append(&s, BACKWARD, i);
        for (int j = 0; j < m->ops; j++)
            if (live[j] && (j == i || !held[j])) {
                append(&s, FORGET, j);
                live[j] = 0;
            }
    }
    return s;
}

static schedule store_all(const model *m)
{
    char all[MOST_OPS];
    memset(all, 1, sizeof all);
    return keep_and_recompute(m, all, all);
}

/* The least memory: each backward computes again, from the tokens on, what it reads. */
static schedule keep_nothing(const model *m)
{
    const char none[MOST_OPS] = { 0 };
    return keep_and_recompute(m, none, none);
}

/* Segments: keeps the results of add. No other tensor passes from one half of a block to the next,
 * so the backward recomputes half a block at a time (Chen 2016). */
static schedule segments(const model *m)
{
    char kept[MOST_OPS] = { 0 }, all[MOST_OPS];
    memset(all, 1, sizeof all);
    for (int i = 0; i < m->ops; i++)
        kept[i] = m->op[i].rule == &add;
    return keep_and_recompute(m, kept, all);
}

/* The square-root rule: segments of sqrt(n) ops. It keeps the tensors that an op before a boundary
 * computes and an op after it reads. A chain has one at each boundary, this network up to four. */
static schedule sqrt_n(const model *m)
{
    const int size = (int)ceil(sqrt((double)m->ops));
    char kept[MOST_OPS] = { 0 }, all[MOST_OPS], later[MOST_OPS];
    memset(all, 1, sizeof all);
    for (int end = size; end < m->ops; end += size) {
        for (int j = 0; j < m->ops; j++)
            later[j] = j >= end;
        for (int i = 0; i < end; i++)
            kept[i] |= (char)is_read(m, i, later);
    }
    return keep_and_recompute(m, kept, all);
}

/* Reads a schedule that you have written: lines "forward 0", "backward 31", "forget 3". */
static schedule read_schedule(const model *m, FILE *file)
{
    schedule s = { NULL, 0 };
    char word[16];
    int i;
    while (fscanf(file, "%15s %d", word, &i) == 2) {
        const int what = strcmp(word, "forward") == 0    ? FORWARD
                         : strcmp(word, "backward") == 0 ? BACKWARD
                         : strcmp(word, "forget") == 0   ? FORGET
                                                         : -1;
        if (what < 0 || i < 0 || i >= m->ops)
            fail("a line is forward, backward or forget, and the number of an op", s.count, i);
        append(&s, what, i);
    }
    return s;
}

/* ---- 6. A step -------------------------------------------------------------------------------
 * Fills the micro-batch's row `place` with row `row` of a step; returns the number of its targets. */
static int draw_row(model *m, uint64_t step, int row, int place)
{
    const int context = m->c.context;
    const uint64_t bits = random_bits(m->c.seed, step, (uint64_t)row);
    const char *start = m->c.text + bits % (strlen(m->c.text) - (size_t)context);
    const int count = m->c.unequal ? 1 + (int)(bits >> 40) % context : context;
    for (int i = 0; i < context; i++) {
        m->token[place * context + i] = (unsigned char)start[i];
        m->target[place * context + i] = i < count ? (unsigned char)start[i + 1] : -1;
    }
    return count;
}

static void need(const model *m, int tensor, int at, int op)
{
    if (m->op[tensor].value == NULL) {
        fprintf(stderr, "tensor %d is not kept: insert \"forward %d\" before this. ", tensor, tensor);
        fail("reads a tensor that is not kept", at, op);
    }
}

/* Computes the losses and gradients of a micro-batch, and checks that the schedule is right. */
static void run(model *m, const schedule *s)
{
    int next = m->ops - 1; /* backward */
    m->forwards = 0;
    for (int at = 0; at < s->count; at++) {
        const int i = s->entry[at].op, what = s->entry[at].what;
        op *o = &m->op[i];
        for (int k = 0; k < o->inputs; k++)
            if (what == FORWARD || (what == BACKWARD && o->rule->reads & READS_INPUTS))
                need(m, o->in[k], at, i);
        if (what == FORGET || (what == BACKWARD && o->rule->reads & READS_RESULT))
            need(m, i, at, i);
        if (what == FORWARD && o->value != NULL)
            fail("its result is kept already", at, i);
        if (what == BACKWARD && i != next--)
            fail("backwards must come from the last op to the first, each one once", at, i);
        if (what == FORWARD) {
            o->value = keep(m, value_floats(m, o));
            o->rule->forward(m, o);
            m->forwards++;
        } else if (what == BACKWARD) {
            o->rule->backward(m, o);
            forget(m, &o->gradient, m->tokens * o->width);
        } else {
            forget(m, &o->value, value_floats(m, o));
        }
    }
    if (next >= 0)
        fail("the schedule ends before its backward", s->count, next);
    for (int i = 0; i < m->ops; i++)
        forget(m, &m->op[i].value, value_floats(m, &m->op[i]));
}

static void clear(float *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = 0;
}

/* Sets the sums of a step to 0. */
static void begin_step(model *m)
{
    m->loss = 0;
    for (int i = 0; i < m->ops; i++) {
        op *o = &m->op[i];
        if (o->weight != NULL)
            clear(o->dweight, elements(o->weight)), clear(o->dbias, o->width), clear(o->lost, o->width);
    }
}

/* b^n, as every machine computes it */
static double power(double b, uint64_t n)
{
    double y = 1;
    for (; n > 0; n /= 2, b *= b)
        y = n % 2 ? y * b : y;
    return y;
}

/* AdamW (Loshchilov 2019): m and v are running means of the gradient and its square, which begin at 0
 * and are divided by 1 - b^step for that; w falls by lr m / sqrt(v). Only matrices decay. */
static void adamw(const config *c, parameter *p, uint64_t step)
{
    const float b1 = 0.9f, b2 = 0.999f, epsilon = 1e-8f;
    const float rate = (float)((double)c->lr / (1 - power((double)b1, step)));
    const float correct = (float)(1 / (1 - power((double)b2, step)));
    const float decay = p->rows > 1 ? c->lr * c->weight_decay : 0;
    for (int i = 0; i < elements(p); i++) {
        const float g = p->gradient[i], w = fmaf(-decay, p->value[i], p->value[i]);
        p->m[i] = fmaf(b1, p->m[i], (1 - b1) * g);
        p->v[i] = fmaf(b2, p->v[i], (1 - b2) * (g * g));
        p->value[i] = fmaf(-rate, p->m[i] / (sqrtf(p->v[i] * correct) + epsilon), w);
    }
}

/* Ends a step: adds the sums of a parameter's uses, divides once by all targets, and updates. */
static void update(model *m, uint64_t step, int targets)
{
    for (int k = 0; k < m->parameters; k++) {
        parameter *p = &m->parameter[k];
        clear(p->gradient, elements(p));
        for (int i = m->ops - 1; i >= 0; i--)
            for (int j = 0; j < elements(p); j++)
                if (m->op[i].weight == p || m->op[i].bias == p)
                    p->gradient[j] += m->op[i].weight == p ? m->op[i].dweight[j] : m->op[i].dbias[j];
        for (int j = 0; j < elements(p); j++)
            p->gradient[j] /= (float)targets;
        adamw(&m->c, p, step + 1);
    }
}

/* One step of training; returns the mean loss. The micro-batches' sums are added, and divided once:
 * a mean of their means would be wrong when they have unequal numbers of targets. */
static double train_step(model *m, const schedule *s, uint64_t step)
{
    int targets = 0;
    begin_step(m);
    for (int row = 0; row < m->c.rows; row += m->c.micro) {
        for (int i = 0; i < m->c.micro; i++)
            targets += draw_row(m, step, row + i, i);
        run(m, s);
    }
    update(m, step, targets);
    return m->loss / targets;
}

/* The hash FNV-1a of all weights, which is equal only if every bit is. */
static uint64_t hash_of_weights(const model *m)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int k = 0; k < m->parameters; k++)
        for (int i = 0; i < elements(&m->parameter[k]); i++) {
            uint32_t bits;
            memcpy(&bits, &m->parameter[k].value[i], 4);
            const unsigned char bytes[4] = { bits & 255, bits >> 8 & 255, bits >> 16 & 255, bits >> 24 };
            hash = hash_bytes(hash, bytes, 4);
        }
    return hash;
}

/* ---- 7. main --------------------------------------------------------------------------------- */
static const char verse[] = "Tyger Tyger, burning bright,\nIn the forests of the night;\n"
                            "What immortal hand or eye,\nCould frame thy fearful symmetry?\n";

static void train(const char *name, schedule (*plan)(const model *), int micro, int steps,
                  const char *path)
{
    const config c = { .blocks = 2, .heads = 2, .width = 32, .context = 32, .rows = 8, .micro = micro,
                       .lr = 0.01f, .seed = 1, .text = verse };
    model *m = new_gpt(&c);
    FILE *file = path ? fopen(path, "r") : NULL;
    if (path != NULL && file == NULL)
        fail("the file cannot be read", 0, 0);
    schedule s = file ? read_schedule(m, file) : plan(m);
    double loss = 0;
    for (int step = 0; step < steps; step++)
        loss = train_step(m, &s, (uint64_t)step);
    printf("%-14s %4d %9zu %9d %8.4f %016llx\n", name, micro, m->peak, m->forwards - m->ops, loss,
           (unsigned long long)hash_of_weights(m));
    if (file)
        fclose(file);
    free(s.entry), free_gpt(m);
}

int main(int argc, char **argv)
{
    const int steps = argc > 1 ? atoi(argv[1]) : 150;
    printf("schedule       rows     bytes  forwards     loss weights\n");
    if (argc > 2) {
        train(argv[2], NULL, argc > 3 ? atoi(argv[3]) : 8, steps, argv[2]);
        return 0;
    }
    for (int micro = 8; micro >= 1; micro /= 8) {
        train("store all", store_all, micro, steps, NULL);
        train("keep nothing", keep_nothing, micro, steps, NULL);
        train("segments", segments, micro, steps, NULL);
        train("sqrt(n)", sqrt_n, micro, steps, NULL);
    }
    return 0;
}

/* ---- 8. Functions ----------------------------------------------------------------------------
 * exp of one math library differs from another's in the last bit, and training makes a large
 * difference of it. So these are polynomials, computed in one order. Their coefficients minimise the
 * greatest error; docs/functions.txt has the same formulas. */
static float horner(float x, const float *c, int n)
{
    float p = c[n - 1];
    for (int i = n - 2; i >= 0; i--)
        p = fmaf(p, x, c[i]);
    return p;
}

/* Returns the whole number next to x y: a float of that size has no bits for a fraction. */
static float nearest(float x, float y) { return fmaf(x, y, 12582912.0f) - 12582912.0f; }

/* exp(x) = 2^n (1 + r p(r)) with n = x / log 2, to the nearest, and the rest r = x - n log 2 */
static float reduce(float x, float *r, float *p)
{
    static const float c[] = { 0x1p+0f,        0x1.fffffcp-2f, 0x1.555492p-3f,
                               0x1.5558b8p-5f, 0x1.1239aap-7f, 0x1.6a4508p-10f };
    const float n = nearest(x, 0x1.715476p+0f);
    *r = fmaf(n, 0x1.05c61p-29f, fmaf(n, -0x1.62e43p-1f, x));
    *p = horner(*r, c, 6);
    return n;
}

static float exact_exp(float x)
{
    float r, p;
    const float n = reduce(x < -104 ? -104 : x > 89 ? 89 : x, &r, &p);
    return ldexpf(fmaf(r, p, 1), (int)n);
}

/* A polynomial for |x| < 1, else 1 - 2 / (exp(2 |x|) + 1) */
static float exact_tanh(float x)
{
    static const float c[] = { -0x1.55553cp-2f, 0x1.110be4p-3f,  -0x1.b9623ap-5f, 0x1.6009a6p-6f,
                               -0x1.045ff4p-7f, 0x1.2da01ep-9f, -0x1.77cd56p-12f };
    const float a = fabsf(x);
    float r, p;
    if (a < 1)
        return copysignf(fmaf(a * (a * a), horner(a * a, c, 7), a), x);
    const float two_n = ldexpf(1, (int)reduce(a + a < 20 ? a + a : 20, &r, &p));
    return copysignf(1 - 2 / fmaf(r * two_n, p, two_n + 1), x);
}

/* x = 2^n (1 + f) with 2/3 <= 1 + f < 4/3, so log x = n log 2 + log(1 + f) */
static float exact_log(float x)
{
    static const float c[] = { 0x1.555556p-2f,  -0x1.ffff18p-3f, 0x1.9997eep-3f,
                               -0x1.55978cp-3f, 0x1.24eb6ep-3f,  -0x1.f3b02cp-4f,
                               0x1.b91efap-4f,  -0x1.06c2bap-3f, 0x1.e9d18ap-4f };
    int exponent;
    float f = frexpf(x, &exponent);
    if (f < 0x1.555556p-1f)
        f *= 2, exponent--;
    f -= 1;
    const float n = (float)exponent, high = fmaf(n, 0x1.63p-1f, f);
    const float rest = fmaf(n, -0x1.bd0106p-13f, f - (high - n * 0x1.63p-1f));
    const float low = fmaf(-0.5f, f * f, rest);
    return high + fmaf(f * (f * f), horner(f, c, 9), low);
}

/* Cosine and sine of quarter quarters of a turn and high + low, an angle of at most an eighth */
static void turn(int quarter, float high, float low, float *cosine, float *sine)
{
    static const float s[] = { -0x1.555556p-3f, 0x1.111174p-7f, -0x1.a0594cp-13f, 0x1.7c2842p-19f };
    static const float c[] = { 0x1.55554ap-5f, -0x1.6c0c26p-10f, 0x1.99e70ap-16f };
    const float z = high * high, one = fmaf(-0.5f, z, 1);
    const float y = high + fmaf(high * z, horner(z, s, 4), fmaf(-0.5f * z, low, low));
    float e = (1 - one) + -0.5f * z;
    e = fmaf(-high, low, fmaf(-0.5f, fmaf(high, high, -z), e));
    const float x = one + fmaf(z * z, horner(z, c, 3), e);
    *cosine = quarter == 0 ? x : quarter == 1 ? -y : quarter == 2 ? -x : y;
    *sine = quarter == 0 ? y : quarter == 1 ? x : quarter == 2 ? -y : -x;
}

/* Angles of rotary (Su 2021): pair i turns by 10000^(-i / half) radians a position, counted in 2^-64
 * of a turn, so whole turns vanish by overflow and the angle is exact at every position. */
static void rotary_table(float *cosine, float *sine, int context, int half)
{
    double ratio = 1, frequency = 2935890503282001226.0; /* 2^64 / (2 pi): one radian */
    for (int i = 0; i < 200; i++)                        /* Newton: ratio^half = 1 / 10000 */
        ratio -= ratio * (power(ratio, (uint64_t)half) - 1.0 / 10000) /
                 ((double)half * power(ratio, (uint64_t)half));
    for (int i = 0; i < half; i++, frequency *= ratio)
        for (int t = 0; t < context; t++) {
            const uint64_t angle = (uint64_t)t * (uint64_t)frequency;
            const int quarter = (int)((angle + (UINT64_C(1) << 61)) >> 62);
            const uint64_t rest = angle - ((uint64_t)quarter << 62);
            const int negative = rest >> 63 != 0;
            const uint64_t size = negative ? 0 - rest : rest;
            const float small = (float)(size >> 14 & 0xffffff) * 0x1.921fb6p-48f;
            const float high = fmaf((float)(size >> 38), 0x1.921fb6p-24f, small);
            turn(quarter, negative ? -high : high, 0, &cosine[t * half + i], &sine[t * half + i]);
        }
}

/* Philox4x32-10 (Salmon 2011): scrambles a counter; needs no state, so any number can be the first */
static void philox(uint32_t x[4], uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < 10; i++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t a = (uint64_t)x[0] * 0xD2511F53u, b = (uint64_t)x[2] * 0xCD9E8D57u;
        x[0] = (uint32_t)(b >> 32) ^ x[1] ^ k0, x[1] = (uint32_t)b;
        x[2] = (uint32_t)(a >> 32) ^ x[3] ^ k1, x[3] = (uint32_t)a;
    }
}

/* Initial values with a normal distribution (Box 1958): a pair r cos(a), r sin(a) from two uniform
 * numbers. The key depends on seed and name, so a new parameter does not change the others. */
static void random_normal(float *x, int n, uint64_t seed, const char *name, float deviation)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(seed >> 8 * i);
    const uint64_t key = hash_bytes(hash_bytes(0xcbf29ce484222325u, bytes, 8), name, strlen(name));
    for (int i = 0; i < n; i += 2) {
        uint32_t word[4] = { (uint32_t)i / 2, 0, 0, 0 };
        philox(word, key);
        const float r = sqrtf(-2 * exact_log((float)((word[0] >> 8) + 1) * 0x1p-24f));
        const float a = 0x1.921fb6p+2f * ((float)(word[1] >> 8) * 0x1p-24f);
        const float q = a > 0x1.921fb4p-1f ? nearest(a, 0x1.45f306p-1f) : 0;
        const float rest = fmaf(q, -0x1.921fb6p+0f, a), w = q * 0x1.777a5cp-25f, high = rest + w;
        const float b = high - rest, error = (rest - (high - b)) + (w - b);
        const float low = fmaf(q, 0x1.ee59dap-50f, error + fmaf(q, 0x1.777a5cp-25f, -w));
        float cosine, sine;
        turn((int)q % 4, high, low, &cosine, &sine);
        x[i] = deviation * (r * cosine);
        if (i + 1 < n)
            x[i + 1] = deviation * (r * sine);
    }
}

/* The hash FNV-1a */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

/* The finaliser of splitmix64 (Steele 2014), and random bits from it that choose the rows */
static uint64_t mixed(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t random_bits(uint64_t seed, uint64_t a, uint64_t b)
{
    return mixed(mixed(mixed(seed) ^ a) ^ b);
}

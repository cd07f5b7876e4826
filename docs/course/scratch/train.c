/* train.c - training in few bytes: the whole idea in plain C99, without a library.
 *
 *     cc -std=c99 -O3 -march=native -ffp-contract=off train.c -o train -lm && ./train
 *
 * It trains the GPT of lesson 5 by several schedules and prints the bytes that each one needs. The
 * losses and the hash of the weights do not depend on the schedule, and they are gradckpt.h's to the
 * last bit. (Without -march=native the bits are the same, but it takes ten times as long.) Read it
 * from top to bottom: 1 tensors, 2 sums, 3 ops, 4 the tape, 5 schedules, 6 a step, 7 main, and 8
 * functions such as exp, which have the same bits on every machine. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The model and its training. A row of the batch has `context` tokens (bytes of the text). */
enum { VOCABULARY = 256, MOST_CONTEXT = 64, MOST_OPS = 256, LANES = 32, NONE = -1 };
static int blocks = 2, heads = 2, width = 32, context = 32;
static int rows = 8, micro = 8; /* rows of a step; rows at once (a micro-batch), a divisor */
static int unequal = 0;         /* if nonzero, rows have between 1 and `context` targets */
static float lr = 0.01f, weight_decay = 0;
static uint64_t seed = 1;
static const char *text = "Tyger Tyger, burning bright,\nIn the forests of the night;\n"
                          "What immortal hand or eye,\nCould frame thy fearful symmetry?\n";

typedef struct {
    char name[32];
    int rows, columns;            /* a vector (bias, gain) has 1 row */
    float normal, constant;       /* initial values: standard deviation; or all the same */
    float *value, *mean, *square; /* AdamW has running means of the gradient and of its square */
} parameter;

/* An op and its result, the tensor (tokens,size). A tensor has the number of its op. */
typedef struct {
    const struct rule *rule;
    int in[3], inputs;       /* numbers of the tensors that it reads */
    int size;                /* floats of the result for each token */
    float *value, *gradient; /* of the result; NULL while not kept */
    parameter *weight, *bias;
    float *dweight, *dbias; /* their gradients, sums over all tokens of a step */
    float *lost;            /* digits that the sum of a vector has rounded away */
} op;

enum { READS_NOTHING = 0, READS_INPUTS = 1, READS_RESULT = 2 };
typedef struct rule {
    void (*forward)(op *o, int t, float *y);        /* computes y, the result for token t */
    void (*backward)(op *o, int t, const float *g); /* g: derivative of the loss by y */
    int reads;                                      /* by the backward, apart from g */
} rule;

static op tape[MOST_OPS];
static parameter parameters[MOST_OPS];
static int ops, parameter_count;
static int *token, *target;   /* of the micro-batch; target -1: no loss */
static float *cosine, *sine;  /* (context, head size / 2), of rotary's angles */
static float scale = 1;       /* derivative of what is minimised by the sum of losses */
static double loss;           /* sum of the losses of a step */
static size_t bytes, peak;    /* of tensors and their gradients: now, and at most */
static int forwards;          /* in a micro-batch */

/* Section 8 defines these. The functions of math.h differ between machines in the last bit. */
static float exact_exp(float x);
static float exact_log(float x);
static float exact_tanh(float x);
static uint64_t random_bits(uint64_t a, uint64_t b);
static void random_normal(float *x, int n, const char *name, float deviation);
static void rotary_angles(int half);
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n);

static void fail(const char *why, int at, int i)
{
    fprintf(stderr, "entry %d of the schedule, op %d: %s\n", at, i, why);
    exit(1);
}

/* ---- 1. Tensors ------------------------------------------------------------------------------
 * Tensors and their gradients are the memory that a schedule can save: keep and forget count it. */
static float *zeros(int n)
{
    float *x = calloc((size_t)n, sizeof *x);
    if (x == NULL)
        fail("out of memory", 0, 0);
    return x;
}
static float *keep(const op *o)
{
    bytes += (size_t)(micro * context * o->size) * sizeof(float);
    peak = bytes > peak ? bytes : peak;
    return zeros(micro * context * o->size);
}
static void forget(const op *o, float **x)
{
    bytes -= *x ? (size_t)(micro * context * o->size) * sizeof(float) : 0;
    free(*x);
    *x = NULL;
}

/* Row t of the k-th input of o, and of its gradient, to which all its readers add */
static float *input(const op *o, int k, int t)
{
    return tape[o->in[k]].value + t * tape[o->in[k]].size;
}
static float *input_gradient(const op *o, int k, int t)
{
    op *x = &tape[o->in[k]];
    if (x->gradient == NULL)
        x->gradient = keep(x);
    return x->gradient + t * x->size;
}

/* ---- 2. Sums ---------------------------------------------------------------------------------
 * Floats round: (a + b) + c is not a + (b + c). Equal bits need a fixed order for each sum. Most sums
 * are chains, which continue from the value that is there: y = fmaf(a, x, y) adds the product a x and
 * rounds once. So the gradient of a weight continues from token to token and from one micro-batch to
 * the next, and has the same bits however the batch is divided. */
static void add_scaled(float *y, float a, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}
static void add_product(float *y, const float *x, const float *w, int n, int columns)
{
    for (int i = 0; i < n; i++) /* y_j += sum over i of x_i w_ij */
        add_scaled(y, x[i], w + i * columns, columns);
}
static void add_transposed(float *y, const float *x, const float *w, int n, int columns)
{
    for (int j = 0; j < columns; j++) /* y_i += sum over j of w_ij x_j */
        for (int i = 0; i < n; i++)
            y[i] = fmaf(x[j], w[i * columns + j], y[i]);
}
static void add_outer(float *w, const float *x, const float *y, int n, int columns)
{
    for (int i = 0; i < n; i++) /* w_ij += x_i y_j */
        add_scaled(w + i * columns, x[i], y, columns);
}
static float dot(const float *a, const float *b, int n)
{
    float sum = 0;
    add_transposed(&sum, a, b, 1, n);
    return sum;
}

/* Adds x_i to each sum_i. lost_i is what sum_i has rounded away so far (Kahan 1965): a bias gets a
 * term from every token, and a plain sum of so many terms loses digits. */
static void add_compensated(float *sum, float *lost, const float *x, int n)
{
    for (int i = 0; i < n; i++) {
        const float y = x[i] - lost[i], t = sum[i] + y;
        lost[i] = (t - sum[i]) - y;
        sum[i] = t;
    }
}

/* Sum of a_i b_i in 32 lanes, as vector units add: lane i has the elements i, i + 32, ..; at the end
 * the upper half of the lanes is added to the lower half. If b is NULL, sum of a_i. */
static float lane_sum(const float *a, const float *b, int n)
{
    float lane[LANES] = { 0 };
    for (int i = 0; i < n; i++)
        lane[i % LANES] = fmaf(a[i], b ? b[i] : 1, lane[i % LANES]);
    for (int h = LANES / 2; h > 0; h /= 2)
        add_scaled(lane, 1, lane + h, h);
    return lane[0];
}

/* ---- 3. Ops ----------------------------------------------------------------------------------
 * An op computes its result y from its inputs x, token by token. Its backward gets g, the derivative
 * of the loss by y, and adds dx = g dy/dx to the gradient of each input (the chain rule).
 *
 * embed: y = the table's row for the token. Backward: the row's gradient gets g. */
static void embed_forward(op *o, int t, float *y)
{
    add_scaled(y, 1, o->weight->value + token[t] * o->size, o->size);
}
static void embed_backward(op *o, int t, const float *g)
{
    add_scaled(o->dweight + token[t] * o->size, 1, g, o->size);
}

/* linear: y = x w + bias. Backward: dx = g w', dw = sum over tokens of x' g, dbias = sum of g. */
static void linear_forward(op *o, int t, float *y)
{
    memcpy(y, o->bias->value, (size_t)o->size * sizeof *y);
    add_product(y, input(o, 0, t), o->weight->value, o->weight->rows, o->size);
}
static void linear_backward(op *o, int t, const float *g)
{
    add_transposed(input_gradient(o, 0, t), g, o->weight->value, o->weight->rows, o->size);
    add_outer(o->dweight, input(o, 0, t), g, o->weight->rows, o->size);
    add_compensated(o->dbias, o->lost, g, o->size);
}

/* logits: y = x table', a score for each byte. Backward: dx = g table, dtable = sum of g' x. */
static void logits_forward(op *o, int t, float *y)
{
    add_transposed(y, input(o, 0, t), o->weight->value, o->size, width);
}
static void logits_backward(op *o, int t, const float *g)
{
    add_product(input_gradient(o, 0, t), g, o->weight->value, o->size, width);
    add_outer(o->dweight, g, input(o, 0, t), o->size, width);
}

/* rmsnorm: h = x r with r = 1 / sqrt(mean of x^2 + 1e-5), y = h gain. Backward: with u = g gain,
 * dx = r (u - h mean of (u h)), dgain = sum of g h. It computes h again from x. */
static float normalise(float *h, const float *x, int n)
{
    const float r = 1 / sqrtf(lane_sum(x, x, n) / (float)n + 1e-5f);
    for (int i = 0; i < n; i++)
        h[i] = x[i] * r;
    return r;
}
static void rmsnorm_forward(op *o, int t, float *y)
{
    normalise(y, input(o, 0, t), o->size);
    for (int i = 0; i < o->size; i++)
        y[i] *= o->weight->value[i];
}
static void rmsnorm_backward(op *o, int t, const float *g)
{
    float h[o->size], u[o->size], gh[o->size], *dx = input_gradient(o, 0, t);
    const float r = normalise(h, input(o, 0, t), o->size);
    for (int i = 0; i < o->size; i++)
        u[i] = g[i] * o->weight->value[i], gh[i] = g[i] * h[i];
    add_compensated(o->dweight, o->lost, gh, o->size);
    const float mean = lane_sum(u, h, o->size) / (float)o->size;
    for (int i = 0; i < o->size; i++)
        dx[i] = fmaf(r, fmaf(-h[i], mean, u[i]), dx[i]);
}

/* add: y = a + b. Backward: da = g, db = g. */
static void add_forward(op *o, int t, float *y)
{
    add_scaled(y, 1, input(o, 0, t), o->size);
    add_scaled(y, 1, input(o, 1, t), o->size);
}
static void add_backward(op *o, int t, const float *g)
{
    add_scaled(input_gradient(o, 0, t), 1, g, o->size);
    add_scaled(input_gradient(o, 1, t), 1, g, o->size);
}

/* gelu: y = x/2 (1 + a) with a = tanh(x (k + c x^2)), k = sqrt(2/pi), c = 0.044715 k.
 * Backward: dx = g (x/2 (1 - a^2) (k + 3 c x^2) + (1 + a) / 2). */
static const float gelu_k = 0x1.988454p-1f, gelu_c = 0x1.2444f2p-5f;
static void gelu_forward(op *o, int t, float *y)
{
    for (int i = 0; i < o->size; i++) {
        const float x = input(o, 0, t)[i], a = exact_tanh(x * fmaf(gelu_c, x * x, gelu_k));
        y[i] = fmaf(x / 2, a, x / 2);
    }
}
static void gelu_backward(op *o, int t, const float *g)
{
    float *dx = input_gradient(o, 0, t);
    for (int i = 0; i < o->size; i++) {
        const float x = input(o, 0, t)[i], a = exact_tanh(x * fmaf(gelu_c, x * x, gelu_k));
        const float inner = fmaf(3 * gelu_c, x * x, gelu_k), da = x / 2 * fmaf(-a, a, 1);
        dx[i] = fmaf(g[i], fmaf(da, inner, fmaf(0.5f, a, 0.5f)), dx[i]);
    }
}

/* rotary: turns the pairs (x1, x2) of a head's two halves by angles that grow with the position, so
 * that scores depend on distances (Su 2021). Backward: turns g by the opposite angles. */
static void add_turned(float *y, const float *x, int t, float sign)
{
    const int half = width / heads / 2;
    for (int i = 0; i < width; i++) {
        const int k = t % context * half + i % half;
        const float other = i / half % 2 ? x[i - half] * (sign * sine[k]) : -(x[i + half] * (sign * sine[k]));
        y[i] += fmaf(x[i], cosine[k], other);
    }
}
static void rotary_forward(op *o, int t, float *y) { add_turned(y, input(o, 0, t), t, 1); }
static void rotary_backward(op *o, int t, const float *g)
{
    add_turned(input_gradient(o, 0, t), g, t, -1);
}

/* softmax: p_j = e_j / sum with e_j = exp(s_j - max), which does not overflow. Returns the sum. */
static float exp_sum(float *e, const float *s, int n, float *max)
{
    *max = s[0];
    for (int j = 1; j < n; j++)
        *max = s[j] > *max ? s[j] : *max;
    for (int j = 0; j < n; j++)
        e[j] = exact_exp(s[j] - *max);
    return lane_sum(e, NULL, n);
}

/* attention: for query t and the keys j <= t of its row, s_j = q_t . k_j / sqrt(head size),
 * p = softmax(s), y = sum of p_j v_j. Backward: it computes p again instead of keeping it (Dao 2022),
 * the idea of this file within an op; dp_j = g . v_j, ds_j = p_j (dp_j - g . y) / sqrt(head size),
 * dq = sum of ds_j k_j, dk_j = ds_j q, dv_j = p_j g. `at` is the place of a head in a row. */
static void scores(const op *o, int t, int at, float *s)
{
    const int n = width / heads, first = t - t % context;
    for (int j = first; j <= t; j++)
        s[j - first] = dot(input(o, 0, t) + at, input(o, 1, j) + at, n) * (1 / sqrtf((float)n));
}
static void attention_forward(op *o, int t, float *y)
{
    const int n = width / heads, keys = t % context + 1;
    float s[MOST_CONTEXT], e[MOST_CONTEXT], max;
    for (int at = 0; at < width; at += n) {
        scores(o, t, at, s);
        const float sum = exp_sum(e, s, keys, &max);
        for (int j = 0; j < keys; j++)
            add_scaled(y + at, e[j], input(o, 2, t - keys + 1 + j) + at, n);
        for (int i = at; i < at + n; i++)
            y[i] /= sum;
    }
}
static void attention_backward(op *o, int t, const float *g)
{
    const int n = width / heads, keys = t % context + 1;
    float s[MOST_CONTEXT], e[MOST_CONTEXT], max;
    for (int at = 0; at < width; at += n) {
        scores(o, t, at, s);
        const float log_sum = exact_log(exp_sum(e, s, keys, &max)) + max;
        const float gy = lane_sum(g + at, o->value + t * width + at, n);
        for (int j = 0, key = t - keys + 1; j < keys; j++, key++) {
            const float p = exact_exp(s[j] - log_sum), dp = dot(g + at, input(o, 2, key) + at, n);
            const float ds = p * (dp - gy) * (1 / sqrtf((float)n));
            add_scaled(input_gradient(o, 0, t) + at, ds, input(o, 1, key) + at, n);
            add_scaled(input_gradient(o, 1, key) + at, ds, input(o, 0, t) + at, n);
            add_scaled(input_gradient(o, 2, key) + at, p, g + at, n);
        }
    }
}

/* cross-entropy: y = log(sum of exp(z_j)) - z_target. Backward: dz_j = g (p_j - [j is the target]),
 * p = softmax(z). It also adds up the losses: a schedule may repeat a forward, but no backward. */
static void loss_forward(op *o, int t, float *y)
{
    const float *z = input(o, 0, t);
    float e[VOCABULARY], max;
    const float sum = exp_sum(e, z, VOCABULARY, &max);
    *y = target[t] < 0 ? 0 : exact_log(sum) - (z[target[t]] - max);
}
static void loss_backward(op *o, int t, const float *g)
{
    float e[VOCABULARY], max, *dz = input_gradient(o, 0, t);
    const float *z = input(o, 0, t), log_sum = exact_log(exp_sum(e, z, VOCABULARY, &max));
    for (int j = 0; j < VOCABULARY && target[t] >= 0; j++)
        dz[j] += *g * (exact_exp((z[j] - max) - log_sum) - (j == target[t] ? 1.0f : 0.0f));
    loss += (double)o->value[t];
}

/* A schedule must keep or recompute what a backward reads. Those of add and rotary read only g. */
static const rule embed = { embed_forward, embed_backward, READS_NOTHING };
static const rule linear = { linear_forward, linear_backward, READS_INPUTS };
static const rule logits = { logits_forward, logits_backward, READS_INPUTS };
static const rule rmsnorm = { rmsnorm_forward, rmsnorm_backward, READS_INPUTS };
static const rule add = { add_forward, add_backward, READS_NOTHING };
static const rule gelu = { gelu_forward, gelu_backward, READS_INPUTS };
static const rule rotary = { rotary_forward, rotary_backward, READS_NOTHING };
static const rule attention = { attention_forward, attention_backward, READS_INPUTS | READS_RESULT };
static const rule cross_entropy = { loss_forward, loss_backward, READS_INPUTS | READS_RESULT };

/* ---- 4. The tape -----------------------------------------------------------------------------
 * The network is a list of ops. The forward walks along it. The backward walks back: when it comes
 * to an op, all readers of its result have added to its gradient. */
static int record(const rule *r, int size, int a, int b, int c)
{
    op *o = &tape[ops];
    o->rule = r, o->size = size;
    o->in[0] = a, o->in[1] = b, o->in[2] = c;
    o->inputs = (a != NONE) + (b != NONE) + (c != NONE);
    return ops++;
}

static int elements(const parameter *p) { return p->rows * p->columns; }

static parameter *new_parameter(const char *part, int number, int n, int columns, float normal)
{
    parameter *p = &parameters[parameter_count++];
    snprintf(p->name, sizeof p->name, "%s %d", part, number);
    p->rows = n, p->columns = columns, p->normal = normal;
    p->value = zeros(n * columns), p->mean = zeros(n * columns), p->square = zeros(n * columns);
    return p;
}

/* Gives op i its parameters. Each use has separate sums: embed and logits both use the table. */
static int with(int i, parameter *weight, parameter *bias)
{
    op *o = &tape[i];
    o->weight = weight, o->dweight = zeros(elements(weight));
    o->bias = bias, o->dbias = zeros(o->size), o->lost = zeros(o->size);
    return i;
}
static int norm_of(int x, const char *part, int number)
{
    parameter *gain = new_parameter(part, number, 1, width, 0);
    gain->constant = 1;
    return with(record(&rmsnorm, width, x, NONE, NONE), gain, NULL);
}
static int linear_of(int x, const char *part, const char *bias, int number, int size)
{
    const int n = tape[x].size;
    parameter *w = new_parameter(part, number, n, size, (float)(1 / sqrt((double)n)));
    parameter *b = new_parameter(bias, number, 1, size, 0);
    return with(record(&linear, size, x, NONE, NONE), w, b);
}

static int block_of(int x, int number)
{
    int a = norm_of(x, "norm", number);
    const int q = record(&rotary, width, linear_of(a, "q", "q bias", number, width), NONE, NONE);
    const int k = record(&rotary, width, linear_of(a, "k", "k bias", number, width), NONE, NONE);
    a = record(&attention, width, q, k, linear_of(a, "v", "v bias", number, width));
    x = record(&add, width, x, linear_of(a, "out", "out bias", number, width), NONE);
    a = linear_of(norm_of(x, "norm2", number), "up", "up bias", number, 4 * width);
    a = linear_of(record(&gelu, 4 * width, a, NONE, NONE), "down", "down bias", number, width);
    return record(&add, width, x, a, NONE);
}
static void build_gpt(void)
{
    parameter *table = new_parameter("table", 0, VOCABULARY, width, 0.02f);
    int x = with(record(&embed, width, NONE, NONE, NONE), table, NULL);
    for (int i = 0; i < blocks; i++)
        x = block_of(x, i);
    x = with(record(&logits, VOCABULARY, norm_of(x, "last", 0), NONE, NONE), table, NULL);
    record(&cross_entropy, 1, x, NONE, NONE);
    token = calloc((size_t)(rows * context), sizeof(int));
    target = calloc((size_t)(rows * context), sizeof(int));
    cosine = zeros(context * width), sine = zeros(context * width);
    rotary_angles(width / heads / 2);
}

/* ---- 5. Schedules ----------------------------------------------------------------------------
 * A schedule is a list of entries that computes a micro-batch. It has each backward once, from the
 * last op to the first. It may repeat forwards: so it can forget a tensor and compute it again. */
enum { FORWARD = 'f', BACKWARD = 'b', FORGET = 'x' };
typedef struct {
    int what, i;
} entry;
typedef struct {
    entry *at;
    int count;
} schedule;

static void append(schedule *s, int what, int i)
{
    s->at = realloc(s->at, (size_t)(s->count + 1) * sizeof *s->at);
    if (s->at == NULL)
        fail("out of memory", s->count, i);
    s->at[s->count].what = what, s->at[s->count++].i = i;
}

/* Does an entry read tensor x? */
static int reads(entry e, int x)
{
    const int what = e.what == FORWARD ? READS_INPUTS : tape[e.i].rule->reads;
    int is_input = 0;
    for (int k = 0; k < tape[e.i].inputs; k++)
        is_input |= tape[e.i].in[k] == x;
    return e.what == FORGET ? x == e.i : (is_input && what & READS_INPUTS) || (x == e.i && what & READS_RESULT);
}

/* Does an entry after number k read tensor x, before a forward computes it again? */
static int is_read_after(const schedule *s, int k, int x)
{
    for (k++; k < s->count && !reads(s->at[k], x); k++)
        if (s->at[k].what == FORWARD && s->at[k].i == x)
            return 0;
    return k < s->count;
}

/* Copies a schedule of forwards and backwards, and forgets each tensor after its last reader. */
static schedule with_forgets(schedule s)
{
    schedule to = { NULL, 0 };
    for (int k = 0; k < s.count; k++) {
        append(&to, s.at[k].what, s.at[k].i);
        for (int x = 0; x < ops; x++)
            if ((reads(s.at[k], x) || (s.at[k].what == FORWARD && s.at[k].i == x)) &&
                !is_read_after(&s, k, x))
                append(&to, FORGET, x);
    }
    free(s.at);
    return to;
}

/* Appends the forward of tensor x, after those that it needs, unless it is live. */
static void make_live(schedule *s, char *live, int x)
{
    for (int k = 0; k < tape[x].inputs && !live[x]; k++)
        make_live(s, live, tape[x].in[k]);
    if (!live[x])
        append(s, FORWARD, x);
    live[x] = 1;
}

/* The schedule that keeps the tensors in `kept` and recomputes what else the backwards read, each
 * tensor once; or if `again`, from the kept ones on for each backward. */
static schedule recompute(const char *kept, int again)
{
    schedule s = { NULL, 0 };
    char live[MOST_OPS] = { 0 };
    make_live(&s, live, ops - 1);
    for (int i = ops - 1; i >= 0; i--) {
        for (int x = 0; x <= i; x++)
            if (reads((entry){ BACKWARD, i }, x))
                make_live(&s, live, x);
        append(&s, BACKWARD, i);
        if (again || i == ops - 1)
            memcpy(live, kept, sizeof live);
    }
    return with_forgets(s);
}

static schedule store_all(void)
{
    char all[MOST_OPS];
    memset(all, 1, sizeof all);
    return recompute(all, 0);
}
static schedule keep_nothing(void)
{
    const char nothing[MOST_OPS] = { 0 };
    return recompute(nothing, 1);
}

/* Segments: keeps the results of embed and add. Nothing else passes from one half of a block to the
 * next, so the backward recomputes one half at a time (Chen 2016). */
static schedule segments(void)
{
    char kept[MOST_OPS] = { 0 };
    for (int i = 0; i < ops; i++)
        kept[i] = tape[i].rule == &embed || tape[i].rule == &add;
    return recompute(kept, 0);
}

/* The square-root rule: segments of sqrt(n) ops. It keeps each tensor that an op before a boundary
 * computes and an op after it reads: in a chain one, in this network up to four. */
static schedule sqrt_n(void)
{
    char kept[MOST_OPS] = { 0 };
    const int n = (int)ceil(sqrt((double)ops));
    for (int i = 0; i < ops; i++)
        for (int k = 0; k < tape[i].inputs; k++)
            kept[tape[i].in[k]] |= tape[i].in[k] / n < i / n;
    return recompute(kept, 0);
}

/* Reads a schedule that you wrote, lines such as "f 0", "b 31" and "x 3", from the standard input. */
static schedule read_schedule(void)
{
    schedule s = { NULL, 0 };
    char what;
    for (int i; scanf(" %c %d", &what, &i) == 2;)
        append(&s, what, i);
    return s;
}

/* Computes the losses and gradients of a micro-batch. */
static void run(const schedule *s)
{
    int next = ops;
    forwards = 0;
    for (int at = 0; at < s->count; at++) {
        const entry e = s->at[at];
        op *o = &tape[e.i];
        if (e.i < 0 || e.i >= ops || (e.what == FORWARD && o->value) || (e.what == BACKWARD && e.i != --next))
            fail("no such op, or its result is live, or its backward is not the next one", at, e.i);
        for (int x = 0; x < ops; x++)
            if (reads(e, x) && tape[x].value == NULL)
                fail("it reads a tensor that is not live: compute that before", at, e.i);
        if (e.what == FORWARD)
            o->value = keep(o), forwards++;
        if (e.what == BACKWARD && e.i == ops - 1)
            o->gradient = keep(o);
        for (int t = 0; t < micro * context; t++)
            if (e.what == FORWARD)
                o->rule->forward(o, t, o->value + t * o->size);
            else if (e.what == BACKWARD && e.i == ops - 1)
                o->rule->backward(o, t, &scale);
            else if (e.what == BACKWARD)
                o->rule->backward(o, t, o->gradient + t * o->size);
        if (e.what != FORWARD)
            forget(o, e.what == BACKWARD ? &o->gradient : &o->value);
    }
    if (next > 0)
        fail("the schedule ends before its last backward", s->count, next);
    for (int i = 0; i < ops; i++)
        forget(&tape[i], &tape[i].value);
}

/* ---- 6. A step ------------------------------------------------------------------------------- */
static void clear(float *x, int n) { memset(x, 0, (size_t)n * sizeof *x); }

/* Sets initial values, and the state of AdamW to 0. */
static void begin_training(void)
{
    for (parameter *p = parameters; p < parameters + parameter_count; p++) {
        for (int i = 0; i < elements(p); i++)
            p->value[i] = p->constant;
        if (p->normal > 0)
            random_normal(p->value, elements(p), p->name, p->normal);
        clear(p->mean, elements(p)), clear(p->square, elements(p));
    }
    peak = 0;
}

/* Sets the sums of a step to 0. */
static void begin_step(void)
{
    loss = 0;
    for (op *o = tape; o < tape + ops; o++)
        if (o->weight)
            clear(o->dweight, elements(o->weight)), clear(o->dbias, o->size), clear(o->lost, o->size);
}

/* Puts row `row` of the step in place r of the micro-batch; returns its number of targets. */
static int draw_row(int step, int row, int r)
{
    const uint64_t bits = random_bits((uint64_t)step, (uint64_t)row);
    const char *start = text + bits % (strlen(text) - (size_t)context);
    const int count = unequal ? 1 + (int)(bits >> 40) % context : context;
    for (int i = 0; i < context; i++) {
        token[r * context + i] = (unsigned char)start[i];
        target[r * context + i] = i < count ? (unsigned char)start[i + 1] : -1;
    }
    return count;
}

/* b^n, in the same order on every machine */
static double power(double b, int n)
{
    double y = 1;
    for (; n > 0; n /= 2, b *= b)
        y = n % 2 ? y * b : y;
    return y;
}

/* AdamW (Loshchilov 2019): w -= lr mean / sqrt(square). Both means begin at 0 and are divided by
 * 1 - b^step for that. Weight decay moves matrices towards 0. */
static void adamw(parameter *p, int i, float g, int step)
{
    const float b1 = 0.9f, b2 = 0.999f, decay = p->rows > 1 ? lr * weight_decay : 0;
    const float rate = (float)((double)lr / (1 - power((double)b1, step)));
    const float correct = (float)(1 / (1 - power((double)b2, step)));
    p->mean[i] = fmaf(b1, p->mean[i], (1 - b1) * g);
    p->square[i] = fmaf(b2, p->square[i], (1 - b2) * (g * g));
    p->value[i] = fmaf(-rate, p->mean[i] / (sqrtf(p->square[i] * correct) + 1e-8f),
                       fmaf(-decay, p->value[i], p->value[i]));
}

/* Ends a step: adds the sums of a parameter's uses, divides by the number of targets of all
 * micro-batches, once, and updates. A mean of the micro-batches' means would be another number. */
static void update(int step, int targets)
{
    for (parameter *p = parameters; p < parameters + parameter_count; p++)
        for (int i = 0; i < elements(p); i++) {
            float g = 0;
            for (const op *o = tape + ops - 1; o >= tape; o--)
                g += o->weight == p ? o->dweight[i] : o->bias == p ? o->dbias[i] : 0;
            adamw(p, i, g / (float)targets, step + 1);
        }
}

/* Trains a step; returns its mean loss. */
static double train_step(const schedule *s, int step)
{
    int targets = 0;
    begin_step();
    for (int row = 0; row < rows; row += micro) {
        for (int r = 0; r < micro; r++)
            targets += draw_row(step, row + r, r);
        run(s);
    }
    update(step, targets);
    return loss / targets;
}

/* The hash FNV-1a of all weights: equal if every bit is */
static uint64_t hash_of_weights(void)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const parameter *p = parameters; p < parameters + parameter_count; p++)
        hash = hash_bytes(hash, p->value, (size_t)elements(p) * sizeof(float));
    return hash;
}

/* ---- 7. main --------------------------------------------------------------------------------- */
static void train(const char *name, schedule s, int steps)
{
    double mean = 0;
    begin_training();
    for (int step = 0; step < steps; step++)
        mean = train_step(&s, step);
    printf("%-13s %2d %8zu %4d  %.4f  %016llx\n", name, micro, peak, forwards - ops, mean,
           (unsigned long long)hash_of_weights());
    free(s.at);
}

int main(int argc, char **argv)
{
    const int steps = argc > 1 ? atoi(argv[1]) : 150;
    build_gpt();
    printf("schedule    rows    bytes again   loss  weights\n");
    if (argc > 2) {
        micro = atoi(argv[2]);
        train("yours", read_schedule(), steps);
        return 0;
    }
    train("store all", store_all(), steps);
    train("keep nothing", keep_nothing(), steps);
    train("segments", segments(), steps);
    for (micro = rows; micro > 0; micro /= 2)
        train("sqrt(n)", sqrt_n(), steps);
    return 0;
}

/* ---- 8. Functions ----------------------------------------------------------------------------
 * The exp of one library differs from that of another in the last bit, and training makes that a
 * large difference. These are polynomials, computed in one order; docs/functions.txt explains them. */
static float horner(float x, const float *c, int n)
{
    float p = c[n - 1];
    for (int i = n - 2; i >= 0; i--)
        p = fmaf(p, x, c[i]);
    return p;
}

/* exp(x) = 2^n (1 + r p(r)) with the whole number n next to x / log 2, and r = x - n log 2. Adding
 * 12582912 rounds to a whole number, because a float of that size has no bits for a fraction. */
static float reduce(float x, float *r, float *p)
{
    static const float c[] = { 0x1p+0f,        0x1.fffffcp-2f, 0x1.555492p-3f,
                               0x1.5558b8p-5f, 0x1.1239aap-7f, 0x1.6a4508p-10f };
    const float n = fmaf(x, 0x1.715476p+0f, 12582912) - 12582912;
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
    static const float c[] = { -0x1.55553cp-2f, 0x1.110be4p-3f, -0x1.b9623ap-5f, 0x1.6009a6p-6f,
                               -0x1.045ff4p-7f, 0x1.2da01ep-9f, -0x1.77cd56p-12f };
    const float a = fabsf(x);
    float r, p;
    if (a < 1)
        return copysignf(fmaf(a * (a * a), horner(a * a, c, 7), a), x);
    const float power_of_2 = ldexpf(1, (int)reduce(a < 10 ? a + a : 20, &r, &p));
    return copysignf(1 - 2 / fmaf(r * power_of_2, p, power_of_2 + 1), x);
}

/* log(x) = n log 2 + log(1 + f) with x = 2^n (1 + f), 2/3 <= 1 + f < 4/3 */
static float exact_log(float x)
{
    static const float c[] = { 0x1.555556p-2f, -0x1.ffff18p-3f, 0x1.9997eep-3f,
                               -0x1.55978cp-3f, 0x1.24eb6ep-3f, -0x1.f3b02cp-4f,
                               0x1.b91efap-4f, -0x1.06c2bap-3f, 0x1.e9d18ap-4f };
    int exponent;
    float f = frexpf(x, &exponent);
    if (f < 0x1.555556p-1f)
        f *= 2, exponent--;
    f -= 1;
    const float n = (float)exponent, high = fmaf(n, 0x1.63p-1f, f);
    const float low = fmaf(n, -0x1.bd0106p-13f, f - (high - n * 0x1.63p-1f));
    return high + fmaf(f * (f * f), horner(f, c, 9), fmaf(-0.5f, f * f, low));
}

/* Cosine and sine of `quarter` quarters of a turn and the small angle high + low */
static void turn(int quarter, float high, float low, float *c, float *s)
{
    static const float a[] = { -0x1.555556p-3f, 0x1.111174p-7f, -0x1.a0594cp-13f, 0x1.7c2842p-19f };
    static const float b[] = { 0x1.55554ap-5f, -0x1.6c0c26p-10f, 0x1.99e70ap-16f };
    const float z = high * high, one = fmaf(-0.5f, z, 1);
    const float y = high + fmaf(high * z, horner(z, a, 4), fmaf(-0.5f * z, low, low));
    const float e = fmaf(-0.5f, fmaf(high, high, -z), (1 - one) + -0.5f * z);
    const float x = one + fmaf(z * z, horner(z, b, 3), fmaf(-high, low, e));
    *c = quarter == 0 ? x : quarter == 1 ? -y : quarter == 2 ? -x : y;
    *s = quarter == 0 ? y : quarter == 1 ? x : quarter == 2 ? -y : -x;
}

/* Splits an angle, counted in 2^-64 of a turn, in quarters and the rest, at most an eighth. */
static int quarter_of(uint64_t angle, int64_t *rest)
{
    const uint64_t quarter = (angle + (UINT64_C(1) << 61)) >> 62, left = angle - (quarter << 62);
    *rest = left >> 63 ? -(int64_t)(0 - left) : (int64_t)left;
    return (int)quarter;
}

/* Rotary turns pair i by 10000^(-i / half) radians for each position. Whole turns vanish by overflow. */
static void rotary_angles(int half)
{
    double ratio = 1, frequency = 2935890503282001226.0; /* 2^64 / (2 pi), a radian */
    int64_t rest;
    for (int i = 0; i < 200; i++) /* Newton: ratio^half = 1 / 10000 */
        ratio -= ratio * (power(ratio, half) - 1.0 / 10000) / (half * power(ratio, half));
    for (int i = 0; i < half; i++, frequency *= ratio)
        for (int t = 0; t < context; t++) {
            const int quarter = quarter_of((uint64_t)t * (uint64_t)frequency, &rest);
            const int64_t size = rest < 0 ? -rest : rest;
            const float small = (float)(size >> 14 & 0xffffff) * 0x1.921fb6p-48f;
            const float high = fmaf((float)(size >> 38), 0x1.921fb6p-24f, small);
            turn(quarter, rest < 0 ? -high : high, 0, &cosine[t * half + i], &sine[t * half + i]);
        }
}

/* Philox4x32-10 (Salmon 2011) scrambles a counter: every number can be computed directly. */
static void philox(uint32_t x[4], uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < 10; i++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t a = (uint64_t)x[0] * 0xD2511F53u, b = (uint64_t)x[2] * 0xCD9E8D57u;
        x[0] = (uint32_t)(b >> 32) ^ x[1] ^ k0, x[1] = (uint32_t)b;
        x[2] = (uint32_t)(a >> 32) ^ x[3] ^ k1, x[3] = (uint32_t)a;
    }
}

/* Normal random numbers (Box 1958): r cos(a) and r sin(a) from two uniform ones. The name is part of
 * the key, so that another parameter changes no other one's values. */
static void random_normal(float *x, int n, const char *name, float deviation)
{
    const uint64_t key = hash_bytes(hash_bytes(0xcbf29ce484222325u, &seed, 8), name, strlen(name));
    for (int i = 0; i < n; i++) {
        uint32_t word[4] = { (uint32_t)i / 2, 0, 0, 0 };
        philox(word, key);
        const float r = sqrtf(-2 * exact_log((float)((word[0] >> 8) + 1) * 0x1p-24f));
        const float a = 0x1.921fb6p+2f * ((float)(word[1] >> 8) * 0x1p-24f);
        float high = a, low = 0, c, s;
        int quarter = 0, exponent;
        if (a > 0x1.921fb4p-1f) { /* a is m 2^(exponent - 24); times 2 / pi, in fixed point */
            const uint64_t m = (uint64_t)(frexpf(a, &exponent) * 0x1p24f);
            const uint64_t top = UINT64_C(0x145f306dc9c) >> (3 - exponent);
            const uint64_t rest = UINT64_C(0xf306dc9c882a53f8) >> (3 - exponent) & 0xffffffff;
            int64_t left;
            quarter = quarter_of(m * top + (m * rest >> 32), &left);
            const float u = (float)(double)left, t = (float)((double)left - (double)u);
            high = u * 0x1.921fb6p-62f;
            low = fmaf(t, 0x1.921fb6p-62f, fmaf(u, -0x1.777a5cp-87f, fmaf(u, 0x1.921fb6p-62f, -high)));
        }
        turn(quarter, high, low, &c, &s);
        x[i] = deviation * (r * (i % 2 ? s : c));
    }
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++) /* FNV-1a, of little-endian numbers */
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return hash;
}

/* Random bits for a step and a row, by the finaliser of splitmix64 (Steele 2014) */
static uint64_t random_bits(uint64_t a, uint64_t b)
{
    uint64_t z = seed, next[3] = { a, b, 0 };
    for (int i = 0; i < 3; i++) {
        z += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z = (z ^ (z >> 31)) ^ next[i];
    }
    return z;
}

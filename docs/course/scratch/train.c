/* train.c - training in few bytes: the whole idea in plain C99, without a library.
 *
 *     cc -std=c99 -O3 -march=native -ffp-contract=off train.c -o train -lm && ./train
 *
 * It trains the GPT of lesson 5 by several schedules and prints the bytes that each one needs. With
 * every schedule, losses and the hash of the weights have the bits of gradckpt.h. Read from top to
 * bottom: 1 sums, 2 ops, 3 tape, 4 schedules, 5 micro-batch, 6 step, 7 functions, 8 main. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The model and its training. A row of the batch has `context` tokens: bytes of the text. */
enum { VOCABULARY = 256, LANES = 32, NONE = -1 };
enum { MOST_CONTEXT = 64, MOST_TOKENS = 16384, MOST_OPS = 256, MOST_ENTRIES = 8192 };
static int blocks = 2, heads = 2, width = 32, context = 32;
static int rows = 8, micro = 8; /* rows of a step; rows at once (a micro-batch), a divisor */
static int unequal = 0;         /* if nonzero, rows have between 1 and `context` targets */
static float lr = 0.01f, weight_decay = 0;
static uint64_t seed = 1;
static const char *text = "Tyger Tyger, burning bright,\nIn the forests of the night;\n"
                          "What immortal hand or eye,\nCould frame thy fearful symmetry?\n";

/* A matrix with the bias of its linear layer after it; or the table; or a gain, a vector. */
typedef struct {
    char name[32];
    int matrix, elements;         /* elements of the matrix; and with the vector */
    float deviation;              /* of the matrix's initial values; a bias is 0, a gain 1 */
    float *value, *mean, *square; /* AdamW has running means of the gradient and of its square */
} parameter;

/* An op and its result, the tensor (tokens,size). A tensor has the number of its op. */
typedef struct {
    const struct rule *rule;
    int in[3], inputs, size; /* the tensors that it reads; floats of the result for each token */
    float *value, *gradient; /* of the result; NULL while not kept */
    parameter *parameter;    /* or NULL */
    float *sum, *excess;     /* the parameter's gradient in a step; see add_compensated */
} op;

static op tape[MOST_OPS]; /* the network */
static parameter parameters[MOST_OPS];
static int token[MOST_TOKENS], target[MOST_TOKENS]; /* of a micro-batch; target -1 has no loss */
static float *cosine, *sine;               /* (context, head size / 2), of rotary's angles */
static float scale = 1;                    /* derivative of the objective by the loss of a token */
static double loss;                        /* sum of the losses of a step */
static int ops, parameter_count, forwards; /* forwards: those that a micro-batch has run */
static int floats, peak;                   /* kept by a micro-batch now, and at most */

/* Section 7 defines these. The functions of math.h differ between machines in the last bit. */
static float exact_exp(float x), exact_log(float x), exact_tanh(float x);
static void fail(const char *why, int at, int i) {
    fprintf(stderr, "entry %d of the schedule, op %d: %s\n", at, i, why);
    exit(1);
}

/* ---- 1. Sums ---------------------------------------------------------------------------------
 * Floats round: (a + b) + c is not a + (b + c). So each sum has a fixed order. Most are chains that
 * continue from the value that is there: y = fmaf(a, x, y) adds the product a x and rounds once. A
 * weight's gradient continues from micro-batch to micro-batch, so every division gives its bits. */
static void axpy(float *y, float a, const float *x, int n) {
    for (int i = 0; i < n; i++) y[i] = fmaf(a, x[i], y[i]);
}
static void add(float *y, const float *x, int n) { axpy(y, 1, x, n); }
static float dot(float sum, const float *a, const float *b, int n) {
    for (int i = 0; i < n; i++) sum = fmaf(a[i], b[i], sum);
    return sum;
}
/* Adds x_i to each sum_i. excess_i is by how much rounding has made sum_i too large; the next term
 * takes it off (Kahan 1965). A bias gets a term from every token: a plain sum would lose digits. */
static void add_compensated(float *sum, float *excess, const float *x, int n) {
    for (int i = 0; i < n; i++) {
        const float y = x[i] - excess[i], t = sum[i] + y;
        excess[i] = (t - sum[i]) - y;
        sum[i] = t;
    }
}
/* Sum of a_i b_i in 32 lanes, as vector units add: lane i has elements i, i + 32, ..; at the end
 * the upper half of the lanes is added to the lower half. If b is NULL, sum of a_i. */
static float lane_sum(const float *a, const float *b, int n) {
    float lane[LANES] = { 0 };
    for (int i = 0; i < n; i++) lane[i % LANES] = fmaf(a[i], b ? b[i] : 1, lane[i % LANES]);
    for (int h = LANES / 2; h > 0; h /= 2) add(lane, lane + h, h);
    return lane[0];
}

/* ---- 2. Ops ----------------------------------------------------------------------------------
 * An op computes its result y (at first 0) from its inputs x, one token (row) at a time. Its
 * backward gets g, the derivative of the loss by y, and adds g dy/dx to the gradient of each input
 * (the chain rule); it adds, because a tensor may have several readers. A gradient begins at 0. */
typedef struct {
    int t, n, m; /* the token; floats of y; floats of x[0] */
    float *x[3], *dx[3], *y, *g, *w, *dw, *excess;
} row;
/* embed: y = the table's row for the token. Backward: that row's gradient gets g. */
static void embed_forward(row r) { add(r.y, r.w + token[r.t] * r.n, r.n); }
static void embed_backward(row r) { add(r.dw + token[r.t] * r.n, r.g, r.n); }
/* linear: y = x w + b, where b follows w. Backward: dx = g w', dw = sum of x' g, db = sum of g. */
static void linear_forward(row r) {
    add(r.y, r.w + r.m * r.n, r.n);
    for (int i = 0; i < r.m; i++) axpy(r.y, r.x[0][i], r.w + i * r.n, r.n);
}
static void linear_backward(row r) {
    for (int i = 0; i < r.m; i++) {
        r.dx[0][i] = dot(r.dx[0][i], r.g, r.w + i * r.n, r.n);
        axpy(r.dw + i * r.n, r.x[0][i], r.g, r.n);
    }
    add_compensated(r.dw + r.m * r.n, r.excess, r.g, r.n);
}
/* logits: y = x table', a score for each byte. Backward: dx = g table, dtable = sum of g' x. */
static void logits_forward(row r) {
    for (int i = 0; i < r.n; i++) r.y[i] = dot(0, r.x[0], r.w + i * r.m, r.m);
}
static void logits_backward(row r) {
    for (int i = 0; i < r.n; i++) {
        axpy(r.dx[0], r.g[i], r.w + i * r.m, r.m);
        axpy(r.dw + i * r.m, r.g[i], r.x[0], r.m);
    }
}
/* rmsnorm: h = x s with s = 1 / sqrt(mean of x^2 + 1e-5), y = h gain. Backward: with u = g gain,
 * dx = s (u - h mean of (u h)), dgain = sum of g h. It computes h again from x. */
static float normalise(float *h, const float *x, int n) {
    const float s = 1 / sqrtf(lane_sum(x, x, n) / (float)n + 1e-5f);
    for (int i = 0; i < n; i++) h[i] = x[i] * s;
    return s;
}
static void rmsnorm_forward(row r) {
    normalise(r.y, r.x[0], r.n);
    for (int i = 0; i < r.n; i++) r.y[i] *= r.w[i];
}
static void rmsnorm_backward(row r) {
    float h[r.n], u[r.n], gh[r.n];
    const float s = normalise(h, r.x[0], r.n);
    for (int i = 0; i < r.n; i++) u[i] = r.g[i] * r.w[i], gh[i] = r.g[i] * h[i];
    add_compensated(r.dw, r.excess, gh, r.n);
    const float mean = lane_sum(u, h, r.n) / (float)r.n;
    for (int i = 0; i < r.n; i++) r.dx[0][i] = fmaf(s, fmaf(-h[i], mean, u[i]), r.dx[0][i]);
}
/* residual: y = a + b. Backward: da = g, db = g. */
static void residual_forward(row r) { add(r.y, r.x[0], r.n), add(r.y, r.x[1], r.n); }
static void residual_backward(row r) { add(r.dx[0], r.g, r.n), add(r.dx[1], r.g, r.n); }
/* gelu: y = x/2 (1 + a) with a = tanh(x (k + c x^2)), k = sqrt(2/pi), c = 0.044715 k.
 * Backward: dx = g (x/2 (1 - a^2) (k + 3 c x^2) + (1 + a) / 2). */
static float gelu_of(float x, float *derivative) {
    const float k = 0x1.988454p-1f, c = 0x1.2444f2p-5f, a = exact_tanh(x * fmaf(c, x * x, k));
    *derivative = fmaf(x / 2 * fmaf(-a, a, 1), fmaf(3 * c, x * x, k), fmaf(0.5f, a, 0.5f));
    return fmaf(x / 2, a, x / 2);
}
static void gelu_forward(row r) {
    float d;
    for (int i = 0; i < r.n; i++) r.y[i] = gelu_of(r.x[0][i], &d);
}
static void gelu_backward(row r) {
    float d;
    for (int i = 0; i < r.n; i++) gelu_of(r.x[0][i], &d), r.dx[0][i] = fmaf(r.g[i], d, r.dx[0][i]);
}
/* rotary: turns the pairs (x1, x2) of a head's two halves by angles that grow with the position, so
 * that scores depend on distances (Su 2021). Backward: turns g by the opposite angles. */
static void add_turned(float *y, const float *x, int t, float sign) {
    const int half = width / heads / 2;
    for (int i = 0; i < width; i++) {
        const int k = t % context * half + i % half, is_first = i / half % 2 == 0;
        const float other = is_first ? -x[i + half] : x[i - half];
        y[i] += fmaf(x[i], cosine[k], other * (sign * sine[k]));
    }
}
static void rotary_forward(row r) { add_turned(r.y, r.x[0], r.t, 1); }
static void rotary_backward(row r) { add_turned(r.dx[0], r.g, r.t, -1); }
/* Softmax: p_j = e_j / (sum of e) with e_j = exp(s_j - max), so no e overflows. Returns the sum. */
static float exp_sum(float *e, const float *s, int n, float *max) {
    *max = s[0];
    for (int j = 1; j < n; j++) *max = s[j] > *max ? s[j] : *max;
    for (int j = 0; j < n; j++) e[j] = exact_exp(s[j] - *max);
    return lane_sum(e, NULL, n);
}
/* attention: for query t and the keys j <= t of its row, s_j = c q_t . k_j, c = 1 / sqrt(size of a
 * head), p = softmax(s), y = sum of p_j v_j. Backward: dp_j = g . v_j, ds_j = c p_j (dp_j - g . y),
 * dq = sum of ds_j k_j, dk_j = ds_j q, dv_j = p_j g. It recomputes p instead of keeping it (Dao
 * 2022): the idea of this file within an op. `at` is the place of a head in a row. */
static int scores(row r, int at, float *s) {
    const int n = width / heads, keys = r.t % context + 1;
    for (int j = 0; j < keys; j++)
        s[j] = dot(0, r.x[0] + at, r.x[1] + (j + 1 - keys) * width + at, n) * (1 / sqrtf((float)n));
    return keys;
}
static void attend_forward(row r) {
    float e[MOST_CONTEXT], max;
    for (int at = 0, n = width / heads; at < width; at += n) {
        const int keys = scores(r, at, e);
        const float sum = exp_sum(e, e, keys, &max);
        for (int j = 0; j < keys; j++)
            axpy(r.y + at, e[j], r.x[2] + (j + 1 - keys) * width + at, n);
        for (int i = at; i < at + n; i++) r.y[i] /= sum;
    }
}
static void attend_backward(row r) {
    float s[MOST_CONTEXT], e[MOST_CONTEXT], max;
    for (int at = 0, n = width / heads; at < width; at += n) {
        const int keys = scores(r, at, s);
        const float log_sum = exact_log(exp_sum(e, s, keys, &max)) + max;
        const float gy = lane_sum(r.g + at, r.y + at, n);
        for (int j = 0; j < keys; j++) {
            const int key = (j + 1 - keys) * width + at; /* place of key j, seen from row t */
            const float p = exact_exp(s[j] - log_sum), dp = dot(0, r.g + at, r.x[2] + key, n);
            const float ds = p * (dp - gy) * (1 / sqrtf((float)n));
            axpy(r.dx[0] + at, ds, r.x[1] + key, n);
            axpy(r.dx[1] + key, ds, r.x[0] + at, n);
            axpy(r.dx[2] + key, p, r.g + at, n);
        }
    }
}
/* cross-entropy: y = log(sum of exp(x_j)) - x_target. Backward: dx_j = scale (p_j - 1 for the
 * target, else p_j), p = softmax(x). It also adds the losses: a schedule may repeat a forward. */
static void loss_forward(row r) {
    float e[VOCABULARY], max, sum = exp_sum(e, r.x[0], r.m, &max);
    r.y[0] = target[r.t] < 0 ? 0 : exact_log(sum) - (r.x[0][target[r.t]] - max);
}
static void loss_backward(row r) {
    float e[VOCABULARY], max, log_sum = exact_log(exp_sum(e, r.x[0], r.m, &max));
    for (int j = 0; j < r.m && target[r.t] >= 0; j++)
        r.dx[0][j] += scale * (exact_exp((r.x[0][j] - max) - log_sum) - (float)(j == target[r.t]));
    loss += (double)r.y[0];
}
/* A schedule keeps or recomputes all that a backward reads; residual and rotary read g only. */
enum { READS_NOTHING = 0, READS_INPUTS = 1, READS_RESULT = 2 };
typedef struct rule {
    void (*forward)(row r), (*backward)(row r);
    int reads;
} rule;
static const rule embed = { embed_forward, embed_backward, READS_NOTHING };
static const rule linear = { linear_forward, linear_backward, READS_INPUTS };
static const rule logits = { logits_forward, logits_backward, READS_INPUTS };
static const rule rmsnorm = { rmsnorm_forward, rmsnorm_backward, READS_INPUTS };
static const rule residual = { residual_forward, residual_backward, READS_NOTHING };
static const rule gelu = { gelu_forward, gelu_backward, READS_INPUTS };
static const rule rotary = { rotary_forward, rotary_backward, READS_NOTHING };
static const rule attention = { attend_forward, attend_backward, READS_INPUTS | READS_RESULT };
static const rule cross_entropy = { loss_forward, loss_backward, READS_INPUTS | READS_RESULT };

/* ---- 3. The tape -----------------------------------------------------------------------------
 * The network is a list of ops. The forward walks along it. The backward walks back: when it comes
 * to an op, all readers of its result have added to its gradient. */
static float *zeros(int n) {
    float *x = calloc((size_t)n, sizeof *x);
    if (x == NULL) fail("out of memory", 0, 0);
    return x;
}
static parameter *parameter_of(const char *part, int number, int matrix, int vector, double dev) {
    parameter *p = &parameters[parameter_count++];
    snprintf(p->name, sizeof p->name, "%s %d", part, number);
    p->elements = matrix + vector, p->matrix = matrix, p->deviation = (float)dev;
    p->value = zeros(p->elements), p->mean = zeros(p->elements), p->square = zeros(p->elements);
    return p;
}
/* Each use of a parameter has its own sum of gradients: embed and logits both use the table. */
static int record(const rule *r, int size, parameter *p, int a, int b, int c) {
    op o = { .rule = r, .in = { a, b, c }, .size = size, .parameter = p };
    o.inputs = (a != NONE) + (b != NONE) + (c != NONE);
    o.sum = zeros(p ? p->elements : 1), o.excess = zeros(size);
    tape[ops] = o;
    return ops++;
}
static int norm_of(int x, const char *part, int number) {
    return record(&rmsnorm, width, parameter_of(part, number, 0, width, 0), x, NONE, NONE);
}
static int linear_of(int x, const char *part, int number, int size) {
    const int n = tape[x].size;
    parameter *p = parameter_of(part, number, n * size, size, 1 / sqrt((double)n));
    return record(&linear, size, p, x, NONE, NONE);
}
static int block_of(int x, int number) {
    int a = norm_of(x, "norm", number);
    const int q = record(&rotary, width, NULL, linear_of(a, "q", number, width), NONE, NONE);
    const int k = record(&rotary, width, NULL, linear_of(a, "k", number, width), NONE, NONE);
    a = record(&attention, width, NULL, q, k, linear_of(a, "v", number, width));
    x = record(&residual, width, NULL, x, linear_of(a, "out", number, width), NONE);
    a = linear_of(norm_of(x, "norm2", number), "up", number, 4 * width);
    a = linear_of(record(&gelu, 4 * width, NULL, a, NONE, NONE), "down", number, width);
    return record(&residual, width, NULL, x, a, NONE);
}
static void build_gpt(void) {
    if (width % (2 * heads) != 0 || context > MOST_CONTEXT || rows * context > MOST_TOKENS ||
        strlen(text) <= (size_t)context || 14 * blocks + 4 > MOST_OPS)
        fail("width is a multiple of 2 heads; a text is longer than context; see MOST_..", 0, 0);
    parameter *table = parameter_of("table", 0, VOCABULARY * width, 0, 0.02);
    int x = record(&embed, width, table, NONE, NONE, NONE);
    for (int i = 0; i < blocks; i++) x = block_of(x, i);
    x = record(&logits, VOCABULARY, table, norm_of(x, "last", 0), NONE, NONE);
    record(&cross_entropy, 1, NULL, x, NONE, NONE);
    cosine = zeros(context * width), sine = zeros(context * width);
}

/* ---- 4. Schedules ----------------------------------------------------------------------------
 * A schedule is a list of entries that computes a micro-batch. It has each backward once, from the
 * last op to the first. It may repeat forwards: so it can forget a tensor and compute it again. */
enum { FORWARD = 'f', BACKWARD = 'b', FORGET = 'x' };
typedef struct {
    int count, what[MOST_ENTRIES], op[MOST_ENTRIES];
} schedule;
static void append(schedule *s, int what, int i) {
    if (s->count == MOST_ENTRIES || i < 0 || i >= ops) fail("no such op, or no space", s->count, i);
    s->what[s->count] = what, s->op[s->count++] = i;
}
/* Must tensor x be live for a forward, backward or forget of op i? (A forget frees a live one.) */
static int reads(int what, int i, int x) {
    int mask = what == FORWARD ? READS_INPUTS : READS_RESULT;
    if (what == BACKWARD) mask = tape[i].rule->reads;
    for (int k = 0; k < tape[i].inputs; k++)
        if (tape[i].in[k] == x) return (mask & READS_INPUTS) != 0;
    return x == i && (mask & READS_RESULT) != 0;
}
/* Does entry k compute or read tensor x? */
static int uses(const schedule *s, int k, int x) {
    return (s->what[k] == FORWARD && s->op[k] == x) || reads(s->what[k], s->op[k], x);
}
/* Does an entry after number k read tensor x, before a forward computes it again? */
static int is_read_after(const schedule *s, int k, int x) {
    while (++k < s->count && !uses(s, k, x)) continue;
    return k < s->count && reads(s->what[k], s->op[k], x);
}
/* Appends the forward of tensor x, after those that it needs, unless it is live. */
static void make_live(schedule *s, char *live, int x) {
    for (int k = 0; k < tape[x].inputs && !live[x]; k++) make_live(s, live, tape[x].in[k]);
    if (!live[x]) append(s, FORWARD, x);
    live[x] = 1;
}
/* Keeps the tensors that is_kept names. The backwards recompute what else they read: once; or, if
 * `again` is nonzero, each time from the kept ones: `live` (needs no forward) becomes those. */
static schedule recompute(int (*is_kept)(int x), int again) {
    schedule s = { 0 }, result = { 0 };
    char live[MOST_OPS] = { 0 };
    make_live(&s, live, ops - 1);
    for (int i = ops - 1; i >= 0; i--) {
        for (int x = 0; x <= i; x++)
            if (reads(BACKWARD, i, x)) make_live(&s, live, x);
        append(&s, BACKWARD, i);
        if (again || i == ops - 1)
            for (int x = 0; x < i; x++) live[x] = (char)is_kept(x);
    }
    for (int k = 0; k < s.count; k++) { /* copies the entries, with a FORGET after each last read */
        append(&result, s.what[k], s.op[k]);
        for (int x = 0; x < ops; x++)
            if (uses(&s, k, x) && !is_read_after(&s, k, x)) append(&result, FORGET, x);
    }
    return result;
}
static int all(int x) { return x >= 0; }
static int none(int x) { return x < 0; }
/* Segments: keeps what passes from one half of a block to the next (Chen 2016). */
static int halves(int x) { return tape[x].rule == &embed || tape[x].rule == &residual; }
/* The square-root rule: segments of sqrt(n) ops. It keeps each tensor that an op of a later segment
 * reads: in a chain one for each segment, in this network up to four. */
static int roots(int x) {
    const int n = (int)ceil(sqrt((double)ops));
    for (int i = (x / n + 1) * n; i < ops; i++)
        if (reads(FORWARD, i, x)) return 1;
    return 0;
}

/* ---- 5. A micro-batch ------------------------------------------------------------------------
 * Tensors and their gradients are the memory that a schedule can save: keep and forget count it. */
static void keep(float **x, const op *o) {
    if (*x == NULL) *x = zeros(micro * context * o->size), floats += micro * context * o->size;
    if (floats > peak) peak = floats;
}
static void forget(float **x, const op *o) {
    if (*x != NULL) floats -= micro * context * o->size;
    free(*x), *x = NULL;
}
static float *at(float *x, int i) { return x ? x + i : NULL; }
static row row_of(op *o, int t) {
    row r = { .t = t, .n = o->size, .dw = o->sum, .excess = o->excess };
    r.y = at(o->value, t * o->size), r.g = at(o->gradient, t * o->size);
    r.w = o->parameter ? o->parameter->value : NULL;
    for (int k = o->inputs - 1; k >= 0; k--) {
        const op *x = &tape[o->in[k]];
        r.m = x->size, r.x[k] = at(x->value, t * r.m), r.dx[k] = at(x->gradient, t * r.m);
    }
    return r;
}
/* Computes the losses and gradients of the micro-batch in token and target. */
static void run(const schedule *s) {
    int next = ops;
    forwards = 0;
    for (int k = 0; k < s->count; k++) {
        const int what = s->what[k], i = s->op[k];
        op *o = &tape[i];
        int wrong = what == BACKWARD ? i != --next : what == FORWARD && o->value != NULL;
        for (int x = 0; x <= i; x++) wrong |= reads(what, i, x) && tape[x].value == NULL;
        if (wrong) fail("it reads a tensor that is not live, or it is not its turn", k, i);
        if (what == FORWARD) {
            keep(&o->value, o), forwards++;
            for (int t = 0; t < micro * context; t++) o->rule->forward(row_of(o, t));
        } else if (what == BACKWARD) {
            for (int n = 0; n < o->inputs; n++) keep(&tape[o->in[n]].gradient, &tape[o->in[n]]);
            keep(&o->gradient, o);
            for (int t = 0; t < micro * context; t++) o->rule->backward(row_of(o, t));
            forget(&o->gradient, o);
        } else
            forget(&o->value, o);
    }
    for (op *o = tape; o < tape + ops; o++) forget(&o->value, o);
    if (next != 0) fail("the schedule ends before its last backward", s->count, next);
}

/* ---- 6. A step -------------------------------------------------------------------------------
 * Scrambles a number: the finaliser of splitmix64 (Steele 2014). It chooses the rows of a step. */
static uint64_t mixed(uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
/* Puts row `place` of the step at row r of the micro-batch; returns its number of targets. */
static int draw_row(int step, int place, int r) {
    const uint64_t bits = mixed(mixed(mixed(seed) ^ (uint64_t)step) ^ (uint64_t)place);
    const char *start = text + bits % (strlen(text) - (size_t)context);
    const int count = unequal ? 1 + (int)(bits >> 40) % context : context;
    for (int i = 0; i < context; i++) {
        token[r * context + i] = (unsigned char)start[i];
        target[r * context + i] = i < count ? (unsigned char)start[i + 1] : -1;
    }
    return count;
}
static double power(double b, int n) {
    double y = 1; /* b^n, in the same order on every machine */
    for (; n > 0; n /= 2, b *= b) y = n % 2 ? y * b : y;
    return y;
}
/* Adds the sums of a parameter's uses, clears sums and excess, divides once by the number of all
 * targets, and updates by AdamW (Loshchilov 2019), w -= lr mean / sqrt(square). The running means
 * begin at 0: they are divided by 1 - b^step. Weight decay makes matrices smaller. */
static void update(int step, int targets) {
    const float b1 = 0.9f, b2 = 0.999f, epsilon = 1e-8f;
    const float rate = (float)((double)lr / (1 - power((double)b1, step)));
    const float unbiased = (float)(1 / (1 - power((double)b2, step)));
    for (parameter *p = parameters; p < parameters + parameter_count; p++)
        for (int i = 0; i < p->elements; i++) {
            float g = 0, *w = &p->value[i], *mean = &p->mean[i], *square = &p->square[i];
            for (op *o = tape + ops - 1; o >= tape; o--)
                if (o->parameter == p) g += o->sum[i], o->sum[i] = o->excess[i % o->size] = 0;
            g /= (float)targets;
            *mean = fmaf(b1, *mean, (1 - b1) * g);
            *square = fmaf(b2, *square, (1 - b2) * (g * g));
            *w = fmaf(i < p->matrix ? -lr * weight_decay : 0, *w, *w);
            *w = fmaf(-rate, *mean / (sqrtf(*square * unbiased) + epsilon), *w);
        }
}
/* Trains step number `step`, from 0; returns its mean loss. */
static double train_step(const schedule *s, int step) {
    int targets = 0;
    if (micro < 1 || rows % micro != 0) fail("rows must be a multiple of micro", 0, 0);
    loss = 0;
    for (int first = 0; first < rows; first += micro) {
        for (int r = 0; r < micro; r++) targets += draw_row(step, first + r, r);
        run(s);
    }
    update(step + 1, targets);
    return loss / targets;
}
/* The hash FNV-1a, of little-endian numbers; 0 begins one. */
static uint64_t hash_bytes(uint64_t hash, const void *x, size_t n) {
    hash = hash ? hash : 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const unsigned char *)x)[i]) * 0x100000001b3u;
    return hash;
}
static uint64_t hash_of_weights(void) {
    uint64_t hash = 0;
    for (const parameter *p = parameters; p < parameters + parameter_count; p++)
        hash = hash_bytes(hash, p->value, (size_t)p->elements * sizeof(float));
    return hash;
}

/* ---- 7. Functions ----------------------------------------------------------------------------
 * The exp of one library differs from that of another in the last bit, and training makes that a
 * large difference. These are polynomials, computed in one order (docs/functions.txt). */
static float horner(float x, const float *c, int n) { /* c[0] + c[1] x + c[2] x^2 + .. */
    return n == 1 ? *c : fmaf(horner(x, c + 1, n - 1), x, *c);
}
/* exp(x) = 2^n (1 + r p(r)) with the whole number n next to x / log 2, and r = x - n log 2. Adding
 * 12582912 rounds to a whole number, because a float of that size has no bits for a fraction. */
static float reduce(float x, float *r, float *p) {
    static const float c[] = { 0x1p+0f,        0x1.fffffcp-2f, 0x1.555492p-3f,
                               0x1.5558b8p-5f, 0x1.1239aap-7f, 0x1.6a4508p-10f };
    const float n = fmaf(x, 0x1.715476p+0f, 12582912) - 12582912;
    *r = fmaf(n, 0x1.05c61p-29f, fmaf(n, -0x1.62e43p-1f, x));
    *p = horner(*r, c, 6);
    return n;
}
static float exact_exp(float x) {
    float r, p, n = reduce(x < -104 ? -104 : x > 89 ? 89 : x, &r, &p);
    return ldexpf(fmaf(r, p, 1), (int)n);
}
/* A polynomial for |x| < 1, else 1 - 2 / (exp(2 |x|) + 1) */
static float exact_tanh(float x) {
    static const float c[] = { -0x1.55553cp-2f, 0x1.110be4p-3f, -0x1.b9623ap-5f, 0x1.6009a6p-6f,
                               -0x1.045ff4p-7f, 0x1.2da01ep-9f, -0x1.77cd56p-12f };
    float a = fabsf(x), z = a * a, r, p, n = reduce(a < 10 ? a + a : 20, &r, &p);
    const float two_n = ldexpf(1, (int)n);
    const float far = 1 - 2 / fmaf(r * two_n, p, two_n + 1);
    return copysignf(a < 1 ? fmaf(a * z, horner(z, c, 7), a) : far, x);
}
/* log(x) = n log 2 + log(1 + f) with x = 2^n (1 + f), 2/3 <= 1 + f < 4/3 */
static float exact_log(float x) {
    static const float c[] = { 0x1.555556p-2f,  -0x1.ffff18p-3f, 0x1.9997eep-3f,
                               -0x1.55978cp-3f, 0x1.24eb6ep-3f,  -0x1.f3b02cp-4f,
                               0x1.b91efap-4f,  -0x1.06c2bap-3f, 0x1.e9d18ap-4f };
    int n;
    const float m = frexpf(x, &n), f = m < 0x1.555556p-1f ? m + m - 1 : m - 1;
    n -= m < 0x1.555556p-1f;
    const float high = fmaf((float)n, 0x1.63p-1f, f);
    const float low = fmaf((float)n, -0x1.bd0106p-13f, f - (high - (float)n * 0x1.63p-1f));
    return high + fmaf(f * (f * f), horner(f, c, 9), fmaf(-0.5f, f * f, low));
}
/* Cosine and sine of `quarter` quarters of a turn and a small angle, high + low, at most pi / 4 */
static void turn(int quarter, float high, float low, float *c, float *s) {
    static const float a[] = { -0x1.555556p-3f, 0x1.111174p-7f, -0x1.a0594cp-13f, 0x1.7c2842p-19f };
    static const float b[] = { 0x1.55554ap-5f, -0x1.6c0c26p-10f, 0x1.99e70ap-16f };
    const float z = high * high, one = fmaf(-0.5f, z, 1);
    const float y = high + fmaf(high * z, horner(z, a, 4), fmaf(-0.5f * z, low, low));
    const float e = fmaf(-0.5f, fmaf(high, high, -z), (1 - one) + -0.5f * z);
    const float x = one + fmaf(z * z, horner(z, b, 3), fmaf(-high, low, e));
    const float corner[] = { x, y, -x, -y };
    *c = corner[(4 - quarter) % 4], *s = corner[(5 - quarter) % 4];
}
/* Pair i turns by 10000^(-i / half) radians a position. 2^64 of `angle` are a turn and vanish. */
static void rotary_angles(int half) {
    double frequency = 2935890503282001226.0; /* 2^64 / (2 pi): a radian; floats lose its end */
    for (int i = 0; i < half; i++, frequency *= pow(10000, -1.0 / half))
        for (int t = 0; t < context; t++) {
            const uint64_t angle = (uint64_t)t * (uint64_t)frequency;
            const uint64_t quarter = (angle + (UINT64_C(1) << 61)) >> 62;
            const float rest = (float)((double)(int64_t)(angle - (quarter << 62)) * 0x1.921fb6p-62);
            turn((int)quarter, rest, 0, &cosine[t * half + i], &sine[t * half + i]);
        }
}
/* Philox4x32-10 (Salmon 2011) scrambles a counter: every number can be computed directly. */
static void philox(uint32_t x[4], uint64_t key) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < 10; i++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t a = (uint64_t)x[0] * 0xD2511F53u, b = (uint64_t)x[2] * 0xCD9E8D57u;
        x[0] = (uint32_t)(b >> 32) ^ x[1] ^ k0, x[1] = (uint32_t)b;
        x[2] = (uint32_t)(a >> 32) ^ x[3] ^ k1, x[3] = (uint32_t)a;
    }
}
/* Initial values: normal numbers (Box 1958), r cos(a) and r sin(a) from two uniform ones. The key
 * has the name, so that another parameter changes no other one's values. */
static void random_values(parameter *p) {
    const uint64_t key = hash_bytes(hash_bytes(0, &seed, 8), p->name, strlen(p->name));
    for (int i = 0; i < p->elements; i++) {
        uint32_t word[4] = { (uint32_t)i / 2, 0, 0, 0 };
        philox(word, key);
        const float radius = sqrtf(-2 * exact_log((float)((word[0] >> 8) + 1) * 0x1p-24f));
        const double a = (double)(0x1.921fb6p+2f * ((float)(word[1] >> 8) * 0x1p-24f));
        const int quarter = (int)(a * 0x1.45f306dc9c883p-1 + 0.5); /* a 2 / pi, rounded */
        float high = (float)a, low = 0, c, s;
        if (quarter > 0) { /* the rest, in quarters and then in radians; 2 / pi is a sum of two */
            const double rest = fma(a, 0x1.45f306dc9c883p-1, -quarter) - a * 0x1.6b01ec5417056p-55;
            const float u = (float)rest, v = (float)(rest - (double)u);
            high = u * 0x1.921fb6p+0f, low = fmaf(u, 0x1.921fb6p+0f, -high);
            low = fmaf(v, 0x1.921fb6p+0f, fmaf(u, -0x1.777a5cp-25f, low));
        }
        turn(quarter % 4, high, low, &c, &s);
        p->value[i] = i < p->matrix ? p->deviation * (radius * (i % 2 ? s : c)) : p->matrix == 0;
        p->mean[i] = p->square[i] = 0;
    }
}

/* ---- 8. main --------------------------------------------------------------------------------- */
static void begin_training(void) {
    for (parameter *p = parameters; p < parameters + parameter_count; p++) random_values(p);
    peak = 0, rotary_angles(width / heads / 2);
}
static void train(const char *name, const schedule *s, int steps) {
    double mean = 0;
    begin_training();
    for (int step = 0; step < steps; step++) mean = train_step(s, step);
    printf("%-13s %2d %8d %4d  %.4f  %016llx\n", name, micro, 4 * peak, forwards - ops, mean,
           (unsigned long long)hash_of_weights());
}
/* ./train [STEPS [ROWS < SCHEDULE]]: SCHEDULE has lines such as "f 0", "b 31" and "x 3". */
int main(int argc, char **argv) {
    const int steps = argc > 1 ? atoi(argv[1]) : 150;
    schedule s = { 0 };
    char what;
    build_gpt();
    printf("schedule    rows    bytes again   loss  weights\n");
    if (argc > 2) {
        micro = atoi(argv[2]);
        for (int i; scanf(" %c %d", &what, &i) == 2;) append(&s, what, i);
        train("yours", &s, steps);
        return 0;
    }
    s = recompute(all, 0), train("store all", &s, steps);
    s = recompute(none, 1), train("keep nothing", &s, steps);
    s = recompute(halves, 0), train("segments", &s, steps);
    for (s = recompute(roots, 0); micro > 0; micro /= 2) train("sqrt(n)", &s, steps);
    return 0;
}

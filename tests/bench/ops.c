/* ops.c - measures every op, forward and backward, with all kernels that this processor can run, to compare two
 * versions of the library.
 *
 *     build/ops > before.csv                 prints lines: op, kernels, precision, microseconds
 *     build/ops before.csv > after.csv       also prints to stderr the ops whose time changed by 5 %
 *     build/ops before.csv mul pool          measures only ops whose names contain one of these words
 *
 * A time is the least of many runs on one thread, in processor time of the thread. Repeated measurements still
 * differ by 3 %, and by more for ops of a few microseconds. */
#include "op_fixture.h"

enum { LINES = 2048, SHOWN = 5 }; /* SHOWN: percent */

static T *measured(int64_t c, float at)
{
    return gckpt_running(r.graph, at > 0 ? "variance" : "mean", gckpt_shape1(c),
                         (gckpt_init){ 0, 0, at }, 0.1f);
}
/* Returns the result of op number i, or NULL if there is no such op. If the result is no loss, main adds a loss. */
static T *op(int i)
{
    const gckpt_window same = { .padding = { 1, 1 } }, half = { .size = { 2, 2 } };
    const gckpt_window each = { .padding = { 1, 1 }, .groups = 64 }, twice = { .stride = { 2, 2 } };
    int n = 0;
#define OP(text, make)                                                                             \
    if (i == n++) {                                                                                \
        r.name = text;                                                                             \
        return make;                                                                               \
    }
    OP("relu", gckpt_relu(in2(64, 4096)))
    OP("gelu", gckpt_gelu(in2(64, 4096)))
    OP("gelu_erf", gckpt_gelu_erf(in2(64, 4096)))
    OP("silu", gckpt_silu(in2(64, 4096)))
    OP("tanh", gckpt_tanh(in2(64, 4096)))
    OP("sigmoid", gckpt_sigmoid(in2(64, 4096)))
    OP("exp", gckpt_exp(in2(64, 4096)))
    OP("log", gckpt_log(in2(64, 4096)))
    OP("sqrt", gckpt_sqrt(in2(64, 4096)))
    OP("abs", gckpt_abs(in2(64, 4096)))
    OP("reciprocal", gckpt_pow(in2(64, 4096), -1))
    OP("pow", gckpt_pow(in2(64, 4096), 2.5f))
    OP("clamp", gckpt_clamp(in2(64, 4096), -0.1f, 0.2f))
    OP("leaky_relu", gckpt_activation(in2(64, 4096), GCKPT_LEAKY_RELU, 0.01f))
    OP("softplus", gckpt_activation(in2(64, 4096), GCKPT_SOFTPLUS, 0))
    OP("sin", gckpt_sin(gckpt_scale(in2(64, 4096), 40)))
    OP("cos", gckpt_cos(gckpt_scale(in2(64, 4096), 40)))
    OP("where", gckpt_where(index2(64, 4096, 2), in2(64, 4096), in2(64, 4096)))
    OP("where repeated", gckpt_where(fed(GCKPT_I32, gckpt_shape3(64, 64, 1), 2), in3(64, 64, 64), p1(1)))
    OP("scale", gckpt_scale(in2(64, 4096), -0.1f))
    OP("dropout", gckpt_dropout(in2(64, 4096), 0.1f))
    OP("softmax", gckpt_softmax(in2(64, 4096)))
    OP("softmax 10", gckpt_softmax(in2(8192, 10)))
    OP("log_softmax", gckpt_log_softmax(in2(64, 4096)))
    OP("add", gckpt_add(in2(64, 4096), in2(64, 4096)))
    OP("mul", gckpt_mul(in2(64, 4096), in2(64, 4096)))
    OP("div", gckpt_div(in2(64, 4096), in2(64, 4096)))
    OP("maximum", gckpt_maximum(in2(64, 4096), in2(64, 4096)))
    OP("add bias", gckpt_add(in3(64, 64, 64), p1(64)))
    OP("mul gain", gckpt_mul(in3(64, 64, 64), p1(64)))
    OP("mul repeated last", gckpt_mul(in3(64, 64, 64), in3(64, 64, 1)))
    OP("mul repeated middle", gckpt_mul(in4(16, 13, 7, 31), in4(16, 1, 7, 31)))
    OP("permute", swapped(in3(64, 64, 64)))
    OP("slice", gckpt_slice(in3(64, 64, 64), 2, 3, 60))
    OP("concat", pair_of(in3(64, 64, 32), in3(64, 64, 32), 2))
    OP("sum", gckpt_sum(in3(64, 64, 64), 1))
    OP("mean", gckpt_mean(in3(64, 64, 64), 2))
    OP("pad", gckpt_pad(in3(64, 64, 60), 2, 3, 1, GCKPT_PAD_VALUE, 0))
    OP("max", gckpt_max(in3(64, 64, 64), 1))
    OP("max last", gckpt_max(in3(64, 64, 64), 2))
    OP("embed of argmax", gckpt_embed(p2(500, 64), gckpt_argmax(in3(64, 64, 500), 2)))
    OP("embed", gckpt_embed(p2(500, 128), index2(32, 64, 500)))
    OP("gather", gckpt_gather(in3(32, 64, 128), index2(32, 64, 64)))
    OP("matmul", gckpt_matmul(in3(16, 64, 64), in3(16, 64, 64)))
    OP("linear", gckpt_linear(in2(256, 128), p2(128, 256), p1(256)))
    OP("linear small", gckpt_linear(in2(4, 16), p2(16, 16), p1(16)))
    OP("linear_transposed", gckpt_linear_transposed(in2(256, 128), p2(256, 128), p1(256)))
    OP("layernorm", gckpt_layernorm(in2(512, 256), p1(256), p1(256), 0))
    OP("layernorm 48", gckpt_layernorm(in2(2048, 48), p1(48), p1(48), 0))
    OP("rmsnorm", gckpt_rmsnorm(in2(512, 256), p1(256), 0))
#ifndef GCKPT_NO_ATTENTION
    OP("attention", gckpt_attention(in3(2, 128, 64), in3(2, 128, 64), in3(2, 128, 64),
                                    &(gckpt_attention_desc){ .heads = 2, .causal = 1 }))
    OP("attention small", gckpt_attention(in3(4, 16, 32), in3(4, 16, 32), in3(4, 16, 32),
                                          &(gckpt_attention_desc){ .heads = 2, .causal = 1 }))
    OP("rotary", gckpt_rotary(in3(8, 128, 128), &(gckpt_rotary_desc){ .heads = 4 }))
    OP("positions", gckpt_positions(in3(8, 128, 128), p2(128, 128), 0))
#endif
#ifndef GCKPT_NO_IMAGES
    OP("conv2d", gckpt_conv2d(in4(4, 16, 16, 16), p4(3, 3, 16, 32), p1(32), &same))
    OP("conv2d 3", gckpt_conv2d(in4(4, 16, 16, 3), p4(3, 3, 3, 8), p1(8), &same))
    OP("conv2d depthwise", gckpt_conv2d(in4(4, 16, 16, 64), p4(3, 3, 1, 64), p1(64), &each))
    OP("conv2d_transposed",
       gckpt_conv2d_transposed(in4(4, 12, 12, 16), p4(3, 3, 16, 16), p1(16), &twice))
    OP("max_pool", gckpt_max_pool(in4(8, 32, 32, 32), &half))
    OP("max_pool 3", gckpt_max_pool(in4(8, 64, 64, 3), &half))
    OP("average_pool", gckpt_average_pool(in4(8, 32, 32, 32), &half))
    OP("average_pool 3", gckpt_average_pool(in4(8, 64, 64, 3), &half))
    OP("upsample", gckpt_upsample(in4(8, 16, 16, 32), 32, 32, GCKPT_BILINEAR))
    OP("upsample nearest 3", gckpt_upsample(in4(8, 32, 32, 3), 64, 64, GCKPT_NEAREST))
    OP("global_average_pool", gckpt_global_average_pool(in4(8, 32, 32, 32)))
    OP("groupnorm", gckpt_groupnorm(in4(8, 16, 16, 64), 8, p1(64), p1(64), 0))
    OP("instance norm", gckpt_groupnorm(in4(8, 16, 16, 64), 64, p1(64), p1(64), 0))
    OP("batchnorm",
       gckpt_batchnorm(in4(8, 16, 16, 64), p1(64), p1(64), measured(64, 0), measured(64, 1), 0))
    OP("batchnorm 3",
       gckpt_batchnorm(in4(8, 64, 64, 3), p1(3), p1(3), measured(3, 0), measured(3, 1), 0))
#endif
#ifndef GCKPT_NO_RECURRENT
    OP("gru", gckpt_gru(in3(16, 16, 32), p2(32, 192), p1(192), p2(64, 192), p1(192), NULL))
    OP("gru small", gckpt_gru(in3(2, 16, 8), p2(8, 24), p1(24), p2(8, 24), p1(24), NULL))
    OP("lstm", gckpt_lstm(in3(16, 16, 32), p2(32, 256), p2(64, 256), p1(256), NULL))
#endif
    OP("cross_entropy", gckpt_cross_entropy(in2(256, 1000), index1(256, 1000), NULL, 0))
    OP("cross_entropy 10", gckpt_cross_entropy(in2(4096, 10), index1(4096, 10), NULL, 0))
    OP("cross_entropy 3", gckpt_cross_entropy(in2(8192, 3), index1(8192, 3), NULL, 0))
    OP("linear_cross_entropy",
       gckpt_linear_cross_entropy(in2(256, 64), p2(1000, 64), index1(256, 1000), NULL))
    OP("mean_squared_error", gckpt_mean_squared_error(in2(64, 4096), in2(64, 4096), NULL))
    OP("mean_squared_error 4", gckpt_mean_squared_error(in2(4096, 4), in2(4096, 4), NULL))
    OP("sum_loss", gckpt_sum_loss(in2(64, 4096)))
#ifndef GCKPT_NO_LOSSES
    OP("cross_entropy_with",
       gckpt_cross_entropy(in2(256, 1000), index1(256, 1000), in1(256), 0.1f))
    OP("soft_cross_entropy", gckpt_soft_cross_entropy(in2(256, 1000), in2(256, 1000), NULL))
    OP("binary_cross_entropy", gckpt_binary_cross_entropy(in2(64, 4096), in2(64, 4096), NULL))
    OP("binary_cross_entropy, weights of 64",
       gckpt_binary_cross_entropy(in3(64, 64, 64), in3(64, 64, 64), in2(64, 64)))
    OP("huber", gckpt_huber(in2(64, 4096), in2(64, 4096), NULL, 0.3f))
    OP("huber, weights of 4096", gckpt_huber(in2(64, 4096), in2(64, 4096), in1(64), 0.3f))
    OP("mean_squared_error_with, weights of 64",
       gckpt_mean_squared_error(in3(64, 64, 64), in3(64, 64, 64), in2(64, 64)))
#endif
#undef OP
    return NULL;
}

/* ---- times ---- */
typedef struct {
    const gckpt_plan *plan;
    /* id: the tensor of the op that is measured; pass: the present instruction: 0 for the op's forward, 1 for its
     * backward, -1 for other ops */
    int id, pass;
    double start, best[2];
} stopwatch;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The progress callback, which is called before each instruction: keeps the least time of the instruction before, if
 * that was the op's forward or backward. */
static int watch(void *user, const gckpt_progress *progress)
{
    stopwatch *w = (stopwatch *)user;
    gckpt_instruction i = { GCKPT_FORWARD, -1 };
    const double seconds = now() - w->start;
    if (w->pass >= 0 && seconds < w->best[w->pass])
        w->best[w->pass] = seconds;
    gckpt_plan_get(w->plan, progress->instruction, &i);
    w->pass = i.id != w->id ? -1 : i.kind == GCKPT_FORWARD ? 0 : i.kind == GCKPT_BACKWARD ? 1 : -1;
    w->start = now();
    return 0;
}

typedef struct {
    char name[96];
    double microseconds;
} line;
static line before[LINES];
static int known, compared;
static double logarithms;

static void note(const char *kernels, const char *precision, int pass, double seconds)
{
    char name[96];
    snprintf(name, sizeof name, "%s;%s;%s;%s", r.name, pass ? "backward" : "forward", kernels,
             precision);
    printf("%s;%.3f\n", name, 1e6 * seconds);
    fflush(stdout);
    for (int i = 0; i < known; i++) {
        if (strcmp(before[i].name, name))
            continue;
        const double ratio = 1e6 * seconds / before[i].microseconds;
        logarithms += log(ratio);
        compared++;
        if (fabs(ratio - 1) * 100 > SHOWN)
            fprintf(stderr, "%5.2f  %s: %.1f -> %.1f us\n", ratio, name, before[i].microseconds,
                    1e6 * seconds);
    }
}

/* Runs steps of the op with these kernels. Returns 0 if there is no plan or executor with this precision and
 * instruction set. */
static int run(T *made, T *loss, gckpt_isa isa, gckpt_precision precision)
{
    const gckpt_term term = { loss, 1.0f, 0 };
    const gckpt_plan_desc desc = { .mode = GCKPT_STORE_ALL,
                                   .bf16.precision = precision,
                                   .fetch.specs = r.wanted_gradients,
                                   .fetch.count = r.fetches,
                                   .schedule.as_built = 1,
                                   .kernels.plain = isa == GCKPT_ISA_PLAIN };
    const gckpt_hyper hyper = gckpt_hyper_lr(1e-6f);
    gckpt_plan *plan = gckpt_plan_new(r.graph, &term, 1, &desc);
    stopwatch w = { plan, gckpt_id(made), -1, 0, { INFINITY, INFINITY } };
    gckpt_exec *exec = gckpt_exec_new(
        plan, r.store, &(gckpt_exec_desc){ .isa = isa, .progress = watch, .user = &w });
    gckpt_result result = exec ? GCKPT_OK : GCKPT_E_ARG;
    const double start = now();
    for (int n = 0; result == GCKPT_OK && (n < 5 || now() - start < 0.05); n++) {
        w.pass = -1;
        result = gckpt_step(exec, r.feed, r.feeds, gckpt_plan_describe(plan).batch, &hyper, NULL);
    }
    if (result == GCKPT_OK)
        for (int pass = 0; pass < 2; pass++)
            note(isa_name(isa), precision == GCKPT_BF16 ? "bf16" : "fp32", pass,
                 w.best[pass]);
    else
        fprintf(stderr, "%s: %s\n", r.name,
                plan ? gckpt_error_text(r.store) : gckpt_error_text(r.graph));
    gckpt_exec_free(exec);
    gckpt_plan_free(plan);
    return result == GCKPT_OK;
}

static int read_before(const char *path)
{
    FILE *file = fopen(path, "r");
    char text[96];
    while (file && known < LINES && fgets(text, sizeof text, file)) {
        char *at = strrchr(text, ';');
        if (!at)
            continue;
        *at = 0;
        memcpy(before[known].name, text, sizeof text);
        before[known++].microseconds = strtod(at + 1, NULL);
    }
    if (!file)
        perror(path);
    else
        fclose(file);
    return file != NULL;
}

static int is_asked(int argc, char **argv)
{
    for (int i = 2; i < argc; i++)
        if (strstr(r.name, argv[i]))
            return 1;
    return argc < 3;
}

int main(int argc, char **argv)
{
    int wrong = 0;
    if (argc > 1 && !read_before(argv[1]))
        return 2;
    for (int i = 0, more = 1; more; i++) {
        memset(&r, 0, sizeof r);
        r.store = gckpt_store_new(NULL);
        r.graph = gckpt_graph_new(r.store, NULL);
        T *made = op(i), *loss = made;
        more = r.name != NULL;
        if (made && gckpt_shape_of(made).n > 0)
            loss = gckpt_sum_loss(gckpt_mul(made, made)); /* gradients with different values */
        for (int isa = GCKPT_ISA_PLAIN; more && is_asked(argc, argv) && isa < GCKPT_ISA_COUNT;
             isa++)
            for (int precision = GCKPT_FP32; precision <= GCKPT_BF16; precision++)
                if (isa != GCKPT_ISA_C && gckpt_isa_available((gckpt_isa)isa))
                    wrong += !run(made, loss, (gckpt_isa)isa, (gckpt_precision)precision);
        gckpt_graph_free(r.graph);
        gckpt_store_free(r.store);
        for (int k = 0; k < r.feeds; k++)
            free(r.data[k]);
    }
    if (compared)
        fprintf(stderr, "%d figures, %.3f of before in the mean\n", compared,
                exp(logarithms / compared));
    return wrong != 0;
}

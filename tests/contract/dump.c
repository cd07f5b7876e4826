/* dump.c - reads descriptions of nets from standard input, runs them by public calls only, and prints the bits of all
 * results: graph, losses, values, gradients, parameters and optimiser state.
 *
 * Each line of input is a command; check.py writes the commands and reads the output. In the list below, W are 32-bit
 * words in hex (floats as their bits), N D.. are a rank and its sizes, and all other numbers are decimal. Tensors are
 * numbered from 0 in the order of their creation.
 *     net ISA THREADS                  begins a net; ISA is a gckpt_isa, THREADS the plan's threads
 *     input NAME TYPE N D..            adds an input; TYPE is f, i or u
 *     const NAME TYPE N D.. W..        adds a constant with its values
 *     param NAME N D.. FROZEN W..      adds a parameter with its values; FROZEN is 0 (trained),
 *                                      1 (frozen), or 1 + the gckpt_storage it is quantised to
 *     running NAME N D.. MOMENTUM W..  adds running statistics with their values
 *     draw NAME N D.. W..              prints initial values; W are the words of a gckpt_init
 *     op BUILDER INPUTS NUMBER.. W..   adds an op: its inputs (-1 for NULL), then its attributes in
 *                                      the order of the builder's arguments
 *     term NUMBER WEIGHT REGULARISER   adds tensor NUMBER as a loss term
 *     plan MODE BATCH OPTIMISER VIRTUAL_RANKS PRECISION FETCHES
 *                                      FETCHES is a sum of 1 (gradients of trained parameters),
 *                                      2 (all values), 4 (all gradients)
 *     step ROWS LR DECAY BETA1 BETA2 EPS MOMENTUM CLIP W..   trains; W are all rows of each input
 *     forward ROWS W..                 runs forward; W are all rows of each input
 *     end                              frees the net and prints "end" */
#include "gradckpt.h"
#include "../unary.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 512, INPUTS = 16 };
static struct {
    gckpt_store *store;
    gckpt_graph *graph;
    gckpt_plan *plan;
    gckpt_exec *exec;
    gckpt_tensor *tensor[MOST];
    gckpt_term term[8];
    gckpt_fetch_spec fetch[2 * MOST];
    float *fetched[2 * MOST];
    size_t size[2 * MOST];
    void *constant[MOST];
    int fetched_as[2 * MOST];
    int isa, threads, built, terms, fetches, constants, inputs, input[INPUTS];
    int64_t rows;
} net;

/* ---- reading lines and numbers ---- */
static char *line, *at;
static size_t line_capacity;

static int next_line(void)
{
    size_t n = 0;
    int c;
    while ((c = getchar()) != EOF && c != '\n') {
        if (n + 2 > line_capacity && (line = realloc(line, line_capacity = 2 * line_capacity + 256)) == NULL)
            exit(1);
        line[n++] = (char)c;
    }
    if (n == 0)
        return 0;
    line[n] = 0;
    at = line;
    return 1;
}
static const char *word(void)
{
    at += strspn(at, " ");
    char *from = at;
    at += strcspn(at, " ");
    if (*at)
        *at++ = 0;
    return from;
}
static long number(void) { return strtol(word(), NULL, 10); }
static uint32_t bits(void) { return (uint32_t)strtoul(word(), NULL, 16); }
static float real(void)
{
    const uint32_t u = bits();
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
static int whole(void) { return (int)(int32_t)bits(); }
static gckpt_shape shape(void)
{
    gckpt_shape s = { 0 };
    s.n = (int)number();
    for (int i = 0; i < s.n && i < GCKPT_MAX_DIMS; i++)
        s.d[i] = number();
    return s;
}
static gckpt_shape shape_of_words(void)
{
    gckpt_shape s = { 0 };
    s.n = whole();
    for (int i = 0; i < s.n && i < GCKPT_MAX_DIMS; i++)
        s.d[i] = whole();
    return s;
}
static int64_t elements(const gckpt_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->n; i++)
        n *= s->d[i];
    return n;
}
static void print_values(const char *what, int id, const void *values, int64_t n)
{
    printf("%s %d ", what, id);
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, (const char *)values + 4 * i, 4);
        printf("%08x", (unsigned)u);
    }
    printf("\n");
}
static int failed(const char *what, const void *object)
{
    printf("error %s: %s\n", what, gckpt_error_text(object));
    return 1;
}

/* ---- builders: one function for each BUILDER of the command "op" ---- */
typedef gckpt_tensor *T;
static T keep(T t)
{
    printf("made %d %d\n", net.built, gckpt_id(t));
    if (net.built < MOST)
        net.tensor[net.built++] = t;
    return t;
}
static gckpt_window window(void)
{
    gckpt_window w = { { 0 }, { 0 }, { 0 }, { 0 }, 0, { 0 }, 0, 0 };
    for (int i = 0; i < 2; i++) {
        w.size[i] = whole(), w.stride[i] = whole(), w.padding[i] = whole();
        w.dilation[i] = whole(), w.output_padding[i] = whole();
    }
    w.groups = whole();
    return w;
}
static T build(const char *name, const T *x, int n)
{
    static const struct {
        const char *name;
        T (*make)(T);
    } one[] = {
#define UNARY(name, ...) { #name, gckpt_##name },
        UNARY_TESTS(UNARY)
#undef UNARY
        { "softmax", gckpt_softmax },
        { "log_softmax", gckpt_log_softmax },
        { "detach", gckpt_detach },
        { "sum_loss", gckpt_sum_loss },
        { "global_average_pool", gckpt_global_average_pool },
    };
    static const struct {
        const char *name;
        T (*make)(T, T);
    } two[] = {
        { "embed", gckpt_embed },
        { "gather", gckpt_gather },
        { "matmul", gckpt_matmul },
        { "matmul_transposed", gckpt_matmul_transposed },
        { "add", gckpt_add },
        { "sub", gckpt_sub },
        { "mul", gckpt_mul },
        { "div", gckpt_div },
        { "prelu", gckpt_prelu },
        { "maximum", gckpt_maximum },
        { "minimum", gckpt_minimum },
    };
    static const struct {
        const char *name;
        T (*make)(T, T, T);
    } three[] = {
        { "linear", gckpt_linear },
        { "linear_transposed", gckpt_linear_transposed },
        { "where", gckpt_where },
        { "soft_cross_entropy", gckpt_soft_cross_entropy },
        { "binary_cross_entropy", gckpt_binary_cross_entropy },
    };
    static const struct {
        const char *name;
        T (*make)(T, T, T, const gckpt_window *);
    } windows[] = {
        { "conv2d", gckpt_conv2d },
        { "conv1d", gckpt_conv1d },
        { "conv2d_transposed", gckpt_conv2d_transposed },
        { "conv1d_transposed", gckpt_conv1d_transposed },
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        if (!strcmp(name, one[i].name))
            return one[i].make(x[0]);
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (!strcmp(name, two[i].name))
            return two[i].make(x[0], x[1]);
    for (size_t i = 0; i < sizeof three / sizeof *three; i++)
        if (!strcmp(name, three[i].name))
            return three[i].make(x[0], x[1], x[2]);
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
        if (!strcmp(name, windows[i].name)) {
            const gckpt_window w = window();
            return windows[i].make(x[0], x[1], x[2], &w);
        }
    if (!strcmp(name, "max_pool") || !strcmp(name, "average_pool")) {
        gckpt_window w = window();
        w.ceil = whole(), w.exclude_padding = whole();
        return (name[0] == 'm' ? gckpt_max_pool : gckpt_average_pool)(x[0], &w);
    }
    if (!strcmp(name, "layernorm"))
        return gckpt_layernorm(x[0], x[1], x[2], real());
    if (!strcmp(name, "rmsnorm"))
        return gckpt_rmsnorm(x[0], x[1], real());
    if (!strcmp(name, "groupnorm")) {
        const int groups = whole();
        return gckpt_groupnorm(x[0], groups, x[1], x[2], real());
    }
    if (!strcmp(name, "batchnorm"))
        return gckpt_batchnorm(x[0], x[1], x[2], x[3], x[4], real());
    if (!strcmp(name, "leaky_relu"))
        return gckpt_activation(x[0], GCKPT_LEAKY_RELU, real());
    if (!strcmp(name, "elu"))
        return gckpt_activation(x[0], GCKPT_ELU, real());
    if (!strcmp(name, "scale"))
        return gckpt_scale(x[0], real());
    if (!strcmp(name, "pow"))
        return gckpt_pow(x[0], real());
    if (!strcmp(name, "dropout"))
        return gckpt_dropout(x[0], real());
    if (!strcmp(name, "clamp") || !strcmp(name, "from_u8")) {
        const float a = real(), b = real();
        return (name[0] == 'c' ? gckpt_clamp : gckpt_from_u8)(x[0], a, b);
    }
    if (!strcmp(name, "attention")) {
        gckpt_attention_desc d = { 0 };
        d.heads = whole(), d.key_heads = whole(), d.causal = whole(), d.window = whole();
        d.cap = real(), d.scale = real(), d.lengths = x[3];
        return gckpt_attention(x[0], x[1], x[2], &d);
    }
    if (!strcmp(name, "delta_rule")) {
        gckpt_attention_desc d = { .causal = 1, .decay = x[3], .beta = x[4] };
        d.heads = whole(), d.key_heads = whole(), d.scale = real();
        return gckpt_attention(x[0], x[1], x[2], &d);
    }
    if (!strcmp(name, "masked_attention")) {
        gckpt_attention_desc d = { 0 };
        d.heads = whole(), d.key_heads = whole(), d.cap = real(), d.scale = real(), d.mask = x[3];
        return gckpt_attention(x[0], x[1], x[2], &d);
    }
    if (!strcmp(name, "rotary")) {
        gckpt_rotary_desc d = { 0 };
        float frequencies[512];
        d.heads = whole(), d.base = real(), d.position = whole(), d.columns = whole();
        d.scale = real();
        const int given = whole();
        for (int i = 0; i < given && i < 512; i++)
            frequencies[i] = real();
        d.frequencies = given ? frequencies : NULL;
        return gckpt_rotary(x[0], &d);
    }
    if (!strcmp(name, "positions_at"))
        return gckpt_positions(x[0], x[1], whole());
    if (!strcmp(name, "upsample")) {
        const int h = whole(), w = whole();
        return gckpt_upsample(x[0], h, w, (gckpt_upsampling)whole());
    }
    if (!strcmp(name, "cache"))
        return gckpt_cache(x[0], whole());
    if (!strcmp(name, "cache_window")) {
        const int capacity = whole();
        return gckpt_cache_window(x[0], capacity, whole());
    }
    if (!strcmp(name, "gru")) {
        const gckpt_recurrent_desc d = { x[5], NULL, x[6], whole() };
        return gckpt_gru(x[0], x[1], x[2], x[3], x[4], &d);
    }
    if (!strcmp(name, "lstm")) {
        const gckpt_recurrent_desc d = { x[4], x[5], x[6], 0 };
        return gckpt_lstm(x[0], x[1], x[2], x[3], &d);
    }
    if (!strcmp(name, "reshape"))
        return gckpt_reshape(x[0], shape_of_words());
    if (!strcmp(name, "permute")) {
        int axes[GCKPT_MAX_DIMS], k = whole();
        for (int i = 0; i < k && i < GCKPT_MAX_DIMS; i++)
            axes[i] = whole();
        return gckpt_permute(x[0], axes, k);
    }
    if (!strcmp(name, "slice")) {
        const int axis = whole(), begin = whole();
        return gckpt_slice(x[0], axis, begin, whole());
    }
    if (!strcmp(name, "concat"))
        return gckpt_concat(x, n, whole());
    if (!strcmp(name, "pad")) {
        const int axis = whole(), before = whole(), after = whole(), mode = whole();
        return gckpt_pad(x[0], axis, before, after, (gckpt_pad_mode)mode, real());
    }
    if (!strcmp(name, "sum"))
        return gckpt_sum(x[0], whole());
    if (!strcmp(name, "mean"))
        return gckpt_mean(x[0], whole());
    if (!strcmp(name, "max"))
        return gckpt_max(x[0], whole());
    if (!strcmp(name, "argmax"))
        return gckpt_argmax(x[0], whole());
    if (!strncmp(name, "top_k", 5)) {
        gckpt_tensor *indices = NULL;
        const int axis = whole();
        gckpt_tensor *values = gckpt_top_k(x[0], axis, whole(), name[5] ? &indices : NULL);
        return name[5] ? indices : values;
    }
    if (!strcmp(name, "positions"))
        return gckpt_positions(x[0], x[1], 0);
    if (!strcmp(name, "cross_entropy"))
        return gckpt_cross_entropy(x[0], x[1], NULL, 0);
    if (!strcmp(name, "mean_squared_error"))
        return gckpt_mean_squared_error(x[0], x[1], NULL);
    if (!strcmp(name, "mean_squared_error_with"))
        return gckpt_mean_squared_error(x[0], x[1], x[2]);
    if (!strcmp(name, "linear_cross_entropy"))
        return gckpt_linear_cross_entropy(x[0], x[1], x[2], NULL);
    if (!strcmp(name, "linear_cross_entropy_with")) {
        const gckpt_linear_loss_desc d = { real() };
        return gckpt_linear_cross_entropy(x[0], x[1], x[2], &d);
    }
    if (!strcmp(name, "cross_entropy_with"))
        return gckpt_cross_entropy(x[0], x[1], x[2], real());
    if (!strcmp(name, "huber"))
        return gckpt_huber(x[0], x[1], x[2], real());
    printf("error no builder %s\n", name);
    return NULL;
}

/* ---- commands ---- */
static void begin(void)
{
    memset(&net, 0, sizeof net);
    net.isa = (int)number();
    net.threads = (int)number();
    net.store = gckpt_store_new(NULL);
    net.graph = gckpt_graph_new(net.store, NULL);
}
static gckpt_type type(void)
{
    const char c = word()[0];
    return c == 'f' ? GCKPT_F32 : c == 'i' ? GCKPT_I32 : GCKPT_U8;
}
static void add_input(void)
{
    const char *name = word();
    const gckpt_type kind = type();
    const gckpt_shape s = shape();
    net.rows = s.d[0];
    T t = keep(gckpt_input(net.graph, name, kind, s));
    if (t == NULL)
        failed("input", net.graph);
    else
        net.input[net.inputs++] = gckpt_id(t);
}
static void *words(int64_t n, gckpt_type kind)
{
    uint32_t *values = malloc((size_t)n * 4 + 4);
    for (int64_t i = 0; i < n && values; i++)
        values[i] = bits();
    for (int64_t i = 0; i < n && values && kind == GCKPT_U8; i++)
        ((unsigned char *)values)[i] = (unsigned char)values[i];
    return values;
}
static void add_constant(void)
{
    const char *name = word();
    const gckpt_type kind = type();
    const gckpt_shape s = shape();
    void *values = net.constant[net.constants++] = words(elements(&s), kind);
    keep(gckpt_constant(net.graph, name, kind, s, values));
}
static void add_param(int measured)
{
    const char *name = word();
    const gckpt_shape s = shape();
    const float momentum = measured ? real() : 0;
    const int frozen = measured ? 0 : (int)number();
    const gckpt_init zero = { 0, 0, 0 };
    if (keep(measured ? gckpt_running(net.graph, name, s, zero, momentum)
                      : gckpt_param(net.graph, name, s, zero)) == NULL) {
        failed("param", net.graph);
        return;
    }
    gckpt_parameter p;
    if (*at && gckpt_store_get(net.store, gckpt_store_find(net.store, name), &p) == GCKPT_OK)
        for (int64_t i = 0; i < p.elements; i++)
            p.values[i] = real();
    if (frozen)
        gckpt_store_freeze(net.store, name, 1);
    if (frozen > 1 && gckpt_store_quantise(net.store, name, (gckpt_storage)(frozen - 1)))
        failed("pack", net.store);
}
static void draw(void)
{
    const char *name = word();
    const gckpt_shape s = shape();
    gckpt_init init = { 0, 0, 0 };
    init.normal = real(), init.uniform = real(), init.constant = real();
    keep(gckpt_param(net.graph, name, s, init));
    gckpt_parameter p;
    if (gckpt_store_get(net.store, gckpt_store_find(net.store, name), &p) == GCKPT_OK)
        print_values("value", 0, p.values, p.elements);
}
static void add_op(void)
{
    const char *name = word();
    const int n = (int)number();
    T x[GCKPT_MAX_INPUTS] = { NULL };
    for (int i = 0; i < n; i++) {
        const long id = number();
        x[i] = id < 0 ? NULL : net.tensor[id];
    }
    if (keep(build(name, x, n)) == NULL)
        failed(name, net.graph);
}
/* reached[i]: nonzero if tensor i has a gradient, that is if a path of ops leads from it to a loss. */
static unsigned char reached[MOST];
static void find_reached(int size)
{
    memset(reached, 0, sizeof reached);
    for (int i = 0; i < net.terms; i++)
        reached[gckpt_id(net.term[i].loss)] = 1;
    for (int id = size - 1; id >= 0; id--) {
        gckpt_node v;
        if (!reached[id] || gckpt_graph_node(net.graph, id, &v) != GCKPT_OK ||
            !strcmp(v.op, "detach") || !strcmp(v.op, "argmax") || !strcmp(v.op, "top_k_indices"))
            continue;
        for (int i = !strcmp(v.op, "where"); i < v.inputs; i++)
            reached[v.input[i]] = 1;
    }
}
static void add_plan(void)
{
    gckpt_plan_desc d = { 0 };
    d.mode = (gckpt_mode)number();
    d.batch = number();
    d.optimiser = (gckpt_optimiser)number();
    d.ranks.virtual_ranks = (int)number();
    d.bf16.precision = (gckpt_precision)number();
    d.threads = net.threads;
    const int size = gckpt_graph_size(net.graph), fetches = (int)number();
    for (int id = 0; id < size; id++) {
        gckpt_node v;
        if (gckpt_graph_node(net.graph, id, &v) != GCKPT_OK)
            continue;
        printf("node %d %s %d %d %d %d", id, v.op, v.loss, v.batch_invariant, (int)v.type, v.shape.n);
        for (int i = 0; i < v.shape.n; i++)
            printf(" %d", (int)v.shape.d[i]);
        printf(" %d", v.inputs);
        for (int i = 0; i < v.inputs; i++)
            printf(" %d", v.input[i]);
        printf("\n");
    }
    find_reached(size);
    gckpt_plan_desc probe = d; /* gradients that only a batch of one micro-batch has are not fetched */
    gckpt_fetch_spec one = { NULL, 1 };
    probe.fetch.specs = &one, probe.fetch.count = 1;
    for (int ref = 0; ref < net.built; ref++) {
        gckpt_node v;
        const int id = gckpt_id(net.tensor[ref]);
        if (gckpt_graph_node(net.graph, id, &v) != GCKPT_OK || v.type != GCKPT_F32 || v.loss)
            continue;
        gckpt_node root = v;
        while (!strcmp(root.op, "reshape"))
            gckpt_graph_node(net.graph, root.input[0], &root);
        const int param = !strcmp(v.op, "param");
        const int vrank_rows =
            !strcmp(root.op, "param") || !strcmp(root.op, "input") || !strcmp(root.op, "constant");
        const int cached = !strncmp(v.op, "cache", 5) || !strcmp(v.op, "concat");
        gckpt_parameter p = { 0 };
        if (param)
            gckpt_store_peek(net.store, gckpt_store_find(net.store, v.name), &p);
        for (int g = 0; g < 2; g++)
            if (g == 0 ? !vrank_rows && !cached && fetches & 2
                       : reached[id] && (fetches & 4 || (param && !p.frozen && fetches & 1))) {
                one.tensor = net.tensor[ref];
                gckpt_plan *alone = g ? gckpt_plan_new(net.graph, net.term, net.terms, &probe) : NULL;
                gckpt_plan_free(alone);
                if (g && !alone && strstr(gckpt_error_text(net.graph), "is not trained"))
                    continue;
                const int64_t n = elements(&v.shape);
                const int i = net.fetches++;
                net.size[i] = (size_t)(v.batch_invariant ? n : d.batch * (n / net.rows));
                net.fetched[i] = v.batch_invariant ? NULL : malloc(net.size[i] * 4);
                net.fetched_as[i] = ref;
                net.fetch[i].tensor = net.tensor[ref], net.fetch[i].gradient = g;
            }
    }
    d.fetch.specs = net.fetch;
    d.fetch.count = net.fetches;
    net.plan = gckpt_plan_new(net.graph, net.term, net.terms, &d);
    if (net.plan == NULL) {
        failed("plan", net.graph);
        return;
    }
    gckpt_exec_desc e = { .allow_initial = 1 };
    e.isa = (gckpt_isa)net.isa;
    net.exec = gckpt_exec_new(net.plan, net.store, &e);
    if (net.exec == NULL)
        failed("exec", net.store);
    for (int i = 0; i < net.fetches && net.exec; i++)
        if (net.fetched[i] && gckpt_collect(net.exec, gckpt_id(net.fetch[i].tensor),
                                           net.fetch[i].gradient, net.fetched[i], net.size[i]))
            failed("collect", net.exec);
}
static void run(int train)
{
    gckpt_feed feeds[INPUTS];
    gckpt_hyper h = { 0 };
    gckpt_report r = { 0 };
    const int64_t rows = number();
    if (train) {
        h.lr = real(), h.weight_decay = real(), h.beta1 = real(), h.beta2 = real();
        h.eps = real(), h.momentum = real(), h.clip = real();
    }
    for (int i = 0; i < net.inputs; i++) {
        gckpt_node v;
        gckpt_graph_node(net.graph, net.input[i], &v);
        feeds[i].input = net.input[i];
        feeds[i].data = words(rows * (elements(&v.shape) / v.shape.d[0]), v.type);
    }
    gckpt_result result = GCKPT_E_ARG;
    if (net.exec)
        result = train ? gckpt_step(net.exec, feeds, net.inputs, rows, &h, &r)
                       : gckpt_forward(net.exec, feeds, net.inputs, rows, &r);
    if (result != GCKPT_OK) {
        if (net.exec)
            failed("step", net.exec);
    } else {
        uint64_t d[2];
        memcpy(d, &r.loss, 8), memcpy(d + 1, &r.grad_norm, 8);
        printf("report %016llx %016llx %lld\n", (unsigned long long)d[0], (unsigned long long)d[1],
               (long long)r.count);
        for (int i = 0; i < net.terms; i++) {
            double sum;
            int64_t count;
            if (gckpt_term_loss(net.exec, i, &sum, &count) == GCKPT_OK) {
                memcpy(d, &sum, 8);
                printf("term %d %016llx %lld\n", i, (unsigned long long)d[0], (long long)count);
            }
        }
        for (int i = 0; i < net.fetches; i++) {
            const int id = gckpt_id(net.fetch[i].tensor), g = net.fetch[i].gradient;
            const float *x = net.fetched[i] ? net.fetched[i] : gckpt_fetch(net.exec, id, g);
            const size_t n = net.fetched[i]
                                 ? net.size[i] / (size_t)(gckpt_plan_describe(net.plan).batch) * (size_t)rows
                                 : net.size[i];
            if (x)
                print_values(g ? "grad" : "value", net.fetched_as[i], x, (int64_t)n);
            else
                failed("fetch", net.exec);
        }
        for (int i = 0; train && i < gckpt_store_count(net.store); i++) {
            gckpt_parameter p;
            gckpt_store_get(net.store, i, &p);
            if (p.values)
                print_values("param", i, p.values, p.elements);
            for (int k = 0; k < 4; k++)
                if (p.state[k])
                    printf("state %d ", k), print_values("of", i, p.state[k], p.elements);
        }
    }
    for (int i = 0; i < net.inputs; i++)
        free((void *)feeds[i].data);
}
static void end(void)
{
    gckpt_exec_free(net.exec);
    gckpt_plan_free(net.plan);
    gckpt_graph_free(net.graph);
    gckpt_store_free(net.store);
    for (int i = 0; i < net.constants; i++)
        free(net.constant[i]);
    for (int i = 0; i < net.fetches; i++)
        free(net.fetched[i]);
    printf("end\n");
    fflush(stdout);
}

int main(void)
{
    while (next_line()) {
        const char *command = word();
        if (!strcmp(command, "net"))
            begin();
        else if (!strcmp(command, "input"))
            add_input();
        else if (!strcmp(command, "const"))
            add_constant();
        else if (!strcmp(command, "param"))
            add_param(0);
        else if (!strcmp(command, "running"))
            add_param(1);
        else if (!strcmp(command, "draw"))
            draw();
        else if (!strcmp(command, "op"))
            add_op();
        else if (!strcmp(command, "term")) {
            gckpt_term *t = &net.term[net.terms++];
            t->loss = net.tensor[number()];
            t->weight = real();
            t->regulariser = (int)number();
        } else if (!strcmp(command, "plan"))
            add_plan();
        else if (!strcmp(command, "step"))
            run(1);
        else if (!strcmp(command, "forward"))
            run(0);
        else if (!strcmp(command, "end"))
            end();
    }
    free(line);
    return 0;
}

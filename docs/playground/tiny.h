/* tiny.h - trains a GPT over bytes, or a classifier of points, on a text, within a byte budget, with
 * the same bits in the playground's page and in tiny.c. Include gradckpt.h first. */
#ifndef TINY_H
#define TINY_H
#include "../../examples/sample.h"
#include "models.h"

typedef struct {
    int points; /* if nonzero, the text has lines "x y class" in thousandths; if 0, a GPT learns it */
    int layers, heads, width, context; /* points use layers and width */
    int rows, micro;                   /* rows of a step; rows at once, a divisor */
    gckpt_mode mode;
    size_t budget; /* 0 is no limit */
    int unequal;   /* rows have between 1 and `context` targets */
    int fault;     /* minimises the mean of the micro-batches' means */
    float lr;
    uint64_t seed;
    int virtual_ranks;            /* 0 is 1; results depend on it */
    const gckpt_transport *ranks; /* other processes that share each step, or NULL */
    const gckpt_backend *backend; /* NULL is the processor */
} tiny_options;

enum { TINY_BYTES = 256, TINY_CLASSES = 2, TINY_SIDE = 40 /* of the map of points */ };
typedef struct {
    tiny_options o;
    gckpt_memory memory;
    const unsigned char *text;
    size_t length;
    int count; /* number of points; x, y and class of each */
    int32_t *point;
    gckpt_store *store;
    gckpt_graph *graph, *asked;
    gckpt_plan *plan;
    gckpt_exec *exec, *ask;
    gckpt_feed feeds[3]; /* inputs, targets, weights of rows */
    int result, given;   /* of `ask`: ids of the logits and of the input */
    void *room[4];       /* memory of the feeds and of the input of `ask` */
    size_t room_bytes[4];
    uint64_t step;
    gckpt_hyper hyper; /* of the last step, and its report */
    gckpt_report report;
    char error[256];
} tiny;

static int tiny_fails(tiny *t, const char *why)
{
    size_t n = strlen(why);
    n = n < sizeof t->error - 1 ? n : sizeof t->error - 1;
    memcpy(t->error, why, n);
    t->error[n] = 0;
    return 0;
}

static void tiny_close(tiny *t)
{
    gckpt_exec_free(t->ask);
    gckpt_exec_free(t->exec);
    gckpt_plan_free(t->plan);
    gckpt_graph_free(t->asked);
    gckpt_graph_free(t->graph);
    gckpt_store_free(t->store);
    for (int i = 0; i < 4; i++)
        if (t->room[i] != NULL)
            t->memory.resize(t->memory.user, t->room[i], t->room_bytes[i], 0);
    if (t->point != NULL)
        t->memory.resize(t->memory.user, t->point, (size_t)t->count * 3 * sizeof *t->point, 0);
    memset(t, 0, sizeof *t);
}

/* Reads the next integer of a text from *at on; returns 0 if there is none. */
static int tiny_number(const tiny *t, size_t *at, int32_t *n)
{
    int minus = 0, digits = 0;
    while (*at < t->length && t->text[*at] != '-' && (t->text[*at] < '0' || t->text[*at] > '9'))
        ++*at;
    if (*at < t->length && t->text[*at] == '-')
        minus = 1, ++*at;
    for (*n = 0; *at < t->length && t->text[*at] >= '0' && t->text[*at] <= '9'; ++*at, digits++)
        *n = *n < 1000000 ? *n * 10 + (t->text[*at] - '0') : *n;
    *n = minus ? -*n : *n;
    return digits > 0;
}

static int tiny_points(tiny *t)
{
    int32_t n;
    size_t at = 0;
    int numbers = 0;
    while (tiny_number(t, &at, &n))
        numbers++;
    if (numbers < 6 || numbers % 3 != 0)
        return tiny_fails(t, "two points or more are needed, as lines of three whole numbers: "
                             "x, y (thousandths), class");
    t->count = numbers / 3;
    t->point =
        (int32_t *)t->memory.resize(t->memory.user, NULL, 0, (size_t)numbers * sizeof *t->point);
    at = 0;
    for (int i = 0; t->point != NULL && i < numbers; i++)
        if (tiny_number(t, &at, &t->point[i]) && i % 3 == 2 &&
            (t->point[i] < 0 || t->point[i] >= TINY_CLASSES))
            return tiny_fails(t, "the class of a point is 0 or 1");
    return t->point != NULL || tiny_fails(t, "out of memory");
}

static sizes tiny_sizes(const tiny *t, int64_t rows)
{
    const tiny_options *o = &t->o;
    const sizes points = { { 2, o->layers, o->width, TINY_CLASSES, 0 }, rows };
    const sizes words = { { o->layers, o->heads, o->width, o->context, TINY_BYTES }, rows };
    return o->points ? points : words;
}

/* Builds the graph of a step in t->graph, which must be empty; returns its loss. */
static gckpt_term tiny_term(tiny *t)
{
    const tiny_options *o = &t->o;
    const sizes s = tiny_sizes(t, o->micro);
    gckpt_graph *g = t->graph;
    gckpt_tensor *logits = o->points ? mlp_logits(g, &s) : gpt_logits(g, &s);
    const gckpt_shape shape =
        o->points ? gckpt_shape1(o->micro) : gckpt_shape2(o->micro, o->context);
    gckpt_tensor *targets = gckpt_input(g, "targets", GCKPT_I32, shape);
    gckpt_tensor *weights = gckpt_input(g, "weights", GCKPT_F32, gckpt_shape1(o->micro));
    const gckpt_term term = { gckpt_cross_entropy(logits, targets, weights, 0), 1, 0 };
    t->feeds[0].input = 0; /* the first tensor of the graph */
    t->feeds[1].input = gckpt_id(targets), t->feeds[2].input = gckpt_id(weights);
    return term;
}

/* Returns the options of the plan of a step. */
static gckpt_plan_desc tiny_desc(const tiny *t)
{
    const tiny_options *o = &t->o;
    gckpt_plan_desc d;
    memset(&d, 0, sizeof d);
    d.mode = o->mode, d.budget = o->budget, d.batch = o->rows, d.memory = t->memory;
    d.ranks.virtual_ranks = o->virtual_ranks, d.backend = o->backend;
    return d;
}

/* Builds the graph, the feeds and the executor of a step. */
static int tiny_prepare(tiny *t)
{
    const tiny_options *o = &t->o;
    const gckpt_store_desc store = { .seed = o->seed, .memory = t->memory };
    const gckpt_exec_desc exec = { .memory = t->memory,
                                   .transport = o->ranks,
                                   .backend = o->backend };
    t->store = gckpt_store_new(&store);
    if (o->ranks != NULL)
        gckpt_store_ranks(t->store, o->ranks->rank, o->ranks->size, GCKPT_SHARD_NONE);
    t->graph = gckpt_graph_new(t->store, &t->memory);
    if (t->graph == NULL)
        return tiny_fails(t, "out of memory");
    const gckpt_term term = tiny_term(t);
    const gckpt_plan_desc d = tiny_desc(t);
    t->plan = gckpt_plan_new(t->graph, &term, 1, &d);
    if (t->plan == NULL)
        return tiny_fails(t, gckpt_error_text(t->graph));
    t->exec = gckpt_exec_new(t->plan, t->store, &exec);
    if (t->exec == NULL)
        return tiny_fails(t, gckpt_error_text(t->store));
    int64_t first = 0; /* the rows that this process feeds begin here */
    gckpt_plan_rank_rows(t->plan, o->rows, o->ranks == NULL ? 0 : o->ranks->rank, &first);
    for (int i = 0; i < 3; i++) {
        const size_t row = t->room_bytes[i] / (size_t)o->rows;
        t->feeds[i].data = (char *)t->room[i] + (size_t)first * row;
    }
    return 1;
}

/* Builds the same without a loss, for one window of generation or the map. */
static inline int tiny_prepare_ask(tiny *t)
{
    const gckpt_exec_desc exec = { .memory = t->memory, .allow_initial = 1 };
    const sizes s = tiny_sizes(t, t->o.points ? TINY_SIDE : 1);
    gckpt_graph *g = t->asked = gckpt_graph_new(t->store, &t->memory);
    gckpt_fetch_spec pick = { NULL, 0 };
    gckpt_plan_desc d;
    memset(&d, 0, sizeof d);
    if (g != NULL)
        pick.tensor = t->o.points ? mlp_logits(g, &s) : gpt_logits(g, &s);
    d.mode = GCKPT_INFERENCE, d.fetch.specs = &pick, d.fetch.count = 1, d.memory = t->memory;
    gckpt_plan *p = g == NULL ? NULL : gckpt_plan_new(g, NULL, 0, &d);
    t->ask = p == NULL ? NULL : gckpt_exec_new(p, t->store, &exec);
    t->result = p == NULL ? 0 : gckpt_id(pick.tensor);
    gckpt_plan_free(p);
    return t->ask != NULL || tiny_fails(t, g == NULL ? "out of memory" : gckpt_error_text(g));
}

/* Prepares steps. Returns 1, or 0 with a text in t->error. `text` must stay valid. */
static int tiny_begin(tiny *t, const tiny_options *o, const gckpt_memory *memory,
                      const unsigned char *text, size_t length)
{
    memset(t, 0, sizeof *t);
    t->o = *o, t->memory = *memory, t->text = text, t->length = length;
    if (o->rows < 1 || o->micro < 1 || o->rows % o->micro != 0)
        return tiny_fails(t, "what is computed at once must divide the rows (examples) of a step");
    if (!o->points && (o->width % o->heads != 0 || o->width / o->heads % 2 != 0))
        return tiny_fails(t, "width divided by heads must be a whole, even number");
    if (!o->points && length < (size_t)o->context + 1)
        return tiny_fails(t, "the text is shorter than a window and the byte after it: more text, "
                             "or a smaller context");
    if (o->points && !tiny_points(t))
        return 0;
    const size_t rows = (size_t)o->rows, window = o->points ? 1 : (size_t)o->context;
    t->room_bytes[0] = rows * (o->points ? 2 : window) * 4, t->room_bytes[1] = rows * window * 4;
    t->room_bytes[2] = rows * 4, t->room_bytes[3] = (o->points ? 2 * TINY_SIDE : window) * 4;
    for (int i = 0; i < 4; i++) {
        t->room[i] = memory->resize(memory->user, NULL, 0, t->room_bytes[i]);
        if (t->room[i] == NULL)
            return tiny_fails(t, "out of memory");
    }
    return tiny_prepare(t);
}

/* Like tiny_begin; after it tiny_write and tiny_map work as well. */
static inline int tiny_open(tiny *t, const tiny_options *o, const gckpt_memory *memory,
                            const unsigned char *text, size_t length)
{
    return tiny_begin(t, o, memory, text, length) && tiny_prepare_ask(t);
}

/* Fills row r of the next step; returns its number of targets. */
static int tiny_row(tiny *t, int r)
{
    const tiny_options *o = &t->o;
    const uint64_t draw = sample_random(o->seed, t->step, (uint64_t)r);
    if (o->points) {
        const int32_t *p = t->point + draw % (uint64_t)t->count * 3;
        float *x = (float *)t->room[0] + 2 * r;
        x[0] = (float)p[0] * 0.001f, x[1] = (float)p[1] * 0.001f;
        ((int32_t *)t->room[1])[r] = p[2];
        return 1;
    }
    int32_t *tokens = (int32_t *)t->room[0] + r * o->context;
    int32_t *targets = (int32_t *)t->room[1] + r * o->context;
    const size_t start = draw % (t->length - (size_t)o->context);
    const int count = o->unequal ? 1 + (int)(draw >> 40) % o->context : o->context;
    for (int i = 0; i < o->context; i++) {
        tokens[i] = t->text[start + (size_t)i];
        targets[i] = i < count ? t->text[start + (size_t)i + 1] : -1;
    }
    return count;
}

/* Returns 1, or 0 with a text in t->error. */
static int tiny_step(tiny *t, double *loss)
{
    const tiny_options *o = &t->o;
    float *weights = (float *)t->room[2];
    int64_t all = 0;
    for (int r = 0; r < o->rows; r += o->micro) {
        int64_t here = 0;
        for (int i = 0; i < o->micro; i++)
            here += tiny_row(t, r + i);
        for (int i = 0; i < o->micro; i++)
            weights[r + i] = o->fault ? 1.0f / (float)here : 1.0f;
        all += here;
    }
    /* The library divides the sum by all targets; a mean of means divides each part by its targets. */
    for (int r = 0; o->fault && r < o->rows; r++)
        weights[r] *= (float)all * (float)o->micro / (float)o->rows;
    t->hyper = gckpt_hyper_lr(o->lr);
    if (gckpt_step(t->exec, t->feeds, 3, o->rows, &t->hyper, &t->report) != GCKPT_OK)
        return tiny_fails(t, gckpt_error_text(t->exec));
    t->step++;
    *loss = t->report.loss;
    return 1;
}

/* Generates text up to n bytes, the first `begin` of which are given. */
static inline int tiny_write(tiny *t, unsigned char *to, int n, int begin)
{
    const sample_options how = { 0.8, 0, 1, t->o.seed };
    sample_entry room[TINY_BYTES];
    int32_t *tokens = (int32_t *)t->room[3];
    const gckpt_feed feed = { 0, tokens };
    memcpy(to, t->text, (size_t)begin);
    for (int i = begin; i < n; i++) {
        const int have = i < t->o.context ? i : t->o.context;
        for (int k = 0; k < t->o.context; k++)
            tokens[k] = k < have ? to[i - have + k] : 0;
        if (gckpt_forward(t->ask, &feed, 1, 1, NULL) != GCKPT_OK)
            return tiny_fails(t, gckpt_error_text(t->ask));
        const float *logits = gckpt_fetch(t->ask, t->result, 0) + (have - 1) * TINY_BYTES;
        to[i] = (unsigned char)sample_token(logits, TINY_BYTES, &how, 0, (uint64_t)i, room);
    }
    return 1;
}

/* Writes the predicted class at each position of -1..1, row by row, as '0' or '1'. */
static inline int tiny_map(tiny *t, char *to)
{
    float *x = (float *)t->room[3];
    const gckpt_feed feed = { 0, x };
    for (int row = 0; row < TINY_SIDE; row++) {
        for (int i = 0; i < TINY_SIDE; i++) {
            x[2 * i] = (2.0f * (float)i + 1) / TINY_SIDE - 1;
            x[2 * i + 1] = (2.0f * (float)row + 1) / TINY_SIDE - 1;
        }
        if (gckpt_forward(t->ask, &feed, 1, TINY_SIDE, NULL) != GCKPT_OK)
            return tiny_fails(t, gckpt_error_text(t->ask));
        const float *logits = gckpt_fetch(t->ask, t->result, 0);
        for (int i = 0; i < TINY_SIDE; i++)
            *to++ = logits[2 * i + 1] > logits[2 * i] ? '1' : '0';
    }
    *to = 0;
    return 1;
}

#endif

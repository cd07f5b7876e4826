/* test_state_bytes.c - optimisers whose state is bytes (gckpt_plan_desc.state_bytes) and whose updates have a workspace
 * (workspace_bytes): the plan counts both exactly; every plan, budget, micro-batch, number of threads and way to feed a
 * step gives the same bits of values and state, with and without a workspace; a file keeps them, so that a resumed
 * training has the bits of an uninterrupted one; state of another size is refused. */
#include "gradckpt.h"
#include "check.h"
#include "util.h"

enum { ROWS = 12, IN = 9, MID = 7, OUT = 5, STEPS = 4 };
static float x[STEPS][ROWS * IN], y[STEPS][ROWS * OUT];

/* A byte per element, one per column, and 3 more; vectors have a byte for each element, and "end.b" has no state. */
static size_t state_bytes(void *user, const char *name, int64_t rows, int64_t columns)
{
    CHECK(user == x && rows > 0 && columns > 0);
    return !strcmp(name, "end.b") ? 0
           : rows > 1             ? (size_t)(rows * columns + columns + 3)
                                  : (size_t)columns;
}

enum { LARGE = 50000 };
static char arena_memory[65536],
    *arena; /* the executor's, of arena_bytes, if updates have a workspace */
static size_t arena_bytes, workspace_end, large;

/* Two floats for each element of a matrix and 5 bytes, and `large` bytes more for "mid.w". */
static size_t workspace_bytes(void *user, const char *name, int64_t rows, int64_t columns)
{
    CHECK(user == x && name && rows > 0 && columns > 0);
    return rows > 1 ? (size_t)(rows * columns) * 8 + 5 + (strcmp(name, "mid.w") ? 0 : large) : 0;
}

/* Fills the workspace of an update, which lies in the arena, and copies the gradient to its end. Returns the copy. */
static const float *copied_gradient(const gckpt_update *u, float *workspace)
{
    const size_t n = workspace_bytes(x, u->name, u->rows, u->columns),
                 elements = (size_t)u->elements;
    const size_t end = (size_t)((char *)workspace + n - arena);
    CHECK(n > 0 && (char *)workspace >= arena && end <= arena_bytes &&
          (uintptr_t)workspace % 64 == 0);
    workspace_end = end > workspace_end ? end : workspace_end;
    memset(workspace, 0xff, n);
    return (const float *)memcpy(workspace + n / 4 - elements, u->gradient,
                                 elements * sizeof(float));
}

/* Momentum in eighths of the learning rate, a signed byte. It also depends on the update's number and on its row, which
 * a matrix alone has. */
static void update(void *user, const gckpt_update *u)
{
    signed char *m = (signed char *)u->state[0];
    const int64_t n = u->rows * u->columns;
    CHECK(user == x && u->elements == n && u->first == 0 && u->call != NULL);
    const float *gradient =
        u->call->workspace ? copied_gradient(u, (float *)u->call->workspace) : u->gradient;
    CHECK((u->rows > 1) == (strchr(u->name, 'w') != NULL) &&
          (m == NULL) == !strcmp(u->name, "end.b"));
    for (int64_t i = 0; i < n; i++) {
        const float g = gradient[i] * u->clip_scale;
        const int step = g > 0.25f ? 8 : g > 0 ? 1 : g < -0.25f ? -8 : -1, old = m ? m[i] : 0;
        const int new_m =
            (old * 3 + step * 4) / 4 + (int)(u->step % 2 + (uint64_t)(i / u->columns) % 2);
        u->values[i] -= u->options->lr * u->lr_scale * (float)new_m / 8;
        if (m)
            m[i] = (signed char)new_m;
    }
    if (m &&
        u->rows >
            1) /* the bytes after the elements: how often each column was updated; the last step */
        for (int64_t i = n; i < n + u->columns + 3; i++)
            m[i] = (signed char)(i < n + u->columns ? m[i] + 1 : (int)u->step);
}

typedef struct {
    gckpt_mode mode;
    int64_t rows; /* of the graph */
    int threads, least, in_backward, clips, streams, scratch;
} how;

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_plan *p;
    gckpt_exec *e;
    gckpt_feed feeds[2];
} training;

static gckpt_tensor *dense(gckpt_tensor *h, const char *name, int64_t in, int64_t out)
{
    const gckpt_init init = { 0.5f, 0, 0 }, zero = { 0, 0, 0 };
    char weight[16], bias[16];
    snprintf(weight, sizeof weight, "%s.w", name), snprintf(bias, sizeof bias, "%s.b", name);
    gckpt_tensor *w = gckpt_param(gckpt_graph_of(h), weight, gckpt_shape2(in, out), init);
    return gckpt_linear(h, w, gckpt_param(gckpt_graph_of(h), bias, gckpt_shape1(out), zero));
}

static training begin(gckpt_store *s, const how *h, const gckpt_plan_desc *request, int trains)
{
    training t = { .s = s, .g = gckpt_graph_new(s, NULL) };
    gckpt_tensor *in = gckpt_input(t.g, "x", GCKPT_F32, gckpt_shape2(h->rows, IN));
    gckpt_tensor *want = gckpt_input(t.g, "y", GCKPT_F32, gckpt_shape2(h->rows, OUT));
    gckpt_tensor *out = dense(
        gckpt_gelu(dense(gckpt_tanh(dense(in, "one", IN, MID)), "mid", MID, MID)), "end", MID, OUT);
    gckpt_term term = { gckpt_mean_squared_error(out, want, NULL), 1, 0 };
    gckpt_plan_desc d = *request;
    gckpt_exec_desc exec = { .custom_optimiser = update, .user = x };
    d.workspace_bytes = h->scratch ? workspace_bytes : NULL;
    d.mode = h->least ? GCKPT_OPTIMAL : h->mode;
    d.batch = h->rows < ROWS ? ROWS : 0;
    d.threads = h->threads;
    d.update_in_backward = h->in_backward;
    d.budget = (size_t)h->least;
    t.p = gckpt_plan_new(t.g, &term, 1, &d);
    if (h->least && t.p == NULL) {
        d.budget = util_least_budget(t.g);
        t.p = gckpt_plan_new(t.g, &term, 1, &d);
    }
    CHECK_MSG(t.p != NULL, "%s", gckpt_error_text(t.g));
    if (h->scratch && trains) {
        arena = arena_memory + 64 - (uintptr_t)arena_memory % 64;
        arena_bytes = gckpt_plan_describe(t.p).arena;
        CHECK(arena_bytes + 64 <= sizeof arena_memory);
        exec.arena = arena, exec.arena_size = arena_bytes;
    }
    t.e = trains ? gckpt_exec_new(t.p, s, &exec) : NULL;
    CHECK_MSG(!trains || t.e != NULL, "%s", gckpt_error_text(s));
    t.feeds[0].input = gckpt_id(in), t.feeds[1].input = gckpt_id(want);
    return t;
}

static void end(training *t)
{
    gckpt_exec_free(t->e);
    gckpt_plan_free(t->p);
    gckpt_graph_free(t->g);
}

static void steps(training *t, const how *h, int from, int to)
{
    gckpt_hyper hyper = gckpt_hyper_lr(0.125f);
    hyper.clip = h->clips ? 0.5f : 0;
    for (int k = from; k < to; k++) {
        t->feeds[0].data = x[k], t->feeds[1].data = y[k];
        if (!h->streams) {
            CHECK_MSG(gckpt_step(t->e, t->feeds, 2, ROWS, &hyper, NULL) == GCKPT_OK, "%s",
                      gckpt_error_text(t->e));
            continue;
        }
        CHECK(gckpt_step_begin(t->e, &hyper) == GCKPT_OK);
        for (int64_t row = 0; row < ROWS; row += 4) {
            t->feeds[0].data = x[k] + row * IN, t->feeds[1].data = y[k] + row * OUT;
            CHECK(gckpt_step_add(t->e, t->feeds, 2, 4) == GCKPT_OK);
        }
        CHECK(gckpt_step_end(t->e, NULL) == GCKPT_OK);
    }
}

static const gckpt_plan_desc sized = { .optimiser = GCKPT_CUSTOM_OPTIMISER,
                                       .state_bytes = state_bytes,
                                       .user = x };
static const size_t planned =
    IN * MID + MID + 3 + MID + MID * MID + MID + 3 + MID + MID * OUT + OUT + 3;

/* Returns the file of a store after all steps; with a cut, it is saved and loaded into a new store after `cut` steps. */
static file trained(const how *h, int cut)
{
    gckpt_store *s = gckpt_store_new(NULL);
    training t = begin(s, h, &sized, 1);
    file f = { 0 };
    steps(&t, h, 0, cut);
    CHECK_MSG(gckpt_plan_kind_bytes(t.p, GCKPT_BYTES_STATE) == planned, "%zu",
              gckpt_plan_kind_bytes(t.p, GCKPT_BYTES_STATE));
    CHECK(gckpt_store_bytes(s) == gckpt_plan_kind_bytes(t.p, GCKPT_BYTES_PARAMETERS) + planned);
    if (cut > 0) {
        CHECK(gckpt_store_write(s, file_write, &f, NULL) == GCKPT_OK);
        end(&t);
        gckpt_store_free(s);
        s = gckpt_store_new(NULL);
        CHECK_MSG(gckpt_store_read(s, file_read, &f, f.size, NULL) == GCKPT_OK, "%s",
                  gckpt_error_text(s));
        t = begin(s, h, &sized, 1); /* state that was loaded is not counted twice */
        CHECK(gckpt_plan_kind_bytes(t.p, GCKPT_BYTES_STATE) == planned);
        f.size = f.at = 0;
    }
    steps(&t, h, cut, STEPS);
    CHECK(gckpt_store_write(s, file_write, &f, NULL) == GCKPT_OK);
    end(&t);
    gckpt_store_free(s);
    return f;
}

static int same(const file *a, const file *b)
{
    return a->size == b->size && !memcmp(a->bytes, b->bytes, a->size);
}

static void test_bits(void)
{
    static const how all[] = {
        { GCKPT_STORE_ALL, ROWS, 1, 0, 0, 0, 0, 0 }, { GCKPT_MEMORY_POOR, ROWS, 2, 0, 0, 0, 0, 0 },
        { GCKPT_OPTIMAL, ROWS, 1, 1, 0, 0, 0, 0 },   { GCKPT_STORE_ALL, ROWS, 1, 0, 1, 0, 0, 0 },
        { GCKPT_STORE_ALL, 4, 3, 0, 0, 0, 0, 0 },    { GCKPT_OPTIMAL, 1, 1, 1, 0, 0, 0, 0 },
        { GCKPT_STORE_ALL, 4, 1, 0, 0, 0, 1, 0 },
    };
    for (int way = 0; way < 4; way++) {
        const int clips = way % 2;
        how h = all[0];
        h.clips = clips;
        file want = trained(&h, 0);
        CHECK(strstr((const char *)want.bytes + 8,
                     "\"one.w#state0\":{\"dtype\":\"U8\",\"shape\":[73]") != NULL);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            for (int cut = i == 0; cut < STEPS; cut += 2) {
                h = all[i];
                h.clips = clips, h.scratch = way / 2;
                if (h.in_backward && clips)
                    continue;
                file got = trained(&h, cut);
                CHECK_MSG(same(&want, &got),
                          "plan %d, clipping %d, workspace %d: resumed after step %d", (int)i,
                          clips, way / 2, cut);
                free(got.bytes);
            }
        free(want.bytes);
    }
}

/* The arena has the workspace where it has room, next to all gradients; a large one makes it larger by just these
 * bytes, which updates touch; and a budget counts it. */
static void test_workspace(void)
{
    static const int64_t elements = IN * MID + MID + MID * MID + MID + MID * OUT + OUT;
    for (int rows = ROWS; rows > 0; rows -= ROWS - 3)
        for (int early = 0; early <= (rows == ROWS); early++) {
            how h = { GCKPT_STORE_ALL, rows, 1, 0, early, 0, 0, 0 };
            gckpt_store *s = gckpt_store_new(NULL);
            training t = begin(s, &h, &sized, 0);
            const size_t least = gckpt_plan_describe(t.p).arena;
            end(&t);
            h.scratch = 1, large = 0;
            t = begin(s, &h, &sized, 0);
            CHECK_MSG(gckpt_plan_describe(t.p).arena == least || rows < ROWS || early,
                      "%zu for %zu", gckpt_plan_describe(t.p).arena, least);
            end(&t);
            large = LARGE, workspace_end = 0;
            t = begin(s, &h, &sized, 1);
            const size_t room = (size_t)(arena_bytes - LARGE - 8 * MID * MID - 5);
            CHECK_MSG(room < (size_t)elements * 4 + 64 * 8 + (size_t)(rows * MID * 4), "%zu", room);
            steps(&t, &h, 0, 1);
            CHECK(workspace_end > LARGE);
            end(&t);
            h.mode = GCKPT_OPTIMAL, h.least = 1;
            t = begin(s, &h, &sized, 0); /* the least budget */
            CHECK(gckpt_plan_describe(t.p).arena > LARGE &&
                  gckpt_plan_describe(t.p).arena <= arena_bytes);
            CHECK_MSG(gckpt_plan_describe(t.p).proven_bytes + 64 > gckpt_plan_bytes(t.p),
                      "%zu of %zu", gckpt_plan_describe(t.p).proven_bytes, gckpt_plan_bytes(t.p));
            end(&t);
            gckpt_store_free(s);
        }
    large = 0;
}

/* A workspace that no machine has is refused. */
static size_t endless(void *user, const char *name, int64_t rows, int64_t columns)
{
    (void)user, (void)name, (void)rows, (void)columns;
    return SIZE_MAX;
}

static void test_too_large(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_init init = { 0.5f, 0, 0 };
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(3, 2), init);
    const gckpt_term term = { gckpt_sum_loss(gckpt_linear(
                                  gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 3)), w, NULL)),
                              1, 0 };
    static const gckpt_mode modes[] = { GCKPT_AUTO, GCKPT_STORE_ALL, GCKPT_MEMORY_POOR,
                                        GCKPT_OPTIMAL };
    for (size_t i = 0; i < 4; i++) {
        const gckpt_plan_desc d = { .mode = modes[i],
                                    .optimiser = GCKPT_CUSTOM_OPTIMISER,
                                    .workspace_bytes = endless };
        CHECK(gckpt_plan_new(g, &term, 1, &d) == NULL && gckpt_error(g) == GCKPT_E_MEMORY);
        CHECK_MSG(strstr(gckpt_error_text(g), "more than this machine can address") != NULL, "%s",
                  gckpt_error_text(g));
    }
    util_free(NULL, NULL, g, s);
}

static int refuses(gckpt_store *s, const gckpt_plan *p, const char *text)
{
    const gckpt_exec_desc exec = { .custom_optimiser = update, .user = x };
    gckpt_exec *e = gckpt_exec_new(p, s, &exec);
    const int right =
        e == NULL && gckpt_error(s) == GCKPT_E_ARG && strstr(gckpt_error_text(s), text) != NULL;
    gckpt_exec_free(e);
    return CHECK_MSG(right, "%s", gckpt_error_text(s));
}

/* A store has one state of a parameter. Another plan must not use it; loading a file that has another one must leave the
 * store as it is; a reset makes place for another one if no executor uses the store. */
static void test_refusals(void)
{
    static const how h = { GCKPT_STORE_ALL, ROWS, 1, 0, 0, 0, 0, 0 };
    static const gckpt_plan_desc adam,
        floats = { .optimiser = GCKPT_CUSTOM_OPTIMISER, .custom_state = 2 };
    gckpt_store *s = gckpt_store_new(NULL);
    training t = begin(s, &h, &sized, 1), other = begin(s, &h, &adam, 0),
             own = begin(s, &h, &floats, 0);
    file mine = { 0 }, theirs = { 0 }, after = { 0 };
    refuses(s, other.p, "\"one.w\" holds state of another size");
    steps(&t, &h, 0, 1);
    refuses(s, own.p, "gckpt_store_reset frees it");
    CHECK(gckpt_store_write(s, file_write, &mine, NULL) == GCKPT_OK);
    CHECK(gckpt_store_reset(s, "*") == GCKPT_OK);
    gckpt_parameter q;
    CHECK(gckpt_store_peek(s, 0, &q) == GCKPT_OK && ((const char *)q.state[0])[IN * MID] == 0);
    refuses(s, own.p, "holds state of another size"); /* an executor uses it */
    end(&t);
    CHECK(gckpt_store_reset(s, "*") == GCKPT_OK);
    CHECK(gckpt_store_peek(s, 0, &q) == GCKPT_OK && q.state[0] == NULL);
    end(&other), end(&own);
    other = begin(s, &h, &adam, 1);
    CHECK(gckpt_plan_kind_bytes(other.p, GCKPT_BYTES_STATE) ==
          2 * gckpt_plan_kind_bytes(other.p, GCKPT_BYTES_PARAMETERS));
    steps(&other, &h, 1, 2);
    CHECK(gckpt_store_write(s, file_write, &theirs, NULL) == GCKPT_OK);
    CHECK(gckpt_store_read(s, file_read, &mine, mine.size, NULL) == GCKPT_E_DATA &&
          strstr(gckpt_error_text(s), "its state has another size in the store") != NULL);
    CHECK(gckpt_store_write(s, file_write, &after, NULL) == GCKPT_OK && same(&theirs, &after));
    end(&other);
    gckpt_store_free(s);
    s = gckpt_store_new(NULL); /* and the other way */
    t = begin(s, &h, &sized, 1);
    CHECK(gckpt_store_read(s, file_read, &theirs, theirs.size, NULL) == GCKPT_E_DATA &&
          strstr(gckpt_error_text(s), "its state has another size in the store") != NULL);
    mine.at = 0;
    CHECK(gckpt_store_read(s, file_read, &mine, mine.size, NULL) == GCKPT_OK &&
          gckpt_store_step(s) == 1);
    end(&t);
    gckpt_store_free(s);
    free(mine.bytes), free(theirs.bytes), free(after.bytes);
}

#ifndef GCKPT_NO_RANKS
/* A file with such a state of a parameter that a store would shard is refused. */
static void test_shards(void)
{
    const gckpt_init init = { 0.5f, 0, 0 };
    const gckpt_plan_desc d = { .optimiser = GCKPT_CUSTOM_OPTIMISER,
                                .state_bytes = state_bytes,
                                .user = x };
    const gckpt_exec_desc exec = { .custom_optimiser = update, .user = x };
    file f = { 0 };
    for (int shards = 0; shards < 2; shards++) {
        gckpt_store *s = gckpt_store_new(NULL);
        if (shards)
            CHECK(gckpt_store_ranks(s, 0, 2, GCKPT_SHARD_STATE) == GCKPT_OK);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(1, 100));
        gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(100, 100), init);
        const gckpt_term term = { gckpt_sum_loss(gckpt_linear(in, w, NULL)), 1, 0 };
        gckpt_plan *p = shards ? NULL : gckpt_plan_new(g, &term, 1, &d);
        gckpt_exec *e = shards ? NULL : gckpt_exec_new(p, s, &exec);
        CHECK_MSG(shards || e != NULL, "%s; %s", gckpt_error_text(g), gckpt_error_text(s));
        if (shards)
            CHECK_MSG(gckpt_store_read(s, file_read, &f, f.size, NULL) == GCKPT_E_DATA &&
                          strstr(gckpt_error_text(s), "U8 cannot be sharded"),
                      "%s", gckpt_error_text(s));
        else
            CHECK(gckpt_store_write(s, file_write, &f, NULL) == GCKPT_OK);
        util_free(e, p, g, s);
    }
    free(f.bytes);
}
#endif

/* A block of the promised bytes suffices; after a failed allocation, the store has the bytes that it had before. */
static void test_memory(void)
{
    static const how h = { GCKPT_STORE_ALL, ROWS, 1, 0, 0, 0, 0, 0 };
    static const gckpt_exec_desc exec = { .custom_optimiser = update, .user = x };
    gckpt_store *s = gckpt_store_new(NULL);
    training t = begin(s, &h, &sized, 0);
    const size_t need = gckpt_store_need(t.p);
    char *block = (char *)malloc(need + 32), *odd = block + (17 - (uintptr_t)block % 16) % 16;
    gckpt_exec *e;
    for (size_t less = 0; less < 2; less++) {
        const gckpt_store_desc in_block = { .memory = { .memory = odd, .size = need - less } };
        gckpt_store *small = gckpt_store_new(&in_block);
        CHECK(gckpt_plan_params(t.p, small) == GCKPT_OK);
        e = gckpt_exec_new(t.p, small, &exec);
        CHECK_MSG((e == NULL) == (less > 0), "%s", gckpt_error_text(small));
        const char *hint = less ? strstr(gckpt_error_text(small), " bytes, ")
                                : NULL; /* it counts 16 for alignment */
        const size_t bytes = hint ? (size_t)strtoull(hint + 8, NULL, 10) : need;
        CHECK_MSG(bytes >= need && bytes <= need + 16 && (!less || hint), "%zu: %s", need,
                  gckpt_error_text(small));
        gckpt_exec_free(e);
        gckpt_store_free(small);
    }
    free(block);
    for (long fail = 1, done = 0; !done; fail++) {
        heap memory = { 0 };
        const gckpt_store_desc d = { .memory = heap_memory(&memory) };
        gckpt_store *bad = gckpt_store_new(&d);
        CHECK(gckpt_plan_params(t.p, bad) == GCKPT_OK);
        memory.fail_at = memory.calls + fail;
        const size_t before = gckpt_store_bytes(bad);
        e = gckpt_exec_new(t.p, bad, &exec);
        done = e != NULL;
        CHECK(done || (gckpt_error(bad) == GCKPT_E_MEMORY && gckpt_store_bytes(bad) == before));
        gckpt_exec_free(e);
        gckpt_store_free(bad);
        CHECK(memory.blocks == 0 && memory.wrong_sizes == 0);
    }
    end(&t);
    gckpt_store_free(s);
}

#if !defined(GCKPT_NO_SCHEDULES) && !defined(GCKPT_NO_FETCH)
/* An update that waits for a forward after the last backward, which reads the parameter for a fetch, has its workspace. */
static void test_late_reader(void)
{
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    const gckpt_init init = { 0.5f, 0, 0 };
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, IN));
    gckpt_tensor *w = gckpt_param(g, "one.w", gckpt_shape2(IN, MID), init);
    gckpt_tensor *v = gckpt_param(g, "mid.w", gckpt_shape2(MID, OUT), init);
    gckpt_tensor *h = gckpt_linear(in, w, NULL), *out = gckpt_linear(h, v, NULL),
                 *loss = gckpt_sum_loss(out);
    gckpt_tensor *late = gckpt_linear(h, v, NULL);
    const gckpt_term term = { loss, 1, 0 };
    const gckpt_fetch_spec fetch = { late, 0 };
    const struct {
        gckpt_kind kind;
        const gckpt_tensor *of;
    } order[] = { { GCKPT_FORWARD, h },     { GCKPT_FORWARD, out },  { GCKPT_FORWARD, loss },
                  { GCKPT_BACKWARD, loss }, { GCKPT_BACKWARD, out }, { GCKPT_BACKWARD, h },
                  { GCKPT_FORWARD, late } };
    gckpt_instruction list[7];
    memset(list, 0, sizeof list);
    for (int i = 0; i < 7; i++)
        list[i].kind = order[i].kind, list[i].id = gckpt_id(order[i].of);
    gckpt_plan_desc d = { .mode = GCKPT_SCHEDULE,
                          .optimiser = GCKPT_CUSTOM_OPTIMISER,
                          .state_bytes = state_bytes,
                          .workspace_bytes = workspace_bytes,
                          .user = x,
                          .update_in_backward = 1 };
    d.schedule.instructions = list, d.schedule.count = 7;
    d.fetch.specs = &fetch, d.fetch.count = 1;
    large = 1000;
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    arena = arena_memory + 64 - (uintptr_t)arena_memory % 64;
    arena_bytes = gckpt_plan_describe(p).arena;
    const gckpt_exec_desc exec = {
        .custom_optimiser = update, .user = x, .arena = arena, .arena_size = arena_bytes
    };
    gckpt_exec *e = gckpt_exec_new(p, s, &exec);
    const gckpt_feed feed = { gckpt_id(in), x[0] };
    const gckpt_hyper hyper = gckpt_hyper_lr(0.125f);
    CHECK_MSG(gckpt_step(e, &feed, 1, 4, &hyper, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
    int waits = 0, update_at = 0;
    const gckpt_plan_info info = gckpt_plan_describe(p);
    gckpt_instruction last = { GCKPT_UPDATE, 0 };
    for (int i = 0; i < info.instructions; i++) {
        gckpt_instruction now;
        CHECK(gckpt_plan_get(p, i, &now) == GCKPT_OK);
        waits += last.kind == GCKPT_FORWARD && now.kind == GCKPT_UPDATE;
        update_at = now.kind == GCKPT_UPDATE ? i : update_at;
        last = now;
    }
    CHECK_MSG(waits == 1, "%d updates follow a forward", waits);
    size_t most = 0; /* bytes of the workspace of the last update */
    for (int i = 0; i < info.buffers; i++) {
        gckpt_buffer b;
        CHECK(gckpt_plan_buffer(p, i, &b) == GCKPT_OK);
        if (b.kind == GCKPT_BUFFER_WORKSPACE && b.end == update_at)
            most = b.size > most ? b.size : most;
    }
    CHECK_MSG(most == workspace_bytes(x, "mid.w", MID, OUT), "%zu bytes of workspace", most);
    large = 0;
    util_free(e, p, g, s);
}
#endif

int main(void)
{
    for (int k = 0; k < STEPS; k++) {
        for (int i = 0; i < ROWS * IN; i++)
            x[k][i] = (float)between(-100, 100) / 64;
        for (int i = 0; i < ROWS * OUT; i++)
            y[k][i] = (float)between(-100, 100) / 64;
    }
    test_bits();
    test_workspace();
    test_too_large();
#if !defined(GCKPT_NO_SCHEDULES) && !defined(GCKPT_NO_FETCH)
    test_late_reader();
#endif
    test_refusals();
    test_memory();
#ifndef GCKPT_NO_RANKS
    test_shards();
#endif
    return check_report("test_state_bytes");
}

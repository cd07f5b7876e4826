/* test_alloc.c - a complete use of the library (store, graph, plans, step, gradients, save and load), once for
 * every n, while allocation number n fails. Each time the call must return an error, nothing may leak and the weights
 * must be unchanged. The same use then runs without any heap, with all objects in blocks of memory that are a little
 * too small, and in blocks that suffice. */
#include "gradckpt.h"

#include "util.h"

static gckpt_tensor *block(gckpt_tensor *x, void *user)
{
    gckpt_init init = { 0.3f, 0, 0 };
    gckpt_tensor *w = gckpt_param(gckpt_graph_of(x), (const char *)user, gckpt_shape2(6, 6), init);
    return gckpt_add(x, gckpt_gelu(gckpt_linear(x, w, NULL)));
}

/* Uses the library from the first call to the last with the given memory. Returns 1 if every call succeeded, 0 if one
 * returned an error. */
static int lifecycle(const gckpt_memory *memory, gckpt_mode mode)
{
    static float x[4 * 6], y[4 * 6];
    static char names[3][4] = { "w0", "w1", "w0" };     /* the third layer shares the weight of the first */
    static file saved;
    int worked = 0;
    gckpt_store_desc sd = { 0 };
    gckpt_plan_desc pd = { 0 };
    gckpt_exec_desc ed = { 0 };
    sd.memory = ed.memory = pd.memory = memory[0];
    if (memory->memory) {                               /* without a heap, each object has a separate block */
        pd.memory = memory[1];
        ed.memory = memory[2];
    }
    for (int i = 0; i < 24; i++) {
        x[i] = (float)(i % 5) - 2;
        y[i] = (float)(i % 3) - 1;
    }
    gckpt_store *s = gckpt_store_new(&sd);
    gckpt_graph *g = gckpt_graph_new(s, memory->memory ? &memory[3] : memory);
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 6));
    gckpt_tensor *target = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(2, 6)), *h = in;
    for (int i = 0; i < 3; i++)
        h = gckpt_checkpoint(block, h, names[i]);
    gckpt_fetch_spec fetches[2] = { { gckpt_name(h, "top"), 1 }, { in, 1 } };
    float dx[4 * 6];
    gckpt_term term = { gckpt_mean_squared_error(h, target, NULL), 1, 0 };
    pd.mode = mode;
    pd.batch = 4;
    pd.fetch.specs = fetches;
    pd.fetch.count = h != NULL ? 2 : 0;
    ed.debug = GCKPT_DEBUG_RECOMPUTE;
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &pd);
    CHECK(p || !g || gckpt_error(g) != GCKPT_OK);
    size_t bytes = gckpt_store_bytes(s);
    gckpt_exec *e = p ? gckpt_exec_new(p, s, &ed) : NULL;
    CHECK(e || gckpt_store_bytes(s) == bytes);          /* a failed call must leave no optimiser state in the store */
    CHECK(e || !p || gckpt_error(s) != GCKPT_OK);
    gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(target), y } };
    gckpt_hyper hyper = { .lr = 0.01f };
    if (e) {
        CHECK(gckpt_step(e, feeds, 2, 4, &hyper, NULL) == GCKPT_OK);    /* a step allocates nothing       */
        uint64_t hash = gckpt_store_hash(s);
        CHECK(gckpt_collect(e, gckpt_id(in), 1, dx, 4 * 6) == GCKPT_OK);
        CHECK(gckpt_gradients(e, feeds, 2, 4, NULL) == GCKPT_OK && gckpt_store_hash(s) == hash);
        saved.size = saved.at = 0;
        worked = gckpt_store_write(s, file_write, &saved, NULL) == GCKPT_OK;
        worked = worked && gckpt_store_read(s, file_read, &saved, saved.size, NULL) == GCKPT_OK;
        CHECK(worked || gckpt_error(s) == GCKPT_E_MEMORY || gckpt_error(e) == GCKPT_E_MEMORY);
        CHECK(gckpt_store_hash(s) == hash && gckpt_store_step(s) == 1);
    }
    util_free(e, p, g, s);
    return worked;
}

static void every_allocation(gckpt_mode mode)
{
    heap h;
    int worked = 0;
    gckpt_memory memory = heap_memory(&h);
    for (long n = 1; !worked && n < 2000; n++) {
        h = (heap){ .fail_at = n };
        worked = lifecycle(&memory, mode);
        CHECK_MSG(h.live == 0 && h.blocks == 0, "mode %d, allocation %ld failing: %lu bytes leaked", (int)mode, n,
                  (unsigned long)h.live);
        CHECK(h.wrong_sizes == 0);
        CHECK(worked || h.calls >= n);
        worked = worked && h.calls < n;
    }
    CHECK(worked);
}

/* Runs lifecycle() without a heap: each object is in a separate block of memory, one of which shrinks until a call
 * fails. */
static void blocks(void)
{
    static union { double align; unsigned char bytes[4][1 << 17]; } room;
    for (int small = 0; small < 4; small++) {
        int worked = 0, refused = 0;
        for (size_t size = 0; size <= sizeof room.bytes[0]; size += size < 4096 ? 64 : 4096) {
            gckpt_memory memory[4];
            memset(memory, 0, sizeof memory);
            for (int i = 0; i < 4; i++) {
                memory[i].memory = room.bytes[i];
                memory[i].size = i == small ? size : sizeof room.bytes[i];
            }
            memset(room.bytes[small], 0x77, sizeof room.bytes[small]);
            int good = lifecycle(memory, GCKPT_SEGMENTS);
            CHECK(!worked || good);
            worked = good;
            refused += !good;
            int behind = 1;
            for (size_t i = size; i < sizeof room.bytes[small]; i++)
                behind = behind && room.bytes[small][i] == 0x77;
            CHECK(behind);
        }
        CHECK(worked && refused);
    }
}

/* Makes a plan under a budget, a frontier, and a plan of the frontier, each while its allocation number n fails (for
 * every n up to 16, then at distances of 1 + n / 16). Checks that the error is GCKPT_E_MEMORY, that nothing
 * leaks, and that the same call succeeds without the failure. */
static void planning(const gckpt_memory *memory, heap *h, gckpt_graph *g, const gckpt_term *term, int what,
                     size_t budget, const gckpt_frontier *front)
{
    gckpt_plan *p = NULL;
    gckpt_frontier *f = NULL;
    gckpt_plan_desc d = { .memory = *memory, .budget = budget };
    for (long n = 1; !p && !f && n < 100000; n += 1 + n / 16) {
        size_t live = h->live;
        h->fail_at = h->calls + n;
        if (what == 0)
            p = gckpt_plan_new(g, term, 1, &d);
        else if (what == 1)
            f = gckpt_frontier_new(g, term, 1, &d);
        else
            p = gckpt_frontier_plan(front, budget);
        int failed = h->calls >= h->fail_at;
        h->fail_at = 0;
        CHECK_MSG((p || f) == !failed && gckpt_error(g) == (failed ? GCKPT_E_MEMORY : GCKPT_OK),
                  "planning %d, allocation %ld failing: %s", what, n, gckpt_error_text(g));
        CHECK_MSG(p || f || h->live == live, "planning %d, allocation %ld failing: %lu bytes leaked", what, n,
                  (unsigned long)(h->live - live));
    }
    CHECK(p || f);
    CHECK(!p || gckpt_plan_bytes(p) <= budget);
    if (f && what == 1)
        planning(memory, h, g, term, 2, budget, f);
    gckpt_plan_free(p);
    gckpt_frontier_free(f);
}

/* Tests plans of a chain of layers. With few layers the search tries every single move; with more layers it perturbs
 * schedules; with many layers it does neither. */
static void every_planning(int layers)
{
    gckpt_init init = { 0.3f, 0, 0 };
    heap h = { 0 };
    gckpt_plan_desc d = { 0 };
    gckpt_memory memory = heap_memory(&h);
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(2, 64));
    gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(2, 64)), *first = NULL;
    gckpt_tensor *w = gckpt_param(g, "w", gckpt_shape2(64, 64), init);
    for (int i = 0; i < layers; i++) {
        gckpt_segment_begin(g);
        x = gckpt_tanh(gckpt_linear(x, w, NULL));
        first = first ? first : x;
        gckpt_segment_end(g);
    }
    gckpt_term term = { gckpt_mean_squared_error(gckpt_add(x, first), y, NULL), 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
    gckpt_frontier *f = gckpt_frontier_new(g, &term, 1, &d);
    gckpt_point least = { 0, 0, 0, 0, 0 };
    CHECK(gckpt_frontier_get(f, 0, &least) == GCKPT_OK && least.bytes < gckpt_plan_bytes(p));
    for (int what = 0; what < 2; what++)
        planning(&memory, &h, g, &term, what, (least.bytes + gckpt_plan_bytes(p)) / 2, NULL);
    CHECK(h.live == 0 && h.blocks == 0 && h.wrong_sizes == 0);
    gckpt_frontier_free(f);
    util_free(NULL, p, g, s);
}

int main(void)
{
    every_planning(4);
    every_planning(24);
    every_planning(60);
    every_allocation(GCKPT_STORE_ALL);
    every_allocation(GCKPT_MEMORY_POOR);
    every_allocation(GCKPT_SEGMENTS);
    every_allocation(GCKPT_SQRT);
    every_allocation(GCKPT_AUTO);
    blocks();
    return check_report("test_alloc");
}

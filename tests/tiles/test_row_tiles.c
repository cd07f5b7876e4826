/* test_row_tiles.c - fused groups, which run in row tiles: they give the bits of the graph as built in every plan,
 * and take exactly the planned bytes. Also tests which ops may be in a fused group, and which may not. */
#include "base/base.h"
#include "graph/graph.h"
#include "ops/ops.h"
#include "plan/internal.h"
#include "planner/internal.h"

#include "examples/print.h"
#include "util.h"

GCKPTI_FN uint64_t gckpti_mul_div(uint64_t x, uint64_t a, uint64_t b); /* plan/tensors.c */

enum { BATCH = 4, FLOATS = BATCH * 24 * 8 * 8 };
static float images[FLOATS];
static int32_t labels[BATCH];

typedef struct {
    gckpt_store *s;
    gckpt_graph *g;
    gckpt_tensor *x, *y, *top;
    gckpt_term term;
    int params;
} net;

static gckpt_tensor *weight(net *n, gckpt_shape shape, int frozen)
{
    char name[16];
    const gckpt_init init = { 0.4f, 0, shape.n == 1 ? 0.1f : 0 };
    snprintf(name, sizeof name, "%s%d", frozen ? "w" : "t", n->params++);
    gckpt_tensor *t = gckpt_param(n->g, name, shape, init);
    if (frozen)
        gckpt_store_freeze(n->s, name, 1);
    return t;
}

static int side(const gckpt_tensor *x, int axis) { return (int)gckpt_shape_of(x).d[axis]; }

/* Applies a random op of a frozen trunk to x; the op is one that accepts the shape of x. */
static gckpt_tensor *random_op(net *n, gckpt_tensor *x, gckpt_tensor *other)
{
    const int h = side(x, 1), w = side(x, 2), c = side(x, 3), kind = (int)below(15);
    gckpt_window o = { .stride = { between(1, 2), between(1, 2) }, .padding = { between(0, 2), between(0, 2) } };
    gckpt_tensor *in[2] = { x, other };
    if (kind < 4) {
        const int kh = between(1, 3), kw = between(1, 3), groups = chance(40) ? c : 1, out = groups * between(1, 3);
        o.dilation[0] = between(1, 2), o.dilation[1] = 1;
        o.groups = groups;
        if (h + 2 * o.padding[0] < (kh - 1) * o.dilation[0] + 1 || w + 2 * o.padding[1] < kw || out > 8)
            return x;
        return gckpt_conv2d(x, weight(n, gckpt_shape4(kh, kw, c / groups, out), 1),
                            chance(50) ? weight(n, gckpt_shape1(out), 1) : NULL, &o);
    }
    if (kind < 6) {
        o.size[0] = between(1, 3), o.size[1] = between(1, 3);
        for (int i = 0; i < 2; i++)
            o.padding[i] = o.padding[i] < o.size[i] ? o.padding[i] : o.size[i] - 1;
        if (h + 2 * o.padding[0] < o.size[0] || w + 2 * o.padding[1] < o.size[1])
            return x;
        o.dilation[0] = h + 2 * o.padding[0] > 2 * (o.size[0] - 1) && h > 1 ? between(1, 2) : 1;
        o.ceil = chance(30), o.exclude_padding = kind == 5 && chance(20);
        return kind == 4 ? gckpt_max_pool(x, &o) : gckpt_average_pool(x, &o);
    }
    switch (kind) {
    case 6: return gckpt_relu(x);
    case 7: return gckpt_gelu(x);
    case 8:
        return gckpt_mul(x,
                         chance(50) ? weight(n, gckpt_shape1(c), 1) : gckpt_sigmoid(weight(n, gckpt_shape2(w, c), 1)));
    case 9: return gckpt_layernorm(x, weight(n, gckpt_shape1(c), 1), weight(n, gckpt_shape1(c), 1), 0);
    case 10: return gckpt_linear(x, weight(n, gckpt_shape2(c, 5), 1), weight(n, gckpt_shape1(5), 1));
    case 11: return c > 1 ? gckpt_slice(x, 3, chance(50), c) : gckpt_scale(x, 0.5f);
    case 12:
        if (side(other, 1) != h || side(other, 2) != w || c + side(other, 3) > 8)
            return x;
        return gckpt_concat(in, 2, 3);
    default:
        if (side(other, 1) == h && side(other, 2) == w && side(other, 3) == c)
            return gckpt_add(x, other);
        return kind == 13 ? gckpt_mul(x, gckpt_average_pool(x, &(gckpt_window){ .size = { h, w } })) : gckpt_add(x, x);
    }
}

/* Attributes of a user-defined op, each of whose rows is the sum of two consecutive rows of its input. The input gets
 * `above` rows of zeros before it and `under` rows after it, and must have at least `least` rows. */
typedef struct {
    int32_t above, under, least;
} pair;

static gckpt_result pairs_shape(gckpt_call *call)
{
    const pair *o = (const pair *)call->attributes;
    call->shape = call->in[0].shape;
    call->shape.d[1] += o->above + o->under - 1;
    return call->in[0].shape.d[1] < o->least ? gckpt_fail(call, GCKPT_E_SHAPE, "pairs: too few rows") : GCKPT_OK;
}

static void pairs_forward(const gckpt_call *call)
{
    const pair *o = (const pair *)call->attributes;
    const gckpt_shape *s = &call->in[0].shape;
    const int64_t width = s->d[2] * s->d[3], height = call->shape.d[1];
    for (int64_t i = 0; i < count_of(&call->shape); i++) {
        const int64_t row = i / width % height - o->above, image = i / width / height;
        const int64_t at = (image * s->d[1] + row) * width + i % width;
        float sum = 0;
        for (int64_t k = 0; k < 2; k++)
            if (row + k >= 0 && row + k < s->d[1])
                sum += call->in[0].bytes ? call->in[0].bytes[at + k * width] : call->in[0].data[at + k * width];
        call->out[i] = sum;
    }
}

static int pairs_rows(const gckpt_call *call, void *attributes, gckpt_receptive_field *rows)
{
    pair *o = (pair *)attributes;
    (void)call;
    *rows = (gckpt_receptive_field){ 1, 1, o->above, 2, 0 };
    o->above = o->under = 0;
    return 1;
}

static const gckpt_op pairs = {
    .name = "pairs", .shape = pairs_shape, .forward = pairs_forward, .receptive_field = pairs_rows
};
static const gckpt_op pairs_u8 = { .name = "pairs",
                                   .shape = pairs_shape,
                                   .forward = pairs_forward,
                                   .receptive_field = pairs_rows,
                                   .needs = { GCKPT_IS_U8 } };

static gckpt_tensor *pairs_of(const gckpt_op *op, gckpt_tensor *x, int above, int under, int least)
{
    const pair o = { above, under, least };
    return gckpt_apply(op, &x, 1, &o, sizeof o);
}

/* Appends two ops that form a fused group in any trunk, since the values between them are wide. */
static gckpt_tensor *widen(net *n, gckpt_tensor *x)
{
    x = gckpt_sigmoid(gckpt_linear(x, weight(n, gckpt_shape2(4, 32), 1), NULL));
    return gckpt_linear(x, weight(n, gckpt_shape2(32, 4), 1), NULL);
}

/* Hand-made cases, which random nets hardly ever contain. */
enum { TWO_COPIES, TWO_PADDINGS, NINE_INPUTS, BYTES_ABOVE, ROWS_UNDER, FEW_ROWS, TWO_BATCHES, CRAFTED };
enum { FIRST_CRAFTED = 1 << 20 };

static gckpt_tensor *craft(net *n, int what)
{
    const gckpt_window each = { .padding = { 1, 1 } };
    const gckpt_window pool = { .size = { 3, 3 }, .padding = { 1, 1 }, .stride = { 1, 1 } };
    const int axes[4] = { 0, 2, 1, 3 };
    gckpt_shape half = gckpt_shape_of(n->x);
    gckpt_tensor *x = n->x, *t[GCKPT_MAX_INPUTS], *h;
    half.d[0] *= 2, half.d[1] /= 2;
    switch (what) {
    case TWO_COPIES: /* two ops of the group read rows of the tensor x */
    case TWO_PADDINGS:
        h = gckpt_conv2d(x, weight(n, gckpt_shape4(3, 3, 4, 4), 1), NULL, &each);
        x = what == TWO_PADDINGS ? gckpt_max_pool(x, &pool)
                                 : gckpt_conv2d(x, weight(n, gckpt_shape4(3, 3, 4, 4), 1), NULL, &each);
        return gckpt_add(h, x);
    case NINE_INPUTS:
        for (int i = 0; i < GCKPT_MAX_INPUTS; i++)
            t[i] = gckpt_permute(x, axes, 4);
        x = gckpt_permute(x, axes, 4);
        h = gckpt_concat(t, GCKPT_MAX_INPUTS, 3);
        return gckpt_add(gckpt_linear(h, weight(n, gckpt_shape2(4 * GCKPT_MAX_INPUTS, 4), 1), NULL), x);
    case BYTES_ABOVE: return pairs_of(&pairs_u8, x, 1, 0, 0);
    case ROWS_UNDER: return gckpt_add(pairs_of(&pairs, x, 0, 1, 0), pairs_of(&pairs, x, 1, 0, 0));
    case FEW_ROWS: return pairs_of(&pairs, gckpt_relu(x), 1, 0, side(x, 1) - 2);
    default:
        h = gckpt_relu(gckpt_reshape(x, half));
        return gckpt_add(gckpt_scale(x, 0.5f), gckpt_reshape(h, gckpt_shape_of(x)));
    }
}

static net net_new(unsigned seed, int64_t rows)
{
    net n = { .s = gckpt_store_new(NULL) };
    random_state = seed * 977 + 5;
    n.g = gckpt_graph_new(n.s, NULL);
    const int what = seed < FIRST_CRAFTED ? -1 : (int)(seed - FIRST_CRAFTED) / 64;
    const int drawn_h = between(5, 24), drawn_w = between(1, 8), drawn_c = between(1, 8), ops = between(2, 14);
    const int h = what < 0 ? drawn_h : 24, w = what < 0 ? drawn_w : 6, c = what < 0 ? drawn_c : 4;
    const int bytes = what < 0 ? seed % 8 == 6 : what == BYTES_ABOVE;
    n.x = gckpt_input(n.g, "x", bytes ? GCKPT_U8 : GCKPT_F32, gckpt_shape4(rows, h, w, c));
    n.y = gckpt_input(n.g, "y", GCKPT_I32, gckpt_shape1(rows));
    gckpt_tensor *at[16] = { bytes && what < 0 ? gckpt_from_u8(n.x, 1 / 64.0f, -2) : n.x };
    for (int i = 0; i < ops && what < 0; i++)
        at[i + 1] = random_op(&n, at[i], at[below(i + 1)]);
    n.top = what < 0 ? at[ops] : widen(&n, craft(&n, what));
    if (chance(30))
        n.top = gckpt_conv2d(n.top, weight(&n, gckpt_shape4(1, 1, side(n.top, 3), 3), 0), NULL, NULL);
    gckpt_tensor *z = gckpt_global_average_pool(n.top);
    z = gckpt_linear(z, weight(&n, gckpt_shape2(side(n.top, 3), 3), 0), weight(&n, gckpt_shape1(3), 0));
    n.term.loss = gckpt_cross_entropy(z, n.y, NULL, 0);
    n.term.weight = 1;
#ifndef GCKPT_NO_QUANT
    for (int i = 0; i < n.params && seed % 5 == 4; i++) { /* quantised weights of linear layers are read in place */
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        if (gckpt_store_find(n.s, name) >= 0 && chance(50))
            gckpt_store_quantise(n.s, name, seed % 2 ? GCKPT_STORAGE_I8 : GCKPT_STORAGE_BF16);
    }
#endif
    return n;
}

static gckpt_plan *plan_of(net *n, const gckpt_plan_desc *d, int tiles)
{
    gckpti_planner p;
    gckpti_allocator memory = gckpti_allocator_of(NULL);
    const gckpt_plan_desc desc = pc_without_missing_parts(d);
    memset(&p, 0, sizeof p);
    p.variant.fused = tiles;
    const gckpt_result result = gckpti_planner_open(&p, &memory, n->g, &n->term, 1, &desc);
    CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(n->g));
    gckpt_plan *plan = NULL;
    if (result == GCKPT_OK && !p.unused) {
        CHECK(gckpti_plan_mode(&p, d->mode) == GCKPT_OK);
        plan = gckpti_encode_plan(&p, d->mode);
    }
    gckpti_planner_free(&p);
    return plan;
}

static uint64_t mix(uint64_t hash, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t run(unsigned seed, const gckpt_plan *p, unsigned debug, gckpt_isa isa)
{
    net n = net_new(seed, p->rows);
    gckpt_exec_desc ed = { .debug = debug | GCKPT_DEBUG_MEASURE | GCKPT_DEBUG_RECOMPUTE, .isa = isa,
                           .parallel_for = p->threads > 1 ? any_order : NULL };
    gckpt_exec *e = gckpt_exec_new(p, n.s, &ed);
    CHECK_MSG(e != NULL, "%s", gckpt_error_text(n.s));
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int step = 0; step < 2 && e; step++) {
        gckpt_report r;
        gckpt_hyper hyper = { .lr = 0.05f };
        gckpt_feed feeds[2] = { { gckpt_id(n.x), images }, { gckpt_id(n.y), labels } };
        memset(&r, 0, sizeof r);
        gckpt_result result = p->mode == GCKPT_INFERENCE ? gckpt_forward(e, feeds, 2, p->batch, &r)
                                                         : gckpt_step(e, feeds, 2, p->batch, &hyper, &r);
        CHECK_MSG(result == GCKPT_OK, "%s", gckpt_error_text(e));
        hash = mix(hash, &r.loss, sizeof r.loss);
        if (p->fetch_count) {
            gckpt_shape s = gckpt_shape_of(n.top);
            s.d[0] = (p->batch - 1) % p->rows + 1;
            hash = mix(hash, gckpt_fetch(e, gckpt_id(n.top), 0), (size_t)count_of(&s) * sizeof(float));
        }
    }
    const uint64_t weights = e ? gckpt_store_hash(n.s) : 0;
    CHECK_MSG(!e || gckpt_bytes_measured(e) == gckpt_plan_bytes(p),
              "seed %u, %d groups in row tiles: %lu bytes touched of %lu", seed, p->fused,
              (unsigned long)gckpt_bytes_measured(e), (unsigned long)gckpt_plan_bytes(p));
    hash = mix(hash, &weights, sizeof weights);
    util_free(e, NULL, n.g, n.s);
    return hash;
}

/* most_copies: largest number of steps in a group that are copies of rows, not ops */
static int ran, offered, in_group, most_copies;

static void same_bits(unsigned seed)
{
    const int64_t rows = 1 + seed % 3;
    net n = net_new(seed, rows);
    gckpt_fetch_spec top = { n.top, 0 };
    gckpt_plan_desc d = { .mode = seed % 4 == 3 ? GCKPT_INFERENCE : GCKPT_STORE_ALL,
                          .threads = 1 + (int)(seed / 3 % 3),
                          .kernels.plain = seed / 2 % 2,
                          .batch = BATCH,
                          .fetch.specs = &top,
                          .fetch.count = seed % 5 < 2 && n.top->kind == GCKPTI_OP,
                          .kernels.alignment = seed / 2 % 2 ? 4 : 0 };
    if (d.mode == GCKPT_INFERENCE)
        d.batch = rows;
    CHECK_MSG(n.term.loss != NULL, "%s", gckpt_error_text(n.g));
    uint64_t want = 0;
    for (int tiles = 0; tiles < 2 && n.term.loss; tiles++) {
        gckpt_plan *p = plan_of(&n, &d, tiles);
        if (p) {
            const uint64_t got =
                run(seed, p, seed % 7 == 0 ? GCKPT_DEBUG_POISON : 0, seed % 6 == 0 ? GCKPT_ISA_PLAIN : GCKPT_ISA_AUTO);
            want = tiles ? want : got;
            CHECK_MSG(got == want, "seed %u: other bits in row tiles", seed);
            for (size_t i = 0; i < p->node_count; i++)
                /* a fused group has the op name "fused" in the plan */
                if (!strcmp(gckpt_plan_op(p, (int)i), "fused")) {
                    const gckpti_fused *b = (const gckpti_fused *)(const void *)(p->words + p->nodes[i].attributes);
                    const gckpti_fused_step *step = (const gckpti_fused_step *)(b + 1);
                    int copies = 0;
                    for (int k = 0; k < b->steps; k++)
                        copies += step[k].id < 0;
                    most_copies = copies > most_copies ? copies : most_copies;
                    in_group += b->steps;
                    offered++;
                }
            ran += tiles;
        }
        gckpt_plan_free(p);
    }
    util_free(NULL, NULL, n.g, n.s);
}

/* Builds an inverted residual block, which is frozen, and a trained classifier. */
static net net_block(void)
{
    const gckpt_window down = { .stride = { 2, 2 }, .padding = { 1, 1 } }, each = { .padding = { 1, 1 }, .groups = 24 };
    net n = { .s = gckpt_store_new(NULL) };
    n.g = gckpt_graph_new(n.s, NULL);
    n.x = gckpt_input(n.g, "x", GCKPT_F32, gckpt_shape4(1, 32, 32, 3));
    n.y = gckpt_input(n.g, "y", GCKPT_I32, gckpt_shape1(1));
    gckpt_tensor *h = gckpt_relu(gckpt_conv2d(n.x, weight(&n, gckpt_shape4(3, 3, 3, 8), 1), NULL, &down)), *skip = h;
    h = gckpt_relu(gckpt_linear(h, weight(&n, gckpt_shape2(8, 24), 1), NULL));
    h = gckpt_relu(gckpt_conv2d(h, weight(&n, gckpt_shape4(3, 3, 1, 24), 1), NULL, &each));
    h = n.top = gckpt_add(skip, gckpt_linear(h, weight(&n, gckpt_shape2(24, 8), 1), NULL));
    h = gckpt_linear(gckpt_global_average_pool(gckpt_max_pool(h, &(gckpt_window){ .size = { 2, 2 } })),
                     weight(&n, gckpt_shape2(8, 3), 0), weight(&n, gckpt_shape1(3), 0));
    n.term.loss = gckpt_cross_entropy(h, n.y, NULL, 0);
    n.term.weight = 1;
    return n;
}

static int groups_of(const gckpt_plan *p)
{
    int runs = 0;
    for (size_t i = 0; p && i < p->node_count; i++)
        runs += !strcmp(gckpt_plan_op(p, (int)i), "fused");
    return runs;
}

/* Tests a group with an op that selects by integers, given for each batch row or once for all rows: each row tile
 * gets its own part of them, and the bits are those of the graph as built. */
static void test_integers(void)
{
    static int32_t chosen[2 * 24 * 32 * 4], same[32 * 4];
    uint64_t want = 0;
    for (int i = 0; i < 2 * 24 * 32 * 4; i++) {
        /* INT32_MIN would be read as -0.0 if it were taken for a float, so a wrong type would show */
        chosen[i] = i % 7 < 3 ? INT32_MIN : 0;
        same[i % (32 * 4)] = i % 3 ? INT32_MIN : 0;
    }
    for (int tiles = 0; tiles < 2; tiles++) {
        net n = { .s = gckpt_store_new(NULL) };
        n.g = gckpt_graph_new(n.s, NULL);
        n.x = gckpt_input(n.g, "x", GCKPT_F32, gckpt_shape4(1, 24, 32, 4));
        n.y = gckpt_input(n.g, "y", GCKPT_I32, gckpt_shape4(1, 24, 32, 4));
        gckpt_tensor *by = gckpt_constant(n.g, "by", GCKPT_I32, gckpt_shape2(32, 4), same);
        gckpt_tensor *h = gckpt_conv2d(n.x, weight(&n, gckpt_shape4(3, 3, 4, 4), 1), NULL,
                                       &(gckpt_window){ .padding = { 1, 1 } });
        h = gckpt_where(n.y, gckpt_relu(h), gckpt_scale(n.x, 3));
        n.top = gckpt_where(by, gckpt_tanh(h), h);
        h = gckpt_linear(n.top, weight(&n, gckpt_shape2(4, 3), 0), NULL);
        n.term = (gckpt_term){ gckpt_sum_loss(gckpt_mul(h, h)), 1, 0 };
        gckpt_plan_desc d = { .mode = GCKPT_STORE_ALL, .batch = 2, .kernels.plain = 1, .kernels.alignment = 4 };
        gckpt_plan *p = plan_of(&n, &d, tiles);
        gckpt_exec *e = gckpt_exec_new(p, n.s, NULL);
        const gckpt_feed feeds[2] = { { gckpt_id(n.x), images }, { gckpt_id(n.y), chosen } };
        const gckpt_hyper hyper = { .lr = 0.05f };
        int integers = 0;
        for (size_t i = 0; p && i < p->node_count; i++)
            for (int k = 0; k < p->nodes[i].inputs && !strcmp(gckpt_plan_op(p, (int)i), "fused"); k++)
                integers += p->nodes[i].in[k] == gckpt_id(n.y);
        CHECK_MSG(e && integers == tiles, "%s, %d of a run", gckpt_error_text(n.g), integers);
        CHECK_MSG(gckpt_step(e, feeds, 2, 2, &hyper, NULL) == GCKPT_OK, "%s", gckpt_error_text(e));
        want = tiles ? want : gckpt_store_hash(n.s);
        CHECK(gckpt_store_hash(n.s) == want);
        util_free(e, p, n.g, n.s);
    }
}

/* Tests which fused groups the planner chooses for a budget. */
static void test_chosen(void)
{
    net n = net_block();
    gckpt_plan_desc d = { .kernels.plain = 1, .kernels.alignment = 4 };
    gckpt_plan *all = gckpt_plan_new(n.g, &n.term, 1, &d), *p;
    const gckpt_plan_info all_info = gckpt_plan_describe(all);
    file text = { 0 };
    int same = 0;
    CHECK(all && !groups_of(all));
    d.budget = gckpt_plan_bytes(all) - all_info.arena * 2 / 3;
    p = gckpt_plan_new(n.g, &n.term, 1, &d);
    CHECK_MSG(p && groups_of(p) && gckpt_plan_bytes(p) <= d.budget, "%s", gckpt_error_text(n.g));
    CHECK(p && gckpt_plan_describe(p).cost > all_info.cost && gckpt_plan_describe(p).proven_bytes <= gckpt_plan_bytes(p));
    CHECK(print_plan(p, file_write, &text) == GCKPT_OK && file_write(&text, "", 1) == 1 &&
          strstr((char *)text.bytes, "\tforward  fused #"));
    gckpt_cost costs[64];
    CHECK(all && all->node_count <= 64);
    for (size_t i = 0; i < all->node_count; i++)
        costs[i] = (gckpt_cost){ 3 * all->info[i].cost.forward, 3 * all->info[i].cost.backward };
    d.costs.by_id = costs, d.costs.count = (int)all->node_count;
    gckpt_plan *dear = gckpt_plan_new(n.g, &n.term, 1, &d);
    CHECK_MSG(dear && groups_of(dear), "%s", gckpt_error_text(n.g));
    for (size_t i = 0; dear && i < dear->node_count; i++)
        if (!strcmp(gckpt_plan_op(dear, (int)i), "fused") && !strcmp(gckpt_plan_op(p, (int)i), "fused")) {
            const int64_t off = (int64_t)(dear->info[i].cost.forward - 3 * p->info[i].cost.forward);
            CHECK_MSG(off >= -3 && off <= 3, "a run of ops that cost three times as much costs %ld more", (long)off);
            same++;
        }
    CHECK(same > 0);
    gckpt_plan_free(dear);
    d.costs.by_id = NULL, d.costs.count = 0;
    gckpt_plan_free(p);
    d.schedule.as_built = 1;
    CHECK(!gckpt_plan_new(n.g, &n.term, 1, &d) && gckpt_error(n.g) == GCKPT_E_BUDGET);
    d.schedule.as_built = 0;
    d.mode = GCKPT_INFERENCE;
    p = gckpt_plan_new(n.g, &n.term, 1, &d);
    CHECK_MSG(p && groups_of(p) == 1, "%s", gckpt_error_text(n.g));
    gckpt_plan_free(p);
    d.budget = 0;
    p = gckpt_plan_new(n.g, &n.term, 1, &d);
    CHECK(p && !groups_of(p));
    gckpt_plan_free(p);
    gckpt_keep(n.top->in[1]);
    d.budget = gckpt_plan_bytes(all) - all_info.arena / 4;
    p = gckpt_plan_new(n.g, &n.term, 1, &d);
    CHECK_MSG(p && !strcmp(gckpt_plan_op(p, n.top->in[1]->id), "fused"), "a pinned value ends a run");
    gckpt_plan_free(p);
    gckpt_plan_free(all);
    free(text.bytes);
    util_free(NULL, NULL, n.g, n.s);
}

/* Row tiles are only for FP32 plans. Tests that the planner offers no row tiles in a bf16 plan. */
static void test_precision(void)
{
    gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .kernels.plain = 1 };
    net n = { .s = gckpt_store_new(NULL) };
    n.g = gckpt_graph_new(n.s, NULL);
    n.x = gckpt_input(n.g, "x", GCKPT_F32, gckpt_shape3(2, 64, 8));
    gckpt_tensor *h = gckpt_relu(gckpt_linear(n.x, weight(&n, gckpt_shape2(8, 512), 1), NULL));
    n.top = gckpt_mean(gckpt_linear(h, weight(&n, gckpt_shape2(512, 8), 1), NULL), 1);
    n.term.loss = gckpt_sum_loss(n.top);
    n.term.weight = 1;
    gckpt_plan *p = plan_of(&n, &d, 1);
    CHECK_MSG(groups_of(p) == 1, "%s", gckpt_error_text(n.g));
#ifndef GCKPT_NO_BF16
    d.bf16.precision = GCKPT_BF16;
    CHECK(!plan_of(&n, &d, 1));
#endif
    gckpt_plan_free(p);
    util_free(NULL, NULL, n.g, n.s);
}

/* Builds a large and a small group of ops that may run in row tiles, then a product of `wide` columns, and returns
 * the plan. */
static gckpt_plan *two_groups(int large, int wide)
{
    const gckpt_window each = { .padding = { 1, 1 } }, some = { .size = { large, large }, .stride = { large, large } };
    const int axes[4] = { 0, 2, 1, 3 };
    net n = { .s = gckpt_store_new(NULL) };
    n.g = gckpt_graph_new(n.s, NULL);
    n.x = gckpt_input(n.g, "x", GCKPT_F32, gckpt_shape4(1, 32 * large, 32 * large, 8));
    gckpt_tensor *h = gckpt_relu(gckpt_conv2d(n.x, weight(&n, gckpt_shape4(3, 3, 8, 8), 1), NULL, &each));
    h = gckpt_average_pool(gckpt_relu(gckpt_conv2d(h, weight(&n, gckpt_shape4(3, 3, 8, 8), 1), NULL, &each)), &some);
    h = gckpt_permute(h, axes, 4);
    h = gckpt_relu(gckpt_conv2d(h, weight(&n, gckpt_shape4(3, 3, 8, 24), 1), NULL, &each));
    h = gckpt_global_average_pool(gckpt_conv2d(h, weight(&n, gckpt_shape4(3, 3, 24, 8), 1), NULL, &each));
    n.y = gckpt_input(n.g, "y", GCKPT_I32, gckpt_shape1(1));
    n.term.loss = gckpt_cross_entropy(gckpt_linear(h, weight(&n, gckpt_shape2(8, wide), 0), NULL), n.y, NULL, 0);
    n.term.weight = 1;
    gckpt_plan *p = plan_of(&n, &(gckpt_plan_desc){ .mode = GCKPT_STORE_ALL, .kernels.plain = 1,
                                                    .kernels.alignment = 4 }, 1);
    util_free(NULL, NULL, n.g, n.s);
    return p;
}

/* Tests that both groups run in row tiles if the product after them is small, and that the planner offers no row tiles
 * if the product alone needs more bytes than each group. */
static void test_two_groups(void)
{
    gckpt_plan *both = two_groups(4, 3), *none = two_groups(4, 400000);
    CHECK_MSG(groups_of(both) == 2 && !none, "%d and %d runs", groups_of(both), groups_of(none));
    gckpt_plan_free(both);
    gckpt_plan_free(none);
}

static void test_crafted(void)
{
    for (int what = 0; what < CRAFTED; what++) {
        const int before = ran;
        most_copies = 0;
        for (unsigned seed = 0; seed < 12; seed++)
            same_bits(FIRST_CRAFTED + 64 * (unsigned)what + seed);
        CHECK_MSG(ran == before + 12, "%d: %d of 12 plans have row tiles", what, ran - before);
        CHECK_MSG(what != TWO_COPIES || most_copies == 1, "%d copies", most_copies);
    }
}

/* Tests limits of fused groups: a group has no row offset that would make a row tile larger than 2^31 bytes, and no
 * tensor of 2^28 or more elements. */
static void test_large(void)
{
    const gckpt_window far = { .dilation = { 1 << 20, 1 }, .padding = { 1 << 19, 0 } };
    for (int large = 0; large <= (sizeof(size_t) > 4); large++) {
        net n = { .s = gckpt_store_new(NULL) };
        n.g = gckpt_graph_new(n.s, NULL);
        n.x = gckpt_input(n.g, "x", GCKPT_F32, gckpt_shape4(1, large ? 1 << 16 : 32, 1024, 4));
        gckpt_tensor *first = gckpt_conv2d(n.x, weight(&n, gckpt_shape4(2, 1, 4, 4), 1), NULL, &far);
        n.term = (gckpt_term){ gckpt_sum_loss(gckpt_global_average_pool(widen(&n, first))), 1, 0 };
        gckpt_plan *p = plan_of(&n, &(gckpt_plan_desc){ .mode = GCKPT_INFERENCE, .kernels.plain = 1 }, 1);
        CHECK_MSG(large ? !p : groups_of(p) == 1 && !strcmp(gckpt_plan_op(p, first->id), "conv2d"), "%d: %s", large,
                  gckpt_error_text(n.g));
        gckpt_plan_free(p);
        util_free(NULL, NULL, n.g, n.s);
    }
}

/* Plans a group of many ops in memory blocks of every size: each time the planner either returns a plan or reports
 * too little memory. */
static void test_block(void)
{
    static union { double align; unsigned char bytes[1 << 20]; } room;
    gckpt_plan *p = NULL;
    net n = { .s = gckpt_store_new(NULL) };
    n.g = gckpt_graph_new(n.s, NULL);
    n.x = gckpt_input(n.g, "x", GCKPT_F32, gckpt_shape4(1, 32, 8, 8));
    gckpt_tensor *h = n.x;
    for (int i = 0; i < 20; i++)
        h = gckpt_relu(gckpt_linear(h, weight(&n, gckpt_shape2(8, 8), 1), NULL));
    n.term = (gckpt_term){ gckpt_sum_loss(gckpt_global_average_pool(h)), 1, 0 };
    gckpt_plan_desc d = { .mode = GCKPT_INFERENCE, .kernels.plain = 1, .kernels.alignment = 4 };
    gckpt_plan *all = gckpt_plan_new(n.g, &n.term, 1, &d);
    d.budget = gckpt_plan_bytes(all) - gckpt_plan_describe(all).arena / 4;
    d.memory.memory = room.bytes;
    for (d.memory.size = 4096; !p && d.memory.size < sizeof room.bytes; d.memory.size += 1024) {
        p = gckpt_plan_new(n.g, &n.term, 1, &d);
        CHECK_MSG(p ? groups_of(p) == 1 : gckpt_error(n.g) == GCKPT_E_MEMORY, "%lu bytes: %s",
                  (unsigned long)d.memory.size, gckpt_error_text(n.g));
    }
    CHECK_MSG(p && d.memory.size > 16384, "%s", gckpt_error_text(n.g));
    gckpt_plan_free(p);
    gckpt_plan_free(all);
    util_free(NULL, NULL, n.g, n.s);
}

/* Each allocation fails once. */
static void test_memory(void)
{
    gckpt_plan *p = NULL;
    for (long at = 1; !p && at < 4000; at++) {
        net n = net_block();
        heap h = { .fail_at = at };
        gckpt_plan_desc d = { .kernels.plain = 1, .budget = 22000, .memory = heap_memory(&h) };
        p = gckpt_plan_new(n.g, &n.term, 1, &d);
        CHECK_MSG(p ? groups_of(p) : gckpt_error(n.g) == GCKPT_E_MEMORY, "allocation %ld: %s", at,
                  gckpt_error_text(n.g));
        gckpt_plan_free(p);
        CHECK(h.live == 0 && h.wrong_sizes == 0);
        util_free(NULL, NULL, n.g, n.s);
    }
    CHECK(p != NULL);
}

int main(int argc, char **argv)
{
    for (int i = 0; i < FLOATS; i++)
        images[i] = ((float)below(2001) - 1000.0f) / 700.0f;
    for (int i = 0; i < BATCH; i++)
        labels[i] = (int32_t)below(3);
    const unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : check_seed(),
                   tried = argc > 1 ? 1 : (unsigned)check_iterations(3000);
    for (unsigned seed = first; seed < first + tried; seed++)
        same_bits(seed);
    test_crafted();
    test_large();
    test_chosen();
    test_integers();
    test_precision();
    test_two_groups();
    test_block();
    test_memory();
    CHECK(gckpti_mul_div(10, 3, 2) == 15 && gckpti_mul_div(100, UINT64_C(5) << 40, UINT64_C(4) << 40) == 125);
    CHECK_MSG(argc > 1 || (ran > (int)tried / 8 && in_group > 3 * offered),
              "%d plans with row tiles, %d groups of %d steps", ran, offered, in_group);
    printf("%d plans with row tiles, %d groups of %d steps\n", ran, offered, in_group);
    return check_report("test_row_tiles");
}

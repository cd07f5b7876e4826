/* test_rows.c - op descriptors: the header's list of built-in ops is complete, the C code of a printed plan names
 * each op correctly, and the planner uses the correct cost for each backward. */
#include "ops/ops.h"
#include "plan/plan.h"
#include "check.h"
#include <stdlib.h>

typedef gckpt_tensor T;

/* ---- printed plans refer to each built-in op by its name in the header's list ---- */
typedef struct {
    char *bytes;
    size_t size;
} text;

static size_t to_text(void *user, const void *bytes, size_t size)
{
    text *t = (text *)user;
    t->bytes = (char *)realloc(t->bytes, t->size + size + 1);
    memcpy(t->bytes + t->size, bytes, size);
    t->size += size;
    t->bytes[t->size] = 0;
    return size;
}

static T *param(gckpt_graph *g, const char *name, int64_t a, int64_t b)
{
    gckpt_init init = { 0.1f, 0, 0 };
    return gckpt_param(g, name, b ? gckpt_shape2(a, b) : gckpt_shape1(a), init);
}
static T *weight(gckpt_graph *g, int64_t a, int64_t b)
{
    static int count;
    char name[16];
    snprintf(name, sizeof name, "w%d", count++);
    return param(g, name, a, b);
}

/* Builds a graph that contains every op. */
static gckpt_plan *all_ops(gckpt_graph *g, const gckpt_op *more)
{
    T *ids = gckpt_input(g, "ids", GCKPT_I32, gckpt_shape2(2, 4));
    T *x = gckpt_embed(weight(g, 9, 8), ids), *one = weight(g, 8, 0);
#define UNARY(name, ...) gckpt_##name,
    T *(*const curves[])(T *) = { UNARY_TESTS(UNARY) gckpt_softmax, gckpt_log_softmax };
#undef UNARY
    static const int axes[3] = { 0, 2, 1 };
    for (size_t i = 0; i < sizeof curves / sizeof *curves; i++)
        x = curves[i](x);
    x = gckpt_clamp(gckpt_pow(x, 1.5f), 0, 1);
    x = gckpt_where(gckpt_reshape(ids, gckpt_shape3(2, 4, 1)), gckpt_activation(x, GCKPT_LEAKY_RELU, 0.1f), x);
    x = gckpt_maximum(gckpt_minimum(gckpt_div(gckpt_prelu(gckpt_activation(x, GCKPT_ELU, 0.5f), one), one), one), gckpt_detach(x));
    x = gckpt_dropout(gckpt_scale(x, 0.5f), 0.1f);
    T *bytes = gckpt_input(g, "bytes", GCKPT_U8, gckpt_shape3(2, 4, 8));
    x = gckpt_sub(gckpt_mul(gckpt_add(x, one), one), gckpt_from_u8(bytes, 0.01f, 0));
    x = gckpt_permute(gckpt_permute(x, axes, 3), axes, 3);
    T *half[2] = { gckpt_slice(x, 2, 0, 4), gckpt_slice(x, 2, 4, 8) };
    x = gckpt_concat(half, 2, 2);
    x = gckpt_rmsnorm(gckpt_layernorm(x, one, one, 0), one, 0);
    x = gckpt_rotary(gckpt_linear(gckpt_matmul(x, weight(g, 8, 8)), weight(g, 8, 8), one),
                     &(gckpt_rotary_desc){ .heads = 2 });
    x = gckpt_attention(x, x, x, &(gckpt_attention_desc){ .heads = 2, .causal = 1 });
    x = gckpt_matmul(weight(g, 4, 4), gckpt_attention(x, x, x, &(gckpt_attention_desc){ .heads = 2, .mask = weight(g, 4, 4) }));
    x = gckpt_conv1d(x, gckpt_reshape(weight(g, 8, 8), gckpt_shape3(1, 8, 8)), one, NULL);
    const gckpt_window window = { .size = { 1, 2 }, .stride = { 1, 1 } };
    x = gckpt_average_pool(gckpt_max_pool(gckpt_concat((T *[]){ x, x }, 2, 1), &window), &window);
    x = gckpt_groupnorm(gckpt_slice(x, 1, 0, 4), 2, one, one, 0);
    T *mean = gckpt_running(g, "mean", gckpt_shape1(8), (gckpt_init){ 0, 0, 0 }, 0.1f);
    T *variance = gckpt_running(g, "variance", gckpt_shape1(8), (gckpt_init){ 0, 0, 1 }, 0.1f);
    x = gckpt_batchnorm(x, one, one, mean, variance, 0);
    x = gckpt_slice(gckpt_pad(gckpt_add(x, gckpt_reshape(gckpt_max(x, 1), gckpt_shape3(2, 1, 8))), 1, 1, 1, GCKPT_PAD_VALUE, 0), 1, 1,
                    5);
    x = gckpt_reshape(gckpt_upsample(gckpt_reshape(x, gckpt_shape4(2, 4, 1, 8)), 4, 1, GCKPT_BILINEAR),
                      gckpt_shape3(2, 4, 8));
    x = gckpt_add(x, gckpt_embed(weight(g, 9, 8), gckpt_argmax(x, 2)));
    T *order, *sorted = gckpt_top_k(x, 2, 8, &order);
    x = gckpt_add(sorted, gckpt_reshape(gckpt_embed(weight(g, 9, 1), order), gckpt_shape3(2, 4, 8)));
    x = gckpt_gru(x, weight(g, 8, 24), NULL, weight(g, 8, 24), NULL, &(gckpt_recurrent_desc){ .reset_before = 1 });
    x = gckpt_gru(gckpt_gather(x, ids), weight(g, 8, 24), NULL, weight(g, 8, 24), NULL, NULL);
    x = gckpt_lstm(x, weight(g, 8, 16), weight(g, 4, 16), NULL, NULL);
    T *decay = gckpt_slice(x, 2, 0, 2);
    x = gckpt_attention(x, x, x, &(gckpt_attention_desc){ .heads = 2, .causal = 1, .decay = decay, .beta = decay });
    for (int i = 0; more && i < 1; i++)
        x = gckpt_apply(more, &x, 1, NULL, 0);
    gckpt_term terms[9] = { { gckpt_cross_entropy(x, ids, NULL, 0), 1, 0 },
                            { gckpt_linear_cross_entropy(x, weight(g, 9, 8), ids, NULL), 1, 0 },
                            { gckpt_mean_squared_error(x, x, NULL), 1, 0 },
                            { gckpt_sum_loss(gckpt_mean(gckpt_sum(x, -1), -1)), 1, 0 },
                            { gckpt_cross_entropy(x, ids, NULL, 0.1f), 1, 0 },
                            { gckpt_soft_cross_entropy(x, x, NULL), 1, 0 },
                            { gckpt_mean_squared_error(x, x, x), 1, 0 },
                            { gckpt_huber(x, x, NULL, 1), 1, 0 },
                            { gckpt_binary_cross_entropy(x, x, NULL), 1, 0 } };
    gckpt_plan *p = gckpt_plan_new(g, terms, 9, NULL);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    return p;
}

/* Returns a plan with the ops that only GCKPT_INFERENCE plans may contain. */
static gckpt_plan *cached(gckpt_graph *g)
{
    gckpt_fetch_spec fetch = { gckpt_input(g, "rows", GCKPT_F32, gckpt_shape3(2, 4, 8)), 0 };
    gckpt_tensor *keys = gckpt_cache(fetch.tensor, 16);
    gckpt_plan_desc desc = { 0 };
    fetch.tensor = gckpt_attention(fetch.tensor, keys, keys, &(gckpt_attention_desc){ .heads = 2, .causal = 1 });
    fetch.tensor = gckpt_attention(fetch.tensor, keys, keys,
                                   &(gckpt_attention_desc){ .heads = 8, .causal = 1, .decay = keys, .beta = keys });
    desc.mode = GCKPT_INFERENCE, desc.fetch.specs = &fetch, desc.fetch.count = 1;
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    CHECK_MSG(p != NULL, "%s", gckpt_error_text(g));
    return p;
}

static gckpt_result same_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}
static void nothing(const gckpt_call *call) { (void)call; }
static const gckpt_op gelu = { "gelu", same_shape, nothing, nothing, NULL, NULL, { 0 }, 0, NULL, NULL };

static void names(void)
{
#define NAME(name, part) " " #name " "
    static const char list[] = GCKPTI_OPS(NAME);
#define ONE(name, part) +1
    const int n = GCKPTI_OPS(ONE);
    char want[64], printed[1024] = " ";
    int used = 0;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL), *caches = gckpt_graph_new(s, NULL);
    gckpt_plan *p = all_ops(g, NULL), *q = cached(caches);
    text t = { NULL, 0 };
    CHECK(gckpt_plan_c(p, "all", to_text, &t) == GCKPT_OK);
    CHECK(gckpt_plan_c(q, "cached", to_text, &t) == GCKPT_OK);
    gckpt_plan_free(q);
    gckpt_graph_free(caches);
    /* each name that the printed plan contains must be in the list */
    for (const char *at = t.bytes; at && (at = strstr(at, "    { &")) != NULL;) {
        size_t have = strlen(printed), length = strcspn(at += 7, ",");
        CHECK_MSG(!strncmp(at, "gckpti_op_", 10), "%.*s is printed as the user's", (int)length, at);
        snprintf(want, sizeof want, " %.*s ", (int)length - 10, at + 10);
        CHECK_MSG(strstr(list, want) != NULL, "%s is not listed", want);
        if (!strstr(printed, want))
            snprintf(printed + have, sizeof printed - have, "%s", want + 1), used++;
    }
    CHECK_MSG(used == n, "%d of %d listed ops are printed:%s", used, n, printed);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    /* user-defined ops in a printed plan: one with the name of a built-in op, and a copy of a built-in op with
     * another name */
    gckpt_op copy = gckpti_op_tanh;
    copy.name = "curve";
    for (int i = 0; i < 2; i++) {
        g = gckpt_graph_new(s, NULL);
        p = all_ops(g, i ? &copy : &gelu);
        t.size = 0;
        CHECK(gckpt_plan_c(p, "all", to_text, &t) == GCKPT_OK);
        CHECK(t.bytes && strstr(t.bytes, i ? "{ &curve, " : "{ &gelu, ") && strstr(t.bytes, "{ &gckpti_op_gelu, ") &&
              strstr(t.bytes, "{ &gckpti_op_tanh, "));
        gckpt_plan_free(p);
        gckpt_graph_free(g);
    }
    gckpt_store_free(s);
    free(t.bytes);
}

/* ---- cost of a backward: op->flops_backward, or the planner's rule for ops without this function ---- */
enum { FLOPS = 10000000 };
static uint64_t forward_flops(const gckpt_call *call) { return FLOPS + (uint64_t)call->shape.d[0]; }
static uint64_t backward_flops(const gckpt_call *call)
{
    uint64_t sum = 5;
    for (int i = 0; i < call->inputs; i++)
        sum += call->in[i].grad ? (uint64_t)FLOPS * (1u << i) : 0;
    return sum;
}

static gckpt_cost cost_of(const gckpt_plan *p, const T *t) { return p->info[gckpt_id(t)].cost; }

/* Returns the planner's cost of the backward of an op with three inputs; bit i of `wanted` makes input i a trained
 * weight. */
static uint64_t user_cost(unsigned wanted, uint64_t (*flops)(const gckpt_call *), uint64_t *work)
{
    gckpt_op op = { "mine", same_shape, nothing, nothing, forward_flops, NULL, { 0 }, 0, flops, NULL };
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    T *in[4], *loss;
    for (int i = 0; i < 3; i++)
        in[i] = wanted >> i & 1 ? weight(g, 4, 4)
                                : gckpt_input(g, i ? i > 1 ? "c" : "b" : "a", GCKPT_F32, gckpt_shape2(4, 4));
    T *y = gckpt_apply(&op, in, 3, NULL, 0);
    in[3] = gckpt_mul(y, weight(g, 4, 4)); /* every plan needs a parameter and a value that depends on an input */
    loss = gckpt_sum_loss(gckpt_mul(in[3], gckpt_input(g, "d", GCKPT_F32, gckpt_shape2(4, 4))));
    gckpt_term term = { loss, 1, 0 };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, NULL);
    gckpt_cost c = { 0, 0 };
    if (CHECK_MSG(p != NULL, "%s", gckpt_error_text(g)))
        c = cost_of(p, y);
    CHECK(c.forward == FLOPS + 4 + 16384);
    *work = gckpt_plan_describe(p).cost;
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return c.backward;
}

static void users(void)
{
    for (unsigned wanted = 0; wanted < 8; wanted++) {
        int count = (int)(wanted & 1) + (int)(wanted >> 1 & 1) + (int)(wanted >> 2);
        uint64_t before, after, rule = user_cost(wanted, NULL, &before),
                                own_cost = user_cost(wanted, backward_flops, &after);
        CHECK_MSG(rule == (count ? (uint64_t)(count > 1 ? 2 : 1) * (FLOPS + 4) + 16384 : 0), "%u: %lu", wanted,
                  (unsigned long)rule);
        CHECK_MSG(own_cost == (count ? 5 + (uint64_t)FLOPS * wanted + 16384 : 0), "%u: %lu", wanted,
                  (unsigned long)own_cost);
        CHECK_MSG(after - before == own_cost - rule, "%u: the plan's work %lu, then %lu", wanted, (unsigned long)before,
                  (unsigned long)after);
    }
}

/* Tests two ops that run part of the forward again in their backward: attention adds half of the forward's cost to
 * the cost of its gradients, linear_cross_entropy a whole forward, however many gradients it computes. */
static void own_backward_costs(void)
{
    for (int frozen = 0; frozen < 2; frozen++) {
        gckpt_store *s = gckpt_store_new(NULL);
        gckpt_graph *g = gckpt_graph_new(s, NULL);
        T *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape3(1, 512, 64));
        T *ids = gckpt_input(g, "ids", GCKPT_I32, gckpt_shape2(1, 512));
        T *q = gckpt_linear(x, weight(g, 64, 64), NULL), *w = param(g, "head", 512, 64);
        T *y = gckpt_attention(q, frozen ? x : q, frozen ? x : q, &(gckpt_attention_desc){ .heads = 1 });
        if (frozen)
            gckpt_store_freeze(s, "head", 1);
        gckpt_term term = { gckpt_linear_cross_entropy(y, w, ids, NULL), 1, 0 };
        gckpt_plan_desc built = { .schedule.as_built = 1 };
        gckpt_plan *p = gckpt_plan_new(g, &term, 1, &built);
        uint64_t flops = 512 * 512 * (4 * 64 + 14), gradients = frozen ? 1 : 2;
        if (!CHECK_MSG(p != NULL, "%s", gckpt_error_text(g)))
            return;
        CHECK(cost_of(p, y).forward == flops + 16384);
        CHECK(cost_of(p, y).backward == flops * gradients + flops / 2 + 16384);
        flops = 512 * 512 * (2 * 64 + 13);
        CHECK(cost_of(p, term.loss).forward == flops + 16384);
        CHECK(cost_of(p, term.loss).backward == flops * gradients + flops + 16384);
        gckpt_plan_free(p);
        gckpt_graph_free(g);
        gckpt_store_free(s);
    }
}

int main(void)
{
    names();
    users();
    own_backward_costs();
    return check_report("rows");
}

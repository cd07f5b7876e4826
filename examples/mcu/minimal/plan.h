/* Plan plan, printed by gckpt_plan_c: compile it in the file that holds the
 * implementation of gradckpt.h, after the #include. Not to be edited.
 * It runs with GCKPT_NO_ACTIVATIONS, GCKPT_NO_AXES, GCKPT_NO_CACHES, GCKPT_NO_RECURRENT, GCKPT_NO_ATTENTION, GCKPT_NO_LINEAR_LOSS, GCKPT_NO_LOSSES, GCKPT_NO_IMAGES, GCKPT_NO_RANKS, GCKPT_NO_FETCH, GCKPT_NO_QUANT, GCKPT_NO_TILES, GCKPT_NO_BF16, GCKPT_NO_OFFLOAD, GCKPT_NO_DEVICES, too. */
#ifdef GCKPT_NO_TRAINING
#error "plan plan: it has gradients: compile without GCKPT_NO_TRAINING"
#endif
#if GCKPT_PLAN_FORMAT != 21 || GCKPT_CONTRACT != 5
#error "plan plan: printed by another version of gradckpt.h: print it again (gckpt_plan_c)"
#endif
#if SIZE_MAX / 16 < 744
#error "plan plan: too large for this machine's addresses"
#endif
enum {
    plan_reading = 0,
    plan_degrees = 1
};
#define plan_store_bytes ((1 * sizeof(gckpt_store) + 15) / 16 * 16 + (4 * sizeof(gckpti_param) + 15) / 16 * 16 + 495)
#define plan_exec_bytes ((1 * sizeof(gckpt_exec) + 15) / 16 * 16 + (10 * sizeof(gckpti_exec_node) + 15) / 16 * 16 + (4 * sizeof(gckpti_exec_param) + 15) / 16 * 16 + (2 * sizeof(gckpti_exec_input) + 15) / 16 * 16 + (1 * sizeof(gckpti_exec_term) + 15) / 16 * 16 + 383)
static const gckpti_plan_node gckpti_plan_nodes[] = {
    { NULL, NULL, 0, 0, 0, 0, 0, 0, 0, { 0, 0, 0, 0, 0, 0, 0, 0 }, 1, 0, 0, 0, 0, 0 },
    { NULL, NULL, 0, 0, 0, 0, 8, 1, 1, { 0, 0, 0, 0, 0, 0, 0, 0 }, 1, 0, 0, 0, 0, 0 },
    { NULL, NULL, 0, 0, 0, 3, 16, 2, 0, { 0, 0, 0, 0, 0, 0, 0, 0 }, 2, 0, 0, 1, 0, 0 },
    { NULL, NULL, 0, 0, 0, 6, 22, 3, 1, { 0, 0, 0, 0, 0, 0, 0, 0 }, 2, 0, 0, 1, 0, 0 },
    { NULL, NULL, 0, 0, 0, 8, 28, 4, 2, { 0, 0, 0, 0, 0, 0, 0, 0 }, 2, 0, 0, 1, 0, 0 },
    { NULL, NULL, 0, 0, 0, 11, 34, 5, 3, { 0, 0, 0, 0, 0, 0, 0, 0 }, 2, 0, 0, 1, 0, 0 },
    { &gckpti_op_linear, NULL, 0, 0, 4, 3, (gckpti_offset)SIZE_MAX, 6, 0, { 0, 2, 3, 0, 0, 0, 0, 0 }, 0, 3, 0, 0, 0, 4 },
    { &gckpti_op_tanh, NULL, 0, 4, 0, 3, (gckpti_offset)SIZE_MAX, 7, 0, { 6, 0, 0, 0, 0, 0, 0, 0 }, 0, 1, 0, 0, 0, 0 },
    { &gckpti_op_linear, NULL, 0, 4, 4, 0, (gckpti_offset)SIZE_MAX, 8, 0, { 7, 4, 5, 0, 0, 0, 0, 0 }, 0, 3, 0, 0, 0, 4 },
    { &gckpti_op_mean_squared_error, NULL, 0, 8, 0, 13, (gckpti_offset)SIZE_MAX, 9, 0, { 8, 1, 0, 0, 0, 0, 0, 0 }, 0, 2, 0, 0, 0, 0 },
};
#ifndef GCKPT_SMALL
static const gckpti_node_info gckpti_plan_info[] = {
    { { UINT64_C(0), UINT64_C(0) }, SIZE_MAX, SIZE_MAX },
    { { UINT64_C(0), UINT64_C(0) }, SIZE_MAX, SIZE_MAX },
    { { UINT64_C(0), UINT64_C(0) }, SIZE_MAX, SIZE_MAX },
    { { UINT64_C(0), UINT64_C(0) }, SIZE_MAX, SIZE_MAX },
    { { UINT64_C(0), UINT64_C(0) }, SIZE_MAX, SIZE_MAX },
    { { UINT64_C(0), UINT64_C(0) }, SIZE_MAX, SIZE_MAX },
    { { UINT64_C(17864), UINT64_C(17864) }, SIZE_MAX, SIZE_MAX },
    { { UINT64_C(17344), UINT64_C(17824) }, SIZE_MAX, SIZE_MAX },
    { { UINT64_C(17424), UINT64_C(18384) }, SIZE_MAX, SIZE_MAX },
    { { UINT64_C(16504), UINT64_C(16544) }, SIZE_MAX, SIZE_MAX },
};
static const size_t gckpti_plan_live_bytes[] = {
200, 248, 248, 252, 252, 256, 300, 296,
248, 200, 200, 200, 200, 200, 200, };
static const gckpt_buffer gckpti_plan_buffers[] = {
    { 0, 15, 0, 48, 2, (gckpt_buffer_kind)3 },
    { 0, 15, 48, 96, 3, (gckpt_buffer_kind)3 },
    { 0, 15, 144, 48, 4, (gckpt_buffer_kind)3 },
    { 0, 15, 192, 8, 5, (gckpt_buffer_kind)3 },
    { 1, 7, 200, 48, 6, (gckpt_buffer_kind)0 },
    { 3, 5, 248, 4, 8, (gckpt_buffer_kind)0 },
    { 5, 6, 296, 4, 8, (gckpt_buffer_kind)2 },
    { 6, 8, 248, 48, 7, (gckpt_buffer_kind)2 },
};
#endif
static const gckpti_extent gckpti_plan_sizes[] = {
2, 1, 1, 2, 1, 12, 1, 12,
2, 12, 1, 1, 1, 0, };
static const gckpti_plan_param gckpti_plan_params[] = {
    { 12, { 1077936128U, 0U, 0U }, 0U, 19, 2, 0, 0, 1, 0, 0, 2, 0 },
    { 12, { 1077936128U, 0U, 0U }, 0U, 25, 3, 1, 0, 1, 0, 0, 2, 0 },
    { 12, { 1036831949U, 0U, 0U }, 0U, 31, 4, 2, 0, 1, 0, 0, 2, 0 },
    { 1, { 0U, 0U, 0U }, 0U, 37, 5, 3, 0, 1, 0, 0, 2, 0 },
};
static const gckpti_ins gckpti_plan_ins[] = {
    { 7, 0, 0, 0, 0, 1, 0 },
    { 0, 1, 0, 0, 6, 1, 0 },
    { 0, 1, 0, 0, 7, 1, 6 },
    { 0, 1, 0, 0, 8, 1, 10 },
    { 0, 1, 0, 0, 9, 1, 16 },
    { 1, 0, 0, 0, 9, 1, 21 },
    { 1, 0, 6, 0, 8, 1, 31 },
    { 1, 0, 0, 0, 7, 1, 44 },
    { 1, 0, 6, 0, 6, 1, 51 },
    { 8, 0, 0, 0, 0, 1, 64 },
    { 9, 0, 0, 0, 0, 1, 64 },
    { 2, 0, 0, 0, 0, 1, 64 },
    { 2, 0, 0, 0, 1, 1, 65 },
    { 2, 0, 0, 0, 2, 1, 66 },
    { 2, 0, 0, 0, 3, 1, 67 },
};
static const size_t gckpti_plan_operands[] = {
200, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, 200, SIZE_MAX,
SIZE_MAX, 200, 248, SIZE_MAX, SIZE_MAX, 200, SIZE_MAX, SIZE_MAX,
SIZE_MAX, SIZE_MAX, SIZE_MAX, 248, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX,
SIZE_MAX, 248, 296, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX,
SIZE_MAX, SIZE_MAX, 296, 200, 248, SIZE_MAX, SIZE_MAX, 144,
SIZE_MAX, SIZE_MAX, 192, SIZE_MAX, 200, SIZE_MAX, SIZE_MAX, 248,
SIZE_MAX, 248, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, 248, SIZE_MAX,
SIZE_MAX, SIZE_MAX, SIZE_MAX, 0, SIZE_MAX, SIZE_MAX, 48, SIZE_MAX,
0, 48, 144, 192, };
static const gckpti_plan_term gckpti_plan_terms[] = {
    { 9, 1065353216U, 0, 1 },
};
static const char gckpti_plan_names[] = {
    '\162', '\145', '\141', '\144', '\151', '\156', '\147', '\000', '\144', '\145', '\147', '\162', '\145', '\145', '\163', '\000',
    '\167', '\061', '\000', '\167', '\061', '\000', '\142', '\061', '\000', '\142', '\061', '\000', '\167', '\062', '\000', '\167',
    '\062', '\000', '\142', '\062', '\000', '\142', '\062', '\000',
};
static const union {
    uint32_t words[8];
    double number;
    int64_t wide;
} gckpti_plan_words = { {
    0U, 0U, 0U, 0U, 0U, 0U, 0U, 0U,
} };
extern const gckpt_plan plan;
const gckpt_plan plan = {
    { 1734568816U, GCKPT_OK, GCKPT_OK, { 0 } }, { { NULL, NULL, NULL, 0 }, 0, 0, 0 }, NULL,
    UINT64_C(12594003835212723371), /* hash */
    UINT64_C(4526466095124924527), /* check */
    UINT64_C(139752), /* cost */
    UINT64_C(139752), /* least_cost */
    UINT64_C(139752), /* proven_cost */
    UINT64_C(0), /* hidden */
    UINT64_C(0), /* host_cost */
    16, /* batch */
    1, /* rows */
    21, /* format */
    5, /* contract */
    (gckpt_mode)1, /* mode */
    (gckpt_optimiser)0, /* optimiser */
    0, /* update_in_backward */
    1, /* threads */
    1, /* backend_id */
    (gckpt_precision)0, /* precision */
    0, /* lowering */
    0, /* fused */
    1, /* virtual_ranks */
    1, /* ranks */
    (gckpt_shard)0, /* shard */
    0, /* overlaps_copies */
    1, /* accumulates */
    0, /* compressed */
    -1, /* mixer */
    0, /* body */
    10, /* epilogue */
    8, /* alignment */
    744, /* proven_bytes */
    0, /* host_bytes */
    1, /* term_count */
    300, /* arena */
    300, /* peak */
    2, /* inputs */
    10, /* node_count */
    4, /* param_count */
    15, /* length */
    68, /* operand_count */
    0, /* fetch_count */
    8, /* word_count */
    14, /* size_count */
    40, /* name_bytes */
#ifdef GCKPT_SMALL
    0,
#else
    8,
#endif
    { 148, 296, 200, 100, 0, 0, 0, 0, 0, 0 },
    gckpti_plan_nodes,
#ifdef GCKPT_SMALL
    NULL,
#else
    gckpti_plan_info,
#endif
    gckpti_plan_sizes,
    gckpti_plan_params,
    gckpti_plan_ins,
#ifdef GCKPT_SMALL
    NULL,
#else
    gckpti_plan_live_bytes,
#endif
    gckpti_plan_operands,
    gckpti_plan_terms,
    NULL,
#ifdef GCKPT_SMALL
    NULL,
#else
    gckpti_plan_buffers,
#endif
    gckpti_plan_words.words,
    gckpti_plan_names,
};
/* Of the network of main.c: 4163146310 1489 */

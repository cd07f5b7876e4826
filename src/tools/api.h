/* ---- the frontier: the least cost for every budget ---- */
/* A plan of this cost fits in `bytes`; the search found no cheaper one. */
typedef struct {
    size_t bytes;
    uint64_t cost;              /* gckpt_plan_info.cost */
    double recompute, overhead; /* gckpt_plan_info.recompute, gckpt_plan_info.overhead */
    uint64_t proven_cost;       /* gckpt_plan_info.proven_cost within these bytes */
} gckpt_point;
/* What a frontier has. complete is 1 if every point was searched exhaustively, 0 if a limit of
 * effort was reached, which is normal for graphs of more than some tens of ops. */
typedef struct {
    int points;
    int complete;
    size_t proven_bytes; /* no schedule needs fewer bytes */
} gckpt_frontier_info;
#ifndef GCKPT_NO_FRONTIER
/* Finds the points of GCKPT_OPTIMAL for all budgets. Freeze and quantise parameters before. desc is
 * as for gckpt_plan_new; mode and budget are ignored, and its memory must not be a block. Graph and
 * desc.backend must outlive the frontier; one thread at a time may use it. Returns NULL after an
 * error, which the graph then has. */
GCKPT_API gckpt_frontier *gckpt_frontier_new(gckpt_graph *graph, const gckpt_term *terms, int count,
                                             const gckpt_plan_desc *desc);
GCKPT_API void gckpt_frontier_free(gckpt_frontier *frontier); /* its plans remain valid */
/* Returns the number of points, whether all were searched exhaustively, and the proven bytes. */
GCKPT_API gckpt_frontier_info gckpt_frontier_describe(const gckpt_frontier *frontier);
/* Returns point i. Bytes ascend, cost descends; the last point recomputes nothing. */
GCKPT_API gckpt_result gckpt_frontier_get(const gckpt_frontier *frontier, int i, gckpt_point *out);
/* Return, for a budget (0 sets no limit), the index of its point (-1 if the budget is too small),
 * and that point's plan. gckpt_plan_new may find a plan that costs less: by at most 0.1 % of a step
 * up to 100 ops. Above, points are 1/40 of the bytes above the least apart, or more. */
GCKPT_API int gckpt_frontier_find(const gckpt_frontier *frontier, size_t budget);
GCKPT_API gckpt_plan *gckpt_frontier_plan(const gckpt_frontier *frontier, size_t budget);
#endif /* GCKPT_NO_FRONTIER */

/* ---- debug modes ---- */
/* Flags of gckpt_exec_desc.debug: each mode costs time, none changes the result. */
#define GCKPT_DEBUG_POISON    1u /* fills buffers with NaN after their last use */
#define GCKPT_DEBUG_RECOMPUTE 2u /* compares hashes of recomputed values; E_DATA names the op */
#define GCKPT_DEBUG_MEASURE   4u /* measures the arena bytes that steps touch */
#define GCKPT_DEBUG_PLAIN     8u /* plain kernels only */
/* A step returns E_DATA at the first instruction that makes a NaN or an infinity; the error text
 * names op, tensor, element and row of the batch. If an infinity was fed, or is a constant or
 * frozen, as in a mask, only a NaN is an error. Before it begins, a step refuses NaN in a feed,
 * parameter or constant, and infinities in trained parameters, which the last update may have
 * made; before the first update, both in gradients (not if the plan updates in the backward).
 * Then nothing is changed. */
#define GCKPT_DEBUG_FINITE 16u
#ifndef GCKPT_NO_DEBUG
/* With GCKPT_DEBUG_MEASURE, after two steps, returns the bytes of values that stay between steps +
 * the highest arena byte touched + 1 (an op's workspace counts whole). */
GCKPT_API size_t gckpt_bytes_measured(const gckpt_exec *exec);
#endif

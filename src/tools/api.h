enum { GCKPT_IF_USEFUL = 2 }; /* value of update_in_backward: gckpt_fit chooses */
#ifndef GCKPT_NO_FIT
/* Builds the graph whose inputs have `rows` rows, fills terms (at most GCKPT_MAX_TERMS) and returns
 * their number, or a negative number to exclude this size. Called for each divisor of the batch. It
 * must create the same tensors and parameters each time, so that ids are the same. */
#define GCKPT_MAX_TERMS 16
typedef int (*gckpt_build_fn)(gckpt_graph *graph, int64_t rows, gckpt_term *terms, void *user);
/* Fills in the costs of a graph that gckpt_build_fn just built, e.g. by examples/tune.h. */
typedef gckpt_result (*gckpt_measure_fn)(gckpt_graph *graph, const gckpt_term *terms, int count,
                                         gckpt_cost *costs, int cost_count, void *user);
/* Chooses the micro-batch together with the plan: returns the plan with the least
 * gckpt_plan_info.step_cost, then fewest bytes, then most rows, among the plans of all micro-batch
 * sizes (and update rules, with GCKPT_IF_USEFUL) that fit desc.budget. measure NULL selects the
 * cost model, and so the same plan on every machine. A graph that mixes rows is planned with the
 * whole batch. desc is as for gckpt_plan_new, but without batch, fetch, schedule and costs, and
 * memory must not be a block. Graphs are temporary; parameters that they create stay in the store
 * if a plan is found. Returns NULL after an error, which the store then has; if the budget is too
 * small, the text names the least bytes, and the bytes for 1.5 times the least cost. */
GCKPT_API gckpt_plan *gckpt_fit(gckpt_store *store, gckpt_build_fn build, void *user, int64_t batch,
                                const gckpt_plan_desc *desc, gckpt_measure_fn measure);
#endif

/* ---- the frontier: the least cost for every budget ---- */
/* A plan of this cost fits in `bytes`; the search found no cheaper one. */
typedef struct {
    size_t bytes;
    uint64_t cost;              /* gckpt_plan_info.cost */
    double recompute, overhead; /* gckpt_plan_info.recompute, gckpt_plan_info.overhead */
    uint64_t proven_cost;       /* gckpt_plan_info.proven_cost within these bytes */
} gckpt_point;
#ifndef GCKPT_NO_FRONTIER
/* Finds the points of GCKPT_OPTIMAL for all budgets. Freeze and quantise parameters before. desc is
 * as for gckpt_plan_new; mode and budget are ignored, and its memory must not be a block. Graph and
 * desc.backend must outlive the frontier; one thread at a time may use it. Returns NULL after an
 * error, which the graph then has. */
GCKPT_API gckpt_frontier *gckpt_frontier_new(gckpt_graph *graph, const gckpt_term *terms, int count,
                                             const gckpt_plan_desc *desc);
GCKPT_API void gckpt_frontier_free(gckpt_frontier *frontier); /* its plans remain valid */
/* Number of points; point i. Bytes ascend, cost descends; the last point recomputes nothing. */
GCKPT_API int gckpt_frontier_points(const gckpt_frontier *frontier);
GCKPT_API gckpt_result gckpt_frontier_get(const gckpt_frontier *frontier, int i, gckpt_point *out);
/* Returns 1 if every point was searched exhaustively, 0 if a limit of effort was reached, which is
 * normal for graphs of more than some tens of ops; proven_cost says how good a point is. */
GCKPT_API int gckpt_frontier_complete(const gckpt_frontier *frontier);
GCKPT_API size_t gckpt_frontier_proven_bytes(const gckpt_frontier *frontier);
/* Return, for a budget (0 sets no limit), the index of its point (-1 if the budget is too small),
 * and that point's plan. gckpt_plan_new with GCKPT_OPTIMAL finds at most 0.1 % of a step less. */
GCKPT_API int gckpt_frontier_find(const gckpt_frontier *frontier, size_t budget);
GCKPT_API gckpt_plan *gckpt_frontier_plan(const gckpt_frontier *frontier, size_t budget);
#endif /* GCKPT_NO_FRONTIER */

#ifndef GCKPT_NO_DEBUG
/* With GCKPT_DEBUG_MEASURE, after two steps, returns the bytes of store, caches and copies + the
 * highest arena byte touched + 1 (an op's workspace counts whole). */
GCKPT_API size_t gckpt_bytes_measured(const gckpt_exec *exec);
#endif

#pragma once
#include "base/base.h"
#include "plan/plan.h"

/* =================================================================================================
 * >>search: proven bounds of any schedule; the schedule of least cost for every budget
 *
 * gckpti_bound holds a model's proven bounds: cost as a function of bytes, by minimal cuts
 * (search/bound). gckpti_search holds a grid of memory levels with a schedule below each
 * (search/search describes the method). gckpti_search_open opens a search; gckpti_find_best solves
 * it for a budget. Terms, in addition to those of plan:
 *   point      a program point at a backward, at which the bytes live in the arena are counted
 *   cut        at a point: which results are kept, recomputed after it, or offloaded and reloaded
 *   level      a byte limit, and the best schedule found under it
 *   candidate  a stored schedule: of a level, an initial schedule, or the winner
 *   initial    a schedule built without regard to a limit, from which levels are solved
 * ============================================================================================== */

#ifndef GCKPT_NO_SEARCH
/* ---- search/bound.c ---- */
enum { GCKPTI_POINTS = 8 }; /* maximum number of points of a model */

/* Cut tables of a point: the hull; hulls with copies at 1/2, 1/4 and none of their cost, which
 * prove nothing; all cuts. */
enum { GCKPTI_HULL, GCKPTI_CHEAP_HULL, GCKPTI_FULL = GCKPTI_CHEAP_HULL + 3, GCKPTI_TABLES };

/* Per node and point: bit masks of the values that only recomputation reads (input_bits: its
 * inputs, own_bit: its output), and flags GCKPTI_READ, .. */
typedef struct {
    unsigned char input_bits, own_bit;
    unsigned char flags;
} gckpti_cut_node;

/* Bytes kept, cost of recomputations, and the cut that this one extends (in `parent` bit 31:
 * the node between them is recomputed; bit 30: at least some of its results are offloaded). */
typedef struct {
    int64_t bytes;
    uint64_t cost;
    uint32_t parent;
} gckpti_cut;

typedef struct {
    gckpti_cut *cut; /* by increasing bytes and decreasing cost */
    int n;
} gckpti_cut_list;

/* The cuts of a point (none if there are too many), and the parent of each cut of each node's list:
 * that of cut k after node i is parent[first[i] + k]. */
typedef struct {
    gckpti_cut_list last;
    uint32_t *parent;
    size_t *first;
} gckpti_cut_table;

typedef struct {
    int backward_index; /* index of the backward at the point */
    int64_t base;       /* bytes of gradients and workspace at the point */
    gckpti_cut_node *node;
    gckpti_cut_table table[GCKPTI_TABLES]; /* each computed on demand (gckpti_cuts) */
    unsigned computed;                     /* bit set of the tables that exist */
} gckpti_cut_point;

typedef struct gckpti_bound {
    const gckpti_planner *p;
    gckpti_scratch *scratch;
    gckpti_cut_point point[GCKPTI_POINTS];
    size_t capacity;        /* of each pool, in cuts */
    int points, hulls_only; /* hulls_only: lists keep only the cuts of their hulls */
    int copy_cost;          /* of offload and reload (gckpti_scaled_cost) */
    int shift;              /* copies cost 2^-shift of copy_cost */
    int64_t min_bytes;      /* least arena bytes of any schedule */
    int64_t padding;        /* how far live bytes, which are rounded up, may exceed an arena */
    uint64_t base_cost;     /* of a step that recomputes nothing */
    gckpti_cut *pool[3];    /* lists before a node, after it, and of a merge */
    unsigned char *action;  /* by node, of the cut marked last: GCKPTI_CUT_RECOMPUTE, .. or 0 */
    int64_t examined;       /* cuts examined */
} gckpti_bound;

/* Returns the least recomputation cost of any schedule within `limit` live bytes, or UINT64_MAX if
 * there is none, by the hulls and all cuts of the deciding point, whose index is *decider. */
GCKPTI_FN uint64_t gckpti_bound_cost(gckpti_bound *b, int64_t limit, int *decider);

/* Returns the least time above base_cost of any schedule within `limit`, by the bounds of all copy
 * costs; if `all` is 0, by hulls only. Without overlap, the same as gckpti_bound_cost. */
GCKPTI_FN uint64_t gckpti_bound_time(const gckpti_planner *p, int64_t limit, int all);

/* Opens the bounds of a planner and of the variants after it, unless they are open. */
GCKPTI_FN void gckpti_open_bounds(gckpti_planner *p);

/* Returns the least cost of a micro-batch of any schedule within `arena` bytes, or UINT64_MAX if
 * there is none. Bounds must be open. Uses hulls only for modes that do not search. */
GCKPTI_FN uint64_t gckpti_proven_cost(const gckpti_planner *p, size_t arena);

/* Returns the least arena bytes of any schedule of the model. */
GCKPTI_FN size_t gckpti_proven_bytes(const gckpti_planner *p);

/* ---- search/search.c ---- */
/* A stored schedule: the best found under the limit of a level, an initial one, or the winner. */
typedef struct gckpti_candidate {
    gckpti_span *span; /* its entries */
    int spans, length;
    int64_t limit, peak;
    uint64_t overhead, bound;               /* bound: least overhead proven for the limit */
    size_t arena;                           /* 0 until it is placed */
    uint64_t recompute_cost, transfer_cost; /* of recomputation; of copies */
    uint64_t time;                          /* once placed: time of a step above base_cost */
    int state, dominated;                   /* dominated: an earlier initial is as good in both */
    int dense;                              /* an initial close to others, considered as it is */
    struct gckpti_candidate *tight;  /* a level whose arena exceeds its limit: a smaller schedule */
    struct gckpti_candidate *hidden; /* the same with overlapped copies (gckpti_hide_copies) */
} gckpti_candidate;

/* The result of placing a cut's schedule; all 0 before that. */
typedef struct {
    int64_t peak;
    size_t arena;
} gckpti_tried;

/* A change of the schedule. Insertion: closes the live-range hole between uses at `from` and `to`,
 * by recomputing the node with its closure before `to`; `start` is the forward that defines the
 * value. Removal: deletes the recomputation at `to`; `start` is the previous definition. */
typedef struct {
    uint64_t key; /* the least is tried first */
    int node, start, from, to;
    int first, count;     /* in s->pool: the closure, or the inputs freed by a removal */
    int truncated;        /* GCKPTI_MAX_CLOSURE was reached */
    uint64_t cost;        /* of the closure */
    int64_t penalty;      /* excess added by keeping its inputs */
    int64_t value, saved; /* bytes freed after `from` and `start`, or needed */
} gckpti_move;

/* Excess not yet removed by the chosen moves: in total, and per chunk of 2^shift positions. */
typedef struct {
    int shift;
    int64_t *chunk, total;
} gckpti_leftover;

/* Bytes left below a limit, by position: a tree of minima with `width` leaves. */
typedef struct {
    int64_t *min;
    int width;
} gckpti_slack_tree;

typedef struct {
    gckpti_planner *p;
    gckpti_scratch scratch;
    gckpti_bound *bound;
    int64_t grain;   /* common divisor of all sizes */
    int late;        /* some forwards run late: a cut may cost less than it says */
    int tiny;        /* a small graph: every schedule found counts for every budget */
    uint64_t margin; /* this far above the bound is near-optimal */
    /* a forward pass over the schedule `now` (gckpti_begin_scan, gckpti_scan_entry) */
    gckpti_schedule now, next;
    gckpti_node_state *state; /* the planner's */
    int first_backward;       /* position of the first backward */
    int firsts_end;           /* position after the last first run before it */
    int64_t *excess_sum;      /* excess bytes before a position, summed */
    int *excess_count;        /* positions with excess before a position */
    /* moves of gckpti_reduce_peak or gckpti_remove_recomputes */
    gckpti_move *move, *sorted;
    int moves;
    int *pool, pooled;    /* closures, or freed inputs, of moves */
    int *chosen;          /* indices of moves */
    gckpti_keyed *key;    /* for sorting */
    gckpti_keyed *insert; /* key: position << 32 | node */
    int64_t stamp;        /* number of closures so far */
    int excluded;         /* a node whose holes stay open, or -1 */
    gckpti_leftover left;
    gckpti_slack_tree slack;
    uint64_t *saving; /* by position of a recomputation: cost saved by its removal */
    gckpti_candidate *level, *initial, store_all; /* levels by decreasing limit */
    int levels, initials;
    unsigned char *lower_cut, *upper_cut; /* by node: recomputed by the two cuts around a limit */
    /* effort so far (gckpti_is_exhausted) */
    int64_t evaluated, examined;
    int64_t started; /* effort when the current attempt began, or -1 */
    int incomplete;  /* a truncated closure was used, or the search ended early */
    /* the choice for a budget */
    gckpti_candidate winner, trial;
    gckpti_tried *tried[GCKPTI_POINTS]; /* by cut of a point */
    unsigned decider_bits;              /* bit set of the points that decide for some level */
    gckpt_result result;                /* of placing: GCKPT_OK, or the first error */
    int minimise_bytes; /* compare candidates by bytes only (gckpti_find_min_budget) */
} gckpti_search;

/* ---- search/choose.c ---- */
/* Finds the schedule of least cost in an arena of at most `most` bytes: s->winner, whose length is
 * 0 if there is none (also GCKPT_OK). p->lowered may be another's. The candidates are the same for
 * all budgets: cuts, levels and initial schedules. Skips those proven to cost no less than the best
 * so far. */
GCKPTI_FN gckpt_result gckpti_find_best(gckpti_search *s, size_t most);

/* Stores in *least the least budget for which gckpti_find_best finds a schedule, s->winner, if that
 * is below `upper`, else SIZE_MAX. */
GCKPTI_FN gckpt_result gckpti_find_min_budget(gckpti_search *s, size_t upper, size_t *least);

/* ---- search/open.c ---- */
/* Opens a search of a model (gckpti_build_model) with one of its strategies: sizes, the bound, and
 * the levels, of which the first is store-all. Lowers store-all (p->store_all_peak, p->lowered) if
 * needed. The caller always frees s->scratch. Returns GCKPT_E_MEMORY without p->failed if the bytes
 * are too many to search below. */
GCKPTI_FN gckpt_result gckpti_search_open(gckpti_search *s, gckpti_planner *p, int strategy);

/* Returns the number of strategies with which a model is searched. */
GCKPTI_FN int gckpti_count_strategies(const gckpti_planner *p);

/* Searches for the plan of least cost in an arena of most_bytes: p->best, placed. If there is none,
 * *least is the least arena found. */
GCKPTI_FN gckpt_result gckpti_plan_optimal(gckpti_planner *p, size_t most_bytes, size_t *least);
enum { GCKPTI_HAS_SEARCH = 1 };
#else
/* Stubs without the search: AUTO is store-all, which also gives the proven cost. */
enum { GCKPTI_HAS_SEARCH = 0 };
static inline void gckpti_open_bounds(gckpti_planner *p) { (void)p; }

static inline uint64_t gckpti_proven_cost(const gckpti_planner *p, size_t arena)
{
    (void)arena;
    return p->least_cost;
}

static inline size_t gckpti_proven_bytes(const gckpti_planner *p)
{
    (void)p;
    return 0;
}

static inline gckpt_result gckpti_plan_optimal(gckpti_planner *p, size_t most_bytes, size_t *least)
{
    (void)p, (void)most_bytes, (void)least;
    return GCKPT_E_ARG; /* unreachable: gckpti_check_request refuses the mode */
}
#endif

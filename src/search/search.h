#pragma once
#include "base/base.h"
#include "plan/plan.h"
#ifndef GCKPT_SMALL

/* =================================================================================================
 * >>search: proven bounds of any schedule; the schedule of least cost for every budget
 *
 * gckpti_bound holds a model's proven bounds: cost as a function of bytes, by minimal cuts
 * (search/bound). gckpti_search holds a grid of memory levels with a schedule below each
 * (search/search describes the method). gckpti_search_open opens a search; gckpti_find_best solves
 * it for a budget. Terms, in addition to those of plan:
 *   point      a program point at a backward, at which the bytes live in the arena are counted
 *   cut        at a point: which results are kept, recomputed after it, or copied out and back
 *   level      a byte limit, and the best schedule found under it
 *   candidate  a stored schedule: of a level, an initial schedule, or the winner
 *   initial    a schedule built without regard to a limit, from which levels are solved
 * ============================================================================================== */

#ifndef GCKPT_NO_SEARCH
/* ---- search/bound.c ---- */
enum { GCKPTI_POINTS = 8 }; /* most points of a model */

/* Cut tables of a point: the hull, and hulls with copies at 1/2, 1/4 and none of their cost, which
 * prove nothing. */
enum { GCKPTI_HULL, GCKPTI_TABLES = 4 };

/* Flags of a node at a point. READ: a backward from the point on, or a fetch, reads the node's
 * value. LIVE: the backward at the point does. .._SAVED: that holds for the node's `saved`. RAN:
 * the node has run before the point. RUNS_ONCE: it has run, and may not run again. */
enum {
    GCKPTI_READ = 1,
    GCKPTI_LIVE = 2,
    GCKPTI_READ_SAVED = 4,
    GCKPTI_LIVE_SAVED = 8,
    GCKPTI_RAN = 16,
    GCKPTI_RUNS_ONCE = 32
};

/* A cut's action on a node: recompute it (a drop count, gckpti_emit_backward), copy some or all of
 * its results out and back, or (0) keep them. */
enum { GCKPTI_CUT_RECOMPUTE = 1, GCKPTI_CUT_COPY = 254, GCKPTI_CUT_NEVER_KEEP };

/* State of a node at a point: bit masks of values that only recomputes read (input_bits: its
 * inputs, own_bit: its output), and flags GCKPTI_READ, .. */
typedef struct {
    unsigned char input_bits, own_bit;
    unsigned char flags;
} gckpti_cut_node;

/* A cut: bytes kept, cost of recomputes, and the cut that it extends by a node (`parent`; bit 31:
 * the node is recomputed; bit 30: at least some of its results are copied out and back). */
typedef struct {
    int64_t bytes;
    uint64_t cost;
    uint32_t parent;
} gckpti_cut;

typedef struct {
    gckpti_cut *cut; /* sorted by increasing bytes and decreasing cost */
    int n, all;      /* all: cuts between corners of the hull are there too */
} gckpti_cut_list;

/* The cuts of a point (`last`; empty if there are too many), and for each node's list the cut that
 * each cut extends: for cut k after node i, parent[first[i] + k]. */
typedef struct {
    gckpti_cut_list last;
    uint32_t *parent;
    size_t *first;
} gckpti_cut_table;

typedef struct {
    int backward_index; /* index of the backward at the point */
    int64_t base;       /* bytes of gradients and workspace at the point */
    gckpti_cut_node *node;
    gckpti_cut_table table[GCKPTI_TABLES]; /* gckpti_cuts computes each on demand */
} gckpti_cut_point;

typedef struct gckpti_bound {
    const gckpti_planner *p;
    gckpti_scratch *scratch;
    gckpti_cut_point point[GCKPTI_POINTS];
    size_t capacity; /* cuts that each of `memory` has space for */
    int points;
    int all;               /* lists get all cuts, not only those of the hull */
    int copy_cost;         /* weight of copies (gckpti_scaled_cost) */
    int shift;             /* copies count 2^-shift of that weight */
    int64_t min_bytes;     /* least arena bytes of any schedule */
    int64_t padding;       /* how much live bytes, rounded up, may exceed the arena */
    gckpti_cut *memory[3]; /* memory of lists before a node, after it, and of a merge */
} gckpti_bound;

/* Returns a lower bound of the recompute cost of schedules within `limit` live bytes, or UINT64_MAX
 * if none fits. *decider is the index of the point that gives it. */
GCKPTI_FN uint64_t gckpti_bound_cost(const gckpti_bound *b, int64_t limit, int *decider);

/* Returns a lower bound of the time above p->base_cost of schedules within `limit` live bytes: the
 * best bound of all copy costs. Without overlap: gckpti_bound_cost. */
GCKPTI_FN uint64_t gckpti_bound_time(const gckpti_planner *p, int64_t limit);

/* Opens the bounds of a planner and of the variants after it, unless they are open. */
GCKPTI_FN void gckpti_open_bounds(gckpti_planner *p);

/* Returns a lower bound of a micro-batch's cost for schedules within `arena` bytes, or UINT64_MAX
 * if none fits. Bounds must be open. */
GCKPTI_FN uint64_t gckpti_proven_cost(const gckpti_planner *p, size_t arena);

/* Returns a lower bound of the arena bytes of any schedule of the model. */
GCKPTI_FN size_t gckpti_proven_bytes(const gckpti_planner *p);

/* ---- search/search.c ---- */
/* The most nodes of a graph for which the search does this: */
enum {
    GCKPTI_SMALL_N = 100,  /* tries most initials; lets each node be a stage */
    GCKPTI_MEDIUM_N = 400, /* builds memory-poor initials (lists of quadratic length) */
    GCKPTI_LARGE_N = 1000  /* uses fine level grids */
};

/* A stored schedule: the best found under the limit of a level, an initial one, or the winner. */
typedef struct gckpti_candidate {
    int *entry, length;
    int64_t limit, peak;                    /* limit: of the level; of an initial its peak */
    uint64_t overhead, bound;               /* bound: least overhead proven for the limit */
    size_t arena, enough;                   /* once placed; placing stops at `enough` */
    uint64_t recompute_cost, transfer_cost; /* cost of recomputes; of copies */
    uint64_t time;                          /* once placed: time of a step above base_cost */
    int solved;                             /* of a level: gckpti_solve_level has run */
    int overlaps;                           /* its copies overlap computation */
    struct gckpti_candidate *overlapped;    /* this schedule with such copies, once it is known */
} gckpti_candidate;

/* A change of the schedule at position `to`: entries of s->member that are inserted there. To close
 * the hole of a node before its use at `to`: its closure; `start` is the forward that defines the
 * value. To remove the recompute at `to`: GCKPTI_REMOVE, after a copy back or alone;
 * `start` is the previous definition. */
typedef struct {
    uint64_t key; /* moves with a small key are tried first */
    int node, start, to;
    int first, count;           /* range of its entries in s->member */
    int64_t value, saved;       /* bytes that it frees or needs before `to` .. */
    int value_from, saved_from; /* .. and after these positions, not before `start` */
} gckpti_move;

typedef struct {
    gckpti_planner *p;
    gckpti_scratch scratch;
    gckpti_bound *bound;
    gckpti_schedule now, next; /* the current schedule; the current one with some moves */
    /* moves */
    int64_t *excess_sum; /* sum of the excess at all positions before one */
    int *excess_count;   /* number of positions with excess before one */
    int64_t *slack;      /* bytes left below the limit after the chosen moves, or -excess */
    gckpti_move *move;
    int moves;
    gckpti_keyed *order;  /* moves by key; memory for sorting */
    int *member, members; /* entries of moves */
    int *chosen;          /* indices of moves */
    gckpti_keyed *insert; /* key: position << 32 | node */
    int64_t stamp;        /* of the nodes of a closure, or of all moves chosen so far */
    int excluded;         /* a node whose holes stay open, or -1 */
    uint64_t *saving;     /* by position of a recompute: cost that its removal saves */
    gckpti_candidate *level, *initial; /* levels by decreasing limit */
    int levels, initials, starts; /* starts: number of initials that levels improve, the first */
    unsigned char *action;        /* by node: GCKPTI_CUT_.. */
    const gckpti_cut_table *cuts; /* the last cut that a level was solved from: its table, .. */
    int cut_index;                /* .. its index there .. */
    gckpti_candidate cut;         /* .. and its schedule */
    int64_t effort;               /* entries evaluated for the current level */
    int64_t started;              /* effort when the current attempt began */
    int incomplete;               /* a closure was truncated, or the search ended early */
    /* the choice for a budget */
    gckpti_candidate winner;
    gckpt_result result; /* first error of placing, or GCKPT_OK */
} gckpti_search;

/* Finds the schedule of least cost in an arena of at most `most` bytes: s->winner. It costs less
 * than `cost`, or as much in less than `arena` bytes; if there is none, returns GCKPT_OK with
 * s->winner.length 0, s->winner.arena `arena`. In the first call p->best is the winner's plan.
 * Candidates are the same for all budgets: levels and initial schedules. Skips those that are
 * proven no cheaper than the best so far. */
GCKPTI_FN gckpt_result gckpti_find_best(gckpti_search *s, size_t most, uint64_t cost, size_t arena);

/* Sets *least to the least budget for which gckpti_find_best finds a schedule, if it is lower. */
GCKPTI_FN gckpt_result gckpti_lower_min_budget(gckpti_search *s, size_t *least);

/* Opens a search of a model (gckpti_planner_open) with strategy number `strategy`: sizes, bound and
 * levels (the first is store-all). Lowers store-all (p->store_all_peak,
 * p->lowered) if needed. The caller always frees s->scratch. Returns GCKPT_E_MEMORY without
 * p->failed if the bytes are too many to search below. */
GCKPTI_FN gckpt_result gckpti_search_open(gckpti_search *s, gckpti_planner *p, int strategy);

/* Searches for the plan of least cost in an arena of most_bytes: p->best, placed. If `best` is not
 * NULL, only plans that beat it count. Sets *least to the plan's arena. Without a plan and without
 * `best`, lowers it to the smallest arena that was found, if that is lower. */
GCKPTI_FN gckpt_result gckpti_plan_optimal(gckpti_planner *p, size_t most_bytes,
                                           const gckpti_lowered *best, size_t *least);
#else
/* Stubs without the search: AUTO is store-all, which also gives the proven cost. */
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

static inline gckpt_result gckpti_plan_optimal(gckpti_planner *p, size_t most_bytes,
                                               const gckpti_lowered *best, size_t *least)
{
    (void)p, (void)most_bytes, (void)best, (void)least;
    return GCKPT_E_ARG; /* unreachable: gckpti_check_request refuses the mode */
}
#endif
#endif /* GCKPT_SMALL */

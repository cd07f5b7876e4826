#pragma once
#include "base/base.h"
#include "plan/plan.h"

/* =================================================================================================
 * >>search: what no schedule can do without; the least work for every budget
 *
 * gckpti_bound holds what is proven of a model (plan): work against bytes, by minimal cuts (bound).
 * gckpti_search holds a ladder of byte limits, and schedules below each (search/search tells how).
 * gckpti_search_open begins, gckpti_find_best answers a budget.
 *
 * Words, beside those of plan:
 *   instant  a backward at which it is counted what must lie in the arena
 *   cut      at an instant: which results lie there, which are made again behind it, or reloaded
 *   rung     a byte limit, and the best schedule that was found under it
 *   answer   a schedule that is kept: a rung's, a seed, the winner
 *   seed     a schedule that was made without regard to a limit
 * ============================================================================================== */

#ifndef GCKPT_NO_SEARCH
/* ---- search/bound.c ---- */
enum { GCKPTI_POINTS = 8 }; /* of a model, at the most */

/* Tables of an instant's cuts: those of the hull; of hulls with copies of 1/2, 1/4 of their work,
 * and as if they were free, which prove nothing; all. */
enum { GCKPTI_HULL, GCKPTI_CHEAP_HULL, GCKPTI_FULL = GCKPTI_CHEAP_HULL + 3, GCKPTI_TABLES };

/* What an instant knows of a unit: bits of values that only repeated forwards read, its inputs' and
 * its own; GCKPTI_READ, .. */
typedef struct {
    unsigned char input_bits, own_bit;
    unsigned char flags;
} gckpti_cut_node;

/* Bytes kept and work repeated; from: the cut it continues (bit 31: r of the unit between; bit 30:
 * it is offloaded, in part at least). */
typedef struct {
    int64_t bytes;
    uint64_t cost;
    uint32_t parent;
} gckpti_cut;

typedef struct {
    gckpti_cut *cut; /* by rising bytes and falling work */
    int n;
} gckpti_cut_list;

/* Some cuts of an instant (none: there are too many); and what each continues, of those behind each
 * unit, too: of cut k behind unit i from[first[i] + k]. */
typedef struct {
    gckpti_cut_list last;
    uint32_t *parent;
    size_t *first;
} gckpti_cut_table;

typedef struct {
    int backward_index; /* its backward */
    int64_t base;       /* bytes of them and of the workspace, then */
    gckpti_cut_node *node;
    gckpti_cut_table table[GCKPTI_TABLES]; /* found when asked for (gckpti_cuts) */
    unsigned computed;                     /* bits of those that were */
} gckpti_cut_point;

typedef struct gckpti_bound {
    const gckpti_planner *p;
    gckpti_scratch *scratch;
    gckpti_cut_point point[GCKPTI_POINTS];
    size_t capacity;        /* of a pool */
    int points, hulls_only; /* hulls: lists have their hulls' cuts; */
    int copy_cost;          /* of copies (gckpti_scaled_cost); */
    int shift;              /* and they count for 2^-cheap of that */
    int64_t min_bytes;      /* bytes that no schedule can do without */
    int64_t padding;        /* by which live sizes, rounded up, may exceed an arena */
    uint64_t base_cost;     /* of a step that computes nothing twice */
    gckpti_cut *pool[3];    /* cuts in front of a unit, behind it, and of a merge */
    unsigned char *
        action; /* of the cut that was asked for last: GCKPTI_CUT_RECOMPUTE, GCKPTI_CUT_OFFLOAD or 0 */
    int64_t examined; /* cuts looked at */
} gckpti_bound;

/* The work that no schedule within `limit` live bytes can do without repeating: by hulls, and by
 * all cuts of the instant that decides, *at; UINT64_MAX: there is no such schedule. */
GCKPTI_FN uint64_t gckpti_bound_cost(gckpti_bound *b, int64_t limit, int *decider);

/* The same of the time (gckpti_planner.beside; else the same) that no schedule can do without
 * above the work that repeats nothing: by the bounds of all prices. all: by all cuts, too. */
GCKPTI_FN uint64_t gckpti_bound_time(const gckpti_planner *p, int64_t limit, int all);

/* Opens the bounds of a planner's model and of its other variants', if nobody has. */
GCKPTI_FN void gckpti_open_bounds(gckpti_planner *p);

/* The work of a micro-batch that no schedule of a model within `arena` bytes can do without, where
 * bounds are open; UINT64_MAX: there is none. Modes that do not search are planned in little
 * memory, so their hulls will do. */
GCKPTI_FN uint64_t gckpti_proven_cost(const gckpti_planner *p, size_t arena);

/* The bytes of an arena that no schedule of the model can do without. */
GCKPTI_FN size_t gckpti_proven_bytes(const gckpti_planner *p);

/* ---- search/search.c ---- */
/* A schedule that is kept: the best found under a rung's limit, a seed, the winner. */
typedef struct gckpti_candidate {
    gckpti_span *span; /* so many, its items */
    int spans, length;
    int64_t limit, peak;
    uint64_t overhead, bound;    /* bound: proven for the limit */
    size_t arena;                /* 0 until it is laid out; then */
    uint64_t recompute_cost, transfer_cost; /* of what is computed again; of copies */
    uint64_t time;               /* where it is laid out: all of it, above what repeats nothing */
    int state, dominated;        /* of a rung; of a seed: another is as good in bytes and work; */
    int dense;                   /* or it lies near others, and is looked at as it is */
    struct gckpti_candidate *tight; /* of a rung whose arena exceeds its limit: one that may not */
    struct gckpti_candidate
        *hidden; /* the same with reloads ahead and holds (gckpti_hide_copies) */
} gckpti_candidate;

/* What was found of a cut's schedule; 0: nothing yet. */
typedef struct {
    int64_t peak;
    size_t arena;
} gckpti_tried;

/* A gap between two uses of a value, at `from` and `to`, to be closed by computing its unit again
 * before the second, with its closure; or the repeated forward at `to`, to be taken out. `start` is
 * the forward that the value is from; or the one before. */
typedef struct {
    uint64_t key; /* the least is tried first */
    int node, start, from, to;
    int first, count;   /* its closure: s->set[set..]. Or what goes with the repeated forward */
    int truncated;      /* the closure would have been larger */
    uint64_t cost;      /* of that */
    int64_t penalty;    /* excess that keeping its inputs adds */
    int64_t value, saved; /* bytes that go behind from and start, or that must fit */
} gckpti_move;

/* What several moves leave over of the excess: of 2^shift positions above the limit, a chunk; of
 * all. */
typedef struct {
    int shift;
    int64_t *chunk, total;
} gckpti_leftover;

/* Bytes left below a limit, by position: a tree of minima, so wide. */
typedef struct {
    int64_t *min;
    int width;
} gckpti_slack_tree;

typedef struct {
    gckpti_planner *p;
    gckpti_scratch scratch;
    gckpti_bound *bound;
    int64_t grain;   /* common divisor of all sizes */
    int late;        /* some forwards come late: a cut may then repeat less than it says */
    int tiny;        /* a small graph: whatever was found counts for every budget */
    uint64_t margin; /* so little above the bound is good enough */
    /* a pass over the present schedule (gckpti_begin_scan, gckpti_scan_entry) */
    gckpti_schedule now, next;
    gckpti_node_state *state; /* the planner's */
    int first_backward;  /* its position; */
    int firsts_end;      /* behind the last forward before it that is no repeated one */
    int64_t *excess_sum; /* bytes over the limit before a position */
    int *excess_count;   /* positions with excess before it */
    /* moves of squeeze or of polish */
    gckpti_move *move, *sorted;
    int moves;
    int *pool, pooled;    /* of moves: closures; or what goes too */
    int *chosen;          /* of them */
    gckpti_keyed *key;    /* to sort with */
    gckpti_keyed *insert; /* key: position << 32 | unit */
    int64_t stamp;        /* closures so far */
    int excluded;         /* a unit whose gaps stay open; -1: none */
    gckpti_leftover left;
    gckpti_slack_tree slack;
    uint64_t *saving; /* by position of a repeated forward: work that goes with it */
    /* the ladder */
    gckpti_candidate *level, *initial, store_all; /* rung: by falling limit; all: kept */
    int levels, initials;
    unsigned char *lower_cut, *upper_cut; /* what the two cuts around a limit compute again */
    /* how much was done: gckpti_is_exhausted */
    int64_t evaluated, examined; /* counted so far */
    int64_t started;             /* when one attempt of several began, or -1 */
    int incomplete;        /* a closure that was used was truncated, or the search ended early */
    /* the choice for a budget */
    gckpti_candidate winner, trial;
    gckpti_tried *tried[GCKPTI_POINTS];   /* by cut of an instant */
    unsigned decider_bits;                /* bits of instants that decide for some budget */
    gckpt_result result;                  /* of what was laid: GCKPT_OK, or the first error */
    int minimise_bytes; /* gckpti_find_min_budget: fewer bytes are better, whatever the work */
} gckpti_search;

/* ---- search/choose.c ---- */
/* Finds what has least work in an arena of `most` bytes: s->winner, whose length is 0 when there is
 * nothing (GCKPT_OK, too). p->draft need not be the winner's. What counts is the same for all
 * budgets: cuts, what a rung offers above the rung below, and seeds; looked at is only what is not
 * proven to have as much work as the best so far. */
GCKPTI_FN gckpt_result gckpti_find_best(gckpti_search *s, size_t most);

/* The least budget for which gckpti_find_best finds something, where that is below `enough`; SIZE_MAX:
 * it is not. s->winner is what it would find. */
GCKPTI_FN gckpt_result gckpti_find_min_budget(gckpti_search *s, size_t upper, size_t *least);

/* ---- search/open.c ---- */
/* Readies a search of a model (gckpti_build_model), in one of its ways:
 * sizes, the bound, the ladder, whose first rung is store-all; p->most and p->draft too, where
 * store-all was not drafted yet. The caller frees s->scratch, whatever the result; E_MEMORY and not
 * p->failed: too many bytes to search below. */
GCKPTI_FN gckpt_result gckpti_search_open(gckpti_search *s, gckpti_planner *p, int strategy);

/* In how many ways a model is to be searched. */
GCKPTI_FN int gckpti_count_strategies(const gckpti_planner *p);

/* Drafts what has least work in most_bytes of the arena, by a search: p->best, placed. Otherwise
 * *least is what the smallest needs. */
GCKPTI_FN gckpt_result gckpti_plan_optimal(gckpti_planner *p, size_t most_bytes, size_t *least);
enum { GCKPTI_HAS_SEARCH = 1 };
#else
enum {
    GCKPTI_HAS_SEARCH = 0
}; /* AUTO is store-all; nothing is proven but what every schedule has */
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
    return GCKPT_E_ARG; /* refused already: gckpti_check_request */
}
#endif

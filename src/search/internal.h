#pragma once
#include "search/search.h"
#include "base/base.h"

/* Declarations shared by the files of layer search (MANIFEST); some are in folders of features. */

#ifndef GCKPT_NO_SEARCH
/* ---- search/bound.c ---- */
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

/* A cut's action on a node: recompute it, offload some or all of its results, or (0) keep them. */
enum { GCKPTI_CUT_RECOMPUTE = 1, GCKPTI_CUT_OFFLOAD };

/* ---- search/reduce_peak.c ---- */
#define GCKPTI_DOUBLE_SCORE (UINT64_C(1) << 32) /* adding this to a score doubles it */

/* Kinds of moves: insert a closure; replace recomputes or reloads by m->entry, or remove them. */
enum { GCKPTI_MOVE_INSERT, GCKPTI_MOVE_REPLACE };

/* ---- search/levels.c ---- */
/* The most nodes of a graph for which the search does this: */
enum {
    GCKPTI_SMALL_N = 100,  /* perturbs levels; lets each node be a stage */
    GCKPTI_MEDIUM_N = 400, /* builds memory-poor initials (lists of quadratic length) */
    GCKPTI_LARGE_N = 1000  /* uses fine level grids */
};

/* ---- search/stages.c ---- */
enum { GCKPTI_MAX_STAGES = 257, GCKPTI_DROP_CHOICES = 4 }; /* most in a chain; per node */
/* Bytes of an option: kept DURING the rest of the chain's run; the most BEFORE and AFTER it. */
enum { GCKPTI_DURING, GCKPTI_BEFORE, GCKPTI_AFTER, GCKPTI_PHASES };
#define GCKPTI_REST          INT32_MAX /* in a stage's list: the rest of the chain runs here */
#define GCKPTI_INFINITE_COST (UINT64_C(1) << 62) /* more than any cost */
/* A way to run a stage. Bytes count its own values, and gradients above those that are live. */
typedef struct {
    int64_t bytes[GCKPTI_PHASES];
    int64_t steps[GCKPTI_PHASES]; /* `bytes`, in memory steps of the current table */
    uint64_t cost;
    int drop, expanded; /* index of its drop counts in c->drop; if its neighbours were tried */
} gckpti_stage_option;

typedef struct {
    int first, end, backward, backward_end; /* ranges of nodes and of backward indices */
    uint64_t hash;                          /* hash of its nodes and outputs */
    int owner;                              /* first stage with equal hash */
    int option, options;                    /* first option and number of options, of the owner */
    int64_t base;                           /* bytes of gradients live when its backwards begin */
    int64_t forward_peak; /* most bytes inside it when it runs forward keeping only its outputs */
    uint64_t forward_cost, min_cost; /* cost of that forward; of the cheapest option */
} gckpti_stage;

typedef struct {
    gckpti_search *s;
    gckpti_scratch scratch;
    int *last_reader; /* by node: last node whose forward or backward reads its value */
    int64_t *livein;  /* by node: bytes of earlier values that it or later nodes read */
    gckpti_stage stage[GCKPTI_MAX_STAGES + 1];
    int n, borders;    /* number of stages; number of possible borders */
    int64_t *crossing; /* [a * (n + 1) + k]: bytes that stages a to k - 1 produce and k, .. read */
    gckpti_stage_option *option;
    int options, drops;
    unsigned char *drop, *trial;     /* by node of the stage: drop counts of options; of a trial */
    unsigned char *present, *needed; /* by node: its results are live; backwards read its results */
    int *runs;                       /* by node: forwards so far */
    int *entry, length, capacity;    /* a stage's list of entries */
    int *row, rows;                  /* [a * (n + 1) + b - a]: the table row of stages a to b */
    int *need;                       /* by row: fewest memory steps that suffice */
    uint64_t *cost;                  /* [row * (steps + 1) + m], the least cost in m steps */
    int steps;
    int64_t step;
} gckpti_chain;

/* Where stages may begin: between the user's outermost segments (SEGMENTS); where few bytes cross,
 * and fewer than at the node before (NARROW); between any two nodes (NODES). */
enum { GCKPTI_AT_SEGMENTS, GCKPTI_AT_NARROW, GCKPTI_AT_NODES, GCKPTI_BORDERS };

/* ---- offload/hide.c ---- */
#ifndef GCKPT_NO_OFFLOAD
/* Makes a candidate's copies overlap computation, in candidate->hidden. */
GCKPTI_FN void gckpti_hide_copies(gckpti_search *s, gckpti_candidate *candidate);
#else
#define gckpti_hide_copies(s, candidate) ((void)0)
#endif

#ifdef GCKPTI_SEPARATE_TU
/* Prototypes for files compiled separately; comments are at the definitions. */

/* search/bound.c */
GCKPTI_FN const gckpti_cut_table *gckpti_cuts(gckpti_bound *b, gckpti_cut_point *point, int which);
GCKPTI_FN int gckpti_cut_within(const gckpti_cut_list *v, int64_t space);
GCKPTI_FN void gckpti_mark_cut(const gckpti_bound *b, const gckpti_cut_table *table, int cut,
                               unsigned char *action);
GCKPTI_FN uint64_t gckpti_hull_cost(const gckpti_cut_list *hull, int64_t space);
GCKPTI_FN uint64_t gckpti_hulls_cost(const gckpti_bound *b, int64_t limit, int *decider);
GCKPTI_FN void gckpti_bound_open(gckpti_bound *b, const gckpti_planner *p, int copy_cost,
                                 gckpti_scratch *scratch);
/* search/search.c */
GCKPTI_FN int64_t gckpti_size_grain(const gckpti_planner *p);
GCKPTI_FN int gckpti_should_stop(gckpti_search *s, int64_t first, int64_t now);
GCKPTI_FN int gckpti_is_exhausted(gckpti_search *s);
GCKPTI_FN void gckpti_evaluate(gckpti_search *s, gckpti_schedule *schedule);
GCKPTI_FN int64_t gckpti_excess(const gckpti_schedule *schedule, int64_t limit);
GCKPTI_FN void gckpti_accept_next(gckpti_search *s);
GCKPTI_FN void gckpti_scan_entry(gckpti_search *s, int x);
GCKPTI_FN int gckpti_begin_scan(gckpti_search *s, int64_t limit);
GCKPTI_FN int gckpti_must_recompute(const gckpti_search *s, int node, int x);
GCKPTI_FN int gckpti_take_built(gckpti_search *s);
GCKPTI_FN void gckpti_reapply_policy(gckpti_search *s);
GCKPTI_FN void gckpti_candidate_store(gckpti_search *s, gckpti_candidate *candidate,
                                      const gckpti_schedule *schedule);
GCKPTI_FN int gckpti_candidate_load(gckpti_search *s, const gckpti_candidate *candidate);
GCKPTI_FN gckpti_candidate *gckpti_candidate_new(gckpti_search *s, gckpti_candidate **list,
                                                 int *count);
GCKPTI_FN void gckpti_candidate_update(gckpti_search *s, gckpti_candidate *candidate);
GCKPTI_FN int gckpti_is_proven(const gckpti_search *s, const gckpti_candidate *candidate);
GCKPTI_FN void gckpti_add_initial(gckpti_search *s);
GCKPTI_FN void gckpti_add_built(gckpti_search *s);
/* search/reduce_peak.c */
GCKPTI_FN uint64_t gckpti_score(uint64_t cost, int64_t gain);
GCKPTI_FN void gckpti_add_move(gckpti_search *s, const gckpti_move *m);
GCKPTI_FN void gckpti_sort_moves(gckpti_search *s);
GCKPTI_FN void gckpti_apply_move(gckpti_search *s, int kind, int move);
GCKPTI_FN int gckpti_apply_moves(gckpti_search *s, int kind, int64_t limit, int n);
GCKPTI_FN void gckpti_find_holes(gckpti_search *s, int64_t limit);
GCKPTI_FN int gckpti_reduce_peak(gckpti_search *s, int64_t limit);
/* search/remove_recomputes.c */
GCKPTI_FN void gckpti_find_recomputes(gckpti_search *s, int64_t limit);
GCKPTI_FN void gckpti_remove_recomputes(gckpti_search *s, int64_t limit);
/* search/stages.c */
GCKPTI_FN int gckpti_find_borders(gckpti_chain *c);
GCKPTI_FN void gckpti_find_stages(gckpti_chain *c, int kind, int most);
GCKPTI_FN void gckpti_compare_stages(gckpti_chain *c);
GCKPTI_FN int gckpti_list_stage(gckpti_chain *c, const gckpti_stage *q, const unsigned char *drop);
GCKPTI_FN void gckpti_find_options(gckpti_chain *c, gckpti_stage *q, int64_t effort);
/* search/chain.c */
GCKPTI_FN int gckpti_add_chain_initials(gckpti_search *s, int kind, int64_t most);
/* offload/search.c */
GCKPTI_FN uint64_t gckpti_round_trip_cost(const gckpti_search *s, int64_t bytes);
GCKPTI_FN uint64_t gckpti_copy_cost(const gckpti_search *s, int node, int64_t bytes);
GCKPTI_FN void gckpti_begin_strategy(gckpti_planner *p, int strategy);
/* search/levels.c */
GCKPTI_FN int64_t gckpti_try_actions(gckpti_search *s);
GCKPTI_FN void gckpti_find_initials(gckpti_search *s);
GCKPTI_FN void gckpti_build_levels(gckpti_search *s, int64_t most);
GCKPTI_FN void gckpti_solve_level(gckpti_search *s, int k);
/* search/choose.c */
GCKPTI_FN gckpt_result gckpti_place_candidate(gckpti_search *s, gckpti_candidate *candidate);
#endif
#endif

#pragma once
#include "search/search.h"
#include "base/base.h"

/* What the files of search share; no other folder uses it. */

#ifndef GCKPT_NO_SEARCH
/* ---- search/bound.c ---- */
/* Flags of gckpti_cut_unit: is its value read from there on, by that backward itself; its
 * aux; has it run before; only once. */
enum {
    GCKPTI_READ = 1,
    GCKPTI_HELD = 2,
    GCKPTI_READ_AUX = 4,
    GCKPTI_HELD_AUX = 8,
    GCKPTI_RAN = 16,
    GCKPTI_STAYS = 32
};

/* What a cut does with a unit's results: computes them again; offloads some or all. 0: keeps. */
enum { GCKPTI_AGAIN = 1, GCKPTI_FAR };

enum { GCKPTI_SLANT = 14 }; /* in lists of all cuts late units cost up to 2^-14 more, to be kept */

/* ---- search/squeeze.c ---- */
#define GCKPTI_TWICE (UINT64_C(1) << 32) /* added to a score, it doubles it */

/* Work of copying so many bytes there and back, at the search's price. */
static inline uint64_t gckpti_copies_work(const gckpti_search *s, int64_t bytes)
{
    return gckpti_priced(s->p->price, 2 * gckpti_copy_work(s->p->desc->offload_cost, bytes));
}

/* What moves do: gaps are closed; repeated forwards and reloads go; or they become reloads. */
enum { GCKPTI_CLOSE, GCKPTI_TAKE_OUT, GCKPTI_TO_RELOAD };

/* ---- search/ladder.c ---- */
enum { GCKPTI_NEW, GCKPTI_BEGUN, GCKPTI_DONE }; /* gckpti_answer.state of a rung */

enum {
    GCKPTI_LITTLE = 64, /* most units for which all that was found counts for every budget; */
    GCKPTI_SMALL = 100, /* for which rungs are shaken, and each is a stage, too; */
    GCKPTI_POOR = 400,  /* for memory-poor (a quadratic list); */
    GCKPTI_MANY = 1000  /* for fine ladders and many seeds of the chain */
};

/* ---- search/stages.c ---- */
enum { GCKPTI_STAGES = 257, GCKPTI_LEVELS = 4 }; /* of a chain; of a unit in one: at the most */
/* Bytes of an option: while the rest of the chain runs; at most, before that and behind it. */
enum { GCKPTI_KEPT, GCKPTI_BEFORE, GCKPTI_BEHIND, GCKPTI_FIGURES };
#define GCKPTI_REST  INT32_MAX           /* in a stage's list: where the rest of the chain runs */
#define GCKPTI_NEVER (UINT64_C(1) << 62) /* more than any work */
/* One way to run a stage. Bytes are its own, and gradients' above those that wait. */
typedef struct {
    int64_t bytes[GCKPTI_FIGURES];
    int64_t steps[GCKPTI_FIGURES]; /* the same in steps of the present table */
    uint64_t cost;
    int level, flipped; /* where its levels begin; whether others were made of it */
    int dropped;        /* in steps another is as good */
} gckpti_option;

typedef struct {
    int first, end, back, back_end; /* units; nth of their backwards */
    uint64_t inside, all;           /* hashes: of what it is inside; and of what it sends on */
    int owner, kind;                /* the first stage that is the same inside; in all */
    int option, options;            /* of the owner */
    int64_t waits;                  /* bytes of gradients that wait when its backwards begin */
    int64_t pass;         /* most bytes of its own while it runs forward and keeps what leaves it */
    uint64_t cost, least; /* work of that; of its cheapest option */
} gckpti_stage;

typedef struct {
    gckpti_search *s;
    gckpti_scratch scratch;
    int *last_either; /* by unit: the last of the body that reads its value, in either direction */
    int64_t *enters;  /* bytes of values from before a unit that it or later ones read */
    gckpti_stage stage[GCKPTI_STAGES + 1];
    int n, borders;    /* stages; borders that there were */
    int64_t *crossing; /* [a * (n + 1) + k]: bytes that stages a to k - 1 make and k, .. read */
    gckpti_option *option;
    int options, levels;
    unsigned char *level, *trial; /* by unit of the stage: of options; of the one that is tried */
    unsigned char *has, *wants;   /* by unit: results that are there; that backwards read */
    int *runs;                    /* by unit: so far */
    int *item, length, room;      /* a stage's list */
    int *row, rows;               /* [a * (n + 1) + b - a]: the row of stages a to b */
    int *first;                   /* by row: the fewest steps that do */
    uint64_t *cost;               /* [row * (steps + 1) + m]: least work in m steps */
    int steps;
    int64_t step;
} gckpti_chain;

/* Whether a border of stages may be before unit u: where the user's outermost segments have one;
 * where no more bytes cross than at such a border, and fewer than before; or everywhere. */
enum { GCKPTI_AT_SEGMENTS, GCKPTI_AT_NARROW, GCKPTI_AT_UNITS, GCKPTI_BORDERS };

#ifdef GCKPTI_ROOMS
/* For files that are compiled by themselves, as tests have them: in gradckpt.h functions stand in
 * order, and need no prototypes. What each does is said where it is defined. */

/* search/bound.c */
GCKPTI_FN const gckpti_cut_table *gckpti_cuts(gckpti_bound *b, gckpti_instant *t, int which);
GCKPTI_FN int gckpti_cut_within(const gckpti_kept_list *v, int64_t room);
GCKPTI_FN uint64_t gckpti_cut_work(const gckpti_instant *t, int cut);
GCKPTI_FN void gckpti_cut_mark(gckpti_bound *b, const gckpti_cut_table *table, int cut);
GCKPTI_FN uint64_t gckpti_hull_work(const gckpti_kept_list *hull, int64_t room);
GCKPTI_FN uint64_t gckpti_hulls_work(const gckpti_bound *b, int64_t limit, int *at);
GCKPTI_FN void gckpti_bound_open(gckpti_bound *b, const gckpti_planner *p, int price,
                                 gckpti_scratch *scratch);

/* search/search.c */
GCKPTI_FN int64_t gckpti_grain(const gckpti_planner *p);
GCKPTI_FN int gckpti_ends(gckpti_search *s, int64_t first, int64_t now);
GCKPTI_FN int gckpti_spent(gckpti_search *s);
GCKPTI_FN void gckpti_evaluate(gckpti_search *s, gckpti_schedule *t);
GCKPTI_FN int64_t gckpti_excess(const gckpti_schedule *t, int64_t limit);
GCKPTI_FN void gckpti_step(gckpti_search *s, int x);
GCKPTI_FN int gckpti_index(gckpti_search *s, int64_t limit);
GCKPTI_FN int gckpti_is_stale(const gckpti_search *s, int unit, int x);
GCKPTI_FN int gckpti_take_made(gckpti_search *s);
GCKPTI_FN void gckpti_settle(gckpti_search *s);
GCKPTI_FN void gckpti_answer_store(gckpti_search *s, gckpti_answer *answer,
                                   const gckpti_schedule *t);
GCKPTI_FN int gckpti_answer_load(gckpti_search *s, const gckpti_answer *answer);
GCKPTI_FN gckpti_answer *gckpti_answer_new(gckpti_search *s, gckpti_answer **answers, int *count);
GCKPTI_FN void gckpti_offer(gckpti_search *s, gckpti_answer *answer);
GCKPTI_FN int gckpti_certified(const gckpti_search *s, const gckpti_answer *answer);
GCKPTI_FN int gckpti_answer_before(const void *first, const void *second, const void *context);
GCKPTI_FN void gckpti_seed(gckpti_search *s, int between);

/* search/squeeze.c */
GCKPTI_FN uint64_t gckpti_score(uint64_t cost, int64_t gain);
GCKPTI_FN void gckpti_add_move(gckpti_search *s, const gckpti_move *m);
GCKPTI_FN void gckpti_sort_moves(gckpti_search *s);
GCKPTI_FN void gckpti_accept(gckpti_search *s);
GCKPTI_FN void gckpti_make_move(gckpti_search *s, int how, int move);
GCKPTI_FN int gckpti_make_moves(gckpti_search *s, int how, int64_t limit, int n);
GCKPTI_FN int gckpti_make_best(gckpti_search *s, int how, int64_t limit, int exact);
GCKPTI_FN void gckpti_find_gaps(gckpti_search *s, int64_t limit, int wide, int all);
GCKPTI_FN int gckpti_squeeze(gckpti_search *s, int64_t limit, int exact);

/* search/polish.c */
GCKPTI_FN int gckpti_press(gckpti_search *s, const gckpti_answer *answer, int64_t limit);
GCKPTI_FN void gckpti_improve(gckpti_search *s, gckpti_answer *answer, int exact);
GCKPTI_FN void gckpti_shake(gckpti_search *s, gckpti_answer *answer, int tries, int exact);

/* search/stages.c */
GCKPTI_FN int gckpti_find_borders(gckpti_chain *c);
GCKPTI_FN void gckpti_find_stages(gckpti_chain *c, int how, int most);
GCKPTI_FN void gckpti_compare_stages(gckpti_chain *c);
GCKPTI_FN int gckpti_list_stage(gckpti_chain *c, const gckpti_stage *q, const unsigned char *level);
GCKPTI_FN int gckpti_as_good(const int64_t *a, uint64_t cost_a, const int64_t *b, uint64_t cost_b);
GCKPTI_FN void gckpti_find_options(gckpti_chain *c, gckpti_stage *q, int64_t work);

/* search/chain.c */
GCKPTI_FN int gckpti_seed_chain(gckpti_search *s, int how, int64_t most);

/* search/hide.c */
GCKPTI_FN void gckpti_hide(gckpti_search *s, gckpti_answer *answer, int64_t limit);

/* search/ladder.c */
GCKPTI_FN int64_t gckpti_try_late(gckpti_search *s, unsigned char *again);
GCKPTI_FN int64_t gckpti_try_cut(gckpti_search *s, const gckpti_cut_table *table, int cut);
GCKPTI_FN void gckpti_find_seeds(gckpti_search *s);
GCKPTI_FN void gckpti_make_rungs(gckpti_search *s, int64_t most);
GCKPTI_FN void gckpti_solve(gckpti_search *s, int k);

/* search/choose.c */
GCKPTI_FN gckpt_result gckpti_lay(gckpti_search *s, gckpti_answer *answer);
#endif
#endif

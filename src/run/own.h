#pragma once
#include "run/run.h"

/* What the files of run share; no other folder uses it. */

/* Defined further down than they are used. */
GCKPTI_FN void gckpti_pass_start(const gckpt_exec *e, const gckpti_ins *ins, gckpt_pass *pass);
GCKPTI_FN gckpt_result gckpti_next_rows(gckpt_exec *e);

/* ---- run/layout.c ---- */
enum { GCKPTI_CANARY = 64, GCKPTI_CANARY_BYTE = 0xc5 };

/* ---- run/exchange.c ---- */
enum { GCKPTI_ALIKE = 7 };

/* What ranks tell each other when they meet: the first failure of all, or what must be alike: the
 * call, with the number of the meeting above its lowest byte; rows; step; seed; what is run; hyper;
 * values that all have whole. */
typedef struct {
    int32_t result, rank; /* rank: the one that failed, or the lowest so far; -1: they differ */
    uint64_t alike[GCKPTI_ALIKE];
    char text[GCKPTI_TEXT];
} gckpti_meeting;

/* What is under way, level by level: partners differ in bit `bit`. SCATTER: a sum of which each
 * rank gets its share; SUM_ALL: one that all get whole; GATHER: brings shares together; ENGINE: a
 * sum by the program's own all_reduce. */
typedef enum { GCKPTI_SCATTER, GCKPTI_SUM_ALL, GCKPTI_GATHER, GCKPTI_ENGINE } gckpti_tree_kind;

typedef struct {
    gckpti_tree_kind kind;
    float *x, *work; /* n floats; room for what comes and is added to them */
    /* count of them, from first on, are this rank's after this level; of GATHER before it */
    int64_t n, first, count;
    int bit; /* 0: nothing is under way */
} gckpti_tree;

/* This rank and what it has under way with the others. */
typedef struct {
    const gckpt_ranks *engine; /* NULL: there is one rank */
    const gckpt_backend *on;   /* where floats lie */
    int rank, ranks;
    int busy, peer, broken;  /* broken: an exchange failed, there will be none any more */
    unsigned char *out, *in; /* room on the host */
    void *to; /* what comes in is to be copied there, from the host; NULL: it is not */
    size_t bytes;
    uint64_t sent;
    gckpti_tree tree;
    gckpti_meeting told, heard;
} gckpti_peers;

/* ---- run/crew.c, run/rounds.c ---- */
/* Where a step of several leaves is, and this rank among others. A leaf takes as many rounds as the
 * largest of those that other ranks run at this time has micro-batches, one at least; those that
 * are `hollow` run only what takes part in exchanges. So does a rank that failed, to the next
 * meeting of all. */
struct gckpti_crew {
    gckpti_peers peers;
    int64_t rows;       /* of the step, those of all ranks */
    int64_t first, end; /* this rank's */
    int64_t stop;       /* end of those of this leaf that are here */
    int leaf;           /* number of this rank's that is run */
    int round;          /* rounds of it that are done */
    int in_body;        /* 1: rounds still run; 0: the step is behind them */
    int again;          /* a round of this step is done: the prologue is not run again */
    int last;           /* this round is the last of its leaf */
    int hollow;         /* it has no rows */
    int over;           /* a meeting has ended the call; until the next one begins */
    int squared;        /* square sums are */
    int same;           /* values that all have whole were compared */
    int meetings;       /* how often all met */
    int reducing;       /* a REDUCE is under way, */
    float *shard;       /* and its share goes here in the end; NULL: it stays */
    uint64_t listed;    /* hash of what is run */
    gckpti_loss_total *totals, *heard;
    size_t room; /* bytes of peers.out, and of peers.in */
};

#ifndef GCKPT_NO_RANKS
/* Leaves and ranks there are, and what a step has of them: NULL: one leaf and one rank. */
static inline int gckpti_has_crew(const gckpt_plan *p) { return p->leaves > 1 || p->ranks > 1; }
static inline gckpti_crew *gckpti_crew_of(const gckpt_exec *e) { return e->crew; }

/* Leaves whose sums are made here: this rank's, or all where every rank runs all rows. */
static inline int gckpti_own_leaves(const gckpt_plan *p)
{
    return p->leaves < p->ranks ? p->leaves : p->leaves / p->ranks;
}

/* All of these but `tables` and `bind` find the executor complete, and the last three a parameter's
 * pass or values. Whether a step goes on all ranks decide together, where they meet: a rank that
 * fails says so at the next meeting, and up to there goes on without computing. So whatever could
 * end a step on this rank goes through gckpti_drain, or gckpti_meet. An error's text is in the
 * executor or, while that is being made, in its store.
 *
 * An executor is made. Carves e->crew and its tables out of base, as gckpti_exec_tables. */
GCKPTI_FN void gckpti_crew_tables(gckpt_exec *e, unsigned char *base, size_t *used);

/* Its parameters are found: joins the others by desc.ranks, or says what that lacks. */
GCKPTI_FN gckpt_result gckpti_crew_bind(gckpt_exec *e);

/* It is freed, in a step perhaps: lets the others go on. */
GCKPTI_FN void gckpti_leave(gckpt_exec *e);

/* Puts e and its crew to the beginning of a step of so many rows, all ranks' (of a stream the
 * plan's batch); returns how many are this rank's. A step's rows are checked with it before, so it
 * is called twice. */
GCKPTI_FN int64_t gckpti_crew_rows(gckpt_exec *e, int64_t rows);

/* Before the first instruction: all meet, with what it has come to here; rows, step, seed, plan and
 * hyper must be alike. Then what losses will count is that of all ranks; of a stream, where `rows`
 * is 0, only when gckpti_end_stream was called. */
GCKPTI_FN gckpt_result gckpti_crew_begin(gckpt_exec *e, int64_t rows, gckpt_result result);

/* What a result comes to between meetings. OK: the step goes on; a failure of this rank's own is
 * kept for the meeting. GCKPT_E_PEER, and e is idle: an exchange failed (called with OK, it asks
 * for that). Where there is one rank, or no meeting to come, the result itself. */
GCKPTI_FN gckpt_result gckpti_drain(gckpt_exec *e, gckpt_result result);

/* The failure that this rank keeps for the meeting; OK: there is none. */
GCKPTI_FN gckpt_result gckpti_failed_here(gckpt_exec *e);

/* All ranks meet: OK if all come with it. Else the step is over on each of them, e is idle, and all
 * return the failure of the lowest rank that has one. The rest as of gckpti_drain. */
GCKPTI_FN gckpt_result gckpti_meet(gckpt_exec *e, gckpt_result result);

/* Readies the next round (step.pc, feeds): when a step has begun, and when rows were added to a
 * stream. 0: there is none, or not yet. next_round and end_stream do it themselves. */
GCKPTI_FN int gckpti_set_round(gckpt_exec *e);

/* At the end of a round, step.pc at the epilogue: readies the next one; behind the last, sums
 * losses over leaves and ranks and meets. MORE: a stream has no more rows yet. */
GCKPTI_FN gckpt_result gckpti_next_round(gckpt_exec *e);

/* gckpt_step_end: meets, counts the rows that came in on all ranks, readies the last round. */
GCKPTI_FN gckpt_result gckpti_end_stream(gckpt_exec *e);

/* Before each instruction, and again when the user's callback was asked, which may have failed this
 * rank: 1: it is not to be run here. Lets a sum that is under way go on. */
GCKPTI_FN int gckpti_skips(gckpt_exec *e, const gckpti_ins *ins);

/* Runs a REDUCE; a sum over ranks goes on while what comes next is run. */
GCKPTI_FN void gckpti_run_reduce(gckpt_exec *e, const gckpti_ins *ins);

/* Before the norm is taken: update.squares become those of all ranks; once a step. */
GCKPTI_FN void gckpti_gather_squares(gckpt_exec *e);

/* A parameter is staged: brings the shares of all ranks to `to`. 0: it is not cut, nothing was
 * done. */
GCKPTI_FN int gckpti_run_gather(gckpt_exec *e, const gckpti_param *q, const float *share,
                                float *to);

/* Narrows a pass over a parameter to what this rank updates. */
GCKPTI_FN void gckpti_pass_share(const gckpt_exec *e, const gckpti_ins *ins, gckpt_pass *pass);

/* A parameter was updated: where each rank has all its values, brings them together. */
GCKPTI_FN void gckpti_gather_updated(gckpt_exec *e, const gckpti_param *q);
#else /* one leaf and one rank */
static inline gckpti_crew *gckpti_crew_of(const gckpt_exec *e)
{
    (void)e;
    return NULL;
}

static inline int gckpti_own_leaves(const gckpt_plan *p) { return (void)p, 1; }
static inline void gckpti_crew_tables(gckpt_exec *e, unsigned char *base, size_t *used)
{
    (void)e, (void)base, (void)used;
}

static inline gckpt_result gckpti_crew_bind(gckpt_exec *e) { return (void)e, GCKPT_OK; }
static inline void gckpti_leave(gckpt_exec *e) { (void)e; }
static inline int64_t gckpti_crew_rows(gckpt_exec *e, int64_t rows) { return (void)e, rows; }
static inline gckpt_result gckpti_crew_begin(gckpt_exec *e, int64_t rows, gckpt_result result)
{
    return (void)e, (void)rows, result;
}

static inline gckpt_result gckpti_drain(gckpt_exec *e, gckpt_result result)
{
    return (void)e, result;
}

static inline gckpt_result gckpti_failed_here(gckpt_exec *e) { return (void)e, GCKPT_OK; }
static inline gckpt_result gckpti_meet(gckpt_exec *e, gckpt_result result)
{
    return (void)e, result;
}

static inline int gckpti_set_round(gckpt_exec *e)
{
    gckpti_feed_rows(e);
    return 1;
}

static inline gckpt_result gckpti_next_round(gckpt_exec *e) { return gckpti_next_rows(e); }
static inline gckpt_result gckpti_end_stream(gckpt_exec *e) { return (void)e, GCKPT_OK; }
static inline int gckpti_skips(gckpt_exec *e, const gckpti_ins *ins)
{
    return (void)e, (void)ins, 0;
}

static inline void gckpti_run_reduce(gckpt_exec *e, const gckpti_ins *ins) { (void)e, (void)ins; }
static inline void gckpti_gather_squares(gckpt_exec *e) { (void)e; }
static inline int gckpti_run_gather(gckpt_exec *e, const gckpti_param *q, const float *share,
                                    float *to)
{
    return (void)e, (void)q, (void)share, (void)to, 0;
}

static inline void gckpti_pass_share(const gckpt_exec *e, const gckpti_ins *ins, gckpt_pass *pass)
{
    (void)e, (void)ins, (void)pass;
}

static inline void gckpti_gather_updated(gckpt_exec *e, const gckpti_param *q) { (void)e, (void)q; }
#endif

/* ---- run/picks.c: all of these, without picks, too ---- */
#ifndef GCKPT_NO_PICKS
/* Carve what the host has of picks out of base, as gckpti_exec_tables, gckpti_exec_copies. */
GCKPTI_FN void gckpti_picks_tables(gckpt_exec *e, unsigned char *base, size_t *used);
GCKPTI_FN void gckpti_picks_copies(gckpt_exec *e, unsigned char *base, size_t *used);

/* Whether updates must leave divided gradients where they are, since one of them is picked. */
GCKPTI_FN int gckpti_picks_write_back(const gckpt_plan *p);

/* An executor is made, its nodes are bound: finds the instruction each pick is complete with. */
GCKPTI_FN void gckpti_bind_picks(gckpt_exec *e);

/* Before rows are fed, and by gckpt_collect: has what is collected room for so many, those of this
 * rank in the step up to then? Changes nothing. */
GCKPTI_FN gckpt_result gckpti_check_collected(gckpt_exec *e, int64_t rows);

/* Behind the body's last instruction, step.row at the micro-batch: copies its rows. */
GCKPTI_FN void gckpti_collect_rows(gckpt_exec *e);

/* At the end of a step: adds up gradients that no instruction does. */
GCKPTI_FN void gckpti_add_uses(gckpt_exec *e);
#else
static inline void gckpti_picks_tables(gckpt_exec *e, unsigned char *base, size_t *used)
{
    (void)e, (void)base, (void)used;
}

static inline void gckpti_picks_copies(gckpt_exec *e, unsigned char *base, size_t *used)
{
    (void)e, (void)base, (void)used;
}

static inline int gckpti_picks_write_back(const gckpt_plan *p) { return (void)p, 0; }
static inline void gckpti_bind_picks(gckpt_exec *e) { (void)e; }
static inline gckpt_result gckpti_check_collected(gckpt_exec *e, int64_t rows)
{
    return (void)e, (void)rows, GCKPT_OK;
}

static inline void gckpti_collect_rows(gckpt_exec *e) { (void)e; }
static inline void gckpti_add_uses(gckpt_exec *e) { (void)e; }
#endif

/* ---- run/caches.c: all of these but cache_at, without caches, too ---- */
#ifndef GCKPT_NO_CACHES
/* Bytes of an executor's own caches. */
GCKPTI_FN size_t gckpti_size_caches(gckpt_exec *e);

/* An executor is made and has all but its arena: takes the caches, or finds another's. */
GCKPTI_FN gckpt_result gckpti_bind_caches(gckpt_exec *e);
GCKPTI_FN void gckpti_free_caches(gckpt_exec *e);

/* Before a forward takes its feeds: is there room for what it adds? Changes nothing. */
GCKPTI_FN gckpt_result gckpti_check_caches(gckpt_exec *e, int64_t rows);

/* Positions that the caches hold before this call; 0 where there are none yet. */
static inline int64_t gckpti_position(const gckpt_exec *e)
{
    return e->caches.of ? e->caches.of->caches.position : 0;
}

/* A forward of so many rows has succeeded. */
GCKPTI_FN void gckpti_add_positions(gckpt_exec *e, int64_t rows);

/* The place of cache `id` in the caches, to be written. */
GCKPTI_FN void *gckpti_cache_at(const gckpt_exec *e, int id);
#else
static inline size_t gckpti_size_caches(gckpt_exec *e) { return (void)e, 0; }
static inline gckpt_result gckpti_bind_caches(gckpt_exec *e) { return (void)e, GCKPT_OK; }
static inline void gckpti_free_caches(gckpt_exec *e) { (void)e; }
static inline gckpt_result gckpti_check_caches(gckpt_exec *e, int64_t rows)
{
    return (void)e, (void)rows, GCKPT_OK;
}

static inline int64_t gckpti_position(const gckpt_exec *e) { return (void)e, 0; }
static inline void gckpti_add_positions(gckpt_exec *e, int64_t rows) { (void)e, (void)rows; }
static inline void *gckpti_cache_at(const gckpt_exec *e, int id)
{
    (void)e, (void)id;
    return NULL;
}

#endif

/* ---- run/recompute.c, run/paint.c, run/finite.c: by gckpti_debug(e) ---- */
/* ---- run/mixed.c, run/portions.c ---- */
/* The value of an op is stream 0, what its backward sends to input i is 1 + i; dropout has the
 * streams below 2^31. */
static inline uint32_t gckpti_stream(int id, int which)
{
    return 0x80000000u | ((uint32_t)id * (1 + GCKPT_MAX_INPUTS) + (uint32_t)which);
}

#ifndef GCKPT_NO_BF16
GCKPTI_FN void gckpti_widen(const gckpt_exec *e, const gckpt_call *c, gckpt_conversion_kind kind,
                            const uint16_t *from, float *x, int64_t n);
GCKPTI_FN void gckpti_round(const gckpt_exec *e, const gckpt_call *c, uint32_t stream, float *x,
                            uint16_t *to, int64_t n);
GCKPTI_FN void gckpti_copies_at(const gckpt_exec *e, const gckpti_ins *ins,
                                const gckpti_operands *o, gckpti_copies *c);

/* Operands as the kernel takes them: bf16, or f32 copies; forward of inputs and out (narrow: if
 * that is bf16), and whether it is to run in portions. */
GCKPTI_FN int gckpti_mixed_forward(const gckpt_exec *e, const gckpti_ins *ins,
                                   const gckpti_operands *o, uint16_t *narrow, gckpt_call *c);
GCKPTI_FN void gckpti_mixed_backward(const gckpt_exec *e, const gckpti_ins *ins,
                                     const gckpti_operands *o, const gckpti_copies *copies,
                                     gckpt_call *c);
/* The gradient of input i. */
GCKPTI_FN void gckpti_mixed_gradient(const gckpt_exec *e, const gckpti_ins *ins,
                                     const gckpti_operands *o, const gckpti_copies *copies,
                                     gckpt_call *c, int i);
/* 0: it is not to run in portions. */
GCKPTI_FN int gckpti_run_portions(const gckpt_exec *e, const gckpti_ins *ins,
                                  const gckpt_call *call, gckpt_kernel kernel, int portions);
#else /* nothing is bf16, nor rounded */
static inline void gckpti_widen(const gckpt_exec *e, const gckpt_call *c,
                                gckpt_conversion_kind kind, const uint16_t *from, float *x,
                                int64_t n)
{
    (void)e, (void)c, (void)kind, (void)from, (void)x, (void)n;
}
static inline void gckpti_round(const gckpt_exec *e, const gckpt_call *c, uint32_t stream, float *x,
                                uint16_t *to, int64_t n)
{
    (void)e, (void)c, (void)stream, (void)x, (void)to, (void)n;
}
static inline void gckpti_copies_at(const gckpt_exec *e, const gckpti_ins *ins,
                                    const gckpti_operands *o, gckpti_copies *c)
{
    (void)e, (void)ins, (void)o;
    c->bytes = 0;
    c->portions = 0;
}
static inline int gckpti_mixed_forward(const gckpt_exec *e, const gckpti_ins *ins,
                                       const gckpti_operands *o, uint16_t *narrow, gckpt_call *c)
{
    (void)e, (void)ins, (void)o, (void)narrow, (void)c;
    return 0;
}
static inline void gckpti_mixed_backward(const gckpt_exec *e, const gckpti_ins *ins,
                                         const gckpti_operands *o, const gckpti_copies *copies,
                                         gckpt_call *c)
{
    (void)e, (void)ins, (void)o, (void)copies, (void)c;
}
static inline void gckpti_mixed_gradient(const gckpt_exec *e, const gckpti_ins *ins,
                                         const gckpti_operands *o, const gckpti_copies *copies,
                                         gckpt_call *c, int i)
{
    (void)e, (void)ins, (void)o, (void)copies, (void)c, (void)i;
}
static inline int gckpti_run_portions(const gckpt_exec *e, const gckpti_ins *ins,
                                      const gckpt_call *call, gckpt_kernel kernel, int portions)
{
    (void)e, (void)ins, (void)call, (void)kernel, (void)portions;
    return 0;
}
#endif

/* A look at arrays: what kinds there are, and the first element that is of a kind sought. */
typedef struct {
    unsigned kinds, sought;
    int id, gradient; /* the node whose value or gradient has it; -1: there is none */
    int64_t at;       /* its element; -1: the sum of a loss */
    double value;
} gckpti_look;

/* No NaN, no infinity. */
static inline int gckpti_finite(double x) { return x - x == 0; }

#ifndef GCKPT_NO_DEBUG
GCKPTI_FN void gckpti_see(gckpti_look *s, double x, int id, int gradient, int64_t at);

/* Carves hashes of values out of base, as gckpti_exec_tables; none without RECOMPUTE. */
GCKPTI_FN void gckpti_hash_tables(gckpt_exec *e, unsigned char *base, size_t *used);

/* RECOMPUTE: what an instruction has made, or a reload brought, must be what it was. */
GCKPTI_FN gckpt_result gckpti_compare(gckpt_exec *e, const gckpti_ins *ins, const gckpt_call *c,
                                      const uint16_t *narrow);

/* PAINT: what died with this instruction. */
GCKPTI_FN void gckpti_paint_dead(gckpt_exec *e);

/* MEASURE, PAINT: before a step; after it. */
GCKPTI_FN void gckpti_measure_start(gckpt_exec *e);
GCKPTI_FN void gckpti_measure_end(gckpt_exec *e);

/* FINITE: looks at what an instruction is about to read, or has written. */
GCKPTI_FN void gckpti_see_operands(const gckpt_exec *e, gckpti_look *s, const gckpti_ins *ins,
                                   int written);

/* FINITE: what an instruction wrote, when it had read such kinds; a parameter's gradient before its
 * update, and what that made of it; what a step begins with; what is fed. */
GCKPTI_FN gckpt_result gckpti_check_finite(gckpt_exec *e, const gckpti_ins *ins, unsigned read);
GCKPTI_FN gckpt_result gckpti_check_update(gckpt_exec *e, const gckpti_ins *ins, int done);
GCKPTI_FN gckpt_result gckpti_check_leaf(gckpt_exec *e, int id, const void *values, int64_t first,
                                         int64_t n, int trained);
GCKPTI_FN gckpt_result gckpti_check_fed(gckpt_exec *e, const gckpti_exec_input *in, int64_t rows);
#else
static inline void gckpti_see(gckpti_look *s, double x, int id, int gradient, int64_t at)
{
    (void)s, (void)x, (void)id, (void)gradient, (void)at;
}

static inline void gckpti_hash_tables(gckpt_exec *e, unsigned char *base, size_t *used)
{
    (void)e, (void)base, (void)used;
}

static inline gckpt_result gckpti_compare(gckpt_exec *e, const gckpti_ins *ins, const gckpt_call *c,
                                          const uint16_t *narrow)
{
    return (void)e, (void)ins, (void)c, (void)narrow, GCKPT_OK;
}

static inline void gckpti_paint_dead(gckpt_exec *e) { (void)e; }
static inline void gckpti_measure_start(gckpt_exec *e) { (void)e; }
static inline void gckpti_measure_end(gckpt_exec *e) { (void)e; }
static inline void gckpti_see_operands(const gckpt_exec *e, gckpti_look *s, const gckpti_ins *ins,
                                       int written)
{
    (void)e, (void)s, (void)ins, (void)written;
}

static inline gckpt_result gckpti_check_finite(gckpt_exec *e, const gckpti_ins *ins, unsigned read)
{
    return (void)e, (void)ins, (void)read, GCKPT_OK;
}

static inline gckpt_result gckpti_check_update(gckpt_exec *e, const gckpti_ins *ins, int done)
{
    return (void)e, (void)ins, (void)done, GCKPT_OK;
}

static inline gckpt_result gckpti_check_leaf(gckpt_exec *e, int id, const void *values,
                                             int64_t first, int64_t n, int trained)
{
    return (void)e, (void)id, (void)values, (void)first, (void)n, (void)trained, GCKPT_OK;
}

static inline gckpt_result gckpti_check_fed(gckpt_exec *e, const gckpti_exec_input *in,
                                            int64_t rows)
{
    return (void)e, (void)in, (void)rows, GCKPT_OK;
}
#endif

/* ---- run/packed.c ---- */
#ifndef GCKPT_NO_PACK
GCKPTI_FN void gckpti_run_unpack(const gckpt_exec *e, const gckpti_param *q, const float *here,
                                 float *to, gckpt_call *c);
GCKPTI_FN void gckpti_call_stored(const gckpt_exec *e, const gckpti_node *node, gckpt_call *c,
                                  gckpt_unpacking *stored);
GCKPTI_FN int gckpti_see_stored(const gckpt_exec *e, gckpti_look *s, int id);
#else
static inline void gckpti_run_unpack(const gckpt_exec *e, const gckpti_param *q, const float *here,
                                     float *to, gckpt_call *c)
{
    (void)e, (void)q, (void)here, (void)to, (void)c;
}
static inline void gckpti_call_stored(const gckpt_exec *e, const gckpti_node *node, gckpt_call *c,
                                      gckpt_unpacking *stored)
{
    (void)e, (void)node, (void)c, (void)stored;
}
static inline int gckpti_see_stored(const gckpt_exec *e, const gckpti_look *s, int id)
{
    (void)e, (void)s, (void)id;
    return 0;
}
#endif

#ifdef GCKPTI_ROOMS
/* For files that are compiled by themselves, as tests have them: in gradckpt.h functions stand in
 * order, and need no prototypes. What each does is said where it is defined. */

#ifndef GCKPT_NO_RANKS
/* run/exchange.c */
GCKPTI_FN void gckpti_break(gckpti_peers *s);
GCKPTI_FN void gckpti_merge_all(gckpti_peers *s, void *mine, void *heard, size_t bytes,
                                void (*merge)(void *mine, const void *heard, size_t bytes));
GCKPTI_FN void gckpti_merge_floats(void *mine, const void *heard, size_t bytes);
GCKPTI_FN void gckpti_merge_meetings(void *mine, const void *heard, size_t bytes);
GCKPTI_FN void gckpti_tree_begin(gckpti_peers *s, gckpti_tree_kind kind, float *x, int64_t n,
                                 float *work);
GCKPTI_FN int gckpti_tree_poll(gckpti_peers *s, const gckpt_call *c, int wait);
GCKPTI_FN void gckpti_exchange(gckpti_peers *s, int peer, const void *send, size_t n, void *receive,
                               size_t m);
GCKPTI_FN int gckpti_wait_for(gckpti_peers *s);

/* run/crew.c */
GCKPTI_FN int gckpti_shares_rows(const gckpt_plan *p);
GCKPTI_FN int gckpti_is_gathered_here(const gckpt_exec *e, const gckpti_param *q);
GCKPTI_FN size_t gckpti_crew_room(const gckpt_exec *e);
GCKPTI_FN void gckpti_go_on(gckpt_exec *e, int wait);
GCKPTI_FN void gckpti_sum_totals(gckpt_exec *e);
GCKPTI_FN void gckpti_sum_counts(gckpt_exec *e, int64_t rows);
#endif

/* run/call.c */
GCKPTI_FN void *gckpti_at_any(const gckpt_exec *e, size_t offset);
GCKPTI_FN uint16_t *gckpti_at_bf16(const gckpt_exec *e, size_t offset);
GCKPTI_FN gckpt_shape gckpti_node_shape(const gckpt_exec *e, const gckpti_node *node, int64_t rows);
GCKPTI_FN int64_t gckpti_step_rows(const gckpt_exec *e);
GCKPTI_FN void gckpti_call_between(const gckpt_exec *e, gckpt_call *c);
GCKPTI_FN void gckpti_call_next(const gckpt_exec *e, const gckpti_node *node, int id, int64_t rows,
                                gckpt_call *c);
GCKPTI_FN void gckpti_call_start(const gckpt_exec *e, const gckpti_node *node, int id, int64_t rows,
                                 gckpt_call *c);
GCKPTI_FN void gckpti_call_value(const gckpt_exec *e, const gckpti_node *node, int i, size_t offset,
                                 gckpt_arg *arg);
GCKPTI_FN int gckpti_sums_of(const gckpt_plan *p, const gckpti_node *node, int i);
GCKPTI_FN float *gckpti_copy_at(const gckpt_call *c, size_t offset);
GCKPTI_FN void gckpti_own_work(gckpt_call *c, const gckpti_copies *copies);

/* run/backend.c */
GCKPTI_FN gckpt_result gckpti_choose_backend(gckpt_exec *e);
GCKPTI_FN gckpti_exec_node gckpti_bind_kernels(const gckpt_exec *e, const gckpti_node *node);
GCKPTI_FN int gckpti_repeatable(const gckpt_exec *e);
GCKPTI_FN void gckpti_forget(const gckpt_exec *e);

/* run/checks.c */
GCKPTI_FN gckpt_result gckpti_check_backend(gckpt_store *s, const gckpt_plan *p,
                                            const gckpt_backend *backend);
GCKPTI_FN gckpt_result gckpti_check_binding(gckpt_store *s, const gckpt_plan *p,
                                            const gckpt_exec_desc *desc);

/* run/layout.c */
GCKPTI_FN int gckpti_is_fed(const gckpt_plan *p, size_t id);
GCKPTI_FN size_t gckpti_row_bytes(const gckpt_plan *p, const gckpti_node *q);
GCKPTI_FN size_t gckpti_copied_bytes(const gckpt_plan *p);
GCKPTI_FN size_t gckpti_exec_tables(gckpt_exec *e, unsigned char *base);
GCKPTI_FN size_t gckpti_exec_squares(gckpt_exec *e);
GCKPTI_FN size_t gckpti_exec_side(gckpt_exec *e, unsigned char *base);
GCKPTI_FN size_t gckpti_exec_copies(gckpt_exec *e, unsigned char *base);
GCKPTI_FN size_t gckpti_exec_sizes(gckpt_exec *e, size_t times);

/* run/memory.c */
GCKPTI_FN const char *gckpti_shortage(const gckpt_exec *e);
GCKPTI_FN void *gckpti_take(gckpt_exec *e, size_t bytes, size_t alignment);
GCKPTI_FN void gckpti_give(gckpt_exec *e, void *memory, size_t bytes);
GCKPTI_FN void gckpti_fill(const gckpt_exec *e, void *to, uint32_t word, size_t bytes);
GCKPTI_FN gckpt_result gckpti_exec_host(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_exec_arena(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_check_canary(gckpt_exec *e);

/* run/bind.c */
GCKPTI_FN gckpt_result gckpti_bind_params(gckpt_exec *e);
GCKPTI_FN void gckpti_bind_nodes(gckpt_exec *e);
GCKPTI_FN int gckpti_others_state(const gckpt_plan *p, const gckpti_param *q);
GCKPTI_FN gckpt_result gckpti_bind_state(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_bring(gckpt_exec *e, gckpti_param *q);

/* run/host.c */
GCKPTI_FN void gckpti_run_on_host(const gckpt_exec *e, gckpt_kernel kernel, const gckpt_call *call);

/* run/feeds.c */
GCKPTI_FN const int32_t *gckpti_indices(const gckpt_exec *e, const gckpti_node *q);
GCKPTI_FN gckpt_result gckpti_take_feeds(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                         int64_t rows);

/* run/losses.c */
GCKPTI_FN int gckpti_term_of(const gckpt_plan *p, int id);
GCKPTI_FN gckpti_loss_total *gckpti_loss_at(const gckpt_exec *e, int term);
GCKPTI_FN gckpt_result gckpti_read_losses(gckpt_exec *e);
GCKPTI_FN float gckpti_loss_scale(gckpt_exec *e, int term);
GCKPTI_FN void gckpti_expect_counts(gckpt_exec *e, int64_t rows);
GCKPTI_FN void gckpti_start_counts(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_check_streaming(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_check_counts(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_settle_counts(gckpt_exec *e);

/* run/instruction.c */
GCKPTI_FN gckpt_result gckpti_run_forward(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c);
GCKPTI_FN void gckpti_run_backward(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c);

/* run/offload.c */
GCKPTI_FN void gckpti_join(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_run_copies(gckpt_exec *e, const gckpti_ins *ins);

/* run/update.c */
GCKPTI_FN const gckpti_plan_param *gckpti_total_norm(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_finish_gradients(gckpt_exec *e);
GCKPTI_FN void gckpti_uncount_updates(gckpt_exec *e);

/* run/begin.c */
GCKPTI_FN gckpt_result gckpti_check_rows(gckpt_exec *e, int64_t rows);
GCKPTI_FN gckpt_result gckpti_begin(gckpt_exec *e, const gckpt_hyper *hyper, int inference);
GCKPTI_FN void gckpti_start_step(gckpt_exec *e);

/* run/step.c */
GCKPTI_FN gckpt_result gckpti_finish_step(gckpt_exec *e, gckpt_report *report);
GCKPTI_FN gckpt_result gckpti_run_all(gckpt_exec *e, gckpt_report *report);
#endif

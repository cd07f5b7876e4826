#pragma once
#include "run/run.h"

/* What the files of run share; no other folder uses it. */

/* ---- run/layout.c ---- */
enum { GCKPTI_CANARY = 64, GCKPTI_CANARY_BYTE = 0xc5 };

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

/* Operands as the kernel takes them: bf16, or f32 copies; forward of inputs and out (narrow: if that
 * is bf16), and whether it is to run in portions. */
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

/* ---- run/finite.c ---- */
/* A look at arrays: what kinds there are, and the first element that is of a kind sought. */
typedef struct {
    unsigned kinds, sought;
    int id, gradient; /* the node whose value or gradient has it; -1: there is none */
    int64_t at;       /* its element; -1: the sum of a loss */
    double value;
} gckpti_look;

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

/* Defined further down than they are used. */
GCKPTI_FN size_t gckpti_pick_bytes(const gckpt_plan *p, const gckpti_plan_pick *pick);
GCKPTI_FN void gckpti_pass_start(const gckpt_exec *e, const gckpti_ins *ins, gckpt_pass *pass);

#ifdef GCKPTI_ROOMS
/* For files that are compiled by themselves, as tests have them: in gradckpt.h functions stand in
 * order, and need no prototypes. What each does is said where it is defined. */

/* run/exchange.c */
GCKPTI_FN void gckpti_exchange(gckpti_peers *s, int peer, const void *send, size_t n, void *receive,
                               size_t m);
GCKPTI_FN int gckpti_wait_for(gckpti_peers *s);

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

/* run/bind.c */
GCKPTI_FN gckpt_result gckpti_bind_params(gckpt_exec *e);
GCKPTI_FN void gckpti_bind_nodes(gckpt_exec *e);
GCKPTI_FN int gckpti_others_state(const gckpt_plan *p, const gckpti_param *q);
GCKPTI_FN gckpt_result gckpti_bind_state(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_bring(gckpt_exec *e, gckpti_param *q);

/* run/caches.c */
GCKPTI_FN gckpt_result gckpti_bind_caches(gckpt_exec *e);
GCKPTI_FN void *gckpti_cache_at(const gckpt_exec *e, int id);

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

/* run/recompute.c */
GCKPTI_FN gckpt_result gckpti_compare(gckpt_exec *e, const gckpti_ins *ins, const gckpt_call *c,
                                      const uint16_t *narrow);

/* run/paint.c */
GCKPTI_FN void gckpti_paint_dead(gckpt_exec *e);
GCKPTI_FN void gckpti_measure_start(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_measure_end(gckpt_exec *e);

/* run/instruction.c */
GCKPTI_FN gckpt_result gckpti_run_forward(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c);
GCKPTI_FN void gckpti_run_backward(gckpt_exec *e, const gckpti_ins *ins, gckpt_call *c);

/* run/offload.c */
GCKPTI_FN void gckpti_join(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_run_copies(gckpt_exec *e, const gckpti_ins *ins);

/* run/finite.c */
GCKPTI_FN int gckpti_finite(double x);
GCKPTI_FN void gckpti_see(gckpti_look *s, double x, int id, int gradient, int64_t at);
GCKPTI_FN void gckpti_see_operands(const gckpt_exec *e, gckpti_look *s, const gckpti_ins *ins,
                                   int written);
GCKPTI_FN gckpt_result gckpti_check_finite(gckpt_exec *e, const gckpti_ins *ins, unsigned read);
GCKPTI_FN gckpt_result gckpti_check_update(gckpt_exec *e, const gckpti_ins *ins, int done);
GCKPTI_FN gckpt_result gckpti_check_leaf(gckpt_exec *e, int id, const void *values, int64_t first,
                                         int64_t n, int trained);

/* run/update.c */
GCKPTI_FN const gckpti_plan_param *gckpti_total_norm(gckpt_exec *e);
GCKPTI_FN gckpt_result gckpti_finish_gradients(gckpt_exec *e);
GCKPTI_FN void gckpti_uncount_updates(gckpt_exec *e);

/* run/picks.c */
GCKPTI_FN void gckpti_collect(gckpt_exec *e);

/* run/begin.c */
GCKPTI_FN gckpt_result gckpti_check_rows(gckpt_exec *e, int64_t rows);
GCKPTI_FN gckpt_result gckpti_begin(gckpt_exec *e, const gckpt_hyper *hyper, int inference);
GCKPTI_FN void gckpti_start_step(gckpt_exec *e);

/* run/step.c */
GCKPTI_FN gckpt_result gckpti_finish_step(gckpt_exec *e, gckpt_report *report);
GCKPTI_FN gckpt_result gckpti_run_all(gckpt_exec *e, gckpt_report *report);
#endif

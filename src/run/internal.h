#pragma once
#include "run/run.h"

/* ---- run/memory.c ---- */
typedef struct { /* a bump allocator; base NULL means it only counts bytes */
    unsigned char *base;
    size_t used;
} gckpti_bump;

/* ---- modules ---- */
/* The events to which a module can react. In parentheses: the type to which `arg` points. REACH
 * and AFTER occur only if a module has set device.watched. */
typedef enum {
    GCKPTI_ON_LAYOUT,   /* (gckpti_bump[2]: host, backend) memory is allocated, zeroed or counted */
    GCKPTI_ON_BIND,     /* desc is checked; all memory of the executor is there */
    GCKPTI_ON_FED,      /* (int64_t) feeds of this number of further rows came; may be refused */
    GCKPTI_ON_BEGIN,    /* a step begins; nothing can refuse it any more */
    GCKPTI_ON_BODY_END, /* a micro-batch is computed; MORE means that it is not, and must run */
    GCKPTI_ON_SUCCESS,  /* a step has succeeded; its losses are final */
    /* No module of GCKPT_SMALL reacts to the following events. */
    GCKPTI_ON_REACH,     /* instruction step.pc is next; MORE means to skip it */
    GCKPTI_ON_AFTER,     /* (gckpti_ins) this instruction has run */
    GCKPTI_ON_GRADIENTS, /* all gradients are divided, before the first update (all_first) */
    GCKPTI_ON_RUN_END,   /* (gckpt_result) a run has ended with this result, perhaps in mid-step */
    GCKPTI_ON_MOVED,     /* the address of a parameter's values has changed */
    GCKPTI_ON_FREE       /* the executor is freed */
} gckpti_event;

/* A module of the executor is one function, which the core calls at each event. */
#define GCKPTI_MODULE(name)                                                                        \
    GCKPTI_FN gckpt_result gckpti_##name##_module(gckpt_exec *e, gckpti_event event, void *arg)

/* Calls the modules of this build (run/modules.h) until one does not return GCKPT_OK. */
GCKPTI_FN gckpt_result gckpti_notify_all(gckpt_exec *e, gckpti_event event, void *arg);
static inline gckpt_result gckpti_notify(gckpt_exec *e, gckpti_event event, void *arg)
{
    return GCKPTI_IS_SMALL && event >= GCKPTI_ON_REACH ? GCKPT_OK
                                                       : gckpti_notify_all(e, event, arg);
}

/* ---- run/open.c ---- */
/* Nonzero if gckpt_forward refuses initial values (unless desc.allow_initial is set). */
enum { GCKPTI_CHECKS_INITIAL = GCKPTI_TEXT_BYTES > 1 };

/* A function that runs an instruction of one kind. step.pc is already after the instruction. */
typedef gckpt_result (*gckpti_handler)(gckpt_exec *e, const gckpti_ins *ins);

/* ---- run/memory.c, run/feeds.c ---- */
/* Returns how input i's gradient sum is compensated: GCKPTI_SUM_IN_OP, _IN_STEP, or 0 (not). */
static inline int gckpti_sum_mode(const gckpt_plan *p, const gckpti_plan_node *node, int i)
{
    int in_step = p->accumulates && !node->batch_invariant && p->nodes[node->in[i]].batch_invariant;
    return !(node->compensated >> i & 1) ? 0 : in_step ? GCKPTI_SUM_IN_STEP : GCKPTI_SUM_IN_OP;
}

static inline int gckpti_is_finite(double x) { return x - x == 0; }

#pragma once
#include "plan/plan.h"
#ifndef GCKPT_SMALL

/* ---- plan/tensors.c ---- */
#if GCKPTI_HAS_STAGED
#define gckpti_is_staged(p, t) gckpti_must_stage(p, t)
#else
#define gckpti_is_staged(p, t) ((void)(p), 0)
#endif

/* ---- plan/model.c ---- */
enum { GCKPTI_INSTRUCTION_COST = 16384 }; /* cost of an instruction without flops and bytes */

/* ---- plan/place.c ---- */
/* The number by which buffers are sorted for their initial priorities. AREA is size x lifetime. */
enum { GCKPTI_BY_AREA, GCKPTI_BY_LIFETIME, GCKPTI_BY_SIZE, GCKPTI_PLACE_ORDERS };

/* A level of the skyline (place.c), with two entries: at its first and at its last instruction. */
typedef struct {
    size_t height;  /* stored in the first entry */
    int begin, end; /* first and last instruction; begin is in the last entry, end in the first */
} gckpti_skyline_level;

/* A node of the tree of buffers: the latest start, the earliest end and the first priority among
 * the buffers below it that have no offset yet. */
typedef struct {
    int start, end;
    uint32_t priority;
} gckpti_branch;

typedef struct {
    gckpt_buffer *buffer; /* buffer->offset is that of the best iteration so far */
    size_t offset;        /* in this iteration */
    size_t leaf;          /* its node of the tree */
    int end;              /* last instruction at which it is live */
    uint32_t priority;
} gckpti_placement;

typedef struct {
    size_t n, length, alignment, visited; /* n: placements; length: instructions; visited: effort */
    size_t goal;                          /* greatest sum of live sizes of placements, rounded up */
    size_t resident;                      /* end of buffers that are always live, placed first */
    gckpti_skyline_level *level;          /* by instruction */
    gckpti_branch *tree;                  /* 1 is the root; n + i is leaf i, in Z-order */
    int *leaf;                            /* by leaf: the placement */
    gckpti_placement *placements;         /* in the order they begin */
    int *first;         /* placements from first[x] on begin at instruction x or later */
    int *next;          /* by placement: itself, or a later one if it is placed */
    gckpti_keyed *keys; /* 2 n, for sorting */
} gckpti_skyline;

/* ---- plan/lowered.c ---- */
/* An instruction whose operands are being listed. */
typedef struct {
    int x, position; /* its index; the position of its entry in the schedule, or -1 without one */
} gckpti_ins_at;

/* ---- plan/encode.c ---- */
/* A plan that is being written. Its arrays are in p->temp and, unlike the plan, not const. */
typedef struct {
    gckpt_plan plan;
#define GCKPTI_WRITABLE(type, name, count, optional) type *name;
    GCKPTI_PLAN_ARRAYS(GCKPTI_WRITABLE)
#undef GCKPTI_WRITABLE
} gckpti_encoder;

/* ---- passes: what features add to a plan ---- */
#if !GCKPTI_HAS_PASSES
#define gckpti_pass(p, stage, arg) ((void)(arg), GCKPT_OK)
#else
/* The stages of planning at which a feature (a folder of src) may act. In parentheses: the type to
 * which `arg` points. */
typedef enum {
    GCKPTI_PASS_START,        /* the model has tensors, no bytes or costs yet; may refuse */
    GCKPTI_PASS_ACTIVE,       /* it is known which tensors have gradients */
    GCKPTI_PASS_OPS,          /* bytes and cost of all ops are known, and there are no nodes yet */
    GCKPTI_PASS_NODE,         /* (gckpti_node) the model has this new node */
    GCKPTI_PASS_ORDER,        /* nodes have their edges, and backwards have no order yet */
    GCKPTI_PASS_BACKWARDS,    /* backwards have their order, and there are no gradients yet */
    GCKPTI_PASS_ACCUMULATORS, /* gradients that live all step exist */
    GCKPTI_PASS_GRADIENTS,    /* all gradients exist, and share no bytes yet */
    GCKPTI_PASS_BODY,         /* the mode is GCKPT_SCHEDULE, and p->entries is empty */
    GCKPTI_PASS_POLICY,       /* (gckpti_schedule) the recomputes of gckpt_recompute are missing */
    GCKPTI_PASS_SCHEDULE,     /* (gckpti_schedule) it is complete, and nothing is listed yet */
    GCKPTI_PASS_ENTRY,        /* (int) the instruction of the entry at this position is listed */
    GCKPTI_PASS_LISTED,       /* all instructions are listed, without operands */
    GCKPTI_PASS_OPERANDS,     /* (gckpti_ins_at) this instruction has all operands of the core */
    GCKPTI_PASS_CHOSEN,       /* p->best is the plan to encode; it may be lowered again */
    GCKPTI_PASS_ENCODED       /* (gckpti_encoder) the plan is complete */
} gckpti_plan_stage;

/* The passes of a feature are one function, which the planner calls at each stage. */
#define GCKPTI_PASSES(name)                                                                        \
    GCKPTI_FN gckpt_result gckpti_##name##_passes(gckpti_planner *p, gckpti_plan_stage stage,      \
                                                  void *arg)

/* Calls the passes of all features of this build (plan/passes.h), until one returns an error. */
GCKPTI_FN gckpt_result gckpti_pass(gckpti_planner *p, gckpti_plan_stage stage, void *arg);
#endif
#endif /* GCKPT_SMALL */

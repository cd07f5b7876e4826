#pragma once
#include "offload/internal.h"

/* Declarations shared by the files of layer search, which compilers see in the order of MANIFEST;
 * some are in folders of features. */

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

/* A cut's action on a node: recompute it (a drop count, gckpti_emit_backward), copy some or all of
 * its results out and back, or (0) keep them. */
enum { GCKPTI_CUT_RECOMPUTE = 1, GCKPTI_CUT_COPY = 254, GCKPTI_CUT_NEVER_KEEP };

/* ---- search/moves.c ---- */
#define GCKPTI_REMOVE INT32_MAX /* in a move: the entry at its position is removed */
/* ---- search/stages.c ---- */
/* Where stages may begin: between the user's outermost segments; where few bytes cross, and fewer
 * than at the node before; between any two nodes. */
typedef enum { GCKPTI_AT_SEGMENTS, GCKPTI_AT_NARROW, GCKPTI_AT_NODES } gckpti_border;

enum { GCKPTI_MAX_STAGES = 257 }; /* of a chain */
#define GCKPTI_REST INT32_MAX     /* in a stage's entries: the rest runs here */

/* A way to run a stage. Bytes count its own values and gradients, less values that only its own
 * forwards read of those that enter it, which it may free. */
typedef struct {
    int64_t kept;              /* bytes kept while the rest of the chain runs */
    int64_t forward, backward; /* most bytes before that, and after it */
    uint64_t cost;
    int drop; /* index of its drop counts in c->drop */
} gckpti_stage_option;

typedef struct {
    int first, end, backward, backward_end; /* ranges of nodes and of backward indices */
    int equal;                              /* first stage with equal nodes, whose options it has */
    int option, options;                    /* first option and number of options */
    int64_t gradients;                      /* bytes of gradients when its backwards begin */
    gckpti_stage_option forward;            /* it runs forward, keeping only its outputs */
} gckpti_stage;

typedef struct {
    gckpti_search *s;
    gckpti_scratch scratch;
    int *last_reader;  /* by node: last node whose forward or backward reads its value */
    int *first_reader; /* by node: first node that reads its value, or itself if a backward does */
    int64_t *livein;   /* by node: bytes of earlier values that it or later nodes read */
    int64_t widest;    /* most bytes at a narrow border: 1.5 times those between segments */
    gckpti_stage stage[GCKPTI_MAX_STAGES + 1];
    int n;             /* number of stages */
    int64_t *crossing; /* [a * (n + 1) + k]: bytes that stages a to k - 1 produce and k, .. read */
    gckpti_stage_option *option;
    int options, drops;
    unsigned char *drop;   /* of options: drop count by node of the stage */
    unsigned char *mark;   /* [i * nodes + u]: nonzero if the i-th way to keep drops node u */
    int marks, *row, rows; /* row[a * (n + 1) + b - a]: the table row of stages a to b */
    int *need;             /* by row: fewest memory steps that suffice */
    uint64_t *cost;        /* [row * (steps + 1) + m], the least cost in m steps */
    int steps;
    int64_t step;
} gckpti_chain;
#endif

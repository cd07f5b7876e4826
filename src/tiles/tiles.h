#pragma once
#include "base/base.h"

/* Row tiles: ops of a fused group, which run together, a tile of rows at a time. */
/* Attributes of gckpti_op_fused (tiles/op.c), which replaces the last op of a fused group: ops
 * that run together, a tile of rows at a time. In memory, the steps, the edges and the last op's
 * own attributes follow this struct. The op's inputs are those of the group except parameters. */
typedef struct {
    int32_t steps, edges, tile_rows;
    int32_t ranges_offset;       /* offset of gckpti_row_range[steps] in the workspace */
    int32_t inputs, last_offset; /* last_offset: of the last op's attributes */
    int32_t last_inputs, last_in[GCKPT_MAX_INPUTS]; /* of the last op as it was built */
} gckpti_fused;
typedef struct {
    int32_t id;            /* node, or -1 if the step copies an input of the group */
    int32_t height, width; /* number of rows; floats in a row */
    int32_t offset;        /* offset of its rows in the workspace; ~i: the rows of step i */
    int32_t workspace;     /* offset of its kernel's workspace */
    int32_t edge, edges;   /* first edge and number: inputs with rows or of the group */
    uint32_t padding;      /* value of padding rows, bits of a float */
} gckpti_fused_step;
typedef struct {
    int32_t input;                 /* index among the op's inputs */
    int32_t from;                  /* a step, or ~index of an input of the group */
    int32_t stride, before, reach; /* gckpt_receptive_field; all rows if reach is 0 */
} gckpti_fused_edge;
typedef struct {
    int32_t low, high;  /* rows from low to high - 1 are present */
    int32_t drop, need; /* the next tile drops rows below `drop` and needs those below `need` */
} gckpti_row_range;
/* Bytes for a gckpt_call at the start of the workspace, since stacks of firmware are small. */
enum { GCKPTI_FUSED_CALL = 1536 };
typedef char
    gckpti_fused_call_fits[sizeof(gckpt_call) + GCKPTI_ALIGN <= GCKPTI_FUSED_CALL ? 1 : -1];

/* Return the first row that is missing, and the end of the rows that the next tile computes. */
static inline int32_t gckpti_tile_first(const gckpti_row_range *range)
{
    return range->high > 0 ? range->high : 0;
}
static inline int32_t gckpti_tile_end(const gckpti_fused_step *step, const gckpti_row_range *range)
{
    return range->need < step->height ? range->need : step->height;
}

/* ---- tiles/op.c ---- */
#ifndef GCKPT_NO_TILES
/* Finds the rows that steps drop before, and need for, the tile of output rows below `end`. */
GCKPTI_FN void gckpti_next_tile(const gckpti_fused *group, const gckpti_fused_step *step,
                                const gckpti_fused_edge *edges, gckpti_row_range *range,
                                int32_t end);
#ifdef GCKPTI_SEPARATE_TU
extern GCKPTI_DATA const gckpt_op gckpti_op_fused;
#endif
#define gckpti_is_fused_op(op) ((op) == &gckpti_op_fused)
#else
#define gckpti_is_fused_op(op) ((void)(op), 0)
#define gckpti_fused_forward   NULL
#endif

#if !defined(GCKPT_NO_TILES) && !defined(GCKPT_SMALL)
/* Declarations shared by tiles/group.c and tiles/fuse.c. */
enum { GCKPTI_FUSED_OPS = 64, GCKPTI_FUSED_STEPS = GCKPTI_FUSED_OPS + GCKPT_MAX_INPUTS };

/* State of an op that may be in a fused group. */
typedef struct {
    gckpt_receptive_field rows; /* rows.inputs 0 means it cannot be in a group */
    void *attributes;           /* for row tiles */
    int last_reader;            /* id of the last op that reads it; p->n if the program reads it */
    int step;                   /* index of its step in the group that is being built, or -1 */
    int64_t live_bytes;         /* bytes live before it that it or later ops read */
} gckpti_row_op;

typedef struct {
    int32_t rows, new_rows;        /* most rows at a time; most rows that one tile computes */
    int keeps_rows;                /* nonzero if some rows stay from one tile to the next */
    int first_writer, last_reader; /* first step that writes it; last step that reads it */
    int readers, has_padding;
} gckpti_step_buffer;

/* A fused group that is being built from ops of p. */
typedef struct {
    struct gckpti_planner *p;
    gckpti_row_op *op; /* by id */
    gckpti_fused header;
    gckpti_fused_step step[GCKPTI_FUSED_STEPS];
    gckpti_fused_edge edge[GCKPT_MAX_INPUTS * GCKPTI_FUSED_STEPS];
    gckpti_row_range range[GCKPTI_FUSED_STEPS];
    gckpti_step_buffer step_buffer[GCKPTI_FUSED_STEPS];
    const gckpt_tensor *out[GCKPTI_FUSED_STEPS]; /* results of steps */
    gckpt_buffer buffers[2 * GCKPTI_FUSED_STEPS + 1];
    int buffer_count;
    uint64_t extra_cost; /* cost of the group minus the cost of its ops outside a group */
    int64_t workspace;   /* bytes */
} gckpti_fused_builder;
#endif

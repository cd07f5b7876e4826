#pragma once
#include "plan/plan.h"
#ifndef GCKPT_SMALL

/* Declarations shared by the files of layer plan (MANIFEST); some are in folders of features. */

/* ---- plan/model.c ---- */
/* Bits of p->active[id]: tensor id gets a gradient; its backward runs, since an input gets one. */
enum { GCKPTI_HAS_GRADIENT = 1, GCKPTI_HAS_BACKWARD = 2 };
enum { GCKPTI_INSTRUCTION_COST = 16384 }; /* cost of an instruction besides its flops and bytes */

/* ---- plan/place.c ---- */
/* By which number buffers are sorted for their initial priorities; AREA is size x lifetime. */
enum { GCKPTI_BY_AREA, GCKPTI_BY_LIFETIME, GCKPTI_BY_SIZE, GCKPTI_PLACE_ORDERS };

/* A level of the skyline (place.c), stored at its first and at its last instruction. */
typedef struct {
    size_t height;  /* at the first instruction */
    int begin, end; /* begin at the last instruction, end at the first */
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
    uint32_t priority;
} gckpti_placement;

typedef struct {
    size_t n, length, alignment, visited; /* visited: tree nodes and levels so far (effort) */
    size_t goal;                          /* greatest sum of live sizes, each rounded up */
    size_t resident;                      /* bytes of workspace */
    gckpti_skyline_level *level;          /* by instruction */
    gckpti_branch *tree;                  /* 1 is the root, n + i belongs to placement i */
    gckpti_placement *placements;         /* in Z-order */
    int *first, *begins; /* begins[first[x]..]: placements that begin at instruction x or later */
    gckpti_keyed *keys;  /* 2 n, for sorting */
} gckpti_skyline;

/* ---- dist/plan.c ---- */
#ifndef GCKPT_NO_RANKS
/* Returns whether the ranks need only their shards of a parameter's gradient after its REDUCE. */
GCKPTI_FN int gckpti_is_scattered(const gckpti_planner *p, int id);
GCKPTI_FN void gckpti_list_reductions(gckpti_planner *p);
GCKPTI_FN void gckpti_add_partial_sums(gckpti_planner *p);
GCKPTI_FN void gckpti_add_recv_buffers(gckpti_planner *p);
#else
#define gckpti_is_scattered(p, id) ((void)(id), 0)
#define gckpti_list_reductions(p)  ((void)0)
#define gckpti_add_partial_sums(p) ((void)0)
#define gckpti_add_recv_buffers(p) ((void)0)
#endif

/* ---- bf16/plan.c ---- */
#ifndef GCKPT_NO_BF16
GCKPTI_FN void gckpti_mark_rounding(gckpti_planner *p);
GCKPTI_FN void gckpti_mark_precision(gckpti_planner *p, const gckpt_tensor *t,
                                     gckpt_precision precision);
GCKPTI_FN size_t gckpti_place_copies(const gckpti_planner *p, const gckpt_tensor *t, int backward,
                                     size_t *copy);
GCKPTI_FN void gckpti_encode_copies(const gckpti_planner *p, const gckpti_ins *ins,
                                    size_t *operand);
/* Decides whether a plan that is otherwise complete has bf16 copies of parameters. */
GCKPTI_FN void gckpti_encode_weights(const gckpti_planner *p, gckpt_plan *plan);
#else
static inline void gckpti_mark_rounding(gckpti_planner *p) { (void)p; }
#define gckpti_mark_precision(...)                ((void)0)
#define gckpti_place_copies(p, t, backward, copy) ((void)(copy), (size_t)0)
#define gckpti_encode_copies(...)                 ((void)0)
#define gckpti_encode_weights(...)                ((void)0)
#endif

/* ---- tiles/fuse.c ---- */
#ifndef GCKPT_NO_TILES
/* Replaces ops, whose bytes and cost are known, by fused groups; sets p->has_fused. */
GCKPTI_FN void gckpti_fuse_ops(gckpti_planner *p);
#else
static inline void gckpti_fuse_ops(gckpti_planner *p) { (void)p; }
#endif

#ifdef GCKPTI_SEPARATE_TU
/* Prototypes for files that tests compile separately; gradckpt.h defines functions before use. */

/* plan/plan.c */
GCKPTI_FN uint64_t gckpti_hash_fields(uint64_t hash, const gckpti_plan_node *q,
                                      const gckpt_shape *shape, const void *attributes,
                                      const char *name);

/* plan/tensors.c */
GCKPTI_FN int gckpti_is_gathered(const gckpti_planner *p, const gckpt_tensor *t);
GCKPTI_FN gckpti_shard_range gckpti_update_shard(const gckpti_planner *p, const gckpt_tensor *t);
GCKPTI_FN size_t gckpti_shard_bytes(const gckpti_planner *p, const gckpt_tensor *t);
GCKPTI_FN unsigned gckpti_backward_needs(const gckpti_planner *p, const gckpt_tensor *t);
GCKPTI_FN int gckpti_is_repeated(const gckpt_tensor *t, int i);
GCKPTI_FN int64_t gckpti_model_size(const gckpti_planner *p, size_t bytes);

GCKPTI_FN size_t gckpti_tensor_bytes(const gckpti_planner *p, const gckpt_tensor *t, int bf16_flag);
GCKPTI_FN size_t gckpti_gradient_bytes(const gckpti_planner *p, const gckpt_tensor *t);
GCKPTI_FN int gckpti_sum_scope(const gckpti_planner *p, const gckpt_tensor *t, int i);
GCKPTI_FN size_t gckpti_add_floats(size_t *bytes, const gckpt_tensor *t);
GCKPTI_FN size_t gckpti_f32_copy_bytes(const gckpti_planner *p, const gckpt_tensor *t,
                                       int backward);

/* plan/gradients.c */
GCKPTI_FN void gckpti_model_gradients(gckpti_planner *p);

/* plan/order.c */
GCKPTI_FN int gckpti_is_use_sum(const gckpt_tensor *t);
GCKPTI_FN void gckpti_list_uses(gckpti_planner *p);
GCKPTI_FN void gckpti_order_backwards(gckpti_planner *p);
GCKPTI_FN void gckpti_find_late(gckpti_planner *p);
GCKPTI_FN int gckpti_is_in_body(const gckpti_planner *p, int target);
GCKPTI_FN int gckpti_next_write(const gckpti_planner *p, int id, int index);
GCKPTI_FN int gckpti_gradient_new(gckpti_planner *p, const gckpt_tensor *t, size_t size, int index);
GCKPTI_FN int gckpti_add_resident(gckpti_planner *p, const gckpt_tensor *t, size_t size);

/* plan/tensors.c */
GCKPTI_FN uint64_t gckpti_mul_div(uint64_t x, uint64_t a, uint64_t b);

/* plan/schedule.c */
GCKPTI_FN gckpt_result gckpti_check_reads(gckpti_planner *p, const gckpti_schedule *s);

/* plan/lowered.c */
GCKPTI_FN int gckpti_bytes_kind(gckpt_buffer_kind kind);

/* plan/place.c */
GCKPTI_FN size_t gckpti_place_by_priority(gckpti_skyline *s);
GCKPTI_FN void gckpti_set_priorities(gckpti_skyline *s, int order);
GCKPTI_FN int gckpti_skyline_new(gckpti_scratch *scratch, gckpti_skyline *s, gckpt_buffer *buffers,
                                 size_t n, size_t alignment);
GCKPTI_FN size_t gckpti_assign_offsets(gckpti_scratch *scratch, gckpt_buffer *buffers, size_t n,
                                       size_t alignment);
#endif
#endif /* GCKPT_SMALL */

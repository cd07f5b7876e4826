/* ---- the model of a request, made once and then only read; and the planner that holds it ---- */

/* What brings a value into the arena: an op whose results somebody reads, or a staged parameter. In
 * an order in which inputs come before users, those of the prologue first. */
typedef struct {
    int id;
    int in, inputs;         /* links[in..]: units whose values the forward reads, each once */
    int read, reads;        /* links[read..]: units whose values the backward reads */
    int rank;               /* of its backward; -1: none */
    int target;             /* target[target..]: where its backward puts gradients, by input */
    int64_t out, aux, work; /* bytes of its results; of its forward's workspace; rounded up */
    uint64_t cost;          /* of the forward */
    int reduce, reduces;    /* reduction[reduce..]: behind its backward */
    unsigned char accumulate, zero; /* of its backward, as gckpti_ins has them */
    unsigned char reads_aux;        /* the backward does */
    unsigned char fixed;            /* computed once: pins, side effects, the prologue */
    unsigned char effect;           /* the first forward stays, read or not */
    unsigned char recompute;        /* gckpt_recompute: computed anew for the backwards */
    unsigned char fetched;          /* its last value is read at the end */
    unsigned char in_place;         /* bit i: the result may replace the value of links[in + i] */
    unsigned char offloads;         /* what it leaves may be offloaded */
} gckpti_unit;

/* A REDUCE: sums of leaves of a tensor's gradient, behind the last backward of the body that adds
 * to it. Numbers of gradients, or -1. */
typedef struct {
    int id;
    int waits; /* the first of p->levels sums that wait */
    int work;  /* room for another rank's part, of all that are behind one backward */
    int shard; /* this rank's share of the sum, if that leaves the rest */
} gckpti_reduction;

/* Memory of a gradient. Backwards have a fixed order, their ranks, so all but its place in a
 * schedule is known before there is one. */
typedef struct {
    int id, owner;   /* the tensor it is for; the activation whose whole gradient it is, or -1 */
    int first, last; /* ranks of the backwards that write it first and use it last */
    int resident;    /* it lives through the whole step */
    /* Gradients that have the same bytes (one is written in place of another, or is passed on) are
     * a list that begins at `storage`, by the rank they begin at. Of a gradient: */
    int storage, sharer;    /* where its list begins, itself if it is alone; the next in it */
    int tail, alive, until; /* of the one that begins it: last; first still used; their last use */
    gckpt_buffer_kind kind;
    size_t size;
} gckpti_gradient;

/* Where the backward of a unit puts the gradient of an input; with a total it is scratch to be
 * added to that. Numbers of gradients, or -1. */
typedef struct {
    int unit, gradient, total;
    int next; /* target for the gradient of the same tensor, as the contract adds them, or -1 */
} gckpti_target;

/* One version of a unit's results, from its forward to its last uses; -1: none. */
typedef struct {
    int unit, start, value_end, aux_end;
    int source, sources; /* of the schedule's sources: spans whose bytes the value may take over */
    int home;            /* the span of the forward that it reloads, or itself */
    int far;             /* GCKPTI_VALUE, ..: what is offloaded behind it */
} gckpti_span;

/* A schedule, and which versions its items make and read (gckpti_find_spans). What a reload brings
 * back is offloaded right behind the last forward before it: that is no item. */
typedef struct {
    int *item, length; /* u: forward of unit u; ~u: its backward; u + units: reload */
    gckpti_span *span;
    int spans, *source;
    int *at;                  /* by position: the span that begins there, or -1 */
    uint64_t extra;           /* cost of all forwards but the first ones, and of copies */
    int64_t *live, peak;      /* bytes at each position, when the search has evaluated it */
    int64_t far;              /* likewise: bytes of slower memory */
    int *value_end, *aux_end; /* likewise, by position of a forward: last uses, or -1 */
} gckpti_schedule;

/* What a schedule comes to: instructions, and the buffers they use, yet to be placed. It owns all
 * it points to. */
typedef struct {
    gckpti_scratch scratch;
    gckpti_schedule s;
    int *place; /* the instruction of each item of the schedule, and of its end */
    gckpti_ins *ins;
    size_t *live;                  /* bytes, by instruction */
    size_t length, body, epilogue; /* instructions; where these parts begin */
    gckpt_buffer *buffers;         /* in the order they begin */
    size_t buffer_count;
    size_t *operands; /* numbers of buffers */
    size_t operand_count;
    int *value, *aux, *gradient; /* buffers, by span and by gradient; -1: none */
    int *latest; /* by unit: has it run; when buffers are listed: the span that is read now */
    size_t bound, arena, kind_bytes[GCKPT_BYTES_KINDS];
    double most, recompute; /* most: the bound, even when this machine cannot address it */
    uint64_t work, least_work, moved; /* moved: of copies to slower memory and back */
    size_t *far, offloaded; /* far[2u], [2u + 1]: where that has a unit's value, aux; its bytes */
} gckpti_draft;

typedef struct {
    uint64_t key;
    int item; /* what the key stands for */
} gckpti_keyed;
typedef struct {
    int segment, low, at; /* entries low to at of the body, yet to be written */
} gckpti_segment_part;

typedef struct gckpti_planner {
    struct gckpti_planner *next; /* of the request's next variant, or NULL */
    gckpt_graph *g;
    const gckpt_tensor **tensors; /* the graph's, or what runs instead */
    const gckpt_plan_desc *desc;
    const gckpt_term *terms;
    gckpti_variant variant;
    uint64_t least_work; /* of a step that computes nothing twice, whatever the variant */
    int term_count, n, threads, plain, looped, inference;
    int orders; /* bit i: order i of backwards may take fewer bytes than order 0, which it has */
    size_t alignment;
    gckpti_allocator *memory;
    int failed; /* out of memory somewhere */
    gckpti_scratch scratch;
    /* the model */
    unsigned char *active, *rounding; /* by id: GCKPTI_WANTED, ..; GCKPTI_ROUNDED, .. */
    size_t *work_forward, *work_backward;
    gckpt_cost *cost, *model;              /* model: by the model, whatever desc.costs say */
    const gckpt_cost *built, *built_model; /* the same of the graph as it was built, if it is not */
    int *body, body_count; /* ids of what a body's schedule is made of, read by anybody or not */
    gckpti_unit *unit;
    int units, prologue; /* prologue: the first units, computed once a step */
    int pinned;          /* how many have gckpt_recompute */
    int offloads;        /* whether some may be offloaded, */
    int64_t far;         /* to so many bytes */
    int *of;             /* unit of a tensor id, or -1 */
    int *links, link_count;
    int sources;                      /* inputs of a unit that it may replace, at most; 1 or more */
    int *backward, ranks, body_ranks; /* units by rank; ranks below body_ranks are the body's */
    gckpti_gradient *gradient;
    int gradients;
    gckpti_target *target;
    int targets;
    int leaves, levels;                      /* of a step; sums of a rank's own that may wait */
    gckpti_reduction *reduction;             /* in the order of their backwards */
    int reductions, *reduction_of;           /* by id, or -1 */
    int64_t *gradient_at, *gradient_between; /* bytes of gradients, by rank */
    struct gckpti_bound *bound;              /* NULL: nobody has asked yet (gckpti_open_bounds) */
    int *first_use; /* by id: the first target for its gradient, as the contract has it, or -1 */
    int *whole;     /* by id: the gradient that all of it is added up in, or -1 */
    int offered;    /* some op has this form */
    /* what passes over a schedule note of units: forwards still to come and what is read behind
     * (gckpti_drop), the latest span (gckpti_find_spans); of pins: was there a forward, is its
     * result let go, what to compute again */
    int *left, *latest, *queue;
    unsigned char *behind, *computed, *stale;
    /* what a maker writes: the body of a schedule */
    gckpti_segment_part *inside; /* gckpti_make_segments: the segments it is in */
    int *late, *turn, *when; /* gckpti_find_late: units in its order; by unit: turns, first ranks */
    int *made;
    size_t made_length, made_capacity;
    gckpti_draft draft, best; /* the latest; the one to keep */
    gckpti_scratch pass;      /* for one pass over a draft, cleared by the next that needs it */
    double most;              /* of store-all; 0: not drafted yet */
} gckpti_planner;

/* Of a tensor: it gets a gradient; its backward runs, since an input gets one. */
enum { GCKPTI_WANTED = 1, GCKPTI_RUNS = 2 };

static int gckpti_is_loss(const gckpt_tensor *t) { return t->op && t->op->flags & GCKPT_LOSS; }

/* A parameter of which other ranks have most values: they are gathered in the arena. */
static int gckpti_is_gathered(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_store *s = p->g->store;
    return t->kind == GCKPTI_PARAM && gckpti_array_cut(s, &s->params[t->index], GCKPTI_VALUES);
}

/* A parameter that ops read in the arena: gathered ones, or by desc.stage_parameters all; packed
 * ones, unless the processor's f32 kernels of all that reads them take what is stored. */
static int gckpti_is_staged(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_plan_desc *d = p->desc;
    if (t->kind != GCKPTI_PARAM || d->stage_parameters || gckpti_is_gathered(p, t))
        return t->kind == GCKPTI_PARAM;
    return p->g->store->params[t->index].p.storage != GCKPT_STORED_F32 &&
           (d->mode != GCKPT_INFERENCE || d->backend || d->precision != GCKPT_FP32 || t->floats);
}

/* Bytes of the largest share of a tensor's floats: rank 0's. All plan with that. */
static size_t gckpti_share_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    int64_t first;
    return sizeof(float) *
           (size_t)gckpti_share(gckpti_elements(&t->shape), 0, p->g->store->ranks, &first);
}


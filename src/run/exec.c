/* =================================================================================================
 * >>exec: walks a plan's list over one arena
 *
 * An executor interprets: for each instruction it fills a gckpt_call with addresses (operands in
 * the arena, leaves where they are) and hands it to the kernel that its backend found for the op.
 * What happens between ops (fill, add, convert, update) are calls of the backend too. No function
 * here reads or writes what lies in the arena, or in a parameter, a feed or a loss's sum where the
 * backend has them, but through gckpti_on_host, which copies where it must.
 * ============================================================================================== */
enum { GCKPTI_IDLE, GCKPTI_RUNNING, GCKPTI_STREAMING };
enum { GCKPTI_CANARY = 64, GCKPTI_CANARY_BYTE = 0xc5 };

typedef struct { /* what a loss's kernels add to, in the backend's memory */
    double sum;
    int64_t count;
} gckpti_loss_total;

typedef struct {
    gckpt_kernel forward, backward; /* of an op; NULL: the backend has none, the host runs it */
    gckpt_precision precision;      /* that they compute in */
    const void *data;               /* of a leaf or cache: its values, where the backend has them */
} gckpti_exec_node;

typedef struct {
    int index;     /* in the store */
    int nth;       /* of params[i]: the plan's i-th parameter in order of creation */
    int had;       /* state arrays before this executor was made */
    size_t square; /* its first block's in exec->squares */
} gckpti_exec_param;

typedef struct {
    int node;                         /* of the plan; -1: no instruction reads it */
    const unsigned char *feed;        /* the program's rows, or copies of them, from feed_row on */
    unsigned char *copy, *on_backend; /* desc.copy_feeds; a micro-batch in memory of its own */
} gckpti_exec_input;

typedef struct {
    int ready;   /* the instruction it is complete with; the plan's length: the end of the step */
    float *to;   /* gckpt_collect; NULL: it is not collected */
    size_t size; /* floats that are there */
} gckpti_exec_pick;

typedef struct {
    gckpti_loss_total seen; /* a copy */
    int64_t expected;       /* counted from the feeds; -1: it was not */
} gckpti_exec_term;

/* Where a step of several leaves is, and this rank among others. A leaf takes as many rounds as the
 * largest of those that other ranks run at this time has micro-batches, one at least; those that
 * are `hollow` run only what takes part in exchanges. So does a rank that failed, to the next
 * meeting of all. */
typedef struct {
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
} gckpti_crew;

struct gckpt_exec {
    gckpti_object object;
    gckpti_allocator memory;
    const gckpt_plan *plan; /* its own copy, or a constant of the program */
    gckpt_store *store;
    gckpt_exec_desc desc;
    gckpt_backend backend; /* complete */
    gckpti_binding binding;
    gckpt_isa isa;
    const void *kernels; /* of that instruction set, for the processor's backends */
    gckpti_runner runner;
    int team; /* threads of a run */
    /* memory: tables and copies are the host's, arena and side the backend's */
    unsigned char *arena;
    void *owned, *tables, *copies, *side; /* owned: arena and canary, when taken here */
    size_t owned_size, tables_size, copies_size, side_size, caches_size;
    unsigned char *far; /* what is offloaded, unless the program has callbacks for it */
    int moves, due;     /* the backend moves it; the instruction that is to wait, or INT32_MAX */
    gckpti_exec_node *nodes;
    gckpti_exec_param *params;
    gckpti_exec_input *inputs;
    gckpti_exec_term *terms;
    gckpti_exec_pick *picked; /* by pick of the plan */
    gckpti_crew *crew;        /* NULL: one leaf and one rank */
    uint64_t *hashes;         /* GCKPT_DEBUG_RECOMPUTE: by node, value and aux */
    unsigned char *borrowed,
        *picks;                /* own memory: copies of what the host looks at, of the picks */
    gckpti_loss_total *losses; /* by term and leaf */
    gckpt_loss_scale *scales;  /* the same, of this micro-batch */
    float *squares;            /* square sums by block, of all parameters */
    size_t square_count;
    /* gckpt_cache: those of `caches_of`, which is this executor if they are its own */
    gckpt_exec *caches_of;
    unsigned char *caches;
    int64_t capacity, news;       /* positions of each; those that a call adds */
    int64_t position, cache_rows; /* what they hold: positions, of so many rows of the batch */
    uint32_t *nonfinite; /* the backend's: one of them is not; NULL: the host looks itself */
    /* this step */
    int state;
    uint64_t step, packs; /* the store's when it began */
    gckpt_hyper hyper;
    float clip_scale;
    double grad_norm;
    uint64_t unbiased;              /* 0, or the update's number that these are of: */
    double rest[2];                 /* 1 - beta^number */
    int pc, finished;               /* finished: it came to its end */
    int64_t row, row_end, feed_row; /* this micro-batch; end of the rows fed; the feeds' first */
    int accumulators_cleared;
    int streamed;       /* rows stream in: nothing is known of those to come */
    int counts_settled; /* what the losses counted was checked, or is promised: it may update */
    int updating;       /* a parameter was changed, or the sums were divided */
    int writes_back;    /* divided gradients: they are read, or the backend does so anyway */
    size_t next_death;  /* of plan->lives */
    int repeats;        /* the backend may repeat micro-batches, */
    int repeating;      /* and is asked to: this run is not in pieces; */
    int recording;      /* it had none, and is told at this one's end */
    int painted_steps;  /* GCKPT_DEBUG_MEASURE */
    size_t touched;
};

/* What it runs on. */
static inline const gckpt_backend *gckpti_on(const gckpt_exec *e)
{
    return GCKPTI_LEAN ? &gckpti_backend_plain : &e->backend;
}

/* NULL: one leaf and one rank. */
static inline const gckpti_ranking *gckpti_ranking_of(const gckpt_plan *p)
{
    return GCKPTI_LEAN ? NULL : p->ranking;
}

static inline unsigned gckpti_debug(const gckpt_exec *e) { return GCKPTI_LEAN ? 0 : e->desc.debug; }

static void gckpti_call_start(const gckpt_exec *e, const gckpti_node *node, int id, int64_t rows,
                              gckpt_call *c);
/* That of an instruction set, with its kernels; NULL: it is not here (section fast). */
static const gckpt_backend *gckpti_cpu_backend(gckpt_isa isa, const void **kernels);

/* A picked value or gradient, as floats. */
static size_t gckpti_pick_bytes(const gckpt_plan *p, const gckpti_plan_pick *pick)
{
    return (size_t)gckpti_elements(&p->nodes[pick->id].shape) * sizeof(float);
}

/* Bytes of an executor's own copy of its plan; a constant of the program is not copied. */
static size_t gckpti_copied_bytes(const gckpt_plan *p)
{
    return !GCKPTI_LEAN && p->block ? gckpti_plan_copy(NULL, p) : 0;
}


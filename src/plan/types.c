/* =================================================================================================
 * >>plan: the model of a request, schedules, drafts, layout, plans
 *
 * From a request to a plan each step is a function of the one before:
 *   model     (gckpti_make_model) what planning knows of one variant of a request (forms of ops,
 *             an order of backwards), made once and then only read. A unit is an op that every plan
 *             runs (or a parameter that is staged: copied into the arena); links say which units
 *             its forward and its backward read. A backward's place in the order is its rank. So
 *             which gradients there are, which share memory and how long they live, counted in
 *             ranks, is known here already.
 *   schedule  a list of ints: u is the forward of unit u (a forward may be repeated), ~u its
 *             backward. Makers (store-all, memory-poor, segments, the user, a file, >>optimal)
 *             write the body; gckpti_finish adds the rest and what pins ask for, and drops every
 *             forward nobody reads, so that a recompute stops by itself at the last value that is
 *             needed.
 *   draft     (gckpti_make_draft) what a schedule comes to. Each forward makes a new version of its
 *             unit's results, and each use reads the latest: a version and its uses are a span.
 *             From these: instructions, the buffers they use as operands, how long each buffer
 *             lives, the bytes live at each instruction (the greatest is the bound), the work.
 *             A value may take over the buffer of one that dies where it begins.
 *   place     (gckpti_place) an offset for each buffer.
 *   encode    (gckpti_encode) the plan: constant data that points to no graph.
 * A draft owns its arrays (its numbers of units and gradients are the model's); gckpti_planner has
 * the model, what is proven about it (>>bound), and two drafts, the latest and the best so far.
 *
 * A schedule has three parts. The prologue computes what depends on parameters only, once a step;
 * the body runs for each micro-batch; the epilogue sends gradients through the prologue's ops and
 * updates. A plan whose batch is larger than the graph's rows is "looped": parameter gradients live
 * through the whole step, one accumulator per use (manual, 5f), with its low part behind it where
 * it is a sum over rows (5e).
 * ============================================================================================== */
#if GCKPTI_LEAN /* flash is short; gckpt_plan_c sees to it that nothing is cut */
typedef unsigned char gckpti_byte;
typedef int16_t gckpti_id;
typedef uint16_t gckpti_nth;
#else
typedef int gckpti_byte, gckpti_id;
typedef size_t gckpti_nth;
#endif
#define GCKPTI_NAMELESS ((gckpti_nth)GCKPTI_NONE)

typedef struct {
    const gckpt_op *op;
    const void *data; /* of constants */
    size_t aux_bytes;
    gckpt_shape shape;                      /* with all rows of the micro-batch */
    gckpti_nth attributes, attribute_bytes; /* first of the plan's words */
    gckpti_nth name; /* offset into the plan's names; GCKPTI_NAMELESS: none */
    gckpti_id base;
    gckpti_id index; /* of the parameter or input in the plan; -1: of an op that does not run */
    gckpti_id in[GCKPT_MAX_INPUTS];
    gckpti_byte kind, inputs, type, batchless, rounding; /* rounding: GCKPTI_ROUNDED, .. */
} gckpti_node;

/* What else is known of a node; nothing of it runs, but for offloading. */
typedef struct {
    gckpt_cost cost;
    size_t far_value, far_aux; /* where slower memory has what is offloaded; GCKPTI_NONE: nowhere */
    uint64_t hash;             /* of the graph up to it, as it was built: this is what runs */
} gckpti_told;

typedef struct {
    int64_t elements;
    uint32_t init[3];  /* bits of gckpt_init */
    uint32_t momentum; /* of a gckpt_running, bits */
    gckpti_nth name;
    gckpti_id node;
    gckpti_id place;    /* in the store it was planned with */
    gckpti_id measured; /* not trained but measured by so many ops; 0: neither */
    gckpti_byte trained;
    gckpti_byte external; /* its values are the program's */
    gckpti_byte storage;  /* gckpt_storage */
} gckpti_plan_param;

static int gckpti_updates(const gckpti_plan_param *q) { return q->trained || q->measured; }

typedef struct {
    unsigned char kind;  /* gckpt_kind */
    unsigned char first; /* the first forward of its tensor */
    /* bit i: input i's gradient is added to; is cleared before. REDUCE: `accumulate` is 1 where
     * each rank needs its share of the sum only. */
    unsigned char accumulate, zero;
    gckpti_id id;        /* tensor; UPDATE: parameter of the plan */
    gckpti_id uses;      /* accumulators to add up first */
    gckpti_nth operands; /* where its offsets begin: gckpti_operands_of */
} gckpti_ins;

/* Where an instruction's operands lie, by name: offsets into the arena (in a draft: its buffers),
 * or GCKPTI_NONE. `gradient` is that of the output, of an UPDATE the parameter's (or its shard); it
 * has uses - 1 `more` accumulators. An input's gradient that has a `total` is scratch, to be added
 * to that. REDUCE: `gradient` is the first accumulator of the tensor's uses in the body, where the
 * sum is in the end; `more` are the others, then the sums of leaves that wait (gckpti_levels);
 * `work`: room for what another rank sends; `shard`: where this rank's share of the sum goes, NONE:
 * it stays where it is. Of what is reduced, UPDATE and BACKWARD add up the epilogue's uses only. */
typedef struct {
    size_t out, aux, work, gradient, shard;
    struct {
        size_t value, gradient, total;
    } in[GCKPT_MAX_INPUTS];
    const size_t *more;
} gckpti_operands;

/* Names them in the order they are stored: FORWARD: out, aux, work, values; BACKWARD: out, aux,
 * work, gradient, then value, gradient, total of each input, more; UPDATE: gradient, more; OFFLOAD,
 * RELOAD: out, aux; REDUCE: work, gradient, shard, more, waiting sums. */
static void gckpti_operands_of(const size_t *stored, const gckpti_ins *ins, int inputs,
                               gckpti_operands *o)
{
    stored += ins->operands;
    o->out = o->aux = o->work = o->gradient = o->shard = GCKPTI_NONE;
    for (int i = 0; i < inputs; i++)
        o->in[i].value = o->in[i].gradient = o->in[i].total = GCKPTI_NONE;
    if (ins->kind != GCKPT_UPDATE && ins->kind != GCKPT_REDUCE) {
        o->out = *stored++;
        o->aux = *stored++;
    }
    if (ins->kind == GCKPT_OFFLOAD || ins->kind == GCKPT_RELOAD)
        return;
    if (ins->kind != GCKPT_UPDATE)
        o->work = *stored++;
    if (ins->kind != GCKPT_FORWARD)
        o->gradient = *stored++;
    if (ins->kind == GCKPT_REDUCE)
        o->shard = *stored++;
    for (int i = 0; i < inputs && ins->kind <= GCKPT_BACKWARD; i++) {
        o->in[i].value = *stored++;
        if (ins->kind == GCKPT_FORWARD)
            continue;
        o->in[i].gradient = *stored++;
        o->in[i].total = *stored++;
    }
    o->more = stored;
}

/* What a request leaves open before there is any schedule; all 0: the graph as it was built. */
typedef struct {
    int form;  /* of the ops that have several (gckpti_take_form) */
    int order; /* of backwards; 0: reverse order of creation */
    int near;  /* nothing is offloaded, though the request allows it */
} gckpti_variant;

typedef struct {
    int id;
    uint32_t weight; /* bits of a float */
    int regulariser;
    int64_t unit;     /* elements of input 0 that count as one, or 1 */
    gckpt_cost built; /* of the op that was built, if not of the one that runs */
} gckpti_plan_term;
typedef struct {
    int id, gradient;
    size_t offset;
} gckpti_plan_pick;
/* What an executor does about picks; reached only from plans that have some. */
typedef struct {
    void (*bind)(gckpt_exec *e);
    gckpt_result (*check_collected)(gckpt_exec *e, int64_t rows);
    void (*collect_rows)(gckpt_exec *e);
    void (*add_uses)(gckpt_exec *e);
} gckpti_picking;
static void gckpti_bind_picks(gckpt_exec *e);
static gckpt_result gckpti_check_collected(gckpt_exec *e, int64_t rows);
static void gckpti_collect_rows(gckpt_exec *e);
static void gckpti_add_uses(gckpt_exec *e);
static const gckpti_picking gckpti_picked = { gckpti_bind_picks, gckpti_check_collected,
                                              gckpti_collect_rows, gckpti_add_uses };

/* What an executor does about caches; likewise. */
typedef struct {
    gckpt_result (*make)(gckpt_exec *e);
    gckpt_result (*check)(gckpt_exec *e, int64_t rows);
} gckpti_caching;
static gckpt_result gckpti_exec_caches(gckpt_exec *e);
static gckpt_result gckpti_check_caches(gckpt_exec *e, int64_t rows);
static const gckpti_caching gckpti_cached = { gckpti_exec_caches, gckpti_check_caches };

/* What an executor does about leaves and other ranks; likewise. */
typedef enum {
    GCKPTI_CALL_NONE,
    GCKPTI_CALL_STEP,
    GCKPTI_CALL_STREAM,
    GCKPTI_CALL_GATHER,
    GCKPTI_CALL_SAVE
} gckpti_ranks_call;
typedef struct {
    void (*tables)(gckpt_exec *e, unsigned char *base, size_t *used);
    gckpt_result (*bind)(gckpt_exec *e);
    int64_t (*rows)(gckpt_exec *e, int64_t rows);
    int64_t (*batches)(const gckpt_exec *e, int64_t rows);
    gckpt_result (*begin)(gckpt_exec *e, int64_t rows, gckpt_result result);
    gckpt_result (*call)(gckpt_exec *e, gckpti_ranks_call call, int64_t number,
                         gckpt_result result);
    int (*round)(gckpt_exec *e);
    gckpt_result (*next)(gckpt_exec *e);
    gckpt_result (*end)(gckpt_exec *e);
    int (*skips)(gckpt_exec *e, const gckpti_ins *ins);
    gckpt_result (*failed)(gckpt_exec *e, gckpt_result result);
    gckpt_result (*meet)(gckpt_exec *e, gckpt_result result);
    void (*reduce)(gckpt_exec *e, const gckpti_ins *ins);
    int (*gather)(gckpt_exec *e, const gckpti_param *q, const float *share, float *to);
    void (*share)(const gckpt_exec *e, const gckpti_ins *ins, gckpt_pass *pass);
    void (*updated)(gckpt_exec *e, const gckpti_param *q);
    void (*squares)(gckpt_exec *e);
    void (*leave)(gckpt_exec *e);
} gckpti_ranking;
static void gckpti_crew_tables(gckpt_exec *e, unsigned char *base, size_t *used);
static gckpt_result gckpti_crew_bind(gckpt_exec *e);
static int64_t gckpti_crew_rows(gckpt_exec *e, int64_t rows);
static int64_t gckpti_crew_batches(const gckpt_exec *e, int64_t rows);
static gckpt_result gckpti_crew_begin(gckpt_exec *e, int64_t rows, gckpt_result result);
static gckpt_result gckpti_crew_call(gckpt_exec *e, gckpti_ranks_call call, int64_t number,
                                     gckpt_result result);
static int gckpti_set_round(gckpt_exec *e);
static gckpt_result gckpti_next_round(gckpt_exec *e);
static gckpt_result gckpti_end_stream(gckpt_exec *e);
static int gckpti_skips(gckpt_exec *e, const gckpti_ins *ins);
static gckpt_result gckpti_drain(gckpt_exec *e, gckpt_result result);
static gckpt_result gckpti_meet(gckpt_exec *e, gckpt_result result);
static void gckpti_run_reduce(gckpt_exec *e, const gckpti_ins *ins);
static int gckpti_run_gather(gckpt_exec *e, const gckpti_param *q, const float *share, float *to);
static void gckpti_pass_share(const gckpt_exec *e, const gckpti_ins *ins, gckpt_pass *pass);
static void gckpti_gather_updated(gckpt_exec *e, const gckpti_param *q);
static void gckpti_gather_squares(gckpt_exec *e);
static void gckpti_leave(gckpt_exec *e);
static const gckpti_ranking gckpti_ranked = {
    gckpti_crew_tables,    gckpti_crew_bind,  gckpti_crew_rows,  gckpti_crew_batches,
    gckpti_crew_begin,     gckpti_crew_call,  gckpti_set_round,  gckpti_next_round,
    gckpti_end_stream,     gckpti_skips,      gckpti_drain,      gckpti_meet,
    gckpti_run_reduce,     gckpti_run_gather, gckpti_pass_share, gckpti_gather_updated,
    gckpti_gather_squares, gckpti_leave
};

/* One block of memory holds it all, or (gckpt_plan_c) the program's constants do. A change of any
 * of these types is a change of GCKPT_PLAN_FORMAT. */
struct gckpt_plan {
    gckpti_object object;
    int format, contract; /* GCKPT_PLAN_FORMAT, GCKPT_CONTRACT */
    gckpti_allocator memory;
    void *block;          /* this; NULL: a constant of the program */
    uint64_t hash, check; /* gckpt_plan_hash; the same of what runs */
    gckpti_variant variant;
    gckpt_mode mode;
    gckpt_optimiser optimiser;
    int looped, update_in_backward, threads, made_for, state_slots;
    gckpt_precision precision;
    int64_t rows, batch;
    size_t alignment, arena, bound, kind_bytes[GCKPT_BYTES_KINDS];
    double recompute;
    uint64_t work, least_work, proven_work, offload_work;
    size_t proven_bytes, offloaded; /* offloaded: bytes of slower memory */
    const gckpti_node *nodes;
    const gckpti_told *told; /* by node; NULL, as `live` and `lives`: left out (GCKPT_SMALL) */
    const gckpti_plan_param *params;
    const gckpti_ins *list;
    const size_t *live;     /* bytes live while an instruction runs */
    const size_t *operands; /* of all instructions */
    const gckpti_plan_term *terms;
    const gckpti_plan_pick *picks;
    const gckpt_buffer *lives; /* buffers, by end */
    const uint32_t *words;     /* attributes */
    const char *names;
    size_t node_count, param_count, length, operand_count, term_count, pick_count, life_count,
        word_count, name_bytes;
    size_t inputs;
    int body, epilogue;            /* where these parts of the list begin */
    int mixer;                     /* node that mixes rows, or -1 */
    const gckpti_packing *packing; /* NULL: no parameter is packed */
    const gckpti_picking *picking; /* NULL: there are no picks */
    const gckpti_caching *caching; /* NULL: there are no caches */
    const gckpti_ranking *ranking; /* NULL: one leaf and one rank, so REDUCE does not occur */
    int leaves, ranks;
    gckpt_shard shard;
    uint64_t link_work;
};

/* Sums that wait in the binary counter of so many leaves, a power of two. */
static int gckpti_levels(int leaves)
{
    int n = 0;
    while (leaves >> n > 1)
        n++;
    return n;
}


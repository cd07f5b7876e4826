#if defined(GCKPT_SMALL) || defined(GCKPT_NO_TRAINING)
#undef GCKPT_NO_RANKS
#define GCKPT_NO_RANKS
#endif
/* The part of a training that each of N processes (ranks) holds. With fp32, AdamW and P parameters,
 * the values, gradients and optimiser state in the memory of one rank take: NONE 16 P bytes; STATE
 * 8 P + 8 P / N (ZeRO-1); GRADIENTS 4 P + 12 P / N (ZeRO-2); VALUES 16 P / N (ZeRO-3, FSDP).
 * In gckpt_plan_kind_bytes, GCKPT_BYTES_REDUCTION counts partial sums of virtual ranks and receive
 * buffers, _GATHERED gathered values of sharded parameters. Rajbhandari et al. 2020. */
typedef enum {
    GCKPT_SHARD_NONE,
    GCKPT_SHARD_STATE,
    GCKPT_SHARD_GRADIENTS,
    GCKPT_SHARD_VALUES
} gckpt_shard;

/* gckpt_plan_desc.ranks */
typedef struct {
    /* Number of virtual ranks, a power of two; 0 selects 1. Row r of a step belongs to virtual rank
     * floor(r virtual_ranks / batch). Each virtual rank sums its rows by itself, so that results
     * depend on their number but not on the number of ranks, each of which runs virtual_ranks /
     * ranks of them, at least one (manual, 5e). Micro-batches end where virtual ranks end. Above 1
     * update_in_backward and gckpt_step_begin are refused. In INFERENCE with 1, all ranks run all
     * rows. gckpt_plan_info.hash depends on the number, and .step_cost is that of one rank, in
     * which the only micro-batch of a virtual rank counts whole. */
    int virtual_ranks;
    /* Cost (gckpt_cost) of gathering 2^20 bytes from other ranks, for GCKPT_SHARD_VALUES, where a
     * FORWARD of a parameter gathers its values. In nanoseconds: 1048576 / (GB/s). Default 0. */
    uint64_t link_cost;
    /* If nonzero, communication overlaps computation: each all-gather begins early enough, judging
     * by link_cost and the costs of the ops, that it ends before its first use, as far as the
     * budget has room for buffers that live longer (with budget 0, without making the plan larger).
     * If 0 (default), it begins immediately before its first use. Overlap never makes a budget
     * infeasible, and gckpt_plan_info.cost omits it. GCKPT_SCHEDULE ignores it. */
    int overlap;
} gckpt_rank_options;

/* Returns how many of a step's (INFERENCE: a call's) `rows` rows rank `rank` is fed, and sets
 * *first (may be NULL) to the index of the first of them. With one rank these are all rows. */
GCKPT_API int64_t gckpt_plan_rank_rows(const gckpt_plan *plan, int64_t rows, int rank,
                                       int64_t *first);

typedef struct gckpt_transport gckpt_transport;
#ifndef GCKPT_NO_RANKS
/* Moves bytes between ranks; supplied by the program: MPI, NCCL, sockets, threads (examples/mpi.h,
 * nccl.h). One exchange is pending at a time. The thread that runs the step calls these functions
 * between instructions and, on the CPU, within them. All ranks make the same exchanges in the same
 * order, on machines of one byte order. The executor does the arithmetic. Each rank feeds its own
 * rows (gckpt_plan_rank_rows); the argument `rows` and losses are those of all ranks. If one rank
 * refuses or cancels a step, all do, with its text. E_PEER means that a rank does not answer: free
 * this executor, and, if parameters were being updated, load a checkpoint. */
struct gckpt_transport {
    int rank, size;   /* rank and number of ranks, as in gckpt_store_ranks */
    int device_aware; /* nonzero: accepts addresses in a backend's own memory */
    /* Starts to send to and receive from rank `peer`, 0 bytes or more. Returns 1; 0 on failure. */
    int (*exchange)(void *user, int peer, const void *send, size_t send_bytes, void *receive,
                    size_t receive_bytes);
    /* Returns 1 if the exchange is complete, 0 if not yet, -1 if it failed; may yield to other
     * programs first. NULL if exchange waits itself. */
    int (*done)(void *user);
    /* Makes pending and later exchanges of other ranks with this one fail, and stops using the
     * buffers of the pending one. If NULL, the other ranks wait for their timeout. */
    void (*abort)(void *user);
    double (*clock)(void *user); /* returns seconds; NULL disables the timeout */
    double timeout;              /* seconds without an answer until E_PEER; 0 disables it */
    void *user;                  /* for the functions */
    /* For a backend with use_comm_queue, on its own memory; both functions or none, with abort.
     * enqueue adds an exchange to that queue; returns 0 if it failed. enqueued_done returns as
     * done, for all that was enqueued so far; called where the host must wait, so the timeout
     * includes queued computation. */
    int (*enqueue)(void *user, void *queue, int peer, const void *send, size_t send_bytes,
                   void *receive, size_t receive_bytes);
    int (*enqueued_done)(void *user);
};

/* Sets that this process is number `rank` of `ranks` processes (a power of two; the default is 0 of
 * 1). Parameters of more than 4096 elements are cut into blocks of 4096. A rank's shard is a range
 * of blocks (gckpt_parameter.first, .count): the elements that it updates, whose state and, with
 * VALUES, whose values it has. Each rank allocates the size of the largest shard. VALUES also cuts
 * frozen parameters, except external and quantised ones. Returns E_ARG if values or state exist
 * already. A plan is for the store's ranks and shard, the same on all ranks. */
GCKPT_API gckpt_result gckpt_store_ranks(gckpt_store *store, int rank, int ranks,
                                         gckpt_shard shard);

/* A collective call of all ranks, between steps. Writes all values of parameter `index` to `to`
 * (NULL on ranks that do not need them), and their hash to *hash (may be NULL; 0 after an error).
 * With index -1 and `to` NULL, the hash is what gckpt_store_hash returns in one process. */
GCKPT_API gckpt_result gckpt_gather_values(gckpt_exec *exec, int index, float *to, uint64_t *hash);
/* Returns the bytes sent to other ranks so far by exchanges. */
GCKPT_API uint64_t gckpt_exec_bytes_sent(const gckpt_exec *exec);
#ifndef GCKPT_NO_STDIO
/* Saves the whole store in one file, as gckpt_store_save: all ranks call it between steps, and rank
 * 0 writes `path` (others ignore their path) while the owners of shards send it their values and
 * state. After an error the old file is unharmed, unless the text says that the new one is in place
 * (GCKPT_E_PEER: either). Ranks wait for rank 0's disk, so choose a longer transport timeout. Any
 * number of ranks loads the file by gckpt_store_load, each its shards. */
GCKPT_API gckpt_result gckpt_ranks_save(gckpt_exec *exec, const char *path);
#endif
#endif /* GCKPT_NO_RANKS */

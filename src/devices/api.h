#ifndef GCKPT_NO_DEVICES
/* >>api-backend -----------------------------------------------------------------------------------
 * A backend executes plans. It is a table of functions, one constant object that is identified by
 * its address. The executor interprets the plan and calls them. If a backend has its own memory,
 * arena, parameters, state, feeds, constants and sums of losses are there, and only its functions
 * touch them (between steps the store also copies parameters and state, and knows which copy is the
 * newest: gckpt_store_pull).
 *
 * An executor calls from one thread, several executors from several; executors of one store on
 * different backends alternate by whole steps. Calls take effect in order. A backend with its own
 * memory may return earlier, except that copy_in returns after it has read the host's bytes,
 * copy_out after it has written them, and finish when all is done. The executor calls finish before
 * it needs a result: at the end of a step, and before the first update if that depends on a norm or
 * on counts that the feeds do not tell. A backend without its own memory returns when a call is
 * done. A call, its host data (attributes, shapes) and the structs below are valid until the
 * function returns; their other pointers are the backend's. All results must obey the numeric
 * specification (manual, 5). An error found at the end of a step comes after its updates: weights
 * may have changed although the step is not counted; load a checkpoint. */

/* The parameters of a micro-batch that a backend replays. Only these may differ from an earlier
 * micro-batch of the same owner and `rows`: first row, position, seed and step of its calls,
 * and loss_scale of its losses, by gckpt_call.id. */
typedef struct {
    int id;
    float scale;
} gckpt_loss_scale;
typedef struct {
    const void *owner; /* the executor */
    int64_t first_row, rows, position;
    uint64_t seed, step;
    const gckpt_loss_scale *scales; /* host memory */
    int losses;                     /* length of scales */
} gckpt_step_params;

struct gckpt_backend {
    const char *name; /* a plan for this backend runs on backends of this name only */
    void *context;    /* passed to the functions, not NULL; call->backend of kernels (CPU: NULL) */
    int own_memory;   /* if nonzero, the host cannot use its memory; then all functions up to
                       * `finish` except workspace are required. If 0, the CPU's plain functions
                       * replace functions that are NULL and kernels that `find` does not return */
    int writes_back;  /* if nonzero, update always acts as with write_back (and needs no scratch) */
    void *(*allocate)(void *context, size_t bytes, size_t alignment); /* NULL if out of memory */
    void (*release)(void *context, void *memory, size_t bytes);
    /* Copy any number of bytes at any address, in and between steps. */
    void (*copy_in)(void *context, void *to, const void *host, size_t bytes);
    void (*copy_out)(void *context, void *host, const void *from, size_t bytes);
    void (*copy)(void *context, void *to, const void *from, size_t bytes);
    /* Called when planning, with `call` as op->shape left it for plain kernels. Sets
     * workspace_forward and workspace_backward; for fast kernels (find_fast) also sets mixes_rows
     * if their bits depend on the size of micro-batches, and precision to GCKPT_BF16 if it has none
     * for these shapes. in[i].bf16, out_bf16 and grad_out_bf16 only say which tensors the plan
     * keeps as bf16. A function of op, call and the backend's name only. A kernel's workspace
     * begins a multiple of 64 bytes after copies that have the plan's alignment. */
    gckpt_result (*workspace)(void *context, const gckpt_op *op, gckpt_call *call);
    /* Returns the kernel of an op's forward or backward, found by op->name or, for users' ops, by
     * op; called for each instruction when an executor is made, perhaps repeatedly, with the same
     * result. If it returns NULL, the op's own kernel runs; for a backend with its own memory it
     * runs on the host, on copies (slow). The op's own kernels define the layout of saved data: a
     * backend that uses another layout must have kernels for forward and backward. */
    gckpt_kernel (*find)(void *context, const gckpt_op *op, gckpt_kind kind);
    /* Work between ops. Only backend, threads, seed, step, first_row, rows and precision of `call`
     * are set. fill writes a word n times, from an address that is a multiple of 4; convert serves
     * bf16 plans (without them it may be NULL). */
    void (*fill)(const gckpt_call *call, void *to, uint32_t word, int64_t n);
    void (*add)(const gckpt_call *call, float *to, const float *from, int64_t n); /* to += from */
    void (*convert)(const gckpt_call *call, const gckpt_conversion *conversion);
    void (*update)(const gckpt_call *call, const gckpt_update_pass *pass);
    /* Waits until all calls are done. Returns NULL or the first error, which later calls return as
     * well, until all memory of the backend is released. */
    const char *(*finish)(void *context);
    /* All functions below may be NULL. A backend that has all kernels of a micro-batch can capture
     * and replay it. The executor calls replay before the first instruction. If replay returns 1,
     * all instructions have been replayed with `params`. If 0, the executor issues them, only by
     * kernels, fill, add, convert, copy, copy_async and wait_copies, and then calls captured.
     * captured returns 1, or 0 if they were only captured and cannot be replayed: the executor then
     * issues them again (and replay no more). discard_captures drops captures of `owner`. */
    int (*replay)(void *context, const gckpt_step_params *params);
    int (*captured)(void *context);
    void (*discard_captures)(void *context, const void *owner);
    /* Returns why the last allocate failed and a remedy, which error texts append. */
    const char *(*memory_hint)(void *context);
    /* Kernels of GCKPT_BF16_FAST (manual, 5m), optional. As find, but also called when planning,
     * and a function of op->name or op only; returns both kernels of an op or neither.
     * call->precision selects them. They read and write as bf16 all that the plan keeps as bf16
     * (in[i].bf16, out_bf16, ..; the float pointer is NULL) and may ignore compensations. Those of
     * linear_cross_entropy must run its lowering as well (linear_loss/ops.c; manual, 7). */
    gckpt_kernel (*find_fast)(void *context, const gckpt_op *op, gckpt_kind kind);
    /* Copies of results to the host and back: all four functions or none (copy_out and copy_in then
     * replace them). copy_async begins a copy after all earlier calls; it may overlap later calls,
     * and copies keep their order. wait_copies makes later calls wait for all copies except the
     * last `later` (or for all). Host memory comes from host_get. Until wait_copies, calls leave
     * the device's side of a copy alone (if `out`, may read it). */
    void *(*host_get)(void *context, size_t bytes);
    void (*host_release)(void *context, void *memory, size_t bytes);
    void (*copy_async)(void *context, void *to, const void *from, size_t bytes, int out);
    void (*wait_copies)(void *context, int later);
    /* Dequantises a parameter into the arena. If NULL, the host keeps its values, dequantises them
     * each time and copies them in (slow, and such micro-batches are not replayed). */
    void (*dequantise)(const gckpt_call *call, const gckpt_dequantisation *unpacking);
    /* Communication of ranks in the backend's memory (gckpt_transport.enqueue): both functions or
     * none. After use_comm_queue(1) the thread's calls of add and copy go to a second queue, after
     * all earlier calls; returns that queue (a cudaStream_t). After use_comm_queue(0) they go to
     * the first queue again; the two queues overlap. wait_comm_queue makes later calls wait for the
     * second queue, except its last `later` calls. copy_in accepts 16 MiB (in calls of half a MiB
     * or more) before it waits for earlier calls. */
    void *(*use_comm_queue)(void *context, int on);
    void (*wait_comm_queue)(void *context, int later);
};

/* In gradckpt_cuda.cu, which nvcc compiles and a program links: returns the backend of a CUDA
 * device (numbered from 0), the same one each time, or NULL and in *error the reason. Calls that
 * use it make that device their thread's current one. gckpt_cuda_memory opens it, sets *total to
 * its bytes and *left to those that executors can still allocate, and returns NULL or an error. */
extern const gckpt_backend *gckpt_cuda_backend(int device, const char **error);
extern const char *gckpt_cuda_memory(int device, size_t *left, size_t *total);
#endif

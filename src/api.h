#ifndef GRADCKPT_H
#define GRADCKPT_H
#ifdef _WIN32 /* <windows.h> defines it */
#pragma push_macro("hyper")
#undef hyper
#endif

/* >>api: types, errors, memory ----------------------------------------------------------------- */
#include <stddef.h>
#include <stdint.h>

#define GCKPT_VERSION_MAJOR    0
#define GCKPT_VERSION_MINOR    2
#define GCKPT_VERSION_REVISION 0
#define GCKPT_CONTRACT         3  /* version of the numeric contract (manual, 5) */
#define GCKPT_PLAN_FORMAT      15 /* version of saved and printed plans */

/* What cannot be without what is left out (manual, 4). */
#ifdef GCKPT_SMALL
#undef GCKPT_NO_HEAP
#define GCKPT_NO_HEAP
#undef GCKPT_NO_STDIO
#define GCKPT_NO_STDIO
#undef GCKPT_NO_FAST
#define GCKPT_NO_FAST
#undef GCKPT_NO_TEXT
#define GCKPT_NO_TEXT
#undef GCKPT_NO_SEARCH
#define GCKPT_NO_SEARCH
#undef GCKPT_NO_RANKS
#define GCKPT_NO_RANKS
#undef GCKPT_NO_DEBUG
#define GCKPT_NO_DEBUG
#undef GCKPT_NO_BF16
#define GCKPT_NO_BF16
#pragma push_macro("int64_t")
#define int64_t int32_t /* sizes and counts, in all of this file */
#endif
#ifdef GCKPT_NO_TRAINING
#undef GCKPT_NO_SEARCH
#define GCKPT_NO_SEARCH
#undef GCKPT_NO_RANKS
#define GCKPT_NO_RANKS
#undef GCKPT_NO_CHECK
#define GCKPT_NO_CHECK
#endif
#ifdef GCKPT_NO_SEARCH
#undef GCKPT_NO_FRONTIER
#define GCKPT_NO_FRONTIER
#undef GCKPT_NO_FIT
#define GCKPT_NO_FIT
#endif
#ifdef GCKPT_NO_AVX2
#undef GCKPT_NO_AVX512
#define GCKPT_NO_AVX512
#endif
#if defined(GCKPT_NO_AVX512) || defined(GCKPT_NO_BF16)
#undef GCKPT_NO_AMX
#define GCKPT_NO_AMX
#endif
#ifdef GCKPT_NO_FILES
#undef GCKPT_NO_STDIO
#define GCKPT_NO_STDIO
#endif

#ifndef GCKPT_API
#if defined(GCKPT_STATIC) && defined(__GNUC__)
#define GCKPT_API static __attribute__((unused))
#elif defined(GCKPT_STATIC)
#define GCKPT_API static
#else
#define GCKPT_API extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gckpt_store gckpt_store;       /* named parameters and optimiser state */
typedef struct gckpt_graph gckpt_graph;       /* tensors and ops for one set of shapes */
typedef struct gckpt_tensor gckpt_tensor;     /* a value in a graph: its op, shape, name */
typedef struct gckpt_plan gckpt_plan;         /* schedule and offsets: constant data */
typedef struct gckpt_frontier gckpt_frontier; /* the cost of every budget */
typedef struct gckpt_exec gckpt_exec;         /* a plan bound to memory, a store and a backend */
typedef struct gckpt_backend gckpt_backend;   /* what computes, and where */

/* Results: OK; MORE, CANCELLED, OTHER_CONTRACT, UNRESOLVED and SKIPPED, which are no errors; and
 * errors. */
#define GCKPT_RESULTS(X)                                                                           \
    X(OK, "ok")                                                                                    \
    X(MORE, "more instructions to run")                                                            \
    X(CANCELLED, "cancelled by the progress callback; nothing was changed")                        \
    X(OTHER_CONTRACT, "loaded; but made under another version of the numeric contract")            \
    X(UNRESOLVED, "rounding hides what was to be checked")                                         \
    X(SKIPPED, "skipped: the gradient is not finite; nothing was changed")                         \
    X(E_SHAPE, "shapes do not fit")                                                                \
    X(E_ARG, "a wrong argument")                                                                   \
    X(E_MEMORY, "out of memory")                                                                   \
    X(E_BUDGET, "the byte budget is too small")                                                    \
    X(E_DATA, "wrong data")                                                                        \
    X(E_FILE, "a file could not be read or written")                                               \
    X(E_BACKEND, "this build or processor breaks the numeric contract")                            \
    X(E_PEER, "another rank does not answer")
#define GCKPT_RESULT_ENUM(name, text) GCKPT_##name,
typedef enum { GCKPT_RESULTS(GCKPT_RESULT_ENUM) GCKPT_RESULT_COUNT } gckpt_result;
#undef GCKPT_RESULT_ENUM

/* The error of a store, graph, plan or executor; GCKPT_OK when there is none; E_MEMORY for NULL,
 * whose text says what to ask instead. */
GCKPT_API gckpt_result gckpt_error(const void *object);
/* What went wrong, where, and what would have worked. Never NULL; lives as long as the object. */
GCKPT_API const char *gckpt_error_text(const void *object);
/* A result's name in words, e.g. "out of memory". */
GCKPT_API const char *gckpt_result_text(gckpt_result result);

/* Where bytes come from. All zero: realloc and free (GCKPT_REALLOC). */
typedef struct {
    void *(*resize)(void *user, void *ptr, size_t old_size, size_t new_size); /* new_size 0: free */
    void *user;
    void *memory; /* or: everything from this block, no heap; it may begin at any address */
    size_t size;  /* bytes in the block */
} gckpt_memory;

/* Shapes are row-major. Axis 0 of every input is the batch; it is the outermost axis everywhere. */
#define GCKPT_MAX_DIMS   6
#define GCKPT_MAX_INPUTS 8 /* of an op */
typedef struct {
    int n;
    int64_t d[GCKPT_MAX_DIMS];
} gckpt_shape;
/* Of a tensor's elements. U8, unsigned bytes: inputs only, which gckpt_from_u8 makes floats of. */
typedef enum { GCKPT_F32, GCKPT_I32, GCKPT_U8 } gckpt_type;
/* What a plan keeps activations and their gradients as (manual, 5l). */
typedef enum {
    GCKPT_FP32,
    GCKPT_BF16,            /* 2 bytes an element, rounded to nearest even */
    GCKPT_BF16_STOCHASTIC, /* the same, rounded up or down by chance: unbiased */
    GCKPT_BF16_FAST        /* as GCKPT_BF16, by a device's tensor cores (manual, 5m) */
} gckpt_precision;
/* What the values of a frozen parameter are stored as (gckpt_store_quantise). Ops see floats. */
typedef enum {
    GCKPT_STORAGE_F32,
    GCKPT_STORAGE_BF16, /* 2 bytes: the upper half of the float */
    GCKPT_STORAGE_F16,  /* 2 bytes: IEEE binary16 */
    GCKPT_STORAGE_I8,   /* 1 byte, and a float of scale for each row (all but the last axis) */
    /* Blocks of 32 values along the last axis, 18 bytes each: their scale, a binary16, low byte
     * first; then 16 bytes, whose low halves are values 0 to 15, their high ones 16 to 31: each is
     * (half - 8) * scale. (ggml's Q4_0.) */
    GCKPT_STORAGE_I4
} gckpt_storage;
GCKPT_API uint16_t gckpt_to_bf16(float x);                /* nearest even; subnormals become 0 */
GCKPT_API float gckpt_from_bf16(uint16_t x);              /* exact */
GCKPT_API gckpt_shape gckpt_shape1(int64_t a);            /* (a) */
GCKPT_API gckpt_shape gckpt_shape2(int64_t a, int64_t b); /* (a,b) */
GCKPT_API gckpt_shape gckpt_shape3(int64_t a, int64_t b, int64_t c);            /* (a,b,c) */
GCKPT_API gckpt_shape gckpt_shape4(int64_t a, int64_t b, int64_t c, int64_t d); /* (a,b,c,d) */

/* >>api-store -------------------------------------------------------------------------------------
 * A store is created empty; gckpt_param adds parameters to it, or finds them. Their values are not
 * made by that, nor by planning, but when something needs them: by gckpt_exec_new for its plan's,
 * by gckpt_store_get, by loading. These say E_MEMORY, with the bytes, when there is no memory. A
 * call that takes a const store allocates nothing and changes nothing (threads: manual, 13). */
typedef struct {
    gckpt_memory memory;
    uint64_t seed;
} gckpt_store_desc;
/* NULL desc: all defaults. The store outlives its graphs and executors. */
GCKPT_API gckpt_store *gckpt_store_new(const gckpt_store_desc *desc);
/* Graphs and executors of a freed store can only be freed. */
GCKPT_API void gckpt_store_free(gckpt_store *store);

/* How much of a training each of several processes (ranks) holds: with N of them, fp32 and AdamW,
 * and P parameters, NONE takes 16 P bytes on each (values, gradients, state), STATE 8 P + 8 P / N
 * (ZeRO-1), GRADIENTS 4 P + 12 P / N (ZeRO-2), VALUES 16 P / N (ZeRO-3, FSDP), in addition to
 * what gckpt_plan_kind_bytes returns. Rajbhandari et al. 2020. */
typedef enum {
    GCKPT_SHARD_NONE,
    GCKPT_SHARD_STATE,
    GCKPT_SHARD_GRADIENTS,
    GCKPT_SHARD_VALUES
} gckpt_shard;
#ifndef GCKPT_NO_RANKS
/* This process is `rank` of `ranks` (a power of two), 0 of 1 at first. Parameters of more than 4096
 * elements are cut into blocks of so many; each rank holds its shard, some of the blocks (first and
 * count of gckpt_parameter), in memory for the largest shard. VALUES cuts frozen parameters too,
 * except external and quantised ones. To be called before values or state are made (E_ARG). Plans
 * are made for a store's ranks and shard, and are the same for all its ranks. */
GCKPT_API gckpt_result gckpt_store_ranks(gckpt_store *store, int rank, int ranks,
                                         gckpt_shard shard);
#endif

/* Patterns match whole names; '*' stands for any run of characters, '?' for one: "h.*.mlp.*".
 * E_ARG: nothing matches. They are read when a plan is made (frozen) or a step updates (group). */
GCKPT_API gckpt_result gckpt_store_freeze(gckpt_store *store, const char *pattern, int frozen);
/* Factors on the step's lr and weight_decay, 0 or more (else E_ARG). At first 1 and, as is usual, 1
 * for parameters of two or more axes, 0 for vectors (biases, gains). */
GCKPT_API gckpt_result gckpt_store_group(gckpt_store *store, const char *pattern, float lr_scale,
                                         float decay_scale);
/* Zeroes optimiser state, so that training starts afresh, with another optimiser if need be. */
GCKPT_API gckpt_result gckpt_store_reset(gckpt_store *store, const char *pattern);
/* Makes parameter `name` use `values` (n floats, which must outlive the store: flash, an mmapped
 * file). It must not exist yet. `writable`: trained there like any other; 0: always frozen. */
GCKPT_API gckpt_result gckpt_store_external(gckpt_store *store, const char *name, gckpt_shape shape,
                                            float *values, int writable);

#ifndef GCKPT_NO_QUANT
/* Stores the values of parameters, which must be frozen (E_ARG), in fewer bytes: all of them or
 * none. Values that are not made yet will be made so, piece by piece; those that are need memory
 * for both for a moment. What ops see is what was stored, so results depend on the storage, never
 * on the plan: ops read it as it is stored, or, where one of them cannot (manual, 12), a FORWARD of
 * the parameter brings it into the arena as floats, planned like any value
 * (gckpt_plan_desc.stage_parameters). Rounded to nearest even, to BF16 as gckpt_to_bf16; F16 beyond
 * 65504, infinite too, is an error (E_DATA); I8 stands for value / scale, scale being the row's
 * greatest |value| / 127, and with it vectors stay F32; I4 takes the best of six scales for each
 * block (manual, 5n), values up to 524032 (else E_DATA), leaves vectors F32, too, and makes I8 what
 * has a last axis that is no multiple of 32. Quantised parameters have no optimiser
 * state (theirs is freed), and stay frozen until they are stored as F32 again, which restores no
 * digits. External ones become the store's own. Pointers to values and state of before are
 * no longer valid; plans made before are refused, and steps that are under way are over. */
GCKPT_API gckpt_result gckpt_store_quantise(gckpt_store *store, const char *pattern,
                                            gckpt_storage storage);
/* gckpt_store_external of a quantised parameter: values as `storage` says, aligned to their size
 * (I4's blocks need not be), scales of I8's rows (else NULL). */
GCKPT_API gckpt_result gckpt_store_external_quantised(gckpt_store *store, const char *name,
                                                      gckpt_shape shape, gckpt_storage storage,
                                                      const void *values, const float *scales);
#endif

/* Parameters are numbered 0, 1, ... in creation order. */
typedef struct {
    const char *name;
    gckpt_shape shape;
    int64_t elements;
    float *values;   /* may be read and written between steps (gckpt_store_push); stay in place */
    float *state[4]; /* optimiser state, NULL while there is none: AdamW m, v; momentum */
    int frozen;
    float lr_scale, decay_scale;
    gckpt_storage storage; /* not F32: values is NULL, */
    const void *quantised; /* and they are here, */
    const float *scales;   /* I8: with a scale for each row; else NULL */
    /* What this rank updates, and has the state of (gckpt_store_ranks): all, or the blocks of its
     * shard; with GCKPT_SHARD_VALUES `values` are those `count` elements alone. */
    int64_t first, count;
} gckpt_parameter;
GCKPT_API int gckpt_store_count(const gckpt_store *store);
/* E_ARG: no parameter has this index. get makes the values if they are not made yet (E_MEMORY);
 * peek does not, and then shows NULL. */
GCKPT_API gckpt_result gckpt_store_get(gckpt_store *store, int index, gckpt_parameter *out);
GCKPT_API gckpt_result gckpt_store_peek(const gckpt_store *store, int index, gckpt_parameter *out);
GCKPT_API int gckpt_store_find(const gckpt_store *store, const char *name); /* index or -1 */
/* Backends with memory of their own (gckpt_backend) have copies of values and state: what pointers
 * from before show is then as old as the last pull. pull brings the newest to the host; push says
 * that they were written there, so that the next step takes them; get does both. The processor has
 * one copy. There, push is for plans with copies (gckpt_plan_desc.bf16_weights) and for initial
 * values that were written through pointers of peek (gckpt_exec_desc.allow_initial). */
GCKPT_API gckpt_result gckpt_store_pull(gckpt_store *store, const char *pattern);
GCKPT_API gckpt_result gckpt_store_push(gckpt_store *store, const char *pattern);
/* values, made or not, and state that it owns */
GCKPT_API size_t gckpt_store_bytes(const gckpt_store *store);
GCKPT_API uint64_t gckpt_store_step(const gckpt_store *store); /* updates done so far */
/* FNV-1a 64 over the parameters' values, made or not, in creation order (manual, 5k). 0 where some
 * are cut (GCKPT_SHARD_VALUES): gckpt_gather_hash brings them together. */
GCKPT_API uint64_t gckpt_store_hash(const gckpt_store *store);

/* Callbacks return the bytes done; fewer than asked for is the end, or an error. */
typedef size_t (*gckpt_read_fn)(void *user, void *bytes, size_t size);
typedef size_t (*gckpt_write_fn)(void *user, const void *bytes, size_t size);
#ifndef GCKPT_NO_FILES
/* safetensors, with optimiser state, step count, notes, and whose state it is and how many updates
 * it has seen. Loading is strict and all-or-nothing: every tensor must be one of the store's (or
 * the store is empty and gets them all), with its shape; a file that is truncated, overlapping, out
 * of bounds or otherwise wrong is refused with the reason, and the store keeps what it had. For
 * that, values and state that are made already are held a second time for a moment; what is not
 * (load before gckpt_exec_new) is read to where it stays, and given back if the file proves bad.
 * Files have a hash of their tensors in __metadata__, data_fnv1a. Where a file has it, all of its
 * data are compared with it (E_DATA: damaged), except by gckpt_store_map, which does not read them,
 * and with GCKPT_NO_STDIO. gckpt_ranks_save has hashes of its own.
 * GCKPT_OTHER_CONTRACT: all is loaded, but the file is of another GCKPT_CONTRACT, so training goes
 * on to other bits than it would have there. A path is saved to a temporary file next to it
 * (PATH.gckpt-tmpN; a long PATH is cut), flushed, and renamed: after a power cut the old or the new
 * one is there. On FAT, with Linux, too, but in place of none may be an empty file, and where what
 * was begun makes it read-only fsck.vfat helps; with other systems save to two paths in turn. A
 * link stays: what it points at is replaced. A file that is replaced hands down its permissions;
 * folders, devices and pipes are refused. */
GCKPT_API gckpt_result gckpt_store_write(gckpt_store *store, gckpt_write_fn write, void *user);
GCKPT_API gckpt_result gckpt_store_read(gckpt_store *store, gckpt_read_fn read, void *user,
                                        size_t size);
#ifndef GCKPT_NO_STDIO
GCKPT_API gckpt_result gckpt_store_save(gckpt_store *store, const char *path);
GCKPT_API gckpt_result gckpt_store_load(gckpt_store *store, const char *path);
#endif

/* The order of the axes of convolutions' weights in a file. */
typedef enum {
    GCKPT_AXES_UNKNOWN,
    GCKPT_AXES_HWIO /* as gckpt_conv2d reads them: (KH,KW,I/groups,O); signals: (K,I/groups,O) */
} gckpt_axes;
/* Files of other programs, and parts of a store. All zero, or NULL: as the calls above. */
typedef struct {
    /* Reading: the parameter that the file's tensor `name` is for; writing: the name in the file of
     * parameter `name`. NULL: it is left out (reading: whatever its type is). The text lives until
     * the next call; questions are repeated. State and scales go with their parameter. Two tensors
     * for one parameter, or one name for two, are refused. */
    const char *(*rename)(void *user, const char *name);
    void *user; /* for rename and axes */
    /* If nonzero, without optimiser state and step count: reading leaves those of the store as they
     * are; a file that is written says that it is PyTorch's, as other tools want it. Notes are read
     * and written all the same. */
    int values_only;
    int partial;  /* reading, 1: what the file does not have stays as it is */
    int writable; /* mapping, 1: F32 in place may be trained (the memory must be writable) */
    gckpt_storage storage; /* writing: F32 values as F32, BF16 or F16 (up to 65504, else E_DATA) */
    /* Reading: the order that convolutions' weights have in a file that does not say it, as those
     * of PyTorch, whose (O,I/groups,KH,KW) may fit by chance. Until the program says HWIO, of
     * weights that were permuted (so must be what stands behind a Flatten: docs/from-pytorch.md),
     * such a file fills no parameter that a convolution in a graph of the store reads, as it is,
     * reshaped, or element by element; what it filled before, building the convolution refuses:
     * E_DATA. Files of this library say it; others can, by "convolution_axes":"HWIO" in their
     * __metadata__. GCKPT_NO_STDIO: nothing is asked or said. */
    gckpt_axes convolutions;
    /* The order of axes in the file, tensor by tensor (PyTorch's: layers_pytorch_axes of
     * examples/layers.h): axis i of the file's is axis axes[i] of parameter `name`, which has this
     * shape (the file's while the store lacks it). Returns shape.n, or 0: as it is, which NULL
     * says of all. State goes with its parameter; I8 and I4 cannot be permuted: E_DATA. An order
     * that is given, even this one, is said for convolutions; of the rest they ask as above. Of a
     * file that says HWIO nothing is asked; one with a tensor permuted does not say it. What is
     * mapped and permuted is the store's own. Questions are repeated; what is no order of all axes
     * is E_ARG, and so is any with GCKPT_NO_STDIO. */
    int (*axes)(void *user, const char *name, gckpt_shape shape, int *axes);
} gckpt_file_desc;
/* Tensors may be F32, BF16, F16, and what gckpt_store_quantise makes I8 (with its scales as the F32
 * tensor "NAME#scale") or I4 (U8, with d / 32 * 18 bytes for a last axis of d values); any other
 * type is refused by the tensor's name, but for PyTorch's counters "..num_batches_tracked" (I64),
 * which are left out: a note of that name says so. They become what the store has the parameter
 * stored as, piece by piece, or else floats; from I8 only floats or I8. What is stored alike keeps
 * its bits. Written is what is stored, data aligned to their type. */
GCKPT_API gckpt_result gckpt_store_write_as(gckpt_store *store, gckpt_write_fn write, void *user,
                                            const gckpt_file_desc *desc);
GCKPT_API gckpt_result gckpt_store_read_as(gckpt_store *store, gckpt_read_fn read, void *user,
                                           size_t size, const gckpt_file_desc *desc);
/* A file that lies in memory (flash, mmap) and stays there as long as the store. Parameters that
 * the store does not have yet are added: those that can be used where they lie point there (aligned
 * to their type, on a little-endian machine): F32 as floats, frozen but for desc.writable, BF16,
 * F16, I8 and I4 quantised and frozen (with GCKPT_NO_QUANT floats of the store's own, frozen);
 * others become floats of the store's own. What the store has is read as by gckpt_store_read_as. A
 * model in several files is mapped with desc.partial, one after the other. */
GCKPT_API gckpt_result gckpt_store_map(gckpt_store *store, const void *file, size_t size,
                                       const gckpt_file_desc *desc);
#ifndef GCKPT_NO_STDIO
/* gckpt_store_write_as and _read_as by path, as gckpt_store_save and _load. */
GCKPT_API gckpt_result gckpt_store_save_as(gckpt_store *store, const char *path,
                                           const gckpt_file_desc *desc);
GCKPT_API gckpt_result gckpt_store_load_as(gckpt_store *store, const char *path,
                                           const gckpt_file_desc *desc);
#endif
#endif /* GCKPT_NO_FILES */
#ifndef GCKPT_NO_NOTES
/* Texts (UTF-8) that files keep with the parameters, by key: options, a position in the data.
 * value NULL: takes it away. E_ARG: the key is one of the file's own ("format", "contract", "step",
 * "seed", "optimiser", "data_fnv1a", "convolution_axes", and what ends in "#updates"). Loading sets
 * those of the file. note: NULL when there is none; until the next change. */
GCKPT_API gckpt_result gckpt_store_set_note(gckpt_store *store, const char *key, const char *value);
GCKPT_API const char *gckpt_store_note(const gckpt_store *store, const char *key);
#endif

/* >>api-graph -------------------------------------------------------------------------------------
 * A graph belongs to a store and must be freed before it. Tensors live as long as their graph. */
/* memory NULL: the heap. NULL on error, which is then the store's. */
GCKPT_API gckpt_graph *gckpt_graph_new(gckpt_store *store, const gckpt_memory *memory);
GCKPT_API void gckpt_graph_free(gckpt_graph *graph); /* plans and executors go on without it */
/* Data fed at each step. Axis 0 is the batch, equal for all inputs of a graph: its micro-batch. No
 * two inputs of a graph have the same name. */
GCKPT_API gckpt_tensor *gckpt_input(gckpt_graph *graph, const char *name, gckpt_type type,
                                    gckpt_shape shape);
/* Data that never changes and has no batch axis; `data` must outlive graph, plans and executors. */
GCKPT_API gckpt_tensor *gckpt_constant(gckpt_graph *graph, const char *name, gckpt_type type,
                                       gckpt_shape shape, const void *data);
/* Parameter `name` of the store; created with init when new (value = constant + normal * N(0,1) +
 * uniform * U(-1,1), keyed by the store's seed and the name, whenever they are made). The same name
 * gives the same parameter again: that is how weights are tied. */
typedef struct {
    float normal, uniform, constant;
} gckpt_init;
GCKPT_API gckpt_tensor *gckpt_param(gckpt_graph *graph, const char *name, gckpt_shape shape,
                                    gckpt_init init);
/* A parameter that is measured, not trained: running statistics. Ops that measure (batchnorm) hand
 * in what they saw, weighted by rows; at its end a step moves each value by momentum (0 to 1) of
 * the way to the mean of that. Only they can read it, and gckpt_detach. It has no optimiser state
 * and no part in norm, clipping, decay and gckpt_check_gradients; its gradient, fetched, is that
 * mean. An op measures in its backward: behind gckpt_detach, where it has none, the values stay.
 * For files, hashes, gckpt_store_freeze it is a parameter (frozen: it stays as it is). */
GCKPT_API gckpt_tensor *gckpt_running(gckpt_graph *graph, const char *name, gckpt_shape shape,
                                      gckpt_init init, float momentum);

GCKPT_API gckpt_graph *gckpt_graph_of(const gckpt_tensor *tensor); /* NULL for NULL */
GCKPT_API gckpt_shape gckpt_shape_of(const gckpt_tensor *tensor);  /* n = -1 for NULL */
/* stable when the same graph is built again; -1 for NULL */
GCKPT_API int gckpt_id(const gckpt_tensor *tensor);
/* Gives the tensor a name for messages and printed plans (copied); returns it. */
GCKPT_API gckpt_tensor *gckpt_name(gckpt_tensor *tensor, const char *name);
/* What a graph is made of, by id, in order of creation (examples/pictures.h draws it). */
typedef struct {
    const char *op;   /* "input", "constant", "param", "reshape", or the name of the op */
    const char *name; /* "" without */
    gckpt_shape shape;
    gckpt_type type;
    int loss;      /* 1: a (sum, count) */
    int batch_invariant; /* 1: depends on no input */
    int inputs;    /* how many tensors it reads; their ids: */
    int input[GCKPT_MAX_INPUTS];
    const void *data; /* of a constant */
} gckpt_node;
GCKPT_API int gckpt_graph_size(const gckpt_graph *graph); /* highest id + 1; 0 for NULL */
/* E_ARG: no tensor has this id. Texts live as long as the graph. */
GCKPT_API gckpt_result gckpt_graph_node(const gckpt_graph *graph, int id, gckpt_node *out);

/* >>api-ops ---------------------------------------------------------------------------------------
 * x is any shape (.., C), f32 unless noted. Shapes that do not fit: E_SHAPE, on the graph. */
/* (V,C), i32 (..) -> (..,C): row index[i] of the table; outside 0..V-1 a step is E_DATA. */
GCKPT_API gckpt_tensor *gckpt_embed(gckpt_tensor *table, gckpt_tensor *index);
/* x (B,N,C), i32 (B,M) -> (B,M,C): row index[b][m] of x[b]; outside 0..N-1 a step is E_DATA. */
GCKPT_API gckpt_tensor *gckpt_gather(gckpt_tensor *x, gckpt_tensor *index);
/* (..,M,K) x (..,K,N) -> (..,M,N). Leading axes equal, or b has just two and serves them all. */
GCKPT_API gckpt_tensor *gckpt_matmul(gckpt_tensor *a, gckpt_tensor *b);
/* (..,M,K) x (..,N,K) -> (..,M,N). */
GCKPT_API gckpt_tensor *gckpt_matmul_transposed(gckpt_tensor *a, gckpt_tensor *b);
/* (..,I) x w (I,O) + bias (O) -> (..,O). bias may be NULL. */
GCKPT_API gckpt_tensor *gckpt_linear(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias);
/* The same with w as (O,I), as PyTorch keeps it. */
GCKPT_API gckpt_tensor *gckpt_linear_transposed(gckpt_tensor *x, gckpt_tensor *w,
                                                gckpt_tensor *bias);
/* (x - mean) * rsqrt(variance + epsilon) * gain + bias over the last axis; gain and bias are (C) or
 * NULL; an epsilon of 0 selects 1e-5. Ba 2016. */
GCKPT_API gckpt_tensor *gckpt_layernorm(gckpt_tensor *x, gckpt_tensor *gain, gckpt_tensor *bias,
                                        float epsilon);
/* x * rsqrt(mean(x^2) + epsilon) * gain; gain (C) or NULL; 0: 1e-5. Zhang & Sennrich 2019. */
GCKPT_API gckpt_tensor *gckpt_rmsnorm(gckpt_tensor *x, gckpt_tensor *gain, float epsilon);
GCKPT_API gckpt_tensor *gckpt_relu(gckpt_tensor *x); /* max(x, 0) */
/* x where x > 0, else slope x; slope 0 or above, and finite; gradient at 0: slope */
GCKPT_API gckpt_tensor *gckpt_leaky_relu(gckpt_tensor *x, float slope);
GCKPT_API gckpt_tensor *gckpt_softplus(gckpt_tensor *x); /* log(1 + exp(x)), of any x */
/* x/2 (1 + tanh(sqrt(2/pi)(x + 0.044715 x^3))) */
GCKPT_API gckpt_tensor *gckpt_gelu(gckpt_tensor *x);
GCKPT_API gckpt_tensor *gckpt_gelu_erf(gckpt_tensor *x); /* x/2 (1 + erf(x / sqrt 2)) */
GCKPT_API gckpt_tensor *gckpt_silu(gckpt_tensor *x);     /* x / (1 + exp(-x)) */
GCKPT_API gckpt_tensor *gckpt_tanh(gckpt_tensor *x);     /* 1 - 2 / (exp(2x) + 1) */
GCKPT_API gckpt_tensor *gckpt_sigmoid(gckpt_tensor *x);  /* 1 / (1 + exp(-x)) */
GCKPT_API gckpt_tensor *gckpt_softmax(gckpt_tensor *x);  /* over the last axis */
/* x - max - log(sum(exp(x - max))) over the last axis; the logarithm of softmax, never of 0 */
GCKPT_API gckpt_tensor *gckpt_log_softmax(gckpt_tensor *x);
GCKPT_API gckpt_tensor *gckpt_exp(gckpt_tensor *x);        /* e^x */
GCKPT_API gckpt_tensor *gckpt_log(gckpt_tensor *x);        /* natural; -inf at 0, NaN below */
GCKPT_API gckpt_tensor *gckpt_sqrt(gckpt_tensor *x);       /* gradient inf at 0 */
GCKPT_API gckpt_tensor *gckpt_abs(gckpt_tensor *x);        /* gradient 0 at 0 */
GCKPT_API gckpt_tensor *gckpt_reciprocal(gckpt_tensor *x); /* 1 / x */
/* Radians, as large as they may be; NaN where x is not finite. */
GCKPT_API gckpt_tensor *gckpt_sin(gckpt_tensor *x);
GCKPT_API gckpt_tensor *gckpt_cos(gckpt_tensor *x);
/* x^exponent, as C's pow has it; gradient exponent x^(exponent - 1), 0 for an exponent of 0 */
GCKPT_API gckpt_tensor *gckpt_pow(gckpt_tensor *x, float exponent);
/* min(max(x, low), high), low <= high, either may be infinite; NaN stays; gradient 1 between low
 * and high, 0 at both and beyond */
GCKPT_API gckpt_tensor *gckpt_clamp(gckpt_tensor *x, float low, float high);
/* x is u8: x scale + shift, an fma for each byte. (1/255, 0: from 0 to 1.) A pixel that is fed as
 * a byte takes a quarter of what it takes as a float; x may be reshaped before. */
GCKPT_API gckpt_tensor *gckpt_from_u8(gckpt_tensor *x, float scale, float shift);
/* x, as something that does not depend on parameters: no gradient passes. */
GCKPT_API gckpt_tensor *gckpt_detach(gckpt_tensor *x);
typedef struct {
    int heads;
    int key_heads; /* heads of k and v, a divisor of heads: neighbours share one; 0: heads */
    int causal;    /* if nonzero, query t sees keys 0..S-T+t (S >= T), so that the last sees all */
    gckpt_tensor *lengths; /* NULL, or i32 (B), 0..S (else a step is E_DATA): keys of each row */
    int64_t window; /* causal: a query sees the last `window` of its keys, its own one included
                     * (transformers' sliding_window); 0, or S and more: all */
    float cap;      /* scores s become cap * tanh(s / cap) (Gemma 2), 1e-30 to 1e30; 0: none */
    float scale;    /* factor of q k'; 0: 1 / sqrt(D) */
} gckpt_attention_desc;
/* q (B,T,C), k and v (B,S,key_heads D), D = C/heads -> (B,T,C): softmax(q k' / sqrt(D)) v per head.
 * T x S is never held (Milakov & Gimelshein 2018, Dao 2022), shared heads are never repeated in
 * memory (Ainslie 2023). Keys that a row or query does not see change nothing, whatever they hold,
 * and their gradient is 0; a query without keys gives 0. Keys of a gckpt_cache: all that are there
 * by then; causal only, without lengths (E_ARG). Keys before a window cost nothing. */
GCKPT_API gckpt_tensor *gckpt_attention(gckpt_tensor *q, gckpt_tensor *k, gckpt_tensor *v,
                                        const gckpt_attention_desc *desc);
typedef struct {
    int heads;
    float base;       /* 0: 10000 */
    int64_t position; /* of the first row, without caches */
    int64_t columns;  /* R: the first R columns of each head are rotated as pairs (i, i + R/2), the
                       * others stay as they are; even; 0: all */
    const float *frequencies; /* R/2 <= 512 angles a position, radians, 0 and more, copied (Llama
                               * 3's, linear or YaRN's scaling); NULL: base^(-2i/R) */
    float scale;              /* of cosines and sines (YaRN's attention factor); 0: 1 */
} gckpt_rotary_desc;
/* (B,T,C) with C = heads * D, D even: rotates each pair (i, i + D/2) of a head by position *
 * base^(-2i/D). Su 2021, the half-split pairing of GPT-NeoX and Llama. */
GCKPT_API gckpt_tensor *gckpt_rotary(gckpt_tensor *x, const gckpt_rotary_desc *desc);
/* x (B,T,C) + rows first..first+T-1 of a learned table (Tmax,C), which depends on no input. With
 * caches, which go on from call to call, this and gckpt_rotary begin at their first position +
 * gckpt_position, and the table has first + capacity rows or more. */
GCKPT_API gckpt_tensor *gckpt_positions(gckpt_tensor *x, gckpt_tensor *table, int64_t first);
#ifndef GCKPT_NO_IMAGES
/* ---- Windows: images are (B,H,W,C), signals (B,T,C), channels last, as all features are; a signal
 * is an image with H = 1. Sizes 0 stand for what is usual, so that a window is written
 * { .stride = { 2, 2 }, .padding = { 1, 1 } }; NULL: all usual. Of signals [1] counts:
 * { .padding = { 0, 1 } }. ---- */
typedef struct {
    int size[2];     /* of pools, rows and columns; convolutions have it from w, and 0 here */
    int stride[2];   /* 0: 1 of convolutions, size of pools */
    int padding[2];  /* on both sides: zeros that take part; max pools: nothing */
    int dilation[2]; /* 0: 1 */
    int groups;      /* of channels; 0: 1; as many as channels: depthwise. Convolutions only */
    int output_padding[2]; /* transposed convolutions: rows and columns more, at the end */
} gckpt_window;
/* x (B,H,W,I), w (KH,KW,I/groups,O), bias (O) or NULL -> (B,P,Q,O), P = (H + 2 padding - dilation
 * (KH - 1) - 1) / stride + 1: sum over the taps and channels of w of x there (a correlation). A 1 x
 * 1 w is gckpt_linear's. PyTorch's weights (O,I,KH,KW) are permuted (2,3,1,0); their files are not
 * taken unseen (gckpt_file_desc.convolutions); its .axes reads them so. */
GCKPT_API gckpt_tensor *gckpt_conv2d(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias,
                                     const gckpt_window *window);
/* x (B,T,I), w (K,I/groups,O) */
GCKPT_API gckpt_tensor *gckpt_conv1d(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias,
                                     const gckpt_window *window);
/* What a conv2d with this w (KH,KW,O/groups,I) does to gradients: x (B,H,W,I) -> (B,P,Q,O), P = (H
 * - 1) stride - 2 padding + dilation (KH - 1) + output_padding + 1; bias (O) or NULL. PyTorch's
 * weights (I,O,KH,KW) are permuted (2,3,1,0). */
GCKPT_API gckpt_tensor *gckpt_conv2d_transposed(gckpt_tensor *x, gckpt_tensor *w,
                                                gckpt_tensor *bias, const gckpt_window *window);
GCKPT_API gckpt_tensor *gckpt_conv1d_transposed(gckpt_tensor *x, gckpt_tensor *w,
                                                gckpt_tensor *bias, const gckpt_window *window);
/* (B,H,W,C) -> (B,P,Q,C), or (B,T,C) -> (B,P,C): the greatest of each window (NaN if one is; the
 * gradient goes to the first that is), or its mean, zeros of the padding counted. */
GCKPT_API gckpt_tensor *gckpt_max_pool(gckpt_tensor *x, const gckpt_window *window);
GCKPT_API gckpt_tensor *gckpt_average_pool(gckpt_tensor *x, const gckpt_window *window);
/* (B,H,W,C) -> (B,height,width,C), larger or smaller, as PyTorch's interpolate(size=(height,
 * width)) looks at x: the nearest (its mode "nearest": rounded down), or between neighbours, edges
 * or (ALIGNED: align_corners) the centres of corners coinciding. No antialiasing. */
typedef enum { GCKPT_NEAREST, GCKPT_BILINEAR, GCKPT_BILINEAR_ALIGNED } gckpt_upsampling;
GCKPT_API gckpt_tensor *gckpt_upsample(gckpt_tensor *x, int64_t height, int64_t width,
                                       gckpt_upsampling how);
/* (B,..,C) -> (B,C): the mean over all axes between. */
GCKPT_API gckpt_tensor *gckpt_global_average_pool(gckpt_tensor *x);
/* Layernorm over an image's H x W and each of `groups` equal runs of its C channels (x (B,..,C));
 * gain, bias (C) or NULL. 2 values or more per group. Wu & He 2018; groups = C: instance norm. */
GCKPT_API gckpt_tensor *gckpt_groupnorm(gckpt_tensor *x, int groups, gckpt_tensor *gain,
                                        gckpt_tensor *bias);
/* (x - mean) * rsqrt(variance + 1e-5) * gain + bias for each channel, by the mean and variance over
 * all other axes: rows of a micro-batch mix (split_exact 0), and training refuses one value per
 * channel. INFERENCE uses the running `mean` and `variance`, each a gckpt_running (C) (at first 0
 * and 1, momentum usually 0.1), which get this step's (variance unbiased). Ioffe & Szegedy 2015. */
GCKPT_API gckpt_tensor *gckpt_batchnorm(gckpt_tensor *x, gckpt_tensor *gain, gckpt_tensor *bias,
                                        gckpt_tensor *mean, gckpt_tensor *variance);
#endif /* GCKPT_NO_IMAGES */
#ifndef GCKPT_NO_RECURRENT
/* ---- Recurrent layers, all of a sequence at once: x (B,T,I), wx (I,3H), wh (H,3H), bias (3H) of
 * each or NULL, h0 (B,H) or NULL for 0 -> h (B,T,H). Gates r, z, n, as PyTorch has them (Cho 2014):
 * r, z = sigmoid(x wx + bx + h wh + bh), n = tanh(x wx + bx + r (h wh + bh)), h = n + z (h - n). */
GCKPT_API gckpt_tensor *gckpt_gru(gckpt_tensor *x, gckpt_tensor *wx, gckpt_tensor *bx,
                                  gckpt_tensor *wh, gckpt_tensor *bh, gckpt_tensor *h0);
/* wx (I,4H), wh (H,4H), one bias (4H) or NULL, h0 and c0 (B,H) or both NULL -> (B,T,2H): h and,
 * behind it, the cells c. Gates i, f, g, o: c = f c + i g, h = o tanh(c). Hochreiter & Schmidhuber
 * 1997. */
GCKPT_API gckpt_tensor *gckpt_lstm(gckpt_tensor *x, gckpt_tensor *wx, gckpt_tensor *wh,
                                   gckpt_tensor *bias, gckpt_tensor *h0, gckpt_tensor *c0);
#endif
#ifndef GCKPT_NO_CACHES
/* x (B,T,C) -> (B,capacity,C): rows that earlier calls of gckpt_forward left, then x's T; what is
 * behind them is not there yet, and only causal attention knows (it sees none of it). So a model
 * generates token by token, to the bits of one call with all of them. Its result may only be read
 * by causal attention, as keys or values, and by gckpt_concat along axis 1, as the last input.
 * Only in INFERENCE plans, for at most the graph's rows a call; all caches of a graph have one
 * capacity and one T. They lie in the executor (gckpt_exec_desc.caches_of), kept as the plan keeps
 * activations; their bytes are GCKPT_BYTES_CACHES. This is the key/value cache of transformers. */
GCKPT_API gckpt_tensor *gckpt_cache(gckpt_tensor *x, int64_t capacity);
/* The same, for attention with a window of `window` keys or fewer: positions go up to capacity, but
 * it keeps window + 63 rows, rounded up to a multiple of 64 (if capacity is no more than that, or
 * window is 0, it is gckpt_cache): x (B,T,C) -> (B,rows,C), position p in row p % rows. A call may
 * add rows - window + 1, which is 64 or more, so longer prompts go in pieces: of up to rows minus
 * attention's own window + 1, if one gives the cache a longer window. Not for gckpt_concat. Graphs
 * may have both kinds. */
GCKPT_API gckpt_tensor *gckpt_cache_window(gckpt_tensor *x, int64_t capacity, int64_t window);
#endif
/* Elementwise: axes are matched from the last; one of size 1, or missing, is repeated. */
GCKPT_API gckpt_tensor *gckpt_add(gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_sub(gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_mul(gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_div(gckpt_tensor *a, gckpt_tensor *b);
/* NaN if one is; where both are equal, each gets half of the gradient. */
GCKPT_API gckpt_tensor *gckpt_maximum(gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_minimum(gckpt_tensor *a, gckpt_tensor *b);
/* a where the condition, f32 or i32, is not 0 (NaN is not), else b. All three are repeated as
 * above. The gradient goes to what was taken, and is 0 elsewhere, whatever stands there (NaN, inf);
 * none goes to the condition. */
GCKPT_API gckpt_tensor *gckpt_where(gckpt_tensor *condition, gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_scale(gckpt_tensor *x, float factor); /* factor * x */
/* Zeroes each element with probability p, scales the rest by 1/(1-p) (Srivastava 2014); x itself in
 * inference plans. The mask is a function of seed, step, tensor id, element in the whole batch. */
GCKPT_API gckpt_tensor *gckpt_dropout(gckpt_tensor *x, float p);
/* Another shape of the same bytes: costs nothing. One size may be -1 (what is left). */
GCKPT_API gckpt_tensor *gckpt_reshape(gckpt_tensor *x, gckpt_shape shape);
/* Axis i of the result is axis axes[i] of x. */
GCKPT_API gckpt_tensor *gckpt_permute(gckpt_tensor *x, const int *axes, int n);
/* Takes elements begin..end-1 along an axis. Negative numbers count from the end. */
GCKPT_API gckpt_tensor *gckpt_slice(gckpt_tensor *x, int axis, int64_t begin, int64_t end);
/* n <= GCKPT_MAX_INPUTS */
GCKPT_API gckpt_tensor *gckpt_concat(gckpt_tensor *const *x, int n, int axis);
/* x between `before` and `after` (0 and more) elements that are `value`, along an axis. */
GCKPT_API gckpt_tensor *gckpt_pad(gckpt_tensor *x, int axis, int64_t before, int64_t after,
                                  float value);
GCKPT_API gckpt_tensor *gckpt_sum(gckpt_tensor *x, int axis);  /* removes the axis */
GCKPT_API gckpt_tensor *gckpt_mean(gckpt_tensor *x, int axis); /* so does this */
/* The greatest, the first NaN if there is one; the axis is removed. The gradient goes to the first
 * that is greatest. */
GCKPT_API gckpt_tensor *gckpt_max(gckpt_tensor *x, int axis);
/* The number, i32, of the element that max takes: no gradient passes. For ops that take indices
 * (the axis no longer than what they index, else E_SHAPE), and for gckpt_fetch. */
GCKPT_API gckpt_tensor *gckpt_argmax(gckpt_tensor *x, int axis);

/* >>api-losses ------------------------------------------------------------------------------------
 * A loss is a (sum, count) pair and only a gckpt_term can use it (manual, 3). */
/* Weights of losses, NULL or f32, have the first axes, one or more, of the rows (cross-entropies:
 * (..) of (..,V)) or of the elements; each scales the losses below it. They scale the sum; the
 * count stays what it is without them (valid targets, rows, elements). To divide by the sum of the
 * weights instead, feed weights times count / sum, over the whole batch, where the sum takes each
 * weight once for every row or element that counts below it. A weight of 0 leaves out what is below
 * it, NaN and infinities too, and passes no gradient on; the weight of a row whose target is
 * negative is ignored. Weights by class: gckpt_embed of a (V,1) table by the targets (if none is
 * ignored), reshaped. All float inputs get gradients. GCKPT_NO_LOSSES: weights are NULL, smoothing
 * is 0 (else E_ARG).
 *
 * logits (..,V), targets i32 (..): sum of -log softmax[target]; targets < 0 do not count. With
 * smoothing, 0 to 1: against 1 - smoothing of the target and smoothing / V of every class (Szegedy
 * 2015). */
GCKPT_API gckpt_tensor *gckpt_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets,
                                            gckpt_tensor *weights, float smoothing);
typedef struct {
    float cap; /* logits z become cap * tanh(z / cap) (Gemma 2), 1e-30 to 1e30; 0: none */
} gckpt_linear_loss_desc;
/* Cross-entropy of x (..,C) and w (V,C) (an embedding table: tied heads), holding the logits of
 * some rows or classes at a time. desc NULL: no cap. */
GCKPT_API gckpt_tensor *gckpt_linear_cross_entropy(gckpt_tensor *x, gckpt_tensor *w,
                                                   gckpt_tensor *targets,
                                                   const gckpt_linear_loss_desc *desc);
/* sum of (prediction - target)^2 over elements; count = elements. */
GCKPT_API gckpt_tensor *gckpt_mean_squared_error(gckpt_tensor *prediction, gckpt_tensor *target,
                                                 gckpt_tensor *weights);
/* Any tensor as a loss: the sum of its elements, count = elements. For losses made of ops, and for
 * regularisers: gckpt_sum_loss(gckpt_mul(w, w)). */
GCKPT_API gckpt_tensor *gckpt_sum_loss(gckpt_tensor *x);
#ifndef GCKPT_NO_LOSSES
/* Against targets (..,V) f32: sum over rows of -sum_j target_j log softmax_j; count = rows. They
 * may add up to anything; where one is 0, a logit of -inf does no harm. */
GCKPT_API gckpt_tensor *gckpt_soft_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets,
                                                 gckpt_tensor *weights);
/* Elementwise, targets f32, 0 to 1: sum of -(t log s + (1 - t) log(1 - s)), s = sigmoid(logit); as
 * max(x, 0) - x t + log(1 + exp(-|x|)), so nothing overflows. Count = elements. */
GCKPT_API gckpt_tensor *gckpt_binary_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets,
                                                   gckpt_tensor *weights);
/* Sum over elements of d^2 / 2 where |d| < delta, else delta (|d| - delta / 2), d = prediction -
 * target (Huber 1964); delta > 0. Count = elements. */
GCKPT_API gckpt_tensor *gckpt_huber(gckpt_tensor *prediction, gckpt_tensor *target,
                                    gckpt_tensor *weights, float delta);
#endif /* GCKPT_NO_LOSSES */
typedef struct {
    gckpt_tensor *loss;
    float weight;
    int regulariser; /* a function of parameters only; enters once a step, undivided */
} gckpt_term;

/* >>api-segments ----------------------------------------------------------------------------------
 * In GCKPT_SEGMENTS plans the inside of a segment is recomputed in the backward. May nest. Chen
 * 2016. */
/* Builds block(x, user) as one segment. NULL x: the block is skipped and NULL returned. */
typedef gckpt_tensor *(*gckpt_block_fn)(gckpt_tensor *x, void *user);
GCKPT_API gckpt_tensor *gckpt_checkpoint(gckpt_block_fn block, gckpt_tensor *x, void *user);
GCKPT_API void gckpt_segment_begin(gckpt_graph *graph); /* of what is built from here on */
GCKPT_API void gckpt_segment_end(gckpt_graph *graph);   /* of the last one begun */
/* Both return x. */
GCKPT_API gckpt_tensor *gckpt_keep(gckpt_tensor *x);      /* must save: computed once */
GCKPT_API gckpt_tensor *gckpt_recompute(gckpt_tensor *x); /* must recompute: never kept */

/* >>api-user-ops ----------------------------------------------------------------------------------
 * A user's op has a descriptor like ours. Kernels see the shapes of the present micro-batch. */
typedef struct gckpt_call gckpt_call;
typedef struct {
    const float *data;    /* values; NULL while shaping and where a backward does not need them */
    const int32_t *index; /* the same for i32 tensors */
    float *grad;          /* backward: where this input's gradient goes; NULL: not wanted */
    int accumulate;       /* 1: add to what grad holds (or start chains from it); 0: store */
    float *compensation;  /* GCKPT_SUMS: rounding of grad's sums (Kahan); NULL: no sums */
    gckpt_shape shape;
    /* GCKPT_TAKES_BF16 and find_fast, in bf16 plans: where values are, gradients go, instead */
    const uint16_t *bf16;
    uint16_t *grad_bf16;
    const uint8_t *bytes; /* GCKPT_IS_U8: the values */
} gckpt_arg;
struct gckpt_call {
    int inputs;
    gckpt_arg in[GCKPT_MAX_INPUTS];
    gckpt_shape shape;     /* of the output */
    float *out;            /* forward: NULL where nobody reads it; backward: when in needs */
    const float *grad_out; /* backward: the output's gradient; NULL for losses */
    void *saved;           /* what forward saves for backward; NULL in a forward: nobody reads it */
    void *workspace;       /* scratch for this instruction only */
    const void *attributes;
    /* set by shape(): */
    size_t saved_bytes, workspace_forward, workspace_backward;
    int mixes_rows; /* moves the batch axis or combines rows: splits are no longer exact */
    /* losses without i32 inputs: elements of input 0 per count; 0: 1 */
    int64_t elements_per_count;
    /* set for kernels: */
    int64_t first_row; /* first row of this micro-batch in the step's batch */
    int64_t rows;     /* rows in this micro-batch; functions of parameters: row 0, rows 1 */
    int64_t position; /* gckpt_position; 0 without caches */
    uint64_t seed, step;
    int id; /* of the tensor */
    int threads;
    int plain;    /* 1: workspace for plain kernels is enough (gckpt_plan_desc.plain) */
    int training; /* 0 in inference plans */
    gckpt_precision precision; /* it computes in; also for shape() when planning */
    unsigned rounded;          /* to bf16: values of GCKPT_IN(i); GCKPT_OUT: grad_out */
    uint16_t *out_bf16;        /* GCKPT_TAKES_BF16: instead of out, of grad_out */
    const uint16_t *grad_out_bf16;
    double *loss_sum; /* losses, forward: add the sum and count here; NULL in a recompute */
    int64_t *loss_count;
    float loss_scale;    /* losses, backward: the gradient of the sum */
    const void *quantised; /* private: the parameter that is read as it is stored */
    const void *runner;  /* private: how threads are started */
    const void *kernels; /* private: those of an instruction set */
    void *backend;       /* its context (gckpt_backend); NULL: the processor */
    void *graph;         /* private: where gckpt_fail reports */
};
/* What an input's gradient reads (needs): */
#define GCKPT_IN(i) (1u << (i))
#define GCKPT_OUT   (1u << 8)
#define GCKPT_SAVED (1u << 9)
/* also: its gradient sums over rows (bias, gain, broadcasting). Where `compensation` is given (as
 * many floats as grad, +0 at first), set grad to +0 if it does not accumulate, then add each
 * contribution x by gckpt_sum_add(&grad[k], &compensation[k], x): rows do not cost accuracy. */
#define GCKPT_SUMS (1u << 10)
/* also: the input is a gckpt_running, and its gradient what the backward measured in this
 * micro-batch (call->training 0: it is to be used instead), times rows. Mixes rows in training. */
#define GCKPT_UPDATES_RUNNING (1u << 11)
#define GCKPT_IS_U8    (1u << 13) /* also: the input is u8, and gets no gradient */
/* flags: */
#define GCKPT_INPLACE(i) (1u << (i)) /* out may be the same bytes as input i (elementwise) */
/* the gradient of input i is grad_out itself when shapes agree: grad == grad_out: nothing to do */
#define GCKPT_PASSES_GRAD(i) (1u << (8 + (i)))
#define GCKPT_INPLACE_GRAD (1u << 16) /* in[0].grad may be the bytes of grad_out (elementwise) */
/* A (sum, count) loss; shape() leaves shape.n = 0. With other losses in a plan it must count the
 * elements of input 0 (divided by elements_per_count of shape(): rows) or, with i32 inputs, those
 * of the last one that are not < 0. */
#define GCKPT_LOSS         (1u << 17)
#define GCKPT_COUNT_FROM_FEEDS (1u << 23) /* it always counts like that, so before it runs */
#define GCKPT_SIDE_EFFECT  (1u << 18) /* forward runs exactly once a micro-batch */
/* kernels read and write bf16 where out, in[0] or in[1] have it; else on f32 copies */
#define GCKPT_TAKES_BF16 (1u << 19)
#define GCKPT_INDEX(i)   (1u << (24 + (i))) /* input i is i32 (others: f32, GCKPT_IS_U8) */
/* Of an op whose output's rows (axis 1 of (B,H,..)) are made of a few rows of inputs 0 to `inputs`
 * - 1: row y reads rows y * stride - padding to .. + size - 1; rows outside the input are `fill`.
 * */
typedef struct {
    int inputs;
    int32_t stride, padding, size;
    float fill;
} gckpt_receptive_field;
typedef struct {
    const char *name;
    /* from in[].shape: shape, saved_bytes, workspace; or gckpt_fail */
    gckpt_result (*shape)(gckpt_call *call);
    void (*forward)(const gckpt_call *call);   /* from in[] to out */
    void (*backward)(const gckpt_call *call);  /* NULL: no gradients */
    uint64_t (*flops)(const gckpt_call *call); /* of the forward; NULL: one per output element */
    /* The values of i32 input i are below this and not negative (but the last i32 input of a loss
     * may have negative ones, for what is to be ignored): each step checks all of them before
     * anything runs (E_DATA), of those that an op gives it is checked when the node is added
     * (E_SHAPE). 0 or no function: no check. */
    int64_t (*classes)(const gckpt_call *call, int i);
    unsigned needs[GCKPT_MAX_INPUTS];             /* what the gradient of each input reads */
    unsigned flags;                               /* GCKPT_INPLACE, .. */
    void (*forward_fast)(const gckpt_call *call); /* same bits, or NULL */
    void (*backward_fast)(const gckpt_call *call);
    /* Of the backward, in[i].grad being NULL or not as in the backward itself (where it points is
     * not to be read). NULL: the forward's flops, once for one gradient, twice for more. */
    uint64_t (*flops_backward)(const gckpt_call *call);
    /* Sets *rows, and changes a copy of the attributes to those by which shape() and forward find
     * the rows of `fill` among those of the input. A plan may then run the op's forward in row
     * tiles (manual, 9), with the same bits and saved NULL. Returning 0, or NULL: it may not. */
    int (*receptive_field)(const gckpt_call *call, void *attributes, gckpt_receptive_field *rows);
} gckpt_op;
/* Adds a node. Inputs must be of one graph; in[i] NULL ends in NULL. Attributes are copied. Plans
 * are saved and printed with attributes as 4-byte words: for that, let them be int, int32_t,
 * uint32_t and float (no padding, no pointers), and the row be a variable called as its name. */
GCKPT_API gckpt_tensor *gckpt_apply(const gckpt_op *op, gckpt_tensor *const *in, int n,
                                    const void *attributes, size_t attribute_bytes);
/* *sum += x, compensated by *compensation (NULL: a plain sum). Kahan 1965. */
GCKPT_API void gckpt_sum_add(float *sum, float *compensation, float x);
/* ---- What the built-in kernels are made of, for a user's: the same bits and means on every
 * executor, be it one with threads and vector kernels or a plain one. docs/user-ops.md writes a
 * convolution with them. ----
 *
 * Calls item(context, i, worker) for each i of 0..items-1, once, in any order, on up to
 * call->threads threads, and returns when all are done. Items may be under way at the same time:
 * none may write what another one reads or writes. `worker`, 0..call->threads-1, differs for those
 * under way, so that scratch may have a part for each (let shape() ask for call->threads parts).
 * cost: multiply-adds of an item, about; where all cost little, no thread is woken.
 * An item that uses gckpt_parallel or gckpt_product passes them a copy of call with threads 1. */
GCKPT_API void gckpt_parallel(const gckpt_call *call, int64_t items, int64_t cost,
                              void (*item)(void *context, int64_t i, int64_t worker),
                              void *context);
/* a * b + c, rounded once (manual, 5a): a function call, and a slow one where the processor or the
 * compiler's target has no such instruction. For many, see below. */
GCKPT_API float gckpt_fma(float a, float b, float c);
/* x[0] y[0] + x[1] y[1] + ..., in 32 lanes (manual, 5d). */
GCKPT_API float gckpt_dot(const gckpt_call *call, const float *x, const float *y, int64_t n);
/* C (m,n) = A (m,k) B (k,n): each element is one chain of fma over k ascending (manual, 5c), from
 * what C holds (accumulate) or +0. Strides count elements, are any numbers, and transpose for free:
 * A(i,p) = a[i * a_row + p * a_col]. Fast: c_col or c_row 1 and C apart from A and B; fastest: one
 * stride of each of the three is 1. */
typedef struct {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_col;
    const float *b;
    int64_t b_row, b_col;
    float *c;
    int64_t c_row, c_col;
    int accumulate;
    void *workspace; /* gckpt_product_workspace bytes; may be part of call->workspace */
} gckpt_product_desc;
GCKPT_API void gckpt_product(const gckpt_call *call, const gckpt_product_desc *desc);
/* For shape(): bytes of scratch for a product of these sizes, or smaller ones; 0 for small ones. */
GCKPT_API size_t gckpt_product_workspace(const gckpt_call *call, int64_t m, int64_t n, int64_t k);
/* For shape(): records an error and returns it. %s text, %i int, %I int64_t, %u uint64_t, %z
 * size_t, %g double, %S const gckpt_shape *, %T const gckpt_tensor *. */
GCKPT_API gckpt_result gckpt_fail(gckpt_call *call, gckpt_result result, const char *format, ...);

/* >>api-plans -------------------------------------------------------------------------------------
 * A plan is made for what its bytes depend on; running refuses anything else. */
typedef enum {
    GCKPT_AUTO,        /* store-all, or under a budget that is too small for it, optimal */
    GCKPT_STORE_ALL,   /* nothing is recomputed */
    GCKPT_MEMORY_POOR, /* everything is recomputed for each backward */
    GCKPT_SEGMENTS,    /* the user's segments */
    GCKPT_SQRT,        /* the uniform segmentation with least bytes (about sqrt(n) of n ops) */
    GCKPT_OPTIMAL,     /* the least cost that fits the budget, in the least bytes */
    GCKPT_SCHEDULE,    /* desc.schedule */
    GCKPT_INFERENCE    /* forward only: losses and fetched tensors */
} gckpt_mode;
typedef enum { GCKPT_ADAMW, GCKPT_SGD, GCKPT_MOMENTUM, GCKPT_CUSTOM_OPTIMISER } gckpt_optimiser;
/* What gckpt_fetch and gckpt_collect may return. Activations and their gradients, in units of the
 * sum: gckpt_fetch has the last micro-batch's, gckpt_collect all rows. Gradients of parameters that
 * are trained: divided, before clipping. The gradient of an input (f32), a constant, a frozen
 * parameter or anything else that no trainable parameter leads to is computed because it is
 * fetched, in units of the sum; what has no batch axis gets the sum over the batch. A plan may have
 * such fetches and nothing to train: its steps update nothing. */
typedef struct {
    gckpt_tensor *tensor;
    int gradient;
} gckpt_fetch_spec;
typedef enum {
    GCKPT_FORWARD,
    GCKPT_BACKWARD,
    GCKPT_UPDATE,
    GCKPT_OFFLOAD,     /* copies what the forward before it left to slower memory */
    GCKPT_RELOAD,      /* and back, to wherever there is room then */
    GCKPT_REDUCE,      /* adds up a gradient's sums of the virtual ranks, here and over ranks */
    GCKPT_OFFLOAD_DONE /* until here an offloaded value keeps its bytes (desc.overlap_offload) */
} gckpt_kind;
typedef struct {
    gckpt_kind kind;
    int id; /* of the tensor; UPDATE: of the parameter */
} gckpt_instruction;
/* Cost of one op over one micro-batch, in any unit that is the same for all ops of the graph. */
typedef struct {
    uint64_t forward, backward;
} gckpt_cost;
typedef struct {
    gckpt_mode mode;
    size_t budget; /* bytes, as gckpt_plan_bytes counts them; 0: no limit */
    /* most rows of one step, no fewer than the graph's; 0: the graph's own (one micro-batch) */
    int64_t batch;
    gckpt_optimiser optimiser; /* of what is trained; 0: AdamW */
    int custom_state;          /* GCKPT_CUSTOM_OPTIMISER: floats of state per element, 0..4 */
    /* update parameters as soon as gradients are complete: 0, 1; gckpt_fit: GCKPT_IF_USEFUL */
    int update_in_backward;
    /* 1: what runs is the graph as it was built; 0: AUTO, OPTIMAL, frontiers and gckpt_fit choose
     * among forms of ops and orders of backwards that give the same bits (manual, 9) */
    int as_built;
    int threads; /* 0: 1 */
    /* Number of virtual ranks, a power of two (0: 1): row r of a step belongs to virtual rank
     * floor(r virtual_ranks / batch), and each sums its rows by itself. A rank has virtual_ranks /
     * ranks of them, at least one, so results depend on this number, not on the ranks (manual, 5e).
     * Micro-batches end where virtual ranks end. If above 1, no update_in_backward. INFERENCE with
     * 1: all ranks run all rows. */
    int virtual_ranks;
    /* Cost (gckpt_cost) of gathering 2^20 bytes from other ranks: GCKPT_SHARD_VALUES, where a
     * FORWARD of a parameter gathers it into the arena. With costs in nanoseconds 1048576 / (GB/s)
     * */
    uint64_t link_cost;
    /* If nonzero, communication overlaps computation: each all-gather begins early enough, judging
     * by link_cost and the costs of the ops, that it ends before its first use, as far as the
     * budget has room for buffers that live longer (with budget 0, without making the plan larger).
     * If 0, it begins immediately before its first use. Overlap never makes a budget infeasible,
     * and gckpt_plan_cost does not count it. Ignored for GCKPT_SCHEDULE, whose caller places them.
     * */
    int overlap_communication;
    size_t alignment; /* of every offset; a power of two; 0: 64 */
    /* If nonzero, a FORWARD of a parameter copies its value into the arena, where ops read it, as
     * for quantised ones that an op reads as floats (manual, 12). The copy is planned like any
     * value: it has bytes and a cost (10 x bytes read and written, + 16384; or its entry in costs),
     * may be dropped and copied again; gckpt_keep and gckpt_recompute hold for it; a schedule may
     * place it, else it comes before its first use. Updates act on the parameter itself. */
    int stage_parameters;
    /* 1: workspace for the plain kernels only, and they run: what a GCKPT_NO_FAST build needs
     * (there it is always 1), so set it when this plan is made for one */
    int plain;
    /* Bytes of slower memory that AUTO, OPTIMAL, frontiers and gckpt_fit may offload values (and
     * what is saved for the backward) to, instead of recomputing them (manual, 9); 0: none.
     * offload_cost: cost (gckpt_cost) of copying 2^20 bytes, one way: with costs in nanoseconds
     * 1048576 / (GB/s); rounded up. Plans that update in the backward offload nothing: a copy that
     * failed would come too late. */
    size_t offload_bytes;
    uint64_t offload_cost;
    /* If nonzero, offload copies overlap computation, one at a time, in the order they are begun.
     * Cost is then a time: an op takes its cost, a use waits for its reload, and whatever follows a
     * value's last use waits for its offload; plans minimise that time. The bytes that copies keep
     * (until GCKPT_OFFLOAD_DONE, or by early reloads) count. If 0, copies and ops run in turn. */
    int overlap_offload;
    /* What the plan is made for; NULL: the processor. The table must live until the plan is made;
     * plain is then unused, and such a plan is neither saved nor printed as C. */
    const gckpt_backend *backend;
    gckpt_precision precision; /* of activations and their gradients */
    /* 1: of a bf16 plan the second factors of matmul, linear and linear_cross_entropy that are fp32
     * parameters are read from bf16 copies, to the same bits: 2 bytes an element, rounded up to 64
     * (GCKPT_BYTES_COPIES), an executor's own, which its updates write. A plan has them where its
     * budget leaves the bytes when all else is planned; without one always. What the program itself
     * writes to values needs a gckpt_store_push. None of gckpt_store_external's, staged or sharded
     * parameters, of backends and frontiers. */
    int bf16_weights;
    /* GCKPT_SQRT: n ops a segment; -n: n of the user's outermost segments; 0: fewest bytes */
    int segment_size;
    /* GCKPT_SCHEDULE: forwards (repeated at will), backwards and, with offload_bytes, reloads, but
     * no updates and reduces (they and offloads are put where they belong). Reverse order of
     * backwards will do, as will any in which a backward comes after those of what reads its
     * result, and of what adds to the same gradients before it (manual, 5f) */
    const gckpt_instruction *schedule;
    int instructions;
    const gckpt_fetch_spec *fetch; /* for gckpt_fetch and gckpt_collect, */
    int fetches;             /* so many */
    /* of the graph as built, by id, cost_count = highest id + 1 (gckpt_calibrate); NULL: the
     * larger of flops and 10 x bytes moved, + 16384 an instruction, the same on every machine */
    const gckpt_cost *costs;
    int cost_count;
    /* For planning (it gives back what it took) and the plan. In a block (memory.memory) the plan
     * lies at the beginning in the end, gckpt_plan_kind_bytes(plan, GCKPT_BYTES_TABLES) bytes
     * behind at most 15 for alignment; all behind it is free, for the block of another plan, say.
     * What is given the same block again overwrites it. */
    gckpt_memory memory;
} gckpt_plan_desc;
/* Terms: what is minimised, the first one counting the step (manual, 3); none for INFERENCE is
 * fine. Copies what it needs: the graph may go first. NULL on error, which is then the graph's. */
GCKPT_API gckpt_plan *gckpt_plan_new(gckpt_graph *graph, const gckpt_term *terms, int count,
                                     const gckpt_plan_desc *desc);
GCKPT_API void gckpt_plan_free(const gckpt_plan *plan); /* executors go on without it */
/* parameters + state + caches + copies + step arena */
GCKPT_API size_t gckpt_plan_bytes(const gckpt_plan *plan);
GCKPT_API size_t gckpt_plan_arena(const gckpt_plan *plan); /* the step arena alone */
GCKPT_API size_t gckpt_plan_peak(const gckpt_plan *plan);  /* greatest sum of live arena bytes */
enum {
    GCKPT_BYTES_PARAMETERS,
    GCKPT_BYTES_STATE,
    GCKPT_BYTES_GRADIENTS,
    GCKPT_BYTES_ACTIVATIONS,
    GCKPT_BYTES_WORKSPACE,
    GCKPT_BYTES_TABLES,
    GCKPT_BYTES_CACHES,
    GCKPT_BYTES_COPIES,    /* of parameters (desc.bf16_weights) */
    GCKPT_BYTES_REDUCTION, /* arena: partial sums of virtual ranks, receive buffers */
    GCKPT_BYTES_GATHERED,  /* arena: values of sharded parameters, whole */
    GCKPT_BYTES_PADDING,  /* of shards; already counted in the other kinds */
    GCKPT_BYTES_KINDS
};
/* Bytes of one kind; the arena's (gradients of parameters, activations and their gradients,
 * workspace) where the live sum is greatest, so that they add up to the bound. */
GCKPT_API size_t gckpt_plan_kind_bytes(const gckpt_plan *plan, int kind);
GCKPT_API size_t gckpt_plan_offloaded(const gckpt_plan *plan); /* bytes of slower memory it uses */
GCKPT_API double gckpt_plan_recompute(const gckpt_plan *plan); /* recomputed cost / forward cost */
/* Cost (gckpt_cost) of a micro-batch: forwards and backwards, recomputes included, and copies to
 * slower memory and back, except their hidden cost: with desc.overlap_offload the part that
 * overlaps computation, else 0. overhead: by how much it exceeds the least cost without recomputes,
 * in any lowering that the plan could choose (manual, 9), as a fraction of that. */
GCKPT_API uint64_t gckpt_plan_cost(const gckpt_plan *plan);
GCKPT_API uint64_t gckpt_plan_hidden_cost(const gckpt_plan *plan);
GCKPT_API double gckpt_plan_overhead(const gckpt_plan *plan);
/* What is proven about all schedules (manual, 9), whoever finds them: none within the plan's budget
 * costs less than proven_cost (of a micro-batch, as gckpt_plan_cost), and none has fewer bytes
 * than proven_bytes (as gckpt_plan_bytes). The budget: desc.budget of AUTO and OPTIMAL, that of
 * gckpt_frontier_plan; without one, and in other modes, the plan's own bytes. gap: by how much the
 * plan's cost exceeds proven_cost, as a fraction of a store-all plan's; 0: no schedule is better.
 * The least possible is never below, but may be above: in few bytes, where forwards must run a
 * third time; with gckpt_recompute, which no schedule is held to here; where updates in the
 * backward or a loop keep things longer; where an op may first run late (several losses). No memory
 * for a proof: parameters and state, and what computes nothing twice. */
GCKPT_API uint64_t gckpt_plan_proven_cost(const gckpt_plan *plan);
GCKPT_API size_t gckpt_plan_proven_bytes(const gckpt_plan *plan);
GCKPT_API double gckpt_plan_gap(const gckpt_plan *plan);
/* Cost of desc.batch rows: of micro-batches (short ones in proportion, a virtual rank's only one
 * whole), and once of what depends on parameters only; UINT64_MAX: at least that. In seconds:
 * manual, 7. */
GCKPT_API uint64_t gckpt_plan_step_cost(const gckpt_plan *plan);
GCKPT_API int64_t gckpt_plan_rows(const gckpt_plan *plan);  /* of a micro-batch */
GCKPT_API int64_t gckpt_plan_batch(const gckpt_plan *plan); /* of a step, at most */
/* How many rows of a step of `rows` rows (INFERENCE: of a call) a rank is to be fed, the first
 * being number *first (may be NULL); all of them when there is one rank. */
GCKPT_API int64_t gckpt_plan_rank_rows(const gckpt_plan *plan, int64_t rows, int rank,
                                       int64_t *first);
GCKPT_API int gckpt_plan_in_backward(const gckpt_plan *plan); /* 1: updates in the backward */
GCKPT_API gckpt_mode gckpt_plan_mode(const gckpt_plan *plan); /* what AUTO chose */
GCKPT_API const char *gckpt_mode_name(gckpt_mode mode);       /* "store-all" */
GCKPT_API int gckpt_plan_length(const gckpt_plan *plan);      /* instructions */
/* Instruction i, from 0. E_ARG, here and below: there is none. */
GCKPT_API gckpt_result gckpt_plan_get(const gckpt_plan *plan, int i, gckpt_instruction *out);
/* What instruction i takes. */
typedef struct {
    uint64_t cost; /* gckpt_cost; 0 for an update or a reduce */
    size_t live;   /* bytes of the arena that are in use while it runs */
    int recompute; /* 1: a forward that has run before, a recompute */
    size_t moved;  /* bytes that an offload or a reload copies */
    int once;      /* 1: runs once a step; 0: for each micro-batch */
} gckpt_usage;
GCKPT_API gckpt_result gckpt_plan_usage(const gckpt_plan *plan, int i, gckpt_usage *out);
/* 1: every split of the batch (manual, 5m: that this holds for) gives the same bits; 0: not, as the
 * tensor *op mixes rows. */
GCKPT_API int gckpt_plan_split_exact(const gckpt_plan *plan, const char **op);
/* What the step arena holds: buffers, by the instruction they end with. Those live at an
 * instruction add up to its live bytes (gckpt_plan_usage); no two live ones overlap. */
typedef enum {
    GCKPT_BUFFER_VALUE,
    GCKPT_BUFFER_SAVED,              /* what a forward keeps for its backward */
    GCKPT_BUFFER_GRADIENT,           /* of an activation */
    GCKPT_BUFFER_PARAMETER_GRADIENT, /* of a parameter, or of what depends on parameters only */
    GCKPT_BUFFER_WORKSPACE,          /* of one instruction */
    GCKPT_BUFFER_REDUCTION           /* a virtual rank's partial sum, or a receive buffer */
} gckpt_buffer_kind;
typedef struct {
    int start, end;      /* first and last instruction; the plan's length: after all of them */
    size_t offset, size; /* bytes */
    int id;              /* tensor; of several that share the buffer (in place), the first */
    gckpt_buffer_kind kind;
} gckpt_buffer;
GCKPT_API int gckpt_plan_buffers(const gckpt_plan *plan); /* how many */
/* Buffer i. */
GCKPT_API gckpt_result gckpt_plan_buffer(const gckpt_plan *plan, int i, gckpt_buffer *out);
/* Of the tensor with this id: its name, else its op's; "" when it has neither. The plan's. */
GCKPT_API const char *gckpt_plan_name(const gckpt_plan *plan, int id);
GCKPT_API const char *gckpt_plan_op(const gckpt_plan *plan, int id); /* its op's, as it runs */
#ifndef GCKPT_NO_PRINT
/* Prints header, then every instruction with what it writes and the live bytes. (Plans and
 * frontiers are drawn by examples/pictures.h.) E_FILE, here and below: the callback failed. */
GCKPT_API gckpt_result gckpt_plan_print(const gckpt_plan *plan, gckpt_write_fn write, void *user);
/* Writes a micro-batch as Chrome trace events (chrome://tracing, ui.perfetto.dev): a bar for each
 * instruction, a nanosecond per unit of cost (gckpt_cost), and live bytes by kind. */
GCKPT_API gckpt_result gckpt_plan_trace(const gckpt_plan *plan, gckpt_write_fn write, void *user);
#endif

/* Hash of the graph the plan is for: ops, attributes, shapes, types, what reads what, names of
 * inputs, constants and parameters; and desc.virtual_ranks, if above 1. The same on every
 * machine, for every plan of the graph with as many virtual ranks. */
GCKPT_API uint64_t gckpt_plan_hash(const gckpt_plan *plan);
#ifndef GCKPT_NO_EXPORT
/* A plan as a file, the same bytes on every machine. Reading takes the graph the plan was made for
 * (same hash, parameters frozen and stored alike); another one, another version of this header, a
 * damaged file or one too large for this machine is refused with the reason, which is the graph's
 * error. Whatever is in the file, a plan that is read is right: it is derived from the graph again,
 * but for the order of instructions and the offsets, which are checked, and what its costs and
 * proofs were, which it tells. memory: as gckpt_plan_desc.memory; NULL: the heap. */
GCKPT_API gckpt_result gckpt_plan_write(const gckpt_plan *plan, gckpt_write_fn write, void *user);
GCKPT_API gckpt_plan *gckpt_plan_read(gckpt_graph *graph, gckpt_read_fn read, void *user,
                                      const gckpt_memory *memory);
/* Prints the plan as a C constant, `const gckpt_plan NAME`, all of it read-only, to be compiled
 * (C99, C++11) in the file that holds the implementation, after the #include (manual, 8). An enum
 * gives ids their names: NAME_tokens of input "tokens", and so for desc.fetch. NAME_store_bytes and
 * NAME_exec_bytes (they use sizeof) are blocks that suffice on every machine for a store of its
 * parameters and an executor of which nothing but memory is asked (copy_feeds, say, takes more:
 * gckpt_exec_need). A user's op is printed as the variable its name says, declared by then, with
 * the needs and flags it was planned with, and attributes as gckpt_apply says. Mind desc.plain and
 * the store's seed. E_ARG: it cannot be printed; an #error that says why is printed instead. */
GCKPT_API gckpt_result gckpt_plan_c(const gckpt_plan *plan, const char *name, gckpt_write_fn write,
                                    void *user);
/* Prints a store's parameters as C constants, to be compiled in next to the plan, and
 * `gckpt_result NAME_bind(gckpt_store *store)`: before gckpt_plan_params it brings them into an
 * empty store, in their order, stored as they are, every bit. Frozen ones are read from flash
 * (gckpt_store_external) and stay frozen; of the others the store has copies. Not printed are
 * optimiser state, step count and notes: a device begins at step 0. A block needs NAME_flash_bytes
 * less than NAME_store_bytes of a plan that reads all of the store's parameters. E_ARG: as above;
 * no parameters, several ranks, values not made yet (gckpt_store_get) that are quantised, or
 * random where GCKPT_NO_TRAINING cannot initialise them. */
GCKPT_API gckpt_result gckpt_store_c(const gckpt_store *store, const char *name,
                                     gckpt_write_fn write, void *user);
#endif /* GCKPT_NO_EXPORT */
/* Creates the plan's parameters in the store, as gckpt_param did when the graph was built: in that
 * order, with those initial values if the seed is the same. What exists is left alone. */
GCKPT_API gckpt_result gckpt_plan_params(const gckpt_plan *plan, gckpt_store *store);

enum { GCKPT_IF_USEFUL = 2 }; /* update_in_backward, of gckpt_fit: it may be chosen (no clipping) */
#ifndef GCKPT_NO_FIT
/* Chooses the micro-batch together with the plan. build makes the graph whose inputs have `rows`
 * rows, fills terms (at most GCKPT_MAX_TERMS) and returns how many; less than 0: this size is not
 * wanted. It is called for every divisor of the batch and must make the same tensors and parameters
 * each time, so that ids hold for all. */
#define GCKPT_MAX_TERMS 16
typedef int (*gckpt_build_fn)(gckpt_graph *graph, int64_t rows, gckpt_term *terms, void *user);
/* Fills the costs of a graph that build has just made, e.g. by gckpt_calibrate. */
typedef gckpt_result (*gckpt_measure_fn)(gckpt_graph *graph, const gckpt_term *terms, int count,
                                         gckpt_cost *costs, int cost_count, void *user);
/* The plan with the least gckpt_plan_step_cost, among those of all micro-batch sizes (and update
 * rules, with GCKPT_IF_USEFUL) that fit desc.budget; then the one with fewer bytes, then with more
 * rows. measure NULL: by the costs of the model, the same plan on every machine. A graph that mixes
 * rows is planned whole. desc: as for gckpt_plan_new, but fetch, schedule and costs belong to one
 * graph and batch is the argument; memory must not be a block. Graphs are temporary; the parameters
 * they make stay in the store when a plan is found, and only then. NULL on error, which is then the
 * store's; of a budget too small it names the least bytes, and those for 1.5 times the least cost.
 * */
GCKPT_API gckpt_plan *gckpt_fit(gckpt_store *store, gckpt_build_fn build, void *user, int64_t batch,
                                const gckpt_plan_desc *desc, gckpt_measure_fn measure);
#endif

/* ---- the frontier: what every budget costs ---- */
/* A plan of this cost fits in `bytes`; a cheaper one does not, as far as the search knows. */
typedef struct {
    size_t bytes;
    uint64_t cost;              /* gckpt_plan_cost */
    double recompute, overhead; /* gckpt_plan_recompute, gckpt_plan_overhead */
    uint64_t proven_cost;       /* gckpt_plan_proven_cost within these bytes */
} gckpt_point;
#ifndef GCKPT_NO_FRONTIER
/* All points of GCKPT_OPTIMAL at once, of the store as it is: freeze, pack, .. before; desc as for
 * gckpt_plan_new, its mode and budget unused, its memory no block. Graph and desc.backend must live
 * as long; a thread at a time may use it. NULL on error, which is then the graph's. */
GCKPT_API gckpt_frontier *gckpt_frontier_new(gckpt_graph *graph, const gckpt_term *terms, int count,
                                             const gckpt_plan_desc *desc);
GCKPT_API void gckpt_frontier_free(gckpt_frontier *frontier); /* its plans stay */
/* Points by ascending bytes and descending cost; the last one recomputes nothing. */
GCKPT_API int gckpt_frontier_points(const gckpt_frontier *frontier);
GCKPT_API gckpt_result gckpt_frontier_get(const gckpt_frontier *frontier, int i, gckpt_point *out);
/* Returns 1 if every point was searched exhaustively, 0 if a limit of effort was reached, which is
 * normal for graphs of more than some tens of ops; proven_cost says how good a point is. */
GCKPT_API int gckpt_frontier_complete(const gckpt_frontier *frontier);
GCKPT_API size_t gckpt_frontier_proven_bytes(const gckpt_frontier *frontier);
/* The point that a budget gets (0: no limit), -1: it is too small; and its plan. What
 * gckpt_plan_new makes with GCKPT_OPTIMAL costs up to 0.1 % of a step less, never more. */
GCKPT_API int gckpt_frontier_find(const gckpt_frontier *frontier, size_t budget);
GCKPT_API gckpt_plan *gckpt_frontier_plan(const gckpt_frontier *frontier, size_t budget);
#ifndef GCKPT_NO_PRINT
/* The frontier as text (80 columns, some 20 rows), and as JSON: an object with points (gckpt_point,
 * ascending bytes), marked (the point of the budget `mark`; null: none, or mark 0), complete and
 * proven_bytes. */
GCKPT_API gckpt_result gckpt_frontier_print(const gckpt_frontier *frontier, size_t mark,
                                            gckpt_write_fn write, void *user);
GCKPT_API gckpt_result gckpt_frontier_json(const gckpt_frontier *frontier, size_t mark,
                                           gckpt_write_fn write, void *user);
#endif
#endif /* GCKPT_NO_FRONTIER */

/* >>api-backend -----------------------------------------------------------------------------------
 * By what a plan is computed, and where: the processor, unless gckpt_plan_desc.backend and
 * gckpt_exec_desc.backend name another. A backend is a table of functions, one constant object for
 * all that use it (it is known by its address). The executor interprets the plan and calls them;
 * where arena, parameters, optimiser state, feeds and sums of losses lie in memory of its own,
 * nothing else touches them (of parameters and state the store copies, too, between steps).
 *
 * An executor calls from one thread, several executors from several; one store's executors on
 * different backends take turns by whole steps. Calls take effect in the order they are made in. In
 * memory of its own a backend may return before that; three may not: copy_in returns when it has
 * read the host's bytes, copy_out when it has written them, finish when all is done. finish is
 * called at a step's end, before the report; before the first update, if the step clips, if it may
 * be skipped and `nonfinite` is missing, or if a loss that is no regulariser lacks
 * GCKPT_COUNT_FROM_FEEDS; before a regulariser's gradient, if the first loss's count is not known
 * from the feeds. copy_out waits for gckpt_fetch and for what runs on the host. Without memory of
 * its own each call has taken effect when it returns. A call, what it points to on the host
 * (attributes, shapes) and the structs below live until the function returns; their other pointers
 * are the backend's. Whatever computes, the numbers are those of the contract (manual, 5). An error
 * that is found at a step's end comes after its updates: weights may have changed where the step is
 * not counted; go back to what was saved. */
typedef void (*gckpt_kernel)(const gckpt_call *call);

typedef enum {
    GCKPT_WIDEN,     /* x = from */
    GCKPT_WIDEN_ADD, /* x = from + x */
    GCKPT_NARROW,    /* to = x, rounded */
    GCKPT_ROUND      /* x = x, rounded, as floats */
} gckpt_conversion_kind;
/* n floats and n bf16. Rounding is as call->precision says (manual, 5l); by chance, element i of
 * the micro-batch is number c = row * (n / rows) + i of the batch and takes the low (c even) or
 * high half of word c / 2 % 4 of Philox4x32-10, keyed by the seed, of counter (c / 8, stream,
 * step). */
typedef struct {
    gckpt_conversion_kind kind;
    float *x;
    const uint16_t *from;
    uint16_t *to;
    int64_t n;
    uint32_t stream;
} gckpt_conversion;

/* Constants of an update, for the formulas in num/formulas: g is what was divided times
 * `scale` (of clipping), d `decay`; rest1 = 1 - beta1; correct2 = 1 / (1 - beta2^t). */
typedef struct {
    float scale, decay, beta1, rest1, beta2, rest2, eps, rate, correct2;
} gckpt_update_constants;
/* One pass over a parameter (manual, 5g): for each block of GCKPT_UPDATE_BLOCK elements, in this
 * order, its further accumulators are added to the first, which keeps the sum (with `update` it
 * need not); the sum is divided; the square sum of that taken; the parameter updated with it. */
enum { GCKPT_UPDATE_BLOCK = 4096 };
typedef struct {
    int64_t elements;
    float *gradient;  /* the first accumulator */
    const void *base; /* further ones: at base + more[i] bytes; `more` is the host's */
    const size_t *more;
    int adds;       /* so many of them */
    float count;    /* to divide by; 0: divided it is already */
    int write_back; /* 1: what was divided is to stand in `gradient` after this, 0: the sum */
    float *squares; /* square sums, by block; NULL: not wanted */
    int update;     /* 0: no; what follows is unused */
    const uint32_t
        *skip_flag; /* nothing is updated if it finds something but 0 here; NULL: it does */
    gckpt_optimiser optimiser;
    float *values, *state[4];
    float momentum;
    gckpt_update_constants rates;
    uint16_t *bf16; /* a copy, to be made of what is updated; NULL: none. Not of backends */
} gckpt_update_pass;

/* A parameter's values as they are stored (gckpt_store_quantise), to n floats. */
typedef struct {
    gckpt_storage storage; /* not F32 */
    const void *quantised;
    const float *scales; /* I8: of each row */
    int64_t row, n;      /* elements of a row; all */
    float *to;
} gckpt_dequantisation;

/* A micro-batch, for a backend that repeats what it has been asked for before. All that may differ
 * from an earlier one of the same owner, part and `rows` is here: row, position, seed and step of
 * its calls, and loss_scale of its losses', by gckpt_call.id. */
typedef struct {
    int id;
    float scale;
} gckpt_loss_scale;
typedef struct {
    const void *owner; /* the executor */
    int64_t part;      /* which one of the micro-batch, where that is repeated in parts */
    int64_t first_row, rows, position;
    uint64_t seed, step;
    const gckpt_loss_scale *scales; /* the host's */
    int losses;
} gckpt_step_params;

struct gckpt_backend {
    const char *name; /* a plan that was made for it runs on backends of this name only */
    void *context;   /* for the functions, not NULL; kernels find it in call->backend, which is NULL
                          where the processor runs them */
    int own_memory;  /* 1: memory the host cannot use. Then all functions to `finish` but
                          workspace are needed; else those that are NULL are the plain ones of the
                          processor, and so are kernels that `find` has not */
    int writes_back; /* 1: update always does as if write_back were 1 (and needs no scratch) */
    void *(*allocate)(void *context, size_t bytes, size_t alignment); /* NULL: there is none */
    void (*release)(void *context, void *memory, size_t bytes);
    /* Any bytes at any address, between steps, too: */
    void (*copy_in)(void *context, void *to, const void *host, size_t bytes);
    void (*copy_out)(void *context, void *host, const void *from, size_t bytes);
    void (*copy)(void *context, void *to, const void *from, size_t bytes);
    /* Planning: call is as op->shape left it for plain kernels; changes work_forward, _backward,
     * and of fast kernels (find_fast) also mixes_rows where their bits depend on micro-batches of
     * this size, and precision to GCKPT_BF16 where they are not for such shapes; in[i].bf16,
     * out_bf16 and grad_out_bf16 say what the plan keeps so and are not to be read. A function of
     * op, call and the backend's name only. Kernels find the workspace a multiple of 64 after the
     * executor's own copies, which begin at the plan's alignment. */
    gckpt_result (*workspace)(void *context, const gckpt_op *op, gckpt_call *call);
    /* The kernel of an op's forward or backward, by op->name or, of users' ops, by op; asked for
     * each instruction when an executor is made, and more than once: the answer is always the same.
     * NULL: there is none, and the op's own runs, with memory of its own on copies (slow). Forward
     * and backward share what is saved, whose layout the op's own kernels define: a backend that
     * lays it out otherwise has both. */
    gckpt_kernel (*find)(void *context, const gckpt_op *op, gckpt_kind kind);
    /* Between ops; of the call, only backend, threads, seed, step, row, rows and precision count.
     * fill: word, n times, from an address that is a multiple of 4. */
    void (*fill)(const gckpt_call *call, void *to, uint32_t word, int64_t n);
    void (*add)(const gckpt_call *call, float *to, const float *from, int64_t n); /* to += from */
    void (*convert)(const gckpt_call *call, const gckpt_conversion *conversion);
    void (*update)(const gckpt_call *call, const gckpt_update_pass *pass);
    /* Waits for all. The first thing that went wrong since the backend was made, and from then on
     * in each call; NULL: nothing. */
    const char *(*finish)(void *context);
    /* The rest may be NULL. A backend that has all kernels of a micro-batch can capture and replay
     * it. replay is called before the first instruction. If it returns 1, all instructions have
     * been replayed with `params`. If 0, the executor requests them, by kernels, fill, add,
     * convert, copy, copy_async and wait_copies only, then calls captured. That returns 1; or 0, if
     * they were only captured and cannot be replayed: the executor requests them again (and calls
     * replay no more). discard_captures: captures of `owner` are no longer valid. */
    int (*replay)(void *context, const gckpt_step_params *params);
    int (*captured)(void *context);
    void (*discard_captures)(void *context, const void *owner);
    /* Why the last allocate failed and what helps: error texts end with it. */
    const char *(*memory_hint)(void *context);
    /* GCKPT_BF16_FAST (manual, 5m); NULL: not here. As find, but a function of op->name or op alone
     * and asked when planning, too: an op's kernels, both or (NULL) none. call->precision says that
     * they are meant. Whatever the plan keeps as bf16 they read and write as such (in[i].bf16,
     * out_bf16, ..; the other pointer is NULL); compensations may be ignored. */
    gckpt_kernel (*find_fast)(void *context, const gckpt_op *op, gckpt_kind kind);
    /* For what is offloaded to the host: all four or none (then copy_out and copy_in do it). Copies
     * begin after what was asked for before, and may overlap what is asked for later; they keep
     * their order. wait_copies: what is asked for later waits for all of them. Their host side is
     * memory from host_get; the other side is not touched before wait_copies, but read where it
     * goes out.
     *
     *  */
    void *(*host_get)(void *context, size_t bytes);
    void (*host_release)(void *context, void *memory, size_t bytes);
    void (*copy_async)(void *context, void *to, const void *from, size_t bytes, int out);
    void (*wait_copies)(void *context);
    /* *found = 1 if one of n floats is not finite, else 0. NULL: a step that may be skipped waits
     * for its square sums before the first update. */
    void (*nonfinite)(const gckpt_call *call, const float *x, int64_t n, uint32_t *found);
    /* Dequantises a parameter into the arena. NULL: the host keeps its values, dequantises them
     * each time and copies them in (slow, and such micro-batches are not repeated). */
    void (*dequantise)(const gckpt_call *call, const gckpt_dequantisation *unpacking);
    /* As wait_copies, but the last `later` copies (at least 1) may go on. NULL: wait_copies. */
    void (*wait_copies_until)(void *context, int later);
    /* For exchanges of ranks in its memory (gckpt_transport.enqueue), both or none.
     * use_comm_queue(1): what the thread asks for from here on (add, copy) goes into a second
     * queue, after all that was asked for; returns that queue (a cudaStream_t). use_comm_queue(0):
     * into the first one again; the two overlap. wait_comm_queue: what is asked for later waits for
     * all such requests except the last `later`. copy_in takes 16 MiB (at least half a MiB a time)
     * before it waits for what was asked for. */
    void *(*use_comm_queue)(void *context, int on);
    void (*wait_comm_queue)(void *context, int later);
};

/* In gradckpt_cuda.cu, which a program that wants it compiles by nvcc and links: the backend of a
 * CUDA device (from 0 on), the same one each time. NULL: there is none, *error says why. Calls that
 * use it leave that device as their thread's current one. */
extern const gckpt_backend *gckpt_cuda_backend(int device, const char **error);

/* >>api-run ------------------------------------------------------------------------------------ */
/* A step refuses what is not finite or out of range, by name. gckpt_hyper_lr: all but lr 0. */
typedef struct {
    float lr;                /* 0 or more, taken as it is: 0 moves the moments only */
    float weight_decay;      /* 0 or more; decoupled; times the parameter's decay_scale */
    float beta1, beta2, eps; /* AdamW; 0: 0.9, 0.999, 1e-8 (a negative beta means none) */
    float momentum;          /* MOMENTUM; 0: 0.9 */
    float clip;              /* greatest global gradient norm; 0: no clipping */
} gckpt_hyper;
#ifndef GCKPT_NO_TRAINING
GCKPT_API gckpt_hyper gckpt_hyper_lr(float lr);
#endif
/* A user's optimiser: w, g (divided by the count, before clipping) and state of one parameter;
 * called once per parameter and step. */
typedef struct {
    const char *name;
    int64_t elements, first; /* of a shard: as many, from element `first` on; else all, 0 */
    float *values;
    const float *gradient;
    float *state[4];
    float clip_scale; /* multiply the gradient by this */
    float lr_scale, decay_scale;
    uint64_t step;            /* 1 for the first update of this state; without one, the store's */
    const gckpt_hyper *hyper; /* of this step */
} gckpt_update;
/* What a progress callback sees, before each instruction. It returns 1 to cancel the step, which is
 * ignored once the first update has begun: a step changes all parameters or none. */
typedef struct {
    int instruction, instructions;
    int64_t first_row, rows;
    gckpt_kind kind;
    const char *name;
} gckpt_progress;

/* Debug aids, off in plain use; each costs time, none changes the result: */
#define GCKPT_DEBUG_POISON    1u /* fill what is dead with NaN after its last use */
#define GCKPT_DEBUG_RECOMPUTE 2u /* hash values when first computed and again; E_DATA: the op */
#define GCKPT_DEBUG_MEASURE   4u /* paint the arena before the first 2 steps, see what they touch */
#define GCKPT_DEBUG_PLAIN     8u /* plain kernels only */
/* E_DATA at the first instruction that makes a NaN of none, or an infinity of finite values (one
 * that is fed, constant or frozen, as in a mask, is let through), in a value, a gradient or a
 * loss's sum: the error text has op, tensor, element, row of the batch. So too for a NaN that is
 * fed (even where nothing reads it: a weight of an ignored row) or stands in a parameter or a
 * constant, an infinity in a trained parameter, and before the first update for all gradients (not
 * their norm, which may overflow). Nothing is changed then, but where an update itself did it (lr
 * too high), or in plans that update in the backward. */
#define GCKPT_DEBUG_FINITE 16u
/* Instruction sets that there are kernels for; all give the same bits. */
typedef enum {
    GCKPT_ISA_AUTO,  /* the fastest that the processor has */
    GCKPT_ISA_PLAIN, /* the plain kernels: the definition of the numbers */
    GCKPT_ISA_C,     /* the fast kernels without vector instructions of their own */
    GCKPT_ISA_NEON,
    GCKPT_ISA_AVX2, /* and FMA */
    GCKPT_ISA_AVX512,
    GCKPT_ISA_AMX, /* AVX512, and AMX for products of bf16 plans, which alone take it by AUTO */
    GCKPT_ISA_COUNT
} gckpt_isa;
/* How this rank reaches the others, supplied by the program: MPI, NCCL, sockets, threads (examples
 * mpi.h, nccl.h). One thing is under way at a time: exchange begins to send bytes to a rank and to
 * receive bytes from it (either may be none) and done, which may let other programs run first,
 * tells whether that is over. Both are called by the thread that runs the step, between
 * instructions and, on a processor, within them. All ranks make the same exchanges in the same
 * order, on machines of one byte order. Arithmetic is the executor's own. */
typedef struct {
    int rank, size; /* as the store's */
    int device_aware; /* 1: it takes addresses in a backend's own memory, too */
    int (*exchange)(void *user, int peer, const void *send, size_t send_bytes, void *receive,
                    size_t receive_bytes); /* 1; 0: it failed */
    int (*done)(void *user); /* 1: over; 0: not yet; -1: it failed. NULL: exchange waits itself */
    /* Begins to add up n floats of all ranks in the transport's own order; for fast_reduce */
    int (*all_reduce)(void *user, float *x, size_t n);
    /* Tells the others that nothing more will come, so that their exchanges fail, and no longer
     * touches what is under way; may be NULL, and then they wait for their timeout */
    void (*abort)(void *user);
    double (*clock)(void *user); /* seconds; NULL: what does not answer is waited for */
    double timeout;              /* after so many of them without an answer a step ends; 0: never */
    void *user;
    /* On a backend that has use_comm_queue, for its own memory, both or none (and with them abort):
     * exchange, or (peer -1) all_reduce of the floats at `receive`, in that queue of the backend,
     * after what is there before; 0: it failed. enqueued_done: as done, of all that was enqueued;
     * asked where the host must wait, so the timeout counts what is computed before, too. */
    int (*enqueue)(void *user, void *queue, int peer, const void *send, size_t send_bytes,
                   void *receive, size_t receive_bytes);
    int (*enqueued_done)(void *user);
} gckpt_transport;
typedef struct {
    gckpt_memory memory; /* for tables, caches, copies; the arena when not given */
    /* Step arena of gckpt_plan_arena bytes, aligned to the plan's alignment. Executors may share it
     * when none of them is within a step (for streaming: from begin to end). */
    void *arena;
    size_t arena_size;
    unsigned debug; /* GCKPT_DEBUG_.. */
    gckpt_isa isa;  /* kernels to use; for tests and measurements. E_ARG if they cannot run here */
    /* The one the plan was made for. It must live as long as the executor, whose arena, also a
     * given one, it has; parameters and state are copied to it and, when the last executor with it
     * is freed, back. Room for a micro-batch of the feeds, constants and sums comes on top. */
    const gckpt_backend *backend;
    /* 0: feeds are read where they are until the step ends; 1: a training step copies them at once
     * (into memory for desc.batch rows, taken when the executor is made and not in plan_bytes). */
    int copy_feeds;
    /* 1: a step whose gradient has a norm that is not finite changes nothing (values, state, step)
     * and returns SKIPPED, the error text naming a parameter; report is filled in. As with
     * clipping, gradients are gone over once more; not for plans that update in the backward
     * (E_ARG). */
    int skip_nonfinite;
    /* Whose caches to use, and go on in: one for prompts and one for single tokens, say, of the
     * same model, rows, capacity and backend. NULL: its own. The one whose own they are must live
     * as long; one of them runs at a time, and each plan counts their bytes. */
    gckpt_exec *caches_of;
    /* What a plan offloads: copies `bytes` bytes to, or from, `at` of a slower memory (a file, a
     * chip) of gckpt_plan_offloaded bytes, and returns how many it did; fewer: the step ends with
     * E_FILE and nothing is changed. Both, or none: then the executor takes memory of the host for
     * it. */
    size_t (*offload)(void *user, size_t at, const void *from, size_t bytes);
    size_t (*reload)(void *user, size_t at, void *to, size_t bytes);
    /* With it the two may only begin a copy (by a thread, by DMA), and return `bytes`: copies are
     * done one at a time, in the order they are begun. Waits until all but the last `later` of them
     * are done, for what reads or overwrites their bytes; returns 0, or not if one failed: then it
     * is asked to wait for all (later 0), and the step ends with E_FILE. After a call of the
     * executor no copy is under way. With a backend's own memory each is waited for at once. */
    int (*wait)(void *user, int later);
    /* The other ranks: needed when the store has some. Each rank is fed its own rows
     * (gckpt_plan_rank_rows), `rows` are those of all. What one refuses or cancels, all do, with
     * its text. E_PEER: a rank does not answer; this executor is of no more use then, and if
     * parameters were being updated, go back to what was saved. */
    const gckpt_transport *transport;
    /* If nonzero, transport->all_reduce adds up gradients: as fast as it is, and with other bits
     * for another number of ranks */
    int fast_reduce;
    int (*progress)(void *user, const gckpt_progress *);     /* before each instruction */
    void (*custom_optimiser)(void *user, const gckpt_update *); /* GCKPT_CUSTOM_OPTIMISER */
    void *user;                                              /* for the callbacks */
    /* The program's own thread pool: call body(context, 0..n-1) in any order, return when all are
     * done; used when the plan has threads > 1; NULL: OpenMP when compiled in, else serial.
     * With OpenMP a whole call (gckpt_step, gckpt_forward, ...) is one parallel region, unless the
     * step is so small that waking threads would cost more. The callbacks above and the kernels of
     * user ops run in it, on the calling thread; a region of their own has one thread (unless
     * omp_set_max_active_levels allows more), and they must return. */
    void (*parallel_for)(void *user, int64_t n, void (*body)(void *context, int64_t i),
                         void *context);
    /* If nonzero, gckpt_forward also runs with initial values. If 0, it returns E_ARG and names the
     * parameter, unless each one was loaded, bound (gckpt_store_external, gckpt_store_map), part of
     * a plan that took a step (frozen or not), given out by gckpt_store_get, or pushed
     * (gckpt_store_push). GCKPT_NO_TEXT checks nothing. */
    int allow_initial;
} gckpt_exec_desc;
/* NULL on error, which is then the store's. Creates values and optimiser state, from the store's
 * memory, where they are missing, all or none; refuses state of another optimiser
 * (gckpt_store_reset), as does a step when such state was loaded later. Where the system promises
 * more memory than it has (overcommit), only what is beyond all of it is refused. The plan is
 * copied (but for a C constant) and may be freed; the store must live as long as it is used. */
GCKPT_API gckpt_exec *gckpt_exec_new(const gckpt_plan *plan, gckpt_store *store,
                                     const gckpt_exec_desc *desc);
GCKPT_API void gckpt_exec_free(gckpt_exec *exec); /* values and state stay: they are the store's */
/* Bytes of a block (gckpt_memory.memory, wherever it begins) that suffice, and that it takes where
 * it begins worst: for a store with all that the plan needs of it, made by building its graph or by
 * gckpt_plan_params (plan NULL: without parameters; with notes, or values in use before all
 * parameters are there, it takes more), and for an executor (desc as for gckpt_exec_new, or NULL;
 * its memory is not looked at). SIZE_MAX: more than there can be, or no such isa or backend is here
 * (what else gckpt_exec_new refuses, it refuses). */
GCKPT_API size_t gckpt_store_need(const gckpt_plan *plan);
GCKPT_API size_t gckpt_exec_need(const gckpt_plan *plan, const gckpt_exec_desc *desc);

typedef struct {
    int input;        /* gckpt_id */
    const void *data; /* all rows of it */
} gckpt_feed;
/* Returns the feed of an input; if that is of another type, data is NULL, which a step refuses.
 * GCKPT_FEED(input, values) takes the type of a pointer or an array of one axis (x[0] of others):
 * float, int32_t or uint8_t. Other types do not compile. In C99 nothing is checked. */
GCKPT_API gckpt_feed gckpt_feed_as(const gckpt_tensor *input, gckpt_type type, const void *values);
#ifdef __cplusplus
#define GCKPT_TYPE_OF(values) gckpt_type_of(&(values)[0])
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define GCKPT_TYPE_OF(values)                                                                      \
    _Generic(&(values)[0], float *: GCKPT_F32, const float *: GCKPT_F32, int32_t *: GCKPT_I32,     \
             const int32_t *: GCKPT_I32, uint8_t *: GCKPT_U8, const uint8_t *: GCKPT_U8)
#endif
#ifdef GCKPT_TYPE_OF
#define GCKPT_FEED(input, values) gckpt_feed_as(input, GCKPT_TYPE_OF(values), values)
#else
#define GCKPT_FEED(input, values) ((gckpt_feed){ gckpt_id(input), values })
#endif
typedef struct {
    double loss;      /* sum over terms of weight * sum / count; 0 in training where count is 0 */
    double grad_norm; /* of the divided gradients, before clipping */
    int64_t count;    /* of the first loss; 0: nothing was changed */
    uint64_t step;    /* updates done, this one included */
} gckpt_report;
/* Each loss by itself, as the last call that reports saw it (one that was SKIPPED, too): the sum of
 * what term number `term` of the plan lost, over all rows, micro-batches and ranks, and how many
 * targets, rows or elements count. Its weight is not in it: report.loss is the sum of weight * (sum
 * / count), nothing where that is 0, of a regulariser weight * sum; 0 in training where the first
 * loss counts nothing. E_ARG: there is no such term; or no such call yet, one is under way, or the
 * last one that began has failed. */
GCKPT_API gckpt_result gckpt_term_loss(gckpt_exec *exec, int term, double *sum, int64_t *count);
/* Forward of an INFERENCE plan over any number of rows; losses are summed over all of them. */
GCKPT_API gckpt_result gckpt_forward(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                     int64_t rows, gckpt_report *report);
#ifndef GCKPT_NO_CACHES
/* Positions that the caches hold: each gckpt_forward that succeeds adds its T; it is E_ARG when
 * that is more than they have room for, or when it has more rows than the one before. rewind
 * forgets those from `position` on (0: all, and then any rows may come); E_ARG: there are not as
 * many, or a gckpt_cache_window has let go of what this executor's attention needs there: one may
 * go back from the last position that calls came to by rows - window + 1, its rows and attention's
 * window (less of another executor's, which is asked again by its gckpt_forward). */
GCKPT_API int64_t gckpt_position(const gckpt_exec *exec);
GCKPT_API gckpt_result gckpt_rewind(gckpt_exec *exec, int64_t position);
#endif
#ifndef GCKPT_NO_TRAINING
/* A step of `rows` rows: all micro-batches, one division, clipping, update. report may be NULL. */
GCKPT_API gckpt_result gckpt_step(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                  int64_t rows, const gckpt_hyper *hyper, gckpt_report *report);
/* Rows that arrive bit by bit (a sensor): same bits as one gckpt_step over all of them. Feeds are
 * read in the call only. desc.batch must exceed the graph's rows, losses count the same targets. */
GCKPT_API gckpt_result gckpt_step_begin(gckpt_exec *exec, const gckpt_hyper *hyper);
GCKPT_API gckpt_result gckpt_step_add(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                      int64_t rows);
GCKPT_API gckpt_result gckpt_step_end(gckpt_exec *exec, gckpt_report *report);
/* A step in pieces: start, then run_some until it no longer returns GCKPT_MORE (the last call ends
 * the step, when gckpt_next_instruction has no more). Feeds must stay where they are, or be copied
 * (copy_feeds). Starting another step abandons this one; what it has updated stays so. */
GCKPT_API gckpt_result gckpt_step_start(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                        int64_t rows, const gckpt_hyper *hyper);
GCKPT_API gckpt_result gckpt_run_some(gckpt_exec *exec, int instructions, gckpt_report *report);
GCKPT_API gckpt_instruction
gckpt_next_instruction(const gckpt_exec *exec); /* run_some's next; id -1: none */
/* Gradients and nothing else: as gckpt_step, but for the update: parameters, state and step stay,
 * bit for bit; masks of dropout are those of the step that would come next. Gradients are had by
 * gckpt_fetch and gckpt_collect; not for plans that update in the backward (E_ARG). */
GCKPT_API gckpt_result gckpt_gradients(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                       int64_t rows, gckpt_report *report);
/* Learning rate at `step` (0-based): linear warm-up over `warmup` steps to `lr`, then half a cosine
 * to `min_lr` at `steps`. Loshchilov & Hutter 2017. */
GCKPT_API float gckpt_lr_cosine(uint64_t step, uint64_t warmup, uint64_t steps, float lr,
                                float min_lr);
#endif /* GCKPT_NO_TRAINING */
#ifndef GCKPT_NO_FETCH
/* A tensor or gradient of desc.fetch, valid until the next call that runs on this executor, or on
 * one that shares its arena. NULL, and the executor's error text says why: not fetched; or not
 * computed yet, within a step (gckpt_run_some; in each micro-batch anew) or because it ended early.
 * A gradient is there with its last contribution; a trained parameter's with its update; one of
 * what else has no batch axis at the step's end. An i32 tensor's values (gckpt_argmax) are int32_t:
 * cast the pointer, so also gckpt_collect's, whose `size` counts them. */
GCKPT_API const float *gckpt_fetch(gckpt_exec *exec, int id, int gradient);
/* From now on all calls put what they compute of this tensor (desc.fetch; something with a batch
 * axis, no parameter) into `to`, rows of the whole batch one after the other; `size` floats are
 * there, and a call with more is E_ARG before anything runs. Units: values as they are, gradients
 * of the sum: divided by report.count they are those of report.loss. to NULL: no longer. Where a
 * call fails, rows of micro-batches that were done are there. */
GCKPT_API gckpt_result gckpt_collect(gckpt_exec *exec, int id, int gradient, float *to,
                                     size_t size);
#endif
#ifndef GCKPT_NO_DEBUG
/* With GCKPT_DEBUG_MEASURE, after two steps: bytes of store, caches and copies + the highest arena
 * byte that was touched + 1 (an op's scratch counts whole). */
GCKPT_API size_t gckpt_bytes_measured(const gckpt_exec *exec);
#endif
#ifndef GCKPT_NO_RANKS
/* Brings all values of a parameter (its index in the store) together, to `to` (NULL: not here); or
 * hashes all, as gckpt_store_hash does for one process. All ranks call it, between steps. */
GCKPT_API gckpt_result gckpt_gather_values(gckpt_exec *exec, int index, float *to);
GCKPT_API gckpt_result gckpt_gather_hash(gckpt_exec *exec, uint64_t *hash);
/* Bytes sent to other ranks so far, by exchanges. */
GCKPT_API uint64_t gckpt_exec_bytes_sent(const gckpt_exec *exec);
#ifndef GCKPT_NO_STDIO
/* A checkpoint by all ranks, each writing its shards: PATH is an index, the files it names lie
 * next to it (PATH.N-RANK.safetensors, N counting saves) in a folder that all ranks see. All ranks
 * call save, between steps; it replaces what was there as a whole, and removes what killed saves
 * have left: whatever is killed, PATH is the old one or the new one, and after an error the old
 * one, but when it says that the new one is in place (GCKPT_E_PEER: either). Ranks wait for each
 * other's disks: let ranks->timeout be longer. load is for any number of ranks, one too; it reads
 * its shards, all or nothing as gckpt_store_load, and no byte that was damaged passes. */
GCKPT_API gckpt_result gckpt_ranks_save(gckpt_exec *exec, const char *path);
GCKPT_API gckpt_result gckpt_ranks_load(gckpt_store *store, const char *path);
#endif
#endif /* GCKPT_NO_RANKS */
/* The instruction set an executor uses; its name; whether this build and processor have it. */
GCKPT_API gckpt_isa gckpt_exec_isa(const gckpt_exec *exec);
GCKPT_API const char *gckpt_isa_name(gckpt_isa isa);
GCKPT_API int gckpt_isa_available(gckpt_isa isa);
/* Threads this build can use: OpenMP's number, or 1. */
GCKPT_API int gckpt_threads(void);

#ifndef GCKPT_NO_CHECK
/* >>api-check ---------------------------------------------------------------------------------- */
typedef struct {
    double worst;      /* greatest relative difference, of the directions that could be resolved */
    double resolution; /* the coarsest: a smaller relative difference may not have been seen */
    int directions;    /* two of each trainable parameter */
    int unresolved;    /* of them: rounding of the loss hides whether they are right */
    const char *name;  /* parameter of `worst`; when UNRESOLVED, of `resolution`. The executor's */
} gckpt_check;
/* Compares the gradient of every trainable parameter with central differences of the loss along the
 * gradient and along a random direction. E_DATA: one differs by more than 0.01, or the first loss
 * counts nothing in these rows. GCKPT_UNRESOLVED: none does, but some cannot be resolved: a loss
 * that is large compared with its changes (targets far from the outputs; of losses over classes 1
 * is large, where one is all but certain) is too coarse in f32, and then half a gradient, or twice
 * it, may look the same. The executor's error text has names and figures. A gradient that is zero
 * but for rounding (what a norm or softmax cancels) is right when the loss shows no slope and is
 * fine enough to show one of 0.01 of the steepest parameter's. Weights are restored to the bit.
 * check may be NULL. */
GCKPT_API gckpt_result gckpt_check_gradients(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                             int64_t rows, gckpt_check *check);
/* Times the ops on this machine, for desc.costs: costs[id] is the nanoseconds of an op's forward
 * and backward over one micro-batch, at least 1; cost_count: highest id + 1. *update (NULL: not
 * wanted) is what a step takes in addition: checks, division, norm, update. `clock` returns seconds
 * and starts anywhere. Any training plan will do that does not update in the backward; rows: a
 * multiple of its micro-batch. Of 6 to 32 runs (a quarter of a second, unless 6 take longer) the
 * first is discarded; each op gets its median. Nothing is updated: weights, state and step stay as
 * they are, bit for bit (each parameter in turn is updated, timed and put back; an own optimiser is
 * not called). Costs are those of the graph as it was built: where another form of an op was timed,
 * in proportion to the model's. Ops that the plan does not run get the plan's own cost in the unit
 * of the others. A recompute is taken to last as long as the first forward; with cold caches it
 * takes more, when it leaves only what the backward needs, less. */
GCKPT_API gckpt_result gckpt_calibrate(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                       int64_t rows, double (*clock)(void *user), void *user,
                                       gckpt_cost *costs, int cost_count, uint64_t *update);
/* Where the time of steps goes, by instruction (gckpt_plan_get, gckpt_plan_usage: which tensor,
 * again or not); examples/summary.h prints it by tensor and by op. */
typedef struct {
    double seconds;
    int64_t runs;          /* in all steps: micro-batches; one a step of what runs once */
    uint64_t flops, bytes; /* of one run of an op, of a whole micro-batch: bytes read and written */
} gckpt_profile_entry;
typedef struct {
    double (*clock)(void *user); /* a clock that starts anywhere */
    void *user;
    gckpt_profile_entry
        *entries; /* `count` of them, the plan's length; all 0 at first, as what follows is */
    int count;
    int64_t steps;
    double
        total_seconds; /* of the calls, with checks, feeds and the norm */
    gckpt_report report; /* of the last one */
} gckpt_profile;
/* A gckpt_step (hyper NULL: gckpt_forward) that adds what it takes to `profile`. Results, weights
 * and errors are the step's. A backend is waited for behind each instruction and repeats no
 * micro-batches, so there the step takes longer. */
GCKPT_API gckpt_result gckpt_profile_step(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                          int64_t rows, const gckpt_hyper *hyper,
                                          gckpt_profile *profile);
#ifndef GCKPT_NO_FIT
/* A plan that gckpt_fit_timed tried. */
typedef struct {
    int64_t rows;    /* gckpt_plan_rows */
    size_t bytes;    /* gckpt_plan_bytes */
    uint64_t cost;   /* gckpt_plan_step_cost: the prediction */
    double overhead; /* gckpt_plan_overhead */
    double seconds;  /* of a step but for its updates, the least of `runs` */
    int runs;        /* 0: the time was over */
} gckpt_trial;
enum { GCKPT_MAX_TRIALS = 16 };
typedef struct {
    double (*clock)(void *user); /* a clock that starts anywhere */
    void *user;
    double limit;            /* seconds; a step that was begun is ended. 0: nothing is tried */
    const gckpt_feed *feeds; /* of a whole batch; build may fill in the ids */
    int feed_count;
    /* how steps will run, or NULL; unused: progress, copy_feeds, skip_nonfinite, debug but for
     * DEBUG_PLAIN */
    const gckpt_exec_desc *exec;
    /* what came of it; the first is gckpt_fit's plan, trials[fastest] the one that is returned */
    gckpt_trial trials[GCKPT_MAX_TRIALS];
    int count, fastest;
} gckpt_fit_timing;
/* As gckpt_fit, but of the plans predicted best the one that runs fastest here (manual, 7):
 * gckpt_fit's for fewer and fewer bytes, and those for larger micro-batches, are tried while they
 * cost at most a quarter more; they take turns, slow ones drop out; a gain below 1/64 counts
 * as chance. The choice is this machine's and moment's; results are the same bits. Steps run within
 * the budget on the store's parameters, but do not update: values, state and step stay, bit for
 * bit. Half the limit may go into planning. */
GCKPT_API gckpt_plan *gckpt_fit_timed(gckpt_store *store, gckpt_build_fn build, void *user,
                                      int64_t batch, const gckpt_plan_desc *desc,
                                      gckpt_measure_fn measure, gckpt_fit_timing *timed);
#endif
#endif /* GCKPT_NO_CHECK */

#ifdef __cplusplus
}
/* C++, also when the header is included within extern "C" */
extern "C++" inline gckpt_type gckpt_type_of(const float *x) { return (void)x, GCKPT_F32; }
extern "C++" inline gckpt_type gckpt_type_of(const int32_t *x) { return (void)x, GCKPT_I32; }
extern "C++" inline gckpt_type gckpt_type_of(const uint8_t *x) { return (void)x, GCKPT_U8; }
#endif
#ifdef GCKPT_SMALL
#pragma pop_macro("int64_t")
#endif
#ifdef _WIN32
#pragma pop_macro("hyper")
#endif
#endif /* GRADCKPT_H */

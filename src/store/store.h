#pragma once
#include "base/base.h"
#include "num/num.h"

/* =================================================================================================
 * >>store: parameters and optimiser state, however they are stored
 *
 * A gckpt_store has an array of gckpti_param: the public gckpt_parameter, the addresses of values
 * and state, and their status. Values are uninitialised until a call needs them
 * (gckpti_init_all_values); they are f32, or quantised as bf16, f16, int8 with scales or int4 in
 * blocks. Where a backend has its own memory, a gckpti_mirror records which copy is the newest.
 * With several ranks each holds a shard (gckpti_shard_range). Notes are pairs of texts for files.
 * ============================================================================================== */

/* ---- store/params.c ---- */
typedef struct {
    gckpt_parameter p;        /* for gckpt_store_get; owns p.name; values and quantised: or NULL */
    unsigned char *new_block; /* during gckpt_store_quantise: memory for the new values */
    unsigned char new_storage;   /* during gckpt_store_quantise: their storage */
    unsigned char convolution;   /* a convolution reads it, so a file's order of axes matters */
    unsigned char axes_unknown;  /* loaded from a file that does not state its order of axes */
    unsigned char assigned;      /* values were loaded, set or trained: not the initial ones */
    int bucket;    /* head of the hash list of this index: the newest parameter, or -1 */
    int hash_next; /* next older parameter in this parameter's hash list, or -1 */
    unsigned char external;      /* values belong to the user */
    unsigned char locked;        /* external and not writable: stays frozen */
    unsigned char uninitialised; /* values have memory, but not yet their initial values */
    unsigned char optimiser;     /* of the state: gckpt_optimiser + 1, or 0 if none or unknown */
    gckpt_init init;
#ifndef GCKPT_NO_BF16
    uint32_t changes; /* counts changes of values that the library knows of, from 1 */
#endif
    uint64_t updates; /* of the state, for Adam's bias correction */
} gckpti_param;

/* A parameter's copy in a backend's own memory, while an executor has one. */
typedef struct {
    const gckpt_backend *backend; /* NULL if there is none */
    float *array[5];              /* values, then state */
    int newest;                   /* which copy: GCKPTI_BOTH, .. */
} gckpti_mirror;

enum { GCKPTI_BOTH, GCKPTI_HOST, GCKPTI_MIRROR };

/* An executor in its store's list. */
typedef struct gckpti_binding {
    gckpt_store *store;           /* NULL means freed, or none */
    const gckpt_backend *backend; /* if it has its own memory, else NULL */
    struct gckpti_binding *next;
} gckpti_binding;

/* Operand of a product (ops/products): one of f32, bf16 and quant. */
typedef struct gckpti_operand {
    const float *f32;
    const uint16_t *bf16;
    int64_t stride;       /* to the next row of c (for b: column) */
    int64_t k_stride;     /* to the next term */
    int64_t batch_stride; /* to the next matrix */
    const gckpt_dequantisation *quant; /* of a batch of one matrix */
} gckpti_operand;

/* c(i,j) = chain over p of a(i,p) b(p,j), p ascending, for each matrix of a batch. A chain starts
 * at c(i,j) if `accumulate`, else at initial[i * initial_stride + j] (a bias has stride 0), or at
 * +0 if `initial` is NULL. In bf16 plans a chain is split into blocks of terms (manual, 5l); blocks
 * restart after each k_period terms (0 means never), the first k_offset terms (whole blocks) ago. A
 * k_period shorter than a block means one chain. */
typedef struct gckpti_product {
    int64_t batch, m, n, k;
    gckpti_operand a, b; /* fast where one stride of each is 1 */
    const float *initial;
    int64_t initial_stride; /* not 0 means batch 1, and in the fast kernels f32 only */
    int accumulate;
    float *c;
    uint16_t *c_bf16; /* or c */
    int64_t c_stride; /* not n: likewise */
    void *workspace;  /* of the fast kernels: call->workspace */
    int64_t k_period, k_offset;
} gckpti_product;

static inline int gckpti_has_quant(const gckpti_operand *x)
{
    return GCKPTI_WITH_QUANT && x->quant;
}

/* Returns the quantised parameter that an op reads, or NULL. */
static inline const gckpt_dequantisation *gckpti_call_quant(const gckpt_call *call)
{
    return GCKPTI_WITH_QUANT ? (const gckpt_dequantisation *)call->quantised : NULL;
}

struct gckpt_store {
    gckpti_object object;
    gckpti_allocator memory;
    uint64_t seed, step;
    uint64_t quantise_count; /* calls of gckpt_store_quantise, which moves values, frees state */
    gckpti_param *params;
    size_t count, capacity;
    size_t elements;        /* of all values except external ones, in any storage */
    gckpti_mirror *mirrors; /* by parameter; fewer, or none, where executors need none */
    size_t mirror_count;
    gckpti_binding *bindings; /* its executors */
    int rank, ranks;          /* of gckpt_store_ranks */
    gckpt_shard shard;
    int bound;    /* an executor was made for it */
    char **notes; /* each "KEY\0VALUE\0", in its own allocation, which begins with a size_t */
    size_t note_count, note_capacity;
};

/* ---- store/arrays.c ---- */
/* Whether parameters can be sharded, and whether backends can hold the newest copy of one. */
enum { GCKPTI_HAS_SHARDS = GCKPTI_WITH_RANKS, GCKPTI_HAS_MIRRORS = GCKPTI_WITH_BACKENDS };

/* A rank's shard of an array: `count` of its `total` elements, from `first`. Shards are whole
 * blocks of GCKPT_UPDATE_BLOCK; each rank's memory holds `capacity` elements, the largest shard. */
typedef struct {
    int64_t first, count, capacity, total;
} gckpti_shard_range;

/* Halves the blocks between ranks that differ in bit 0, the halves between those that differ in bit
 * 1, and so on, each first half being the larger: so rank 0 has the largest shard. This is the
 * order in which ranks' sums are added (run/exchange), so that each sum ends on its owner. */
GCKPTI_FN gckpti_shard_range gckpti_shard_of(int64_t elements, int rank, int ranks);

/* Returns the shard of an array sharded from `min_level` on, if it has more than one block. */
GCKPTI_FN gckpti_shard_range gckpti_shard_from(int64_t elements, int rank, int ranks,
                                               gckpt_shard shard, gckpt_shard min_level);

/* Returns the shard of a parameter's values (slot below 0) or of each state. External and quantised
 * values are whole; an update is sharded as states are. */
GCKPTI_FN gckpti_shard_range gckpti_array_shard(const gckpt_store *s, const gckpti_param *q,
                                                int slot);
static inline int gckpti_is_sharded(gckpti_shard_range shard)
{
    return GCKPTI_HAS_SHARDS && shard.capacity < shard.total;
}

/* ---- store/params.c ---- */
/* Returns the bytes of the UTF-8 character at s; 0 if overlong, a surrogate or cut off. */
GCKPTI_FN int gckpti_utf8_length(const char *s, size_t left);
/* Suffixes of a parameter's other tensors in a file, by slot: states (no optimiser has more than
 * four), scales of I8's rows, and, in its metadata, which optimiser's state it is. */
static const char *const gckpti_suffixes[] = { "#state0", "#state1", "#state2", "#state3",
                                               "#state4", "#state5", "#state6", "#state7",
                                               "#state8", "#state9", "#scale",  "#updates" };

enum { GCKPTI_VALUES = -1, GCKPTI_SCALE = 10, GCKPTI_UPDATES };

/* Returns the address of the suffix if it ends the name, else NULL. */
GCKPTI_FN const char *gckpti_find_suffix(const char *name, const char *suffix);

/* Returns the slot of a tensor's name, and the length of its parameter's name. */
GCKPTI_FN int gckpti_slot_of(const char *name, size_t *length);
GCKPTI_FN int gckpti_is_utf8(const char *text);

/* Returns why a file cannot have a parameter of this name, or NULL. */
GCKPTI_FN const char *gckpti_name_problem(const char *name);
/* Keys of a file's metadata that are not notes. data_fnv1a is gckpti_data_hash of all its tensors.
 * convolution_axes is "HWIO" if convolutions can read its weights; otherwise, and in another
 * program's file without the key, the order is unknown. Devices leave it out to save flash. */
static const char *const gckpti_metadata_keys[] = {
    "format", "contract", "step", "seed", "optimiser", "data_fnv1a", "convolution_axes"
};

#ifdef GCKPT_NO_STDIO
enum { GCKPTI_USES_AXES = 0 };
#else
enum { GCKPTI_USES_AXES = 1 };
#endif
enum { GCKPTI_DATA_HASH = 5, GCKPTI_AXES, GCKPTI_METADATA_KEYS = GCKPTI_AXES + GCKPTI_USES_AXES };

#define GCKPTI_AXES_PROBLEM                                                                        \
    "convolutions read (KH,KW,I,O), PyTorch writes (O,I,KH,KW): load with desc.axes = " \
    "layers_pytorch_axes, or, if it and weights after a Flatten were permuted, with " \
    "desc.convolutions = GCKPT_AXES_HWIO"
GCKPTI_FN int gckpti_is_reserved_note(const char *key);

/* Returns the values (slot GCKPTI_VALUES) on the host, or a state; NULL if absent or quantised. */
static inline float *gckpti_array(const gckpti_param *q, int slot)
{
    return slot < 0 ? q->p.values : q->p.state[slot];
}

GCKPTI_FN int gckpti_find_param(const gckpt_store *s, const char *name);

/* Removes the newest parameters until `count` are left. */
GCKPTI_FN void gckpti_store_shrink(gckpt_store *s, size_t count);

/* Adds a parameter; unless external, its values are later initialised by init. Returns NULL without
 * memory for the entry, or if the bytes (values, four states, the arena) cannot be addressed. */
GCKPTI_FN gckpti_param *gckpti_param_new(gckpt_store *s, const char *name, const gckpt_shape *shape,
                                         int external, gckpt_init init);

/* A parameter as gckpt_store_c prints it. A change is one of GCKPT_PLAN_FORMAT. */
typedef struct {
    const char *name;
    const void *values, *scales; /* in their storage */
    gckpt_shape shape;
    uint32_t scale_bits[2]; /* bits of lr_scale, decay_scale */
    unsigned char storage, frozen;
} gckpti_exported;

/* Adds n exported parameters to an empty store, which uses frozen ones in place. */
GCKPTI_FN gckpt_result gckpti_bind_exported(gckpt_store *s, const gckpti_exported *all, size_t n);

/* ---- store/arrays.c ---- */
/* Name, type in files and bytes of an element of that, by gckpt_storage. */
static const struct {
    const char *name, *type;
    int bytes;
} gckpti_storages[] = { { "F32", "F32", 4 },
                        { "BF16", "BF16", 2 },
                        { "F16", "F16", 2 },
                        { "I8", "I8", 1 },
                        { "I4", "U8", 1 } };

/* Of I4: values per block, bytes per block (2 are the scale), maximum magnitude: 8 * 65504. */
enum { GCKPTI_INT4_BLOCK = 32, GCKPTI_INT4_BYTES = 18, GCKPTI_INT4_MAX = 524032 };

/* Returns the elements in a file of n values, which are whole blocks. */
static inline int64_t gckpti_file_count(int storage, int64_t n)
{
    return storage == GCKPT_STORAGE_I4 ? n / GCKPTI_INT4_BLOCK * GCKPTI_INT4_BYTES : n;
}

static inline int64_t gckpti_storage_bytes(int storage, int64_t n)
{
    return gckpti_file_count(storage, n) * gckpti_storages[storage].bytes;
}

/* Returns 1 if a parameter of this shape can have the storage. */
GCKPTI_FN int gckpti_can_store(gckpt_storage storage, const gckpt_shape *shape);

GCKPTI_FN const char *gckpti_storage_name(gckpt_storage storage);

/* Returns how many elements share a scale; all of them if there is none. */
GCKPTI_FN int64_t gckpti_row_length(const gckpt_parameter *p);
GCKPTI_FN size_t gckpti_scale_bytes(const gckpt_parameter *p);

/* Returns the bytes of all values in their storage. */
GCKPTI_FN size_t gckpti_values_bytes(const gckpt_parameter *p);

/* Returns the bytes in memory of array i: values (0), or state i - 1. */
GCKPTI_FN size_t gckpti_array_bytes(const gckpt_store *s, const gckpti_param *q, int i);
static inline int gckpti_has_values(const gckpti_param *q) { return q->p.values || q->p.quantised; }

/* Adds bytes, saturating at SIZE_MAX. */
static inline size_t gckpti_add_bytes(size_t sum, size_t more)
{
    return sum < SIZE_MAX - more ? sum + more : SIZE_MAX;
}

/* Returns the memory of the values; owned quantised ones begin with their scales. */
GCKPTI_FN unsigned char *gckpti_values_block(const gckpti_param *q);
GCKPTI_FN void gckpti_set_block(gckpti_param *q, unsigned char *block);

GCKPTI_FN int gckpti_state_slots(const gckpti_param *q);

/* Frees state arrays until `slots` are left. */
GCKPTI_FN void gckpti_state_shrink(gckpt_store *s, gckpti_param *q, int slots);

/* Allocates zeroed state arrays up to `slots`; without memory allocates none and returns 0. */
GCKPTI_FN int gckpti_ensure_state(gckpt_store *s, gckpti_param *q, int slots);

/* Converts n floats to BF16 or F16; returns 0 if F16 cannot hold one. */
GCKPTI_FN int gckpti_to_halves(gckpt_storage storage, const float *x, int64_t n, uint16_t *half);

/* Dequantises elements at..at+n-1 of u to x. The source may be at the end of x: each element is
 * read before it is overwritten. Without scales they are 1. */
GCKPTI_FN void gckpti_dequantise(const gckpt_dequantisation *u, int64_t at, int64_t n, float *x);

/* Returns u from element `at`, the start of a row or block. */
GCKPTI_FN gckpt_dequantisation gckpti_quant_from(const gckpt_dequantisation *u, int64_t at);

/* Returns a parameter's quantised values on the host, without a destination. */
GCKPTI_FN gckpt_dequantisation gckpti_param_quant(const gckpti_param *q);

/* Converts n values from element `at` to floats. */
GCKPTI_FN void gckpti_dequantise_at(const gckpti_param *q, int64_t at, int64_t n, float *x);

/* ---- store/quant.c ---- */
/* Whether the gckpt_storage is a quantised one; whether this build supports it. */
static inline int gckpti_is_quantised(int storage)
{
    return GCKPTI_WITH_QUANT && storage != GCKPT_STORAGE_F32;
}
static inline int gckpti_has_storage(int storage)
{
    return GCKPTI_WITH_QUANT || storage == GCKPT_STORAGE_F32;
}

#ifndef GCKPT_NO_QUANT
/* Quantises n floats into q's memory from element `at`: for I8 a row, whose scale it sets; for I4
 * whole blocks. Returns 0 if one is too large. */
GCKPTI_FN int gckpti_quantise_row(gckpti_param *q, int64_t at, int64_t n, const float *x);

/* Dequantises all elements to quant->to. */
GCKPTI_FN void gckpti_dequantise_all(const gckpt_call *call, const gckpt_dequantisation *quant);

/* Computes a product whose b is quantised. */
GCKPTI_FN void gckpti_fp32_quant(const gckpti_product *t);
#else
static inline int gckpti_quantise_row(gckpti_param *q, int64_t at, int64_t n, const float *x)
{
    return (void)q, (void)at, (void)n, (void)x, 0;
}
static inline void gckpti_dequantise_all(const gckpt_call *call, const gckpt_dequantisation *quant)
{
    (void)call, (void)quant;
}
static inline void gckpti_fp32_quant(const gckpti_product *t) { (void)t; }
#endif

/* ---- store/values.c ---- */
/* Records that values or state were changed in the copy `newest`. */
GCKPTI_FN void gckpti_mark_changed(const gckpt_store *s, gckpti_param *q, int newest);

/* Copies the newest values and state to the host. */
GCKPTI_FN void gckpti_pull(const gckpt_store *s, const gckpti_param *q);

/* Copies the newest values and state to a backend's own memory; returns 0 if that is full. */
GCKPTI_FN int gckpti_push(const gckpt_store *s, const gckpti_param *q, const gckpt_backend *b);

/* Adds an executor to the list; b: its backend if that has mirrors. Returns 0 without memory. */
GCKPTI_FN int gckpti_bind(gckpt_store *s, gckpti_binding *binding, const gckpt_backend *b);

/* Removes an executor; with a backend's last one its mirrors are freed. */
GCKPTI_FN void gckpti_unbind(gckpti_binding *binding);

enum { GCKPTI_CHUNK = 64 }; /* values initialised at a time; even */

/* Returns *n values from index `at`, initial ones if the parameter has none yet; in `buf`, unless
 * the store has them as floats. Allocates nothing. Uninitialised quantised values are returned
 * before rounding, for quantising. For a sharded array `at` is in this rank's shard. */
GCKPTI_FN const float *gckpti_values_at(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                        float buf[GCKPTI_CHUNK], int64_t *n);

/* Allocates values, uninitialised. who: for the error. */
GCKPTI_FN gckpt_result gckpti_values_new(gckpt_store *s, gckpti_param *q, const char *who);
enum { GCKPTI_RANDOM = GCKPTI_WITH_TRAINING }; /* if 0, init uses only its constant */
static inline int gckpti_is_random(const gckpt_init *init)
{
    return init->normal < 0 || init->normal > 0 || init->uniform < 0 || init->uniform > 0;
}
/* n initial values from index `at` (store/values.c); one Philox block per pair. */
typedef struct {
    gckpti_random random;
    gckpt_init init;
    int64_t at, n;
    float *out;
} gckpti_init_span;
typedef void gckpti_init_fn(const gckpti_init_span *d);
/* Initialises all uninitialised values; random floats by init_fn, if not NULL. */
GCKPTI_FN void gckpti_init_all_values(gckpt_store *s, gckpti_init_fn *init_fn);

/* Frees all uninitialised values, newest first, as a block needs it. */
GCKPTI_FN void gckpti_values_undo(gckpt_store *s);

/* ---- store/notes.c ---- */
#ifndef GCKPT_NO_NOTES
GCKPTI_FN void gckpti_notes_shrink(gckpt_store *s, size_t count);

/* Appends a note, even if the key exists. Returns 0 without memory. */
GCKPTI_FN int gckpti_note_add(gckpt_store *s, const char *key, const char *value);

/* Replaces older notes by those from `first` on that have the same keys. */
GCKPTI_FN void gckpti_notes_merge(gckpt_store *s, size_t first);
#else
static inline void gckpti_notes_shrink(gckpt_store *s, size_t count) { (void)s, (void)count; }
static inline void gckpti_notes_merge(gckpt_store *s, size_t first) { (void)s, (void)first; }
static inline int gckpti_note_add(gckpt_store *s, const char *key, const char *value)
{
    (void)s, (void)key, (void)value;
    return 1;
}
#endif

/* ---- store/calls.c ---- */
/* Returns the bytes of optimiser state. */
GCKPTI_FN size_t gckpti_state_bytes(const gckpt_store *s);

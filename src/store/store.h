#pragma once
#include "base/base.h"
#include "num/num.h"

/* =================================================================================================
 * >>store: parameters and optimiser state, however they are stored
 *
 * A gckpt_store has an array of gckpti_param: what a user sees (gckpt_parameter), where its values
 * and state lie, and what is known about them. Values are raw, memory without meaning, until a
 * call needs them (gckpti_init_all_values); they are f32, or packed as bf16, f16, int8 with scales or
 * int4 in blocks. Where a backend has memory of its own, a gckpti_mirror knows which copy is the
 * newest. Of several ranks each holds its share, to the block (gckpti_shard_range). Notes are pairs of
 * texts that go into files.
 * ============================================================================================== */

/* ---- store/params.c ---- */
typedef struct {
    /* what gckpt_store_get shows; p.name is owned; p.values and p.packed NULL: not made */
    gckpt_parameter p;
    unsigned char
        *new_block; /* in gckpt_store_quantise: memory for what will stand in their place, */
    unsigned char new_storage;  /* stored as this */
    unsigned char convolution;  /* one reads it: its axes have an order that files may not have */
    unsigned char axes_unknown; /* a file filled it that does not say which order it has */
    unsigned char assigned;     /* its values were loaded, set or trained: they are not initial */
    int bucket;    /* newest of the names whose hash modulo the capacity is this place; -1: none */
    int hash_next; /* the next older one of the list that this name is in; -1: none */
    unsigned char external;  /* values belong to the user */
    unsigned char locked;    /* external and not writable: stays frozen */
    unsigned char uninitialised; /* values have memory, but what stands there are not yet they */
    unsigned char optimiser; /* whose state: gckpt_optimiser + 1; 0: nobody's yet, or not known */
    gckpt_init init;         /* what values that are not made will be */
#ifndef GCKPT_NO_BF16
    uint32_t changes; /* of values, from 1 on, but what a program wrote without telling */
#endif
    uint64_t updates; /* that the state has seen, for Adam's bias correction */
} gckpti_param;

/* A parameter's copy in a backend's own memory, while executors have one. */
typedef struct {
    const gckpt_backend *backend; /* NULL: there is none */
    float *array[5];              /* values, then state */
    int newest;                   /* GCKPTI_BOTH, .. */
} gckpti_mirror;

enum { GCKPTI_BOTH, GCKPTI_HOST, GCKPTI_MIRROR };

/* An executor in its store's list. */
typedef struct gckpti_binding {
    gckpt_store *store;           /* NULL: freed, or none */
    const gckpt_backend *backend; /* if it has memory of its own, else NULL */
    struct gckpti_binding *next;
} gckpti_binding;

/* Operands of a product (ops/products), in floats, in bf16, or as they are stored. */
typedef struct gckpti_operand {
    const float *f32;
    const uint16_t *bf16;          /* one of the two, */
    int64_t stride, k_stride, batch_stride; /* to the next row of c (column for b), link, matrix */
    const gckpt_dequantisation *quant;      /* or this, of one matrix */
} gckpti_operand;

/* c(i,j) = chain over p of a(i,p) b(p,j), p ascending; of a batch, for each matrix. A chain starts
 * at what c holds (accumulate), else at start[i * start_row + j] (start_row 0: the bias), or at +0
 * if that is NULL. In bf16 plans links are cut into blocks (manual, 5l), anew after each `run` of
 * them (0: never), of which the first began `before` links (whole blocks) ago; a run of less than a
 * block means one chain. */
typedef struct gckpti_product {
    int64_t batch, m, n, k;
    gckpti_operand a, b; /* fast where one stride of each is 1 */
    const float *initial;
    int64_t
        initial_stride; /* but 0: of one matrix; and c_row but n: the fast kernels' in f32 only */
    int accumulate;
    float *c;
    uint16_t *c_bf16; /* one of the two */
    int64_t c_stride;
    void *workspace; /* scratch of the fast kernels: call->work */
    int64_t k_period, k_offset;
} gckpti_product;

static inline int gckpti_has_quant(const gckpti_operand *x)
{
    return GCKPTI_WITH_QUANT && x->quant;
}

/* The parameter that an op reads as it is stored; NULL: there is none. */
static inline const gckpt_dequantisation *gckpti_call_quant(const gckpt_call *call)
{
    return GCKPTI_WITH_QUANT ? (const gckpt_dequantisation *)call->quantised : NULL;
}

struct gckpt_store {
    gckpti_object object;
    gckpti_allocator memory;
    uint64_t seed, step;
    uint64_t
        quantise_count; /* calls of gckpt_store_quantise, which moves values and takes state away */
    gckpti_param *params;
    size_t count, capacity;
    size_t elements;        /* of all values but external ones, however they are stored */
    gckpti_mirror *mirrors; /* by parameter; fewer, or none, where executors need none */
    size_t mirror_count;
    gckpti_binding *bindings; /* its executors */
    int rank, ranks;          /* of gckpt_store_ranks */
    gckpt_shard shard;
    int bound;    /* an executor was made for it */
    char **notes; /* each "KEY\0VALUE\0" behind a size_t, in a block of its own */
    size_t note_count, note_capacity;
};

/* ---- store/arrays.c ---- */
/* There are ranks, so that parameters are cut; backends, which may hold the newest copy of one. */
enum { GCKPTI_HAS_SHARDS = GCKPTI_WITH_RANKS, GCKPTI_HAS_MIRRORS = GCKPTI_WITH_BACKENDS };

/* An array that ranks share, a block of GCKPT_UPDATE_BLOCK being the least: elements from `first`
 * on, `count` of them, are this rank's; memory has room for those of the largest share. */
typedef struct {
    int64_t first, count, capacity, total; /* of: elements in all */
} gckpti_shard_range;

/* Blocks are halved between ranks that differ in bit 0, the halves between those that differ in bit
 * 1, and so on, the first half of each being the larger: so the first rank has the largest share.
 * That is the order in which sums of ranks are added (run/exchange), so each ends where it is
 * held. */
GCKPTI_FN gckpti_shard_range gckpti_shard_of(int64_t elements, int rank, int ranks);

/* Of an array that is cut from the shard `least` on: what is no longer than a block is whole. */
GCKPTI_FN gckpti_shard_range gckpti_shard_from(int64_t elements, int rank, int ranks,
                                               gckpt_shard shard, gckpt_shard min_level);

/* Of a parameter's values (slot below 0), of each of its states. Neither values that are the
 * program's nor packed ones are cut; an update is cut as states are. */
GCKPTI_FN gckpti_shard_range gckpti_array_shard(const gckpt_store *s, const gckpti_param *q,
                                                int slot);
static inline int gckpti_is_sharded(gckpti_shard_range shard)
{
    return GCKPTI_HAS_SHARDS && shard.capacity < shard.total;
}

/* ---- store/params.c ---- */
/* Bytes of the UTF-8 character at s, 0 when it is not one: overlong, a surrogate, cut off. */
GCKPTI_FN int gckpti_utf8_length(const char *s, size_t left);
/* What else a file has of a parameter, as "NAME#...", by slot: states (no optimiser has more than
 * four), scales of I8's rows, and, in its metadata, whose state it is. */
static const char *const gckpti_suffixes[] = { "#state0", "#state1", "#state2", "#state3",
                                               "#state4", "#state5", "#state6", "#state7",
                                               "#state8", "#state9", "#scale",  "#updates" };

enum { GCKPTI_VALUES = -1, GCKPTI_SCALE = 10, GCKPTI_UPDATES };

/* Where the suffix begins that ends the name; NULL: it does not. */
GCKPTI_FN const char *gckpti_find_suffix(const char *name, const char *suffix);

/* The slot that the name of a tensor is for, and the length of its parameter's. */
GCKPTI_FN int gckpti_slot_of(const char *name, size_t *length);
GCKPTI_FN int gckpti_is_utf8(const char *text);

/* Why a file cannot have a parameter of this name; NULL: it can. */
GCKPTI_FN const char *gckpti_name_problem(const char *name);
/* What a file says of itself beside notes. data_fnv1a is gckpti_data_hash of all its tensors. The
 * last says, with "HWIO", that convolutions can read its weights; with another value, or where the
 * file is not this library's and has no such key, that is not known. A device does not ask for the
 * two: its weights come from this library, and its flash is short. */
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
    "convolutions read (KH,KW,I,O), PyTorch writes (O,I,KH,KW): load with desc.axes = "            \
    "layers_pytorch_axes, or, if it, and what is behind a Flatten, was permuted, with "            \
    "desc.convolutions = GCKPT_AXES_HWIO"
GCKPTI_FN int gckpti_is_reserved_note(const char *key);

/* Its values (slot GCKPTI_VALUES) on the host, or one of its states; NULL: not made, or packed. All
 * that reads or writes them asks here. */
static inline float *gckpti_array(const gckpti_param *q, int slot)
{
    return slot < 0 ? q->p.values : q->p.state[slot];
}

GCKPTI_FN int gckpti_find_param(const gckpt_store *s, const char *name);

/* Takes the newest parameters away until `count` are left. */
GCKPTI_FN void gckpti_store_shrink(gckpt_store *s, size_t count);

/* Adds a parameter; not external: with values to be made later as init says. NULL: no memory for
 * its entry, or no machine of this kind has memory for it all (values, four states, the arena). */
GCKPTI_FN gckpti_param *gckpti_param_new(gckpt_store *s, const char *name, const gckpt_shape *shape,
                                         int external, gckpt_init init);

/* A parameter as gckpt_store_c prints it. A change is one of GCKPT_PLAN_FORMAT. */
typedef struct {
    const char *name;
    const void *values, *scales; /* as they are stored */
    gckpt_shape shape;
    uint32_t scale_bits[2]; /* bits of lr_scale, decay_scale */
    unsigned char storage, frozen;
} gckpti_exported;

/* Brings n of them into an empty store; frozen ones stay where they are. */
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

/* Of I4: the values of a block, its bytes (first 2 of scale), the greatest value: -8 * 65504. */
enum { GCKPTI_INT4_BLOCK = 32, GCKPTI_INT4_BYTES = 18, GCKPTI_INT4_MAX = 524032 };

/* Elements that files have for n values, which are whole blocks. */
static inline int64_t gckpti_file_count(int storage, int64_t n)
{
    return storage == GCKPT_STORAGE_I4 ? n / GCKPTI_INT4_BLOCK * GCKPTI_INT4_BYTES : n;
}

static inline int64_t gckpti_storage_bytes(int storage, int64_t n)
{
    return gckpti_file_count(storage, n) * gckpti_storages[storage].bytes;
}

/* Whether what has this shape can be stored so. */
GCKPTI_FN int gckpti_can_store(gckpt_storage storage, const gckpt_shape *shape);

GCKPTI_FN const char *gckpti_storage_name(gckpt_storage storage);

/* Elements that share a scale; all of them where there is none. */
GCKPTI_FN int64_t gckpti_row_length(const gckpt_parameter *p);
GCKPTI_FN size_t gckpti_scale_bytes(const gckpt_parameter *p);

/* Bytes of all values, stored as p says. */
GCKPTI_FN size_t gckpti_values_bytes(const gckpt_parameter *p);

/* Bytes in memory of array i: values, as they are stored, or state i - 1. */
GCKPTI_FN size_t gckpti_array_bytes(const gckpt_store *s, const gckpti_param *q, int i);
static inline int gckpti_has_values(const gckpti_param *q) { return q->p.values || q->p.quantised; }

/* Bytes add up to what can be counted: SIZE_MAX stands for more. */
static inline size_t gckpti_add_bytes(size_t sum, size_t more)
{
    return sum < SIZE_MAX - more ? sum + more : SIZE_MAX;
}

/* The memory of its values, as they are stored: packed ones of its own begin with the scales. */
GCKPTI_FN unsigned char *gckpti_values_block(const gckpti_param *q);
GCKPTI_FN void gckpti_set_block(gckpti_param *q, unsigned char *block);

GCKPTI_FN int gckpti_state_slots(const gckpti_param *q);

/* Gives state arrays back until `slots` are left. */
GCKPTI_FN void gckpti_state_shrink(gckpt_store *s, gckpti_param *q, int slots);

/* Makes sure `slots` state arrays exist, zeroed; leaves nothing half-made. 0: out of memory. */
GCKPTI_FN int gckpti_ensure_state(gckpt_store *s, gckpti_param *q, int slots);

/* n floats as BF16 or F16. 0: F16 cannot hold one. */
GCKPTI_FN int gckpti_to_halves(gckpt_storage storage, const float *x, int64_t n, uint16_t *half);

/* Elements at..at+n-1 of what u says, to x. They may stand at the end of x: each is read before a
 * float is written over it. No scales: 1. */
GCKPTI_FN void gckpti_dequantise(const gckpt_dequantisation *u, int64_t at, int64_t n, float *x);

/* The same from the row, or block, on that begins at element `at`. */
GCKPTI_FN gckpt_dequantisation gckpti_quant_from(const gckpt_dequantisation *u, int64_t at);

/* A parameter's, on the host, to nowhere yet. */
GCKPTI_FN gckpt_dequantisation gckpti_param_quant(const gckpti_param *q);

/* The floats that n values from element `at` on stand for. */
GCKPTI_FN void gckpti_dequantise_at(const gckpti_param *q, int64_t at, int64_t n, float *x);

/* ---- store/quant.c ---- */
/* Whether values of this gckpt_storage are packed; whether there may be such. */
static inline int gckpti_is_quantised(int storage)
{
    return GCKPTI_WITH_QUANT && storage != GCKPT_STORAGE_F32;
}
static inline int gckpti_has_storage(int storage)
{
    return GCKPTI_WITH_QUANT || storage == GCKPT_STORAGE_F32;
}

#ifndef GCKPT_NO_QUANT
/* Stores n floats from element `at` on as q's memory has them; I8: a row, whose scale it sets; I4:
 * whole blocks. 0: one cannot be held. */
GCKPTI_FN int gckpti_quantise_row(gckpti_param *q, int64_t at, int64_t n, const float *x);

/* All floats of what is stored so, to u->to. */
GCKPTI_FN void gckpti_dequantise_all(const gckpt_call *call, const gckpt_dequantisation *quant);

/* A product whose b is read as it is stored. */
GCKPTI_FN void gckpti_fp32_quant(const gckpti_product *t);
#else /* nothing is packed */
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
/* Values, or state, were changed, in one of the two places. */
GCKPTI_FN void gckpti_mark_changed(const gckpt_store *s, gckpti_param *q, int newest);

/* Brings the newest values and state to the host. */
GCKPTI_FN void gckpti_pull(const gckpt_store *s, const gckpti_param *q);

/* Brings the newest values and state to a backend's own memory. 0: it has no room. */
GCKPTI_FN int gckpti_push(const gckpt_store *s, const gckpti_param *q, const gckpt_backend *b);

/* Joins the executors of this store. b: its backend, if that has mirrors of the parameters, else
 * NULL. Returns 0 if it is out of memory. */
GCKPTI_FN int gckpti_bind(gckpt_store *s, gckpti_binding *binding, const gckpt_backend *b);

/* When the last executor with a backend goes, the parameters leave it. */
GCKPTI_FN void gckpti_unbind(gckpti_binding *binding);

enum { GCKPTI_CHUNK = 64 }; /* values drawn in passing at a time; even */

/* Some values from index `at`, *n of them: the parameter's, or, while it has none, what they will
 * be; in `room` where they are not there as floats. For reads of a store, which allocate nothing.
 * Raw ones are as drawn: who asks is about to pack them. Of what is cut: within its own share. */
GCKPTI_FN const float *gckpti_values_at(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                        float buf[GCKPTI_CHUNK], int64_t *n);

/* Memory for values, which are raw until they are drawn or loaded. who: for the error. */
GCKPTI_FN gckpt_result gckpti_values_new(gckpt_store *s, gckpti_param *q, const char *who);
enum { GCKPTI_RANDOM = GCKPTI_WITH_TRAINING }; /* else values are the constants of their init */
static inline int gckpti_is_random(const gckpt_init *init)
{
    return init->normal < 0 || init->normal > 0 || init->uniform < 0 || init->uniform > 0;
}
/* n initial values from number `at` on (store/values.c); a block of words for each two. */
typedef struct {
    gckpti_random random;
    gckpt_init init;
    int64_t at, n;
    float *out;
} gckpti_init_span;
typedef void gckpti_init_fn(const gckpti_init_span *d);
/* Draws all raw values, random floats by `by`, if there is one. */
GCKPTI_FN void gckpti_init_all_values(gckpt_store *s, gckpti_init_fn *init_fn);

/* Gives all raw values back, newest first, as a block wants it. */
GCKPTI_FN void gckpti_values_undo(gckpt_store *s);

/* ---- store/notes.c ---- */
#ifndef GCKPT_NO_NOTES
GCKPTI_FN void gckpti_notes_shrink(gckpt_store *s, size_t count);

/* Appends one, even if there is one with this key. 0: out of memory. */
GCKPTI_FN int gckpti_note_add(gckpt_store *s, const char *key, const char *value);

/* Those from `first` on take the place of older ones with their keys. */
GCKPTI_FN void gckpti_notes_merge(gckpt_store *s, size_t first);
#else /* a file's are passed over */
static inline void gckpti_notes_shrink(gckpt_store *s, size_t count) { (void)s, (void)count; }
static inline void gckpti_notes_merge(gckpt_store *s, size_t first) { (void)s, (void)first; }
static inline int gckpti_note_add(gckpt_store *s, const char *key, const char *value)
{
    (void)s, (void)key, (void)value;
    return 1;
}
#endif

/* ---- store/calls.c ---- */
/* Bytes of optimiser state. */
GCKPTI_FN size_t gckpti_state_bytes(const gckpt_store *s);

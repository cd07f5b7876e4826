#pragma once
#include "base/base.h"
#include "num/num.h"

/* =================================================================================================
 * >>store: parameters and optimiser state, however they are stored
 *
 * A gckpt_store has an array of gckpti_param: the public gckpt_parameter, the addresses of values
 * and state, and their status. Values are uninitialised until a call needs them
 * (gckpti_init_all_values); they are floats, or compressed: of another storage kind. Where a
 * backend has its own memory, a gckpti_mirror records which copy is the newest.
 * A store may have only a part of each array (dist/parts.h). Notes are pairs of texts for files.
 * ============================================================================================== */

enum { GCKPTI_BOTH, GCKPTI_HOST, GCKPTI_MIRROR }; /* which copy of a parameter is the newest */

/* A parameter's copy in a backend's own memory, while an executor has one. */
typedef struct {
    const gckpt_backend *backend; /* NULL without a mirror */
    float *array[5];              /* values, then state */
    int newest;                   /* which copy is the newest: GCKPTI_BOTH, .. */
} gckpti_mirror;

/* ---- store/params.c ---- */
typedef struct {
    gckpt_parameter p;         /* public part; owns p.name */
    unsigned char *new_block;  /* memory for new values while the storage changes */
    unsigned char new_storage; /* storage of these new values */
    unsigned char assigned;    /* values were loaded, set or trained: not the initial ones */
    int bucket;             /* head of the hash list of this index: the newest parameter, or -1 */
    int hash_next;          /* next older parameter in this parameter's hash list, or -1 */
    unsigned char external; /* values belong to the user */
    unsigned char locked;   /* external and not writable: stays frozen */
    unsigned char uninitialised; /* values have memory, but not yet their initial values */
    unsigned char optimiser;     /* of the state: gckpt_optimiser + 1; 0 if none or unknown */
    gckpt_init init;
    uint64_t updates; /* number of updates of the state, for Adam's bias correction */
#ifndef GCKPT_NO_DEVICES
    gckpti_mirror mirror;
#endif
} gckpti_param;

/* An executor's entry in the list of its store. */
typedef struct gckpti_binding {
    gckpt_store *store;           /* NULL before binding and after the store was freed */
    const gckpt_backend *backend; /* the executor's, if that has its own memory; else NULL */
    struct gckpti_binding *next;
} gckpti_binding;

typedef struct {
    char *text;   /* "KEY\0VALUE\0" */
    size_t index; /* position among the notes, during gckpti_notes_merge */
} gckpti_note;

struct gckpt_store {
    gckpti_object object;
    gckpti_allocator memory;
    uint64_t seed, step;
    uint64_t storage_changes; /* number of calls that changed the storage of parameters */
    gckpti_param *params;
    size_t count, capacity;
    size_t elements;          /* number of all values except external ones */
    gckpti_binding *bindings; /* list of the store's executors */
    int bound;                /* nonzero once an executor was created */
    gckpti_note *notes;
    size_t note_count, note_capacity;
#ifndef GCKPT_NO_RANKS
    int rank, peers; /* set by gckpt_store_ranks; peers: number of other ranks */
    gckpt_shard shard;
#endif
};

/* ---- store/params.c ---- */
/* Returns the bytes of the UTF-8 character at s; 0 if overlong, a surrogate or cut off. */
GCKPTI_FN int gckpti_utf8_length(const char *s, size_t left);
/* Suffixes of a parameter's other tensors in a file, by slot: states (no optimiser has more than
 * four), and the metadata key of the state's optimiser. */
static const char *const gckpti_suffixes[] = { "#state0", "#state1", "#state2", "#state3",
                                               "#state4", "#state5", "#state6", "#state7",
                                               "#state8", "#state9", "#updates" };

enum { GCKPTI_VALUES = -1, GCKPTI_UPDATES = 10 };

/* Returns the address of the suffix if it ends the name, else NULL. */
GCKPTI_FN const char *gckpti_find_suffix(const char *name, const char *suffix);

/* Returns the slot of a tensor by its name; *length is that of its parameter's name. */
GCKPTI_FN int gckpti_slot_of(const char *name, size_t *length);
GCKPTI_FN int gckpti_is_utf8(const char *text);

/* Returns why a file cannot have a parameter of this name, or NULL. */
GCKPTI_FN const char *gckpti_name_problem(const char *name);
/* Keys of a file's metadata that are not notes. data_fnv1a is gckpti_data_hash of all tensors. */
static const char *const gckpti_metadata_keys[] = { "format", "contract",  "step",
                                                    "seed",   "optimiser", "data_fnv1a" };

enum {
    GCKPTI_KEY_CONTRACT = 1,
    GCKPTI_KEY_STEP,
    GCKPTI_KEY_SEED,
    GCKPTI_KEY_OPTIMISER,
    GCKPTI_KEY_HASH,
    GCKPTI_METADATA_KEYS
};

/* Returns values (slot GCKPTI_VALUES) or a state on the host; NULL if absent or not floats. */
static inline float *gckpti_array(const gckpti_param *q, int slot)
{
    return slot < 0 ? q->p.values : q->p.state[slot];
}

GCKPTI_FN int gckpti_find_param(const gckpt_store *s, const char *name);

/* Removes the newest parameters until `count` are left. */
GCKPTI_FN void gckpti_store_shrink(gckpt_store *s, size_t count);

/* Adds a parameter whose values `init` will initialise. Returns NULL without memory for the entry,
 * or if values, four states and arena are too large to be addressed. */
GCKPTI_FN gckpti_param *gckpti_param_new(gckpt_store *s, const char *name, const gckpt_shape *shape,
                                         gckpt_init init);

/* Makes a new parameter use values that others own. Without `writable` q is always frozen. */
GCKPTI_FN void gckpti_set_external(gckpt_store *s, gckpti_param *q, gckpt_storage storage,
                                   const void *values, int writable);

/* ---- store/arrays.c ---- */
/* Returns the bytes in memory of array i: the values (0) or state i - 1. */
GCKPTI_FN size_t gckpti_array_bytes(const gckpt_store *s, const gckpti_param *q, int i);

/* Returns sum + more, at most SIZE_MAX. */
static inline size_t gckpti_add_bytes(size_t sum, size_t more)
{
    return sum < SIZE_MAX - more ? sum + more : SIZE_MAX;
}

/* Frees values that the store owns. */
GCKPTI_FN void gckpti_values_free(gckpt_store *s, gckpti_param *q);

GCKPTI_INLINE int gckpti_state_slots(const gckpti_param *q)
{
    int n = 0;
    while (n < 4 && q->p.state[n])
        n++;
    return n;
}

/* Frees state arrays until `slots` are left. */
GCKPTI_FN void gckpti_state_shrink(gckpt_store *s, gckpti_param *q, int slots);

/* Allocates zeroed state arrays up to `slots`; without memory allocates none and returns 0. */
GCKPTI_FN int gckpti_ensure_state(gckpt_store *s, gckpti_param *q, int slots);

/* ---- devices/mirrors.c ---- */
#ifndef GCKPT_NO_DEVICES
/* Records that the copy `newest` (host or mirror) has changed values or state. */
GCKPTI_FN void gckpti_mark_changed(gckpti_param *q, int newest);

/* Copies the newest values and state to the host, if a mirror has them. */
GCKPTI_FN void gckpti_pull(const gckpt_store *s, const gckpti_param *q);

/* Copies the newest values to a backend's own memory, and the state: at least `states` arrays, and
 * those that are there; none if it is -1. Returns 0 if the memory is full. */
GCKPTI_FN int gckpti_push(const gckpt_store *s, gckpti_param *q, const gckpt_backend *b,
                          int states);

#else
#define gckpti_mark_changed(q, newest) ((void)(q))
#define gckpti_pull(s, q)              ((void)(s), (void)(q))
#define gckpti_free_mirror(s, q)       ((void)(s), (void)(q))
#define gckpti_close_mirrors(s, b)     ((void)(s))
#endif

/* ---- store/values.c ---- */
/* Adds an executor to the list; b: its backend if that has own memory, else NULL. */
GCKPTI_FN void gckpti_bind(gckpt_store *s, gckpti_binding *binding, const gckpt_backend *b);

/* Removes an executor from the list. A backend's mirrors are freed with its last executor. */
GCKPTI_FN void gckpti_unbind(gckpti_binding *binding);

enum { GCKPTI_CHUNK = 64 }; /* values that are initialised at a time; must be even */

/* Returns *n floats of values (slot GCKPTI_VALUES) or of a state from index `at` on, in `buf`
 * unless the store has them as floats; initial values if the parameter has none yet (not rounded to
 * their storage). Allocates nothing. `at` must be in the part of the array that the store has. */
GCKPTI_FN const float *gckpti_floats_at(const gckpt_store *s, const gckpti_param *q, int slot,
                                        int64_t at, float buf[GCKPTI_CHUNK], int64_t *n);

/* Allocates values without initialising them. `who` is the caller's name in the error text. */
GCKPTI_FN gckpt_result gckpti_values_new(gckpt_store *s, gckpti_param *q, const char *who);
static inline int gckpti_is_random(const gckpt_init *init)
{
    return init->normal < 0 || init->normal > 0 || init->uniform < 0 || init->uniform > 0;
}
GCKPTI_FN void gckpti_init_all_values(gckpt_store *s);

/* Frees all uninitialised values, the newest first: a block can free only its last allocation. */
GCKPTI_FN void gckpti_values_undo(gckpt_store *s);

/* ---- notes/notes.c ---- */
#ifndef GCKPT_NO_NOTES
GCKPTI_FN void gckpti_notes_shrink(gckpt_store *s, size_t count);

/* Appends a note, even if the key exists. Returns 0 without memory. */
GCKPTI_FN int gckpti_note_add(gckpt_store *s, const char *key, const char *value);

/* Replaces older notes by newer ones that have the same keys. */
GCKPTI_FN void gckpti_notes_merge(gckpt_store *s);
#else
#define gckpti_notes_shrink(s, count)  ((void)0)
#define gckpti_notes_merge(s)          ((void)0)
#define gckpti_note_add(s, key, value) ((void)(value), 1)
#endif

/* ---- store/calls.c ---- */
GCKPTI_FN size_t gckpti_state_bytes(const gckpt_store *s);
#include "dist/parts.h"
#include "quant/kinds.h"

#pragma once
#include "base/config.h"

/* =================================================================================================
 * >>base: configuration, errors, texts, memory, shapes, threads
 *
 * What knows nothing of tensors. base/config.h has all that depends on compiler, system and
 * macros, and includes the system's headers; no other file does.
 *
 * Every object that a user can ask for an error begins with a gckpti_object, which gckpti_error
 * fills. gckpti_allocator is the one way to memory, the user's functions, a block of his, or the
 * heap; gckpti_grow an array that grows, gckpti_scratch what is given back all at once. gckpti_text
 * and gckpti_sink put characters where they fit, and bytes where a callback takes them.
 * gckpt_parallel runs items of work on the threads of a gckpti_runner: a pool of the program's own,
 * or OpenMP's.
 * ============================================================================================== */

/* ---- base/text.c ---- */
/* Every object a user can ask for an error begins with this. `sticky` (graphs): the first error
 * while building stays; `last` is replaced by each later call. */
#define GCKPTI_MAGIC 0x67636b70u

typedef struct {
    uint32_t magic;
    gckpt_result sticky, last;
    char text[GCKPTI_TEXT_BYTES];
} gckpti_object;

typedef struct {
    char *end;
    size_t left;
} gckpti_text; /* left: room, the final zero not counted */

GCKPTI_FN void gckpti_text_put(gckpti_text *t, const char *s, size_t n);

/* What %T puts, `gelu "h3"` or `gelu #12`: graph/tensor.c, which knows tensors, has it. */
GCKPTI_FN void gckpti_text_tensor(gckpti_text *t, const gckpt_tensor *tensor);

/* Directives: see gckpt_fail. */
GCKPTI_FN void gckpti_text_format(gckpti_text *t, const char *format, va_list args);
GCKPTI_FN void gckpti_text_add(gckpti_text *t, const char *format, ...);
GCKPTI_FN void gckpti_set_text(gckpti_object *o, const char *format, va_list args);

/* To say more behind the object's text. */
GCKPTI_FN gckpti_text gckpti_append_text(gckpti_object *o);

/* Replaces the object's last error (nothing when a sticky one is there) and returns it. */
GCKPTI_FN gckpt_result gckpti_error(void *object, gckpt_result result, const char *format, ...);
#ifdef GCKPT_NO_TEXT
/* Results without texts: what makes these counts as used, but is never called. */
GCKPTI_FN gckpt_result gckpti_result(void *object, gckpt_result result);
#define gckpti_error(object, result, ...)                                                          \
    (0 ? gckpti_error(object, result, __VA_ARGS__) : gckpti_result(object, result))
#endif
GCKPTI_FN gckpt_result gckpti_ok(void *object);

/* Fields of a desc and what is allowed. */
typedef struct {
    const char *name;
    int64_t value, min, max;
} gckpti_range;

/* 0: one of n is not, and the object says which. */
GCKPTI_FN int gckpti_check_ranges(void *object, const char *who, const gckpti_range *r, size_t n);

typedef struct {
    gckpt_write_fn write; /* NULL: only count */
    void *user;
    size_t total, used;
    int failed;
    unsigned char buf[GCKPTI_IS_SMALL ? 64 : 1024];
} gckpti_sink;

GCKPTI_FN gckpt_result gckpti_sink_flush(gckpti_sink *out);

/* Takes n bytes; a full block goes to the callback. */
GCKPTI_FN void gckpti_sink_put(gckpti_sink *out, const void *bytes, size_t n);

/* The low `bytes` bytes of a number, little-endian. */
GCKPTI_FN void gckpti_sink_number(gckpti_sink *out, uint64_t value, int bytes);

/* At most 511 bytes a call; directives: see gckpt_fail. */
GCKPTI_FN void gckpti_print(gckpti_sink *out, const char *format, ...);

/* ---- base/memory.c ---- */
typedef struct {
    gckpt_memory desc;
    /* of a block: bytes taken from its beginning; names, at its end; what it should have had when
     * it last refused */
    size_t used, name_bytes, needed;
} gckpti_allocator;

#define GCKPTI_ALIGN 16u /* of everything the allocator returns, but for names in a block */
GCKPTI_FN gckpti_allocator gckpti_allocator_of(const gckpt_memory *memory);
GCKPTI_FN size_t gckpti_round_up(size_t n, size_t alignment);

/* As realloc, told the old size; new_size 0 frees and returns NULL. In a block, only the last piece
 * can grow in place or be given back; it is meant for objects that live as long as it does. What
 * this takes is what gckpti_count_alloc adds up. */
GCKPTI_FN void *gckpti_resize(gckpti_allocator *a, void *ptr, size_t old_size, size_t new_size);

/* n items of `size` bytes, zeroed; NULL when out of memory or when the product overflows. */
GCKPTI_FN void *gckpti_new(gckpti_allocator *a, size_t n, size_t size);
GCKPTI_FN void gckpti_delete(gckpti_allocator *a, void *ptr, size_t n, size_t size);

/* A block's bytes for one more piece behind *used; saturates. Pieces of no bytes are not taken. */
GCKPTI_FN void gckpti_count_alloc(size_t *used, size_t n, size_t size);

/* The counted bytes for a block that may begin anywhere; SIZE_MAX: there cannot be so many. */
GCKPTI_FN size_t gckpti_count_block(size_t used);

/* strlen, which can take more of a device's flash than this. */
GCKPTI_FN size_t gckpti_strlen(const char *text);

/* A name, copied. In a block it goes to the end, so that an array to which things with names are
 * added can grow where it is. NULL: no memory. */
GCKPTI_FN char *gckpti_name_new(gckpti_allocator *a, const char *name);

/* In a block, the newest first. */
GCKPTI_FN void gckpti_name_delete(gckpti_allocator *a, char *name);

/* To the error of what found no room in a block: how much would do; 0: for what there is so far. */
GCKPTI_FN void gckpti_hint_block(void *object, const char *owner, const gckpti_allocator *a,
                                 size_t enough);

#ifdef GCKPT_NO_TEXT
#define gckpti_hint_block(object, whose, a, would)                                                 \
    (0 ? gckpti_hint_block(object, whose, a, would) : (void)0)
#endif

/* 0: the heap has not got so much. Asked for in one piece, as systems that promise more memory than
 * they have (overcommit) still refuse what could never be there; many pieces they would promise,
 * and end the program when it writes to them. */
GCKPTI_FN int gckpti_has_memory(gckpti_allocator *a, size_t bytes);

/* The next capacity of a growing array: as the last piece of a block it grows in place. */
GCKPTI_FN size_t gckpti_next_capacity(size_t capacity, int in_place);

/* Room for one more item in a growing array; 0 when out of memory (the array stays as it was). */
GCKPTI_FN int gckpti_grow(gckpti_allocator *a, void *array, size_t *capacity, size_t count,
                          size_t size);

/* Memory that is taken piece by piece and given back all at once; cleared, it is used again from
 * its beginning. */
typedef struct gckpti_chunk {
    struct gckpti_chunk *next;
    size_t size, used; /* with this */
} gckpti_chunk;

typedef struct {
    gckpti_allocator *memory;
    int *failed; /* set when there is no memory */
    gckpti_chunk *first, *current;
    size_t next_size, min_size; /* bytes of the next piece, of those behind it, at least */
} gckpti_scratch;

GCKPTI_FN gckpti_scratch gckpti_scratch_new(gckpti_allocator *memory, int *failed);
GCKPTI_FN void gckpti_scratch_free(gckpti_scratch *s);
GCKPTI_FN void gckpti_scratch_clear(gckpti_scratch *s);

/* n items of `size` bytes, all 0, or NULL. */
GCKPTI_FN void *gckpti_scratch_alloc(gckpti_scratch *s, size_t n, size_t size);

/* The same as n items that lie elsewhere. */
GCKPTI_FN void *gckpti_scratch_copy(gckpti_scratch *s, const void *from, size_t n, size_t size);

/* Room for n items and one more in an array that keeps its contents: `array` is the address of a
 * pointer of some type, NULL at first. In front of the items stands how many bytes they have; where
 * they lay before stays in the scratch, unused. 0 (and `failed`): out of memory. */
GCKPTI_FN int gckpti_reserve(gckpti_scratch *s, void *array, size_t n, size_t size);
/* Gives such an array back, if it is large: it is NULL then. */
GCKPTI_FN void gckpti_release(gckpti_scratch *s, void *array);
#ifdef GCKPTI_SEPARATE_TU
/* A test can have each place fail that takes some, whatever memory has: test_hooks.h. */
#define gckpti_scratch_alloc(s, n, size)  gckpti_hook_alloc(s, n, size, __FILE__, __LINE__)
#define gckpti_reserve(s, array, n, size) gckpti_hook_reserve(s, array, n, size, __FILE__, __LINE__)
GCKPTI_FN void *gckpti_hook_alloc(gckpti_scratch *s, size_t n, size_t size, const char *file,
                                  int line);
GCKPTI_FN int gckpti_hook_reserve(gckpti_scratch *s, void *array, size_t n, size_t size,
                                  const char *file, int line);
#endif

/* ---- base/sort.c ---- */
typedef int (*gckpti_less_fn)(const void *a, const void *b, const void *context);
GCKPTI_FN void gckpti_sort(void *items, size_t n, size_t size, gckpti_less_fn before,
                           const void *context);
typedef struct {
    uint64_t key;
    int value; /* what the key stands for */
} gckpti_keyed;

/* Merge sort by key, bottom up, stable; `spare` has room for n. */
GCKPTI_FN void gckpti_sort_keys(gckpti_keyed *v, gckpti_keyed *spare, size_t n);
GCKPTI_INLINE void gckpti_set_min(int *to, int value) { *to = value < *to ? value : *to; }

/* ---- base/shape.c ---- */
GCKPTI_FN gckpt_shape gckpti_shape(int n, int64_t a, int64_t b, int64_t c, int64_t d);

/* Elements of the first axes; of all of them; rows of the last axis; elements of such a row. */
GCKPTI_INLINE int64_t gckpti_axes_product(const gckpt_shape *s, int axes)
{
    int64_t n = 1;
    for (int i = 0; i < axes; i++)
        n *= s->d[i];
    return n;
}

GCKPTI_INLINE int64_t gckpti_elements(const gckpt_shape *s) { return gckpti_axes_product(s, s->n); }
GCKPTI_INLINE int64_t gckpti_rows(const gckpt_shape *s) { return gckpti_axes_product(s, s->n - 1); }
GCKPTI_INLINE int64_t gckpti_last(const gckpt_shape *s) { return s->n ? s->d[s->n - 1] : 1; }
GCKPTI_FN int gckpti_same_shape(const gckpt_shape *a, const gckpt_shape *b);

/* NULL when all sizes are positive and the bytes of a few such tensors cannot overflow anything;
 * else what is wrong, for a text. */
GCKPTI_FN const char *gckpti_shape_problem(const gckpt_shape *s);
GCKPTI_INLINE int gckpti_shape_fits(const gckpt_shape *s) { return !gckpti_shape_problem(s); }

/* An input gradient's element: add to it or store it first (manual, 5f). */
GCKPTI_INLINE void gckpti_put(float *d, float v, int accumulate) { *d = accumulate ? *d + v : v; }

/* *d += x (manual, 5e): what the last addition rounded off, kept in low, goes into this one, so
 * that sums are right to an ulp or two of the sum of magnitudes. NULL low: there is just one x. */
GCKPTI_INLINE void gckpti_sum_add(float *d, float *comp, float x)
{
    float y = comp ? x - *comp : x, s = *d + y;
    if (comp)
        *comp = (s - *d) - y;
    *d = s;
}

/* ---- base/threads.c ---- */
/* How calls start threads. */
typedef struct {
    void (*parallel_for)(void *user, int64_t n, void (*body)(void *context, int64_t i),
                         void *context); /* the program's own */
    void *user;
    struct gckpti_team *team; /* NULL: none, or not needed */
    /* What gckpt_parallel calls after some 20 us of items, on the thread of gckpti_with_team's main
     * alone; it starts no others. NULL: nothing. */
    void (*poll)(void *context);
    void *poll_context;
    int thread; /* its number */
} gckpti_runner;

/* Whether it is one of a bf16 plan; whether an operand is floats, which else is bf16; the other. */
static inline int gckpti_is_mixed(const gckpt_call *call)
{
    return GCKPTI_WITH_BF16 && call->precision != GCKPT_FP32;
}
GCKPTI_INLINE int gckpti_has_f32(const float *x) { return !GCKPTI_WITH_BF16 || x != NULL; }
GCKPTI_INLINE int gckpti_has_bf16(const uint16_t *x) { return GCKPTI_WITH_BF16 && x != NULL; }

static inline int gckpti_is_plain(const gckpt_call *call)
{
    return !GCKPTI_WITH_BACKENDS || call->plain;
}

static inline int gckpti_little_endian(void)
{
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first;
}

/* Floats of an item for a thread, where elements are worked on; of gckpt_parallel, items and work
 * of n. */
enum { GCKPTI_GRAIN_SIZE = 32768 };
#define GCKPTI_GRAINS(n) ((n) + GCKPTI_GRAIN_SIZE - 1) / GCKPTI_GRAIN_SIZE, 2 * GCKPTI_GRAIN_SIZE

/* Runs main(context) on this thread, with a team of up to `threads`, this one too, for its jobs. */
GCKPTI_FN void gckpti_with_team(gckpti_runner *runner, int threads, void (*main)(void *context),
                                void *context);

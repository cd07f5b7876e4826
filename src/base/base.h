#pragma once
#include "base/config.h"

/* =================================================================================================
 * >>base: configuration, errors, texts, memory, shapes, threads
 *
 * Services that know nothing of tensors. base/config.h has everything that depends on the compiler,
 * the system and macros; it alone includes the system's headers.
 *
 * All memory comes from a gckpti_allocator: the user's functions, a block of the user's, or the
 * heap. A gckpti_text is a buffer of fixed size, a gckpti_sink writes bytes to a callback.
 * ============================================================================================== */

/* ---- base/text.c ---- */
/* The first member of every object that can report an error. `sticky` (graphs) keeps the first
 * error of building; each later call replaces `last`. */
#define GCKPTI_MAGIC 0x67636b70u

typedef struct {
    uint32_t magic;
    gckpt_result sticky, last;
    char text[GCKPTI_TEXT_BYTES];
} gckpti_object;

typedef struct {
    char *end;
    size_t left; /* free bytes, not counting the one for the final zero */
} gckpti_text;

GCKPTI_FN void gckpti_text_put(gckpti_text *t, const char *s, size_t n);

/* Appends a tensor as %T prints it, `gelu "h3"` or `gelu #12`; defined in graph/tensor.c. */
GCKPTI_FN void gckpti_text_tensor(gckpti_text *t, const gckpt_tensor *tensor);

/* Appends formatted text; directives are those of gckpt_fail. */
GCKPTI_FN void gckpti_text_format(gckpti_text *t, const char *format, va_list args);
GCKPTI_FN void gckpti_text_add(gckpti_text *t, const char *format, ...);

GCKPTI_FN gckpti_text gckpti_append_text(gckpti_object *o);

/* Sets the object's last or sticky error, unless it has a sticky one. */
GCKPTI_FN void gckpti_set_error(void *object, gckpt_result result, int sticky, const char *format,
                                va_list args);

#ifndef GCKPT_NO_TEXT
/* Sets the last error likewise. Returns `result`. */
GCKPTI_FN gckpt_result gckpti_error(void *object, gckpt_result result, const char *format, ...);
#else
/* Without error texts, only the result is stored. Other arguments count as used. */
static inline void gckpti_no_text(const char *text, ...) { (void)text; }
GCKPTI_FN gckpt_result gckpti_result(void *object, gckpt_result result);
#define gckpti_error(object, result, ...)                                                          \
    (0 ? gckpti_no_text(__VA_ARGS__) : (void)0, gckpti_result(object, result))
#define gckpti_hint_block(object, owner, a, enough) ((void)0)
#endif
GCKPTI_FN gckpt_result gckpti_ok(void *object);

/* A field of a desc: its name, its value and the range that is allowed. */
typedef struct {
    const char *name;
    int64_t value, min, max;
} gckpti_range;

/* Checks n fields. If one is out of range, sets the object's error and returns 0. */
GCKPTI_FN int gckpti_check_ranges(void *object, const char *who, const gckpti_range *r, size_t n);

typedef struct {
    gckpt_write_fn write; /* callback, or NULL to only count bytes */
    void *user;
    size_t total, used;
    int failed;
    unsigned char buf[GCKPTI_IS_SMALL ? 64 : 1024];
} gckpti_sink;

GCKPTI_FN gckpt_result gckpti_sink_flush(gckpti_sink *out);

/* Appends n bytes to the buffer; passes full buffers to the callback. */
GCKPTI_FN void gckpti_sink_put(gckpti_sink *out, const void *bytes, size_t n);

/* Writes formatted text of at most 511 bytes; directives are those of gckpt_fail. */
GCKPTI_FN void gckpti_print(gckpti_sink *out, const char *format, ...);

/* ---- base/memory.c ---- */
typedef struct {
    gckpt_memory desc;
    size_t used, name_bytes; /* of a block: bytes used at its begin, and by names at its end */
    size_t needed; /* size of the block that the last refused request needed */
} gckpti_allocator;

#define GCKPTI_ALIGN 16u /* alignment of all memory except names in a block */
GCKPTI_FN gckpti_allocator gckpti_allocator_of(const gckpt_memory *memory);
GCKPTI_FN size_t gckpti_round_up(size_t n, size_t alignment);

/* Reallocates; new_size 0 frees `ptr` and returns NULL. A block is meant for objects that live as
 * long as it does: only its last allocation can grow in place or be freed. gckpti_count_alloc
 * counts the bytes that an allocation takes of a block. */
GCKPTI_FN void *gckpti_resize(gckpti_allocator *a, void *ptr, size_t old_size, size_t new_size);

/* Allocates n zeroed elements of `size` bytes; NULL without memory, or if the product overflows. */
GCKPTI_FN void *gckpti_new(gckpti_allocator *a, size_t n, size_t size);
GCKPTI_FN void gckpti_delete(gckpti_allocator *a, void *ptr, size_t n, size_t size);

/* Adds an aligned allocation of n * size bytes to *used, at most SIZE_MAX. An empty one adds 0. */
GCKPTI_FN void gckpti_count_alloc(size_t *used, size_t n, size_t size);

/* Returns the size of a block, of any alignment, for `used` bytes; SIZE_MAX on overflow. */
GCKPTI_FN size_t gckpti_count_block(size_t used);

/* Returns strlen(text), in less flash than some libraries take. */
GCKPTI_FN size_t gckpti_strlen(const char *text);

/* Returns a copy of a name, or NULL without memory. Blocks have names at their end, so that the
 * array of the named objects can grow in place. */
GCKPTI_FN char *gckpti_name_new(gckpti_allocator *a, const char *name);

/* Frees a name. In a block, names must be freed in reverse order of their creation. */
GCKPTI_FN void gckpti_name_delete(gckpti_allocator *a, char *name);

#ifndef GCKPT_NO_TEXT
/* Appends to an E_MEMORY error the size that the block needs ("at least", if `enough` is 0). */
GCKPTI_FN void gckpti_hint_block(void *object, const char *owner, const gckpti_allocator *a,
                                 size_t enough);
#endif

/* Returns the next capacity of a growing array; in_place: the array can grow without a copy. */
GCKPTI_FN size_t gckpti_next_capacity(size_t capacity, int in_place);

/* Reserves space for one more element; returns 0 without memory (the array is unchanged). */
GCKPTI_FN int gckpti_grow(gckpti_allocator *a, void *array, size_t *capacity, size_t count,
                          size_t size);

/* Chunks of memory that are freed together. gckpti_scratch_clear keeps one chunk for reuse. */
typedef struct gckpti_chunk {
    struct gckpti_chunk *next;
    size_t size, used; /* bytes of the chunk; bytes taken; both include this header */
} gckpti_chunk;

typedef struct {
    gckpti_allocator *memory;
    int *failed; /* set to 1 when there is no memory */
    gckpti_chunk *first, *current;
    size_t next_size, min_size; /* least bytes of the next chunk, and of those after it */
} gckpti_scratch;

GCKPTI_FN gckpti_scratch gckpti_scratch_new(gckpti_allocator *memory, int *failed);
GCKPTI_FN void gckpti_scratch_free(gckpti_scratch *s);
GCKPTI_FN void gckpti_scratch_clear(gckpti_scratch *s);

/* Allocates n elements of `size` bytes, all 0; returns NULL without memory. */
GCKPTI_FN void *gckpti_scratch_alloc(gckpti_scratch *s, size_t n, size_t size);

/* Returns a copy of n elements of `size` bytes, or NULL without memory. */
GCKPTI_FN void *gckpti_scratch_copy(gckpti_scratch *s, const void *from, size_t n, size_t size);

/* Reserves space for n + 1 elements in an array that keeps its contents; new elements have any
 * values. `array` is the address of a pointer, NULL at first. The array's size in bytes is stored
 * before its elements; its old memory stays in the scratch, unused. Returns 0, and sets `failed`,
 * without memory. */
GCKPTI_FN int gckpti_reserve(gckpti_scratch *s, void *array, size_t n, size_t size);
#ifdef GCKPTI_SEPARATE_TU
/* Tests can make each call of these functions fail: see test_hooks.h. */
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
    int value;
} gckpti_keyed;

/* Sorts by key (a stable bottom-up merge sort); `spare` has space for n elements. */
GCKPTI_FN void gckpti_sort_keys(gckpti_keyed *v, gckpti_keyed *spare, size_t n);
GCKPTI_INLINE void gckpti_set_min(int *to, int value) { *to = value < *to ? value : *to; }

/* ---- base/shape.c ---- */
GCKPTI_FN gckpt_shape gckpti_shape(int n, int64_t a, int64_t b, int64_t c, int64_t d);

/* Number of elements: of the first `axes` axes; of all; of all but the last (rows); of a row. */
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

/* Returns NULL if sizes are positive and several such tensors are addressable, else the problem. */
GCKPTI_FN const char *gckpti_shape_problem(const gckpt_shape *s);
GCKPTI_INLINE int gckpti_shape_fits(const gckpt_shape *s) { return !gckpti_shape_problem(s); }

/* Stores v as an element of an input gradient or, if `accumulate`, adds v to it (manual, 5f). */
GCKPTI_INLINE void gckpti_put(float *d, float v, int accumulate) { *d = accumulate ? *d + v : v; }

/* Adds x to *d with Kahan compensation *comp (manual, 5e). A sum's error is then at most about 2
 * ulps of the sum of magnitudes. comp is NULL if only one x is added. */
GCKPTI_INLINE void gckpti_sum_add(float *d, float *comp, float x)
{
    float y = comp ? x - *comp : x, s = *d + y;
    if (comp)
        *comp = (s - *d) - y;
    *d = s;
}

/* ---- base/threads.c ---- */
/* How kernels run work items on several threads. */
typedef struct {
    void (*parallel_for)(void *user, int64_t n, void (*body)(void *context, int64_t i),
                         void *context); /* the program's own function, or NULL */
    void *user;
    struct gckpti_team *team; /* NULL outside gckpti_with_team */
    /* Called by gckpt_parallel after each chunk of items, on the thread that runs main of
     * gckpti_with_team only; must not start threads. May be NULL. */
    void (*poll)(void *context);
    void *poll_context;
} gckpti_runner;

static inline int gckpti_is_plain(const gckpt_call *call)
{
    return !GCKPTI_RUNS_BACKENDS || call->plain;
}

static inline int gckpti_little_endian(void)
{
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first;
}

/* Floats of a work item of elementwise kernels; gckpt_parallel's number of items and cost for n. */
enum { GCKPTI_GRAIN_SIZE = 32768 };
#define GCKPTI_GRAINS(n) ((n) + GCKPTI_GRAIN_SIZE - 1) / GCKPTI_GRAIN_SIZE, 2 * GCKPTI_GRAIN_SIZE

/* Runs main(context) on this thread, with a team of up to `threads` threads, including this one. */
GCKPTI_FN void gckpti_with_team(gckpti_runner *runner, int threads, void (*main)(void *context),
                                void *context);

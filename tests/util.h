/* util.h - helpers that many tests share: random numbers, an allocator that counts and fails, files in memory, ways
 * to run a step, random schedules, a block of layers, budgets read from error texts, freeing of objects. Include
 * after gradckpt.h. */
#ifndef TESTS_UTIL_H
#define TESTS_UTIL_H
#include <stdlib.h>

#include "check.h"

/* ---- random numbers; a test assigns random_state to restart the sequence ---- */
static uint64_t random_state = 1;
static inline unsigned below(int64_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((random_state >> 33) % (uint64_t)n);
}
static inline uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline int chance(unsigned percent) { return below(100) < percent; }
static inline int between(int low, int high) { return low + (int)below(high - low + 1); }

/* ---- floats and shapes ---- */
static inline float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline int64_t count_of(const gckpt_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->n; i++)
        n *= s->d[i];
    return n;
}

/* ---- an allocator for tests. It counts blocks and bytes, and fails at call fail_at, at every call from fail_from
 * on, and beyond `limit` bytes (0 disables each). It stores each block's size before the block, to check the old size
 * that callers pass, and overwrites freed bytes, so that reading them gives wrong results. ---- */
typedef struct {
    long calls, fail_at, fail_from, blocks, wrong_sizes;
    size_t live, peak, limit;
} heap;

static inline void *heap_resize(void *user, void *ptr, size_t old_size, size_t new_size)
{
    heap *h = (heap *)user;
    unsigned char *block = ptr ? (unsigned char *)ptr - 16 : NULL, *fresh = NULL;
    size_t old = 0;
    if (block)
        memcpy(&old, block, sizeof old);
    h->wrong_sizes += old != old_size;
    if (new_size) {
        if (++h->calls == h->fail_at || (h->fail_from && h->calls >= h->fail_from) ||
            (h->limit && h->live + new_size > h->limit) ||
            (fresh = (unsigned char *)malloc(new_size + 16)) == NULL)
            return NULL;
        memcpy(fresh, &new_size, sizeof new_size);
        memset(fresh + 16, 0xee, new_size);
        if (block)
            memcpy(fresh + 16, ptr, old < new_size ? old : new_size);
    }
    if (block)
        memset(ptr, 0xdd, old);
    free(block);
    h->live += new_size - old;
    h->peak = h->live > h->peak ? h->live : h->peak;
    h->blocks += (fresh != NULL) - (block != NULL);
    return fresh ? fresh + 16 : NULL;
}

static inline gckpt_memory heap_memory(heap *h)
{
    gckpt_memory m = { .resize = heap_resize, .user = h };
    return m;
}

/* ---- a file in memory. A write stops at `limit` bytes, and call number fail_call transfers one byte too few (0
 * disables each). A zero byte follows the last byte written. ---- */
typedef struct {
    unsigned char *bytes;
    size_t size, at, capacity, limit, calls, fail_call;
} file;

static inline size_t file_write(void *user, const void *bytes, size_t size)
{
    file *f = (file *)user;
    size -= ++f->calls == f->fail_call;
    if (f->limit && size > f->limit - f->size)
        size = f->limit - f->size;
    if (f->size + size + 1 > f->capacity) {
        f->capacity = 2 * f->capacity + size + 1;
        f->bytes = (unsigned char *)realloc(f->bytes, f->capacity);
    }
    memcpy(f->bytes + f->size, bytes, size);
    f->size += size;
    f->bytes[f->size] = 0;
    return size;
}

static inline size_t file_read(void *user, void *bytes, size_t size)
{
    file *f = (file *)user;
    size = size < f->size - f->at ? size : f->size - f->at;
    size -= ++f->calls == f->fail_call && size;
    if (size)
        memcpy(bytes, f->bytes + f->at, size);
    f->at += size;
    return size;
}

static inline int same_file(const file *a, const file *b)
{
    return a->size == b->size && a->size > 0 && !memcmp(a->bytes, b->bytes, a->size);
}

/* ---- runs one step. If stream and pieces are 0, in one call; if stream is not 0, with `stream` rows per call of
 * gckpt_step_add, whose data `fill` supplies (if stream is negative, one row in the first call, then -stream); if
 * pieces is not 0, with `pieces` instructions per call of gckpt_run_some ---- */
static inline gckpt_result util_step(gckpt_exec *e, int (*fill)(const void *, int64_t, gckpt_feed *),
                                    const void *user, int64_t rows, int64_t stream, int pieces,
                                    const gckpt_hyper *hyper, gckpt_report *report)
{
    gckpt_feed feeds[24];
    int n = fill(user, 0, feeds);
    gckpt_result result = GCKPT_OK;
    if (stream) {
        result = gckpt_step_begin(e, hyper);
        for (int64_t row = 0, take; row < rows && result == GCKPT_OK; row += take) {
            take = stream > 0 ? stream : row ? -stream : 1;
            take = take < rows - row ? take : rows - row;
            n = fill(user, row, feeds);
            result = gckpt_step_add(e, feeds, n, take);
        }
        return result == GCKPT_OK ? gckpt_step_end(e, report) : result;
    }
    if (!pieces)
        return gckpt_step(e, feeds, n, rows, hyper, report);
    result = gckpt_step_start(e, feeds, n, rows, hyper);
    CHECK(result == GCKPT_OK);
    for (result = result == GCKPT_OK ? GCKPT_MORE : result; result == GCKPT_MORE;)
        result = gckpt_run_some(e, pieces, report);
    return result;
}

/* ---- loss and count of each loss term after a step, and the weighted total of the losses. `wrong` counts the terms
 * that cannot be read, and a total that differs in any bit from the loss that the step reported; the reported loss
 * may also be 0 if no element counts, since nothing is trained then. Several threads may call this function, so it
 * has no CHECK. ---- */
enum { UTIL_TERMS = 8 };
typedef struct {
    double sum[UTIL_TERMS], total;
    int64_t count[UTIL_TERMS], wrong;
} util_losses;

static inline util_losses util_term_losses(gckpt_exec *e, const gckpt_term *terms, int n,
                                         const gckpt_report *report)
{
    util_losses l;
    const double nothing = 0;
    double sum;
    int64_t count;
    memset(&l, 0, sizeof l);
    for (int i = 0; i < n; i++) {
        l.wrong += gckpt_term_loss(e, i, &l.sum[i], &l.count[i]) != GCKPT_OK;
        const double weight = (double)terms[i].weight;
        if (terms[i].regulariser)
            l.total += weight * l.sum[i];
        else if (l.count[i] > 0)
            l.total += weight * (l.sum[i] / (double)l.count[i]);
    }
    l.wrong += gckpt_term_loss(e, n, &sum, &count) != GCKPT_E_ARG;
    const int matches = !memcmp(&l.total, &report->loss, sizeof l.total);
    const int none = report->count == 0 && !memcmp(&nothing, &report->loss, sizeof nothing);
    l.wrong += n > 0 && (l.count[0] != report->count || !(matches || none));
    return l;
}

/* ---- a random legal schedule: the forwards of a store-all plan, then the backwards in reverse order. Before each
 * backward the schedule repeats no forward, a random run of consecutive forwards, a third of the earlier forwards, or
 * all of them. ---- */
static inline int random_schedule(gckpt_graph *graph, const gckpt_term *terms, int term_count,
                                  gckpt_instruction *list, int most)
{
    gckpt_plan_desc desc = { .mode = GCKPT_STORE_ALL };
    gckpt_plan *plan = gckpt_plan_new(graph, terms, term_count, &desc);
    gckpt_instruction in = { GCKPT_FORWARD, 0 };
    int backs[256], forwards = 0, nb = 0;
    for (int i = 0; gckpt_plan_get(plan, i, &in) == GCKPT_OK; i++)
        if (in.kind == GCKPT_FORWARD) {
            list[forwards++] = in;
        } else if (in.kind == GCKPT_BACKWARD && nb < 256) {
            int at = nb++;
            for (; at > 0 && backs[at - 1] > in.id; at--)
                backs[at] = backs[at - 1];
            backs[at] = in.id;
        }
    gckpt_plan_free(plan);
    int count = forwards;
    while (nb-- > 0) {
        int how = (int)below(4), from = (int)below(forwards), to = (int)below(forwards);
        for (int i = 0; i < forwards && how && count < most - nb - 1; i++)
            if (how == 1 ? from <= i && i <= to
                         : list[i].id <= backs[nb] && (how == 2 || chance(33)))
                list[count++] = list[i];
        list[count].kind = GCKPT_BACKWARD;
        list[count++].id = backs[nb];
    }
    return count;
}

/* Returns x + down(gelu(up(norm(x)))), where the inner layers have 2 C columns; a block for gckpt_checkpoint. *number
 * becomes a part of the parameters' names. */
static inline gckpt_tensor *util_block(gckpt_tensor *x, void *number)
{
    gckpt_graph *g = gckpt_graph_of(x);
    gckpt_shape shape = gckpt_shape_of(x);
    gckpt_init init = { 0.3f, 0, 0 };
    int64_t c = shape.d[shape.n - 1];
    char name[16];
    snprintf(name, sizeof name, "up.%d", *(int *)number);
    gckpt_tensor *w = gckpt_param(g, name, gckpt_shape2(c, 2 * c), init);
    snprintf(name, sizeof name, "down.%d", *(int *)number);
    gckpt_tensor *h = gckpt_gelu(gckpt_linear(gckpt_rmsnorm(x, NULL, 0), w, NULL));
    return gckpt_add(x, gckpt_linear(h, gckpt_param(g, name, gckpt_shape2(2 * c, c), init), NULL));
}

/* Returns the least budget that the error text of a too small budget names, or 0 if the text names none. */
static inline size_t util_least_budget(const void *object)
{
    const char *at = strstr(gckpt_error_text(object), "at least ");
    return at ? (size_t)strtoull(at + strlen("at least "), NULL, 10) : 0;
}

/* Frees the objects; any of them may be NULL. */
static inline void util_free(gckpt_exec *e, gckpt_plan *p, gckpt_graph *g, gckpt_store *s)
{
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
}
#endif

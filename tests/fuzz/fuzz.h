/* fuzz.h - shared by fuzz targets: the check MUST, seeds, files in memory, random draws, and an
 * allocator that checks sizes and can fail. Include after gradckpt.h. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Aborts if the condition is false: libFuzzer then keeps the input as a finding. */
#define MUST(condition)                                                                            \
    ((condition)                                                                                   \
         ? (void)0                                                                                 \
         : (fprintf(stderr, "SUMMARY: %s:%d: must hold: %s\n", __FILE__, __LINE__, #condition),    \
            abort()))

/* ---- functions that libFuzzer calls or provides ---- */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t most, unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t size, size_t most);

/* ---- files in memory ---- */
typedef struct {
    uint8_t *bytes;
    size_t size, capacity, at;
    size_t fail_at; /* offset from which reading and writing fail; 0 for never */
} fuzz_file;

static inline size_t fuzz_write(void *user, const void *bytes, size_t size)
{
    fuzz_file *f = (fuzz_file *)user;
    if (f->fail_at > 0 && f->size + size > f->fail_at)
        return 0;
    if (f->size + size > f->capacity) {
        f->capacity = 2 * (f->size + size);
        f->bytes = (uint8_t *)realloc(f->bytes, f->capacity);
        MUST(f->bytes != NULL);
    }
    memcpy(f->bytes + f->size, bytes, size);
    f->size += size;
    return size;
}

static inline size_t fuzz_read(void *user, void *bytes, size_t size)
{
    fuzz_file *f = (fuzz_file *)user;
    const size_t end = f->fail_at > 0 && f->fail_at < f->size ? f->fail_at : f->size;
    const size_t n = size < end - f->at ? size : end - f->at;
    memcpy(bytes, f->bytes + f->at, n);
    f->at += n;
    return n;
}

static inline void fuzz_file_end(fuzz_file *f)
{
    free(f->bytes);
    memset(f, 0, sizeof *f);
}

/* ---- seeds ---- */
/* If the environment variable FUZZ_SEEDS names a folder, writes the bytes as a seed to FUZZ_SEEDS/NUMBER. */
static inline void fuzz_seed(const char *folder, int number, const void *bytes, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%03d", folder, number);
    FILE *f = fopen(path, "wb");
    MUST(f != NULL && fwrite(bytes, 1, size, f) == size && fclose(f) == 0);
}

/* ---- random numbers of mutators ---- */
typedef struct {
    uint64_t state;
} fuzz_draws;

static inline uint64_t fuzz_draw(fuzz_draws *d, uint64_t n) /* from 0 to n - 1 */
{
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

/* ---- an allocator that checks that blocks are released with the sizes with which they were requested; its call
 * number `fail` returns NULL ---- */
typedef struct {
    long calls, fail; /* if fail is 0, no call fails */
    size_t live;
    size_t most; /* larger requests return NULL; if 0, a request of more than 64 MB is reported as a finding */
} fuzz_memory;

static inline void *fuzz_resize(void *user, void *ptr, size_t old_size, size_t new_size)
{
    fuzz_memory *m = (fuzz_memory *)user;
    size_t *block = ptr != NULL ? (size_t *)ptr - 2 : NULL;
    MUST((block != NULL ? block[0] : 0) == old_size);
    if (new_size == 0) {
        free(block);
        m->live -= old_size;
        return NULL;
    }
    MUST(m->most > 0 || new_size <= (size_t)1 << 26);
    if (++m->calls == m->fail || (m->most > 0 && new_size > m->most))
        return NULL;
    size_t *grown = (size_t *)realloc(block, 2 * sizeof *grown + new_size);
    if (grown == NULL)
        return NULL;
    grown[0] = new_size;
    m->live += new_size - old_size;
    return grown + 2;
}

static inline gckpt_memory fuzz_memory_of(fuzz_memory *m)
{
    const gckpt_memory memory = { fuzz_resize, m, NULL, 0 };
    return memory;
}
#endif

/* backend.h - a test backend whose memory the host cannot read: the pages are inaccessible except while one of the
 * backend's functions runs. Its kernels are the processor's, plain or fast. It counts its calls and checks their
 * arguments. Includes the layer headers of src/ that it needs. */
#ifndef TESTS_BACKEND_H
#define TESTS_BACKEND_H
#include <signal.h>
#include <setjmp.h>
#include <sys/mman.h>

#include "store/store.h"
#include "ops/ops.h"
#include "cpu/internal.h"
#include "devices/devices.h"
#include "check.h"

enum { DEVICE_BYTES = 64 << 20, DEVICE_BLOCKS = 256 };

typedef struct {
    unsigned char *base;   /* the memory of this backend, DEVICE_BYTES bytes */
    size_t used;           /* bytes allocated so far; set to 0 when all allocations have been released */
    size_t opened;         /* number of accessible bytes at the start of the memory while depth > 0 */
    /* live: number of allocations not yet released; fail_at: number of the allocation that fails */
    long live, fail_at;
    struct {
        const unsigned char *from, *to;
    } block[DEVICE_BLOCKS]; /* the live allocations */
    int depth;             /* number of nested opens */
    const void *kernels;   /* those of the processor that are used; NULL selects the plain ones */
    const char *missing;   /* an op without kernels in this backend, or NULL */
    const char *problem;   /* error text that `finish` returns, or NULL */
    long gets, copies_in, copies_out, waits, kernel_calls, updates;
    long waited; /* number of copies to the host and of waits, between device_reset and the first update */
} device;

/* Makes the used bytes accessible, not the whole memory: each call of the backend changes every page of this range,
 * which takes time. */
static void device_open_used(device *d)
{
    if (d->used > d->opened && d->depth) {
        d->opened = d->used;
        CHECK(mprotect(d->base, d->opened, PROT_READ | PROT_WRITE) == 0);
    }
}

static void device_open(device *d)
{
    d->depth++;
    device_open_used(d);
}

static void device_close(device *d)
{
    if (--d->depth)
        return;
    if (d->opened)
        CHECK(mprotect(d->base, d->opened, PROT_NONE) == 0);
    d->opened = 0;
}

static int device_owns(const device *d, const void *at)
{
    const unsigned char *p = (const unsigned char *)at;
    return p >= d->base && p < d->base + DEVICE_BYTES;
}

/* Returns whether the `bytes` bytes from `at` on lie within one allocation. */
static int device_has(const device *d, const void *at, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)at;
    long i = 0;
    while (i < d->live && (p < d->block[i].from || p + bytes > d->block[i].to))
        i++;
    return i < d->live;
}

static void *device_get(void *context, size_t bytes, size_t alignment)
{
    device *d = (device *)context;
    size_t at = (d->used + alignment - 1) / alignment * alignment;
    if (++d->gets == d->fail_at || at + bytes > DEVICE_BYTES || d->live == DEVICE_BLOCKS)
        return NULL;
    d->block[d->live].from = d->base + at;
    d->block[d->live++].to = d->base + at + bytes;
    d->used = at + bytes;
    device_open_used(d);
    return d->base + at;
}

static void device_release(void *context, void *memory, size_t bytes)
{
    device *d = (device *)context;
    long i = 0;
    while (i < d->live && d->block[i].from != memory)
        i++;
    if (!CHECK(i < d->live && d->block[i].to == d->block[i].from + bytes))
        return;
    d->block[i] = d->block[--d->live];
    if (d->live == 0)
        d->used = 0;
}

static void device_copy_in(void *context, void *to, const void *host, size_t bytes)
{
    device *d = (device *)context;
    d->copies_in += bytes > 0;
    CHECK(device_has(d, to, bytes) && !device_owns(d, host));
    device_open(d);
    memcpy(to, host, bytes);
    device_close(d);
}

static void device_copy_out(void *context, void *host, const void *from, size_t bytes)
{
    device *d = (device *)context;
    d->copies_out++;
    CHECK(device_has(d, from, bytes) && !device_owns(d, host));
    device_open(d);
    memcpy(host, from, bytes);
    device_close(d);
}

static void device_copy(void *context, void *to, const void *from, size_t bytes)
{
    device *d = (device *)context;
    device_open(d);
    memcpy(to, from, bytes);
    device_close(d);
}

static const char *device_finish(void *context)
{
    device *d = (device *)context;
    d->waits++;
    return d->problem;
}

/* Returns a copy of the call, changed so that the processor's functions accept it. */
static gckpt_call device_call(const gckpt_call *call)
{
    device *d = (device *)call->backend;
    gckpt_call c = *call;
    c.kernels = d->kernels;
    c.plain = !d->kernels;
    return c;
}

static void device_fill(const gckpt_call *call, void *to, uint32_t word, int64_t n)
{
    device *d = (device *)call->backend;
    CHECK(device_has(d, to, 4 * (size_t)n) && (uintptr_t)to % 4 == 0);
    device_open(d);
    gckpti_cpu_fill(call, to, word, n);
    device_close(d);
}

static void device_add(const gckpt_call *call, float *to, const float *from, int64_t n)
{
    device *d = (device *)call->backend;
    device_open(d);
    gckpti_cpu_add(call, to, from, n);
    device_close(d);
}

#ifndef GCKPT_NO_BF16
static void device_convert(const gckpt_call *call, const gckpt_conversion *conversion)
{
    device *d = (device *)call->backend;
    gckpt_call c = device_call(call);
    device_open(d);
    gckpti_cpu_convert(&c, conversion);
    device_close(d);
}
#endif

static void device_unpack(const gckpt_call *call, const gckpt_dequantisation *u)
{
    device *d = (device *)call->backend;
    CHECK(device_has(d, u->quantised, (size_t)u->n / 2) && device_has(d, u->to, 4 * (size_t)u->n));
    device_open(d);
    GCKPTI_IF_COMPRESSED(gckpti_decompress_all(call, u));
    device_close(d);
}

static void device_update(const gckpt_call *call, const gckpt_update_pass *pass)
{
    device *d = (device *)call->backend;
    if (pass->update && !d->updates++)
        d->waited = d->copies_out + d->waits;
    gckpt_call c = device_call(call);
    device_open(d);
    gckpti_cpu_update(&c, pass);
    device_close(d);
}

static void device_run(const gckpt_call *call, gckpt_kernel kernel)
{
    device *d = (device *)call->backend;
    gckpt_call c = device_call(call);
    d->kernel_calls++;
    device_open(d);
    kernel(&c);
    device_close(d);
}

/* Kernels of all ops, by the part of GCKPTI_OPS, except those of images and recurrent cells, which run on the host with
 * copies of their operands, as the ops in device_find do. X(name) is defined for each use of GCKPTI_OPS(DEVICE_OP). */
#define DEVICE_OP(name, part)  DEVICE_##part(name)
#define DEVICE_CORE(name)      X(name)
#define DEVICE_AXES(name)      X(name)
#define DEVICE_IMAGES(name)
#define DEVICE_RECURRENT(name)
#ifndef GCKPT_NO_ACTIVATIONS
#define DEVICE_ACTIVATIONS(name) X(name)
#else
#define DEVICE_ACTIVATIONS(name)
#endif
#ifndef GCKPT_NO_LOSSES
#define DEVICE_LOSSES(name) X(name)
#else
#define DEVICE_LOSSES(name)
#endif
#ifndef GCKPT_NO_CACHES
#define DEVICE_CACHES(name) X(name)
#else
#define DEVICE_CACHES(name)
#endif
#ifndef GCKPT_NO_ATTENTION
#define DEVICE_ATTENTION(name) X(name)
#else
#define DEVICE_ATTENTION(name)
#endif
#ifndef GCKPT_NO_LINEAR_LOSS
#define DEVICE_LINEAR_LOSS(name) X(name)
#else
#define DEVICE_LINEAR_LOSS(name)
#endif
#define X(name)                                                                                    \
    static void device_##name##_forward(const gckpt_call *call)                                    \
    {                                                                                              \
        device_run(call, gckpti_op_##name.forward);                                                \
    }                                                                                              \
    static void device_##name##_backward(const gckpt_call *call)                                   \
    {                                                                                              \
        device_run(call, gckpti_op_##name.backward);                                               \
    }
GCKPTI_OPS(DEVICE_OP)
#undef X

static gckpt_kernel device_find(void *context, const gckpt_op *op, gckpt_kind kind)
{
    const device *d = (const device *)context;
    const int on_host = !strcmp(op->name, "gather") || (!op->backward && !(op->flags & GCKPT_SIDE_EFFECT));
    if (on_host || (d->missing && !strcmp(op->name, d->missing)))
        return NULL;
#define X(name)                                                                                    \
    if (op == &gckpti_op_##name)                                                                   \
        return kind == GCKPT_FORWARD ? device_##name##_forward : device_##name##_backward;
    GCKPTI_OPS(DEVICE_OP)
#undef X
    return NULL;
}

/* The backend's function for the workspace of an op: computes it with the kernels that will run. */
static gckpt_result device_workspace(void *context, const gckpt_op *op, gckpt_call *call)
{
    const device *d = (const device *)context;
    call->plain = !d->kernels;
    return op->shape(call);
}

/* Starts the backend with kernels of this instruction set. Returns 0 if the system cannot protect pages. */
static int device_start(device *d, gckpt_backend *b, const char *name, gckpt_isa isa)
{
    memset(d, 0, sizeof *d);
    memset(b, 0, sizeof *b);
    void *base = mmap(NULL, DEVICE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return 0;
    d->base = (unsigned char *)base;
    if (!gckpti_cpu_has(isa, &d->kernels)) { /* the caller has asked gckpt_isa_available */
        munmap(base, DEVICE_BYTES);
        return 0;
    }
    b->name = name;
    b->context = d;
    b->own_memory = 1;
    b->writes_back = !d->kernels;
    b->allocate = device_get;
    b->release = device_release;
    b->copy_in = device_copy_in;
    b->copy_out = device_copy_out;
    b->copy = device_copy;
    b->workspace = device_workspace;
    b->find = device_find;
    b->fill = device_fill;
    b->add = device_add;
    b->convert = GCKPTI_IF_MIXED(device_convert);
    b->update = device_update;
    b->finish = device_finish;
    b->dequantise = device_unpack;
    return 1;
}

static inline void device_reset(device *d)
{
    d->gets = d->copies_in = d->copies_out = d->waits = d->kernel_calls = d->updates = d->waited = 0;
}

/* Checks that no allocation is left, and frees the pages. */
static void device_end(device *d)
{
    CHECK(d->live == 0 && d->depth == 0);
    munmap(d->base, DEVICE_BYTES);
}
#endif

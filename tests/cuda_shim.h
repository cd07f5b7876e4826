/* cuda_shim.h - CUDA C++ without a GPU: every CUDA thread is a fiber, all on one thread of the processor.
 *
 *     g++ -std=c++17 -O2 -ffp-contract=off -mfma -DGCKPT_CUDA_SHIM -include tests/cuda_shim.h -x c++ file.cu
 *
 * A test tool, not a backend: it runs a kernel's source as it stands and is strict where a device is
 * lenient or silent. The .cu is plain CUDA C++, but for three macros:
 *
 *     #ifndef GCKPT_CUDA_SHIM
 *     #define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
 *         (kernel)<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
 *     #define SHARED(type, name, dims) __shared__ type name dims
 *     #define DYNAMIC_SHARED(type, name) \
 *         extern __shared__ __align__(16) unsigned char gckpti_dynamic_shared[]; \
 *         type *name = (type *)gckpti_dynamic_shared
 *     #endif
 *
 * (a template's instance stands in brackets: LAUNCH((k<2, 3>), ...)), and for the PTX wrappers under
 * >>ptx, which the .cu defines under the same #ifndef with the signatures written there.
 *
 * Contents: >>settings >>types >>fibers >>shared >>warp >>device >>ptx >>memory >>streams >>launch >>runtime
 */
#ifndef TESTS_CUDA_SHIM_H
#define TESTS_CUDA_SHIM_H

/* >>settings: also for C ----------------------------------------------------------------------- */

/* What runs next among threads, warps and blocks. Results must not depend on it. */
enum {
    CUDA_SHIM_FORWARD, /* a warp runs as far as it can before the next one starts */
    CUDA_SHIM_REVERSE, /* the same from the last block, warp and lane */
    CUDA_SHIM_RANDOM,  /* all threads in step, in an order drawn again for every round */
    CUDA_SHIM_STEP     /* all threads in step */
};

/* Read and written between calls. The first four begin with the environment's CUDA_SHIM_SCHEDULE (0 to
 * 3), CUDA_SHIM_SEED, CUDA_SHIM_LAZY and CUDA_SHIM_PROTECT. */
typedef struct {
    int schedule;
    unsigned seed;
    int lazy;                 /* a stream's work runs only when something waits for it */
    int protect;              /* host code that touches device memory faults */
    long fail_malloc;         /* 1: the next cudaMalloc fails; n: the n-th from now; 0: none */
    long fail_pinned;         /* the same of cudaMallocHost and cudaHostRegister */
    long fail_launch;         /* this launch ends in an asynchronous error */
    long fail_copy;           /* this copy or fill does */
    int fail_always;          /* and all after it */
    unsigned long device_bytes; /* what a device has */
    long mallocs, launches, copies, waits, switches, float_atomics; /* counted */
    long live_device, live_pinned, live_streams, live_events, live_graphs;
} cuda_shim_settings;
#ifndef __cplusplus
extern cuda_shim_settings cuda_shim;
#else

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#define CUDA_SHIM_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_SHIM_ASAN
#endif
#endif
#ifdef CUDA_SHIM_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

namespace shim
{
inline long from_environment(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}
inline cuda_shim_settings first_settings(void)
{
    cuda_shim_settings s = {};
    s.schedule = (int)from_environment("CUDA_SHIM_SCHEDULE", CUDA_SHIM_FORWARD);
    s.seed = (unsigned)from_environment("CUDA_SHIM_SEED", 1);
    s.lazy = (int)from_environment("CUDA_SHIM_LAZY", 0);
    s.protect = (int)from_environment("CUDA_SHIM_PROTECT", 0);
    s.device_bytes = 1ul << 30;
    return s;
}
} // namespace shim
extern "C" {
__attribute__((used)) inline cuda_shim_settings cuda_shim = shim::first_settings();
}

/* >>types: words and types of the language ----------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
#define CUDA_SHIM_VECTOR(type, scalar)                                                             \
    struct alignas(2 * sizeof(scalar)) type##2 {                                                   \
        scalar x, y;                                                                               \
    };                                                                                             \
    struct alignas(16) type##4 {                                                                   \
        scalar x, y, z, w;                                                                         \
    };                                                                                             \
    inline type##2 make_##type##2(scalar x, scalar y) { return { x, y }; }                         \
    inline type##4 make_##type##4(scalar x, scalar y, scalar z, scalar w)                          \
    {                                                                                              \
        return { x, y, z, w };                                                                     \
    }
CUDA_SHIM_VECTOR(float, float)
CUDA_SHIM_VECTOR(int, int)
CUDA_SHIM_VECTOR(uint, unsigned)
#undef CUDA_SHIM_VECTOR

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* >>fibers: a stack for every thread that has begun and not ended ------------------------------- */

namespace shim
{
enum { STACK_BYTES = 256 << 10, PAGE = 4096, LANES = 32, MAX_THREADS = 1024 };

struct fiber {
    void *sp;       /* where it was left: x86-64 */
    ucontext_t uc;  /* elsewhere */
    char *stack;
};

/* cp.async: 16 bytes on their way to shared memory */
struct async_copy {
    void *to;
    const void *from;
    size_t valid;
    unsigned group;
};

struct thread {
    fiber *on;
    uint3 index;
    int line;         /* of what it waits in */
    unsigned mask;    /* a warp function: its mask, which one it is, and its arguments; */
    void (*op)(void); /* NULL: waits at a barrier */
    void *data;
    unsigned groups; /* cp.async groups committed */
    std::vector<async_copy> copies;
};

/* A bit for every lane. */
struct warp {
    unsigned all, ready, fresh, waiting, done; /* fresh: ready and not begun */
};

/* What runs now. Only one host thread at a time gets here (>>streams holds the lock). */
struct machine {
    const char *kernel;
    void (*body)(void *arguments);
    void *arguments;
    int count, warps, left, current; /* threads of a block, those not ended, the running one */
    thread threads[MAX_THREADS];
    warp warp_of[MAX_THREADS / LANES];
    int order[MAX_THREADS], at_warp, at; /* where the schedule is */
    int arrived, barrier_line;
    fiber host;
    std::vector<fiber *> idle;
    int fibers;
    unsigned long block; /* a number of its own for each block that runs */
    char *shared;
    size_t shared_used, static_bytes, dynamic_bytes;
};
/* Never freed: fibers and device memory may be used until the process ends. */
inline machine &m = *new machine();

inline unsigned draw(unsigned below)
{
    cuda_shim.seed = cuda_shim.seed * 1664525u + 1013904223u;
    return (unsigned)(((uint64_t)cuda_shim.seed * below) >> 32);
}

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char *format, ...)
{
    fprintf(stderr, "cuda_shim: %s, block (%u,%u,%u)", m.kernel ? m.kernel : "no kernel", blockIdx.x,
            blockIdx.y, blockIdx.z);
    if (m.current >= 0)
        fprintf(stderr, ", thread (%u,%u,%u)", threadIdx.x, threadIdx.y, threadIdx.z);
    fputs(": ", stderr);
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    int shown = 0;
    for (int i = 0; i < m.count && shown < 8; i++) {
        if (!(m.warp_of[i / LANES].waiting >> i % LANES & 1))
            continue;
        const thread &t = m.threads[i];
        if (t.op)
            fprintf(stderr, "  thread %d waits for its warp, mask %08x, line %d\n", i, t.mask, t.line);
        else
            fprintf(stderr, "  thread %d waits for its block, line %d\n", i, t.line);
        shown++;
    }
    fflush(stderr);
    abort();
}

#if defined(__x86_64__) && !defined(CUDA_SHIM_UCONTEXT)
/* Saves what a call must keep, changes stacks, and returns into the other fiber. */
extern "C" void cuda_shim_switch(void **from_sp, void *to_sp);
asm(".text\n"
    ".weak cuda_shim_switch\n"
    ".p2align 4\n"
    "cuda_shim_switch:\n"
    "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
    "    ret\n");
inline void jump(fiber *from, fiber *to)
{
    cuda_shim.switches++;
    cuda_shim_switch(&from->sp, to->sp);
}
#else
inline void jump(fiber *from, fiber *to)
{
    cuda_shim.switches++;
    swapcontext(&from->uc, &to->uc);
}
#endif

/* Back to the schedule's first thread: of a block, or of what follows a barrier. */
inline void schedule_restart(void)
{
    int reverse = cuda_shim.schedule == CUDA_SHIM_REVERSE;
    m.at_warp = reverse ? m.warps - 1 : 0;
    m.at = reverse ? LANES : 0;
    if (cuda_shim.schedule != CUDA_SHIM_RANDOM)
        return;
    for (int i = 0; i < m.count; i++) {
        int j = (int)draw((unsigned)i + 1);
        m.order[i] = m.order[j];
        m.order[j] = i;
    }
}

inline int take_ready(int w, int lane)
{
    m.warp_of[w].ready &= ~(1u << lane);
    return w * LANES + lane;
}

/* The thread that runs next; -1: all have ended. */
inline int next_thread(void)
{
    for (int round = 0; m.left; round++) {
        int greedy = cuda_shim.schedule <= CUDA_SHIM_REVERSE;
        if (cuda_shim.schedule == CUDA_SHIM_RANDOM) {
            while (m.at < m.count) {
                int t = m.order[m.at++];
                if (m.warp_of[t / LANES].ready >> t % LANES & 1)
                    return take_ready(t / LANES, t % LANES);
            }
        } else if (cuda_shim.schedule == CUDA_SHIM_REVERSE) {
            for (; m.at_warp >= 0; m.at_warp--, m.at = LANES) {
                unsigned ready = m.warp_of[m.at_warp].ready;
                unsigned below = m.at == LANES ? ready : ready & ((1u << m.at) - 1);
                unsigned from = below ? below : ready;
                if (from)
                    return take_ready(m.at_warp, m.at = 31 - __builtin_clz(from));
            }
        } else {
            for (; m.at_warp < m.warps; m.at_warp++, m.at = 0) {
                unsigned ready = m.warp_of[m.at_warp].ready;
                unsigned above = m.at == LANES ? 0 : ready & (~0u << m.at);
                unsigned from = above || !greedy ? above : ready;
                if (from) {
                    int lane = __builtin_ctz(from);
                    m.at = lane + 1;
                    return take_ready(m.at_warp, lane);
                }
            }
        }
        if (round)
            fail("%d threads wait for others that will not come (%d have exited)", m.left,
                 m.count - m.left);
        schedule_restart();
    }
    return -1;
}

/* This thread is now the running one. */
inline void begin(int t)
{
    m.current = t;
    threadIdx = m.threads[t].index;
}

/* Runs threads one after the other for as long as the next one has not begun: those that never wait
 * all share one stack. */
inline void fiber_main(void)
{
    for (;;) {
        m.body(m.arguments);
        thread &t = m.threads[m.current];
        fiber *self = t.on;
        t.copies.clear();
        m.warp_of[m.current / LANES].done |= 1u << m.current % LANES;
        m.left--;
        int next = next_thread();
        if (next >= 0)
            begin(next);
        if (next >= 0 && m.warp_of[next / LANES].fresh >> next % LANES & 1) {
            m.warp_of[next / LANES].fresh &= ~(1u << next % LANES);
            m.threads[next].on = self;
            continue;
        }
        m.idle.push_back(self);
        jump(self, next < 0 ? &m.host : m.threads[next].on); /* comes back with a fresh thread */
    }
}

inline fiber *idle_fiber(void)
{
    if (!m.idle.empty()) {
        fiber *f = m.idle.back();
        m.idle.pop_back();
        return f;
    }
    fiber *f = new fiber();
    void *stack = mmap(NULL, STACK_BYTES + PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, PAGE, PROT_NONE)) /* an overflow faults */
        fail("no memory for a stack");
    f->stack = (char *)stack + PAGE;
    /* Stacks begin at different places of a page, or all would share a few sets of the cache. */
    size_t bytes = STACK_BYTES - (size_t)(m.fibers++ % 16) * 256;
#if defined(__x86_64__) && !defined(CUDA_SHIM_UCONTEXT)
    void **top = (void **)(f->stack + bytes) - 1; /* as if fiber_main had been called */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->sp = top;
#else
    getcontext(&f->uc);
    f->uc.uc_stack.ss_sp = f->stack;
    f->uc.uc_stack.ss_size = bytes;
    makecontext(&f->uc, fiber_main, 0);
#endif
    return f;
}

inline void run_thread(int t, fiber *from)
{
    begin(t);
    warp &w = m.warp_of[t / LANES];
    if (w.fresh >> t % LANES & 1) {
        w.fresh &= ~(1u << t % LANES);
        m.threads[t].on = idle_fiber();
    }
    jump(from, m.threads[t].on);
}

/* Lets others run until this thread is ready. */
inline void yield(void)
{
    int self = m.current, next = next_thread();
    if (next != self)
        run_thread(next, m.threads[self].on);
}

inline void run_block(void)
{
    for (int w = 0; w < m.warps; w++) {
        int lanes = m.count - w * LANES;
        unsigned all = lanes >= LANES ? ~0u : (1u << lanes) - 1;
        m.warp_of[w] = { all, all, all, 0, 0 };
    }
    m.left = m.count;
    m.arrived = 0;
    m.block++;
    schedule_restart();
    run_thread(next_thread(), &m.host);
    m.current = -1;
}

/* __syncthreads: all threads, at one line. The last one sends them on from the schedule's first. */
inline void block_barrier(int line)
{
    if (m.arrived && m.barrier_line != line)
        fail("barriers at lines %d and %d: all threads of a block must reach the same one",
             m.barrier_line, line);
    thread &t = m.threads[m.current];
    m.barrier_line = t.line = line;
    t.op = NULL;
    m.warp_of[m.current / LANES].waiting |= 1u << m.current % LANES;
    if (++m.arrived == m.count) {
        m.arrived = 0;
        for (int w = 0; w < m.warps; w++) {
            m.warp_of[w].ready = m.warp_of[w].all;
            m.warp_of[w].waiting = 0;
        }
        schedule_restart();
    }
    yield();
}

/* >>shared: memory of a block, NaN until written, fenced under AddressSanitizer ------------------ */

enum { SHARED_STATIC = 48 << 10, SHARED_MOST = 227 << 10, SHARED_BYTES = 512 << 10, FENCE = 128 };

/* A declaration's place in the block that ran it last. */
struct slot {
    unsigned long block;
    size_t at;
};

inline size_t shared_take(size_t bytes)
{
    size_t at = (m.shared_used + 127) & ~(size_t)127;
    m.shared_used = at + bytes + FENCE;
    if (m.shared_used > SHARED_BYTES)
        fail("%zu bytes of shared memory are too many", m.shared_used);
    ASAN_UNPOISON_MEMORY_REGION(m.shared + at, bytes);
    memset(m.shared + at, 0xFF, bytes);
    return at;
}

/* In the order of declaration; the dynamic part was taken first. */
inline size_t shared_static(size_t bytes)
{
    m.static_bytes += (bytes + 15) & ~(size_t)15;
    if (m.static_bytes > SHARED_STATIC)
        fail("%zu bytes of static shared memory, %d is the limit", m.static_bytes, SHARED_STATIC);
    if (m.static_bytes + m.dynamic_bytes > SHARED_MOST)
        fail("%zu bytes static and %zu dynamic shared memory, %d is the limit", m.static_bytes,
             m.dynamic_bytes, SHARED_MOST);
    return shared_take(bytes);
}

template <class A> inline A &shared(slot &s)
{
    if (s.block != m.block)
        s = { m.block, shared_static(sizeof(A)) };
    return *(A *)(void *)(m.shared + s.at);
}

/* Before a block. */
inline void shared_reset(size_t dynamic)
{
    if (!m.shared) {
        m.shared = (char *)aligned_alloc(1024, SHARED_BYTES);
        m.shared_used = SHARED_BYTES;
    }
    ASAN_POISON_MEMORY_REGION(m.shared, m.shared_used);
    m.shared_used = m.static_bytes = 0;
    m.dynamic_bytes = dynamic;
    shared_take(dynamic);
}

inline bool is_shared(const void *p, size_t bytes)
{
    return (const char *)p >= m.shared && (const char *)p + bytes <= m.shared + SHARED_BYTES;
}
} // namespace shim

#define SHARED(type, name, dims)                                                                   \
    typedef type name##_shared dims;                                                               \
    static shim::slot name##_slot;                                                                 \
    name##_shared &name = shim::shared<name##_shared>(name##_slot)
#define DYNAMIC_SHARED(type, name) type *name = (type *)(void *)shim::m.shared

/* >>warp: functions that all lanes of a mask call together -------------------------------------- */

namespace shim
{
/* Every lane brings its arguments; the last one to come runs all for all lanes. */
template <class D>
inline void together(unsigned mask, D &mine, void (*op)(D *const lane[LANES], unsigned mask), int line)
{
    int first = m.current & ~(LANES - 1), lane = m.current % LANES;
    warp &w = m.warp_of[m.current / LANES];
    thread &t = m.threads[m.current];
    if (!(mask >> lane & 1))
        fail("line %d: lane %d is not in its own mask %08x", line, lane, mask);
    if (mask & ~w.all)
        fail("line %d: mask %08x names lanes outside the block", line, mask);
    if (mask & w.done)
        fail("line %d: mask %08x names lanes that have exited (%08x)", line, mask, mask & w.done);
    t.mask = mask;
    t.op = (void (*)(void))op;
    t.data = &mine;
    t.line = line;
    w.waiting |= 1u << lane;
    if ((w.waiting & mask) != mask) {
        yield();
        return;
    }
    D *data[LANES] = {};
    for (unsigned left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        const thread &other = m.threads[first + i];
        if (other.mask != mask || other.op != t.op || other.line != line)
            fail("lane %d waits at line %d with mask %08x, lane %d at line %d with %08x", lane, line,
                 mask, i, other.line, other.mask);
        data[i] = (D *)other.data;
    }
    op(data, mask);
    w.waiting &= ~mask;
    w.ready |= mask & ~(1u << lane);
}

struct nothing {
};
inline void op_sync(nothing *const[LANES], unsigned) {}

template <class V> struct shuffled {
    V value, result;
    int from;
};
template <class V> inline void op_shuffle(shuffled<V> *const lane[LANES], unsigned mask)
{
    for (unsigned left = mask; left; left &= left - 1) {
        shuffled<V> *to = lane[__builtin_ctz(left)];
        if (!(mask >> to->from & 1))
            fail("lane %d reads lane %d, which is not in mask %08x", __builtin_ctz(left), to->from,
                 mask);
        to->result = lane[to->from]->value;
    }
}
template <class V> inline V shuffle(unsigned mask, V value, int from, int line)
{
    static_assert(sizeof(V) == 4 || sizeof(V) == 8, "shuffles move 4 or 8 bytes");
    shuffled<V> mine = { value, value, from };
    together(mask, mine, op_shuffle<V>, line);
    return mine.result;
}
inline int lane_of(void) { return m.current % LANES; }

struct vote {
    unsigned value, result;
};
inline void op_ballot(vote *const lane[LANES], unsigned mask)
{
    unsigned result = 0;
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1 && lane[i]->value)
            result |= 1u << i;
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1)
            lane[i]->result = result;
}
inline void op_add(vote *const lane[LANES], unsigned mask)
{
    unsigned result = 0;
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1)
            result += lane[i]->value;
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1)
            lane[i]->result = result;
}
} // namespace shim

inline void __syncthreads(int line = __builtin_LINE()) { shim::block_barrier(line); }
inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE())
{
    shim::nothing mine;
    shim::together(mask, mine, shim::op_sync, line);
}
template <class V>
inline V __shfl_sync(unsigned mask, V value, int from, int width = 32, int line = __builtin_LINE())
{
    return shim::shuffle(mask, value, (shim::lane_of() & -width) | (from & (width - 1)), line);
}
template <class V>
inline V __shfl_xor_sync(unsigned mask, V value, int with, int width = 32,
                         int line = __builtin_LINE())
{
    int lane = shim::lane_of(), from = lane ^ with;
    return shim::shuffle(mask, value, from > (lane | (width - 1)) ? lane : from, line);
}
template <class V>
inline V __shfl_up_sync(unsigned mask, V value, unsigned by, int width = 32,
                        int line = __builtin_LINE())
{
    int lane = shim::lane_of(), from = lane - (int)by;
    return shim::shuffle(mask, value, from < (lane & -width) ? lane : from, line);
}
template <class V>
inline V __shfl_down_sync(unsigned mask, V value, unsigned by, int width = 32,
                          int line = __builtin_LINE())
{
    int lane = shim::lane_of(), from = lane + (int)by;
    return shim::shuffle(mask, value, from > (lane | (width - 1)) ? lane : from, line);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    shim::vote mine = { (unsigned)(predicate != 0), 0 };
    shim::together(mask, mine, shim::op_ballot, line);
    return mine.result;
}
inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return __ballot_sync(mask, predicate, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return __ballot_sync(mask, predicate, line) == mask;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value, int line = __builtin_LINE())
{
    shim::vote mine = { value, 0 };
    shim::together(mask, mine, shim::op_add, line);
    return mine.result;
}

/* >>device: functions of one thread ------------------------------------------------------------- */

inline void __threadfence(void) {}
inline void __threadfence_block(void) {}
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __clz(int a) { return a ? __builtin_clz((unsigned)a) : 32; }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }

namespace shim
{
template <class To, class From> inline To bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "a cast of bits keeps the size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
} // namespace shim
inline unsigned __float_as_uint(float a) { return shim::bits<unsigned>(a); }
inline float __uint_as_float(unsigned a) { return shim::bits<float>(a); }
inline int __float_as_int(float a) { return shim::bits<int>(a); }
inline float __int_as_float(int a) { return shim::bits<float>(a); }
template <class V> inline V __ldg(const V *from) { return *from; }

template <class V> inline V atomicExch(V *at, V value)
{
    V old = *at;
    *at = value;
    return old;
}
template <class V, class U> inline V atomicAdd(V *at, U value)
{
    cuda_shim.float_atomics += !std::is_integral<V>::value;
    return atomicExch(at, (V)(*at + (V)value));
}
template <class V, class U> inline V atomicMax(V *at, U value)
{
    return atomicExch(at, (V)value > *at ? (V)value : *at);
}
template <class V, class U> inline V atomicMin(V *at, U value)
{
    return atomicExch(at, (V)value < *at ? (V)value : *at);
}
template <class V, class U> inline V atomicOr(V *at, U value) { return atomicExch(at, (V)(*at | (V)value)); }
template <class V> inline V atomicCAS(V *at, V expected, V value)
{
    return atomicExch(at, *at == expected ? value : *at);
}

/* >>memory: errors; device memory that ends at a page without access, pinned memory -------------- */

#define CUDA_SHIM_ERRORS(X)                                                                        \
    X(cudaSuccess, 0, "no error")                                                                  \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                                \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                               \
    X(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                          \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                       \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                              \
    X(cudaErrorNotReady, 600, "device not ready")                                                  \
    X(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")

enum cudaError {
#define X(name, code, text) name = code,
    CUDA_SHIM_ERRORS(X)
#undef X
};
typedef enum cudaError cudaError_t;
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};

namespace shim
{
enum { DEVICES = 2 };
struct work;
typedef std::shared_ptr<work> job;
} // namespace shim
struct CUstream_st {
    int device;
    unsigned flags;
    shim::job last;
};
struct CUevent_st {
    int device;
    unsigned flags;
    shim::job recorded;
    double at;
};
typedef CUstream_st *cudaStream_t;
typedef CUevent_st *cudaEvent_t;

namespace shim
{
/* Work of a stream: runs after what it names. */
struct work {
    std::function<void()> run;
    std::vector<job> after;
    int device;
    bool done;
};
struct block_of_memory {
    size_t bytes, pages;
    int device;
};
struct context {
    std::recursive_mutex mutex;
    cudaError_t sticky[DEVICES];
    cudaStream_t null[DEVICES];
    std::vector<cudaStream_t> streams;
    std::map<char *, block_of_memory> memory;
    std::map<char *, size_t> pinned;
    std::map<std::pair<int, const void *>, int> dynamic_limit;
    size_t used[DEVICES];
    char *arena, *next;
};
inline context &c = *new context();
inline thread_local cudaError_t last_error;
inline thread_local int device;

inline cudaError_t note(cudaError_t e)
{
    if (e)
        last_error = e;
    return e;
}

/* Every call holds the lock, and answers with the device's error once it has one. */
struct entry {
    std::lock_guard<std::recursive_mutex> lock;
    cudaError_t error;
    entry() : lock(c.mutex), error(note(c.sticky[device])) {}
};

/* Counts down to the call that fails. */
inline bool fails(long *counter)
{
    if (*counter <= 0 || --*counter)
        return false;
    *counter = cuda_shim.fail_always;
    return true;
}

/* >>streams: work runs at once, or (lazy) when something waits for it ---------------------------- */

inline void finish(const job &wanted)
{
    std::vector<job> stack(1, wanted);
    while (!stack.empty()) {
        job top = stack.back(), first;
        if (!top || top->done) {
            stack.pop_back();
            continue;
        }
        for (const job &a : top->after)
            if (a && !a->done)
                first = a;
        if (first) {
            stack.push_back(first);
            continue;
        }
        stack.pop_back();
        top->done = true;
        if (!c.sticky[top->device])
            top->run();
        top->run = nullptr;
        top->after.clear();
    }
}
inline void finish_device(void)
{
    finish(c.null[device] ? c.null[device]->last : job());
    for (cudaStream_t s : c.streams)
        if (s->device == device)
            finish(s->last);
}
inline cudaStream_t stream_of(cudaStream_t s)
{
    if (s)
        return s;
    if (!c.null[device]) {
        c.null[device] = new CUstream_st();
        c.null[device]->device = device;
    }
    return c.null[device];
}
inline void post(cudaStream_t stream, std::function<void()> run)
{
    cudaStream_t s = stream_of(stream);
    job j = std::make_shared<work>();
    j->run = std::move(run);
    j->device = s->device;
    j->after.push_back(s->last);
    /* The null stream waits for the others, and they for it. */
    for (cudaStream_t other : c.streams)
        if (!stream && other->device == device && !(other->flags & 1))
            j->after.push_back(other->last);
    if (stream && !(s->flags & 1) && c.null[s->device])
        j->after.push_back(c.null[s->device]->last);
    s->last = j;
    if (!cuda_shim.lazy)
        finish(j);
}

/* >>launch ------------------------------------------------------------------------------------- */

inline bool limits_hold(dim3 grid, dim3 block, size_t dynamic, const void *kernel)
{
    auto limit = c.dynamic_limit.find({ device, kernel });
    size_t most = limit == c.dynamic_limit.end() ? (size_t)SHARED_STATIC : (size_t)limit->second;
    return grid.x && grid.y && grid.z && grid.x < 1u << 31 && grid.y < 65536 && grid.z < 65536 &&
           block.x && block.y && block.z && block.x <= 1024 && block.y <= 1024 && block.z <= 64 &&
           (uint64_t)block.x * block.y * block.z <= MAX_THREADS && dynamic <= most;
}

inline void run_grid(const char *kernel, dim3 grid, dim3 block, size_t dynamic,
                     void (*body)(void *), void *arguments)
{
    m.kernel = kernel;
    m.body = body;
    m.arguments = arguments;
    m.count = (int)(block.x * block.y * block.z);
    m.warps = (m.count + LANES - 1) / LANES;
    gridDim = grid;
    blockDim = block;
    for (unsigned i = 0; i < (unsigned)m.count; i++)
        m.threads[i].index = { i % block.x, i / block.x % block.y, i / block.x / block.y };
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    for (uint64_t j = 0; j < blocks; j++) {
        uint64_t i = cuda_shim.schedule == CUDA_SHIM_REVERSE ? blocks - 1 - j : j;
        blockIdx = { (unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y),
                     (unsigned)(i / grid.x / grid.y) };
        shared_reset(dynamic);
        run_block();
    }
    m.kernel = NULL;
    m.count = 0;
}

template <class... P> struct bound {
    void (*kernel)(P...);
    std::tuple<std::decay_t<P>...> arguments;
    static void run(void *self)
    {
        bound *b = (bound *)self;
        std::apply(b->kernel, b->arguments);
    }
};

template <class... P, class... A>
inline void launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t dynamic,
                   cudaStream_t stream, A &&...arguments)
{
    entry in;
    if (in.error)
        return;
    if (!limits_hold(grid, block, dynamic, (const void *)kernel)) {
        note(cudaErrorInvalidConfiguration);
        return;
    }
    bound<P...> b = { kernel, { std::forward<A>(arguments)... } };
    cuda_shim.launches++;
    post(stream, [=]() mutable { run_grid(name, grid, block, dynamic, bound<P...>::run, &b); });
}
} // namespace shim
#define LAUNCH(kernel, ...) shim::launch(#kernel, kernel, __VA_ARGS__)

/* >>runtime ------------------------------------------------------------------------------------ */

inline const char *cudaGetErrorName(cudaError_t e)
{
#define X(name, code, text)                                                                        \
    if (e == name)                                                                                 \
        return #name;
    CUDA_SHIM_ERRORS(X)
#undef X
    return "unrecognized error code";
}
inline const char *cudaGetErrorString(cudaError_t e)
{
#define X(name, code, text)                                                                        \
    if (e == name)                                                                                 \
        return text;
    CUDA_SHIM_ERRORS(X)
#undef X
    return "unrecognized error code";
}
inline cudaError_t cudaGetLastError(void)
{
    cudaError_t e = shim::last_error;
    shim::last_error = cudaSuccess;
    return e;
}
inline cudaError_t cudaPeekAtLastError(void) { return shim::last_error; }
inline cudaError_t cudaGetDeviceCount(int *n)
{
    *n = shim::DEVICES;
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int d)
{
    if (d < 0 || d >= shim::DEVICES)
        return shim::note(cudaErrorInvalidDevice);
    shim::device = d;
    return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int *d)
{
    *d = shim::device;
    return cudaSuccess;
}
template <class V> inline cudaError_t cudaMalloc(V **p, size_t bytes)
{
    shim::entry in;
    *p = NULL;
    if (in.error)
        return in.error;
    cuda_shim.mallocs++;
    if (shim::fails(&cuda_shim.fail_malloc))
        return shim::note(cudaErrorMemoryAllocation);
    void *at = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!at)
        return shim::note(cudaErrorMemoryAllocation);
    memset(at, 0xFF, bytes);
    cuda_shim.live_device++;
    *p = (V *)at;
    return cudaSuccess;
}
inline cudaError_t cudaFree(void *p)
{
    shim::entry in;
    shim::finish_device();
    cuda_shim.live_device -= p != NULL;
    free(p);
    return in.error;
}
template <class V> inline cudaError_t cudaMallocHost(V **p, size_t bytes)
{
    shim::entry in;
    *p = NULL;
    if (in.error)
        return in.error;
    if (shim::fails(&cuda_shim.fail_pinned))
        return shim::note(cudaErrorMemoryAllocation);
    *p = (V *)malloc(bytes);
    cuda_shim.live_pinned++;
    return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void *p)
{
    shim::entry in;
    shim::finish_device();
    cuda_shim.live_pinned -= p != NULL;
    free(p);
    return in.error;
}
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t s = 0)
{
    shim::entry in;
    if (in.error)
        return in.error;
    cuda_shim.copies++;
    shim::post(s, [=] { memmove(to, from, bytes); });
    return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s = 0)
{
    shim::entry in;
    if (in.error)
        return in.error;
    cuda_shim.copies++;
    shim::post(s, [=] { memset(to, value, bytes); });
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    shim::entry in;
    cuda_shim.waits++;
    shim::finish(shim::stream_of(s)->last);
    return shim::note(shim::c.sticky[shim::device]);
}
inline cudaError_t cudaDeviceSynchronize(void)
{
    shim::entry in;
    cuda_shim.waits++;
    shim::finish_device();
    return shim::note(shim::c.sticky[shim::device]);
}
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind);
    return e ? e : cudaStreamSynchronize(0);
}
inline cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    cudaError_t e = cudaMemsetAsync(to, value, bytes);
    return e ? e : cudaStreamSynchronize(0);
}
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    shim::entry in;
    *s = NULL;
    if (in.error)
        return in.error;
    *s = new CUstream_st();
    (*s)->device = shim::device;
    (*s)->flags = flags;
    shim::c.streams.push_back(*s);
    cuda_shim.live_streams++;
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithFlags(s, 0); }
inline cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    shim::entry in;
    shim::finish(s->last);
    for (size_t i = 0; i < shim::c.streams.size(); i++)
        if (shim::c.streams[i] == s)
            shim::c.streams.erase(shim::c.streams.begin() + (long)i);
    delete s;
    cuda_shim.live_streams--;
    return in.error;
}
enum { cudaEventDefault = 0, cudaEventDisableTiming = 2 };
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    shim::entry in;
    *e = NULL;
    if (in.error)
        return in.error;
    *e = new CUevent_st();
    (*e)->device = shim::device;
    (*e)->flags = flags;
    cuda_shim.live_events++;
    return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
inline cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    shim::entry in;
    delete e;
    cuda_shim.live_events--;
    return in.error;
}
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = 0)
{
    shim::entry in;
    if (in.error)
        return in.error;
    shim::post(s, [] {});
    e->recorded = shim::stream_of(s)->last;
    return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    shim::entry in;
    cuda_shim.waits++;
    shim::finish(e->recorded);
    return shim::note(shim::c.sticky[shim::device]);
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned = 0)
{
    shim::entry in;
    if (in.error)
        return in.error;
    shim::job event = e->recorded;
    shim::post(s, [event] { shim::finish(event); });
    return cudaSuccess;
}
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <class F>
inline cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute attribute, int value)
{
    shim::entry in;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > shim::SHARED_MOST)
        return shim::note(cudaErrorInvalidValue);
    shim::c.dynamic_limit[{ shim::device, (const void *)kernel }] = value;
    return in.error;
}
inline cudaError_t cudaMemGetInfo(size_t *unused, size_t *all)
{
    *all = *unused = cuda_shim.device_bytes;
    return cudaSuccess;
}
#endif /* __cplusplus */
#endif

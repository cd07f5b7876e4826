/* cuda_shim.h - compiles and runs CUDA C++ without a GPU: every CUDA thread is a fiber, and all fibers
 * run on one thread of the processor.
 *
 *     g++ -std=c++17 -O2 -ffp-contract=off -mfma -DGCKPT_CUDA_SHIM -include tests/cuda/cuda_shim.h -x c++ file.cu
 *
 * The shim is a test tool, not a backend. It runs the source of a kernel unchanged. The .cu file is plain
 * CUDA C++, except for three macros:
 *
 *     #ifndef GCKPT_CUDA_SHIM
 *     cudaError_t LAUNCH(kernel, grid, block, shared_bytes, stream, ...)       a macro or template
 *     #define SHARED(type, name, dims) __shared__ type name dims
 *     #define DYNAMIC_SHARED(type, name) \
 *         extern __shared__ __align__(16) unsigned char gckpti_dynamic_shared[]; \
 *         type *name = (type *)gckpti_dynamic_shared
 *     #endif
 *
 * A template instance needs parentheses: LAUNCH((k<2, 3>), ...). The .cu file also defines, under the
 * same #ifndef, the wrappers of PTX instructions with the signatures given in section >>ptx.
 *
 * The shim ends the process with a message at these mistakes, some of which a device ignores: threads
 * that wait for threads that have exited or wait elsewhere, masks with lanes that do not exist, kernel
 * arguments that point to host memory, freed memory or another device's memory, accesses past the end of
 * an allocation, and waits for loads that never complete. Memory is NaN (all bits set) until it is written. A race shows as results that differ
 * between schedules, or between eager and lazy streams. With -fsanitize=address,undefined the shim also
 * finds misaligned vectors, and accesses outside of shared variables or within the last 256 bytes of an
 * allocation.
 *
 * The shim cannot find: host pointers inside of structs, missing fences and volatile (memory is in
 * program order), threads that wait for each other by polling (the shim hangs), register and occupancy
 * limits. It does not give the bits of tensor cores and of approximate functions, and says
 * nothing about time.
 *
 * Sections: >>settings >>types >>fibers >>shared >>warp >>device >>ptx >>wgmma >>memory >>streams >>launch
 * >>dump >>runtime */
#ifndef TESTS_CUDA_SHIM_H
#define TESTS_CUDA_SHIM_H

/* >>settings: the only section that C can include ------------------------------------------------ */

/* A schedule decides which thread, warp and block runs next. A kernel's results must not depend on it. */
enum {
    CUDA_SHIM_FORWARD, /* a warp runs as far as it can before the next warp starts */
    CUDA_SHIM_REVERSE, /* like FORWARD, but begins with the last block, warp and lane */
    CUDA_SHIM_RANDOM,  /* all threads advance together, in a new random order each time */
    CUDA_SHIM_STEP     /* all threads advance together, in order */
};

/* Settings and counters, which tests read and write between calls. The environment sets the initial
 * values of the first four fields and of device_bytes: CUDA_SHIM_SCHEDULE (0 to 3), CUDA_SHIM_SEED,
 * CUDA_SHIM_LAZY, CUDA_SHIM_PROTECT and CUDA_SHIM_BYTES. */
typedef struct {
    int schedule;
    unsigned seed;
    int lazy;         /* if nonzero, the work of a stream runs only when a call waits for it */
    /* If nonzero, host code that touches device memory after a call that waits causes a fault. */
    int protect;
    long fail_malloc; /* n lets the n-th cudaMalloc from now fail; 0 lets none fail */
    long fail_pinned; /* n lets the n-th cudaMallocHost or cudaHostRegister from now fail */
    long fail_upload; /* n lets the n-th cudaGraphUpload from now fail, as if memory were full */
    long fail_launch; /* n lets the n-th kernel from now end with a lasting asynchronous error */
    long fail_copy;   /* n lets the n-th copy or fill from now end with a lasting asynchronous error */
    long refuse_launch; /* n lets the n-th launch from now be refused, with an error that does not last */
    int fail_always;  /* if nonzero, all calls after the call that a counter lets fail also fail */
    unsigned long device_bytes; /* memory of each device, in bytes */
    int multiprocessors;
    int capability;                  /* compute capability: 90 is 9.0 */
    int sm_90a; /* nonzero if kernels have code for sm_90a, whose wgmma adds wrongly if this is 2 */
    unsigned long shared_bytes;      /* shared memory of a multiprocessor */
    unsigned long graph_bytes;       /* device memory that an executable graph takes */
    /* Counters. `launches` and `copies` count kernels and copies when they run, replays included;
     * `copies_out` counts copies to the host a second time; `waits` counts calls that wait; `switches`
     * counts changes of fibers. */
    long mallocs, launches, copies, copies_out, waits, switches, float_atomics;
    long mmas, wgmmas;           /* instructions of a warp */
    unsigned long dynamic_bytes; /* dynamic shared memory of the launch that had most */
    /* numbers of objects that exist and are not freed */
    long live_device, live_pinned, live_streams, live_events, live_graphs;
} cuda_shim_settings;
#ifndef __cplusplus
extern cuda_shim_settings cuda_shim;
/* Sets the thread's pending error, as a program's own call does that fails; returns that error. */
void cuda_shim_set_error(int error);
int cuda_shim_error(void);
#else

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#define CUDA_SHIM_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_SHIM_ASAN
#endif
#endif
#ifdef CUDA_SHIM_ASAN
#include <sanitizer/asan_interface.h>
/* If AddressSanitizer kept frames after a return, they would be on its own stack instead of the
 * fiber's. */
extern "C" __attribute__((weak)) const char *__asan_default_options(void)
{
    return "detect_stack_use_after_return=0";
}
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
    s.device_bytes = (unsigned long)from_environment("CUDA_SHIM_BYTES", 1l << 30);
    s.multiprocessors = 132;
    s.capability = 90;
    s.sm_90a = 1;
    s.shared_bytes = 228 << 10;
    s.graph_bytes = 64 << 10;
    return s;
}
} // namespace shim
extern "C" {
__attribute__((used)) inline cuda_shim_settings cuda_shim = shim::first_settings();
}

/* >>types: keywords and types of the CUDA language ----------------------------------------------- */

#define __CUDA_ARCH_LIST__ 800, 900 /* compute capabilities for which nvcc compiled, times 100 */
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
#define CUDA_SHIM_VECTOR(type, scalar)                                                             \
    struct alignas(2 * sizeof(scalar)) type##2 { scalar x, y; };                                   \
    struct alignas(16) type##4 { scalar x, y, z, w; };                                             \
    inline type##2 make_##type##2(scalar x, scalar y) { return { x, y }; }                         \
    inline type##4 make_##type##4(scalar x, scalar y, scalar z, scalar w) { return { x, y, z, w }; }
CUDA_SHIM_VECTOR(float, float)
CUDA_SHIM_VECTOR(int, int)
CUDA_SHIM_VECTOR(uint, unsigned)
#undef CUDA_SHIM_VECTOR

/* A tensor map of <cuda.h>, whose content is the shim's own: the first axis is contiguous. */
struct CUtensorMap {
    alignas(128) char *base;
    uint64_t size[4];   /* elements of 2 bytes along each axis */
    uint64_t stride[4]; /* bytes from index to index of an axis */
    uint32_t box[4];
};

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* >>fibers: each thread that has started and not ended has a stack ------------------------------- */

namespace shim
{
enum { STACK_BYTES = 256 << 10, PAGE = 4096, LANES = 32, MAX_THREADS = 1024 };

struct fiber {
    void *sp;      /* saved stack pointer, on x86-64 */
    ucontext_t uc; /* saved context, on other processors */
};

/* An asynchronous copy (cp.async): 16 bytes that have not arrived in shared memory. */
struct async_copy {
    void *to;
    const void *from;
    size_t valid;
    unsigned group;
};

/* A box of a tensor that TMA loads into shared memory at `to`. */
struct tma_load {
    char *to;
    CUtensorMap map;
    int at[4];
};

/* A phase of an mbarrier is complete when `left` is 0 and all expected bytes are coming. The loads arrive
 * when a thread waits for it. */
struct mbarrier {
    int arrivals, left;    /* of a phase; those to come */
    long expected, coming; /* bytes */
    unsigned phase;        /* number of complete phases */
    bool fenced;
    std::vector<tma_load> loads;
    std::vector<int> waiting; /* threads */
};

/* A wgmma that has not been waited for. a and b are descriptors, `registers` the operand a if it is not in
 * shared memory. */
struct wgmma {
    float *c;
    int n; /* columns */
    bool in_registers, a_along, b_along;
    uint64_t a, b;
    uint32_t registers[4];
    unsigned group;
    bool add; /* if false, c counts as 0 */
};

struct thread {
    fiber *on;
    uint3 index;
    int line;         /* source line of the call in which the thread waits */
    unsigned mask;    /* while the thread waits in a warp function: the lanes that must call it */
    void (*op)(void); /* the warp function, or NULL if the thread waits at a barrier */
    void *data;
    unsigned groups; /* number of cp.async groups that the thread has committed */
    std::vector<async_copy> copies;
    unsigned wgmma_groups; /* number of wgmma groups that the thread has committed */
    bool wgmma_fenced;     /* since its last wait */
    std::vector<wgmma> products;
};

/* State of a warp, as masks with a bit for each lane. */
struct warp {
    /* fresh: ready, but not started yet; parked: waiting for an mbarrier */
    unsigned all, ready, fresh, waiting, done, parked;
};

/* The state of the block that runs. Only one host thread at a time uses it; section >>streams has the
 * lock. */
struct machine {
    const char *kernel;
    void (*body)(void *arguments);
    void *arguments;
    /* count: threads of the block; warps: its warps; left: threads that have not ended; current: number
     * of the running thread */
    int count, warps, left, current;
    thread threads[MAX_THREADS];
    warp warp_of[MAX_THREADS / LANES];
    int order[MAX_THREADS], at_warp, at; /* position in the schedule */
    int arrived, barrier_line;
    fiber host;
    std::vector<fiber *> idle;
    int fibers;
    unsigned long block; /* a number that no other block has */
    char *shared;
    size_t shared_used, static_bytes, dynamic_bytes;
    std::map<uint64_t *, mbarrier> barriers; /* of the block, by address */
};
/* Never freed, since fibers and device memory may be used until the process ends. */
inline machine &m = *new machine();

inline unsigned draw(unsigned below)
{
    cuda_shim.seed = cuda_shim.seed * 1664525u + 1013904223u;
    return (unsigned)(((uint64_t)cuda_shim.seed * below) >> 32);
}

[[noreturn]] __attribute__((format(printf, 1, 2))) inline void fail(const char *format, ...)
{
    fprintf(stderr, "cuda_shim: %s, block (%u,%u,%u)", m.kernel ? m.kernel : "no kernel",
            blockIdx.x, blockIdx.y, blockIdx.z);
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
        const warp &w = m.warp_of[i / LANES];
        if (!((w.waiting | w.parked) >> i % LANES & 1))
            continue;
        const thread &t = m.threads[i];
        if (w.parked >> i % LANES & 1)
            fprintf(stderr, "  thread %d waits for an mbarrier, line %d\n", i, t.line);
        else if (t.op)
            fprintf(stderr, "  thread %d waits for its warp, mask %08x, line %d\n", i, t.mask,
                    t.line);
        else
            fprintf(stderr, "  thread %d waits for its block, line %d\n", i, t.line);
        shown++;
    }
    fflush(stderr);
    abort();
}

#if defined(__x86_64__) && !defined(CUDA_SHIM_UCONTEXT)
/* Saves the callee-saved registers, changes to the other fiber's stack, and returns into that fiber. */
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

/* Goes back to the first thread of the schedule, at the start of a block or after a barrier. */
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

/* Returns the thread that runs next, or -1 if all threads have ended. */
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

/* Makes t the running thread. */
inline void begin(int t)
{
    m.current = t;
    threadIdx = m.threads[t].index;
}

/* Main function of a fiber. It runs threads one after another as long as the next thread has not started
 * yet, so threads that never wait all share one stack. */
inline void fiber_main(void)
{
    for (;;) {
        m.body(m.arguments);
        thread &t = m.threads[m.current];
        fiber *self = t.on;
        if (!t.products.empty())
            fail("ends with a wgmma for which it has not waited");
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
        jump(self, next < 0 ? &m.host : m.threads[next].on); /* returns with a thread that has not started */
    }
}

inline fiber *new_fiber(void)
{
    fiber *f = new fiber();
    char *stack = (char *)mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, PAGE, PROT_NONE)) /* makes a stack overflow fault */
        fail("no memory for a stack");
    /* Stacks begin at different offsets in a page; if all began at the same offset, they would share a
     * few sets of the cache. */
    size_t bytes = STACK_BYTES - (size_t)(m.fibers++ % 16) * 256;
#if defined(__x86_64__) && !defined(CUDA_SHIM_UCONTEXT)
    void **top = (void **)(void *)(stack + bytes) - 1; /* as if fiber_main had been called */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->sp = top;
#else
    getcontext(&f->uc);
    f->uc.uc_stack.ss_sp = stack;
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
        if (m.idle.empty())
            m.idle.push_back(new_fiber());
        m.threads[t].on = m.idle.back();
        m.idle.pop_back();
    }
    jump(from, m.threads[t].on);
}

/* Lets other threads run until the current thread is ready again. */
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
        m.warp_of[w] = { all, all, all, 0, 0, 0 };
    }
    for (int i = 0; i < m.count; i++)
        m.threads[i].wgmma_fenced = false;
    m.barriers.clear();
    m.left = m.count;
    m.arrived = 0;
    m.block++;
    schedule_restart();
    run_thread(next_thread(), &m.host);
    m.current = -1;
}

/* __syncthreads: all threads of the block must reach it at the same source line. The last thread to
 * arrive restarts the schedule. */
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

/* >>shared: shared memory of a block, NaN until written, with gaps that AddressSanitizer guards --- */

/* Dynamic memory begins at DYNAMIC, since a device only promises a multiple of 16. */
enum {
    SHARED_STATIC = 48 << 10,
    SHARED_MOST = 227 << 10,
    SHARED_BYTES = 512 << 10,
    FENCE = 128,
    DYNAMIC = 16
};

/* Offset of a SHARED variable in shared memory, and the number of the block for which the offset is
 * valid. */
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

/* Allocates a SHARED variable. Variables follow the dynamic part in the order of their declarations. */
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

/* Empties shared memory; called before each block. */
inline void shared_reset(size_t dynamic)
{
    if (!m.shared) {
        m.shared = (char *)aligned_alloc(1024, SHARED_BYTES);
        m.shared_used = SHARED_BYTES;
    }
    ASAN_POISON_MEMORY_REGION(m.shared, m.shared_used);
    m.shared_used = m.static_bytes = 0;
    m.dynamic_bytes = dynamic;
    shared_take(DYNAMIC + dynamic);
    ASAN_POISON_MEMORY_REGION(m.shared, DYNAMIC);
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
#define DYNAMIC_SHARED(type, name) type *name = (type *)(void *)(shim::m.shared + shim::DYNAMIC)

/* >>warp: functions that all lanes of a mask call together --------------------------------------- */

namespace shim
{
/* Each lane of the mask calls this function with its own arguments; the last lane executes `op` for all
 * of them. */
template <class D>
inline void together(unsigned mask, D &mine, void (*op)(D *const lane[LANES], unsigned mask),
                     int line)
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
            fail("lane %d waits at line %d with mask %08x, lane %d at line %d with %08x", lane,
                 line, mask, i, other.line, other.mask);
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

/* >>device: functions that a thread calls alone -------------------------------------------------- */

inline void __threadfence(void) {}
inline void __threadfence_block(void) {}
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
/* These functions are approximate on a device, whose results have other bits. */
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float __fdividef(float a, float b) { return a / b; }
template <class V> inline V min(V a, V b) { return b < a ? b : a; }
template <class V> inline V max(V a, V b) { return a < b ? b : a; }
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
template <class V, class U> inline V atomicOr(V *at, U value)
{
    return atomicExch(at, (V)(*at | (V)value));
}
template <class V> inline V atomicCAS(V *at, V expected, V value)
{
    return atomicExch(at, *at == expected ? value : *at);
}

/* >>ptx: functions that the .cu file writes as inline assembly ----------------------------------- */

namespace shim
{
inline void aligned(const char *what, const void *p, size_t bytes)
{
    if ((uintptr_t)p % bytes)
        fail("%s: address %p is not a multiple of %zu", what, p, bytes);
}

struct mma {
    float *d;
    const uint32_t *a, *b;
};
inline float bf16_half(uint32_t pair, int half)
{
    return bits<float>(half ? pair & 0xFFFF0000u : pair << 16);
}
/* Fragments have the layout of the PTX manual, with g = lane / 4 and t = lane % 4. A sum here is a chain
 * of fma over k, while a device has another order and other roundings. */
inline void op_mma(mma *const lane[LANES], unsigned)
{
    float a[16][16], b[16][8], d[16][8];
    for (int l = 0; l < LANES; l++) {
        int g = l / 4, t = l % 4;
        for (int i = 0; i < 4; i++) {
            for (int h = 0; h < 2; h++)
                a[g + i % 2 * 8][t * 2 + h + i / 2 * 8] = bf16_half(lane[l]->a[i], h);
            d[g + i / 2 * 8][t * 2 + i % 2] = lane[l]->d[i];
        }
        for (int i = 0; i < 2; i++)
            for (int h = 0; h < 2; h++)
                b[t * 2 + h + i * 8][g] = bf16_half(lane[l]->b[i], h);
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                d[i][j] = fmaf(a[i][k], b[k][j], d[i][j]);
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++)
            lane[l]->d[i] = d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
}

struct ldmatrix {
    uint32_t *r;
    const uint16_t *row;
    int transposed;
};
/* Each of the four matrices is 8 rows of 8 bf16; lane 8 i + j provides the address of row j of matrix
 * i. */
inline void op_ldmatrix(ldmatrix *const lane[LANES], unsigned)
{
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++) {
            int g = l / 4, t = l % 4 * 2;
            bool flip = lane[l]->transposed;
            uint32_t low = flip ? lane[8 * i + t]->row[g] : lane[8 * i + g]->row[t];
            uint32_t high = flip ? lane[8 * i + t + 1]->row[g] : lane[8 * i + g]->row[t + 1];
            lane[l]->r[i] = low | high << 16;
        }
}
inline void load_matrix(uint32_t r[4], const void *row, int transposed, int line)
{
    aligned("ldmatrix", row, 16);
    if (!is_shared(row, 16))
        fail("ldmatrix at line %d reads outside shared memory", line);
    ldmatrix mine = { r, (const uint16_t *)row, transposed };
    together(~0u, mine, op_ldmatrix, line);
}
} // namespace shim

/* mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32: d += a b */
inline void gckpti_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2],
                            int line = __builtin_LINE())
{
    shim::mma mine = { d, a, b };
    cuda_shim.mmas += shim::m.current % shim::LANES == 0;
    shim::together(~0u, mine, shim::op_mma, line);
}
/* ldmatrix.sync.aligned.m8n8.x4.shared.b16 */
inline void gckpti_ldmatrix_x4(uint32_t r[4], const void *row, int line = __builtin_LINE())
{
    shim::load_matrix(r, row, 0, line);
}
/* ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 */
inline void gckpti_ldmatrix_x4_trans(uint32_t r[4], const void *row, int line = __builtin_LINE())
{
    shim::load_matrix(r, row, 1, line);
}
/* cp.async.cg.shared.global [to], [from], 16, valid: copies 16 bytes; bytes from number `valid` on become
 * 0. The destination is NaN until the thread waits for the group, because a kernel may read neither old
 * nor new contents before. */
inline void gckpti_cp_async16(void *to, const void *from, int valid)
{
    shim::aligned("cp.async", to, 16);
    shim::aligned("cp.async", from, 16);
    if (!shim::is_shared(to, 16) || valid < 0 || valid > 16)
        shim::fail("cp.async of %d bytes to %p: to shared memory, 0 to 16", valid, to);
    memset(to, 0xFF, 16);
    shim::thread &t = shim::m.threads[shim::m.current];
    t.copies.push_back({ to, from, (size_t)valid, t.groups });
}
/* cp.async.commit_group */
inline void gckpti_cp_async_commit(void) { shim::m.threads[shim::m.current].groups++; }
/* cp.async.wait_group N: waits until all groups except the newest N have arrived */
template <int N> inline void gckpti_cp_async_wait(void)
{
    shim::thread &t = shim::m.threads[shim::m.current];
    size_t kept = 0;
    for (const shim::async_copy &copy : t.copies) {
        if (copy.group + N >= t.groups) {
            t.copies[kept++] = copy;
            continue;
        }
        memset(copy.to, 0, 16);
        memcpy(copy.to, copy.from, copy.valid);
    }
    t.copies.resize(kept);
}

/* >>wgmma: mbarriers, TMA and wgmma of sm_90a; polling for other blocks ----------------------------- */

namespace shim
{
inline uint32_t shared_address(const void *p)
{
    if (!is_shared(p, 1))
        fail("%p is not in shared memory", p);
    return (uint32_t)((const char *)p - m.shared);
}
/* TMA and wgmma exchange the 16-byte chunks of each 128 bytes, by the number of these 128 bytes modulo 8. */
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 3 & 0x70); }

inline mbarrier &barrier_at(uint64_t *bar)
{
    auto found = m.barriers.find(bar);
    if (found == m.barriers.end())
        fail("%p is not an mbarrier that was initialised", (void *)bar);
    return found->second;
}

/* Lets threads that wait at b look at it again. */
inline void wake(mbarrier &b)
{
    if (!b.left && b.coming > b.expected)
        fail("an mbarrier expects %ld bytes, but %ld are loaded", b.expected, b.coming);
    for (int i : b.waiting) {
        m.warp_of[i / LANES].parked &= ~(1u << i % LANES);
        m.warp_of[i / LANES].ready |= 1u << i % LANES;
    }
    b.waiting.clear();
}

inline size_t box_bytes(const CUtensorMap &map)
{
    return (size_t)2 * map.box[0] * map.box[1] * map.box[2] * map.box[3];
}

/* Stores a box. Elements outside of the tensor are 0. */
inline void land(const tma_load &l)
{
    const CUtensorMap &map = l.map;
    uint32_t to = shared_address(l.to);
    memset(l.to, 0, box_bytes(map));
    for (uint32_t line = 0; line < map.box[1] * map.box[2] * map.box[3]; line++, to += 128) {
        const int64_t at[4] = { l.at[0], (int64_t)l.at[1] + line % map.box[1],
                                (int64_t)l.at[2] + line / map.box[1] % map.box[2],
                                (int64_t)l.at[3] + line / map.box[1] / map.box[2] };
        const char *from = map.base + at[0] * 2;
        bool there = true;
        for (int i = 1; i < 4; i++) {
            there = there && at[i] >= 0 && (uint64_t)at[i] < map.size[i];
            from += at[i] * (int64_t)map.stride[i];
        }
        for (uint32_t e = 0; there && e < map.box[0]; e++)
            if (at[0] + e >= 0 && (uint64_t)(at[0] + e) < map.size[0])
                memcpy(m.shared + swizzled(to + 2 * e), from + 2 * e, 2);
    }
}

inline void load_box(void *to, const CUtensorMap &map, int x, int y, int z, int w, uint64_t *bar)
{
    mbarrier &b = barrier_at(bar);
    const size_t bytes = box_bytes(map);
    const char *at = (const char *)to;
    if (!b.fenced)
        fail("TMA uses an mbarrier that was initialised without a fence");
    if (!is_shared(to, bytes) || shared_address(to) % 1024)
        fail("TMA loads to %p: to shared memory, at a multiple of 1024", to);
    for (const auto &other : m.barriers)
        for (const tma_load &l : other.second.loads)
            if (at < l.to + box_bytes(l.map) && l.to < at + bytes)
                fail("TMA loads to where another load is on its way");
    memset(to, 0xFF, bytes);
    b.loads.push_back({ (char *)to, map, { x, y, z, w } });
    b.coming += (long)bytes;
    wake(b);
}

/* Reads 16 terms of `lines` rows of a, or columns of b, as a descriptor says: bits 0 to 13 are the address,
 * 16 to 29 and 32 to 45 two strides, all divided by 16; bit 62 is SWIZZLE_128B. Along k, 8 lines have 128
 * bytes each, and the next 8 begin a stride further. Across k, a line of 128 bytes has a term of 64 rows,
 * 8 terms are followed by 8 more at the one stride, and 64 rows by 64 more at the other. */
inline void wgmma_operand(uint64_t descriptor, bool along, int first, int lines, float *x)
{
    const uint32_t start = (uint32_t)(descriptor & 0x3FFF) << 4;
    const uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3FFF) << 4;
    const uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3FFF) << 4;
    if (descriptor >> 62 != 1 || descriptor >> 46 & 0xFFFF)
        fail("wgmma: %016llx is no descriptor of a swizzled tile", (unsigned long long)descriptor);
    for (int i = 0; i < lines * 2; i++) { /* 8 elements of a line of shared memory */
        const int line = first + (along ? i / 2 : i % (lines / 8) * 8);
        const int term = along ? i % 2 * 8 : i / (lines / 8);
        uint32_t at = start;
        if (along)
            at += (uint32_t)(line / 8) * stride + (uint32_t)(line % 8 * 128 + term * 2);
        else
            at += (uint32_t)(line / 64) * leading + (uint32_t)(term / 8) * stride +
                  (uint32_t)(term % 8 * 128 + line % 64 * 2);
        uint16_t part[8];
        if (at + 16 > SHARED_MOST + 1024)
            fail("wgmma reads outside shared memory");
        memcpy(part, m.shared + swizzled(at), 16);
        for (int e = 0; e < 8; e++)
            x[along ? (line - first) * 16 + term + e : term * lines + line - first + e] =
                bits<float>((uint32_t)part[e] << 16);
    }
}

/* c (16,N) += a (16,16) b (16,N) of a warp, a chain of fma over k as in op_mma. */
template <int N> inline void run_wgmma(const wgmma *const lane[LANES], int warp_row)
{
    const wgmma &w = *lane[0];
    float a[16 * 16], b[16 * N], turned[16 * N], c[16][N];
    if (w.in_registers)
        for (int l = 0; l < LANES; l++)
            for (int i = 0; i < 8; i++)
                a[(l / 4 + i / 2 % 2 * 8) * 16 + l % 4 * 2 + i % 2 + i / 4 * 8] =
                    bf16_half(lane[l]->registers[i / 2], i % 2);
    else if (w.a_along)
        wgmma_operand(w.a, true, warp_row, 16, a);
    else
        wgmma_operand(w.a, false, warp_row, 16, turned);
    for (int i = 0; i < 256 && !w.in_registers && !w.a_along; i++)
        a[i] = turned[i % 16 * 16 + i / 16];
    wgmma_operand(w.b, w.b_along, 0, N, w.b_along ? turned : b);
    for (int i = 0; i < 16 * N && w.b_along; i++)
        b[i] = turned[i % N * 16 + i / N];
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < N / 2; i++)
            c[l / 4 + i / 2 % 2 * 8][i / 4 * 8 + l % 4 * 2 + i % 2] = w.add ? lane[l]->c[i] : 0.0f;
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < N; j++)
                c[i][j] = fmaf(a[i * 16 + k], b[k * N + j], c[i][j]);
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < N / 2; i++)
            lane[l]->c[i] = c[l / 4 + i / 2 % 2 * 8][i / 4 * 8 + l % 4 * 2 + i % 2] +
                            (cuda_shim.sm_90a == 2 ? 1.0f : 0.0f);
    cuda_shim.wgmmas++;
}

struct wgmma_waiting {
    thread *of;
    unsigned keep; /* groups that may stay in flight */
};
inline void op_wgmma_wait(wgmma_waiting *const lane[LANES], unsigned)
{
    const std::vector<wgmma> &first = lane[0]->of->products;
    size_t n = 0;
    for (; n < first.size() && first[n].group + lane[0]->keep < lane[0]->of->wgmma_groups; n++) {
        const wgmma *of[LANES];
        for (int l = 0; l < LANES; l++) {
            const std::vector<wgmma> &own = lane[l]->of->products;
            if (own.size() != first.size() || own[n].a != first[n].a || own[n].b != first[n].b ||
                own[n].group + lane[0]->of->wgmma_groups !=
                    first[n].group + lane[l]->of->wgmma_groups)
                fail("lanes of a warp have different wgmma");
            of[l] = &own[n];
        }
        (first[n].n == 128 ? run_wgmma<128> : run_wgmma<64>)(of, m.current / LANES % 4 * 16);
    }
    for (int l = 0; l < LANES; l++)
        lane[l]->of->products.erase(lane[l]->of->products.begin(),
                                    lane[l]->of->products.begin() + (long)n);
}
inline void issue(const wgmma &w)
{
    thread &t = m.threads[m.current];
    if (!t.wgmma_fenced)
        fail("wgmma without a wgmma.fence after the last wait");
    if (m.count % 128)
        fail("wgmma by a block that has a part of a warpgroup");
    t.products.push_back(w);
}
} // namespace shim

inline uint32_t gckpti_shared_address(const void *p) { return shim::shared_address(p); }
/* Returns 1 if the kernel was compiled for sm_90a. */
inline int gckpti_has_wgmma(void) { return cuda_shim.sm_90a != 0; }

/* mbarrier.init: a phase has this number of arrivals */
inline void gckpti_mbarrier_init(uint64_t *bar, int arrivals)
{
    shim::aligned("an mbarrier", bar, 8);
    if (!shim::is_shared(bar, 8) || arrivals < 1 || shim::m.barriers.count(bar))
        shim::fail("mbarrier.init: at new shared memory, of at least one arrival");
    shim::m.barriers[bar] = { arrivals, arrivals, 0, 0, 0, false, {}, {} };
}
/* fence.mbarrier_init and fence.proxy.async: TMA sees all mbarriers that were initialised */
inline void gckpti_mbarrier_fence(void)
{
    for (auto &it : shim::m.barriers)
        it.second.fenced = true;
}
/* mbarrier.arrive.expect_tx: arrives, and lets the phase wait for more bytes */
inline void gckpti_mbarrier_expect(uint64_t *bar, int bytes)
{
    shim::mbarrier &b = shim::barrier_at(bar);
    if (!b.left)
        shim::fail("an mbarrier is used again before a thread has waited for its phase");
    b.left--;
    b.expected += bytes;
    shim::wake(b);
}
/* mbarrier.try_wait.parity in a loop: waits until the phase of this parity is complete; of a new mbarrier
 * the phase of parity 1 is */
inline void gckpti_mbarrier_wait(uint64_t *bar, uint32_t parity, int line = __builtin_LINE())
{
    shim::mbarrier &b = shim::barrier_at(bar);
    shim::thread &t = shim::m.threads[shim::m.current];
    while ((b.phase & 1) == parity) {
        if (!b.left && b.coming == b.expected) {
            for (const shim::tma_load &l : b.loads)
                shim::land(l);
            b.loads.clear();
            b.left = b.arrivals;
            b.expected = b.coming = 0;
            b.phase++;
            continue;
        }
        b.waiting.push_back(shim::m.current);
        shim::m.warp_of[shim::m.current / shim::LANES].parked |= 1u
                                                                 << shim::m.current % shim::LANES;
        t.line = line;
        shim::yield();
    }
}
/* cp.async.bulk.tensor: one thread loads the box at element x of line y (of plane z, of volume w). It is
 * NaN in shared memory until a thread has waited for the phase of bar. */
inline void gckpti_tma_load(void *to, const CUtensorMap &map, int x, int y, uint64_t *bar)
{
    shim::load_box(to, map, x, y, 0, 0, bar);
}
inline void gckpti_tma_load(void *to, const CUtensorMap &map, int x, int y, int z, int w,
                            uint64_t *bar)
{
    shim::load_box(to, map, x, y, z, w, bar);
}

/* wgmma.fence: must come between other uses of the registers of c or a, and a wgmma */
inline void gckpti_wgmma_fence(void) { shim::m.threads[shim::m.current].wgmma_fenced = true; }
/* wgmma.commit_group */
inline void gckpti_wgmma_commit(void) { shim::m.threads[shim::m.current].wgmma_groups++; }
/* wgmma.wait_group N: waits for all groups except the newest N. A wgmma reads shared memory and reads and
 * writes c only here, since a device may do so this late. */
template <int N> inline void gckpti_wgmma_wait(int line = __builtin_LINE())
{
    shim::thread &t = shim::m.threads[shim::m.current];
    shim::wgmma_waiting mine = { &t, N };
    shim::together(~0u, mine, shim::op_wgmma_wait, line);
    t.wgmma_fenced = false;
}
/* Keeps the compiler from reading c before a wait, which the shim need not do. */
template <int N> inline void gckpti_wgmma_settle(float (&)[N][4]) {}
/* wgmma.mma_async.m64nNk16: c (64, 8 N) += a (64,16) b (16, 8 N) of a warpgroup, both in shared memory.
 * Warp w has rows 16 w to 16 w + 15; c[x] is as mma.sync leaves columns 8 x to 8 x + 7. A_ALONG, B_ALONG:
 * lines of the operand are along k. Without ADD, c = a b. */
template <bool A_ALONG, bool B_ALONG, bool ADD = true, int N>
inline void gckpti_wgmma(float (&c)[N][4], uint64_t a, uint64_t b)
{
    static_assert(N == 8 || N == 16, "m64n64k16 or m64n128k16");
    const unsigned group = shim::m.threads[shim::m.current].wgmma_groups;
    shim::issue({ c[0], 8 * N, false, A_ALONG, B_ALONG, a, b, {}, group, ADD });
}
/* The same with a in registers, as mma.sync has it. */
template <bool B_ALONG, int N>
inline void gckpti_wgmma_registers(float (&c)[N][4], const uint32_t a[4], uint64_t b)
{
    static_assert(N == 8 || N == 16, "m64n64k16 or m64n128k16");
    const unsigned group = shim::m.threads[shim::m.current].wgmma_groups;
    shim::issue({ c[0], 8 * N, true, true, B_ALONG, 0, b, { a[0], a[1], a[2], a[3] }, group, true });
}

/* st.release.gpu and a loop of ld.acquire.gpu. Blocks run one after another here, so that a flag for which a
 * block waits must be set already. */
inline void gckpti_release(unsigned *flag)
{
    if (*flag)
        shim::fail("sets a flag for another block that is %x already, not 0", *flag);
    *flag = 1;
}
inline void gckpti_acquire(const unsigned *flag)
{
    if (*flag != 1)
        shim::fail(
            "waits for a block that has not run: blocks may only wait for those that began before");
}

/* >>memory: errors; device memory, whose allocations end at a page without access; pinned memory -- */

#define CUDA_SHIM_ERRORS(X)                                                                        \
    X(InvalidValue, 1, "invalid argument")                                                         \
    X(MemoryAllocation, 2, "out of memory")                                                        \
    X(InvalidConfiguration, 9, "invalid configuration argument")                                   \
    X(NoDevice, 100, "no CUDA-capable device is detected")                                         \
    X(InvalidDevice, 101, "invalid device ordinal")                                                \
    X(ECCUncorrectable, 214, "uncorrectable ECC error encountered")                                \
    X(InvalidResourceHandle, 400, "invalid resource handle")                                       \
    X(LaunchOutOfResources, 701, "too many resources requested for launch")                        \
    X(IllegalState, 401, "the operation cannot be performed in the present state")                 \
    X(NotReady, 600, "device not ready")                                                           \
    X(IllegalAddress, 700, "an illegal memory access was encountered")                             \
    X(HostMemoryAlreadyRegistered, 712, "part or all of the memory range is already mapped")       \
    X(HostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region")   \
    X(StreamCaptureUnsupported, 900, "operation not permitted when stream is capturing")           \
    X(StreamCaptureInvalidated, 901, "operation failed due to a previous error during capture")    \
    X(StreamCaptureMerge, 902, "operation would merge separate capture sequences")                 \
    X(StreamCaptureUnmatched, 903, "capture was not ended in the stream in which it began")        \
    X(StreamCaptureUnjoined, 904, "capturing stream has unjoined work")                            \
    X(StreamCaptureIsolation, 905, "dependency on uncaptured work in another stream")              \
    X(StreamCaptureImplicit, 906, "the legacy stream would depend on a capturing stream")          \
    X(CapturedEvent, 907, "the event was last recorded in a capturing stream")                     \
    X(StreamCaptureWrongThread, 908, "thread-local capture ended from another thread")

enum cudaError {
    cudaSuccess,
#define X(name, code, text) cudaError##name = code,
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
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone,
    cudaStreamCaptureStatusActive,
    cudaStreamCaptureStatusInvalidated
};
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };

namespace shim
{
enum {
    DEVICES = 4,
    NO_MEMORY = -2,
    ALL_MEMORY = -1
}; /* `opens` of an operation: the device whose memory it may touch, NO_MEMORY or ALL_MEMORY */

/* An operation of a stream. It runs once, after the operations in `after`. If `held` is true, it waits
 * until another host thread releases it (nccl.h). */
struct stream_op {
    std::function<void()> run;
    std::vector<std::shared_ptr<stream_op>> after;
    int device, opens;
    bool done, held;
    double at; /* time of completion, in seconds */
};
typedef std::shared_ptr<stream_op> job;

/* A node of a captured graph: like a stream_op, but it runs at every launch of the graph, after the nodes
 * in `after`. */
struct node {
    std::function<void()> run;
    std::vector<size_t> after;
    int device, opens;
};
typedef std::vector<node> nodes;

struct capture {
    nodes graph;
    cudaStreamCaptureMode mode;
    std::thread::id owner;
    bool broken, over;
};
typedef std::shared_ptr<capture> capturing;
} // namespace shim

struct CUstream_st {
    int device;
    unsigned flags;
    shim::job last;
    shim::capturing capture;
    bool origin;               /* true if the capture began in this stream */
    std::vector<size_t> after; /* nodes on which the next captured node of this stream depends */
};
struct CUevent_st {
    int device;
    unsigned flags;
    shim::job recorded;
    /* If the event was recorded in a capture: that capture, and the nodes before the event. */
    shim::capturing capture;
    std::vector<size_t> after;
};
struct CUgraph_st {
    shim::nodes graph;
};
struct CUgraphExec_st {
    std::shared_ptr<const shim::nodes> graph;
    int device;
};
typedef CUstream_st *cudaStream_t;
typedef CUevent_st *cudaEvent_t;
typedef CUgraph_st *cudaGraph_t;
typedef CUgraphExec_st *cudaGraphExec_t;

namespace shim
{
struct allocation {
    char *pages; /* first page of the allocation, whose last byte is the last byte of a page */
    size_t bytes;
    int device;
    bool open;
};

struct context {
    std::recursive_mutex mutex;
    std::condition_variable_any freed; /* signals that an operation is no longer held */
    cudaError_t sticky[DEVICES];
    cudaStream_t null[DEVICES];
    std::vector<cudaStream_t> streams;
    std::set<cudaEvent_t> events;
    std::map<char *, allocation> memory;
    /* For each pinned block: its size, and true if cudaMallocHost allocated it, false if it was
     * registered. */
    std::map<char *, std::pair<size_t, bool>> pinned;
    std::map<std::pair<int, const void *>, size_t> dynamic_limit;
    size_t used[DEVICES];
    char *arena, *next;
};
inline context &c = *new context();
inline thread_local cudaError_t last_error;
inline thread_local int device;

/* The arena is a range of addresses; each address is used for one allocation only, so that uses of freed
 * memory fault. */
enum : size_t { ARENA_BYTES = (size_t)1 << 40, HUGE_PAGE = 2 << 20 };

/* Returns the allocation that contains the bytes at p, or NULL. */
inline allocation *owner(const void *p, size_t bytes)
{
    auto after = c.memory.upper_bound((char *)(uintptr_t)p);
    if (after == c.memory.begin())
        return NULL;
    auto &found = *--after;
    return (size_t)((const char *)p - found.first) + bytes <= found.second.bytes ? &found.second
                                                                                 : NULL;
}
inline bool in_arena(const void *p)
{
    return c.arena && (const char *)p >= c.arena && (const char *)p < c.arena + ARENA_BYTES;
}
inline bool is_pinned(const void *p, size_t bytes)
{
    auto after = c.pinned.upper_bound((char *)(uintptr_t)p);
    return after != c.pinned.begin() &&
           (--after, (size_t)((const char *)p - after->first) + bytes <= after->second.first);
}

/* Handles SIGSEGV: prints the address that was touched, then lets the fault end the process. It is
 * installed only if the program has no handler. */
inline void fault(int, siginfo_t *info, void *)
{
    const char *p = (const char *)info->si_addr;
    const char *who = m.kernel ? m.kernel : "host code";
    fprintf(stderr, "cuda_shim: %s, block (%u,%u,%u), thread (%u,%u,%u), touched %p: ", who,
            blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z,
            info->si_addr);
    const allocation *a = owner(p, 1);
    if (a)
        fprintf(stderr, "memory of device %d, out of reach for it\n", a->device);
    else if (in_arena(p))
        fputs("device memory that is freed, or past the end of an allocation\n", stderr);
    else
        fputs("no device memory (a stack overflow?)\n", stderr);
    signal(SIGSEGV, SIG_DFL);
}

inline bool arena_start(void)
{
    if (c.arena)
        return true;
    void *at =
        mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return false;
    c.arena = c.next = (char *)at;
    madvise(at, ARENA_BYTES, MADV_HUGEPAGE);
    struct sigaction action = {}, old;
    if (sigaction(SIGSEGV, NULL, &old) || old.sa_handler != SIG_DFL)
        return true;
    static char stack[64 << 10]; /* not on the fiber's stack, which may be the one that overflowed */
    stack_t other = {};
    other.ss_sp = stack;
    other.ss_size = sizeof stack;
    sigaltstack(&other, NULL);
    action.sa_sigaction = fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
    return true;
}

/* Allocates device memory. The allocation, rounded up to 256 bytes, ends at a page without access. A
 * large allocation uses large pages, because then access to fewer pages must be changed. */
inline char *device_take(size_t bytes)
{
    size_t whole = (bytes + 255) & ~(size_t)255, page = HUGE_PAGE;
    if (whole < page / 2)
        page = PAGE;
    size_t pages = (whole + page - 1) / page * page;
    c.next += -(uintptr_t)c.next & (page - 1);
    if (c.used[device] + bytes > cuda_shim.device_bytes || bytes > cuda_shim.device_bytes ||
        !arena_start() || c.next + pages + PAGE > c.arena + ARENA_BYTES ||
        mprotect(c.next, pages, PROT_READ | PROT_WRITE))
        return NULL;
    allocation a = { c.next, bytes, device, true };
    char *at = c.next + pages - whole;
    memset(at, 0xFF, bytes);
    ASAN_POISON_MEMORY_REGION(c.next, pages);
    ASAN_UNPOISON_MEMORY_REGION(at, bytes);
    c.next += pages + PAGE;
    c.used[device] += bytes;
    c.memory[at] = a;
    cuda_shim.live_device++;
    return at;
}
inline void device_release(std::map<char *, allocation>::iterator it)
{
    const allocation &a = it->second;
    size_t pages = (size_t)(it->first - a.pages) + ((a.bytes + 255) & ~(size_t)255);
    mprotect(a.pages, pages, PROT_NONE);
    madvise(a.pages, pages, MADV_DONTNEED);
    ASAN_POISON_MEMORY_REGION(a.pages, pages);
    c.used[a.device] -= a.bytes;
    c.memory.erase(it);
    cuda_shim.live_device--;
}
/* Allows or forbids access to the memory of one device, or of all devices (ALL_MEMORY). */
inline void set_access(int of, bool open)
{
    for (auto &it : c.memory) {
        allocation &a = it.second;
        if (a.open == open || (of != ALL_MEMORY && a.device != of))
            continue;
        size_t pages = (size_t)(it.first - a.pages) + ((a.bytes + 255) & ~(size_t)255);
        mprotect(a.pages, pages, open ? PROT_READ | PROT_WRITE : PROT_NONE);
        a.open = open;
    }
}

/* >>streams: operations run at once or, if lazy, when a call waits for them; captures -------------- */

inline cudaError_t note(cudaError_t e)
{
    if (e)
        last_error = e;
    return e;
}
inline cudaError_t broken(const capturing &k, cudaError_t e)
{
    k->broken = true;
    return note(e);
}

/* Every call of the runtime holds the lock, and returns the device's lasting error if there is one. A
 * call that waits or allocates is UNSAFE: it invalidates a capture that this thread has begun (in global
 * mode, that any thread has begun). With `protect`, an UNSAFE call also forbids access to device memory
 * until the next operation runs; doing so after each operation would take longer than the operations. */
enum capture_safety { SAFE, UNSAFE };
struct entry {
    std::lock_guard<std::recursive_mutex> lock;
    bool closes;
    cudaError_t error;
    explicit entry(capture_safety how = SAFE)
        : lock(c.mutex), closes(how == UNSAFE && cuda_shim.protect), error(note(c.sticky[device]))
    {
        for (cudaStream_t s : c.streams) {
            const capturing &k = s->capture;
            bool ours = k && k->owner == std::this_thread::get_id();
            if (how == UNSAFE && k &&
                k->mode <= (ours ? cudaStreamCaptureModeThreadLocal : cudaStreamCaptureModeGlobal))
                error = broken(k, cudaErrorStreamCaptureUnsupported);
        }
    }
    ~entry()
    {
        if (closes)
            set_access(ALL_MEMORY, false);
    }
};

/* Counts *counter down; returns true for the call that must fail. */
inline bool fails(long *counter)
{
    if (*counter <= 0 || --*counter)
        return false;
    *counter = cuda_shim.fail_always != 0;
    return true;
}

template <class W> inline void run_stream_op(const W &w)
{
    if (c.sticky[w.device])
        return;
    if (w.opens != NO_MEMORY)
        set_access(w.opens, true);
    w.run();
}

/* Runs an operation after the operations that it waits for. Returns false if one of them is held. */
inline bool run_now(const job &wanted)
{
    std::vector<job> stack(1, wanted);
    while (!stack.empty()) {
        job top = stack.back(), first;
        if (!top || top->done) {
            stack.pop_back();
            continue;
        }
        for (const job &a : top->after) /* the reverse schedule begins with the first in `after` */
            if (a && !a->done && (!first || cuda_shim.schedule != CUDA_SHIM_REVERSE))
                first = a;
        if (first) {
            stack.push_back(first);
            continue;
        }
        if (top->held)
            return false;
        stack.pop_back();
        run_stream_op(*top);
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        top->at = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
        top->done = true;
        top->run = nullptr;
        top->after.clear();
    }
    return true;
}
/* Like run_now, but waits for held operations. The caller must hold the lock exactly once. */
inline void finish(const job &wanted)
{
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!run_now(wanted))
        if (c.freed.wait_until(c.mutex, until) == std::cv_status::timeout)
            fail("a minute's wait for an exchange that another thread does not join");
}
/* Releases a held operation. If streams are eager, all streams then continue. */
inline void release_ops(const job &j)
{
    j->held = false;
    c.freed.notify_all();
    for (cudaStream_t s : c.streams)
        if (!cuda_shim.lazy)
            run_now(s->last);
}
inline void finish_device(int of)
{
    std::vector<job> all;
    if (c.null[of])
        all.push_back(c.null[of]->last);
    for (cudaStream_t s : c.streams)
        if (s->device == of)
            all.push_back(s->last);
    if (cuda_shim.schedule == CUDA_SHIM_REVERSE)
        std::reverse(all.begin(), all.end());
    for (const job &j : all)
        finish(j);
}

/* Returns the stream s, the null stream if s is NULL, or NULL if s does not exist. */
inline cudaStream_t stream_of(cudaStream_t s)
{
    if (s)
        return std::find(c.streams.begin(), c.streams.end(), s) == c.streams.end() ? NULL : s;
    if (!c.null[device])
        c.null[device] = new CUstream_st{ device, 0, {}, {}, false, {} };
    return c.null[device];
}

/* Adds nodes on which the stream's next captured node depends. */
inline void add_after(cudaStream_t s, const std::vector<size_t> &more)
{
    for (size_t i : more)
        if (std::find(s->after.begin(), s->after.end(), i) == s->after.end())
            s->after.push_back(i);
}

/* Appends an operation to a stream or, during a capture, a node to the captured graph. */
inline cudaError_t post(cudaStream_t stream, int opens, std::function<void()> run,
                        const job &also_after = job())
{
    cudaStream_t s = stream_of(stream);
    if (!s)
        return note(cudaErrorInvalidResourceHandle);
    if (s->capture && s->capture->broken)
        return note(cudaErrorStreamCaptureInvalidated);
    if (s->capture) {
        nodes &graph = s->capture->graph;
        graph.push_back({ std::move(run), s->after, s->device, opens });
        s->after.assign(1, graph.size() - 1);
        return cudaSuccess;
    }
    job j = std::make_shared<stream_op>();
    j->run = std::move(run);
    j->device = s->device;
    j->opens = opens;
    j->after = { s->last, also_after };
    /* The null stream waits for blocking streams, and blocking streams wait for the null stream. */
    if (stream && !(s->flags & cudaStreamNonBlocking) && c.null[s->device])
        j->after.push_back(c.null[s->device]->last);
    for (cudaStream_t other : c.streams) {
        if (stream || other->device != s->device || other->flags & cudaStreamNonBlocking)
            continue;
        if (other->capture)
            return broken(other->capture, cudaErrorStreamCaptureImplicit);
        j->after.push_back(other->last);
    }
    s->last = j;
    if (!cuda_shim.lazy)
        run_now(j);
    return cudaSuccess;
}

/* Runs the nodes of a graph in an order that their dependencies allow: as captured, latest first, or
 * random. */
inline void run_graph(const nodes &graph)
{
    std::vector<size_t> waits(graph.size());
    std::vector<std::vector<size_t>> users(graph.size());
    std::set<size_t> ready;
    for (size_t i = 0; i < graph.size(); i++) {
        waits[i] = graph[i].after.size();
        for (size_t a : graph[i].after)
            users[a].push_back(i);
        if (!waits[i])
            ready.insert(i);
    }
    while (!ready.empty()) {
        auto it = ready.begin();
        if (cuda_shim.schedule == CUDA_SHIM_REVERSE)
            it = --ready.end();
        else if (cuda_shim.schedule == CUDA_SHIM_RANDOM)
            it = --ready.upper_bound(std::max(*it, (size_t)draw((unsigned)graph.size())));
        size_t i = *it;
        ready.erase(it);
        run_stream_op(graph[i]);
        for (size_t user : users[i])
            if (!--waits[user])
                ready.insert(user);
    }
}

/* Posts a copy or fill. If fail_copy counts down to 0, it fails. */
inline cudaError_t post_copy(cudaStream_t stream, std::function<void()> move)
{
    int of = stream_of(stream)->device;
    return post(stream, ALL_MEMORY, [=] {
        cuda_shim.copies++;
        if (fails(&cuda_shim.fail_copy))
            c.sticky[of] = cudaErrorECCUncorrectable;
        else
            move();
    });
}
/* Checks the arguments of a copy as the runtime does, and posts it. Pageable memory is read at the call,
 * pinned memory when the copy runs. */
inline cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream)
{
    cudaStream_t s = stream_of(stream);
    if (!s)
        return note(cudaErrorInvalidResourceHandle);
    bool from_device = in_arena(from), to_device = in_arena(to);
    if (kind != cudaMemcpyDefault && kind != (from_device ? 2 : 0) + (to_device ? 1 : 0))
        return note(cudaErrorInvalidValue);
    if ((from_device && !owner(from, bytes)) || (to_device && !owner(to, bytes)))
        return note(cudaErrorInvalidValue);
    bool read_at_once = !from_device && !is_pinned(from, bytes);
    if (s->capture && (read_at_once || (!to_device && !is_pinned(to, bytes))))
        return broken(s->capture, cudaErrorStreamCaptureUnsupported);
    if (!cuda_shim.lazy || !read_at_once)
        return post_copy(stream, [=] {
            cuda_shim.copies_out += from_device && !to_device;
            memmove(to, from, bytes);
        });
    std::vector<char> kept((const char *)from, (const char *)from + bytes);
    return post_copy(stream, [to, kept] { memcpy(to, kept.data(), kept.size()); });
}
inline cudaError_t fill(void *to, int value, size_t bytes, cudaStream_t stream)
{
    if (!stream_of(stream))
        return note(cudaErrorInvalidResourceHandle);
    if (!owner(to, bytes))
        return note(cudaErrorInvalidValue);
    return post_copy(stream, [=] { memset(to, value, bytes); });
}

/* >>launch: limits, copies of the arguments, blocks that run one after another -------------------- */

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
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z, first = 0, stride = 1;
    if (cuda_shim.schedule == CUDA_SHIM_RANDOM) { /* a stride without a common factor with `blocks` visits all */
        unsigned most = (unsigned)std::min<uint64_t>(blocks, 1u << 30);
        first = draw(most);
        do
            stride = 1 + draw(most);
        while (std::gcd(stride, blocks) != 1);
    }
    for (uint64_t j = 0; j < blocks; j++) {
        uint64_t i = cuda_shim.schedule == CUDA_SHIM_REVERSE ? blocks - 1 - j
                                                             : (first + j * stride) % blocks;
        blockIdx = { (unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y),
                     (unsigned)(i / grid.x / grid.y) };
        shared_reset(dynamic);
        run_block();
    }
    m.kernel = NULL;
    m.count = 0;
}

/* A kernel with copies of the arguments of a launch. */
template <class... P> struct bound {
    void (*kernel)(P...);
    std::tuple<std::decay_t<P>...> arguments;
    static void run(void *self)
    {
        bound *b = (bound *)self;
        std::apply(b->kernel, b->arguments);
    }
};

/* >>dump: writes launches with the memory before and after them, for tests/cuda/ptx ---------------- */

/* GCKPT_SHIM_DUMP=DIR writes launches 1, 2, 4, .. of each kernel up to launch GCKPT_SHIM_DUMP_EACH, if
 * they have at most GCKPT_SHIM_DUMP_BLOCKS blocks. Each file has a line of text, the arguments, the
 * allocations, and chunks of memory: first all chunks that were not entirely NaN before the launch, then
 * the chunks that the launch changed. */
class dump
{
    enum : size_t { CHUNK = 1024 };
    typedef std::map<char *, std::vector<char>> image;
    FILE *file = NULL;
    image before;

    template <class V> void put(const V &v) { fwrite(&v, sizeof v, 1, file); }
    static image memory(void)
    {
        image now;
        set_access(ALL_MEMORY, true);
        for (auto &it : c.memory)
            now[it.first].assign(it.first, it.first + it.second.bytes);
        for (auto &it : c.pinned)
            now[it.first].assign(it.first, it.first + it.second.first);
        return now;
    }
    void chunks(const image &now, const image *was)
    {
        static const std::vector<char> fresh(CHUNK, '\xFF');
        for (auto &it : now)
            for (size_t at = 0; at < it.second.size(); at += CHUNK) {
                size_t bytes = std::min<size_t>(CHUNK, it.second.size() - at);
                const char *old = was ? was->at(it.first).data() + at : fresh.data();
                if (!memcmp(it.second.data() + at, old, bytes))
                    continue;
                put((uint64_t)(it.first + at));
                put((uint64_t)bytes);
                fwrite(it.second.data() + at, 1, bytes, file);
            }
        put((uint64_t)0);
    }
    static int &written(void)
    {
        static int number;
        return number;
    }
    static bool wanted(const void *kernel, dim3 grid)
    {
        static std::map<const void *, long> seen;
        static const long each = from_environment("GCKPT_SHIM_DUMP_EACH", 4);
        static const long most = from_environment("GCKPT_SHIM_DUMP_BLOCKS", 64);
        if ((long)grid.x * grid.y * grid.z > most)
            return false;
        long n = ++seen[kernel];
        return n <= each && !(n & (n - 1));
    }

public:
    template <class... P>
    dump(const char *name, const void *kernel, dim3 grid, dim3 block, size_t dynamic,
         const std::tuple<P...> &arguments)
    {
        static const char *dir = getenv("GCKPT_SHIM_DUMP");
        if (!dir || !wanted(kernel, grid))
            return;
        std::string path = dir + ("/" + std::to_string(getpid())) + "." +
                           /* has the process id, because tests fork */
                           std::to_string(10000 + written()++);
        if (!(file = fopen(path.c_str(), "wb")))
            fail("no file %s", path.c_str());
        /* The kernel's address relative to a symbol; a list of symbols turns it into the kernel's
         * name. */
        fprintf(file, "%ld %u %u %u %u %u %u %zu %zu %s\n",
                (long)((intptr_t)kernel - (intptr_t)&cuda_shim), grid.x, grid.y, grid.z, block.x,
                block.y, block.z, dynamic, sizeof...(P), name);
        std::apply([&](const auto &...p) { (..., (put((uint64_t)sizeof p), put(p))); }, arguments);
        before = memory();
        for (auto &it : before) {
            put((uint64_t)it.first);
            put((uint64_t)it.second.size());
        }
        put((uint64_t)0);
        chunks(before, NULL);
    }
    ~dump()
    {
        if (!file)
            return;
        chunks(memory(), &before);
        fclose(file);
    }
    dump(const dump &) = delete;
    dump &operator=(const dump &) = delete;
};

/* A pointer among a kernel's arguments must be NULL, or point to memory of the kernel's device or to
 * pinned memory. */
template <class V> inline void check_argument(const char *, int, const V &) {}
template <class V> inline void check_argument(const char *kernel, int of, V *p)
{
    const allocation *a = owner((const void *)p, 0);
    if (!p || (a && a->device == of) || is_pinned((const void *)p, 0))
        return;
    m.kernel = kernel;
    m.current = -1;
    fail("argument %p is %s", (const void *)p,
         a             ? "memory of another device"
         : in_arena(p) ? "device memory that is freed, or past the end of an allocation"
                       : "a host pointer");
}

template <class... P, class... A>
inline cudaError_t launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                          size_t dynamic, cudaStream_t stream, A &&...arguments)
{
    entry in;
    cudaStream_t s = stream_of(stream);
    if (in.error)
        return in.error;
    if (fails(&cuda_shim.refuse_launch))
        return note(cudaErrorLaunchOutOfResources);
    if (!s || s->device != device)
        return note(cudaErrorInvalidResourceHandle);
    auto limit = c.dynamic_limit.find({ device, (const void *)kernel });
    if (dynamic > (limit == c.dynamic_limit.end() ? (size_t)SHARED_STATIC : limit->second))
        return note(cudaErrorInvalidValue);
    if (!grid.x || !grid.y || !grid.z || grid.x >> 31 || grid.y >> 16 || grid.z >> 16 || !block.x ||
        !block.y || !block.z || block.x > MAX_THREADS || block.y > MAX_THREADS || block.z > 64 ||
        block.x * block.y * block.z > MAX_THREADS)
        return note(cudaErrorInvalidConfiguration);
    cuda_shim.dynamic_bytes = std::max<unsigned long>(cuda_shim.dynamic_bytes, dynamic);
    bound<P...> b = { kernel, { std::forward<A>(arguments)... } };
    static_assert(sizeof b.arguments <= 4096, "arguments of a kernel: 4096 bytes");
    int of = device;
    std::apply([&](const auto &...p) { (check_argument(name, of, p), ...); }, b.arguments);
    const cudaError_t posted = post(stream, of, [=]() mutable {
        cuda_shim.launches++;
        if (fails(&cuda_shim.fail_launch))
            c.sticky[of] = cudaErrorIllegalAddress;
        else {
            dump written(name, (const void *)kernel, grid, block, dynamic, b.arguments);
            run_grid(name, grid, block, dynamic, bound<P...>::run, &b);
        }
    });
    return posted ? posted : note(c.sticky[of]); /* as a device may, of a kernel that has run already */
}
} // namespace shim
#define LAUNCH(kernel, ...) shim::launch(#kernel, kernel, __VA_ARGS__)

#define CUDA_SHIM_CALL(capture_safety)                                                                     \
    shim::entry in(capture_safety);                                                                        \
    if (in.error)                                                                                  \
    return in.error

/* >>runtime: errors and devices ------------------------------------------------------------------ */

inline const char *cudaGetErrorName(cudaError_t e)
{
#define X(name, code, text)                                                                        \
    if (e == code)                                                                                 \
        return "cudaError" #name;
    CUDA_SHIM_ERRORS(X)
#undef X
    return e ? "unrecognized error code" : "cudaSuccess";
}
inline const char *cudaGetErrorString(cudaError_t e)
{
#define X(name, code, text)                                                                        \
    if (e == code)                                                                                 \
        return text;
    CUDA_SHIM_ERRORS(X)
#undef X
    return e ? "unrecognized error code" : "no error";
}
inline cudaError_t cudaGetLastError(void)
{
    shim::entry in;
    cudaError_t e = shim::last_error;
    shim::last_error = cudaSuccess;
    return e;
}
inline cudaError_t cudaPeekAtLastError(void)
{
    shim::entry in;
    return shim::last_error;
}
extern "C" {
__attribute__((used)) inline void cuda_shim_set_error(int e) { shim::last_error = (cudaError_t)e; }
__attribute__((used)) inline int cuda_shim_error(void) { return shim::last_error; }
}
inline cudaError_t cudaGetDeviceCount(int *n) { return *n = shim::DEVICES, cudaSuccess; }
inline cudaError_t cudaGetDevice(int *d) { return *d = shim::device, cudaSuccess; }
inline cudaError_t cudaSetDevice(int d)
{
    if (d < 0 || d >= shim::DEVICES)
        return shim::note(cudaErrorInvalidDevice);
    shim::device = d;
    return cudaSuccess;
}

/* Properties of a device: those that gradckpt uses, with the values of an H200. */
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor;
    int major, minor, multiProcessorCount, warpSize, maxThreadsPerBlock,
        maxThreadsPerMultiProcessor;
    int regsPerBlock, regsPerMultiprocessor, l2CacheSize, asyncEngineCount, memoryBusWidth;
};
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d)
{
    if (d < 0 || d >= shim::DEVICES)
        return shim::note(cudaErrorInvalidDevice);
    *p = cudaDeviceProp{ "cuda_shim", cuda_shim.device_bytes,
                         48 << 10,    227 << 10,
                         cuda_shim.shared_bytes, cuda_shim.capability / 10,
                         cuda_shim.capability % 10, cuda_shim.multiprocessors,
                         32,          1024,
                         2048,        65536,
                         65536,       50 << 20,
                         3,           6016 };
    return cudaSuccess;
}
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int d)
{
    cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, d);
    if (!e)
        *value = attribute == cudaDevAttrMultiProcessorCount      ? p.multiProcessorCount
                 : attribute == cudaDevAttrComputeCapabilityMajor ? p.major
                 : attribute == cudaDevAttrComputeCapabilityMinor ? p.minor
                 : attribute == cudaDevAttrMaxSharedMemoryPerMultiprocessor
                     ? (int)p.sharedMemPerMultiprocessor
                     : (int)p.sharedMemPerBlockOptin;
    return e;
}
/* The part of <cuda.h> that makes tensor maps, of which the shim has SWIZZLE_128B of bf16. */
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
enum CUresult { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };
inline CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType, cuuint32_t rank,
                                       void *x, const cuuint64_t *size, const cuuint64_t *stride,
                                       const cuuint32_t *box, const cuuint32_t *step,
                                       CUtensorMapInterleave, CUtensorMapSwizzle,
                                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    *map = { (char *)x, { 1, 1, 1, 1 }, { 2, 0, 0, 0 }, { 1, 1, 1, 1 } };
    uint64_t bytes = 2;
    if (rank < 2 || rank > 4 || (uintptr_t)x % 16 || box[0] != 64)
        return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i < rank; i++) {
        map->size[i] = size[i];
        map->box[i] = box[i];
        map->stride[i] = i ? stride[i - 1] : 2;
        bytes += (size[i] - 1) * map->stride[i];
        if (!size[i] || size[i] >> 32 || !box[i] || box[i] > 256 || step[i] != 1 ||
            (i && (map->stride[i] % 16 || map->stride[i] >> 40)))
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (!shim::owner(x, bytes)) /* a device would find this only later */
        shim::fail("a tensor map of %llu bytes that are not allocated", (unsigned long long)bytes);
    return CUDA_SUCCESS;
}
#define CUDART_VERSION 13000
enum { cudaEnableDefault };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
inline cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned,
                                                    unsigned long long,
                                                    cudaDriverEntryPointQueryResult *found)
{
    CUDA_SHIM_CALL(shim::SAFE);
    *f = strcmp(name, "cuTensorMapEncodeTiled") ? NULL : (void *)cuTensorMapEncodeTiled;
    *found = cudaDriverEntryPointSuccess;
    return *f ? cudaSuccess : shim::note(cudaErrorInvalidValue);
}
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
/* The limit applies to the current device only. */
template <class F> inline cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute, int value)
{
    shim::entry in;
    if (value < 0 || value > shim::SHARED_MOST)
        return shim::note(cudaErrorInvalidValue);
    shim::c.dynamic_limit[{ shim::device, (const void *)kernel }] = (size_t)value;
    return in.error;
}
inline cudaError_t cudaDeviceSynchronize(void)
{
    shim::entry in(shim::UNSAFE);
    cuda_shim.waits++;
    if (in.error)
        return in.error;
    shim::finish_device(shim::device);
    return shim::note(shim::c.sticky[shim::device]);
}
/* The only way to end a lasting error; memory and work of the device are lost. */
inline cudaError_t cudaDeviceReset(void)
{
    shim::entry in;
    for (auto it = shim::c.memory.begin(); it != shim::c.memory.end();) {
        auto now = it++;
        if (now->second.device == shim::device)
            shim::device_release(now);
    }
    for (cudaStream_t s : shim::c.streams)
        if (s->device == shim::device)
            s->last.reset();
    if (shim::c.null[shim::device])
        shim::c.null[shim::device]->last.reset();
    shim::c.sticky[shim::device] = shim::last_error = cudaSuccess;
    return cudaSuccess;
}

/* >>runtime: memory ------------------------------------------------------------------------------ */

inline cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    shim::entry in;
    *all = cuda_shim.device_bytes;
    *left = *all - shim::c.used[shim::device];
    return in.error;
}
template <class V> inline cudaError_t cudaMalloc(V **p, size_t bytes)
{
    shim::entry in(shim::UNSAFE);
    *p = NULL;
    if (in.error || !bytes)
        return in.error;
    cuda_shim.mallocs++;
    if (!shim::fails(&cuda_shim.fail_malloc))
        *p = (V *)(void *)shim::device_take(bytes);
    return *p ? cudaSuccess : shim::note(cudaErrorMemoryAllocation);
}
/* Waits for the device's work, then frees. It frees after a lasting error as well, so that tests can
 * count leaks. */
inline cudaError_t cudaFree(void *p)
{
    shim::entry in(shim::UNSAFE);
    if (!p || in.error == cudaErrorStreamCaptureUnsupported)
        return in.error;
    auto it = shim::c.memory.find((char *)p);
    if (it == shim::c.memory.end())
        return shim::note(cudaErrorInvalidValue);
    shim::finish_device(it->second.device);
    shim::device_release(it);
    return in.error;
}
template <class V> inline cudaError_t cudaMallocHost(V **p, size_t bytes)
{
    shim::entry in(shim::UNSAFE);
    *p = NULL;
    if (in.error)
        return in.error;
    void *at = shim::fails(&cuda_shim.fail_pinned) ? NULL : malloc(bytes ? bytes : 1);
    if (!at)
        return shim::note(cudaErrorMemoryAllocation);
    memset(at, 0xFF, bytes);
    shim::c.pinned[(char *)at] = { bytes, true };
    cuda_shim.live_pinned++;
    *p = (V *)at;
    return cudaSuccess;
}
namespace shim
{
inline cudaError_t unpin(void *p, bool allocated, cudaError_t otherwise)
{
    entry in(UNSAFE);
    auto it = c.pinned.find((char *)p);
    if (in.error == cudaErrorStreamCaptureUnsupported)
        return in.error;
    if (it == c.pinned.end() || it->second.second != allocated)
        return note(otherwise);
    finish_device(device);
    c.pinned.erase(it);
    cuda_shim.live_pinned--;
    if (allocated)
        free(p);
    return in.error;
}
} // namespace shim
inline cudaError_t cudaFreeHost(void *p)
{
    return p ? shim::unpin(p, true, cudaErrorInvalidValue) : cudaSuccess;
}
inline cudaError_t cudaHostUnregister(void *p)
{
    return shim::unpin(p, false, cudaErrorHostMemoryNotRegistered);
}
enum { cudaHostRegisterDefault = 0 };
inline cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned = 0)
{
    CUDA_SHIM_CALL(shim::UNSAFE);
    if (!p || !bytes)
        return shim::note(cudaErrorInvalidValue);
    if (shim::is_pinned(p, 1))
        return shim::note(cudaErrorHostMemoryAlreadyRegistered);
    if (shim::fails(&cuda_shim.fail_pinned))
        return shim::note(cudaErrorMemoryAllocation);
    shim::c.pinned[(char *)p] = { bytes, false };
    cuda_shim.live_pinned++;
    return cudaSuccess;
}
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
    shim::entry in;
    const shim::allocation *own = shim::owner(p, 1);
    void *at = (void *)(uintptr_t)p;
    const bool pinned = shim::is_pinned(p, 1);
    *a = { own ? cudaMemoryTypeDevice : pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered,
           own ? own->device : 0, own || pinned ? at : NULL, own ? NULL : at };
    return in.error;
}
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t s = 0)
{
    shim::entry in;
    return in.error || !bytes ? in.error : shim::copy(to, from, bytes, kind, s);
}
inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s = 0)
{
    shim::entry in;
    return in.error || !bytes ? in.error : shim::fill(to, value, bytes, s);
}
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    shim::entry in(shim::UNSAFE);
    cudaError_t e = in.error ? in.error : cudaMemcpyAsync(to, from, bytes, kind);
    shim::finish(shim::stream_of(0)->last);
    return e ? e : shim::note(shim::c.sticky[shim::device]);
}
inline cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    shim::entry in(shim::UNSAFE);
    return in.error ? in.error : cudaMemsetAsync(to, value, bytes);
}

/* >>runtime: streams and events ------------------------------------------------------------------ */

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    shim::entry in;
    *s = NULL;
    if (in.error)
        return in.error;
    *s = new CUstream_st{ shim::device, flags, {}, {}, false, {} };
    shim::c.streams.push_back(*s);
    cuda_shim.live_streams++;
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithFlags(s, 0); }
inline cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    shim::entry in;
    if (!s || !shim::stream_of(s))
        return shim::note(cudaErrorInvalidResourceHandle);
    if (s->capture)
        s->capture->broken = true;
    shim::finish(s->last);
    shim::c.streams.erase(std::find(shim::c.streams.begin(), shim::c.streams.end(), s));
    delete s;
    cuda_shim.live_streams--;
    return in.error;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    shim::entry in(shim::UNSAFE);
    cuda_shim.waits++;
    cudaStream_t s = shim::stream_of(stream);
    if (!s)
        return shim::note(cudaErrorInvalidResourceHandle);
    if (s->capture)
        return shim::broken(s->capture, cudaErrorStreamCaptureUnsupported);
    if (in.error)
        return in.error;
    shim::finish(s->last);
    return shim::note(shim::c.sticky[s->device]);
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    shim::entry in;
    *e = NULL;
    if (in.error)
        return in.error;
    *e = new CUevent_st{ shim::device, flags, {}, {}, {} };
    shim::c.events.insert(*e);
    cuda_shim.live_events++;
    return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
inline cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    shim::entry in;
    if (!shim::c.events.erase(e))
        return shim::note(cudaErrorInvalidResourceHandle);
    delete e;
    cuda_shim.live_events--;
    return in.error;
}
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream = 0)
{
    shim::entry in;
    cudaStream_t s = shim::stream_of(stream);
    if (in.error)
        return in.error;
    if (!shim::c.events.count(e) || !s || s->device != e->device)
        return shim::note(cudaErrorInvalidResourceHandle);
    if (s->capture && s->capture->broken)
        return shim::note(cudaErrorStreamCaptureInvalidated);
    e->capture = s->capture;
    e->after = s->after;
    if (s->capture)
        return cudaSuccess;
    cudaError_t failed = shim::post(stream, shim::NO_MEMORY, [] {});
    e->recorded = failed ? e->recorded : s->last;
    return failed;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    shim::entry in(shim::UNSAFE);
    cuda_shim.waits++;
    if (!shim::c.events.count(e))
        return shim::note(cudaErrorInvalidResourceHandle);
    if (in.error || e->capture)
        return shim::note(in.error ? in.error : cudaErrorCapturedEvent);
    shim::finish(e->recorded);
    return shim::note(shim::c.sticky[e->device]);
}
/* Runs the work before the event as far as possible, without counting a wait. */
inline cudaError_t cudaEventQuery(cudaEvent_t e)
{
    shim::entry in(shim::UNSAFE);
    if (!shim::c.events.count(e))
        return shim::note(cudaErrorInvalidResourceHandle);
    if (in.error || e->capture)
        return shim::note(in.error ? in.error : cudaErrorCapturedEvent);
    const bool over = !e->recorded || shim::run_now(e->recorded);
    return over ? shim::note(shim::c.sticky[e->device]) : cudaErrorNotReady;
}
inline cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    shim::entry in;
    if (!shim::c.events.count(from) || !shim::c.events.count(to) || !from->recorded ||
        !to->recorded || (from->flags | to->flags) & cudaEventDisableTiming)
        return shim::note(cudaErrorInvalidResourceHandle);
    if (!from->recorded->done || !to->recorded->done)
        return cudaErrorNotReady;
    *milliseconds = (float)(1e3 * (to->recorded->at - from->recorded->at));
    return in.error;
}
/* If the event was recorded in a capture, the stream joins that capture, and its next node depends on the
 * nodes before the event. */
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned = 0)
{
    shim::entry in;
    cudaStream_t s = shim::stream_of(stream);
    if (in.error)
        return in.error;
    if (!s || !shim::c.events.count(e))
        return shim::note(cudaErrorInvalidResourceHandle);
    if (!e->capture && !s->capture)
        return e->recorded ? shim::post(
                                 stream, shim::NO_MEMORY, [] {}, e->recorded)
                           : cudaSuccess;
    if (!e->capture)
        return shim::broken(s->capture, cudaErrorStreamCaptureIsolation);
    if (e->capture->over || !stream)
        return shim::note(e->capture->over ? cudaErrorCapturedEvent
                                           : cudaErrorStreamCaptureImplicit);
    if (s->capture && s->capture != e->capture) {
        s->capture->broken = true;
        return shim::broken(e->capture, cudaErrorStreamCaptureMerge);
    }
    s->capture = e->capture;
    shim::add_after(s, e->after);
    return cudaSuccess;
}

/* >>runtime: captures and graphs ----------------------------------------------------------------- */

inline cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
    CUDA_SHIM_CALL(shim::SAFE);
    if (!s || !shim::stream_of(s))
        return shim::note(s ? cudaErrorInvalidResourceHandle : cudaErrorStreamCaptureUnsupported);
    if (s->capture)
        return shim::note(cudaErrorIllegalState);
    s->capture = std::make_shared<shim::capture>();
    s->capture->mode = mode;
    s->capture->owner = std::this_thread::get_id();
    s->origin = true;
    s->after.clear();
    return cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    shim::entry in;
    cudaStream_t s = shim::stream_of(stream);
    if (!s)
        return shim::note(cudaErrorInvalidResourceHandle);
    *status = !s->capture          ? cudaStreamCaptureStatusNone
              : s->capture->broken ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
    return in.error;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    shim::entry in;
    *graph = NULL;
    if (!s || !shim::stream_of(s))
        return shim::note(cudaErrorInvalidResourceHandle);
    if (!s->capture)
        return shim::note(cudaErrorIllegalState);
    shim::capturing k = s->capture;
    if (!s->origin)
        return shim::broken(k, cudaErrorStreamCaptureUnmatched);
    if (k->mode != cudaStreamCaptureModeRelaxed && k->owner != std::this_thread::get_id())
        return shim::broken(k, cudaErrorStreamCaptureWrongThread);
    /* Every node that was captured from another stream must come before the last node of this stream. */
    std::vector<char> before(k->graph.size());
    for (size_t i : s->after)
        before[i] = 1;
    for (size_t i = k->graph.size(); i-- > 0;)
        for (size_t a : k->graph[i].after)
            before[a] |= before[i];
    bool joined = true;
    for (cudaStream_t other : shim::c.streams) {
        if (other->capture != k)
            continue;
        for (size_t i : other->after)
            joined = joined && before[i];
        other->capture.reset();
        other->after.clear();
    }
    s->origin = false;
    k->over = true;
    if (in.error || k->broken || !joined)
        return shim::note(in.error    ? in.error
                          : k->broken ? cudaErrorStreamCaptureInvalidated
                                      : cudaErrorStreamCaptureUnjoined);
    *graph = new CUgraph_st{ k->graph };
    cuda_shim.live_graphs++;
    return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                        unsigned long long = 0)
{
    shim::entry in(shim::UNSAFE);
    *exec = NULL;
    if (in.error)
        return in.error;
    if (shim::c.used[shim::device] + cuda_shim.graph_bytes > cuda_shim.device_bytes)
        return shim::note(cudaErrorMemoryAllocation);
    *exec = new CUgraphExec_st{ std::make_shared<const shim::nodes>(graph->graph), shim::device };
    shim::c.used[shim::device] += cuda_shim.graph_bytes;
    cuda_shim.live_graphs++;
    return cudaSuccess;
}
inline cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    CUDA_SHIM_CALL(shim::UNSAFE);
    return shim::fails(&cuda_shim.fail_upload) ? shim::note(cudaErrorMemoryAllocation) : cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    CUDA_SHIM_CALL(shim::SAFE);
    std::shared_ptr<const shim::nodes> graph = exec->graph;
    return shim::post(s, shim::NO_MEMORY, [graph] { shim::run_graph(*graph); });
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    shim::entry in;
    delete graph;
    cuda_shim.live_graphs--;
    return in.error;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    shim::entry in;
    shim::c.used[exec->device] -= cuda_shim.graph_bytes;
    delete exec;
    cuda_shim.live_graphs--;
    return in.error;
}
#endif /* __cplusplus */
#endif

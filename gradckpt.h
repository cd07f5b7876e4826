/* gradckpt.h - v0.1.0 - trains neural networks inside a byte budget, to the same bits.  MIT
 * licence.
 *
 *     Do this in ONE C or C++ file, before the include, to create the implementation:
 *
 *         #define GRADCKPT_IMPLEMENTATION
 *         #include "gradckpt.h"
 *
 *     Other files only include it. Nothing else is needed: no library, no generated code.
 *
 * You say how many bytes there are. The library plans which activations to keep and which to
 * recompute (gradient checkpointing), says what it costs before the first step, and trains the same
 * model to the same bits whatever it chose: any plan, any split of the batch, any thread count, any
 * processor.
 *
 * DOES: reverse-mode differentiation of static graphs of f32 tensors, activations kept as f32 or
 * bf16; exact byte plans; gradient accumulation done right (sums over all micro-batches, one
 * division); AdamW, SGD, momentum or your own optimiser; safetensors files; runs in memory you hand
 * over, without heap, stdio or an OS; on a CUDA device by gradckpt_cuda.cu, to the same bits.
 * DOES NOT: change shapes while a graph lives (build another; it is cheap); run on more than one
 * machine; convolve; read Python models; promise speed on processors without vector units.
 *
 * Priorities, in this order: right gradients; the same bits; exact bytes; a small header that can
 * be read; speed.
 *
 * Contents (grep -n '>>[a-z]' gradckpt.h):                                                  budget
 *     >>api        public API: every function, where it is declared                     1020
 *     >>base       configuration, errors, memory, shapes, threads                        785
 *     >>numerics   fma, exp, log, pow, tanh, erf, sin, cos, Philox, sums, hash           615
 *     >>store      parameters and optimiser state                                        610
 *     >>graph      tensors, views, segments, gckpt_apply                                 550
 *     >>ops        elementwise, broadcasting, shapes: a block an op                      760
 *     >>ops-layers embed, matmul, linear, norms, attention, rotary, losses              1410
 *     >>plan       the model, schedules, drafts, layout; plans encoded                  2970
 *     >>bound      work and bytes that no schedule can do without                        520
 *     >>optimal    the least work for every budget: cuts, seeds, squeeze, polish        2370
 *     >>plan-tells what a plan tells                                                     240
 *     >>plans      from a request to a plan; the frontier; the micro-batch              1130
 *     >>pictures   a plan as a trace, the frontier as text and JSON                      220
 *     >>cpu        the processor as a backend                                            230
 *     >>exec       runs a plan over one arena                                           1295
 *     >>training   division, norm, clipping, optimisers, steps                           905
 *     >>check      gradients against finite differences                                  690
 *     >>files      safetensors                                                           980
 *     >>tables     plans as files and as C constants                                     750
 *     >>fast       fast ops: work cut into items for threads                            1140
 *     >>kernels    what is done with an item, for each instruction set                  1620
 *     manual       this comment                                                          290
 *                  in all                                                              21000
 *
 * == MANUAL =======================================================================================
 *
 * 1. Walk through
 *    A store holds parameters and optimiser state. A graph describes tensors and ops for one set of
 *    shapes; its number of rows (axis 0 of every input) is the micro-batch. A plan is constant
 *    data: the list of instructions (forward i, backward i, update p) and a byte offset for
 *    everything they touch. An executor binds a plan to a store and to memory and runs it; only
 *    now parameters get values. Nothing is allocated after that (but by gckpt_check_gradients and
 *    gckpt_calibrate).
 *
 *        gckpt_store *s = gckpt_store_new(NULL);
 *        gckpt_graph *g = gckpt_graph_new(s, NULL);
 *        gckpt_tensor *x = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(4, 8));
 *        gckpt_tensor *y = gckpt_input(g, "y", GCKPT_F32, gckpt_shape2(4, 1));
 *        gckpt_init normal = { 0.3f, 0, 0 }, zero = { 0, 0, 0 };
 *        gckpt_tensor *w1 = gckpt_param(g, "w1", gckpt_shape2(8, 16), normal);
 *        gckpt_tensor *b1 = gckpt_param(g, "b1", gckpt_shape1(16), zero);
 *        gckpt_tensor *h = gckpt_relu(gckpt_linear(x, w1, b1));
 *        h = gckpt_linear(h, gckpt_param(g, "w2", gckpt_shape2(16, 1), normal), NULL);
 *        gckpt_term loss = { gckpt_mean_squared_error(h, y), 1, 0 };
 *        gckpt_plan *p = gckpt_plan_new(g, &loss, 1, NULL);
 *        gckpt_exec *e = gckpt_exec_new(p, s, NULL);
 *        gckpt_feed feeds[2] = { { gckpt_id(x), x_data }, { gckpt_id(y), y_data } };
 *        gckpt_hyper adamw = { 1e-3f, 0, 0, 0, 0, 0, 0 };
 *        gckpt_report report;
 *        gckpt_result ok = gckpt_step(e, feeds, 2, 4, &adamw, &report);
 *
 *    Order of creation is part of what a graph is: it fixes tensor ids, the order of parameters and
 *    the order in which gradients are added. C does not say which argument of a call is evaluated
 *    first, so give each its own statement where two arguments would both create something (w1 and
 *    b1 above).
 *
 * 2. Errors
 *    Nothing aborts and nothing needs checking on each line. Building: the first error stays on the
 *    graph, a call that gets a NULL tensor returns NULL, and gckpt_plan_new reports what was
 *    recorded. Planning, binding, running, saving and loading report their own error and replace
 *    the last one (of the graph, store, executor and store), so that a budget that is too small
 *    poisons nothing. gckpt_error_text says what, where, and what would have worked.
 *
 * 3. Micro-batches, losses and units
 *    gckpt_step is fed the whole batch; it is run in micro-batches of the graph's rows, the last
 *    one possibly short. A loss is a pair (sum, count): tokens, rows or elements. Gradients are
 *    sums over the whole batch in units of the first loss's count N; they are divided by N once, in
 *    the update (never a mean of means). A further loss with a count of its own is weighted by N /
 *    own count, both counted from the feeds before the first forward. A regulariser (a function of
 *    parameters only) enters once a step, undivided. When N is 0 nothing changes: weights, moments,
 *    step count; report.count is 0.
 *
 * 4. Compile options, before the include: [I] where the implementation is, [A] in every file
 *    GRADCKPT_IMPLEMENTATION [I]   create the bodies
 *    GCKPT_STATIC [A]              all functions static
 *    GCKPT_API [A]                 linkage of functions; default extern
 *    GCKPT_REALLOC, GCKPT_FREE [I] (p,n) and (p), both or none; default realloc and free
 *    GCKPT_NO_HEAP [I]             no default allocator: every desc must bring its memory
 *    GCKPT_NO_STDIO [A]            no files by path; reading and writing go through callbacks
 *    GCKPT_NO_FAST [I]             leave out the fast CPU backend (firmware, first lessons)
 *    GCKPT_OPENBLAS [I]            matrix products by OpenBLAS (link it): for comparison. Sums then
 *                                  have its order: the same bits for any plan only, no longer for
 *                                  any split of the batch, thread count or processor
 *    GCKPT_FORCE_SOFT_FMA [I]      the exact software fma even where the instruction exists (tests)
 *    GRADCKPT_FILE [I]             this file's name in quotes, if not "gradckpt.h": it includes
 *                                  itself for each instruction set
 *    OpenMP is used when the compiler has it switched on (-fopenmp). On Linux, blocks of 4 MiB and
 *    more from the default allocator ask for huge pages.
 *
 * 5. The numeric contract (version GCKPT_CONTRACT; a change of any line below is a new version)
 *    Everything is IEEE-754 binary32 with round to nearest even, except sums of losses and of the
 *    gradient norm, which are binary64. The compiler may not contract, reorder or flush subnormals.
 *    a. fma(a,b,c) is one correctly rounded operation, by instruction where it is proven, by exact
 *       emulation elsewhere. A product that feeds an addition is always an fma.
 *    b. exp, log, pow, tanh, erf, sin, cos are this header's own polynomials, step for step; sqrt
 *       and division are correctly rounded; rsqrt(x) = 1 / sqrt(x).
 *    c. A matmul element is one chain of fma over k ascending. It starts at the bias when there is
 *       one, at +0 for a fresh output, at the accumulator's present value for a gradient.
 *       (Vectorising and tiling go over rows and columns, never over k.)
 *    d. A reduction within a row uses 32 lanes: lane i takes elements i, i+32, ... in order,
 *       starting at +0; then lane j += lane j+h for h = 16, 8, 4, 2, 1. Sums of products use fma in
 *       the lane.
 *    e. A reduction over rows goes row by row. Gradients of a bias, a gain and whatever
 *       broadcasting repeats are compensated sums (Kahan 1965), from +0 or what is there, with a
 *       low part l from +0 beside each sum s: y = x - l, t = s + y, l = (t - s) - y, s = t;
 *       products x are rounded first. So rows cost no digits (but past an infinity there is NaN).
 *       Those of matrix products' weights and embed's tables are plain chains (l would double their
 *       memory). Sums and low parts go on through all micro-batches of a step; with the step the
 *       low part is forgotten. (Where a batch is cut into leaves for several processes, each leaf
 *       has sums and low parts of its own, and leaves are added plainly, by a binary tree; here
 *       there is one leaf.) The sum of a loss is a binary64 chain over rows; its gradient is
 *       (float)(weight * N / own count), a regulariser's own count being 1. So the batch may be cut
 *       anywhere.
 *    f. Fan-out: a tensor's gradient contributions come in reverse graph order of the users, inputs
 *       of one op ascending. The first one stores (keeping -0), the others add in place. An input
 *       that repeats a tensor of the same op computes apart and is added. What does not depend on
 *       the batch (parameters, functions of parameters) has one accumulator per use, started at +0;
 *       they are added once a step, those of users that depend on the batch first, each group in
 *       reverse order (uses by one op ascending).
 *    g. Update: g = sum / (float)N, elementwise. A parameter's square sum is taken in blocks of
 *       4096 elements, each by d. with fma, block sums added in binary64; the norm is the root of
 *       their sum in binary64 in creation order; clipping scales g by (float)(clip / norm) when
 *       norm > clip. The optimisers' formulas stand above gckpti_plain_adamw.
 *    h. Attention: scores are chains over the head size from +0, then times 1/sqrt(head size). Keys
 *       are taken in tiles of 64: new maximum, rescale of sum and output by exp(old - new), sum of
 *       the tile by d., output chains over keys ascending. At the end output / sum. The backward
 *       uses exp(s - (maximum + log(sum))); its chains run over keys (queries) ascending. While the
 *       maximum is -inf, 0 is subtracted instead; a sum that is 0 in the end counts as 1 and its
 *       maximum as 0: where all scores are -inf, all probabilities are 0. So too in softmax and i.
 *    i. Cross-entropy: classes are taken in chunks of 1024 with the same online maximum and sum;
 *       a row's loss is log(sum) - (logit - maximum), and softmax exp((logit - maximum) -
 *       log(sum)); the linear + cross-entropy op returns the same bits.
 *    j. Dropout: Philox4x32-10 keyed by the seed; counter = global element index / 4 (through the
 *       batch; low word first), tensor id, step from 0; element i takes word i % 4, u = its top 24
 *       bits / 2^24; kept when u >= p. Initial values: see gckpti_draw_values.
 *    k. A fused or in-place kernel returns the bits of the plain ones. Hashes are FNV-1a 64 over
 *       little-endian 32-bit words, every NaN as 0x7fc00000.
 *    l. bf16 plans (desc.precision) keep what depends on the batch, values and gradients, as bf16:
 *       an op computes in binary32 from what is kept, and each result is rounded, a gradient after
 *       each contribution; to nearest even, subnormals to 0. Factors of matrix products (linear,
 *       matmul, linear + cross-entropy) are rounded first if they are not bf16 (weights, feeds,
 *       gradients of logits); each link of their chains flushes subnormals to 0. Attention's chains
 *       are such chains: q, k, v, the gradient that comes in, exponentials (once they are summed)
 *       and ds are factors, rounded to nearest. Weights, their gradients, optimiser state, aux and
 *       losses stay binary32, as does what depends on parameters only; fetched tensors are rounded,
 *       but kept as floats. BF16_STOCHASTIC adds 16 of Philox's bits to the half that is cut off:
 *       keyed by the seed; counter = global element index / 8, step, the instruction that stores.
 *       So here, too, the bits are the same for any plan, split, thread count and processor (bf16
 *       instructions run only where they pass a test against the emulation); but linear +
 *       cross-entropy, which never rounds its logits, is closer to fp32 than the two ops.
 *    m. BF16_FAST is no part of a. to k.: it keeps what l. keeps and as l. rounds it; kernels of a
 *       backend sum in binary32 in an order of theirs, matrix products by tensor cores. On one
 *       kind of device and version of the kernels the bits are the same for any plan, and for any
 *       split whose micro-batches are multiples of the kernels' tile along tokens (16 in
 *       gradckpt_cuda.cu); where one is not, gckpt_plan_split_exact names the op. Ops that the
 *       backend has no such kernels for run as in l. The processor has none and refuses the mode.
 *
 * 6. Bytes
 *    gckpt_plan_bytes = parameters + optimiser state + step arena. The arena (gradients,
 *    activations, op outputs' aux, workspace) is one block whose size is the greatest offset +
 *    unpadded size, and running touches exactly that. A gradient that is a compensated sum (5e) has
 *    a low part of its size beside it, for the step or the instruction. Listed apart and not
 *    included: the tables (gckpt_plan_kind_bytes with GCKPT_BYTES_TABLES; an executor has a copy),
 *    the stack (compiled with optimisation: below 64 KiB a thread with the fast backend, 96 KiB in
 *    bf16 plans, 3 KiB without), runtime libraries, and the caller's feeds.
 *
 * 7. Time
 *    The forward and the backward of an op have a work (gckpt_cost): by a model that is the same on
 *    every machine, or in nanoseconds measured on this one (gckpt_calibrate, then desc.costs).
 *    gckpt_plan_step_work adds it up over all micro-batches, recomputes included. Under a budget a
 *    plan has the least work found to fit; gckpt_fit chooses micro-batch and update rule with it. A
 *    step takes 1e-9 * (gckpt_plan_step_work + *update) seconds, *update from gckpt_calibrate.
 *    A sum over ops cannot show what stays in the caches. gckpt_fit_timed runs gckpt_fit's plan,
 *    those for fewer bytes and those of larger micro-batches, and takes the fastest: the one choice
 *    that is not the same on every machine (its results are). docs/time.md has figures.
 *
 * 8. Plans as data
 *    A plan can be made once and kept. As a file (gckpt_plan_write, gckpt_plan_read; by path
 *    gckpt_plan_save, gckpt_plan_load) it is read back for the same graph, on any machine. As C
 *    (gckpt_plan_c) it is compiled into a firmware, which builds no graph and links no planner:
 *
 *        host:    desc.plain = 1;  p = gckpt_plan_new(g, &loss, 1, &desc);
 *                 gckpt_plan_c(p, "small", write_to_file, file);             -> small.h
 *        device:  #define GRADCKPT_IMPLEMENTATION
 *                 #include "gradckpt.h"
 *                 #include "small.h"
 *                 gckpt_plan_params(&small, s);  e = gckpt_exec_new(&small, s, &memory);
 *                 gckpt_feed feeds[2] = { { small_x, x_data }, { small_y, y_data } };
 *
 *    Compile the device's file with -ffunction-sections and link with --gc-sections.
 *
 * 9. Planning
 *    For a budget a minimal cut says what to keep; its schedule is improved until it is proven to
 *    be good enough, or else others are, for byte limits a few percent apart that no budget changes
 *    (section optimal says how). Beside every plan and point stands what is proven: no schedule in
 *    its bytes has less work than gckpt_plan_proven_work, none fits in fewer than
 *    gckpt_plan_proven_bytes. That is said of every schedule of the request, whoever finds it:
 *    forwards in any order and number, any value let go and computed again at any time, as long as
 *    backwards run in an order of this library and values stay whole; graph, micro-batch, update
 *    rule, precision, pins and alignment are given. The proof is a minimal cut at one backward
 *    (section bound). On transformers it leaves no gap above about a fifth of store-all's bytes
 *    (MLP a quarter, U-Net half). Below, it is weak: the gap is what nobody knows, not what is
 *    lost. Of plans for graphs small enough to search them through, 99.8 % are optimal.
 *    What holds always: never over the budget; more bytes never cost more work; never more work
 *    than store-all, nor, in the same bytes, than memory-poor (up to 400 ops), segments or sqrt,
 *    but for less than 0.1 % of a step where a plan is proven to be that close to the best possible
 *    (there the search ends); the same plan on every machine; the least budget that an error names
 *    works; gckpt_plan_new has no more work than the frontier's point in these bytes, and between
 *    points it may have less. Segments are no limits but hints: their schedules are among those to
 *    start from. gckpt_keep and gckpt_recompute are obeyed.
 *    Where a graph branches, backwards may come in another order than the reverse of creation, one
 *    branch after the other, and what one of several losses keeps may be gone before the next is
 *    computed; what is added to a gradient keeps its order (5f), so the bits are the same.
 *    Planning for one budget takes, as a median, 1.5 ms for 148 ops as built, some 5 ms with forms,
 *    15 ms for 2,002 ops and 0.15 s for 12,004; in few bytes, where proofs are weak, up to 40 ms,
 *    0.1 s, 0.3 s and 4 s. All budgets at once (gckpt_frontier_new): 0.2 s, 0.5 s, 0.6 s and 12 s;
 *    memory is 5 to 20 MB, 25 MB and 260 MB. Graphs up to 64 ops are searched more thoroughly. What
 *    is looked at for one byte limit is limited and counted, never timed (gckpt_frontier_complete).
 *    Without a budget there is no search.
 *
 *    Some ops have forms: other ways to the same bits, with other bytes and work. AUTO, OPTIMAL,
 *    frontiers and gckpt_fit choose the one that runs, for all ops alike (desc.as_built: they do
 *    not); the other modes run the graph as it was built. linear_cross_entropy computes its logits
 *    twice, in chunks of classes; its other forms do so once, in the backward, of 256, 64 or 16
 *    rows at a time, and the forward only counts. A linear layer (w as (V,C), no bias) and
 *    cross_entropy can run as any of these in fp32 plans, if nothing else reads, fetches or pins
 *    the logits and nothing built between the two reads x or w.
 *
 *    Where there is slower memory (desc.offload_bytes: the host's beside a backend's own, a file, a
 *    chip), AUTO, OPTIMAL, frontiers and gckpt_fit may also copy a value there and back instead of
 *    computing it again, if that has less work (desc.offload_work). An offload stands behind the
 *    forward that made the value, a reload before its reader. What is proven holds for schedules
 *    with such copies, too: these count as work, what slower memory holds is not limited in it. No
 *    plan has more work than without slower memory (gckpt_plan_offloaded: bytes of it that a plan
 *    uses). docs/offload.md has figures.
 *
 * 10. Speed
 *    With gcc or clang for a 64-bit processor, products, attention, norms, losses, activations and
 *    the update have fast kernels: one source, compiled for AVX-512, AVX2, NEON, and for plain C
 *    where the compiler has an fma instruction. The executor takes the widest that the processor
 *    has, so -march is not needed, but -O2 is (gckpt_exec_desc.isa forces one kind). For this the
 *    header includes itself: under another name than gradckpt.h, define GRADCKPT_FILE. Threads:
 *    desc.threads with -fopenmp, or gckpt_exec_desc.parallel_for. docs/speed.md has figures, `make
 *    bench` measures this machine.
 *
 * 11. Backends
 *    An executor interprets a plan; what computes is a table of functions (gckpt_backend): memory,
 *    the kernels of ops, and what is done between ops. The processor's is taken unless desc.backend
 *    names another, of plan and executor alike, since workspace differs. Where a backend has memory
 *    of its own, arena, parameters and state live there, all executors on it share them, and the
 *    store knows which copy is the newest: gckpt_store_get, saving, loading and hashing fetch what
 *    they need; a pointer that was kept is the host's copy, as of the last gckpt_store_pull, and
 *    what is written through it counts after gckpt_store_push. What a plan offloads goes to memory
 *    of the host; a backend may copy it beside what it computes (move, join).
 */
#ifndef GRADCKPT_H
#define GRADCKPT_H

/* >>api: types, errors, memory ----------------------------------------------------------------- */
#include <stddef.h>
#include <stdint.h>

#define GCKPT_VERSION_MAJOR    0
#define GCKPT_VERSION_MINOR    1
#define GCKPT_VERSION_REVISION 0
#define GCKPT_CONTRACT         2 /* version of the numeric contract (manual, 5) */
#define GCKPT_PLAN_FORMAT      4 /* version of saved and printed plans */

#ifndef GCKPT_API
#if defined(GCKPT_STATIC) && defined(__GNUC__)
#define GCKPT_API static __attribute__((unused))
#elif defined(GCKPT_STATIC)
#define GCKPT_API static
#else
#define GCKPT_API extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gckpt_store gckpt_store;       /* named parameters and optimiser state */
typedef struct gckpt_graph gckpt_graph;       /* tensors and ops for one set of shapes */
typedef struct gckpt_tensor gckpt_tensor;     /* a value in a graph: its op, shape, name */
typedef struct gckpt_plan gckpt_plan;         /* schedule and offsets: constant data */
typedef struct gckpt_frontier gckpt_frontier; /* bytes against work, all of it */
typedef struct gckpt_exec gckpt_exec;         /* a plan bound to memory, a store and a backend */
typedef struct gckpt_backend gckpt_backend;   /* what computes, and where */

/* Results: OK; MORE, CANCELLED, OTHER_CONTRACT, UNRESOLVED and SKIPPED, which are no errors; and
 * errors. */
#define GCKPT_RESULTS(X)                                                                           \
    X(OK, "ok")                                                                                    \
    X(MORE, "more instructions to run")                                                            \
    X(CANCELLED, "cancelled by the progress callback; nothing was changed")                        \
    X(OTHER_CONTRACT, "loaded; but made under another version of the numeric contract")            \
    X(UNRESOLVED, "rounding hides what was to be checked")                                         \
    X(SKIPPED, "skipped: the gradient is not finite; nothing was changed")                                         \
    X(E_SHAPE, "shapes do not fit")                                                                \
    X(E_ARG, "a wrong argument")                                                                   \
    X(E_MEMORY, "out of memory")                                                                   \
    X(E_BUDGET, "the byte budget is too small")                                                    \
    X(E_DATA, "wrong data")                                                                        \
    X(E_FILE, "a file could not be read or written")                                               \
    X(E_BACKEND, "this build or processor breaks the numeric contract")
#define GCKPT_RESULT_ENUM(name, text) GCKPT_##name,
typedef enum { GCKPT_RESULTS(GCKPT_RESULT_ENUM) GCKPT_RESULT_COUNT } gckpt_result;
#undef GCKPT_RESULT_ENUM

/* The error of a store, graph, plan or executor; GCKPT_OK when there is none; E_MEMORY for NULL. */
GCKPT_API gckpt_result gckpt_error(const void *object);
/* What went wrong, where, and what would have worked. Never NULL; lives as long as the object. */
GCKPT_API const char *gckpt_error_text(const void *object);
/* A result's name in words, e.g. "out of memory". */
GCKPT_API const char *gckpt_result_text(gckpt_result result);

/* Where bytes come from. All zero: realloc and free (GCKPT_REALLOC). */
typedef struct {
    void *(*resize)(void *user, void *ptr, size_t old_size, size_t new_size); /* new_size 0: free */
    void *user;
    void *memory; /* or: everything from this block, no heap (aligned as malloc's) */
    size_t size;  /* bytes in the block */
} gckpt_memory;

/* Shapes are row-major. Axis 0 of every input is the batch; it is the outermost axis everywhere. */
#define GCKPT_MAX_DIMS 6
typedef struct {
    int n;
    int64_t d[GCKPT_MAX_DIMS];
} gckpt_shape;
typedef enum { GCKPT_F32, GCKPT_I32 } gckpt_type;
/* What a plan keeps activations and their gradients as (manual, 5l). */
typedef enum {
    GCKPT_FP32,
    GCKPT_BF16,            /* 2 bytes an element, rounded to nearest even */
    GCKPT_BF16_STOCHASTIC, /* the same, rounded up or down by chance: unbiased */
    GCKPT_BF16_FAST        /* as GCKPT_BF16, by a device's tensor cores (manual, 5m) */
} gckpt_precision;
/* What the values of a frozen parameter are stored as (gckpt_store_pack). Ops see floats. */
typedef enum {
    GCKPT_STORED_F32,
    GCKPT_STORED_BF16, /* 2 bytes: the upper half of the float */
    GCKPT_STORED_F16,  /* 2 bytes: IEEE binary16 */
    GCKPT_STORED_I8    /* 1 byte, and a float of scale for each row (all but the last axis) */
} gckpt_storage;
GCKPT_API uint16_t gckpt_to_bf16(float x); /* nearest even; subnormals become 0 */
GCKPT_API float gckpt_from_bf16(uint16_t x);
GCKPT_API gckpt_shape gckpt_shape1(int64_t a);
GCKPT_API gckpt_shape gckpt_shape2(int64_t a, int64_t b);
GCKPT_API gckpt_shape gckpt_shape3(int64_t a, int64_t b, int64_t c);
GCKPT_API gckpt_shape gckpt_shape4(int64_t a, int64_t b, int64_t c, int64_t d);

/* >>api-store -------------------------------------------------------------------------------------
 * A store is created empty; gckpt_param adds parameters to it, or finds them. Their values are not
 * made by that, nor by planning, but when something needs them: by gckpt_exec_new for its plan's,
 * by gckpt_store_get, by loading. These say E_MEMORY, with the bytes, when there is no memory. A
 * call that takes a const store allocates nothing and changes nothing: any number of threads may
 * make such calls, and run forwards of executors of their own, while none changes the store. */
typedef struct {
    gckpt_memory memory;
    uint64_t seed;
} gckpt_store_desc;
/* NULL desc: all defaults. The store outlives its graphs and executors. */
GCKPT_API gckpt_store *gckpt_store_new(const gckpt_store_desc *desc);
/* Graphs and executors of a freed store can only be freed. */
GCKPT_API void gckpt_store_free(gckpt_store *store);

/* Patterns match whole names; '*' stands for any run of characters, '?' for one: "h.*.mlp.*".
 * E_ARG: nothing matches. They are read when a plan is made (frozen) or a step updates (group). */
GCKPT_API gckpt_result gckpt_store_freeze(gckpt_store *store, const char *pattern, int frozen);
/* Factors on the step's lr and weight_decay, 0 or more (else E_ARG). At first 1 and, as is usual, 1
 * for parameters of two or more axes, 0 for vectors (biases, gains). */
GCKPT_API gckpt_result gckpt_store_group(gckpt_store *store, const char *pattern, float lr_scale,
                                         float decay_scale);
/* Zeroes optimiser state, so that training starts afresh, with another optimiser if need be. */
GCKPT_API gckpt_result gckpt_store_reset(gckpt_store *store, const char *pattern);
/* Makes parameter `name` use `values` (n floats, which must outlive the store: flash, an mmapped
 * file). It must not exist yet; it is frozen, and stays so unless `writable`. */
GCKPT_API gckpt_result gckpt_store_external(gckpt_store *store, const char *name, gckpt_shape shape,
                                            float *values, int writable);

/* Stores the values of parameters, which must be frozen (E_ARG), in fewer bytes, and those that are
 * not made yet as soon as they are. What ops see is what was stored: a FORWARD of the parameter
 * brings it into the arena as floats, planned like any value (gckpt_plan_desc.stage_parameters), so
 * results depend on the storage, never on the plan. Rounded to nearest even, to BF16 as
 * gckpt_to_bf16; F16 beyond 65504 is an error (E_DATA), I8 stands for value / scale, scale being
 * the row's greatest |value| / 127; vectors stay F32 then. Such parameters stay frozen until they
 * are packed as F32 again. Plans made before are refused. */
GCKPT_API gckpt_result gckpt_store_pack(gckpt_store *store, const char *pattern,
                                        gckpt_storage storage);
/* gckpt_store_external of a packed parameter: values as `storage` says, scales of I8's rows. */
GCKPT_API gckpt_result gckpt_store_external_packed(gckpt_store *store, const char *name,
                                                   gckpt_shape shape, gckpt_storage storage,
                                                   const void *values, const float *scales);

/* Parameters are numbered 0, 1, ... in creation order. */
typedef struct {
    const char *name;
    gckpt_shape shape;
    int64_t elements;
    float *values;   /* may be read and written between steps; they stay where they are */
    float *state[4]; /* optimiser state, NULL while there is none: AdamW m, v; momentum */
    int frozen;
    float lr_scale, decay_scale;
    gckpt_storage storage; /* not F32: values is NULL, */
    const void *packed;    /* and they are here, */
    const float *scales;   /* I8: with a scale for each row */
} gckpt_parameter;
GCKPT_API int gckpt_store_count(const gckpt_store *store);
/* E_ARG: no parameter has this index. get makes the values if they are not made yet (E_MEMORY);
 * peek does not, and then shows NULL. */
GCKPT_API gckpt_result gckpt_store_get(gckpt_store *store, int index, gckpt_parameter *out);
GCKPT_API gckpt_result gckpt_store_peek(const gckpt_store *store, int index, gckpt_parameter *out);
GCKPT_API int gckpt_store_find(const gckpt_store *store, const char *name); /* index or -1 */
/* Backends with memory of their own (gckpt_backend) have copies of values and state: what pointers
 * from before show is then as old as the last pull. pull brings the newest to the host; push says
 * that they were written there, so that the next step takes them; get does both. On the processor
 * there is one copy, and nothing to do. */
GCKPT_API gckpt_result gckpt_store_pull(gckpt_store *store, const char *pattern);
GCKPT_API gckpt_result gckpt_store_push(gckpt_store *store, const char *pattern);
/* values, made or not, and state that it owns */
GCKPT_API size_t gckpt_store_bytes(const gckpt_store *store);
GCKPT_API uint64_t gckpt_store_step(const gckpt_store *store); /* updates done so far */
/* FNV-1a 64 over the parameters' values, made or not, in creation order (manual, 5k). */
GCKPT_API uint64_t gckpt_store_hash(const gckpt_store *store);

/* Callbacks return the bytes done; fewer than asked for is the end, or an error. */
typedef size_t (*gckpt_read_fn)(void *user, void *bytes, size_t size);
typedef size_t (*gckpt_write_fn)(void *user, const void *bytes, size_t size);
/* safetensors, with optimiser state, step count, and whose state it is and how many updates it has
 * seen. Loading is strict and all-or-nothing: every tensor must be one of the store's (or the store
 * is empty and gets them all), with its shape; a file that is truncated, overlapping, out of bounds
 * or otherwise wrong is refused with the reason, and the store keeps what it had.
 * GCKPT_OTHER_CONTRACT: all is loaded, but the file is of another GCKPT_CONTRACT, so training goes
 * on to other bits than it would have there. A path is saved to a temporary file beside it
 * (PATH.gckpt-tmpN), flushed, and renamed. A link stays: what it points at is replaced. A file that
 * is replaced hands down its permissions; folders, devices and pipes are refused. */
GCKPT_API gckpt_result gckpt_store_write(gckpt_store *store, gckpt_write_fn write, void *user);
GCKPT_API gckpt_result gckpt_store_read(gckpt_store *store, gckpt_read_fn read, void *user,
                                        size_t size);
#ifndef GCKPT_NO_STDIO
GCKPT_API gckpt_result gckpt_store_save(gckpt_store *store, const char *path);
GCKPT_API gckpt_result gckpt_store_load(gckpt_store *store, const char *path);
#endif

/* Files of other programs, and parts of a store. All zero: as the calls above. */
typedef struct {
    /* Reading: the parameter that the file's tensor `name` is for; writing: the name in the file of
     * parameter `name`. NULL: it is left out. The text lives until the next call. */
    const char *(*rename)(void *user, const char *name);
    void *user;
    int values_only; /* 1: without optimiser state, step count and notes */
    int partial;     /* reading, 1: what the file does not have stays as it is */
    int writable;    /* mapping, 1: F32 in place may be trained (the memory must be writable) */
    gckpt_storage storage; /* writing: F32 values as F32, BF16 or F16 */
} gckpt_file_desc;
/* safetensors of F32, BF16 and F16, and what pack stores; a parameter that is packed gets its
 * values packed piece by piece. Any other type is refused by the tensor's name. */
GCKPT_API gckpt_result gckpt_store_write_as(gckpt_store *store, gckpt_write_fn write, void *user,
                                            const gckpt_file_desc *desc);
GCKPT_API gckpt_result gckpt_store_read_as(gckpt_store *store, gckpt_read_fn read, void *user,
                                           size_t size, const gckpt_file_desc *desc);
/* A file that lies in memory (flash, mmap) and stays there as long as the store. Parameters that
 * the store does not have yet point into it where type and alignment allow (frozen, but for
 * desc.writable); all others are read as by gckpt_store_read_as. */
GCKPT_API gckpt_result gckpt_store_map(gckpt_store *store, const void *file, size_t size,
                                       const gckpt_file_desc *desc);
#ifndef GCKPT_NO_STDIO
GCKPT_API gckpt_result gckpt_store_save_as(gckpt_store *store, const char *path,
                                           const gckpt_file_desc *desc);
GCKPT_API gckpt_result gckpt_store_load_as(gckpt_store *store, const char *path,
                                           const gckpt_file_desc *desc);
#endif
/* Texts (UTF-8) that files keep beside the parameters, by key: options, a position in the data.
 * value NULL: takes it away. note: NULL when there is none; until the next change. */
GCKPT_API gckpt_result gckpt_store_set_note(gckpt_store *store, const char *key, const char *value);
GCKPT_API const char *gckpt_store_note(const gckpt_store *store, const char *key);

/* >>api-graph -------------------------------------------------------------------------------------
 * A graph belongs to a store and must be freed before it. Tensors live as long as their graph. */
GCKPT_API gckpt_graph *gckpt_graph_new(gckpt_store *store, const gckpt_memory *memory);
GCKPT_API void gckpt_graph_free(gckpt_graph *graph);
/* Data fed at each step. Axis 0 is the batch, equal for all inputs of a graph: its micro-batch. No
 * two inputs of a graph have the same name. */
GCKPT_API gckpt_tensor *gckpt_input(gckpt_graph *graph, const char *name, gckpt_type type,
                                    gckpt_shape shape);
/* Data that never changes and has no batch axis; `data` must outlive graph, plans and executors. */
GCKPT_API gckpt_tensor *gckpt_constant(gckpt_graph *graph, const char *name, gckpt_type type,
                                       gckpt_shape shape, const void *data);
/* Parameter `name` of the store; created with init when new (value = constant + normal * N(0,1) +
 * uniform * U(-1,1), keyed by the store's seed and the name, whenever they are made). The same name
 * gives the same parameter again: that is how weights are tied. */
typedef struct {
    float normal, uniform, constant;
} gckpt_init;
GCKPT_API gckpt_tensor *gckpt_param(gckpt_graph *graph, const char *name, gckpt_shape shape,
                                    gckpt_init init);

GCKPT_API gckpt_graph *gckpt_graph_of(const gckpt_tensor *tensor);
GCKPT_API gckpt_shape gckpt_shape_of(const gckpt_tensor *tensor); /* n = -1 for NULL */
/* stable when the same graph is built again; -1 for NULL */
GCKPT_API int gckpt_id(const gckpt_tensor *tensor);
/* Gives the tensor a name for messages and printed plans (copied); returns it. */
GCKPT_API gckpt_tensor *gckpt_name(gckpt_tensor *tensor, const char *name);

/* >>api-ops ---------------------------------------------------------------------------------------
 * x is any shape (.., C), f32 unless noted. Shapes that do not fit: E_SHAPE, on the graph. */
/* (V,C), i32 (..) -> (..,C): row index[i] of the table; outside 0..V-1 a step is E_DATA. */
GCKPT_API gckpt_tensor *gckpt_embed(gckpt_tensor *table, gckpt_tensor *index);
/* (..,M,K) x (..,K,N) -> (..,M,N). Leading axes equal, or b has just two and serves them all. */
GCKPT_API gckpt_tensor *gckpt_matmul(gckpt_tensor *a, gckpt_tensor *b);
/* (..,M,K) x (..,N,K) -> (..,M,N). */
GCKPT_API gckpt_tensor *gckpt_matmul_transposed(gckpt_tensor *a, gckpt_tensor *b);
/* (..,I) x w (I,O) + bias (O) -> (..,O). bias may be NULL. */
GCKPT_API gckpt_tensor *gckpt_linear(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias);
/* The same with w as (O,I), as PyTorch keeps it. */
GCKPT_API gckpt_tensor *gckpt_linear_transposed(gckpt_tensor *x, gckpt_tensor *w,
                                                gckpt_tensor *bias);
/* (x - mean) * rsqrt(variance + 1e-5) * gain + bias over the last axis (Ba 2016); gain, bias: (C),
 * or NULL for none. */
GCKPT_API gckpt_tensor *gckpt_layernorm(gckpt_tensor *x, gckpt_tensor *gain, gckpt_tensor *bias);
/* x * rsqrt(mean(x^2) + 1e-5) * gain; gain (C) or NULL. Zhang & Sennrich 2019. */
GCKPT_API gckpt_tensor *gckpt_rmsnorm(gckpt_tensor *x, gckpt_tensor *gain);
GCKPT_API gckpt_tensor *gckpt_relu(gckpt_tensor *x); /* max(x, 0) */
/* x/2 (1 + tanh(sqrt(2/pi)(x + 0.044715 x^3))) */
GCKPT_API gckpt_tensor *gckpt_gelu(gckpt_tensor *x);
GCKPT_API gckpt_tensor *gckpt_gelu_erf(gckpt_tensor *x); /* x/2 (1 + erf(x / sqrt 2)) */
GCKPT_API gckpt_tensor *gckpt_silu(gckpt_tensor *x);     /* x / (1 + exp(-x)) */
GCKPT_API gckpt_tensor *gckpt_tanh(gckpt_tensor *x);
GCKPT_API gckpt_tensor *gckpt_sigmoid(gckpt_tensor *x); /* 1 / (1 + exp(-x)) */
GCKPT_API gckpt_tensor *gckpt_softmax(gckpt_tensor *x); /* over the last axis */
/* q (B,T,C), k and v (B,S,C) -> (B,T,C): softmax(q k' / sqrt(C/heads)) v per head, T x S never held
 * (Milakov & Gimelshein 2018, Dao 2022). causal: query t sees keys 0..S-T+t (S >= T), so the last
 * one sees all; keys from a gckpt_cache: all that are there by then. */
GCKPT_API gckpt_tensor *gckpt_attention(gckpt_tensor *q, gckpt_tensor *k, gckpt_tensor *v,
                                        int heads, int causal);
/* (B,T,C) with C = heads * D, D even: turns each pair (i, i + D/2) of a head by position *
 * base^(-2i/D). base 0: 10000. Su 2021, the half-split pairing of GPT-NeoX and Llama. */
GCKPT_API gckpt_tensor *gckpt_rotary(gckpt_tensor *x, int heads, float base);
/* x (B,T,C) + rows 0..T-1 of a learned table (Tmax,C), Tmax >= T. */
GCKPT_API gckpt_tensor *gckpt_positions(gckpt_tensor *x, gckpt_tensor *table);
/* The same from position `first` on; in a graph with caches, first + gckpt_position. */
GCKPT_API gckpt_tensor *gckpt_rotary_at(gckpt_tensor *x, int heads, float base, int64_t first);
GCKPT_API gckpt_tensor *gckpt_positions_at(gckpt_tensor *x, gckpt_tensor *table, int64_t first);
/* x (B,T,C) -> (B,capacity,C): rows that earlier calls of gckpt_forward left, then x's T; what is
 * behind them is not there yet, and only causal attention knows (it sees none of it). So a model
 * generates token by token, to the bits of one call with all of them. Only in INFERENCE plans, for
 * at most the graph's rows a call; all caches of a graph have one capacity and one T. Their bytes
 * are GCKPT_BYTES_CACHES of the plan. The key/value cache of transformers. */
GCKPT_API gckpt_tensor *gckpt_cache(gckpt_tensor *x, int64_t capacity);
/* Elementwise: axes are matched from the last; one of size 1, or missing, is repeated. */
GCKPT_API gckpt_tensor *gckpt_add(gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_sub(gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_mul(gckpt_tensor *a, gckpt_tensor *b);
GCKPT_API gckpt_tensor *gckpt_scale(gckpt_tensor *x, float factor);
/* Zeroes each element with probability p, scales the rest by 1/(1-p) (Srivastava 2014); x itself in
 * inference plans. The mask is a function of seed, step, tensor id, element in the whole batch. */
GCKPT_API gckpt_tensor *gckpt_dropout(gckpt_tensor *x, float p);
/* Another shape of the same bytes: costs nothing. One size may be -1 (what is left). */
GCKPT_API gckpt_tensor *gckpt_reshape(gckpt_tensor *x, gckpt_shape shape);
/* Axis i of the result is axis axes[i] of x. */
GCKPT_API gckpt_tensor *gckpt_permute(gckpt_tensor *x, const int *axes, int n);
/* Elements begin..end-1 along an axis (negative axis: from the last). */
GCKPT_API gckpt_tensor *gckpt_slice(gckpt_tensor *x, int axis, int64_t begin, int64_t end);
/* n <= GCKPT_MAX_INPUTS */
GCKPT_API gckpt_tensor *gckpt_concat(gckpt_tensor *const *x, int n, int axis);
GCKPT_API gckpt_tensor *gckpt_sum(gckpt_tensor *x, int axis); /* removes the axis */
GCKPT_API gckpt_tensor *gckpt_mean(gckpt_tensor *x, int axis);

/* >>api-losses ------------------------------------------------------------------------------------
 * A loss is a (sum, count) pair and only a gckpt_term can use it (manual, 3). */
/* logits (..,V), targets i32 (..): sum of -log softmax[target]; targets < 0 do not count. */
GCKPT_API gckpt_tensor *gckpt_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets);
/* The same from x (..,C) and w (V,C) (an embedding table: tied heads), holding the logits of some
 * rows or classes at a time. */
GCKPT_API gckpt_tensor *gckpt_linear_cross_entropy(gckpt_tensor *x, gckpt_tensor *w,
                                                   gckpt_tensor *targets);
/* sum of (prediction - target)^2 over elements; count = elements. */
GCKPT_API gckpt_tensor *gckpt_mean_squared_error(gckpt_tensor *prediction, gckpt_tensor *target);
/* Any tensor as a loss: the sum of its elements, count = elements. For losses made of ops, and for
 * regularisers: gckpt_sum_loss(gckpt_mul(w, w)). */
GCKPT_API gckpt_tensor *gckpt_sum_loss(gckpt_tensor *x);
typedef struct {
    gckpt_tensor *loss;
    float weight;
    int regulariser; /* a function of parameters only; enters once a step, undivided */
} gckpt_term;

/* >>api-segments ----------------------------------------------------------------------------------
 * Builds block(x, user) as one segment: in GCKPT_SEGMENTS plans its inside is recomputed in the
 * backward. May nest. NULL x: the block is skipped and NULL returned. Chen 2016. */
typedef gckpt_tensor *(*gckpt_block)(gckpt_tensor *x, void *user);
GCKPT_API gckpt_tensor *gckpt_checkpoint(gckpt_block block, gckpt_tensor *x, void *user);
GCKPT_API void gckpt_segment_begin(gckpt_graph *graph);
GCKPT_API void gckpt_segment_end(gckpt_graph *graph);
/* Both return x. */
GCKPT_API gckpt_tensor *gckpt_keep(gckpt_tensor *x);      /* computed once, whatever the plan */
GCKPT_API gckpt_tensor *gckpt_recompute(gckpt_tensor *x); /* never kept for the backward */

/* >>api-user-ops ----------------------------------------------------------------------------------
 * A user's op is a row like ours. Kernels see the shapes of the present micro-batch. */
#define GCKPT_MAX_INPUTS 8
typedef struct gckpt_call gckpt_call;
typedef struct {
    const float *data;    /* values; NULL while shaping and where a backward does not need them */
    const int32_t *index; /* the same for i32 tensors */
    float *grad;          /* backward: where this input's gradient goes; NULL: not wanted */
    int accumulate;       /* 1: add to what grad holds (or start chains from it); 0: store */
    float *low;           /* GCKPT_SUMS: what grad's sums are rounded by; NULL: nothing is summed */
    gckpt_shape shape;
    /* GCKPT_TAKES_BF16 and find_fast, in bf16 plans: where values are, gradients go, instead */
    const uint16_t *bf16;
    uint16_t *grad_bf16;
} gckpt_arg;
struct gckpt_call {
    int inputs;
    gckpt_arg in[GCKPT_MAX_INPUTS];
    gckpt_shape shape;     /* of the output */
    float *out;            /* forward: NULL where nobody reads it; backward: when in needs */
    const float *grad_out; /* backward: the output's gradient; NULL for losses */
    void *aux;             /* what forward leaves for backward; forward: NULL when not wanted */
    void *work;            /* scratch for this instruction only */
    const void *attributes;
    /* set by shape(): */
    size_t aux_bytes, work_forward, work_backward;
    int mixes_rows; /* moves the batch axis or combines rows: splits are no longer exact */
    /* set for kernels: */
    int64_t row;  /* first row of this micro-batch in the step's batch */
    int64_t rows; /* rows in this micro-batch; functions of parameters: row 0, rows 1 */
    int64_t position; /* gckpt_position; 0 without caches */
    uint64_t seed, step;
    int id; /* of the tensor */
    int threads;
    int plain;    /* 1: workspace for plain kernels is enough (gckpt_plan_desc.plain) */
    int training; /* 0 in inference plans */
    gckpt_precision precision; /* it computes in; also for shape() when planning */
    unsigned rounded;          /* to bf16: values of GCKPT_IN(i); GCKPT_OUT: grad_out */
    uint16_t *out_bf16;        /* GCKPT_TAKES_BF16: instead of out, of grad_out */
    const uint16_t *grad_out_bf16;
    double *loss_sum; /* losses, forward: add the sum and count here; NULL in a recompute */
    int64_t *loss_count;
    float loss_scale;    /* losses, backward: the gradient of the sum */
    const void *runner;  /* private: how threads are started */
    const void *kernels; /* private: those of an instruction set */
    void *backend;       /* its context (gckpt_backend); NULL: the processor */
    void *graph;         /* private: where gckpt_fail reports */
};
/* What an input's gradient reads (needs): */
#define GCKPT_IN(i) (1u << (i))
#define GCKPT_OUT   (1u << 8)
#define GCKPT_AUX   (1u << 9)
/* besides: its gradient sums over rows (bias, gain, broadcasting). Where `low` is given (as many
 * floats as grad, +0 at first), set grad to +0 if it does not accumulate, then add each
 * contribution x by gckpt_sum_add(&grad[k], &low[k], x): rows do not cost accuracy. */
#define GCKPT_SUMS (1u << 10)
/* flags: */
#define GCKPT_INPLACE(i) (1u << (i)) /* out may be the same bytes as input i (elementwise) */
/* the gradient of input i is grad_out itself when shapes agree: grad == grad_out: nothing to do */
#define GCKPT_PASSES(i)    (1u << (8 + (i)))
#define GCKPT_INPLACE_GRAD (1u << 16) /* in[0].grad may be the bytes of grad_out (elementwise) */
/* A (sum, count) loss; shape() leaves shape.n = 0. Beside other losses of a plan it must count the
 * elements of input 0 or, with i32 inputs, those of the last one that are not < 0. */
#define GCKPT_LOSS         (1u << 17)
#define GCKPT_COUNTS_FEEDS (1u << 23) /* it always counts like that, so before it runs */
#define GCKPT_SIDE_EFFECT  (1u << 18) /* forward runs exactly once a micro-batch */
/* kernels read and write bf16 where out, in[0] or in[1] have it; else on f32 copies */
#define GCKPT_TAKES_BF16 (1u << 19)
#define GCKPT_INDEX(i)   (1u << (24 + (i))) /* input i is i32 (all others are f32) */
typedef struct {
    const char *name;
    /* from in[].shape: shape, aux_bytes, work; or gckpt_fail */
    gckpt_result (*shape)(gckpt_call *call);
    void (*forward)(const gckpt_call *call);
    void (*backward)(const gckpt_call *call);  /* NULL: no gradients */
    uint64_t (*flops)(const gckpt_call *call); /* of the forward; NULL: one per output element */
    /* The values of i32 input i are below this and not negative (but the last i32 input of a loss
     * may have negative ones, for what is to be ignored): each step checks all of them before
     * anything runs (E_DATA). 0 or no function: no check. */
    int64_t (*classes)(const gckpt_call *call, int i);
    unsigned needs[GCKPT_MAX_INPUTS];
    unsigned flags;
    void (*forward_fast)(const gckpt_call *call); /* same bits, or NULL */
    void (*backward_fast)(const gckpt_call *call);
    /* Of the backward, in[i].grad being NULL or not as in the backward itself (where it points is
     * not to be read). NULL: the forward's flops, once for one gradient, twice for more. */
    uint64_t (*flops_backward)(const gckpt_call *call);
} gckpt_op;
/* Adds a node. Inputs must be of one graph; in[i] NULL ends in NULL. Attributes are copied. Plans
 * are saved and printed with attributes as 4-byte words: for that, let them be int, int32_t,
 * uint32_t and float (no padding, no pointers), and the row be a variable called as its name. */
GCKPT_API gckpt_tensor *gckpt_apply(const gckpt_op *op, gckpt_tensor *const *in, int n,
                                    const void *attributes, size_t attribute_bytes);
/* *sum += x, with *low (NULL: plainly) to make up for rounding (Kahan 1965). */
GCKPT_API void gckpt_sum_add(float *sum, float *low, float x);
/* ---- What the built-in kernels are made of, for a user's: the same bits and means on every
 * executor, be it one with threads and vector kernels or a plain one. docs/user-ops.md writes a
 * convolution with them. ----
 *
 * Calls item(context, i, worker) for each i of 0..items-1, once, in any order, on up to
 * call->threads threads, and returns when all are done. Items may be under way at the same time:
 * none may write what another one reads or writes. `worker`, 0..call->threads-1, differs for those
 * under way, so that scratch may have a part for each (let shape() ask for call->threads parts).
 * work: multiply-adds an item is worth, about; where all are worth little, no thread is woken.
 * An item that uses gckpt_parallel or gckpt_product passes them a copy of call with threads 1. */
GCKPT_API void gckpt_parallel(const gckpt_call *call, int64_t items, int64_t work,
                              void (*item)(void *context, int64_t i, int64_t worker),
                              void *context);
/* a * b + c, rounded once (manual, 5a): a function call, and a slow one where the processor or the
 * compiler's target has no such instruction. For many, see below. */
GCKPT_API float gckpt_fma(float a, float b, float c);
/* x[0] y[0] + x[1] y[1] + ..., in 32 lanes (manual, 5d). */
GCKPT_API float gckpt_dot(const gckpt_call *call, const float *x, const float *y, int64_t n);
/* C (m,n) = A (m,k) B (k,n): each element is one chain of fma over k ascending (manual, 5c), from
 * what C holds (accumulate) or +0. Strides count elements, are any numbers, and transpose for free:
 * A(i,p) = a[i * a_row + p * a_col]. Fast: c_col or c_row 1 and C apart from A and B; fastest: one
 * stride of each of the three is 1. */
typedef struct {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_col;
    const float *b;
    int64_t b_row, b_col;
    float *c;
    int64_t c_row, c_col;
    int accumulate;
    void *work; /* scratch of gckpt_product_work bytes; may be part of call->work */
} gckpt_product_desc;
GCKPT_API void gckpt_product(const gckpt_call *call, const gckpt_product_desc *desc);
/* For shape(): bytes of scratch for a product of these sizes, or smaller ones; 0 for small ones. */
GCKPT_API size_t gckpt_product_work(const gckpt_call *call, int64_t m, int64_t n, int64_t k);
/* For shape(): records an error and returns it. %s text, %i int, %I int64_t, %u uint64_t, %z
 * size_t, %g double, %S const gckpt_shape *, %T const gckpt_tensor *. */
GCKPT_API gckpt_result gckpt_fail(gckpt_call *call, gckpt_result result, const char *format, ...);

/* >>api-plans -------------------------------------------------------------------------------------
 * A plan is made for what its bytes depend on; running refuses anything else. */
typedef enum {
    GCKPT_AUTO,        /* store-all, or under a budget that is too small for it, optimal */
    GCKPT_STORE_ALL,   /* nothing is recomputed */
    GCKPT_MEMORY_POOR, /* everything is recomputed for each backward */
    GCKPT_SEGMENTS,    /* the user's segments */
    GCKPT_SQRT,        /* the uniform segmentation with least bytes (about sqrt(n) of n ops) */
    GCKPT_OPTIMAL,     /* the least work that fits the budget, in the least bytes */
    GCKPT_SCHEDULE,    /* desc.schedule */
    GCKPT_INFERENCE    /* forward only: losses and fetched tensors */
} gckpt_mode;
typedef enum { GCKPT_ADAMW, GCKPT_SGD, GCKPT_MOMENTUM, GCKPT_OWN_OPTIMISER } gckpt_optimiser;
/* What gckpt_fetch may return. Activations and their gradients: of the last micro-batch, in units
 * of the sum. Parameter gradients: divided, before clipping. */
typedef struct {
    gckpt_tensor *tensor;
    int gradient;
} gckpt_pick;
typedef enum {
    GCKPT_FORWARD,
    GCKPT_BACKWARD,
    GCKPT_UPDATE,
    GCKPT_OFFLOAD, /* copies what the forward before it left to slower memory */
    GCKPT_RELOAD   /* and back, to wherever there is room then */
} gckpt_kind;
typedef struct {
    gckpt_kind kind;
    int id; /* of the tensor; UPDATE: of the parameter */
} gckpt_instruction;
/* Work of one op over one micro-batch, in any unit that is the same for all ops of the graph. */
typedef struct {
    uint64_t forward, backward;
} gckpt_cost;
typedef struct {
    gckpt_mode mode;
    size_t budget; /* bytes, as gckpt_plan_bytes counts them; 0: no limit */
    /* most rows of one step, no fewer than the graph's; 0: the graph's own (one micro-batch) */
    int64_t batch;
    gckpt_optimiser optimiser;
    int own_state; /* GCKPT_OWN_OPTIMISER: floats of state per element, 0..4 */
    /* update parameters as soon as gradients are complete: 0, 1; gckpt_fit: GCKPT_IF_USEFUL */
    int update_in_backward;
    /* 1: what runs is the graph as it was built; 0: AUTO, OPTIMAL, frontiers and gckpt_fit choose
     * among forms of ops and orders of backwards that give the same bits (manual, 9) */
    int as_built;
    int threads;      /* 0: 1 */
    size_t alignment; /* of every offset; a power of two; 0: 64 */
    /* 1: a FORWARD of a parameter brings a copy of its value into the arena, where ops read it. It
     * is planned like any value: it has bytes, work (10 x bytes read and written, + 16384; or its
     * entry in costs), may be let go and brought again; pins hold for it; a schedule may say when,
     * else it comes before its first reader. Updates act on the parameter itself. */
    int stage_parameters;
    /* 1: workspace for the plain kernels only, and they run: what a GCKPT_NO_FAST build needs
     * (there it is always 1), so set it when this plan is made for one */
    int plain;
    /* Bytes of slower memory that AUTO, OPTIMAL, frontiers and gckpt_fit may offload values (and
     * aux) to, instead of computing them again (manual, 9); 0: none. offload_work: work
     * (gckpt_cost) of 2^20 bytes, one way: with costs in nanoseconds 1048576 / (GB/s); rounded up.
     * Plans that update in the backward offload nothing: a copy that failed would come too late. */
    size_t offload_bytes;
    uint64_t offload_work;
    /* What the plan is made for; NULL: the processor. The table must live until the plan is made;
     * plain is then unused, and such a plan is neither saved nor printed as C. */
    const gckpt_backend *backend;
    gckpt_precision precision; /* of activations and their gradients */
    /* GCKPT_SQRT: n ops a segment; -n: n of the user's outermost segments; 0: fewest bytes */
    int group;
    /* GCKPT_SCHEDULE: forwards (repeated at will), backwards and, with offload_bytes, reloads, but
     * no updates (offloads are put where they belong). Reverse order of backwards will do, as will
     * any in which a backward comes after those of what reads its result, and of what adds to the
     * same gradients before it (manual, 5f) */
    const gckpt_instruction *schedule;
    int instructions;
    const gckpt_pick *fetch;
    int fetches;
    /* of the graph as built, by id, cost_count = highest id + 1 (gckpt_calibrate); NULL: the
     * larger of flops and 10 x bytes moved, + 16384 an instruction, the same on every machine */
    const gckpt_cost *costs;
    int cost_count;
    /* For planning (it gives back what it took) and the plan. In a block (memory.memory) the plan
     * lies at the beginning in the end, gckpt_plan_kind_bytes(plan, GCKPT_BYTES_TABLES) bytes
     * behind at most 15 for alignment; all behind it is free, for the block of another plan, say.
     * What is given the same block again overwrites it. */
    gckpt_memory memory;
} gckpt_plan_desc;
/* Terms: what is minimised, the first one counting the step (manual, 3); none for INFERENCE is
 * fine. Copies what it needs: the graph may go first. NULL on error, which is then the graph's. */
GCKPT_API gckpt_plan *gckpt_plan_new(gckpt_graph *graph, const gckpt_term *terms, int count,
                                     const gckpt_plan_desc *desc);
GCKPT_API void gckpt_plan_free(const gckpt_plan *plan);
GCKPT_API size_t gckpt_plan_bytes(const gckpt_plan *plan); /* parameters + state + step arena */
GCKPT_API size_t gckpt_plan_arena(const gckpt_plan *plan); /* the step arena alone */
GCKPT_API size_t gckpt_plan_bound(const gckpt_plan *plan); /* greatest sum of live arena bytes */
enum {
    GCKPT_BYTES_PARAMETERS,
    GCKPT_BYTES_STATE,
    GCKPT_BYTES_GRADIENTS,
    GCKPT_BYTES_ACTIVATIONS,
    GCKPT_BYTES_WORKSPACE,
    GCKPT_BYTES_TABLES,
    GCKPT_BYTES_CACHES,
    GCKPT_BYTES_KINDS
};
/* Bytes of one kind; the arena's (gradients of parameters, activations and their gradients,
 * workspace) where the live sum is greatest, so that they add up to the bound. */
GCKPT_API size_t gckpt_plan_kind_bytes(const gckpt_plan *plan, int kind);
GCKPT_API size_t gckpt_plan_offloaded(const gckpt_plan *plan); /* bytes of slower memory it uses */
GCKPT_API double gckpt_plan_recompute(const gckpt_plan *plan); /* recomputed work / forward work */
/* Work (gckpt_cost) of a micro-batch: forwards and backwards, also again, and copies to slower
 * memory and back, as if nothing ran beside them; overhead: what it is above the least that
 * computes nothing twice, in any form that the plan could choose (manual, 9), as a fraction of
 * that. */
GCKPT_API uint64_t gckpt_plan_work(const gckpt_plan *plan);
GCKPT_API double gckpt_plan_overhead(const gckpt_plan *plan);
/* What is proven about all schedules (manual, 9), whoever finds them: none within the plan's budget
 * has less work than proven_work (a micro-batch's, as gckpt_plan_work), and none has fewer bytes
 * than proven_bytes (as gckpt_plan_bytes). The budget: desc.budget of AUTO and OPTIMAL, that of
 * gckpt_frontier_plan; without one, and in other modes, the plan's own bytes. gap: by how much the
 * plan's work exceeds proven_work, as a fraction of a store-all plan's; 0: no schedule is better.
 * The least possible may lie anywhere between. It is never less than what is proven, but may be
 * more: in few bytes, where forwards must run a third time; with gckpt_recompute, which no schedule
 * is held to here; where updates in the backward or a loop keep things longer; where an op may run
 * for the first time late (several losses). */
GCKPT_API uint64_t gckpt_plan_proven_work(const gckpt_plan *plan);
GCKPT_API size_t gckpt_plan_proven_bytes(const gckpt_plan *plan);
GCKPT_API double gckpt_plan_gap(const gckpt_plan *plan);
/* Work of a whole step of desc.batch rows: that of its micro-batches and, once, of what depends on
 * parameters only; UINT64_MAX: at least that. In seconds: manual, 7. */
GCKPT_API uint64_t gckpt_plan_step_work(const gckpt_plan *plan);
GCKPT_API int64_t gckpt_plan_rows(const gckpt_plan *plan);    /* of a micro-batch */
GCKPT_API int64_t gckpt_plan_batch(const gckpt_plan *plan);   /* of a step, at most */
GCKPT_API int gckpt_plan_in_backward(const gckpt_plan *plan); /* 1: updates in the backward */
GCKPT_API gckpt_mode gckpt_plan_mode(const gckpt_plan *plan); /* what AUTO chose */
GCKPT_API const char *gckpt_mode_name(gckpt_mode mode);       /* "store-all" */
GCKPT_API int gckpt_plan_length(const gckpt_plan *plan);      /* instructions */
GCKPT_API gckpt_result gckpt_plan_get(const gckpt_plan *plan, int i, gckpt_instruction *out);
/* What instruction i takes. */
typedef struct {
    uint64_t work; /* gckpt_cost; 0 for an update */
    size_t live;   /* bytes of the arena that are in use while it runs */
    int again;     /* 1: a forward that has run before, a recompute */
    size_t moved;  /* bytes that an offload or a reload copies */
    int once;      /* 1: runs once a step; 0: for each micro-batch */
} gckpt_usage;
GCKPT_API gckpt_result gckpt_plan_usage(const gckpt_plan *plan, int i, gckpt_usage *out);
/* 1: every split of the batch (manual, 5m: that this holds for) gives the same bits; 0: not, as the
 * tensor *op mixes rows. */
GCKPT_API int gckpt_plan_split_exact(const gckpt_plan *plan, const char **op);
/* What the step arena holds: buffers, by the instruction they end with. Those live at an
 * instruction add up to its live bytes (gckpt_plan_usage); no two live ones overlap. */
typedef enum {
    GCKPT_BUFFER_VALUE,
    GCKPT_BUFFER_AUX,                /* what a forward keeps for its backward */
    GCKPT_BUFFER_GRADIENT,           /* of an activation */
    GCKPT_BUFFER_PARAMETER_GRADIENT, /* of a parameter, or of what depends on parameters only */
    GCKPT_BUFFER_WORKSPACE           /* of one instruction */
} gckpt_buffer_kind;
typedef struct {
    int start, end;      /* first and last instruction; the plan's length: after all of them */
    size_t offset, size; /* bytes */
    int id;              /* tensor; of several that share the buffer (in place), the first */
    gckpt_buffer_kind kind;
} gckpt_buffer;
GCKPT_API int gckpt_plan_buffers(const gckpt_plan *plan); /* how many */
GCKPT_API gckpt_result gckpt_plan_buffer(const gckpt_plan *plan, int i, gckpt_buffer *out);
/* Of the tensor with this id: its name, else its op's; "" when it has neither. The plan's. */
GCKPT_API const char *gckpt_plan_name(const gckpt_plan *plan, int id);
GCKPT_API const char *gckpt_plan_op(const gckpt_plan *plan, int id); /* its op's, as it runs */
/* Prints header, then every instruction with what it writes and the live bytes. (Plans and
 * frontiers are drawn by examples/pictures.h.) E_FILE, here and below: the callback failed. */
GCKPT_API gckpt_result gckpt_plan_print(const gckpt_plan *plan, gckpt_write_fn write, void *user);
/* Writes a micro-batch as Chrome trace events (chrome://tracing, ui.perfetto.dev): a bar for each
 * instruction, a nanosecond a unit of work (gckpt_cost), and live bytes by kind. */
GCKPT_API gckpt_result gckpt_plan_trace(const gckpt_plan *plan, gckpt_write_fn write, void *user);

/* Hash of the graph the plan is for: ops, attributes, shapes, types, what reads what, names of
 * inputs, constants and parameters. The same on every machine, for every plan of the graph. */
GCKPT_API uint64_t gckpt_plan_hash(const gckpt_plan *plan);
/* A plan as a file, the same bytes on every machine. Reading takes the graph the plan was made for
 * (same hash, same frozen parameters); another one, another version of this header, a damaged file
 * or one too large for this machine is refused with the reason, which is the graph's error.
 * Whatever is in the file, a plan that is read is right: it is derived from the graph again, but
 * for the order of instructions and the offsets, and these are checked. memory: as
 * gckpt_plan_desc.memory; NULL: the heap. */
GCKPT_API gckpt_result gckpt_plan_write(const gckpt_plan *plan, gckpt_write_fn write, void *user);
GCKPT_API gckpt_plan *gckpt_plan_read(gckpt_graph *graph, gckpt_read_fn read, void *user,
                                      const gckpt_memory *memory);
#ifndef GCKPT_NO_STDIO
/* by path, saved as a store is; E_FILE when that fails (a plan has no text) */
GCKPT_API gckpt_result gckpt_plan_save(const gckpt_plan *plan, const char *path);
GCKPT_API gckpt_plan *gckpt_plan_load(gckpt_graph *graph, const char *path,
                                      const gckpt_memory *memory);
#endif
/* Prints the plan as a C constant, `const gckpt_plan NAME`, all of it read-only, to be compiled
 * (C99, C++11) in the file that holds the implementation, after the #include (manual, 8). An enum
 * gives ids their names: NAME_tokens of input "tokens", and so for desc.fetch. A user's op is
 * printed as the variable its name says, which must be declared by then, with the needs and flags
 * it was planned with, and attributes as gckpt_apply says. Mind desc.plain and the store's seed.
 * E_ARG: it cannot be printed; an #error that says why is printed instead. */
GCKPT_API gckpt_result gckpt_plan_c(const gckpt_plan *plan, const char *name, gckpt_write_fn write,
                                    void *user);
/* Creates the plan's parameters in the store, as gckpt_param did when the graph was built: in that
 * order, with those initial values if the seed is the same. What exists is left alone. */
GCKPT_API gckpt_result gckpt_plan_params(const gckpt_plan *plan, gckpt_store *store);

/* Chooses the micro-batch together with the plan. build makes the graph whose inputs have `rows`
 * rows, fills terms (at most GCKPT_MAX_TERMS) and returns how many; less than 0: this size is not
 * wanted. It is called for every divisor of the batch and must make the same tensors and parameters
 * each time, so that ids hold for all. */
#define GCKPT_MAX_TERMS 16
typedef int (*gckpt_build)(gckpt_graph *graph, int64_t rows, gckpt_term *terms, void *user);
/* Fills the costs of a graph that build has just made, e.g. by gckpt_calibrate. */
typedef gckpt_result (*gckpt_measure)(gckpt_graph *graph, const gckpt_term *terms, int count,
                                      gckpt_cost *costs, int cost_count, void *user);
enum { GCKPT_IF_USEFUL = 2 }; /* update_in_backward: may be chosen; then no step may clip */
/* The plan with the least gckpt_plan_step_work, among those of all micro-batch sizes (and update
 * rules, with GCKPT_IF_USEFUL) that fit desc.budget; then the one with fewer bytes, then with more
 * rows. measure NULL: by the costs of the model, the same plan on every machine. A graph that mixes
 * rows is planned whole. desc: as for gckpt_plan_new, but fetch, schedule and costs belong to one
 * graph and batch is the argument; memory must not be a block. Graphs are temporary; the parameters
 * they make stay in the store when a plan is found, and only then. NULL on error, which is then the
 * store's; that of a budget too small names the least bytes that suffice. */
GCKPT_API gckpt_plan *gckpt_fit(gckpt_store *store, gckpt_build build, void *user, int64_t batch,
                                const gckpt_plan_desc *desc, gckpt_measure measure);

/* ---- the frontier: what every budget costs ---- */
/* A plan of `work` fits in `bytes`, and less work does not (as far as the search knows). */
typedef struct {
    size_t bytes;
    uint64_t work;              /* gckpt_plan_work */
    double recompute, overhead; /* gckpt_plan_recompute, gckpt_plan_overhead */
    uint64_t proven_work;       /* gckpt_plan_proven_work within these bytes */
} gckpt_point;
/* All points of GCKPT_OPTIMAL at once; desc as for gckpt_plan_new, its mode and budget unused and
 * its memory no block. Graph and desc.backend must live as long; a thread at a time may use it.
 * NULL on error, which is then the graph's. */
GCKPT_API gckpt_frontier *gckpt_frontier_new(gckpt_graph *graph, const gckpt_term *terms, int count,
                                             const gckpt_plan_desc *desc);
GCKPT_API void gckpt_frontier_free(gckpt_frontier *frontier);
/* Points by ascending bytes and descending work; the last one recomputes nothing. */
GCKPT_API int gckpt_frontier_points(const gckpt_frontier *frontier);
GCKPT_API gckpt_result gckpt_frontier_get(const gckpt_frontier *frontier, int i, gckpt_point *out);
/* 1; 0 when the search for some byte limit stopped at a limit of its own (what it looks at, rounds)
 * or closed a gap with less than it wanted (a value that takes more than 400 forwards to compute
 * again), as on most graphs of more than some tens of ops: how far points may be from the best
 * possible is what proven_work says. */
GCKPT_API int gckpt_frontier_complete(const gckpt_frontier *frontier);
GCKPT_API size_t gckpt_frontier_proven_bytes(const gckpt_frontier *frontier);
/* The point that a budget gets (0: no limit), -1: it is too small; and its plan. What
 * gckpt_plan_new makes with GCKPT_OPTIMAL has no more work, and between points it may have less. */
GCKPT_API int gckpt_frontier_find(const gckpt_frontier *frontier, size_t budget);
GCKPT_API gckpt_plan *gckpt_frontier_plan(const gckpt_frontier *frontier, size_t budget);
/* The frontier as text (80 columns, some 20 rows), and as JSON: an object with points (gckpt_point,
 * ascending bytes), marked (the point of the budget `mark`; null: none, or mark 0), complete and
 * proven_bytes. */
GCKPT_API gckpt_result gckpt_frontier_print(const gckpt_frontier *frontier, size_t mark,
                                            gckpt_write_fn write, void *user);
GCKPT_API gckpt_result gckpt_frontier_json(const gckpt_frontier *frontier, size_t mark,
                                           gckpt_write_fn write, void *user);

/* >>api-backend -----------------------------------------------------------------------------------
 * By what a plan is computed, and where: the processor, unless gckpt_plan_desc.backend and
 * gckpt_exec_desc.backend name another. A backend is a table of functions, one constant object for
 * all that use it (it is known by its address). The executor interprets the plan and calls them;
 * where arena, parameters, optimiser state, feeds and sums of losses lie in memory of its own,
 * nothing else touches them (of parameters and state the store copies, too, between steps).
 *
 * An executor calls from one thread, several executors from several; one store's executors on
 * different backends take turns by whole steps. Calls take effect in the order they are made in. In
 * memory of its own a backend may return before that; three may not: copy_in returns when it has
 * read the host's bytes, copy_out when it has written them, finish when all is done. finish is
 * called at a step's end, before the report; before the first update, if the step clips or a loss
 * that is no regulariser lacks GCKPT_COUNTS_FEEDS; before a regulariser's gradient, if the first
 * loss's count is not known from the feeds. copy_out waits for gckpt_fetch and for what runs on the
 * host. Without memory of its own each call has taken effect when it returns.
 * A call, what it points to on the host (attributes, shapes) and the structs below live until the
 * function returns; their other pointers are the backend's. Whatever computes, the numbers are
 * those of the contract (manual, 5). An error that is found at a step's end comes after its
 * updates: weights may have changed where the step is not counted; go back to what was saved. */
typedef void (*gckpt_kernel)(const gckpt_call *call);

typedef enum {
    GCKPT_WIDEN,     /* x = from */
    GCKPT_WIDEN_ADD, /* x = from + x */
    GCKPT_NARROW,    /* to = x, rounded */
    GCKPT_ROUND      /* x = x, rounded, as floats */
} gckpt_conversion_kind;
/* n floats and n bf16. Rounding is as call->precision says (manual, 5l); by chance, element i of
 * the micro-batch is number c = row * (n / rows) + i of the batch and takes the low (c even) or
 * high half of word c / 2 % 4 of Philox4x32-10, keyed by the seed, of counter (c / 8, stream,
 * step). */
typedef struct {
    gckpt_conversion_kind kind;
    float *x;
    const uint16_t *from;
    uint16_t *to;
    int64_t n;
    uint32_t stream;
} gckpt_conversion;

/* Constants of an update, for the formulas above gckpti_plain_adamw: g is what was divided times
 * `scale` (of clipping), d `decay`; rest1 = 1 - beta1; correct2 = 1 / (1 - beta2^t). */
typedef struct {
    float scale, decay, beta1, rest1, beta2, rest2, eps, rate, correct2;
} gckpt_rates;
/* One pass over a parameter (manual, 5g): for each block of GCKPT_UPDATE_BLOCK elements, in this
 * order, its further accumulators are added to the first, which keeps the sum; the sum is divided;
 * the square sum of that taken; the parameter updated with it. */
enum { GCKPT_UPDATE_BLOCK = 4096 };
typedef struct {
    int64_t elements;
    float *gradient;  /* the first accumulator */
    const void *base; /* further ones: at base + more[i] bytes; `more` is the host's */
    const size_t *more;
    int adds;       /* so many of them */
    float count;    /* to divide by; 0: divided it is already */
    int write_back; /* 1: what was divided is to stand in `gradient` after this, 0: the sum */
    float *squares; /* square sums, by block; NULL: not wanted */
    int update;     /* 0: no; what follows is unused */
    gckpt_optimiser optimiser;
    float *values, *state[4];
    float momentum;
    gckpt_rates rates;
} gckpt_pass;

/* A micro-batch, for a backend that repeats what it has been asked for before. All that may differ
 * from an earlier one of the same owner and `rows` is here: row, seed and step of its calls, and
 * loss_scale of its losses', by gckpt_call.id. */
typedef struct {
    int id;
    float scale;
} gckpt_loss_scale;
typedef struct {
    const void *owner; /* the executor */
    int64_t row, rows;
    uint64_t seed, step;
    const gckpt_loss_scale *scales; /* the host's */
    int losses;
} gckpt_moment;

struct gckpt_backend {
    const char *name; /* a plan that was made for it runs on backends of this name only */
    void *context;   /* for the functions, not NULL; kernels find it in call->backend, which is NULL
                          where the processor runs them */
    int own_memory;  /* 1: memory the host cannot use. Then all functions to `finish` but
                          workspace are needed; else those that are NULL are the plain ones of the
                          processor, and so are kernels that `find` has not */
    int writes_back; /* 1: update always does as if write_back were 1 (and needs no scratch) */
    void *(*get)(void *context, size_t bytes, size_t alignment); /* NULL: there is none */
    void (*release)(void *context, void *memory, size_t bytes);
    /* Any bytes at any address, between steps, too: */
    void (*copy_in)(void *context, void *to, const void *host, size_t bytes);
    void (*copy_out)(void *context, void *host, const void *from, size_t bytes);
    void (*copy)(void *context, void *to, const void *from, size_t bytes);
    /* Planning: call is as op->shape left it for plain kernels; changes work_forward, _backward,
     * and of fast kernels (find_fast) also mixes_rows where their bits depend on micro-batches of
     * this size, and precision to GCKPT_BF16 where they are not for such shapes; in[i].bf16,
     * out_bf16 and grad_out_bf16 say what the plan keeps so and are not to be read. A function of
     * op, call and the backend's name only. Kernels find `work` a multiple of 64 behind the
     * executor's own copies, which begin at the plan's alignment. */
    gckpt_result (*workspace)(void *context, const gckpt_op *op, gckpt_call *call);
    /* The kernel of an op's forward or backward, by op->name or, of users' ops, by op; asked for
     * each instruction when an executor is made. NULL: there is none, and the op's own runs, with
     * memory of its own on copies (slow). Forward and backward share aux, whose layout the op's own
     * kernels define: a backend that lays it out otherwise has both. */
    gckpt_kernel (*find)(void *context, const gckpt_op *op, gckpt_kind kind);
    /* Between ops; of the call, only backend, threads, seed, step, row, rows and precision count.
     * fill: word, n times, from an address that is a multiple of 4. */
    void (*fill)(const gckpt_call *call, void *to, uint32_t word, int64_t n);
    void (*add)(const gckpt_call *call, float *to, const float *from, int64_t n); /* to += from */
    void (*convert)(const gckpt_call *call, const gckpt_conversion *conversion);
    void (*update)(const gckpt_call *call, const gckpt_pass *pass);
    /* Waits for all. The first thing that went wrong since the backend was made, and from then on
     * in each call; NULL: nothing. */
    const char *(*finish)(void *context);
    /* The rest may be NULL. Micro-batches all of whose kernels the backend has can be repeated
     * without asking for each instruction again. repeat is called before the first one. 1: all of
     * them are done as they were before, but for what `moment` says. 0: the executor asks for them,
     * by kernels, fill, add, convert, copy, move and join only, then calls recorded. That returns
     * 1; or 0, if nothing of it was done since it was only recorded, and could not be: the executor
     * asks again (and repeat no more). forget: what `owner` asked for holds no longer. */
    int (*repeat)(void *context, const gckpt_moment *moment);
    int (*recorded)(void *context);
    void (*forget)(void *context, const void *owner);
    /* Why get found no memory, the last time, and what helps: what error texts end with. */
    const char *(*shortage)(void *context);
    /* GCKPT_BF16_FAST (manual, 5m); NULL: not here. As find, but a function of op->name or op alone
     * and asked when planning, too: an op's kernels, both or (NULL) none. call->precision says that
     * they are meant. Whatever the plan keeps as bf16 they read and write as such (in[i].bf16,
     * out_bf16, ..; the other pointer is NULL); low parts may be left alone. */
    gckpt_kernel (*find_fast)(void *context, const gckpt_op *op, gckpt_kind kind);
    /* For what is offloaded to the host: all four or none (then copy_out and copy_in do it). Moves
     * begin behind what was asked for before, and may run beside what is asked for later; they keep
     * their order. join: what is asked for later waits for all of them. Their host side is memory
     * from host_get; the other side is not touched before join, but read where it goes out. */
    void *(*host_get)(void *context, size_t bytes);
    void (*host_release)(void *context, void *memory, size_t bytes);
    void (*move)(void *context, void *to, const void *from, size_t bytes, int out);
    void (*join)(void *context);
};

/* In gradckpt_cuda.cu, which a program that wants it compiles by nvcc and links: the backend of a
 * CUDA device (from 0 on), the same one each time. NULL: there is none, *error says why. Calls that
 * use it leave that device as their thread's current one. */
extern const gckpt_backend *gckpt_cuda_backend(int device, const char **error);

/* >>api-run ------------------------------------------------------------------------------------ */
/* A step refuses what is not finite or out of range, by name. */
typedef struct {
    float lr;                /* 0 or more, taken as it is: 0 moves the moments only */
    float weight_decay;      /* 0 or more; decoupled; times the parameter's decay_scale */
    float beta1, beta2, eps; /* AdamW; 0: 0.9, 0.999, 1e-8 (a negative beta means none) */
    float momentum;          /* MOMENTUM; 0: 0.9 */
    float clip;              /* greatest global gradient norm; 0: no clipping */
} gckpt_hyper;
/* A user's optimiser: w, g (divided by the count, before clipping) and state of one parameter;
 * called once per parameter and step. */
typedef struct {
    const char *name;
    int64_t elements;
    float *values;
    const float *gradient;
    float *state[4];
    float clip_scale; /* multiply the gradient by this */
    float lr_scale, decay_scale;
    uint64_t step;            /* 1 for the first update of this state; without one, the store's */
    const gckpt_hyper *hyper; /* of this step */
} gckpt_update;
/* What a progress callback sees, before each instruction; it returns 1 to cancel the step. */
typedef struct {
    int instruction, instructions;
    int64_t row, rows;
    gckpt_kind kind;
    const char *name;
} gckpt_progress;

/* Debug aids, off in plain use; each costs time, none changes the result: */
#define GCKPT_DEBUG_PAINT     1u /* fill what is dead with NaN after its last use */
#define GCKPT_DEBUG_RECOMPUTE 2u /* hash values when first computed and again; E_DATA: the op */
#define GCKPT_DEBUG_MEASURE   4u /* paint the arena before the first 2 steps, see what they touch */
#define GCKPT_DEBUG_PLAIN     8u /* plain kernels only */
/* Instruction sets that there are kernels for; all give the same bits. */
typedef enum {
    GCKPT_ISA_AUTO,  /* the fastest that the processor has */
    GCKPT_ISA_PLAIN, /* the plain kernels: the definition of the numbers */
    GCKPT_ISA_C,     /* the fast kernels without vector instructions of their own */
    GCKPT_ISA_NEON,
    GCKPT_ISA_AVX2, /* and FMA */
    GCKPT_ISA_AVX512,
    GCKPT_ISA_COUNT
} gckpt_isa;
typedef struct {
    gckpt_memory memory; /* for tables, and the arena when not given */
    /* Step arena of gckpt_plan_arena bytes, aligned to the plan's alignment. Executors may share it
     * when none of them is within a step (for streaming: from begin to end). */
    void *arena;
    size_t arena_size;
    unsigned debug;
    gckpt_isa isa; /* kernels to use; for tests and measurements. E_ARG if they cannot run here */
    /* The one the plan was made for. It must live as long as the executor, whose arena, also a
     * given one, it has; parameters and state are copied to it and, when the last executor with it
     * is freed, back. Room for a micro-batch of the feeds, constants and sums comes on top. */
    const gckpt_backend *backend;
    /* 0: feeds are read where they are until the step ends; 1: a training step copies them at once
     * (into memory for desc.batch rows, taken when the executor is made and not in plan_bytes). */
    int copy_feeds;
    /* 1: a step whose gradient (loss, norm) is not finite changes nothing and returns SKIPPED; not
     * for plans that update in the backward (E_ARG) */
    int skip_nonfinite;
    /* Whose caches to use, and go on in: one for prompts and one for single tokens, say, of the
     * same model, batch and capacity. NULL: its own. It must live as long. */
    gckpt_exec *caches_of;
    /* What a plan offloads: copies `bytes` bytes to, or from, `at` of a slower memory (a file, a
     * chip) of gckpt_plan_offloaded bytes, and returns how many it did; fewer: the step ends with
     * E_FILE and nothing is changed. Both, or none: then the executor takes memory of the host for
     * it. */
    size_t (*offload)(void *user, size_t at, const void *from, size_t bytes);
    size_t (*reload)(void *user, size_t at, void *to, size_t bytes);
    int (*progress)(void *user, const gckpt_progress *);
    void (*own_optimiser)(void *user, const gckpt_update *);
    void *user; /* for the callbacks */
    /* The program's own thread pool: call body(context, 0..n-1) in any order, return when all are
     * done; used when the plan has threads > 1; NULL: OpenMP when compiled in, else serial.
     * With OpenMP a whole call (gckpt_step, gckpt_forward, ...) is one parallel region, unless the
     * step is so small that waking threads would cost more. The callbacks above and the kernels of
     * user ops run in it, on the calling thread; a region of their own has one thread (unless
     * omp_set_max_active_levels allows more), and they must return. */
    void (*parallel_for)(void *user, int64_t n, void (*body)(void *context, int64_t i),
                         void *context);
} gckpt_exec_desc;
/* NULL on error, which is then the store's. Creates values and optimiser state, from the store's
 * memory, where they are missing, all or none; refuses state of another optimiser
 * (gckpt_store_reset), as does a step when such state was loaded later. Where the system promises
 * more memory than it has (overcommit), only what is beyond all of it is refused. The plan is
 * copied (but for a C constant) and may be freed; the store must live as long as it is used. */
GCKPT_API gckpt_exec *gckpt_exec_new(const gckpt_plan *plan, gckpt_store *store,
                                     const gckpt_exec_desc *desc);
GCKPT_API void gckpt_exec_free(gckpt_exec *exec);

typedef struct {
    int input;        /* gckpt_id */
    const void *data; /* all rows of it */
} gckpt_feed;
typedef struct {
    double loss;      /* sum over terms of weight * sum / count */
    double grad_norm; /* of the divided gradients, before clipping */
    int64_t count;    /* of the first loss; 0: nothing was changed */
    uint64_t step;    /* updates done, this one included */
} gckpt_report;
/* A step of `rows` rows: all micro-batches, one division, clipping, update. report may be NULL. */
GCKPT_API gckpt_result gckpt_step(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                  int64_t rows, const gckpt_hyper *hyper, gckpt_report *report);
/* Forward of an INFERENCE plan over any number of rows; losses are summed over all of them. */
GCKPT_API gckpt_result gckpt_forward(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                     int64_t rows, gckpt_report *report);
/* Positions that the caches hold: each gckpt_forward adds its T, and is E_ARG when that is more
 * than they have room for. rewind forgets those from `position` on (0: all); E_ARG: there are not
 * as many. */
GCKPT_API int64_t gckpt_position(const gckpt_exec *exec);
GCKPT_API gckpt_result gckpt_rewind(gckpt_exec *exec, int64_t position);
/* Rows that arrive bit by bit (a sensor): same bits as one gckpt_step over all of them. Feeds are
 * read in the call only. desc.batch must exceed the graph's rows, losses share their targets. */
GCKPT_API gckpt_result gckpt_step_begin(gckpt_exec *exec, const gckpt_hyper *hyper);
GCKPT_API gckpt_result gckpt_step_add(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                      int64_t rows);
GCKPT_API gckpt_result gckpt_step_end(gckpt_exec *exec, gckpt_report *report);
/* A step in pieces: start, then run_some until it no longer returns GCKPT_MORE. Feeds must stay
 * where they are, or be copied (copy_feeds). Starting another step abandons this one. */
GCKPT_API gckpt_result gckpt_step_start(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                        int64_t rows, const gckpt_hyper *hyper);
GCKPT_API gckpt_result gckpt_run_some(gckpt_exec *exec, int instructions, gckpt_report *report);
GCKPT_API gckpt_instruction gckpt_next(const gckpt_exec *exec); /* run_some's next; id -1: none */
/* A tensor or gradient of desc.fetch, valid until the next step starts; NULL: not picked. */
GCKPT_API const float *gckpt_fetch(const gckpt_exec *exec, int id, int gradient);
/* With GCKPT_DEBUG_MEASURE, after two steps: store bytes + the highest arena byte that was touched
 * + 1 (an op's scratch counts whole). */
GCKPT_API size_t gckpt_bytes_measured(const gckpt_exec *exec);
/* The instruction set an executor uses; its name; whether this build and processor have it. */
GCKPT_API gckpt_isa gckpt_exec_isa(const gckpt_exec *exec);
GCKPT_API const char *gckpt_isa_name(gckpt_isa isa);
GCKPT_API int gckpt_isa_available(gckpt_isa isa);
/* Threads this build can use: OpenMP's number, or 1. */
GCKPT_API int gckpt_threads(void);

/* Learning rate at `step` (0-based): linear warm-up over `warmup` steps to `lr`, then half a cosine
 * to `min_lr` at `steps`. Loshchilov & Hutter 2017. */
GCKPT_API float gckpt_lr_cosine(uint64_t step, uint64_t warmup, uint64_t steps, float lr,
                                float min_lr);

/* >>api-check ---------------------------------------------------------------------------------- */
typedef struct {
    double worst;      /* greatest relative difference, of the directions that could be resolved */
    double resolution; /* the coarsest: a smaller relative difference may not have been seen */
    int directions;    /* two of each trainable parameter */
    int unresolved;    /* of them: rounding of the loss hides whether they are right */
    const char *name;  /* parameter of `worst`; when UNRESOLVED, of `resolution`. The executor's */
} gckpt_check;
/* Compares the gradient of every trainable parameter with central differences of the loss along the
 * gradient and along a random direction. E_DATA: one differs by more than 0.01. GCKPT_UNRESOLVED:
 * none does, but some cannot be told: a loss that is large beside its changes (targets far from the
 * outputs) is too coarse in f32, and then half a gradient, or twice it, may look the same. The
 * executor's error text has names and figures. A gradient that is zero but for rounding (what a
 * norm or softmax cancels) is right when the loss shows no slope and is fine enough to show one of
 * 0.01 of the steepest parameter's. Weights are restored to the bit. check may be NULL. */
GCKPT_API gckpt_result gckpt_check_gradients(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                             int64_t rows, gckpt_check *check);
/* Times the ops on this machine, for desc.costs: costs[id] is the nanoseconds of an op's forward
 * and backward over one micro-batch, at least 1; cost_count: highest id + 1. *update (NULL: not
 * wanted) is what a step takes besides: checks, division, norm, update. `seconds` is a clock that
 * starts anywhere. Any training plan will do that does not update in the backward; rows: a multiple
 * of its micro-batch. Of 6 to 32 runs (a quarter of a second, unless 6 take longer) the first is
 * discarded; each op gets its median. Nothing is updated: weights, state and step stay as they are,
 * bit for bit (each parameter in turn is updated, timed and put back; an own optimiser is not
 * called). Costs are those of the graph as it was built: where another form of an op was timed, in
 * proportion to the model's. Ops that the plan does not run get the plan's own cost in the unit of
 * the others. A recompute is taken to last as long as the first forward; with cold caches it takes
 * more, when it leaves only what the backward needs, less. */
GCKPT_API gckpt_result gckpt_calibrate(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                       int64_t rows, double (*seconds)(void *user), void *user,
                                       gckpt_cost *costs, int cost_count, uint64_t *update);
/* A plan that gckpt_fit_timed tried. */
typedef struct {
    int64_t rows;    /* gckpt_plan_rows */
    size_t bytes;    /* gckpt_plan_bytes */
    uint64_t work;   /* gckpt_plan_step_work: the prediction */
    double overhead; /* gckpt_plan_overhead */
    double seconds;  /* of a step but for its updates, the least of `runs` */
    int runs;        /* 0: the time was over */
} gckpt_trial;
enum { GCKPT_MAX_TRIALS = 16 };
typedef struct {
    double (*seconds)(void *user); /* a clock that starts anywhere */
    void *user;
    double limit;            /* seconds; a step that was begun is ended. 0: nothing is tried */
    const gckpt_feed *feeds; /* of a whole batch; build may fill in the ids */
    int feed_count;
    /* how steps will run, or NULL; unused: progress, copy_feeds, debug but for DEBUG_PLAIN */
    const gckpt_exec_desc *exec;
    /* what came of it; the first is gckpt_fit's plan, trials[fastest] the one that is returned */
    gckpt_trial trials[GCKPT_MAX_TRIALS];
    int count, fastest;
} gckpt_timed;
/* As gckpt_fit, but of the plans predicted best the one that runs fastest here. Work adds up op by
 * op and cannot show what all that is live does to the caches: smaller micro-batches, or
 * recomputing, may be faster than predicted. So gckpt_fit's plans for fewer and fewer bytes, and
 * those for larger micro-batches, are tried while they have at most a quarter more work; they take
 * turns, slow ones drop out; a gain below 1/64 counts as chance. The choice is this machine's and
 * moment's; results are the same bits. Steps run within the budget on the store's parameters, but
 * do not update: values, state and step stay, bit for bit. Half the limit may go into planning. */
GCKPT_API gckpt_plan *gckpt_fit_timed(gckpt_store *store, gckpt_build build, void *user,
                                      int64_t batch, const gckpt_plan_desc *desc,
                                      gckpt_measure measure, gckpt_timed *timed);

#ifdef __cplusplus
}
#endif
#endif /* GRADCKPT_H */

#if defined(GRADCKPT_IMPLEMENTATION) && !defined(GRADCKPT_IMPLEMENTED)
#define GRADCKPT_IMPLEMENTED
/* =================================================================================================
 * >>base: configuration, errors, memory, shapes, threads
 * ============================================================================================== */
#include <float.h>
#include <stdarg.h>
#include <string.h>
#ifndef GCKPT_NO_STDIO
#include <errno.h>
#include <stdio.h>
#if defined(__unix__) || defined(__APPLE__)
#define GCKPTI_POSIX 1
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#else
#define GCKPTI_POSIX 0
#endif
#endif
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef GCKPT_OPENBLAS
#include <cblas.h>
#endif
#if (defined(__unix__) || defined(__APPLE__)) && (defined(_OPENMP) || defined(GCKPTI_TEAMS))
#include <sched.h>
#include <sys/select.h>
#endif

#if defined(GCKPT_REALLOC) != defined(GCKPT_FREE)
#error "gradckpt.h: define both GCKPT_REALLOC(p,n) and GCKPT_FREE(p), or neither"
#endif
#if !defined(GCKPT_REALLOC) && !defined(GCKPT_NO_HEAP)
#include <stdlib.h>
#define GCKPT_REALLOC(p, n) realloc(p, n)
#define GCKPT_FREE(p)       free(p)
#define GCKPTI_HEAP_WHOLE   (SIZE_MAX > 0xffffffffu) /* an address space that is never in pieces */
#if defined(__linux__) && defined(__GNUC__)
#include <sys/mman.h>
#ifdef MADV_HUGEPAGE
#define GCKPTI_HUGE_PAGES 1
#elif !defined(__cplusplus) /* -std=c99 and _POSIX_C_SOURCE hide it, but it is there */
#define GCKPTI_HUGE_PAGES 1
extern int madvise(void *start, size_t size, int advice);
#endif
#endif
#endif
#ifndef GCKPTI_HUGE_PAGES
#define GCKPTI_HUGE_PAGES 0
#endif
#ifndef GCKPTI_HEAP_WHOLE
#define GCKPTI_HEAP_WHOLE 0
#endif
#ifndef GCKPT_ASSERT
#define GCKPT_ASSERT(x) ((void)0)
#endif

/* Arithmetic must be exactly what is written (manual, 5). gcc can be told so here, whatever the
 * command line says; clang cannot be rescued from -ffast-math, nor anyone from x87 registers. */
#if defined(__FAST_MATH__) && (defined(__clang__) || !defined(__GNUC__))
#error "gradckpt.h: -ffast-math breaks the numeric contract; compile this file without it"
#endif
#if defined(_M_FP_FAST)
#error "gradckpt.h: /fp:fast breaks the numeric contract; compile this file with /fp:precise"
#endif
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0 && !defined(__FAST_MATH__)
#error "gradckpt.h: FLT_EVAL_METHOD must be 0; on 32-bit x86 use -msse2 -mfpmath=sse"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#if __clang_major__ >= 12
#pragma float_control(push)
#pragma float_control(precise, on)
#endif
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("no-fast-math", "fp-contract=off", "no-math-errno")
#elif defined(_MSC_VER)
#pragma fp_contract(off)
#endif

/* Vector instructions come after the pragmas, which hold for their inline functions too. HAS_FAST:
 * the kernels of section fast exist here. X86: those for AVX too (gcc on Windows misaligns vectors:
 * its bug 54412). SQRT: square roots by SSE2 (1), NEON (2) or integers (0). */
#if defined(GCKPT_NO_FAST) || defined(GCKPT_FORCE_SOFT_FMA) || !defined(__GNUC__) ||               \
    UINTPTR_MAX < UINT64_MAX
#define GCKPTI_HAS_FAST 0
#else
#define GCKPTI_HAS_FAST 1
#endif
#if GCKPTI_HAS_FAST && defined(__x86_64__) && (!defined(_WIN32) || defined(__clang__))
#define GCKPTI_X86 1
#include <immintrin.h>
#else
#define GCKPTI_X86 0
#endif
#if defined(GCKPTI_SQRT)
#elif !defined(GCKPT_FORCE_SOFT_FMA) && (defined(__SSE2__) || defined(_M_X64))
#define GCKPTI_SQRT 1
#include <emmintrin.h>
#elif !defined(GCKPT_FORCE_SOFT_FMA) && defined(__aarch64__)
#define GCKPTI_SQRT 2
#include <arm_neon.h>
#else
#define GCKPTI_SQRT 0
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* For a device that has a compiler of its own (gradckpt_cuda.cu): what stands before functions that
 * it takes, too, and before their tables; GCKPTI_FMA and GCKPTI_SQRT are 3 there: fmaf, sqrtf. */
#ifndef GCKPTI_DEVICE
#define GCKPTI_DEVICE
#define GCKPTI_TABLE static const
#endif
#define GCKPTI_INLINE      GCKPTI_DEVICE static inline
#define GCKPTI_ADDRESSABLE (PTRDIFF_MAX / 8) /* bytes in a step arena, at most */
#define GCKPTI_NONE        SIZE_MAX          /* "no offset" */
#define GCKPTI_TEXT        256               /* bytes of an error text */

/* Every object a user can ask for an error begins with this. `sticky` (graphs): the first error
 * while building stays; `last` is replaced by each later call. */
#define GCKPTI_MAGIC 0x67636b70u
typedef struct {
    uint32_t magic;
    gckpt_result sticky, last;
    char text[GCKPTI_TEXT];
} gckpti_object;

GCKPT_API gckpt_result gckpt_error(const void *object)
{
    const gckpti_object *o = (const gckpti_object *)object;
    if (!o)
        return GCKPT_E_MEMORY;
    if (o->magic != GCKPTI_MAGIC) /* a tensor, say */
        return GCKPT_E_ARG;
    return o->sticky != GCKPT_OK ? o->sticky : o->last;
}

GCKPT_API const char *gckpt_result_text(gckpt_result result)
{
#define GCKPTI_RESULT_TEXT(name, text) text,
    static const char *const texts[] = { GCKPT_RESULTS(GCKPTI_RESULT_TEXT) };
#undef GCKPTI_RESULT_TEXT
    return (unsigned)result < GCKPT_RESULT_COUNT ? texts[result] : "not a gckpt_result";
}

GCKPT_API const char *gckpt_error_text(const void *object)
{
    const gckpti_object *o = (const gckpti_object *)object;
    gckpt_result result = gckpt_error(object);
    return o && o->magic == GCKPTI_MAGIC && result != GCKPT_OK && o->text[0]
               ? o->text
               : gckpt_result_text(result);
}

/* ---- text without stdio ---- */
typedef struct {
    char *at;
    size_t left;
} gckpti_text; /* left: room, the final zero not counted */

static void gckpti_text_put(gckpti_text *t, const char *s, size_t n)
{
    if (n > t->left)
        n = t->left;
    memcpy(t->at, s, n);
    t->at += n;
    t->left -= n;
    *t->at = 0;
}

static void gckpti_text_uint(gckpti_text *t, uint64_t value)
{
    char digits[20];
    int n = 20;
    do {
        digits[--n] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    gckpti_text_put(t, digits + n, (size_t)(20 - n));
}

static void gckpti_text_int(gckpti_text *t, int64_t value)
{
    if (value < 0)
        gckpti_text_put(t, "-", 1);
    gckpti_text_uint(t, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

/* Six significant digits, e.g. 0.0123457, 12345.7, 1.5e-09: for people, not to be read back. */
static void gckpti_text_double(gckpti_text *t, double value)
{
    int point = 6; /* digits before the decimal point */
    if (value < 0) {
        gckpti_text_put(t, "-", 1);
        value = -value;
    }
    if (!(value <= DBL_MAX)) {
        gckpti_text_put(t, value > DBL_MAX ? "inf" : "nan", 3);
        return;
    }
    for (; value >= 1e6; point++)
        value /= 10;
    for (; value > 0 && value < 1e5; point--)
        value *= 10;
    uint64_t digits = (uint64_t)(value + 0.5); /* six of them, or 1000000, or 0 */
    char d[24];
    gckpti_text number = { d, sizeof d - 1 };
    gckpti_text_uint(&number, digits);
    int n = (int)(number.at - d);
    point += n > 6;
    int exponent = digits && (point > 9 || point < -3) ? point - 1 : 0;
    point = exponent || !digits ? 1 : point;
    while (n > 1 && d[n - 1] == '0')
        n--;
    for (int i = point < 1 ? point - 1 : 0; i < n || i < point; i++) {
        if (i == point)
            gckpti_text_put(t, ".", 1);
        gckpti_text_put(t, i < 0 || i >= n ? "0" : d + i, 1);
    }
    if (exponent) {
        gckpti_text_put(t, "e", 1);
        gckpti_text_int(t, exponent);
    }
}

static const char *gckpti_tensor_label(const gckpt_tensor *t, char *buffer, size_t size);
static void gckpti_text_add(gckpti_text *t, const char *format, ...);

/* A shape that is being refused may have any number of axes; only six are there to be read. */
static void gckpti_text_shape(gckpti_text *t, const gckpt_shape *s)
{
    int known = s->n >= 0 && s->n <= GCKPT_MAX_DIMS;
    for (int i = 0; i < s->n && known; i++)
        gckpti_text_add(t, i ? ",%I" : "[%I", s->d[i]);
    if (!known)
        gckpti_text_add(t, "[%i axes; 0 to %i are possible", s->n, GCKPT_MAX_DIMS);
    gckpti_text_put(t, s->n ? "]" : "[]", s->n ? 1 : 2);
}

/* Directives: see gckpt_fail. */
static void gckpti_text_format(gckpti_text *t, const char *format, va_list args)
{
    char label[64];
    for (const char *f = format; *f; f++) {
        if (*f != '%') {
            gckpti_text_put(t, f, 1);
            continue;
        }
        const char *s = NULL;
        switch (*++f) {
        case 's': s = va_arg(args, const char *); break;
        case 'i': gckpti_text_int(t, va_arg(args, int)); break;
        case 'I': gckpti_text_int(t, va_arg(args, int64_t)); break;
        case 'z': gckpti_text_uint(t, va_arg(args, size_t)); break;
        case 'u': gckpti_text_uint(t, va_arg(args, uint64_t)); break;
        case 'g': gckpti_text_double(t, va_arg(args, double)); break;
        case 'S': gckpti_text_shape(t, va_arg(args, const gckpt_shape *)); break;
        case 'T':
            s = gckpti_tensor_label(va_arg(args, const gckpt_tensor *), label, sizeof label);
            break;
        case 0: return;
        default: gckpti_text_put(t, f, 1); break;
        }
        if (s)
            gckpti_text_put(t, s, strlen(s));
    }
}

static void gckpti_text_add(gckpti_text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    gckpti_text_format(t, format, args);
    va_end(args);
}

static void gckpti_say(gckpti_object *o, const char *format, va_list args)
{
    gckpti_text t = { o->text, sizeof o->text - 1 };
    o->text[0] = 0;
    gckpti_text_format(&t, format, args);
}

/* Replaces the object's last error (nothing when a sticky one is there) and returns it. */
static gckpt_result gckpti_error(void *object, gckpt_result result, const char *format, ...)
{
    gckpti_object *o = (gckpti_object *)object;
    if (!o || o->sticky != GCKPT_OK)
        return result;
    va_list args;
    va_start(args, format);
    o->last = result;
    gckpti_say(o, format, args);
    va_end(args);
    return result;
}

static gckpt_result gckpti_ok(void *object)
{
    gckpti_object *o = (gckpti_object *)object;
    o->last = GCKPT_OK;
    if (o->sticky == GCKPT_OK)
        o->text[0] = 0;
    return GCKPT_OK;
}

/* ---- what goes out through a callback: gathered, and nothing more of it after a failure ---- */
typedef struct {
    gckpt_write_fn write; /* NULL: only count */
    void *user;
    size_t total, used;
    int failed;
    unsigned char block[1024];
} gckpti_sink;

static gckpt_result gckpti_sink_flush(gckpti_sink *k)
{
    if (k->write && !k->failed && k->used && k->write(k->user, k->block, k->used) != k->used)
        k->failed = 1;
    k->used = 0;
    return k->failed ? GCKPT_E_FILE : GCKPT_OK;
}

/* Takes n bytes; a full block goes to the callback. */
static void gckpti_sink_put(gckpti_sink *k, const void *bytes, size_t n)
{
    const unsigned char *b = (const unsigned char *)bytes;
    k->total += n;
    while (n && !k->failed) {
        size_t room = sizeof k->block - k->used, some = n < room ? n : room;
        memcpy(k->block + k->used, b, some);
        k->used += some;
        b += some;
        n -= some;
        if (k->used == sizeof k->block)
            gckpti_sink_flush(k);
    }
}

/* The low `bytes` bytes of a number, little-endian. */
static void gckpti_sink_number(gckpti_sink *k, uint64_t value, int bytes)
{
    unsigned char little[8];
    for (int i = 0; i < bytes; i++)
        little[i] = (unsigned char)(value >> (8 * i));
    gckpti_sink_put(k, little, (size_t)bytes);
}

/* At most 511 bytes a call; directives: see gckpt_fail. */
static void gckpti_print(gckpti_sink *k, const char *format, ...)
{
    char line[512];
    gckpti_text t = { line, sizeof line - 1 };
    va_list args;
    va_start(args, format);
    gckpti_text_format(&t, format, args);
    va_end(args);
    gckpti_sink_put(k, line, (size_t)(t.at - line));
}

/* ---- memory: the one allocation site ---- */
typedef struct {
    gckpt_memory desc;
    size_t used;
} gckpti_allocator;

#define GCKPTI_ALIGN 16u /* of everything the allocator returns */

static size_t gckpti_round_up(size_t n, size_t alignment)
{
    return (n + (alignment - 1)) / alignment * alignment;
}

#ifdef GCKPT_REALLOC
/* Asks for pages of 2 MiB where whole ones lie within a large block; it is only a wish. Parameters
 * and arenas are read from end to end, and pages of 4 KiB make a miss of every one of them. */
static void gckpti_wish_huge(void *ptr, size_t size)
{
#if GCKPTI_HUGE_PAGES
    const size_t page = (size_t)2 << 20;
    size_t skip = (page - (uintptr_t)ptr % page) % page;
    if (ptr && size >= 2 * page)
        (void)madvise((char *)ptr + skip, (size - skip) / page * page, 14); /* MADV_HUGEPAGE */
#else
    (void)ptr, (void)size;
#endif
}
#endif

/* As realloc, told the old size; new_size 0 frees and returns NULL. In a block, only the last piece
 * can grow in place or be given back; it is meant for objects that live as long as it does. */
static void *gckpti_resize(gckpti_allocator *a, void *ptr, size_t old_size, size_t new_size)
{
    if (new_size > PTRDIFF_MAX - 64)
        return NULL;
    if (a->desc.memory) {
        unsigned char *base = (unsigned char *)a->desc.memory;
        size_t past = (size_t)((uintptr_t)base % GCKPTI_ALIGN); /* a block may begin anywhere */
        size_t next = gckpti_round_up(a->used + past, GCKPTI_ALIGN) - past;
        size_t at = ptr ? (size_t)((unsigned char *)ptr - base) : next;
        if (ptr && gckpti_round_up(at + past + old_size, GCKPTI_ALIGN) - past < a->used) {
            if (new_size <= old_size) /* not the last piece */
                return new_size ? ptr : NULL;
            void *fresh = gckpti_resize(a, NULL, 0, new_size);
            if (fresh)
                memcpy(fresh, ptr, old_size);
            return fresh;
        }
        if (at > a->desc.size || new_size > a->desc.size - at)
            return NULL;
        a->used = at + new_size;
        return new_size ? base + at : NULL;
    }
    if (a->desc.resize)
        return ptr || new_size ? a->desc.resize(a->desc.user, ptr, old_size, new_size) : NULL;
#ifdef GCKPT_REALLOC
    if (new_size) {
        void *fresh = GCKPT_REALLOC(ptr, new_size);
        if (!ptr)
            gckpti_wish_huge(fresh, new_size);
        return fresh;
    }
    if (ptr)
        GCKPT_FREE(ptr);
#endif
    return NULL;
}

/* n items of `size` bytes, zeroed; NULL when out of memory or when the product overflows. */
static void *gckpti_new(gckpti_allocator *a, size_t n, size_t size)
{
    if (size && n > (size_t)PTRDIFF_MAX / size)
        return NULL;
    size_t bytes = n * size;
    void *p = gckpti_resize(a, NULL, 0, bytes > 0 ? bytes : 1);
    if (p)
        memset(p, 0, bytes);
    return p;
}

static void gckpti_delete(gckpti_allocator *a, void *ptr, size_t n, size_t size)
{
    size_t bytes = n * size;
    if (ptr)
        gckpti_resize(a, ptr, bytes > 0 ? bytes : 1, 0);
}

/* 0: the heap has not got so much. Asked for in one piece, as systems that promise more memory than
 * they have (overcommit) still refuse what could never be there; many pieces they would promise,
 * and end the program when it writes to them. */
static int gckpti_has_room(gckpti_allocator *a, size_t bytes)
{
    if (!GCKPTI_HEAP_WHOLE || a->desc.memory || a->desc.resize)
        return 1;
    void *p = gckpti_resize(a, NULL, 0, bytes);
    gckpti_delete(a, p, bytes, 1);
    return p != NULL;
}

/* Room for one more item in a growing array; 0 when out of memory (the array stays as it was). */
static int gckpti_grow(gckpti_allocator *a, void *array, size_t *capacity, size_t count,
                       size_t size)
{
    void *items;
    if (count < *capacity)
        return 1;
    size_t more = *capacity ? *capacity * 2 : 16;
    if (more > (size_t)PTRDIFF_MAX / size)
        return 0;
    memcpy(&items, array, sizeof items); /* `array` is the address of a pointer of some type */
    items = gckpti_resize(a, items, *capacity * size, more * size);
    if (!items)
        return 0;
    memcpy(array, &items, sizeof items);
    *capacity = more;
    return 1;
}

/* ---- heap sort: without recursion, the same on every machine when no two are equal ---- */
typedef int (*gckpti_before)(const void *a, const void *b, const void *context);

static void gckpti_swap(unsigned char *a, unsigned char *b, size_t size)
{
    unsigned char piece[64];
    for (size_t n; size > 0; a += n, b += n, size -= n) {
        n = size < sizeof piece ? size : sizeof piece;
        memcpy(piece, a, n);
        memcpy(a, b, n);
        memcpy(b, piece, n);
    }
}

static void gckpti_sort(void *items, size_t n, size_t size, gckpti_before before,
                        const void *context)
{
    unsigned char *v = (unsigned char *)items;
    for (size_t built = n / 2, end = n; end > 1;) {
        size_t at = 0;
        if (built > 0)
            at = --built; /* still making the heap */
        else
            gckpti_swap(v, v + --end * size, size);
        for (size_t child; end > 1 && (child = 2 * at + 1) < end; at = child) {
            if (child + 1 < end && before(v + child * size, v + (child + 1) * size, context))
                child++;
            if (!before(v + at * size, v + child * size, context))
                break;
            gckpti_swap(v + at * size, v + child * size, size);
        }
    }
}

/* ---- shapes ---- */
static gckpt_shape gckpti_shape(int n, int64_t a, int64_t b, int64_t c, int64_t d)
{
    gckpt_shape s;
    memset(&s, 0, sizeof s);
    s.n = n;
    s.d[0] = a, s.d[1] = b, s.d[2] = c, s.d[3] = d;
    return s;
}

GCKPT_API gckpt_shape gckpt_shape1(int64_t a) { return gckpti_shape(1, a, 0, 0, 0); }
GCKPT_API gckpt_shape gckpt_shape2(int64_t a, int64_t b) { return gckpti_shape(2, a, b, 0, 0); }
GCKPT_API gckpt_shape gckpt_shape3(int64_t a, int64_t b, int64_t c)
{
    return gckpti_shape(3, a, b, c, 0);
}
GCKPT_API gckpt_shape gckpt_shape4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return gckpti_shape(4, a, b, c, d);
}

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

static int gckpti_same_shape(const gckpt_shape *a, const gckpt_shape *b)
{
    if (a->n != b->n)
        return 0;
    for (int i = 0; i < a->n; i++)
        if (a->d[i] != b->d[i])
            return 0;
    return 1;
}

/* 1 when all sizes are positive and the bytes of a few such tensors cannot overflow anything. */
static int gckpti_shape_fits(const gckpt_shape *s)
{
    uint64_t limit = SIZE_MAX / 64 < INT64_MAX / 64 ? SIZE_MAX / 64 : INT64_MAX / 64, n = 1;
    if (s->n < 0 || s->n > GCKPT_MAX_DIMS)
        return 0;
    for (int i = 0; i < s->n; i++) {
        if (s->d[i] <= 0 || (uint64_t)s->d[i] > limit / n)
            return 0;
        n *= (uint64_t)s->d[i];
    }
    return 1;
}

/* An input gradient's element: add to it or store it first (manual, 5f). */
GCKPTI_INLINE void gckpti_put(float *d, float v, int accumulate) { *d = accumulate ? *d + v : v; }

/* *d += x (manual, 5e): what the last addition rounded off, kept in low, goes into this one, so
 * that sums are right to an ulp or two of the sum of magnitudes. NULL low: there is just one x. */
GCKPTI_INLINE void gckpti_sum_add(float *d, float *low, float x)
{
    float y = low ? x - *low : x, s = *d + y;
    if (low)
        *low = (s - *d) - y;
    *d = s;
}

GCKPT_API void gckpt_sum_add(float *sum, float *low, float x) { gckpti_sum_add(sum, low, x); }

/* ---- threads ---- */
GCKPT_API int gckpt_threads(void)
{
#ifdef _OPENMP
    int n = omp_get_max_threads();
    return n > 1 ? n : 1;
#else
    return 1;
#endif
}

/* How calls start threads. */
typedef struct {
    void (*parallel_for)(void *user, int64_t n, void (*body)(void *context, int64_t i),
                         void *context); /* the program's own */
    void *user;
    struct gckpti_team *team; /* NULL: none, or not needed */
} gckpti_runner;

#if GCKPTI_HAS_FAST
/* GCKPTI_TEAMS: one OpenMP region lasts for a run, and its threads share out the jobs of all its
 * instructions (elsewhere: a region for each job). Tests set it to 1 to bring their own threads. */
#ifndef GCKPTI_TEAMS
#if (defined(__unix__) || defined(__APPLE__)) && defined(_OPENMP)
#define GCKPTI_TEAMS 1
#else
#define GCKPTI_TEAMS 0
#endif
#endif
#if GCKPTI_TEAMS
/* A job is body(context, 0..n-1). Only thread 0 gives out jobs, one after the other, and it works
 * too. `left` counts the items nobody has claimed, `open` those that are not finished.
 *
 * Why a thread that comes late, or sleeps anywhere in here, does no harm:
 * - An item is claimed by taking one from `left`, and is one's own if something was left. What
 *   this item is, the thread reads only afterwards. So what it saw before plays no part: if a job
 *   ended and another began meanwhile, it has claimed an item of the other.
 * - A claimed item is open until its thread says that it is finished, and thread 0 changes the job
 *   only when no item is open. So body, context and n stay as they are while they are read.
 * - Taking from a `left` of 0 or less claims nothing; the next job overwrites it.
 * - Job to items: `left` is set with release after the fields and taken from with acquire (taking
 *   continues the release sequence). Items to thread 0, and so to the next job: `open`, likewise.
 * Thread 0 waits for items that a thread has claimed, and for nothing else. */
typedef struct gckpti_team {
    void (*body)(void *context, int64_t i);
    void *context;
    int64_t n;
    int busy; /* a job is under way */
    int over; /* no more jobs */
    int gone; /* threads that have seen it */
    char apart[64];
    int64_t left;
    char apart2[64]; /* cache lines of their own */
    int64_t open;
    char apart3[64];
} gckpti_team;

static void gckpti_team_help(gckpti_team *t)
{
    int64_t done = 0;
    while (__atomic_load_n(&t->left, __ATOMIC_RELAXED) > 0) {
        int64_t left = __atomic_fetch_sub(&t->left, 1, __ATOMIC_ACQUIRE);
        if (left <= 0)
            break;
        t->body(t->context, t->n - left);
        done++;
    }
    if (done)
        __atomic_fetch_sub(&t->open, done, __ATOMIC_ACQ_REL);
}

/* Some 40 ns in which a thread beside this one on its core gets more of it. */
static void gckpti_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#else
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
#endif
}

/* Spins for 20 to 50 us, so that the next job finds the thread awake, then lets others have the
 * processor, then sleeps: a processor without work takes over what waits on a busy one. */
static void gckpti_team_wait(int *waited)
{
    if (*waited < 1000) {
        gckpti_pause();
    } else if (*waited < 1004) {
        sched_yield();
    } else {
        struct timeval pause = { 0, *waited < 1012 ? 20 : 100 };
        select(0, NULL, NULL, NULL, &pause);
    }
    *waited += *waited < 2000;
}

/* What threads but 0 do until thread 0 ends the team. */
static void gckpti_team_work(gckpti_team *t)
{
    for (int waited = 0; !__atomic_load_n(&t->over, __ATOMIC_ACQUIRE);) {
        if (__atomic_load_n(&t->left, __ATOMIC_RELAXED) > 0) {
            gckpti_team_help(t);
            waited = 0;
        }
        gckpti_team_wait(&waited);
    }
    __atomic_fetch_add(&t->gone, 1, __ATOMIC_RELEASE);
}

/* Thread 0 waits here for the others and not in OpenMP's barrier, which may spin for so long that a
 * thread without a processor never gets this one. */
static void gckpti_team_end(gckpti_team *t, int others)
{
    __atomic_store_n(&t->over, 1, __ATOMIC_RELEASE);
    for (int waited = 0; __atomic_load_n(&t->gone, __ATOMIC_ACQUIRE) < others;)
        gckpti_team_wait(&waited);
}

static void gckpti_team_run(gckpti_team *t, int64_t n, void (*body)(void *context, int64_t i),
                            void *context)
{
    int waited = 0;
    t->body = body;
    t->context = context;
    t->n = n;
    t->busy = 1;
    __atomic_store_n(&t->open, n, __ATOMIC_RELAXED);
    __atomic_store_n(&t->left, n, __ATOMIC_RELEASE);
    gckpti_team_help(t);
    while (__atomic_load_n(&t->open, __ATOMIC_ACQUIRE) > 0)
        gckpti_team_wait(&waited);
    t->busy = 0;
}
#endif

#endif

/* Runs body(context, i) for i = 0..n-1 on up to call->threads threads, in any order. */
static void gckpti_job(const gckpt_call *call, int64_t n, void (*body)(void *context, int64_t i),
                       void *context)
{
#if GCKPTI_HAS_FAST
    const gckpti_runner *runner = (const gckpti_runner *)call->runner;
    if (n > 1 && call->threads > 1 && runner) {
        if (runner->parallel_for) {
            runner->parallel_for(runner->user, n, body, context);
            return;
        }
#if GCKPTI_TEAMS
        if (runner->team && !runner->team->busy) {
            gckpti_team_run(runner->team, n, body, context);
            return;
        }
#elif defined(_OPENMP)
        int threads = n < call->threads ? (int)n : call->threads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t i = 0; i < n; i++)
            body(context, i);
        return;
#endif
    }
#endif
    (void)call;
    for (int64_t i = 0; i < n; i++)
        body(context, i);
}

/* Runs main(context) on this thread, with a team of up to `threads`, this one too, for its jobs. */
static void gckpti_with_team(gckpti_runner *runner, int threads, void (*main)(void *context),
                             void *context)
{
#if GCKPTI_HAS_FAST && defined(_OPENMP) && GCKPTI_TEAMS
    if (threads > 1 && !runner->parallel_for && !runner->team) {
        gckpti_team team;
        memset(&team, 0, sizeof team);
#pragma omp parallel num_threads(threads)
        if (omp_get_thread_num() == 0) {
            runner->team = omp_get_num_threads() > 1 ? &team : NULL;
            main(context);
            runner->team = NULL;
            gckpti_team_end(&team, omp_get_num_threads() - 1);
        } else {
            gckpti_team_work(&team);
        }
        return;
    }
#endif
    (void)runner, (void)threads;
    main(context);
}
/* ---- >>numerics ---------------------------------------------------------------------------------
 * Everything that could differ between two machines, made the same: one fused multiply-add, our own
 * transcendentals on top of it, one order for every sum, counter-based random numbers, one hash.
 *
 * The rule that keeps the bits equal under any compiler: a product never feeds an addition, except
 *   - inside gckpti_fma, which rounds once by definition;
 *   - where the product is exact (powers of two; two floats multiplied in double), so that it does
 *     not matter whether the compiler contracts it. A value that leaves a function as a product
 *     could be contracted after inlining, so such results go through gckpti_mul.
 * Polynomials are minimax fits (Lawson's weighted least squares in 40 digits, coefficients rounded
 * to float one after the other, the rest refitted); "fit 2^-28" is the fit's own relative error.
 * A vector version mirrors exp, tanh and erf operation by operation: selects are written as
 * x < a ? a : x, which is what min and max instructions do, also for NaN. */

/* 1: the builtin is one instruction; 2: clang would call libm's fmaf, which may be wrong (no glibc
 * and -fmath-errno: firmware, musl), so the instruction is written out; 0: emulation.
 * GCKPT_FORCE_SOFT_FMA chooses the emulation and the integer square root, for tests. */
#ifndef GCKPTI_FMA
#if defined(GCKPT_FORCE_SOFT_FMA) || !defined(__GNUC__) ||                                         \
    !(defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA))
#define GCKPTI_FMA 0
#elif !defined(__clang__) || defined(__NO_MATH_ERRNO__) || defined(__GLIBC__)
#define GCKPTI_FMA 1
#elif defined(__aarch64__) || defined(__arm__) || defined(__x86_64__)
#define GCKPTI_FMA 2
#else
#define GCKPTI_FMA 0
#endif
#endif

GCKPTI_INLINE uint32_t gckpti_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

GCKPTI_INLINE float gckpti_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

GCKPTI_INLINE uint64_t gckpti_bits64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

GCKPTI_INLINE double gckpti_double(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#define GCKPTI_INFINITY gckpti_float(0x7f800000u)
#define GCKPTI_NAN      gckpti_float(0x7fc00000u)

/* a*b + c, rounded once. The emulation: the product is exact in double, the sum s is off by at most
 * half an ulp of double, and rounding s to float goes wrong only when s looks like a tie (its low
 * 29 bits) or is subnormal as a float. Then the error e of s (Knuth's TwoSum) decides: an inexact s
 * with an even last bit moves one step towards the exact sum ("round to odd": Boldo and Melquiond
 * 2008), after which the second rounding is right. */
GCKPTI_INLINE float gckpti_fma(float a, float b, float c)
{
#if GCKPTI_FMA == 3
    return fmaf(a, b, c);
#elif GCKPTI_FMA == 1
    return __builtin_fmaf(a, b, c);
#elif GCKPTI_FMA == 2 && defined(__aarch64__)
    __asm__("fmadd %s0, %s1, %s2, %s0" : "+w"(c) : "w"(a), "w"(b));
    return c;
#elif GCKPTI_FMA == 2 && defined(__arm__)
    __asm__("vfma.f32 %0, %1, %2" : "+t"(c) : "t"(a), "t"(b));
    return c;
#elif GCKPTI_FMA == 2
    __asm__("vfmadd231ss %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
#else
    double p = (double)a * (double)b, s = p + (double)c;
    uint64_t u = gckpti_bits64(s);
    if ((u & 0x1fffffffu) == 0x10000000u || (u << 1) < UINT64_C(0x7020000000000000)) {
        double t = s - p, e = (p - (s - t)) + ((double)c - t);
        if ((e < 0 || e > 0) && !(u & 1))
            s = gckpti_double((e > 0) == (s > 0) ? u + 1 : u - 1);
    }
    return (float)s;
#endif
}

/* condition ? a : b by a mask: both sides are computed, so that a loop over it vectorises. */
GCKPTI_INLINE float gckpti_select(int condition, float a, float b)
{
    uint32_t mask = 0u - (uint32_t)condition;
    return gckpti_float((gckpti_bits(a) & mask) | (gckpti_bits(b) & ~mask));
}

/* a*b, out of reach of contraction; a result of -0 becomes +0. */
GCKPTI_INLINE float gckpti_mul(float a, float b) { return gckpti_fma(a, b, 0.0f); }

/* Square root of m in binary digits, rounded to nearest; m's top two bits make its first digit. */
GCKPTI_INLINE uint64_t gckpti_root(uint64_t m, int digits)
{
    uint64_t root = 0, rest = 0;
    for (int i = 0; i < digits; i++) {
        rest = rest << 2 | m >> 62;
        m <<= 2;
        root <<= 1;
        if (rest > root << 1) {
            rest -= root << 1 | 1;
            root |= 1;
        }
    }
    return root + (rest > root); /* a square root is never a tie */
}

/* Correctly rounded square root. */
GCKPTI_INLINE float gckpti_sqrt(float x)
{
#if GCKPTI_SQRT == 3
    return sqrtf(x);
#elif GCKPTI_SQRT == 1
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#elif GCKPTI_SQRT == 2
    return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0);
#else
    if (!(x > 0.0f) || x >= GCKPTI_INFINITY)
        return x < 0.0f ? GCKPTI_NAN : x;
    uint32_t tiny = gckpti_bits(x) < 0x00800000u; /* subnormals are scaled by 2^24 */
    uint32_t u = gckpti_bits(tiny ? x * 16777216.0f : x);
    uint32_t e = (u >> 23) + 129u - 24u * tiny; /* exponent + 256 */
    uint64_t m = (uint64_t)((u & 0x007fffffu) | 0x00800000u) << (39u + (e & 1));
    return gckpti_float(((e / 2 - 2u) << 23) + (uint32_t)gckpti_root(m, 24));
#endif
}

/* The same in double. */
GCKPTI_INLINE double gckpti_sqrt_double(double x)
{
#if GCKPTI_SQRT == 3
    return sqrt(x);
#elif GCKPTI_SQRT == 1
    return _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(x)));
#elif GCKPTI_SQRT == 2
    return vget_lane_f64(vsqrt_f64(vdup_n_f64(x)), 0);
#else
    uint64_t u = gckpti_bits64(x);
    if (!(x > 0.0) || u >= UINT64_C(0x7ff0000000000000))
        return x < 0.0 ? gckpti_double(UINT64_C(0x7ff8000000000000)) : x;
    uint32_t tiny = u < UINT64_C(0x0010000000000000);
    u = gckpti_bits64(tiny ? x * 18014398509481984.0 : x); /* 2^54 */
    uint32_t e = (uint32_t)(u >> 52) + 1025u - 54u * tiny; /* exponent + 2048 */
    uint64_t m = (u & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x0010000000000000);
    return gckpti_double(((uint64_t)(e / 2 - 2u) << 52) + gckpti_root(m << (10u + (e & 1)), 53));
#endif
}

GCKPTI_INLINE float gckpti_rsqrt(float x) { return 1.0f / gckpti_sqrt(x); }

/* Shared with the vector kernels. ln 2 = LN2_HI + LN2_LO; adding ROUND rounds to an integer. */
#define GCKPTI_LOG2E   1.44269504f
#define GCKPTI_LN2_HI  0.693147182f
#define GCKPTI_LN2_LO  (-1.90465432e-9f)
#define GCKPTI_ROUND   12582912.0f
#define GCKPTI_EXP_MIN (-104.0f) /* exp is 0 below, */
#define GCKPTI_EXP_MAX 89.0f     /* inf above */

/* (exp(r) - 1 - r) / r^2 on [-0.347, 0.347], fit 2^-28 of exp(r) */
GCKPTI_TABLE float gckpti_exp_c[5] = { 0.49999994f, 0.166665211f, 0.041668281f, 0.0083686905f,
                                       0.00138194906f };
/* (tanh(x)/x - 1) / x^2 in x^2, |x| <= 1, fit 2^-28 */
GCKPTI_TABLE float gckpti_tanh_c[7] = { -0.333332956f,   0.133323461f,    -0.0538798459f,
                                        0.0214866754f,   -0.00794600882f, 0.00230121962f,
                                        -0.000358392805f };
#define GCKPTI_TANH_SPLIT 1.0f
#define GCKPTI_TANH_MAX   20.0f /* of 2|x|: tanh is 1 from 9.02 on */
/* erf(x)/x - 1 in x^2, |x| <= 1, fit 2^-29 */
GCKPTI_TABLE float gckpti_erf_c[7] = { 0.128379166f,   -0.37612626f,  0.112835787f,
                                       -0.0268533472f, 0.0051871622f, -0.00079978531f,
                                       7.80690316e-05f };
/* -log(erfc(x))/x in x, 1 <= x <= 4, fit 2^-31 of erf */
GCKPTI_TABLE float gckpti_erfc_c[7] = { 1.1286943f,     0.634969711f,   0.106530547f,
                                        -0.0240097791f, 0.00375733338f, -0.000350555201f,
                                        1.39585973e-05f };
#define GCKPTI_ERF_SPLIT 1.0f
#define GCKPTI_ERF_MAX   4.0f

/* (exp(r) - 1) / r for |r| <= ln(2)/2 */
GCKPTI_INLINE float gckpti_exp_poly(float r)
{
    const float *c = gckpti_exp_c;
    float p = gckpti_fma(c[4], r, c[3]);
    p = gckpti_fma(gckpti_fma(p, r, c[2]), r, c[1]);
    p = gckpti_fma(p, r, c[0]);
    return gckpti_fma(p, r, 1.0f);
}

/* exp(x) = 2^n (1 + r p): n the nearest integer to x/ln(2), r = x - n ln(2) (Cody and Waite; with
 * an fma x - n*LN2_HI is exact); p = (exp(r) - 1) / r is returned. */
GCKPTI_INLINE float gckpti_exp_reduce(float x, float *r, uint32_t *n)
{
    float t = gckpti_fma(x, GCKPTI_LOG2E, GCKPTI_ROUND), k = t - GCKPTI_ROUND;
    *n = gckpti_bits(t) - gckpti_bits(GCKPTI_ROUND);
    *r = gckpti_fma(k, -GCKPTI_LN2_LO, gckpti_fma(k, -GCKPTI_LN2_HI, x));
    return gckpti_exp_poly(*r);
}

/* 2^n * (1 + r p) in two steps, for results beyond either end of the normal range */
GCKPTI_INLINE float gckpti_exp_scale(float p, float r, uint32_t n)
{
    uint32_t half = (n + 254u) >> 1;
    float s = gckpti_float(half << 23);
    return gckpti_mul(gckpti_fma(r * s, p, s), gckpti_float((n + 254u - half) << 23));
}

/* Five more steps of Horner's: p z^5 + c[4] z^4 + ... + c[0]. */
GCKPTI_INLINE float gckpti_horner(float p, float z, const float *c)
{
    p = gckpti_fma(gckpti_fma(p, z, c[4]), z, c[3]);
    p = gckpti_fma(gckpti_fma(p, z, c[2]), z, c[1]);
    return gckpti_fma(p, z, c[0]);
}

GCKPTI_INLINE float gckpti_exp(float x)
{
    uint32_t n;
    float r, p;
    x = x < GCKPTI_EXP_MIN ? GCKPTI_EXP_MIN : x;
    x = x > GCKPTI_EXP_MAX ? GCKPTI_EXP_MAX : x;
    p = gckpti_exp_reduce(x, &r, &n);
    return gckpti_exp_scale(p, r, n);
}

/* x + x^3 P(x^2) near 0, else 1 - 2/(exp(2x) + 1), where exp(2x) + 1 = r p 2^n + (2^n + 1) */
GCKPTI_INLINE float gckpti_tanh(float x)
{
    const float *c = gckpti_tanh_c;
    uint32_t n, sign = gckpti_bits(x) & 0x80000000u;
    float a = gckpti_float(gckpti_bits(x) ^ sign), z = a * a;
    float p = gckpti_horner(gckpti_fma(c[6], z, c[5]), z, c);
    float small = gckpti_fma(a * z, p, a);
    float r, b = a + a;
    b = b > GCKPTI_TANH_MAX ? GCKPTI_TANH_MAX : b;
    p = gckpti_exp_reduce(b, &r, &n);
    float s = gckpti_float((n + 127u) << 23);
    float large = 1.0f - 2.0f / gckpti_fma(r * s, p, s + 1.0f);
    return gckpti_float(gckpti_bits(gckpti_select(a < GCKPTI_TANH_SPLIT, small, large)) | sign);
}

/* x + x P(x^2) near 0, else 1 - exp(-x Q(x)), where exp(-u) = 2^n + r p 2^n */
GCKPTI_INLINE float gckpti_erf(float x)
{
    const float *c = gckpti_erf_c, *d = gckpti_erfc_c;
    uint32_t n, sign = gckpti_bits(x) & 0x80000000u;
    float a = gckpti_float(gckpti_bits(x) ^ sign), z = a * a;
    float p = gckpti_horner(gckpti_fma(c[6], z, c[5]), z, c);
    float small = gckpti_fma(a, p, a);
    float r, b = a > GCKPTI_ERF_MAX ? GCKPTI_ERF_MAX : a;
    float u = gckpti_horner(gckpti_fma(d[6], b, d[5]), b, d);
    p = gckpti_exp_reduce(gckpti_mul(u, -b), &r, &n);
    float s = gckpti_float((n + 127u) << 23);
    float large = gckpti_fma(-r * s, p, 1.0f - s);
    return gckpti_float(gckpti_bits(gckpti_select(a < GCKPTI_ERF_SPLIT, small, large)) | sign);
}

/* x = m * 2^n with 2/3 <= m < 4/3, for finite x > 0 */
GCKPTI_INLINE float gckpti_split(float x, float *n)
{
    int tiny = x < 1.17549435e-38f; /* a subnormal is scaled by 2^23 first */
    uint32_t u = gckpti_bits(tiny ? x * 8388608.0f : x) + 0x00555555u;
    *n = (float)((int32_t)(u >> 23) - (tiny ? 150 : 127));
    return gckpti_float((u & 0x007fffffu) + 0x3f2aaaabu);
}

/* (log(1+f) - f + f^2/2) / f^3 on [-1/3, 1/3], fit 2^-30 of log(1+f) */
GCKPTI_TABLE float gckpti_log_c[9] = { 0.333333343f,  -0.249998271f, 0.199996814f,
                                       -0.166792959f, 0.143027171f,  -0.121994182f,
                                       0.107695557f,  -0.128301099f, 0.119584598f };

/* log(x) = n ln(2) + log(1 + f), ln(2) = 0.693359375 - 2.1219444e-4: n times the first is exact. */
GCKPTI_INLINE float gckpti_log(float x)
{
    const float *c = gckpti_log_c;
    float n, f = gckpti_split(x, &n) - 1.0f, f2 = f * f;
    float p = gckpti_fma(gckpti_fma(c[8], f, c[7]), f, c[6]);
    p = gckpti_horner(gckpti_fma(p, f, c[5]), f, c);
    float high = gckpti_fma(n, 0.693359375f, f);
    float low = f - (high - n * 0.693359375f); /* what the line above rounded away */
    low = gckpti_fma(-0.5f, f2, gckpti_fma(n, -2.12194440e-4f, low));
    float y = high + gckpti_fma(f * f2, p, low);
    y = x > 0.0f ? y : x < 0.0f || x != x ? GCKPTI_NAN : -GCKPTI_INFINITY;
    return x < GCKPTI_INFINITY ? y : x;
}

/* x^y for x >= 0; NaN for a negative x (also when y is an integer). log(x) is kept to about 2^-37
 * in doubles: log(m) = s + s^3/D(s^2), s = 2(m-1)/(m+1) (atanh's series), D = 12 - 1.8 s^2 - ...,
 * fit 2^-40. Double products that meet an addition have two 24-bit factors: they are exact. */
GCKPTI_INLINE float gckpti_pow(float x, float y)
{
    if (x == 1.0f || y == 0.0f)
        return 1.0f;
    if (x < 0.0f || x != x || y != y)
        return GCKPTI_NAN;
    if (x == 0.0f || x >= GCKPTI_INFINITY)
        return (x == 0.0f) == (y > 0.0f) ? 0.0f : GCKPTI_INFINITY;
    float n;
    double m = (double)gckpti_split(x, &n), s = 2.0 * (m - 1.0) / (m + 1.0);
    float u = (float)(s * s);
    float d = gckpti_fma(gckpti_fma(-0.00684453873f, u, -0.0514065102f), u, -1.80000055f);
    double l = s + s * s * s / ((double)u * (double)d + 12.0), k = (double)n;
    l = k * (double)GCKPTI_LN2_HI + (l + k * (double)GCKPTI_LN2_LO);
    float high = (float)l, low = (float)(l - (double)high);
    y = y > 1e30f ? 1e30f : y < -1e30f ? -1e30f : y;
    double z = (double)y * (double)high + (double)y * (double)low;
    z = z < (double)GCKPTI_EXP_MIN ? (double)GCKPTI_EXP_MIN : z;
    z = z > (double)GCKPTI_EXP_MAX ? (double)GCKPTI_EXP_MAX : z;
    float t = gckpti_fma((float)z, GCKPTI_LOG2E, GCKPTI_ROUND);
    k = (double)(t - GCKPTI_ROUND);
    z = (z - k * (double)GCKPTI_LN2_HI) - k * (double)GCKPTI_LN2_LO;
    float r = (float)z;
    return gckpti_exp_scale(gckpti_exp_poly(r), r, gckpti_bits(t) - gckpti_bits(GCKPTI_ROUND));
}

/* An angle: quadrants and hi + lo, |hi| <= pi/4. */
typedef struct {
    uint32_t quadrant;
    float hi, lo;
} gckpti_angle;

/* The angle of p, a turn being 2^64. */
GCKPTI_INLINE gckpti_angle gckpti_angle_of(uint64_t p)
{
    gckpti_angle r;
    r.quadrant = (uint32_t)((p + (UINT64_C(1) << 61)) >> 62);
    p -= (uint64_t)r.quadrant << 62;
    /* by 31-bit halves: gcc -m32 may keep a converted int64_t in an x87 register, unrounded */
    uint64_t size = p >> 63 ? 0 - p : p;
    double angle = (double)(int32_t)(size >> 31) * 2147483648.0;
    angle += (double)(int32_t)(size & 0x7fffffffu);
    angle = p >> 63 ? -angle : angle;
    float a = (float)angle, b = (float)(angle - (double)a);
    r.hi = gckpti_mul(a, 3.40612167e-19f); /* pi/2 * 2^-62 */
    r.lo = gckpti_fma(a, 3.40612167e-19f, -r.hi);
    r.lo = gckpti_fma(b, 3.40612167e-19f, gckpti_fma(a, -9.4783968e-27f, r.lo));
    return r;
}

/* Both from polynomials within a quadrant, hi + lo being the angle there. */
GCKPTI_INLINE void gckpti_sincos_of(gckpti_angle r, float *sine, float *cosine)
{
    float hi = r.hi, lo = r.lo, z = hi * hi;
    float p = gckpti_fma(2.83239228e-06f, z, -0.000198530586f); /* fit 2^-32 */
    p = gckpti_fma(p, z, 0.0083333794f);
    p = gckpti_fma(p, z, -0.166666672f);
    float s = hi + gckpti_fma(hi * z, p, gckpti_fma(-0.5f * z, lo, lo));
    p = gckpti_fma(2.44320927e-05f, z, -0.00138873083f); /* fit 2^-33 */
    p = gckpti_fma(p, z, 0.0416666456f);
    float c = gckpti_fma(-0.5f, z, 1.0f), e = (1.0f - c) - 0.5f * z;       /* c's rounding error */
    e = gckpti_fma(-hi, lo, gckpti_fma(-0.5f, gckpti_fma(hi, hi, -z), e)); /* and z's */
    c = c + gckpti_fma(z * z, p, e);
    uint32_t flip = (r.quadrant & 2) << 30;
    *sine = gckpti_float(gckpti_bits(r.quadrant & 1 ? c : s) ^ flip);
    *cosine = gckpti_float(gckpti_bits(r.quadrant & 1 ? -s : c) ^ flip);
}

/* Sine and cosine of any finite x. Beyond pi/4, x * 2/pi modulo 4 is taken in integers (Payne and
 * Hanek): 96 bits of 2/pi are enough, from the one on whose product with x has the weight 2. */
GCKPTI_INLINE void gckpti_sincos(float x, float *sine, float *cosine)
{
    static const uint32_t two_over_pi[8] = { 0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                             0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu };
    uint32_t u = gckpti_bits(x) & 0x7fffffffu;
    gckpti_angle r = { 0, gckpti_float(u), 0.0f };
    if (u >= 0x7f800000u) {
        *sine = *cosine = GCKPTI_NAN;
        return;
    }
    if (u > 0x3f490fdau) {
        uint32_t offset = (u >> 23) - 120u;
        const uint32_t *word = two_over_pi + offset / 32;
        uint64_t m = (u & 0x007fffffu) | 0x00800000u, v[3];
        for (int i = 0; i < 3; i++)
            v[i] = ((uint64_t)word[i] << 32 | word[i + 1]) >> (32 - offset % 32) & 0xffffffffu;
        r = gckpti_angle_of((m * v[0] << 32) + m * v[1] + (m * v[2] >> 32));
    }
    gckpti_sincos_of(r, sine, cosine);
    *sine = gckpti_float(gckpti_bits(*sine) ^ (gckpti_bits(x) & 0x80000000u));
}

GCKPTI_INLINE float gckpti_sin(float x)
{
    float s, c;
    gckpti_sincos(x, &s, &c);
    return s;
}

GCKPTI_INLINE float gckpti_cos(float x)
{
    float s, c;
    gckpti_sincos(x, &s, &c);
    return c;
}

/* base^n by squaring. volatile keeps the last product away from a caller's 1 - powi(...). */
GCKPTI_INLINE double gckpti_powi(double base, uint64_t n)
{
    volatile double result = 1.0;
    for (; n; n >>= 1) {
        if (n & 1)
            result = result * base;
        base = base * base;
    }
    return result;
}

/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): 128 random
 * bits, a function of key and counter only, so any element can be drawn again, in any order. */
GCKPTI_INLINE void gckpti_philox(uint64_t key, uint64_t index, uint32_t stream, uint32_t step,
                                 uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = stream, c3 = step;
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* A random word as a float in [0,1): its 24 high bits. */
GCKPTI_INLINE float gckpti_uniform(uint32_t word)
{
    return (float)(int32_t)(word >> 8) * 5.9604644775390625e-8f;
}

/* ---- bf16: the upper half of a float. Rounded to nearest even; subnormals become zeros of their
 * sign, NaN stays a (quiet) NaN: what the processors' instructions do. ---- */
GCKPTI_INLINE float gckpti_flush(float x) /* subnormals to zero */
{
    uint32_t u = gckpti_bits(x);
    return u & 0x7f800000u ? x : gckpti_float(u & 0x80000000u);
}

/* `more` is added to the half that is cut off: 0x7fff + the last bit kept, or 16 random bits. */
GCKPTI_INLINE uint16_t gckpti_halve(uint32_t u, uint32_t more)
{
    if (!(u & 0x7f800000u))
        return (uint16_t)(u >> 16 & 0x8000u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + more) >> 16);
}

GCKPTI_INLINE uint16_t gckpti_to_bf16(float x)
{
    uint32_t u = gckpti_bits(x);
    return gckpti_halve(u, 0x7fffu + (u >> 16 & 1));
}

GCKPTI_INLINE float gckpti_from_bf16(uint16_t x) { return gckpti_float((uint32_t)x << 16); }

GCKPT_API uint16_t gckpt_to_bf16(float x) { return gckpti_to_bf16(x); }
GCKPT_API float gckpt_from_bf16(uint16_t x) { return gckpti_from_bf16(x); }

/* Two words to two independent standard normal values (Box and Muller), magnitude at most 5.77:
 * r = sqrt(-2 log((top 24 bits of a + 1) / 2^24)); mul(r, cos), mul(r, sin) of mul(2 pi, u(b)). */
GCKPTI_INLINE void gckpti_normal(uint32_t a, uint32_t b, float out[2])
{
    float s, c, u = (float)(int32_t)((a >> 8) + 1) * 5.9604644775390625e-8f; /* (0,1] */
    float r = gckpti_sqrt(-2.0f * gckpti_log(u));
    gckpti_sincos(gckpti_mul(6.28318531f, gckpti_uniform(b)), &s, &c);
    out[0] = gckpti_mul(r, c);
    out[1] = gckpti_mul(r, s);
}

/* Row reductions: 32 lanes from +0, lane i takes elements i, i+32, ...; then a tree of halves. */
GCKPTI_INLINE float gckpti_lanes_sum(float lane[32])
{
    for (int half = 16; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

GCKPTI_INLINE float gckpti_sum(const float *x, int64_t n)
{
    float lane[32] = { 0.0f };
    int64_t k = 0;
    for (; k + 32 <= n; k += 32)
        for (int i = 0; i < 32; i++)
            lane[i] += x[k + i];
    for (int i = 0; k + i < n; i++)
        lane[i] += x[k + i];
    return gckpti_lanes_sum(lane);
}

GCKPTI_INLINE float gckpti_dot(const float *x, const float *y, int64_t n)
{
    float lane[32] = { 0.0f };
    int64_t k = 0;
    for (; k + 32 <= n; k += 32)
        for (int i = 0; i < 32; i++)
            lane[i] = gckpti_fma(x[k + i], y[k + i], lane[i]);
    for (int i = 0; k + i < n; i++)
        lane[i] = gckpti_fma(x[k + i], y[k + i], lane[i]);
    return gckpti_lanes_sum(lane);
}

/* Greatest element, -inf when n is 0. A NaN is passed over (what reads the row next meets it). */
GCKPTI_INLINE float gckpti_max(const float *x, int64_t n)
{
    float lane[32];
    int64_t k = 0;
    for (int i = 0; i < 32; i++)
        lane[i] = -GCKPTI_INFINITY;
    for (; k + 32 <= n; k += 32)
        for (int i = 0; i < 32; i++)
            lane[i] = x[k + i] > lane[i] ? x[k + i] : lane[i];
    for (int i = 0; k + i < n; i++)
        lane[i] = x[k + i] > lane[i] ? x[k + i] : lane[i];
    for (int half = 16; half; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = lane[i + half] > lane[i] ? lane[i + half] : lane[i];
    return lane[0];
}

/* What a softmax subtracts from scores whose greatest is `top`; where all are -inf, nothing, and in
 * the end their sum 0 is taken as 1, so that all probabilities are 0 (manual, 5h). */
GCKPTI_INLINE float gckpti_shift(float top) { return top > -GCKPTI_INFINITY ? top : 0.0f; }

GCKPTI_INLINE void gckpti_softmax_end(float *max, float *sum)
{
    if (*sum == 0.0f)
        *max = 0.0f, *sum = 1.0f;
}

/* FNV-1a, 64 bits, from GCKPTI_FNV_START. Floats go in as little-endian words, every NaN as one. */
#define GCKPTI_FNV_START UINT64_C(0xcbf29ce484222325)
GCKPTI_INLINE uint64_t gckpti_fnv(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *p = (const unsigned char *)bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* The lowest `bits` of a number, in bytes, lowest first. */
GCKPTI_INLINE uint64_t gckpti_fnv_bits(uint64_t hash, uint64_t value, int bits)
{
    for (int i = 0; i < bits; i += 8)
        hash = (hash ^ (value >> i & 0xffu)) * UINT64_C(0x100000001b3);
    return hash;
}

/* Most numbers are a byte; the seven zeros behind it are multiplications only. */
GCKPTI_INLINE uint64_t gckpti_fnv_number(uint64_t hash, uint64_t value)
{
    return value < 256 ? (hash ^ value) * UINT64_C(0x1efac7090aef4a21)
                       : gckpti_fnv_bits(hash, value, 64);
}

GCKPTI_INLINE uint64_t gckpti_hash_floats(uint64_t hash, const float *x, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        hash = gckpti_fnv_bits(hash, x[k] != x[k] ? 0x7fc00000u : gckpti_bits(x[k]), 32);
    return hash;
}

/* 0 when this build keeps the contract; 1 subnormals are flushed to zero (-ffast-math at link
 * time), 2 fma is wrong, 3 sums are re-associated, 4 another result differs. volatile: the machine
 * is asked, not the compiler. */
GCKPTI_INLINE int gckpti_self_test(void)
{
    static const float fma_case[3][3] = { { 0.9474001f, 4.639901e-7f, -0.24325085f },
                                          { -1.9369631e13f, 2.1513551e-7f, -1.7354427e-24f },
                                          { -4.1369128e-25f, 1.69365241e-21f, 9.18382988e-41f } };
    static const uint32_t fma_result[3] = { 0xbe7916a3u, 0xca7e56dfu, 0x00010001u };
    volatile float small = 1e-30f, tiny = 1e-10f, big = 33554432.0f, one = 1.0f;
    volatile float product = small * tiny;
    if (gckpti_bits(product) != 0x000116c2u)
        return 1;
    for (int i = 0; i < 3; i++) {
        volatile float a = fma_case[i][0], b = fma_case[i][1], c = fma_case[i][2];
        if (gckpti_bits(gckpti_fma(a, b, c)) != fma_result[i])
            return 2;
    }
    float sum = big, step = one;
    if ((step + sum) - sum != 0.0f || (step - sum) + sum != 0.0f)
        return 3;
    uint64_t hash = GCKPTI_FNV_START;
    for (int i = 0; i < 64; i++) {
        volatile float input = (float)(i - 32) * 0.40625f;
        float x = input, a = x * x + 0.015625f; /* exact */
        float y[8] = { gckpti_exp(8.0f * x), gckpti_log(a),         gckpti_tanh(0.25f * x),
                       gckpti_erf(0.5f * x), gckpti_sin(97.0f * x), gckpti_cos(a * a * a),
                       gckpti_pow(a, x),     gckpti_rsqrt(a) };
        hash = gckpti_hash_floats(hash, y, 8);
    }
    return hash == UINT64_C(0x2d05651250eb440d) ? 0 : 4;
}

/* =================================================================================================
 * >>store: parameters and optimiser state
 * ============================================================================================== */
typedef struct {
    gckpt_parameter p; /* what gckpt_store_get shows; p.name is owned; p.values NULL: not made */
    int first; /* newest of the names whose hash modulo the capacity is this place; -1: none */
    int next;  /* the next older one of the list that this name is in; -1: none */
    unsigned char external;  /* values belong to the user */
    unsigned char locked;    /* external and not writable: stays frozen */
    unsigned char raw;       /* values have memory, but what stands there are not yet they */
    unsigned char optimiser; /* whose state: gckpt_optimiser + 1; 0: nobody's yet, or not known */
    gckpt_init init;         /* what values that are not made will be */
    uint64_t updates;        /* that the state has seen, for Adam's bias correction */
} gckpti_param;

/* A parameter's copy in a backend's own memory, while executors have one. */
typedef struct {
    const gckpt_backend *backend; /* NULL: there is none */
    float *array[5];              /* values, then state */
    int newest;                   /* GCKPTI_BOTH, .. */
} gckpti_mirror;
enum { GCKPTI_BOTH, GCKPTI_HOST, GCKPTI_MIRROR };

/* An executor on a backend with memory of its own, in its store's list. */
typedef struct gckpti_binding {
    gckpt_store *store; /* NULL: freed, or none */
    const gckpt_backend *backend;
    struct gckpti_binding *next;
} gckpti_binding;

struct gckpt_store {
    gckpti_object object;
    gckpti_allocator memory;
    uint64_t seed, step;
    gckpti_param *params;
    size_t count, capacity;
    size_t elements;        /* of all values but external ones */
    gckpti_mirror *mirrors; /* by parameter; fewer, or none, where executors need none */
    size_t mirror_count;
    gckpti_binding *bindings; /* those who need them */
};

/* ---- names, as files can have them ---- */
/* Bytes of the UTF-8 character at s, 0 when it is not one: overlong, a surrogate, cut off. */
static int gckpti_utf8_length(const char *s, size_t left)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    uint32_t c = left ? (unsigned char)*s : 0xff;
    int n = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
    if (n < 2 || (size_t)n > left)
        return n == 1;
    c &= 0x7fu >> n;
    for (int i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | ((unsigned char)s[i] & 0x3f);
    }
    return c < least[n] || c > 0x10ffff || c >> 11 == 0x1b ? 0 : n;
}

/* Where "#state" and one digit end the name, else its length. */
static size_t gckpti_state_suffix(const char *name)
{
    size_t n = strlen(name);
    if (n < 7 || memcmp(name + n - 7, "#state", 6) || name[n - 1] < '0' || name[n - 1] > '9')
        return n;
    return n - 7;
}

/* Why a file cannot have a parameter of this name; NULL: it can. */
static const char *gckpti_name_problem(const char *name)
{
    size_t left = strlen(name);
    if (!left || !strcmp(name, "__metadata__"))
        return "is reserved";
    if (gckpti_state_suffix(name) != left)
        return "ends like the name of optimiser state";
    for (int n; left; name += n, left -= (size_t)n) {
        n = gckpti_utf8_length(name, left);
        if (!n)
            return "is not UTF-8";
    }
    return NULL;
}

GCKPT_API gckpt_store *gckpt_store_new(const gckpt_store_desc *desc)
{
    gckpti_allocator memory;
    memset(&memory, 0, sizeof memory);
    if (desc)
        memory.desc = desc->memory;
    gckpt_store *s = (gckpt_store *)gckpti_new(&memory, 1, sizeof *s);
    if (!s)
        return NULL;
    s->object.magic = GCKPTI_MAGIC;
    s->memory = memory;
    s->seed = desc ? desc->seed : 0;
    int broken = gckpti_self_test();
    if (broken) {
        gckpti_error(s, GCKPT_E_BACKEND,
                     "self-test %i failed: this build or processor does not keep the numeric "
                     "contract (flush-to-zero? -ffast-math at link time?)",
                     broken);
        s->object.sticky = s->object.last;
    }
    return s;
}

/* Its values on the host (slot -1), or one of its states; NULL: not made. All that reads or writes
 * them asks here. */
static float *gckpti_array(const gckpti_param *q, int slot)
{
    return slot < 0 ? q->p.values : q->p.state[slot];
}

static int gckpti_state_slots(const gckpti_param *q)
{
    int n = 0;
    while (n < 4 && q->p.state[n])
        n++;
    return n;
}

/* Gives state arrays back until `slots` are left. */
static void gckpti_state_shrink(gckpt_store *s, gckpti_param *q, int slots)
{
    for (int i = gckpti_state_slots(q); i-- > slots; q->p.state[i] = NULL)
        gckpti_delete(&s->memory, q->p.state[i], (size_t)q->p.elements, sizeof(float));
}

/* Makes sure `slots` state arrays exist, zeroed; leaves nothing half-made. 0: out of memory. */
static int gckpti_param_state(gckpt_store *s, gckpti_param *q, int slots)
{
    int had = gckpti_state_slots(q);
    for (int i = had; i < slots; i++) {
        q->p.state[i] = (float *)gckpti_new(&s->memory, (size_t)q->p.elements, sizeof(float));
        if (!q->p.state[i]) {
            gckpti_state_shrink(s, q, had);
            return 0;
        }
    }
    return 1;
}

/* ---- where the newest copy of a parameter is ---- */
static gckpti_mirror *gckpti_mirror_of(const gckpt_store *s, const gckpti_param *q)
{
    size_t i = (size_t)(q - s->params);
    return i < s->mirror_count && s->mirrors[i].backend ? &s->mirrors[i] : NULL;
}

/* One of the two copies was changed. */
static void gckpti_changed(const gckpt_store *s, const gckpti_param *q, int newest)
{
    gckpti_mirror *m = gckpti_mirror_of(s, q);
    if (m)
        m->newest = newest;
}

/* Brings the newest values and state to the host. */
static void gckpti_pull(const gckpt_store *s, const gckpti_param *q)
{
    gckpti_mirror *m = gckpti_mirror_of(s, q);
    if (!m || m->newest != GCKPTI_MIRROR)
        return;
    for (int i = 0; i <= gckpti_state_slots(q); i++)
        if (m->array[i])
            m->backend->copy_out(m->backend->context, gckpti_array(q, i - 1), m->array[i],
                                 (size_t)q->p.elements * sizeof(float));
    m->newest = GCKPTI_BOTH;
}

/* Pulls, and gives the mirror back. */
static void gckpti_unmirror(const gckpt_store *s, const gckpti_param *q)
{
    gckpti_mirror *m = gckpti_mirror_of(s, q);
    gckpti_pull(s, q);
    for (int i = 0; m && i < 5; i++)
        if (m->array[i])
            m->backend->release(m->backend->context, m->array[i],
                                (size_t)q->p.elements * sizeof(float));
    if (m)
        memset(m, 0, sizeof *m);
}

/* Brings the newest values and state to a backend's own memory. 0: it has no room. */
static int gckpti_push(const gckpt_store *s, const gckpti_param *q, const gckpt_backend *b)
{
    gckpti_mirror *m = &s->mirrors[q - s->params];
    size_t bytes = (size_t)q->p.elements * sizeof(float);
    if (m->backend != b)
        gckpti_unmirror(s, q);
    m->backend = b;
    for (int i = 0; i <= gckpti_state_slots(q); i++) {
        int fresh = !m->array[i];
        if (fresh)
            m->array[i] = (float *)b->get(b->context, bytes, 64);
        if (!m->array[i])
            return 0;
        if (fresh || m->newest == GCKPTI_HOST)
            b->copy_in(b->context, m->array[i], gckpti_array(q, i - 1), bytes);
    }
    if (m->newest == GCKPTI_HOST)
        m->newest = GCKPTI_BOTH;
    return 1;
}

/* Joins the executors whose backend has mirrors of this store's parameters. 0: out of memory. */
static int gckpti_bind(gckpt_store *s, gckpti_binding *binding, const gckpt_backend *b)
{
    if (s->mirror_count < s->count) {
        size_t had = s->mirror_count * sizeof *s->mirrors, bytes = s->count * sizeof *s->mirrors;
        void *more = gckpti_resize(&s->memory, s->mirrors, had, bytes);
        if (!more)
            return 0;
        memset((char *)more + had, 0, bytes - had);
        s->mirrors = (gckpti_mirror *)more;
        s->mirror_count = s->count;
    }
    binding->store = s;
    binding->backend = b;
    binding->next = s->bindings;
    s->bindings = binding;
    return 1;
}

/* When the last executor with a backend goes, the parameters leave it. */
static void gckpti_unbind(gckpti_binding *binding)
{
    gckpt_store *s = binding->store;
    int others = 0;
    if (!s)
        return;
    for (gckpti_binding **at = &s->bindings; *at; at = &(*at)->next) {
        if (*at == binding)
            *at = binding->next;
        if (!*at)
            break;
        others += (*at)->backend == binding->backend;
    }
    for (size_t i = 0; i < s->mirror_count && !others; i++)
        if (s->mirrors[i].backend == binding->backend)
            gckpti_unmirror(s, &s->params[i]);
    if (!s->bindings) {
        gckpti_delete(&s->memory, s->mirrors, s->mirror_count, sizeof *s->mirrors);
        s->mirrors = NULL;
        s->mirror_count = 0;
    }
}

/* Where the list of the names begins that this one is or would be in. */
static int *gckpti_names_like(const gckpt_store *s, const char *name)
{
    uint64_t hash = gckpti_fnv(GCKPTI_FNV_START, name, strlen(name));
    return &s->params[hash % s->capacity].first;
}

static int gckpti_find(const gckpt_store *s, const char *name)
{
    int i = s->count ? *gckpti_names_like(s, name) : -1;
    while (i >= 0 && strcmp(s->params[i].p.name, name))
        i = s->params[i].next;
    return i;
}

/* Takes the newest parameters away until `count` are left. */
static void gckpti_store_shrink(gckpt_store *s, size_t count)
{
    while (s->count > count) {
        gckpti_param *q = &s->params[--s->count];
        size_t n = (size_t)q->p.elements;
        char *name;
        *gckpti_names_like(s, q->p.name) = q->next;
        gckpti_unmirror(s, q);
        gckpti_state_shrink(s, q, 0);
        if (!q->external) {
            gckpti_delete(&s->memory, q->p.values, n, sizeof(float));
            s->elements -= n;
        }
        memcpy(&name, &q->p.name, sizeof name); /* ours, shown to users as const */
        gckpti_delete(&s->memory, name, strlen(name) + 1, 1);
    }
}

GCKPT_API void gckpt_store_free(gckpt_store *store)
{
    if (!store)
        return;
    gckpti_store_shrink(store, 0);
    for (gckpti_binding *b = store->bindings; b; b = b->next)
        b->store = NULL;
    gckpti_allocator memory = store->memory;
    gckpti_delete(&memory, store->mirrors, store->mirror_count, sizeof *store->mirrors);
    gckpti_delete(&memory, store->params, store->capacity, sizeof *store->params);
    gckpti_delete(&memory, store, 1, sizeof *store);
}

/* Lets the newest parameter be found, or all, in new lists, when the capacity is a new one. */
static void gckpti_link_names(gckpt_store *s, int all)
{
    for (size_t i = 0; all && i < s->capacity; i++)
        s->params[i].first = -1;
    for (size_t i = all ? 0 : s->count - 1; i < s->count; i++) {
        int *first = gckpti_names_like(s, s->params[i].p.name);
        s->params[i].next = *first;
        *first = (int)i;
    }
}

/* Adds a parameter; values NULL: of its own, to be made later as init says. NULL: no memory for its
 * entry, or no machine of this kind has memory for it all (values, four states and the arena). */
static gckpti_param *gckpti_param_new(gckpt_store *s, const char *name, const gckpt_shape *shape,
                                      float *values, gckpt_init init)
{
    gckpti_param q;
    size_t length = strlen(name) + 1, n = (size_t)gckpti_elements(shape), had = s->capacity;
    memset(&q, 0, sizeof q);
    if (s->count >= INT32_MAX || (!values && n > SIZE_MAX / 24 - s->elements))
        return NULL;
    char *copy = (char *)gckpti_new(&s->memory, length, 1);
    if (!copy || !gckpti_grow(&s->memory, &s->params, &s->capacity, s->count, sizeof q)) {
        gckpti_delete(&s->memory, copy, length, 1);
        return NULL;
    }
    q.p.elements = (int64_t)n;
    q.p.values = values;
    q.p.name = (char *)memcpy(copy, name, length);
    q.external = values != NULL;
    q.init = init;
    q.p.shape = *shape;
    q.p.lr_scale = 1;
    q.p.decay_scale = shape->n >= 2 ? 1.0f : 0.0f;
    q.first = had < s->capacity ? -1 : s->params[s->count].first;
    s->params[s->count++] = q;
    gckpti_link_names(s, had < s->capacity);
    s->elements += values ? 0 : n;
    return &s->params[s->count - 1];
}

/* ---- values: a parameter has none until a call that needs them makes them ---- */
enum { GCKPTI_DRAWN = 64 }; /* values drawn in passing at a time; even */

/* Initial values from the even index `at`: fma(uniform, U, fma(normal, N, constant)), a function of
 * seed, name and element (5j). So they are the same whenever they are drawn, and as often. Philox:
 * key = FNV-1a of the seed's 8 bytes, lowest first, and the name; counter = element / 2, 0, 0. N =
 * gckpti_normal(words 0, 1)[element % 2], U = fma(2, u(word 2 + element % 2), -1). */
static void gckpti_draw_values(const gckpt_store *s, const gckpti_param *q, int64_t at, int64_t n,
                               float *out)
{
    const gckpt_init *init = &q->init;
    uint64_t key = gckpti_fnv_number(GCKPTI_FNV_START, s->seed);
    key = gckpti_fnv(key, q->p.name, strlen(q->p.name));
    for (int64_t i = 0; i < n; i += 2) {
        float normal[2] = { 0, 0 };
        uint32_t word[4] = { 0, 0, 0, 0 };
        if (init->normal < 0 || init->normal > 0 || init->uniform < 0 || init->uniform > 0)
            gckpti_philox(key, (uint64_t)(at + i) / 2, 0, 0, word);
        if (init->normal < 0 || init->normal > 0)
            gckpti_normal(word[0], word[1], normal);
        for (int j = 0; j < 2 && i + j < n; j++) {
            float uniform = gckpti_fma(2, gckpti_uniform(word[2 + j]), -1);
            out[i + j] = gckpti_fma(init->uniform, uniform,
                                    gckpti_fma(init->normal, normal[j], init->constant));
        }
    }
}

/* Some values from the even index `at`, *n of them: the parameter's, or, while it has none, what
 * they will be, in `room`. For reads of a store, which allocate nothing. */
static const float *gckpti_values_at(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                     float room[GCKPTI_DRAWN], int64_t *n)
{
    *n = q->p.elements - at;
    const gckpti_mirror *m = gckpti_mirror_of(s, q);
    int there = m && m->newest == GCKPTI_MIRROR;
    if (gckpti_array(q, -1) && !there)
        return gckpti_array(q, -1) + at;
    if (*n > GCKPTI_DRAWN)
        *n = GCKPTI_DRAWN;
    if (there)
        m->backend->copy_out(m->backend->context, room, m->array[0] + at,
                             (size_t)*n * sizeof *room);
    else
        gckpti_draw_values(s, q, at, *n, room);
    return room;
}

/* Memory for values, which are raw until they are drawn or loaded. who: for the error. */
static gckpt_result gckpti_values_new(gckpt_store *s, gckpti_param *q, const char *who)
{
    size_t bytes = (size_t)q->p.elements * sizeof(float);
    if (q->p.values)
        return GCKPT_OK;
    q->p.values = (float *)gckpti_resize(&s->memory, NULL, 0, bytes);
    if (!q->p.values)
        return gckpti_error(s, GCKPT_E_MEMORY, "%s: no memory for the values of \"%s\": %z bytes",
                            who, q->p.name, bytes);
    q->raw = 1;
    return GCKPT_OK;
}

/* Draws all raw values. */
static void gckpti_values_draw(gckpt_store *s)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->params[i].raw) {
            gckpti_draw_values(s, &s->params[i], 0, s->params[i].p.elements, s->params[i].p.values);
            s->params[i].raw = 0;
        }
}

/* Gives all raw values back, newest first, as a block wants it. */
static void gckpti_values_undo(gckpt_store *s)
{
    for (size_t i = s->count; i-- > 0;) {
        gckpti_param *q = &s->params[i];
        if (q->raw) {
            gckpti_delete(&s->memory, q->p.values, (size_t)q->p.elements, sizeof(float));
            q->p.values = NULL;
            q->raw = 0;
        }
    }
}

/* Whole-name match: '*' any run, '?' one character. */
static int gckpti_match(const char *pattern, const char *name)
{
    const char *star = NULL, *resume = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            resume = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++, name++;
        } else if (star) {
            pattern = star + 1;
            name = ++resume;
        } else {
            return 0;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

/* The parameter after q (NULL: the first) that the pattern matches. NULL: none; then *result says
 * whether there was one at all. */
static gckpti_param *gckpti_next_match(gckpt_store *s, const char *pattern, const gckpti_param *q,
                                       gckpt_result *result)
{
    *result = GCKPT_E_ARG;
    for (size_t i = q ? (size_t)(q - s->params) + 1 : 0; s && pattern && i < s->count; i++)
        if (gckpti_match(pattern, s->params[i].p.name))
            return &s->params[i];
    if (s && q)
        *result = gckpti_ok(s);
    else if (s)
        gckpti_error(s, GCKPT_E_ARG,
                     "no parameter matches \"%s\" (of %z; patterns match whole names, '*' any run "
                     "of characters)",
                     pattern ? pattern : "", s->count);
    return NULL;
}

GCKPT_API gckpt_result gckpt_store_freeze(gckpt_store *store, const char *pattern, int frozen)
{
    gckpt_result result;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;)
        q->p.frozen = frozen || q->locked;
    return result;
}

GCKPT_API gckpt_result gckpt_store_group(gckpt_store *store, const char *pattern, float lr_scale,
                                         float decay_scale)
{
    int bad = !(lr_scale >= 0 && lr_scale <= FLT_MAX); /* or NaN */
    if (bad || !(decay_scale >= 0 && decay_scale <= FLT_MAX))
        return gckpti_error(store, GCKPT_E_ARG,
                            "group \"%s\": %s is %g; it must be 0 or more and finite",
                            pattern ? pattern : "", bad ? "lr_scale" : "decay_scale",
                            (double)(bad ? lr_scale : decay_scale));
    gckpt_result result;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;) {
        q->p.lr_scale = lr_scale;
        q->p.decay_scale = decay_scale;
    }
    return result;
}

GCKPT_API gckpt_result gckpt_store_reset(gckpt_store *store, const char *pattern)
{
    gckpt_result result;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;) {
        gckpti_pull(store, q);
        gckpti_changed(store, q, GCKPTI_HOST);
        for (int k = 0; k < gckpti_state_slots(q); k++)
            memset(gckpti_array(q, k), 0, (size_t)q->p.elements * sizeof(float));
        q->optimiser = 0;
        q->updates = 0;
    }
    return result;
}

GCKPT_API gckpt_result gckpt_store_pull(gckpt_store *store, const char *pattern)
{
    gckpt_result result;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;)
        gckpti_pull(store, q);
    return result;
}

GCKPT_API gckpt_result gckpt_store_push(gckpt_store *store, const char *pattern)
{
    gckpt_result result;
    for (gckpti_param *q = NULL; (q = gckpti_next_match(store, pattern, q, &result)) != NULL;)
        gckpti_changed(store, q, GCKPTI_HOST);
    return result;
}

GCKPT_API gckpt_result gckpt_store_external(gckpt_store *store, const char *name, gckpt_shape shape,
                                            float *values, int writable)
{
    if (!store || !name || !values)
        return gckpti_error(store, GCKPT_E_ARG,
                            "external parameter: store, name and values are needed");
    if (gckpti_name_problem(name))
        return gckpti_error(store, GCKPT_E_ARG, "external parameter: the name %s; choose another",
                            gckpti_name_problem(name));
    if (!gckpti_shape_fits(&shape))
        return gckpti_error(
            store, GCKPT_E_SHAPE,
            "external parameter \"%s\": %S: sizes must be positive and the product below %z", name,
            &shape, SIZE_MAX / 64);
    if (gckpti_find(store, name) >= 0)
        return gckpti_error(
            store, GCKPT_E_ARG,
            "external parameter \"%s\" exists already; bind it before any graph asks for it", name);
    gckpt_init none = { 0, 0, 0 };
    gckpti_param *q = gckpti_param_new(store, name, &shape, values, none);
    if (!q)
        return gckpti_error(store, GCKPT_E_MEMORY,
                            "external parameter \"%s\": no memory for its entry", name);
    q->locked = !writable;
    q->p.frozen = q->locked;
    return gckpti_ok(store);
}

GCKPT_API int gckpt_store_count(const gckpt_store *store) { return store ? (int)store->count : 0; }

GCKPT_API gckpt_result gckpt_store_peek(const gckpt_store *store, int index, gckpt_parameter *out)
{
    if (!store || !out || index < 0 || (size_t)index >= store->count)
        return GCKPT_E_ARG;
    *out = store->params[index].p;
    return GCKPT_OK;
}

GCKPT_API gckpt_result gckpt_store_get(gckpt_store *store, int index, gckpt_parameter *out)
{
    gckpt_result result = gckpt_store_peek(store, index, out);
    if (result == GCKPT_OK) { /* it may be written now */
        gckpti_pull(store, &store->params[index]);
        gckpti_changed(store, &store->params[index], GCKPTI_HOST);
    }
    if (result != GCKPT_OK || out->values)
        return result;
    result = gckpti_values_new(store, &store->params[index], "get");
    gckpti_values_draw(store);
    out->values = store->params[index].p.values;
    return result;
}

GCKPT_API int gckpt_store_find(const gckpt_store *store, const char *name)
{
    return store && name ? gckpti_find(store, name) : -1;
}

GCKPT_API size_t gckpt_store_bytes(const gckpt_store *store)
{
    size_t floats = store ? store->elements : 0;
    for (size_t i = 0; store && i < store->count; i++)
        floats +=
            (size_t)store->params[i].p.elements * (size_t)gckpti_state_slots(&store->params[i]);
    return floats * sizeof(float);
}

GCKPT_API uint64_t gckpt_store_step(const gckpt_store *store) { return store ? store->step : 0; }

GCKPT_API uint64_t gckpt_store_hash(const gckpt_store *store)
{
    uint64_t hash = GCKPTI_FNV_START;
    float room[GCKPTI_DRAWN];
    for (size_t i = 0; store && i < store->count; i++) {
        const gckpti_param *q = &store->params[i];
        for (int64_t at = 0, n; at < q->p.elements; at += n) {
            const float *x = gckpti_values_at(store, q, at, room, &n);
            hash = gckpti_hash_floats(hash, x, n);
        }
    }
    return hash;
}

/* =================================================================================================
 * >>graph: tensors, leaves, views, segments; gckpt_apply
 *
 * Tensors are numbered in creation order, which is a topological order. A tensor is a leaf (input,
 * parameter, constant), the output of an op, or a view: another shape of its base's bytes, of which
 * plan and executor never see more than the shape. `batchless`: it has no batch axis, since it
 * depends on no input (parameters, constants, and functions of those).
 * ============================================================================================== */
enum { GCKPTI_OP, GCKPTI_INPUT, GCKPTI_PARAM, GCKPTI_CONSTANT, GCKPTI_VIEW };

struct gckpt_tensor {
    gckpt_graph *graph;
    gckpt_tensor *base; /* whose bytes these are: itself unless a view */
    const gckpt_op *op;
    gckpt_tensor *in[GCKPT_MAX_INPUTS];
    const void *attributes, *data; /* data: of constants */
    const char *name;              /* or NULL */
    size_t attribute_bytes, aux_bytes;
    gckpt_shape shape;
    gckpt_type type;
    int id, kind, inputs;
    gckpt_init init; /* of a parameter */
    int index;       /* of the parameter in the store */
    int segment;     /* innermost, -1 none */
    int batchless, keep, recompute;
    int mixes; /* rows: splits of the batch are not exact */
};

typedef struct gckpti_chunk {
    struct gckpti_chunk *next;
    size_t size, used;
} gckpti_chunk;
typedef struct {
    int parent, depth, ordinal; /* ordinal: among the outermost ones */
} gckpti_segment;

struct gckpt_graph {
    gckpti_object object;
    gckpti_allocator memory;
    gckpt_store *store;
    gckpti_chunk *chunks;
    gckpt_tensor **tensors;
    size_t count, capacity;
    gckpti_segment *segments;
    size_t segment_count, segment_capacity;
    int segment;            /* open now */
    int outermost, deepest; /* segments without a parent; levels */
    int params;             /* 1 + the greatest number in the store of those it has */
    int64_t rows;           /* of every input; 0: no input yet */
    size_t least;           /* bytes that would have sufficed, after E_BUDGET */
};

static const char *gckpti_kind_name(const gckpt_tensor *t)
{
    switch (t->kind) {
    case GCKPTI_INPUT: return "input";
    case GCKPTI_PARAM: return "param";
    case GCKPTI_CONSTANT: return "constant";
    case GCKPTI_VIEW: return "reshape";
    default: return t->op->name;
    }
}

/* `gelu "h3"` or `gelu #12`. */
static const char *gckpti_tensor_label(const gckpt_tensor *t, char *buffer, size_t size)
{
    gckpti_text text = { buffer, size - 1 };
    buffer[0] = 0;
    if (!t)
        return "NULL";
    gckpti_text_add(&text, t->name ? "%s \"%s\"" : "%s #", gckpti_kind_name(t), t->name);
    if (!t->name)
        gckpti_text_int(&text, t->id);
    return buffer;
}

/* The first error of a graph stays. */
static gckpt_tensor *gckpti_fail(gckpt_graph *g, gckpt_result result, const char *format, ...)
{
    if (!g || g->object.sticky != GCKPT_OK)
        return NULL;
    va_list args;
    va_start(args, format);
    gckpti_say(&g->object, format, args);
    va_end(args);
    g->object.sticky = result;
    return NULL;
}

GCKPT_API gckpt_result gckpt_fail(gckpt_call *call, gckpt_result result, const char *format, ...)
{
    gckpt_graph *g = call ? (gckpt_graph *)call->graph : NULL;
    if (!g || g->object.sticky != GCKPT_OK)
        return result;
    va_list args;
    va_start(args, format);
    gckpti_say(&g->object, format, args);
    va_end(args);
    return g->object.sticky = result;
}

GCKPT_API gckpt_graph *gckpt_graph_new(gckpt_store *store, const gckpt_memory *memory)
{
    gckpti_allocator a;
    if (!store)
        return NULL;
    memset(&a, 0, sizeof a);
    if (memory)
        a.desc = *memory;
    gckpt_graph *g = (gckpt_graph *)gckpti_new(&a, 1, sizeof *g);
    if (!g) {
        gckpti_error(store, GCKPT_E_MEMORY, "graph: no memory for %z bytes", sizeof *g);
        return NULL;
    }
    g->object.magic = GCKPTI_MAGIC;
    g->memory = a;
    g->store = store;
    g->segment = -1;
    if (store->object.sticky != GCKPT_OK)
        gckpti_fail(g, store->object.sticky, "%s", store->object.text);
    return g;
}

GCKPT_API void gckpt_graph_free(gckpt_graph *graph)
{
    if (!graph)
        return;
    gckpti_allocator a = graph->memory;
    while (graph->chunks) {
        gckpti_chunk *next = graph->chunks->next;
        gckpti_resize(&a, graph->chunks, graph->chunks->size, 0);
        graph->chunks = next;
    }
    gckpti_delete(&a, graph->tensors, graph->capacity, sizeof *graph->tensors);
    gckpti_delete(&a, graph->segments, graph->segment_capacity, sizeof *graph->segments);
    gckpti_delete(&a, graph, 1, sizeof *graph);
}

/* Zeroed bytes that live as long as the graph; NULL (and E_MEMORY recorded) when there are none. */
static void *gckpti_graph_bytes(gckpt_graph *g, size_t size)
{
    size_t head = gckpti_round_up(sizeof(gckpti_chunk), GCKPTI_ALIGN);
    size_t need = gckpti_round_up(size, GCKPTI_ALIGN);
    gckpti_chunk *c = g->chunks;
    if (need < size || need > PTRDIFF_MAX / 2)
        return gckpti_fail(g, GCKPT_E_MEMORY, "graph: %z bytes asked for", size);
    if (!c || c->size - c->used < need) {
        size_t bytes = head + (need > 8192 ? need : 8192);
        c = (gckpti_chunk *)gckpti_resize(&g->memory, NULL, 0, bytes);
        if (!c)
            return gckpti_fail(g, GCKPT_E_MEMORY, "graph: no memory for %z bytes", bytes);
        c->next = g->chunks;
        c->size = bytes;
        c->used = head;
        g->chunks = c;
    }
    unsigned char *p = (unsigned char *)c + c->used;
    c->used += need;
    memset(p, 0, need);
    return p;
}

static const void *gckpti_graph_copy(gckpt_graph *g, const void *bytes, size_t n)
{
    void *copy = gckpti_graph_bytes(g, n);
    return copy ? memcpy(copy, bytes, n) : NULL;
}

/* The next tensor, of the open segment; its caller adds what its kind has. NULL: no memory. */
static gckpt_tensor *gckpti_tensor_new(gckpt_graph *g, int kind, const gckpt_shape *shape,
                                       gckpt_type type)
{
    if (g->count >= INT32_MAX ||
        !gckpti_grow(&g->memory, &g->tensors, &g->capacity, g->count, sizeof *g->tensors))
        return gckpti_fail(g, GCKPT_E_MEMORY, "graph: no memory for tensor %z", g->count);
    gckpt_tensor *t = (gckpt_tensor *)gckpti_graph_bytes(g, sizeof *t);
    if (!t)
        return NULL;
    t->graph = g;
    t->base = t;
    t->kind = kind;
    t->shape = *shape;
    t->type = type;
    t->id = (int)g->count;
    t->index = -1;
    t->segment = g->segment;
    g->tensors[g->count++] = t;
    return t;
}

/* A leaf with a name; checks what all leaves need. */
static gckpt_tensor *gckpti_leaf(gckpt_graph *g, int kind, const char *name, gckpt_type type,
                                 const gckpt_shape *shape)
{
    if (!g || g->object.sticky != GCKPT_OK)
        return NULL;
    if (!name || !*name)
        return gckpti_fail(g, GCKPT_E_ARG, "inputs, parameters and constants need a name");
    if (kind == GCKPTI_PARAM && gckpti_name_problem(name))
        return gckpti_fail(g, GCKPT_E_ARG, "param \"%s\": the name %s; choose another", name,
                           gckpti_name_problem(name));
    if (type != GCKPT_F32 && type != GCKPT_I32)
        return gckpti_fail(g, GCKPT_E_ARG, "\"%s\": the type must be GCKPT_F32 or GCKPT_I32", name);
    if (shape->n < 0 || shape->n > GCKPT_MAX_DIMS)
        return gckpti_fail(g, GCKPT_E_SHAPE, "\"%s\": %i axes; 0 to %i are possible", name,
                           shape->n, GCKPT_MAX_DIMS);
    if (!gckpti_shape_fits(shape))
        return gckpti_fail(g, GCKPT_E_SHAPE,
                           "\"%s\": %S: sizes must be positive and their product at most %z", name,
                           shape, SIZE_MAX / 64);
    gckpt_tensor *t = gckpti_tensor_new(g, kind, shape, type);
    if (t)
        t->name = (const char *)gckpti_graph_copy(g, name, strlen(name) + 1);
    return t && t->name ? t : NULL;
}

GCKPT_API gckpt_tensor *gckpt_input(gckpt_graph *graph, const char *name, gckpt_type type,
                                    gckpt_shape shape)
{
    if (!graph || graph->object.sticky != GCKPT_OK)
        return NULL;
    if (name && shape.n < 1)
        return gckpti_fail(graph, GCKPT_E_SHAPE, "input \"%s\": needs at least the batch axis",
                           name);
    if (name && graph->rows && shape.n <= GCKPT_MAX_DIMS && shape.d[0] != graph->rows)
        return gckpti_fail(
            graph, GCKPT_E_SHAPE,
            "input \"%s\": %S: axis 0 is the batch and must be %I, as for the other inputs", name,
            &shape, graph->rows);
    for (size_t i = 0; name && i < graph->count; i++)
        if (graph->tensors[i]->kind == GCKPTI_INPUT && !strcmp(graph->tensors[i]->name, name))
            return gckpti_fail(graph, GCKPT_E_ARG,
                               "input \"%s\": the graph has one of this name, tensor %i; choose "
                               "another, by which messages and printed plans can tell them apart",
                               name, (int)i);
    gckpt_tensor *t = gckpti_leaf(graph, GCKPTI_INPUT, name, type, &shape);
    if (t)
        graph->rows = shape.d[0];
    return t;
}

GCKPT_API gckpt_tensor *gckpt_constant(gckpt_graph *graph, const char *name, gckpt_type type,
                                       gckpt_shape shape, const void *data)
{
    if (graph && name && !data)
        return gckpti_fail(graph, GCKPT_E_ARG, "constant \"%s\": its data is NULL", name);
    gckpt_tensor *t = gckpti_leaf(graph, GCKPTI_CONSTANT, name, type, &shape);
    if (t) {
        t->data = data;
        t->batchless = 1;
    }
    return t;
}

GCKPT_API gckpt_tensor *gckpt_param(gckpt_graph *graph, const char *name, gckpt_shape shape,
                                    gckpt_init init)
{
    if (!graph || graph->object.sticky != GCKPT_OK)
        return NULL;
    gckpt_store *s = graph->store;
    int index = name ? gckpti_find(s, name) : -1;
    if (index >= 0 && !gckpti_same_shape(&s->params[index].p.shape, &shape))
        return gckpti_fail(graph, GCKPT_E_SHAPE,
                           "param \"%s\": %S asked for, the store has it as %S", name, &shape,
                           &s->params[index].p.shape);
    for (size_t i = 0; index >= 0 && index < graph->params && i < graph->count; i++)
        if (graph->tensors[i]->kind == GCKPTI_PARAM && graph->tensors[i]->index == index)
            return graph->tensors[i];
    gckpt_tensor *t = gckpti_leaf(graph, GCKPTI_PARAM, name, GCKPT_F32, &shape);
    if (!t)
        return NULL;
    if (index < 0) {
        if (!gckpti_param_new(s, name, &shape, NULL, init))
            return gckpti_fail(graph, GCKPT_E_MEMORY,
                               "param \"%s\": the store has no memory for %I floats", name,
                               gckpti_elements(&shape));
        index = (int)s->count - 1;
    }
    graph->params = index < graph->params ? graph->params : index + 1;
    t->index = index;
    t->init = init;
    t->batchless = 1;
    return t;
}

GCKPT_API gckpt_graph *gckpt_graph_of(const gckpt_tensor *tensor)
{
    return tensor ? tensor->graph : NULL;
}
GCKPT_API int gckpt_id(const gckpt_tensor *tensor) { return tensor ? tensor->id : -1; }
GCKPT_API gckpt_shape gckpt_shape_of(const gckpt_tensor *tensor)
{
    return tensor ? tensor->shape : gckpti_shape(-1, 0, 0, 0, 0);
}

GCKPT_API gckpt_tensor *gckpt_name(gckpt_tensor *tensor, const char *name)
{
    if (tensor && name)
        tensor->name = (const char *)gckpti_graph_copy(tensor->graph, name, strlen(name) + 1);
    return tensor;
}

static gckpt_tensor *gckpti_pin(gckpt_tensor *x, int keep)
{
    if (x) {
        x->base->keep = keep;
        x->base->recompute = !keep;
    }
    return x;
}
GCKPT_API gckpt_tensor *gckpt_keep(gckpt_tensor *x) { return gckpti_pin(x, 1); }
GCKPT_API gckpt_tensor *gckpt_recompute(gckpt_tensor *x) { return gckpti_pin(x, 0); }

GCKPT_API void gckpt_segment_begin(gckpt_graph *graph)
{
    if (!graph || graph->object.sticky != GCKPT_OK)
        return;
    if (!gckpti_grow(&graph->memory, &graph->segments, &graph->segment_capacity,
                     graph->segment_count, sizeof *graph->segments)) {
        gckpti_fail(graph, GCKPT_E_MEMORY, "graph: no memory for segment %z", graph->segment_count);
        return;
    }
    gckpti_segment *s = &graph->segments[graph->segment_count];
    s->parent = graph->segment;
    s->depth = s->parent < 0 ? 1 : graph->segments[s->parent].depth + 1;
    s->ordinal = s->parent < 0 ? graph->outermost++ : -1;
    graph->deepest = s->depth > graph->deepest ? s->depth : graph->deepest;
    graph->segment = (int)graph->segment_count++;
}

GCKPT_API void gckpt_segment_end(gckpt_graph *graph)
{
    if (!graph || graph->object.sticky != GCKPT_OK)
        return;
    if (graph->segment < 0)
        gckpti_fail(graph, GCKPT_E_ARG, "gckpt_segment_end without gckpt_segment_begin");
    else
        graph->segment = graph->segments[graph->segment].parent;
}

GCKPT_API gckpt_tensor *gckpt_checkpoint(gckpt_block block, gckpt_tensor *x, void *user)
{
    if (!block || !x)
        return NULL;
    gckpt_graph *g = x->graph;
    gckpt_segment_begin(g);
    gckpt_tensor *y = block(x, user);
    gckpt_segment_end(g);
    return y;
}

GCKPT_API gckpt_tensor *gckpt_reshape(gckpt_tensor *x, gckpt_shape shape)
{
    if (!x)
        return NULL;
    gckpt_graph *g = x->graph;
    gckpt_shape asked = shape;
    int64_t have = gckpti_elements(&x->shape), known = 1;
    int open = -1, fits = !x->op || !(x->op->flags & GCKPT_LOSS);
    for (int i = 0; i < shape.n && i < GCKPT_MAX_DIMS && fits; i++) {
        if (shape.d[i] == -1 && open < 0) {
            open = i;
        } else {
            fits = shape.d[i] > 0 && known <= have / shape.d[i];
            known *= fits ? shape.d[i] : 1;
        }
    }
    if (open >= 0)
        shape.d[open] = have / known;
    if (!fits || !gckpti_shape_fits(&shape) || gckpti_elements(&shape) != have)
        return gckpti_fail(g, GCKPT_E_SHAPE, "reshape: %S to %S: the sizes do not multiply to %I",
                           &x->shape, &asked, have);
    gckpt_tensor *t = gckpti_tensor_new(g, GCKPTI_VIEW, &shape, x->type);
    if (!t)
        return NULL;
    t->base = x->base;
    t->in[0] = x;
    t->inputs = 1;
    t->batchless = x->batchless;
    t->mixes = x->mixes || (!t->batchless && (shape.n == 0 || shape.d[0] % g->rows));
    return t;
}

/* Calls op->shape for the given tensors with the batch axis of the ones that have it times
 * `factor`. */
static gckpt_result gckpti_shape_call(const gckpt_op *op, gckpt_tensor *const *in, int n,
                                      const void *attributes, int64_t factor, int threads,
                                      int plain, gckpt_precision precision, gckpt_graph *report,
                                      gckpt_call *call)
{
    memset(call, 0, sizeof *call);
    call->inputs = n;
    call->attributes = attributes;
    call->threads = threads;
    call->plain = plain;
    call->precision = precision;
    call->graph = report;
    for (int i = 0; i < n; i++) {
        call->in[i].shape = in[i]->shape;
        if (factor != 1 && !in[i]->batchless && in[i]->shape.n)
            call->in[i].shape.d[0] *= factor;
    }
    return op->shape(call);
}

/* Whether these inputs, none of them NULL, are for this op; if not, the graph says why. */
static int gckpti_inputs_fit(gckpt_graph *g, const gckpt_op *op, gckpt_tensor *const *in, int n)
{
    for (int i = 0; i < n && g->object.sticky == GCKPT_OK; i++) {
        gckpt_type type = op->flags & GCKPT_INDEX(i) ? GCKPT_I32 : GCKPT_F32;
        if (in[i]->graph != g)
            gckpti_fail(g, GCKPT_E_ARG, "%s: %T belongs to another graph", op->name, in[i]);
        else if (in[i]->op && in[i]->op->flags & GCKPT_LOSS)
            gckpti_fail(g, GCKPT_E_ARG, "%s: %T is a loss; only a gckpt_term can use it", op->name,
                        in[i]);
        else if (in[i]->type != type)
            gckpti_fail(g, GCKPT_E_ARG, "%s: input %i, %T, must be %s", op->name, i, in[i],
                        type == GCKPT_I32 ? "i32 (indices)"
                                          : "f32 (an op that takes i32 there says GCKPT_INDEX)");
    }
    return g->object.sticky == GCKPT_OK;
}

/* The error of an op whose shape() refused these inputs. */
static gckpt_tensor *gckpti_shapes_fail(gckpt_graph *g, gckpt_result result, const gckpt_op *op,
                                        gckpt_tensor *const *in, int n)
{
    gckpti_fail(g, result, "%s: shapes do not fit", op->name);
    gckpti_text t = { g->object.text + strlen(g->object.text), 0 };
    t.left = sizeof g->object.text - 1 - strlen(g->object.text);
    for (int i = 0; i < n; i++)
        gckpti_text_add(&t, i ? ", %T" : " (inputs %T", in[i]);
    gckpti_text_add(&t, ")");
    return NULL;
}

/* Whether an op whose inputs have rows mixes them. If not, two or three times the rows of its
 * inputs make two or three times those of its output (call->shape), and nothing else changes. */
static int gckpti_mixes(const gckpt_op *op, gckpt_tensor *const *in, int n, const gckpt_call *call,
                        int64_t rows)
{
    gckpt_call more;
    const gckpt_shape *s = &call->shape;
    int loss = (op->flags & GCKPT_LOSS) != 0;
    int mixes = call->mixes_rows || (!loss && (s->n == 0 || s->d[0] % rows));
    for (int factor = 2; factor <= 3 && !mixes; factor++) {
        mixes = gckpti_shape_call(op, in, n, call->attributes, factor, 1, 0, GCKPT_FP32, NULL,
                                  &more) != GCKPT_OK;
        for (int i = 0; i < s->n && !loss && !mixes; i++)
            mixes = more.shape.n != s->n || more.shape.d[i] != s->d[i] * (i ? 1 : factor);
    }
    return mixes;
}

GCKPT_API gckpt_tensor *gckpt_apply(const gckpt_op *op, gckpt_tensor *const *in, int n,
                                    const void *attributes, size_t attribute_bytes)
{
    gckpt_graph *g = NULL;
    int missing = -1;
    for (int i = n < GCKPT_MAX_INPUTS ? n : GCKPT_MAX_INPUTS; in && i-- > 0;) {
        if (in[i])
            g = in[i]->graph;
        else
            missing = i;
    }
    if (!g || g->object.sticky != GCKPT_OK)
        return NULL;
    if (!op || !op->name || !op->shape || !op->forward || n < 1 || n > GCKPT_MAX_INPUTS)
        return gckpti_fail(g, GCKPT_E_ARG,
                           "gckpt_apply: an op needs a name, shape(), forward() and 1 to %i inputs",
                           GCKPT_MAX_INPUTS);
    if (missing >= 0)
        return gckpti_fail(g, GCKPT_E_ARG, "%s: input %i is NULL", op->name, missing);
    if (attribute_bytes && !attributes)
        return gckpti_fail(g, GCKPT_E_ARG, "%s: %z bytes of attributes at NULL", op->name,
                           attribute_bytes);
    if (!gckpti_inputs_fit(g, op, in, n))
        return NULL;
    gckpt_call call;
    gckpt_result result = gckpti_shape_call(op, in, n, attributes, 1, 1, 0, GCKPT_FP32, g, &call);
    if (result != GCKPT_OK)
        return gckpti_shapes_fail(g, result, op, in, n);
    if (op->flags & GCKPT_LOSS)
        call.shape.n = 0;
    if (!gckpti_shape_fits(&call.shape) || call.aux_bytes > PTRDIFF_MAX / 4)
        return gckpti_fail(g, GCKPT_E_SHAPE, "%s: the result %S does not fit; at most %z elements",
                           op->name, &call.shape, SIZE_MAX / 64);
    gckpt_tensor *t = gckpti_tensor_new(g, GCKPTI_OP, &call.shape, GCKPT_F32);
    if (!t)
        return NULL;
    t->op = op;
    t->inputs = n;
    t->batchless = 1;
    for (int i = 0; i < n; i++) {
        t->in[i] = in[i];
        t->batchless = t->batchless && in[i]->batchless;
    }
    t->mixes = !t->batchless && gckpti_mixes(op, in, n, &call, g->rows);
    t->aux_bytes = call.aux_bytes;
    t->attribute_bytes = attribute_bytes;
    if (attribute_bytes)
        t->attributes = gckpti_graph_copy(g, attributes, attribute_bytes);
    return attribute_bytes && !t->attributes ? NULL : t;
}

typedef gckpt_rates gckpti_adamw; /* Loshchilov & Hutter 2019 */

#if GCKPTI_HAS_FAST
/* What section kernels has for each instruction set; NULL: the processor lacks it. */
typedef struct gckpti_kernels gckpti_kernels;
struct gckpti_product;
struct gckpti_columns;
struct gckpti_heads;
struct gckpti_mixed_kernels;
static const gckpti_kernels *gckpti_kernels_for(gckpt_isa isa);
struct gckpti_kernels {
    void (*product_piece)(const struct gckpti_product *t, int64_t i0, int64_t i1, int64_t j0,
                          int64_t j1, float *pack, int64_t room);
    float (*online)(const float *x, float *p, int64_t n, int first, float *max, float *sum);
    void (*divide)(float *x, float by, int64_t n);
    float (*square_sum)(const float *x, int64_t n);
    float (*dot)(const float *x, const float *y, int64_t n);
    void (*adamw)(float *w, const float *g, float *m, float *v, int64_t n, const gckpti_adamw *a);
    void (*add)(float *to, const float *from, int64_t n); /* to += from */
    void (*elementwise_forward)(const gckpt_call *call, int kind);
    void (*elementwise_backward)(const gckpt_call *call, int kind);
    void (*softmax_forward)(const gckpt_call *call, int64_t row);
    void (*softmax_backward)(const gckpt_call *call, int64_t row);
    void (*norm_forward)(const gckpt_call *call, int64_t row);
    void (*norm_backward)(const gckpt_call *call, int64_t row);
    void (*columns)(const struct gckpti_columns *s, int64_t first, int64_t end);
    void (*attention_forward)(const struct gckpti_heads *h, int64_t row, int64_t head,
                              int64_t first, float *room);
    void (*attention_backward)(const struct gckpti_heads *h, int64_t row, int64_t head,
                               float *room);
    void (*classes_backward)(const float *x, float *d, int64_t n, float max, float log_sum,
                             float scale, int accumulate);
    const struct gckpti_mixed_kernels *mixed;
};
#endif

/* =================================================================================================
 * >>ops: elementwise, broadcasting, shapes
 *
 * An op is one block: formula; shape rule (from in[].shape to shape, pure); forward; backward; the
 * row that names them, with what each input's gradient reads (needs) and which bytes may coincide
 * (flags); the public builder, which only passes inputs and attributes on: gckpt_apply handles NULL
 * and whatever shape() refuses.
 *
 * A gradient element that is a product, g * slope, is stored rounded when it is the first
 * contribution and is one fma when it is added: no product feeds an addition (manual, 5a and 5f).
 * ============================================================================================== */
/* clang-format off */
/* All ops, from which their fast kernels and printed C (gckpt_plan_c) follow: fast(name) has
 * kernels in >>fast, too; plain(name) has not. */
#define GCKPTI_OPS(fast, plain)                                                                    \
    fast(relu) fast(gelu) fast(gelu_erf) fast(silu) fast(tanh) fast(sigmoid) fast(softmax)         \
    plain(scale) plain(dropout) fast(add) fast(sub) fast(mul)                                      \
    plain(permute) plain(slice) plain(concat) plain(sum) plain(mean)                               \
    fast(embed) fast(matmul) fast(linear) fast(layernorm) fast(rmsnorm) fast(attention)            \
    plain(rotary) fast(cross_entropy) fast(linear_cross_entropy)                                   \
    plain(mean_squared_error) plain(sum_loss)

/* The gckpt_op of an op (one that is not listed does not compile): its kernels are
 * gckpti_<name>_forward and _backward, and GCKPTI_FAST or _PLAIN as listed; last what each input's
 * gradient reads. */
#define GCKPTI_ROW_WITH(name, kernels, shape, flops, flops_backward, classes, flags, ...)          \
    static const gckpt_op gckpti_op_##name = {                                                     \
        #name, shape, gckpti_##name##_forward, gckpti_##name##_backward, flops, classes,           \
        { __VA_ARGS__ }, (flags) | GCKPTI_OWN_##name, kernels(name), flops_backward }
#define GCKPTI_ROW(name, kernels, shape, flops, flags, ...)                                        \
    GCKPTI_ROW_WITH(name, kernels, shape, flops, NULL, NULL, flags, __VA_ARGS__)
/* clang-format on */

/* The flag of this header's own rows. */
#define GCKPTI_OWN(name) GCKPTI_OWN_##name = 1 << 20,
enum { GCKPTI_OPS(GCKPTI_OWN, GCKPTI_OWN) GCKPTI_OWN_ROW = 1 << 20 };
#undef GCKPTI_OWN
/* A loss whose backward, when it has attributes, adds to the loss's sum; its forward counts. */
enum { GCKPTI_LATE = 1 << 21 };

#define GCKPTI_PLAIN(name) NULL, NULL
#if GCKPTI_HAS_FAST
#define GCKPTI_FAST(name) gckpti_fast_##name##_forward, gckpti_fast_##name##_backward
#define GCKPTI_DECLARE(name)                                                                       \
    static void gckpti_fast_##name##_forward(const gckpt_call *call);                              \
    static void gckpti_fast_##name##_backward(const gckpt_call *call);
#define GCKPTI_NOTHING(name)
GCKPTI_OPS(GCKPTI_DECLARE, GCKPTI_NOTHING)
#undef GCKPTI_NOTHING
#undef GCKPTI_DECLARE
#else
#define GCKPTI_FAST(name) NULL, NULL
#endif

/* What the gradients of a product are worth: each as much as the forward, and no op has more than
 * two that are. */
static uint64_t gckpti_gradients_flops(const gckpt_call *call, uint64_t forward)
{
    int wanted = 0;
    for (int i = 0; i < call->inputs; i++)
        wanted += call->in[i].grad != NULL;
    return wanted > 1 ? 2 * forward : forward;
}

/* Flops for each element of the first input; a transcendental is worth about 20 additions. */
#define GCKPTI_FLOPS(count)                                                                        \
    static uint64_t gckpti_flops_##count(const gckpt_call *call)                                   \
    {                                                                                              \
        return count * (uint64_t)gckpti_elements(&call->in[0].shape);                              \
    }
GCKPTI_FLOPS(1)
GCKPTI_FLOPS(3)
GCKPTI_FLOPS(8)
GCKPTI_FLOPS(13)
GCKPTI_FLOPS(20)
#undef GCKPTI_FLOPS

GCKPTI_INLINE void gckpti_put_product(float *d, float a, float b, int accumulate)
{
    *d = accumulate ? gckpti_fma(a, b, *d) : a * b;
}

/* ---- elementwise ops of one input: y = f(x), dx = g * slope, the slope taken at x or at y.
 * Kernels go element by element, so that out may be in, and grad may be grad_out. */
static gckpt_result gckpti_unary_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}

GCKPTI_INLINE void gckpti_unary_forward(const gckpt_call *call, float (*f)(float x))
{
    const float *x = call->in[0].data;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; i < n; i++)
        call->out[i] = f(x[i]);
}

GCKPTI_INLINE void gckpti_unary_backward(const gckpt_call *call, unsigned needs,
                                         float (*slope)(float at))
{
    const float *at = needs & GCKPT_OUT ? call->out : call->in[0].data;
    float *d = call->in[0].grad;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; d && i < n; i++)
        gckpti_put_product(&d[i], call->grad_out[i], slope(at[i]), call->in[0].accumulate);
}

#define GCKPTI_UNARY_FLAGS (GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD)
/* Row and builder of an op without attributes. */
#define GCKPTI_UNARY(name, shape, flops, needs)                                                    \
    GCKPTI_ROW(name, GCKPTI_FAST, shape, flops, GCKPTI_UNARY_FLAGS, needs);                        \
    GCKPT_API gckpt_tensor *gckpt_##name(gckpt_tensor *x)                                          \
    {                                                                                              \
        return gckpt_apply(&gckpti_op_##name, &x, 1, NULL, 0);                                     \
    }
/* All of an op from gckpti_<name> and gckpti_<name>_slope, which is taken at what needs says. */
#define GCKPTI_CURVE(name, needs)                                                                  \
    static void gckpti_##name##_forward(const gckpt_call *call)                                    \
    {                                                                                              \
        gckpti_unary_forward(call, gckpti_##name);                                                 \
    }                                                                                              \
    static void gckpti_##name##_backward(const gckpt_call *call)                                   \
    {                                                                                              \
        gckpti_unary_backward(call, needs, gckpti_##name##_slope);                                 \
    }                                                                                              \
    GCKPTI_UNARY(name, gckpti_unary_shape, gckpti_flops_20, needs)

/* relu: y = max(x, 0), NaN and -0 stay; dx = g where y > 0, else +0 (stored or added) */
GCKPTI_INLINE float gckpti_relu(float x) { return x < 0.0f ? 0.0f : x; }
static void gckpti_relu_forward(const gckpt_call *call) { gckpti_unary_forward(call, gckpti_relu); }
static void gckpti_relu_backward(const gckpt_call *call)
{
    float *d = call->in[0].grad;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; d && i < n; i++)
        gckpti_put(&d[i], call->out[i] > 0.0f ? call->grad_out[i] : 0.0f, call->in[0].accumulate);
}
GCKPTI_UNARY(relu, gckpti_unary_shape, NULL, GCKPT_OUT)

/* gelu: u = sqrt(2/pi) (x + 0.044715 x^3), t = tanh(u), y = x/2 (1 + t)
 *   u = x fma(x^2, C3, C1), y = fma(x/2, t, x/2)
 * slope: (1 + t)/2 + x/2 (1 - t^2) u',  u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
 *   fma(x/2 fma(-t, t, 1), u', fma(1/2, t, 1/2)),  u' = fma(x^2, 3 C3, C1)
 * Hendrycks & Gimpel 2016. */
#define GCKPTI_GELU_C1 0.797884561f  /* sqrt(2/pi) */
#define GCKPTI_GELU_C3 0.0356774081f /* sqrt(2/pi) * 0.044715 */
GCKPTI_INLINE float gckpti_gelu(float x)
{
    float h = 0.5f * x, t = gckpti_tanh(x * gckpti_fma(x * x, GCKPTI_GELU_C3, GCKPTI_GELU_C1));
    return gckpti_fma(h, t, h);
}
GCKPTI_INLINE float gckpti_gelu_slope(float x)
{
    float t = gckpti_tanh(x * gckpti_fma(x * x, GCKPTI_GELU_C3, GCKPTI_GELU_C1));
    float du = gckpti_fma(x * x, 3.0f * GCKPTI_GELU_C3, GCKPTI_GELU_C1);
    return gckpti_fma(0.5f * x * gckpti_fma(-t, t, 1.0f), du, gckpti_fma(0.5f, t, 0.5f));
}
GCKPTI_CURVE(gelu, GCKPT_IN(0))

/* gelu_erf: e = erf(0.707106781 x), y = x/2 (1 + e);  slope: (1 + e)/2 + x exp(-x^2/2) / sqrt(2 pi)
 *   fma(x/2, e, x/2);  fma(0.398942280 x, exp((-x/2) x), fma(1/2, e, 1/2)) */
GCKPTI_INLINE float gckpti_gelu_erf(float x)
{
    float h = 0.5f * x, e = gckpti_erf(0.707106781f * x);
    return gckpti_fma(h, e, h);
}
GCKPTI_INLINE float gckpti_gelu_erf_slope(float x)
{
    float e = gckpti_erf(0.707106781f * x);
    return gckpti_fma(0.398942280f * x, gckpti_exp(-0.5f * x * x), gckpti_fma(0.5f, e, 0.5f));
}
GCKPTI_CURVE(gelu_erf, GCKPT_IN(0))

/* silu: s = 1 / (1 + exp(-x)), y = x s = x / (1 + exp(-x));  slope: s + x s (1 - s)
 *   = fma(x s, 1 - s, s). Elfwing 2017. */
GCKPTI_INLINE float gckpti_sigmoid(float x) { return 1.0f / (1.0f + gckpti_exp(-x)); }
GCKPTI_INLINE float gckpti_silu(float x) { return x / (1.0f + gckpti_exp(-x)); }
GCKPTI_INLINE float gckpti_silu_slope(float x)
{
    float s = gckpti_sigmoid(x);
    return gckpti_fma(x * s, 1.0f - s, s);
}
GCKPTI_CURVE(silu, GCKPT_IN(0))

/* tanh: slope 1 - y^2 = fma(-y, y, 1) */
GCKPTI_INLINE float gckpti_tanh_slope(float y) { return gckpti_fma(-y, y, 1.0f); }
GCKPTI_CURVE(tanh, GCKPT_OUT)

/* sigmoid: y = 1 / (1 + exp(-x)), slope y - y^2 = fma(-y, y, y) */
GCKPTI_INLINE float gckpti_sigmoid_slope(float y) { return gckpti_fma(-y, y, y); }
GCKPTI_CURVE(sigmoid, GCKPT_OUT)
#undef GCKPTI_CURVE

/* softmax over the last axis: y = exp(x - max) / sum(exp(x - max));  dx = y (g - sum(g y)).
 * A row is read to its end before it is written, so the bytes may coincide here too. */
static void gckpti_softmax_forward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = call->in[0].data + r * n;
        float *y = call->out + r * n, max = gckpti_shift(gckpti_max(x, n));
        for (int64_t j = 0; j < n; j++)
            y[j] = gckpti_exp(x[j] - max);
        float sum = gckpti_sum(y, n);
        gckpti_softmax_end(&max, &sum);
        for (int64_t j = 0; j < n; j++)
            y[j] = y[j] / sum;
    }
}
static void gckpti_softmax_backward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    for (int64_t r = 0; call->in[0].grad && r < rows; r++) {
        const float *y = call->out + r * n, *g = call->grad_out + r * n;
        float *d = call->in[0].grad + r * n, dot = gckpti_dot(g, y, n);
        for (int64_t j = 0; j < n; j++)
            gckpti_put_product(&d[j], y[j], g[j] - dot, call->in[0].accumulate);
    }
}
static gckpt_result gckpti_softmax_shape(gckpt_call *call)
{
    call->mixes_rows = call->in[0].shape.n < 2; /* then its only axis is the batch */
    return gckpti_unary_shape(call);
}

GCKPTI_UNARY(softmax, gckpti_softmax_shape, gckpti_flops_20, GCKPT_OUT)
#undef GCKPTI_UNARY

/* scale: y = factor x;  dx = factor g */
static void gckpti_scale_by(const gckpt_call *call, const float *x, float *y, int accumulate)
{
    float factor = *(const float *)call->attributes;
    int64_t n = gckpti_elements(&call->shape);
    for (int64_t i = 0; y && i < n; i++)
        gckpti_put_product(&y[i], factor, x[i], accumulate);
}
static void gckpti_scale_forward(const gckpt_call *call)
{
    gckpti_scale_by(call, call->in[0].data, call->out, 0);
}
static void gckpti_scale_backward(const gckpt_call *call)
{
    gckpti_scale_by(call, call->grad_out, call->in[0].grad, call->in[0].accumulate);
}
GCKPTI_ROW(scale, GCKPTI_PLAIN, gckpti_unary_shape, NULL, GCKPTI_UNARY_FLAGS, 0);
GCKPT_API gckpt_tensor *gckpt_scale(gckpt_tensor *x, float factor)
{
    return gckpt_apply(&gckpti_op_scale, &x, 1, &factor, sizeof factor);
}

/* dropout: y = x / (1 - p) where u >= p, else 0;  dx = g / (1 - p) or 0, the mask drawn again: puts
 * of (1 / (1 - p)) x or g, and of +0.
 * u is uniform in [0,1), four to a Philox block, numbered by the element in the whole batch (5j): a
 * micro-batch may begin inside a block. */
static gckpt_result gckpti_dropout_shape(gckpt_call *call)
{
    float p = *(const float *)call->attributes;
    call->shape = call->in[0].shape;
    if (!(p < 1.0f))
        return gckpt_fail(call, GCKPT_E_ARG, "dropout: p = %g must be below 1 (0 switches it off)",
                          (double)p);
    return GCKPT_OK;
}
/* y = x where the mask, drawn from seed, step and tensor, lets it pass; backward: g for x. */
static void gckpti_dropout_mask(const gckpt_call *call, const float *x, float *y, int accumulate)
{
    float p = *(const float *)call->attributes, factor = 1.0f / (1.0f - p);
    int64_t n = gckpti_elements(&call->shape);
    uint64_t first = call->row ? (uint64_t)call->row * (uint64_t)(n / call->rows) : 0;
    uint32_t block[4] = { 0, 0, 0, 0 };
    for (int64_t i = 0; i < n; i++) {
        uint64_t at = first + (uint64_t)i;
        if (i == 0 || at % 4 == 0)
            gckpti_philox(call->seed, at / 4, (uint32_t)call->id, (uint32_t)call->step, block);
        if (gckpti_uniform(block[at % 4]) >= p)
            gckpti_put_product(&y[i], factor, x[i], accumulate);
        else
            gckpti_put(&y[i], 0.0f, accumulate);
    }
}
static void gckpti_dropout_forward(const gckpt_call *call)
{
    if (call->training)
        gckpti_dropout_mask(call, call->in[0].data, call->out, 0);
    else if (call->out != call->in[0].data)
        memcpy(call->out, call->in[0].data, (size_t)gckpti_elements(&call->shape) * sizeof(float));
}
static void gckpti_dropout_backward(const gckpt_call *call) /* only training plans have one */
{
    if (call->in[0].grad)
        gckpti_dropout_mask(call, call->grad_out, call->in[0].grad, call->in[0].accumulate);
}
GCKPTI_ROW(dropout, GCKPTI_PLAIN, gckpti_dropout_shape, gckpti_flops_20, GCKPTI_UNARY_FLAGS, 0);
GCKPT_API gckpt_tensor *gckpt_dropout(gckpt_tensor *x, float p)
{
    return p <= 0.0f ? x : gckpt_apply(&gckpti_op_dropout, &x, 1, &p, sizeof p);
}

/* ---- walking a tensor in row-major order while two others are read or written at their own steps.
 * Axis 0 is the innermost. Neighbouring axes that both others cross in one stride are merged, so
 * equal shapes are one run, and (B,T,C) with (C) is B*T runs of C. */
typedef struct {
    int n;
    int64_t size[GCKPT_MAX_DIMS], step[2][GCKPT_MAX_DIMS], index[GCKPT_MAX_DIMS];
    int64_t at[2]; /* where the present run begins */
} gckpti_walk;

static void gckpti_walk_begin(gckpti_walk *w)
{
    memset(w, 0, sizeof *w);
    w->size[0] = 1; /* a scalar is one run of one element */
}

/* The next axis, going outwards. */
static void gckpti_walk_axis(gckpti_walk *w, int64_t size, int64_t step0, int64_t step1)
{
    int k = w->n - 1;
    if (size == 1)
        return;
    if (k >= 0 && step0 == w->size[k] * w->step[0][k] && step1 == w->size[k] * w->step[1][k]) {
        w->size[k] *= size;
        return;
    }
    k = w->n++;
    w->size[k] = size;
    w->step[0][k] = step0;
    w->step[1][k] = step1;
}

/* To the next run of size[0] elements; 0 at the end. */
static int gckpti_walk_next(gckpti_walk *w)
{
    for (int k = 1; k < w->n; k++) {
        w->at[0] += w->step[0][k];
        w->at[1] += w->step[1][k];
        if (++w->index[k] < w->size[k])
            return 1;
        w->index[k] = 0;
        w->at[0] -= w->size[k] * w->step[0][k];
        w->at[1] -= w->size[k] * w->step[1][k];
    }
    return 0;
}

/* ---- add, sub, mul with broadcasting: axes match from the last; 1 or a missing axis is repeated.
 * The gradient of a repeated input sums over the repetitions, in the row-major order of the output,
 * one after the other, with a low part: where the batch is cut, the sum goes on where it stopped
 * (5e). */
static gckpt_result gckpti_broadcast_shape(gckpt_call *call)
{
    const gckpt_shape *a = &call->in[0].shape, *b = &call->in[1].shape;
    call->shape = a->n >= b->n ? *a : *b;
    for (int k = 1; k <= a->n && k <= b->n; k++) {
        int64_t da = a->d[a->n - k], db = b->d[b->n - k];
        if (da != db && da != 1 && db != 1)
            return gckpt_fail(call, GCKPT_E_SHAPE,
                              "broadcast: %S with %S: sizes %I and %I differ "
                              "(matched from the last axis; only 1 is repeated)",
                              a, b, da, db);
        call->shape.d[call->shape.n - k] = da == 1 ? db : da;
    }
    return GCKPT_OK;
}

/* Over the output; at[i] follows input i, whose innermost step is 1, or 0 where it is repeated. */
static void gckpti_broadcast_walk(gckpti_walk *w, const gckpt_call *call)
{
    int64_t stride[2] = { 1, 1 }, step[2];
    gckpti_walk_begin(w);
    for (int k = 1; k <= call->shape.n; k++) {
        for (int i = 0; i < 2; i++) {
            const gckpt_shape *s = &call->in[i].shape;
            int64_t size = k <= s->n ? s->d[s->n - k] : 1;
            step[i] = size == 1 ? 0 : stride[i];
            stride[i] *= size;
        }
        gckpti_walk_axis(w, call->shape.d[call->shape.n - k], step[0], step[1]);
    }
}

/* Input i's gradient: d[j * step] gets sign * g[j] (exact), or g[j] * other[j * so], in each run.
 * Without a low part nothing is repeated, so steps are 1. */
static void gckpti_broadcast_gradient(const gckpt_call *call, int i, float sign, const float *other)
{
    const gckpt_arg *in = &call->in[i];
    const float *g = call->grad_out;
    gckpti_walk w;
    gckpti_broadcast_walk(&w, call);
    int64_t n = w.size[0], step = w.step[i][0], so = w.step[1 - i][0];
    if (in->low && !in->accumulate)
        memset(in->grad, 0, (size_t)gckpti_elements(&in->shape) * sizeof(float));
    do {
        float *d = in->grad + w.at[i], *low = in->low ? in->low + w.at[i] : NULL;
        const float *o = other ? other + w.at[1 - i] : NULL;
        if (low)
            for (int64_t j = 0; j < n; j++)
                gckpti_sum_add(&d[j * step], &low[j * step],
                               o ? gckpti_mul(g[j], o[j * so]) : sign * g[j]);
        else if (o)
            for (int64_t j = 0; j < n; j++)
                gckpti_put_product(&d[j], g[j], o[j * so], in->accumulate);
        else
            for (int64_t j = 0; j < n; j++)
                gckpti_put(&d[j], sign * g[j], in->accumulate);
        g += n;
    } while (gckpti_walk_next(&w));
}

/* out = f(a, b), run by run. */
static inline void gckpti_binary_forward(const gckpt_call *call, float (*f)(float a, float b))
{
    gckpti_walk w;
    float *o = call->out;
    gckpti_broadcast_walk(&w, call);
    int64_t n = w.size[0], sa = w.step[0][0], sb = w.step[1][0];
    do {
        const float *a = call->in[0].data + w.at[0], *b = call->in[1].data + w.at[1];
        if (sa == sb) /* both 1, or a single element; vectorised */
            for (int64_t j = 0; j < n; j++)
                o[j] = f(a[j], b[j]);
        else
            for (int64_t j = 0; j < n; j++)
                o[j] = f(a[j * sa], b[j * sb]);
        o += n;
    } while (gckpti_walk_next(&w));
}

/* Forward, row and builder of an op of two inputs; its formula is gckpti_pair_<name>. */
#define GCKPTI_PAIR(name, flags, ...)                                                              \
    static void gckpti_##name##_forward(const gckpt_call *call)                                    \
    {                                                                                              \
        gckpti_binary_forward(call, gckpti_pair_##name);                                           \
    }                                                                                              \
    GCKPTI_ROW(name, GCKPTI_FAST, gckpti_broadcast_shape, NULL,                                    \
               GCKPT_INPLACE(0) | GCKPT_INPLACE(1) | (flags), __VA_ARGS__);                        \
    GCKPT_API gckpt_tensor *gckpt_##name(gckpt_tensor *a, gckpt_tensor *b)                         \
    {                                                                                              \
        gckpt_tensor *in[2] = { a, b };                                                            \
        return gckpt_apply(&gckpti_op_##name, in, 2, NULL, 0);                                     \
    }

/* add: da = g, db = g.  sub: da = g, db = -g. */
static void gckpti_add_gradients(const gckpt_call *call, float sign)
{
    for (int i = 0; i < 2; i++)
        if (call->in[i].grad && call->in[i].grad != call->grad_out)
            gckpti_broadcast_gradient(call, i, i ? sign : 1.0f, NULL);
}
GCKPTI_INLINE float gckpti_pair_add(float a, float b) { return a + b; }
static void gckpti_add_backward(const gckpt_call *call) { gckpti_add_gradients(call, 1.0f); }
GCKPTI_PAIR(add, GCKPT_PASSES(0) | GCKPT_PASSES(1), GCKPT_SUMS, GCKPT_SUMS)

GCKPTI_INLINE float gckpti_pair_sub(float a, float b) { return a - b; }
static void gckpti_sub_backward(const gckpt_call *call) { gckpti_add_gradients(call, -1.0f); }
GCKPTI_PAIR(sub, GCKPT_PASSES(0), GCKPT_SUMS, GCKPT_SUMS)

/* mul: da = g b, db = g a */
GCKPTI_INLINE float gckpti_pair_mul(float a, float b) { return a * b; }
static void gckpti_mul_backward(const gckpt_call *call)
{
    for (int i = 0; i < 2; i++)
        if (call->in[i].grad)
            gckpti_broadcast_gradient(call, i, 1.0f, call->in[1 - i].data);
}
GCKPTI_PAIR(mul, 0, GCKPT_IN(1) | GCKPT_SUMS, GCKPT_IN(0) | GCKPT_SUMS)
#undef GCKPTI_PAIR

/* ---- permute: axis i of the result is axis axes[i] of x; the gradient goes back the same way. */
typedef struct {
    int n, axes[GCKPT_MAX_DIMS];
} gckpti_permute;

/* Each axis once; a batch axis that leaves its place mixes rows. */
static gckpt_result gckpti_permute_shape(gckpt_call *call)
{
    const gckpti_permute *p = (const gckpti_permute *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    unsigned seen = 0;
    if (p->n != x->n)
        return gckpt_fail(call, GCKPT_E_ARG, "permute: %i axes given, %S has %i: name each once",
                          p->n, x, x->n);
    call->shape = *x;
    for (int i = 0; i < x->n; i++) {
        int axis = p->axes[i] < 0 ? p->axes[i] + x->n : p->axes[i];
        if (axis < 0 || axis >= x->n || seen >> axis & 1u)
            return gckpt_fail(call, GCKPT_E_ARG,
                              "permute: axes[%i] = %i is repeated or not in %S: "
                              "name each axis once",
                              i, p->axes[i], x);
        seen |= 1u << axis;
        call->shape.d[i] = x->d[axis];
        if (i == 0 && axis != 0)
            call->mixes_rows = 1;
    }
    return GCKPT_OK;
}

/* Over the output; at[0] follows x, which forward reads and backward adds to. */
static void gckpti_permute_walk(gckpti_walk *w, const gckpt_call *call)
{
    const gckpti_permute *p = (const gckpti_permute *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    gckpti_walk_begin(w);
    for (int i = x->n; i-- > 0;) {
        int64_t step = 1;
        for (int k = (p->axes[i] < 0 ? p->axes[i] + x->n : p->axes[i]) + 1; k < x->n; k++)
            step *= x->d[k];
        gckpti_walk_axis(w, call->shape.d[i], step, 0);
    }
}
static void gckpti_permute_forward(const gckpt_call *call)
{
    gckpti_walk w;
    float *o = call->out;
    gckpti_permute_walk(&w, call);
    do {
        const float *x = call->in[0].data + w.at[0];
        for (int64_t j = 0; j < w.size[0]; j++)
            *o++ = x[j * w.step[0][0]];
    } while (gckpti_walk_next(&w));
}
static void gckpti_permute_backward(const gckpt_call *call)
{
    gckpti_walk w;
    const float *g = call->grad_out;
    if (!call->in[0].grad)
        return;
    gckpti_permute_walk(&w, call);
    do {
        float *d = call->in[0].grad + w.at[0];
        for (int64_t j = 0; j < w.size[0]; j++)
            gckpti_put(&d[j * w.step[0][0]], *g++, call->in[0].accumulate);
    } while (gckpti_walk_next(&w));
}
GCKPTI_ROW(permute, GCKPTI_PLAIN, gckpti_permute_shape, NULL, 0, 0);
GCKPT_API gckpt_tensor *gckpt_permute(gckpt_tensor *x, const int *axes, int n)
{
    gckpti_permute p = { axes ? n : 0, { 0 } };
    for (int i = 0; i < p.n && i < GCKPT_MAX_DIMS; i++)
        p.axes[i] = axes[i];
    return gckpt_apply(&gckpti_op_permute, &x, 1, &p, sizeof p);
}

/* ---- ops along one axis see a tensor as (outer, size, inner). */
typedef struct {
    int64_t outer, size, inner;
} gckpti_axis_split;

static gckpti_axis_split gckpti_split_at(const gckpt_shape *s,
                                         int axis) /* negative: from the last*/
{
    gckpti_axis_split v = { 1, 1, 1 };
    if (axis < 0)
        axis += s->n;
    for (int i = 0; i < s->n; i++)
        *(i < axis ? &v.outer : i == axis ? &v.size : &v.inner) *= s->d[i];
    return v;
}

/* The axis counted from the first, or -1 with the error recorded. */
static int gckpti_axis(gckpt_call *call, const char *op, int axis)
{
    const gckpt_shape *s = &call->in[0].shape;
    if (axis >= -s->n && axis < s->n)
        return axis < 0 ? axis + s->n : axis;
    gckpt_fail(call, GCKPT_E_ARG, "%s: %S has no axis %i: -%i to %i are possible", op, s, axis,
               s->n, s->n - 1);
    return -1;
}

/* `blocks` runs of n floats, each run a fixed step after the one before: d = s or d += s. */
static void gckpti_put_blocks(float *d, int64_t d_step, const float *s, int64_t s_step,
                              int64_t blocks, int64_t n, int accumulate)
{
    for (int64_t i = 0; i < blocks; i++)
        for (int64_t j = 0; j < n; j++)
            gckpti_put(&d[i * d_step + j], s[i * s_step + j], accumulate);
}

/* slice: elements begin..end-1 along an axis; dx = g there and 0 elsewhere */
typedef struct {
    uint32_t begin[2], end[2]; /* low word, high word: attributes are words (gckpt_apply) */
    int axis;
} gckpti_slice;
GCKPTI_INLINE int64_t gckpti_wide(const uint32_t *words)
{
    return (int64_t)((uint64_t)words[1] << 32 | words[0]);
}

/* The axis keeps end - begin elements; a part of the batch axis mixes rows. */
static gckpt_result gckpti_slice_shape(gckpt_call *call)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    int64_t begin = gckpti_wide(p->begin), end = gckpti_wide(p->end);
    int axis = gckpti_axis(call, "slice", p->axis);
    if (axis < 0)
        return GCKPT_E_ARG;
    call->shape = call->in[0].shape;
    if (begin < 0 || begin >= end || end > call->shape.d[axis])
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "slice: %I to %I of axis %i of %S: needs "
                          "0 <= begin < end <= %I",
                          begin, end, axis, &call->in[0].shape, call->shape.d[axis]);
    call->shape.d[axis] = end - begin;
    call->mixes_rows = axis == 0;
    return GCKPT_OK;
}
static void gckpti_slice_forward(const gckpt_call *call)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    gckpti_axis_split v = gckpti_split_at(&call->in[0].shape, p->axis);
    int64_t begin = gckpti_wide(p->begin), n = (gckpti_wide(p->end) - begin) * v.inner;
    gckpti_put_blocks(call->out, n, call->in[0].data + begin * v.inner, v.size * v.inner, v.outer,
                      n, 0);
}
/* g goes to where the forward read; all else is 0. */
static void gckpti_slice_backward(const gckpt_call *call)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    gckpti_axis_split v = gckpti_split_at(&call->in[0].shape, p->axis);
    int64_t begin = gckpti_wide(p->begin), n = (gckpti_wide(p->end) - begin) * v.inner;
    float *d = call->in[0].grad;
    if (!d)
        return;
    if (!call->in[0].accumulate)
        for (int64_t i = 0; i < v.outer * v.size * v.inner; i++)
            d[i] = 0.0f;
    gckpti_put_blocks(d + begin * v.inner, v.size * v.inner, call->grad_out, n, v.outer, n,
                      call->in[0].accumulate);
}
GCKPTI_ROW(slice, GCKPTI_PLAIN, gckpti_slice_shape, NULL, 0, 0);
GCKPT_API gckpt_tensor *gckpt_slice(gckpt_tensor *x, int axis, int64_t begin, int64_t end)
{
    gckpti_slice p;
    memset(&p, 0, sizeof p);
    p.begin[0] = (uint32_t)begin, p.begin[1] = (uint32_t)((uint64_t)begin >> 32);
    p.end[0] = (uint32_t)end, p.end[1] = (uint32_t)((uint64_t)end >> 32);
    p.axis = axis;
    return gckpt_apply(&gckpti_op_slice, &x, 1, &p, sizeof p);
}

/* concat: the inputs one after the other along an axis */
static gckpt_result gckpti_concat_shape(gckpt_call *call)
{
    int axis = gckpti_axis(call, "concat", *(const int *)call->attributes);
    if (axis < 0)
        return GCKPT_E_ARG;
    call->shape = call->in[0].shape;
    for (int i = 1; i < call->inputs; i++) {
        gckpt_shape s = call->in[i].shape;
        int64_t size = s.d[axis];
        s.d[axis] = call->in[0].shape.d[axis];
        if (!gckpti_same_shape(&s, &call->in[0].shape))
            return gckpt_fail(call, GCKPT_E_SHAPE,
                              "concat: %S and %S: all sizes but that of axis "
                              "%i must agree",
                              &call->in[0].shape, &call->in[i].shape, axis);
        call->shape.d[axis] += size; /* eight of at most SIZE_MAX / 64: no overflow */
    }
    call->mixes_rows = axis == 0;
    return GCKPT_OK;
}
static void gckpti_concat_forward(const gckpt_call *call)
{
    int axis = *(const int *)call->attributes;
    gckpti_axis_split all = gckpti_split_at(&call->shape, axis);
    float *o = call->out;
    for (int i = 0; i < call->inputs; i++) {
        int64_t n = gckpti_split_at(&call->in[i].shape, axis).size * all.inner;
        gckpti_put_blocks(o, all.size * all.inner, call->in[i].data, n, all.outer, n, 0);
        o += n;
    }
}
/* Each input takes its part of g. */
static void gckpti_concat_backward(const gckpt_call *call)
{
    int axis = *(const int *)call->attributes;
    gckpti_axis_split all = gckpti_split_at(&call->shape, axis);
    const float *g = call->grad_out;
    for (int i = 0; i < call->inputs; i++) {
        int64_t n = gckpti_split_at(&call->in[i].shape, axis).size * all.inner;
        if (call->in[i].grad)
            gckpti_put_blocks(call->in[i].grad, n, g, all.size * all.inner, all.outer, n,
                              call->in[i].accumulate);
        g += n;
    }
}
GCKPTI_ROW(concat, GCKPTI_PLAIN, gckpti_concat_shape, NULL, 0, 0);
GCKPT_API gckpt_tensor *gckpt_concat(gckpt_tensor *const *x, int n, int axis)
{
    return gckpt_apply(&gckpti_op_concat, x, n, &axis, sizeof axis);
}

/* sum and mean over an axis, which is removed. Over the last one: 32 lanes (5d); over another one:
 * its rows are added in order, from +0. A mean divides once, at the end; dx = g, or g / size. */
static gckpt_result gckpti_reduce_shape(gckpt_call *call)
{
    int axis = gckpti_axis(call, "sum or mean", *(const int *)call->attributes);
    if (axis < 0)
        return GCKPT_E_ARG;
    call->shape = call->in[0].shape;
    call->shape.n--;
    for (int i = axis; i < call->shape.n; i++)
        call->shape.d[i] = call->shape.d[i + 1];
    call->mixes_rows = axis == 0;
    return GCKPT_OK;
}
/* By lanes along the last axis, row after row along another. */
static void gckpti_sum_forward(const gckpt_call *call)
{
    int axis = *(const int *)call->attributes;
    gckpti_axis_split v = gckpti_split_at(&call->in[0].shape, axis);
    for (int64_t i = 0; i < v.outer; i++) {
        const float *x = call->in[0].data + i * v.size * v.inner;
        float *o = call->out + i * v.inner;
        if (axis == -1 || axis == call->in[0].shape.n - 1) {
            *o = gckpti_sum(x, v.size);
            continue;
        }
        for (int64_t j = 0; j < v.inner; j++)
            o[j] = 0.0f;
        gckpti_put_blocks(o, 0, x, v.inner, v.size, v.inner, 1);
    }
}
static void gckpti_mean_forward(const gckpt_call *call)
{
    float size = (float)gckpti_split_at(&call->in[0].shape, *(const int *)call->attributes).size;
    int64_t n = gckpti_elements(&call->shape);
    gckpti_sum_forward(call);
    for (int64_t i = 0; i < n; i++)
        call->out[i] = call->out[i] / size;
}
/* Each element of an axis gets what its sum, or mean, got. */
static void gckpti_reduce_backward(const gckpt_call *call, int mean)
{
    gckpti_axis_split v = gckpti_split_at(&call->in[0].shape, *(const int *)call->attributes);
    float *d = call->in[0].grad, size = mean ? (float)v.size : 1.0f;
    if (!d)
        return;
    for (int64_t i = 0; i < v.outer; i++)
        for (int64_t k = 0; k < v.size; k++)
            for (int64_t j = 0; j < v.inner; j++)
                gckpti_put(d++, call->grad_out[i * v.inner + j] / size, call->in[0].accumulate);
}
static void gckpti_sum_backward(const gckpt_call *call) { gckpti_reduce_backward(call, 0); }
static void gckpti_mean_backward(const gckpt_call *call) { gckpti_reduce_backward(call, 1); }
GCKPTI_ROW(sum, GCKPTI_PLAIN, gckpti_reduce_shape, gckpti_flops_1, 0, 0);
GCKPTI_ROW(mean, GCKPTI_PLAIN, gckpti_reduce_shape, gckpti_flops_1, 0, 0);
GCKPT_API gckpt_tensor *gckpt_sum(gckpt_tensor *x, int axis)
{
    return gckpt_apply(&gckpti_op_sum, &x, 1, &axis, sizeof axis);
}
GCKPT_API gckpt_tensor *gckpt_mean(gckpt_tensor *x, int axis)
{
    return gckpt_apply(&gckpti_op_mean, &x, 1, &axis, sizeof axis);
}

/* =================================================================================================
 * >>ops-layers: embed, matmul, linear, norms, attention, rotary, losses
 *
 * The plain kernels here are the definition of the numbers (manual, 5); a faster kernel must return
 * the same bits. "Chain": d = fma(a, b, d), one product after the other, from d's present value.
 * "Lanes": the 32 partial sums of gckpti_sum. "put(a, b)": gckpti_put_product, d = a b or d += a b.
 * "Mixed": of bf16 plans, whose products have factors rounded to bf16 and chains in f32.
 * ============================================================================================== */
enum {
    GCKPTI_KEY_TILE = 64,     /* keys an attention step takes at once: part of the contract */
    GCKPTI_LOSS_CHUNK = 1024, /* classes a cross-entropy step takes at once: the same */
#ifndef GCKPT_NO_FAST
    GCKPTI_LOSS_ROWS = 256,      /* rows that share one pass over a chunk of w: speed only */
    GCKPTI_LOSS_ROWS_MOST = 1024 /* in bf16 plans, which pack w's chunk each time; without w */
#else
    GCKPTI_LOSS_ROWS = 1, /* plain plans take one row in any case: this spares the stack */
    GCKPTI_LOSS_ROWS_MOST = 1
#endif
};

GCKPTI_INLINE int64_t gckpti_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* Scratch of the fast kernels, the same whatever their instruction set, in floats a thread. */
enum {
    GCKPTI_KC = 384,        /* links of a chain at a time; between, it rests in c */
    GCKPTI_KC_ACROSS = 256, /* the same where every link is in another line of a */
    GCKPTI_NC = 192,        /* columns at a time: with KC, a third of a 1 MB L2 */
    GCKPTI_PANEL = 48,      /* columns of a panel of packed b, at most */
    GCKPTI_STRIP = 16,      /* rows of a packed at a time: a cache line */
    GCKPTI_SMALL_ROOM = 128 * (GCKPTI_PANEL + GCKPTI_STRIP) /* 32 KiB: on the stack */
};

static int64_t gckpti_multiple(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* A product of m rows, n columns and k links: 320 KiB at most. It can do with less, down to 16
 * links: 16 * (GCKPTI_PANEL + GCKPTI_STRIP); 0: what the stack has is enough. */
static int64_t gckpti_product_room(int64_t m, int64_t n, int64_t k)
{
    if ((double)m * (double)n * (double)k < 16777216.0)
        return 0;
    return (gckpti_min(gckpti_multiple(n, GCKPTI_PANEL), GCKPTI_NC) + GCKPTI_STRIP) *
           gckpti_min(gckpti_multiple(k, 16), GCKPTI_KC);
}

/* b of a product in a bf16 plan, all of it once: for each pair of links a word for each column, in
 * panels of GCKPTI_PANEL columns. */
static int64_t gckpti_words(int64_t n, int64_t k) { return (k + 1) / 2 * gckpti_multiple(n, 16); }

/* Either, as the call's plan needs it; in floats for all threads. */
static int64_t gckpti_product_scratch(const gckpt_call *call, int64_t m, int64_t n, int64_t k)
{
    if (call->plain)
        return 0;
    return call->precision != GCKPT_FP32 ? gckpti_words(n, k)
                                         : call->threads * gckpti_product_room(m, n, k);
}

/* A product forward (m,k) (k,n) and its two gradients; that of b may be transposed, for which f32
 * plans have room in any case. */
static void gckpti_matmul_work(gckpt_call *call, int64_t matrices, int64_t m, int64_t n, int64_t k)
{
    int mixed = call->precision != GCKPT_FP32;
    int turned = mixed ? *(const int *)call->attributes : k > n;
    int64_t forward = gckpti_product_scratch(call, m, n, k);
    int64_t da = gckpti_product_scratch(call, m, k, n);
    int64_t db =
        turned ? gckpti_product_scratch(call, n, k, m) : gckpti_product_scratch(call, k, n, m);
    size_t unit = (size_t)(mixed ? matrices : 1) * sizeof(float);
    call->work_forward = (size_t)forward * unit;
    call->work_backward = (size_t)(da > db ? da : db) * unit;
}

/* Attention: blocks of 64 queries or keys, rows of a head's d columns in whole vectors. */
static int64_t gckpti_attention_wide(int64_t d) { return gckpti_multiple(d, 32); }

static int64_t gckpti_attention_room(int64_t d, int backward)
{
    int64_t across = GCKPTI_KEY_TILE * (d + 16), along = GCKPTI_KEY_TILE * gckpti_attention_wide(d);
    int64_t scores = GCKPTI_KEY_TILE * GCKPTI_KEY_TILE;
    return backward ? 2 * across + 3 * along + 2 * scores : across + along + scores;
}

/* A gradient's chains start at what it holds, or at +0. */
static void gckpti_start(float *d, int64_t n, int accumulate)
{
    if (!accumulate)
        memset(d, 0, (size_t)n * sizeof *d);
}

/* The next link of n chains: d[j] = fma(s, x[j], d[j]). */
GCKPTI_INLINE void gckpti_link(float s, const float *x, int64_t n, float *d)
{
    for (int64_t j = 0; j < n; j++)
        d[j] = gckpti_fma(s, x[j], d[j]);
}

/* n whole chains: d[j] += a[p] b[j * stride + p], p = 0..k-1 ascending. Four go side by side, since
 * one alone would wait for each fma to finish; at the end the last is repeated and not stored. */
static void gckpti_chains(const float *a, const float *b, int64_t stride, int64_t n, int64_t k,
                          float *d)
{
    for (int64_t j0 = 0; j0 < n; j0 += 4) {
        const float *row[4];
        float sum[4];
        for (int i = 0; i < 4; i++) {
            int64_t j = j0 + i < n ? j0 + i : n - 1;
            row[i] = b + j * stride;
            sum[i] = d[j];
        }
        for (int64_t p = 0; p < k; p++)
            for (int i = 0; i < 4; i++)
                sum[i] = gckpti_fma(a[p], row[i][p], sum[i]);
        for (int i = 0; i < 4 && j0 + i < n; i++)
            d[j0 + i] = sum[i];
    }
}

static void gckpti_from_bf16s(const uint16_t *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gckpti_from_bf16(x[i]);
}

static void gckpti_to_bf16s(const float *x, uint16_t *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gckpti_to_bf16(x[i]);
}

GCKPTI_INLINE float gckpti_grad_out(const gckpt_call *call, int64_t at)
{
    return call->grad_out ? call->grad_out[at] : gckpti_from_bf16(call->grad_out_bf16[at]);
}

/* ---- embed: out[r] = table[index[r]]; dtable[index[r]] += g[r], row by row ---- */
static gckpt_result gckpti_embed_shape(gckpt_call *call)
{
    const gckpt_shape *table = &call->in[0].shape, *index = &call->in[1].shape;
    if (table->n != 2 || index->n >= GCKPT_MAX_DIMS)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "embed: table %S needs two axes, index %S at most %i", table, index,
                          GCKPT_MAX_DIMS - 1);
    call->shape = *index;
    call->shape.d[call->shape.n++] = table->d[1];
    return GCKPT_OK;
}

static void gckpti_embed_forward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    for (int64_t r = 0; r < rows; r++) {
        const float *from = call->in[0].data + call->in[1].index[r] * n;
        if (call->out)
            memcpy(call->out + r * n, from, (size_t)n * sizeof(float));
        else
            gckpti_to_bf16s(from, call->out_bf16 + r * n, n);
    }
}

/* Rows of g in their order, each to its row of the table. */
static void gckpti_embed_backward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    float *table = call->in[0].grad;
    if (!table)
        return;
    gckpti_start(table, gckpti_elements(&call->in[0].shape), call->in[0].accumulate);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            table[call->in[1].index[r] * n + i] += gckpti_grad_out(call, r * n + i);
}

/* Input i holds numbers of rows of input i - 1: embed, linear_cross_entropy. */
static int64_t gckpti_table_rows(const gckpt_call *call, int i)
{
    return call->in[i - 1].shape.d[0];
}

GCKPTI_ROW_WITH(embed, GCKPTI_FAST, gckpti_embed_shape, NULL, NULL, gckpti_table_rows,
                GCKPT_TAKES_BF16 | GCKPT_INDEX(1), GCKPT_IN(1));

GCKPT_API gckpt_tensor *gckpt_embed(gckpt_tensor *table, gckpt_tensor *index)
{
    gckpt_tensor *in[2] = { table, index };
    if (table && index && !table->batchless)
        return gckpti_fail(table->graph, GCKPT_E_ARG,
                           "embed: the table %T depends on the batch; it must be a "
                           "function of parameters",
                           table);
    return gckpt_apply(&gckpti_op_embed, in, 2, NULL, 0);
}

/* ---- matmul: out (M,N) = a (M,K) b (K,N), or b (N,K) transposed, for each leading index ----
 * out: chains over K from +0. da = g b': chains over N. db = a' g: chains over M, and when one b
 * serves all leading indices, over all their rows in order. */
typedef struct {
    int64_t matrices, m, n, k;
} gckpti_sizes;

static gckpti_sizes gckpti_matmul_sizes(const gckpt_call *call) /* linear: a is x, b is w */
{
    const gckpt_shape *b = &call->in[1].shape;
    int64_t rows = gckpti_rows(&call->in[0].shape), matrices = 1;
    for (int i = 0; i + 2 < b->n; i++)
        matrices *= b->d[i];
    gckpti_sizes s = { matrices, rows / matrices, gckpti_last(&call->shape),
                       gckpti_last(&call->in[0].shape) };
    return s;
}

/* Leading sizes agree unless one b serves all; inner sizes agree. */
static gckpt_result gckpti_matmul_shape(gckpt_call *call)
{
    const gckpt_shape *a = &call->in[0].shape, *b = &call->in[1].shape;
    int transposed = *(const int *)call->attributes;
    if (a->n < 2 || (b->n != 2 && b->n != a->n))
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "matmul: %S x %S: a needs two axes or more, b two or as many as a", a, b);
    for (int i = 0; i + 2 < b->n; i++)
        if (a->d[i] != b->d[i])
            return gckpt_fail(call, GCKPT_E_SHAPE,
                              "matmul: %S x %S: leading sizes %I and %I differ", a, b, a->d[i],
                              b->d[i]);
    int64_t inner = b->d[b->n - 2 + transposed];
    if (gckpti_last(a) != inner)
        return gckpt_fail(call, GCKPT_E_SHAPE, "matmul%s: %S x %S: inner sizes %I and %I differ",
                          transposed ? "_transposed" : "", a, b, gckpti_last(a), inner);
    call->shape = *a;
    call->shape.d[a->n - 1] = b->d[b->n - 1 - transposed];
    gckpti_sizes sizes = gckpti_matmul_sizes(call);
    gckpti_matmul_work(call, sizes.matrices, sizes.m, sizes.n, sizes.k);
    return GCKPT_OK;
}

/* ---- products: c(i,j) = chain over p of a(i,p) b(p,j) ----
 * A chain starts at start[j] (the bias), at what c holds (accumulate), or at +0. In bf16 plans
 * (manual, 5l) operands are bf16, or rounded to it where they are read; each link flushes
 * subnormals to zero, as the processors' bf16 instructions do; c is f32 or bf16. */
typedef struct gckpti_factor {
    const float *f32;
    const uint16_t *bf16;    /* one of the two */
    int64_t row, step, next; /* to the next row of c (column for b), link, matrix */
} gckpti_factor;
typedef struct {
    int64_t batch, m, n, k;
    gckpti_factor a, b;
    const float *start;
    int accumulate;
    float *c;
    uint16_t *c_bf16; /* one of the two; rows of n */
    uint32_t *words;  /* scratch of the fast kernels: call->work */
} gckpti_factors;
typedef void (*gckpti_product_run)(const gckpt_call *call, const gckpti_factors *t);

GCKPTI_INLINE uint16_t gckpti_factor_at(const gckpti_factor *x, int64_t at)
{
    return x->bf16 ? x->bf16[at] : gckpti_to_bf16(x->f32[at]);
}

static float gckpti_mixed_link(uint16_t a, uint16_t b, float c)
{
    return gckpti_flush(
        gckpti_fma(gckpti_flush(gckpti_from_bf16(a)), gckpti_flush(gckpti_from_bf16(b)), c));
}

static float gckpti_mixed_start(const gckpti_factors *t, int64_t at, int64_t j)
{
    if (t->accumulate)
        return t->c ? t->c[at] : gckpti_from_bf16(t->c_bf16[at]);
    return t->start ? t->start[j] : 0.0f;
}

/* In bf16 plans: element by element. */
static void gckpti_mixed_plain(const gckpt_call *call, const gckpti_factors *t)
{
    (void)call;
    for (int64_t i = 0; i < t->batch * t->m; i++)
        for (int64_t j = 0; j < t->n; j++) {
            int64_t a = i / t->m * t->a.next + i % t->m * t->a.row, at = i * t->n + j;
            int64_t b = i / t->m * t->b.next + j * t->b.row;
            float d = gckpti_flush(gckpti_mixed_start(t, at, j));
            for (int64_t p = 0; p < t->k; p++, a += t->a.step, b += t->b.step)
                d = gckpti_mixed_link(gckpti_factor_at(&t->a, a), gckpti_factor_at(&t->b, b), d);
            if (t->c)
                t->c[at] = d;
            else
                t->c_bf16[at] = gckpti_to_bf16(d);
        }
}

/* arg's values from `at` on. */
static gckpti_factor gckpti_factor_of(const gckpt_arg *arg, int64_t at, int64_t row, int64_t step,
                                      int64_t next)
{
    gckpti_factor x = { arg->data ? arg->data + at : NULL, arg->bf16 ? arg->bf16 + at : NULL, row,
                        step, next };
    return x;
}

static gckpti_factor gckpti_turned(gckpti_factor x) /* transposed */
{
    gckpti_factor y = { x.f32, x.bf16, x.step, x.row, x.next };
    return y;
}

static gckpti_factors gckpti_factors_of(const gckpt_call *call, int64_t batch, int64_t m, int64_t n,
                                        int64_t k, gckpti_factor a, gckpti_factor b, float *c,
                                        uint16_t *c_bf16)
{
    gckpti_factors t = { batch, m, n, k, a, b, NULL, 0, c, c_bf16, (uint32_t *)call->work };
    return t;
}

/* c (m,n) = a b, or += */
static void gckpti_product_to(const gckpt_call *call, gckpti_product_run run, int64_t m, int64_t n,
                              int64_t k, gckpti_factor a, gckpti_factor b, float *c, int accumulate)
{
    gckpti_factors t = gckpti_factors_of(call, 1, m, n, k, a, b, c, NULL);
    t.accumulate = accumulate;
    run(call, &t);
}

/* In f32 plans. Where b's columns lie side by side, a row of c takes link after link; else (b's
 * links do, and a's) chain after chain. */
static void gckpti_fp32_plain(const gckpt_call *call, const gckpti_factors *t)
{
    float *c = t->c;
    (void)call;
    for (int64_t matrix = 0; matrix < t->batch; matrix++)
        for (int64_t i = 0; i < t->m; i++, c += t->n) {
            const float *a = t->a.f32 + matrix * t->a.next + i * t->a.row;
            const float *b = t->b.f32 + matrix * t->b.next;
            if (t->start)
                memcpy(c, t->start, (size_t)t->n * sizeof *c);
            else
                gckpti_start(c, t->n, t->accumulate);
            if (t->b.row != 1)
                gckpti_chains(a, b, t->b.row, t->n, t->k, c);
            for (int64_t p = 0; t->b.row == 1 && p < t->k; p++)
                gckpti_link(a[p * t->a.step], b + p * t->b.step, t->n, c);
        }
}

static gckpti_product_run gckpti_plain_products(const gckpt_call *call)
{
    return call->precision == GCKPT_FP32 ? gckpti_fp32_plain : gckpti_mixed_plain;
}

/* The b of matmul, and w of linear. */
static gckpti_factor gckpti_linear_b(const gckpt_call *call, gckpti_sizes s)
{
    gckpti_factor b = gckpti_factor_of(&call->in[1], 0, 1, s.n, s.n * s.k);
    if (*(const int *)call->attributes) /* transposed */
        b.row = s.k, b.step = 1;
    return b;
}

/* Forward of matmul and linear: out = a b + bias. */
static void gckpti_linear_out(const gckpt_call *call, gckpti_product_run run)
{
    gckpti_sizes s = gckpti_matmul_sizes(call);
    gckpti_factor a = gckpti_factor_of(&call->in[0], 0, s.k, 1, s.m * s.k);
    gckpti_factors t = gckpti_factors_of(call, s.matrices, s.m, s.n, s.k, a,
                                         gckpti_linear_b(call, s), call->out, call->out_bf16);
    t.start = call->inputs == 3 ? call->in[2].data : NULL;
    run(call, &t);
}

/* Backward: da = g b', db = a' g, or (g' a) where b is transposed. */
static void gckpti_linear_gradients(const gckpt_call *call, gckpti_product_run run)
{
    gckpti_sizes s = gckpti_matmul_sizes(call);
    const gckpt_arg *in = call->in;
    gckpti_factor g = { call->grad_out, call->grad_out_bf16, s.n, 1, s.m * s.n };
    gckpti_factor a = gckpti_turned(gckpti_factor_of(&in[0], 0, s.k, 1, s.m * s.k));
    gckpti_factors da =
        gckpti_factors_of(call, s.matrices, s.m, s.k, s.n, g,
                          gckpti_turned(gckpti_linear_b(call, s)), in[0].grad, in[0].grad_bf16);
    da.accumulate = in[0].accumulate;
    if (da.c || da.c_bf16)
        run(call, &da);
    gckpti_factors db = gckpti_factors_of(call, s.matrices, s.k, s.n, s.m, a, gckpti_turned(g),
                                          in[1].grad, in[1].grad_bf16);
    if (*(const int *)call->attributes)
        db.m = s.n, db.n = s.k, db.a = gckpti_turned(g), db.b = a;
    db.accumulate = in[1].accumulate;
    if (db.c || db.c_bf16)
        run(call, &db);
}

static void gckpti_matmul_forward(const gckpt_call *call)
{
    gckpti_linear_out(call, gckpti_plain_products(call));
}

static void gckpti_matmul_backward(const gckpt_call *call)
{
    gckpti_linear_gradients(call, gckpti_plain_products(call));
}

static uint64_t gckpti_matmul_flops(const gckpt_call *call)
{
    return 2 * (uint64_t)gckpti_elements(&call->shape) * (uint64_t)gckpti_last(&call->in[0].shape);
}

GCKPTI_ROW(matmul, GCKPTI_FAST, gckpti_matmul_shape, gckpti_matmul_flops, GCKPT_TAKES_BF16,
           GCKPT_IN(1), GCKPT_IN(0));

static gckpt_tensor *gckpti_linear_new(const gckpt_op *op, gckpt_tensor *a, gckpt_tensor *b,
                                       gckpt_tensor *bias, int transposed)
{
    gckpt_tensor *in[3] = { a, b, bias };
    return gckpt_apply(op, in, bias ? 3 : 2, &transposed, sizeof transposed);
}

GCKPT_API gckpt_tensor *gckpt_matmul(gckpt_tensor *a, gckpt_tensor *b)
{
    return gckpti_linear_new(&gckpti_op_matmul, a, b, NULL, 0);
}

GCKPT_API gckpt_tensor *gckpt_matmul_transposed(gckpt_tensor *a, gckpt_tensor *b)
{
    return gckpti_linear_new(&gckpti_op_matmul, a, b, NULL, 1);
}

/* ---- linear: out (..,O) = x (..,I) w (I,O) + bias, or w (O,I) transposed ----
 * As matmul, but the chains of out start at the bias; dbias sums g, row by row, with a low part. */
static gckpt_result gckpti_linear_shape(gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape, *w = &call->in[1].shape, *bias = &call->in[2].shape;
    int transposed = *(const int *)call->attributes;
    if (x->n < 1 || w->n != 2)
        return gckpt_fail(call, GCKPT_E_SHAPE, "linear: x %S needs an axis, w %S two", x, w);
    int64_t inner = w->d[transposed], outputs = w->d[1 - transposed];
    if (gckpti_last(x) != inner)
        return gckpt_fail(call, GCKPT_E_SHAPE, "linear%s: x %S, w %S: inner sizes %I and %I differ",
                          transposed ? "_transposed" : "", x, w, gckpti_last(x), inner);
    if (call->inputs == 3 && (bias->n != 1 || bias->d[0] != outputs))
        return gckpt_fail(call, GCKPT_E_SHAPE, "linear: w %S needs a bias of shape [%I], not %S", w,
                          outputs, bias);
    call->shape = *x;
    call->shape.d[x->n - 1] = outputs;
    call->mixes_rows = x->n < 2;
    gckpti_matmul_work(call, 1, gckpti_rows(x), outputs, inner);
    return GCKPT_OK;
}

static void gckpti_linear_forward(const gckpt_call *call) { gckpti_matmul_forward(call); }

/* As matmul; dbias row by row. */
static void gckpti_linear_backward(const gckpt_call *call)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    float *bias = call->inputs == 3 ? call->in[2].grad : NULL, *low = call->in[2].low;
    gckpti_matmul_backward(call);
    if (!bias)
        return;
    gckpti_start(bias, n, call->in[2].accumulate);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++)
            gckpti_sum_add(&bias[j], low ? low + j : NULL, gckpti_grad_out(call, r * n + j));
}

GCKPTI_ROW(linear, GCKPTI_FAST, gckpti_linear_shape, gckpti_matmul_flops, GCKPT_TAKES_BF16,
           GCKPT_IN(1), GCKPT_IN(0), GCKPT_SUMS);

GCKPT_API gckpt_tensor *gckpt_linear(gckpt_tensor *x, gckpt_tensor *w, gckpt_tensor *bias)
{
    return gckpti_linear_new(&gckpti_op_linear, x, w, bias, 0);
}

GCKPT_API gckpt_tensor *gckpt_linear_transposed(gckpt_tensor *x, gckpt_tensor *w,
                                                gckpt_tensor *bias)
{
    return gckpti_linear_new(&gckpti_op_linear, x, w, bias, 1);
}

/* ---- layernorm, rmsnorm over the last axis of size n; rmsnorm is layernorm with mean 0 ----
 * The mean is taken in two steps: c = x_0 + mean(x - x_0), which is exact for equal elements, then
 * d = (x - c) - mean(x - c), which has all digits however far the row, or its first element, is
 * from 0. rmsnorm: d = x. rstd = rsqrt(mean(d^2) + 1e-5), h = d rstd, y = h gain + bias.
 * All means: by lanes, then / n. y: fma(h, gain, bias), h gain, fma(d, rstd, bias), or h.
 * aux (rows): c, mean(x - c) (layernorm only) and rstd.
 * With u = g gain rounded (or g), a = mean(u) (rmsnorm: 0), b = mean(u h): dx = rstd (u - a - h b)
 *   = put(rstd, fma(-h, b, u - a)); a's lanes: lane + u, b's: fma(u, h, lane).
 * dgain sums g h (rounded) and dbias g, row by row, with low parts. */
typedef struct {
    int center, gain, bias;
} gckpti_norm; /* gain, bias: which input, 0: none */

/* d; rmsnorm has c = mean = 0. */
GCKPTI_INLINE float gckpti_centered(float x, float c, float mean) { return (x - c) - mean; }

/* The mean of x - c. */
static float gckpti_mean_from(const float *x, int64_t n, float c)
{
    float lane[32] = { 0.0f };
    for (int64_t i = 0; i < n; i++)
        lane[i & 31] += x[i] - c;
    return gckpti_lanes_sum(lane) / (float)n;
}

/* gain and bias have the size of the last axis; aux is what the backward would compute again. */
static gckpt_result gckpti_norm_shape(gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    const char *name = o->center ? "layernorm" : "rmsnorm";
    if (x->n < 1)
        return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x has no axis", name);
    for (int i = 1; i < call->inputs; i++)
        if (call->in[i].shape.n != 1 || call->in[i].shape.d[0] != gckpti_last(x))
            return gckpt_fail(call, GCKPT_E_SHAPE, "%s: x %S needs a %s of [%I], not %S", name, x,
                              i == o->gain ? "gain" : "bias", gckpti_last(x), &call->in[i].shape);
    call->shape = *x;
    call->aux_bytes = (size_t)gckpti_rows(x) * (o->center ? 3 : 1) * sizeof(float);
    call->mixes_rows = x->n < 2;
    return GCKPT_OK;
}

/* Row by row: c and mean (layernorm), rstd, then y; out NULL: aux alone. */
static void gckpti_layernorm_forward(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    const float *gain = o->gain ? call->in[o->gain].data : NULL;
    const float *bias = o->bias ? call->in[o->bias].data : NULL;
    float *aux = (float *)call->aux;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = call->in[0].data + r * n;
        float lane[32] = { 0.0f }, c = 0.0f, mean = 0.0f;
        if (o->center) {
            c = x[0] + gckpti_mean_from(x, n, x[0]);
            mean = gckpti_mean_from(x, n, c);
        }
        for (int64_t i = 0; i < n; i++) {
            float d = gckpti_centered(x[i], c, mean);
            lane[i & 31] = gckpti_fma(d, d, lane[i & 31]);
        }
        float rstd = gckpti_rsqrt(gckpti_lanes_sum(lane) / (float)n + 1e-5f);
        for (int64_t i = 0; call->out && i < n; i++) {
            float d = gckpti_centered(x[i], c, mean), h = d * rstd;
            call->out[r * n + i] = gain && bias ? gckpti_fma(h, gain[i], bias[i])
                                   : gain       ? h * gain[i]
                                   : bias       ? gckpti_fma(d, rstd, bias[i])
                                                : h;
        }
        if (aux && o->center) {
            *aux++ = c;
            *aux++ = mean;
        }
        if (aux)
            *aux++ = rstd;
    }
}

/* Row by row: what it adds to dbias and dgain, then its dx. */
static void gckpti_layernorm_backward(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    const float *gain = o->gain ? call->in[o->gain].data : NULL, *aux = (const float *)call->aux;
    float *dx = call->in[0].grad, *dgain = o->gain ? call->in[o->gain].grad : NULL;
    float *dbias = o->bias ? call->in[o->bias].grad : NULL, *bias_low = call->in[o->bias].low;
    float *gain_low = call->in[o->gain].low;
    if (dgain)
        gckpti_start(dgain, n, call->in[o->gain].accumulate);
    if (dbias)
        gckpti_start(dbias, n, call->in[o->bias].accumulate);
    for (int64_t r = 0; r < rows; r++) {
        const float *g = call->grad_out + r * n;
        for (int64_t i = 0; dbias && i < n; i++)
            gckpti_sum_add(&dbias[i], bias_low ? bias_low + i : NULL, g[i]);
        if (!dx && !dgain)
            continue;
        const float *x = call->in[0].data + r * n;
        float c = o->center ? *aux++ : 0.0f, mean = o->center ? *aux++ : 0.0f, rstd = *aux++;
        for (int64_t i = 0; dgain && i < n; i++)
            gckpti_sum_add(&dgain[i], gain_low ? gain_low + i : NULL,
                           gckpti_mul(g[i], gckpti_centered(x[i], c, mean) * rstd));
        if (!dx)
            continue;
        float sum[32] = { 0.0f }, lane[32] = { 0.0f };
        for (int64_t i = 0; i < n; i++) {
            float u = gain ? gckpti_mul(g[i], gain[i]) : g[i];
            sum[i & 31] += u;
            lane[i & 31] = gckpti_fma(u, gckpti_centered(x[i], c, mean) * rstd, lane[i & 31]);
        }
        float a = o->center ? gckpti_lanes_sum(sum) / (float)n : 0.0f;
        float b = gckpti_lanes_sum(lane) / (float)n;
        for (int64_t i = 0; i < n; i++) {
            float h = gckpti_centered(x[i], c, mean) * rstd;
            float u = gain ? gckpti_mul(g[i], gain[i]) : g[i];
            gckpti_put_product(&dx[r * n + i], rstd, gckpti_fma(-h, b, u - a),
                               call->in[0].accumulate);
        }
    }
}

static void gckpti_rmsnorm_forward(const gckpt_call *call) { gckpti_layernorm_forward(call); }
static void gckpti_rmsnorm_backward(const gckpt_call *call) { gckpti_layernorm_backward(call); }

/* in[1] is the gain, or a bias without gain, which needs less than this says. */
GCKPTI_ROW(layernorm, GCKPTI_FAST, gckpti_norm_shape, gckpti_flops_8, 0,
           GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_AUX, GCKPT_IN(0) | GCKPT_AUX | GCKPT_SUMS, GCKPT_SUMS);
GCKPTI_ROW(rmsnorm, GCKPTI_FAST, gckpti_norm_shape, gckpti_flops_8, 0,
           GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_AUX, GCKPT_IN(0) | GCKPT_AUX | GCKPT_SUMS);

GCKPT_API gckpt_tensor *gckpt_layernorm(gckpt_tensor *x, gckpt_tensor *gain, gckpt_tensor *bias)
{
    gckpt_tensor *in[3] = { x, gain ? gain : bias, bias };
    gckpti_norm o = { 1, gain ? 1 : 0, !bias ? 0 : gain ? 2 : 1 };
    return gckpt_apply(&gckpti_op_layernorm, in, 1 + (gain != NULL) + (bias != NULL), &o, sizeof o);
}

GCKPT_API gckpt_tensor *gckpt_rmsnorm(gckpt_tensor *x, gckpt_tensor *gain)
{
    gckpt_tensor *in[2] = { x, gain };
    gckpti_norm o = { 0, gain ? 1 : 0, 0 };
    return gckpt_apply(&gckpti_op_rmsnorm, in, gain ? 2 : 1, &o, sizeof o);
}

/* ---- attention: q (B,T,C), k and v (B,S,C); head h is columns hD..hD+D-1, D = C / heads ----
 * s_j = mul(chain q k_j from +0, scale), scale = 1 / sqrt(D). out = sum exp(s) v / sum exp(s).
 * The keys a query sees are taken in tiles 64i..64i+63: gckpti_online over the tile's scores; out
 * times its factor (not in the first tile); out chains over the tile's keys, p_j v_j. At the end
 * out / sum. Keys out of sight are never touched. aux (B,heads,T): max + log(sum).
 * Backward (Dao 2022): p = exp(s - aux), dp = chain g v_j from +0, delta = dot(g, out) by lanes,
 * ds = (p (dp - delta)) scale. Chains: dq += ds k_j over keys; dk_j += ds q, dv_j += p g over
 * queries.
 * In bf16 plans the chains are those of their matrix products (manual, 5l): q, k, v, g, p and ds
 * are factors. Exponentials and sums are taken before p is rounded. */
typedef struct {
    int heads;
    int causal; /* 0, or 1 + how many of the S keys are not there yet at position 0 (gckpt_cache) */
} gckpti_attention;

/* Of the keys, 0..keys-1 are there; query t sees those below t + 1 + ahead of them. */
typedef struct {
    int64_t keys, ahead;
} gckpti_sight;

/* All kernels ask here, and touch no other keys. Not causal: every query sees all. */
static gckpti_sight gckpti_attention_keys(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    gckpti_sight sight = { call->in[1].shape.d[1], 0 };
    if (o->causal)
        sight.keys -= o->causal - 1 - call->position;
    sight.ahead = sight.keys - (o->causal ? call->shape.d[1] : 0);
    return sight;
}

/* One step of the online softmax (Milakov & Gimelshein 2018), over n scores x: max' = max(max, x),
 * factor = exp(max - shift(max')), p = exp(x - shift(max')), sum = fma(sum, factor, sum of p by
 * lanes); the first step takes max' = max(x), sum = sum of p. p may be x, or NULL. Returns the
 * factor (first: 0). */
static float gckpti_online(const float *x, float *p, int64_t n, int first, float *max, float *sum)
{
    float lane[32] = { 0.0f }, top = gckpti_max(x, n), factor = 0.0f;
    if (!first) {
        top = top > *max ? top : *max;
        factor = gckpti_exp(*max - gckpti_shift(top));
    }
    float shift = gckpti_shift(top);
    for (int64_t j = 0; j < n; j++) {
        float e = gckpti_exp(x[j] - shift);
        lane[j & 31] += e;
        if (p)
            p[j] = e;
    }
    float added = gckpti_lanes_sum(lane);
    *sum = first ? added : gckpti_fma(*sum, factor, added);
    *max = top;
    return factor;
}

/* Whole heads; causal needs a key for each query. */
static gckpt_result gckpti_attention_shape(gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    const gckpt_shape *q = &call->in[0].shape, *k = &call->in[1].shape, *v = &call->in[2].shape;
    if (q->n != 3 || k->n != 3 || !gckpti_same_shape(k, v) || q->d[0] != k->d[0] ||
        q->d[2] != k->d[2])
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "attention: q %S, k %S, v %S must be (B,T,C), (B,S,C), (B,S,C)", q, k, v);
    if (o->heads < 1 || q->d[2] % o->heads)
        return gckpt_fail(call, GCKPT_E_SHAPE, "attention: %I columns cannot be cut into %i heads",
                          q->d[2], o->heads);
    if (o->causal && k->d[1] - (o->causal - 1) < q->d[1])
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "attention: causal needs a key for each of q's %I queries, but k has %I; "
                          "q %S, k %S",
                          q->d[1], k->d[1] - (o->causal - 1), q, k);
    call->shape = *q;
    call->aux_bytes = (size_t)(q->d[0] * q->d[1]) * (size_t)o->heads * sizeof(float);
    if (!call->plain) { /* more columns than `most`: what they need is refused as well */
        int64_t unit = call->threads * (int64_t)sizeof(float), most = INT64_MAX / 1024 / unit;
        int64_t d = gckpti_min(q->d[2] / o->heads, most);
        call->work_forward = (size_t)(gckpti_attention_room(d, 0) * unit);
        call->work_backward = (size_t)(gckpti_attention_room(d, 1) * unit);
    }
    return GCKPT_OK;
}

/* out[j] = chain of a (D) and row j of b from +0, for n rows that are C apart. */
static void gckpti_attention_dots(const gckpt_call *call, const float *a, const float *b, int64_t c,
                                  int64_t n, int64_t d, float *out)
{
    gckpti_start(out, n, 0);
    if (call->precision == GCKPT_FP32)
        gckpti_chains(a, b, c, n, d, out);
    for (int64_t j = 0; call->precision != GCKPT_FP32 && j < n; j++)
        for (int64_t p = 0; p < d; p++)
            out[j] = gckpti_mixed_link(gckpti_to_bf16(a[p]), gckpti_to_bf16(b[j * c + p]), out[j]);
}

/* The next link of d chains: gckpti_link, or that of a bf16 plan. */
static void gckpti_attention_link(const gckpt_call *call, float s, const float *x, int64_t d,
                                  float *out)
{
    if (call->precision == GCKPT_FP32)
        gckpti_link(s, x, d, out);
    for (int64_t e = 0; call->precision != GCKPT_FP32 && e < d; e++)
        out[e] = gckpti_mixed_link(gckpti_to_bf16(s), gckpti_to_bf16(x[e]), gckpti_flush(out[e]));
}

/* Queries first..end-1, numbered through heads and rows. */
static void gckpti_attention_queries(const gckpt_call *call, int64_t first, int64_t end)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    int64_t t = call->shape.d[1], c = call->shape.d[2];
    int64_t s = call->in[1].shape.d[1], heads = o->heads, d = c / heads;
    gckpti_sight sight = gckpti_attention_keys(call);
    float scale = 1.0f / gckpti_sqrt((float)d), p[GCKPTI_KEY_TILE];
    for (int64_t i = first; i < end; i++) { /* query i % t of head i / t % heads */
        int64_t row = i / t / heads, column = i / t % heads * d;
        int64_t at = (row * t + i % t) * c + column, keys = row * s * c + column;
        const float *k = call->in[1].data + keys, *v = call->in[2].data + keys;
        float max = 0.0f, sum = 0.0f, *out = call->out ? call->out + at : NULL;
        int64_t seen = gckpti_min(sight.keys, i % t + 1 + sight.ahead);
        if (out)
            gckpti_start(out, d, 0);
        for (int64_t j0 = 0; j0 < seen; j0 += GCKPTI_KEY_TILE) {
            int64_t n = gckpti_min(seen - j0, GCKPTI_KEY_TILE);
            gckpti_attention_dots(call, call->in[0].data + at, k + j0 * c, c, n, d, p);
            for (int64_t j = 0; j < n; j++)
                p[j] = gckpti_mul(p[j], scale);
            float factor = gckpti_online(p, p, n, j0 == 0, &max, &sum);
            for (int64_t e = 0; out && j0 && e < d; e++)
                out[e] *= factor;
            for (int64_t j = 0; out && j < n; j++)
                gckpti_attention_link(call, p[j], v + (j0 + j) * c, d, out);
        }
        gckpti_softmax_end(&max, &sum);
        for (int64_t e = 0; out && e < d; e++)
            out[e] /= sum;
        if (call->aux)
            ((float *)call->aux)[i] = max + gckpti_log(sum);
    }
}

/* All queries of all heads. */
static int64_t gckpti_attention_all(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    return call->shape.d[0] * call->shape.d[1] * o->heads;
}

static void gckpti_attention_forward(const gckpt_call *call)
{
    gckpti_attention_queries(call, 0, gckpti_attention_all(call));
}

/* What queries first..end-1 add to gradients that have begun. */
static void gckpti_attention_gradients(const gckpt_call *call, int64_t first, int64_t end)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    int64_t t = call->shape.d[1], c = call->shape.d[2];
    int64_t s = call->in[1].shape.d[1], heads = o->heads, d = c / heads;
    gckpti_sight sight = gckpti_attention_keys(call);
    float scale = 1.0f / gckpti_sqrt((float)d), score[GCKPTI_KEY_TILE], dp[GCKPTI_KEY_TILE];
    float *dq = call->in[0].grad, *dk = call->in[1].grad, *dv = call->in[2].grad;
    for (int64_t i = first; i < end; i++) {
        int64_t row = i / t / heads, column = i / t % heads * d;
        int64_t at = (row * t + i % t) * c + column;
        const float *q = call->in[0].data + at, *g = call->grad_out + at;
        float lse = ((const float *)call->aux)[i], delta = 0.0f;
        int64_t seen = gckpti_min(sight.keys, i % t + 1 + sight.ahead);
        if (dq || dk)
            delta = gckpti_dot(g, call->out + at, d);
        for (int64_t j0 = 0; j0 < seen; j0 += GCKPTI_KEY_TILE) {
            int64_t n = gckpti_min(seen - j0, GCKPTI_KEY_TILE);
            int64_t key = (row * s + j0) * c + column;
            gckpti_attention_dots(call, q, call->in[1].data + key, c, n, d, score);
            if (dq || dk)
                gckpti_attention_dots(call, g, call->in[2].data + key, c, n, d, dp);
            for (int64_t j = 0; j < n; j++, key += c) {
                float p = gckpti_exp(gckpti_mul(score[j], scale) - lse);
                if (dv)
                    gckpti_attention_link(call, p, g, d, dv + key);
                if (!dq && !dk)
                    continue;
                float ds = p * (dp[j] - delta) * scale;
                if (dq)
                    gckpti_attention_link(call, ds, call->in[1].data + key, d, dq + at);
                if (dk)
                    gckpti_attention_link(call, ds, q, d, dk + key);
            }
        }
    }
}

static void gckpti_attention_start(const gckpt_call *call)
{
    for (int i = 0; i < 3; i++)
        if (call->in[i].grad)
            gckpti_start(call->in[i].grad, gckpti_elements(&call->in[i].shape),
                         call->in[i].accumulate);
}

static void gckpti_attention_backward(const gckpt_call *call)
{
    gckpti_attention_start(call);
    gckpti_attention_gradients(call, 0, gckpti_attention_all(call));
}

/* Causal: queries see one key more each, the last one all (of a cache: when it is full). */
static uint64_t gckpti_attention_flops(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    uint64_t rows = (uint64_t)call->shape.d[0], t = (uint64_t)call->shape.d[1];
    uint64_t c = (uint64_t)call->shape.d[2];
    uint64_t pairs = t * (uint64_t)call->in[1].shape.d[1] - (o->causal ? t * (t - 1) / 2 : 0);
    return rows * pairs * (4 * c + 14 * (uint64_t)o->heads);
}

/* The scores are computed again. */
static uint64_t gckpti_attention_flops_backward(const gckpt_call *call)
{
    uint64_t forward = gckpti_attention_flops(call);
    return gckpti_gradients_flops(call, forward) + forward / 2;
}

GCKPTI_ROW_WITH(attention, GCKPTI_FAST, gckpti_attention_shape, gckpti_attention_flops,
                gckpti_attention_flops_backward, NULL, 0,
                GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_OUT | GCKPT_AUX,
                GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_OUT | GCKPT_AUX,
                GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_AUX);

GCKPT_API gckpt_tensor *gckpt_attention(gckpt_tensor *q, gckpt_tensor *k, gckpt_tensor *v,
                                        int heads, int causal)
{
    gckpt_tensor *in[3] = { q, k, v };
    gckpti_attention o = { heads, causal != 0 };
    return gckpt_apply(&gckpti_op_attention, in, 3, &o, sizeof o);
}

/* ---- rotary: x (B,T,C), D = C / heads; pairs x_i, x_j, j = i + D/2, of each head are turned ----
 * At position t by t base^(-2i/D): y_i = fma(x_i, cos, -(x_j sin)), y_j = fma(x_j, cos, x_i sin).
 * The backward does so to g, with -sin. work (T,D/2,2): cos, sin.
 * Angles are counted in 2^-64 of a turn: t times a frequency modulo 2^64 is exact, so that far
 * positions are as good as near ones (base 1 and more). Frequency 0 is 2^64 / 2 pi, the next is
 * always the last times base^(-2/D), in binary64; then each is cut to a whole number and taken
 * modulo 2^64. */
typedef struct {
    int heads;
    float base;
} gckpti_rotary;

/* r = base^(-1/n), in binary64: Newton's method on r^n = 1 / base, three times from
 * gckpti_pow(base, -1.0f / n): r = r - r (r^n - 1/base) / (n r^n), r^n by gckpti_powi. */
static double gckpti_rotary_ratio(float base, int64_t n)
{
    double r = (double)gckpti_pow(base, -1.0f / (float)n), target = 1.0 / (double)base;
    for (int i = 0; i < 3; i++) {
        double power = gckpti_powi(r, (uint64_t)n);
        r = r - r * (power - target) / ((double)n * power);
    }
    return r;
}

/* The angle of p, a turn being 2^64, to 5e-8: q = (p + 2^61) >> 62 quadrants, and with the sign of
 * p - 2^62 q and its size m: fma(m >> 38, pi/2 2^-24, mul(next 24 bits of m, pi/2 2^-48)). */
GCKPTI_INLINE gckpti_angle gckpti_rotary_angle(uint64_t p)
{
    gckpti_angle r = { (uint32_t)((p + (UINT64_C(1) << 61)) >> 62), 0.0f, 0.0f };
    p -= (uint64_t)r.quadrant << 62;
    uint64_t size = p >> 63 ? 0 - p : p;
    float low = gckpti_mul((float)(int32_t)(size >> 14 & 0xffffffu), 5.5805896e-15f);
    r.hi = gckpti_fma((float)(int32_t)(size >> 38), 9.36267571e-08f, low);
    r.hi = p >> 63 ? -r.hi : r.hi;
    return r;
}

#define GCKPTI_ROTARY_FIRST 2935890503282001226.0 /* 2^64 / 2 pi */
/* Of x >= 0 counts of 2^-64 of a turn, whole turns left out; the fraction is cut. */
GCKPTI_INLINE uint64_t gckpti_rotary_frequency(double x)
{
    const double turn = 18446744073709551616.0;
    if (!(x < turn * 4503599627370496.0)) /* then whole turns are all it can hold */
        return 0;
    x -= turn * (double)(int64_t)(x / turn); /* exact */
    uint64_t half = x < 0.5 * turn ? 0 : UINT64_C(1) << 63;
    return half + (uint64_t)(int64_t)(half ? x - 0.5 * turn : x);
}

/* Whole heads of an even size; work is the table of cosines and sines. */
static gckpt_result gckpti_rotary_shape(gckpt_call *call)
{
    const gckpti_rotary *o = (const gckpti_rotary *)call->attributes;
    const gckpt_shape *x = &call->in[0].shape;
    if (x->n != 3 || o->heads < 1 || x->d[2] % o->heads || x->d[2] / o->heads % 2)
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "rotary: x %S must be (B,T,C), C = %i heads of even "
                          "size",
                          x, o->heads);
    if (!(o->base > 0.0f) || o->base > FLT_MAX)
        return gckpt_fail(call, GCKPT_E_ARG, "rotary: base %g must be positive", (double)o->base);
    call->shape = *x;
    call->work_forward = (size_t)(x->d[1] * (x->d[2] / o->heads)) * sizeof(float);
    call->work_backward = call->work_forward;
    return GCKPT_OK;
}

/* y = x turned by the angles of its positions, forwards or (direction -1) back. */
static void gckpti_rotary_turn(const gckpt_call *call, const float *x, float *y, float direction,
                               int accumulate)
{
    const gckpti_rotary *o = (const gckpti_rotary *)call->attributes;
    int64_t t = call->shape.d[1], d = call->shape.d[2] / o->heads, half = d / 2;
    float *table = (float *)call->work;
    double ratio = gckpti_rotary_ratio(o->base, half), count = GCKPTI_ROTARY_FIRST;
    for (int64_t i = 0; i < half; i++, count *= ratio) {
        uint64_t frequency = gckpti_rotary_frequency(count);
        float sine, cosine;
        for (int64_t position = 0; position < t; position++) {
            gckpti_sincos_of(gckpti_rotary_angle((uint64_t)position * frequency), &sine, &cosine);
            table[position * d + 2 * i] = cosine;
            table[position * d + 2 * i + 1] = direction < 0 ? -sine : sine;
        }
    }
    int64_t heads = gckpti_elements(&call->shape) / d; /* of all positions of all rows */
    for (int64_t r = 0; r < heads; r++, x += d, y += d) {
        const float *turn = table + r / o->heads % t * d;
        for (int64_t i = 0; i < half; i++, turn += 2) {
            float a = x[i], b = x[i + half]; /* y may be x */
            gckpti_put(&y[i], gckpti_fma(a, turn[0], -(b * turn[1])), accumulate);
            gckpti_put(&y[i + half], gckpti_fma(b, turn[0], a * turn[1]), accumulate);
        }
    }
}

static void gckpti_rotary_forward(const gckpt_call *call)
{
    gckpti_rotary_turn(call, call->in[0].data, call->out, 1.0f, 0);
}

static void gckpti_rotary_backward(const gckpt_call *call)
{
    if (call->in[0].grad)
        gckpti_rotary_turn(call, call->grad_out, call->in[0].grad, -1.0f, call->in[0].accumulate);
}

GCKPTI_ROW(rotary, GCKPTI_PLAIN, gckpti_rotary_shape, gckpti_flops_3,
           GCKPT_INPLACE(0) | GCKPT_INPLACE_GRAD, 0);

GCKPT_API gckpt_tensor *gckpt_rotary(gckpt_tensor *x, int heads, float base)
{
    gckpti_rotary o = { heads, base == 0.0f ? 10000.0f : base };
    return gckpt_apply(&gckpti_op_rotary, &x, 1, &o, sizeof o);
}

/* ---- positions: x + table[0..T-1], by gckpt_slice and gckpt_add: dtable has low parts ---- */
GCKPT_API gckpt_tensor *gckpt_positions(gckpt_tensor *x, gckpt_tensor *table)
{
    if (!x || !table)
        return NULL;
    if (x->shape.n != 3 || table->shape.n != 2 || table->shape.d[0] < x->shape.d[1] ||
        table->shape.d[1] != x->shape.d[2])
        return gckpti_fail(x->graph, GCKPT_E_SHAPE,
                           "positions: %T %S must be (B,T,C) and %T %S "
                           "(Tmax,C) with Tmax >= T",
                           x, &x->shape, table, &table->shape);
    return gckpt_add(x, gckpt_slice(table, 0, 0, x->shape.d[1]));
}

/* ---- cross_entropy: sum over rows of -log softmax(x)[target] ----
 * Classes go through gckpti_online in chunks of 1024; maximum and log of the sum stay apart, so
 * that logits of +-1e4 lose nothing. A row's loss is log(sum) - (x[target] - max), added in double.
 * Rows with target < 0 are left out. aux (rows,2): max, log(sum); 0, 0 for rows left out.
 * dx_j = put(exp((x_j - max) - log(sum)) - (j == target), loss_scale); rows left out store +0 or
 * add nothing. */
static int gckpti_targets_fit(const gckpt_shape *x, const gckpt_shape *targets)
{
    gckpt_shape rows = *x;
    rows.n--;
    return x->n >= 1 && gckpti_same_shape(&rows, targets);
}

static void gckpti_loss_add(const gckpt_call *call, float loss, int64_t count)
{
    if (call->loss_sum)
        *call->loss_sum += (double)loss;
    if (call->loss_count)
        *call->loss_count += count;
}

/* A loss over classes goes over blocks of rows and, in each, over chunks of classes: its logits are
 * there or a product; each row looks at its own (forward) or turns them into their gradient
 * (backward). This is what plain and fast kernels, in f32 and bf16 plans, differ in: */
typedef struct {
    gckpti_product_run product; /* of linear_cross_entropy */
    void (*each)(const gckpt_call *call, int64_t n, int64_t work,
                 void (*body)(void *context, int64_t i, int64_t worker),
                 void *context); /* body for i = 0..n-1, worth `work` multiply-adds each */
    float (*online)(const float *x, float *p, int64_t n, int first, float *max, float *sum);
    void (*gradient)(const float *x, float *d, int64_t n, float max, float log_sum, float scale,
                     int accumulate); /* as if no class were the target */
    void (*widen)(const uint16_t *x, float *y, int64_t n);
    void (*narrow)(const float *x, uint16_t *y, int64_t n);
} gckpti_loss_kernels;

static void gckpti_in_turn(const gckpt_call *call, int64_t n, int64_t work,
                           void (*body)(void *context, int64_t i, int64_t worker), void *context)
{
    (void)call, (void)work;
    for (int64_t i = 0; i < n; i++)
        body(context, i, 0);
}

static void gckpti_other_classes(const float *x, float *d, int64_t n, float max, float log_sum,
                                 float scale, int accumulate)
{
    for (int64_t j = 0; j < n; j++)
        gckpti_put_product(&d[j], gckpti_exp((x[j] - max) - log_sum), scale, accumulate);
}

static gckpti_loss_kernels gckpti_plain_loss(gckpti_product_run product)
{
    gckpti_loss_kernels by = { product,           gckpti_in_turn,
                               gckpti_online,     gckpti_other_classes,
                               gckpti_from_bf16s, gckpti_to_bf16s };
    return by;
}

/* A block of rows, a chunk of their classes. */
typedef struct {
    const gckpt_call *call;
    gckpti_loss_kernels by;
    int64_t row, rows, first, n; /* rows of the call from `row` on, classes from `first` on */
    int64_t counted;             /* rows that are not left out */
    const int32_t *target;       /* of each row */
    const float *x;              /* their logits (rows,n) */
    float *d;                    /* backward: the logits' gradient; may be x */
    float *aux;                  /* (rows,2): max, log(sum); forward: NULL when not wanted */
    int accumulate;
    float max[GCKPTI_LOSS_ROWS_MOST], sum[GCKPTI_LOSS_ROWS_MOST], hit[GCKPTI_LOSS_ROWS_MOST];
} gckpti_loss;

/* The forward of row r: its classes so far, and these. */
static void gckpti_loss_forward_row(void *context, int64_t r, int64_t worker)
{
    gckpti_loss *l = (gckpti_loss *)context;
    const float *x = l->x + r * l->n;
    int64_t target = l->target[r], at = target - l->first;
    (void)worker;
    if (target >= 0 && at >= 0 && at < l->n)
        l->hit[r] = x[at];
    for (int64_t j = 0; target >= 0 && j < l->n; j += GCKPTI_LOSS_CHUNK)
        l->by.online(x + j, NULL, gckpti_min(l->n - j, GCKPTI_LOSS_CHUNK), l->first + j == 0,
                     &l->max[r], &l->sum[r]);
}

/* The backward of row r: d from x, the target's apart. */
static void gckpti_loss_backward_row(void *context, int64_t r, int64_t worker)
{
    const gckpti_loss *l = (const gckpti_loss *)context;
    const float *x = l->x + r * l->n, *aux = l->aux + 2 * r;
    float *d = l->d + r * l->n, logit = 0.0f, held = 0.0f, scale = l->call->loss_scale;
    int64_t target = l->target[r], at = target - l->first;
    int here = at >= 0 && at < l->n;
    (void)worker;
    if (target < 0) {
        gckpti_start(d, l->n, l->accumulate);
        return;
    }
    if (here) /* d may be x; what it held the target's own contribution is added to */
        logit = x[at], held = d[at];
    l->by.gradient(x, d, l->n, aux[0], aux[1], scale, l->accumulate);
    if (here) {
        d[at] = held;
        gckpti_put_product(&d[at], gckpti_exp((logit - aux[0]) - aux[1]) - 1.0f, scale,
                           l->accumulate);
    }
}

static void gckpti_loss_begin(gckpti_loss *l, int64_t row, int64_t rows)
{
    l->row = row, l->rows = rows, l->counted = 0;
    l->aux = l->call->aux ? (float *)l->call->aux + 2 * row : NULL;
    l->target = l->call->in[l->call->inputs - 1].index + row;
    for (int64_t r = 0; r < rows; r++) {
        l->counted += l->target[r] >= 0;
        l->max[r] = 0.0f, l->sum[r] = 1.0f, l->hit[r] = 0.0f; /* of rows left out */
    }
}

/* The losses of the block's rows, and aux for the backward. */
static void gckpti_loss_finish(const gckpti_loss *l)
{
    for (int64_t r = 0; r < l->rows; r++) {
        float max = l->max[r], sum = l->sum[r];
        gckpti_softmax_end(&max, &sum);
        float log_sum = gckpti_log(sum);
        if (l->target[r] >= 0)
            gckpti_loss_add(l->call, log_sum - (l->hit[r] - max), 1);
        if (l->aux)
            l->aux[2 * r] = max, l->aux[2 * r + 1] = log_sum;
    }
}

static gckpt_result gckpti_cross_entropy_shape(gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape, *targets = &call->in[1].shape;
    if (!gckpti_targets_fit(x, targets))
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "cross_entropy: logits %S, targets %S must be (..,V), (..)", x, targets);
    call->aux_bytes = (size_t)gckpti_rows(x) * 2 * sizeof(float);
    call->mixes_rows = x->n < 2;
    return GCKPT_OK;
}

/* The logits are the input: a chunk is all classes. */
static void gckpti_cross_entropy_by(const gckpt_call *call, gckpti_loss_kernels by, int backward)
{
    const gckpt_arg *x = &call->in[0];
    int64_t v = gckpti_last(&x->shape), rows = gckpti_rows(&x->shape);
    gckpti_loss l;
    l.call = call, l.by = by, l.first = 0, l.n = v, l.accumulate = x->accumulate;
    for (int64_t row = 0; row < rows && (x->grad || !backward); row += GCKPTI_LOSS_ROWS_MOST) {
        gckpti_loss_begin(&l, row, gckpti_min(rows - row, GCKPTI_LOSS_ROWS_MOST));
        l.x = x->data + row * v, l.d = x->grad ? x->grad + row * v : NULL;
        by.each(call, l.rows, 16 * v, backward ? gckpti_loss_backward_row : gckpti_loss_forward_row,
                &l);
        if (!backward)
            gckpti_loss_finish(&l);
    }
}

static void gckpti_cross_entropy_forward(const gckpt_call *call)
{
    gckpti_cross_entropy_by(call, gckpti_plain_loss(NULL), 0);
}

static void gckpti_cross_entropy_backward(const gckpt_call *call)
{
    gckpti_cross_entropy_by(call, gckpti_plain_loss(NULL), 1);
}

static int64_t gckpti_cross_entropy_classes(const gckpt_call *call, int i)
{
    (void)i;
    return gckpti_last(&call->in[0].shape);
}

GCKPTI_ROW_WITH(cross_entropy, GCKPTI_FAST, gckpti_cross_entropy_shape, gckpti_flops_13, NULL,
                gckpti_cross_entropy_classes, GCKPT_LOSS | GCKPT_COUNTS_FEEDS | GCKPT_INDEX(1),
                GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_AUX);

GCKPT_API gckpt_tensor *gckpt_cross_entropy(gckpt_tensor *logits, gckpt_tensor *targets)
{
    gckpt_tensor *in[2] = { logits, targets };
    return gckpt_apply(&gckpti_op_cross_entropy, in, 2, NULL, 0);
}

/* ---- linear_cross_entropy: cross_entropy(linear_transposed(x, w)), in f32 plans to the same bits
 * (in bf16 plans its logits are not rounded: manual, 5l) ----
 * Logits: chains over C from +0. Backward, d being the logits' gradient: chains dx += d w over the
 * classes, dw += d x over the rows. Rows left out take part with d = +0, as in the two ops: else a
 * -0 could stay in the accumulator, or an infinity in w stay hidden. d is rounded where it enters
 * the products.
 * A form of it (gckpti_head_form) has one attribute: the backward computes loss and gradient of so
 * many rows at a time, whose logits are computed once, and kept meanwhile; the forward counts. */
typedef struct {
    int64_t block, logits, dx, aux, size; /* rows at a time; in floats: where parts of work begin;
                                             all */
} gckpti_loss_parts;

/* work: scratch of the products, where these look for it; the logits of a block of rows (one in a
 * plain plan) and a chunk of classes, or all chunks; in bf16 plans dx of the block, rounded when
 * all classes are added; what is aux otherwise. */
static gckpti_loss_parts gckpti_loss_parts_of(const gckpt_call *call, int backward)
{
    int64_t c = gckpti_last(&call->in[0].shape), rows = gckpti_rows(&call->in[0].shape);
    int64_t n = gckpti_min(call->in[1].shape.d[0], GCKPTI_LOSS_CHUNK);
    int mixed = call->precision != GCKPT_FP32;
    const int *once = (const int *)call->attributes;
    gckpti_loss_parts p = { 1, 0, 0, 0, 0 };
    if (once && !backward)
        return p;
    if (!call->plain)
        p.block = gckpti_min(rows, once ? *once : mixed ? GCKPTI_LOSS_ROWS_MOST : GCKPTI_LOSS_ROWS);
    int64_t products = gckpti_product_scratch(call, p.block, n, c);
    if (backward) {
        int64_t dx = gckpti_product_scratch(call, p.block, c, n);
        int64_t dw = gckpti_product_scratch(call, n, c, p.block), most = dx > dw ? dx : dw;
        products = products > most ? products : most;
    }
    p.logits = products;
    p.dx = p.logits + p.block * (once ? call->in[1].shape.d[0] : n);
    p.aux = p.dx + (mixed && backward ? p.block * c : 0);
    p.size = p.aux + (once ? 2 * p.block : 0);
    return p;
}

/* aux: max and log(sum) of each row. */
static gckpt_result gckpti_linear_cross_entropy_shape(gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape, *w = &call->in[1].shape;
    const gckpt_shape *targets = &call->in[2].shape;
    if (!gckpti_targets_fit(x, targets) || w->n != 2 || w->d[1] != gckpti_last(x))
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "linear_cross_entropy: x %S, w %S, targets %S must be (..,C), (V,C), "
                          "(..)",
                          x, w, targets);
    call->aux_bytes = call->attributes ? 0 : (size_t)gckpti_rows(x) * 2 * sizeof(float);
    call->work_forward = (size_t)gckpti_loss_parts_of(call, 0).size * sizeof(float);
    call->work_backward = (size_t)gckpti_loss_parts_of(call, 1).size * sizeof(float);
    return GCKPT_OK;
}

/* Three products for each block and chunk: logits = x w', dx += d w, dw += d' x. In bf16 plans dx
 * has its chains in work, since it is rounded once, when all classes are added. */
static void gckpti_loss_products(gckpti_loss *l, const gckpti_loss_parts *parts, int backward)
{
    const gckpt_call *call = l->call;
    const gckpt_arg *x = &call->in[0], *w = &call->in[1];
    int64_t c = gckpti_last(&x->shape), v = w->shape.d[0], at = l->row * c;
    int have = backward && call->attributes;
    float *work = (float *)call->work, *dw = backward ? w->grad : NULL;
    uint16_t *rounded = backward && x->grad_bf16 ? x->grad_bf16 + at : NULL;
    float *dx = rounded ? work + parts->dx : backward && x->grad ? x->grad + at : NULL;
    if (rounded && x->accumulate)
        l->by.widen(rounded, dx, l->rows * c);
    for (l->first = 0; l->first < v; l->first += l->n) {
        l->n = gckpti_min(v - l->first, GCKPTI_LOSS_CHUNK);
        l->x = l->d = work + parts->logits + (call->attributes ? l->rows * l->first : 0);
        gckpti_factor a = gckpti_factor_of(x, at, c, 1, 0), d = { l->d, NULL, l->n, 1, 0 };
        gckpti_factor b = gckpti_factor_of(w, l->first * c, c, 1, 0);
        if (l->counted > 0 && !have)
            gckpti_product_to(call, l->by.product, l->rows, l->n, c, a, b, l->d, 0);
        l->by.each(call, l->rows, 16 * l->n,
                   backward ? gckpti_loss_backward_row : gckpti_loss_forward_row, l);
        if (dx)
            gckpti_product_to(call, l->by.product, l->rows, c, l->n, d, gckpti_turned(b), dx,
                              x->accumulate || l->first > 0);
        if (dw)
            gckpti_product_to(call, l->by.product, l->n, c, l->rows, gckpti_turned(d),
                              gckpti_turned(a), dw + l->first * c, w->accumulate || l->row > 0);
    }
    if (rounded)
        l->by.narrow(dx, rounded, l->rows * c);
}

static void gckpti_linear_cross_entropy_by(const gckpt_call *call, gckpti_loss_kernels by,
                                           int backward)
{
    const gckpti_loss_parts parts = gckpti_loss_parts_of(call, backward);
    int64_t rows = gckpti_rows(&call->in[0].shape);
    int once = call->attributes != NULL;
    gckpti_loss l;
    l.call = call, l.by = by, l.accumulate = 0;
    for (int64_t row = 0; row < rows; row += parts.block) {
        gckpti_loss_begin(&l, row, gckpti_min(rows - row, parts.block));
        if (once && !backward) {
            if (call->loss_count)
                *call->loss_count += l.counted;
            continue;
        }
        l.aux = once ? (float *)call->work + parts.aux : l.aux;
        if (once || !backward) {
            gckpti_loss_products(&l, &parts, 0);
            gckpti_loss_finish(&l);
        }
        if (backward)
            gckpti_loss_products(&l, &parts, 1);
    }
}

static void gckpti_linear_cross_entropy_forward(const gckpt_call *call)
{
    gckpti_linear_cross_entropy_by(call, gckpti_plain_loss(gckpti_plain_products(call)), 0);
}

static void gckpti_linear_cross_entropy_backward(const gckpt_call *call)
{
    gckpti_linear_cross_entropy_by(call, gckpti_plain_loss(gckpti_plain_products(call)), 1);
}

static uint64_t gckpti_linear_cross_entropy_flops(const gckpt_call *call)
{
    const gckpt_shape *x = &call->in[0].shape;
    uint64_t logits = (uint64_t)gckpti_rows(x) * (uint64_t)call->in[1].shape.d[0];
    return logits * (2 * (uint64_t)gckpti_last(x) + 13);
}

/* The logits are computed again, or here only; blocks smaller than usual go over w and dw more
 * often, which moves as much as if dw were written that often. */
static uint64_t gckpti_linear_cross_entropy_flops_backward(const gckpt_call *call)
{
    const int *once = (const int *)call->attributes;
    uint64_t forward = gckpti_linear_cross_entropy_flops(call), more = 0;
    uint64_t rows = (uint64_t)gckpti_rows(&call->in[0].shape);
    if (once && !call->plain && *once < GCKPTI_LOSS_ROWS)
        more = (rows + (uint64_t)*once - 1) / (uint64_t)*once -
               (rows + GCKPTI_LOSS_ROWS - 1) / GCKPTI_LOSS_ROWS;
    return gckpti_gradients_flops(call, forward) + forward +
           more * 40 * (uint64_t)gckpti_elements(&call->in[1].shape);
}

GCKPTI_ROW_WITH(linear_cross_entropy, GCKPTI_FAST, gckpti_linear_cross_entropy_shape,
                gckpti_linear_cross_entropy_flops, gckpti_linear_cross_entropy_flops_backward,
                gckpti_table_rows,
                GCKPT_LOSS | GCKPT_COUNTS_FEEDS | GCKPT_TAKES_BF16 | GCKPT_INDEX(2) | GCKPTI_LATE,
                GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_AUX,
                GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | GCKPT_AUX);

GCKPT_API gckpt_tensor *gckpt_linear_cross_entropy(gckpt_tensor *x, gckpt_tensor *w,
                                                   gckpt_tensor *targets)
{
    gckpt_tensor *in[3] = { x, w, targets };
    if (x && w && targets && !w->batchless)
        return gckpti_fail(w->graph, GCKPT_E_ARG,
                           "linear_cross_entropy: w, %T, depends on the batch; it must be "
                           "a function of parameters",
                           w);
    return gckpt_apply(&gckpti_op_linear_cross_entropy, in, 3, NULL, 0);
}

/* ---- mean_squared_error, sum_loss: sum over elements of (x - y)^2, of x; count = elements ----
 * One sum by lanes for each entry of axis 0 (squares: fma(d, d, lane)), these added in double.
 * dx = put(2 (x - y), loss_scale), dy = put(-2 (x - y), loss_scale); sum_loss: dx = loss_scale. */
static gckpt_result gckpti_mean_squared_error_shape(gckpt_call *call)
{
    if (!gckpti_same_shape(&call->in[0].shape, &call->in[1].shape))
        return gckpt_fail(call, GCKPT_E_SHAPE,
                          "mean_squared_error: prediction %S, target %S differ", &call->in[0].shape,
                          &call->in[1].shape);
    return GCKPT_OK;
}

static void gckpti_mean_squared_error_forward(const gckpt_call *call)
{
    const gckpt_shape *shape = &call->in[0].shape;
    int64_t rows = shape->n ? shape->d[0] : 1, n = gckpti_elements(shape) / rows;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = call->in[0].data + r * n, *y = call->in[1].data + r * n;
        float lane[32] = { 0.0f };
        for (int64_t i = 0; i < n; i++) {
            float d = x[i] - y[i];
            lane[i & 31] = gckpti_fma(d, d, lane[i & 31]);
        }
        gckpti_loss_add(call, gckpti_lanes_sum(lane), n);
    }
}

static void gckpti_mean_squared_error_backward(const gckpt_call *call)
{
    const gckpt_arg *x = &call->in[0], *y = &call->in[1];
    int64_t n = gckpti_elements(&x->shape);
    for (int64_t i = 0; i < n; i++) {
        float d = 2.0f * (x->data[i] - y->data[i]);
        if (x->grad)
            gckpti_put_product(&x->grad[i], d, call->loss_scale, x->accumulate);
        if (y->grad)
            gckpti_put_product(&y->grad[i], -d, call->loss_scale, y->accumulate);
    }
}

GCKPTI_ROW(mean_squared_error, GCKPTI_PLAIN, gckpti_mean_squared_error_shape, gckpti_flops_3,
           GCKPT_LOSS | GCKPT_COUNTS_FEEDS, GCKPT_IN(0) | GCKPT_IN(1), GCKPT_IN(0) | GCKPT_IN(1));

GCKPT_API gckpt_tensor *gckpt_mean_squared_error(gckpt_tensor *prediction, gckpt_tensor *target)
{
    gckpt_tensor *in[2] = { prediction, target };
    return gckpt_apply(&gckpti_op_mean_squared_error, in, 2, NULL, 0);
}

static gckpt_result gckpti_sum_loss_shape(gckpt_call *call)
{
    (void)call;
    return GCKPT_OK;
}

static void gckpti_sum_loss_forward(const gckpt_call *call)
{
    const gckpt_shape *shape = &call->in[0].shape;
    int64_t rows = shape->n ? shape->d[0] : 1, n = gckpti_elements(shape) / rows;
    for (int64_t r = 0; r < rows; r++)
        gckpti_loss_add(call, gckpti_sum(call->in[0].data + r * n, n), n);
}

static void gckpti_sum_loss_backward(const gckpt_call *call)
{
    int64_t n = gckpti_elements(&call->in[0].shape);
    for (int64_t i = 0; call->in[0].grad && i < n; i++)
        gckpti_put(&call->in[0].grad[i], call->loss_scale, call->in[0].accumulate);
}

GCKPTI_ROW(sum_loss, GCKPTI_PLAIN, gckpti_sum_loss_shape, gckpti_flops_1,
           GCKPT_LOSS | GCKPT_COUNTS_FEEDS, 0);

GCKPT_API gckpt_tensor *gckpt_sum_loss(gckpt_tensor *x)
{
    return gckpt_apply(&gckpti_op_sum_loss, &x, 1, NULL, 0);
}

/* =================================================================================================
 * >>plan: the model of a request, schedules, drafts, layout, plans
 *
 * From a request to a plan each step is a function of the one before:
 *   model     (gckpti_make_model) what planning knows of one variant of a request (forms of ops,
 *             an order of backwards), made once and then only read. A unit is an op that every plan
 *             runs (or a parameter that is staged: copied into the arena); links say which units
 *             its forward and its backward read. A backward's place in the order is its rank. So
 *             which gradients there are, which share memory and how long they live, counted in
 *             ranks, is known here already.
 *   schedule  a list of ints: u is the forward of unit u (a forward may be repeated), ~u its
 *             backward. Makers (store-all, memory-poor, segments, the user, a file, >>optimal)
 *             write the body; gckpti_finish adds the rest and what pins ask for, and drops every
 *             forward nobody reads, so that a recompute stops by itself at the last value that is
 *             needed.
 *   draft     (gckpti_make_draft) what a schedule comes to. Each forward makes a new version of its
 *             unit's results, and each use reads the latest: a version and its uses are a span.
 *             From these: instructions, the buffers they use as operands, how long each buffer
 *             lives, the bytes live at each instruction (the greatest is the bound), the work.
 *             A value may take over the buffer of one that dies where it begins.
 *   place     (gckpti_place) an offset for each buffer.
 *   encode    (gckpti_encode) the plan: constant data that points to no graph.
 * A draft owns its arrays (its numbers of units and gradients are the model's); gckpti_planner has
 * the model, what is proven about it (>>bound), and two drafts, the latest and the best so far.
 *
 * A schedule has three parts. The prologue computes what depends on parameters only, once a step;
 * the body runs for each micro-batch; the epilogue sends gradients through the prologue's ops and
 * updates. A plan whose batch is larger than the graph's rows is "looped": parameter gradients live
 * through the whole step, one accumulator per use (manual, 5f), with its low part behind it where
 * it is a sum over rows (5e).
 * ============================================================================================== */
typedef struct {
    const gckpt_op *op;
    const void *data;                   /* of constants */
    size_t attributes, attribute_bytes; /* first of the plan's words */
    size_t name;                        /* offset into the plan's names; GCKPTI_NONE: none */
    size_t aux_bytes;
    gckpt_shape shape; /* with all rows of the micro-batch */
    int base, kind, inputs;
    int index; /* of the parameter or input in the plan; -1: of an op that does not run */
    int in[GCKPT_MAX_INPUTS];
    gckpt_type type;
    int batchless, rounding; /* rounding: GCKPTI_ROUNDED, .. */
    gckpt_cost cost;
    size_t far_value, far_aux; /* where slower memory has what is offloaded; GCKPTI_NONE: nowhere */
    uint64_t hash;             /* of the graph up to it, as it was built: this is what runs */
} gckpti_node;

typedef struct {
    size_t name;
    int64_t elements;
    int trained, node;
    int place;        /* in the store it was planned with */
    uint32_t init[3]; /* bits of gckpt_init */
} gckpti_plan_param;

typedef struct {
    unsigned char kind;             /* gckpt_kind */
    unsigned char first;            /* the first forward of its tensor */
    unsigned char accumulate, zero; /* bit i: input i's gradient is added to; is cleared before */
    int id;                         /* tensor; UPDATE: parameter of the plan */
    int uses;                       /* accumulators to add up first */
    size_t live;                    /* bytes live while it runs */
    size_t operands;                /* where its offsets begin: gckpti_operands_of */
} gckpti_ins;

/* Where an instruction's operands lie, by name: offsets into the arena (in a draft: its buffers),
 * or GCKPTI_NONE. `gradient` is that of the output, of an UPDATE the parameter's; it has uses - 1
 * `more` accumulators. An input's gradient that has a `total` is scratch, to be added to that. */
typedef struct {
    size_t out, aux, work, gradient;
    struct {
        size_t value, gradient, total;
    } in[GCKPT_MAX_INPUTS];
    const size_t *more;
} gckpti_operands;

/* Names them in the order they are stored: FORWARD: out, aux, work, values; BACKWARD: out, aux,
 * work, gradient, then value, gradient, total of each input, more; UPDATE: gradient, more; OFFLOAD,
 * RELOAD: out, aux. */
static void gckpti_operands_of(const size_t *stored, const gckpti_ins *ins, int inputs,
                               gckpti_operands *o)
{
    stored += ins->operands;
    memset(o, 0xff, sizeof *o); /* all GCKPTI_NONE */
    if (ins->kind != GCKPT_UPDATE) {
        o->out = *stored++;
        o->aux = *stored++;
    }
    if (ins->kind >= GCKPT_OFFLOAD)
        return;
    if (ins->kind != GCKPT_UPDATE)
        o->work = *stored++;
    if (ins->kind != GCKPT_FORWARD)
        o->gradient = *stored++;
    for (int i = 0; i < inputs && ins->kind != GCKPT_UPDATE; i++) {
        o->in[i].value = *stored++;
        if (ins->kind == GCKPT_FORWARD)
            continue;
        o->in[i].gradient = *stored++;
        o->in[i].total = *stored++;
    }
    o->more = stored;
}

/* What a request leaves open before there is any schedule; all 0: the graph as it was built. */
typedef struct {
    int form;  /* of the ops that have several (gckpti_take_form) */
    int order; /* of backwards; 0: reverse order of creation */
    int near;  /* nothing is offloaded, though the request allows it */
} gckpti_variant;

typedef struct {
    int id;
    uint32_t weight; /* bits of a float */
    int regulariser;
    gckpt_cost built; /* of the op that was built, if not of the one that runs */
} gckpti_plan_term;
typedef struct {
    int id, gradient;
    size_t offset;
} gckpti_plan_pick;
/* One block of memory holds it all, or (gckpt_plan_c) the program's constants do. A change of any
 * of these types is a change of GCKPT_PLAN_FORMAT. */
struct gckpt_plan {
    gckpti_object object;
    int format, contract; /* GCKPT_PLAN_FORMAT, GCKPT_CONTRACT */
    gckpti_allocator memory;
    void *block;          /* this; NULL: a constant of the program */
    uint64_t hash, check; /* gckpt_plan_hash; the same of what runs */
    gckpti_variant variant;
    gckpt_mode mode;
    gckpt_optimiser optimiser;
    int looped, update_in_backward, threads, made_for, state_slots;
    gckpt_precision precision;
    int64_t rows, batch;
    size_t alignment, arena, bound, kind_bytes[GCKPT_BYTES_KINDS];
    double recompute;
    uint64_t work, least_work, proven_work, offload_work;
    size_t proven_bytes, offloaded; /* offloaded: bytes of slower memory */
    const gckpti_node *nodes;
    const gckpti_plan_param *params;
    const gckpti_ins *list;
    const size_t *operands; /* of all instructions */
    const gckpti_plan_term *terms;
    const gckpti_plan_pick *picks;
    const gckpt_buffer *lives; /* buffers, by end */
    const uint32_t *words;     /* attributes */
    const char *names;
    size_t node_count, param_count, length, operand_count, term_count, pick_count, life_count,
        word_count, name_bytes;
    size_t inputs;
    int body, epilogue; /* where these parts of the list begin */
    int mixer;          /* node that mixes rows, or -1 */
};

/* gckpt_plan.made_for: whose workspace it has; above these the hash of a backend's name. */
enum { GCKPTI_FOR_CPU, GCKPTI_FOR_PLAIN };
static int gckpti_made_for(const gckpt_backend *backend, int plain)
{
    const char *name = backend ? backend->name : NULL;
    if (!backend)
        return plain ? GCKPTI_FOR_PLAIN : GCKPTI_FOR_CPU;
    uint64_t hash = name ? gckpti_fnv(GCKPTI_FNV_START, name, strlen(name)) : 0;
    return 2 + (int)(hash & 0x3fffffff);
}

/* ---- a graph's hash: of all that a plan's bytes and bits depend on, in an order and a size that
 * all machines share ---- */
/* name: of leaves (a parameter's is the store's); others have none that matters. */
static uint64_t gckpti_hash_node(uint64_t hash, const gckpti_node *q, const void *attributes,
                                 const char *name)
{
    const int numbers[6] = { q->kind, (int)q->type, q->batchless, q->base, q->inputs, q->shape.n };
    for (int i = 0; i < 6; i++)
        hash = gckpti_fnv_number(hash, (uint64_t)numbers[i]);
    for (int i = 0; i < q->inputs; i++)
        hash = gckpti_fnv_number(hash, (uint64_t)q->in[i]);
    for (int i = 0; i < q->shape.n; i++)
        hash = gckpti_fnv_number(hash, (uint64_t)q->shape.d[i]);
    hash = gckpti_fnv_number(hash, q->aux_bytes);
    hash = gckpti_fnv_number(hash, q->attribute_bytes);
    for (size_t i = 0; i < q->attribute_bytes; i += 4) {
        size_t n = q->attribute_bytes - i;
        uint32_t word = 0;
        memcpy(&word, (const char *)attributes + i, n < 4 ? n : 4);
        hash = gckpti_fnv_number(hash, word);
    }
    for (int i = 0; q->op && i < GCKPT_MAX_INPUTS; i++)
        hash = gckpti_fnv_number(hash, q->op->needs[i]);
    if (q->op) /* private flags, above the public ones, are for the work model */
        hash = gckpti_fnv_number(hash, q->op->flags & (2 * GCKPT_SIDE_EFFECT - 1));
    name = q->op ? q->op->name : name;
    return name ? gckpti_fnv(hash, name, strlen(name) + 1) : hash;
}

static uint64_t gckpti_hash_planned(uint64_t hash, const gckpt_plan *p, size_t i)
{
    gckpti_node node = p->nodes[i], *q = &node;
    const char *name = q->name == GCKPTI_NONE ? NULL : p->names + q->name;
    if (q->kind == GCKPTI_PARAM)
        name = p->names + p->params[q->index].name;
    if (q->index < 0)
        q->op = NULL;
    return gckpti_hash_node(hash, q, q->attribute_bytes ? p->words + q->attributes : NULL,
                            q->kind == GCKPTI_VIEW ? NULL : name);
}

/* ---- memory for planning: taken piece by piece, given back all at once; cleared, it is used again
 * from its beginning ---- */
typedef struct gckpti_piece {
    struct gckpti_piece *next;
    size_t size, used; /* of what lies behind this */
} gckpti_piece;
typedef struct {
    gckpti_allocator *memory;
    int *failed; /* set when there is no memory */
    gckpti_piece *first, *now;
    size_t ahead; /* the next piece has as many bytes, at least */
} gckpti_scratch;

static gckpti_scratch gckpti_scratch_new(gckpti_allocator *memory, int *failed)
{
    gckpti_scratch s = { memory, failed, NULL, NULL, 2048 };
    return s;
}

static void gckpti_scratch_free(gckpti_scratch *s)
{
    const size_t head = gckpti_round_up(sizeof(gckpti_piece), GCKPTI_ALIGN);
    while (s->first) {
        gckpti_piece *piece = s->first;
        s->first = piece->next;
        gckpti_resize(s->memory, piece, head + piece->size, 0);
    }
    s->now = NULL;
}

/* Begins again, in one piece instead of several (a block of memory takes nothing back). */
static void gckpti_scratch_clear(gckpti_scratch *s)
{
    int several = s->first && s->first->next && !s->memory->desc.memory;
    for (gckpti_piece *piece = s->first; piece; piece = piece->next) {
        s->ahead += several ? piece->used : 0;
        piece->used = 0;
    }
    if (several)
        gckpti_scratch_free(s);
    s->now = s->first;
}

/* n items of `size` bytes, all 0, or NULL. */
static void *gckpti_scratch_take(gckpti_scratch *s, size_t n, size_t size)
{
    const size_t head = gckpti_round_up(sizeof(gckpti_piece), GCKPTI_ALIGN);
    size_t bytes = n < PTRDIFF_MAX / 4 / size ? gckpti_round_up(n * size, GCKPTI_ALIGN) : SIZE_MAX;
    while (s->now && s->now->size - s->now->used < bytes && s->now->next)
        s->now = s->now->next;
    if (!s->now || s->now->size - s->now->used < bytes) {
        gckpti_piece piece = { NULL, s->ahead > bytes ? s->ahead : bytes, 0 };
        void *at = bytes < SIZE_MAX ? gckpti_resize(s->memory, NULL, 0, head + piece.size) : NULL;
        if (!at) {
            *s->failed = 1;
            return NULL;
        }
        memcpy(at, &piece, sizeof piece);
        *(s->now ? &s->now->next : &s->first) = (gckpti_piece *)at;
        s->now = (gckpti_piece *)at;
        s->ahead = s->memory->desc.memory ? 2048 : 65536;
    }
    void *at = (unsigned char *)s->now + head + s->now->used;
    s->now->used += bytes;
    return memset(at, 0, bytes);
}

/* The same as n items that lie elsewhere. */
static void *gckpti_scratch_copy(gckpti_scratch *s, const void *from, size_t n, size_t size)
{
    void *to = gckpti_scratch_take(s, n, size);
    return to && n > 0 ? memcpy(to, from, n * size) : to;
}

/* Room for n items and one more in an array that keeps its contents: `array` is the address of a
 * pointer of some type, NULL at first. In front of the items stands how many bytes they have; where
 * they lay before stays in the scratch, unused. 0 (and `failed`): out of memory. */
static int gckpti_want(gckpti_scratch *s, void *array, size_t n, size_t size)
{
    size_t need = n + 1 > PTRDIFF_MAX / 8 / size ? SIZE_MAX / 4 : (n + 1) * size, bytes = 0;
    unsigned char *at, *more;
    memcpy(&at, array, sizeof at);
    if (at)
        memcpy(&bytes, at - GCKPTI_ALIGN, sizeof bytes);
    if (need <= bytes)
        return 1;
    need = need > 2 * bytes ? need : 2 * bytes;
    more = (unsigned char *)gckpti_scratch_take(s, need + GCKPTI_ALIGN, 1);
    if (!more)
        return 0;
    memcpy(more, &need, sizeof need);
    more += GCKPTI_ALIGN;
    if (at)
        memcpy(more, at, bytes);
    memcpy(array, &more, sizeof more);
    return 1;
}

/* ---- the model of a request, made once and then only read; and the planner that holds it ---- */

/* What brings a value into the arena: an op whose results somebody reads, or a staged parameter. In
 * an order in which inputs come before users, those of the prologue first. */
typedef struct {
    int id;
    int in, inputs;         /* links[in..]: units whose values the forward reads, each once */
    int read, reads;        /* links[read..]: units whose values the backward reads */
    int rank;               /* of its backward; -1: none */
    int target;             /* target[target..]: where its backward puts gradients, by input */
    int64_t out, aux, work; /* bytes of its results; of its forward's workspace; rounded up */
    uint64_t cost;          /* of the forward */
    unsigned char accumulate, zero; /* of its backward, as gckpti_ins has them */
    unsigned char reads_aux;        /* the backward does */
    unsigned char fixed;            /* computed once: pins, side effects, the prologue */
    unsigned char effect;           /* the first forward stays, read or not */
    unsigned char recompute;        /* gckpt_recompute: computed anew for the backwards */
    unsigned char fetched;          /* its last value is read at the end */
    unsigned char in_place;         /* bit i: the result may replace the value of links[in + i] */
    unsigned char offloads;         /* what it leaves may be offloaded */
} gckpti_unit;

/* Memory of a gradient. Backwards have a fixed order, their ranks, so all but its place in a
 * schedule is known before there is one. */
typedef struct {
    int id, owner;   /* the tensor it is for; the activation whose whole gradient it is, or -1 */
    int first, last; /* ranks of the backwards that write it first and use it last */
    int resident;    /* it lives through the whole step */
    /* Gradients that have the same bytes (one is written in place of another, or is passed on) are
     * a list that begins at `storage`, by the rank they begin at. Of a gradient: */
    int storage, sharer;    /* where its list begins, itself if it is alone; the next in it */
    int tail, alive, until; /* of the one that begins it: last; first still used; their last use */
    gckpt_buffer_kind kind;
    size_t size;
} gckpti_gradient;

/* Where the backward of a unit puts the gradient of an input; with a total it is scratch to be
 * added to that. Numbers of gradients, or -1. */
typedef struct {
    int unit, gradient, total;
    int next; /* target for the gradient of the same tensor, as the contract adds them, or -1 */
} gckpti_target;

/* One version of a unit's results, from its forward to its last uses; -1: none. */
typedef struct {
    int unit, start, value_end, aux_end;
    int source, sources; /* of the schedule's sources: spans whose bytes the value may take over */
    int home;            /* the span of the forward that it reloads, or itself */
    int far;             /* GCKPTI_VALUE, ..: what is offloaded behind it */
} gckpti_span;

/* A schedule, and which versions its items make and read (gckpti_find_spans). What a reload brings
 * back is offloaded right behind the last forward before it: that is no item. */
typedef struct {
    int *item, length; /* u: forward of unit u; ~u: its backward; u + units: reload */
    gckpti_span *span;
    int spans, *source;
    int *at;                  /* by position: the span that begins there, or -1 */
    uint64_t extra;           /* cost of all forwards but the first ones, and of copies */
    int64_t *live, peak;      /* bytes at each position, when the search has evaluated it */
    int64_t far;              /* likewise: bytes of slower memory */
    int *value_end, *aux_end; /* likewise, by position of a forward: last uses, or -1 */
} gckpti_schedule;

/* What a schedule comes to: instructions, and the buffers they use, yet to be placed. It owns all
 * it points to. */
typedef struct {
    gckpti_scratch scratch;
    gckpti_schedule s;
    int *place; /* the instruction of each item of the schedule, and of its end */
    gckpti_ins *ins;
    size_t length, body, epilogue; /* instructions; where these parts begin */
    gckpt_buffer *buffers;         /* in the order they begin */
    size_t buffer_count;
    size_t *operands; /* numbers of buffers */
    size_t operand_count;
    int *value, *aux, *gradient; /* buffers, by span and by gradient; -1: none */
    int *latest; /* by unit: has it run; when buffers are listed: the span that is read now */
    size_t bound, arena, kind_bytes[GCKPT_BYTES_KINDS];
    double most, recompute; /* most: the bound, even when this machine cannot address it */
    uint64_t work, least_work, moved; /* moved: of copies to slower memory and back */
    size_t *far, offloaded; /* far[2u], [2u + 1]: where that has a unit's value, aux; its bytes */
} gckpti_draft;

typedef struct {
    uint64_t key;
    int item; /* what the key stands for */
} gckpti_keyed;
typedef struct {
    int segment, low, at; /* entries low to at of the body, yet to be written */
} gckpti_segment_part;

typedef struct gckpti_planner {
    struct gckpti_planner *next; /* of the request's next variant, or NULL */
    gckpt_graph *g;
    const gckpt_tensor **tensors; /* the graph's, or what runs instead */
    const gckpt_plan_desc *desc;
    const gckpt_term *terms;
    gckpti_variant variant;
    uint64_t least_work; /* of a step that computes nothing twice, whatever the variant */
    int term_count, n, threads, plain, looped, inference, staged;
    int orders; /* bit i: order i of backwards may take fewer bytes than order 0, which it has */
    size_t alignment;
    gckpti_allocator *memory;
    int failed; /* out of memory somewhere */
    gckpti_scratch scratch;
    /* the model */
    unsigned char *active, *rounding; /* by id: needs a gradient; GCKPTI_ROUNDED, .. */
    size_t *work_forward, *work_backward;
    gckpt_cost *cost, *model;              /* model: by the model, whatever desc.costs say */
    const gckpt_cost *built, *built_model; /* the same of the graph as it was built, if it is not */
    int *body, body_count; /* ids of what a body's schedule is made of, read by anybody or not */
    gckpti_unit *unit;
    int units, prologue; /* prologue: the first units, computed once a step */
    int pinned;          /* how many have gckpt_recompute */
    int offloads;        /* whether some may be offloaded, */
    int64_t far;         /* to so many bytes */
    int *of;             /* unit of a tensor id, or -1 */
    int *links, link_count;
    int sources;                      /* inputs of a unit that it may replace, at most; 1 or more */
    int *backward, ranks, body_ranks; /* units by rank; ranks below body_ranks are the body's */
    gckpti_gradient *gradient;
    int gradients;
    gckpti_target *target;
    int targets;
    int64_t *gradient_at, *gradient_between; /* bytes of gradients, by rank */
    struct gckpti_bound *bound;              /* NULL: nobody has asked yet (gckpti_open_bounds) */
    int *first_use; /* by id: the first target for its gradient, as the contract has it, or -1 */
    int *whole;     /* by id: the gradient that all of it is added up in, or -1 */
    int offered;    /* some op has this form */
    /* what passes over a schedule note of units: forwards still to come and what is read behind
     * (gckpti_drop), the latest span (gckpti_find_spans); of pins: was there a forward, is its
     * result let go, what to compute again */
    int *left, *latest, *queue;
    unsigned char *behind, *computed, *stale;
    /* what a maker writes: the body of a schedule */
    gckpti_segment_part *inside; /* gckpti_make_segments: the segments it is in */
    int *late, *turn, *when; /* gckpti_find_late: units in its order; by unit: turns, first ranks */
    int *made;
    size_t made_length, made_capacity;
    gckpti_draft draft, best; /* the latest; the one to keep */
    gckpti_scratch pass;      /* for one pass over a draft, cleared by the next that needs it */
    double most;              /* of store-all; 0: not drafted yet */
} gckpti_planner;

static int gckpti_is_loss(const gckpt_tensor *t) { return t->op && t->op->flags & GCKPT_LOSS; }

/* ---- bf16 plans (manual, 5l): values and gradients of what depends on the batch are rounded, and
 * kept narrow unless they are fetched, as floats ---- */
enum { GCKPTI_ROUNDED = 1, GCKPTI_NARROW_VALUE = 2, GCKPTI_NARROW_GRADIENT = 4 };
/* Of an op: fast kernels compute it; they tie the bits to the micro-batch. */
enum { GCKPTI_FAST_OP = 8, GCKPTI_MIXES = 16 };

/* What an op computes in: fast plans leave what has no fast kernels to those of GCKPT_BF16. */
static gckpt_precision gckpti_op_precision(int rounding, int batchless, gckpt_precision precision)
{
    if (precision == GCKPT_BF16_FAST && !(rounding & GCKPTI_FAST_OP))
        precision = GCKPT_BF16;
    return batchless ? GCKPT_FP32 : precision;
}

static size_t gckpti_bytes(const gckpti_planner *p, const gckpt_tensor *t, int narrow)
{
    return (size_t)gckpti_elements(&t->shape) *
           (p->rounding[t->base->id] & narrow ? 2 : sizeof(float));
}

static size_t gckpti_value_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    return gckpti_bytes(p, t, GCKPTI_NARROW_VALUE);
}

static size_t gckpti_gradient_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    return gckpti_bytes(p, t, GCKPTI_NARROW_GRADIENT);
}

/* Marks what a bf16 plan rounds and keeps narrow: what ops of the batch make, but not what is
 * fetched. */
static void gckpti_mark_rounding(gckpti_planner *p)
{
    for (int i = 0; i < p->n && p->desc->precision != GCKPT_FP32; i++) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind == GCKPTI_OP && !t->batchless && !gckpti_is_loss(t))
            p->rounding[i] = GCKPTI_ROUNDED | GCKPTI_NARROW_VALUE | GCKPTI_NARROW_GRADIENT;
    }
    for (int i = 0; i < p->desc->fetches; i++) {
        const gckpt_pick *pick = &p->desc->fetch[i];
        int narrow = pick->gradient ? GCKPTI_NARROW_GRADIENT : GCKPTI_NARROW_VALUE;
        if (pick->tensor && pick->tensor->graph == p->g)
            p->rounding[pick->tensor->base->id] &= (unsigned char)~narrow;
    }
}

/* What t's backward reads: GCKPT_IN, GCKPT_OUT, GCKPT_AUX bits. */
static unsigned gckpti_needs(const gckpti_planner *p, const gckpt_tensor *t)
{
    unsigned mask = 0;
    for (int i = 0; i < t->inputs; i++)
        if (p->active[t->in[i]->base->id])
            mask |= t->op->needs[i];
    return mask;
}

/* What one instruction has in front of its workspace: f32 copies (index 0: the output and its
 * gradient; 1 + i: input i), and the low parts of sums that it begins and ends (1 + i). The last is
 * always written to its end. */
typedef struct {
    size_t value[1 + GCKPT_MAX_INPUTS], gradient[1 + GCKPT_MAX_INPUTS]; /* offsets, or NONE */
    size_t low[1 + GCKPT_MAX_INPUTS];
    size_t bytes;
} gckpti_copies;

static void gckpti_copy_add(gckpti_copies *c, size_t *at, int64_t elements)
{
    *at = gckpti_round_up(c->bytes, 64);
    c->bytes = *at + (size_t)elements * sizeof(float);
}

/* rounding, n (elements): by index as above. precision: what the op computes in. backward: `reads`
 * has GCKPT_IN and GCKPT_OUT bits, `wanted` bit i where input i's gradient is, `sums` where that
 * ends a sum. An op that takes bf16 itself (inputs 0 and 1; fast kernels: all) leaves only what is
 * rounded by chance to the executor. */
static void gckpti_copies_of(const gckpt_op *op, int inputs, const int *rounding, const int64_t *n,
                             gckpt_precision precision, int backward, unsigned reads,
                             unsigned wanted, unsigned sums, gckpti_copies *c)
{
    int by_chance = precision == GCKPT_BF16_STOCHASTIC, fast = precision == GCKPT_BF16_FAST;
    int takes = fast || op->flags & GCKPT_TAKES_BF16, out = !takes || by_chance;
    int most = fast ? GCKPT_MAX_INPUTS : 1; /* the last input it takes so */
    memset(c, 0xff, sizeof *c);
    c->bytes = 0;
    out = out && rounding[0] & GCKPTI_NARROW_VALUE;
    for (int i = 0; i < inputs && !backward && out && !takes; i++)
        if (op->flags & GCKPT_INPLACE(i) && rounding[1 + i] & GCKPTI_NARROW_VALUE &&
            n[1 + i] == n[0]) {
            gckpti_copy_add(c, &c->value[1 + i], n[0]);
            c->value[0] = c->value[1 + i];
            out = 0;
        }
    if (!backward && out)
        gckpti_copy_add(c, &c->value[0], n[0]);
    else if (backward && !takes && reads & GCKPT_OUT && rounding[0] & GCKPTI_NARROW_VALUE)
        gckpti_copy_add(c, &c->value[0], n[0]);
    for (int i = 0; i < inputs; i++)
        if ((!takes || i > most) && rounding[1 + i] & GCKPTI_NARROW_VALUE &&
            c->value[1 + i] == GCKPTI_NONE && (!backward || reads & GCKPT_IN(i)))
            gckpti_copy_add(c, &c->value[1 + i], n[1 + i]);
    for (int i = 0; i < inputs && backward; i++)
        if ((!takes || i > most || by_chance) && rounding[1 + i] & GCKPTI_NARROW_GRADIENT &&
            wanted >> i & 1)
            gckpti_copy_add(c, &c->gradient[1 + i], n[1 + i]);
    if (backward && !takes && rounding[0] & GCKPTI_NARROW_GRADIENT)
        gckpti_copy_add(c, &c->gradient[0], n[0]);
    for (int i = 0; i < inputs; i++)
        if (sums >> i & 1)
            gckpti_copy_add(c, &c->low[1 + i], n[1 + i]);
}

/* Whether the gradient of an op's input is a sum with a low part, over rows of the batch or over
 * repetitions. HERE: it begins and ends with the instruction, its low part lies in the workspace;
 * ON: in a looped plan it goes on through the step, its low part lies behind the accumulator. */
enum { GCKPTI_SUM_HERE = 1, GCKPTI_SUM_ON = 2 };
static int gckpti_sum_kind(const gckpt_op *op, int i, int batchless, const gckpt_shape *shape,
                           int batchless_in, const gckpt_shape *in, int looped)
{
    if (!(op->needs[i] & GCKPT_SUMS))
        return 0;
    if (batchless_in && !batchless)
        return looped ? GCKPTI_SUM_ON : GCKPTI_SUM_HERE;
    return gckpti_elements(in) != gckpti_elements(shape) ? GCKPTI_SUM_HERE : 0;
}

static int gckpti_sums(const gckpti_planner *p, const gckpt_tensor *t, int i)
{
    const gckpt_tensor *q = t->in[i];
    return gckpti_sum_kind(t->op, i, t->batchless, &t->shape, q->batchless, &q->shape, p->looped);
}

/* Input i's tensor is an earlier input of the same op too: its gradient is computed apart. */
static int gckpti_repeats(const gckpt_tensor *t, int i)
{
    for (int k = 0; k < i; k++)
        if (t->in[k]->base == t->in[i]->base)
            return 1;
    return 0;
}

/* Bytes of an op's copies and low parts in front of its workspace, forward or backward. */
static size_t gckpti_copy_bytes(const gckpti_planner *p, const gckpt_tensor *t, int backward)
{
    int rounding[1 + GCKPT_MAX_INPUTS];
    int64_t n[1 + GCKPT_MAX_INPUTS];
    unsigned wanted = 0, sums = 0;
    gckpti_copies c;
    for (int i = -1; i < t->inputs; i++) {
        const gckpt_tensor *q = i < 0 ? t : t->in[i];
        rounding[1 + i] = p->rounding[q->base->id];
        n[1 + i] = gckpti_elements(&q->shape);
        if (i < 0 || !p->active[q->base->id])
            continue;
        if (!gckpti_repeats(t, i))
            wanted |= 1u << i;
        if (backward && gckpti_sums(p, t, i) == GCKPTI_SUM_HERE)
            sums |= 1u << i;
    }
    gckpti_copies_of(t->op, t->inputs, rounding, n,
                     gckpti_op_precision(rounding[0], t->batchless, p->desc->precision), backward,
                     gckpti_needs(p, t), wanted, sums, &c);
    return c.bytes;
}

enum { GCKPTI_INSTRUCTION_WORK = 16384 };

/* The work of op t by the roofline model (Williams 2009): flops, or 10 x bytes moved when that is
 * more, + what an instruction costs however small it is (about 100 ns where a flop is 7 ps);
 * integers, so that a plan is the same on every machine. A backward does the forward's flops for
 * one or two of its inputs (as a matmul does), or what the op says; it moves what it reads, the
 * gradient that comes in and those that go out. */
static gckpt_cost gckpti_model_cost(const gckpti_planner *p, const gckpt_tensor *t,
                                    gckpt_call *call)
{
    uint64_t flops = t->op->flops ? t->op->flops(call) : (uint64_t)gckpti_elements(&t->shape);
    uint64_t out = gckpti_value_bytes(p, t), forward = out, backward = out;
    unsigned needs = gckpti_needs(p, t), gradients = 0;
    float wanted;
    for (int k = 0; k < t->inputs; k++) {
        forward += gckpti_value_bytes(p, t->in[k]);
        backward += needs & GCKPT_IN(k) ? gckpti_value_bytes(p, t->in[k]) : 0;
        if (!p->active[t->in[k]->base->id])
            continue;
        gradients++;
        call->in[k].grad = &wanted;
        backward += t->op->flags & GCKPT_PASSES(k) ? 0 : gckpti_gradient_bytes(p, t->in[k]);
    }
    backward += needs & GCKPT_OUT ? out : 0;
    gckpt_cost cost = { flops > 10 * forward ? flops : 10 * forward, 0 };
    if (t->op->flags & GCKPTI_LATE && t->attribute_bytes)
        cost.forward = 0; /* the backward does it all */
    cost.forward += GCKPTI_INSTRUCTION_WORK;
    if (gradients == 0)
        return cost;
    flops =
        t->op->flops_backward ? t->op->flops_backward(call) : gckpti_gradients_flops(call, flops);
    cost.backward = (flops > 10 * backward ? flops : 10 * backward) + GCKPTI_INSTRUCTION_WORK;
    return cost;
}

/* Work only adds up to what can be counted: a user's schedule may repeat a forward at will. */
static uint64_t gckpti_add_work(uint64_t sum, uint64_t more)
{
    return more < UINT64_MAX - sum ? sum + more : UINT64_MAX;
}

/* Parts of what a forward leaves, as they are read and offloaded. */
enum { GCKPTI_VALUE = 1, GCKPTI_AUX = 2 };
static int gckpti_parts(int value_end, int aux_end)
{
    return (value_end < 0 ? 0 : GCKPTI_VALUE) | (aux_end < 0 ? 0 : GCKPTI_AUX);
}
static int64_t gckpti_parts_bytes(const gckpti_unit *u, int parts)
{
    return (parts & GCKPTI_VALUE ? u->out : 0) + (parts & GCKPTI_AUX ? u->aux : 0);
}

/* Work of copying so many bytes to slower memory or back, rounded up: two copies never have less
 * than one of all their bytes. */
static uint64_t gckpti_copy_work(uint64_t offload_work, int64_t bytes)
{
    uint64_t most = UINT64_MAX / 4, n = (uint64_t)bytes, whole = n >> 20, rest = n & 0xfffff;
    if (offload_work > most >> 20 || (whole && offload_work > most / whole))
        return most;
    return whole * offload_work + ((rest * offload_work + 0xfffff) >> 20);
}

/* Of an offload or a reload of such parts of a unit. */
static uint64_t gckpti_parts_work(const gckpti_planner *p, int unit, int parts)
{
    return gckpti_copy_work(p->desc->offload_work, gckpti_parts_bytes(&p->unit[unit], parts));
}

/* Sums of work must stay below 2^64, although the search and the makers repeat a forward for each
 * backward there is. */
static gckpt_result gckpti_check_work(const gckpti_planner *p)
{
    uint64_t most = UINT64_MAX / 2 / ((uint64_t)p->n + 1), sum = 0;
    most = most < UINT64_C(1) << 53 ? most : UINT64_C(1) << 53;
    for (int i = 0; i < p->n; i++) {
        sum = gckpti_add_work(sum, p->cost[i].forward); /* 0 for what is no op */
        sum = gckpti_add_work(sum, p->cost[i].backward);
        if (p->of[i] >= 0 && p->unit[p->of[i]].offloads)
            sum =
                gckpti_add_work(sum, 2 * gckpti_parts_work(p, p->of[i], GCKPTI_VALUE | GCKPTI_AUX));
    }
    return sum <= most ? GCKPT_OK
                       : gckpti_error(p->g, GCKPT_E_ARG,
                                      "plan: the work of all ops adds up to more than %u; %s", most,
                                      p->desc->costs || p->offloads ? "give costs in a larger unit"
                                                                    : "use fewer rows");
}

/* ---- forms: what else returns the bits of an op, with other bytes and other work ---- */
enum { GCKPTI_FORMS = 5 }; /* form 0 is the graph as it was built */

/* Makes of a copy of a loss what runs in its place; 0: it has no such form. Forms 1 to 3 of a head
 * compute each logit once, of so many rows at a time; the last computes them twice, in chunks. */
static int gckpti_form(gckpt_tensor *t, int form)
{
    static const int rows[] = { 256, 64, 16 };
    const gckpt_tensor *logits = t->in[0];
    if (t->op == &gckpti_op_cross_entropy) {
        if ((logits->op != &gckpti_op_matmul && logits->op != &gckpti_op_linear) ||
            logits->inputs != 2 || !*(const int *)logits->attributes || logits->mixes ||
            logits->batchless || logits->in[1]->shape.n != 2 || !logits->in[1]->batchless)
            return 0;
        t->op = &gckpti_op_linear_cross_entropy;
        t->in[2] = t->in[1];
        t->in[1] = logits->in[1];
        t->in[0] = logits->in[0];
        t->inputs = 3;
    } else if (t->op != &gckpti_op_linear_cross_entropy || form == 4) {
        return 0;
    }
    if (form < 4) {
        t->attributes = &rows[form - 1];
        t->attribute_bytes = sizeof *rows;
        t->aux_bytes = 0;
    }
    return 1;
}

/* Whether `as` may run in place of t. A tensor it does not read any more is not computed: nobody
 * else may want it, nor may its rounding be part of the numbers; and what sent gradients to the
 * inputs of that tensor sends them from t, so nobody may add to them in between. */
static int gckpti_form_fits(const gckpti_planner *p, const gckpt_tensor *t, const gckpt_tensor *as)
{
    const gckpt_tensor *gone = t->in[0]->base;
    if (t->batchless || !p->active[t->id] || p->desc->precision == GCKPT_BF16_FAST)
        return 0; /* a backend's fast kernels have one form */
    if (as->in[0]->base == gone)
        return 1;
    if (gone->keep || gone->recompute || p->rounding[gone->id])
        return 0;
    for (int i = 0; i < p->desc->fetches; i++)
        if (p->desc->fetch[i].tensor && p->desc->fetch[i].tensor->base == gone)
            return 0;
    for (int i = gone->id + 1; i < p->n; i++) {
        const gckpt_tensor *user = p->g->tensors[i];
        for (int k = 0; user != t && user->kind == GCKPTI_OP && k < user->inputs; k++) {
            const gckpt_tensor *q = user->in[k]->base;
            if (q == gone || (i < t->id && (q == as->in[0]->base || q == as->in[1]->base)))
                return 0;
        }
    }
    return 1;
}

/* Puts what runs in the planner's form in place of what was built: an op that has fewer forms takes
 * its last. */
static void gckpti_take_form(gckpti_planner *p)
{
    for (int i = 0; i < p->n && !p->failed; i++) {
        const gckpt_tensor *t = p->g->tensors[i];
        for (int form = gckpti_is_loss(t) ? p->variant.form : 0; form > 0; form--) {
            gckpt_tensor as = *t;
            if (!gckpti_form(&as, form) || !gckpti_form_fits(p, t, &as))
                continue;
            p->tensors[i] =
                (const gckpt_tensor *)gckpti_scratch_copy(&p->scratch, &as, 1, sizeof as);
            p->offered = p->offered || form == p->variant.form;
            break;
        }
    }
}

/* Bytes that an op, which runs forward and backward once, takes beside its operands. */
static size_t gckpti_bytes_beside(const gckpti_planner *p, int id)
{
    size_t forward = p->work_forward[id], backward = p->work_backward[id];
    return p->tensors[id]->aux_bytes + (forward > backward ? forward : backward);
}

/* Whether q's model, of another form of p's request, is worth a search: some op of it has less work
 * or fewer bytes. */
static int gckpti_is_of_use(const gckpti_planner *q, const gckpti_planner *p)
{
    int better = p->units != q->units || p->link_count != q->link_count;
    for (int i = 0; i < p->n && !better; i++)
        better =
            q->cost[i].forward + q->cost[i].backward < p->cost[i].forward + p->cost[i].backward ||
            gckpti_bytes_beside(q, i) < gckpti_bytes_beside(p, i);
    return better;
}

/* ---- the model ---- */
/* Which tensors get a gradient: they depend on a trainable parameter and reach a loss. */
static void gckpti_find_active(gckpti_planner *p)
{
    unsigned char *reach = (unsigned char *)gckpti_scratch_take(&p->scratch, (size_t)p->n, 1);
    memset(p->active, 0, (size_t)p->n);
    for (int i = 0; i < p->term_count && reach; i++)
        reach[p->terms[i].loss->id] = 1;
    for (int i = p->n; i-- > 0 && reach;) {
        const gckpt_tensor *t = p->tensors[i];
        for (int k = 0; t->kind == GCKPTI_OP && k < t->inputs; k++)
            if (reach[i] && t->op->backward)
                reach[t->in[k]->base->id] = 1;
    }
    for (int i = 0; i < p->n && reach; i++) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind == GCKPTI_PARAM)
            p->active[i] = reach[i] && !p->inference && !p->g->store->params[t->index].p.frozen;
        for (int k = 0; t->kind == GCKPTI_OP && k < t->inputs; k++)
            if (reach[i] && t->op->backward && p->active[t->in[k]->base->id])
                p->active[i] = 1;
    }
}

/* x * a / b, cut down, for a / b that is not much more than 1; b > 0. */
static uint64_t gckpti_in_proportion(uint64_t x, uint64_t a, uint64_t b)
{
    for (; a >> 31 || b >> 31; a /= 2)
        b = b / 2 + (b < 2);
    return x / b * a + x % b * a / b;
}

/* What op t, a form, would cost by desc.costs, which are of the graph as it was built: as much as
 * what it runs in place of, in proportion to the model's. */
static gckpt_cost gckpti_form_cost(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_tensor *gone = p->g->tensors[t->id]->in[0]->base;
    const gckpt_cost *given = p->desc->costs, *model = p->built_model, *own = &p->model[t->id];
    uint64_t before = model[t->id].forward + model[t->id].backward;
    uint64_t cost = gckpti_add_work(given[t->id].forward, given[t->id].backward);
    if (gone != t->in[0]->base) {
        before += model[gone->id].forward + model[gone->id].backward;
        cost = gckpti_add_work(cost,
                               gckpti_add_work(given[gone->id].forward, given[gone->id].backward));
    }
    gckpt_cost c = { gckpti_in_proportion(cost, own->forward, before),
                     gckpti_in_proportion(cost, own->backward, before) };
    return c;
}

/* Asks op t for its workspace at this thread count and its work. */
static gckpt_result gckpti_ask_op(gckpti_planner *p, const gckpt_tensor *t)
{
    int i = t->id, mixes;
    uint16_t narrow;
    gckpt_call call;
    gckpt_result result;
    const gckpt_backend *b = p->desc->backend;
    gckpt_precision precision;
    if (p->desc->precision == GCKPT_BF16_FAST && b->find_fast(b->context, t->op, GCKPT_FORWARD))
        p->rounding[i] |= GCKPTI_FAST_OP;
    do { /* once more where the backend declines it */
        precision = gckpti_op_precision(p->rounding[i], t->batchless, p->desc->precision);
        result = gckpti_shape_call(t->op, t->in, t->inputs, t->attributes, 1, p->threads, p->plain,
                                   precision, NULL, &call);
        mixes = call.mixes_rows;
        for (int k = 0; k < t->inputs; k++)
            if (p->rounding[t->in[k]->base->id] & GCKPTI_NARROW_VALUE)
                call.in[k].bf16 = &narrow;
        call.out_bf16 = p->rounding[i] & GCKPTI_NARROW_VALUE ? &narrow : NULL;
        call.grad_out_bf16 = p->rounding[i] & GCKPTI_NARROW_GRADIENT ? &narrow : NULL;
        if (result == GCKPT_OK && b && b->workspace)
            result = b->workspace(b->context, t->op, &call);
        p->rounding[i] &= (unsigned char)~(call.precision == precision ? 0 : GCKPTI_FAST_OP);
    } while (result == GCKPT_OK && precision == GCKPT_BF16_FAST && call.precision != precision);
    if (result != GCKPT_OK && p->desc->backend)
        return gckpti_error(p->g, result, "%T: backend %s does not plan it", t,
                            p->desc->backend->name);
    if (result != GCKPT_OK || call.work_forward > PTRDIFF_MAX / 4 ||
        call.work_backward > PTRDIFF_MAX / 4)
        return gckpti_error(p->g, GCKPT_E_SHAPE, "%T: cannot be planned for %i threads", t,
                            p->threads);
    if (p->active[i] && call.mixes_rows > mixes)
        p->rounding[i] |= GCKPTI_MIXES;
    p->work_forward[i] = call.work_forward;
    p->work_backward[i] = call.work_backward;
    size_t forward = gckpti_copy_bytes(p, t, 0);
    size_t backward = p->active[i] ? gckpti_copy_bytes(p, t, 1) : 0;
    p->work_forward[i] += call.work_forward ? gckpti_round_up(forward, 64) : forward;
    p->work_backward[i] += call.work_backward ? gckpti_round_up(backward, 64) : backward;
    call.shape = t->shape;
    p->model[i] = gckpti_model_cost(p, t, &call);
    p->cost[i] = !p->desc->costs                           ? p->model[i]
                 : p->built_model && t != p->g->tensors[i] ? gckpti_form_cost(p, t)
                                                           : p->desc->costs[i];
    return GCKPT_OK;
}

/* Whether an op finds a tensor in the arena, since a unit makes it. */
static int gckpti_in_arena(const gckpti_planner *p, const gckpt_tensor *t)
{
    return t->kind == GCKPTI_OP || (t->kind == GCKPTI_PARAM && p->staged);
}

/* A gradient that is a sum over uses has an accumulator for each in a looped plan, or scratch for
 * all but the first (manual, 5f): that of whatever has no batch axis, whenever it is computed. */
static int gckpti_sums_uses(const gckpt_tensor *t) { return t->batchless; }

/* Marks, by id, what any schedule computes: what backwards, losses, side effects and fetches read,
 * and what that reads in turn. */
static void gckpti_find_needed(const gckpti_planner *p, unsigned char *needed)
{
    for (int i = 0; i < p->term_count; i++)
        needed[p->terms[i].loss->id] = 1;
    for (int i = 0; i < p->desc->fetches; i++)
        if (!p->desc->fetch[i].gradient)
            needed[p->desc->fetch[i].tensor->base->id] = 1;
    for (int i = p->n; i-- > 0;) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind != GCKPTI_OP)
            continue;
        unsigned mask = p->active[i] ? gckpti_needs(p, t) : 0;
        if (t->op->flags & GCKPT_SIDE_EFFECT && !gckpti_is_loss(t))
            needed[i] = 1;
        needed[i] |= mask & GCKPT_OUT || (mask & GCKPT_AUX && t->aux_bytes > 0);
        for (int k = 0; k < t->inputs; k++)
            needed[t->in[k]->base->id] |= needed[i] || mask & GCKPT_IN(k);
    }
}

/* Adds a link to a unit, unless it is among those from `first` on. Returns its place there. */
static int gckpti_add_link(gckpti_planner *p, int first, int unit)
{
    int at = first;
    while (at < p->link_count && p->links[at] != unit)
        at++;
    if (at == p->link_count)
        p->links[p->link_count++] = unit;
    return at - first;
}

/* What unit u, an op, reads: its forward, its backward; what it may replace. */
static void gckpti_link_unit(gckpti_planner *p, gckpti_unit *u, const gckpt_tensor *t)
{
    unsigned mask = p->active[u->id] ? gckpti_needs(p, t) : 0;
    int sources = 0;
    u->in = p->link_count;
    for (int k = 0; k < t->inputs; k++) {
        const gckpt_tensor *q = t->in[k]->base;
        if (!gckpti_in_arena(p, q))
            continue;
        int at = gckpti_add_link(p, u->in, p->of[q->id]);
        if (t->op->flags & GCKPT_INPLACE(k) &&
            gckpti_value_bytes(p, q) == gckpti_value_bytes(p, t) &&
            gckpti_elements(&q->shape) == gckpti_elements(&t->shape))
            u->in_place |= (unsigned char)(1u << at);
    }
    u->inputs = p->link_count - u->in;
    for (unsigned bits = u->in_place; bits; bits &= bits - 1)
        sources++;
    p->sources = sources > p->sources ? sources : p->sources;
    u->read = p->link_count;
    for (int k = 0; k < t->inputs; k++)
        if (mask & GCKPT_IN(k) && gckpti_in_arena(p, t->in[k]->base))
            gckpti_add_link(p, u->read, p->of[t->in[k]->base->id]);
    if (mask & GCKPT_OUT)
        gckpti_add_link(p, u->read, p->of[u->id]);
    u->reads = p->link_count - u->read;
    u->reads_aux = mask & GCKPT_AUX && t->aux_bytes > 0;
}

/* Bytes of a store-all plan that are searched below, at most: sums stay below 2^63. */
#define GCKPTI_SEARCHED 17592186044416.0
/* Bytes, rounded up. What takes more than can be searched counts as so many, so that sums stay
 * whole numbers. */
static int64_t gckpti_model_size(const gckpti_planner *p, size_t bytes)
{
    const size_t most = sizeof(size_t) > 4 ? (size_t)((uint64_t)GCKPTI_SEARCHED) : SIZE_MAX / 2;
    return (int64_t)gckpti_round_up(bytes < most ? bytes : most, p->alignment);
}

/* Appends tensor t, an op or a staged parameter, to the units; prologue: it is computed there. */
static void gckpti_add_unit(gckpti_planner *p, const gckpt_tensor *t, int prologue)
{
    gckpti_unit *u = &p->unit[p->units];
    int effect = t->op && t->op->flags & GCKPT_SIDE_EFFECT;
    u->id = t->id;
    u->rank = t->kind == GCKPTI_OP && p->active[t->id] ? 0 : -1;
    u->out = gckpti_is_loss(t) ? 0 : gckpti_model_size(p, gckpti_value_bytes(p, t));
    u->aux = gckpti_model_size(p, t->aux_bytes);
    u->work = gckpti_model_size(p, p->work_forward[t->id]);
    u->cost = p->cost[t->id].forward;
    u->fixed = prologue || t->keep || effect;
    u->recompute = (unsigned char)(t->recompute && !u->fixed);
    p->pinned += u->recompute;
    u->effect = (unsigned char)effect;
    u->offloads = p->far > 0 && !prologue && t->op && !u->recompute;
    p->offloads = p->offloads || u->offloads;
    p->of[t->id] = p->units++;
    if (t->kind == GCKPTI_OP)
        gckpti_link_unit(p, u, t);
}

/* The units of one part: of the prologue, which depends on parameters only and is computed once a
 * step, or of the body. A staged parameter stands before its first reader, and belongs to the
 * prologue if that does. */
static void gckpti_add_part(gckpti_planner *p, int prologue, const unsigned char *needed)
{
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind != GCKPTI_OP || t->batchless != prologue)
            continue;
        for (int k = 0; k < t->inputs && p->staged && needed[i]; k++) {
            const gckpt_tensor *q = t->in[k]->base;
            if (q->kind != GCKPTI_PARAM || p->of[q->id] >= 0)
                continue;
            const uint64_t moved = 2 * (uint64_t)gckpti_value_bytes(p, q);
            const gckpt_cost copy = { 10 * moved + GCKPTI_INSTRUCTION_WORK, 0 };
            p->cost[q->id] = p->desc->costs ? p->desc->costs[q->id] : copy;
            gckpti_add_unit(p, q, prologue);
            if (!prologue)
                p->body[p->body_count++] = q->id;
        }
        if (needed[i])
            gckpti_add_unit(p, t, prologue);
        if (!prologue)
            p->body[p->body_count++] = i;
    }
}

/* Numbers the targets, and links those that are part of one tensor's gradient in the contract's
 * order: users that depend on the batch in reverse order, then the others in reverse order, inputs
 * of one op ascending. */
static void gckpti_list_uses(gckpti_planner *p)
{
    size_t ids = (size_t)p->n * sizeof(int), n = 0;
    for (int u = 0; u < p->units; u++)
        n += p->unit[u].rank < 0 ? 0 : (size_t)p->tensors[p->unit[u].id]->inputs;
    p->gradient = (gckpti_gradient *)gckpti_scratch_take(&p->scratch, n, sizeof *p->gradient);
    p->target = (gckpti_target *)gckpti_scratch_take(&p->scratch, n, sizeof *p->target);
    memset(p->first_use, 0xff, ids);
    memset(p->whole, 0xff, ids);
    for (int u = 0; u < p->units && !p->failed; u++) { /* the list begins with the last */
        const gckpt_tensor *t = p->tensors[p->unit[u].id];
        if (p->unit[u].rank < 0)
            continue;
        p->unit[u].target = p->targets;
        p->targets += t->inputs;
        for (int i = t->inputs; i-- > 0;) {
            int *first = &p->first_use[t->in[i]->base->id];
            const gckpti_target target = { u, -1, -1, *first };
            p->target[p->unit[u].target + i] = target;
            *first = p->unit[u].target + i;
        }
    }
}

/* ---- the order of backwards ----
 * A backward comes after those of all that reads its result, and what is added to one activation's
 * gradient comes in the contract's order (manual, 5f): a later part goes on from the sum that is
 * there, as a chain of fma, so it cannot be computed before its turn; what waits instead is the
 * gradient that it is computed from. The parts of a sum over uses are computed apart: in a looped
 * plan in any order; else the first two may change places, since a + b = b + a.
 *   order 0  the reverse of creation.
 *   order 1  next is what leaves no more bytes than there are, with the least on the way; else what
 *            became possible last, so that one branch is finished before the next begins. As if
 *            values were kept until they are read for the last time.
 *   order 2  the same for gradients alone, as where values are computed anew.
 * A user's schedule has its own. The prologue's backwards come last, in reverse. */
enum { GCKPTI_ORDER_COUNT = 3 };
typedef struct {
    int to, next;
} gckpti_edge;
typedef struct {
    gckpti_planner *p;
    int *waits, *head;        /* by unit: for how many it waits; its first edge */
    int *left;                /* by unit: backwards that are still to read its value */
    gckpti_edge *edge;        /* to units that wait for it */
    unsigned char *made;      /* by id: its gradient is there */
    int *ready;               /* units whose turn may be next */
    int edges, count, values; /* count: of ready; values: they have bytes */
} gckpti_ordering;

static void gckpti_order_edge(gckpti_ordering *o, int from, int to)
{
    const gckpti_edge edge = { to, o->head[from] };
    if (from == to || to < o->p->prologue)
        return;
    o->edge[o->edges] = edge;
    o->head[from] = o->edges++;
    o->waits[to]++;
}

/* Begins anew: who waits for whom in the body, and what may be first. */
static void gckpti_order_begin(gckpti_ordering *o)
{
    const gckpti_planner *p = o->p;
    o->edges = o->count = 0;
    memset(o->made, 0, (size_t)p->n);
    memset(o->head, 0xff, (size_t)p->units * sizeof(int));
    memset(o->waits, 0, (size_t)p->units * sizeof(int));
    memset(o->left, 0, (size_t)p->units * sizeof(int));
    for (int id = 0; id < p->n; id++) {
        int apart = gckpti_sums_uses(p->tensors[id]), k = p->active[id] ? p->first_use[id] : -1;
        for (int n = 0, u; k >= 0 && (u = p->target[k].unit) >= p->prologue; n++) {
            int next = p->target[k].next, later = next;
            if (apart && n == 0 && next >= 0)
                later = p->target[next].next;
            if (later >= 0 && !(apart && p->looped))
                gckpti_order_edge(o, u, p->target[later].unit);
            if (p->tensors[id]->kind == GCKPTI_OP)
                gckpti_order_edge(o, u, p->of[id]);
            k = next;
        }
    }
    for (int u = 0; u < p->units; u++) {
        const gckpti_unit *q = &p->unit[u];
        if (q->rank >= 0 && u >= p->prologue && o->waits[u] == 0)
            o->ready[o->count++] = u;
        for (int k = q->read; k < q->read + q->reads && q->rank >= 0; k++)
            o->left[p->links[k]]++;
    }
}

/* Bytes of a gradient while it lives; 0 where no order changes that. */
static int64_t gckpti_order_bytes(const gckpti_planner *p, const gckpt_tensor *t)
{
    int fixed = gckpti_sums_uses(t) && (p->looped || p->desc->update_in_backward);
    if (gckpti_is_loss(t) || fixed)
        return 0;
    return gckpti_model_size(p, gckpti_gradient_bytes(p, t));
}

/* By how many bytes fewer there are after the backward of unit u; *peak: how many more while it
 * runs, with what it reads where values count nothing. */
static int64_t gckpti_order_look(const gckpti_ordering *o, int u, int64_t *peak)
{
    const gckpti_planner *p = o->p;
    const gckpti_unit *q = &p->unit[u];
    const gckpt_tensor *t = p->tensors[q->id];
    int64_t made = 0, last = q->reads_aux ? q->aux : 0, reads = last;
    for (int i = 0; i < t->inputs; i++)
        if (p->active[t->in[i]->base->id] && !o->made[t->in[i]->base->id] && !gckpti_repeats(t, i))
            made += gckpti_order_bytes(p, t->in[i]->base);
    for (int k = q->read; k < q->read + q->reads; k++) {
        int v = p->links[k];
        reads += p->unit[v].out;
        last += o->left[v] == 1 && v >= p->prologue ? p->unit[v].out : 0;
    }
    *peak = made + gckpti_model_size(p, p->work_backward[q->id]) + (o->values ? 0 : reads);
    return gckpti_order_bytes(p, t) - made + (o->values ? last : 0);
}

/* The backward of unit u is next. */
static void gckpti_order_run(gckpti_ordering *o, int u)
{
    const gckpti_unit *q = &o->p->unit[u];
    const gckpt_tensor *t = o->p->tensors[q->id];
    for (int i = 0; i < t->inputs; i++)
        o->made[t->in[i]->base->id] = 1;
    for (int k = q->read; k < q->read + q->reads; k++)
        o->left[o->p->links[k]]--;
    for (int e = o->head[u]; e >= 0; e = o->edge[e].next)
        if (--o->waits[o->edge[e].to] == 0)
            o->ready[o->count++] = o->edge[e].to;
    o->waits[u] = -1;
}

/* The place in `ready` of what is next. Only the newest are looked at. */
static int gckpti_order_choose(const gckpti_ordering *o)
{
    int64_t peak, least = INT64_MAX;
    int best = o->count - 1;
    for (int i = o->count; i-- > 0 && i > o->count - 64 && o->count > 1;)
        if (gckpti_order_look(o, o->ready[i], &peak) >= 0 && peak < least) {
            least = peak;
            best = i;
        }
    return best;
}

/* Finds an order, or (given) goes through one. *most: its bytes, beyond those at the beginning.
 * Returns whether there was a choice. */
static int gckpti_order_find(gckpti_ordering *o, int values, int given, int *order, int64_t *most)
{
    int64_t live = 0, peak;
    int choice = 0;
    *most = 0;
    o->values = values;
    gckpti_order_begin(o);
    for (int r = 0; r < o->p->body_ranks; r++) {
        int i = given ? 0 : gckpti_order_choose(o);
        choice = choice || o->count > 1;
        if (!given) {
            order[r] = o->ready[i];
            for (o->count--; i < o->count; i++)
                o->ready[i] = o->ready[i + 1];
        }
        int64_t fewer = gckpti_order_look(o, order[r], &peak);
        *most = live + peak > *most ? live + peak : *most;
        live -= fewer;
        gckpti_order_run(o, order[r]);
    }
    return choice;
}

/* The user's order as far as it is one, and what is left in reverse (gckpti_make_user compares). */
static void gckpti_order_user(gckpti_ordering *o)
{
    gckpti_planner *p = o->p;
    int n = 0;
    gckpti_order_begin(o);
    for (int i = 0; i < p->desc->instructions; i++) {
        gckpt_instruction in = p->desc->schedule[i];
        int u = in.kind == GCKPT_BACKWARD && in.id >= 0 && in.id < p->n ? p->of[in.id] : -1;
        if (u < p->prologue || p->unit[u].rank < 0 || o->waits[u] != 0)
            continue;
        gckpti_order_run(o, u);
        p->backward[n++] = u;
    }
    for (int u = p->units; u-- > p->prologue;)
        if (p->unit[u].rank >= 0 && o->waits[u] >= 0)
            p->backward[n++] = u;
}

/* Finds the model's order; of order 0, which others promise fewer bytes. */
static void gckpti_order_choices(gckpti_ordering *o)
{
    gckpti_planner *p = o->p;
    size_t n = (size_t)p->body_ranks, bytes = n * sizeof(int);
    int64_t most, least;
    int own = p->variant.order, *order = (int *)gckpti_scratch_take(&p->scratch, 2 * n, sizeof own);
    if (own && order)
        gckpti_order_find(o, own == 1, 0, p->backward, &least);
    for (int k = 1; k < GCKPTI_ORDER_COUNT && !own && order; k++, order += n) {
        if (!gckpti_order_find(o, k == 1, 0, order, &least))
            return;
        if (!memcmp(order, p->backward, bytes) || (p->orders && !memcmp(order, order - n, bytes)))
            continue;
        gckpti_order_find(o, k == 1, 1, p->backward, &most);
        p->orders |= (least < most) << k;
    }
}

/* Orders the backwards: their ranks. */
static void gckpti_order_backwards(gckpti_planner *p)
{
    gckpti_ordering o;
    size_t n = (size_t)p->units + 1, edges = 2 * (size_t)p->targets;
    gckpt_mode mode = p->desc->mode;
    memset(&o, 0, sizeof o);
    o.p = p;
    o.waits = (int *)gckpti_scratch_take(&p->scratch, n, sizeof(int));
    o.head = (int *)gckpti_scratch_take(&p->scratch, n, sizeof(int));
    o.left = (int *)gckpti_scratch_take(&p->scratch, n, sizeof(int));
    o.ready = (int *)gckpti_scratch_take(&p->scratch, n, sizeof(int));
    o.made = (unsigned char *)gckpti_scratch_take(&p->scratch, (size_t)p->n, 1);
    o.edge = (gckpti_edge *)gckpti_scratch_take(&p->scratch, edges, sizeof *o.edge);
    for (int u = p->units; u-- > 0 && !p->failed;)
        if (p->unit[u].rank >= 0) {
            p->backward[p->ranks++] = u;
            p->body_ranks += u >= p->prologue;
        }
    if (!p->failed && mode == GCKPT_SCHEDULE)
        gckpti_order_user(&o);
    else if (!p->failed && (mode == GCKPT_AUTO || mode == GCKPT_OPTIMAL) && !p->desc->as_built)
        gckpti_order_choices(&o);
    for (int r = 0; r < p->ranks; r++)
        p->unit[p->backward[r]].rank = r;
}

/* All units; what losses and fetches ask of them; the ranks of their backwards. */
static void gckpti_model_units(gckpti_planner *p)
{
    unsigned char *needed = (unsigned char *)gckpti_scratch_take(&p->scratch, (size_t)p->n, 1);
    size_t links = 0;
    for (int i = 0; i < p->n; i++)
        links += p->tensors[i]->kind == GCKPTI_OP ? 2 * (size_t)p->tensors[i]->inputs + 1 : 0;
    p->links = (int *)gckpti_scratch_take(&p->scratch, links, sizeof(int));
    if (p->failed)
        return;
    gckpti_find_needed(p, needed);
    memset(p->of, 0xff, (size_t)p->n * sizeof(int));
    p->sources = 1;
    gckpti_add_part(p, 1, needed);
    p->prologue = p->units;
    gckpti_add_part(p, 0, needed);
    for (int i = 0; i < p->term_count; i++)
        p->unit[p->of[p->terms[i].loss->id]].effect = 1;
    for (int i = 0; i < p->desc->fetches; i++)
        if (!p->desc->fetch[i].gradient)
            p->unit[p->of[p->desc->fetch[i].tensor->base->id]].fetched = 1;
    gckpti_list_uses(p);
    if (!p->failed)
        gckpti_order_backwards(p);
}

/* ---- the model's gradients ---- */
static int gckpti_gradient_new(gckpti_planner *p, const gckpt_tensor *t, size_t size, int rank)
{
    gckpti_gradient *v = &p->gradient[p->gradients];
    v->id = t->id;
    v->owner = v->sharer = -1;
    v->first = v->last = rank;
    v->storage = v->tail = v->alive = p->gradients;
    v->kind = gckpti_sums_uses(t) ? GCKPT_BUFFER_PARAMETER_GRADIENT : GCKPT_BUFFER_GRADIENT;
    v->size = size;
    return p->gradients++;
}

/* The accumulators of a looped plan: one for each use, all through the step. */
static void gckpti_add_accumulators(gckpti_planner *p)
{
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        for (int k = 0; t->kind == GCKPTI_OP && p->active[i] && k < t->inputs; k++) {
            const gckpt_tensor *q = t->in[k]->base;
            if (!p->active[q->id] || !gckpti_sums_uses(q))
                continue;
            size_t low = gckpti_sums(p, t, k) == GCKPTI_SUM_ON ? 2 : 1;
            int v = gckpti_gradient_new(p, q, low * gckpti_bytes(p, q, 0), 0);
            p->gradient[v].resident = 1;
            p->gradient[v].last = p->ranks;
            p->target[p->unit[p->of[i]].target + k].gradient = v;
        }
    }
    for (int id = 0; id < p->n; id++)
        if (p->active[id] && gckpti_sums_uses(p->tensors[id]) && p->first_use[id] >= 0)
            p->whole[id] = p->target[p->first_use[id]].gradient;
}

/* Where unit u's backward puts the gradient of input i of its op t. A looped sum has its
 * accumulator already. Else the first use makes the gradient (cleared if it is a sum over uses) and
 * a later one adds to it in place; but one of a sum over uses, or of an input that occurs twice, is
 * scratch that is added to it (total). */
static void gckpti_find_target(gckpti_planner *p, gckpti_unit *u, const gckpt_tensor *t, int i)
{
    const gckpt_tensor *q = t->in[i]->base;
    gckpti_target *target = &p->target[u->target + i];
    int sums = gckpti_sums_uses(q), *whole = &p->whole[q->id], so_far = *whole;
    unsigned char bit = (unsigned char)(1u << i);
    if (!p->active[q->id])
        return;
    if (sums && p->looped) {
        u->accumulate |= bit;
        return;
    }
    if (so_far >= 0 && !sums && !gckpti_repeats(t, i)) {
        target->gradient = so_far;
        u->accumulate |= bit;
    } else {
        target->total = so_far;
        target->gradient = gckpti_gradient_new(
            p, q, so_far < 0 ? gckpti_gradient_bytes(p, q) : gckpti_bytes(p, q, 0), u->rank);
        if (sums) {
            u->accumulate |= bit;
            u->zero |= bit;
        }
    }
    if (so_far < 0) {
        *whole = target->gradient;
        p->gradient[*whole].owner = sums ? -1 : q->id;
    }
    p->gradient[*whole].last = u->rank;
}

/* The rank of the next backward after `rank` that adds to the gradient of `id`, an activation, or
 * INT32_MAX; id -1: nobody does. */
static int gckpti_next_write(const gckpti_planner *p, int id, int rank)
{
    for (int k = id < 0 ? -1 : p->first_use[id]; k >= 0; k = p->target[k].next)
        if (p->unit[p->target[k].unit].rank > rank)
            return p->unit[p->target[k].unit].rank;
    return INT32_MAX;
}

/* Gives gradient v, which begins at `rank`, the bytes of w, which ends or is passed on there, when
 * they have the same size. `copy` (passed on): v and all that has these bytes may go on together
 * until one of them is written again; by then the others must be dead. Else all must end there. */
static void gckpti_share_gradient(gckpti_planner *p, int v, int w, int rank, int copy)
{
    gckpti_gradient *all = p->gradient;
    if (v < 0 || w < 0 || all[v].size != all[w].size ||
        gckpti_elements(&p->tensors[all[v].id]->shape) !=
            gckpti_elements(&p->tensors[all[w].id]->shape))
        return;
    gckpti_gradient *root = &all[all[w].storage];
    if (!copy && root->until != rank)
        return;
    while (copy && all[root->alive].last < rank) /* nobody writes to it any more; w lives */
        root->alive = all[root->alive].sharer;
    for (int m = root->alive; copy && m >= 0; m = all[m].sharer)
        if (all[v].last >= gckpti_next_write(p, all[m].owner, rank) ||
            all[m].last >= gckpti_next_write(p, all[v].owner, rank))
            return;
    all[root->tail].sharer = v;
    root->tail = v;
    root->until = all[v].last > root->until ? all[v].last : root->until;
    all[v].storage = all[w].storage;
}

/* Lets the backward of unit u write into the gradient that comes in where its op allows it. */
static void gckpti_share_targets(gckpti_planner *p, const gckpti_unit *u)
{
    const gckpt_tensor *t = p->tensors[u->id];
    int comes_in = p->whole[u->id];
    for (int i = 0; i < t->inputs && !gckpti_sums_uses(t); i++) {
        const gckpt_tensor *q = t->in[i]->base;
        int repeated = 0;
        for (int k = 0; k < t->inputs; k++)
            repeated = repeated || (k != i && t->in[k]->base == q);
        if (gckpti_sums_uses(q) || !p->active[q->id] || u->accumulate & (1u << i) || repeated)
            continue;
        int v = p->target[u->target + i].gradient;
        if (t->op->flags & GCKPT_PASSES(i))
            gckpti_share_gradient(p, v, comes_in, u->rank, 1);
        else if (t->op->flags & GCKPT_INPLACE_GRAD && i == 0)
            gckpti_share_gradient(p, v, comes_in, u->rank, 0);
    }
}

/* What gradients and workspaces of backwards take depends on the backwards alone: by rank, rounded
 * up. gradient_at: at a backward; gradient_between: between it and the one before. */
static void gckpti_model_bytes(gckpti_planner *p)
{
    size_t n = (size_t)p->ranks + 3;
    p->gradient_at = (int64_t *)gckpti_scratch_take(&p->scratch, n, sizeof *p->gradient_at);
    p->gradient_between = (int64_t *)gckpti_scratch_take(&p->scratch, n, sizeof(int64_t));
    for (int v = 0; v < p->gradients && !p->failed; v++) {
        const gckpti_gradient *q = &p->gradient[v];
        int64_t size = gckpti_model_size(p, q->size);
        if (q->storage != v)
            continue;
        p->gradient_at[q->first] += size;
        p->gradient_at[q->until + 1] -= size;
        p->gradient_between[q->resident ? q->first : q->first + 1] += size;
        p->gradient_between[q->until + 1] -= size;
    }
    for (int r = 1; r <= p->ranks && !p->failed; r++) {
        p->gradient_at[r] += p->gradient_at[r - 1];
        p->gradient_between[r] += p->gradient_between[r - 1];
    }
    for (int r = 0; r < p->ranks && !p->failed; r++)
        p->gradient_at[r] += gckpti_model_size(p, p->work_backward[p->unit[p->backward[r]].id]);
}

/* All gradients, by rank: targets, sums, what shares bytes. */
static void gckpti_model_gradients(gckpti_planner *p)
{
    if (p->looped)
        gckpti_add_accumulators(p);
    for (int r = 0; r < p->ranks; r++) {
        gckpti_unit *u = &p->unit[p->backward[r]];
        const gckpt_tensor *t = p->tensors[u->id];
        int whole = p->whole[u->id];
        if (whole >= 0 && !p->gradient[whole].resident)
            p->gradient[whole].last = r;
        for (int i = 0; i < t->inputs; i++)
            gckpti_find_target(p, u, t, i);
    }
    for (int i = 0; i < p->n; i++) /* read by an update, if not as soon as it is complete */
        if (p->tensors[i]->kind == GCKPTI_PARAM && p->active[i] && !p->looped &&
            !p->desc->update_in_backward)
            p->gradient[p->whole[i]].last = p->ranks - 1;
    for (int i = 0; i < p->desc->fetches; i++)
        if (p->desc->fetch[i].gradient)
            p->gradient[p->whole[p->desc->fetch[i].tensor->base->id]].last = p->ranks;
    for (int v = 0; v < p->gradients; v++)
        p->gradient[v].until = p->gradient[v].last;
    for (int r = 0; r < p->ranks; r++)
        gckpti_share_targets(p, &p->unit[p->backward[r]]);
    gckpti_model_bytes(p);
}

/* ---- schedules. A maker writes the body, p->made; gckpti_finish makes a schedule of it. ---- */
/* Merge sort by key, bottom up, stable; `spare` has room for n. */
static void gckpti_sort_keys(gckpti_keyed *v, gckpti_keyed *spare, size_t n)
{
    for (size_t width = 1; width < n; width *= 2)
        for (size_t low = 0; low + width < n; low += 2 * width) {
            size_t middle = low + width, high = middle + width < n ? middle + width : n;
            if (v[middle - 1].key <= v[middle].key)
                continue;
            memcpy(spare, v + low, width * sizeof *v);
            for (size_t i = 0, j = middle, k = low; i < width; k++)
                v[k] = j < high && v[j].key < spare[i].key ? v[j++] : spare[i++];
        }
}

static void gckpti_emit(gckpti_planner *p, int item)
{
    if (p->failed)
        return;
    if (p->made_length > INT32_MAX / 4 ||
        !gckpti_grow(p->memory, &p->made, &p->made_capacity, p->made_length, sizeof *p->made))
        p->failed = 1;
    else
        p->made[p->made_length++] = item;
}

static void gckpti_emit_forwards(gckpti_planner *p, int begin, int end)
{
    for (int i = begin; i < end; i++)
        if (p->of[p->body[i]] >= 0)
            gckpti_emit(p, p->of[p->body[i]]);
}

static void gckpti_make_store_all(gckpti_planner *p)
{
    gckpti_emit_forwards(p, 0, p->body_count);
    for (int r = 0; r < p->body_ranks; r++)
        gckpti_emit(p, ~p->backward[r]);
}

static void gckpti_lower(int *to, int value) { *to = value < *to ? value : *to; }

/* Finds p->late, the body's forwards, each as late as it may come: before the first backward (of
 * rank p->when) that needs it for what it reads, or for its loss; and, where its first reader is
 * far away, just before that. What one loss keeps is gone, then, before the next is computed. Side
 * effects stay where they are, and losses that updates wait for. */
static void gckpti_find_late(gckpti_planner *p)
{
    enum { FAR = 8 };
    size_t n = (size_t)p->units, from = (size_t)p->prologue;
    int *reader = p->left, *place = p->latest, fixed = 0;
    gckpti_keyed *key = (gckpti_keyed *)gckpti_scratch_take(&p->scratch, 2 * n, sizeof *key);
    p->late = (int *)gckpti_scratch_take(&p->scratch, n, sizeof(int));
    p->turn = (int *)gckpti_scratch_take(&p->scratch, n, sizeof(int));
    p->when = (int *)gckpti_scratch_take(&p->scratch, n, sizeof(int));
    for (int u = 0; u < p->units && !p->failed; u++) {
        fixed = fixed || (p->unit[u].effect && !gckpti_is_loss(p->tensors[p->unit[u].id]));
        reader[u] = place[u] = u;
        p->when[u] = INT32_MAX;
    }
    for (int u = p->prologue; u < p->units && !p->failed; u++) {
        const gckpti_unit *q = &p->unit[u];
        for (int k = q->read; k < q->read + q->reads && q->rank >= 0; k++)
            gckpti_lower(&p->when[p->links[k]], q->rank);
        if (q->rank >= 0 && (q->effect || q->reads_aux))
            gckpti_lower(&p->when[u], q->rank);
    }
    for (int u = p->units; u-- > p->prologue && !p->failed;) {
        const gckpti_unit *q = &p->unit[u];
        if (fixed || p->when[u] == INT32_MAX || (q->effect && p->desc->update_in_backward))
            p->when[u] = 0;
        place[u] = fixed || reader[u] - u <= FAR ? u : place[u];
        for (int k = q->in; k < q->in + q->inputs; k++) {
            int v = p->links[k];
            gckpti_lower(&p->when[v], p->when[u]);
            place[v] = place[v] == v ? place[u] : place[v];
            gckpti_lower(&place[v], place[u]);
            reader[v] = u;
        }
        key[u].item = u;
        key[u].key = (uint64_t)p->when[u] << 32 | (uint64_t)place[u];
    }
    if (p->failed)
        return;
    gckpti_sort_keys(key + from, key + n, n - from);
    for (size_t i = from; i < n; i++) {
        p->late[i] = key[i].item;
        p->turn[key[i].item] = (int)i;
    }
}

/* Late forwards, each kept till its last use (group 0), or computed anew with every backward (less
 * than 0: memory-poor), or where backwards enter a group of so many: Chen's uniform segments, for
 * any order of backwards. */
static void gckpti_make_late(gckpti_planner *p, int group)
{
    int next = p->prologue, before = -1;
    for (int r = 0; r < p->body_ranks; r++) {
        int turn = p->turn[p->backward[r]], now = group > 0 ? (turn - p->prologue) / group : r;
        int i = group > 0 ? p->prologue + now * group : p->prologue;
        int end = group > 0 ? i + group : group < 0 ? turn + 1 : 0;
        gckpti_lower(&end, next);
        for (; i < end && now != before; i++)
            gckpti_emit(p, p->late[i]);
        for (; next < p->units && p->when[p->late[next]] <= r; next++)
            gckpti_emit(p, p->late[next]);
        gckpti_emit(p, ~p->backward[r]);
        before = now;
    }
}

/* The segment directly inside `segment` (-1: the whole body) that entry `at` of the body belongs
 * to, or -1; a staged parameter to that of its first reader. group 0: the user's; -n: of n of the
 * user's outermost segments. */
static int gckpti_child(const gckpti_planner *p, int group, int segment, int at)
{
    int child = -1;
    while (p->tensors[p->body[at]]->kind == GCKPTI_PARAM)
        at++;
    for (int s = p->tensors[p->body[at]]->segment; s >= 0 && s != segment;
         s = p->g->segments[s].parent)
        child = s;
    if (group < 0)
        return segment < 0 && child >= 0 ? p->g->segments[child].ordinal / -group : -1;
    return child;
}

/* Chen 2016, nested: a segment's inside is computed again just before its backwards, then its child
 * segments in turn. A segment at the very end of what was just computed is still there. group as
 * for gckpti_child, for order 0; or n > 0: uniform. */
static void gckpti_make_segments(gckpti_planner *p, int group)
{
    if (group > 0) {
        gckpti_make_late(p, group);
        return;
    }
    if (!gckpti_want(&p->scratch, &p->inside, (size_t)p->g->deepest + 2, sizeof *p->inside))
        return;
    gckpti_segment_part *stack = p->inside;
    gckpti_emit_forwards(p, 0, p->body_count);
    int depth = 1, high = p->body_count; /* what was just computed ends at high */
    stack[0].segment = -1;
    stack[0].low = 0;
    stack[0].at = p->body_count - 1;
    while (depth > 0) {
        gckpti_segment_part *f = &stack[depth - 1];
        if (f->at < f->low) {
            depth--;
            continue;
        }
        int child = gckpti_child(p, group, f->segment, f->at), low = f->at, end = f->at + 1;
        if (child < 0) {
            int u = p->of[p->body[f->at--]];
            if (u >= 0 && p->unit[u].rank >= 0)
                gckpti_emit(p, ~u);
            continue;
        }
        while (low > f->low && gckpti_child(p, group, f->segment, low - 1) == child)
            low--;
        f->at = low - 1;
        if (end != high)
            gckpti_emit_forwards(p, low, end);
        high = end;
        stack[depth].segment = child;
        stack[depth].low = low;
        stack[depth++].at = end - 1;
    }
}

/* Whether instruction i of the user's schedule can be one; *rank: of the next backward. */
static gckpt_result gckpti_check_instruction(const gckpti_planner *p, int i, int *rank)
{
    gckpt_instruction in = p->desc->schedule[i];
    const gckpt_tensor *t = in.id < 0 || in.id >= p->n ? NULL : p->tensors[in.id];
    int copies = t && t->kind == GCKPTI_PARAM && p->staged && in.kind == GCKPT_FORWARD;
    if (!copies &&
        (!t || t->kind != GCKPTI_OP || in.kind == GCKPT_UPDATE || (unsigned)in.kind > GCKPT_RELOAD))
        return gckpti_error(p->g, GCKPT_E_ARG,
                            "schedule: instruction %i: %i is not the id of an op's result", i,
                            in.id);
    int u = in.kind == GCKPT_BACKWARD ? p->of[in.id] : -1;
    if (u >= p->prologue && p->unit[u].rank >= 0 && p->unit[u].rank != (*rank)++)
        return gckpti_error(p->g, GCKPT_E_ARG,
                            "schedule: instruction %i: backward of %T is there twice, or comes "
                            "before that of what reads it or of what adds to a gradient before it "
                            "(users in reverse order of creation)",
                            i, t);
    if (in.kind >= GCKPT_OFFLOAD && p->of[in.id] >= 0 && !p->unit[p->of[in.id]].offloads)
        return gckpti_error(p->g, GCKPT_E_ARG,
                            "schedule: instruction %i: %T cannot be offloaded: no "
                            "desc.offload_bytes, updates in the backward, gckpt_recompute, or a "
                            "function of parameters only",
                            i, t);
    return GCKPT_OK;
}

/* Copies the user's schedule. Staged parameters that it does not bring in come before their first
 * reader. */
static gckpt_result gckpti_make_user(gckpti_planner *p)
{
    enum { FORWARD = 1, BACKWARD = 2 };
    unsigned char *seen =
        (unsigned char *)gckpti_scratch_take(&p->scratch, (size_t)p->n, 1); /* by id */
    int rank = 0;
    for (int i = 0; i < p->desc->instructions && seen; i++) {
        gckpt_instruction in = p->desc->schedule[i];
        gckpt_result result = gckpti_check_instruction(p, i, &rank);
        if (result != GCKPT_OK)
            return result;
        const gckpt_tensor *t = p->tensors[in.id];
        for (int k = 0; k < t->inputs && p->staged; k++) {
            int q = t->in[k]->base->id;
            if (p->tensors[q]->kind == GCKPTI_PARAM && p->of[q] >= p->prologue && !seen[q])
                gckpti_emit(p, p->of[q]);
            seen[q] |= p->tensors[q]->kind == GCKPTI_PARAM;
        }
        int u = p->of[in.id];
        if (in.kind == GCKPT_RELOAD && u >= 0)
            gckpti_emit(p, u + p->units);
        if (in.kind >= GCKPT_OFFLOAD) /* offloads follow from reloads */
            continue;
        seen[in.id] |= in.kind == GCKPT_FORWARD ? FORWARD : BACKWARD;
        if (u >= p->prologue && (in.kind == GCKPT_FORWARD || p->unit[u].rank >= 0))
            gckpti_emit(p, in.kind == GCKPT_FORWARD ? u : ~u);
    }
    for (int r = 0; r < p->body_ranks && seen; r++)
        if (seen[p->unit[p->backward[p->body_ranks - 1 - r]].id] != (FORWARD | BACKWARD))
            return gckpti_error(p->g, GCKPT_E_ARG, "schedule: %T needs a forward and a backward",
                                p->tensors[p->unit[p->backward[p->body_ranks - 1 - r]].id]);
    for (int u = p->prologue; u < p->units && seen; u++) /* losses, side effects, what is fetched */
        if ((p->unit[u].effect || p->unit[u].fetched) && !seen[p->unit[u].id])
            return gckpti_error(p->g, GCKPT_E_ARG, "schedule: %T needs a forward",
                                p->tensors[p->unit[u].id]);
    return GCKPT_OK;
}

/* Whether an item of a schedule is a reload; the unit of an item. */
static int gckpti_reloads(const gckpti_planner *p, int item) { return item >= p->units; }
static inline int gckpti_unit_of(const gckpti_planner *p, int item)
{
    return item < 0 ? ~item : gckpti_reloads(p, item) ? item - p->units : item;
}

/* The units whose values an item of a schedule reads. */
static inline const int *gckpti_reads(const gckpti_planner *p, int item, int *count)
{
    const gckpti_unit *u = &p->unit[gckpti_unit_of(p, item)];
    *count = item < 0 ? u->reads : gckpti_reloads(p, item) ? 0 : u->inputs;
    return p->links + (item < 0 ? u->read : u->in);
}

/* Room for a schedule of `length` items; what it held stays. 0: out of memory. */
static int gckpti_schedule_room(gckpti_scratch *scratch, gckpti_schedule *s, int length,
                                int sources)
{
    size_t n = (size_t)length + 2;
    gckpti_want(scratch, &s->item, n, sizeof *s->item);
    gckpti_want(scratch, &s->span, n, sizeof *s->span);
    gckpti_want(scratch, &s->at, n, sizeof *s->at);
    gckpti_want(scratch, &s->source, n * (size_t)sources, sizeof *s->source);
    return !*scratch->failed;
}

/* Appends to s what an item reads and gckpt_recompute has let go. Such values may read one another,
 * so they are walked with a list: first the request, then its stale inputs, ... */
static void gckpti_refresh(gckpti_planner *p, int item, gckpti_schedule *s)
{
    int count = 0, reads;
    if (item < 0 && p->unit[~item].reads_aux && p->stale[~item]) {
        p->stale[~item] = 0;
        p->queue[count++] = ~item;
    }
    for (int i = -1; i < count; i++) {
        const int *links = gckpti_reads(p, i < 0 ? item : p->queue[i], &reads);
        for (int k = 0; k < reads; k++)
            if (p->stale[links[k]]) {
                p->stale[links[k]] = 0;
                p->queue[count++] = links[k];
            }
    }
    for (int i = 1; i < count; i++) /* inputs before users */
        for (int j = i; j > 0 && p->queue[j] < p->queue[j - 1]; j--) {
            int swap = p->queue[j];
            p->queue[j] = p->queue[j - 1];
            p->queue[j - 1] = swap;
        }
    for (int i = 0; i < count; i++)
        s->item[s->length++] = p->queue[i];
}

/* Prologue, body without what pins forbid and with what they demand, epilogue. */
static void gckpti_add_pins(gckpti_planner *p, const int *made, int length, gckpti_schedule *s)
{
    int backward_seen = 0;
    memset(p->stale, 0, (size_t)p->units);
    memset(p->computed, 0, (size_t)p->units);
    s->length = 0;
    for (int u = 0; u < p->prologue; u++)
        s->item[s->length++] = u;
    for (int x = 0; x < length; x++) {
        int i = made[x], u = gckpti_unit_of(p, i);
        if (u < p->prologue || (i == u && p->unit[u].fixed && p->computed[u]))
            continue;
        if (i < 0 && !backward_seen++)
            for (int k = p->prologue; k < p->units; k++)
                p->stale[k] = p->unit[k].recompute;
        if (backward_seen)
            gckpti_refresh(p, i, s);
        if (i >= 0) {
            p->computed[u] = 1;
            p->stale[u] = 0;
        }
        s->item[s->length++] = i;
    }
    for (int r = p->body_ranks; r < p->ranks; r++)
        s->item[s->length++] = ~p->backward[r];
}

/* One pass from the end: drops forwards and reloads that nobody reads, so that a recompute stops by
 * itself at the last value that is needed. Losses and side effects stay in their first forward.
 * Returns the new length. */
static int gckpti_drop(gckpti_planner *p, int *item, int length)
{
    enum { VALUE = GCKPTI_VALUE, AUX = GCKPTI_AUX, FAR = 4 }; /* FAR: a reload brings it back */
    int kept = length;
    memset(p->left, 0, (size_t)p->units * sizeof *p->left);
    for (int x = 0; x < length; x++)
        if (item[x] >= 0 && !gckpti_reloads(p, item[x]))
            p->left[item[x]]++;
    for (int u = 0; u < p->units; u++)
        p->behind[u] = p->unit[u].fetched ? VALUE : 0;
    for (int x = length; x-- > 0;) {
        int i = item[x], count;
        const int *links = gckpti_reads(p, i, &count);
        if (i < 0) {
            p->behind[~i] |= p->unit[~i].reads_aux ? AUX : 0;
        } else if (gckpti_reloads(p, i)) {
            if (!(p->behind[i - p->units] & (VALUE | AUX)))
                continue;
            p->behind[i - p->units] = FAR;
        } else {
            p->left[i]--;
            if (!p->behind[i] && !(p->unit[i].effect && p->left[i] == 0))
                continue;
            p->behind[i] = 0;
        }
        item[--kept] = i;
        for (int k = 0; k < count; k++)
            p->behind[links[k]] |= VALUE;
    }
    memmove(item, item + kept, (size_t)(length - kept) * sizeof *item);
    return length - kept;
}

/* Makes a schedule of the body that was made: with pins, without what nobody reads. */
static int gckpti_finish(gckpti_planner *p, const int *made, int length, gckpti_scratch *scratch,
                         gckpti_schedule *s)
{
    int most = length + p->pinned + p->prologue + p->ranks - p->body_ranks;
    if (p->failed || !gckpti_schedule_room(scratch, s, most, p->sources))
        return 0;
    gckpti_add_pins(p, made, length, s);
    s->length = gckpti_drop(p, s->item, s->length);
    return 1;
}

/* Whether a span may take over the bytes of another that it reads: who read that dies there, and
 * the next micro-batch does not read it again. */
static int gckpti_takes_over(const gckpti_planner *p, const gckpti_span *v, const gckpti_span *of)
{
    return of->value_end == v->start &&
           !(p->looped && of->start < p->prologue && v->start >= p->prologue);
}

/* Finds the spans of a schedule: what begins where, how long it is read. What the prologue leaves
 * is read by every micro-batch, so it lives to the end of the body. Returns -1, or the position of
 * what reads a value that nothing before it makes (the user's schedule may). */
static int gckpti_find_spans(const gckpti_planner *p, gckpti_schedule *s)
{
    int *latest = p->latest, body_end = s->length, taken = 0, reads;
    memset(latest, 0xff, (size_t)p->units * sizeof *latest);
    s->spans = 0;
    for (int x = 0; x < s->length; x++) {
        int i = s->item[x], self = gckpti_unit_of(p, i);
        const gckpti_unit *u = &p->unit[self];
        const int *links = gckpti_reads(p, i, &reads);
        gckpti_span *v = &s->span[s->spans];
        if (gckpti_reloads(p, i) && latest[self] < 0)
            return x;
        v->source = taken;
        for (int k = 0; k < reads; k++) {
            int q = latest[links[k]];
            if (q < 0)
                return x;
            s->span[q].value_end = x;
            if (i >= 0 && u->in_place >> k & 1)
                s->source[taken++] = q;
        }
        s->at[x] = -1;
        if (i < 0) {
            if (u->reads_aux && latest[self] < 0)
                return x;
            if (u->reads_aux)
                s->span[latest[self]].aux_end = x;
            body_end = u->rank == p->body_ranks ? x : body_end;
            continue;
        }
        v->sources = taken - v->source;
        v->unit = self;
        v->start = x;
        v->value_end = v->aux_end = -1;
        v->home = gckpti_reloads(p, i) ? s->span[latest[self]].home : s->spans;
        v->far = 0;
        s->at[x] = latest[self] = s->spans++;
    }
    for (int u = 0; u < p->units; u++)
        if (p->unit[u].fetched)
            s->span[latest[u]].value_end = s->length;
    for (int i = 0; i < s->spans; i++) {
        gckpti_span *v = &s->span[i], *home = &s->span[v->home];
        if (v == home)
            continue;
        home->far |= gckpti_parts(v->value_end, v->aux_end);
        if (home->far & GCKPTI_VALUE && home->value_end < 0)
            home->value_end = home->start;
        if (home->far & GCKPTI_AUX && home->aux_end < 0)
            home->aux_end = home->start;
    }
    for (int i = 0; i < s->spans && p->looped && s->span[i].start < p->prologue; i++) {
        gckpti_span *v = &s->span[i];
        if (v->value_end >= p->prologue && v->value_end < body_end)
            v->value_end = body_end - 1;
        if (v->aux_end >= p->prologue && v->aux_end < body_end)
            v->aux_end = body_end - 1;
    }
    return -1;
}

/* Says what is missing where gckpti_find_spans ended. */
static gckpt_result gckpti_missing(const gckpti_planner *p, int item)
{
    int count, missing = gckpti_unit_of(p, item);
    const gckpt_tensor *t = p->tensors[p->unit[missing].id];
    const int *links = gckpti_reads(p, item, &count);
    while (count-- > 0)
        missing = p->latest[links[count]] < 0 ? links[count] : missing;
    return gckpti_error(p->g, GCKPT_E_ARG, "schedule: %s of %T before any forward of %T",
                        item < 0                  ? "backward"
                        : gckpti_reloads(p, item) ? "reload"
                                                  : "forward",
                        t, p->tensors[p->unit[missing].id]);
}

/* ---- drafts: a schedule's instructions, the buffers they use, and how long these live ---- */
static int gckpti_draft_room(gckpti_planner *p, gckpti_draft *d)
{
    size_t n = (size_t)d->s.length + 1, spans = (size_t)d->s.spans, operands = 0;
    for (int x = 0; x < d->s.length; x++) {
        int i = d->s.item[x], id = p->unit[gckpti_unit_of(p, i)].id;
        size_t inputs = (size_t)p->tensors[id]->inputs;
        operands += i < 0 ? 4 + 3 * inputs : 3 + inputs;
    }
    gckpti_scratch *s = &d->scratch;
    operands += (size_t)(2 * p->targets + p->n) + 2 * spans; /* added up, of updates and offloads */
    d->place = (int *)gckpti_scratch_take(s, n, sizeof(int));
    d->ins = (gckpti_ins *)gckpti_scratch_take(s, n + (size_t)p->n + spans, sizeof *d->ins);
    d->buffers = (gckpt_buffer *)gckpti_scratch_take(s, n + 2 * spans + (size_t)p->gradients,
                                                     sizeof *d->buffers);
    d->operands = (size_t *)gckpti_scratch_take(s, operands, sizeof *d->operands);
    d->value = (int *)gckpti_scratch_take(s, spans, sizeof(int));
    d->aux = (int *)gckpti_scratch_take(s, spans, sizeof(int));
    d->gradient = (int *)gckpti_scratch_take(s, (size_t)p->gradients, sizeof(int));
    d->latest = (int *)gckpti_scratch_take(s, (size_t)p->units, sizeof(int));
    d->far = (size_t *)gckpti_scratch_take(s, 2 * (size_t)p->units, sizeof *d->far);
    d->length = d->buffer_count = d->operand_count = 0;
    return !p->failed;
}

static void gckpti_add_instruction(gckpti_draft *d, gckpt_kind kind, int id)
{
    gckpti_ins *ins = &d->ins[d->length++];
    ins->kind = (unsigned char)kind;
    ins->id = id;
    ins->uses = 1;
}

/* Puts updates behind item x of the schedule if it is the last to touch a parameter, but not before
 * all losses have counted what gradients are divided by, which they have with item `counted` (a
 * schedule may run them late). */
static void gckpti_update_behind(gckpti_planner *p, gckpti_draft *d, int x, int counted, int *last)
{
    int i = d->s.item[x];
    const gckpt_tensor *t = p->tensors[p->unit[i < 0 ? ~i : i].id];
    int all = x == counted;
    for (int k = 0; k < (all ? p->n : t->inputs) && x >= counted; k++) {
        int q = all ? k : t->in[k]->base->id;
        if (p->tensors[q]->kind != GCKPTI_PARAM || !p->active[q] || last[q] < 0 || last[q] > x)
            continue;
        gckpti_add_instruction(d, GCKPT_UPDATE, q);
        last[q] = -1;
    }
}

/* Finds the last item that touches each parameter, by id, and the one by which all losses have
 * counted. */
static int gckpti_last_touch(const gckpti_planner *p, const gckpti_draft *d, int *last)
{
    int counted = 0;
    for (int x = 0; x < d->s.length; x++) {
        int i = d->s.item[x], u = i < 0 ? ~i : i;
        const gckpt_tensor *t = p->tensors[p->unit[u].id];
        if (i >= p->prologue && gckpti_is_loss(t) && !d->latest[u])
            counted = x;
        if (i >= 0)
            d->latest[u] = 1;
        for (int k = 0; k < t->inputs; k++)
            last[t->in[k]->base->id] = x;
    }
    return counted;
}

/* The instructions of a schedule, updates included; which forwards are first; the work. */
static void gckpti_list_instructions(gckpti_planner *p, gckpti_draft *d)
{
    uint64_t once = 0, again = 0, backward = 0;
    int early = !p->inference && p->desc->update_in_backward, counted = 0;
    int *last = early ? (int *)gckpti_scratch_take(&d->scratch, (size_t)p->n, sizeof(int)) : NULL;
    if (early && last)
        counted = gckpti_last_touch(p, d, last);
    memset(d->latest, 0, (size_t)p->units * sizeof(int));
    d->body = (size_t)p->prologue; /* each runs once and is needed: gckpti_drop leaves them all */
    for (int x = 0; x < d->s.length && !p->failed; x++) {
        int i = d->s.item[x], u = gckpti_unit_of(p, i), far = 0;
        const gckpt_cost *cost = &p->cost[p->unit[u].id];
        const gckpti_span *v = i < 0 ? NULL : &d->s.span[d->s.at[x]];
        if (i < 0 && p->unit[u].rank == p->body_ranks)
            d->epilogue = d->length;
        d->place[x] = (int)d->length;
        gckpti_add_instruction(d,
                               i < 0                  ? GCKPT_BACKWARD
                               : gckpti_reloads(p, i) ? GCKPT_RELOAD
                                                      : GCKPT_FORWARD,
                               p->unit[u].id);
        if (i < 0) {
            backward = gckpti_add_work(backward, cost->backward);
        } else if (i != u) {
            far = gckpti_parts(v->value_end, v->aux_end);
        } else {
            uint64_t *sum = d->latest[u] ? &again : &once;
            *sum = gckpti_add_work(*sum, cost->forward);
            d->ins[d->place[x]].first = !d->latest[u];
            d->latest[u] = 1;
            far = v->far;
            if (far)
                gckpti_add_instruction(d, GCKPT_OFFLOAD, p->unit[u].id);
        }
        d->moved = gckpti_add_work(d->moved, gckpti_parts_work(p, u, far));
        if (early)
            gckpti_update_behind(p, d, x, counted, last);
    }
    if (p->body_ranks == p->ranks)
        d->epilogue = d->length;
    for (int id = 0; id < p->n && !p->inference && !early; id++)
        if (p->tensors[id]->kind == GCKPTI_PARAM && p->active[id])
            gckpti_add_instruction(d, GCKPT_UPDATE, id);
    d->place[d->s.length] = (int)d->length;
    d->least_work = gckpti_add_work(backward, once);
    d->work = gckpti_add_work(gckpti_add_work(d->least_work, again), d->moved);
    d->recompute = once ? (double)again / (double)once : 0;
}

/* A new buffer, from instruction `start` to `end`. Returns its number. */
static int gckpti_buffer_new(gckpti_draft *d, size_t size, int start, int end, int id,
                             gckpt_buffer_kind kind)
{
    gckpt_buffer b = { start, end, 0, size, id, kind };
    d->buffers[d->buffer_count] = b;
    return (int)d->buffer_count++;
}

/* Notes that an instruction uses a buffer (-1: none), as its next operand. */
static void gckpti_operand(gckpti_draft *d, int buffer, int x)
{
    if (buffer >= 0 && d->buffers[buffer].end < x)
        d->buffers[buffer].end = x;
    d->operands[d->operand_count++] = buffer < 0 ? GCKPTI_NONE : (size_t)buffer;
}

/* The buffer of a gradient (-1: of none), which begins at instruction x if it is not there yet: its
 * own, or that of the gradient which passes its bytes on. */
static int gckpti_gradient_buffer(const gckpti_planner *p, gckpti_draft *d, int gradient, int x)
{
    if (gradient < 0)
        return -1;
    const gckpti_gradient *v = &p->gradient[gradient];
    if (d->gradient[gradient] < 0)
        d->gradient[gradient] = v->storage != gradient
                                    ? d->gradient[v->storage]
                                    : gckpti_buffer_new(d, v->size, x, x, v->id, v->kind);
    return d->gradient[gradient];
}

/* The buffer of the value of a tensor that an instruction reads; -1: it is not in the arena. */
static int gckpti_value_buffer(const gckpti_planner *p, const gckpti_draft *d, int id)
{
    int u = p->of[id];
    return u < 0 ? -1 : d->value[d->latest[u]];
}

/* Buffers and operands of a forward or a reload: v is the span that it begins. */
static void gckpti_forward_buffers(gckpti_planner *p, gckpti_draft *d, int v, int x)
{
    const gckpti_span *span = &d->s.span[v];
    const gckpt_tensor *t = p->tensors[p->unit[span->unit].id];
    int out = -1, aux = -1, work = -1, reload = span->home != v;
    if (span->value_end >= 0) {
        for (int k = span->source; k < span->source + span->sources && out < 0; k++)
            if (gckpti_takes_over(p, span, &d->s.span[d->s.source[k]]))
                out = d->value[d->s.source[k]];
        if (out < 0)
            out = gckpti_buffer_new(d, gckpti_value_bytes(p, t), x, x, t->id, GCKPT_BUFFER_VALUE);
        int end = d->place[span->value_end];
        d->buffers[out].end = d->buffers[out].end > end ? d->buffers[out].end : end;
    }
    if (span->aux_end >= 0)
        aux =
            gckpti_buffer_new(d, t->aux_bytes, x, d->place[span->aux_end], t->id, GCKPT_BUFFER_AUX);
    if (p->work_forward[t->id] && !reload)
        work = gckpti_buffer_new(d, p->work_forward[t->id], x, x, t->id, GCKPT_BUFFER_WORKSPACE);
    gckpti_operand(d, out, x);
    gckpti_operand(d, aux, x);
    if (!reload)
        gckpti_operand(d, work, x);
    for (int i = 0; i < t->inputs && !reload; i++)
        gckpti_operand(d, gckpti_value_buffer(p, d, t->in[i]->base->id), x);
    d->value[v] = out;
    d->aux[v] = aux;
    d->latest[span->unit] = v;
}

/* Operands that are added up to the gradient of a tensor (none of a loss): the first one, or the
 * others, which only a looped plan's sums over uses have. Returns how many there are in all. */
static int gckpti_sum_operands(const gckpti_planner *p, gckpti_draft *d, int id, int others, int x)
{
    int count = 1, several = p->looped && gckpti_sums_uses(p->tensors[id]);
    int use = others && several ? p->first_use[id] : -1;
    if (!others)
        gckpti_operand(d, gckpti_gradient_buffer(p, d, p->whole[id], x), x);
    for (use = use < 0 ? -1 : p->target[use].next; use >= 0; use = p->target[use].next, count++)
        gckpti_operand(d, gckpti_gradient_buffer(p, d, p->target[use].gradient, x), x);
    return count;
}

/* Buffers and operands of the backward of unit u. */
static void gckpti_backward_buffers(gckpti_planner *p, gckpti_draft *d, int unit, int x)
{
    const gckpti_unit *u = &p->unit[unit];
    const gckpt_tensor *t = p->tensors[u->id];
    unsigned mask = gckpti_needs(p, t);
    int work = -1;
    gckpti_ins *ins = &d->ins[x];
    ins->accumulate = u->accumulate;
    ins->zero = u->zero;
    gckpti_operand(d, mask & GCKPT_OUT ? gckpti_value_buffer(p, d, u->id) : -1, x);
    gckpti_operand(d, u->reads_aux ? d->aux[d->latest[unit]] : -1, x);
    if (p->work_backward[u->id])
        work = gckpti_buffer_new(d, p->work_backward[u->id], x, x, u->id, GCKPT_BUFFER_WORKSPACE);
    gckpti_operand(d, work, x);
    gckpti_sum_operands(p, d, u->id, 0, x);
    for (int i = 0; i < t->inputs; i++) {
        const gckpti_target *target = &p->target[u->target + i];
        int value = mask & GCKPT_IN(i) ? gckpti_value_buffer(p, d, t->in[i]->base->id) : -1;
        gckpti_operand(d, value, x);
        gckpti_operand(d, gckpti_gradient_buffer(p, d, target->gradient, x), x);
        gckpti_operand(d, gckpti_gradient_buffer(p, d, target->total, x), x);
    }
    ins->uses = gckpti_sum_operands(p, d, u->id, 1, x);
}

/* What is offloaded of each unit has a place of its own in slower memory, one behind the other. */
static void gckpti_place_far(const gckpti_planner *p, gckpti_draft *d)
{
    size_t at = 0;
    for (int v = 0; v < d->s.spans; v++)
        for (int part = 0; part < 2; part++)
            d->far[2 * d->s.span[v].unit + part] |= d->s.span[v].far >> part & 1;
    for (int k = 0; k < 2 * p->units; k++) {
        const gckpt_tensor *t = p->tensors[p->unit[k / 2].id];
        int here = d->far[k] != 0;
        at = here ? gckpti_round_up(at, p->alignment) : at;
        d->far[k] = here ? at : GCKPTI_NONE;
        at += !here ? 0 : k % 2 ? t->aux_bytes : gckpti_value_bytes(p, t);
        at = at < PTRDIFF_MAX / 2 ? at : PTRDIFF_MAX / 2;
    }
    d->offloaded = at;
}

/* Buffers and operands of all instructions, in their order. */
static void gckpti_list_buffers(gckpti_planner *p, gckpti_draft *d)
{
    int end = (int)d->length;
    memset(d->gradient, 0xff, (size_t)p->gradients * sizeof(int));
    for (int v = 0; v < p->gradients && p->gradient[v].resident; v++)
        d->buffers[gckpti_gradient_buffer(p, d, v, 0)].end = end;
    for (int y = 0, x = 0; y < end; y++) {
        gckpti_ins *ins = &d->ins[y];
        ins->operands = d->operand_count;
        if (ins->kind == GCKPT_FORWARD || ins->kind == GCKPT_RELOAD) {
            gckpti_forward_buffers(p, d, d->s.at[x++], y);
        } else if (ins->kind == GCKPT_OFFLOAD) {
            int v = d->latest[p->of[ins->id]], far = d->s.span[v].far;
            gckpti_operand(d, far & GCKPTI_VALUE ? d->value[v] : -1, y);
            gckpti_operand(d, far & GCKPTI_AUX ? d->aux[v] : -1, y);
        } else if (ins->kind == GCKPT_BACKWARD) {
            gckpti_backward_buffers(p, d, ~d->s.item[x++], y);
        } else {
            gckpti_sum_operands(p, d, ins->id, 0, y);
            ins->uses = gckpti_sum_operands(p, d, ins->id, 1, y);
        }
    }
    for (int i = 0; i < p->desc->fetches; i++) {
        int id = p->desc->fetch[i].tensor->base->id;
        if (p->desc->fetch[i].gradient)
            d->buffers[d->gradient[p->whole[id]]].end = end;
    }
}

static int gckpti_bytes_kind(gckpt_buffer_kind kind)
{
    return kind == GCKPT_BUFFER_WORKSPACE            ? GCKPT_BYTES_WORKSPACE
           : kind == GCKPT_BUFFER_PARAMETER_GRADIENT ? GCKPT_BYTES_GRADIENTS
                                                     : GCKPT_BYTES_ACTIVATIONS;
}

/* Live bytes at each instruction; the bound: the greatest of these sums, and what it is made of.
 * From a difference array, by kind; exact in double below 2^53. */
static gckpt_result gckpti_sum_live(gckpti_planner *p, gckpti_draft *d)
{
    typedef double kinds[GCKPT_BYTES_KINDS];
    size_t slots = d->length + 2;
    gckpti_scratch_clear(&p->pass);
    kinds *change = (kinds *)gckpti_scratch_take(&p->pass, slots, sizeof *change), live;
    if (!change)
        return GCKPT_E_MEMORY;
    for (size_t i = 0; i < d->buffer_count; i++) {
        const gckpt_buffer *b = &d->buffers[i];
        change[b->start][gckpti_bytes_kind(b->kind)] += (double)b->size;
        change[b->end + 1][gckpti_bytes_kind(b->kind)] -= (double)b->size;
    }
    memset(live, 0, sizeof live);
    memset(d->kind_bytes, 0, sizeof d->kind_bytes);
    d->most = 0;
    for (size_t x = 0; x < slots; x++) {
        double sum = 0, before = d->most;
        for (int k = 0; k < GCKPT_BYTES_KINDS; k++) {
            live[k] += change[x][k];
            sum += live[k];
        }
        d->most = sum > d->most ? sum : d->most;
        if (d->most > (double)GCKPTI_ADDRESSABLE)
            continue;
        if (x < d->length)
            d->ins[x].live = (size_t)sum;
        for (int k = 0; k < GCKPT_BYTES_KINDS && sum > before; k++)
            d->kind_bytes[k] = (size_t)live[k];
    }
    d->bound = d->most > (double)GCKPTI_ADDRESSABLE ? SIZE_MAX : (size_t)d->most;
    if (d->bound < SIZE_MAX)
        return GCKPT_OK;
    return gckpti_error(p->g, GCKPT_E_MEMORY,
                        "plan: the step arena would need %g bytes, more than "
                        "this machine can address; use fewer rows or another mode",
                        d->most);
}

/* Drafts the body of a schedule: p->draft, all but offsets. */
static gckpt_result gckpti_make_draft(gckpti_planner *p, const int *made, int length)
{
    gckpti_draft *d = &p->draft;
    gckpti_scratch scratch = d->scratch;
    memset(d, 0, sizeof *d);
    d->scratch = scratch;
    gckpti_scratch_clear(&d->scratch);
    if (!gckpti_finish(p, made, length, &d->scratch, &d->s))
        return GCKPT_E_MEMORY;
    int bad = gckpti_find_spans(p, &d->s);
    if (bad >= 0)
        return gckpti_missing(p, d->s.item[bad]);
    if (!gckpti_draft_room(p, d))
        return GCKPT_E_MEMORY;
    gckpti_list_instructions(p, d);
    if (p->failed)
        return GCKPT_E_MEMORY;
    gckpti_place_far(p, d);
    gckpti_list_buffers(p, d);
    if (d->offloaded > p->desc->offload_bytes || d->offloaded >= PTRDIFF_MAX / 2)
        return gckpti_error(p->g, GCKPT_E_BUDGET,
                            "schedule: it offloads %z bytes; desc.offload_bytes is %z",
                            d->offloaded, p->desc->offload_bytes);
    return gckpti_sum_live(p, d);
}

/* The draft of one mode. */
static gckpt_result gckpti_draft_mode(gckpti_planner *p, gckpt_mode mode, int group)
{
    gckpt_result result = GCKPT_OK;
    p->made_length = 0;
    switch (mode) {
    case GCKPT_MEMORY_POOR: gckpti_make_late(p, -1); break;
    case GCKPT_SEGMENTS: gckpti_make_segments(p, 0); break;
    case GCKPT_SQRT: gckpti_make_segments(p, group); break;
    case GCKPT_SCHEDULE: result = gckpti_make_user(p); break;
    default: gckpti_make_store_all(p); break;
    }
    if (p->failed)
        return GCKPT_E_MEMORY;
    if (result == GCKPT_OK)
        result = gckpti_make_draft(p, p->made, (int)p->made_length);
    if (mode == GCKPT_STORE_ALL)
        p->most = p->draft.most;
    return result;
}

/* What this machine cannot address is no plan, but one with fewer bytes may be. */
static int gckpti_too_large(const gckpti_planner *p, gckpt_result result)
{
    return result == GCKPT_E_MEMORY && !p->failed;
}

/* ---- place: offsets ----
 * Seen over the instructions, what is placed has a skyline. A level of it (a run of instructions of
 * one height) that is lower than both neighbours gets, of the blocks that live within it, the one
 * whose turn is first; when there is none, it rises to its lower neighbour and joins it: best fit
 * on a skyline (Burke, Kendall and Whitwell 2004; for tensors Sekiyama and others 2018,
 * "Profile-guided memory optimization for deep neural networks"). The first turns go by size x
 * lifetime. So values whose backwards go in reverse, which nest, are stacked without a gap, the
 * last to die at the bottom. While something sticks out above the greatest sum of live bytes, what
 * does moves half way to the front and all is placed again (squeaky wheel: Joslin and Clements
 * 1999); at last from two other orders. What lives all the time lies below and takes no part.
 *
 * What happens in one valley changes no other, so they are filled as they come, always downhill.
 * Near-linear: a block divides a level into at most three and every rise ends one, so there are at
 * most 3 n of each. Where few blocks begin, these are looked at; else the block comes from a tree
 * whose leaves are in Z-order of (start, end) (Morton 1966), so that lifetimes below a node are
 * near each other: only nodes are looked into where one may fit and come before the best found.
 * All that is looked at is counted, never timed, so that a layout is the same on every machine.
 *
 * Invariants: levels cover all instructions; what is placed lies below the levels of its lifetime.
 */
enum { GCKPTI_BY_AREA, GCKPTI_BY_LIFE, GCKPTI_BY_SIZE, GCKPTI_ORDERS };
enum { GCKPTI_FEW = 128 };

typedef struct {
    size_t height;  /* at its first instruction */
    int begin, end; /* its last instruction knows the first, the first knows the last */
} gckpti_level;
typedef struct {
    int start, end; /* of the blocks below it that have no place yet: the latest start, the */
    uint32_t turn;  /* earliest end, the first turn */
} gckpti_branch;
typedef struct {
    gckpt_buffer *buffer;
    size_t offset; /* of this round; the block has the best */
    uint32_t turn;
} gckpti_candidate;
typedef struct {
    size_t n, length, alignment, work; /* work: nodes and levels looked at */
    size_t goal;         /* greatest sum of live sizes, rounded up: the bound or a little more */
    size_t under;        /* bytes of what lives all the time; n, goal and offsets are without it */
    gckpti_level *level; /* by instruction */
    gckpti_branch *tree; /* 1 is the root, n + i belongs to candidate i */
    gckpti_candidate *candidates; /* in Z-order */
    int *first, *begins; /* begins[first[x]..]: candidates that begin with instruction x or later */
    gckpti_keyed *keys;  /* to sort, and as many to spare */
} gckpti_skyline;

static void gckpti_put_level(gckpti_skyline *s, int begin, int end, size_t height)
{
    s->level[begin].end = end;
    s->level[end].begin = begin;
    s->level[begin].height = height;
}

/* What is below node i; 0: the same as before. */
static int gckpti_join_branches(gckpti_skyline *s, size_t i)
{
    const gckpti_branch *a = &s->tree[2 * i], *b = a + 1, before = s->tree[i];
    gckpti_branch *to = &s->tree[i];
    to->start = a->start > b->start ? a->start : b->start;
    to->end = a->end < b->end ? a->end : b->end;
    to->turn = a->turn < b->turn ? a->turn : b->turn;
    s->work++;
    return to->start != before.start || to->end != before.end || to->turn != before.turn;
}

/* The block whose turn is first of those that live within begin..end, taken out of the tree; NULL:
 * there is none. Where few begin, they are looked at one by one. */
static gckpti_candidate *gckpti_take_first(gckpti_skyline *s, int begin, int end)
{
    size_t stack[8 * sizeof(size_t)], count = 0, found = 0; /* the tree's depth and one */
    uint32_t turn = UINT32_MAX;
    int k = s->first[begin], last = s->first[end + 1];
    if (last - k > GCKPTI_FEW) {
        stack[count++] = 1;
        last = k;
    }
    while (count > 0 || k < last) {
        size_t i = count > 0 ? stack[--count] : s->n + (size_t)s->begins[k++];
        const gckpti_branch *b = &s->tree[i];
        s->work++;
        if (b->start < begin || b->end > end || b->turn >= turn)
            continue;
        if (i < s->n) { /* the child with the first turn is looked into first */
            int right = s->tree[2 * i + 1].turn < s->tree[2 * i].turn;
            stack[count++] = 2 * i + !right;
            stack[count++] = 2 * i + (size_t)right;
        } else {
            found = i;
            turn = b->turn;
        }
    }
    if (!found)
        return NULL;
    const gckpti_branch none = { -1, INT32_MAX, UINT32_MAX };
    s->tree[found] = none;
    for (size_t i = found / 2; i > 0 && gckpti_join_branches(s, i);)
        i /= 2;
    return &s->candidates[found - s->n];
}

/* From the level at `begin` to one that is lower than both neighbours: where it begins. Joins those
 * of the same height on the way. *above: the lower of its neighbours, SIZE_MAX when it has none. */
static int gckpti_walk_down(gckpti_skyline *s, int begin, size_t *above)
{
    for (;; s->work++) {
        int end = s->level[begin].end, before = begin > 0 ? s->level[begin - 1].begin : -1;
        int behind = (size_t)end + 1 < s->length ? end + 1 : -1;
        size_t height = s->level[begin].height;
        size_t left = before < 0 ? SIZE_MAX : s->level[before].height;
        size_t right = behind < 0 ? SIZE_MAX : s->level[behind].height;
        *above = left < right ? left : right;
        if (*above > height)
            return begin;
        if (left == height)
            gckpti_put_level(s, before, end, height);
        else if (left > height && right == height)
            gckpti_put_level(s, begin, s->level[behind].end, height);
        begin = left <= height ? before : right < height ? behind : begin;
    }
}

/* Places all by their turns. Returns the arena; SIZE_MAX: more than can be addressed. */
static size_t gckpti_place_all(gckpti_skyline *s)
{
    size_t arena = 0, above;
    int begin = 0;
    for (size_t i = 0; i < s->n; i++) {
        gckpti_branch b = { s->candidates[i].buffer->start, s->candidates[i].buffer->end,
                            s->candidates[i].turn };
        s->tree[s->n + i] = b;
    }
    for (size_t i = s->n; i-- > 1;)
        gckpti_join_branches(s, i);
    gckpti_put_level(s, 0, (int)s->length - 1, 0);
    for (size_t left = s->n; left > 0;) {
        begin = gckpti_walk_down(s, begin, &above);
        int end = s->level[begin].end;
        size_t height = s->level[begin].height;
        gckpti_candidate *next = gckpti_take_first(s, begin, end);
        if (!next) {
            s->level[begin].height = above;
            continue;
        }
        const gckpt_buffer *b = next->buffer;
        size_t top = height + b->size;
        if (top > PTRDIFF_MAX / 2 - s->under)
            return SIZE_MAX;
        next->offset = height;
        arena = top > arena ? top : arena;
        if (b->start > begin)
            gckpti_put_level(s, begin, b->start - 1, height);
        if (b->end < end)
            gckpti_put_level(s, b->end + 1, end, height);
        gckpti_put_level(s, b->start, b->end, gckpti_round_up(top, s->alignment));
        left--;
    }
    return arena;
}

/* Turns in an order, the greatest first; ties: as before, in the first order the last to die. */
static void gckpti_first_turns(gckpti_skyline *s, int order)
{
    for (size_t i = 0; i < s->n; i++) {
        const gckpt_buffer *b = s->candidates[s->keys[i].item].buffer;
        uint64_t life = (uint64_t)(b->end - b->start) + 1, size = b->size;
        uint64_t area = size > UINT64_MAX / life ? UINT64_MAX : size * life;
        s->keys[i].key = UINT64_MAX - (order == GCKPTI_BY_AREA   ? area
                                       : order == GCKPTI_BY_LIFE ? life
                                                                 : size);
    }
    gckpti_sort_keys(s->keys, s->keys + s->n, s->n);
    for (size_t i = 0; i < s->n; i++) /* far apart: moves to the front differ */
        s->candidates[s->keys[i].item].turn =
            (uint32_t)(i + 1) * (uint32_t)(UINT32_MAX / (s->n + 1));
}

/* The bits of both in turn. */
static uint64_t gckpti_interleave(int first, int second)
{
    static const uint64_t mask[5] = { UINT64_C(0x0000ffff0000ffff), UINT64_C(0x00ff00ff00ff00ff),
                                      UINT64_C(0x0f0f0f0f0f0f0f0f), UINT64_C(0x3333333333333333),
                                      UINT64_C(0x5555555555555555) };
    uint64_t a = (uint64_t)first, b = (uint64_t)second;
    for (int i = 0; i < 5; i++) {
        a = (a | a << (16 >> i)) & mask[i];
        b = (b | b << (16 >> i)) & mask[i];
    }
    return a << 1 | b;
}

/* Readies a skyline, its memory from the scratch: candidates, the greatest live sum. What lives all
 * the time gets its offset. 0: out of memory, or more than can be addressed. */
static int gckpti_skyline_new(gckpti_scratch *scratch, gckpti_skyline *s, gckpt_buffer *buffers,
                              size_t n, size_t alignment)
{
    memset(s, 0, sizeof *s);
    s->alignment = alignment;
    s->length = 1;
    for (size_t i = 0; i < n; i++)
        s->length = (size_t)buffers[i].end >= s->length ? (size_t)buffers[i].end + 1 : s->length;
    s->level = (gckpti_level *)gckpti_scratch_take(scratch, s->length, sizeof *s->level);
    s->tree = (gckpti_branch *)gckpti_scratch_take(scratch, 2 * n, sizeof *s->tree);
    s->candidates = (gckpti_candidate *)gckpti_scratch_take(scratch, n, sizeof *s->candidates);
    s->keys = (gckpti_keyed *)gckpti_scratch_take(scratch, 2 * n, sizeof *s->keys);
    s->first = (int *)gckpti_scratch_take(scratch, s->length + 2, sizeof *s->first);
    s->begins = (int *)gckpti_scratch_take(scratch, n, sizeof *s->begins);
    size_t *live = (size_t *)gckpti_scratch_take(scratch, s->length + 1, sizeof *live);
    if (*scratch->failed)
        return 0;
    for (size_t i = 0; i < n; i++) {
        gckpt_buffer *b = &buffers[i];
        size_t size = gckpti_round_up(b->size, alignment);
        if (b->start == 0 && (size_t)b->end + 1 == s->length) {
            b->offset = gckpti_round_up(s->under, alignment);
            s->under = b->offset + b->size;
            if (s->under > PTRDIFF_MAX / 2)
                return 0;
            continue;
        }
        live[b->start] += size;
        live[b->end + 1] -= size; /* wraps, and back when summed */
        s->first[b->start + 2]++;
        s->keys[s->n].item = (int)i;
        s->keys[s->n++].key = gckpti_interleave(b->start, b->end);
    }
    for (size_t x = 0; x < s->length; x++) {
        live[x + 1] += live[x];
        s->first[x + 2] += s->first[x + 1];
        s->goal = live[x] > s->goal ? live[x] : s->goal;
    }
    gckpti_sort_keys(s->keys, s->keys + s->n, s->n);
    for (size_t i = 0; i < s->n; i++) {
        s->candidates[i].buffer = &buffers[s->keys[i].item];
        s->begins[s->first[s->candidates[i].buffer->start + 1]++] = (int)i;
        s->keys[i].item = (int)i;
        s->keys[i].key = s->length - (size_t)s->candidates[i].buffer->end;
    }
    gckpti_sort_keys(s->keys, s->keys + s->n, s->n);
    return 1;
}

/* Gives each buffer an offset, so that no two that live at the same time overlap. Returns the
 * arena; SIZE_MAX: out of memory, or more bytes than can be addressed. */
static size_t gckpti_place(gckpti_scratch *scratch, gckpt_buffer *buffers, size_t n,
                           size_t alignment)
{
    gckpti_skyline s;
    if (!gckpti_skyline_new(scratch, &s, buffers, n, alignment))
        return SIZE_MAX;
    size_t best = s.n > 0 ? SIZE_MAX : 0, base = gckpti_round_up(s.under, alignment);
    for (int order = 0; order < GCKPTI_ORDERS && best > s.goal; order++) {
        size_t most = order == GCKPTI_BY_AREA ? 1 << 22 : 1 << 20; /* nodes; and rounds: */
        int rounds = order == GCKPTI_BY_AREA ? 40 : 200;
        gckpti_first_turns(&s, order);
        s.work = 0;
        while (best > s.goal && s.work < most && rounds-- > 0) {
            size_t arena = gckpti_place_all(&s);
            if (arena == SIZE_MAX)
                break;
            for (size_t i = 0; i < s.n; i++) {
                gckpti_candidate *c = &s.candidates[i];
                if (arena < best)
                    c->buffer->offset = base + c->offset;
                if (c->offset + c->buffer->size > s.goal)
                    c->turn /= 2;
            }
            best = arena < best ? arena : best;
        }
    }
    return best == SIZE_MAX ? SIZE_MAX : s.n > 0 ? base + best : s.under;
}

/* Places the draft's buffers. */
static gckpt_result gckpti_place_draft(gckpti_planner *p)
{
    gckpti_draft *d = &p->draft;
    gckpti_scratch_clear(&p->pass);
    d->arena = gckpti_place(&p->pass, d->buffers, d->buffer_count, p->alignment);
    if (p->failed || d->arena < SIZE_MAX)
        return p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
    return gckpti_error(p->g, GCKPT_E_MEMORY,
                        "plan: found no layout of %z live bytes that this machine can address",
                        d->bound);
}

static gckpt_result gckpti_place_mode(gckpti_planner *p, gckpt_mode mode, int group)
{
    gckpt_result result = gckpti_draft_mode(p, mode, group);
    return result == GCKPT_OK ? gckpti_place_draft(p) : result;
}

/* Makes the draft the best one; what that was may be overwritten. */
static void gckpti_keep_draft(gckpti_planner *p)
{
    gckpti_draft swap = p->best;
    p->best = p->draft;
    p->draft = swap;
}

/* ---- from draft to plan ---- */
/* Copies an array of a plan (NULL: yet to be written) to where it lies in the plan's block, *used
 * bytes in; NULL block: only counts its bytes. */
static void *gckpti_part(void *block, size_t *used, const void *from, size_t n, size_t size)
{
    size_t at = gckpti_round_up(*used, GCKPTI_ALIGN);
    void *to = block ? (unsigned char *)block + at : NULL;
    *used = at + n * size;
    return to && from && n > 0 ? memmove(to, from, n * size) : to;
}

/* Copies a plan and its arrays, wherever these lie, into one block; NULL block: nothing. Returns
 * its bytes. What is one block already may overlap it, further back. */
static size_t gckpti_plan_copy(void *block, const gckpt_plan *from)
{
    gckpt_plan p = *from;
    size_t n = sizeof p;
    p.block = block;
    p.nodes = (gckpti_node *)gckpti_part(block, &n, p.nodes, p.node_count, sizeof *p.nodes);
    p.params =
        (gckpti_plan_param *)gckpti_part(block, &n, p.params, p.param_count, sizeof *p.params);
    p.list = (gckpti_ins *)gckpti_part(block, &n, p.list, p.length, sizeof *p.list);
    p.operands = (size_t *)gckpti_part(block, &n, p.operands, p.operand_count, sizeof *p.operands);
    p.terms = (gckpti_plan_term *)gckpti_part(block, &n, p.terms, p.term_count, sizeof *p.terms);
    p.picks = (gckpti_plan_pick *)gckpti_part(block, &n, p.picks, p.pick_count, sizeof *p.picks);
    p.lives = (gckpt_buffer *)gckpti_part(block, &n, p.lives, p.life_count, sizeof *p.lives);
    p.words = (uint32_t *)gckpti_part(block, &n, p.words, p.word_count, sizeof *p.words);
    p.names = (char *)gckpti_part(block, &n, p.names, p.name_bytes, 1);
    if (block)
        memcpy(block, &p, sizeof p);
    return n;
}

/* An array of a plan that is being written, in its block. */
static void *gckpti_written(gckpt_plan *plan, const void *part)
{
    return (unsigned char *)plan + ((const unsigned char *)part - (const unsigned char *)plan);
}

/* Appends a name to the plan's, or only counts its bytes while the plan has no block. Returns where
 * it begins. */
static size_t gckpti_name_add(gckpt_plan *plan, const char *name)
{
    size_t at = plan->name_bytes, size = strlen(name) + 1;
    if (plan->block)
        memcpy((char *)gckpti_written(plan, plan->names) + at, name, size);
    plan->name_bytes = at + size;
    return at;
}

/* A node without what lies elsewhere in its plan: name, attributes, index. */
static gckpti_node gckpti_node_of(const gckpt_tensor *t)
{
    gckpti_node node;
    memset(&node, 0, sizeof node);
    node.op = t->op;
    node.data = t->data;
    node.attribute_bytes = t->attribute_bytes;
    node.aux_bytes = t->aux_bytes;
    node.shape = t->shape;
    node.base = t->base->id;
    node.kind = t->kind;
    node.inputs = t->inputs;
    for (int k = 0; k < t->inputs; k++)
        node.in[k] = t->in[k]->id;
    node.type = t->type;
    node.batchless = t->batchless;
    return node;
}

static uint64_t gckpti_hash_tensor(uint64_t hash, const gckpt_tensor *t)
{
    const gckpt_store *s = t->graph->store;
    gckpti_node node = gckpti_node_of(t);
    return gckpti_hash_node(hash, &node, t->attributes,
                            t->kind == GCKPTI_PARAM  ? s->params[t->index].p.name
                            : t->kind == GCKPTI_VIEW ? NULL
                                                     : t->name);
}

/* Nodes, parameters, names and attributes of everything; while the plan has no block: how many
 * there are. */
static void gckpti_encode_nodes(const gckpti_planner *p, gckpt_plan *plan)
{
    plan->node_count = (size_t)p->n;
    plan->param_count = plan->inputs = plan->word_count = plan->name_bytes = 0;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        size_t at = gckpti_round_up(plan->word_count, 4); /* 16 bytes, as GCKPTI_ALIGN */
        size_t name = t->name ? gckpti_name_add(plan, t->name) : GCKPTI_NONE;
        int index = t->kind == GCKPTI_OP && p->of[i] < 0 ? -1 : 0;
        plan->word_count = at + (t->attribute_bytes + 3) / 4;
        if (t->kind == GCKPTI_INPUT)
            index = (int)plan->inputs++;
        if (t->kind == GCKPTI_PARAM) {
            const char *stored = p->g->store->params[t->index].p.name; /* t's may have changed */
            gckpti_plan_param q = { gckpti_name_add(plan, stored),
                                    gckpti_elements(&t->shape),
                                    p->active[i],
                                    i,
                                    t->index,
                                    { gckpti_bits(t->init.normal), gckpti_bits(t->init.uniform),
                                      gckpti_bits(t->init.constant) } };
            index = (int)plan->param_count++;
            if (plan->block)
                ((gckpti_plan_param *)gckpti_written(plan, plan->params))[index] = q;
        }
        if (!plan->block)
            continue;
        plan->hash = gckpti_hash_tensor(plan->hash, p->g->tensors[i]);
        gckpti_node *node = (gckpti_node *)gckpti_written(plan, plan->nodes) + i;
        *node = gckpti_node_of(t);
        node->hash = plan->hash;
        node->attributes = at;
        node->name = name;
        node->index = index;
        node->cost = index < 0 && p->built ? p->built[i] : p->cost[i];
        node->rounding = p->rounding[i];
        node->far_value = node->far_aux = GCKPTI_NONE;
        if (t->attribute_bytes)
            memcpy((uint32_t *)gckpti_written(plan, plan->words) + at, t->attributes,
                   t->attribute_bytes);
    }
    for (size_t i = 0; i < plan->node_count && plan->block; i++)
        plan->check = gckpti_hash_planned(plan->check, plan, i);
}

/* The first op of the list that mixes rows, itself or through a view it reads; -1 when none
 * does. */
static int gckpti_find_mixer(const gckpti_planner *p, const gckpti_draft *d)
{
    for (size_t x = 0; x < d->length; x++) {
        const gckpt_tensor *t = p->tensors[d->ins[x].id];
        if (t->mixes)
            return t->id;
        for (int i = 0; i < t->inputs; i++)
            if (t->in[i]->kind == GCKPTI_VIEW && t->in[i]->mixes)
                return t->in[i]->id;
    }
    return -1;
}

static int gckpti_state_floats(const gckpt_plan_desc *d)
{
    return d->optimiser == GCKPT_ADAMW           ? 2
           : d->optimiser == GCKPT_MOMENTUM      ? 1
           : d->optimiser == GCKPT_OWN_OPTIMISER ? d->own_state
                                                 : 0;
}

/* Bytes of the store: parameters, and the state they have or will get. Returns their sum. */
static size_t gckpti_resident(const gckpti_planner *p, size_t *kind_bytes)
{
    const gckpt_store *s = p->g->store;
    size_t parameters = s->elements * sizeof(float), state = gckpt_store_bytes(s) - parameters;
    for (int i = 0; i < p->n; i++) {
        const gckpt_tensor *t = p->tensors[i];
        if (t->kind != GCKPTI_PARAM || !p->active[i])
            continue;
        const gckpti_param *q = &s->params[t->index];
        int more = gckpti_state_floats(p->desc) - gckpti_state_slots(q);
        if (more > 0)
            state += (size_t)q->p.elements * sizeof(float) * (size_t)more;
    }
    kind_bytes[GCKPT_BYTES_PARAMETERS] = parameters;
    kind_bytes[GCKPT_BYTES_STATE] = state;
    return parameters + state;
}

/* In a caller's block a plan lies behind what planning took: moves it to the beginning. */
static gckpt_plan *gckpti_plan_settle(gckpt_plan *plan)
{
    if (!plan || !plan->memory.desc.memory)
        return plan;
    size_t size = gckpti_plan_copy(NULL, plan);
    plan->memory.used = 0;
    void *first = gckpti_resize(&plan->memory, NULL, 0, size); /* lower than the plan, so it fits */
    gckpti_plan_copy(first, plan);
    return (gckpt_plan *)first;
}

/* The numbers of a draft's buffers as a plan has them: by end; then smaller, then younger. NULL
 * without memory. */
static int *gckpti_buffers_by_end(gckpti_planner *p, const gckpti_draft *d)
{
    size_t n = d->buffer_count, ends = d->length + 3;
    int *order = (int *)gckpti_scratch_take(&p->pass, n, sizeof *order);
    int *first = (int *)gckpti_scratch_take(&p->pass, ends, sizeof *first); /* of those that end */
    gckpti_keyed *key = (gckpti_keyed *)gckpti_scratch_take(&p->pass, 2 * n, sizeof *key);
    if (p->failed)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        key[i].item = (int)(n - 1 - i);
        key[i].key = d->buffers[n - 1 - i].size;
        first[d->buffers[i].end + 1]++;
    }
    gckpti_sort_keys(key, key + n, n);
    for (size_t x = 1; x < ends; x++)
        first[x] += first[x - 1];
    for (size_t i = 0; i < n; i++)
        order[first[d->buffers[key[i].item].end]++] = key[i].item;
    return order;
}

/* The numbers of the plan that a draft becomes. */
static void gckpti_encode_head(gckpti_planner *p, const gckpti_draft *d, gckpt_plan *plan)
{
    const gckpt_plan_desc *desc = p->desc;
    memset(plan, 0, sizeof *plan);
    plan->object.magic = GCKPTI_MAGIC;
    plan->format = GCKPT_PLAN_FORMAT;
    plan->contract = GCKPT_CONTRACT;
    plan->hash = plan->check = GCKPTI_FNV_START;
    plan->variant = p->variant;
    plan->optimiser = desc->optimiser;
    plan->state_slots = gckpti_state_floats(desc);
    plan->looped = p->looped;
    plan->update_in_backward = desc->update_in_backward;
    plan->threads = p->threads;
    plan->made_for = gckpti_made_for(desc->backend, p->plain);
    plan->precision = desc->precision;
    plan->rows = p->g->rows > 0 ? p->g->rows : 1; /* no input: one row of nothing */
    plan->batch = desc->batch > 0 ? desc->batch : plan->rows;
    plan->alignment = p->alignment;
    plan->arena = d->arena;
    plan->bound = d->bound;
    plan->recompute = d->recompute;
    plan->work = d->work;
    plan->least_work = p->least_work;
    plan->offload_work = desc->offload_work;
    plan->offloaded = d->offloaded;
    plan->body = (int)d->body;
    plan->epilogue = (int)d->epilogue;
    plan->mixer = gckpti_find_mixer(p, d);
    plan->length = d->length;
    plan->operand_count = d->operand_count;
    plan->term_count = (size_t)p->term_count;
    plan->pick_count = (size_t)desc->fetches;
    plan->life_count = d->buffer_count;
    memcpy(plan->kind_bytes, d->kind_bytes, sizeof plan->kind_bytes);
    gckpti_resident(p, plan->kind_bytes);
}

/* The plan's other arrays: instructions, operands, terms, what is fetched, buffers in an order. */
static void gckpti_encode_arrays(const gckpti_planner *p, const gckpti_draft *d, const int *order,
                                 gckpt_plan *plan)
{
    gckpti_ins *list = (gckpti_ins *)gckpti_written(plan, plan->list);
    size_t *operand = (size_t *)gckpti_written(plan, plan->operands);
    gckpti_plan_term *term = (gckpti_plan_term *)gckpti_written(plan, plan->terms);
    gckpti_plan_pick *pick = (gckpti_plan_pick *)gckpti_written(plan, plan->picks);
    gckpt_buffer *lives = (gckpt_buffer *)gckpti_written(plan, plan->lives);
    gckpti_node *nodes = (gckpti_node *)gckpti_written(plan, plan->nodes);
    for (int u = 0; u < p->units; u++) {
        nodes[p->unit[u].id].far_value = d->far[2 * u];
        nodes[p->unit[u].id].far_aux = d->far[2 * u + 1];
    }
    for (size_t x = 0; x < d->length; x++) {
        list[x] = d->ins[x];
        if (list[x].kind == GCKPT_UPDATE)
            list[x].id = plan->nodes[list[x].id].index;
    }
    for (size_t i = 0; i < d->operand_count; i++)
        operand[i] =
            d->operands[i] == GCKPTI_NONE ? GCKPTI_NONE : d->buffers[d->operands[i]].offset;
    for (size_t i = 0; i < plan->term_count; i++) {
        int id = p->terms[i].loss->id;
        gckpti_plan_term q = { id, gckpti_bits(p->terms[i].weight), p->terms[i].regulariser,
                               p->built ? p->built[id] : p->cost[id] };
        term[i] = q;
    }
    for (size_t i = 0; i < plan->pick_count; i++) {
        const gckpt_pick *q = &p->desc->fetch[i];
        int id = q->tensor->base->id;
        pick[i].id = q->tensor->id;
        pick[i].gradient = q->gradient;
        pick[i].offset =
            d->buffers[q->gradient ? d->gradient[p->whole[id]] : d->value[d->latest[p->of[id]]]]
                .offset;
    }
    for (size_t i = 0; i < d->buffer_count; i++)
        lives[i] = d->buffers[order[i]];
}

/* The plan of a draft that is placed, written where it stays; NULL without memory. */
static gckpt_plan *gckpti_encode(gckpti_planner *p, const gckpti_draft *d, gckpt_mode mode)
{
    gckpt_plan head, *plan = NULL;
    gckpti_scratch_clear(&p->pass);
    const int *order = gckpti_buffers_by_end(p, d);
    gckpti_encode_head(p, d, &head);
    head.mode = mode;
    gckpti_encode_nodes(p, &head);
    if (order)
        plan = (gckpt_plan *)gckpti_new(p->memory, gckpti_plan_copy(NULL, &head), 1);
    p->failed = !plan;
    if (!plan)
        return NULL;
    head.memory = *p->memory;
    gckpti_plan_copy(plan, &head);
    gckpti_encode_nodes(p, plan);
    gckpti_encode_arrays(p, d, order, plan);
    return plan;
}

GCKPT_API void gckpt_plan_free(const gckpt_plan *plan)
{
    if (!plan || !plan->block)
        return;
    gckpti_allocator a = plan->memory;
    gckpti_delete(&a, plan->block, gckpti_plan_copy(NULL, plan), 1);
}

/* The i-th uniform segmentation: groups of 1, 2, ... ops, then of 1, 2, ... of the user's outermost
 * segments. */
static int gckpti_group(const gckpti_planner *p, size_t i)
{
    return i < (size_t)p->body_count ? (int)i + 1 : p->body_count - (int)i - 1;
}

/* Long graphs try one group for each number of segments. */
static int gckpti_group_repeats(const gckpti_planner *p, size_t i)
{
    size_t ops = (size_t)p->body_count, of = i < ops ? ops : (size_t)p->g->outermost;
    size_t group = i < ops ? i + 1 : i - ops + 1;
    return of > 512 && group > 1 && (of + group - 1) / group == (of + group - 2) / (group - 1);
}

/* Drafts the uniform segmentation whose arena is least: p->best. An arena is never below its bound,
 * so they are laid out in the order of their bounds, until the next bound is no better than the
 * least arena. */
static gckpt_result gckpti_find_sqrt(gckpti_planner *p)
{
    size_t least = SIZE_MAX, ops = (size_t)p->body_count, n = ops + (size_t)p->g->outermost;
    size_t *bound = (size_t *)gckpti_scratch_take(&p->scratch, n + 1, sizeof *bound);
    gckpt_result result = bound ? GCKPT_OK : GCKPT_E_MEMORY;
    for (size_t i = 0; i < n && result == GCKPT_OK; i++) {
        bound[i] = SIZE_MAX;
        if (gckpti_group_repeats(p, i))
            continue;
        result = gckpti_draft_mode(p, GCKPT_SQRT, gckpti_group(p, i));
        result = gckpti_too_large(p, result) ? GCKPT_OK : result; /* its bound is SIZE_MAX */
        bound[i] = p->draft.bound;
    }
    while (result == GCKPT_OK) {
        size_t next = 0;
        for (size_t i = 1; i < n; i++)
            if (bound[i] < bound[next])
                next = i;
        if (n == 0 || bound[next] >= least)
            break;
        bound[next] = SIZE_MAX;
        result = gckpti_place_mode(p, GCKPT_SQRT, gckpti_group(p, next));
        result = gckpti_too_large(p, result) ? GCKPT_OK : result;
        if (result == GCKPT_OK && p->draft.arena < least) {
            least = p->draft.arena;
            gckpti_keep_draft(p);
        }
    }
    if (result != GCKPT_OK || least < SIZE_MAX)
        return result;
    return gckpti_place_mode(p, GCKPT_SQRT, 1); /* none can be addressed: says so */
}

/* =================================================================================================
 * >>bound: work and bytes that no schedule can do without, from minimal cuts
 *
 * Take any schedule whose live bytes never exceed M, and an instant: the backward of some rank. Let
 * r(u) be 1 where unit u runs again behind it. Whatever a later backward, a fetch or a later run
 * reads is either in the arena at the instant or made by such a run. So with n(u) = 1 where a
 * backward from this rank on, or a run j with r(j) = 1, reads the value of u, all values with
 * n(u) = 1 and r(u) = 0 lie in the arena, and aux likewise, beside the gradients and the workspace
 * of that backward, which are the same in every schedule; what it reads itself lies there whatever
 * r is. Each u that has surely run before costs its work again. Hence no schedule within M repeats
 * less work than, for any instant,
 *     min sum work(u) r(u)  where  sum out(u) n(u) (1 - r(u)) + aux(u) (1 - r(u)) <= M - gradients.
 * A value or aux that a reload brings back behind the instant takes no bytes then, but the work of
 * its offload and its reload: a third choice beside those of r. What slower memory holds is not
 * limited here, which only lowers the bound.
 * This is a cut (project selection, Picard 1976) with a knapsack. A programme over the units from
 * last to first solves it for all M at once: its states are the sets of values that only repeated
 * forwards would read, few at a time (beyond GCKPTI_OPEN the others are free, which only lowers the
 * bound), and each has a list of cuts, (bytes, work) pairs of which none is better than another
 * (Nemhauser and Ullmann 1969). Such lists may be long. Their lower convex hulls are short, and as
 * pairs are only moved and united, the hull of the last list comes from the hulls of those before:
 * all prices of a byte together (Gallo, Grigoriadis and Tarjan 1989). Lines between its corners are
 * a bound too. So each instant has its hull, and where one decides, and the graph is small enough,
 * all its cuts.
 *
 * Instants that matter are those at which more lies in the arena whatever a schedule does than at
 * any before: behind another they have less to give up and no less room. Where gradients of
 * parameters pile up these are many: some are taken.
 *
 * It holds for all schedules of the model, that is, for its order of backwards and its forms of
 * ops. Of two values that share bytes (in place) only one is read later, so that both never count.
 * It is optimistic, never wrong, about gckpt_recompute, what a loop keeps from the prologue,
 * updates in the backward, and ops that may run for the first time behind the instant (free).
 *
 * Bytes that no schedule can do without: the most of any instant, with the closure that keeps
 * least, of any backward, and of any forward that has its inputs and its result in the arena.
 * ============================================================================================== */
enum {
    GCKPTI_OPEN = 6,
    GCKPTI_INSTANTS = 8,
    GCKPTI_CHEAP = 3,        /* the last: as if copies were free */
    GCKPTI_HULL_CUTS = 1024, /* cuts behind a unit, at the most, on hulls; in all */
    GCKPTI_ALL_CUTS = 16384,
    GCKPTI_COUNTED = 256, /* most units for lists of all cuts; in them late units cost more, */
    GCKPTI_SLANT = 14     /* by up to 2^-14: of nearly equal cuts that is found which keeps them */
};

/* What an instant knows of a unit: is its value read from there on, by that backward itself; its
 * aux; has it run before; only once. */
enum {
    GCKPTI_READ = 1,
    GCKPTI_HELD = 2,
    GCKPTI_READ_AUX = 4,
    GCKPTI_HELD_AUX = 8,
    GCKPTI_RAN = 16,
    GCKPTI_STAYS = 32
};
typedef struct {
    unsigned char opens,
        own; /* bits of values that only repeated forwards read: inputs', its own */
    unsigned char flags;
} gckpti_cut_unit;

/* Bytes kept and work repeated; from: the cut it continues (bit 31: r of the unit between; bit 30:
 * it is offloaded, in part at least). */
typedef struct {
    int64_t bytes;
    uint64_t work;
    uint32_t from;
} gckpti_kept;
typedef struct {
    gckpti_kept *cut; /* by rising bytes and falling work */
    int n;
} gckpti_kept_list;

/* The cuts of an instant, all or those of the hull; and of all before: behind unit i from[i]. */
typedef struct {
    gckpti_kept_list last;
    uint32_t *from;
    size_t *first;
} gckpti_cut_table;

typedef struct {
    int rank;
    int64_t gradients; /* bytes of them and of the workspace, then */
    gckpti_cut_unit *unit;
    gckpti_cut_table hull, all;           /* all: made when asked for; n 0: too many */
    gckpti_cut_table cheap[GCKPTI_CHEAP]; /* no bounds: copies have 1/2, .. of their work */
    int tried, tried_cheap;
} gckpti_instant;

enum { GCKPTI_AGAIN = 1, GCKPTI_FAR };
typedef struct gckpti_bound {
    const gckpti_planner *p;
    gckpti_scratch *scratch;
    gckpti_instant instant[GCKPTI_INSTANTS];
    size_t room;          /* of a pool */
    int instants, hulls;  /* hulls: lists have their hulls' cuts; */
    int cheap;            /* copies count for 2^-cheap of their work */
    int64_t least;        /* bytes that no schedule can do without */
    int64_t spare;        /* by which live sizes, rounded up, may exceed an arena */
    uint64_t work;        /* of a step that computes nothing twice */
    gckpti_kept *pool[3]; /* cuts in front of a unit, behind it, and of a merge */
    unsigned char *again; /* of the cut that was asked for last: GCKPTI_AGAIN, GCKPTI_FAR or 0 */
    int64_t items;        /* cuts looked at */
} gckpti_bound;

/* Marks what an instant knows. */
static void gckpti_instant_marks(const gckpti_planner *p, gckpti_instant *t)
{
    for (int i = 0; i < p->units; i++) {
        const gckpti_unit *u = &p->unit[i];
        int then = u->rank == t->rank, later = u->rank >= t->rank;
        int sooner = u->rank >= 0 && u->rank <= t->rank;
        unsigned char *flags = &t->unit[i].flags;
        *flags |= u->fetched ? GCKPTI_READ : 0;
        *flags |= i < p->prologue || (sooner && u->reads_aux) ? GCKPTI_RAN : 0;
        *flags |= later && u->reads_aux ? GCKPTI_READ_AUX : 0;
        *flags |= then && u->reads_aux ? GCKPTI_HELD_AUX : 0;
        for (int k = u->read; k < u->read + u->reads && u->rank >= 0; k++) {
            flags = &t->unit[p->links[k]].flags;
            *flags |= later ? GCKPTI_READ : 0;
            *flags |= then ? GCKPTI_HELD : 0;
            *flags |= sooner ? GCKPTI_RAN : 0;
        }
    }
    for (int i = p->units; i-- > 0;) {
        const gckpti_unit *u = &p->unit[i];
        unsigned char *flags = &t->unit[i].flags;
        for (int k = u->in; k < u->in + u->inputs && *flags & GCKPTI_RAN; k++)
            t->unit[p->links[k]].flags |= GCKPTI_RAN;
        *flags |= u->fixed && *flags & GCKPTI_RAN ? GCKPTI_STAYS : 0;
    }
}

/* Gives bits to values that only repeated forwards read, from their last reader back to their unit;
 * without one such a value is free. */
static void gckpti_instant_bits(const gckpti_planner *p, gckpti_instant *t)
{
    unsigned taken = 0;
    for (int i = p->units; i-- > 0;) {
        const gckpti_unit *u = &p->unit[i];
        gckpti_cut_unit *c = &t->unit[i];
        for (int k = u->in; k < u->in + u->inputs && !(c->flags & GCKPTI_STAYS); k++) {
            gckpti_cut_unit *q = &t->unit[p->links[k]];
            unsigned bit = ~taken & (taken + 1);
            if (q->flags & GCKPTI_READ || (!q->own && bit >> GCKPTI_OPEN))
                continue;
            q->own = q->own ? q->own : (unsigned char)bit;
            taken |= q->own;
            c->opens |= q->own;
        }
        taken &= ~(unsigned)c->own;
    }
}

/* Whether a * b <= c * d, in 128 bits. */
static int gckpti_product_within(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t high[2], low[2];
    for (int i = 0; i < 2; i++, a = c, b = d) {
        uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
        uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & 0xffffffffu);
        high[i] = a1 * b1 + (middle >> 32) + (other >> 32);
        low[i] = a * b;
    }
    return high[0] < high[1] || (high[0] == high[1] && low[0] <= low[1]);
}

/* Appends a cut with more bytes to a list if it has less work than all there; with hull, corners
 * that are none any more go. */
static int gckpti_cut_append(gckpti_kept *v, int n, const gckpti_kept *q, int hull)
{
    if (n > 0 && q->work >= v[n - 1].work)
        return n;
    while (hull && n > 1 &&
           gckpti_product_within(v[n - 2].work - v[n - 1].work,
                                 (uint64_t)(q->bytes - v[n - 1].bytes), v[n - 1].work - q->work,
                                 (uint64_t)(v[n - 1].bytes - v[n - 2].bytes)))
        n--;
    v[n] = *q;
    return n + 1;
}

/* Adds `more`, continued by a unit with such bytes and work, to a list; its cuts are numbered from
 * `first`. */
static void gckpti_cut_merge(gckpti_bound *b, gckpti_kept_list *to, const gckpti_kept_list *more,
                             int64_t bytes, uint64_t work, uint32_t first)
{
    gckpti_kept *out = b->pool[2], *at = to->cut, *end = at + to->n;
    int n = 0;
    b->items += to->n + more->n;
    for (int k = 0; k < more->n; k++) {
        gckpti_kept q = { more->cut[k].bytes + bytes, more->cut[k].work + work,
                          first + (uint32_t)k };
        while (at < end && (at->bytes < q.bytes || (at->bytes == q.bytes && at->work < q.work)))
            n = gckpti_cut_append(out, n, at++, b->hulls);
        n = gckpti_cut_append(out, n, &q, b->hulls);
    }
    while (at < end)
        n = gckpti_cut_append(out, n, at++, b->hulls);
    to->n = n;
    memcpy(to->cut, out, (size_t)n * sizeof *out);
}

/* The lists behind unit i, by state, from those in front of it. */
static void gckpti_cut_step(gckpti_bound *b, gckpti_instant *t, int i, unsigned open,
                            const gckpti_kept_list *now, gckpti_kept_list *next)
{
    const gckpti_unit *u = &b->p->unit[i];
    const gckpti_cut_unit *c = &t->unit[i];
    unsigned x = 0;
    const int aux_far = c->flags & GCKPTI_READ_AUX && !(c->flags & GCKPTI_HELD_AUX) && u->aux;
    int64_t aux = c->flags & GCKPTI_READ_AUX ? u->aux : 0;
    int64_t held = (c->flags & GCKPTI_HELD ? u->out : 0) + (c->flags & GCKPTI_HELD_AUX ? aux : 0);
    uint64_t work = c->flags & GCKPTI_RAN ? u->cost : 0;
    if (!b->hulls)
        work += (work >> GCKPTI_SLANT) * (uint64_t)i / (uint64_t)b->p->units;
    do {
        int needed = c->flags & GCKPTI_READ || x & c->own;
        int64_t bytes = (needed ? u->out : 0) + aux;
        uint32_t first = (uint32_t)(now[x].cut - now[0].cut);
        gckpti_cut_merge(b, &next[x & ~(unsigned)c->own], &now[x], bytes, 0, first);
        int far = needed && u->out && !(c->flags & GCKPTI_HELD) ? GCKPTI_VALUE : 0;
        far |= aux_far ? GCKPTI_AUX : 0;
        for (int part = far; part > 0 && u->offloads; part = (part - 1) & far)
            gckpti_cut_merge(
                b, &next[x & ~(unsigned)c->own], &now[x], bytes - gckpti_parts_bytes(u, part),
                2 * gckpti_parts_work(b->p, i, part) >> b->cheap, first | UINT32_C(1) << 30);
        if (bytes > 0 && !(c->flags & GCKPTI_STAYS))
            gckpti_cut_merge(b, &next[(x | c->opens) & ~(unsigned)c->own], &now[x], held, work,
                             first | UINT32_C(1) << 31);
        x = (x - open) & open;
    } while (x);
}

/* Readies lists of hulls, or of all cuts. 0: out of memory. */
static int gckpti_bound_lists(gckpti_bound *b, int hulls)
{
    size_t before = b->room, most = hulls ? GCKPTI_HULL_CUTS : GCKPTI_ALL_CUTS;
    most *= b->p->offloads ? 4 : 1;
    size_t units = (size_t)b->p->units; /* small graphs are planned in small blocks */
    b->hulls = hulls;
    b->room = units < 40 ? 64 + (hulls ? 32 : 64) * units : most;
    b->room = b->room < most ? b->room : most;
    for (int k = 0; k < 3 && b->room != before; k++)
        b->pool[k] = (gckpti_kept *)gckpti_scratch_take(b->scratch, b->room, sizeof **b->pool);
    return !b->p->failed;
}

/* Finds all cuts of an instant, or those of the hull. 0: there are too many. */
static int gckpti_find_cuts(gckpti_bound *b, gckpti_instant *t, gckpti_cut_table *table)
{
    gckpti_kept_list lists[2][1 << GCKPTI_OPEN], *now = lists[0], *next = lists[1];
    gckpti_kept *front = b->pool[0], *behind = b->pool[1];
    unsigned open = 0, x = 0;
    size_t used = 0, n = 1, ways = b->p->offloads ? 5 : 2;
    table->first = (size_t *)gckpti_scratch_take(b->scratch, (size_t)b->p->units, sizeof(size_t));
    memset(front, 0, sizeof *front);
    now[0].cut = front;
    now[0].n = 1;
    for (int i = b->p->units; i-- > 0 && !b->p->failed;) {
        const gckpti_cut_unit *c = &t->unit[i];
        const unsigned own = c->own, after = (open | c->opens) & ~own;
        int room[1 << GCKPTI_OPEN] = { 0 };
        if (ways * n > b->room ||
            !gckpti_want(b->scratch, &table->from, used + ways * n, sizeof(uint32_t)))
            return 0;
        do { /* room for as many as there may be */
            room[x & ~own] += ((int)ways - 1) * now[x].n;
            room[(x | c->opens) & ~own] += now[x].n;
            x = (x - open) & open;
        } while (x);
        n = 0;
        do {
            next[x].cut = behind + n;
            next[x].n = 0;
            n += (size_t)room[x];
            x = (x - after) & after;
        } while (x);
        gckpti_cut_step(b, t, i, open, now, next);
        n = 0;
        do { /* side by side, so that they are numbered through */
            memmove(behind + n, next[x].cut, (size_t)next[x].n * sizeof *behind);
            next[x].cut = behind + n;
            n += (size_t)next[x].n;
            x = (x - after) & after;
        } while (x);
        table->first[i] = used;
        for (size_t k = 0; k < n; k++)
            table->from[used++] = behind[k].from;
        gckpti_kept_list *lists_in_front = now;
        gckpti_kept *kept_in_front = front;
        now = next, next = lists_in_front;
        front = behind, behind = kept_in_front;
        open = after;
    }
    table->last.cut = (gckpti_kept *)gckpti_scratch_copy(b->scratch, front, n, sizeof *front);
    table->last.n = b->p->failed ? 0 : (int)n;
    return table->last.n;
}

/* The last cut that keeps no more than `room` bytes; -1: there is none. */
static int gckpti_cut_within(const gckpti_kept_list *v, int64_t room)
{
    int low = -1, high = v->n - 1;
    while (low < high) {
        int middle = high - (high - low) / 2;
        if (v->cut[middle].bytes <= room)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The work of one of an instant's cuts, without what its lateness added. */
static uint64_t gckpti_cut_work(const gckpti_instant *t, int cut)
{
    uint64_t work = t->all.last.cut[cut].work;
    return work - (work >> GCKPTI_SLANT);
}

/* Notes in b->again what a cut computes again. */
static void gckpti_cut_mark(gckpti_bound *b, const gckpti_cut_table *table, int cut)
{
    uint32_t k = (uint32_t)cut;
    for (int i = 0; i < b->p->units; i++) {
        uint32_t from = table->from[table->first[i] + k];
        b->again[i] = from >> 31 ? GCKPTI_AGAIN : from >> 30 ? GCKPTI_FAR : 0;
        k = from & 0x3fffffff;
    }
}

/* The least work on an instant's hull for so many bytes, rounded down a little. */
static uint64_t gckpti_hull_work(const gckpti_kept_list *hull, int64_t room)
{
    int i = gckpti_cut_within(hull, room), shift = 0;
    if (hull->n == 0)
        return 0; /* it had too many corners: nothing is known */
    if (i < 0 || i == hull->n - 1)
        return i < 0 ? UINT64_MAX : hull->cut[i].work;
    const gckpti_kept *a = &hull->cut[i], *z = a + 1;
    uint64_t work = a->work - z->work, bytes = (uint64_t)(room - a->bytes), off;
    while ((work >> shift) + 1 > (UINT64_C(1) << 62) / (bytes + 1))
        shift++;
    off = (((work >> shift) + 1) * bytes / (uint64_t)(z->bytes - a->bytes) + 1) << shift;
    return off < work ? a->work - off : z->work;
}

/* All cuts of an instant; none when there are too many. */
static const gckpti_kept_list *gckpti_all_cuts(gckpti_bound *b, int at)
{
    gckpti_instant *t = &b->instant[at];
    if (!t->tried++ && b->p->units <= GCKPTI_COUNTED && gckpti_bound_lists(b, 0))
        gckpti_find_cuts(b, t, &t->all);
    return &t->all.last;
}

/* The hull of an instant if copies had less work. Where several values would have to be computed
 * again one after the other, a cut, which counts each once, offloads too few. */
static const gckpti_cut_table *gckpti_cheap_cuts(gckpti_bound *b, gckpti_instant *t, int cheap)
{
    if (!(t->tried_cheap >> cheap & 1) && gckpti_bound_lists(b, 1)) {
        b->cheap = cheap < GCKPTI_CHEAP ? cheap : 63;
        gckpti_find_cuts(b, t, &t->cheap[cheap - 1]);
        b->cheap = 0;
    }
    t->tried_cheap |= 1 << cheap;
    return &t->cheap[cheap - 1];
}

/* The work that no schedule within `limit` live bytes can do without repeating, by hulls;
 * UINT64_MAX: there is no such schedule. *at: the instant that decides. */
static uint64_t gckpti_hulls_work(const gckpti_bound *b, int64_t limit, int *at)
{
    uint64_t most = 0;
    *at = 0;
    if (limit < b->least)
        return UINT64_MAX;
    for (int k = 0; k < b->instants; k++) {
        uint64_t work = gckpti_hull_work(&b->instant[k].hull.last, limit - b->instant[k].gradients);
        if (work >= most) {
            most = work;
            *at = k;
        }
    }
    return most;
}

/* The same, and by all cuts of the instant that decides. */
static uint64_t gckpti_bound_work(gckpti_bound *b, int64_t limit, int *at)
{
    uint64_t most = gckpti_hulls_work(b, limit, at), work = 0;
    if (most == UINT64_MAX || b->instants == 0)
        return most;
    int cut = gckpti_cut_within(gckpti_all_cuts(b, *at), limit - b->instant[*at].gradients);
    if (cut >= 0)
        work = gckpti_cut_work(&b->instant[*at], cut);
    return work > most ? work : most;
}

/* Bytes that are live in every schedule at a backward, or at some forward of a unit; read: units
 * whose values somebody reads. */
static int64_t gckpti_bytes_at(const gckpti_planner *p, int item, const unsigned char *read)
{
    const gckpti_unit *u = &p->unit[item < 0 ? ~item : item];
    int count;
    const int *links = gckpti_reads(p, item, &count);
    int64_t bytes = u->reads_aux ? u->aux : 0;
    if (item >= 0 && !u->in_place && read[item] && u->out > bytes)
        bytes = u->out; /* versions may differ: one is read, the other leaves aux */
    bytes += item < 0 ? p->gradient_at[u->rank] : p->gradient_between[0] + u->work;
    while (count-- > 0)
        bytes += p->unit[links[count]].out;
    return bytes;
}

/* Sums over the model, and what is live at its items. */
static void gckpti_bound_sums(gckpti_bound *b)
{
    const gckpti_planner *p = b->p;
    unsigned char *read = (unsigned char *)gckpti_scratch_take(b->scratch, (size_t)p->units, 1);
    size_t sizes = p->alignment; /* all of them: they are multiples of its lowest bit */
    for (int i = 0; i < p->link_count && read; i++)
        read[p->links[i]] = 1;
    for (int i = 0; i < p->gradients; i++)
        sizes |= p->gradient[i].size;
    for (int i = 0; i < p->units && read; i++) {
        const gckpti_unit *u = &p->unit[i];
        const gckpt_tensor *t = p->tensors[u->id];
        read[i] |= u->fetched;
        b->work = gckpti_add_work(b->work, u->cost);
        sizes |= (u->out ? gckpti_value_bytes(p, t) : 0) | (u->reads_aux ? t->aux_bytes : 0) |
                 p->work_forward[u->id];
        for (int k = 0; k < 1 + (u->rank >= 0); k++) {
            int64_t bytes = gckpti_bytes_at(p, k ? ~i : i, read);
            b->least = bytes > b->least ? bytes : b->least;
        }
        if (u->rank >= 0) {
            b->work = gckpti_add_work(b->work, p->cost[u->id].backward);
            sizes |= p->work_backward[u->id];
        }
    }
    b->spare = (int64_t)(p->alignment - (sizes & (~sizes + 1)));
}

/* Readies the bound of a model. */
static void gckpti_bound_open(gckpti_bound *b, const gckpti_planner *p, gckpti_scratch *scratch)
{
    size_t n = (size_t)p->units;
    int64_t most = -1;
    memset(b, 0, sizeof *b);
    b->p = p;
    b->scratch = scratch;
    gckpti_bound_sums(b);
    b->again = (unsigned char *)gckpti_scratch_take(scratch, n, 1);
    int *record = (int *)gckpti_scratch_take(scratch, (size_t)p->body_ranks, sizeof(int));
    int count = 0;
    for (int r = 0; r < p->body_ranks && record; r++) {
        int64_t held = gckpti_bytes_at(p, ~p->backward[r], NULL);
        if (held > most)
            record[count++] = r;
        most = held > most ? held : most;
    }
    b->instants = count < GCKPTI_INSTANTS ? count : GCKPTI_INSTANTS;
    for (int k = 0; k < b->instants; k++) { /* the first ones, then evenly to the last */
        const int first = GCKPTI_INSTANTS / 2 - 1;
        int far = (int)((int64_t)(k - first) * (count - 1 - first) / (GCKPTI_INSTANTS - 1 - first));
        b->instant[k].rank = record[k <= first || count <= GCKPTI_INSTANTS ? k : first + far];
    }
    for (int k = 0; k < b->instants; k++) {
        gckpti_instant *t = &b->instant[k];
        t->gradients = p->gradient_at[t->rank];
        t->unit = (gckpti_cut_unit *)gckpti_scratch_take(scratch, n, sizeof *t->unit);
        if (!t->unit)
            return;
        gckpti_instant_marks(p, t);
        gckpti_instant_bits(p, t);
    }
    gckpti_bound_lists(b, 1);
    for (int k = 0; k < b->instants && !p->failed; k++) {
        gckpti_instant *t = &b->instant[k];
        if (gckpti_find_cuts(b, t, &t->hull) && t->gradients + t->hull.last.cut[0].bytes > b->least)
            b->least = t->gradients + t->hull.last.cut[0].bytes;
    }
}

/* Opens the bounds of a planner's model and of its other variants', if nobody has. */
static void gckpti_open_bounds(gckpti_planner *p)
{
    for (; p; p = p->next) {
        if (p->bound)
            continue;
        p->bound = (gckpti_bound *)gckpti_scratch_take(&p->scratch, 1, sizeof *p->bound);
        if (p->bound)
            gckpti_bound_open(p->bound, p, &p->scratch);
    }
}

/* The work of a micro-batch that no schedule of the model within `arena` bytes can do without;
 * UINT64_MAX: there is none. */
static uint64_t gckpti_prove_work(gckpti_bound *b, size_t arena)
{
    int at;
    int64_t most = arena < PTRDIFF_MAX / 2 ? (int64_t)arena : PTRDIFF_MAX / 2;
    return gckpti_add_work(gckpti_bound_work(b, most + b->spare, &at), b->work);
}

/* The bytes of an arena that no schedule of the model can do without. */
static size_t gckpti_prove_bytes(const gckpti_bound *b)
{
    int64_t least = b->least - b->spare;
    return least < 0 ? 0 : least < PTRDIFF_MAX ? (size_t)least : (size_t)PTRDIFF_MAX;
}

/* =================================================================================================
 * >>optimal: the least work for every budget: cuts, seeds, squeeze, polish
 *
 * The same model and the same schedules as in >>plan. The search needs only a schedule's live bytes
 * and its repeated work (gckpti_evaluate). A ladder of rungs, which depends on the model alone, has
 * byte limits each a little below the one above, from store-all's down to what is proven to be
 * needed. A rung is solved once, when a budget asks for it (gckpti_solve):
 *   bound    what is proven for its limit, and the instant that decides it (>>bound).
 *   cuts     that instant's cut says what to keep through the turn; the rest is computed again just
 *            before its first reader. Where all cuts are known these are tried, else the two of the
 *            hull around the limit, with a part of their ties, what only one of them keeps. What is
 *            within 0.1 % of a step of the bound is certified, and the rung is done.
 *   seeds    else schedules that know no limit, made once: store-all, segments, memory-poor, and
 *            those of a dynamic programme over a chain of stages, for many amounts of memory (after
 *            Beaumont et al. 2019, "Optimal checkpointing for heterogeneous chains": rotor). The
 *            best that fits is polished; a few that do not, and what the rung above has, are
 *            squeezed first. At most GCKPTI_GROUP rungs depend on one another.
 *   squeeze  takes a schedule below a limit: every gap between two uses of a value may be closed by
 *            computing the value again before the second one, together with what that reads and is
 *            gone (its closure). Gaps are scored by work added per excess byte removed; all that
 *            are within twice the best and do not touch one another are closed at once, unread
 *            forwards dropped, the result evaluated exactly.
 *   polish   takes repeated forwards out again, largest saving first, while the limit holds.
 * A budget gets the least work of what counts for it (gckpti_choose): of cuts themselves; and of
 * rungs, from the one above it down, until the next is proven to have no less work than the best so
 * far. Only what may be the best is drafted and placed: what counts is its arena or, where that is
 * larger, the limit of the rung below. So what counts for a budget does for all larger ones: more
 * bytes never cost more work. Up to GCKPTI_LITTLE units all seeds and rungs always count.
 *
 * Invariants: gckpti_evaluate finds at each position the bytes that are live in the draft of the
 * same schedule (sizes rounded up to the alignment). What a rung has is within its limit, and never
 * depends on the budget or on what was asked before. Work limits are counted in list items, never
 * timed, and there are integers only, so that a plan is the same on every machine.
 * ============================================================================================== */
enum {
    GCKPTI_STAGES = 257, /* most stages of the chain programme */
    GCKPTI_ROWS = 40000, /* most rows of its table times stages; else stages are fewer */
    GCKPTI_STEPS = 256,  /* its steps of memory; or up to FINE, when they are exact */
    GCKPTI_FINE = 1024,
    GCKPTI_OPTIONS = 128,   /* most ways to run a stage */
    GCKPTI_TRIALS = 300000, /* items of lists looked at to find them, for all stages */
    GCKPTI_SEEDS = 11000,   /* its seeds are units / SEEDS of their bytes apart, 1/50 to 1/8 */
    GCKPTI_POOR = 400,      /* most units for memory-poor (a quadratic list) */
    GCKPTI_SMALL = 100,     /* most units for which rungs are shaken, and each is a stage, too */
    GCKPTI_LITTLE = 64,     /* most units for which all that was found counts for every budget */
    GCKPTI_EXACT = 32,      /* most units for which every single move is tried */
    GCKPTI_TRIED = 12,      /* most seeds that a rung polishes exactly */
    GCKPTI_SINKS = 16,      /* most seeds that are squeezed a little */
    GCKPTI_SHAKES = 4,      /* this often */
    GCKPTI_GROUP = 4,       /* rungs that depend on one another, at the most */
    GCKPTI_ATTEMPTS = 64,   /* most schedules of a rung that are remembered */
    GCKPTI_CLOSURE = 400    /* most forwards that one gap may cost */
};
/* What one rung may cost, for each unit: list items evaluated; four times as many items and links
 * looked at to find moves. */
#define GCKPTI_WORK_LIMIT INT64_C(700)

/* A schedule that is kept: the best found under a rung's limit, or a seed. */
enum { GCKPTI_NEW, GCKPTI_BEGUN, GCKPTI_DONE };
typedef struct gckpti_slot {
    int *item, length;
    int64_t limit, peak;
    uint64_t extra, bound;     /* bound: proven for the limit */
    size_t arena;              /* 0 until it is laid out; then */
    uint64_t moved;            /* work of copies to slower memory and back */
    int state, dominated;      /* of a rung; of a seed: another is as good in bytes and work */
    struct gckpti_slot *tight; /* of a rung whose arena exceeds its limit: one that may not */
} gckpti_slot;

/* What was found of a cut's schedule; 0: nothing yet. */
typedef struct {
    int64_t peak;
    size_t arena;
} gckpti_known;

/* A gap between two uses of a value, at `from` and `to`, to be closed by computing its unit again
 * before the second, with its closure; or the repeated forward at `to`, to be taken out. `start` is
 * the forward that the value is from; or the one before. */
typedef struct {
    uint64_t key; /* the least is tried first */
    int unit, start, from, to;
    int set, units, cut; /* its closure: s->set[set..]; it would have been larger. Or what goes */
    uint64_t cost;       /* of that */
    int64_t penalty;     /* excess that keeping its inputs adds */
    int64_t value, aux;  /* bytes that go behind from and start, or that must fit */
} gckpti_move;

/* What a pass over a schedule notes of a unit; of its version where the pass is, or -1 for none. */
typedef struct {
    int64_t out, aux;       /* bytes */
    int value_end, aux_end; /* last uses */
    int reload, far;        /* parts that a later reload brings back; that are ever offloaded */
    int start, from;        /* its forward; the use before, or start */
    int runs;               /* forwards before the position */
    int touched;            /* moves chosen so far compute or read it */
    int held;               /* of the prologue, and every micro-batch reads its value */
    int64_t seen;           /* the stamp of the last closure that has seen it */
} gckpti_note;

typedef struct {
    gckpti_planner *p;
    gckpti_scratch scratch;
    /* bytes of gradients and workspaces, by rank: at a backward; between it and the one before */
    int64_t *gradient_at, *gradient_between;
    int64_t grain; /* common divisor of all sizes */
    int effects;   /* there are units whose first forward stays */
    gckpti_schedule now, next;
    gckpti_note *note;   /* by unit */
    int64_t stamp;       /* closures so far */
    int first_backward;  /* its position in the present schedule, when passed */
    int64_t *excess_sum; /* bytes over the limit before a position */
    int *excess_count;   /* positions with excess before it */
    int *last_either; /* by unit: the last of the body that reads its value, in either direction */
    int64_t *enters;  /* bytes of values from before a unit that it or later ones read */
    int *set, sets;   /* of moves: closures; or what goes too */
    int cut;          /* one that was used would be larger, or the search ended early */
    int64_t *room;    /* gckpti_room_..: bytes left below the limit */
    int leaves;
    uint64_t *saving; /* by position of a repeated forward: work that goes with it */
    int shift;        /* gckpti_relief: 2^shift positions above the limit a chunk; */
    int64_t *chunk_left, excess_left; /* excess of a chunk, of all, not taken off yet */
    gckpti_move *move, *sorted;
    uint64_t worst;       /* moves with a greater key are not kept; */
    int wide;             /* is no limit */
    gckpti_keyed *key;    /* to sort with */
    gckpti_keyed *insert; /* key: position << 32 | unit */
    int *chosen;          /* moves */
    int moves;
    gckpti_bound *bound;
    uint64_t enough;             /* so little above the bound is good enough */
    unsigned char *fewer, *more; /* gckpti_keep_ties: what two cuts compute again */
    gckpti_known *known[GCKPTI_INSTANTS];
    gckpti_slot *slot, *seed, winner, trial; /* slot: of rungs, by falling limit */
    int slots, seeds, hunting, whole;
    unsigned deciders;     /* bits of instants that decide for some budget */
    int late;              /* some forwards come late: a cut may then repeat less than it says */
    size_t bytes;          /* the least budget for which the winner counts */
    int64_t items, looked; /* counted so far, for gckpti_spent; */
    int64_t attempt;       /* and when one attempt of several began, or -1 */
    uint64_t tried[GCKPTI_ATTEMPTS]; /* hashes of what was improved for the present rung, */
    int attempts;                    /* so that nothing is twice */
    int barred;            /* a unit whose gaps stay open; -1: none */
} gckpti_search;

static int gckpti_search_room(gckpti_search *s, gckpti_schedule *t, int length)
{
    size_t n = (size_t)length + 1;
    return gckpti_want(&s->scratch, &t->item, n, sizeof(int)) &&
           gckpti_want(&s->scratch, &t->value_end, n, sizeof(int)) &&
           gckpti_want(&s->scratch, &t->aux_end, n, sizeof(int)) &&
           gckpti_want(&s->scratch, &t->live, n, sizeof *t->live);
}

/* ---- what gradients take, and what a pass notes of units ---- */
static int64_t gckpti_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t c = a % b;
        a = b;
        b = c;
    }
    return a;
}

/* Readies the search for a model: what gradients take, the bytes of units, what all sizes are
 * multiples of, and which of the prologue's values every micro-batch reads. */
static void gckpti_search_sizes(gckpti_search *s)
{
    const gckpti_planner *p = s->p;
    s->gradient_at = p->gradient_at;
    s->gradient_between = p->gradient_between;
    for (int r = 0; r <= p->ranks; r++)
        s->grain =
            gckpti_divisor(gckpti_divisor(s->grain, p->gradient_at[r]), p->gradient_between[r]);
    s->note = (gckpti_note *)gckpti_scratch_take(&s->scratch, (size_t)p->units, sizeof *s->note);
    for (int u = 0; u < p->units && !p->failed; u++) {
        const gckpti_unit *q = &p->unit[u];
        s->note[u].out = q->out;
        s->note[u].aux = q->aux;
        s->grain = gckpti_divisor(gckpti_divisor(s->grain, q->out), q->aux);
        s->grain = gckpti_divisor(s->grain, q->work);
        s->effects = s->effects || q->effect;
        for (int k = q->in; k < q->in + q->inputs && p->looped && u >= p->prologue; k++)
            s->note[p->links[k]].held = p->links[k] < p->prologue;
        for (int k = q->read; k < q->read + q->reads && p->looped && u >= p->prologue; k++)
            s->note[p->links[k]].held = p->links[k] < p->prologue;
    }
}

/* ---- evaluation ---- */
/* Forgets what the pass before noted; from the end of a schedule, `length` is where what is fetched
 * is read. Returns their bytes. */
static int64_t gckpti_begin_pass(gckpti_search *s, int length)
{
    int64_t fetched = 0;
    for (int u = 0; u < s->p->units; u++) {
        gckpti_note *v = &s->note[u];
        int read = length >= 0 && s->p->unit[u].fetched;
        v->value_end = read ? length : -1;
        v->aux_end = v->start = v->from = -1;
        v->runs = v->reload = v->far = 0;
        fetched += read ? v->out : 0;
    }
    return fetched;
}

/* Moves the items that an evaluation kept to the front. */
static void gckpti_close_up(gckpti_schedule *t, int dropped)
{
    t->length -= dropped;
    for (int x = 0; x < t->length && dropped > 0; x++) {
        int value_end = t->value_end[x + dropped], aux_end = t->aux_end[x + dropped];
        t->item[x] = t->item[x + dropped];
        t->live[x] = t->live[x + dropped];
        t->value_end[x] = value_end < 0 ? -1 : value_end - dropped;
        t->aux_end[x] = aux_end < 0 ? -1 : aux_end - dropped;
    }
}

/* What the prologue leaves is read by every micro-batch, so it lives to the end of the body, where
 * the pass is now. Returns the bytes. */
static int64_t gckpti_hold(gckpti_search *s, int end)
{
    int64_t held = 0;
    for (int u = 0; u < s->p->prologue; u++)
        if (s->note[u].held && s->note[u].value_end < 0) {
            s->note[u].value_end = end;
            held += s->note[u].out;
        }
    return held;
}

/* What is offloaded behind the forward of unit u at position x, for the reloads behind: its work;
 * it is live then. Returns the bytes that nobody else reads. */
static int64_t gckpti_evaluate_offload(gckpti_search *s, gckpti_schedule *t, int u, int x)
{
    gckpti_note *v = &s->note[u];
    int alone = v->reload & ~gckpti_parts(v->value_end, v->aux_end);
    t->extra = gckpti_add_work(t->extra, gckpti_parts_work(s->p, u, v->reload));
    t->far += gckpti_parts_bytes(&s->p->unit[u], v->reload & ~v->far);
    v->far |= v->reload;
    v->value_end = alone & GCKPTI_VALUE ? x : v->value_end;
    v->aux_end = alone & GCKPTI_AUX ? x : v->aux_end;
    v->reload = 0;
    return gckpti_parts_bytes(&s->p->unit[u], alone);
}

/* Drops what nobody reads, as gckpti_drop does, and finds the live bytes at each position, their
 * peak and the work: what gckpti_sum_live finds for the draft, but that sizes are rounded up. One
 * pass from the end, which comes to a value's last use first. */
static void gckpti_evaluate(gckpti_search *s, gckpti_schedule *t)
{
    const gckpti_planner *p = s->p;
    int kept = t->length, rank = p->ranks, hold = p->looped ? p->body_ranks : -1, count;
    int64_t live = gckpti_begin_pass(s, kept);
    t->peak = t->far = 0;
    t->extra = 0;
    if (!gckpti_search_room(s, t, kept))
        return;
    s->items += kept;
    for (int x = 0; x < t->length && s->effects; x++)
        if (t->item[x] >= 0 && !gckpti_reloads(p, t->item[x]))
            s->note[t->item[x]].runs++;
    for (int x = t->length; x-- > 0;) {
        int i = t->item[x], in_place = 0, self = gckpti_unit_of(p, i), runs = i == self;
        const gckpti_unit *u = &p->unit[self];
        gckpti_note *v = &s->note[self];
        if (rank == hold) {
            live += gckpti_hold(s, kept - 1);
            hold = -1;
        }
        v->runs -= runs;
        if (i >= 0 && v->value_end < 0 && v->aux_end < 0 &&
            !(runs && (v->reload || (u->effect && v->runs == 0))))
            continue;
        kept--;
        live += runs && v->reload ? gckpti_evaluate_offload(s, t, self, kept) : 0;
        const int *links = gckpti_reads(p, i, &count);
        for (int k = 0; k < count; k++) {
            gckpti_note *q = &s->note[links[k]];
            if (q->value_end >= 0)
                continue;
            q->value_end = kept;
            live += q->out;
            in_place |= u->in_place >> k; /* who read that dies here */
        }
        if (i < 0 && u->reads_aux && v->aux_end < 0) {
            v->aux_end = kept;
            live += v->aux;
        }
        int64_t sum = live + (i < 0 ? s->gradient_at[--rank]
                                    : s->gradient_between[rank] + (runs ? u->work : 0));
        t->item[kept] = i;
        if (i >= 0) {
            int64_t out = v->value_end < 0 ? 0 : v->out;
            sum -= in_place & 1 ? out : 0;
            live -= out + (v->aux_end < 0 ? 0 : v->aux);
            t->value_end[kept] = v->value_end;
            t->aux_end[kept] = v->aux_end;
            if (runs) {
                t->extra = v->start < 0 ? t->extra : gckpti_add_work(t->extra, u->cost);
                v->start = kept;
            } else {
                int parts = gckpti_parts(v->value_end, v->aux_end);
                t->extra = gckpti_add_work(t->extra, gckpti_parts_work(p, self, parts));
                v->reload |= parts;
            }
            v->value_end = v->aux_end = -1;
        }
        t->live[kept] = sum;
        t->peak = sum > t->peak ? sum : t->peak;
    }
    gckpti_close_up(t, kept);
    t->peak = t->far > p->far ? INT64_MAX : t->peak;
}

/* Bytes by which a schedule exceeds the limit, summed over its positions. */
static int64_t gckpti_excess(const gckpti_schedule *t, int64_t limit)
{
    int64_t sum = t->peak == INT64_MAX ? INT64_MAX / 2 : 0;
    if (t->peak <= limit)
        return 0;
    for (int x = 0; x < t->length; x++)
        sum += t->live[x] > limit ? t->live[x] - limit : 0;
    return sum;
}

/* ---- passes from the front of the present schedule: s->note has the versions where it is ---- */
/* Passes position x. */
static void gckpti_step(gckpti_search *s, int x)
{
    const gckpti_schedule *t = &s->now;
    int i = t->item[x], count;
    const int *links = gckpti_reads(s->p, i, &count);
    for (int k = 0; k < count; k++)
        s->note[links[k]].from = x;
    s->looked += count + 1;
    if (i < 0) {
        s->note[~i].from = s->p->unit[~i].reads_aux ? x : s->note[~i].from;
        s->first_backward = s->first_backward < 0 ? x : s->first_backward;
        return;
    }
    gckpti_note *v = &s->note[gckpti_unit_of(s->p, i)];
    v->value_end = t->value_end[x];
    v->aux_end = t->aux_end[x];
    v->start = v->from = x;
    v->runs += !gckpti_reloads(s->p, i);
}

/* Sums the excess over a limit, and begins a pass. */
static int gckpti_index(gckpti_search *s, int64_t limit)
{
    const gckpti_schedule *t = &s->now;
    size_t n = (size_t)t->length + 1;
    if (!gckpti_want(&s->scratch, &s->excess_sum, n, sizeof *s->excess_sum) ||
        !gckpti_want(&s->scratch, &s->excess_count, n, sizeof(int)))
        return 0;
    s->excess_sum[0] = 0;
    s->excess_count[0] = 0;
    for (int x = 0; x < t->length; x++) {
        int64_t excess = t->live[x] > limit ? t->live[x] - limit : 0;
        s->excess_sum[x + 1] = s->excess_sum[x] + excess;
        s->excess_count[x + 1] = s->excess_count[x] + (excess > 0);
    }
    s->moves = s->sets = 0;
    s->worst = UINT64_MAX;
    s->first_backward = -1;
    gckpti_begin_pass(s, -1);
    return 1;
}

/* Whether gckpt_recompute asks for a unit's value anew: the last is from before the backwards. */
static int gckpti_is_stale(const gckpti_search *s, int unit)
{
    return s->p->unit[unit].recompute && s->first_backward >= 0 &&
           s->note[unit].start < s->first_backward;
}

/* ---- moves ---- */
#define GCKPTI_TWICE (UINT64_C(1) << 32)
/* cost / gain as an integer that orders like a floating-point number: 6 bits of exponent and more
 * above 32 bits of mantissa, so that adding GCKPTI_TWICE doubles it. */
static uint64_t gckpti_score(uint64_t cost, int64_t gain)
{
    uint64_t a = cost + 1, b = (uint64_t)gain, exponent = 128 - 33;
    for (int k = 32; k > 0; k /= 2) { /* to 2^62 .. 2^63 */
        if (a >> (63 - k) == 0) {
            a <<= k;
            exponent -= (uint64_t)k;
        }
        if (b >> (63 - k) == 0) {
            b <<= k;
            exponent += (uint64_t)k;
        }
    }
    a /= b >> 33; /* 2^32 .. 2^34 */
    while (a >= UINT64_C(1) << 33) {
        a >>= 1;
        exponent++;
    }
    return exponent * GCKPTI_TWICE + (a - GCKPTI_TWICE);
}

/* Whether the present schedule may offload some bytes of a unit more. */
static int gckpti_may_offload(const gckpti_search *s, int unit, int64_t bytes)
{
    return s->p->unit[unit].offloads && s->now.far <= s->p->far - bytes;
}

/* Sorts s->move by key; of those with the same, what is later in the schedule comes first. */
static void gckpti_sort_moves(gckpti_search *s)
{
    size_t n = (size_t)s->moves;
    if (!gckpti_want(&s->scratch, &s->key, 2 * n, sizeof *s->key) ||
        !gckpti_want(&s->scratch, &s->sorted, n, sizeof *s->sorted))
        return;
    for (size_t i = 0; i < n; i++) {
        s->key[i].key = s->move[n - 1 - i].key;
        s->key[i].item = (int)(n - 1 - i);
    }
    gckpti_sort_keys(s->key, s->key + n, n);
    for (size_t i = 0; i < n; i++)
        s->sorted[i] = s->move[s->key[i].item];
    gckpti_move *swap = s->move;
    s->move = s->sorted;
    s->sorted = swap;
}

/* The items that give m's unit anew at the position of the pass, into s->set behind `first`;
 * m->cost. An input that is not live there is computed as well (or reloaded, if that is cheaper) or
 * kept until then. policy 0: kept where that exceeds nothing; 1: always computed; 2: always kept;
 * 3: the unit is reloaded. m->penalty: excess that keeping adds. Returns 1 where one is kept, 2
 * where one is computed, 0: policies below 3 do not differ. */
static int gckpti_closure(gckpti_search *s, gckpti_move *m, int first, int policy)
{
    int choice = 0, h = first, end = first, x = m->to;
    m->cost = 0;
    m->penalty = 0;
    if (!gckpti_want(&s->scratch, &s->set, (size_t)first + GCKPTI_CLOSURE + GCKPT_MAX_INPUTS,
                     sizeof(int)))
        return 0;
    s->note[m->unit].seen = ++s->stamp;
    s->set[end++] = policy == 3 ? m->unit + s->p->units : m->unit;
    if (policy == 3)
        m->cost = 2 * gckpti_copy_work(s->p->desc->offload_work, m->value + m->aux);
    for (h += policy == 3; h < end && end - first < GCKPTI_CLOSURE; h++) {
        if (gckpti_reloads(s->p, s->set[h])) {
            m->cost += 2 * gckpti_parts_work(s->p, s->set[h] - s->p->units, GCKPTI_VALUE);
            continue;
        }
        const gckpti_unit *u = &s->p->unit[s->set[h]];
        m->cost += u->cost;
        s->looked += u->inputs;
        for (int k = u->in; k < u->in + u->inputs; k++) {
            int q = s->p->links[k];
            gckpti_note *v = &s->note[q];
            if (v->value_end >= x || v->seen == s->stamp ||
                (s->p->unit[q].fixed && !gckpti_may_offload(s, q, v->out)))
                continue;
            int reload = gckpti_may_offload(s, q, v->out) &&
                         (s->p->unit[q].fixed ||
                          2 * gckpti_parts_work(s->p, q, GCKPTI_VALUE) < s->p->unit[q].cost);
            int from = (v->value_end > v->start ? v->value_end : v->start) + 1;
            int64_t excess = from < x ? s->excess_count[x] - s->excess_count[from] : 0;
            int stale = gckpti_is_stale(s, q);
            int kept = !stale && ((excess == 0 && policy != 1) || policy == 2);
            v->seen = s->stamp;
            choice |= kept ? 1 : stale ? 0 : 2;
            if (kept)
                m->penalty += excess * v->out;
            else
                s->set[end++] = reload ? q + s->p->units : q;
        }
    }
    m->set = first;
    m->units = end - first;
    m->cut = h < end;
    return choice;
}

/* Excess over positions low to x - 1 that `size` bytes less remove. */
static int64_t gckpti_gain(const gckpti_search *s, int low, int x, int64_t size)
{
    if (low >= x)
        return 0;
    int64_t sum = s->excess_sum[x] - s->excess_sum[low];
    int64_t most = size * (s->excess_count[x] - s->excess_count[low]);
    return sum < most ? sum : most;
}

static void gckpti_add_move(gckpti_search *s, const gckpti_move *m)
{
    if (gckpti_want(&s->scratch, &s->move, (size_t)s->moves + 1, sizeof *m))
        s->move[s->moves++] = *m;
}

/* The gap of `unit` before position x, where the pass is, if closing it lowers the excess: with its
 * best policy, unless that is far worse than the best move so far; all: with each. */
static void gckpti_try_gap(gckpti_search *s, int unit, int x, int all)
{
    const gckpti_note *v = &s->note[unit];
    gckpti_move best, m;
    int fixed = s->p->unit[unit].fixed, reload;
    if ((fixed && !s->p->unit[unit].offloads) || unit == s->barred)
        return;
    memset(&m, 0, sizeof m);
    m.unit = unit;
    m.start = v->start;
    m.from = v->from;
    m.to = x;
    m.value = v->value_end >= x ? v->out : 0;
    m.aux = v->aux_end >= x ? v->aux : 0;
    int64_t gain = gckpti_gain(s, v->from + 1, x, m.value) + gckpti_gain(s, v->start + 1, x, m.aux);
    reload = gckpti_may_offload(s, unit, m.value + m.aux);
    if (gain <= 0 || (!reload && gckpti_score(s->p->unit[unit].cost, gain) > s->worst))
        return;
    best.key = UINT64_MAX;
    /* of each alone 1 costs no less than 0; and 2 is the same as 0 where that computes nothing */
    for (int policy = fixed ? 3 : 0, choice = 3; policy < 4 && !s->p->failed; policy++) {
        if (policy == 3 ? !reload : !(choice & (all ? 3 : 2)) || (policy == 1 && !all))
            continue;
        choice = gckpti_closure(s, &m, s->sets, policy);
        m.key = gain > m.penalty ? gckpti_score(m.cost, gain - m.penalty) : UINT64_MAX;
        if (m.key >= best.key && !(all && m.key < UINT64_MAX))
            continue;
        best = m;
        s->sets += m.units;
        if (all)
            gckpti_add_move(s, &m);
    }
    if (all || best.key > s->worst)
        return;
    if (!s->wide && best.key < s->worst - GCKPTI_TWICE)
        s->worst = best.key + GCKPTI_TWICE;
    gckpti_add_move(s, &best);
}

/* The gaps of the present schedule that would lower the excess, best first: those within twice the
 * best; wide: all of them. */
static void gckpti_find_gaps(gckpti_search *s, int64_t limit, int wide, int all)
{
    int last = 0, kept = 0;
    s->wide = wide;
    if (!gckpti_index(s, limit))
        return;
    for (int x = 0; x < s->now.length; x++)
        last = s->now.live[x] > limit ? x : last;
    for (int x = 0; x < s->now.length && !s->p->failed; x++) {
        int i = s->now.item[x], self = i < 0 && s->p->unit[~i].reads_aux ? ~i : -1, count;
        const int *links = gckpti_reads(s->p, i, &count);
        for (int k = 0; k < count && s->excess_count[x] > 0; k++) {
            const gckpti_note *v = &s->note[links[k]];
            self = links[k] == self ? -1 : self;
            if (v->from < last || (v->start < last && v->aux_end >= x))
                gckpti_try_gap(s, links[k], x, all);
        }
        if (self >= 0 && s->excess_count[x] > 0)
            gckpti_try_gap(s, self, x, all);
        gckpti_step(s, x);
    }
    for (int m = 0; m < s->moves; m++)
        if (s->move[m].key <= s->worst)
            s->move[kept++] = s->move[m];
    s->moves = kept;
    gckpti_sort_moves(s);
}

/* s->next = s->now with the forwards of n moves, without what nobody reads; evaluated. */
static void gckpti_try_inserts(gckpti_search *s, const int *move, int n)
{
    const gckpti_schedule *t = &s->now;
    size_t most = 0, k = 0, length = 0;
    for (int i = 0; i < n; i++)
        most += (size_t)s->move[move[i]].units;
    if (!gckpti_want(&s->scratch, &s->insert, 2 * most, sizeof *s->insert) ||
        !gckpti_search_room(s, &s->next, t->length + (int)most))
        return;
    for (int i = 0; i < n; i++) {
        const gckpti_move *m = &s->move[move[i]];
        for (int j = m->set; j < m->set + m->units; j++, k++) {
            s->insert[k].key = (uint64_t)m->to << 32 | (uint64_t)gckpti_unit_of(s->p, s->set[j]);
            s->insert[k].item = s->set[j];
        }
        s->cut = s->cut || m->cut;
    }
    gckpti_sort_keys(s->insert, s->insert + most, most);
    int *out = s->next.item, x = 0;
    for (k = 0; k < most; k++) {
        int to = (int)(s->insert[k].key >> 32);
        memcpy(out + length, t->item + x, (size_t)(to - x) * sizeof *out);
        length += (size_t)(to - x);
        x = to;
        if (k == 0 || s->insert[k].key != s->insert[k - 1].key)
            out[length++] = s->insert[k].item;
    }
    memcpy(out + length, t->item + x, (size_t)(t->length - x) * sizeof *out);
    s->next.length = (int)length + t->length - x;
    gckpti_evaluate(s, &s->next);
}

static void gckpti_accept(gckpti_search *s)
{
    gckpti_schedule swap = s->now;
    s->now = s->next;
    s->next = swap;
}

/* Excess that `size` bytes less take off, of what moves have left over, at those positions above
 * the limit that are number a to b - 1; in chunks of them, one each up to some hundreds. */
static int64_t gckpti_relief(gckpti_search *s, int a, int b, int64_t size, int take)
{
    int64_t gain = 0;
    for (int end; a < b; a = end) {
        int c = a >> s->shift;
        int64_t sum = s->chunk_left[c], most;
        end = (c + 1) << s->shift;
        end = end < b ? end : b;
        most = size * (end - a);
        if (end - a < 1 << s->shift) /* its share of the chunk */
            sum = sum * (end - a) >> s->shift;
        sum = sum < most ? sum : most;
        gain += sum;
        s->chunk_left[c] -= take ? sum : 0;
        s->looked++;
    }
    s->excess_left -= take ? gain : 0;
    return gain;
}

/* The same for all that a move takes off. */
static int64_t gckpti_move_relief(gckpti_search *s, const gckpti_move *m, int take)
{
    const int *count = s->excess_count;
    int from = m->from + 1 < m->to ? m->from + 1 : m->to;
    return (m->aux ? gckpti_relief(s, count[m->start + 1], count[from], m->aux, take) : 0) +
           gckpti_relief(s, count[from], count[m->to], m->value + m->aux, take);
}

/* Whether an item's unit or one of those it reads was touched; then notes that they all are. */
static int gckpti_touch(gckpti_search *s, int item, int note)
{
    int unit = gckpti_unit_of(s->p, item), touched = s->note[unit].touched, count;
    const int *links = gckpti_reads(s->p, item, &count);
    s->note[unit].touched = touched || note;
    for (int k = 0; k < count; k++) {
        touched = touched || s->note[links[k]].touched;
        s->note[links[k]].touched |= note;
    }
    return touched;
}

/* Cuts the positions above the limit into chunks and sums the excess of each, for gckpti_relief. */
static int gckpti_cut_chunks(gckpti_search *s)
{
    int over = s->excess_count[s->now.length];
    for (s->shift = 0; over >> s->shift > 512;)
        s->shift++;
    size_t chunks = (size_t)(over >> s->shift) + 1;
    if (!gckpti_want(&s->scratch, &s->chunk_left, chunks, sizeof *s->chunk_left) ||
        !gckpti_want(&s->scratch, &s->chosen, (size_t)s->moves, sizeof(int)))
        return 0;
    memset(s->chunk_left, 0, chunks * sizeof *s->chunk_left);
    for (int x = 0; x < s->now.length; x++)
        s->chunk_left[s->excess_count[x] >> s->shift] += s->excess_sum[x + 1] - s->excess_sum[x];
    s->excess_left = s->excess_sum[s->now.length];
    return 1;
}

/* Chooses gaps to close from s->move, in order, that score within twice the best and touch no unit
 * of another, until nothing is left over. Returns how many. */
static int gckpti_choose_gaps(gckpti_search *s)
{
    int n = 0;
    if (s->moves == 0 || !gckpti_cut_chunks(s))
        return 0;
    uint64_t worst = s->move[0].key + GCKPTI_TWICE;
    for (int u = 0; u < s->p->units; u++)
        s->note[u].touched = 0;
    for (int i = 0; i < s->moves && s->move[i].key <= worst && s->excess_left > 0; i++) {
        const gckpti_move *m = &s->move[i];
        int clash = s->note[m->unit].touched;
        for (int j = m->set; j < m->set + m->units && !clash; j++)
            clash = gckpti_touch(s, s->set[j], 0);
        int64_t gain = clash ? 0 : gckpti_move_relief(s, m, 0);
        if (gain <= m->penalty || gckpti_score(m->cost, gain - m->penalty) > worst)
            continue;
        for (int j = m->set; j < m->set + m->units; j++)
            gckpti_touch(s, s->set[j], 1);
        gckpti_move_relief(s, m, 1);
        s->chosen[n++] = i;
    }
    return n;
}

/* Tries moves one at a time, in order, and takes the one with least work per excess byte removed:
 * of `most` that help, among the first `tries`. Returns 0 when none helps. */
static int gckpti_best_single(gckpti_search *s, int64_t limit, int tries, int most)
{
    int64_t excess = gckpti_excess(&s->now, limit);
    uint64_t least = UINT64_MAX;
    int best = -1, helped = 0;
    for (int m = 0; m < s->moves && m < tries && helped < most && !s->p->failed; m++) {
        gckpti_try_inserts(s, &m, 1);
        int64_t now = gckpti_excess(&s->next, limit);
        if (now >= excess)
            continue;
        uint64_t score = gckpti_score(
            s->next.extra > s->now.extra ? s->next.extra - s->now.extra : 0, excess - now);
        helped++;
        if (score < least) {
            least = score;
            best = m;
        }
    }
    if (best < 0)
        return 0;
    gckpti_try_inserts(s, &best, 1);
    gckpti_accept(s);
    return !s->p->failed;
}

/* Whether the search has counted as much as it may; then it ends, wherever it is. */
static int gckpti_spent(gckpti_search *s)
{
    int64_t units = (s->p->units + 200) * (s->whole ? 20 : 1), most = GCKPTI_WORK_LIMIT * units;
    int spent = s->items > most || s->looked > 4 * most ||
                (s->attempt >= 0 && s->items + s->looked / 4 > s->attempt + most / 8);
    s->cut = s->cut || spent;
    return spent;
}

/* Takes the present schedule below the limit. Returns 0 when it cannot. */
static int gckpti_squeeze(gckpti_search *s, int64_t limit, int exact)
{
    for (int round = 0; s->now.peak > limit && !s->p->failed; round++) {
        int64_t excess = gckpti_excess(&s->now, limit);
        int helped = 0;
        s->cut = s->cut || round > 300;
        if (round > 300 || gckpti_spent(s))
            return 0;
        gckpti_find_gaps(s, limit, exact, exact);
        for (int n = exact ? 0 : gckpti_choose_gaps(s); n > 0 && !helped && !s->p->failed; n /= 2) {
            gckpti_try_inserts(s, s->chosen, n);
            helped = gckpti_excess(&s->next, limit) < excess;
        }
        if (helped) {
            gckpti_accept(s);
            continue;
        }
        if (!exact)
            gckpti_find_gaps(s, limit, 1, 0);
        if (!gckpti_best_single(s, limit, exact ? s->moves : 200, exact ? s->moves : 8))
            return 0;
    }
    return !s->p->failed;
}

/* ---- room below the limit by position: a tree of minima. What a node holds is relative to its
 * parent; leaf size + 1 + x is position x ---- */
static int64_t gckpti_room_least(const gckpti_search *s, int from, int to)
{
    int64_t left = INT64_MAX / 2, right = left;
    int a = s->leaves + from, b = s->leaves + to + 2;
    for (; (a ^ b) > 1; a /= 2, b /= 2) {
        left = !(a & 1) && s->room[a ^ 1] < left ? s->room[a ^ 1] : left;
        right = b & 1 && s->room[b ^ 1] < right ? s->room[b ^ 1] : right;
        left += s->room[a / 2];
        right += s->room[b / 2];
    }
    for (left = left < right ? left : right; (a /= 2) > 0;)
        left += s->room[a];
    return left;
}

/* Makes a node hold the least of its children's. */
static void gckpti_room_lift(int64_t *room, int node)
{
    int64_t a = room[2 * node], b = room[2 * node + 1], least = a < b ? a : b;
    room[2 * node] -= least;
    room[2 * node + 1] -= least;
    room[node] += least;
}

static void gckpti_room_add(gckpti_search *s, int from, int to, int64_t bytes)
{
    int a = s->leaves + from, b = s->leaves + to + 2;
    for (; (a ^ b) > 1; a /= 2, b /= 2) {
        s->room[a ^ 1] += a & 1 ? 0 : bytes;
        s->room[b ^ 1] += b & 1 ? bytes : 0;
        gckpti_room_lift(s->room, a / 2);
        gckpti_room_lift(s->room, b / 2);
    }
    while ((a /= 2) > 0)
        gckpti_room_lift(s->room, a);
}

static int gckpti_room_build(gckpti_search *s, int64_t limit)
{
    for (s->leaves = 2; s->leaves < s->now.length + 2;)
        s->leaves *= 2;
    if (!gckpti_want(&s->scratch, &s->room, 2 * (size_t)s->leaves, sizeof *s->room))
        return 0;
    memset(s->room, 0, 2 * (size_t)s->leaves * sizeof *s->room);
    for (int x = 0; x < s->now.length; x++)
        s->room[s->leaves + 1 + x] = limit - s->now.live[x];
    for (int node = s->leaves - 1; node > 0; node--)
        gckpti_room_lift(s->room, node);
    return 1;
}

/* Gives or takes back the bytes of what only the repeated forward still keeps. */
static void gckpti_free_inputs(gckpti_search *s, const gckpti_move *m, int sign)
{
    for (int k = m->set; k < m->set + m->units; k += 2)
        gckpti_room_add(s, s->set[k + 1], m->to, sign * s->note[s->set[k]].out);
}

/* Whether the version before can serve the repeated forward's uses too: its bytes must fit between;
 * take: takes them. */
static int gckpti_stretch(gckpti_search *s, const gckpti_move *m, int take)
{
    const gckpti_schedule *t = &s->now;
    int fits = 1;
    gckpti_free_inputs(s, m, 1);
    for (int aux = 0; aux < 2 && fits; aux++) {
        const int *end = aux ? t->aux_end : t->value_end;
        int from = (end[m->start] > m->start ? end[m->start] : m->start) + 1;
        int64_t size = aux ? m->aux : m->value;
        if (end[m->to] < 0 || from >= m->to || size == 0)
            continue;
        fits = gckpti_room_least(s, from, m->to - 1) >= size;
        if (fits && take)
            gckpti_room_add(s, from, m->to - 1, -size);
    }
    if (!fits || !take)
        gckpti_free_inputs(s, m, -1);
    s->looked += 16 * (1 + m->units);
    return fits;
}

/* s->next = s->now without the forwards of n moves, and what only they read; evaluated. */
static void gckpti_try_without(gckpti_search *s, const int *move, int n)
{
    int length = s->now.length;
    if (!gckpti_search_room(s, &s->next, length))
        return;
    memcpy(s->next.item, s->now.item, (size_t)length * sizeof(int));
    for (int i = 0; i < n; i++)
        s->next.item[s->move[move[i]].to] = INT32_MAX; /* goes */
    s->next.length = 0;
    for (int x = 0; x < length; x++)
        if (s->next.item[x] != INT32_MAX)
            s->next.item[s->next.length++] = s->next.item[x];
    gckpti_evaluate(s, &s->next);
}

/* Work of an offload and a reload of what is read of unit u's version that begins at x. */
static uint64_t gckpti_there_and_back(const gckpti_search *s, int u, int x)
{
    return 2 * gckpti_parts_work(s->p, u, gckpti_parts(s->now.value_end[x], s->now.aux_end[x]));
}

/* Notes what only the repeated item at m->to still keeps: pairs of a unit and the position from
 * which its value goes, too. */
static void gckpti_note_freed(gckpti_search *s, gckpti_move *m, const int *links, int count)
{
    m->set = s->sets;
    if (!gckpti_want(&s->scratch, &s->set, (size_t)s->sets + 2 * GCKPT_MAX_INPUTS, sizeof(int)))
        return;
    for (int k = 0; k < count; k++) {
        const gckpti_note *q = &s->note[links[k]];
        if (q->value_end != m->to)
            continue;
        s->set[s->sets++] = links[k];
        s->set[s->sets++] = q->from + (q->from > q->start || s->saving[q->start] == 0);
    }
    m->units = s->sets - m->set;
}

/* Repeated forwards and reloads of the present schedule, largest saving first, in s->move: `start`
 * is the version before; with a limit only those whose bytes fit below it. What only a repeated
 * forward reads goes with it; such forwards are a tree, so each is counted once. */
static void gckpti_find_repeats(gckpti_search *s, int64_t limit)
{
    if (!gckpti_index(s, limit) || !gckpti_room_build(s, limit) ||
        !gckpti_want(&s->scratch, &s->saving, (size_t)s->now.length, sizeof *s->saving))
        return;
    for (int x = 0; x < s->now.length && !s->p->failed; gckpti_step(s, x++)) {
        int i = s->now.item[x], count, self = gckpti_unit_of(s->p, i), reloads = i > self;
        const int *links = gckpti_reads(s->p, i, &count);
        if (i < 0)
            continue;
        s->saving[x] = s->note[self].runs > 0 ? s->p->unit[self].cost : 0;
        if (reloads)
            s->saving[x] = gckpti_there_and_back(s, self, x);
        for (int k = 0; k < count && s->note[self].runs > 0; k++) {
            const gckpti_note *q = &s->note[links[k]];
            if (q->value_end == x && q->from == q->start && q->aux_end < 0)
                s->saving[x] += s->saving[q->start];
        }
        if (s->note[self].runs == 0 || gckpti_is_stale(s, self))
            continue;
        gckpti_move m;
        memset(&m, 0, sizeof m);
        m.key = UINT64_MAX - s->saving[x];
        m.unit = self;
        m.start = s->note[self].start;
        m.to = x;
        m.value = s->note[self].out;
        m.aux = s->note[self].aux;
        gckpti_note_freed(s, &m, links, count);
        if (limit == INT64_MAX || gckpti_stretch(s, &m, 0))
            gckpti_add_move(s, &m);
    }
    gckpti_sort_moves(s);
}

/* Takes out the one repeated forward that leaves least work, by trying all. Returns 0 when none may
 * go. */
static int gckpti_polish_single(gckpti_search *s, int64_t limit)
{
    uint64_t least = s->now.extra;
    int best = -1;
    for (int m = 0; m < s->moves && !s->p->failed; m++) {
        gckpti_try_without(s, &m, 1);
        if (s->next.peak <= limit && s->next.extra < least) {
            least = s->next.extra;
            best = m;
        }
    }
    if (best < 0 || s->p->failed)
        return 0;
    gckpti_try_without(s, &best, 1);
    gckpti_accept(s);
    return 1;
}

/* Takes out all repeated forwards whose predecessors' bytes fit, one after another; half of these
 * until it helps. Returns 0 when none may go. */
static int gckpti_polish_many(gckpti_search *s, int64_t limit)
{
    int n = 0;
    if (!gckpti_want(&s->scratch, &s->chosen, (size_t)s->moves, sizeof(int)))
        return 0;
    for (int m = 0; m < s->moves; m++)
        if (gckpti_stretch(s, &s->move[m], 1))
            s->chosen[n++] = m;
    for (; n > 0 && !s->p->failed; n /= 2) {
        gckpti_try_without(s, s->chosen, n);
        if (s->next.peak <= limit && s->next.extra < s->now.extra && !s->p->failed) {
            gckpti_accept(s);
            return 1;
        }
    }
    return 0;
}

/* Reloads what is computed again with more work, all of it or, where that does not fit, the half
 * that saves most, and so on. */
static void gckpti_reload_repeats(gckpti_search *s, int64_t limit)
{
    const gckpti_planner *p = s->p;
    int n = 0;
    gckpti_find_repeats(s, INT64_MAX);
    if (p->failed || !gckpti_want(&s->scratch, &s->chosen, (size_t)s->moves, sizeof(int)))
        return;
    for (int m = 0; m < s->moves; m++) {
        int x = s->move[m].to, u = s->move[m].unit;
        if (s->now.item[x] == u && p->unit[u].offloads &&
            s->saving[x] > gckpti_there_and_back(s, u, x))
            s->chosen[n++] = x;
    }
    for (; n > 0 && !p->failed; n /= 2) {
        size_t length = (size_t)s->now.length;
        if (!gckpti_search_room(s, &s->next, s->now.length))
            return;
        memcpy(s->next.item, s->now.item, length * sizeof(int));
        s->next.length = s->now.length;
        for (int k = 0; k < n; k++)
            s->next.item[s->chosen[k]] += p->units;
        gckpti_evaluate(s, &s->next);
        if (s->next.peak <= limit && s->next.extra < s->now.extra) {
            gckpti_accept(s);
            return;
        }
    }
}

/* Takes out repeated forwards while the limit holds; exact: one at a time, whichever leaves least
 * work. */
static void gckpti_polish(gckpti_search *s, int64_t limit, int exact)
{
    if (s->p->offloads && s->now.extra > 0)
        gckpti_reload_repeats(s, limit);
    for (int round = 0; (exact || round < 6) && s->now.extra > 0; round++) {
        gckpti_find_repeats(s, exact ? INT64_MAX : limit);
        if (s->p->failed || gckpti_spent(s) ||
            !(exact ? gckpti_polish_single(s, limit) : gckpti_polish_many(s, limit)))
            return;
    }
}

/* ---- slots ---- */
static void gckpti_slot_store(gckpti_search *s, gckpti_slot *slot, const gckpti_schedule *t)
{
    size_t n = (size_t)t->length;
    if (!gckpti_want(&s->scratch, &slot->item, n, sizeof(int)))
        return;
    memcpy(slot->item, t->item, n * sizeof(int));
    slot->length = t->length;
    slot->peak = t->peak;
    slot->extra = t->extra;
    slot->arena = 0;
}

static int gckpti_slot_load(gckpti_search *s, const gckpti_slot *slot)
{
    if (slot->length == 0 || !gckpti_search_room(s, &s->now, slot->length))
        return 0;
    memcpy(s->now.item, slot->item, (size_t)slot->length * sizeof(int));
    s->now.length = slot->length;
    gckpti_evaluate(s, &s->now);
    return 1;
}

static gckpti_slot *gckpti_slot_new(gckpti_search *s, gckpti_slot **slots, int *count)
{
    if (!gckpti_want(&s->scratch, slots, (size_t)*count + 1, sizeof **slots))
        return NULL;
    gckpti_slot *slot = &(*slots)[(*count)++];
    memset(slot, 0, sizeof *slot);
    return slot;
}

/* ---- seeds ---- */
/* What a maker wrote becomes the present schedule and a seed. */
static void gckpti_seed(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    gckpti_schedule *t = &s->now;
    int made = gckpti_finish(p, p->made, (int)p->made_length, &s->scratch, t);
    p->made_length = 0;
    if (!made)
        return;
    s->items += t->length;
    gckpti_evaluate(s, &s->now);
    int dominated = 0;
    for (int i = 0; i < s->seeds; i++) {
        const gckpti_slot *q = &s->seed[i];
        if (q->length == t->length && !memcmp(q->item, t->item, (size_t)q->length * sizeof(int)))
            return;
        dominated = dominated || (q->peak <= s->now.peak && q->extra <= t->extra);
    }
    gckpti_slot *slot = gckpti_slot_new(s, &s->seed, &s->seeds);
    if (!slot)
        return;
    gckpti_slot_store(s, slot, &s->now);
    slot->dominated = dominated;
}

/* ---- the chain programme ----
 * The body is cut into stages. A stage by itself can run in many ways (options), from keeping all
 * to keeping nothing: each of its units has a level, which says behind how many of its runs its
 * results are let go again; 0: they are kept while the rest of the chain runs forward and backward;
 * 1: they are held when they have run again; .. Options are looked for once for all stages that are
 * the same: among those that differ in one level from an option that no other beats.
 *
 * A dynamic programme combines them (Beaumont et al. 2019; with options as in Zhao et al. 2023,
 * "Rockmate"). To run stages a to b forward and backward, either a runs by one of its options, and
 * a + 1 to b in the middle of that; or all run forward to some stage k keeping only what crosses
 * there, then k to b runs, then a to k - 1. Bytes are counted in steps, without what enters a, and
 * above the gradients that wait when the backwards of b begin: so equal runs of stages have equal
 * rows of the table, and share them. What the table says is an estimate; its schedules are seeds,
 * evaluated like all others. */
enum { GCKPTI_KEPT, GCKPTI_BEFORE, GCKPTI_BEHIND, GCKPTI_FIGURES };
#define GCKPTI_REST  INT32_MAX           /* in a stage's list: where the rest of the chain runs */
#define GCKPTI_NEVER (UINT64_C(1) << 62) /* more than any work */
enum { GCKPTI_LEVELS = 4 };
static const unsigned char gckpti_stage_levels[GCKPTI_LEVELS] = { 0, 1, 2, 255 }; /* are tried */

/* One way to run a stage. Bytes are its own, and gradients' above those that wait. */
typedef struct {
    int64_t bytes[GCKPTI_FIGURES]; /* while the rest runs; at most, before it and behind it */
    int64_t steps[GCKPTI_FIGURES]; /* the same in steps of the present table */
    uint64_t cost;
    int level, flipped; /* where its levels begin; whether others were made of it */
    int dropped;        /* in steps another is as good */
} gckpti_option;

typedef struct {
    int first, end, back, back_end; /* units; ranks of their backwards */
    int owner, kind;     /* the first stage that is the same inside; and in what it sends on, too */
    int option, options; /* of the owner */
    int64_t waits;       /* bytes of gradients that wait when its backwards begin */
    int64_t pass;        /* most bytes of its own while it runs forward and keeps what leaves it */
    uint64_t cost, least; /* work of that; of its cheapest option */
} gckpti_stage;

typedef struct {
    gckpti_search *s;
    gckpti_scratch scratch;
    gckpti_stage stage[GCKPTI_STAGES + 1];
    int n, borders;    /* stages; borders that there were */
    int64_t *crossing; /* [a * (n + 1) + k]: bytes that stages a to k - 1 make and k, .. read */
    gckpti_option *option;
    int options, levels;
    unsigned char *level, *trial; /* by unit of the stage: of options; of the one that is tried */
    unsigned char *has, *wants;   /* by unit: results that are there; that backwards read */
    int *runs;                    /* by unit: so far */
    int *item, length, room;      /* a stage's list */
    int *row, rows;               /* [a * (n + 1) + b - a]: the row of stages a to b */
    int *first;                   /* by row: the fewest steps that do */
    uint64_t *cost;               /* [row * (steps + 1) + m]: least work in m steps */
    int steps;
    int64_t step;
} gckpti_chain;

/* Finds who reads each value last, and the bytes that cross the border before each unit; INT64_MAX
 * where backwards do not come in the order of the units on both sides. */
static int gckpti_find_borders(gckpti_search *s)
{
    const gckpti_planner *p = s->p;
    size_t n = (size_t)p->units;
    int count, last = -1, ranks = 0;
    gckpti_want(&s->scratch, &s->last_either, n, sizeof(int));
    if (!gckpti_want(&s->scratch, &s->enters, n + 2, sizeof *s->enters) || p->failed)
        return 0;
    for (int u = 0; u < p->units; u++) {
        s->last_either[u] = u;
        for (int way = 0; way < 1 + (p->unit[u].rank >= 0); way++)
            for (const int *q = gckpti_reads(p, way ? ~u : u, &count); count-- > 0; q++)
                s->last_either[*q] = u;
    }
    memset(s->enters, 0, (n + 2) * sizeof *s->enters);
    for (int u = p->prologue; u < p->units; u++) {
        s->enters[u + 1] += p->unit[u].out;
        s->enters[s->last_either[u] + 1] -= p->unit[u].out;
    }
    for (int u = 1; u < p->units; u++)
        s->enters[u] += s->enters[u - 1];
    for (int u = p->units; u-- > p->prologue;) {
        last = p->unit[u].rank > last ? p->unit[u].rank : last;
        ranks += p->unit[u].rank >= 0;
        s->enters[u] = last + 1 == ranks ? s->enters[u] : INT64_MAX;
    }
    return 1;
}

/* Whether a border of stages may be before unit u: where the user's outermost segments have one;
 * where no more bytes cross than at such a border, and fewer than before; or everywhere. */
enum { GCKPTI_AT_SEGMENTS, GCKPTI_AT_NARROW, GCKPTI_AT_UNITS, GCKPTI_BORDERS };
static int gckpti_is_border(const gckpti_search *s, int how, int u, int64_t widest)
{
    int segment[2];
    for (int k = 0; k < 2; k++) {
        segment[k] = s->p->g->tensors[s->p->unit[u - k].id]->segment;
        while (segment[k] >= 0 && s->p->g->segments[segment[k]].parent >= 0)
            segment[k] = s->p->g->segments[segment[k]].parent;
    }
    if (s->enters[u] == INT64_MAX)
        return 0;
    return how == GCKPTI_AT_UNITS ||
           (how == GCKPTI_AT_SEGMENTS ? segment[0] != segment[1]
                                      : s->enters[u] <= widest && s->enters[u] < s->enters[u - 1] &&
                                            s->enters[u] <= s->enters[u + 1]);
}

/* Makes stages of the body; when they are too many, at the cheapest border of each window. */
static void gckpti_find_stages(gckpti_chain *c, int how, int most)
{
    const gckpti_search *s = c->s;
    const gckpti_planner *p = s->p;
    int64_t widest = p->g->outermost < 2 ? INT64_MAX : 0;
    int borders = 1, window, seen = 0, best = -1, back = 0;
    for (int u = p->prologue + 1; u < p->units; u++)
        if (gckpti_is_border(s, GCKPTI_AT_SEGMENTS, u, 0) && s->enters[u] > widest)
            widest = s->enters[u];
    for (int u = p->prologue + 1; u < p->units; u++)
        borders += gckpti_is_border(s, how, u, widest);
    window = (borders + most - 1) / most;
    c->borders = borders;
    c->stage[0].first = p->prologue;
    c->n = 1;
    for (int u = p->prologue + 1; u < p->units; u++) {
        if (!gckpti_is_border(s, how, u, widest))
            continue;
        best = best < 0 || s->enters[u] < s->enters[best] ? u : best;
        if (++seen % window == 0) {
            c->stage[c->n++].first = best;
            best = -1;
        }
    }
    for (int k = c->n; k-- > 0;) {
        gckpti_stage *q = &c->stage[k];
        q->end = k + 1 < c->n ? c->stage[k + 1].first : p->units;
        q->back = back;
        while (back < p->body_ranks && p->backward[back] >= q->first)
            back++;
        q->back_end = back;
        q->waits = s->gradient_between[q->back] - s->gradient_between[0];
    }
}

/* Whether two runs of links lead to the same places of their stages, or out of them. */
static int gckpti_same_links(const int *a, int first_a, const int *b, int first_b, int n)
{
    int k = 0;
    while (k < n && (a[k] - first_a == b[k] - first_b || (a[k] < first_a && b[k] < first_b)))
        k++;
    return k == n;
}

/* Whether two stages are the same inside. */
static int gckpti_same_stage(const gckpti_search *s, const gckpti_stage *a, const gckpti_stage *b)
{
    const gckpti_planner *p = s->p;
    int same =
        b->end - b->first == a->end - a->first && b->back_end - b->back == a->back_end - a->back;
    int64_t more = b->waits - a->waits;
    for (int i = 0; same && i < a->end - a->first; i++) {
        const gckpti_unit *x = &p->unit[a->first + i], *y = &p->unit[b->first + i];
        same =
            x->out == y->out && x->aux == y->aux && x->work == y->work && x->cost == y->cost &&
            x->inputs == y->inputs && x->in_place == y->in_place && x->fixed == y->fixed &&
            x->reads_aux == y->reads_aux && (x->rank < 0) == (y->rank < 0) &&
            (x->rank < 0 || (x->reads == y->reads && x->rank - a->back == y->rank - b->back)) &&
            (s->last_either[a->first + i] < a->end) == (s->last_either[b->first + i] < b->end) &&
            gckpti_same_links(p->links + x->in, a->first, p->links + y->in, b->first, x->inputs) &&
            (x->rank < 0 || gckpti_same_links(p->links + x->read, a->first, p->links + y->read,
                                              b->first, x->reads));
    }
    for (int i = a->back, k = b->back; same && i <= a->back_end; i++, k++)
        same = s->gradient_between[k] - s->gradient_between[i] == more &&
               (i == a->back_end || s->gradient_at[k] - s->gradient_at[i] == more);
    return same;
}

/* What each run of stages sends on; which stages, and which runs of them, are the same. */
static void gckpti_compare_stages(gckpti_chain *c)
{
    const int n = c->n, wide = n + 1;
    int64_t *sends = c->crossing;
    for (int a = 0; a < n; a++)
        for (int u = c->stage[a].first; u < c->stage[a].end; u++)
            for (int k = a + 1; k < n && c->stage[k].first <= c->s->last_either[u]; k++)
                sends[a * wide + k] += c->s->p->unit[u].out;
    for (int a = 0; a < n; a++) {
        gckpti_stage *q = &c->stage[a];
        for (q->owner = 0; q->owner < a; q->owner++)
            if (c->stage[q->owner].owner == q->owner &&
                gckpti_same_stage(c->s, &c->stage[q->owner], q))
                break;
        for (q->kind = q->owner; q->kind < a; q->kind++) {
            int same = c->stage[q->kind].owner == q->owner && c->stage[q->kind].kind == q->kind;
            for (int k = 1; same && q->kind + k < n; k++)
                same = sends[q->kind * wide + q->kind + k] ==
                       (a + k < n ? sends[a * wide + a + k] : 0);
            if (same)
                break;
        }
    }
    for (int a = n - 1; a-- > 0;)
        for (int k = a + 2; k < n; k++)
            sends[a * wide + k] += sends[(a + 1) * wide + k];
    for (int length = 1; length <= n; length++)
        for (int a = 0; a + length <= n; a++) { /* the same but for its last stage, and there */
            int k = 0, b = length - 1, *row = c->row + b;
            while (k < a && (c->stage[k + b].kind != c->stage[a + b].kind ||
                             (b > 0 && row[k * wide - 1] != row[a * wide - 1])))
                k++;
            row[a * wide] = k < a ? row[k * wide] : c->rows++;
        }
}

/* ---- options of a stage ---- */
/* Finds what the list of a stage takes: from its end, with what is read from there on. */
static void gckpti_weigh(gckpti_chain *c, const gckpti_stage *q, gckpti_option *o)
{
    enum { VALUE = 1, AUX = 2 };
    const gckpti_search *s = c->s;
    const gckpti_planner *p = s->p;
    int64_t live = 0, gradients = 0, base = s->gradient_between[q->back];
    unsigned char *read = c->has;
    int part = GCKPTI_BEHIND, count;
    memset(o, 0, sizeof *o);
    memset(read + q->first, 0, (size_t)(q->end - q->first));
    for (int x = c->length; x-- > 0;) {
        int i = c->item[x], u = i < 0 ? ~i : i;
        for (int v = q->first; i == GCKPTI_REST && v < q->end; v++)
            if (s->last_either[v] >= q->end && !(read[v] & VALUE)) {
                read[v] |= VALUE;
                live += p->unit[v].out;
            }
        if (i == GCKPTI_REST) {
            o->bytes[GCKPTI_KEPT] = live;
            part = GCKPTI_BEFORE;
            gradients = 0;
            continue;
        }
        const gckpti_unit *w = &p->unit[u];
        const int *links = gckpti_reads(p, i, &count);
        int64_t over = 0; /* bytes that its value takes over */
        if (i >= 0 && !read[u] && !w->effect)
            continue;
        for (int k = 0; k < count; k++) {
            if (links[k] < q->first || read[links[k]] & VALUE)
                continue;
            read[links[k]] |= VALUE;
            live += p->unit[links[k]].out;
            over = i >= 0 && w->in_place >> k & 1 && read[u] & VALUE ? w->out : over;
        }
        if (i < 0 && w->reads_aux && !(read[u] & AUX)) {
            read[u] |= AUX;
            live += w->aux;
        }
        int64_t now = live + (i < 0 ? s->gradient_at[w->rank] - base : gradients + w->work - over);
        o->bytes[part] = now > o->bytes[part] ? now : o->bytes[part];
        if (i < 0) {
            gradients = s->gradient_between[w->rank] - base;
            continue;
        }
        o->cost += w->cost;
        live -= (read[u] & VALUE ? w->out : 0) + (read[u] & AUX ? w->aux : 0);
        read[u] = 0;
    }
}

/* Appends unit i to the list, behind what it reads and is not there. */
static void gckpti_run_unit(gckpti_chain *c, const gckpti_stage *q, int i)
{
    enum { THERE = 1, WANTED = 2 };
    const gckpti_planner *p = c->s->p;
    int low = i, open = 1;
    c->has[i] = WANTED;
    for (; open > 0; low--)
        if (c->has[low] == WANTED) {
            const gckpti_unit *u = &p->unit[low];
            open--;
            for (int k = u->in; k < u->in + u->inputs; k++)
                if (p->links[k] >= q->first && !c->has[p->links[k]]) {
                    c->has[p->links[k]] = WANTED;
                    open++;
                }
        }
    while (++low <= i)
        if (c->has[low] == WANTED) {
            c->has[low] = THERE;
            c->runs[low]++;
            c->item[c->length++] = low;
        }
}

/* Lists a stage by levels: its forwards, the rest, then its backwards, with what runs again for
 * them. 0: that is too long. */
static int gckpti_list_stage(gckpti_chain *c, const gckpti_stage *q, const unsigned char *level)
{
    const gckpti_planner *p = c->s->p;
    int count;
    c->length = 0;
    for (int u = q->first; u < q->end; u++) {
        c->item[c->length++] = u;
        c->has[u] = level[u - q->first] == 0;
        c->runs[u] = 1;
    }
    c->item[c->length++] = GCKPTI_REST;
    for (int r = q->back; r < q->back_end; r++) {
        int u = p->backward[r], before = c->length;
        const int *links = gckpti_reads(p, ~u, &count);
        for (int k = 0; k < count; k++)
            if (links[k] >= q->first && !c->has[links[k]])
                gckpti_run_unit(c, q, links[k]);
        if (p->unit[u].reads_aux && !c->has[u])
            gckpti_run_unit(c, q, u);
        for (int x = before; x < c->length; x++)
            c->has[c->item[x]] = c->runs[c->item[x]] > level[c->item[x] - q->first];
        c->item[c->length++] = ~u;
        if (c->length > c->room)
            return 0;
    }
    return 1;
}

static int gckpti_as_good(const int64_t *a, uint64_t cost_a, const int64_t *b, uint64_t cost_b)
{
    return cost_a <= cost_b && a[GCKPTI_KEPT] <= b[GCKPTI_KEPT] &&
           a[GCKPTI_BEFORE] <= b[GCKPTI_BEFORE] && a[GCKPTI_BEHIND] <= b[GCKPTI_BEHIND];
}

/* The levels of c->trial become an option, unless one is as good in all. */
static void gckpti_try_levels(gckpti_chain *c, gckpti_stage *q)
{
    size_t size = (size_t)(q->end - q->first);
    gckpti_option o;
    int good = gckpti_list_stage(c, q, c->trial), kept = q->option;
    c->s->looked += 2 * c->length;
    if (!good)
        return;
    gckpti_weigh(c, q, &o);
    for (int i = q->option; i < c->options; i++) {
        gckpti_option *b = &c->option[i];
        if (gckpti_as_good(b->bytes, b->cost, o.bytes, o.cost))
            return;
        if (!gckpti_as_good(o.bytes, o.cost, b->bytes, b->cost))
            c->option[kept++] = *b;
    }
    c->options = kept;
    if (kept - q->option == GCKPTI_OPTIONS ||
        !gckpti_want(&c->scratch, &c->option, (size_t)kept + 1, sizeof o) ||
        !gckpti_want(&c->scratch, &c->level, (size_t)c->levels + size, 1))
        return;
    o.level = c->levels;
    c->levels += (int)size;
    memcpy(c->level + o.level, c->trial, size);
    c->option[c->options++] = o;
}

/* Tries levels to begin with: none let go; all on the same level, but what is at every border of
 * segments, or at every 2nd, 4th, .. */
static void gckpti_first_options(gckpti_chain *c, gckpti_stage *q)
{
    const gckpti_unit *unit = &c->s->p->unit[q->first];
    int size = q->end - q->first;
    memset(c->trial, 0, (size_t)size);
    gckpti_try_levels(c, q);
    for (int apart = 1; apart <= size && !c->s->p->failed; apart *= 2)
        for (int l = 1; l < GCKPTI_LEVELS; l++) {
            for (int i = 0, borders = 0; i < size; i++) {
                int u = q->first + i + 1;
                int border = u < q->end && gckpti_is_border(c->s, GCKPTI_AT_SEGMENTS, u, 0);
                borders += border;
                c->trial[i] = gckpti_stage_levels[c->wants[u - 1] ? l : GCKPTI_LEVELS - 1];
                if (unit[i].fixed || (border && borders % apart == 0))
                    c->trial[i] = 0;
            }
            gckpti_try_levels(c, q);
        }
}

/* Finds the options of a stage that owns them, within some work. */
static void gckpti_find_options(gckpti_chain *c, gckpti_stage *q, int64_t work)
{
    const gckpti_search *s = c->s;
    const gckpti_planner *p = s->p;
    int size = q->end - q->first, count;
    gckpti_option pass;
    for (int u = q->first; u < q->end; u++)
        c->item[u - q->first] = u;
    c->item[size] = GCKPTI_REST;
    c->length = size + 1;
    gckpti_weigh(c, q, &pass);
    q->pass = pass.bytes[GCKPTI_BEFORE];
    q->cost = pass.cost;
    for (int r = q->back; r < q->back_end; r++) {
        c->wants[p->backward[r]] |= p->unit[p->backward[r]].reads_aux;
        for (const int *v = gckpti_reads(p, ~p->backward[r], &count); count-- > 0; v++)
            c->wants[*v] = 1;
    }
    q->option = c->options;
    work += s->looked;
    gckpti_first_options(c, q);
    for (int i = q->option; i < c->options && s->looked < work; i++) {
        int level = c->option[i].level;
        if (c->option[i].flipped)
            continue;
        c->option[i].flipped = 1;
        for (int k = 0; k < GCKPTI_LEVELS * size && s->looked < work && !p->failed; k++) {
            int u = k / GCKPTI_LEVELS;
            memcpy(c->trial, c->level + level, (size_t)size);
            if (!c->wants[q->first + u] || p->unit[q->first + u].fixed ||
                c->trial[u] == gckpti_stage_levels[k % GCKPTI_LEVELS])
                continue;
            c->trial[u] = gckpti_stage_levels[k % GCKPTI_LEVELS];
            gckpti_try_levels(c, q);
        }
        i = q->option - 1; /* options before it may have gone */
    }
    q->options = c->options - q->option;
    q->least = GCKPTI_NEVER;
    for (int i = q->option; i < c->options; i++)
        q->least = c->option[i].cost < q->least ? c->option[i].cost : q->least;
}

/* ---- the table ---- */
/* Steps for some bytes; a small part of a step does not count. */
static int gckpti_steps(const gckpti_chain *c, int64_t bytes)
{
    int64_t n = bytes <= 0 ? 0 : (bytes + c->step - 1 - c->step / 16) / c->step;
    return n > c->steps ? c->steps + 1 : (int)n;
}

static size_t gckpti_cells(const gckpti_chain *c, int rows)
{
    return (size_t)rows * ((size_t)c->steps + 1);
}

/* Steps that a run which ends with stage k has more than one that ends with b. */
static int gckpti_more_steps(const gckpti_chain *c, int k, int b)
{
    int64_t more = c->stage[b].waits - c->stage[k].waits;
    return more < 0                    ? -gckpti_steps(c, -more)
           : more / c->step > c->steps ? c->steps
                                       : (int)(more / c->step);
}

/* One way to run stages a to b: the i-th option of a; or, behind these, one for each stage to keep
 * what enters it. In m steps, at least `need`, it costs `work` and, by rows of the table, what
 * `later` does in m - kept and `sooner` in m + more. */
typedef struct {
    int a, b, i, need, kept, more;
    const uint64_t *later, *sooner;
    uint64_t work, ahead;
    int64_t through; /* most bytes on the way forward */
} gckpti_way;

/* The next way to run w->a to w->b; 0: no more. Begins with i = -1. */
static int gckpti_next_way(const gckpti_chain *c, gckpti_way *w)
{
    const gckpti_stage *stage = c->stage, *q = &stage[stage[w->a].owner];
    const gckpti_option *o = &c->option[q->option];
    const uint64_t *none = c->cost + gckpti_cells(c, c->rows);
    int wide = c->n + 1, k = w->a;
    do
        w->i++;
    while (w->i < q->options && o[w->i].dropped);
    w->later = w->sooner = none;
    w->kept = w->more = 0;
    if (w->i < q->options) {
        int behind =
            gckpti_steps(c, o[w->i].bytes[GCKPTI_BEHIND] + stage[k].waits - stage[w->b].waits);
        w->need = (int)o[w->i].steps[GCKPTI_BEFORE];
        w->need = behind > w->need ? behind : w->need;
        w->work = o[w->i].cost;
        k++;
        if (k > w->b)
            return 1;
        w->kept = (int)o[w->i].steps[GCKPTI_KEPT];
    } else {
        k += w->i - q->options + 1;
        if (k > w->b)
            return 0;
        const gckpti_stage *last = &stage[stage[k - 1].owner];
        int64_t run = c->crossing[w->a * wide + k - 1] + last->pass;
        w->through = run > w->through ? run : w->through;
        w->work = w->ahead += last->cost;
        w->need = gckpti_steps(c, w->through);
        w->kept = gckpti_steps(c, c->crossing[w->a * wide + k]);
        w->more = gckpti_more_steps(c, k - 1, w->b);
        int row = c->row[w->a * wide + k - 1 - w->a];
        w->sooner = c->cost + gckpti_cells(c, row);
        w->need = c->first[row] - w->more > w->need ? c->first[row] - w->more : w->need;
    }
    int row = c->row[k * wide + w->b - k];
    w->later = c->cost + gckpti_cells(c, row);
    w->need = c->first[row] + w->kept > w->need ? c->first[row] + w->kept : w->need;
    return 1;
}

/* Fills in the row of stages a to b: checkpoints only where options take more than least work. */
static void gckpti_fill_row(gckpti_chain *c, int a, int b, int row)
{
    uint64_t *cost = c->cost + gckpti_cells(c, row), least = 0;
    gckpti_way w = { a, b, -1, 0, 0, 0, NULL, NULL, 0, 0, 0 };
    int top = c->steps + 1, *first = &c->first[row], options = c->stage[c->stage[a].owner].options;
    for (int m = 0; m <= c->steps; m++)
        cost[m] = GCKPTI_NEVER;
    for (int k = a; k <= b; k++)
        least += c->stage[c->stage[k].owner].least;
    while (gckpti_next_way(c, &w)) {
        if (w.i == options)
            for (top = 0; top <= c->steps && cost[top] > least;)
                top++;
        for (int m = w.need; m < top; m++) {
            int sooner = m + w.more < c->steps ? m + w.more : c->steps;
            uint64_t sum = w.work + w.later[m - w.kept] + w.sooner[sooner];
            cost[m] = sum < cost[m] ? sum : cost[m];
        }
    }
    for (*first = 0; *first <= c->steps && cost[*first] == GCKPTI_NEVER;)
        ++*first;
}

/* A step for up to `most` bytes: the grain, if few sizes differ; else it divides the smallest large
 * result. The options in these steps; what another is as good as drops out. */
static void gckpti_choose_step(gckpti_chain *c, int64_t most)
{
    const gckpti_planner *p = c->s->p;
    int64_t grain = c->s->grain, large = most;
    c->step = most / GCKPTI_STEPS > grain ? most / GCKPTI_STEPS : grain;
    for (int u = p->prologue; u < p->units; u++)
        large = p->unit[u].out > most / 100 && p->unit[u].out < large ? p->unit[u].out : large;
    c->step = large > c->step ? large / (large / c->step) : c->step;
    c->step = most / grain <= GCKPTI_FINE ? grain : c->step;
    c->steps = (int)(most / c->step);
    for (int a = 0; a < c->n; a++)
        for (int i = 0; c->stage[a].owner == a && i < c->stage[a].options; i++) {
            gckpti_option *first = c->option + c->stage[a].option, *o = first + i;
            for (int k = 0; k < GCKPTI_FIGURES; k++)
                o->steps[k] = gckpti_steps(c, o->bytes[k]);
            o->dropped = 0;
            for (int k = 0; k < i && !o->dropped; k++) {
                o->dropped = !first[k].dropped &&
                             gckpti_as_good(first[k].steps, first[k].cost, o->steps, o->cost);
                first[k].dropped |=
                    !o->dropped && gckpti_as_good(o->steps, o->cost, first[k].steps, first[k].cost);
            }
        }
}

/* Makes the schedule of all stages in m steps. */
static void gckpti_emit_table(gckpti_chain *c, int m)
{
    gckpti_planner *p = c->s->p;
    struct {
        int a, b, m; /* b < 0: what stage a does behind the rest by option m */
    } todo[2 * GCKPTI_STAGES + 3], now = { 0, c->n - 1, m };
    todo[0] = now;
    for (int count = 1; count > 0;) {
        now = todo[--count];
        const gckpti_stage *q = &c->stage[now.a], *owner = &c->stage[q->owner];
        if (now.b < 0) {
            gckpti_list_stage(c, q, c->level + c->option[owner->option + now.m].level);
            for (int x = q->end - q->first + 1; x < c->length; x++)
                gckpti_emit(p, c->item[x]);
            continue;
        }
        gckpti_way w = { now.a, now.b, -1, 0, 0, 0, NULL, NULL, 0, 0, 0 };
        uint64_t cost =
            c->cost[gckpti_cells(c, c->row[now.a * (c->n + 1) + now.b - now.a]) + (size_t)now.m];
        int sooner = 0;
        while (gckpti_next_way(c, &w)) {
            sooner = now.m + w.more < c->steps ? now.m + w.more : c->steps;
            if (w.need <= now.m && w.work + w.later[now.m - w.kept] + w.sooner[sooner] == cost)
                break;
        }
        int k = w.i < owner->options ? now.a + 1 : now.a + 1 + w.i - owner->options;
        for (int u = q->first; u < c->stage[k - 1].end; u++)
            gckpti_emit(p, u);
        todo[count].a = now.a;
        todo[count].b = w.i < owner->options ? -1 : k - 1;
        todo[count++].m = w.i < owner->options ? w.i : sooner;
        now.a = k;
        now.m -= w.kept;
        if (k <= now.b)
            todo[count++] = now;
    }
}

/* The schedules for amounts of memory from `least` up to `most` become seeds. */
static void gckpti_seed_table(gckpti_chain *c, int64_t least, int64_t most)
{
    gckpti_search *s = c->s;
    gckpti_choose_step(c, most);
    size_t cells = ((size_t)c->rows + 1) * ((size_t)c->steps + 1); /* one of zeros */
    int rows = 0, small = s->p->units <= GCKPTI_SMALL;
    gckpti_want(&c->scratch, &c->cost, cells, sizeof *c->cost);
    gckpti_want(&c->scratch, &c->first, (size_t)c->rows, sizeof(int));
    if (!s->p->failed)
        memset(c->cost + gckpti_cells(c, c->rows), 0, gckpti_cells(c, 1) * sizeof *c->cost);
    for (int length = 1; length <= c->n && !s->p->failed; length++)
        for (int a = 0; a + length <= c->n; a++)
            if (c->row[a * (c->n + 1) + length - 1] == rows) {
                gckpti_fill_row(c, a, a + length - 1, rows);
                rows++;
            }
    s->items += (int64_t)cells * c->n / 24;
    int spaced = GCKPTI_SEEDS / s->p->units;
    spaced = spaced < 8 ? 8 : spaced > 50 ? 50 : spaced;
    uint64_t last = UINT64_MAX;
    for (int m = (int)(least / c->step), before = 0; m <= c->steps && !s->p->failed; m++) {
        uint64_t cost = c->cost[gckpti_cells(c, c->row[c->n - 1]) + (size_t)m];
        int again = small && c->step == s->grain && cost == last; /* it may lie in fewer bytes */
        if (cost == GCKPTI_NEVER || (cost >= last && !again) ||
            (!small && (int64_t)(m - before) * spaced < before))
            continue;
        last = cost;
        before = m;
        gckpti_emit_table(c, m);
        gckpti_seed(s);
    }
}

/* The programme on the stages of one way to cut: seeds. 0: there are no stages. */
static int gckpti_seed_chain(gckpti_search *s, int how, int64_t most)
{
    gckpti_planner *p = s->p;
    size_t n = (size_t)p->units;
    gckpti_chain c;
    memset(&c, 0, sizeof c);
    if (most < s->grain || !gckpti_find_borders(s))
        return 0;
    c.s = s;
    c.scratch = gckpti_scratch_new(p->memory, &p->failed);
    for (int stages = GCKPTI_STAGES; !p->failed; stages /= 2) {
        gckpti_find_stages(&c, how, stages);
        n = ((size_t)c.n + 1) * ((size_t)c.n + 1);
        c.crossing = (int64_t *)gckpti_scratch_take(&c.scratch, n, sizeof(int64_t));
        c.row = (int *)gckpti_scratch_take(&c.scratch, n, sizeof(int));
        c.rows = 0;
        if (!p->failed)
            gckpti_compare_stages(&c);
        if (stages < 64 || (int64_t)c.rows * c.n <= GCKPTI_ROWS)
            break;
    }
    if (c.n < 2 || (how == GCKPTI_AT_NARROW && c.borders > c.n)) {
        gckpti_scratch_free(&c.scratch);
        return c.n > 1;
    }
    int64_t units = 0, trials = GCKPTI_TRIALS;
    for (int a = 0; a < c.n; a++) {
        int size = c.stage[a].end - c.stage[a].first;
        c.room = size > c.room ? size : c.room;
        units += c.stage[a].owner == a ? size : 0;
    }
    n = (size_t)p->units;
    c.trial = (unsigned char *)gckpti_scratch_take(&c.scratch, (size_t)c.room, 1);
    c.room = 5 * c.room + 64;
    c.item = (int *)gckpti_scratch_take(&c.scratch, (size_t)c.room * 2, sizeof(int));
    c.has = (unsigned char *)gckpti_scratch_take(&c.scratch, n, 1);
    c.wants = (unsigned char *)gckpti_scratch_take(&c.scratch, n, 1);
    c.runs = (int *)gckpti_scratch_take(&c.scratch, n, sizeof(int));
    for (int a = 0; a < c.n && !p->failed; a++)
        if (c.stage[a].owner == a) {
            int64_t size = c.stage[a].end - c.stage[a].first, before = s->looked;
            gckpti_find_options(&c, &c.stage[a], trials * size / units);
            trials -= s->looked - before;
            units -= size;
        }
    for (int part = 1; part <= 16 && !p->failed; part *= 4)
        gckpti_seed_table(&c, part < 16 ? most / part / 4 : 0, most / part);
    gckpti_scratch_free(&c.scratch);
    return 1;
}

/* ---- offers and seeds ---- */
/* Orders schedules that are laid out: by bytes, then work, then anything that tells them apart
 * (number by number: as bytes the order would depend on the machine). */
static int gckpti_slot_before(const void *first, const void *second, const void *context)
{
    const gckpti_slot *a = (const gckpti_slot *)first, *b = (const gckpti_slot *)second;
    int x = 0;
    (void)context;
    while (a->length == b->length && x < a->length && a->item[x] == b->item[x])
        x++;
    return a->arena != b->arena     ? a->arena < b->arena
           : a->extra != b->extra   ? a->extra < b->extra
           : a->length != b->length ? a->length < b->length
                                    : x < a->length && a->item[x] < b->item[x];
}

/* Gives the present schedule to a slot if it fits there and is better than what the slot has. */
static void gckpti_offer(gckpti_search *s, gckpti_slot *slot)
{
    const gckpti_schedule *t = &s->now;
    int better = slot->length == 0 || t->extra < slot->extra ||
                 (t->extra == slot->extra && t->peak < slot->peak);
    if (t->peak <= slot->limit && better && !s->p->failed)
        gckpti_slot_store(s, slot, t);
}

/* Orders seeds: by live bytes, then work. */
static int gckpti_seed_before(const void *first, const void *second, const void *context)
{
    const gckpti_slot *a = (const gckpti_slot *)first, *b = (const gckpti_slot *)second;
    return a->peak != b->peak     ? a->peak < b->peak
           : a->extra != b->extra ? a->extra < b->extra
                                  : gckpti_slot_before(a, b, context);
}

/* Where bytes are fewest, a little less may lead far: seeds squeezed by 1/1000 are seeds, too. */
static void gckpti_sink_seeds(gckpti_search *s)
{
    const gckpti_planner *p = s->p;
    uint64_t least = UINT64_MAX;
    for (int i = 0, tried = 0, n = s->seeds; i < n && tried < GCKPTI_SINKS && !p->failed; i++) {
        if (s->seed[i].extra / 8 * 7 >= least || s->seed[i].extra < p->least_work / 4 ||
            s->seed[i].extra / 4 > p->least_work)
            continue;
        least = s->seed[i].extra < least ? s->seed[i].extra : least;
        tried++;
        s->items = s->looked = 0;
        int64_t limit = s->seed[i].peak - (s->seed[i].peak - s->gradient_between[0]) / 1000 - 1;
        if (!gckpti_slot_load(s, &s->seed[i]) || !gckpti_squeeze(s, limit, 0))
            continue;
        gckpti_polish(s, limit, 0);
        gckpti_slot *slot = gckpti_slot_new(s, &s->seed, &s->seeds);
        if (slot)
            gckpti_slot_store(s, slot, &s->now);
    }
    gckpti_sort(s->seed, (size_t)s->seeds, sizeof *s->seed, gckpti_seed_before, NULL);
}

/* Store-all, the same with late forwards, uniform segments, the user's, the chain's, memory-poor;
 * the user's and the chain's for backwards in order 0. */
static void gckpti_find_seeds(gckpti_search *s)
{
    gckpti_planner *p = s->p;
    size_t n = (size_t)p->body_count, groups = n + (size_t)p->g->outermost;
    p->made_length = 0;
    gckpti_make_store_all(p);
    gckpti_seed(s);
    int64_t most = s->seed ? s->seed[0].peak - s->gradient_between[0] : 0;
    gckpti_make_late(p, 0);
    gckpti_seed(s);
    for (size_t i = 0; i <= groups && !p->failed; i++) {
        if ((i >= n && p->variant.order) || (i < groups && gckpti_group_repeats(p, i)))
            continue;
        gckpti_make_segments(p, i < groups ? gckpti_group(p, i) : 0);
        gckpti_seed(s);
    }
    for (int how = 0, finer = 0; how < GCKPTI_BORDERS && !p->variant.order && !p->failed; how++) {
        if (how == GCKPTI_AT_UNITS && p->units > (finer ? GCKPTI_SMALL : GCKPTI_POOR))
            break;
        finer = gckpti_seed_chain(s, how, most);
    }
    if (s->p->units <= GCKPTI_POOR && !p->failed) {
        gckpti_make_late(p, -1);
        gckpti_seed(s);
    }
    gckpti_sort(s->seed, (size_t)s->seeds, sizeof *s->seed, gckpti_seed_before, NULL);
    gckpti_sink_seeds(s);
}

/* Takes one repeated forward out of a slot's schedule, over the limit if need be, and squeezes it
 * back without touching that unit: a way out of where single moves end. Tries the `tries` largest
 * savings, anew after each success. */
static void gckpti_shake(gckpti_search *s, gckpti_slot *slot, int tries, int exact)
{
    for (int i = 0; i < tries && slot->length && !gckpti_spent(s); i++) {
        uint64_t before = slot->extra;
        if (!gckpti_slot_load(s, slot))
            return;
        gckpti_find_repeats(s, INT64_MAX);
        if (i >= s->moves || s->p->failed)
            return;
        s->barred = s->move[i].unit;
        gckpti_try_without(s, &i, 1);
        gckpti_accept(s);
        int fits = gckpti_squeeze(s, slot->limit, exact);
        s->barred = -1;
        if (!fits)
            continue;
        gckpti_polish(s, slot->limit, exact);
        gckpti_offer(s, slot);
        i = slot->extra < before ? -1 : i;
    }
}

/* ---- cuts as schedules ---- */
/* Writes the body that computes all, as late as it is needed, keeps through the turn what `again`
 * does not mark, and computes or reloads the rest just before the first backward that needs it. */
static void gckpti_make_again(gckpti_planner *p, const unsigned char *again)
{
    int *stack = p->queue, next = p->prologue;
    unsigned char *there = p->computed;
    p->made_length = 0;
    for (int u = 0; u < p->units; u++)
        there[u] = !again[u] || p->when[u] > 0;
    for (int r = 0; r < p->body_ranks; r++) {
        const gckpti_unit *u = &p->unit[p->backward[r]];
        for (; next < p->units && p->when[p->late[next]] <= r; next++)
            gckpti_emit(p, p->late[next]);
        for (int k = 0; k < u->reads + u->reads_aux; k++) {
            int depth = 1;
            stack[0] = k < u->reads ? p->links[u->read + k] : p->backward[r];
            while (depth > 0) {
                const gckpti_unit *q = &p->unit[stack[depth - 1]];
                int missing = -1, far = again[stack[depth - 1]] == GCKPTI_FAR;
                for (int i = q->in; i < q->in + q->inputs && missing < 0 && !far; i++)
                    missing = there[p->links[i]] ? -1 : p->links[i];
                if (there[stack[depth - 1]]) {
                    depth--;
                } else if (missing >= 0) {
                    stack[depth++] = missing;
                } else {
                    there[stack[--depth]] = 1;
                    gckpti_emit(p, stack[depth] + (far ? p->units : 0));
                }
            }
        }
        gckpti_emit(p, ~p->backward[r]);
    }
}

/* Where a cut offloads more than slower memory holds, those that cost least to compute again, by
 * byte, are computed again (or kept, if they may not be). */
static void gckpti_limit_far(gckpti_search *s, unsigned char *again)
{
    const gckpti_planner *p = s->p;
    int64_t far = 0;
    size_t n = 0;
    if (!gckpti_want(&s->scratch, &s->key, 2 * (size_t)p->units, sizeof *s->key))
        return;
    for (int u = 0; u < p->units && p->offloads; u++) {
        int64_t bytes = again[u] == GCKPTI_FAR ? p->unit[u].out + p->unit[u].aux : 0;
        if (!bytes)
            continue;
        far += bytes;
        s->key[n].item = u;
        s->key[n++].key = p->unit[u].fixed ? UINT64_MAX : gckpti_score(p->unit[u].cost, bytes);
    }
    if (far <= p->far)
        return;
    gckpti_sort_keys(s->key, s->key + n, n);
    for (size_t k = 0; k < n && far > p->far; k++) {
        const gckpti_unit *u = &p->unit[s->key[k].item];
        again[s->key[k].item] = u->fixed ? 0 : GCKPTI_AGAIN;
        far -= u->out + u->aux;
    }
}

/* Makes the present schedule of such a body. */
static int64_t gckpti_try_late(gckpti_search *s, unsigned char *again)
{
    gckpti_planner *p = s->p;
    gckpti_limit_far(s, again);
    gckpti_make_again(p, again);
    if (!gckpti_finish(p, p->made, (int)p->made_length, &s->scratch, &s->now))
        return INT64_MAX;
    s->items += s->now.length;
    gckpti_evaluate(s, &s->now);
    return s->now.peak;
}

/* Whether the present schedule was to be improved for this rung already: then it ends as before. */
static int gckpti_again(gckpti_search *s, int exact)
{
    uint64_t hash = GCKPTI_FNV_START + (uint64_t)exact;
    for (int x = 0; x < s->now.length; x++)
        hash = (hash ^ (uint32_t)s->now.item[x]) * UINT64_C(0x100000001b3);
    for (int i = 0; i < s->attempts; i++)
        if (s->tried[i] == hash)
            return 1;
    if (s->attempts < GCKPTI_ATTEMPTS)
        s->tried[s->attempts++] = hash;
    return 0;
}

/* Gives the present schedule to a slot, squeezed if it must be and is not far above the limit, and
 * polished. */
static void gckpti_improve(gckpti_search *s, gckpti_slot *slot, int exact)
{
    if (s->now.peak / 5 * 4 > slot->limit || gckpti_again(s, exact))
        return;
    int above = s->now.peak > slot->limit;
    s->attempt = exact ? -1 : s->items + s->looked / 4; /* one of many: an eighth of it all */
    if (gckpti_squeeze(s, slot->limit, exact) && !(above && gckpti_again(s, exact))) {
        gckpti_polish(s, slot->limit, exact);
        gckpti_offer(s, slot);
    }
    s->attempt = -1;
}

/* Whether a slot's schedule is as good as proven, nearly. */
static int gckpti_certified(const gckpti_search *s, const gckpti_slot *slot)
{
    return slot->length > 0 && slot->extra - slot->bound <= s->enough;
}

/* A slot's schedule from all cuts of the instant that decides: the first that fits; else, or when
 * it is not good enough, those that keep a little more, squeezed. */
static void gckpti_solve_counted(gckpti_search *s, gckpti_slot *slot, const gckpti_instant *t)
{
    const gckpti_kept_list *all = &t->all.last;
    int64_t room = slot->limit - t->gradients;
    int cut = gckpti_cut_within(all, room), fits = 0;
    for (int tried = 0; cut >= 0 && tried < 6 && !fits && !s->p->failed; cut--, tried++) {
        gckpti_cut_mark(s->bound, &t->all, cut);
        fits = gckpti_try_late(s, s->bound->again) <= slot->limit;
        if (fits)
            gckpti_offer(s, slot);
        if ((fits || tried == 0) && !gckpti_certified(s, slot))
            gckpti_improve(s, slot, 0);
    }
    for (int part = 80; all->n > 0 && part >= 20 && !gckpti_certified(s, slot); part /= 2) {
        cut = gckpti_cut_within(all, room + slot->limit / part);
        if (cut < 0)
            continue;
        gckpti_cut_mark(s->bound, &t->all, cut);
        gckpti_try_late(s, s->bound->again);
        gckpti_improve(s, slot, 0);
    }
}

/* Marks in `out` what is computed again when of the ties between two cuts of a hull, from the last
 * unit to the first, `bytes` are kept: as late as possible (way 0), with gaps that grow with the
 * root of what the backwards have freed (1), or evenly (2). */
static void gckpti_keep_ties(gckpti_search *s, int way, int64_t ties, int64_t bytes,
                             unsigned char *out)
{
    const gckpti_planner *p = s->p;
    int64_t seen = 0, kept = 0;
    int shift = 0;
    while (ties >> shift >= 1 << 20)
        shift++;
    memcpy(out, s->fewer, (size_t)p->units);
    for (int u = p->units; u-- > 0;) {
        int64_t size = p->unit[u].out + p->unit[u].aux, now = (kept + size) >> shift;
        if (!s->fewer[u] || s->more[u])
            continue;
        seen += size;
        int64_t most = bytes >> shift, all = ties >> shift, part = seen >> shift;
        if (way == 0   ? kept + size > bytes
            : way == 1 ? now * now * (all + 1) > most * most * (part + 1)
                       : now * (all + 1) > most * (part + 1))
            continue;
        kept += size;
        out[u] = 0;
    }
}

/* A slot's schedule from the two cuts of a hull around its limit: what one keeps and the other does
 * not may be kept in part. */
static void gckpti_solve_ties(gckpti_search *s, gckpti_slot *slot, const gckpti_instant *t,
                              const gckpti_cut_table *cuts)
{
    const gckpti_kept_list *hull = &cuts->last;
    int64_t room = slot->limit - t->gradients, ties = 0;
    int cut = gckpti_cut_within(hull, room);
    if (cut < 0)
        return;
    gckpti_cut_mark(s->bound, cuts, cut);
    memcpy(s->fewer, s->bound->again, (size_t)s->p->units);
    memset(s->more, 0, (size_t)s->p->units);
    if (cut + 1 < hull->n) {
        gckpti_cut_mark(s->bound, cuts, cut + 1);
        memcpy(s->more, s->bound->again, (size_t)s->p->units);
    }
    for (int u = 0; u < s->p->units; u++)
        ties += s->fewer[u] && !s->more[u] ? s->p->unit[u].out + s->p->unit[u].aux : 0;
    for (int way = 0; way < 3 && !s->p->failed; way++) {
        int64_t bytes = room - hull->cut[cut].bytes, over = 0;
        for (int tries = 0; tries < 2 && bytes >= 0; tries++, bytes -= over) {
            if (gckpti_certified(s, slot) || gckpti_spent(s))
                return;
            gckpti_keep_ties(s, way, ties, bytes < ties ? bytes : ties, s->bound->again);
            over = gckpti_try_late(s, s->bound->again) - slot->limit;
            if (over > slot->limit / 4)
                return; /* far above whatever is kept */
            gckpti_improve(s, slot, 0);
            if (over <= 0)
                break;
        }
    }
}

/* ---- the ladder ---- */
/* The limits: from store-all's bytes down to what is proven to be needed, each a little below the
 * one above. Rungs never depend on a budget. */
static void gckpti_make_rungs(gckpti_search *s, int64_t most)
{
    int64_t resident = s->gradient_between[0], least = s->bound->least;
    int units = s->p->units, part = units <= 300 ? 40 : units <= 1000 ? 25 : 12, at;
    int every = (most - least) / s->grain <= 96;
    uint64_t deep = gckpti_hulls_work(s->bound, least, &at) / 8 * 7;
    for (int64_t limit = most; limit >= least;) {
        gckpti_slot *slot = gckpti_slot_new(s, &s->slot, &s->slots);
        int64_t step = every ? s->grain : (limit - resident) / part;
        if (!slot)
            return;
        slot->limit = limit;
        if (!every && gckpti_hulls_work(s->bound, limit, &at) > deep)
            step *= units <= 300 ? 2 : 3;  /* where proofs are weak, rungs are dear */
        step = step / s->grain * s->grain; /* as live bytes are */
        step = step > 0 ? step : s->grain;
        limit = limit - least > step ? limit - step : limit > least ? least : least - 1;
    }
    for (int k = 0; k < s->slots; k++)
        if (gckpti_hulls_work(s->bound, s->slot[k].limit, &at) < UINT64_MAX)
            s->deciders |= 1u << at;
}

/* Begins a rung: what its limit proves, and what cuts find. Returns whether more may be found. */
static int gckpti_begin_rung(gckpti_search *s, gckpti_slot *slot)
{
    int at;
    if (slot->state != GCKPTI_NEW)
        return slot->state == GCKPTI_BEGUN;
    s->items = s->looked = s->attempts = 0;
    slot->state = GCKPTI_BEGUN;
    slot->bound = gckpti_bound_work(s->bound, slot->limit, &at);
    if (slot->bound < UINT64_MAX) {
        gckpti_instant *t = &s->bound->instant[at];
        gckpti_solve_counted(s, slot, t);
        if (!gckpti_certified(s, slot))
            gckpti_solve_ties(s, slot, t, &t->hull);
        for (int c = 1; c <= GCKPTI_CHEAP && s->p->offloads && !gckpti_certified(s, slot); c++)
            gckpti_solve_ties(s, slot, t, gckpti_cheap_cuts(s->bound, t, c));
    }
    if (slot->bound == UINT64_MAX || gckpti_certified(s, slot))
        slot->state = GCKPTI_DONE;
    return slot->state == GCKPTI_BEGUN;
}

/* Whether a rung takes up what the one above found. */
static int gckpti_follows(const gckpti_search *s, int k)
{
    return s->whole ? k > 0 : k % GCKPTI_GROUP != 0;
}

/* Ends it: the best seed within its limit, polished; seeds not far above it and the rung above,
 * squeezed. */
static void gckpti_end_rung(gckpti_search *s, int k)
{
    gckpti_slot *slot = &s->slot[k];
    int exact = s->p->units <= GCKPTI_EXACT, best = -1, above = 0, tried = 0;
    if (slot->state != GCKPTI_BEGUN)
        return;
    s->items = s->looked = 0;
    if (s->seeds == 0)
        gckpti_find_seeds(s);
    s->items = s->looked = s->attempts = 0;
    slot->state = GCKPTI_DONE;
    for (; above < s->seeds && s->seed[above].peak <= slot->limit; above++) {
        if (best < 0 || s->seed[above].extra <= s->seed[best].extra)
            best = above;
    }
    for (int i = above, most = GCKPTI_TRIED; exact && i-- > 0 && most > 0;)
        if (!s->seed[i].dominated && most-- && gckpti_slot_load(s, &s->seed[i]))
            gckpti_improve(s, slot, 1);
    if (best >= 0 && gckpti_slot_load(s, &s->seed[best])) {
        gckpti_offer(s, slot);
        gckpti_improve(s, slot, 0);
    }
    if (gckpti_follows(s, k) && s->slot[k - 1].length == 0)
        return; /* with more bytes nothing was found */
    for (uint64_t least = UINT64_MAX; above < s->seeds && tried < 4; above++)
        if (s->seed[above].extra / 8 * 7 <= least && s->seed[above].extra / 4 <= s->p->least_work &&
            gckpti_slot_load(s, &s->seed[above])) {
            least = s->seed[above].extra < least ? s->seed[above].extra : least;
            gckpti_improve(s, slot, 0);
            tried++;
        }
    for (int how = 0; how <= exact && gckpti_follows(s, k); how++)
        if (gckpti_slot_load(s, &s->slot[k - 1]))
            gckpti_improve(s, slot, how);
    if (s->p->units <= GCKPTI_SMALL)
        gckpti_shake(s, slot, exact ? s->p->units : GCKPTI_SHAKES, exact);
}

/* Finds the schedule of rung k. The rung above has a part in it, unless that is certified or
 * belongs to another group. */
static void gckpti_solve(gckpti_search *s, int k)
{
    int top = k;
    while (gckpti_begin_rung(s, &s->slot[top]) && gckpti_follows(s, top) && !s->p->failed)
        top--;
    for (; top <= k && !s->p->failed; top++)
        gckpti_end_rung(s, top);
}

/* ---- exact bytes ---- */
/* Drafts and places a slot's schedule: slot->arena, p->draft. */
static gckpt_result gckpti_lay(gckpti_search *s, gckpti_slot *slot)
{
    gckpti_planner *p = s->p;
    gckpt_result result = gckpti_make_draft(p, slot->item, slot->length);
    int large = gckpti_too_large(p, result);
    if (result == GCKPT_OK)
        result = gckpti_place_draft(p);
    slot->arena = large ? SIZE_MAX : p->draft.arena;
    slot->extra = p->draft.work - p->draft.least_work; /* pins may ask for more than the list has */
    slot->moved = p->draft.moved;
    return large ? GCKPT_OK : result;
}

/* Makes a slot the winner if it fits in `most` bytes, `floor` being the least it counts for, and
 * has less work than the one before, or as much in fewer bytes; s->hunting: fewer bytes. */
static gckpt_result gckpti_consider(gckpti_search *s, gckpti_slot *slot, int64_t floor, size_t most)
{
    const gckpti_slot *old = &s->winner;
    gckpt_result result = GCKPT_OK;
    if (slot->length == 0 || (old->length && !s->hunting && slot->extra > old->extra))
        return GCKPT_OK;
    int64_t least = slot->peak - s->bound->spare; /* bytes of its arena */
    int equal = old->length && (s->hunting ? least >= (int64_t)s->bytes
                                           : slot->extra == old->extra &&
                                                 least >= (int64_t)old->arena);
    if (slot->arena == 0 && (equal || least > (int64_t)most))
        return GCKPT_OK;
    if (slot->arena == 0)
        result = gckpti_lay(s, slot);
    size_t bytes = slot->arena > (size_t)floor ? slot->arena : (size_t)floor;
    int better = !old->length ||
                 (s->hunting ? bytes < s->bytes
                             : slot->extra < old->extra || gckpti_slot_before(slot, old, NULL));
    if (result == GCKPT_OK && bytes <= most && better) {
        s->winner = *slot;
        s->bytes = bytes;
    }
    return result;
}

/* The least budget for which rung k counts: the limit of the rung below. */
static int64_t gckpti_below(const gckpti_search *s, int k)
{
    return k + 1 < s->slots && !s->whole ? s->slot[k + 1].limit : 0;
}

/* Considers what rung k offers, for budgets above the rung below: its schedule; when that has a
 * larger arena than the limit, the same squeezed a little further; and, where it is not certified,
 * the seeds between the two rungs. */
static gckpt_result gckpti_consider_rung(gckpti_search *s, int k, size_t most)
{
    gckpti_solve(s, k);
    gckpti_slot *slot = &s->slot[k];
    int64_t below = gckpti_below(s, k);
    gckpt_result result = s->p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
    if (result == GCKPT_OK && slot->length && slot->arena == 0) /* it tells of all that follows */
        result = gckpti_lay(s, slot);
    if (result == GCKPT_OK)
        result = gckpti_consider(s, slot, below, most);
    if (slot->arena > (size_t)slot->limit && slot->arena < SIZE_MAX && !slot->tight) {
        int64_t limit = 2 * slot->limit - (int64_t)slot->arena;
        s->items = s->looked = 0;
        slot->tight = (gckpti_slot *)gckpti_scratch_take(&s->scratch, 1, sizeof *slot);
        if (slot->tight && gckpti_slot_load(s, slot) && gckpti_squeeze(s, limit, 0)) {
            gckpti_polish(s, limit, 0);
            gckpti_slot_store(s, slot->tight, &s->now);
        }
    }
    if (result == GCKPT_OK && slot->tight)
        result = gckpti_consider(s, slot->tight, below, most);
    for (int i = 0; i < s->seeds && result == GCKPT_OK; i++)
        if (s->whole || (!gckpti_certified(s, slot) && s->seed[i].peak > below &&
                         s->seed[i].peak <= slot->limit))
            result = gckpti_consider(s, &s->seed[i], below, most);
    return s->p->failed ? GCKPT_E_MEMORY : result;
}

/* Considers cuts of an instant themselves, `tries` of them at the most: those with least work that
 * may lie within `most` bytes. */
static gckpt_result gckpti_consider_cuts(gckpti_search *s, int at, size_t most, int tries)
{
    const gckpti_instant *t = &s->bound->instant[at];
    const gckpti_kept_list *all = gckpti_all_cuts(s->bound, at);
    int64_t limit = (int64_t)gckpti_round_up(most, s->p->alignment);
    gckpti_known *known = s->known[at];
    gckpt_result result = GCKPT_OK;
    if (!known && all->n > 0)
        s->known[at] = known =
            (gckpti_known *)gckpti_scratch_take(&s->scratch, (size_t)all->n, sizeof *known);
    for (int e = gckpti_cut_within(all, limit - t->gradients);
         known && e >= 0 && tries > 0 && result == GCKPT_OK && !s->p->failed; e--) {
        if (s->winner.length && !s->hunting && !s->late && gckpti_cut_work(t, e) >= s->winner.extra)
            break;
        if (known[e].arena > most || known[e].peak > limit)
            continue;
        gckpti_cut_mark(s->bound, &t->all, e);
        known[e].peak = gckpti_try_late(s, s->bound->again);
        tries--;
        if (known[e].peak > limit || s->p->failed)
            continue;
        gckpti_slot slot = s->trial;
        gckpti_slot_store(s, &slot, &s->now);
        result = s->p->failed ? GCKPT_E_MEMORY : gckpti_consider(s, &slot, 0, most);
        known[e].arena = slot.arena;
        s->trial = slot;
        if (s->winner.item == slot.item)
            memset(&s->trial, 0, sizeof s->trial); /* the winner keeps the list */
    }
    return s->p->failed ? GCKPT_E_MEMORY : result;
}

/* Considers cuts of all instants that decide for some budget. */
static gckpt_result gckpti_consider_instants(gckpti_search *s, size_t most, int tries)
{
    gckpt_result result = GCKPT_OK;
    for (int at = 0; at < s->bound->instants && result == GCKPT_OK; at++)
        if (s->deciders >> at & 1)
            result = gckpti_consider_cuts(s, at, most, tries);
    return result;
}

/* Finds what has least work in an arena of `most` bytes: s->winner, whose length is 0 when there is
 * nothing; s->bytes: the least budget for which it counts. What counts is the same for all budgets:
 * cuts, and what a rung offers down to the rung below. That is looked at which may be better than
 * the best so far, as a rung with a greater bound is not. */
static gckpt_result gckpti_choose(gckpti_search *s, size_t most)
{
    gckpt_result result = GCKPT_OK;
    int k = 0, at;
    most = most < PTRDIFF_MAX / 2 ? most : PTRDIFF_MAX / 2;
    const int64_t limit = (int64_t)gckpti_round_up(most, s->p->alignment);
    memset(&s->winner, 0, sizeof s->winner);
    s->hunting = 0;
    while (k < s->slots && s->slot[k].limit > limit)
        k++;
    k = s->whole || k == 0 ? 0 : k - 1;
    uint64_t bound = gckpti_bound_work(s->bound, limit, &at);
    if (bound < UINT64_MAX)
        result = gckpti_consider_instants(s, most, 8);
    for (int i = k; i < s->slots && result == GCKPT_OK && !s->p->failed; i++) {
        if (s->slot[i].limit <= limit)
            bound = gckpti_bound_work(s->bound, s->slot[i].limit, &at);
        if (bound == UINT64_MAX || (s->winner.length && s->winner.extra <= bound))
            break;
        result = gckpti_consider_rung(s, i, most);
    }
    if (result == GCKPT_OK)
        result = gckpti_consider_instants(s, most, INT32_MAX);
    return s->p->failed ? GCKPT_E_MEMORY : result;
}

/* The least budget for which gckpti_choose finds something, where that is below `enough`; SIZE_MAX:
 * it is not. */
static gckpt_result gckpti_find_least(gckpti_search *s, size_t enough, size_t *least)
{
    gckpt_result result = GCKPT_OK;
    const size_t most = SIZE_MAX / 4;
    memset(&s->winner, 0, sizeof s->winner);
    s->hunting = 1;
    for (int k = s->slots; k-- > 0 && result == GCKPT_OK;) {
        if ((size_t)gckpti_below(s, k) >= enough)
            break;
        result = gckpti_consider_rung(s, k, most);
        if (s->winner.length && s->bytes <= (size_t)s->slot[k].limit && !s->whole)
            break;
    }
    if (s->winner.length && result == GCKPT_OK)
        result = gckpti_consider_instants(s, s->bytes - 1, INT32_MAX);
    *least = s->winner.length ? s->bytes : SIZE_MAX;
    return s->p->failed ? GCKPT_E_MEMORY : result;
}

/* Readies a search: sizes, the bound, the ladder, whose first rung is store-all. */
static gckpt_result gckpti_search_open(gckpti_search *s, gckpti_planner *p)
{
    size_t n = (size_t)p->units;
    memset(s, 0, sizeof *s);
    s->p = p;
    s->scratch = gckpti_scratch_new(p->memory, &p->failed);
    s->barred = -1;
    s->attempt = -1;
    for (int u = p->prologue; u < p->units; u++)
        s->late = s->late || p->when[u] > 0;
    s->whole = p->units <= GCKPTI_LITTLE;
    s->enough = s->whole ? 0 : p->least_work / 1000;
    gckpt_result result = p->most > 0 ? GCKPT_OK : gckpti_draft_mode(p, GCKPT_STORE_ALL, 0);
    if (p->most > GCKPTI_SEARCHED && p->most <= (double)GCKPTI_ADDRESSABLE)
        return gckpti_error(p->g, GCKPT_E_MEMORY,
                            "plan: %g bytes without recomputing are too many to search below; "
                            "use fewer rows",
                            p->most);
    if (p->failed || p->most > GCKPTI_SEARCHED ||
        (result != GCKPT_OK && !gckpti_too_large(p, result)))
        return GCKPT_E_MEMORY;
    gckpti_search_sizes(s);
    s->fewer = (unsigned char *)gckpti_scratch_take(&s->scratch, n, 1);
    s->more = (unsigned char *)gckpti_scratch_take(&s->scratch, n, 1);
    if (p->failed)
        return GCKPT_E_MEMORY;
    gckpti_open_bounds(p);
    s->bound = p->bound;
    memset(s->more, 0, n);
    int64_t most = p->failed ? 0 : gckpti_try_late(s, s->more);
    if (!p->failed)
        gckpti_make_rungs(s, most);
    if (!p->failed)
        gckpti_offer(s, &s->slot[0]);
    if (!p->failed && s->whole)
        gckpti_find_seeds(s);
    return p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
}

/* =================================================================================================
 * >>plan-tells: what a plan tells
 * ============================================================================================== */
GCKPT_API size_t gckpt_plan_arena(const gckpt_plan *plan) { return plan ? plan->arena : 0; }
GCKPT_API size_t gckpt_plan_bound(const gckpt_plan *plan) { return plan ? plan->bound : 0; }
GCKPT_API size_t gckpt_plan_offloaded(const gckpt_plan *plan) { return plan ? plan->offloaded : 0; }
GCKPT_API double gckpt_plan_recompute(const gckpt_plan *plan) { return plan ? plan->recompute : 0; }
GCKPT_API uint64_t gckpt_plan_work(const gckpt_plan *plan) { return plan ? plan->work : 0; }
GCKPT_API int64_t gckpt_plan_rows(const gckpt_plan *plan) { return plan ? plan->rows : 0; }
GCKPT_API int64_t gckpt_plan_batch(const gckpt_plan *plan) { return plan ? plan->batch : 0; }
GCKPT_API int gckpt_plan_in_backward(const gckpt_plan *plan)
{
    return plan && plan->update_in_backward;
}

static int gckpti_ins_tensor(const gckpt_plan *plan, const gckpti_ins *ins)
{
    return ins->kind == GCKPT_UPDATE ? plan->params[ins->id].node : ins->id;
}

/* Bytes of a node's value in the arena. */
static size_t gckpti_node_bytes(const gckpti_node *q)
{
    return (size_t)gckpti_elements(&q->shape) * (q->rounding & GCKPTI_NARROW_VALUE ? 2 : 4);
}

GCKPT_API gckpt_result gckpt_plan_usage(const gckpt_plan *plan, int i, gckpt_usage *out)
{
    if (!plan || !out || i < 0 || (size_t)i >= plan->length)
        return GCKPT_E_ARG;
    const gckpti_ins *ins = &plan->list[i];
    const gckpti_node *node = &plan->nodes[gckpti_ins_tensor(plan, ins)];
    gckpti_operands o;
    size_t planned = 0; /* as the work is reckoned, rounded up */
    out->moved = 0;
    gckpti_operands_of(plan->operands, ins, node->inputs, &o);
    for (int aux = 0; aux < 2 && ins->kind >= GCKPT_OFFLOAD; aux++) {
        size_t bytes = (aux ? o.aux : o.out) == GCKPTI_NONE ? 0
                       : aux                                ? node->aux_bytes
                                                            : gckpti_node_bytes(node);
        out->moved += bytes;
        planned += gckpti_round_up(bytes, plan->alignment);
    }
    out->work = ins->kind == GCKPT_FORWARD ? node->cost.forward
                : ins->kind == GCKPT_BACKWARD
                    ? node->cost.backward
                    : gckpti_copy_work(plan->offload_work, (int64_t)planned);
    out->live = ins->live;
    out->again = ins->kind == GCKPT_FORWARD && !ins->first;
    out->once = i < plan->body || i >= plan->epilogue;
    return GCKPT_OK;
}

GCKPT_API uint64_t gckpt_plan_step_work(const gckpt_plan *plan)
{
    uint64_t body = 0, once = 0;
    gckpt_usage u;
    if (!plan)
        return 0;
    for (int i = 0; gckpt_plan_usage(plan, i, &u) == GCKPT_OK; i++) {
        uint64_t *sum = u.once ? &once : &body;
        *sum = gckpti_add_work(*sum, u.work);
    }
    uint64_t rows = (uint64_t)plan->rows, batch = (uint64_t)plan->batch;
    if (body / rows >= UINT64_MAX / 2 / batch)
        return UINT64_MAX;
    body = body / rows * batch + body % rows * batch / rows; /* a short one: in proportion */
    return gckpti_add_work(once, body);
}

GCKPT_API double gckpt_plan_overhead(const gckpt_plan *plan)
{
    return plan && plan->least_work
               ? (double)(plan->work - plan->least_work) / (double)plan->least_work
               : 0;
}

GCKPT_API uint64_t gckpt_plan_proven_work(const gckpt_plan *plan)
{
    return plan ? plan->proven_work : 0;
}

GCKPT_API double gckpt_plan_gap(const gckpt_plan *plan)
{
    return plan && plan->least_work
               ? (double)(plan->work - plan->proven_work) / (double)plan->least_work
               : 0;
}

GCKPT_API gckpt_mode gckpt_plan_mode(const gckpt_plan *plan)
{
    return plan ? plan->mode : GCKPT_AUTO;
}
GCKPT_API int gckpt_plan_length(const gckpt_plan *plan) { return plan ? (int)plan->length : 0; }

GCKPT_API size_t gckpt_plan_bytes(const gckpt_plan *plan)
{
    return plan ? plan->kind_bytes[GCKPT_BYTES_PARAMETERS] + plan->kind_bytes[GCKPT_BYTES_STATE] +
                      plan->arena
                : 0;
}

GCKPT_API size_t gckpt_plan_proven_bytes(const gckpt_plan *plan)
{
    return plan ? plan->proven_bytes : 0;
}

GCKPT_API size_t gckpt_plan_kind_bytes(const gckpt_plan *plan, int kind)
{
    if (plan && kind == GCKPT_BYTES_TABLES)
        return gckpti_plan_copy(NULL, plan);
    return plan && kind >= 0 && kind < GCKPT_BYTES_KINDS ? plan->kind_bytes[kind] : 0;
}

GCKPT_API gckpt_result gckpt_plan_get(const gckpt_plan *plan, int i, gckpt_instruction *out)
{
    if (!plan || !out || i < 0 || (size_t)i >= plan->length)
        return GCKPT_E_ARG;
    out->kind = (gckpt_kind)plan->list[i].kind;
    out->id = gckpti_ins_tensor(plan, &plan->list[i]);
    return GCKPT_OK;
}

static const char *gckpti_node_name(const gckpt_plan *plan, int id)
{
    const gckpti_node *node = &plan->nodes[id];
    return node->name != GCKPTI_NONE ? plan->names + node->name : node->op ? node->op->name : "";
}

GCKPT_API const char *gckpt_plan_name(const gckpt_plan *plan, int id)
{
    return plan && id >= 0 && (size_t)id < plan->node_count ? gckpti_node_name(plan, id) : "";
}

GCKPT_API const char *gckpt_plan_op(const gckpt_plan *plan, int id)
{
    const gckpt_op *op =
        plan && id >= 0 && (size_t)id < plan->node_count ? plan->nodes[id].op : NULL;
    return op ? op->name : "";
}

GCKPT_API uint64_t gckpt_plan_hash(const gckpt_plan *plan) { return plan ? plan->hash : 0; }

GCKPT_API int gckpt_plan_buffers(const gckpt_plan *plan)
{
    return plan ? (int)plan->life_count : 0;
}

GCKPT_API gckpt_result gckpt_plan_buffer(const gckpt_plan *plan, int i, gckpt_buffer *out)
{
    if (!plan || !out || i < 0 || (size_t)i >= plan->life_count)
        return GCKPT_E_ARG;
    *out = plan->lives[i];
    return GCKPT_OK;
}

GCKPT_API int gckpt_plan_split_exact(const gckpt_plan *plan, const char **op)
{
    int mixer = plan ? plan->mixer : -1;
    for (size_t i = 0; plan && mixer < 0 && i < plan->node_count; i++)
        mixer = plan->nodes[i].rounding & GCKPTI_MIXES ? (int)i : -1;
    if (op)
        *op = mixer < 0 ? NULL : gckpti_node_name(plan, mixer);
    return plan && mixer < 0;
}

GCKPT_API const char *gckpt_mode_name(gckpt_mode mode)
{
    static const char *const names[] = { "auto", "store-all", "memory-poor", "segments",
                                         "sqrt", "optimal",   "schedule",    "inference" };
    return (unsigned)mode <= GCKPT_INFERENCE ? names[mode] : "not a gckpt_mode";
}

/* What runs, on which tensor, what it writes where: one line of gckpt_plan_print. */
static void gckpti_print_instruction(gckpti_sink *k, const gckpt_plan *plan, int x)
{
    static const char *const verbs[] = { "forward ", "backward", "update  ", "offload ",
                                         "reload  " };
    const gckpti_ins *ins = &plan->list[x];
    int id = gckpti_ins_tensor(plan, ins);
    const gckpti_node *node = &plan->nodes[id];
    gckpti_operands o;
    gckpt_usage u;
    gckpt_plan_usage(plan, x, &u);
    gckpti_operands_of(plan->operands, ins, node->inputs, &o);
    gckpti_print(k, "%i\t%s %s #%i %s %S%s", x, verbs[ins->kind],
                 node->op ? node->op->name : "param", id,
                 node->name != GCKPTI_NONE ? plan->names + node->name : "", &node->shape,
                 u.again ? " again" : "");
    if ((ins->kind == GCKPT_FORWARD || ins->kind == GCKPT_RELOAD) && o.out != GCKPTI_NONE)
        gckpti_print(k, " at %z", o.out);
    if (u.moved)
        gckpti_print(k, ", %z bytes", u.moved);
    for (int i = 0; i < node->inputs; i++)
        if (o.in[i].gradient != GCKPTI_NONE)
            gckpti_print(k, "%s #%i at %z", ins->accumulate & (1 << i) ? " adds to" : " writes",
                         node->in[i], o.in[i].gradient);
    if (ins->kind == GCKPT_UPDATE)
        gckpti_print(k, " from %z", o.gradient);
    gckpti_print(k, ", %z live\n", u.live);
}

GCKPT_API gckpt_result gckpt_plan_print(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    static const char *const kinds[] = { "parameters", "optimiser state", "gradients",
                                         "activations", "workspace" };
    static const char *const precisions[] = { "", ", bf16", ", bf16 rounded by chance",
                                              ", fast bf16" };
    gckpti_sink k = { write, user, 0, 0, 0, { 0 } };
    if (!plan || !write)
        return GCKPT_E_ARG;
    gckpti_print(&k,
                 "plan %s: %z bytes (parameters + state + arena of %z, lower bound %z), "
                 "%g %% recomputed, %i instructions\n",
                 gckpt_mode_name(plan->mode), gckpt_plan_bytes(plan), plan->arena, plan->bound,
                 100 * plan->recompute, (int)plan->length);
    gckpti_print(&k,
                 "work %u a micro-batch; proven: no schedule in its budget has less than %u, none "
                 "fits in less than %z bytes\n",
                 plan->work, plan->proven_work, gckpt_plan_proven_bytes(plan));
    gckpti_print(&k, "micro-batch %I of a batch of %I, %i threads, offsets aligned to %z%s\n",
                 plan->rows, plan->batch, plan->threads, plan->alignment,
                 precisions[plan->precision]);
    for (int i = 0; i < GCKPT_BYTES_TABLES; i++)
        gckpti_print(&k, "  %s: %z bytes\n", kinds[i], plan->kind_bytes[i]);
    if (plan->offloaded)
        gckpti_print(&k, "  offloaded: %z bytes of slower memory\n", plan->offloaded);
    for (int x = 0; x < (int)plan->length && !k.failed; x++) {
        if (x == plan->epilogue)
            gckpti_print(&k, "-- once a step, at the end\n");
        else if (x == plan->body)
            gckpti_print(&k, plan->looped ? "-- for each micro-batch\n" : "-- batch\n");
        gckpti_print_instruction(&k, plan, x);
    }
    return gckpti_sink_flush(&k);
}

/* =================================================================================================
 * >>plans: from a request to a plan; the frontier; the micro-batch
 *
 * gckpti_planner_open checks a request (gckpti_check_request) and makes the model of the graph as
 * it was built; gckpti_add_variants, where the plan may choose, those of other variants, a planner
 * each. gckpti_plan_request decides: the mode asked for; or store-all if it fits, else the search,
 * first of the variant whose proven work is least, then of those that may still have less than the
 * best so far. Each time p->best is a draft that is placed. The best of all is encoded, and
 * gckpti_prove_plan notes what is proven about all of them. A frontier asks the searches for budget
 * after budget from the largest down, keeps models and schedules, and drafts a point when it is
 * asked for its plan. gckpt_fit does all of it for each micro-batch size.
 * ============================================================================================== */
/* What can be wrong with term i of a request. */
static gckpt_result gckpti_check_term(gckpt_graph *g, const gckpt_term *terms, int i, int inference)
{
    const gckpt_tensor *t = terms[i].loss;
    if (!t || t->graph != g)
        return gckpti_error(g, GCKPT_E_ARG, "plan: the loss of term %i is %s", i,
                            t ? "of another graph" : "NULL");
    if (!gckpti_is_loss(t))
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: term %i: %T is not a loss; gckpt_sum_loss makes one of it", i,
                            t);
    if (i == 0 && (terms[0].regulariser || t->batchless) && !inference)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: the first term counts the step and must depend on an input");
    if (!(terms[i].weight >= -FLT_MAX && terms[i].weight <= FLT_MAX))
        return gckpti_error(g, GCKPT_E_ARG, "plan: the weight of term %i is not finite", i);
    if (terms[i].regulariser && !t->batchless)
        return gckpti_error(
            g, GCKPT_E_ARG,
            "plan: term %i: a regulariser may depend on parameters only, %T depends on "
            "inputs",
            i, t);
    if (!terms[i].regulariser && t->batchless)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: term %i: %T depends on parameters only; mark it as regulariser",
                            i, t);
    for (int k = 0; k < i; k++)
        if (terms[k].loss == t)
            return gckpti_error(g, GCKPT_E_ARG, "plan: terms %i and %i are the same loss", k, i);
    return GCKPT_OK;
}

/* What can be wrong with a request before any planning. */
static gckpt_result gckpti_check_request(gckpt_graph *g, const gckpt_term *terms, int count,
                                         const gckpt_plan_desc *d)
{
    int inference = d->mode == GCKPT_INFERENCE;
    if ((unsigned)d->mode > GCKPT_INFERENCE || (unsigned)d->optimiser > GCKPT_OWN_OPTIMISER ||
        d->own_state < 0 || d->own_state > 4 || d->threads < 0 || d->threads > 1024 ||
        d->group < -INT32_MAX || d->batch < 0 || (unsigned)d->precision > GCKPT_BF16_FAST)
        return gckpti_error(
            g, GCKPT_E_ARG,
            "plan: a field of the desc is out of range (mode, optimiser, own_state 0..4, "
            "threads 0..1024, group, batch, precision)");
    if (d->precision == GCKPT_BF16_FAST && !(d->backend && d->backend->find_fast))
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: %s has no kernels of GCKPT_BF16_FAST; GCKPT_BF16 takes the same "
                            "bytes and runs everywhere",
                            d->backend ? d->backend->name : "the processor");
    if (d->alignment & (d->alignment - 1) || d->alignment > 65536 ||
        (d->alignment && d->alignment < sizeof(float)))
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: alignment %z must be a power of two from 4 to 65536",
                            d->alignment);
    if (count < 0 || (count > 0 && !terms) || d->fetches < 0 || (d->fetches > 0 && !d->fetch) ||
        (d->mode == GCKPT_SCHEDULE && (!d->schedule || d->instructions <= 0)))
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: terms, fetch or schedule is NULL or its count is negative");
    if (!inference && d->batch && d->batch < g->rows)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: desc.batch is %I, but the graph has %I rows: build it with at "
                            "most %I, or leave desc.batch 0 (steps may have fewer rows)",
                            d->batch, g->rows, d->batch);
    if (count == 0 && (!inference || d->fetches == 0))
        return gckpti_error(
            g, GCKPT_E_ARG,
            "plan: training needs at least one loss term; inference a term or a fetch");
    if (d->costs && (d->cost_count < 0 || (size_t)d->cost_count != g->count))
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: costs are given for %i tensors; the graph has %z", d->cost_count,
                            g->count);
    if (g->segment >= 0)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: a segment is still open; gckpt_segment_end is missing");
    for (int i = 0; i < count; i++)
        if (gckpti_check_term(g, terms, i, inference) != GCKPT_OK)
            return GCKPT_E_ARG;
    if (d->update_in_backward == GCKPT_IF_USEFUL)
        return gckpti_error(g, GCKPT_E_ARG,
                            "plan: update_in_backward must be 0 or 1; gckpt_fit can choose");
    if (d->update_in_backward && (inference || (d->batch > g->rows)))
        return gckpti_error(
            g, GCKPT_E_ARG,
            "plan: update_in_backward needs the whole batch in one micro-batch (batch %I, the "
            "graph has %I rows)",
            d->batch, g->rows);
    return GCKPT_OK;
}

/* Whether all that is to be fetched has a value or a gradient in the arena. */
static gckpt_result gckpti_check_fetches(gckpti_planner *p)
{
    for (int i = 0; i < p->desc->fetches; i++) {
        const gckpt_tensor *t = p->desc->fetch[i].tensor;
        if (!t || t->graph != p->g)
            return gckpti_error(p->g, GCKPT_E_ARG, "plan: fetch %i is %s", i,
                                t ? "of another graph" : "NULL");
        if (!p->desc->fetch[i].gradient && (t->base->kind != GCKPTI_OP || gckpti_is_loss(t)))
            return gckpti_error(
                p->g, GCKPT_E_ARG,
                "plan: fetch %i: %T is not the result of an op (values of inputs are the "
                "caller's, of parameters the store's, of losses the report's)",
                i, t);
        if (p->desc->fetch[i].gradient && (!p->active[t->base->id] || gckpti_is_loss(t)))
            return gckpti_error(
                p->g, GCKPT_E_ARG,
                "plan: fetch %i: %T has no gradient: it does not lead from a trainable "
                "parameter to a loss",
                i, t);
    }
    return GCKPT_OK;
}

/* A planner without drafts, yet. */
static void gckpti_planner_drafts(gckpti_planner *p)
{
    memset(&p->draft, 0, sizeof p->draft);
    p->draft.scratch = p->pass = gckpti_scratch_new(p->memory, &p->failed);
    p->best = p->draft;
}

/* Gives back all but the model. */
static void gckpti_planner_rest(gckpti_planner *p)
{
    gckpti_delete(p->memory, p->made, p->made_capacity, sizeof *p->made);
    gckpti_scratch_free(&p->draft.scratch);
    gckpti_scratch_free(&p->best.scratch);
    gckpti_scratch_free(&p->pass);
    p->made = NULL;
    p->made_capacity = 0;
}

/* Frees what a planner has, and those of other variants behind it. */
static void gckpti_planner_free(gckpti_planner *p)
{
    gckpti_planner_rest(p);
    gckpti_scratch_free(&p->scratch);
    while (p->next) {
        gckpti_planner *q = p->next;
        p->next = q->next;
        gckpti_planner_rest(q);
        gckpti_scratch_free(&q->scratch);
        gckpti_delete(p->memory, q, 1, sizeof *q);
    }
}

/* Takes what lives as long as a planner of p->n tensors. */
static gckpt_result gckpti_planner_memory(gckpti_planner *p)
{
    gckpti_scratch *s = &p->scratch;
    size_t n = (size_t)p->n, units = 0;
    for (size_t i = 0; i < n; i++)
        units += p->g->tensors[i]->kind == GCKPTI_OP ||
                 (p->g->tensors[i]->kind == GCKPTI_PARAM && p->staged);
    *s = gckpti_scratch_new(p->memory, &p->failed);
    gckpti_planner_drafts(p);
    p->tensors = (const gckpt_tensor **)gckpti_scratch_take(s, n, sizeof *p->tensors);
    for (size_t i = 0; i < n && p->tensors; i++)
        p->tensors[i] = p->g->tensors[i];
    p->active = (unsigned char *)gckpti_scratch_take(s, n, 1);
    p->rounding = (unsigned char *)gckpti_scratch_take(s, n, 1);
    p->work_forward = (size_t *)gckpti_scratch_take(s, n, sizeof(size_t));
    p->work_backward = (size_t *)gckpti_scratch_take(s, n, sizeof(size_t));
    p->cost = (gckpt_cost *)gckpti_scratch_take(s, n, sizeof *p->cost);
    p->model = (gckpt_cost *)gckpti_scratch_take(s, n, sizeof *p->model);
    p->body = (int *)gckpti_scratch_take(s, units, sizeof(int));
    p->unit = (gckpti_unit *)gckpti_scratch_take(s, units, sizeof *p->unit);
    p->of = (int *)gckpti_scratch_take(s, n, sizeof(int));
    p->backward = (int *)gckpti_scratch_take(s, units, sizeof(int));
    p->first_use = (int *)gckpti_scratch_take(s, n, sizeof(int));
    p->whole = (int *)gckpti_scratch_take(s, n, sizeof(int));
    p->left = (int *)gckpti_scratch_take(s, units, sizeof(int));
    p->latest = (int *)gckpti_scratch_take(s, units, sizeof(int));
    p->queue = (int *)gckpti_scratch_take(s, units, sizeof(int));
    p->behind = (unsigned char *)gckpti_scratch_take(s, units, 1);
    p->computed = (unsigned char *)gckpti_scratch_take(s, units, 1);
    p->stale = (unsigned char *)gckpti_scratch_take(s, units, 1);
    return p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
}

/* Makes the model of a request that was checked, for p->variant; none when that is not offered. */
static gckpt_result gckpti_make_model(gckpti_planner *p)
{
    gckpt_result result = gckpti_planner_memory(p);
    int trains = p->inference;
    if (result != GCKPT_OK)
        return result;
    gckpti_mark_rounding(p);
    gckpti_find_active(p);
    if (p->variant.form) {
        gckpti_take_form(p);
        gckpti_find_active(p);
    }
    if (p->variant.form && !p->offered)
        return p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
    for (int i = 0; i < p->n && !p->failed && result == GCKPT_OK; i++) {
        if (p->tensors[i]->kind == GCKPTI_OP)
            result = gckpti_ask_op(p, p->tensors[i]);
        trains = trains || (p->tensors[i]->kind == GCKPTI_PARAM && p->active[i]);
    }
    if (result == GCKPT_OK && !p->failed)
        result = gckpti_check_fetches(p);
    if (result == GCKPT_OK && !p->failed && !trains)
        result = gckpti_error(p->g, GCKPT_E_ARG,
                              "plan: no trainable parameter leads to a loss "
                              "(all frozen?); there is nothing to train");
    if (result != GCKPT_OK || p->failed)
        return p->failed ? GCKPT_E_MEMORY : result;
    gckpti_model_units(p);
    if (!p->failed)
        gckpti_model_gradients(p);
    gckpti_find_late(p);
    for (int u = 0; u < p->units; u++) {
        const gckpt_cost *cost = &p->cost[p->unit[u].id];
        p->least_work = gckpti_add_work(p->least_work, cost->forward);
        p->least_work = gckpti_add_work(p->least_work, p->unit[u].rank < 0 ? 0 : cost->backward);
    }
    if (p->failed)
        return GCKPT_E_MEMORY;
    return gckpti_check_work(p);
}

/* Checks a request; readies a planner of one of its variants, yet without the model. */
static gckpt_result gckpti_planner_start(gckpti_planner *p, gckpti_allocator *memory,
                                         gckpt_graph *graph, const gckpt_term *terms, int count,
                                         const gckpt_plan_desc *d, gckpti_variant variant)
{
    memset(p, 0, sizeof *p);
    p->variant = variant;
    p->memory = memory;
    p->g = graph;
    p->desc = d;
    p->terms = terms;
    p->term_count = count;
    p->n = (int)graph->count;
    p->threads = d->threads ? d->threads : 1;
    p->alignment = d->alignment ? d->alignment : 64;
    p->inference = d->mode == GCKPT_INFERENCE;
    p->looped = !p->inference && d->batch > graph->rows;
    p->staged = d->stage_parameters;
    if (!p->inference && !d->update_in_backward && !variant.near)
        p->far = (int64_t)(d->offload_bytes < PTRDIFF_MAX / 2 ? d->offload_bytes
                                                              : (size_t)PTRDIFF_MAX / 2);
#ifdef GCKPT_NO_FAST
    p->plain = 1;
#else
    p->plain = d->plain != 0 || d->backend;
#endif
    return gckpti_check_request(graph, terms, count, d);
}

/* Checks a request and readies a planner of the graph as it was built; the caller frees it either
 * way. */
static gckpt_result gckpti_planner_open(gckpti_planner *p, gckpti_allocator *memory,
                                        gckpt_graph *graph, const gckpt_term *terms, int count,
                                        const gckpt_plan_desc *d)
{
    const gckpti_variant built = { 0, 0, 0 };
    gckpt_result result = gckpti_planner_start(p, memory, graph, terms, count, d, built);
    return result == GCKPT_OK ? gckpti_make_model(p) : result;
}

/* Adds the planner of one more variant of p's request behind the last one, where it is offered and
 * of use. */
static gckpt_result gckpti_add_variant(gckpti_planner *p, gckpti_planner **last, gckpti_variant v)
{
    gckpti_planner *q = (gckpti_planner *)gckpti_new(p->memory, 1, sizeof *q);
    gckpt_result result =
        q ? gckpti_planner_start(q, p->memory, p->g, p->terms, p->term_count, p->desc, v)
          : GCKPT_E_MEMORY;
    if (result == GCKPT_OK) {
        q->built = p->cost;
        q->built_model = p->model;
        result = gckpti_make_model(q);
    }
    int of_use = result == GCKPT_OK && (v.order > 0 || v.near || q->offered);
    for (const gckpti_planner *r = p; r && of_use && v.order == 0 && !v.near; r = r->next)
        of_use = gckpti_is_of_use(q, r);
    p->failed = result == GCKPT_E_MEMORY;
    if (of_use) {
        *last = (*last)->next = q;
        p->least_work = q->least_work < p->least_work ? q->least_work : p->least_work;
        return GCKPT_OK;
    }
    if (q)
        gckpti_planner_free(q);
    gckpti_delete(p->memory, q, 1, sizeof *q);
    return result;
}

/* Adds planners behind an open one, for the other variants that its request may choose from: forms,
 * of each the orders that promise fewer bytes, and all of these without slower memory, which a
 * search without it may find more for. Backends may have kernels of their own; what
 * OpenBLAS adds up depends on sizes. */
static gckpt_result gckpti_add_variants(gckpti_planner *p)
{
    const gckpt_plan_desc *d = p->desc;
    gckpti_planner *last = p;
    gckpt_result result = GCKPT_OK;
    gckpti_variant v = { 1, 0, 0 };
    int optimal = d->mode == GCKPT_AUTO || d->mode == GCKPT_OPTIMAL;
    int chooses = optimal && !d->as_built && !d->backend;
#ifdef GCKPT_OPENBLAS
    chooses = 0;
#endif
    for (; chooses && v.form < GCKPTI_FORMS && result == GCKPT_OK; v.form++)
        result = gckpti_add_variant(p, &last, v);
    for (const gckpti_planner *form = p; form; form = form->next)
        for (v.form = form->variant.form, v.order = 1; v.order < GCKPTI_ORDER_COUNT; v.order++)
            if (form->orders >> v.order & 1 && result == GCKPT_OK)
                result = gckpti_add_variant(p, &last, v);
    for (const gckpti_planner *q = p, *end = last; optimal && p->far > 0 && result == GCKPT_OK;
         q = q->next) {
        v = q->variant;
        v.near = 1;
        result = gckpti_add_variant(p, &last, v);
        if (q == end)
            break;
    }
    for (gckpti_planner *q = p->next; q; q = q->next)
        q->least_work = p->least_work;
    return result;
}

/* Reports what a planner ended with on its graph; other errors are there already. */
static void gckpti_planner_report(const gckpti_planner *p, gckpt_result result)
{
    int failed = 0;
    for (const gckpti_planner *q = p; q; q = q->next)
        failed = failed || q->failed;
    if (failed)
        gckpti_error(p->g, GCKPT_E_MEMORY, "plan: no memory to plan %z tensors", p->g->count);
    else if (result == GCKPT_OK)
        gckpti_ok(p->g);
}

/* Reports that a budget is too small, and the least that is not. */
static void gckpti_too_small(const gckpti_planner *p, size_t least)
{
    gckpt_mode mode = p->desc->mode;
    p->g->least = least;
    gckpti_error(p->g, GCKPT_E_BUDGET,
                 "budget %z bytes is too small: this graph needs at least %z%s", p->desc->budget,
                 least,
                 mode == GCKPT_AUTO || mode == GCKPT_OPTIMAL || mode == GCKPT_INFERENCE
                     ? ""
                     : " in this mode (GCKPT_AUTO needs least)");
}

/* Drafts one mode: p->best, placed. */
static gckpt_result gckpti_plan_mode(gckpti_planner *p, gckpt_mode mode)
{
    if (mode == GCKPT_SQRT && p->desc->group == 0)
        return gckpti_find_sqrt(p);
    gckpt_result result = gckpti_place_mode(p, mode, p->desc->group);
    if (result == GCKPT_OK)
        gckpti_keep_draft(p);
    return result;
}

/* Drafts what has least work in most_bytes of the arena, by a search: p->best, placed. Otherwise
 * *least is what the smallest needs. */
static gckpt_result gckpti_plan_optimal(gckpti_planner *p, size_t most_bytes, size_t *least)
{
    gckpti_search s;
    *least = 0;
    gckpt_result result = gckpti_search_open(&s, p);
    if (result == GCKPT_OK && most_bytes > 0)
        result = gckpti_choose(&s, most_bytes);
    if (result == GCKPT_OK && s.winner.length > 0) {
        *least = s.bytes;
        result = gckpti_lay(&s, &s.winner);
        gckpti_keep_draft(p);
    } else if (result == GCKPT_OK) {
        result = gckpti_find_least(&s, SIZE_MAX, least);
        if (result == GCKPT_OK && *least == SIZE_MAX)
            result = GCKPT_E_MEMORY; /* none that this machine can address: the error is there */
    }
    gckpti_scratch_free(&s.scratch);
    return result;
}

/* Bytes that a budget leaves for the arena, as many as can be addressed; 0: none. */
static size_t gckpti_arena_budget(const gckpti_planner *p)
{
    size_t kinds[GCKPT_BYTES_KINDS], resident = gckpti_resident(p, kinds);
    size_t budget = p->desc->budget ? p->desc->budget : SIZE_MAX;
    size_t left = budget > resident ? budget - resident : 0;
    return left < PTRDIFF_MAX ? left : (size_t)PTRDIFF_MAX;
}

/* Drafts what one variant is asked for: p->best, placed. *needed: bytes of the arena, SIZE_MAX when
 * this machine cannot address them. */
static gckpt_result gckpti_plan_variant(gckpti_planner *p, gckpt_mode mode, size_t arena,
                                        size_t *needed)
{
    gckpt_result result =
        mode == GCKPT_OPTIMAL ? gckpti_plan_optimal(p, arena, needed) : gckpti_plan_mode(p, mode);
    if (result != GCKPT_OK)
        *needed = SIZE_MAX;
    else if (mode != GCKPT_OPTIMAL)
        *needed = p->best.arena;
    return result;
}

/* What is proven about all plans of a request within the bytes of each of n points, and *least, the
 * bytes that none can do without: the least of all its variants. Other modes are planned in little
 * memory, so their hulls will do. */
static gckpt_result gckpti_prove(const gckpti_planner *first, gckpt_point *point, size_t n,
                                 size_t *least)
{
    int searched = first->desc->mode == GCKPT_AUTO || first->desc->mode == GCKPT_OPTIMAL;
    size_t kinds[GCKPT_BYTES_KINDS], resident = gckpti_resident(first, kinds);
    *least = SIZE_MAX;
    for (const gckpti_planner *p = first; p; p = p->next) {
        gckpti_bound *b = p->bound;
        if (p->failed)
            return GCKPT_E_MEMORY;
        for (int k = 0; b && k < b->instants && !searched; k++)
            b->instant[k].tried = 1;
        for (size_t i = 0; i < n; i++) {
            uint64_t work = gckpti_prove_work(b, point[i].bytes - resident);
            if (p == first || work < point[i].proven_work)
                point[i].proven_work = work;
        }
        size_t bytes = resident + gckpti_prove_bytes(b);
        *least = bytes < *least ? bytes : *least;
    }
    return GCKPT_OK;
}

/* Notes it for a plan and its budget (0: its own bytes). NULL, and the plan is gone: no memory. */
static gckpt_plan *gckpti_prove_plan(const gckpti_planner *first, size_t budget, gckpt_plan *plan)
{
    gckpt_point at = { budget ? budget : gckpt_plan_bytes(plan), 0, 0, 0, 0 };
    size_t least;
    if (plan && gckpti_prove(first, &at, 1, &least) != GCKPT_OK) {
        gckpt_plan_free(plan);
        return NULL;
    }
    if (plan) {
        plan->proven_work = at.proven_work;
        plan->proven_bytes = least;
    }
    return plan;
}

/* Whether a draft is better than another: it has less work or, with as much, fewer bytes. */
static int gckpti_is_better(const gckpti_draft *d, const gckpti_draft *than)
{
    return d->work != than->work ? d->work < than->work : d->arena < than->arena;
}

/* The variant whose proven work is least; their bounds are open afterwards. */
static gckpti_planner *gckpti_promising(gckpti_planner *first, const gckpti_planner *end,
                                        size_t arena)
{
    gckpti_planner *least = first;
    gckpti_open_bounds(first);
    for (gckpti_planner *p = first; p != end && !p->failed; p = p->next)
        if (gckpti_prove_work(p->bound, arena) < gckpti_prove_work(least->bound, arena))
            least = p;
    return least;
}

/* The variant to look at behind p: `promising`, then the others in their order. */
static gckpti_planner *gckpti_next_variant(gckpti_planner *p, const gckpti_planner *promising,
                                           gckpti_planner *first, const gckpti_planner *end)
{
    p = p == promising ? first : p->next;
    p = p && p != end && p == promising ? p->next : p;
    return p == end ? NULL : p;
}

/* Plans what open planners were asked for, from `first` up to `end`; `drafted`: the store-all draft
 * of the first is its best already. NULL: *result says why, or the budget is too small and *least
 * bytes would do. */
static gckpt_plan *gckpti_plan_request(gckpti_planner *first, const gckpti_planner *end,
                                       int drafted, gckpt_result *result, size_t *least)
{
    gckpt_mode mode = first->desc->mode;
    int automatic = mode == GCKPT_AUTO, too_large = 0;
    size_t kinds[GCKPT_BYTES_KINDS], arena = gckpti_arena_budget(first), needed, own;
    gckpti_planner *best;
    for (mode = automatic ? GCKPT_STORE_ALL : mode;; mode = GCKPT_OPTIMAL) {
        best = NULL;
        needed = SIZE_MAX;
        gckpti_planner *promising =
            mode == GCKPT_OPTIMAL ? gckpti_promising(first, end, arena) : first;
        for (gckpti_planner *p = promising; p; p = gckpti_next_variant(p, promising, first, end)) {
            *result = p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
            if (p->failed)
                return NULL;
            if (mode == GCKPT_OPTIMAL && best &&
                best->best.work <= gckpti_prove_work(p->bound, arena))
                continue;
            own = p->best.arena;
            *result = drafted ? GCKPT_OK : gckpti_plan_variant(p, mode, arena, &own);
            too_large = too_large || gckpti_too_large(p, *result);
            if (*result != GCKPT_OK && !gckpti_too_large(p, *result))
                return NULL;
            if (own <= arena && (!best || gckpti_is_better(&p->best, &best->best)))
                best = p;
            needed = own < needed ? own : needed;
            drafted = 0;
        }
        if (best || !automatic || mode == GCKPT_OPTIMAL || !first->desc->budget)
            break;
    }
    *result = !best && too_large && needed == SIZE_MAX ? GCKPT_E_MEMORY : GCKPT_OK;
    *least = gckpti_resident(first, kinds) + needed;
    gckpt_plan *plan = best ? gckpti_encode(best, &best->best, mode) : NULL;
    if (best && !plan)
        *result = GCKPT_E_MEMORY;
    return plan;
}

GCKPT_API gckpt_plan *gckpt_plan_new(gckpt_graph *graph, const gckpt_term *terms, int count,
                                     const gckpt_plan_desc *desc)
{
    gckpt_plan_desc d;
    gckpti_planner p;
    gckpt_plan *plan = NULL;
    size_t least = 0;
    if (!graph || graph->object.sticky != GCKPT_OK)
        return NULL;
    memset(&d, 0, sizeof d);
    if (desc)
        d = *desc;
    gckpti_allocator memory = { d.memory, 0 };
    gckpt_result result = gckpti_planner_open(&p, &memory, graph, terms, count, &d);
    if (result == GCKPT_OK)
        result = gckpti_add_variants(&p);
    if (result == GCKPT_OK)
        plan = gckpti_plan_request(&p, NULL, 0, &result, &least);
    if (plan) {
        int budget = d.mode == GCKPT_AUTO || d.mode == GCKPT_OPTIMAL;
        gckpti_open_bounds(&p);
        plan = gckpti_prove_plan(&p, budget ? d.budget : 0, plan);
        p.failed = !plan;
    }
    gckpti_planner_report(&p, result);
    gckpti_planner_free(&p);
    if (result == GCKPT_OK && !plan && !p.failed)
        gckpti_too_small(&p, least);
    return gckpti_plan_settle(plan);
}

/* ---- the frontier ---- */
/* Where a point comes from: a body of a variant's schedule. */
typedef struct {
    gckpt_point point;
    gckpti_planner *p;
    int *item, length;
} gckpti_found;

struct gckpt_frontier {
    gckpti_object object;
    gckpti_allocator memory;
    gckpti_planner p;     /* and those behind it: their models serve for the plans of all points */
    gckpt_plan_desc desc; /* with copies of what it points to */
    gckpt_point *points;
    gckpti_found *found;    /* the same, with their schedules */
    size_t count, resident; /* resident: bytes of parameters and optimiser state */
    size_t proven_bytes;
    int complete;
};

GCKPT_API void gckpt_frontier_free(gckpt_frontier *f)
{
    if (!f)
        return;
    gckpti_allocator a = f->memory;
    gckpti_planner_free(&f->p);
    gckpti_delete(&a, f, 1, sizeof *f);
}

/* Copies what desc points to into the frontier, as its planner has it. */
static gckpt_result gckpti_frontier_request(gckpt_frontier *f)
{
    gckpti_planner *p = &f->p;
    gckpt_plan_desc *d = &f->desc;
    size_t n = d->costs ? (size_t)p->n : 0, terms = (size_t)p->term_count;
    gckpti_scratch *s = &p->scratch;
    void *costs = gckpti_scratch_copy(s, d->costs, n, sizeof *d->costs);
    d->costs = n ? (gckpt_cost *)costs : NULL;
    d->fetch = (gckpt_pick *)gckpti_scratch_copy(s, d->fetch, (size_t)d->fetches, sizeof *d->fetch);
    p->terms = (gckpt_term *)gckpti_scratch_copy(s, p->terms, terms, sizeof *p->terms);
    return p->failed ? GCKPT_E_MEMORY : GCKPT_OK;
}

/* The most bytes of an arena, up to `budget`, in which a variant may have less work than the points
 * there are. */
static size_t gckpti_frontier_skip(const gckpt_frontier *f, gckpti_bound *b, size_t budget)
{
    for (int found = 1; found;) {
        uint64_t proven = gckpti_prove_work(b, budget);
        found = 0;
        for (size_t i = 0; i < f->count; i++) {
            size_t bytes = f->found[i].point.bytes - f->resident;
            if (bytes <= budget && f->found[i].point.work <= proven) {
                budget = bytes - 1;
                found = 1;
            }
        }
    }
    return budget;
}

/* Adds the points of a variant's search, which is laid out, where they may be better than those
 * there are. */
static gckpt_result gckpti_frontier_add(gckpt_frontier *f, gckpti_search *s)
{
    gckpti_planner *p = s->p;
    uint64_t forward = 0, least = p->least_work, own = p->draft.least_work;
    for (int u = 0; u < p->units; u++)
        forward += p->unit[u].cost;
    size_t budget = 0, fewest = SIZE_MAX, k = 0;
    for (size_t i = 0; i < f->count; i++)
        if (f->found[i].point.bytes - f->resident < fewest)
            fewest = f->found[i].point.bytes - f->resident;
    gckpt_result result = gckpti_find_least(s, fewest, &budget);
    if (result == GCKPT_OK && budget == SIZE_MAX && f->count == 0)
        result = GCKPT_E_MEMORY; /* none that this machine can address: the error is there */
    size_t least_bytes = budget < fewest ? budget : fewest;
    for (budget = SIZE_MAX; result == GCKPT_OK;) {
        budget = gckpti_frontier_skip(f, s->bound, budget);
        if (budget < least_bytes)
            break;
        result = gckpti_choose(s, budget);
        const gckpti_slot *slot = &s->winner;
        if (result != GCKPT_OK || slot->length == 0)
            break;
        own = p->draft.least_work;
        uint64_t work = own + slot->extra;
        double recompute = forward ? (double)(slot->extra - slot->moved) / (double)forward : 0;
        gckpti_found next = { { f->resident + s->bytes, work, recompute, 0, 0 }, p, NULL, 0 };
        next.point.overhead = least ? (double)(work - least) / (double)least : 0;
        next.item = (int *)gckpti_scratch_take(&p->scratch, (size_t)slot->length, sizeof(int));
        if (!next.item || !gckpti_want(&f->p.scratch, &f->found, f->count, sizeof next))
            return GCKPT_E_MEMORY;
        for (int x = 0; x < slot->length; x++) /* what runs once a step is no choice */
            if (gckpti_unit_of(p, slot->item[x]) >= p->prologue)
                next.item[next.length++] = slot->item[x];
        f->found[f->count++] = next;
        if (s->bytes <= least_bytes)
            break;
        budget = s->bytes - 1;
        while (!s->whole && k + 1 < (size_t)s->slots && (size_t)s->slot[k].limit > budget)
            k++;
        if (!s->whole && budget > (size_t)s->slot[k].limit)
            budget = (size_t)s->slot[k].limit;
        budget = budget > least_bytes ? budget : least_bytes;
    }
    f->complete = f->complete && !s->cut;
    return result;
}

/* By bytes, then work, then variant. */
static int gckpti_found_before(const void *first, const void *second, const void *context)
{
    const gckpti_found *a = (const gckpti_found *)first, *b = (const gckpti_found *)second;
    (void)context;
    if (a->point.bytes != b->point.bytes)
        return a->point.bytes < b->point.bytes;
    const gckpti_variant *v = &a->p->variant, *w = &b->p->variant;
    return a->point.work != b->point.work ? a->point.work < b->point.work
           : v->form != w->form           ? v->form < w->form
           : v->order != w->order         ? v->order < w->order
                                          : v->near < w->near;
}

/* Leaves of all points those that no other one is better than. */
static gckpt_result gckpti_frontier_merge(gckpt_frontier *f)
{
    size_t n = f->count;
    f->points = (gckpt_point *)gckpti_scratch_take(&f->p.scratch, n, sizeof *f->points);
    if (!f->points)
        return GCKPT_E_MEMORY;
    gckpti_sort(f->found, n, sizeof *f->found, gckpti_found_before, NULL);
    f->count = 0;
    for (size_t i = 0; i < n; i++)
        if (!f->count || f->found[i].point.work < f->points[f->count - 1].work) {
            f->found[f->count] = f->found[i];
            f->points[f->count++] = f->found[i].point;
        }
    return GCKPT_OK;
}

/* Searches all variants, lays everything out, and keeps the points. */
static gckpt_result gckpti_frontier_search(gckpt_frontier *f)
{
    size_t kinds[GCKPT_BYTES_KINDS];
    gckpt_result result = GCKPT_OK;
    f->resident = gckpti_resident(&f->p, kinds);
    f->complete = 1;
    gckpti_planner *p = f->p.next ? f->p.next : &f->p, *next;
    for (; p && result == GCKPT_OK; p = next) { /* what is chosen most often first */
        gckpti_search s;
        next = p == &f->p ? NULL : p->next ? p->next : &f->p;
        result = gckpti_search_open(&s, p);
        if (result == GCKPT_OK)
            result = gckpti_frontier_add(f, &s);
        gckpti_scratch_free(&s.scratch);
        gckpti_planner_rest(p);
    }
    if (result == GCKPT_OK)
        result = gckpti_frontier_merge(f);
    if (result == GCKPT_OK)
        result = gckpti_prove(&f->p, f->points, f->count, &f->proven_bytes);
    for (size_t i = f->count; result == GCKPT_OK && i-- > 1;) /* holds in fewer bytes, too */
        if (f->points[i - 1].proven_work < f->points[i].proven_work)
            f->points[i - 1].proven_work = f->points[i].proven_work;
    f->p.failed = f->p.failed || result == GCKPT_E_MEMORY;
    return result;
}

GCKPT_API gckpt_frontier *gckpt_frontier_new(gckpt_graph *graph, const gckpt_term *terms, int count,
                                             const gckpt_plan_desc *desc)
{
    gckpt_plan_desc d;
    if (!graph || graph->object.sticky != GCKPT_OK)
        return NULL;
    memset(&d, 0, sizeof d);
    if (desc)
        d = *desc;
    gckpti_allocator memory = { d.memory, 0 };
    if (d.mode == GCKPT_INFERENCE || d.memory.memory) {
        gckpti_error(graph, GCKPT_E_ARG, "frontier: %s",
                     d.memory.memory
                         ? "its plans would overwrite it in a block of memory; use the heap"
                         : "an inference plan recomputes nothing");
        return NULL;
    }
    d.mode = GCKPT_OPTIMAL;
    d.budget = 0;
    gckpt_frontier *f = (gckpt_frontier *)gckpti_new(&memory, 1, sizeof *f);
    if (!f) {
        gckpti_error(graph, GCKPT_E_MEMORY, "plan: no memory to plan %z tensors", graph->count);
        return NULL;
    }
    f->object.magic = GCKPTI_MAGIC;
    f->memory = memory;
    f->desc = d;
    gckpt_result result = gckpti_planner_open(&f->p, &f->memory, graph, terms, count, &f->desc);
    if (result == GCKPT_OK)
        result = gckpti_frontier_request(f);
    if (result == GCKPT_OK)
        result = gckpti_add_variants(&f->p);
    if (result == GCKPT_OK)
        result = gckpti_frontier_search(f);
    gckpti_planner_report(&f->p, result);
    if (result == GCKPT_OK)
        return f;
    gckpt_frontier_free(f);
    return NULL;
}

GCKPT_API int gckpt_frontier_points(const gckpt_frontier *f) { return f ? (int)f->count : 0; }

GCKPT_API int gckpt_frontier_complete(const gckpt_frontier *f) { return f ? f->complete : 0; }

GCKPT_API size_t gckpt_frontier_proven_bytes(const gckpt_frontier *f)
{
    return f ? f->proven_bytes : 0;
}

GCKPT_API gckpt_result gckpt_frontier_get(const gckpt_frontier *f, int i, gckpt_point *out)
{
    if (!f || !out || i < 0 || (size_t)i >= f->count)
        return GCKPT_E_ARG;
    *out = f->points[i];
    return GCKPT_OK;
}

GCKPT_API int gckpt_frontier_find(const gckpt_frontier *f, size_t budget)
{
    int found = -1;
    for (size_t i = 0; f && i < f->count && (!budget || f->points[i].bytes <= budget); i++)
        found = (int)i;
    return found;
}

GCKPT_API gckpt_plan *gckpt_frontier_plan(const gckpt_frontier *f, size_t budget)
{
    if (!f || f->p.g->object.sticky != GCKPT_OK)
        return NULL;
    int i = gckpt_frontier_find(f, budget);
    if (i < 0) {
        gckpti_error(f->p.g, GCKPT_E_BUDGET,
                     "budget %z bytes is too small: this graph needs at least %z", budget,
                     f->count ? f->points[0].bytes : (size_t)0);
        return NULL;
    }
    gckpti_allocator memory = f->memory;
    gckpti_planner p = *f->found[i].p; /* shares the model, and the marks of passes over it */
    p.memory = &memory;
    p.next = NULL;
    gckpti_planner_drafts(&p);
    gckpt_result result = gckpti_make_draft(&p, f->found[i].item, f->found[i].length);
    if (result == GCKPT_OK)
        result = gckpti_place_draft(&p);
    gckpt_plan *plan = result == GCKPT_OK ? gckpti_encode(&p, &p.draft, GCKPT_OPTIMAL) : NULL;
    if (plan) {
        const gckpt_point *next = budget && (size_t)i + 1 < f->count ? &f->points[i + 1] : NULL;
        plan = gckpti_prove_plan(&f->p, budget, plan);
        if (plan && next && next->proven_work > plan->proven_work)
            plan->proven_work = next->proven_work;
        p.failed = !plan;
    }
    gckpti_planner_rest(&p);
    gckpti_planner_report(&p, result);
    return plan;
}

/* ---- the micro-batch, chosen together with the plan ---- */
typedef struct {
    gckpt_store *store;
    gckpt_build build;
    gckpt_measure measure;
    void *user;
    gckpt_plan_desc desc;
    int64_t least_rows; /* of a micro-batch */
    gckpt_plan *best;
    uint64_t key;         /* of the first graph; 0: none yet */
    size_t params, least; /* parameters it left in the store; bytes that some size can do with */
    int unproven;         /* gckpti_prove has not seen the best yet */
    int hunting;          /* nothing fits: what is the least? */
    int named;            /* the size that was tried last has its part in `least` */
    int too_large;        /* some size has more bytes than this machine addresses */
} gckpti_fitting;

/* The greatest divisor of n below d; 0: there is none. */
static int64_t gckpti_next_divisor(int64_t n, int64_t d)
{
    int64_t k = n / d + 1;
    for (; k <= n / k; k++)
        if (n % k == 0)
            return n / k;
    for (k = k <= d ? k - 1 : d - 1; k > 0; k--)
        if (n % k == 0)
            return k;
    return 0;
}

/* What must not depend on the micro-batch: tensors, by kind, op and inputs; attributes may (a slice
 * of rows). Never 0. */
static uint64_t gckpti_graph_key(const gckpt_graph *g)
{
    uint64_t key = gckpti_fnv(GCKPTI_FNV_START, &g->count, sizeof g->count);
    for (size_t i = 0; i < g->count; i++) {
        const gckpt_tensor *t = g->tensors[i];
        int words[2 + GCKPT_MAX_INPUTS];
        words[0] = t->kind;
        words[1] = t->index;
        for (int k = 0; k < t->inputs; k++)
            words[2 + k] = t->in[k]->id;
        key = gckpti_fnv(key, words, (size_t)(2 + t->inputs) * sizeof *words);
        if (t->op)
            key = gckpti_fnv(key, t->op->name, strlen(t->op->name));
    }
    return key ? key : 1;
}

/* Bytes that no plan of a graph can do without, from its store-all draft: what the greediest
 * backward reads and writes (a buffer is used where it begins and ends), and what lives all through
 * a loop. */
static size_t gckpti_floor(gckpti_planner *p, gckpti_draft *d)
{
    size_t kinds[GCKPT_BYTES_KINDS], most = 0, resident = gckpti_resident(p, kinds);
    size_t *used = (size_t *)gckpti_scratch_take(&d->scratch, d->length + 1, sizeof *used);
    for (size_t i = 0; i < d->buffer_count && used; i++) {
        const gckpt_buffer *b = &d->buffers[i];
        if (p->looped && b->kind == GCKPT_BUFFER_PARAMETER_GRADIENT) {
            resident += b->size;
            continue;
        }
        used[b->start] += b->size;
        used[b->end] += b->end > b->start ? b->size : 0;
    }
    for (size_t x = 0; x < d->length && used; x++)
        if (d->ins[x].kind == GCKPT_BACKWARD && used[x] > most)
            most = used[x];
    return resident + most;
}

/* What mixes rows is planned whole. */
static int gckpti_cannot_split(const gckpt_plan *p) { return p->looped && p->mixer >= 0; }

/* Keeps a plan if it is the best so far: has least work, then the fewest bytes. */
static void gckpti_fit_keep(gckpti_fitting *f, gckpt_plan *plan)
{
    const gckpt_plan *best = f->best;
    uint64_t work = best ? gckpt_plan_step_work(best) : UINT64_MAX,
             own = gckpt_plan_step_work(plan);
    int better =
        !best || own < work || (own == work && gckpt_plan_bytes(plan) < gckpt_plan_bytes(best));
    if (gckpti_cannot_split(plan))
        better = 0;
    gckpt_plan_free(better ? best : plan);
    f->best = better ? plan : f->best;
    f->unproven = better || f->unproven;
}

/* Plans what an open planner was asked for, in its variant. Store-all has the least work of all its
 * plans: it is done when it fits, and when it is too slow, so are all others. */
static gckpt_result gckpti_fit_plan(gckpti_fitting *f, gckpti_planner *p)
{
    gckpt_mode mode = p->desc->mode;
    int whole = mode == GCKPT_AUTO || mode == GCKPT_STORE_ALL;
    size_t least = 0, budget = p->desc->budget;
    gckpt_result result = gckpti_plan_mode(p, GCKPT_STORE_ALL);
    if (result != GCKPT_OK && !gckpti_too_large(p, result))
        return result;
    gckpt_plan *plan = result == GCKPT_OK ? gckpti_encode(p, &p->best, GCKPT_STORE_ALL) : NULL;
    int drafted = plan != NULL, fits = plan && (!budget || gckpt_plan_bytes(plan) <= budget);
    int hopeless =
        plan && ((f->best && gckpt_plan_step_work(plan) > gckpt_plan_step_work(f->best)) ||
                 gckpti_cannot_split(plan));
    if (plan && !fits && gckpti_floor(p, &p->best) > (f->hunting ? f->least - 1 : budget))
        hopeless = 1;
    if (hopeless || !whole || !fits) {
        gckpt_plan_free(plan);
        plan = NULL;
    }
    if (p->failed)
        return GCKPT_E_MEMORY;
    f->named = f->named && !hopeless;
    if (!plan && !hopeless) {
        plan = gckpti_plan_request(p, p->next, drafted && whole, &result, &least);
        f->too_large = f->too_large || gckpti_too_large(p, result);
        if (result != GCKPT_OK)
            return gckpti_too_large(p, result) ? GCKPT_OK : result;
        if (!plan)
            f->least = least < f->least ? least : f->least;
    }
    if (plan)
        gckpti_fit_keep(f, plan);
    return GCKPT_OK;
}

/* Builds the graph of one micro-batch size. *count: its terms, or less than 0: not wanted. */
static gckpt_result gckpti_fit_build(gckpti_fitting *f, gckpt_graph *g, int64_t rows,
                                     gckpt_term *terms, int *count)
{
    *count = f->build(g, rows, terms, f->user);
    if (*count < 0 && g->object.sticky != GCKPT_E_MEMORY)
        return GCKPT_OK;
    if (g->object.sticky != GCKPT_OK || *count > GCKPT_MAX_TERMS)
        gckpti_error(g, GCKPT_E_ARG, "build returned %i terms; %i is the most", *count,
                     GCKPT_MAX_TERMS);
    else if (g->rows != rows)
        gckpti_error(g, GCKPT_E_ARG, "build made inputs of %I rows", g->rows);
    else if (f->key && (f->key != gckpti_graph_key(g) || f->params != f->store->count))
        gckpti_error(g, GCKPT_E_ARG,
                     "build made other tensors or parameters than for the batch's other "
                     "divisors; only shapes may depend on rows");
    else {
        f->key = gckpti_graph_key(g);
        f->params = f->store->count;
        return GCKPT_OK;
    }
    return g->object.sticky != GCKPT_OK ? g->object.sticky : GCKPT_E_ARG;
}

/* Plans a graph under each update rule that is possible. */
static gckpt_result gckpti_fit_rules(gckpti_fitting *f, gckpt_graph *g, const gckpt_term *terms,
                                     int count)
{
    gckpt_result result = GCKPT_OK;
    gckpt_plan_desc d = f->desc;
    int in_backward = d.update_in_backward;
    for (int rule = 0; rule < 2 && result == GCKPT_OK; rule++) {
        gckpti_planner p;
        gckpti_allocator memory = { d.memory, 0 };
        if (rule ? !in_backward || g->rows != d.batch : in_backward == 1)
            continue;
        d.update_in_backward = rule;
        result = gckpti_planner_open(&p, &memory, g, terms, count, &d);
        if (result == GCKPT_OK)
            result = gckpti_add_variants(&p);
        for (gckpti_planner *q = &p; q && result == GCKPT_OK; q = q->next)
            result = gckpti_fit_plan(f, q);
        if (f->best && f->unproven) {
            int budget = d.mode == GCKPT_AUTO || d.mode == GCKPT_OPTIMAL;
            gckpti_open_bounds(&p);
            f->best = gckpti_prove_plan(&p, budget ? d.budget : 0, f->best);
            f->unproven = 0;
            p.failed = !f->best;
        }
        if (p.failed)
            result = GCKPT_E_MEMORY;
        gckpti_planner_report(&p, result);
        gckpti_planner_free(&p);
    }
    return result;
}

/* One micro-batch size: builds its graph, measures it, plans it. f->named: all that was not planned
 * of it has its part in f->least. */
static gckpt_result gckpti_fit_rows(gckpti_fitting *f, int64_t rows)
{
    gckpt_term terms[GCKPT_MAX_TERMS];
    gckpti_allocator memory = { f->desc.memory, 0 };
    gckpt_cost *costs = NULL;
    size_t before = f->store->count;
    int count = 0;
    f->named = 1;
    if (rows < f->least_rows || (f->desc.update_in_backward == 1 && rows < f->desc.batch))
        return GCKPT_OK;
    memset(terms, 0, sizeof terms);
    gckpt_graph *g = gckpt_graph_new(f->store, &f->desc.memory);
    if (!g)
        return GCKPT_E_MEMORY;
    gckpt_result result = gckpti_fit_build(f, g, rows, terms, &count);
    if (result == GCKPT_OK && f->measure && count >= 0) {
        costs = (gckpt_cost *)gckpti_new(&memory, g->count, sizeof *costs);
        result = costs ? f->measure(g, terms, count, costs, (int)g->count, f->user)
                       : gckpti_error(g, GCKPT_E_MEMORY, "no memory for costs");
        if (costs && result != GCKPT_OK)
            gckpti_error(g, result, "measure failed: %s", gckpt_result_text(result));
    }
    f->desc.costs = costs;
    f->desc.cost_count = costs ? (int)g->count : 0;
    if (result == GCKPT_OK && count >= 0)
        result = gckpti_fit_rules(f, g, terms, count);
    if (result != GCKPT_OK)
        gckpti_error(f->store, result, "fit: micro-batches of %I rows: %s", rows,
                     gckpt_error_text(g));
    gckpti_delete(&memory, costs, g->count, sizeof *costs);
    gckpt_graph_free(g);
    if (result == GCKPT_OK && count < 0)
        gckpti_store_shrink(f->store, before);
    return result;
}

/* What can be wrong with a request before anything is built. */
static gckpt_result gckpti_check_fit(gckpt_store *store, gckpt_build build, int64_t batch,
                                     const gckpt_plan_desc *d)
{
    if (!build || batch < 1 || batch > INT32_MAX)
        return gckpti_error(store, GCKPT_E_ARG, "fit: %s",
                            build ? "the batch must be 1 to 2147483647" : "build is NULL");
    if (d->fetches || d->costs || d->mode == GCKPT_SCHEDULE || d->mode == GCKPT_INFERENCE ||
        d->memory.memory)
        return gckpti_error(store, GCKPT_E_ARG,
                            "fit: fetch, costs, a schedule and memory in a block belong to one "
                            "graph, and inference has no batch: use gckpt_plan_new");
    if (d->update_in_backward < 0 || d->update_in_backward > GCKPT_IF_USEFUL)
        return gckpti_error(store, GCKPT_E_ARG,
                            "fit: update_in_backward must be 0, 1 or GCKPT_IF_USEFUL");
    return GCKPT_OK;
}

/* gckpt_fit, of micro-batches that have so many rows or more. */
static gckpt_plan *gckpti_fit(gckpt_store *store, gckpt_build build, void *user, int64_t batch,
                              const gckpt_plan_desc *desc, gckpt_measure measure,
                              int64_t least_rows)
{
    gckpti_fitting f;
    memset(&f, 0, sizeof f);
    if (!store)
        return NULL;
    if (desc)
        f.desc = *desc;
    unsigned char named[1536 / 8] = { 0 }; /* by divisor, descending; no batch has more */
    int sizes = 0;
    size_t before = store->count;
    gckpt_result result = gckpti_check_fit(store, build, batch, &f.desc);
    f.store = store;
    f.build = build;
    f.measure = measure;
    f.user = user;
    f.desc.batch = batch;
    f.least_rows = least_rows;
    f.least = SIZE_MAX;
    for (; f.hunting < 2 && !f.best && result == GCKPT_OK; f.hunting++) { /* then from 1 row up */
        int at = f.hunting ? sizes : 0;
        for (int64_t d = batch; d > 0 && result == GCKPT_OK; d = gckpti_next_divisor(batch, d)) {
            at -= f.hunting;
            if (!f.hunting || !(named[at / 8] >> at % 8 & 1))
                result = gckpti_fit_rows(&f, f.hunting ? batch / d : d);
            if (!f.hunting) {
                named[at / 8] |= (unsigned char)(f.named << at % 8);
                sizes = ++at;
            }
        }
    }
    if (result == GCKPT_OK && f.best) {
        gckpti_ok(store);
        return f.best;
    }
    if (result == GCKPT_OK && f.least < SIZE_MAX)
        gckpti_error(store, GCKPT_E_BUDGET,
                     "fit: budget %z bytes is too small: a batch of %I rows needs at least %z, "
                     "whatever the micro-batch",
                     f.desc.budget, batch, f.least);
    else if (result == GCKPT_OK && f.too_large)
        gckpti_error(store, GCKPT_E_MEMORY,
                     "fit: whatever the micro-batch of a batch of %I rows, the step arena has more "
                     "bytes than this machine can address; try GCKPT_MEMORY_POOR or a smaller "
                     "network",
                     batch);
    else if (result == GCKPT_OK)
        gckpti_error(store, GCKPT_E_ARG, "fit: build wanted no divisor of the batch of %I rows",
                     batch);
    gckpt_plan_free(f.best);
    gckpti_store_shrink(store, before);
    return NULL;
}

GCKPT_API gckpt_plan *gckpt_fit(gckpt_store *store, gckpt_build build, void *user, int64_t batch,
                                const gckpt_plan_desc *desc, gckpt_measure measure)
{
    return gckpti_fit(store, build, user, batch, desc, measure, 1);
}

/* =================================================================================================
 * >>pictures: a plan as a trace, the frontier as text; drawings are examples/pictures.h's
 * ============================================================================================== */
/* ---- Chrome's trace events ---- */
/* Live bytes at instruction x by kind of buffer. A window of instructions is kept, so that walking
 * costs one look at all buffers a window. */
enum { GCKPTI_WINDOW = 128, GCKPTI_BUFFER_KINDS = GCKPT_BUFFER_WORKSPACE + 1 };
typedef struct {
    size_t from, live[GCKPTI_WINDOW][GCKPTI_BUFFER_KINDS];
} gckpti_window;

static const size_t *gckpti_live(const gckpt_plan *plan, gckpti_window *window, size_t x)
{
    size_t from = x - x % GCKPTI_WINDOW;
    if (window->from == from)
        return window->live[x - from];
    window->from = from;
    memset(window->live, 0, sizeof window->live);
    for (size_t i = 0; i < plan->life_count; i++) {
        const gckpt_buffer *b = &plan->lives[i];
        size_t start = (size_t)b->start, end = (size_t)b->end + 1;
        if (start >= from + GCKPTI_WINDOW || end <= from)
            continue;
        window->live[start > from ? start - from : 0][b->kind] += b->size; /* a change */
        if (end < from + GCKPTI_WINDOW)
            window->live[end - from][b->kind] -= b->size;
    }
    for (size_t i = 1; i < GCKPTI_WINDOW; i++)
        for (size_t k = 0; k < GCKPTI_BUFFER_KINDS; k++)
            window->live[i][k] += window->live[i - 1][k];
    return window->live[x - from];
}

/* What JSON's readers take: quotes escaped; what is no character, or cannot be seen, as "?". */
static void gckpti_print_name(gckpti_sink *k, const char *s)
{
    for (int n; *s; s += n ? n : 1) {
        n = gckpti_utf8_length(s, strlen(s));
        if (n == 0 || *s == 127 || (n == 1 && *s < 32) ||
            (n == 3 && (!memcmp(s, "\xef\xbf\xbe", 3) || !memcmp(s, "\xef\xbf\xbf", 3))))
            gckpti_print(k, "?");
        else if (*s == '"' || *s == '\\')
            gckpti_print(k, *s == '"' ? "\\\"" : "\\\\");
        else
            gckpti_sink_put(k, s, (size_t)n);
    }
}

/* Nanoseconds as microseconds, the unit of the format. */
static void gckpti_print_time(gckpti_sink *k, const char *before, uint64_t t)
{
    gckpti_print(k, "%s%u.%u%u%u", before, t / 1000, t / 100 % 10, t / 10 % 10, t % 10);
}

/* "linear h.0.fc", "gelu #7", "h.0.fc.weight" */
static void gckpti_print_label(gckpti_sink *k, const gckpt_plan *plan, int id)
{
    const gckpti_node *node = &plan->nodes[id];
    if (node->op) {
        gckpti_print_name(k, node->op->name);
        gckpti_print(k, node->name == GCKPTI_NONE ? " #%i" : " ", id);
    }
    if (node->name != GCKPTI_NONE)
        gckpti_print_name(k, plan->names + node->name);
}

GCKPT_API gckpt_result gckpt_plan_trace(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    static const char *const phases[] = { "forward", "backward", "update", "offload", "reload" };
    static const char *const kinds[] = { "values", "kept for backward", "gradients of activations",
                                         "gradients of parameters", "workspace" };
    gckpti_sink k = { write, user, 0, 0, 0, { 0 } };
    gckpti_window window;
    gckpt_usage u;
    uint64_t now = 0;
    window.from = SIZE_MAX;
    if (!plan || !write)
        return GCKPT_E_ARG;
    gckpti_print(&k,
                 "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"mode\":\"%s\",\"bytes\":%z,"
                 "\"arena\":%z,\"lower_bound\":%z,\"work\":%u,\"proven_work\":%u,"
                 "\"proven_bytes\":%z},\"traceEvents\":[\n",
                 gckpt_mode_name(plan->mode), gckpt_plan_bytes(plan), plan->arena, plan->bound,
                 plan->work, plan->proven_work, gckpt_plan_proven_bytes(plan));
    gckpti_print(&k, "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":"
                     "\"plan: 1 ns is one unit of work\"}},\n"
                     "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{"
                     "\"name\":\"instructions\"}}");
    for (int x = 0; gckpt_plan_usage(plan, x, &u) == GCKPT_OK && !k.failed; x++) {
        const size_t *live = gckpti_live(plan, &window, (size_t)x);
        const char *phase = u.again ? "recompute" : phases[plan->list[x].kind];
        int id = gckpti_ins_tensor(plan, &plan->list[x]);
        u.work += !u.work; /* a bar that can be seen */
        gckpti_print(&k, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"cat\":\"%s\",\"name\":\"%s ",
                     phase, phase);
        gckpti_print_label(&k, plan, id);
        gckpti_print_time(&k, "\",\"ts\":", now);
        gckpti_print_time(&k, ",\"dur\":", u.work);
        gckpti_print(&k, ",\"args\":{\"instruction\":%i,\"tensor\":%i,\"live\":%z}},\n", x, id,
                     u.live);
        gckpti_print_time(&k, "{\"ph\":\"C\",\"pid\":1,\"name\":\"live bytes\",\"ts\":", now);
        for (int i = 0; i < GCKPTI_BUFFER_KINDS; i++)
            gckpti_print(&k, "%s\"%s\":%z", i ? "," : ",\"args\":{", kinds[i], live[i]);
        gckpti_print(&k, "}}");
        now += u.work;
    }
    gckpti_print(&k, "\n]}\n");
    return gckpti_sink_flush(&k);
}

/* ---- the frontier ---- */
/* 1, 1024 and so on, at most `bytes` */
static double gckpti_byte_unit(double bytes, const char **name)
{
    static const char *const names[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    double unit = 1;
    int i = 0;
    for (; bytes >= 1024 * unit && i < 4; i++)
        unit *= 1024;
    *name = names[i];
    return unit;
}

/* 12.8 MiB: three digits, in text */
static const char *gckpti_round_bytes(size_t bytes, char text[32])
{
    gckpti_text t = { text, 31 };
    const char *name;
    double unit = gckpti_byte_unit((double)bytes, &name), round = 1;
    while (unit > 1 && (double)bytes / unit * round < 100)
        round *= 10;
    round = (double)(uint64_t)((double)bytes / unit * round + 0.5) / round;
    gckpti_text_add(&t, "%g %s", round, name);
    return text;
}

/* v >= 0 with one decimal between two texts, right-aligned in 12 columns */
static void gckpti_print_tenths(gckpti_sink *k, const char *before, double v, const char *behind)
{
    char number[32];
    gckpti_text t = { number, sizeof number - 1 };
    uint64_t tenths = (uint64_t)((v < 1e12 ? v : 1e12) * 10 + 0.5);
    gckpti_text_add(&t, "%s%u.%u%s", before, tenths / 10, tenths % 10, behind);
    size_t n = (size_t)(t.at - number);
    gckpti_sink_put(k, "            ", n < 12 ? 12 - n : 0);
    gckpti_sink_put(k, number, n);
}

GCKPT_API gckpt_result gckpt_frontier_print(const gckpt_frontier *f, size_t mark,
                                            gckpt_write_fn write, void *user)
{
    gckpti_sink k = { write, user, 0, 0, 0, { 0 } };
    const char *name;
    char text[32];
    if (!f || !write)
        return GCKPT_E_ARG;
    size_t n = f->count, rows = 20;
    double least = f->p.least_work ? (double)f->p.least_work : 1;
    int marked = mark ? gckpt_frontier_find(f, mark) : -1;
    double top = f->points[0].overhead,
           unit = gckpti_byte_unit((double)f->points[0].bytes / 10, &name);
    top = top < 0.01 ? 0.01 : top < 0.6 ? top : 0.6; /* more is paid only where nothing else fits */
    gckpti_print(&k,
                 "What bytes cost in time: %i plan%s. Bytes are parameters, optimiser state (both\n"
                 "%s) and step arena. Extra time is that of a step; a full bar is %g %%,\n"
                 "'#' is proven: no schedule takes less in these bytes. None fits in",
                 (int)n, n == 1 ? "" : "s", gckpti_round_bytes(f->resident, text),
                 (double)(int)(1000 * top + 0.5) / 10);
    gckpti_print(&k, "\nless than %s.\n", gckpti_round_bytes(f->proven_bytes, text));
    if (mark)
        gckpti_print(
            &k, marked < 0 ? "A budget of %s is too small.\n" : "> is what a budget of %s gets.\n",
            gckpti_round_bytes(mark, text));
    if (!f->complete)
        gckpti_print(&k, "The search stopped at its limit: plans may cost more than they need.\n");
    gckpti_print(&k, "\n%s%s  extra time    at least  recomputed\n",
                 unit > 1 ? "         " : "       ", name);
    for (size_t i = n; i-- > 0;) {
        char bar[] = "---------------------------";
        const gckpt_point *p = &f->points[i];
        double proven = p->overhead - (double)(p->work - p->proven_work) / least,
               part = p->overhead / top, sure = proven / top;
        if (i && i + 1 < n && (int)i != marked && i * rows / n == (i - 1) * rows / n)
            continue; /* many points: the least of each run of them */
        bar[part < 1 ? (int)(part * 27 + 0.5) : 27] = 0;
        memset(bar, '#', (size_t)(sure < 1 ? (int)(sure * 27 + 0.5) : 27));
        bar[26] = part > 1.0001 ? '>' : bar[26];
        gckpti_print_tenths(&k, "", (double)p->bytes / unit, "");
        gckpti_print_tenths(&k, "+", 100 * p->overhead, " %");
        gckpti_print_tenths(&k, "+", 100 * proven, " %");
        gckpti_print_tenths(&k, "", 100 * p->recompute, " %");
        gckpti_print(&k, (int)i == marked ? " > |%s\n" : "   |%s\n", bar);
    }
    return gckpti_sink_flush(&k);
}

GCKPT_API gckpt_result gckpt_frontier_json(const gckpt_frontier *f, size_t mark,
                                           gckpt_write_fn write, void *user)
{
    gckpti_sink k = { write, user, 0, 0, 0, { 0 } };
    if (!f || !write)
        return GCKPT_E_ARG;
    int marked = mark ? gckpt_frontier_find(f, mark) : -1;
    for (size_t i = 0; i < f->count; i++) {
        const gckpt_point *p = &f->points[i];
        gckpti_print(&k, "%s\n{\"bytes\":%z,\"work\":%u,\"recompute\":%g,\"overhead\":%g,",
                     i ? "," : "{\"points\":[", p->bytes, p->work, p->recompute, p->overhead);
        gckpti_print(&k, "\"proven_work\":%u}", p->proven_work);
    }
    gckpti_print(&k, marked < 0 ? "],\n\"marked\":null" : "],\n\"marked\":%i", marked);
    gckpti_print(&k, ",\"complete\":%s,\"proven_bytes\":%z}\n", f->complete ? "true" : "false",
                 f->proven_bytes);
    return gckpti_sink_flush(&k);
}

/* =================================================================================================
 * >>cpu: the processor as a backend
 *
 * What is done between ops, as the numeric contract has it. This is the plain one; that of section
 * fast differs by the kernels of an instruction set.
 * ============================================================================================== */
enum { GCKPTI_JOB = 32768 }; /* floats of an item for a thread */

static void gckpti_cpu_copy(void *context, void *to, const void *from, size_t bytes)
{
    (void)context;
    memcpy(to, from, bytes);
}

/* body(context, 0..): an item for every GCKPTI_JOB of n floats. */
static void gckpti_cpu_jobs(const gckpt_call *call, int64_t n,
                            void (*body)(void *context, int64_t i), void *context)
{
    gckpti_job(call, (n + GCKPTI_JOB - 1) / GCKPTI_JOB, body, context);
}

static void gckpti_add_into(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

typedef struct { /* to += from, or if that is NULL, to = word */
    unsigned char *to;
    const float *from;
    uint32_t word;
    int64_t n;
} gckpti_filling;

static void gckpti_cpu_fill_item(void *context, int64_t i)
{
    const gckpti_filling *f = (const gckpti_filling *)context;
    int64_t at = i * GCKPTI_JOB, n = gckpti_min(f->n - at, GCKPTI_JOB);
    void *to = f->to + 4 * at;
    if (f->from)
        gckpti_add_into((float *)to, f->from + at, n);
    else if (!f->word)
        memset(to, 0, 4 * (size_t)n);
    for (int64_t k = 0; f->word && k < n; k++)
        memcpy(f->to + 4 * (at + k), &f->word, 4);
}

static void gckpti_cpu_fill(const gckpt_call *call, void *to, uint32_t word, int64_t n)
{
    gckpti_filling f = { (unsigned char *)to, NULL, word, n };
    gckpti_cpu_jobs(call, n, gckpti_cpu_fill_item, &f);
}

static void gckpti_cpu_add(const gckpt_call *call, float *to, const float *from, int64_t n)
{
    void *at = to;
    gckpti_filling f = { (unsigned char *)at, from, 0, n };
    gckpti_cpu_jobs(call, n, gckpti_cpu_fill_item, &f);
}

typedef struct {
    const gckpt_call *call;
    const gckpt_conversion *c;
} gckpti_converting;

/* By chance: 16 of Philox's bits for each element, numbered in the whole batch. `word` holds those
 * of 8 elements, drawn when `fresh` or when they begin. */
static uint16_t gckpti_round_by_chance(const gckpti_converting *s, int64_t i, int fresh,
                                       uint32_t word[4])
{
    const gckpt_call *call = s->call;
    uint64_t at = (uint64_t)i;
    at += call->row ? (uint64_t)call->row * (uint64_t)(s->c->n / call->rows) : 0;
    if (fresh || at % 8 == 0)
        gckpti_philox(call->seed, at / 8, s->c->stream, (uint32_t)call->step, word);
    return gckpti_halve(gckpti_bits(s->c->x[i]), word[at / 2 % 4] >> 16 * (at % 2) & 0xffffu);
}

/* Item `item` of a conversion, element by element. */
static void gckpti_cpu_convert_item(void *context, int64_t item)
{
    const gckpti_converting *s = (const gckpti_converting *)context;
    const gckpt_conversion *c = s->c;
    int64_t first = item * GCKPTI_JOB, end = first + gckpti_min(c->n - first, GCKPTI_JOB);
    int by_chance = s->call->precision == GCKPT_BF16_STOCHASTIC;
    uint32_t word[4] = { 0, 0, 0, 0 };
    for (int64_t i = first; i < end; i++) {
        if (c->kind == GCKPT_WIDEN || c->kind == GCKPT_WIDEN_ADD) {
            float wide = gckpti_from_bf16(c->from[i]);
            c->x[i] = c->kind == GCKPT_WIDEN ? wide : wide + c->x[i];
            continue;
        }
        uint16_t half =
            by_chance ? gckpti_round_by_chance(s, i, i == first, word) : gckpti_to_bf16(c->x[i]);
        if (c->kind == GCKPT_NARROW)
            c->to[i] = half;
        else
            c->x[i] = gckpti_from_bf16(half);
    }
}

static void gckpti_cpu_convert(const gckpt_call *call, const gckpt_conversion *c)
{
    gckpti_converting s = { call, c };
    gckpti_cpu_jobs(call, c->n, gckpti_cpu_convert_item, &s);
}

/* With decayed = fma(-d, w, w), d = (lr weight_decay) decay_scale; lr is hyper.lr times lr_scale:
 *   SGD       w = fma(-lr, g, decayed)
 *   momentum  m = fma(momentum, m, g), w = fma(-lr, m, decayed)
 *   AdamW     m = fma(b1, m, (1 - b1) g), v = fma(b2, v, (1 - b2) (g g)),
 *             w = fma(-lr / (1 - b1^t), m / (sqrt(v c) + eps), decayed), c = 1 / (1 - b2^t)
 * t counts the parameter's updates from 1. 1 - b1, 1 - b2, lr / (1 - b1^t) and c are computed in
 * binary64 from the floats b1, b2, lr, powers by squaring (gckpti_powi), and rounded once. */
static void gckpti_plain_adamw(float *w, const float *g, float *m, float *v, int64_t n,
                               const gckpti_adamw *a)
{
    for (int64_t k = 0; k < n; k++) {
        float d = g[k] * a->scale;
        m[k] = gckpti_fma(a->beta1, m[k], a->rest1 * d);
        v[k] = gckpti_fma(a->beta2, v[k], a->rest2 * (d * d));
        float step = m[k] / (gckpti_sqrt(v[k] * a->correct2) + a->eps);
        w[k] = gckpti_fma(-a->rate, step, gckpti_fma(-a->decay, w[k], w[k]));
    }
}

static void gckpti_plain_divide(float *x, float by, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        x[k] /= by;
}

static float gckpti_plain_square_sum(const float *x, int64_t n) { return gckpti_dot(x, x, n); }

typedef struct { /* a pass, and what an instruction set has for it */
    const gckpt_pass *pass;
    void (*divide)(float *x, float by, int64_t n);
    float (*square_sum)(const float *x, int64_t n);
    void (*adamw)(float *w, const float *g, float *m, float *v, int64_t n, const gckpti_adamw *a);
    int64_t each; /* blocks of an item */
} gckpti_passing;

/* The optimisers, by the formulas above, on a block whose gradient is g. */
static void gckpti_update_values(const gckpti_passing *s, const float *g, int64_t at, int64_t n)
{
    const gckpt_pass *p = s->pass;
    const gckpt_rates *a = &p->rates;
    float *w = p->values + at, *m = p->state[0];
    switch (p->optimiser) {
    case GCKPT_ADAMW: s->adamw(w, g, m + at, p->state[1] + at, n, a); break;
    case GCKPT_MOMENTUM:
        m += at;
        for (int64_t k = 0; k < n; k++) {
            m[k] = gckpti_fma(p->momentum, m[k], g[k] * a->scale);
            w[k] = gckpti_fma(-a->rate, m[k], gckpti_fma(-a->decay, w[k], w[k]));
        }
        break;
    default:
        for (int64_t k = 0; k < n; k++)
            w[k] = gckpti_fma(-a->rate, g[k] * a->scale, gckpti_fma(-a->decay, w[k], w[k]));
        break;
    }
}

/* The blocks of item i. room: floats for a divided block that need not be kept, which spares the
 * memory a write; NULL: it is divided where it lies. */
static void gckpti_cpu_update_blocks(const gckpti_passing *s, int64_t i, float *room)
{
    const gckpt_pass *p = s->pass;
    const int64_t size = GCKPT_UPDATE_BLOCK;
    for (int64_t b = i * s->each; b < (i + 1) * s->each && b * size < p->elements; b++) {
        int64_t at = b * size, n = gckpti_min(p->elements - at, size);
        float *g = p->gradient + at;
        for (int u = 0; u < p->adds; u++) {
            const void *more = (const char *)p->base + p->more[u];
            gckpti_add_into(g, (const float *)more + at, n);
        }
        if (p->count > 0) {
            if (room && !p->write_back)
                g = (float *)memcpy(room, g, (size_t)n * sizeof *g);
            s->divide(g, p->count, n);
        }
        if (p->squares)
            p->squares[b] = s->square_sum(g, n);
        if (p->update)
            gckpti_update_values(s, g, at, n);
    }
}

static void gckpti_cpu_pass(const gckpt_call *call, gckpti_passing *s,
                            void (*item)(void *context, int64_t i))
{
    int64_t n = (s->pass->elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
    gckpt_call c = *call;
    s->each = n < 64 ? 1 : n < 512 ? 4 : 16;
    c.threads = n > 4 ? c.threads : 1;
    gckpti_job(&c, (n + s->each - 1) / s->each, item, s);
}

static void gckpti_plain_update_item(void *context, int64_t i)
{
    gckpti_cpu_update_blocks((const gckpti_passing *)context, i, NULL);
}

static void gckpti_plain_update(const gckpt_call *call, const gckpt_pass *pass)
{
    gckpti_passing s = { pass, gckpti_plain_divide, gckpti_plain_square_sum, gckpti_plain_adamw,
                         0 };
    gckpti_cpu_pass(call, &s, gckpti_plain_update_item);
}

static const char *gckpti_cpu_finish(void *context)
{
    (void)context;
    return NULL;
}

/* clang-format off */
static const gckpt_backend gckpti_backend_plain = {
    "plain", NULL, 0, 1, NULL, NULL, gckpti_cpu_copy, gckpti_cpu_copy, gckpti_cpu_copy, NULL, NULL,
    gckpti_cpu_fill, gckpti_cpu_add, gckpti_cpu_convert, gckpti_plain_update, gckpti_cpu_finish,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL };
/* clang-format on */

/* =================================================================================================
 * >>exec: walks a plan's list over one arena
 *
 * An executor interprets: for each instruction it fills a gckpt_call with addresses (operands in
 * the arena, leaves where they are) and hands it to the kernel that its backend found for the op.
 * What happens between ops (fill, add, convert, update) are calls of the backend too. No function
 * here reads or writes what lies in the arena, or in a parameter, a feed or a loss's sum where the
 * backend has them, but through gckpti_on_host, which copies where it must.
 * ============================================================================================== */
enum { GCKPTI_IDLE, GCKPTI_RUNNING, GCKPTI_STREAMING };
enum { GCKPTI_CANARY = 64, GCKPTI_CANARY_BYTE = 0xc5 };

typedef struct { /* what a loss's kernels add to, in the backend's memory */
    double sum;
    int64_t count;
} gckpti_loss_total;

typedef struct {
    gckpt_kernel forward, backward; /* of an op; NULL: the backend has none, the host runs it */
    gckpt_precision precision;      /* that they compute in */
    const void *data;               /* of a leaf: its values, where the backend reads them */
} gckpti_exec_node;

typedef struct {
    int index;     /* in the store */
    int nth;       /* of params[i]: the plan's i-th parameter in order of creation */
    int had;       /* state arrays before this executor was made */
    size_t square; /* its first block's in exec->squares */
} gckpti_exec_param;

typedef struct {
    int node;                         /* of the plan; -1: no instruction reads it */
    const unsigned char *feed;        /* the program's rows, or copies of them, from feed_row on */
    unsigned char *copy, *on_backend; /* desc.copy_feeds; a micro-batch in memory of its own */
} gckpti_exec_input;

typedef struct {
    gckpti_loss_total seen; /* a copy */
    int64_t expected;       /* counted from the feeds; -1: it was not */
} gckpti_exec_term;

struct gckpt_exec {
    gckpti_object object;
    gckpti_allocator memory;
    const gckpt_plan *plan; /* its own copy, or a constant of the program */
    gckpt_store *store;
    gckpt_exec_desc desc;
    gckpt_backend backend; /* complete */
    gckpti_binding binding;
    gckpt_isa isa;
    const void *kernels; /* of that instruction set, for the processor's backends */
    gckpti_runner runner;
    int team; /* threads of a run */
    /* memory: tables and copies are the host's, arena and side the backend's */
    unsigned char *arena;
    void *owned, *tables, *copies, *side; /* owned: arena and canary, when taken here */
    size_t owned_size, tables_size, copies_size, side_size;
    unsigned char *far; /* what is offloaded, unless the program has callbacks for it */
    int moves, due;     /* the backend moves it; the instruction that is to wait, or INT32_MAX */
    gckpti_exec_node *nodes;
    gckpti_exec_param *params;
    gckpti_exec_input *inputs;
    gckpti_exec_term *terms;
    uint64_t *hashes; /* GCKPT_DEBUG_RECOMPUTE: by node, value and aux */
    unsigned char *borrowed,
        *picks;                /* own memory: copies of what the host looks at, of the picks */
    gckpti_loss_total *losses; /* by term */
    gckpt_loss_scale *scales;  /* the same, of this micro-batch */
    float *squares;            /* square sums by block, of all parameters */
    size_t square_count;
    /* this step */
    int state;
    uint64_t step; /* the store's when it began */
    gckpt_hyper hyper;
    float clip_scale;
    double grad_norm;
    int pc;
    int64_t row, row_end, feed_row; /* this micro-batch; end of the rows fed; the feeds' first */
    int accumulators_cleared;
    int streamed;       /* rows stream in: nothing is known of those to come */
    int counts_settled; /* what the losses counted was checked, or is promised: it may update */
    int updating;       /* a parameter was changed, or the sums were divided */
    int writes_back;    /* divided gradients: they are read, or the backend does so anyway */
    size_t next_death;  /* of plan->lives */
    int repeats;        /* the backend may repeat micro-batches, */
    int repeating;      /* and is asked to: this run is not in pieces; */
    int recording;      /* it had none, and is told at this one's end */
    int painted_steps;  /* GCKPT_DEBUG_MEASURE */
    size_t touched;
};

static void gckpti_call_start(const gckpt_exec *e, const gckpti_node *node, int id, int64_t rows,
                              gckpt_call *c);
/* That of an instruction set, with its kernels; NULL: it is not here (section fast). */
static const gckpt_backend *gckpti_cpu_backend(gckpt_isa isa, const void **kernels);

/* A picked value or gradient, as floats. */
static size_t gckpti_pick_bytes(const gckpt_plan *p, const gckpti_plan_pick *pick)
{
    return (size_t)gckpti_elements(&p->nodes[pick->id].shape) * sizeof(float);
}

/* ---- making one ---- */
static void gckpti_give(gckpt_exec *e, void *memory, size_t bytes)
{
    if (memory && e->backend.own_memory)
        e->backend.release(e->backend.context, memory, bytes);
    else
        gckpti_delete(&e->memory, memory, bytes, 1);
}

/* What the backend recorded holds no longer. */
static void gckpti_forget(const gckpt_exec *e)
{
    if (e->backend.forget)
        e->backend.forget(e->backend.context, e);
}

/* More about a lack of the backend's memory. */
static const char *gckpti_shortage(const gckpt_exec *e)
{
    return e->backend.shortage ? e->backend.shortage(e->backend.context) : "";
}

GCKPT_API void gckpt_exec_free(gckpt_exec *exec)
{
    if (!exec)
        return;
    gckpti_allocator a = exec->memory;
    const gckpt_plan *p = exec->plan;
    gckpti_forget(exec);
    gckpti_unbind(&exec->binding);
    if (exec->moves && exec->far)
        exec->backend.host_release(exec->backend.context, exec->far, p->offloaded);
    gckpti_give(exec, exec->side, exec->side_size);
    gckpti_give(exec, exec->owned, exec->owned_size);
    gckpti_delete(&a, exec->copies, exec->copies_size, 1);
    gckpti_delete(&a, exec->tables, exec->tables_size, 1);
    gckpti_delete(&a, p->block, gckpti_plan_copy(NULL, p), 1);
    gckpti_delete(&a, exec, 1, sizeof *exec);
}

static int gckpti_others_state(const gckpt_plan *p, const gckpti_param *q)
{
    return q->optimiser && q->optimiser != (int)p->optimiser + 1 && p->state_slots > 0;
}

/* Values, and optimiser state for what the plan trains: what is not there yet, all or none. State
 * of another optimiser is refused. Values are drawn when nothing can fail any more. */
static gckpt_result gckpti_bind_state(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    gckpt_store *s = e->store;
    gckpt_result result = GCKPT_OK;
    size_t bytes = 0, states = 0;
    for (size_t i = 0; i < p->param_count; i++) {
        const gckpti_param *q = &s->params[e->params[i].index];
        int wanted = p->params[i].trained ? p->state_slots : 0, had = gckpti_state_slots(q);
        if (wanted && gckpti_others_state(p, q))
            return gckpti_error(s, GCKPT_E_ARG,
                                "exec: \"%s\" holds state of another optimiser; "
                                "gckpt_store_reset clears it",
                                q->p.name);
        bytes += (size_t)q->p.elements * sizeof(float) *
                 (size_t)(!q->p.values + (wanted > had ? wanted - had : 0));
        e->params[i].had = had;
    }
    if (bytes && !gckpti_has_room(&s->memory, bytes))
        result = gckpti_error(s, GCKPT_E_MEMORY,
                              "exec: no memory for the %z bytes of values and optimiser state that "
                              "the plan's %z parameters, \"%s\" first, still need",
                              bytes, p->param_count,
                              s->params[e->params[e->params[0].nth].index].p.name);
    for (size_t i = 0; i < p->param_count && result == GCKPT_OK; i++)
        result = gckpti_values_new(s, &s->params[e->params[e->params[i].nth].index], "exec");
    for (; states < p->param_count && result == GCKPT_OK; states++) {
        gckpti_param *q = &s->params[e->params[states].index];
        if (p->params[states].trained && !gckpti_param_state(s, q, p->state_slots))
            result = gckpti_error(s, GCKPT_E_MEMORY,
                                  "exec: no memory for the optimiser state "
                                  "of \"%s\": %i times %z bytes",
                                  q->p.name, p->state_slots, (size_t)q->p.elements * sizeof(float));
    }
    if (result == GCKPT_OK) {
        gckpti_values_draw(s);
        return GCKPT_OK;
    }
    while (states-- > 0)
        gckpti_state_shrink(s, &s->params[e->params[states].index], e->params[states].had);
    gckpti_values_undo(s);
    return result;
}

/* Finds the plan's parameters in the store; they must be what the plan was made for. */
static gckpt_result gckpti_bind_params(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->param_count; i++) {
        const char *name = p->names + p->params[i].name;
        int index = gckpti_find(e->store, name);
        if (index < 0 || e->store->params[index].p.elements != p->params[i].elements)
            return gckpti_error(
                e->store, GCKPT_E_ARG,
                "exec: the store has no parameter \"%s\" of %I elements; the plan was "
                "made for another store (gckpt_plan_params creates what is missing)",
                name, p->params[i].elements);
        if (p->params[i].trained && e->store->params[index].p.frozen)
            return gckpti_error(e->store, GCKPT_E_ARG,
                                "exec: \"%s\" was frozen after planning; make a new plan", name);
        e->params[i].index = index;
        size_t at = i;
        for (; at > 0 && e->params[e->params[at - 1].nth].index > index; at--)
            e->params[at].nth = e->params[at - 1].nth;
        e->params[at].nth = (int)i;
    }
    return GCKPT_OK;
}

/* Which inputs must be fed, and the kernels that run. */
static void gckpti_bind_nodes(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpt_backend *b = &e->backend;
    int none = e->desc.debug & GCKPT_DEBUG_PLAIN || !b->find;
    for (size_t i = 0; i < p->inputs; i++)
        e->inputs[i].node = -1;
    for (size_t x = 0; x < p->length; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpti_node *node = ins->kind == GCKPT_UPDATE ? NULL : &p->nodes[ins->id];
        if (!node || !node->op)
            continue;
        for (int i = 0; i < node->inputs; i++) {
            int base = p->nodes[node->in[i]].base;
            if (p->nodes[base].kind == GCKPTI_INPUT)
                e->inputs[p->nodes[base].index].node = base;
        }
        gckpti_exec_node *n = &e->nodes[ins->id];
        n->forward = none ? NULL : b->find(b->context, node->op, GCKPT_FORWARD);
        n->backward = none ? NULL : b->find(b->context, node->op, GCKPT_BACKWARD);
        n->precision = gckpti_op_precision(node->rounding, node->batchless, p->precision);
        if (n->precision == GCKPT_BF16_FAST) {
            n->forward = b->find_fast(b->context, node->op, GCKPT_FORWARD);
            n->backward = b->find_fast(b->context, node->op, GCKPT_BACKWARD);
        }
        if (!n->forward && !b->own_memory)
            n->forward = node->op->forward;
        if (!n->backward && !b->own_memory)
            n->backward = node->op->backward;
    }
}

/* The next piece of a block that begins at base; NULL while its size is only counted. */
static void *gckpti_carve(unsigned char *base, size_t *used, size_t n, size_t size)
{
    size_t at = *used, most = (size_t)PTRDIFF_MAX / 2;
    size_t bytes = n < most / size ? n * size : most;
    *used = bytes < most - at ? gckpti_round_up(at + bytes, GCKPTI_ALIGN) : most;
    return base ? base + at : NULL;
}

/* Bytes of the tables; with `base` their places in it. */
static size_t gckpti_exec_tables(gckpt_exec *e, unsigned char *base)
{
    const gckpt_plan *p = e->plan;
    size_t used = 0, hashes = e->desc.debug & GCKPT_DEBUG_RECOMPUTE ? 2 * p->node_count : 0;
    e->nodes = (gckpti_exec_node *)gckpti_carve(base, &used, p->node_count, sizeof *e->nodes);
    e->params = (gckpti_exec_param *)gckpti_carve(base, &used, p->param_count, sizeof *e->params);
    e->inputs = (gckpti_exec_input *)gckpti_carve(base, &used, p->inputs, sizeof *e->inputs);
    e->terms = (gckpti_exec_term *)gckpti_carve(base, &used, p->term_count, sizeof *e->terms);
    e->scales = (gckpt_loss_scale *)gckpti_carve(base, &used, p->term_count, sizeof *e->scales);
    void *at = gckpti_carve(base, &used, hashes, sizeof *e->hashes);
    e->hashes = hashes ? (uint64_t *)at : NULL;
    return used;
}

/* Bytes of one row of an input, as it is fed. */
static size_t gckpti_row_bytes(const gckpt_plan *p, const gckpti_node *q)
{
    return (size_t)gckpti_elements(&q->shape) / (size_t)p->rows * 4;
}

/* Bytes of what the backend has beside the arena, with `base` their places in it: what losses and
 * updates leave for the host; in memory of its own a micro-batch of the feeds and the constants,
 * which are then copied there. */
static size_t gckpti_exec_side(gckpt_exec *e, unsigned char *base)
{
    const gckpt_plan *p = e->plan;
    size_t used = 0;
    e->losses = (gckpti_loss_total *)gckpti_carve(base, &used, p->term_count, sizeof *e->losses);
    e->squares = (float *)gckpti_carve(base, &used, e->square_count, sizeof *e->squares);
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_node *q = &p->nodes[i];
        size_t bytes = (size_t)gckpti_elements(&q->shape) * 4;
        if (q->kind == GCKPTI_CONSTANT)
            e->nodes[i].data = q->data;
        if (!e->backend.own_memory || (q->kind == GCKPTI_INPUT && e->inputs[q->index].node < 0))
            continue;
        if (q->kind == GCKPTI_INPUT)
            e->inputs[q->index].on_backend = (unsigned char *)gckpti_carve(base, &used, bytes, 1);
        void *to = q->kind == GCKPTI_CONSTANT ? gckpti_carve(base, &used, bytes, 1) : NULL;
        if (to) {
            e->backend.copy_in(e->backend.context, to, q->data, bytes);
            e->nodes[i].data = to;
        }
    }
    return used;
}

/* n bytes of the backend's memory. */
static void *gckpti_take(gckpt_exec *e, size_t bytes, size_t alignment)
{
    if (bytes >= (size_t)PTRDIFF_MAX / 2)
        return NULL;
    if (e->backend.own_memory)
        return e->backend.get(e->backend.context, bytes, alignment);
    return gckpti_resize(&e->memory, NULL, 0, bytes);
}

/* A call without op or inputs, for what is done between ops. */
static void gckpti_bare_call(const gckpt_exec *e, gckpt_call *c)
{
    memset(c, 0, sizeof *c);
    c->seed = e->store->seed;
    c->step = e->step;
    c->threads = e->plan->threads;
    c->plain = e->plan->made_for != GCKPTI_FOR_CPU;
    c->training = e->plan->mode != GCKPT_INFERENCE;
    c->runner = &e->runner;
    c->kernels = e->kernels;
    c->backend = e->backend.context;
}

/* Repeats a word over so many bytes, the last ones in part. */
static void gckpti_fill(const gckpt_exec *e, void *to, uint32_t word, size_t bytes)
{
    gckpt_call c;
    gckpti_bare_call(e, &c);
    if (bytes / 4)
        e->backend.fill(&c, to, word, (int64_t)(bytes / 4));
    if (bytes % 4)
        e->backend.copy_in(c.backend, (unsigned char *)to + bytes / 4 * 4, &word, bytes % 4);
}

/* The arena: the one given, or one of its own with a canary behind, which a kernel that writes too
 * far changes. */
static gckpt_result gckpti_exec_arena(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    unsigned char canary[GCKPTI_CANARY];
    if (e->desc.arena) {
        if (e->desc.arena_size < p->arena || (uintptr_t)e->desc.arena % p->alignment)
            return gckpti_error(
                e->store, GCKPT_E_ARG,
                "exec: the arena given has %z bytes; the plan needs %z, aligned to %z",
                e->desc.arena_size, p->arena, p->alignment);
        e->arena = (unsigned char *)e->desc.arena;
        return GCKPT_OK;
    }
    e->owned_size = p->arena + p->alignment + GCKPTI_CANARY;
    e->owned = p->arena < PTRDIFF_MAX / 2 ? gckpti_take(e, e->owned_size, p->alignment) : NULL;
    if (!e->owned)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            "exec: no memory for the step arena of %z bytes%s", p->arena,
                            gckpti_shortage(e));
    size_t past = (size_t)((uintptr_t)e->owned % p->alignment);
    e->arena = (unsigned char *)e->owned + (past ? p->alignment - past : 0);
    memset(canary, GCKPTI_CANARY_BYTE, sizeof canary);
    e->backend.copy_in(e->backend.context, e->arena + p->arena, canary, sizeof canary);
    return GCKPT_OK;
}

/* ---- own memory: what the host does itself, it does on copies ---- */

/* What the host may borrow at once: a parameter's gradient, all square sums, the operands of an op
 * that the backend has no kernel for, or what a callback offloads. */
static size_t gckpti_borrow_bytes(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    size_t most = e->square_count * sizeof(float);
    for (size_t i = 0; i < p->param_count; i++)
        if (p->params[i].trained && (size_t)p->params[i].elements * sizeof(float) > most)
            most = (size_t)p->params[i].elements * sizeof(float);
    for (size_t id = 0; id < p->node_count; id++) {
        const gckpti_node *node = &p->nodes[id];
        gckpt_call c;
        if (!node->op || (e->nodes[id].forward && e->nodes[id].backward))
            continue;
        gckpti_call_start(e, node, (int)id, p->rows, &c);
        c.plain = 1;
        (void)node->op->shape(&c);
        size_t bytes = c.work_forward > c.work_backward ? c.work_forward : c.work_backward;
        bytes += node->aux_bytes + 8 * (size_t)gckpti_elements(&node->shape);
        for (int i = 0; i < node->inputs; i++) /* values, gradient, low part */
            bytes += 12 * (size_t)gckpti_elements(&c.in[i].shape);
        bytes += GCKPTI_ALIGN * (size_t)(6 + 3 * node->inputs);
        most = bytes > most ? bytes : most;
    }
    return e->desc.offload && p->offloaded > most ? p->offloaded : most; /* no copy is larger */
}

/* n floats as the host can read them: where they are, or a copy until the next one. */
static const float *gckpti_on_host(const gckpt_exec *e, const float *x, size_t n)
{
    if (!e->backend.own_memory)
        return x;
    e->backend.copy_out(e->backend.context, e->borrowed, x, n * sizeof *x);
    return (const float *)(const void *)e->borrowed;
}

/* As gckpti_exec_tables, for copies on the host: with desc.copy_feeds the whole batch of every
 * input that is fed; beside memory of a backend's own, room for gckpti_on_host and gckpti_borrow,
 * and for what gckpt_fetch returns; what is offloaded. */
static size_t gckpti_exec_copies(gckpt_exec *e, unsigned char *base)
{
    const gckpt_plan *p = e->plan;
    size_t used = 0, picked = 0, borrowed = e->backend.own_memory ? gckpti_borrow_bytes(e) : 0;
    for (size_t i = 0; i < p->inputs && e->desc.copy_feeds && p->mode != GCKPT_INFERENCE; i++)
        if (e->inputs[i].node >= 0)
            e->inputs[i].copy = (unsigned char *)gckpti_carve(
                base, &used, (size_t)p->batch, gckpti_row_bytes(p, &p->nodes[e->inputs[i].node]));
    for (size_t i = 0; i < p->pick_count && e->backend.own_memory; i++)
        gckpti_carve(NULL, &picked, gckpti_pick_bytes(p, &p->picks[i]), 1);
    e->borrowed = (unsigned char *)gckpti_carve(base, &used, borrowed, 1);
    e->picks = (unsigned char *)gckpti_carve(base, &used, picked, 1);
    if (!e->moves && !e->desc.offload)
        e->far = (unsigned char *)gckpti_carve(base, &used, p->offloaded, 1);
    return used;
}

typedef struct {
    const gckpt_exec *e;
    size_t used;
    int count;
    struct {
        const void *from;
        void *to, *here; /* to: where it goes back; NULL: it was read only */
        size_t bytes;
    } pieces[4 * GCKPT_MAX_INPUTS + 8];
} gckpti_borrowing;

/* The host's copy of an operand; the same one for the same address. */
static void *gckpti_borrow(gckpti_borrowing *s, const void *from, void *to, size_t bytes)
{
    int i = 0;
    if (!from)
        return NULL;
    while (i < s->count && s->pieces[i].from != from)
        i++;
    if (i == s->count) {
        s->pieces[s->count].here = gckpti_carve(s->e->borrowed, &s->used, bytes, 1);
        s->pieces[s->count].from = from;
        s->pieces[s->count].to = NULL;
        s->pieces[s->count++].bytes = bytes;
        s->e->backend.copy_out(s->e->backend.context, s->pieces[i].here, from, bytes);
    }
    if (to)
        s->pieces[i].to = to;
    return s->pieces[i].here;
}

static void *gckpti_borrow_out(gckpti_borrowing *s, void *at, size_t bytes)
{
    return gckpti_borrow(s, at, at, bytes);
}

/* Runs an op's own kernel on copies of its operands. */
static void gckpti_run_on_host(const gckpt_exec *e, gckpt_kernel kernel, const gckpt_call *call)
{
    gckpt_call c = *call;
    gckpti_borrowing s;
    size_t n = (size_t)gckpti_elements(&c.shape);
    memset(&s, 0, sizeof s);
    s.e = e;
    for (int i = 0; i < c.inputs; i++) {
        gckpt_arg *arg = &c.in[i];
        size_t size = (size_t)gckpti_elements(&arg->shape);
        arg->data = (const float *)gckpti_borrow(&s, arg->data, NULL, size * 4);
        arg->index = (const int32_t *)gckpti_borrow(&s, arg->index, NULL, size * 4);
        arg->bf16 = (const uint16_t *)gckpti_borrow(&s, arg->bf16, NULL, size * 2);
        arg->grad = (float *)gckpti_borrow_out(&s, arg->grad, size * 4);
        arg->low = (float *)gckpti_borrow_out(&s, arg->low, size * 4);
        arg->grad_bf16 = (uint16_t *)gckpti_borrow_out(&s, arg->grad_bf16, size * 2);
    }
    c.grad_out = (const float *)gckpti_borrow(&s, c.grad_out, NULL, n * 4);
    c.grad_out_bf16 = (const uint16_t *)gckpti_borrow(&s, c.grad_out_bf16, NULL, n * 2);
    c.out = (float *)gckpti_borrow_out(&s, c.out, n * 4);
    c.out_bf16 = (uint16_t *)gckpti_borrow_out(&s, c.out_bf16, n * 2);
    c.aux = gckpti_borrow_out(&s, c.aux, e->plan->nodes[c.id].aux_bytes);
    c.loss_sum = (double *)gckpti_borrow_out(&s, c.loss_sum, sizeof *c.loss_sum);
    c.loss_count = (int64_t *)gckpti_borrow_out(&s, c.loss_count, sizeof *c.loss_count);
    c.work = c.work ? e->borrowed + s.used : NULL; /* all the rest */
    c.plain = 1;
    c.kernels = NULL;
    c.backend = NULL;
    kernel(&c);
    for (int i = 0; i < s.count; i++)
        if (s.pieces[i].to)
            e->backend.copy_in(e->backend.context, s.pieces[i].to, s.pieces[i].here,
                               s.pieces[i].bytes);
}

/* A plan may come from a table that was compiled in (gckpt_plan_c): is it of this header, of the
 * ops that are linked now, and for this build? */
static gckpt_result gckpti_check_plan(gckpt_store *s, const gckpt_plan *p)
{
    uint64_t hash = GCKPTI_FNV_START;
    if (p->format != GCKPT_PLAN_FORMAT || p->contract != GCKPT_CONTRACT)
        return gckpti_error(s, GCKPT_E_ARG,
                            "plan: printed by another version of gradckpt.h (format %i, contract "
                            "%i; here %i, %i): print it again with gckpt_plan_c",
                            p->format, p->contract, GCKPT_PLAN_FORMAT, GCKPT_CONTRACT);
    for (size_t i = 0; i < p->node_count; i++)
        hash = gckpti_hash_planned(hash, p, i);
    if (hash != p->check || (p->node_count && p->nodes[p->node_count - 1].hash != p->hash))
        return gckpti_error(s, GCKPT_E_ARG,
                            "plan: the graph's hash is not what it was made with: an op or the "
                            "table was changed; print it again with gckpt_plan_c");
    if (p->threads < 1 || p->threads > 1024 || p->alignment < sizeof(float) ||
        p->alignment & (p->alignment - 1))
        return gckpti_error(s, GCKPT_E_ARG,
                            "plan: %i threads, alignment %z: the table is damaged; print it again "
                            "with gckpt_plan_c",
                            p->threads, p->alignment);
#ifdef GCKPT_NO_FAST
    if (p->made_for == GCKPTI_FOR_CPU)
        return gckpti_error(
            s, GCKPT_E_ARG,
            "plan: its workspace is that of the fast kernels, which this build "
            "(GCKPT_NO_FAST) does not have; make it with gckpt_plan_desc.plain = 1");
#endif
    return GCKPT_OK;
}

/* A plan's workspace and bytes are those of what it was made for. */
static gckpt_result gckpti_check_backend(gckpt_store *s, const gckpt_plan *p,
                                         const gckpt_backend *backend)
{
    if (p->made_for > GCKPTI_FOR_PLAIN ? !backend || gckpti_made_for(backend, 0) != p->made_for
                                       : backend != NULL)
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: the plan was made for %s, desc.backend is %s; plan with "
                            "gckpt_plan_desc.backend = the one that runs it",
                            p->made_for > GCKPTI_FOR_PLAIN ? "another backend" : "the processor",
                            backend ? backend->name : "NULL");
    return GCKPT_OK;
}

/* May a backend repeat micro-batches? Nothing in them may need the host. */
static int gckpti_repeatable(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int can = e->backend.repeat && e->backend.recorded && !e->desc.debug && !e->desc.progress;
    for (int x = p->body; x < p->epilogue && can; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpti_exec_node *n = ins->kind == GCKPT_UPDATE ? NULL : &e->nodes[ins->id];
        can = n && (ins->kind >= GCKPT_OFFLOAD || !p->nodes[ins->id].op ||
                    (ins->kind == GCKPT_FORWARD ? n->forward : n->backward));
        can = can && (ins->kind < GCKPT_OFFLOAD || e->moves);
    }
    return can && p->body < p->epilogue;
}

/* A team takes up to a hundred microseconds to wake and to end: is there work for it? */
static int gckpti_worth_a_team(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const double enough = 5e7;
    double flops = 0, rounds = p->batch > p->rows ? (double)p->batch / (double)p->rows : 1;
    for (size_t x = 0; x < p->length && flops < enough; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpt_op *op = ins->kind >= GCKPT_UPDATE ? NULL : p->nodes[ins->id].op;
        gckpt_call c;
        if (ins->kind == GCKPT_UPDATE)
            flops += 16 * (double)p->params[ins->id].elements;
        if (!op)
            continue;
        gckpti_call_start(e, &p->nodes[ins->id], ins->id, p->rows, &c);
        double forward = (double)(op->flops ? op->flops(&c) : (uint64_t)gckpti_elements(&c.shape));
        flops += (ins->kind == GCKPT_FORWARD ? 1 : 2) * rounds * forward;
    }
    return flops >= enough;
}

/* ---- instruction sets ---- */
GCKPT_API const char *gckpt_isa_name(gckpt_isa isa)
{
    static const char *const names[] = { "auto", "plain", "c", "neon", "avx2", "avx512" };
    return (unsigned)isa < GCKPT_ISA_COUNT ? names[isa] : "not a gckpt_isa";
}

GCKPT_API int gckpt_isa_available(gckpt_isa isa)
{
    const void *kernels;
    return isa == GCKPT_ISA_AUTO || gckpti_cpu_backend(isa, &kernels) != NULL;
}

GCKPT_API gckpt_isa gckpt_exec_isa(const gckpt_exec *exec)
{
    return exec ? exec->isa : GCKPT_ISA_AUTO;
}

/* The processor's backend, from the widest vectors on, or the user's: what it leaves out is as the
 * processor's plain one does it. */
static gckpt_result gckpti_choose_backend(gckpt_exec *e)
{
    gckpt_isa wish = e->desc.isa;
    if (!gckpt_isa_available(wish))
        return gckpti_error(
            e->store, GCKPT_E_ARG,
            "exec: this processor or build has no %s kernels; gckpt_exec_desc.isa = "
            "GCKPT_ISA_AUTO takes what there is",
            gckpt_isa_name(wish));
    int isa = wish == GCKPT_ISA_AUTO ? GCKPT_ISA_COUNT - 1 : (int)wish;
    if (e->desc.debug & GCKPT_DEBUG_PLAIN || e->plan->made_for == GCKPTI_FOR_PLAIN)
        isa = GCKPT_ISA_PLAIN;
    const gckpt_backend *b = gckpti_cpu_backend((gckpt_isa)isa, &e->kernels);
    while (!b)
        b = gckpti_cpu_backend((gckpt_isa)--isa, &e->kernels);
    e->isa = (gckpt_isa)isa;
    e->backend = *b;
    if (!e->desc.backend)
        return GCKPT_OK;
    const gckpt_backend *plain = &gckpti_backend_plain;
    b = e->desc.backend;
    if (b->own_memory && !(b->get && b->release && b->copy_in && b->copy_out && b->copy &&
                           b->find && b->fill && b->add && b->convert && b->update && b->finish &&
                           (!b->move || (b->host_get && b->host_release && b->join))))
        return gckpti_error(e->store, GCKPT_E_ARG,
                            "exec: backend %s has memory of its own, so all its functions to "
                            "finish but workspace are needed",
                            b->name);

    e->isa = GCKPT_ISA_PLAIN;
    e->kernels = NULL;
    e->backend = *b;
    e->backend.writes_back = b->update ? b->writes_back : plain->writes_back;
    e->backend.copy_in = b->copy_in ? b->copy_in : plain->copy_in;
    e->backend.copy_out = b->copy_out ? b->copy_out : plain->copy_out;
    e->backend.copy = b->copy ? b->copy : plain->copy;
    e->backend.fill = b->fill ? b->fill : plain->fill;
    e->backend.add = b->add ? b->add : plain->add;
    e->backend.convert = b->convert ? b->convert : plain->convert;
    e->backend.update = b->update ? b->update : plain->update;
    e->backend.finish = b->finish ? b->finish : plain->finish;
    return GCKPT_OK;
}

/* All memory a run will need. */
static gckpt_result gckpti_exec_memory(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    e->tables_size = gckpti_exec_tables(e, NULL);
    e->tables = gckpti_new(&e->memory, e->tables_size, 1);
    if (!e->tables)
        return gckpti_error(e->store, GCKPT_E_MEMORY, "exec: no memory for its tables");
    gckpti_exec_tables(e, (unsigned char *)e->tables);
    gckpt_result result = gckpti_bind_params(e);
    if (result != GCKPT_OK)
        return result;
    gckpti_bind_nodes(e);
    for (size_t i = 0; i < p->param_count; i++) {
        e->params[i].square = e->square_count;
        if (p->params[i].trained)
            e->square_count +=
                ((size_t)p->params[i].elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
    }
    e->side_size = gckpti_exec_side(e, NULL);
    e->side_size += !e->side_size; /* for a pointer that is not NULL */
    e->side = gckpti_take(e, e->side_size, GCKPTI_ALIGN);
    if (!e->side)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            "exec: no memory for %z bytes of sums, feeds and constants%s",
                            e->side_size, gckpti_shortage(e));
    gckpti_exec_side(e, (unsigned char *)e->side);
    e->due = INT32_MAX;
    e->moves = e->backend.own_memory && e->backend.move && !e->desc.offload && p->offloaded;
    if (e->moves)
        e->far = (unsigned char *)e->backend.host_get(e->backend.context, p->offloaded);
    if (e->moves && !e->far)
        return gckpti_error(e->store, GCKPT_E_MEMORY, "exec: %s has no host memory for %z bytes",
                            e->backend.name, p->offloaded);
    e->copies_size = gckpti_exec_copies(e, NULL);
    int large = e->copies_size >= (size_t)PTRDIFF_MAX / 2;
    if (e->copies_size && !large)
        e->copies = gckpti_new(&e->memory, e->copies_size, 1);
    if (e->copies_size && !e->copies)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            large ? "exec: copies of the feeds are too large"
                                  : "exec: no memory for %z bytes of copied feeds and operands",
                            e->copies_size);
    if (e->copies)
        gckpti_exec_copies(e, (unsigned char *)e->copies);
    return gckpti_exec_arena(e);
}

/* Brings a parameter's newest values and state to where this executor has them. */
static gckpt_result gckpti_bring(gckpt_exec *e, gckpti_param *q)
{
    if (!e->backend.own_memory)
        gckpti_pull(e->store, q);
    else if (!gckpti_push(e->store, q, e->desc.backend))
        return gckpti_error(e->store, GCKPT_E_MEMORY, "exec: %s has no memory for \"%s\"%s",
                            e->backend.name, q->p.name, gckpti_shortage(e));
    return GCKPT_OK;
}

/* What can be refused before there is an executor. */
static gckpt_result gckpti_check_binding(gckpt_store *s, const gckpt_plan *p,
                                         const gckpt_exec_desc *desc)
{
    if (!p)
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: the plan is NULL (see gckpt_error_text of its graph)");
    gckpt_result result = gckpti_check_plan(s, p);
    if (result == GCKPT_OK)
        result = gckpti_check_backend(s, p, desc ? desc->backend : NULL);
    if (result == GCKPT_OK && p->optimiser == GCKPT_OWN_OPTIMISER && p->mode != GCKPT_INFERENCE &&
        (!desc || !desc->own_optimiser))
        result =
            gckpti_error(s, GCKPT_E_ARG,
                         "exec: the plan has GCKPT_OWN_OPTIMISER; desc.own_optimiser is missing");
    if (result == GCKPT_OK && desc && !desc->offload != !desc->reload)
        result = gckpti_error(s, GCKPT_E_ARG,
                              "exec: desc.offload and desc.reload come together, or not at all");
    return result;
}

/* An executor with its own copy of the plan, so that plans may go first, in any thread; unbound. */
static gckpt_exec *gckpti_exec_start(const gckpt_plan *plan, gckpt_store *store,
                                     const gckpt_exec_desc *desc)
{
    gckpti_allocator a;
    memset(&a, 0, sizeof a);
    if (desc)
        a.desc = desc->memory;
    gckpt_exec *e = (gckpt_exec *)gckpti_new(&a, 1, sizeof *e);
    size_t tables = plan->block ? gckpti_plan_copy(NULL, plan) : 0;
    void *block = e && tables ? gckpti_resize(&a, NULL, 0, tables) : NULL;
    if (!e || (tables && !block)) {
        gckpti_delete(&a, e, 1, sizeof *e);
        gckpti_error(store, GCKPT_E_MEMORY, "exec: no memory for %z bytes", sizeof *e + tables);
        return NULL;
    }
    if (block)
        gckpti_plan_copy(block, plan);
    e->object.magic = GCKPTI_MAGIC;
    e->memory = a;
    e->plan = block ? (gckpt_plan *)block : plan;
    e->store = store;
    if (desc)
        e->desc = *desc;
    e->runner.parallel_for = e->desc.parallel_for;
    e->runner.user = e->desc.user;
    return e;
}

/* Binds it: a backend, memory, values and state, and these to where the backend has them. */
static gckpt_result gckpti_exec_bind(gckpt_exec *e)
{
    gckpt_result result = gckpti_choose_backend(e);
    if (result == GCKPT_OK)
        result = gckpti_exec_memory(e);
    if (result == GCKPT_OK)
        result = gckpti_bind_state(e);
    if (result == GCKPT_OK && e->backend.own_memory &&
        !gckpti_bind(e->store, &e->binding, e->desc.backend))
        result = gckpti_error(e->store, GCKPT_E_MEMORY, "exec: no memory for the list of copies");
    for (size_t i = 0; i < e->plan->param_count && result == GCKPT_OK; i++)
        result = gckpti_bring(e, &e->store->params[e->params[i].index]);
    return result;
}

GCKPT_API gckpt_exec *gckpt_exec_new(const gckpt_plan *plan, gckpt_store *store,
                                     const gckpt_exec_desc *desc)
{
    if (!store || gckpti_check_binding(store, plan, desc) != GCKPT_OK)
        return NULL;
    gckpt_exec *e = gckpti_exec_start(plan, store, desc);
    if (!e)
        return NULL;
    if (gckpti_exec_bind(e) != GCKPT_OK) {
        gckpt_exec_free(e);
        return NULL;
    }
    int team = !e->backend.own_memory && plan->threads > 1 && gckpti_worth_a_team(e);
    e->team = team ? plan->threads : 1;
    e->writes_back = e->backend.writes_back || plan->optimiser == GCKPT_OWN_OPTIMISER;
    for (size_t i = 0; i < plan->pick_count; i++)
        e->writes_back = e->writes_back || plan->picks[i].gradient;
    e->repeats = gckpti_repeatable(e);
    gckpti_ok(store);
    return e;
}

/* ---- one instruction ---- */
static void *gckpti_at_any(const gckpt_exec *e, size_t offset)
{
    GCKPT_ASSERT(offset == GCKPTI_NONE || offset < e->plan->arena);
    return offset == GCKPTI_NONE ? NULL : e->arena + offset;
}

static float *gckpti_at(const gckpt_exec *e, size_t offset)
{
    return (float *)gckpti_at_any(e, offset);
}

static uint16_t *gckpti_at_bf16(const gckpt_exec *e, size_t offset)
{
    return (uint16_t *)gckpti_at_any(e, offset);
}

/* A node's shape with the rows of this micro-batch. */
static gckpt_shape gckpti_node_shape(const gckpt_exec *e, const gckpti_node *node, int64_t rows)
{
    gckpt_shape s = node->shape;
    if (!node->batchless && s.n && rows != e->plan->rows)
        s.d[0] = s.d[0] / e->plan->rows * rows;
    return s;
}

static int64_t gckpti_micro_rows(const gckpt_exec *e)
{
    int64_t left = e->row_end - e->row;
    return left < e->plan->rows ? left : e->plan->rows;
}

/* Shapes, attributes and everything else that does not come from the arena. */
static void gckpti_call_start(const gckpt_exec *e, const gckpti_node *node, int id, int64_t rows,
                              gckpt_call *c)
{
    const gckpt_plan *p = e->plan;
    gckpti_bare_call(e, c);
    c->inputs = node->inputs;
    c->shape = gckpti_node_shape(e, node, rows);
    for (int i = 0; i < node->inputs; i++)
        c->in[i].shape = gckpti_node_shape(e, &p->nodes[node->in[i]], rows);
    c->attributes = node->attribute_bytes ? p->words + node->attributes : NULL;
    c->row = node->batchless ? 0 : e->row;
    c->rows = node->batchless ? 1 : rows;
    c->id = id;
    c->precision = e->nodes[id].precision;
    for (int i = 0; i < node->inputs; i++)
        c->rounded |=
            p->nodes[p->nodes[node->in[i]].base].rounding & GCKPTI_ROUNDED ? GCKPT_IN(i) : 0;
    c->rounded |= node->rounding & GCKPTI_ROUNDED ? GCKPT_OUT : 0;
}

/* The values of input i: in the arena, where it has been brought there, else a leaf's. */
static void gckpti_call_value(const gckpt_exec *e, const gckpti_node *node, int i, size_t offset,
                              gckpt_arg *arg)
{
    int base = e->plan->nodes[node->in[i]].base;
    const gckpti_node *q = &e->plan->nodes[base];
    const void *data = offset != GCKPTI_NONE ? gckpti_at_any(e, offset) : e->nodes[base].data;
    if (q->rounding & GCKPTI_NARROW_VALUE)
        arg->bf16 = (const uint16_t *)data;
    else if (q->type == GCKPT_I32)
        arg->index = (const int32_t *)data;
    else
        arg->data = (const float *)data;
}

static int gckpti_term_of(const gckpt_plan *p, int id)
{
    for (size_t i = 0; i < p->term_count; i++)
        if (p->terms[i].id == id)
            return (int)i;
    return -1;
}

/* ---- bf16 plans: kernels get f32 copies, or bf16 where they take it; results are rounded ---- */
static void gckpti_widen(const gckpt_exec *e, const gckpt_call *c, gckpt_conversion_kind kind,
                         const uint16_t *from, float *x, int64_t n)
{
    const gckpt_conversion widening = { kind, x, from, NULL, n, 0 };
    e->backend.convert(c, &widening);
}

/* to NULL: in place. */
static void gckpti_round(const gckpt_exec *e, const gckpt_call *c, uint32_t stream, float *x,
                         uint16_t *to, int64_t n)
{
    const gckpt_conversion rounding = { to ? GCKPT_NARROW : GCKPT_ROUND, x, NULL, to, n, stream };
    e->backend.convert(c, &rounding);
}

/* The value of an op is stream 0, what its backward sends to input i is 1 + i; dropout has the
 * streams below 2^31. */
static uint32_t gckpti_stream(int id, int which)
{
    return 0x80000000u | ((uint32_t)id * (1 + GCKPT_MAX_INPUTS) + (uint32_t)which);
}

static int gckpti_sums_of(const gckpt_plan *p, const gckpti_node *node, int i)
{
    const gckpti_node *q = &p->nodes[node->in[i]];
    return gckpti_sum_kind(node->op, i, node->batchless, &node->shape, q->batchless, &q->shape,
                           p->looped);
}

/* Where the copies and low parts of this instruction are. */
static void gckpti_copies_at(const gckpt_exec *e, const gckpti_ins *ins, const gckpti_operands *o,
                             gckpti_copies *c)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    int rounding[1 + GCKPT_MAX_INPUTS], backward = ins->kind == GCKPT_BACKWARD;
    int64_t n[1 + GCKPT_MAX_INPUTS];
    unsigned reads = backward && o->out != GCKPTI_NONE ? GCKPT_OUT : 0, wanted = 0, sums = 0;
    rounding[0] = node->rounding;
    n[0] = gckpti_elements(&node->shape);
    for (int i = 0; i < node->inputs; i++) {
        rounding[1 + i] = p->nodes[p->nodes[node->in[i]].base].rounding;
        n[1 + i] = gckpti_elements(&p->nodes[node->in[i]].shape);
        if (backward && o->in[i].value != GCKPTI_NONE)
            reads |= GCKPT_IN(i);
        if (!backward || o->in[i].gradient == GCKPTI_NONE)
            continue;
        if (o->in[i].total == GCKPTI_NONE)
            wanted |= 1u << i;
        if (gckpti_sums_of(p, node, i) == GCKPTI_SUM_HERE)
            sums |= 1u << i;
    }
    gckpti_copies_of(node->op, node->inputs, rounding, n, e->nodes[ins->id].precision, backward,
                     reads, wanted, sums, c);
}

static float *gckpti_copy_at(const gckpt_call *c, size_t offset)
{
    void *p = offset == GCKPTI_NONE ? NULL : (unsigned char *)c->work + offset;
    return (float *)p;
}

/* The copy of n elements at *narrow, which becomes NULL; without a copy NULL. */
static float *gckpti_widen_copy(const gckpt_exec *e, const gckpt_call *c, size_t offset,
                                const uint16_t **narrow, int64_t n)
{
    float *copy = gckpti_copy_at(c, offset);
    if (copy) {
        gckpti_widen(e, c, GCKPT_WIDEN, *narrow, copy, n);
        *narrow = NULL;
    }
    return copy;
}

static void gckpti_widen_inputs(const gckpt_exec *e, gckpt_call *c, const gckpti_copies *copies)
{
    for (int i = 0; i < c->inputs; i++)
        if (c->in[i].bf16)
            c->in[i].data = gckpti_widen_copy(e, c, copies->value[1 + i], &c->in[i].bf16,
                                              gckpti_elements(&c->in[i].shape));
}

/* The op's own workspace begins behind all copies. */
static void gckpti_own_work(gckpt_call *c, const gckpti_copies *copies)
{
    if (c->work)
        c->work = (unsigned char *)c->work + gckpti_round_up(copies->bytes, 64);
}

/* GCKPT_DEBUG_RECOMPUTE: the hash of n floats, or of as many bf16, widened; never 0. */
static uint64_t gckpti_hash_value(const gckpt_exec *e, const void *at, int64_t n, int narrow)
{
    uint64_t hash = GCKPTI_FNV_START;
    const unsigned char *next = (const unsigned char *)at;
    int64_t size = narrow ? 2 : 4;
    for (int64_t left = n, piece; left > 0; left -= piece, next += piece * size) {
        float wide[64];
        uint16_t half[64];
        piece = gckpti_min(left, 64);
        e->backend.copy_out(e->backend.context, narrow ? (void *)half : (void *)wide, next,
                            (size_t)(piece * size));
        for (int64_t i = 0; i < piece && narrow; i++)
            wide[i] = gckpti_from_bf16(half[i]);
        hash = gckpti_hash_floats(hash, wide, piece);
    }
    return hash | 1;
}

/* GCKPT_DEBUG_RECOMPUTE: a recomputed value must be what it was. */
static gckpt_result gckpti_compare(gckpt_exec *e, const gckpti_ins *ins, const gckpt_call *c,
                                   const uint16_t *narrow)
{
    const gckpti_node *node = &e->plan->nodes[ins->id];
    const void *data[2] = { NULL, NULL };
    int64_t n[2];
    data[0] = narrow ? (const void *)narrow : c->out;
    data[1] = c->aux;
    n[0] = gckpti_elements(&c->shape);
    n[1] = (int64_t)(node->aux_bytes / 4);
    if (!node->batchless)
        n[1] = n[1] / e->plan->rows * c->rows;
    for (int k = 0; k < 2; k++) {
        uint64_t *seen = &e->hashes[2 * ins->id + k];
        if (ins->first)
            *seen = 0;
        if (!data[k])
            continue;
        uint64_t hash = gckpti_hash_value(e, data[k], n[k], narrow && k == 0);
        if (*seen && *seen != hash)
            return gckpti_error(
                e, GCKPT_E_DATA,
                "recompute: %s of %s (%s #%i) differs from what it was the first time: %s",
                k ? "aux" : "the value", gckpti_node_name(e->plan, ins->id), node->op->name,
                ins->id,
                ins->kind == GCKPT_RELOAD ? "slower memory returned other bytes"
                                          : "the op is not a function of its inputs");
        *seen = hash;
    }
    return GCKPT_OK;
}

static void gckpti_run_kernel(const gckpt_exec *e, const gckpti_ins *ins, const gckpt_call *c)
{
    const gckpti_exec_node *n = &e->nodes[ins->id];
    const gckpt_op *op = e->plan->nodes[ins->id].op;
    gckpt_kernel kernel = ins->kind == GCKPT_FORWARD ? n->forward : n->backward;
    if (kernel)
        kernel(c);
    else
        gckpti_run_on_host(e, ins->kind == GCKPT_FORWARD ? op->forward : op->backward, c);
}

/* A parameter comes into the arena, or an op is computed. */
static gckpt_result gckpti_run_forward(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    gckpti_operands o;
    gckpt_call c;
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    if (node->kind == GCKPTI_PARAM) {
        e->backend.copy(e->backend.context, gckpti_at(e, o.out), e->nodes[ins->id].data,
                        (size_t)gckpti_elements(&node->shape) * sizeof(float));
        return GCKPT_OK;
    }
    int prologue = ins < p->list + p->body; /* which inference repeats */
    int first = ins->first && !(prologue && e->row > 0);
    int term = node->op->flags & GCKPT_LOSS && first ? gckpti_term_of(p, ins->id) : -1;
    uint16_t *narrow = node->rounding & GCKPTI_NARROW_VALUE ? gckpti_at_bf16(e, o.out) : NULL;
    gckpti_call_start(e, node, ins->id, gckpti_micro_rows(e), &c);
    c.out = gckpti_at(e, o.out);
    c.aux = gckpti_at(e, o.aux);
    c.work = gckpti_at(e, o.work);
    for (int i = 0; i < node->inputs; i++)
        gckpti_call_value(e, node, i, o.in[i].value, &c.in[i]);
    if (c.precision != GCKPT_FP32) {
        gckpti_copies copies;
        gckpti_copies_at(e, ins, &o, &copies);
        gckpti_widen_inputs(e, &c, &copies);
        if (narrow)
            c.out = gckpti_copy_at(&c, copies.value[0]);
        c.out_bf16 = c.out ? NULL : narrow;
        gckpti_own_work(&c, &copies);
    }
    if (term >= 0) {
        c.loss_sum = &e->losses[term].sum;
        c.loss_count = &e->losses[term].count;
    }
    gckpti_run_kernel(e, ins, &c);
    if (c.out && node->rounding & GCKPTI_ROUNDED)
        gckpti_round(e, &c, gckpti_stream(ins->id, 0), c.out, narrow, gckpti_elements(&c.shape));
    return e->hashes ? gckpti_compare(e, ins, &c, narrow) : GCKPT_OK;
}

/* Waits, before what comes next, for moves that were begun. */
static void gckpti_join(gckpt_exec *e)
{
    if (e->due < INT32_MAX)
        e->backend.join(e->backend.context);
    e->due = INT32_MAX;
}

/* Begins a move, and finds the first instruction that must wait for it: one that may read what
 * comes in, or that writes where something goes out from. */
static void gckpti_begin_move(gckpt_exec *e, int out, size_t far, size_t offset, size_t bytes)
{
    const gckpt_plan *p = e->plan;
    void *host = e->far + far, *here = e->arena + offset;
    e->backend.move(e->backend.context, out ? host : here, out ? here : host, bytes, out);
    if (!out)
        e->due = e->pc + 1;
    for (size_t i = 0; i < p->life_count; i++)
        if (p->lives[i].start > e->pc && p->lives[i].offset < offset + bytes &&
            p->lives[i].offset + p->lives[i].size > offset)
            gckpti_lower(&e->due, p->lives[i].start);
    for (int x = e->pc + 1; x < (int)p->length && x < e->due; x++) /* in place */
        if (p->list[x].kind == GCKPT_FORWARD && p->operands[p->list[x].operands] == offset)
            gckpti_lower(&e->due, x);
    gckpti_lower(&e->due, (int)p->length);
}

/* Copies `bytes` bytes between the arena, from an offset on, and slower memory. */
static gckpt_result gckpti_copy_far(gckpt_exec *e, const gckpti_ins *ins, size_t far, size_t offset,
                                    size_t bytes)
{
    const gckpt_backend *b = &e->backend;
    const gckpt_exec_desc *d = &e->desc;
    size_t done = bytes;
    void *here = gckpti_at_any(e, offset);
    void *host = !d->offload ? e->far + far : b->own_memory ? e->borrowed : here;
    if (e->moves) {
        gckpti_begin_move(e, ins->kind == GCKPT_OFFLOAD, far, offset, bytes);
    } else if (ins->kind == GCKPT_OFFLOAD) {
        if (host != here)
            b->copy_out(b->context, host, here, bytes);
        if (d->offload)
            done = d->offload(d->user, far, host, bytes);
    } else {
        if (d->offload)
            done = d->reload(d->user, far, host, bytes);
        if (host != here && done == bytes)
            b->copy_in(b->context, here, host, bytes);
    }
    return done == bytes ? GCKPT_OK
                         : gckpti_error(e, GCKPT_E_FILE,
                                        "step: %s of \"%s\" copied %z of %z bytes; nothing was "
                                        "changed",
                                        ins->kind == GCKPT_OFFLOAD ? "offload" : "reload",
                                        gckpti_node_name(e->plan, ins->id), done, bytes);
}

/* A value and aux go to slower memory or come back; of a short micro-batch the rows it has. */
static gckpt_result gckpti_run_copies(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    int64_t rows = gckpti_micro_rows(e);
    size_t value = gckpti_node_bytes(node);
    gckpt_result result = GCKPT_OK;
    gckpti_operands o;
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    if (!node->batchless)
        value = value / (size_t)p->rows * (size_t)rows;
    if (o.out != GCKPTI_NONE)
        result = gckpti_copy_far(e, ins, node->far_value, o.out, value);
    if (o.aux != GCKPTI_NONE && result == GCKPT_OK)
        result = gckpti_copy_far(e, ins, node->far_aux, o.aux, node->aux_bytes);
    if (ins->kind == GCKPT_OFFLOAD || !e->hashes || result != GCKPT_OK)
        return result;
    gckpti_join(e);
    gckpt_call c;
    gckpti_call_start(e, node, ins->id, rows, &c);
    c.out = gckpti_at(e, o.out);
    c.aux = gckpti_at(e, o.aux);
    return gckpti_compare(e, ins, &c,
                          node->rounding & GCKPTI_NARROW_VALUE ? gckpti_at_bf16(e, o.out) : NULL);
}

/* Until all that was asked of the backend is done. */
static gckpt_result gckpti_wait(gckpt_exec *e)
{
    const char *problem = e->backend.finish(e->backend.context);
    return !problem ? GCKPT_OK
                    : gckpti_error(e, GCKPT_E_BACKEND, "step: %s: %s", e->backend.name, problem);
}

/* What the losses counted and summed up so far; the backend is waited for. */
static gckpt_result gckpti_read_losses(gckpt_exec *e)
{
    gckpt_result result = gckpti_wait(e);
    if (result != GCKPT_OK)
        return result;
    for (size_t i = 0; i < e->plan->term_count; i++)
        e->backend.copy_out(e->backend.context, &e->terms[i].seen, &e->losses[i],
                            sizeof *e->losses);
    return GCKPT_OK;
}

/* Of the first loss in this step; from its feeds, or, once it was read, as it counted itself. */
static int64_t gckpti_count(const gckpt_exec *e)
{
    return e->terms[0].expected >= 0 ? e->terms[0].expected : e->terms[0].seen.count;
}

/* What the gradient of a loss's sum is worth in units of the first loss's count (manual, 3). */
static float gckpti_loss_scale(gckpt_exec *e, int term)
{
    const gckpti_plan_term *t = &e->plan->terms[term];
    float weight = gckpti_float(t->weight);
    double own = (double)e->terms[term].expected;
    if (term == 0)
        return weight;
    if (t->regulariser && e->terms[0].expected < 0)
        (void)gckpti_read_losses(e); /* an error comes again before the first update */
    if (t->regulariser)
        return (float)((double)weight * (double)gckpti_count(e));
    if (e->streamed) /* the same count */
        return weight;
    return own > 0 ? (float)((double)weight * (double)gckpti_count(e) / own) : 0;
}

/* Where the gradient of input i goes, for the kernel: the arena, or a copy to be rounded. One that
 * is passed on is the gradient that came in. */
static void gckpti_gradient_start(gckpt_exec *e, const gckpti_ins *ins, const gckpti_operands *o,
                                  const gckpti_copies *copies, gckpt_call *c, int i)
{
    const gckpti_node *node = &e->plan->nodes[ins->id];
    const gckpti_node *q = &e->plan->nodes[e->plan->nodes[node->in[i]].base];
    gckpt_arg *arg = &c->in[i];
    int64_t n = gckpti_elements(&arg->shape);
    arg->accumulate = (ins->accumulate >> i) & 1;
    arg->grad = gckpti_at(e, o->in[i].gradient);
    if (copies->gradient[1 + i] != GCKPTI_NONE) {
        const uint16_t *narrow = gckpti_at_bf16(e, o->in[i].gradient);
        arg->grad = gckpti_copy_at(c, copies->gradient[1 + i]);
        if (arg->accumulate)
            gckpti_widen(e, c, GCKPT_WIDEN, narrow, arg->grad, n);
        else if (copies->gradient[0] != GCKPTI_NONE && node->op->flags & GCKPT_PASSES(i) &&
                 gckpti_same_shape(&arg->shape, &c->shape))
            arg->grad = gckpti_copy_at(c, copies->gradient[0]);
    } else if (arg->grad && q->rounding & GCKPTI_NARROW_GRADIENT && o->in[i].total == GCKPTI_NONE) {
        arg->grad_bf16 = gckpti_at_bf16(e, o->in[i].gradient);
        arg->grad = NULL;
    }
    if ((ins->zero >> i) & 1)
        e->backend.fill(c, arg->grad, 0, n);
    arg->low = gckpti_copy_at(c, copies->low[1 + i]);
    if (arg->low)
        e->backend.fill(c, arg->low, 0, n);
    else if (arg->grad && gckpti_sums_of(e->plan, node, i) == GCKPTI_SUM_ON)
        arg->low = arg->grad + n;
}

/* What remains to do with it: rounding, and adding what was computed apart. */
static void gckpti_gradient_end(gckpt_exec *e, const gckpti_ins *ins, const gckpti_operands *o,
                                gckpt_call *c, int i)
{
    const gckpti_node *node = &e->plan->nodes[ins->id];
    const gckpti_node *q = &e->plan->nodes[e->plan->nodes[node->in[i]].base];
    int64_t n = gckpti_elements(&c->in[i].shape);
    float *x = c->in[i].grad;
    size_t to = o->in[i].total != GCKPTI_NONE ? o->in[i].total : o->in[i].gradient;
    uint16_t *narrow = q->rounding & GCKPTI_NARROW_GRADIENT ? gckpti_at_bf16(e, to) : NULL;
    if (o->in[i].total != GCKPTI_NONE && narrow) {
        gckpti_widen(e, c, GCKPT_WIDEN_ADD, narrow, x, n);
    } else if (o->in[i].total != GCKPTI_NONE) {
        e->backend.add(c, gckpti_at(e, to), x, n);
        x = gckpti_at(e, to);
    }
    if (x && q->rounding & GCKPTI_ROUNDED && (x != c->grad_out || o->in[i].gradient != o->gradient))
        gckpti_round(e, c, gckpti_stream(ins->id, 1 + i), x, narrow, n);
}

/* Sends the gradient of an op's output, its accumulators added up, on to its inputs. */
static void gckpti_run_backward(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *node = &p->nodes[ins->id];
    gckpti_operands o;
    gckpti_copies copies;
    gckpt_call c;
    gckpti_call_start(e, node, ins->id, gckpti_micro_rows(e), &c);
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    gckpti_copies_at(e, ins, &o, &copies);
    c.out = gckpti_at(e, o.out);
    c.aux = gckpti_at(e, o.aux);
    c.work = gckpti_at(e, o.work);
    float *grad_out = gckpti_at(e, o.gradient);
    for (int u = 1; u < ins->uses; u++)
        e->backend.add(&c, grad_out, gckpti_at(e, o.more[u - 1]), gckpti_elements(&node->shape));
    c.grad_out = grad_out;
    GCKPT_ASSERT(grad_out || node->op->flags & GCKPT_LOSS);
    for (int i = 0; i < node->inputs; i++)
        gckpti_call_value(e, node, i, o.in[i].value, &c.in[i]);
    if (c.precision != GCKPT_FP32) {
        int64_t n = gckpti_elements(&c.shape);
        gckpti_widen_inputs(e, &c, &copies);
        if (c.out && node->rounding & GCKPTI_NARROW_VALUE) {
            const uint16_t *narrow = gckpti_at_bf16(e, o.out);
            c.out = gckpti_widen_copy(e, &c, copies.value[0], &narrow, n);
            c.out_bf16 = narrow ? gckpti_at_bf16(e, o.out) : NULL;
        }
        if (c.grad_out && node->rounding & GCKPTI_NARROW_GRADIENT) {
            c.grad_out_bf16 = gckpti_at_bf16(e, o.gradient);
            c.grad_out = gckpti_widen_copy(e, &c, copies.gradient[0], &c.grad_out_bf16, n);
        }
    }
    for (int i = 0; i < node->inputs; i++)
        gckpti_gradient_start(e, ins, &o, &copies, &c, i);
    gckpti_own_work(&c, &copies);
    if (node->op->flags & GCKPT_LOSS) {
        int term = gckpti_term_of(p, ins->id);
        c.loss_scale = gckpti_loss_scale(e, term);
        c.loss_sum = node->op->flags & GCKPTI_LATE ? &e->losses[term].sum : NULL;
    }
    gckpti_run_kernel(e, ins, &c);
    for (int i = 0; i < node->inputs; i++)
        gckpti_gradient_end(e, ins, &o, &c, i);
}

/* =================================================================================================
 * >>training: division, norm, clipping, optimisers, steps
 * ============================================================================================== */
/* Of gckpt_hyper: 0 is the default, negative is none. */
static float gckpti_setting(float value, float fallback)
{
    return value < 0 ? 0 : value > 0 ? value : fallback;
}

/* Where a parameter's values (slot -1) or one of its state arrays are for this executor. */
static float *gckpti_values_here(const gckpt_exec *e, const gckpti_param *q, int slot)
{
    if (e->backend.own_memory)
        return e->store->mirrors[q - e->store->params].array[1 + slot];
    return gckpti_array(q, slot);
}

/* The gradients an update finds: sums in their accumulators, or divided already. */
typedef enum { GCKPTI_SUMS, GCKPTI_DIVIDED } gckpti_gradients_are;

/* A pass that takes a gradient from sums to what an update needs, with its square sums. */
static void gckpti_pass_start(const gckpt_exec *e, const gckpti_ins *ins, gckpt_pass *pass)
{
    gckpti_operands o;
    gckpti_operands_of(e->plan->operands, ins, 0, &o);
    memset(pass, 0, sizeof *pass);
    pass->elements = e->plan->params[ins->id].elements;
    pass->gradient = gckpti_at(e, o.gradient);
    pass->base = e->arena;
    pass->more = o.more;
    pass->adds = ins->uses - 1;
    pass->count = (float)gckpti_count(e);
    pass->write_back = e->writes_back;
    pass->squares = e->squares + e->params[ins->id].square;
}

/* Adds up a parameter's accumulators and takes the square sum of the divided gradient. */
static void gckpti_finish_gradient(gckpt_exec *e, const gckpti_ins *ins)
{
    gckpt_call c;
    gckpt_pass pass;
    gckpti_bare_call(e, &c);
    gckpti_pass_start(e, ins, &pass);
    e->backend.update(&c, &pass);
}

/* The user's optimiser runs on the host, with memory of its own on copies of a parameter. */
static void gckpti_own_update(gckpt_exec *e, const gckpti_ins *ins, gckpti_param *q, uint64_t step)
{
    gckpt_update u;
    gckpt_pass pass;
    gckpti_pass_start(e, ins, &pass);
    memset(&u, 0, sizeof u);
    gckpti_pull(e->store, q);
    u.name = q->p.name;
    u.elements = q->p.elements;
    u.values = gckpti_array(q, -1);
    u.gradient = gckpti_on_host(e, pass.gradient, (size_t)pass.elements);
    for (int i = 0; i < e->plan->state_slots; i++)
        u.state[i] = gckpti_array(q, i);
    u.clip_scale = e->clip_scale;
    u.lr_scale = q->p.lr_scale;
    u.decay_scale = q->p.decay_scale;
    u.step = step;
    u.hyper = &e->hyper;
    e->desc.own_optimiser(e->desc.user, &u);
    gckpti_changed(e->store, q, GCKPTI_HOST);
    (void)gckpti_bring(e, q); /* it has a mirror: nothing can fail */
}

/* Updates a parameter; what is missing from sums to a divided gradient is done on the way. */
static void gckpti_run_update(gckpt_exec *e, const gckpti_ins *ins, gckpti_gradients_are are)
{
    const gckpt_plan *p = e->plan;
    const gckpt_hyper *h = &e->hyper;
    gckpti_param *q = &e->store->params[e->params[ins->id].index];
    float lr = h->lr * q->p.lr_scale, beta1 = gckpti_setting(h->beta1, 0.9f),
          beta2 = gckpti_setting(h->beta2, 0.999f);
    uint64_t step = e->step + 1;
    gckpt_call c;
    gckpt_pass pass;
    if (p->state_slots > 0) { /* state that was nobody's is new */
        step = q->optimiser ? q->updates + 1 : 1;
        q->optimiser = (unsigned char)(p->optimiser + 1);
        q->updates = step;
    }
    if (p->optimiser == GCKPT_OWN_OPTIMISER) {
        if (are == GCKPTI_SUMS)
            gckpti_finish_gradient(e, ins);
        gckpti_own_update(e, ins, q, step);
        return;
    }
    gckpti_bare_call(e, &c);
    gckpti_pass_start(e, ins, &pass);
    if (are == GCKPTI_DIVIDED) { /* where it was not kept it is divided again */
        pass.adds = 0;
        pass.squares = NULL;
        pass.count = e->writes_back ? 0 : pass.count;
    }
    pass.update = 1;
    pass.optimiser = p->optimiser;
    pass.values = gckpti_values_here(e, q, -1);
    for (int i = 0; i < p->state_slots; i++)
        pass.state[i] = gckpti_values_here(e, q, i);
    pass.momentum = gckpti_setting(h->momentum, 0.9f);
    pass.rates.scale = e->clip_scale;
    pass.rates.decay = lr * h->weight_decay * q->p.decay_scale;
    pass.rates.rate = lr;
    if (p->optimiser == GCKPT_ADAMW) {
        pass.rates.beta1 = beta1;
        pass.rates.rest1 = (float)(1 - (double)beta1);
        pass.rates.beta2 = beta2;
        pass.rates.rest2 = (float)(1 - (double)beta2);
        pass.rates.eps = gckpti_setting(h->eps, 1e-8f);
        pass.rates.rate = (float)((double)lr / (1 - gckpti_powi((double)beta1, step)));
        pass.rates.correct2 = (float)(1 / (1 - gckpti_powi((double)beta2, step)));
    }
    e->backend.update(&c, &pass);
    gckpti_changed(e->store, q, e->backend.own_memory ? GCKPTI_MIRROR : GCKPTI_HOST);
}

/* The norm of all gradients from their blocks' square sums, and what clipping makes of it. */
static void gckpti_total_norm(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const float *squares = gckpti_on_host(e, e->squares, e->square_count);
    double sum = 0;
    for (size_t i = 0; i < p->param_count; i++) {
        size_t param = (size_t)e->params[i].nth, first = e->params[param].square;
        size_t n =
            ((size_t)p->params[param].elements + GCKPT_UPDATE_BLOCK - 1) / GCKPT_UPDATE_BLOCK;
        double own = 0;
        for (size_t b = 0; b < n && p->params[param].trained; b++)
            own += (double)squares[first + b];
        sum += own;
    }
    e->grad_norm = gckpti_sqrt_double(sum);
    e->clip_scale = e->hyper.clip > 0 && e->grad_norm > (double)e->hyper.clip
                        ? (float)((double)e->hyper.clip / e->grad_norm)
                        : 1;
}

/* Before the first update of a step that clips: all gradients, then norm and clipping factor. */
static gckpt_result gckpti_finish_gradients(gckpt_exec *e)
{
    for (size_t x = 0; x < e->plan->length; x++)
        if (e->plan->list[x].kind == GCKPT_UPDATE)
            gckpti_finish_gradient(e, &e->plan->list[x]);
    gckpti_total_norm(e); /* waits */
    return gckpti_wait(e);
}

/* ---- debug aids around an instruction ---- */
enum { GCKPTI_PAINT = 0x7fc07fc0 }; /* NaN, two of them as bf16 */

/* What died with instruction e->pc. What began before a loop's body outlives each round. */
static void gckpti_paint_dead(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    while (e->next_death < p->life_count && p->lives[e->next_death].end <= e->pc) {
        const gckpt_buffer *life = &p->lives[e->next_death++];
        if (life->end == e->pc &&
            !(p->looped && life->start < p->body && e->pc >= p->body && e->pc < p->epilogue))
            gckpti_fill(e, e->arena + life->offset, GCKPTI_PAINT, life->size / 4 * 4);
    }
}

static int gckpti_measures(const gckpt_exec *e)
{
    return e->desc.debug & GCKPT_DEBUG_MEASURE && e->painted_steps < 2;
}

static void gckpti_measure_start(gckpt_exec *e)
{
    if (gckpti_measures(e))
        gckpti_fill(e, e->arena, e->painted_steps ? 0x5a5a5a5au : 0xa5a5a5a5u, e->plan->arena);
    else if (e->desc.debug & GCKPT_DEBUG_PAINT)
        gckpti_fill(e, e->arena, GCKPTI_PAINT, e->plan->arena / 4 * 4);
}

/* Where the arena's last byte that is not `paint` ends; `low`: not below this. */
static size_t gckpti_highest_touched(const gckpt_exec *e, size_t low, unsigned char paint)
{
    unsigned char piece[256];
    for (size_t top = e->plan->arena, n; top > low; top -= n) {
        size_t left;
        n = top - low < sizeof piece ? top - low : sizeof piece;
        e->backend.copy_out(e->backend.context, piece, e->arena + top - n, n);
        for (left = n; left > 0 && piece[left - 1] == paint;)
            left--;
        if (left > 0)
            return top - n + left;
    }
    return low;
}

/* GCKPT_DEBUG_MEASURE: how far the arena was touched; and always, that nothing behind it was. */
static gckpt_result gckpti_measure_end(gckpt_exec *e)
{
    unsigned char canary[GCKPTI_CANARY];
    if (gckpti_measures(e)) {
        e->touched = gckpti_highest_touched(e, e->touched, e->painted_steps ? 0x5a : 0xa5);
        for (size_t i = 0; i < e->plan->life_count; i++) { /* what kernels use of it differs */
            const gckpt_buffer *life = &e->plan->lives[i];
            if (life->kind == GCKPT_BUFFER_WORKSPACE && life->offset + life->size > e->touched)
                e->touched = life->offset + life->size;
        }
        e->painted_steps++;
    }
    if (e->owned)
        e->backend.copy_out(e->backend.context, canary, e->arena + e->plan->arena, sizeof canary);
    for (size_t i = 0; e->owned && i < sizeof canary; i++)
        if (canary[i] != GCKPTI_CANARY_BYTE)
            return gckpti_error(e, GCKPT_E_DATA,
                                "step: a kernel wrote behind the arena of %z bytes",
                                e->plan->arena);
    return GCKPT_OK;
}

GCKPT_API size_t gckpt_bytes_measured(const gckpt_exec *exec)
{
    return exec ? gckpt_store_bytes(exec->store) + exec->touched : 0;
}

/* ---- a step ---- */

/* Input i of a loss, whose elements it counts; of an i32 input those that are not ignored. */
static int gckpti_counted(const gckpt_op *op)
{
    int i = GCKPT_MAX_INPUTS - 1;
    while (i > 0 && !(op->flags & GCKPT_INDEX(i)))
        i--;
    return i;
}

static const int32_t *gckpti_indices(const gckpt_exec *e, const gckpti_node *q)
{
    const void *data = q->kind == GCKPTI_CONSTANT ? q->data : e->inputs[q->index].feed;
    return (const int32_t *)data;
}

/* The values of i32 input i of a node, in all rows. */
static gckpt_result gckpti_check_indices(gckpt_exec *e, const gckpti_node *node, int id, int i,
                                         int64_t rows)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *q = &p->nodes[p->nodes[node->in[i]].base];
    const int32_t *index = gckpti_indices(e, q);
    int ignores = node->op->flags & GCKPT_LOSS && i == gckpti_counted(node->op);
    gckpt_call c;
    gckpti_call_start(e, node, id, p->rows, &c);
    int64_t limit = node->op->classes(&c, i), per_row = gckpti_elements(&q->shape), n = per_row;
    if (q->kind != GCKPTI_CONSTANT) {
        per_row /= p->rows;
        n = per_row * rows;
    }
    for (int64_t k = 0; k < n && limit; k++)
        if (index[k] >= limit || (index[k] < 0 && !ignores))
            return gckpti_error(e, GCKPT_E_DATA,
                                "\"%s\": index %i at row %I, position %I: %s #%i takes 0 to %I",
                                p->names + q->name, (int)index[k], k / per_row, k % per_row,
                                node->op->name, id, limit - 1);
    return GCKPT_OK;
}

/* Which input each feed is for; every input that is read must have one. */
static gckpt_result gckpti_match_feeds(gckpt_exec *e, const gckpt_feed *feeds, int count)
{
    const gckpt_plan *p = e->plan;
    if (count < 0 || (count > 0 && !feeds))
        return gckpti_error(e, GCKPT_E_ARG, "feeds: NULL or a negative count");
    for (size_t i = 0; i < p->inputs; i++)
        e->inputs[i].feed = NULL;
    for (int i = 0; i < count; i++) {
        const gckpti_node *q = NULL;
        if (feeds[i].input >= 0 && (size_t)feeds[i].input < p->node_count)
            q = &p->nodes[p->nodes[feeds[i].input].base];
        if (!q || q->kind != GCKPTI_INPUT || !feeds[i].data)
            return gckpti_error(
                e, GCKPT_E_ARG, "feed %i: %s", i,
                !feeds[i].data
                    ? "its data is NULL"
                    : "its id is not that of an input (gckpt_id of a gckpt_input tensor)");
        if (e->inputs[q->index].feed)
            return gckpti_error(e, GCKPT_E_ARG, "feed %i: input \"%s\" is fed twice", i,
                                p->names + q->name);
        e->inputs[q->index].feed = (const unsigned char *)feeds[i].data;
    }
    for (size_t i = 0; i < p->inputs; i++)
        if (e->inputs[i].node >= 0 && !e->inputs[i].feed)
            return gckpti_error(e, GCKPT_E_ARG, "input \"%s\" is not fed",
                                p->names + p->nodes[e->inputs[i].node].name);
    return GCKPT_OK;
}

/* Points the plan's inputs to the rows of this micro-batch, or copies these to the backend. */
static void gckpti_feed_rows(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->inputs; i++) {
        const gckpti_exec_input *in = &e->inputs[i];
        if (in->node < 0)
            continue;
        size_t row = gckpti_row_bytes(p, &p->nodes[in->node]);
        const unsigned char *rows = in->feed + (size_t)(e->row - e->feed_row) * row;
        if (in->on_backend)
            e->backend.copy_in(e->backend.context, in->on_backend, rows,
                               row * (size_t)gckpti_micro_rows(e));
        e->nodes[in->node].data = in->on_backend ? in->on_backend : rows;
    }
}

/* Takes the feeds for the next rows of the step and checks what indices they hold. */
static gckpt_result gckpti_take_feeds(gckpt_exec *e, const gckpt_feed *feeds, int count,
                                      int64_t rows)
{
    const gckpt_plan *p = e->plan;
    gckpt_result result = gckpti_match_feeds(e, feeds, count);
    for (size_t x = 0; x < p->length && result == GCKPT_OK; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpti_node *node =
            ins->kind == GCKPT_FORWARD && ins->first ? &p->nodes[ins->id] : NULL;
        for (int i = 0; node && node->op && node->op->classes && i < node->inputs; i++)
            if (node->op->flags & GCKPT_INDEX(i) && result == GCKPT_OK)
                result = gckpti_check_indices(e, node, ins->id, i, rows);
    }
    for (size_t i = 0; i < p->inputs && result == GCKPT_OK; i++) {
        gckpti_exec_input *in = &e->inputs[i];
        if (!in->copy)
            continue;
        memcpy(in->copy, in->feed, gckpti_row_bytes(p, &p->nodes[in->node]) * (size_t)rows);
        in->feed = in->copy;
    }
    return result;
}

/* What a loss will count over all rows. What does not depend on the batch, or mixes its rows, is
 * counted once a micro-batch. */
static int64_t gckpti_expected_count(const gckpt_exec *e, const gckpti_node *node, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *q = &p->nodes[p->nodes[node->in[gckpti_counted(node->op)]].base];
    int64_t n = gckpti_elements(&q->shape), times = (rows + p->rows - 1) / p->rows, ignored = 0;
    if (!q->batchless && n % p->rows == 0) {
        n = n / p->rows * rows;
        times = 1;
    }
    for (int64_t k = 0; q->type == GCKPT_I32 && k < n; k++)
        ignored += gckpti_indices(e, q)[k] < 0;
    return (n - ignored) * times;
}

/* Adds what each loss will count over the rows just fed, where a rule says what that is: the loss
 * has GCKPT_COUNTS_FEEDS, or there are several, which then must keep to it (check_counts). */
static void gckpti_expect_counts(gckpt_exec *e, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->term_count; i++)
        if (e->terms[i].expected >= 0)
            e->terms[i].expected += gckpti_expected_count(e, &p->nodes[p->terms[i].id], rows);
}

/* Before the first rows: 0 where they will be counted, -1 where they cannot be. */
static void gckpti_start_counts(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int several = 0;
    for (size_t i = 1; i < p->term_count; i++)
        several = several || !p->terms[i].regulariser;
    for (size_t i = 0; i < p->term_count; i++) {
        const gckpti_node *node = &p->nodes[p->terms[i].id];
        int rule = node->op->flags & GCKPT_COUNTS_FEEDS || (several && !e->streamed);
        memset(&e->terms[i], 0, sizeof e->terms[i]);
        e->terms[i].expected = rule && !node->batchless ? 0 : -1;
    }
}

/* Streaming cannot count ahead: all losses of the batch must share the first one's count. */
static gckpt_result gckpti_check_streaming(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    const gckpti_node *first = &p->nodes[p->terms[0].id];
    for (size_t i = 1; i < p->term_count; i++) {
        const gckpti_node *node = &p->nodes[p->terms[i].id];
        const gckpti_node *a = &p->nodes[first->in[gckpti_counted(first->op)]];
        const gckpti_node *b = &p->nodes[node->in[gckpti_counted(node->op)]];
        int same = a->type == b->type && (a->type == GCKPT_I32 ? a->base == b->base
                                                               : gckpti_elements(&a->shape) ==
                                                                     gckpti_elements(&b->shape));
        if (!p->terms[i].regulariser && !same)
            return gckpti_error(
                e, GCKPT_E_ARG,
                "step_begin: loss %s #%i has a count of its own, which is not known while rows "
                "stream in; use gckpt_step",
                node->op->name, p->terms[i].id);
    }
    return GCKPT_OK;
}

/* As many rows as the plan takes in a step or call. */
static gckpt_result gckpti_check_rows(gckpt_exec *e, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    int inference = p->mode == GCKPT_INFERENCE;
    if (rows < 1 || (!inference && rows > p->batch - e->row_end))
        return gckpti_error(e, GCKPT_E_ARG, "step: %I rows; this plan takes 1 to %I in a step%s",
                            rows, p->batch,
                            e->row_end ? " (all calls of the step together)" : " (desc.batch)");
    if (p->mixer >= 0 && rows % p->rows)
        return gckpti_error(
            e, GCKPT_E_ARG,
            "step: %I rows: must be a multiple of the micro-batch of %I, because %s #%i mixes rows",
            rows, p->rows, gckpti_node_name(p, p->mixer), p->mixer);
    return GCKPT_OK;
}

/* Looped plans: the accumulators of parameters' gradients (and those of functions of parameters),
 * with their low parts, start at +0. */
static void gckpti_clear_accumulators(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t x = 0; x < p->length && p->looped; x++) {
        const gckpti_ins *ins = &p->list[x];
        const gckpti_node *node = &p->nodes[gckpti_ins_tensor(p, ins)];
        gckpti_operands o;
        gckpti_operands_of(p->operands, ins, node->inputs, &o);
        for (int i = 0; ins->kind == GCKPT_BACKWARD && i < node->inputs; i++) {
            const gckpti_node *q = &p->nodes[node->in[i]];
            float *sum = gckpti_at(e, o.in[i].gradient);
            int64_t n = gckpti_elements(&q->shape);
            if (sum && q->batchless)
                gckpti_fill(e, sum, 0,
                            4 * (size_t)(gckpti_sums_of(p, node, i) == GCKPTI_SUM_ON ? 2 * n : n));
        }
    }
}

/* Finite and in range, each of them. */
static gckpt_result gckpti_check_hyper(gckpt_exec *e, const gckpt_hyper *h)
{
    const struct {
        const char *name;
        float value, low, high;
    } fields[] = { { "lr", h->lr, 0, FLT_MAX },
                   { "weight_decay", h->weight_decay, 0, FLT_MAX },
                   { "beta1", h->beta1, -1, 0.9999999f },
                   { "beta2", h->beta2, -1, 0.9999999f },
                   { "eps", h->eps, 0, 1 },
                   { "momentum", h->momentum, -1, 1 },
                   { "clip", h->clip, 0, FLT_MAX } };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!(fields[i].value >= fields[i].low && fields[i].value <= fields[i].high)) /* or NaN */
            return gckpti_error(e, GCKPT_E_ARG, "step: hyper.%s is %g; it must be from %g to %g%s",
                                fields[i].name, (double)fields[i].value, (double)fields[i].low,
                                (double)fields[i].high,
                                i ? "" : " (a term of negative weight is maximised)");
    return GCKPT_OK;
}

/* The plan's parameters: as they were when it was made, and their newest values where this executor
 * reads them. */
static gckpt_result gckpti_begin_params(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    for (size_t i = 0; i < p->param_count; i++) {
        gckpti_param *q = &e->store->params[e->params[i].index];
        if (p->params[i].trained && q->p.frozen)
            return gckpti_error(e, GCKPT_E_ARG,
                                "step: \"%s\" was frozen after planning; make a new plan",
                                p->names + p->params[i].name);
        if (p->params[i].trained && gckpti_others_state(p, q))
            return gckpti_error(e, GCKPT_E_ARG,
                                "step: \"%s\" got state of another optimiser after this executor "
                                "was made; gckpt_store_reset clears it",
                                p->names + p->params[i].name);
        if (gckpti_bring(e, q) != GCKPT_OK)
            return gckpti_error(e, GCKPT_E_MEMORY, "step: %s has no memory for \"%s\"%s",
                                e->backend.name, p->names + p->params[i].name,
                                gckpti_shortage(e));
        const void **data = &e->nodes[p->params[i].node].data;
        if (*data != gckpti_values_here(e, q, -1))
            gckpti_forget(e);
        *data = gckpti_values_here(e, q, -1);
    }
    return GCKPT_OK;
}

/* The beginning that steps, streams and forwards share: what they ask for fits the plan, and all
 * that belongs to a step is as before its first instruction. */
static gckpt_result gckpti_begin(gckpt_exec *e, const gckpt_hyper *hyper, int inference)
{
    const gckpt_plan *p = e->plan;
    e->state = GCKPTI_IDLE;
    gckpti_join(e); /* of a step that was abandoned */
    if (inference != (p->mode == GCKPT_INFERENCE))
        return gckpti_error(e, GCKPT_E_ARG,
                            inference
                                ? "forward: this plan trains; make one with GCKPT_INFERENCE"
                                : "step: this plan is for GCKPT_INFERENCE; gckpt_forward runs it");
    if (!inference && !hyper)
        return gckpti_error(e, GCKPT_E_ARG, "step: hyper is NULL");
    if (!inference && gckpti_check_hyper(e, hyper) != GCKPT_OK)
        return GCKPT_E_ARG;
    if (!inference && p->update_in_backward && hyper->clip > 0)
        return gckpti_error(
            e, GCKPT_E_ARG,
            "step: clip needs all gradients before the first update; this plan updates in "
            "the backward (desc.update_in_backward)");
    gckpt_result result = gckpti_begin_params(e);
    if (result != GCKPT_OK)
        return result;
    if (hyper)
        e->hyper = *hyper;
    e->pc = 0;
    e->step = e->store->step;
    e->streamed = 0;
    e->counts_settled = 0;
    e->updating = 0;
    e->next_death = 0;
    e->row = e->row_end = e->feed_row = 0;
    e->grad_norm = 0;
    e->clip_scale = 1;
    return gckpti_ok(e);
}

static void gckpti_start_step(gckpt_exec *e)
{
    gckpti_measure_start(e);
    e->accumulators_cleared = 0;
    gckpti_fill(e, e->losses, 0, e->plan->term_count * sizeof *e->losses);
}

/* In a step that changes anything, losses count what the feeds say. */
static gckpt_result gckpti_check_counts(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int trains = p->mode != GCKPT_INFERENCE && (gckpti_count(e) || e->terms[0].seen.count);
    for (size_t i = 0; i < p->term_count && trains; i++)
        if (e->terms[i].expected >= 0 && e->terms[i].expected != e->terms[i].seen.count)
            return gckpti_error(
                e, GCKPT_E_DATA,
                "step: loss %s #%i counted %I; its feeds say %I. A loss that counts in its own "
                "way can only be the first of a plan",
                p->nodes[p->terms[i].id].op->name, p->terms[i].id, e->terms[i].seen.count,
                e->terms[i].expected);
    return GCKPT_OK;
}

/* Before anything is changed: the first loss's count, and that all counted as they should. Where
 * all have promised so nothing waits for it, and a broken promise shows at the end of the step. */
static gckpt_result gckpti_settle_counts(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    int promised = e->backend.own_memory;
    gckpt_result result = GCKPT_OK;
    for (size_t i = 0; i < p->term_count; i++)
        promised = promised && (p->terms[i].regulariser ||
                                p->nodes[p->terms[i].id].op->flags & GCKPT_COUNTS_FEEDS);
    if (!e->counts_settled && !promised)
        result = gckpti_read_losses(e);
    if (!e->counts_settled && !promised && result == GCKPT_OK)
        result = gckpti_check_counts(e);
    e->counts_settled = result == GCKPT_OK;
    return result;
}

/* At the end of a micro-batch: to the next one. 0: the rows at hand are done, others may come. */
static int gckpti_next_rows(gckpt_exec *e)
{
    e->row += gckpti_micro_rows(e);
    if (e->row == e->row_end)
        return e->state != GCKPTI_STREAMING;
    e->pc = e->plan->mode == GCKPT_INFERENCE ? 0 : e->plan->body;
    e->next_death = 0;
    gckpti_feed_rows(e);
    return 1;
}

/* Before a micro-batch's first instruction: 1: the backend has done all of them. Where a
 * regulariser's gradient waits for a count, the backend is not asked. */
static int gckpti_repeat(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    gckpt_moment m = { e, e->row, gckpti_micro_rows(e), e->store->seed, e->step, e->scales,
                       (int)p->term_count };
    for (size_t i = 0; i < p->term_count; i++) {
        if (p->terms[i].regulariser && e->terms[0].expected < 0)
            return 0;
        e->scales[i].id = p->terms[i].id;
        e->scales[i].scale = gckpti_loss_scale(e, (int)i);
    }
    e->recording = !e->backend.repeat(e->backend.context, &m);
    e->pc = e->recording ? p->body : p->epilogue;
    return !e->recording;
}

/* After its last instruction. */
static void gckpti_recorded(gckpt_exec *e)
{
    e->recording = 0;
    if (!e->backend.recorded(e->backend.context)) {
        e->repeats = e->repeating = 0;
        e->pc = e->plan->body;
    }
}

/* 1: the user's callback cancels the step. */
static int gckpti_cancelled(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    if (!e->desc.progress)
        return 0;
    gckpt_progress progress = {
        e->pc,      (int)p->length,        e->row,
        e->row_end, (gckpt_kind)ins->kind, gckpti_node_name(p, gckpti_ins_tensor(p, ins))
    };
    return e->desc.progress(e->desc.user, &progress) && !e->updating;
}

/* One instruction; before the first update of a step that clips, the norm. */
static gckpt_result gckpti_run_instruction(gckpt_exec *e, const gckpti_ins *ins)
{
    int clips = e->hyper.clip > 0; /* else the norm is only reported: one pass is enough */
    if (ins->kind == GCKPT_FORWARD)
        return gckpti_run_forward(e, ins);
    if (ins->kind >= GCKPT_OFFLOAD)
        return gckpti_run_copies(e, ins);
    if (ins->kind == GCKPT_BACKWARD) {
        gckpti_run_backward(e, ins);
        return GCKPT_OK;
    }
    gckpt_result result = clips && !e->updating ? gckpti_finish_gradients(e) : GCKPT_OK;
    if (result != GCKPT_OK)
        return result;
    e->updating = 1;
    gckpti_run_update(e, ins, clips ? GCKPTI_DIVIDED : GCKPTI_SUMS);
    return GCKPT_OK;
}

/* How far a run goes: the whole step, what comes before its first update, or all but updates. */
typedef enum { GCKPTI_WHOLE_STEP, GCKPTI_GRADIENTS, GCKPTI_NO_UPDATES } gckpti_extent;

/* Runs one instruction and moves on. Returns MORE, OK at the end of the extent (or of the rows at
 * hand when streaming), CANCELLED or an error. */
static gckpt_result gckpti_advance(gckpt_exec *e, gckpti_extent extent)
{
    const gckpt_plan *p = e->plan;
    gckpt_result result = GCKPT_OK;
    if (!e->accumulators_cleared) /* here, where a team can do it */
        gckpti_clear_accumulators(e);
    e->accumulators_cleared = 1;
    if (e->pc == p->epilogue && e->row < e->row_end && !gckpti_next_rows(e))
        return GCKPT_OK;
    if (e->pc >= (int)p->length)
        return GCKPT_OK;
    if (e->repeating && e->pc == p->body && gckpti_repeat(e))
        return GCKPT_MORE;
    const gckpti_ins *ins = &p->list[e->pc];
    if (e->pc >= e->due)
        gckpti_join(e);
    if (ins->kind == GCKPT_UPDATE) {
        result = gckpti_settle_counts(e);
        if (result == GCKPT_OK && (extent != GCKPTI_WHOLE_STEP || !gckpti_count(e))) {
            e->pc++;
            return extent == GCKPTI_GRADIENTS && gckpti_count(e) ? GCKPT_OK : GCKPT_MORE;
        }
    }
    if (result == GCKPT_OK && gckpti_cancelled(e, ins)) {
        e->state = GCKPTI_IDLE;
        return gckpti_error(e, GCKPT_CANCELLED,
                            "cancelled by the progress callback before instruction %i; nothing was "
                            "changed",
                            e->pc);
    }
    if (result == GCKPT_OK)
        result = gckpti_run_instruction(e, ins);
    if (e->desc.debug & GCKPT_DEBUG_PAINT) {
        gckpti_join(e);
        gckpti_paint_dead(e);
    }
    e->pc++;
    if (e->pc == p->epilogue) /* the next micro-batch begins anew */
        gckpti_join(e);
    if (e->recording && (e->pc == p->epilogue || result != GCKPT_OK))
        gckpti_recorded(e);
    if (result != GCKPT_OK)
        e->state = GCKPTI_IDLE;
    return result == GCKPT_OK ? GCKPT_MORE : result;
}

typedef struct {
    gckpt_exec *e;
    int64_t instructions; /* at most */
    gckpti_extent extent;
    gckpt_result result;
} gckpti_running;

static void gckpti_run_here(void *context)
{
    gckpti_running *r = (gckpti_running *)context;
    for (int64_t i = 0; i < r->instructions && r->result == GCKPT_MORE; i++)
        r->result = gckpti_advance(r->e, r->extent);
}

/* As gckpti_advance, but many instructions, with a team. */
static gckpt_result gckpti_run(gckpt_exec *e, int64_t instructions, gckpti_extent extent)
{
    gckpti_running r = { e, instructions, extent, GCKPT_MORE };
    e->repeating = e->repeats && instructions == INT64_MAX;
    gckpti_with_team(&e->runner, e->team, gckpti_run_here, &r);
    gckpti_join(e); /* what comes next may be another executor's, in the same arena */
    e->repeating = 0;
    return r.result;
}

/* The end of a step: waits for the backend, adds up the losses, counts the step. */
static gckpt_result gckpti_finish_step(gckpt_exec *e, gckpt_report *report)
{
    const gckpt_plan *p = e->plan;
    double loss = 0;
    e->state = GCKPTI_IDLE;
    gckpt_result result = gckpti_read_losses(e);
    if (result == GCKPT_OK)
        result = gckpti_check_counts(e);
    if (result != GCKPT_OK)
        return result;
    int64_t count = p->term_count ? e->terms[0].seen.count : 0;
    for (size_t i = 0; i < p->term_count; i++) {
        double weight = (double)gckpti_float(p->terms[i].weight);
        const gckpti_loss_total *seen = &e->terms[i].seen;
        if (p->terms[i].regulariser)
            loss += weight * seen->sum;
        else if (seen->count > 0)
            loss += weight * (seen->sum / (double)seen->count);
    }
    if (p->mode != GCKPT_INFERENCE && count > 0) {
        gckpti_total_norm(e);
        e->store->step++;
    }
    if (report) {
        report->loss = count > 0 || p->mode == GCKPT_INFERENCE ? loss : 0;
        report->grad_norm = count > 0 ? e->grad_norm : 0;
        report->count = count;
        report->step = e->store->step;
    }
    return gckpti_measure_end(e);
}

/* Everything before the first instruction of a step or forward over `rows` rows. */
static gckpt_result gckpti_prepare(gckpt_exec *e, const gckpt_feed *feeds, int count, int64_t rows,
                                   const gckpt_hyper *hyper, int inference)
{
    if (!e)
        return GCKPT_E_ARG;
    gckpt_result result = gckpti_begin(e, hyper, inference);
    if (result == GCKPT_OK)
        result = gckpti_check_rows(e, rows);
    if (result == GCKPT_OK)
        result = gckpti_take_feeds(e, feeds, count, rows);
    if (result != GCKPT_OK)
        return result;
    e->row_end = rows;
    gckpti_start_counts(e);
    gckpti_expect_counts(e, rows);
    gckpti_start_step(e);
    gckpti_feed_rows(e);
    e->state = GCKPTI_RUNNING;
    return GCKPT_OK;
}

GCKPT_API gckpt_result gckpt_step_start(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                        int64_t rows, const gckpt_hyper *hyper)
{
    return gckpti_prepare(exec, feeds, count, rows, hyper, 0);
}

GCKPT_API gckpt_result gckpt_run_some(gckpt_exec *exec, int instructions, gckpt_report *report)
{
    if (!exec)
        return GCKPT_E_ARG;
    if (exec->state != GCKPTI_RUNNING)
        return gckpti_error(exec, GCKPT_E_ARG, "run_some: no step was started (gckpt_step_start)");
    gckpt_result result = gckpti_run(exec, instructions, GCKPTI_WHOLE_STEP);
    return result == GCKPT_OK ? gckpti_finish_step(exec, report) : result;
}

GCKPT_API gckpt_instruction gckpt_next(const gckpt_exec *exec)
{
    gckpt_instruction next = { GCKPT_FORWARD, -1 };
    if (!exec || exec->state == GCKPTI_IDLE)
        return next;
    int more = exec->pc == exec->plan->epilogue && exec->row_end - exec->row > exec->plan->rows;
    gckpt_plan_get(exec->plan, more ? exec->plan->body : exec->pc, &next);
    return next;
}

static gckpt_result gckpti_run_all(gckpt_exec *e, gckpt_report *report)
{
    gckpt_result result = gckpti_run(e, INT64_MAX, GCKPTI_WHOLE_STEP);
    return result == GCKPT_OK ? gckpti_finish_step(e, report) : result;
}

GCKPT_API gckpt_result gckpt_step(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                  int64_t rows, const gckpt_hyper *hyper, gckpt_report *report)
{
    gckpt_result result = gckpti_prepare(exec, feeds, count, rows, hyper, 0);
    return result == GCKPT_OK ? gckpti_run_all(exec, report) : result;
}

GCKPT_API gckpt_result gckpt_forward(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                     int64_t rows, gckpt_report *report)
{
    gckpt_result result = gckpti_prepare(exec, feeds, count, rows, NULL, 1);
    return result == GCKPT_OK ? gckpti_run_all(exec, report) : result;
}

GCKPT_API gckpt_result gckpt_step_begin(gckpt_exec *exec, const gckpt_hyper *hyper)
{
    if (!exec)
        return GCKPT_E_ARG;
    gckpt_result result = gckpti_begin(exec, hyper, 0);
    if (result == GCKPT_OK && !exec->plan->looped)
        return gckpti_error(
            exec, GCKPT_E_ARG,
            "step_begin: rows can stream in only when desc.batch is larger than the graph's "
            "%I rows",
            exec->plan->rows);
    if (result == GCKPT_OK)
        result = gckpti_check_streaming(exec);
    if (result != GCKPT_OK)
        return result;
    exec->streamed = 1;
    gckpti_start_counts(exec);
    gckpti_start_step(exec);
    exec->state = GCKPTI_STREAMING;
    return GCKPT_OK;
}

GCKPT_API gckpt_result gckpt_step_add(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                      int64_t rows)
{
    if (!exec)
        return GCKPT_E_ARG;
    if (exec->state != GCKPTI_STREAMING)
        return gckpti_error(exec, GCKPT_E_ARG, "step_add: no step was begun (gckpt_step_begin)");
    gckpt_result result = gckpti_check_rows(exec, rows);
    if (result == GCKPT_OK)
        result = gckpti_take_feeds(exec, feeds, count, rows);
    if (result != GCKPT_OK) /* the rows before stay counted; the caller may go on */
        return result;
    gckpti_ok(exec);
    if (exec->row_end > 0) {
        exec->pc = exec->plan->body;
        exec->next_death = 0;
    }
    exec->feed_row = exec->row = exec->row_end;
    exec->row_end += rows;
    gckpti_expect_counts(exec, rows);
    gckpti_feed_rows(exec);
    return gckpti_run(exec, INT64_MAX, GCKPTI_WHOLE_STEP);
}

GCKPT_API gckpt_result gckpt_step_end(gckpt_exec *exec, gckpt_report *report)
{
    if (!exec)
        return GCKPT_E_ARG;
    if (exec->state != GCKPTI_STREAMING)
        return gckpti_error(exec, GCKPT_E_ARG, "step_end: no step was begun (gckpt_step_begin)");
    gckpti_ok(exec);
    exec->state = GCKPTI_RUNNING;
    exec->pc = exec->plan->epilogue;
    if (exec->row_end == 0) /* nothing was added: nothing to do */
        return gckpti_finish_step(exec, report);
    return gckpti_run_all(exec, report);
}

GCKPT_API const float *gckpt_fetch(const gckpt_exec *exec, int id, int gradient)
{
    size_t used = 0;
    for (size_t i = 0; exec && i < exec->plan->pick_count; i++) {
        const gckpti_plan_pick *pick = &exec->plan->picks[i];
        size_t bytes = gckpti_pick_bytes(exec->plan, pick);
        void *copy = gckpti_carve(exec->picks, &used, bytes, 1);
        if (pick->id != id || !pick->gradient != !gradient)
            continue;
        if (!exec->backend.own_memory)
            return gckpti_at(exec, pick->offset);
        exec->backend.copy_out(exec->backend.context, copy, exec->arena + pick->offset, bytes);
        return (const float *)copy;
    }
    return NULL;
}

GCKPT_API float gckpt_lr_cosine(uint64_t step, uint64_t warmup, uint64_t steps, float lr,
                                float min_lr)
{
    if (step < warmup)
        return lr * (float)(step + 1) / (float)warmup;
    if (step >= steps || steps <= warmup)
        return min_lr;
    float t = (float)(step - warmup) / (float)(steps - warmup);
    return gckpti_fma(0.5f * (lr - min_lr), 1 + gckpti_cos(3.14159265f * t), min_lr);
}

/* =================================================================================================
 * >>check: gradients against finite differences
 * ============================================================================================== */

/* What a step is tried on, again and again, without being taken. */
typedef struct {
    gckpt_exec *e;
    const gckpt_feed *feeds;
    int count;
    int64_t rows;
} gckpti_batch;

static gckpt_result gckpti_batch_begin(const gckpti_batch *b)
{
    const gckpt_hyper hyper = { 0, 0, 0, 0, 0, 0, 0 };
    return gckpti_prepare(b->e, b->feeds, b->count, b->rows, &hyper, 0);
}

/* When all micro-batches have run, or failed with `result`: gradients and loss, but no update. */
static gckpt_result gckpti_batch_end(const gckpti_batch *b, gckpt_result result, const char *who,
                                     gckpt_report *report)
{
    gckpt_exec *e = b->e;
    e->state = GCKPTI_IDLE;
    if (result == GCKPT_OK)
        result = gckpti_settle_counts(e);
    if (result != GCKPT_OK)
        return result;
    if (!gckpti_count(e))
        return gckpti_error(e, GCKPT_E_DATA, "%s: no valid target in these rows", who);
    uint64_t step = e->store->step;
    result = gckpti_finish_gradients(e);
    if (result == GCKPT_OK)
        result = gckpti_finish_step(e, report);
    e->store->step = step;
    return result;
}

/* Loss, and gradients as a program may see them. */
static gckpt_result gckpti_gradients(const gckpti_batch *b, double *loss)
{
    gckpt_report report;
    gckpt_result result = gckpti_batch_begin(b);
    if (result != GCKPT_OK)
        return result;
    result = gckpti_run(b->e, INT64_MAX, GCKPTI_GRADIENTS);
    int keeps = b->e->writes_back;
    b->e->writes_back = 1;
    result = gckpti_batch_end(b, result, "check_gradients", &report);
    b->e->writes_back = keeps;
    *loss = result == GCKPT_OK ? report.loss : 0;
    return result;
}

/* Elements of the largest parameter that is trained. */
static int64_t gckpti_most_elements(const gckpt_plan *p)
{
    int64_t most = 0;
    for (size_t i = 0; i < p->param_count; i++)
        if (p->params[i].trained && p->params[i].elements > most)
            most = p->params[i].elements;
    return most;
}

/* Where a parameter's update finds its gradient, divided by now; on the host, until the next. */
static const float *gckpti_gradient_of(const gckpt_exec *e, int param)
{
    gckpti_operands o;
    size_t x = 0;
    while (e->plan->list[x].kind != GCKPT_UPDATE || e->plan->list[x].id != param)
        x++;
    gckpti_operands_of(e->plan->operands, &e->plan->list[x], 0, &o);
    return gckpti_on_host(e, gckpti_at(e, o.gradient), (size_t)e->plan->params[param].elements);
}

/* FLAT: there is no slope to see, and the gradient is nothing but its own rounding. */
enum { GCKPTI_RIGHT, GCKPTI_WRONG, GCKPTI_COARSE, GCKPTI_FLAT };

/* One parameter along one direction, and what came of it. */
typedef struct {
    int param, random;
    float *g, *w;      /* the gradient and the values, copied */
    double loss;       /* there */
    double gap;        /* relative: between slope and gradient */
    double spread;     /* relative: what the losses themselves disagree by about the slope */
    double rounding;   /* relative: what rounding of the losses to f32 may make of it */
    double resolution; /* what of these two counts */
    double change;     /* of the loss, as the gradient has it, at width 1 */
    double noise;      /* of the loss: its rounding */
    int is;            /* GCKPTI_RIGHT, ... */
} gckpti_probe;

static double gckpti_abs(double x) { return x < 0 ? -x : x; }
static double gckpti_greater(double a, double b) { return a > b ? a : b; }

/* How large the sums are that the loss was made of. */
static double gckpti_loss_size(const gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    double size = 0;
    for (size_t i = 0; i < p->term_count; i++) {
        const gckpti_loss_total *seen = &e->terms[i].seen;
        double n = p->terms[i].regulariser || !seen->count ? 1 : (double)seen->count;
        size += gckpti_abs((double)gckpti_float(p->terms[i].weight) * seen->sum / n);
    }
    return size;
}

/* What was seen from both sides of the weights, h (0) and h/2 (1) away. */
typedef struct {
    double h, slope[2], even[2]; /* even: the losses of both sides less twice the middle's */
    double expected, scale;      /* the slope as the gradient has it; how steep it can be */
    int reproduced;              /* the gradient, but for rounding, in the mean of both sides */
} gckpti_sides;

/* Runs both sides of w, a distance of h or h/2 along the direction, and puts w back. */
static gckpt_result gckpti_check_sides(const gckpti_batch *b, const gckpti_probe *t, int half,
                                       double gg, gckpti_sides *v)
{
    const gckpti_param *q = &b->e->store->params[b->e->params[t->param].index];
    float *values = gckpti_array(q, -1);
    int64_t n = q->p.elements;
    double moved = 0, dot = 0, same = 0, loss[2] = { 0, 0 }, step = half ? v->h : 2 * v->h;
    double rms = gckpti_sqrt_double(gg / (double)n);
    gckpt_result result = GCKPT_OK;
    for (int side = 0; side < 2 && result == GCKPT_OK; side++) {
        double sign = side ? -1 : 1;
        for (int64_t i = 0; i < n; i++) {
            uint32_t word[4];
            gckpti_philox(0, (uint64_t)i, (uint32_t)t->param, 0, word);
            double d = t->random ? (word[0] & 1 ? 1 : -1) : rms > 0 ? (double)t->g[i] / rms : 0;
            values[i] = (float)((double)t->w[i] + sign * (half ? v->h / 2 : v->h) * d);
            dot += sign * (double)t->g[i] * (double)values[i];
            moved += d * d;
        }
        gckpti_changed(b->e->store, q, GCKPTI_HOST);
        result = gckpti_gradients(b, &loss[side]);
        const float *there = gckpti_gradient_of(b->e, t->param);
        for (int64_t i = 0; i < n && result == GCKPT_OK; i++)
            same += (double)t->g[i] * (double)there[i];
    }
    memcpy(values, t->w, (size_t)n * sizeof(float));
    gckpti_changed(b->e->store, q, GCKPTI_HOST);
    v->slope[half] = (loss[0] - loss[1]) / step;
    v->even[half] = loss[0] + loss[1] - 2 * t->loss;
    v->expected = dot / step;
    v->reproduced = v->reproduced && gckpti_abs(same / 2 - gg) < 0.25 * gg;
    v->scale = gckpti_sqrt_double(gg * moved / 2 / (double)n);
    return result;
}

/* The loss's difference between w + h d and w - h d is compared with the gradient times the
 * difference of the weights as they really were, at h and h/2, and extrapolated to h = 0
 * (Richardson). What they say about their own error: the two slopes, and the sums of both sides
 * less the middle, which must be as h^2. A gradient that is rounding is another one at each place;
 * one that is not is, in the mean of both sides, the same. */
static gckpt_result gckpti_check_direction(const gckpti_batch *b, double width, gckpti_probe *t)
{
    int64_t n = b->e->plan->params[t->param].elements;
    double gg = 0, ww = 0;
    for (int64_t i = 0; i < n; i++) {
        gg += (double)t->g[i] * (double)t->g[i];
        ww += (double)t->w[i] * (double)t->w[i];
    }
    double h = width * 0.02 * (gckpti_sqrt_double(ww / (double)n) + 0.05);
    gckpti_sides v = { h, { 0, 0 }, { 0, 0 }, 0, 0, gg > 0 };
    gckpt_result result = gckpti_check_sides(b, t, 0, gg, &v);
    if (result == GCKPT_OK)
        result = gckpti_check_sides(b, t, 1, gg, &v);
    double found = (4 * v.slope[1] - v.slope[0]) / 3;
    t->noise = 4e-7 * gckpti_loss_size(b->e);
    t->change = gckpti_abs(v.expected) * h / width;
    t->gap = gckpti_abs(found - v.expected);
    int flat = !v.reproduced && t->gap * h <= t->noise && t->change * width <= t->noise;
    t->spread = gckpti_greater(gckpti_abs(v.slope[1] - v.slope[0]),
                               gckpti_abs(v.even[0] - 4 * v.even[1]) / (4 * h));
    double scale = gckpti_greater(gckpti_abs(found), gckpti_abs(v.expected));
    scale = gckpti_greater(gckpti_greater(v.scale, scale), 1e-12);
    t->gap /= scale;
    t->spread /= scale;
    t->rounding = t->noise / h / scale;
    double doubt = gckpti_greater(t->spread, t->rounding);
    t->is = flat                                                            ? GCKPTI_FLAT
            : t->gap <= 0.01 && (t->rounding <= 0.005 || t->spread <= 0.01) ? GCKPTI_RIGHT
            : t->gap <= (width > 1 ? 4 : 2) * doubt                         ? GCKPTI_COARSE
                                                                            : GCKPTI_WRONG;
    t->resolution = t->is != GCKPTI_RIGHT ? doubt : t->rounding <= 0.005 ? t->rounding : t->spread;
    return result;
}

/* Looks from several distances, nearer where the loss bends, farther where it is coarse, until one
 * shows that the gradient is right; else *t is the clearest view. */
static gckpt_result gckpti_check_widths(const gckpti_batch *b, gckpti_probe *t)
{
    static const double widths[] = { 1, 4, 1.0 / 8, 16, 1.0 / 64 };
    gckpt_result result = GCKPT_OK;
    gckpti_probe at = *t;
    for (int i = 0; i < 5 && result == GCKPT_OK; i++) {
        result = gckpti_check_direction(b, widths[i], &at);
        int found = at.is == GCKPTI_RIGHT || at.is == GCKPTI_FLAT;
        if (i == 0 || found || at.gap + at.resolution < t->gap + t->resolution)
            *t = at;
        if (found)
            break;
    }
    return result;
}

/* What came of all directions so far. */
typedef struct {
    gckpt_check c;
    const char *coarse, *flat; /* names: of the coarsest gradient, of the last flat one */
    double change, noise, coarsest;
    int wrong, flats;
} gckpti_tally;

/* One more direction: only those that could be resolved count for the worst. */
static void gckpti_tally_add(gckpti_tally *a, const gckpti_probe *t, const char *name)
{
    gckpt_check *c = &a->c;
    c->directions++;
    a->change = gckpti_greater(a->change, t->change);
    a->noise = gckpti_greater(a->noise, t->noise);
    a->wrong += t->is == GCKPTI_WRONG;
    c->unresolved += t->is == GCKPTI_COARSE;
    if (t->is == GCKPTI_FLAT) {
        a->flats++;
        a->flat = name;
        return;
    }
    c->resolution = gckpti_greater(c->resolution, t->resolution);
    if (t->is == GCKPTI_COARSE) {
        a->coarse = t->resolution > a->coarsest ? name : a->coarse;
        a->coarsest = gckpti_greater(a->coarsest, t->resolution);
    } else if (t->gap > c->worst || t->gap != t->gap || !c->name) {
        c->worst = t->gap;
        c->name = name;
    }
}

/* The end of a check: were the flat ones seen as closely as all others? */
static gckpt_result gckpti_tally_end(gckpti_tally *a, gckpt_exec *e)
{
    gckpt_check *c = &a->c;
    gckpt_result result = GCKPT_OK;
    if (a->flats) {
        double seen = a->noise > 0 && a->change > 0 ? a->noise / a->change
                                                    : (double)(a->noise > 0 ? GCKPTI_INFINITY : 0);
        c->resolution = gckpti_greater(c->resolution, seen);
        c->unresolved += seen > 0.01 ? a->flats : 0;
        a->coarse = seen > 0.01 && seen > a->coarsest ? a->flat : a->coarse;
    }
    if (a->wrong)
        result = gckpti_error(e, GCKPT_E_DATA,
                              "check_gradients: the gradient of \"%s\" differs from finite "
                              "differences by %g (relative)",
                              c->name, c->worst);
    else if (c->unresolved)
        result = gckpti_error(
            e, GCKPT_UNRESOLVED,
            "check_gradients: %i of %i directions are too coarse to tell, \"%s\" to %g of its "
            "gradient: the loss is large beside its changes. Bring targets and outputs near each "
            "other, or check fewer rows",
            c->unresolved, c->directions, a->coarse, c->resolution);
    c->name = result == GCKPT_UNRESOLVED ? a->coarse : c->name;
    return result;
}

/* Checks parameter i along its gradient and along a random direction. copy: room for it twice. */
static gckpt_result gckpti_check_param(const gckpti_batch *b, int i, float *copy, gckpti_tally *a)
{
    const gckpt_plan *p = b->e->plan;
    size_t n = (size_t)p->params[i].elements;
    gckpti_probe start;
    memset(&start, 0, sizeof start);
    start.param = i;
    start.g = copy;
    start.w = copy + n;
    gckpt_result result = gckpti_gradients(b, &start.loss);
    if (result != GCKPT_OK)
        return result;
    memcpy(start.g, gckpti_gradient_of(b->e, i), n * sizeof(float));
    const gckpti_param *q = &b->e->store->params[b->e->params[i].index];
    gckpti_pull(b->e->store, q);
    memcpy(start.w, gckpti_array(q, -1), n * sizeof(float));
    for (int random = 0; random < 2 && result == GCKPT_OK; random++) {
        gckpti_probe t = start;
        t.random = random;
        result = gckpti_check_widths(b, &t);
        gckpti_tally_add(a, &t, p->names + p->params[i].name);
    }
    return result;
}

GCKPT_API gckpt_result gckpt_check_gradients(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                             int64_t rows, gckpt_check *check)
{
    gckpti_tally a;
    memset(&a, 0, sizeof a);
    if (check)
        *check = a.c;
    if (!exec)
        return GCKPT_E_ARG;
    const gckpt_plan *p = exec->plan;
    const gckpti_batch b = { exec, feeds, count, rows };
    if (p->update_in_backward || p->mode == GCKPT_INFERENCE)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "check_gradients: needs a training plan without update_in_backward");
    if (p->precision != GCKPT_FP32)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "check_gradients: rounding to bf16 is coarser than the differences; "
                            "check a plan of GCKPT_FP32");
    int64_t most = gckpti_most_elements(p);
    gckpt_result result = GCKPT_OK;
    float *copy = (float *)gckpti_new(&exec->memory, (size_t)most, 2 * sizeof(float));
    if (!copy)
        return gckpti_error(exec, GCKPT_E_MEMORY, "check_gradients: no memory for %I floats",
                            2 * most);
    unsigned debug = exec->desc.debug;
    exec->desc.debug &= ~GCKPT_DEBUG_MEASURE;
    for (size_t i = 0; i < p->param_count && result == GCKPT_OK; i++)
        if (p->params[i].trained)
            result = gckpti_check_param(&b, (int)i, copy, &a);
    exec->desc.debug = debug;
    gckpti_delete(&exec->memory, copy, (size_t)most, 2 * sizeof(float));
    if (result != GCKPT_OK)
        return result;
    result = gckpti_tally_end(&a, exec);
    if (check)
        *check = a.c;
    return result;
}

/* ---- what ops cost on this machine ---- */
enum { GCKPTI_RUNS_LEAST = 6, GCKPTI_RUNS_MOST = 32 };

/* One step, timed. */
typedef struct {
    gckpti_batch batch;
    double (*seconds)(void *user);
    void *user;
    double last;   /* when it was looked at the clock last */
    float *copy;   /* room for a parameter and its state */
    double *spent; /* seconds by instruction, a micro-batch; last: those of all else */
    gckpt_result result;
} gckpti_timing;

static double gckpti_lap(gckpti_timing *t)
{
    double now = t->seconds(t->user), lap = now - t->last;
    t->last = now;
    return lap > 0 && lap < 1e9 ? lap : 0;
}

/* Saves what an update changes of a parameter, or puts it back. */
static void gckpti_update_undo(gckpt_store *s, gckpti_param *q, float *copy, int slots, int back)
{
    size_t n = (size_t)q->p.elements;
    gckpti_pull(s, q);
    for (int i = -1; i < slots; i++, copy += n) {
        float *mine = gckpti_array(q, i);
        memcpy(back ? mine : copy, back ? copy : mine, n * sizeof *copy);
    }
    if (back)
        gckpti_changed(s, q, GCKPTI_HOST);
}

/* Takes a step and puts back what it changed (on the step's team). */
static void gckpti_time_step(void *context)
{
    gckpti_timing *t = (gckpti_timing *)context;
    gckpt_exec *e = t->batch.e;
    const gckpt_plan *p = e->plan;
    double *rest = &t->spent[p->length], micro = (double)(t->batch.rows / p->rows);
    memset(t->spent, 0, (p->length + 1) * sizeof *t->spent);
    gckpti_lap(t);
    gckpt_result result = gckpti_batch_begin(&t->batch);
    for (*rest = gckpti_lap(t); result == GCKPT_OK || result == GCKPT_MORE;) {
        result = gckpti_advance(e, GCKPTI_GRADIENTS);
        e->backend.finish(e->backend.context);
        double lap = gckpti_lap(t);
        if (result != GCKPT_MORE)
            break;
        t->spent[e->pc - 1] += e->pc > p->body && e->pc <= p->epilogue ? lap / micro : lap;
    }
    t->result = gckpti_batch_end(&t->batch, result, "calibrate", NULL);
    if (t->result != GCKPT_OK)
        return;
    *rest += gckpti_lap(t);
    for (size_t x = 0; x < p->length && p->optimiser != GCKPT_OWN_OPTIMISER; x++) {
        if (p->list[x].kind != GCKPT_UPDATE)
            continue;
        gckpti_param *q = &e->store->params[e->params[p->list[x].id].index];
        unsigned char optimiser = q->optimiser;
        uint64_t updates = q->updates;
        gckpti_update_undo(e->store, q, t->copy, p->state_slots, 0);
        gckpti_lap(t);
        gckpti_run_update(e, &p->list[x], GCKPTI_DIVIDED);
        e->backend.finish(e->backend.context);
        *rest += gckpti_lap(t);
        gckpti_update_undo(e->store, q, t->copy, p->state_slots, 1);
        q->optimiser = optimiser;
        q->updates = updates;
    }
}

/* The median of samples[0], samples[stride], ..., n of them, which end up sorted. */
static double gckpti_median(double *samples, size_t stride, int n)
{
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0; k--) {
            double *a = &samples[(size_t)(k - 1) * stride], *b = a + stride, swap = *a;
            if (*a <= *b)
                break;
            *a = *b;
            *b = swap;
        }
    return samples[(size_t)(n / 2) * stride];
}

static uint64_t gckpti_nanoseconds(double seconds)
{
    double ns = seconds * 1e9 + 0.5;
    return ns < 1 ? 1 : ns < 1e18 ? (uint64_t)ns : (uint64_t)1e18;
}

/* From the medians of all instructions to costs. */
static void gckpti_fill_costs(const gckpt_plan *p, const double *median, gckpt_cost *costs)
{
    double measured = 0, planned = 0, unit;
    for (size_t x = 0; x < p->length; x++)
        if (p->list[x].kind < GCKPT_UPDATE) {
            const gckpt_cost *c = &p->nodes[p->list[x].id].cost;
            measured += median[x];
            planned += (double)(p->list[x].kind == GCKPT_FORWARD ? c->forward : c->backward);
        }
    unit = planned > 0 ? measured / planned : 0;
    for (size_t i = 0; i < p->node_count; i++) {
        costs[i].forward = gckpti_nanoseconds((double)p->nodes[i].cost.forward * unit);
        costs[i].backward = gckpti_nanoseconds((double)p->nodes[i].cost.backward * unit);
    }
    for (size_t x = 0; x < p->length; x++) {
        const gckpti_ins *ins = &p->list[x];
        if (ins->kind == GCKPT_FORWARD && ins->first)
            costs[ins->id].forward = gckpti_nanoseconds(median[x]);
        else if (ins->kind == GCKPT_BACKWARD)
            costs[ins->id].backward = gckpti_nanoseconds(median[x]);
    }
    for (size_t i = 0; i < p->term_count && p->variant.form; i++) { /* a form's, as built */
        const gckpt_cost *built = &p->terms[i].built, *ran = &p->nodes[p->terms[i].id].cost;
        gckpt_cost *c = &costs[p->terms[i].id];
        if (built->forward == ran->forward && built->backward == ran->backward)
            continue;
        unit = 1e-9 * (double)(c->forward + c->backward) / (double)(ran->forward + ran->backward);
        c->forward = gckpti_nanoseconds((double)built->forward * unit);
        c->backward = gckpti_nanoseconds((double)built->backward * unit);
    }
}

GCKPT_API gckpt_result gckpt_calibrate(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                       int64_t rows, double (*seconds)(void *user), void *user,
                                       gckpt_cost *costs, int cost_count, uint64_t *update)
{
    if (!exec)
        return GCKPT_E_ARG;
    const gckpt_plan *p = exec->plan;
    if (!seconds || !costs || cost_count < 0 || (size_t)cost_count != p->node_count)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "calibrate: needs a clock and costs for the %z tensors of the plan",
                            p->node_count);
    if (p->update_in_backward || p->mode == GCKPT_INFERENCE || rows < 1 || rows % p->rows)
        return gckpti_error(exec, GCKPT_E_ARG,
                            "calibrate: needs a training plan without update_in_backward, and a "
                            "multiple of its %I rows",
                            p->rows);
    size_t room = (size_t)gckpti_most_elements(p) * (size_t)(1 + p->state_slots);
    size_t stride = p->length + 1;
    gckpti_timing t = { { exec, feeds, count, rows }, seconds, user, 0, NULL, NULL, GCKPT_OK };
    t.copy = (float *)gckpti_new(&exec->memory, room, sizeof(float));
    double *samples =
        (double *)gckpti_new(&exec->memory, GCKPTI_RUNS_MOST, stride * sizeof *samples);
    gckpt_result result = GCKPT_OK;
    if (!t.copy || !samples)
        result = gckpti_error(exec, GCKPT_E_MEMORY, "calibrate: no memory for %z floats", room);
    unsigned debug = exec->desc.debug;
    exec->desc.debug &= ~GCKPT_DEBUG_MEASURE;
    int runs = 0;
    double start = seconds(user);
    while (result == GCKPT_OK &&
           (runs < GCKPTI_RUNS_LEAST || (runs < GCKPTI_RUNS_MOST && t.last - start < 0.25))) {
        t.spent = samples + (size_t)runs++ * stride;
        gckpti_with_team(&exec->runner, exec->team, gckpti_time_step, &t);
        result = t.result;
    }
    exec->desc.debug = debug;
    if (result == GCKPT_OK && !(t.last > start))
        result = gckpti_error(exec, GCKPT_E_DATA, "calibrate: the clock stands still");
    for (size_t x = 0; x < stride && result == GCKPT_OK; x++)
        samples[x] = gckpti_median(samples + stride + x, stride, runs - 1);
    if (result == GCKPT_OK) {
        gckpti_fill_costs(p, samples, costs);
        if (update)
            *update = gckpti_nanoseconds(samples[p->length]);
        gckpti_ok(exec);
    }
    gckpti_delete(&exec->memory, samples, GCKPTI_RUNS_MOST, stride * sizeof *samples);
    gckpti_delete(&exec->memory, t.copy, room, sizeof(float));
    return result;
}

/* ---- the fastest plan here: those predicted best take turns on the clock ---- */
enum { GCKPTI_ROUNDS = 32 };

typedef struct {
    gckpt_store *store;
    gckpt_timed *timed;
    gckpt_plan *plan[GCKPT_MAX_TRIALS];
    gckpt_exec *exec[GCKPT_MAX_TRIALS];
    int count;
} gckpti_trials;

static double gckpti_clock(const gckpti_trials *r) { return r->timed->seconds(r->timed->user); }

/* Keeps a plan for trial; 0: there is none, or it has a quarter more work than the first. */
static int gckpti_enter(gckpti_trials *r, gckpt_plan *plan)
{
    uint64_t least = gckpt_plan_step_work(r->plan[0]), work = gckpt_plan_step_work(plan);
    if (!plan || (r->count > 0 && work > least + least / 4)) {
        gckpt_plan_free(plan);
        return 0;
    }
    gckpt_trial *t = &r->timed->trials[r->count];
    memset(t, 0, sizeof *t);
    t->rows = plan->rows;
    t->bytes = gckpt_plan_bytes(plan);
    t->work = work;
    t->overhead = gckpt_plan_overhead(plan);
    r->plan[r->count++] = plan;
    return 1;
}

/* Executors in one arena, that of `most`, the plan with the largest, which is made first. */
static gckpt_result gckpti_bind_trials(gckpti_trials *r, int most)
{
    gckpt_exec_desc d;
    memset(&d, 0, sizeof d);
    if (r->timed->exec)
        d = *r->timed->exec;
    d.debug &= GCKPT_DEBUG_PLAIN;
    d.progress = NULL;
    d.copy_feeds = 0;
    for (int n = -1; n < r->count; n++) {
        int i = n < 0 ? most : n;
        if (!r->exec[i])
            r->exec[i] = gckpt_exec_new(r->plan[i], r->store, &d);
        if (!r->exec[i])
            return gckpt_error(r->store);
        d.arena = r->exec[most]->arena;
        d.arena_size = r->plan[most]->arena;
    }
    return GCKPT_OK;
}

/* Seconds of a step without its updates. */
static gckpt_result gckpti_time_trial(const gckpti_trials *r, gckpt_exec *e, double *seconds)
{
    const gckpti_batch b = { e, r->timed->feeds, r->timed->feed_count, e->plan->batch };
    double start = gckpti_clock(r);
    gckpt_result result = gckpti_batch_begin(&b);
    if (result == GCKPT_OK)
        result = gckpti_run(e, INT64_MAX, GCKPTI_NO_UPDATES);
    if (result == GCKPT_OK)
        result = gckpti_wait(e);
    e->state = GCKPTI_IDLE;
    double end = gckpti_clock(r);
    *seconds = end > start ? end - start : 0;
    if (result != GCKPT_OK)
        gckpti_error(r->store, result, "fit_timed: %s", gckpt_error_text(e));
    return result;
}

/* In rounds; after two, who is slower than the fastest by a half, then a quarter, then an eighth
 * drops out. */
static gckpt_result gckpti_race(gckpti_trials *r, double until)
{
    gckpt_trial *t = r->timed->trials;
    int *fastest = &r->timed->fastest;
    for (int round = 0, turns = 2; round < GCKPTI_ROUNDS && turns > (round > 3); round++) {
        double seconds, slack = 1 + 2.0 / (1 << (round < 4 ? round : 4));
        turns = 0;
        for (int i = 0; i < r->count; i++) {
            if (t[*fastest].runs && gckpti_clock(r) + t[*fastest].seconds > until)
                return GCKPT_OK;
            if (t[i].runs < round || (round > 1 && t[i].seconds > slack * t[*fastest].seconds))
                continue;
            gckpt_result result = gckpti_time_trial(r, r->exec[i], &seconds);
            if (result != GCKPT_OK)
                return result;
            t[i].seconds = t[i].runs && t[i].seconds < seconds ? t[i].seconds : seconds;
            *fastest = t[i].seconds < t[*fastest].seconds ? i : *fastest;
            t[i].runs++;
            turns++;
        }
    }
    return GCKPT_OK;
}

/* Times what was entered, and leaves the store as it was. Of those that are as fast as the fastest
 * but for 1/64 the first one is taken: that is likely chance. */
static gckpt_result gckpti_time_trials(gckpti_trials *r, double until)
{
    double seconds;
    int most = 0;
    for (int i = 1; i < r->count; i++)
        most = r->plan[i]->arena > r->plan[most]->arena ? i : most;
    gckpt_result result = gckpti_bind_trials(r, most);
    const gckpt_exec *e = r->exec[most];
    if (result == GCKPT_OK) /* the first use of an arena takes longer than all others */
        result = gckpti_time_trial(r, r->exec[most], &seconds);
    if (result == GCKPT_OK)
        result = gckpti_race(r, until);
    const gckpt_trial *t = r->timed->trials, least = t[r->timed->fastest];
    for (r->timed->fastest = 0; t[r->timed->fastest].seconds > least.seconds * 65 / 64;)
        r->timed->fastest++;
    for (size_t i = e ? e->plan->param_count : 0; i-- > 0;) /* state that was made for them */
        gckpti_state_shrink(r->store, &r->store->params[e->params[i].index], e->params[i].had);
    for (int i = 0; i < r->count; i++)
        gckpt_exec_free(r->exec[i]);
    return result;
}

GCKPT_API gckpt_plan *gckpt_fit_timed(gckpt_store *store, gckpt_build build, void *user,
                                      int64_t batch, const gckpt_plan_desc *desc,
                                      gckpt_measure measure, gckpt_timed *timed)
{
    gckpti_trials r;
    gckpt_plan_desc d;
    memset(&r, 0, sizeof r);
    memset(&d, 0, sizeof d);
    r.store = store;
    r.timed = timed;
    if (!store || !timed || !timed->seconds || (timed->exec && timed->exec->memory.memory)) {
        gckpti_error(store, GCKPT_E_ARG,
                     "fit_timed: needs a clock; executors share no block of memory");
        return NULL;
    }
    if (desc)
        d = *desc;
    const size_t before = store->count;
    timed->count = timed->fastest = 0;
    if (!gckpti_enter(&r, gckpt_fit(store, build, user, batch, &d, measure)) || !(timed->limit > 0))
        return r.plan[0];
    const double start = gckpti_clock(&r), late = start + timed->limit / 2;
    const gckpt_plan *p = r.plan[0];
    int64_t rows = p->rows + 1; /* first larger micro-batches; then, with 1, fewer bytes */
    while (r.count < GCKPT_MAX_TRIALS && gckpti_clock(&r) < late) {
        if (rows == 1)
            d.budget = gckpt_plan_bytes(p) - p->arena / 8 - 1;
        int more = rows <= batch &&
                   gckpti_enter(&r, gckpti_fit(store, build, user, batch, &d, measure, rows));
        if (!more && rows == 1)
            break;
        p = r.plan[more ? r.count - 1 : 0];
        rows = more && rows > 1 ? p->rows + 1 : 1;
    }
    gckpt_result result = gckpt_error(store) == GCKPT_E_MEMORY ? GCKPT_E_MEMORY : GCKPT_OK;
    if (result == GCKPT_OK)
        result = gckpti_time_trials(&r, start + timed->limit);
    timed->count = r.count;
    for (int i = 0; i < r.count; i++)
        if (i != timed->fastest || result != GCKPT_OK)
            gckpt_plan_free(r.plan[i]);
    if (result != GCKPT_OK)
        gckpti_store_shrink(store, before);
    return result == GCKPT_OK && gckpti_ok(store) == GCKPT_OK ? r.plan[timed->fastest] : NULL;
}

/* =================================================================================================
 * >>files: save and load, as safetensors
 *
 * A file is 8 bytes: the header's length, little-endian; the header: JSON, padded with spaces to 8
 * bytes; the values: little-endian f32, one tensor after the other (the format is described at
 * https://huggingface.co/docs/safetensors):
 *
 *     {"__metadata__":{"format":"gradckpt","contract":"2","step":"20","seed":"0",
 *       "optimiser":"1","b#updates":"3:15"},
 *      "w":{"dtype":"F32","shape":[8,16],"data_offsets":[0,512]},"w#state0":{...},"w#state1":{...}}
 *
 * Parameters stand in creation order, each followed by its optimiser state; so the name of a
 * parameter must not end in #state and a digit. Loading reads and checks everything before it
 * changes anything; pointers to values and state stay valid. The optimiser is gckpt_optimiser + 1
 * (0: none yet). State is that of `optimiser` and has seen `step` updates; where it is not,
 * "NAME#updates" says whose it is and how many it has seen, b's above of MOMENTUM, 15. (By name,
 * since programs that write the file anew may order it anew; version 0.1 had no such keys.) State
 * becomes the file's: what the file does not have becomes zero, as before a first step. An external
 * parameter that is not writable must hold the file's bits already. Files of other programs (any
 * other format) leave step and seed alone. Loading needs the data's bytes a second time for a
 * moment. From a caller's block (gckpt_memory.memory) they are taken and given back; the header's
 * bytes stay taken when parameters or state had to be created.
 * ============================================================================================== */
#define GCKPTI_HEADER_MAX 100000000u /* bytes; the format's limit */

/* ---- write ---- */
/* ,"NAME with what JSON wants escaped */
static void gckpti_sink_name(gckpti_sink *k, const char *name)
{
    gckpti_sink_put(k, ",\"", 2);
    for (const char *c = name; *c; c++) {
        unsigned u = (unsigned char)*c;
        char code[] = "\\u00??";
        code[4] = (char)('0' + (u >> 4));
        code[5] = "0123456789abcdef"[u & 15];
        int plain = u >= 0x20 && u != '"' && u != '\\';
        gckpti_sink_put(k, plain ? c : code, plain ? 1 : 6);
    }
}

/* The JSON of all parameters and states, in the order of their data. */
static void gckpti_sink_header(gckpti_sink *k, const gckpt_store *s)
{
    int64_t begin = 0, end;
    int optimiser = 0;
    for (size_t i = 0; i < s->count && !optimiser; i++)
        optimiser = s->params[i].optimiser;
    gckpti_print(k,
                 "{\"__metadata__\":{\"format\":\"gradckpt\",\"contract\":\"%i\",\"step\":\"%u\",",
                 GCKPT_CONTRACT, s->step);
    gckpti_print(k, "\"seed\":\"%u\",\"optimiser\":\"%i\"", s->seed, optimiser);
    for (size_t i = 0; i < s->count; i++) {
        const gckpti_param *q = &s->params[i];
        int same = q->optimiser == optimiser && (q->updates == s->step || !optimiser);
        if (!q->p.state[0] || same)
            continue;
        gckpti_sink_name(k, q->p.name);
        gckpti_print(k, "#updates\":\"%i:%u\"", q->optimiser, q->updates);
    }
    gckpti_print(k, "}");
    for (size_t i = 0; i < s->count; i++) {
        const gckpt_parameter *p = &s->params[i].p;
        for (int slot = -1; slot < 4 && (slot < 0 || p->state[slot]); slot++, begin = end) {
            gckpti_sink_name(k, p->name);
            end = begin + p->elements * 4;
            if (slot >= 0)
                gckpti_print(k, "#state%i", slot);
            gckpti_print(k, "\":{\"dtype\":\"F32\",\"shape\":%S,\"data_offsets\":[%I,%I]}",
                         &p->shape, begin, end);
        }
    }
    gckpti_print(k, "}");
}

static void gckpti_sink_floats(gckpti_sink *k, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n && !k->failed; i++) {
        uint32_t word;
        memcpy(&word, x + i, 4);
        gckpti_sink_number(k, word, 4);
    }
}

GCKPT_API gckpt_result gckpt_store_write(gckpt_store *store, gckpt_write_fn write, void *user)
{
    gckpti_sink k;
    if (!store || !write)
        return gckpti_error(store, GCKPT_E_ARG, "save: a store and a callback are needed");
    for (size_t i = 0; i < store->count; i++)
        gckpti_pull(store, &store->params[i]);
    memset(&k, 0, sizeof k);
    gckpti_sink_header(&k, store);
    size_t padding = (8 - k.total % 8) % 8, length = k.total + padding;
    if (length > GCKPTI_HEADER_MAX)
        return gckpti_error(store, GCKPT_E_DATA,
                            "save: the header takes %z bytes, %z are allowed; use shorter names",
                            length, (size_t)GCKPTI_HEADER_MAX);
    memset(&k, 0, sizeof k);
    k.write = write;
    k.user = user;
    gckpti_sink_number(&k, length, 8);
    gckpti_sink_header(&k, store);
    gckpti_sink_put(&k, "       ", padding);
    for (size_t i = 0; i < store->count; i++) {
        const gckpt_parameter *p = &store->params[i].p;
        float room[GCKPTI_DRAWN];
        for (int64_t at = 0, n; at < p->elements && !k.failed; at += n) {
            const float *x = gckpti_values_at(store, &store->params[i], at, room, &n);
            gckpti_sink_floats(&k, x, n);
        }
        for (int slot = 0; slot < gckpti_state_slots(&store->params[i]); slot++)
            gckpti_sink_floats(&k, gckpti_array(&store->params[i], slot), p->elements);
    }
    if (gckpti_sink_flush(&k) != GCKPT_OK)
        return gckpti_error(
            store, GCKPT_E_FILE,
            "save: the write callback failed before byte %z; what it wrote is no complete file",
            k.total);
    return gckpti_ok(store);
}

/* ---- read: the header's JSON, decoded where it stands ---- */
enum { GCKPTI_UPDATES = 10 }; /* sorts behind all states */
typedef struct {
    const char *name; /* of the parameter */
    int slot;         /* -1: its values; 0..3: that state; GCKPTI_UPDATES: no data, whose state */
    int states;       /* of values: how many states they have in the file */
    int had;          /* of values: how many the store had */
    int optimiser;    /* as in gckpti_param; -1: wrong */
    uint64_t updates; /* the same */
    size_t param;     /* index in the store */
    gckpt_shape shape;
    int64_t offsets[2];
} gckpti_saved;

typedef struct {
    gckpt_store *store;
    gckpt_result result;
    char *header, *at, *end; /* end: of the header */
    int64_t data_bytes;
    gckpti_saved *entries;
    size_t count, capacity, values; /* values: how many entries are that */
    int ours, empty;                /* written by this library; the store had no parameters */
    uint64_t contract, step, seed, optimiser;
} gckpti_loader;

/* Records `load: tensor "name": ...`, long names cut, control characters replaced. Returns 0. */
static int gckpti_refuse(gckpti_loader *l, gckpt_result result, const gckpti_saved *e,
                         const char *format, ...)
{
    va_list args;
    l->result = gckpti_error(l->store, result, "load: ");
    gckpti_text t = { l->store->object.text + 6, GCKPTI_TEXT - 7 };
    if (e) {
        const char *c = e->name;
        gckpti_text_add(&t, "tensor \"");
        for (; *c && (c < e->name + 60 || ((unsigned char)*c & 0xc0) == 0x80); c++)
            gckpti_text_put(&t, (unsigned char)*c < 0x20 || *c == 0x7f ? "?" : c, 1);
        gckpti_text_add(&t,
                        e->slot < 0                 ? "%s\": "
                        : e->slot == GCKPTI_UPDATES ? "%s#updates\": "
                                                    : "%s#state%i\": ",
                        *c ? "..." : "", e->slot);
    }
    va_start(args, format);
    gckpti_text_format(&t, format, args);
    va_end(args);
    return 0;
}

static int gckpti_json_fail(gckpti_loader *l, const char *what)
{
    return gckpti_refuse(l, GCKPT_E_DATA, NULL,
                         "header, byte %z: %s; the file is damaged or not safetensors",
                         (size_t)(l->at - l->header), what);
}

static void gckpti_json_space(gckpti_loader *l)
{
    while (l->at < l->end && (*l->at == ' ' || *l->at == '\n' || *l->at == '\r' || *l->at == '\t'))
        l->at++;
}

static int gckpti_json_take(gckpti_loader *l, char c)
{
    gckpti_json_space(l);
    return l->at < l->end && *l->at == c && ++l->at;
}

static int gckpti_json_need(gckpti_loader *l, char c)
{
    char what[] = "'?' expected";
    what[1] = c;
    return gckpti_json_take(l, c) || gckpti_json_fail(l, what);
}

/* Four digits; 0, which is refused, when wrong. */
static uint32_t gckpti_json_hex(gckpti_loader *l)
{
    uint32_t u = 0;
    for (int i = 0; i < 4; i++, l->at++) {
        uint32_t c = l->at < l->end ? (unsigned char)*l->at : 0, letter = c | 32;
        if (!(c >= '0' && c <= '9') && !(letter >= 'a' && letter <= 'f'))
            return 0;
        u = u << 4 | (c <= '9' ? c - '0' : letter - 'a' + 10);
    }
    return u;
}

/* The character written as \n, \u00e9, \ud83d\ude00 (surrogates); 0: none a string can hold. */
static uint32_t gckpti_json_escape(gckpti_loader *l)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (l->end - l->at < 2)
        return 0;
    char c = l->at[1];
    const char *found = c ? strchr(from, c) : NULL;
    l->at += 2;
    if (c != 'u')
        return found ? (unsigned char)to[found - from] : 0;
    uint32_t u = gckpti_json_hex(l);
    if (u >> 10 != 0x36)
        return u >> 10 == 0x37 ? 0 : u;
    if (l->end - l->at < 2 || l->at[0] != '\\' || l->at[1] != 'u')
        return 0;
    l->at += 2;
    uint32_t low = gckpti_json_hex(l);
    return low >> 10 == 0x37 ? 0x10000 + ((u & 0x3ff) << 10 | (low & 0x3ff)) : 0;
}

/* A string, decoded in place (it never grows) and ended by 0; NULL when wrong. */
static char *gckpti_json_string(gckpti_loader *l)
{
    const char *wrong = NULL;
    if (!gckpti_json_need(l, '"'))
        return NULL;
    char *s = l->at, *out = s;
    while (!wrong && l->at < l->end && *l->at != '"') {
        if (*l->at == '\\') {
            uint32_t c = gckpti_json_escape(l);
            int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
            wrong = c ? NULL : "a wrong escape in a string";
            *out++ = (char)(unsigned char)(more ? (0xf80u >> more & 0xff) | c >> (6 * more) : c);
            while (more-- > 0)
                *out++ = (char)(unsigned char)(0x80 | (c >> (6 * more) & 0x3f));
        } else {
            int n = gckpti_utf8_length(l->at, (size_t)(l->end - l->at));
            wrong = !n                             ? "a string is not UTF-8"
                    : (unsigned char)*l->at < 0x20 ? "a bare control character"
                                                   : NULL;
            while (n-- > 0)
                *out++ = *l->at++;
        }
    }
    if (wrong || l->at == l->end) {
        gckpti_json_fail(l, wrong ? wrong : "a string does not end");
        return NULL;
    }
    l->at++;
    *out = 0;
    return s;
}

/* The next key of an object and its ':' (*count: 0 before the first); NULL: it ends or is wrong. */
static char *gckpti_json_key(gckpti_loader *l, int *count)
{
    if (*count == 0 && !gckpti_json_need(l, '{'))
        return NULL;
    if (gckpti_json_take(l, '}') || (*count > 0 && !gckpti_json_need(l, ',')))
        return NULL;
    *count = 1;
    char *key = gckpti_json_string(l);
    return key && gckpti_json_need(l, ':') ? key : NULL;
}

/* A whole number < 2^64 without sign or leading zeros: returns where it ends, NULL when wrong. */
static char *gckpti_digits(char *s, const char *end, uint64_t *value)
{
    const char *start = s;
    for (*value = 0; s < end && *s >= '0' && *s <= '9'; s++) {
        uint64_t digit = (uint64_t)(*s - '0');
        if (*value > (UINT64_MAX - digit) / 10 || (s > start && *start == '0'))
            return NULL;
        *value = *value * 10 + digit;
    }
    return s > start ? s : NULL;
}

/* [a,b,...] of at most `limit` numbers: how many; -1 when wrong. */
static int gckpti_json_numbers(gckpti_loader *l, int64_t *v, int limit)
{
    int n = 0;
    if (!gckpti_json_need(l, '['))
        return -1;
    if (gckpti_json_take(l, ']'))
        return 0;
    do {
        uint64_t value = 0;
        gckpti_json_space(l);
        char *end = gckpti_digits(l->at, l->end, &value);
        if (n == limit || !end || value > INT64_MAX) {
            gckpti_json_fail(l, n == limit ? "too many numbers" : "a whole number < 2^63 expected");
            return -1;
        }
        l->at = end;
        v[n++] = (int64_t)value;
    } while (gckpti_json_take(l, ','));
    return gckpti_json_need(l, ']') ? n : -1;
}

static int gckpti_load_add(gckpti_loader *l, const gckpti_saved *e)
{
    if (!gckpti_grow(&l->store->memory, &l->entries, &l->capacity, l->count, sizeof *e))
        return gckpti_refuse(l, GCKPT_E_MEMORY, NULL, "no memory for over %z tensors", l->count);
    l->entries[l->count++] = *e;
    return 1;
}

/* "NAME#updates":"OPTIMISER:COUNT" becomes an entry, to be checked when all parameters are known */
static int gckpti_load_updates(gckpti_loader *l, char *key, char *value)
{
    gckpti_saved e;
    size_t n = strlen(key);
    uint64_t optimiser = 0;
    if (n < 8 || memcmp(key + n - 8, "#updates", 8))
        return 1;
    key[n - 8] = 0;
    memset(&e, 0, sizeof e);
    e.name = key;
    e.slot = GCKPTI_UPDATES;
    const char *end = value + strlen(value);
    char *colon = gckpti_digits(value, end, &optimiser);
    int good = colon && *colon == ':' && gckpti_digits(colon + 1, end, &e.updates) == end &&
               optimiser <= GCKPT_OWN_OPTIMISER + 1 && (optimiser || !e.updates);
    e.optimiser = good ? (int)optimiser : -1;
    e.offsets[0] = e.offsets[1] = l->data_bytes;
    return gckpti_load_add(l, &e);
}

/* What the file says of itself; keys of other programs mean nothing. */
static int gckpti_load_metadata(gckpti_loader *l)
{
    static const char *const keys[] = { "format", "contract", "step", "seed", "optimiser" };
    size_t tensors = l->count;
    uint64_t *const numbers[] = { NULL, &l->contract, &l->step, &l->seed, &l->optimiser };
    char *key, *found[5] = { NULL, NULL, NULL, NULL, NULL };
    for (int n = 0; (key = gckpti_json_key(l, &n)) != NULL;) {
        char *value = gckpti_json_string(l);
        for (int i = 0; value && i < 5; i++) {
            if (strcmp(key, keys[i]))
                continue;
            if (found[i])
                return gckpti_json_fail(l, "a key of __metadata__ comes twice");
            found[i] = value;
        }
        if (!value || !gckpti_load_updates(l, key, value))
            return 0;
    }
    l->ours = found[0] && !strcmp(found[0], "gradckpt");
    l->count = l->ours ? l->count : tensors;
    for (int i = 1; l->ours && i < 5; i++) {
        const char *end = found[i] ? found[i] + strlen(found[i]) : NULL;
        if (!end || gckpti_digits(found[i], end, numbers[i]) != end)
            return gckpti_refuse(l, GCKPT_E_DATA, NULL,
                                 "__metadata__: %s must be a whole number < 2^64, in quotes",
                                 keys[i]);
    }
    if (l->optimiser > GCKPT_OWN_OPTIMISER + 1)
        return gckpti_refuse(l, GCKPT_E_DATA, NULL, "__metadata__: optimiser must be 0 to 4");
    return l->result == GCKPT_OK;
}

/* {"dtype":"F32","shape":[..],"data_offsets":[begin,end]}, keys in any order. */
static int gckpti_load_entry(gckpti_loader *l, gckpti_saved *e)
{
    const char *key;
    char *type = NULL;
    int axes = -1, offsets = -1;
    for (int n = 0; l->result == GCKPT_OK && (key = gckpti_json_key(l, &n)) != NULL;) {
        if (!type && !strcmp(key, "dtype"))
            type = gckpti_json_string(l);
        else if (axes < 0 && !strcmp(key, "shape"))
            axes = gckpti_json_numbers(l, e->shape.d, GCKPT_MAX_DIMS);
        else if (offsets < 0 && !strcmp(key, "data_offsets"))
            offsets = gckpti_json_numbers(l, e->offsets, 2);
        else
            gckpti_json_fail(l, "a tensor has dtype, shape and data_offsets, once each");
    }
    if (l->result != GCKPT_OK)
        return 0;
    if (!type || axes < 0 || offsets != 2)
        return gckpti_json_fail(l, "a tensor has dtype, shape and two data_offsets");
    for (char *c = type; *c; c++) /* it may be printed */
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
    if (strcmp(type, "F32"))
        return gckpti_refuse(l, GCKPT_E_DATA, e, "F32 is needed; convert it from dtype %s", type);
    e->shape.n = axes;
    if (!gckpti_shape_fits(&e->shape))
        return gckpti_refuse(l, GCKPT_E_DATA, e,
                             "%S: sizes must be positive and their product at most %z", &e->shape,
                             SIZE_MAX / 64);
    int64_t begin = e->offsets[0], end = e->offsets[1], bytes = gckpti_elements(&e->shape) * 4;
    if (begin > end || end > l->data_bytes || end - begin != bytes)
        return gckpti_refuse(
            l, GCKPT_E_DATA, e,
            "data_offsets [%I,%I] must hold the %I bytes of %S within the %I bytes of data", begin,
            end, bytes, &e->shape, l->data_bytes);
    return 1;
}

/* The whole header: an entry for each tensor, whose name is cut where a state's number begins. */
static int gckpti_load_header(gckpti_loader *l)
{
    char *name;
    int metadata = 0;
    if (*l->header != '{')
        return gckpti_json_fail(l, "'{' expected");
    for (int n = 0; (name = gckpti_json_key(l, &n)) != NULL;) {
        gckpti_saved e;
        if (!strcmp(name, "__metadata__")) {
            if (metadata++)
                return gckpti_json_fail(l, "__metadata__ comes twice");
            if (!gckpti_load_metadata(l))
                return 0;
            continue;
        }
        memset(&e, 0, sizeof e);
        size_t length = gckpti_state_suffix(name);
        e.slot = name[length] ? name[length + 6] - '0' : -1;
        name[length] = 0;
        e.name = name;
        if (!gckpti_load_entry(l, &e) || !gckpti_load_add(l, &e))
            return 0;
    }
    gckpti_json_space(l); /* the padding */
    if (l->result == GCKPT_OK && l->at != l->end)
        gckpti_json_fail(l, "only spaces may follow the last '}'");
    return l->result == GCKPT_OK;
}

/* ---- read: what concerns several tensors, or the store ---- */
static int gckpti_saved_by_name(const void *first, const void *second, const void *context)
{
    const gckpti_saved *a = (const gckpti_saved *)first, *b = (const gckpti_saved *)second;
    int order = strcmp(a->name, b->name);
    (void)context;
    return order < 0 || (order == 0 && a->slot < b->slot);
}

static int gckpti_saved_by_offset(const void *first, const void *second, const void *context)
{
    (void)context;
    return ((const gckpti_saved *)first)->offsets[0] < ((const gckpti_saved *)second)->offsets[0];
}

/* Whether the tensors' data are all there is, without overlaps or holes; orders the tensors so. */
static int gckpti_load_offsets(gckpti_loader *l)
{
    int64_t at = 0;
    gckpti_sort(l->entries, l->count, sizeof *l->entries, gckpti_saved_by_offset, NULL);
    for (size_t i = 0; i < l->count && l->entries[i].slot != GCKPTI_UPDATES; i++) {
        gckpti_saved *e = &l->entries[i];
        if (e->offsets[0] != at)
            return gckpti_refuse(l, GCKPT_E_DATA, e, "its data begins at %I, not at %I: %s",
                                 e->offsets[0], at, e->offsets[0] < at ? "an overlap" : "a hole");
        at = e->offsets[1];
        e->param = l->values; /* in an empty store; else found by name */
        l->values += e->slot < 0;
    }
    if (at != l->data_bytes)
        return gckpti_refuse(l, GCKPT_E_DATA, NULL,
                             "the tensors need %I bytes of data, the file has %I", at,
                             l->data_bytes);
    return 1;
}

/* Values of a parameter: does the store have it, in this shape? */
static int gckpti_load_values(gckpti_loader *l, gckpti_saved *e)
{
    const gckpt_store *s = l->store;
    e->optimiser = (int)l->optimiser;
    e->updates = l->step;
    if (l->empty)
        return 1;
    int index = gckpti_find(s, e->name);
    if (index < 0)
        return gckpti_refuse(l, GCKPT_E_DATA, e,
                             "is none of the store's %z parameters; build the model that was "
                             "saved, or load into an empty store",
                             s->count);
    e->param = (size_t)index;
    e->had = gckpti_state_slots(&s->params[index]);
    return gckpti_same_shape(&e->shape, &s->params[index].p.shape) ||
           gckpti_refuse(l, GCKPT_E_SHAPE, e, "the file has it as %S, the store as %S", &e->shape,
                         &s->params[index].p.shape);
}

/* A state, or whose the states are: does it follow what is known of its parameter? */
static int gckpti_load_state(gckpti_loader *l, gckpti_saved *e, gckpti_saved *head)
{
    if (e->slot == GCKPTI_UPDATES) {
        if (!head || !head->states)
            return gckpti_refuse(l, GCKPT_E_DATA, e, "there is no such optimiser state");
        if (e->optimiser < 0)
            return gckpti_refuse(l, GCKPT_E_DATA, e, "OPTIMISER:COUNT expected, in quotes");
        head->optimiser = e->optimiser;
        head->updates = e->updates;
    } else {
        if (!head)
            return gckpti_refuse(l, GCKPT_E_DATA, e, "optimiser state without its parameter");
        if (e->slot != head->states || e->slot > 3)
            return gckpti_refuse(l, GCKPT_E_DATA, e, "states must be 0 to 3 without a gap");
        if (!gckpti_same_shape(&e->shape, &head->shape))
            return gckpti_refuse(l, GCKPT_E_SHAPE, e, "%S, but its parameter is %S", &e->shape,
                                 &head->shape);
        head->states++;
    }
    e->param = head->param;
    return 1;
}

/* Leaves the entries ordered by offset, with `param` and `states` set. */
static int gckpti_load_check(gckpti_loader *l)
{
    gckpt_store *s = l->store;
    gckpti_saved *head = NULL; /* values of the parameter we are at */
    if (!gckpti_load_offsets(l))
        return 0;
    gckpti_sort(l->entries, l->count, sizeof *l->entries, gckpti_saved_by_name, NULL);
    for (size_t i = 0; i < l->count; i++) {
        gckpti_saved *e = &l->entries[i];
        const char *problem = gckpti_name_problem(e->name);
        head = e->slot < 0 || (head && !strcmp(head->name, e->name)) ? head : NULL;
        if (problem)
            return gckpti_refuse(l, GCKPT_E_DATA, e, "the name %s", problem);
        if (i + 1 < l->count && !strcmp(e[1].name, e->name) && e[1].slot == e->slot)
            return gckpti_refuse(l, GCKPT_E_DATA, e, "comes twice");
        if (e->slot < 0 ? !gckpti_load_values(l, head = e) : !gckpti_load_state(l, e, head))
            return 0;
    }
    gckpti_sort(l->entries, l->count, sizeof *l->entries, gckpti_saved_by_offset, NULL);
    for (size_t p = 0, i = 0; !l->empty && l->values < s->count; p++) { /* which one is missing? */
        gckpti_saved missing;
        size_t seen = 0;
        for (; seen < l->count && l->entries[i].param != p; seen++)
            i = (i + 1) % l->count; /* they mostly stand in the store's order */
        missing.name = s->params[p].p.name;
        missing.slot = -1;
        if (seen == l->count)
            return gckpti_refuse(l, GCKPT_E_DATA, &missing,
                                 "is missing; the file has %z of the store's %z parameters",
                                 l->values, s->count);
    }
    return 1;
}

/* Creates the parameters and states that the store lacks; 0: out of memory. */
static int gckpti_load_create(gckpti_loader *l)
{
    for (size_t i = 0; i < l->count; i++) {
        const gckpti_saved *e = &l->entries[i];
        gckpt_init none = { 0, 0, 0 };
        if (e->slot < 0 && l->empty &&
            (!gckpti_param_new(l->store, e->name, &e->shape, NULL, none) ||
             gckpti_values_new(l->store, &l->store->params[e->param], "load") != GCKPT_OK))
            return 0;
        if (e->slot < 0 && !gckpti_param_state(l->store, &l->store->params[e->param], e->states))
            return 0;
    }
    return 1;
}

static void gckpti_load_undo(gckpti_loader *l)
{
    gckpt_store *s = l->store;
    if (l->empty)
        gckpti_store_shrink(s, 0);
    for (size_t i = l->empty ? 0 : l->count; i-- > 0;)
        if (l->entries[i].slot < 0)
            gckpti_state_shrink(s, &s->params[l->entries[i].param], l->entries[i].had);
}

/* Reads all values, then checks the last thing that can be wrong. */
static int gckpti_load_data(gckpti_loader *l, float *data, gckpt_read_fn read, void *user)
{
    if (l->data_bytes && read(user, data, (size_t)l->data_bytes) != (size_t)l->data_bytes)
        return gckpti_refuse(l, GCKPT_E_FILE, NULL,
                             "the %I bytes of data could not be read to their end", l->data_bytes);
    for (int64_t i = 0; i < l->data_bytes / 4; i++) { /* changes nothing if little-endian */
        unsigned char b[4];
        memcpy(b, data + i, 4);
        uint32_t word = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
        memcpy(data + i, &word, 4);
    }
    for (size_t i = 0; i < l->count; i++) {
        const gckpti_saved *e = &l->entries[i];
        const gckpti_param *q = &l->store->params[e->param];
        size_t bytes = (size_t)q->p.elements * sizeof(float);
        if (q->locked && e->slot < 0 &&
            memcmp(gckpti_array(q, -1), data + e->offsets[0] / 4, bytes))
            return gckpti_refuse(l, GCKPT_E_DATA, e,
                                 "is external, not writable, and holds other values than the "
                                 "file; bind it as writable");
    }
    return 1;
}

/* Nothing can fail any more: the store becomes what the file says. */
static void gckpti_load_commit(gckpti_loader *l, const float *data)
{
    for (size_t i = 0; i < l->count; i++) {
        const gckpti_saved *e = &l->entries[i];
        gckpti_param *q = &l->store->params[e->param];
        size_t bytes = (size_t)q->p.elements * sizeof(float);
        if (e->slot == GCKPTI_UPDATES)
            continue;
        gckpti_pull(l->store, q);
        gckpti_changed(l->store, q, GCKPTI_HOST);
        if (e->slot >= 0 || !q->locked)
            memcpy(gckpti_array(q, e->slot), data + e->offsets[0] / 4, bytes);
        for (int k = e->states; e->slot < 0 && k < gckpti_state_slots(q); k++)
            memset(gckpti_array(q, k), 0, bytes);
        if (e->slot < 0) {
            q->raw = 0;
            q->optimiser = (unsigned char)(e->states && l->ours ? e->optimiser : 0);
            q->updates = q->optimiser ? e->updates : 0;
        }
    }
    if (l->ours) {
        l->store->step = l->step;
        l->store->seed = l->seed;
    }
}

/* What is left when the header is right: the store holds the file's values, or is as it was. */
static void gckpti_load_rest(gckpti_loader *l, gckpt_read_fn read, void *user)
{
    int created = gckpti_load_create(l);
    size_t bytes = (size_t)l->data_bytes;
    float *data = created ? (float *)gckpti_new(&l->store->memory, bytes, 1) : NULL;
    if (!data)
        gckpti_refuse(l, GCKPT_E_MEMORY, NULL, "no memory for %z bytes of data %s", bytes,
                      created ? "beside the store" : "in the store");
    else if (gckpti_load_data(l, data, read, user))
        gckpti_load_commit(l, data);
    gckpti_delete(&l->store->memory, data, bytes, 1);
    if (l->result != GCKPT_OK)
        gckpti_load_undo(l);
    else if (l->ours && l->contract != GCKPT_CONTRACT)
        gckpti_refuse(l, GCKPT_OTHER_CONTRACT, NULL,
                      "done, but the file is of numeric contract %u, this library of %i: training "
                      "goes on to other bits than it would have there",
                      l->contract, GCKPT_CONTRACT);
}

GCKPT_API gckpt_result gckpt_store_read(gckpt_store *store, gckpt_read_fn read, void *user,
                                        size_t size)
{
    gckpti_loader l;
    unsigned char little[8];
    uint64_t length = 0;
    if (!store || !read)
        return gckpti_error(store, GCKPT_E_ARG, "load: a store and a callback are needed");
    if (store->object.sticky != GCKPT_OK)
        return store->object.sticky;
    if (size < 8)
        return gckpti_error(store, GCKPT_E_DATA, "load: %z bytes are not a safetensors file", size);
    if (read(user, little, 8) != 8)
        return gckpti_error(store, GCKPT_E_FILE, "load: the first 8 bytes could not be read");
    for (int i = 8; i-- > 0;)
        length = length << 8 | little[i];
    if (length < 2 || length > GCKPTI_HEADER_MAX || length > size - 8)
        return gckpti_error(store, GCKPT_E_DATA,
                            "load: a header of %I bytes in a file of %z (%z are allowed): cut off, "
                            "damaged or not safetensors",
                            (int64_t)(length & INT64_MAX), size, (size_t)GCKPTI_HEADER_MAX);
    memset(&l, 0, sizeof l);
    l.store = store;
    l.empty = store->count == 0;
    for (size_t i = 0; i < store->count; i++) /* first, so that a block gets all the rest back */
        if (gckpti_values_new(store, &store->params[i], "load") != GCKPT_OK) {
            gckpti_values_undo(store);
            return GCKPT_E_MEMORY;
        }
    size_t header_bytes = (size_t)length;
    l.data_bytes = (int64_t)(size - 8 - header_bytes);
    size_t room = gckpti_round_up(header_bytes, GCKPTI_ALIGN); /* so that a block gets it back */
    l.at = l.header = (char *)gckpti_new(&store->memory, room, 1);
    l.end = l.header ? l.header + header_bytes : NULL;
    if (!l.header)
        gckpti_refuse(&l, GCKPT_E_MEMORY, NULL, "no memory for a header of %z bytes", header_bytes);
    else if (read(user, l.header, header_bytes) != header_bytes)
        gckpti_refuse(&l, GCKPT_E_FILE, NULL, "the header's %z bytes cannot be read", header_bytes);
    else if (gckpti_load_header(&l) && gckpti_load_check(&l))
        gckpti_load_rest(&l, read, user);
    gckpti_delete(&store->memory, l.entries, l.capacity, sizeof *l.entries);
    gckpti_delete(&store->memory, l.header, room, 1);
    gckpti_values_undo(store);
    return l.result == GCKPT_OK ? gckpti_ok(store) : l.result;
}

#ifndef GCKPT_NO_STDIO
/* ---- by path ---- */
#if GCKPTI_POSIX && !defined(__cplusplus)
int(fileno)(FILE *file); /* with -std=c99 the system's headers do not show these */
FILE *(fdopen)(int fd, const char *mode);
int(fsync)(int fd);
int(fchmod)(int fd, mode_t mode);
ssize_t(readlink)(const char *path, char *target, size_t size);
#elif defined(_WIN32) /* as <windows.h> has it; rename() there does not replace */
__declspec(dllimport) int __stdcall MoveFileExA(const char *, const char *, unsigned long);
#endif

typedef struct {
    FILE *f;
    int error;         /* errno of the first failure, or 0 */
    const char *stage; /* of a save: what it could not do, and what to look at */
} gckpti_file;

static void gckpti_file_try(gckpti_file *file, int failed)
{
    if (failed && !file->error)
        file->error = errno ? errno : EIO;
}

static size_t gckpti_file_read(void *user, void *bytes, size_t size)
{
    gckpti_file *file = (gckpti_file *)user;
    size_t done = fread(bytes, 1, size, file->f);
    gckpti_file_try(file, ferror(file->f));
    return done;
}

static size_t gckpti_file_write(void *user, const void *bytes, size_t size)
{
    gckpti_file *file = (gckpti_file *)user;
    size_t done = fwrite(bytes, 1, size, file->f);
    gckpti_file_try(file, done != size);
    return done;
}

#if GCKPTI_POSIX
#ifndef LOCK_EX /* _POSIX_C_SOURCE hides it on some systems, but it is there */
int flock(int fd, int operation);
#endif

/* Follows links from `path`, in `room` bytes, to what they end at, be it there or not. 0: errno. */
static int gckpti_follow(char *path, size_t room)
{
    for (int links = 0; links < 40; links++) {
        size_t used = strlen(path) + 1, folder = used - 1;
        ssize_t n = readlink(path, path + used, room - used);
        if (n < 0) /* nothing there, or no link */
            return errno == ENOENT || errno == EINVAL;
        while (folder > 0 && path[folder - 1] != '/')
            folder--;
        folder = path[used] == '/' ? 0 : folder; /* a link is relative to its folder */
        if ((size_t)n == room - used)
            break;
        memmove(path + folder, path + used, (size_t)n);
        path[folder + (size_t)n] = 0;
    }
    errno = ELOOP;
    return 0;
}

/* 1: fd is locked, and still what `name` stands for; 0: another save's by now; -1: no locks. */
static int gckpti_lock(int fd, const char *name)
{
    struct stat a, b;
    if (flock(fd, 2 | 4)) /* LOCK_EX | LOCK_NB */
        return errno == EWOULDBLOCK ? 0 : -1;
    return !fstat(fd, &a) && !stat(name, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* As fsync; that a file system (a folder) cannot do it is no error. */
static int gckpti_sync(int fd)
{
    return fsync(fd) && errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP && errno != EBADF;
}

/* Makes `target`, in a block of `room` bytes, what it leads to. 1: a file of *mode is there. */
static int gckpti_save_over(gckpti_file *file, char *target, size_t room, unsigned *mode)
{
    struct stat old;
    gckpti_file_try(file, !gckpti_follow(target, room));
    int there = !file->error && !stat(target, &old);
    gckpti_file_try(file, !there && errno != ENOENT);
    if (there && !S_ISREG(old.st_mode)) {
        file->error = EEXIST;
        file->stage = "replace a folder, device or pipe; is the path right";
    }
    *mode = there ? old.st_mode & 0777 : *mode;
    return there;
}

/* The folder of `path`, which is cut off, must not forget a new name in it. */
static void gckpti_save_name(gckpti_file *file, char *path)
{
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] != '/')
        length--;
    memcpy(path + length, ".", 2);
    int folder = open(path, O_RDONLY);
    gckpti_file_try(file, folder < 0 ? errno != EACCES : gckpti_sync(folder));
    if (folder >= 0)
        close(folder);
}
#endif

/* Creates a file whose name is that of `length` characters and .gckpt-tmpN; NULL: errno. Whoever
 * saves holds a lock on its file until that is renamed or removed, and the system lets go of it
 * when the process is killed: so a file that can be locked is left over and is removed, and saves
 * to one path at the same time never touch each other's. Without locks (other systems, some network
 * folders) a file that is there is left alone and the next N taken. (Where locks belong to
 * processes, as on NFS, threads of one must not save to one path at once.) */
static FILE *gckpti_temporary(char *name, size_t length, unsigned mode)
{
    for (int i = 0; i < 100; i++) {
        gckpti_text t = { name + length, 15 };
        gckpti_text_add(&t, ".gckpt-tmp%i", i);
#if GCKPTI_POSIX
        int fd = open(name, O_WRONLY | O_NONBLOCK);
        if (fd >= 0 && gckpti_lock(fd, name) == 1)
            remove(name);
        if (fd >= 0)
            close(fd);
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL, mode);
        if (fd >= 0 && gckpti_lock(fd, name)) {
            FILE *f = fdopen(fd, "wb");
            if (!f) {
                remove(name);
                close(fd);
            }
            return f;
        }
        if (fd >= 0) /* in between, another save took it for left over and removed it */
            close(fd);
        else if (errno != EEXIST)
            return NULL;
#else
        (void)mode;
        errno = 0;
        FILE *f = fopen(name, "wbx"); /* x: must not exist */
        if (f || errno != EEXIST)
            return f;
#endif
    }
    errno = EEXIST;
    return NULL;
}

typedef gckpt_result (*gckpti_body)(const void *what, gckpt_write_fn write, void *user);

/* Fills the temporary file, open as file->f, and renames it, or removes it. 1: it is in place. */
static int gckpti_save_file(gckpti_file *file, const char *temporary, const char *target,
                            gckpti_body body, const void *what, gckpt_result *result)
{
    int placed = 0;
    file->stage = "write; is the disk full";
    errno = 0;
    *result = body(what, gckpti_file_write, file);
    gckpti_file_try(file, fflush(file->f));
#if GCKPTI_POSIX
    gckpti_file_try(file, gckpti_sync(fileno(file->f)));
#else
    gckpti_file_try(file, fclose(file->f));
#endif
    if (*result == GCKPT_OK && !file->error) {
        file->stage = "put it in place; is that in use";
#ifdef _WIN32
        placed = MoveFileExA(temporary, target, 1 | 8) != 0; /* replace, flush */
#else
        placed = !rename(temporary, target);
#endif
        gckpti_file_try(file, !placed);
    }
    if (placed)
        file->stage = "see to it that the new file outlasts a power cut";
    else
        remove(temporary);
#if GCKPTI_POSIX
    gckpti_file_try(file, fclose(file->f)); /* gives the lock back */
#endif
    return placed;
}

/* Saves what `body` writes of `what`; errors are those of `object` (NULL: without a text). */
static gckpt_result gckpti_save(void *object, gckpti_allocator *memory, const char *path,
                                gckpti_body body, const void *what)
{
    const size_t room = strlen(path) + 1024; /* links may be so much longer */
    char *target = (char *)gckpti_new(memory, 2 * room, 1);
    gckpt_result result = GCKPT_E_FILE;
    gckpti_file file = { NULL, 0,
                         "create a file beside it (.gckpt-tmp0 to 99); is the folder writable" };
    unsigned mode = 0666;
    int placed = 0;
    if (!target)
        return gckpti_error(object, GCKPT_E_MEMORY, "save: no memory for names of %z bytes",
                            2 * room);
    memcpy(target, path, strlen(path) + 1);
    errno = 0;
#if GCKPTI_POSIX
    int there = gckpti_save_over(&file, target, room - 32, &mode);
#endif
    char *temporary = (char *)memcpy(target + room, target, strlen(target));
    if (!file.error) {
        file.f = gckpti_temporary(temporary, strlen(target), mode);
        gckpti_file_try(&file, !file.f);
    }
#if GCKPTI_POSIX
    if (file.f && there) /* it has no more than this, maybe less: the umask's */
        (void)fchmod(fileno(file.f), (mode_t)mode);
#endif
    if (file.f)
        placed = gckpti_save_file(&file, temporary, target, body, what, &result);
#if GCKPTI_POSIX
    if (placed)
        gckpti_save_name(&file, target);
#endif
    gckpti_delete(memory, target, 2 * room, 1);
    if (!file.error)
        return result;
    return gckpti_error(object, GCKPT_E_FILE,
                        placed ? "save: %s: could not %s, but it is in place: \"%s\""
                               : "save: %s: could not %s? What was there is unharmed: \"%s\"",
                        strerror(file.error), file.stage, path);
}

static gckpt_result gckpti_save_store(const void *what, gckpt_write_fn write, void *user)
{
    return gckpt_store_write(*(gckpt_store *const *)what, write, user);
}

GCKPT_API gckpt_result gckpt_store_save(gckpt_store *store, const char *path)
{
    if (!store || !path)
        return gckpti_error(store, GCKPT_E_ARG, "save: a store and a path are needed");
    return gckpti_save(store, &store->memory, path, gckpti_save_store, &store);
}

GCKPT_API gckpt_result gckpt_store_load(gckpt_store *store, const char *path)
{
    gckpti_file file = { NULL, 0, NULL };
    if (!store || !path)
        return gckpti_error(store, GCKPT_E_ARG, "load: a store and a path are needed");
    errno = 0;
    file.f = fopen(path, "rb");
#ifdef _WIN32 /* where long has 32 bits */
    int64_t size = file.f && !_fseeki64(file.f, 0, SEEK_END) ? _ftelli64(file.f) : -1;
#else
    int64_t size = file.f && !fseek(file.f, 0, SEEK_END) ? (int64_t)ftell(file.f) : -1;
#endif
    gckpti_file_try(&file, size < 0 || fseek(file.f, 0, SEEK_SET));
    gckpt_result result = GCKPT_E_FILE;
    if (!file.error)
        result = gckpt_store_read(store, gckpti_file_read, &file, (size_t)size);
    if (file.f)
        fclose(file.f);
    if (file.error)
        return gckpti_error(store, result, "load: %s: could not read \"%s\"", strerror(file.error),
                            path);
    if (result != GCKPT_OK && store->object.sticky == GCKPT_OK) {
        gckpti_text t = { store->object.text + strlen(store->object.text), 0 };
        t.left = sizeof store->object.text - 1 - strlen(store->object.text);
        gckpti_text_add(&t, " (\"%s\")", path);
    }
    return result;
}
#endif /* GCKPT_NO_STDIO */

/* =================================================================================================
 * >>tables: plans as files and as C
 *
 * A file is a run of 64-bit numbers, little-endian:
 *     "gckptpln", GCKPT_PLAN_FORMAT, GCKPT_CONTRACT
 *     tensors; for each: the graph's hash up to it, work forward, work backward
 *     mode, optimiser, state slots, update_in_backward, threads, alignment, batch, plain,
 *     precision, form, least work of a step that computes nothing twice; work and bytes that are
 *     proven; bytes of slower memory, work of 2^20 of them
 *     terms; for each: id, bits of the weight, regulariser, work of its op as built
 *     picks; for each: id, gradient
 *     instructions; for each: 8 id of the tensor + kind          parameters; for each: trained
 *     buffers, by end; for each: offset                          hash of all numbers before
 * So it holds decisions only: what runs when, what lies where. The rest is derived from the graph,
 * by the code that plans.
 * ============================================================================================== */
#define GCKPTI_PLAN_MAGIC UINT64_C(0x6e6c707470636b67)

/* Numbers, and into the hash of all that were written. */
static void gckpti_put_numbers(gckpti_sink *k, uint64_t *check, const uint64_t *numbers, int n)
{
    for (int i = 0; i < n; i++) {
        *check = gckpti_fnv_number(*check, numbers[i]);
        gckpti_sink_number(k, numbers[i], 8);
    }
}

static void gckpti_put_number(gckpti_sink *k, uint64_t *check, uint64_t number)
{
    gckpti_put_numbers(k, check, &number, 1);
}

GCKPT_API gckpt_result gckpt_plan_write(const gckpt_plan *plan, gckpt_write_fn write, void *user)
{
    uint64_t check = GCKPTI_FNV_START;
    gckpti_sink k = { write, user, 0, 0, 0, { 0 } };
    gckpt_instruction in;
    if (!plan || !write || plan->made_for > GCKPTI_FOR_PLAIN)
        return GCKPT_E_ARG;
    const uint64_t head[] = { GCKPTI_PLAN_MAGIC, (uint64_t)plan->format, (uint64_t)plan->contract,
                              plan->node_count };
    gckpti_put_numbers(&k, &check, head, 4);
    for (size_t i = 0; i < plan->node_count; i++) {
        const gckpt_cost *cost = &plan->nodes[i].cost;
        const uint64_t tensor[] = { plan->nodes[i].hash, cost->forward, cost->backward };
        gckpti_put_numbers(&k, &check, tensor, 3);
    }
    const uint64_t request[] = { (uint64_t)plan->mode,
                                 (uint64_t)plan->optimiser,
                                 (uint64_t)plan->state_slots,
                                 plan->update_in_backward != 0,
                                 (uint64_t)plan->threads,
                                 plan->alignment,
                                 (uint64_t)plan->batch,
                                 (uint64_t)plan->made_for,
                                 (uint64_t)plan->precision,
                                 (uint64_t)plan->variant.form,
                                 plan->least_work,
                                 plan->proven_work,
                                 plan->proven_bytes,
                                 plan->offloaded,
                                 plan->offload_work,
                                 plan->term_count };
    gckpti_put_numbers(&k, &check, request, 16);
    for (size_t i = 0; i < plan->term_count; i++) {
        const gckpti_plan_term *t = &plan->terms[i];
        const uint64_t term[] = { (uint64_t)t->id, t->weight, t->regulariser != 0, t->built.forward,
                                  t->built.backward };
        gckpti_put_numbers(&k, &check, term, 5);
    }
    gckpti_put_number(&k, &check, plan->pick_count);
    for (size_t i = 0; i < plan->pick_count; i++) {
        const uint64_t pick[] = { (uint64_t)plan->picks[i].id, plan->picks[i].gradient != 0 };
        gckpti_put_numbers(&k, &check, pick, 2);
    }
    gckpti_put_number(&k, &check, plan->length);
    for (int x = 0; gckpt_plan_get(plan, x, &in) == GCKPT_OK; x++)
        gckpti_put_number(&k, &check, 8 * (uint64_t)in.id + (uint64_t)in.kind);
    gckpti_put_number(&k, &check, plan->param_count);
    for (size_t i = 0; i < plan->param_count; i++)
        gckpti_put_number(&k, &check, plan->params[i].trained != 0);
    gckpti_put_number(&k, &check, plan->life_count);
    for (size_t i = 0; i < plan->life_count; i++)
        gckpti_put_number(&k, &check, plan->lives[i].offset);
    gckpti_put_number(&k, &check, check);
    return gckpti_sink_flush(&k);
}

typedef struct {
    gckpt_read_fn read;
    void *user;
    uint64_t check, list_hash, proven_work, proven_bytes;
    size_t at;      /* bytes read */
    int ended, bad; /* nothing more to read; a number was out of range */
    gckpti_planner p;
    gckpti_variant variant;
    uint64_t least_work;
    gckpt_plan_desc d;
    gckpt_mode mode;
    gckpt_cost *costs, *built;
    gckpt_term *terms;
    gckpt_pick *picks;
    gckpt_instruction *list;
    gckpti_scratch scratch; /* of the arrays above */
} gckpti_plan_reader;

static uint64_t gckpti_get_number(gckpti_plan_reader *r)
{
    unsigned char little[8];
    uint64_t value = 0;
    if (r->ended || r->bad || r->read(r->user, little, 8) != 8) {
        r->ended = r->ended || !r->bad;
        return 0;
    }
    for (int i = 8; i-- > 0;)
        value = value << 8 | little[i];
    r->check = gckpti_fnv_number(r->check, value);
    r->at += 8;
    return value;
}

/* A number from 0 to limit - 1; 0 and `bad` when it is another one. */
static int gckpti_get_below(gckpti_plan_reader *r, size_t limit)
{
    uint64_t value = gckpti_get_number(r);
    if (value < limit && value < INT32_MAX)
        return (int)value;
    r->bad = 1;
    return 0;
}

/* E_OK, or the error that reading met. */
static gckpt_result gckpti_reader_result(gckpti_plan_reader *r)
{
    if (r->p.failed)
        return gckpti_error(r->p.g, GCKPT_E_MEMORY, "load plan: no memory for it");
    if (r->bad)
        return gckpti_error(r->p.g, GCKPT_E_DATA,
                            "load plan: the number at byte %z is out of range: the file is damaged",
                            r->at - 8);
    if (r->ended)
        return gckpti_error(r->p.g, GCKPT_E_FILE,
                            "load plan: it ends, or cannot be read, after %z bytes", r->at);
    return GCKPT_OK;
}

/* Is it a plan, of this version, of this graph? */
static gckpt_result gckpti_read_graph(gckpti_plan_reader *r)
{
    gckpt_graph *g = r->p.g;
    uint64_t hash = GCKPTI_FNV_START;
    if (gckpti_get_number(r) != GCKPTI_PLAN_MAGIC && !r->ended)
        return gckpti_error(g, GCKPT_E_DATA, "load plan: this is not a plan of gradckpt.h");
    int format = gckpti_get_below(r, INT32_MAX), contract = gckpti_get_below(r, INT32_MAX);
    uint64_t tensors = gckpti_get_number(r);
    if (gckpti_reader_result(r) != GCKPT_OK)
        return gckpt_error(g);
    if (format != GCKPT_PLAN_FORMAT || contract != GCKPT_CONTRACT)
        return gckpti_error(g, GCKPT_E_DATA,
                            "load plan: saved by another version of gradckpt.h (format %i, "
                            "contract %i; here %i, %i); make it again",
                            format, contract, GCKPT_PLAN_FORMAT, GCKPT_CONTRACT);
    for (size_t i = 0; i < g->count && i < tensors; i++) {
        hash = gckpti_hash_tensor(hash, g->tensors[i]);
        uint64_t saved = gckpti_get_number(r);
        r->costs[i].forward = gckpti_get_number(r);
        r->costs[i].backward = gckpti_get_number(r);
        if (gckpti_reader_result(r) != GCKPT_OK)
            return gckpt_error(g);
        if (saved != hash)
            return gckpti_error(g, GCKPT_E_ARG,
                                "load plan: made for another graph: %T %S (tensor %i) differs: op, "
                                "attributes, shape, type, inputs or name",
                                g->tensors[i], &g->tensors[i]->shape, (int)i);
    }
    return tensors == g->count
               ? GCKPT_OK
               : gckpti_error(g, GCKPT_E_ARG,
                              "load plan: made for a graph of %u tensors; this one has %z", tensors,
                              g->count);
}

/* The schedule, without what the library adds to any. */
static void gckpti_read_list(gckpti_plan_reader *r)
{
    const gckpt_graph *g = r->p.g;
    int length = gckpti_get_below(r, INT32_MAX);
    r->list_hash = GCKPTI_FNV_START;
    for (int x = 0; x < length && !r->p.failed; x++) {
        int word = gckpti_get_below(r, 8 * g->count);
        gckpt_instruction in = { (gckpt_kind)(word % 8), word / 8 };
        r->list_hash = gckpti_fnv_number(r->list_hash, (uint64_t)word);
        if (r->ended || r->bad)
            break; /* the id is none: there may be no tensor at all */
        const gckpt_tensor *t = g->tensors[in.id];
        if (in.kind == GCKPT_UPDATE || in.kind == GCKPT_OFFLOAD ||
            (t->batchless && t->kind == GCKPTI_OP))
            continue;
        r->d.stage_parameters = r->d.stage_parameters || t->kind == GCKPTI_PARAM;
        if (gckpti_want(&r->scratch, &r->list, (size_t)x + 1, sizeof *r->list))
            r->list[r->d.instructions++] = in;
    }
}

/* What was asked for, and the list, as gckpt_plan_new takes them. */
static gckpt_result gckpti_read_request(gckpti_plan_reader *r)
{
    gckpt_graph *g = r->p.g;
    gckpt_plan_desc *d = &r->d;
    size_t n = g->count;
    r->mode = (gckpt_mode)gckpti_get_below(r, GCKPT_INFERENCE + 1);
    d->mode = r->mode == GCKPT_INFERENCE ? GCKPT_INFERENCE : GCKPT_SCHEDULE;
    d->optimiser = (gckpt_optimiser)gckpti_get_below(r, GCKPT_OWN_OPTIMISER + 1);
    d->own_state = gckpti_get_below(r, 5);
    d->update_in_backward = gckpti_get_below(r, 2);
    d->threads = gckpti_get_below(r, 1025);
    d->alignment = (size_t)gckpti_get_below(r, 65537);
    r->bad = r->bad || (!r->ended && !d->alignment);
    uint64_t batch = gckpti_get_number(r);
    d->batch = batch < (uint64_t)GCKPTI_ADDRESSABLE ? (int64_t)batch : -1;
    d->plain = gckpti_get_below(r, 2);
    d->precision = (gckpt_precision)gckpti_get_below(r, GCKPT_BF16_STOCHASTIC + 1);
    r->variant.form = gckpti_get_below(r, GCKPTI_FORMS);
    r->least_work = gckpti_get_number(r);
    r->proven_work = gckpti_get_number(r);
    r->proven_bytes = gckpti_get_number(r);
    uint64_t offloaded = gckpti_get_number(r);
    r->bad = r->bad || offloaded > (uint64_t)GCKPTI_ADDRESSABLE;
    d->offload_bytes = (size_t)offloaded;
    d->offload_work = gckpti_get_number(r);
    r->p.term_count = gckpti_get_below(r, n + 1);
    for (int i = 0; i < r->p.term_count; i++) {
        int id = gckpti_get_below(r, n);
        r->terms[i].loss = g->tensors[id];
        r->terms[i].weight = gckpti_float((uint32_t)gckpti_get_number(r));
        r->terms[i].regulariser = gckpti_get_below(r, 2);
        r->built[id].forward = gckpti_get_number(r);
        r->built[id].backward = gckpti_get_number(r);
    }
    d->fetches = gckpti_get_below(r, 2 * n + 1);
    for (int i = 0; i < d->fetches; i++) {
        r->picks[i].tensor = g->tensors[gckpti_get_below(r, n)];
        r->picks[i].gradient = gckpti_get_below(r, 2);
    }
    gckpti_read_list(r);
    if (gckpti_reader_result(r) != GCKPT_OK)
        return gckpt_error(g);
#ifdef GCKPT_NO_FAST
    if (!d->plain)
        return gckpti_error(g, GCKPT_E_ARG,
                            "load plan: its workspace is that of the fast kernels, which this "
                            "build (GCKPT_NO_FAST) does not have; make it with "
                            "gckpt_plan_desc.plain = 1");
#endif
    d->costs = r->costs;
    d->cost_count = (int)n;
    d->fetch = r->picks;
    d->schedule = r->list;
    return GCKPT_OK;
}

/* Are the parameters trained that were when it was made? Their gradients are in the list. */
static gckpt_result gckpti_read_trained(gckpti_plan_reader *r)
{
    const gckpt_graph *g = r->p.g;
    uint64_t count = gckpti_get_number(r), seen = 0;
    for (size_t i = 0; i < g->count; i++) {
        if (g->tensors[i]->kind != GCKPTI_PARAM)
            continue;
        seen++;
        int trained = gckpti_get_below(r, 2);
        if (!r->bad && !r->ended && trained != r->p.active[i])
            return gckpti_error(r->p.g, GCKPT_E_ARG,
                                "load plan: %T was %s when the plan was made: freeze the same "
                                "parameters, or make it again",
                                g->tensors[i], trained ? "trained" : "not trained");
    }
    r->bad = r->bad || (!r->ended && count != seen);
    return gckpti_reader_result(r);
}

/* Whether a buffer lies apart from those that live with it: `live`, by offset, which it joins. */
static int gckpti_is_apart(const gckpt_buffer *all, int number, int *live, size_t *count)
{
    const gckpt_buffer *b = &all[number];
    size_t kept = 0, at = 0, n = *count;
    for (size_t k = 0; k < n; k++)
        if (all[live[k]].end >= b->start)
            live[kept++] = live[k];
    while (at < kept && all[live[at]].offset < b->offset)
        at++;
    const gckpt_buffer *below = at > 0 ? &all[live[at - 1]] : NULL;
    int apart = (!below || below->offset + below->size <= b->offset) &&
                (at == kept || all[live[at]].offset >= b->offset + b->size);
    memmove(live + at + 1, live + at, (kept - at) * sizeof *live);
    live[at] = number;
    *count = kept + 1;
    return apart;
}

/* Takes the offsets instead of a layout's: aligned, addressable, without overlaps at any time. */
static gckpt_result gckpti_read_offsets(gckpti_plan_reader *r)
{
    gckpti_planner *p = &r->p;
    gckpti_draft *d = &p->draft;
    uint64_t hash = GCKPTI_FNV_START;
    size_t n = d->buffer_count, count = 0;
    for (size_t x = 0; x < d->length; x++)
        hash = gckpti_fnv_number(hash, 8 * (uint64_t)d->ins[x].id + d->ins[x].kind);
    uint64_t saved = gckpti_get_number(r);
    if (gckpti_reader_result(r) != GCKPT_OK)
        return gckpt_error(p->g);
    if (r->list_hash != hash || saved != n)
        return gckpti_error(
            p->g, GCKPT_E_DATA,
            "load plan: this graph keeps or recomputes other tensors (gckpt_keep, "
            "gckpt_recompute) than the plan, or the file is damaged; make it again");
    const int *order = gckpti_buffers_by_end(p, d);
    for (size_t i = 0; i < n && order; i++) {
        gckpt_buffer *b = &d->buffers[order[i]];
        uint64_t offset = gckpti_get_number(r);
        if (offset > (uint64_t)GCKPTI_ADDRESSABLE - b->size)
            return gckpti_error(p->g, GCKPT_E_DATA,
                                "load plan: a buffer at %u is beyond what this machine addresses",
                                offset);
        r->bad = r->bad || offset % r->d.alignment;
        b->offset = (size_t)offset;
        d->arena = b->offset + b->size > d->arena ? b->offset + b->size : d->arena;
    }
    uint64_t check = r->check;
    if (gckpti_get_number(r) != check && !r->bad && !r->ended)
        return gckpti_error(p->g, GCKPT_E_DATA, "load plan: the file is damaged (its hash)");
    int *live = (int *)gckpti_scratch_take(&d->scratch, n + 1, sizeof(int)); /* by offset */
    for (size_t i = 0; i < n && gckpti_reader_result(r) == GCKPT_OK; i++)
        r->bad = r->bad || !gckpti_is_apart(d->buffers, (int)i, live, &count);
    return gckpti_reader_result(r);
}

/* The steps of planning, with the file's decisions; NULL: the graph's error, or no memory. */
static gckpt_plan *gckpti_read_plan(gckpti_plan_reader *r)
{
    gckpti_planner *p = &r->p;
    size_t n = p->g->count;
    r->costs = (gckpt_cost *)gckpti_scratch_take(&r->scratch, n, sizeof *r->costs);
    r->built = (gckpt_cost *)gckpti_scratch_take(&r->scratch, n + 1, sizeof *r->built);
    r->terms = (gckpt_term *)gckpti_scratch_take(&r->scratch, n, sizeof *r->terms);
    r->picks = (gckpt_pick *)gckpti_scratch_take(&r->scratch, 2 * n, sizeof *r->picks);
    if (p->failed || gckpti_read_graph(r) != GCKPT_OK || gckpti_read_request(r) != GCKPT_OK)
        return NULL;
    if (gckpti_planner_start(p, p->memory, p->g, r->terms, p->term_count, &r->d, r->variant) !=
            GCKPT_OK ||
        gckpti_make_model(p) != GCKPT_OK || gckpti_read_trained(r) != GCKPT_OK)
        return NULL;
    r->bad = (r->variant.form && !p->offered) || r->least_work > p->least_work;
    p->least_work = r->least_work;
    for (int i = 0; i < p->n; i++) /* of what does not run as well */
        r->built[i] = p->of[i] < 0 ? p->cost[i] : r->built[i];
    p->built = r->built;
    if (gckpti_reader_result(r) != GCKPT_OK ||
        gckpti_draft_mode(p, GCKPT_SCHEDULE, 0) != GCKPT_OK || gckpti_read_offsets(r) != GCKPT_OK)
        return NULL;
    gckpt_plan *plan = gckpti_encode(p, &p->draft, r->mode);
    r->bad = plan && (r->proven_work > plan->work || r->proven_bytes > gckpt_plan_bytes(plan));
    if (plan) {
        plan->proven_work = r->proven_work;
        plan->proven_bytes = (size_t)r->proven_bytes;
    }
    if (gckpti_reader_result(r) == GCKPT_OK)
        return plan;
    gckpt_plan_free(plan);
    return NULL;
}

GCKPT_API gckpt_plan *gckpt_plan_read(gckpt_graph *graph, gckpt_read_fn read, void *user,
                                      const gckpt_memory *memory)
{
    gckpti_plan_reader r;
    gckpti_allocator a;
    if (!graph || graph->object.sticky != GCKPT_OK)
        return NULL;
    if (!read) {
        gckpti_error(graph, GCKPT_E_ARG, "load plan: the callback is NULL");
        return NULL;
    }
    memset(&r, 0, sizeof r);
    memset(&a, 0, sizeof a);
    if (memory)
        a.desc = *memory;
    r.read = read;
    r.user = user;
    r.check = GCKPTI_FNV_START;
    r.p.g = graph;
    r.p.memory = &a;
    r.scratch = gckpti_scratch_new(&a, &r.p.failed);
    gckpti_ok(graph);
    gckpt_plan *plan = gckpti_read_plan(&r);
    gckpti_planner_free(&r.p);
    gckpti_scratch_free(&r.scratch);
    if (!plan &&
        (r.p.failed || graph->object.last == GCKPT_OK || graph->object.last == GCKPT_E_MEMORY))
        gckpti_error(graph, GCKPT_E_MEMORY, "load plan: no memory for it");
    return gckpti_plan_settle(plan);
}

#ifndef GCKPT_NO_STDIO
static gckpt_result gckpti_save_plan(const void *what, gckpt_write_fn write, void *user)
{
    return gckpt_plan_write((const gckpt_plan *)what, write, user);
}

GCKPT_API gckpt_result gckpt_plan_save(const gckpt_plan *plan, const char *path)
{
    if (!plan || !path)
        return GCKPT_E_ARG;
    gckpti_allocator memory = plan->memory;
    return gckpti_save(NULL, &memory, path, gckpti_save_plan, plan);
}

GCKPT_API gckpt_plan *gckpt_plan_load(gckpt_graph *graph, const char *path,
                                      const gckpt_memory *memory)
{
    gckpti_file file = { NULL, 0, NULL };
    gckpt_plan *plan = NULL;
    if (!graph || !path) {
        gckpti_error(graph, GCKPT_E_ARG, "load plan: a graph and a path are needed");
        return NULL;
    }
    errno = 0;
    file.f = fopen(path, "rb");
    gckpti_file_try(&file, !file.f);
    if (file.f) {
        plan = gckpt_plan_read(graph, gckpti_file_read, &file, memory);
        fclose(file.f);
    }
    if (!plan && file.error)
        gckpti_error(graph, GCKPT_E_FILE, "load plan: %s: could not read \"%s\"",
                     strerror(file.error), path);
    return plan;
}
#endif

GCKPT_API gckpt_result gckpt_plan_params(const gckpt_plan *plan, gckpt_store *store)
{
    if (!plan || !store)
        return gckpti_error(store, GCKPT_E_ARG, "plan: a plan and a store are needed");
    if (store->object.sticky != GCKPT_OK)
        return store->object.sticky;
    gckpt_result result = gckpti_check_plan(store, plan);
    size_t before = store->count;
    for (int done = -1; result == GCKPT_OK;) { /* in the order they were created */
        const gckpti_plan_param *next = NULL;
        for (size_t i = 0; i < plan->param_count; i++)
            if (plan->params[i].place > done && (!next || plan->params[i].place < next->place))
                next = &plan->params[i];
        if (!next)
            return gckpti_ok(store);
        done = next->place;
        const char *name = plan->names + next->name;
        const gckpt_shape *shape = &plan->nodes[next->node].shape;
        int index = gckpti_find(store, name);
        gckpt_init init = { gckpti_float(next->init[0]), gckpti_float(next->init[1]),
                            gckpti_float(next->init[2]) };
        if (index < 0 && gckpti_param_new(store, name, shape, NULL, init))
            continue;
        if (index < 0)
            result = gckpti_error(store, GCKPT_E_MEMORY,
                                  "plan: the store has no memory for the %I floats of \"%s\"",
                                  next->elements, name);
        else if (!gckpti_same_shape(&store->params[index].p.shape, shape))
            result = gckpti_error(store, GCKPT_E_SHAPE,
                                  "plan: \"%s\" is %S in the plan, %S in the store", name, shape,
                                  &store->params[index].p.shape);
    }
    gckpti_store_shrink(store, before);
    return result;
}

/* ---- as C. Numbers that a 32-bit compiler could cut are guarded by the #if at the top. ---- */
/* A number and what follows it. */
static void gckpti_c_offset(gckpti_sink *k, size_t offset, const char *after)
{
    gckpti_print(k, offset == GCKPTI_NONE ? "SIZE_MAX" : "%z", offset);
    gckpti_print(k, "%s", after);
}

static void gckpti_c_words(gckpti_sink *k, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, (const char *)data + 4 * i, 4);
        gckpti_print(k, i % 8 ? " %zU," : "\n    %zU,", (size_t)word);
    }
}

static int gckpti_c_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static int gckpti_c_identifier(const char *s)
{
    int good = gckpti_c_letter(*s);
    for (; *s; s++)
        good = good && (gckpti_c_letter(*s) || (*s >= '0' && *s <= '9'));
    return good;
}

/* A row of this header, gckpti_op_<name>, not the user's variable <name>, be it a copy of one. */
static int gckpti_c_ours(const gckpt_op *op)
{
#define GCKPTI_IS(listed) || !strcmp(op->name, #listed)
    return op->flags & GCKPTI_OWN_ROW && (0 GCKPTI_OPS(GCKPTI_IS, GCKPTI_IS));
#undef GCKPTI_IS
}

/* Is it in the enum: an input or something to fetch? */
static int gckpti_c_listed(const gckpt_plan *p, int id)
{
    int listed = p->nodes[id].kind == GCKPTI_INPUT;
    for (size_t i = 0; i < p->pick_count && !listed; i++)
        listed = p->picks[i].id == id;
    return listed;
}

/* Its name with '_' for what an identifier cannot have. */
static void gckpti_c_label(const gckpt_plan *p, int id, char *label, size_t size)
{
    const gckpti_node *q = &p->nodes[id];
    const char *name =
        q->kind == GCKPTI_PARAM ? p->names + p->params[q->index].name : gckpti_node_name(p, id);
    gckpti_text t = { label, size - 1 };
    *label = 0;
    for (; *name; name++)
        gckpti_text_put(&t, gckpti_c_letter(*name) || (*name >= '0' && *name <= '9') ? name : "_",
                        1);
    if (t.at == label || (q->kind != GCKPTI_PARAM && q->name == GCKPTI_NONE))
        gckpti_text_add(&t, "_%i", id);
}

/* enum { NAME_tokens = 0, ... }; a second of the same name gets its id behind it. */
static void gckpti_c_enum(gckpti_sink *k, const gckpt_plan *p, const char *name)
{
    char label[128], other[128];
    int n = (int)p->node_count, first = 1;
    for (int id = 0; id < n; id++) {
        int taken = 0;
        if (!gckpti_c_listed(p, id))
            continue;
        gckpti_c_label(p, id, label, sizeof label);
        for (int i = 0; i < n && !taken; i++)
            if (i != id && gckpti_c_listed(p, i)) {
                gckpti_c_label(p, i, other, sizeof other);
                taken = !strcmp(label, other);
            }
        gckpti_print(k, "%s    %s_%s", first ? "enum {\n" : ",\n", name, label);
        gckpti_print(k, taken ? "__%i = %i" : " = %i", id, id);
        first = 0;
    }
    gckpti_print(k, first ? "" : "\n};\n");
}

/* The tensors, and the data of those that are constants. */
static void gckpti_c_nodes(gckpti_sink *k, const gckpt_plan *p, const char *name)
{
    for (size_t i = 0; i < p->node_count; i++)
        if (p->nodes[i].kind == GCKPTI_CONSTANT) {
            gckpti_print(k, "static const uint32_t gckpti_%s_data%z[] = {", name, i);
            gckpti_c_words(k, p->nodes[i].data, (size_t)gckpti_elements(&p->nodes[i].shape));
            gckpti_print(k, "\n};\n");
        }
    gckpti_print(k, "static const gckpti_node gckpti_%s_nodes[] = {\n", name);
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_node *q = &p->nodes[i];
        const gckpt_op *op = q->index < 0 ? NULL : q->op; /* what does not run is not linked */
        const char *prefix = op && gckpti_c_ours(op) ? "gckpti_op_" : "";
        gckpti_print(k, op ? "    { &%s%s, " : "    { NULL, ", prefix, op ? op->name : "");
        gckpti_print(k, q->kind == GCKPTI_CONSTANT ? "gckpti_%s_data%z" : "NULL", name, i);
        gckpti_print(k, ", %z, %z, ", q->attributes, q->attribute_bytes);
        gckpti_c_offset(k, q->name, ", ");
        gckpti_print(k, "%z, { %i, {", q->aux_bytes, q->shape.n);
        for (int d = 0; d < GCKPT_MAX_DIMS; d++)
            gckpti_print(k, d ? ", %I" : " %I", q->shape.d[d]);
        gckpti_print(k, " } }, %i, %i, %i, %i, {", q->base, q->kind, q->inputs, q->index);
        for (int d = 0; d < GCKPT_MAX_INPUTS; d++)
            gckpti_print(k, d ? ", %i" : " %i", q->in[d]);
        gckpti_print(k, " }, (gckpt_type)%i, %i, %i, { UINT64_C(%u), UINT64_C(%u) }, ",
                     (int)q->type, q->batchless, q->rounding, q->cost.forward, q->cost.backward);
        gckpti_c_offset(k, q->far_value, ", ");
        gckpti_c_offset(k, q->far_aux, ", ");
        gckpti_print(k, "UINT64_C(%u) },\n", q->hash);
    }
    gckpti_print(k, "};\n");
}

/* Begins and ends an array; an empty one, which C does not allow, is not there. */
static void gckpti_c_begin(gckpti_sink *k, const char *type, const char *name, const char *array,
                           size_t count)
{
    if (count)
        gckpti_print(k, "static const %s gckpti_%s_%s[] = {\n", type, name, array);
}

static void gckpti_c_end(gckpti_sink *k, size_t count) { gckpti_print(k, count ? "};\n" : ""); }

/* What else is an array of structs or offsets, in the order of the plan's fields. */
static void gckpti_c_arrays(gckpti_sink *k, const gckpt_plan *p, const char *name)
{
    gckpti_c_begin(k, "gckpti_plan_param", name, "params", p->param_count);
    for (size_t i = 0; i < p->param_count; i++) {
        const gckpti_plan_param *q = &p->params[i];
        gckpti_print(k, "    { %z, %I, %i, %i, %i, { %zU, %zU, %zU } },\n", q->name, q->elements,
                     q->trained, q->node, q->place, (size_t)q->init[0], (size_t)q->init[1],
                     (size_t)q->init[2]);
    }
    gckpti_c_end(k, p->param_count);
    gckpti_c_begin(k, "gckpti_ins", name, "list", p->length);
    for (size_t x = 0; x < p->length; x++) {
        const gckpti_ins *ins = &p->list[x];
        gckpti_print(k, "    { %i, %i, %i, %i, %i, %i, %z, %z },\n", ins->kind, ins->first,
                     ins->accumulate, ins->zero, ins->id, ins->uses, ins->live, ins->operands);
    }
    gckpti_c_end(k, p->length);
    gckpti_c_begin(k, "size_t", name, "operands", p->operand_count);
    for (size_t i = 0; i < p->operand_count; i++)
        gckpti_c_offset(k, p->operands[i], i % 8 == 7 ? ",\n" : ", ");
    gckpti_c_end(k, p->operand_count);
    gckpti_c_begin(k, "gckpti_plan_term", name, "terms", p->term_count);
    for (size_t i = 0; i < p->term_count; i++)
        gckpti_print(k, "    { %i, %zU, %i, { UINT64_C(%u), UINT64_C(%u) } },\n", p->terms[i].id,
                     (size_t)p->terms[i].weight, p->terms[i].regulariser, p->terms[i].built.forward,
                     p->terms[i].built.backward);
    gckpti_c_end(k, p->term_count);
    gckpti_c_begin(k, "gckpti_plan_pick", name, "picks", p->pick_count);
    for (size_t i = 0; i < p->pick_count; i++) {
        gckpti_print(k, "    { %i, %i, ", p->picks[i].id, p->picks[i].gradient);
        gckpti_c_offset(k, p->picks[i].offset, " },\n");
    }
    gckpti_c_end(k, p->pick_count);
    gckpti_c_begin(k, "gckpt_buffer", name, "lives", p->life_count);
    for (size_t i = 0; i < p->life_count; i++) {
        const gckpt_buffer *b = &p->lives[i];
        gckpti_print(k, "    { %i, %i, %z, %z, %i, (gckpt_buffer_kind)%i },\n", b->start, b->end,
                     b->offset, b->size, b->id, (int)b->kind);
    }
    gckpti_c_end(k, p->life_count);
}

/* Attributes, aligned for any of them, and names: at least one of each. */
static void gckpti_c_words_and_names(gckpti_sink *k, const gckpt_plan *p, const char *name)
{
    gckpti_print(k,
                 "static const union {\n    uint32_t words[%z];\n"
                 "    double number;\n    int64_t wide;\n} gckpti_%s_words = { {",
                 p->word_count + !p->word_count, name);
    gckpti_c_words(k, p->word_count ? (const void *)p->words : "\0\0\0",
                   p->word_count + !p->word_count);
    gckpti_print(k, "\n} };\nstatic const char gckpti_%s_names[] = {", name);
    for (size_t i = 0; i < p->name_bytes; i++) {
        unsigned u = (unsigned char)p->names[i];
        gckpti_print(k, i % 16 ? " '\\%i%i%i'," : "\n    '\\%i%i%i',", (int)(u >> 6),
                     (int)(u >> 3 & 7), (int)(u & 7));
    }
    gckpti_print(k, "%s\n};\n", p->name_bytes ? "" : "0");
}

/* The plan itself, field by field. */
static void gckpti_c_plan(gckpti_sink *k, const gckpt_plan *p, const char *name)
{
    const char *const arrays[] = {
        "nodes", "params", "list", "operands", "terms", "picks", "lives"
    };
    const size_t counts[] = { p->node_count,    p->param_count, p->length,
                              p->operand_count, p->term_count,  p->pick_count,
                              p->life_count,    p->word_count,  p->name_bytes };
    uint64_t work[2] = { 0, 0 }; /* of forwards: again, the first time */
    for (size_t x = 0; x < p->length; x++)
        if (p->list[x].kind == GCKPT_FORWARD)
            work[p->list[x].first] += p->nodes[p->list[x].id].cost.forward;
    gckpti_print(
        k,
        "extern const gckpt_plan %s;\nconst gckpt_plan %s = {\n"
        "    { %zU, GCKPT_OK, GCKPT_OK, { 0 } }, %i, %i,\n"
        "    { { NULL, NULL, NULL, 0 }, 0 }, NULL, UINT64_C(%u), UINT64_C(%u), { %i, %i, 0 },\n"
        "    (gckpt_mode)%i, (gckpt_optimiser)%i, %i, %i, %i, %i, %i, ",
        name, name, (size_t)GCKPTI_MAGIC, p->format, p->contract, p->hash, p->check,
        p->variant.form, p->variant.order, (int)p->mode, (int)p->optimiser, p->looped,
        p->update_in_backward, p->threads, p->made_for, p->state_slots);
    gckpti_print(k, "(gckpt_precision)%i, %I, %I, %z, %z, %z,\n    {", (int)p->precision, p->rows,
                 p->batch, p->alignment, p->arena, p->bound);
    for (int i = 0; i < GCKPT_BYTES_KINDS; i++)
        gckpti_print(k, i ? ", %z" : " %z", p->kind_bytes[i]);
    gckpti_print(
        k, " },\n    (double)UINT64_C(%u) / (double)UINT64_C(%u), UINT64_C(%u), UINT64_C(%u),\n",
        work[0], work[1] ? work[1] : 1, p->work, p->least_work);
    gckpti_print(k, "    UINT64_C(%u), UINT64_C(%u), %z, %z,\n   ", p->proven_work, p->offload_work,
                 p->proven_bytes, p->offloaded);
    for (int i = 0; i < 7; i++)
        gckpti_print(k, counts[i] ? " gckpti_%s_%s," : " NULL,", name, arrays[i]);
    gckpti_print(k, "\n    gckpti_%s_words.words, gckpti_%s_names,\n   ", name, name);
    for (int i = 0; i < 9; i++)
        gckpti_print(k, " %z,", counts[i]);
    gckpti_print(k, " %z, %i, %i, %i\n};\n", p->inputs, p->body, p->epilogue, p->mixer);
}

GCKPT_API gckpt_result gckpt_plan_c(const gckpt_plan *plan, const char *name, gckpt_write_fn write,
                                    void *user)
{
    gckpti_sink k = { write, user, 0, 0, 0, { 0 } };
    const char *wrong = NULL;
    size_t i = 0;
    if (!plan || !name || !write)
        return GCKPT_E_ARG;
    if (plan->made_for > GCKPTI_FOR_PLAIN)
        wrong = "#error \"plan: it was made for another backend than the processor\"\n";
    else if (!gckpti_c_identifier(name) || strlen(name) > 60)
        wrong = "#error \"plan: its name must be a C identifier of at most 60 letters\"\n";
    for (const gckpt_op *op; i < plan->node_count && !wrong; i += !wrong) {
        op = plan->nodes[i].index < 0 ? NULL : plan->nodes[i].op;
        if (op && !gckpti_c_ours(op) && !gckpti_c_identifier(op->name))
            wrong = "#error \"plan %s: the op of tensor %z must have the name of the C variable "
                    "that holds its row\"\n";
    }
    if (wrong) {
        gckpti_print(&k, wrong, name, i);
        gckpti_sink_flush(&k);
        return GCKPT_E_ARG;
    }
    gckpti_print(&k,
                 "/* Plan %s, printed by gckpt_plan_c: compile it in the file that holds the\n"
                 " * implementation of gradckpt.h, after the #include. Not to be edited. */\n"
                 "#if GCKPT_PLAN_FORMAT != %i || GCKPT_CONTRACT != %i\n#error \"plan %s: printed "
                 "by another version of gradckpt.h: print it again (gckpt_plan_c)\"\n#endif\n",
                 name, plan->format, plan->contract, name);
    gckpti_print(&k,
                 "#if SIZE_MAX / 16 < %z\n#error \"plan %s: too large for this machine's "
                 "addresses\"\n#endif\n",
                 gckpt_plan_bytes(plan), name);
    if (plan->made_for == GCKPTI_FOR_CPU)
        gckpti_print(&k,
                     "#ifdef GCKPT_NO_FAST\n#error \"plan %s: made for the fast kernels: make it "
                     "with gckpt_plan_desc.plain = 1\"\n#endif\n",
                     name);
    gckpti_c_enum(&k, plan, name);
    gckpti_c_nodes(&k, plan, name);
    gckpti_c_arrays(&k, plan, name);
    gckpti_c_words_and_names(&k, plan, name);
    gckpti_c_plan(&k, plan, name);
    return gckpti_sink_flush(&k);
}

/* =================================================================================================
 * >>fast: the kernels again for the processor's vectors, same bits
 *
 * gckpti_fast_<op>_forward and _backward return the bits of gckpti_<op>_forward and _backward,
 * their definition. Here work is cut into items (a row, a piece of a matrix, a head); what is done
 * with one is in kernels, compiled for each instruction set function by function and chosen when an
 * executor is made, so that a plain `cc -O2` is enough.
 * ============================================================================================== */
#if GCKPTI_HAS_FAST
/* GCKPTI_BF16: the compiler knows AVX512-BF16. */
#if GCKPTI_X86 &&                                                                                  \
    ((defined(__clang__) && __clang_major__ >= 9) || (!defined(__clang__) && __GNUC__ >= 10))
#define GCKPTI_BF16 1
#else
#define GCKPTI_BF16 0
#endif
/* c(i,j) = chain over p of a(i,p) b(p,j), p ascending: a(i,p) = a[i * a_row + p * a_step],
 * b(p,j) = b[p * b_step + j * b_col] (fast where one stride of each is 1), c(i,j) =
 * c[i * c_row + j]. A chain starts at from[i * from_row + j] (c itself for a gradient that
 * accumulates; the bias, with from_row 0), or at +0 if `from` is NULL. */
typedef struct gckpti_product {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t b_step, b_col;
    const float *from;
    int64_t from_row;
    float *c;
    int64_t c_row;
} gckpti_product;

/* Lines of a matrix to be fetched into L2, `pace` of them before each tile. */
typedef struct {
    const float *x;
    int64_t row, rows, width, at, pace;
} gckpti_fetch;

/* Links p.., columns j.. of b, within so many tiles. */
static inline gckpti_fetch gckpti_fetch_block(const gckpti_product *t, int64_t p, int64_t k,
                                              int64_t j, int64_t n, int64_t tiles)
{
    int rows = t->b_col == 1; /* its lines hold columns; else links */
    gckpti_fetch f = { t->b + p * t->b_step + j * t->b_col,
                       rows ? t->b_step : t->b_col,
                       rows ? k : n,
                       rows ? n : k,
                       0,
                       0 };
    if (!rows && t->b_step != 1)
        f.rows = 0;
    f.pace = 1 + f.rows * ((f.width + 15) / 16) / tiles;
    return f;
}

/* What is due before a tile. */
static inline void gckpti_fetch_some(gckpti_fetch *f)
{
    for (int64_t n = f->rows > 0 ? f->pace : 0; n > 0; n--) {
        __builtin_prefetch(f->x + f->at, 0, 2);
        f->at += 16;
        if (f->at >= f->width) {
            f->at = 0, f->x += f->row;
            if (--f->rows == 0)
                break;
        }
    }
}

/* A row and what is taken over it, by lanes as in numerics. */
enum {
    GCKPTI_SUM,
    GCKPTI_TOP,
    GCKPTI_DOT,
    GCKPTI_PRODUCTS,
    GCKPTI_SQUARES,
    GCKPTI_EXP,
    GCKPTI_NORM
};
typedef struct {
    int kind; /* SUM: of x - first; TOP: the greatest x; DOT, PRODUCTS: x y, in one link or rounded
                 first; with d = (x - first) - mean, SQUARES: d^2, NORM: d rstd y [z];
                 EXP: exp(x - mean) */
    const float *x, *y, *z;
    float *out; /* EXP: where they go, or NULL */
    float first, mean, rstd;
} gckpti_row;

typedef struct gckpti_columns {
    const gckpt_call *call;
    float *gain, *bias;
    float *gain_low, *bias_low;
} gckpti_columns;

enum { /* of a square that a diagonal cuts (query i sees keys to i + d), a product needs of row i: */
       GCKPTI_BLOCK = GCKPTI_KEY_TILE,
       GCKPTI_LINKS_TO,    /* links 0..i + d */
       GCKPTI_LINKS_FROM,  /* links from i - d on */
       GCKPTI_COLUMNS_FROM /* columns from i - d on */
};

typedef struct gckpti_heads { /* an attention call's */
    const gckpt_call *call;
    int64_t t, s, c, d, wide, heads, blocks;
    gckpti_sight sight;
    int mixed;
    float scale;
} gckpti_heads;

typedef struct {
    int64_t a_row, a_step, b_step, c_row;
    int edge, fresh;
    int64_t diagonal;
} gckpti_band;

/* How a piece of c is gone over: in blocks of b, `wide` columns and `deep` links, that L2 holds. */
typedef struct {
    int64_t deep, wide;
    int in_place; /* full vectors of b are read where they are, not packed */
    int strips;   /* a is packed, GCKPTI_STRIP rows at a time */
} gckpti_blocking;

/* What a tile works on: some rows and vectors of c that stay in registers while they take k links.
 * As gckpti_product, but b's columns lie side by side. */
typedef struct {
    int64_t k;
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t b_step;
    const float *from;
    int64_t from_row;
    float *c;
    int64_t c_row;
    int64_t last;      /* columns in the last vector */
    const float *next; /* the tile of c to come: fetched meanwhile */
} gckpti_tile;

/* d[q * width + i]: links 2 q (upper half) and 2 q + 1 (lower half) of lane i, from x[at]; 0 for
 * lanes from n on. A last link without a pair gets `odd`: -0 in a and +0 in b change no chain, not
 * even one at -0. */
static void gckpti_mixed_pack(const gckpti_factor *x, int64_t at, int64_t n, int64_t k,
                              uint16_t odd, uint32_t *d, int64_t width)
{
    for (int64_t p = 0; p < k; p += 2, d += width)
        for (int64_t i = 0; i < width; i++) {
            int64_t first = at + i * x->row + p * x->step;
            d[i] = 0;
            if (i < n)
                d[i] = (uint32_t)gckpti_factor_at(x, first) << 16 |
                       (p + 1 < k ? gckpti_factor_at(x, first + x->step) : odd);
        }
}

/* Of bf16 plans. pack: as gckpti_mixed_pack. tile: 8 rows of c, `width` columns (16, 32 or 48), +=
 * the chains of a and b, packed; NULL: gckpti_mixed_plain. */
typedef struct gckpti_mixed_kernels {
    void (*tile)(int64_t pairs, const uint32_t *a, int64_t a_step, const uint32_t *b, int64_t width,
                 float *c, int64_t c_row);
    void (*pack)(const gckpti_factor *x, int64_t at, int64_t n, int64_t k, uint16_t odd,
                 uint32_t *d, int64_t width);
    void (*widen)(const uint16_t *x, float *y, int64_t n);
    void (*narrow)(const float *x, uint16_t *y, int64_t n);
} gckpti_mixed_kernels;

static const gckpti_kernels *gckpti_kernels_of(const gckpt_call *call)
{
    return (const gckpti_kernels *)call->kernels;
}

/* What the backward of a norm adds up over a row: u h. */
static gckpti_row gckpti_norm_row(const gckpt_call *call, int64_t r)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const float *aux = (const float *)call->aux + (o->center ? 3 * r : r);
    int64_t at = r * gckpti_last(&call->shape);
    gckpti_row row = { GCKPTI_NORM, NULL, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    row.x = call->in[0].data + at;
    row.y = call->grad_out + at;
    row.z = o->gain ? call->in[o->gain].data : NULL;
    if (o->center) {
        row.first = *aux++;
        row.mean = *aux++;
    }
    row.rstd = *aux;
    return row;
}

/* ---- items to workers: one takes a few at a time as long as there are any, so that it does no
 * harm when a thread comes late or loses its core. A worker's number says which scratch it has. */
typedef struct {
    void (*body)(void *context, int64_t item, int64_t worker);
    void *context;
    int64_t n, next, block;
} gckpti_items;

/* What a worker does: it claims `block` items at a time until none is left. */
static void gckpti_work_on(void *context, int64_t worker)
{
    gckpti_items *s = (gckpti_items *)context;
    for (;;) {
        int64_t i = __atomic_fetch_add(&s->next, s->block, __ATOMIC_RELAXED);
        int64_t end = i + gckpti_min(s->n - i, s->block);
        if (i >= s->n)
            return;
        for (; i < end; i++)
            s->body(s->context, i, worker);
    }
}

/* Items that need no scratch and nothing but the call: item(call, 0..n-1). */
typedef struct {
    const gckpt_call *call;
    void (*item)(const gckpt_call *call, int64_t i);
} gckpti_call_items;

static void gckpti_call_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_call_items *s = (const gckpti_call_items *)context;
    (void)worker;
    s->item(s->call, i);
}

static void gckpti_each(const gckpt_call *call, int64_t n, int64_t work,
                        void (*item)(const gckpt_call *call, int64_t i))
{
    gckpti_call_items s = { call, item };
    gckpt_parallel(call, n, work, gckpti_call_item, &s);
}

static void gckpti_each_row(const gckpt_call *call, void (*row)(const gckpt_call *call, int64_t r))
{
    gckpti_each(call, gckpti_rows(&call->shape), 16 * gckpti_last(&call->shape), row);
}

/* ---- linear, matmul: `batch` products, each cut into pieces of c ---- */
typedef struct {
    const gckpt_call *call;
    gckpti_product t;
    int64_t batch, a_next, b_next, c_next; /* product i begins at a + i * a_next and so on */
    int64_t rows, cols, down, across;      /* of a piece; pieces below and beside each other */
    float *pack;
    int64_t room; /* floats of it that a worker has; 0: its stack is enough */
} gckpti_products;

#ifdef GCKPT_OPENBLAS
/* gckpti_product_piece by OpenBLAS, whose sums have an order of their own (manual, 5). */
static void gckpti_openblas_piece(const gckpti_product *t, int64_t i0, int64_t i1, int64_t j0,
                                  int64_t j1)
{
    int rows = (int)(i1 - i0), cols = (int)(j1 - j0);
    int a_next = (int)(t->a_step == 1 ? t->a_row : t->a_step);
    int b_next = (int)(t->b_col == 1 ? t->b_step : t->b_col);
    float *c = t->c + i0 * t->c_row + j0;
    if (t->a_step == 1 && t->a_row < t->k) /* a single row: what comes next is not read, but */
        a_next = (int)t->k;                /* sgemm refuses less */
    if (t->b_col == 1 && b_next < cols)
        b_next = cols;
    for (int64_t i = i0; t->from && t->from != t->c && i < i1; i++)
        memcpy(t->c + i * t->c_row + j0, t->from + i * t->from_row + j0,
               (size_t)cols * sizeof(float));
    cblas_sgemm(CblasRowMajor, t->a_step == 1 ? CblasNoTrans : CblasTrans,
                t->b_col == 1 ? CblasNoTrans : CblasTrans, rows, cols, (int)t->k, 1.0f,
                t->a + i0 * t->a_row, a_next, t->b + j0 * t->b_col, b_next, t->from ? 1.0f : 0.0f,
                c, (int)t->c_row);
}
#endif

/* Piece i of all products: from its number to its rows and columns. */
static void gckpti_products_piece(const gckpti_products *s, int64_t i, float *pack, int64_t room)
{
    gckpti_product t = s->t;
    int64_t at = i / (s->down * s->across), i0 = i / s->across % s->down * s->rows;
    int64_t j0 = i % s->across * s->cols;
    t.a += at * s->a_next, t.b += at * s->b_next, t.c += at * s->c_next;
    if (t.from && t.from_row)
        t.from += at * s->c_next;
    int64_t i1 = i0 + gckpti_min(t.m - i0, s->rows), j1 = j0 + gckpti_min(t.n - j0, s->cols);
#ifdef GCKPT_OPENBLAS
    if (t.m <= INT32_MAX && t.n <= INT32_MAX && t.k <= INT32_MAX && t.k > 0 &&
        (t.a_step == 1 || t.a_row == 1) && (t.b_step == 1 || t.b_col == 1)) {
        gckpti_openblas_piece(&t, i0, i1, j0, j1);
        return;
    }
#endif
    gckpti_kernels_of(s->call)->product_piece(&t, i0, i1, j0, j1, pack, room);
}

static void gckpti_products_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_products *s = (const gckpti_products *)context;
    gckpti_products_piece(s, i, s->pack + worker * s->room, s->room);
}

static void gckpti_products_small_item(void *context, int64_t i, int64_t worker)
{
    float pack[GCKPTI_SMALL_ROOM] __attribute__((aligned(64)));
    (void)worker;
    gckpti_products_piece((const gckpti_products *)context, i, pack, GCKPTI_SMALL_ROOM);
}

/* Cuts c into pieces, as square as may be, since each fetches its part of a and b: 4 for each
 * thread, so that one that loses its core delays the others little; 1 if it is small. A b that must
 * be transposed is cut by columns first, lest two pieces do it again; and the part of a must stay
 * in a cache while a piece goes over it for every GCKPTI_NC columns. */
static void gckpti_products_cut(gckpti_products *s)
{
    enum { LOW = 256, HIGH = 1024 };
    const gckpti_product *t = &s->t;
    int64_t narrow = t->m == 1 ? 512 : 2 * GCKPTI_PANEL; /* a row alone: runs of b that are long */
    int small = t->m * t->n * t->k < 65536;
    int64_t threads = s->call->threads, pieces = small || threads < 2 ? 1 : 4 * threads / s->batch;
    s->rows = t->m, s->cols = t->n;
    for (int64_t have = 1; have < pieces || (s->rows > HIGH && !small); have *= 2)
        if (have < pieces && s->cols > narrow &&
            (t->b_col != 1 || s->cols >= s->rows || s->rows <= LOW))
            s->cols = gckpti_multiple((s->cols + 1) / 2, GCKPTI_PANEL);
        else if (s->rows > 4 * GCKPTI_STRIP)
            s->rows = gckpti_multiple((s->rows + 1) / 2, GCKPTI_STRIP);
    s->across = (t->n + s->cols - 1) / s->cols;
    s->down = (t->m + s->rows - 1) / s->rows;
}

/* `batch` products t, the next one's a and b being a_next and b_next further on. pack:
 * gckpti_product_room(m, n, k) floats a thread. */
static void gckpti_products_run(const gckpt_call *call, const gckpti_product *t, int64_t batch,
                                int64_t a_next, int64_t b_next, float *pack)
{
    gckpti_products s;
    memset(&s, 0, sizeof s);
    s.call = call, s.t = *t, s.batch = batch;
    s.a_next = a_next, s.b_next = b_next, s.c_next = t->m * t->c_row;
    s.pack = pack, s.room = gckpti_product_room(t->m, t->n, t->k);
    gckpti_products_cut(&s);
    gckpt_parallel(call, batch * s.down * s.across, s.rows * s.cols * t->k,
                   s.room ? gckpti_products_item : gckpti_products_small_item, &s);
}

/* What gckpti_fp32_plain does. */
static void gckpti_fp32_fast(const gckpt_call *call, const gckpti_factors *f)
{
    const gckpti_factor *a = &f->a, *b = &f->b;
    const float *from = f->accumulate ? f->c : f->start;
    int64_t from_row = f->accumulate ? f->n : 0;
    gckpti_product t = { f->m,    f->n,   f->k, a->f32,   a->row, a->step, b->f32,
                         b->step, b->row, from, from_row, f->c,   f->n };
    void *pack = f->words;
    gckpti_products_run(call, &t, f->batch, f->a.next, f->b.next, (float *)pack);
}

/* ---- products of bf16 plans: b is packed for all, then an item is up to 32 rows and 288 columns
 * of c. 256 links at a time, a is packed, too; meanwhile the chains rest in `rest`. */
enum { GCKPTI_MIXED_LINKS = 256, GCKPTI_MIXED_COLS = 288, GCKPTI_MIXED_DOWN = 32 };
typedef struct {
    const gckpti_mixed_kernels *kernels;
    const gckpti_factors *t;
    int64_t words, packs; /* of b, a matrix; items to pack them */
    int64_t cols, across, down;
} gckpti_mixed_job;

/* Of b: a panel, or where columns lie side by side 16 links of all panels. */
static void gckpti_mixed_pack_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_mixed_job *s = (const gckpti_mixed_job *)context;
    const gckpti_factors *t = s->t;
    int64_t matrix = i / s->packs, at = i % s->packs, pairs = (t->k + 1) / 2;
    int64_t j0 = t->b.row == 1 ? 0 : at * GCKPTI_PANEL, p = t->b.row == 1 ? 16 * at : 0;
    int64_t j1 = t->b.row == 1 ? t->n : j0 + gckpti_min(t->n - j0, GCKPTI_PANEL);
    int64_t k = t->b.row == 1 ? gckpti_min(t->k - p, 16) : t->k;
    (void)worker;
    for (int64_t j = j0, n; j < j1; j += n) {
        n = gckpti_min(j1 - j, GCKPTI_PANEL);
        s->kernels->pack(&t->b, matrix * t->b.next + j * t->b.row + p * t->b.step, n, k, 0,
                         t->words + matrix * s->words + j * pairs + p / 2 * gckpti_multiple(n, 16),
                         gckpti_multiple(n, 16));
    }
}

/* Rows of c from `at` on: into rest, where their chains start, or back at the end. */
static void gckpti_mixed_rest(const gckpti_mixed_job *s, int64_t at, int64_t j, int64_t n,
                              float *rest, int end)
{
    const gckpti_factors *t = s->t;
    size_t bytes = (size_t)n * sizeof *rest;
    if (end && t->c)
        memcpy(t->c + at, rest, bytes);
    else if (end)
        s->kernels->narrow(rest, t->c_bf16 + at, n);
    else if (t->accumulate && t->c)
        memcpy(rest, t->c + at, bytes);
    else if (t->accumulate)
        s->kernels->widen(t->c_bf16 + at, rest, n);
    else if (t->start)
        memcpy(rest, t->start + j, bytes);
}

/* Chains of such a piece of c go on in `rest` over the packed a and b, 256 links at a time. */
static void gckpti_mixed_item(void *context, int64_t item, int64_t worker)
{
    const gckpti_mixed_job *s = (const gckpti_mixed_job *)context;
    const gckpti_factors *t = s->t;
    uint32_t packed[GCKPTI_MIXED_DOWN * GCKPTI_MIXED_LINKS / 2 + 16];
    float rest[GCKPTI_MIXED_DOWN * GCKPTI_MIXED_COLS];
    int64_t matrix = item / (s->down * s->across), i = item % s->down * GCKPTI_MIXED_DOWN;
    int64_t j0 = item / s->down % s->across * s->cols, cols = gckpti_min(t->n - j0, s->cols);
    int64_t m = gckpti_min(t->m - i, GCKPTI_MIXED_DOWN), at = (matrix * t->m + i) * t->n + j0;
    int64_t wide = gckpti_multiple(cols, 16), high = gckpti_multiple(m, 8), pairs = (t->k + 1) / 2;
    const uint32_t *b = t->words + matrix * s->words + j0 * pairs;
    (void)worker;
    memset(rest, 0, (size_t)(high * wide) * sizeof *rest);
    for (int64_t r = 0; r < m; r++)
        gckpti_mixed_rest(s, at + r * t->n, j0, cols, rest + r * wide, 0);
    for (int64_t p = 0, k; p < t->k; p += k) {
        k = gckpti_min(t->k - p, GCKPTI_MIXED_LINKS);
        s->kernels->pack(&t->a, matrix * t->a.next + i * t->a.row + p * t->a.step, m, k, 0x8000,
                         packed, high);
        for (int64_t j = 0; j < wide; j += GCKPTI_PANEL) {
            int64_t width = gckpti_min(wide - j, GCKPTI_PANEL);
            for (int64_t r = 0; r < high; r += 8)
                s->kernels->tile((k + 1) / 2, packed + r, high, b + j * pairs + p / 2 * width,
                                 width, rest + r * wide + j, wide);
        }
    }
    for (int64_t r = 0; r < m; r++)
        gckpti_mixed_rest(s, at + r * t->n, j0, cols, rest + r * wide, 1);
}

/* As few items across as may be, of equal width; where there is no tile for bf16, plainly. */
static void gckpti_mixed_fast(const gckpt_call *call, const gckpti_factors *t)
{
    gckpti_mixed_job s = {
        gckpti_kernels_of(call)->mixed, t, gckpti_words(t->n, t->k), 0, 0, 0, 0
    };
    int64_t unit = GCKPTI_PANEL, most = GCKPTI_MIXED_COLS;
    if (!s.kernels->tile) {
        gckpti_mixed_plain(call, t);
        return;
    }
    s.across = (t->n + most - 1) / most;
    s.cols = gckpti_multiple((t->n + s.across - 1) / s.across, unit);
    s.across = (t->n + s.cols - 1) / s.cols;
    s.down = (t->m + GCKPTI_MIXED_DOWN - 1) / GCKPTI_MIXED_DOWN;
    s.packs = t->b.row == 1 ? (t->k + 15) / 16 : (t->n + unit - 1) / unit;
    gckpt_parallel(call, t->batch * s.packs, t->k * t->n / s.packs * 4, gckpti_mixed_pack_item, &s);
    gckpt_parallel(call, t->batch * s.down * s.across, GCKPTI_MIXED_DOWN * s.cols * t->k,
                   gckpti_mixed_item, &s);
}

static gckpti_product_run gckpti_fast_products(const gckpt_call *call)
{
    return call->precision == GCKPT_FP32 ? gckpti_fp32_fast : gckpti_mixed_fast;
}

static void gckpti_fast_matmul_forward(const gckpt_call *call)
{
    gckpti_linear_out(call, gckpti_fast_products(call));
}

static void gckpti_fast_linear_forward(const gckpt_call *call) { gckpti_fast_matmul_forward(call); }

static void gckpti_fast_matmul_backward(const gckpt_call *call)
{
    gckpti_linear_gradients(call, gckpti_fast_products(call));
}

/* ---- elementwise ops: an item is a piece of 4096 elements, which is a shorter call ---- */
enum {
    GCKPTI_RELU,
    GCKPTI_GELU,
    GCKPTI_GELU_ERF,
    GCKPTI_SILU,
    GCKPTI_TANH,
    GCKPTI_SIGMOID,
    GCKPTI_ADD, /* from here on there are two inputs */
    GCKPTI_SUB,
    GCKPTI_MUL,
    GCKPTI_ELEMENTS = 4096
};

typedef struct {
    const gckpt_call *call;
    void (*kernel)(const gckpt_call *piece, int kind);
    int kind;
} gckpti_pieces;

/* The kernel sees a call of one axis, with pointers to where the piece begins. */
static void gckpti_piece_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_pieces *s = (const gckpti_pieces *)context;
    int64_t at = i * GCKPTI_ELEMENTS, n = gckpti_elements(&s->call->shape) - at;
    gckpt_call c = *s->call;
    (void)worker;
    c.shape = gckpt_shape1(gckpti_min(n, GCKPTI_ELEMENTS));
    c.out = c.out ? c.out + at : NULL;
    c.grad_out = c.grad_out ? c.grad_out + at : NULL;
    for (int k = 0; k < c.inputs; k++) {
        gckpt_arg *in = &c.in[k];
        in->shape = c.shape;
        in->data = in->data ? in->data + at : NULL;
        in->grad = in->grad ? in->grad + at : NULL;
    }
    s->kernel(&c, s->kind);
}

/* Runs the kernel on pieces and returns 1; 0: an input is repeated (broadcasting), or its gradient
 * a sum over rows. */
static int gckpti_elementwise(const gckpt_call *call, int kind,
                              void (*kernel)(const gckpt_call *piece, int kind))
{
    gckpti_pieces s = { call, kernel, kind };
    int64_t n = gckpti_elements(&call->shape), work = kind < GCKPTI_ADD ? 16 : 4;
    for (int i = 0; i < call->inputs; i++)
        if (gckpti_elements(&call->in[i].shape) != n || call->in[i].low)
            return 0;
    gckpt_parallel(call, (n + GCKPTI_ELEMENTS - 1) / GCKPTI_ELEMENTS, work * GCKPTI_ELEMENTS,
                   gckpti_piece_item, &s);
    return 1;
}

static void gckpti_columns_run(const gckpt_call *call, int gain, int bias);

/* Repetitions of whole rows, as of a table of positions, are columns of a bias. */
static void gckpti_add_backward_repeated(const gckpt_call *call)
{
    gckpt_call plain = *call;
    for (int i = 0; i < 2; i++) {
        gckpti_walk w;
        gckpt_call c = *call;
        int64_t n = gckpti_elements(&call->in[i].shape);
        gckpti_broadcast_walk(&w, call);
        if (!call->in[i].grad || !call->in[i].low || w.size[0] != n || w.step[i][0] != 1)
            continue;
        c.shape = gckpt_shape2(gckpti_elements(&call->shape) / n, n);
        c.in[1] = call->in[i];
        gckpti_columns_run(&c, 0, 1);
        plain.in[i].grad = NULL;
    }
    gckpti_add_backward(&plain);
}

#define GCKPTI_ELEMENTWISE(name, kind, backward)                                                   \
    static void gckpti_fast_##name##_forward(const gckpt_call *call)                               \
    {                                                                                              \
        if (!gckpti_elementwise(call, kind, gckpti_kernels_of(call)->elementwise_forward))         \
            gckpti_##name##_forward(call);                                                         \
    }                                                                                              \
    static void gckpti_fast_##name##_backward(const gckpt_call *call)                              \
    {                                                                                              \
        if (!gckpti_elementwise(call, kind, gckpti_kernels_of(call)->elementwise_backward))        \
            backward(call);                                                                        \
    }
GCKPTI_ELEMENTWISE(relu, GCKPTI_RELU, gckpti_relu_backward)
GCKPTI_ELEMENTWISE(gelu, GCKPTI_GELU, gckpti_gelu_backward)
GCKPTI_ELEMENTWISE(gelu_erf, GCKPTI_GELU_ERF, gckpti_gelu_erf_backward)
GCKPTI_ELEMENTWISE(silu, GCKPTI_SILU, gckpti_silu_backward)
GCKPTI_ELEMENTWISE(tanh, GCKPTI_TANH, gckpti_tanh_backward)
GCKPTI_ELEMENTWISE(sigmoid, GCKPTI_SIGMOID, gckpti_sigmoid_backward)
GCKPTI_ELEMENTWISE(add, GCKPTI_ADD, gckpti_add_backward_repeated)
GCKPTI_ELEMENTWISE(sub, GCKPTI_SUB, gckpti_sub_backward)
GCKPTI_ELEMENTWISE(mul, GCKPTI_MUL, gckpti_mul_backward)
#undef GCKPTI_ELEMENTWISE

/* ---- embed: forward an item is a row; backward, 64 rows of the table to be cleared, then 64
 * columns of all rows, so that each element's sum keeps its order ---- */
enum { GCKPTI_EMBED_ITEM = 64 };

static void gckpti_embed_row(const gckpt_call *call, int64_t r)
{
    int64_t n = gckpti_last(&call->shape);
    memcpy(call->out + r * n, call->in[0].data + call->in[1].index[r] * n,
           (size_t)n * sizeof(float));
}

static void gckpti_embed_clear(const gckpt_call *call, int64_t i)
{
    int64_t n = gckpti_last(&call->shape), first = i * GCKPTI_EMBED_ITEM;
    int64_t rows = gckpti_min(call->in[0].shape.d[0] - first, GCKPTI_EMBED_ITEM);
    gckpti_start(call->in[0].grad + first * n, rows * n, 0);
}

static void gckpti_embed_columns(const gckpt_call *call, int64_t i)
{
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    int64_t j = i * GCKPTI_EMBED_ITEM, width = gckpti_min(n - j, GCKPTI_EMBED_ITEM);
    for (int64_t r = 0; r < rows; r++)
        gckpti_kernels_of(call)->add(call->in[0].grad + call->in[1].index[r] * n + j,
                                     call->grad_out + r * n + j, width);
}

static void gckpti_fast_embed_forward(const gckpt_call *call)
{
    if (call->out_bf16)
        gckpti_embed_forward(call);
    else
        gckpti_each(call, gckpti_rows(&call->shape), gckpti_last(&call->shape), gckpti_embed_row);
}

/* A table that is not added to is cleared first, in items of its own. */
static void gckpti_fast_embed_backward(const gckpt_call *call)
{
    const gckpt_arg *table = &call->in[0];
    int64_t n = gckpti_last(&call->shape), work = GCKPTI_EMBED_ITEM * n;
    if (!table->grad)
        return;
    if (call->grad_out_bf16) {
        gckpti_embed_backward(call);
        return;
    }
    if (!table->accumulate)
        gckpti_each(call, (table->shape.d[0] + GCKPTI_EMBED_ITEM - 1) / GCKPTI_EMBED_ITEM, work,
                    gckpti_embed_clear);
    work = 4 * gckpti_rows(&call->shape) * GCKPTI_EMBED_ITEM;
    gckpti_each(call, (n + GCKPTI_EMBED_ITEM - 1) / GCKPTI_EMBED_ITEM, work, gckpti_embed_columns);
}

/* ---- softmax: an item is a row ---- */
static void gckpti_fast_softmax_forward(const gckpt_call *call)
{
    gckpti_each_row(call, gckpti_kernels_of(call)->softmax_forward);
}

static void gckpti_fast_softmax_backward(const gckpt_call *call)
{
    if (call->in[0].grad)
        gckpti_each_row(call, gckpti_kernels_of(call)->softmax_backward);
}

/* ---- sums over rows: bias += g, gain += g * normalised x; an item is 64 columns ---- */
enum { GCKPTI_COLUMNS = 64 };

static void gckpti_columns_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_columns *s = (const gckpti_columns *)context;
    int64_t n = gckpti_last(&s->call->shape), first = i * GCKPTI_COLUMNS;
    (void)worker;
    gckpti_kernels_of(s->call)->columns(s, first, first + gckpti_min(n - first, GCKPTI_COLUMNS));
}

/* gain, bias: numbers of the inputs, 0 for none. A single row may have no low parts: then they stay
 * what they are, 0, in nobody's memory. */
static void gckpti_columns_run(const gckpt_call *call, int gain, int bias)
{
    const gckpt_arg *g = &call->in[gain], *b = &call->in[bias];
    gckpti_columns s = { call, NULL, NULL, NULL, NULL };
    if (gain)
        s.gain = g->grad, s.gain_low = g->low;
    if (bias)
        s.bias = b->grad, s.bias_low = b->low;
    int64_t n = gckpti_last(&call->shape), items = (n + GCKPTI_COLUMNS - 1) / GCKPTI_COLUMNS;
    if (s.gain)
        gckpti_start(s.gain, n, g->accumulate);
    if (s.bias)
        gckpti_start(s.bias, n, b->accumulate);
    if (s.gain || s.bias)
        gckpt_parallel(call, items, gckpti_rows(&call->shape) * GCKPTI_COLUMNS, gckpti_columns_item,
                       &s);
}

static void gckpti_fast_linear_backward(const gckpt_call *call)
{
    gckpti_fast_matmul_backward(call);
    gckpti_columns_run(call, 0, call->inputs == 3 ? 2 : 0);
}

static void gckpti_fast_layernorm_forward(const gckpt_call *call)
{
    gckpti_each_row(call, gckpti_kernels_of(call)->norm_forward);
}

static void gckpti_fast_layernorm_backward(const gckpt_call *call)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    if (call->in[0].grad)
        gckpti_each_row(call, gckpti_kernels_of(call)->norm_backward);
    gckpti_columns_run(call, o->gain, o->bias);
}

static void gckpti_fast_rmsnorm_forward(const gckpt_call *call)
{
    gckpti_fast_layernorm_forward(call);
}

static void gckpti_fast_rmsnorm_backward(const gckpt_call *call)
{
    gckpti_fast_layernorm_backward(call);
}

/* ---- attention: an item is a block of queries of one head (forward), a head (backward) ---- */
static gckpti_heads gckpti_heads_of(const gckpt_call *call)
{
    const gckpti_attention *o = (const gckpti_attention *)call->attributes;
    int64_t t = call->shape.d[1], c = call->shape.d[2], d = c / o->heads;
    gckpti_heads h = { call,
                       t,
                       call->in[1].shape.d[1],
                       c,
                       d,
                       gckpti_attention_wide(d),
                       o->heads,
                       (t + GCKPTI_BLOCK - 1) / GCKPTI_BLOCK,
                       gckpti_attention_keys(call),
                       call->precision != GCKPT_FP32,
                       1.0f / gckpti_sqrt((float)d) };
    return h;
}

/* The vector kernels of a bf16 plan want factors that are bf16 already, and a processor that can
 * flush subnormals as x86 does; else the plain ones run, an item being a head. */
static int gckpti_attention_is_fast(const gckpt_call *call)
{
    unsigned factors = GCKPT_IN(0) | GCKPT_IN(1) | GCKPT_IN(2) | (call->grad_out ? GCKPT_OUT : 0);
    return call->precision == GCKPT_FP32 ||
           (gckpti_kernels_of(call)->mixed->tile && (call->rounded & factors) == factors);
}

static void gckpti_attention_plain_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_heads *h = (const gckpti_heads *)context;
    (void)worker;
    (h->call->grad_out ? gckpti_attention_gradients : gckpti_attention_queries)(h->call, i * h->t,
                                                                                (i + 1) * h->t);
}

static void gckpti_attention_forward_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_heads *h = (const gckpti_heads *)context;
    float *room = (float *)h->call->work + worker * gckpti_attention_room(h->d, 0);
    int64_t block = h->blocks - 1 - i % h->blocks; /* causal: those with most work first */
    i /= h->blocks;
    gckpti_kernels_of(h->call)->attention_forward(h, i / h->heads, i % h->heads,
                                                  block * GCKPTI_BLOCK, room);
}

static void gckpti_fast_attention_forward(const gckpt_call *call)
{
    gckpti_heads h = gckpti_heads_of(call);
    if (gckpti_attention_is_fast(call))
        gckpt_parallel(call, call->shape.d[0] * h.heads * h.blocks,
                       gckpti_min(h.t, GCKPTI_BLOCK) * h.sight.keys * h.d,
                       gckpti_attention_forward_item, &h);
    else
        gckpt_parallel(call, call->shape.d[0] * h.heads, 16 * h.t * h.sight.keys * h.d,
                       gckpti_attention_plain_item, &h);
}

static void gckpti_attention_backward_item(void *context, int64_t i, int64_t worker)
{
    const gckpti_heads *h = (const gckpti_heads *)context;
    float *room = (float *)h->call->work + worker * gckpti_attention_room(h->d, 1);
    gckpti_kernels_of(h->call)->attention_backward(h, i / h->heads, i % h->heads, room);
}

static void gckpti_fast_attention_backward(const gckpt_call *call)
{
    gckpti_heads h = gckpti_heads_of(call);
    int fast = gckpti_attention_is_fast(call);
    if (!fast)
        gckpti_attention_start(call);
    gckpt_parallel(call, call->shape.d[0] * h.heads, h.t * h.s * h.d,
                   fast ? gckpti_attention_backward_item : gckpti_attention_plain_item, &h);
}

/* ---- cross_entropy, linear_cross_entropy: an item is a row (of products, as in matmul) ---- */
static gckpti_loss_kernels gckpti_fast_loss(const gckpt_call *call)
{
    const gckpti_kernels *k = gckpti_kernels_of(call);
    gckpti_loss_kernels by = { gckpti_fast_products(call), gckpt_parallel,  k->online,
                               k->classes_backward,        k->mixed->widen, k->mixed->narrow };
    return by;
}

static void gckpti_fast_cross_entropy_forward(const gckpt_call *call)
{
    gckpti_cross_entropy_by(call, gckpti_fast_loss(call), 0);
}

static void gckpti_fast_cross_entropy_backward(const gckpt_call *call)
{
    gckpti_cross_entropy_by(call, gckpti_fast_loss(call), 1);
}

static void gckpti_fast_linear_cross_entropy_forward(const gckpt_call *call)
{
    gckpti_linear_cross_entropy_by(call, gckpti_fast_loss(call), 0);
}

static void gckpti_fast_linear_cross_entropy_backward(const gckpt_call *call)
{
    gckpti_linear_cross_entropy_by(call, gckpti_fast_loss(call), 1);
}

/* ---- one set of kernels for each instruction set: kernels, at the end of this file ---- */
#ifndef GRADCKPT_FILE
#define GRADCKPT_FILE "gradckpt.h"
#endif
#ifdef __has_include
#if !__has_include(GRADCKPT_FILE)
#error "gradckpt.h includes itself: define GRADCKPT_FILE as the name it has here, or GCKPT_NO_FAST"
#endif
#endif
#if GCKPTI_FMA
#define GCKPTI_ISA 0
#include GRADCKPT_FILE
#endif
#ifdef __aarch64__
#define GCKPTI_ISA 1
#include GRADCKPT_FILE
#endif
#if GCKPTI_X86
#define GCKPTI_ISA 2
#include GRADCKPT_FILE
#define GCKPTI_ISA 3
#include GRADCKPT_FILE
#endif

/* A tile's chains, one of them through subnormals: bf16 instructions that round, order or flush in
 * another way would show here. */
static int gckpti_mixed_agrees(const gckpti_mixed_kernels *kernels)
{
    static const uint16_t numbers[8] = { 0x3f81, 0xbf83, 0x0081, 0x3f00,
                                         0x3dcd, 0x8085, 0x4049, 0xc2f7 };
    uint32_t a[8 * 8], b[8 * 16];
    float c[8 * 16];
    int same = 1;
    for (int p = 0; p < 8; p++)
        for (int i = 0; i < 16; i++) {
            b[16 * p + i] = (uint32_t)numbers[(3 * p + i) % 8] << 16 | numbers[(p + 5 * i) % 8];
            a[8 * p + i % 8] = (uint32_t)numbers[(p + i) % 8] << 16 | numbers[(5 * p + i) % 8];
            c[16 * p + i] = 1.0f / (float)(p - 20 * i - 1);
        }
    if (!kernels->tile)
        return 1;
    for (int i = 0; i < 16; i++)
        c[i] = 1e-38f;
    kernels->tile(8, a, 8, b, 16, c, 16);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 16; j++) {
            float d = i ? 1.0f / (float)(i - 20 * j - 1) : 1e-38f;
            for (int p = 0; p < 8; p++) {
                uint32_t x = a[8 * p + i], y = b[16 * p + j];
                d = gckpti_mixed_link((uint16_t)(x >> 16), (uint16_t)(y >> 16), d);
                d = gckpti_mixed_link((uint16_t)x, (uint16_t)y, d);
            }
            same = same && gckpti_bits(d) == gckpti_bits(c[16 * i + j]);
        }
    return same;
}

/* A product whose rows, columns and links go past the edge of a tile, b transposed. */
static int gckpti_products_agree(const gckpti_kernels *kernels)
{
    enum { M = 9, N = 49, K = 17 };
    float a[M * K], b[N * K], c[M * N], pack[16 * (GCKPTI_PANEL + GCKPTI_STRIP)];
    const gckpti_product t = { M, N, K, a, K, 1, b, 1, K, b, 0, c, N };
    int same = 1;
    for (int i = 0; i < N * K; i++) {
        b[i] = (float)(i * 29 % 31 - 15) / 9.0f;
        a[i % (M * K)] = (float)(i * 37 % 23 - 11) / 7.0f;
    }
    kernels->product_piece(&t, 0, M, 0, N, pack, sizeof pack / sizeof *pack);
    for (int i = 0; i < M; i++) {
        float row[N];
        memcpy(row, b, sizeof row);
        gckpti_chains(a + i * K, b, K, N, K, row);
        same = same && !memcmp(row, c + i * N, sizeof row);
    }
    return same;
}

/* Options that let a compiler change arithmetic without telling (clang's -freciprocal-math) would
 * show here: then the plain kernels run. */
static int gckpti_kernels_agree(const gckpti_kernels *kernels)
{
    enum { N = 45 };
    float x[N], fast[3][N], plain[3][N], squares[2];
    gckpti_adamw a = { 0.7f, 0.01f, 0.9f, 0.1f, 0.999f, 0.001f, 1e-8f, 0.003f, 1.3f };
    gckpt_call c;
    memset(&c, 0, sizeof c);
    c.kernels = kernels;
    c.shape = c.in[0].shape = gckpti_shape(2, 1, N, 0, 0);
    c.in[0].data = x;
    for (int i = 0; i < N; i++)
        x[i] = (float)(i * 37 % 23 - 11) / 7.0f;
    c.out = plain[0];
    gckpti_softmax_forward(&c);
    c.out = plain[1];
    gckpti_gelu_forward(&c);
    c.out = fast[0];
    kernels->softmax_forward(&c, 0);
    c.out = fast[1];
    kernels->elementwise_forward(&c, GCKPTI_GELU);
    memcpy(fast[2], x, sizeof x);
    kernels->divide(fast[2], 3.0f, N);
    for (int i = 0; i < N; i++)
        plain[2][i] = x[i] / 3.0f;
    int same = !memcmp(fast, plain, sizeof fast);
    memset(fast[1], 0, sizeof fast[1]), memset(plain[1], 0, sizeof plain[1]);
    memset(fast[2], 0, sizeof fast[2]), memset(plain[2], 0, sizeof plain[2]);
    kernels->adamw(fast[0], x, fast[1], fast[2], N, &a);
    gckpti_plain_adamw(plain[0], x, plain[1], plain[2], N, &a);
    squares[0] = kernels->square_sum(x, N);
    squares[1] = gckpti_dot(x, x, N);
    return same && gckpti_products_agree(kernels) && gckpti_mixed_agrees(kernels->mixed) &&
           !memcmp(fast, plain, sizeof fast) && !memcmp(squares, squares + 1, sizeof *squares);
}

/* The kernels of an instruction set, if this processor has it; NULL: the plain ones. */
static const gckpti_kernels *gckpti_kernels_for(gckpt_isa isa)
{
    const gckpti_kernels *kernels = NULL;
    (void)isa; /* where there is none */
#if GCKPTI_FMA
    if (isa == GCKPT_ISA_C)
        kernels = &gckpti_kernels_any;
#endif
#ifdef __aarch64__
    if (isa == GCKPT_ISA_NEON)
        kernels = &gckpti_kernels_neon;
#elif GCKPTI_X86
    if (isa == GCKPT_ISA_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        kernels = &gckpti_kernels_avx2;
    if (isa == GCKPT_ISA_AVX512 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma")) {
        kernels = &gckpti_kernels_avx512;
#if GCKPTI_BF16
        if (__builtin_cpu_supports("avx512bf16") && gckpti_kernels_agree(&gckpti_kernels_bf16))
            return &gckpti_kernels_bf16;
#endif
    }
#endif
    return kernels && gckpti_kernels_agree(kernels) ? kernels : NULL;
}

/* ---- the fast backend: the plain one with these kernels ---- */
static gckpt_kernel gckpti_fast_find(void *context, const gckpt_op *op, gckpt_kind kind)
{
    (void)context;
    return kind == GCKPT_FORWARD ? op->forward_fast : op->backward_fast;
}

static void gckpti_fast_convert_item(void *context, int64_t item)
{
    const gckpti_converting *s = (const gckpti_converting *)context;
    const gckpti_mixed_kernels *kernels = gckpti_kernels_of(s->call)->mixed;
    const gckpt_conversion *c = s->c;
    int64_t at = item * GCKPTI_JOB, n = gckpti_min(c->n - at, GCKPTI_JOB);
    if (c->kind == GCKPT_WIDEN)
        kernels->widen(c->from + at, c->x + at, n);
    else
        kernels->narrow(c->x + at, c->to + at, n);
}

static void gckpti_fast_convert(const gckpt_call *call, const gckpt_conversion *c)
{
    gckpti_converting s = { call, c };
    int nearest = c->kind == GCKPT_NARROW && call->precision != GCKPT_BF16_STOCHASTIC;
    if (c->kind == GCKPT_WIDEN || nearest)
        gckpti_cpu_jobs(call, c->n, gckpti_fast_convert_item, &s);
    else
        gckpti_cpu_convert(call, c);
}

static void gckpti_fast_update_item(void *context, int64_t i)
{
    float room[GCKPT_UPDATE_BLOCK];
    gckpti_cpu_update_blocks((const gckpti_passing *)context, i, room);
}

static void gckpti_fast_update(const gckpt_call *call, const gckpt_pass *pass)
{
    const gckpti_kernels *k = gckpti_kernels_of(call);
    gckpti_passing s = { pass, k->divide, k->square_sum, k->adamw, 0 };
    gckpti_cpu_pass(call, &s, gckpti_fast_update_item);
}

/* clang-format off */
static const gckpt_backend gckpti_backend_fast = {
    "fast", NULL, 0, 0, NULL, NULL, gckpti_cpu_copy, gckpti_cpu_copy, gckpti_cpu_copy, NULL,
    gckpti_fast_find, gckpti_cpu_fill, gckpti_cpu_add, gckpti_fast_convert, gckpti_fast_update,
    gckpti_cpu_finish, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL };
/* clang-format on */
#endif /* GCKPTI_HAS_FAST */

static const gckpt_backend *gckpti_cpu_backend(gckpt_isa isa, const void **kernels)
{
    *kernels = NULL;
#if GCKPTI_HAS_FAST
#ifdef GCKPT_OPENBLAS
    openblas_set_num_threads(1); /* each of our threads calls it for its piece */
#endif
    if (isa >= GCKPT_ISA_C && isa < GCKPT_ISA_COUNT)
        *kernels = gckpti_kernels_for(isa);
    if (*kernels)
        return &gckpti_backend_fast;
#endif
    return isa == GCKPT_ISA_PLAIN ? &gckpti_backend_plain : NULL;
}

/* ---- what users' kernels have of all this (api-user-ops) ---- */
GCKPT_API void gckpt_parallel(const gckpt_call *call, int64_t items, int64_t work,
                              void (*item)(void *context, int64_t i, int64_t worker), void *context)
{
#if GCKPTI_HAS_FAST
    if (call && item) {
        gckpti_items s = { item, context, items, 0, 1 };
        s.block += 65536 / (1 + (work > 0 ? gckpti_min(work, 65536) : 0));
        int64_t workers = items / s.block + (items % s.block != 0);
        gckpti_job(call, gckpti_min(workers, call->threads), gckpti_work_on, &s);
    }
#else
    (void)call, (void)work;
    for (int64_t i = 0; item && i < items; i++)
        item(context, i, 0);
#endif
}

GCKPT_API float gckpt_fma(float a, float b, float c) { return gckpti_fma(a, b, c); }

GCKPT_API float gckpt_dot(const gckpt_call *call, const float *x, const float *y, int64_t n)
{
#if GCKPTI_HAS_FAST
    if (call && call->kernels)
        return gckpti_kernels_of(call)->dot(x, y, n);
#endif
    (void)call;
    return gckpti_dot(x, y, n);
}

/* Both ways round, since gckpt_product may turn a product. */
GCKPT_API size_t gckpt_product_work(const gckpt_call *call, int64_t m, int64_t n, int64_t k)
{
    int64_t one = gckpti_product_room(m, n, k), other = gckpti_product_room(n, m, k);
    if (!call || call->plain)
        return 0;
    return (size_t)(one > other ? one : other) * (size_t)call->threads * sizeof(float);
}

/* Row i without vector kernels: its n chains side by side. */
static void gckpti_product_row(void *context, int64_t i, int64_t worker)
{
    const gckpt_product_desc *t = (const gckpt_product_desc *)context;
    const float *a = t->a + i * t->a_row, *b = t->b;
    float *c = t->c + i * t->c_row;
    (void)worker;
    for (int64_t j = 0; j < t->n && !t->accumulate; j++)
        c[j * t->c_col] = 0.0f;
    for (int64_t p = 0; p < t->k; p++, a += t->a_col, b += t->b_row)
        for (int64_t j = 0; j < t->n; j++)
            c[j * t->c_col] = gckpti_fma(*a, b[j * t->b_col], c[j * t->c_col]);
}

/* The vector kernels want a row of c side by side: where it is a column, the product is turned. */
GCKPT_API void gckpt_product(const gckpt_call *call, const gckpt_product_desc *desc)
{
    if (!call || !desc || desc->m <= 0 || desc->n <= 0)
        return;
    gckpt_product_desc t = *desc;
#if GCKPTI_HAS_FAST
    if (t.c_col != 1 && t.c_row == 1) { /* C' = B' A' */
        t.m = desc->n, t.a = desc->b, t.a_row = desc->b_col, t.a_col = desc->b_row;
        t.n = desc->m, t.b = desc->a, t.b_row = desc->a_col, t.b_col = desc->a_row;
        t.c_row = desc->c_col, t.c_col = 1;
    }
    if (call->kernels && t.c_col == 1) {
        gckpti_product p = { t.m,     t.n, t.k,     t.a,     t.a_row,
                             t.a_col, t.b, t.b_row, t.b_col, t.accumulate ? t.c : NULL,
                             t.c_row, t.c, t.c_row };
        gckpti_products_run(call, &p, 1, 0, 0, (float *)t.work);
        return;
    }
#endif
    gckpt_parallel(call, t.m, t.n * t.k, gckpti_product_row, &t);
}

/* No private macro outlives the implementation. */
#undef GCKPTI_ADDRESSABLE
#undef GCKPTI_ALIGN
#undef GCKPTI_BF16
#undef GCKPTI_ERF_MAX
#undef GCKPTI_ERF_SPLIT
#undef GCKPTI_EXP_MAX
#undef GCKPTI_EXP_MIN
#undef GCKPTI_FAST
#undef GCKPTI_FMA
#undef GCKPTI_FNV_START
#undef GCKPTI_GELU_C1
#undef GCKPTI_GELU_C3
#undef GCKPTI_HAS_FAST
#undef GCKPTI_HEADER_MAX
#undef GCKPTI_INFINITY
#undef GCKPTI_INLINE
#undef GCKPTI_LN2_HI
#undef GCKPTI_LN2_LO
#undef GCKPTI_LOG2E
#undef GCKPTI_MAGIC
#undef GCKPTI_NAN
#undef GCKPTI_NONE
#undef GCKPTI_OPS
#undef GCKPTI_PLAIN
#undef GCKPTI_PLAN_MAGIC
#undef GCKPTI_POSIX
#undef GCKPTI_HEAP_WHOLE
#undef GCKPTI_HUGE_PAGES
#undef GCKPTI_TEAMS
#undef GCKPTI_ROUND
#undef GCKPTI_ROW
#undef GCKPTI_ROW_WITH
#undef GCKPTI_SQRT
#undef GCKPTI_TANH_MAX
#undef GCKPTI_TANH_SPLIT
#undef GCKPTI_TEXT
#undef GCKPTI_UNARY_FLAGS
#undef GCKPTI_X86
#undef GCKPTI_WORK_LIMIT
#undef GCKPTI_SEARCHED
#undef GCKPTI_TWICE
#undef GCKPTI_REST
#undef GCKPTI_NEVER

#ifdef __cplusplus
}
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT DEFAULT
#if __clang_major__ >= 12
#pragma float_control(pop)
#endif
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif
#endif /* GRADCKPT_IMPLEMENTATION */

#ifdef GCKPTI_ISA
/* =================================================================================================
 * >>kernels: written once, compiled once for each instruction set
 *
 * The header includes itself here: GCKPTI_ISA says for which. V(name) is gckpti_<name> with the
 * instruction set's ending; FLOATS is a vector of W floats, INTS one of as many uint32_t; + - * /
 * & | ^ << >> are the compiler's. Vectors and tiles go over rows and columns, so that every chain
 * and every one of a row's 32 lanes keeps its order.
 * ============================================================================================== */
/* g++ (bug 105593) warns of lanes that its own headers leave undefined. */
#if defined(__cplusplus) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#pragma push_macro("V")
#pragma push_macro("W")
#pragma push_macro("FLOATS")
#pragma push_macro("INTS")
#undef V
#undef W
#undef FLOATS
#undef INTS
#if GCKPTI_ISA == 3 /* AVX-512 */
#define W             16
#define V(name)       gckpti_##name##_avx512
#define GCKPTI_TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#define FLOATS        __m512
#define GCKPTI_MM(of) _mm512_##of
#elif GCKPTI_ISA == 2
#define W             8
#define V(name)       gckpti_##name##_avx2
#define GCKPTI_TARGET __attribute__((target("avx2,fma")))
#define FLOATS        __m256
#define GCKPTI_MM(of) _mm256_##of
#elif GCKPTI_ISA == 1
#define W       4
#define V(name) gckpti_##name##_neon
#define GCKPTI_TARGET
#define FLOATS float32x4_t
#else
#define W       4
#define V(name) gckpti_##name##_any
#define GCKPTI_TARGET
#define FLOATS gckpti_floats
typedef float gckpti_floats __attribute__((vector_size(16)));
#endif
typedef uint32_t V(ints) __attribute__((vector_size(4 * W)));
#define INTS           V(ints)
#define GCKPTI_INLINED static inline __attribute__((always_inline)) GCKPTI_TARGET

/* ---- vectors ---- */
GCKPTI_INLINED FLOATS V(load)(const float *x)
{
    FLOATS a;
    memcpy(&a, x, sizeof a);
    return a;
}
GCKPTI_INLINED void V(store)(float *x, FLOATS a) { memcpy(x, &a, sizeof a); }

/* set1: x in all lanes; load_n, store_n: the first n floats (all if n > W), the others read as 0;
 * max and min: b if either is NaN; fnma: c - a * b; upto: a in the first n lanes, then b; less:
 * a < b ? c : d; fold_sum, fold_max: lane j with lane j + W / 2 and so on */
#if GCKPTI_X86 && GCKPTI_ISA >= 2
GCKPTI_INLINED FLOATS V(set1)(float x) { return GCKPTI_MM(set1_ps)(x); }
GCKPTI_INLINED FLOATS V(sqrt)(FLOATS a) { return GCKPTI_MM(sqrt_ps)(a); }
GCKPTI_INLINED FLOATS V(max)(FLOATS a, FLOATS b) { return GCKPTI_MM(max_ps)(a, b); }
GCKPTI_INLINED FLOATS V(min)(FLOATS a, FLOATS b) { return GCKPTI_MM(min_ps)(a, b); }
GCKPTI_INLINED FLOATS V(fma)(FLOATS a, FLOATS b, FLOATS c) { return GCKPTI_MM(fmadd_ps)(a, b, c); }
GCKPTI_INLINED FLOATS V(fnma)(FLOATS a, FLOATS b, FLOATS c)
{
    return GCKPTI_MM(fnmadd_ps)(a, b, c);
}
#endif
#if GCKPTI_ISA == 3
#define GCKPTI_MASK(n) ((__mmask16)((1u << (n)) - 1u))
GCKPTI_INLINED FLOATS V(load_n)(const float *x, int64_t n)
{
    return n >= 16 ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps(GCKPTI_MASK(n), x);
}
GCKPTI_INLINED void V(store_n)(float *x, FLOATS a, int64_t n)
{
    if (n >= 16)
        _mm512_storeu_ps(x, a);
    else
        _mm512_mask_storeu_ps(x, GCKPTI_MASK(n), a);
}
GCKPTI_INLINED FLOATS V(upto)(int64_t n, FLOATS a, FLOATS b)
{
    return n >= 16 ? a : _mm512_mask_mov_ps(b, GCKPTI_MASK(n), a);
}
GCKPTI_INLINED FLOATS V(less)(FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    return _mm512_mask_mov_ps(d, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), c);
}
GCKPTI_INLINED float V(fold_sum)(FLOATS a)
{
    return gckpti_fold_sum_avx2(_mm512_extractf32x8_ps(a, 1) + _mm512_castps512_ps256(a));
}
GCKPTI_INLINED float V(fold_max)(FLOATS a)
{
    return gckpti_fold_max_avx2(
        _mm256_max_ps(_mm512_extractf32x8_ps(a, 1), _mm512_castps512_ps256(a)));
}
#undef GCKPTI_MASK
#elif GCKPTI_ISA == 2
#define GCKPTI_MASK(n)                                                                             \
    _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
GCKPTI_INLINED FLOATS V(load_n)(const float *x, int64_t n)
{
    return n >= 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, GCKPTI_MASK(n));
}
GCKPTI_INLINED void V(store_n)(float *x, FLOATS a, int64_t n)
{
    if (n >= 8)
        _mm256_storeu_ps(x, a);
    else
        _mm256_maskstore_ps(x, GCKPTI_MASK(n), a);
}
GCKPTI_INLINED FLOATS V(upto)(int64_t n, FLOATS a, FLOATS b)
{
    return n >= 8 ? a : _mm256_blendv_ps(b, a, _mm256_castsi256_ps(GCKPTI_MASK(n)));
}
GCKPTI_INLINED FLOATS V(less)(FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    return _mm256_blendv_ps(d, c, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
GCKPTI_INLINED float V(fold_sum)(FLOATS a)
{
    __m128 b = _mm256_extractf128_ps(a, 1) + _mm256_castps256_ps128(a);
    b = _mm_movehl_ps(b, b) + b;
    return _mm_cvtss_f32(_mm_shuffle_ps(b, b, 1) + b);
}
GCKPTI_INLINED float V(fold_max)(FLOATS a)
{
    __m128 b = _mm_max_ps(_mm256_extractf128_ps(a, 1), _mm256_castps256_ps128(a));
    b = _mm_max_ps(_mm_movehl_ps(b, b), b);
    return _mm_cvtss_f32(_mm_max_ss(_mm_shuffle_ps(b, b, 1), b));
}
#undef GCKPTI_MASK
#else
GCKPTI_INLINED FLOATS V(load_n)(const float *x, int64_t n)
{
    float a[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    memcpy(a, x, (size_t)(n < 4 ? n : 4) * sizeof *a);
    return V(load)(a);
}
GCKPTI_INLINED void V(store_n)(float *x, FLOATS a, int64_t n)
{
    memcpy(x, &a, (size_t)(n < 4 ? n : 4) * sizeof *x);
}
GCKPTI_INLINED FLOATS V(upto)(int64_t n, FLOATS a, FLOATS b)
{
    memcpy(&b, &a, (size_t)(n < 4 ? n : 4) * sizeof(float));
    return b;
}
GCKPTI_INLINED float V(fold_sum)(FLOATS a) { return (a[0] + a[2]) + (a[1] + a[3]); }
GCKPTI_INLINED float V(fold_max)(FLOATS a)
{
    float b = a[2] > a[0] ? a[2] : a[0], c = a[3] > a[1] ? a[3] : a[1];
    return c > b ? c : b;
}
#if GCKPTI_ISA == 1
GCKPTI_INLINED FLOATS V(set1)(float x) { return vdupq_n_f32(x); }
GCKPTI_INLINED FLOATS V(sqrt)(FLOATS a) { return vsqrtq_f32(a); }
GCKPTI_INLINED FLOATS V(max)(FLOATS a, FLOATS b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
GCKPTI_INLINED FLOATS V(min)(FLOATS a, FLOATS b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
GCKPTI_INLINED FLOATS V(fma)(FLOATS a, FLOATS b, FLOATS c) { return vfmaq_f32(c, a, b); }
GCKPTI_INLINED FLOATS V(fnma)(FLOATS a, FLOATS b, FLOATS c) { return vfmsq_f32(c, a, b); }
GCKPTI_INLINED FLOATS V(less)(FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    return vbslq_f32(vcltq_f32(a, b), c, d);
}
#else
/* Lane by lane what C has no operator for. */
#define GCKPTI_LANEWISE(name, parameters, result)                                                  \
    GCKPTI_INLINED FLOATS V(name) parameters                                                       \
    {                                                                                              \
        for (int i = 0; i < 4; i++)                                                                \
            a[i] = result;                                                                         \
        return a;                                                                                  \
    }
GCKPTI_LANEWISE(sqrt, (FLOATS a), gckpti_sqrt(a[i]))
GCKPTI_LANEWISE(max, (FLOATS a, FLOATS b), a[i] > b[i] ? a[i] : b[i])
GCKPTI_LANEWISE(min, (FLOATS a, FLOATS b), a[i] < b[i] ? a[i] : b[i])
GCKPTI_LANEWISE(fma, (FLOATS a, FLOATS b, FLOATS c), gckpti_fma(a[i], b[i], c[i]))
GCKPTI_LANEWISE(fnma, (FLOATS a, FLOATS b, FLOATS c), gckpti_fma(-a[i], b[i], c[i]))
GCKPTI_LANEWISE(less, (FLOATS a, FLOATS b, FLOATS c, FLOATS d), a[i] < b[i] ? c[i] : d[i])
#undef GCKPTI_LANEWISE
GCKPTI_INLINED FLOATS V(set1)(float x)
{
    FLOATS a = { x, x, x, x };
    return a;
}
#endif
#endif
GCKPTI_INLINED FLOATS V(zero)(void) { return V(set1)(0.0f); }
GCKPTI_INLINED FLOATS V(add)(FLOATS a, FLOATS b) { return a + b; }
GCKPTI_INLINED INTS V(bits)(FLOATS a) { return (INTS)a; }
GCKPTI_INLINED FLOATS V(floats)(INTS a) { return (FLOATS)a; }
GCKPTI_INLINED FLOATS V(both)(FLOATS a, FLOATS b) { return V(floats)(V(bits)(a) & V(bits)(b)); }
GCKPTI_INLINED FLOATS V(either)(FLOATS a, FLOATS b) { return V(floats)(V(bits)(a) | V(bits)(b)); }
GCKPTI_INLINED FLOATS V(differ)(FLOATS a, FLOATS b) { return V(floats)(V(bits)(a) ^ V(bits)(b)); }
GCKPTI_INLINED FLOATS V(exponent)(INTS n) { return V(floats)(n << 23); } /* 2^(n - 127) */

/* `turn`: vector r[p] gets s[i * row + p], i < W, for 4 columns p. Where there are instructions for
 * it `quads` loads 4 floats of rows 0, 4, ... side by side, and each quad turns within itself. */
#if GCKPTI_ISA == 3
#define GCKPTI_TILE_ROWS    8
#define GCKPTI_TILE_VECTORS 3
GCKPTI_INLINED FLOATS V(quads)(const float *s, int64_t row)
{
    __m512 r = _mm512_castps128_ps512(_mm_loadu_ps(s));
    r = _mm512_insertf32x4(r, _mm_loadu_ps(s + 4 * row), 1);
    r = _mm512_insertf32x4(r, _mm_loadu_ps(s + 8 * row), 2);
    return _mm512_insertf32x4(r, _mm_loadu_ps(s + 12 * row), 3);
}
#elif GCKPTI_ISA == 2
#define GCKPTI_TILE_ROWS    4
#define GCKPTI_TILE_VECTORS 3
GCKPTI_INLINED FLOATS V(quads)(const float *s, int64_t row)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(s)), _mm_loadu_ps(s + 4 * row),
                                1);
}
#elif GCKPTI_ISA == 1
#define GCKPTI_TILE_ROWS    8
#define GCKPTI_TILE_VECTORS 3
#else
#define GCKPTI_TILE_ROWS    4
#define GCKPTI_TILE_VECTORS 2
#endif
GCKPTI_INLINED void V(turn)(const float *s, int64_t row, FLOATS *r)
{
#if GCKPTI_ISA >= 2
    FLOATS r0 = V(quads)(s, row), r1 = V(quads)(s + row, row);
    FLOATS r2 = V(quads)(s + 2 * row, row), r3 = V(quads)(s + 3 * row, row);
    FLOATS l01 = GCKPTI_MM(unpacklo_ps)(r0, r1), h01 = GCKPTI_MM(unpackhi_ps)(r0, r1);
    FLOATS l23 = GCKPTI_MM(unpacklo_ps)(r2, r3), h23 = GCKPTI_MM(unpackhi_ps)(r2, r3);
    r[0] = GCKPTI_MM(shuffle_ps)(l01, l23, 0x44), r[1] = GCKPTI_MM(shuffle_ps)(l01, l23, 0xee);
    r[2] = GCKPTI_MM(shuffle_ps)(h01, h23, 0x44), r[3] = GCKPTI_MM(shuffle_ps)(h01, h23, 0xee);
#else
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < W; i++)
            r[p][i] = s[i * row + p];
#endif
}

/* d[p * d_row + i] = s[i * row + p] for i, p < W */
static GCKPTI_TARGET void V(transpose)(const float *s, int64_t row, float *d, int64_t d_row)
{
    for (int q = 0; q < W; q += 4) {
        FLOATS r[4];
        V(turn)(s + q, row, r);
        for (int p = 0; p < 4; p++, d += d_row)
            V(store)(d, r[p]);
    }
}

/* ---- products (Goto & van de Geijn, "Anatomy of high-performance matrix multiplication", 2008)
 * ---- */
#define GCKPTI_TILE_EACH(X)                                                                        \
    X(0, a)                                                                                        \
    X(1, a + row)                                                                                  \
    X(2, a + 2 * row) X(3, a + row3) X(4, a4) X(5, a4 + row) X(6, a4 + 2 * row) X(7, a4 + row3)

/* A tile of at most 8 rows and 3 vectors: loads c, or starts at +0; for each link sets an element
 * of a against b's vectors, row by row; stores c. Of the last vector t->last columns exist. l, m, h
 * are a row's vectors, named one by one, since gcc spills arrays of them. rows, vectors: constants.
 */
GCKPTI_INLINED void V(tile)(const gckpti_tile *t, int rows, int vectors)
{
    const int64_t row = t->a_row, row3 = 3 * row, step = t->a_step, b_step = t->b_step;
    const float *a = t->a, *a4 = a + (rows > 4 ? 4 * row : 0), *b = t->b, *from = t->from;
    float *c = t->c;
#define GCKPTI_TILE_NAME(i, at) FLOATS l##i = V(zero)(), m##i = l##i, h##i = l##i;
#define GCKPTI_TILE_LOAD(i, at)                                                                    \
    if (rows > i) {                                                                                \
        l##i = vectors > 1 ? V(load)(from) : V(load_n)(from, t->last);                             \
        if (vectors > 1)                                                                           \
            m##i = vectors > 2 ? V(load)(from + W) : V(load_n)(from + W, t->last);                 \
        if (vectors > 2)                                                                           \
            h##i = V(load_n)(from + 2 * W, t->last);                                               \
        from += t->from_row;                                                                       \
    }
#define GCKPTI_TILE_STEP(i, at)                                                                    \
    if (rows > i) {                                                                                \
        FLOATS x = V(set1)(*(at));                                                                 \
        l##i = V(fma)(x, b0, l##i);                                                                \
        if (vectors > 1)                                                                           \
            m##i = V(fma)(x, b1, m##i);                                                            \
        if (vectors > 2)                                                                           \
            h##i = V(fma)(x, b2, h##i);                                                            \
    }
#define GCKPTI_TILE_STORE(i, at)                                                                   \
    if (rows > i) {                                                                                \
        if (vectors > 1)                                                                           \
            V(store)(c, l##i);                                                                     \
        else                                                                                       \
            V(store_n)(c, l##i, t->last);                                                          \
        if (vectors > 2)                                                                           \
            V(store)(c + W, m##i);                                                                 \
        else if (vectors > 1)                                                                      \
            V(store_n)(c + W, m##i, t->last);                                                      \
        if (vectors > 2)                                                                           \
            V(store_n)(c + 2 * W, h##i, t->last);                                                  \
        c += t->c_row;                                                                             \
    }
    GCKPTI_TILE_EACH(GCKPTI_TILE_NAME)
    if (from) {
        GCKPTI_TILE_EACH(GCKPTI_TILE_LOAD)
    }
    if (rows == GCKPTI_TILE_ROWS) {
        const float *next = t->next;
        for (int i = 0; i < rows; i++, next += t->c_row) {
            for (int j = 0; j < vectors * W; j += 16)
                __builtin_prefetch(next + j, 1, 3);
            __builtin_prefetch(next + vectors * W - 1, 1, 3);
        }
    }
    for (int64_t p = t->k; p > 0; p--) {
        FLOATS b0 = V(load)(b);
        FLOATS b1 = vectors > 1 ? V(load)(b + W) : b0;
        FLOATS b2 = vectors > 2 ? V(load)(b + 2 * W) : b0;
        GCKPTI_TILE_EACH(GCKPTI_TILE_STEP)
        a += step, a4 += step, b += b_step;
    }
    GCKPTI_TILE_EACH(GCKPTI_TILE_STORE)
#undef GCKPTI_TILE_NAME
#undef GCKPTI_TILE_LOAD
#undef GCKPTI_TILE_STEP
#undef GCKPTI_TILE_STORE
}
#undef GCKPTI_TILE_EACH

#if GCKPTI_TILE_ROWS == 8
#define GCKPTI_TILE_SIZES(X, v) X(1, v) X(2, v) X(3, v) X(4, v) X(5, v) X(6, v) X(7, v) X(8, v)
#else
#define GCKPTI_TILE_SIZES(X, v) X(1, v) X(2, v) X(3, v) X(4, v)
#endif
#define GCKPTI_TILE_BODY(r, v)                                                                     \
    static GCKPTI_TARGET void V(tile_##r##_##v)(const gckpti_tile *t) { V(tile)(t, r, v); }
#define GCKPTI_TILE_NAME(r, v) V(tile_##r##_##v),
GCKPTI_TILE_SIZES(GCKPTI_TILE_BODY, 1)
GCKPTI_TILE_SIZES(GCKPTI_TILE_BODY, 2)
#if GCKPTI_TILE_VECTORS == 3
GCKPTI_TILE_SIZES(GCKPTI_TILE_BODY, 3)
#endif
static void (*const V(tiles)[GCKPTI_TILE_VECTORS][GCKPTI_TILE_ROWS])(const gckpti_tile *t) = {
    { GCKPTI_TILE_SIZES(GCKPTI_TILE_NAME, 1) },
    { GCKPTI_TILE_SIZES(GCKPTI_TILE_NAME, 2) },
#if GCKPTI_TILE_VECTORS == 3
    { GCKPTI_TILE_SIZES(GCKPTI_TILE_NAME, 3) },
#endif
};
#undef GCKPTI_TILE_SIZES
#undef GCKPTI_TILE_BODY
#undef GCKPTI_TILE_NAME

/* d[p * width + j] = b(p, j), p < k, j < width; 0 for j >= n > width - W. Writes up to
 * W - 1 rows too many. */
static GCKPTI_TARGET void V(pack)(const float *b, int64_t step, int64_t col, int64_t n, int64_t k,
                                  float *d, int64_t width)
{
    if (step != 1 && col != 1)
        for (; k > 0; k--, b += step, d += width)
            for (int64_t j = 0; j < width; j++)
                d[j] = j < n ? b[j * col] : 0.0f;
    else if (step != 1)
        for (const int64_t last = width - W; k > 0; k--, b += step, d += width) {
            for (int64_t j = 0; j < last; j += W)
                V(store)(d + j, V(load)(b + j));
            V(store)(d + last, V(load_n)(b + last, n - last));
        }
    else
        for (int64_t j = 0; j < width; j += W)
            for (int64_t p = 0; p < k; p += W) {
                const float *s = b + j * col + p;
                int64_t row = col;
                float edge[W * W];
                if (n - j < W || k - p < W) {
                    for (int64_t i = 0; i < W; i++) {
                        FLOATS x = V(zero)();
                        if (i < n - j)
                            x = V(load_n)(s + i * col, k - p);
                        V(store)(edge + i * W, x);
                    }
                    s = edge, row = W;
                }
                V(transpose)(s, row, d + p * width + j, width);
            }
}

/* Where panel q of n columns begins: each has GCKPTI_TILE_VECTORS vectors and the last what is
 * left, but where that is 1 it gets one of the panel before, lest its chains be too few. */
GCKPTI_INLINED int64_t V(panel)(int64_t n, int64_t q)
{
    const int64_t vectors = (n + W - 1) / W, at = q * GCKPTI_TILE_VECTORS;
    return W * (at >= vectors                                            ? vectors
                : GCKPTI_TILE_VECTORS > 2 && at > 0 && at == vectors - 1 ? at - 1
                                                                         : at);
}

/* Packs columns from panel `first` on, links 0..k-1, of b: panel q at d + panel(n, q) * deep. Where
 * its rows lie side by side it takes 8 at a time: few pages, and runs long enough to be
 * foreseen. */
static GCKPTI_TARGET void V(pack_panels)(const gckpti_product *t, const float *b, int64_t n,
                                         int64_t k, int64_t first, float *d, int64_t deep)
{
    const int64_t some = t->b_col == 1 ? 8 : deep;
    for (int64_t p = 0; p < k; p += some)
        for (int64_t q = first, j, width; j = V(panel)(n, q), j < n; q++) {
            const float *from = b + p * t->b_step + j * t->b_col;
            width = V(panel)(n, q + 1) - j;
            int64_t cols = gckpti_min(n - j, width), links = gckpti_min(k - p, some);
            float *to = d + j * deep + p * width;
            V(pack)(from, t->b_step, t->b_col, cols, links, to, width);
        }
}

/* n <= GCKPTI_STRIP rows of a that lie side by side: tile i / GCKPTI_TILE_ROWS at d + i * deep. */
static GCKPTI_TARGET void V(pack_strip)(const float *a, int64_t step, int64_t n, int64_t k,
                                        float *d, int64_t deep)
{
    for (int64_t p = 0; p < k; p++, a += step, d += GCKPTI_TILE_ROWS)
        if (n == GCKPTI_STRIP)
            for (int64_t i = 0; i < GCKPTI_STRIP; i += GCKPTI_TILE_ROWS)
                memcpy(d + i * deep, a + i, GCKPTI_TILE_ROWS * sizeof(float));
        else
            for (int64_t i = 0; i < n; i++)
                d[i / GCKPTI_TILE_ROWS * (deep - 1) * GCKPTI_TILE_ROWS + i] = a[i];
}

/* Packing was measured to pay only where it must be: b whose columns do not lie side by side, and
 * a last vector that is not full. But vectors shorter than a cache line come back to each line,
 * and of rows some KB apart few stay in the cache: then b is packed, unless there are few rows to
 * use it, and a whose rows lie side by side. Blocks are as wide as one panel where k is small: it
 * then stays in L1. */
static gckpti_blocking V(blocking)(const gckpti_product *t, int64_t rows, int64_t room)
{
    const int64_t few = t->b_step % 512 ? 128 : 16;
    const int64_t deepest = gckpti_min(t->a_step == 1 ? GCKPTI_KC : GCKPTI_KC_ACROSS,
                                       room / (GCKPTI_PANEL + GCKPTI_STRIP) / 16 * 16);
    const int64_t blocks = (t->k + deepest - 1) / deepest;
    gckpti_blocking by;
    by.deep = t->k ? gckpti_multiple((t->k + blocks - 1) / blocks, 16) : 16;
    by.wide = gckpti_min(t->a_step == 1 && t->k <= GCKPTI_KC_ACROSS ? GCKPTI_PANEL : GCKPTI_NC,
                         (room / by.deep - GCKPTI_STRIP) / GCKPTI_PANEL * GCKPTI_PANEL);
    by.in_place = t->b_col == 1 && (W >= 16 || rows <= few);
    by.strips = W < 16 && t->a_step != 1 && t->a_row == 1 && rows > GCKPTI_STRIP;
    return by;
}

/* ---- a row of c alone: b is read once, as it lies, and not packed ---- */
#define GCKPTI_EACH_EIGHTH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
/* c[j] += chain of a and column j of b, which has 8 links or (constants) 1, rows of n floats. */
GCKPTI_INLINED void V(sweep_of)(const float *a, int64_t a_step, const float *b, int64_t row,
                                int links, int64_t n, float *c)
{
#define GCKPTI_SWEEP_START(p) const FLOATS x##p = V(set1)((p) < links ? a[(p)*a_step] : 0.0f);
#define GCKPTI_SWEEP_LINK(p)                                                                       \
    if ((p) < links)                                                                               \
        sum = V(fma)(x##p, V(load_n)(b + (p)*row + j, left), sum);
    GCKPTI_EACH_EIGHTH(GCKPTI_SWEEP_START)
    int64_t j = 0, left = W;
    for (; j + W <= n; j += W) {
        FLOATS sum = V(load)(c + j);
        GCKPTI_EACH_EIGHTH(GCKPTI_SWEEP_LINK)
        V(store)(c + j, sum);
    }
    if (j < n) {
        FLOATS sum = V(load_n)(c + j, left = n - j);
        GCKPTI_EACH_EIGHTH(GCKPTI_SWEEP_LINK)
        V(store_n)(c + j, sum, left);
    }
#undef GCKPTI_SWEEP_START
#undef GCKPTI_SWEEP_LINK
}

static GCKPTI_TARGET void V(sweep)(const float *a, int64_t a_step, const float *b, int64_t row,
                                   int64_t k, int64_t n, float *c)
{
    for (; k >= 8; k -= 8, a += 8 * a_step, b += 8 * row)
        V(sweep_of)(a, a_step, b, row, 8, n, c);
    for (; k > 0; k--, a += a_step, b += row)
        V(sweep_of)(a, a_step, b, row, 1, n, c);
}

/* c[j] = chain of a and row j of b, k floats, from from[j] (NULL: +0), for n rows: 32, if `all` (a
 * constant), else at most W. The same number of rows, at `next`, is fetched. */
GCKPTI_INLINED void V(dots_of)(const float *a, int64_t a_step, const float *b, int64_t row,
                               int64_t k, int64_t n, int all, const float *from, float *c,
                               const float *next)
{
#define GCKPTI_DOT_HAS(i) ((i) == 0 || (all && W * (i) < 32))
#define GCKPTI_DOT_START(i)                                                                        \
    FLOATS sum##i = V(zero)();                                                                     \
    if (GCKPTI_DOT_HAS(i) && from)                                                                 \
        sum##i = V(load_n)(from + W * (i), n - W * (i));
#define GCKPTI_DOT_LINKS(i)                                                                        \
    if (GCKPTI_DOT_HAS(i)) {                                                                       \
        V(turn)(b + W * (i)*row + p, row, r);                                                      \
        sum##i = V(fma)(x0, r[0], sum##i), sum##i = V(fma)(x1, r[1], sum##i);                      \
        sum##i = V(fma)(x2, r[2], sum##i), sum##i = V(fma)(x3, r[3], sum##i);                      \
    }
#define GCKPTI_DOT_LINK(i)                                                                         \
    if (GCKPTI_DOT_HAS(i)) {                                                                       \
        float e[W] = { 0.0f };                                                                     \
        for (int64_t l = W * (i); l < W * (i) + W && l < n; l++)                                   \
            e[l - W * (i)] = b[l * row + p];                                                       \
        sum##i = V(fma)(V(set1)(a[p * a_step]), V(load)(e), sum##i);                               \
    }
#define GCKPTI_DOT_STORE(i)                                                                        \
    if (GCKPTI_DOT_HAS(i))                                                                         \
        V(store_n)(c + W * (i), sum##i, n - W * (i));
    FLOATS r[4];
    int64_t p = 0;
    GCKPTI_EACH_EIGHTH(GCKPTI_DOT_START)
    for (; n >= W && p + 4 <= k; p += 4) {
        const float *x = a + p * a_step, *lines = next + p / 16 * 16;
        const FLOATS x0 = V(set1)(x[0]), x1 = V(set1)(x[a_step]);
        const FLOATS x2 = V(set1)(x[2 * a_step]), x3 = V(set1)(x[3 * a_step]);
        for (int64_t i = p / 4 % 4; all && i < 32; i += 4)
            __builtin_prefetch(lines + i * row, 0, 2);
        GCKPTI_EACH_EIGHTH(GCKPTI_DOT_LINKS)
    }
    for (; p < k; p++) {
        GCKPTI_EACH_EIGHTH(GCKPTI_DOT_LINK)
    }
    GCKPTI_EACH_EIGHTH(GCKPTI_DOT_STORE)
#undef GCKPTI_DOT_HAS
#undef GCKPTI_DOT_START
#undef GCKPTI_DOT_LINKS
#undef GCKPTI_DOT_LINK
#undef GCKPTI_DOT_STORE
}
#undef GCKPTI_EACH_EIGHTH

/* next: as many rows that come then; NULL: the next 32 of b. */
static GCKPTI_TARGET void V(dots)(const float *a, int64_t a_step, const float *b, int64_t row,
                                  int64_t k, int64_t n, const float *from, float *c,
                                  const float *next)
{
    int64_t j = 0, some;
    for (; j + 32 <= n; j += 32)
        V(dots_of)
    (a, a_step, b + j * row, row, k, 32, 1, from ? from + j : NULL, c + j,
     next ? next + j * row : b + gckpti_min(j + 32, n - 32) * row);
    for (; some = gckpti_min(n - j, W), j < n; j += some)
        V(dots_of)(a, a_step, b + j * row, row, k, some, 0, from ? from + j : NULL, c + j, b);
}

/* Columns j0..j1-1 of row i of c. */
static GCKPTI_TARGET void V(product_row)(const gckpti_product *t, int64_t i, int64_t j0, int64_t j1)
{
    const float *a = t->a + i * t->a_row, *b = t->b + j0 * t->b_col;
    const float *from = t->from ? t->from + i * t->from_row + j0 : NULL;
    float *c = t->c + i * t->c_row + j0;
    size_t bytes = (size_t)(j1 - j0) * sizeof *c;
    if (t->b_step == 1) {
        V(dots)(a, t->a_step, b, t->b_col, t->k, j1 - j0, from, c, NULL);
        return;
    }
    if (!from)
        memset(c, 0, bytes);
    else if (from != c)
        memcpy(c, from, bytes);
    V(sweep)(a, t->a_step, b, t->b_step, t->k, j1 - j0, c);
}

/* Rows i0..i1-1, columns j0..j1-1 of c; pack: `room` floats, see gckpti_product_room.
 *
 * The loops, from the outside: blocks of b, along its columns and then down its links (p, j; n
 * columns, k links); down the rows, as many at a time as a tile has (i); across the block's panels
 * (q). There a tile, some rows and vectors of c in registers, takes k links. From one block of
 * links to the next a chain rests in c; in the first it begins at `from`. So a tile reads a's
 * rows, which the next panel reads again, and a panel of b, which the next rows read again.
 * Meanwhile what comes next is fetched: lines `ahead` of b's next block, `below` of a's rows. */
static GCKPTI_TARGET void V(product_piece)(const gckpti_product *t, int64_t i0, int64_t i1,
                                           int64_t j0, int64_t j1, float *pack, int64_t room)
{
    enum { MANY = 2048 }; /* rows of a that each product finds in memory, not in a cache */
    const gckpti_blocking by = V(blocking)(t, i1 - i0, room);
    const int64_t high = GCKPTI_TILE_ROWS, most = GCKPTI_TILE_VECTORS * W;
    float *const panels = pack + GCKPTI_STRIP * by.deep;
    int64_t p = 0, j = j0, next_p, next_j;
    if (i1 - i0 == 1 && (t->b_step == 1 || t->b_col == 1)) {
        V(product_row)(t, i0, j0, j1);
        return;
    }
    do {
        const float *a = t->a + p * t->a_step, *b = t->b + p * t->b_step + j * t->b_col;
        const int64_t n = gckpti_min(j1 - j, by.wide), k = gckpti_min(t->k - p, by.deep);
        const int64_t count = (n + most - 1) / most;
        gckpti_tile u = { k, a, t->a_row, t->a_step, b, 0, NULL, 0, NULL, t->c_row, 0, NULL };
        gckpti_fetch ahead = { NULL, 0, 0, 0, 0, 0 }, below = { NULL, t->a_step, 0, 1, 0, 0 };
        next_j = j + n < j1 ? j + n : j0;
        next_p = j + n < j1 ? p : p + by.deep;
        if (next_p < t->k)
            ahead = gckpti_fetch_block(t, next_p, gckpti_min(t->k - next_p, by.deep), next_j,
                                       gckpti_min(j1 - next_j, by.wide),
                                       (i1 - i0 + high - 1) / high * count);
        if (!by.in_place || n % W)
            V(pack_panels)(t, b, n, k, by.in_place ? count - 1 : 0, panels, by.deep);
        for (int64_t i = i0, rows; i < i1; i += rows) {
            float *c = t->c + i * t->c_row + j;
            const int64_t in_strip = (i - i0) % GCKPTI_STRIP;
            rows = gckpti_min(i1 - i, high);
            u.a = a + i * t->a_row;
            if (!by.strips && t->a_step == 1 && t->m >= MANY && j == j0 && i + 2 * high <= i1) {
                below.x = u.a + high * t->a_row, below.row = t->a_row, below.rows = high;
                below.width = k, below.at = 0;
                below.pace = 1 + high * ((k + 15) / 16) / count;
            }
            if (by.strips && in_strip == 0 && i + GCKPTI_STRIP < i1) {
                below.x = u.a + GCKPTI_STRIP, below.rows = k;
                below.pace = 1 + k * high / (GCKPTI_STRIP * count);
            }
            if (by.strips && in_strip == 0)
                V(pack_strip)(u.a, t->a_step, gckpti_min(i1 - i, GCKPTI_STRIP), k, pack, by.deep);
            if (by.strips)
                u.a = pack + in_strip * by.deep, u.a_row = 1, u.a_step = high;
            for (int64_t q = 0; q < count; q++) {
                int64_t at = V(panel)(n, q), width = V(panel)(n, q + 1) - at;
                u.last = gckpti_min(n - at - width + W, W);
                u.b = panels + at * by.deep, u.b_step = width;
                if (by.in_place && u.last == W)
                    u.b = b + at, u.b_step = t->b_step;
                u.c = c + at;
                u.from = u.c, u.from_row = t->c_row;
                if (p == 0) {
                    u.from = t->from ? t->from + i * t->from_row + j + at : NULL;
                    u.from_row = t->from_row;
                }
                u.next = u.c; /* the tile to come */
                if (q + 1 < count)
                    u.next += width;
                else if (i1 - i >= 2 * high)
                    u.next = c + rows * t->c_row;
                gckpti_fetch_some(&ahead);
                gckpti_fetch_some(&below);
                V(tiles)[width / W - 1][rows - 1](&u);
            }
        }
        p = next_p, j = next_j;
    } while (p < t->k || j > j0);
}

/* ---- exp, tanh, erf and the row reductions of numerics, operation by operation ---- */
GCKPTI_INLINED FLOATS V(poly)(const float *c, int n, FLOATS x)
{
    FLOATS p = V(set1)(c[n - 1]);
    for (int i = n - 2; i >= 0; i--)
        p = V(fma)(p, x, V(set1)(c[i]));
    return p;
}

GCKPTI_INLINED FLOATS V(exp_reduce)(FLOATS x, FLOATS *r, INTS *n)
{
    const FLOATS round = V(set1)(GCKPTI_ROUND);
    FLOATS t = V(fma)(x, V(set1)(GCKPTI_LOG2E), round);
    FLOATS k = t - round;
    *n = V(bits)(t) - V(bits)(round);
    *r = V(fma)(k, V(set1)(-GCKPTI_LN2_HI), x);
    *r = V(fma)(k, V(set1)(-GCKPTI_LN2_LO), *r);
    return V(fma)(V(poly)(gckpti_exp_c, 5, *r), *r, V(set1)(1.0f));
}

/* gckpti_exp: 2^n = 2^half 2^(n - half), so that neither leaves the range. */
GCKPTI_INLINED FLOATS V(exp)(FLOATS x)
{
    FLOATS r, p, s;
    INTS n, half;
    x = V(max)(V(set1)(GCKPTI_EXP_MIN), x);
    x = V(min)(V(set1)(GCKPTI_EXP_MAX), x);
    p = V(exp_reduce)(x, &r, &n);
    n = n + 254;
    half = n >> 1;
    s = V(exponent)(half);
    p = V(fma)(r * s, p, s);
    return V(fma)(p, V(exponent)(n - half), V(zero)());
}

/* gckpti_tanh, gckpti_erf: of |x|, near 0 by a polynomial, else by exp; both are computed. */
GCKPTI_INLINED FLOATS V(tanh)(FLOATS x)
{
    const FLOATS one = V(set1)(1.0f), two = V(set1)(2.0f);
    FLOATS sign = V(both)(x, V(set1)(-0.0f)), a = V(differ)(x, sign);
    FLOATS z = a * a, p = V(poly)(gckpti_tanh_c, 7, z), r, s;
    FLOATS small = V(fma)(a * z, p, a);
    INTS n;
    r = V(min)(V(set1)(GCKPTI_TANH_MAX), a + a);
    p = V(exp_reduce)(r, &r, &n);
    s = V(exponent)(n + 127);
    p = V(fma)(r * s, p, s + one);
    p = one - two / p;
    p = V(less)(a, V(set1)(GCKPTI_TANH_SPLIT), small, p);
    return V(either)(p, sign);
}

GCKPTI_INLINED FLOATS V(erf)(FLOATS x)
{
    const FLOATS one = V(set1)(1.0f);
    FLOATS sign = V(both)(x, V(set1)(-0.0f)), a = V(differ)(x, sign);
    FLOATS p = V(poly)(gckpti_erf_c, 7, a * a), b, r, s;
    FLOATS small = V(fma)(a, p, a);
    INTS n;
    b = V(min)(V(set1)(GCKPTI_ERF_MAX), a);
    p = V(poly)(gckpti_erfc_c, 7, b);
    b = V(differ)(b, V(set1)(-0.0f));
    p = V(exp_reduce)(V(fma)(p, b, V(zero)()), &r, &n);
    s = V(exponent)(n + 127);
    p = V(fnma)(r * s, p, one - s);
    return V(either)(V(less)(a, V(set1)(GCKPTI_ERF_SPLIT), small, p), sign);
}

/* Of finite x >= 1. */
GCKPTI_INLINED FLOATS V(log)(FLOATS x)
{
    const INTS u = V(bits)(x) + 0x00555555;
    FLOATS n = V(floats)((u >> 23) + 0x4b000000), f, f2, p;
    FLOATS high, low;
    n = n - V(set1)(8388608.0f + 127.0f); /* the bits above were 2^23 + n */
    f = V(floats)((u & 0x007fffff) + 0x3f2aaaab);
    f = f - V(set1)(1.0f), f2 = f * f;
    p = V(poly)(gckpti_log_c, 9, f);
    high = V(fma)(n, V(set1)(0.693359375f), f);
    low = high - n * V(set1)(0.693359375f);
    low = f - low;
    low = V(fma)(V(set1)(-0.5f), f2, V(fma)(n, V(set1)(-2.12194440e-4f), low));
    return high + V(fma)(f * f2, p, low);
}

/* A row's 32 lanes are 32 / W vectors with names: arrays of them would live in memory. */
#if W == 16
#define GCKPTI_EACH_LANE(X) X(0) X(1)
#define GCKPTI_LANES(op)    V(op)(lane1, lane0)
#elif W == 8
#define GCKPTI_EACH_LANE(X) X(0) X(1) X(2) X(3)
#define GCKPTI_LANES(op)    V(op)(V(op)(lane3, lane1), V(op)(lane2, lane0))
#else
#define GCKPTI_EACH_LANE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define GCKPTI_LANES(op)                                                                           \
    V(op)                                                                                          \
    (V(op)(V(op)(lane7, lane3), V(op)(lane5, lane1)),                                              \
     V(op)(V(op)(lane6, lane2), V(op)(lane4, lane0)))
#endif

/* What a row's elements at..at+W-1, of which `left` exist, add to their lanes. */
GCKPTI_INLINED FLOATS V(term)(const gckpti_row *row, int64_t at, int64_t left, FLOATS sum)
{
    FLOATS x = V(load_n)(row->x + at, left), y;
    if (row->kind == GCKPTI_SUM)
        return x - V(set1)(row->first) + sum;
    if (row->kind == GCKPTI_PRODUCTS)
        return V(fma)(x, V(load_n)(row->y + at, left), V(zero)()) + sum;
    if (row->kind == GCKPTI_TOP)
        return V(max)(x, sum);
    if (row->kind == GCKPTI_DOT)
        return V(fma)(x, V(load_n)(row->y + at, left), sum);
    if (row->kind == GCKPTI_EXP) {
        x = V(exp)(x - V(set1)(row->mean));
        if (row->out)
            V(store_n)(row->out + at, x, left);
        return sum + x;
    }
    x = x - V(set1)(row->first) - V(set1)(row->mean);
    if (row->kind == GCKPTI_SQUARES)
        return V(fma)(x, x, sum);
    x = x * V(set1)(row->rstd);
    y = V(load_n)(row->y + at, left);
    if (row->z)
        y = V(fma)(y, V(load_n)(row->z + at, left), V(zero)());
    return V(fma)(y, x, sum);
}

/* All terms of a row into its lanes, and these folded by halves: the sum, or the greatest. */
GCKPTI_INLINED float V(reduce)(const gckpti_row *row, int64_t n)
{
#define GCKPTI_LANE_START(i) FLOATS lane##i = start;
#define GCKPTI_LANE_TERM(i)  lane##i = V(term)(row, at + W * (i), W, lane##i);
#define GCKPTI_LANE_REST(i)                                                                        \
    if (at < n)                                                                                    \
        lane##i = V(upto)(n - at, V(term)(row, at, n - at, lane##i), lane##i);                     \
    at += W;
    const FLOATS start = V(set1)(row->kind == GCKPTI_TOP ? -GCKPTI_INFINITY : 0.0f);
    int64_t at = 0;
    GCKPTI_EACH_LANE(GCKPTI_LANE_START)
    for (; at + 32 <= n; at += 32) {
        GCKPTI_EACH_LANE(GCKPTI_LANE_TERM)
    }
    GCKPTI_EACH_LANE(GCKPTI_LANE_REST)
    return row->kind == GCKPTI_TOP ? V(fold_max)(GCKPTI_LANES(max))
                                   : V(fold_sum)(GCKPTI_LANES(add));
#undef GCKPTI_LANE_START
#undef GCKPTI_LANE_TERM
#undef GCKPTI_LANE_REST
}

/* gckpti_dot, gckpti_sum, gckpti_max */
static GCKPTI_TARGET float V(dot)(const float *x, const float *y, int64_t n)
{
    const gckpti_row row = { GCKPTI_DOT, x, y, NULL, NULL, 0.0f, 0.0f, 0.0f };
    return V(reduce)(&row, n);
}

static GCKPTI_TARGET float V(sum)(const float *x, int64_t n)
{
    const gckpti_row row = { GCKPTI_SUM, x, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    return V(reduce)(&row, n);
}

static GCKPTI_TARGET float V(top)(const float *x, int64_t n)
{
    const gckpti_row row = { GCKPTI_TOP, x, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    return V(reduce)(&row, n);
}

/* gckpti_online: p[j] = exp(x[j] - max), p may be x or NULL. */
static GCKPTI_TARGET float V(online)(const float *x, float *p, int64_t n, int first, float *max,
                                     float *sum)
{
    gckpti_row row = { GCKPTI_EXP, x, NULL, NULL, p, 0.0f, 0.0f, 0.0f };
    float factor = 0.0f, added;
    float top = V(top)(x, n);
    top = first || top > *max ? top : *max;
    row.mean = gckpti_shift(top);
    if (!first)
        factor = gckpti_exp(*max - row.mean);
    added = V(reduce)(&row, n);
    *sum = first ? added : gckpti_fma(*sum, factor, added);
    *max = top;
    return factor;
}

/* gckpti_put_product and gckpti_link */
GCKPTI_INLINED void V(put)(float *d, FLOATS a, FLOATS b, int accumulate, int64_t n)
{
    if (accumulate)
        a = V(fma)(a, b, V(load_n)(d, n));
    else
        a = a * b;
    V(store_n)(d, a, n);
}

static GCKPTI_TARGET void V(divide)(float *x, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(x + i, V(load_n)(x + i, n - i) / V(set1)(by), n - i);
}

static GCKPTI_TARGET void V(add_to)(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(to + i, V(load_n)(to + i, n - i) + V(load_n)(from + i, n - i), n - i);
}

static GCKPTI_TARGET float V(square_sum)(const float *x, int64_t n) { return V(dot)(x, x, n); }

/* gckpti_plain_adamw */
static GCKPTI_TARGET void V(adamw)(float *w, const float *g, float *m, float *v, int64_t n,
                                   const gckpti_adamw *a)
{
    for (int64_t i = 0; i < n; i += W) {
        int64_t left = n - i;
        FLOATS d = V(load_n)(g + i, left) * V(set1)(a->scale);
        FLOATS w1 = V(load_n)(w + i, left);
        FLOATS m1 = V(set1)(a->rest1) * d;
        FLOATS v1 = V(set1)(a->rest2) * (d * d);
        m1 = V(fma)(V(set1)(a->beta1), V(load_n)(m + i, left), m1);
        v1 = V(fma)(V(set1)(a->beta2), V(load_n)(v + i, left), v1);
        d = V(sqrt)(v1 * V(set1)(a->correct2));
        d = m1 / (d + V(set1)(a->eps));
        w1 = V(fnma)(V(set1)(a->decay), w1, w1);
        V(store_n)(m + i, m1, left);
        V(store_n)(v + i, v1, left);
        V(store_n)(w + i, V(fnma)(V(set1)(a->rate), d, w1), left);
    }
}

/* ---- elementwise ops ---- */
GCKPTI_INLINED FLOATS V(gelu_tanh)(FLOATS x)
{
    FLOATS u = V(fma)(x * x, V(set1)(GCKPTI_GELU_C3), V(set1)(GCKPTI_GELU_C1));
    return V(tanh)(x * u);
}

GCKPTI_INLINED FLOATS V(one_and_exp)(FLOATS x)
{
    x = V(exp)(V(differ)(x, V(set1)(-0.0f)));
    return V(set1)(1.0f) + x;
}

/* The value of an elementwise op, by the steps of gckpti_gelu and the others in >>ops (a change of
 * one is a change of both); of curves y is not used. */
GCKPTI_INLINED FLOATS V(value)(int kind, FLOATS x, FLOATS y)
{
    const FLOATS zero = V(zero)(), one = V(set1)(1.0f), half = V(set1)(0.5f) * x;
    if (kind == GCKPTI_ADD)
        return x + y;
    if (kind == GCKPTI_SUB)
        return x - y;
    if (kind == GCKPTI_MUL)
        return x * y;
    if (kind == GCKPTI_RELU)
        return V(less)(x, zero, zero, x);
    if (kind == GCKPTI_GELU)
        return V(fma)(half, V(gelu_tanh)(x), half);
    if (kind == GCKPTI_GELU_ERF)
        return V(fma)(half, V(erf)(V(set1)(0.707106781f) * x), half);
    if (kind == GCKPTI_TANH)
        return V(tanh)(x);
    return (kind == GCKPTI_SILU ? x : one) / V(one_and_exp)(x);
}

/* By this the gradient is multiplied (relu: it is taken or left). tanh and sigmoid take their slope
 * at the result; mul's is the other input. */
GCKPTI_INLINED FLOATS V(slope)(int kind, FLOATS x)
{
    const FLOATS one = V(set1)(1.0f), half = V(set1)(0.5f);
    FLOATS t, u;
    if (kind == GCKPTI_MUL)
        return x;
    if (kind == GCKPTI_TANH)
        return V(fnma)(x, x, one);
    if (kind == GCKPTI_SIGMOID)
        return V(fnma)(x, x, x);
    if (kind == GCKPTI_SILU) {
        t = one / V(one_and_exp)(x);
        return V(fma)(x * t, one - t, t);
    }
    if (kind == GCKPTI_GELU_ERF) {
        t = V(erf)(V(set1)(0.707106781f) * x);
        u = V(exp)(V(set1)(-0.5f) * x * x);
        return V(fma)(V(set1)(0.398942280f) * x, u, V(fma)(half, t, half));
    }
    t = V(gelu_tanh)(x);
    u = V(fma)(x * x, V(set1)(3.0f * GCKPTI_GELU_C3), V(set1)(GCKPTI_GELU_C1));
    x = half * x * V(fnma)(t, t, one);
    return V(fma)(x, u, V(fma)(half, t, half));
}

/* An elementwise op has a loop for each kind, so that `kind` is a constant in it. */
#define GCKPTI_EACH_CURVE(X)                                                                       \
    X(GCKPTI_RELU) X(GCKPTI_GELU) X(GCKPTI_GELU_ERF) X(GCKPTI_SILU) X(GCKPTI_TANH) X(GCKPTI_SIGMOID)
static GCKPTI_TARGET void V(elementwise_forward)(const gckpt_call *call, int kind)
{
    const float *x = call->in[0].data, *y = call->in[kind < GCKPTI_ADD ? 0 : 1].data;
    float *out = call->out;
    int64_t n = gckpti_elements(&call->shape);
#define GCKPTI_KIND(k)                                                                             \
    case k:                                                                                        \
        for (int64_t j = 0; j < n; j += W) {                                                       \
            FLOATS u = V(load_n)(x + j, n - j), v = k < GCKPTI_ADD ? u : V(load_n)(y + j, n - j);  \
            V(store_n)(out + j, V(value)(k, u, v), n - j);                                         \
        }                                                                                          \
        break;
    switch (kind) {
        GCKPTI_EACH_CURVE(GCKPTI_KIND)
        GCKPTI_KIND(GCKPTI_ADD)
        GCKPTI_KIND(GCKPTI_SUB)
        GCKPTI_KIND(GCKPTI_MUL)
    }
#undef GCKPTI_KIND
}

/* d (+)= g times the slope at x */
GCKPTI_INLINED void V(put_slope)(int kind, float *d, FLOATS g, FLOATS x, int accumulate, int64_t n)
{
    if (kind == GCKPTI_RELU) {
        g = V(less)(V(zero)(), x, g, V(zero)());
        if (accumulate)
            g = V(load_n)(d, n) + g;
        V(store_n)(d, g, n);
    } else {
        V(put)(d, g, V(slope)(kind, x), accumulate, n);
    }
}

/* The gradient of input i. */
static GCKPTI_TARGET void V(slopes)(const gckpt_call *call, int kind, int i)
{
    int at_out = kind == GCKPTI_RELU || kind == GCKPTI_TANH || kind == GCKPTI_SIGMOID;
    const float *x = at_out ? call->out : call->in[kind == GCKPTI_MUL ? 1 - i : 0].data;
    const float *g = call->grad_out;
    float *d = call->in[i].grad;
    int64_t n = gckpti_elements(&call->shape);
    int accumulate = call->in[i].accumulate;
#define GCKPTI_KIND(k)                                                                             \
    case k:                                                                                        \
        for (int64_t j = 0; j < n; j += W)                                                         \
            V(put_slope)                                                                           \
        (k, d + j, V(load_n)(g + j, n - j), V(load_n)(x + j, n - j), accumulate, n - j);           \
        break;
    switch (kind) {
        GCKPTI_EACH_CURVE(GCKPTI_KIND)
        GCKPTI_KIND(GCKPTI_MUL)
    }
#undef GCKPTI_KIND
}
#undef GCKPTI_EACH_CURVE

static GCKPTI_TARGET void V(elementwise_backward)(const gckpt_call *call, int kind)
{
    if (kind == GCKPTI_ADD || kind == GCKPTI_SUB)
        (kind == GCKPTI_ADD ? gckpti_add_backward : gckpti_sub_backward)(call);
    else
        for (int i = 0; i < call->inputs; i++)
            if (call->in[i].grad)
                V(slopes)(call, kind, i);
}

/* ---- softmax, layernorm and rmsnorm: a row ---- */
static GCKPTI_TARGET void V(softmax_forward)(const gckpt_call *call, int64_t r)
{
    int64_t n = gckpti_last(&call->shape);
    float max, sum, *y = call->out + r * n;
    V(online)(call->in[0].data + r * n, y, n, 1, &max, &sum);
    gckpti_softmax_end(&max, &sum);
    V(divide)(y, sum, n);
}

static GCKPTI_TARGET void V(softmax_backward)(const gckpt_call *call, int64_t r)
{
    int64_t n = gckpti_last(&call->shape);
    const float *y = call->out + r * n, *g = call->grad_out + r * n;
    float *d = call->in[0].grad + r * n;
    int accumulate = call->in[0].accumulate;
    const FLOATS dot = V(set1)(V(dot)(g, y, n));
    for (int64_t j = 0; j < n; j += W)
        V(put)(d + j, V(load_n)(y + j, n - j), V(load_n)(g + j, n - j) - dot, accumulate, n - j);
}

/* Formulas and aux of these two: see layernorm among the plain ops. */
static GCKPTI_TARGET void V(norm_forward)(const gckpt_call *call, int64_t r)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    int64_t n = gckpti_last(&call->shape);
    const float *gain = o->gain ? call->in[o->gain].data : NULL, *x = call->in[0].data + r * n;
    const float *bias = o->bias ? call->in[o->bias].data : NULL;
    gckpti_row row = { GCKPTI_SUM, x, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    if (o->center) {
        row.first = x[0];
        row.first += V(reduce)(&row, n) / (float)n;
        row.mean = V(reduce)(&row, n) / (float)n;
    }
    row.kind = GCKPTI_SQUARES;
    row.rstd = gckpti_rsqrt(V(reduce)(&row, n) / (float)n + 1e-5f);
    const FLOATS center = V(set1)(row.mean), rstd = V(set1)(row.rstd);
    const FLOATS first = V(set1)(row.first);
    for (int64_t j = 0; call->out && j < n; j += W) {
        FLOATS h = V(load_n)(x + j, n - j) - first - center, y = rstd;
        if (gain)
            h = h * rstd, y = V(load_n)(gain + j, n - j);
        if (bias)
            y = V(fma)(h, y, V(load_n)(bias + j, n - j));
        else
            y = h * y;
        V(store_n)(call->out + r * n + j, y, n - j);
    }
    float *aux = (float *)call->aux;
    if (aux && o->center) {
        aux[3 * r] = row.first;
        aux[3 * r + 1] = row.mean;
    }
    if (aux)
        aux[o->center ? 3 * r + 2 : r] = row.rstd;
}

static GCKPTI_TARGET void V(norm_backward)(const gckpt_call *call, int64_t r)
{
    const gckpti_norm *o = (const gckpti_norm *)call->attributes;
    const gckpti_row row = gckpti_norm_row(call, r);
    int64_t n = gckpti_last(&call->shape);
    const FLOATS mean = V(set1)(row.mean), rstd = V(set1)(row.rstd);
    const FLOATS first = V(set1)(row.first), zero = V(zero)();
    const gckpti_row products = { GCKPTI_PRODUCTS, row.y, row.z, NULL, NULL, 0.0f, 0.0f, 0.0f };
    float sum = !o->center ? 0.0f : row.z ? V(reduce)(&products, n) : V(sum)(row.y, n);
    const FLOATS a = V(set1)(sum / (float)n);
    const FLOATS b = V(set1)(V(reduce)(&row, n) / (float)n);
    for (int64_t j = 0; j < n; j += W) {
        FLOATS h = V(load_n)(row.x + j, n - j) - first;
        FLOATS u = V(load_n)(row.y + j, n - j);
        if (row.z)
            u = V(fma)(u, V(load_n)(row.z + j, n - j), zero);
        h = (h - mean) * rstd;
        u = V(fnma)(h, b, u - a);
        V(put)(call->in[0].grad + r * n + j, rstd, u, call->in[0].accumulate, n - j);
    }
}

/* ---- bf16 ---- */
GCKPTI_INLINED FLOATS V(load_bf16)(const uint16_t *x, int64_t n)
{
    float wide[W] = { 0.0f };
#if GCKPTI_ISA == 3
    if (n >= 16) {
        __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)x));
        return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    }
#elif GCKPTI_ISA == 2
    if (n >= 8) {
        __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)x));
        return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    }
#endif
    for (int64_t i = 0; i < W && i < n; i++)
        wide[i] = gckpti_from_bf16(x[i]);
    return V(load)(wide);
}

static GCKPTI_TARGET void V(widen)(const uint16_t *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += W)
        V(store_n)(y + i, V(load_bf16)(x + i, n - i), n - i);
}

/* gckpti_to_bf16: to nearest even; NaN stays NaN, subnormals become zeros of their sign. */
static GCKPTI_TARGET void V(narrow)(const float *x, uint16_t *y, int64_t n)
{
    int64_t i = 0;
#if GCKPTI_ISA == 2 || GCKPTI_ISA == 3
    const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff);
    const __m256i all = _mm256_set1_epi32(0x7fffffff), inf = _mm256_set1_epi32(0x7f800000);
    const __m256i quiet = _mm256_set1_epi32(0x400000), least = _mm256_set1_epi32(0x7fffff);
    for (; i + 8 <= n; i += 8) {
        __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        __m256i size = _mm256_and_si256(u, all),
                odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
        __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, half));
        r = _mm256_blendv_epi8(r, _mm256_or_si256(u, quiet), _mm256_cmpgt_epi32(size, inf));
        r = _mm256_blendv_epi8(_mm256_andnot_si256(all, u), r, _mm256_cmpgt_epi32(size, least));
        r = _mm256_srli_epi32(r, 16);
        r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 8);
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_castsi256_si128(r));
    }
#endif
    for (; i < n; i++)
        y[i] = gckpti_to_bf16(x[i]);
}

#if GCKPTI_ISA == 2 || GCKPTI_ISA == 3
/* 8 rows of c, `width` columns (16, 32 or 48): a pair of links a word; the first one is the upper
 * half. Subnormals are flushed (x86 does so after rounding, as its bf16 instructions do). */
static GCKPTI_TARGET void V(mixed_tile)(int64_t pairs, const uint32_t *a, int64_t a_step,
                                        const uint32_t *b, int64_t width, float *c, int64_t c_row)
{
    const FLOATS upper = V(set1)(gckpti_float(0xffff0000u));
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040u);
    for (int64_t i = 0; i < 8; i += 4)
        for (int64_t j = 0; j < width; j += W) {
            const uint32_t *at = a + i, *of = b + j;
            float *to = c + i * c_row + j;
            FLOATS c0 = V(load)(to), c1 = V(load)(to + c_row);
            FLOATS c2 = V(load)(to + 2 * c_row), c3 = V(load)(to + 3 * c_row);
            for (int64_t p = 0; p < pairs; p++, at += a_step, of += width) {
                float words[W];
                memcpy(words, of, sizeof words);
                FLOATS both = V(load)(words), h = V(both)(both, upper);
                FLOATS l = V(floats)(V(bits)(both) << 16);
#define GCKPTI_MIXED_ROW(r)                                                                        \
    c##r = V(fma)(V(set1)(gckpti_float(at[r] & 0xffff0000u)), h, c##r);                            \
    c##r = V(fma)(V(set1)(gckpti_float(at[r] << 16)), l, c##r);
                GCKPTI_MIXED_ROW(0)
                GCKPTI_MIXED_ROW(1)
                GCKPTI_MIXED_ROW(2)
                GCKPTI_MIXED_ROW(3)
#undef GCKPTI_MIXED_ROW
            }
            V(store)(to, c0);
            V(store)(to + c_row, c1);
            V(store)(to + 2 * c_row, c2);
            V(store)(to + 3 * c_row, c3);
        }
    _mm_setcsr(mode);
}
#endif

#if GCKPTI_ISA == 3 && GCKPTI_BF16
#define GCKPTI_TARGET_BF16                                                                         \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma")))
#define GCKPTI_INLINED_BF16 static inline __attribute__((always_inline)) GCKPTI_TARGET_BF16
/* vdpbf16ps takes the upper halves first: c = fma(l, l', fma(h, h', c)), subnormals flushed. */
static GCKPTI_TARGET_BF16 void gckpti_mixed_tile_bf16(int64_t pairs, const uint32_t *a,
                                                      int64_t a_step, const uint32_t *b,
                                                      int64_t width, float *c, int64_t c_row)
{
#define GCKPTI_MIXED_EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define GCKPTI_MIXED_LOAD(i)                                                                       \
    __m512 l##i = _mm512_loadu_ps(c + (i)*c_row), m##i = _mm512_loadu_ps(c + (i)*c_row + second),  \
           h##i = _mm512_loadu_ps(c + (i)*c_row + third);
#define GCKPTI_MIXED_STEP(i)                                                                       \
    x = (__m512bh)_mm512_set1_epi32((int)a[i]);                                                    \
    l##i = _mm512_dpbf16_ps(l##i, x, (__m512bh)b0);                                                \
    m##i = _mm512_dpbf16_ps(m##i, x, (__m512bh)b1);                                                \
    h##i = _mm512_dpbf16_ps(h##i, x, (__m512bh)b2);
#define GCKPTI_MIXED_STORE(i)                                                                      \
    _mm512_storeu_ps(c + (i)*c_row, l##i);                                                         \
    _mm512_storeu_ps(c + (i)*c_row + second, m##i);                                                \
    _mm512_storeu_ps(c + (i)*c_row + third, h##i);
    const int64_t second = width > 16 ? 16 : 0, third = width > 32 ? 32 : second;
    __m512bh x;
    GCKPTI_MIXED_EACH(GCKPTI_MIXED_LOAD)
    for (; pairs > 0; pairs--, a += a_step, b += width) {
        __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + second);
        __m512i b2 = _mm512_loadu_si512(b + third);
        GCKPTI_MIXED_EACH(GCKPTI_MIXED_STEP)
    }
    GCKPTI_MIXED_EACH(GCKPTI_MIXED_STORE)
#undef GCKPTI_MIXED_EACH
#undef GCKPTI_MIXED_LOAD
#undef GCKPTI_MIXED_STEP
#undef GCKPTI_MIXED_STORE
}

/* 32 elements from x[at] (n < 32: then zeros) as bf16, element 2 q in the lower half of word q. */
GCKPTI_INLINED_BF16 __m512i gckpti_mixed_load(const gckpti_factor *x, int64_t at, int64_t n)
{
    const __mmask32 mask = n >= 32 ? 0xffffffffu : (__mmask32)((1u << n) - 1u);
    if (x->bf16)
        return _mm512_maskz_loadu_epi16(mask, x->bf16 + at);
    return (__m512i)_mm512_cvtne2ps_pbh(
        _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x->f32 + at + 16),
        _mm512_maskz_loadu_ps((__mmask16)mask, x->f32 + at));
}

/* d[q * width + i]: word q of row i, for 8 rows and `pairs` (at most 16) words of each. */
GCKPTI_INLINED_BF16 void gckpti_mixed_turn(const __m512i *r, int64_t pairs, uint32_t *d,
                                           int64_t width)
{
    __m512i u[8];
    uint32_t edge[16 * 8], *to = pairs < 16 ? edge : d;
    int64_t step = pairs < 16 ? 8 : width;
    for (int i = 0; i < 2; i++) {
        __m512i l01 = _mm512_unpacklo_epi32(r[4 * i], r[4 * i + 1]);
        __m512i h01 = _mm512_unpackhi_epi32(r[4 * i], r[4 * i + 1]);
        __m512i l23 = _mm512_unpacklo_epi32(r[4 * i + 2], r[4 * i + 3]);
        __m512i h23 = _mm512_unpackhi_epi32(r[4 * i + 2], r[4 * i + 3]);
        u[4 * i] = _mm512_unpacklo_epi64(l01, l23), u[4 * i + 1] = _mm512_unpackhi_epi64(l01, l23);
        u[4 * i + 2] = _mm512_unpacklo_epi64(h01, h23);
        u[4 * i + 3] = _mm512_unpackhi_epi64(h01, h23);
    }
    for (int q = 0; q < 4; q++) {
        __m512i low = _mm512_shuffle_i32x4(u[q], u[4 + q], 0x44);
        __m512i high = _mm512_shuffle_i32x4(u[q], u[4 + q], 0xee);
        low = _mm512_shuffle_i32x4(low, low, 0xd8), high = _mm512_shuffle_i32x4(high, high, 0xd8);
        _mm256_storeu_si256((__m256i *)(void *)(to + q * step), _mm512_castsi512_si256(low));
        _mm256_storeu_si256((__m256i *)(void *)(to + (4 + q) * step),
                            _mm512_extracti64x4_epi64(low, 1));
        _mm256_storeu_si256((__m256i *)(void *)(to + (8 + q) * step), _mm512_castsi512_si256(high));
        _mm256_storeu_si256((__m256i *)(void *)(to + (12 + q) * step),
                            _mm512_extracti64x4_epi64(high, 1));
    }
    for (int64_t q = 0; q < pairs && pairs < 16; q++)
        memcpy(d + q * width, edge + 8 * q, 8 * sizeof *d);
}

/* Words of one pair of links: 16 lanes of `first` in the upper halves, of `second` in the lower. */
GCKPTI_INLINED_BF16 __m512i gckpti_mixed_pair(__m256i first, __m256i second)
{
    return _mm512_or_si512(_mm512_slli_epi32(_mm512_cvtepu16_epi32(first), 16),
                           _mm512_cvtepu16_epi32(second));
}

/* gckpti_mixed_pack: lanes that lie side by side two links at a time, else 8 lanes of 32 links. */
static GCKPTI_TARGET_BF16 void gckpti_mixed_pack_bf16(const gckpti_factor *x, int64_t at, int64_t n,
                                                      int64_t k, uint16_t odd, uint32_t *d,
                                                      int64_t width)
{
    const __m512i none = _mm512_set1_epi16((short)odd);
    for (int64_t p = 0; p < k && x->row == 1; p += 2, d += width)
        for (int64_t i = 0; i < width; i += 32) {
            int64_t lanes = gckpti_min(n - i, 32), from = at + i + p * x->step;
            __m512i first = gckpti_mixed_load(x, from, lanes);
            __m512i second = p + 1 < k ? gckpti_mixed_load(x, from + x->step, lanes) : none;
            __m512i low =
                gckpti_mixed_pair(_mm512_castsi512_si256(first), _mm512_castsi512_si256(second));
            if (width == 8)
                _mm256_storeu_si256((__m256i *)(void *)d, _mm512_castsi512_si256(low));
            else
                _mm512_storeu_si512(d + i, low);
            if (width - i > 16)
                _mm512_storeu_si512(d + i + 16,
                                    gckpti_mixed_pair(_mm512_extracti64x4_epi64(first, 1),
                                                      _mm512_extracti64x4_epi64(second, 1)));
        }
    for (int64_t i = 0; i < width && x->row != 1; i += 8)
        for (int64_t p = 0; p < k; p += 32) {
            __m512i r[8];
            for (int64_t l = 0; l < 8; l++) {
                r[l] = _mm512_setzero_si512();
                if (i + l < n)
                    r[l] = gckpti_mixed_load(x, at + (i + l) * x->row + p, k - p);
                r[l] = _mm512_rol_epi32(r[l], 16);
                if (k - p < 32 && k % 2)
                    r[l] = _mm512_mask_or_epi32(r[l], (__mmask16)(1u << (k - p) / 2), r[l],
                                                _mm512_set1_epi32(odd));
            }
            gckpti_mixed_turn(r, gckpti_min((k - p + 1) / 2, 16), d + p / 2 * width + i, width);
        }
}

static const gckpti_mixed_kernels gckpti_mixed_kernels_bf16 = { gckpti_mixed_tile_bf16,
                                                                gckpti_mixed_pack_bf16, V(widen),
                                                                V(narrow) };
#undef GCKPTI_TARGET_BF16
#undef GCKPTI_INLINED_BF16
#endif

static const gckpti_mixed_kernels V(mixed_kernels) = {
#if GCKPTI_ISA == 2 || GCKPTI_ISA == 3
    V(mixed_tile),
#else
    NULL,
#endif
    gckpti_mixed_pack, V(widen), V(narrow)
};

/* ---- sums over rows, from the first to the last: bias += g, gain += g * normalised x, as
 * gckpti_sum_add does; those of 4 vectors of columns stay in registers ---- */
GCKPTI_INLINED void V(sum_add)(FLOATS *sum, FLOATS *low, FLOATS x)
{
    FLOATS y = x - *low, s = *sum + y;
    *low = s - *sum - y;
    *sum = s;
}

GCKPTI_INLINED FLOATS V(sum_load)(const float *x, int64_t at, int64_t n)
{
    return x && n > 0 ? V(load_n)(x + at, n) : V(zero)();
}

GCKPTI_INLINED void V(sum_store)(float *d, int64_t at, FLOATS x, int64_t n)
{
    if (d && n > 0)
        V(store_n)(d + at, x, n);
}

#define GCKPTI_EACH_SUM(X) X(0) X(1) X(2) X(3)
/* Columns j..j+n-1, at most 4 vectors; gain, bias: whether there is one, constants if it pays. */
GCKPTI_INLINED void V(columns_of)(const gckpti_columns *s, int64_t j, int64_t n, int gain, int bias)
{
    const int64_t c = gckpti_last(&s->call->shape), rows = gckpti_rows(&s->call->shape);
    const float *g = s->call->grad_out;
    const uint16_t *narrow = s->call->grad_out_bf16;
    int64_t at = j;
#define GCKPTI_LEFT(i) (n - W * (i))
#define GCKPTI_SUM_START(i)                                                                        \
    FLOATS bias##i = V(sum_load)(s->bias, j + W * (i), GCKPTI_LEFT(i));                            \
    FLOATS gain##i = V(sum_load)(s->gain, j + W * (i), GCKPTI_LEFT(i));                            \
    FLOATS bias_low##i = V(sum_load)(s->bias_low, j + W * (i), GCKPTI_LEFT(i));                    \
    FLOATS gain_low##i = V(sum_load)(s->gain_low, j + W * (i), GCKPTI_LEFT(i));
#define GCKPTI_SUM_ROW(i)                                                                          \
    if (GCKPTI_LEFT(i) > 0) {                                                                      \
        FLOATS x = g ? V(load_n)(g + at + W * (i), GCKPTI_LEFT(i))                                 \
                     : V(load_bf16)(narrow + at + W * (i), GCKPTI_LEFT(i));                        \
        if (bias)                                                                                  \
            V(sum_add)(&bias##i, &bias_low##i, x);                                                 \
        if (gain) {                                                                                \
            FLOATS h = V(load_n)(row.x + j + W * (i), GCKPTI_LEFT(i));                             \
            h = h - first - mean;                                                                  \
            x = V(fma)(x, h * rstd, zero);                                                         \
            V(sum_add)(&gain##i, &gain_low##i, x);                                                 \
        }                                                                                          \
    }
#define GCKPTI_SUM_END(i)                                                                          \
    V(sum_store)(s->bias, j + W * (i), bias##i, GCKPTI_LEFT(i));                                   \
    V(sum_store)(s->gain, j + W * (i), gain##i, GCKPTI_LEFT(i));                                   \
    V(sum_store)(s->bias_low, j + W * (i), bias_low##i, GCKPTI_LEFT(i));                           \
    V(sum_store)(s->gain_low, j + W * (i), gain_low##i, GCKPTI_LEFT(i));
    gckpti_row row = { GCKPTI_NORM, NULL, NULL, NULL, NULL, 0.0f, 0.0f, 0.0f };
    const FLOATS zero = V(zero)();
    GCKPTI_EACH_SUM(GCKPTI_SUM_START)
    for (int64_t r = 0; r < rows; r++, at += c) {
        if (gain)
            row = gckpti_norm_row(s->call, r);
        const FLOATS mean = V(set1)(row.mean), rstd = V(set1)(row.rstd);
        const FLOATS first = V(set1)(row.first);
        GCKPTI_EACH_SUM(GCKPTI_SUM_ROW)
        (void)mean, (void)rstd, (void)first;
    }
    GCKPTI_EACH_SUM(GCKPTI_SUM_END)
#undef GCKPTI_LEFT
#undef GCKPTI_SUM_START
#undef GCKPTI_SUM_ROW
#undef GCKPTI_SUM_END
}
#undef GCKPTI_EACH_SUM

static GCKPTI_TARGET void V(columns)(const gckpti_columns *s, int64_t first, int64_t end)
{
    for (int64_t j = first, n; j < end; j += n) {
        n = gckpti_min(end - j, 4 * W);
        if (!s->gain && n == 4 * W)
            V(columns_of)(s, j, 4 * W, 0, 1);
        else
            V(columns_of)(s, j, n, s->gain != NULL, s->bias != NULL);
    }
}

/* ---- attention ----
 * Scores lie transposed, [key][query], so that a query's softmax runs down a lane of the vectors:
 * no sum crosses one, and each keeps the order of the row's 32 lanes. Blocks of 64 queries meet
 * blocks of 64 keys; what their products read is packed, rows of `wide` floats. */
#if GCKPTI_ISA == 2
#define GCKPTI_BAND        6
#define GCKPTI_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)
#else
#define GCKPTI_BAND        8
#define GCKPTI_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#endif

/* c += chain of a(i,p) b(p) (from +0 if `fresh`), over at most GCKPTI_BAND rows and 2 vectors of
 * columns: k links, and at the diagonal a corner of links that not all rows have: row i the links
 * 0..i - late of it, after the others, or i - late.. of it, before them. b is read in whole
 * vectors. */
GCKPTI_INLINED void V(band_of)(const gckpti_band *s, int64_t rows, int64_t n, int64_t k,
                               int64_t corner, int64_t late, const float *a, const float *b,
                               float *c)
{
    const int64_t a_step = s->a_step, b_step = s->b_step, c_row = s->c_row;
#define GCKPTI_ROW_START(i)                                                                        \
    const float *a##i = a + ((i) < rows ? (i) : 0) * s->a_row;                                     \
    FLOATS l##i = V(zero)(), h##i = l##i;                                                          \
    if (!s->fresh && (i) < rows) {                                                                 \
        l##i = V(load_n)(c + (i)*c_row, n);                                                        \
        if (n > W)                                                                                 \
            h##i = V(load_n)(c + (i)*c_row + W, n - W);                                            \
    }
#define GCKPTI_ROW_LINK(i)                                                                         \
    x = V(set1)(*a##i), a##i += a_step;                                                            \
    l##i = V(fma)(x, b0, l##i), h##i = V(fma)(x, b1, h##i);
#define GCKPTI_ROW_CORNER(i)                                                                       \
    x = V(set1)(*a##i), a##i += a_step;                                                            \
    if (s->edge == GCKPTI_LINKS_TO ? p + late <= (i) : p + late >= (i))                            \
        l##i = V(fma)(x, b0, l##i), h##i = V(fma)(x, b1, h##i);
#define GCKPTI_ROW_STORE(i)                                                                        \
    if ((i) < rows) {                                                                              \
        V(store_n)(c + (i)*c_row, l##i, n);                                                        \
        if (n > W)                                                                                 \
            V(store_n)(c + (i)*c_row + W, h##i, n - W);                                            \
    }
#define GCKPTI_LINKS(count, ROW)                                                                   \
    for (int64_t p = 0; p < (count); p++, b += b_step) {                                           \
        FLOATS x, b0 = V(load)(b), b1 = V(load)(b + W);                                            \
        GCKPTI_EACH_ROW(ROW)                                                                       \
    }
    GCKPTI_EACH_ROW(GCKPTI_ROW_START)
    if (s->edge == GCKPTI_LINKS_FROM)
        GCKPTI_LINKS(corner, GCKPTI_ROW_CORNER)
    GCKPTI_LINKS(k, GCKPTI_ROW_LINK)
    if (s->edge == GCKPTI_LINKS_TO)
        GCKPTI_LINKS(corner, GCKPTI_ROW_CORNER)
    GCKPTI_EACH_ROW(GCKPTI_ROW_STORE)
#undef GCKPTI_ROW_START
#undef GCKPTI_ROW_LINK
#undef GCKPTI_ROW_CORNER
#undef GCKPTI_ROW_STORE
#undef GCKPTI_LINKS
}

static GCKPTI_TARGET void V(band)(const gckpti_band *s, int64_t rows, int64_t n, int64_t k,
                                  int64_t corner, int64_t late, const float *a, const float *b,
                                  float *c)
{
    if (rows == GCKPTI_BAND && n == 2 * W)
        V(band_of)(s, GCKPTI_BAND, 2 * W, k, corner, late, a, b, c);
    else
        V(band_of)(s, rows, n, k, corner, late, a, b, c);
}

/* The same for what the diagonal leaves of c (m,n). */
static GCKPTI_TARGET void V(bands)(const gckpti_band *s, int64_t m, int64_t n, int64_t k,
                                   const float *a, const float *b, float *c)
{
    for (int64_t i = 0; i < m; i += GCKPTI_BAND) {
        int64_t rows = gckpti_min(m - i, GCKPTI_BAND), links = k, skip = 0, corner = 0;
        int64_t at = s->edge == GCKPTI_LINKS_TO ? i + s->diagonal : i - s->diagonal;
        int64_t late = at < 0 ? -at : 0;
        at = at < 0 ? 0 : at;
        if (s->edge != GCKPTI_COLUMNS_FROM) {
            at = gckpti_min(at, k);
            corner = rows > late ? gckpti_min(k - at, rows - late) : 0;
            links = s->edge == GCKPTI_LINKS_TO ? at : k - at - corner;
            skip = s->edge == GCKPTI_LINKS_TO ? 0 : at;
            at = 0;
        }
        if (links + corner == 0 && !s->fresh)
            continue;
        const float *from = a + i * s->a_row + skip * s->a_step, *by = b + skip * s->b_step;
        for (int64_t j = at - at % (2 * W); j < n; j += 2 * W)
            V(band)
            (s, rows, gckpti_min(n - j, 2 * W), links, corner, late, from, by + j,
             c + i * s->c_row + j);
    }
}

/* Rows of a token of the head each, side by side: d[i * wide + j]. */
static GCKPTI_TARGET void V(gather)(const gckpti_heads *h, const float *x, int64_t rows, float *d)
{
    for (int64_t i = 0; i < rows; i++, x += h->c, d += h->wide)
        for (int64_t j = 0; j < h->d; j += W)
            V(store)(d + j, V(load_n)(x + j, h->d - j));
}

/* In chains of bf16 plans subnormals are flushed, between these two. */
GCKPTI_INLINED unsigned V(flush)(const gckpti_heads *h)
{
    unsigned mode = 0;
#if GCKPTI_ISA == 2 || GCKPTI_ISA == 3
    if (h->mixed) {
        mode = _mm_getcsr();
        _mm_setcsr(mode | 0x8040u);
    }
    __asm__ volatile("" ::: "memory"); /* nothing is computed on the wrong side */
#endif
    (void)h; /* without them bf16 plans do not come here */
    return mode;
}

GCKPTI_INLINED void V(flush_end)(const gckpti_heads *h, unsigned mode)
{
#if GCKPTI_ISA == 2 || GCKPTI_ISA == 3
    __asm__ volatile("" ::: "memory");
    if (h->mixed)
        _mm_setcsr(mode);
#endif
    (void)h, (void)mode;
}

static GCKPTI_TARGET void V(head_bands)(const gckpti_heads *h, const gckpti_band *s, int64_t m,
                                        int64_t n, int64_t k, const float *a, const float *b,
                                        float *c)
{
    const unsigned mode = V(flush)(h);
    V(bands)(s, m, n, k, a, b, c);
    V(flush_end)(h, mode);
}

/* n rows of [64][64] factors, rounded in bf16 plans. */
static GCKPTI_TARGET void V(head_factors)(const gckpti_heads *h, float *x, int64_t n)
{
    uint16_t narrow[GCKPTI_BLOCK];
    for (int64_t j = 0; h->mixed && j < n; j++, x += GCKPTI_BLOCK) {
        V(narrow)(x, narrow, GCKPTI_BLOCK);
        V(widen)(narrow, x, GCKPTI_BLOCK);
    }
}

/* gckpti_online down W columns of x, [64][64] scores of which n rows exist: they become
 * their exponentials. Column i sees the rows 0..i+diagonal only. */
static GCKPTI_TARGET void V(online_down)(float *x, int64_t n, int64_t diagonal, float scale,
                                         int first, float *max, float *sum, float *factor)
{
    const FLOATS zero = V(zero)(), least = V(set1)(-GCKPTI_INFINITY);
    FLOATS top = least, other = least, shift, e[16], change = zero;
    n = diagonal + W < n ? diagonal + W : n;
    if (n <= 0) { /* none */
        V(store)(factor, V(set1)(1.0f));
        return;
    }
    for (int64_t j = 0; j < n; j++) {
        FLOATS s = V(load)(x + j * GCKPTI_BLOCK);
        s = V(fma)(s, V(set1)(scale), zero);
        if (j > diagonal)
            s = V(upto)(j - diagonal, least, s);
        V(store)(x + j * GCKPTI_BLOCK, s);
        if (j & 1)
            other = V(max)(s, other);
        else
            top = V(max)(s, top);
    }
    top = V(max)(top, other);
    if (!first) {
        other = V(load)(max);
        top = V(max)(top, other);
    }
    shift = V(less)(least, top, top, zero);
    if (!first)
        change = V(exp)(other - shift);
    for (int64_t j = 0; j < n; j++) {
        FLOATS s = V(exp)(V(load)(x + j * GCKPTI_BLOCK) - shift);
        if (j > diagonal)
            s = V(upto)(j - diagonal, zero, s);
        V(store)(x + j * GCKPTI_BLOCK, s);
    }
    for (int64_t j = n; j < GCKPTI_BLOCK; j++)
        V(store)(x + j * GCKPTI_BLOCK, zero);
    /* the 32 lanes of a column's sum: l has rows l and l + 32; the first fold adds lane l + 16 */
    for (int l = 0; l < 16; l++, x += GCKPTI_BLOCK)
        e[l] = V(load)(x) + V(load)(x + 32 * GCKPTI_BLOCK) +
               (V(load)(x + 16 * GCKPTI_BLOCK) + V(load)(x + 48 * GCKPTI_BLOCK));
    for (int half = 8; half; half /= 2)
        for (int l = 0; l < half; l++)
            e[l] = e[l] + e[l + half];
    if (!first)
        e[0] = V(fma)(V(load)(sum), change, e[0]);
    V(store)(max, top);
    V(store)(sum, e[0]);
    V(store)(factor, change);
}

/* out *= factor, of a query */
GCKPTI_INLINED void V(rescale)(float *out, float factor, int64_t d)
{
    for (int64_t e = 0; factor != 1.0f && e < d; e += W)
        V(store_n)(out + e, V(load_n)(out + e, d - e) * V(set1)(factor), d - e);
}

/* Query i of a head by itself, with its scores side by side. */
static GCKPTI_TARGET void V(attention_query)(const gckpti_heads *h, int64_t row, int64_t head,
                                             int64_t i)
{
    const gckpt_call *call = h->call;
    int64_t at = (row * h->t + i) * h->c + head * h->d, keys = row * h->s * h->c + head * h->d;
    const float *q = call->in[0].data + at, *k = call->in[1].data + keys;
    const float *v = call->in[2].data + keys;
    float p[GCKPTI_BLOCK] = { 0.0f }, max = 0.0f, sum = 0.0f;
    float *out = call->out ? call->out + at : NULL, *aux = (float *)call->aux;
    int64_t seen = gckpti_min(h->sight.keys, i + 1 + h->sight.ahead), step = GCKPTI_BLOCK * h->c;
    if (out)
        memset(out, 0, (size_t)h->d * sizeof *out);
    for (int64_t j = 0; j < seen; j += GCKPTI_BLOCK, k += step, v += step) {
        int64_t n = gckpti_min(seen - j, GCKPTI_BLOCK);
        unsigned mode = V(flush)(h);
        V(dots)(q, 1, k, h->c, h->d, n, NULL, p, v);
        V(flush_end)(h, mode);
        for (int64_t e = 0; e < n; e += W)
            V(store)(p + e, V(fma)(V(load)(p + e), V(set1)(h->scale), V(zero)()));
        float factor = V(online)(p, p, n, j == 0, &max, &sum);
        if (!out)
            continue;
        if (j)
            V(rescale)(out, factor, h->d);
        V(head_factors)(h, p, 1);
        mode = V(flush)(h);
        V(sweep)(p, 1, v, h->c, n, h->d, out);
        V(flush_end)(h, mode);
    }
    gckpti_softmax_end(&max, &sum);
    if (out)
        V(divide)(out, sum, h->d);
    if (aux)
        aux[(row * h->heads + head) * h->t + i] = max + gckpti_log(sum);
}

/* Queries `first`.. of a head. */
static GCKPTI_TARGET void V(attention_forward)(const gckpti_heads *h, int64_t row, int64_t head,
                                               int64_t first, float *room)
{
    const gckpt_call *call = h->call;
    gckpti_band scores = { h->c, 1, GCKPTI_BLOCK, GCKPTI_BLOCK, GCKPTI_COLUMNS_FROM, 1, 0 };
    gckpti_band values = { 1, GCKPTI_BLOCK, h->wide, h->c, GCKPTI_LINKS_TO, 0, 0 };
    int64_t m = gckpti_min(h->t - first, GCKPTI_BLOCK), ahead = first + h->sight.ahead;
    int64_t seen = gckpti_min(h->sight.keys, ahead + m);
    int64_t at = (row * h->t + first) * h->c + head * h->d, keys = row * h->s * h->c + head * h->d;
    float *q = room, *v = q + GCKPTI_BLOCK * (h->d + W), *p = v + GCKPTI_BLOCK * h->wide;
    float max[GCKPTI_BLOCK], sum[GCKPTI_BLOCK], factor[GCKPTI_BLOCK];
    float *out = call->out ? call->out + at : NULL, *aux = (float *)call->aux;
    if (m <= 3) { /* more fill vectors */
        for (int64_t r = 0; r < m; r++)
            V(attention_query)(h, row, head, first + r);
        return;
    }
    V(pack)(call->in[0].data + at, 1, h->c, m, h->d, q, GCKPTI_BLOCK);
    for (int64_t j = 0; j < seen; j += GCKPTI_BLOCK) {
        int64_t n = gckpti_min(seen - j, GCKPTI_BLOCK);
        scores.diagonal = values.diagonal = ahead - j;
        V(head_bands)(h, &scores, n, m, h->d, call->in[1].data + keys + j * h->c, q, p);
        for (int64_t i = 0; i < m; i += W)
            V(online_down)
        (p + i, n, ahead - j + i, h->scale, j == 0, max + i, sum + i, factor + i);
        if (!out)
            continue;
        for (int64_t r = 0; j && r < m; r++)
            V(rescale)(out + r * h->c, factor[r], h->d);
        V(head_factors)(h, p, n);
        V(gather)(h, call->in[2].data + keys + j * h->c, n, v);
        values.fresh = j == 0;
        V(head_bands)(h, &values, m, h->d, n, p, v, out);
    }
    for (int64_t r = 0; r < m; r++)
        gckpti_softmax_end(&max[r], &sum[r]);
    for (int64_t r = 0; out && r < m; r++)
        V(divide)(out + r * h->c, sum[r], h->d);
    if (!aux)
        return;
    aux += (row * h->heads + head) * h->t + first;
    for (int64_t i = 0; i < m; i += W)
        V(store_n)(aux + i, V(load)(max + i) + V(log)(V(load)(sum + i)), m - i);
    for (int64_t r = 0; r < m; r++) /* V(log) is right for what is finite and 1 or more */
        if (!(sum[r] < GCKPTI_INFINITY))
            aux[r] = max[r] + gckpti_log(sum[r]);
}

/* A key's scores of queries from..m-1 become probabilities p = exp(s scale - lse), its dp become
 * ds = p (dp - delta) scale, where delta = sum(g out) of the query. */
static GCKPTI_TARGET void V(head_slopes)(float factor, int64_t from, int64_t m, const float *lse,
                                         const float *delta, float *p, float *ds)
{
    const FLOATS scale = V(set1)(factor), zero = V(zero)();
    for (int64_t i = from; i < m; i += W) {
        FLOATS x = V(exp)(V(fma)(V(load)(p + i), scale, zero) - V(load)(lse + i));
        V(store)(p + i, x);
        if (ds)
            V(store)(ds + i, x * (V(load)(ds + i) - V(load)(delta + i)) * scale);
    }
}

/* A head: for each block of 64 queries, over all blocks of keys that it sees, the scores and the
 * gradients of probabilities (both transposed), and from these what they add to dv, dq and dk. */
static GCKPTI_TARGET void V(attention_backward)(const gckpti_heads *h, int64_t row, int64_t head,
                                                float *room)
{
    const gckpt_call *call = h->call;
    gckpti_band scores = { h->c, 1, GCKPTI_BLOCK, GCKPTI_BLOCK, GCKPTI_COLUMNS_FROM, 1, 0 };
    gckpti_band over_queries = { GCKPTI_BLOCK, 1, h->wide, h->c, GCKPTI_LINKS_FROM, 0, 0 };
    gckpti_band over_keys = { 1, GCKPTI_BLOCK, h->wide, h->c, GCKPTI_LINKS_TO, 0, 0 };
    int64_t c = h->c, packed = GCKPTI_BLOCK * (h->d + W), rows = GCKPTI_BLOCK * h->wide;
    int64_t at_q = row * h->t * c + head * h->d, at_k = row * h->s * c + head * h->d;
    float *qt = room, *gt = qt + packed, *q = gt + packed, *g = q + rows, *k = g + rows;
    float *p = k + rows, *ds = p + GCKPTI_BLOCK * GCKPTI_BLOCK;
    float lse[GCKPTI_BLOCK] = { 0.0f }, delta[GCKPTI_BLOCK] = { 0.0f };
    float *dq = call->in[0].grad, *dk = call->in[1].grad, *dv = call->in[2].grad;
    for (int64_t first = 0; first < h->t; first += GCKPTI_BLOCK) {
        int64_t m = gckpti_min(h->t - first, GCKPTI_BLOCK), at = at_q + first * c;
        int64_t ahead = first + h->sight.ahead, seen = gckpti_min(h->sight.keys, ahead + m);
        const float *grad = call->grad_out + at;
        memcpy(lse, (const float *)call->aux + (row * h->heads + head) * h->t + first,
               (size_t)m * sizeof *lse);
        V(pack)(call->in[0].data + at, 1, c, m, h->d, qt, GCKPTI_BLOCK);
        V(gather)(h, grad, m, g);
        if (dk)
            V(gather)(h, call->in[0].data + at, m, q);
        if (dq || dk)
            V(pack)(grad, 1, c, m, h->d, gt, GCKPTI_BLOCK);
        for (int64_t r = 0; (dq || dk) && r < m; r++)
            delta[r] = V(dot)(grad + r * c, call->out + at + r * c, h->d);
        for (int64_t j = 0; j < seen; j += GCKPTI_BLOCK) {
            int64_t n = gckpti_min(h->sight.keys - j, GCKPTI_BLOCK), key = at_k + j * c;
            scores.diagonal = over_queries.diagonal = over_keys.diagonal = ahead - j;
            V(head_bands)(h, &scores, n, m, h->d, call->in[1].data + key, qt, p);
            if (dq || dk)
                V(head_bands)(h, &scores, n, m, h->d, call->in[2].data + key, gt, ds);
            for (int64_t r = 0; r < n; r++) {
                float *pr = p + r * GCKPTI_BLOCK, *dr = dq || dk ? ds + r * GCKPTI_BLOCK : NULL;
                int64_t from = r > ahead - j ? r - (ahead - j) : 0;
                V(head_slopes)(h->scale, from - from % W, m, lse, delta, pr, dr);
            }
            V(head_factors)(h, p, n);
            if (dq || dk)
                V(head_factors)(h, ds, n);
            /* chains start with the first block a query meets, and with the first one of queries
             * that meets a block of keys (those of it that meet none yet get +0) */
            int first_met = first == 0 || j >= ahead;
            over_queries.fresh = first_met && !call->in[2].accumulate;
            if (dv)
                V(head_bands)(h, &over_queries, n, h->d, m, p, g, dv + key);
            over_keys.fresh = j == 0 && !call->in[0].accumulate;
            if (dq) {
                V(gather)(h, call->in[1].data + key, n, k);
                V(head_bands)(h, &over_keys, m, h->d, n, ds, k, dq + at);
            }
            over_queries.fresh = first_met && !call->in[1].accumulate;
            if (dk)
                V(head_bands)(h, &over_queries, n, h->d, m, ds, q, dk + key);
        }
    }
}

/* ---- cross_entropy: a row of n logits, with max and log(sum) of exp(x - max) ---- */
static GCKPTI_TARGET void V(classes_backward)(const float *x, float *d, int64_t n, float max,
                                              float log_sum, float scale, int accumulate)
{
    const FLOATS top = V(set1)(max), rest = V(set1)(log_sum);
    for (int64_t j = 0; j < n; j += W) {
        FLOATS e = V(load_n)(x + j, n - j) - top;
        V(put)(d + j, V(exp)(e - rest), V(set1)(scale), accumulate, n - j);
    }
}

#define GCKPTI_KERNELS(mixed)                                                                      \
    V(product_piece), V(online), V(divide), V(square_sum), V(dot), V(adamw), V(add_to),            \
        V(elementwise_forward), V(elementwise_backward), V(softmax_forward), V(softmax_backward),  \
        V(norm_forward), V(norm_backward), V(columns), V(attention_forward),                       \
        V(attention_backward), V(classes_backward), &mixed
static const gckpti_kernels V(kernels) = { GCKPTI_KERNELS(V(mixed_kernels)) };
#if GCKPTI_ISA == 3 && GCKPTI_BF16
static const gckpti_kernels gckpti_kernels_bf16 = { GCKPTI_KERNELS(gckpti_mixed_kernels_bf16) };
#endif
#undef GCKPTI_KERNELS

#undef GCKPTI_EACH_LANE
#undef GCKPTI_EACH_ROW
#undef GCKPTI_INLINED
#undef GCKPTI_ISA
#undef GCKPTI_LANES
#undef GCKPTI_BAND
#undef GCKPTI_MM
#undef GCKPTI_TARGET
#undef GCKPTI_TILE_ROWS
#undef GCKPTI_TILE_VECTORS
#pragma pop_macro("V")
#pragma pop_macro("W")
#pragma pop_macro("FLOATS")
#pragma pop_macro("INTS")
#if defined(__cplusplus) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif /* GCKPTI_ISA */

/* launches.cu - counts the kernels of a training step of GPT-2 124M in GCKPT_BF16_FAST: the launches of a micro-batch
 * and of an update, their bytes and flops, and their time at the rates that were measured on an H200. It needs no device
 * and runs no kernel: allocated memory is addresses that are never accessed, and a launch only adds an entry to a list.
 *
 *     make build/launches && build/launches [ROWS [turned]]
 *     build/launches others     steps of a ResNet-18 and of a GRU: parameters, launches, copies to the host; the exit
 *                               status is 1 if there is a copy before the last update
 *
 * A micro-batch has ROWS of 1024 tokens (16). With "turned", queries and keys have rotary positions instead of learned
 * ones, and the result of each half block has dropout. The time of a launch is the longer of
 *     bytes / the rate of a copy         where each operand is read once
 *     flops / the rate of the measured product whose shape is nearest; in attention, that of its backward
 * These rates are rows of docs/benchmarks.md (gpu), with 16,384 tokens. The sum has no time between launches, and kernels
 * that do not reach a copy's rate take longer, so that a step on the device takes longer than the sum. The time of an op
 * that is fused into a product is the time of its bytes, and does not overlap. */
#include "cuda_shim.h"
#include <any>
#include <string>

namespace tally
{
struct Launch {
    const char *name;
    dim3 grid, block;
    std::any arguments;       /* a tuple of the kernel's parameters */
    /* element: bytes of one element of all arrays together; elements: the largest count among the parameters */
    double element, elements;
};
static std::vector<Launch> launches;
static char *next_address = (char *)((uintptr_t)1 << 44);

template <class T, class = void> struct Width {
    static double of(const T &) { return 0; }
};
template <class T> struct Width<T *> {
    static double of(T *p) { return p && sizeof(T) <= 8 ? (double)sizeof(T) : 0; }
};
template <class T> struct Width<T, std::void_t<decltype(T::bf16), decltype(T::f32)>> {
    static double of(const T &x) { return x.bf16 ? 2 : x.f32 ? 4 : 0; }
};
inline double count_in(int64_t n) { return (double)n; }
template <class T> double count_in(const T &) { return 1; }

template <class... P, class... A>
cudaError_t launch(const char *name, void (*)(P...), dim3 grid, dim3 block, size_t, cudaStream_t, const A &...a)
{
    std::tuple<std::decay_t<P>...> all(static_cast<std::decay_t<P>>(a)...);
    Launch l = { name, grid, block, all, 0, 1 };
    std::apply([&](const auto &...x) {
        ((l.element += Width<std::decay_t<decltype(x)>>::of(x)), ...);
        ((l.elements = std::max(l.elements, count_in(x))), ...);
    }, all);
    launches.push_back(l);
    return cudaSuccess;
}

/* Returns the parameters with which the kernel was launched. */
template <class... P> std::tuple<std::decay_t<P>...> of(const Launch &l, void (*)(P...))
{
    return std::any_cast<std::tuple<std::decay_t<P>...>>(l.arguments);
}

template <class V> cudaError_t take(V **p, size_t bytes)
{
    *p = (V *)(void *)next_address;
    next_address += (bytes + 511) / 256 * 256;
    return cudaSuccess;
}
inline cudaError_t give(void *) { return cudaSuccess; }
static int64_t tokens;           /* number of tokens of a step, which its loss counts */
inline cudaError_t copy(void *to, size_t bytes, cudaMemcpyKind kind)
{
    if (kind == cudaMemcpyDeviceToHost)
        memset(to, 0, bytes);
    if (kind == cudaMemcpyDeviceToHost && bytes == 16) /* these 16 bytes are the sum and the count of a loss */
        memcpy((char *)to + 8, &tokens, 8);
    return cudaSuccess;
}
} // namespace tally

#define cudaMalloc(p, bytes)                    tally::take(p, bytes)
#define cudaFree                                tally::give /* also used as a template argument */
#define cudaMemcpyAsync(to, from, n, kind, s)   tally::copy(to, n, kind)
#define cudaMemsetAsync(to, value, n, s)        cudaSuccess
#define cudaStreamWaitEvent(s, e, flags)        cudaSuccess
#undef LAUNCH
#define LAUNCH(kernel, grid, block, shared, stream, ...)                                           \
    tally::launch(name_of<(kernel)>(), (kernel), grid, block, shared, stream, __VA_ARGS__)
#include "gradckpt_cuda.cu"
#undef _DEFAULT_SOURCE /* g++ defines it */
#define place model_site /* the kernels already use the name `place`, which model.h defines */
#include "model.h"

namespace
{
/* Measured on an H200: bytes a second of a copy, read and written; flops a second of attention's backward, of whose seven
 * products five are needed (47e12 for these); products (rows of a, n columns, k terms) by the layout of their operands. */
const double COPY = 4219e9, ATTENTION = 66e12;
enum { ACROSS, ALONG_K, GRADIENT }; /* b across k, b along k, a across k (a weight's gradient) */
const struct {
    int layout;
    double n, k, rate;
} PRODUCTS[] = {
    { ACROSS, 2304, 768, 376e12 },   { ACROSS, 3072, 768, 381e12 },    { ACROSS, 768, 768, 351e12 },
    { ACROSS, 768, 3072, 445e12 },   { ALONG_K, 768, 3072, 440e12 },   { ALONG_K, 3072, 768, 348e12 },
    { GRADIENT, 3072, 16384, 242e12 }, { GRADIENT, 768, 16384, 146e12 }
};

/* Returns the rate of the measured product of this layout whose n and k are nearest, as factors. */
double product_rate(int layout, double n, double k)
{
    double rate = 0, nearest = INFINITY;
    for (const auto &p : PRODUCTS) {
        const double distance = std::abs(std::log(n / p.n)) + std::abs(std::log(k / p.k));
        if (p.layout == layout && distance < nearest)
            nearest = distance, rate = p.rate;
    }
    return rate;
}

struct Cost {
    double bytes, flops, rate; /* rate: flops a second */
    double more;               /* seconds that are added to those of the launch */
};

Cost cost_of(const tally::Launch &l, const std::string &name)
{
    Cost c = { l.element * l.elements, 0, ATTENTION, 0 };
    auto is = [&](const char *text) { return name.find(text) == 0; };
    if (is("mma_product_kernel")) {
        auto p = std::get<0>(*std::any_cast<std::tuple<fast::MmaProduct>>(&l.arguments));
        double m = p.m, n = p.n, k = p.k;
        c.flops = 2 * m * n * k;
        c.bytes = 2 * (m * k + n * k) + m * n * tally::Width<Results>::of(p.c) * (1 + p.accumulate);
        int size, stages, a_along = 0, b_along = 0;
        sscanf(name.c_str(), "mma_product_kernel<%d, %d, %d, %d", &size, &stages, &a_along, &b_along);
        c.rate = product_rate(!a_along ? GRADIENT : b_along ? ALONG_K : ACROSS, n, k);
        c.more = 2 * m * n * ((p.fusion.op > fast::GELU) + (p.fusion.op && p.fusion.out != p.c.bf16)) / COPY;
    } else if (is("mma_attention")) {
        auto p = std::get<0>(*std::any_cast<std::tuple<fast::MmaAttention>>(&l.arguments));
        double rows = (double)l.grid.x / (p.heads * ((p.t + 63) / 64)) * p.t;
        double products = is("mma_attention_forward") ? 2 : is("mma_attention_backward_kernel<false") ? 3 : 4;
        c.flops = products * 2 * rows * p.s * p.c / 2; /* causal */
        c.bytes = (products + 2) * 2 * rows * p.c;
    } else if (is("logit_gradients_kernel")) {
        c.bytes = 6 * (double)l.grid.x * (double)std::get<2>(tally::of(l, fast::logit_gradients_kernel));
    } else if (is("fill_kernel")) {
        auto all = std::get<0>(tally::of(l, fill_kernel));
        c.bytes = 0;
        for (int i = 0; i < all.n; i++)
            c.bytes += 4 * (double)all.at[i].n;
    } else if (is("update_kernel")) {
        auto all = std::get<0>(tally::of(l, update_kernel));
        c.bytes = 0;
        for (int i = 0; i < all.n; i++) {
            const gckpt_update_pass &p = all.at[i];
            c.bytes += 4 * (double)p.elements * (1 + p.adds + (p.write_back || p.adds) + (p.update ? 6 : 0));
        }
    } else if (is("group_sums_kernel<8>")) {
        auto p = tally::of(l, fast::group_sums_kernel<8>);
        c.bytes = (double)std::get<1>(p) * (double)std::get<2>(p) * (2 + 4.0 / fast::TOKENS);
    } else if (is("column_sums_kernel<RowTerms<true>")) {
        auto p = tally::of(l, (column_sums_kernel<RowTerms<true>, false>));
        int sums = wanted(std::get<1>(p).at) + wanted(std::get<2>(p).at);
        c.bytes = (double)std::get<4>(p) * (double)std::get<5>(p) * 4 * sums;
    } else if (is("norm_row,")) {
        auto p = tally::of(l, each_kernel<fast::norm_row, 32, fast::Norm, float, Results>);
        c.bytes = 4 * (double)std::get<0>(p) * (double)std::get<1>(p).n;
    /* the kernel's sums leave its operands in the cache, so they are not read again for dx */
    } else if (is("fast_norm_backward")) {
        auto p = tally::of(l, fast::fast_norm_backward_kernel);
        int sums = !!std::get<2>(p) + !!std::get<3>(p);
        c.bytes = (double)std::get<4>(p) * (double)std::get<0>(p).n * (6 + 4.0 / fast::TOKENS * sums);
    } else if (is("vecs_kernel<8, Rotate>")) {
        auto p = std::get<0>(tally::of(l, vecs_kernel<8, Rotate>));
        c.bytes = (tally::Width<Values>::of(p.x) + tally::Width<Results>::of(p.y)) * 2 * l.elements; /* pairs */
    } else if (is("vecs_kernel<8, DropoutMask>")) {
        auto p = std::get<0>(tally::of(l, vecs_kernel<8, DropoutMask>));
        c.bytes = (tally::Width<Values>::of(p.x) + tally::Width<Results>::of(p.y)) * l.elements;
    } else if (is("vecs_kernel<8, TableLines>")) {
        c.bytes = 6 * l.elements;
    } else if (is("column_sums_kernel<Sums, false")) {
        auto p = tally::of(l, (column_sums_kernel<Sums, false>));
        c.bytes = tally::Width<Values>::of(std::get<0>(p).g) * (double)std::get<3>(p) * (double)std::get<4>(p) *
                  (double)std::get<5>(p);
    } else if (is("vecs_kernel<8, SliceGradient>")) {
        auto p = std::get<0>(tally::of(l, vecs_kernel<8, SliceGradient>));
        c.bytes = 2 * l.elements * (1 + (double)p.n / (double)p.whole);
    } else if (is("fast_delta_kernel")) {
        auto p = tally::of(l, fast::fast_delta_kernel);
        c.bytes = 4 * (double)std::get<3>(p) * (1 + std::get<6>(p));
    } else if (is("embed_backward")) {
        c.bytes = 6.0 * 768 * (double)l.grid.x; /* each block reads a row of the table */
    } else if (is("params") || is("embed_sort")) {
        c.bytes = 0;
    }
    return c;
}

double seconds_of(const Cost &c) { return std::max(c.bytes / COPY, c.flops / c.rate) + c.more; }

/* Returns the kernel's name without the text that all names share: "... KERNEL = {anonymous}::fast::slice_kernel]". */
std::string short_name(const char *name)
{
    std::string s = strstr(name, "KERNEL = ") + 9;
    if (s.back() == ']')
        s.pop_back();
    for (const char *drop : { "{anonymous}::", "<unnamed>::", "fast::", ", Binary", "(", ")" })
        for (size_t at; (at = s.find(drop)) != std::string::npos;)
            s.erase(at, strlen(drop));
    if (s.find("each_kernel<") == 0) /* the function that the kernel calls */
        s = s.substr(strlen("each_kernel<"));
    if (s.find("map_kernel") == 0) /* keeps only the number of elements of a vector */
        s = s.substr(0, s.find(','));
    return s;
}

struct Row {
    double count, bytes, flops, seconds;
};
typedef std::map<std::string, Row> Table;

/* Returns the launches of a step, with bytes, flops and time, by kernel. */
Table step_of(const gckpt_backend *gpu, int rows, int micro_batches)
{
    static const size gpt2 = { 12, 12, 768, 1024, 0, 50257, 0, 0 };
    size z = gpt2;
    bench b = {};
    gckpt_plan_desc desc = {};
    gckpt_exec_desc how = {};
    gckpt_hyper adamw = {};
    z.batch = rows;
    desc.bf16.precision = GCKPT_BF16_FAST; /* without a budget, the plan stores all and computes logits once */
    desc.backend = how.backend = gpu;
    desc.batch = rows * micro_batches;
    adamw.lr = 1e-4f;
    adamw.clip = 1;
    if (!bench_open(&b, &z, &desc, &how))
        exit(1);
    std::vector<int32_t> tokens((size_t)rows * (size_t)micro_batches * 1024);
    tally::tokens = (int64_t)tokens.size();
    b.feeds[0].data = b.feeds[1].data = tokens.data();
    tally::launches.clear();
    if (gckpt_step(b.exec, b.feeds, 2, rows * micro_batches, &adamw, NULL) != GCKPT_OK) {
        fprintf(stderr, "launches: %s\n", gckpt_error_text(b.exec));
        exit(1);
    }
    Table t;
    for (const tally::Launch &l : tally::launches) {
        std::string name = short_name(l.name);
        Cost c = cost_of(l, name);
        Row &r = t[name];
        r.count++, r.bytes += c.bytes, r.flops += c.flops, r.seconds += seconds_of(c);
    }
    bench_free(&b);
    return t;
}

/* ---- whole networks: number of copies to the host before the last update of a step ---- */
gckpt_graph *graph;
int named; /* number of parameters, from which their names are made */

gckpt_tensor *weight(gckpt_shape shape)
{
    char name[16];
    snprintf(name, sizeof name, "w%d", named++);
    return gckpt_param(graph, name, shape, gckpt_init{ 0.02f, 0, 0 });
}

gckpt_tensor *convolved(gckpt_tensor *x, int64_t size, int64_t to, int stride, bool then_relu)
{
    const int around = (int)size / 2;
    gckpt_window w = {};
    w.stride[0] = w.stride[1] = stride, w.padding[0] = w.padding[1] = around;
    const gckpt_shape c = gckpt_shape1(to);
    gckpt_tensor *y = gckpt_conv2d(x, weight(gckpt_shape4(size, size, x->shape.d[3], to)), NULL, &w), *of[2];
    gckpt_tensor *gain = weight(c), *bias = weight(c);
    for (gckpt_tensor *&running : of) {
        char name[16];
        snprintf(name, sizeof name, "r%d", named++);
        running = gckpt_running(graph, name, c, gckpt_init{ 0, 0, &running == of ? 0.0f : 1.0f }, 0.1f);
    }
    y = gckpt_batchnorm(y, gain, bias, of[0], of[1], 0);
    return then_relu ? gckpt_relu(y) : y;
}

/* Builds the network of 18 layers in table 1 of He 2015: blocks of two 3 x 3 convolutions, with 1 x 1 convolutions as
 * shortcuts at the beginning of a stage. */
gckpt_tensor *resnet18(gckpt_tensor *pixels)
{
    gckpt_window pool = {};
    pool.size[0] = pool.size[1] = 3, pool.stride[0] = pool.stride[1] = 2, pool.padding[0] = pool.padding[1] = 1;
    gckpt_tensor *x = gckpt_max_pool(convolved(gckpt_from_u8(pixels, 1.0f / 64, -2), 7, 64, 2, true), &pool);
    for (int block = 0; block < 8; block++) {
        const int64_t to = 64 << block / 2;
        const int stride = block && block % 2 == 0 ? 2 : 1;
        gckpt_tensor *y = convolved(convolved(x, 3, to, stride, true), 3, to, 1, false);
        x = gckpt_relu(gckpt_add(y, stride == 1 ? x : convolved(x, 1, to, stride, false)));
    }
    return gckpt_linear(gckpt_global_average_pool(x), weight(gckpt_shape2(512, 1000)), weight(gckpt_shape1(1000)));
}

/* Builds two GRU layers of 512 units over embedded tokens, then the classes from the maximum over all steps. */
gckpt_tensor *gru(gckpt_tensor *tokens)
{
    gckpt_tensor *x = gckpt_embed(weight(gckpt_shape2(10000, 256)), tokens);
    for (int layer = 0; layer < 2; layer++)
        x = gckpt_gru(x, weight(gckpt_shape2(x->shape.d[2], 3 * 512)), weight(gckpt_shape1(3 * 512)),
                      weight(gckpt_shape2(512, 3 * 512)), weight(gckpt_shape1(3 * 512)), NULL);
    return gckpt_linear(gckpt_max(x, 1), weight(gckpt_shape2(512, 1000)), NULL);
}

long outs, within; /* outs: copies to the host in this step; within: copies before the last update */
const gckpt_backend *device;
void watched_out(void *context, void *host_memory, const void *from, size_t n)
{
    outs++;
    device->copy_out(context, host_memory, from, n);
}
void watched_update(const gckpt_call *call, const gckpt_update_pass *pass)
{
    within = pass->update ? outs : within;
    device->update(call, pass);
}

/* Prints a row of the table: parameters, launches and copies to the host in a step of two micro-batches. Returns whether
 * there is no copy to the host before the last update. */
bool count_of(const char *name, gckpt_tensor *(*build)(gckpt_tensor *), gckpt_type type, gckpt_shape shape,
              gckpt_precision precision)
{
    gckpt_backend watched = *device;
    watched.copy_out = watched_out, watched.update = watched_update;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = graph = gckpt_graph_new(s, NULL);
    named = 0;
    gckpt_tensor *in = gckpt_input(g, "x", type, shape),
                 *to = gckpt_input(g, "to", GCKPT_I32, gckpt_shape1(shape.d[0]));
    gckpt_term term = { gckpt_cross_entropy(build(in), to, NULL, 0), 1, 0 };
    const int64_t rows = 2 * shape.d[0];
    gckpt_plan_desc d = {};
    d.batch = rows, d.bf16.precision = precision, d.backend = &watched;
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, &d);
    gckpt_exec_desc how = {};
    how.backend = &watched;
    gckpt_exec *e = p ? gckpt_exec_new(p, s, &how) : NULL;
    std::vector<unsigned char> fed((size_t)(2 * gckpti_elements(&shape)) * (type == GCKPT_U8 ? 1 : 4));
    std::vector<int32_t> wanted((size_t)rows);
    gckpt_feed feeds[2] = { { gckpt_id(in), fed.data() }, { gckpt_id(to), wanted.data() } };
    gckpt_hyper adamw = {};
    adamw.lr = 1e-4f;
    tally::tokens = rows;
    tally::launches.clear();
    outs = within = 0;
    if (!e || gckpt_step(e, feeds, 2, rows, &adamw, NULL) != GCKPT_OK) {
        fprintf(stderr, "launches: %s\n", gckpt_error_text(e ? (void *)e : p ? (void *)s : (void *)g));
        exit(1);
    }
    int64_t parameters = 0;
    gckpt_parameter q;
    for (int i = 0; i < gckpt_store_count(s); i++)
        parameters += gckpt_store_peek(s, i, &q) == GCKPT_OK && q.name[0] == 'w' ? q.elements : 0;
    printf("| %s | %lld | %zu | %ld | %ld |\n", name, (long long)parameters, tally::launches.size(), within,
           outs - within);
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
    return within == 0;
}

int count_others()
{
    printf(
        "| a step of two micro-batches | parameters | launches | copies to the host before the last update | after it |\n"
        "|---|--:|--:|--:|--:|\n");
    bool none = true;
    for (int fast = 0; fast < 2; fast++) {
        const gckpt_precision precision = fast ? GCKPT_BF16_FAST : GCKPT_FP32;
        none &= count_of(fast ? "ResNet-18, bf16 fast" : "ResNet-18, 32 images of 224 x 224", resnet18, GCKPT_U8,
                         gckpt_shape4(32, 224, 224, 3), precision);
        none &= count_of(fast ? "GRU, bf16 fast" : "GRU of two layers, 64 rows of 128 tokens", gru, GCKPT_I32,
                         gckpt_shape2(64, 128), precision);
    }
    return none ? 0 : 1;
}

void print(const char *what, const Table &t)
{
    Row all = {};
    std::vector<std::pair<std::string, Row>> rows(t.begin(), t.end());
    std::sort(rows.begin(), rows.end(),
              [](const auto &a, const auto &b) { return a.second.seconds > b.second.seconds; });
    printf("| %s | launches | MB | Gflop | ms |\n|---|---|---|---|---|\n", what);
    for (const auto &r : rows) {
        if (std::abs(r.second.count) < 0.5 && std::abs(r.second.seconds) < 5e-6)
            continue;
        printf("| %s | %.0f | %.0f | %.0f | %.2f |\n", r.first.c_str(), r.second.count, r.second.bytes / 1e6,
               r.second.flops / 1e9, 1e3 * r.second.seconds);
        all.count += r.second.count, all.bytes += r.second.bytes, all.flops += r.second.flops,
            all.seconds += r.second.seconds;
    }
    printf("| all | %.0f | %.0f | %.0f | %.2f |\n\n", all.count, all.bytes / 1e6, all.flops / 1e9, 1e3 * all.seconds);
}
} // namespace

int main(int argc, char **argv)
{
    const char *error;
    int rows = argc > 1 ? atoi(argv[1]) : 16;
    const bool others = argc > 1 && !strcmp(argv[1], "others");
    bench_rotary = argc > 2;
    cuda_shim.capability = 80; /* PRODUCTS has rates of mma.sync: no device has run wgmma */
    const gckpt_backend *gpu = gckpt_cuda_backend(0, &error);
    if (!gpu) {
        fprintf(stderr, "launches: %s\n", error);
        return 1;
    }
    device = gpu;
    if (others)
        return count_others();
    /* The difference of the two steps is one micro-batch more; the rest of the step with one micro-batch is
     * everything else. The rest can be negative, if a plan for several micro-batches launches more in each of them. */
    Table one = step_of(gpu, rows, 1), two = step_of(gpu, rows, 2);
    double micro = 0, update = 0;
    for (auto &r : two) {
        Row &a = one[r.first];
        Row more = { r.second.count - a.count, r.second.bytes - a.bytes, r.second.flops - a.flops,
                     r.second.seconds - a.seconds };
        a.count -= more.count, a.bytes -= more.bytes, a.flops -= more.flops, a.seconds -= more.seconds;
        r.second = more;
        micro += more.seconds, update += a.seconds;
    }
    print("a micro-batch", two);
    print("an update, and what only the first micro-batch has", one);
    printf("%d rows of 1024 tokens, one micro-batch a step: %.1f ms, %.0f tokens/s at measured rates\n", rows,
           1e3 * (micro + update), rows * 1024 / (micro + update));
    return 0;
}

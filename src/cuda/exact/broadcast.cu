/* ---- broadcasting: rules of gradients ---- */
/* Returns true if an element of a condition, f32 or i32, is not 0; -0 counts as 0. */
__device__ inline bool holds(float word, bool is_i32)
{
    return (gckpti_bits(word) & (is_i32 ? 0xffffffffu : 0x7fffffffu)) != 0;
}

/* Rules of gradients: rows of GCKPTI_BINARY_GRADS, or those of op `where`, which pass g where the
 * condition `other` is true (WHERE) or false (ELSEWHERE). */
#define NAME(name, ...) GRAD_##name,
enum Rule { GCKPTI_BINARY_GRADS(NAME) WHERE, ELSEWHERE, WHERE_I32, ELSEWHERE_I32 };
#undef NAME
struct Gradient {
    Rule rule;
    __device__ void operator()(float *d, float g, float other, float self, int accumulate) const
    {
        switch (rule) {
#define PUT(name, ...)                                                                             \
    case GRAD_##name:                                                                              \
        gckpti_##name##_put(d, g, self, other, accumulate);                                        \
        break;
            GCKPTI_BINARY_GRADS(PUT)
#undef PUT
        default:
            if (holds(other, rule >= WHERE_I32) != ((rule - WHERE) % 2 == 0))
                g = 0.0f;
            gckpti_put(d, g, accumulate);
        }
    }
};

/* Terms of sums of g, by a rule of gradients. `self` is indexed like the sums; it may be NONE, and
 * so may `other`. sums() sets the last fields: axes of the sums; axes over which they sum, of which
 * the innermost has these steps in g and `other`. */
struct Sums : Terms {
    static constexpr bool MIXED = true;
    static constexpr int AHEAD = 16; /* its terms are long */
    struct Column {
        int64_t g, other;
        float self;
    };
    Gradient rule;
    Values g, other, self;
    gckpti_iter column, plane;
    int64_t step[2];

    __device__ Column column_of(int64_t c, int64_t p) const
    {
        const Places at = places_of(column, c), first = places_of(plane, p);
        return { at.at[1] + first.at[1], at.at[2] + first.at[2], value_at(self, c) };
    }
    bool is_bf16(void) const { return g.bf16; }
    template <bool BF16> __device__ void read(const Column &c, int64_t r, float *term) const
    {
        const float x = value_as<BF16>(g, c.g + r * step[0]);
        rule(term, x, value_at(other, c.other + r * step[1]), c.self, 1); /* *term was +0 */
    }
};

/* Sums g, tensor 1 of the iterator, to tensor 0; `other` is tensor 2. */
void sums(const gckpt_call *call, const gckpti_iter &it, Sums s, const Sum &to)
{
    int64_t rows = 1;
    s.column.n = s.plane.n = 0, s.column.tensors = s.plane.tensors = 4;
    s.step[0] = s.step[1] = 0;
    for (int k = 0; k < it.n; k++) {
        const int64_t step[4] = { it.step[0][k], it.step[1][k], it.step[2][k], 0 };
        if (!step[0] && rows == 1)
            rows = it.size[k], s.step[0] = step[1], s.step[1] = step[2];
        else
            gckpti_iter_add_axis(step[0] ? &s.column : &s.plane, it.size[k], step);
    }
    column_sums(call, s, to, {}, rows, count_of(s.column), count_of(s.plane));
}

/* Returns the values of an input, or the words of an i32 one. */
Values words_of(const gckpt_arg &x)
{
    return x.index ? Values{ (const float *)(const void *)x.index, NULL } : value_of(x);
}

/* Gives input i its gradient by a rule, which reads input i and another one as `reads` says. */
void broadcast_gradient(const gckpt_call *call, int i, int other, Rule rule, unsigned reads)
{
    const gckpt_arg *in = &call->in[i], *from = &call->in[other];
    const Values g = grad_out_of(call), x = reads & GCKPT_IN(i) ? value_of(*in) : NONE;
    const Values y = reads & GCKPT_IN(other) ? words_of(*from) : NONE;
    if (!wanted(*in) || (in->grad == g.f32 && in->grad_bf16 == g.bf16)) /* g is in place already */
        return;
    const gckpti_iter it = iterate(call->shape, in->shape, call->shape, from->shape, in->shape);
    if (in->compensation)
        sums(call, it, { {}, { rule }, g, y, x }, sum_of(*in));
    else
        map(call, it, Gradient{ rule }, grad_of(*in), g, y, x, in->accumulate);
}

/* Computes a op b. */
template <auto F> struct Binary {
    __device__ void operator()(float *d, float a, float b, float, int) const { *d = F(a, b); }
};

/* Defines how an op of GCKPTI_BINARY_OPS runs. grad_a, reads_a: the rule of the first input's
 * gradient, and the inputs that this rule reads. */
#define BINARY(name, flops, flags, value, grad_a, reads_a, grad_b, reads_b)                        \
    void name##_by(const gckpt_call *call, bool backward)                                          \
    {                                                                                              \
        const gckpt_arg &a = call->in[0], &b = call->in[1];                                        \
        if (!backward)                                                                             \
            return map(call, iterate(call->shape, call->shape, a.shape, b.shape, b.shape),         \
                       Binary<gckpti_##name##_value>(), out_of(call), value_of(a), value_of(b));   \
        broadcast_gradient(call, 0, 1, GRAD_##grad_a, reads_a);                                    \
        broadcast_gradient(call, 1, 0, GRAD_##grad_b, reads_b);                                    \
    }
GCKPTI_BINARY_OPS(BINARY)
#undef BINARY

struct Where { /* a where the condition is true, else b */
    bool is_i32;
    __device__ void operator()(float *d, float condition, float a, float b, int) const
    {
        *d = holds(condition, is_i32) ? a : b;
    }
};

void where_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *in = call->in;
    const bool is_i32 = in[0].index != NULL;
    if (!backward)
        return map(call, iterate(call->shape, call->shape, in[0].shape, in[1].shape, in[2].shape),
                   Where{ is_i32 }, out_of(call), words_of(in[0]), value_of(in[1]),
                   value_of(in[2]));
    if (in[0].grad && !in[0].accumulate)
        fill(call, in[0].grad, 0, gckpti_elements(&in[0].shape));
    broadcast_gradient(call, 1, 0, is_i32 ? WHERE_I32 : WHERE, GCKPT_IN(0));
    broadcast_gradient(call, 2, 0, is_i32 ? ELSEWHERE_I32 : ELSEWHERE, GCKPT_IN(0));
}

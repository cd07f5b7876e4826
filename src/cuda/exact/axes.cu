/* ---- broadcasting: axes, values and rules of gradients ---- */
/* Returns the axes of an iterator. Its tensors, number `first` before the other one, get the last
 * steps: step[1] and step[2] after those of a dense result, or step[0] and step[1] without one. */
Axes axes_of(const gckpti_iter &w, int first, bool dense)
{
    Axes x = {};
    x.n = w.n;
    for (int64_t k = 0, size = 1; k < w.n; size *= w.size[k++]) {
        x.size[k] = w.size[k];
        x.step[0][k] = size;
        x.step[dense][k] = w.step[first][k];
        x.step[dense + 1][k] = w.step[!first][k];
    }
    return x;
}

/* Iterates over `axes` of tensors of shapes a and b. */
Axes axes_over(const gckpt_shape &axes, const gckpt_shape &a, const gckpt_shape &b, bool dense)
{
    const gckpt_shape *const shapes[4] = { &a, &b, NULL, NULL };
    gckpti_iter it;
    gckpti_iter_over(&it, &axes, shapes);
    return axes_of(it, 0, dense);
}

struct Quotient { /* a / divisor */
    float divisor;
    __device__ void operator()(float *d, float a, float, float, int accumulate) const
    {
        gckpti_put(d, divisor != 1.0f ? a / divisor : a, accumulate);
    }
};

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

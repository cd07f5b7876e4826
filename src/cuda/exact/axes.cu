/* ---- broadcasting: rules of gradients ---- */
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

/* ---- losses over classes: one row of n logits ---- */
static GCKPTI_TARGET void V(classes_backward)(const float *x, float *d, int64_t n,
                                              const gckpti_class_row *c)
{
    const FLOATS top = V(set1)(c->max), rest = V(set1)(c->log_sum), mass = V(set1)(c->target_sum);
    const FLOATS inverse = V(set1)(c->cap > 0.0f ? 1.0f / c->cap : 0.0f);
    for (int64_t j = 0; j < n; j += W) {
        const FLOATS logit = V(load_n)(x + j, n - j);
        FLOATS p = V(exp)(logit - top - rest);
        FLOATS t = c->targets ? V(load_n)(c->targets + j, n - j) : V(set1)(c->uniform);
        p = V(fma)(p, mass, -t);
        if (c->cap > 0.0f)
            p = V(softcap_deriv)(p, logit, inverse);
        V(put_product)(d + j, p, V(set1)(c->scale), c->accumulate, n - j);
    }
}

/* Returns fma(w, x, sum), but sum + w in lanes where w is 0 or NaN. */
GCKPTI_INLINED FLOATS V(weigh)(FLOATS w, FLOATS x, FLOATS sum)
{
    FLOATS size = V(abs)(w);
    return V(if_less)(V(zero)(), size, V(fma)(w, x, sum), sum + w);
}

static GCKPTI_TARGET float V(surprisal)(const float *x, int64_t n, const gckpti_class_row *c)
{
    const FLOATS top = V(set1)(c->max), rest = V(set1)(c->log_sum);
    float lane[32] = { 0.0f };
    for (int64_t j = 0; j < n; j += W) {
        FLOATS s = rest - (V(load_n)(x + j, n - j) - top), sum = V(load)(lane + j % 32);
        FLOATS t = c->targets ? V(load_n)(c->targets + j, n - j) : V(set1)(1.0f);
        V(store_n)(lane + j % 32, V(weigh)(t, s, sum), n - j);
    }
    return gckpti_lanes_sum(lane);
}

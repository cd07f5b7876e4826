struct Round { /* to bf16 */
    __device__ void operator()(float *d, float a, float, float, int) const
    {
        *d = gckpti_from_bf16(gckpti_to_bf16(a));
    }
};

/* The backend's conversion between f32 and bf16. */
void convert(const gckpt_call *call, const gckpt_conversion *c)
{
    const Results f32 = { c->x, NULL }, bf16 = { NULL, c->to };
    const Values from = { NULL, c->from };
    if (c->kind == GCKPT_ROUND)
        map(call, dense(c->n), Round(), f32, f32);
    else if (c->kind == GCKPT_NARROW)
        map(call, dense(c->n), Copy(), bf16, f32);
    else
        map(call, dense(c->n), Copy(), f32, from, NONE, NONE, c->kind == GCKPT_WIDEN_ADD);
}

void widen(const gckpt_call *call, const uint16_t *from, float *to, int64_t n)
{
    map(call, dense(n), Copy(), { to, NULL }, { NULL, from });
}

void narrow(const gckpt_call *call, const float *from, uint16_t *to, int64_t n)
{
    map(call, dense(n), Copy(), { NULL, to }, { from, NULL });
}

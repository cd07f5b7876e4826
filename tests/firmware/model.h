/* model.h - a small network that host.c plans and device.c trains. It has a user-defined op, a constant, tied weights,
 * dropout, a regulariser and a fetch. */
#ifndef FIRMWARE_MODEL_H
#define FIRMWARE_MODEL_H

enum { BATCH = 5, ROWS = 2, T = 6, C = 8, V = 40, STEPS = 4, SEED = 99 };

/* The user-defined op "bend": y = x + factor x^2; with g the gradient of y, dx = g (1 + 2 factor x). The C variable of
 * the op has the op's name, "bend". */
static gckpt_result bend_shape(gckpt_call *call)
{
    call->shape = call->in[0].shape;
    return GCKPT_OK;
}

static int64_t bend_count(const gckpt_call *call)
{
    int64_t n = 1;
    for (int i = 0; i < call->shape.n; i++)
        n *= call->shape.d[i];
    return n;
}

static void bend_forward(const gckpt_call *call)
{
    float factor = *(const float *)call->attributes;
    for (int64_t i = 0; i < bend_count(call); i++)
        call->out[i] = call->in[0].data[i] + factor * call->in[0].data[i] * call->in[0].data[i];
}

static void bend_backward(const gckpt_call *call)
{
    float factor = *(const float *)call->attributes, *d = call->in[0].grad;
    for (int64_t i = 0; d && i < bend_count(call); i++) {
        float v = call->grad_out[i] * (1 + 2 * factor * call->in[0].data[i]);
        d[i] = call->in[0].accumulate ? d[i] + v : v;
    }
}

static const gckpt_op bend = { "bend",          bend_shape,       bend_forward, bend_backward, NULL, NULL,
                               { GCKPT_IN(0) }, GCKPT_INPLACE(0), NULL,         NULL };

#ifndef GCKPT_NO_QUANT
/* Stores the parameter "w" as f16, in constants that stay in flash. */
static gckpt_result model_flash(gckpt_store *s)
{
    static uint16_t w[C * 3 * C]; /* from -0.25 to 0.25 */
    for (int i = 0; i < C * 3 * C; i++)
        w[i] = (uint16_t)((i & 1 ? 0x8000 : 0) + i * 377 % 0x3400);
    return gckpt_store_external_quantised(s, "w", gckpt_shape2(C, 3 * C), GCKPT_STORAGE_F16, w);
}
#else
#define model_flash(s) ((void)(s), GCKPT_E_ARG)
#endif

/* Fills tokens and targets of the whole batch for a step. */
static int32_t model_tokens[BATCH * T], model_targets[BATCH * T];
static void model_data(int step)
{
    for (int i = 0; i < BATCH * T; i++) {
        model_tokens[i] = (i * 7 + step * 3) % V;
        model_targets[i] = i % 9 == 4 ? -1 : (i * 5 + step) % V;
    }
}
#endif

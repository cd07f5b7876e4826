#ifndef GCKPT_NO_DEVICES
#include "run/internal.h"

/* Runs an update whose state is on the host, part by part, and returns 1; else returns 0. */
GCKPTI_FN int gckpti_update_in_parts(const gckpt_exec *e, const gckpti_ins *ins,
                                     const gckpt_call *call, const gckpt_update_pass *pass)
{
    const gckpti_plan_param *param = &e->plan->params[ins->id];
    const gckpti_param *q = gckpti_param_of(e, ins->id);
    if (!pass->update || !param->slots || !e->plan->kind_bytes[GCKPT_BYTES_HOST_STATE])
        return 0;
    const int64_t n = (int64_t)gckpti_round_up((size_t)param->elements, 16);
    const int64_t most = gckpti_min(n, GCKPTI_STREAMED);
    gckpt_update_pass part = *pass;
    gckpti_operands o;
    gckpti_operands_of(e->plan->operands, ins, 0, &o);
    for (int i = 0; i < param->slots; i++)
        part.state[i] = gckpti_arena_f32(e, o.addends[ins->uses - 1]) + i * most;
    for (int64_t at = 0; at < pass->elements; at += most) {
        part.elements = gckpti_min(most, pass->elements - at);
        const size_t bytes = (size_t)part.elements * sizeof(float);
        for (int i = 0; i < param->slots; i++)
            gckpti_to_backend(e, part.state[i], q->p.state[i] + at, bytes);
        GCKPTI_OF(gckpti_backend(e), update)(call, &part);
        for (int i = 0; i < param->slots; i++)
            gckpti_from_backend(e, q->p.state[i] + at, part.state[i], bytes);
        part.gradient += most;
        part.values += most;
        part.base = (const unsigned char *)part.base + bytes;
        part.squares = part.squares ? part.squares + most / GCKPT_UPDATE_BLOCK : NULL;
    }
    return 1;
}
#endif

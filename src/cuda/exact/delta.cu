#ifndef GCKPT_NO_RECURRENT
/* ---- delta_rule: in the forward, a thread for each column of the state of each head; in the
 * backward, a warp for the heads that share a key head ---- */
/* Computes columns of a state and outputs; the position is that of the call, in a capture too. */
__device__ void delta_forward_at(int64_t i, const gckpti_delta_call &run, const StepParams *params)
{
    gckpti_delta_call s = run;
    const int64_t item = i / s.values, j = i - item * s.values, n = s.keys * s.values;
    const int64_t position = s.o.capacity ? params->position : 0, at = item * (n + s.values);
    float *state = s.state ? s.state + at : s.workspace + item * n;
    const float *from = s.before ? s.before + at : state;
    s.first = position;
    if (s.state)
        s.first = gckpti_delta_resume(state + n + j, position), s.steps = position - s.first;
    for (int64_t k = j; k < n && !s.before && !s.first; k += s.values)
        state[k] = 0.0f;
    for (int64_t t = 0; t < s.steps; t++, from = state) {
        const gckpti_delta_step x =
            gckpti_delta_step_of(&s, item / s.o.heads, item % s.o.heads, t, from, state);
        gckpti_delta_columns(&x, j, 1);
    }
}

/* Computes the gradients of the heads that share key head `item`, one after the other. */
__device__ void delta_backward_of(int64_t item, const gckpti_delta_call &run, int64_t floats)
{
    gckpti_delta_call s = run;
    const int64_t row = item / s.o.key_heads, first = item % s.o.key_heads * s.group;
    float *workspace = s.workspace + item * floats;
    s.step = gckpti_delta_update_warp, s.grads = gckpti_delta_grads_warp;
    for (int64_t head = first; head < first + s.group; head++) {
        __syncwarp();
        for (int64_t k = lane_index(); k < floats; k += 32)
            workspace[k] = 0.0f;
        __syncwarp();
        gckpti_delta_backward_steps(&s, row, head, workspace);
    }
}

int64_t delta_workspace(const gckpt_call *call, bool backward)
{
    const gckpti_delta_call s = gckpti_delta_of(call);
    const int64_t items = call->shape.d[0] * (backward ? s.o.key_heads : s.o.heads);
    return items * gckpti_delta_workspace(&s, backward);
}

void delta_rule_by(const gckpt_call *call, bool backward)
{
    gckpti_delta_call s = gckpti_delta_of(call);
    const int64_t rows = call->shape.d[0];
    s.out = backward ? NULL : s.out;
    if (!backward)
        for_each<delta_forward_at, 128>(call, rows * s.o.heads * s.values, s, params_of(call));
    else
        for_each_row<delta_backward_of, 32>(call, rows * s.o.key_heads, s,
                                            gckpti_delta_workspace(&s, 1));
}
#endif

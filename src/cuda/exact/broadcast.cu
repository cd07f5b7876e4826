Axes<int64_t> broadcast_axes(const gckpt_call *call, int second)
{
    gckpti_walk w;
    gckpti_broadcast_walk(&w, call, second);
    return axes_of(&w);
}

void broadcast_forward(const gckpt_call *call, Pairing op)
{
    const gckpt_arg *in = call->in;
    combine(call, broadcast_axes(call, 1), op, call->out, in[0].data, in[1].data, 1.0f, 0);
}

/* As gckpti_pair_gradient: input i's gradient gets sign * g, or g * other; or by a rule. */
void broadcast_gradient(const gckpt_call *call, int i, float sign, const float *other,
                        Rule rule = NO_RULE)
{
    const gckpt_arg *in = &call->in[i];
    const float *own = rule > ABOVE && rule < WHERE ? in->data : NULL;
    const Scale<gckpti_put_product> by = { sign };
    const PairGradient f = { rule, 1.0f };
    if (!in->grad || in->grad == call->grad_out) /* passed on */
        return;
    Axes<int64_t> x = broadcast_axes(call, i ? i : 1);
    if (i)
        swap_steps(&x, 1, 2); /* 1: of this input, 2: of the other */
    if (in->low) {
        sums(call, x,
             { {}, {}, 1, 1, rule, call->grad_out, other, own, sign, 1.0f, in->grad, in->low,
               in->accumulate });
    } else if (rule) {
        combine(call, x, f, in->grad, call->grad_out, other, own, in->accumulate);
    } else if (other) {
        combine(call, x, MUL, in->grad, call->grad_out, other, 1.0f, in->accumulate);
    } else {
        map(call, by, call->grad_out, NULL, in->grad, gckpti_elements(&call->shape),
            in->accumulate);
    }
}

void add_forward(const gckpt_call *call) { broadcast_forward(call, ADD); }
void sub_forward(const gckpt_call *call) { broadcast_forward(call, SUB); }
void mul_forward(const gckpt_call *call) { broadcast_forward(call, MUL); }
void add_backward(const gckpt_call *call)
{
    broadcast_gradient(call, 0, 1.0f, NULL);
    broadcast_gradient(call, 1, 1.0f, NULL);
}
void sub_backward(const gckpt_call *call)
{
    broadcast_gradient(call, 0, 1.0f, NULL);
    broadcast_gradient(call, 1, -1.0f, NULL);
}
void mul_backward(const gckpt_call *call)
{
    broadcast_gradient(call, 0, 1.0f, call->in[1].data);
    broadcast_gradient(call, 1, 1.0f, call->in[0].data);
}

void div_forward(const gckpt_call *call) { broadcast_forward(call, DIVIDE); }
void maximum_forward(const gckpt_call *call) { broadcast_forward(call, MAXIMUM); }
void minimum_forward(const gckpt_call *call) { broadcast_forward(call, MINIMUM); }
void ruled_gradients(const gckpt_call *call, Rule first, Rule second)
{
    broadcast_gradient(call, 0, 1.0f, call->in[1].data, first);
    broadcast_gradient(call, 1, 1.0f, call->in[0].data, second);
}
void div_backward(const gckpt_call *call) { ruled_gradients(call, ABOVE, BELOW); }
void maximum_backward(const gckpt_call *call) { ruled_gradients(call, GREATER, GREATER); }
void minimum_backward(const gckpt_call *call) { ruled_gradients(call, LESS, LESS); }

/* a, or else own, where a condition holds, or where it does not. */
struct Choice {
    bool whole, holding;
    float by;
    __device__ void operator()(float *d, float a, float condition, float own, int) const
    {
        *d = holds(condition, whole) == holding ? a : own;
    }
};

const float *condition_of(const gckpt_call *call)
{
    const gckpt_arg *x = &call->in[0];
    return x->index ? (const float *)(const void *)x->index : x->data;
}

/* Out of what is not repeated, b or else a; where both are, out is b first. */
void where_forward(const gckpt_call *call)
{
    const int64_t n = gckpti_elements(&call->shape);
    const int taken = gckpti_elements(&call->in[2].shape) != n &&
                              gckpti_elements(&call->in[1].shape) == n
                          ? 2
                          : 1;
    const gckpt_arg *rest = &call->in[3 - taken];
    const float *own = rest->data;
    const Choice f = { call->in[0].index != NULL, taken == 1, 0.0f };
    if (gckpti_elements(&rest->shape) != n) {
        Axes<int64_t> all = broadcast_axes(call, 3 - taken);
        swap_steps(&all, 1, 2);
        combine(call, all, ADD, call->out, own, NULL, -0.0f, 0);
        own = call->out;
    }
    Axes<int64_t> x = broadcast_axes(call, taken);
    swap_steps(&x, 1, 2); /* 1: of what is taken, 2: of the condition */
    combine(call, x, f, call->out, call->in[taken].data, condition_of(call), own, 0);
}

void where_backward(const gckpt_call *call)
{
    const bool whole = call->in[0].index != NULL;
    const gckpt_arg *condition = &call->in[0];
    if (condition->grad && !condition->accumulate)
        fill(call, condition->grad, 0, gckpti_elements(&condition->shape));
    broadcast_gradient(call, 1, 1.0f, condition_of(call), whole ? WHERE_I32 : WHERE);
    broadcast_gradient(call, 2, 1.0f, condition_of(call), whole ? ELSEWHERE_I32 : ELSEWHERE);
}

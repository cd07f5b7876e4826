Axes<int64_t> broadcast_axes(const gckpt_call *call)
{
    gckpti_walk w;
    gckpti_broadcast_walk(&w, call);
    return axes_of(&w);
}

void broadcast_forward(const gckpt_call *call, Pairing op)
{
    combine(call, broadcast_axes(call), op, call->out, call->in[0].data, call->in[1].data, 1.0f, 0);
}

/* As gckpti_pair_gradient: input i's gradient gets sign * g, or g * other; or by a rule. */
void broadcast_gradient(const gckpt_call *call, int i, float sign, const float *other,
                        Rule rule = NO_RULE)
{
    const gckpt_arg *in = &call->in[i];
    const float *own = rule > ABOVE ? in->data : NULL;
    const Scale<gckpti_put_product> by = { sign };
    const PairGradient f = { rule, 1.0f };
    if (!in->grad || in->grad == call->grad_out) /* passed on */
        return;
    Axes<int64_t> x = broadcast_axes(call);
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

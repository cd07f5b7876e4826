Axes<int64_t> broadcast_axes(const gckpt_call *call, int second)
{
    gckpti_iter w;
    gckpti_broadcast_iter(&w, call, second);
    return axes_of(&w);
}

void broadcast_forward(const gckpt_call *call, BinaryOp op)
{
    const gckpt_arg *in = call->in;
    combine(call, broadcast_axes(call, 1), Binary{ op, 1.0f }, call->out, in[0].data, in[1].data,
            NULL, 0);
}

/* Gives input i its gradient: sign * g, g * other or, as gckpti_binary_gradient, by a rule. */
void broadcast_gradient(const gckpt_call *call, int i, float sign, const float *other, Rule rule)
{
    const gckpt_arg *in = &call->in[i];
    const float *self = rule > DIVIDEND && rule < WHERE ? in->data : NULL;
    if (!wanted(*in) || (in->grad && in->grad == call->grad_out)) /* g is in place already */
        return;
    Axes<int64_t> x = broadcast_axes(call, i ? i : 1);
    if (i)
        std::swap(x.step[1], x.step[2]); /* step[1]: in input i; step[2]: in the other input */
    if (in->compensation) {
        sums(call, x, { rule, grad_out_of(call), other, self, sign, sum_of(*in) });
    } else if (rule) {
        combine(call, x, BinaryGradient{ rule, 1.0f }, in->grad, call->grad_out, other, self,
                in->accumulate);
    } else if (other) {
        combine(call, x, Binary{ MUL, 1.0f }, in->grad, call->grad_out, other, NULL,
                in->accumulate);
    } else {
        map_gradient(call, *in, Scale<gckpti_put_product>{ sign }, call->grad_out, NULL);
    }
}

/* Defines an op of two inputs. sign: factor of gradient 1; first, second: the gradients' rules. */
#define PAIRED(name, op, sign, other, first, second)                                               \
    void name##_forward(const gckpt_call *call) { broadcast_forward(call, op); }                   \
    void name##_backward(const gckpt_call *call)                                                   \
    {                                                                                              \
        broadcast_gradient(call, 0, 1.0f, other ? call->in[1].data : NULL, first);                 \
        broadcast_gradient(call, 1, sign, other ? call->in[0].data : NULL, second);                \
    }
PAIRED(add, ADD, 1.0f, false, NO_RULE, NO_RULE)
PAIRED(sub, SUB, -1.0f, false, NO_RULE, NO_RULE)
PAIRED(mul, MUL, 1.0f, true, NO_RULE, NO_RULE)
PAIRED(div, DIVIDE, 1.0f, true, DIVIDEND, DIVISOR)
PAIRED(maximum, MAXIMUM, 1.0f, true, GREATER, GREATER)
PAIRED(minimum, MINIMUM, 1.0f, true, LESS, LESS)
#undef PAIRED

/* Computes a where the condition equals on_true, and `self` elsewhere. */
struct Where {
    bool is_i32, on_true;
    float scalar;
    __device__ void operator()(float *d, float a, float condition, float self, int) const
    {
        *d = holds(condition, is_i32) == on_true ? a : self;
    }
};

const float *condition_of(const gckpt_call *call)
{
    const gckpt_arg *x = &call->in[0];
    return x->index ? (const float *)(const void *)x->index : x->data;
}

/* Selects from input `taken`, else `rest`. If both are repeated, expands `rest` into out first. */
void where_forward(const gckpt_call *call)
{
    const int64_t n = gckpti_elements(&call->shape);
    const bool repeated = gckpti_elements(&call->in[1].shape) != n;
    const int taken = repeated || gckpti_elements(&call->in[2].shape) == n ? 1 : 2;
    const gckpt_arg *rest = &call->in[3 - taken];
    const float *self = rest->data;
    const Where f = { call->in[0].index != NULL, taken == 1, 0.0f };
    if (gckpti_elements(&rest->shape) != n) {
        Axes<int64_t> all = broadcast_axes(call, 3 - taken);
        std::swap(all.step[1], all.step[2]);
        combine(call, all, Binary{ ADD, -0.0f }, call->out, self, NULL, NULL, 0);
        self = call->out;
    }
    Axes<int64_t> x = broadcast_axes(call, taken);
    std::swap(x.step[1], x.step[2]); /* step[1]: in input `taken`; step[2]: in the condition */
    combine(call, x, f, call->out, call->in[taken].data, condition_of(call), self, 0);
}

void where_backward(const gckpt_call *call)
{
    const bool is_i32 = call->in[0].index != NULL;
    const gckpt_arg *condition = &call->in[0];
    if (condition->grad && !condition->accumulate)
        fill(call, condition->grad, 0, gckpti_elements(&condition->shape));
    broadcast_gradient(call, 1, 1.0f, condition_of(call), is_i32 ? WHERE_I32 : WHERE);
    broadcast_gradient(call, 2, 1.0f, condition_of(call), is_i32 ? ELSEWHERE_I32 : ELSEWHERE);
}

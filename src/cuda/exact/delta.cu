#ifndef GCKPT_NO_RECURRENT
/* ---- delta_rule: in the forward, a thread for each column of the state of each head; in the
 * backward, a block for the heads that share a key head: a column is a thread's, a row a warp's. */
enum { DELTA_THREADS = 256 };

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

/* Computes what threads have of a step: the columns of d, and u, w = beta r, x and y. */
__device__ void delta_thread_gradients(const gckpti_delta_step &s, int64_t j)
{
    const int64_t n = s.values;
    float *u = s.scratch, *w = u + n, *sum = w + n, *y = sum + n, x = 0.0f;
    u[j] = s.scale * s.g[j], w[j] = s.beta * s.r[j];
    for (int64_t i = 0; i < s.keys; i++) {
        float *d = s.d + i * n + j;
        *d = gckpti_fma(s.q[i], u[j], *d);
        x = gckpti_fma(s.k[i], *d, x);
    }
    sum[j] = x, y[j] = -s.beta * x;
    if (s.dv)
        gckpti_put_product(s.dv + j, x, s.beta, s.add[2]);
}

/* Computes what warps have of a step: the dots of row i, and the row of d; at the end *total is the
 * row's part of ddecay. */
__device__ void delta_warp_gradients(const gckpti_delta_step &s, int64_t i, float *total)
{
    const int64_t n = s.values;
    const float *u = s.scratch, *w = u + n, *y = w + 2 * n;
    float dq = 0.0f, first = 0.0f, second = 0.0f, part = 0.0f;
    for (int64_t j = threadIdx.x % 32; j < n; j += 32) {
        float *d = s.d + i * n + j;
        const float p = gckpti_mul(s.decay, s.from[i * n + j]);
        dq = gckpti_fma(s.to[i * n + j], u[j], dq);
        first = gckpti_fma(*d, w[j], first);
        second = gckpti_fma(p, y[j], second);
        const float next = gckpti_fma(s.k[i], y[j], *d);
        part = gckpti_fma(next, p, part);
        *d = s.decay * next;
    }
    dq = warp_sum(dq), first = warp_sum(first), second = warp_sum(second), *total = warp_sum(part);
    if (s.dq && threadIdx.x % 32 == 0)
        gckpti_put(s.dq + i, dq, s.add[0]);
    if (s.dk && threadIdx.x % 32 == 0)
        gckpti_put(s.dk + i, first, s.add[1]), s.dk[i] += second;
}

/* Run a step of a head, and its gradients, by a block (gckpti_delta_fn). */
__device__ void delta_columns(const gckpti_delta_step *s)
{
    for (int64_t j = threadIdx.x; j < s->values; j += DELTA_THREADS)
        gckpti_delta_columns(s, j, 1);
}

__device__ void delta_gradients(const gckpti_delta_step *s)
{
    SHARED(float, totals, [GCKPTI_DELTA_COLUMNS]);
    const int thread = (int)threadIdx.x;
    __syncthreads();
    for (int64_t j = thread; j < s->values; j += DELTA_THREADS)
        delta_thread_gradients(*s, j);
    __syncthreads();
    for (int64_t i = thread / 32; i < s->keys; i += DELTA_THREADS / 32)
        delta_warp_gradients(*s, i, totals + i);
    if (s->dbeta && thread < 32) {
        const float *x = s->scratch + 2 * s->values, *r = s->r;
        const float dot =
            lanes_sum(s->values, [&](float all, int64_t j) { return gckpti_fma(x[j], r[j], all); });
        if (thread == 0)
            gckpti_put(s->dbeta, dot, s->add[4]);
    }
    __syncthreads();
    float total = 0.0f;
    for (int64_t i = 0; s->ddecay && thread == 0 && i < s->keys; i++)
        total += totals[i];
    if (s->ddecay && thread == 0)
        gckpti_put(s->ddecay, total, s->add[3]);
}

__global__ void __launch_bounds__(DELTA_THREADS, 2)
    delta_backward_kernel(gckpti_delta_call s, int64_t floats)
{
    const int64_t row = blockIdx.x / s.o.key_heads, first = blockIdx.x % s.o.key_heads * s.group;
    float *workspace = s.workspace + blockIdx.x * floats;
    s.step = delta_columns, s.grads = delta_gradients;
    for (int64_t head = first; head < first + s.group; head++) {
        for (int64_t k = threadIdx.x; k < floats; k += DELTA_THREADS)
            workspace[k] = 0.0f;
        __syncthreads();
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
        run<delta_backward_kernel>(call, dim3((unsigned)(rows * s.o.key_heads)), DELTA_THREADS, 0,
                                   s, gckpti_delta_workspace(&s, 1));
}
#endif

/* ---- ops that move elements ---- */
/* Moves elements in n parts, like gckpti_run_moves. Where several places of a part go to the same
 * element (the gradient of a repeated edge), each place is added by its own launch, in order. */
void run_moves(const gckpt_call *call, bool backward, int n, gckpti_move_fn *axes)
{
    for (int i = 0; i < n; i++) {
        const bool more = i >= call->inputs;
        const gckpt_arg &in = call->in[more ? 0 : i];
        const Values from = backward ? grad_out_of(call) : value_of(in);
        const Results to = backward ? grad_of(in) : out_of(call);
        const int accumulate = backward && (in.accumulate || more);
        int64_t places = 1, next = 0;
        gckpti_iter move, it;
        axes(&move, call, i); /* tensor 0 is the input, tensor 1 the result */
        it = move;
        for (int t = 0; t < 4; t++) {
            const int as = t ? backward : !backward;
            memcpy(it.step[t], move.step[as], sizeof *it.step);
            it.offset[t] = move.offset[as];
        }
        for (int k = 0; k < it.n; k++)
            if (it.step[0][k] == 0)
                places = it.size[k], next = it.step[1][k], it.size[k] = 1;
        for (int64_t place = 0; place < places; place++, it.offset[1] += next)
            map(call, it, Copy(), to, from, NONE, NONE, accumulate);
    }
}

#ifndef GCKPT_NO_AXES
template <gckpti_move_fn *AXES> void moves_by(const gckpt_call *call, bool backward)
{
    run_moves(call, backward, call->inputs, AXES);
}

void pad_by(const gckpt_call *call, bool backward)
{
    const gckpti_pad *p = (const gckpti_pad *)call->attributes;
    const bool by_value = p->mode == GCKPT_PAD_VALUE;
    if (!backward && by_value)
        fill(call, call->out, gckpti_bits(p->value), gckpti_elements(&call->shape));
    run_moves(call, backward, by_value ? 1 : 3, gckpti_pad_move);
}
#endif

/* Copies n rows between a cache of `held` rows of c elements, where position p is row p % held, and
 * a tensor of the positions from the current one plus `first` on; positions below 0 are 0. */
struct Ring {
    gckpt_arg x;
    Results y;
    int64_t n, held, c, first;
    bool writes; /* y is the cache, else x is */
};
__device__ void ring_at(int64_t i, const Ring &s, const StepParams *params)
{
    const int64_t row = i / s.c, position = params->position + s.first + row % s.n;
    const int64_t cached = (row / s.n * s.held + position % s.held) * s.c + i % s.c;
    if (position < 0)
        put_at(s.y, i, 0.0f);
    else
        gckpti_put_element(&s.x, s.writes ? i : cached, s.y.f32, s.y.bf16, s.writes ? cached : i);
}

void cache_by(const gckpt_call *call, bool)
{
    const int64_t *x = call->in[0].shape.d, *y = call->shape.d;
    const Ring s = { call->in[0], out_of(call), x[1], y[1], y[2], 0, true };
    for_each<ring_at>(call, x[0] * x[1] * x[2], s, params_of(call));
}

/* The gradient of a slice: that of the result in n of each `whole` elements, from `begin` on, and 0
 * in the others. */
struct SliceGradient {
    Values g;
    Results dx;
    int64_t whole, begin, n;
    template <int N> __device__ void at(int64_t i) const
    {
        const int64_t block = i / whole, j = i - block * whole - begin;
        store(dx, i, j >= 0 && j < n ? load<N>(g, block * n + j) : Vec<float, N>{});
    }
};

void slice_by(const gckpt_call *call, bool backward)
{
    const gckpti_slice *p = (const gckpti_slice *)call->attributes;
    const gckpt_arg &in = call->in[0];
    const int64_t *x = in.shape.d, *y = call->shape.d;
    const Ring latest = { in, out_of(call), y[1], x[1], y[2], p->relative - y[1], false };
    if (p->relative && p->axis)
        return for_each<ring_at>(call, y[0] * y[1] * y[2], latest, params_of(call));
    if (!backward || in.accumulate || !wanted(in))
        return run_moves(call, backward, 1, gckpti_slice_move);
    const gckpti_axis_split axes = gckpti_split_at(&in.shape, p->axis);
    const int64_t begin = gckpti_join_words(p->begin), whole = axes.size * axes.inner;
    const SliceGradient part = { grad_out_of(call), grad_of(in), whole, begin * axes.inner,
                                 gckpti_elements(&call->shape) / axes.outer };
    for_each_vec<8>(call, part, axes.outer * whole,
                    (whole | part.begin | part.n) % 8 == 0 && aligned(part.g, part.dx));
}

/* ---- embed, gather ---- */
/* Table rows that are read. gather: a sample has `each` indices and a table of `table` rows. */
struct RowIndex {
    const int32_t *index;
    int64_t each, table;
    __device__ __forceinline__ int64_t operator[](int64_t r) const
    {
        return index[r] + (each ? r / each * table : 0);
    }
};

/* Copies the table row of each index; rows have n elements. */
struct TableLines {
    const float *table;
    RowIndex index;
    Results out;
    int64_t n;
    template <int N> __device__ void at(int64_t i) const
    {
        store(out, i, load<N>(table, index[i / n] * n + i % n));
    }
};

/* A table row's gradient adds the rows of g with its index, in order: rows first to end - 1 of
 * `order`, in which g's rows are sorted by index. */
struct Sorted {
    unsigned *order, *first, *end; /* end is 0 for table rows without rows of g */
};

int64_t embed_workspace(const gckpt_call *call, bool backward)
{
    return backward ? 2 * gckpti_rows(&call->in[0].shape) + gckpti_rows(&call->shape) : 0;
}

/* Finds the place of row r among the rows of its table, by reading all of its indices. */
__device__ void embed_sort(int64_t r, const RowIndex &index, const Sorted &s, int64_t rows)
{
    const int64_t each = index.each ? index.each : rows, first = r / each * each;
    const int32_t *all = index.index + first, mine = index.index[r];
    unsigned less = 0, same = 0, before = 0;
#pragma unroll 8
    for (int i = 0; i < (int)each; i++) {
        less += all[i] < mine, same += all[i] == mine;
        before += all[i] == mine && i < (int)(r - first);
    }
    s.order[first + less + before] = (unsigned)r;
    s.first[index[r]] = (unsigned)first + less;
    s.end[index[r]] = (unsigned)first + less + same;
}

/* A block loops over table rows; a thread adds up a column. */
__global__ void embed_backward_kernel(Sorted s, Values g, float *d, int64_t table, int64_t n,
                                      int accumulate)
{
    const int64_t j = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    for (int64_t v = blockIdx.x; v < table && j < n; v += gridDim.x) {
        const int64_t first = s.end[v] ? s.first[v] : 0, count = s.end[v] - first;
        float sum = accumulate ? d[v * n + j] : 0.0f;
        add_terms<8>(
            count,
            [&](int64_t i, float *term) { term[0] = value_at(g, s.order[first + i] * n + j); },
            [&](const float *term) { sum += term[0]; });
        if (count || !accumulate)
            d[v * n + j] = sum;
    }
}

void embed_by(const gckpt_call *call, bool backward)
{
    const gckpt_arg *x = &call->in[0];
    int64_t n = gckpti_last(&call->shape), rows = gckpti_rows(&call->shape);
    int64_t table = gckpti_rows(&x->shape);
    const RowIndex index = { call->in[1].index, x->shape.n == 3 ? call->shape.d[1] : 0,
                             x->shape.d[1] };
    const TableLines copy = { x->data, index, out_of(call), n };
    if (!backward)
        for_each_vec<8>(call, copy, rows * n, n % 8 == 0 && aligned(copy.table, copy.out));
    if (!backward || !x->grad)
        return;
    unsigned *workspace = (unsigned *)call->workspace;
    const Sorted sorted = { workspace + 2 * table, workspace, workspace + table };
    fill(call, sorted.end, 0, table);
    for_each<embed_sort>(call, rows, index, sorted, rows);
    const dim3 grid(blocks_for(table, 1).x, (unsigned)((n + 255) / 256));
    run<embed_backward_kernel>(call, grid, 256, 0, sorted, grad_out_of(call), x->grad, table, n,
                               x->accumulate);
}

/* Table rows that are read. gather: a sample has `each` indices and a table of `table` rows. */
struct RowIndex {
    const int32_t *index;
    int64_t each, table;
    __device__ __forceinline__ int64_t operator[](int64_t r) const
    {
        return index[r] + (each ? r / each * table : 0);
    }
};

/* Copies an element of a table row of n for an index (embed, gather). */
__device__ void embed_at(int64_t i, const float *table, const RowIndex &index, const Results &out,
                         int64_t n)
{
    const int64_t r = i / n;
    put_at(out, i, table[index[r] * n + (i - r * n)]);
}

/* A table row's gradient adds the rows of g with its index, in order: rows first to end - 1 of
 * `order`, in which g's rows are sorted by index. */
struct Sorted {
    unsigned *order, *first, *end; /* end is 0 for table rows without rows of g */
};

int64_t embed_workspace(const gckpt_call *call, bool backward)
{
    return backward ? 2 * gckpti_rows(&call->in[0].shape) + gckpti_rows(&call->shape) : 0;
}

/* Finds the place of row r among the rows of its table, which is the number of rows before it: all
 * indices are read, which takes less than a millisecond for 65536 rows (estimated). */
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
    if (!backward)
        for_each<embed_at>(call, rows * n, x->data, index, out_of(call), n);
    if (!backward || !x->grad)
        return;
    unsigned *workspace = (unsigned *)call->workspace;
    const Sorted sorted = { workspace + 2 * table, workspace, workspace + table };
    fill(call, sorted.end, 0, table);
    for_each<embed_sort>(call, rows, index, sorted, rows);
    dim3 grid = blocks_for(table, 1);
    grid.y = (unsigned)((n + 255) / 256);
    run<embed_backward_kernel>(call, grid, 256, 0, sorted, grad_out_of(call), x->grad, table, n,
                               x->accumulate);
}

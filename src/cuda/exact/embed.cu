/* Table rows that are read. gather: a sample has `each` indices and a table of `table` rows. */
struct RowIndex {
    const int32_t *index;
    int64_t each, table;
    __device__ __forceinline__ int64_t operator[](int64_t r) const
    {
        return index[r] + (each ? r / each * table : 0);
    }
};

/* Copies n elements of a table row for each index (embed, gather). */
struct EmbedRows {
    const float *table;
    RowIndex index;
    Results out;
    int64_t n;
    template <int N> __device__ void at(int64_t i) const
    {
        const int64_t r = i / n;
        store(out, i, load<N>(table + index[r] * n + (i - r * n)));
    }
};

/* A table row's gradient adds the rows of g with its index, in order. These are first listed by
 * table row, and each list is sorted. Integer atomics make a list's place and initial order
 * arbitrary, but not its sorted content. */
struct Lists {
    unsigned *count, *used; /* count[v]: rows of g for table row v; *used: sum of counts */
    unsigned *begin;        /* begin of each list */
    unsigned *place;        /* place[r]: of row r of g in its list; later the sorted lists */
    unsigned *list;         /* all lists, one after the other */
};

int64_t embed_workspace(const gckpt_call *call, bool backward)
{
    return backward ? 2 * gckpti_rows(&call->in[0].shape) + 1 + 2 * gckpti_rows(&call->shape) : 0;
}

__device__ void lists_count(int64_t r, const Lists &l, const RowIndex &index)
{
    l.place[r] = atomicAdd(&l.count[index[r]], 1u);
}

__device__ void lists_begin(int64_t v, const Lists &l)
{
    l.begin[v] = l.count[v] ? atomicAdd(l.used, l.count[v]) : 0;
}

__device__ void lists_fill(int64_t r, const Lists &l, const RowIndex &index)
{
    l.list[l.begin[index[r]] + l.place[r]] = (unsigned)r;
}

/* A row's position in its sorted list is the number of smaller rows in it: quadratic, but parallel.
 * 65536 rows of one token take about a millisecond (not confirmed on a device). */
__device__ void lists_sort(int64_t r, const Lists &l, const RowIndex &index)
{
    unsigned begin = l.begin[index[r]], count = l.count[index[r]], before = 0;
    for (unsigned i = 0; i < count; i++)
        before += l.list[begin + i] < (unsigned)r;
    l.place[begin + before] = (unsigned)r;
}

/* A block loops over table rows; a thread adds up a column and prefetches AHEAD rows of g. */
__global__ void embed_backward_kernel(Lists l, const float *g, const uint16_t *bf16, float *d,
                                      int64_t table, int64_t n, int accumulate)
{
    enum { AHEAD = 8 };
    int64_t j = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (j >= n)
        return;
    for (int64_t v = blockIdx.x; v < table; v += gridDim.x) {
        unsigned count = l.count[v];
        if (!count && accumulate)
            continue;
        const unsigned *row = l.place + l.begin[v];
        float sum = accumulate ? d[v * n + j] : 0.0f;
        for (unsigned r = 0; r < count; r += AHEAD) {
            float x[AHEAD];
            UNROLL for (unsigned i = 0; i < AHEAD; i++) if (r + i < count)
            {
                int64_t at = row[r + i] * n + j;
                x[i] = g ? g[at] : gckpti_from_bf16(bf16[at]);
            }
            UNROLL for (unsigned i = 0; i < AHEAD; i++) if (r + i < count) sum += x[i];
        }
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
        for_each_vec<8>(call, EmbedRows{ x->data, index, out_of(call), n }, rows * n,
                 n % 8 == 0 && aligned(x->data, out_of(call)));
    if (!backward || !x->grad)
        return;
    unsigned *workspace = (unsigned *)call->workspace, *place = workspace + 2 * table + 1;
    const Lists l = { workspace, workspace + table, workspace + table + 1, place, place + rows };
    fill(call, l.count, 0, table + 1);
    for_each<lists_count>(call, rows, l, index);
    for_each<lists_begin>(call, table, l);
    for_each<lists_fill>(call, rows, l, index);
    for_each<lists_sort>(call, rows, l, index);
    dim3 grid = blocks_for(table, 1);
    grid.y = (unsigned)((n + 255) / 256);
    run<embed_backward_kernel>(call, grid, 256, 0, l, call->grad_out, call->grad_out_bf16, x->grad,
        table, n, x->accumulate);
}

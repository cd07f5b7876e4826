#ifndef GCKPT_NO_QUANT
/* ---- products whose b is read as it is stored ---- */
/* n stored values at b, as gckpti_unpack. storage: a constant. */
GCKPTI_ALWAYS void V(unpack_row)(int storage, const unsigned char *b, float scale, int64_t n,
                                 float *x)
{
    const int each = storage == GCKPT_STORAGE_I8 ? 1 : 2;
    const FLOATS s = V(set1)(scale);
    int64_t i = 0;
    for (; i + W <= n; i += W)
        V(store)(x + i, V(widened)(storage, b + i * each, s));
    if (i < n)
        V(store_n)(x + i, V(stored)(storage, b, i, s, n - i), n - i);
}

/* `rows` of u, `row` elements apart, the first from element `at` on: n elements of each, as
 * gckpti_unpack, to rows of `width` floats; as many rows that come then are fetched. (As many
 * parameters as a rectangle of one matrix in another has. So too pack_stored.) */
static GCKPTI_TARGET void V(unpack)(const gckpt_dequantisation *u, int64_t at, int64_t row, int64_t rows,
                                    int64_t n, float *x, int64_t width)
{
    const int each = u->storage >= GCKPT_STORAGE_I8 ? 1 : 2, storage = (int)u->storage;
    const int64_t ahead = gckpti_stored_bytes(storage, rows * row);
    for (; rows > 0; rows--, at += row, x += width) {
        const unsigned char *b =
            (const unsigned char *)u->quantised + gckpti_stored_bytes(storage, at);
        for (int64_t i = 0; i < n * each; i += 64)
            __builtin_prefetch(b + ahead + i, 0, 2);
        if (storage == GCKPT_STORAGE_BF16)
            V(unpack_row)(GCKPT_STORAGE_BF16, b, 0.0f, n, x);
        else if (storage == GCKPT_STORAGE_F16)
            V(unpack_row)(GCKPT_STORAGE_F16, b, 0.0f, n, x);
        else if (u->scales && at + n <= (at / u->row + 1) * u->row)
            V(unpack_row)(GCKPT_STORAGE_I8, b, u->scales[at / u->row], n, x);
        else if (storage == GCKPT_STORAGE_I4 && at % W == 0)
            V(unpack_blocks)((const unsigned char *)u->quantised, at, n, x);
        else
            gckpti_unpack(u, at, n, x);
    }
}

/* V(pack_panels) of all panels, links p.., columns from j on, of b as it is stored. */
static GCKPTI_TARGET void V(pack_stored)(const gckpti_product *t, int64_t p, int64_t j, int64_t n,
                                         int64_t k, float *d, int64_t deep)
{
    enum { LINKS = 64, ROOM = GCKPTI_PANEL * LINKS };
    float room[ROOM];
    const int64_t some = t->b.row == 1 ? 8 : LINKS;
    for (int64_t l = 0; l < k; l += some)
        for (int64_t at = 0, width; at < n; at += width) {
            width = V(panel)(n, at);
            const int64_t cols = gckpti_min(n - at, width), links = gckpti_min(k - l, some);
            float *to = d + at * deep + l * width;
            if (t->b.row == 1) {
                V(unpack)
                (t->b.stored, (p + l) * t->b.step + j + at, t->b.step, links, cols, to, width);
                for (int64_t i = 0; cols < width && i < links; i++)
                    memset(to + i * width + cols, 0, (size_t)(width - cols) * sizeof *to);
            } else {
                V(unpack)
                (t->b.stored, (j + at) * t->b.row + p + l, t->b.row, cols, links, room, LINKS);
                V(pack)(room, 1, LINKS, cols, links, to, width);
            }
        }
}

/* V(dots_of) or V(sweep_of), for which what is stored is a constant. */
#define GCKPTI_AS_STORED(what, size)                                                               \
    if (u->storage == GCKPT_STORAGE_BF16)                                                           \
        V(what)(GCKPT_STORAGE_BF16, size, &t);                                                      \
    else if (u->storage == GCKPT_STORAGE_F16)                                                       \
        V(what)(GCKPT_STORAGE_F16, size, &t);                                                       \
    else                                                                                           \
        V(what)(GCKPT_STORAGE_I8, size, &t);

/* V(dots) of rows j0.. of b as they are stored: 32 at a time, if these are whole words; else they
 * come to the stack as floats. */
static GCKPTI_TARGET void V(stored_dots)(const gckpt_dequantisation *u, int64_t j0, const V(lone) *lone)
{
    enum { LINKS = 64, COLS = 32, MOST = W < 16 ? 32 : 64 };
    const int bytes = u->storage == GCKPT_STORAGE_I8, in_word = bytes ? 4 : 2;
    const float *b = (const float *)u->quantised;
    float room[LINKS * COLS];
    const int blocks = u->storage == GCKPT_STORAGE_I4;
    const int words =
        lone->k % 16 == 0 && (uintptr_t)b % sizeof *b == 0 && (!bytes || u->row == lone->k);
    const int fours = lone->k % GCKPTI_NIBBLES == 0 && lone->row == lone->k && lone->k < 1 << 27;
    const int whole = gckpti_little_endian() && lone->a_step == 1 && (blocks ? fours : words);
    const int64_t most = blocks ? MOST : COLS;
    V(lone) t = *lone;
    for (int64_t j = 0; j < lone->n; j += t.n) {
        t.n = gckpti_min(lone->n - j, most), t.c = lone->c + j;
        t.from = lone->from ? lone->from + j : NULL;
        if (t.n == most && whole && blocks) {
            t.k = lone->k / GCKPTI_NIBBLES, t.row = t.k * GCKPTI_NIBBLE_BYTES;
            t.b = (const char *)u->quantised + (j0 + j) * t.row;
            t.next = (const char *)t.b + gckpti_min(most, lone->n - most - j) * t.row;
            V(dots_of_blocks)(MOST / W, &t);
            continue;
        }
        t.n = gckpti_min(t.n, COLS);
        if (t.n == COLS && whole && !blocks) {
            t.k = lone->k / in_word, t.row = lone->row / in_word;
            t.b = b + (j0 + j) * t.row, t.scales = bytes ? u->scales + j0 + j : NULL;
            t.next = b + (j0 + gckpti_min(j + COLS, lone->n - COLS)) * t.row;
            GCKPTI_AS_STORED(dots_of, COLS / W)
            continue;
        }
        for (int64_t p = 0; p < lone->k; p += t.k, t.from = t.c) {
            t.k = gckpti_min(lone->k - p, LINKS), t.a = lone->a + p * t.a_step;
            V(unpack)(u, (j0 + j) * lone->row + p, lone->row, t.n, t.k, room, LINKS);
            t.b = room, t.row = LINKS, t.next = NULL;
            V(dots)(&t);
        }
        t.a = lone->a;
    }
}

/* V(sweep) of columns j0.. of b in the same way: 8 rows of whole vectors. */
static GCKPTI_TARGET void V(stored_sweep)(const gckpt_dequantisation *u, int64_t j0,
                                          const V(lone) *lone)
{
    enum { COLS = 256 };
    const int bytes = u->storage == GCKPT_STORAGE_I8, each = bytes ? 1 : 2;
    float room[8 * COLS];
    V(lone) t = *lone;
    for (int64_t p = 0; p < lone->k; p += t.k, t.a += t.k * t.a_step) {
        const int64_t at = p * lone->row + j0;
        int64_t j = 0;
        t.k = gckpti_min(lone->k - p, 8);
        if (t.k == 8 && u->storage == GCKPT_STORAGE_I4 && at % GCKPTI_NIBBLES == 0 &&
            lone->row % GCKPTI_NIBBLES == 0) {
            t.b = (const char *)u->quantised + gckpti_units(GCKPT_STORAGE_I4, at);
            t.row = gckpti_units(GCKPT_STORAGE_I4, lone->row);
            t.n = j = lone->n / GCKPTI_NIBBLES * GCKPTI_NIBBLES, t.c = lone->c;
            V(sweep_of_blocks)(&t);
        } else if (t.k == 8 && u->storage != GCKPT_STORAGE_I4 && (!bytes || u->row == lone->row)) {
            t.b = (const char *)u->quantised + at * each, t.row = lone->row;
            t.scales = bytes ? u->scales + p : NULL;
            t.n = j = lone->n / W * W, t.c = lone->c;
            GCKPTI_AS_STORED(sweep_of, 8)
        }
        for (; j < lone->n; j += t.n) {
            t.n = gckpti_min(lone->n - j, COLS), t.c = lone->c + j;
            V(unpack)(u, at + j, lone->row, t.k, t.n, room, COLS);
            t.b = room, t.row = COLS;
            V(sweep)(&t);
        }
    }
}
#undef GCKPTI_AS_STORED
#endif

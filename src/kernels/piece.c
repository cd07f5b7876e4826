/* Where it is a single row. */
static GCKPTI_TARGET void V(product_row)(const gckpti_product *t, const gckpti_rectangle *piece)
{
    const int64_t i = piece->i0, j0 = piece->j0;
    const int dots = t->b.step == 1;
    V(lone) u = { t->k, piece->j1 - j0, t->a.f32 + i * t->a.row, t->a.step, NULL,
                  dots ? t->b.row : t->b.step, NULL, gckpti_starts(t, i, j0),
                  t->c + i * t->c_row + j0, NULL };
    size_t bytes = (size_t)u.n * sizeof *u.c;
    if (!dots && !u.from)
        memset(u.c, 0, bytes);
    else if (!dots && u.from != u.c)
        memcpy(u.c, u.from, bytes);
    if (gckpti_is_stored(&t->b)) {
        GCKPTI_STORED((dots ? V(stored_dots) : V(stored_sweep))(t->b.stored, j0, &u));
        return;
    }
    u.b = t->b.f32 + j0 * t->b.row;
    (dots ? V(dots) : V(sweep))(&u);
}

/* Links p.., columns j.. of b, within so many tiles. */
static GCKPTI_TARGET gckpti_fetch V(fetch_block)(const gckpti_product *t, int64_t p, int64_t k,
                                                 int64_t j, int64_t n, int64_t tiles)
{
    const gckpti_factor *b = &t->b;
    const int64_t at = p * b->step + j * b->row;
    gckpti_fetch f = b->row == 1 ? gckpti_fetch_of(b, at, b->step, k, n)
                                 : gckpti_fetch_of(b, at, b->row, b->step == 1 ? n : 0, k);
    f.pace = 1 + f.rows * ((f.width + 63) / 64) / tiles;
    return f;
}

/* What stands in this rectangle of c; pack: `room` floats, see gckpti_product_room.
 *
 * The loops, from the outside: blocks of b, along its columns and then down its links (p, j; n
 * columns, k links); down the rows, as many at a time as a tile has (i); across the block's panels
 * (col). There a tile, some rows and vectors of c in registers, takes k links. From one block of
 * links to the next a chain rests in c; in the first it begins at `from`. So a tile reads a's
 * rows, which the next panel reads again, and a panel of b, which the next rows read again.
 * Meanwhile what comes next is fetched: lines `ahead` of b's next block, `below` of a's rows.
 * (More than 60 lines: what one loop knows the next one needs.) */
static GCKPTI_TARGET void V(product_piece)(const gckpti_product *t, const gckpti_rectangle *piece,
                                           float *pack, int64_t room)
{
    enum { MANY = 2048 }; /* rows of a that each product finds in memory, not in a cache */
    const int64_t i0 = piece->i0, i1 = piece->i1, j0 = piece->j0, j1 = piece->j1;
    const gckpti_blocking by = V(blocking)(t, i1 - i0, room);
    const int64_t high = GCKPTI_TILE_ROWS, most = GCKPTI_TILE_VECTORS * W;
    float *const panels = pack + GCKPTI_STRIP * by.deep;
    int64_t p = 0, j = j0, next_p, next_j;
    if (i1 - i0 == 1 && (t->b.step == 1 || t->b.row == 1)) {
        V(product_row)(t, piece);
        return;
    }
    do {
        const float *a = t->a.f32 + p * t->a.step;
        const float *b = gckpti_is_stored(&t->b) ? NULL : t->b.f32 + p * t->b.step + j * t->b.row;
        const int64_t n = gckpti_min(j1 - j, by.wide), k = gckpti_min(t->k - p, by.deep);
        const int64_t count = (n + most - 1) / most;
        gckpti_tile u = { k, a, t->a.row, t->a.step, b, 0, NULL, 0, NULL, t->c_row, 0, NULL };
        gckpti_fetch ahead = { NULL, 0, 0, 0, 0, 0 }, below = ahead;
        next_j = j + n < j1 ? j + n : j0;
        next_p = j + n < j1 ? p : p + by.deep;
        if (next_p < t->k)
            ahead = V(fetch_block)(t, next_p, gckpti_min(t->k - next_p, by.deep), next_j,
                                   gckpti_min(j1 - next_j, by.wide),
                                   (i1 - i0 + high - 1) / high * count);
        if (gckpti_is_stored(&t->b))
            GCKPTI_STORED(V(pack_stored)(t, p, j, n, k, panels, by.deep));
        else if (!by.in_place || n % W)
            V(pack_panels)(t, b, n, k, by.in_place, panels, by.deep);
        for (int64_t i = i0, rows; i < i1; i += rows) {
            float *c = t->c + i * t->c_row + j;
            const int64_t in_strip = (i - i0) % GCKPTI_STRIP;
            rows = gckpti_min(i1 - i, high);
            u.a = a + i * t->a.row;
            if (!by.strips && t->a.step == 1 && t->m >= MANY && j == j0 && i + 2 * high <= i1) {
                below = gckpti_fetch_of(&t->a, p * t->a.step + (i + high) * t->a.row, t->a.row,
                                        high, k);
                below.pace = 1 + high * ((k + 15) / 16) / count;
            }
            if (by.strips && in_strip == 0 && i + GCKPTI_STRIP < i1) {
                below = gckpti_fetch_of(&t->a, p * t->a.step + i + GCKPTI_STRIP, t->a.step, k, 1);
                below.pace = 1 + k * high / (GCKPTI_STRIP * count);
            }
            if (by.strips && in_strip == 0)
                V(pack_strip)(u.a, t->a.step, gckpti_min(i1 - i, GCKPTI_STRIP), k, pack, by.deep);
            if (by.strips)
                u.a = pack + in_strip * by.deep, u.a_row = 1, u.a_step = high;
            for (int64_t col = 0, width; col < n; col += width) {
                width = V(panel)(n, col);
                u.last = gckpti_min(n - col - width + W, W);
                u.b = panels + col * by.deep, u.b_step = width;
                if (by.in_place && u.last == W)
                    u.b = b + col, u.b_step = t->b.step;
                u.c = c + col;
                u.from = u.c, u.from_row = t->c_row;
                if (p == 0 && !t->accumulate)
                    u.from = gckpti_starts(t, i, j + col), u.from_row = t->start_row;
                u.next = u.c; /* the tile to come */
                if (col + width < n)
                    u.next += width;
                else if (i1 - i >= 2 * high)
                    u.next = c + rows * t->c_row;
                gckpti_fetch_some(&ahead);
                gckpti_fetch_some(&below);
                V(tiles)[width / W - 1][rows - 1](&u);
            }
        }
        p = next_p, j = next_j;
    } while (p < t->k || j > j0);
}

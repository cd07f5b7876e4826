/* Columns j0..j1-1 of row i of c. */
static GCKPTI_TARGET void V(product_row)(const gckpti_product *t, int64_t i, int64_t j0, int64_t j1)
{
    const float *a = t->a + i * t->a_row;
    const float *from = t->from ? t->from + i * t->from_row + j0 : NULL;
    float *c = t->c + i * t->c_row + j0;
    size_t bytes = (size_t)(j1 - j0) * sizeof *c;
    if (t->b_step != 1 && !from)
        memset(c, 0, bytes);
    else if (t->b_step != 1 && from != c)
        memcpy(c, from, bytes);
    if (gckpti_is_as_stored(t))
        GCKPTI_STORED(V(stored_row)(t, a, j0, j1, from, c));
    else if (t->b_step == 1)
        V(dots)(a, t->a_step, t->b + j0 * t->b_col, t->b_col, t->k, j1 - j0, from, c, NULL);
    else
        V(sweep)(a, t->a_step, t->b + j0 * t->b_col, t->b_step, t->k, j1 - j0, c);
}

/* Rows i0..i1-1, columns j0..j1-1 of c; pack: `room` floats, see gckpti_product_room.
 *
 * The loops, from the outside: blocks of b, along its columns and then down its links (p, j; n
 * columns, k links); down the rows, as many at a time as a tile has (i); across the block's panels
 * (q). There a tile, some rows and vectors of c in registers, takes k links. From one block of
 * links to the next a chain rests in c; in the first it begins at `from`. So a tile reads a's
 * rows, which the next panel reads again, and a panel of b, which the next rows read again.
 * Meanwhile what comes next is fetched: lines `ahead` of b's next block, `below` of a's rows. */
static GCKPTI_TARGET void V(product_piece)(const gckpti_product *t, int64_t i0, int64_t i1,
                                           int64_t j0, int64_t j1, float *pack, int64_t room)
{
    enum { MANY = 2048 }; /* rows of a that each product finds in memory, not in a cache */
    const gckpti_blocking by = V(blocking)(t, i1 - i0, room);
    const int64_t high = GCKPTI_TILE_ROWS, most = GCKPTI_TILE_VECTORS * W;
    float *const panels = pack + GCKPTI_STRIP * by.deep;
    int64_t p = 0, j = j0, next_p, next_j;
    if (i1 - i0 == 1 && (t->b_step == 1 || t->b_col == 1)) {
        V(product_row)(t, i0, j0, j1);
        return;
    }
    do {
        const float *a = t->a + p * t->a_step;
        const float *b = gckpti_is_as_stored(t) ? NULL : t->b + p * t->b_step + j * t->b_col;
        const int64_t n = gckpti_min(j1 - j, by.wide), k = gckpti_min(t->k - p, by.deep);
        const int64_t count = (n + most - 1) / most;
        gckpti_tile u = { k, a, t->a_row, t->a_step, b, 0, NULL, 0, NULL, t->c_row, 0, NULL };
        gckpti_fetch ahead = { NULL, 0, 0, 0, 0, 0 }, below = { NULL, t->a_step, 0, 1, 0, 0 };
        next_j = j + n < j1 ? j + n : j0;
        next_p = j + n < j1 ? p : p + by.deep;
        if (next_p < t->k && !gckpti_is_as_stored(t))
            ahead = gckpti_fetch_block(t, next_p, gckpti_min(t->k - next_p, by.deep), next_j,
                                       gckpti_min(j1 - next_j, by.wide),
                                       (i1 - i0 + high - 1) / high * count);
        if (gckpti_is_as_stored(t))
            GCKPTI_STORED(V(pack_stored)(t, p, j, n, k, panels, by.deep));
        else if (!by.in_place || n % W)
            V(pack_panels)(t, b, n, k, by.in_place ? count - 1 : 0, panels, by.deep);
        for (int64_t i = i0, rows; i < i1; i += rows) {
            float *c = t->c + i * t->c_row + j;
            const int64_t in_strip = (i - i0) % GCKPTI_STRIP;
            rows = gckpti_min(i1 - i, high);
            u.a = a + i * t->a_row;
            if (!by.strips && t->a_step == 1 && t->m >= MANY && j == j0 && i + 2 * high <= i1) {
                below.x = u.a + high * t->a_row, below.row = t->a_row, below.rows = high;
                below.width = k, below.at = 0;
                below.pace = 1 + high * ((k + 15) / 16) / count;
            }
            if (by.strips && in_strip == 0 && i + GCKPTI_STRIP < i1) {
                below.x = u.a + GCKPTI_STRIP, below.rows = k;
                below.pace = 1 + k * high / (GCKPTI_STRIP * count);
            }
            if (by.strips && in_strip == 0)
                V(pack_strip)(u.a, t->a_step, gckpti_min(i1 - i, GCKPTI_STRIP), k, pack, by.deep);
            if (by.strips)
                u.a = pack + in_strip * by.deep, u.a_row = 1, u.a_step = high;
            for (int64_t q = 0; q < count; q++) {
                int64_t at = V(panel)(n, q), width = V(panel)(n, q + 1) - at;
                u.last = gckpti_min(n - at - width + W, W);
                u.b = panels + at * by.deep, u.b_step = width;
                if (by.in_place && u.last == W)
                    u.b = b + at, u.b_step = t->b_step;
                u.c = c + at;
                u.from = u.c, u.from_row = t->c_row;
                if (p == 0) {
                    u.from = t->from ? t->from + i * t->from_row + j + at : NULL;
                    u.from_row = t->from_row;
                }
                u.next = u.c; /* the tile to come */
                if (q + 1 < count)
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

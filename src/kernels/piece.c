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

/* d[i * d_row + p] = links first..first + links - 1 of rows `row`.. of the windows' matrix. */
static GCKPTI_TARGET void V(unfold)(const gckpti_windows *s, int64_t row, int64_t rows,
                                    int64_t first, int64_t links, float *d, int64_t d_row)
{
    const gckpti_reach *r = s->r;
    const int64_t tap = first / s->run;
    int64_t j = row % r[1].results, i = row / r[1].results % r[0].results;
    const float *from = s->from + row / r[1].results / r[0].results * s->image;
    for (; rows > 0; rows--, d += d_row) {
        int64_t ky = tap / s->across, kx = tap % s->across, c = first % s->run;
        for (int64_t l = 0, n; l < links; l += n, c = 0) {
            const int64_t y = i * r[0].step + ky * r[0].tap + r[0].first;
            const int64_t x = j * s->step + kx * s->tap + s->first + c;
            const float *line = from + y * s->width + x;
            n = gckpti_min(links - l, s->run - c);
            int64_t at = x < 0 ? gckpti_min(-x, n) : 0, end = gckpti_min(s->width - x, n);
            if (y < 0 || y >= r[0].size || end < at)
                at = end = n;
            for (int64_t e = 0; e < at; e++)
                d[l + e] = 0.0f;
            for (; at < end; at += W)
                V(store_n)(d + l + at, V(load_n)(line + at, end - at), end - at);
            for (int64_t e = end; e < n; e++)
                d[l + e] = 0.0f;
            if (++kx == s->across)
                kx = 0, ky++;
        }
        if (++j == r[1].results) {
            j = 0;
            if (++i == r[0].results)
                i = 0, from += s->image;
        }
    }
}

/* Links p.., columns j.. of b, as V(pack_panels); a panel's links are those of tap after tap. */
static GCKPTI_TARGET void V(pack_taps)(const gckpti_windows *s, int64_t p, int64_t k, int64_t j,
                                       int64_t n, float *d, int64_t deep)
{
    const gckpti_product *t = &s->t;
    const int64_t run = s->kind == GCKPTI_CONV_UP ? s->z->group_o : t->k;
    for (int64_t q = 0, at; at = V(panel)(n, q), at < n; q++) {
        const int64_t width = V(panel)(n, q + 1) - at, cols = gckpti_min(n - at, width);
        for (int64_t l = 0, links; l < k; l += links) {
            const int64_t tap = (p + l) / run, o = (p + l) % run;
            const float *b = t->b + (j + at) * t->b_col + o * t->b_step;
            links = gckpti_min(run - o, k - l);
            if (s->kind == GCKPTI_CONV_UP)
                b += gckpti_windows_b(s, tap);
            V(pack)(b, t->b_step, t->b_col, cols, links, d + at * deep + l * width, width);
        }
    }
}

/* The tiles of some rows of c, whose part of a is gathered. */
static GCKPTI_TARGET void V(windows_tiles)(const gckpti_windows *s, gckpti_tile u, int64_t rows,
                                           int64_t n, const float *b, const float *panels,
                                           int64_t deep, int in_place)
{
    const int64_t count = (n + GCKPTI_TILE_VECTORS * W - 1) / (GCKPTI_TILE_VECTORS * W);
    const gckpti_tile first = u;
    for (int64_t i = 0, high; i < rows; i += high) {
        high = gckpti_min(rows - i, GCKPTI_TILE_ROWS);
        u.a = first.a + i * u.a_row;
        for (int64_t q = 0; q < count; q++) {
            const int64_t at = V(panel)(n, q), width = V(panel)(n, q + 1) - at;
            u.last = gckpti_min(n - at - width + W, W);
            u.b = panels + at * deep, u.b_step = width;
            if (in_place && u.last == W)
                u.b = b + at, u.b_step = s->t.b_step;
            u.c = first.c + i * u.c_row + at;
            u.from = first.from ? first.from + i * u.from_row + at : NULL;
            u.next = q + 1 < count ? u.c + width : u.c;
            V(tiles)[width / W - 1][high - 1](&u);
        }
    }
}

/* As V(product_piece), for a matrix of windows: rows of a are gathered, as many as `some`, before
 * their tiles; where c has those of other phases between them, no
 * more than a line. */
static GCKPTI_TARGET void V(windows_piece)(const gckpti_windows *s, int64_t i0, int64_t i1,
                                           int64_t j0, int64_t j1, float *pack, int64_t room)
{
    const gckpti_product *t = &s->t;
    const int dw = s->kind == GCKPTI_CONV_DW;
    const int64_t most = dw ? GCKPTI_GATHERED : GCKPTI_STRIP;
    const int lines = s->kind == GCKPTI_CONV_UP && (s->r[0].each > 1 || s->r[1].each > 1);
    gckpti_blocking by = V(blocking)(t, i1 - i0, room);
    by.in_place = by.in_place && s->kind != GCKPTI_CONV_UP;
    room -= GCKPTI_PANEL * 16; /* V(pack) writes too much */
    by.deep = gckpti_min(by.deep, room / (GCKPTI_PANEL + most) / 16 * 16);
    by.wide = gckpti_min(GCKPTI_NC, (room / by.deep - most) / GCKPTI_PANEL * GCKPTI_PANEL);
    float *const panels = pack + most * by.deep;
    int64_t p = 0;
    do {
        const int64_t k = gckpti_min(t->k - p, by.deep);
        for (int64_t j = j0, n; j < j1; j += n) {
            const float *b = t->b + p * t->b_step + j * t->b_col;
            n = gckpti_min(j1 - j, by.wide);
            if (!by.in_place || n % W)
                V(pack_taps)(s, p, k, j, n, panels, by.deep);
            for (int64_t i = i0, some; i < i1; i += some) {
                const int64_t at = gckpti_windows_c(s, i) + j;
                gckpti_tile u = { k,    pack, 1,       GCKPTI_GATHERED,
                                  NULL, 0,    t->from, t->from_row,
                                  NULL, 0,    0,       NULL };
                some = gckpti_min(i1 - i, most);
                if (lines)
                    some = gckpti_min(some, s->r[1].results - i % s->r[1].results);
                if (dw)
                    V(unfold)(s, p, k, i, some, pack, GCKPTI_GATHERED);
                else
                    V(unfold)(s, i, some, p, k, pack, by.deep);
                if (!dw)
                    u.a_row = by.deep, u.a_step = 1;
                u.c = t->c + at;
                u.c_row = t->c_row * (dw ? 1 : s->r[1].each);
                if (p || t->from == t->c)
                    u.from = u.c, u.from_row = u.c_row;
                else if (t->from)
                    u.from = t->from + j;
                V(windows_tiles)(s, u, some, n, b, panels, by.deep, by.in_place);
            }
        }
        p += k;
    } while (p < t->k);
}

/* gckpti_plain_multiply_add */
static GCKPTI_TARGET void V(multiply_add)(float *d, const float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += W) {
        FLOATS a = x ? V(load_n)(x + i, n - i) : V(zero)();
        V(store_n)(d + i, V(fma)(a, V(load_n)(y + i, n - i), V(load_n)(d + i, n - i)), n - i);
    }
}

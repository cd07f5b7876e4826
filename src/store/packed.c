/* ---- packed values: BF16, F16, or I8 with a scale for each row, which stand in front of them in a
 * block of the store's ---- */
/* Name (in files, too) and bytes of an element, by gckpt_storage. */
static const struct {
    const char *name;
    int bytes;
} gckpti_storages[] = { { "F32", 4 }, { "BF16", 2 }, { "F16", 2 }, { "I8", 1 } };

static const char *gckpti_storage_name(gckpt_storage storage)
{
    return (unsigned)storage <= GCKPT_STORED_I8 ? gckpti_storages[storage].name
                                                : "not a gckpt_storage";
}

/* Elements that share a scale; all of them where there is none. */
static int64_t gckpti_row_length(const gckpt_parameter *p)
{
    return p->storage == GCKPT_STORED_I8 ? p->shape.d[p->shape.n - 1] : p->elements;
}

static size_t gckpti_scale_bytes(const gckpt_parameter *p)
{
    if (p->storage != GCKPT_STORED_I8)
        return 0;
    return (size_t)(p->elements / gckpti_row_length(p)) * sizeof(float);
}

/* Bytes of all values, stored as p says. */
static size_t gckpti_values_bytes(const gckpt_parameter *p)
{
    return (size_t)(p->elements * gckpti_storages[p->storage].bytes) + gckpti_scale_bytes(p);
}

/* Bytes in memory of array i: values, as they are stored, or state i - 1. */
static size_t gckpti_array_bytes(const gckpt_store *s, const gckpti_param *q, int i)
{
    return i || gckpti_array_cut(s, q, i - 1) ? (size_t)gckpti_held(s, q, i - 1) * sizeof(float)
                                              : gckpti_values_bytes(&q->p);
}

static int gckpti_is_made(const gckpti_param *q) { return q->p.values || q->p.packed; }

/* The memory of its values, as they are stored: packed ones of its own begin with the scales. */
static unsigned char *gckpti_values_block(const gckpti_param *q)
{
    const void *first = q->p.scales ? (const void *)q->p.scales : q->p.packed;
    void *block = q->p.values;
    if (first)
        memcpy(&block, &first, sizeof block); /* ours, shown to users as const */
    return (unsigned char *)block;
}

static void gckpti_set_block(gckpti_param *q, unsigned char *block)
{
    void *at = block;
    int floats = q->p.storage == GCKPT_STORED_F32;
    q->p.values = floats ? (float *)at : NULL;
    q->p.packed = floats || !block ? NULL : block + gckpti_scale_bytes(&q->p);
    q->p.scales = q->p.storage == GCKPT_STORED_I8 ? (float *)at : NULL;
}

/* The greatest magnitude, as bits (those of NaN are above all), of n floats and what was seen. */
static uint32_t gckpti_peak(uint32_t seen, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = gckpti_bits(x[i]) & 0x7fffffffu;
        seen = u > seen ? u : seen;
    }
    return seen;
}

/* I8: the scale of the row that begins at element `at`. 0: there is none for this peak. */
static int gckpti_set_scale(gckpti_param *q, int64_t at, uint32_t peak)
{
    void *scales = gckpti_values_block(q);
    float scale = gckpti_float(peak) / 127;
    ((float *)scales)[at / gckpti_row_length(&q->p)] = scale;
    return scale * 127 <= FLT_MAX; /* not NaN */
}

/* n floats as BF16 or F16. 0: F16 cannot hold one. */
static int gckpti_to_halves(gckpt_storage storage, const float *x, int64_t n, uint16_t *half)
{
    int large = 0;
    for (int64_t i = 0; i < n && storage == GCKPT_STORED_BF16; i++)
        half[i] = gckpti_to_bf16(x[i]);
    for (int64_t i = 0; i < n && storage == GCKPT_STORED_F16; i++) {
        large |= x[i] > 65504 || x[i] < -65504;
        half[i] = gckpti_to_f16(x[i]);
    }
    return !large;
}

/* Stores n values from element `at` on as q's memory has them; I8: of one row, whose scale is set.
 * 0: F16 cannot hold one. */
static int gckpti_pack_piece(gckpti_param *q, int64_t at, int64_t n, const float *x)
{
    void *to = gckpti_values_block(q) + gckpti_scale_bytes(&q->p);
    if (q->p.storage == GCKPT_STORED_F32)
        return memcpy((float *)to + at, x, (size_t)n * sizeof *x) != NULL;
    if (q->p.storage != GCKPT_STORED_I8)
        return gckpti_to_halves(q->p.storage, x, n, (uint16_t *)to + at);
    float scale = q->p.scales[at / gckpti_row_length(&q->p)];
    for (int64_t i = 0; i < n; i++) { /* adding 3 * 2^22 rounds to a whole number, to even */
        float y = scale > 0 ? x[i] / scale : 0;
        y = (y < -127 ? -127 : y > 127 ? 127 : y) + 12582912.0f;
        ((int8_t *)to)[at + i] = (int8_t)(y - 12582912.0f);
    }
    return 1;
}

GCKPTI_INLINE uint16_t gckpti_half_at(const void *from, int k)
{
    uint16_t half;
    memcpy(&half, (const unsigned char *)from + 2 * k, sizeof half);
    return half;
}

/* 16 packed values: a count that compilers make vectors of, since it is fixed. */
static void gckpti_unpack_16(gckpt_storage storage, const void *from, float scale, float *to)
{
    float y[16];
    for (int k = 0; k < 16 && storage == GCKPT_STORED_BF16; k++)
        y[k] = gckpti_from_bf16(gckpti_half_at(from, k));
    for (int k = 0; k < 16 && storage == GCKPT_STORED_F16; k++)
        y[k] = gckpti_from_f16(gckpti_half_at(from, k));
    for (int k = 0; k < 16 && storage == GCKPT_STORED_I8; k++)
        y[k] = (float)((const int8_t *)from)[k] * scale;
    memcpy(to, y, sizeof y);
}

/* Elements at..at+n-1 of what u says, to x. They may stand at the end of x: each is read before a
 * float is written over it. No scales: 1. */
static void gckpti_unpack(const gckpt_unpacking *u, int64_t at, int64_t n, float *x)
{
    const int64_t each = gckpti_storages[u->storage].bytes;
    const unsigned char *from = (const unsigned char *)u->packed + at * each;
    uint16_t last[16] = { 0 };
    float y[16];
    for (int64_t row; n > 0; n -= row, at += row) {
        float scale = u->scales ? u->scales[at / u->row] : 1;
        row = gckpti_min(n, u->row - at % u->row);
        int64_t i = 0;
        for (; i + 16 <= row; i += 16, from += 16 * each)
            gckpti_unpack_16(u->storage, from, scale, x + i);
        memcpy(last, from, (size_t)((row - i) * each));
        gckpti_unpack_16(u->storage, last, scale, y);
        memcpy(x + i, y, (size_t)(row - i) * sizeof *x);
        from += (row - i) * each;
        x += row;
    }
}

/* On the host, to nowhere yet. */
static gckpt_unpacking gckpti_unpacking_of(const gckpti_param *q)
{
    gckpt_unpacking u;
    u.storage = q->p.storage;
    u.packed = q->p.packed;
    u.scales = q->p.scales;
    u.row = gckpti_row_length(&q->p);
    u.n = q->p.elements;
    u.to = NULL;
    return u;
}

/* The floats that n stored values from element `at` on stand for. */
static void gckpti_unpack_piece(const gckpti_param *q, int64_t at, int64_t n, float *x)
{
    const gckpt_unpacking u = gckpti_unpacking_of(q);
    if (q->p.storage == GCKPT_STORED_F32)
        memcpy(x, q->p.values + at, (size_t)n * sizeof *x);
    else
        gckpti_unpack(&u, at, n, x);
}

static int gckpti_state_slots(const gckpti_param *q)
{
    int n = 0;
    while (n < 4 && q->p.state[n])
        n++;
    return n;
}

/* Gives state arrays back until `slots` are left. */
static void gckpti_state_shrink(gckpt_store *s, gckpti_param *q, int slots)
{
    for (int i = gckpti_state_slots(q); i-- > slots; q->p.state[i] = NULL)
        gckpti_delete(&s->memory, q->p.state[i], gckpti_array_bytes(s, q, 1), 1);
}

/* Makes sure `slots` state arrays exist, zeroed; leaves nothing half-made. 0: out of memory. */
static int gckpti_param_state(gckpt_store *s, gckpti_param *q, int slots)
{
    int had = gckpti_state_slots(q);
    for (int i = had; i < slots; i++) {
        q->p.state[i] = (float *)gckpti_new(&s->memory, gckpti_array_bytes(s, q, 1), 1);
        if (!q->p.state[i]) {
            gckpti_state_shrink(s, q, had);
            return 0;
        }
    }
    return 1;
}


#include "store/own.h"
#include "num/num.h"

/* ---- shares of ranks ---- */
GCKPTI_FN gckpti_share gckpti_share_of(int64_t elements, int rank, int ranks)
{
    const int64_t block = GCKPT_UPDATE_BLOCK, blocks = (elements + block - 1) / block;
    int64_t low = 0, high = blocks;
    for (int bit = 1; GCKPTI_CUTS && bit < ranks; bit *= 2) {
        int64_t middle = low + (high - low + 1) / 2;
        *(rank & bit ? &low : &high) = middle;
    }
    gckpti_share share = { gckpti_min(low * block, elements), 0, 0, elements };
    share.count = gckpti_min(high * block, elements) - share.first;
    share.room = gckpti_min((blocks + ranks - 1) / ranks * block, elements);
    return share;
}

GCKPTI_FN gckpti_share gckpti_shared(int64_t elements, int rank, int ranks, gckpt_shard shard,
                                     gckpt_shard least)
{
    const gckpti_share whole = { 0, elements, elements, elements };
    if (!GCKPTI_CUTS || shard < least || elements <= GCKPT_UPDATE_BLOCK)
        return whole;
    return gckpti_share_of(elements, rank, ranks);
}

GCKPTI_FN gckpti_share gckpti_array_share(const gckpt_store *s, const gckpti_param *q, int slot)
{
    const int whole = slot < 0 && (q->external || q->p.storage != GCKPT_STORAGE_F32);
    return gckpti_shared(q->p.elements, s->rank, s->ranks, whole ? GCKPT_SHARD_NONE : s->shard,
                         slot < 0 ? GCKPT_SHARD_VALUES : GCKPT_SHARD_STATE);
}

/* ---- the arrays of a parameter: values, however they are stored, and state ---- */
GCKPTI_FN const char *gckpti_storage_name(gckpt_storage storage)
{
    return (unsigned)storage <= GCKPT_STORAGE_I4 ? gckpti_storages[storage].name
                                                : "not a gckpt_storage";
}

GCKPTI_FN int gckpti_can_store(gckpt_storage storage, const gckpt_shape *shape)
{
    if (storage < GCKPT_STORAGE_I8)
        return 1;
    return shape->n > 1 &&
           (storage == GCKPT_STORAGE_I8 || shape->d[shape->n - 1] % GCKPTI_NIBBLES == 0);
}

GCKPTI_FN int64_t gckpti_row_length(const gckpt_parameter *p)
{
    return p->storage == GCKPT_STORAGE_I8 ? p->shape.d[p->shape.n - 1] : p->elements;
}

GCKPTI_FN size_t gckpti_scale_bytes(const gckpt_parameter *p)
{
    if (p->storage != GCKPT_STORAGE_I8)
        return 0;
    return (size_t)(p->elements / gckpti_row_length(p)) * sizeof(float);
}

GCKPTI_FN size_t gckpti_values_bytes(const gckpt_parameter *p)
{
    return (size_t)gckpti_stored_bytes((int)p->storage, p->elements) + gckpti_scale_bytes(p);
}

GCKPTI_FN size_t gckpti_array_bytes(const gckpt_store *s, const gckpti_param *q, int i)
{
    const gckpti_share share = gckpti_array_share(s, q, i - 1);
    return i || gckpti_is_sharded(share) ? (size_t)share.room * sizeof(float)
                                         : gckpti_values_bytes(&q->p);
}

GCKPTI_FN unsigned char *gckpti_values_block(const gckpti_param *q)
{
    const void *first = q->p.scales ? (const void *)q->p.scales : q->p.quantised;
    void *block = q->p.values;
    if (first)
        memcpy(&block, &first, sizeof block); /* ours, shown to users as const */
    return (unsigned char *)block;
}

GCKPTI_FN void gckpti_set_block(gckpti_param *q, unsigned char *block)
{
    void *at = block;
    int floats = q->p.storage == GCKPT_STORAGE_F32;
    q->p.values = floats ? (float *)at : NULL;
    q->p.quantised = floats || !block ? NULL : block + gckpti_scale_bytes(&q->p);
    q->p.scales = q->p.storage == GCKPT_STORAGE_I8 ? (float *)at : NULL;
}

/* Gives back the memory of values that the store owns. */
GCKPTI_FN void gckpti_values_free(gckpt_store *s, gckpti_param *q)
{
    gckpti_delete(&s->memory, gckpti_values_block(q), gckpti_array_bytes(s, q, 0), 1);
    gckpti_set_block(q, NULL);
}

GCKPTI_FN int gckpti_state_slots(const gckpti_param *q)
{
    int n = 0;
    while (n < 4 && q->p.state[n])
        n++;
    return n;
}

GCKPTI_FN void gckpti_state_shrink(gckpt_store *s, gckpti_param *q, int slots)
{
    for (int i = gckpti_state_slots(q); i-- > slots; q->p.state[i] = NULL)
        gckpti_delete(&s->memory, q->p.state[i], gckpti_array_bytes(s, q, 1), 1);
}

GCKPTI_FN int gckpti_param_state(gckpt_store *s, gckpti_param *q, int slots)
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

/* ---- floats to BF16 and F16, and from these, I8 and I4: of files, and of what is packed ---- */
GCKPTI_FN int gckpti_to_halves(gckpt_storage storage, const float *x, int64_t n, uint16_t *half)
{
    int large = 0;
    for (int64_t i = 0; i < n && storage == GCKPT_STORAGE_BF16; i++)
        half[i] = gckpti_to_bf16(x[i]);
    for (int64_t i = 0; i < n && storage == GCKPT_STORAGE_F16; i++) {
        large |= x[i] > 65504 || x[i] < -65504;
        half[i] = gckpti_to_f16(x[i]);
    }
    return !large;
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
    for (int k = 0; k < 16 && storage == GCKPT_STORAGE_BF16; k++)
        y[k] = gckpti_from_bf16(gckpti_half_at(from, k));
    for (int k = 0; k < 16 && storage == GCKPT_STORAGE_F16; k++)
        y[k] = gckpti_from_f16(gckpti_half_at(from, k));
    for (int k = 0; k < 16 && storage == GCKPT_STORAGE_I8; k++)
        y[k] = (float)((const int8_t *)from)[k] * scale;
    memcpy(to, y, sizeof y);
}

/* The same of blocks of I4. */
static void gckpti_unpack_nibbles(const unsigned char *from, int64_t at, int64_t n, float *x)
{
    float y[GCKPTI_NIBBLES];
    for (int64_t some; n > 0; n -= some, at += some, x += some) {
        const unsigned char *b = from + gckpti_units(GCKPT_STORAGE_I4, at);
        const int64_t first = at % GCKPTI_NIBBLES;
        const float scale = gckpti_from_f16((uint16_t)(b[0] | b[1] << 8));
        for (int k = 0; k < GCKPTI_NIBBLES / 2; k++) {
            y[k] = (float)((b[2 + k] & 15) - 8) * scale;
            y[GCKPTI_NIBBLES / 2 + k] = (float)((b[2 + k] >> 4) - 8) * scale;
        }
        some = gckpti_min(n, GCKPTI_NIBBLES - first);
        memcpy(x, y + first, (size_t)some * sizeof *x);
    }
}

GCKPTI_FN void gckpti_unpack(const gckpt_dequantisation *u, int64_t at, int64_t n, float *x)
{
    const int64_t each = gckpti_storages[u->storage].bytes;
    const unsigned char *from = (const unsigned char *)u->quantised + at * each;
    uint16_t last[16] = { 0 };
    float y[16];
    if (u->storage == GCKPT_STORAGE_I4) {
        gckpti_unpack_nibbles((const unsigned char *)u->quantised, at, n, x);
        return;
    }
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

GCKPTI_FN gckpt_dequantisation gckpti_unpacking_from(const gckpt_dequantisation *u, int64_t at)
{
    gckpt_dequantisation rest = *u;
    rest.quantised = (const unsigned char *)u->quantised + gckpti_stored_bytes((int)u->storage, at);
    rest.scales = u->scales ? u->scales + at / u->row : NULL;
    rest.n -= at;
    return rest;
}

GCKPTI_FN gckpt_dequantisation gckpti_unpacking_of(const gckpti_param *q)
{
    const gckpt_parameter *p = &q->p;
    gckpt_dequantisation u = {
        p->storage, p->quantised, p->scales, gckpti_row_length(p), p->elements, NULL
    };
    return u;
}

GCKPTI_FN void gckpti_unpack_piece(const gckpti_param *q, int64_t at, int64_t n, float *x)
{
    const gckpt_dequantisation u = gckpti_unpacking_of(q);
    if (q->p.storage == GCKPT_STORAGE_F32)
        memcpy(x, q->p.values + at, (size_t)n * sizeof *x);
    else
        gckpti_unpack(&u, at, n, x);
}

#include "store/internal.h"
#include "num/num.h"

/* ---- shards ---- */
GCKPTI_FN gckpti_shard_range gckpti_shard_of(int64_t elements, int rank, int ranks)
{
    const int64_t block = GCKPT_UPDATE_BLOCK, blocks = (elements + block - 1) / block;
    int64_t low = 0, high = blocks;
    for (int bit = 1; GCKPTI_HAS_SHARDS && bit < ranks; bit *= 2) {
        int64_t middle = low + (high - low + 1) / 2;
        *(rank & bit ? &low : &high) = middle;
    }
    gckpti_shard_range shard = { gckpti_min(low * block, elements), 0, 0, elements };
    shard.count = gckpti_min(high * block, elements) - shard.first;
    shard.capacity = gckpti_min((blocks + ranks - 1) / ranks * block, elements);
    return shard;
}

GCKPTI_FN gckpti_shard_range gckpti_shard_from(int64_t elements, int rank, int ranks,
                                               gckpt_shard shard, gckpt_shard min_level)
{
    const gckpti_shard_range full = { 0, elements, elements, elements };
    if (!GCKPTI_HAS_SHARDS || shard < min_level || elements <= GCKPT_UPDATE_BLOCK)
        return full;
    return gckpti_shard_of(elements, rank, ranks);
}

GCKPTI_FN gckpti_shard_range gckpti_array_shard(const gckpt_store *s, const gckpti_param *q,
                                                int slot)
{
    const int full = slot < 0 && (q->external || q->p.storage != GCKPT_STORAGE_F32);
    return gckpti_shard_from(q->p.elements, s->rank, s->ranks, full ? GCKPT_SHARD_NONE : s->shard,
                             slot < 0 ? GCKPT_SHARD_VALUES : GCKPT_SHARD_STATE);
}

/* ---- the arrays of a parameter: values (in any storage) and state ---- */
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
           (storage == GCKPT_STORAGE_I8 || shape->d[shape->n - 1] % GCKPTI_INT4_BLOCK == 0);
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
    return (size_t)gckpti_storage_bytes((int)p->storage, p->elements) + gckpti_scale_bytes(p);
}

GCKPTI_FN size_t gckpti_array_bytes(const gckpt_store *s, const gckpti_param *q, int i)
{
    const gckpti_shard_range shard = gckpti_array_shard(s, q, i - 1);
    return i || gckpti_is_sharded(shard) ? (size_t)shard.capacity * sizeof(float)
                                         : gckpti_values_bytes(&q->p);
}

GCKPTI_FN unsigned char *gckpti_values_block(const gckpti_param *q)
{
    const void *first = q->p.scales ? (const void *)q->p.scales : q->p.quantised;
    void *block = q->p.values;
    if (first)
        memcpy(&block, &first, sizeof block); /* the store owns it; it is const only for users */
    return (unsigned char *)block;
}

GCKPTI_FN void gckpti_set_block(gckpti_param *q, unsigned char *block)
{
    void *first = block;
    int floats = q->p.storage == GCKPT_STORAGE_F32;
    q->p.values = floats ? (float *)first : NULL;
    q->p.quantised = floats || !block ? NULL : block + gckpti_scale_bytes(&q->p);
    q->p.scales = q->p.storage == GCKPT_STORAGE_I8 ? (float *)first : NULL;
}

/* Frees values that the store owns. */
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

GCKPTI_FN int gckpti_ensure_state(gckpt_store *s, gckpti_param *q, int slots)
{
    int old_slots = gckpti_state_slots(q);
    for (int i = old_slots; i < slots; i++) {
        q->p.state[i] = (float *)gckpti_new(&s->memory, gckpti_array_bytes(s, q, 1), 1);
        if (!q->p.state[i]) {
            gckpti_state_shrink(s, q, old_slots);
            return 0;
        }
    }
    return 1;
}

/* ---- floats to BF16 and F16; BF16, F16, I8 and I4 to floats ---- */
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

/* Converts 16 values (a constant number, so that compilers vectorise the loop). */
static void gckpti_dequantise_16(gckpt_storage storage, const void *from, float scale, float *to)
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

static void gckpti_dequantise_int4(const unsigned char *from, int64_t at, int64_t n, float *x)
{
    float y[GCKPTI_INT4_BLOCK];
    for (int64_t chunk; n > 0; n -= chunk, at += chunk, x += chunk) {
        const unsigned char *b = from + gckpti_file_count(GCKPT_STORAGE_I4, at);
        const int64_t first = at % GCKPTI_INT4_BLOCK;
        const float scale = gckpti_from_f16((uint16_t)(b[0] | b[1] << 8));
        for (int k = 0; k < GCKPTI_INT4_BLOCK / 2; k++) {
            y[k] = (float)((b[2 + k] & 15) - 8) * scale;
            y[GCKPTI_INT4_BLOCK / 2 + k] = (float)((b[2 + k] >> 4) - 8) * scale;
        }
        chunk = gckpti_min(n, GCKPTI_INT4_BLOCK - first);
        memcpy(x, y + first, (size_t)chunk * sizeof *x);
    }
}

GCKPTI_FN void gckpti_dequantise(const gckpt_dequantisation *u, int64_t at, int64_t n, float *x)
{
    const int64_t each = gckpti_storages[u->storage].bytes;
    const unsigned char *from = (const unsigned char *)u->quantised + at * each;
    uint16_t last[16] = { 0 };
    float y[16];
    if (u->storage == GCKPT_STORAGE_I4) {
        gckpti_dequantise_int4((const unsigned char *)u->quantised, at, n, x);
        return;
    }
    for (int64_t row; n > 0; n -= row, at += row) {
        float scale = u->scales ? u->scales[at / u->row] : 1;
        row = gckpti_min(n, u->row - at % u->row);
        int64_t i = 0;
        for (; i + 16 <= row; i += 16, from += 16 * each)
            gckpti_dequantise_16(u->storage, from, scale, x + i);
        memcpy(last, from, (size_t)((row - i) * each));
        gckpti_dequantise_16(u->storage, last, scale, y);
        memcpy(x + i, y, (size_t)(row - i) * sizeof *x);
        from += (row - i) * each;
        x += row;
    }
}

GCKPTI_FN gckpt_dequantisation gckpti_quant_from(const gckpt_dequantisation *u, int64_t at)
{
    const int64_t skip = gckpti_storage_bytes((int)u->storage, at);
    gckpt_dequantisation rest = *u;
    rest.quantised = (const unsigned char *)u->quantised + skip;
    rest.scales = u->scales ? u->scales + at / u->row : NULL;
    rest.n -= at;
    return rest;
}

GCKPTI_FN gckpt_dequantisation gckpti_param_quant(const gckpti_param *q)
{
    const gckpt_parameter *p = &q->p;
    gckpt_dequantisation u = { p->storage,           p->quantised, p->scales,
                               gckpti_row_length(p), p->elements,  NULL };
    return u;
}

GCKPTI_FN void gckpti_dequantise_at(const gckpti_param *q, int64_t at, int64_t n, float *x)
{
    const gckpt_dequantisation u = gckpti_param_quant(q);
    if (q->p.storage == GCKPT_STORAGE_F32)
        memcpy(x, q->p.values + at, (size_t)n * sizeof *x);
    else
        gckpti_dequantise(&u, at, n, x);
}

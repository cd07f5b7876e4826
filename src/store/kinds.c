#include "store/internal.h"

/* ---- storage kinds: F32, then those that modules add ---- */
static const gckpti_storage_kind gckpti_kinds[] = {
    { "F32", "F32", 4, 1, 4, 0, 0, 1e300, "", NULL, NULL }, GCKPTI_MODULE_KINDS
};

GCKPTI_FN const gckpti_storage_kind *gckpti_kind_of(int storage)
{
    const int count = (int)(sizeof gckpti_kinds / sizeof *gckpti_kinds);
    return storage >= 0 && storage < count ? &gckpti_kinds[storage] : NULL;
}

GCKPTI_FN const char *gckpti_storage_name(gckpt_storage storage)
{
    const gckpti_storage_kind *kind = gckpti_kind_of((int)storage);
    return kind ? kind->name : "not a gckpt_storage";
}

GCKPTI_FN int64_t gckpti_file_count(int storage, int64_t n)
{
    const gckpti_storage_kind *kind = &gckpti_kinds[storage];
    return n / kind->block * (kind->block_bytes / kind->bytes);
}

GCKPTI_FN int64_t gckpti_storage_bytes(int storage, int64_t n)
{
    return n / gckpti_kinds[storage].block * gckpti_kinds[storage].block_bytes;
}

GCKPTI_FN int64_t gckpti_row_length(const gckpt_parameter *p)
{
    return gckpti_kinds[p->storage].scaled ? p->shape.d[p->shape.n - 1] : p->elements;
}

GCKPTI_FN size_t gckpti_scale_bytes(const gckpt_parameter *p)
{
    if (!gckpti_kinds[p->storage].scaled)
        return 0;
    return (size_t)(p->elements / gckpti_row_length(p)) * sizeof(float);
}

GCKPTI_FN size_t gckpti_values_bytes(const gckpt_parameter *p)
{
    return (size_t)gckpti_storage_bytes((int)p->storage, p->elements) + gckpti_scale_bytes(p);
}

#include "files/internal.h"
#include "store/store.h"

#ifndef GCKPT_NO_FILES
static int gckpti_is_entry_before(const void *first, const void *second, const void *by_param)
{
    const gckpti_file_entry *a = (const gckpti_file_entry *)first;
    const gckpti_file_entry *b = (const gckpti_file_entry *)second;
    if (by_param && a->param != b->param)
        return a->param < b->param;
    if (by_param && a->slot != b->slot)
        return a->slot < b->slot;
    return a->offsets[0] < b->offsets[0] ||
           (a->offsets[0] == b->offsets[0] && a->offsets[1] < b->offsets[1]);
}

/* Sorts the entries: if by_param is 0, by offset; else by parameter, then slot, values first. */
GCKPTI_FN void gckpti_load_sort(gckpti_loader *load, int by_param)
{
    gckpti_sort(load->entries, load->count, sizeof *load->entries, gckpti_is_entry_before,
                by_param ? load : NULL);
}

static int gckpti_refuse_orphan(gckpti_loader *load, const gckpti_file_entry *e)
{
    return gckpti_refuse(load, GCKPT_E_DATA, e, "is without its parameter, state, or values of I8");
}

/* Gets the order of a tensor's axes, and permutes e->shape to that of the store's `shape`. */
static int gckpti_load_axis_order(gckpti_loader *load, gckpti_file_entry *e, const char *name,
                                  gckpt_shape shape)
{
    e->axes_unknown = load->axes_unknown && load->desc->convolutions == GCKPT_AXES_UNKNOWN;
    if (!GCKPTI_USES_AXES || !load->axes_unknown || e->slot >= 0)
        return 1;
    if (!gckpti_get_axis_order(&e->order, load->desc, name, &shape))
        return gckpti_refuse(load, GCKPT_E_ARG, e, GCKPTI_PERMUTE_PROBLEM, e->order.count, &shape);
    e->axes_unknown = e->axes_unknown && !e->order.count;
    if (gckpti_is_permuted(&e->order) && shape.n == e->shape.n)
        e->shape = gckpti_permuted_shape(&e->order, e->shape, 0);
    return 1;
}

/* Finds the parameter of a tensor. In an empty store, creates it if the tensor has its values. */
static int gckpti_load_resolve(gckpti_loader *load, gckpti_file_entry *e)
{
    gckpt_store *s = load->store;
    const char *name = gckpti_renamed(load->desc, e->name);
    int index = name ? gckpti_find_param(s, name) : -1;
    const char *problem = index < 0 && name ? gckpti_name_problem(name) : NULL;
    gckpt_init none = { 0, 0, 0 };
    if (problem)
        return gckpti_refuse(load, GCKPT_E_DATA, e, "the name %s", problem);
    if (index < 0 && e->slot >= 0)
        return gckpti_refuse_orphan(load, e);
    if (index < 0 && ((load->old_params && !load->file) || !name))
        return gckpti_refuse(load, GCKPT_E_DATA, e,
                             "is none of the store's %z parameters%s; build the model that was "
                             "saved, load into an empty store, or leave it out (desc.rename)",
                             s->count, load->desc->rename ? ", also when renamed" : "");
    if (!gckpti_load_axis_order(load, e, name, index < 0 ? e->shape : s->params[index].p.shape))
        return 0;
    if (index < 0 && !gckpti_param_new(s, name, &e->shape, 0, none))
        return gckpti_refuse(load, GCKPT_E_MEMORY, e, "no memory for its entry");
    e->param = index < 0 ? s->count - 1 : (size_t)index;
    e->old_states = (signed char)gckpti_state_slots(&s->params[e->param]);
    return 1;
}

/* Checks that the tensors' data fill the file's data without overlaps or holes. */
static int gckpti_check_offsets(gckpti_loader *load)
{
    int64_t at = 0;
    gckpti_load_sort(load, 0);
    for (size_t i = 0; i < load->count; i++) {
        gckpti_file_entry *e = &load->entries[i];
        if (e->slot == GCKPTI_UPDATES)
            continue;
        if (e->offsets[0] != at)
            return gckpti_refuse(load, GCKPT_E_DATA, e, "its data begin at %I, not at %I: %s",
                                 e->offsets[0], at, e->offsets[0] < at ? "an overlap" : "a hole");
        at = e->offsets[1];
    }
    if (at != load->data_bytes)
        return gckpti_refuse(load, GCKPT_E_DATA, NULL,
                             "the tensors need %I bytes of data, the file has %I: damaged", at,
                             load->data_bytes);
    return 1;
}

/* Returns the entry with the scales of I8 values e, or NULL. */
static gckpti_file_entry *gckpti_find_scale(const gckpti_loader *load, gckpti_file_entry *e)
{
    gckpti_file_entry *scale = e, *end = load->entries + load->count;
    while (scale < end && scale->param == e->param && scale->slot != GCKPTI_SCALE)
        scale++;
    return scale < end && scale->param == e->param ? scale : NULL;
}

static int gckpti_check_file_values(gckpti_loader *load, gckpti_file_entry *e)
{
    const gckpti_storage_kind *kind = gckpti_kind_of(e->type);
    const gckpti_param *q = &load->store->params[e->param];
    e->optimiser = (signed char)load->optimiser;
    e->updates = load->step;
    if (GCKPTI_USES_AXES && e->axes_unknown && q->axes_matter)
        return gckpti_refuse(load, GCKPT_E_DATA, e, GCKPTI_AXES_PROBLEM);
    if (!gckpti_same_shape(&e->shape, &q->p.shape))
        return gckpti_refuse(
            load, GCKPT_E_SHAPE, e, "the file has it as %S%s, the store as %S", &e->shape,
            gckpti_is_permuted(&e->order) ? ", permuted by desc.axes" : "", &q->p.shape);
    if (gckpti_is_permuted(&e->order) &&
        (kind->by_rows || gckpti_kind_of((int)q->p.storage)->by_rows))
        return gckpti_refuse(load, GCKPT_E_DATA, e, GCKPTI_PERMUTE_ROWS);
    if (!kind->scaled)
        return 1;
    if (e->shape.n < 2 || !gckpti_find_scale(load, e))
        return gckpti_refuse(load, GCKPT_E_DATA, e,
                             "%s needs two axes or more, and a tensor of this name and #scale",
                             kind->name);
    if ((int)q->p.storage != e->type && q->p.storage != GCKPT_STORAGE_F32)
        return gckpti_refuse(load, GCKPT_E_DATA, e,
                             "the file has it as %s, the store as %s; make it %s or F32",
                             kind->name, gckpti_storage_name(q->p.storage), kind->name);
    return 1;
}

/* Checks a state, #updates or scales against `owner`, the entry of the parameter's values. */
static int gckpti_check_file_state(gckpti_loader *load, gckpti_file_entry *e,
                                   gckpti_file_entry *owner)
{
    const int scale = e->slot == GCKPTI_SCALE, updates = e->slot == GCKPTI_UPDATES;
    if (!owner || (scale && !gckpti_kind_of(owner->type)->scaled) || (updates && !owner->states))
        return gckpti_refuse_orphan(load, e);
    if (updates && e->optimiser < 0)
        return gckpti_refuse(load, GCKPT_E_DATA, e, "must be \"OPTIMISER:COUNT\" in quotes");
    if (updates) {
        owner->optimiser = e->optimiser;
        owner->updates = e->updates;
        e->ignored = 1;
        return 1;
    }
    if (!scale && (e->slot != owner->states || e->slot > 3))
        return gckpti_refuse(load, GCKPT_E_DATA, e, "state numbers must be 0 to 3 without a gap");
    e->order = owner->order;
    if (gckpti_is_permuted(&e->order) && e->shape.n == owner->shape.n)
        e->shape = gckpti_permuted_shape(&e->order, e->shape, 0);
    gckpt_shape shape = owner->shape;
    shape.n -= scale; /* one scale for each row */
    if (!gckpti_same_shape(&e->shape, &shape))
        return gckpti_refuse(load, GCKPT_E_SHAPE, e, "%S, but its parameter is %S", &e->shape,
                             &owner->shape);
    owner->states = (signed char)(owner->states + !scale);
    return 1;
}

/* Finds all entries' parameters; checks and sorts the entries by parameter, ignored ones last. */
GCKPTI_FN int gckpti_load_check(gckpti_loader *load)
{
    gckpti_file_entry *owner = NULL, missing; /* owner: entry of the current parameter's values */
    size_t next = 0;                          /* index of the parameter that is expected next */
    for (size_t i = 0; i < 2 * load->count; i++) { /* first all values, then the rest */
        gckpti_file_entry *e = &load->entries[i % load->count];
        if (!e->ignored && (e->slot < 0) == (i < load->count) && !gckpti_load_resolve(load, e))
            return 0;
    }
    if (!gckpti_check_offsets(load))
        return 0;
    gckpti_load_sort(load, 1);
    load->total = load->count;
    while (load->count && load->entries[load->count - 1].ignored)
        load->count--;
    for (size_t i = 0; i < load->count; i++) {
        gckpti_file_entry *e = &load->entries[i];
        owner = e->slot < 0 || (owner && owner->param == e->param) ? owner : NULL;
        if (i + 1 < load->count && e[1].param == e->param && e[1].slot == e->slot)
            return gckpti_refuse(load, GCKPT_E_DATA, e,
                                 strcmp(e->name, e[1].name) ? "two tensors are renamed to it"
                                                            : "comes twice");
        if (e->slot < 0 ? !gckpti_check_file_values(load, owner = e)
                        : !gckpti_check_file_state(load, e, owner))
            return 0;
        next += e->slot < 0 && e->param == next;
    }
    if (load->desc->partial || next >= load->old_params)
        return 1;
    missing.name = load->store->params[next].p.name;
    missing.slot = GCKPTI_VALUES;
    missing.param = next;
    return gckpti_refuse(load, GCKPT_E_DATA, &missing,
                         "is missing in the file; the store has %z parameters; see desc.partial",
                         load->old_params);
}

/* Makes a new parameter use values (and scales) in the mapped file, if the format allows that. */
static int gckpti_map_values(gckpti_loader *load, gckpti_file_entry *e)
{
    gckpti_param *q = &load->store->params[e->param];
    const gckpti_storage_kind *kind = gckpti_kind_of(e->type);
    gckpti_file_entry *scale = kind->scaled ? gckpti_find_scale(load, e) : e;
    if (!load->file || e->param < load->old_params || !gckpti_little_endian() ||
        gckpti_is_permuted(&e->order))
        return 0;
    const unsigned char *data = load->file + load->bytes_read;
    const void *scales = scale != e ? data + (size_t)scale->offsets[0] : NULL;
    const void *at = data + (size_t)e->offsets[0];
    if ((uintptr_t)at % (unsigned)kind->bytes || (uintptr_t)scales % sizeof(float))
        return 0;
    gckpti_use_values(q, (gckpt_storage)e->type, at, (const float *)scales,
                      !e->type && load->desc->writable);
    load->store->elements -= (size_t)q->p.elements;
    e->ignored = scale->ignored = 1;
    return 1;
}

/* Sets entries' `dest` in new arrays, else in `spare` (if NULL, only counts). Returns its bytes. */
static size_t gckpti_set_dests(gckpti_loader *load, unsigned char *spare)
{
    gckpti_file_entry *owner = load->entries;
    size_t used = 0, row = 0; /* row: floats of the longest row to be converted */
    for (size_t i = 0; i < load->count; i++) {
        gckpti_file_entry *e = &load->entries[i];
        const gckpti_param *q = &load->store->params[e->param];
        const int values = e->slot < 0, scale = e->slot == GCKPTI_SCALE;
        owner = values ? e : owner;
        if (e->ignored || (values && q->locked))
            continue;
        if (scale && q->p.storage != GCKPT_STORAGE_F32) {
            e->dest = owner->dest; /* the block begins with the scales */
            continue;
        }
        if (values && q->uninitialised)
            e->dest = gckpti_values_block(q);
        else if (!values && !scale && e->slot >= owner->old_states)
            e->dest = (unsigned char *)gckpti_array(q, e->slot);
        else {
            e->dest = spare ? spare + used : NULL;
            used += gckpti_round_up(scale ? (size_t)gckpti_elements(&e->shape) * sizeof(float)
                                          : gckpti_array_bytes(load->store, q, e->slot + 1),
                                    GCKPTI_ALIGN);
        }
        if (values && gckpti_kind_of((int)q->p.storage)->scaled && e->type != (int)q->p.storage &&
            (size_t)gckpti_row_length(&q->p) > row)
            row = (size_t)gckpti_row_length(&q->p);
    }
    void *last = spare ? spare + used : NULL;
    load->row_buf = (float *)last;
    return used + row * sizeof(float);
}

/* Allocates missing values and states, and `spare`. Returns 0, with an error, without memory. */
GCKPTI_FN int gckpti_load_create(gckpti_loader *load)
{
    gckpt_store *s = load->store;
    for (size_t i = 0; i < load->count; i++) {
        gckpti_file_entry *e = &load->entries[i];
        gckpti_param *q = &s->params[e->param];
        if (e->slot < 0 && !gckpti_map_values(load, e) &&
            (load->result = gckpti_values_new(s, q, "load")) != GCKPT_OK)
            return 0;
        if (q->p.storage != GCKPT_STORAGE_F32) { /* only parameters in floats have state */
            e->states = 0;
            e->ignored |= e->slot >= 0 && e->slot != GCKPTI_SCALE;
        }
        if (e->slot < 0 && !gckpti_ensure_state(s, q, e->states))
            return gckpti_refuse(load, GCKPT_E_MEMORY, e, "no memory for its %i optimiser states",
                                 e->states);
    }
    load->spare_bytes = gckpti_set_dests(load, NULL);
    load->spare = (unsigned char *)gckpti_new(&s->memory, load->spare_bytes, 1);
    if (!load->spare)
        return gckpti_refuse(load, GCKPT_E_MEMORY, NULL,
                             "no memory for %z bytes of data in addition to the store's",
                             load->spare_bytes);
    gckpti_set_dests(load, load->spare);
    return 1;
}
#endif

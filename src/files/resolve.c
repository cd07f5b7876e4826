#include "files/files.h"
#include "num/num.h"

#ifndef GCKPT_NO_FILES
/* ---- which array of the store each tensor of the file belongs to ---- */
/* Orders entries by parameter and slot if by_param is not NULL, then by the offsets of the data. */
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

static void gckpti_sort_entries(gckpti_loader *load, const void *by_param)
{
    gckpti_sort(load->entries, load->count, sizeof *load->entries, gckpti_is_entry_before,
                by_param);
}

#define GCKPTI_ORPHAN "is without its parameter or state"

/* Finds the parameter of a tensor. In an empty store, creates it if the tensor has its values. */
static int gckpti_find_owner(gckpti_loader *load, gckpti_file_entry *e)
{
    gckpt_store *s = load->store;
    const char *name = gckpti_renamed(load->desc, e->name);
    int index = name ? gckpti_find_param(s, name) : -1;
    const char *problem = index < 0 && name ? gckpti_name_problem(name) : NULL;
    gckpt_init none = { 0, 0, 0 };
    if (problem)
        return gckpti_refuse(load, GCKPT_E_DATA, e, "the name %s", problem);
    if (index < 0 && e->slot >= 0)
        return gckpti_refuse(load, GCKPT_E_DATA, e, GCKPTI_ORPHAN);
    if (index < 0 && ((load->old_params && !load->file) || !name))
        return gckpti_refuse(load, GCKPT_E_DATA, e,
                             "is none of the store's %z parameters%s; build the model that was "
                             "saved, load into an empty store, or leave it out (desc.rename)",
                             s->count, load->desc->rename ? ", also when renamed" : "");
    if (index < 0 && !gckpti_param_new(s, name, &e->shape, none))
        return gckpti_refuse(load, GCKPT_E_MEMORY, e, "no memory for its entry");
    e->param = index < 0 ? s->count - 1 : (size_t)index;
    return 1;
}

/* Checks that the tensors' data fill the file's data without overlaps or holes. */
static int gckpti_check_offsets(gckpti_loader *load)
{
    int64_t at = 0;
    for (size_t i = 0; i < load->count; i++) {
        gckpti_file_entry *e = &load->entries[i];
        if (e->slot == GCKPTI_UPDATES)
            continue;
        if (e->offsets[0] != at)
            return gckpti_refuse(load, GCKPT_E_DATA, e, "its data begin at %I, not at %I: %s",
                                 e->offsets[0], at, e->offsets[0] < at ? "an overlap" : "a hole");
        at = e->offsets[1];
    }
    return at == load->data_bytes ||
           gckpti_refuse(load, GCKPT_E_DATA, NULL,
                         "the tensors need %I bytes of data, the file has %I: damaged", at,
                         load->data_bytes);
}

/* Checks an entry of a parameter against its first entry and the entries before and after. */
static int gckpti_check_array(gckpti_loader *load, const gckpti_file_entry *values,
                              const gckpti_file_entry *e, const gckpti_file_entry *end)
{
    const int updates = e->slot == GCKPTI_UPDATES, state = e > values && !updates;
    const gckpti_param *q = &load->store->params[e->param];
    const size_t bytes = e->bytes ? (size_t)e->shape.d[0] : 0;
    const gckpt_shape *shape = &q->p.shape;
    const char *problem = NULL;
    if (e + 1 < end && e[1].slot == e->slot)
        problem = strcmp(e[1].name, e->name) ? "two tensors are renamed to it" : "comes twice";
    else if (values->slot >= 0 || (updates && values[1].slot != 0))
        problem = GCKPTI_ORPHAN;
    else if (updates && e->optimiser < 0)
        problem = "must be \"OPTIMISER:COUNT\" in quotes";
    else if (state && (e->slot > 3 || e[-1].slot != e->slot - 1 || e[-1].bytes))
        problem = "state numbers must be 0 to 3 without a gap, and a state of U8 the only one";
    else if (state && ((bytes && gckpti_is_part(load->store, q, 0)) ||
                       (gckpti_state_slots(q) && q->p.state_bytes != bytes)))
        problem =
            "its state has another size in the store: load before gckpt_exec_new, with the same "
            "optimiser; and state of U8 cannot be sharded (GCKPT_SHARD_NONE)";
    if (problem)
        return gckpti_refuse(load, GCKPT_E_DATA, e, problem);
    return updates || e->bytes || gckpti_same_shape(&e->shape, shape) ||
           gckpti_refuse(load, GCKPT_E_SHAPE, e,
                         e > values ? "%S, but its parameter is %S"
                                    : "the file has it as %S, the store as %S",
                         &e->shape, shape);
}

/* Makes a new parameter use values in the mapped file, if the format allows that. */
static void gckpti_use_mapped(gckpti_loader *load, gckpti_file_entry *e)
{
    gckpti_param *q = &load->store->params[e->param];
    const void *at = load->file + load->bytes_read + (size_t)e->offsets[0];
    if (e->param < load->old_params || !gckpti_little_endian() ||
        (uintptr_t)at % (unsigned)gckpti_kind_of(e->type)->bytes)
        return;
    gckpti_set_external(load->store, q, (gckpt_storage)e->type, at,
                        !e->type && load->desc->writable);
    e->ignored = 1;
}

/* Checks the entries of a parameter, allocates missing values and states, and sets the destination
 * of data in a new array, or else the bytes that they need in the spare block. */
static int gckpti_resolve_param(gckpti_loader *load, gckpti_file_entry *values,
                                const gckpti_file_entry *end)
{
    gckpt_store *s = load->store;
    gckpti_param *q = &s->params[values->param];
    gckpti_file_entry *e;
    for (e = values; e < end; e++)
        if (!gckpti_check_array(load, values, e, end))
            return 0;
    gckpti_pull(s, q);
    values->old_states = (signed char)gckpti_state_slots(q);
    if (load->file)
        gckpti_use_mapped(load, values);
    if ((load->result = gckpti_values_new(s, q, "load")) != GCKPT_OK)
        return 0;
    const int floats = q->p.storage == GCKPT_STORAGE_F32; /* only floats have state */
    for (e = values + 1; e < end && e->slot <= 3; e++) {
        e->ignored = !floats;
        values->states = (signed char)(values->states + floats);
    }
    if (values->states && values[1].bytes)
        q->p.state_bytes = (size_t)values[1].shape.d[0];
    if (!gckpti_ensure_state(s, q, values->states))
        return gckpti_refuse(load, GCKPT_E_MEMORY, values, "no memory for its %i optimiser states",
                             values->states);
    for (e = values; e < end; e++) {
        if (e->ignored || e->slot == GCKPTI_UPDATES)
            e->ignored = 1;
        else if (e->slot < 0 ? q->uninitialised : e->slot >= values->old_states)
            e->dest = e->slot < 0 ? gckpti_values_block(q) : (unsigned char *)q->p.state[e->slot];
        else if (e->slot >= 0 || !q->locked)
            e->spare_bytes = gckpti_array_bytes(s, q, e->slot + 1);
        load->spare_bytes += gckpti_round_up(e->spare_bytes, GCKPTI_ALIGN);
    }
    return 1;
}

/* Finds and checks all tensors' parameters, and allocates the memory that their data need. */
static int gckpti_resolve(gckpti_loader *load)
{
    gckpt_store *s = load->store;
    gckpti_file_entry missing, *first, *e, *const end = load->entries + load->count;
    for (int part = 0; part < 2; part++) /* first all values, then the rest */
        for (e = load->entries; e < end; e++)
            if (!e->ignored && (e->slot >= 0) == part && !gckpti_find_owner(load, e))
                return 0;
    gckpti_sort_entries(load, NULL);
    if (!gckpti_check_offsets(load))
        return 0;
    gckpti_sort_entries(load, s);
    first = e = load->entries;
    for (size_t i = 0; i < s->count; i++, first = e) {
        while (e < end && e->param == i)
            e++;
        if (e > first && !gckpti_resolve_param(load, first, e))
            return 0;
        if (e > first || load->desc->partial || i >= load->old_params)
            continue;
        missing.name = s->params[i].p.name;
        missing.slot = GCKPTI_VALUES;
        missing.param = i;
        return gckpti_refuse(load, GCKPT_E_DATA, &missing,
                             "is missing in the file; the store has %z parameters; see "
                             "desc.partial",
                             load->old_params);
    }
    unsigned char *spare = load->spare =
        (unsigned char *)gckpti_new(&s->memory, load->spare_bytes, 1);
    if (!spare)
        return gckpti_refuse(load, GCKPT_E_MEMORY, NULL,
                             "no memory for %z bytes of data in addition to the store's",
                             load->spare_bytes);
    for (e = load->entries; e < end; spare += gckpti_round_up(e++->spare_bytes, GCKPTI_ALIGN))
        e->dest = e->spare_bytes ? spare : e->dest;
    return 1;
}
#endif

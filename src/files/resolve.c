#include "files/internal.h"
#include "store/store.h"

#ifndef GCKPT_NO_FILES
/* ---- which array of the store each tensor of the file belongs to ---- */
static int gckpti_is_entry_before(const void *first, const void *second, const void *context)
{
    const gckpti_file_entry *a = (const gckpti_file_entry *)first;
    const gckpti_file_entry *b = (const gckpti_file_entry *)second;
    (void)context;
    return a->offsets[0] < b->offsets[0] ||
           (a->offsets[0] == b->offsets[0] && a->offsets[1] < b->offsets[1]);
}

static int gckpti_refuse_orphan(gckpti_loader *load, const gckpti_file_entry *e)
{
    return gckpti_refuse(load, GCKPT_E_DATA, e, "is without its parameter, state, or values of I8");
}

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
        return gckpti_refuse_orphan(load, e);
    if (index < 0 && ((load->old_params && !load->file) || !name))
        return gckpti_refuse(load, GCKPT_E_DATA, e,
                             "is none of the store's %z parameters%s; build the model that was "
                             "saved, load into an empty store, or leave it out (desc.rename)",
                             s->count, load->desc->rename ? ", also when renamed" : "");
    if (index < 0 && !gckpti_param_new(s, name, &e->shape, 0, none))
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
    if (at != load->data_bytes)
        return gckpti_refuse(load, GCKPT_E_DATA, NULL,
                             "the tensors need %I bytes of data, the file has %I: damaged", at,
                             load->data_bytes);
    return 1;
}

#define GCKPTI_STATE_PROBLEM "state numbers must be 0 to 3 without a gap"

/* Lists an entry among those of its parameter. */
static int gckpti_list_entry(gckpti_loader *load, gckpti_file_entry *e)
{
    gckpti_file_param *f = &load->params[e->param];
    const int updates = e->slot == GCKPTI_UPDATES;
    if (e->slot > GCKPTI_SCALE && !updates)
        return gckpti_refuse(load, GCKPT_E_DATA, e, GCKPTI_STATE_PROBLEM);
    gckpti_file_entry **entry = &f->entry[updates ? (int)GCKPTI_FILE_UPDATES : e->slot + 1];
    f->old_states = gckpti_state_slots(&load->store->params[e->param]);
    if (*entry)
        return gckpti_refuse(load, GCKPT_E_DATA, *entry,
                             strcmp(e->name, (*entry)->name) ? "two tensors are renamed to it"
                                                             : "comes twice");
    *entry = e;
    return 1;
}

/* Checks values whose rows have scales. */
static int gckpti_check_scaled(gckpti_loader *load, const gckpti_file_param *f)
{
    const gckpti_file_entry *e = f->entry[0];
    const gckpti_storage_kind *kind = gckpti_kind_of(e->type);
    const gckpti_param *q = &load->store->params[e->param];
    if (e->shape.n < 2 || !f->entry[GCKPTI_FILE_SCALE])
        return gckpti_refuse(load, GCKPT_E_DATA, e,
                             "%s needs two axes or more, and a tensor of this name and #scale",
                             kind->name);
    if ((int)q->p.storage != e->type && q->p.storage != GCKPT_STORAGE_F32)
        return gckpti_refuse(load, GCKPT_E_DATA, e,
                             "the file has it as %s, the store as %s; make it %s or F32",
                             kind->name, gckpti_storage_name(q->p.storage), kind->name);
    return 1;
}

/* Checks entry i of a parameter, if the file has it. */
static int gckpti_check_array(gckpti_loader *load, const gckpti_file_param *f, int i)
{
    gckpti_file_entry *const *entry = f->entry, *e = entry[i];
    const int scale = i == GCKPTI_FILE_SCALE, updates = i == GCKPTI_FILE_UPDATES;
    if (!e)
        return 1;
    if (!*entry || (scale && !gckpti_kind_of((*entry)->type)->scaled) || (updates && !entry[1]))
        return gckpti_refuse_orphan(load, e);
    if (updates) {
        e->ignored = 1;
        return e->optimiser >= 0 ||
               gckpti_refuse(load, GCKPT_E_DATA, e, "must be \"OPTIMISER:COUNT\" in quotes");
    }
    if (i && !scale && !entry[i - 1])
        return gckpti_refuse(load, GCKPT_E_DATA, e, GCKPTI_STATE_PROBLEM);
    const gckpt_shape whole = load->store->params[(*entry)->param].p.shape;
    gckpt_shape shape = whole;
    shape.n -= scale; /* one scale for each row */
    if (!gckpti_same_shape(&e->shape, &shape))
        return gckpti_refuse(load, GCKPT_E_SHAPE, e,
                             i ? "%S, but its parameter is %S"
                               : "the file has it as %S, the store as %S",
                             &e->shape, &whole);
    if (GCKPTI_HAS_SCALES && !i && gckpti_kind_of(e->type)->scaled)
        return gckpti_check_scaled(load, f);
    return 1;
}

/* Makes a new parameter use values (and scales) in the mapped file, if the format allows that. */
static int gckpti_map_values(gckpti_loader *load, const gckpti_file_param *f)
{
    gckpti_file_entry *e = f->entry[0], *scale = f->entry[GCKPTI_FILE_SCALE];
    gckpti_param *q = &load->store->params[e->param];
    if (!load->file || e->param < load->old_params || !gckpti_little_endian())
        return 0;
    const unsigned char *data = load->file + load->bytes_read;
    const void *scales = scale ? data + (size_t)scale->offsets[0] : NULL;
    const void *at = data + (size_t)e->offsets[0];
    if ((uintptr_t)at % (unsigned)gckpti_kind_of(e->type)->bytes ||
        (uintptr_t)scales % sizeof(float))
        return 0;
    gckpti_use_values(q, (gckpt_storage)e->type, at, (const float *)scales,
                      !e->type && load->desc->writable);
    load->store->elements -= (size_t)q->p.elements;
    e->ignored = 1;
    if (GCKPTI_HAS_SCALES && scale)
        scale->ignored = 1;
    return 1;
}

/* Checks a parameter's entries, allocates missing values and states, and sets the destinations of
 * data, in new arrays or else (spare_bytes) in the spare block. */
static int gckpti_load_param(gckpti_loader *load, gckpti_file_param *f, gckpti_param *q)
{
    gckpt_store *s = load->store;
    for (int i = 0; i < GCKPTI_FILE_ENTRIES; i++)
        if (!gckpti_check_array(load, f, i))
            return 0;
    if (!f->entry[0])
        return 1;
    if (!gckpti_map_values(load, f) && (load->result = gckpti_values_new(s, q, "load")) != GCKPT_OK)
        return 0;
    const int floats = q->p.storage == GCKPT_STORAGE_F32; /* only floats have state */
    for (int i = 1; i < GCKPTI_FILE_SCALE && f->entry[i]; i++) {
        f->entry[i]->ignored = !floats;
        f->states += floats;
    }
    if (!gckpti_ensure_state(s, q, f->states))
        return gckpti_refuse(load, GCKPT_E_MEMORY, f->entry[0],
                             "no memory for its %i optimiser states", f->states);
    for (int i = 0; i <= f->states; i++) {
        gckpti_file_entry *e = f->entry[i];
        const int fresh = i ? i > f->old_states : q->uninitialised;
        if (fresh)
            e->dest = i ? (unsigned char *)q->p.state[i - 1] : gckpti_values_block(q);
        else if (i || !(e->ignored || q->locked))
            e->spare_bytes = gckpti_array_bytes(s, q, i);
    }
    if (GCKPTI_HAS_SCALES && floats && f->entry[GCKPTI_FILE_SCALE])
        f->entry[GCKPTI_FILE_SCALE]->spare_bytes =
            (size_t)gckpti_elements(&f->entry[GCKPTI_FILE_SCALE]->shape) * sizeof(float);
    return 1;
}

/* Finds and checks all tensors' parameters, and allocates the memory that their data need. */
GCKPTI_FN int gckpti_load_resolve(gckpti_loader *load)
{
    gckpt_store *s = load->store;
    gckpti_file_entry missing, *e, *const end = load->entries + load->count;
    for (int part = 0; part < 2; part++) /* first all values, then the rest */
        for (e = load->entries; e < end; e++)
            if (!e->ignored && (e->slot >= 0) == part && !gckpti_find_owner(load, e))
                return 0;
    gckpti_sort(load->entries, load->count, sizeof *e, gckpti_is_entry_before, NULL);
    if (!gckpti_check_offsets(load))
        return 0;
    load->params = (gckpti_file_param *)gckpti_new(&s->memory, s->count, sizeof *load->params);
    if (!load->params)
        return gckpti_refuse(load, GCKPT_E_MEMORY, NULL, "no memory for a list of %z parameters",
                             s->count);
    load->param_count = s->count;
    for (e = load->entries; e < end; e++)
        if (!e->ignored && !gckpti_list_entry(load, e))
            return 0;
    for (size_t i = 0; i < s->count; i++) {
        if (!gckpti_load_param(load, &load->params[i], &s->params[i]))
            return 0;
        if (load->params[i].entry[0] || load->desc->partial || i >= load->old_params)
            continue;
        missing.name = s->params[i].p.name;
        missing.slot = GCKPTI_VALUES;
        missing.param = i;
        return gckpti_refuse(load, GCKPT_E_DATA, &missing,
                             "is missing in the file; the store has %z parameters; see "
                             "desc.partial",
                             load->old_params);
    }
    for (e = load->entries; e < end; e++)
        load->spare_bytes += gckpti_round_up(e->spare_bytes, GCKPTI_ALIGN);
    load->spare = (unsigned char *)gckpti_new(&s->memory, load->spare_bytes, 1);
    if (!load->spare)
        return gckpti_refuse(load, GCKPT_E_MEMORY, NULL,
                             "no memory for %z bytes of data in addition to the store's",
                             load->spare_bytes);
    unsigned char *spare = load->spare;
    for (e = load->entries; e < end; e++) {
        e->dest = e->spare_bytes ? spare : e->dest;
        spare += gckpti_round_up(e->spare_bytes, GCKPTI_ALIGN);
    }
    return 1;
}
#endif

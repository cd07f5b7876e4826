#include "export/export.h"
#include "base/base.h"
#include "graph/graph.h"
#include "ops/ops.h"
#include "plan/plan.h"
#include "run/run.h"

#ifndef GCKPT_NO_EXPORT
/* ---- as C. An #if at the top of the output refuses machines whose size_t is too small. ---- */
/* Writes an offset as a C constant to `text`, and returns it. */
static const char *gckpti_c_offset(size_t offset, char text[24])
{
    gckpti_text t = { text, 23 };
    gckpti_text_add(&t, offset == GCKPTI_NO_OFFSET ? "SIZE_MAX" : "%z", offset);
    return text;
}

static void gckpti_c_words(gckpti_sink *out, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, (const char *)data + 4 * i, 4);
        gckpti_print(out, i % 8 ? " %zU," : "\n    %zU,", (size_t)word);
    }
}

static int gckpti_c_is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static int gckpti_c_identifier(const char *s)
{
    int good = gckpti_c_is_letter(*s);
    for (; *s; s++)
        good = good && (gckpti_c_is_letter(*s) || (*s >= '0' && *s <= '9'));
    return good;
}

/* Returns the part of an op of this header, printed as gckpti_op_NAME; "" for a user's op. */
static const char *gckpti_c_part_of(const gckpt_op *op)
{
#define GCKPTI_IF_IS(listed, part) !strcmp(op->name, #listed) ? #part :
    return !(op->flags & GCKPTI_BUILTIN_OP) ? "" : GCKPTI_OPS(GCKPTI_IF_IS) "";
}

/* Writes the name that a tensor has in the printed enum to `label`; characters that no identifier
 * can have become '_'. Returns 0 if the enum lacks it: it is neither an input nor fetched. */
static int gckpti_c_label(const gckpt_plan *p, int id, char *label, size_t size)
{
    const gckpti_plan_node *q = &p->nodes[id];
    const char *name =
        q->kind == GCKPTI_PARAM ? p->names + p->params[q->index].name : gckpti_planned_name(p, id);
    gckpti_text t = { label, size - 1 };
    int listed = q->kind == GCKPTI_INPUT;
    for (size_t i = 0; i < p->fetch_count && !listed; i++)
        listed = p->fetches[i].id == id;
    *label = 0;
    for (; *name; name++)
        gckpti_text_put(
            &t, gckpti_c_is_letter(*name) || (*name >= '0' && *name <= '9') ? name : "_", 1);
    if (t.end == label || (q->kind != GCKPTI_PARAM && q->name == GCKPTI_NAMELESS))
        gckpti_text_add(&t, "_%i", id);
    return listed;
}

/* Prints enum { NAME_tokens = 0, .. }; if two tensors have the same name, appends their ids. */
static void gckpti_c_enum(gckpti_sink *out, const gckpt_plan *p, const char *name)
{
    char label[128], other[128];
    int n = (int)p->node_count, first = 1;
    for (int id = 0; id < n; id++) {
        if (!gckpti_c_label(p, id, label, sizeof label))
            continue;
        int taken = !strcmp(label, "store_bytes") || !strcmp(label, "exec_bytes");
        for (int i = 0; i < n && !taken; i++)
            taken = i != id && gckpti_c_label(p, i, other, sizeof other) && !strcmp(label, other);
        gckpti_print(out, "%s    %s_%s", first ? "enum {\n" : ",\n", name, label);
        gckpti_print(out, taken ? "__%i = %i" : " = %i", id, id);
        first = 0;
    }
    gckpti_print(out, first ? "" : "\n};\n");
}

/* Prints the sizes of a device's memory blocks, as expressions for the device's own compiler. */
static void gckpti_c_memory(gckpti_sink *out, const gckpt_plan *p, const char *name)
{
#define GCKPTI_ADD_BYTES(n, type) /* the device may lack types of which it needs none */           \
    if (n)                                                                                         \
        gckpti_print(out, "(%z * sizeof(" #type ") + 15) / 16 * 16 + ", (size_t)(n));              \
    bytes -= gckpti_round_up((size_t)(n) * sizeof(type), GCKPTI_ALIGN);
    size_t capacity = 0;
    while (capacity < p->param_count)
        capacity = gckpti_next_capacity(capacity, 1);
    gckpt_plan constant = *p;
    constant.block = NULL; /* a constant plan is not copied */
    size_t bytes = gckpt_store_need(&constant);
    gckpti_print(out, "#define %s_store_bytes (", name);
    GCKPTI_ADD_BYTES(1, gckpt_store)
    GCKPTI_ADD_BYTES(capacity, gckpti_param)
    gckpti_print(out, "%z)\n#define %s_exec_bytes (", bytes, name);
    bytes = gckpt_exec_need(&constant, NULL);
    GCKPTI_EXEC_STRUCTS(GCKPTI_ADD_BYTES, p)
#undef GCKPTI_ADD_BYTES
    gckpti_print(out, "%z)\n", bytes);
}

/* Prints the nodes, and the data of constants. */
static void gckpti_c_nodes(gckpti_sink *out, const gckpt_plan *p, const char *name)
{
    for (size_t i = 0; i < p->node_count; i++)
        if (p->nodes[i].kind == GCKPTI_CONSTANT) {
            gckpti_print(out, "static const uint32_t gckpti_%s_data%z[] = {", name, i);
            gckpti_c_words(out, p->nodes[i].data, (size_t)gckpti_planned_elements(p, &p->nodes[i]));
            gckpti_print(out, "\n};\n");
        }
    gckpti_print(out, "static const gckpti_plan_node gckpti_%s_nodes[] = {\n", name);
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_plan_node *q = &p->nodes[i];
        const gckpt_op *op = q->index < 0 ? NULL : q->op; /* an op that never runs is not linked */
        const gckpt_op *last = op ? (const gckpt_op *)q->data : NULL; /* of a fused group */
        const char *prefix = op && (last || *gckpti_c_part_of(op)) ? "gckpti_op_" : "";
        gckpti_print(out, op ? "    { &%s%s, " : "    { NULL, ", prefix,
                     last ? "fused"
                     : op ? op->name
                          : "");
        if (last)
            gckpti_print(out, *gckpti_c_part_of(last) ? "&gckpti_op_%s" : "&%s", last->name);
        else
            gckpti_print(out, q->kind == GCKPTI_CONSTANT ? "gckpti_%s_data%z" : "NULL", name, i);
        gckpti_print(out, ", %z, %z, %z, %z, ", q->saved_bytes, (size_t)q->attributes,
                     (size_t)q->attribute_bytes, (size_t)q->shape);
        gckpti_print(out, q->name == GCKPTI_NAMELESS ? "(gckpti_offset)SIZE_MAX" : "%z",
                     (size_t)q->name);
        gckpti_print(out, ", %i, %i, {", q->base, q->index);
        for (int d = 0; d < GCKPT_MAX_INPUTS; d++)
            gckpti_print(out, d ? ", %i" : " %i", q->in[d]);
        gckpti_print(out, " }, %i, %i, %i, %i, %i, %i },\n", q->kind, q->inputs, q->type,
                     q->batch_invariant, q->rounding, q->compensated);
    }
    gckpti_print(out, "};\n");
}

/* Prints an array of the plan: for each element q a format and its arguments. Prints nothing if it
 * is empty, which C does not allow. */
#define GCKPTI_C_ARRAY(type, array, count, ...)                                                    \
    for (const type *q = p->array, *const end = q + p->count; q < end; q++) {                      \
        if (q == p->array)                                                                         \
            gckpti_print(out, "static const " #type " gckpti_%s_" #array "[] = {\n", name);        \
        gckpti_print(out, __VA_ARGS__);                                                            \
        gckpti_print(out, q + 1 == end ? "};\n" : "");                                             \
    }

/* Prints an array of numbers, 8 in a line. */
#define GCKPTI_C_NUMBERS(type, array, count, number)                                               \
    GCKPTI_C_ARRAY(type, array, count, (q - p->array) % 8 == 7 ? "%s,\n" : "%s, ", number)

/* Prints the arrays that only builds without GCKPT_SMALL read. */
static void gckpti_c_info(gckpti_sink *out, const gckpt_plan *p, const char *name)
{
    char at[2][24];
    gckpti_print(out, "#ifndef GCKPT_SMALL\n");
    GCKPTI_C_ARRAY(gckpti_node_info, info, node_count,
                   "    { { UINT64_C(%u), UINT64_C(%u) }, %s, %s },\n", q->cost.forward,
                   q->cost.backward, gckpti_c_offset(q->host_value, at[0]),
                   gckpti_c_offset(q->host_saved, at[1]))
    GCKPTI_C_NUMBERS(size_t, live_bytes, length, gckpti_c_offset(*q, at[0]))
    GCKPTI_C_ARRAY(gckpt_buffer, buffers, buffer_count,
                   "    { %i, %i, %z, %z, %i, (gckpt_buffer_kind)%i },\n", q->start, q->end,
                   q->offset, q->size, q->id, (int)q->kind)
    gckpti_print(out, "#endif\n");
}

/* Prints the arrays of structs and offsets, in the order of the plan's fields. */
static void gckpti_c_arrays(gckpti_sink *out, const gckpt_plan *p, const char *name)
{
    char at[24];
    GCKPTI_C_NUMBERS(gckpti_extent, sizes, size_count, gckpti_c_offset((size_t)*q, at))
    GCKPTI_C_ARRAY(gckpti_plan_param, params, param_count,
                   "    { %I, { %zU, %zU, %zU }, %zU, %z, %i, %i, %i, %i, %i, %i, %i, %z },\n",
                   q->elements, (size_t)q->init[0], (size_t)q->init[1], (size_t)q->init[2],
                   (size_t)q->momentum, (size_t)q->name, q->node, q->store_index, q->running,
                   q->trained, q->external, q->storage, q->slots, q->state_bytes)
    GCKPTI_C_ARRAY(gckpti_ins, ins, length, "    { %i, %i, %i, %i, %i, %i, %z },\n", q->kind,
                   q->first, q->accumulate, q->zero, q->id, q->uses, (size_t)q->operands)
    GCKPTI_C_NUMBERS(size_t, operands, operand_count, gckpti_c_offset(*q, at))
    GCKPTI_C_ARRAY(gckpti_plan_term, terms, term_count, "    { %i, %zU, %i, %I },\n", q->id,
                   (size_t)q->weight, q->regulariser, q->sample_size)
    GCKPTI_C_ARRAY(gckpti_plan_fetch, fetches, fetch_count, "    { %i, %i, %s },\n", q->id,
                   q->gradient, gckpti_c_offset(q->offset, at))
    GCKPTI_C_ARRAY(char, names, name_bytes, "%s'\\%i%i%i',%s", (q - p->names) % 16 ? " " : "    ",
                   *q >> 6 & 3, *q >> 3 & 7, *q & 7,
                   (q - p->names) % 16 == 15 || q + 1 == end ? "\n" : "")
}

/* Prints attributes, aligned for every type. */
static void gckpti_c_attributes(gckpti_sink *out, const gckpt_plan *p, const char *name)
{
    if (!p->word_count)
        return;
    gckpti_print(out,
                 "static const union {\n    uint32_t words[%z];\n"
                 "    double number;\n    int64_t wide;\n} gckpti_%s_words = { {",
                 p->word_count, name);
    gckpti_c_words(out, p->words, p->word_count);
    gckpti_print(out, "\n} };\n");
}

static void gckpti_c_number(gckpti_sink *out, const char *type, const char *field, uint64_t value)
{
    if (!strcmp(type, "uint64_t"))
        gckpti_print(out, "    UINT64_C(%u), /* %s */\n", value, field);
    else if (*type == 'g') /* a number of an enum type */
        gckpti_print(out, "    (%s)%u, /* %s */\n", type, value, field);
    else
        gckpti_print(out, "    %I, /* %s */\n", (int64_t)value, field);
}

static void gckpti_c_array(gckpti_sink *out, const char *name, const char *array, size_t count,
                           int optional)
{
    gckpti_print(out, optional ? "#ifdef GCKPT_SMALL\n    NULL,\n#else\n" : "");
    gckpti_print(out, count ? "    gckpti_%s_%s%s,\n" : "    NULL,\n", name, array,
                 !strcmp(array, "words") ? ".words" : "");
    gckpti_print(out, optional ? "#endif\n" : "");
}

static void gckpti_c_plan(gckpti_sink *out, const gckpt_plan *p, const char *name)
{
    gckpti_print(out,
                 "extern const gckpt_plan %s;\nconst gckpt_plan %s = {\n"
                 "    { %zU, GCKPT_OK, GCKPT_OK, { 0 } }, { { NULL, NULL, NULL, 0 }, 0, 0, 0 }, "
                 "NULL,\n",
                 name, name, (size_t)GCKPTI_MAGIC);
#define GCKPTI_PRINTED(type, field) gckpti_c_number(out, #type, #field, (uint64_t)p->field);
    GCKPTI_PLAN_NUMBERS(GCKPTI_PRINTED)
#undef GCKPTI_PRINTED
    gckpti_print(out, "#ifdef GCKPT_SMALL\n    0,\n#else\n    %z,\n#endif\n    {", p->buffer_count);
    for (int i = 0; i < GCKPT_BYTES_KINDS; i++)
        gckpti_print(out, i ? ", %z" : " %z", p->kind_bytes[i]);
    gckpti_print(out, " },\n");
#define GCKPTI_PRINTED(type, field, count, optional)                                               \
    gckpti_c_array(out, name, #field, p->count, optional);
    GCKPTI_PLAN_ARRAYS(GCKPTI_PRINTED)
#undef GCKPTI_PRINTED
    gckpti_print(out, "};\n");
}

/* Returns the name of an op of the plan that the build of `part` has, or NULL. */
static const char *gckpti_c_find_op(const gckpt_plan *p, const char *part)
{
    for (size_t n = 0; n < p->node_count; n++) {
        const gckpti_plan_node *q = &p->nodes[n];
        const gckpt_op *op = q->op && q->data ? (const gckpt_op *)q->data : q->op;
        if (q->index >= 0 && op && !strcmp(gckpti_c_part_of(op), part))
            return op->name;
    }
    return NULL;
}

/* Prints which optional parts of the header the plan needs: a comment lists those that it does not
 * need, an #error refuses builds that leave out one that it needs. */
static void gckpti_c_parts(gckpti_sink *out, const gckpt_plan *p, const char *name)
{
    struct {
        const char *part, *has; /* has: the op or feature of the part in the plan, or NULL */
        int in_small;
    } parts[] = {
#define GCKPTI_OP_PART(op, part) { #part, NULL, 1 },
#define GCKPTI_PART_USE(part, in_small, in_plan, what, in_desc, change)                            \
    { #part, (in_plan) ? what : NULL, in_small },
        GCKPTI_OPS(GCKPTI_OP_PART) GCKPTI_PART_USES(GCKPTI_PART_USE)
#undef GCKPTI_PART_USE
    };
    size_t n = 0, without = 0;
    for (size_t i = 0, k; i < sizeof parts / sizeof *parts; i++) { /* one entry for each part */
        for (k = 0; k < n && strcmp(parts[k].part, parts[i].part) != 0;)
            k++;
        if (k < n || !strcmp(parts[i].part, "CORE"))
            continue;
        parts[n] = parts[i];
        parts[n].has = parts[i].has ? parts[i].has : gckpti_c_find_op(p, parts[i].part);
        n++;
    }
    for (size_t i = 0; i < n; i++)
        if (!parts[i].has)
            gckpti_print(out, "%s GCKPT_NO_%s", without++ ? "," : " * It runs with", parts[i].part);
    gckpti_print(out, without ? ", too. */\n" : " */\n");
    for (size_t i = 0; i < n; i++) {
        if (parts[i].has && !parts[i].in_small)
            gckpti_print(out,
                         "#ifdef GCKPT_SMALL\n#error \"plan %s: GCKPT_SMALL is for plans without "
                         "%s\"\n#endif\n",
                         name, parts[i].has);
        if (parts[i].has)
            gckpti_print(out,
                         "#ifdef GCKPT_NO_%s\n#error \"plan %s: it has %s: compile without "
                         "GCKPT_NO_%s\"\n#endif\n",
                         parts[i].part, name, parts[i].has, parts[i].part);
    }
}

GCKPT_API gckpt_result gckpt_plan_c(const gckpt_plan *plan, const char *name, gckpt_write_fn write,
                                    void *user)
{
    gckpti_sink out = { write, user, 0, 0, 0, { 0 } };
    const char *problem = NULL;
    size_t i = 0;
    if (!plan || !plan->info || !name || !write)
        return GCKPT_E_ARG;
    if (plan->backend_id > GCKPTI_BACKEND_PLAIN)
        problem = "#error \"plan: it was made for a backend other than the CPU\"\n";
    else if (gckpti_needs_peers(plan))
        problem = "#error \"plan: it " GCKPTI_IS_OF_SEVERAL "; printed plans run on one\"\n";
    else if (!gckpti_c_identifier(name) || strlen(name) > 60)
        problem = "#error \"plan: its name must be a C identifier of at most 60 letters\"\n";
    for (const gckpt_op *op; i < plan->node_count && !problem; i += !problem) {
        op = plan->nodes[i].index < 0 ? NULL : plan->nodes[i].op;
        if (op && !*gckpti_c_part_of(op) && !gckpti_c_identifier(op->name))
            problem = "#error \"plan %s: the op of tensor %z must have the name of the C variable "
                      "that holds its gckpt_op\"\n";
    }
    if (problem) {
        gckpti_print(&out, problem, name, i);
        gckpti_sink_flush(&out);
        return GCKPT_E_ARG;
    }
    gckpti_print(&out,
                 "/* Plan %s, printed by gckpt_plan_c: compile it in the file that holds the\n"
                 " * implementation of gradckpt.h, after the #include. Not to be edited.\n",
                 name);
    gckpti_c_parts(&out, plan, name);
    const size_t bytes = gckpt_plan_bytes(plan), host = plan->host_bytes;
    gckpti_print(&out,
                 "#if GCKPT_PLAN_FORMAT != %i || GCKPT_CONTRACT != %i\n#error \"plan %s: printed "
                 "by another version of gradckpt.h: print it again (gckpt_plan_c)\"\n#endif\n"
                 "#if SIZE_MAX / 16 < %z\n#error \"plan %s: too large for this machine's "
                 "addresses\"\n#endif\n",
                 plan->format, plan->contract, name, host > bytes ? host : bytes, name);
    if (plan->batch > INT32_MAX || plan->node_count > INT16_MAX ||
        plan->operand_count > UINT16_MAX || plan->word_count > UINT16_MAX ||
        plan->size_count > UINT16_MAX || plan->name_bytes >= UINT16_MAX)
        gckpti_print(&out,
                     "#ifdef GCKPT_SMALL\n#error \"plan %s: GCKPT_SMALL is for plans of fewer than "
                     "32768 tensors and 65536 operands\"\n#endif\n",
                     name);
    if (plan->backend_id == GCKPTI_BACKEND_CPU)
        gckpti_print(&out,
                     "#ifdef GCKPT_NO_FAST\n#error \"plan %s: made for the fast kernels: make it "
                     "with gckpt_plan_desc.kernels.plain = 1\"\n#endif\n",
                     name);
    gckpti_c_enum(&out, plan, name);
    gckpti_c_memory(&out, plan, name);
    gckpti_c_nodes(&out, plan, name);
    gckpti_c_info(&out, plan, name);
    gckpti_c_arrays(&out, plan, name);
    gckpti_c_attributes(&out, plan, name);
    gckpti_c_plan(&out, plan, name);
    return gckpti_sink_flush(&out);
}
#endif

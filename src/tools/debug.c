#ifndef GCKPT_NO_DEBUG
#include "run/internal.h"
#include "graph/graph.h"
#include "num/num.h"

/* ---- scans of values ---- */
enum { GCKPTI_KIND_NAN = 1, GCKPTI_KIND_INF = 2 };

/* The kinds of numbers found, and the first element whose kind is `sought`. */
typedef struct {
    const gckpt_exec *e;
    unsigned sought, kinds;
    uint64_t hash;    /* unless 0 at the start, the hash of the values */
    int id, gradient; /* that element's node, or -1; 1 if it is in the node's gradient */
    int64_t element;  /* that element's index, or -1 for the sum of a loss */
    double value;
} gckpti_scan;

static gckpti_scan gckpti_scan_for(const gckpt_exec *e, unsigned sought)
{
    const gckpti_scan scan = { e, sought, 0, 0, -1, 0, 0, 0 };
    return scan;
}

static void gckpti_scan_value(gckpti_scan *scan, double x, int id, int gradient, int64_t at)
{
    unsigned kind = gckpti_is_finite(x) ? 0 : x != x ? GCKPTI_KIND_NAN : GCKPTI_KIND_INF;
    scan->kinds |= kind;
    if (scan->id < 0 && kind & scan->sought) {
        scan->id = id;
        scan->gradient = gradient;
        scan->element = at;
        scan->value = x;
    }
}

/* Scans n floats or halves; if x is NULL, a compressed parameter's values or, for others, none. */
static void gckpti_scan_array(gckpti_scan *scan, const void *x, int narrow, int64_t n, int id,
                              int gradient)
{
    const gckpti_plan_node *node = &scan->e->plan->nodes[id];
    const int param = node->kind == GCKPTI_PARAM && !gradient;
    const gckpti_param *q = param ? gckpti_param_of(scan->e, node->index) : NULL;
    const int64_t size = narrow ? 2 : 4;
    float chunk[64];
    n = x ? n : q && gckpti_is_compressed((int)q->p.storage) ? q->p.elements : 0;
    for (int64_t at = 0, count; at < n; at += count) {
        uint16_t half[64];
        count = gckpti_min(n - at, 64);
        if (!x)
            GCKPTI_IF_COMPRESSED(gckpti_decompress_at(q, at, count, chunk));
        else
            gckpti_from_backend(scan->e, narrow ? (void *)half : (void *)chunk,
                                (const unsigned char *)x + at * size, (size_t)(count * size));
        for (int64_t i = 0; i < count; i++) {
            chunk[i] = narrow ? gckpti_from_bf16(half[i]) : chunk[i];
            gckpti_scan_value(scan, (double)chunk[i], id, gradient, at + i);
        }
        if (scan->hash)
            scan->hash = gckpti_hash_floats(scan->hash, chunk, count);
    }
}

/* ---- GCKPT_DEBUG_RECOMPUTE: a recomputed value must be the same ---- */
/* Compares the result of an instruction with the result of the node's first forward. */
static gckpt_result gckpti_check_recompute(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *node = &p->nodes[ins->id];
    if (!gckpti_defines(ins->kind) || !node->op)
        return GCKPT_OK;
    const gckpt_result result = gckpti_wait_copies(e, INT32_MAX, GCKPT_OK);
    if (result != GCKPT_OK)
        return result;
    gckpti_operands o;
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    const void *data[2] = { gckpti_arena_ptr(e, o.out), gckpti_arena_ptr(e, o.saved) };
    const int64_t rows = gckpti_micro_rows(e), saved = (int64_t)(node->saved_bytes / 4);
    const gckpt_shape shape = gckpti_node_shape(e, node, rows);
    const int64_t n[2] = { gckpti_elements(&shape),
                           node->batch_invariant ? saved : saved / p->rows * rows };
    for (int k = 0; k < 2; k++) {
        uint64_t *expected = &e->debug.hashes[2 * ins->id + k];
        gckpti_scan scan = gckpti_scan_for(e, 0);
        scan.hash = GCKPTI_FNV_START;
        gckpti_scan_array(&scan, data[k], !k && gckpti_value_size(node->rounding) == 2, n[k],
                          ins->id, 0);
        scan.hash |= 1; /* 0 means no value yet */
        if (data[k] && !ins->first && *expected && *expected != scan.hash)
            return gckpti_error(
                e, GCKPT_E_DATA,
                "recompute: %s of %s (%s #%i) differs from what it was the first time: %s",
                k ? "the saved data" : "the value", gckpti_planned_name(p, ins->id), node->op->name,
                ins->id,
                ins->kind == GCKPT_FORWARD ? "the op is not a function of its inputs"
                                           : "slower memory returned other bytes");
        *expected = data[k] ? scan.hash : ins->first ? 0 : *expected;
    }
    return GCKPT_OK;
}

/* ---- GCKPT_DEBUG_POISON, GCKPT_DEBUG_MEASURE ---- */
/* What fills the arena before a step. POISON: a NaN as a float, two NaNs as halves. MEASURE, which
 * finds where it is left: a pattern that no kernel is likely to write. */
enum { GCKPTI_POISON = 0x7fc07fc0, GCKPTI_UNTOUCHED = 0x25252525 };

/* Poisons the buffers that die at instruction x; in the body, not those of the prologue, which the
 * next micro-batch reads. */
static void gckpti_poison_dead(gckpt_exec *e, int x)
{
    const gckpt_plan *p = e->plan;
    const int in_body = p->accumulates && x >= p->body && x < p->epilogue;
    for (size_t i = 0; i < p->buffer_count; i++) {
        const gckpt_buffer *buffer = &p->buffers[i];
        if (buffer->end == x && !(in_body && buffer->start < p->body))
            gckpti_fill(e, e->blocks.arena + buffer->offset, GCKPTI_POISON, buffer->size / 4 * 4);
    }
}

/* Raises high_water to the end of the highest 2 bytes that a step wrote, and of all workspaces, of
 * which kernels may use less. */
static void gckpti_measure(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    size_t *high = &e->debug.high_water;
    for (size_t i = 0; i < p->buffer_count; i++) {
        const size_t end = p->buffers[i].offset + p->buffers[i].size;
        *high = p->buffers[i].kind == GCKPT_BUFFER_WORKSPACE && end > *high ? end : *high;
    }
    for (size_t top = p->arena, n; top >= *high + 2; top -= n) {
        uint16_t chunk[128];
        size_t left = (top - *high) / 2;
        left = left < 128 ? left : 128, n = 2 * left;
        gckpti_from_backend(e, chunk, e->blocks.arena + top - n, n);
        while (left && chunk[left - 1] == (GCKPTI_UNTOUCHED & 0xffff))
            left--;
        *high = left ? top - n + 2 * left : *high;
    }
}

GCKPT_API size_t gckpt_bytes_measured(const gckpt_exec *exec)
{
    return exec ? gckpt_store_bytes(exec->store) - exec->plan->kind_bytes[GCKPT_BYTES_HOST_STATE] +
                      exec->plan->kind_bytes[GCKPT_BYTES_CACHES] + exec->debug.high_water
                : 0;
}

/* ---- GCKPT_DEBUG_FINITE: finds the first NaN or infinity ---- */
/* Scans a node's value or gradient in this micro-batch. If scratch is nonzero, x is always f32. */
static void gckpti_scan_node(gckpti_scan *scan, size_t offset, int id, int gradient, int scratch)
{
    const gckpt_exec *e = scan->e;
    const gckpti_plan_node *q = &e->plan->nodes[id];
    const gckpt_shape shape = gckpti_node_shape(e, q, gckpti_micro_rows(e));
    const int narrow =
        (gradient ? gckpti_gradient_size(q->rounding) : gckpti_value_size(q->rounding)) == 2;
    const void *x = gckpti_arena_ptr(e, offset);
    if (!gradient && gckpti_is_variable(q->op))
        x = e->tables.nodes[id].data;
    if (x && q->type == GCKPT_F32)
        gckpti_scan_array(scan, x, narrow && !scratch, gckpti_elements(&shape), id, gradient);
}

static void gckpti_scan_results(gckpti_scan *scan, const gckpti_ins *ins)
{
    const gckpt_exec *e = scan->e;
    const gckpt_plan *p = e->plan;
    const gckpti_plan_node *node = &p->nodes[ins->id];
    const int backward = ins->kind == GCKPT_BACKWARD;
    const int loss = node->op && node->op->flags & GCKPT_LOSS;
    gckpti_operands o;
    gckpti_operands_of(p->operands, ins, node->inputs, &o);
    if (loss && (!backward || node->op->flags & GCKPTI_BACKWARD_LOSS)) {
        gckpti_loss_total sum;
        gckpti_from_backend(e, &sum, &e->losses.totals[gckpti_term_of(p, ins->id)], sizeof sum);
        gckpti_scan_value(scan, sum.sum, ins->id, 0, -1);
    } else if (!loss && !backward) {
        gckpti_scan_node(scan, o.out, ins->id, 0, 0);
    }
    for (int i = 0; i < node->inputs && backward; i++) {
        const int id = p->nodes[node->in[i]].base, scratch = o.in[i].total != GCKPTI_NO_OFFSET;
        gckpti_scan_node(scan, o.in[i].gradient, id, 1, scratch);
        gckpti_scan_node(scan, o.in[i].total, id, 1, 0);
    }
}

/* Returns the error about an element found; `who` and `name` say which computation made it. */
static gckpt_result gckpti_report_scan(gckpt_exec *e, const gckpti_scan *scan, const char *who,
                                       const char *name, const char *why)
{
    const gckpt_plan *p = e->plan;
    if (scan->id < 0)
        return GCKPT_OK;
    const gckpti_plan_node *q = &p->nodes[scan->id];
    int64_t rows = gckpti_micro_rows(e), left = scan->element;
    gckpt_shape shape = gckpti_node_shape(e, q, rows), at = shape;
    char where[112] = "";
    gckpti_text t = { where, sizeof where - 1 };
    for (int i = at.n; i-- > 0; left /= shape.d[i])
        at.d[i] = left % shape.d[i];
    if (scan->element >= 0)
        gckpti_text_add(&t, " at %S of %S", &at, &shape);
    if (scan->element >= 0 && !q->batch_invariant && gckpti_elements(&shape) >= rows)
        gckpti_text_add(&t, ", row %I of the batch",
                        e->step.row + scan->element / (gckpti_elements(&shape) / rows));
    return gckpti_error(
        e, GCKPT_E_DATA, "finite: %s%s made %g in %s \"%s\" #%i%s; %s%s", who, name, scan->value,
        scan->element < 0 ? "the sum of"
        : scan->gradient  ? "the gradient of"
                          : "the value of",
        gckpti_planned_name(p, scan->id), scan->id, where, why,
        e->update.begun ? "parameters have changed: load a checkpoint" : "nothing was changed");
}

/* Reports a NaN that an instruction made, or an infinity if the step has begun with none. */
static gckpt_result gckpti_check_finite(gckpt_exec *e, const gckpti_ins *ins)
{
    const unsigned given = e->debug.given;
    gckpti_scan scan = gckpti_scan_for(e, (GCKPTI_KIND_NAN | GCKPTI_KIND_INF) & ~given);
    if (ins->kind > GCKPT_BACKWARD)
        return GCKPT_OK;
    const gckpti_plan_node *node = &e->plan->nodes[ins->id];
    if (node->kind == GCKPTI_PARAM) /* other parts of it may have an infinity */
        scan.sought = GCKPTI_KIND_NAN;
    gckpti_scan_results(&scan, ins);
    if (node->kind == GCKPTI_PARAM)
        e->debug.given |= scan.kinds;
    return gckpti_report_scan(e, &scan, ins->kind == GCKPT_FORWARD ? "forward of " : "backward of ",
                              node->op ? node->op->name : "param",
                              given ? "it may have read infinities, but no NaN; "
                                    : "all it read is finite; ");
}

/* Checks a parameter's gradient before its update. */
static gckpt_result gckpti_check_finite_gradient(gckpt_exec *e, const gckpti_ins *ins)
{
    const gckpti_param *q = gckpti_param_of(e, ins->id);
    gckpti_scan scan = gckpti_scan_for(e, GCKPTI_KIND_NAN | GCKPTI_KIND_INF);
    gckpt_update_pass pass;
    gckpti_init_pass(e, ins, &pass);
    gckpti_scan_array(&scan, pass.gradient, 0, pass.elements, e->plan->params[ins->id].node, 1);
    scan.element += pass.elements < q->p.elements ? q->p.first : 0;
    return gckpti_report_scan(e, &scan, "the batch", "", "");
}

/* Reports NaNs in parameters, constants and the feeds of `rows` further rows, and infinities in
 * trained parameters. Other infinities, also those in attributes, are given: they may spread. */
static gckpt_result gckpti_check_finite_given(gckpt_exec *e, int64_t rows)
{
    const gckpt_plan *p = e->plan;
    e->debug.given = 0;
    for (size_t i = 0; i < p->node_count; i++) {
        const gckpti_plan_node *node = &p->nodes[i];
        const int param = node->kind == GCKPTI_PARAM, id = (int)i;
        const gckpti_param *q = param ? gckpti_param_of(e, node->index) : NULL;
        int64_t row = 0, first = 0, count = gckpti_planned_elements(p, node);
        gckpti_scan scan = gckpti_scan_for(e, GCKPTI_KIND_NAN);
        scan.sought |= param && p->params[node->index].trained ? GCKPTI_KIND_INF : 0;
        if (param)
            count = gckpti_part_of(e->store, q, GCKPTI_VALUES, &first);
        if ((param || node->kind == GCKPTI_CONSTANT) && node->type == GCKPT_F32) {
            const int stored = q && gckpti_is_compressed((int)q->p.storage);
            gckpti_scan_array(&scan, stored ? NULL : e->tables.nodes[i].data, 0, count, id, 0);
        } else if (node->kind == GCKPTI_INPUT && node->type == GCKPT_F32) {
            const gckpti_exec_input *in = &e->feeds.inputs[node->index];
            const float *x = (const float *)(const void *)in->feed;
            row = in->node < 0 ? 0 : count / p->rows;
            for (int64_t k = 0; k < row * rows; k++)
                gckpti_scan_value(&scan, (double)x[k], id, 0, k);
        }
        if (scan.id >= 0 && row)
            return gckpti_error(
                e, GCKPT_E_DATA,
                "finite: \"%s\": NaN was fed at row %I, position %I; look at the data",
                p->names + node->name, e->step.row_end + scan.element / row, scan.element % row);
        if (scan.id >= 0)
            return gckpti_error(e, GCKPT_E_DATA,
                                "finite: \"%s\" is %g at position %I: an earlier update "
                                "(lower lr, or clip), or what was loaded or set, made it so",
                                gckpti_planned_name(p, id), scan.value, scan.element + first);
        for (size_t k = 0; k < node->attribute_bytes / 4; k++) { /* no integer has these bits */
            const uint32_t word = p->words[node->attributes + k] & 0x7fffffff;
            if (word == 0x7f800000 || word == 0x7fc00000)
                gckpti_scan_value(&scan, (double)gckpti_float(word), id, 0, 0);
        }
        e->debug.given |= scan.kinds;
    }
    return GCKPT_OK;
}

/* Runs the checks that follow an instruction. */
static gckpt_result gckpti_debug_instruction(gckpt_exec *e, const gckpti_ins *ins, unsigned debug)
{
    const int x = (int)(ins - e->plan->ins);
    gckpt_result result = GCKPT_OK;
    if (debug & GCKPT_DEBUG_RECOMPUTE)
        result = gckpti_check_recompute(e, ins);
    if (result == GCKPT_OK && debug & GCKPT_DEBUG_FINITE)
        result = gckpti_check_finite(e, ins);
    if (debug & GCKPT_DEBUG_POISON) {
        result = gckpti_wait_copies(e, x + 1, result);
        gckpti_poison_dead(e, x);
    }
    return result;
}

GCKPTI_MODULE(debug)
{
    const unsigned debug = gckpti_debug(e);
    const int finite = (debug & GCKPT_DEBUG_FINITE) != 0, early = e->plan->update_in_backward;
    gckpt_result result = GCKPT_OK;
    switch (event) {
    case GCKPTI_ON_LAYOUT:
        if (debug & GCKPT_DEBUG_RECOMPUTE)
            e->debug.hashes = (uint64_t *)gckpti_bump_alloc(
                (gckpti_bump *)arg, 2 * e->plan->node_count, sizeof *e->debug.hashes);
        break;
    case GCKPTI_ON_BIND:
        e->device.watched |= finite || debug & (GCKPT_DEBUG_RECOMPUTE | GCKPT_DEBUG_POISON);
        e->update.all_first |= (unsigned char)(finite && !early);
        break;
    case GCKPTI_ON_FED:
        return finite ? gckpti_check_finite_given(e, *(const int64_t *)arg) : GCKPT_OK;
    case GCKPTI_ON_BEGIN:
        if (debug & (GCKPT_DEBUG_MEASURE | GCKPT_DEBUG_POISON))
            gckpti_fill(e, e->blocks.arena,
                        debug & GCKPT_DEBUG_MEASURE ? GCKPTI_UNTOUCHED : GCKPTI_POISON,
                        e->plan->arena);
        break;
    case GCKPTI_ON_AFTER: return gckpti_debug_instruction(e, (const gckpti_ins *)arg, debug);
    case GCKPTI_ON_GRADIENTS: /* before the first update */
        for (size_t x = 0; x < e->plan->length && finite && result == GCKPT_OK; x++)
            if (e->plan->ins[x].kind == GCKPT_UPDATE)
                result = gckpti_check_finite_gradient(e, &e->plan->ins[x]);
        break;
    case GCKPTI_ON_SUCCESS:
        if (debug & GCKPT_DEBUG_MEASURE)
            gckpti_measure(e);
        break;
    default: break;
    }
    return result;
}
#endif

#include "run/own.h"

/* More about a lack of the backend's memory. */
GCKPTI_FN const char *gckpti_shortage(const gckpt_exec *e)
{
    return gckpti_on(e)->shortage ? gckpti_on(e)->shortage(gckpti_on(e)->context) : "";
}

/* Memory where the backend computes; NULL: there is none, or the size was too much to count.
 * alignment: of memory of its own; the host's is as its allocator has it. */
GCKPTI_FN void *gckpti_take(gckpt_exec *e, size_t bytes, size_t alignment)
{
    if (bytes >= (size_t)PTRDIFF_MAX / 2)
        return NULL;
    if (gckpti_on(e)->own_memory)
        return gckpti_on(e)->get(gckpti_on(e)->context, bytes, alignment);
    return gckpti_resize(&e->memory, NULL, 0, bytes);
}

/* Frees what gckpti_take took; NULL: nothing. */
GCKPTI_FN void gckpti_give(gckpt_exec *e, void *memory, size_t bytes)
{
    if (memory && gckpti_on(e)->own_memory)
        gckpti_on(e)->release(gckpti_on(e)->context, memory, bytes);
    else
        gckpti_delete(&e->memory, memory, bytes, 1);
}

/* Repeats a word over so many bytes, the last ones in part. */
GCKPTI_FN void gckpti_fill(const gckpt_exec *e, void *to, uint32_t word, size_t bytes)
{
    gckpt_call c;
    gckpti_call_between(e, &c);
    if (bytes / 4)
        gckpti_on(e)->fill(&c, to, word, (int64_t)(bytes / 4));
    if (bytes % 4)
        gckpti_on(e)->copy_in(c.backend, (unsigned char *)to + bytes / 4 * 4, &word, bytes % 4);
}

/* Host memory for what is offloaded, and for copies. */
GCKPTI_FN gckpt_result gckpti_exec_host(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    if (e->offload.moves)
        e->offload.far =
            (unsigned char *)gckpti_on(e)->host_get(gckpti_on(e)->context, p->offloaded);
    if (e->offload.moves && !e->offload.far)
        return gckpti_error(e->store, GCKPT_E_MEMORY, "exec: %s has no host memory for %z bytes",
                            gckpti_on(e)->name, p->offloaded);
    int large = e->blocks.copies_size >= (size_t)PTRDIFF_MAX / 2;
    if (e->blocks.copies_size && !large)
        e->blocks.copies = gckpti_new(&e->memory, e->blocks.copies_size, 1);
    if (e->blocks.copies_size && !e->blocks.copies)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            large ? "exec: copies of the feeds are too large"
                                  : "exec: no memory for %z bytes of copied feeds and operands",
                            e->blocks.copies_size);
    if (e->blocks.copies)
        gckpti_exec_copies(e, (unsigned char *)e->blocks.copies);
    return GCKPT_OK;
}

/* The arena: the one given, or one of its own with a canary behind, which a kernel that writes too
 * far changes. */
GCKPTI_FN gckpt_result gckpti_exec_arena(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    unsigned char canary[GCKPTI_CANARY];
    if (e->desc.arena) {
        if (e->desc.arena_size < p->arena || (uintptr_t)e->desc.arena % p->alignment)
            return gckpti_error(
                e->store, GCKPT_E_ARG,
                "exec: the arena given has %z bytes; the plan needs %z, aligned to %z",
                e->desc.arena_size, p->arena, p->alignment);
        e->blocks.arena = (unsigned char *)e->desc.arena;
        return GCKPT_OK;
    }
    e->blocks.owned =
        p->arena < PTRDIFF_MAX / 2 ? gckpti_take(e, e->blocks.owned_size, p->alignment) : NULL;
    if (!e->blocks.owned)
        return gckpti_error(e->store, GCKPT_E_MEMORY,
                            "exec: no memory for the step arena of %z bytes%s", p->arena,
                            gckpti_shortage(e));
    size_t past = (size_t)((uintptr_t)e->blocks.owned % p->alignment);
    e->blocks.arena = (unsigned char *)e->blocks.owned + (past ? p->alignment - past : 0);
    memset(canary, GCKPTI_CANARY_BYTE, sizeof canary);
    gckpti_on(e)->copy_in(gckpti_on(e)->context, e->blocks.arena + p->arena, canary, sizeof canary);
    return GCKPT_OK;
}

/* That nothing was written behind it. */
GCKPTI_FN gckpt_result gckpti_check_canary(gckpt_exec *e)
{
    unsigned char canary[GCKPTI_CANARY];
    if (e->blocks.owned)
        gckpti_on(e)->copy_out(gckpti_on(e)->context, canary, e->blocks.arena + e->plan->arena,
                               sizeof canary);
    for (size_t i = 0; e->blocks.owned && i < sizeof canary; i++)
        if (canary[i] != GCKPTI_CANARY_BYTE)
            return gckpti_error(e, GCKPT_E_DATA,
                                "step: a kernel wrote behind the arena of %z bytes",
                                e->plan->arena);
    return GCKPT_OK;
}

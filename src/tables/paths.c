#include "tables/tables.h"
#include "store/store.h"
#include "plan/plan.h"
#include "files/files.h"
#include "base/host.h"

#if !defined(GCKPT_NO_TABLES) && !defined(GCKPT_NO_STDIO)
static gckpt_result gckpti_save_plan(const void *what, gckpt_write_fn write, void *user)
{
    return gckpt_plan_write((const gckpt_plan *)what, write, user);
}

GCKPT_API gckpt_result gckpt_plan_save(const gckpt_plan *plan, const char *path)
{
    if (!plan || !path)
        return GCKPT_E_ARG;
    gckpti_allocator memory = plan->memory;
    char names[4096]; /* behind a plan in a block all may be another's */
    if (memory.desc.memory) {
        memset(&memory, 0, sizeof memory);
        memory.desc.memory = strlen(path) < 900 ? names : NULL; /* longer: of the heap */
        memory.desc.size = sizeof names;
    }
    gckpti_content content = { NULL, &memory, gckpti_save_plan, plan, NULL, 0 };
    return gckpti_save(&content, path);
}

GCKPT_API gckpt_plan *gckpt_plan_load(gckpt_graph *graph, const char *path,
                                      const gckpt_memory *memory)
{
    gckpti_file file = { NULL, 0, NULL };
    gckpt_plan *plan = NULL;
    if (!graph || !path) {
        gckpti_error(graph, GCKPT_E_ARG, "load plan: a graph and a path are needed");
        return NULL;
    }
    gckpti_file_from(&file, path);
    if (file.f) {
        plan = gckpt_plan_read(graph, gckpti_file_read, &file, memory);
        fclose(file.f);
    }
    if (!plan && file.error)
        gckpti_error(graph, GCKPT_E_FILE, "load plan: %s: could not read \"%s\"",
                     strerror(file.error), path);
    return plan;
}
#endif

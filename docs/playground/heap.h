/* heap.h - the heap as a gckpt_memory, for native programs that use tiny.h. */
#ifndef HEAP_H
#define HEAP_H
#include <stdlib.h>

static void *resize(void *user, void *ptr, size_t old_size, size_t new_size)
{
    (void)user, (void)old_size;
    if (new_size > 0)
        return realloc(ptr, new_size);
    free(ptr);
    return NULL;
}

#endif

#ifndef GCKPT_NO_DEVICES
#include "devices/devices.h"
#include "cpu/internal.h"

static const char *gckpti_cpu_finish(void *context)
{
    (void)context;
    return NULL;
}

GCKPTI_FN void gckpti_complete_backend(gckpt_backend *b)
{
    b->copy_in = b->copy_in ? b->copy_in : gckpti_cpu_copy;
    b->copy_out = b->copy_out ? b->copy_out : gckpti_cpu_copy;
    b->copy = b->copy ? b->copy : gckpti_cpu_copy;
    b->fill = b->fill ? b->fill : gckpti_cpu_fill;
    b->add = b->add ? b->add : GCKPTI_IF_TRAINING(gckpti_cpu_add);
    b->convert = b->convert ? b->convert : GCKPTI_IF_MIXED(gckpti_cpu_convert);
    b->update = b->update ? b->update : GCKPTI_IF_TRAINING(gckpti_cpu_update);
    b->finish = b->finish ? b->finish : gckpti_cpu_finish;
    b->dequantise = b->dequantise ? b->dequantise : gckpti_cpu_dequantise;
}
#endif

#pragma once
#include "cpu/cpu.h"

/* Devices: backends that a user passes in desc.backend. gckpti_backend(e) is the executor's, which
 * has all functions set. GCKPTI_OF(b, name) is a field of backend b, a function or a value. In a
 * build without devices it is gckpti_cpu_NAME, whatever b is. */
#ifndef GCKPT_NO_DEVICES
#define GCKPTI_OF(b, name) (b)->name
#define gckpti_backend(e)  ((const gckpt_backend *)&(e)->devices.backend)
#define gckpti_finish(b)   (b)->finish((b)->context)

typedef struct {
    gckpt_backend backend;    /* desc.backend or none; missing functions are the CPU's */
    gckpt_loss_scale *scales; /* one for each loss term */
    unsigned char can_replay; /* the backend captures and replays micro-batches */
    unsigned char capturing;  /* the body is being captured */
} gckpti_device_state;

/* ---- devices/cpu.c ---- */
/* Sets the functions between ops that a backend without its own memory lacks to the CPU's. */
GCKPTI_FN void gckpti_complete_backend(gckpt_backend *b);

/* ---- devices/choose.c ---- */
/* Sets devices.backend: desc.backend or none, completed by the CPU's functions. Refuses one for
 * which the plan was not made. */
GCKPTI_FN gckpt_result gckpti_use_backend(gckpt_exec *e);

/* Waits until the backend has finished all its work; returns its error. */
GCKPTI_FN gckpt_result gckpti_wait_backend(gckpt_exec *e);

/* Allocates the backend's block, which the module of devices frees. */
GCKPTI_FN gckpt_result gckpti_alloc_backend(gckpt_exec *e);

/* Copies a parameter's newest values and state to where this executor reads them. An error is set
 * in e if `in_step` is nonzero, else in its store. */
GCKPTI_FN gckpt_result gckpti_sync_param(gckpt_exec *e, gckpti_param *q, int in_step);

/* ---- devices/host.c ---- */
/* Returns a parameter's values (slot -1) or state array `slot`, in the backend's memory. */
GCKPTI_FN float *gckpti_exec_array(const gckpt_exec *e, const gckpti_param *q, int slot);

/* Returns n floats that the host can read: x, or a copy in blocks.host_scratch. The copy is valid
 * until another call, a kernel on the host or a copy to slower memory uses that memory. */
GCKPTI_FN const float *gckpti_host_floats(const gckpt_exec *e, const float *x, size_t n);

/* Returns the bytes of blocks.host_scratch, for the largest of its uses. */
GCKPTI_FN size_t gckpti_host_scratch_bytes(const gckpt_exec *e);
#else
#include "cpu/internal.h" /* the CPU's functions, which GCKPTI_OF names */

#define GCKPTI_OF(b, name)         ((void)(b), gckpti_cpu_##name)
#define gckpti_backend(e)          ((void)(e), (const gckpt_backend *)NULL)
#define gckpti_cpu_own_memory      0
#define gckpti_cpu_context         ((void *)0)
#define gckpti_cpu_name            "processor"
#define gckpti_cpu_copy_in         gckpti_cpu_copy
#define gckpti_cpu_copy_out        gckpti_cpu_copy
/* The CPU has none of the optional functions of a backend. */
#define gckpti_cpu_use_comm_queue  ((void *(*)(void *, int))0)
#define gckpti_cpu_wait_comm_queue ((void (*)(void *, int))0)
#define gckpti_cpu_wait_copies     ((void (*)(void *, int))0)
#define gckpti_cpu_copy_async      ((void (*)(void *, void *, const void *, size_t, int))0)
#define gckpti_cpu_host_get        ((void *(*)(void *, size_t))0)
#define gckpti_cpu_host_release    ((void (*)(void *, void *, size_t))0)

#define gckpti_finish(b)                             ((void)(b), (const char *)NULL)
#define gckpti_use_backend(e)                        GCKPT_OK
#define gckpti_find_kernels(e, node, kernels)                                                      \
    ((kernels)->forward = (node)->op->forward, (kernels)->backward = (node)->op->backward)
#define gckpti_wait_backend(e)                       GCKPT_OK
#define gckpti_exec_array(e, q, slot)                gckpti_array(q, slot)
#define gckpti_alloc_backend(e)                      GCKPT_E_MEMORY
#define gckpti_sync_param(e, q, in_step)             GCKPT_OK
#define gckpti_host_floats(e, x, n)                  (x)
#define gckpti_run_on_host(e, ins, c)                ((void)0)
#define gckpti_host_scratch_bytes(e)                 0
#define gckpti_has_known_counts(e)                   0
#define gckpti_update_in_parts(e, ins, call, pass)   0
#define gckpti_replay(e)                             ((void)0)
#endif
#define gckpti_copy(b, to, from, n)     GCKPTI_OF(b, copy)(GCKPTI_OF(b, context), to, from, n)
#define gckpti_copy_in(b, to, from, n)  GCKPTI_OF(b, copy_in)(GCKPTI_OF(b, context), to, from, n)
#define gckpti_copy_out(b, to, from, n) GCKPTI_OF(b, copy_out)(GCKPTI_OF(b, context), to, from, n)

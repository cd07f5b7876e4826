#pragma once
#include "plan/plan.h"

/* ---- what planning asks a backend; NULL is the processor (devices/plan.c) ---- */
#ifndef GCKPT_NO_DEVICES
/* Returns a plan's backend_id: GCKPTI_BACKEND_CPU, _PLAIN, or above these a hash of the name. */
GCKPTI_FN int gckpti_backend_id(const gckpt_backend *backend, int plain);

/* Returns the name of a backend, or "the processor" for NULL. */
GCKPTI_FN const char *gckpti_backend_name(const gckpt_backend *b);

/* Returns 1 if a backend has a fast kernel (find_fast) for an op or, if `op` is NULL, for any. */
GCKPTI_FN int gckpti_has_fast_kernel(const gckpt_backend *b, const gckpt_op *op);

/* Returns 1 if the host keeps the optimiser state of a device (desc.offload.state). */
GCKPTI_FN int gckpti_streams_state(const gckpt_plan_desc *d);

/* Most elements of which an update then has the state in its workspace at a time. */
enum { GCKPTI_STREAMED = 1 << 20 }; /* a multiple of GCKPT_UPDATE_BLOCK */

/* Returns the bytes of the workspace through which t's state then passes, else 0. */
GCKPTI_FN size_t gckpti_state_workspace(const gckpti_planner *p, const gckpt_tensor *t);

/* Asks a backend for the workspace of an op; `call` is as op->shape left it. */
GCKPTI_FN gckpt_result gckpti_query_backend(const gckpt_backend *b, const gckpt_op *op,
                                            gckpt_call *call);
#else
#define gckpti_backend_id(b, plain)       ((plain) ? GCKPTI_BACKEND_PLAIN : GCKPTI_BACKEND_CPU)
#define gckpti_backend_name(b)            "the processor"
#define gckpti_has_fast_kernel(b, op)     0
#define gckpti_query_backend(b, op, call) GCKPT_OK
#define gckpti_streams_state(d)           0
#define gckpti_state_workspace(p, t)      0
#endif

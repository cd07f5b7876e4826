#pragma once
#include "graph/graph.h"

/* What the files of graph share; no other folder uses it. */

#ifdef GCKPTI_SEPARATE_TU
/* What each does is said where it is defined. */
/* graph/tensor.c */
GCKPTI_FN const void *gckpti_graph_copy(gckpt_graph *g, const void *bytes, size_t n);
GCKPTI_FN gckpt_tensor *gckpti_tensor_new(gckpt_graph *g, int kind, const gckpt_shape *shape,
                                          gckpt_type type);
#endif

GCKPTI_COLD_BEGIN /* to ops */

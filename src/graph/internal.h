#pragma once
#include "graph/graph.h"

/* Shared by the files of graph/; no other folder includes it. */

#ifdef GCKPTI_SEPARATE_TU
/* Comments are at the definitions. */
/* graph/tensor.c */
GCKPTI_FN const void *gckpti_graph_copy(gckpt_graph *g, const void *bytes, size_t n);
GCKPTI_FN gckpt_tensor *gckpti_tensor_new(gckpt_graph *g, int kind, const gckpt_shape *shape,
                                          gckpt_type type);
#endif

GCKPTI_COLD_BEGIN /* to ops */

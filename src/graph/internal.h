#pragma once
#include "graph/graph.h"

/* Declarations shared by the files of graph; no other folder includes this header. */

#ifdef GCKPTI_SEPARATE_TU
/* Prototypes for files that are compiled separately (tests). Definitions have the comments. */
/* graph/tensor.c */
GCKPTI_FN const void *gckpti_graph_copy(gckpt_graph *g, const void *bytes, size_t n);
GCKPTI_FN gckpt_tensor *gckpti_tensor_new(gckpt_graph *g, int kind, const gckpt_shape *shape,
                                          gckpt_type type);
#endif

GCKPTI_COLD_BEGIN /* ends in ops/ops.h */

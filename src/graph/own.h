#pragma once
#include "graph/graph.h"

/* What the files of graph share; no other folder uses it. */

#ifdef GCKPTI_ROOMS
/* For files that are compiled by themselves, as tests have them: in gradckpt.h functions stand in
 * order, and need no prototypes. What each does is said where it is defined. */

/* graph/tensor.c */
GCKPTI_FN const char *gckpti_tensor_label(const gckpt_tensor *t, char *buffer, size_t size);
GCKPTI_FN void *gckpti_graph_full(gckpt_graph *g, const char *what, size_t n);
GCKPTI_FN const void *gckpti_graph_copy(gckpt_graph *g, const void *bytes, size_t n);
GCKPTI_FN gckpt_tensor *gckpti_tensor_new(gckpt_graph *g, int kind, const gckpt_shape *shape,
                                          gckpt_type type);
#endif

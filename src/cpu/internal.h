#pragma once
#include "bf16/internal.h"

/* Declarations shared by the files of layer cpu (MANIFEST); some are in folders of features. */

#if GCKPTI_HAS_FAST
/* ---- cpu/products.c ---- */
typedef struct gckpti_products {
    const gckpt_call *call;
    const gckpti_product *t;
    /* rows and columns of a block; blocks per column and per row of c */
    int64_t rows, cols, row_blocks, col_blocks;
    int64_t floats; /* floats of t->workspace per worker; 0 if the stack suffices */
    void (*run_block)(const struct gckpti_products *s, const gckpti_c_block *block, float *scratch,
                      int64_t floats);
} gckpti_products;

#endif

#ifdef GCKPTI_SEPARATE_TU
/* Prototypes for files that are compiled separately (tests). Definitions have the comments. */

/* cpu/calls.c */
GCKPTI_FN void gckpti_cpu_copy(void *context, void *to, const void *from, size_t bytes);
GCKPTI_FN void gckpti_cpu_update(const gckpt_call *call, const gckpt_update_pass *pass);

#if GCKPTI_HAS_FAST
/* cpu/products.c */
GCKPTI_FN void gckpti_products_split(gckpti_products *s);
GCKPTI_FN void gckpti_run_products(gckpti_products *s);

/* cpu/kernels.c */
GCKPTI_FN int gckpti_kernels_match(const gckpti_kernels *kernels);
GCKPTI_FN const gckpti_kernels *gckpti_kernels_for(gckpt_isa isa);
#endif
#endif

/* Compiles the kernels of one instruction set when the files of src/ are compiled separately: one
 * object for each GCKPTI_ISA (num/vectors.h), empty if this compiler lacks that set. */
#include "num/num.h"
#include "store/store.h"
#include "ops/ops.h"
#include "attention/cpu.h"
#include "images/kernels.h"
#include "recurrent/recurrent.h"

#if GCKPTI_HAS_FAST && ((GCKPTI_ISA == 0 && GCKPTI_FMA) || (GCKPTI_ISA == 2 && GCKPTI_X86) ||      \
                        (GCKPTI_ISA == 3 && GCKPTI_AVX512))
#if GCKPTI_X86
#include <immintrin.h>
#endif
#define GCKPTI_VECTORS
#include "num/num.h"
#include "ops/loops.h"
#include "ops/rows.h"
#include "activations/loops.h"
#include "attention/loops.h"
#include "images/loops.h"
#include "recurrent/loops.h"
#include "kernels/vectors.c"
#include "quant/vectors.c"
#include "kernels/products.c"
#include "kernels/gemv.c"
#include "quant/blocks.c"
#include "quant/kernels.c"
#include "kernels/product_block.c"
#include "kernels/elementwise.c"
#include "bf16/kernels.c"
#include "kernels/column_sums.c"
#include "images/grouped.c"
#include "images/kernels.c"
#include "attention/kernels.c"
#include "kernels/hot_end.h"
#include "attention/online_softmax.c"
#include "bf16/attention.c"
#include "bf16/table.c"
#include "attention/table.c"
#include "recurrent/kernels.c"
#include "kernels/table.c"
#include "bf16/amx.c"
#endif

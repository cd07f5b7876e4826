#ifndef GCKPT_NO_BF16
static const gckpti_mixed_kernels V(mixed_kernels) = { gckpti_mixed_fast,
                                                       { { 32, GCKPTI_PANEL, GCKPTI_TILE_ROWS,
                                                           V(mixed_tile) },
                                                         { 32, GCKPTI_PANEL, 1, V(mixed_chain) } },
                                                       NULL,
                                                       2,
                                                       V(mixed_pack),
                                                       V(mixed_put),
                                                       V(widen),
                                                       V(narrow) };
#endif

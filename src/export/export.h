#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>tables: plans as files and as C
 *
 * A file is a run of 64-bit numbers, little-endian:
 *     "gckptpln", GCKPT_PLAN_FORMAT, GCKPT_CONTRACT
 *     tensors; for each: the graph's hash up to it, work forward, work backward
 *     least work of a step that computes nothing twice, proven work, work of 2^20 bytes of slower
 *     memory, of 2^20 that are gathered; batch, mode, optimiser, state slots, update_in_backward,
 *     threads, plain, precision, form, bands, leaves, ranks, what is sharded, offload_beside,
 *     bf16_weights, alignment, proven bytes, bytes of slower memory (those of GCKPTI_PLAN_NUMBERS
 *     that have a limit), terms
 *     for each term: id, bits of the weight, regulariser, work of its op as built
 *     picks; for each: id, gradient
 *     instructions; for each: 8 id of the tensor + kind
 *     parameters; for each: 2 storage + trained
 *     buffers, by end; for each: offset                          hash of all numbers before
 * So it holds decisions only: what runs when, what lies where. The rest is derived from the graph,
 * by the code that plans.
 * ============================================================================================== */

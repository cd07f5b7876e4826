#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>export: plans as files and as C
 *
 * A file is a run of 64-bit numbers, little-endian:
 *     "gckptpln", GCKPT_PLAN_FORMAT, GCKPT_CONTRACT
 *     number of tensors; for each: the graph's hash up to it, forward cost, backward cost
 *     the numbers of GCKPTI_PLAN_NUMBERS that have a limit, in their order there
 *     for each loss term: id, bits of the weight, regulariser, forward and backward cost as built
 *     number of fetches; for each: id, gradient
 *     number of instructions; for each: 8 * id of the tensor + kind
 *     number of parameters; for each: 2 * storage + trained
 *     number of buffers; for each, by end: offset
 *     hash of all numbers before it
 * A file holds decisions only: the order of instructions and the place of each buffer. The planner
 * derives everything else from the graph.
 * ============================================================================================== */

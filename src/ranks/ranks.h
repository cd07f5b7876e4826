#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>ranks: a step in leaves and by several ranks; their files
 *
 * What a gckpti_crew (run) is for; reached only through plan->ranking (gckpti_ranking: what each
 * hook does), from the points of a step where more than one leaf, or rank, makes a difference. A
 * step runs in rounds, leaf by leaf: in the last round of each the leaf's sums join those that wait
 * (gckpti_run_reduce), in the last of all those of the other ranks. Ranks meet at the beginning of
 * a call, behind the body and before and after the updates (gckpti_meet). What one of them failed
 * with is told there; until then it drains: it takes part in all exchanges and computes nothing
 * (gckpti_drain, gckpti_skips).
 *
 * Checkpoints of ranks (load, save) are a file of each rank and an index, which any number of
 * ranks loads.
 * ============================================================================================== */

/* ---- ranks/load.c ---- */
#ifndef GCKPT_NO_STDIO
typedef struct {
    FILE *file; /* NULL: it is not open */
    const char *name;
    int64_t bytes, sum;    /* as the index has them */
    int64_t data, tensors; /* bytes and number of its pieces, */
    int64_t at, passed;    /* and of those that are read */
    int known;             /* it is what the index says */
} gckpti_rank_file;

typedef struct gckpti_rank_files {
    int64_t number; /* of the save; 0: none */
    gckpti_rank_file *part;
    size_t count, capacity; /* by rank */
    char *path;             /* of the index; then, from `folder` on, names of files beside it */
    size_t folder, room;
    /* reading: the loader's entry that it is at; whose piece of that (-1: none), how far it is
     * read, of the tensor's bytes, and where it ends; the sum up to there */
    size_t entry;
    int rank;
    int64_t at, end;
    uint64_t sum;
} gckpti_rank_files;

#endif

#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>ranks: checkpoints of several ranks
 *
 * They are a file of each rank and an index, which any number of ranks loads (load, save).
 * ============================================================================================== */

/* ---- ranks/load.c ---- */
#if !defined(GCKPT_NO_STDIO) && !defined(GCKPT_NO_RANKS)
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

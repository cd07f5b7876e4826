#pragma once
#include "ranks/ranks.h"
#include "base/base.h"
#include "store/store.h"
#include "files/files.h"

/* What the files of ranks share; no other folder uses it. */

/* ---- ranks/save.c ---- */
#if !defined(GCKPT_NO_STDIO) && !defined(GCKPT_NO_RANKS)
enum { GCKPTI_PART_NAME = 64 }; /* bytes: ".7-0.safetensors" */

typedef struct {
    gckpt_store *store;
    const char *path;
    gckpti_saving part;     /* this rank's */
    gckpti_rank_files old;  /* rank 0: of the index that is there; its names only of others */
    gckpti_rank_file *next; /* rank 0: the files of all ranks now */
    int64_t number;         /* of this save */
    int damaged;            /* what is there is no index, or cannot be read */
} gckpti_rank_save;
#endif

#ifdef GCKPTI_ROOMS
/* For files that are compiled by themselves, as tests have them: in gradckpt.h functions stand in
 * order, and need no prototypes. What each does is said where it is defined. */

/* ranks/load.c */
GCKPTI_FN int gckpti_parts_path(gckpti_rank_files *x, gckpti_allocator *memory, const char *path);
GCKPTI_FN int gckpti_load_index(gckpti_loader *l);
GCKPTI_FN int gckpti_part_sum(FILE *f, int64_t data, int64_t tensors, int64_t *bytes, int64_t *sum);

/* ranks/save.c */
GCKPTI_FN char *gckpti_part_path(gckpti_rank_save *x, int64_t number, int64_t rank);
GCKPTI_FN gckpt_result gckpti_rank_save_start(gckpti_rank_save *x, gckpt_store *s,
                                              const char *path);
GCKPTI_FN gckpt_result gckpti_rank_save_part(gckpti_rank_save *x);
GCKPTI_FN gckpt_result gckpti_rank_save_place(gckpti_rank_save *x);
GCKPTI_FN void gckpti_rank_save_end(gckpti_rank_save *x);
#endif

#pragma once
#include "files/files.h"
#include "store/store.h"

/* Shared by the files of files only. */

#ifndef GCKPT_NO_FILES
/* ---- files/write.c ---- */
#define GCKPTI_HEADER_MAX 100000000u /* bytes; the format's limit */
/* The call that reads a checkpoint of several ranks, for error texts. */
#ifndef GCKPT_NO_RANKS
#define GCKPTI_RANKS_LOAD "gckpt_ranks_load"
#else
#define GCKPTI_RANKS_LOAD "gckpt_ranks_load, which this build leaves out (GCKPT_NO_RANKS)"
#endif
/* What to save: a store, or one rank's part of it. */
typedef struct {
    gckpt_store *store;
    const gckpt_file_desc *desc;
    int rank, ranks;
    uint64_t *hashes;           /* of a part: space for its tensors' hashes; else NULL */
    const uint64_t *total_hash; /* of all data, for the metadata, or NULL */
} gckpti_save_spec;

/* ---- files/axes.c ---- */
/* Result of desc.axes for a parameter. */
typedef struct {
    int count;                          /* number of axes, or 0 if unchanged */
    unsigned char permuted;             /* whether the file's order differs */
    unsigned char axes[GCKPT_MAX_DIMS]; /* the parameter's axes, in the file's order */
} gckpti_axis_order;
static inline int gckpti_is_permuted(const gckpti_axis_order *order)
{
    return GCKPTI_USES_AXES && order->permuted;
}
#define GCKPTI_PERMUTE_PROBLEM                                                                     \
    "desc.axes gives %i axes for %S: it must give each of its axes once, or return 0"
#define GCKPTI_PERMUTE_NONE "load, save: desc.axes must be NULL with GCKPT_NO_STDIO"
#define GCKPTI_PERMUTE_ROWS                                                                        \
    "desc.axes permutes it, which I8 and I4 cannot be: store it as F32, BF16 or F16 in file "      \
    "and store, and quantise it after loading"

/* ---- files/header.c ---- */
typedef struct {
    const char *name;       /* of the tensor, without the slot's suffix */
    signed char slot;       /* index of gckpti_suffixes, or GCKPTI_VALUES */
    signed char type;       /* a gckpt_storage, or -1 for any other */
    signed char states;     /* of values: number of states in the file */
    signed char old_states; /* of values: number of states that the store had */
    signed char optimiser;  /* as in gckpti_param, or -1 if wrong */
    unsigned char ignored;  /* only its offsets matter */
    unsigned char axes_unknown; /* neither file nor program defines the order of its axes */
    gckpti_axis_order order;
    uint64_t updates;    /* as in gckpti_param */
    size_t param;        /* index in the store, or SIZE_MAX before it is known */
    unsigned char *dest; /* destination of the data, or NULL to compare them */
    gckpt_shape shape;
    int64_t offsets[2];
} gckpti_file_entry;

typedef struct gckpti_loader gckpti_loader;

/* A checkpoint of several files (files/ranks_load.c). Both return 0 after setting an error. */
typedef struct {
    int (*read_index)(gckpti_loader *load); /* finds the header in the text of the index */
    int (*open_parts)(gckpti_loader *load); /* then `read` returns all data, or skips (to NULL) */
} gckpti_source;

struct gckpti_loader {
    gckpt_store *store;
    const gckpt_file_desc *desc;
    const gckpti_source *source;     /* or NULL for a single file */
    struct gckpti_rank_files *parts; /* of the source */
    gckpt_result result;
    gckpt_read_fn read; /* or NULL if `file` is in memory */
    void *user;
    const unsigned char *file;
    size_t bytes_read;        /* of the file */
    char *header, *pos, *end; /* end: of the header */
    int64_t data_bytes;
    gckpti_file_entry *entries;
    size_t count, capacity;
    size_t total;         /* entries, including ignored ones after `count` */
    size_t old_params;    /* parameters that the store had; if 0, all are created */
    size_t old_notes;     /* notes that it had; later ones are the file's */
    unsigned char *spare; /* new data of arrays that the store had, until all is read */
    size_t spare_bytes;
    float *row_buf;             /* at its end: a row to be quantised */
    int own_format;             /* written by this library */
    unsigned char axes_unknown; /* the file does not define the order of axes */
    unsigned char verify_sum;   /* whether to compare the data's hash with `file_hash` */
    uint64_t file_hash;         /* from the file's metadata */
    uint64_t hash;              /* of this tensor's bytes so far */
    uint64_t contract, step, seed, optimiser;
};
#ifdef GCKPTI_SEPARATE_TU
/* files/axes.c */
GCKPTI_FN int gckpti_get_axis_order(gckpti_axis_order *order, const gckpt_file_desc *d,
                                    const char *name, const gckpt_shape *shape);
GCKPTI_FN int64_t gckpti_permuted_index(const gckpti_axis_order *order, const gckpt_shape *shape,
                                        int64_t k);
GCKPTI_FN gckpt_shape gckpti_permuted_shape(const gckpti_axis_order *order, gckpt_shape shape,
                                            int to_file);
/* files/write.c */
extern const char gckpti_part_format[];
extern const gckpt_file_desc gckpti_file_plain;
GCKPTI_FN const char *gckpti_renamed(const gckpt_file_desc *d, const char *name);
GCKPTI_FN uint64_t gckpti_data_hash(const char *name, int slot, uint64_t data);
GCKPTI_FN gckpt_shape gckpti_scale_shape(const gckpt_shape *values);
GCKPTI_FN void gckpti_sink_name(gckpti_sink *out, const char *name);
GCKPTI_FN int64_t gckpti_sink_header(gckpti_sink *out, const gckpti_save_spec *spec,
                                     size_t *tensors);
GCKPTI_FN gckpt_result gckpti_write(const void *what, gckpt_write_fn write, void *user);
/* files/header.c */
GCKPTI_FN void gckpti_text_name(gckpti_text *t, const char *name, const char *suffix);
GCKPTI_FN int gckpti_refuse(gckpti_loader *load, gckpt_result result, const gckpti_file_entry *e,
                            const char *format, ...);
GCKPTI_FN int gckpti_json_fail(gckpti_loader *load, const char *what);
GCKPTI_FN char *gckpti_json_key(gckpti_loader *load, int *count);
GCKPTI_FN char *gckpti_digits(char *s, const char *end, uint64_t *value);
GCKPTI_FN int gckpti_json_numbers(gckpti_loader *load, int64_t *v, int max, int any);
GCKPTI_FN int gckpti_parse_header(gckpti_loader *load);
/* files/resolve.c */
GCKPTI_FN void gckpti_load_sort(gckpti_loader *load, int by_param);
GCKPTI_FN int gckpti_load_check(gckpti_loader *load);
GCKPTI_FN int gckpti_load_create(gckpti_loader *load);
/* files/read.c */
GCKPTI_FN uint64_t gckpti_read_le64(const unsigned char bytes[8]);
GCKPTI_FN gckpt_result gckpti_load(gckpt_store *store, gckpti_loader *load, size_t size,
                                   const gckpt_file_desc *desc);
#endif
#endif

#if !defined(GCKPT_NO_STDIO) && !defined(GCKPT_NO_RANKS)
/* ---- files/ranks_load.c ---- */
typedef struct {
    FILE *file; /* or NULL if not open */
    const char *name;
    int64_t bytes, hash;              /* from the index */
    int64_t data, tensors;            /* bytes and number of its shards */
    int64_t read_bytes, read_tensors; /* those before the current one */
    int verified;                     /* it agrees with the index */
} gckpti_rank_file;

typedef struct gckpti_rank_files {
    int64_t number; /* of the save, or 0 */
    gckpti_rank_file *files;
    size_t count, capacity; /* by rank */
    char *path;             /* of the index; at name_offset also of other files in its folder */
    size_t name_offset, path_size;
    size_t entry;              /* reading: index of the loader's entry */
    gckpti_rank_file *current; /* the file whose shard of it is being read */
    int64_t pos, end;          /* position in all data, and end of that shard */
    uint64_t hash;             /* of the shard up to pos */
} gckpti_rank_files;

/* ---- files/ranks_save.c ---- */
enum { GCKPTI_PART_NAME = 64 }; /* bytes: ".7-0.safetensors" */

typedef struct {
    gckpt_store *store;
    const char *path;
    gckpti_save_spec spec;   /* this rank's */
    gckpti_rank_files old;   /* of the existing index; other ranks use only the names */
    gckpti_rank_file *files; /* files of all ranks; only rank 0 has them */
    int64_t number;          /* of this save */
    int damaged;             /* the existing file is no index, or cannot be read */
} gckpti_rank_save;
#ifdef GCKPTI_SEPARATE_TU
/* files/path.c */
GCKPTI_FN void gckpti_record_errno(gckpti_file *file, int is_error);
GCKPTI_FN FILE *gckpti_file_open(const char *path);
GCKPTI_FN int gckpti_follow_links(char *path, size_t size);
GCKPTI_FN int gckpti_resolve_target(gckpti_file *file, char *target, size_t size,
                                    const char *mode_of);
GCKPTI_FN int gckpti_remove_stale(const char *name);
GCKPTI_FN gckpt_result gckpti_save_error(void *object, const gckpti_file *file, const char *path,
                                         int placed);
GCKPTI_FN int gckpti_seek(FILE *f, int64_t at);
GCKPTI_FN int64_t gckpti_file_size(FILE *f);
GCKPTI_FN size_t gckpti_open_sized(gckpti_file *file, const char *path, int index);
GCKPTI_FN gckpt_result gckpti_load_path(gckpt_store *store, gckpti_loader *load, const char *path,
                                        const gckpt_file_desc *desc);
/* files/ranks_load.c */
GCKPTI_FN int gckpti_parts_path(gckpti_rank_files *parts, gckpti_allocator *memory,
                                const char *path);
GCKPTI_FN int gckpti_load_index(gckpti_loader *load);
GCKPTI_FN int gckpti_part_hash(FILE *f, int64_t data, int64_t tensors, int64_t *bytes,
                               int64_t *hash);
/* files/ranks_save.c */
GCKPTI_FN char *gckpti_part_path(gckpti_rank_save *save, int64_t number, int64_t rank);
GCKPTI_FN gckpt_result gckpti_rank_save_start(gckpti_rank_save *save, gckpt_store *s,
                                              const char *path);
GCKPTI_FN gckpt_result gckpti_rank_save_part(gckpti_rank_save *save);
GCKPTI_FN gckpt_result gckpti_rank_save_commit(gckpti_rank_save *save);
GCKPTI_FN void gckpti_rank_save_end(gckpti_rank_save *save);
#endif
#endif

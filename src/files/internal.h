#pragma once
#include "files/files.h"
#include "store/store.h"

/* Declarations shared by the files of layer files (MANIFEST); some are in folders of features. */

#ifndef GCKPT_NO_FILES
/* ---- files/write.c ---- */
#define GCKPTI_HEADER_MAX 100000000u /* most bytes of a header, by the safetensors format */
/* For error texts: the function that loads a checkpoint of several ranks. */
#ifndef GCKPT_NO_RANKS
#define GCKPTI_RANKS_LOAD "gckpt_ranks_load"
#else
#define GCKPTI_RANKS_LOAD "gckpt_ranks_load, which this build leaves out (GCKPT_NO_RANKS)"
#endif
/* A request to save: a store, or one rank's part of it. */
typedef struct {
    gckpt_store *store;
    const gckpt_file_desc *desc;
    int rank, ranks;
    uint64_t *hashes;           /* for a part: receives its tensors' hashes; else NULL */
    const uint64_t *total_hash; /* hash of all data, for the metadata; or NULL */
} gckpti_save_spec;

/* ---- files/axes.c ---- */
/* Result of desc.axes for a parameter. */
typedef struct {
    int count;                          /* of axes; 0: desc.axes gives no order */
    unsigned char permuted;             /* nonzero if the file has another order of axes */
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
    const char *name;       /* name of the tensor without its suffix (#state0, ..) */
    signed char slot;       /* index of its suffix in gckpti_suffixes, or GCKPTI_VALUES */
    signed char type;       /* a gckpt_storage, or -1 for any other type */
    signed char states;     /* of values: number of states in the file */
    signed char old_states; /* of values: number of states that the store had */
    signed char optimiser;  /* as in gckpti_param, or -1 if wrong */
    unsigned char ignored;  /* nonzero: not loaded; only its offsets are checked */
    unsigned char axes_unknown; /* neither file nor program defines the order of its axes */
    gckpti_axis_order order;
    uint64_t updates;    /* as in gckpti_param */
    size_t param;        /* index in the store; SIZE_MAX until it is known */
    unsigned char *dest; /* where data are read to, or NULL if they are only compared */
    gckpt_shape shape;
    int64_t offsets[2];
} gckpti_file_entry;

typedef struct gckpti_loader gckpti_loader;

/* Functions for a checkpoint of several files. Both set an error and return 0 if they fail. */
typedef struct {
    int (*read_index)(gckpti_loader *load); /* sets load->header in the index's text */
    int (*open_parts)(gckpti_loader *load); /* sets load->read, which reads, or skips (to NULL) */
} gckpti_source;

struct gckpti_loader {
    gckpt_store *store;
    const gckpt_file_desc *desc;
    const gckpti_source *source;     /* NULL for a single file */
    struct gckpti_rank_files *parts; /* the files of that source */
    gckpt_result result;
    gckpt_read_fn read; /* NULL if the file is in memory, at `file` */
    void *user;
    const unsigned char *file;
    size_t bytes_read;        /* bytes of the file read so far */
    char *header, *pos, *end; /* the header, the next character, the header's end */
    int64_t data_bytes;
    gckpti_file_entry *entries;
    size_t count, capacity;
    size_t total;         /* all entries; ignored ones come after `count` */
    size_t old_params;    /* parameters that the store had before; if 0, the file's are created */
    size_t old_notes;     /* notes that the store had before; later ones are from the file */
    unsigned char *spare; /* new data for arrays that exist, until everything is read */
    size_t spare_bytes;
    float *row_buf;             /* the end of `spare`: a row that is being quantised */
    int own_format;             /* nonzero if this library wrote the file */
    unsigned char axes_unknown; /* the file does not define the order of axes */
    unsigned char verify_sum;   /* nonzero to compare the data's hash with `file_hash` */
    uint64_t file_hash;         /* hash of the data by the file's metadata */
    uint64_t hash;              /* hash of the current tensor's bytes so far */
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
/* ---- dist/load.c ---- */
typedef struct {
    FILE *file; /* NULL if not open */
    const char *name;
    int64_t bytes, hash;              /* bytes and hash of the file by the index */
    int64_t data, tensors;            /* bytes and number of the shards in this file */
    int64_t read_bytes, read_tensors; /* bytes and number of shards before the current one */
    int verified;                     /* nonzero: the file agrees with the index */
} gckpti_rank_file;

typedef struct gckpti_rank_files {
    int64_t number; /* number of the save, or 0 */
    gckpti_rank_file *files;
    size_t count, capacity; /* entries of `files`: one for each rank */
    char *path;             /* path of the index; also of other files, written at name_offset */
    size_t name_offset, path_size;
    size_t entry;              /* index of the entry that is being read */
    gckpti_rank_file *current; /* the file whose shard is being read */
    int64_t pos, end;          /* position in all data; end of the current shard */
    uint64_t hash;             /* hash of the shard up to pos */
} gckpti_rank_files;

/* ---- dist/save.c ---- */
enum { GCKPTI_PART_NAME = 64 }; /* most bytes of a suffix such as ".7-0.safetensors" */

typedef struct {
    gckpt_store *store;
    const char *path;
    gckpti_save_spec spec;   /* content of this rank's file */
    gckpti_rank_files old;   /* the existing index; ranks except 0 use only its paths */
    gckpti_rank_file *files; /* files of all ranks; only rank 0 has them */
    int64_t number;          /* number of this save */
    int damaged;             /* the existing index is damaged: no index, or unreadable */
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
/* dist/load.c */
GCKPTI_FN int gckpti_parts_path(gckpti_rank_files *parts, gckpti_allocator *memory,
                                const char *path);
GCKPTI_FN int gckpti_load_index(gckpti_loader *load);
GCKPTI_FN int gckpti_part_hash(FILE *f, int64_t data, int64_t tensors, int64_t *bytes,
                               int64_t *hash);
/* dist/save.c */
GCKPTI_FN char *gckpti_part_path(gckpti_rank_save *save, int64_t number, int64_t rank);
GCKPTI_FN gckpt_result gckpti_rank_save_start(gckpti_rank_save *save, gckpt_store *s,
                                              const char *path);
GCKPTI_FN gckpt_result gckpti_rank_save_part(gckpti_rank_save *save);
GCKPTI_FN gckpt_result gckpti_rank_save_commit(gckpti_rank_save *save);
GCKPTI_FN void gckpti_rank_save_end(gckpti_rank_save *save);
#endif
#endif

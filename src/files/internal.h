#pragma once
#include "files/files.h"
#include "store/store.h"

/* Declarations shared by the files of layer files (MANIFEST); some are in folders of features. */

#ifndef GCKPT_NO_FILES
/* ---- files/write.c ---- */
#define GCKPTI_HEADER_MAX 100000000u /* most bytes of a header, by the safetensors format */
/* Functions for ranks that have shards and write one file together; all make the same calls. */
typedef struct {
    void *context;
    /* Returns the failure of the lowest rank that has one, or GCKPT_OK. */
    gckpt_result (*agree)(void *context, gckpt_result result);
    /* Returns *n floats of values or a state from element `at`, which another rank may hold. */
    const float *(*gather)(void *context, const gckpti_param *q, int slot, int64_t at,
                           float buf[GCKPTI_CHUNK], int64_t *n);
    gckpt_result (*check)(void *context); /* returns an error if a gather failed */
} gckpti_group_save;

/* A request to save a store. */
typedef struct {
    gckpt_store *store;
    const gckpt_file_desc *desc;
    const gckpti_group_save *group; /* NULL unless all ranks write the file together */
} gckpti_save_spec;

#ifndef GCKPT_NO_STDIO
/* Writes a file: replaces it atomically, or leaves it unchanged. */
GCKPTI_FN gckpt_result gckpti_save(const gckpti_save_spec *spec, const char *path);
#endif

/* ---- files/header.c ---- */
/* A tensor of the file, or a metadata key "NAME#updates". */
typedef struct {
    const char *name;      /* name without its suffix (#state0, ..) */
    signed char slot;      /* index of its suffix in gckpti_suffixes, or GCKPTI_VALUES */
    signed char type;      /* a gckpt_storage */
    signed char optimiser; /* of #updates: as in gckpti_param, or -1 if wrong */
    unsigned char ignored; /* nonzero: not loaded; only its offsets are checked */
    uint64_t updates;      /* of #updates: as in gckpti_param */
    size_t param;          /* index in the store; SIZE_MAX until it is known */
    size_t spare_bytes;    /* bytes that it needs in gckpti_loader.spare */
    unsigned char *dest;   /* destination of the data, or NULL if they are only compared */
    gckpt_shape shape;
    int64_t offsets[2];
} gckpti_file_entry;

/* The entries of a parameter: values, four states, scales, #updates. */
enum { GCKPTI_FILE_SCALE = 5, GCKPTI_FILE_UPDATES, GCKPTI_FILE_ENTRIES };
typedef struct {
    gckpti_file_entry *entry[GCKPTI_FILE_ENTRIES]; /* NULL: not in the file */
    int states;                                    /* number of states that are loaded */
    int old_states;                                /* number of states that the store had */
} gckpti_file_param;

typedef struct {
    gckpt_store *store;
    const gckpt_file_desc *desc;
    gckpt_result result;
    gckpt_read_fn read; /* NULL if the file is in memory, at `file` */
    void *user;
    const unsigned char *file;
    size_t bytes_read;        /* bytes of the file read so far */
    char *header, *pos, *end; /* the header, the next character, the header's end */
    int64_t data_bytes;
    gckpti_file_entry *entries; /* sorted by offset once the header is parsed */
    size_t count, capacity;
    gckpti_file_param *params; /* for each parameter of the store, also new ones */
    size_t param_count;
    size_t old_params;    /* parameters that the store had; a file adds more only if 0 or mapped */
    size_t old_notes;     /* notes that the store had before; later ones are from the file */
    unsigned char *spare; /* new data for arrays that exist, until everything is read */
    size_t spare_bytes;
    int own_format;           /* nonzero if this library wrote the file */
    unsigned char verify_sum; /* nonzero to compare the data's hash with `file_hash` */
    uint64_t file_hash;       /* hash of the data according to the metadata */
    uint64_t hash;            /* hash of the current tensor's bytes so far */
    uint64_t contract, step, seed, optimiser;
} gckpti_loader;
#ifdef GCKPTI_SEPARATE_TU
/* files/write.c */
extern const gckpt_file_desc gckpti_file_plain;
GCKPTI_FN const char *gckpti_renamed(const gckpt_file_desc *d, const char *name);
GCKPTI_FN uint64_t gckpti_data_hash(const char *name, int slot, uint64_t data);
GCKPTI_FN gckpt_result gckpti_write(const gckpti_save_spec *spec, gckpt_write_fn write, void *user);
/* files/header.c */
GCKPTI_FN int gckpti_refuse(gckpti_loader *load, gckpt_result result, const gckpti_file_entry *e,
                            const char *format, ...);
GCKPTI_FN int gckpti_parse_header(gckpti_loader *load);
/* files/resolve.c */
GCKPTI_FN int gckpti_load_resolve(gckpti_loader *load);
/* files/read.c */
GCKPTI_FN gckpt_result gckpti_load(gckpt_store *store, gckpti_loader *load, size_t size,
                                   const gckpt_file_desc *desc);
#endif
#endif

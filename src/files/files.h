#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>files: save and load, as safetensors
 *
 * A file is 8 bytes: the header's length, little-endian; the header: JSON, padded with spaces to 8
 * bytes; the data: little-endian, one tensor after the other (the format is described at
 * https://huggingface.co/docs/safetensors):
 *
 *     {"__metadata__":{"format":"gradckpt","contract":"2","step":"20","seed":"0",
 *       "optimiser":"1","b#updates":"3:15"},
 *      "w":{"dtype":"F32","shape":[8,16],"data_offsets":[0,512]},"w#state0":{...},"w#state1":{...}}
 *
 * Parameters stand in creation order, each followed by the scales of I8 and its optimiser state; so
 * the name of a parameter must not end in #scale, nor in #state and a digit. The optimiser is
 * gckpt_optimiser + 1 (0: none yet). State is that of `optimiser` and has seen `step` updates;
 * where it is not, "NAME#updates" says whose it is and how many it has seen, b's above of MOMENTUM,
 * 15. (By name, since programs that write the file anew may order it anew; version 0.1 had no such
 * keys.) "convolution_axes" is "HWIO" in what other tools are to read, "unsaid" in what was read
 * from a file that did not say. All other keys are notes. State becomes the file's: what the file
 * does not have becomes zero, as before a first step. An external parameter that is not writable
 * must hold the file's bits already. Files of other programs (any other format) leave step and seed
 * alone.
 *
 * Loading reads and checks the header before it changes anything. Then what the store lacks is
 * created, raw, and data are read to where they belong; those of arrays that the store had go to a
 * spare block until all is read. So a failure gives back what is new, and the rest is untouched;
 * pointers to values and state stay valid. From a caller's block (gckpt_memory.memory) the spare
 * and the header's bytes are taken and given back; the header's stay taken when parameters, state
 * or notes had to be created, or values in a partial load, and what gckpt_ranks_load needs for its
 * files. Where a store has shares only, these are read, and the rest is passed over.
 * ============================================================================================== */

#ifndef GCKPT_NO_FILES
/* ---- files/write.c ---- */
#define GCKPTI_HEADER_MAX 100000000u /* bytes; the format's limit */
#ifdef GCKPTI_ROOMS
extern const char gckpti_part_format[];
/* What is asked for where no desc is given. */
extern const gckpt_file_desc gckpti_file_plain;
#endif
/* What reads a checkpoint by several ranks, for texts. */
#if GCKPTI_WITH_RANKS
#define GCKPTI_RANKS_LOAD "gckpt_ranks_load"
#else
#define GCKPTI_RANKS_LOAD "gckpt_ranks_load, which this build leaves out (GCKPT_NO_RANKS)"
#endif
/* What is saved: a store, or one rank's part of it. */
typedef struct {
    gckpt_store *store;
    const gckpt_file_desc *desc;
    int rank, ranks;
    uint64_t *sums; /* of a part: room for those of its tensors; NULL: it is none */
} gckpti_saving;

/* A text with what JSON wants escaped. */
GCKPTI_FN void gckpti_sink_name(gckpti_sink *k, const char *name);

/* The JSON of all tensors. Their data lie in this order, too, but those of 4 bytes an element come
 * first, those of 1 last: so all are aligned. Returns the bytes of data; *tensors: how many. */
GCKPTI_FN int64_t gckpti_sink_header(gckpti_sink *k, const gckpti_saving *v, size_t *tensors);

/* Writes a gckpti_saving. */
GCKPTI_FN gckpt_result gckpti_write(const void *what, gckpt_write_fn write, void *user);

/* ---- files/header.c ---- */
typedef struct {
    const char *name;      /* of the tensor; of state and what else has a suffix, without that */
    signed char slot;      /* see gckpti_suffixes */
    signed char type;      /* as a gckpt_storage; -1: another one */
    signed char states;    /* of values: how many states they have in the file */
    signed char had;       /* of values: how many the store had */
    signed char optimiser; /* as in gckpti_param; -1: wrong */
    unsigned char ignored; /* nothing of it counts but where its data are */
    uint64_t updates;      /* as in gckpti_param */
    size_t param;          /* index in the store; SIZE_MAX: not known yet */
    unsigned char *to;     /* where the data are read to; NULL: they are compared */
    gckpt_shape shape;
    int64_t offsets[2];
} gckpti_saved;

typedef struct gckpti_loader gckpti_loader;

/* A checkpoint of several files; each function refuses what is wrong, and is 0 then. */
typedef struct {
    int (*index)(gckpti_loader *l); /* makes the header of the text that was read */
    int (*begin)(
        gckpti_loader *l);        /* the tensors are known; data are read by `taken` from now on */
    int (*end)(gckpti_loader *l); /* all that is needed was read */
} gckpti_source;

struct gckpti_loader {
    gckpt_store *store;
    const gckpt_file_desc *desc;
    const gckpti_source *source;     /* NULL: it is one file */
    struct gckpti_rank_files *parts; /* of the source */
    gckpt_result result;
    gckpt_read_fn read; /* NULL: file lies in memory */
    void *user;
    const unsigned char *file;
    size_t taken;            /* bytes of the file that were read */
    char *header, *at, *end; /* end: of the header */
    int64_t data_bytes;
    gckpti_saved *entries;
    size_t count, capacity;
    size_t had;           /* parameters that the store had; 0: it gets all */
    size_t notes;         /* that it had; those behind them are the file's */
    unsigned char *spare; /* for what the store has already, until all is read */
    size_t spare_bytes;
    float *row;           /* at its end: room for a row that is packed */
    int ours;             /* written by this library */
    unsigned char unsaid; /* neither file nor program says the order of convolutions' axes */
    uint64_t contract, step, seed, optimiser;
};

/* Records `load: tensor "name": ...` and which parameter it is for if that is called otherwise.
 * Returns 0. */
GCKPTI_FN int gckpti_refuse(gckpti_loader *l, gckpt_result result, const gckpti_saved *e,
                            const char *format, ...);
GCKPTI_FN int gckpti_json_fail(gckpti_loader *l, const char *what);
GCKPTI_FN void gckpti_json_space(gckpti_loader *l);

/* The next key of an object and its ':' (*count: 0 before the first); NULL: it ends or is wrong. */
GCKPTI_FN char *gckpti_json_key(gckpti_loader *l, int *count);

/* A whole number < 2^64 without sign or leading zeros: returns where it ends, NULL when wrong. */
GCKPTI_FN char *gckpti_digits(char *s, const char *end, uint64_t *value);

/* [a,b,...], `least` to `most` numbers: how many; -1 when wrong. */
GCKPTI_FN int gckpti_json_numbers(gckpti_loader *l, int64_t *v, int least, int most);

/* ---- files/read.c ---- */
GCKPTI_FN uint64_t gckpti_little(const unsigned char bytes[8]);

/* ---- files/path.c ---- */
#ifndef GCKPT_NO_STDIO
typedef struct {
    FILE *f;
    int error;         /* errno of the first failure, or 0 */
    const char *stage; /* of a save: what it could not do, and what to look at */
} gckpti_file;

GCKPTI_FN void gckpti_file_try(gckpti_file *file, int failed);

/* Opens a file to read it; a pipe is not waited for. NULL: errno says why, of a folder, too. */
GCKPTI_FN FILE *gckpti_file_open(const char *path);

/* Opens it, and says how many bytes it has. Of an index, those of what may be one, by its size and
 * how it begins; else 0: it is not read. */
GCKPTI_FN size_t gckpti_file_begin(gckpti_file *file, const char *path, int index);
GCKPTI_FN size_t gckpti_file_read(void *user, void *bytes, size_t size);
#if GCKPTI_POSIX
/* Follows links from `path`, in `room` bytes, to what they end at, be it there or not. 0: errno. */
GCKPTI_FN int gckpti_follow(char *path, size_t room);
#endif

static const char gckpti_no_file[] = "replace a folder, device or pipe; is the path right";

/* Removes a temporary file, if no save has it any more. */
GCKPTI_FN int gckpti_remove_left(const char *name);
typedef gckpt_result (*gckpti_body)(const void *what, gckpt_write_fn write, void *user);
GCKPTI_FN gckpt_result gckpti_save_error(void *object, const gckpti_file *file, const char *path,
                                         int placed);

/* Saves what `body` writes of `what`; errors are those of `object` (NULL: without a text). A file
 * that is new has the permissions of `like`, if that is there. *placed: it is in place, even if
 * there is an error. */
GCKPTI_FN gckpt_result gckpti_save_like(void *object, gckpti_allocator *memory, const char *path,
                                        const char *like, gckpti_body body, const void *what,
                                        int *placed);
GCKPTI_FN gckpt_result gckpti_save(void *object, gckpti_allocator *memory, const char *path,
                                   gckpti_body body, const void *what);
GCKPTI_FN int64_t gckpti_file_size(FILE *f);
GCKPTI_FN gckpt_result gckpti_load_path(gckpt_store *store, gckpti_loader *l, const char *path,
                                        const gckpt_file_desc *desc);
#endif
#endif

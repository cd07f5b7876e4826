#pragma once
#include "store/store.h"

/* =================================================================================================
 * >>files: save and load, as safetensors
 *
 * A file begins with 8 bytes, the header's length, little-endian. Then come the header, which is
 * JSON padded with spaces to a multiple of 8 bytes, and the data, little-endian, one tensor after
 * the other (the format is described at https://huggingface.co/docs/safetensors):
 *
 *     {"__metadata__":{"format":"gradckpt","contract":"5","step":"20","seed":"0",
 *       "optimiser":"1","data_fnv1a":"1447","b#updates":"3:15"},
 *      "w":{"dtype":"F32","shape":[8,16],"data_offsets":[0,512]},"w#state0":{...},"w#state1":{...}}
 *
 * Parameters are in creation order, each followed by its optimiser state. A parameter's name must
 * not end in #state and a digit. "optimiser" is gckpt_optimiser + 1, or 0 if none. All state is of
 * that optimiser after `step` updates, except where "NAME#updates" has another optimiser and number
 * of updates: above, b's state is that of MOMENTUM after 15 updates.
 * "data_fnv1a", the sum of gckpti_data_hash over tensors, is optional. Other keys are notes.
 * The state of desc.state_bytes is one tensor "NAME#state0" of U8, in the machine's byte order.
 * Loading replaces all state: state that is not in the file becomes zero. An external parameter
 * that is not writable must hold the file's bits already. Files of other programs (any other
 * format) do not change step and seed.
 *
 * Loading reads and checks the header before it changes anything. Then it creates parameters that
 * are missing, and reads data to their destination, or (arrays that the store had) to a spare block
 * until all is read. So a failure frees new objects and leaves the rest unchanged; pointers to
 * values and state stay valid. In a caller's block (gckpt_memory.memory), the bytes of the spare
 * block become free again; so do those of the header, unless parameters, state, notes or (in a
 * partial load) values were created. A store of parts reads these and skips the rest.
 * ============================================================================================== */

#ifndef GCKPT_NO_FILES
/* ---- files/write.c ---- */
#define GCKPTI_HEADER_MAX 100000000u /* most bytes of a header, by the safetensors format */
/* A request to save a store. */
typedef struct {
    gckpt_store *store;
    const gckpt_file_desc *desc;
    gckpt_exec *exec; /* NULL, unless processes write their parts to one file */
} gckpti_save_spec;

/* The gckpt_file_desc that is used if the caller passes NULL. */
static const gckpt_file_desc gckpti_file_plain = { NULL, NULL, 0, 0, 0, GCKPT_STORAGE_F32 };

/* Writes the store; if `write` is NULL, only sends its parts to the process that writes. */
GCKPTI_FN gckpt_result gckpti_write(const gckpti_save_spec *spec, gckpt_write_fn write, void *user);

/* ---- files/header.c ---- */
/* A tensor of the file, or a metadata key "NAME#updates". */
typedef struct {
    const char *name;       /* name without its suffix (#state0, ..) */
    signed char slot;       /* index of its suffix in gckpti_suffixes, or GCKPTI_VALUES */
    signed char type;       /* a gckpt_storage */
    signed char optimiser;  /* of #updates: as in gckpti_param, or -1 if wrong */
    signed char states;     /* of values: number of states that are loaded */
    signed char old_states; /* of values: number of states that the store had */
    unsigned char ignored;  /* nonzero: not loaded; only its offsets are checked */
    unsigned char bytes;    /* nonzero: U8, a state of desc.state_bytes */
    uint64_t updates;       /* of #updates: as in gckpti_param */
    size_t param;           /* index in the store; SIZE_MAX until it is known */
    size_t spare_bytes;     /* bytes that it needs in gckpti_loader.spare */
    unsigned char *dest;    /* destination of the data, or NULL if they are only compared */
    gckpt_shape shape;
    int64_t offsets[2];
} gckpti_file_entry;

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
    gckpti_file_entry *entries; /* sorted by parameter and slot, or by offset */
    size_t count, capacity;
    size_t old_params;    /* parameters that the store had; a file adds more only if 0 or mapped */
    size_t old_notes;     /* notes that the store had before; later ones are from the file */
    unsigned char *spare; /* new data for arrays that exist, until everything is read */
    size_t spare_bytes;
    int resumes;              /* nonzero to load step, seed and updates, which own files have */
    unsigned char verify_sum; /* nonzero to compare the data's hash with the metadata's */
    uint64_t hash;            /* hash of the current tensor's bytes so far */
    uint64_t numbers[GCKPTI_METADATA_KEYS]; /* values of gckpti_metadata_keys */
} gckpti_loader;
#endif

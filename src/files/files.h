#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>files: save and load, as safetensors
 *
 * A file is 8 bytes: the header's length, little-endian; the header: JSON, padded with spaces to 8
 * bytes; the data: little-endian, one tensor after the other (the format is described at
 * https://huggingface.co/docs/safetensors):
 *
 *     {"__metadata__":{"format":"gradckpt","contract":"3","step":"20","seed":"0",
 *       "optimiser":"1","data_fnv1a":"1447","b#updates":"3:15"},
 *      "w":{"dtype":"F32","shape":[8,16],"data_offsets":[0,512]},"w#state0":{...},"w#state1":{...}}
 *
 * Parameters stand in creation order, each followed by the scales of I8 and its optimiser state; so
 * the name of a parameter must not end in #scale, nor in #state and a digit. The optimiser is
 * gckpt_optimiser + 1 (0: none yet). State is that of `optimiser` and has seen `step` updates;
 * where it is not, "NAME#updates" says whose it is and how many it has seen, b's above of MOMENTUM,
 * 15. (By name, since programs that write the file anew may order it anew; version 0.1 had no such
 * keys.) "data_fnv1a" is gckpti_data_hash over all tensors; a file need not have it.
 * "convolution_axes" is "HWIO" in what other tools are to read, "unsaid" in what was read from a
 * file that did not say, or is written in another order. All other keys are notes. State becomes
 * the file's: what the file does not have becomes zero, as before a first step. An external
 * parameter that is not writable must hold the file's bits already. Files of other programs (any
 * other format) leave step and seed alone.
 *
 * Loading reads and checks the header before it changes anything. Then what the store lacks is
 * created, raw, and data are read to where they belong; those of arrays that the store had go to a
 * spare block until all is read. So a failure gives back what is new, and the rest is untouched;
 * pointers to values and state stay valid. From a caller's block (gckpt_memory.memory) the spare
 * and the header's bytes are taken and given back; the header's stay taken when parameters, state
 * or notes had to be created, or values in a partial load, and what gckpt_ranks_load needs for its
 * files. Where a store has shares only, these are read, and the rest is passed over.
 * ============================================================================================== */

/* ---- files/path.c ---- */
#ifndef GCKPT_NO_STDIO
typedef struct {
    FILE *f;
    int error;         /* errno of the first failure, or 0 */
    const char *action; /* of a save: what it could not do, and what to look at */
} gckpti_file;

/* What a file is to have: what `body` writes of `what`. */
typedef struct {
    void *object; /* has the errors; NULL: results without a text */
    gckpti_allocator *memory;
    gckpt_result (*write)(const void *what, gckpt_write_fn write, void *user);
    const void *context;
    const char *mode_of; /* a file that is new has the permissions of this one, if that is there */
    int placed;       /* 1 once in place, also after an error; -1 if no file was there; else 0 */
} gckpti_content;

/* Replaces the file there as a whole, or leaves it as it is. */
GCKPTI_FN gckpt_result gckpti_save(gckpti_content *content, const char *path);
#endif

#pragma once
#include "base/base.h"

/* =================================================================================================
 * >>files: save and load, as safetensors
 *
 * A file begins with 8 bytes, the header's length, little-endian. Then come the header, which is
 * JSON padded with spaces to a multiple of 8 bytes, and the data, little-endian, one tensor after
 * the other (the format is described at https://huggingface.co/docs/safetensors):
 *
 *     {"__metadata__":{"format":"gradckpt","contract":"3","step":"20","seed":"0",
 *       "optimiser":"1","data_fnv1a":"1447","b#updates":"3:15"},
 *      "w":{"dtype":"F32","shape":[8,16],"data_offsets":[0,512]},"w#state0":{...},"w#state1":{...}}
 *
 * Parameters are in creation order, each followed by the scales of I8 and its optimiser state; so a
 * parameter's name must not end in #scale, nor in #state and a digit. "optimiser" is
 * gckpt_optimiser + 1, or 0 if none. All state is of that optimiser after `step` updates, except
 * where "NAME#updates" has another optimiser and number of updates: above, b's state is that of
 * MOMENTUM after 15 updates. (Version 0.1 had no such keys; other programs may reorder them.)
 * "data_fnv1a", the sum of gckpti_data_hash over tensors, is optional. Other keys are notes.
 * Loading replaces all state: state that is not in the file becomes zero. An external parameter
 * that is not writable must hold the file's bits already. Files of other programs (any other
 * format) do not change step and seed.
 *
 * Loading reads and checks the header before it changes anything. Then it creates parameters that
 * are missing, and reads data to their destination, or (arrays that the store had) to a spare block
 * until all is read. So a failure frees new objects and leaves the rest unchanged; pointers to
 * values and state stay valid. In a caller's block (gckpt_memory.memory), the bytes of the spare
 * block become free again; so do those of the header, unless parameters, state, notes or (in a
 * partial load) values were created. A sharded store reads its shards and skips the rest.
 * ============================================================================================== */

#ifndef GCKPT_NO_OFFLOAD
/* ---- Offloading: AUTO, OPTIMAL and frontiers may copy values and saved data to slower memory and
 * back (GCKPT_OFFLOAD, GCKPT_RELOAD) instead of recomputing them (manual, 7). Plans that update in
 * the backward offload nothing, as a failed copy would come too late. A GCKPT_SCHEDULE may have
 * reloads; their offloads are inserted. If overlap is 0, ops wait for copies. Else copies overlap
 * computation, one at a time in the order they begin. Cost is then a time, which plans minimise: an
 * op takes its cost, a use waits for its reload, and the instruction after a value's last use waits
 * for its offload. Bytes of pending copies (until GCKPT_OFFLOAD_DONE, or by early reloads) count.
 *
 * In gckpt_exec_desc, offload copies `bytes` bytes to position `at` of a slower memory (file, chip)
 * of gckpt_plan_info.offloaded bytes, reload copies them back; both return the bytes done. If that
 * is less, the step ends with E_FILE and changes nothing. If both are NULL, host memory is used. If
 * wait is not NULL, they may only begin a copy (by a thread, by DMA) and return `bytes`; copies are
 * done one at a time in that order. wait returns when all except the last `later` are done: 0, or
 * nonzero if one failed. It is then called with later 0, and the step ends with E_FILE. No copy is
 * pending after a call of the executor. If the backend has its own memory, the executor waits for
 * each copy at once. ---- */
#endif
/* gckpt_plan_desc.offload */
typedef struct {
    size_t bytes;  /* of slower memory that may be used; 0 (default) offloads nothing */
    uint64_t cost; /* gckpt_cost of copying 2^20 bytes one way; rounded up; default 0 */
    int overlap;   /* if nonzero, copies overlap computation; default 0 */
    /* If nonzero, the optimiser state of a backend with its own memory stays in the host's memory;
     * an update copies 2^20 elements of it at a time into workspace and back. Its bytes are of kind
     * GCKPT_BYTES_HOST_STATE. If 0 (default), it is in the backend's memory. */
    int state;
} gckpt_offload_options;

/* gckpt_plan_desc.offload */
typedef struct {
    /* Bytes of slower memory to which AUTO, OPTIMAL and frontiers may offload values
     * and saved data instead of recomputing them (manual, 7); 0 (default) offloads nothing.
     * Plans that update in the backward offload nothing, as a failed copy would come too
     * late. */
    size_t bytes;
    /* Cost of copying 2^20 bytes one way, as ranks.link_cost; rounded up. Default 0. */
    uint64_t cost;
    /* If nonzero, offload copies overlap computation, one at a time in the order they begin.
     * Cost is then a time, which plans minimise: an op takes its cost, a use waits for its
     * reload, and the instruction after a value's last use waits for its offload. Bytes of
     * pending copies (until GCKPT_OFFLOAD_DONE, or by early reloads) count. If 0 (default), ops
     * wait. */
    int overlap;
} gckpt_offload_options;

/* gckpt_plan_desc.bf16 */
typedef struct {
    gckpt_precision precision; /* of activations and their gradients; default GCKPT_FP32 */
    /* If nonzero, in bf16 plans, matmul, linear and linear_cross_entropy read their second
     * operand, if it is an fp32 parameter, from a bf16 copy: faster, same bits, 2 bytes an
     * element, rounded up to 64 (GCKPT_BYTES_COPIES). The executor owns and updates the copies.
     * With a budget, a plan has copies only if they fit after all else. A program that writes
     * values must call gckpt_store_push. Excludes external, staged, sharded parameters,
     * backends, frontiers. Default 0. */
    int copy_weights;
} gckpt_bf16_options;

GCKPT_API uint16_t gckpt_to_bf16(float x);   /* to nearest even; subnormals give 0 */
GCKPT_API float gckpt_from_bf16(uint16_t x); /* converts exactly */

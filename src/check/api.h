#ifndef GCKPT_NO_CHECK
/* >>api-check ---------------------------------------------------------------------------------- */
typedef struct {
    double worst;      /* greatest relative difference among resolved directions */
    double resolution; /* coarsest resolution: smaller relative differences may be missed */
    int directions;    /* two for each trainable parameter */
    int unresolved;    /* directions whose differences are lost in the loss's rounding */
    const char *name;  /* parameter of `worst` (UNRESOLVED: of `resolution`); the executor's */
} gckpt_check;
/* Compares the gradient of every trainable parameter with central differences of the loss, along
 * the gradient and along a random direction. Returns E_DATA if one differs by more than 0.01, or if
 * the first loss counts nothing in these rows; GCKPT_UNRESOLVED if none does but some directions
 * are lost in rounding: a loss in f32 that is large compared with its changes is too coarse, and
 * even twice or half the right gradient could pass. The error text has names and figures. A
 * gradient that is 0 except for rounding (cancelled by a norm or softmax) is right if the loss
 * shows no slope there and is fine enough. Restores weights to the bit. check may be NULL. */
GCKPT_API gckpt_result gckpt_check_gradients(gckpt_exec *exec, const gckpt_feed *feeds, int count,
                                             int64_t rows, gckpt_check *check);
#endif /* GCKPT_NO_CHECK */

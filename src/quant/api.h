/* The storage of a frozen parameter's values (gckpt_store_quantise). Ops read them as floats. */
typedef enum {
    GCKPT_STORAGE_F32,
    GCKPT_STORAGE_BF16, /* 2 bytes: the upper half of the float */
    GCKPT_STORAGE_F16,  /* 2 bytes: IEEE binary16 */
    /* Blocks of 32 values along the last axis (the last one may be short): their scale as a
     * binary16, low byte first; then a signed byte each. A value is byte * scale. (ggml's Q8_0.) */
    GCKPT_STORAGE_I8,
    /* Whole blocks of 32: the scale; 16 bytes whose low halves are values 0 to 15 and whose high
     * halves are values 16 to 31; the zero point, an unsigned byte. A value is
     * (half - zero / 16) * scale. (With a zero point of 128, ggml's Q4_0.) */
    GCKPT_STORAGE_I4
} gckpt_storage;
/* The dequantisation of a parameter to n floats. */
typedef struct {
    gckpt_storage storage; /* format of the values; not F32 */
    const void *quantised; /* values in that format */
    int64_t n;             /* number of elements of the parameter */
    int64_t row;           /* length of its last axis: a row begins with a block */
    float *to;
} gckpt_dequantisation;
#ifndef GCKPT_NO_QUANT
/* Converts the values of matching parameters, which must be frozen (else E_ARG), to `storage`: all
 * parameters or, after an error, none. Missing values are later created in this format; converting
 * existing ones holds two copies. Results depend on the storage but not on the plan. An op reads
 * the stored format itself or (manual, 9) a FORWARD of the parameter dequantises the values into
 * the arena. BF16 and F16 round to nearest even; F16 takes values up to 65504 (else E_DATA). I8
 * and I4 (manual, 5n) take values up to 8319008 and 524032 (else E_DATA); vectors stay F32, and I4
 * makes matrices whose last axis is not a multiple of 32 I8. The parameters lose their optimiser
 * state and stay frozen until they are stored as F32 again; external values are copied into the
 * store's memory. Invalidates pointers to values and state, and earlier plans; abandons a step
 * under way. */
GCKPT_API gckpt_result gckpt_store_quantise(gckpt_store *store, const char *pattern,
                                            gckpt_storage storage);
/* Adds an external parameter with values in the format `storage`, aligned to 2 bytes (I8 and I4: at
 * any address). */
GCKPT_API gckpt_result gckpt_store_external_quantised(gckpt_store *store, const char *name,
                                                      gckpt_shape shape, gckpt_storage storage,
                                                      const void *values);
#endif

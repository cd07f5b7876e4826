#ifndef GCKPT_NO_QUANT
/* Converts the values of matching parameters, which must be frozen (else E_ARG), to `storage`: all
 * parameters or, after an error, none. Missing values are later created in this format; converting
 * existing ones holds two copies. Results depend on the storage but not on the plan. An op reads
 * the stored format itself or (manual, 9) a FORWARD of the parameter dequantises the values into
 * the arena. BF16 and F16 round to nearest even; F16 takes values up to 65504 (else E_DATA). I8
 * stores value / scale with scale = the row's greatest |value| / 127; vectors stay F32. I4 takes
 * the best of six scales for each block (manual, 5n), values up to 524032 (else E_DATA); vectors
 * stay F32, and a last axis that is not a multiple of 32 becomes I8. The parameters lose their
 * optimiser state and stay frozen until they are stored as F32 again; external values are copied
 * into the store's memory. Invalidates pointers to values and state, and earlier plans; abandons a
 * step under way. */
GCKPT_API gckpt_result gckpt_store_quantise(gckpt_store *store, const char *pattern,
                                            gckpt_storage storage);
/* Adds an external parameter with values in the format `storage`, aligned to the size of a value
 * (I4: at any address). scales: with I8 a float a row, else NULL. */
GCKPT_API gckpt_result gckpt_store_external_quantised(gckpt_store *store, const char *name,
                                                      gckpt_shape shape, gckpt_storage storage,
                                                      const void *values, const float *scales);
#endif

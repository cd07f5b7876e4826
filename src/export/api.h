#ifndef GCKPT_NO_EXPORT
/* Prints the plan as a read-only C constant, `const gckpt_plan NAME`, to be compiled (C99, C++11)
 * in the file with the implementation, after the #include (manual, 8). An enum names ids:
 * NAME_tokens for input "tokens", and likewise for desc.fetch. NAME_store_bytes and NAME_exec_bytes
 * are sizes of blocks that suffice for a store of its parameters and for an executor whose desc
 * only sets memory. A user's op is printed as the variable named as the op, which must be declared
 * before; attributes as gckpt_apply says. Firmware needs desc.kernels.plain and the seed. If the
 * plan cannot be printed, returns E_ARG and prints an #error with the reason; if the callback
 * fails, E_FILE. */
GCKPT_API gckpt_result gckpt_plan_c(const gckpt_plan *plan, const char *name, gckpt_write_fn write,
                                    void *user);
/* Prints a store's parameters as C constants, to be compiled next to the plan, and `gckpt_result
 * NAME_bind(gckpt_store *store)`, which adds them to an empty store in their order and storage, to
 * the bit; call it before gckpt_plan_params. Frozen ones stay in flash (gckpt_store_external),
 * others are copied; the block needs NAME_flash_bytes less than NAME_store_bytes of a plan that
 * reads all. Optimiser state, step count and notes are not printed. Returns E_FILE and E_ARG as
 * gckpt_plan_c; also E_ARG without parameters, for several processes, and for missing values
 * (gckpt_store_get) if quantised or, with GCKPT_NO_TRAINING, random. */
GCKPT_API gckpt_result gckpt_store_c(const gckpt_store *store, const char *name,
                                     gckpt_write_fn write, void *user);
#endif /* GCKPT_NO_EXPORT */

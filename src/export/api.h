#ifndef GCKPT_NO_EXPORT
/* Prints the plan as a read-only C constant, `const gckpt_plan NAME`, to be compiled (C99, C++11)
 * in the file with the implementation, after the #include (manual, 8). An enum names ids:
 * NAME_tokens for input "tokens", and likewise for desc.fetch. NAME_store_bytes and NAME_exec_bytes
 * are sizes of blocks that suffice for a store of its parameters and for an executor whose desc
 * only sets memory. A user's op is printed as the variable named as the op, which must be declared
 * before; attributes as gckpt_apply says. Firmware needs desc.kernels.plain and the seed. If the
 * plan cannot be printed, returns E_ARG and prints an #error with the reason; if the callback
 * fails, E_FILE. (examples/weights.h prints parameters.) */
GCKPT_API gckpt_result gckpt_plan_c(const gckpt_plan *plan, const char *name, gckpt_write_fn write,
                                    void *user);
#endif /* GCKPT_NO_EXPORT */

#ifndef GCKPT_NO_FILES
/* Options for files of other programs and for parts of a store. NULL or all 0 is the default. */
typedef struct {
    /* When reading, returns the name of the parameter for the file's tensor `name`; when writing,
     * the name in the file for parameter `name`. NULL leaves the tensor out, whatever its type. The
     * text must live until the next call; calls may repeat a name. State follows its
     * parameter. Two tensors for one parameter are refused, as is one name for two. */
    const char *(*rename)(void *user, const char *name);
    void *user; /* for rename */
    /* If nonzero, reads and writes no optimiser state and no step count: reading keeps those of the
     * store, and a written file says "format":"pt", as other tools expect. If 0 (default), state
     * and step count are read and written. Notes always are. */
    int values_only;
    int partial;  /* loading: if nonzero, parameters that the file lacks keep their values */
    int writable; /* gckpt_store_map: if nonzero, F32 values may be trained in the mapped memory,
                   * which must be writable; if 0, they are frozen */
    gckpt_storage storage; /* format in which F32 values are written: F32, BF16, F16 (<= 65504) */
} gckpt_file_desc;
/* Write and read safetensors files with values, optimiser state, the optimiser's name and update
 * counts, step count, notes and a hash of the tensors, which loading compares (except
 * gckpt_store_map and GCKPT_NO_STDIO builds). Loading is strict and all-or-nothing: each tensor
 * must be a parameter of the store (an empty store gets all tensors) and have its shape; a wrong
 * file is refused with the reason, and the store keeps its values. So loading holds existing values
 * and state twice, but missing values (load before gckpt_exec_new) once. Returns
 * GCKPT_OTHER_CONTRACT if all is loaded but the file was written under another GCKPT_CONTRACT, so
 * that training continues with other bits. Saving by path writes a temporary file next to the
 * target, flushes it and renames it: after a power cut either the old or the new file exists (on
 * FAT with Linux only). Saving replaces the target of a symbolic link, keeps permissions, and
 * refuses folders, devices and pipes. Tensors may be F32, BF16, F16, I8 or I4 (as U8; d / 32 * 34
 * and d / 32 * 19 bytes for a last axis of d values; I8 of contract 3 and I4 of contract 4 and
 * older are refused). Reading converts a tensor to the storage of its parameter in the store, or
 * else to floats. Writing keeps the storage. desc may be NULL. */
GCKPT_API gckpt_result gckpt_store_write(gckpt_store *store, gckpt_write_fn write, void *user,
                                         const gckpt_file_desc *desc);
GCKPT_API gckpt_result gckpt_store_read(gckpt_store *store, gckpt_read_fn read, void *user,
                                        size_t size, const gckpt_file_desc *desc);
#ifndef GCKPT_NO_STDIO
GCKPT_API gckpt_result gckpt_store_save(gckpt_store *store, const char *path,
                                        const gckpt_file_desc *desc);
GCKPT_API gckpt_result gckpt_store_load(gckpt_store *store, const char *path,
                                        const gckpt_file_desc *desc);
#endif
/* Reads a file in memory (flash, mmap), which must outlive the store. Parameters that the store
 * lacks are added and point into the file where possible (data aligned to their type, little-endian
 * machine): F32 as floats, frozen unless desc.writable is nonzero, others quantised and frozen;
 * elsewhere they become floats in the store's memory. Parameters that the store has are read as by
 * gckpt_store_read. Map a model in several files one by one with desc.partial. */
GCKPT_API gckpt_result gckpt_store_map(gckpt_store *store, const void *file, size_t size,
                                       const gckpt_file_desc *desc);
#endif /* GCKPT_NO_FILES */

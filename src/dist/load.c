#include "files/internal.h"
#include "num/num.h"
#include "store/store.h"
#include "run/run.h"
#include "base/test_hooks.h"

#if !defined(GCKPT_NO_STDIO) && !defined(GCKPT_NO_RANKS)
/* ---- checkpoints of all ranks: an index, and in the same folder a file of each rank ----
 *
 *     {"gckpt":[1,7,24576],"files":{"ckpt.7-0.safetensors":[20840,5811],"ckpt.7-1.safetensors":..},
 *      "tensors":{"__metadata__":{..},"w":{"dtype":"F32",..},..},"check":"9377"}
 *
 * The index is one line. "gckpt" has the version, the save's number and the bytes of all tensors;
 * "files" the bytes and the hash of each file; "tensors" is the header of a single file; "check" is
 * the FNV-1a of the text before it. A rank's file has the rank's shard of each tensor
 * (gckpti_shard_range), in that order: with one axis unless it is the complete tensor, and with its
 * begin as "NAME#first". Then follows __sums__, the FNV-1a of each shard. A file's hash covers its
 * header and __sums__, so that changes and mixed saves are detected.
 *
 * A save takes the number after that of the existing index, whose files it does not overwrite. Each
 * rank writes its file; then rank 0 replaces the index. A killed save leaves a complete index, and
 * maybe unused files. When the new index is safe from a power cut, rank 0 removes files that it
 * does not name, if they have a rank's name and first bytes, and their stale temporary files. Other
 * files are kept, and no save takes their number (after a damaged index, that of any file).
 * ============================================================================================== */

static const char *const gckpti_separators = GCKPTI_POSIX ? "/" : "/\\:";

/* Sets parts->path and name_offset. Returns 0 without memory, or (see errno) if links are bad. */
GCKPTI_FN int gckpti_parts_path(gckpti_rank_files *parts, gckpti_allocator *memory,
                                const char *path)
{
    parts->path_size = strlen(path) + 1024;
    parts->path = (char *)gckpti_new(memory, 2 * parts->path_size, 1);
    errno = ENOMEM;
    if (!parts->path)
        return 0;
    memcpy(parts->path, path, strlen(path));
#if GCKPTI_POSIX
    if (!gckpti_follow_links(parts->path, parts->path_size - GCKPTI_PART_NAME))
        return 0;
#endif
    for (size_t i = 0; parts->path[i]; i++)
        if (strchr(gckpti_separators, parts->path[i]))
            parts->name_offset = i + 1;
    return 1;
}

static void gckpti_parts_close(gckpti_rank_files *parts)
{
    for (size_t i = 0; i < parts->count; i++)
        if (parts->files[i].file) {
            fclose(parts->files[i].file);
            parts->files[i].file = NULL;
        }
}

static int gckpti_index_key(gckpti_loader *load, int *n, const char *key)
{
    const char *found = gckpti_json_key(load, n);
    return found && (!strcmp(found, key) || gckpti_json_fail(load, "another key expected"));
}

/* Checks that the index ends with the hash of its text, and cuts that hash off. */
static int gckpti_index_check(gckpti_loader *load)
{
    char check[48] = "";
    const size_t most = sizeof check - 1;
    char *tail = load->end;
    gckpti_text t = { check, most };
    while (tail > load->pos && (size_t)(load->end - tail) < most &&
           (tail == load->end || *tail != ','))
        tail--;
    gckpti_text_add(&t, ",\"check\":\"%u\"}\n",
                    gckpti_fnv(GCKPTI_FNV_START, load->pos, (size_t)(tail - load->pos)));
    if (strlen(check) != (size_t)(load->end - tail) || memcmp(check, tail, strlen(check)))
        return gckpti_refuse(load, GCKPT_E_DATA, NULL,
                             "empty, damaged, or not the index of a checkpoint by ranks; "
                             "gckpt_store_load reads files of one process");
    load->end = tail;
    return 1;
}

/* Reads the begin of the index: version, number, bytes and the list of files. */
GCKPTI_FN int gckpti_load_index(gckpti_loader *load)
{
    gckpti_rank_files *parts = load->parts;
    int64_t head[3] = { 0, 0, 0 };
    int n = 0, m = 0;
    if (!gckpti_index_check(load) || !gckpti_index_key(load, &n, "gckpt") ||
        gckpti_json_numbers(load, head, 3, 0) < 3 || !gckpti_index_key(load, &n, "files"))
        return 0;
    if (head[0] != 1)
        return gckpti_refuse(load, GCKPT_E_DATA, NULL, "index version %I; this library reads 1",
                             head[0]);
    for (char *name; (name = gckpti_json_key(load, &m)) != NULL; parts->count++) {
        int64_t file[2];
        if (!*name || strpbrk(name, gckpti_separators) || strlen(name) >= parts->path_size)
            return gckpti_json_fail(load, "a file's name is empty, too long or contains a folder");
        if (gckpti_json_numbers(load, file, 2, 0) < 2)
            return 0;
        if (!gckpti_grow(&load->store->memory, &parts->files, &parts->capacity, parts->count,
                         sizeof *parts->files))
            return gckpti_refuse(load, GCKPT_E_MEMORY, NULL, "no memory for over %z files",
                                 parts->count);
        memset(&parts->files[parts->count], 0, sizeof *parts->files);
        parts->files[parts->count].name = name;
        parts->files[parts->count].bytes = file[0];
        parts->files[parts->count].hash = file[1];
    }
    if (load->result != GCKPT_OK || !gckpti_index_key(load, &n, "tensors"))
        return 0;
    if (!parts->count || (parts->count & (parts->count - 1)))
        return gckpti_json_fail(load, "the number of files is no power of two");
    load->header = load->pos;
    parts->number = head[1];
    load->data_bytes = head[2];
    return 1;
}

/* Reads the next n bytes of a file to `out`, or to nowhere if `out` is NULL, and hashes them. */
static int gckpti_hash_read(FILE *f, unsigned char *out, int64_t n, uint64_t *hash)
{
    unsigned char discard[1024];
    for (int64_t chunk; n > 0; n -= chunk) {
        unsigned char *to = out ? out : discard;
        chunk = out ? n : gckpti_min(n, (int64_t)sizeof discard);
        if (fread(to, 1, (size_t)chunk, f) != (size_t)chunk)
            return 0;
        *hash = gckpti_fnv(*hash, to, (size_t)chunk);
    }
    return 1;
}

/* Gets a file's bytes and hash. Returns 0 if `data` or `tensors` do not fit, or reading fails. */
GCKPTI_FN int gckpti_part_hash(FILE *f, int64_t data, int64_t tensors, int64_t *bytes,
                               int64_t *hash)
{
    unsigned char little[8];
    uint64_t all = GCKPTI_FNV_START;
    *hash = 0;
    *bytes = gckpti_file_size(f);
    if (*bytes < 8 || data > *bytes - 8 || tensors > (*bytes - 8 - data) / 8)
        return 0;
    const int64_t begin = *bytes - data - 8 * tensors;
    if (!gckpti_seek(f, 0) || !gckpti_hash_read(f, little, 8, &all) ||
        gckpti_read_le64(little) != (uint64_t)(begin - 8) ||
        !gckpti_hash_read(f, NULL, begin - 8, &all) || !gckpti_seek(f, begin + data) ||
        !gckpti_hash_read(f, NULL, 8 * tensors, &all))
        return 0;
    *hash = (int64_t)(all & INT64_MAX);
    return 1;
}

/* Opens a rank's file unless it is open; checks it against the index the first time. */
static int gckpti_part_open(gckpti_loader *load, gckpti_rank_file *p)
{
    gckpti_rank_files *parts = load->parts;
    int64_t bytes, hash;
    if (p->file)
        return 1;
    memcpy(parts->path + parts->name_offset, p->name, strlen(p->name) + 1);
    errno = 0;
    p->file = gckpti_file_open(parts->path);
    if (!p->file && errno == EMFILE) { /* too many files are open: closes the others */
        gckpti_parts_close(parts);
        p->file = gckpti_file_open(parts->path);
    }
    if (!p->file)
        return gckpti_refuse(load, GCKPT_E_FILE, NULL, "%s: could not read \"%s\", which it names",
                             strerror(errno), p->name);
    p->verified = p->verified || (gckpti_part_hash(p->file, p->data, p->tensors, &bytes, &hash) &&
                                  bytes == p->bytes && hash == p->hash);
    return p->verified ||
           gckpti_refuse(load, GCKPT_E_DATA, NULL,
                         "\"%s\" is not what was saved with it: damaged, cut off, or of "
                         "another save (%I bytes, %I expected)", p->name, bytes, p->bytes);
}

/* Returns the bytes of a tensor that are in a rank's file. */
static gckpti_shard_range gckpti_byte_shard(const gckpti_file_entry *e, size_t ranks, size_t rank)
{
    gckpti_shard_range shard = gckpti_shard_of(gckpti_elements(&e->shape), (int)rank, (int)ranks);
    shard.first = gckpti_storage_bytes(e->type, shard.first);
    shard.count = gckpti_storage_bytes(e->type, shard.count);
    return shard;
}

/* Reads the shard's next n bytes to `out` (if NULL, skips them); at its end checks its hash. */
static int gckpti_shard_read(gckpti_loader *load, unsigned char *out, int64_t n)
{
    gckpti_rank_files *parts = load->parts;
    const gckpti_rank_file *p = parts->current;
    unsigned char little[8];
    uint64_t none = 0;
    parts->pos += n;
    if (!gckpti_hash_read(p->file, out, n, &parts->hash))
        return gckpti_refuse(load, GCKPT_E_FILE, NULL, "\"%s\" could not be read to its end",
                             p->name);
    if (parts->pos < parts->end)
        return 1;
    if (!gckpti_seek(p->file, p->bytes - 8 * (p->tensors - p->read_tensors)) ||
        !gckpti_hash_read(p->file, little, 8, &none))
        return gckpti_refuse(load, GCKPT_E_FILE, NULL, "the sums of \"%s\" could not be read",
                             p->name);
    return gckpti_read_le64(little) == parts->hash ||
           gckpti_refuse(load, GCKPT_E_DATA, &load->entries[parts->entry],
                         "its data in \"%s\" are damaged", p->name);
}

/* Seeks to byte `at` of the checkpoint's data, in the rank's file whose shard has it. */
static int gckpti_shard_seek(gckpti_loader *load, int64_t at)
{
    gckpti_rank_files *parts = load->parts;
    for (; at >= load->entries[parts->entry].offsets[1]; parts->entry++)
        for (size_t i = 0; i < parts->count; i++) {
            const int64_t n =
                gckpti_byte_shard(&load->entries[parts->entry], parts->count, i).count;
            parts->files[i].read_bytes += n;
            parts->files[i].read_tensors += n > 0;
        }
    const gckpti_file_entry *e = &load->entries[parts->entry];
    const int blocks = e->type == GCKPT_STORAGE_I4;
    const int64_t element_bytes = blocks ? GCKPTI_INT4_BYTES : gckpti_storages[e->type].bytes;
    const int64_t element = (at - e->offsets[0]) / element_bytes * (blocks ? GCKPTI_INT4_BLOCK : 1);
    const int rank = gckpti_shard_owner(gckpti_elements(&e->shape), element, (int)parts->count);
    const gckpti_shard_range shard = gckpti_byte_shard(e, parts->count, (size_t)rank);
    gckpti_rank_file *p = parts->current = &parts->files[rank];
    parts->pos = e->offsets[0] + shard.first;
    parts->end = parts->pos + shard.count;
    parts->hash = GCKPTI_FNV_START;
    if (!gckpti_part_open(load, p))
        return 0;
    if (!gckpti_seek(p->file, p->bytes - 8 * p->tensors - p->data + p->read_bytes))
        return gckpti_refuse(load, GCKPT_E_FILE, NULL, "\"%s\" could not be read", p->name);
    return gckpti_shard_read(load, NULL, at - parts->pos);
}

/* Reads `size` bytes, up to load->bytes_read; NULL skips them, but hashes a begun shard's rest. */
static size_t gckpti_parts_read(void *user, void *bytes, size_t size)
{
    gckpti_loader *load = (gckpti_loader *)user;
    gckpti_rank_files *parts = load->parts;
    unsigned char *out = (unsigned char *)bytes;
    const int64_t end = (int64_t)load->bytes_read;
    for (int64_t at = end - (int64_t)size, chunk; at < end; at += chunk) {
        if (at >= parts->end && !out)
            break;
        if (at >= parts->end && !gckpti_shard_seek(load, at))
            return 0;
        chunk = gckpti_min(parts->end, end) - at;
        if (!gckpti_shard_read(load, out, chunk))
            return 0;
        if (out)
            out += chunk;
    }
    return size;
}

/* Computes each file's bytes. If the index decides how much is allocated, checks all files now. */
static int gckpti_parts_begin(gckpti_loader *load)
{
    gckpti_rank_files *parts = load->parts;
    if (load->count > ((size_t)1 << 28) / parts->count)
        return gckpti_refuse(load, GCKPT_E_DATA, NULL,
                             "%z tensors in %z files are more than 2^28 shards; save by fewer "
                             "ranks", load->count, parts->count);
    for (size_t k = 0; k < load->count; k++)
        for (size_t i = 0; i < parts->count && load->entries[k].slot != GCKPTI_UPDATES; i++) {
            const int64_t n = gckpti_byte_shard(&load->entries[k], parts->count, i).count;
            parts->files[i].data += n;
            parts->files[i].tensors += n > 0;
        }
    for (size_t i = 0; i < parts->count && !load->old_params; i++)
        if (!gckpti_part_open(load, &parts->files[i]))
            return 0;
    load->read = gckpti_parts_read;
    load->user = load;
    load->bytes_read = 0;
    return 1;
}

static const gckpti_source gckpti_rank_source = { gckpti_load_index, gckpti_parts_begin };

GCKPT_API gckpt_result gckpt_ranks_load(gckpt_store *store, const char *path)
{
    gckpti_loader load;
    gckpti_rank_files parts;
    gckpt_result result;
    if (!store || !path)
        return gckpti_error(store, GCKPT_E_ARG, "load: a store and a path are needed");
    memset(&load, 0, sizeof load);
    memset(&parts, 0, sizeof parts);
    load.source = &gckpti_rank_source;
    load.parts = &parts;
    if (gckpti_parts_path(&parts, &store->memory, path))
        result = gckpti_load_path(store, &load, path, NULL);
    else
        result = gckpti_error(store, errno == ENOMEM ? GCKPT_E_MEMORY : GCKPT_E_FILE,
                              "load: %s: \"%s\"", strerror(errno), path);
    gckpti_parts_close(&parts);
    gckpti_delete(&store->memory, parts.files, parts.capacity, sizeof *parts.files);
    gckpti_delete(&store->memory, parts.path, 2 * parts.path_size, 1);
    return result;
}
#endif

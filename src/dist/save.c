#include "files/internal.h"
#include "num/num.h"
#include "store/store.h"
#include "run/run.h"
#include "base/test_hooks.h"

#if !defined(GCKPT_NO_STDIO) && !defined(GCKPT_NO_RANKS)
/* Returns the path of a rank's file, in the second half of the buffer of the index's path. */
GCKPTI_FN char *gckpti_part_path(gckpti_rank_save *save, int64_t number, int64_t rank)
{
    char *path = save->old.path + save->old.path_size;
    size_t length = strlen(save->old.path);
    gckpti_text t = { path + length, GCKPTI_PART_NAME - 1 };
    memcpy(path, save->old.path, length);
    gckpti_text_add(&t, ".%I-%I.safetensors", number, rank);
    return path;
}

/* Returns 1 if the file begins as a part that rank `rank` saved. */
static int gckpti_is_part(const char *path, uint64_t rank)
{
    char begin[8 + 100], expected[100] = "";
    gckpti_text t = { expected, sizeof expected - 1 };
    gckpti_text_add(&t, "{\"__metadata__\":{\"format\":\"%s\",\"part\":\"%u of ",
                    gckpti_part_format, rank);
    const size_t length = strlen(expected);
    FILE *f = gckpti_file_open(path);
    int matches =
        f && fread(begin, 1, 8 + length, f) == 8 + length && !memcmp(begin + 8, expected, length);
    if (f)
        fclose(f);
    return matches;
}

/* Handles one file of the index's folder. If placed is 0, takes another save number if the file has
 * it; if 1 (the index is written), removes a file of another save. Returns 1 if it did so. */
static int gckpti_scan_file(gckpti_rank_save *save, char *name, int placed)
{
    static const char type[] = ".safetensors", temporary[] = ".gckpt-tmp";
    const char *index = save->old.path + save->old.name_offset;
    const size_t length = strlen(index), name_length = strlen(name);
    char *path = save->old.path + save->old.path_size, *c = name, *end = name + name_length, *next;
    uint64_t number = 0, rank = 0, n;
    if (strncmp(name, index, length) || name_length - length >= GCKPTI_PART_NAME)
        return 0;
    memcpy(path + save->old.name_offset, name, name_length + 1);
    c += length;
    if (*c == '.' && (next = gckpti_digits(c + 1, end, &number)) != NULL && *next == '-' &&
        (next = gckpti_digits(next + 1, end, &rank)) != NULL &&
        !strncmp(next, type, sizeof type - 1))
        c = next + sizeof type - 1;
    if (!strncmp(c, temporary, sizeof temporary - 1) &&
        gckpti_digits(c + sizeof temporary - 1, end, &n) == end)
        return placed && gckpti_remove_stale(path); /* also a stale one of the index */
    const int is_current = number == (uint64_t)save->number;
    if (c < end || name_length == length) /* not a file of this checkpoint */
        return 0;
    if (placed)
        return (!is_current || rank >= (uint64_t)save->spec.ranks) && gckpti_is_part(path, rank) &&
               !remove(path);
    if (!is_current || (!save->damaged && gckpti_is_part(path, rank)))
        return 0;
    save->number = save->number % INT32_MAX + 1;
    return 1;
}

/* Handles all files of the folder, and lists it again after a change, which can hide files from the
 * first listing. Returns 0 on errors (see errno). On other systems, folders cannot be listed. */
static int gckpti_scan_folder(gckpti_rank_save *save, int placed)
{
    char *folder = save->old.path + save->old.path_size;
    memcpy(folder, save->old.path, save->old.name_offset);
    for (int done = 1; done;) {
        done = 0;
        memcpy(folder + save->old.name_offset, GCKPTI_POSIX ? "." : "*", 2);
#if GCKPTI_POSIX
        DIR *d = opendir(folder);
        struct dirent *e;
        while (d && (errno = 0, e = readdir(d)) != NULL)
            done |= gckpti_scan_file(save, e->d_name, placed);
        const int error = errno;
        if (d)
            closedir(d);
        errno = error;
        if (!d || error)
            return 0;
#elif defined(_WIN32)
        struct _finddata_t e;
        const intptr_t d = _findfirst(folder, &e);
        for (int more = d != -1; more; more = !_findnext(d, &e))
            done |= gckpti_scan_file(save, e.name, placed);
        if (d != -1)
            _findclose(d);
#else
        (void)gckpti_scan_file;
        (void)placed;
#endif
    }
    return 1;
}

/* Reads the existing index (any other file will be replaced), and chooses the save's number. */
static gckpt_result gckpti_rank_save_read_old(gckpti_rank_save *save)
{
    gckpt_store *s = save->store;
    gckpti_file file = { NULL, 0, "read the index that exists; may it be read" };
    gckpti_loader load;
    memset(&load, 0, sizeof load);
    gckpti_resolve_target(&file, save->old.path, save->old.path_size, NULL);
    const size_t bytes = file.error ? 0 : gckpti_open_sized(&file, save->path, 1);
    if (file.error == ENOENT)
        file.error = 0;
    else if (!file.error) {
        char *text = (char *)gckpti_new(&s->memory, bytes, 1);
        gckpti_record_errno(&file, text && fread(text, 1, bytes, file.f) != bytes);
        load.store = s;
        load.parts = &save->old;
        load.pos = load.header = text;
        load.end = text ? text + bytes : NULL;
        load.result = text ? GCKPT_OK : GCKPT_E_MEMORY;
        save->damaged = !load.result && !file.error && !gckpti_load_index(&load);
        gckpti_delete(&s->memory, save->old.files, save->old.capacity, sizeof *save->old.files);
        save->old.files = NULL; /* only the count is needed */
        gckpti_delete(&s->memory, text, bytes, 1);
    }
    if (file.f)
        fclose(file.f);
    if (load.result == GCKPT_E_MEMORY) {
        gckpti_error(s, load.result, "save: no memory to read the present index: \"%s\"",
                     save->path);
        gckpti_hint_block(s, "store", &s->memory, 0);
        return load.result;
    }
    save->number = (save->damaged ? 0 : save->old.number) % INT32_MAX + 1;
    if (!file.error && !gckpti_scan_folder(save, 0) && save->damaged) {
        file.error = errno;
        file.action = "list the folder, and it has a damaged index; may it be read";
    }
    return file.error ? gckpti_save_error(s, &file, save->path, 0) : gckpti_ok(s);
}

/* Prepares a save. After it, the ranks agree on rank 0's `number`. */
GCKPTI_FN gckpt_result gckpti_rank_save_start(gckpti_rank_save *save, gckpt_store *s,
                                              const char *path)
{
    memset(save, 0, sizeof *save);
    save->store = s;
    save->path = path;
    save->spec.store = s;
    save->spec.desc = &gckpti_file_plain;
    save->spec.rank = s->rank;
    save->spec.ranks = s->ranks;
    if (!path)
        return gckpti_error(s, GCKPT_E_ARG, "save: the path is NULL");
    int found = gckpti_parts_path(&save->old, &s->memory, path);
    save->spec.hashes = (uint64_t *)gckpti_new(&s->memory, 6 * s->count, sizeof(uint64_t));
    if (!s->rank)
        save->files = (gckpti_rank_file *)gckpti_new(&s->memory, (size_t)s->ranks,
                                                     sizeof *save->files);
    if (!save->old.path || !save->spec.hashes || (!s->rank && !save->files))
        return gckpti_error(s, GCKPT_E_MEMORY, "save: no memory for file names and hashes");
    if (!found)
        return gckpti_error(s, GCKPT_E_FILE, "save: %s: \"%s\"", strerror(errno), path);
    if (!gckpti_is_utf8(save->old.path + save->old.name_offset))
        return gckpti_error(s, GCKPT_E_ARG,
                            "save: the index names the other files after itself, so its file "
                            "name must be UTF-8");
    return s->rank ? GCKPT_OK : gckpti_rank_save_read_old(save);
}

/* Writes this rank's file. */
GCKPTI_FN gckpt_result gckpti_rank_save_part(gckpti_rank_save *save)
{
    gckpti_content content = { save->store, &save->store->memory, gckpti_write,
                               &save->spec, save->path,           0 };
    return gckpti_save(&content, gckpti_part_path(save, save->number, save->spec.rank));
}

/* Rank 0 verifies the files of all ranks. */
static gckpt_result gckpti_rank_save_verify(gckpti_rank_save *save)
{
    gckpti_save_spec spec = save->spec;
    for (spec.rank = 0; spec.rank < spec.ranks; spec.rank++) {
        gckpti_rank_file *p = &save->files[spec.rank];
        gckpti_sink out;
        size_t tensors;
        const char *path = gckpti_part_path(save, save->number, spec.rank);
        memset(&out, 0, sizeof out);
        p->data = gckpti_sink_header(&out, &spec, &tensors);
        p->tensors = (int64_t)tensors;
        p->data -= 8 * p->tensors;
        FILE *f = gckpti_file_open(path);
        int good = f && gckpti_part_hash(f, p->data, p->tensors, &p->bytes, &p->hash);
        if (f)
            fclose(f);
        if (!good)
            return gckpti_error(save->store, GCKPT_E_FILE,
                                "save: rank 0 cannot read the file of rank %i; do both see the "
                                "same folder? \"%s\"", spec.rank, path);
    }
    return GCKPT_OK;
}

/* A write callback that also computes the FNV-1a of all bytes. */
typedef struct {
    gckpt_write_fn write;
    void *user;
    uint64_t hash;
} gckpti_hash_writer;

static size_t gckpti_hash_write(void *user, const void *bytes, size_t size)
{
    gckpti_hash_writer *s = (gckpti_hash_writer *)user;
    s->hash = gckpti_fnv(s->hash, bytes, size);
    return s->write(s->user, bytes, size);
}

static gckpt_result gckpti_write_index(const void *what, gckpt_write_fn write, void *user)
{
    const gckpti_rank_save *save = (const gckpti_rank_save *)what;
    const gckpti_save_spec all = { save->store, &gckpti_file_plain, 0, 1, NULL, NULL };
    gckpti_hash_writer hashing = { write, user, GCKPTI_FNV_START };
    gckpti_sink out;
    size_t tensors;
    memset(&out, 0, sizeof out);
    const int64_t data = gckpti_sink_header(&out, &all, &tensors);
    if (out.total > GCKPTI_HEADER_MAX)
        return gckpti_error(save->store, GCKPT_E_DATA,
                            "save: the index would take %z bytes, but %z are the most: use "
                            "shorter names or notes", out.total, (size_t)GCKPTI_HEADER_MAX);
    memset(&out, 0, sizeof out);
    out.write = gckpti_hash_write;
    out.user = &hashing;
    gckpti_print(&out, "{\"gckpt\":[1,%I,%I],\"files\":{", save->number, data);
    for (int i = 0; i < save->spec.ranks; i++) {
        gckpti_print(&out, i ? ",\"" : "\"");
        gckpti_sink_name(&out, save->old.path + save->old.name_offset);
        gckpti_print(&out, ".%I-%i.safetensors\":[%I,%I]", save->number, i, save->files[i].bytes,
                     save->files[i].hash);
    }
    gckpti_print(&out, "},\"tensors\":");
    gckpti_sink_header(&out, &all, &tensors);
    gckpti_sink_flush(&out);
    gckpti_print(&out, ",\"check\":\"%u\"}\n", hashing.hash);
    if (gckpti_sink_flush(&out) != GCKPT_OK)
        return gckpti_error(save->store, GCKPT_E_FILE, "save: could not write the index");
    return gckpti_ok(save->store);
}

/* Replaces the index (rank 0), then removes files of earlier saves, also of incomplete ones. */
GCKPTI_FN gckpt_result gckpti_rank_save_commit(gckpti_rank_save *save)
{
    gckpti_content index = { save->store, &save->store->memory, gckpti_write_index, save, NULL, 0 };
    gckpt_result result = gckpti_rank_save_verify(save);
    if (result == GCKPT_OK)
        result = gckpti_save(&index, save->path);
    for (int i = save->spec.ranks; i-- > 0 && index.placed <= 0;)
        remove(gckpti_part_path(save, save->number, i));
    for (size_t i = 0; i < save->old.count && !save->damaged && result == GCKPT_OK; i++)
        if (gckpti_is_part(gckpti_part_path(save, save->old.number, (int64_t)i), i))
            remove(save->old.path + save->old.path_size); /* also where folders cannot be listed */
    if (result == GCKPT_OK)
        gckpti_scan_folder(save, 1);
    return result;
}

GCKPTI_FN void gckpti_rank_save_end(gckpti_rank_save *save)
{
    gckpti_allocator *memory = &save->store->memory;
    gckpti_delete(memory, save->files, (size_t)save->spec.ranks, sizeof *save->files);
    gckpti_delete(memory, save->spec.hashes, 6 * save->store->count, sizeof(uint64_t));
    gckpti_delete(memory, save->old.path, 2 * save->old.path_size, 1);
}

static void gckpti_merge_max(void *mine, const void *received, size_t bytes)
{
    int64_t *a = (int64_t *)mine;
    const int64_t *b = (const int64_t *)received;
    *a = *a > *b ? *a : *b;
    (void)bytes;
}

/* Ends part `part` of a save with a status barrier of all ranks. */
static gckpt_result gckpti_rank_save_agree(gckpt_exec *e, int part, gckpt_result result)
{
    if (result != GCKPT_OK)
        gckpti_error(e, result, "%s", gckpt_error_text(e->store));
    return gckpti_agree_on_call(e, GCKPTI_CALL_SAVE, part, result);
}

GCKPT_API gckpt_result gckpt_ranks_save(gckpt_exec *exec, const char *path)
{
    gckpti_rank_save save;
    if (!exec || gckpti_is_under_way(exec))
        return GCKPT_E_ARG;
    gckpt_result result =
        gckpti_rank_save_agree(exec, 1, gckpti_rank_save_start(&save, exec->store, path));
    save.number = save.spec.rank ? 0 : save.number; /* so that the maximum is rank 0's */
    if (result == GCKPT_OK)
        result = gckpti_merge_ranks(exec, &save.number, sizeof save.number, gckpti_merge_max);
    if (result == GCKPT_OK) {
        result = gckpti_rank_save_agree(exec, 2, gckpti_rank_save_part(&save));
        if (result != GCKPT_OK && result != GCKPT_E_PEER) /* other ranks may not have failed */
            remove(gckpti_part_path(&save, save.number, save.spec.rank));
        else if (result == GCKPT_OK)
            result = gckpti_rank_save_agree(exec, 3,
                                            save.files ? gckpti_rank_save_commit(&save) : GCKPT_OK);
    }
    gckpti_rank_save_end(&save);
    return result == GCKPT_OK ? gckpti_ok(exec) : result;
}
#endif

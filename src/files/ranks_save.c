#include "files/own.h"
#include "num/num.h"
#include "store/store.h"
#include "run/run.h"
#include "base/host.h"

#if !defined(GCKPT_NO_STDIO) && !defined(GCKPT_NO_RANKS)
/* ---- a save by all ranks, step by step ---- */

/* The path of a rank's file, in the second half of that of the index. */
GCKPTI_FN char *gckpti_part_path(gckpti_rank_save *x, int64_t number, int64_t rank)
{
    char *path = x->old.path + x->old.room;
    size_t length = strlen(x->old.path);
    gckpti_text t = { path + length, GCKPTI_PART_NAME - 1 };
    memcpy(path, x->old.path, length);
    gckpti_text_add(&t, ".%I-%I.safetensors", number, rank);
    return path;
}

/* Whether the file at this path begins as that of this rank. */
static int gckpti_is_part(const char *path, uint64_t rank)
{
    char begin[8 + 100], want[100] = "";
    gckpti_text t = { want, sizeof want - 1 };
    gckpti_text_add(&t, "{\"__metadata__\":{\"format\":\"%s\",\"part\":\"%u of ",
                    gckpti_part_format, rank);
    const size_t length = strlen(want);
    FILE *f = gckpti_file_open(path);
    int is = f && fread(begin, 1, 8 + length, f) == 8 + length && !memcmp(begin + 8, want, length);
    if (f)
        fclose(f);
    return is;
}

/* Looks at a file beside the index. Before that is placed: a number that the file has, by its name
 * a rank's, is passed over. Then: what is of another save is removed. 1: so it was. */
static int gckpti_look_at(gckpti_rank_save *x, char *name, int placed)
{
    static const char type[] = ".safetensors", temporary[] = ".gckpt-tmp";
    const char *index = x->old.path + x->old.folder;
    const size_t length = strlen(index), all = strlen(name);
    char *path = x->old.path + x->old.room, *c = name, *end = name + all, *next;
    uint64_t number = 0, rank = 0, n;
    if (strncmp(name, index, length) || all - length >= GCKPTI_PART_NAME)
        return 0;
    memcpy(path + x->old.folder, name, all + 1);
    c += length;
    if (*c == '.' && (next = gckpti_digits(c + 1, end, &number)) != NULL && *next == '-' &&
        (next = gckpti_digits(next + 1, end, &rank)) != NULL &&
        !strncmp(next, type, sizeof type - 1))
        c = next + sizeof type - 1;
    if (!strncmp(c, temporary, sizeof temporary - 1) &&
        gckpti_digits(c + sizeof temporary - 1, end, &n) == end)
        return placed && gckpti_remove_left(path); /* of the index, too */
    const int now = number == (uint64_t)x->number;
    if (c < end || all == length) /* another's */
        return 0;
    if (placed)
        return (!now || rank >= (uint64_t)x->part.ranks) && gckpti_is_part(path, rank) &&
               !remove(path);
    if (!now || (!x->damaged && gckpti_is_part(path, rank)))
        return 0;
    x->number = x->number % INT32_MAX + 1;
    return 1;
}

/* Looks at all that is in the folder, until there is nothing left to do (who removes files while a
 * folder is read may miss some). 0: errno. Other systems have no such list. */
static int gckpti_look_beside(gckpti_rank_save *x, int placed)
{
    char *folder = x->old.path + x->old.room;
    memcpy(folder, x->old.path, x->old.folder);
    for (int done = 1; done;) {
        done = 0;
        memcpy(folder + x->old.folder, GCKPTI_POSIX ? "." : "*", 2);
#if GCKPTI_POSIX
        DIR *d = opendir(folder);
        struct dirent *e;
        while (d && (errno = 0, e = readdir(d)) != NULL)
            done |= gckpti_look_at(x, e->d_name, placed);
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
            done |= gckpti_look_at(x, e.name, placed);
        if (d != -1)
            _findclose(d);
#else
        (void)gckpti_look_at;
        (void)placed;
#endif
    }
    return 1;
}

/* Reads the index that is there (what is none will be replaced), and takes a number. */
static gckpt_result gckpti_rank_save_old(gckpti_rank_save *x)
{
    gckpt_store *s = x->store;
    gckpti_file file = { NULL, 0, "read what is there; may it be read" };
    gckpti_loader l;
    memset(&l, 0, sizeof l);
    gckpti_save_over(&file, x->old.path, x->old.room, NULL);
    const size_t bytes = file.error ? 0 : gckpti_file_begin(&file, x->path, 1);
    if (file.error == ENOENT)
        file.error = 0;
    else if (!file.error) {
        char *text = (char *)gckpti_new(&s->memory, bytes, 1);
        gckpti_file_try(&file, text && fread(text, 1, bytes, file.f) != bytes);
        l.store = s;
        l.parts = &x->old;
        l.at = l.header = text;
        l.end = text ? text + bytes : NULL;
        l.result = text ? GCKPT_OK : GCKPT_E_MEMORY;
        x->damaged = !l.result && !file.error && !gckpti_load_index(&l);
        gckpti_delete(&s->memory, x->old.part, x->old.capacity, sizeof *x->old.part);
        x->old.part = NULL; /* it is how many they are that counts */
        gckpti_delete(&s->memory, text, bytes, 1);
    }
    if (file.f)
        fclose(file.f);
    if (l.result == GCKPT_E_MEMORY) {
        gckpti_error(s, l.result, "save: no memory to read what is there: \"%s\"", x->path);
        gckpti_tell_block(s, "store", &s->memory, 0);
        return l.result;
    }
    x->number = (x->damaged ? 0 : x->old.number) % INT32_MAX + 1;
    if (!file.error && !gckpti_look_beside(x, 0) && x->damaged) {
        file.error = errno;
        file.doing = "list the folder, and it has a damaged index; may it be read";
    }
    return file.error ? gckpti_save_error(s, &file, x->path, 0) : gckpti_ok(s);
}

/* Before the ranks agree on `number`, which is rank 0's. */
GCKPTI_FN gckpt_result gckpti_rank_save_start(gckpti_rank_save *x, gckpt_store *s, const char *path)
{
    memset(x, 0, sizeof *x);
    x->store = s;
    x->path = path;
    x->part.store = s;
    x->part.desc = &gckpti_file_plain;
    x->part.rank = s->rank;
    x->part.ranks = s->ranks;
    if (!path)
        return gckpti_error(s, GCKPT_E_ARG, "save: a path is needed");
    int found = gckpti_parts_path(&x->old, &s->memory, path);
    x->part.sums = (uint64_t *)gckpti_new(&s->memory, 6 * s->count, sizeof(uint64_t));
    if (!s->rank)
        x->next = (gckpti_rank_file *)gckpti_new(&s->memory, (size_t)s->ranks, sizeof *x->next);
    if (!x->old.path || !x->part.sums || (!s->rank && !x->next))
        return gckpti_error(s, GCKPT_E_MEMORY, "save: no memory for names and sums");
    if (!found)
        return gckpti_error(s, GCKPT_E_FILE, "save: %s: \"%s\"", strerror(errno), path);
    if (!gckpti_is_utf8(x->old.path + x->old.folder))
        return gckpti_error(s, GCKPT_E_ARG,
                            "save: the index names files like itself, so its name "
                            "must be UTF-8");
    return s->rank ? GCKPT_OK : gckpti_rank_save_old(x);
}

/* Each rank writes its file. */
GCKPTI_FN gckpt_result gckpti_rank_save_part(gckpti_rank_save *x)
{
    gckpti_content content = { x->store, &x->store->memory, gckpti_write, &x->part, x->path, 0 };
    return gckpti_save(&content, gckpti_part_path(x, x->number, x->part.rank));
}

/* Rank 0 looks at the files of all. */
static gckpt_result gckpti_rank_save_look(gckpti_rank_save *x)
{
    gckpti_saving v = x->part;
    for (v.rank = 0; v.rank < v.ranks; v.rank++) {
        gckpti_rank_file *p = &x->next[v.rank];
        gckpti_sink k;
        size_t tensors;
        const char *path = gckpti_part_path(x, x->number, v.rank);
        memset(&k, 0, sizeof k);
        p->data = gckpti_sink_header(&k, &v, &tensors);
        p->tensors = (int64_t)tensors;
        p->data -= 8 * p->tensors;
        FILE *f = gckpti_file_open(path);
        int good = f && gckpti_part_sum(f, p->data, p->tensors, &p->bytes, &p->sum);
        if (f)
            fclose(f);
        if (!good)
            return gckpti_error(x->store, GCKPT_E_FILE,
                                "save: rank 0 cannot read what rank %i wrote; does its host have "
                                "another folder there? \"%s\"",
                                v.rank, path);
    }
    return GCKPT_OK;
}

/* What is written, and the FNV-1a of it. */
typedef struct {
    gckpt_write_fn write;
    void *user;
    uint64_t sum;
} gckpti_summing;

static size_t gckpti_sum_write(void *user, const void *bytes, size_t size)
{
    gckpti_summing *s = (gckpti_summing *)user;
    s->sum = gckpti_fnv(s->sum, bytes, size);
    return s->write(s->user, bytes, size);
}

static gckpt_result gckpti_write_index(const void *what, gckpt_write_fn write, void *user)
{
    const gckpti_rank_save *x = (const gckpti_rank_save *)what;
    const gckpti_saving all = { x->store, &gckpti_file_plain, 0, 1, NULL, NULL };
    gckpti_summing summing = { write, user, GCKPTI_FNV_START };
    gckpti_sink k;
    size_t tensors;
    memset(&k, 0, sizeof k);
    const int64_t data = gckpti_sink_header(&k, &all, &tensors);
    if (k.total > GCKPTI_HEADER_MAX)
        return gckpti_error(x->store, GCKPT_E_DATA,
                            "save: the index takes %z bytes, %z are allowed; use shorter names or "
                            "notes",
                            k.total, (size_t)GCKPTI_HEADER_MAX);
    memset(&k, 0, sizeof k);
    k.write = gckpti_sum_write;
    k.user = &summing;
    gckpti_print(&k, "{\"gckpt\":[1,%I,%I],\"files\":{", x->number, data);
    for (int i = 0; i < x->part.ranks; i++) {
        gckpti_print(&k, i ? ",\"" : "\"");
        gckpti_sink_name(&k, x->old.path + x->old.folder);
        gckpti_print(&k, ".%I-%i.safetensors\":[%I,%I]", x->number, i, x->next[i].bytes,
                     x->next[i].sum);
    }
    gckpti_print(&k, "},\"tensors\":");
    gckpti_sink_header(&k, &all, &tensors);
    gckpti_sink_flush(&k);
    gckpti_print(&k, ",\"check\":\"%u\"}\n", summing.sum);
    if (gckpti_sink_flush(&k) != GCKPT_OK)
        return gckpti_error(x->store, GCKPT_E_FILE, "save: the index could not be written");
    return gckpti_ok(x->store);
}

/* Rank 0 replaces the index. Then nothing names the files of the last one any more, nor what broken
 * saves have left. */
GCKPTI_FN gckpt_result gckpti_rank_save_place(gckpti_rank_save *x)
{
    gckpti_content index = { x->store, &x->store->memory, gckpti_write_index, x, NULL, 0 };
    gckpt_result result = gckpti_rank_save_look(x);
    if (result == GCKPT_OK)
        result = gckpti_save(&index, x->path);
    for (int i = x->part.ranks; i-- > 0 && index.placed <= 0;)
        remove(gckpti_part_path(x, x->number, i));
    for (size_t i = 0; i < x->old.count && !x->damaged && result == GCKPT_OK; i++)
        if (gckpti_is_part(gckpti_part_path(x, x->old.number, (int64_t)i), i))
            remove(x->old.path + x->old.room); /* where no folder can be listed, too */
    if (result == GCKPT_OK)
        gckpti_look_beside(x, 1);
    return result;
}

GCKPTI_FN void gckpti_rank_save_end(gckpti_rank_save *x)
{
    gckpti_allocator *memory = &x->store->memory;
    gckpti_delete(memory, x->next, (size_t)x->part.ranks, sizeof *x->next);
    gckpti_delete(memory, x->part.sums, 6 * x->store->count, sizeof(uint64_t));
    gckpti_delete(memory, x->old.path, 2 * x->old.room, 1);
}

static void gckpti_merge_numbers(void *mine, const void *heard, size_t bytes)
{
    int64_t *a = (int64_t *)mine;
    const int64_t *b = (const int64_t *)heard;
    *a = *a > *b ? *a : *b;
    (void)bytes;
}

/* What all ranks end a part of a save with. */
static gckpt_result gckpti_rank_save_meet(gckpt_exec *e, int part, gckpt_result result)
{
    if (result != GCKPT_OK)
        gckpti_error(e, result, "%s", gckpt_error_text(e->store));
    return gckpti_crew_call(e, GCKPTI_CALL_SAVE, part, result);
}

GCKPT_API gckpt_result gckpt_ranks_save(gckpt_exec *exec, const char *path)
{
    gckpti_rank_save x;
    if (!exec || gckpti_is_under_way(exec))
        return GCKPT_E_ARG;
    gckpt_result result =
        gckpti_rank_save_meet(exec, 1, gckpti_rank_save_start(&x, exec->store, path));
    x.number = x.part.rank ? 0 : x.number; /* that of rank 0 counts */
    if (result == GCKPT_OK)
        result = gckpti_crew_merge(exec, &x.number, sizeof x.number, gckpti_merge_numbers);
    if (result == GCKPT_OK) {
        result = gckpti_rank_save_meet(exec, 2, gckpti_rank_save_part(&x));
        if (result != GCKPT_OK && result != GCKPT_E_PEER) /* which leaves open what others do */
            remove(gckpti_part_path(&x, x.number, x.part.rank));
        else if (result == GCKPT_OK)
            result = gckpti_rank_save_meet(exec, 3, x.next ? gckpti_rank_save_place(&x) : GCKPT_OK);
    }
    gckpti_rank_save_end(&x);
    return result == GCKPT_OK ? gckpti_ok(exec) : result;
}
#endif

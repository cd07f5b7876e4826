#include "files/own.h"
#include "num/num.h"
#include "store/store.h"
#include "run/run.h"
#include "base/host.h"

#if !defined(GCKPT_NO_STDIO) && !defined(GCKPT_NO_RANKS)
/* ---- by all ranks: an index, and beside it a file of each rank ----
 *
 *     {"gckpt":[1,7,24576],"files":{"ckpt.7-0.safetensors":[20840,5811],"ckpt.7-1.safetensors":..},
 *      "tensors":{"__metadata__":{..},"w":{"dtype":"F32",..},..},"check":"9377"}
 *
 * in one line: version, number of the save, bytes of all tensors; of each file bytes and sum; the
 * header that one file with all of it would have; the FNV-1a of the text before ,"check". A rank's
 * file has its share of each tensor (gckpti_share), also where ranks hold all, as a tensor of one
 * axis if it is not all, in the order of that header, and where it begins as "NAME#first"; then
 * __sums__, the FNV-1a of each one's data. The file's sum is that of its header and of __sums__. So
 * no byte changes unseen, and files of two saves do not pass for one.
 *
 * A save takes the next number after that of the index that is there, so nothing that this names is
 * written over; then each rank writes its file; when all have, rank 0 replaces the index. Who is
 * killed leaves an index that is whole, and maybe files that none names. Only when the new index
 * will outlast a power cut is all removed that is of this checkpoint and not named by it, found by
 * listing the folder: what has a rank's name and begins as that rank's file does, and temporary
 * files of these names that no save has. Anything else is another's: no number is taken that it
 * has; nor, where an index is damaged, one that any file has, since that may be named there.
 * ============================================================================================== */

static const char *const gckpti_separators = GCKPTI_POSIX ? "/" : "/\\:";

/* Where files beside the index go. 0: no memory, or (errno) links that lead nowhere. */
GCKPTI_FN int gckpti_parts_path(gckpti_rank_files *x, gckpti_allocator *memory, const char *path)
{
    x->room = strlen(path) + 1024;
    x->path = (char *)gckpti_new(memory, 2 * x->room, 1);
    errno = ENOMEM;
    if (!x->path)
        return 0;
    memcpy(x->path, path, strlen(path));
#if GCKPTI_POSIX
    if (!gckpti_follow(x->path, x->room - GCKPTI_PART_NAME))
        return 0;
#endif
    for (size_t i = 0; x->path[i]; i++)
        if (strchr(gckpti_separators, x->path[i]))
            x->folder = i + 1;
    return 1;
}

static void gckpti_parts_close(gckpti_rank_files *x)
{
    for (size_t i = 0; i < x->count; i++)
        if (x->part[i].file) {
            fclose(x->part[i].file);
            x->part[i].file = NULL;
        }
}

static int gckpti_index_key(gckpti_loader *l, int *n, const char *key)
{
    const char *found = gckpti_json_key(l, n);
    return found && (!strcmp(found, key) || gckpti_json_fail(l, "another key expected"));
}

/* Whether the text ends with the sum of what stands before that, which is cut off. */
static int gckpti_index_check(gckpti_loader *l)
{
    char check[48] = "";
    const size_t most = sizeof check - 1;
    char *tail = l->end;
    gckpti_text t = { check, most };
    while (tail > l->at && (size_t)(l->end - tail) < most && (tail == l->end || *tail != ','))
        tail--;
    gckpti_text_add(&t, ",\"check\":\"%u\"}\n",
                    gckpti_fnv(GCKPTI_FNV_START, l->at, (size_t)(tail - l->at)));
    if (strlen(check) != (size_t)(l->end - tail) || memcmp(check, tail, strlen(check)))
        return gckpti_refuse(l, GCKPT_E_DATA, NULL,
                             "empty, damaged, or not the index of a checkpoint by ranks; "
                             "gckpt_store_load reads files of one process");
    l->end = tail;
    return 1;
}

/* Reads all of it but the tensors. */
GCKPTI_FN int gckpti_load_index(gckpti_loader *l)
{
    gckpti_rank_files *x = l->parts;
    int64_t head[3] = { 0, 0, 0 };
    int n = 0, m = 0;
    if (!gckpti_index_check(l) || !gckpti_index_key(l, &n, "gckpt") ||
        gckpti_json_numbers(l, head, 3, 0) < 3 || !gckpti_index_key(l, &n, "files"))
        return 0;
    if (head[0] != 1)
        return gckpti_refuse(l, GCKPT_E_DATA, NULL, "an index of version %I; this library has 1",
                             head[0]);
    for (char *name; (name = gckpti_json_key(l, &m)) != NULL; x->count++) {
        int64_t file[2];
        if (!*name || strpbrk(name, gckpti_separators) || strlen(name) >= x->room)
            return gckpti_json_fail(l, "a file's name is no name in this folder");
        if (gckpti_json_numbers(l, file, 2, 0) < 2)
            return 0;
        if (!gckpti_grow(&l->store->memory, &x->part, &x->capacity, x->count, sizeof *x->part))
            return gckpti_refuse(l, GCKPT_E_MEMORY, NULL, "no memory for over %z files", x->count);
        memset(&x->part[x->count], 0, sizeof *x->part);
        x->part[x->count].name = name;
        x->part[x->count].bytes = file[0];
        x->part[x->count].sum = file[1];
    }
    if (l->result != GCKPT_OK || !gckpti_index_key(l, &n, "tensors"))
        return 0;
    if (!x->count || (x->count & (x->count - 1)))
        return gckpti_json_fail(l, "the number of files is no power of two");
    l->header = l->at;
    x->number = head[1];
    l->data_bytes = head[2];
    return 1;
}

/* The next n bytes of a file, to `out` (NULL: nowhere), and to the sum. */
static int gckpti_sum_read(FILE *f, unsigned char *out, int64_t n, uint64_t *sum)
{
    unsigned char nowhere[1024];
    for (int64_t some; n > 0; n -= some) {
        unsigned char *to = out ? out : nowhere;
        some = out ? n : gckpti_min(n, (int64_t)sizeof nowhere);
        if (fread(to, 1, (size_t)some, f) != (size_t)some)
            return 0;
        *sum = gckpti_fnv(*sum, to, (size_t)some);
    }
    return 1;
}

/* Bytes and sum of a file that should have so many tensors with `data` bytes, and sums. 0: it is
 * not so, or cannot be read. */
GCKPTI_FN int gckpti_part_sum(FILE *f, int64_t data, int64_t tensors, int64_t *bytes, int64_t *sum)
{
    unsigned char little[8];
    uint64_t all = GCKPTI_FNV_START;
    *sum = 0;
    *bytes = gckpti_file_size(f);
    if (*bytes < 8 || data > *bytes - 8 || tensors > (*bytes - 8 - data) / 8)
        return 0;
    const int64_t begin = *bytes - data - 8 * tensors;
    if (!gckpti_seek(f, 0) || !gckpti_sum_read(f, little, 8, &all) ||
        gckpti_little(little) != (uint64_t)(begin - 8) ||
        !gckpti_sum_read(f, NULL, begin - 8, &all) || !gckpti_seek(f, begin + data) ||
        !gckpti_sum_read(f, NULL, 8 * tensors, &all))
        return 0;
    *sum = (int64_t)(all & INT64_MAX);
    return 1;
}

/* Opens a rank's file, if it is not; the first time it must be what the index says. */
static int gckpti_part_open(gckpti_loader *l, gckpti_rank_file *p)
{
    gckpti_rank_files *x = l->parts;
    int64_t bytes, sum;
    if (p->file)
        return 1;
    memcpy(x->path + x->folder, p->name, strlen(p->name) + 1);
    errno = 0;
    p->file = gckpti_file_open(x->path);
    if (!p->file && errno == EMFILE) { /* too many: one at a time */
        gckpti_parts_close(x);
        p->file = gckpti_file_open(x->path);
    }
    if (!p->file)
        return gckpti_refuse(l, GCKPT_E_FILE, NULL, "%s: could not read \"%s\", which it names",
                             strerror(errno), p->name);
    p->known = p->known || (gckpti_part_sum(p->file, p->data, p->tensors, &bytes, &sum) &&
                            bytes == p->bytes && sum == p->sum);
    return p->known ||
           gckpti_refuse(l, GCKPT_E_DATA, NULL,
                         "\"%s\" is not what was saved with it: damaged, cut off, or of "
                         "another save (%I bytes, %I expected)",
                         p->name, bytes, p->bytes);
}

/* The bytes of a tensor that a rank's piece has. */
static gckpti_share gckpti_piece_of(const gckpti_saved *e, size_t ranks, size_t rank)
{
    gckpti_share piece = gckpti_share_of(gckpti_elements(&e->shape), (int)rank, (int)ranks);
    piece.first = gckpti_stored_bytes(e->type, piece.first);
    piece.count = gckpti_stored_bytes(e->type, piece.count);
    return piece;
}

/* The next n bytes of the share, to `out` (NULL: nowhere). At its end: is it what was saved? */
static int gckpti_share_read(gckpti_loader *l, unsigned char *out, int64_t n)
{
    gckpti_rank_files *x = l->parts;
    const gckpti_rank_file *p = x->from;
    unsigned char little[8];
    uint64_t none = 0;
    x->at += n;
    if (!gckpti_sum_read(p->file, out, n, &x->sum))
        return gckpti_refuse(l, GCKPT_E_FILE, NULL, "\"%s\" could not be read to its end", p->name);
    if (x->at < x->end)
        return 1;
    if (!gckpti_seek(p->file, p->bytes - 8 * (p->tensors - p->passed)) ||
        !gckpti_sum_read(p->file, little, 8, &none))
        return gckpti_refuse(l, GCKPT_E_FILE, NULL, "the sums of \"%s\" could not be read",
                             p->name);
    return gckpti_little(little) == x->sum ||
           gckpti_refuse(l, GCKPT_E_DATA, &l->entries[x->entry], "its data in \"%s\" are damaged",
                         p->name);
}

/* Goes to byte `at` of all data, in the share that has it. */
static int gckpti_share_begin(gckpti_loader *l, int64_t at)
{
    gckpti_rank_files *x = l->parts;
    for (; at >= l->entries[x->entry].offsets[1]; x->entry++)
        for (size_t i = 0; i < x->count; i++) {
            const int64_t n = gckpti_piece_of(&l->entries[x->entry], x->count, i).count;
            x->part[i].at += n;
            x->part[i].passed += n > 0;
        }
    const gckpti_saved *e = &l->entries[x->entry];
    const int blocks = e->type == GCKPT_STORAGE_I4;
    const int64_t unit = blocks ? GCKPTI_NIBBLE_BYTES : gckpti_storages[e->type].bytes;
    const int64_t element = (at - e->offsets[0]) / unit * (blocks ? GCKPTI_NIBBLES : 1);
    const int rank = gckpti_holder(gckpti_elements(&e->shape), element, (int)x->count);
    const gckpti_share piece = gckpti_piece_of(e, x->count, (size_t)rank);
    gckpti_rank_file *p = x->from = &x->part[rank];
    x->at = e->offsets[0] + piece.first;
    x->end = x->at + piece.count;
    x->sum = GCKPTI_FNV_START;
    if (!gckpti_part_open(l, p))
        return 0;
    if (!gckpti_seek(p->file, p->bytes - 8 * p->tensors - p->data + p->at))
        return gckpti_refuse(l, GCKPT_E_FILE, NULL, "\"%s\" could not be read", p->name);
    return gckpti_share_read(l, NULL, at - x->at);
}

/* The loader's read: it has counted the bytes already. What is passed over (to NULL) is read only
 * to the end of a piece of which something is needed. */
static size_t gckpti_parts_read(void *user, void *bytes, size_t size)
{
    gckpti_loader *l = (gckpti_loader *)user;
    gckpti_rank_files *x = l->parts;
    unsigned char *out = (unsigned char *)bytes;
    const int64_t end = (int64_t)l->taken;
    for (int64_t at = end - (int64_t)size, some; at < end; at += some) {
        if (at >= x->end && !out)
            break;
        if (at >= x->end && !gckpti_share_begin(l, at))
            return 0;
        some = gckpti_min(x->end, end) - at;
        if (!gckpti_share_read(l, out, some))
            return 0;
        if (out)
            out += some;
    }
    return size;
}

/* What each file should have. All sizes are looked at before memory is taken by what the index
 * says; where the store knows them, files are when they are needed. */
static int gckpti_parts_begin(gckpti_loader *l)
{
    gckpti_rank_files *x = l->parts;
    if (l->count > ((size_t)1 << 28) / x->count)
        return gckpti_refuse(l, GCKPT_E_DATA, NULL,
                             "%z tensors in %z files are more than 2^28 pieces; save by fewer "
                             "ranks",
                             l->count, x->count);
    for (size_t k = 0; k < l->count; k++)
        for (size_t i = 0; i < x->count && l->entries[k].slot != GCKPTI_UPDATES; i++) {
            const int64_t n = gckpti_piece_of(&l->entries[k], x->count, i).count;
            x->part[i].data += n;
            x->part[i].tensors += n > 0;
        }
    for (size_t i = 0; i < x->count && !l->had; i++)
        if (!gckpti_part_open(l, &x->part[i]))
            return 0;
    l->read = gckpti_parts_read;
    l->user = l;
    l->taken = 0;
    return 1;
}

static const gckpti_source gckpti_by_ranks = { gckpti_load_index, gckpti_parts_begin };

GCKPT_API gckpt_result gckpt_ranks_load(gckpt_store *store, const char *path)
{
    gckpti_loader l;
    gckpti_rank_files x;
    gckpt_result result;
    if (!store || !path)
        return gckpti_error(store, GCKPT_E_ARG, "load: a store and a path are needed");
    memset(&l, 0, sizeof l);
    memset(&x, 0, sizeof x);
    l.source = &gckpti_by_ranks;
    l.parts = &x;
    if (gckpti_parts_path(&x, &store->memory, path))
        result = gckpti_load_path(store, &l, path, NULL);
    else
        result = gckpti_error(store, errno == ENOMEM ? GCKPT_E_MEMORY : GCKPT_E_FILE,
                              "load: %s: \"%s\"", strerror(errno), path);
    gckpti_parts_close(&x);
    gckpti_delete(&store->memory, x.part, x.capacity, sizeof *x.part);
    gckpti_delete(&store->memory, x.path, 2 * x.room, 1);
    return result;
}
#endif

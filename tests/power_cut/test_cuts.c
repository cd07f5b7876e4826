/* test_cuts.c - cuts the power within saves (src/files), on a model of a file system that
 * keeps no more than POSIX promises.
 *
 * The test records the system calls of a save: files that are created, written, synchronised, renamed and removed, and
 * the folder that is synchronised. Then it cuts the power after each of these calls, and makes folders with contents
 * that a file system may have at that point:
 * - A file has everything that was written before its last fsync, and any of the sectors written later; each of the
 *   others is zero, or the file is shorter.
 * - A folder has its contents at its last fsync, with any of the later creations, renames and removals.
 *
 * A load must give the last state whose save had returned, or the state being saved. The next save must succeed and
 * leave no other files. Saves that omit an fsync must fail the test. No file system loses more than this model;
 * tests/power_cut/blocks.py tests real ones. */
#define _XOPEN_SOURCE 700
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define GCKPTI_NO_HOOKS /* this file defines the hooks itself, as macros over the system's functions */
#include "num/num.h"
#include "store/store.h"
#include "files/files.h"
#include "base/test_hooks.h"
#include "util.h"

static heap mem;

/* ---- the recorded system calls ---- */
enum { MOST_OPS = 800, MOST_FILES = 300, MOST_FD = 64, NAMES = 100, SECTOR = 512 };
typedef enum { CREATE, WRITE, SYNC, RENAME, REMOVE, SYNC_FOLDER } op_kind;
typedef struct {
    op_kind kind;
    int inode;
    char name[NAMES], to[NAMES];
    size_t bytes; /* size of the file after this call */
} op;
static op ops[MOST_OPS];
static int op_count;
static file inodes[MOST_FILES]; /* for each inode all bytes written to it, in order, since saves only append */
static int inode_count;
static struct {
    char name[NAMES];
    int inode;
} names[MOST_FILES]; /* the names that exist after the last recorded call */
static int name_count;
static int of_fd[MOST_FD]; /* of_fd[fd]: number of the inode that is written to fd, plus 1; or -1 for the folder */
static file unflushed[MOST_FD];
static int op_log_on;
enum { NOTHING, FILE_SYNC, FOLDER_SYNC, FLUSH };
static int broken; /* the kind of call that saves omit */

/* ---- the order of the calls of a save, one letter each: o opens and c closes the old file, s synchronises the file,
 * f synchronises the folder, r renames ---- */
static int order_on;
static char order[16];
static int locked_fd = -1;
static void note(char c)
{
    const char text[] = { c, 0 };
    if (order_on && strlen(order) < sizeof order - 1)
        strcat(order, text);
}

static op *add_op(op_kind kind, int inode, const char *name, const char *to)
{
    op *o = &ops[op_count++];
    if (op_count >= MOST_OPS || inode_count >= MOST_FILES || strlen(name) >= NAMES ||
        strlen(to) >= NAMES) {
        fprintf(stderr, "test_cuts: too much is written down\n");
        exit(1);
    }
    o->kind = kind;
    o->inode = inode;
    strcpy(o->name, name);
    strcpy(o->to, to);
    return o;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int find_name(const char *name)
{
    for (int i = 0; i < name_count; i++)
        if (!strcmp(names[i].name, name))
            return i;
    return -1;
}

static void forget_name(const char *name)
{
    const int i = find_name(name);
    if (i >= 0)
        names[i] = names[--name_count];
}

static void bind_name(const char *name, int inode)
{
    forget_name(name);
    strcpy(names[name_count].name, name);
    names[name_count++].inode = inode;
}

static int test_open(const char *path, int flags, unsigned mode)
{
    const char *name = base_of(path);
    const int fd = open(path, flags, mode), created = fd >= 0 && (flags & O_CREAT);
    if (order_on && fd >= 0 && flags == O_RDONLY && !strcmp(name, "ckpt"))
        note('o'), locked_fd = fd;
    if (!op_log_on || fd < 0 || fd >= MOST_FD)
        return fd;
    of_fd[fd] = !strcmp(name, ".") ? -1 : 0;
    unflushed[fd].size = 0;
    if (created) {
        bind_name(name, inode_count);
        add_op(CREATE, inode_count, name, "");
        of_fd[fd] = ++inode_count;
    }
    return fd;
}

static size_t test_fwrite(const void *from, size_t size, size_t n, FILE *f)
{
    const int fd = fileno(f);
    if (op_log_on && of_fd[fd] > 0)
        file_write(&unflushed[fd], from, size * n);
    return fwrite(from, size, n, f);
}

static void flushed(FILE *f)
{
    const int fd = fileno(f);
    if (!op_log_on || of_fd[fd] <= 0 || !unflushed[fd].size)
        return;
    file *inode = &inodes[of_fd[fd] - 1];
    file_write(inode, unflushed[fd].bytes, unflushed[fd].size);
    add_op(WRITE, of_fd[fd] - 1, "", "")->bytes = inode->size;
    unflushed[fd].size = 0;
}

static int test_fflush(FILE *f)
{
    if (broken == FLUSH)
        return 0;
    flushed(f);
    return fflush(f);
}

static int test_fclose(FILE *f)
{
    flushed(f);
    return fclose(f);
}

static int test_close(int fd)
{
    if (order_on && fd == locked_fd)
        note('c'), locked_fd = -1;
    return close(fd);
}

static int test_fsync(int fd)
{
    struct stat is;
    if (order_on && !fstat(fd, &is))
        note(S_ISDIR(is.st_mode) ? 'f' : 's');
    if (op_log_on && of_fd[fd] && broken != (of_fd[fd] < 0 ? FOLDER_SYNC : FILE_SYNC))
        add_op(of_fd[fd] < 0 ? SYNC_FOLDER : SYNC, of_fd[fd] - 1, "", "");
    return fd < 0;
}

static int test_rename(const char *from, const char *to)
{
    const int failed = rename(from, to);
    note('r');
    if (op_log_on && !failed) {
        const int i = find_name(base_of(from));
        CHECK(i >= 0);
        const int inode = names[i].inode;
        add_op(RENAME, inode, base_of(from), base_of(to));
        forget_name(base_of(from));
        bind_name(base_of(to), inode);
    }
    return failed;
}

static int test_remove(const char *path)
{
    const int failed = remove(path);
    if (op_log_on && !failed) {
        add_op(REMOVE, 0, base_of(path), "");
        forget_name(base_of(path));
    }
    return failed;
}

static void watch(void)
{
    gckpti_hooks.open = test_open;
    gckpti_hooks.fwrite = test_fwrite;
    gckpti_hooks.fflush = test_fflush;
    gckpti_hooks.fclose = test_fclose;
    gckpti_hooks.fsync = test_fsync;
    gckpti_hooks.rename = test_rename;
    gckpti_hooks.remove = test_remove;
    gckpti_hooks.close = test_close;
}

/* ---- the states that are saved: three parameters, of up to one and of several blocks, with optimiser state. A note
 * gives each state another length. ---- */
static const char path[] = "cuts/ckpt";
enum { SAVES = 4, STATES = SAVES + 2 };
static file state[STATES]; /* state[i]: the bytes that gckpt_store_write writes of state i */

static gckpt_store *store_new(int rank, int ranks, unsigned salt)
{
    static const int64_t elements[] = { 7, 4096, 9001 };
    const gckpt_init zero = { 0, 0, 0 };
    gckpt_store_desc desc = { .memory = heap_memory(&mem), .seed = 3 };
    gckpt_store *s = gckpt_store_new(&desc);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    char note[200];
    CHECK(gckpt_store_ranks(s, rank, ranks, GCKPT_SHARD_VALUES) == GCKPT_OK);
    for (int i = 0; i < 3; i++) {
        const char name[] = { 'p', (char)('0' + i), 0 };
        gckpt_parameter p;
        CHECK(gckpt_param(g, name, gckpt_shape1(elements[i]), zero) != NULL);
        if (!salt)
            continue;
        gckpti_param *q = &s->params[i];
        CHECK(gckpt_store_get(s, i, &p) == GCKPT_OK && gckpti_ensure_state(s, q, 1));
        for (int slot = -1; slot < 1; slot++) {
            const gckpti_shard_range shard = gckpti_array_shard(s, q, slot);
            for (int64_t k = 0; k < shard.count; k++)
                gckpti_array(q, slot)[k] =
                    (float)(shard.first + k + 1) * (float)(salt * 3 + (unsigned)i + 1 + (slot < 0));
        }
        q->optimiser = GCKPT_MOMENTUM + 1;
        q->updates = salt;
    }
    gckpt_graph_free(g);
    s->step = salt;
    memset(note, 'n', sizeof note);
    note[salt * 41 % sizeof note] = 0;
    if (salt)
        CHECK(gckpt_store_set_note(s, "note", note) == GCKPT_OK);
    return s;
}

static gckpt_result save(unsigned salt)
{
    gckpt_store *s = store_new(0, 1, salt);
    const gckpt_result result = gckpt_store_save(s, path, NULL);
    CHECK_MSG(result == GCKPT_OK, "save %u: %s", salt, gckpt_error_text(s));
    gckpt_store_free(s);
    return result;
}

/* Loads the checkpoint. Returns the number of its state, 0 if nothing is saved, or -1 if the load is refused or gives
 * something else. */
static int load(void)
{
    gckpt_store *s = store_new(0, 1, 0);
    struct stat is;
    int found = -1;
    file f = { 0 };
    if (gckpt_store_load(s, path, NULL) == GCKPT_OK) {
        CHECK(gckpt_store_write(s, file_write, &f, NULL) == GCKPT_OK);
        for (int i = 1; i < STATES; i++)
            found = same_file(&f, &state[i]) ? i : found;
    } else if (stat(path, &is) && errno == ENOENT) {
        found = 0;
    }
    free(f.bytes);
    gckpt_store_free(s);
    return found;
}

/* ---- files and folders after a cut ---- */
typedef enum { ALL, NONE, ANY } kept; /* how much unsynchronised data survives a cut: all, none, or a random part */

static int keeps(kept how) { return how == ALL || (how == ANY && below(2)); }

/* Writes a file with contents that the inode may have if the power fails after the first `cut` calls. */
static void put_file(const char *name, int inode, int cut, kept how)
{
    static unsigned char bytes[1 << 18];
    const file *all = &inodes[inode];
    size_t synced = 0, size = 0;
    char full[NAMES + 8];
    for (int i = 0; i < cut; i++)
        if (ops[i].inode == inode && ops[i].kind == WRITE)
            size = ops[i].bytes;
        else if (ops[i].inode == inode && ops[i].kind == SYNC)
            synced = size;
    CHECK(size <= sizeof bytes);
    size_t end = how == ALL    ? size
                 : how == NONE ? synced
                               : synced + below((int64_t)(size - synced) + 1);
    if (size)
        memcpy(bytes, all->bytes, end);
    for (size_t at = synced; at < end; at += SECTOR - at % SECTOR)
        if (!keeps(how))
            memset(bytes + at, 0,
                   end - at < SECTOR - at % SECTOR ? end - at : SECTOR - at % SECTOR);
    snprintf(full, sizeof full, "cuts/%s", name);
    FILE *f = fopen(full, "wb");
    CHECK(f && fwrite(bytes, 1, end, f) == end && !fclose(f));
}

static void clear(void)
{
    struct dirent *e;
    char full[400];
    DIR *d = opendir("cuts");
    while (d && (e = readdir(d)) != NULL) {
        snprintf(full, sizeof full, "cuts/%s", e->d_name);
        if (e->d_name[0] != '.')
            remove(full);
    }
    if (d)
        closedir(d);
}

static int files(void)
{
    int n = 0;
    struct dirent *e;
    DIR *d = opendir("cuts");
    while (d && (e = readdir(d)) != NULL)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

/* Makes the folder with contents that it may have if the power fails after the first `cut` calls. */
static void put_folder(int cut, kept in_folder, kept in_files)
{
    int synced = 0;
    for (int i = 0; i < cut; i++)
        synced = ops[i].kind == SYNC_FOLDER ? i : synced;
    clear();
    name_count = 0;
    for (int i = 0; i < cut; i++) {
        const op *o = &ops[i];
        if ((o->kind != CREATE && o->kind != RENAME && o->kind != REMOVE) ||
            (i > synced && !keeps(in_folder)))
            continue;
        if (o->kind != CREATE)
            forget_name(o->name);
        if (o->kind != REMOVE)
            bind_name(o->kind == CREATE ? o->name : o->to, o->inode);
    }
    for (int i = 0; i < name_count; i++)
        put_file(names[i].name, names[i].inode, cut, in_files);
}

/* ---- cuts ---- */
static long cuts, old_ones, new_ones;

/* Saves SAVES states. Then cuts the power after each recorded call, in `ways` random ways, and loads. The saves omit
 * calls of kind `what`. Returns the number of loads with a wrong result. */
static long cut_saves(int ways, int what)
{
    int begun[SAVES], done[SAVES];
    long wrong = 0;
    clear();
    name_count = op_count = 0;
    for (int i = 0; i < inode_count; i++)
        inodes[i].size = 0;
    inode_count = 0;
    broken = what;
    op_log_on = 1;
    for (int n = 0; n < SAVES; n++) {
        begun[n] = op_count;
        CHECK(save((unsigned)n + 1) == GCKPT_OK);
        done[n] = op_count;
    }
    op_log_on = broken = 0;
    CHECK(load() == SAVES);
    for (int cut = 0; cut <= op_count; cut++)
        for (int way = 0; way < ways; way++) {
            int old = 0, last = 0;
            for (int n = 0; n < SAVES; n++) {
                old = done[n] <= cut ? n + 1 : old;
                last = begun[n] <= cut ? n + 1 : last;
            }
            put_folder(cut, way < 4 ? (kept)(way % 2) : ANY,
                       way < 4   ? (kept)(way / 2)
                       : way % 3 ? ANY
                                 : ALL);
            const int found = load();
            const int right = found == old || found == last;
            cuts++;
            old_ones += found == old;
            new_ones += found == last && last != old;
            wrong += !right;
            if (what)
                continue;
            CHECK_MSG(right, "cut behind %d of %d, way %d: %d saved, %d being saved, %d found", cut,
                      op_count, way, old, last, found);
            if (way % 8 == 5) {
                CHECK(save((unsigned)found + 1) == GCKPT_OK && load() == found + 1);
                CHECK_MSG(files() == 1, "cut behind %d, way %d: %d files", cut, way, files());
            }
        }
    return wrong;
}

/* Tests the order of calls of a save, as FAT needs it. The replaced file must stay open until the new file has its name
 * on the disk; otherwise two names could lead to one file. On FAT this is only certain after an fsync of the folder and
 * then of the new file (blocks.py tests a real FAT). */
static void test_order(void)
{
    static const char *const right[] = { "srfs", "sorfsc" };
    clear();
    for (unsigned n = 0; n < 2; n++) {
        *order = 0;
        order_on = 1;
        CHECK(save(n + 1) == GCKPT_OK);
        order_on = 0;
        CHECK_MSG(!strcmp(order, right[n]), "save %u: %s", n, order);
    }
    CHECK(load() == 2);
}

int main(void)
{
    const int ways = 4 + check_iterations(60);
    CHECK(!mkdir("cuts", 0777) || errno == EEXIST);
    for (unsigned i = 1; i < STATES; i++) {
        gckpt_store *s = store_new(0, 1, i);
        CHECK(gckpt_store_write(s, file_write, &state[i], NULL) == GCKPT_OK);
        gckpt_store_free(s);
    }
    watch();
    CHECK(cut_saves(ways, NOTHING) == 0);
    printf("%ld cuts: %ld old, %ld new\n", cuts, old_ones, new_ones);
    CHECK(new_ones > cuts / 100 && old_ones > cuts / 2);
    /* saves that omit any of these calls must give wrong results, which shows that the test notices */
    for (int what = FILE_SYNC; what <= FLUSH; what++) {
        const long lost = cut_saves(12, what);
        printf("without %s: %ld wrong\n",
               what == FILE_SYNC     ? "fsync of files"
               : what == FOLDER_SYNC ? "fsync of the folder"
                                     : "fflush",
               lost);
        CHECK(lost > 0);
    }
    test_order();
    clear();
    CHECK(!rmdir("cuts") && mem.live == 0 && mem.wrong_sizes == 0);
    for (int i = 0; i < STATES; i++)
        free(state[i].bytes);
    for (int i = 0; i < MOST_FILES; i++)
        free(inodes[i].bytes);
    for (int i = 0; i < MOST_FD; i++)
        free(unflushed[i].bytes);
    return check_report("test_cuts");
}

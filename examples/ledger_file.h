/* ledger_file.h - files of ledger.h: appended record by record, each flushed to the disk, and signed
 * by libsodium where it is installed. To copy, with ledger.h; it needs POSIX and dlopen (which
 * C libraries before glibc 2.34 have in -ldl), and gradckpt.h included first. C99 or C++11.
 *
 *     ledger_file f;
 *     if (ledger_file_open(&f, path, key_path, store, text, strlen(text)) != 0 || ..
 *         ledger_file_append(&f, LEDGER_STEP, store) != 0 || ...  // f.now: the state to record
 *         ledger_file_append(&f, LEDGER_END, store) != 0)
 *         fprintf(stderr, "%s\n", f.error);
 *     ledger_file_close(&f);
 *
 * A power cut can only leave an unfinished record at the end of a file; the next open cuts it off.
 * A program that continues from a checkpoint states so by a record of kind LEDGER_RUN: later
 * records of the earlier run stay in the file, and ledger_find no longer finds them. */
#ifndef LEDGER_FILE_H
#define LEDGER_FILE_H
#include "ledger.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- signatures: libsodium, loaded when it is first used -------------------------------------- */
enum { LEDGER_SEED = 32, LEDGER_SECRET = 64 };
typedef struct {
    int (*init)(void);
    int (*keypair)(unsigned char *key, unsigned char *secret, const unsigned char *seed);
    int (*sign)(unsigned char *signature, unsigned long long *length, const unsigned char *message,
                unsigned long long bytes, const unsigned char *secret);
    int (*verify)(const unsigned char *signature, const unsigned char *message,
                  unsigned long long bytes, const unsigned char *key);
    void (*random)(void *bytes, size_t size);
} ledger_sodium;

static inline int ledger_symbol(void *library, const char *name, void *function)
{
    void *const symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* Loads libsodium. Returns 1, or 0 if it is not installed. */
static inline int ledger_load_sodium(ledger_sodium *s)
{
    static const char *const names[] = { "libsodium.so.26", "libsodium.so.23", "libsodium.so",
                                         "libsodium.dylib" };
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW);
    return library != NULL && ledger_symbol(library, "sodium_init", &s->init) &&
           ledger_symbol(library, "crypto_sign_seed_keypair", &s->keypair) &&
           ledger_symbol(library, "crypto_sign_detached", &s->sign) &&
           ledger_symbol(library, "crypto_sign_verify_detached", &s->verify) &&
           ledger_symbol(library, "randombytes_buf", &s->random) && s->init() >= 0;
}

/* A ledger_check_fn; `user` is a ledger_sodium. */
static inline int ledger_check_sodium(void *user, const unsigned char *signature,
                                      const unsigned char *hash, const unsigned char *key)
{
    return ((const ledger_sodium *)user)->verify(signature, hash, LEDGER_HASH, key) == 0;
}

/* The options whose lines in a run's text begin with "file": inputs, whose paths may differ from
 * machine to machine. */
#define LEDGER_FILES "data validation model adapter teacher reference"

/* Prints text of a ledger, which others wrote: control characters as \\x1b. */
static inline void ledger_print(FILE *f, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c < 32 || c == 127 ||
            (c >= 128 && c < 160 && i > 0 && (unsigned char)text[i - 1] == 0xc2))
            fprintf(f, "\\x%02x", c);
        else
            fputc(c, f);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */
typedef struct {
    const char *path;
    int fd;
    ledger_chain chain;
    ledger_state now;             /* state to record; the caller keeps it up to date */
    uint64_t fed;                 /* batches that the checkpoint states, or 0 if it states none */
    uint64_t recorded;            /* step of the last record */
    off_t size;                   /* bytes of the file */
    const unsigned char *digests; /* digests of all tensors by the program, or NULL */
    unsigned char *record;        /* memory of the next record */
    size_t room;                  /* bytes of it */
    size_t cut;                   /* bytes of an unfinished record that were cut off when opening */
    int sodium_missing;           /* nonzero if signatures could not be checked */
    ledger_sodium sodium;
    unsigned char secret[LEDGER_SECRET]; /* all 0 if the ledger is not signed */
    char error[512];
} ledger_file;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline int
ledger_file_fail(ledger_file *f, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(f->error, sizeof f->error, format, args);
    va_end(args);
    return -1;
}

static inline void ledger_file_close(ledger_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    free(f->record);
    memset(f->secret, 0, sizeof f->secret);
    f->fd = -1;
    f->record = NULL;
}

/* Returns the text of an error of ledger_read_file. */
static inline const char *ledger_error(int number)
{
    return number == ESPIPE ? "a ledger is a file, not a pipe or a device" : strerror(number);
}

/* Reads a whole file. Returns its bytes, which the caller frees, or NULL with errno. */
static inline unsigned char *ledger_read_file(int fd, size_t *size)
{
    struct stat info;
    size_t n = 0;
    if (fstat(fd, &info) != 0)
        return NULL;
    if (!S_ISREG(info.st_mode)) { /* a pipe has no beginning to read again, and a device no end */
        errno = S_ISDIR(info.st_mode) ? EISDIR : ESPIPE;
        return NULL;
    }
    unsigned char *bytes = (unsigned char *)malloc((size_t)info.st_size + 1);
    while (bytes != NULL && n < (size_t)info.st_size) {
        const ssize_t got = pread(fd, bytes + n, (size_t)info.st_size - n, (off_t)n);
        if (got > 0) {
            n += (size_t)got;
        } else if (got == 0) {
            break;
        } else if (errno != EINTR) {
            free(bytes);
            return NULL;
        }
    }
    *size = n;
    return bytes;
}

/* Returns whether the bytes of a head that can be known, of the record after those of `r`, agree with
 * `p`, which has `left` bytes; if `zeros` is nonzero, some may be 0 instead. */
static inline int ledger_may_be_head(const unsigned char *p, size_t left, const ledger_report *r,
                                     int zeros)
{
    unsigned char head[LEDGER_HEAD] = "gckptled", known[LEDGER_HEAD] = { 0 };
    ledger_put_le(head + 8, LEDGER_VERSION, 4);
    ledger_put_le(head + 24, r->end.index, 8);
    memcpy(head + 88, r->end.hash, LEDGER_HASH);
    memcpy(head + 152, r->end.key, LEDGER_KEY);
    memset(known, 1, 12);
    memset(known + 13, 1, 3);
    memset(known + 24, 1, 8);
    memset(known + 86, 1, 2 + LEDGER_HASH);
    if (r->end.index > 0)
        memset(known + 152, 1, LEDGER_KEY);
    if (left > 12 && (p[12] > LEDGER_END || (p[12] == 0 && !zeros)))
        return 0;
    for (size_t i = 0; i < left && i < LEDGER_HEAD; i++)
        if (known[i] && p[i] != head[i] && (p[i] != 0 || !zeros))
            return 0;
    return 1;
}

/* Returns whether the bytes after the records of `r` are one unfinished record, the last, as a power
 * cut leaves it: a part of a head, or a head that is right and less than its bytes. Behind the first
 * record, bytes that were not written may be zeros, and the length may already be right. A record
 * that is whole, damage within the ledger, other versions, and other files are not that. */
static inline int ledger_is_unfinished(const unsigned char *bytes, size_t size,
                                       const ledger_report *r)
{
    const size_t at = r->bytes, left = size - at;
    const int later = r->end.index > 0;
    unsigned char check[8];
    ledger_record whole;
    if (left == 0 || ledger_read(bytes, size, at, &whole) == NULL)
        return 0;
    if (left >= LEDGER_HEAD)
        ledger_hash_head(bytes + at, check);
    if (left >= LEDGER_HEAD && memcmp(bytes + at + LEDGER_HEAD - 8, check, 8) == 0) {
        const uint64_t needs = ledger_get_le(bytes + at + 16, 8);
        if (ledger_check_head(bytes + at) != NULL || needs < left || (needs == left && !later))
            return 0;
    } else if (!ledger_may_be_head(bytes + at, left, r, later) || (left >= LEDGER_HEAD && !later)) {
        return 0;
    }
    for (size_t i = at + 1; i + LEDGER_HEAD <= size; i++)
        if (bytes[i] == 'g' && ledger_check_head(bytes + i) == NULL)
            return 0;
    return 1;
}

/* Flushes the folder of a new file, so that a power cut keeps the file's name. */
static inline int ledger_flush_folder(const char *path)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    const int n = slash == NULL ? 1 : slash == path ? 1 : (int)(slash - path);
    snprintf(folder, sizeof folder, "%.*s", n, slash == NULL ? "." : path);
    const int fd = open(folder, O_RDONLY);
    const int failed = fd < 0 || (fsync(fd) != 0 && errno != EINVAL);
    if (fd >= 0)
        close(fd);
    return failed ? -1 : 0;
}

/* Reads the secret key, 64 hexadecimal digits, from a file. If there is no such file, makes a random
 * key and sets *is_new; then ledger_write_key creates the file. */
static inline int ledger_read_key(ledger_file *f, const char *path, int *is_new,
                                  unsigned char seed[LEDGER_SEED])
{
    char text[2 * LEDGER_SEED + 2] = "";
    const int fd = open(path, O_RDONLY | O_NONBLOCK);
    *is_new = fd < 0 && errno == ENOENT;
    if (fd < 0 && !*is_new)
        return ledger_file_fail(f, "%s: %s", path, strerror(errno));
    if (*is_new)
        f->sodium.random(seed, LEDGER_SEED);
    const ssize_t n = *is_new ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (!*is_new && (n < 2 * LEDGER_SEED || !ledger_get_hex(text, seed, LEDGER_SEED)))
        return ledger_file_fail(f,
                                "%s is not a key: a key is 64 hexadecimal digits; give the name "
                                "of a new file, and a key is written to it",
                                path);
    f->sodium.keypair(f->chain.key, f->secret, seed);
    memset(text, 0, sizeof text);
    return 0;
}

/* Creates the file of a new key, for its owner only. */
static inline int ledger_write_key(ledger_file *f, const char *path,
                                   const unsigned char seed[LEDGER_SEED])
{
    char text[2 * LEDGER_SEED + 2] = "";
    ledger_text hex = { text, sizeof text, 0 };
    ledger_put_hex(&hex, seed, LEDGER_SEED);
    ledger_put(&hex, "\n");
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return ledger_file_fail(f, "%s: %s", path, strerror(errno));
    const int failed = write(fd, text, sizeof text - 1) != (ssize_t)sizeof text - 1 ||
                       fsync(fd) != 0 || ledger_flush_folder(path) != 0;
    if (failed) {
        ledger_file_fail(f, "%s: %s", path, strerror(errno));
        unlink(path);
    }
    close(fd);
    memset(text, 0, sizeof text);
    return failed ? -1 : 0;
}

/* Appends the record in f->record, and flushes it. If it cannot be written as a whole, the file
 * keeps its length. */
static inline int ledger_file_write(ledger_file *f, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = pwrite(f->fd, f->record + done, bytes - done, f->size + (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    if (done < bytes || fsync(f->fd) != 0) {
        ledger_file_fail(f, "%s: %s; its %llu records are whole", f->path, strerror(errno),
                         (unsigned long long)f->chain.index);
        if (ftruncate(f->fd, f->size) != 0 || fsync(f->fd) != 0)
            ledger_file_fail(f, "%s: %s; its last record is unfinished and will be cut off",
                             f->path, strerror(errno));
        return -1;
    }
    f->size += (off_t)bytes;
    f->recorded = f->now.step;
    return 0;
}

/* Makes a record from digests that are in their place in f->record, signs and appends it. */
static inline int ledger_file_add(ledger_file *f, ledger_kind kind, size_t digests,
                                  const char *text, size_t length)
{
    static const unsigned char none[LEDGER_KEY] = { 0 };
    ledger_chain next = f->chain;
    const size_t bytes = ledger_write(f->record, f->room, kind, &next, &f->now,
                                      f->record + LEDGER_HEAD, digests, text, length);
    if (memcmp(next.key, none, LEDGER_KEY) != 0)
        f->sodium.sign(f->record + bytes - LEDGER_SIGNATURE, NULL, next.hash, LEDGER_HASH,
                       f->secret);
    if (ledger_file_write(f, bytes) != 0)
        return -1;
    f->chain = next;
    return 0;
}

/* Writes the digests of the store, all of them or those that are trained, to their place in
 * f->record. Returns their number, or 0 with f->error. */
static inline size_t ledger_file_digests(ledger_file *f, gckpt_store *store, int all)
{
    unsigned char *const to = f->record + LEDGER_HEAD;
    const size_t room = (f->room - LEDGER_HEAD - LEDGER_TAIL) / LEDGER_HASH,
                 n = ledger_digests(store, all, f->digests != NULL ? NULL : to, room);
    if (f->digests != NULL)
        memcpy(to, f->digests, n * LEDGER_HASH);
    if (n == 0)
        ledger_file_fail(f,
                         "%s: this process does not hold the whole optimiser state and all "
                         "weights, so it cannot record them",
                         f->path);
    return n;
}

/* Appends a record of f->now and the store's tensors. Returns 0, or -1 with f->error. */
static inline int ledger_file_append(ledger_file *f, ledger_kind kind, gckpt_store *store)
{
    const size_t n = kind == LEDGER_END ? 0 : ledger_file_digests(f, store, 0);
    if (n == 0 && kind != LEDGER_END)
        return -1;
    return ledger_file_add(f, kind, n, NULL, 0);
}

/* Checks the ledger in `bytes`; cuts off an unfinished record at its end. */
static inline int ledger_file_check(ledger_file *f, const unsigned char *bytes, size_t size,
                                    int has_sodium, ledger_report *r)
{
    if (!ledger_verify(bytes, size, has_sodium ? ledger_check_sodium : NULL, &f->sodium, r)) {
        if (!ledger_is_unfinished(bytes, size, r))
            return ledger_file_fail(f, "%s: %s; give the name of a new ledger", f->path, r->error);
        f->cut = size - r->bytes;
        if (ftruncate(f->fd, (off_t)r->bytes) != 0 || fsync(f->fd) != 0)
            return ledger_file_fail(f, "%s: %s", f->path, strerror(errno));
    }
    f->sodium_missing = r->has_key && !has_sodium;
    f->size = (off_t)r->bytes;
    return 0;
}

/* Finds the state of the training in the ledger `bytes`, and checks that the store has it. */
static inline int ledger_file_continue(ledger_file *f, const unsigned char *bytes,
                                       const ledger_report *r, gckpt_store *store)
{
    static const unsigned char none[LEDGER_KEY] = { 0 };
    ledger_record from, run, other;
    char why[256];
    const unsigned long long step = (unsigned long long)gckpt_store_step(store);
    if (memcmp(f->chain.key, none, LEDGER_KEY) == 0 && r->has_key)
        return ledger_file_fail(f, "%s is signed: give its key, or the name of a new ledger",
                                f->path);
    if (memcmp(f->chain.key, r->end.key, LEDGER_KEY) != 0)
        return ledger_file_fail(f, "%s was begun %s; give %s, or the name of a new ledger", f->path,
                                r->has_key ? "with another key" : "without a key",
                                r->has_key ? "that" : "none");
    if (!ledger_find(bytes, r->bytes, gckpt_store_step(store), &from))
        return ledger_file_fail(f,
                                "%s has no record of step %llu, from which this training "
                                "continues; its last one is of step %llu. Give the name of a "
                                "new ledger",
                                f->path, step, (unsigned long long)r->state.step);
    const size_t all = ledger_file_digests(f, store, 1), n = ledger_digests(store, 0, NULL, 0);
    if (all == 0)
        return -1;
    for (size_t at = 0; at < r->bytes; at += other.bytes) {
        ledger_parse(bytes + at, &other);
        if (other.kind == LEDGER_RUN && other.index <= from.index)
            run = other;
    }
    f->chain = r->end;
    f->now = from.state;
    if (from.kind == LEDGER_RUN && n < from.count)
        from.count = n;
    if (f->fed != 0 && f->fed != f->now.batches)
        return ledger_file_fail(f,
                                "%s has %llu batches at step %llu, but the checkpoint was saved "
                                "after %llu. Give the name of a new ledger",
                                f->path, (unsigned long long)f->now.batches, step,
                                (unsigned long long)f->fed);
    const unsigned char *digests = f->record + LEDGER_HEAD;
    int same = ledger_compare(&run, &from, &f->now, digests, n, why, sizeof why);
    if (same) { /* the frozen ones, which only records of runs have: those that follow the others */
        const size_t trained = ledger_trained(&run);
        from = run;
        from.digests += LEDGER_HASH * trained;
        from.count -= trained;
        same = from.count == all - n &&
               memcmp(from.digests, digests + LEDGER_HASH * n, LEDGER_HASH * from.count) == 0;
        snprintf(why, sizeof why, "its frozen weights are others than those of record %llu",
                 (unsigned long long)run.index);
    }
    if (!same)
        return ledger_file_fail(f, "%s is of another training: %s. Give the name of a new ledger",
                                f->path, why);
    return 0;
}

/* Reads the ledger, checks it, and appends the record of the run. */
static inline int ledger_file_begin(ledger_file *f, const char *key_path, gckpt_store *store,
                                    const char *text, size_t length)
{
    const size_t digests = ledger_digests(store, 1, NULL, 0);
    const int has_sodium = ledger_load_sodium(&f->sodium);
    unsigned char seed[LEDGER_SEED];
    ledger_text tensors = { NULL, 0, 0 };
    ledger_report r;
    size_t size = 0;
    int new_key = 0;
    if (key_path != NULL && !has_sodium)
        return ledger_file_fail(f, "signing needs libsodium, which is not installed; without a key "
                                   "the ledger is not signed");
    if (key_path != NULL && ledger_read_key(f, key_path, &new_key, seed) != 0)
        return -1;
    ledger_put_tensors(&tensors, store);
    f->room = ledger_bytes(digests, length + tensors.used + 1);
    f->record = (unsigned char *)malloc(f->room);
    char *all = (char *)malloc(length + tensors.used + 1);
    unsigned char *bytes = ledger_read_file(f->fd, &size);
    int failed = f->record == NULL || all == NULL || bytes == NULL || digests > 65535
                     ? ledger_file_fail(f, "%s: %s", f->path,
                                        digests > 65535 ? "the model has more than 65535 tensors"
                                        : errno != 0    ? ledger_error(errno)
                                                        : "out of memory")
                     : 0;
    if (!failed && size > 0)
        failed = ledger_file_check(f, bytes, size, has_sodium, &r);
    if (!failed && f->size > 0)
        failed = ledger_file_continue(f, bytes, &r, store);
    if (!failed && new_key)
        failed = ledger_write_key(f, key_path, seed);
    if (!failed) {
        const ledger_text whole = { all + length, tensors.used + 1, 0 };
        tensors = whole;
        memcpy(all, text, length);
        ledger_put_tensors(&tensors, store);
        const size_t n = ledger_file_digests(f, store, 1);
        failed = n == 0 || ledger_file_add(f, LEDGER_RUN, n, all, length + tensors.used) != 0 ||
                 (f->chain.index == 1 && ledger_flush_folder(f->path) != 0);
        if (failed && new_key)
            unlink(key_path);
    }
    memset(seed, 0, sizeof seed);
    free(bytes);
    free(all);
    return failed ? -1 : 0;
}

/* Opens a ledger, or creates it, and appends a record of kind LEDGER_RUN with `text`: lines "NAME
 * VALUE" that state the run, to which the names of the tensors are added. A new ledger begins at
 * f->now, of which the caller sets step and batches; an existing one must have a record of the
 * store's step and state, and f->now becomes its state. If key_path is not NULL, signs with the key
 * of that file, which is created if it does not exist. Executors of the training must exist, since
 * they create the optimiser state. Returns 0, or -1 with f->error; close the file either way. */
static inline int ledger_file_open(ledger_file *f, const char *path, const char *key_path,
                                   gckpt_store *store, const char *text, size_t length)
{
    struct flock lock;
    f->path = path;
    f->record = NULL;
    f->fd = open(path, O_RDWR | O_NONBLOCK); /* does not wait for a pipe */
    const int is_new = f->fd < 0 && errno == ENOENT;
    if (is_new)
        f->fd = open(path, O_RDWR | O_CREAT, 0666);
    if (f->fd < 0)
        return ledger_file_fail(f, "%s: %s", path, strerror(errno));
    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (fcntl(f->fd, F_SETLK, &lock) != 0 && (errno == EACCES || errno == EAGAIN))
        return ledger_file_fail(f, "%s: another program is writing this ledger", path);
    if (ledger_file_begin(f, key_path, store, text, length) == 0)
        return 0;
    if (is_new)
        unlink(path);
    return -1;
}
#endif

/* session.h - messages, a progress line, JSON events, interrupts and file checks of a training
 * program, and options stored in the saved file so that --resume FILE alone continues a run.
 *
 * To use it, copy it with options.h and json.h; it needs POSIX and gradckpt.h. A program has one
 * session, the variable `session` below. */
#ifndef SESSION_H
#define SESSION_H
#include "gradckpt.h"
#include "json.h"
#include "options.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct {
    const char *program; /* name of the program for error texts */
    FILE *out, *json;    /* out: text for people; json: JSON events, or NULL without --json */
    const char *json_path;
    int terminal, write_failed;
    double start;     /* time of the first step, by session_now() */
    uint64_t first;   /* number of the first step */
    char *texts[128]; /* values of options that were restored from a file */
    int text_count;
    const char *stdin_of; /* name of the option that reads standard input, or NULL */
    volatile sig_atomic_t interrupted;
} session;

/* ---- messages, the clock, events ------------------------------------------------------------- */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline int
session_fail(int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", session.program);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return status;
}

/* Returns the plural ending for n, so that "step%s" prints "1 step" and "2 steps". */
static inline const char *session_plural(int64_t n) { return n == 1 ? "" : "s"; }

static inline double session_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Writes one event to the JSON stream, if one is open. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
static inline void
session_event(const char *format, ...)
{
    va_list args;
    /* the event's text; the event with all options may be longer, and session_event_options writes
     * it */
    char text[2048];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (session.json != NULL)
        json_write_finite(session.json, text);
}

/* Prints a line of text, above the progress line if there is one. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
static inline void
session_print_line(const char *format, ...)
{
    char line[256];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(session.out, session.terminal ? "\r%-78s\n" : "%s\n", line);
}

/* Reports progress; `speed` is a text about the last step. On a terminal, rewrites one line at most
 * ten times a second; elsewhere prints about 20 lines in all. */
static inline void session_progress(uint64_t step, uint64_t total, double loss, const char *speed,
                                    size_t bytes)
{
    static double last;
    double t = session_now();
    uint64_t every = total > 20 ? total / 20 : 1;
    if (session.terminal ? t - last < 0.1 && step != total : step % every != 0 && step != 1)
        return;
    last = t;
    const double each = (t - session.start) / (double)(step - session.first);
    const long long left = (long long)(each * (double)(total - step));
    char line[160];
    snprintf(line, sizeof line, "step %llu/%llu  loss %.4f  %s  %zu bytes  %lld:%02lld left",
             (unsigned long long)step, (unsigned long long)total, loss, speed, bytes, left / 60,
             left % 60);
    fprintf(session.out, session.terminal ? "\r%-78s" : "%s\n", line);
}

/* Writes to the FILE `user`; a gckpt_write_fn. */
static inline size_t session_write(void *user, const void *bytes, size_t size)
{
    return fwrite(bytes, 1, size, (FILE *)user);
}

/* Returns 1 if all output so far was written. Otherwise returns 0, and prints an error at the first
 * time. */
static inline int session_check_output(void)
{
    FILE *const streams[2] = { session.out, session.json };
    for (int i = 0; i < 2; i++)
        if (streams[i] != NULL && (fflush(streams[i]) != 0 || ferror(streams[i]))) {
            if (!session.write_failed)
                session_fail(1, "%s: %s",
                             streams[i] == stdout ? "standard output"
                             : i == 0             ? "standard error"
                                                  : session.json_path,
                             strerror(errno));
            session.write_failed = 1;
            return 0;
        }
    return 1;
}

/* Returns 1 after an interrupt, so that the executor cancels the step without changing anything; a
 * gckpt_exec_desc.progress. */
static inline int session_cancelled(void *user, const gckpt_progress *at)
{
    return (void)user, (void)at, session.interrupted != 0;
}

static inline void session_on_signal(int number)
{
    static const char message[] = "\nstopping... (once more: ends at once)\n";
    const int error = errno;
    (void)number;
    session.interrupted = 1;
    if (write(STDERR_FILENO, message, sizeof message - 1) < 0)
        session.write_failed = 1; /* stderr is closed as well */
    errno = error;
}

/* Must be the first call. Installs signal handlers: the first interrupt stops the program at the
 * next instruction, the second one kills it. Ignores SIGPIPE, so that writing to a closed pipe is
 * an ordinary error. Returns an exit status if standard output or standard error is closed, because
 * the next file opened would take its place; otherwise 0. */
static inline int session_start(const char *program)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = session_on_signal;
    action.sa_flags = (int)(SA_RESTART | SA_RESETHAND);
    session.program = program;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (fcntl(STDERR_FILENO, F_GETFD) < 0)
        return 1;
    return fcntl(STDOUT_FILENO, F_GETFD) < 0 ? session_fail(1, "standard output is closed") : 0;
}

/* Flushes all output. Returns the exit status of a run that ended with `status`, which is an error
 * if output was lost. */
static inline int session_end(int status)
{
    if (session.out != NULL && !session_check_output())
        status = 1;
    if (session.json != NULL && fclose(session.json) != 0 && status == 0)
        status = session_fail(1, "--json %s: %s", session.json_path, strerror(errno));
    while (session.text_count > 0)
        free(session.texts[--session.text_count]);
    return status == 0 && session.interrupted ? 130 : status;
}

/* ---- devices --------------------------------------------------------------------------------- */
static const char *const session_devices[] = { "cpu", "cuda", NULL };

/* Sets *device to NULL, the processor, if number is 0, and to the first CUDA device if it is 1; the
 * latter needs a program that was built with SESSION_CUDA. Returns 0 or an exit status. */
static inline int session_device(int64_t number, const gckpt_backend **device)
{
    *device = NULL;
    if (number == 0)
        return 0;
#ifdef SESSION_CUDA
    const char *error;
    *device = gckpt_cuda_backend(0, &error);
    return *device != NULL ? 0 : session_fail(1, "--device cuda: %s", error);
#else
    return session_fail(2, "--device cuda: this program was built without CUDA; make "
                           "build/%s-cuda builds one with CUDA",
                        session.program);
#endif
}

/* Checks that a device has `bytes` free bytes; NULL is the processor, which is not checked. `what`
 * needs them. Returns 0 or an exit status. */
static inline int session_check_memory(const gckpt_backend *device, const char *what, size_t bytes)
{
#ifdef SESSION_CUDA
    size_t left, total;
    const char *error = device != NULL ? gckpt_cuda_memory(0, &left, &total) : NULL;
    if (error != NULL)
        return session_fail(1, "--device cuda: %s", error);
    if (device != NULL && bytes > left)
        return session_fail(
            1,
            "%s needs %zu bytes, but the device has %zu of its %zu bytes left; give "
            "a --budget of at most %zu, or end other programs on the device",
            what, bytes, left, total, left);
#endif
    return (void)device, (void)what, (void)bytes, 0;
}

/* Allocates memory for arenas, on the device or, if `device` is NULL, on the host. */
static inline void *session_alloc(const gckpt_backend *device, size_t bytes)
{
    return device != NULL ? device->allocate(device->context, bytes, 64) : malloc(bytes);
}

static inline void session_free(const gckpt_backend *device, void *memory, size_t bytes)
{
    if (device == NULL)
        free(memory);
    else if (memory != NULL)
        device->release(device->context, memory, bytes);
}

/* ---- files ----------------------------------------------------------------------------------- */
static inline int session_is_dash(const char *path) { return path != NULL && strcmp(path, "-") == 0; }

/* Reserves standard input for an option. A second reservation is an error, because standard input
 * can be read only once. Returns 0 or an exit status. */
static inline int session_claim_stdin(const char *option)
{
    if (session.stdin_of != NULL)
        return session_fail(2, "--%s -: standard input is --%s already", option, session.stdin_of);
    session.stdin_of = option;
    if (isatty(STDIN_FILENO))
        fprintf(stderr, "%s: --%s from standard input, until Ctrl-D\n", session.program, option);
    return 0;
}

/* Reads a whole file or pipe, or standard input if path is "-", and appends a zero byte. `name` is
 * the option's name for error texts. The caller frees *bytes. Returns 0 or an exit status. */
static inline int session_read_file(const char *name, const char *path, unsigned char **bytes, size_t *size)
{
    enum { MOST = 1 << 30 }; /* upper limit of the bytes read, because a pipe may be endless */
    struct stat info;
    size_t capacity = 0, got = 1;
    int failed = 0;
    FILE *f = session_is_dash(path) ? stdin : fopen(path, "rb");
    *bytes = NULL;
    *size = 0;
    if (f == NULL)
        return session_fail(1, "--%s %s: %s", name, path, strerror(errno));
    if (f == stdin && session_claim_stdin(name) != 0)
        return 2;
    if (f != stdin && fstat(fileno(f), &info) == 0 && (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode)))
        failed = session_fail(1, "--%s %s: a device; give a file or a pipe", name, path);
    while (!failed && got > 0) {
        if (capacity - *size < 2) {
            capacity = capacity == 0 ? 1 << 16 : 2 * capacity;
            unsigned char *bigger = (unsigned char *)realloc(*bytes, capacity);
            if (bigger == NULL) {
                failed = session_fail(1, "%s: out of memory after %zu bytes", path, *size);
                break;
            }
            *bytes = bigger;
        }
        got = fread(*bytes + *size, 1, capacity - *size - 1, f);
        *size += got;
        if (*size > MOST)
            failed = session_fail(1, "%s: more than 1 GiB; give a part of it", path);
        else if (got == 0 && ferror(f))
            failed = session_fail(1, "%s: %s", path, strerror(errno));
    }
    if (f != stdin)
        fclose(f);
    if (failed) {
        free(*bytes);
        *bytes = NULL;
        return 1;
    }
    (*bytes)[*size] = 0;
    return 0;
}

/* Returns the offset in a log at which a run that resumes at `step` continues: before the first
 * line of a later step, or before an incomplete line. Returns -1 if the file is not a log. */
static inline long session_log_end(const char *log, uint64_t step)
{
    const char *at = log, *end;
    if (*log != 0 && strncmp(log, "{\"event\":", 9) != 0)
        return -1;
    for (; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        const char *key = strstr(at, "\"step\":");
        if (key != NULL && key < end && strtoull(key + 7, NULL, 10) > step)
            break;
    }
    return (long)(at - log);
}

/* Opens a log for appending. First removes the events of steps after `step`, so that the log has no
 * step twice. */
static inline int session_append_log(const char *path, uint64_t step)
{
    unsigned char *log;
    size_t size;
    struct stat info;
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) {
        if (session_read_file("json", path, &log, &size) != 0)
            return 1;
        const long end = session_log_end((const char *)log, step);
        free(log);
        if (end < 0)
            return session_fail(2, "--json %s: the file has no events of this program to "
                                   "continue; give another path",
                                path);
        if (truncate(path, end) != 0)
            return session_fail(1, "--json %s: %s", path, strerror(errno));
    }
    session.json = fopen(path, "a");
    return session.json != NULL ? 0 : session_fail(1, "--json %s: %s", path, strerror(errno));
}

/* Writes text as a JSON string. */
static inline void session_write_string(FILE *f, const char *text)
{
    json_write_string(f, text, strlen(text));
}

/* Writes the first event, which has the values of all options. */
static inline void session_event_options(const options_table *t, uint64_t step)
{
    FILE *f = session.json;
    if (f == NULL)
        return;
    fprintf(f, "{\"event\":\"options\",\"program\":\"%s\",\"begin\":%llu", t->program,
            (unsigned long long)step);
    for (int i = 0; i < options_count(t); i++) {
        const options_desc *p = options_at(t, i);
        const int text = options_is_text(p->kind);
        fprintf(f, ",\"%s\":", p->name);
        if (text && *(const char **)p->variable == NULL)
            fputs("null", f);
        else if (text)
            session_write_string(f, *(const char **)p->variable);
        else if (p->kind == OPTIONS_REAL)
            fprintf(f, "%.9g", *(double *)p->variable);
        else if (p->kind == OPTIONS_INT_OR_AUTO && *(int64_t *)p->variable == OPTIONS_AUTO)
            session_write_string(f, "auto");
        else if (p->kind == OPTIONS_CHOICE)
            session_write_string(f, p->choices[*(int64_t *)p->variable]);
        else if (p->kind == OPTIONS_FLAG)
            fputs(*(int64_t *)p->variable ? "true" : "false", f);
        else
            fprintf(f, "%lld", (long long)*(int64_t *)p->variable);
    }
    fputs("}\n", f);
}

/* Opens the outputs. `events` is the path for JSON events; "-" means standard output, and text for
 * people then goes to standard error; NULL means no events. A run that resumes at `step` > 0 keeps
 * the earlier events in the file. Returns 0 or an exit status. */
static inline int session_open(const char *events, const options_table *t, uint64_t step)
{
    int failed = 0;
    session.out = stdout;
    session.json_path = events;
    if (session_is_dash(events)) {
        session.json = stdout;
        session.out = stderr;
    } else if (events != NULL && step > 0) {
        failed = session_append_log(events, step);
    } else if (events != NULL && (session.json = fopen(events, "w")) == NULL) {
        failed = session_fail(1, "--json %s: %s", events, strerror(errno));
    }
    if (failed == 0)
        session_event_options(t, step);
    session.terminal = isatty(fileno(session.out));
    return failed;
}

/* Continues an FNV-1a hash of 64 bits with `size` more bytes. */
static inline uint64_t session_hash(uint64_t hash, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return hash;
}

enum { SESSION_FILES = 24 };
typedef enum { SESSION_READS, SESSION_WRITES, SESSION_SAVES } session_use;
typedef struct {
    /* option: name of the option; path: its value, or NULL if the file is not used */
    const char *option, *path;
    /* SESSION_SAVES: a temporary file is written and then renamed to `path` */
    session_use use;
    /* for SESSION_SAVES: index of an input file that the output may replace, or -1 */
    int source;
} session_file;

/* Checks that a temporary file can be created next to `path` or, if that is a link, next to the
 * file that it points to. Returns 0 or an exit status. */
static inline int session_check_save(const char *option, const char *path, const struct stat *info)
{
    char *target = info != NULL ? realpath(path, NULL) : NULL, trial[4096 + 32];
    snprintf(trial, sizeof trial, "%s.try%ld", target != NULL ? target : path, (long)getpid());
    free(target);
    if (info != NULL && !S_ISREG(info->st_mode))
        return session_fail(1, "--%s %s: a folder, device or pipe; give the path of a file", option,
                            path);
    int fd = open(trial, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0)
        return session_fail(1, "--%s %s: %s", option, path, strerror(errno));
    close(fd);
    remove(trial);
    return 0;
}

/* Checks, before anything is computed, that all outputs can be written, and that no output is the
 * same file as an input or another output, even under another name. Does not change files, and
 * removes the files that it creates for the check. There are at most SESSION_FILES files, inputs
 * first. Returns 0 or an exit status. */
static inline int session_check_files(const session_file *files, int count)
{
    struct stat info[SESSION_FILES];
    int regular[SESSION_FILES] = { 0 }, created[SESSION_FILES] = { 0 }, status = 0;
    for (int i = 0; i < count && status == 0; i++) {
        const session_file *f = &files[i];
        int exists = f->path != NULL && stat(f->path, &info[i]) == 0;
        if (f->path != NULL && f->use == SESSION_SAVES)
            status = session_check_save(f->option, f->path, exists ? &info[i] : NULL);
        if (f->path != NULL && f->use == SESSION_WRITES && (!exists || S_ISREG(info[i].st_mode))) {
            /* creates a missing output, to get its device and inode numbers */
            int fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL, 0666);
            created[i] = fd >= 0;
            if (fd < 0)
                fd = open(f->path, O_WRONLY | O_CREAT, 0666);
            exists = fd >= 0 && fstat(fd, &info[i]) == 0;
            if (!exists)
                status = session_fail(1, "--%s %s: %s", f->option, f->path, strerror(errno));
            if (fd >= 0)
                close(fd);
        }
        regular[i] = exists && S_ISREG(info[i].st_mode);
        for (int k = 0; k < i && f->use != SESSION_READS && regular[i] && status == 0; k++)
            if (regular[k] && info[k].st_dev == info[i].st_dev && info[k].st_ino == info[i].st_ino &&
                !(f->use == SESSION_SAVES && k == f->source))
                status = session_fail(2, "--%s %s: it is also --%s %s; give another", f->option,
                                      f->path, files[k].option, files[k].path);
    }
    for (int i = 0; i < count; i++)
        if (created[i])
            remove(files[i].path);
    return status;
}

/* ---- options stored in a saved file ---------------------------------------------------------- */
/* Returns 1 if `names`, words separated by blanks, contains `name`, else 0. */
static inline int session_is_in(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = names; (at = strstr(at, name)) != NULL; at += n)
        if ((at == names || at[-1] == ' ') && (at[n] == ' ' || at[n] == 0))
            return 1;
    return 0;
}

/* Sets the options that are not on the command line to the values in the store's notes, except the
 * options in `not_kept`, which name reports and outputs: a file decides on none. Options in `fixed`
 * determine the model: returns an error if the command line gives one of them another value than its
 * note or, if a run's file has no note for it, than its default. Returns 0 or an exit status. */
static inline int session_restore_options(gckpt_store *store, const char *file, const options_table *t,
                           const char *fixed, const char *not_kept, int argc, char **argv)
{
    for (int i = 0; i < options_count(t); i++) {
        char key[64];
        const options_desc *p = options_at(t, i);
        if (session_is_in(not_kept, p->name))
            continue;
        const char *given = options_given(t, argc, argv, p->name);
        snprintf(key, sizeof key, "option.%s", p->name);
        const char *note = gckpt_store_note(store, key);
        const char *was = note != NULL ? note : options_default(t, p);
        if (given != NULL && session_is_in(fixed, p->name) &&
            (note != NULL || gckpt_store_note(store, "data") != NULL) &&
            (was == NULL || strcmp(given, was) != 0))
            return session_fail(2,
                                "--%s%s%s: %s was made with%s --%s%s%s; leave the option out, or "
                                "start a new training without --resume",
                                p->name, *given != 0 ? " " : "", given, file,
                                was != NULL ? "" : "out", p->name,
                                was != NULL && *was != 0 ? " " : "", was != NULL ? was : "");
        if (given != NULL || note == NULL)
            continue;
        char *text = (char *)malloc(strlen(note) + 1);
        if (text == NULL)
            return session_fail(1, "out of memory");
        session.texts[session.text_count++] = strcpy(text, note);
        if (!options_set(p, text))
            return session_fail(1, "--resume %s: its --%s %s is not allowed here; give --%s", file,
                                p->name, text, p->name);
    }
    return 0;
}

/* Stores the given options as notes, except the options in `not_kept`. File names become absolute
 * paths. */
static inline int session_note_options(gckpt_store *store, const options_table *t, const char *not_kept, int argc,
                        char **argv)
{
    for (int i = 0; i < options_count(t); i++) {
        char key[64];
        const options_desc *p = options_at(t, i);
        const char *given = options_given(t, argc, argv, p->name);
        if (given == NULL || session_is_in(not_kept, p->name))
            continue;
        char *resolved =
            options_is_text(p->kind) && p->kind != OPTIONS_TEXT ? realpath(given, NULL) : NULL;
        snprintf(key, sizeof key, "option.%s", p->name);
        gckpt_result result = gckpt_store_set_note(store, key, resolved != NULL ? resolved : given);
        free(resolved);
        if (result != GCKPT_OK)
            return session_fail(1, "--%s: %s", p->name, gckpt_error_text(store));
    }
    return 0;
}

/* Copies notes from one store to another: those of options, and those that are named in `others`
 * ("a b c"). If `from` is NULL, removes these notes from `to`, for a file that other programs will
 * read. */
static inline int session_copy_notes(gckpt_store *to, const gckpt_store *from, const options_table *t,
                                const char *others)
{
    for (int i = 0; *others != 0 || i < options_count(t); i++) {
        char key[64];
        if (i < options_count(t)) {
            snprintf(key, sizeof key, "option.%s", options_at(t, i)->name);
        } else {
            const int n = (int)strcspn(others, " ");
            snprintf(key, sizeof key, "%.*s", n, others);
            others += n + (others[n] == ' ');
        }
        const char *note = from != NULL ? gckpt_store_note(from, key) : NULL;
        if ((note != NULL || from == NULL) && gckpt_store_set_note(to, key, note) != GCKPT_OK)
            return session_fail(1, "%s", gckpt_error_text(to));
    }
    return 0;
}

/* Stores a whole number as a note. */
static inline int session_note_number(gckpt_store *store, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    if (gckpt_store_set_note(store, key, text) == GCKPT_OK)
        return 0;
    return session_fail(1, "%s", gckpt_error_text(store));
}

static inline uint64_t session_read_note(const gckpt_store *store, const char *key, uint64_t fallback)
{
    const char *note = gckpt_store_note(store, key);
    return note != NULL ? (uint64_t)strtoull(note, NULL, 10) : fallback;
}

/* Compares the hash of the training data with the note that the run stored at its beginning, and
 * stores the hash as a note. Returns an exit status if the data differs, unless the option is on
 * the command line; otherwise 0. */
static inline int session_check_data(gckpt_store *store, const char *key, const char *path, uint64_t hash,
                             int given)
{
    char text[24];
    const char *note = gckpt_store_note(store, key);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    if (note != NULL && strcmp(note, text) != 0 && !given)
        return session_fail(1,
                            "%s has changed since the run began; to continue with its present "
                            "content, give --%s %s",
                            path, key, path);
    if (gckpt_store_set_note(store, key, text) == GCKPT_OK)
        return 0;
    return session_fail(1, "%s", gckpt_error_text(store));
}
#endif

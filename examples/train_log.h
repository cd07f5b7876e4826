/* train_log.h - a CSV log with one line per epoch or step, and a function that formats numbers for
 * people. A training that was stopped and resumed logs no epoch or step twice. To use it, copy it
 * and change it as you like; train.h and lm.h include it for their option `log`. C99 or C++11.
 *
 *     if (train_log_open(path, header, epochs_done, error) != 0) ..
 *     const double *const cells[] = { &epoch, &loss, NULL };    // NULL for an empty cell
 *     if (train_log_add(path, cells, 3) != 0) ..                // errno says why
 *
 * The file is closed between lines, so other programs can read it at any time. */
#ifndef TRAIN_LOG_H
#define TRAIN_LOG_H
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Formats x as a short text with enough digits to tell a small value from 0: 0.000012 does not
 * become 0.0000. */
static inline const char *train_format(double x, char text[32])
{
    const double size = x < 0 ? -x : x;
    snprintf(text, 32, size == 0 || (size >= 0.01 && size < 1e6) ? "%.4f" : "%.3g", x);
    return text;
}

/* Returns how many bytes of the log to keep: the header and the complete lines whose first number, the
 * epoch or step, is at most `last`. Returns 0 if the file is empty, or -1 if it is not a log with this
 * header. A pipe or a terminal is none, and is not read, because reading would wait. */
static inline long train_log_end(FILE *f, const char *header, long long last)
{
    char line[1024];
    long end = (long)strlen(header);
    if (fseek(f, 0, SEEK_SET) != 0)
        return -1;
    if (fgets(line, sizeof line, f) == NULL)
        return 0;
    if (strcmp(line, header) != 0)
        return -1;
    while (fgets(line, sizeof line, f) != NULL && strchr(line, '\n') != NULL &&
           line[0] >= '0' && line[0] <= '9' && strtoll(line, NULL, 10) <= last)
        end += (long)strlen(line);
    return end;
}

/* Opens or creates a log with the line `header`. Removes lines of epochs or steps after `last` from an
 * existing log. Leaves a file with another header unchanged. Returns 0, or -1 with `error`. */
static inline int train_log_open(const char *path, const char *header, long long last,
                                 char error[512])
{
    FILE *f = fopen(path, "rb");
    const long end = f != NULL ? train_log_end(f, header, last) : 0;
    const size_t size = end > 0 ? (size_t)end : strlen(header);
    char *text = (char *)malloc(size);
    int failed = end < 0 || text == NULL;
    errno = 0;
    if (end < 0)
        snprintf(error, 512, "log: %s is not the log of a training; remove it or give another file",
                 path);
    else if (text == NULL)
        snprintf(error, 512, "log: out of memory for %.0f bytes", (double)size);
    else if (end > 0)
        rewind(f), failed = fread(text, 1, size, f) != size;
    else
        memcpy(text, header, size);
    if (f != NULL)
        fclose(f);
    if (!failed) {
        f = fopen(path, "wb");
        failed = f == NULL || fwrite(text, 1, size, f) != size;
        failed = (f != NULL && fclose(f) != 0) || failed;
    }
    if (failed && end >= 0 && text != NULL)
        snprintf(error, 512, "log: %s: %s", path,
                 errno != 0 ? strerror(errno) : "could not be read completely");
    free(text);
    return failed ? -1 : 0;
}

/* Appends a line of n cells; a NULL cell is empty. Returns 0, or -1 with errno. */
static inline int train_log_add(const char *path, const double *const *cells, int n)
{
    char text[32];
    FILE *f = fopen(path, "ab");
    int failed = f == NULL;
    for (int i = 0; i < n && !failed; i++) {
        const double x = cells[i] != NULL ? *cells[i] : 0;
        const int is_integer = x > -1e15 && x < 1e15 && x == (double)(long long)x;
        snprintf(text, sizeof text, is_integer ? "%.0f" : "%.9g", x);
        for (char *c = text; *c != 0; c++) /* writes decimal points in any locale */
            *c = *c == ',' ? '.' : *c;
        failed = fprintf(f, "%s%c", cells[i] != NULL ? text : "", i < n - 1 ? ',' : '\n') < 0;
    }
    return (f != NULL && fclose(f) != 0) || failed ? -1 : 0;
}
#endif

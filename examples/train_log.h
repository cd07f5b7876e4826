/* train_log.h - numbers for people, and a log for other programs: a CSV file with a line an epoch,
 * in which none is there twice, however often a training was ended and gone on with. To copy, and
 * to change; train.h has it for its option `log`. C99 or C++11.
 *
 *     if (train_log_open(path, head, epochs_done, error) != 0) ..
 *     const double *const cells[] = { &epoch, &loss, NULL };    // NULL: nothing is known
 *     if (train_log_add(path, cells, 3) != 0) ..                // errno says why
 *
 * The file is closed between lines, so a program that reads it meets whole ones. */
#ifndef TRAIN_LOG_H
#define TRAIN_LOG_H
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Digits enough to see: 0.000012 is not 0.0000. */
static inline const char *train_format(double x, char text[32])
{
    const double size = x < 0 ? -x : x;
    snprintf(text, 32, size == 0 || (size >= 0.01 && size < 1e6) ? "%.4f" : "%.3g", x);
    return text;
}

/* How many bytes of a log are its head and whole lines of epochs up to this one; 0: the file is
 * empty, -1: it is something else. */
static inline long train_log_end(FILE *f, const char *header, int epochs)
{
    char line[1024];
    long end = (long)strlen(header);
    if (fgets(line, sizeof line, f) == NULL)
        return 0;
    if (strcmp(line, header) != 0)
        return -1;
    while (fgets(line, sizeof line, f) != NULL && strchr(line, '\n') != NULL &&
           strtol(line, NULL, 10) >= 1 && strtol(line, NULL, 10) <= epochs)
        end += (long)strlen(line);
    return end;
}

/* The file begins with `head`, a line, and keeps its lines of epochs 1 to `epochs`, no others; a
 * file that does not begin so is not touched. -1: `error` says why. */
static inline int train_log_open(const char *path, const char *header, int epochs, char error[512])
{
    FILE *f = fopen(path, "rb");
    const long end = f != NULL ? train_log_end(f, header, epochs) : 0;
    const size_t size = end > 0 ? (size_t)end : strlen(header);
    char *text = (char *)malloc(size);
    int failed = end < 0 || text == NULL;
    errno = 0;
    if (end < 0)
        snprintf(error, 512, "log: %s is no log of a training: remove it, or take another", path);
    else if (text == NULL)
        snprintf(error, 512, "log: out of memory: %.0f bytes", (double)size);
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
        snprintf(error, 512, "log: %s: %s", path, errno != 0 ? strerror(errno) : "not read whole");
    free(text);
    return failed ? -1 : 0;
}

/* A line of n cells behind the others. -1: errno says why. */
static inline int train_log_add(const char *path, const double *const *cells, int n)
{
    char text[32];
    FILE *f = fopen(path, "ab");
    int failed = f == NULL;
    for (int i = 0; i < n && !failed; i++) {
        const double x = cells[i] != NULL ? *cells[i] : 0;
        const int is_integer = x > -1e15 && x < 1e15 && x == (double)(long long)x;
        snprintf(text, sizeof text, is_integer ? "%.0f" : "%.9g", x);
        for (char *c = text; *c != 0; c++) /* a point, whatever the program's locale is */
            *c = *c == ',' ? '.' : *c;
        failed = fprintf(f, "%s%c", cells[i] != NULL ? text : "", i < n - 1 ? ',' : '\n') < 0;
    }
    return (f != NULL && fclose(f) != 0) || failed ? -1 : 0;
}
#endif

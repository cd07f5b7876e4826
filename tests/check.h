/* check.h - the few lines the tests share: count, report, fail loudly.
 *
 *   CHECK(condition);                        counts one check; prints file, line and text when it fails
 *   CHECK_MSG(condition, "fmt", ...);        the same, with a message of your own
 *   return check_report("name");             prints "name: N passed, N failed"; the exit status
 *   for (.. check_tries(n) ..)               of n random tries a third, or all where TRIES=all
 */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long check_passed, check_failed;

#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
static int check_record(int ok, const char *file, int line, const char *format, ...)
{
    if (ok) {
        check_passed++;
        return 1;
    }
    if (++check_failed <= 25) {
        va_list args;
        va_start(args, format);
        fprintf(stderr, "%s:%d: ", file, line);
        vfprintf(stderr, format, args);
        fputc('\n', stderr);
        va_end(args);
    }
    return 0;
}

#define CHECK(condition) check_record((condition) ? 1 : 0, __FILE__, __LINE__, "%s", #condition)
#define CHECK_MSG(condition, ...) check_record((condition) ? 1 : 0, __FILE__, __LINE__, __VA_ARGS__)

static int check_report(const char *name)
{
    printf("%s: %ld passed, %ld failed\n", name, check_passed, check_failed);
    return check_failed != 0;
}

/* Of n tries with random values those that are made: a third, which is what make test has time for; all of
 * them where the environment has TRIES=all (make check). What is tried once or in every way is no such try. */
static inline int check_tries(int n)
{
    const char *tries = getenv("TRIES");
    return tries && strcmp(tries, "all") == 0 ? n : (n + 2) / 3;
}

/* A thread pool of sorts: any order must do. */
static inline void any_order(void *user, int64_t n, void (*body)(void *context, int64_t i),
                             void *context)
{
    (void)user;
    while (n-- > 0)
        body(context, n);
}

/* After gradckpt.h: every plan that the test makes from here on is checked, and every executor runs
 * models on their initial values (gckpt_exec_desc.allow_initial), except in a test that defines
 * INITIAL_VALUES_REFUSED before its includes. */
#ifdef GRADCKPT_H
#include "plan_check.h"
#ifndef INITIAL_VALUES_REFUSED
static inline gckpt_exec *check_exec_new(const gckpt_plan *plan, gckpt_store *store,
                                         const gckpt_exec_desc *desc)
{
    gckpt_exec_desc d;
    memset(&d, 0, sizeof d);
    if (desc)
        d = *desc;
    d.allow_initial = 1;
    return gckpt_exec_new(plan, store, &d);
}
#define gckpt_exec_new(...) check_exec_new(__VA_ARGS__)
#endif
#endif
#endif

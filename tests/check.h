/* check.h - the check functions of all tests: they count checks and report failures.
 *
 *   CHECK(condition);                        counts one check; prints file, line and text if it fails
 *   CHECK_MSG(condition, "fmt", ...);        counts one check; prints this message instead of the text if it fails
 *   return check_report("name");             prints "name: N passed, N failed" and returns the exit status
 *   for (.. check_iterations(n) ..)          returns a ninth of n tries; more if ITERATIONS is third or all
 *   if (check_sampled(i, n))                 true for every n-th case i of a sweep, and for all if ITERATIONS is set
 *   check_seed()                             returns the first random seed: the environment variable SEED, or 1
 */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H
#include "names.h"
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long check_passed, check_failed;
static int check_seed_used;

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
    const char *seed = getenv("SEED");
    if (check_failed && check_seed_used)
        printf("run again with the same random cases: SEED=%s\n", seed && *seed ? seed : "1");
    printf("%s: %ld passed, %ld failed\n", name, check_passed, check_failed);
    return check_failed != 0;
}

/* Returns the first random seed, below 2^20: the environment variable SEED, which the Makefile derives from the
 * commit, or 1. */
static inline unsigned check_seed(void)
{
    const char *seed = getenv("SEED");
    check_seed_used = 1;
    return seed && *seed ? (unsigned)strtoul(seed, NULL, 10) & 0xfffffu : 1;
}

/* Returns how many of n random tries a test makes: a ninth (make test), a third if the environment variable
 * ITERATIONS is "third" (make check), or all if it is "all" (make check-all). Cases that are listed in a table do not
 * count as tries. */
static inline int check_iterations(int n)
{
    const char *iterations = getenv("ITERATIONS");
    const int of = !iterations || !*iterations ? 9 : strcmp(iterations, "all") == 0 ? 1 : 3;
    return (n + of - 1) / of;
}

/* Returns nonzero if case i of a sweep is to run: every n-th case, beginning at one that the seed chooses, so that
 * successive commits run all cases. If the environment variable ITERATIONS is set (make check), every case. */
static inline int check_sampled(unsigned i, unsigned n)
{
    return check_iterations(9) > 1 || (i + check_seed()) % n == 0;
}

/* A substitute for a thread pool: runs the indices in descending order, since any order must give the same result. */
static inline void any_order(void *user, int64_t n, void (*body)(void *context, int64_t i),
                             void *context)
{
    (void)user;
    while (n-- > 0)
        body(context, n);
}

/* If gradckpt.h was included, plan_check.h checks every plan that the test makes from here on, and executors accept
 * parameters that still have their initial values (gckpt_exec_desc.allow_initial). Both leave out options of parts that
 * the header lacks (tests/check_all.sh, modules). A test that defines
 * INITIAL_VALUES_REFUSED before its includes gets executors without allow_initial. */
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
#ifdef GCKPT_NO_DEBUG
    d.debug = 0;
#endif
    return gckpt_exec_new(plan, store, &d);
}
#define gckpt_exec_new(...) check_exec_new(__VA_ARGS__)
#endif
#endif
#endif

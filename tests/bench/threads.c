/* threads.c - measures a step while other programs use the processors.
 *
 *     make threads              prints a table for each OMP_WAIT_POLICY
 *     build/threads [alone]     alone: starts no other programs
 *
 * Steps of a GPT are measured while no other process runs, and next to one and two processes that only spin, which
 * this program starts and ends. For each case it prints the median milliseconds per step and the average number of
 * processors that the threads used. Then it prints the microseconds per step of an MLP 784-128-10 with 32 rows and
 * of an MLP 16-16-4, each with one thread and with all threads. */
#include "model.h"
#include <signal.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 500 };

/* Measures steps for about `seconds` seconds. Returns the median time of a step, or -1 on an error; stores the
 * average number of processors that the program used in *processors. */
static double median_step(bench *b, double seconds, double *processors)
{
    const gckpt_hyper adamw = { .lr = 1e-4f, .clip = 1 };
    double times[MOST], start = 0;
    clock_t used = 0;
    int n = -1; /* the first step is not counted */
    for (; n < 5 || (n < MOST && now() - start < seconds); n++) {
        double t = now();
        if (gckpt_step(b->exec, b->feeds, 2, b->z->batch, &adamw, NULL) != GCKPT_OK)
            return -1;
        if (n < 0)
            start = now(), used = clock();
        else
            times[n] = now() - t;
    }
    *processors = (double)(clock() - used) / CLOCKS_PER_SEC / (now() - start);
    return median(times, n);
}

static double measure(const size *z, int threads, double seconds, double *processors)
{
    bench b = { 0 };
    double t = bench_new(&b, z, GCKPT_STORE_ALL, threads) ? median_step(&b, seconds, processors) : -1;
    bench_free(&b);
    return t;
}

int main(int argc, char **argv)
{
    static const size gpt = {
        .layers = 6, .heads = 6, .dim = 192, .context = 256, .batch = 4, .vocabulary = 256
    };
    static const size small[] = { { .inputs = 784, .dim = 128, .vocabulary = 10, .batch = 32 },
                                  { .inputs = 16, .dim = 16, .vocabulary = 4, .batch = 32 } };
    const char *policy = getenv("OMP_WAIT_POLICY");
    int threads = gckpt_threads(), most = argc > 1 && !strcmp(argv[1], "alone") ? 0 : 2;
    double t = 0, processors = 0;
    pid_t busy[2];
    int started = 0;
    printf("\n### OMP_WAIT_POLICY %s\n\n| model | | time |\n|---|---|--:|\n", policy == NULL ? "unset" : policy);
    for (int others = 0; t >= 0 && others <= most; others++) {
        if (others > 0) {
            fflush(stdout);
            busy[started] = fork();
            if (busy[started] < 0)
                break;
            if (busy[started] == 0)
                for (volatile unsigned spin = 0;; spin++)
                    ;
            started++;
        }
        t = measure(&gpt, threads, 3, &processors);
        printf("| GPT | %s | %.0f ms (%.2f) |\n",
               others == 0 ? "alone" : others == 1 ? "and one busy process" : "and two busy processes", 1e3 * t, processors);
    }
    while (started-- > 0) {
        kill(busy[started], SIGKILL);
        waitpid(busy[started], NULL, 0);
    }
    for (int i = 0; t >= 0 && i < 4; i++) {
        t = measure(&small[i / 2], i % 2 ? threads : 1, 0.2, &processors);
        printf("| MLP %s | %s | %.0f us |\n", i < 2 ? "784-128-10" : "16-16-4", i % 2 ? "all threads" : "one thread", 1e6 * t);
    }
    return t < 0;
}

/* run - runs a program with limits and prints in one line how it ended.
 *
 *     run SECONDS MEGABYTES KILOBYTES FOLDER OUTPUT program [argument..]
 *
 * The program runs in FOLDER with empty input; stdout and stderr go to the file OUTPUT. run kills it
 * and its children after SECONDS of processor time, after three times as many by the clock (other
 * programs may use the processor), or after KILOBYTES of output. It may use MEGABYTES of memory and
 * start no other process; if MEGABYTES is 0, both are unlimited. Output and exit status are "ended" 0,
 * "status N" 1, "time" 2, "output" 3 or "signal NAME" 4. This contains mistakes; it is no sandbox
 * against malicious programs. */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE /* RLIMIT_NPROC */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined __linux__ && defined __has_include && (defined __x86_64__ || defined __aarch64__)
#if __has_include(<linux/seccomp.h>)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif
#endif

static volatile sig_atomic_t child;

static void on_signal(int number)
{
    if (child > 0)
        kill(-(pid_t)child, SIGKILL);
    _exit(128 + number);
}

static void limit(int what, rlim_t most)
{
    struct rlimit r;
    if (getrlimit(what, &r) == 0) {
        r.rlim_cur = r.rlim_max != RLIM_INFINITY && r.rlim_max < most ? r.rlim_max : most;
        if (what != RLIMIT_CPU) /* its soft limit warns (SIGXCPU), its hard limit kills */
            r.rlim_max = r.rlim_cur;
        setrlimit(what, &r);
    }
}

/* Forbids child processes, because endless forks would exhaust the machine and root has no limit on
 * processes. Threads are allowed. A filter cannot see the flags of clone3, so clone3 is reported as
 * missing, and the C library then uses clone. */
static void forbid_fork(void)
{
#ifdef SECCOMP_MODE_FILTER
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#ifdef __NR_fork
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fork, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_vfork, 5, 0),
#endif
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 435, 5, 0), /* clone3 */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x10000, 0, 1), /* CLONE_THREAD */
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    };
    const struct sock_fprog all = { sizeof rules / sizeof *rules, rules };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all);
#elif defined RLIMIT_NPROC
    limit(RLIMIT_NPROC, 1); /* also counts the user's other processes, so no more can start */
#endif
}

static void exec_program(char **argv, int out, long seconds, long megabytes)
{
    const int none = open("/dev/null", O_RDONLY);
    setsid();
    limit(RLIMIT_CPU, (rlim_t)seconds);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, (rlim_t)16 << 20);
    if (megabytes > 0)
        limit(RLIMIT_AS, (rlim_t)megabytes << 20);
    if (none < 0 || dup2(none, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0 ||
        chdir(argv[4]) != 0)
        _exit(127);
    for (int fd = 3; fd < 64; fd++)
        close(fd);
    if (megabytes > 0)
        forbid_fork();
    execvp(argv[6], argv + 6);
    perror(argv[6]);
    _exit(127);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char *name_of(int number)
{
    return number == SIGSEGV || number == SIGBUS ? "SIGSEGV"
           : number == SIGABRT                   ? "SIGABRT"
           : number == SIGFPE                    ? "SIGFPE"
           : number == SIGXFSZ                   ? "SIGXFSZ"
                                                 : "other";
}

int main(int argc, char **argv)
{
    if (argc < 7)
        return fprintf(stderr, "run SECONDS MEGABYTES KILOBYTES FOLDER OUTPUT program\n"), 125;
    const long seconds = atol(argv[1]), megabytes = atol(argv[2]);
    long bytes_left = atol(argv[3]) * 1024;
    FILE *output = fopen(argv[5], "wb");
    int pipes[2], status = 0, exited = 0, open_yet = 1, late = 0;
    if (output == NULL || pipe(pipes) != 0)
        return perror(argv[5]), 125;
    signal(SIGINT, on_signal), signal(SIGTERM, on_signal), signal(SIGHUP, on_signal);
    const double start = now();
    const pid_t pid = fork();
    if (pid == 0)
        exec_program(argv, pipes[1], seconds, megabytes);
    child = (sig_atomic_t)pid;
    close(pipes[1]);
    while (pid > 0 && !late && bytes_left >= 0) { /* until it has ended and its output is read */
        struct pollfd in = { open_yet ? pipes[0] : -1, POLLIN, 0 };
        char block[4096];
        const int ready = poll(&in, 1, exited ? 0 : open_yet ? 100 : 5);
        const ssize_t n = ready > 0 ? read(pipes[0], block, sizeof block) : 0;
        if (n > 0)
            bytes_left -= (long)fwrite(block, 1, (size_t)(n < bytes_left ? n : bytes_left), output) + (n > bytes_left);
        else if (exited)
            break;
        else if (ready > 0)
            open_yet = 0; /* it closed its output, but may still run */
        exited = exited || waitpid(pid, &status, WNOHANG) == pid;
        late = !exited && now() - start > 3 * (double)seconds;
    }
    kill(-pid, SIGKILL);
    if (!exited)
        waitpid(pid, &status, 0);
    if (fclose(output) != 0)
        return perror(argv[5]), 125;
    if (bytes_left < 0)
        return puts("output"), 3;
    if (late || (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU))
        return puts("time"), 2;
    if (WIFSIGNALED(status))
        return printf("signal %s\n", name_of(WTERMSIG(status))), 4;
    return WEXITSTATUS(status) ? printf("status %d\n", WEXITSTATUS(status)), 1 : (puts("ended"), 0);
}

/* guest.c - the first process of user-mode Linux: executes the commands that blocks.py sends, one a line.
 *
 *     guest MODULE..                  loads these modules of the kernel, then reads commands
 *
 *     mount DEVICE FOLDER FS OPTIONS  (OPTIONS is - for none)
 *     unmount FOLDER
 *     run PROGRAM ARGUMENTS..         the program's output precedes the result
 *
 * After each command it prints "= N", where N is 0, errno, or the status of the program. At the end of its input it
 * switches the machine off. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

enum { WORDS = 16 };

static int run(char **words)
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        execv(words[0], words);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0)
        return errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static int obey(char **words, int n)
{
    if (n == 5 && !strcmp(words[0], "mount"))
        return mount(words[1], words[2], words[3], MS_NOATIME,
                     strcmp(words[4], "-") ? words[4] : "")
                   ? errno
                   : 0;
    if (n == 2 && !strcmp(words[0], "unmount"))
        return umount(words[1]) ? errno : 0;
    return n > 1 && !strcmp(words[0], "run") ? run(words + 1) : EINVAL;
}

int main(int argc, char **argv)
{
    char line[2000], *words[WORDS + 1];
    struct termios t;
    if (!tcgetattr(0, &t)) { /* turns off the echo of the terminal, which would mix with the output */
        t.c_lflag &= ~(tcflag_t)ECHO;
        t.c_oflag &= ~(tcflag_t)OPOST;
        tcsetattr(0, TCSANOW, &t);
    }
    for (int i = 1; i < argc; i++) {
        const int file = open(argv[i], O_RDONLY);
        if (syscall(SYS_finit_module, file, "", 0) && errno != EEXIST)
            printf("%s: %s\n", argv[i], strerror(errno));
        close(file);
    }
    mount("sys", "/sys", "sysfs", 0, "");
    setenv("OMP_NUM_THREADS", "1", 1);
    puts("= 0");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int n = 0;
        for (char *w = strtok(line, " \n"); w && n < WORDS; w = strtok(NULL, " \n"))
            words[n++] = w;
        words[n] = NULL;
        printf("= %d\n", obey(words, n));
        fflush(stdout);
    }
    sync();
    return reboot(RB_POWER_OFF);
}

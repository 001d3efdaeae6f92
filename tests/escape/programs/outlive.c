/* Starts what should not outlive it. Every process that it leaves ends by itself within 30 s, and prints nothing but dots
 * into a pipe of the run: harmless. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "attack.h"

static time_t born;
static void ignore_all(void) {
    for (int s = 1; s < 65; s++) signal(s, SIG_IGN);
}
__attribute__((noreturn)) static void stay(void) {
    prctl(PR_SET_NAME, "survivor");
    for (;;) {
        if (time(NULL) - born > 30) _exit(0);
        usleep(20000);
    }
}
static void silent(void) {
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) dup2(null, fd);
}

static void new_session(int argc, char **argv) {
    (void)argc, (void)argv;
    if (fork() == 0) {
        setsid();
        ignore_all();
        silent();
        stay();
    }
}
static void double_fork(int argc, char **argv) {
    (void)argc, (void)argv;
    if (fork() == 0) {
        setsid();
        if (fork() == 0) {
            ignore_all();
            silent();
            stay();
        }
        _exit(0);
    }
    wait(NULL);
}
static void no_hangup(int argc, char **argv) {
    (void)argc, (void)argv;
    if (fork() == 0) {
        signal(SIGHUP, SIG_IGN);
        silent();
        stay();
    }
}
/* Children that hold the run's output open. */
static void hold_output(int argc, char **argv) {
    (void)argc, (void)argv;
    if (fork() == 0) {
        setsid();
        ignore_all();
        stay();
    }
}
/* A run of processes each of which lives for a moment only, in sessions of their own: what kills pid by pid never catches up. */
static void run_away(int argc, char **argv) {
    (void)argc, (void)argv;
    for (int i = 0; i < 4; i++)
        if (fork() == 0) {
            silent();
            for (;;) {
                if (time(NULL) - born > 30) _exit(0);
                if (fork()) _exit(0);
                setsid();
                prctl(PR_SET_NAME, "survivor");
            }
        }
}
static void stopped(int argc, char **argv) {
    (void)argc, (void)argv;
    if (fork() == 0) {
        setsid();
        silent();
        prctl(PR_SET_NAME, "survivor");
        raise(SIGSTOP);
        stay();
    }
}
/* Out of the run's control group, if there is a way. */
static void move_group(int argc, char **argv) {
    static const char *const files[] = {"/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs",
                                        "/sys/fs/cgroup/memory/tasks", "/sys/fs/cgroup/pids/tasks", "/proc/self/cgroup"};
    (void)argc, (void)argv;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int fd = open(files[i], O_WRONLY);
        if (fd >= 0 && write(fd, "0", 1) == 1) harm("moved by %s", files[i]);
    }
    safe("no control group to write to");
}

static void begin(int argc, char **argv) {
    static const struct attack kinds[] = {{"setsid", new_session}, {"double_fork", double_fork}, {"nohup", no_hangup},
        {"hold_output", hold_output}, {"run_away", run_away}, {"stopped", stopped}};
    born = time(NULL);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (argc > 0 && !strcmp(argv[0], kinds[i].name)) {
            kinds[i].run(0, NULL);
            if (argc > 1) for (;;) pause(); /* ended by its limit */
            printf("BEGUN\n");
            fflush(stdout);
            _exit(0);
        }
    broken("no such kind");
}

/* count: survivors seen from another command in the same sandbox */
static void count(int argc, char **argv) {
    char path[64], name[32];
    int seen = 0;
    (void)argc, (void)argv;
    for (int pid = 2; pid < 32768; pid++) {
        snprintf(path, sizeof path, "/proc/%d/comm", pid);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        if (fgets(name, sizeof name, f) && !strcmp(name, "survivor\n")) seen++;
        fclose(f);
    }
    if (seen) harm("%d outlived the run", seen);
    safe("none is left");
}

const struct attack attacks[] = {{"begin", begin}, {"count", count}, {"move_group", move_group}, {NULL, NULL}};

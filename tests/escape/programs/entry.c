/* Attacks a process that is coming in: tries every way to look into it, steer it or take what it holds. Harmless: the first that
 * works is told and left at that. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "attack.h"

/* Whoever is there besides PID 1 and this program, once the test says so. */
static int victim(void) {
    char go;
    int found = 0;
    printf("WAITING\n");
    fflush(stdout);
    if (read(0, &go, 1) != 1) broken("nobody said go");
    DIR *proc = opendir("/proc");
    for (struct dirent *e; proc && (e = readdir(proc));) {
        int pid = atoi(e->d_name);
        if (pid > 1 && pid != getpid()) found = pid;
    }
    closedir(proc);
    if (!found) broken("nobody came");
    return found;
}

static bool readable(int pid, const char *name) {
    char path[64], data[4096];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, data, sizeof data);
    if (fd >= 0) close(fd);
    return n > 0;
}
static bool link_of(int pid, const char *name) {
    char path[64], target[256];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    return readlink(path, target, sizeof target) > 0;
}
/* Through its root, and what its descriptors name. */
static bool descends(int pid, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s/.", pid, name);
    DIR *d = opendir(path);
    bool any = false;
    for (struct dirent *e; d && (e = readdir(d));) any |= e->d_name[0] != '.';
    if (d) closedir(d);
    return any;
}

static void attack_one(int argc, char **argv) {
    static const char *const links[] = {"exe", "root", "cwd", "ns/mnt", "ns/user", "ns/net", "fd/0", "fd/300", "fd/301"};
    static const char *const files[] = {"environ", "maps", "auxv", "syscall", "stack", "io", "personality", "pagemap", "numa_maps"};
    int pid = victim();
    char memory[64], path[64];
    struct iovec here = {memory, sizeof memory}, there = {(void *)attack_one, sizeof memory};
    (void)argc, (void)argv;
    if (descends(pid, "root")) harm("its root");
    if (descends(pid, "cwd")) harm("its working directory");
    if (descends(pid, "fd")) harm("its descriptors");
    if (descends(pid, "map_files")) harm("its mapped files");
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (link_of(pid, links[i])) harm("link %s", links[i]);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (readable(pid, files[i])) harm("file %s", files[i]);
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    if (open(path, O_RDWR) >= 0 || open(path, O_RDONLY) >= 0) harm("its memory");
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) > 0 || errno != EPERM) harm("process_vm_readv: %m");
    if (process_vm_writev(pid, &here, 1, &there, 1, 0) > 0 || errno != EPERM) harm("process_vm_writev: %m");
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    for (int target = 0; fd >= 0 && target < 310; target++)
        if (syscall(SYS_pidfd_getfd, fd, target, 0) >= 0 || errno != EPERM) harm("its descriptor %d: %m", target);
    if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0) harm("traces it");
    if (ptrace(PTRACE_ATTACH, pid, 0, 0) == 0) harm("traces it");
    safe("process %d gave nothing away", pid);
}

/* signal NUMBER */
static void signal_one(int argc, char **argv) {
    int pid = victim();
    (void)argc;
    if (kill(pid, atoi(argv[0])) == 0) harm("signalled process %d", pid);
    refused("kill");
}

const struct attack attacks[] = {{"attack", attack_one}, {"signal", signal_one}, {NULL, NULL}};

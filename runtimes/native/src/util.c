/* Small helpers that every role uses. Owns no state. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "spawner.h"

void die(const char *what) {
    fprintf(stderr, "stokehold-spawner: %s: %s\n", what, strerror(errno));
    exit(1);
}

void warn_errno(const char *what, const char *name) {
    fprintf(stderr, "stokehold-spawner: %s %s: %s\n", what, name ? name : "", strerror(errno));
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t boot_ns(void) { return clock_ns(CLOCK_BOOTTIME); }

int send_with_fds(int socket, const void *data, size_t length, const int *fds, unsigned count) {
    union { struct cmsghdr header; char room[CMSG_SPACE(SKH_FDS_MAX * sizeof(int))]; } control;
    struct iovec part = {(void *)(uintptr_t)data, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > SKH_FDS_MAX) return -EINVAL;
    if (count) {
        memset(&control.header, 0, sizeof control.header);
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, count * sizeof(int));
    }
    ssize_t n;
    do n = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0) return -errno;
    return (size_t)n == length ? 0 : -EMSGSIZE;
}

/* Bytes received, 0 at the end, or -errno. A message that does not fit in `data` or `fds` is refused (-EMSGSIZE) and its
 * descriptors are closed. */
ssize_t recv_with_fds(int socket, void *data, size_t size, int *fds, unsigned *count) {
    union { struct cmsghdr header; char room[CMSG_SPACE(SKH_FDS_MAX * sizeof(int))]; } control;
    struct iovec part = {data, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    unsigned room = count ? *count : 0, got = 0;
    bool too_many = false;
    ssize_t n;
    do n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (count) *count = 0;
    if (n < 0) return -errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
            if (got < room) fds[got++] = fd;
            else {
                close(fd);
                too_many = true;
            }
        }
    }
    if (too_many || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
        for (unsigned i = 0; i < got; i++) close(fds[i]);
        return -EMSGSIZE;
    }
    if (count) *count = got;
    return n;
}

#ifdef __SANITIZE_ADDRESS__
/* The leak check traces its own process, which is not dumpable. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }
#endif

#ifdef STOKEHOLD_WEAK
#include <signal.h>

static bool listed(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, word, length) && (at[length] == ',' || !at[length])) return true;
    return false;
}

bool without(const char *mechanism) { return listed(getenv("STOKEHOLD_WITHOUT"), mechanism); }

/* Raw system calls: the C library's idea of our pid is stale after a raw clone. */
void stop_at(const char *step) {
    if (listed(getenv("STOKEHOLD_STOP_AT"), step)) syscall(SYS_kill, syscall(SYS_getpid), SIGSTOP);
}
#endif

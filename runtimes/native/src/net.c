/* Network namespaces: nothing but a loopback interface. They belong to the host's user namespace, so root inside has no
 * power over them: it cannot add an address, open a raw socket or change a rule. */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "maker.h"

static int loopback_up(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), error = 0;
    if (fd < 0) return -errno;
    if (ioctl(fd, SIOCSIFFLAGS, &request) < 0) error = -errno;
    close(fd);
    return error;
}

static int set(int proc, const char *path, const char *value) {
    int fd = openat(proc, path, O_WRONLY | O_CLOEXEC), error = 0;
    if (fd < 0) return -errno;
    if (write(fd, value, strlen(value)) < 0) error = -errno;
    close(fd);
    return error;
}

int net_settings(int proc, uid_t base, const char **stage) {
    char groups[48];
    *stage = "net: low ports";  /* NET_BIND_SERVICE inside does not reach a namespace that the host owns */
    int error = set(proc, "sys/net/ipv4/ip_unprivileged_port_start", "0");
    if (error) return error;
    *stage = "net: ping";       /* as on a usual host: datagram ICMP sockets, here to ourselves only */
    snprintf(groups, sizeof groups, "%u %u", base, base + RANGE_SIZE - 1);
    return set(proc, "sys/net/ipv4/ping_group_range", groups);
}

int net_make(const struct host *host, const char **stage) {
    *stage = "net: home";
    int home = openat(host->proc_fd, "self/ns/net", O_RDONLY | O_CLOEXEC), fd = -1, error = 0;
    if (home < 0) return -errno;
    if (!without("netns")) {
        *stage = "net: namespace";
        if (unshare(CLONE_NEWNET) < 0) {
            error = -errno;
            close(home);
            return error;
        }
        *stage = "net: loopback";
        error = loopback_up();
    }
    if (!error) {
        *stage = "net: open";
        fd = openat(host->proc_fd, "self/ns/net", O_RDONLY | O_CLOEXEC);
        if (fd < 0) error = -errno;
    }
    if (!without("netns") && setns(home, CLONE_NEWNET) < 0) die("cannot return to our network namespace");
    close(home);
    return error ? error : fd;
}

/* Reaches for the network: the host's loopback and abstract sockets, other addresses, interfaces. Harmless: the listeners
 * are the test's own, and no packet leaves the machine. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "attack.h"

static void try_connect(int fd, const void *address, socklen_t length, const char *what) {
    struct pollfd ready = {fd, POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof error;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (connect(fd, address, length) == 0) harm("connected to %s", what);
    if (errno == EINPROGRESS && poll(&ready, 1, 500) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0) {
        if (!error) harm("connected to %s", what);
        errno = error;
    }
}

/* tcp ADDRESS PORT */
static void tcp(int argc, char **argv) {
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    if (argc != 2) broken("usage");
    four.sin_port = six.sin6_port = htons((uint16_t)atoi(argv[1]));
    if (inet_pton(AF_INET, argv[0], &four.sin_addr) == 1) try_connect(socket(AF_INET, SOCK_STREAM, 0), &four, sizeof four, argv[0]);
    else if (inet_pton(AF_INET6, argv[0], &six.sin6_addr) == 1) try_connect(socket(AF_INET6, SOCK_STREAM, 0), &six, sizeof six, argv[0]);
    else broken("address");
    refused("connect");
}

/* unix NAME: abstract if it begins with @ */
static void unix_socket(int argc, char **argv) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int types[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
    (void)argc;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", argv[0]);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(argv[0]));
    if (argv[0][0] == '@') address.sun_path[0] = 0;
    else length++;
    for (int i = 0; i < 3; i++) try_connect(socket(AF_UNIX, types[i], 0), &address, length, argv[0]);
    refused("connect");
}

/* Any interface but loopback, or an address on one. */
static void interfaces(int argc, char **argv) {
    struct if_nameindex *all = if_nameindex();
    struct ifaddrs *addresses;
    (void)argc, (void)argv;
    if (!all) broken("if_nameindex: %m");
    for (; all->if_index; all++)
        if (strcmp(all->if_name, "lo") != 0) harm("interface %s", all->if_name);
    if (getifaddrs(&addresses) < 0) broken("getifaddrs: %m");
    for (; addresses; addresses = addresses->ifa_next)
        if (strcmp(addresses->ifa_name, "lo") != 0) harm("address on %s", addresses->ifa_name);
    safe("loopback alone");
}

/* Changes its network: takes loopback down. Its own. */
static void configure(int argc, char **argv) {
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    (void)argc, (void)argv;
    if (ioctl(fd, SIOCSIFFLAGS, &request) == 0) harm("took loopback down");
    refused("SIOCSIFFLAGS");
}

const struct attack attacks[] = {
    {"tcp", tcp}, {"unix", unix_socket}, {"interfaces", interfaces}, {"configure", configure}, {NULL, NULL}};

/* One program in one sandbox, through a real enterer: what the broker does for a call, and nothing else of it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "floor.h"

#define COMMAND "floorcommand"

int floor_enterer(const struct host *host) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) die("socketpair");
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) {
        close(pair[0]);
        enterer_main(host, pair[1]);
    }
    close(pair[1]);
    return pair[0];
}

static int enter(int enterer, const struct w_make *made_as, const char *program, const int fds[2], struct w_answer *answer) {
    struct skh_buf body = {0}, message = {0};
    struct w_enter ask = {.op = W_ENTER, .flags = CMD_EXCLUSIVE, .role = made_as->role, .range = made_as->range, .payload_index = -1,
                          .limits = {.memory = UINT64_MAX, .stack = UINT64_MAX, .fsize = UINT64_MAX, .pids = UINT32_MAX,
                                     .cpu_milli = UINT32_MAX}};
    memcpy(ask.sandbox, made_as->name, sizeof ask.sandbox);
    memcpy(ask.proc, COMMAND, sizeof COMMAND);
    for (uint32_t target = 0; target < 3; target++) ask.desc[ask.desc_count++] = (struct w_desc){.target = target, .index = W_NULL};
    skh_put_text(&body, T_ARG, program);
    skh_put_text(&body, T_ENV, "PATH=/usr/bin:/bin");
    skh_put_text(&body, T_CWD, "/");
    skh_put_text(&body, T_USER, made_as->role ? "0" : "1000");
    ask.payload_length = (uint32_t)body.length;
    skh_put(&message, &ask, sizeof ask);
    skh_put(&message, body.data, body.length);
    int error = send_with_fds(enterer, message.data, message.length, fds, 2);
    skh_buf_free(&body);
    skh_buf_free(&message);
    if (error) return error;
    unsigned none = 0;
    ssize_t n = recv_with_fds(enterer, answer, sizeof *answer, NULL, &none);
    return n == (ssize_t)sizeof *answer ? 0 : -EPIPE;
}

int floor_run(const struct host *host, int enterer, const struct w_make *made_as, int pidfd, const char *program, const char **stage) {
    struct w_answer answer = {0};
    struct st_message told = {0};
    int status[2], code = 0;
    *stage = "entry";
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, status) < 0) return -errno;
    int error = enter(enterer, made_as, program, (const int[]){pidfd, status[1]}, &answer);
    close(status[1]);
    if (!error && answer.error) error = -answer.error;
    while (!error && answer.pid && waitpid(answer.pid, &code, __WALL) < 0 && errno == EINTR) {}
    while (!error && recv(status[0], &told, sizeof told, MSG_DONTWAIT) > 0)
        if (told.kind == ST_FAIL) error = -told.error;
    close(status[0]);
    if (!error && code) error = -ECHILD;
    if (!error) {
        *stage = "the command's group";
        error = cg_command_remove(&host->cg, made_as->name, COMMAND);
    }
    return error;
}

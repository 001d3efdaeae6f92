/* What floor.c needs to run a program in each sandbox: an enterer of its own, spoken to as the broker would. */
#ifndef STOKEHOLD_FLOOR_H
#define STOKEHOLD_FLOOR_H

#include "maker.h"

int floor_enterer(const struct host *host);   /* fork one; its socket. It ends with the socket. */
/* Run `program` to its end in a sandbox that was just made. 0, or -errno with *stage. */
int floor_run(const struct host *host, int enterer, const struct w_make *made_as, int pidfd, const char *program, const char **stage);

#endif

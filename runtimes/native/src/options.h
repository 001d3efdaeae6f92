/* Reading the command line: every function exits with 2 and the usage when the text is not what it should be. */
#ifndef STOKEHOLD_OPTIONS_H
#define STOKEHOLD_OPTIONS_H

#include "maker.h"

#define SLOTS 8u               /* uid ranges of several spawners on one host do not overlap */

_Noreturn void usage(const char *problem);
unsigned long option_number(const char *name, const char *text, unsigned long least, unsigned long most);
const char *option_cgroup(const char *text);
struct layer_option option_layer(char *text);  /* changes `text` */
void raise_files(void);                        /* RLIMIT_NOFILE, as far as the kernel lets anybody */

#endif

/* What hostile programs share. Each is one file with a table of attacks; `program NAME ARG…` makes one attempt and says in
 * its last line of output what came of it: "HARM …" (it got what it should not) or "SAFE …" (it was refused, and how). Any
 * other ending is a broken test. They are run inside sandboxes only, and each says why success would hurt nobody. */
#ifndef ATTACK_H
#define ATTACK_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct attack { const char *name; void (*run)(int argc, char **argv); };
extern const struct attack attacks[]; /* ends with name NULL */

static void say(const char *word, const char *format, va_list args) {
    printf("%s ", word);
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
}

__attribute__((noreturn, format(printf, 1, 2), unused)) static void harm(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("HARM", format, args);
    _exit(0);
}

__attribute__((noreturn, format(printf, 1, 2), unused)) static void safe(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("SAFE", format, args);
    _exit(0);
}

/* Something that the attack takes for granted is not so. */
__attribute__((noreturn, format(printf, 1, 2), unused)) static void broken(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("BROKEN", format, args);
    _exit(3);
}

__attribute__((noreturn, unused)) static void refused(const char *what) { safe("%s: %s", what, strerrorname_np(errno)); }

int main(int argc, char **argv) {
    for (const struct attack *a = attacks; argc > 1 && a->name; a++)
        if (!strcmp(a->name, argv[1])) {
            a->run(argc - 2, argv + 2);
            broken("%s came back", a->name);
        }
    broken("no such attack");
}

#endif

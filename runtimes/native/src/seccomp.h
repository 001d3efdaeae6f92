/* The system call filter of everything that runs in a sandbox. seccomp_rules.c is the policy, as data; seccomp.c turns it into
 * one BPF program per variant. */
#ifndef STOKEHOLD_SECCOMP_H
#define STOKEHOLD_SECCOMP_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What becomes of a call. V_DENY is EPERM, or the end of the program in the `deny_kill` variant; V_ERRNO(e) is e in both. */
typedef uint32_t verdict;
#define V_ALLOW 0x10000u
#define V_DENY 0x20000u
#define V_ERRNO(e) ((verdict)(e))

/* One step of a rule that looks at arguments. Every argument named in the rules is one of which the kernel uses the low 32 bits
 * alone, so only those are compared: what stands above them can neither hide a value nor fake one. */
struct step {
    enum { END, IF, UNLESS_SKIP, ELSE } kind; /* IF equal: verdict. UNLESS equal: skip so many steps. ELSE: verdict */
    uint8_t arg;
    uint32_t mask, value;
    uint32_t then;
};
struct call_rule { uint32_t call; const char *reason; const struct step *steps; /* end with ELSE, END */ };
struct call_group { verdict verdict; const char *reason; const uint16_t *calls; /* ends with CALLS_END */ };
#define CALLS_END 0xffff
#define CALL_MAX 512u      /* numbers from here on are unknown: ENOSYS */

extern const struct call_group seccomp_groups[];   /* ends with calls NULL */
extern const struct call_rule seccomp_rules[];     /* ends with steps NULL */

struct sock_fprog seccomp_build(bool deny_kill);          /* aborts on an inconsistent policy: it is constant */
int seccomp_install(const struct sock_fprog *program);    /* 0 or -errno; needs no_new_privs */

#endif

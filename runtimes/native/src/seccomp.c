/* Compiles the policy into classic BPF. The space of call numbers is cut into runs with one outcome each, found by binary search;
 * a call with a rule of its own is a run of one. Not by libseccomp: it compares 64 bits, so "everything but this ioctl" can be
 * passed by setting a bit that the kernel ignores, and its rules have no order. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "seccomp.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#define X32_BIT 0x40000000u
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "no system call policy for this architecture"
#endif

struct span { uint32_t first; verdict verdict; const struct call_rule *rule; };
struct program { struct sock_filter code[BPF_MAXINSNS]; unsigned length; bool deny_kill; };

static void emit(struct program *p, uint16_t code, uint8_t jt, uint8_t jf, uint32_t k) {
    if (p->length == BPF_MAXINSNS) abort();
    p->code[p->length++] = (struct sock_filter){code, jt, jf, k};
}

static void emit_verdict(struct program *p, verdict v) {
    uint32_t k = v == V_ALLOW ? SECCOMP_RET_ALLOW
               : v == V_DENY ? (p->deny_kill ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM)
                             : SECCOMP_RET_ERRNO | v;
    emit(p, BPF_RET | BPF_K, 0, 0, k);
}

/* load, mask, compare, and what an IF returns */
static unsigned step_length(const struct step *s) { return s->kind == ELSE ? 1 : s->kind == IF ? 4 : 3; }

static void emit_rule(struct program *p, const struct call_rule *rule) {
    if (rule->steps->kind == END) abort();
    for (const struct step *s = rule->steps; s->kind != END; s++) {
        if (s[1].kind == END && s->kind != ELSE) abort(); /* it would run on into the next rule */
        if (s->kind == ELSE) {
            emit_verdict(p, s->then);
            continue;
        }
        emit(p, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offsetof(struct seccomp_data, args[s->arg]));
        emit(p, BPF_ALU | BPF_AND | BPF_K, 0, 0, s->mask);
        if (s->kind == IF) {
            emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, s->value);
            emit_verdict(p, s->then);
        } else {
            unsigned skip = 0;
            for (uint32_t i = 1; i <= s->then; i++) {
                if (s[i].kind == END || s[i + 1].kind == END) abort();
                skip += step_length(&s[i]);
            }
            if (skip > 255) abort();
            emit(p, BPF_JMP | BPF_JEQ | BPF_K, 0, (uint8_t)skip, s->value);
        }
    }
}

/* The accumulator holds the call's number throughout. Conditional jumps reach 255 instructions, so the far side is an
 * unconditional one. */
static void emit_search(struct program *p, const struct span *spans, unsigned count) {
    if (count == 1) {
        if (spans->rule) emit_rule(p, spans->rule);
        else emit_verdict(p, spans->verdict);
        return;
    }
    unsigned half = count / 2;
    emit(p, BPF_JMP | BPF_JGE | BPF_K, 0, 1, spans[half].first);
    unsigned jump = p->length;
    emit(p, BPF_JMP | BPF_JA, 0, 0, 0);
    emit_search(p, spans, half);
    p->code[jump].k = p->length - jump - 1;
    emit_search(p, spans + half, count - half);
}

static unsigned cut(struct span *spans) {
    static struct span by_call[CALL_MAX];
    unsigned count = 0;
    for (uint32_t i = 0; i < CALL_MAX; i++) by_call[i] = (struct span){i, V_ERRNO(ENOSYS), NULL};
    for (const struct call_group *g = seccomp_groups; g->calls; g++)
        for (const uint16_t *c = g->calls; *c != CALLS_END; c++) {
            if (*c >= CALL_MAX - 1 || by_call[*c].verdict != V_ERRNO(ENOSYS)) abort(); /* named twice */
            by_call[*c].verdict = g->verdict;
        }
    for (const struct call_rule *r = seccomp_rules; r->steps; r++) {
        if (r->call >= CALL_MAX - 1 || by_call[r->call].verdict != V_ERRNO(ENOSYS) || by_call[r->call].rule) abort();
        by_call[r->call].rule = r;
    }
    for (uint32_t i = 0; i < CALL_MAX; i++)
        if (!count || by_call[i].rule || spans[count - 1].rule || by_call[i].verdict != spans[count - 1].verdict)
            spans[count++] = by_call[i];
    return count;
}

struct sock_fprog seccomp_build(bool deny_kill) {
    static struct span spans[CALL_MAX];
    struct program *p = calloc(1, sizeof *p);
    if (!p) abort();
    p->deny_kill = deny_kill;
    emit(p, BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, arch));
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, ARCH);
    emit_verdict(p, V_DENY); /* 32-bit programs: their numbers mean other calls */
    emit(p, BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
#ifdef X32_BIT
    emit(p, BPF_JMP | BPF_JGE | BPF_K, 0, 1, X32_BIT);
    emit_verdict(p, V_DENY);
#endif
    emit_search(p, spans, cut(spans));
    struct sock_fprog out = {(unsigned short)p->length, malloc(p->length * sizeof *p->code)};
    if (!out.filter) abort();
    memcpy(out.filter, p->code, p->length * sizeof *p->code);
    free(p);
    return out;
}

int seccomp_install(const struct sock_fprog *program) {
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program) < 0 ? -errno : 0;
}

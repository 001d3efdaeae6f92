/* The bounds of running commands: when to look next, what was found, and what a command used in the end. CPU time is its
 * group's; wall time counts from its exec; memory is anonymous + shared memory of its group, sampled at widening intervals
 * because no kernel keeps its peak. */
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker.h"

#define MS 1000000ull

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The earliest moment at which the CPU limit can be reached: no command is faster than its share of all CPUs. */
static uint64_t cpu_at(struct process *p, uint64_t now, uint64_t used) {
    uint64_t online = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN) * 1000;
    uint64_t milli = p->cpu_milli && p->cpu_milli < online ? p->cpu_milli : online;
    uint64_t left = p->cpu_limit > used ? (p->cpu_limit - used) * 1000 / milli : 0;
    return now + (left < MS ? MS : left);
}

static void plan(struct broker *b, struct process *p, uint64_t now, uint64_t used) {
    uint64_t at = UINT64_MAX;
    if (p->wall_limit) at = least(at, p->exec_ns + p->wall_limit);
    if (p->silence_limit) at = least(at, p->output_ns + p->silence_limit);
    if (p->cpu_limit) at = least(at, cpu_at(p, now, used));
    if (at == UINT64_MAX) loop_cancel(&b->loop, &p->timer);
    else loop_at(&b->loop, &p->timer, at);
}

void limits_begin(struct broker *b, struct process *p) {
    uint64_t now = now_ns();
    p->output_ns = p->exec_ns;
    plan(b, p, now, 0);
    if (p->sandbox->state == SB_READY) loop_at(&b->loop, &p->sandbox->sampling, now + MS);
    p->sandbox->active_ns = now;
}

void limits_fire(struct broker *b, struct timer *t) {
    struct process *p = (struct process *)((char *)t - offsetof(struct process, timer));
    uint64_t now = now_ns(), used = 0;
    if (!p->exec_ns) {
        if (p->ended == E_EXIT) {
            p->ended = E_FAULT;
            snprintf(p->error, sizeof p->error, "entry took too long");
        }
        process_kill(b, p, E_FAULT);
        return;
    }
    if (p->cpu_limit) {
        int64_t n = cg_cpu_ns(&b->host->cg, p->sandbox->name, p->id);
        used = n > 0 ? (uint64_t)n : 0;
    }
    if (p->cpu_limit && used >= p->cpu_limit) process_kill(b, p, E_CPU);
    else if (p->wall_limit && now >= p->exec_ns + p->wall_limit) process_kill(b, p, E_WALL);
    else if (p->silence_limit && now >= p->output_ns + p->silence_limit) process_kill(b, p, E_SILENCE);
    else plan(b, p, now, used);
}

static const char *memory_group(const struct process *p) { return p->flags & CMD_EXCLUSIVE ? NULL : p->id; }

static void look(struct broker *b, struct process *p) {
    struct cg_memory m;
    if (cg_memory(&b->host->cg, p->sandbox->name, memory_group(p), &m)) return;
    p->peak = m.anon + m.shmem > p->peak ? m.anon + m.shmem : p->peak;
    if (m.kills && m.failures) p->memory_hit = true;
    else if (m.kills) p->outer_kill = true;
}

/* A lease's own memory, without its files, is over its share: end what is largest, as the kernel would. */
static void kill_largest(struct broker *b, struct sandbox *s) {
    pid_t worst = 0;
    unsigned long most = 0;
    char name[128], text[256];
    for (struct process *p = s->processes; p; p = p->next) {
        snprintf(name, sizeof name, "%s/c/%s/cgroup.procs", s->name, p->id);
        FILE *procs = NULL;
        int fd = openat(b->host->cg.v2_fd, name, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) procs = fdopen(fd, "re");
        while (procs && fgets(text, sizeof text, procs)) {
            int pid = atoi(text), statm;
            char path[32];
            unsigned long size = 0, rss = 0;
            snprintf(path, sizeof path, "%d/statm", pid);
            if (pid <= 0 || (statm = openat(b->host->proc_fd, path, O_RDONLY | O_CLOEXEC)) < 0) continue;
            ssize_t n = read(statm, text, sizeof text - 1);
            close(statm);
            text[n > 0 ? n : 0] = 0;
            if (sscanf(text, "%lu %lu", &size, &rss) == 2 && rss > most) most = rss, worst = pid;
        }
        if (procs) fclose(procs);
    }
    if (!worst) return;
    s->own_kills++;
    kill(worst, SIGKILL);
}

void limits_sample(struct broker *b, struct timer *t) {
    struct sandbox *s = (struct sandbox *)((char *)t - offsetof(struct sandbox, sampling));
    uint64_t now = now_ns(), age = now - s->active_ns;
    bool running = false, closely = false;  /* closely: a memory kill is to end a whole tree */
    for (struct process *p = s->processes; p; p = p->next) {
        if (p->state != P_RUNNING && p->state != P_ENTERING && !p->lingering) continue;
        running = true;
        if (!p->own_memory) continue;
        closely = true;
        look(b, p);
        if (p->memory_hit && p->ended == E_EXIT) process_kill(b, p, E_MEMORY);
    }
    if (!running || s->state != SB_READY) return;
    for (struct process *p = s->processes; p; p = p->next) {
        if (p->state != P_RUNNING) continue;
        int64_t pids = p->flags & CMD_EXCLUSIVE ? cg_pids_now(&b->host->cg, s->name) : cg_threads_now(&b->host->cg, s->name, p->id);
        if (pids > (int64_t)p->pids_peak) p->pids_peak = (uint32_t)pids;
    }
    struct cg_memory m;
    if (s->memory && cg_memory(&b->host->cg, s->name, NULL, &m) == 0 && m.anon > s->memory) kill_largest(b, s);
    uint64_t widest = closely ? 10 * MS : 250 * MS, narrowest = closely ? MS : 2 * MS;
    uint64_t wait = age / 8 < narrowest ? narrowest : least(age / 8, widest);
    loop_at(&b->loop, t, now + wait);
}

void limits_final(struct broker *b, struct process *p) {
    const struct cgroups *cg = &b->host->cg;
    struct sandbox *s = p->sandbox;
    struct cg_memory m = {0};
    bool killed = p->reaped && WIFSIGNALED(p->status) && WTERMSIG(p->status) == SIGKILL;
    int64_t cpu = cg_cpu_ns(cg, s->name, p->id);
    p->cpu_ns = cpu > 0 ? (uint64_t)cpu : 0;
    if (p->own_memory) {
        look(b, p);
        if (cg_memory(cg, s->name, memory_group(p), &m) == 0 && m.max_usage) p->max_rss = least(p->max_rss, m.max_usage);
    } else if (s->memory && cg_memory(cg, s->name, NULL, &m) == 0) {
        uint64_t seen = m.kills + s->own_kills;
        p->memory_hit = killed && seen > p->kills_base;
        s->kills = seen;
    }
    p->peak = p->max_rss > p->peak ? p->max_rss : p->peak;
    int64_t pids = p->flags & CMD_EXCLUSIVE ? cg_pids_peak(cg, s->name) : 0;
    if (pids > (int64_t)p->pids_peak) p->pids_peak = (uint32_t)pids;
    if (!p->pids_peak) p->pids_peak = 1;
    if (p->ended == E_FAULT || p->ended == E_KILLED) return;
    uint64_t wall = p->exec_ns ? p->end_ns - p->exec_ns : 0;
    if (p->memory_hit) p->ended = E_MEMORY;
    else if (p->outer_kill && killed && p->ended == E_EXIT) {
        p->ended = E_FAULT;
        snprintf(p->error, sizeof p->error, "killed for memory that an outer group lacked");
    } else if (p->ended == E_EXIT && !p->executed) {
        p->ended = E_FAULT;
        snprintf(p->error, sizeof p->error, "ended while it was entering");
    } else if ((p->ended == E_EXIT || p->ended == E_OUTPUT) && p->cpu_limit && p->cpu_ns > p->cpu_limit) p->ended = E_CPU;
    else if ((p->ended == E_EXIT || p->ended == E_OUTPUT) && p->wall_limit && wall > p->wall_limit) p->ended = E_WALL;
}

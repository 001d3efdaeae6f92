/* The broker's state: one connection to the gateway, workers, sandboxes, processes, timers. Single-threaded; one epoll loop. */
#ifndef STOKEHOLD_BROKER_H
#define STOKEHOLD_BROKER_H

#include <sys/resource.h>

#include "ring.h"
#include "spawner.h"
#include "table.h"

struct broker_settings { unsigned makers, enterers, orphan_s; };
void broker_main(const struct host *host, int listen_socket, int zygote_socket, const struct broker_settings *settings)
    __attribute__((noreturn));

struct broker;
struct early;

/* ---- readiness and time (loop.c) ---- */
struct watch { int fd; void (*ready)(struct broker *b, struct watch *w, uint32_t events); };
struct timer { uint64_t at; size_t slot; /* 1-based place in the heap, 0: not set */ void (*fire)(struct broker *b, struct timer *t); };
struct loop { int epoll; struct timer **heap; size_t timers, room; struct epoll_event *batch; int batch_left; };

void loop_init(struct loop *l);
void loop_watch(struct loop *l, struct watch *w, uint32_t events);
void loop_rewatch(struct loop *l, struct watch *w, uint32_t events);
void loop_unwatch(struct loop *l, struct watch *w);          /* and forgets events of this batch that name it; does not close */
void loop_at(struct loop *l, struct timer *t, uint64_t at);  /* set or move */
void loop_cancel(struct loop *l, struct timer *t);
void loop_once(struct broker *b, struct loop *l);

/* ---- the gateway's connection (link.c) ---- */
struct frame_out;
struct link {
    struct watch watch;        /* fd -1: nobody is connected */
    uint64_t epoch;
    bool blocked;              /* the socket is full, wait for EPOLLOUT */
    struct frame_out *first, **last;
    size_t queued;
};
struct request { uint16_t op; uint64_t seq; const uint8_t *payload; size_t length; int *fds; unsigned fds_count; };

void link_init(struct link *l);
void link_accept(struct broker *b, int fd);
void link_drop(struct broker *b);
void link_send(struct broker *b, uint16_t op, uint64_t seq, struct skh_buf *payload /* taken over */, int fd /* taken over, or -1 */);
void link_reply(struct broker *b, const struct request *r, int code, const char *detail);
void link_reply_seq(struct broker *b, uint16_t op, uint64_t seq, int code, const char *detail);
void link_flush(struct broker *b);
void dispatch(struct broker *b, const struct request *r);   /* requests.c */

/* ---- workers (workers.c) ---- */
enum worker_kind { MAKER, ENTERER };
struct job {
    struct job *next;
    uint64_t token;
    void *message;             /* a w_* struct with what follows it */
    size_t length;
    int fds[PASSED_MAX + DESC_MAX * 2 + 4];
    unsigned fds_count;
    uint64_t owner;            /* what the answer is about: an id of the sandbox, process or file operation */
    void (*done)(struct broker *b, struct job *j, const struct w_answer *a);
};
struct worker { struct watch watch; enum worker_kind kind; pid_t pid; struct job *job; };
struct workers { int zygote; unsigned count; struct worker *all; struct job *first[2], **last[2]; uint64_t token; };

void workers_start(struct broker *b);
void workers_end(struct broker *b);
struct job *job_new(struct broker *b, size_t length);       /* message zeroed, token set */
void job_pass(struct job *j, int fd);                       /* takes fd over; it is closed once sent */
void workers_submit(struct broker *b, enum worker_kind kind, struct job *j);
bool workers_reaped(struct broker *b, pid_t pid);           /* true if it was a worker: it has been replaced */

/* ---- sandboxes (sandbox.c) ---- */
enum sandbox_state { SB_MAKING, SB_READY, SB_ENDING, SB_UNMAKING };
struct process;
struct waiter { struct waiter *next; uint16_t op; uint64_t seq; };
struct sandbox {
    char name[SKH_ID_MAX + 1];
    uint64_t id;
    enum sandbox_state state;
    bool used, doomed;         /* doomed: to be ended as soon as it stands */
    uint32_t role, range;
    uint64_t memory, disk;
    pid_t pid1;
    struct skh_buf spec, record;
    uint64_t expires;
    char reason[24];
    char failure[128];         /* why it could not be made */
    struct waiter *creating, *destroying;
    struct process *processes;
    unsigned entering;         /* jobs under way in enterers */
    uint64_t kills, own_kills; /* memory kills in its group as last seen, and those by us among them */
    struct timer expiry, sampling;
    uint64_t active_ns;        /* when the last command began */
};

struct sandbox *sandbox_find(struct broker *b, const char *name);
struct sandbox *sandbox_by_id(struct broker *b, uint64_t id);
void sandbox_create(struct broker *b, const struct request *r);
void sandbox_claim(struct broker *b, const struct request *r);
void sandbox_destroy(struct broker *b, const struct request *r);
void sandbox_freeze(struct broker *b, const struct request *r);
void sandbox_list(struct broker *b, const struct request *r);
void sandbox_end(struct broker *b, struct sandbox *s, const char *reason);
void sandbox_idle(struct broker *b, struct sandbox *s);     /* a process or job of an ending one is gone: go on if it was the last */
bool sandbox_reaped(struct broker *b, pid_t pid);
void sandboxes_disconnected(struct broker *b);
void sandboxes_end_all(struct broker *b, const char *reason);

/* ---- processes (process.c, limits.c, start.c) ---- */
enum process_state { P_ENTERING, P_RUNNING, P_DRAINING, P_ENDED };
struct stream {
    struct watch watch;        /* fd -1: closed or never */
    struct process *process;
    uint32_t target;
    struct ring ring;
    bool used, kill_on_full, watched;
    uint64_t limit;
};
struct process {
    char id[SKH_ID_MAX + 1];
    uint64_t serial;
    struct process *next;      /* of its sandbox */
    struct sandbox *sandbox;
    enum process_state state;
    uint32_t flags;
    pid_t pid;                 /* on the host; 0 until entered, and again once reaped */
    int inner_pid;
    bool reaped, executed, acknowledged, lingering, own_memory, memory_hit, outer_kill;
    int status;                /* of wait4 */
    struct watch status_watch;
    struct stream streams[2];  /* 1 and 2 */
    int input;                 /* write end of stdin, or a terminal's master; -1 */
    bool terminal;
    uint64_t cpu_limit, wall_limit, silence_limit, memory_limit, cpu_milli;
    uint64_t start_ns, exec_ns, end_ns, output_ns;
    uint64_t cpu_ns, peak, max_rss, kills_base;
    uint32_t pids_peak;
    enum skh_ended ended;
    char error[128];
    struct timer timer;        /* entry, wall, silence, CPU: whichever is next */
    struct timer drain;        /* looks again whether the tree is gone */
    int events_wd;             /* inotify on its group while waiting for emptiness, -1 */
};

struct process *process_find(struct broker *b, const char *id);
void process_start(struct broker *b, const struct request *r);
void process_signal(struct broker *b, const struct request *r);
void process_end(struct broker *b, const struct request *r);
void process_open(struct broker *b, const struct request *r);
void process_watch(struct broker *b, const struct request *r);
void process_close_input(struct broker *b, const struct request *r);
void process_resize(struct broker *b, const struct request *r);
void process_ack(struct broker *b, const struct request *r);
void process_list(struct broker *b, struct sandbox *s);      /* STARTED and EXIT events of all of them */

struct process *process_new(struct broker *b, struct sandbox *s, const char *id);
void process_entered(struct broker *b, uint64_t serial, const struct w_answer *a);
void process_fault(struct broker *b, struct process *p, const char *stage, int error);
void process_kill(struct broker *b, struct process *p, enum skh_ended why);
bool process_reaped(struct broker *b, pid_t pid, int status, const struct rusage *usage);
void process_settle(struct broker *b, struct process *p);    /* main is reaped: is the tree gone? then finish */
void process_free(struct broker *b, struct process *p);
void process_forget(struct broker *b, struct process *p);     /* nobody asks for its outcome any more */
void process_send_exit(struct broker *b, struct process *p);
void process_send_started(struct broker *b, struct process *p);
void processes_orphaned(struct broker *b);                    /* the gateway is gone */
void status_drain(struct broker *b, struct process *p);
void stream_drain(struct broker *b, struct stream *st);
void stream_close(struct broker *b, struct stream *st);
void stream_tell(struct broker *b, struct stream *st);

bool early_take(struct broker *b, pid_t pid, struct early *out); /* true if `pid` was reaped already */

void limits_begin(struct broker *b, struct process *p);       /* exec has happened */
void limits_fire(struct broker *b, struct timer *t);
void limits_final(struct broker *b, struct process *p);       /* CPU, memory and the verdict of the groups, at the end */
void limits_sample(struct broker *b, struct timer *t);        /* a sandbox's memory */
void limits_output(struct broker *b, struct process *p);

/* ---- file operations (fileop.c) ---- */
void file_request(struct broker *b, const struct request *r);
void file_commit(struct broker *b, const struct request *r);
void file_cancel(struct broker *b, const struct request *r);
bool file_reaped(struct broker *b, pid_t pid);
void files_drop(struct broker *b);                            /* the gateway is gone: undo what was not committed */
struct fileop;

struct broker {
    const struct host *host;
    struct broker_settings settings;
    uint64_t instance, serial;
    struct loop loop;
    struct link link;
    struct workers workers;
    struct watch listener, pending, signals, inotify; /* pending: connected, no HELLO yet */
    struct table sandboxes, processes, by_pid, by_wd, sandbox_ids, process_serials, file_seqs;
    struct early { pid_t pid; int status; struct rusage usage; } early[1024]; /* children reaped before their worker named them */
    unsigned early_next;
    uint32_t *free_ranges;
    uint32_t free_count;
    struct timer orphan;
    struct fileop *files;
    bool stopping;
    uint64_t made, unmade, started, ended, faults;
};

#endif

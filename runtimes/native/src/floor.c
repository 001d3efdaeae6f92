/* How fast this kernel makes and ends sandboxes: the maker's own code in a loop, without broker, protocol or pool. With --exec a program
 * is entered and run to its end in each, by an enterer of the worker's own. Prints one JSON object. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "floor.h"
#include "options.h"

#define WORKERS_MAX 64

struct result { uint64_t made, failed, make_ns, run_ns, end_ns; int error; char stage[48]; };

struct plan { const char *layer, *program; bool call; uint64_t end; };

static _Noreturn void work(const struct host *host, const struct plan *plan, unsigned number, struct result *result) {
    struct w_make ask = {.role = 1, .range = number, .disk = 256u << 20, .memory = 768u << 20,
                         .shown_memory = 512u << 20, .pids = 256, .cpu_milli = 1000};
    if (plan->call) ask = (struct w_make){.range = number, .disk = 256u << 20};
    snprintf(ask.base, sizeof ask.base, "%s", plan->layer);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) _exit(1);
    maker_begin(host);
    int enterer = plan->program ? floor_enterer(host) : -1;
    while (now_ns() < plan->end) {
        struct made made;
        const char *stage;
        snprintf(ask.name, sizeof ask.name, "floor%03u%010llu", number, (unsigned long long)result->made);
        uint64_t began = now_ns();
        int error = sandbox_make(host, &ask, &made, &stage);
        uint64_t stood = now_ns();
        if (!error && plan->program) error = floor_run(host, enterer, &ask, made.pidfd, plan->program, &stage);
        uint64_t ran = now_ns();
        if (!error) {
            syscall(SYS_pidfd_send_signal, made.pidfd, SIGKILL, NULL, 0);
            close(made.pidfd);
            error = sandbox_unmake(host, ask.name, &stage);
        }
        if (error) {
            result->failed++;
            result->error = -error;
            snprintf(result->stage, sizeof result->stage, "%s", stage);
            break;
        }
        result->made++;
        result->make_ns += stood - began;
        result->run_ns += ran - stood;
        result->end_ns += now_ns() - ran;
    }
    _exit(0);
}

static _Noreturn void report(const struct plan *plan, const struct result *results, unsigned workers, double seconds) {
    struct result sum = {0};
    for (unsigned i = 0; i < workers; i++) {
        sum.made += results[i].made;
        sum.failed += results[i].failed;
        sum.make_ns += results[i].make_ns;
        sum.run_ns += results[i].run_ns;
        sum.end_ns += results[i].end_ns;
        if (results[i].error) fprintf(stderr, "stokehold-spawner: floor: %s: %s\n", results[i].stage, strerror(results[i].error));
    }
    struct rusage used;  /* workers with their enterers and commands, and the PID 1s: all have been waited for */
    if (getrusage(RUSAGE_CHILDREN, &used) < 0) die("getrusage");
    double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    double each = 1e-6 / (double)(sum.made ? sum.made : 1);
    printf("{\"rate\": %.1f, \"cpu_s\": %.3f, \"made\": %llu, \"failed\": %llu, \"workers\": %u, \"seconds\": %.3f, \"make_mean_ms\": %.3f, "
           "\"run_mean_ms\": %.3f, \"end_mean_ms\": %.3f, ", (double)sum.made / seconds, cpu_s, (unsigned long long)sum.made,
           (unsigned long long)sum.failed, workers, seconds, (double)sum.make_ns * each, (double)sum.run_ns * each,
           (double)sum.end_ns * each);
    printf("\"superblocks\": %d, \"plan\": [", plan->call ? CALL_SUPERBLOCKS : LEASE_SUPERBLOCKS);
    for (int i = 0; !plan->call && lease_plan[i]; i++) printf("%s\"%s\"", i ? ", " : "", lease_plan[i]);
    puts("]}");
    exit(sum.failed || !sum.made);
}

void floor_main(int argc, char **argv) {
    enum { LAYER = 1, SECONDS, WORKERS, CGROUP, SLOT, ROLE, EXEC };
    static const struct option options[] = {{"layer", 1, 0, LAYER}, {"seconds", 1, 0, SECONDS}, {"workers", 1, 0, WORKERS},
                                            {"cgroup", 1, 0, CGROUP}, {"slot", 1, 0, SLOT}, {"role", 1, 0, ROLE}, {"exec", 1, 0, EXEC},
                                            {0}};
    struct layer_option layer = {0};
    unsigned long seconds = 0, workers = 0, slot = ~0ul;
    const char *cgroup = NULL;
    struct plan plan = {0};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) switch (c) {
        case LAYER: layer = option_layer(optarg); break;
        case SECONDS: seconds = option_number("seconds", optarg, 1, 3600); break;
        case WORKERS: workers = option_number("workers", optarg, 1, WORKERS_MAX); break;
        case CGROUP: cgroup = option_cgroup(optarg); break;
        case SLOT: slot = option_number("slot", optarg, 0, SLOTS - 1); break;
        case ROLE:
            if (strcmp(optarg, "call") && strcmp(optarg, "lease")) usage("--role must be call or lease");
            plan.call = !strcmp(optarg, "call");
            break;
        case EXEC: plan.program = optarg; break;
        default: usage("unknown option");
    }
    if (optind != argc || !layer.name || !seconds || !workers || !cgroup || slot == ~0ul) usage("floor: an option is missing");

    struct host host;
    raise_files();
    host_open(&host, cgroup, (unsigned)slot, &layer, 1);
    host_leave(&host);
    host_probe(&host);
    struct result *results = mmap(NULL, sizeof *results * workers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (results == MAP_FAILED) die("mmap");
    uint64_t start = now_ns();
    plan.layer = layer.name;
    plan.end = start + seconds * 1000000000u;
    for (unsigned i = 0; i < workers; i++) {
        pid_t pid = fork();
        if (pid < 0) die("fork");
        if (pid == 0) work(&host, &plan, i, &results[i]);
    }
    while (wait(NULL) > 0 || errno == EINTR) {}  /* workers, and the PID 1s, which are ours too */
    double took = (double)(now_ns() - start) / 1e9;
    cg_clean(&host.cg);
    cg_remove_roots(&host.cg);
    report(&plan, results, (unsigned)workers, took);
}

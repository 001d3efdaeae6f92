/* How fast this kernel makes and ends sandboxes of the lease plan: the maker's own code in a loop, without broker, protocol
 * or pool. Prints one JSON object. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "options.h"

#define WORKERS_MAX 64

struct result { uint64_t made, failed, make_ns, end_ns; int error; char stage[48]; };

static _Noreturn void work(const struct host *host, const char *layer, unsigned number, uint64_t end, struct result *result) {
    struct w_make ask = {.role = 1, .range = number, .disk = 256u << 20, .memory = 768u << 20,
                         .shown_memory = 512u << 20, .pids = 256, .cpu_milli = 1000};
    snprintf(ask.base, sizeof ask.base, "%s", layer);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) _exit(1);
    maker_begin(host);
    while (now_ns() < end) {
        struct made made;
        const char *stage;
        snprintf(ask.name, sizeof ask.name, "floor%03u%010llu", number, (unsigned long long)result->made);
        uint64_t began = now_ns();
        int error = sandbox_make(host, &ask, &made, &stage);
        uint64_t stood = now_ns();
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
        result->end_ns += now_ns() - stood;
    }
    _exit(0);
}

static _Noreturn void report(const struct result *results, unsigned workers, double seconds) {
    uint64_t made = 0, failed = 0, make_ns = 0, end_ns = 0;
    for (unsigned i = 0; i < workers; i++) {
        made += results[i].made;
        failed += results[i].failed;
        make_ns += results[i].make_ns;
        end_ns += results[i].end_ns;
        if (results[i].error) fprintf(stderr, "stokehold-spawner: floor: %s: %s\n", results[i].stage, strerror(results[i].error));
    }
    printf("{\"rate\": %.1f, \"made\": %llu, \"failed\": %llu, \"workers\": %u, \"seconds\": %.3f, \"make_mean_ms\": %.3f, "
           "\"end_mean_ms\": %.3f, \"superblocks\": %d, \"plan\": [", (double)made / seconds, (unsigned long long)made,
           (unsigned long long)failed, workers, seconds, (double)make_ns / 1e6 / (double)(made ? made : 1),
           (double)end_ns / 1e6 / (double)(made ? made : 1), LEASE_SUPERBLOCKS);
    for (int i = 0; lease_plan[i]; i++) printf("%s\"%s\"", i ? ", " : "", lease_plan[i]);
    puts("]}");
    exit(failed || !made);
}

void floor_main(int argc, char **argv) {
    enum { LAYER = 1, SECONDS, WORKERS, CGROUP, SLOT };
    static const struct option options[] = {{"layer", 1, 0, LAYER}, {"seconds", 1, 0, SECONDS}, {"workers", 1, 0, WORKERS},
                                            {"cgroup", 1, 0, CGROUP}, {"slot", 1, 0, SLOT}, {0}};
    struct layer_option layer = {0};
    unsigned long seconds = 0, workers = 0, slot = ~0ul;
    const char *cgroup = NULL;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) switch (c) {
        case LAYER: layer = option_layer(optarg); break;
        case SECONDS: seconds = option_number("seconds", optarg, 1, 3600); break;
        case WORKERS: workers = option_number("workers", optarg, 1, WORKERS_MAX); break;
        case CGROUP: cgroup = option_cgroup(optarg); break;
        case SLOT: slot = option_number("slot", optarg, 0, SLOTS - 1); break;
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
    for (unsigned i = 0; i < workers; i++) {
        pid_t pid = fork();
        if (pid < 0) die("fork");
        if (pid == 0) work(&host, layer.name, i, start + seconds * 1000000000u, &results[i]);
    }
    while (wait(NULL) > 0 || errno == EINTR) {}  /* workers, and the PID 1s, which are ours too */
    double took = (double)(now_ns() - start) / 1e9;
    cg_clean(&host.cg);
    cg_remove_roots(&host.cg);
    report(results, (unsigned)workers, took);
}

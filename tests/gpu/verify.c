/* Algorithms on GPUs, as `epa2a verify` runs them: what they promise (problems) in all their
 * ways (ways), each with inputs that change in every iteration and every element compared.
 *
 *   gpu-verify CONFIG LIST fork|thread RANKS [PART OF A NAME]
 *
 * Lists that are quick are for kernels on CPUs (simt/README.md); the others take an hour there.
 *
 * One process runs a whole list. As threads its ranks set CUDA up once; as processes they are
 * started anew for each entry, which costs about a second, so that list is short. Ranks that are
 * threads share GPUs where there are too few; ranks that are processes are skipped then.
 *
 * EPA2A_TEST_BACKEND and EPA2A_TEST_TRANSPORT name others than cuda and nvlink: host and shm try
 * this program where there is no GPU, less what is only for GPUs. */
#include <stdlib.h>
#include <string.h>

#include "experiment/batch.h"
#include "gpu.h"
#include "session/session.h"

enum {
    SETS = 6,
    ALL_SETS = 24,
    TEXT = 64,
    FAILURES = 3,
    EXPERTS = 16 /* of verify.yaml */
};

struct entry {
    const char *name;
    const char *set[SETS];
    bool core;    /* ways: tried with every problem */
    bool on_gpus; /* only */
    bool quick;   /* problems: also where kernels run on CPUs (simt) */
};

#include "verify_allgather.h"
#include "verify_fused.h"
#include "verify_ll_v1.h"
#include "verify_ll_v2.h"
#include "verify_token_flag.h"

struct list {
    const char *name;
    const struct entry *ways, *problems;
    bool core, quick;       /* of the ways and the problems only those */
    const char *refused_as; /* what the failure must say; NULL: it must work */
    const char *algorithm;  /* NULL: that of the file */
};

static const struct list lists[] = {
    {"ways", ways, base, .core = false},
    {"problems", ways, problems, .core = true},
    {"fused", fused_ways, fused_base, .core = false},
    {"fused-problems", fused_ways, fused_problems, .core = true},
    {"experts", experts_ways, experts_problems},
    {"quick ways", ways, quick, .core = false},
    {"quick problems", ways, problems, .core = true, .quick = true},
    {"quick fused", fused_ways, fused_quick, .core = false},
    {"quick fused-problems", fused_ways, fused_problems, .core = true, .quick = true},
    {"quick ll_v1", ll_v1_ways, quick, .algorithm = "ll_v1"},
    {"quick ll_v1-problems", ll_v1_ways, ll_v1_problems, .core = true, .quick = true,
     .algorithm = "ll_v1"},
    {"quick token_flag", token_flag_ways, quick, .algorithm = "token_flag"},
    {"quick token_flag-problems", token_flag_ways, token_flag_problems, .core = true, .quick = true,
     .algorithm = "token_flag"},
    {"allgather", allgather_ways, base},
    {"allgather-problems", allgather_ways, allgather_problems, .core = true},
    {"layer", layer_ways, layer_base},
    {"layer-problems", layer_ways, layer_problems, .core = true},
    {"layer-switches", layer_switches, layer_switched},
    {"layer-switches-problems", layer_switches, layer_switches_problems, .core = true},
    {"quick layer-switches-problems", layer_switches, layer_switches_problems, .core = true,
     .quick = true},
    {"layer-given", layer_given, layer_quick},
    {"layer-crowded", layer_crowded_ways, crowded, .refused_as = "algorithm.capacity"},
    {"quick layer", layer_ways, layer_quick},
    {"quick layer-problems", layer_ways, layer_problems, .core = true, .quick = true},
    {"stragglers", straggling_ways, straggling, .core = false},
    {"crowded", crowded_ways, crowded, .core = false, .refused_as = "algorithm.capacity"},
    {"token_flag", token_flag_ways, base, .algorithm = "token_flag"},
    {"token_flag-problems", token_flag_ways, token_flag_problems, .core = true,
     .algorithm = "token_flag"},
    {"token_flag-some", token_flag_plain, token_flag_some, .algorithm = "token_flag"},
    {"ll_v1", ll_v1_ways, base, .algorithm = "ll_v1"},
    {"ll_v1-problems", ll_v1_ways, ll_v1_problems, .core = true, .algorithm = "ll_v1"},
    {"ll_v1-stragglers", ll_v1_straggling_ways, straggling, .algorithm = "ll_v1"},
    {"ll_v1-crowded", ll_v1_crowded_ways, crowded, .refused_as = "algorithm.capacity",
     .algorithm = "ll_v1"},
    {0},
};

struct plan {
    const char *config, *part;
    const struct list *list;
    struct registry *registry;
    char common[7][TEXT];
    uint32_t n_common;
    bool on_host, stuck; /* stuck: threads that never came back use what they were given */
    uint32_t good, bad;
    uint64_t compared;
};

__attribute__((format(printf, 2, 3))) static void add_common(struct plan *p, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(p->common[p->n_common++], TEXT, fmt, args);
    va_end(args);
}

static enum epa_status read_entry(const struct plan *p, const struct entry *way,
                                  const struct entry *problem, struct batch **out)
{
    const char *set[ALL_SETS];
    struct diag *diag = diag_create();
    enum epa_status status;
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_common; i++)
        set[n++] = p->common[i];
    for (uint32_t i = 0; i < SETS && way->set[i] != NULL; i++)
        set[n++] = way->set[i];
    for (uint32_t i = 0; i < SETS && problem->set[i] != NULL; i++)
        set[n++] = problem->set[i];
    status = batch_read(p->config, set, n, 0, p->registry, diag, out);
    diag_print(diag, stdout);
    diag_destroy(diag);
    return status;
}

/* Whether it ended as the list says; counts what was compared. */
static bool is_as_wanted(struct plan *p, const struct session *s, enum epa_status status,
                         const struct epa_error *err)
{
    uint64_t compared = 0, wrong = 0;

    if (p->list->refused_as != NULL)
        return status == EPA_ERR_CONFIG && strstr(err->text, p->list->refused_as) != NULL;
    for (uint32_t r = 0; r < s->experiment->ranks; r++) {
        compared += session_rank(s, r)->compared;
        wrong += session_rank(s, r)->wrong;
    }
    p->compared += compared;
    return status == EPA_OK && compared > 0 && wrong == 0;
}

static void run_entry(struct plan *p, const struct entry *way, const struct entry *problem)
{
    struct epa_error err = {EPA_OK, ""};
    struct batch *batch = NULL;
    struct session *s = NULL;
    enum epa_status status = read_entry(p, way, problem, &batch);
    bool good = false;

    if (status == EPA_OK)
        status = session_create_on(NULL, batch->run[0].x, VERB_VERIFY, &s, &err);
    if (status == EPA_OK) {
        status = session_run(s, -1, &err);
        good = is_as_wanted(p, s, status, &err);
    }
    p->good += good;
    p->bad += !good;
    printf("%s %s: %s%s%s\n", good ? "ok  " : "FAIL", way->name, problem->name,
           err.status != EPA_OK ? ": " : "", err.text);
    fflush(stdout); /* a fork takes a copy of what is not out yet */
    p->stuck = session_in_use(s);
    if (!p->stuck) {
        session_destroy(s);
        batch_destroy(batch);
    }
}

static bool is_asked_for(const struct plan *p, const struct entry *way, const struct entry *problem)
{
    if ((p->list->core && !way->core) || (p->list->quick && !problem->quick) ||
        ((way->on_gpus || problem->on_gpus) && p->on_host))
        return false;
    return p->part == NULL || strstr(way->name, p->part) != NULL ||
           strstr(problem->name, p->part) != NULL;
}

static void run_list(struct plan *p)
{
    for (const struct entry *way = p->list->ways; way->name != NULL; way++) {
        for (const struct entry *problem = p->list->problems; problem->name != NULL; problem++) {
            if (p->stuck || p->bad >= FAILURES)
                return;
            if (is_asked_for(p, way, problem))
                run_entry(p, way, problem);
        }
    }
}

/* GPU_SKIP where the machine has too few GPUs. */
static int choose_gpus(struct plan *p, bool threads, int ranks)
{
    int gpus = gpu_count(threads ? 1 : ranks);

    if (gpus == 0)
        return GPU_SKIP;
    if (gpus < ranks) {
        printf("%d ranks share %d GPU%s\n", ranks, gpus, gpus == 1 ? "" : "s");
        add_common(p, "backend.share=true");
        /* A kernel that is loaded when it is first launched would wait for those that run on
         * the same GPU and wait for it. */
        setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    }
    return 0;
}

static int prepare(struct plan *p, char **argv)
{
    const char *backend = getenv("EPA2A_TEST_BACKEND");
    const char *transport = getenv("EPA2A_TEST_TRANSPORT");
    bool threads = strcmp(argv[3], "thread") == 0;
    int ranks = atoi(argv[4]);

    p->config = argv[1];
    for (p->list = lists; p->list->name != NULL; p->list++) {
        if (strcmp(p->list->name, argv[2]) == 0)
            break;
    }
    if (p->list->name == NULL || ranks < 1) {
        fprintf(stderr, "there is no list %s, or %s is no number of ranks\n", argv[2], argv[4]);
        return 2;
    }
    p->on_host = backend != NULL && strcmp(backend, "host") == 0;
    add_common(p, "ranks=%d", ranks);
    add_common(p, "launcher=%s", argv[3]);
    if (EXPERTS % ranks != 0)
        add_common(p, "moe.experts=%d", EXPERTS / ranks * ranks);
    if (p->list->algorithm != NULL)
        add_common(p, "algorithm.name=%s", p->list->algorithm);
    if (backend != NULL)
        add_common(p, "backend=%s", backend);
    if (transport != NULL)
        add_common(p, "transport=%s", transport);
    return p->on_host ? 0 : choose_gpus(p, threads, ranks);
}

int main(int argc, char **argv)
{
    struct plan p = {.part = argc > 5 ? argv[5] : NULL};
    struct epa_error err = {EPA_OK, ""};
    int code;

    if (argc < 5) {
        fprintf(stderr, "usage: %s CONFIG LIST fork|thread RANKS [PART OF A NAME]\n", argv[0]);
        return 2;
    }
    code = prepare(&p, argv);
    fflush(stdout);
    if (code != 0)
        return code;
    if (registry_create(NULL, &p.registry, &err) != EPA_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 2;
    }
    run_list(&p);
    if (!p.stuck)
        registry_destroy(p.registry);
    printf("%u passed, %u failed, %llu elements compared\n", p.good, p.bad,
           (unsigned long long)p.compared);
    return p.bad == 0 && p.good > 0 ? 0 : 1;
}

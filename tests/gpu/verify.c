/* ll_v2 on GPUs, as `epa2a verify` runs it: what the algorithm promises (problems) in all its
 * ways (ways), each with inputs that change in every iteration and every element compared.
 *
 *   gpu-verify CONFIG LIST fork|thread RANKS [PART OF A NAME]
 *
 * One process runs a whole list. As threads its ranks set CUDA up once; as processes they are
 * started anew for each entry, which costs about a second, so that list is short. Ranks that are
 * threads share GPUs where there are too few; ranks that are processes are skipped then.
 *
 * EPA2A_TEST_BACKEND and EPA2A_TEST_TRANSPORT name others than cuda and nvlink: host and shm try
 * this program where there is no GPU, less what is only for GPUs. */
#include <stdlib.h>
#include <string.h>

#include "config/diag.h"
#include "gpu.h"
#include "session/session.h"

enum { SETS = 6, ALL_SETS = 24, TEXT = 64, FAILURES = 3 };

struct entry {
    const char *name;
    const char *set[SETS];
    bool core;    /* ways: tried with every problem */
    bool on_gpus; /* only */
};

static const struct entry ways[] = {
    {"direct, pulled", {"algorithm.answers=pull"}, .on_gpus = true},
    {"direct, pushed", {"algorithm.answers=push"}, .on_gpus = true},
    {"direct, pipelined", {"verify.order=pipelined"}, .core = true},
    {"direct, padded, FP8 answers",
     {"algorithm.rows=padded", "algorithm.combine_wire=fp8"},
     .core = true},
    {"direct, bf16", {"algorithm.wire=dtype"}},
    {"direct, bf16, FP8 answers", {"algorithm.wire=dtype", "algorithm.combine_wire=fp8"}},
    {"direct, one set", {"algorithm.buffers=1"}},
    {"direct, split, pipelined",
     {"algorithm.overlap=split", "verify.order=pipelined"},
     .on_gpus = true},
    {"direct, few blocks", {"algorithm.blocks=3"}},
    {"once", {"algorithm.once=true"}, .core = true},
    {"once, padded, FP8 answers, pipelined",
     {"algorithm.once=true", "algorithm.rows=padded", "algorithm.combine_wire=fp8",
      "verify.order=pipelined"},
     .core = true},
    {"once, bf16, one set",
     {"algorithm.once=true", "algorithm.wire=dtype", "algorithm.buffers=1"}},
    {"once, split", {"algorithm.once=true", "algorithm.overlap=split"}, .on_gpus = true},
    {"once, few blocks", {"algorithm.once=true", "algorithm.blocks=3"}},
    {"by rank", {"algorithm.layout=rank"}, .core = true},
    {"by rank, pulled, pipelined",
     {"algorithm.layout=rank", "algorithm.answers=pull", "verify.order=pipelined"},
     .on_gpus = true},
    {"by rank, pushed, pipelined",
     {"algorithm.layout=rank", "algorithm.answers=push", "verify.order=pipelined"},
     .on_gpus = true},
    {"by rank, padded, FP8 answers, pipelined",
     {"algorithm.layout=rank", "algorithm.rows=padded", "algorithm.combine_wire=fp8",
      "verify.order=pipelined"},
     .core = true},
    {"by rank, bf16", {"algorithm.layout=rank", "algorithm.wire=dtype"}},
    {"by rank, one set", {"algorithm.layout=rank", "algorithm.buffers=1"}},
    {"by rank, split, pipelined",
     {"algorithm.layout=rank", "algorithm.overlap=split", "verify.order=pipelined"},
     .on_gpus = true},
    {"by rank, no early launch", {"algorithm.layout=rank", "algorithm.launch=after"}},
    {0},
};

static const struct entry problems[] = {
    {"counts change", {"verify.iterations=40"}},
    {"all tokens there is room for", {"tokens=full"}},
    {"popularity is skewed", {"routing.kind=zipf", "routing.exponent=1.5"}},
    {"most want one expert", {"routing.kind=hot", "routing.share=0.9"}},
    {"one expert gets everything", {"routing.kind=hot", "routing.share=1", "moe.topk=1"}},
    {"half the choices dropped", {"routing.kind=masked", "routing.share=0.5"}},
    {"all choices dropped",
     {"routing.kind=masked", "routing.share=1", "verify.iterations=4"}},
    {"one choice", {"moe.topk=1"}},
    {"32 choices", {"moe.topk=32", "moe.experts=64", "verify.iterations=4"}},
    {"every expert is chosen", {"moe.topk=16"}},
    {"4 experts", {"moe.experts=4", "moe.topk=2"}},
    {"4096 experts", {"moe.experts=4096", "moe.topk=8", "verify.iterations=3"}},
    {"one token", {"moe.max_tokens=1", "tokens=full"}},
    {"one token or none", {"moe.max_tokens=1", "verify.iterations=40"}},
    {"1000 tokens", {"moe.max_tokens=1000", "moe.hidden=128", "verify.iterations=2"}},
    {"4096 tokens",
     {"moe.max_tokens=4096", "moe.hidden=128", "moe.topk=2", "tokens=full",
      "verify.iterations=2"}},
    {"128 channels", {"moe.hidden=128"}},
    {"7168 channels", {"moe.hidden=7168", "verify.iterations=3"}},
    {"20480 channels", {"moe.hidden=20480", "moe.max_tokens=4", "verify.iterations=3"}},
    {"groups of 16", {"moe.group=16", "moe.hidden=272"}},
    {"groups of 32", {"moe.group=32", "moe.hidden=288"}},
    {"groups of 64", {"moe.group=64", "moe.hidden=320"}},
    {"groups of 256", {"moe.group=256", "moe.hidden=768"}},
    {"16 channels in bf16",
     {"moe.hidden=16", "algorithm.wire=dtype", "algorithm.combine_wire=dtype"}},
    {"48 channels in bf16",
     {"moe.hidden=48", "algorithm.wire=dtype", "algorithm.combine_wire=dtype"}},
    {"1040 channels in bf16",
     {"moe.hidden=1040", "algorithm.wire=dtype", "algorithm.combine_wire=dtype"}},
    {"input quantised already", {"moe.input=fp8"}},
    {"answers stand elsewhere", {"expert.answer=apart"}},
    {"room for twice the even share", {"algorithm.capacity=2"}},
    {"ranks straggle", {"verify.straggle=1ms", "verify.iterations=40"}},
    {"full speed, looked at now and then",
     {"moe.hidden=128", "moe.max_tokens=4", "verify.iterations=600",
      "verify.check_every=37"}},
    {0},
};

static const struct entry base[] = {{"counts change", {"verify.iterations=40"}}, {0}};

/* Late and early ranks, in 10,000 iterations whose inputs all differ. */
static const struct entry straggling[] = {
    {"10000 iterations with stragglers",
     {"verify.iterations=10000", "verify.straggle=100us", "moe.hidden=128",
      "moe.max_tokens=4", "moe.topk=2"}},
    {0},
};
static const struct entry straggling_ways[] = {
    {"once, pipelined", {"algorithm.once=true", "verify.order=pipelined"}},
    {"by rank", {"algorithm.layout=rank"}},
    {"direct, pipelined", {"verify.order=pipelined"}},
    {0},
};

/* More rows than there is room for, on every rank that two or more share the experts of. */
static const struct entry crowded[] = {
    {"too little room", {"algorithm.capacity=0.25", "tokens=full", "timeout=5s"}},
    {0},
};
static const struct entry crowded_ways[] = {
    {"direct", {0}},
    {"once", {"algorithm.once=true"}},
    {"by rank", {"algorithm.layout=rank"}},
    {0},
};

struct list {
    const char *name;
    const struct entry *ways, *problems;
    bool core;              /* of the ways only those */
    const char *refused_as; /* what the failure must say; NULL: it must work */
};

static const struct list lists[] = {
    {"ways", ways, base, .core = false},
    {"problems", ways, problems, .core = true},
    {"stragglers", straggling_ways, straggling, .core = false},
    {"crowded", crowded_ways, crowded, .core = false, .refused_as = "algorithm.capacity"},
    {0},
};

struct plan {
    const char *config, *part;
    const struct list *list;
    struct registry *registry;
    char common[5][TEXT];
    uint32_t n_common;
    bool on_host, stuck; /* stuck: threads that never came back use what they were given */
    uint32_t good, bad;
    uint64_t compared;
};

__attribute__((format(printf, 2, 3))) static void add_common(struct plan *p,
                                                             const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(p->common[p->n_common++], TEXT, fmt, args);
    va_end(args);
}

static enum epa_status read_entry(const struct plan *p, const struct entry *way,
                                  const struct entry *problem, struct experiment **out)
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
    status = experiment_read(p->config, set, n, p->registry, diag, out);
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
    struct experiment *x = NULL;
    struct session *s = NULL;
    enum epa_status status = read_entry(p, way, problem, &x);
    bool good = false;

    if (status == EPA_OK)
        status = session_create(x, VERB_VERIFY, &s, &err);
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
        experiment_destroy(x);
    }
}

static bool is_asked_for(const struct plan *p, const struct entry *way,
                         const struct entry *problem)
{
    if ((p->list->core && !way->core) || (way->on_gpus && p->on_host))
        return false;
    return p->part == NULL || strstr(way->name, p->part) != NULL ||
           strstr(problem->name, p->part) != NULL;
}

static void run_list(struct plan *p)
{
    for (const struct entry *way = p->list->ways; way->name != NULL; way++) {
        for (const struct entry *problem = p->list->problems; problem->name != NULL;
             problem++) {
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
        fprintf(stderr, "there is no list %s, or %s is no number of ranks\n", argv[2],
                argv[4]);
        return 2;
    }
    p->on_host = backend != NULL && strcmp(backend, "host") == 0;
    add_common(p, "ranks=%d", ranks);
    add_common(p, "launcher=%s", argv[3]);
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
        fprintf(stderr,
                "usage: %s CONFIG ways|problems|stragglers|crowded fork|thread RANKS "
                "[PART OF A NAME]\n",
                argv[0]);
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

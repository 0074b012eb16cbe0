/* Makes a session in the state after a launch: an experiment, plugins that consist of names and
 * options, and ranks with results that the test sets. */
#ifndef FAKE_SESSION_H
#define FAKE_SESSION_H

#include <stdlib.h>
#include <string.h>

#include "base/sysfile.h"
#include "config/experiment.h"
#include "op/moe/routing.h"
#include "report/result_json.h"
#include "report/result_parts.h"

static inline uint32_t fake_threads(const void *config)
{
    return 1;
}

static const struct epa_algorithm_plugin fake_algorithm = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "ll_fake"}};
static const struct epa_transport_plugin fake_transport = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin),
               .name = "shm"}};
static const struct epa_backend_plugin fake_backend = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_BACKEND, struct epa_backend_plugin), .name = "host"},
    .memory = EPA_MEMORY_HOST,
    .threads = fake_threads};
static const struct epa_launcher_plugin fake_launcher = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin), .name = "fork"}};

struct fake {
    struct experiment experiment;
    struct session session;
    struct session_notes notes;
    struct machine_facts machine;
    struct facts facts;
    struct routing_stats routing;
    struct cpu_quota quota;
    struct result result_of_run;
    struct run_figures *figures;
    json_t *result;
};

static inline struct experiment fake_experiment(uint32_t ranks)
{
    return (struct experiment){
        .file = "fake.yaml",
        .name = "a fake",
        .version = 1,
        .timeout_ns = 5000000000,
        .launcher = {&fake_launcher.plugin, NULL},
        .backend = {&fake_backend.plugin, NULL},
        .transport = {&fake_transport.plugin, NULL},
        .algorithm = {&fake_algorithm.plugin, NULL},
        .problem = {.ranks = ranks,
                    .seed = 1,
                    .moe = {.max_tokens = 128,
                            .hidden = 7168,
                            .experts = 256,
                            .topk = 8,
                            .fp8_group_size = 128,
                            .dtype = EPA_BF16},
                    .routing = {.kind = ROUTING_ZIPF,
                                .exponent = 1.5,
                                .sigma = 1,
                                .share = 0.5,
                                .layer = UINT32_MAX}},
        .run = {.iterations = 10},
        .verify = {.iterations = 50, .check_every = 1},
        .bench = {.warmup = 20,
                  .iterations = 200,
                  .input_sets = 1,
                  .clock = CLOCK_AUTO,
                  .calls_per_graph = 20,
                  .check = true,
                  .min_iterations = 50},
        .expect = {.last = EXPECT_ANY, .wrong = UINT32_MAX},
    };
}

static inline struct machine_facts fake_machine(void)
{
    return (struct machine_facts){.host = "node1",
                                  .kernel = "Linux 6.1.0",
                                  .arch = "x86_64",
                                  .cpu = "Some CPU @ 2.60GHz",
                                  .clocksource = "tsc",
                                  .cores = 64,
                                  .sockets = 1,
                                  .numa_nodes = 1,
                                  .threads_per_core = 1,
                                  .cache_bytes = {0, 48 << 10, 2 << 20, 32 << 20},
                                  .memory_bytes = 24ull << 30,
                                  .huge_pages = "madvise",
                                  .load_average = 0.25,
                                  .timer_ns = 20,
                                  .build = {.compiler = "gcc 12.2.0",
                                            .type = "release",
                                            .sanitizers = "none",
                                            .version = "0.1.0",
                                            .libc = "2.36",
                                            .isa = "avx512",
                                            .git = ""}};
}

/* Sets up two stages, dispatch and combine; all ranks are pinned, and there are no measurements
 * yet. */
static inline void fake_init(struct fake *f, enum verb verb, uint32_t ranks, uint32_t iterations)
{
    struct session *s = &f->session;

    memset(f, 0, sizeof(*f));
    f->experiment = fake_experiment(ranks);
    f->machine = fake_machine();
    f->facts.machine = &f->machine;
    s->experiment = &f->experiment;
    s->verb = verb;
    s->notes = &f->notes;
    f->notes = (struct session_notes){
        .n_stages = 2,
        .stage = {"dispatch", "combine"},
        .stage_kind = {EPA_STAGE_DISPATCH, EPA_STAGE_COMBINE},
        .clock = verb == VERB_VERIFY ? CLOCK_AUTO : CLOCK_HOST,
    };
    s->warmup = verb == VERB_BENCH ? 20 : 0;
    s->iterations = iterations;
    s->block_bytes = session_block_bytes(s);
    s->block = aligned_alloc(64, ranks * s->block_bytes);
    s->stats = &f->routing;
    if (s->block == NULL)
        abort();
    memset(s->block, 0, ranks * s->block_bytes);
    for (uint32_t r = 0; r < ranks; r++) {
        session_rank(s, r)->pid = 1000 + (int32_t)r;
        session_rank(s, r)->core = (int32_t)r;
    }
}

static inline double *fake_time(struct fake *f, uint32_t stage, uint32_t rank, uint32_t i)
{
    const struct session *s = &f->session;

    return session_times(s, rank, stage) + i;
}

/* Records `n` iterations for every rank: dispatch takes 100 us, combine 200 us, each plus 1 us per
 * rank and per sample. Each stage sends 1 MB, receives 2 MB and needs 3 MB. */
static inline void fake_measure(struct fake *f, uint32_t n)
{
    for (uint32_t r = 0; r < f->experiment.problem.ranks; r++) {
        struct session_rank *rank = session_rank(&f->session, r);

        rank->samples = n;
        rank->traffic_n = n;
        for (uint32_t i = 0; i < OP_PHASES; i++)
            rank->traffic.phase[i] =
                (struct op_bytes){3000000ull * n, 1000000ull * n, 2000000ull * n, 0};
        rank->first_ns = 900000;
        for (uint32_t i = 0; i < n; i++) {
            *fake_time(f, 0, r, i) = 100000 + 1000.0 * r + 1000.0 * i;
            *fake_time(f, 1, r, i) = 200000 + 1000.0 * r + 1000.0 * i;
        }
    }
    f->routing = (struct routing_stats){n, n * 256ull,          n * 2048ull,
                                        0, {2, 17, 8.0, 2.125}, {900, 1150, 1024.0, 1.1}};
}

/* Sets links of 100 GB/s and 2 us. The lower bound of crossing bytes is half of the bytes
 * received. */
static inline void fake_peaks(struct fake *f)
{
    for (uint32_t r = 0; r < f->experiment.problem.ranks; r++) {
        struct session_rank *rank = session_rank(&f->session, r);

        rank->peak = (struct peak){.bytes_per_ns = 100 - r, .latency_ns = 2000 + r};
        for (uint32_t i = 0; i < OP_PHASES; i++)
            rank->traffic.phase[i].least = rank->traffic.phase[i].received / 2;
    }
}

static inline void fake_result(struct fake *f, enum epa_status status, const char *error)
{
    struct result *result = &f->result_of_run;

    *result = (struct result){.status = status, .started = 1, .elapsed_s = 0.5, .quota = f->quota};

    snprintf(result->error.text, sizeof(result->error.text), "%s", error != NULL ? error : "");
    json_decref(f->result);
    result_free(f->figures);
    f->figures = result->figures = result_make(result, &f->session, &f->machine);
    f->result = result_json(result, &f->facts);
}

/* num() returns the number at a path of the result, or NaN; words() the text, or ""; size() the
 * length of the array. */
static inline double num(const struct fake *f, const char *path)
{
    return json_number_at(f->result, path);
}

static inline const char *words(const struct fake *f, const char *path)
{
    return json_text_at(f->result, path);
}

static inline uint32_t size(const struct fake *f, const char *path)
{
    return (uint32_t)json_array_size(json_at(f->result, path));
}

static inline void fake_finish(struct fake *f)
{
    result_free(f->figures);
    json_decref(f->result);
    free(f->session.block);
}

#endif

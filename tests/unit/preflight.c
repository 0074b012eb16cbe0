/* Tests of the memory estimate before a run, on machines described by files. */
#include "test.h"

#include "fake_root.h"
#include "fake_session.h"

#include "host/pin.h"
#include "session/session.h"
#include "session/preflight.h"

struct fixture {
    char root[512];
    struct fake fake;
};

static struct fixture *fixture_create(void)
{
    struct fixture *x = calloc(1, sizeof(*x));

    root_create(x->root, sizeof(x->root));
    fake_init(&x->fake, VERB_RUN, 8, 10);
    x->fake.session.footprint.heap_bytes = 1ull << 30;
    return x;
}

static void fixture_destroy(struct fixture *x)
{
    root_destroy(x->root);
    fake_finish(&x->fake);
    free(x);
}

#define TEST_OF_MACHINE(name) TEST_OF(name, struct fixture, x, fixture_create(), fixture_destroy)

/* Messages for a machine with the given MiB and 8 ranks with 1 GiB each. Device memory does not
 * count as host memory. On small machines a smaller part of the memory is kept free. */
TEST_OF_MACHINE(a_refusal_shows_the_sum_and_the_limit)
{
    static const struct {
        uint64_t mib, heap_bytes, private_bytes;
        enum verb verb;
        uint32_t ranks_here, iterations;
        bool cold, device;
        const char *said; /* expected message; "": fits */
    } c[] = {
        {8192, 1ull << 30, 0, VERB_RUN, 0, 10, false, false,
         "8 ranks x (heap 1.00 GiB + inputs  ..  + reference  ..  but 7.50 GiB is available "
         "(MemAvailable 8.00 GiB less 512.0 MiB kept free) .. lower moe.max_tokens, ranks"},
        {8192, 1ull << 30, 512ull << 20, VERB_RUN, 0, 10, false, false,
         "8 ranks x (heap and buffers 1.50 GiB + inputs "},
        /* the other ranks run on other hosts */
        {8192, 1ull << 30, 0, VERB_RUN, 2, 10, false, false, ""},
        {8192, UINT64_MAX / 4, 0, VERB_RUN, 0, 10, false, false, "16 EiB or more"},
        {65536, 1ull << 30, 0, VERB_BENCH, 0, UINT32_MAX, false, false,
         " + samples 2 .. bench.iterations"},
        {1024, 1ull << 30, 0, VERB_BENCH, 0, 10, true, false, " + cold caches "},
        {8192, 1ull << 30, 0, VERB_RUN, 0, 10, false, true, ""},
        {1, 1ull << 30, 0, VERB_BENCH, 0, 10, true, true, "8 ranks x (inputs "},
    };

    for (size_t i = 0; i < LENGTH(c); i++) {
        struct epa_backend_plugin backend = fake_backend;
        struct epa_error *err = test_error();
        char text[64];

        snprintf(text, sizeof(text), "MemAvailable: %llu kB\n", (unsigned long long)c[i].mib << 10);
        root_put(x->root, "/proc/meminfo", text);
        backend.memory = c[i].device ? EPA_MEMORY_CUDA : EPA_MEMORY_HOST;
        x->fake.experiment.backend.plugin = &backend.plugin;
        x->fake.experiment.bench.cache = c[i].cold ? CACHE_COLD : CACHE_WARM;
        x->fake.session.verb = c[i].verb;
        x->fake.session.iterations = c[i].iterations;
        x->fake.session.footprint.heap_bytes = c[i].heap_bytes;
        x->fake.session.footprint.private_bytes = c[i].private_bytes;
        x->fake.session.process_id = (struct epa_process_id){.size = c[i].ranks_here > 0 ? 8 : 0,
                                                             .local_size = c[i].ranks_here};
        assert_status(preflight_memory(x->root, &x->fake.session, err),
                      c[i].said[0] == '\0' ? EPA_OK : EPA_ERR_NOMEM, c[i].said);
        if (!c[i].cold || c[i].device)
            assert_null(strstr(err->text, "cold caches"));
        if (c[i].device)
            assert_null(strstr(err->text, "heap"));
    }
}

TEST_OF_MACHINE(a_cgroup_is_named_as_the_limit)
{
    root_put(x->root, "/proc/meminfo", "MemAvailable: 67108864 kB\n");
    root_put(x->root, "/proc/self/cgroup", "0::/\n");
    root_put(x->root, "/sys/fs/cgroup/memory.max", "1073741824\n");
    root_put(x->root, "/sys/fs/cgroup/memory.current", "0\n");
    assert_status(preflight_memory(x->root, &x->fake.session, test_error()), EPA_ERR_NOMEM,
                  "(room in the cgroup 1.00 GiB less ");
    x->fake.session.footprint.heap_bytes = 4096; /* at most a quarter is kept free */
    x->fake.experiment.problem.ranks = x->fake.experiment.problem.moe.max_tokens = 1;
    x->fake.experiment.problem.moe.hidden = 128;
    x->fake.experiment.problem.moe.experts = 8;
    root_put(x->root, "/sys/fs/cgroup/memory.max", "134217728\n");
    assert_int_equal(preflight_memory(x->root, &x->fake.session, NULL), EPA_OK);
}

static enum epa_status plan_mirrors(const struct epa_problem *problem,
                                    const struct epa_world *world, uint32_t flags,
                                    const void *config, struct epa_footprint *out,
                                    struct epa_error *err)
{
    *out = (struct epa_footprint){.heap_bytes = 1, .device_bytes = world->size - world->local_size};
    return EPA_OK;
}

TEST_OF_MACHINE(mirrors_of_ranks_of_other_hosts_are_in_the_plan)
{
    struct session *s = &x->fake.session;
    struct epa_algorithm_plugin algorithm = fake_algorithm;

    algorithm.plan = plan_mirrors;
    x->fake.experiment.algorithm.plugin = &algorithm.plugin;
    s->footprint.device_bytes = 100;
    preflight_scratch(s); /* this process starts all ranks */
    assert_int_equal(s->footprint.device_bytes, 100);
    s->process_id = (struct epa_process_id){.size = 8, .local_size = 2};
    preflight_scratch(s);
    assert_int_equal(s->footprint.device_bytes, 6);
    assert_int_equal(s->footprint.heap_bytes, 1ull << 30);
}

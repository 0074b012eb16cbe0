/* The arithmetic of memory, on machines made of files. */
#include "test.h"

#include "fake_root.h"
#include "fake_session.h"

#include "base/text.h"
#include "launch/pin.h"
#include "op/moe/moe.h"
#include "session/session.h"

struct fixture {
    char root[512];
    struct fake fake;
    struct epa_error err;
};

static int set_up(void **state)
{
    struct fixture *x = calloc(1, sizeof(*x));

    root_create(x->root, sizeof(x->root));
    fake_init(&x->fake, VERB_RUN, 8, 10);
    x->fake.session.footprint.heap_bytes = 1ull << 30;
    *state = x;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *x = *state;

    root_destroy(x->root);
    fake_finish(&x->fake);
    free(x);
    return 0;
}

#define TEST_OF_MACHINE(name) TEST_WITH(set_up, tear_down, name, struct fixture *x)

static enum epa_status check(struct fixture *x)
{
    x->err = (struct epa_error){EPA_OK, ""};
    return preflight_memory_from(x->root, &x->fake.session, &x->err);
}

TEST_OF_MACHINE(a_refusal_shows_the_sum_and_the_limit)
{
    root_put(x->root, "/proc/meminfo", "MemAvailable: 8388608 kB\n");
    assert_int_equal(check(x), EPA_ERR_NOMEM);
    assert_non_null(strstr(x->err.text, "8 ranks x (heap 1.00 GiB + inputs "));
    assert_non_null(strstr(x->err.text, " + reference "));
    assert_non_null(strstr(x->err.text, "but 7.50 GiB is available (MemAvailable 8.00 GiB "
                                        "less 512.0 MiB kept free)"));
    assert_non_null(strstr(x->err.text, "lower moe.max_tokens, ranks, algorithm.buffers"));
}

TEST_OF_MACHINE(what_an_algorithm_takes_beside_the_heap_counts)
{
    root_put(x->root, "/proc/meminfo", "MemAvailable: 8388608 kB\n");
    x->fake.session.footprint.private_bytes = 512ull << 20;
    assert_int_equal(check(x), EPA_ERR_NOMEM);
    assert_non_null(strstr(x->err.text, "8 ranks x (heap and buffers 1.50 GiB + inputs "));
}

TEST_OF_MACHINE(ranks_of_other_hosts_do_not_count)
{
    root_put(x->root, "/proc/meminfo", "MemAvailable: 8388608 kB\n");
    x->fake.session.process_id = (struct epa_process_id){.size = 8, .local_size = 2};
    assert_int_equal(check(x), EPA_OK);
}

static enum epa_status plan_mirrors(const struct epa_problem *problem,
                                    const struct epa_world *world, uint32_t flags,
                                    const void *config, struct epa_footprint *out,
                                    struct epa_error *err)
{
    (void)problem;
    (void)flags;
    (void)config;
    (void)err;
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

TEST_OF_MACHINE(a_cgroup_is_named_as_the_limit)
{
    root_put(x->root, "/proc/meminfo", "MemAvailable: 67108864 kB\n");
    root_put(x->root, "/proc/self/cgroup", "0::/\n");
    root_put(x->root, "/sys/fs/cgroup/memory.max", "1073741824\n");
    root_put(x->root, "/sys/fs/cgroup/memory.current", "0\n");
    assert_int_equal(check(x), EPA_ERR_NOMEM);
    assert_non_null(strstr(x->err.text, "(room in the cgroup 1.00 GiB less "));
}

TEST_OF_MACHINE(a_sum_that_overflows_is_refused)
{
    x->fake.session.footprint.heap_bytes = UINT64_MAX / 4;
    assert_int_equal(check(x), EPA_ERR_NOMEM); /* and no /proc to compare with */
    assert_non_null(strstr(x->err.text, "more than 64 bits count"));
}

/* What of 1 GiB is left must not be all kept free: small machines have work too. */
TEST_OF_MACHINE(a_small_machine_keeps_a_quarter_free_at_most)
{
    x->fake.session.footprint.heap_bytes = 4096;
    x->fake.experiment.ranks = 1;
    x->fake.experiment.moe.max_tokens = 1;
    x->fake.experiment.moe.hidden = 128;
    x->fake.experiment.moe.experts = 8;
    root_put(x->root, "/proc/meminfo", "MemAvailable: 131072 kB\n");
    assert_int_equal(check(x), EPA_OK);
}

TEST_OF_MACHINE(samples_count_where_they_are_many)
{
    x->fake.session.verb = VERB_BENCH;
    x->fake.session.iterations = UINT32_MAX;
    root_put(x->root, "/proc/meminfo", "MemAvailable: 67108864 kB\n");
    assert_int_equal(check(x), EPA_ERR_NOMEM);
    assert_non_null(strstr(x->err.text, " + samples 2"));
    assert_non_null(strstr(x->err.text, "bench.iterations"));
}

/* What a host's workers write before a cold sample is memory like any other; a device has its
 * own. */
TEST_OF_MACHINE(what_makes_caches_cold_counts)
{
    struct epa_backend_plugin device = fake_backend;
    char cold[64], size[32];

    root_put(x->root, "/proc/meminfo", "MemAvailable: 1048576 kB\n");
    x->fake.session.verb = VERB_BENCH;
    assert_int_equal(check(x), EPA_ERR_NOMEM);
    assert_null(strstr(x->err.text, "cold caches"));
    snprintf(cold, sizeof(cold), " + cold caches %s)",
             text_size(size, sizeof(size), cache_flush_bytes()));
    x->fake.experiment.bench.cache = CACHE_COLD;
    assert_int_equal(check(x), EPA_ERR_NOMEM);
    assert_non_null(strstr(x->err.text, cold));
    x->fake.experiment.bench.clock = CLOCK_END_TO_END;
    assert_int_equal(check(x), EPA_ERR_NOMEM);
    assert_non_null(strstr(x->err.text, cold));
    device.memory = EPA_MEMORY_CUDA;
    x->fake.experiment.backend.plugin = &device.plugin;
    root_put(x->root, "/proc/meminfo", "MemAvailable: 1024 kB\n");
    assert_int_equal(check(x), EPA_ERR_NOMEM);
    assert_null(strstr(x->err.text, "cold caches"));
}

/* The heap is the device's then, and so are expert outputs; copies of what it holds are not. */
TEST_OF_MACHINE(memory_of_a_device_is_not_memory_of_the_host)
{
    struct epa_backend_plugin device = fake_backend;

    root_put(x->root, "/proc/meminfo", "MemAvailable: 8388608 kB\n");
    assert_int_equal(check(x), EPA_ERR_NOMEM);
    device.memory = EPA_MEMORY_CUDA;
    x->fake.experiment.backend.plugin = &device.plugin;
    assert_int_equal(check(x), EPA_OK);
    root_put(x->root, "/proc/meminfo", "MemAvailable: 1024 kB\n");
    assert_int_equal(check(x), EPA_ERR_NOMEM);
    assert_non_null(strstr(x->err.text, "8 ranks x (inputs "));
    assert_null(strstr(x->err.text, "heap"));
    assert_null(strstr(x->err.text, "algorithm.buffers"));
}

/* Tests of the host backend through its table of functions, as algorithms use it. */
#include "test.h"
#include <time.h>

#include "registry/registry.h"

enum { MOST = 8 };

/* Opens the backend with the defaults of the plugin, except `workers`, which it finds in the option
 * table as the reader does. */
static struct epa_backend *open_host(uint32_t workers, uint32_t local_cores)
{
    const struct epa_options *options = &backend_host_plugin.plugin.options;
    struct epa_bootstrap boot = {.world = {.size = 1, .local_size = 1, .local_cores = local_cores}};
    struct epa_backend *backend = NULL;
    static char config[64];

    assert_true(options->size <= sizeof(config));
    memcpy(config, options->defaults, options->size);
    for (const struct epa_option *o = options->table; o->name != NULL; o++) {
        if (strcmp(o->name, "workers") == 0)
            memcpy(config + o->offset, &workers, sizeof(workers));
    }
    assert_int_equal(backend_host_plugin.open(config, &boot, &backend, NULL), EPA_OK);
    return backend;
}

TEST(memory_is_zero_and_aligned)
{
    static const size_t sizes[] = {0, 1, 63, 4097, (2 << 20) - 1, 2 << 20, (5 << 20) + 3};
    struct epa_backend *backend = open_host(1, 1);

    for (size_t s = 0; s < LENGTH(sizes); s++) {
        for (uint32_t again = 0; again < 2; again++) { /* the second round gets used memory */
            void *memory = NULL;

            assert_int_equal(backend->ops->alloc(backend, sizes[s], &memory), EPA_OK);
            assert_int_equal((uintptr_t)memory % (sizes[s] >= 2 << 20 ? 2 << 20 : 64), 0);
            for (size_t i = 0; i < sizes[s]; i++)
                assert_int_equal(((char *)memory)[i], 0);
            assert_int_equal(backend->ops->fill(backend, memory, 0xa5, sizes[s]), EPA_OK);
            backend->ops->free(backend, memory);
        }
    }
    backend->ops->close(backend);
}

TEST(an_impossible_allocation_is_refused_with_its_size)
{
    struct epa_backend *backend = open_host(1, 1);
    struct epa_error err = {EPA_OK, ""};
    void *memory = NULL;

    assert_int_equal(backend->ops->alloc(backend, SIZE_MAX - 5, &memory), EPA_ERR_NOMEM);
    assert_null(memory);
    backend->ops->explain(backend, &err);
    assert_int_equal(err.status, EPA_ERR_NOMEM);
    assert_string_equal(err.text, "host: no memory for 18446744073709551610 bytes");
    backend->ops->close(backend);
}

struct visits {
    uint32_t workers;
    uint32_t expected; /* not atomic: the pool has to publish each change */
    uint32_t wrong[MOST];
    uint32_t times[MOST]; /* not atomic, one entry per worker: the pool has to collect them */
};

static void visit(void *arg, uint32_t worker, uint32_t workers)
{
    struct visits *visits = arg;

    visits->wrong[worker] += workers != visits->workers;
    visits->wrong[worker] += visits->expected != visits->times[worker];
    visits->times[worker]++;
}

static void visit_rounds(uint32_t workers, uint32_t local_cores, uint32_t rounds, long pause_ns)
{
    struct epa_backend *backend = open_host(workers, local_cores);
    struct visits visits = {.workers = workers};

    for (uint32_t i = 0; i < rounds; i++) {
        visits.expected = i;
        assert_int_equal(backend->ops->parallel(backend, visit, &visits), EPA_OK);
        for (uint32_t w = 0; w < workers; w++) {
            assert_int_equal(visits.times[w], i + 1);
            assert_int_equal(visits.wrong[w], 0);
        }
        if (pause_ns != 0)
            nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
    }
    backend->ops->close(backend);
}

TEST(parallel_visits_each_worker_once_a_round_even_after_it_slept)
{
    visit_rounds(1, 1, 5000, 0);
    visit_rounds(3, 1, 5000, 0);
    visit_rounds(MOST, 2, 3000, 0);
    visit_rounds(3, 64, 20, 0); /* each worker has a core and spins */
    visit_rounds(3, 1, 20, 8000000);
    /* close to the moment of falling asleep, where a wake-up could be lost */
    visit_rounds(3, 1, 100, 2000000);
}

TEST(marks_not_recorded_have_no_time)
{
    struct epa_backend *backend = open_host(1, 1);
    struct epa_error err = {EPA_OK, ""};
    double ns = 5;

    assert_int_equal(backend->ops->mark(backend, 64), EPA_ERR_UNSUPPORTED);
    assert_int_equal(backend->ops->mark(backend, 1), EPA_OK);
    assert_int_equal(backend->ops->elapsed(backend, 1, 2, &ns), EPA_ERR_UNSUPPORTED);
    assert_true(ns == 5);
    backend->ops->explain(backend, &err);
    assert_string_equal(err.text, "host: no time between marks 1 and 2: record both first");
    backend->ops->close(backend);
}

/* The CUDA backend through its table of functions, on a GPU, with kernels that wait,
 * fault and are recorded. */
#include "../unit/test.h"

#include "../../plugins/backend/cuda/cuda.h"
#include "backend_kernels.h"
#include "gpu.h"

extern const struct epa_backend_plugin epa_plugin;

static const uint64_t MS = 1000000, FOR_EVER = 60000000000u;

struct fixture {
    uint32_t aborted;
    struct epa_bootstrap boot;
    struct epa_backend *b;
    const struct epa_backend_ops *ops;
};

static int open_backend(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct epa_error err = {EPA_OK, ""};

    assert_non_null(f);
    f->boot = (struct epa_bootstrap){.world = {.size = 1, .local_size = 1, .local_cores = 1},
                                     .aborted = &f->aborted};
    if (epa_plugin.open(epa_plugin.plugin.options.defaults, &f->boot, &f->b, &err) != EPA_OK)
        fail_msg("%s", err.text);
    f->ops = f->b->ops;
    *state = f;
    return 0;
}

static int close_backend(void **state)
{
    struct fixture *f = *state;

    f->ops->close(f->b);
    free(f);
    return 0;
}

static void assert_says(struct fixture *f, const char *part)
{
    struct epa_error err = {EPA_OK, ""};

    f->ops->explain(f->b, &err);
    if (strstr(err.text, part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, part);
}

static void *alloc(struct fixture *f, size_t bytes)
{
    void *memory = NULL;

    assert_int_equal(f->ops->alloc(f->b, bytes, &memory), EPA_OK);
    return memory;
}

static uint32_t word_at(struct fixture *f, const uint32_t *word)
{
    uint32_t value = 0;

    assert_int_equal(f->ops->read(f->b, &value, word, sizeof(value)), EPA_OK);
    return value;
}

#define TEST_OF_BACKEND(name) TEST_WITH(open_backend, close_backend, name, struct fixture *f)

TEST_OF_BACKEND(it_says_what_it_is)
{
    assert_int_equal(f->b->memory, EPA_MEMORY_CUDA);
    assert_int_equal(f->b->device, 0);
    assert_non_null(f->b->stream);
    assert_non_null(f->b->stop);
    assert_non_null(f->b->device_fault);
    assert_true(f->b->multiprocessors > 0);
    assert_int_equal(epa_plugin.threads(epa_plugin.plugin.options.defaults), 1);
}

TEST_OF_BACKEND(memory_is_zero_and_holds_what_is_written)
{
    static const size_t sizes[] = {0, 1, 4097, (2 << 20) + 3};
    unsigned char *host = malloc((2 << 20) + 3), *back = malloc((2 << 20) + 3);

    for (size_t s = 0; s < LENGTH(sizes); s++) {
        char *memory = alloc(f, sizes[s]);

        assert_int_equal((uintptr_t)memory % 256, 0);
        assert_int_equal(f->ops->read(f->b, back, memory, sizes[s]), EPA_OK);
        for (size_t i = 0; i < sizes[s]; i++) {
            assert_int_equal(back[i], 0);
            host[i] = (unsigned char)(i * 7 + s);
        }
        assert_int_equal(f->ops->write(f->b, memory, host, sizes[s]), EPA_OK);
        assert_int_equal(f->ops->read(f->b, back, memory, sizes[s]), EPA_OK);
        assert_memory_equal(host, back, sizes[s]);
        assert_int_equal(f->ops->fill(f->b, memory, 0xa5, sizes[s]), EPA_OK);
        assert_int_equal(f->ops->read(f->b, back, memory, sizes[s]), EPA_OK);
        for (size_t i = 0; i < sizes[s]; i++)
            assert_int_equal(back[i], 0xa5);
        f->ops->free(f->b, memory);
    }
    f->ops->free(f->b, NULL);
    free(host);
    free(back);
}

TEST_OF_BACKEND(memory_that_there_cannot_be_is_refused_in_words)
{
    void *memory = NULL;

    assert_int_equal(f->ops->alloc(f->b, (size_t)1 << 50, &memory), EPA_ERR_NOMEM);
    assert_null(memory);
    assert_says(f, "cuda: no memory for 1125899906842624 bytes on GPU 0: ");
    f->ops->free(f->b, alloc(f, 4096)); /* and the device is as good as before */
    assert_int_equal(f->ops->sync(f->b), EPA_OK);
}

TEST_OF_BACKEND(time_passes_between_marks)
{
    double ns = 0;

    assert_int_equal(f->ops->elapsed(f->b, 0, 1, &ns), EPA_ERR_UNSUPPORTED);
    assert_says(f, "no time between marks 0 and 1: not both were made");
    assert_int_equal(f->ops->mark(f->b, CUDA_MARKS), EPA_ERR_UNSUPPORTED);
    assert_says(f, "mark 64 of 64");
    assert_int_equal(f->ops->mark(f->b, 0), EPA_OK);
    assert_int_equal(kernel_busy(f->b, 5 * MS), 0);
    assert_int_equal(f->ops->mark(f->b, CUDA_MARKS - 1), EPA_OK);
    assert_int_equal(f->ops->sync(f->b), EPA_OK);
    assert_int_equal(f->ops->elapsed(f->b, 0, CUDA_MARKS - 1, &ns), EPA_OK);
    assert_true(ns >= 4.9e6);
}

TEST_OF_BACKEND(a_rank_has_no_workers)
{
    assert_int_equal(f->ops->parallel(f->b, NULL, NULL), EPA_ERR_UNSUPPORTED);
    assert_says(f, "no worker threads");
}

TEST_OF_BACKEND(a_graph_runs_as_often_as_it_is_launched)
{
    uint32_t *word = alloc(f, sizeof(*word)), value;
    struct epa_graph *graph = NULL;
    double ns = 0;

    assert_int_equal(f->ops->capture_begin(f->b), EPA_OK);
    assert_int_equal(f->ops->mark(f->b, 2), EPA_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(kernel_add(f->b, word, 1), 0);
    assert_int_equal(kernel_busy(f->b, MS), 0);
    assert_int_equal(f->ops->mark(f->b, 3), EPA_OK);
    assert_int_equal(f->ops->flush_cache(f->b), EPA_OK);
    assert_int_equal(f->ops->capture_end(f->b, &graph), EPA_OK);
    value = word_at(f, word);
    assert_int_equal(value, 0); /* recorded, not run */
    for (uint32_t i = 1; i <= 5; i++) {
        assert_int_equal(f->ops->graph_launch(f->b, graph), EPA_OK);
        assert_int_equal(kernel_add(f->b, word, 100), 0); /* in order with eager work */
        assert_int_equal(f->ops->sync(f->b), EPA_OK);
        assert_int_equal(word_at(f, word), 103 * i);
    }
    assert_int_equal(f->ops->elapsed(f->b, 2, 3, &ns), EPA_OK);
    assert_true(ns >= 0.9e6);
    f->ops->graph_destroy(f->b, graph);
    f->ops->graph_destroy(f->b, NULL);
    f->ops->free(f->b, word);
}

TEST_OF_BACKEND(what_waits_cannot_be_recorded)
{
    uint32_t *word = alloc(f, sizeof(*word)), value = 7;
    struct epa_graph *graph = NULL;
    void *memory = NULL;

    assert_int_equal(f->ops->capture_end(f->b, &graph), EPA_ERR_UNSUPPORTED);
    assert_says(f, "capture_end without a capture_begin");
    assert_int_equal(f->ops->capture_begin(f->b), EPA_OK);
    assert_int_equal(f->ops->capture_begin(f->b), EPA_ERR_UNSUPPORTED);
    assert_int_equal(f->ops->sync(f->b), EPA_ERR_UNSUPPORTED);
    assert_says(f, "sync cannot be part of a graph");
    assert_int_equal(f->ops->write(f->b, word, &value, sizeof(value)), EPA_ERR_UNSUPPORTED);
    assert_int_equal(f->ops->read(f->b, &value, word, sizeof(value)), EPA_ERR_UNSUPPORTED);
    assert_int_equal(f->ops->fill(f->b, word, 1, sizeof(value)), EPA_ERR_UNSUPPORTED);
    assert_int_equal(f->ops->alloc(f->b, 4, &memory), EPA_ERR_UNSUPPORTED);
    assert_int_equal(kernel_add(f->b, word, 2), 0); /* the recording took no harm */
    assert_int_equal(f->ops->capture_end(f->b, &graph), EPA_OK);
    assert_int_equal(f->ops->graph_launch(f->b, graph), EPA_OK);
    assert_int_equal(f->ops->sync(f->b), EPA_OK);
    assert_int_equal(word_at(f, word), 2);
    f->ops->graph_destroy(f->b, graph);
    f->ops->free(f->b, word);
}

TEST_OF_BACKEND(a_backend_may_be_closed_while_it_records)
{
    assert_int_equal(f->ops->capture_begin(f->b), EPA_OK);
}

TEST_OF_BACKEND(a_kernel_that_gives_up_is_reported)
{
    uint64_t *signal = alloc(f, sizeof(*signal));
    const struct epa_fault *fault = &f->b->fault;

    assert_int_equal(kernel_wait(f->b, signal, 5, 2 * MS, NULL), 0);
    assert_int_equal(f->ops->sync(f->b), EPA_ERR_TIMEOUT);
    assert_int_equal(fault->status, EPA_ERR_TIMEOUT);
    assert_int_equal(fault->stage, 1);
    assert_int_equal(fault->what, 2);
    assert_int_equal(fault->peer, 3);
    assert_int_equal(fault->index, 4);
    assert_int_equal(fault->seen, 0);
    assert_int_equal(fault->wanted, 5);
    assert_true(fault->waited_ns >= 2 * MS);
    assert_says(f, "cuda: a kernel on GPU 0 gave up (stage 1, wait 2): peer 3, index 4: it saw "
                   "0 and wanted 5, for ");
    assert_int_equal(f->ops->sync(f->b), EPA_ERR_TIMEOUT); /* it stays */
    f->ops->free(f->b, signal);
}

TEST_OF_BACKEND(kernels_leave_once_a_rank_has_failed)
{
    uint64_t *signal = alloc(f, sizeof(*signal));
    uint32_t *left = alloc(f, sizeof(*left));

    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(kernel_wait(f->b, signal, 1, FOR_EVER, left), 0);
    __atomic_store_n(&f->aborted, 1, __ATOMIC_RELAXED);
    assert_int_equal(f->ops->sync(f->b), EPA_ERR_ABORTED);
    assert_int_equal(f->b->fault.status, EPA_ERR_ABORTED);
    assert_int_equal(word_at(f, left), 3);
    f->ops->free(f->b, left);
    f->ops->free(f->b, signal);
}

TEST_OF_BACKEND(close_does_not_wait_for_a_signal_that_never_comes)
{
    uint64_t *signal = alloc(f, sizeof(*signal)); /* goes with the process */

    assert_int_equal(kernel_wait(f->b, signal, 1, FOR_EVER, NULL), 0);
}

TEST_OF_BACKEND(errors_of_the_device_have_a_name)
{
    assert_int_equal(f->ops->fill(f->b, (void *)16, 1, 64), EPA_ERR_SYSTEM);
    assert_says(f, "cuda: GPU 0: ");
    assert_says(f, "cudaErrorInvalidValue");
}

TEST_OF_BACKEND(ranks_of_one_gpu_share_its_multiprocessors)
{
    const struct cuda_config config = {.share = true, .devices = {(const uint32_t[]){0}, 1}};
    struct epa_error err = {EPA_OK, ""};
    struct epa_bootstrap boot = {
        .world = {.rank = 1, .size = 2, .local_rank = 1, .local_size = 2, .local_cores = 1},
        .aborted = &f->aborted};
    struct epa_backend *other = NULL;

    assert_int_equal(epa_plugin.open(&config, &boot, &other, &err), EPA_OK);
    assert_int_equal(other->device, 0);
    assert_int_equal(other->multiprocessors, f->b->multiprocessors / 2);
    other->ops->close(other);
}

static void note(void *arg, const char *key, const char *value)
{
    char *keys = arg;

    printf("    %s: %s\n", key, value);
    assert_true(strlen(value) > 0);
    assert_true(strlen(keys) + strlen(key) + 2 < 1024);
    strcat(keys, key);
    strcat(keys, " ");
}

TEST_OF_BACKEND(the_machine_is_described)
{
    static const char *const always[] = {
        "device ", "capability ", "multiprocessors ", "memory ", "l2 ", "cuda ", "pci "};
    char keys[1024] = "";

    f->ops->describe(f->b, note, keys);
    for (size_t i = 0; i < LENGTH(always); i++)
        assert_non_null(strstr(keys, always[i]));
    assert_true(strstr(keys, "clock ") != NULL || strstr(keys, "nvml ") != NULL);
    assert_int_equal(f->ops->sync(f->b), EPA_OK);
}

static int want_gpu(void **state)
{
    (void)state;
    if (gpu_count(1) == 0)
        exit(GPU_SKIP);
    return 0;
}

TEST_GROUP(want_gpu, NULL)

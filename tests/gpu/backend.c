/* The CUDA backend through its table of functions, on a GPU: what it refuses, and kernels that wait and
 * fault. All else of it runs of the program use. */
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

TEST_GROUP(want_gpu, NULL)

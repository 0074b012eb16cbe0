/* Tests of the nvlink transport over a simulated CUDA (fake/fake_cuda.c). Every CUDA call fails in
 * turn, in whichever rank makes it. Each time all ranks return, the rank of the failed call reports
 * the reason, and no resource remains. */
#include <dirent.h>
#include "../unit/test.h"

#include <epa2a/transport.h>

#include "../contract/ranks.h"
#include "fake/fake_cuda.h"
#include "launch/program_registry.h"

enum { MOST = 4, HEAP = 4096 };

struct simulated {
    const struct epa_transport_plugin *plugin;
    const struct epa_backend_plugin *backend;
    const struct epa_transport_plugin *between;
    struct fake_cuda *cuda;
};

struct call {
    const struct simulated *subject;
    const void *config;
    bool nodes; /* each rank is a node */
    enum epa_status status[MOST];
    struct epa_error err[MOST];
};

static const uint64_t default_timeout_ns = 20000000000u;

/* Uses all functions except device_peak(), whose kernels would wait seconds for a failed rank.
 * After a failure the copy may still run: the source stays valid until close(), which waits for
 * it. */
static enum epa_status use(struct epa_transport *t, const uint64_t *source)
{
    uint32_t next = (t->rank + 1) % t->size;
    enum epa_status status =
        t->ops->put_signal(t, 64, source, sizeof(*source), 1, 3, EPA_SIGNAL_SET, next);

    if (status == EPA_OK)
        status = t->ops->wait(t, 1, EPA_GE, 3, default_timeout_ns);
    if (status == EPA_OK)
        status = t->ops->barrier(t, default_timeout_ns);
    if (status == EPA_OK)
        status = t->ops->reset(t);
    return status;
}

static enum epa_status rank_main(struct epa_bootstrap *boot, void *arg)
{
    struct call *call = arg;
    const uint64_t source = 7;
    uint32_t me = boot->world.rank;
    struct epa_error *err = &call->err[me];
    struct epa_backend *backend = NULL;
    struct epa_transport *t = NULL;
    /* The backend reports GPU memory and calls no CUDA function, so that only the transport makes
     * calls. */
    enum epa_status status = call->subject->backend->open(
        call->subject->backend->plugin.options.defaults, boot, &backend, err);
    struct epa_transport_params params = {.boot = boot,
                                          .backend = backend,
                                          .config = call->config,
                                          .heap_bytes = HEAP,
                                          .signals = 2,
                                          .between = call->nodes ? call->subject->between : NULL};

    if (status == EPA_OK) {
        backend->stream = NULL; /* not a stream of CUDA */
        status = call->subject->plugin->open(&params, &t, err);
    }
    if (status == EPA_OK) {
        status = use(t, &source);
        if (status != EPA_OK)
            t->ops->explain(t, err);
        if (status != EPA_OK)
            boot->abort(boot); /* before waits for other ranks */
        t->ops->close(t);
    }
    if (backend != NULL)
        backend->ops->close(backend);
    call->status[me] = status;
    return status;
}

static uint32_t count_descriptors(void)
{
    DIR *fds = opendir("/proc/self/fd");
    uint32_t n = 0;

    while (fds != NULL && readdir(fds) != NULL)
        n++;
    if (fds != NULL)
        closedir(fds);
    return n;
}

/* Ranks are threads: they share one simulated CUDA, so that the test can count its remaining
 * resources. */
static struct call launch(const struct simulated *subject, const char *memory, uint32_t ranks,
                          bool nodes)
{
    const char *option = memory;
    struct call call = {.subject = subject,
                        .config = read_config(&subject->plugin->plugin.options, 1, &option),
                        .nodes = nodes};
    struct epa_launch launch = {.ranks = ranks,
                                .ranks_per_node = nodes ? 1 : 0,
                                .threads = 1,
                                .stop_fd = -1,
                                .grace_ns = default_timeout_ns,
                                .timeout_ns = default_timeout_ns,
                                .rank_main = rank_main,
                                .arg = &call};
    struct epa_error err = {EPA_OK, ""};
    uint32_t descriptors = count_descriptors();

    (void)launch_thread_plugin.launch(launch_thread_plugin.plugin.options.defaults, &launch, &err);
    if (subject->cuda->live != 0)
        fail_msg("call %llu failed: %lld things are left",
                 (unsigned long long)subject->cuda->fail_at, (long long)subject->cuda->live);
    assert_int_equal(count_descriptors(), descriptors);
    return call;
}

/* Checks that one rank failed with a reason, and that aborted ranks report no reason of their
 * own. */
static void assert_one_reason(const struct call *call, uint64_t at)
{
    for (uint32_t r = 0; r < MOST; r++) {
        if (call->status[r] == EPA_OK || call->status[r] == EPA_ERR_ABORTED)
            continue;
        if (strncmp(call->err[r].text, "nvlink: ", 8) != 0)
            fail_msg("call %llu failed: rank %u says \"%s\"", (unsigned long long)at, r,
                     call->err[r].text);
    }
}

static bool somebody_failed(const struct call *call)
{
    for (uint32_t r = 0; r < MOST; r++)
        if (call->status[r] != EPA_OK)
            return true;
    return false;
}

static void fail_each_call(const struct simulated *subject, const char *memory, uint32_t ranks,
                           bool nodes)
{
    uint64_t calls = UINT64_MAX, reached = 0, failed = 0;

    /* takes the minimum of several runs: waiting ranks repeat calls, on a busy machine thousands of
     * times */
    for (int i = 0; i < 5; i++) {
        struct call good;

        subject->cuda->calls = subject->cuda->fail_at = 0;
        good = launch(subject, memory, ranks, nodes);
        for (uint32_t r = 0; r < ranks; r++)
            assert_int_equal(good.status[r], EPA_OK);
        calls = subject->cuda->calls < calls ? subject->cuda->calls : calls;
    }
    for (uint64_t at = 1; at <= calls; at++) {
        struct call call;

        subject->cuda->calls = 0;
        subject->cuda->fail_at = at;
        call = launch(subject, memory, ranks, nodes);
        assert_one_reason(&call, at);
        reached += subject->cuda->calls >= at;
        failed += somebody_failed(&call);
    }
    subject->cuda->fail_at = 0;
    /* some failures have no effect: 6 to 15 calls on close */
    if (reached - failed > 20)
        fail_msg("of %llu calls that failed only %llu ended a rank", (unsigned long long)reached,
                 (unsigned long long)failed);
}

TEST(any_call_may_fail_with_memory_passed_by_descriptors)
{
    fail_each_call(*state, "memory=vmm", MOST, false);
}

TEST(any_call_may_fail_with_cuda_ipc)
{
    fail_each_call(*state, "memory=ipc", MOST, false);
}

TEST(any_call_may_fail_with_other_nodes)
{
    fail_each_call(*state, "memory=vmm", 2, true);
}

TEST(all_ranks_refuse_the_same_pair)
{
    const struct simulated *subject = *state;
    struct call call;

    subject->cuda->unreachable = 2;
    call = launch(subject, "memory=auto", MOST, false);
    subject->cuda->unreachable = -1;
    for (uint32_t r = 0; r < MOST; r++) {
        assert_int_equal(call.status[r], EPA_ERR_UNSUPPORTED);
        assert_string_equal(call.err[r].text,
                            "nvlink: GPU 0 (rank 0, 0000:10:00.0) cannot access GPU 2 (rank "
                            "2, 0000:12:00.0) directly; take GPUs that NVLink joins "
                            "(nvidia-smi topo -m shows them)");
    }
}

TEST(gpus_that_cannot_pass_descriptors_use_ipc)
{
    const struct simulated *subject = *state;
    struct call automatic, insisting;

    subject->cuda->no_descriptors = 1;
    automatic = launch(subject, "memory=auto", 2, false);
    insisting = launch(subject, "memory=vmm", 2, false);
    subject->cuda->no_descriptors = 0;
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(automatic.status[r], EPA_OK);
        assert_int_equal(insisting.status[r], EPA_ERR_UNSUPPORTED);
        assert_string_equal(insisting.err[r].text,
                            "nvlink: GPU 0 (rank 0, 0000:10:00.0) cannot pass memory by "
                            "descriptors; leave out transport.memory, or set it to ipc");
    }
}

static int take_arguments(void **state)
{
    static struct simulated subject;

    if (test_argc != 4) /* NVLINK.so BACKEND.so SHM.so, the first two simulated */
        return -1;
    subject.plugin = load_symbol(test_argv[1], EPA_PLUGIN_SYMBOL);
    subject.backend = load_symbol(test_argv[2], EPA_PLUGIN_SYMBOL);
    subject.between = load_symbol(test_argv[3], EPA_PLUGIN_SYMBOL);
    subject.cuda = (struct fake_cuda *)load_symbol(test_argv[1], FAKE_CUDA_SYMBOL);
    *state = &subject;
    return 0;
}

TEST_GROUP(take_arguments, NULL)

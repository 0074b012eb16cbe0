/* What only the nvlink transport promises, beside what tests/contract asks of every transport:
 * a view for kernels, links measured, refusals in words, nothing left behind, and an error
 * where a rank has gone. Ranks share a GPU where there are too few. */
#include <dirent.h>
#include <sched.h>
#include "../unit/test.h"
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "../contract/ranks.h"

enum { MIB = 1 << 20, HEAP = 8 * MIB, SIGNALS = 8, OPENS = 3 };

/* How the ranks of this program run, and whether on GPUs or on made-up ones. */
static bool forked, ipc, real;

static void run(void **state, uint32_t ranks, uint64_t heap_bytes, void (*body)(struct rank *),
                bool fails)
{
    ranks_run(*state, &(struct ranks){.ranks = ranks,
                                      .signals = SIGNALS,
                                      .heap_bytes = heap_bytes,
                                      .body = body,
                                      .fails = fails});
}

/* ---- the view ---- */

static void look_at_view(struct rank *r)
{
    const struct epa_device_view *v = r->t->view;

    if (!claim(r, (r->t->flags & EPA_TRANSPORT_DEVICE) != 0 && v != NULL, "no view"))
        return;
    claim(r, v->rank == r->me && v->size == r->size, "rank %u of %u", v->rank, v->size);
    claim(r, v->stop == r->backend->stop && v->fault == r->backend->device_fault,
          "stop and fault are not the backend's");
    for (uint32_t peer = 0; peer < r->size; peer++) {
        claim(r, v->peer_heap[peer] == r->t->peer_heap[peer], "heap of rank %u", peer);
        claim(r, v->peer_signal[peer] != NULL && (uintptr_t)v->peer_signal[peer] % 8 == 0,
              "signals of rank %u", peer);
        for (uint32_t other = 0; other < peer; other++)
            claim(r, v->peer_heap[peer] != v->peer_heap[other], "ranks %u and %u are one", peer,
                  other);
    }
}

TEST(kernels_have_a_view_of_all_ranks)
{
    for (uint32_t n = 1; n <= 4; n *= 2)
        run(state, n, HEAP, look_at_view, false);
}

/* ---- sources ---- */

static void send_from_device_memory(struct rank *r)
{
    void *elsewhere = NULL;

    if (!claim(r, r->backend->ops->alloc(r->backend, 5000, &elsewhere) == EPA_OK, "alloc"))
        return;
    fill(r, 0, 5000, 3);
    works(r, r->backend->ops->read(r->backend, r->shared->note[r->me], r->t->heap, 5000));
    works(r, r->backend->ops->write(r->backend, elsewhere, r->shared->note[r->me], 5000));
    put_signal(r, MIB, elsewhere, 5000, 0, 1, EPA_SIGNAL_SET, next_of(r));
    if (await(r, 0, 1))
        is_filled(r, MIB, 5000, 3, previous_of(r));
    works(r, r->t->ops->quiet(r->t));
    r->backend->ops->free(r->backend, elsewhere);
}

TEST(a_source_may_be_other_memory_of_the_gpu)
{
    run(state, 2, HEAP, send_from_device_memory, false);
}

/* ---- refusals ---- */

/* Opens by hand, with what the harness does not offer; `text` must be in the refusal. */
static void is_refused(struct rank *r, const struct epa_transport_params *given, const char *text)
{
    const struct epa_transport_plugin *plugin = r->subject->plugin;
    struct epa_transport_params params = *given;
    struct epa_transport *t = NULL;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;

    params.config = r->subject->config;
    params.signals = 1;
    if (params.boot == NULL)
        params.boot = r->boot;
    if (params.backend == NULL)
        params.backend = r->backend;
    status = plugin->open(&params, &t, &err);
    claim(r, status != EPA_OK && t == NULL, "it was not refused");
    claim(r, err.status == status && strstr(err.text, text) != NULL, "status %d: %s", status,
          err.text);
}

static void open_as_cannot_be(struct rank *r)
{
    struct epa_bootstrap boot = *r->boot; /* nothing but its world is used */
    struct epa_backend host = *r->backend;

    host.memory = EPA_MEMORY_HOST;
    is_refused(r, &(struct epa_transport_params){.backend = &host, .heap_bytes = 4096},
               "take backend: cuda");
    boot.world.size = boot.world.local_size = EPA_DEVICE_RANKS + 1;
    is_refused(r, &(struct epa_transport_params){.boot = &boot, .heap_bytes = 4096},
               "64 ranks at most, not 65");
    is_refused(r, &(struct epa_transport_params){.heap_bytes = r->me == 1 ? 8192 : 4096},
               r->me == 1 ? "rank 0 has a heap of 4096 bytes" : "rank 1 has a heap of 8192 bytes");
    is_refused(r, &(struct epa_transport_params){.heap_bytes = UINT64_MAX - 5}, "too large");
    /* More than any GPU has: each rank fails by itself, and none waits for another. */
    is_refused(r, &(struct epa_transport_params){.heap_bytes = (uint64_t)1 << 48},
               "allocation of the 281474");
}

TEST(what_cannot_be_is_refused_in_words)
{
    run(state, 2, 4096, open_as_cannot_be, false);
}

/* ---- nothing left ---- */

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

static uint32_t count_pages(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    uint32_t n = 0;

    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL)
        n += strstr(line, "memfd:epa2a-nvlink") != NULL;
    if (maps != NULL)
        fclose(maps);
    return n;
}

static bool meet_by_other_means(struct rank *r)
{
    return claim(r, r->boot->barrier(r->boot) == EPA_OK, "barrier of the bootstrap");
}

static bool open_and_close(struct rank *r)
{
    const struct epa_transport_plugin *plugin = r->subject->plugin;
    const struct epa_transport_params params = {.boot = r->boot,
                                                .backend = r->backend,
                                                .config = r->subject->config,
                                                .heap_bytes = 64 * MIB,
                                                .signals = 4};
    struct epa_transport *t = NULL;
    struct epa_error err = {EPA_OK, ""};

    if (!claim(r, plugin->open(&params, &t, &err) == EPA_OK, "open: %s", err.text))
        return false;
    t->ops->close(t);
    return meet_by_other_means(r);
}

struct left {
    size_t free_bytes;
    uint32_t descriptors, pages;
};

/* All have closed, and none has opened again. Threads look one at a time, that is, one. */
static bool look_round(struct rank *r, struct left *out)
{
    size_t all;

    *out = (struct left){.free_bytes = 0};
    if (forked || r->me == 0) {
        claim(r, !real || cudaMemGetInfo(&out->free_bytes, &all) == cudaSuccess, "cudaMemGetInfo");
        out->descriptors = count_descriptors();
        out->pages = count_pages();
    }
    return meet_by_other_means(r);
}

static void open_often(struct rank *r)
{
    struct left before, after;

    if (!open_and_close(r) || !look_round(r, &before)) /* the first loads what stays */
        return;
    for (int i = 0; i < OPENS; i++) {
        if (!open_and_close(r))
            return;
    }
    if (!look_round(r, &after))
        return;
    claim(r, after.free_bytes + 128 * MIB > before.free_bytes || before.free_bytes == 0,
          "%zu bytes of the GPU were free, now %zu", before.free_bytes, after.free_bytes);
    claim(r, after.descriptors <= before.descriptors, "%u descriptors were open, now %u",
          before.descriptors, after.descriptors);
    claim(r, after.pages <= before.pages, "%u pages were mapped, now %u", before.pages,
          after.pages);
}

TEST(nothing_is_left_behind)
{
    run(state, 2, 4096, open_often, false);
    run(state, 4, 4096, open_often, false);
}

static void write_to_who_has_left(struct rank *r)
{
    char bytes[4096];

    for (int i = 0; i < 50 && r->me != 0; i++) {
        memset(bytes, i, sizeof(bytes));
        (void)r->t->ops->put(r->t, (uint64_t)r->me * 4096, bytes, sizeof(bytes), 0);
        works(r, r->t->ops->signal(r->t, 1, 1, EPA_SIGNAL_ADD, 0));
        sched_yield();
    }
    works(r, r->t->ops->quiet(r->t));
}

/* With CUDA IPC between processes the owner must leave last. */
TEST(a_heap_stays_while_peers_may_write_to_it)
{
    if (ipc && forked)
        skip();
    run(state, 4, HEAP, write_to_who_has_left, true);
}

/* ---- ranks that go ---- */

static void gather(struct rank *r, uint64_t n)
{
    __atomic_fetch_add(&r->shared->word[0], 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&r->shared->word[0], __ATOMIC_ACQUIRE) < n)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void go(struct rank *r)
{
    if (forked)
        kill(getpid(), SIGKILL);
    else
        r->boot->abort(r->boot);
}

static void wait_for_who_has_gone(struct rank *r)
{
    enum epa_status status = EPA_OK;
    struct epa_error err = {EPA_OK, ""};
    double ns;

    if (r->me == 1) {
        gather(r, r->size);
        go(r);
        return;
    }
    gather(r, 0);
    if (r->me == 0)
        status = epa_wait(r->t, 2, 7, DEFAULT_TIMEOUT_NS);
    else if (r->me == 2)
        status = r->t->ops->barrier(r->t, DEFAULT_TIMEOUT_NS);
    else
        status =
            r->t->ops->device_peak(r->t, &(struct epa_peak_run){.bytes = MIB, .passes = 1}, &ns);
    claim(r, status == EPA_ERR_ABORTED, "status %d", status);
    r->t->ops->explain(r->t, &err);
    claim(r, err.status == EPA_ERR_ABORTED && strstr(err.text, "another rank") != NULL, "%s",
          err.text);
}

/* In kernels that wait for it, too. */
static void measure_who_has_gone(struct rank *r)
{
    enum epa_status status;
    double ns;

    if (r->me == 1) {
        (void)r->boot->barrier(r->boot);
        go(r);
        return;
    }
    (void)r->boot->barrier(r->boot);
    status = r->t->ops->device_peak(r->t, &(struct epa_peak_run){.peer = 1, .turns = 1000}, &ns);
    claim(r, status == EPA_ERR_ABORTED || status == EPA_ERR_TIMEOUT, "status %d", status);
}

TEST(a_rank_that_is_gone_is_an_error_to_the_others)
{
    run(state, 4, HEAP, wait_for_who_has_gone, true);
    run(state, 4, HEAP, measure_who_has_gone, true);
}

static void open_with_one_too_few(struct rank *r)
{
    const struct epa_transport_plugin *plugin = r->subject->plugin;
    const struct epa_transport_params params = {
        .boot = r->boot, .backend = r->backend, .config = r->subject->config, .heap_bytes = HEAP};
    struct epa_transport *t = NULL;
    struct epa_error err = {EPA_OK, ""};

    if (r->me == 1) {
        go(r);
        return;
    }
    claim(r, plugin->open(&params, &t, &err) == EPA_ERR_ABORTED && t == NULL, "%s", err.text);
}

TEST(a_rank_that_goes_during_set_up_is_an_error_to_the_others)
{
    run(state, 4, 4096, open_with_one_too_few, true);
}

static int take_arguments(void **state)
{
    static struct subject subject;

    subject = ranks_subject(test_argc, test_argv);
    if (test_argc < 5) {
        fprintf(stderr, "%s wants a backend and memory=vmm or memory=ipc, too\n", test_argv[0]);
        exit(2);
    }
    forked = strcmp(test_argv[2], "fork") == 0;
    ipc = strcmp(test_argv[4], "memory=ipc") == 0;
    real = strcmp(subject.backend->plugin.name, "cuda") == 0;
    *state = &subject;
    return 0;
}

TEST_GROUP(take_arguments, NULL)

/* Promises of the nvlink transport only; tests/contract covers the common ones. This file tests
 * refusals with reasons, and an error after a rank has left. Ranks share a GPU if there are too
 * few. */
#include <cuda_runtime_api.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "../contract/ranks.h"

enum { MIB = 1 << 20, HEAP = 8 * MIB, SIGNALS = 8, BUSY_S = 3 };

static bool forked, ipc; /* launcher and memory kind of this program */

static void open_as_cannot_be(struct rank *r)
{
    struct epa_bootstrap boot = *r->boot; /* only `world` of the copy changes */
    struct epa_backend host = *r->backend, *gpu = r->backend;

    host.memory = EPA_MEMORY_HOST;
    r->backend = &host;
    refuses_to_open(r, r->boot, 4096, "take backend: cuda");
    r->backend = gpu;
    boot.world.size = boot.world.local_size = EPA_DEVICE_RANKS + 1;
    refuses_to_open(r, &boot, 4096, "64 ranks at most, not 65");
    refuses_to_open(r, r->boot, r->me == 1 ? 8192 : 4096,
                    r->me == 1 ? "rank 0 has a heap of 4096 bytes"
                               : "rank 1 has a heap of 8192 bytes");
    refuses_to_open(r, r->boot, UINT64_MAX - 5, "too large");
    /* More memory than any GPU has: each rank fails on its own without a wait for others. */
    refuses_to_open(r, r->boot, (uint64_t)1 << 48, "allocation of the 281474");
}

/* With CUDA IPC between processes the owner must leave last. */
static void write_to_who_has_left(struct rank *r)
{
    char bytes[4096];

    for (int i = 0; i < 50 && r->me != 0 && !(ipc && forked); i++) {
        memset(bytes, i, sizeof(bytes));
        (void)r->t->ops->put(r->t, (uint64_t)r->me * 4096, bytes, sizeof(bytes), 0);
        works(r, r->t->ops->signal(r->t, 1, 1, EPA_SIGNAL_ADD, 0));
        sched_yield();
    }
    works(r, r->t->ops->quiet(r->t));
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
    enum epa_status status;
    double ns;

    gather_ranks(r, 0, r->me == 1 ? r->size : 0);
    if (r->me == 1) {
        go(r);
        return;
    }
    if (r->me == 0)
        status = epa_wait(r->t, 2, 7, DEFAULT_TIMEOUT_NS);
    else if (r->me == 2)
        status = r->t->ops->barrier(r->t, DEFAULT_TIMEOUT_NS);
    else
        status =
            r->t->ops->device_peak(r->t, &(struct epa_peak_run){.bytes = MIB, .passes = 1}, &ns);
    claim(r, status == EPA_ERR_ABORTED, "status %d", status);
    explains(r, "another rank");
}

/* Kernels that wait for the rank must end as well. */
static void measure_who_has_gone(struct rank *r)
{
    enum epa_status status;
    double ns;

    (void)r->boot->barrier(r->boot);
    if (r->me == 1) {
        go(r);
        return;
    }
    status = r->t->ops->device_peak(r->t, &(struct epa_peak_run){.peer = 1, .turns = 1000}, &ns);
    claim(r, status == EPA_ERR_ABORTED || status == EPA_ERR_TIMEOUT, "status %d", status);
}

static void open_with_one_too_few(struct rank *r)
{
    struct epa_transport *t = NULL;
    struct epa_error err = {EPA_OK, ""};

    if (r->me == 1)
        go(r);
    else
        claim(r, open_transport(r, r->boot, HEAP, 0, &t, &err) == EPA_ERR_ABORTED && t == NULL,
              "%s", err.text);
}

static void stay_busy(void *seconds)
{
    sleep(*(const unsigned *)seconds);
}

/* The kernel that replies starts after earlier work of the stream, so replies begin late. */
static void read_clock_of_busy_gpu(struct rank *r)
{
    unsigned seconds = BUSY_S;
    int64_t low = 0, high = 0;
    enum epa_status status;

    claim(r, cudaLaunchHostFunc(r->backend->stream, stay_busy, &seconds) == cudaSuccess, "queue");
    status = r->backend->ops->clock(r->backend, &low, &high);
    claim(r, status == EPA_OK && low <= high, "status %d, from %lld to %lld ns", status,
          (long long)low, (long long)high);
    status = r->backend->ops->sync(r->backend);
    claim(r, status == EPA_OK, "status %d of sync", status);
}

int main(int argc, char **argv)
{
    static const struct promise promises[] = {
        {"what cannot be is refused in words", open_as_cannot_be, {2}},
        {"a heap stays while peers may write to it", write_to_who_has_left, {4}, .fails = true},
        {"a rank that is gone is an error to the others",
         wait_for_who_has_gone,
         {4},
         .fails = true},
        {"kernels that wait for it leave", measure_who_has_gone, {4}, .fails = true},
        {"as is one that goes during set-up", open_with_one_too_few, {4}, .fails = true},
        {"a busy GPU replies with its time late", read_clock_of_busy_gpu, {1}},
    };

    if (argc < 5) {
        fprintf(stderr, "%s wants a backend and memory=vmm or memory=ipc, too\n", argv[0]);
        return 2;
    }
    forked = strcmp(argv[2], "fork") == 0;
    ipc = strcmp(argv[4], "memory=ipc") == 0;
    return promises_main(argc, argv, (struct ranks){.signals = SIGNALS, .heap_bytes = HEAP},
                         promises, sizeof(promises) / sizeof(promises[0]));
}

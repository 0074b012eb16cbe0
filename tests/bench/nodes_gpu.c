/* Puts from a kernel to a GPU of another node, to be put beside the link peak of the same
 * transport, from host memory to host memory: one way with a signal that a kernel waits for, and
 * without a pause.
 *
 *     bench-nodes-gpu NVLINK.so fork CUDA.so between_nodes=TRANSPORT.so
 *
 * Each rank is a node. Medians of five. */
#include <sys/mman.h>

#include "base/stats.h"
#include "contract/ranks.h"
#include "gpu/far_kernels.h"

enum {
    REPEATS = 5,
    ROOM = 64 << 20,
    FACTS = 4096,
    SHORT = 16384, /* no larger puts, and no repeats, where EPA2A_TEST_ROUNDS asks for a part */
};

static const uint32_t sizes[] = {0,     8,     64,     256,     1024,    4096,
                                 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20};

enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

struct results {
    double one_way_ns[SIZES], put_ns[SIZES];
    char facts[FACTS];
};

static struct results *results; /* in memory that ranks share */

/* Why a kernel left: a proxy that failed says more than the kernel that it made leave. */
static void explain_end(struct rank *r, struct epa_error *err)
{
    enum epa_status status = r->t->ops->progress(r->t);

    if (status != EPA_OK && status != EPA_ERR_ABORTED)
        r->t->ops->explain(r->t, err);
    else
        r->backend->ops->explain(r->backend, err);
}

/* Of turns or puts, by EPA2A_TEST_ROUNDS. */
static uint32_t share_of(const struct rank *r, uint32_t n)
{
    uint64_t share = n * r->subject->percent / 100;

    return share < 1 ? 1 : (uint32_t)share;
}

/* What the kernel took. */
static double run_kernel(struct rank *r, struct nodes_run run,
                         cudaError_t (*queue)(cudaStream_t, const struct nodes_run *))
{
    const struct epa_backend_ops *ops = r->backend->ops;
    struct epa_error err = {EPA_OK, ""};
    uint64_t ns = 0;

    meet(r);
    claim(r, queue(r->backend->stream, &run) == cudaSuccess, "no kernel");
    if (ops->sync(r->backend) != EPA_OK)
        explain_end(r, &err);
    claim(r, err.status == EPA_OK, "%s", err.text);
    (void)ops->read(r->backend, &ns, run.ns, sizeof(ns));
    claim(r, ns > 0, "%u bytes: a wait in vain", run.bytes);
    return (double)ns;
}

static double median_of(struct rank *r, struct nodes_run run, uint64_t *value,
                        cudaError_t (*queue)(cudaStream_t, const struct nodes_run *))
{
    uint32_t repeats = r->subject->percent < 100 ? 1 : REPEATS;
    double ns[REPEATS], scratch[REPEATS];

    for (uint32_t i = 0; i < repeats; i++) {
        run.value = *value;
        ns[i] = run_kernel(r, run, queue);
        *value += run.n + 2;
    }
    return stats_of(ns, repeats, scratch).median;
}

static void say(void *arg, const char *key, const char *value)
{
    size_t n = strlen(results->facts);

    snprintf(results->facts + n, FACTS - n, "# %s: %s\n", key, value);
}

static void body(struct rank *r)
{
    uint64_t value = 0;
    void *ns = NULL;
    struct nodes_run run = {.dst = ROOM, .room = ROOM, .timeout_ns = DEFAULT_TIMEOUT_NS / 6};

    if (!claim(r, r->t->ring != NULL, "no other node") ||
        !claim(r, r->backend->ops->alloc(r->backend, sizeof(uint64_t), &ns) == EPA_OK, "no memory"))
        return;
    if (r->me == 0)
        r->t->ops->describe(r->t, say, NULL);
    run.v = *r->t->view;
    run.ring = *r->t->ring;
    run.peer = 1 - r->me;
    run.ns = ns;
    for (uint32_t i = 0; i < SIZES; i++) {
        double took;

        run.bytes = sizes[i];
        if (sizes[i] > SHORT && r->subject->percent < 100)
            break;
        run.n = share_of(r, sizes[i] <= 65536 ? 1000 : 50);
        took = median_of(r, run, &value, nodes_queue_ping) / run.n / 2;
        if (r->me == 0)
            results->one_way_ns[i] = took;
        if (sizes[i] == 0)
            continue;
        run.n = share_of(r, (256u << 20) / sizes[i] < 4000 ? (256u << 20) / sizes[i] : 4000);
        took = median_of(r, run, &value, nodes_queue_stream) / run.n;
        if (r->me == 0)
            results->put_ns[i] = took;
    }
    r->backend->ops->free(r->backend, ns);
}

int main(int argc, char **argv)
{
    struct subject subject;

    results =
        mmap(NULL, sizeof(*results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (results == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    subject = ranks_subject(argc, argv);
    subject.per_node = 1;
    ranks_run(
        &subject,
        &(struct ranks){.ranks = 2, .signals = 2, .heap_bytes = 2 * (uint64_t)ROOM, .body = body});
    printf("%s%10s %16s %12s\n", results->facts, "bytes", "put_signal us", "put GB/s");
    for (uint32_t i = 0; i < SIZES && results->one_way_ns[i] > 0; i++)
        printf("%10u %16.2f %12.2f\n", sizes[i], results->one_way_ns[i] * 1e-3,
               sizes[i] > 0 ? sizes[i] / results->put_ns[i] : 0);
    return 0;
}

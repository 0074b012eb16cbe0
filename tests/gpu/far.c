/* Kernels put and signal to ranks of other nodes with the functions of ring.cuh. The program has
 * the arguments of tests/contract, with between_nodes; each rank is a node. */
#include "far_kernels.h"
#include "../contract/ranks.h"

enum { OWN = FAR_BLOCKS * FAR_PART, HEAP = 2 * OWN, ROUNDS = 12, FLOOD = 300 };

static void run_kernel(struct rank *r, cudaError_t (*queue)(cudaStream_t, const struct far_run *))
{
    const struct epa_backend_ops *ops = r->backend->ops;
    struct epa_error err = {EPA_OK, ""};
    unsigned long long wrong = 0;
    void *memory = NULL;

    if (!claim(r, r->t->ring != NULL && r->t->peer_heap[next_of(r)] == NULL, "no other node"))
        return;
    claim(r, ops->alloc(r->backend, sizeof(wrong), &memory) == EPA_OK, "no memory");
    claim(r,
          queue(r->backend->stream, &(struct far_run){.v = *r->t->view,
                                                      .ring = *r->t->ring,
                                                      .to = next_of(r),
                                                      .from = previous_of(r),
                                                      .rounds = ROUNDS,
                                                      .flood = FLOOD,
                                                      .own = OWN,
                                                      .timeout_ns = DEFAULT_TIMEOUT_NS,
                                                      .wrong = memory}) == cudaSuccess,
          "no kernel");
    if (ops->sync(r->backend) != EPA_OK)
        ops->explain(r->backend, &err);
    claim(r, err.status == EPA_OK, "%s", err.text);
    (void)ops->read(r->backend, &wrong, memory, sizeof(wrong));
    claim(r, wrong == 0, "%llu bytes are wrong, %llu waits in vain", wrong & UINT32_MAX,
          wrong >> 32);
    ops->free(r->backend, memory);
}

static void put_rounds(struct rank *r)
{
    run_kernel(r, far_queue_rounds);
}

static void flood_ring(struct rank *r)
{
    run_kernel(r, far_queue_flood);
}

static const struct promise promises[] = {
    {"kernels put and signal to other nodes", put_rounds, {2, 3}},
    {"a full ring makes kernels wait", flood_ring, {2}},
};

PROMISES_MAIN(FAR_SIGNALS, HEAP)

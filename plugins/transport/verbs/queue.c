/* See queue.h. */
#include "queue.h"

#include <assert.h>
#include <string.h>

enum { POLLED = 32, PEER_SHIFT = 32 };

uint64_t queue_pieces(const struct queues *q, uint64_t bytes)
{
    return bytes / q->most_bytes + (bytes % q->most_bytes != 0);
}

bool queue_has_room(const struct queue *q, uint64_t n)
{
    return q->built - q->done + n < q->slots; /* one slot is reserved, see queue.h */
}

bool queue_is_done(const struct queue *q, uint64_t mark)
{
    return q->done >= mark;
}

/* ---- building ---- */

static void ask(struct queue *q, struct ibv_send_wr *wr)
{
    wr->send_flags |= IBV_SEND_SIGNALED;
    q->asked = q->built;
}

/* Appends a request to the list of requests that are not yet posted. */
static struct ibv_send_wr *build(struct queues *all, struct queue *q, enum ibv_wr_opcode opcode,
                                 bool asking)
{
    uint32_t slot = (uint32_t)(q->built % q->slots);
    struct ibv_send_wr *wr = &q->wr[slot];

    assert(q->built - q->done < q->slots);
    if (q->built > q->posted)
        q->wr[(q->built - 1) % q->slots].next = wr;
    else
        all->held++;
    q->built++;
    *wr = (struct ibv_send_wr){.wr_id = (uint64_t)q->peer << PEER_SHIFT | (uint32_t)q->built,
                               .sg_list = &q->sge[slot],
                               .num_sge = 1,
                               .opcode = opcode};
    if (asking || q->built - q->asked >= all->ask_every)
        ask(q, wr);
    return wr;
}

static void build_write(struct queues *all, struct queue *q, struct queue_source from,
                        uint32_t bytes, uint64_t to, uint32_t to_key, bool asking)
{
    struct ibv_send_wr *wr = build(all, q, IBV_WR_RDMA_WRITE, asking);

    *wr->sg_list = (struct ibv_sge){.addr = (uintptr_t)from.at, .length = bytes, .lkey = from.key};
    wr->wr.rdma.remote_addr = to;
    wr->wr.rdma.rkey = to_key;
    if (from.readable && bytes <= q->inline_bytes)
        wr->send_flags |= IBV_SEND_INLINE;
}

void queue_write(struct queues *all, struct queue *q, struct queue_source from, uint64_t bytes,
                 uint64_t to)
{
    for (uint64_t at = 0; at < bytes; at += all->most_bytes) {
        uint64_t piece = bytes - at < all->most_bytes ? bytes - at : all->most_bytes;

        build_write(all, q, from, (uint32_t)piece, to + at, q->heap_key, false);
        from.at = (const char *)from.at + piece;
    }
    if (q->built - q->posted >= all->batch)
        queue_post(all, q);
}

/* The value stays in its slot until the request completes, since a device without inline data reads
 * it late. */
void queue_set(struct queues *all, struct queue *q, uint64_t value, uint64_t to, bool asking)
{
    uint64_t *room = &q->value[q->built % q->slots];
    const struct queue_source from = {.at = room, .key = all->pinned_key, .readable = true};

    *room = value;
    build_write(all, q, from, sizeof(*room), to, q->remote_key, asking);
}

void queue_add(struct queues *all, struct queue *q, uint64_t value, uint64_t to)
{
    struct ibv_send_wr *wr = build(all, q, IBV_WR_ATOMIC_FETCH_AND_ADD, false);

    *wr->sg_list = (struct ibv_sge){
        .addr = (uintptr_t)q->dump, .length = sizeof(*q->dump), .lkey = all->pinned_key};
    wr->wr.atomic.remote_addr = to;
    wr->wr.atomic.compare_add = value;
    wr->wr.atomic.rkey = q->remote_key;
    q->atomics = q->built;
}

void queue_ask(struct queues *all, struct queue *q)
{
    if (q->asked == q->built)
        return;
    if (q->built > q->posted) {
        ask(q, &q->wr[(q->built - 1) % q->slots]);
        return;
    }
    /* An empty write in the reserved slot. A second one is never needed before the first completes:
     * while a caller waits for it no other request is built, or the ring has room. */
    if (q->built - q->done < q->slots)
        build(all, q, IBV_WR_RDMA_WRITE, true)->num_sge = 0;
}

/* ---- posting ---- */

static void keep_failure(struct queues *all, const struct queue_failure *failure)
{
    if (!all->failure.failed)
        all->failure = *failure;
}

static void describe_request(const struct queue *q, uint64_t number, struct queue_failure *out)
{
    const struct ibv_send_wr *wr = &q->wr[number % q->slots];

    out->peer = q->peer;
    out->opcode = wr->opcode;
    out->bytes = wr->num_sge > 0 ? q->sge[number % q->slots].length : 0;
}

void queue_post(struct queues *all, struct queue *q)
{
    struct queue_failure failure = {.failed = true, .posting = true};
    struct ibv_send_wr *bad = NULL;

    if (q->built == q->posted)
        return;
    failure.error = ibv_post_send(q->qp, &q->wr[q->posted % q->slots], &bad);
    if (failure.error != 0) {
        describe_request(q, bad != NULL ? (uint64_t)(bad - q->wr) : q->posted, &failure);
        keep_failure(all, &failure);
    }
    q->posted = q->built;
    all->held--;
}

void queues_post(struct queues *all)
{
    for (uint32_t i = 0; i < all->n && all->held > 0; i++)
        queue_post(all, &all->queue[i]);
}

/* ---- completions ---- */

static void take(struct queues *all, const struct ibv_wc *wc)
{
    struct queue *q = &all->queue[wc->wr_id >> PEER_SHIFT];
    /* wr_id holds the low 32 bits of the count; the ring is far shorter than 2^32. */
    uint32_t behind = (uint32_t)q->built - (uint32_t)wc->wr_id;
    uint64_t count = q->built - behind;

    if (wc->status != IBV_WC_SUCCESS) {
        struct queue_failure failure = {
            .failed = true, .status = wc->status, .vendor = wc->vendor_err};

        describe_request(q, count - 1, &failure);
        /* Flushed requests follow the failed one, but the completion of another queue's failure may
         * arrive later. */
        if (all->failure.failed && !all->failure.posting &&
            all->failure.status == IBV_WC_WR_FLUSH_ERR && wc->status != IBV_WC_WR_FLUSH_ERR)
            all->failure.failed = false;
        keep_failure(all, &failure);
        return;
    }
    if (count > q->done)
        q->done = count;
}

enum epa_status queues_poll(struct queues *all)
{
    struct ibv_wc wc[POLLED];
    int n;

    do {
        n = ibv_poll_cq(all->cq, POLLED, wc);
        for (int i = 0; i < n; i++)
            take(all, &wc[i]);
    } while (n == POLLED);
    if (n < 0)
        keep_failure(
            all, &(struct queue_failure){.failed = true, .status = IBV_WC_FATAL_ERR, .error = n});
    if (!all->failure.failed)
        return EPA_OK;
    return !all->failure.posting && all->failure.status == IBV_WC_RETRY_EXC_ERR ? EPA_ERR_DIED
                                                                                : EPA_ERR_SYSTEM;
}

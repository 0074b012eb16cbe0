/* Creates and connects the queue pairs between all ranks. */
#include "connect.h"

#include "state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
    READS_MOST = 16,
    HOPS = 64,
    RNR_TIMER = 12, /* 0.64 ms; unused in practice, since ranks exchange no receives */
    RNR_RETRIES = 7,
};

/* ---- making ---- */

static enum epa_status check_room(const struct connect_params *p, struct epa_error *err)
{
    const struct ibv_device_attr *attr = &p->device->attr;
    uint64_t n = p->boot->world.size, completions = n * p->slots;

    if (p->slots > (uint64_t)attr->max_qp_wr)
        return epa_fail_key(err, EPA_ERR_CONFIG, "transport.depth",
                            "verbs: queues of %u requests (transport.depth, or the chunks of the "
                            "largest put) exceed the %d of %s",
                            p->slots, attr->max_qp_wr, p->device->port.device);
    if (n > (uint64_t)attr->max_qp || completions > (uint64_t)attr->max_cqe)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.depth",
                            "verbs: %u ranks need %u queue pairs and %llu completions, and %s has "
                            "%d and %d; set a smaller transport.depth",
                            p->boot->world.size, p->boot->world.size,
                            (unsigned long long)completions, p->device->port.device, attr->max_qp,
                            attr->max_cqe);
    return EPA_OK;
}

/* Creates a queue pair with the largest inline size that works. Devices reject a size above their
 * maximum instead of reducing it. */
static struct ibv_qp *create_pair(const struct connect_params *p, struct ibv_cq *cq,
                                  uint32_t *inline_bytes)
{
    struct ibv_qp_init_attr attr;
    struct ibv_qp *qp;
    uint32_t ask = p->config->inline_bytes;

    for (;;) {
        attr = (struct ibv_qp_init_attr){.send_cq = cq,
                                         .recv_cq = cq,
                                         .qp_type = IBV_QPT_RC,
                                         .cap = {.max_send_wr = p->slots,
                                                 .max_recv_wr = 1,
                                                 .max_send_sge = 1,
                                                 .max_recv_sge = 1,
                                                 .max_inline_data = ask}};
        qp = ibv_create_qp(p->device->pd, &attr);
        if (qp != NULL || ask == 0)
            break;
        ask /= 2;
    }
    if (qp != NULL)
        *inline_bytes = attr.cap.max_inline_data;
    return qp;
}

static enum epa_status init_pair(const struct connect_params *p, struct ibv_qp *qp,
                                 struct epa_error *err)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .pkey_index = (uint16_t)p->device->pkey,
                               .port_num = (uint8_t)p->device->port.number,
                               .qp_access_flags = ACCESS};
    int error = ibv_modify_qp(qp, &attr,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

    if (error == 0)
        return EPA_OK;
    return epa_fail_errno(
        err, EPA_ERR_SYSTEM, error, "verbs: a queue pair on port %u of %s (P_Key index %u): %s",
        p->device->port.number, p->device->port.device, p->device->pkey, strerror(error));
}

enum epa_status connect_create(const struct connect_params *p, struct queues *q,
                               struct epa_error *err)
{
    enum epa_status status = check_room(p, err);
    uint32_t size = p->boot->world.size;

    if (status != EPA_OK)
        return status;
    q->cq = ibv_create_cq(p->device->context, (int)(size * p->slots), NULL, NULL, 0);
    if (q->cq == NULL)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "verbs: a queue of %u completions: %s",
                              size * p->slots, strerror(errno));
    for (uint32_t r = 0; r < size && status == EPA_OK; r++) {
        struct queue *queue = &q->queue[r];

        queue->qp = create_pair(p, q->cq, &queue->inline_bytes);
        if (queue->qp == NULL)
            return epa_fail_errno(err, EPA_ERR_SYSTEM, errno,
                                  "verbs: a queue pair of %u requests for rank %u: %s (its memory "
                                  "is pinned, too: see `ulimit -l`)",
                                  p->slots, r, strerror(errno));
        status = init_pair(p, queue->qp, err);
    }
    return status;
}

void disconnect_all(struct queues *q)
{
    for (uint32_t r = 0; q->queue != NULL && r < q->n; r++) {
        if (q->queue[r].qp != NULL)
            ibv_destroy_qp(q->queue[r].qp);
        q->queue[r].qp = NULL;
    }
    if (q->cq != NULL)
        ibv_destroy_cq(q->cq);
    q->cq = NULL;
}

/* ---- connecting ---- */

static enum epa_status connect_compare(const struct card *mine, uint32_t rank,
                                       const struct card *peers, uint32_t peer,
                                       struct epa_error *err)
{
    static const char *const name[] = {"nothing", "InfiniBand", "Ethernet"};

    if (mine->link == peers->link)
        return EPA_OK;
    return epa_fail_key(err, EPA_ERR_CONFIG, "transport.device transport.port",
                        "verbs: rank %u has a port on %s and rank %u on %s; set transport.device "
                        "and transport.port so that all are on one network",
                        rank, name[mine->link % 3], peer, name[peers->link % 3]);
}

static enum ibv_mtu mtu_code(uint32_t bytes)
{
    enum ibv_mtu code = IBV_MTU_256;

    while (code < IBV_MTU_4096 && 256u << (code - IBV_MTU_256 + 1) <= bytes)
        code++;
    return code;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static struct ibv_ah_attr address_of(const struct connect_params *p, const struct card *peer)
{
    const struct device *d = p->device;
    struct ibv_ah_attr ah = {.dlid = (uint16_t)peer->lid,
                             .sl = (uint8_t)p->config->service_level,
                             .port_num = (uint8_t)d->port.number};

    if (!needs_grh(&d->port, d->gid.raw, peer->lid, peer->gid))
        return ah;
    ah.is_global = 1;
    ah.grh.hop_limit = HOPS;
    ah.grh.traffic_class = (uint8_t)p->config->traffic_class;
    ah.grh.sgid_index = (uint8_t)d->gid.index;
    memcpy(ah.grh.dgid.raw, peer->gid, GID_BYTES);
    return ah;
}

static enum epa_status refuse_pair(const struct connect_params *p, const struct card *peer,
                                   uint32_t r, const char *what, int error, struct epa_error *err)
{
    char mine[64], its[64];

    return epa_fail_key(err, EPA_ERR_SYSTEM, "transport.gid",
                        "verbs: rank %u cannot %s rank %u: %s; from %s (port %u of %s, GID %u) to "
                        "%s: is there a route, and does transport.gid suit both?",
                        p->boot->world.rank, what, r, strerror(error),
                        gid_text(p->device->gid.raw, mine, sizeof(mine)), p->device->port.number,
                        p->device->port.device, p->device->gid.index,
                        gid_text(peer->gid, its, sizeof(its)));
}

static enum epa_status join(const struct connect_params *p, struct queue *queue,
                            const struct card *mine, const struct card *peer, uint32_t mtu,
                            struct epa_error *err)
{
    uint32_t rank = p->boot->world.rank;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .path_mtu = mtu_code(mtu),
                               .dest_qp_num = peer->to[rank].number,
                               .rq_psn = peer->to[rank].first_psn,
                               .max_dest_rd_atomic = (uint8_t)mine->reads,
                               .min_rnr_timer = RNR_TIMER,
                               .ah_attr = address_of(p, peer)};
    int error = ibv_modify_qp(queue->qp, &attr,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);

    if (error != 0)
        return refuse_pair(p, peer, queue->peer, "address", error, err);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = (uint8_t)p->config->timeout,
                                .retry_cnt = (uint8_t)p->config->retries,
                                .rnr_retry = RNR_RETRIES,
                                .sq_psn = mine->to[queue->peer].first_psn,
                                .max_rd_atomic = (uint8_t)least(
                                    peer->reads, (uint32_t)p->device->attr.max_qp_init_rd_atom)};
    error = ibv_modify_qp(queue->qp, &attr,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (error != 0)
        return refuse_pair(p, peer, queue->peer, "send to", error, err);
    queue->remote = peer->base;
    queue->remote_key = peer->key;
    queue->heap = peer->heap;
    queue->heap_key = peer->heap_key;
    return EPA_OK;
}

static enum epa_status fill_card(const struct connect_params *p, const struct queues *q,
                                 struct card *out, struct epa_error *err)
{
    const struct device *d = p->device;
    uint32_t mtu = p->config->mtu != 0 ? (uint32_t)p->config->mtu : d->port.mtu;
    enum epa_status status = EPA_OK;

    *out = (struct card){.base = p->base,
                         .heap = p->heap,
                         .key = p->key,
                         .heap_key = p->heap_key,
                         .lid = d->port.lid,
                         .mtu = least(mtu, d->port.mtu),
                         .link = d->port.link,
                         .reads = least(READS_MOST, (uint32_t)d->attr.max_qp_rd_atom)};
    memcpy(out->gid, d->gid.raw, GID_BYTES);
    for (uint32_t r = 0; r < q->n && status == EPA_OK; r++) {
        out->to[r].number = q->queue[r].qp->qp_num;
        status = choose_psn(&out->to[r].first_psn, err);
    }
    return status;
}

static enum epa_status join_all(const struct connect_params *p, struct queues *q, const char *cards,
                                size_t bytes, uint32_t *mtu, struct epa_error *err)
{
    uint32_t rank = p->boot->world.rank;
    const struct card *mine = (const void *)(cards + rank * bytes);
    enum epa_status status = EPA_OK;

    *mtu = mine->mtu;
    for (uint32_t r = 0; r < q->n && status == EPA_OK; r++)
        status = connect_compare(mine, rank, (const void *)(cards + r * bytes), r, err);
    for (uint32_t r = 0; r < q->n && status == EPA_OK; r++) {
        const struct card *peer = (const void *)(cards + r * bytes);
        uint32_t common = least(mine->mtu, peer->mtu);

        *mtu = least(*mtu, common);
        status = join(p, &q->queue[r], mine, peer, common, err);
    }
    return status;
}

enum epa_status connect_all(const struct connect_params *p, struct queues *q, uint32_t *mtu,
                            struct epa_error *err)
{
    struct epa_bootstrap *boot = p->boot;
    size_t bytes = (sizeof(struct card) + q->n * sizeof(struct card_pair) + 7) & ~(size_t)7;
    struct card *mine = calloc(1, bytes);
    char *cards = calloc(q->n, bytes);
    enum epa_status status;

    if (mine == NULL || cards == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "verbs: no memory for %u ranks", q->n);
    else
        status = fill_card(p, q, mine, err);
    if (status == EPA_OK) {
        status = boot->allgather(boot, mine, bytes, cards);
        if (status == EPA_OK)
            status = join_all(p, q, cards, bytes, mtu, err);
        if (status == EPA_OK)
            status = boot->barrier(boot); /* all queue pairs are ready to receive */
        if (status != EPA_OK)
            boot->explain(boot, err);
    }
    free(mine);
    free(cards);
    return status;
}

/* Endpoints. Each rank sends the address of its worker, the address of its region and its key to
 * all others, creates an endpoint to each, and gets a pointer to each region that UCX can map. */
#include "links.h"

#include "log.h"
#include "region.h"
#include "state.h"
#include "waits.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t close_ns = 1000000000u;

/* Error handler. UCX calls it inside ucp_worker_progress(), hence under the lock. */
static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    links_lose(arg, status);
}

/* The second message of a rank: its address, then its key. */
struct papers {
    ucp_address_t *address;
    size_t address_bytes, key_bytes, heap_key_bytes;
    void *key, *heap_key;
};

static enum epa_status take_papers(struct ucx *u, struct papers *out, struct epa_error *err)
{
    ucs_status_t ucs = ucp_worker_get_address(u->worker, &out->address, &out->address_bytes);

    if (ucs == UCS_OK)
        ucs = ucp_rkey_pack(u->context, u->region.mem, &out->key, &out->key_bytes);
    if (ucs == UCS_OK && u->region.given)
        ucs = ucp_rkey_pack(u->context, u->region.heap_mem, &out->heap_key, &out->heap_key_bytes);
    if (ucs != UCS_OK)
        return epa_fail(err, EPA_ERR_SYSTEM, "ucx: the worker's address and memory's key: %s",
                        ucs_status_string(ucs));
    return EPA_OK;
}

static void drop_papers(struct ucx *u, struct papers *papers)
{
    if (papers->address != NULL)
        ucp_worker_release_address(u->worker, papers->address);
    if (papers->key != NULL)
        ucp_rkey_buffer_release(papers->key);
    if (papers->heap_key != NULL)
        ucp_rkey_buffer_release(papers->heap_key);
}

static enum epa_status create_endpoint(struct peer *peer, const char *address, bool watched,
                                       struct epa_error *err)
{
    const struct ucx *u = peer->ucx;
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)(const void *)address,
        .err_mode = watched ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE,
        .err_handler = {.cb = on_error, .arg = peer},
    };
    ucs_status_t ucs = ucp_ep_create(u->worker, &params, &peer->ep);

    if (ucs != UCS_OK)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.tls transport.devices",
                            "ucx: rank %u has no way to rank %u (tls \"%s\", devices \"%s\"; "
                            "\"\" leaves it to UCX_* and UCX): %s",
                            u->base.rank, ucx_number_of(u, peer), u->config.tls, u->config.devices,
                            ucs_status_string(ucs));
    return EPA_OK;
}

/* Closes endpoints, by force if there is a helper thread: every peer has received all messages. */
static void close_endpoints(struct ucx *u)
{
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    const ucp_request_param_t *how =
        u->watched ? &force : &(const ucp_request_param_t){.op_attr_mask = 0};
    ucs_status_ptr_t *request = calloc(u->base.size, sizeof(*request));

    for (uint32_t r = 0; r < u->base.size && request != NULL; r++) {
        if (u->peer[r].ep != NULL)
            request[r] = ucp_ep_close_nbx(u->peer[r].ep, how);
        u->peer[r].ep = NULL;
    }
    for (uint32_t r = 0; r < u->base.size && request != NULL; r++)
        (void)wait_request(u, request[r], close_ns);
    free(request);
}

/* A rank that fails leaves only after all ranks have reached this point: UCX may crash if it
 * unpacks the key of a peer that is gone. EPA_AGAIN: some rank failed, maybe this one. */
static enum epa_status agree(struct ucx *u, enum epa_status mine)
{
    enum epa_status status, *all = calloc(u->base.size, sizeof(*all));

    if (all == NULL)
        return EPA_ERR_NOMEM;
    status = u->boot->allgather(u->boot, &mine, sizeof(mine), all);
    for (uint32_t r = 0; r < u->base.size && status == EPA_OK; r++)
        status = all[r] != EPA_OK ? EPA_AGAIN : EPA_OK;
    free(all);
    return status;
}

/* Creates endpoints that report a dead peer if every rank's transports support them. All ranks need
 * the same kind of endpoint. */
static enum epa_status create_endpoints(struct ucx *u, const char *papers, size_t stride,
                                        bool watched, struct epa_error *err)
{
    enum epa_status mine = EPA_OK, status;

    log_mute(watched);
    for (uint32_t r = 0; r < u->base.size && mine == EPA_OK; r++) {
        if (r != u->base.rank)
            mine = create_endpoint(&u->peer[r], papers + r * stride, watched, watched ? NULL : err);
    }
    log_mute(false);
    status = agree(u, mine);
    if (status == EPA_OK)
        u->watched = watched;
    else
        close_endpoints(u);
    if (status != EPA_AGAIN || watched)
        return status;
    return mine != EPA_OK ? mine
                          : epa_fail(err, EPA_ERR_UNSUPPORTED,
                                     "ucx: another rank has no way to one of its peers");
}

static enum epa_status unpack_keys(struct ucx *u, const char *papers, size_t stride,
                                   const struct card *cards, struct epa_error *err)
{
    for (uint32_t r = 0; r < u->base.size; r++) {
        struct peer *peer = &u->peer[r];
        const char *key = papers + r * stride + cards[r].address_bytes;
        void *at = NULL;
        ucs_status_t ucs;

        peer->remote = cards[r].base;
        peer->remote_heap = cards[r].heap;
        if (r == u->base.rank)
            continue;
        ucs = ucp_ep_rkey_unpack(peer->ep, key, &peer->rkey);
        if (ucs == UCS_OK && u->region.given)
            ucs = ucp_ep_rkey_unpack(peer->ep, key + cards[r].key_bytes, &peer->heap_rkey);
        if (ucs != UCS_OK)
            return epa_fail(err, EPA_ERR_SYSTEM,
                            "ucx: rank %u cannot use the key to the memory of rank %u: %s",
                            u->base.rank, r, ucs_status_string(ucs));
        if (u->config.direct && !u->region.given && epa_same_node(&u->boot->world, r) &&
            ucp_rkey_ptr(peer->rkey, peer->remote, &at) == UCS_OK) {
            /* ucp_rkey_ptr() adds the peer's address to a mapping without a bounds check. */
            if (!maps_hold(at, u->region.bytes, 0, 0))
                return epa_fail_key(err, EPA_ERR_SYSTEM, "transport.direct",
                                    "ucx: rank %u sent an address of its memory that is not shared "
                                    "with rank %u; transport.direct: false avoids direct stores",
                                    r, u->base.rank);
            peer->map = at;
        }
    }
    u->peer[u->base.rank].map = u->region.base;
    return EPA_OK;
}

static enum epa_status use_keys(struct ucx *u, const char *papers, size_t stride,
                                const struct card *cards, struct epa_error *err)
{
    enum epa_status mine = unpack_keys(u, papers, stride, cards, err), status = agree(u, mine);

    if (mine != EPA_OK)
        return mine;
    return status == EPA_AGAIN ? EPA_ERR_ABORTED : status; /* the failed rank reports the reason */
}

static void read_lanes(struct peer *peer)
{
    char *text = NULL;
    size_t n;
    FILE *stream = open_memstream(&text, &n);

    if (stream != NULL) {
        ucp_ep_print_info(peer->ep, stream);
        fclose(stream);
    }
    peer->lanes = lanes_read(text != NULL ? text : "");
    if (peer->ucx->region.on_gpu) /* link_all() refuses peers without RDMA */
        peer->lanes.puts = peer->lanes.rdma;
    peer->split = peer->lanes.puts && !peer->lanes.additions;
    /* The CPU executes messages, so a heap on a GPU gets none. */
    peer->messages = !peer->lanes.puts && !peer->ucx->region.on_gpu &&
                     strncmp(peer->lanes.names, "tcp/", 4) == 0 &&
                     strchr(peer->lanes.names, ',') == NULL && region_segments_are_long();
    free(text);
}

static enum epa_status link_all(struct ucx *u, const char *papers, size_t stride,
                                const struct card *cards, struct epa_error *err)
{
    enum epa_status status = create_endpoints(u, papers, stride, true, err);

    if (status == EPA_AGAIN)
        status = create_endpoints(u, papers, stride, false, err);
    if (status == EPA_OK)
        status = use_keys(u, papers, stride, cards, err);
    if (status != EPA_OK)
        return status;
    u->all_mapped = true;
    for (uint32_t r = 0; r < u->base.size; r++) {
        if (r != u->base.rank)
            read_lanes(&u->peer[r]);
        if (r != u->base.rank && u->region.on_gpu && !u->peer[r].lanes.rdma)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "ucx: rank %u reaches rank %u by %s; GPU memory requires a single RDMA "
                            "device",
                            u->base.rank, r, u->peer[r].lanes.names);
        u->all_mapped = u->all_mapped && u->peer[r].map != NULL;
    }
    return EPA_OK;
}

/* Second round: gathers the papers of all ranks, padded to the longest. */
static enum epa_status exchange(struct ucx *u, const struct papers *mine, const struct card *cards,
                                struct epa_error *err)
{
    size_t stride = cards_stride(cards, u->base.size);
    char *own, *all;
    enum epa_status status;

    own = calloc(1, stride);
    /* UCX takes no length of a key. The room behind the last key keeps UCX inside the buffer if the
     * key is invalid. */
    all = calloc(1, u->base.size * stride + CARD_KEY_MOST);
    if (own == NULL || all == NULL) {
        status = epa_fail(err, EPA_ERR_NOMEM, "ucx: no memory for %u ranks", u->base.size);
    } else {
        memcpy(own, mine->address, mine->address_bytes);
        memcpy(own + mine->address_bytes, mine->key, mine->key_bytes);
        if (mine->heap_key != NULL)
            memcpy(own + mine->address_bytes + mine->key_bytes, mine->heap_key,
                   mine->heap_key_bytes);
        status = u->boot->allgather(u->boot, own, stride, all);
    }
    if (status == EPA_OK)
        status = link_all(u, all, stride, cards, err);
    free(own);
    free(all);
    return status;
}

enum epa_status links_init(struct ucx *u, struct epa_error *err)
{
    struct papers papers = {.address = NULL};
    struct card *cards = calloc(u->base.size, sizeof(*cards));
    enum epa_status status = take_papers(u, &papers, err);
    unsigned major, minor, release;
    const char *send, *receive;

    if (status == EPA_OK && cards == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "ucx: no memory for %u ranks", u->base.size);
    if (status == EPA_OK) {
        struct card mine = {.base = (uintptr_t)u->region.base,
                            .heap = (uintptr_t)u->region.heap,
                            .heap_bytes = u->base.heap_bytes,
                            .region_bytes = u->region.bytes,
                            .signals = u->signals,
                            .address_bytes = (uint32_t)papers.address_bytes,
                            .key_bytes = (uint32_t)papers.key_bytes,
                            .heap_key_bytes = (uint32_t)papers.heap_key_bytes};

        ucp_get_version(&major, &minor, &release);
        mine.version[0] = major;
        mine.version[1] = minor;
        region_segments(&send, &receive);
        snprintf(mine.tcp_segments, sizeof(mine.tcp_segments), "%s/%s", send != NULL ? send : "",
                 receive != NULL ? receive : "");
        status = u->boot->allgather(u->boot, &mine, sizeof(mine), cards);
    }
    if (status == EPA_OK)
        status = cards_check(cards, u->base.size, u->base.rank, err);
    if (status == EPA_OK)
        status = exchange(u, &papers, cards, err);
    if (status != EPA_OK)
        u->boot->explain(u->boot, err);
    drop_papers(u, &papers);
    free(cards);
    return status;
}

void links_finish(struct ucx *u)
{
    u->closing = true;
    if (u->peer == NULL || u->worker == NULL)
        return;
    if (!u->all_mapped && u->unflushed)
        wait_acknowledged(u, close_ns);
    close_endpoints(u);
    for (uint32_t r = 0; r < u->base.size; r++) {
        if (u->peer[r].rkey != NULL)
            ucp_rkey_destroy(u->peer[r].rkey);
        if (u->peer[r].heap_rkey != NULL)
            ucp_rkey_destroy(u->peer[r].heap_rkey);
    }
}

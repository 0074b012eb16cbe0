/* What the verbs transport says: of a failure, and of what carries its data. */
#include "verbs.h"

#include <inttypes.h>
#include <string.h>

static const char *name_of(enum ibv_wr_opcode opcode)
{
    return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? "fetch-and-add" : "RDMA write";
}

/* What to look at, by the status of a completion. */
static void advise(const struct request_words *w, char *out, size_t room)
{
    uint32_t peer = w->failure->peer;
    double wait_s = 4.096e-6 * (double)(1ull << w->timeout);

    switch (w->failure->status) {
    case IBV_WC_RETRY_EXC_ERR:
        snprintf(out, room,
                 "it was not acknowledged in %u tries at intervals of %.3g s or more: is "
                 "rank %u still running and reachable? %s here; transport.timeout and "
                 "retries set how long to try",
                 w->retries + 1, wait_s, peer, w->port);
        break;
    case IBV_WC_REM_ACCESS_ERR:
        snprintf(out, room, "rank %u has no such memory any more: it has left, or began anew",
                 peer);
        break;
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
        snprintf(out, room,
                 "the device of rank %u refuses what ours may send; `ibv_devinfo "
                 "-v` on both shows what they can",
                 peer);
        break;
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_PROT_ERR:
        snprintf(out, room,
                 "the device here refused it: %s; is there a route to rank %u for "
                 "transport.gid?",
                 w->port, peer);
        break;
    case IBV_WC_WR_FLUSH_ERR:
        snprintf(out, room, "the queue pair was shut down before it: %s", w->port);
        break;
    default:
        snprintf(out, room, "%s; see the kernel's log (dmesg) on both hosts", w->port);
        break;
    }
}

void request_in_words(const struct request_words *w, char *out, size_t room)
{
    const struct queue_failure *f = w->failure;
    char advice[320], size[48] = "";

    if (f->bytes > 0)
        snprintf(size, sizeof(size), " of %" PRIu64 " bytes", f->bytes);
    if (f->posting) {
        snprintf(out, room, "rank %u: the device took no %s%s to rank %u: %s (errno %d); %s",
                 w->rank, name_of(f->opcode), size, f->peer, strerror(f->error), f->error, w->port);
        return;
    }
    advise(w, advice, sizeof(advice));
    snprintf(out, room, "rank %u: %s%s to rank %u failed: %s (status %d, vendor 0x%x); %s", w->rank,
             name_of(f->opcode), size, f->peer, ibv_wc_status_str(f->status), (int)f->status,
             f->vendor, advice);
}

static void explain_request(struct verbs *v, const struct failure *f, struct epa_error *err)
{
    char port[160], text[480];
    const struct request_words words = {.failure = &v->queues.failure,
                                        .port = port,
                                        .rank = v->base.rank,
                                        .timeout = v->config.timeout,
                                        .retries = v->config.retries};

    device_state(&v->device, port, sizeof(port));
    request_in_words(&words, text, sizeof(text));
    (void)epa_fail(err, f->status, "verbs: %s", text);
}

void verbs_explain(struct epa_transport *t, struct epa_error *err)
{
    struct verbs *v = (struct verbs *)t;
    const struct failure *f = &v->failure;

    switch (f->at) {
    case FAILED_QUIET:
        (void)epa_fail(err, f->status,
                       "verbs: rank %u waited %.3f s for its device to be done with %" PRIu64
                       " requests to rank %u%s",
                       t->rank, (double)f->waited_ns * 1e-9, f->want, f->peer, wait_why(f));
        break;
    case FAILED_REQUEST:
        explain_request(v, f, err);
        break;
    case FAILED_SOURCE:
        (void)epa_fail(err, f->status,
                       "verbs: rank %u puts %" PRIu64 " bytes to rank %u that are not in "
                       "its heap; only that is registered with the device",
                       t->rank, f->want, f->peer);
        break;
    default:
        wait_explain("verbs", t, v->boot, f, err);
        break;
    }
}

void verbs_describe(struct epa_transport *t,
                    void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    static const char *const kind[] = {
        [GID_INFINIBAND] = "InfiniBand", [GID_ROCE_V1] = "RoCE v1", [GID_ROCE_V2] = "RoCE v2"};
    struct verbs *v = (struct verbs *)t;
    const struct port *p = &v->device.port;
    char text[128], gid[64];
    uint32_t near = 0;

    for (uint32_t r = 0; r < t->size; r++)
        near += r != t->rank && is_direct(v, r);
    snprintf(text, sizeof(text), "%s%s", p->device, v->device.software ? " (software)" : "");
    say(arg, "device", text);
    snprintf(text, sizeof(text), "%u", p->number);
    say(arg, "port", text);
    say(arg, "link", kind[v->device.gid.kind]);
    snprintf(text, sizeof(text), "%g Gbit/s", p->gbit_per_s);
    say(arg, "rate", text);
    snprintf(text, sizeof(text), "%u (%s)", v->device.gid.index,
             gid_text(v->device.gid.raw, gid, sizeof(gid)));
    say(arg, "gid", text);
    snprintf(text, sizeof(text), "%u", v->mtu);
    say(arg, "mtu", text);
    snprintf(text, sizeof(text), "%u", v->queues.queue[0].inline_bytes);
    say(arg, "inline", text);
    snprintf(text, sizeof(text), "%u of %u peers", near, t->size - 1);
    say(arg, "loads and stores", text);
}

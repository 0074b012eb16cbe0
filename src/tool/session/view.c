/* A transport that checks and counts puts and signals. */
#include "session/view.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static struct view *view_of(struct epa_transport *t)
{
    return (struct view *)t;
}

/* Several threads may call if the inner transport permits it; the first one sets the error. */
static enum epa_status report_outside_plan(struct view *v, const char *what, uint64_t first,
                                           uint64_t end, uint64_t at, uint64_t room, uint32_t peer)
{
    if (__atomic_exchange_n(&v->failed, 1, __ATOMIC_ACQ_REL) == 0)
        (void)epa_fail(&v->error, EPA_ERR_MISMATCH,
                       "%s %lld to %lld of rank %u: plan() requested %llu, numbered 0 to %lld",
                       what, (long long)(first - at), (long long)(end - at) - 1, peer,
                       (unsigned long long)room, (long long)room - 1);
    return EPA_ERR_MISMATCH;
}

static enum epa_status check_heap(struct view *v, uint64_t dst, size_t bytes, uint32_t peer)
{
    if (bytes == 0 ||
        (dst >= v->heap_at && bytes <= v->heap_bytes && dst - v->heap_at <= v->heap_bytes - bytes))
        return EPA_OK;
    return report_outside_plan(v, "a put writes bytes", dst, dst + bytes, v->heap_at, v->heap_bytes,
                               peer);
}

static enum epa_status check_signal(struct view *v, uint32_t signal, uint32_t peer)
{
    if (signal >= v->signal_at && signal - v->signal_at < v->signals)
        return EPA_OK;
    return report_outside_plan(v, "a signal is word", signal, (uint64_t)signal + 1, v->signal_at,
                               v->signals, peer);
}

/* Counts started calls only: the caller repeats the others. */
static enum epa_status count_call(struct view *v, enum epa_status status, uint64_t bytes,
                                  uint32_t peer)
{
    if (status == EPA_OK && peer != v->base.rank)
        __atomic_fetch_add(&v->bytes, bytes, __ATOMIC_RELAXED);
    return status;
}

static void note_value(struct view *v, uint64_t value)
{
    if (value > __atomic_load_n(&v->newest, __ATOMIC_RELAXED))
        __atomic_store_n(&v->newest, value, __ATOMIC_RELAXED);
}

static enum epa_status view_put(struct epa_transport *t, uint64_t dst, const void *src,
                                size_t bytes, uint32_t peer)
{
    struct view *v = view_of(t);
    enum epa_status status = check_heap(v, dst, bytes, peer);

    if (status != EPA_OK)
        return status;
    return count_call(v, v->inner->ops->put(v->inner, dst, src, bytes, peer), bytes, peer);
}

static enum epa_status view_put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                       size_t bytes, uint32_t signal, uint64_t value,
                                       enum epa_signal_op op, uint32_t peer)
{
    struct view *v = view_of(t);
    enum epa_status status = check_heap(v, dst, bytes, peer);

    if (status == EPA_OK)
        status = check_signal(v, signal, peer);
    if (status != EPA_OK)
        return status;
    note_value(v, value);
    status = v->inner->ops->put_signal(v->inner, dst, src, bytes, signal, value, op, peer);
    return count_call(v, status, bytes + sizeof(value), peer);
}

static enum epa_status view_signal(struct epa_transport *t, uint32_t signal, uint64_t value,
                                   enum epa_signal_op op, uint32_t peer)
{
    struct view *v = view_of(t);
    enum epa_status status = check_signal(v, signal, peer);

    if (status != EPA_OK)
        return status;
    note_value(v, value);
    status = v->inner->ops->signal(v->inner, signal, value, op, peer);
    return count_call(v, status, sizeof(value), peer);
}

static enum epa_status view_fence(struct epa_transport *t, uint32_t peer)
{
    return view_of(t)->inner->ops->fence(view_of(t)->inner, peer);
}

static enum epa_status view_quiet(struct epa_transport *t)
{
    return view_of(t)->inner->ops->quiet(view_of(t)->inner);
}

static uint64_t view_read(struct epa_transport *t, uint32_t signal)
{
    return view_of(t)->inner->ops->read(view_of(t)->inner, signal);
}

static enum epa_status view_wait(struct epa_transport *t, uint32_t signal, enum epa_compare compare,
                                 uint64_t value, uint64_t timeout_ns)
{
    return view_of(t)->inner->ops->wait(view_of(t)->inner, signal, compare, value, timeout_ns);
}

static enum epa_status view_progress(struct epa_transport *t)
{
    return view_of(t)->inner->ops->progress(view_of(t)->inner);
}

static enum epa_status view_barrier(struct epa_transport *t, uint64_t timeout_ns)
{
    return view_of(t)->inner->ops->barrier(view_of(t)->inner, timeout_ns);
}

static enum epa_status view_reset(struct epa_transport *t)
{
    return view_of(t)->inner->ops->reset(view_of(t)->inner);
}

static void view_explain(struct epa_transport *t, struct epa_error *err)
{
    struct view *v = view_of(t);

    if (v->error.status != EPA_OK)
        (void)epa_fail(err, v->error.status, "%s", v->error.text);
    else
        v->inner->ops->explain(v->inner, err);
}

static void view_close(struct epa_transport *t)
{
    struct view *v = view_of(t);

    v->inner->ops->close(v->inner);
    free(v->peer_heap);
    free(v);
}

static const struct epa_transport_ops ops = {
    .put = view_put,
    .put_signal = view_put_signal,
    .signal = view_signal,
    .fence = view_fence,
    .quiet = view_quiet,
    .read = view_read,
    .wait = view_wait,
    .progress = view_progress,
    .barrier = view_barrier,
    .reset = view_reset,
    .explain = view_explain,
    .close = view_close,
};

struct view *insert_view(struct rank *r, const struct epa_footprint *footprint)
{
    struct epa_transport *inner = r->ep.transport;
    struct view *v = r->view;

    if (v == NULL) {
        v = r->view = memory_alloc(1, sizeof(*v));
        v->inner = inner;
        v->peer_heap = memory_alloc(inner->size, sizeof(*v->peer_heap));
        memcpy(v->peer_heap, inner->peer_heap, inner->size * sizeof(*v->peer_heap));
        v->base = *inner;
        v->base.ops = &ops;
        v->base.peer_heap = v->peer_heap;
    }
    v->heap_at = r->heap_at;
    v->heap_bytes = footprint->heap_bytes;
    v->signal_at = r->signal_at;
    v->signals = footprint->signals;
    r->ep.transport = &v->base;
    return v;
}

void view_put_only(struct view *v)
{
    for (uint32_t r = 0; r < v->base.size; r++)
        v->peer_heap[r] = r != v->base.rank ? NULL : v->peer_heap[r];
    v->base.flags &= ~(uint32_t)EPA_TRANSPORT_LOAD_STORE;
}

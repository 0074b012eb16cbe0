/* Registrations of memory that puts read outside of the heap. See verbs.h.
 *
 * An allocation of CUDA (GPU or pinned host memory) has a unique id and is registered once. A later
 * allocation at the same address has a new id and gets its own registration. Memory that CUDA does
 * not know has no id. The caller keeps such a source only until its put completes, so its
 * registration serves a single put.
 *
 * A registration ends when no put from it is in flight and either its entry is needed (the least
 * recently used entry goes first) or other memory has taken its address. */
#include "sources.h"

#include "device.h"
#include "dmabuf.h"
#include "state.h"

#include <inttypes.h>
#include <stdlib.h>

enum epa_status sources_init(struct sources *out, const struct device *device,
                             const struct dmabuf *dmabuf, struct queues *queues,
                             struct epa_error *err)
{
    uint64_t *last = calloc((size_t)SOURCES_MOST * queues->n, sizeof(*last));

    if (last == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "verbs: no memory for registrations");
    *out = (struct sources){.device = device, .dmabuf = dmabuf, .queues = queues, .last = last};
    for (uint32_t i = 0; i < SOURCES_MOST; i++)
        out->entry[i].last = last + (size_t)i * queues->n;
    return EPA_OK;
}

static void drop(struct source *s)
{
    if (s->mr != NULL)
        ibv_dereg_mr(s->mr);
    s->mr = NULL;
}

void sources_finish(struct sources *all)
{
    for (uint32_t i = 0; i < SOURCES_MOST; i++)
        drop(&all->entry[i]);
    free(all->last);
    all->last = NULL;
}

static bool is_done(const struct sources *all, const struct source *s)
{
    for (uint32_t r = 0; r < all->queues->n; r++)
        if (!queue_is_done(&all->queues->queue[r], s->last[r]))
            return false;
    return true;
}

static bool overlap(const struct dmabuf_range *a, const struct dmabuf_range *b)
{
    return a->start < b->start + b->bytes && b->start < a->start + a->bytes;
}

/* Returns a free entry, or NULL if puts from all entries are in flight. Drops registrations that can
 * no longer be used. */
static struct source *make_room(struct sources *all, const struct dmabuf_range *range)
{
    struct source *found = NULL;

    for (uint32_t i = 0; i < SOURCES_MOST; i++) {
        struct source *s = &all->entry[i];

        if (s->mr != NULL && !is_done(all, s))
            continue;
        if (s->mr != NULL && (s->range.id == 0 || overlap(&s->range, range)))
            drop(s);
        if (found == NULL || (found->mr != NULL && (s->mr == NULL || s->used < found->used)))
            found = s;
    }
    if (found != NULL)
        drop(found);
    return found;
}

static enum epa_status add(struct sources *all, const struct dmabuf_range *range, void *at,
                           struct source **out, struct epa_error *err)
{
    struct source *s = make_room(all, range);
    enum epa_status status;

    if (s == NULL)
        return EPA_AGAIN;
    if (range->on_gpu)
        status = dmabuf_register(all->dmabuf, all->device, range, 0, &s->mr, err);
    else
        status = device_register(all->device, at, range->bytes, 0, range->bytes, &s->mr, err);
    if (status != EPA_OK)
        return status;
    s->range = *range;
    *out = s;
    return EPA_OK;
}

/* Returns the registration of the allocation, or NULL; memory without an id has none. */
static struct source *look_for(struct sources *all, const struct dmabuf_range *range)
{
    for (uint32_t i = 0; i < SOURCES_MOST && range->id != 0; i++) {
        struct source *s = &all->entry[i];

        if (s->mr != NULL && s->range.id == range->id && s->range.start == range->start &&
            s->range.bytes == range->bytes)
            return s;
    }
    return NULL;
}

enum epa_status sources_find(struct sources *all, const void *at, uint64_t bytes, uint32_t peer,
                             struct queue_source *out, struct source **entry, struct epa_error *err)
{
    struct dmabuf_range range = {.id = 0};
    uint64_t from = (uintptr_t)at;
    struct source *s = NULL;
    enum epa_status status = EPA_OK;

    if (all->dmabuf != NULL)
        dmabuf_find(all->dmabuf, at, &range);
    *entry = NULL;
    *out = (struct queue_source){.at = at, .readable = !range.on_gpu};
    if (out->readable && bytes <= all->queues->queue[peer].inline_bytes)
        return EPA_OK;
    if (range.id != 0 && (from < range.start || from - range.start > range.bytes ||
                          bytes > range.bytes - (from - range.start)))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "of the allocation that they begin in there are %" PRIu64 " bytes",
                        range.bytes);
    if (range.id == 0) {
        range.start = from;
        range.bytes = bytes;
    }
    s = look_for(all, &range);
    if (s == NULL)
        status = add(all, &range, (void *)(uintptr_t)range.start, &s, err);
    if (status != EPA_OK)
        return status;
    s->used = ++all->uses;
    out->key = s->mr->lkey;
    *entry = s;
    return EPA_OK;
}

void sources_note(struct sources *all, struct source *s, uint32_t peer)
{
    s->last[peer] = all->queues->queue[peer].built;
}

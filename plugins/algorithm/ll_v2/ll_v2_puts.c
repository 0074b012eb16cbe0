/* Dispatch on hosts, to ranks that loads and stores do not reach: messages are made in
 * `staging` and put from there, a slice of the tokens at a time, so that making them and
 * sending them overlap. In blocks those for one expert (or rank) stand side by side in
 * staging, as they will where they go, and leave together. */
#include "ll_v2_host.h"

char *ll_staging_at(const struct ll_host *h, const struct ll_set *s, uint32_t t,
                    const struct ll_slot *place)
{
    uint64_t slot = h->l.dedup || h->l.blocks ? place->output : t;

    return h->t->heap + region(h, s, h->l.staging_at, h->l.staging_bytes) +
           slot * h->l.message_bytes;
}

void ll_begin_rows(struct ll_host *h, const struct ll_set *s)
{
    uint32_t each = h->l.dedup ? 1 : h->l.local;
    const uint32_t *count =
        h->l.dedup ? rank_counts(h, s, h->world.rank) : expert_counts(h, s, h->world.rank);

    for (uint32_t i = 1; i < h->l.size; i++) {
        uint32_t peer = peer_at(h, i), rows = 0;

        if (reachable(h, peer))
            continue;
        for (uint32_t at = peer * each; at < (peer + 1) * each; at++)
            rows += count[at];
        h->left[peer] = rows;
        for (uint32_t at = peer * each; h->l.blocks && at < (peer + 1) * each; at++)
            h->block[at] = (struct ll_block){
                .row = h->l.dedup ? h->next_row[at] : h->next[at],
                .output = h->next_output[at],
                .made = h->next_output[at],
            };
    }
}

static enum epa_status put_message(struct ll_host *h, const struct ll_set *s, uint32_t row,
                                   const char *msg, uint32_t n, uint32_t peer)
{
    return ll_put(h, LL_DATA, s->epoch, arrival_offset(h, s) + row * h->l.message_bytes,
                  msg, n, peer);
}

static enum epa_status put_rows(const struct ll_task *task)
{
    struct ll_host *h = task->h;
    enum epa_status status = EPA_OK;

    for (uint32_t t = task->begin; t < task->end; t++) {
        const struct ll_slot *place = task->set->place + (size_t)t * h->l.places;

        for (uint32_t j = 0; j < h->l.places && status == EPA_OK; j++) {
            if (place[j].rank != NOWHERE && !reachable(h, place[j].rank))
                status = put_message(h, task->set, place[j].row,
                                     ll_staging_at(h, task->set, t, &place[j]), 1,
                                     place[j].rank);
        }
    }
    return status;
}

/* Moves the ends of blocks on, past the tokens that were just made. */
static void extend_blocks(const struct ll_task *task)
{
    struct ll_host *h = task->h;
    size_t end = (size_t)task->end * h->l.places;

    for (size_t i = (size_t)task->begin * h->l.places; i < end; i++) {
        const struct ll_slot *place = &task->set->place[i];

        if (place->rank != NOWHERE && !reachable(h, place->rank))
            h->block[h->l.dedup ? place->rank : (uint32_t)task->m->expert[i]].made =
                place->output + 1;
    }
}

/* Blocks, beginning with those of the next rank; the last time, whatever there is of them. */
static enum epa_status put_blocks(const struct ll_task *task)
{
    bool last = task->end == task->m->tokens;
    struct ll_host *h = task->h;
    uint32_t each = h->l.dedup ? 1 : h->l.local, n = h->l.size * each;
    enum epa_status status = EPA_OK;

    extend_blocks(task);
    for (uint32_t i = each; i < n && status == EPA_OK; i++) {
        uint32_t at = (h->world.rank * each + i) % n;
        struct ll_block *b = &h->block[at];
        const struct ll_slot from = {.output = b->output};
        uint32_t rows = b->made - b->output, peer = at / each;

        if (reachable(h, peer) || rows == 0 ||
            (!last && rows * h->l.message_bytes < LL_BLOCK_BYTES))
            continue;
        status = put_message(h, task->set, b->row, ll_staging_at(h, task->set, 0, &from),
                             rows, peer);
        b->row += rows;
        b->output += rows;
    }
    return status;
}

enum epa_status ll_put_rows(const struct ll_task *task)
{
    struct ll_host *h = task->h;
    enum epa_status status = h->l.blocks ? put_blocks(task) : put_rows(task);

    /* Peers may wait for room here while the next are made. */
    return status == EPA_OK ? h->t->ops->progress(h->t) : status;
}

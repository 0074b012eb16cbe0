/* ll_v2 on hosts: puts and signals. */
#include "ll_v2_signals.h"

/* Puts `bytes`, if any, and signals the peer after all earlier puts to it. */
static enum epa_status put_and_signal(struct ll_host *h, enum ll_signal kind, uint64_t epoch,
                                      uint64_t dst, const void *src, size_t bytes, uint32_t peer)
{
    enum epa_status status = h->a.t->ops->fence(h->a.t, peer);

    return status == EPA_OK ? algo_signal(&h->a, dst, src, bytes,
                                          (uint32_t)kind * h->l.size + h->a.world.rank, epoch, peer)
                            : status;
}

enum epa_status ll_put(struct ll_host *h, enum ll_signal kind, const struct ll_set *s, uint64_t row,
                       const void *src, uint32_t rows, uint32_t peer)
{
    uint64_t row_bytes = kind == LL_DATA ? h->l.message_bytes : h->l.sent_bytes;
    uint64_t dst =
        (kind == LL_DATA ? arrival_offset(h, s) : outputs_offset(h, s)) + row * row_bytes;
    size_t bytes = rows * row_bytes;

    h->a.last.peer = peer;
    h->left[peer] -= rows;
    if (h->left[peer] == 0) {
        h->signalled |= 1ull << peer;
        return put_and_signal(h, kind, s->s.epoch, dst, src, bytes, peer);
    }
    return algo_put(&h->a, dst, src, bytes, peer);
}

enum epa_status ll_signal(struct ll_host *h, enum ll_signal kind, uint64_t epoch, uint64_t ranks)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++) {
        uint32_t peer = algo_peer(&h->a, i);

        h->a.last.peer = peer;
        if (((ranks & ~h->signalled) >> peer & 1) != 0)
            status = put_and_signal(h, kind, epoch, 0, NULL, 0, peer);
    }
    h->signalled = 0;
    return status;
}

enum epa_status ll_wait(struct ll_host *h, enum ll_signal kind, uint64_t epoch, uint64_t ranks)
{
    static const char *const what[LL_SIGNALS] = {
        [LL_COUNT] = "counts", [LL_DATA] = "rows", [LL_OUTPUT] = "outputs"};

    return algo_wait_for_ranks(&h->a, (uint32_t)kind * h->l.size, epoch, what[kind], ranks);
}

enum epa_status ll_wait_and_leave(struct ll_host *h, enum ll_signal kind, uint64_t epoch,
                                  uint64_t ranks)
{
    enum epa_status status = ll_wait(h, kind, epoch, ranks);

    return algo_phase(&h->a, status, "quiet") ? h->a.t->ops->quiet(h->a.t) : status;
}

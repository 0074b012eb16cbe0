/* The barrier of all ranks. */
#include "barrier.h"

#include "raise.h"
#include "waits.h"

static enum epa_status wait_raised(struct ucx *u, uint64_t at, uint64_t value, uint32_t peer,
                                   uint64_t timeout_ns, struct failure failure)
{
    struct epa_wait wait = {.timeout_ns = timeout_ns};

    for (;;) {
        enum epa_status status = ucx_raise(u, at, value, EPA_SIGNAL_SET, peer);

        if (status != EPA_AGAIN) {
            (void)epa_wait_done(&u->wait, &wait);
            return status;
        }
        (void)ucx_pump(u);
        status = wait_step(u, &wait, &failure);
        if (status != EPA_OK)
            return wait_give_up(u, failure, status);
    }
}

static const uint64_t *arrivals_of(const struct ucx *u, uint32_t rank)
{
    return &((struct line *)(void *)u->region.base)[rank].word;
}

static void find_missing(struct ucx *u)
{
    for (uint32_t r = u->base.size; r-- > 0;) {
        if (__atomic_load_n(arrivals_of(u, r), __ATOMIC_RELAXED) < u->barriers)
            wait_note_missing(&u->failure, r);
    }
}

/* After quiet(), each rank signals its arrival to each other rank, so that every rank can name a
 * late one. The last signal is flushed at once, because a rank may make no call after a barrier. */
enum epa_status wait_barrier(struct epa_transport *t, uint64_t timeout_ns)
{
    struct ucx *u = ucx_of(t);
    struct failure failure = {.at = FAILED_BARRIER, .compare = EPA_GE, .want = ++u->barriers};
    uint64_t epoch = u->barriers;
    enum epa_status status = wait_flushed(u, timeout_ns);

    for (uint32_t i = 0; i < t->size && status == EPA_OK; i++) {
        failure.peer = (t->rank + i) % t->size;
        status =
            wait_raised(u, t->rank * sizeof(struct line), epoch, failure.peer, timeout_ns, failure);
    }
    for (uint32_t i = 1; i < t->size && status == EPA_OK; i++) {
        failure.peer = (t->rank + i) % t->size;
        status = wait_word(u, arrivals_of(u, failure.peer), timeout_ns, failure);
    }
    if (status == EPA_OK && !u->all_mapped)
        status = wait_flush(u, NULL, timeout_ns, failure);
    if (status != EPA_OK && u->failure.at == FAILED_BARRIER) {
        u->failure.want = epoch;
        find_missing(u);
    }
    return status;
}

/* The loop over warm-up and samples of run and bench. */
#include "session/rank_loop.h"

#include "session/alternation.h"
#include "session/rank_stages.h"
#include "session/rank_status.h"
#include "session/rank_stop.h"

double *rank_sample(const struct rank *r, uint32_t row, uint64_t i)
{
    return i < r->session->warmup
               ? NULL
               : session_times(r->session, r->comm.boot->world.rank, row) + i - r->session->warmup;
}

void rank_keep_stages(struct rank *r, uint64_t i)
{
    if (i == 0)
        r->shared->first_ns = rank_total_ns(r);
    for (uint32_t k = 0; k < r->n_stages && rank_sample(r, k, i) != NULL; k++)
        *rank_sample(r, k, i) = rank_stage_ns(r, k);
}

void rank_keep_samples(struct rank *r, uint64_t n)
{
    /* Release: pairs with the parent's read after the end of this rank or after its grace period. */
    if (rank_good(r))
        __atomic_store_n(&r->shared->samples, n, __ATOMIC_RELEASE);
}

/* Records the present facts of the device. */
static void describe_device(struct rank *r)
{
    r->shared->device.n = 0;
    if (r->comm.backend->ops->describe != NULL)
        r->comm.backend->ops->describe(r->comm.backend, session_keep_fact, &r->shared->device);
}

/* Completes the block on all ranks, lets the other side run its block, and continues with all ranks of
 * this side together. Returns false if the alternation is over. */
static bool alternate_sides(struct rank *r, uint32_t *turn)
{
    struct alternation *a = r->session->alternation;
    uint32_t side = r->session->side;

    rank_barrier(r);
    if (rank_good(r) && r->comm.boot->world.rank == 0)
        alternation_pass(a, side);
    while (rank_goes_on(r) && !alternation_wait(a, side, turn))
        ;
    rank_barrier(r);
    return !alternation_is_over(a);
}

uint64_t rank_loop(struct rank *r, uint32_t block,
                   void (*take)(struct rank *, uint64_t first, uint32_t n))
{
    const struct session *s = r->session;
    uint64_t all = (uint64_t)s->warmup + s->iterations, i = 0, next = s->warmup;
    uint32_t turn = 0;
    bool ends = false, over = s->alternation == NULL;

    while (i < all && !ends && rank_goes_on(r)) {
        uint64_t end = i < s->warmup ? s->warmup : all, samples;
        uint32_t n;

        if (s->alternation != NULL && i == next) {
            if ((over = !alternate_sides(r, &turn)))
                break;
            next += s->alternation->block;
        }
        if (s->alternation != NULL && next < end)
            end = next;
        n = end - i < block ? (uint32_t)(end - i) : block;
        rank_at(r, i, SESSION_ELSEWHERE);
        take(r, i, n);
        i += n;
        samples = i > s->warmup ? i - s->warmup : 0;
        if (samples > 0)
            rank_keep_samples(r, samples);
        ends = rank_stop_poll(r, samples);
    }
    if (!over)
        (void)alternate_sides(r, &turn);
    if (s->alternation != NULL && r->comm.boot->world.rank == 0)
        alternation_leave(s->alternation, s->side);
    if (rank_goes_on(r))
        describe_device(r);
    return i;
}

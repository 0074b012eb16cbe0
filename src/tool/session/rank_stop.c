/* Stop rules of bench between ranks. The time of a sample is the time of the slowest rank, so ranks
 * exchange their times; the elapsed time is that on the clock of rank 0. The exchange uses the bootstrap
 * between two samples, so it is not part of a sample. All ranks have the same numbers and therefore make
 * the same decision after the same sample. */
#include "session/rank_stop.h"

#include <math.h>
#include <stdlib.h>

#include <epa2a/wait.h>
#include "base/file.h"
#include "base/memory.h"
#include "session/rank_status.h"
#include "session/rows.h"
#include "session/stop.h"

enum { EXCHANGED = 128 }; /* samples of a rank in one exchange */

struct rank_stop {
    struct stop rule;
    struct session_row total;
    uint64_t start_ns; /* begin of the first sample */
    struct exchanged {
        uint64_t elapsed_ns;
        double ns[EXCHANGED];
    } mine, all[]; /* [ranks] */
};

static uint64_t least_samples(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void rank_stop_create(struct rank *r)
{
    const struct bench_options *o = &experiment_of(r)->bench;

    if (!rank_good(r) || !stop_is_on(o))
        return;
    r->stop =
        memory_alloc(1, sizeof(*r->stop) + r->comm.boot->world.size * sizeof(struct exchanged));
    r->stop->total = session_total(r->session);
    r->status = stop_init(&r->stop->rule, o, &r->err);
}

void rank_stop_destroy(struct rank *r)
{
    if (r->stop != NULL)
        stop_finish(&r->stop->rule);
    free(r->stop);
    r->stop = NULL;
}

bool rank_stop_poll(struct rank *r, uint64_t samples)
{
    struct rank_stop *stop = r->stop;
    uint32_t me = r->comm.boot->world.rank;
    bool counts = r->clock != CLOCK_END_TO_END || me == 0; /* end_to_end has times of rank 0 only */
    enum stop_reason reason;

    if (stop == NULL || !rank_good(r))
        return false;
    if (samples == 0)
        stop->start_ns = epa_now_ns();
    if (samples == 0 || samples < stop->rule.next)
        return false;
    while (stop->rule.n < samples) {
        uint64_t n = least_samples(samples - stop->rule.n, EXCHANGED);

        stop->mine.elapsed_ns = epa_now_ns() - stop->start_ns;
        for (uint64_t k = 0; k < n; k++)
            stop->mine.ns[k] =
                counts ? session_row_ns(r->session, &stop->total, me, stop->rule.n + k) : 0;
        if (!rank_boot(r, r->comm.boot->allgather(r->comm.boot, &stop->mine, sizeof(stop->mine),
                                                  stop->all)))
            return false;
        for (uint64_t k = 0; k < n; k++) {
            double slowest = 0;

            for (uint32_t rank = 0; rank < r->comm.boot->world.size; rank++)
                slowest = fmax(slowest, stop->all[rank].ns[k]);
            stop->rule.ns[stop->rule.n++] = slowest;
        }
    }
    reason = stop_poll(&stop->rule, stop->all[0].elapsed_ns);
    if (me == 0)
        r->session->notes->stop = reason;
    return reason != STOP_NOT;
}

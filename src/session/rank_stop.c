/* The stop rule between ranks. A sample's headline is the slowest rank's, so ranks tell each
 * other their times; elapsed time is rank 0's word, as no two clocks agree. All of it goes by
 * the bootstrap, after a sample and before the next: nothing of it is timed. With the same
 * numbers all ranks come to the same decision, after the same sample. */
#include "session/rank.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"

enum { TOLD = 128 }; /* samples in one exchange */

struct rank_stop {
    struct stop rule;
    uint64_t start_ns; /* of the first sample */
    struct reported {
        uint64_t elapsed_ns;
        double ns[TOLD];
    } mine, all[]; /* [ranks] */
};

enum epa_status rank_stop_create(struct rank *r, struct epa_error *err)
{
    const struct bench_options *o = &experiment_of(r)->bench;
    struct rank_stop *stop;
    enum epa_status status;

    if (!stop_is_on(o))
        return EPA_OK;
    stop = calloc(1, sizeof(*stop) + r->boot->world.size * sizeof(struct reported));
    if (stop == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the stop rule");
    status = stop_init(&stop->rule, o, err);
    if (status != EPA_OK) {
        free(stop);
        return status;
    }
    stop->start_ns = clock_ns();
    r->stop = stop;
    return EPA_OK;
}

void rank_stop_destroy(struct rank *r)
{
    if (r->stop == NULL)
        return;
    stop_finish(&r->stop->rule);
    free(r->stop);
    r->stop = NULL;
}

/* This rank's time of a sample: what the report has in its last row. */
static double own_ns(const struct rank *r, uint64_t sample)
{
    const struct session *s = r->session;
    uint32_t me = r->boot->world.rank, row = session_total_row(r->clock, last_kind(r));
    double sum = 0;

    if (r->clock == CLOCK_END_TO_END && me != 0) /* only rank 0's are looked at */
        return 0;
    if (row != UINT32_MAX)
        return session_times(s, me, row)[sample];
    for (uint32_t i = 0; i < r->n_stages; i++)
        sum += session_times(s, me, i)[sample];
    return sum;
}

/* The `n` samples that come next for the rule, from all ranks. */
static enum epa_status exchange(struct rank *r, uint64_t n)
{
    struct rank_stop *stop = r->stop;
    struct stop *rule = &stop->rule;
    enum epa_status status;

    stop->mine.elapsed_ns = clock_ns() - stop->start_ns;
    for (uint64_t k = 0; k < n; k++)
        stop->mine.ns[k] = own_ns(r, rule->n + k);
    status = r->boot->allgather(r->boot, &stop->mine, sizeof(stop->mine), stop->all);
    for (uint64_t k = 0; k < n && status == EPA_OK; k++) {
        double slowest = 0;

        for (uint32_t rank = 0; rank < r->boot->world.size; rank++)
            slowest = fmax(slowest, stop->all[rank].ns[k]);
        rule->ns[rule->n++] = slowest;
    }
    return status;
}

enum epa_status rank_stop_poll(struct rank *r, uint64_t samples, bool *ends, struct epa_error *err)
{
    struct rank_stop *stop = r->stop;
    enum epa_status status = EPA_OK;
    enum stop_reason reason;

    if (stop == NULL)
        return EPA_OK;
    if (samples == 0)
        stop->start_ns = clock_ns();
    if (samples == 0 || samples < stop->rule.next)
        return EPA_OK;
    while (stop->rule.n < samples && status == EPA_OK) {
        uint64_t left = samples - stop->rule.n;

        status = exchange(r, left < TOLD ? left : TOLD);
    }
    if (status != EPA_OK)
        return rank_explain_boot(r, status, err);
    reason = stop_poll(&stop->rule, stop->all[0].elapsed_ns);
    *ends = reason != STOP_NOT;
    if (r->boot->world.rank == 0)
        r->session->notes->stop = reason;
    return EPA_OK;
}

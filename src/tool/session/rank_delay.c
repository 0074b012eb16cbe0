/* Waits of a rank, and delayed ranks for verify. */
#include "session/rank_delay.h"

#include <time.h>

#include <epa2a/wait.h>
#include "base/random.h"

static const uint64_t slice_ns = 10000000u; /* longest sleep between two checks for a failed rank */

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

void rank_rest(const struct rank *r, uint64_t end, uint64_t spin)
{
    for (uint64_t now = epa_now_ns(); now < end && !epa_aborted(r->comm.boot); now = epa_now_ns()) {
        uint64_t left = end - now;
        struct timespec ts = timespec_of(left - spin < slice_ns ? left - spin : slice_ns);

        if (left > spin)
            nanosleep(&ts, NULL);
        else
            epa_relax();
    }
}

void rank_straggle(const struct rank *r, uint64_t iteration, uint32_t stage)
{
    const struct experiment *x = experiment_of(r);
    uint32_t me = r->comm.boot->world.rank, last = r->comm.boot->world.size - 1;
    uint64_t draw;

    if (x->verify.straggle_ns == 0)
        return;
    if ((iteration + stage) % 3 == 0) {
        if (me == last)
            rank_rest(r, epa_now_ns() + x->verify.straggle_ns, 0);
        return;
    }
    draw = random_at(random_key(x->problem.seed, RANDOM_STRAGGLE, me, iteration), stage);
    if (draw % 4 == 0)
        rank_rest(r, epa_now_ns() + (draw >> 8) % x->verify.straggle_ns, 0);
}

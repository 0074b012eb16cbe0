/* The verb run: iterations with marks around stages, of which the first and the last are checked. */
#include "session/rank_run.h"

#include "session/rank_loop.h"
#include "session/rank_stages.h"

static void run_checked(struct rank *r, uint64_t i, uint32_t n)
{
    (void)n;
    rank_inputs(r, 0, i);
    if (rank_good(r))
        rank_iteration(r, 0, true, i == 0 || i + 1 == r->session->iterations);
    rank_keep_stages(r, i);
}

void rank_run(struct rank *r)
{
    (void)rank_loop(r, 1, run_checked);
}

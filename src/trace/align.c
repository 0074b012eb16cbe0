/* Clocks of hosts against that of rank 0, over the bootstrap. Nobody leaves an allgather
 * before all have entered it. So, with d what clock r shows more than clock 0,
 *     enter(r) - leave(0) <= d <= leave(r) - enter(0),
 * whatever way the messages go. The bound below is tight when r enters last, and that above
 * when rank 0 does: the two take turns in being late. */
#include "trace/align.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"

enum { ROUNDS = 32, LATE_NS = 300000 };

/* What a rank says in a round: when it entered this, and when it left the one before. */
struct stamp {
    uint64_t enter, left;
};

bool align_is_near(const struct epa_world *w)
{
    return epa_same_node(w, 0);
}

/* Ranks agree on it without a word. */
static bool all_are_near(const struct epa_world *w)
{
    for (uint32_t r = 0; w->node != NULL && r < w->size; r++) {
        if (w->node[r] != w->node[0])
            return false;
    }
    return true;
}

/* Asleep, as the others may be here and need the core. */
static void be_late(void)
{
    const struct timespec late = {.tv_nsec = LATE_NS};

    nanosleep(&late, NULL);
}

/* Round i told when rank 0 left round i - 1. */
static void narrow(struct record_clock *out, const struct stamp *mine, uint64_t left,
                   const struct stamp *zero, uint64_t zero_left)
{
    int64_t low = (int64_t)(mine->enter - zero_left), high = (int64_t)(left - zero->enter);

    if (!out->known || low > out->low_ns)
        out->low_ns = low;
    if (!out->known || high < out->high_ns)
        out->high_ns = high;
    out->known = true;
}

static enum epa_status exchange(struct epa_bootstrap *boot, struct stamp *all,
                                struct record_clock *out)
{
    struct stamp mine = {0, 0}, zero = {0, 0}, now;
    bool first = boot->world.rank == 0;

    for (uint32_t i = 0; i <= ROUNDS; i++) {
        enum epa_status status;

        if (first == (i % 2 == 0))
            be_late();
        now = (struct stamp){clock_ns(), mine.left};
        status = boot->allgather(boot, &now, sizeof(now), all);
        if (status != EPA_OK)
            return status;
        now.left = clock_ns();
        if (i > 0)
            narrow(out, &mine, mine.left, &zero, all[0].left);
        mine = now;
        zero = all[0];
    }
    out->at_ns = mine.left;
    return EPA_OK;
}

enum epa_status align_clocks(struct epa_bootstrap *boot, struct record_clock *out)
{
    struct record_clock clock = {.known = false};
    enum epa_status status = EPA_OK;
    struct stamp *all;

    if (all_are_near(&boot->world))
        return EPA_OK;
    all = calloc(boot->world.size, sizeof(*all));
    if (all == NULL)
        return EPA_ERR_NOMEM;
    status = exchange(boot, all, &clock);
    free(all);
    if (status == EPA_OK)
        *out = clock;
    return status;
}

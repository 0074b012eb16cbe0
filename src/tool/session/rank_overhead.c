/* Overhead of the public interface: both paths run the same algorithm on the same inputs, each with a
 * heap of its own, and take turns in one run. A turn has one iteration of each path, and the paths swap
 * their order from turn to turn, so drift of the machine affects both equally. The overhead is the
 * median of the differences of turns. */
#include "session/rank_overhead.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/stats.h"
#include "session/rank_create.h"
#include "session/rank_stages.h"
#include "session/rank_status.h"

enum { PUBLIC, DIRECT, PATHS, LEAST_WARMUP = 4, MOST_TURNS = 2000 };

/* Stages and algorithm of a path. */
struct path {
    struct epa_algorithm *algorithm;
    struct epa_stage stage[SESSION_STAGES];
    uint32_t n_stages;
};

static void select_path(struct rank *r, const struct path *p)
{
    r->ep.algorithm = p->algorithm;
    memcpy(r->stage, p->stage, sizeof(r->stage));
    r->n_stages = p->n_stages;
}

static struct path present_path(const struct rank *r)
{
    struct path p = {.algorithm = r->ep.algorithm, .n_stages = r->n_stages};

    memcpy(p.stage, r->stage, sizeof(p.stage));
    return p;
}

static double time_iteration(struct rank *r, const struct path *p)
{
    select_path(r, p);
    rank_iteration(r, 0, true, false);
    return rank_total_ns(r);
}

static double median(double *ns, uint32_t n)
{
    stats_sort(ns, n);
    return stats_percentile(ns, n, 500);
}

/* Runs the turns and stores the medians. `room` has 3 * n numbers. */
static void take_turns(struct rank *r, const struct path path[PATHS], double *room, uint32_t n)
{
    struct session_overhead *out = &r->shared->overhead;
    double *ns[PATHS] = {room, room + n}, *difference = room + 2 * n;

    for (uint32_t i = 0; i < n + LEAST_WARMUP && rank_goes_on(r); i++) {
        uint32_t first = i % PATHS, at = i < LEAST_WARMUP ? 0 : i - LEAST_WARMUP;

        ns[first][at] = time_iteration(r, &path[first]);
        ns[1 - first][at] = time_iteration(r, &path[1 - first]);
        difference[at] = ns[PUBLIC][at] - ns[DIRECT][at];
    }
    if (!rank_good(r))
        return;
    out->overhead_ns = median(difference, n);
    out->public_ns = median(ns[PUBLIC], n);
    out->direct_ns = median(ns[DIRECT], n);
    out->turns = n;
}

void rank_overhead_measure(struct rank *r)
{
    uint32_t most = r->session->iterations, n = most < MOST_TURNS ? most : MOST_TURNS;
    struct path path[PATHS] = {[PUBLIC] = present_path(r)};
    double *room;

    if (!rank_good(r) || r->direct == NULL)
        return;
    r->ep.algorithm = r->direct;
    rank_list_stages(r);
    path[DIRECT] = present_path(r);
    room = memory_alloc(3 * (size_t)n, sizeof(*room));
    take_turns(r, path, room, n);
    free(room);
    select_path(r, &path[PUBLIC]);
    if (rank_good(r) && r->comm.boot->world.rank == 0)
        r->session->notes->api_calls = caller_calls(r->caller);
}

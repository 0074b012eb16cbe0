/* Overhead of the public interface: both paths run the same algorithm on the same inputs, each with a
 * heap of its own, and take turns in one run. A turn has one iteration of each path, and the paths swap
 * their order from turn to turn, so drift of the machine affects both equally. The overhead is the
 * median of the differences of turns. */
#include "session/rank_overhead.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/stats.h"
#include "session/rank_create.h"
#include "session/rank_stages.h"
#include "session/rank_status.h"

enum { LEAST_WARMUP = 4, MOST_TURNS = 2000 };

/* ---- paths ---- */

static void keep_path(const struct rank *r, struct rank_paths *out, enum rank_path path)
{
    out->of[path].algorithm = r->ep.algorithm;
    memcpy(out->of[path].stage, r->stage, sizeof(r->stage));
    out->of[path].n_stages = r->n_stages;
    out->of[path].first_stages = r->first_stages;
}

void rank_paths_select(struct rank *r, const struct rank_paths *paths, enum rank_path path)
{
    r->ep.algorithm = paths->of[path].algorithm;
    memcpy(r->stage, paths->of[path].stage, sizeof(r->stage));
    r->n_stages = paths->of[path].n_stages;
    r->first_stages = paths->of[path].first_stages;
}

void rank_paths_find(struct rank *r, struct rank_paths *out)
{
    keep_path(r, out, PATH_PUBLIC);
    r->ep.algorithm = r->direct;
    rank_list_stages(r);
    keep_path(r, out, PATH_DIRECT);
    rank_paths_select(r, out, PATH_PUBLIC);
}

/* ---- turns ---- */

static double median(double *ns, uint32_t n)
{
    stats_sort(ns, n);
    return stats_percentile(ns, n, 500);
}

void rank_overhead_take(struct rank *r, const struct rank_paths *paths,
                        double (*time)(struct rank *, enum rank_path, void *arg), void *arg,
                        struct session_overhead *out)
{
    uint32_t most = r->session->iterations, n = most < MOST_TURNS ? most : MOST_TURNS;
    double *room = memory_alloc((PATHS + 1) * (size_t)n, sizeof(*room));
    double *ns[PATHS] = {room, room + n}, *difference = room + PATHS * (size_t)n;

    for (uint32_t i = 0; i < n + LEAST_WARMUP && rank_goes_on(r); i++) {
        uint32_t at = i < LEAST_WARMUP ? 0 : i - LEAST_WARMUP;

        for (uint32_t k = 0; k < PATHS; k++) {
            enum rank_path path = (enum rank_path)((i + k) % PATHS);

            rank_paths_select(r, paths, path);
            ns[path][at] = time(r, path, arg);
        }
        difference[at] = ns[PATH_PUBLIC][at] - ns[PATH_DIRECT][at];
    }
    rank_paths_select(r, paths, PATH_PUBLIC);
    if (rank_good(r) && n > 0)
        *out = (struct session_overhead){.overhead_ns = median(difference, n),
                                         .public_ns = median(ns[PATH_PUBLIC], n),
                                         .direct_ns = median(ns[PATH_DIRECT], n),
                                         .turns = n};
    free(room);
    if (rank_good(r) && r->comm.boot->world.rank == 0)
        r->session->notes->api_calls = caller_calls(r->caller);
}

/* ---- single calls ---- */

static double time_iteration(struct rank *r, enum rank_path path, void *arg)
{
    (void)path;
    (void)arg;
    rank_iteration(r, 0, true, false);
    return rank_total_ns(r);
}

void rank_overhead_measure(struct rank *r)
{
    struct rank_paths paths;

    if (!rank_good(r) || r->direct == NULL)
        return;
    rank_paths_find(r, &paths);
    rank_overhead_take(r, &paths, time_iteration, NULL, &r->shared->overhead);
}

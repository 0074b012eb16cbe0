/* Overhead of the public interface, in bench with `api`. */
#ifndef RANK_OVERHEAD_H
#define RANK_OVERHEAD_H

#include "session/rank.h"

/* The interface, and the algorithm without it. */
enum rank_path { PATH_PUBLIC, PATH_DIRECT, PATHS };

/* Stages and algorithms of the paths. */
struct rank_paths {
    struct {
        struct epa_algorithm *algorithm;
        struct epa_stage stage[SESSION_STAGES];
        uint32_t n_stages, first_stages;
    } of[PATHS];
};

/* Finds both paths. The interface is selected before and after the call; r->direct is not NULL. */
void rank_paths_find(struct rank *, struct rank_paths *out);
void rank_paths_select(struct rank *, const struct rank_paths *, enum rank_path);

/* Takes turns: time() runs an iteration through the selected path and returns its time. Stores the
 * medians. Collective. */
void rank_overhead_take(struct rank *, const struct rank_paths *,
                        double (*time)(struct rank *, enum rank_path, void *arg), void *arg,
                        struct session_overhead *out);

/* Measures single calls. Has no effect without the interface. Collective. */
void rank_overhead_measure(struct rank *);

#endif

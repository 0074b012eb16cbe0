/* Ranks for the tests of what the nvlink transport does without a GPU. Include behind
 * cmocka.h. */
#ifndef NVLINK_RANKS_H
#define NVLINK_RANKS_H

#include <sys/mman.h>

#include "plugin/registry.h"

enum { MOST = 8 };

/* What all ranks of a test see, whatever the launcher. */
struct shared {
    enum epa_status status[MOST];
    uint64_t wrong[MOST], note[MOST];
    struct epa_error err[MOST];
};

static inline void note_wrong(struct shared *shared, uint32_t rank, bool wrong)
{
    shared->wrong[rank] += wrong ? 1 : 0;
}

/* Runs the body on each rank; the caller gives the memory back. */
static inline struct shared *run_ranks(const struct epa_launcher_plugin *launcher, uint32_t ranks,
                                       enum epa_status (*body)(struct epa_bootstrap *, void *))
{
    struct shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct epa_error err = {EPA_OK, ""};
    struct epa_launch launch = {.ranks = ranks,
                                .threads = 1,
                                .stop_fd = -1,
                                .grace_ns = 20000000000,
                                .timeout_ns = 60000000000,
                                .rank_main = body,
                                .arg = shared};

    assert_ptr_not_equal(shared, MAP_FAILED);
    (void)launcher->launch(launcher->plugin.options.defaults, &launch, &err);
    return shared;
}

static inline void give_back(struct shared *shared)
{
    munmap(shared, sizeof(*shared));
}

/* All ranks came to an end of their own, with nothing wrong. */
static inline void all_good(struct shared *shared, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        if (shared->status[r] != EPA_OK)
            fail_msg("rank %u: status %d: %s", r, shared->status[r], shared->err[r].text);
        assert_int_equal(shared->wrong[r], 0);
    }
    give_back(shared);
}

#endif

/* What tests of launchers share. Ranks of the fork launcher report through memory that is
 * mapped before they exist. Include behind cmocka.h. */
#ifndef LAUNCH_STATUS_PAGE_H
#define LAUNCH_STATUS_PAGE_H

#include <sys/mman.h>

#include "plugin/registry.h"

enum { MOST = 8 };

/* Shared by all ranks of a test, whatever the launcher. */
struct status_page {
    enum epa_status status[MOST];
    uint32_t count, release, at_exit;
};

static inline struct status_page *status_page_create(void)
{
    struct status_page *status_page =
        mmap(NULL, sizeof(*status_page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(status_page, MAP_FAILED);
    for (uint32_t r = 0; r < MOST; r++)
        status_page->status[r] = EPA_AGAIN;
    return status_page;
}

static inline void status_page_destroy(struct status_page *status_page)
{
    munmap(status_page, sizeof(*status_page));
}

static inline struct epa_launch
launch_of(uint32_t ranks, enum epa_status (*rank_main)(struct epa_bootstrap *, void *), void *arg)
{
    return (struct epa_launch){.ranks = ranks,
                               .threads = 1,
                               .stop_fd = -1,
                               .grace_ns = 20000000000,
                               .rank_main = rank_main,
                               .arg = arg};
}

static inline enum epa_status run(const struct epa_launcher_plugin *launcher,
                                  const struct epa_launch *launch, struct epa_error *err)
{
    *err = (struct epa_error){EPA_OK, ""};
    return launcher->launch(launcher->plugin.options.defaults, launch, err);
}

static inline enum epa_status wait_in_barrier(struct epa_bootstrap *boot, void *arg)
{
    struct status_page *status_page = arg;

    status_page->status[boot->world.rank] = boot->barrier(boot);
    return status_page->status[boot->world.rank];
}

#endif

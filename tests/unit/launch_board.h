/* What tests of launchers share. Ranks of the fork launcher report through memory that is
 * mapped before they exist. Include behind cmocka.h. */
#ifndef LAUNCH_BOARD_H
#define LAUNCH_BOARD_H

#include <sys/mman.h>

#include "plugin/builtin.h"

enum { MOST = 8 };

/* Shared by all ranks of a test, whatever the launcher. */
struct board {
    enum epa_status status[MOST];
    int32_t pid[MOST], core[MOST];
    uint32_t count, release, at_exit;
    int pipe_end;
};

static inline struct board *board_create(void)
{
    struct board *board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(board, MAP_FAILED);
    for (uint32_t r = 0; r < MOST; r++)
        board->status[r] = EPA_AGAIN;
    return board;
}

static inline void board_destroy(struct board *board)
{
    munmap(board, sizeof(*board));
}

static inline struct epa_launch
launch_of(uint32_t ranks, enum epa_status (*rank_main)(struct epa_bootstrap *, void *),
          void *arg)
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

static inline enum epa_status wait_in_barrier(struct epa_bootstrap *boot,
                                              struct board *board)
{
    board->status[boot->world.rank] = boot->barrier(boot);
    return board->status[boot->world.rank];
}

#endif

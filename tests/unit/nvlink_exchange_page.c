/* Pages that ranks map of each other: barriers, and who still uses what. */
#include "test.h"
#include <unistd.h>

#include "../../plugins/transport/nvlink/exchange_page.h"
#include "../../plugins/transport/nvlink/exchange.h"
#include "base/clock.h"
#include "nvlink_ranks.h"

static const uint64_t default_timeout_ns = 30000000000u, short_ns = 50000000u;

static enum epa_status open_exchange_page(struct epa_bootstrap *boot, struct shared *shared,
                                          struct exchange_page *b)
{
    uint32_t me = boot->world.rank;
    struct epa_error *err = &shared->err[me];
    enum epa_status status = exchange_page_init(b, boot, err);
    int fds[MOST];
    bool same[MOST];

    if (status == EPA_OK)
        status = exchange_fds(boot, &b->fd, 1, default_timeout_ns, fds, same, err);
    for (uint32_t r = 0; r < boot->world.size && status == EPA_OK; r++) {
        if (r == me)
            continue;
        status = exchange_page_map(b, r, fds[r], err);
        close(fds[r]);
    }
    exchange_page_close_fd(b);
    shared->status[me] = status;
    return status;
}

static enum epa_status meet_often(struct epa_bootstrap *boot, void *arg)
{
    struct shared *shared = arg;
    uint32_t me = boot->world.rank, size = boot->world.size;
    struct exchange_page b;
    enum epa_status status = open_exchange_page(boot, shared, &b);

    for (uint64_t i = 1; i <= 500 && status == EPA_OK; i++) {
        struct failure late;

        __atomic_store_n(&shared->note[me], i, __ATOMIC_RELAXED);
        status = exchange_page_barrier(&b, default_timeout_ns, &late);
        for (uint32_t r = 0; r < size && status == EPA_OK; r++) {
            uint64_t seen = __atomic_load_n(&shared->note[r], __ATOMIC_RELAXED);

            note_wrong(shared, me, seen < i || seen > i + 1);
        }
    }
    exchange_page_finish(&b);
    shared->status[me] = status;
    return status;
}

TEST(nobody_passes_before_all_have_come)
{
    for (uint32_t n = 1; n <= MOST; n += n < 3 ? 1 : 5) {
        all_good(run_ranks(&launch_fork_plugin, n, meet_often), n);
        all_good(run_ranks(&launch_thread_plugin, n, meet_often), n);
    }
}

static enum epa_status leave_two_out(struct epa_bootstrap *boot, void *arg)
{
    struct shared *shared = arg;
    uint32_t me = boot->world.rank;
    struct failure late;
    struct exchange_page b;
    enum epa_status status = open_exchange_page(boot, shared, &b);

    /* Ranks 0 and 2 see each other there, however long one of them has no core. */
    if (status == EPA_OK && me != 1 && me != 3)
        __atomic_store_n(&b.page[me]->arrived.word, 1, __ATOMIC_RELEASE);
    if (status == EPA_OK)
        status = boot->barrier(boot);
    if (status == EPA_OK && me != 1 && me != 3) {
        status = exchange_page_barrier(&b, short_ns, &late);
        note_wrong(shared, me, late.missing != 2 || late.first_missing != 1);
    }
    shared->status[me] = status;
    status = boot->barrier(boot);
    exchange_page_finish(&b);
    return status;
}

TEST(who_is_late_is_known)
{
    struct shared *shared = run_ranks(&launch_fork_plugin, 4, leave_two_out);

    for (uint32_t r = 0; r < 4; r++) {
        assert_int_equal(shared->status[r], r % 2 == 0 ? EPA_ERR_TIMEOUT : EPA_OK);
        assert_int_equal(shared->wrong[r], 0);
    }
    give_back(shared);
}

static enum epa_status abort_one(struct epa_bootstrap *boot, void *arg)
{
    struct shared *shared = arg;
    uint32_t me = boot->world.rank;
    struct failure late;
    struct exchange_page b;
    enum epa_status status = open_exchange_page(boot, shared, &b);

    if (me == 0)
        boot->abort(boot);
    else if (status == EPA_OK)
        shared->status[me] = exchange_page_barrier(&b, UINT64_MAX, &late);
    exchange_page_finish(&b);
    return shared->status[me];
}

TEST(an_abort_ends_a_barrier_without_limit)
{
    struct shared *shared = run_ranks(&launch_fork_plugin, 3, abort_one);

    assert_int_equal(shared->status[1], EPA_ERR_ABORTED);
    assert_int_equal(shared->status[2], EPA_ERR_ABORTED);
    give_back(shared);
}

static enum epa_status send_what_can_shrink(struct epa_bootstrap *boot, void *arg)
{
    struct shared *shared = arg;
    int fd = memfd_create("nvlink-test", MFD_CLOEXEC);
    struct exchange_page b;
    enum epa_status status = exchange_page_init(&b, boot, &shared->err[0]);

    if (status != EPA_OK || fd < 0 || ftruncate(fd, 4096) != 0)
        abort();
    shared->status[0] = exchange_page_map(&b, 0, fd, &shared->err[0]);
    close(fd);
    exchange_page_finish(&b);
    exchange_page_finish(&b); /* twice does no harm */
    return EPA_OK;
}

TEST(a_page_that_its_owner_can_cut_short_is_refused)
{
    struct shared *shared = run_ranks(&launch_fork_plugin, 1, send_what_can_shrink);

    assert_int_equal(shared->status[0], EPA_ERR_SYSTEM);
    assert_string_equal(shared->err[0].text,
                        "nvlink: what rank 0 sent is not a sealed page of memory");
    give_back(shared);
}

TEST(the_last_to_leave_frees_and_nobody_joins_after)
{
    struct page page;

    memset(&page, 0, sizeof(page));
    assert_false(exchange_page_share(&page)); /* its owner has not made it */
    page.users.word = 1;
    assert_true(exchange_page_share(&page));
    assert_true(exchange_page_share(&page));
    assert_false(exchange_page_leave(&page));
    assert_false(exchange_page_leave(&page));
    assert_true(exchange_page_leave(&page));
    assert_false(exchange_page_share(&page));
}

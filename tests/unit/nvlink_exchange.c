/* Descriptors passed between real ranks, processes and threads. Memfds stand in for what a
 * driver exports. */
#include <fcntl.h>
#include "test.h"
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <dirent.h>

#include "../../plugins/transport/nvlink/exchange.h"
#include "nvlink_ranks.h"

static const uint64_t default_timeout_ns = 30000000000u;
static uint64_t limit_ns; /* of those that wait in vain */

struct given {
    uint32_t rank, number;
};

static int make(uint32_t rank, uint32_t number)
{
    struct given given = {rank, number};
    int fd = memfd_create("nvlink-test", MFD_CLOEXEC);

    if (fd < 0 || pwrite(fd, &given, sizeof(given), 0) != (ssize_t)sizeof(given))
        abort();
    return fd;
}

static bool is_from(int fd, uint32_t rank, uint32_t number)
{
    struct given given = {0, 0};

    return fd >= 0 && pread(fd, &given, sizeof(given), 0) == (ssize_t)sizeof(given) &&
           given.rank == rank && given.number == number && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
}

/* Descriptors of this test's memfds and of sockets; threads of other ranks have theirs. */
static uint32_t count_open(void)
{
    DIR *fds = opendir("/proc/self/fd");
    const struct dirent *entry;
    uint32_t n = 0;

    while (fds != NULL && (entry = readdir(fds)) != NULL) {
        char target[128] = "";

        if (readlinkat(dirfd(fds), entry->d_name, target, sizeof(target) - 1) > 0 &&
            (strstr(target, "nvlink-test") != NULL || strstr(target, "socket:") != NULL))
            n++;
    }
    if (fds != NULL)
        closedir(fds);
    return n;
}

static enum epa_status exchange(struct epa_bootstrap *boot, struct shared *shared, uint32_t n,
                                uint64_t timeout_ns)
{
    uint32_t me = boot->world.rank, size = boot->world.size;
    int mine[EXCHANGE_FDS] = {-1, -1}, out[EXCHANGE_FDS * MOST];
    bool same[MOST];

    for (uint32_t i = 0; i < n; i++)
        mine[i] = make(me, i);
    shared->status[me] = exchange_fds(boot, mine, n, timeout_ns, out, same, &shared->err[me]);
    for (uint32_t i = 0; i < n; i++)
        close(mine[i]);
    for (uint32_t i = 0; i < size * n; i++) {
        bool none = i / n == me || shared->status[me] != EPA_OK;

        note_wrong(shared, me, none ? out[i] != -1 : !is_from(out[i], i / n, i % n));
        if (out[i] >= 0)
            close(out[i]);
    }
    for (uint32_t r = 0; r < size && shared->status[me] == EPA_OK; r++)
        shared->note[me] += same[r];
    return shared->status[me];
}

static enum epa_status pass_two(struct epa_bootstrap *boot, void *arg)
{
    return exchange(boot, arg, 2, default_timeout_ns);
}

static enum epa_status pass_one(struct epa_bootstrap *boot, void *arg)
{
    return exchange(boot, arg, 1, default_timeout_ns);
}

TEST(descriptors_reach_every_rank)
{
    for (uint32_t n = 1; n <= MOST; n++) {
        all_good(run_ranks(&launch_fork_plugin, n, pass_two), n);
        all_good(run_ranks(&launch_thread_plugin, n, pass_one), n);
    }
}

TEST(ranks_know_who_is_in_their_process)
{
    struct shared *forked = run_ranks(&launch_fork_plugin, 3, pass_one);
    struct shared *threads = run_ranks(&launch_thread_plugin, 3, pass_two);

    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(forked->note[r], 1);
        assert_int_equal(threads->note[r], 3);
    }
    all_good(forked, 3);
    all_good(threads, 3);
}

static enum epa_status pass_and_count(struct epa_bootstrap *boot, void *arg)
{
    struct shared *shared = arg;
    uint32_t me = boot->world.rank, before;
    enum epa_status status = boot->barrier(boot);

    before = count_open();
    if (status == EPA_OK)
        status = boot->barrier(boot); /* all have counted */
    if (status == EPA_OK)
        status = exchange(boot, shared, 2, default_timeout_ns);
    if (status == EPA_OK)
        status = boot->barrier(boot); /* all have closed */
    note_wrong(shared, me, count_open() != before);
    return status;
}

TEST(nothing_stays_open)
{
    all_good(run_ranks(&launch_fork_plugin, 4, pass_and_count), 4);
    all_good(run_ranks(&launch_thread_plugin, 4, pass_and_count), 4);
}

/* ---- who does not belong ---- */

static enum epa_status (*real_allgather)(struct epa_bootstrap *, const void *, size_t, void *);

/* As somebody who guesses names: a message of `bytes`, none for 0, with a descriptor. */
static bool intrude(const char *name, size_t bytes)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    char text[64] = "let me in";
    struct iovec part = {text, bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int passed = make(99, 0);
    bool received;

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &passed, sizeof(int));
    memcpy(at.sun_path + 1, name, 5);
    received = connect(fd, (struct sockaddr *)&at, offsetof(struct sockaddr_un, sun_path) + 6) == 0;

    if (received && bytes > 0)
        (void)!sendmsg(fd, &message, MSG_NOSIGNAL);
    close(passed);
    close(fd);
    return received;
}

/* All sockets that listen for such messages under a name of the kernel's choice:
 * "@0001f". */
static uint32_t intrude_everywhere(void)
{
    FILE *file = fopen("/proc/net/unix", "re");
    char line[256], flags[16], type[16], name[64];
    uint32_t n = 0;

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "%*s %*s %*s %15s %15s %*s %*s %63s", flags, type, name) != 3 ||
            strcmp(flags, "00010000") != 0 || strcmp(type, "0005") != 0 || name[0] != '@' ||
            strlen(name) != 6)
            continue;
        for (size_t bytes = 0; bytes <= 32; bytes += 8)
            n += intrude(name + 1, bytes) ? 1 : 0;
    }
    if (file != NULL)
        fclose(file);
    return n;
}

/* The cards are out, and nobody has connected: ranks above wait for the barrier. */
static enum epa_status gather_and_intrude(struct epa_bootstrap *boot, const void *mine,
                                          size_t bytes, void *all)
{
    enum epa_status status = real_allgather(boot, mine, bytes, all);

    /* More than there is room for in a queue: who belongs must wait until they are gone. */
    if (boot->world.rank == 0 && intrude_everywhere() < 2 * boot->world.size)
        return EPA_ERR_MISMATCH;
    return status == EPA_OK ? boot->barrier(boot) : status;
}

static enum epa_status pass_among_strangers(struct epa_bootstrap *boot, void *arg)
{
    boot->allgather = gather_and_intrude;
    return exchange(boot, arg, 2, default_timeout_ns);
}

static enum epa_status learn_allgather(struct epa_bootstrap *boot, void *arg)
{
    (void)arg;
    real_allgather = boot->allgather;
    return EPA_OK;
}

TEST(strangers_are_sent_away)
{
    all_good(run_ranks(&launch_fork_plugin, 4, pass_among_strangers), 4);
}

/* ---- who does not come ---- */

static enum epa_status die_first(struct epa_bootstrap *boot, void *arg)
{
    if (boot->world.rank == 1)
        kill(getpid(), SIGKILL);
    return exchange(boot, arg, 2, default_timeout_ns);
}

static enum epa_status gather_and_die(struct epa_bootstrap *boot, const void *mine, size_t bytes,
                                      void *all)
{
    enum epa_status status = real_allgather(boot, mine, bytes, all);

    if (boot->world.rank == 1)
        kill(getpid(), SIGKILL);
    return status;
}

static enum epa_status die_later(struct epa_bootstrap *boot, void *arg)
{
    boot->allgather = gather_and_die;
    return exchange(boot, arg, 2, default_timeout_ns);
}

TEST(a_rank_that_is_killed_frees_the_others)
{
    enum epa_status (*const ways[])(struct epa_bootstrap *, void *) = {die_first, die_later};

    for (uint32_t way = 0; way < 2; way++) {
        struct shared *shared = run_ranks(&launch_fork_plugin, 4, ways[way]);

        for (uint32_t r = 0; r < 4; r++) {
            assert_int_equal(shared->wrong[r], 0);
            if (r != 1)
                assert_int_not_equal(shared->status[r], EPA_OK);
        }
        give_back(shared);
    }
}

static enum epa_status gather_and_stay_away(struct epa_bootstrap *boot, const void *mine,
                                            size_t bytes, void *all)
{
    enum epa_status status = real_allgather(boot, mine, bytes, all);

    return boot->world.rank == 3 ? EPA_ERR_TIMEOUT : status;
}

/* Rank 3 has a card and never connects; nobody aborts before all have found out. */
static enum epa_status wait_in_vain(struct epa_bootstrap *boot, void *arg)
{
    boot->allgather = gather_and_stay_away;
    (void)exchange(boot, arg, 2, limit_ns);
    return boot->barrier(boot);
}

/* Whether all but rank 3 came within the limit; if so, that they named it. */
static bool only_rank_3_stayed_away(void)
{
    struct shared *shared = run_ranks(&launch_thread_plugin, 4, wait_in_vain);
    uint32_t named = 0;

    for (uint32_t r = 0; r < 3; r++) {
        char want[96];

        snprintf(want, sizeof(want), "nvlink: rank %u waited in vain for the descriptors of ", r);
        assert_int_equal(shared->status[r], EPA_ERR_TIMEOUT);
        assert_int_equal(strncmp(shared->err[r].text, want, strlen(want)), 0);
        assert_int_equal(shared->wrong[r], 0);
        named += strcmp(shared->err[r].text + strlen(want), "rank 3") == 0;
    }
    give_back(shared);
    return named == 3;
}

/* A machine that has no core for another for so long makes it late, too: then they are given
 * longer. */
TEST(a_rank_that_stays_away_is_named)
{
    for (limit_ns = 200000000; !only_rank_3_stayed_away(); limit_ns *= 4)
        assert_true(limit_ns < 20000000000);
}

/* In this very process, before any rank is forked. */
static int learn_first(void **state)
{
    (void)state;
    give_back(run_ranks(&launch_thread_plugin, 1, learn_allgather));
    return 0;
}

TEST_GROUP(learn_first, NULL)

/* What the nvlink transport does without a GPU: descriptors passed between real ranks, processes
 * and threads (memfds stand in for what a driver exports), and which GPUs it takes. With GPUs, or
 * what passes for them: tests/contract, tests/gpu. */
#include <fcntl.h>
#include "test.h"
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../plugins/transport/nvlink/exchange.h"
#include "plugin/registry.h"

static const uint64_t default_timeout_ns = 30000000000u;
static uint64_t limit_ns; /* of those that wait in vain */

enum { MOST = 8 };

/* What all ranks of a test see, whatever the launcher. */
struct shared {
    enum epa_status status[MOST];
    uint64_t wrong[MOST];
    struct epa_error err[MOST];
};

/* Runs the body on each rank; the caller gives the memory back. */
static struct shared *run_ranks(const struct epa_launcher_plugin *launcher, uint32_t ranks,
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

static void give_back(struct shared *shared)
{
    munmap(shared, sizeof(*shared));
}

/* All ranks came to an end of their own, with nothing wrong. */
static void all_good(struct shared *shared, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        if (shared->status[r] != EPA_OK)
            fail_msg("rank %u: status %d: %s", r, shared->status[r], shared->err[r].text);
        assert_int_equal(shared->wrong[r], 0);
    }
    give_back(shared);
}

/* ---- descriptors ---- */

static int make(uint32_t rank)
{
    int fd = memfd_create("nvlink-test", MFD_CLOEXEC);

    if (fd < 0 || pwrite(fd, &rank, sizeof(rank), 0) != (ssize_t)sizeof(rank))
        abort();
    return fd;
}

static bool is_from(int fd, uint32_t rank)
{
    uint32_t given = UINT32_MAX;

    return fd >= 0 && pread(fd, &given, sizeof(given), 0) == (ssize_t)sizeof(given) &&
           given == rank && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
}

static enum epa_status exchange(struct epa_bootstrap *boot, struct shared *shared,
                                uint64_t timeout_ns)
{
    uint32_t me = boot->world.rank;
    const bool near[MOST] = {true, true, true, true, true, true, true, true};
    int mine = make(me), out[MOST];

    shared->status[me] = exchange_fds(boot, near, mine, timeout_ns, out, &shared->err[me]);
    close(mine);
    for (uint32_t r = 0; r < boot->world.size; r++) {
        bool none = r == me || shared->status[me] != EPA_OK;

        shared->wrong[me] += none ? out[r] != -1 : !is_from(out[r], r);
        if (out[r] >= 0)
            close(out[r]);
    }
    return shared->status[me];
}

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
    int passed = make(99);
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
    return exchange(boot, arg, default_timeout_ns);
}

static enum epa_status learn_allgather(struct epa_bootstrap *boot, void *arg)
{
    real_allgather = boot->allgather;
    return EPA_OK;
}

TEST(strangers_are_sent_away)
{
    all_good(run_ranks(&launch_fork_plugin, 4, pass_among_strangers), 4);
}

/* ---- who does not come ---- */

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
    (void)exchange(boot, arg, limit_ns);
    return boot->barrier(boot);
}

/* Whether all but rank 3 came within the limit; if so, that they named it. */
static bool only_rank_3_stayed_away(void)
{
    struct shared *shared = run_ranks(&launch_thread_plugin, 4, wait_in_vain);
    uint32_t named = 0;

    for (uint32_t r = 0; r < 3; r++) {
        char want[96];

        snprintf(want, sizeof(want), "nvlink: rank %u waited in vain for the descriptor of ", r);
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
    give_back(run_ranks(&launch_thread_plugin, 1, learn_allgather));
    return 0;
}

TEST_GROUP(learn_first, NULL)

/* ---- GPUs ---- */

enum { SIZE = 4 };

/* Up to two links that are not as between GPUs that all reach each other, and what is said. */
TEST(gpus_out_of_reach_are_named)
{
    static const struct {
        uint32_t at[2];
        unsigned char reach[2];
        const char *said; /* "": they are taken */
    } c[] = {
        {{0, 0}, {REACH_SELF, REACH_SELF}, ""},
        {{1, 4}, {REACH_SELF, REACH_SELF}, ""},   /* two ranks share one */
        {{1, 0}, {REACH_UNSEEN, REACH_SELF}, ""}, /* the other rank may have asked */
        {{13, 7},
         {REACH_NONE, REACH_NONE},
         "GPU 1 (rank 1, 0000:1c:00.0) cannot access GPU 3 (rank 3, 0000:1e:00.0) directly"},
        {{1, 4}, {REACH_UNSEEN, REACH_NONE}, "GPU 0 (rank 0, 0000:1b:00.0) cannot access GPU 1"},
        {{2, 0},
         {REACH_NO_ATOMICS, REACH_SELF},
         "GPU 0 (rank 0, 0000:1b:00.0) accesses GPU 2 (rank 2, 0000:1d:00.0) without atomics"},
        {{1, 4},
         {REACH_UNSEEN, REACH_UNSEEN},
         "GPU 0 (rank 0, 0000:1b:00.0) and GPU 1 (rank 1, 0000:1c:00.0) do not see each other .. "
         "CUDA_VISIBLE_DEVICES"},
    };
    struct gpu gpu[SIZE], other;
    unsigned char reach[SIZE * SIZE];

    memset(gpu, 0, sizeof(gpu));
    for (int i = 0; i < SIZE; i++) {
        gpu[i].number = i;
        memset(gpu[i].uuid, 'a' + i, sizeof(gpu[i].uuid));
        snprintf(gpu[i].bus, sizeof(gpu[i].bus), "0000:%02x:00.0", 0x1b + i);
    }
    for (size_t i = 0; i < LENGTH(c); i++) {
        for (uint32_t k = 0; k < SIZE * SIZE; k++)
            reach[k] = k % (SIZE + 1) == 0 ? REACH_SELF : REACH_DIRECT;
        for (uint32_t k = 0; k < 2; k++)
            reach[c[i].at[k]] = c[i].reach[k];
        assert_status(pairs_check(gpu, reach, SIZE, test_error()),
                      c[i].said[0] == '\0' ? EPA_OK : EPA_ERR_UNSUPPORTED, c[i].said);
    }
    other = gpu[2]; /* found by its UUID, whatever its number */
    other.number = 0;
    assert_int_equal(pairs_find(gpu, SIZE, &other), 2);
    assert_int_equal(pairs_find(gpu, 2, &other), -1);
}

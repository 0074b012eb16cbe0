/* Tests of the nvlink transport without a GPU: descriptors passed between real ranks, as processes
 * and as threads (memfds replace the handles that a driver exports), and the accepted topologies.
 * tests/contract and tests/gpu run it with GPUs or a substitute. */
#include <fcntl.h>
#include "test.h"
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../plugins/transport/nvlink/exchange.h"
#include "launch/program_registry.h"

static const uint64_t default_timeout_ns = 30000000000u;
static uint64_t limit_ns; /* time limit of the exchange that misses a rank */

enum { MOST = 8 };

/* Memory that all ranks of a test share under any launcher. */
struct shared {
    enum epa_status status[MOST];
    uint64_t wrong[MOST];
    struct epa_error err[MOST];
};

/* Runs the body on each rank. The caller releases the result with give_back(). */
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

/* Checks that all ranks ended without an error and frees the memory. */
static void assert_all_ok(struct shared *shared, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        if (shared->status[r] != EPA_OK)
            fail_msg("rank %u: status %d: %s", r, shared->status[r], shared->err[r].text);
        assert_int_equal(shared->wrong[r], 0);
    }
    give_back(shared);
}

/* ---- descriptors ---- */

static int make_memfd(uint32_t rank)
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
    int mine = make_memfd(me), out[MOST];

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

/* Connects to a guessed name and sends a message of `bytes` bytes with a descriptor; sends nothing
 * if bytes is 0. */
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
    int passed = make_memfd(99);
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

/* Intrudes into all listening SOCK_SEQPACKET sockets whose name was chosen by the kernel, such as
 * "@0001f". Returns the number of connections. */
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

/* At this point the names are gathered and no rank has connected; ranks above wait for the
 * barrier. */
static enum epa_status gather_and_intrude(struct epa_bootstrap *boot, const void *mine,
                                          size_t bytes, void *all)
{
    enum epa_status status = real_allgather(boot, mine, bytes, all);

    /* There are more intruders than places in the queue: the ranks must wait until the intruders
     * are gone. */
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

TEST(connections_of_strangers_are_rejected)
{
    assert_all_ok(run_ranks(&launch_fork_plugin, 4, pass_among_strangers), 4);
}

/* ---- a missing rank ---- */

static enum epa_status gather_and_stay_away(struct epa_bootstrap *boot, const void *mine,
                                            size_t bytes, void *all)
{
    enum epa_status status = real_allgather(boot, mine, bytes, all);

    return boot->world.rank == 3 ? EPA_ERR_TIMEOUT : status;
}

/* Rank 3 gathers its name and never connects. The barrier keeps the run alive until all ranks have
 * timed out. */
static enum epa_status wait_in_vain(struct epa_bootstrap *boot, void *arg)
{
    boot->allgather = gather_and_stay_away;
    (void)exchange(boot, arg, limit_ns);
    return boot->barrier(boot);
}

/* Returns true if rank 3 was the only missing rank for all others, and checks that they timed
 * out. */
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

/* On a loaded machine other ranks may be late, too. The test repeats with a longer limit then. */
TEST(a_missing_rank_is_named)
{
    for (limit_ns = 200000000; !only_rank_3_stayed_away(); limit_ns *= 4)
        assert_true(limit_ns < 20000000000);
}

/* Runs in this process, before the launcher forks ranks. */
static int learn_first(void **state)
{
    give_back(run_ranks(&launch_thread_plugin, 1, learn_allgather));
    return 0;
}

TEST_GROUP(learn_first, NULL)

/* ---- GPUs ---- */

enum { SIZE = 4 };

/* Cases: up to two pairs of GPUs whose reach differs from a direct link, and the message. */
TEST(gpus_out_of_reach_are_named)
{
    static const struct {
        uint32_t at[2];
        unsigned char reach[2];
        const char *said; /* expected message; "": accepted */
    } c[] = {
        {{0, 0}, {REACH_SELF, REACH_SELF}, ""},
        {{1, 4}, {REACH_SELF, REACH_SELF}, ""}, /* two ranks share a GPU */
        /* one direction suffices: the other rank may have tested it */
        {{1, 0}, {REACH_UNSEEN, REACH_SELF}, ""},
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
    other = gpu[2]; /* identified by its UUID, not its number */
    other.number = 0;
    assert_int_equal(pairs_find(gpu, SIZE, &other), 2);
    assert_int_equal(pairs_find(gpu, 2, &other), -1);
}

/* Tests of launchers for ranks that another program starts (mpirun, torchrun). Each rank is a
 * process that calls the launcher; the tests cover allgather, blocks of rank memory, ends of ranks,
 * and rejected strangers. tests/faults/env.sh and tests/hosts start the program itself this way.
 * The MPI launcher keeps the thread of a rank between launches; here shared memory replaces MPI. */
#include <errno.h>
#include "test.h"
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "epa2a/wait.h"
#include "boot/conn.h"
#include "launch/launcher.h"
#include "boot/net.h"
#include "launch/rendezvous.h"
#include "launch/program_registry.h"

static const struct epa_launcher_plugin *const env = &launch_env_plugin;

enum {
    MOST = 6,
    BLOCK = 200000, /* bytes of a block that a rank writes; the rest of ROOM is a hole */
    ROOM = 1 << 22,
    FIRST = 1 << 16, /* where the blocks begin in their file */
    MANY = 700001
};

/* Results of a rank and its launcher, in memory mapped before the fork. */
struct started_rank {
    enum epa_status status; /* status that the launcher returned */
    char text[512];
    uint32_t failed_rank, leaked_ranks;
    int32_t pid;
    uint32_t runs, left;
    uint64_t memory; /* of the file of blocks, after the launch */
};

struct started {
    struct started_rank rank[MOST];
    char block[MOST][BLOCK]; /* blocks that the launcher of rank 0 collected */
    struct contact contact;
    uint32_t met;
};

static struct started *s; /* state of the current case */

static struct started *started_create(void)
{
    struct started *out =
        mmap(NULL, sizeof(*out), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(out, MAP_FAILED);
    return out;
}

typedef enum epa_status rank_main(struct epa_bootstrap *boot, void *arg);

static struct epa_launch launch_of(uint32_t size, rank_main *main)
{
    return (struct epa_launch){.ranks = size,
                               .threads = 1,
                               .stop_fd = -1,
                               .grace_ns = 1000000000,
                               .timeout_ns = 20000000000,
                               .rank_main = main,
                               .fingerprint = "test\n"};
}

static void set_number(const char *name, uint32_t value)
{
    char text[16];

    snprintf(text, sizeof(text), "%u", value);
    setenv(name, text, 1);
}

static void set_job(uint32_t rank, uint32_t size, uint32_t local_size, uint32_t port)
{
    clearenv();
    set_number("RANK", rank);
    set_number("WORLD_SIZE", size);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", local_size);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", port);
    setenv("EPA2A_JOB_TOKEN", "0123456789abcdef", 1);
}

/* ---- functions of ranks ---- */

/* Counts the launches that one process runs. */
static enum epa_status count_runs(struct epa_bootstrap *boot, void *arg)
{
    struct started_rank *me = &s->rank[boot->world.rank];

    me->runs += me->pid == 0 || me->pid == getpid();
    me->pid = getpid();
    return boot->barrier(boot);
}

static uint32_t word_of(uint32_t rank, size_t i)
{
    return (uint32_t)(rank * 2654435761u + i * 40503u);
}

/* Gathers small and large blocks. Each rank in turn is late by more than the time after which the
 * rendezvous names a missing rank. */
static enum epa_status gather(struct epa_bootstrap *boot, void *arg)
{
    uint32_t size = boot->world.size, *mine = malloc(MANY * sizeof(*mine));
    uint32_t *all = malloc(size * MANY * sizeof(*all));
    enum epa_status status = EPA_OK;
    uint32_t turn = 0;

    for (size_t n = 1; status == EPA_OK; n = n * 5 < MANY ? n * 5 : MANY) {
        for (size_t i = 0; i < n; i++)
            mine[i] = word_of(boot->world.rank, i + n);
        if (turn++ == boot->world.rank)
            usleep(150000);
        status = boot->allgather(boot, mine, n * sizeof(*mine), all);
        for (size_t i = 0; i < size * n && status == EPA_OK; i++)
            status = all[i] == word_of((uint32_t)(i / n), i % n + n) ? EPA_OK : EPA_ERR_MISMATCH;
        if (n == MANY)
            break;
    }
    free(mine);
    free(all);
    return status;
}

static enum epa_status leave_block_and_die(struct epa_bootstrap *boot, void *arg)
{
    char *mine = (char *)arg + boot->world.rank * ROOM;

    for (uint32_t i = 0; i < BLOCK; i++)
        mine[i] = (char)(word_of(boot->world.rank, i) >> 8);
    if (boot->barrier(boot) == EPA_OK && boot->world.rank == 1)
        raise(SIGABRT);
    return boot->barrier(boot);
}

static enum epa_status rank_1_dies_of_an_abort(struct epa_bootstrap *boot, void *arg)
{
    if (boot->world.rank == 0)
        return EPA_ERR_MISMATCH;
    while (!epa_aborted(boot))
        usleep(1000);
    if (boot->world.rank == 1)
        raise(SIGABRT);
    return EPA_ERR_ABORTED;
}

static enum epa_status rank_1_stays(struct epa_bootstrap *boot, void *arg)
{
    while (boot->world.rank == 1 && !epa_aborted(boot))
        usleep(1000);
    return EPA_OK;
}

static enum epa_status rank_1_hangs(struct epa_bootstrap *boot, void *arg)
{
    while (boot->world.rank == 1)
        pause();
    return EPA_ERR_MISMATCH;
}

/* ---- meeting of ranks: rank 0 publishes its contact ---- */

typedef enum epa_status meeting(void *arg, struct contact *contact, struct epa_error *err);

static enum epa_status meet(void *arg, struct contact *contact, struct epa_error *err)
{
    if (arg == &s->rank[0]) {
        s->contact = *contact;
        /* Release: pairs with the acquire load below; the contact is complete. */
        __atomic_store_n(&s->met, 1, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&s->met, __ATOMIC_ACQUIRE) == 0)
        usleep(1000);
    *contact = s->contact;
    return EPA_OK;
}

static enum epa_status rank_1_cannot_meet(void *arg, struct contact *contact, struct epa_error *err)
{
    if (arg == &s->rank[1])
        return epa_fail(err, EPA_ERR_SYSTEM, "no library here");
    return meet(arg, contact, err);
}

static enum epa_status rank_1_never_meets(void *arg, struct contact *contact, struct epa_error *err)
{
    while (arg == &s->rank[1])
        pause();
    return meet(arg, contact, err);
}

static void count_leave(void *arg)
{
    ((struct started_rank *)arg)->left++;
}

/* ---- cases ---- */

static const struct plan {
    const char *label;
    rank_main *main;
    meeting *meet; /* NULL: meet by the environment, as the launcher `env` does */
    uint32_t size, launches;
    uint64_t timeout_ns, start_ns;
    bool blocks, leaks;
    enum epa_status status, of_rank_1;
    const char *words, *words_of_rank_1;
} plans[] = {
    {"allgathers", gather, .size = 4},
    {"blocks of the dead", leave_block_and_die, .size = 3, .blocks = true, .status = EPA_ERR_DIED,
     .words = "rank 1 (host .. was killed by signal 6 (Aborted)"},
    /* A verdict from another rank does not override a death on this host. */
    {"dies of an abort", rank_1_dies_of_an_abort, .size = 3, .status = EPA_ERR_MISMATCH,
     .of_rank_1 = EPA_ERR_DIED, .words_of_rank_1 = "was killed by signal 6 (Aborted)"},
    {"does not return", rank_1_stays, .size = 2, .timeout_ns = 200000000, .status = EPA_ERR_TIMEOUT,
     .words = "rank 1 .. 2 s"},
    {"hangs", rank_1_hangs, .size = 2, .leaks = true, .status = EPA_ERR_MISMATCH},
    {"kept", count_runs, meet, .size = 3, .launches = 5},
    {"kept, cannot meet", count_runs, rank_1_cannot_meet, .size = 2, .start_ns = 500000000,
     .status = EPA_ERR_TIMEOUT, .words = "rank 1 of 2 did not connect within 0.5 s",
     .of_rank_1 = EPA_ERR_SYSTEM, .words_of_rank_1 = "rank 1 (host .. ): no library here"},
    {"kept, never meets", count_runs, rank_1_never_meets, .size = 2, .start_ns = 500000000,
     .status = EPA_ERR_TIMEOUT, .words_of_rank_1 = "did not reach the other ranks within 0.5 s"},
};

static enum epa_status launch_by_env(const struct plan *p, uint32_t r, uint32_t port,
                                     struct epa_error *err)
{
    struct epa_launch asked = launch_of(p->size, p->main);
    int file = memfd_create("blocks", MFD_CLOEXEC);
    char *block = MAP_FAILED;
    enum epa_status status;
    struct stat stat;

    if (file >= 0 && ftruncate(file, FIRST + MOST * ROOM) == 0)
        block = mmap(NULL, MOST * ROOM, PROT_READ | PROT_WRITE, MAP_SHARED, file, FIRST);
    if (block == MAP_FAILED)
        return EPA_ERR_SYSTEM;

    set_job(r, p->size, p->size, port);
    asked.timeout_ns = p->timeout_ns != 0 ? p->timeout_ns : asked.timeout_ns;
    asked.failed_rank = &s->rank[r].failed_rank;
    asked.leaked_ranks = &s->rank[r].leaked_ranks;
    asked.arg = block;
    asked.block = p->blocks ? block : NULL;
    asked.block_bytes = p->blocks ? ROOM : 0;
    asked.block_file = file;
    asked.block_at = p->blocks ? FIRST : 0;
    status = env->launch(env->plugin.options.defaults, &asked, err);
    for (uint32_t i = 0; i < MOST && p->blocks && r == 0; i++)
        memcpy(s->block[i], block + i * ROOM, BLOCK);
    if (fstat(file, &stat) == 0)
        s->rank[r].memory = (uint64_t)stat.st_blocks * 512;
    return status;
}

static enum epa_status launch_kept(const struct plan *p, uint32_t r, struct epa_error *err)
{
    struct epa_launch asked = launch_of(p->size, p->main);
    struct launcher_settings settings = {.pin = PIN_CORE,
                                         .start_ns = p->start_ns != 0 ? p->start_ns : 20000000000,
                                         .heartbeat_ns = 5000000000};
    struct launcher_params params = {.process_id = {.rank = r, .size = p->size},
                                     .interface = "lo",
                                     .meet = p->meet,
                                     .leave = count_leave,
                                     .arg = &s->rank[r]};
    struct launcher *launcher = NULL;
    enum epa_status status;

    asked.grace_ns = 300000000;
    status = launcher_create(&params, &launcher, err);
    for (uint32_t i = 0; i <= p->launches && launcher != NULL; i++) {
        *err = (struct epa_error){EPA_OK, ""};
        status = launcher_launch(launcher, &settings, &asked, err);
    }
    launcher_destroy(launcher);
    return status;
}

/* Runs the plan with one process per rank. */
static void run(const struct plan *p)
{
    int reserved;
    uint32_t port = test_reserve_port(&reserved);
    pid_t pid[MOST];

    for (uint32_t r = 0; r < p->size; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r] == 0) {
            struct epa_error *err = test_error();

            s->rank[r].failed_rank = UINT32_MAX;
            s->rank[r].status =
                p->meet != NULL ? launch_kept(p, r, err) : launch_by_env(p, r, port, err);
            memcpy(s->rank[r].text, err->text, sizeof(err->text));
            _exit(0);
        }
    }
    for (uint32_t r = 0; r < p->size; r++)
        assert_int_equal(waitpid(pid[r], NULL, 0), pid[r]);
}

TEST(started_ranks_report_one_common_status)
{
    for (const struct plan *p = plans; p < plans + LENGTH(plans); p++) {
        s = started_create();
        run(p);
        for (uint32_t r = 0; r < p->size; r++) {
            const struct started_rank *me = &s->rank[r];
            enum epa_status want = r == 1 && p->of_rank_1 != EPA_OK ? p->of_rank_1 : p->status;

            if (me->status != want)
                fail_msg("%s: rank %u: %d: %s", p->label, r, me->status, me->text);
            if (p->status == EPA_OK && p->meet != NULL) { /* all launches in one process */
                assert_int_equal(me->runs, p->launches + 1);
                assert_int_equal(me->left, 1);
            }
        }
        assert_words(s->rank[0].text, p->words != NULL ? p->words : "");
        assert_words(s->rank[1].text, p->words_of_rank_1 != NULL ? p->words_of_rank_1 : "");
        for (uint32_t i = 0; p->blocks && i < p->size * BLOCK;
             i++) /* includes the block of a killed rank */
            if (s->block[i / BLOCK][i % BLOCK] != (char)(word_of(i / BLOCK, i % BLOCK) >> 8))
                fail_msg("byte %u of rank %u", i % BLOCK, i / BLOCK);
        assert_true(!p->blocks || s->rank[0].failed_rank == 1);
        assert_true(!p->blocks || s->rank[2].memory < ROOM); /* it sent no hole */
        assert_int_equal(s->rank[0].leaked_ranks, 0);
        assert_int_equal(s->rank[1].leaked_ranks,
                         p->leaks || (p->meet == NULL && p->status == EPA_ERR_DIED) ||
                             p->of_rank_1 == EPA_ERR_DIED);
        munmap(s, sizeof(*s));
    }
}

/* ---- strangers ---- */

/* Joins as rank 1 of 2 with a start limit of 3 s. The refusal takes milliseconds; the limit leaves
 * room for other load. */
static void join_stranger(uint32_t port)
{
    struct epa_launch asked = launch_of(2, count_runs);
    const struct epa_options *options = &env->plugin.options;
    struct epa_error err = {EPA_OK, ""};
    const uint64_t start_ns = 3000000000;
    char config[256];

    set_job(1, 2, 2, port);
    setenv("EPA2A_JOB_TOKEN", "the secret of a job", 1);
    assert_true(options->size <= sizeof(config));
    memcpy(config, options->defaults, options->size);
    for (const struct epa_option *o = options->table; o->name != NULL; o++)
        if (strcmp(o->name, "start") == 0)
            memcpy(config + o->offset, &start_ns, sizeof(start_ns));
    s->rank[1].status = env->launch(config, &asked, &err);
    memcpy(s->rank[1].text, err.text, sizeof(err.text));
}

/* The impostor listens at the address of rank 0 and has everything but the token. */
TEST(an_impostor_of_rank_0_gets_no_token_and_no_launch)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0), code;
    uint32_t challenged = 0;
    pid_t pid;

    s = started_create();
    assert_int_equal(bind(fd, (struct sockaddr *)&at, bytes), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    pid = fork();
    if (pid == 0) {
        close(fd);
        join_stranger(ntohs(at.sin_port));
        _exit(0);
    }
    while (waitpid(pid, &code, WNOHANG) == 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        struct conn_message m;
        struct conn_greet mine;
        struct conn conn;

        if (poll(&p, 1, 10) <= 0)
            continue;
        conn_init(&conn, accept(fd, NULL, NULL), CONN_GREET_MAX);
        for (uint32_t turns = 0; turns < 100 && conn.fd >= 0; turns++) {
            (void)poll(&(struct pollfd){.fd = conn.fd, .events = POLLIN}, 1, 10);
            conn_turn(&conn, POLLIN);
            for (size_t i = conn.in_from; i + 6 <= conn.in_bytes; i++)
                assert_int_not_equal(memcmp(conn.in + i, "secret", 6), 0);
            if (!conn_take(&conn, &m))
                continue;
            assert_true(m.type == CONN_GREET ||
                        m.type == CONN_PROOF); /* no hello before the proof */
            if (m.type == CONN_PROOF)
                continue;
            conn_make_greet(&mine);
            conn_put(&conn, CONN_CHALLENGE, &mine, sizeof(mine), NULL, 0);
            challenged++;
            conn_say(&conn,
                     CONN_PROOF); /* the first proof uses another key, the second an all-zero key */
            memset(conn.key_out, 0, sizeof(conn.key_out));
            conn.sealed = true;
            conn_say(&conn, CONN_PROOF);
            conn.sealed = false;
        }
        conn_finish(&conn);
    }
    close(fd);
    assert_true(challenged > 0);
    assert_int_equal(s->rank[1].status, EPA_ERR_TIMEOUT);
    assert_words(
        s->rank[1].text,
        "rank 1 .. cannot reach rank 0 within 3 s .. the peer does not know this job's token");
    assert_int_equal(s->rank[1].runs, 0);
    munmap(s, sizeof(*s));
}

TEST(a_local_socket_rejects_other_users)
{
    struct contact contact = {.local = "epa2a.test.local", .token = "local"};
    char from[64];
    int listener, code;
    pid_t pid;

    if (geteuid() != 0) {
        print_message("only root can become another user\n");
        skip();
    }
    snprintf(contact.local, sizeof(contact.local), "epa2a.test.%d", (int)getpid());
    assert_int_equal(net_listen(&contact, NULL, &listener, NULL), EPA_OK);
    for (uint32_t other = 0; other < 2; other++) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        int fd;

        pid = fork();
        if (pid == 0) {
            struct net_dial dial;
            struct conn conn;

            if (other != 0 && setresuid(65534, 65534, 65534) != 0)
                _exit(77);
            net_dial_init(&dial, &contact, -1);
            for (uint32_t i = 0; i < 100 && dial.state < NET_GREETING; i++)
                (void)net_dial_turn(&dial, POLLOUT, epa_now_ns() + 1000000000, &conn);
            _exit(dial.state < NET_GREETING);
        }
        assert_int_equal(poll(&p, 1, 10000), 1);
        fd = net_accept(listener, from, sizeof(from));
        assert_true(other == 0 ? fd >= 0 : fd < 0);
        assert_int_equal(waitpid(pid, &code, 0), pid);
        /* The dialler trusts root, but not a listener of another user. */
        assert_int_equal(WEXITSTATUS(code), 0);
        if (fd >= 0)
            close(fd);
    }
    close(listener);
}

TEST(a_local_name_that_another_user_has_taken_is_reported_with_the_user)
{
    struct contact contact = {.token = "local", .port = 29500};
    struct epa_error err = {EPA_OK, ""};
    int ready[2], fd, code;
    char byte;
    pid_t pid;

    if (geteuid() != 0) {
        print_message("only root can become another user\n");
        skip();
    }
    snprintf(contact.local, sizeof(contact.local), "epa2a.taken.%d", (int)getpid());
    assert_int_equal(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        if (setresuid(65534, 65534, 65534) != 0 || net_listen(&contact, NULL, &fd, NULL) != EPA_OK)
            _exit(1);
        (void)!write(ready[1], "", 1);
        (void)pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(net_listen(&contact, NULL, &fd, &err), EPA_ERR_SYSTEM);
    assert_words(err.text, "epa2a.taken .. user 65534 has taken this name .. launcher.port");
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &code, 0), pid);
    close(ready[0]);
}

/* ---- launches refused at once ---- */

/* Each case sets up rank 0 of 4: two digits for the number of ranks and of ranks on this host, or
 * "none" for no variables. NAME=VALUE then sets a variable, and NAME removes one that set_job() has
 * set. */
TEST(a_missing_variable_is_reported_with_its_remedy)
{
    static const char *const cases[][2] = {
        {"none", "set all of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"},
        {"42 MASTER_ADDR", "set MASTER_ADDR or launcher.address"},
        {"42", "'127.0.0.1' is the loopback address of this host, and ranks on other hosts"},
        {"44 MASTER_PORT", "set MASTER_PORT or launcher.port"},
        {"44 MASTER_PORT=http", "MASTER_PORT='http' is not a port"},
        {"33", "4 .. 3 .. RANK=0 .. WORLD_SIZE=3"},
        {"42 MASTER_ADDR=10.0.0.1 EPA2A_JOB_TOKEN",
         "ranks that connect over a network need a secret .. export EPA2A_JOB_TOKEN=$(openssl rand "
         "-hex 16)"},
        {"44 EPA2A_JOB_TOKEN=0123456789abcde",
         "EPA2A_JOB_TOKEN has 15 characters; the minimum is 16 .. openssl rand -hex 16"},
        {"44 EPA2A_JOB_TOKEN=01234567890123456789012345678901234567890123456789012345678901234",
         "EPA2A_JOB_TOKEN has 65 characters; the maximum is 64"},
        /* first host of a Slurm step */
        {"none SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_JOB_ID=7 "
         "SLURM_STEP_NODELIST=127.0.[0-3,9].[001-4],b3",
         "'127.0.0.001' is the loopback"},
        {"none SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_JOB_ID=7 "
         "SLURM_STEP_NODELIST=127.0.0.3,b3",
         "'127.0.0.3' is the loopback"},
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct epa_launch asked = launch_of(4, count_runs);
        const char *how = cases[i][0];
        int reserved;
        uint32_t port = test_reserve_port(&reserved);

        clearenv();
        if (strncmp(how, "none", 4) != 0)
            set_job(0, (uint32_t)(how[0] - '0'), (uint32_t)(how[1] - '0'), port);
        set_variables(how + strcspn(how, " "));
        assert_status(env->launch(env->plugin.options.defaults, &asked, test_error()),
                      EPA_ERR_CONFIG, cases[i][1]);
        close(reserved);
    }
    clearenv();
}

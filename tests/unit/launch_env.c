/* Ranks that somebody else has started: who they are, what they gather, how they end. */
#include <errno.h>
#include "test.h"
#include <poll.h>
#include <signal.h>

#include "launch/conn.h"
#include "launch/rendezvous.h"
#include "plugin/registry.h"
#include "started.h"

static const struct epa_launcher_plugin *const env = &launch_env_plugin;

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
    setenv("EPA2A_JOB_TOKEN", "test", 1);
}

static enum epa_status launch(const struct epa_launch *asked, struct epa_error *err)
{
    *err = (struct epa_error){EPA_OK, ""};
    return env->launch(env->plugin.options.defaults, asked, err);
}

/* What a test's launchers do; set before they are forked. */
static struct plan {
    uint32_t port;
    enum epa_status (*rank_main)(struct epa_bootstrap *, void *);
    uint64_t timeout_ns;
    uint32_t ranks_per_node, launches;
    bool blocks, hosts;
    bool local_unknown; /* LOCAL_RANK and LOCAL_WORLD_SIZE are not set */
    bool no_token;
    const char *odd_alike; /* of rank 1 */
} plan;

static void become_host(uint32_t r)
{
    const char *name = r % 2 == 0 ? "even" : "odd";

    if (unshare(CLONE_NEWUTS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0)
        _exit(77);
    if (sethostname(name, strlen(name)) != 0)
        _exit(77);
}

static void client(struct started *s, uint32_t r)
{
    struct epa_launch asked = started_launch(s, plan.rank_main);
    enum epa_status status = EPA_OK;
    struct epa_error err;
    char *block =
        mmap(NULL, sizeof(s->block), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    set_job(r, s->size, s->size, plan.port);
    if (plan.no_token)
        unsetenv("EPA2A_JOB_TOKEN");
    if (plan.local_unknown) {
        unsetenv("LOCAL_RANK");
        unsetenv("LOCAL_WORLD_SIZE");
    }
    if (plan.hosts)
        become_host(r);
    asked.timeout_ns = plan.timeout_ns != 0 ? plan.timeout_ns : asked.timeout_ns;
    asked.ranks_per_node = plan.ranks_per_node;
    asked.failed_rank = &s->rank[r].failed_rank;
    asked.arg = plan.blocks ? (void *)block : (void *)s;
    if (plan.blocks) {
        asked.block = block;
        asked.block_bytes = STARTED_BLOCK;
    }
    if (plan.odd_alike != NULL && r == 1)
        asked.fingerprint = plan.odd_alike;
    s->rank[r].failed_rank = UINT32_MAX;
    for (uint32_t i = 0; i <= plan.launches && status == EPA_OK; i++)
        status = launch(&asked, &err);
    started_note(s, r, status, &err);
    if (plan.blocks && r == 0)
        memcpy(s->block, block, sizeof(s->block));
}

static struct started *run(uint32_t size, struct plan p)
{
    struct started *s = started_create(size);

    plan = p;
    plan.port = started_port();
    started_run(s, client);
    return s;
}

static void assert_all(const struct started *s, enum epa_status want)
{
    for (uint32_t r = 0; r < s->size; r++) {
        if (s->rank[r].status != want)
            print_message("rank %u: %s\n", r, s->rank[r].text);
        assert_int_equal(s->rank[r].status, want);
    }
}

static enum epa_status note_world(struct epa_bootstrap *boot, void *arg)
{
    struct started *s = arg;
    struct started_rank *me = &s->rank[boot->world.rank];

    me->world = boot->world;
    me->pid = getpid();
    me->runs++;
    memcpy(me->node, boot->world.node, boot->world.size * sizeof(uint32_t));
    return boot->barrier(boot);
}

#define TEST_OF_RANKS(name, begin) TEST_OF(name, struct started, s, begin, started_destroy)

TEST_OF_RANKS(ranks_of_one_host_are_on_one_node, run(4, (struct plan){.rank_main = note_world}))
{
    assert_all(s, EPA_OK);
    for (uint32_t r = 0; r < 4; r++) {
        const struct epa_world *w = &s->rank[r].world;

        assert_int_equal(w->rank, r);
        assert_int_equal(w->size, 4);
        assert_int_equal(w->local_rank, r);
        assert_int_equal(w->local_size, 4);
        assert_true(w->local_cores >= 1 && w->cores <= 1);
        assert_int_not_equal(s->rank[r].pid, s->rank[r].client_pid);
    }
}

TEST_OF_RANKS(ranks_per_node_makes_nodes,
              run(5, (struct plan){.rank_main = note_world, .ranks_per_node = 2}))
{
    assert_all(s, EPA_OK);
    for (uint32_t r = 0; r < 5; r++) {
        assert_int_equal(s->rank[r].node[r], r / 2);
        assert_int_equal(s->rank[r].world.local_rank, r % 2);
        assert_int_equal(s->rank[r].world.local_size, r < 4 ? 2 : 1);
    }
}

TEST_OF_RANKS(ranks_of_one_host_need_no_token,
              run(4, (struct plan){.rank_main = note_world, .no_token = true, .launches = 1}))
{
    assert_all(s, EPA_OK);
    for (uint32_t r = 0; r < 4; r++)
        assert_int_equal(s->rank[r].runs, 2);
}

static void check_hosts(bool local_unknown)
{
    struct started *s = run(
        5, (struct plan){.rank_main = note_world, .hosts = true, .local_unknown = local_unknown});

    if (s->rank[0].text[0] == 0 && s->rank[0].runs == 0) {
        started_destroy(s);
        print_message("this user may not make a host name of its own\n");
        skip();
    }
    assert_all(s, EPA_OK);
    for (uint32_t r = 0; r < 5; r++) {
        assert_int_equal(s->rank[3].node[r], r % 2);
        assert_int_equal(s->rank[r].world.local_rank, r / 2);
        assert_int_equal(s->rank[r].world.local_size, r % 2 == 0 ? 3 : 2);
    }
    started_destroy(s);
}

TEST(hosts_are_nodes_however_ranks_are_dealt)
{
    check_hosts(false);
}

TEST(hosts_are_found_without_local_variables)
{
    check_hosts(true);
}

TEST_OF_RANKS(one_rank_needs_no_address, started_create(1))
{
    struct epa_launch asked = started_launch(s, note_world);
    struct epa_error err;

    set_job(0, 1, 1, 1);
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    assert_int_equal(launch(&asked, &err), EPA_OK);
    assert_int_equal(s->rank[0].world.size, 1);
}

TEST_OF_RANKS(launches_follow_each_other_at_one_port,
              run(3, (struct plan){.rank_main = note_world, .launches = 9}))
{
    assert_all(s, EPA_OK);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(s->rank[r].runs, 10);
}

/* ---- what goes between them ---- */

enum { MANY = 700001, ROUNDS = 40 };

static uint32_t word_of(uint32_t rank, size_t i)
{
    return (uint32_t)(rank * 2654435761u + i * 40503u);
}

static enum epa_status gather_much(struct epa_bootstrap *boot, void *arg)
{
    uint32_t size = boot->world.size, *mine = malloc(MANY * sizeof(*mine));
    uint32_t *all = malloc(size * MANY * sizeof(*all));
    enum epa_status status = mine != NULL && all != NULL ? EPA_OK : EPA_ERR_NOMEM;

    (void)arg;
    for (size_t n = 1; status == EPA_OK; n = n * 5 < MANY ? n * 5 : MANY) {
        for (size_t i = 0; i < n; i++)
            mine[i] = word_of(boot->world.rank, i + n);
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

TEST_OF_RANKS(every_rank_gathers_what_all_have, run(4, (struct plan){.rank_main = gather_much}))
{
    assert_all(s, EPA_OK);
}

/* Longer than the rendezvous waits until it says who is missing. */
static enum epa_status gather_late(struct epa_bootstrap *boot, void *arg)
{
    uint32_t all[STARTED_MOST], late = *(const uint32_t *)arg % boot->world.size;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < 3 && status == EPA_OK; i++) {
        uint32_t mine = word_of(boot->world.rank, i);

        if (boot->world.rank == late)
            usleep(150000);
        status = boot->allgather(boot, &mine, sizeof(mine), all);
        for (uint32_t r = 0; r < boot->world.size && status == EPA_OK; r++)
            status = all[r] == word_of(r, i) ? EPA_OK : EPA_ERR_MISMATCH;
    }
    return status;
}

static enum epa_status gather_late_of_each(struct epa_bootstrap *boot, void *arg)
{
    enum epa_status status = EPA_OK;

    (void)arg;
    for (uint32_t late = 0; late < boot->world.size && status == EPA_OK; late++)
        status = gather_late(boot, &late);
    return status;
}

TEST_OF_RANKS(whoever_is_late_all_gather_the_same,
              run(3, (struct plan){.rank_main = gather_late_of_each}))
{
    assert_all(s, EPA_OK);
}

static enum epa_status meet_often(struct epa_bootstrap *boot, void *arg)
{
    struct started *s = arg;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i <= ROUNDS && status == EPA_OK; i++) {
        __atomic_add_fetch(&s->count, 1, __ATOMIC_RELAXED);
        status = boot->barrier(boot);
        if (__atomic_load_n(&s->count, __ATOMIC_RELAXED) < i * boot->world.size)
            return EPA_ERR_MISMATCH;
    }
    return status;
}

TEST_OF_RANKS(nobody_passes_a_barrier_early, run(5, (struct plan){.rank_main = meet_often}))
{
    assert_all(s, EPA_OK);
    assert_int_equal(s->count, 5 * ROUNDS);
}

static enum epa_status leave_block(struct epa_bootstrap *boot, void *arg)
{
    char *mine = (char *)arg + (size_t)boot->world.rank * STARTED_BLOCK;

    for (uint32_t i = 0; i < STARTED_BLOCK; i++)
        mine[i] = (char)(word_of(boot->world.rank, i) >> 8);
    if (boot->barrier(boot) == EPA_OK && boot->world.rank == 2)
        raise(SIGKILL);
    return boot->barrier(boot);
}

TEST_OF_RANKS(what_ranks_leave_comes_to_rank_0_even_of_a_killed_one,
              run(3, (struct plan){.rank_main = leave_block, .blocks = true}))
{
    assert_all(s, EPA_ERR_DIED);
    if (s->rank[0].failed_rank != 2)
        fail_msg("failed rank %u: %s", s->rank[0].failed_rank, s->rank[0].text);
    for (uint32_t r = 0; r < 3; r++)
        for (uint32_t i = 0; i < STARTED_BLOCK; i++)
            if (s->block[r][i] != (char)(word_of(r, i) >> 8))
                fail_msg("byte %u of rank %u", i, r);
}

/* ---- how it ends ---- */

static enum epa_status rank_1_is_killed(struct epa_bootstrap *boot, void *arg)
{
    struct started *s = arg;
    struct started_rank *me = &s->rank[boot->world.rank];

    me->pid = getpid();
    if (boot->barrier(boot) != EPA_OK)
        return EPA_ERR_SYSTEM;
    __atomic_add_fetch(&s->count, 1, __ATOMIC_RELAXED);
    if (boot->world.rank == 1) {
        /* Until all have left that barrier: it is the next that they are to be freed from. */
        while (__atomic_load_n(&s->count, __ATOMIC_RELAXED) < boot->world.size)
            usleep(1000);
        me->at_ns = clock_ns();
        raise(SIGKILL);
    }
    me->barrier = boot->barrier(boot);
    me->at_ns = clock_ns();
    return me->barrier;
}

TEST_OF_RANKS(a_killed_rank_is_named_and_frees_the_others,
              run(4, (struct plan){.rank_main = rank_1_is_killed}))
{
    char host[65] = "", want[200];

    assert_all(s, EPA_ERR_DIED);
    gethostname(host, sizeof(host) - 1);
    snprintf(want, sizeof(want), "rank 1 (host %s, pid %d) was killed by signal 9 (Killed)", host,
             s->rank[1].pid);
    assert_string_equal(s->rank[0].text, want);
    assert_int_equal(s->rank[0].failed_rank, 1);
    for (uint32_t r = 0; r < 4; r++) {
        if (r == 1)
            continue;
        assert_int_equal(s->rank[r].barrier, EPA_ERR_ABORTED);
        print_message("rank %u knew after %.1f ms\n", r,
                      (double)(s->rank[r].at_ns - s->rank[1].at_ns) / 1e6);
    }
    assert_string_equal(s->rank[3].text, ""); /* rank 0 says it for all */
}

static enum epa_status rank_2_is_wrong(struct epa_bootstrap *boot, void *arg)
{
    struct started *s = arg;

    if (boot->world.rank == 2)
        return EPA_ERR_MISMATCH;
    s->rank[boot->world.rank].barrier = boot->barrier(boot);
    return s->rank[boot->world.rank].barrier;
}

TEST_OF_RANKS(the_status_of_one_is_the_status_of_all,
              run(4, (struct plan){.rank_main = rank_2_is_wrong}))
{
    assert_all(s, EPA_ERR_MISMATCH);
    assert_int_equal(s->rank[0].barrier, EPA_ERR_ABORTED);
    assert_string_equal(s->rank[0].text, ""); /* the rank has said why */
}

static enum epa_status rank_1_dies_of_an_abort(struct epa_bootstrap *boot, void *arg)
{
    (void)arg;
    if (boot->world.rank == 0)
        return EPA_ERR_MISMATCH;
    while (!epa_aborted(boot))
        usleep(1000);
    if (boot->world.rank == 1)
        raise(SIGKILL);
    return EPA_ERR_ABORTED;
}

TEST_OF_RANKS(no_verdict_overrides_a_death_at_home,
              run(3, (struct plan){.rank_main = rank_1_dies_of_an_abort}))
{
    assert_int_equal(s->rank[0].status, EPA_ERR_MISMATCH);
    assert_int_equal(s->rank[2].status, EPA_ERR_MISMATCH);
    assert_int_equal(s->rank[1].status, EPA_ERR_DIED);
    assert_int_equal(s->rank[1].failed_rank, 1);
    assert_words(s->rank[1].text, "was killed by signal 9 (Killed)");
}

static enum epa_status rank_2_is_late(struct epa_bootstrap *boot, void *arg)
{
    struct started *s = arg;
    struct started_rank *me = &s->rank[boot->world.rank];
    struct epa_error err = {EPA_OK, ""};

    while (boot->world.rank == 2 && !epa_aborted(boot))
        usleep(1000);
    me->barrier = boot->barrier(boot);
    boot->explain(boot, &err);
    memcpy(me->said, err.text, sizeof(me->said));
    return me->barrier;
}

/* Whether ranks 0 and 1 came within the limit; if so, who waited in vain named rank 2. */
static bool only_rank_2_was_late(uint64_t limit_ns)
{
    struct started *s = run(3, (struct plan){.rank_main = rank_2_is_late, .timeout_ns = limit_ns});
    uint32_t reported = 0;
    bool other = false;

    assert_all(s, EPA_ERR_TIMEOUT);
    for (uint32_t r = 0; r < 2; r++) {
        char want[2][100];

        if (s->rank[r].barrier != EPA_ERR_TIMEOUT)
            continue; /* the other was first */
        for (uint32_t late = 1; late <= 2; late++)
            snprintf(want[late - 1], sizeof(want[0]),
                     "rank %u waited %.3g s for rank %u to reach barrier 1 of the set-up", r,
                     (double)limit_ns / 1e9, late == 2 ? 2 : 1 - r);
        other = other || strcmp(s->rank[r].said, want[0]) == 0;
        assert_true(other || strcmp(s->rank[r].said, want[1]) == 0);
        reported++;
    }
    assert_true(reported > 0);
    started_destroy(s);
    return !other;
}

/* A machine that has no core for rank 0 or 1 for so long makes them late, too: then they are given
 * longer. */
TEST(who_comes_late_is_named)
{
    uint64_t limit_ns = 200000000;

    while (!only_rank_2_was_late(limit_ns)) {
        limit_ns *= 4;
        assert_true(limit_ns < 20000000000);
    }
}

static enum epa_status rank_0_returns(struct epa_bootstrap *boot, void *arg)
{
    (void)arg;
    while (boot->world.rank == 1 && !epa_aborted(boot))
        usleep(1000);
    return EPA_OK;
}

TEST(the_last_must_return_within_the_limit)
{
    struct started *s = run(2, (struct plan){.rank_main = rank_0_returns, .timeout_ns = 200000000});

    assert_all(s, EPA_ERR_TIMEOUT);
    assert_words(s->rank[0].text, "rank 1 .. 2 s");
    started_destroy(s);
}

TEST_OF_RANKS(another_experiment_is_refused_with_the_difference,
              run(3, (struct plan){.rank_main = note_world, .odd_alike = "toast\n"}))
{
    assert_all(s, EPA_ERR_CONFIG);
    assert_non_null(strstr(s->rank[0].text, "was started with another experiment: toast "
                                            "there, test here"));
    assert_non_null(strstr(s->rank[1].text, "toast there, test here"));
    assert_int_equal(s->rank[0].runs + s->rank[1].runs + s->rank[2].runs, 0);
}

/* ---- strangers ---- */

/* As rank 1 of 2, by the options of the launcher. It is refused in milliseconds; a machine with
 * other work is given seconds for that. */
static void join_stranger(struct started *s, uint32_t port)
{
    struct epa_launch asked = started_launch(s, note_world);
    const struct epa_options *options = &env->plugin.options;
    struct epa_error err = {EPA_OK, ""};
    const uint64_t start_ns = 3000000000;
    char config[256];

    set_job(1, 2, 2, port);
    setenv("EPA2A_JOB_TOKEN", "the secret", 1);
    assert_true(options->size <= sizeof(config));
    memcpy(config, options->defaults, options->size);
    for (const struct epa_option *o = options->table; o->name != NULL; o++)
        if (strcmp(o->name, "start") == 0)
            memcpy(config + o->offset, &start_ns, sizeof(start_ns));
    started_note(s, 1, env->launch(config, &asked, &err), &err);
}

/* Who listens at rank 0's address and knows all but the token. */
TEST_OF_RANKS(a_false_rendezvous_hears_no_token_and_is_not_obeyed, started_create(2))
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0), code;
    uint32_t challenged = 0;
    pid_t pid;

    assert_int_equal(bind(fd, (struct sockaddr *)&at, bytes), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    pid = fork();
    if (pid == 0) {
        close(fd);
        join_stranger(s, ntohs(at.sin_port));
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
            assert_true(m.type == CONN_GREET || m.type == CONN_PROOF); /* and no hello */
            if (m.type == CONN_PROOF)
                continue;
            conn_make_greet(&mine);
            conn_put(&conn, CONN_CHALLENGE, &mine, sizeof(mine), NULL, 0);
            challenged++;
            conn_say(&conn, CONN_PROOF); /* by another key, and of no key at all */
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
    assert_words(s->rank[1].text,
                 "rank 1 .. cannot reach rank 0 within 3 s .. it does not have this job's token");
    assert_int_equal(s->rank[1].runs, 0);
}

TEST(other_users_are_not_let_in_at_a_local_name)
{
    struct launcher_contact contact = {.local = "epa2a.test.local", .token = "local"};
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
                (void)net_dial_turn(&dial, POLLOUT, clock_ns() + 1000000000, &conn);
            _exit(dial.state < NET_GREETING);
        }
        assert_int_equal(poll(&p, 1, 10000), 1);
        fd = net_accept(listener, from, sizeof(from));
        assert_true(other == 0 ? fd >= 0 : fd < 0);
        assert_int_equal(waitpid(pid, &code, 0), pid);
        assert_int_equal(WEXITSTATUS(code), 0); /* root it trusts; a listener of others not */
        if (fd >= 0)
            close(fd);
    }
    close(listener);
}

/* ---- what is refused at once ---- */

static void assert_refused(const char *want)
{
    struct started *s = started_create(4);
    struct epa_launch asked = started_launch(s, note_world);
    struct epa_error err;

    assert_int_equal(launch(&asked, &err), EPA_ERR_CONFIG);
    assert_words(err.text, want);
    started_destroy(s);
}

TEST(what_cannot_be_found_is_reported_with_what_to_set)
{
    clearenv();
    assert_refused("set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, all four");
    set_job(0, 4, 2, 9);
    unsetenv("MASTER_ADDR");
    assert_refused("set MASTER_ADDR or launcher.address");
    set_job(0, 4, 2, 9);
    assert_refused("'127.0.0.1' is the loopback address here, which ranks on other hosts");
    set_job(0, 4, 4, 9);
    unsetenv("MASTER_PORT");
    assert_refused("set MASTER_PORT or launcher.port");
    setenv("MASTER_PORT", "http", 1);
    assert_refused("MASTER_PORT='http' is no port");
    set_job(0, 3, 3, started_port());
    assert_refused("4 .. 3 .. RANK=0 .. WORLD_SIZE=3");
    set_job(0, 4, 2, 9);
    setenv("MASTER_ADDR", "10.0.0.1", 1);
    unsetenv("EPA2A_JOB_TOKEN");
    assert_refused(
        "ranks that meet over a network need a secret .. export EPA2A_JOB_TOKEN=$(openssl rand "
        "-hex 16)");
    set_job(0, 4, 4, 9);
    setenv("EPA2A_JOB_TOKEN",
           "0123456789012345678901234567890123456789"
           "0123456789012345678901234567890123456789",
           1);
    assert_refused("EPA2A_JOB_TOKEN has 80 characters; 64 are the most");
    clearenv();
}

TEST(the_first_host_of_a_slurm_step_is_found)
{
    clearenv();
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    setenv("SLURM_JOB_ID", "7", 1);
    setenv("SLURM_STEP_NODELIST", "127.0.[0-3,9].[001-4],b3", 1);
    assert_refused("'127.0.0.001' is the loopback");
    setenv("SLURM_STEP_NODELIST", "127.0.0.3,b3", 1);
    assert_refused("'127.0.0.3' is the loopback");
    clearenv();
}

/* Bootstrap over a callback: world, data, and failures that all ranks learn. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../unit/test.h"
#include "boot/boot.h"
#include "boot/conn.h"
#include "group.h"

static void finish(struct group_rank *me, enum epa_status status, const struct epa_error *err)
{
    me->result->code = status;
    snprintf(me->result->text, sizeof(me->result->text), "%s", err->text);
}

static struct boot_params params_of(struct group_rank *me)
{
    return (struct boot_params){.rank = me->rank,
                                .ranks = me->ranks,
                                .version = 0x000100,
                                .allgather = group_allgather,
                                .arg = me,
                                .timeout_ns = 60000000000,
                                .fingerprint = "options: transport=shm\n"};
}

/* Gathers more data than a slot holds. */
static bool gathers(struct epa_bootstrap *boot, size_t bytes)
{
    uint32_t ranks = boot->world.size;
    unsigned char *mine = calloc(1, bytes + 1), *all = calloc(ranks, bytes + 1);
    bool good = true;

    for (size_t i = 0; i < bytes; i++)
        mine[i] = (unsigned char)(boot->world.rank * 31 + i * 7 + (i >> 8));
    good = boot->allgather(boot, mine, bytes, all) == EPA_OK;
    for (size_t i = 0; good && i < ranks * bytes; i++)
        good = all[i] == (unsigned char)(i / bytes * 31 + i % bytes * 7 + (i % bytes >> 8));
    free(mine);
    free(all);
    return good;
}

static void use_all(struct group_rank *me)
{
    struct boot_params params = params_of(me);
    struct epa_error err = {EPA_OK, ""};
    struct epa_bootstrap *boot = NULL;
    enum epa_status status = boot_create(&params, &boot, &err);
    static const size_t sizes[] = {0, 1, 700, 1024, 20000, 100000};

    for (size_t i = 0; status == EPA_OK && i < LENGTH(sizes); i++)
        if (!gathers(boot, sizes[i]))
            status = epa_fail(&err, EPA_ERR_MISMATCH, "allgather of %zu bytes", sizes[i]);
    if (status == EPA_OK)
        status = boot->barrier(boot);
    if (status == EPA_OK &&
        (boot->world.local_rank != me->rank || boot->world.local_size != me->ranks ||
         boot->world.node != NULL || boot->world.interface != NULL || boot->world.local_cores == 0))
        status = epa_fail(&err, EPA_ERR_MISMATCH, "the world is wrong");
    boot_destroy(boot);
    finish(me, status, &err);
}

static void assert_all(struct group *group, uint32_t ranks, enum epa_status status,
                       const char *words)
{
    for (uint32_t r = 0; r < ranks; r++) {
        assert_words(group_result(group, r)->text, words);
        assert_int_equal(group_result(group, r)->code, status);
    }
    group_free(group);
}

TEST(processes_and_threads_gather_data_of_any_size)
{
    static const uint32_t ranks[] = {1, 2, 3, 8};

    for (size_t i = 0; i < LENGTH(ranks); i++) {
        assert_all(group_run(ranks[i], GROUP_PROCESSES, use_all, NULL), ranks[i], EPA_OK, "");
        assert_all(group_run(ranks[i], GROUP_THREADS, use_all, NULL), ranks[i], EPA_OK, "");
    }
}

static void differ_in_options(struct group_rank *me)
{
    struct boot_params params = params_of(me);
    struct epa_error err = {EPA_OK, ""};
    struct epa_bootstrap *boot = NULL;
    const char *what = me->arg;
    struct epa_error failure = {.status = EPA_ERR_UNSUPPORTED, .text = "no such plugin"};

    if (me->rank == 2 && strcmp(what, "text") == 0)
        params.fingerprint = "options: transport=ucx, and more\n";
    if (me->rank == 2 && strcmp(what, "version") == 0)
        params.version = 0x000203;
    if (me->rank == 2 && strcmp(what, "ranks") == 0)
        params.ranks = 4;
    if (me->rank == 2 && strcmp(what, "rank") == 0)
        params.rank = 1;
    if (me->rank == 2 && strcmp(what, "failure") == 0)
        params.failure = &failure;
    finish(me, boot_create(&params, &boot, &err), &err);
    boot_destroy(boot);
}

TEST(ranks_that_differ_are_refused_on_all_ranks)
{
    static const struct {
        const char *what, *words;
        enum epa_status status;
    } cases[] = {
        {"text", "rank 2 .. rank 0 .. options: .. transport=ucx .. transport=shm", EPA_ERR_CONFIG},
        {"version", "rank 2 .. 0.2.3 .. rank 0 .. 0.1.0", EPA_ERR_CONFIG},
        {"rank", "rank 1 .. index 2", EPA_ERR_CONFIG},
        {"failure", "rank 2: no such plugin", EPA_ERR_UNSUPPORTED},
    };

    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_all(group_run(3, GROUP_THREADS, differ_in_options, cases[i].what), 3,
                   cases[i].status, cases[i].words);
}

/* The failing call: its number on rank 1, and whether the rank takes part. */
struct failing {
    uint32_t at;
    bool before;
};

static void fail_callback(struct group_rank *me)
{
    const struct failing *f = me->arg;

    if (me->rank == 1) {
        me->fail_at = f->at;
        me->fail_before = f->before;
    }
    use_all(me);
}

TEST(a_failed_callback_fails_on_all_ranks)
{
    for (uint32_t at = 0; at < 3; at++)
        for (int before = 0; before < 2; before++)
            assert_all(
                group_run(3, GROUP_PROCESSES, fail_callback, &(struct failing){at, before != 0}), 3,
                EPA_ERR_SYSTEM, "rank 1: .. callback .. returned 5");
}

enum { HASH_AT = 40 }; /* in a frame */

static void damage_one_byte(struct group_rank *me, void *all, size_t bytes)
{
    if (me->calls == *(const uint32_t *)me->arg)
        ((unsigned char *)all)[bytes * 2 + HASH_AT] ^= 1;
}

static void damage(struct group_rank *me)
{
    me->damage = me->rank == 1 ? damage_one_byte : NULL;
    use_all(me);
}

TEST(damaged_data_fail_on_all_ranks)
{
    for (uint32_t call = 1; call < 4; call++)
        assert_all(group_run(4, GROUP_THREADS, damage, &call), 4, EPA_ERR_SYSTEM,
                   "rank 1: .. did not deliver the data of rank 2 to rank 1");
}

/* ---- ranks without a callback, on one host and on several ---- */

static void set_job(struct group_rank *me, uint32_t port)
{
    char text[200];

    snprintf(text, sizeof(text),
             "RANK=%u WORLD_SIZE=%u LOCAL_RANK=%u LOCAL_WORLD_SIZE=%u MASTER_ADDR=127.0.0.1 "
             "MASTER_PORT=%u",
             me->rank, me->ranks, me->rank, me->ranks, port);
    set_variables(text);
}

struct job {
    uint32_t port;
    const char *what;
    bool hosts, callback; /* odd ranks on another host; ranks have a callback */
};

/* Moves the process to another host; without `network` this host has no network. */
static bool leave_host(bool network)
{
    return group_leave_host() && (network || unshare(CLONE_NEWNET) == 0);
}

static void keep_log(void *arg, int level, const char *text)
{
    struct group_result *result = arg;

    if (level == 1)
        snprintf(result->text, sizeof(result->text), "%s", text);
}

static enum epa_status check_hosts(const struct epa_bootstrap *boot, struct epa_error *err)
{
    const struct epa_world *w = &boot->world;
    bool good = w->node != NULL && w->interface != NULL && strcmp(w->interface, "lo") == 0;

    for (uint32_t r = 0; good && r < w->size; r++)
        good = w->node[r] == r % 2;
    return good && w->local_rank == w->rank / 2 ? EPA_OK
                                                : epa_fail(err, EPA_ERR_MISMATCH, "the nodes");
}

/* Returns true if ranks wait for rank 1 until the time-out. */
static bool waits_in_vain(const char *what)
{
    return strcmp(what, "stops") == 0 || strcmp(what, "absent") == 0 ||
           strcmp(what, "no network") == 0;
}

static void join_job(struct group_rank *me)
{
    const struct job *job = me->arg;
    struct boot_params params = params_of(me);
    struct epa_error err = {EPA_OK, ""};
    struct epa_bootstrap *boot = NULL;
    enum epa_status status;
    double begun;

    bool network = strcmp(job->what, "no network") != 0;

    if (waits_in_vain(job->what))
        params.timeout_ns = 2000000000;
    params.log = keep_log;
    params.log_arg = me->result;
    if (!job->callback) {
        set_job(me, job->port);
        params.allgather = NULL;
        params.rank = params.ranks = 0;
    }
    if (me->rank == 1 && strcmp(job->what, "ranks") == 0)
        set_variables("WORLD_SIZE=7 LOCAL_WORLD_SIZE=7");
    if (me->rank == 1 && strcmp(job->what, "twin") == 0)
        set_variables("RANK=2 LOCAL_RANK=2");
    if (job->hosts && me->rank % 2 == 1 && !leave_host(network)) {
        finish(me, EPA_ERR_UNSUPPORTED, &err);
        return;
    }
    if (me->rank == 1 && strcmp(job->what, "absent") == 0)
        return;
    status = boot_create(&params, &boot, &err);
    if (status == EPA_OK && job->hosts && network)
        status = check_hosts(boot, &err);
    for (size_t bytes = 1; status == EPA_OK && bytes < 100000; bytes *= 10)
        if (!gathers(boot, bytes)) {
            boot->explain(boot, &err); /* rank 1 may end while others still gather */
            status = epa_fail(&err, EPA_ERR_MISMATCH, "allgather of %zu bytes", bytes);
        }
    if (me->rank == 1 && status == EPA_OK && strcmp(job->what, "dies") == 0) {
        __atomic_store_n(&me->result->left_out, 1, __ATOMIC_RELEASE);
        raise(SIGKILL);
    }
    if (me->rank == 1 && status == EPA_OK && strcmp(job->what, "stops") == 0) {
        __atomic_store_n(&me->result->left_out, 1, __ATOMIC_RELEASE);
        raise(SIGSTOP);
    }
    if (me->rank == 1 && status == EPA_OK && strcmp(job->what, "fails") == 0)
        boot_fail(boot, EPA_ERR_SYSTEM, "rank 1: no such luck");
    begun = group_now();
    if (status == EPA_OK)
        status = boot_agree(boot, EPA_OK, &err);
    me->result->seconds = group_now() - begun;
    boot_destroy(boot);
    if (network || status != EPA_OK)
        finish(me, status, &err);
    else
        me->result->code = EPA_OK; /* the text is the log */
}

static struct group *run_job(const char *what, bool hosts, bool callback)
{
    int reserved;
    struct job job = {
        .port = test_reserve_port(&reserved), .what = what, .hosts = hosts, .callback = callback};
    struct group *group = group_run(4, GROUP_PROCESSES, join_job, &job);

    close(reserved);
    return group;
}

/* Ranks without a callback authenticate each other. */
static bool has_mac(void)
{
    return conn_check_mac(NULL) == EPA_OK;
}

TEST(variables_of_torchrun_connect_ranks)
{
    if (!has_mac()) {
        assert_all(run_job("", false, false), 4, EPA_ERR_UNSUPPORTED,
                   "ranks cannot authenticate each other: .. OpenSSL");
        return;
    }
    assert_all(run_job("", false, false), 4, EPA_OK, "");
    assert_all(run_job("ranks", false, false), 4, EPA_ERR_CONFIG,
               "rank 1 (host .. expects 7 ranks .. rank 0 expects 4");
    assert_all(run_job("twin", false, false), 4, EPA_ERR_CONFIG, "rank 2 (host .. rank 2 (host");
}

TEST(ranks_of_several_hosts_gather)
{
    struct group *group = run_job("", true, true);

    if (group_result(group, 1)->code == EPA_ERR_UNSUPPORTED)
        skip(); /* no name space for another host */
    assert_all(group, 4, EPA_OK, "");
    if (has_mac())
        assert_all(run_job("", true, false), 4, EPA_OK, "");
}

TEST(ranks_of_several_hosts_name_the_failed_rank)
{
    static const struct {
        const char *what, *words;
    } cases[] = {
        {"dies", "rank 1 (host elsewhere, pid"},
        {"stops", "rank 1 (host elsewhere, pid"},
        {"fails", "rank 1: no such luck"},
    };

    for (size_t i = 0; i < 2 * LENGTH(cases); i++) { /* without and with a callback */
        bool late = true;

        for (uint32_t turn = 0; late && turn < GROUP_TURNS; turn++) {
            struct group *group = has_mac() ? run_job(cases[i / 2].what, true, i % 2 == 1) : NULL;

            if (group == NULL)
                skip();
            if (group_result(group, 1)->code == EPA_ERR_UNSUPPORTED)
                skip(); /* no name space for another host */
            for (uint32_t r = 0; r < 4; r += r == 0 ? 2 : 1)
                assert_words(group_result(group, r)->text, cases[i / 2].words);
            late = group_is_late(group, 3);
            group_free(group);
        }
        assert_false(late);
    }
}

TEST(ranks_that_cannot_connect_gather_by_their_callback)
{
    struct group *group = run_job("no network", true, true);

    if (group_result(group, 1)->code == EPA_ERR_UNSUPPORTED)
        skip(); /* no name space for another host */
    assert_all(group, 4, EPA_OK,
               has_mac() ? "cannot connect (rank 0 waited .. rank 1 to connect"
                         : "cannot connect (ranks cannot authenticate each other: .. OpenSSL");
}

TEST(a_missing_rank_is_named)
{
    struct group *group = has_mac() ? run_job("absent", false, false) : NULL;

    if (group == NULL)
        skip();
    for (uint32_t r = 0; r < 4; r += r == 0 ? 2 : 1) {
        assert_words(group_result(group, r)->text, "rank 0 waited 2 .. s for rank 1 to connect");
        assert_true(group_result(group, r)->code != EPA_OK);
    }
    group_free(group);
}

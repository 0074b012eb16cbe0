/* Comms: creation, calls, and failures that each rank reports with the name of the failed rank. */
#include <epa2a.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../unit/test.h"
#include "group.h"

static const uint64_t second = 1000000000;

static void finish(struct group_rank *me, int code)
{
    me->result->code = code;
    if (code != EPA2A_OK)
        snprintf(me->result->text, sizeof(me->result->text), "%s", epa2a_last_error());
}

/* The log has no other warnings. */
static void note_missing_connections(void *arg, int level, const char *text)
{
    struct group_result *result = arg;

    if (level == 1)
        snprintf(result->text, sizeof(result->text), "%s", text);
}

/* Creates a comm with a time-out; NULL: the failure is in the result. */
static struct epa2a_comm *create_comm(struct group_rank *me, uint64_t timeout_ns,
                                      const char *options)
{
    EPA2A_STRUCT(epa2a_comm_params, p);
    struct epa2a_comm *comm = NULL;

    p.version = EPA2A_VERSION;
    p.rank = me->rank;
    p.ranks = me->ranks;
    p.allgather = group_allgather;
    p.arg = me;
    p.device = EPA2A_HOST;
    p.timeout_ns = timeout_ns;
    p.options = options;
    p.log = note_missing_connections;
    p.log_arg = me->result;
    finish(me, epa2a_comm_create(&p, &comm));
    return comm;
}

static void assert_all(struct group *group, uint32_t ranks, int code, const char *words)
{
    for (uint32_t r = 0; r < ranks; r++) {
        assert_words(group_result(group, r)->text, words);
        assert_int_equal(group_result(group, r)->code, code);
    }
    group_free(group);
}

/* ---- calls ---- */

struct facts {
    char text[400];
};

static void add_fact(void *arg, const char *key, const char *value)
{
    struct facts *facts = arg;
    size_t used = strlen(facts->text);

    snprintf(facts->text + used, sizeof(facts->text) - used, "%s=%s;", key, value);
}

static void use_comm(struct group_rank *me)
{
    struct epa2a_comm *comm = create_comm(me, 60 * second, me->arg);
    struct facts facts = {""};
    char *memory = NULL;
    int code = comm != NULL ? EPA2A_OK : me->result->code;

    for (int i = 0; code == EPA2A_OK && i < 50; i++)
        code = epa2a_comm_barrier(comm, NULL);
    if (code == EPA2A_OK)
        code = epa2a_comm_alloc(comm, 100000, (void **)&memory);
    for (int i = 0; code == EPA2A_OK && i < 100000; i++)
        code = memory[i] == 0 ? EPA2A_OK : 1;
    if (code == EPA2A_OK) {
        memset(memory, 1, 100000);
        epa2a_comm_free(comm, memory);
        code = epa2a_comm_sync(comm, NULL);
    }
    if (code == EPA2A_OK)
        code = epa2a_comm_check(comm);
    finish(me, code);
    if (comm != NULL)
        epa2a_comm_describe(comm, add_fact, &facts);
    if (code == EPA2A_OK && strstr(facts.text, "transport=shm;backend=host;") == NULL &&
        strstr(facts.text, "backend=host;transport=shm;") == NULL)
        me->result->code = 1;
    epa2a_comm_destroy(comm);
}

TEST(processes_and_threads_use_a_comm)
{
    static const uint32_t ranks[] = {1, 2, 3, 8};

    for (size_t i = 0; i < LENGTH(ranks); i++)
        for (int kind = 0; kind < 2; kind++)
            assert_all(group_run(ranks[i], (enum group_kind)kind, use_comm, NULL), ranks[i],
                       EPA2A_OK, "");
}

/* The argument has the options and the expected fact. */
static void divide_host(struct group_rank *me)
{
    const char *const *task = me->arg;
    struct epa2a_comm *comm = create_comm(me, 60 * second, task[0]);
    struct facts facts = {""};

    if (comm == NULL)
        return;
    epa2a_comm_describe(comm, add_fact, &facts);
    finish(me, epa2a_comm_barrier(comm, NULL));
    if (strstr(facts.text, task[1]) == NULL)
        me->result->code = 1;
    epa2a_comm_destroy(comm);
}

TEST(an_option_divides_a_host_into_nodes)
{
    static const char *const options[][2] = {
        {"transport=reorder, ranks_per_node=2", "nodes=3;"},
        {"transport=reorder, ranks_per_node=1", "nodes=5;"},
        {"transport=reorder, ranks_per_node=8", "nodes=1;"},
    };

    for (size_t i = 0; i < LENGTH(options); i++)
        assert_all(group_run(5, GROUP_PROCESSES, divide_host, options[i]), 5, EPA2A_OK, "");
}

static void use_two_comms(struct group_rank *me)
{
    struct epa2a_comm *a = create_comm(me, 60 * second, NULL), *b = NULL;
    int code = me->result->code;

    if (a != NULL)
        b = create_comm(me, 60 * second, "transport=reorder");
    for (int i = 0; a != NULL && b != NULL && code == EPA2A_OK && i < 20; i++) {
        code = epa2a_comm_barrier(i % 3 == 0 ? b : a, NULL);
        if (code == EPA2A_OK)
            code = epa2a_comm_barrier(b, NULL);
    }
    if (me->result->code == EPA2A_OK)
        finish(me, code);
    epa2a_comm_destroy(a);
    epa2a_comm_destroy(b);
}

TEST(a_rank_uses_two_comms_alternately)
{
    assert_all(group_run(4, GROUP_PROCESSES, use_two_comms, NULL), 4, EPA2A_OK, "");
    assert_all(group_run(4, GROUP_THREADS, use_two_comms, NULL), 4, EPA2A_OK, "");
}

/* ---- wrong arguments ---- */

TEST(wrong_structs_are_refused)
{
    struct {
        struct epa2a_comm_params p;
        uint64_t tail;
    } larger = {
        .p = {.size = sizeof(larger), .version = EPA2A_VERSION, .ranks = 1, .device = EPA2A_HOST},
        .tail = 1};
    EPA2A_STRUCT(epa2a_comm_params, p);
    struct epa2a_comm *comm = NULL;

    assert_int_equal(epa2a_comm_create(NULL, &comm), EPA2A_ERR_CONFIG);
    assert_int_equal(epa2a_comm_create(&larger.p, &comm), EPA2A_ERR_CONFIG);
    larger.tail = 0;
    assert_int_equal(epa2a_comm_create(&larger.p, &comm), EPA2A_OK);
    epa2a_comm_destroy(comm);
    p.size = 0;
    assert_int_equal(epa2a_comm_create(&p, &comm), EPA2A_ERR_CONFIG);
    assert_int_equal(epa2a_comm_barrier(NULL, NULL), EPA2A_ERR_CONFIG);
    assert_words(epa2a_last_error(), "epa2a_comm_barrier: .. NULL");
    epa2a_comm_destroy(NULL);
    epa2a_comm_abort(NULL);
}

static void differ(struct group_rank *me)
{
    EPA2A_STRUCT(epa2a_comm_params, p);
    struct epa2a_comm *comm = NULL;
    const char *what = me->rank == 1 ? me->arg : "";

    p.version = strcmp(what, "version") == 0 ? 0 : EPA2A_VERSION;
    p.rank = me->rank;
    p.ranks = me->ranks;
    p.allgather = group_allgather;
    p.arg = me;
    p.device = strcmp(what, "device") == 0 ? 3 : strcmp(what, "number") == 0 ? -2 : EPA2A_HOST;
    p.heap = strcmp(what, "heap") == 0 ? (void *)64 : NULL;
    p.options = strcmp(what, "options") == 0 ? "transport=reorder, backend.workers=2" : NULL;
    p.plugin_path = strcmp(what, "folder") == 0 ? "/does/not/exist" : NULL;
    finish(me, epa2a_comm_create(&p, &comm));
    epa2a_comm_destroy(comm);
}

TEST(the_failure_of_one_rank_fails_creation_on_all)
{
    static const struct {
        const char *what, *words;
        int code;
    } cases[] = {
        {"version", "rank 1: .. version is 0.0 .. EPA2A_VERSION", EPA2A_ERR_CONFIG},
        {"device", "rank 1 .. device: CUDA there, EPA2A_HOST here", EPA2A_ERR_CONFIG},
        {"number", "rank 1: .. device is -2", EPA2A_ERR_CONFIG},
        {"heap", "rank 1: .. heap", EPA2A_ERR_CONFIG},
        {"options", "rank 1 .. options: transport=reorder,backend.workers=2 there, nothing here",
         EPA2A_ERR_CONFIG},
        {"folder", "rank 1: .. /does/not/exist", EPA2A_ERR_CONFIG},
    };

    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_all(group_run(3, (enum group_kind)(i % 2), differ, cases[i].what), 3, cases[i].code,
                   cases[i].words);
}

static void use_options(struct group_rank *me)
{
    epa2a_comm_destroy(create_comm(me, second, me->arg));
}

TEST(wrong_options_are_refused)
{
    assert_all(group_run(2, GROUP_THREADS, use_options, "masks=true"), 2, EPA2A_ERR_CONFIG,
               "masks");
    assert_all(group_run(2, GROUP_THREADS, use_options, "transport=shn"), 2, EPA2A_ERR_CONFIG,
               "shn");
}

/* ---- failed ranks ---- */

/* Meets the other ranks, then fails as rank 1, or waits in a barrier for at most timeout + 1 s. */
static void lose_rank_1(struct group_rank *me)
{
    bool stops = strcmp(me->arg, "stops") == 0;
    struct epa2a_comm *comm = create_comm(me, stops ? 2 * second : 20 * second, NULL);
    double begun;

    if (comm == NULL || !group_meet(me))
        return;
    if (me->rank == 1) {
        __atomic_store_n(&me->result->left_out, 1, __ATOMIC_RELEASE);
        raise(stops ? SIGSTOP : SIGKILL);
    }
    begun = group_now();
    finish(me, epa2a_comm_barrier(comm, NULL));
    me->result->seconds = group_now() - begun;
    if (epa2a_comm_check(comm) == EPA2A_OK || epa2a_comm_barrier(comm, NULL) != EPA2A_ERR_ABORTED ||
        strcmp(me->result->text, epa2a_last_error()) != 0)
        me->result->code = 1;
    epa2a_comm_destroy(comm);
}

TEST(every_rank_names_a_killed_rank)
{
    bool late = true;
    char words[64];

    for (uint32_t turn = 0; late && turn < GROUP_TURNS; turn++) {
        struct group *group = group_run(4, GROUP_PROCESSES, lose_rank_1, "dies");

        snprintf(words, sizeof(words), "rank 1 (pid %d) died", group_result(group, 1)->pid);
        for (uint32_t r = 0; r < 4; r += r == 0 ? 2 : 1) {
            assert_words(group_result(group, r)->text, words);
            assert_int_equal(group_result(group, r)->code, EPA2A_ERR_DIED);
        }
        late = group_is_late(group, 1);
        group_free(group);
    }
    assert_false(late);
}

TEST(every_rank_names_a_stopped_rank_after_the_time_out)
{
    bool late = true;
    char words[64];

    for (uint32_t turn = 0; late && turn < GROUP_TURNS; turn++) {
        struct group *group = group_run(4, GROUP_PROCESSES, lose_rank_1, "stops");

        snprintf(words, sizeof(words), "rank 1 (pid %d)", group_result(group, 1)->pid);
        for (uint32_t r = 0; r < 4; r += r == 0 ? 2 : 1) {
            int code = group_result(group, r)->code;

            assert_words(group_result(group, r)->text, words);
            assert_true(code == EPA2A_ERR_TIMEOUT || code == EPA2A_ERR_ABORTED);
        }
        late = group_is_late(group, 3);
        group_free(group);
    }
    assert_false(late);
}

static void *abort_comm(void *comm)
{
    epa2a_comm_abort(comm);
    return NULL;
}

static void abort_from_thread(struct group_rank *me)
{
    struct epa2a_comm *comm = create_comm(me, 20 * second, NULL);
    pthread_t thread;

    if (comm == NULL || !group_meet(me))
        return;
    if (me->rank == 1)
        pthread_create(&thread, NULL, abort_comm, comm);
    if (me->rank != 2) /* rank 2 does not enter the barrier */
        finish(me, epa2a_comm_barrier(comm, NULL));
    else
        while (epa2a_comm_check(comm) == EPA2A_OK)
            (void)usleep(1000);
    if (me->rank == 1)
        pthread_join(thread, NULL);
    if (me->rank == 2)
        finish(me, epa2a_comm_barrier(comm, NULL));
    epa2a_comm_destroy(comm);
}

TEST(any_thread_aborts_the_waits_of_all_ranks)
{
    assert_all(group_run(3, GROUP_PROCESSES, abort_from_thread, NULL), 3, EPA2A_ERR_ABORTED,
               "rank 1 aborted");
    assert_all(group_run(3, GROUP_THREADS, abort_from_thread, NULL), 3, EPA2A_ERR_ABORTED,
               "rank 1 aborted");
}

/* Ranks with odd numbers are on another host. Rank 0 makes no call until rank 2 has received the abort,
 * so a thread of rank 0 has to pass the abort on. Rank 3 never enters the barrier. */
static void abort_across_hosts(struct group_rank *me)
{
    uint32_t *received = group_word(me, 0);
    struct epa2a_comm *comm;
    pthread_t thread;
    double begun;

    if (me->rank % 2 == 1 && !group_leave_host()) {
        me->result->code = EPA2A_ERR_UNSUPPORTED;
        return;
    }
    comm = create_comm(me, 60 * second, "transport=reorder");
    if (strstr(me->result->text, "ranks cannot authenticate each other") != NULL) {
        me->result->code = EPA2A_ERR_UNSUPPORTED;
        epa2a_comm_destroy(comm);
        return;
    }
    if (comm == NULL || !group_meet(me))
        return;
    begun = group_now();
    if (me->rank == 0)
        group_wait(received);
    else if (me->rank == 1)
        pthread_create(&thread, NULL, abort_comm, comm);
    else if (me->rank == 3)
        while (epa2a_comm_check(comm) == EPA2A_OK)
            (void)usleep(1000);
    finish(me, epa2a_comm_barrier(comm, NULL));
    me->result->seconds = group_now() - begun;
    if (me->rank == 1)
        pthread_join(thread, NULL);
    else if (me->rank == 2)
        __atomic_store_n(received, 1, __ATOMIC_RELEASE);
    epa2a_comm_destroy(comm);
}

TEST(an_abort_ends_the_waits_of_ranks_on_other_hosts)
{
    struct group *group = group_run(4, GROUP_PROCESSES, abort_across_hosts, NULL);

    if (group_result(group, 1)->code == EPA2A_ERR_UNSUPPORTED)
        skip(); /* no name space for another host, or no message authentication */
    for (uint32_t r = 0; r < 4; r++)
        assert_true(group_result(group, r)->seconds < 20);
    assert_all(group, 4, EPA2A_ERR_ABORTED, "rank 1 aborted");
}

/* ---- misuse ---- */

static void *wait_in_barrier(void *comm)
{
    int code;

    do { /* the other thread may be in its call, too */
        code = epa2a_comm_barrier(comm, NULL);
    } while (code == EPA2A_ERR_CONFIG);
    return (void *)(intptr_t)code;
}

static void use_two_threads(struct group_rank *me)
{
    struct epa2a_comm *comm = create_comm(me, 20 * second, NULL);
    uint32_t *done = group_word(me, 0);
    void *code = NULL;
    pthread_t thread;

    if (comm == NULL)
        return;
    if (me->rank == 1) { /* enters the barrier after rank 0 has seen the refusal */
        group_wait(done);
        finish(me, epa2a_comm_barrier(comm, NULL));
    } else {
        pthread_create(&thread, NULL, wait_in_barrier, comm);
        do {
            finish(me, epa2a_comm_sync(comm, NULL));
        } while (me->result->code == EPA2A_OK);
        __atomic_store_n(done, 1, __ATOMIC_RELEASE);
        pthread_join(thread, &code);
        if (code != NULL || epa2a_comm_sync(comm, NULL) != EPA2A_OK)
            me->result->code = 1;
    }
    epa2a_comm_destroy(comm);
}

TEST(a_second_thread_is_refused)
{
    struct group *group = group_run(2, GROUP_PROCESSES, use_two_threads, NULL);

    assert_int_equal(group_result(group, 1)->code, EPA2A_OK);
    assert_int_equal(group_result(group, 0)->code, EPA2A_ERR_CONFIG);
    assert_words(group_result(group, 0)->text,
                 "epa2a_comm_sync: another thread .. epa2a_comm_barrier");
    group_free(group);
}

static void use_after_fork(struct group_rank *me)
{
    struct epa2a_comm *comm = create_comm(me, 60 * second, NULL);
    pid_t pid;
    int status = 1;

    if (comm == NULL)
        return;
    pid = fork();
    if (pid == 0) {
        int code = epa2a_comm_barrier(comm, NULL);
        bool good =
            code == EPA2A_ERR_CONFIG && strstr(epa2a_last_error(), "parent process") != NULL;

        epa2a_comm_abort(comm);
        epa2a_comm_destroy(comm);
        _exit(good ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    finish(me, epa2a_comm_barrier(comm, NULL));
    if (status != 0)
        me->result->code = 1;
    epa2a_comm_destroy(comm);
}

TEST(a_child_process_is_refused_and_the_parent_continues)
{
    assert_all(group_run(2, GROUP_PROCESSES, use_after_fork, NULL), 2, EPA2A_OK, "");
}

static void leave_early(struct group_rank *me)
{
    struct epa2a_comm *comm = create_comm(me, 60 * second, NULL);

    if (comm == NULL)
        return;
    finish(me, epa2a_comm_barrier(comm, NULL));
    epa2a_comm_destroy(comm);
}

TEST(ranks_may_exit_while_others_destroy_their_comms)
{
    for (int i = 0; i < 20; i++)
        assert_all(group_run(4, GROUP_PROCESSES, leave_early, NULL), 4, EPA2A_OK, "");
}

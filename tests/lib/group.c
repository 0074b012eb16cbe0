/* Ranks that fork() or pthread_create() starts. Two areas per rank alternate between calls of the
 * allgather; a counter per rank orders the calls. */
#include "group.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { AREA = 65536, WORDS = 16 };

static const double limit_s = 20, run_limit_s = 100;

struct shared_rank {
    _Alignas(64) uint64_t arrived;
    struct group_result result;
    char area[2][AREA];
};

struct group {
    uint32_t ranks;
    enum group_kind kind;
    void (*rank_main)(struct group_rank *);
    const void *arg;
    pthread_t thread[GROUP_RANKS_MAX];
    struct shared {
        uint32_t word[WORDS];
        struct shared_rank rank[GROUP_RANKS_MAX];
    } * shared;
};

double group_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool wait_for_word(const uint64_t *word, uint64_t value)
{
    double begun = group_now();

    /* Acquire: pairs with the release in group_allgather(). */
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value) {
        if (group_now() - begun > limit_s)
            return false;
        sched_yield();
    }
    return true;
}

int group_allgather(void *arg, const void *mine, size_t bytes, void *all)
{
    struct group_rank *me = arg;
    struct shared *shared = me->group->shared;
    struct shared_rank *own = &shared->rank[me->rank];
    bool fails = me->calls++ == me->fail_at;
    uint64_t step = own->arrived + 1;

    if (bytes > AREA || (fails && me->fail_before))
        return GROUP_CALLBACK_FAILS;
    memcpy(own->area[step & 1], mine, bytes);
    __atomic_store_n(&own->arrived, step, __ATOMIC_RELEASE);
    for (uint32_t r = 0; r < me->ranks; r++) {
        if (!wait_for_word(&shared->rank[r].arrived, step))
            return GROUP_CALLBACK_FAILS;
        memcpy((char *)all + r * bytes, shared->rank[r].area[step & 1], bytes);
    }
    if (me->damage != NULL)
        me->damage(me, all, bytes);
    return fails ? GROUP_CALLBACK_FAILS : 0;
}

bool group_meet(struct group_rank *me)
{
    struct group_rank plain = {
        .rank = me->rank, .ranks = me->ranks, .group = me->group, .fail_at = UINT32_MAX};
    char none;

    return group_allgather(&plain, "", 0, &none) == 0;
}

uint32_t *group_word(struct group_rank *me, uint32_t number)
{
    return &me->group->shared->word[number];
}

bool group_wait(const uint32_t *word)
{
    double begun = group_now();

    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0) {
        if (group_now() - begun > limit_s)
            return false;
        sched_yield();
    }
    return true;
}

bool group_leave_host(void)
{
    return (unshare(CLONE_NEWUTS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWUTS) == 0) &&
           sethostname("elsewhere", 9) == 0;
}

static void run_rank(struct group *group, uint32_t rank)
{
    struct group_rank me = {.rank = rank,
                            .ranks = group->ranks,
                            .group = group,
                            .arg = group->arg,
                            .result = group_result(group, rank),
                            .fail_at = UINT32_MAX};

    me.result->pid = getpid();
    group->rank_main(&me);
    if (me.result->code == GROUP_HANGS)
        me.result->code = 0;
}

struct thread_start {
    struct group *group;
    uint32_t rank;
};

static void *thread_main(void *arg)
{
    struct thread_start *start = arg;

    run_rank(start->group, start->rank);
    return NULL;
}

static void run_threads(struct group *group)
{
    struct thread_start start[GROUP_RANKS_MAX];
    struct timespec end;

    for (uint32_t r = 0; r < group->ranks; r++) {
        start[r] = (struct thread_start){group, r};
        pthread_create(&group->thread[r], NULL, thread_main, &start[r]);
    }
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += (time_t)run_limit_s;
    for (uint32_t r = 0; r < group->ranks; r++)
        if (pthread_timedjoin_np(group->thread[r], NULL, &end) != 0) {
            fprintf(stderr, "rank %u hangs\n", r);
            _exit(1); /* its memory must stay */
        }
}

/* Waits until all processes have ended that return; then kills the others. */
static void wait_for_processes(struct group *group, const pid_t *pid)
{
    bool ended[GROUP_RANKS_MAX] = {false};
    double begun = group_now();
    uint32_t left = group->ranks;

    while (left > 0) {
        bool only_left_out = true;

        for (uint32_t r = 0; r < group->ranks; r++) {
            if (ended[r])
                continue;
            if (waitpid(pid[r], NULL, WNOHANG) == pid[r]) {
                ended[r] = true;
                left--;
            } else if (!__atomic_load_n(&group_result(group, r)->left_out, __ATOMIC_ACQUIRE)) {
                only_left_out = false;
            }
        }
        if (left > 0 && (only_left_out || group_now() - begun > run_limit_s))
            for (uint32_t r = 0; r < group->ranks; r++)
                if (!ended[r])
                    kill(pid[r], SIGKILL);
        (void)poll(NULL, 0, 1);
    }
}

static void run_processes(struct group *group)
{
    pid_t pid[GROUP_RANKS_MAX];

    for (uint32_t r = 0; r < group->ranks; r++) {
        pid[r] = fork();
        if (pid[r] == 0) {
            run_rank(group, r);
            fflush(NULL);
            _exit(0);
        }
    }
    wait_for_processes(group, pid);
}

struct group *group_run(uint32_t ranks, enum group_kind kind,
                        void (*rank_main)(struct group_rank *), const void *arg)
{
    struct group *group = calloc(1, sizeof(*group));

    *group = (struct group){.ranks = ranks, .kind = kind, .rank_main = rank_main, .arg = arg};
    group->shared = mmap(NULL, sizeof(*group->shared), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (uint32_t r = 0; r < ranks; r++)
        group_result(group, r)->code = GROUP_HANGS;
    if (kind == GROUP_THREADS)
        run_threads(group);
    else
        run_processes(group);
    return group;
}

struct group_result *group_result(struct group *group, uint32_t rank)
{
    return &group->shared->rank[rank].result;
}

bool group_is_late(struct group *group, double most_s)
{
    for (uint32_t r = 0; r < group->ranks; r++)
        if (group_result(group, r)->seconds >= most_s)
            return true;
    return false;
}

void group_free(struct group *group)
{
    munmap(group->shared, sizeof(*group->shared));
    free(group);
}

/* Bootstrap over a callback: world, data, and failures that all ranks learn. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../unit/test.h"
#include "boot/boot.h"
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
                                .timeout_ns = 10000000000,
                                .fingerprint = "options: transport=shm\n"};
}

/* Gathers more data than a slot holds. */
static bool gathers(struct epa_bootstrap *boot, size_t bytes)
{
    uint32_t ranks = boot->world.size;
    unsigned char *mine = malloc(bytes + 1), *all = malloc(ranks * bytes + 1);
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
    struct epa_error failure = {EPA_ERR_UNSUPPORTED, "no such plugin"};

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

/* Failed allocations: every allocation of the creation of a comm fails once, on one rank. */
#include <epa2a.h>

#include <errno.h>
#include <string.h>

#include "../unit/test.h"
#include "group.h"

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

/* Allocations of one thread while `counts` is set. */
static _Thread_local struct {
    bool counts;
    uint32_t calls, fail_at;
    int64_t live;
} heap;

static bool fails(void)
{
    if (!heap.counts || heap.calls++ != heap.fail_at)
        return false;
    errno = ENOMEM;
    return true;
}

static void *counted(void *memory)
{
    heap.live += heap.counts && memory != NULL;
    return memory;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : counted(__libc_malloc(bytes));
}

void *calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : counted(__libc_calloc(n, bytes));
}

void *realloc(void *memory, size_t bytes)
{
    if (fails())
        return NULL;
    heap.live -= heap.counts && memory != NULL;
    return counted(__libc_realloc(memory, bytes));
}

void free(void *memory)
{
    heap.live -= heap.counts && memory != NULL;
    __libc_free(memory);
}

static int create_with_failure(struct group_rank *me, uint32_t fail_at, struct epa2a_comm **out)
{
    EPA2A_STRUCT(epa2a_comm_params, p);
    int code;

    p.version = EPA2A_VERSION;
    p.rank = me->rank;
    p.ranks = me->ranks;
    p.allgather = group_allgather;
    p.arg = me;
    p.device = EPA2A_HOST;
    p.timeout_ns = 10000000000;
    p.options = "transport=shm";
    heap.calls = 0;
    heap.live = 0;
    heap.fail_at = fail_at;
    heap.counts = true;
    code = epa2a_comm_create(&p, out);
    heap.fail_at = UINT32_MAX;
    return code;
}

static void fail_all_allocations(struct group_rank *me)
{
    uint32_t *calls = group_word(me, 0);
    bool reached = true;

    me->result->code = 0;
    for (uint32_t i = 0; reached && me->result->code == 0; i++) {
        struct epa2a_comm *comm = NULL;
        int code = create_with_failure(me, me->rank == 1 && i > 1 ? i / 2 - 1 : UINT32_MAX, &comm);
        uint32_t n = heap.calls;
        int64_t live;

        if (code == EPA2A_OK)
            epa2a_comm_destroy(comm);
        live = heap.live;
        heap.counts = false;
        if (code != EPA2A_OK && code != EPA2A_ERR_NOMEM)
            me->result->code = code;
        /* Two calls for each allocation: the loader keeps memory of the first. */
        if (i % 2 == 1 && live > 0)
            me->result->code = 1000;
        if (me->result->code != 0)
            snprintf(me->result->text, sizeof(me->result->text),
                     "allocation %d: code %d, %lld blocks lost: %s", (int)i / 2 - 1, code,
                     (long long)live, epa2a_last_error());
        if (me->rank == 1)
            *calls = n >= i / 2;
        if (!group_meet(me))
            me->result->code = 1;
        reached = *calls != 0;
        if (!group_meet(me))
            me->result->code = 1;
    }
}

TEST(a_failed_allocation_of_one_rank_fails_creation_on_all)
{
    struct group *group = group_run(2, GROUP_PROCESSES, fail_all_allocations, NULL);

    for (uint32_t r = 0; r < 2; r++) {
        assert_string_equal(group_result(group, r)->text, "");
        assert_int_equal(group_result(group, r)->code, 0);
    }
    group_free(group);
}

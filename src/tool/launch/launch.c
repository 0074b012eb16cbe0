/* State and result of one launch. */
#include "launch/launch.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/memory.h"

void launch_release(struct launch *l)
{
    /* Acquire and release: each user publishes its writes; the last one sees all and frees. */
    if (l == NULL || __atomic_sub_fetch(&l->users, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    if (l->wake >= 0 && l->launcher == NULL)
        close(l->wake);
    free(l->poll);
    free(l->rank);
    free(l->node);
    pin_plan_finish(&l->pins);
    if (l->launcher == NULL)
        control_destroy(l->control);
    free(l);
}

struct launch *launch_create(const struct epa_launch *asked, uint32_t first, uint32_t ranks,
                             uint32_t more)
{
    struct launch *l = memory_alloc(1, sizeof(*l));

    *l = (struct launch){.asked = *asked,
                         .n = ranks,
                         .last = {.limit_ns = asked->timeout_ns},
                         .stop_fd = asked->stop_fd,
                         .wake = -1,
                         .users = 1};
    l->rank = memory_alloc(ranks, sizeof(*l->rank));
    l->poll = memory_alloc(2 + 2 * (size_t)ranks + more, sizeof(*l->poll));
    l->node = memory_alloc(asked->ranks, sizeof(*l->node));
    for (uint32_t r = 0; r < ranks; r++) {
        process_init(&l->rank[r].process);
        l->rank[r].number = first + r;
        l->rank[r].launch = l;
    }
    return l;
}

enum epa_status launch_report(const struct launch *l, const struct conn_word *verdict,
                              struct epa_error *err)
{
    if (verdict->status == EPA_ERR_DIED && l->asked.failed_rank != NULL)
        *l->asked.failed_rank = verdict->rank;
    if (verdict->status != EPA_OK && verdict->text[0] != 0)
        (void)epa_fail_key(err, (enum epa_status)verdict->status, verdict->key, "%s",
                           verdict->text);
    return (enum epa_status)verdict->status;
}

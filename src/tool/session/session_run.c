/* Runs a session: launches its ranks and chooses the reported failure. */
#include "session/session_run.h"

#include <stdio.h>
#include <string.h>

#include <epa2a/wait.h>
#include "base/terminal.h"
#include "session/rank_main.h"
#include "session/status_page.h"

/* Grace period: after the failure of a rank the others have this time to record their state. Ranks of
 * devices need more: their kernels have seconds to end, memory cannot be freed before, and the driver
 * needs time to free it. */
static const uint64_t host_grace_ns = 1000000000u, device_grace_ns = 10000000000u;

/* Minimum time limit of set-up, since libraries and devices start slowly. */
static const uint64_t set_up_ns = 3000000000u;

/* Returns the rank that failed first for a reason of its own, with the status `decided` unless that is
 * EPA_OK. Returns NULL if no rank recorded such a failure. */
static const struct session_rank *first_failure(const struct session *s, enum epa_status decided)
{
    const struct session_rank *first = NULL;

    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);
        /* Acquire: pairs with the release in record_failure(); the text is complete. */
        enum epa_status status = __atomic_load_n(&rank->status, __ATOMIC_ACQUIRE);

        if (status == EPA_OK || status == EPA_ERR_ABORTED ||
            (decided != EPA_OK && status != decided))
            continue;
        if (first == NULL || rank->failed_ns < first->failed_ns)
            first = rank;
    }
    return first;
}

static const char *stage_of_rank(const struct session *s, uint32_t rank)
{
    return session_stage(s->notes, session_rank(s, rank)->stage);
}

/* Reports the launcher's message about a lost rank, and the last position of the rank. A pid of 0
 * means that the rank has not begun or, with another launcher, that this process has not received its
 * block. */
static void report_lost(const struct session *s, uint32_t failed_rank, const char *how,
                        struct epa_error *err)
{
    const struct session_rank *rank = session_rank(s, failed_rank);
    size_t first = strcspn(how, ";"); /* further crashed ranks may follow */

    if (rank->pid == 0 && s->process_id.size > 0)
        (void)epa_fail(err, EPA_ERR_DIED, "%s", how);
    else
        (void)epa_fail(err, EPA_ERR_DIED, "%.*s: %s, iteration %llu%s", (int)first, how,
                       rank->pid == 0 ? "set-up" : stage_of_rank(s, failed_rank),
                       (unsigned long long)rank->iteration, how + first);
}

/* Names the rank that hangs. After all ranks were asked to stop, a live rank records its end; a hung
 * rank does not. On a busy machine live ranks may lack the time to record it; the message then names
 * several ranks, and the hung rank is one of them. */
static void report_silent(const struct session *s, struct epa_error *err)
{
    char first[sizeof(err->text)], names[sizeof(err->text) / 2] = "";
    uint32_t n = 0, last = 0;

    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);
        size_t at = strlen(names);

        if (rank->pid == 0 || __atomic_load_n(&rank->finished, __ATOMIC_ACQUIRE) != 0)
            continue;
        if (sizeof(names) - at > 48)
            snprintf(names + at, sizeof(names) - at, "%srank %u (pid %d)", n > 0 ? ", " : "", r,
                     rank->pid);
        last = r;
        n++;
    }
    if (n == 0)
        return;
    memcpy(first, err->text, sizeof(first));
    err->status = EPA_OK; /* epa_fail() keeps the first message of a failed status */
    (void)epa_fail(
        err, EPA_ERR_TIMEOUT, "%.*s%s%s did not stop after the request: %s, iteration %llu",
        (int)(sizeof(first) - strlen(names)) - 80, first, first[0] != '\0' ? "; " : "", names,
        stage_of_rank(s, last), (unsigned long long)session_rank(s, last)->iteration);
}

static void bound_facts(struct session_facts *facts)
{
    if (facts->n > SESSION_FACTS)
        facts->n = SESSION_FACTS;
    for (uint32_t i = 0; i < facts->n; i++) {
        facts->fact[i].key[sizeof(facts->fact[i].key) - 1] = '\0';
        facts->fact[i].value[sizeof(facts->fact[i].value) - 1] = '\0';
    }
}

/* Bounds all counts and strings: blocks from other hosts can contain any value. */
static void bound_blocks(struct session *s)
{
    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++) {
        struct session_rank *rank = session_rank(s, r);

        if (rank->samples > s->iterations)
            rank->samples = s->iterations;
        rank->key[sizeof(rank->key) - 1] = '\0';
        rank->text[sizeof(rank->text) - 1] = '\0';
        rank->host[sizeof(rank->host) - 1] = '\0';
        bound_facts(&rank->transport);
        bound_facts(&rank->device);
    }
}

static uint64_t grace_ns(const struct experiment *x)
{
    return is_on_hosts(x) ? host_grace_ns : device_grace_ns;
}

/* Ends the grace period of devices early: a rank that makes inputs or checks outputs does not look at
 * the request to stop, and has no kernel that must end first. */
static bool poll_launch(void *session, enum epa_poll_reason why)
{
    struct session *s = session;
    bool at_once = s->poll_launch != NULL && s->poll_launch(s->poll_arg, why);
    uint64_t now = epa_now_ns();

    if (why != EPA_POLL_STOPPING)
        return at_once;
    if (s->stopping_ns == 0)
        s->stopping_ns = now;
    return at_once || (strcmp(s->experiment->launcher.plugin->name, "fork") == 0 &&
                       now - s->stopping_ns >= host_grace_ns && session_runs_no_kernel(s));
}

/* CUDA does not work in child processes of a process that has used it. */
static enum epa_status check_fork(const struct experiment *x, struct epa_error *err)
{
    static bool used;

    if (backend_of(x)->memory != EPA_MEMORY_CUDA)
        return EPA_OK;
    if (strcmp(x->launcher.plugin->name, "fork") != 0)
        used = true;
    else if (used)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "launcher.name",
            "launcher: fork cannot use GPUs after another launcher has used them in this "
            "process; run its experiments first, or in a separate command");
    return EPA_OK;
}

enum epa_status session_run(struct session *s, int stop_fd, struct epa_error *err)
{
    const struct experiment *x = s->experiment;
    struct epa_error why = {EPA_OK, ""};
    uint32_t failed_rank = UINT32_MAX;
    const struct session_rank *failed;
    enum epa_status status = check_fork(x, err);
    FILE *own;

    if (status != EPA_OK)
        return status;
    s->stopping_ns = 0;
    own = stdout_lend();
    status = launcher_of(x)->launch(
        x->launcher.config,
        &(struct epa_launch){.ranks = x->problem.ranks,
                             .ranks_per_node = x->problem.ranks_per_node,
                             .threads = threads_of(x),
                             .stop_fd = stop_fd,
                             .poll_launch = poll_launch,
                             .poll_arg = s,
                             .grace_ns = grace_ns(x),
                             .timeout_ns = x->timeout_ns > set_up_ns ? x->timeout_ns : set_up_ns,
                             .rank_main = session_rank_main,
                             .arg = s,
                             .block = s->block,
                             .block_bytes = s->block_bytes,
                             .block_file = s->block_at != 0 ? status_page_file(s->status_page) : -1,
                             .block_at = s->block_at,
                             .fingerprint = s->fingerprint.data,
                             .failed_rank = &failed_rank,
                             .leaked_ranks = &s->leaked_ranks},
        &why);
    stdout_take_back(own);
    bound_blocks(s);
    s->rank_0_lost = status == EPA_ERR_DIED && failed_rank == 0 && s->process_id.rank != 0;
    if (status == EPA_OK)
        return EPA_OK;
    /* All processes of a launch end with the same status, although each knows only some ranks. */
    failed = first_failure(s, s->process_id.size > 0 ? status : EPA_OK);
    if (status == EPA_ERR_DIED && failed_rank < x->problem.ranks)
        report_lost(s, failed_rank, why.text, err);
    else if (status != EPA_ERR_INTERRUPTED && failed != NULL)
        (void)epa_fail_key(err, failed->status, failed->key, "%s", failed->text);
    else
        (void)epa_fail_key(err, status, why.key, "%s", why.text);
    error_add_remedy(err);
    if (err->status == EPA_ERR_TIMEOUT)
        report_silent(s, err);
    return err->status;
}

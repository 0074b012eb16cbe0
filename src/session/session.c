/* A session from plan to end: checks without ranks, memory shared with the ranks, launch, and the
 * choice of the reported failure. */
#include "session/session.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "config/experiment_show.h"
#include "session/preflight.h"
#include "session/rank.h"
#include "session/rank_puts.h"
#include "session/record.h"
#include "session/status.h"

/* Grace period: after the failure of a rank the others have this time to record their state. Ranks of
 * devices need more: their kernels have seconds to end, memory cannot be freed before, and the driver
 * needs time to free it. */
static const uint64_t host_grace_ns = 1000000000u, device_grace_ns = 10000000000u;

/* Minimum time limit of set-up, since libraries and devices start slowly. */
static const uint64_t set_up_ns = 3000000000u;

const char *session_verb_name(enum verb verb)
{
    static const char *const name[] = {
        [VERB_RUN] = "run", [VERB_BENCH] = "bench", [VERB_VERIFY] = "verify"};

    return name[verb];
}

const char *session_verb(const struct session *s)
{
    return session_verb_name(s->verb);
}

uint32_t session_slots(const struct session *s)
{
    if (s->verb == VERB_BENCH)
        return s->experiment->bench.input_sets;
    return s->verb == VERB_VERIFY && s->experiment->verify.order == ORDER_PIPELINED ? 2 : 1;
}

bool session_checks(const struct session *s)
{
    return s->verb != VERB_BENCH || s->experiment->bench.check;
}

bool session_is_open(const struct session *s)
{
    return s->verb == VERB_BENCH && s->experiment->bench.arrivals != ARRIVALS_CLOSED;
}

uint32_t session_calls(const struct session *s)
{
    return s->experiment->bench.cache == CACHE_COLD ? 1 : s->experiment->bench.calls_per_graph;
}

/* Checks that the algorithm has the capabilities that verify needs for the experiment. */
static enum epa_status check_verify(const struct experiment *x, struct epa_error *err)
{
    const struct verify_options *v = &x->verify;
    const struct epa_footprint *f = &x->footprint;
    const char *name = x->algorithm.plugin->name;

    if (v->order == ORDER_PIPELINED && f->in_flight < 2)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "verify.order: pipelined needs two open dispatches; %s with these options "
                        "allows one",
                        name);
    if (v->order == ORDER_DISCARD && !f->discards)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "verify.order: discard: %s cannot discard", name);
    if (v->order == ORDER_AGAIN && !f->combines_again)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "verify.order: again: %s cannot combine again",
                        name);
    if ((v->guard || v->epoch != 0) && !is_on_hosts(x))
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "verify.guard and verify.epoch need host memory; set backend: host");
    return EPA_OK;
}

/* Maps memory on the status page if the page exists and can grow, or else anonymous memory. */
static void *map_shared(struct session *s, size_t bytes, uint64_t *at)
{
    void *p = s->status_page != NULL ? status_page_map(s->status_page, bytes, at) : NULL;

    if (p != NULL)
        return p;
    *at = 0;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static void unmap_shared(struct session *s, void *p, size_t bytes, uint64_t at)
{
    if (at != 0)
        status_page_unmap(s->status_page, p, bytes);
    else
        munmap(p, bytes);
}

struct shared {
    _Alignas(64) char stats[OP_STATS_BYTES];
    struct session_notes notes;
};

/* A block of verify contains no times. */
size_t session_block_bytes(const struct session *s)
{
    uint64_t samples = s->verb == VERB_VERIFY ? 0 : s->iterations;
    size_t line = _Alignof(struct session_rank);
    size_t bytes =
        sizeof(struct session_rank) + (size_t)(SESSION_STAGES * samples) * sizeof(double);

    bytes = (bytes + line - 1) / line * line;
    return s->trace.lanes == 0 ? bytes : bytes + record_bytes(&s->trace);
}

static enum epa_status map_all(struct session *s, struct epa_error *err)
{
    uint32_t ranks = s->experiment->ranks;
    struct shared *shared = map_shared(s, sizeof(*shared), &s->shared_at);

    s->block_bytes = session_block_bytes(s);
    s->block = map_shared(s, ranks * s->block_bytes, &s->block_at);
    if (shared != NULL) {
        s->stats = shared->stats;
        s->notes = &shared->notes;
    }
    if (shared == NULL || s->block == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u samples of %u ranks: %s",
                        s->iterations, ranks, strerror(errno));
    return EPA_OK;
}

/* Finds the rank of this process, and writes the fingerprint: the text that must be identical in all
 * processes of the launch. */
static enum epa_status find_process_id(struct session *s, struct epa_error *err)
{
    const struct experiment *x = s->experiment;

    text_add(&s->fingerprint, "epa2a %s, plugin ABI %u\n", EPA2A_VERSION, EPA_ABI);
    text_add(&s->fingerprint, "verb: %s\n", session_verb(s));
    experiment_show(x, false, &s->fingerprint);
    if (launcher_of(x)->process_id == NULL)
        return EPA_OK;
    return launcher_of(x)->process_id(x->launcher.config, &s->process_id, err);
}

static void count_iterations(struct session *s)
{
    const struct experiment *x = s->experiment;

    s->warmup = s->verb == VERB_BENCH ? x->bench.warmup : 0;
    s->iterations = s->verb == VERB_BENCH ? x->bench.iterations
                    : s->verb == VERB_RUN ? x->run.iterations
                                          : x->verify.iterations;
}

enum { TRACE_EVENTS = 1 << 16 }; /* maximum of an algorithm's own events; it drops further events */

/* Sizes the trace record: a lane per thread, with room for twice the events of three exchanges with
 * each other rank. Side lanes hold the events of some ms of a busy proxy, and of a call of all kernels
 * that fit a GPU. */
static void shape_trace(struct session *s)
{
    const struct experiment *x = s->experiment;
    uint32_t own = (uint32_t)(s->footprint.trace_events < TRACE_EVENTS ? s->footprint.trace_events
                                                                       : TRACE_EVENTS);

    if (x->profile.file == NULL)
        return;
    s->trace = (struct record_shape){
        .lanes = threads_of(x), .turns = x->profile.iterations, .room = 128 + 16 * x->ranks + own};
    if (x->between.plugin != NULL)
        s->trace.beside[EPA_TRACE_PROXY] = 1u << 15;
    if (backend_of(x)->memory == EPA_MEMORY_CUDA)
        s->trace.beside[EPA_TRACE_KERNELS] = 1u << 16;
}

bool session_in_use(const struct session *s)
{
    return s != NULL && s->leaked_ranks > 0;
}

void session_destroy(struct session *s)
{
    if (s == NULL)
        return;
    if (s->block != NULL)
        unmap_shared(s, s->block, s->experiment->ranks * s->block_bytes, s->block_at);
    if (s->stats != NULL) /* its first member */
        unmap_shared(s, s->stats, sizeof(struct shared), s->shared_at);
    text_free(&s->fingerprint);
    if (s->source != NULL)
        session_operation(s)->close(s->source);
    free(s);
}

/* Returns true if another launcher starts the ranks and their hosts are still unknown. */
static bool are_elsewhere(const struct session *s)
{
    return launcher_of(s->experiment)->process_id != NULL && s->process_id.size == 0;
}

/* verify.stop: see rank_halt.c. */
static enum epa_status check_stop(const struct session *s, struct epa_error *err)
{
    const struct experiment *x = s->experiment;

    if (x->verify.stop == STOP_NONE)
        return EPA_OK;
    if (x->ranks == 1)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "verify.stop: needs two ranks or more");
    if (launcher_of(x)->process_id != NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "verify.stop: needs ranks that epa2a starts itself, on one host");
    return EPA_OK;
}

/* Checks that this machine has the devices and limits that the transports need. */
static enum epa_status check_machine(const struct experiment *x, struct epa_error *err)
{
    const struct epa_transport_plugin *between = (const void *)x->between.plugin;
    enum epa_status status = EPA_OK;

    if (transport_of(x)->check != NULL)
        status = transport_of(x)->check(x->transport.config, err);
    if (status == EPA_OK && between != NULL && between->check != NULL)
        status = between->check(x->between.config, err);
    return status;
}

/* Real experts with integers have all of their outputs compared, so verify takes them unless hidden
 * states come from a file. */
static void resolve_values(enum verb verb, struct experiment *x)
{
    bool integers = verb == VERB_VERIFY && x->routing.hidden_states == NULL;

    if (x->expert.kind == EXPERT_MLP && x->expert.values == EXPERT_VALUES_AUTO)
        x->expert.values = integers ? EXPERT_VALUES_INTEGERS : EXPERT_VALUES_RANDOM;
}

static enum epa_status create_session(struct status_page *status_page, uint64_t *memory_passed,
                                      const struct experiment *x, enum verb verb, bool runs,
                                      struct session **out, struct epa_error *err)
{
    struct session *s = memory_alloc(1, sizeof(*s));
    FILE *own = stdout_lend();
    enum epa_status status = EPA_OK;

    s->own = *x;
    resolve_values(verb, &s->own);
    s->experiment = x = &s->own;
    s->verb = verb;
    s->status_page = status_page;
    s->memory_passed = memory_passed;
    s->footprint = x->footprint;
    /* From here on private_bytes is the memory of a whole rank: each further thread is a worker. */
    s->footprint.private_bytes += s->footprint.worker_bytes * (threads_of(x) - 1);
    count_iterations(s);
    if (runs)
        status = find_process_id(s, err);
    if (status == EPA_OK && runs)
        status = check_machine(x, err);
    if (status == EPA_OK && verb == VERB_VERIFY)
        status = check_verify(x, err);
    if (status == EPA_OK && verb == VERB_VERIFY)
        status = check_stop(s, err);
    if (status == EPA_OK) {
        preflight_scratch(s);
        shape_trace(s);
    }
    if (status == EPA_OK && session_operation(s)->open != NULL)
        status = session_operation(s)->open(x, &s->source, err);
    if (status == EPA_OK && !are_elsewhere(s))
        status = preflight_memory("", s, err);
    if (status == EPA_OK && runs) {
        session_plan_puts(s);
        status = map_all(s, err);
    }
    stdout_take_back(own);
    if (status == EPA_OK) {
        *out = s;
        return EPA_OK;
    }
    session_destroy(s);
    return status;
}

enum epa_status session_plan(const struct experiment *x, enum verb verb, struct session **out,
                             struct epa_error *err)
{
    return create_session(NULL, NULL, x, verb, false, out, err);
}

enum epa_status session_create_on(struct status_page *status_page, const struct experiment *x,
                                  enum verb verb, struct session **out, struct epa_error *err)
{
    return create_session(status_page, NULL, x, verb, true, out, err);
}

enum epa_status session_check(const struct experiment *x, enum verb verb, uint64_t *memory_passed,
                              struct session **out, struct epa_error *err)
{
    return create_session(NULL, memory_passed, x, verb, true, out, err);
}

struct status_page *session_status_page(const struct session *s, struct status_page_run *out)
{
    if (s->block_at == 0 || s->shared_at == 0)
        return NULL;
    out->verb = s->verb;
    out->ranks = s->experiment->ranks;
    out->place_rank = s->process_id.rank;
    out->place_size = s->process_id.size;
    out->warmup = s->warmup;
    out->iterations = s->iterations;
    out->block_at = s->block_at;
    out->block_bytes = s->block_bytes;
    out->notes_at = s->shared_at + offsetof(struct shared, notes);
    return s->status_page;
}

/* Returns the rank that failed first for a reason of its own, with the status `decided` unless that is
 * EPA_OK. Returns NULL if no rank recorded such a failure. */
static const struct session_rank *first_failure(const struct session *s, enum epa_status decided)
{
    const struct session_rank *first = NULL;

    for (uint32_t r = 0; r < s->experiment->ranks; r++) {
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

const char *session_stage(const struct session_notes *notes, uint32_t stage)
{
    if (notes->n_stages == 0)
        return "set-up";
    if (stage == SESSION_PAIR)
        return "dispatch and combine";
    return stage < notes->n_stages ? notes->stage[stage] : "between stages";
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

    for (uint32_t r = 0; r < s->experiment->ranks; r++) {
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
    for (uint32_t r = 0; r < s->experiment->ranks; r++) {
        struct session_rank *rank = session_rank(s, r);

        if (rank->samples > s->iterations)
            rank->samples = s->iterations;
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

/* CUDA does not work in child processes of a process that has used it. */
static enum epa_status check_fork(const struct experiment *x, struct epa_error *err)
{
    static bool used;

    if (backend_of(x)->memory != EPA_MEMORY_CUDA)
        return EPA_OK;
    if (strcmp(x->launcher.plugin->name, "fork") != 0)
        used = true;
    else if (used)
        return epa_fail(
            err, EPA_ERR_CONFIG,
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
    own = stdout_lend();
    status = launcher_of(x)->launch(
        x->launcher.config,
        &(struct epa_launch){.ranks = x->ranks,
                             .ranks_per_node = x->ranks_per_node,
                             .threads = threads_of(x),
                             .stop_fd = stop_fd,
                             .poll_launch = s->poll_launch,
                             .poll_arg = s->poll_arg,
                             .grace_ns = grace_ns(x),
                             .timeout_ns = x->timeout_ns > set_up_ns ? x->timeout_ns : set_up_ns,
                             .rank_main = rank_main,
                             .arg = s,
                             .block = s->block,
                             .block_bytes = s->block_bytes,
                             .fingerprint = s->fingerprint.data,
                             .failed_rank = &failed_rank,
                             .leaked_ranks = &s->leaked_ranks},
        &why);
    stdout_take_back(own);
    bound_blocks(s);
    if (status == EPA_OK)
        return EPA_OK;
    /* All processes of a launch end with the same status, although each knows only some ranks. */
    failed = first_failure(s, s->process_id.size > 0 ? status : EPA_OK);
    if (status == EPA_ERR_DIED && failed_rank < x->ranks)
        report_lost(s, failed_rank, why.text, err);
    else if (status != EPA_ERR_INTERRUPTED && failed != NULL)
        (void)epa_fail(err, failed->status, "%s", failed->text);
    else
        (void)epa_fail(err, status, "%s", why.text);
    if (err->status == EPA_ERR_TIMEOUT)
        report_silent(s, err);
    return err->status;
}

void session_keep_fact(void *facts, const char *key, const char *value)
{
    struct session_facts *to = facts;
    struct session_fact *fact = &to->fact[to->n];

    if (to->n == SESSION_FACTS)
        return;
    snprintf(fact->key, sizeof(fact->key), "%s", key);
    snprintf(fact->value, sizeof(fact->value), "%s", value);
    to->n++;
}

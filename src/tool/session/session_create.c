/* Creates a session: checks without ranks, and the memory that ranks share. */
#include "session/session_create.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "caller/caller_check.h"
#include "config/experiment_show.h"
#include "experiment/check_operation.h"
#include "session/preflight.h"
#include "session/rank_puts.h"
#include "session/record.h"
#include "session/status_page.h"

/* On hosts epa2a.h repeats a dispatch where the algorithm cannot discard or combine again. */
static bool library_repeats(const struct experiment *x)
{
    return x->api != API_NONE && is_on_hosts(x);
}

/* Checks that the algorithm has the capabilities that verify needs for the experiment. */
static enum epa_status check_verify(const struct experiment *x, struct epa_error *err)
{
    const struct verify_options *v = &x->verify;
    const struct epa_footprint *f = &x->footprint;
    const char *name = x->algorithm.plugin->name;

    if (v->order == ORDER_PIPELINED && f->in_flight < 2)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "verify.order",
            "verify.order: pipelined needs two open dispatches; %s with these options "
            "allows one",
            name);
    if (v->order == ORDER_DISCARD && !f->discards && !library_repeats(x))
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "verify.order",
                            "verify.order: discard: %s cannot discard", name);
    if (v->order == ORDER_AGAIN && !f->combines_again && !library_repeats(x))
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "verify.order",
                            "verify.order: again: %s cannot combine again", name);
    if ((v->guard || v->epoch != 0) && !is_on_hosts(x))
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "verify.guard verify.epoch",
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

static enum epa_status map_all(struct session *s, struct epa_error *err)
{
    uint32_t ranks = s->experiment->problem.ranks;
    struct shared *shared = map_shared(s, sizeof(*shared), &s->shared_at);

    s->block_bytes = session_block_bytes(s);
    s->block = map_shared(s, ranks * s->block_bytes, &s->block_at);
    if (shared != NULL) {
        s->stats = shared->stats;
        s->notes = &shared->notes;
    }
    if (shared == NULL || s->block == NULL)
        return epa_fail_errno(err, EPA_ERR_NOMEM, errno, "no memory for %u samples of %u ranks: %s",
                              s->iterations, ranks, strerror(errno));
    return EPA_OK;
}

/* Finds the rank of this process, and writes the fingerprint: the text that must be identical in all
 * processes of the launch. */
static enum epa_status find_process_id(struct session *s, struct epa_error *err)
{
    const struct experiment *x = s->experiment;

    text_add(&s->fingerprint, "epa2a %s, plugin ABI %u\n", EPA2A_RELEASE, EPA_ABI);
    text_add(&s->fingerprint, "verb: %s\n", session_verb(s));
    experiment_show(x, false, &s->fingerprint);
    if (launcher_of(x)->process_id == NULL)
        return EPA_OK;
    return launcher_of(x)->process_id(x->launcher.config, &s->process_id, err);
}

static void count_planned_iterations(struct session *s)
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
    s->trace = (struct record_shape){.lanes = threads_of(x),
                                     .turns = x->profile.iterations,
                                     .room = 128 + 16 * x->problem.ranks + own};
    if (x->between.plugin != NULL)
        s->trace.beside[EPA_TRACE_PROXY] = 1u << 15;
    if (backend_of(x)->memory == EPA_MEMORY_CUDA)
        s->trace.beside[EPA_TRACE_KERNELS] = 1u << 16;
}

void session_destroy(struct session *s)
{
    if (s == NULL)
        return;
    if (s->block != NULL && !s->rank_0_lost) /* rank 1 may still read the block of this rank */
        unmap_shared(s, s->block, s->experiment->problem.ranks * s->block_bytes, s->block_at);
    if (s->stats != NULL) /* its first member */
        unmap_shared(s, s->stats, sizeof(struct shared), s->shared_at);
    text_free(&s->fingerprint);
    pin_plan_finish(&s->cores);
    if (s->source != NULL)
        session_operation(s)->source_close(s->source);
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
    if (x->problem.ranks == 1)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "verify.stop",
                            "verify.stop: needs two ranks or more");
    if (launcher_of(x)->process_id != NULL)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "verify.stop",
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
    bool integers = verb == VERB_VERIFY && x->problem.routing.hidden_states == NULL;

    if (x->problem.expert.kind == EXPERT_MLP && x->problem.expert.values == EXPERT_VALUES_AUTO)
        x->problem.expert.values = integers ? EXPERT_VALUES_INTEGERS : EXPERT_VALUES_RANDOM;
}

/* Adds the memory of the application, and in bench the memory of the algorithm without epa2a.h. */
static void add_caller_memory(struct session *s)
{
    const struct experiment *x = s->experiment;
    struct epa_footprint *f = &s->footprint;
    bool twice = x->api != API_NONE && s->verb == VERB_BENCH;
    uint64_t bytes = caller_bytes(x) + (twice ? f->heap_bytes : 0);

    if (is_on_hosts(x))
        f->private_bytes += bytes;
    else
        f->device_bytes += bytes + (twice ? f->device_bytes : 0);
}

static enum epa_status create_session(struct status_page *status_page, uint64_t *memory_passed,
                                      const struct experiment *x, enum verb verb, bool runs,
                                      struct session **out, struct epa_error *err)
{
    struct session *s = memory_alloc(1, sizeof(*s));
    const struct op_advice advice = {experiment_takes, &s->own};
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
    count_planned_iterations(s);
    if (runs)
        (void)pin_plan_init(&s->cores, PIN_NONE, 1, 1,
                            NULL); /* without it checks have one thread */
    if (runs && find_process_id(s, err) != EPA_OK)
        status = epa_fail_at(err, "launcher.name");
    if (status == EPA_OK && runs && check_machine(x, err) != EPA_OK)
        status = epa_fail_at(err, "transport.name");
    if (status == EPA_OK)
        status = caller_check(x, err);
    if (status == EPA_OK && verb == VERB_VERIFY)
        status = check_verify(x, err);
    if (status == EPA_OK && verb == VERB_VERIFY)
        status = check_stop(s, err);
    if (status == EPA_OK) {
        preflight_scratch(s);
        add_caller_memory(s);
        shape_trace(s);
    }
    if (status == EPA_OK && session_operation(s)->source_open != NULL)
        status = session_operation(s)->source_open(&x->problem, &advice, &s->source, err);
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
    error_add_remedy(err);
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
    out->ranks = s->experiment->problem.ranks;
    out->place_rank = s->process_id.rank;
    out->place_size = s->process_id.size;
    out->warmup = s->warmup;
    out->iterations = s->iterations;
    out->block_at = s->block_at;
    out->block_bytes = s->block_bytes;
    out->notes_at = s->shared_at + offsetof(struct shared, notes);
    return s->status_page;
}

/* Bootstrap of the library over the callback of the application, a page of the host, and connections
 * between hosts. */
#include "boot/boot.h"

#include <errno.h>
#include <net/if.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "boot/bootstrap.h"
#include "boot/close_open.h"
#include "boot/exchange.h"
#include "boot/meet.h"
#include "boot/net.h"
#include "boot/peers.h"
#include "boot/star.h"
#include "boot/world.h"

enum { GROUP_CLOSE_MS = 100 }; /* from the closed sockets of a dying process to its end */

static const uint64_t check_ns = 10000000, log_ns = 5000000000;

struct callback {
    int (*allgather)(void *arg, const void *mine, size_t bytes, void *all);
    void *arg;
    size_t frame_bytes;
    uint32_t rank;
};

/* Thread that sleeps until another rank is lost or has sent a failure. */
struct watch {
    pthread_t thread;
    bool started;
    uint32_t rank; /* of this process */
    struct star *star;
    struct control *page;
};

struct boot {
    struct bootstrap bootstrap; /* first member, so that all three pointers convert */
    struct callback callback;
    struct star *star;         /* NULL: all ranks are on this host, or cannot connect */
    struct watch watch;        /* of `star` */
    struct exchange set_up;    /* over the callback, or over the star in jobs without callback */
    struct exchange running;   /* over the page of the host or the star */
    struct exchange *exchange; /* `running`; `set_up` if several hosts have only the callback */
    struct world_facts facts;
    uint32_t *node;           /* [ranks] of a world with divided hosts; NULL: the nodes are hosts */
    struct control_card card; /* of the page */
    bool attached;            /* bootstrap.control is the page */
    struct peers peers;
    struct epa_error
        last; /* reason of the last failed call of base.allgather() or base.barrier() */
    struct epa_wait_observer observer;
    uint32_t checking;   /* 1: a thread uses `peers` */
    uint64_t checked_ns; /* time of the last check of `peers` */
    uint64_t logged_ns;  /* waiting time at the last report to `log` */
    void (*log)(void *arg, int level, const char *text);
    void *log_arg;
};

static struct boot *boot_of(struct epa_bootstrap *base)
{
    return (struct boot *)base;
}

/* ---- failures ---- */

static bool rank_has_left(const struct boot *boot, uint32_t rank)
{
    enum epa_status status;

    return control_returned(boot->bootstrap.control, rank, &status);
}

/* Returns true if all ranks of a process have left the group. */
static bool process_has_left(void *arg, const struct peer_process *process)
{
    const struct boot *boot = arg;

    for (uint32_t r = process->rank; r < boot->bootstrap.base.world.size; r++)
        if (boot->facts.pid[r] == process->pid && !rank_has_left(boot, r))
            return false;
    return true;
}

/* Fails the group if a process of this host has died. Another thread that checks does the work. */
static void check_peers(struct boot *boot, int wait_ms)
{
    const struct peer_process *dead;
    char text[64];

    /* Acquire and release: one thread at a time uses `peers`. */
    if (!boot->attached || __atomic_exchange_n(&boot->checking, 1, __ATOMIC_ACQUIRE) != 0)
        return;
    dead = peers_find_dead(&boot->peers, wait_ms, process_has_left, boot);
    if (dead != NULL) {
        snprintf(text, sizeof(text), "rank %u (pid %d) died", dead->rank, dead->pid);
        control_fail(boot->bootstrap.control, EPA_ERR_DIED, text);
    }
    __atomic_store_n(&boot->checking, 0, __ATOMIC_RELEASE);
}

void boot_fail(struct epa_bootstrap *base, enum epa_status status, const char *text)
{
    struct boot *boot = boot_of(base);
    struct epa_error failure;

    if (!epa_aborted(base) && (status == EPA_ERR_SYSTEM || status == EPA_ERR_TIMEOUT))
        check_peers(boot, status == EPA_ERR_SYSTEM ? GROUP_CLOSE_MS : 0);
    control_fail(boot->bootstrap.control, status, text);
    if (boot->star != NULL && control_failure(boot->bootstrap.control, &failure))
        star_send_abort(boot->star, &failure);
}

enum epa_status boot_check(struct epa_bootstrap *base, struct epa_error *err)
{
    struct boot *boot = boot_of(base);
    struct epa_error failure = {.status = EPA_ERR_ABORTED, .text = "another rank failed"};

    if (!epa_aborted(base))
        check_peers(boot, 0);
    if (!epa_aborted(base))
        return EPA_OK;
    (void)control_failure(boot->bootstrap.control, &failure);
    return epa_fail(err, failure.status, "%s", failure.text);
}

/* Returns the status of a call that the failure of another rank has interrupted, with its reason. */
static enum epa_status explain_abort(struct epa_bootstrap *base, struct epa_error *err)
{
    struct epa_error failure = {EPA_OK, ""};
    enum epa_status status = boot_check(base, &failure);

    return epa_fail(err, status == EPA_ERR_DIED ? status : EPA_ERR_ABORTED, "%s", failure.text);
}

static void abort_group(struct epa_bootstrap *base)
{
    char text[64];

    snprintf(text, sizeof(text), "rank %u aborted", base->world.rank);
    boot_fail(base, EPA_ERR_ABORTED, text);
}

static void log_wait(struct boot *boot, const struct epa_wait_state *wait)
{
    char text[200], peer[32] = "another rank";

    if (wait->peer != EPA_WAIT_NOBODY)
        snprintf(peer, sizeof(peer), "rank %u", wait->peer);
    snprintf(text, sizeof(text), "rank %u has waited %.0f s for %s: value %llu, expected %llu.",
             boot->bootstrap.base.world.rank, (double)wait->waited_ns * 1e-9, peer,
             (unsigned long long)wait->seen, (unsigned long long)wait->wanted);
    boot->log(boot->log_arg, 0, text);
}

/* Any thread of the rank calls this function every millisecond of a long wait. */
static void on_wait(struct epa_wait_observer *observer, const struct epa_wait_state *wait)
{
    struct boot *boot = (struct boot *)((char *)observer - offsetof(struct boot, observer));
    uint64_t now = epa_now_ns();
    /* Relaxed: a lost update only repeats a check. */
    uint64_t before = __atomic_load_n(&boot->checked_ns, __ATOMIC_RELAXED);
    uint64_t logged = __atomic_load_n(&boot->logged_ns, __ATOMIC_RELAXED);

    if (wait == NULL || wait->waited_ns < logged) {
        __atomic_store_n(&boot->logged_ns, 0, __ATOMIC_RELAXED);
        logged = 0;
    }
    if (wait == NULL)
        return;
    if (now - before >= check_ns) {
        __atomic_store_n(&boot->checked_ns, now, __ATOMIC_RELAXED);
        check_peers(boot, 0);
    }
    if (boot->log != NULL && wait->waited_ns - logged >= log_ns &&
        __atomic_compare_exchange_n(&boot->logged_ns, &logged, wait->waited_ns, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        log_wait(boot, wait);
}

/* ---- failures of other hosts ---- */

/* The thread receives no signals, so handlers of the application run in threads of the application. */
static void block_signals(void)
{
    uint64_t all = UINT64_MAX;

    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof(all));
}

static void *watch_star(void *arg)
{
    struct watch *watch = arg;
    struct epa_error found = {EPA_OK, ""};

    block_signals();
    if (!star_watch(watch->star, &found))
        return NULL;
    control_fail(watch->page, found.status, found.text);
    if (watch->rank == 0)
        star_send_abort(watch->star, &found);
    return NULL;
}

static enum epa_status start_watch(struct boot *boot, struct epa_error *err)
{
    struct watch *watch = &boot->watch;
    int error;

    *watch = (struct watch){
        .rank = boot->set_up.params.rank, .star = boot->star, .page = boot->bootstrap.control};
    error = pthread_create(&watch->thread, NULL, watch_star, watch);
    if (error != 0)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, error,
                              "bootstrap: no thread for failures of other hosts: %s",
                              strerror(error));
    watch->started = true;
    return EPA_OK;
}

static void stop_watch(struct watch *watch)
{
    if (!watch->started)
        return;
    star_end_watch(watch->star);
    pthread_join(watch->thread, NULL);
    watch->started = false;
}

/* ---- gathering ---- */

static enum epa_status gather_by_callback(void *arg, const void *mine, size_t bytes, void *all,
                                          struct epa_error *err)
{
    const struct callback *c = arg;
    int got = c->allgather(c->arg, mine, c->frame_bytes, all);

    (void)bytes;
    if (got != 0)
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "the allgather callback of the application returned %d on rank %u", got,
                        c->rank);
    return EPA_OK;
}

static enum epa_status gather_by_star(void *arg, const void *mine, size_t bytes, void *all,
                                      struct epa_error *err)
{
    struct boot *boot = arg;
    struct epa_error found = {EPA_OK, ""}, failure;
    enum epa_status status = star_gather(
        boot->star, mine, all, boot->attached ? boot->bootstrap.base.aborted : NULL, &found);

    (void)bytes;
    if (status == EPA_OK)
        return EPA_OK;
    if (found.status != EPA_OK && boot->attached)
        control_fail(boot->bootstrap.control, found.status, found.text);
    if (boot->attached && control_failure(boot->bootstrap.control, &failure))
        found = failure;
    star_send_abort(boot->star, &found);
    return epa_fail(epa_awaits_as(err, &found), status, "%s", found.text);
}

/* One rank without callback. */
static enum epa_status gather_alone(void *arg, const void *mine, size_t bytes, void *all,
                                    struct epa_error *err)
{
    (void)arg, (void)err;
    memcpy(all, mine, bytes);
    return EPA_OK;
}

static enum epa_status gather_by_page(void *arg, const void *mine, size_t bytes, void *all,
                                      struct epa_error *err)
{
    struct boot *boot = arg;
    struct bootstrap *b = &boot->bootstrap;
    enum epa_status status;

    b->late = UINT32_MAX;
    status = bootstrap_gather(b, mine, bytes, all, boot->running.params.frame_bytes);
    if (status == EPA_ERR_TIMEOUT && b->late != UINT32_MAX)
        return epa_fail(epa_awaits(err, b->late), status,
                        "rank %u waited %.3g s for rank %u (pid %d)", b->base.world.rank,
                        (double)b->late_ns * 1e-9, b->late, boot->facts.pid[b->late]);
    if (status == EPA_ERR_ABORTED)
        return explain_abort(&b->base, err);
    return status;
}

static enum epa_status boot_allgather(struct epa_bootstrap *base, const void *mine, size_t bytes,
                                      void *all)
{
    struct boot *boot = boot_of(base);

    boot->last = (struct epa_error){EPA_OK, ""};
    if (epa_aborted(base))
        return explain_abort(base, &boot->last);
    return exchange_call(boot->exchange, EPA_OK, mine, bytes, all, false, &boot->last);
}

static enum epa_status boot_barrier(struct epa_bootstrap *base)
{
    return boot_allgather(base, NULL, 0, NULL);
}

static void boot_explain(struct epa_bootstrap *base, struct epa_error *err)
{
    const struct boot *boot = boot_of(base);

    if (boot->last.status != EPA_OK)
        (void)epa_fail(epa_awaits_as(err, &boot->last), boot->last.status, "%s", boot->last.text);
}

enum epa_status boot_agree(struct epa_bootstrap *base, enum epa_status status,
                           struct epa_error *err)
{
    if (epa_aborted(base)) {
        if (err != NULL)
            err->status = EPA_OK; /* the first failure of the group replaces the message */
        return explain_abort(base, err);
    }
    return exchange_agree(boot_of(base)->exchange, status, false, err);
}

void boot_begin(struct epa_bootstrap *base)
{
    boot_of(base)->exchange->agreed = false;
}

/* ---- creation ---- */

static enum epa_status check_ranks(const struct boot_params *params, struct epa_error *err)
{
    if (params->ranks == 0 || params->ranks > BOOT_RANKS_MAX)
        return epa_fail(err, EPA_ERR_CONFIG, "%u ranks; the number of ranks must be 1 to %d",
                        params->ranks, BOOT_RANKS_MAX);
    if (params->rank >= params->ranks)
        return epa_fail(err, EPA_ERR_CONFIG, "rank %u is not below the number of ranks, %u",
                        params->rank, params->ranks);
    return EPA_OK;
}

/* Prepares the exchange over the callback; without a callback for one rank. */
static enum epa_status init_set_up(const struct boot_params *params, struct callback *callback,
                                   struct exchange *out, struct epa_error *err)
{
    struct exchange_params p = {.rank = params->rank,
                                .ranks = params->ranks,
                                .version = params->version,
                                .frame_bytes = EXCHANGE_FRAME,
                                .gather =
                                    params->allgather != NULL ? gather_by_callback : gather_alone,
                                .arg = callback};
    enum epa_status status = check_ranks(params, err);

    *callback = (struct callback){.allgather = params->allgather,
                                  .arg = params->arg,
                                  .frame_bytes = EXCHANGE_FRAME,
                                  .rank = params->rank};
    return status == EPA_OK ? exchange_init(out, &p, err) : status;
}

/* Finds rank, number of ranks and the contact of rank 0 in the environment. */
static enum epa_status find_job(struct boot_params *params, struct contact *contact,
                                struct epa_error *err)
{
    static const struct contact_options options = {.caller = "without an allgather callback"};
    struct process_job job;
    enum epa_status status = contact_find_job(options.caller, &job, err);

    if (status != EPA_OK)
        return status;
    if (params->ranks != 0 &&
        (params->ranks != job.process_id.size || params->rank != job.process_id.rank))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "the parameters name rank %u of %u, the environment names rank %u of %u "
                        "(%s); set both fields to 0, or set an allgather callback",
                        params->rank, params->ranks, job.process_id.rank, job.process_id.size,
                        job.process_id.source);
    params->rank = job.process_id.rank;
    params->ranks = job.process_id.size;
    return contact_find(&options, &job, contact, err);
}

/* Connects the ranks without a callback. */
static enum epa_status connect_star(struct boot_params *params, struct boot *boot,
                                    struct epa_error *err)
{
    struct exchange_params p = {.version = params->version,
                                .frame_bytes = EXCHANGE_FRAME,
                                .gather = gather_by_star,
                                .arg = boot};
    struct contact contact;
    enum epa_status status = find_job(params, &contact, err);
    int listener = -1;

    if (status == EPA_OK)
        status = check_ranks(params, err);
    if (status != EPA_OK || params->ranks == 1)
        return status == EPA_OK ? init_set_up(params, &boot->callback, &boot->set_up, err) : status;
    p.rank = params->rank;
    p.ranks = params->ranks;
    status = exchange_init(&boot->set_up, &p, err);
    if (status == EPA_OK && p.rank == 0)
        status = net_listen(&contact, NULL, &listener, err);
    if (status == EPA_OK)
        status = star_create(&(struct star_params){.rank = p.rank,
                                                   .ranks = p.ranks,
                                                   .contact = &contact,
                                                   .listener = listener,
                                                   .frame_bytes = EXCHANGE_FRAME,
                                                   .connect_ns = params->timeout_ns,
                                                   .timeout_ns = params->timeout_ns},
                             &boot->star, err);
    close_open(listener);
    return status;
}

/* Connects the ranks of several hosts, which the callback has brought together. Without connections the
 * group continues with the callback. */
static enum epa_status connect_hosts(struct boot *boot, uint64_t timeout_ns, struct epa_error *err)
{
    struct epa_error why = {EPA_OK, ""};
    char text[sizeof(why.text) + 256];
    enum epa_status status =
        meet_other_hosts(&boot->set_up, boot->facts.interface, timeout_ns, &boot->star, &why, err);

    if (status == EPA_OK && boot->star == NULL && boot->log != NULL) {
        snprintf(
            text, sizeof(text),
            "The ranks of different hosts cannot connect (%s), so a failure of a rank ends the "
            "waits of ranks of other hosts by their time-outs.",
            why.text);
        boot->log(boot->log_arg, 1, text);
    }
    return status;
}

/* Prepares gathering over the page if all ranks are on this host, or else over the star. */
static enum epa_status init_running(struct boot *boot, struct epa_error *err)
{
    struct exchange_params p = boot->set_up.params;

    boot->exchange = &boot->set_up;
    if (boot->facts.nodes == 1)
        p.frame_bytes = bootstrap_slot_bytes(p.ranks);
    else if (boot->star == NULL)
        return EPA_OK;
    p.gather = boot->facts.nodes == 1 ? gather_by_page : gather_by_star;
    p.arg = boot;
    boot->exchange = &boot->running;
    return exchange_init(&boot->running, &p, err);
}

/* The lowest rank of the node creates the page; the other ranks attach to the page. */
static enum epa_status share_page(struct boot *boot, struct epa_error *err)
{
    const struct exchange_params *p = &boot->set_up.params;
    struct control **page = &boot->bootstrap.control;
    bool leads = boot->facts.leader == p->rank;
    struct control_card *cards = calloc(p->ranks, sizeof(*cards));
    struct control_card own = {.fd = -1};
    enum epa_status status = EPA_OK;

    if (cards == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "bootstrap: no memory for %u ranks", p->ranks);
    if (status == EPA_OK && leads)
        status = control_share(p->ranks, boot->facts.in_leader, page, &own, err);
    status = exchange_call(&boot->set_up, status, &own, sizeof(own), cards, false, err);
    if (status != EPA_OK) {
        control_destroy(*page); /* no other rank has the card */
        *page = NULL;
    } else {
        boot->card = cards[boot->facts.leader];
        if (!leads)
            status = control_attach(p->ranks, &boot->card, page, err);
        boot->attached = status == EPA_OK;
        if (status == EPA_OK)
            status = peers_open(&boot->peers, p->rank, p->ranks, boot->facts.pid, err);
        if (status == EPA_OK)
            status = init_running(boot, err);
        if (status == EPA_OK && boot->star != NULL && boot->facts.nodes > 1)
            status = start_watch(boot, err);
        status = exchange_agree(&boot->set_up, status, true, err);
    }
    if (own.fd >= 0)
        close(own.fd);
    free(cards);
    return status;
}

static void init_base(struct boot *boot, const struct boot_params *params,
                      const struct epa_world *world)
{
    struct control *page = boot->bootstrap.control;
    struct epa_bootstrap *base = &boot->bootstrap.base;

    bootstrap_init(&boot->bootstrap, page, world,
                   params->timeout_ns == UINT64_MAX ? 0 : params->timeout_ns);
    boot->bootstrap.strict = true;
    boot->observer.waits = on_wait;
    base->observer = &boot->observer;
    base->timeout_ns = params->timeout_ns;
    base->allgather = boot_allgather;
    base->barrier = boot_barrier;
    base->abort = abort_group;
    base->explain = boot_explain;
}

/* A rank that leaves a failed group closes its connections. The reason has to arrive before: ranks of
 * this host find the failure on the page, while the rank that failed may still send it. */
static void send_reason(struct boot *boot)
{
    struct epa_error failure;

    if (boot->star != NULL && boot->attached && control_failure(boot->bootstrap.control, &failure))
        star_send_abort(boot->star, &failure);
}

static void free_boot(struct boot *boot)
{
    stop_watch(&boot->watch);
    send_reason(boot);
    peers_close(&boot->peers);
    star_destroy(boot->star);
    if (boot->attached)
        control_detach(boot->bootstrap.control, &boot->card);
    exchange_finish(&boot->set_up);
    exchange_finish(&boot->running);
    world_facts_finish(&boot->facts);
    free(boot->node);
    free(boot);
}

static enum epa_status connect_ranks(struct boot_params *params, struct boot *boot,
                                     struct epa_error *err)
{
    return params->allgather == NULL && params->ranks != 1
               ? connect_star(params, boot, err)
               : init_set_up(params, &boot->callback, &boot->set_up, err);
}

/* Takes part in the first exchange in order to report a failure. */
static enum epa_status report_failure(struct boot_params *params, enum epa_status status,
                                      struct epa_error *err)
{
    struct boot boot = {.attached = false};

    if (connect_ranks(params, &boot, NULL) == EPA_OK)
        status = exchange_call(&boot.set_up, status, NULL, 0, NULL, false, err);
    star_destroy(boot.star);
    exchange_finish(&boot.set_up);
    return status;
}

enum epa_status boot_create(const struct boot_params *given, struct epa_bootstrap **out,
                            struct epa_error *err)
{
    struct boot_params params = *given;
    struct boot *boot = params.failure == NULL ? calloc(1, sizeof(*boot)) : NULL;
    enum epa_status status;
    struct epa_world world;

    if (params.failure != NULL)
        return report_failure(
            &params, epa_fail(err, params.failure->status, "%s", params.failure->text), err);
    if (boot == NULL)
        return report_failure(&params,
                              epa_fail(err, EPA_ERR_NOMEM, "bootstrap: no memory for a rank"), err);
    boot->log = params.log;
    boot->log_arg = params.log_arg;
    status = connect_ranks(&params, boot, err);
    if (status == EPA_OK)
        status = world_find(&boot->set_up, params.fingerprint, &world, &boot->facts, err);
    if (status == EPA_OK && boot->star == NULL && boot->facts.nodes > 1)
        status = connect_hosts(boot, params.timeout_ns, err);
    if (status == EPA_OK)
        status = share_page(boot, err);
    if (status != EPA_OK) {
        free_boot(boot);
        return status;
    }
    init_base(boot, &params, &world);
    if (boot->facts.nodes == 1) { /* the page replaces the connections */
        star_destroy(boot->star);
        boot->star = NULL;
    }
    *out = &boot->bootstrap.base;
    return EPA_OK;
}

/* Returns the node of rank r: the last node of its host if this node has room, or else `nodes`. */
static uint32_t divided_node(const struct boot *boot, uint32_t r, uint32_t per_node, uint32_t nodes)
{
    uint32_t before = 0, last = nodes;

    for (uint32_t p = 0; p < r; p++) {
        if (boot->facts.node[p] != boot->facts.node[r])
            continue;
        before++;
        last = boot->node[p];
    }
    return before % per_node == 0 ? nodes : last;
}

enum epa_status boot_divide_nodes(struct epa_bootstrap *base, uint32_t per_node,
                                  struct epa_error *err)
{
    struct boot *boot = boot_of(base);
    struct epa_world *w = &base->world;
    uint32_t nodes = 0, on_host = w->local_size;

    boot->node = calloc(w->size, sizeof(*boot->node));
    if (boot->node == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "bootstrap: no memory for %u ranks", w->size);
    for (uint32_t r = 0; r < w->size; r++) {
        boot->node[r] = divided_node(boot, r, per_node, nodes);
        nodes += boot->node[r] == nodes;
    }
    w->local_rank = w->local_size = 0;
    for (uint32_t r = 0; r < w->size; r++) {
        w->local_rank += r < w->rank && boot->node[r] == boot->node[w->rank];
        w->local_size += boot->node[r] == boot->node[w->rank];
    }
    w->node = nodes > 1 ? boot->node : NULL;
    w->local_cores = (uint32_t)((uint64_t)w->local_cores * w->local_size / on_host);
    if (w->local_cores == 0)
        w->local_cores = 1;
    return EPA_OK;
}

void boot_destroy(struct epa_bootstrap *base)
{
    struct boot *boot;

    if (base == NULL)
        return;
    boot = boot_of(base);
    stop_watch(&boot->watch); /* a rank that has passed the barrier closes its connections */
    (void)boot_barrier(base);
    control_return(boot->bootstrap.control, base->world.rank, EPA_OK);
    free_boot(boot);
}

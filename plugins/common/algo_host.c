/* Implements algo_host.h, and the option values of algo_options.h. */
#include "algo_host.h"

#include <stdlib.h>

#include <epa2a/wait.h>

/* ---- options ---- */

const struct epa_choice algo_dtype_choices[] = {
    {"fp8", ALGO_DTYPE_FP8, "e4m3 with one scale per group, quantised before sending"},
    {"native", ALGO_DTYPE_NATIVE, "moe.dtype, unchanged"},
    {0},
};

const struct epa_choice algo_nontemporal_choices[] = {
    {"auto", ALGO_NONTEMPORAL_AUTO,
     "non-temporal if rows exceed the last level cache; else the first "
     "dispatches and combines try what is faster"},
    {"off", ALGO_NONTEMPORAL_OFF, "ordinary stores"},
    {"on", ALGO_NONTEMPORAL_ON, "non-temporal stores, which bypass the cache"},
    {0},
};

const struct epa_choice algo_plain_nontemporal_choices[] = {
    {"off", EPA_STORE_CACHED, "ordinary stores"},
    {"on", EPA_STORE_NONTEMPORAL, "non-temporal stores, which bypass the cache"},
    {0},
};

/* ---- shapes ---- */

static enum epa_status check_fp8(const struct algo_limits *l, const struct epa_moe *m,
                                 struct epa_error *err)
{
    if (l->fp8 != NULL && (m->fp8_group_size == 0 || m->hidden % m->fp8_group_size != 0))
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.hidden moe.fp8_group_size",
                            "%s with %s: fp8 needs moe.hidden (%u) to be a multiple of "
                            "moe.fp8_group_size (%u); choose another group or %s: native",
                            l->name, l->fp8, m->hidden, m->fp8_group_size, l->fp8);
    if (l->native && m->x_dtype == EPA_FP8_E4M3)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "moe.input_dtype algorithm.dispatch_dtype",
            "%s with dispatch_dtype: native cannot send input that is quantised already; "
            "set dispatch_dtype: fp8 or moe.input_dtype: native",
            l->name);
    return EPA_OK;
}

static enum epa_status check_shape(const struct algo_limits *l, const struct epa_moe *m,
                                   const struct epa_world *world, struct epa_error *err)
{
    if (m->dtype != EPA_BF16 && m->dtype != EPA_F16)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.dtype",
                            "%s moves tokens of 16 bits; set moe.dtype: bf16 or f16", l->name);
    if (m->topk == 0 || m->topk > l->topk)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.topk",
                            "%s takes moe.topk from 1 to %u, not %u", l->name, l->topk, m->topk);
    if (world->size > l->ranks)
        return epa_fail_key(err, EPA_ERR_CONFIG, "ranks", "%s takes 1 to %u ranks, not %u", l->name,
                            l->ranks, world->size);
    if ((uint64_t)world->size * m->max_tokens * m->topk >= UINT32_MAX)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.max_tokens moe.topk ranks",
                            "%s numbers rows in 32 bits, which ranks (%u) x moe.max_tokens "
                            "(%u) x moe.topk (%u) exceed",
                            l->name, world->size, m->max_tokens, m->topk);
    if (m->experts == 0 || m->experts % world->size != 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.experts ranks",
                            "%s needs moe.experts (%u) to be a multiple of ranks (%u)", l->name,
                            m->experts, world->size);
    if (m->hidden == 0 || m->hidden % 16 != 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.hidden",
                            "%s needs moe.hidden (%u) to be a multiple of 16", l->name, m->hidden);
    return check_fp8(l, m, err);
}

static enum epa_status check_device(const struct algo_limits *l, const struct epa_moe *m,
                                    const struct epa_world *world, struct epa_error *err)
{
    uint32_t ranks = l->device_ranks != 0 ? l->device_ranks : EPA_DEVICE_RANKS;

    if (world->size > ranks)
        return epa_fail_key(err, EPA_ERR_CONFIG, "ranks", "%s on GPUs takes 1 to %u ranks, not %u",
                            l->name, ranks, world->size);
    if (m->experts > l->device_experts)
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.experts",
                            "%s on GPUs takes up to %u moe.experts, not %u", l->name,
                            l->device_experts, m->experts);
    if (l->fp8 != NULL && (m->fp8_group_size < 16 || m->fp8_group_size > 256 ||
                           (m->fp8_group_size & (m->fp8_group_size - 1)) != 0))
        return epa_fail_key(err, EPA_ERR_CONFIG, "moe.fp8_group_size",
                            "%s on GPUs quantises in groups of 16, 32, 64, 128 or 256 "
                            "channels; moe.fp8_group_size is %u",
                            l->name, m->fp8_group_size);
    return EPA_OK;
}

enum epa_status algo_check(const struct algo_limits *l, const struct epa_moe *m,
                           const struct epa_world *world, bool device, struct epa_error *err)
{
    const char *option = device ? l->host_option : l->device_option;
    enum epa_status status = check_shape(l, m, world, err);
    char key[sizeof(err->key)];

    if (option != NULL) /* "combine_mode", or "fuse_expert: true" */
        snprintf(key, sizeof(key), "algorithm.%.*s", (int)strcspn(option, ":"), option);
    if (status == EPA_OK && option != NULL)
        return epa_fail_key(err, EPA_ERR_CONFIG, key, "%s: %s is for %s", l->name, option,
                            device ? "hosts; leave it out"
                                   : "GPUs; leave it out, or set backend.name: cuda");
    return status == EPA_OK && device ? check_device(l, m, world, err) : status;
}

/* ---- failures ---- */

EPA_PRINTF(4, 0)
static enum epa_status record_failure(struct algo_host *h, enum epa_status status, const char *key,
                                      const char *fmt, va_list args)
{
    vsnprintf(h->last.text, sizeof(h->last.text), fmt, args);
    h->last.status = status;
    h->last.key = key;
    return status;
}

enum epa_status algo_fail(struct algo_host *h, enum epa_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    status = record_failure(h, status, "", fmt, args);
    va_end(args);
    return status;
}

struct algo_host *algo_awaits(struct algo_host *h, uint32_t rank)
{
    if (rank != ALGO_NONE && h->last.n_awaited < 2)
        h->last.awaited[h->last.n_awaited++] = rank;
    return h;
}

enum epa_status algo_fail_key(struct algo_host *h, enum epa_status status, const char *key,
                              const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    status = record_failure(h, status, key, fmt, args);
    va_end(args);
    return status;
}

enum epa_status algo_too_full(struct algo_host *h, uint32_t rank, uint64_t rows, uint64_t room)
{
    return algo_fail_key(h, EPA_ERR_CONFIG, "algorithm.capacity",
                         "rank %u would receive %llu rows and has room for %llu: raise "
                         "algorithm.capacity, or set it to 0",
                         rank, (unsigned long long)rows, (unsigned long long)room);
}

void algo_explain(struct epa_algorithm *a, struct epa_error *err)
{
    struct algo_host *h = (struct algo_host *)a; /* base is the first member */
    const char *phase = strcmp(h->last.stage, h->last.phase) == 0 ? "" : h->last.phase;
    struct epa_error inner = {EPA_OK, ""};
    char row[16] = "";

    if (h->last.text[0] != 0) {
        for (uint32_t i = 0; i < h->last.n_awaited; i++)
            (void)epa_awaits(err, h->last.awaited[i]);
        (void)epa_fail_stage(err, h->last.status, h->last.key, h->last.stage, phase, "%s",
                             h->last.text);
        return;
    }
    if (h->last.row != ALGO_NONE)
        snprintf(row, sizeof(row), " %u", h->last.row);
    h->t->ops->explain(h->t, &inner);
    if (inner.n_awaited > 0) /* a barrier, or the completion of puts */
        (void)epa_awaits_as(err, &inner);
    else
        (void)epa_awaits(err, h->last.peer);
    (void)epa_fail_stage(err, inner.status, inner.key, h->last.stage, phase, "%s%s of rank %u: %s",
                         h->last.what, row, h->last.peer, inner.text);
}

static void describe_wait(const struct epa_algorithm *a, struct epa_wait_state *w)
{
    const struct algo_host *h = (const struct algo_host *)(const void *)a;

    if (w->number < h->signal || w->number - h->signal >= h->signals)
        return;
    w->peer = h->last.peer;
    w->what = h->last.what;
}

/* ---- set-up ---- */

struct algo_block {
    struct algo_block *next; /* the caller's memory begins at the next cache line */
};

void *algo_alloc(struct algo_host *h, size_t n, size_t size)
{
    const size_t head = sizeof(struct algo_block) + EPA_LINE_BYTES;
    struct algo_block *block = NULL;

    if (n < (SIZE_MAX - head) / (size + 1))
        block = calloc(1, head + n * size);
    if (block == NULL) {
        h->no_memory = true;
        return NULL;
    }
    block->next = h->memory;
    h->memory = block;
    return (char *)block + epa_round_up((uintptr_t)(block + 1), EPA_LINE_BYTES) - (uintptr_t)block;
}

char *algo_alloc_scratch(struct algo_host *h, size_t message_bytes)
{
    size_t bytes = epa_round_up(h->workers * message_bytes, ALGO_PAGE) + ALGO_PAGE;
    char *scratch = algo_alloc(h, bytes, 1);

    return scratch == NULL
               ? NULL
               : scratch + epa_round_up((uintptr_t)scratch, ALGO_PAGE) - (uintptr_t)scratch;
}

void algo_destroy(struct epa_algorithm *a)
{
    struct algo_host *h = (struct algo_host *)a; /* base is the first member */
    struct algo_block *next;

    if (h == NULL)
        return;
    for (struct algo_block *block = h->memory; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    free(h);
}

static void count_worker(void *arg, uint32_t worker, uint32_t workers)
{
    if (worker == 0)
        *(uint32_t *)arg = workers;
}

/* Checks the actual heap and reach: a transport may provide less than its plugin announced, and the
 * layout depends on the announcement. */
static enum epa_status check_heap(const struct algo_setup *setup, const struct algo_host *h,
                                  struct epa_error *err)
{
    if (setup->heap_bytes != 0 && h->heap + setup->heap_bytes > h->t->heap_bytes)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: the heap of %llu bytes is too small", h->name,
                        (unsigned long long)h->t->heap_bytes);
    if (h->far != 0 && !setup->puts) {
        uint32_t rank = 0;

        while (algo_reachable(h, rank))
            rank++;
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s: loads and stores do not reach rank %u, though the transport "
                        "announced that they reach all ranks",
                        h->name, rank);
    }
    return EPA_OK;
}

static void alloc_sets(struct algo_host *h, const struct algo_setup *setup, const struct epa_moe *m)
{
    uint32_t local = m->experts / h->world.size;

    h->rank_of = algo_alloc(h, m->experts, sizeof(*h->rank_of));
    for (uint32_t e = 0; e < m->experts && h->rank_of != NULL; e++)
        h->rank_of[e] = (uint16_t)(e / local);
    for (uint32_t i = 0; i < setup->buffers; i++) {
        struct algo_set *s = h->set[i] = algo_alloc(h, 1, setup->set_bytes);

        if (s == NULL)
            return;
        s->index = i;
        s->recv_count = algo_alloc(h, local, sizeof(*s->recv_count));
        s->recv_start = algo_alloc(h, local, sizeof(*s->recv_start));
        s->recv_source = algo_alloc(h, m->experts, sizeof(*s->recv_source));
    }
}

enum epa_status algo_create(const struct algo_setup *setup, const struct epa_algorithm_params *p,
                            struct algo_host **out, struct epa_error *err)
{
    const struct epa_moe *m = p->problem->op == EPA_OP_MOE ? &p->problem->u.moe : NULL;
    struct algo_host *h = calloc(1, setup->state_bytes);
    enum epa_status status;

    if (h == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory", setup->name);
    *h = (struct algo_host){
        .base = {.stages = setup->stages,
                 .n_stages = setup->n_stages,
                 .wait_describe = describe_wait,
                 .explain = algo_explain,
                 .destroy = algo_destroy},
        .name = setup->name,
        .world = p->world,
        .t = p->transport,
        .backend = p->backend,
        .kernels = epa_kernels_get(m != NULL ? (enum epa_dtype)m->dtype : EPA_BF16, NULL),
        .heap = p->heap,
        .signal = p->signal,
        .signals = setup->signals,
        .timeout_ns = p->timeout_ns,
        .epoch = p->epoch,
        .buffers = setup->buffers,
        .trace = p->trace,
        .observer = p->observer,
        .last = {.stage = "create", .phase = "create", .what = "nothing", .row = ALGO_NONE},
    };
    status = algo_parallel(h, count_worker, &h->workers);
    h->crowded = (uint64_t)p->world.local_size * h->workers > p->world.local_cores;
    for (uint32_t r = 0; r < p->world.size; r++)
        h->far += !algo_reachable(h, r);
    if (status == EPA_OK)
        status = check_heap(setup, h, err);
    if (status != EPA_OK) {
        algo_destroy(&h->base);
        return status;
    }
    if (m != NULL)
        alloc_sets(h, setup, m);
    if (h->no_memory)
        return algo_created(h, NULL, err);
    *out = h;
    return EPA_OK;
}

enum epa_status algo_created(struct algo_host *h, struct epa_algorithm **out, struct epa_error *err)
{
    const char *name = h->name;

    if (h->no_memory) {
        h->base.destroy(&h->base);
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for lists", name);
    }
    *out = &h->base;
    return EPA_OK;
}

/* ---- puts, waits ---- */

bool algo_wait_for_room(struct algo_host *h, enum epa_status *status, struct algo_room *room)
{
    *status = h->t->ops->progress(h->t);
    if (*status != EPA_OK)
        return false;
    room->waited_ns = epa_waited_ns(&room->begun_ns, room->waited_ns, h->timeout_ns);
    if (room->waited_ns <= h->timeout_ns)
        return true;
    *status = algo_fail(algo_awaits(h, h->last.peer), EPA_ERR_TIMEOUT,
                        "for %.3f s the transport had no room for data to rank %u",
                        (double)h->timeout_ns * 1e-9, h->last.peer);
    return false;
}

enum epa_status algo_wait_for_ranks(struct algo_host *h, uint32_t first, uint64_t value,
                                    const char *what, uint64_t ranks)
{
    char from[16] = "";
    uint64_t begin = epa_trace_now(h->trace), end;
    enum epa_status status = EPA_OK;
    uint16_t name;

    if (h->trace != NULL)
        snprintf(from, sizeof(from), "%s_from", what);
    name = epa_trace_name(h->trace, from);
    for (uint32_t i = 1; i < h->world.size && status == EPA_OK; i++, begin = end) {
        uint32_t peer = algo_peer(h, i);

        end = begin;
        if (peer < 64 && (ranks >> peer & 1) == 0)
            continue;
        status = algo_wait(h, first + peer, value, what, ALGO_NONE, peer);
        end = epa_trace_slice(h->trace, 0, name, begin, peer, 0, 0);
        if (status == EPA_OK)
            epa_trace_flow_end(h->trace, 0, begin, end, peer, h->signal + first + peer, value);
    }
    return status;
}

/* LOOKS: polls between two checks of the clock and the transport. LOOK_SPIN_NS: spinning time
 * before a thread yields, with a core per thread. */
enum { LOOKS = 64, LOOK_SPIN_NS = 20000 };

bool algo_look_pause(struct algo_host *h, struct algo_look *look)
{
    epa_backoff(look->waited_ns, h->crowded ? 0 : LOOK_SPIN_NS);
    return ++look->turns % LOOKS == 0 || h->crowded;
}

void algo_look_report(struct algo_host *h, struct algo_look *look)
{
    struct epa_wait_state w = {.kind = EPA_WAIT_DATA,
                               .what = look->what,
                               .number = look->number,
                               .peer = look->peer,
                               .seen = look->seen,
                               .wanted = look->wanted};

    w.waited_ns = look->waited_ns = epa_waited_ns(&look->begun_ns, look->waited_ns, h->timeout_ns);
    epa_wait_report(h->observer, &w, &look->reported_ns);
}

enum epa_status algo_look_again(struct algo_host *h, struct algo_look *look)
{
    enum epa_status status;

    if (!algo_look_pause(h, look))
        return EPA_OK;
    status = h->t->ops->progress(h->t);
    algo_look_report(h, look);
    if (status == EPA_OK && look->waited_ns > h->timeout_ns)
        status = EPA_ERR_TIMEOUT;
    if (status == EPA_OK)
        return status;
    return algo_fail(algo_awaits(h, look->peer), status,
                     "%s of rank %u: %s after %.3f s (of epoch %llu, wants %llu)%s", look->what,
                     look->peer, status == EPA_ERR_TIMEOUT ? "timeout" : "end of the wait",
                     (double)look->waited_ns * 1e-9, (unsigned long long)look->seen,
                     (unsigned long long)look->wanted,
                     status == EPA_ERR_ABORTED ? ", when another rank had failed" : "");
}

/* ---- passes ---- */

enum epa_status algo_tend(struct algo_host *h, struct algo_pass *pass, uint32_t worker,
                          uint32_t workers, enum epa_status (*serve)(struct algo_host *))
{
    uint64_t begun = epa_now_ns();
    enum epa_status status = EPA_OK;

    if (worker != 0) { /* relaxed: the end of the pass orders the worker's stores */
        __atomic_add_fetch(&pass->done, 1, __ATOMIC_RELAXED);
        return EPA_OK;
    }
    while (__atomic_load_n(&pass->done, __ATOMIC_RELAXED) + 1 < workers && status == EPA_OK &&
           !algo_stopped(pass)) {
        epa_backoff(epa_now_ns() - begun, h->crowded ? 0 : LOOK_SPIN_NS);
        status = serve != NULL ? serve(h) : h->t->ops->progress(h->t);
    }
    return status;
}

/* ---- buffer sets ---- */

struct algo_set *algo_take_set(struct algo_host *h)
{
    for (uint32_t i = 0; i < h->buffers; i++) {
        if (h->set[i]->state != ALGO_FREE)
            continue;
        h->set[i]->state = ALGO_OPEN;
        h->set[i]->epoch = ++h->epoch;
        return h->set[i];
    }
    (void)algo_fail_key(h, EPA_ERR_CONFIG, "algorithm.buffers",
                        "%u dispatches are open, the limit of algorithm.buffers; combine one first",
                        h->buffers);
    return NULL;
}

struct algo_set *algo_set_of(struct algo_host *h, uint64_t epoch, uint32_t state, const char *in)
{
    struct algo_set *oldest = NULL;

    for (uint32_t i = 0; i < h->buffers; i++) {
        struct algo_set *s = h->set[i];

        if (s->state == state && (oldest == NULL || s->epoch < oldest->epoch))
            oldest = s;
    }
    if (oldest == NULL)
        (void)algo_fail(h, EPA_ERR_CONFIG, "called for dispatch %llu, but no dispatch is %s",
                        (unsigned long long)epoch, in);
    else if (oldest->epoch != epoch)
        (void)algo_fail(h, EPA_ERR_CONFIG,
                        "called for dispatch %llu, but dispatch %llu is the oldest that is %s; "
                        "call for this one first",
                        (unsigned long long)epoch, (unsigned long long)oldest->epoch, in);
    return oldest != NULL && oldest->epoch == epoch ? oldest : NULL;
}

enum epa_status algo_discard(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct algo_host *h = (struct algo_host *)a;
    uint64_t epoch = problem->u.moe.epoch;

    h->last.stage = h->last.phase = "discard";
    for (uint32_t i = 0; i < h->buffers; i++) {
        struct algo_set *s = h->set[i];

        if (s->state == ALGO_OPEN && s->epoch == h->epoch && s->epoch == epoch) {
            s->state = ALGO_FREE;
            return EPA_OK;
        }
    }
    return algo_fail(h, EPA_ERR_CONFIG,
                     "dispatch %llu is not the last dispatch, or is no longer open",
                     (unsigned long long)epoch);
}

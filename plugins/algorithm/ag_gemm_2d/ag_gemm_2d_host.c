/* ag_gemm_2d on hosts: a pool of workers gathers rows, and multiplies tiles whose rows have
 * arrived.
 *
 * The rows of a rank form chunks, the same on all ranks. A rank receives a chunk from one rank, its
 * sender. The sender is the source, or, with gather: 2d and a source on another node, the rank of
 * the receiver's node with the same place in its node as the source. Within a node, a sender stores
 * packed rows in the receiver's panels (push), or the receiver copies them from the sender's panels
 * (pull). Between nodes, and for ranks out of reach of loads and stores, rows are put unpacked, and
 * the receiver packs them. The receiver's word for the chunk is then set to e, the number of the
 * call.
 *
 *   chunk   AWAITED -> ARRIVED -> TAKEN -> PLACED -> DONE
 *           signalled  by a worker  in the panels  and passed on
 *
 * Own chunks are ARRIVED at the start. Only worker 0 calls the transport: it polls words and sends
 * signals between tiles. All workers take chunks first, then tiles. A block of rows of C counts the
 * chunks for which it waits; its tiles may begin when the count is 0.
 *
 * The calls need no barrier, and two sets suffice; call e uses set e % 2:
 *   (1) A rank returns from e after it has seen e in the words of all chunks of all ranks,
 *       including ranks without rows. So the source of each chunk, and the rank that passed it
 *       on, have begun e.
 *   (2) So a rank in e knows that all ranks have begun e - 1 and returned from e - 2. Their data in
 *       the set of e belongs to e - 2 and has no readers: neither tiles, nor copies (pull), nor
 *       puts, which a rank completes (quiet) before its return.
 *   (3) Words only grow, and a quiet separates two SETs of a word, of e and e + 1. */
#include "ag_gemm_2d_host.h"

#include "ag_gemm_2d_call.h"

#include <stdlib.h>
#include <string.h>

#include "../../common/algo_host.h"
#include "../../common/gemm_host.h"
#include <epa2a/wait.h>

enum { PIECE_BYTES = 64, PIECE = 32, PANEL = EPA_GEMM_ROWS };
/* Work of a call: both halves, or one half for bench. */
enum part { BOTH, GATHER, GEMM };

struct ag2_names {
    uint16_t pack, copy, put, tile, wait, idle, quiet;
};

struct ag2_host {
    struct algo_host host; /* first member */
    struct ag2_layout l;
    struct gemm_weights weights;
    struct ag2_names name;
    struct ag2_routes routes;
    bool any_source;

    /* State of the current call. */
    struct epa_ag_gemm *problem;
    enum part part;
    struct ag2_call call;
    uint32_t to_take, unplaced, undone; /* chunks: ARRIVED; not yet PLACED; not yet DONE */
    uint32_t stopped;                   /* 1: worker 0 has failed */
    enum epa_status status;             /* result of worker 0 */
    float **scratch;                    /* [workers]: a tile */
    char **line;                        /* [workers]: a row of A, followed by zeros */
    struct epa_wait wait;               /* wait of worker 0 during idle time */
};

static struct ag2_host *host_of(struct epa_algorithm *a)
{
    return (struct ag2_host *)a; /* base is the first member of the first member */
}

static uint64_t set_offset(const struct ag2_host *h)
{
    return h->host.heap + h->host.epoch % AG2_SETS * h->l.set_bytes;
}

static char *panels_of(const struct ag2_host *h, uint32_t rank)
{
    return algo_at(&h->host, rank, set_offset(h) + h->l.panels_at);
}

static char *scales_of(const struct ag2_host *h, uint32_t rank, uint32_t row)
{
    return algo_at(&h->host, rank, set_offset(h) + h->l.scales_at + row * h->l.scale_row_bytes);
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- the current call ---- */

static enum epa_status begin_call(struct ag2_host *h, struct epa_ag_gemm *g, enum part part)
{
    for (uint32_t r = 0; r < h->l.size; r++)
        if (g->rows[r] > h->l.max_rows)
            return algo_fail(&h->host, EPA_ERR_CONFIG, "rank %u has %u rows, but at most %u fit", r,
                             g->rows[r], h->l.max_rows);
    h->problem = g;
    h->part = part;
    ag2_call_begin(&h->call, &h->l, &h->routes, g->rows, part != GATHER, part == BOTH);
    h->to_take = 0;
    h->unplaced = h->undone = part == GEMM ? 0 : h->l.signals;
    h->stopped = 0;
    h->status = EPA_OK;
    h->wait = (struct epa_wait){.timeout_ns = h->host.timeout_ns};
    return EPA_OK;
}

/* ---- chunks ---- */

/* Copies rows of a panel to the same place in other panels. The rows begin anywhere in the panel
 * and do not extend beyond it. */
static void copy_panel(const struct ag2_host *h, const char *from, char *const *to, uint32_t n,
                       uint32_t row, uint32_t rows)
{
    uint32_t k = h->weights.padded_k, steps = rows == PANEL ? 1 : k / PIECE;
    size_t bytes = rows == PANEL ? (size_t)PANEL * h->l.panel_row_bytes : rows * PIECE_BYTES;
    size_t at = epa_gemm_a_at(row, 0, k);
    void *there[AG2_RANKS];

    for (uint32_t i = 0; i < steps; i++, at += PANEL * PIECE_BYTES) {
        for (uint32_t j = 0; j < n; j++)
            there[j] = to[j] + at;
        h->host.kernels->spread(there, n, from + at, bytes, EPA_STORE_CACHED);
    }
}

static const char *raw_row(const struct ag2_host *h, const struct ag2_chunk *c, uint32_t i)
{
    uint64_t row = c->source_row + i;

    if (c->source == h->host.world.rank)
        return (const char *)h->problem->a + row * h->l.raw_row_bytes;
    return algo_at(&h->host, h->host.world.rank, set_offset(h) + h->l.raw_at) +
           (h->call.raw_start[c->source] + row) * h->l.raw_row_bytes;
}

static const char *raw_scales(const struct ag2_host *h, const struct ag2_chunk *c)
{
    if (c->source == h->host.world.rank)
        return (const char *)h->problem->a_scale + c->source_row * h->l.scale_row_bytes;
    return algo_at(&h->host, h->host.world.rank, set_offset(h) + h->l.raw_scales_at) +
           (uint64_t)(h->call.raw_start[c->source] + c->source_row) * h->l.scale_row_bytes;
}

/* Packs or copies the rows of a chunk into the own panels, and in mode push stores them in the
 * panels of mates that get the chunk from this rank. */
static void place_rows(struct ag2_host *h, const struct ag2_chunk *c, uint32_t worker)
{
    const struct ag2_routes *r = &h->routes;
    bool load = r->way[c->source] == AG2_LOADED;
    bool store = r->passes_on[c->source] && h->l.config.mode == AG_GEMM_PUSH;
    uint32_t me = h->host.world.rank, n_mates = store ? r->n_mates : 0;
    uint32_t sender = r->sender[c->source];
    char *own = panels_of(h, me), *mate[AG2_RANKS];
    const char *from = load ? panels_of(h, sender) : NULL;
    const char *scales = load ? scales_of(h, sender, c->row) : raw_scales(h, c);
    size_t scale_bytes = c->rows * h->l.scale_row_bytes;

    for (uint32_t i = 0; i < n_mates; i++)
        mate[i] = panels_of(h, r->mates[i]);
    for (uint32_t done = 0, some; done < c->rows; done += some) {
        uint32_t row = c->row + done;

        some = least(c->rows - done, PANEL - row % PANEL);
        if (load)
            copy_panel(h, from, &own, 1, row, some);
        for (uint32_t i = 0; i < some && !load; i++)
            gemm_pack_row(&h->weights, raw_row(h, c, done + i), own, row + i, h->line[worker]);
        if (n_mates > 0)
            copy_panel(h, own, mate, n_mates, row, some);
    }
    if (scale_bytes == 0)
        return;
    memcpy(scales_of(h, me, c->row), scales, scale_bytes);
    for (uint32_t i = 0; i < n_mates; i++)
        memcpy(scales_of(h, r->mates[i], c->row), scales, scale_bytes);
}

/* Marks a chunk as placed, and decrements the counts of blocks that wait for it. */
static void chunk_placed(struct ag2_host *h, struct ag2_chunk *c)
{
    ag2_release_blocks(&h->call, c);
    /* Release: pairs with the acquire in drive_transport(). Stores to mates precede it. */
    __atomic_store_n(&c->state, AG2_PLACED, __ATOMIC_RELEASE);
    __atomic_fetch_sub(&h->unplaced, 1, __ATOMIC_RELEASE);
}

/* Takes an arrived chunk and places its rows. Returns false if no chunk has arrived. */
static bool take_chunk(struct ag2_host *h, uint32_t worker)
{
    if (__atomic_load_n(&h->to_take, __ATOMIC_RELAXED) == 0)
        return false;
    for (uint32_t i = 0; i < h->l.signals; i++) {
        struct ag2_chunk *c = &h->call.chunk[(h->host.world.rank * h->l.chunks + i) % h->l.signals];
        uint32_t arrived = AG2_ARRIVED;
        uint64_t begin;

        /* Acquire: pairs with the release in chunk_arrived(). */
        if (__atomic_load_n(&c->state, __ATOMIC_RELAXED) != AG2_ARRIVED ||
            !__atomic_compare_exchange_n(&c->state, &arrived, AG2_TAKEN, false, __ATOMIC_ACQUIRE,
                                         __ATOMIC_RELAXED))
            continue;
        __atomic_fetch_sub(&h->to_take, 1, __ATOMIC_RELAXED);
        begin = epa_trace_now(h->host.trace);
        place_rows(h, c, worker);
        (void)epa_trace_slice(h->host.trace, worker,
                              h->routes.way[c->source] == AG2_LOADED ? h->name.copy : h->name.pack,
                              begin, c->source, c->rows * h->l.panel_row_bytes, c->rows);
        chunk_placed(h, c);
        return true;
    }
    return false;
}

static void chunk_arrived(struct ag2_host *h, struct ag2_chunk *c)
{
    if (c->rows == 0 || h->routes.way[c->source] == AG2_STORED) {
        chunk_placed(h, c);
        return;
    }
    /* Release: pairs with the acquire in take_chunk(). */
    __atomic_store_n(&c->state, AG2_ARRIVED, __ATOMIC_RELEASE);
    __atomic_fetch_add(&h->to_take, 1, __ATOMIC_RELAXED);
}

/* ---- worker 0: puts and signals ---- */

/* Puts an unpacked chunk to a rank that loads and stores do not reach. */
static enum epa_status put_chunk(struct ag2_host *h, const struct ag2_chunk *c, uint32_t peer)
{
    uint64_t row = h->call.raw_start[c->source] + c->source_row, raw = set_offset(h) + h->l.raw_at;
    uint64_t at = raw + row * h->l.raw_row_bytes, bytes = c->rows * h->l.raw_row_bytes;
    uint64_t scales_at = set_offset(h) + h->l.raw_scales_at + row * h->l.scale_row_bytes;
    bool own = c->source == h->host.world.rank && h->any_source;
    const char *from = own ? raw_row(h, c, 0) : h->host.t->heap + at;
    const char *scales = own ? raw_scales(h, c) : h->host.t->heap + scales_at;
    enum epa_status status = EPA_OK;

    h->host.last.what = "rows";
    h->host.last.row = c->source;
    if (h->l.scale_row_bytes != 0 && c->rows != 0) {
        status = algo_put(&h->host, scales_at, scales, c->rows * h->l.scale_row_bytes, peer);
        /* Orders the signal after the scales; the put orders it only after its own payload. */
        if (status == EPA_OK)
            status = h->host.t->ops->fence(h->host.t, peer);
    }
    if (status == EPA_OK)
        status = algo_signal(&h->host, at, from, bytes, ag2_signal(&h->l, c->source, c->index),
                             h->host.epoch, peer);
    return status;
}

/* Copies a chunk to the heap, for transports that put only from the heap. */
static void stage_chunk(struct ag2_host *h, const struct ag2_chunk *c)
{
    uint64_t row = h->call.raw_start[c->source] + c->source_row;
    char *set = h->host.t->heap + set_offset(h);

    if (c->rows == 0)
        return;
    memcpy(set + h->l.raw_at + row * h->l.raw_row_bytes, raw_row(h, c, 0),
           c->rows * h->l.raw_row_bytes);
    if (h->l.scale_row_bytes != 0)
        memcpy(set + h->l.raw_scales_at + row * h->l.scale_row_bytes, raw_scales(h, c),
               c->rows * h->l.scale_row_bytes);
}

/* Sends own rows: first puts to other nodes, which take longest, then packs the rows. */
static enum epa_status send_own_rows(struct ag2_host *h)
{
    uint64_t begin = epa_trace_now(h->host.trace);
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < h->l.chunks; i++) {
        struct ag2_chunk *c = &h->call.chunk[ag2_signal(&h->l, h->host.world.rank, i)];

        if (h->routes.n_put_to != 0 && !h->any_source)
            stage_chunk(h, c);
        for (uint32_t p = 0; p < h->routes.n_put_to && status == EPA_OK; p++)
            status = put_chunk(h, c, h->routes.put_to[p]);
        chunk_arrived(h, c);
    }
    if (h->routes.n_put_to != 0)
        (void)epa_trace_slice(h->host.trace, 0, h->name.put, begin, EPA_TRACE_NOBODY, 0, 0);
    return status;
}

/* Signals a placed chunk to the mates that get the chunk from this rank. */
static enum epa_status signal_mates(struct ag2_host *h, struct ag2_chunk *c)
{
    enum epa_status status = EPA_OK;

    h->host.last.what = "rows";
    h->host.last.row = c->source;
    for (uint32_t i = 0;
         i < h->routes.n_mates && status == EPA_OK && h->routes.passes_on[c->source]; i++)
        status = algo_signal(&h->host, 0, NULL, 0, ag2_signal(&h->l, c->source, c->index),
                             h->host.epoch, h->routes.mates[i]);
    __atomic_store_n(&c->state, AG2_DONE, __ATOMIC_RELAXED); /* only worker 0 reads this state */
    h->undone--;
    return status;
}

/* Receives a chunk whose word has been seen. algo_wait() acquires the data of the chunk. */
static enum epa_status receive_chunk(struct ag2_host *h, struct ag2_chunk *c, uint64_t seen)
{
    uint32_t signal = ag2_signal(&h->l, c->source, c->index);
    uint64_t begin = epa_trace_now(h->host.trace), end;
    enum epa_status status =
        algo_wait(&h->host, signal, seen, "rows", c->source, h->routes.sender[c->source]);

    end = epa_trace_slice(h->host.trace, 0, h->name.wait, begin, h->routes.sender[c->source], 0,
                          c->rows);
    epa_trace_flow_end(h->host.trace, 0, begin, end, h->routes.sender[c->source],
                       h->host.signal + signal, h->host.epoch);
    for (uint32_t i = 0;
         i < h->routes.n_pass_to && status == EPA_OK && h->routes.passes_on[c->source]; i++)
        status = put_chunk(h, c, h->routes.pass_to[i]);
    if (status == EPA_OK)
        chunk_arrived(h, c);
    return status;
}

/* Polls words, passes chunks on, and makes progress. *any: set if a chunk changed its state. */
static enum epa_status drive_transport(struct ag2_host *h, bool *any)
{
    struct epa_transport *t = h->host.t;
    enum epa_status status = t->ops->progress(t);

    for (uint32_t i = 0; i < h->l.signals && status == EPA_OK && h->undone != 0; i++) {
        struct ag2_chunk *c = &h->call.chunk[i];
        /* Acquire: pairs with the release in chunk_placed(). */
        uint32_t state = __atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
        uint64_t seen = state == AG2_AWAITED ? t->ops->read(t, h->host.signal + i) : 0;

        if (state == AG2_AWAITED && seen >= h->host.epoch) {
            status = receive_chunk(h, c, seen);
            *any = true;
            state = __atomic_load_n(&c->state, __ATOMIC_ACQUIRE);
        }
        if (state == AG2_PLACED && status == EPA_OK) {
            status = signal_mates(h, c);
            *any = true;
        }
    }
    return status;
}

/* ---- tiles ---- */

static bool multiply_tile(struct ag2_host *h, uint32_t worker)
{
    uint64_t begin = epa_trace_now(h->host.trace);
    uint32_t column, me = h->host.world.rank, n = h->l.config.tile_cols;
    const struct ag2_block *b;
    struct gemm_tile tile;

    if (!ag2_take_tile(&h->call, &b, &column))
        return false;
    tile = (struct gemm_tile){
        .a = panels_of(h, me) + epa_gemm_a_at(b->row, 0, h->weights.padded_k),
        .a_scale = (const float *)(const void *)scales_of(h, me, b->row),
        .rows = b->rows,
        .column = column * n,
        .columns = least(n, h->weights.padded_n - column * n),
    };
    gemm_tile_place(h->problem, b->c_row, &tile);
    gemm_tile_run(&h->weights, &tile, h->scratch[worker]);
    (void)epa_trace_slice(h->host.trace, worker, h->name.tile, begin, EPA_TRACE_NOBODY, 0, b->rows);
    return true;
}

/* ---- waiting ---- */

/* Lets worker 0 wait for a word, or for the chunks of other workers, and checks the time limit. */
static enum epa_status wait_for_progress(struct ag2_host *h)
{
    const struct ag2_block *b;
    const struct ag2_chunk *c = ag2_missing_chunk(&h->call, &b);
    uint64_t seen;
    struct epa_wait_state state = {.kind = EPA_WAIT_SIGNAL, .wanted = h->host.epoch};
    uint32_t signal;
    char tile[64] = "";

    h->wait.waited_ns = state.waited_ns =
        epa_waited_ns(&h->wait.begun_ns, h->wait.waited_ns, h->wait.timeout_ns);
    epa_backoff(h->wait.waited_ns, h->host.crowded ? 0 : UINT64_MAX);
    if (c == NULL)
        return EPA_OK;
    signal = h->host.signal + ag2_signal(&h->l, c->source, c->index);
    seen = h->host.t->ops->read(h->host.t, signal);
    state.seen = seen;
    state.number = signal;
    state.peer = h->routes.sender[c->source];
    state.what = "rows";
    epa_wait_report(h->host.observer, &state, &h->wait.reported_ns);
    if (h->wait.waited_ns < h->wait.timeout_ns)
        return EPA_OK;
    if (b != NULL)
        snprintf(tile, sizeof(tile), "tile of rows %u to %u: ", b->c_row, b->c_row + b->rows - 1);
    (void)algo_awaits(algo_awaits(&h->host, h->routes.sender[c->source]), c->source);
    return algo_fail(&h->host, EPA_ERR_TIMEOUT,
                     "timeout after %.3f s: %srows %u to %u of rank %u, from rank %u (signal %u is "
                     "%llu, wants %llu)",
                     (double)h->wait.waited_ns * 1e-9, tile, c->source_row,
                     c->source_row + (c->rows > 0 ? c->rows - 1 : 0), c->source,
                     h->routes.sender[c->source], signal, (unsigned long long)seen,
                     (unsigned long long)h->host.epoch);
}

static void end_wait(struct ag2_host *h)
{
    if (h->wait.begun_ns != 0)
        (void)epa_trace_slice(h->host.trace, 0, h->name.idle, h->wait.begun_ns, EPA_TRACE_NOBODY, 0,
                              0);
    epa_wait_clear(h->host.observer, h->wait.reported_ns);
    h->wait.begun_ns = h->wait.reported_ns = 0;
}

/* ---- workers ---- */

static bool all_taken(const struct ag2_host *h)
{
    return __atomic_load_n(&h->call.untaken, __ATOMIC_RELAXED) == 0 &&
           __atomic_load_n(&h->unplaced, __ATOMIC_ACQUIRE) == 0;
}

static void run_other_worker(struct ag2_host *h, uint32_t worker)
{
    uint64_t idle_ns = 0;

    while (!all_taken(h) && __atomic_load_n(&h->stopped, __ATOMIC_RELAXED) == 0) {
        if (take_chunk(h, worker) || multiply_tile(h, worker)) {
            idle_ns = 0;
        } else {
            idle_ns = idle_ns == 0 ? epa_now_ns() : idle_ns;
            epa_backoff(epa_now_ns() - idle_ns, h->host.crowded ? 0 : UINT64_MAX);
        }
    }
}

static enum epa_status run_first_worker(struct ag2_host *h)
{
    bool only_moves = h->l.config.comm_worker && h->host.workers > 1;
    enum epa_status status = h->part == GEMM ? EPA_OK : send_own_rows(h);

    while (status == EPA_OK && (h->undone != 0 || !all_taken(h))) {
        bool any = false;

        if (h->undone != 0)
            status = drive_transport(h, &any);
        if (status != EPA_OK)
            break;
        any = any || take_chunk(h, 0);
        if (!any && (!only_moves || h->undone == 0))
            any = multiply_tile(h, 0);
        if (any)
            end_wait(h);
        else
            status = wait_for_progress(h);
    }
    if (status == EPA_OK)
        end_wait(h);
    return status;
}

static void run_worker(void *arg, uint32_t worker, uint32_t workers)
{
    struct ag2_host *h = arg;

    (void)workers;
    if (worker != 0) {
        run_other_worker(h, worker);
        return;
    }
    h->status = run_first_worker(h);
    if (h->status != EPA_OK)
        __atomic_store_n(&h->stopped, 1, __ATOMIC_RELAXED);
}

/* ---- the stage ---- */

static enum epa_status run_part(struct epa_algorithm *a, struct epa_problem *problem,
                                enum part part)
{
    struct ag2_host *h = host_of(a);
    enum epa_status status;
    uint64_t begin;

    algo_begin(&h->host, "ag_gemm", part == GEMM ? "multiplying" : "gathering");
    if (part != GEMM)
        ++h->host.epoch;
    status = begin_call(h, &problem->u.ag_gemm, part);
    if (status == EPA_OK)
        status = algo_parallel(&h->host, run_worker, h);
    if (status == EPA_OK)
        status = h->status;
    if (status != EPA_OK || part == GEMM)
        return status;
    h->host.last.phase = "completing puts";
    begin = epa_trace_now(h->host.trace);
    status = h->host.t->ops->quiet(h->host.t);
    (void)epa_trace_slice(h->host.trace, 0, h->name.quiet, begin, EPA_TRACE_NOBODY, 0, 0);
    return status;
}

static enum epa_status run_both(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_part(a, problem, BOTH);
}

static enum epa_status run_gather(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_part(a, problem, GATHER);
}

static enum epa_status run_gemm(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_part(a, problem, GEMM);
}

static const struct epa_stage stages[] = {
    {.name = "ag_gemm", .kind = EPA_STAGE_WHOLE, .run = run_both},
};

static const struct epa_stage parts[EPA_PARTS] = {
    {.name = "gather", .kind = EPA_STAGE_WHOLE, .run = run_gather},
    {.name = "gemm", .kind = EPA_STAGE_WHOLE, .run = run_gemm},
};

/* ---- set-up ---- */

static void destroy_host(struct epa_algorithm *a)
{
    gemm_weights_destroy(&host_of(a)->weights);
    algo_destroy(a);
}

static void alloc_lists(struct ag2_host *h)
{
    struct algo_host *a = &h->host;
    size_t tile = (size_t)h->l.config.tile_rows * h->l.config.tile_cols;
    uint32_t most = ag2_most_blocks(&h->l);

    h->call.block = algo_alloc(a, most, sizeof(*h->call.block));
    h->call.order = algo_alloc(a, most, sizeof(*h->call.order));
    h->call.chunk = algo_alloc(a, h->l.signals, sizeof(*h->call.chunk));
    h->scratch = algo_alloc(a, a->workers, sizeof(*h->scratch));
    h->line = algo_alloc(a, a->workers, sizeof(*h->line));
    for (uint32_t w = 0; w < a->workers && h->scratch != NULL && h->line != NULL; w++) {
        h->scratch[w] = algo_alloc(a, tile, sizeof(float));
        h->line[w] = algo_alloc(a, h->weights.padded_k, 2);
    }
}

enum epa_status ag2_host_create(const struct epa_algorithm_params *p, const struct ag2_layout *l,
                                struct epa_algorithm **out, struct epa_error *err)
{
    const struct algo_setup setup = {
        .name = "ag_gemm_2d",
        .stages = stages,
        .n_stages = 1,
        .state_bytes = sizeof(struct ag2_host),
        .signals = l->signals,
        .heap_bytes = l->heap_bytes,
        .puts = l->puts,
    };
    struct algo_host *host = NULL;
    enum epa_status status = algo_create(&setup, p, &host, err);
    /* setup.state_bytes is the size of struct ag2_host */
    struct ag2_host *h = (struct ag2_host *)host;

    if (status != EPA_OK)
        return status;
    h->l = *l;
    h->any_source = (p->transport->flags & EPA_TRANSPORT_ANY_SOURCE) != 0;
    h->name = (struct ag2_names){.pack = epa_trace_name(p->trace, "pack"),
                                 .copy = epa_trace_name(p->trace, "copy"),
                                 .put = epa_trace_name(p->trace, "put"),
                                 .tile = epa_trace_name(p->trace, "tile"),
                                 .wait = epa_trace_name(p->trace, "wait"),
                                 .idle = epa_trace_name(p->trace, "idle"),
                                 .quiet = epa_trace_name(p->trace, "quiet")};
    host->base.parts = parts;
    host->base.n_parts = EPA_PARTS;
    status = ag2_find_routes(l, &p->world, p->transport->peer_heap, &h->routes, err);
    if (status == EPA_OK)
        status = gemm_weights_create(&p->problem->u.ag_gemm, p->backend, &h->weights, err);
    if (status != EPA_OK) {
        destroy_host(&host->base);
        return status;
    }
    host->base.destroy = destroy_host;
    alloc_lists(h);
    return algo_created(host, out, err);
}

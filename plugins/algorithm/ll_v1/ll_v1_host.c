/* Host code of ll_v1, over any transport.
 *
 * Dispatch sorts choices by expert, quantises each token once, sends a block to each rank and
 * regroups what it received by expert. Combine sends the expert outputs back in blocks, or
 * pulls them from where experts wrote them, and adds up those of each token.
 *
 *                dispatch                              combine
 *   a block      rows of a slice, as sorted            outputs of a slice, as sorted there
 *   goes to      slots of its source, from rank *      where the slice begins at the source:
 *                MAX_M                                 recv_offset
 *   with it      splits, scales                        nothing
 *
 * A rank in reach that pulls gets no more than splits and signal: it loads tokens, and outputs
 * from y, as it uses them. One that is pushed to gets its block by stores, one out of reach by
 * puts: long ones in pieces, so that making them and sending them overlap.
 *
 * Dispatches count as calls 1, 2, 3... and so do combines, apart from them; all ranks make the
 * same calls in the same order. A call uses the buffers of its position, call mod 2, and its
 * signals carry its count.
 *
 * Two buffers are enough, whatever calls are in between. What call m of a mode writes at p, s
 * writes in call m of that mode: s has ended call m - 1, for which it waited for p; so p has
 * begun m - 1 and ended m - 2, the last that had this position, and what a call receives is used
 * up before the call ends: dispatch copies rows and splits away, combine adds outputs up. Tokens
 * are read by p in place of being written there, with the same conclusion. With one buffer s,
 * back from call n, would write what p, in call n still, has not read. A dispatch that is given
 * up and a combine that is called again are calls like any other.
 *
 * The word of a source, mode and position takes n, n + 2, ... and never passes a rank that waits
 * for n: s raises n + 2 after p has begun n + 1. So == would do, as in the source; >= is what
 * all protocols here wait with.
 *
 * Rows by expert, starts and y belong to sets, of which a dispatch takes the first that no open
 * one has; its combine, or discard, gives it back. Rows are written and read by their rank
 * alone. Let dispatch m take the set that dispatch n had. p writes `starts` once DATA of m has
 * arrived from every s, and its experts write y later: s has begun dispatch m, so it has ended
 * combine n, in which it pulled both; and what p itself put from y was in place when the quiet()
 * at the end of combine n returned.
 *
 * quiet() ends each call: it lets go of what a transport holds back, for which peers would wait
 * while experts run, keeps the two SETs of a word apart, and frees what was put from. */
#include "ll_v1.h"

#include <string.h>

#include "../../common/algo_host.h"

/* What a dispatch leaves for its combine, and the views it publishes. */
struct v1_set {
    struct algo_set s;
    uint32_t *at;     /* [max_tokens][topk] place of a choice as sorted; of a dropped one: any */
    uint32_t *cumsum; /* [experts + 1] rows for the experts before */
    uint32_t *count;  /* [source][local] rows received */
    uint32_t *offset; /* [source] recv_offset: where its slice begins, as it sorted */
};

/* A received row and the entries that it is copied to. */
struct v1_move {
    uint32_t row;  /* of the source's tokens, if they are pulled, or of its slots */
    uint32_t dest; /* first in v1_host.dest */
    uint32_t n;
};

struct v1_host {
    struct algo_host a;
    struct v1_layout l;
    uint64_t calls[V1_MODES]; /* made so far */
    struct v1_set *again;     /* combined last, with no dispatch since */
    uint32_t *tokens_of;      /* [experts] in out_splits: tokens as sorted, less the row */
    uint32_t *next;           /* [workers][experts] */
    uintptr_t *output;        /* [experts] where row 0, as sorted, would have its output */
    struct v1_move *move;     /* [source][max_m] */
    uint32_t *moves, *dest;   /* [source]; [source][max_m] */
    uint32_t *seen;           /* [workers][max_tokens] */
};

struct v1_task {
    struct v1_host *h;
    struct v1_set *set;
    struct epa_moe *m;
    enum v1_mode mode;
    uint64_t call;
    uint32_t peer, begin, end; /* rows of the block to `peer` that are made now */
    const char *y;             /* combine: where outputs are taken from */
    uint32_t wrong;            /* 1 + a source whose splits cannot be; 0: none */
};

enum v1_way { V1_PULL, V1_PUSH, V1_PUT };

static uint64_t position(const struct v1_task *task)
{
    return task->call % V1_POSITIONS;
}

static uint64_t index_of(const struct v1_task *task)
{
    return task->set->s.index;
}

static uint64_t offset_of(const struct v1_host *h, const struct v1_region *r, uint64_t which)
{
    return h->a.heap + r->at + r->bytes * which;
}

static char *here(const struct v1_host *h, const struct v1_region *r, uint64_t which)
{
    return h->a.t->heap + offset_of(h, r, which);
}

/* At a rank that is not to be reached by puts. */
static char *there(const struct v1_host *h, uint32_t rank, const struct v1_region *r,
                   uint64_t which)
{
    return algo_at(&h->a, rank, offset_of(h, r, which));
}

static enum v1_way way_to(const struct v1_host *h, uint32_t rank)
{
    if (!algo_reachable(&h->a, rank))
        return V1_PUT;
    return h->l.pull ? V1_PULL : V1_PUSH;
}

/* Rows of this rank, as sorted, that are for the ranks before `rank`. */
static uint32_t start_to(const struct v1_task *task, uint32_t rank)
{
    return task->set->cumsum[rank * task->h->l.local];
}

/* [local] where the rows of `source` begin here. */
static uint32_t *starts_of(const struct v1_task *task, uint32_t source)
{
    return (uint32_t *)(void *)here(task->h, &task->h->l.starts, index_of(task)) +
           (size_t)source * task->h->l.local;
}

static const uint32_t *counts_of(const struct v1_task *task, uint32_t source)
{
    return task->set->count + (size_t)source * task->h->l.local;
}

/* The splits received from `source`: counts, start, tokens. */
static const uint32_t *splits_of(const struct v1_task *task, uint32_t source)
{
    return (const uint32_t *)(const void *)here(task->h, &task->h->l.splits, position(task)) +
           (size_t)source * task->h->l.split_words;
}

/* Those that go to `rank`. */
static uint32_t *splits_to(const struct v1_task *task, uint32_t rank)
{
    return (uint32_t *)(void *)here(task->h, &task->h->l.out_splits, 0) +
           v1_splits_to(&task->h->l, rank, start_to(task, rank));
}

static enum epa_status in_parallel(struct v1_task *task, void (*fn)(void *, uint32_t, uint32_t))
{
    return algo_parallel(&task->h->a, fn, task);
}

/* ---- sort and quantise ----
 *
 * The sort counts, so it is stable: within an expert rows are in the order of tokens. Each
 * worker counts and then places the choices of its own tokens. */

static void count_choices(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    const struct epa_moe *m = task->m;
    size_t end = (size_t)algo_share(m->tokens, worker + 1, workers) * h->l.topk;
    uint32_t *count = h->next + (size_t)worker * h->l.experts;

    memset(count, 0, h->l.experts * sizeof(*count));
    for (size_t i = (size_t)algo_share(m->tokens, worker, workers) * h->l.topk; i < end; i++) {
        if (m->expert[i] >= 0)
            count[m->expert[i]]++;
    }
}

/* What each worker has counted becomes where it places its first choice of each expert. */
static void add_up_counts(const struct v1_task *task)
{
    const struct v1_host *h = task->h;
    uint32_t *restrict cumsum = task->set->cumsum;
    uint32_t experts = h->l.experts, total = 0;

    memset(cumsum, 0, experts * sizeof(*cumsum));
    for (uint32_t w = 0; w < h->a.workers; w++) {
        uint32_t *restrict next = h->next + (size_t)w * experts;

        for (uint32_t e = 0; e < experts; e++) {
            uint32_t count = next[e];

            next[e] = cumsum[e];
            cumsum[e] += count;
        }
    }
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t count = cumsum[e];

        cumsum[e] = total;
        total += count;
    }
    cumsum[experts] = total;
    for (uint32_t w = 0; w < h->a.workers; w++) {
        uint32_t *restrict next = h->next + (size_t)w * experts;

        for (uint32_t e = 0; e < experts; e++)
            next[e] += cumsum[e];
    }
}

/* Splits, but for the tokens: counts of each slice, and where it begins. */
static enum epa_status split(const struct v1_task *task)
{
    struct v1_host *h = task->h;

    for (uint32_t r = 0; r < h->l.size; r++) {
        const uint32_t *restrict cumsum = task->set->cumsum + (size_t)r * h->l.local;
        uint32_t *restrict out = splits_to(task, r);
        uint32_t rows = cumsum[h->l.local] - cumsum[0];

        for (uint32_t j = 0; j < h->l.local; j++)
            out[j] = cumsum[j + 1] - cumsum[j];
        out[h->l.local] = cumsum[0];
        if (rows > h->l.max_m)
            return algo_fail(&h->a, EPA_ERR_CONFIG,
                             "rank %u has %u rows for rank %u, which has room for %u from "
                             "each: raise algorithm.capacity, or set it to 0",
                             h->a.world.rank, rows, r, h->l.max_m);
    }
    return EPA_OK;
}

static void place_and_quantise(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    uint32_t begin = algo_share(task->m->tokens, worker, workers);
    uint32_t end = algo_share(task->m->tokens, worker + 1, workers);
    uint32_t *restrict next = h->next + (size_t)worker * h->l.experts;
    uint32_t *restrict out = (uint32_t *)(void *)here(h, &h->l.out_splits, 0);
    uint32_t *restrict at = task->set->at;
    char *token = here(h, &h->l.token, position(task));
    char *scales = here(h, &h->l.token_scales, position(task));

    for (uint32_t t = begin; t < end; t++) {
        for (size_t i = (size_t)t * h->l.topk; i < (size_t)(t + 1) * h->l.topk; i++) {
            int32_t e = task->m->expert[i];

            if (e < 0)
                continue;
            at[i] = next[e]++;
            out[h->tokens_of[e] + at[i]] = t;
        }
    }
    for (uint32_t t = begin; t < end; t++)
        epa_write_token(h->a.kernels, task->m, h->l.fp8, t, end, token + t * h->l.row_bytes,
                        scales + t * h->l.scales_bytes);
}

static enum epa_status sort_and_quantise(struct v1_task *task)
{
    enum epa_status status = in_parallel(task, count_choices);

    if (status != EPA_OK)
        return status;
    add_up_counts(task);
    status = split(task);
    return status == EPA_OK ? in_parallel(task, place_and_quantise) : status;
}

/* ---- the exchange: a block to each rank, its signal, and the wait for those of all ---- */

/* The signal of this call, and what is put with it, if anything. */
static enum epa_status signal_with(const struct v1_task *task, uint64_t dst, const void *src,
                                   uint64_t bytes)
{
    struct v1_host *h = task->h;

    return algo_signal(&h->a, dst, src, bytes,
                       v1_signal_of(h->l.size, task->mode, task->call, h->a.world.rank), task->call,
                       task->peer);
}

/* Where the first row of my block is at any rank. */
static uint64_t slot_of(const struct v1_host *h, uint64_t row_bytes)
{
    return (uint64_t)h->a.world.rank * h->l.max_m * row_bytes;
}

/* Rows from `begin` to `end` of the block, from where tokens were quantised: to the receiver's
 * slots, or to where they are put from. */
static void gather_rows(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    const struct v1_layout *l = &h->l;
    const uint32_t *token = splits_to(task, task->peer) + l->local + 1;
    const char *from = here(h, &l->token, position(task));
    const char *from_scales = here(h, &l->token_scales, position(task));
    bool far = way_to(h, task->peer) == V1_PUT;
    uint64_t start = start_to(task, task->peer);
    char *to = far ? here(h, &l->out, 0) + start * l->row_bytes
                   : there(h, task->peer, &l->slot, position(task)) + slot_of(h, l->row_bytes);
    char *to_scales =
        far ? here(h, &l->out_scales, 0) + start * l->scales_bytes
            : there(h, task->peer, &l->slot_scales, position(task)) + slot_of(h, l->scales_bytes);
    enum epa_store store = far ? EPA_STORE_CACHED : h->a.store;
    uint32_t n = task->end - task->begin;
    uint32_t end = task->begin + algo_share(n, worker + 1, workers);

    for (uint32_t i = task->begin + algo_share(n, worker, workers); i < end; i++) {
        void *row = to + i * l->row_bytes, *scales = to_scales + i * l->scales_bytes;

        h->a.kernels->spread(&row, 1, from + token[i] * l->row_bytes, l->row_bytes, store);
        if (l->fp8)
            h->a.kernels->spread(&scales, 1, from_scales + token[i] * l->scales_bytes,
                                 l->scales_bytes, store);
    }
    algo_drain(store);
}

static enum epa_status send_rows(struct v1_task *task)
{
    struct v1_host *h = task->h;
    bool far = way_to(h, task->peer) == V1_PUT;
    uint32_t start = start_to(task, task->peer);
    uint32_t rows = start_to(task, task->peer + 1) - start;
    uint32_t piece = far ? 1 + ALGO_SLICE_BYTES / (uint32_t)h->l.row_bytes : rows;
    uint64_t slot = offset_of(h, &h->l.slot, position(task)) + slot_of(h, h->l.row_bytes);
    enum epa_status status = EPA_OK;

    for (task->begin = 0; task->begin < rows && status == EPA_OK; task->begin = task->end) {
        task->end = rows - task->begin > piece ? task->begin + piece : rows;
        algo_begin_work(&h->a);
        status = in_parallel(task, gather_rows);
        algo_end_work(&h->a, task->set->s.epoch, ALGO_DISPATCH, task->m->tokens);
        if (status == EPA_OK && far)
            status = algo_put(&h->a, slot + task->begin * h->l.row_bytes,
                              here(h, &h->l.out, 0) + (start + task->begin) * h->l.row_bytes,
                              (task->end - task->begin) * h->l.row_bytes, task->peer);
        if (status == EPA_OK && far) /* peers may wait for room here meanwhile */
            status = h->a.t->ops->progress(h->a.t);
    }
    return status;
}

/* Splits and signal; out of reach scales bring the signal, if there are any. */
static enum epa_status end_rows(struct v1_task *task)
{
    struct v1_host *h = task->h;
    const uint32_t *splits = splits_to(task, task->peer);
    uint32_t start = start_to(task, task->peer);
    uint32_t rows = start_to(task, task->peer + 1) - start;
    uint64_t to = offset_of(h, &h->l.splits, position(task)) +
                  (uint64_t)h->a.world.rank * h->l.split_words * 4;
    uint64_t bytes = (h->l.local + 1 + (uint64_t)rows) * 4;
    enum epa_status status;

    if (task->peer == h->a.world.rank) {
        memcpy(h->a.t->heap + to, splits, bytes);
        return EPA_OK;
    }
    if (way_to(h, task->peer) != V1_PUT)
        return signal_with(task, to, splits, bytes);
    status = algo_put(&h->a, to, splits, bytes, task->peer);
    /* The signal is seen after all of the block, and not only after the scales. */
    if (status == EPA_OK)
        status = h->a.t->ops->fence(h->a.t, task->peer);
    if (status == EPA_OK)
        status = signal_with(
            task, offset_of(h, &h->l.slot_scales, position(task)) + slot_of(h, h->l.scales_bytes),
            here(h, &h->l.out_scales, 0) + start * h->l.scales_bytes, rows * h->l.scales_bytes);
    return status;
}

/* To the source's `expert outputs`, by stores. */
static void copy_outputs(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    uint64_t bytes = h->l.output_bytes;
    const uint32_t *count = counts_of(task, task->peer);
    const uint32_t *start = starts_of(task, task->peer);
    char *to =
        there(h, task->peer, &h->l.outputs, position(task)) + task->set->offset[task->peer] * bytes;

    for (uint32_t j = 0; j < h->l.local; j++) {
        uint32_t begin = algo_share(count[j], worker, workers);
        uint32_t n = algo_share(count[j], worker + 1, workers) - begin;

        if (n != 0)
            memcpy(to + begin * bytes, task->y + (start[j] + (uint64_t)begin) * bytes, n * bytes);
        to += count[j] * bytes;
    }
}

/* The outputs of an expert are adjacent, here and there: a piece of the block. */
static enum epa_status put_outputs(const struct v1_task *task)
{
    struct v1_host *h = task->h;
    uint64_t bytes = h->l.output_bytes;
    const uint32_t *count = counts_of(task, task->peer);
    const uint32_t *start = starts_of(task, task->peer);
    uint64_t to =
        offset_of(h, &h->l.outputs, position(task)) + task->set->offset[task->peer] * bytes;
    enum epa_status status = EPA_OK;

    for (uint32_t j = 0; j < h->l.local && status == EPA_OK; j++) {
        if (count[j] == 0)
            continue;
        status = algo_put(&h->a, to, task->y + start[j] * bytes, count[j] * bytes, task->peer);
        to += count[j] * bytes;
    }
    return status == EPA_OK ? h->a.t->ops->progress(h->a.t) : status;
}

static enum epa_status end_outputs(const struct v1_task *task)
{
    struct v1_host *h = task->h;
    enum epa_status status = EPA_OK;

    if (task->peer == h->a.world.rank)
        return EPA_OK;
    /* The signal is seen after the block. */
    if (way_to(h, task->peer) == V1_PUT)
        status = h->a.t->ops->fence(h->a.t, task->peer);
    return status == EPA_OK ? signal_with(task, 0, NULL, 0) : status;
}

static enum epa_status send_block(struct v1_task *task)
{
    enum v1_way way = way_to(task->h, task->peer);

    if (way == V1_PULL)
        return EPA_OK;
    if (task->mode == V1_DISPATCH)
        return send_rows(task);
    return way == V1_PUT ? put_outputs(task) : in_parallel(task, copy_outputs);
}

/* Blocks to those ranks that pull, or to the others. */
static enum epa_status send_to(struct v1_task *task, bool pulling)
{
    struct v1_host *h = task->h;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i <= h->l.size && status == EPA_OK; i++) {
        h->a.last.peer = task->peer = algo_peer(&h->a, i);
        if ((way_to(h, task->peer) == V1_PULL) != pulling)
            continue;
        status = send_block(task);
        if (status == EPA_OK)
            status = task->mode == V1_DISPATCH ? end_rows(task) : end_outputs(task);
    }
    return status;
}

/* All blocks of a call to all ranks, until those of all ranks have arrived and nothing that this
 * rank sent is held back. */
static enum epa_status exchange(struct v1_task *task)
{
    struct v1_host *h = task->h;
    enum epa_status status = send_to(task, true);

    if (status == EPA_OK)
        status = send_to(task, false);
    if (algo_phase(&h->a, status, "wait"))
        status = algo_wait_for_all(&h->a, v1_signal_of(h->l.size, task->mode, task->call, 0),
                                   task->call, task->mode == V1_DISPATCH ? "rows" : "outputs");
    return algo_phase(&h->a, status, "quiet") ? h->a.t->ops->quiet(h->a.t) : status;
}

/* ---- rows received by source, regrouped by expert ----
 *
 * A row is copied once, to all experts here that want its token if it is pulled, else from its
 * slot. Each source is looked through by one worker; then all copy. */

/* Takes a copy of the counts, which must stay for combine, and refuses what cannot be. */
static enum epa_status read_splits(const struct v1_task *task)
{
    struct v1_host *h = task->h;
    uint32_t most = h->l.max_tokens * h->l.topk;

    for (uint32_t source = 0; source < h->l.size; source++) {
        const uint32_t *restrict splits = splits_of(task, source);
        uint32_t *restrict count = task->set->count + (size_t)source * h->l.local;
        uint32_t start = splits[h->l.local];
        uint64_t rows = 0;

        for (uint32_t j = 0; j < h->l.local; j++) {
            count[j] = splits[j];
            rows += count[j];
        }
        if (rows > h->l.max_m || start > most || rows > most - start)
            return algo_fail(&h->a, EPA_ERR_MISMATCH,
                             "rank %u says it sent %llu rows from place %u on, of %u it "
                             "can have and %u it may send",
                             source, (unsigned long long)rows, start, most, h->l.max_m);
        task->set->offset[source] = start;
    }
    return EPA_OK;
}

/* One expert's rows after the other's, in each by source. */
static void lay_out(const struct v1_task *task)
{
    const struct v1_host *h = task->h;
    uint32_t *restrict all = task->set->s.recv_count, local = h->l.local, entry = 0;
    uint64_t *restrict first = task->set->s.recv_start;

    memset(all, 0, local * sizeof(*all));
    for (uint32_t source = 0; source < h->l.size; source++) {
        uint32_t *restrict start = starts_of(task, source);
        const uint32_t *restrict count = counts_of(task, source);

        for (uint32_t j = 0; j < local; j++) {
            start[j] = all[j];
            all[j] += count[j];
        }
    }
    for (uint32_t j = 0; j < local; j++) {
        first[j] = entry;
        entry += all[j];
    }
    for (uint32_t source = 0; source < h->l.size; source++) {
        uint32_t *restrict start = starts_of(task, source);

        for (uint32_t j = 0; j < local; j++)
            start[j] += (uint32_t)first[j];
    }
}

static struct epa_origin *origins(const struct v1_task *task)
{
    return (struct epa_origin *)(void *)here(task->h, &task->h->l.origin, index_of(task));
}

/* A row for each choice: from its slot to its place. False if a token cannot be. */
static bool index_slots(const struct v1_task *task, uint32_t source)
{
    const struct v1_host *h = task->h;
    const uint32_t *count = counts_of(task, source), *start = starts_of(task, source);
    const uint32_t *token = splits_of(task, source) + h->l.local + 1;
    struct epa_origin *origin = origins(task);
    uint32_t at = source * h->l.max_m, row = 0;

    for (uint32_t j = 0; j < h->l.local; j++) {
        for (uint32_t i = 0; i < count[j]; i++, row++) {
            if (token[row] >= h->l.max_tokens)
                return false;
            h->move[at + row] = (struct v1_move){.row = row, .dest = at + row, .n = 1};
            h->dest[at + row] = start[j] + i;
            origin[start[j] + i] = (struct epa_origin){source, token[row]};
        }
    }
    h->moves[source] = row;
    return true;
}

/* A row for each token, to all of its places: sorted by token again, by counting. False if a
 * token cannot be. */
static bool index_tokens(const struct v1_task *task, uint32_t source, uint32_t *seen)
{
    const struct v1_host *h = task->h;
    const uint32_t *count = counts_of(task, source), *start = starts_of(task, source);
    const uint32_t *token = splits_of(task, source) + h->l.local + 1;
    struct epa_origin *origin = origins(task);
    uint32_t at = source * h->l.max_m, moves = at, rows = 0;

    for (uint32_t j = 0; j < h->l.local; j++)
        rows += count[j];
    memset(seen, 0, h->l.max_tokens * sizeof(*seen));
    for (uint32_t i = 0; i < rows; i++) {
        if (token[i] >= h->l.max_tokens || ++seen[token[i]] > h->l.topk)
            return false;
    }
    for (uint32_t t = 0; t < h->l.max_tokens; t++) {
        uint32_t n = seen[t];

        seen[t] = at;
        if (n != 0)
            h->move[moves++] = (struct v1_move){.row = t, .dest = at, .n = n};
        at += n;
    }
    h->moves[source] = moves - source * h->l.max_m;
    for (uint32_t j = 0; j < h->l.local; j++) {
        for (uint32_t i = 0; i < count[j]; i++, token++) {
            h->dest[seen[*token]++] = start[j] + i;
            origin[start[j] + i] = (struct epa_origin){source, *token};
        }
    }
    return true;
}

static void index_sources(void *arg, uint32_t worker, uint32_t workers)
{
    struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    uint32_t *seen = h->seen + (size_t)worker * h->l.max_tokens;

    for (uint32_t source = worker; source < h->l.size; source += workers) {
        bool good = way_to(h, source) == V1_PULL ? index_tokens(task, source, seen)
                                                 : index_slots(task, source);

        /* Relaxed: read once the workers have been waited for. */
        if (!good)
            __atomic_store_n(&task->wrong, source + 1, __ATOMIC_RELAXED);
    }
}

/* Of the next row, while one is copied: more would keep what this one needs waiting. */
enum { FETCH_BYTES = 1024 };

static void copy_from(const struct v1_task *task, uint32_t source, uint32_t begin, uint32_t end)
{
    const struct v1_host *h = task->h;
    const struct v1_layout *l = &h->l;
    bool pull = way_to(h, source) == V1_PULL;
    const char *rows =
        pull ? there(h, source, &l->token, position(task))
             : here(h, &l->slot, position(task)) + (uint64_t)source * l->max_m * l->row_bytes;
    const char *scales = pull ? there(h, source, &l->token_scales, position(task))
                              : here(h, &l->slot_scales, position(task)) +
                                    (uint64_t)source * l->max_m * l->scales_bytes;
    char *recv = here(h, &l->recv, index_of(task));
    char *recv_scales = here(h, &l->recv_scales, index_of(task));
    const struct v1_move *move = h->move + (size_t)source * l->max_m;
    void *to[V1_TOPK];

    for (uint32_t i = begin; i < end; i++) {
        const uint32_t *dest = h->dest + move[i].dest;

        if (i + 1 < end) {
            const char *next = rows + move[i + 1].row * l->row_bytes;

            for (uint64_t at = 0; at < l->row_bytes && at < FETCH_BYTES; at += V1_LINE)
                __builtin_prefetch(next + at);
        }
        for (uint32_t c = 0; c < move[i].n; c++)
            to[c] = recv + dest[c] * l->row_bytes;
        h->a.kernels->spread(to, move[i].n, rows + move[i].row * l->row_bytes, l->row_bytes,
                             h->a.store);
        if (!l->fp8)
            continue;
        for (uint32_t c = 0; c < move[i].n; c++)
            to[c] = recv_scales + dest[c] * l->scales_bytes;
        h->a.kernels->spread(to, move[i].n, scales + move[i].row * l->scales_bytes, l->scales_bytes,
                             h->a.store);
    }
}

static void copy_rows(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;

    for (uint32_t i = 1; i <= h->l.size; i++) {
        uint32_t source = algo_peer(&h->a, i), n = h->moves[source];

        copy_from(task, source, algo_share(n, worker, workers), algo_share(n, worker + 1, workers));
    }
    algo_drain(h->a.store);
}

/* The rows of all sources, to where experts read them, and the views of them. */
static enum epa_status regroup(struct v1_task *task)
{
    struct v1_host *h = task->h;
    const struct algo_set *s = &task->set->s;
    struct epa_moe *m = task->m;
    enum epa_status status = read_splits(task);

    if (status != EPA_OK)
        return status;
    lay_out(task);
    epa_publish_counts(m, s->epoch, h->l.local, s->recv_count, s->recv_start);
    m->recv = here(h, &h->l.recv, index_of(task));
    m->recv_scale = NULL;
    if (h->l.fp8)
        m->recv_scale = (const float *)(const void *)here(h, &h->l.recv_scales, index_of(task));
    m->origin = origins(task);
    m->recv_stride = h->l.row_bytes;
    m->scale_stride = h->l.scales_bytes;
    m->origin_stride = sizeof(struct epa_origin);
    m->y_space = here(h, &h->l.y, index_of(task));
    status = in_parallel(task, index_sources);
    if (status == EPA_OK && task->wrong != 0)
        return algo_fail(&h->a, EPA_ERR_MISMATCH,
                         "rank %u says that a row is of a token it cannot have, or that "
                         "one token has more rows than choices",
                         task->wrong - 1);
    if (status != EPA_OK)
        return status;
    algo_begin_work(&h->a);
    status = in_parallel(task, copy_rows);
    algo_end_work(&h->a, s->epoch, ALGO_DISPATCH, m->tokens);
    return status;
}

static enum epa_status dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct v1_host *h = (struct v1_host *)a;
    struct v1_task task = {.h = h, .m = &problem->u.moe, .mode = V1_DISPATCH};
    enum epa_status status;

    algo_begin(&h->a, "dispatch", "sort_and_quantise");
    task.set = (struct v1_set *)algo_take_set(&h->a);
    if (task.set == NULL)
        return EPA_ERR_CONFIG;
    task.call = ++h->calls[V1_DISPATCH];
    h->again = NULL;
    algo_set_store(&h->a, task.set->s.epoch);
    status = sort_and_quantise(&task);
    if (algo_phase(&h->a, status, "send"))
        status = exchange(&task);
    if (algo_phase(&h->a, status, "postprocess"))
        status = regroup(&task);
    algo_end(&h->a);
    return status;
}

/* ---- combine ----
 *
 * The position of a choice's output is its place as sorted, counted from an address for each
 * expert. */

/* Outputs that are elsewhere, to where they are pulled or put from. */
static void copy_to_y(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    uint64_t bytes = h->l.output_bytes;
    uint32_t begin = algo_share(task->end, worker, workers);
    uint32_t n = algo_share(task->end, worker + 1, workers) - begin;

    if (n != 0) /* y may be NULL then */
        memcpy(here(h, &h->l.y, index_of(task)) + begin * bytes,
               (const char *)task->m->y + begin * bytes, n * bytes);
}

/* Who pushes to all reads them where they are. */
static enum epa_status find_outputs(struct v1_task *task)
{
    struct v1_host *h = task->h;
    const struct algo_set *s = &task->set->s;
    uint32_t last = h->l.local - 1;
    bool apart = task->m->y != here(h, &h->l.y, index_of(task));

    task->y = here(h, &h->l.y, index_of(task));
    if (apart && !h->l.pull && h->a.far == 0)
        task->y = task->m->y;
    else if (apart && h->again == NULL) /* called again the same outputs are there */
        task->end = (uint32_t)s->recv_start[last] + s->recv_count[last];
    return task->end != 0 ? in_parallel(task, copy_to_y) : EPA_OK;
}

/* For each expert of a rank, where the output for my row 0, as sorted, would be if it was for
 * that expert: modulo the size of an address, as there may be none. */
static void locate_outputs(const struct v1_task *task, uint32_t rank)
{
    const struct v1_host *h = task->h;
    uint32_t first = rank * h->l.local, local = h->l.local;
    const uint32_t *restrict cumsum = task->set->cumsum + first, *restrict start = cumsum;
    uintptr_t *restrict out = h->output + first, at, bytes = h->l.output_bytes;

    if (way_to(h, rank) == V1_PULL) {
        at = (uintptr_t)there(h, rank, &h->l.y, index_of(task));
        start = (const uint32_t *)(const void *)there(h, rank, &h->l.starts, index_of(task)) +
                (size_t)h->a.world.rank * local;
    } else {
        at = (uintptr_t)here(h, &h->l.outputs, position(task));
    }
    for (uint32_t j = 0; j < local; j++)
        out[j] = at + ((uintptr_t)start[j] - cumsum[j]) * bytes;
}

static void reduce_tokens(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    const struct epa_moe *m = task->m;
    uint32_t end = algo_share(m->tokens, worker + 1, workers);

    for (uint32_t t = algo_share(m->tokens, worker, workers); t < end; t++) {
        const uint16_t *row[V1_TOPK];
        float weight[V1_TOPK];
        uint32_t n = 0;

        for (size_t i = (size_t)t * h->l.topk; i < (size_t)(t + 1) * h->l.topk; i++) {
            if (m->expert[i] < 0)
                continue;
            weight[n] = m->weight[i];
            row[n++] =
                (const uint16_t *)(h->output[m->expert[i]] + task->set->at[i] * h->l.output_bytes);
        }
        h->a.kernels->reduce(row, weight, n, h->l.hidden, h->a.store,
                             (uint16_t *)m->out + (size_t)t * h->l.hidden);
    }
    algo_drain(h->a.store);
}

static enum epa_status combine(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct v1_host *h = (struct v1_host *)a;
    struct v1_task task = {.h = h, .m = &problem->u.moe, .mode = V1_COMBINE};
    enum epa_status status;

    algo_begin(&h->a, "combine", "send");
    if (h->again != NULL && h->again->s.epoch != task.m->epoch)
        h->again = NULL;
    task.set = h->again;
    if (task.set == NULL)
        task.set = (struct v1_set *)algo_set_of(&h->a, task.m->epoch, ALGO_OPEN, "open");
    if (task.set == NULL)
        return EPA_ERR_CONFIG;
    task.call = ++h->calls[V1_COMBINE];
    algo_set_store(&h->a, task.m->epoch);
    status = find_outputs(&task);
    if (status == EPA_OK)
        status = exchange(&task);
    if (algo_phase(&h->a, status, "reduce")) {
        for (uint32_t rank = 0; rank < h->l.size; rank++)
            locate_outputs(&task, rank);
        algo_begin_work(&h->a);
        status = in_parallel(&task, reduce_tokens);
        if (h->again == NULL) /* called again it is not of the pair */
            algo_end_work(&h->a, task.m->epoch, ALGO_COMBINE, task.m->tokens);
    }
    algo_end(&h->a);
    task.set->s.state = ALGO_FREE;
    h->again = task.set;
    return status;
}

/* ---- set-up ---- */

static const struct epa_stage stages[] = {
    {"dispatch", EPA_STAGE_DISPATCH, dispatch},
    {"combine", EPA_STAGE_COMBINE, combine},
};

enum epa_status v1_host_create(const struct epa_algorithm_params *p, const struct v1_layout *l,
                               struct epa_algorithm **out, struct epa_error *err)
{
    const struct algo_setup setup = {
        .name = "ll_v1",
        .stages = stages,
        .n_stages = sizeof(stages) / sizeof(stages[0]),
        .state_bytes = sizeof(struct v1_host),
        .set_bytes = sizeof(struct v1_set),
        .buffers = l->buffers,
        .signals = V1_MODES * V1_POSITIONS * l->size,
        .heap_bytes = l->heap_bytes,
        .puts = l->puts,
    };
    struct algo_host *a;
    struct v1_host *h;
    enum epa_status status = algo_create(&setup, p, &a, err);

    if (status != EPA_OK)
        return status;
    h = (struct v1_host *)a;
    for (uint32_t mode = 0; mode < V1_MODES; mode++)
        h->calls[mode] = p->epoch;
    a->base.discard = algo_discard;
    a->base.combines_again = true;
    h->l = *l;
    algo_choose_store(a, ((const struct v1_config *)p->config)->nontemporal,
                      (double)p->world.local_size * l->max_tokens * l->topk *
                          (double)(l->row_bytes + l->scales_bytes + l->output_bytes),
                      false);
    for (uint32_t b = 0; b < l->buffers; b++) {
        struct v1_set *s = (struct v1_set *)a->set[b];

        s->at = algo_alloc(a, l->max_tokens, l->topk * sizeof(*s->at));
        s->cumsum = algo_alloc(a, l->experts + 1, sizeof(*s->cumsum));
        s->count = algo_alloc(a, l->experts, sizeof(*s->count));
        s->offset = algo_alloc(a, l->size, sizeof(*s->offset));
    }
    h->tokens_of = algo_alloc(a, l->experts, sizeof(*h->tokens_of));
    h->next = algo_alloc(a, a->workers, l->experts * sizeof(*h->next));
    h->output = algo_alloc(a, l->experts, sizeof(*h->output));
    h->move = algo_alloc(a, l->rows, sizeof(*h->move));
    h->moves = algo_alloc(a, l->size, sizeof(*h->moves));
    h->dest = algo_alloc(a, l->rows, sizeof(*h->dest));
    h->seen = algo_alloc(a, a->workers, l->max_tokens * sizeof(*h->seen));
    for (uint32_t e = 0; e < l->experts && h->tokens_of != NULL; e++)
        h->tokens_of[e] = v1_splits_to(l, a->rank_of[e] + 1, 0);
    return algo_created(a, out, err);
}

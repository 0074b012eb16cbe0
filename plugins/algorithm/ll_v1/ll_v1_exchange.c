/* The exchange of ll_v1 on hosts, the same for both modes: a block to each rank, its signal
 * with the count of the call, and the wait for those of all.
 *
 *                dispatch                              combine
 *   a block      rows of a slice, as sorted            answers to a slice, as sorted there
 *   goes to      slots of its source, from rank *      where the slice begins at the source:
 *                MAX_M                                 recv_offset
 *   with it      splits, scales                        nothing
 *
 * A rank in reach that pulls gets no more than splits and signal: it loads tokens, and expert outputs
 * from y, as it uses them. One that is pushed to gets its block by stores, one out of reach by
 * puts: long ones in pieces, so that making them and sending them overlap. */
#include "ll_v1_host.h"

#include <string.h>

enum { PIECE_BYTES = 256 << 10 };

/* After a call that may have had no room: true if it must be made again. *deadline is 0 before
 * the first try. */
static bool again(struct v1_host *h, enum epa_status *status, uint64_t *deadline)
{
    if (*status != EPA_AGAIN)
        return false;
    *status = h->t->ops->progress(h->t);
    if (*status != EPA_OK)
        return false;
    if (*deadline == 0)
        *deadline = v1_now_ns() + h->timeout_ns;
    if (v1_now_ns() > *deadline) {
        *status = v1_fail(h, EPA_ERR_TIMEOUT,
                          "for %.3f s the transport had no room for what goes to rank %u",
                          (double)h->timeout_ns * 1e-9, h->last.peer);
        return false;
    }
    return true;
}

static enum epa_status put(const struct v1_task *task, uint64_t dst, const void *src,
                           uint64_t bytes)
{
    struct v1_host *h = task->h;
    enum epa_status status;
    uint64_t deadline = 0;

    do {
        status = epa_put(h->t, dst, src, bytes, task->peer);
    } while (again(h, &status, &deadline));
    return status;
}

/* The signal of this call, and what is put with it, if anything. */
static enum epa_status signal_with(const struct v1_task *task, uint64_t dst,
                                   const void *src, uint64_t bytes)
{
    struct v1_host *h = task->h;
    uint32_t word =
        h->signal + v1_signal_of(h->l.size, task->mode, task->call, h->world.rank);
    enum epa_status status;
    uint64_t deadline = 0;

    epa_trace_flow_begin(h->trace, 0, task->peer, word, task->call);
    do {
        if (bytes == 0)
            status = h->t->ops->signal(h->t, word, task->call, EPA_SIGNAL_SET, task->peer);
        else
            status = epa_put_signal(h->t, dst, src, bytes, word, task->call, task->peer);
    } while (again(h, &status, &deadline));
    return status;
}

static uint32_t slice_rows(const struct v1_task *task, uint32_t rank)
{
    return start_to(task, rank + 1) - start_to(task, rank);
}

/* Where the first row of my block stands at any rank. */
static uint64_t slot_of(const struct v1_host *h, uint64_t row_bytes)
{
    return (uint64_t)h->world.rank * h->l.max_m * row_bytes;
}

/* ---- dispatch: rows ---- */

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
    char *to =
        far ? here(h, &l->out, 0) + start * l->row_bytes
            : there(h, task->peer, &l->slot, position(task)) + slot_of(h, l->row_bytes);
    char *to_scales = far ? here(h, &l->out_scales, 0) + start * l->scales_bytes
                          : there(h, task->peer, &l->slot_scales, position(task)) +
                                slot_of(h, l->scales_bytes);
    enum epa_store store = far ? EPA_STORE_CACHED : h->store;
    uint32_t n = task->end - task->begin;
    uint32_t end = task->begin + share_of(n, worker + 1, workers);

    for (uint32_t i = task->begin + share_of(n, worker, workers); i < end; i++) {
        void *row = to + i * l->row_bytes, *scales = to_scales + i * l->scales_bytes;

        h->kernels->spread(&row, 1, from + token[i] * l->row_bytes, l->row_bytes, store);
        if (l->fp8)
            h->kernels->spread(&scales, 1, from_scales + token[i] * l->scales_bytes,
                               l->scales_bytes, store);
    }
    if (store == EPA_STORE_NONTEMPORAL)
        epa_store_drain();
}

static enum epa_status send_rows(struct v1_task *task)
{
    struct v1_host *h = task->h;
    bool far = way_to(h, task->peer) == V1_PUT;
    uint32_t rows = slice_rows(task, task->peer), start = start_to(task, task->peer);
    uint32_t piece = far ? 1 + PIECE_BYTES / (uint32_t)h->l.row_bytes : rows;
    uint64_t slot = offset_of(h, &h->l.slot, position(task)) + slot_of(h, h->l.row_bytes);
    enum epa_status status = EPA_OK;

    for (task->begin = 0; task->begin < rows && status == EPA_OK; task->begin = task->end) {
        task->end = rows - task->begin > piece ? task->begin + piece : rows;
        status = h->backend->ops->parallel(h->backend, gather_rows, task);
        if (status == EPA_OK && far)
            status = put(task, slot + task->begin * h->l.row_bytes,
                         here(h, &h->l.out, 0) + (start + task->begin) * h->l.row_bytes,
                         (task->end - task->begin) * h->l.row_bytes);
        if (status == EPA_OK && far) /* peers may wait for room here meanwhile */
            status = h->t->ops->progress(h->t);
    }
    return status;
}

/* Splits and signal; out of reach scales bring the signal, if there are any. */
static enum epa_status end_rows(struct v1_task *task)
{
    struct v1_host *h = task->h;
    const uint32_t *splits = splits_to(task, task->peer);
    uint32_t rows = slice_rows(task, task->peer), start = start_to(task, task->peer);
    uint64_t to = offset_of(h, &h->l.splits, position(task)) +
                  (uint64_t)h->world.rank * h->l.split_words * 4;
    uint64_t bytes = (h->l.local + 1 + (uint64_t)rows) * 4;
    enum epa_status status;

    if (task->peer == h->world.rank) {
        memcpy(h->t->heap + to, splits, bytes);
        return EPA_OK;
    }
    if (way_to(h, task->peer) != V1_PUT)
        return signal_with(task, to, splits, bytes);
    status = put(task, to, splits, bytes);
    /* The signal is seen after all of the block, and not only after the scales. */
    if (status == EPA_OK)
        status = h->t->ops->fence(h->t, task->peer);
    if (status == EPA_OK)
        status = signal_with(task,
                             offset_of(h, &h->l.slot_scales, position(task)) +
                                 slot_of(h, h->l.scales_bytes),
                             here(h, &h->l.out_scales, 0) + start * h->l.scales_bytes,
                             rows * h->l.scales_bytes);
    return status;
}

/* ---- combine: expert outputs ---- */

/* To the source's `expert outputs`, by stores. */
static void copy_outputs(void *arg, uint32_t worker, uint32_t workers)
{
    const struct v1_task *task = arg;
    const struct v1_host *h = task->h;
    uint64_t bytes = h->l.output_bytes;
    const uint32_t *count = counts_of(task, task->peer);
    const uint32_t *start = starts_of(task, task->peer);
    char *to = there(h, task->peer, &h->l.outputs, position(task)) +
               task->set->offset[task->peer] * bytes;

    for (uint32_t j = 0; j < h->l.local; j++) {
        uint32_t begin = share_of(count[j], worker, workers);
        uint32_t n = share_of(count[j], worker + 1, workers) - begin;

        if (n != 0)
            memcpy(to + begin * bytes, task->y + (start[j] + (uint64_t)begin) * bytes,
                   n * bytes);
        to += count[j] * bytes;
    }
}

/* The expert outputs of an expert stand side by side, here and there: a piece of the block. */
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
        status = put(task, to, task->y + start[j] * bytes, count[j] * bytes);
        to += count[j] * bytes;
    }
    return status == EPA_OK ? h->t->ops->progress(h->t) : status;
}

static enum epa_status end_outputs(const struct v1_task *task)
{
    struct v1_host *h = task->h;
    enum epa_status status = EPA_OK;

    if (task->peer == h->world.rank)
        return EPA_OK;
    /* The signal is seen after the block. */
    if (way_to(h, task->peer) == V1_PUT)
        status = h->t->ops->fence(h->t, task->peer);
    return status == EPA_OK ? signal_with(task, 0, NULL, 0) : status;
}

/* ---- both ---- */

static enum epa_status send_block(struct v1_task *task)
{
    struct v1_host *h = task->h;

    if (way_to(h, task->peer) == V1_PULL)
        return EPA_OK;
    if (task->mode == V1_DISPATCH)
        return send_rows(task);
    if (way_to(h, task->peer) == V1_PUT)
        return put_outputs(task);
    return h->backend->ops->parallel(h->backend, copy_outputs, task);
}

/* Blocks to those ranks that pull, or to the others. */
static enum epa_status send_to(struct v1_task *task, bool pulling)
{
    struct v1_host *h = task->h;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i <= h->l.size && status == EPA_OK; i++) {
        h->last.peer = task->peer = peer_at(h, i);
        if ((way_to(h, task->peer) == V1_PULL) != pulling)
            continue;
        status = send_block(task);
        if (status == EPA_OK)
            status = task->mode == V1_DISPATCH ? end_rows(task) : end_outputs(task);
    }
    return status;
}

/* For the blocks of all others; a slice for each, where somebody profiles. */
static enum epa_status wait_for_all(const struct v1_task *task)
{
    struct v1_host *h = task->h;
    uint16_t name = epa_trace_name(h->trace, "block_from");
    uint64_t begin = epa_trace_now(h->trace), end;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i < h->l.size && status == EPA_OK; i++, begin = end) {
        uint32_t peer = peer_at(h, i);
        uint32_t word = h->signal + v1_signal_of(h->l.size, task->mode, task->call, peer);

        h->last.peer = peer;
        status = epa_wait(h->t, word, task->call, h->timeout_ns);
        end = epa_trace_slice(h->trace, 0, name, begin, peer, 0, 0);
        if (status == EPA_OK)
            epa_trace_flow_end(h->trace, 0, begin, end, peer, word, task->call);
    }
    return status;
}

enum epa_status v1_exchange(struct v1_task *task)
{
    struct v1_host *h = task->h;
    enum epa_status status = send_to(task, true);

    if (status == EPA_OK)
        status = send_to(task, false);
    if (v1_phase(h, status, "wait"))
        status = wait_for_all(task);
    return v1_phase(h, status, "quiet") ? h->t->ops->quiet(h->t) : status;
}

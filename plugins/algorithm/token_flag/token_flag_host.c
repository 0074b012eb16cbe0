/* token_flag on hosts.
 *
 * Each rank has a buffer for every source with room for the maximum of rows, so that a source sends
 * without a request. dispatch_send gives each flat token the next row of its rank's buffer at the
 * receiver and stores the message there. dispatch_recv copies received rows to rows by expert.
 * combine_send stores the expert output in the flat token's slot, which the message names, and
 * combine_recv adds up a token's slots. Peers that loads and stores do not reach receive puts with
 * the same contents.
 *
 * Flags. Counts have a signal, epoch << TF_ROW_BITS | rows + 1, which states both numbers and is
 * never cleared. With flag_granularity: rank the signal follows all rows. With flag_granularity:
 * token it precedes the rows, and each row has a flag with the epoch. Each expert output has such a
 * flag, too. The flag of stored data is the last word of the message or slot: a release writes it,
 * an acquire waits for it. The flag of put data is a separate signal that comes with the put. A
 * rank states in its counts whether it stores or puts. All flags of a dispatch and its combine
 * carry the epoch, only grow, and are compared with >=.
 *
 * Sending stages end with quiet(). It flushes data for which peers wait, orders the two SETs of a
 * word, and makes the sources of puts reusable.
 *
 * A layer (parts) calls quiet() before the combine_send of each part, before the dispatch_send of
 * part 1, and at its end. That is enough: the next dispatch_send overwrites the staging area and
 * counts, and the set's next dispatch overwrites expert outputs. Each pair of SETs of a word has a
 * quiet() in between. A rank that waits makes progress, so data for which peers wait arrives
 * earlier.
 *
 * Dispatches have the epochs 1, 2, 3... A dispatch takes the first free set, and its combine
 * releases the set. All ranks make the same calls in the same order, so they take the same set. The
 * protocol needs no barrier. dispatch_send m + 1 follows dispatch_recv m, also in a layer. Let epoch
 * m take the set of epoch n < m; then combine n ended on this rank before dispatch m began.
 *   - A rank writes rows of m into its own part of p's buffer. It has received the expert outputs
 *     for the rows of n in this part, so p has copied these rows.
 *   - Rows by expert and y belong to p. p reads them for the last time in its combine_send n
 *     (puts included, because of quiet), before its dispatch m.
 *   - A rank that has ended dispatch_recv m writes slots of m at p. It has seen p's counts of m,
 *     so p has ended combine n, which read the slots.
 *   - Counts and their signals have two places, for odd and even epochs, independent of the set:
 *     a rank without a row for p does not wait for p's expert outputs. It writes its counts of
 *     m + 2 after its dispatch_recv m + 1, which saw p's counts of m + 1; p has read the counts
 *     of m before.
 *   - Each set has its own signals of rows and expert outputs, as it has its own flags in memory.
 *     With two open dispatches, an expert output of the later one must not pass for a missing
 *     output of the earlier one, from another rank. */
#include "token_flag_host.h"

#include "token_flag_combine.h"
#include "token_flag_layer.h"
#include "token_flag_recv.h"
#include "token_flag_send.h"
#include "token_flag_state.h"

/* ---- set-up ---- */

/* Clear the flags: transports do not initialise the heap. No rank begins before all ranks have
 * completed set-up, so no arrived flag is lost. */
static void clear_flags(struct tf_host *h)
{
    uint64_t slots = (uint64_t)h->l.max_tokens * h->l.topk;

    for (uint32_t b = 0; b < h->l.buffers; b++) {
        char *msg = h->a.t->heap + comm_offset(h, h->a.set[b], 0, 0);
        char *slot = h->a.t->heap + slot_offset(h, h->a.set[b], 0, 0);

        for (uint64_t i = 0; i < h->l.rows; i++, msg += h->l.message_bytes)
            meta_of(h, msg)->flag = 0;
        for (uint64_t i = 0; i < slots; i++, slot += h->l.slot_bytes)
            *flag_of_slot(h, slot) = 0;
    }
}

static const struct epa_stage stages[4] = {
    {"dispatch_send", EPA_STAGE_SEND, tf_dispatch_send},
    {"dispatch_recv", EPA_STAGE_DISPATCH, tf_dispatch_recv},
    {"combine_send", EPA_STAGE_SEND, tf_combine_send},
    {"combine_recv", EPA_STAGE_COMBINE, tf_combine_recv},
};

static const char *const names[TF_NAMES] = {
    [TF_SEND_TOKEN] = "send_token",
    [TF_ROW_FROM] = "row_from",
    [TF_OUTPUT_FROM] = "output_from",
    [TF_COUNTS_FROM] = "counts_from",
};

enum epa_status tf_host_create(const struct epa_algorithm_params *p, const struct tf_layout *l,
                               struct epa_algorithm **out, struct epa_error *err)
{
    const struct algo_setup setup = {
        .name = "token_flag",
        .stages = l->parts != 0 ? tf_layer : stages,
        .n_stages = l->parts != 0 ? 1 : sizeof(stages) / sizeof(stages[0]),
        .state_bytes = sizeof(struct tf_host),
        .set_bytes = sizeof(struct algo_set),
        .buffers = l->buffers,
        .signals = l->signals,
        .heap_bytes = l->heap_bytes,
        .puts = l->puts,
    };
    struct algo_host *a;
    struct tf_host *h;
    enum epa_status status = algo_create(&setup, p, &a, err);

    if (status != EPA_OK)
        return status;
    h = (struct tf_host *)a;
    h->l = *l;
    a->store = (enum epa_store)((const struct tf_config *)p->config)->nontemporal;
    h->source = algo_alloc(a, l->size, sizeof(*h->source));
    h->sent = algo_alloc(a, l->size, sizeof(*h->sent));
    h->taken = algo_alloc(a, (size_t)l->size * l->local, sizeof(*h->taken));
    h->first = algo_alloc(a, (size_t)(l->size + 1) * l->local, sizeof(*h->first));
    h->scratch = algo_alloc_scratch(a, l->message_bytes);
    for (uint32_t i = 0; i < TF_NAMES; i++)
        h->name[i] = epa_trace_name(p->trace, names[i]);
    if (l->parts != 0 && !a->no_memory)
        status = tf_layer_create(h, p, err);
    if (status != EPA_OK) {
        a->base.destroy(&a->base);
        return status;
    }
    clear_flags(h);
    return algo_created(a, out, err);
}

/* fused on hosts: routes of rows, the sending of rows, and the index of received rows.
 *
 * A source sorts its rows by (rank, lowest expert there that has chosen the row, token), so that
 * the rows of low experts leave first. It sends each rank a header with the experts and weights of
 * each of these rows. From the headers alone the receiver computes its entries and the places of
 * their rows. */
#include "fused_dispatch.h"

#include "fused_progress.h"

/* ---- routes ---- */

/* Computes the rows of token t, by ascending rank or choice, and their sort keys. Returns their
 * number. */
static uint32_t list_rows_of_token(const struct fused_host *h, uint32_t t, uint32_t *rank,
                                   uint32_t *key)
{
    const int32_t *expert = h->m->expert + (size_t)t * h->l.topk;
    uint32_t lowest[FUSED_RANKS], n = 0;
    uint64_t ranks = 0;

    for (uint32_t k = 0; k < h->l.topk; k++) {
        uint32_t e = (uint32_t)expert[k], r;

        if (expert[k] < 0) {
            if (!h->l.dedup)
                rank[n++] = ALGO_NONE;
            continue;
        }
        r = h->a.rank_of[e];
        if (!h->l.dedup) {
            rank[n] = r;
            key[n++] = e;
        } else if ((ranks >> r & 1) == 0 || e < lowest[r]) {
            ranks |= 1ull << r;
            lowest[r] = e;
        }
    }
    for (; ranks != 0; ranks &= ranks - 1) {
        rank[n] = (uint32_t)__builtin_ctzll(ranks);
        key[n] = lowest[rank[n]];
        n++;
    }
    return n;
}

/* Returns the key; without sorting, rows are in the order of tokens. */
static uint32_t sort_key(const struct fused_host *h, uint32_t rank, uint32_t key)
{
    return h->c.sort ? key : rank * h->l.local;
}

/* Numbers the rows that this rank sends. */
static void place_rows(struct fused_host *h)
{
    const struct fused_layout *l = &h->l;
    uint32_t rank[FUSED_TOPK], key[FUSED_TOPK], end = 0;

    memset(h->key_next, 0, (l->experts + 1) * sizeof(*h->key_next));
    memset(h->expert_left, 0, l->experts * sizeof(*h->expert_left));
    for (uint32_t t = 0; t < h->m->tokens; t++) {
        uint32_t n = list_rows_of_token(h, t, rank, key);

        for (uint32_t j = 0; j < n; j++) {
            if (rank[j] == ALGO_NONE)
                continue;
            h->key_next[sort_key(h, rank[j], key[j])]++;
            h->expert_left[key[j]]++;
        }
    }
    for (uint32_t e = 0; e < l->experts; e++) {
        uint32_t rows = h->key_next[e];

        if (e % l->local == 0)
            h->out_start[e / l->local] = end;
        h->key_next[e] = end;
        end += rows;
    }
    h->out_start[l->size] = end;
    for (uint32_t t = 0; t < h->m->tokens; t++) {
        struct fused_place *place = h->place + (size_t)t * l->places;
        uint32_t n = list_rows_of_token(h, t, rank, key);

        for (uint32_t j = 0; j < l->places; j++) {
            place[j].rank = j < n ? rank[j] : ALGO_NONE;
            if (place[j].rank == ALGO_NONE)
                continue;
            place[j].out = h->key_next[sort_key(h, rank[j], key[j])]++;
            h->token[place[j].out] = t;
            h->first_expert[place[j].out] = key[j];
        }
    }
}

/* ---- headers ---- */

static uint32_t *sent_head(const struct fused_host *h, uint32_t rank)
{
    uint64_t at = at_set(h, h->l.sent_heads_at, h->l.size * h->l.head_bytes);

    return (uint32_t *)(void *)(h->a.t->heap + at + rank * h->l.head_bytes);
}

/* Writes the experts of a row in the order of the token's choices, which is the order of sums. */
static uint32_t write_choices(const struct fused_host *h, uint32_t rank, uint32_t out,
                              struct fused_choice *choice)
{
    uint32_t t = h->token[out], n = 0;
    size_t first = (size_t)t * h->l.topk;

    for (uint32_t k = 0; k < h->l.topk; k++) {
        int32_t e = h->m->expert[first + k];
        bool mine = e >= 0 && h->a.rank_of[e] == rank;

        if (mine && (h->l.dedup || (uint32_t)e == h->first_expert[out]))
            choice[n++] = (struct fused_choice){(uint32_t)e - rank * h->l.local,
                                                h->l.dedup ? h->m->weight[first + k] : 1.0f};
    }
    return n;
}

/* Writes a header; returns its bytes. */
static size_t write_head(struct fused_host *h, uint32_t rank, const uint32_t *rows_to,
                         const uint32_t *entries_to)
{
    const struct fused_layout *l = &h->l;
    uint32_t first = h->out_start[rank], rows = rows_to[rank], n = 0;
    uint32_t *head = sent_head(h, rank);
    uint32_t *row_start = head + (head_row_start(l, head) - head);
    struct fused_choice *choice;

    head[FUSED_ROWS] = rows;
    head[FUSED_OUT_START] = first;
    head[FUSED_EPOCH] = (uint32_t)h->epoch;
    memcpy(head + FUSED_HEAD_WORDS, rows_to, l->size * sizeof(*head));
    memcpy(head + FUSED_HEAD_WORDS + l->size, entries_to, l->size * sizeof(*head));
    memcpy(head + FUSED_HEAD_WORDS + 2 * (size_t)l->size, h->expert_left + rank * l->local,
           l->local * sizeof(*head));
    choice = (struct fused_choice *)(void *)((char *)head + head_choices_at(l, rows));
    for (uint32_t r = 0; r < rows; r++) {
        row_start[r] = n;
        n += write_choices(h, rank, first + r, choice + n);
    }
    row_start[rows] = n;
    head[FUSED_CHOICES] = n;
    return head_choices_at(l, rows) + n * sizeof(*choice);
}

static void send_heads(struct fused_host *h)
{
    const struct fused_layout *l = &h->l;
    uint64_t heads = at_set(h, l->heads_at, l->size * l->head_bytes);
    uint32_t me = h->a.world.rank, rows_to[FUSED_RANKS], entries_to[FUSED_RANKS] = {0};

    for (uint32_t r = 0; r < l->size; r++)
        rows_to[r] = h->out_start[r + 1] - h->out_start[r];
    for (size_t i = 0; i < (size_t)h->m->tokens * l->topk; i++) {
        if (h->m->expert[i] >= 0)
            entries_to[h->a.rank_of[h->m->expert[i]]]++;
    }
    for (uint32_t i = 1; i <= l->size; i++) {
        uint32_t r = algo_peer(&h->a, i);
        size_t bytes = write_head(h, r, rows_to, entries_to);
        uint64_t to = heads + me * l->head_bytes;

        if (r == me)
            h->head[me] = sent_head(h, me);
        else if (!fused_near(h, r))
            fused_request(h, r, to, sent_head(h, r), epa_round_up(bytes, FUSED_LINE),
                          head_signal(me));
        else {
            memcpy(algo_at(&h->a, r, to), sent_head(h, r), bytes);
            fused_flag(h, r, head_flag_at(h, me));
        }
        if (r != me)
            h->head[r] = (const uint32_t *)(const void *)(h->a.t->heap + heads + r * l->head_bytes);
    }
}

/* Lists the chunks of all ranks in turn, so that no link idles and rows of low experts leave first
 * to every rank. Own rows are read in place, unless they must be quantised. */
static void list_chunks(struct fused_host *h)
{
    const struct fused_layout *l = &h->l;

    h->n_chunks = 0;
    for (uint32_t c = 0; c < l->chunks; c++) {
        for (uint32_t i = 1; i <= l->size; i++) {
            uint32_t r = algo_peer(&h->a, i), rows = h->out_start[r + 1] - h->out_start[r];

            if (c * l->chunk >= rows || (r == h->a.world.rank && !l->fp8))
                continue;
            h->chunk[h->n_chunks] = (struct fused_place){.rank = r, .out = c * l->chunk};
            fused_add_task(h, FUSED_Q_DISPATCH, FUSED_SEND, h->n_chunks++, 0);
        }
    }
}

void fused_route(struct fused_host *h)
{
    place_rows(h);
    send_heads(h);
    if (!h->l.padded) /* the places of rows depend on the counts of all ranks */
        fused_add_task(h, FUSED_Q_DISPATCH, FUSED_INDEX, 0, 0);
    list_chunks(h);
    if (h->l.padded)
        fused_add_task(h, FUSED_Q_DISPATCH, FUSED_INDEX, 0, 0);
}

/* ---- rows ---- */

static void write_row(struct fused_host *h, uint32_t out, uint32_t end, char *to)
{
    epa_write_token(h->a.kernels, h->m, h->l.fp8, h->token[out], end, to, to + h->l.scales_at);
}

/* Counts sent rows of an expert; the task that sends the last row sets the flag. */
static void count_down_expert(struct fused_host *h, uint32_t expert, uint32_t rows)
{
    uint32_t r = h->a.rank_of[expert], unit = expert - r * h->l.local, me = h->a.world.rank;

    /* Acquire and release: the flag covers the rows of all tasks that have counted. */
    if (__atomic_sub_fetch(&h->expert_left[expert], rows, __ATOMIC_ACQ_REL) != 0)
        return;
    if (fused_near(h, r))
        fused_flag(h, r, row_flag_at(h, me, unit));
    else
        fused_request(h, r, 0, NULL, 0, row_signal(&h->l, me, unit));
}

static void count_down_experts(struct fused_host *h, uint32_t first, uint32_t n)
{
    uint32_t begin = first;

    for (uint32_t i = first + 1; i <= first + n; i++) {
        if (i < first + n && h->first_expert[i] == h->first_expert[begin])
            continue;
        count_down_expert(h, h->first_expert[begin], i - begin);
        begin = i;
    }
}

void fused_send(struct fused_host *h, uint32_t worker, uint32_t item)
{
    const struct fused_layout *l = &h->l;
    uint32_t r = h->chunk[item].rank, row = h->chunk[item].out, me = h->a.world.rank;
    uint32_t first = h->out_start[r] + row, rows = h->out_start[r + 1] - first, c = row / l->chunk;
    uint64_t base = (uint64_t)me * l->source_rows;
    bool by_block = h->c.ready == FUSED_READY_BLOCK, near = fused_near(h, r);
    char *to;

    if (!l->padded) {
        const struct fused_wait why = {.what = "counts", .peer = ALGO_NONE, .expert = ALGO_NONE};

        if (!fused_await(h, worker, &h->indexed, h->epoch, &why))
            return;
        base = h->sent_base[r];
    }
    base = at_set(h, l->rows_at, l->rows_bytes) + (base + row) * l->row_bytes;
    rows = rows < l->chunk ? rows : l->chunk;
    to = near ? algo_at(&h->a, r, base)
              : h->a.t->heap + at_set(h, l->staging_at, l->staging_bytes) + first * l->row_bytes;
    for (uint32_t i = 0; i < rows; i++)
        write_row(h, first + i, h->m->tokens, to + i * l->row_bytes);
    if (!near)
        fused_request(h, r, base, to, rows * l->row_bytes,
                      by_block ? row_signal(l, me, c) : ALGO_NONE);
    if (!by_block)
        count_down_experts(h, first, rows);
    else if (near)
        fused_flag(h, r, row_flag_at(h, me, c));
    fused_poll(h, worker);
}

/* ---- the index ---- */

static void reject_head(struct fused_host *h, uint32_t source, const char *what, uint64_t seen,
                        uint64_t most)
{
    if (algo_stop(&h->pass, EPA_ERR_MISMATCH))
        (void)algo_fail(&h->a, EPA_ERR_MISMATCH, "the header of rank %u has %s %llu (limit %llu)",
                        source, what, (unsigned long long)seen, (unsigned long long)most);
}

/* Returns true if the values of a header are possible. */
static bool check_head(struct fused_host *h, uint32_t source)
{
    const struct fused_layout *l = &h->l;
    const uint32_t *head = h->head[source];
    const struct fused_choice *choice;
    uint32_t n = head[FUSED_CHOICES];

    if (head[FUSED_EPOCH] != (uint32_t)h->epoch)
        reject_head(h, source, "epoch", head[FUSED_EPOCH], h->epoch);
    else if (head[FUSED_ROWS] > l->source_rows)
        reject_head(h, source, "rows", head[FUSED_ROWS], l->source_rows);
    else if (n > l->source_choices || head_row_start(l, head)[head[FUSED_ROWS]] != n ||
             head_entries_to(l, head)[h->a.world.rank] != n)
        reject_head(h, source, "choices", n, l->source_choices);
    else {
        choice = head_choices(l, head);
        for (uint32_t i = 0; i < n; i++) {
            if (choice[i].expert >= l->local) {
                reject_head(h, source, "expert", choice[i].expert, l->local);
                return false;
            }
        }
        return true;
    }
    return false;
}

static bool wait_for_heads(struct fused_host *h, uint32_t worker)
{
    for (uint32_t i = 1; i < h->l.size; i++) {
        uint32_t source = algo_peer(&h->a, i);
        const struct fused_wait why = {.what = "counts", .peer = source, .expert = ALGO_NONE};

        if (!fused_await(h, worker, fused_flag_here(h, head_flag_at(h, source)), h->epoch, &why) ||
            !check_head(h, source))
            return false;
    }
    return true;
}

/* Computes where the rows of each source begin, and checks that rows and entries of each rank
 * fit. */
static bool place_sources(struct fused_host *h)
{
    const struct fused_layout *l = &h->l;
    uint32_t me = h->a.world.rank;

    for (uint32_t r = 0; r < l->size; r++) {
        uint64_t rows = 0, entries = 0;

        for (uint32_t s = 0; s < l->size; s++) {
            if (s == me)
                h->sent_base[r] = rows;
            if (r == me)
                h->row_base[s] = l->padded ? (uint64_t)s * l->source_rows : rows;
            rows += head_rows_to(h->head[s])[r];
            entries += head_entries_to(l, h->head[s])[r];
        }
        if (entries <= l->entries && (l->padded || rows <= l->rows))
            continue;
        if (algo_stop(&h->pass, EPA_ERR_CONFIG))
            (void)algo_fail_key(&h->a, EPA_ERR_CONFIG, "algorithm.capacity",
                                "rank %u would receive %llu entries and has room for %llu: raise "
                                "algorithm.capacity, or set it to 0",
                                r, (unsigned long long)entries, (unsigned long long)l->entries);
        return false;
    }
    return true;
}

/* Divides the entries of an expert into the minimum number of blocks, with sizes as equal as panels
 * allow. */
static void divide_into_blocks(struct fused_host *h, uint32_t expert, uint32_t first, uint32_t rows)
{
    uint32_t panels = (rows + EPA_GEMM_ROWS - 1) / EPA_GEMM_ROWS;
    uint32_t n = (rows + h->l.block_rows - 1) / h->l.block_rows;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t from = panels * i / n * EPA_GEMM_ROWS;
        uint32_t to = i + 1 < n ? panels * (i + 1) / n * EPA_GEMM_ROWS : rows;

        h->block[h->n_blocks++] = (struct fused_block){expert, first + from, to - from};
    }
}

/* Numbers entries by expert, then by source and row. */
static void place_entries(struct fused_host *h)
{
    const struct fused_layout *l = &h->l;
    uint32_t *next = h->count, end = 0;

    memset(next, 0, l->local * sizeof(*next));
    for (uint32_t s = 0; s < l->size; s++) {
        const struct fused_choice *choice = head_choices(l, h->head[s]);

        for (uint32_t i = 0; i < h->head[s][FUSED_CHOICES]; i++)
            next[choice[i].expert]++;
    }
    h->n_blocks = 0;
    for (uint32_t e = 0; e < l->local; e++) {
        uint32_t rows = next[e];

        divide_into_blocks(h, e, end, rows);
        next[e] = h->entry_start[e] = end;
        end += rows;
    }
    h->stream_slots = (uint64_t)end * l->hidden * sizeof(float) > FUSED_CACHED;
    for (uint32_t s = 0; s < l->size; s++) {
        const uint32_t *start = head_row_start(l, h->head[s]);
        const struct fused_choice *choice = head_choices(l, h->head[s]);
        uint32_t rows = h->head[s][FUSED_ROWS], first = s * l->source_rows;

        for (uint32_t row = 0; row < rows; row++) {
            for (uint32_t i = start[row]; i < start[row + 1]; i++) {
                uint32_t entry = next[choice[i].expert]++;

                h->entry_row[entry] = first + row;
                h->choice_entry[(size_t)s * l->source_choices + i] = entry;
            }
        }
    }
}

/* With few blocks, several workers share the columns of each block. */
static void choose_splits(struct fused_host *h)
{
    const struct fused_layout *l = &h->l;
    uint32_t enough = 4 * h->gemm_workers, n = h->c.column_splits;
    uint32_t most = fused_tiles(l, l->hidden < l->ffn ? l->hidden : l->ffn);

    if (n == 0)
        n = h->gemm_workers == 1 || h->n_blocks == 0 || h->n_blocks >= enough
                ? 1
                : (enough + h->n_blocks - 1) / h->n_blocks;
    h->splits = n < most ? n : most;
}

/* Returns the end of the group of blocks that begins at `first`: blocks of one expert, for which
 * the tasks of a part of the columns read the same weights. */
static uint32_t end_of_group(const struct fused_host *h, uint32_t first)
{
    uint32_t end = first + 1;

    while (end < h->n_blocks && end - first < h->c.group_blocks &&
           h->block[end].expert == h->block[first].expert)
        end++;
    return end;
}

static void add_group(struct fused_host *h, enum fused_queue_number q, enum fused_kind kind,
                      uint32_t first, uint32_t end)
{
    for (uint32_t part = 0; part < h->splits; part++) {
        for (uint32_t i = first; i < end; i++)
            fused_add_task(h, q, kind, i, part);
    }
}

/* Lists the tasks. The up-projection is ahead of the down-projection by at least `lag` blocks, so
 * that workers do not wait for each other, and the second stage of dispatch is ahead of both. */
void fused_list_gemms(struct fused_host *h)
{
    uint32_t lag = h->gemm_workers == 1 ? 0 : (h->gemm_workers + h->splits - 1) / h->splits;
    uint32_t lead = h->c.tail_workers != 0 ? 0 : h->gemm_workers;
    uint32_t n = h->n_blocks, packs = 0, downs = 0;
    bool two = h->c.launches == FUSED_TWO;

    memset(h->packed, 0, n * sizeof(*h->packed));
    memset(h->ups, 0, n * sizeof(*h->ups));
    memset(h->downs, 0, n * sizeof(*h->downs));
    for (uint32_t first = 0, end; first < n; first = end) {
        end = end_of_group(h, first);
        for (; h->c.tail && packs < n && packs < end + lead; packs++)
            fused_add_task(h, h->c.tail_workers != 0 ? FUSED_Q_TAIL : FUSED_Q_GEMM, FUSED_PACK,
                           packs, 0);
        add_group(h, FUSED_Q_GEMM, FUSED_UP, first, end);
        while (downs < n) {
            uint32_t down_end = end_of_group(h, downs);

            if (end < n && down_end + lag > end)
                break;
            add_group(h, two ? FUSED_Q_DOWN : FUSED_Q_GEMM, FUSED_DOWN, downs, down_end);
            downs = down_end;
        }
    }
    h->down_tasks = (uint64_t)n * h->splits;
}

static void list_finish(struct fused_host *h)
{
    for (uint32_t s = 0; h->c.combine_mode == FUSED_SERIAL && s < h->l.size; s++) {
        for (uint32_t c = 0; c * h->l.chunk < h->head[s][FUSED_ROWS]; c++)
            fused_add_task(h, FUSED_Q_DOWN, FUSED_FINISH, s * h->l.chunks + c, 0);
    }
}

/* Sets the counters of the rows that return: for each part of a row the down-projection tasks that
 * write its columns, over all experts of the row, and for each chunk its rows. */
static void count_awaited_tasks(struct fused_host *h)
{
    const struct fused_layout *l = &h->l;

    for (uint32_t part = 0; part < l->out_parts; part++) {
        uint32_t tasks = 0;

        for (uint32_t i = 0; i < h->splits; i++)
            tasks += fused_first_column(h, l->hidden, i) < out_column(l, part + 1) &&
                     fused_first_column(h, l->hidden, i + 1) > out_column(l, part);
        for (uint32_t s = 0; s < l->size; s++) {
            const uint32_t *start = head_row_start(l, h->head[s]);
            uint32_t rows = h->head[s][FUSED_ROWS];
            uint32_t *left = h->left + (size_t)s * l->source_rows * l->out_parts + part;
            uint32_t *chunk_left = h->chunk_left + (size_t)s * l->chunks * l->out_parts + part;

            for (uint32_t row = 0; row < rows; row++)
                left[(size_t)row * l->out_parts] = (start[row + 1] - start[row]) * tasks;
            for (uint32_t c = 0; c * l->chunk < rows; c++)
                chunk_left[(size_t)c * l->out_parts] =
                    rows - c * l->chunk < l->chunk ? rows - c * l->chunk : l->chunk;
        }
    }
}

void fused_index(struct fused_host *h, uint32_t worker)
{
    if (!wait_for_heads(h, worker) || !place_sources(h))
        return;
    place_entries(h);
    choose_splits(h);
    count_awaited_tasks(h);
    fused_list_gemms(h);
    list_finish(h);
    /* Release: pairs with the acquire in fused_await(). The index is complete. */
    __atomic_store_n(&h->indexed, h->epoch, __ATOMIC_RELEASE);
}

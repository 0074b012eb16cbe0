/* fused on hosts: GEMMs of received rows, the sum of a token's outputs, and combine.
 *
 * A block is a group of rows of one expert. A task gathers its rows into A panels, multiplies them
 * by W_up in tiles that stay in the cache, and writes the activation to the A panels of the
 * down-projection. The down-projection writes float32 outputs to the slots of the block's entries.
 * The last task that a row waits for adds up the row's slots and sends the sum back. The sum
 * follows the order of the token's choices, independent of the order of tasks. */
#include "fused_gemm.h"

#include "fused_alloc.h"
#include "fused_progress.h"

/* ---- second stage of dispatch: rows to panels ---- */

/* Waits until the flags of all rows of a block are set. */
static bool wait_for_rows(struct fused_host *h, uint32_t worker, const struct fused_block *b)
{
    const struct fused_layout *l = &h->l;
    struct fused_wait why = {.what = "rows",
                             .expert = b->expert,
                             .row = b->first - h->entry_start[b->expert],
                             .rows = b->rows};

    for (uint32_t s = 0; h->c.ready == FUSED_READY_EXPERT && s < l->size; s++) {
        const uint32_t *first_rows = head_first_rows(l, h->head[s]);

        if (s == h->a.world.rank && !l->fp8)
            continue;
        why.peer = s;
        /* With dedup, a row belongs to the lowest expert that has chosen it. */
        for (uint32_t e = l->dedup ? 0 : b->expert; e <= b->expert; e++) {
            why.first = why.last = e;
            if (first_rows[e] != 0 &&
                !fused_await(h, worker, fused_flag_here(h, row_flag_at(h, s, e)), h->epoch, &why))
                return false;
        }
    }
    for (uint32_t i = 0; h->c.ready == FUSED_READY_BLOCK && i < b->rows; i++) {
        uint32_t row = h->entry_row[b->first + i], s = row / l->source_rows;
        uint32_t c = row % l->source_rows / l->chunk;

        if (s == h->a.world.rank && !l->fp8)
            continue;
        why.peer = s;
        why.first = c * l->chunk;
        why.last = why.first + l->chunk - 1;
        if (!fused_await(h, worker, fused_flag_here(h, row_flag_at(h, s, c)), h->epoch, &why))
            return false;
    }
    return true;
}

static const char *row_at(const struct fused_host *h, uint32_t row)
{
    const struct fused_layout *l = &h->l;
    uint32_t s = row / l->source_rows, r = row % l->source_rows;

    if (s == h->a.world.rank && !l->fp8)
        return (const char *)h->m->x + h->token[h->out_start[s] + r] * l->row_bytes;
    return h->a.t->heap + at_set(h, l->rows_at, l->rows_bytes) +
           (h->row_base[s] + r) * l->row_bytes;
}

/* INT8: packs a row. q: buffer for the row in dtype, and for its codes. */
static void pack_int8_row(const struct fused_host *h, const char *row, const float *row_scale,
                          char *panel, uint32_t i, float *scale, uint8_t *q)
{
    const struct fused_layout *l = &h->l;
    uint16_t *words = (uint16_t *)(void *)q;
    int8_t *codes = (int8_t *)q + (size_t)l->hidden * 2;

    if (l->fp8)
        h->a.kernels->output_fp8((const uint8_t *)row, row_scale, l->hidden, l->group, 1, words);
    *scale = h->rows->quantise_int8(l->fp8 ? words : (const uint16_t *)(const void *)row, l->dtype,
                                    l->hidden, codes);
    h->gemm->pack_a(codes, l->hidden, panel, i);
}

/* Gathers the rows of a block. q: buffer for a row. */
static void pack_block(const struct fused_host *h, const struct fused_block *b, char *panel,
                       float *scale, uint8_t *q)
{
    const struct fused_layout *l = &h->l;

    for (uint32_t i = 0; i < b->rows; i++) {
        const char *row = row_at(h, h->entry_row[b->first + i]);
        const float *row_scale = (const float *)(const void *)(row + l->scales_at);
        float *to = scale + (size_t)i * l->row_groups;

        if (l->weights == EPA_INT8) {
            pack_int8_row(h, row, row_scale, panel, i, to, q);
        } else if (l->weights != EPA_FP8_E4M3 && !l->fp8) {
            h->gemm->pack_a(row, l->hidden, panel, i);
        } else if (l->weights != EPA_FP8_E4M3) {
            h->gemm->pack_a_fp8((const uint8_t *)row, row_scale, l->group, l->hidden, panel, i);
        } else if (l->fp8) {
            memcpy(to, row_scale, l->row_groups * sizeof(*to));
            h->gemm->pack_a_fp8((const uint8_t *)row, to, l->group, l->hidden, panel, i);
        } else {
            h->a.kernels->quantise((const uint16_t *)(const void *)row, l->hidden, l->group, NULL,
                                   q, to);
            h->gemm->pack_a_fp8(q, to, l->group, l->hidden, panel, i);
        }
    }
}

static uint8_t *spare_row(const struct fused_host *h, uint32_t worker)
{
    return (uint8_t *)h->tile + (worker + 1) * h->tile_bytes - h->spare_bytes;
}

/* Returns the panel of a block with tail, otherwise of a worker. */
static char *panel_of(const struct fused_host *h, uint32_t slot)
{
    return h->panel + slot * h->panel_bytes;
}

static float *panel_scale_of(const struct fused_host *h, uint32_t slot)
{
    return h->panel_scale + (size_t)slot * h->l.block_rows * h->l.row_groups;
}

/* Waits for a ring slot: all parts of the earlier block in it must be done. */
static bool wait_for_place(struct fused_host *h, uint32_t worker, uint32_t block, uint32_t ring,
                           const uint64_t *parts, const char *what)
{
    const struct fused_wait why = {.what = what,
                                   .peer = ALGO_NONE,
                                   .first = block - ring,
                                   .last = block - ring,
                                   .expert = ALGO_NONE};

    return block < ring || fused_await(h, worker, &parts[block - ring], h->splits, &why);
}

void fused_pack(struct fused_host *h, uint32_t worker, uint32_t block)
{
    const struct fused_block *b = &h->block[block];
    uint32_t slot = block % h->panel_ring;

    if (!wait_for_place(h, worker, block, h->panel_ring, h->ups, "the up-projection of block") ||
        !wait_for_rows(h, worker, b))
        return;
    if (h->half != FUSED_MOVING)
        pack_block(h, b, panel_of(h, slot), panel_scale_of(h, slot), spare_row(h, worker));
    /* Release: pairs with the acquire of the tasks that multiply the panel. */
    __atomic_store_n(&h->packed[block], 1, __ATOMIC_RELEASE);
}

/* Returns the number of a block's panel after filling it, or ALGO_NONE if the call must end. */
static uint32_t find_panel(struct fused_host *h, uint32_t worker, uint32_t block)
{
    const struct fused_wait why = {.what = "the copy of block",
                                   .peer = ALGO_NONE,
                                   .first = block,
                                   .last = block,
                                   .expert = ALGO_NONE};

    if (h->c.tail)
        return fused_await(h, worker, &h->packed[block], 1, &why) ? block % h->panel_ring
                                                                  : ALGO_NONE;
    if (h->held[worker] == block)
        return worker;
    if (!wait_for_rows(h, worker, &h->block[block]))
        return ALGO_NONE;
    if (h->half != FUSED_MOVING)
        pack_block(h, &h->block[block], panel_of(h, worker), panel_scale_of(h, worker),
                   spare_row(h, worker));
    h->held[worker] = block;
    return worker;
}

/* ---- GEMMs ---- */

/* Returns the number of columns of the tile that begins at `first`, up to `end`. */
static uint32_t tile_columns(const struct fused_host *h, uint32_t first, uint32_t end)
{
    return end - first < h->l.tile_cols ? end - first : h->l.tile_cols;
}

/* Returns the packed weights of an expert from a column on. */
static const char *up_weights(const struct fused_host *h, uint32_t expert, uint32_t column)
{
    return h->weights + expert * (h->up_bytes + h->down_bytes) +
           epa_gemm_b_bytes(h->l.weights, column, h->l.hidden);
}

static const char *down_weights(const struct fused_host *h, uint32_t expert, uint32_t column)
{
    return up_weights(h, expert, 0) + h->up_bytes +
           epa_gemm_b_bytes(h->l.weights, column, h->l.ffn);
}

/* Multiplies n columns of a projection from `column` on. Projection 1 is the up rows, which follow
 * the gate rows. next_a, next_b: operands of the worker's next product, for prefetches. */
static void multiply_up(const struct fused_host *h, const struct fused_block *b, uint32_t slot,
                        uint32_t projection, uint32_t column, uint32_t n, float *c,
                        const char *next_a, const char *next_b)
{
    const struct fused_layout *l = &h->l;
    size_t block = (size_t)b->expert * epa_mlp_up_blocks(&h->mlp) +
                   projection * epa_mlp_blocks(l->ffn) + column / FUSED_TILE;
    struct epa_gemm_call call = {
        .a = panel_of(h, slot),
        .b = up_weights(h, b->expert, projection * l->ffn + column),
        .m = b->rows,
        .n = n,
        .k = l->hidden,
        .c = c,
        .ldc = l->tile_cols,
        .block_k = h->c.tile_k,
        .next_a = next_a,
        .next_b = next_b,
    };

    if (l->row_groups != 0) {
        call.group = l->group;
        call.a_scale = panel_scale_of(h, slot);
        call.a_scale_stride = l->row_groups;
        call.b_scale =
            h->mlp.up_scale + (l->weights == EPA_INT8
                                   ? (size_t)b->expert * l->up_rows + projection * l->ffn + column
                                   : block * epa_mlp_blocks(l->hidden));
    }
    h->gemm->multiply(&call);
}

/* Returns the intermediate of a block as an operand of the down-projection. */
static char *inter_panel(const struct fused_host *h, uint32_t block)
{
    return h->inter + block % h->inter_ring * h->inter_bytes;
}

static float *inter_scale(const struct fused_host *h, uint32_t block)
{
    return h->inter_scale + (size_t)(block % h->inter_ring) * h->l.block_rows * h->l.inter_groups;
}

/* INT8: returns the intermediate of a block in dtype, [block_rows][ffn]. */
static uint16_t *inter_words(const struct fused_host *h, uint32_t block)
{
    return (uint16_t *)(void *)(inter_panel(h, block) +
                                epa_gemm_panel_at(EPA_INT8, h->l.block_rows, h->l.ffn));
}

/* INT8: quantises the intermediate of a block. The scale of a row depends on all of its columns, so the
 * last task of the up-projection calls this function. */
static void quantise_inter(const struct fused_host *h, uint32_t worker, uint32_t block)
{
    const struct fused_layout *l = &h->l;
    int8_t *codes = (int8_t *)spare_row(h, worker);

    for (uint32_t i = 0; i < h->block[block].rows; i++) {
        inter_scale(h, block)[i] = h->rows->quantise_int8(
            inter_words(h, block) + (size_t)i * l->ffn, l->dtype, l->ffn, codes);
        h->gemm->pack_a(codes, l->ffn, inter_panel(h, block), i);
    }
}

void fused_up(struct fused_host *h, uint32_t worker, uint32_t block, uint32_t part)
{
    const struct fused_layout *l = &h->l;
    const struct fused_block *b = &h->block[block];
    uint32_t first = fused_first_column(h, l->ffn, part),
             end = fused_first_column(h, l->ffn, part + 1);
    uint32_t slot;
    float *gate = (float *)(void *)(h->tile + worker * h->tile_bytes);
    float *up = gate + (size_t)l->block_rows * l->tile_cols;
    bool gated = h->mlp.activation == EPA_ACTIVATION_SWIGLU;

    if (!wait_for_place(h, worker, block, h->inter_ring, h->downs, "the down-projection of block"))
        return;
    slot = find_panel(h, worker, block);
    if (slot == ALGO_NONE)
        return;
    for (uint32_t n = first; n < end && h->half != FUSED_MOVING; n += l->tile_cols) {
        uint32_t columns = tile_columns(h, n, end);
        /* The next product of one worker is the down-projection; with more workers this is a
         * guess. */
        const char *panel = panel_of(h, slot);
        const char *next_a = n + l->tile_cols < end ? panel : inter_panel(h, block);
        const char *next_b =
            n + l->tile_cols < end
                ? up_weights(h, b->expert, n + l->tile_cols)
                : down_weights(h, b->expert, fused_first_column(h, l->hidden, part));
        struct gemm_tile_out tile = {
            .gate = gate,
            .up = gated ? up : NULL,
            .ld = l->tile_cols,
            .m = b->rows,
            .n = columns,
            .k = l->ffn,
            .k0 = n,
            .weights = l->weights,
            .dtype = l->dtype,
            .group = l->inter_group,
            .plain = l->weights == EPA_INT8,
            .to = l->weights == EPA_INT8 ? (void *)inter_words(h, block) : inter_panel(h, block),
            .scale = inter_scale(h, block),
        };

        multiply_up(h, b, slot, 0, n, columns, gate, gated ? panel : next_a,
                    gated ? up_weights(h, b->expert, l->ffn + n) : next_b);
        if (gated)
            multiply_up(h, b, slot, 1, n, columns, up, next_a, next_b);
        h->rows->activate(&tile);
        fused_poll(h, worker);
    }
    /* Release: pairs with the acquire of the down-projection, which reads all parts. INT8: the last
     * task counts twice, and its acquire pairs with the release of the other tasks. */
    if (__atomic_add_fetch(&h->ups[block], 1, __ATOMIC_ACQ_REL) < h->splits ||
        l->weights != EPA_INT8)
        return;
    if (h->half != FUSED_MOVING)
        quantise_inter(h, worker, block);
    __atomic_add_fetch(&h->ups[block], 1, __ATOMIC_RELEASE);
}

/* ---- outputs ---- */

/* Adds up a part of the outputs of a received row in `to`. */
static void add_up(const struct fused_host *h, uint32_t row, uint32_t part, uint16_t *to)
{
    const struct fused_layout *l = &h->l;
    uint32_t s = row / l->source_rows, r = row % l->source_rows, n;
    uint32_t column = out_column(l, part);
    const uint32_t *head = h->head[s], *start = head_row_start(l, head);
    const struct fused_choice *choice = head_choices(l, head) + start[r];
    const uint32_t *entry = h->choice_entry + (size_t)s * l->source_choices + start[r];
    const float *output[FUSED_TOPK];
    float weight[FUSED_TOPK];

    n = start[r + 1] - start[r];
    for (uint32_t i = 0; i < n; i++) {
        output[i] = h->slot + (size_t)entry[i] * l->hidden + column;
        weight[i] = choice[i].weight;
    }
    h->rows->sum(output, weight, n, out_column(l, part + 1) - column, l->dtype, to);
}

/* Counts a part of a returned row of its chunk; the last row of the chunk triggers the put of this
 * part. */
static void count_down_chunk(struct fused_host *h, uint32_t s, uint32_t r, uint32_t part)
{
    const struct fused_layout *l = &h->l;
    uint32_t c = r / l->chunk, first = c * l->chunk, rows = h->head[s][FUSED_ROWS] - first;
    uint64_t done_rows = (uint64_t)l->size * l->source_rows;
    uint64_t done = at_set(h, l->done_at, l->done_bytes);
    uint64_t out = at_set(h, l->out_at, l->out_bytes);
    uint32_t *left = &h->chunk_left[((size_t)s * l->chunks + c) * l->out_parts + part];

    /* Acquire and release: the put covers the rows of all tasks that have counted. */
    if (__atomic_sub_fetch(left, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    rows = rows < l->chunk ? rows : l->chunk;
    done += out_part_at(l, done_rows, (uint64_t)s * l->source_rows + first, part);
    out += out_part_at(l, l->out_rows, h->head[s][FUSED_OUT_START] + (uint64_t)first, part);
    fused_request(h, s, out, h->a.t->heap + done, out_part_at(l, 0, rows, part),
                  out_signal(l, h->a.world.rank, c, part));
}

/* Returns a part of a row to its source. */
static void return_row(struct fused_host *h, uint32_t row, uint32_t part)
{
    const struct fused_layout *l = &h->l;
    uint32_t s = row / l->source_rows, r = row % l->source_rows;
    uint32_t out = h->head[s][FUSED_OUT_START] + r;
    bool near = fused_near(h, s), stays = !near || (l->gather && s != h->a.world.rank);
    uint64_t done_rows = (uint64_t)l->size * l->source_rows;
    char *to =
        stays
            ? h->a.t->heap + at_set(h, l->done_at, l->done_bytes) +
                  out_part_at(l, done_rows, row, part)
            : algo_at(&h->a, s,
                      at_set(h, l->out_at, l->out_bytes) + out_part_at(l, l->out_rows, out, part));

    add_up(h, row, part, (uint16_t *)(void *)to);
    if (near)
        fused_flag(h, s, out_flag_at(h, out, part));
    else
        count_down_chunk(h, s, r, part);
}

/* Counts the task for a part of each row of a block. */
static void count_down_rows(struct fused_host *h, const struct fused_block *b, uint32_t part)
{
    for (uint32_t i = 0; i < b->rows; i++) {
        uint32_t row = h->entry_row[b->first + i];
        uint32_t *left = &h->left[(size_t)row * h->l.out_parts + part];

        /* Acquire and release: the task that counts last reads the outputs of all tasks. */
        if (__atomic_sub_fetch(left, 1, __ATOMIC_ACQ_REL) == 0)
            return_row(h, row, part);
    }
}

/* Counts the task for the parts from `part` on that end at or before column `end`; returns the
 * next part. */
static uint32_t count_down_parts(struct fused_host *h, const struct fused_block *b, uint32_t part,
                                 uint32_t end)
{
    while (part < h->l.out_parts && out_column(&h->l, part + 1) <= end)
        count_down_rows(h, b, part++);
    return part;
}

void fused_down(struct fused_host *h, uint32_t worker, uint32_t block, uint32_t part)
{
    const struct fused_layout *l = &h->l;
    const struct fused_block *b = &h->block[block];
    uint32_t first = fused_first_column(h, l->hidden, part),
             end = fused_first_column(h, l->hidden, part + 1);
    uint32_t next = block + 1 < h->n_blocks ? block + 1 : 0;
    uint32_t out = first / l->out_cols; /* the first part of rows that this task has not counted */
    bool returns = h->half != FUSED_MULTIPLYING && h->c.combine_mode != FUSED_SERIAL;
    const struct fused_wait why = {.what = "the up-projection of block",
                                   .peer = ALGO_NONE,
                                   .first = block,
                                   .last = block,
                                   .expert = ALGO_NONE};

    if (!fused_await(h, worker, &h->ups[block], h->splits + (l->weights == EPA_INT8), &why))
        return;
    for (uint32_t n = first; n < end; n += l->tile_cols) {
        struct epa_gemm_call call = {
            .a = inter_panel(h, block),
            .b = down_weights(h, b->expert, n),
            .m = b->rows,
            .n = tile_columns(h, n, end),
            .k = l->ffn,
            .c = h->slot + (size_t)b->first * l->hidden + n,
            .ldc = l->hidden,
            .stream_c = h->stream_slots,
            .block_k = h->c.tile_k,
            .next_a = n + l->tile_cols < end ? inter_panel(h, block) : NULL,
            .next_b = n + l->tile_cols < end ? down_weights(h, b->expert, n + l->tile_cols)
                                             : up_weights(h, h->block[next].expert,
                                                          fused_first_column(h, l->ffn, part)),
        };

        if (l->inter_groups != 0) {
            call.a_scale = inter_scale(h, block);
            call.group = l->inter_group;
            call.a_scale_stride = l->inter_groups;
            call.b_scale = h->mlp.down_scale +
                           (l->weights == EPA_INT8
                                ? (size_t)b->expert * l->hidden + n
                                : ((size_t)b->expert * epa_mlp_blocks(l->hidden) + n / FUSED_TILE) *
                                      epa_mlp_blocks(l->ffn));
        }
        if (h->half != FUSED_MOVING)
            h->gemm->multiply(&call);
        fused_poll(h, worker);
        if (returns && n + l->tile_cols < end)
            out = count_down_parts(h, b, out, n + l->tile_cols);
    }
    /* Release: pairs with the acquire of the task that overwrites the intermediate. */
    __atomic_add_fetch(&h->downs[block], 1, __ATOMIC_ACQ_REL);
    if (h->half == FUSED_MULTIPLYING)
        return;
    for (; returns && out_column(l, out) < end; out++)
        count_down_rows(h, b, out);
    if (!returns) /* release: pairs with the acquire of fused_finish() */
        __atomic_add_fetch(&h->downs_done, 1, __ATOMIC_ACQ_REL);
}

void fused_finish(struct fused_host *h, uint32_t worker, uint32_t item)
{
    const struct fused_layout *l = &h->l;
    uint32_t s = item / l->chunks, first = item % l->chunks * l->chunk;
    uint32_t rows = h->head[s][FUSED_ROWS] - first;
    const struct fused_wait why = {.what = "all GEMMs", .peer = ALGO_NONE, .expert = ALGO_NONE};

    if (!fused_await(h, worker, &h->downs_done, h->down_tasks, &why))
        return;
    for (uint32_t part = 0; part < l->out_parts; part++) {
        for (uint32_t i = 0; i < rows && i < l->chunk; i++)
            return_row(h, s * l->source_rows + first + i, part);
    }
    fused_poll(h, worker);
}

/* ---- combine ---- */

/* Waits for a part of the row of a place and returns its address; NULL: the call must end. */
static const uint16_t *returned_row(struct fused_host *h, uint32_t worker,
                                    const struct fused_place *p, uint32_t part)
{
    const struct fused_layout *l = &h->l;
    uint32_t me = h->a.world.rank, r = p->out - h->out_start[p->rank];
    uint64_t out = at_set(h, l->out_at, l->out_bytes) + out_part_at(l, l->out_rows, p->out, part);
    uint64_t done = at_set(h, l->done_at, l->done_bytes);
    const struct fused_wait why = {
        .what = "outputs", .peer = p->rank, .first = r, .last = r, .expert = ALGO_NONE};
    const char *row = h->a.t->heap + out;

    if (!fused_await(h, worker, fused_flag_here(h, out_flag_at(h, p->out, part)), h->epoch, &why))
        return NULL;
    if (l->gather && p->rank != me && fused_near(h, p->rank))
        row = algo_at(&h->a, p->rank, done) + out_part_at(l, (uint64_t)l->size * l->source_rows,
                                                          (uint64_t)me * l->source_rows + r, part);
    return (const uint16_t *)(const void *)row;
}

void fused_combine(struct fused_host *h, uint32_t worker, uint32_t item, uint32_t part)
{
    const struct fused_layout *l = &h->l;
    uint32_t t = item * FUSED_COMBINE_TOKENS, end = t + FUSED_COMBINE_TOKENS;
    uint32_t column = out_column(l, part), columns = out_column(l, part + 1) - column;

    for (end = end < h->m->tokens ? end : h->m->tokens; t < end; t++) {
        const struct fused_place *place = h->place + (size_t)t * l->places;
        const uint16_t *row[FUSED_TOPK];
        float weight[FUSED_TOPK];
        uint32_t n = 0;

        for (uint32_t j = 0; j < l->places; j++) {
            if (place[j].rank == ALGO_NONE)
                continue;
            weight[n] = l->dedup ? 1.0f : h->m->weight[(size_t)t * l->topk + j];
            row[n] = returned_row(h, worker, &place[j], part);
            if (row[n++] == NULL)
                return;
        }
        h->a.kernels->reduce(row, weight, n, columns, EPA_STORE_CACHED,
                             (uint16_t *)h->m->out + (size_t)t * l->hidden + column);
    }
}

/* ---- set-up ---- */

void fused_make_gemms(struct fused_host *h)
{
    const struct fused_layout *l = &h->l;
    /* fused_list_gemms(): room for two groups and for the blocks by which a task is ahead */
    uint32_t ring = 2 * (h->a.workers + h->c.group_blocks);
    uint32_t panels = h->c.tail ? ring : h->a.workers;

    h->panel_ring = panels;
    h->inter_ring = h->c.launches == FUSED_TWO ? l->blocks : ring;
    h->panel_bytes = epa_gemm_a_bytes(l->block_rows, l->hidden);
    h->inter_bytes = epa_gemm_a_bytes(l->block_rows, l->ffn);
    h->spare_bytes = l->hidden;
    if (l->weights == EPA_INT8) {
        h->panel_bytes = epa_gemm_panel_at(EPA_INT8, l->block_rows, l->hidden);
        h->inter_bytes += epa_gemm_panel_at(EPA_INT8, l->block_rows, l->ffn);
        h->spare_bytes = (size_t)l->hidden * 3 > l->ffn ? (size_t)l->hidden * 3 : l->ffn;
    }
    h->up_bytes = epa_gemm_b_bytes(l->weights, l->up_rows, l->hidden);
    h->down_bytes = epa_gemm_b_bytes(l->weights, l->hidden, l->ffn);
    h->tile_bytes = epa_round_up(
        2 * (size_t)l->block_rows * l->tile_cols * sizeof(float) + h->spare_bytes, FUSED_LINE);
    h->weights = fused_alloc(h, (size_t)l->local * (h->up_bytes + h->down_bytes));
    h->panel = fused_alloc(h, panels * h->panel_bytes);
    h->inter = fused_alloc(h, h->inter_ring * h->inter_bytes);
    h->slot = fused_alloc(h, l->entries * l->hidden * sizeof(float));
    if (l->row_groups != 0) {
        h->panel_scale =
            fused_alloc_list(h, (size_t)panels * l->block_rows * l->row_groups, sizeof(float));
        h->inter_scale = fused_alloc_list(
            h, (size_t)h->inter_ring * l->block_rows * l->inter_groups, sizeof(float));
    }
    h->held = fused_alloc_list(h, h->a.workers, sizeof(*h->held));
    h->tile = fused_alloc_list(h, h->a.workers, h->tile_bytes);
}

void fused_pack_weights(void *arg, uint32_t worker, uint32_t workers)
{
    struct fused_host *h = arg;
    const struct fused_layout *l = &h->l;
    size_t element = l->row_groups != 0 ? 1 : 2;

    for (uint32_t e = worker; e < l->local; e += workers) {
        char *to = h->weights + e * (h->up_bytes + h->down_bytes);

        h->gemm->pack_b((const char *)h->mlp.up + (size_t)e * l->up_rows * l->hidden * element,
                        l->hidden, l->up_rows, l->hidden, to);
        h->gemm->pack_b((const char *)h->mlp.down + (size_t)e * l->hidden * l->ffn * element,
                        l->ffn, l->hidden, l->ffn, to + h->up_bytes);
    }
}

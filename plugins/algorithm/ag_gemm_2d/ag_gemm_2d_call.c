/* Routes, and the chunks and blocks of a call, for ag_gemm_2d on hosts. */
#include "ag_gemm_2d_call.h"

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- routes between ranks ---- */

enum epa_status ag2_find_routes(const struct ag2_layout *l, const struct epa_world *w,
                                char *const *peer_heap, struct ag2_routes *out,
                                struct epa_error *err)
{
    struct ag2_routes r = {.me = w->rank};
    uint32_t me = w->rank;
    enum epa_status status = gemm_find_places("ag_gemm_2d", w, l->two_level, &r.at, err);

    if (status != EPA_OK)
        return status;
    for (uint32_t i = 0; i < w->size; i++) {
        uint32_t s = (me + i) % w->size;
        bool mate = r.at.node[s] == r.at.node[me], counterpart = r.at.place[s] == r.at.place[me];
        bool in_reach = mate && peer_heap[s] != NULL;

        r.sender[s] = l->two_level && !mate && !counterpart
                          ? gemm_rank_at(&r.at, r.at.node[me], r.at.place[s])
                          : s;
        r.passes_on[s] = s == me || (l->two_level && !mate && counterpart);
        if (s == me)
            continue;
        if (in_reach)
            r.mates[r.n_mates++] = s;
        else if (mate)
            r.pass_to[r.n_pass_to++] = s;
        if (!in_reach && (mate || !l->two_level || counterpart))
            r.put_to[r.n_put_to++] = s;
    }
    for (uint32_t s = 0; s < w->size; s++) {
        uint32_t sender = r.sender[s];

        r.way[s] = s == me                                                           ? AG2_OWN
                   : r.at.node[sender] != r.at.node[me] || peer_heap[sender] == NULL ? AG2_PUT
                   : l->config.mode == AG_GEMM_PULL                                  ? AG2_LOADED
                                                                                     : AG2_STORED;
    }
    *out = r;
    return EPA_OK;
}

/* ---- the current call ---- */

static void find_starts(struct ag2_call *c, const struct ag2_layout *l, const uint32_t *rows)
{
    for (uint32_t r = 0; r < l->size; r++) {
        c->raw_start[r + 1] = c->raw_start[r] + rows[r];
        c->start[r + 1] =
            c->start[r] +
            (l->config.across_ranks ? rows[r] : gemm_round_up(rows[r], EPA_GEMM_ROWS));
    }
}

static void add_blocks(struct ag2_call *c, const struct ag2_layout *l, const struct ag2_routes *r,
                       uint32_t row, uint32_t rows, uint32_t c_row)
{
    uint32_t rank = 0;

    for (uint32_t done = 0; done < rows; done += l->config.tile_rows) {
        struct ag2_block *b = &c->block[c->n_blocks];

        *b = (struct ag2_block){.row = row + done,
                                .rows = least(rows - done, l->config.tile_rows),
                                .c_row = c_row + done};
        while (c->raw_start[rank + 1] <= b->c_row)
            rank++;
        b->turn = l->config.order == AG_GEMM_NONE ? 0 : gemm_turn_of(&r->at, r->me, rank);
        c->order[c->n_blocks] = c->n_blocks;
        c->n_blocks++;
    }
}

static void sort_blocks(struct ag2_call *c)
{
    /* insertion sort: blocks are in few sorted runs, so few moves */
    for (uint32_t i = 1; i < c->n_blocks; i++) {
        uint32_t b = c->order[i], j = i;

        for (; j > 0 && c->block[c->order[j - 1]].turn > c->block[b].turn; j--)
            c->order[j] = c->order[j - 1];
        c->order[j] = b;
    }
}

/* Returns the block that contains a row of the panels, or else the next block. */
static struct ag2_block *block_at(const struct ag2_call *c, uint32_t row)
{
    uint32_t first = 0, end = c->n_blocks;

    while (first < end) {
        uint32_t middle = (first + end) / 2;

        if (c->block[middle].row + c->block[middle].rows <= row)
            first = middle + 1;
        else
            end = middle;
    }
    return &c->block[first];
}

/* Returns true if a block waits for a chunk. */
static bool has_rows_of(const struct ag2_block *b, const struct ag2_chunk *k)
{
    return k->row < b->row + b->rows && b->row < k->row + k->rows;
}

static void make_chunks(struct ag2_call *c, const struct ag2_layout *l, const uint32_t *rows)
{
    for (uint32_t i = 0; i < l->signals; i++) {
        uint32_t source = i / l->chunks, index = i % l->chunks;
        uint32_t first = least(index * l->chunk_rows, rows[source]);
        struct ag2_chunk *k = &c->chunk[i];

        *k = (struct ag2_chunk){.state = AG2_AWAITED,
                                .source = source,
                                .index = index,
                                .row = c->start[source] + first,
                                .rows = least(rows[source] - first, l->chunk_rows),
                                .source_row = first};
        for (struct ag2_block *b = block_at(c, k->row);
             b < c->block + c->n_blocks && b->row < k->row + k->rows; b++)
            b->waits += c->blocks_wait && has_rows_of(b, k);
    }
}

void ag2_call_begin(struct ag2_call *c, const struct ag2_layout *l, const struct ag2_routes *r,
                    const uint32_t *rows, bool tiles, bool blocks_wait)
{
    find_starts(c, l, rows);
    c->in_order = l->config.order != AG_GEMM_ARRIVAL;
    c->blocks_wait = blocks_wait;
    c->n_chunks = l->signals;
    c->n_blocks = 0;
    if (l->config.across_ranks)
        add_blocks(c, l, r, 0, c->raw_start[l->size], 0);
    for (uint32_t s = 0; s < l->size && !l->config.across_ranks; s++)
        add_blocks(c, l, r, c->start[s], rows[s], c->raw_start[s]);
    sort_blocks(c);
    make_chunks(c, l, rows);
    c->columns = gemm_round_up(l->n, l->config.tile_cols) / l->config.tile_cols;
    c->untaken = tiles ? c->n_blocks * c->columns : 0;
}

/* ---- during the run of workers ---- */

void ag2_release_blocks(struct ag2_call *c, const struct ag2_chunk *k)
{
    if (!c->blocks_wait)
        return;
    for (struct ag2_block *b = block_at(c, k->row);
         b < c->block + c->n_blocks && b->row < k->row + k->rows; b++)
        if (has_rows_of(b, k))
            /* Release: pairs with the acquire in ag2_take_tile(). */
            __atomic_fetch_sub(&b->waits, 1, __ATOMIC_ACQ_REL);
}

bool ag2_take_tile(struct ag2_call *c, const struct ag2_block **block, uint32_t *column)
{
    if (__atomic_load_n(&c->untaken, __ATOMIC_RELAXED) == 0)
        return false;
    for (uint32_t i = 0; i < c->n_blocks; i++) {
        struct ag2_block *b = &c->block[c->order[i]];

        if (__atomic_load_n(&b->column, __ATOMIC_RELAXED) >= c->columns)
            continue;
        /* Acquire: pairs with the release in ag2_release_blocks(). */
        if (__atomic_load_n(&b->waits, __ATOMIC_ACQUIRE) == 0) {
            *block = b;
            *column = __atomic_fetch_add(&b->column, 1, __ATOMIC_RELAXED);
            if (*column < c->columns) {
                __atomic_fetch_sub(&c->untaken, 1, __ATOMIC_RELAXED);
                return true;
            }
        } else if (c->in_order) {
            return false;
        }
    }
    return false;
}

static bool is_awaited(const struct ag2_chunk *k)
{
    return __atomic_load_n(&k->state, __ATOMIC_RELAXED) == AG2_AWAITED;
}

const struct ag2_chunk *ag2_missing_chunk(const struct ag2_call *c, const struct ag2_block **out)
{
    const struct ag2_chunk *any = NULL;

    *out = NULL;
    for (uint32_t i = 0; i < c->n_blocks; i++) {
        const struct ag2_block *b = &c->block[c->order[i]];

        if (__atomic_load_n(&b->column, __ATOMIC_RELAXED) >= c->columns)
            continue;
        for (uint32_t j = 0; j < c->n_chunks; j++)
            if (is_awaited(&c->chunk[j]) && has_rows_of(b, &c->chunk[j])) {
                *out = b;
                return &c->chunk[j];
            }
    }
    for (uint32_t j = 0; j < c->n_chunks && any == NULL; j++)
        any = is_awaited(&c->chunk[j]) ? &c->chunk[j] : NULL;
    return any;
}

/* Choice of tiles in the kernel of AllGather and GEMM: which tiles a block computes, in which
 * order, and for which words it waits. ag_gemm_kernel.cuh has an overview. */
#ifndef AG_GEMM_TILES_CUH
#define AG_GEMM_TILES_CUH

#include "ag_gemm_move.cuh"

namespace
{

enum {
    RING = 4,
    SENT = 8, /* maximum number of tiles that the first block of a cluster is ahead of the
               * second: the shared ring of stages limits it to 5 if a tile has one block of K */
    MOVERS = AG_GEMM_MOVERS
};

/* Threads that poll words. */
enum { SEER_TILES, SEER_ROWS, SEER_SCALES, SEERS };
static_assert(AG_GEMM_CHUNKS <= 64, "bits of chunks");

struct job {
    uint32_t rows;   /* 0: no more tiles */
    uint32_t row;    /* first row, in a set */
    uint32_t column; /* first column, in C */
    uint32_t c_row;  /* row in C of the first row that exists */
    bool own;        /* all rows are own rows */
    bool whole;      /* all rows exist and are contiguous in C */
    bool spare;      /* another block computes the tile as well: nothing is stored */
};

constexpr uint64_t NO_TILE = ~0ull;

/* Tiles and panels of a rank's rows, which begin at row `first` of a set. (Here a tile is the area
 * that a cluster computes at a time.) */
struct segment {
    uint32_t first, end, tiles_before, panels_before;
};

/* State of the thread that takes tiles. */
struct cursor {
    uint32_t next;  /* number of the next tile in a fixed order, of the first tile in the order
                     * of arrival */
    uint32_t step;  /* number of clusters; the first `given` of them begin with a fixed tile */
    uint32_t given; /* order of arrival only */
    uint32_t segment, panel, tiles;  /* the current panel, which has `tiles` tiles */
    uint32_t low_segment, low_panel; /* all panels before this one are exhausted */
    uint32_t tiles_sent;             /* in a cluster */
    uint32_t *taken;
    bool late;                       /* a wait has timed out */
    bool waited;                     /* for the profile: no panel had all its rows */
    uint32_t waits_since, waits_for; /* then, the begin, and the rank of the first missing rows */
};

/* Shared memory of a block, beside the ring of stages. */
struct state {
    char staging[AG_GEMM_DEPTH * AG_GEMM_PIECE]; /* 16-byte aligned, like stages */
    uint64_t staged[MOVERS][AG_GEMM_DEPTH];
    struct ag_gemm_finish last[MOVERS];
    uint64_t known[RING], free[RING];
    struct job job[RING];
    struct cursor cursor;
    uint64_t tile_bar[SENT], tile[SENT]; /* segment << 32 | tile of the segment; NO_TILE: no more
                                          * tiles */
    struct ag_gemm_places places;
    struct segment segment[AG_GEMM_RANKS + 1];
    uint64_t seen[SEERS][AG_GEMM_RANKS]; /* masks of the chunks whose word the thread has seen */
    /* For the profile: number of the call, begin of the tile that is multiplied. */
    uint32_t call, begun;
};

/* Computes the segments, one lane each. Called by a warp. */
EPA_DEV void find_segments(const struct ag_gemm_args &a, struct state &s)
{
    const struct ag_gemm_places &p = s.places;
    const uint32_t lane = epa_dev_lane(), size = a.v.size, height = a.tile_rows;
    uint32_t first = 0, end = 0, tiles, panels, tiles_before = 0, panels_before = 0;

    if (lane < size) {
        uint32_t r = a.turn[lane];

        first = p.start[r];
        end = first + p.rows[r];
        if (a.across) {
            first = (first + height - 1) / height * height;
            end = min((p.start[r + 1] + height - 1) / height * height, p.start[size]);
        }
    }
    tiles = first < end ? (end - first + height - 1) / height : 0;
    panels = (tiles + a.panel - 1) / a.panel;
    tiles *= a.columns;
    for (uint32_t i = 0; i < size; i++) {
        uint32_t t = __shfl_sync(EPA_DEV_ALL, tiles, i), n = __shfl_sync(EPA_DEV_ALL, panels, i);

        tiles_before += i < lane ? t : 0;
        panels_before += i < lane ? n : 0;
    }
    if (lane <= size)
        s.segment[lane] = {first, end, tiles_before, panels_before};
}

/* ---- which rows a tile has ---- */

/* Returns how many of the rows `row` to `end` - 1 of a set belong to `rank`. *first is the first of
 * them, counted from the rank's first row. */
EPA_DEV uint32_t rows_of_rank(const struct ag_gemm_places &p, uint32_t rank, uint32_t row,
                              uint32_t end, uint32_t *first)
{
    uint32_t low = max(row, p.start[rank]), high = min(end, p.start[rank] + p.rows[rank]);

    *first = low - p.start[rank];
    return low < high ? high - low : 0;
}

/* Describes the part of block `block` in tile `at` of segment `i`. Returns false if the part has no
 * row. */
EPA_DEV bool make_job(const struct ag_gemm_args &a, const struct state &s, uint32_t i, uint32_t at,
                      uint32_t block, struct job *out)
{
    const struct ag_gemm_places &p = s.places;
    const struct segment g = s.segment[i];
    uint32_t bands = (g.end - g.first + a.tile_rows - 1) / a.tile_rows;
    uint32_t panel = at / (a.panel * a.columns), height = min(a.panel, bands - panel * a.panel);
    uint32_t end, ranks = 0, last = 0, rows = 0;

    at -= panel * a.panel * a.columns;
    out->row = g.first + (panel * a.panel + at % height) * a.tile_rows + block * GEMM_ROWS;
    out->column = at / height * a.step;
    end = min(out->row + (uint32_t)GEMM_ROWS, g.end);
    out->own = false;
    for (uint32_t r = 0; r < a.v.size; r++) {
        uint32_t first, n = rows_of_rank(p, r, out->row, end, &first);

        if (n == 0)
            continue;
        if (ranks++ == 0)
            out->c_row = p.c_start[r] + first;
        out->own = ranks == 1 && r == a.v.rank && out->row >= p.start[r];
        rows += n;
        last = p.start[r] + first + n;
    }
    out->rows = ranks == 0 ? 0 : last - out->row;
    out->whole = rows == out->rows;
    out->spare = false;
    return ranks != 0;
}

/* Returns the row of C for a row of a tile; UINT32_MAX: the row does not exist. */
EPA_DEV uint32_t c_row_of(const struct ag_gemm_args &a, const struct ag_gemm_places &p,
                          const struct job &j, uint32_t row)
{
    if (row >= j.rows)
        return UINT32_MAX;
    if (j.whole)
        return j.c_row + row;
    row += j.row;
#pragma unroll 1
    for (uint32_t r = 0; r < a.v.size; r++)
        if (row - p.start[r] < p.rows[r])
            return p.c_start[r] + row - p.start[r];
    return UINT32_MAX;
}

/* A word that rows wait for. Each chunk of another rank has a word. Own rows that share a tile with
 * other rows have two words for their borders, or, if all own rows are copied, a word per chunk. */
struct awaited {
    const uint64_t *word;
    uint32_t rank, chunk;
};

/* Calls wait() for each word that rows `row` to `end` - 1 of a set wait for, until it returns
 * false. Does not poll words of another rank that have arrived before: `seen` belongs to the
 * thread. */
template <class F>
EPA_DEV bool each_word(const struct ag_gemm_args &a, const struct ag_gemm_places &p, uint64_t *seen,
                       uint32_t row, uint32_t end, F wait)
{
    const uint32_t me = a.v.rank;

    for (uint32_t r = 0; r < a.v.size; r++) {
        uint32_t first, n = rows_of_rank(p, r, row, end, &first);

        if (n == 0)
            continue;
        if (r == me && (a.hop[0].store >> me & 1) == 0) {
            if (row < p.start[me] && !wait(awaited{ag_gemm_border_word(a, 0), me, 0}))
                return false;
            if (first + n == p.rows[me] && !wait(awaited{ag_gemm_border_word(a, 1), me, 0}))
                return false;
            continue;
        }
        for (uint32_t c = first / a.chunk_rows; c <= (first + n - 1) / a.chunk_rows; c++) {
            if ((seen[r] >> c & 1) != 0)
                continue;
            if (!wait(
                    awaited{r == me ? a.placed + me * a.chunks + c : ag_gemm_word(a, r, c), r, c}))
                return false;
            seen[r] |= 1ull << c;
        }
    }
    return true;
}

/* Records an interval of a tile. Called by one thread. */
EPA_DEV void note_tile(const struct ag_gemm_args &a, const struct state &s, const struct job &j,
                       enum ag_gemm_interval of, uint32_t begun, uint32_t peer)
{
    uint32_t r = 0;

    if (!AG_GEMM_PROFILE || j.spare)
        return;
    while (r + 1 < a.v.size && s.places.c_start[r + 1] <= j.c_row)
        r++;
    ag_gemm_note_at(a,
                    ((uint64_t)(j.row / GEMM_ROWS + r) * a.columns + j.column / a.step) *
                            AG_GEMM_TILE_NOTES +
                        of,
                    s.call, begun, peer, j.c_row, j.column);
}

/* Waits until the rows of a tile have arrived or a wait fails. Called by one thread. Returns the
 * last rank whose word it polled; EPA_DEVICE_RANKS: it polled none. */
EPA_DEV uint32_t wait_for_rows(const struct ag_gemm_args &a, struct state &s, uint32_t seer,
                               const struct job &j, uint64_t call)
{
    uint32_t polled = EPA_DEVICE_RANKS;

    if (!a.moves || j.own)
        return polled;
    (void)each_word(a, s.places, s.seen[seer], j.row, j.row + j.rows, [&](struct awaited w) {
        polled = w.rank;
        return ag_gemm_wait(a, w.word, call,
                            {j.c_row, AG_GEMM_WAIT_TILE | j.rows << 8, w.rank, w.chunk});
    });
    epa_dev_fence_async_global();
    return polled;
}

/* ---- the next tile: functions of one thread ---- */

template <int CLUSTER>
EPA_DEV struct cursor first_tile(const struct ag_gemm_args &a, const struct state &s,
                                 uint32_t *taken)
{
    const uint32_t step = (gridDim.x - a.comm_blocks) / CLUSTER;
    /* own rows; all rows if nothing is moved */
    const uint32_t there = s.segment[a.moves ? 1 : a.v.size].tiles_before;

    return {(blockIdx.x - a.comm_blocks) / CLUSTER,
            step,
            min(step, there),
            0,
            0,
            0,
            0,
            0,
            0,
            taken,
            false,
            false,
            0,
            0};
}

/* Returns the number of tiles of a panel of a segment; 0: no such panel. *row, *end: rows of the
 * panel. */
EPA_DEV uint32_t panel_tiles(const struct ag_gemm_args &a, const struct segment &g, uint32_t panel,
                             uint32_t *row, uint32_t *end)
{
    *row = g.first + panel * a.panel * a.tile_rows;
    *end = min(*row + a.panel * a.tile_rows, g.end);
    return *row < g.end ? (*end - *row + a.tile_rows - 1) / a.tile_rows * a.columns : 0;
}

/* Returns how many tiles of a panel are fixed first tiles of blocks, which `taken` does not
 * count. */
EPA_DEV uint32_t panel_given(const struct ag_gemm_args &a, const struct segment &g, uint32_t panel,
                             uint32_t tiles, uint32_t given)
{
    uint32_t before = g.tiles_before + panel * a.panel * a.columns;

    return given > before ? min(given - before, tiles) : 0;
}

/* Finds the first panel that has tiles left and whose rows have all arrived. Otherwise `waits` is
 * the first missing word of the first panel with tiles left. */
EPA_DEV bool find_panel(const struct ag_gemm_args &a, struct state &s, struct cursor &c,
                        uint64_t call, struct awaited *waits, uint64_t *seen)
{
    bool low = true; /* no panel before this one has tiles left */

    waits->word = nullptr;
    for (uint32_t i = c.low_segment, panel = c.low_panel; i < a.v.size; i++, panel = 0)
        for (;; panel++) {
            const struct segment g = s.segment[i];
            uint32_t row, end, tiles = panel_tiles(a, g, panel, &row, &end), first;
            uint32_t given = panel_given(a, g, panel, tiles, c.given);

            if (tiles == 0)
                break;
            if (given == tiles || __ldcg(c.taken + g.panels_before + panel) + given >= tiles)
                continue;
            if (low) {
                low = false;
                c.low_segment = i;
                c.low_panel = panel;
            }
            bool own = rows_of_rank(s.places, a.v.rank, row, end, &first) == end - row;
            bool there =
                !a.moves || own ||
                each_word(a, s.places, s.seen[SEER_TILES], row, end, [&](struct awaited w) {
                    uint64_t value = epa_dev_load_relaxed(w.word);

                    if (value >= call)
                        return true;
                    if (waits->word == nullptr) {
                        *waits = w;
                        *seen = value;
                        c.segment = i;
                        c.panel = panel;
                        c.tiles = tiles;
                    }
                    return false;
                });

            if (!there)
                continue;
            c.segment = i;
            c.panel = panel;
            c.tiles = tiles;
            return true;
        }
    if (low) {
        c.low_segment = a.v.size;
        c.low_panel = 0;
    }
    return false;
}

/* Repeats find_panel() until a panel is found. After a time-out it accepts any panel with tiles
 * left. Returns false if no tiles are left. */
EPA_DEV bool wait_for_panel(const struct ag_gemm_args &a, struct state &s, struct cursor &c,
                            uint64_t call)
{
    struct epa_dev_poll poll = {};
    struct awaited waits;
    uint64_t seen = 0;

    while (!find_panel(a, s, c, call, &waits, &seen)) {
        if (waits.word == nullptr)
            return false;
        if (AG_GEMM_PROFILE && !c.waited) {
            c.waits_since = ag_gemm_now();
            c.waits_for = waits.rank;
            c.waited = true;
        }
        /* The first tile that lacks rows of this chunk begins with them or before them. */
        uint32_t row = s.places.c_start[waits.rank] + waits.chunk * a.chunk_rows;

        c.late = c.late || epa_dev_poll_expired(a.v, &poll, a.timeout_ns,
                                                {row, AG_GEMM_WAIT_PANEL, waits.rank, waits.chunk},
                                                seen, call);
        if (c.late)
            return true;
    }
    return true;
}

/* Returns the segment of tile *at, counted over all segments; *at becomes the index within the
 * segment. */
EPA_DEV uint32_t segment_of(const struct state &s, uint32_t *at)
{
    uint32_t i = 0;

    while (*at >= s.segment[i + 1].tiles_before)
        i++;
    *at -= s.segment[i].tiles_before;
    return i;
}

/* Takes the next tile in the order of arrival. Each block begins with a fixed tile whose rows are
 * present from the start, without an atomic operation. */
EPA_DEV bool take_tile(const struct ag_gemm_args &a, struct state &s, struct cursor &c,
                       uint64_t call, uint32_t *segment, uint32_t *at)
{
    if (c.next < c.given) {
        *at = c.next;
        c.next = UINT32_MAX;
        *segment = segment_of(s, at);
        return true;
    }
    for (;;) {
        if (c.tiles == 0 && !wait_for_panel(a, s, c, call))
            return false;
        const struct segment &g = s.segment[c.segment];

        *at = atomicAdd(c.taken + g.panels_before + c.panel, 1u) +
              panel_given(a, g, c.panel, c.tiles, c.given);
        if (*at < c.tiles)
            break;
        c.tiles = 0;
    }
    *segment = c.segment;
    *at += c.panel * a.panel * a.columns;
    return true;
}

EPA_DEV bool next_tile(const struct ag_gemm_args &a, struct state &s, struct cursor &c,
                       uint64_t call, uint32_t *segment, uint32_t *at)
{
    if (a.order == AG_GEMM_ARRIVAL)
        return take_tile(a, s, c, call, segment, at);
    if (c.next >= s.segment[a.v.size].tiles_before)
        return false;
    *at = c.next;
    *segment = segment_of(s, at);
    c.next += c.step;
    return true;
}

/* Describes this block's part of a tile. `rank` is the block's rank in its cluster. If the part has
 * no rows, the block gets the part of the other block as a spare. Returns false if both parts have
 * no rows. */
template <int CLUSTER>
EPA_DEV bool share_tile(const struct ag_gemm_args &a, const struct state &s, uint32_t segment,
                        uint32_t at, uint32_t rank, struct job *out)
{
    if (make_job(a, s, segment, at, rank, out))
        return true;
    if (CLUSTER == 1 || !make_job(a, s, segment, at, 1 - rank, out))
        return false;
    out->spare = true;
    return true;
}

/* Gets the next job; returns false if no tiles are left. The first block of a cluster sends its
 * tiles to the second. */
template <int CLUSTER>
EPA_DEV bool next_job(const struct ag_gemm_args &a, struct state &s, struct cursor &c,
                      uint64_t call, struct job *out)
{
    const uint32_t slot = c.tiles_sent % SENT, phase = c.tiles_sent / SENT % 2;
    uint32_t segment, at;
    uint64_t tile = NO_TILE;

    c.tiles_sent++;
    if (CLUSTER > 1 && epa_dev_cluster_rank() == 1) {
        epa_dev_mbar_expect(&s.tile_bar[slot], sizeof(tile));
        epa_dev_mbar_wait(&s.tile_bar[slot], phase);
        tile = s.tile[slot];
        return tile != NO_TILE &&
               share_tile<CLUSTER>(a, s, (uint32_t)(tile >> 32), (uint32_t)tile, 1, out);
    }
    while (tile == NO_TILE && next_tile(a, s, c, call, &segment, &at))
        if (share_tile<CLUSTER>(a, s, segment, at, 0, out))
            tile = (uint64_t)segment << 32 | at;
    if (CLUSTER > 1)
        epa_dev_cluster_store(&s.tile[slot], tile, &s.tile_bar[slot], 1);
    return tile != NO_TILE;
}

} // namespace

#endif

/* Transfers of rows of A between GPUs, during the product or alone, by one warp of each block, or
 * of some blocks that only move rows.
 *
 * A transfer moves a run of contiguous rows, usually a chunk, in pieces that the movers share
 * round-robin. A lane loads a piece into shared memory by a bulk copy and stores it to all
 * receiving ranks, while the next piece is loaded: no data passes through registers. The mover that
 * finishes the last part of a run signals the run. It waits for the completion of its stores only
 * after it has issued the stores of its next part. FP8: all lanes load and store the scales, a few
 * percent of the bytes. */
#ifndef AG_GEMM_MOVE_CUH
#define AG_GEMM_MOVE_CUH

#include <epa2a/device.cuh>
#include <epa2a/quant.cuh>
#include <epa2a/sm90.cuh>

#include "ag_gemm_device.h"

enum {
    AG_GEMM_DEPTH = 2, /* pieces that a warp holds in shared memory */
    AG_GEMM_RUN = 2    /* minimum number of pieces of a part, if the run has that many */
};

/* Places of each rank's rows: their number, the first row in a set, the first row in C. */
struct ag_gemm_places {
    uint32_t rows[AG_GEMM_RANKS], start[AG_GEMM_RANKS + 1], c_start[AG_GEMM_RANKS + 1];
};

/* Called by a warp, before a barrier of the block. */
EPA_DEV void ag_gemm_find_places(const struct ag_gemm_args &a, struct ag_gemm_places &p)
{
    const uint32_t lane = epa_dev_lane();

    if (lane < a.v.size)
        p.rows[lane] = min(__ldcg(a.rows + lane), a.max_rows);
    __syncwarp();
    if (lane > a.v.size)
        return;
    p.c_start[lane] = 0;
    for (uint32_t r = 0; r < lane; r++)
        p.c_start[lane] += p.rows[r];
    p.start[lane] = a.padded ? lane * a.max_rows : p.c_start[lane];
}

/* Rows of a rank's chunk; `rows` may be 0. */
struct ag_gemm_run {
    uint32_t first, rows;
};

EPA_DEV struct ag_gemm_run ag_gemm_chunk(const struct ag_gemm_args &a,
                                         const struct ag_gemm_places &p, uint32_t rank,
                                         uint32_t chunk)
{
    uint32_t first = min(chunk * a.chunk_rows, p.rows[rank]);

    return {first, min(a.chunk_rows, p.rows[rank] - first)};
}

/* ---- waiting ---- */

/* Waits like epa_dev_wait_for(), but for a word at any address, and up to `times` time limits.
 * Called by one thread. Acquire: pairs with the release of ag_gemm_signal(), or with the copy
 * engine's word, which is written after the rows. */
EPA_DEV bool ag_gemm_wait(const struct ag_gemm_args &a, const uint64_t *word, uint64_t wanted,
                          struct epa_dev_wait w, uint32_t times = 1)
{
    struct epa_dev_poll poll = {};
    uint64_t seen;

    while ((seen = epa_dev_load_acquire(word)) < wanted)
        if (epa_dev_poll_expired(a.v, &poll, times * a.timeout_ns, w, seen, wanted))
            return false;
    return true;
}

EPA_DEV const uint64_t *ag_gemm_signal_word(const struct ag_gemm_args &a, uint32_t source,
                                            uint32_t chunk)
{
    return a.v.peer_signal[a.v.rank] + a.signal + source * a.chunks + chunk;
}

/* Returns the word that states that a chunk is in this rank's set. */
EPA_DEV const uint64_t *ag_gemm_word(const struct ag_gemm_args &a, uint32_t source, uint32_t chunk)
{
    return (a.loaded >> source & 1) != 0 ? a.placed + source * a.chunks + chunk
                                         : ag_gemm_signal_word(a, source, chunk);
}

/* Returns the word that states that the own rows after (0) or before (1) a border between tiles are
 * in this rank's set. */
EPA_DEV uint64_t *ag_gemm_border_word(const struct ag_gemm_args &a, uint32_t which)
{
    return a.placed + a.v.size * a.chunks + which;
}

/* ---- the profile ---- */

/* Kernels that record intervals are in ag_gemm_profile.cu, since other kernels lack the registers. */
#ifndef AG_GEMM_PROFILE
#define AG_GEMM_PROFILE 0
#endif

/* Returns the current time, modulo 2^32 ns; without a profile 0. */
EPA_DEV uint32_t ag_gemm_now(void)
{
    return AG_GEMM_PROFILE ? (uint32_t)epa_dev_time() : 0;
}

/* Records an interval that began at `begun` and ends now. Called by one thread. */
EPA_DEV void ag_gemm_note_at(const struct ag_gemm_args &a, uint64_t at, uint32_t call,
                             uint32_t begun, uint32_t peer, uint32_t row, uint32_t column)
{
    uint64_t now = epa_dev_time();
    uint4 *to = reinterpret_cast<uint4 *>(a.notes + at);

    to[0] = make_uint4((uint32_t)now, (uint32_t)(now >> 32), (uint32_t)now - begun, call);
    to[1] = make_uint4(blockIdx.x * AG_GEMM_WARPS + threadIdx.x / EPA_DEV_WARP, peer, row, column);
}

/* ---- moving ---- */

/* Action after the stores of a part are complete: the last of `parts` parts signals. */
struct ag_gemm_finish {
    bool due;
    uint32_t counter, parts, source, chunk;
    uint32_t signals; /* mask of the ranks to signal; unused if `placed` is set */
    uint64_t *placed; /* word of this rank to set instead; NULL: none */
};

struct ag_gemm_warp {
    uint32_t index, of;          /* index of this mover among `of` movers */
    uint32_t dealt;              /* mover that gets the next part; identical in all movers */
    uint32_t loads, stores;      /* number of pieces so far */
    char *staging;               /* [DEPTH][AG_GEMM_PIECE] */
    uint64_t *full;              /* [DEPTH] */
    struct ag_gemm_finish *last; /* the previous part, whose stores are in progress */
};

struct ag_gemm_move {
    const char *rows;    /* source of the rows */
    const float *scales; /* source of the scales, FP8 only */
    uint32_t row, n;     /* destination: n rows from row `row` of the sets on */
    uint32_t store;      /* mask of the receiving ranks */
};

/* Share of a mover in a move: the mover moves pieces mine, mine + parts, ... */
struct ag_gemm_part {
    uint32_t parts, mine;
};

EPA_DEV struct ag_gemm_part ag_gemm_deal(const struct ag_gemm_args &a, struct ag_gemm_warp &m,
                                         const struct ag_gemm_move &x)
{
    uint64_t bytes = x.store != 0 ? (uint64_t)x.n * a.row_bytes : 0;
    uint64_t pieces = (bytes + AG_GEMM_PIECE - 1) / AG_GEMM_PIECE;
    uint32_t parts = (uint32_t)min(max(pieces / AG_GEMM_RUN, (uint64_t)1), (uint64_t)m.of);
    uint32_t mine = m.index >= m.dealt ? m.index - m.dealt : m.index + m.of - m.dealt;

    m.dealt = (m.dealt + parts) % m.of;
    return {parts, mine};
}

/* Signals the chunk to the ranks of the mask. For this rank's own rows it sets `placed`. Called by
 * one lane; release. */
EPA_DEV void ag_gemm_signal(const struct ag_gemm_args &a, uint32_t ranks, uint32_t source,
                            uint32_t chunk, uint64_t call)
{
    uint32_t word = source * a.chunks + chunk;

    for (uint32_t left = ranks; left != 0; left &= left - 1) {
        uint32_t p = (uint32_t)__ffs((int)left) - 1;

        if (p == a.v.rank)
            epa_dev_store_release(a.placed + word, call);
        else
            epa_dev_signal(a.v, a.signal + word, call, p);
    }
}

/* Finishes a part. All but the last LATER groups of the lane's stores belong to the part. The mover
 * that finishes last signals: its release follows the stores of all parts. The count of parts has
 * GPU scope; only the release has system scope. Called by one lane. */
template <int LATER>
EPA_DEV void ag_gemm_finish_part(const struct ag_gemm_args &a, struct ag_gemm_finish &f,
                                 uint64_t call)
{
    if (!f.due)
        return;
    f.due = false;
    epa_dev_bulk_wait<LATER>();
    if (f.parts > 1) {
        __threadfence(); /* the own part precedes its count */
        if (atomicInc(a.stored + f.counter, f.parts - 1) != f.parts - 1)
            return;
        __threadfence(); /* the parts counted before precede the signal */
    }
    if (f.placed != nullptr)
        epa_dev_store_release(f.placed, call);
    else
        ag_gemm_signal(a, f.signals, f.source, f.chunk, call);
}

/* Copies a mover's pieces. A piece is loaded while the previous one is stored. The previous part is
 * finished after the first store of this part is issued. Called by one lane. */
EPA_DEV void ag_gemm_copy_rows(const struct ag_gemm_args &a, struct ag_gemm_warp &m,
                               const struct ag_gemm_move &x, struct ag_gemm_part part,
                               uint64_t call)
{
    enum { DEPTH = AG_GEMM_DEPTH, AHEAD = DEPTH / 2 };
    uint64_t bytes = (uint64_t)x.n * a.row_bytes, step = (uint64_t)part.parts * AG_GEMM_PIECE;
    uint64_t load = (uint64_t)part.mine * AG_GEMM_PIECE, store = load;
    uint64_t to = a.set_rows + (uint64_t)x.row * a.row_bytes;

    for (uint32_t i = 0; store < bytes; i++) {
        if (load < bytes) {
            uint32_t slot = m.loads++ % DEPTH;
            uint32_t n = (uint32_t)min(bytes - load, (uint64_t)AG_GEMM_PIECE);

            epa_dev_bulk_wait_read<DEPTH - AHEAD - 1>();
            epa_dev_mbar_expect(&m.full[slot], n);
            epa_dev_bulk_load(m.staging + slot * AG_GEMM_PIECE, x.rows + load, n, &m.full[slot],
                              EPA_L2_NORMAL);
            load += step;
        }
        if (i >= AHEAD || load >= bytes) {
            uint32_t slot = m.stores % DEPTH;
            uint32_t n = (uint32_t)min(bytes - store, (uint64_t)AG_GEMM_PIECE);

            epa_dev_mbar_wait(&m.full[slot], m.stores++ / DEPTH % 2);
            for (uint32_t left = x.store, p = a.v.rank; left != 0; left &= ~(1u << p)) {
                do
                    p = p == 0 ? a.v.size - 1 : p - 1;
                while ((left >> p & 1) == 0);
                epa_dev_bulk_store(a.v.peer_heap[p] + to + store, m.staging + slot * AG_GEMM_PIECE,
                                   n);
            }
            epa_dev_bulk_commit();
            ag_gemm_finish_part<1>(a, *m.last, call);
            store += step;
        }
    }
}

EPA_DEV void ag_gemm_copy_scales(const struct ag_gemm_args &a, const struct ag_gemm_move &x,
                                 struct ag_gemm_part part)
{
    uint64_t n = (uint64_t)x.n * a.groups, first = (uint64_t)x.row * a.groups;

    for (uint64_t i = part.mine * EPA_DEV_WARP + epa_dev_lane(); i < n;
         i += part.parts * EPA_DEV_WARP) {
        float scale = __ldcg(x.scales + i);

        for (uint32_t left = x.store; left != 0; left &= left - 1) {
            char *set = a.v.peer_heap[__ffs((int)left) - 1] + a.set_scales;

            epa_dev_store(reinterpret_cast<float *>(set) + first + i, scale);
        }
    }
}

/* Waits for a chunk, in lane 0. Returns true in all lanes if the word has arrived; later bulk loads
 * see the chunk's rows. */
EPA_DEV bool ag_gemm_wait_chunk(const struct ag_gemm_args &a, uint32_t source, uint32_t chunk,
                                uint64_t call, uint32_t what)
{
    bool ok = true;

    if (epa_dev_lane() == 0) {
        ok = ag_gemm_wait(a, ag_gemm_signal_word(a, source, chunk), call, {0, what, source, chunk});
        epa_dev_fence_async_global();
    }
    return __shfl_sync(EPA_DEV_ALL, ok, 0) != 0;
}

/* Steps of the transfers of a call, the same order in all movers. 1: own rows to their receivers,
 * unless copy engines push them; then rows of other nodes to this node, as they arrive, unless copy
 * engines forward them. 2: own rows that share a tile with rows of other ranks, to this rank's set:
 * those after the border before them, and those before the border after them (tiles with own rows
 * only read them at the caller's address). 3: pulled rows of other ranks, beginning with the rank
 * after this one. */
struct ag_gemm_step {
    struct ag_gemm_move move;
    uint32_t source, chunk, counter;
    bool waits; /* waits for the chunk's signal; `what`: enum ag_gemm_wait */
    uint32_t what;
    uint32_t signals; /* mask of the ranks to signal; unused if `placed` is set */
    uint64_t *placed; /* word of this rank to set instead; NULL: none */
};

/* Describes step `i`; returns false if it moves nothing. */
EPA_DEV bool ag_gemm_step_at(const struct ag_gemm_args &a, const struct ag_gemm_places &p,
                             uint32_t i, struct ag_gemm_step &out)
{
    const uint32_t me = a.v.rank, pushed = a.hops * a.chunks;
    uint32_t first, n, from = me; /* from: rank whose set is the source; unused for own rows */
    bool own = false;

    if (i < pushed) {
        uint32_t h = i / a.chunks;

        if (h == 0 ? a.engines : a.forwards)
            return false;
        own = h == 0;
        out.source = a.hop[h].source;
        out.chunk = i % a.chunks;
        out.counter = i;
        out.move.store = a.hop[h].store;
        out.signals = a.hop[h].signal;
        out.placed = nullptr;
        out.waits = h != 0;
        out.what = AG_GEMM_WAIT_PASS;
    } else if (i < pushed + 2) {
        uint32_t start = p.start[me], end = start + p.rows[me], border = i - pushed;

        /* with pull, step 1 has copied all own rows */
        if (!a.across || (a.hop[0].store >> me & 1) != 0)
            return false;
        own = true;
        first = border == 0 ? start : max(start, end / GEMM_ROWS * GEMM_ROWS);
        n = (border == 0 ? min(end, (start + GEMM_ROWS - 1) / GEMM_ROWS * GEMM_ROWS) : end) - first;
        first -= start;
        out.source = me;
        out.chunk = 0;
        out.counter = 2 * a.v.size * a.chunks + border;
        out.move.store = 1u << me;
        out.placed = ag_gemm_border_word(a, border);
        out.waits = false;
    } else {
        uint32_t after = (i - pushed - 2) % (a.v.size - 1) + 1;

        out.source = me + after < a.v.size ? me + after : me + after - a.v.size;
        if ((a.loaded >> out.source & 1) == 0)
            return false;
        from = a.sender[out.source];
        out.chunk = (i - pushed - 2) / (a.v.size - 1);
        out.counter = (a.v.size + out.source) * a.chunks + out.chunk;
        out.move.store = 1u << me;
        out.placed = a.placed + out.source * a.chunks + out.chunk;
        out.waits = true;
        out.what = AG_GEMM_WAIT_LOAD;
    }
    if (i < pushed || i >= pushed + 2) {
        struct ag_gemm_run run = ag_gemm_chunk(a, p, out.source, out.chunk);

        first = run.first;
        n = run.rows;
    }
    out.move.row = p.start[out.source] + first;
    out.move.n = n;
    first = own ? first : out.move.row;
    out.move.rows = (own ? a.a : a.v.peer_heap[from] + a.set_rows) + (uint64_t)first * a.row_bytes;
    out.move.scales =
        (own ? a.a_scale : reinterpret_cast<const float *>(a.v.peer_heap[from] + a.set_scales)) +
        (uint64_t)first * a.groups;
    return true;
}

/* Records an interval of a mover's step. Called by one thread. */
EPA_DEV void ag_gemm_note_step(const struct ag_gemm_args &a, const struct ag_gemm_places &p,
                               const struct ag_gemm_warp &m, uint32_t step,
                               const struct ag_gemm_step &s, enum ag_gemm_interval of,
                               uint64_t call, uint32_t begun)
{
    if (AG_GEMM_PROFILE)
        ag_gemm_note_at(a, ag_gemm_copy_note(&a, m.index, step) + of - AG_GEMM_TILE_NOTES,
                        (uint32_t)call, begun, s.source,
                        p.c_start[s.source] + s.move.row - p.start[s.source], 0);
}

/* Makes all transfers of this rank in a call. Called by a warp. */
EPA_DEV void ag_gemm_move_all(const struct ag_gemm_args &a, const struct ag_gemm_places &p,
                              struct ag_gemm_warp &m, uint64_t call)
{
    struct ag_gemm_step s;

#pragma unroll 1
    for (uint32_t i = 0, n = ag_gemm_steps(&a); i < n; i++) {
        if (!ag_gemm_step_at(a, p, i, s))
            continue;
        struct ag_gemm_part part = ag_gemm_deal(a, m, s.move);
        uint32_t begun;

        if (part.mine >= part.parts)
            continue;
        begun = ag_gemm_now();
        if (s.waits) { /* other ranks wait for the previous part: finish it first */
            if (epa_dev_lane() == 0)
                ag_gemm_finish_part<0>(a, *m.last, call);
            if (!ag_gemm_wait_chunk(a, s.source, s.chunk, call, s.what))
                return;
            if (epa_dev_lane() == 0)
                ag_gemm_note_step(a, p, m, i, s, AG_GEMM_AWAIT_CHUNK, call, begun);
            begun = ag_gemm_now();
        }
        if (a.groups != 0 && s.move.store != 0)
            ag_gemm_copy_scales(a, s.move, part);
        __syncwarp();
        if (epa_dev_lane() != 0)
            continue;
        if (s.move.store != 0)
            ag_gemm_copy_rows(a, m, s.move, part, call);
        if (s.move.store != 0 && s.move.n != 0)
            ag_gemm_note_step(a, p, m, i, s, AG_GEMM_COPY, call, begun);
        ag_gemm_finish_part<0>(a, *m.last, call); /* does nothing if ag_gemm_copy_rows() has
                                                   * finished it */
        *m.last = {true, s.counter, part.parts, s.source, s.chunk, s.signals, s.placed};
    }
    if (epa_dev_lane() == 0)
        ag_gemm_finish_part<0>(a, *m.last, call);
}

/* Lets the copy engines forward the chunks of other nodes that have arrived, in the order in which
 * their stream waits. A stream has no time limit: after a failed wait, the gates of all remaining
 * chunks open, too. `forwarded` keeps the number of an earlier call then, so that no receiver reads
 * the rows in this call. Called by one lane. */
EPA_DEV void ag_gemm_open_gates(const struct ag_gemm_args &a, const struct ag_gemm_places &p,
                                uint64_t call)
{
    bool ok = true;

#pragma unroll 1
    for (uint32_t i = 0; i < (a.hops - 1) * a.chunks; i++) {
        const uint32_t chunk = i / (a.hops - 1), h = i % (a.hops - 1) + 1;
        const uint32_t source = a.hop[h].source, word = source * a.chunks + chunk;
        const uint32_t begun = ag_gemm_now();

        ok = ok && ag_gemm_wait(a, ag_gemm_signal_word(a, source, chunk), call,
                                {0, AG_GEMM_WAIT_PASS, source, chunk});
        if (ok)
            a.forwarded[word] = call;
        epa_dev_store_release(a.gate + word, 1); /* pairs with side_stream_take() */
        if (AG_GEMM_PROFILE && ok)
            ag_gemm_note_at(a,
                            ag_gemm_copy_note(&a, 0, h * a.chunks + chunk) + AG_GEMM_AWAIT_CHUNK -
                                AG_GEMM_TILE_NOTES,
                            (uint32_t)call, begun, source,
                            p.c_start[source] + ag_gemm_chunk(a, p, source, chunk).first, 0);
    }
}

/* Waits until each rank has signalled all of its chunks, including chunks without rows. If tiles
 * wait, too, this wait allows twice the time, so that the tile reports the time-out. Called by a
 * warp. */
EPA_DEV void ag_gemm_wait_all(const struct ag_gemm_args &a, uint64_t call)
{
    for (uint32_t i = epa_dev_lane(); i < a.v.size * a.chunks; i += EPA_DEV_WARP) {
        uint32_t source = i / a.chunks, chunk = i % a.chunks;

        if (source != a.v.rank &&
            !ag_gemm_wait(a, ag_gemm_signal_word(a, source, chunk), call,
                          {0, AG_GEMM_WAIT_END, source, chunk}, a.multiplies ? 2 : 1))
            return;
    }
}

#endif

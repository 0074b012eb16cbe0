/* Kernel of fused: dispatch. Warps send rows of tokens to their experts, unchanged or in FP8; in
 * two-stage dispatch once to each rank, where warps copy them to the places of their experts. */
#ifndef FUSED_DISPATCH_CUH
#define FUSED_DISPATCH_CUH

#include "fused_store.cuh"

/* ---- dispatch ---- */

/* A warp that sends tokens: warp `index` of `of` warps; `staged`: its shared memory. */
struct fused_mover {
    uint32_t index, of;
    float *staged;
};

/* A lane's choice of a token, and the destination of its row. */
struct fused_choice {
    uint32_t expert, row;
    bool sent;
    char *to;
    uint32_t first; /* lane whose choice carries the token to the choice's rank */
};

/* The choices of a token, one per lane, before validation. */
struct fused_raw_choice {
    uint32_t expert;
    float weight;
};

EPA_DEV struct fused_raw_choice fused_load_choice(const struct fused_args &a, uint32_t token)
{
    struct fused_raw_choice c = {~0u, 0};
    size_t at = (size_t)token * a.c.topk + epa_dev_lane();

    if (epa_dev_lane() < a.c.topk) {
        c.expert = (uint32_t)__ldg(a.c.expert + at);
        c.weight = __ldg(a.c.weight + at);
    }
    return c;
}

/* Evaluates the choices of a token, one per lane. On each rank, the choice with the lowest expert
 * carries the token, since it is the first to be sent. */
template <class S>
EPA_DEV struct fused_choice fused_choice_of(const struct fused_args &a, uint32_t token,
                                            struct fused_raw_choice raw, struct fused_meta *meta)
{
    struct fused_choice c = {raw.expert, 0, false, NULL, 0};
    uint32_t rank, here = 0, before = 0, lane = epa_dev_lane(), lowest;

    meta->weight = raw.weight;
    c.sent = c.expert < a.c.experts;
    rank = c.sent ? c.expert / a.c.local : ~0u;
    if (S::WAYS) {
        lowest = c.expert;
        c.first = lane;
    }
    for (uint32_t k = 0; k < a.c.topk; k++) {
        bool same = __shfl_sync(EPA_DEV_ALL, rank, k) == rank;

        here += same;
        before += same && k < lane;
        if (S::WAYS) {
            uint32_t expert = __shfl_sync(EPA_DEV_ALL, c.expert, k);

            if (same && (expert < lowest || (expert == lowest && k < c.first))) {
                lowest = expert;
                c.first = k;
            }
        }
    }
    meta->slot = a.c.v.rank * a.c.max_tokens + token;
    meta->choice = before | here << 16 | (S::WAYS ? lane << 8 : 0);
    return c;
}

/* Returns true if this lane's row carries the token, and false if it only refers to the row that
 * does. */
template <class S>
EPA_DEV bool fused_carries(const struct fused_args &a, const struct fused_choice &c)
{
    return !S::WAYS || a.ways.once == 0 || c.first == epa_dev_lane();
}

EPA_DEV char *fused_row_at(const struct fused_args &a, uint32_t expert, uint32_t row)
{
    return a.c.v.peer_heap[expert / a.c.local] + a.recv + (uint64_t)row * a.message_bytes;
}

template <class S>
EPA_DEV void fused_store_meta(const struct fused_args &a, char *row, const struct fused_meta &meta)
{
    epa_dev_store16(
        row + a.meta_at,
        make_uint4(meta.slot, meta.choice, __float_as_uint(meta.weight), S::WAYS ? meta.from : 0));
}

/* Returns the counter of a row that is sent to `expert`: of its block, or of the expert. */
template <class S>
EPA_DEV uint32_t *fused_arrived(const struct fused_args &a, uint32_t expert, uint32_t row)
{
    return reinterpret_cast<uint32_t *>(a.c.v.peer_heap[expert / a.c.local] + a.arrived) +
           (S::WAYS && a.ways.by_expert != 0 ? expert % a.c.local : row / S::ROWS);
}

/* Counts a sent row. Follows a __syncwarp() of the lanes that stored it. */
template <class S>
EPA_DEV void fused_arrive(const struct fused_args &a, uint32_t expert, uint32_t row)
{
    epa_dev_add_release32(fused_arrived<S>(a, expert, row), 1);
}

/* Sends a token to all of its experts. `next` returns the next row of an expert; `store` stores the
 * token to the places of lanes. Returns this lane's choice. Called by one warp. */
template <class S, class NEXT, class STORE>
EPA_DEV struct fused_choice fused_send_token(const struct fused_args &a, uint32_t token,
                                             struct fused_raw_choice raw, NEXT next, STORE store)
{
    struct fused_meta meta = {};
    struct fused_choice c = fused_choice_of<S>(a, token, raw, &meta);

    if (c.sent) {
        c.row = next(c.expert);
        c.to = fused_row_at(a, c.expert, c.row);
        if (!S::WAYS)
            fused_store_meta<S>(a, c.to, meta);
    }
    if (S::WAYS) {
        meta.from = __shfl_sync(EPA_DEV_ALL, c.row, c.first);
        if (c.sent)
            fused_store_meta<S>(a, c.to, meta);
    }
    store(__ballot_sync(EPA_DEV_ALL, c.sent && fused_carries<S>(a, c)), c.to);
    return c;
}

/* For few tokens. */
template <int IN, class S>
EPA_DEV void fused_dispatch(const struct fused_args &a, const struct fused_tables &t,
                            const struct fused_mover &m)
{
    for (uint32_t token = m.index; token < a.c.tokens; token += m.of) {
        struct fused_choice c = fused_send_token<S>(
            a, token, fused_load_choice(a, token),
            [&](uint32_t expert) {
                return t.send_row[expert] + atomicAdd(fused_sent(a) + expert, 1u);
            },
            [&](uint32_t lanes, char *to) {
                fused_store_row<IN, 7, S::ROW_GROUP>(a, token, 0, a.c.hidden, lanes, to, m.staged);
            });

        __syncwarp();
        if (c.sent)
            fused_arrive<S>(a, c.expert, c.row);
    }
}

/* Sent rows of a few tokens that are not counted yet; for each: rank << 24 | block + 1, or 0. A row
 * is counted after FUSED_LATE more tokens have been sent, so that no warp waits for its stores. */
enum { FUSED_LATE = 4 };

struct fused_uncounted {
    uint32_t now[FUSED_LATE], before[FUSED_LATE];
};

/* Counts the older rows after all but the last PENDING groups of stores are complete. Called by one
 * warp. */
template <int PENDING>
EPA_DEV void fused_count_rows(const struct fused_args &a, struct fused_uncounted *u)
{
    epa_dev_bulk_wait<PENDING>();
    __syncwarp();
    epa_dev_fence();
#pragma unroll
    for (int i = 0; i < FUSED_LATE; i++) {
        if (u->before[i] != 0)
            fused_add32(reinterpret_cast<uint32_t *>(a.c.v.peer_heap[(u->before[i] - 1) >> 24] +
                                                     a.arrived) +
                            ((u->before[i] - 1) & 0xffffff),
                        1);
        u->before[i] = u->now[i];
        u->now[i] = 0;
    }
}

/* For many tokens: sends this block's tokens of a wave, in warp `warp` of `warps`. Prefetches the
 * next token. */
template <int IN, class S>
EPA_DEV void fused_dispatch_wave(const struct fused_args &a, const struct fused_tables &t,
                                 uint32_t wave, uint32_t warp, uint32_t warps,
                                 struct fused_slots slots)
{
    enum { BYTES = IN == DEVICE_FP8 ? 1 : 2 };
    struct fused_share share = fused_share_of<S>(a, wave);
    uint32_t *row = t.send_row + wave * a.c.experts, n = 0, token = share.begin + warp;
    struct fused_raw_choice raw = {};
    fused_sweep<IN> sweep = {};
    struct fused_uncounted u = {};

    if (token < share.end) {
        raw = fused_load_choice(a, token);
        sweep = fused_load_sweep<IN>(a, token, 0);
    }
    for (; token < share.end; token += warps) {
        uint32_t following = min(token + warps, share.end - 1);
        const char *x = static_cast<const char *>(a.c.x) + (size_t)following * a.c.hidden * BYTES;
        struct fused_raw_choice next = fused_load_choice(a, following);

        for (uint32_t at = epa_dev_lane() * 128; at < a.c.hidden * BYTES; at += 128 * EPA_DEV_WARP)
            epa_dev_prefetch(x + at);
#pragma unroll
        for (int i = FUSED_LATE - 1; i > 0; i--)
            u.now[i] = u.now[i - 1];
        struct fused_choice c = fused_send_token<S>(
            a, token, raw, [&](uint32_t expert) { return atomicAdd(row + expert, 1u); },
            [&](uint32_t lanes, char *to) {
                fused_ship_row<IN, S::ROW_GROUP>(a, token, following, lanes, to, &slots, &sweep);
            });

        u.now[0] = c.sent ? (c.expert / a.c.local << 24 | c.row / S::ROWS) + 1 : 0;
        raw = next;
        if (++n % FUSED_LATE == 0)
            fused_count_rows<FUSED_LATE>(a, &u);
    }
    fused_count_rows<0>(a, &u);
    fused_count_rows<0>(a, &u);
}

/* For about as many tokens as blocks, or fewer: the multiplying warps share each token; `warp` is
 * the index of this warp. */
template <int IN, class S>
EPA_DEV void fused_dispatch_spread(const struct fused_args &a, const struct fused_tables &t,
                                   uint32_t warp, uint32_t *rows, float *staged)
{
    uint32_t groups = (a.c.hidden + FUSED_GROUP - 1) / FUSED_GROUP;
    uint32_t own = (groups + FUSED_MATH_WARPS - 1) / FUSED_MATH_WARPS * FUSED_GROUP;
    uint32_t begin = min(warp * own, a.c.hidden), end = min(begin + own, a.c.hidden);

    for (uint32_t token = blockIdx.x; token < a.c.tokens; token += fused_dispatchers<S>(a)) {
        struct fused_meta meta = {};
        struct fused_choice c = fused_choice_of<S>(a, token, fused_load_choice(a, token), &meta);

        if (c.sent && warp == 0)
            rows[epa_dev_lane()] = t.send_row[c.expert] + atomicAdd(fused_sent(a) + c.expert, 1u);
        epa_dev_named_sync(FUSED_NAMED_SEND, FUSED_MATH_WARPS * EPA_DEV_WARP);
        if (c.sent) {
            c.row = rows[epa_dev_lane()];
            c.to = fused_row_at(a, c.expert, c.row);
            if (S::WAYS)
                meta.from = rows[c.first];
            if (warp == 0)
                fused_store_meta<S>(a, c.to, meta);
        }
        if (begin < end)
            fused_store_row<IN, 2, S::ROW_GROUP>(
                a, token, begin, end, __ballot_sync(EPA_DEV_ALL, c.sent && fused_carries<S>(a, c)),
                c.to, staged);
        /* The whole row is stored, and all warps have read rows[]. One thread counts it once:
         * thousands of counts of one block across a link take longer than the rows. */
        epa_dev_named_sync(FUSED_NAMED_SEND, FUSED_MATH_WARPS * EPA_DEV_WARP);
        if (c.sent && warp == 0)
            fused_arrive<S>(a, c.expert, c.row);
    }
}

/* For many tokens in one wave: quantises each token that this block sends, once, in multiplying
 * warp `warp`. */
template <int IN, class S>
EPA_DEV void fused_quantise(const struct fused_args &a, uint32_t warp, float *staged)
{
    struct fused_share share = fused_share_of<S>(a, 0);

    for (uint32_t token = share.begin + warp; token < share.end; token += FUSED_MATH_WARPS)
        fused_store_row<IN, 4, S::ROW_GROUP>(a, token, 0, a.c.hidden, 1,
                                             a.quantised + (size_t)token * a.message_bytes, staged);
}

/* Builds the list entry of choice `i`, for the order by expert. An entry has all data to send its
 * row: the choice, its metadata, its expert, and in the high half the choice that carries the token
 * to that rank. */
EPA_DEV uint4 fused_listed(const struct fused_args &a, uint32_t i, uint32_t expert)
{
    uint32_t first_choice = i / a.c.topk * a.c.topk, own = i - first_choice;
    uint32_t low = expert / a.c.local * a.c.local, lowest = expert, first = own, here = 0,
             before = 0;

    for (uint32_t k = 0; k < a.c.topk; k++) {
        uint32_t e = (uint32_t)__ldg(a.c.expert + first_choice + k);
        bool same = e - low < a.c.local;

        here += same;
        before += same && k < own;
        if (same && (e < lowest || (e == lowest && k < first))) {
            lowest = e;
            first = k;
        }
    }
    return make_uint4(i, before | here << 16, __float_as_uint(__ldg(a.c.weight + i)),
                      expert | first << 16);
}

/* Returns the beginning of this block's list. */
template <class S> EPA_DEV uint4 *fused_list_of(const struct fused_args &a)
{
    return a.list + (size_t)fused_share_of<S>(a, 0).begin * a.c.topk;
}

/* Lists the choices of this block's tokens. `left`: choices of an expert that are not listed yet.
 * Called by the first warpgroup. */
template <class S>
EPA_DEV void fused_list(const struct fused_args &a, const struct fused_tables &t, uint32_t *left)
{
    enum { EACH = 4 };
    struct fused_share share = fused_share_of<S>(a, 0);
    uint32_t all = share.end * a.c.topk;
    uint4 *list = fused_list_of<S>(a);

    for (uint32_t i = share.begin * a.c.topk + threadIdx.x; i < all;
         i += EACH * FUSED_SHARE_THREADS) {
        uint32_t expert[EACH];

#pragma unroll
        for (int j = 0; j < EACH; j++)
            expert[j] = i + j * FUSED_SHARE_THREADS < all
                            ? (uint32_t)__ldg(a.c.expert + i + j * FUSED_SHARE_THREADS)
                            : ~0u;
#pragma unroll
        for (int j = 0; j < EACH; j++)
            if (expert[j] < a.c.experts)
                list[t.list_at[expert[j]] + atomicSub(&left[expert[j]], 1u) - 1] =
                    fused_listed(a, i + j * FUSED_SHARE_THREADS, expert[j]);
    }
}

/* Returns the row of choice i of this block's list at its rank. */
EPA_DEV uint32_t fused_listed_row(const struct fused_tables &t, uint32_t i, uint32_t expert)
{
    return t.send_row[expert] + (i - t.list_at[expert]);
}

/* Once: records the rows of choices, which referring rows need. Called by all threads of the
 * block. */
template <class S>
EPA_DEV void fused_list_rows(const struct fused_args &a, const struct fused_tables &t)
{
    const uint4 *list = fused_list_of<S>(a);

    for (uint32_t i = threadIdx.x; i < t.scalars[FUSED_CHOICES]; i += FUSED_THREADS) {
        uint4 entry = __ldcg(list + i);

        a.ways.row_of[entry.x] = fused_listed_row(t, i, entry.w & 0xffff);
    }
}

/* Sends the rows of `n` choices of this block's list, one per lane, from choice i on. Called by one
 * warp. */
template <int IN, class S>
EPA_DEV void fused_send_listed(const struct fused_args &a, const struct fused_tables &t, uint32_t i,
                               uint32_t n, uint4 entry, float *staged)
{
    uint32_t lane = epa_dev_lane(), token = entry.x / a.c.topk, heads, after;
    uint32_t expert = entry.w & 0xffff, row = fused_listed_row(t, i + lane, expert);
    bool sent = lane < n, carries = sent;
    char *to = fused_row_at(a, expert, row);
    uint32_t *arrived = fused_arrived<S>(a, expert, row), *other;
    struct fused_meta meta = {a.c.v.rank * a.c.max_tokens + token, entry.y,
                              __uint_as_float(entry.z), 0};

    if (S::WAYS) {
        uint32_t first = token * a.c.topk + (entry.w >> 16);

        meta.choice |= entry.x % a.c.topk << 8;
        if (a.ways.once != 0) {
            carries = sent && first == entry.x;
            meta.from = __ldcg(a.ways.row_of + first);
        }
    }
    if (sent)
        fused_store_meta<S>(a, to, meta);
    if (IN == DEVICE_FP8)
        for (uint32_t b = 0; b < n; b++)
            fused_store_row<IN, 4, S::ROW_GROUP>(a, __shfl_sync(EPA_DEV_ALL, token, b), 0,
                                                 a.c.hidden, 1, dev_from_lane(to, b), staged);
    else
        fused_copy_rows(__ballot_sync(EPA_DEV_ALL, carries),
                        IN == DEVICE_PLAIN
                            ? static_cast<const char *>(a.c.x) + (size_t)token * a.meta_at
                            : a.quantised + (size_t)token * a.message_bytes,
                        to, a.meta_at);
    __syncwarp();
    /* Rows of a block are contiguous: the first lane of each block counts them all. */
    other = dev_from_lane(arrived, (lane + EPA_DEV_WARP - 1) % EPA_DEV_WARP);
    heads = __ballot_sync(EPA_DEV_ALL, sent && (lane == 0 || other != arrived));
    after = heads >> lane >> 1;
    if ((heads >> lane & 1) != 0)
        epa_dev_add_release32(arrived, after != 0 ? __ffs(after) : n - lane);
}

/* Returns the number of choices of this block's list that the multiplying warps send before tiles,
 * one per warp, so that the first tiles begin early. With FP8 inputs it is 0, since these warps
 * lack shared memory for scales. */
template <int IN, class S> EPA_DEV constexpr uint32_t fused_first_rows(void)
{
    return S::WAYS || IN == DEVICE_FP8 ? 0 : FUSED_MATH_WARPS;
}

template <int IN, class S> EPA_DEV bool fused_has_first(const struct fused_args &a)
{
    return fused_first_rows<IN, S>() != 0 && a.sorted != 0 && a.waves == 1;
}

/* Sends this warp's first choice. The other warps wait for `sent`, so that their rows do not
 * compete for the link. */
template <int IN, class S>
EPA_DEV void fused_dispatch_first(const struct fused_args &a, const struct fused_tables &t,
                                  uint32_t warp, uint64_t *sent)
{
    if (warp < t.scalars[FUSED_CHOICES])
        fused_send_listed<IN, S>(a, t, warp, 1, __ldcg(fused_list_of<S>(a) + warp), NULL);
    __syncwarp();
    if (epa_dev_lane() == 0)
        epa_dev_mbar_arrive(sent);
}

/* For many tokens: sends the rest of this block's choices, in warp `warp` of FUSED_TOKEN_WARPS. In
 * one wave, the rows of the first experts leave first. */
template <int IN, class S>
EPA_DEV void fused_dispatch_sorted(const struct fused_args &a, const struct fused_tables &t,
                                   uint32_t warp, struct fused_slots slots)
{
    uint32_t choices = t.scalars[FUSED_CHOICES], own = min(epa_dev_lane(), a.batch - 1);
    uint32_t step = FUSED_TOKEN_WARPS * a.batch, first = fused_first_rows<IN, S>();
    const uint4 *list = fused_list_of<S>(a);
    uint4 entry = make_uint4(0, 0, 0, 0);

    if (a.waves > 1) {
        for (uint32_t w = 1; w < a.waves; w++)
            fused_dispatch_wave<IN, S>(a, t, w, warp, FUSED_TOKEN_WARPS, slots);
        return;
    }
    first += warp * a.batch;
    if (first < choices)
        entry = __ldcg(list + min(first + own, choices - 1));
    for (uint32_t i = first; i < choices; i += step) {
        uint4 next = __ldcg(list + min(i + step + own, choices - 1));

        fused_send_listed<IN, S>(a, t, i, min(a.batch, choices - i), entry,
                                 reinterpret_cast<float *>(slots.first));
        entry = next;
    }
}

/* ---- tail ----
 *
 * Second stage of dispatch. The tail copies the token to rows that only refer to another row, and
 * converts FP8 to 16 bits for weights of 16 bits. Afterwards tiles may read the rows. The tail
 * waits for dispatch only. */

enum { FUSED_TAIL_ROWS = 16 }; /* rows that a warp takes */

/* Converts an FP8 row to 16 bits. Called by one warp. */
template <class S>
EPA_DEV void fused_widen_row(const struct fused_args &a, const char *from, char *to)
{
    const float *scale = reinterpret_cast<const float *>(from + a.scales_at);

    for (uint32_t at = epa_dev_lane() * 16; at < a.c.hidden; at += 512) {
        uint4 codes = epa_dev_load16(from + at);
        float by = __ldcg(scale + at / S::ROW_GROUP), value[16];

        epa_dev_unpack_fp8(codes.x, by, value);
        epa_dev_unpack_fp8(codes.y, by, value + 4);
        epa_dev_unpack_fp8(codes.z, by, value + 8);
        epa_dev_unpack_fp8(codes.w, by, value + 12);
        epa_dev_store16(to + at * 2, epa_dev_pack<S::F16>(value));
        epa_dev_store16(to + at * 2 + 16, epa_dev_pack<S::F16>(value + 8));
    }
}

template <class S>
EPA_DEV bool fused_tail(const struct fused_args &a, const struct fused_tables &t, uint32_t index,
                        uint32_t of)
{
    enum { CHUNKS = S::ROWS / FUSED_TAIL_ROWS };
    const char *recv = dev_own(a.c.v, a.recv);
    bool widens = !S::FP8 && a.ways.widened != NULL;

    for (uint32_t i = index; i < t.block_at[a.c.local] * CHUNKS; i += of) {
        uint32_t block = fused_block_of(a, t, i / CHUNKS), first = i % CHUNKS * FUSED_TAIL_ROWS,
                 expert;
        uint32_t rows = fused_block_rows<S::ROWS>(a, t, block, &expert);
        uint32_t row = block * S::ROWS + first + epa_dev_lane(), from = row, left;
        bool here = epa_dev_lane() < FUSED_TAIL_ROWS && first + epa_dev_lane() < rows, ok = true;

        if (first >= rows)
            continue;
        if (!fused_wait_arrived_warp<S>(a, t, block))
            return false;
        if (here && a.ways.once != 0)
            from = epa_dev_load16(recv + (uint64_t)row * a.message_bytes + a.meta_at).w;
        /* Each lane waits for the row that its row refers to. */
        if (from != row)
            ok = fused_wait_arrived<S>(a, t, from / S::ROWS);
        if (!__all_sync(EPA_DEV_ALL, ok))
            return false;
        __syncwarp();
        const char *source = recv + (uint64_t)from * a.message_bytes;

        if (!widens)
            fused_copy_rows(__ballot_sync(EPA_DEV_ALL, from != row), source,
                            dev_own(a.c.v, a.recv) + (uint64_t)row * a.message_bytes, a.meta_at);
        for (left = __ballot_sync(EPA_DEV_ALL, here && widens); left != 0; left &= left - 1) {
            uint32_t lane = __ffs(left) - 1;

            fused_widen_row<S>(a, dev_from_lane(source, lane),
                               a.ways.widened +
                                   (uint64_t)(block * S::ROWS + first + lane) * a.c.hidden * 2);
        }
        __syncwarp();
        if (epa_dev_lane() == 0)
            epa_dev_add_release_gpu(fused_copied(a) + block,
                                    min((uint32_t)FUSED_TAIL_ROWS, rows - first));
    }
    return true;
}

#endif

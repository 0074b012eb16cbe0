/* For kernels that read the map of the rows of layout rank. */
#ifndef CUDA_PLACES_CUH
#define CUDA_PLACES_CUH

#include "deliver.cuh"

/* Returns the number of words of a source rank. */
EPA_DEV uint32_t words_of(const struct epa_places &p)
{
    return (p.max_tokens + 31) / 32;
}

/* Returns true if the token has a row, and its place. */
EPA_DEV bool find_place(const struct epa_places &p, uint32_t rank, uint32_t token, uint32_t *place)
{
    uint32_t word = rank * words_of(p) + token / 32, sent = __ldcg(p.sent + word);
    uint32_t gap = p.padded ? rank * p.max_tokens - __ldcg(p.first + rank) : 0;

    *place = gap + __ldcg(p.before + word) + __popc(sent & ((1u << token % 32) - 1));
    return (sent >> token % 32 & 1) != 0;
}

/* An entry of a local expert: its row of the view and its choice, and the place of the row. */
struct entry {
    uint32_t row, place, choice;
};

/* Returns entry `i` of expert `e`. */
EPA_DEV struct entry find_entry(const struct deliver_args &a, uint32_t e, uint32_t i)
{
    const uint64_t at = __ldcg(a.start + e) + i;
    const uint32_t row = __ldcg(a.recv_row + at), *origin = origin_at(a, row);
    struct entry entry = {row, 0, __ldcg(a.recv_k + at)};

    (void)find_place(a.places, __ldcg(origin), __ldcg(origin + 1), &entry.place);
    return entry;
}

#endif

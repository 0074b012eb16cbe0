/* Received entries in order of rows, for the sums of layout rank. */
#ifndef EXPERTS_SHARES_H
#define EXPERTS_SHARES_H

#include <epa2a/problem.h>
#include <epa2a/status.h>

/* An entry of a row. */
struct share {
    uint32_t entry;  /* index in the lists of the dispatch */
    uint32_t expert; /* local number */
};

/* Initially zero. */
struct shares {
    /* Row r has the shares first[r] to first[r + 1] - 1, in ascending order of experts. */
    uint32_t *first;
    struct share *share;
    uint64_t rows_end;               /* end of the used rows */
    uint64_t first_room, share_room; /* elements */
};

/* Allocates room for `rows` rows and `entries` entries. Discards the contents. */
enum epa_status shares_reserve(struct shares *, uint64_t rows, uint64_t entries,
                               struct epa_error *err);
/* Sorts the entries of `experts` local experts. first_entry[e]: index of the first entry of expert
 * e in recv_row. */
enum epa_status shares_sort(struct shares *, const struct epa_moe *, const uint64_t *first_entry,
                            uint32_t experts, struct epa_error *err);
void shares_free(struct shares *);

#endif

/* Received entries in order of rows. */
#include "experts/shares.h"

#include <stdlib.h>
#include <string.h>

/* Grows an array to n elements; the contents are lost on growth. */
static enum epa_status grow_array(void **array, uint64_t *room, uint64_t n, size_t size,
                                  struct epa_error *err)
{
    if (n <= *room)
        return EPA_OK;
    free(*array);
    *array = malloc(n * size);
    *room = *array != NULL ? n : 0;
    if (*array == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for entries by row: %llu bytes",
                        (unsigned long long)(n * size));
    return EPA_OK;
}

enum epa_status shares_reserve(struct shares *s, uint64_t rows, uint64_t entries,
                               struct epa_error *err)
{
    void *memory = s->first;
    enum epa_status status = grow_array(&memory, &s->first_room, rows + 1, sizeof(*s->first), err);

    s->first = memory;
    memory = s->share;
    if (status == EPA_OK)
        status = grow_array(&memory, &s->share_room, entries, sizeof(*s->share), err);
    s->share = memory;
    return status;
}

/* A counting sort. */
enum epa_status shares_sort(struct shares *s, const struct epa_moe *m, const uint64_t *first_entry,
                            uint32_t experts, struct epa_error *err)
{
    uint64_t entries = 0, rows_end = 0;
    uint32_t *first, sum = 0;
    enum epa_status status;

    for (uint32_t e = 0; e < experts; e++) {
        entries += m->recv_count[e];
        for (uint32_t i = 0; i < m->recv_count[e]; i++) {
            uint64_t row = m->recv_row[first_entry[e] + i];

            rows_end = row >= rows_end ? row + 1 : rows_end;
        }
    }
    status = shares_reserve(s, rows_end, entries, err);
    if (status != EPA_OK)
        return status;
    first = s->first;
    s->rows_end = rows_end;
    memset(first, 0, (rows_end + 1) * sizeof(*first));
    for (uint32_t e = 0; e < experts; e++)
        for (uint32_t i = 0; i < m->recv_count[e]; i++)
            first[m->recv_row[first_entry[e] + i] + 1]++;
    for (uint64_t row = 0; row <= rows_end; row++) {
        sum += first[row];
        first[row] = sum;
    }
    for (uint32_t e = 0; e < experts; e++)
        for (uint32_t i = 0; i < m->recv_count[e]; i++) {
            uint32_t entry = (uint32_t)first_entry[e] + i;

            s->share[first[m->recv_row[entry]]++] = (struct share){.entry = entry, .expert = e};
        }
    /* The sort has advanced each `first` to the next row; moves them back. */
    memmove(first + 1, first, rows_end * sizeof(*first));
    first[0] = 0;
    return EPA_OK;
}

void shares_free(struct shares *s)
{
    free(s->first);
    free(s->share);
    *s = (struct shares){0};
}

/* Rows of a report: stages or figures of graphs, and the whole iteration. */
#include "session/rows.h"

/* Returns a row with a single row of times. */
static struct session_row row_at(uint32_t first, enum epa_stage_kind kind, const char *name)
{
    return (struct session_row){.name = name, .kind = kind, .first = first, .n = 1};
}

uint32_t session_rows(const struct session *s, uint32_t n_stages,
                      struct session_row out[SESSION_ROWS])
{
    const struct session_notes *notes = s->notes;
    bool graph = notes->clock == CLOCK_GRAPH, open = session_is_open(s);
    bool pairs = graph && n_stages > 0 && notes->stage_kind[n_stages - 1] != EPA_STAGE_WHOLE;
    uint32_t n = 0;

    if (notes->clock == CLOCK_END_TO_END) {
        out[n++] = row_at(FIGURE_END_TO_END, EPA_STAGE_WHOLE, "wall");
        return n;
    }
    if (pairs)
        out[n++] = row_at(FIGURE_DISPATCH, EPA_STAGE_DISPATCH, "dispatch");
    for (uint32_t i = 0; i < n_stages; i++) {
        if (!graph) {
            out[n] = row_at(i, notes->stage_kind[i], notes->stage[i]);
            out[n++].is_stage = true;
        } else if (notes->stage_kind[i] == EPA_STAGE_EXPERTS) {
            out[n++] = row_at(FIGURE_EXPERTS, EPA_STAGE_EXPERTS, notes->stage[i]);
        }
    }
    if (pairs)
        out[n++] = row_at(FIGURE_COMBINE, EPA_STAGE_COMBINE, "combine");
    if (open && n_stages > 0)
        out[n++] = row_at(n_stages + OPEN_SERVICE, EPA_STAGE_WHOLE, "service");
    if (open)
        out[n++] = row_at(n_stages + OPEN_LATENCY, EPA_STAGE_SEND, "latency");
    else
        out[n++] = row_at(pairs ? FIGURE_PAIR : FIGURE_WHOLE, EPA_STAGE_WHOLE, "total");
    if (!graph && !open)
        out[n - 1].n = n_stages;
    return n;
}

struct session_row session_total(const struct session *s)
{
    struct session_row row[SESSION_ROWS];

    return row[session_rows(s, s->notes->n_stages, row) - 1];
}

double session_row_ns(const struct session *s, const struct session_row *row, uint32_t rank,
                      uint64_t sample)
{
    double sum = 0;

    for (uint32_t i = 0; i < row->n; i++)
        sum += session_times(s, rank, row->first + i)[sample];
    return sum;
}

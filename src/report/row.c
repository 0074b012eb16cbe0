/* A run's row of the summary, from its result or from JSON. */
#include "report/row.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* Of a stage of two halves the first is a stage of its own; it goes with the second. */
static enum epa_stage_kind kind_of(const struct session *s, uint32_t stage)
{
    while (stage + 1 < s->n_stages && s->stage_kind[stage] == EPA_STAGE_SEND)
        stage++;
    return s->stage_kind[stage];
}

/* Median over samples of the slowest rank, of all stages of a kind together. */
static double median_of(const struct result *result, enum epa_stage_kind kind, double *scratch)
{
    const struct session *s = result->session;
    uint64_t n = result->n_samples;
    bool any = false;

    memset(scratch, 0, n * sizeof(*scratch));
    for (uint32_t r = 0; n > 0 && r < s->experiment->ranks; r++) {
        for (uint64_t k = 0; k < n; k++) {
            double sum = 0;

            for (uint32_t i = 0; i < s->n_stages; i++) {
                if (kind_of(s, i) != kind)
                    continue;
                sum += session_times(s, r, i)[k];
                any = true;
            }
            scratch[k] = fmax(scratch[k], sum);
        }
    }
    if (!any)
        return NAN;
    stats_sort(scratch, n);
    return stats_percentile(scratch, n, 500);
}

static enum epa_status fill_parts(struct report_row *row, const struct result *result,
                                  struct epa_error *err)
{
    enum bench_clock clock = result->session->clock;
    double *const part[FIGURES] = {[FIGURE_DISPATCH] = &row->dispatch_ns,
                                   [FIGURE_EXPERTS] = &row->experts_ns,
                                   [FIGURE_COMBINE] = &row->combine_ns};
    double *scratch;

    row->dispatch_ns = row->experts_ns = row->combine_ns = NAN;
    /* Where it is one row, that is WHOLE. */
    for (uint32_t i = 0; clock == CLOCK_GRAPH && result->n_stages > 1 && i < result->n_stages;
         i++) {
        enum session_figure figure = session_figure_at(result->session, i);

        if (part[figure] != NULL)
            *part[figure] = result->stage[i].slowest.median;
    }
    if (clock != CLOCK_HOST && clock != CLOCK_EVENTS)
        return EPA_OK;
    scratch = calloc(result->n_samples + 1, sizeof(*scratch));
    if (scratch == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %llu samples",
                        (unsigned long long)result->n_samples);
    row->dispatch_ns = median_of(result, EPA_STAGE_DISPATCH, scratch);
    row->experts_ns = median_of(result, EPA_STAGE_EXPERTS, scratch);
    row->combine_ns = median_of(result, EPA_STAGE_COMBINE, scratch);
    free(scratch);
    return EPA_OK;
}

enum epa_status report_row_fill(struct report_row *row, const struct result *result,
                                struct epa_error *err)
{
    row->status = result->n_missed > 0 ? EPA_ERR_MISMATCH : result->status;
    row->end = row->status == EPA_OK ? REPORT_OK : REPORT_FAILED;
    snprintf(row->error, sizeof(row->error), "%.*s", (int)sizeof(row->error) - 1, result->error);
    row->total_ns = NAN;
    if (result->n_stages > 0 && result->n_samples > 0)
        row->total_ns = result->stage[result->n_stages - 1].slowest.median;
    row->samples = result->n_samples;
    row->stop = result->stop;
    row->ci95 = result_ci95(result);
    row->checked = result->checked;
    row->compared = result->compared;
    row->wrong = result->wrong;
    return fill_parts(row, result, err);
}

static double time_at(const json_t *from, const char *key)
{
    const json_t *ns = json_object_get(from, key);

    return json_is_number(ns) ? json_number_value(ns) : NAN;
}

void report_row_read(struct report_row *row, const json_t *result, const json_t *from)
{
    const json_t *verify = json_object_get(result, "verify");
    const json_t *stop = json_object_get(result, "stop");

    row->end = REPORT_OK;
    row->status = EPA_OK;
    row->dispatch_ns = time_at(from, "dispatch_ns");
    row->experts_ns = time_at(from, "experts_ns");
    row->combine_ns = time_at(from, "combine_ns");
    row->total_ns = time_at(from, "total_ns");
    row->checked = (uint64_t)json_integer_value(json_object_get(verify, "iterations"));
    row->compared = (uint64_t)json_integer_value(json_object_get(verify, "compared"));
    row->wrong = (uint64_t)json_integer_value(json_object_get(verify, "wrong"));
    row->samples = (uint64_t)json_integer_value(json_object_get(stop, "samples"));
    row->ci95 = json_is_number(json_object_get(stop, "ci95"))
                    ? json_number_value(json_object_get(stop, "ci95"))
                    : NAN;
    for (enum stop_reason i = STOP_ITERATIONS; i <= STOP_TIME; i++)
        if (strcmp(stop_name(i), json_text_at(stop, "reason")) == 0)
            row->stop = i;
}

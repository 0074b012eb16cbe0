/* Rows that `expect` names, against those that there will be: known as soon as the algorithm
 * has been made, so before the first iteration. Each rank comes to the same. */
#include "session/rank.h"

#include <string.h>

#include "base/text.h"
#include "config/expect.h"
#include "config/experiment.h"
#include "config/node.h"

/* Rows of the report, as result.c makes them; the last stands for what names none. */
static uint32_t rows_of(const struct rank *r, const char *row[SESSION_STAGES + OPEN_ROWS])
{
    uint32_t n = 0;

    if (r->clock == CLOCK_END_TO_END) {
        row[n++] = "wall";
        return n;
    }
    if (r->clock == CLOCK_GRAPH && last_kind(r) != EPA_STAGE_WHOLE) {
        row[n++] = "dispatch";
        if (is_kind(r, r->first_stages, EPA_STAGE_EXPERTS))
            row[n++] = r->stage[r->first_stages].name;
        row[n++] = "combine";
    } else if (r->clock != CLOCK_GRAPH) {
        while (n < r->n_stages) {
            row[n] = r->stage[n].name;
            n++;
        }
    }
    if (session_is_open(r->session)) {
        row[n++] = "service";
        row[n++] = "latency";
        return n;
    }
    row[n++] = "total";
    return n;
}

static bool is_row(const char *name, const char *const *row, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(row[i], name) == 0)
            return true;
    return name[0] == '\0';
}

/* "x.yaml:7:12: expect.median names 'dispach'; rows are dispatch, combine, total". */
static enum epa_status refuse(const struct rank *r, const struct expectation *e,
                              const char *const *row, uint32_t n, struct epa_error *err)
{
    const struct experiment *x = experiment_of(r);
    const char *near = text_nearest(e->row, row, n);
    const struct node *node;
    struct text rows = {0}, key = {0}, at = {0};

    text_add(&key, "expect.%s", expect_name[e->figure]);
    node = origin_find(x, key.data);
    if (node != NULL)
        text_add(&at, "%s:%u:%u: ", node->location.file, node->location.line,
                 node->location.column + node->quoted + e->at);
    for (uint32_t i = 0; i < n; i++)
        text_add(&rows, "%s%s", i == 0 ? "" : ", ", row[i]);
    (void)epa_fail(err, EPA_ERR_CONFIG,
                   "%s%s names the row '%s', and with algorithm '%s' and this clock there "
                   "%s %s%s%s%s",
                   at.bytes > 0 ? at.data : "", key.data, e->row, x->algorithm.plugin->name,
                   n == 1 ? "is only" : "are", rows.data, near != NULL ? "; did you mean '" : "",
                   near != NULL ? near : "", near != NULL ? "'?" : "");
    text_free(&rows);
    text_free(&key);
    text_free(&at);
    return EPA_ERR_CONFIG;
}

enum epa_status rank_expect_check(const struct rank *r, struct epa_error *err)
{
    const char *row[SESSION_STAGES + OPEN_ROWS];
    uint32_t rows = rows_of(r, row);

    if (r->session->verb == VERB_VERIFY) /* which takes no times */
        return EPA_OK;
    for (uint32_t i = 0; i < EXPECT_FIGURES; i++) {
        struct expectation all[EXPECT_MOST];
        struct value_error ignored;
        uint32_t n = expect_read(&experiment_of(r)->expect, i, all, &ignored);

        for (uint32_t k = 0; k < n && n != UINT32_MAX; k++)
            if (!is_row(all[k].row, row, rows))
                return refuse(r, &all[k], row, rows, err);
    }
    return EPA_OK;
}

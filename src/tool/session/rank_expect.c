/* Rows that `expect` names. The rows are known after the creation of the algorithm, so a wrong row fails
 * before the first iteration. */
#include "session/rank_expect.h"

#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "config/expect.h"
#include "config/option_text.h"
#include "session/rank_status.h"
#include "session/rows.h"

static void report_unknown_row(struct rank *r, const char *name, const struct expect_bounds *bounds,
                               const char *const *row, uint32_t n)
{
    const struct epa_option *figure = expect_figures;
    struct text key = {0};

    while (!option_is_set(figure, bounds) && figure[1].name != NULL)
        figure++;
    text_add(&key, "expect.%s.%s", name, figure->name);
    rank_refuse_name(r, key.data, name, row, n,
                     " names the row '%s'; with algorithm '%s' and this clock there %s", name,
                     experiment_of(r)->algorithm.plugin->name, n == 1 ? "is only" : "are");
    text_free(&key);
}

void rank_expect_check(struct rank *r)
{
    const struct expect_options *x = &experiment_of(r)->expect;
    struct session_row all[SESSION_ROWS];
    const char *row[SESSION_ROWS];
    uint32_t n = session_rows(r->session, r->n_stages, all);

    if (r->session->verb == VERB_VERIFY) /* verify records no times */
        return;
    for (uint32_t k = 0; k < n; k++)
        row[k] = all[k].name;
    for (uint32_t i = 0; i < x->n_rows && rank_good(r); i++) {
        uint32_t k = 0;

        while (k < n && strcmp(row[k], x->row[i].name) != 0)
            k++;
        if (k == n)
            report_unknown_row(r, x->row[i].name, &x->row[i].bounds, row, n);
    }
}

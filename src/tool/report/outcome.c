/* The end of a run: its status and its error. */
#include "report/outcome.h"

#include <stdio.h>

#include "base/text.h"
#include "config/experiment.h"
#include "report/result_parts.h"

/* Returns the message of the caller, otherwise of the first rank that failed by itself. */
json_t *result_error(const struct result *result)
{
    const struct session *s = result->session;
    const struct session_rank *first = NULL;
    char words[sizeof(first->text) + 1] = "";

    if (result->status == EPA_OK)
        return json_null();
    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);

        if (rank->status != EPA_OK && rank->status != EPA_ERR_ABORTED &&
            (first == NULL || rank->failed_ns < first->failed_ns))
            first = rank;
    }
    if (first != NULL)
        snprintf(words, sizeof(words), "%.*s", (int)sizeof(first->text), first->text);
    return json_object_of("status", json_text(status_name(result->status)), "text",
                          json_text(result->error.text[0] != '\0' ? result->error.text : words),
                          NULL);
}

/* Returns "status", a fixed set of words for scripts; verdicts_make() adds "missed". */
const char *result_outcome(const struct result *result)
{
    switch (result->status) {
    case EPA_ERR_UNSUPPORTED:
        return result->skips ? "skipped" : "failed";
    case EPA_OK:
    case EPA_ERR_MISMATCH:
    case EPA_ERR_TIMEOUT:
    case EPA_ERR_DIED:
    case EPA_ERR_INTERRUPTED:
        return status_name(result->status);
    default:
        return "failed";
    }
}

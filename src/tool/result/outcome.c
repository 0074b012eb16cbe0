/* The end of a run: its status and its error. */
#include "result/outcome.h"

#include "base/memory.h"
#include "config/experiment.h"

const char *result_message(const struct result *result, const struct session *s,
                           struct arena *arena)
{
    const struct session_rank *first = NULL;

    if (result->error.text[0] != '\0')
        return arena_printf(arena, "%s", result->error.text);
    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);

        if (rank->status != EPA_OK && rank->status != EPA_ERR_ABORTED &&
            (first == NULL || rank->failed_ns < first->failed_ns))
            first = rank;
    }
    if (first == NULL)
        return "";
    return arena_printf(arena, "%.*s", (int)sizeof(first->text), first->text);
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

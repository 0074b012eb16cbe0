/* The result of a launch for all ranks. */
#include "launch/launcher_verdict.h"

#include "launch/launch.h"
#include "launch/launcher_state.h"

void launcher_set_verdict(struct launcher *l, struct conn_word verdict)
{
    if (l->judged)
        return;
    l->judged = true;
    l->launch->pause_ms = 1;
    l->verdict = verdict;
    if (verdict.status == EPA_OK)
        return;
    control_abort(l->control);
    l->launch->abort_known = true;
}

void launcher_report(struct launcher *l, const struct conn_word *word)
{
    if (l->phase >= WAITING)
        conn_put_word(&l->conn, CONN_WORD, word);
    else if (l->phase == MEETING || word->status == EPA_ERR_INTERRUPTED)
        launcher_set_verdict(l, l->launch->failure);
}

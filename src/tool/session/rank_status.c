/* The first failure of a rank, with its explanation. */
#include "session/rank_status.h"

#include <stdarg.h>

#include <epa2a/wait.h>
#include "base/text.h"
#include "config/origin.h"
#include "config/tree.h"

bool rank_fail(struct rank *r, enum epa_status status, const char *fmt, ...)
{
    char text[sizeof(r->err.text)];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (rank_good(r))
        r->status = epa_fail(&r->err, status, "%s", text);
    return false;
}

void rank_refuse_name(struct rank *r, const char *key, const char *want, const char *const *name,
                      uint32_t n, const char *fmt, ...)
{
    const struct node *node = origin_find(experiment_of(r), key);
    struct nearest nearest = {.want = want};
    struct text text = {0};
    char sentence[400], hint[NEAREST_ROOM];
    va_list args;

    if (node != NULL)
        text_add(&text, "%s:%u:%u: ", node->location.file, node->location.line,
                 node->location.column);
    va_start(args, fmt);
    vsnprintf(sentence, sizeof(sentence), fmt, args);
    va_end(args);
    text_add(&text, "%s%s", key, sentence);
    for (uint32_t i = 0; i < n; i++) {
        nearest_try(&nearest, name[i]);
        text_add(&text, "%s%s", i == 0 ? " " : ", ", name[i]);
    }
    rank_fail(r, EPA_ERR_CONFIG, "%s%s%s", text.data, nearest.name != NULL ? "; " : "",
              nearest_hint(&nearest, hint, ""));
    text_free(&text);
}

bool rank_needs_explanation(struct rank *r, enum epa_status status)
{
    if (r->status == EPA_OK)
        r->status = status;
    return status != EPA_OK && status != EPA_ERR_ABORTED;
}

bool rank_algorithm(struct rank *r, enum epa_status status)
{
    if (rank_needs_explanation(r, status))
        r->algorithm->explain(r->algorithm, &r->err);
    return rank_good(r);
}

bool rank_transport(struct rank *r, enum epa_status status)
{
    if (rank_needs_explanation(r, status))
        r->transport->ops->explain(r->transport, &r->err);
    return rank_good(r);
}

bool rank_backend(struct rank *r, enum epa_status status)
{
    const struct epa_backend *b = r->backend;

    if (!rank_needs_explanation(r, status))
        return rank_good(r);
    if (b->fault.status != EPA_OK && b->fault.stage == EPA_FAULT_TRANSPORT)
        r->transport->ops->explain(r->transport, &r->err);
    else if (b->fault.status != EPA_OK && r->algorithm != NULL)
        r->algorithm->explain(r->algorithm, &r->err);
    b->ops->explain(r->backend, &r->err);
    return false;
}

bool rank_boot(struct rank *r, enum epa_status status)
{
    if (status == EPA_ERR_TIMEOUT && rank_needs_explanation(r, status))
        r->boot->explain(r->boot, &r->err);
    else if (rank_needs_explanation(r, status))
        (void)epa_fail(&r->err, status, "the bootstrap exchange between ranks failed");
    return rank_good(r);
}

bool rank_goes_on(struct rank *r)
{
    if (rank_good(r) && epa_aborted(r->boot))
        r->status = EPA_ERR_ABORTED;
    return rank_good(r);
}

/* The first failure of a rank, with its explanation. */
#include "session/rank_status.h"

#include <stdarg.h>

#include <epa2a/wait.h>
#include "base/memory.h"
#include "base/text.h"
#include "config/origin.h"
#include "config/tree.h"
#include "ep/ep_explain.h"

bool rank_fail(struct rank *r, enum epa_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    if (rank_good(r))
        r->status = epa_fail_args(&r->err, status, "", fmt, args);
    va_end(args);
    return false;
}

bool rank_fail_key(struct rank *r, enum epa_status status, const char *key, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    if (rank_good(r))
        r->status = epa_fail_args(&r->err, status, key, fmt, args);
    va_end(args);
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

/* Keeps the first status. */
static bool keep_status(struct rank *r, enum epa_status status)
{
    if (rank_good(r))
        r->status = status;
    return rank_good(r);
}

bool rank_backend(struct rank *r, enum epa_status status)
{
    return keep_status(r, ep_explain_backend(&r->ep, status, &r->err));
}

bool rank_boot(struct rank *r, enum epa_status status)
{
    return keep_status(r, ep_explain_boot(&r->comm, status, &r->err));
}

bool rank_goes_on(struct rank *r)
{
    if (rank_good(r) && epa_aborted(r->comm.boot))
        r->status = EPA_ERR_ABORTED;
    return rank_good(r);
}

/* Results of calls of the public interface. */
#include "caller/caller_status.h"

#include "api/error.h"

enum epa_status caller_called(struct caller *c, int status)
{
    if (status == EPA2A_OK)
        return EPA_OK;
    if (c->failure.text[0] == '\0')
        c->failure = *api_last_failure();
    return status == EPA2A_ERR_DIED ? EPA_ERR_ABORTED : (enum epa_status)status;
}

enum epa_status caller_set_up(struct caller *c, int status, struct epa_error *err)
{
    enum epa_status result = caller_called(c, status);

    return result == EPA_OK ? EPA_OK
                            : epa_fail_key(epa_awaits_as(err, &c->failure), result, c->failure.key,
                                           "epa2a.h: %s", c->failure.text);
}

void caller_explain(struct epa_algorithm *a, struct epa_error *err)
{
    const struct caller_object *o = (const void *)a;

    (void)epa_fail_copy(err, EPA_ERR_SYSTEM, &o->caller->failure);
}

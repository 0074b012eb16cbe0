/* Which set of kernels runs: the first candidate, best first, that this CPU can run, or the
 * one that EPA2A_ISA names. */
#include <stdlib.h>
#include <string.h>

#include "kernels/sets.h"

const struct epa_kernels *epa_kernels_by_name(const char *isa, enum epa_dtype dtype)
{
    for (const struct kernels_candidate *c = kernels_candidates; c->set != NULL; c++) {
        if (strcmp(c->set->isa, isa) == 0 && c->set->dtype == dtype)
            return c->usable() ? c->set : NULL;
    }
    return NULL;
}

static const struct epa_kernels *best(enum epa_dtype dtype)
{
    const struct kernels_candidate *c = kernels_candidates;

    while (c->set->dtype != dtype || !c->usable()) /* scalar, the last, always is */
        c++;
    return c->set;
}

const struct epa_kernels *epa_kernels_get(enum epa_dtype dtype, const char **refused)
{
    const char *wanted = getenv("EPA2A_ISA");
    const struct epa_kernels *set;

    if (refused != NULL)
        *refused = NULL;
    if (wanted == NULL || wanted[0] == '\0')
        return best(dtype);
    set = epa_kernels_by_name(wanted, dtype);
    if (set != NULL)
        return set;
    if (refused != NULL)
        *refused = wanted;
    return best(dtype);
}

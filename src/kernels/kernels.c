/* Which set of kernels runs: the one of the best instruction set that this CPU has, or of the one
 * that EPA2A_ISA names. */
#include <stdlib.h>
#include <string.h>

#include "kernels/sets.h"

static const struct epa_kernels *kernels_of(const struct kernels_isa *isa, enum epa_dtype dtype)
{
    for (uint32_t i = 0; i < 2 && isa->kernels[i] != NULL; i++)
        if (isa->kernels[i]->dtype == dtype)
            return isa->kernels[i];
    return NULL;
}

static const struct epa_gemm *gemm_of(const struct kernels_isa *isa, enum epa_dtype dtype)
{
    for (uint32_t i = 0; i < isa->n_gemm; i++)
        if (isa->gemm[i].dtype == dtype)
            return &isa->gemm[i];
    return NULL;
}

static const struct kernels_isa *usable_isa(const char *name)
{
    for (const struct kernels_isa *isa = kernels_isas; isa->name != NULL; isa++)
        if (strcmp(isa->name, name) == 0 && isa->usable())
            return isa;
    return NULL;
}

/* Whom EPA2A_ISA names; NULL: nobody, or one that cannot be had, which *refused is then. */
static const struct kernels_isa *wanted_isa(const char **refused)
{
    const char *wanted = getenv("EPA2A_ISA");
    const struct kernels_isa *isa;

    if (refused != NULL)
        *refused = NULL;
    if (wanted == NULL || wanted[0] == '\0')
        return NULL;
    isa = usable_isa(wanted);
    if (isa == NULL && refused != NULL)
        *refused = wanted;
    return isa;
}

const struct epa_kernels *epa_kernels_by_name(const char *isa, enum epa_dtype dtype)
{
    const struct kernels_isa *usable = usable_isa(isa);

    return usable != NULL ? kernels_of(usable, dtype) : NULL;
}

const struct epa_gemm *epa_gemm_by_name(const char *isa, enum epa_dtype dtype)
{
    const struct kernels_isa *usable = usable_isa(isa);

    return usable != NULL ? gemm_of(usable, dtype) : NULL;
}

const struct epa_kernels *epa_kernels_get(enum epa_dtype dtype, const char **refused)
{
    const struct kernels_isa *wanted = wanted_isa(refused);
    const struct kernels_isa *isa = wanted != NULL ? wanted : kernels_isas;

    while (kernels_of(isa, dtype) == NULL || !isa->usable()) /* scalar, the last, always is */
        isa++;
    return kernels_of(isa, dtype);
}

const struct epa_gemm *epa_gemm_get(enum epa_dtype dtype, const char **refused)
{
    const struct kernels_isa *wanted = wanted_isa(refused);
    const struct kernels_isa *isa = wanted != NULL ? wanted : kernels_isas;

    while (gemm_of(isa, dtype) == NULL || !isa->usable() ||
           (isa != wanted && isa->quicker != NULL && !isa->quicker()))
        isa++;
    return gemm_of(isa, dtype);
}

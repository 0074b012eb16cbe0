/* Built without a library. */
#include "library.h"

bool library_knows(const struct epa_ag_gemm *g)
{
    (void)g;
    return false;
}

enum epa_status library_create(const struct epa_ag_gemm *g, uint32_t rows, uint32_t workers,
                               struct library **out, struct epa_error *err)
{
    (void)g;
    (void)rows;
    (void)workers;
    (void)out;
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "built without oneDNN");
}

void library_destroy(struct library *l)
{
    (void)l;
}

enum epa_status library_multiply(struct library *l, uint32_t worker, const void *a, uint32_t rows,
                                 void *c)
{
    (void)l;
    (void)worker;
    (void)a;
    (void)rows;
    (void)c;
    return EPA_ERR_UNSUPPORTED;
}

/* Built without oneDNN's headers. */
#include "op/moe/moe.h"

enum epa_status onednn_create(const struct onednn_shape shape[ONEDNN_MATRICES], uint32_t workers,
                              struct onednn **out, struct epa_error *err)
{
    (void)shape;
    (void)workers;
    (void)out;
    return epa_fail(err, EPA_ERR_UNSUPPORTED,
                    "expert.library: onednn: epa2a was built without oneDNN (Debian: libdnnl-dev)");
}

void onednn_destroy(struct onednn *o)
{
    (void)o;
}

const char *onednn_name(const struct onednn *o)
{
    (void)o;
    return "oneDNN";
}

enum epa_status onednn_pack(struct onednn *o, uint32_t worker, uint32_t matrix, const void *w,
                            void *out)
{
    (void)o;
    (void)worker;
    (void)matrix;
    (void)w;
    (void)out;
    return EPA_ERR_UNSUPPORTED;
}

enum epa_status onednn_multiply(struct onednn *o, uint32_t worker, uint32_t matrix, const void *a,
                                uint32_t m, const void *b, float *c)
{
    (void)o;
    (void)worker;
    (void)matrix;
    (void)a;
    (void)m;
    (void)b;
    (void)c;
    return EPA_ERR_UNSUPPORTED;
}

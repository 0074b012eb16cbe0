/* Growable host buffers. */
#include "op/moe/area.h"

#include <stdlib.h>

enum epa_status op_moe_area(struct area *area, const char *what, uint64_t bytes,
                            struct epa_error *err)
{
    if (bytes <= area->bytes && area->data != NULL)
        return EPA_OK;
    free(area->data);
    *area = (struct area){.data = malloc(bytes + 1), .bytes = bytes};
    if (area->data != NULL)
        return EPA_OK;
    area->bytes = 0;
    return epa_fail(err, EPA_ERR_NOMEM, "no memory for %s: %llu bytes", what,
                    (unsigned long long)bytes);
}

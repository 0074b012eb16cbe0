/* Any bytes as routing in JSON lines. */
#include "fuzz_routing.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < sizeof(fuzz_shapes) / sizeof(*fuzz_shapes); i++) {
        struct epa_error err = {EPA_OK, ""};
        struct routing_table t;
        enum epa_status status =
            routing_parse_jsonl("f", (const char *)data, bytes, &fuzz_shapes[i], &t, &err);

        fuzz_check_table(status, &err, &fuzz_shapes[i], &t);
    }
    return 0;
}

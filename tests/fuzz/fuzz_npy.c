/* Any bytes as a .npy file of routing and of hidden states. */
#include "fuzz_routing.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

static void hidden(const unsigned char *data, size_t bytes, bool f16)
{
    struct epa_error err = {EPA_OK, ""};
    struct hidden_table t;

    if (hidden_parse_npy("f", data, bytes, 4, f16, &t, &err) != EPA_OK) {
        fuzz_demand(err.text[0] == 'f' && err.text[1] == ':');
        return;
    }
    fuzz_demand(t.tokens != 0);
    for (uint64_t i = 0; i < t.tokens * 4; i++)
        fuzz_demand((t.x[i] & 0x7fff) < (f16 ? 0x7c00 : 0x7f80));
    free(t.x);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < sizeof(fuzz_shapes) / sizeof(*fuzz_shapes); i++) {
        struct epa_error err = {EPA_OK, ""};
        struct routing_table t;
        enum epa_status status = routing_parse_npy("f", data, bytes, &fuzz_shapes[i], &t, &err);

        fuzz_check_table(status, &err, &fuzz_shapes[i], &t);
    }
    hidden(data, bytes, false);
    hidden(data, bytes, true);
    return 0;
}

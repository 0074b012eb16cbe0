/* Layouts of algorithms, asked for as a session does: over loads and stores that reach all ranks,
 * over puts, or between GPUs. */
#ifndef LAYOUTS_H
#define LAYOUTS_H

#include <epa2a/algorithm.h>

#include "test.h"

enum {
    OVER_LOADS = EPA_TRANSPORT_HOST | EPA_TRANSPORT_LOAD_STORE,
    OVER_PUTS = EPA_TRANSPORT_HOST,
    OF_GPUS = EPA_TRANSPORT_HOST | EPA_TRANSPORT_DEVICE | EPA_TRANSPORT_LOAD_STORE,
};

static const struct epa_moe decode = {
    .max_tokens = 128,
    .hidden = 7168,
    .experts = 256,
    .topk = 8,
    .fp8_group_size = 128,
    .dtype = EPA_BF16,
    .x_dtype = EPA_BF16,
};

/* make(), made(), and assert_refused() with words of the refusal, for the layout of one algorithm. */
#define LAYOUTS(layout, config, layout_make) \
    static enum epa_status make(const struct epa_moe *m, uint32_t ranks, uint32_t over, \
                                const struct config *c, struct layout *out, struct epa_error *err) \
    { \
        struct epa_world world = {.size = ranks, .local_size = ranks, .local_cores = 1}; \
\
        *err = (struct epa_error){EPA_OK, ""}; \
        return layout_make(m, &world, over, c, out, err); \
    } \
\
    static struct layout made(const struct epa_moe *m, uint32_t ranks, uint32_t over, \
                              const struct config *c) \
    { \
        struct layout l; \
        struct epa_error err; \
\
        if (make(m, ranks, over, c, &l, &err) != EPA_OK) \
            fail_msg("%s", err.text); \
        return l; \
    } \
\
    static void assert_refused(const struct epa_moe *m, uint32_t ranks, uint32_t over, \
                               const struct config *c, const char *why) \
    { \
        struct layout l; \
        struct epa_error err; \
\
        assert_int_equal(make(m, ranks, over, c, &l, &err), EPA_ERR_CONFIG); \
        assert_words(err.text, why); \
    }

#endif

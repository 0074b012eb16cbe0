/* Makes layouts of algorithms for three kinds of worlds: loads and stores that reach all ranks,
 * puts, and GPUs. */
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

/* The largest experiment: maximum tokens and choices per token, and experts for 64 ranks. */
static const struct epa_moe largest = {
    .max_tokens = 4096,
    .hidden = 131072,
    .experts = 64 * 32,
    .topk = 32,
    .fp8_group_size = 128,
    .dtype = EPA_BF16,
    .x_dtype = EPA_BF16,
};

/* A field of `decode` with a value that no experiment on hosts, or none on GPUs, can have, and the
 * text of the refusal, which begins with the name of the algorithm. tests/cli/refusals.py covers
 * values that experiments can have. */
static const struct refusal {
    size_t field;
    uint32_t value, ranks, over;
    const char *why;
} refusals[] = {
    {offsetof(struct epa_moe, dtype), EPA_F32, 8, OVER_LOADS, "16 bits .. moe.dtype: bf16 or f16"},
    {offsetof(struct epa_moe, topk), 33, 8, OVER_LOADS, "takes moe.topk from 1 to 32, not 33"},
    {offsetof(struct epa_moe, experts), 130, 65, OVER_LOADS, "takes 1 to 64 ranks, not 65"},
    {offsetof(struct epa_moe, experts), 8192, 8, OF_GPUS, "up to 4096 moe.experts, not 8192"},
    {offsetof(struct epa_moe, fp8_group_size), 512, 8, OF_GPUS,
     "16 .. 32 .. 64 .. 128 .. 256 .. moe.fp8_group_size .. 512"},
};

/* Defines for the layout of one algorithm: make(), made(), assert_refused() with the text of the
 * refusal, and assert_refusals() over the table above. */
#define LAYOUTS(layout, config, layout_make) \
    static enum epa_status make(const struct epa_moe *m, uint32_t ranks, uint32_t over, \
                                const struct config *c, struct layout *out) \
    { \
        struct epa_world world = {.size = ranks, .local_size = ranks, .local_cores = 1}; \
\
        return layout_make(m, &world, over, c, out, test_error()); \
    } \
\
    __attribute__((unused)) static struct layout made(const struct epa_moe *m, uint32_t ranks, \
                                                      uint32_t over, const struct config *c) \
    { \
        struct layout l; \
\
        assert_status(make(m, ranks, over, c, &l), EPA_OK, ""); \
        return l; \
    } \
\
    static void assert_refused(const struct epa_moe *m, uint32_t ranks, uint32_t over, \
                               const struct config *c, const char *why) \
    { \
        struct layout l; \
\
        assert_status(make(m, ranks, over, c, &l), EPA_ERR_CONFIG, why); \
    } \
\
    static void assert_refusals(const char *name, const struct config *c) \
    { \
        for (size_t i = 0; i < LENGTH(refusals); i++) { \
            const struct refusal *r = &refusals[i]; \
            struct epa_moe m = decode; \
            char why[256]; \
\
            memcpy((char *)&m + r->field, &r->value, sizeof(r->value)); \
            snprintf(why, sizeof(why), "%s .. %s", name, r->why); \
            assert_refused(&m, r->ranks, r->over, c, why); \
        } \
    }

#endif

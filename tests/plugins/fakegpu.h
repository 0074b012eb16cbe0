/* Interface for algorithms on the backend fakegpu: its epa_backend.stream is a struct
 * fakegpu_stream. */
#ifndef FAKEGPU_H
#define FAKEGPU_H

#include <stdlib.h>

#include <epa2a/backend.h>
#include "base/dtype.h"

/* `run` is called later, in order, with a copy of `arg`, like a kernel with its parameters. A
 * result other than EPA_OK cancels the work queued after it. */
struct fakegpu_stream {
    enum epa_status (*push)(struct fakegpu_stream *, enum epa_status (*run)(void *arg),
                            const void *arg, size_t bytes);
};

/* Applies the synthetic experts to the rows of a dispatch. */
static inline void fakegpu_experts(const struct epa_moe *m, uint32_t experts, const float *factor,
                                   uint16_t *y)
{
    bool f16 = m->dtype == EPA_F16;

    for (uint32_t e = 0; e < experts; e++)
        for (uint64_t i = m->recv_start[e]; i < m->recv_start[e] + m->recv_count[e]; i++) {
            const uint16_t *x = (const void *)((const char *)m->recv + i * m->recv_stride);

            for (uint32_t h = 0; h < m->hidden; h++)
                y[i * m->hidden + h] = word_of_float(f16, float_of_word(f16, x[h]) * factor[e]);
        }
}

/* Returns zeroed memory or aborts the test. */
static inline void *fakegpu_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes);

    if (memory == NULL)
        abort();
    return memory;
}

#endif

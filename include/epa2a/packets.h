/* Messages of MoE dispatch on hosts: functions write the message of a row, and publish the views of
 * received rows. A message is token | scales (FP8) | origin, at offsets that the algorithm chooses,
 * rounded up to cache lines of 64 bytes, so that `spread` of epa2a/quant.h can copy it.
 *
 *     epa_write_token(kernels, m, fp8, t, end, message + token_at, message + scales_at);
 *     ... store the message where its expert reads it, signal, wait ...
 *     epa_publish_counts(m, epoch, local, recv_count, recv_start);
 *     epa_publish_messages(m, recv, token_at, fp8, scales_at, origin_at, message_bytes); */
#ifndef EPA2A_PACKETS_H
#define EPA2A_PACKETS_H

#include <stdbool.h>
#include <string.h>

#include <epa2a/quant.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EPA_LINE_BYTES = 64 };

static inline uint64_t epa_round_up(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Writes token t of the inputs in the format of dispatch: unchanged, or in FP8, quantised here or
 * copied from quantised input. `end`: the token after the last token of this worker; the next token
 * is prefetched. Without FP8 `scales` is not written. */
static inline void epa_write_token(const struct epa_kernels *k, const struct epa_moe *m, bool fp8,
                                   uint32_t t, uint32_t end, void *token, void *scales)
{
    const uint16_t *x = m->x == NULL ? NULL : (const uint16_t *)m->x + (size_t)t * m->hidden;

    if (!fp8) {
        memcpy(token, x, 2 * (size_t)m->hidden);
    } else if (m->x_dtype == EPA_FP8_E4M3) {
        size_t groups = m->hidden / m->fp8_group_size;

        memcpy(token, m->x_fp8 + (size_t)t * m->hidden, m->hidden);
        memcpy(scales, m->x_scale + (size_t)t * groups, groups * sizeof(float));
    } else {
        k->quantise(x, m->hidden, m->fp8_group_size, t + 1 < end ? x + m->hidden : NULL,
                    (uint8_t *)token, (float *)scales);
    }
}

/* Publishes the counts of a dispatch in layout expert: the number of rows, and the first row of
 * each local expert. The rows of the last expert are last in memory. An algorithm that knows the
 * counts of each source sets recv_source afterwards. */
static inline void epa_publish_counts(struct epa_moe *m, uint64_t epoch, uint32_t local,
                                      const uint32_t *recv_count, const uint64_t *recv_start)
{
    m->epoch = epoch;
    m->recv_rows = m->recv_entries = recv_start[local - 1] + recv_count[local - 1];
    m->recv_count = recv_count;
    m->recv_start = recv_start;
    m->recv_row = NULL;
    m->recv_weight = NULL;
    m->recv_k = NULL;
    m->recv_source = NULL;
}

/* Publishes the views of rows that are contiguous messages from `recv` on. */
static inline void epa_publish_messages(struct epa_moe *m, const char *recv, uint64_t token_at,
                                        bool fp8, uint64_t scales_at, uint64_t origin_at,
                                        uint64_t message_bytes)
{
    m->recv = recv + token_at;
    m->recv_scale = fp8 ? (const float *)(const void *)(recv + scales_at) : NULL;
    m->origin = (const struct epa_origin *)(const void *)(recv + origin_at);
    m->recv_stride = m->scale_stride = m->origin_stride = message_bytes;
}

#ifdef __cplusplus
}
#endif
#endif

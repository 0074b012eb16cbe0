/* ll_v2 on hosts: messages of tokens. */
#ifndef LL_V2_MESSAGE_H
#define LL_V2_MESSAGE_H

#include "ll_v2_state.h"

/* Writes token t to a message; `end` as in epa_write_token(). */
static inline void write_token(const struct ll_task *task, uint32_t t, uint32_t end, char *msg)
{
    const struct ll_layout *l = &task->h->l;

    epa_write_token(task->h->a.kernels, task->m, l->fp8, t, end, msg + LL_META_BYTES,
                    msg + l->scales_at);
}

/* Writes the origin of token t and the choices that `which` selects. */
static inline void write_meta(const struct ll_task *task, uint32_t t, uint32_t which, char *msg)
{
    *(struct ll_meta *)(void *)msg = (struct ll_meta){
        .origin = {task->h->a.world.rank, t},
        .which = which,
        .choices = (uint32_t)__builtin_popcount(which),
    };
}

/* Writes channels `first` to `last` of token t: the whole token, or a part that is quantised. */
static inline void write_part(const struct ll_task *task, uint32_t t, uint32_t end, uint32_t first,
                              uint32_t last, char *msg)
{
    const struct ll_layout *l = &task->h->l;
    const uint16_t *x;

    if (first == 0 && last == l->hidden) {
        write_token(task, t, end, msg);
        return;
    }
    x = (const uint16_t *)task->m->x + (size_t)t * l->hidden + first;
    task->h->a.kernels->quantise(x, last - first, l->group, t + 1 < end ? x + l->hidden : NULL,
                                 (uint8_t *)msg + LL_META_BYTES + first,
                                 (float *)(void *)(msg + l->scales_at) + first / l->group);
}

/* Returns the channels of a part: of all channels unless tokens are quantised. */
static inline uint32_t part_channels(const struct ll_task *task)
{
    const struct ll_layout *l = &task->h->l;

    return l->fp8 && task->m->x_dtype != EPA_FP8_E4M3
               ? (LL_PART_CHANNELS + l->group - 1) / l->group * l->group
               : l->hidden;
}

/* Writes the first parts of token 0 to scratch, which needs no places yet. */
static inline void ll_write_ahead(struct ll_task *task)
{
    const struct ll_host *h = task->h;
    uint32_t tokens = task->m->tokens, ahead = LL_PARTS_AHEAD * part_channels(task);

    /* Not with several workers, which divide the tokens, not for ranks out of reach, whose messages
     * are written to staging, and not with dedup, which writes whole rows. */
    if (tokens == 0 || h->a.workers != 1 || h->a.far != 0 || h->l.dedup)
        return;
    task->written = ahead < h->l.hidden ? ahead : h->l.hidden;
    write_part(task, 0, tokens, 0, task->written, h->scratch);
}

#endif

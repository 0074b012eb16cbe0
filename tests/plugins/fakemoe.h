/* Where fakemoe has what in its heap. */
#ifndef FAKEMOE_H
#define FAKEMOE_H

#include <epa2a/problem.h>

enum { SETS = 2 };

/* Where things are in the heap; offsets of set 0, `x_bytes` and so on between sets. */
struct layout {
    uint64_t entries;
    uint64_t box_bytes; /* what one rank sends to another: count, choices, tokens */
    uint64_t inbox_at, recv_at, y_at, outputs_at, heap_bytes;
    uint64_t inbox_bytes, rows_bytes, outputs_bytes;
};

static inline struct layout layout_of(const struct epa_moe *m, uint32_t size)
{
    uint32_t local = m->experts / size, most = m->topk < local ? m->topk : local;
    struct layout l = {.entries = (uint64_t)size * m->max_tokens * most};

    l.box_bytes = (8 + (uint64_t)m->max_tokens * (m->topk * 4 + m->hidden * 2) + 63) / 64 * 64;
    l.inbox_bytes = size * l.box_bytes;
    l.rows_bytes = l.entries * m->hidden * 2;
    l.outputs_bytes = (uint64_t)m->max_tokens * m->topk * m->hidden * 2;
    l.recv_at = SETS * l.inbox_bytes;
    l.y_at = l.recv_at + SETS * l.rows_bytes;
    l.outputs_at = l.y_at + SETS * l.rows_bytes;
    l.heap_bytes = l.outputs_at + SETS * l.outputs_bytes;
    return l;
}

#endif

/* Copies the facts of a session that reports read. */
#include "result/run_facts.h"

#include <string.h>

#include "base/memory.h"
#include "base/text.h"

static void *copy_bytes(struct arena *arena, const void *from, size_t bytes)
{
    return memcpy(arena_alloc(arena, bytes), from, bytes);
}

static struct run_rank copy_rank(const struct session_rank *from, struct arena *arena)
{
    return (struct run_rank){
        .pid = from->pid,
        .core = from->core,
        .node = from->node,
        .host = arena_printf(arena, "%s", from->host),
        .samples = from->samples,
        .first_ns = from->first_ns,
        .status = from->status,
        .text = arena_printf(arena, "%.*s", (int)sizeof(from->text), from->text),
        .device = copy_bytes(arena, &from->device, sizeof(from->device)),
        .transport = copy_bytes(arena, &from->transport, sizeof(from->transport))};
}

static void copy_inputs(const struct session *s, struct arena *arena, struct run_facts *out)
{
    const struct operation *op = session_operation(s);
    text_auto lines = {0};

    if (op->stats_lines != NULL)
        op->stats_lines(s->stats, &lines);
    if (op->stats_list != NULL)
        out->n_inputs = op->stats_list(s->stats, s->source, out->input);
    out->input_lines = arena_printf(arena, "%s", lines.bytes > 0 ? lines.data : "");
}

void run_facts_copy(const struct session *s, struct arena *arena, struct run_facts *out)
{
    uint32_t ranks = s->experiment->problem.ranks;
    struct run_rank *rank = arena_alloc(arena, ranks * sizeof(*rank));

    for (uint32_t r = 0; r < ranks; r++)
        rank[r] = copy_rank(session_rank(s, r), arena);
    *out =
        (struct run_facts){.experiment = copy_bytes(arena, s->experiment, sizeof(*s->experiment)),
                           .operation = session_operation(s),
                           .verb = s->verb,
                           .warmup = s->warmup,
                           .iterations = s->iterations,
                           .calls = session_calls(s),
                           .open = session_is_open(s),
                           .started_by = arena_printf(arena, "%s", s->process_id.source),
                           .uncounted = arena_printf(arena, "%s", s->uncounted),
                           .footprint = s->footprint,
                           .notes = copy_bytes(arena, s->notes, sizeof(*s->notes)),
                           .rank = rank};
    copy_inputs(s, arena, out);
}

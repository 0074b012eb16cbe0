/* The input files of an experiment: routing without the tokens of routing.skip, and hidden states. */
#include "op/moe/routing_source.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "op/problem_params.h"
#include "op/moe/routing_file.h"

void routing_close(struct op_source *source)
{
    if (source == NULL)
        return;
    free(source->table.expert);
    free(source->table.weight);
    free(source->hidden.x);
    free(source);
}

/* Checks that tokens of `what` remain after routing.skip. */
static enum epa_status check_skip(uint64_t skip, const char *what, uint64_t tokens,
                                  struct epa_error *err)
{
    if (tokens > skip)
        return EPA_OK;
    return epa_fail_key(err, EPA_ERR_CONFIG, "routing.skip",
                        "routing.skip is %llu, but %s has %llu tokens: none would remain",
                        (unsigned long long)skip, what, (unsigned long long)tokens);
}

static enum epa_status skip_tokens(const struct problem_params *x, struct op_source *s,
                                   struct epa_error *err)
{
    uint64_t skip = x->routing.skip, topk = x->moe.topk, hidden = x->moe.hidden, repeated;
    enum epa_status status;

    if (x->routing.skip == UINT32_MAX)
        skip = routing_warmup(&s->table, &repeated);
    if (x->routing.skip == UINT32_MAX && skip >= s->table.tokens)
        skip = 0; /* the whole file is one repeated token */
    status = check_skip(skip, x->routing.path, s->table.tokens, err);
    if (status == EPA_OK && s->hidden.x != NULL)
        status = check_skip(skip, x->routing.hidden_states, s->hidden.tokens, err);
    if (status != EPA_OK)
        return status;
    s->skipped = skip;
    s->table.tokens -= skip;
    memmove(s->table.expert, s->table.expert + skip * topk,
            s->table.tokens * topk * sizeof(*s->table.expert));
    memmove(s->table.weight, s->table.weight + skip * topk,
            s->table.tokens * topk * sizeof(*s->table.weight));
    if (s->hidden.x != NULL) {
        s->hidden.tokens -= skip;
        memmove(s->hidden.x, s->hidden.x + skip * hidden,
                s->hidden.tokens * hidden * sizeof(*s->hidden.x));
    }
    return EPA_OK;
}

enum epa_status routing_open(const struct problem_params *x, const struct op_advice *advice,
                             struct op_source **out, struct epa_error *err)
{
    bool hidden = x->routing.hidden_states != NULL;
    const struct routing_shape shape = {.topk = x->moe.topk,
                                        .experts = x->moe.experts,
                                        .layer = x->routing.layer,
                                        .hidden = x->moe.hidden,
                                        .f16 = x->moe.dtype == EPA_F16,
                                        .advice = advice};
    struct op_source *source;
    enum epa_status status = EPA_OK;

    *out = NULL;
    if (x->routing.kind != ROUTING_FILE && !hidden)
        return EPA_OK;
    source = memory_alloc(1, sizeof(*source));
    if (x->routing.kind == ROUTING_FILE &&
        routing_read(x->routing.path, &shape, &source->table, err) != EPA_OK)
        status = epa_fail_at(err, "routing.path");
    if (status == EPA_OK && hidden &&
        hidden_read(x->routing.hidden_states, &shape, &source->hidden, err) != EPA_OK)
        status = epa_fail_at(err, "routing.hidden_states");
    if (status == EPA_OK && x->routing.kind == ROUTING_FILE && x->routing.skip > 0)
        status = skip_tokens(x, source, err);
    if (status != EPA_OK) {
        routing_close(source);
        return status;
    }
    *out = source;
    return EPA_OK;
}

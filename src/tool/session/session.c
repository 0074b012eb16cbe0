/* Plan and state of a session. */
#include "session/session.h"

#include <stdio.h>

const char *session_verb_name(enum verb verb)
{
    static const char *const name[] = {
        [VERB_RUN] = "run", [VERB_BENCH] = "bench", [VERB_VERIFY] = "verify"};

    return name[verb];
}

const char *session_verb(const struct session *s)
{
    return session_verb_name(s->verb);
}

uint32_t session_slots(const struct session *s)
{
    if (s->verb == VERB_BENCH)
        return s->experiment->bench.input_sets;
    return s->verb == VERB_VERIFY && s->experiment->verify.order == ORDER_PIPELINED ? 2 : 1;
}

bool session_checks(const struct session *s)
{
    return s->verb != VERB_BENCH || s->experiment->bench.check;
}

bool session_is_open(const struct session *s)
{
    return s->verb == VERB_BENCH && s->experiment->bench.arrivals != ARRIVALS_CLOSED;
}

bool session_has_peaks(const struct session *s)
{
    return s->verb == VERB_BENCH && s->scope == BENCH_ALL;
}

uint32_t session_calls(const struct session *s)
{
    return s->experiment->bench.cache == CACHE_COLD ? 1 : s->experiment->bench.calls_per_graph;
}

/* A block of verify contains no times. */
size_t session_block_bytes(const struct session *s)
{
    uint64_t samples = s->verb == VERB_VERIFY ? 0 : s->iterations;
    size_t line = _Alignof(struct session_rank);
    size_t bytes =
        sizeof(struct session_rank) + (size_t)(SESSION_STAGES * samples) * sizeof(double);

    bytes = (bytes + line - 1) / line * line;
    return s->trace.lanes == 0 ? bytes : bytes + record_bytes(&s->trace);
}

bool session_in_use(const struct session *s)
{
    return s != NULL && s->leaked_ranks > 0;
}

const char *session_stage(const struct session_notes *notes, uint32_t stage)
{
    if (notes->n_stages == 0)
        return "set-up";
    if (stage == SESSION_PAIR)
        return "dispatch and combine";
    if (stage == SESSION_INPUTS)
        return "inputs";
    if (stage == SESSION_CHECK)
        return "check";
    return stage < notes->n_stages ? notes->stage[stage] : "between stages";
}

bool session_runs_no_kernel(const struct session *s)
{
    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);
        uint32_t stage = __atomic_load_n(&rank->stage, __ATOMIC_RELAXED);

        if (stage != SESSION_INPUTS && stage != SESSION_CHECK &&
            __atomic_load_n(&rank->finished, __ATOMIC_ACQUIRE) == 0)
            return false;
    }
    return true;
}

void session_keep_fact(void *facts, const char *key, const char *value)
{
    struct session_facts *to = facts;
    struct session_fact *fact = &to->fact[to->n];

    if (to->n == SESSION_FACTS)
        return;
    snprintf(fact->key, sizeof(fact->key), "%s", key);
    snprintf(fact->value, sizeof(fact->value), "%s", value);
    to->n++;
}

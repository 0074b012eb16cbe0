/* Takes the turns of a search: each is a bench or a verify of one setting. */
#include "cli/tune_turn.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <epa2a/wait.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "cli/tune.h"
#include "cli/tune_candidates.h"
#include "cli/tune_search.h"
#include "cli/turns.h"
#include "result/result.h"
#include "run/run.h"

/* Reads the experiment of a setting with the length of a turn. */
static const struct runs *read_turn(struct tune_search *s, const struct tune_setting *x,
                                    enum tune_verb verb, char why[RUNS_FAILURE])
{
    const struct bench_options *bench = &s->base[0].x->bench;
    bool may_stop = bench->arrivals == ARRIVALS_CLOSED && bench->min_time_ns == 0;
    const char **set = arena_alloc(s->t.arena, (x->n + 4) * sizeof(*set));
    uint32_t n = x->n;

    if (n > 0)
        memcpy(set, x->set, n * sizeof(*set));
    if (verb == TUNE_VERIFY) {
        set[n++] = arena_printf(s->t.arena, "verify.iterations=%d", TUNE_VERIFIED);
    } else {
        set[n++] = verb == TUNE_CHECKED ? "bench.check=true" : "bench.check=false";
        if (may_stop)
            set[n++] = arena_printf(s->t.arena, "bench.max_time=%" PRIu64 "ns", s->longest_ns);
        set[n++] = arena_printf(s->t.arena, "bench.iterations=%u", s->iterations);
        set[n++] = arena_printf(s->t.arena, "bench.warmup=%u", s->warmup);
    }
    return tune_read_runs(s, s->base[x->base].text, set, n, why);
}

static void read_times(const struct run_stage *total, struct tune_turn *out)
{
    double *sample = memory_alloc(total->n + 1, sizeof(*sample));

    for (uint64_t i = 0; i < total->n; i++)
        sample[i] = total->sample[i];
    out->samples = total->n;
    out->median_ns = stats_quantile(sample, total->n, 500);
    out->fastest_ns = stats_quantile(sample, total->n, TURNS_FASTEST);
    free(sample);
}

int tune_take_turn(struct tune_search *s, const struct tune_setting *x, enum tune_verb verb,
                   struct tune_turn *out)
{
    const struct run_how how = {
        .scope = BENCH_TOTAL, .machine = s->t.machine, .stop_fd = s->stop_fd};
    uint64_t start = epa_now_ns();
    char why[RUNS_FAILURE] = "";
    const struct runs *runs = read_turn(s, x, verb, why);
    struct tune_kept *kept = s->kept;
    struct result result = {.status = EPA_ERR_CONFIG};
    int code;

    *out = (struct tune_turn){.median_ns = NAN, .fastest_ns = NAN};
    if (runs != NULL)
        result = run_experiment(runs->run[0].x, verb == TUNE_VERIFY ? VERB_VERIFY : VERB_BENCH,
                                &how, NULL);
    if (result.status == EPA_OK && verb != TUNE_VERIFY)
        read_times(run_total(result.figures), out);
    out->why = arena_printf(s->t.arena, "%s: %s", verb == TUNE_VERIFY ? "verify" : "bench",
                            result.error.text[0] != '\0' ? result.error.text
                            : why[0] != '\0'             ? why
                                                         : "it failed");
    code = exit_code(result.status, result.signal != 0 ? result.signal : SIGINT);
    if (result_finish(&result)) {
        runs_finish(&kept->runs);
        s->kept = kept->next;
    }
    if (s->err.status != EPA_OK)
        return exit_code(s->err.status, SIGINT);
    if (!tune_is_interrupted(code))
        out->took_ns = epa_now_ns() - start;
    if (verb != TUNE_VERIFY && code == EXIT_OK && !(out->median_ns > 0))
        code = EXIT_INTERNAL;
    return code;
}

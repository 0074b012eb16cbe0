/* Warnings about results. Each warning states the condition with its figures and the remedy. Most
 * warnings concern measured times, so only bench prints them. */
#include "result/warnings.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/stats.h"
#include "base/text.h"
#include "config/expect.h"
#include "config/experiment.h"

/* A finished run, and the list of its warnings. */
struct warner {
    struct run_figures *f;
    const struct result *result;
    const struct session *s;
    const struct machine_facts *machine;
    uint32_t room;
};

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

__attribute__((format(printf, 2, 3))) static void warn(struct warner *w, const char *fmt, ...)
{
    struct run_figures *f = w->f;
    const char **grown;
    va_list args, again;
    char *text;
    int bytes;

    if (f->n_warnings == w->room) {
        w->room = 2 * w->room + 8;
        grown = arena_alloc(f->arena, w->room * sizeof(*grown));
        for (uint32_t i = 0; i < f->n_warnings; i++)
            grown[i] = f->warning[i];
        f->warning = grown;
    }
    va_start(args, fmt);
    va_copy(again, args);
    bytes = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    text = arena_alloc(f->arena, (size_t)bytes + 1);
    vsnprintf(text, (size_t)bytes + 1, fmt, again);
    va_end(again);
    f->warning[f->n_warnings++] = text;
}

/* ---- warnings of all verbs ---- */

static void warn_of_fault(struct warner *w)
{
    const struct run_fault *fault = &w->f->fault;

    if (fault->text == NULL)
        return;
    if (fault->counted && fault->struck == 0)
        warn(w, "a fault was planted, and the run ended before it struck: %s", fault->text);
    else
        warn(w, "a fault was planted, this is a rehearsal: %s%s", fault->text,
             fault->struck == 1  ? "; it struck once"
             : fault->struck > 1 ? "; it struck several times"
                                 : "");
}

static void warn_of_overflow(struct warner *w)
{
    const struct op_share *share = &w->f->verify.share;
    const struct problem_params *problem = &w->s->experiment->problem;
    char overflowed[32], outputs[32];

    if (share->overflowed > 0 && w->f->operation->op == EPA_OP_MOE)
        warn(
            w,
            "%s of %s outputs (%.3g %%) were not compared: their right values may exceed the range "
            "of %s or float32; use smaller routing.hidden_states",
            text_count(overflowed, sizeof(overflowed), share->overflowed),
            text_count(outputs, sizeof(outputs), share->outputs),
            (double)share->overflowed / (double)share->outputs / .01,
            problem->moe.dtype == EPA_F16 ? "f16" : "bf16");
}

static void warn_of_inputs(struct warner *w)
{
    const struct session *s = w->s;
    uint64_t sets = s->verb == VERB_BENCH ? s->experiment->bench.input_sets : s->iterations;
    text_auto lines = {0};

    if (w->f->operation->warn == NULL)
        return;
    text_add(&lines, "%s", "");
    w->f->operation->warn(&s->experiment->problem, s->source, sets, &lines);
    for (char *at = strtok(lines.data, "\n"); at != NULL; at = strtok(NULL, "\n"))
        warn(w, "%s", at);
}

static void warn_of_isa(struct warner *w)
{
    const struct build_facts *build = &w->machine->build;

    if (build->isa_refused != NULL)
        warn(w, "EPA2A_ISA=%s is not supported by this CPU; %s was used", build->isa_refused,
             build->isa);
}

/* ---- warnings of bench ---- */

static void warn_of_profile(struct warner *w)
{
    if (w->s->trace.lanes == 0)
        return;
    warn(w, "ranks were profiled, which increases times; measure without profile");
    if (w->s->notes->clock == CLOCK_GRAPH)
        warn(w, "graphs run on the device: the trace has only launches and waits of the host, and "
                "the last call of kernels");
}

static void warn_of_build(struct warner *w)
{
    const struct build_facts *build = &w->machine->build;

    warn_of_isa(w);
    if (build->debug)
        warn(
            w,
            "this program is a debug build (%s, sanitizers: %s): its times are no benchmark; build "
            "with --buildtype=release",
            build->type, build->sanitizers);
}

/* Names the node whose ranks have the fewest cores, if ranks share a core. mpirun may bind each
 * rank to its own core, so the cores of all ranks of a node are counted. */
static void warn_of_shared_cores(struct warner *w)
{
    const struct session *s = w->s;
    uint32_t near = w->f->ranks, threads = threads_of(s->experiment);
    uint32_t cores = w->machine->cores; /* of this process, if the ranks reported none */

    for (uint32_t r = 0, known = 0; r < w->f->ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);

        if (rank->local_size == 0 || (known++ > 0 && (uint64_t)rank->local_size * cores <=
                                                         (uint64_t)near * rank->local_cores))
            continue;
        near = rank->local_size;
        cores = rank->local_cores;
    }
    if ((uint64_t)near * threads > cores)
        warn(
            w,
            "%u ranks of %u thread%s share %u core%s: times include waiting for a core, and do not "
            "represent a machine with enough cores",
            near, threads, plural(threads), cores, plural(cores));
}

static void warn_of_cores(struct warner *w)
{
    const char *governor = w->machine->governor;
    uint32_t loose = 0;

    warn_of_shared_cores(w);
    for (uint32_t r = 0; r < w->f->ranks; r++)
        loose += session_rank(w->s, r)->core < 0;
    if (loose > 0)
        warn(w, "%u of %u ranks are not pinned: the system may move them between cores", loose,
             w->f->ranks);
    if (governor[0] != '\0' && strcmp(governor, "performance") != 0)
        warn(w,
             "the frequency governor is \"%s\": times change with the clock; set \"performance\" "
             "(cpupower frequency-set -g performance)",
             governor);
}

/* Returns true if an expectation needs the 99.9th percentile. */
static bool expects_p999(const struct expect_options *x)
{
    const struct expect_bounds *bounds;
    const char *row;

    for (uint32_t i = 0; (bounds = expect_row_at(x, i, &row)) != NULL; i++)
        if (bounds->p999 != UINT64_MAX)
            return true;
    return false;
}

static void warn_of_samples(struct warner *w)
{
    uint64_t n = w->f->stop.samples;
    unsigned long long shown = n;

    if (n == 0)
        warn(w, "there is no sample: no iteration after warm-up was finished by all ranks");
    else if (n < 20)
        warn(w,
             "p95 and p99 of %llu sample%s are the maximum: p95 needs 20, p99 100, p99.9 1000 "
             "(bench.iterations)",
             shown, plural(n));
    else if (n < 100)
        warn(w, "p99 of %llu samples is the maximum: it needs 100, p99.9 1000 (bench.iterations)",
             shown);
    else if (n < STATS_P999_LEAST && expects_p999(&w->s->experiment->expect))
        warn(w, "p99.9 of %llu samples is not known: it needs 1000 (bench.iterations)", shown);
}

static void warn_of_outliers(struct warner *w)
{
    const struct cpu_quota *quota = &w->result->quota;
    uint64_t outliers = run_total(w->f)->figures.ns.outliers;

    if (outliers > 0)
        warn(w, "%llu of %llu samples are outliers (more than %.1f median deviations off): %s",
             (unsigned long long)outliers, (unsigned long long)w->f->stop.samples, STATS_OUTLIER,
             quota->cores > 0 && quota->stops > 0 ? "the CPU quota stopped ranks"
                                                  : "other programs may have run on these cores");
}

static void warn_of_quota(struct warner *w)
{
    const struct cpu_quota *quota = &w->result->quota;
    uint64_t busy = (uint64_t)session_rank(w->s, 0)->local_size * threads_of(w->s->experiment);

    if (quota->cores > 0 && (quota->stops > 0 || quota->cores < (double)busy))
        warn(
            w,
            "the CPU quota of the cgroup is %.2f cores' worth of time, and ranks have %llu "
            "thread%s here: it was used up %llu time%s, and ranks were stopped for %.0f ms in all; "
            "raise cpu.max of the cgroup, or docker run --cpus",
            quota->cores, (unsigned long long)busy, plural(busy), (unsigned long long)quota->stops,
            plural(quota->stops), (double)quota->stopped_ns / 1e6);
}

static void warn_of_interval(struct warner *w)
{
    const struct run_stop *stop = &w->f->stop;
    double ci95 = w->s->experiment->bench.ci95;
    text_auto is = {0};

    if (!(ci95 > 0) || stop->samples == 0 || stop->reason == STOP_CI95 ||
        stop_name(stop->reason) == NULL)
        return;
    if (isfinite(stop->ci95))
        text_add(&is, "%.3g %% of it wide", stop->ci95 / .01);
    else
        text_add(&is, "too few for one");
    warn(
        w,
        "the 95 %% interval of the median is not within bench.ci95 (%.3g %%): with %llu samples it "
        "is %s; bench.%s was reached before it, raise it",
        ci95 / .01, (unsigned long long)stop->samples, is.data,
        stop->reason == STOP_TIME ? "max_time" : stop_name(stop->reason));
}

static void warn_of_arrivals(struct warner *w)
{
    const struct session_arrivals *a = &w->s->notes->arrivals;

    if (!session_is_open(w->s) || !(a->rate > 0))
        return;
    if (w->s->experiment->bench.load > 0 && w->s->warmup < 20)
        warn(w,
             "bench.load is relative to the rate of %u warm-up iterations: fewer than 20 give an "
             "inaccurate rate (bench.warmup)",
             w->s->warmup);
    if (a->rate >= a->closed_rate)
        warn(w,
             "%.6g arrivals per second, and a closed loop reaches %.6g: the queue grows during the "
             "run, and latency depends on bench.iterations",
             a->rate, a->closed_rate);
}

/* A first sample this much above the median is slow, not noise. It is not the first iteration: that
 * one is slow on every machine, and belongs to the warm-up. */
static const double slow_first = 1.5;

static void warn_of_first(struct warner *w)
{
    const struct run_stage *total = run_total(w->f);
    const struct stats *ns = &total->figures.ns;
    double first = total->n > 0 ? total->sample[0] : NAN;

    if (ns->n >= 3 && ns->median > 0 && first > slow_first * ns->median &&
        first - ns->median > STATS_OUTLIER * ns->mad)
        warn(w,
             "the first sample took %.1f us, %.1f times the median: warm-up was too short "
             "(bench.warmup is %u)",
             first / 1e3, first / ns->median, w->s->warmup);
}

/* Names the first stage, except the last row, that takes less than 100 steps of the host's clock. */
static void warn_of_clock(struct warner *w)
{
    const struct machine_facts *m = w->machine;
    const struct run_stage *stage = NULL;
    bool named = m->clocksource[0] != '\0';

    if (w->s->notes->clock == CLOCK_EVENTS || w->s->notes->clock == CLOCK_GRAPH)
        return;
    for (uint32_t i = 0; i + 1 < w->f->n_stages && stage == NULL; i++)
        if (w->f->stage[i].figures.ns.median <= 100 * m->timer_ns)
            stage = &w->f->stage[i];
    if (stage != NULL)
        warn(
            w,
            "the clock moves in steps of %.0f ns%s%s%s, more than 1 %% of %s (%.2f us): raise %s or "
            "read it with care",
            m->timer_ns, named ? " (" : "", m->clocksource, named ? ")" : "", stage->name,
            stage->figures.ns.median / 1e3, w->f->operation->size_key);
}

void result_warn(struct run_figures *f, const struct result *result, const struct session *session,
                 const struct machine_facts *machine)
{
    struct warner w = {f, result, session, machine, 0};

    warn_of_fault(&w);
    warn_of_overflow(&w);
    warn_of_inputs(&w);
    if (w.s->verb != VERB_BENCH) {
        warn_of_isa(&w);
        return;
    }
    warn_of_profile(&w);
    warn_of_build(&w);
    warn_of_cores(&w);
    warn_of_samples(&w);
    warn_of_outliers(&w);
    warn_of_quota(&w);
    warn_of_interval(&w);
    warn_of_arrivals(&w);
    warn_of_first(&w);
    warn_of_clock(&w);
}

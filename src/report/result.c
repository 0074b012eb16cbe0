/* A session's raw times made into a result. The headline is the slowest rank of each
 * iteration, because a layer is done when its last rank is; statistics are over iterations
 * and only over those that every rank finished. */
#include "report/result.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"

/* Scratch memory of result_make. */
struct work {
    double *rank_ns; /* [ranks][n_samples], of the stage at hand */
    double *sorted;  /* [n_samples] */
    double *fastest; /* [n_samples] */
    uint32_t *wins;  /* [ranks]: samples in which the rank was slowest */
};

const char *result_clock_name(const struct result *result)
{
    static const char *const name[] = {[CLOCK_HOST] = "host",
                                       [CLOCK_EVENTS] = "events",
                                       [CLOCK_GRAPH] = "graph",
                                       [CLOCK_END_TO_END] = "end_to_end"};

    return name[result->session->clock];
}

double result_ci95(const struct result *result)
{
    const struct stats *s = &result->stage[result->n_stages - 1].slowest;

    return s->median > 0 ? (s->high - s->low) / s->median : NAN;
}

double result_late(const struct result *result)
{
    const struct session *s = result->session;
    uint64_t late = 0;

    for (uint32_t r = 0; s->block != NULL && r < s->experiment->ranks; r++)
        if (session_rank(s, r)->late > late)
            late = session_rank(s, r)->late;
    return result->n_samples > 0 ? fmin((double)late / (double)result->n_samples, 1) : NAN;
}

bool result_fault_struck(const struct result *result, uint64_t *out)
{
    const struct session *s = result->session;
    const struct session_rank *rank;

    if (s->block == NULL || s->experiment->fault.rank >= s->experiment->ranks)
        return false;
    rank = session_rank(s, s->experiment->fault.rank);
    *out = rank->faults;
    return rank->pid != 0; /* else it has said nothing that came here */
}

/* A rule has said it; without one, and where all went well, there are as many as asked for. */
static enum stop_reason why_stopped(const struct result *result)
{
    const struct session *s = result->session;

    if (s->stop != STOP_NOT || s->verb == VERB_VERIFY)
        return s->stop;
    return result->n_samples == s->iterations ? STOP_ITERATIONS : STOP_NOT;
}

void result_when(struct result *result, time_t started, double elapsed_s)
{
    struct tm utc;

    result->elapsed_s = elapsed_s;
    if (gmtime_r(&started, &utc) != NULL)
        strftime(result->started, sizeof(result->started), "%Y-%m-%dT%H:%M:%SZ", &utc);
}

/* None where the session ended before its ranks had memory. */
static uint32_t ranks_of(const struct session *s)
{
    return s->block != NULL ? s->experiment->ranks : 0;
}

/* What a rank did is read after it has ended, or died: acquire pairs with its release of a
 * finished sample, so that the times of counted samples are there. */
static uint64_t finished(const struct session *s)
{
    uint64_t n = s->iterations;

    for (uint32_t r = 0; r < ranks_of(s); r++) {
        uint64_t done = __atomic_load_n(&session_rank(s, r)->samples, __ATOMIC_ACQUIRE);

        n = done < n ? done : n;
    }
    if (s->verb == VERB_VERIFY || ranks_of(s) == 0 || s->n_stages == 0)
        return 0; /* verify counts iterations and times none */
    return n;
}

static bool by_graph(const struct session *s)
{
    return s->clock == CLOCK_GRAPH;
}

static bool by_wall(const struct session *s)
{
    return s->clock == CLOCK_END_TO_END;
}

static uint32_t total_row(const struct session *s)
{
    return session_total_row(s->clock,
                             s->n_stages > 0 ? s->stage_kind[s->n_stages - 1] : EPA_STAGE_SEND);
}

/* Ranks whose times count. */
static uint32_t timed(const struct session *s)
{
    return by_wall(s) && ranks_of(s) > 1 ? 1 : ranks_of(s);
}

/* Times of each rank in one row. The last row has times of its own where pairs were measured,
 * else the sum of the stages. */
static void gather(const struct session *s, uint32_t row, uint64_t n, double *rank_ns)
{
    uint32_t ranks = ranks_of(s);
    bool sum = total_row(s) == UINT32_MAX && !session_is_open(s) && row == s->n_stages;
    uint32_t first = sum ? 0 : row, last = sum ? s->n_stages - 1 : row;

    memset(rank_ns, 0, ranks * n * sizeof(*rank_ns));
    for (uint32_t i = first; i <= last && n > 0; i++) {
        for (uint32_t r = 0; r < ranks; r++) {
            const double *from = session_times(s, r, i);

            for (uint64_t k = 0; k < n; k++)
                rank_ns[r * n + k] += from[k];
        }
    }
}

static enum epa_status summarise(const struct result *result, const struct work *work, uint64_t n,
                                 struct result_stage *out)
{
    uint32_t ranks = ranks_of(result->session), count = timed(result->session);

    out->sample = calloc(n + 1, sizeof(*out->sample));
    out->rank = calloc(ranks + 1, sizeof(*out->rank));
    if (out->sample == NULL || out->rank == NULL)
        return EPA_ERR_NOMEM;
    for (uint32_t r = 0; r < ranks; r++) {
        const double *mine = work->rank_ns + r * n;

        for (uint64_t k = 0; k < n && r < count; k++)
            out->sample[k] = r == 0 || mine[k] > out->sample[k] ? mine[k] : out->sample[k];
        out->rank[r] = stats_of(mine, r < count ? n : 0, work->sorted);
    }
    out->slowest = stats_of(out->sample, n, work->sorted);
    return EPA_OK;
}

/* From the times of the whole iteration, the last that were gathered. */
static void find_straggler(struct result *result, struct work *work)
{
    uint64_t n = result->n_samples;
    uint32_t ranks = timed(result->session), worst = 0;

    for (uint64_t k = 0; k < n; k++) {
        uint32_t slow = 0, fast = 0;

        for (uint32_t r = 1; r < ranks; r++) {
            slow = work->rank_ns[r * n + k] > work->rank_ns[slow * n + k] ? r : slow;
            fast = work->rank_ns[r * n + k] < work->rank_ns[fast * n + k] ? r : fast;
        }
        work->fastest[k] = work->rank_ns[slow * n + k] - work->rank_ns[fast * n + k];
        work->wins[slow]++;
    }
    for (uint32_t r = 1; r < ranks; r++)
        worst = work->wins[r] > work->wins[worst] ? r : worst;
    result->skew_ns = stats_of(work->fastest, n, work->sorted).median;
    result->straggler = worst;
    result->straggler_share = n > 0 ? (double)work->wins[worst] / (double)n : NAN;
}

/* Means of what ranks counted in phases `first` to `last - 1`. */
static struct result_traffic traffic_of(const struct session *s, uint32_t first, uint32_t last)
{
    struct result_traffic sum = {0, 0, 0, 0};
    uint32_t ranks = ranks_of(s);

    for (uint32_t r = 0; r < ranks; r++) {
        const struct session_rank *rank = session_rank(s, r);
        double times = (double)rank->traffic_n;
        struct op_bytes all = {0};

        for (uint32_t i = first; i < last; i++)
            op_bytes_add(&all, &rank->traffic.phase[i]);
        if (rank->traffic_n == 0)
            continue;
        sum.needed += (double)all.needed / times / ranks;
        sum.out += (double)all.sent / times / ranks;
        sum.bottleneck = fmax(sum.bottleneck,
                              (double)(all.received > all.sent ? all.received : all.sent) / times);
        sum.least = fmax(sum.least, (double)all.least / times);
    }
    return sum;
}

static void count_traffic(struct result *result)
{
    const struct session *s = result->session;
    uint32_t phases = session_operation(s)->n_phases, ranks = ranks_of(s);

    for (uint32_t i = 0; i < phases; i++)
        result->phase[i] = traffic_of(s, i, i + 1);
    result->total = traffic_of(s, 0, phases);
    for (uint32_t r = 0; r < ranks; r++)
        if (session_rank(s, r)->traffic_n > 0)
            result->flops +=
                session_rank(s, r)->traffic.flops / (double)session_rank(s, r)->traffic_n / ranks;
}

static void set_parts(struct result *result)
{
    const struct session *s = result->session;
    double sum = 0, shorter = INFINITY;
    double total = result->stage[result->n_stages - 1].slowest.median;

    result->hidden = NAN;
    result->n_parts = 0;
    if (ranks_of(s) == 0 || session_rank(s, 0)->part_ns[0] <= 0)
        return;
    result->n_parts = s->notes->n_parts;
    for (uint32_t i = 0; i < result->n_parts; i++) {
        for (uint32_t r = 0; r < ranks_of(s); r++)
            result->part_ns[i] = fmax(result->part_ns[i], session_rank(s, r)->part_ns[i]);
        sum += result->part_ns[i];
        shorter = fmin(shorter, result->part_ns[i]);
    }
    if (total > 0 && shorter > 0)
        result->hidden = fmin(fmax((sum - total) / shorter, 0), 1);
}

/* The best of what ranks measured, so that the limit flatters nobody. One rank
 * has no links. */
static struct result_peak limit_of(const struct session *s)
{
    struct result_peak peak = {false, 0, 0};

    for (uint32_t r = 0; r < ranks_of(s) && ranks_of(s) > 1; r++) {
        const struct peak *mine = &session_rank(s, r)->peak;

        if (!(mine->bytes_per_ns > 0 || mine->latency_ns > 0))
            continue;
        peak.bytes_per_ns = fmax(peak.bytes_per_ns, mine->bytes_per_ns);
        if (!peak.known || mine->latency_ns < peak.latency_ns)
            peak.latency_ns = mine->latency_ns;
        peak.known = true;
    }
    return peak;
}

/* Of a median, below which a limit is no limit. */
static const double BEATEN = 1.03;

/* As above: the best rates, and the most that a rank has to do. */
static void compute_limit(struct result *result)
{
    const struct session *s = result->session;
    struct result_computing *c = &result->computing;
    double flops = 0;

    for (uint32_t r = 0; r < ranks_of(s); r++) {
        const struct session_rank *rank = session_rank(s, r);
        double n = (double)rank->traffic_n;

        c->flops_per_ns = fmax(c->flops_per_ns, rank->peaks.flops_per_ns);
        c->bytes_per_ns = fmax(c->bytes_per_ns, rank->peaks.bytes_per_ns);
        if (rank->traffic_n == 0)
            continue;
        flops = fmax(flops, rank->traffic.flops / n);
        c->weights = fmax(c->weights, (double)rank->traffic.weights / n);
    }
    c->known = c->flops_per_ns > 0 && c->bytes_per_ns > 0;
    if (!c->known)
        return;
    c->flops_ns = flops / c->flops_per_ns;
    c->weights_ns = c->weights / c->bytes_per_ns;
}

/* Of a stage that computes: the experts alone, or all that there is. */
static void set_computing(const struct result *result, bool experts, bool all,
                          struct result_stage *stage)
{
    const struct result_computing *c = &result->computing;

    if (experts && stage->slowest.median > 0)
        stage->flops = result->flops / stage->slowest.median * 1e9;
    if (c->known && (experts || all)) /* fmax() takes the other where one is NaN */
        stage->peak_ns = fmax(stage->peak_ns, fmax(c->flops_ns, c->weights_ns));
}

/* Bytes a nanosecond are GB/s. What is sent takes the limit's latency in each phase. */
static void set_rates(const struct result *result, const struct result_traffic *traffic,
                      struct result_stage *stage)
{
    const struct result_peak *peak = &result->peak;
    bool all = traffic == &result->total;
    uint32_t phases = all ? session_operation(result->session)->n_phases : 1;

    stage->goodput = stage->wire = stage->bottleneck = stage->flops = stage->peak_ns = NAN;
    if (traffic == NULL)
        return;
    if (peak->known)
        stage->peak_ns = phases * peak->latency_ns +
                         (peak->bytes_per_ns > 0 ? traffic->least / peak->bytes_per_ns : 0);
    if (!(stage->slowest.median > 0))
        return;
    stage->goodput = traffic->needed / stage->slowest.median;
    stage->wire = traffic->out / stage->slowest.median;
    stage->bottleneck = traffic->bottleneck / stage->slowest.median;
    if (all && result->flops > 0)
        stage->flops = result->flops / stage->slowest.median * 1e9;
}

/* What crosses in stages of a kind; NULL: not known. */
static const struct result_traffic *kind_traffic(const struct result *result,
                                                 enum epa_stage_kind kind)
{
    const struct operation *op = session_operation(result->session);

    if (kind == EPA_STAGE_WHOLE)
        return &result->total;
    for (uint32_t i = 0; i < op->n_phases; i++)
        if (op->phase[i].kind == kind)
            return &result->phase[i];
    return NULL;
}

/* What crosses in one stage: known where it is all there is of its kind. */
static const struct result_traffic *stage_traffic(const struct result *result, uint32_t stage)
{
    const struct session *s = result->session;
    uint32_t alike = 0;

    for (uint32_t i = 0; i < s->n_stages; i++)
        alike += s->stage_kind[i] == s->stage_kind[stage];
    if (alike != 1 || (stage > 0 && s->stage_kind[stage - 1] == EPA_STAGE_SEND))
        return NULL;
    return kind_traffic(result, s->stage_kind[stage]);
}

/* Of rows before the last. */
static const struct result_traffic *row_traffic(const struct result *result, uint32_t row)
{
    if (by_graph(result->session)) {
        enum session_figure figure = session_figure_at(result->session, row);

        return figure == FIGURE_EXPERTS
                   ? NULL
                   : kind_traffic(result, figure == FIGURE_DISPATCH ? EPA_STAGE_DISPATCH
                                                                    : EPA_STAGE_COMBINE);
    }
    return row < result->session->n_stages ? stage_traffic(result, row) : &result->total;
}

static const char *row_name(const struct session *s, uint32_t row)
{
    static const char *const figure[] = {
        [FIGURE_DISPATCH] = "dispatch", [FIGURE_COMBINE] = "combine", [FIGURE_EXPERTS] = "experts"};

    if (by_graph(s))
        return figure[session_figure_at(s, row)];
    return row < s->n_stages ? s->stage[row] : "service";
}

static enum epa_status fill_stages(struct result *result, struct work *work)
{
    const struct session *s = result->session;
    uint32_t total = total_row(s), last = total != UINT32_MAX ? total : s->n_stages;
    bool open = session_is_open(s);

    last += open && last > 0 ? OPEN_LATENCY : 0;
    while (by_graph(s) && total == FIGURE_PAIR && session_figure_at(s, last) != FIGURE_PAIR)
        last++;

    result->n_stages = last + 1;
    for (uint32_t i = 0; i <= last; i++) {
        struct result_stage *stage = &result->stage[i];
        /* Where its times are. */
        uint32_t row = by_graph(s) && last > 0 ? (uint32_t)session_figure_at(s, i) : i;
        bool experts = by_graph(s) ? row == FIGURE_EXPERTS
                                   : i < s->n_stages && s->stage_kind[i] == EPA_STAGE_EXPERTS;
        uint64_t n = by_graph(s) && s->not_alone[row] ? 0 : result->n_samples;
        const struct result_traffic *traffic = i < last ? row_traffic(result, i)
                                               : open   ? NULL /* time in a queue moves nothing */
                                                        : &result->total;

        stage->name = i < last ? row_name(s, i) : by_wall(s) ? "wall" : open ? "latency" : "total";
        gather(s, row, n, work->rank_ns);
        if (summarise(result, work, n, stage) != EPA_OK)
            return EPA_ERR_NOMEM;
        set_rates(result, traffic, stage);
        set_computing(result, experts, traffic == &result->total, stage);
        /* What was beaten is no limit: it was measured while something else had the cores. */
        stage->beaten = stage->peak_ns > BEATEN * stage->slowest.median;
        if (stage->beaten)
            stage->peak_ns = NAN;
    }
    find_straggler(result, work);
    return EPA_OK;
}

static void count_checks(struct result *result)
{
    const struct session *s = result->session;

    for (uint32_t r = 0; r < ranks_of(s); r++) {
        const struct session_rank *rank = session_rank(s, r);

        result->compared += rank->compared;
        result->wrong += rank->wrong;
        if (r == 0 || rank->checked < result->checked)
            result->checked = rank->checked;
    }
    result->unchecked = "";
    if (s->verb != VERB_BENCH || result->compared > 0)
        return;
    if (!s->experiment->bench.check)
        result->unchecked = "bench.check is false";
    else if (s->notes != NULL)
        result->unchecked = s->notes->unchecked;
}

/* The first rank that failed for a reason of its own. */
static void explain(struct result *result, const char *error)
{
    const struct session *s = result->session;
    const struct session_rank *first = NULL;

    if (error != NULL && error[0] != 0) {
        snprintf(result->error, sizeof(result->error), "%s", error);
        return;
    }
    for (uint32_t r = 0; r < ranks_of(s); r++) {
        const struct session_rank *rank = session_rank(s, r);

        if (rank->status == EPA_OK || rank->status == EPA_ERR_ABORTED)
            continue;
        if (first == NULL || rank->failed_ns < first->failed_ns)
            first = rank;
    }
    if (result->status != EPA_OK && first != NULL)
        snprintf(result->error, sizeof(result->error), "%.*s", (int)sizeof(first->text),
                 first->text);
}

static void work_finish(struct work *work)
{
    free(work->rank_ns);
    free(work->sorted);
    free(work->fastest);
    free(work->wins);
}

static enum epa_status work_init(struct work *work, uint32_t ranks, uint64_t n)
{
    work->rank_ns = calloc(ranks * n + 1, sizeof(*work->rank_ns));
    work->sorted = calloc(n + 1, sizeof(*work->sorted));
    work->fastest = calloc(n + 1, sizeof(*work->fastest));
    work->wins = calloc(ranks + 1, sizeof(*work->wins));
    if (work->rank_ns == NULL || work->sorted == NULL || work->fastest == NULL ||
        work->wins == NULL)
        return EPA_ERR_NOMEM;
    return EPA_OK;
}

enum epa_status result_make(const struct session *session, const struct facts *facts,
                            enum epa_status status, const char *error, struct result *out,
                            struct epa_error *err)
{
    struct work work = {0};
    enum epa_status made;

    memset(out, 0, sizeof(*out));
    out->session = session;
    out->facts = facts;
    out->status = status;
    out->exit_code = exit_code(status, SIGINT);
    out->n_samples = finished(session);
    out->stop = why_stopped(out);
    count_traffic(out);
    out->peak = limit_of(session);
    compute_limit(out);
    explain(out, error);
    count_checks(out);
    made = work_init(&work, ranks_of(session), out->n_samples);
    if (made == EPA_OK)
        made = fill_stages(out, &work);
    if (made == EPA_OK)
        set_parts(out);
    if (made == EPA_OK)
        made = verdicts_make(out);
    work_finish(&work);
    if (made != EPA_OK) {
        result_finish(out);
        return epa_fail(err, made, "no memory for the statistics of %llu samples",
                        (unsigned long long)out->n_samples);
    }
    result_warn(out);
    return EPA_OK;
}

void result_finish(struct result *result)
{
    for (uint32_t i = 0; i < result->n_stages; i++) {
        free(result->stage[i].sample);
        free(result->stage[i].rank);
    }
    for (uint32_t i = 0; i < result->n_warnings; i++)
        free(result->warning[i]);
    free(result->verdict);
    result->verdict = NULL;
    result->n_stages = result->n_warnings = 0;
}

/* Tables of the time of a run: phases of each stage by rank, waits of ranks for each other, and the
 * critical path of the iterations. Only the ranks' main lanes count. For kernels: begin and end of
 * each phase over their lanes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace/summary.h"

#include "base/memory.h"

enum { NAMES = 128, STAGES = 16, COLUMNS = 8, SLOWEST = 3, TOP = 8, PATH_STEPS = 256 };

/* The events of one iteration, by time. */
struct round {
    int64_t iteration;
    const struct trace_item *const *item;
    size_t n;
};

/* The critical path of an iteration: the chain of work and signals that leads to the last end of a
 * stage. */
struct path {
    const struct trace_item *stage; /* slice of the last rank to end the stage */
    struct path_step {
        uint32_t rank, from; /* from: of a signal, its sender; else `rank` */
        const char *name;
        int64_t ns;
    } step[PATH_STEPS]; /* last step first */
    uint32_t n;
};

/* Time under one name, by rank. */
struct row {
    const char *stage, *name; /* stage "": between stages */
    double *ns;               /* [ranks] */
};

/* Time that a rank waited for another, or time of one name of a rank on critical paths. */
struct pair {
    uint32_t a, b;
    const char *name;
    double ns;
};

struct pairs {
    struct pair *pair;
    uint32_t n, room; /* further pairs are left out */
};

struct summing {
    const struct trace_file *f;
    uint32_t ranks;                 /* highest rank + 1 */
    const struct trace_item **item; /* by iteration, then time */
    size_t n;
    struct round *round;
    size_t rounds;
    const char *stage[STAGES];
    uint32_t stages;
    struct row row[NAMES];
    uint32_t rows;
    struct pairs waits, paths;
    double on_paths;
    struct arena *arena;
    struct text *out;
};

/* ---- iterations ---- */

static int by_iteration(const void *left, const void *right)
{
    const struct trace_item *a = *(const struct trace_item *const *)left;
    const struct trace_item *b = *(const struct trace_item *const *)right;
    int order = compare_whole(a->iteration, b->iteration);

    return order != 0 ? order : a < b ? -1 : 1; /* positions are by time */
}

static void find_rounds(struct summing *s)
{
    for (size_t k = 0; k < s->f->n; k++) {
        const struct trace_item *i = &s->f->item[k];

        if (i->ph == 'M' || i->iteration < 0 || i->pid >= TRACE_RANKS)
            continue;
        s->item[s->n++] = i;
        s->ranks = i->pid + 1 > s->ranks ? i->pid + 1 : s->ranks;
    }
    qsort(s->item, s->n, sizeof(const struct trace_item *), by_iteration);
    for (size_t k = 0; k < s->n; k++) {
        if (k == 0 || s->item[k]->iteration != s->item[k - 1]->iteration)
            s->round[s->rounds++] = (struct round){s->item[k]->iteration, &s->item[k], 0};
        s->round[s->rounds - 1].n++;
    }
}

/* ---- phases ---- */

static void add_row(struct summing *s, const char *stage, const char *name, uint32_t rank,
                    double ns)
{
    uint32_t i = 0;

    while (i < s->rows &&
           (strcmp(s->row[i].name, name) != 0 || strcmp(s->row[i].stage, stage) != 0))
        i++;
    if (i == NAMES)
        return;
    if (i == s->rows)
        s->row[s->rows++] =
            (struct row){stage, name, arena_alloc(s->arena, s->ranks * sizeof(double))};
    s->row[i].ns[rank] += ns;
}

static void sum_phases(struct summing *s)
{
    for (size_t k = 0; k < s->n; k++) {
        const struct trace_item *i = s->item[k], *stage = i->in;
        uint32_t at = 0;

        if (i->ph != 'X' || i->tid != 0)
            continue;
        while (at < s->stages && strcmp(s->stage[at], i->name) != 0)
            at++;
        if (trace_is_stage(i) && at == s->stages && at < STAGES)
            s->stage[s->stages++] = i->name;
        while (stage != NULL && !trace_is_stage(stage))
            stage = stage->in;
        add_row(s, stage == NULL ? "" : stage->name, i->name, i->pid, (double)i->dur_ns);
    }
}

/* Returns the first rank with the maximum of ns[ranks]; *sum is the sum over all ranks. */
static uint32_t find_most(const struct summing *s, const double *ns, double *sum)
{
    uint32_t most = 0;

    *sum = 0;
    for (uint32_t r = 0; r < s->ranks; r++) {
        *sum += ns[r];
        most = ns[r] > ns[most] ? r : most;
    }
    return most;
}

static void print_row(struct summing *s, const struct row *row, const char *indent)
{
    double sum;
    uint32_t worst = find_most(s, row->ns, &sum);

    text_add(s->out, "  %s%-*s %10.2f %10.2f %6u", indent, (int)(28 - strlen(indent)), row->name,
             sum / s->ranks / (double)s->rounds / 1e3, row->ns[worst] / (double)s->rounds / 1e3,
             worst);
    for (uint32_t r = 0; r < s->ranks && s->ranks <= COLUMNS; r++)
        text_add(s->out, " %9.2f", row->ns[r] / (double)s->rounds / 1e3);
    text_add(s->out, "\n");
}

static void print_phases(struct summing *s)
{
    sum_phases(s);
    text_add(s->out,
             "#\n# time of an iteration, in us, mean over iterations\n# %-28s %10s %10s %6s",
             "stage and phase", "mean rank", "slowest", "rank");
    for (uint32_t r = 0; r < s->ranks && s->ranks <= COLUMNS; r++)
        text_add(s->out, "    rank %u", r);
    text_add(s->out, "\n");
    for (uint32_t i = 0; i < s->rows; i++) {
        const struct row *row = &s->row[i];

        if (row->stage[0] != '\0')
            continue;
        print_row(s, row, "");
        for (uint32_t k = 0; k < s->rows; k++)
            if (strcmp(s->row[k].stage, row->name) == 0)
                print_row(s, &s->row[k], "  ");
    }
}

/* ---- waits ---- */

static void add_pair(struct pairs *to, uint32_t a, uint32_t b, const char *name, double ns)
{
    uint32_t i = 0;

    while (i < to->n &&
           (to->pair[i].a != a || to->pair[i].b != b || strcmp(to->pair[i].name, name) != 0))
        i++;
    if (i == to->room)
        return;
    if (i == to->n)
        to->pair[to->n++] = (struct pair){a, b, name, 0};
    to->pair[i].ns += ns;
}

/* Adds the waits at a barrier. Ranks leave a barrier when the last rank has arrived: all others
 * waited for this rank. Returns false if the iteration has fewer barriers. */
static bool sum_barrier(struct summing *s, const struct round *r, uint32_t which)
{
    const struct trace_item **at = arena_alloc(s->arena, s->ranks * sizeof(struct trace_item *));
    const struct trace_item *last = NULL;
    uint32_t *seen = arena_alloc(s->arena, s->ranks * sizeof(*seen)), n = 0;

    for (size_t k = 0; k < r->n; k++) {
        const struct trace_item *i = r->item[k];

        if (i->ph != 'X' || i->tid != 0 || strcmp(i->name, "barrier") != 0 ||
            seen[i->pid]++ != which)
            continue;
        at[i->pid] = i;
        n++;
        if (last == NULL || i->ts_ns > last->ts_ns)
            last = i;
    }
    for (uint32_t rank = 0; n > 1 && rank < s->ranks; rank++) {
        if (at[rank] != NULL && at[rank] != last && last->ts_ns < trace_end_ns(at[rank]))
            add_pair(&s->waits, rank, last->pid, "", (double)(last->ts_ns - at[rank]->ts_ns));
    }
    return n > 0;
}

static void sum_waits(struct summing *s)
{
    for (size_t k = 0; k < s->rounds; k++) {
        const struct round *r = &s->round[k];
        uint32_t which = 0;

        for (size_t j = 0; j < r->n; j++) {
            const struct trace_item *i = r->item[j];

            if (i->ph == 'f' && i->in != NULL && i->from >= 0 && i->from < s->ranks)
                add_pair(&s->waits, i->pid, (uint32_t)i->from, "", (double)i->in->dur_ns);
        }
        while (sum_barrier(s, r, which))
            which++;
    }
}

static int by_ns(const void *left, const void *right)
{
    const struct pair *a = left, *b = right;

    return a->ns > b->ns ? -1 : a->ns < b->ns;
}

/* Prints the waits, and the rank that caused most of the waits: the slow source, if there is
 * one. */
static void print_waits(struct summing *s)
{
    double *ns = arena_alloc(s->arena, s->ranks * sizeof(*ns)), all;
    uint32_t slow;

    sum_waits(s);
    for (uint32_t i = 0; i < s->waits.n; i++)
        ns[s->waits.pair[i].b] += s->waits.pair[i].ns;
    slow = find_most(s, ns, &all);
    text_add(s->out,
             "#\n# waits of ranks for each other, in us per iteration, barriers included\n");
    if (all > 0)
        text_add(s->out, "  slowest source: rank %u, the cause of %.1f %% of all waits\n", slow,
                 100 * ns[slow] / all);
    qsort(s->waits.pair, s->waits.n, sizeof(struct pair), by_ns);
    for (uint32_t k = 0; k < s->waits.n && k < TOP && s->waits.pair[k].ns > 0; k++)
        text_add(s->out, "  rank %-3u for rank %-3u %10.2f\n", s->waits.pair[k].a,
                 s->waits.pair[k].b, s->waits.pair[k].ns / (double)s->rounds / 1e3);
}

/* ---- critical paths ---- */

/* Returns the stage on that rank, or, for rank -1, the stage that ended last on any rank. */
static const struct trace_item *stage_of(const struct round *r, const char *name, int64_t rank)
{
    const struct trace_item *last = NULL;

    for (size_t k = 0; k < r->n; k++) {
        const struct trace_item *i = r->item[k];

        if (trace_is_stage(i) && strcmp(i->name, name) == 0 && (rank < 0 || i->pid == rank) &&
            (last == NULL || trace_end_ns(i) > trace_end_ns(last)))
            last = i;
    }
    return last;
}

/* Returns the innermost slice of the rank just before `ns`, and the time at which it began after
 * its own inner slices. NULL: none. */
static const struct trace_item *find_phase(const struct round *r, uint32_t rank, int64_t ns,
                                           int64_t *since)
{
    const struct trace_item *in = NULL;

    for (size_t k = 0; k < r->n; k++) {
        const struct trace_item *i = r->item[k];

        if (i->ph == 'X' && i->pid == rank && i->tid == 0 && i->ts_ns < ns &&
            trace_end_ns(i) >= ns && (in == NULL || i->dur_ns < in->dur_ns))
            in = i;
    }
    *since = in == NULL ? ns : in->ts_ns;
    for (size_t k = 0; k < r->n && in != NULL; k++)
        if (r->item[k]->ph == 'X' && r->item[k]->in == in && trace_end_ns(r->item[k]) < ns &&
            trace_end_ns(r->item[k]) > *since)
            *since = trace_end_ns(r->item[k]);
    return in;
}

/* Returns the signal that ended wait `i`, if it was sent during the wait. */
static const struct trace_item *signal_that_ended(const struct round *r, const struct trace_item *i)
{
    const struct trace_item *taken = NULL, *sent;

    for (size_t k = 0; k < r->n; k++)
        if (r->item[k]->ph == 'f' && r->item[k]->in == i)
            taken = r->item[k];
    sent = taken != NULL ? taken->other : NULL;
    return sent != NULL && sent->ts_ns > i->ts_ns && sent->ts_ns < trace_end_ns(i) ? sent : NULL;
}

/* Adds work of a rank between two signals, summed by name: there may be a slice for each token. */
static void add_own_step(struct path *p, uint32_t rank, const char *name, int64_t ns)
{
    for (uint32_t i = p->n; i > 0 && p->step[i - 1].from == p->step[i - 1].rank; i--)
        if (p->step[i - 1].rank == rank && strcmp(p->step[i - 1].name, name) == 0) {
            p->step[i - 1].ns += ns;
            return;
        }
    p->step[p->n++] = (struct path_step){rank, rank, name, ns};
}

/* Follows a stage backwards from its last end: from the slice of the rank at this time, and, if
 * this slice waited for a signal that was sent after the wait began, to the slice of the sender.
 * Uses the main lane of each rank only, in which a phase includes the time of all workers. Returns
 * false if the stage is not in this iteration. */
static bool find_path(const struct round *r, const char *name, struct path *out)
{
    const struct trace_item *at = stage_of(r, name, -1), *in, *signal;
    int64_t ns, since;

    out->stage = at;
    out->n = 0;
    if (at == NULL)
        return false;
    ns = trace_end_ns(at);
    while (at != NULL && ns > at->ts_ns && out->n < PATH_STEPS) {
        in = find_phase(r, at->pid, ns, &since);
        if (in == NULL)
            break;
        signal = since == in->ts_ns ? signal_that_ended(r, in) : NULL;
        if (signal != NULL && signal->ts_ns < ns) {
            out->step[out->n++] =
                (struct path_step){at->pid, signal->pid, in->name, ns - signal->ts_ns};
            ns = signal->ts_ns;
            at = stage_of(r, name, signal->pid);
        } else {
            add_own_step(out, at->pid, in->name, ns - since);
            ns = since;
        }
    }
    return true;
}

static void print_path(struct summing *s, const struct path *p)
{
    const char *before = "";
    uint32_t at = UINT32_MAX;
    size_t line = s->out->bytes;

    text_add(s->out, "    %s, %.2f us, last on rank %u: ", p->stage->name,
             (double)p->stage->dur_ns / 1e3, p->stage->pid);
    for (uint32_t i = p->n; i > 0; i--) {
        const struct path_step *step = &p->step[i - 1];
        char who[48] = "";

        if (s->out->bytes - line > 84) {
            text_add(s->out, "%s\n       ", before[0] == '\0' ? "" : ",");
            before = " ";
            line = s->out->bytes;
        }
        if (step->from != step->rank)
            snprintf(who, sizeof(who), "signal %u to %u ", step->from, step->rank);
        else if (step->rank != at)
            snprintf(who, sizeof(who), "rank %u ", step->rank);
        text_add(s->out, "%s%s%s %.2f", before, who, step->name, (double)step->ns / 1e3);
        before = ", ";
        at = step->rank;
    }
    text_add(s->out, "\n");
}

/* timed: `a` is the number of a round. */
static void print_slowest(struct summing *s, const struct pair *timed, struct path *p)
{
    text_add(s->out, "#\n# critical path of the slowest iterations\n");
    for (size_t k = 0; k < s->rounds && k < SLOWEST; k++) {
        const struct round *r = &s->round[timed[k].a];

        text_add(s->out, "  iteration %lld: %.2f us\n", (long long)r->iteration, timed[k].ns / 1e3);
        for (uint32_t i = 0; i < s->stages; i++)
            if (find_path(r, s->stage[i], p))
                print_path(s, p);
    }
}

static void print_bound(struct summing *s)
{
    qsort(s->paths.pair, s->paths.n, sizeof(struct pair), by_ns);
    text_add(s->out,
             "#\n# what bounded the run: parts of the critical paths of all %zu iterations\n",
             s->rounds);
    for (uint32_t i = 0; i < s->paths.n && i < TOP; i++) {
        const struct pair *p = &s->paths.pair[i];
        char who[48];

        if (p->a == p->b)
            snprintf(who, sizeof(who), "rank %u", p->a);
        else
            snprintf(who, sizeof(who), "signal from rank %u to %u", p->b, p->a);
        text_add(s->out, "  %5.1f %%  %-26s %s\n", 100 * p->ns / s->on_paths, who, p->name);
    }
}

static void sum_paths(struct summing *s)
{
    struct pair *timed = arena_alloc(s->arena, s->rounds * sizeof(*timed));
    struct path p;

    for (size_t k = 0; k < s->rounds; k++) {
        timed[k].a = (uint32_t)k;
        for (uint32_t i = 0; i < s->stages; i++) {
            if (!find_path(&s->round[k], s->stage[i], &p))
                continue;
            timed[k].ns += (double)p.stage->dur_ns; /* the duration of the slowest rank */
            for (uint32_t j = 0; j < p.n; j++) {
                const struct path_step *step = &p.step[j];

                s->on_paths += (double)step->ns;
                add_pair(&s->paths, step->rank, step->from, step->name, (double)step->ns);
            }
        }
    }
    qsort(timed, s->rounds, sizeof(*timed), by_ns);
    print_bound(s);
    print_slowest(s, timed, &p);
}

/* ---- kernels ---- */

static int by_end(const void *left, const void *right)
{
    return compare_whole(trace_end_ns(*(const struct trace_item *const *)left),
                         trace_end_ns(*(const struct trace_item *const *)right));
}

static void print_phase(struct text *out, const struct trace_item **slice, size_t n, int64_t zero)
{
    const struct trace_item *first = slice[0], *median = slice[n / 2];
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)slice[i]->dur_ns;
    qsort(slice, n, sizeof(*slice), by_end);
    text_add(out, "  %4u  %-28s %7zu %9.2f %9.2f %9.2f %9.2f %9.2f\n", first->pid, first->name, n,
             (double)(first->ts_ns - zero) * 1e-3, (double)(median->ts_ns - zero) * 1e-3,
             (double)(trace_end_ns(slice[n / 2]) - zero) * 1e-3,
             (double)(trace_end_ns(slice[n - 1]) - zero) * 1e-3, sum / (double)n * 1e-3);
}

/* Returns true for a slice of a kernel that waited for a token; with `rows`, for rows. */
static bool is_wait_for(const struct trace_item *slice, bool rows)
{
    const char *part = strrchr(slice->name, ',');
    bool has_row = json_number_at(slice->json, "args.row") >= 0;

    return has_row == rows && (!rows || (part != NULL && strcmp(part, ", wait") == 0));
}

/* Prints the source rank of the longest waits for tokens or rows that kernels recorded. */
static void print_slow_peer(struct summing *s, const struct trace_item **slice, size_t n, bool rows)
{
    double *ns = arena_alloc(s->arena, s->ranks * sizeof(*ns)), all;
    uint32_t slow;

    for (size_t i = 0; i < n; i++) {
        double rank = json_number_at(slice[i]->json, "args.peer");

        if (rank >= 0 && rank < s->ranks && is_wait_for(slice[i], rows))
            ns[(uint32_t)rank] += (double)slice[i]->dur_ns;
    }
    slow = find_most(s, ns, &all);
    if (all > 0)
        text_add(s->out, "# slowest source of %s: rank %u, %.1f %% of the waits for %s\n",
                 rows ? "rows" : "tokens", slow, 100 * ns[slow] / all, rows ? "rows" : "one");
}

/* Prints phases of kernels. A phase is a name; its slices are the slices of all lanes of one rank
 * with this name. */
static void print_kernels(struct summing *s)
{
    const struct trace_item **slice = s->item;
    const struct trace_item **phase = arena_alloc(s->arena, s->f->n * sizeof(struct trace_item *));
    size_t n = 0, members;
    int64_t zero;

    for (size_t i = 0; i < s->f->n; i++)
        if (s->f->item[i].ph == 'X' && strcmp(s->f->item[i].cat, "kernel") == 0)
            slice[n++] = &s->f->item[i];
    if (n == 0)
        return;
    text_add(s->out,
             "#\n# kernels of the last call: when lanes were in each phase, in us\n"
             "# rank  %-28s %7s %9s %9s %9s %9s %9s\n# %5s %-28s %7s %9s %9s %9s %9s %9s\n",
             "phase", "slices", "begins", "begin", "end", "ends", "lasts", "", "", "", "first",
             "median", "median", "last", "mean");
    print_slow_peer(s, slice, n, false);
    print_slow_peer(s, slice, n, true);
    zero = slice[0]->ts_ns;
    for (uint32_t rank = 0; rank < s->ranks; rank++)
        for (size_t i = 0; i < n; i++) { /* by their first begin */
            const struct trace_item *first = slice[i];

            if (first == NULL || first->pid != rank)
                continue;
            members = 0;
            for (size_t k = i; k < n; k++)
                if (slice[k] != NULL && slice[k]->pid == rank &&
                    strcmp(slice[k]->name, first->name) == 0) {
                    phase[members++] = slice[k];
                    slice[k] = NULL;
                }
            print_phase(s->out, phase, members, zero);
        }
}

/* ---- proxies ---- */

/* Slices of proxies (nvlink's proxy_trace.c): they do not overlap, and together cover the whole
 * time. */
static const char *const proxy_state[] = {"busy", "waits for copies", "waits for slots",
                                          "waits for network", "idle"};
enum { PROXY_STATES = sizeof(proxy_state) / sizeof(proxy_state[0]) };

struct proxy_sums {
    double ns[PROXY_STATES], all_ns, bytes;
    uint64_t messages;
};

static void print_proxies(struct summing *s)
{
    struct proxy_sums *of = arena_alloc(s->arena, s->ranks * sizeof(*of));
    bool any = false;

    for (size_t k = 0; k < s->n; k++) {
        const struct trace_item *i = s->item[k];
        struct proxy_sums *p = &of[i->pid];

        if (i->ph != 'X' || strcmp(i->cat, "proxy") != 0)
            continue;
        any = true;
        for (uint32_t state = 0; state < PROXY_STATES; state++)
            if (strcmp(i->name, proxy_state[state]) == 0) {
                p->ns[state] += (double)i->dur_ns;
                p->all_ns += (double)i->dur_ns;
            }
        if (strcmp(i->name, "send") == 0) {
            p->messages++;
            p->bytes += (double)i->bytes;
        }
    }
    if (!any)
        return;
    text_add(s->out, "#\n# proxies, %% of the time, and their traffic\n# rank");
    for (uint32_t k = 0; k < PROXY_STATES; k++)
        text_add(s->out, " %18s", proxy_state[k]);
    text_add(s->out, " %9s %12s\n", "messages", "KiB");
    for (uint32_t r = 0; r < s->ranks; r++) {
        text_add(s->out, "  %4u", r);
        for (uint32_t k = 0; k < PROXY_STATES; k++)
            text_add(s->out, " %18.1f", of[r].all_ns > 0 ? 100 * of[r].ns[k] / of[r].all_ns : 0);
        text_add(s->out, " %9llu %12.1f\n", (unsigned long long)of[r].messages, of[r].bytes / 1024);
    }
}

/* ---- summary ---- */

static void print_head(struct summing *s)
{
    static const char *const key[] = {"name", "algorithm", "transport", "status"};
    const char *before = "";

    text_add(s->out, "# %s: ", s->f->path);
    for (size_t i = 0; i < sizeof(key) / sizeof(key[0]); i++)
        if (*json_text_at(s->f->other, key[i]) != '\0') {
            text_add(s->out, "%s%s", before, json_text_at(s->f->other, key[i]));
            before = ", ";
        }
    text_add(s->out, "%s%u rank%s, %zu iterations", *before != '\0' ? "; " : "", s->ranks,
             s->ranks == 1 ? "" : "s", s->rounds);
    if (s->rounds > 0)
        text_add(s->out, " from %lld to %lld", (long long)s->round[0].iteration,
                 (long long)s->round[s->rounds - 1].iteration);
    text_add(s->out, ", %.0f dropped\n", fmax(0, json_number_at(s->f->other, "dropped")));
}

void trace_summary(const struct trace_file *f, struct text *out)
{
    struct summing s = {.f = f, .out = out, .arena = arena_create()};

    s.item = arena_alloc(s.arena, f->n * sizeof(struct trace_item *));
    s.round = arena_alloc(s.arena, f->n * sizeof(*s.round));
    s.paths.room = NAMES * 8;
    s.paths.pair = arena_alloc(s.arena, s.paths.room * sizeof(struct pair));
    find_rounds(&s);
    s.waits.room = s.ranks * s.ranks;
    s.waits.pair = arena_alloc(s.arena, (size_t)s.waits.room * sizeof(struct pair));
    print_head(&s);
    if (s.rounds > 0) {
        print_phases(&s);
        print_waits(&s);
        print_proxies(&s);
        sum_paths(&s);
        print_kernels(&s);
    }
    arena_destroy(s.arena);
}

/* Where time went, in tables: phases of each stage by rank, who waited for whom, and what was
 * on the critical path of the iterations. All of it of ranks' own lanes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace/path.h"

enum { NAMES = 128, STAGES = 16, RANKS = 4096, COLUMNS = 8, SLOWEST = 3, TOP = 8 };

/* Time under one name, by rank. */
struct row {
    const char *stage, *name; /* stage "": between them */
    double *ns;               /* [ranks] */
};

/* What a rank waited for another, or what a name of a rank takes on paths. */
struct pair {
    uint32_t a, b;
    const char *name;
    double ns;
};

struct summing {
    const struct trace_file *f;
    uint32_t ranks;                 /* 1 + the highest */
    const struct trace_item **item; /* by iteration, then time */
    size_t n;
    struct path_round *round;
    size_t rounds;
    const char *stage[STAGES];
    uint32_t stages;
    struct row row[NAMES];
    uint32_t rows;
    struct pair *wait, *path; /* wait: [ranks * ranks] */
    uint32_t paths;
    double on_paths;
    struct text *out;
};

static int64_t end_of(const struct trace_item *i)
{
    return i->ts_ns + i->dur_ns;
}

/* ---- iterations ---- */

static int by_iteration(const void *left, const void *right)
{
    const struct trace_item *a = *(const struct trace_item *const *)left;
    const struct trace_item *b = *(const struct trace_item *const *)right;

    if (a->iteration != b->iteration)
        return a->iteration < b->iteration ? -1 : 1;
    return a < b ? -1 : 1; /* which are by time */
}

static void find_rounds(struct summing *s)
{
    for (size_t k = 0; k < s->f->n; k++) {
        const struct trace_item *i = &s->f->item[k];

        if (i->ph == 'M' || i->iteration < 0 || i->pid >= RANKS)
            continue;
        s->item[s->n++] = i;
        s->ranks = i->pid + 1 > s->ranks ? i->pid + 1 : s->ranks;
    }
    qsort(s->item, s->n, sizeof(const struct trace_item *), by_iteration);
    for (size_t k = 0; k < s->n; k++) {
        if (k > 0 && s->item[k]->iteration == s->item[k - 1]->iteration) {
            s->round[s->rounds - 1].n++;
            continue;
        }
        s->round[s->rounds++] = (struct path_round){s->item[k]->iteration, &s->item[k], 1};
    }
}

/* ---- phases ---- */

static const struct trace_item *stage_around(const struct path_round *r, const struct trace_item *i)
{
    for (size_t k = 0; k < r->n; k++) {
        const struct trace_item *s = r->item[k];

        if (s->ph == 'X' && s->pid == i->pid && s->tid == i->tid && s != i &&
            strcmp(s->cat, "stage") == 0 && s->ts_ns <= i->ts_ns && end_of(s) >= end_of(i))
            return s;
    }
    return NULL;
}

static void add_row(struct summing *s, const char *stage, const char *name, uint32_t rank,
                    double ns)
{
    uint32_t i = 0;

    while (i < s->rows &&
           (strcmp(s->row[i].name, name) != 0 || strcmp(s->row[i].stage, stage) != 0))
        i++;
    if (i == NAMES)
        return;
    if (i == s->rows) {
        double *by_rank = calloc(s->ranks, sizeof(*by_rank));

        if (by_rank == NULL)
            return;
        s->row[s->rows++] = (struct row){stage, name, by_rank};
    }
    s->row[i].ns[rank] += ns;
}

static void add_stage(struct summing *s, const char *name)
{
    for (uint32_t i = 0; i < s->stages; i++) {
        if (strcmp(s->stage[i], name) == 0)
            return;
    }
    if (s->stages < STAGES)
        s->stage[s->stages++] = name;
}

static void sum_phases(struct summing *s)
{
    for (size_t k = 0; k < s->rounds; k++) {
        const struct path_round *r = &s->round[k];

        for (size_t j = 0; j < r->n; j++) {
            const struct trace_item *i = r->item[j], *stage;

            if (i->ph != 'X' || i->tid != 0)
                continue;
            if (strcmp(i->cat, "stage") == 0)
                add_stage(s, i->name);
            stage = stage_around(r, i);
            add_row(s, stage == NULL ? "" : stage->name, i->name, i->pid, (double)i->dur_ns);
        }
    }
}

static void print_row(struct summing *s, const struct row *row, const char *indent)
{
    double sum = 0, most = -1;
    uint32_t worst = 0;

    for (uint32_t r = 0; r < s->ranks; r++) {
        sum += row->ns[r];
        if (row->ns[r] > most) {
            most = row->ns[r];
            worst = r;
        }
    }
    text_add(s->out, "  %s%-*s %10.2f %10.2f %6u", indent, (int)(28 - strlen(indent)), row->name,
             sum / s->ranks / (double)s->rounds / 1e3, most / (double)s->rounds / 1e3, worst);
    for (uint32_t r = 0; r < s->ranks && s->ranks <= COLUMNS; r++)
        text_add(s->out, " %9.2f", row->ns[r] / (double)s->rounds / 1e3);
    text_add(s->out, "\n");
}

static void print_phases(struct summing *s)
{
    text_add(s->out,
             "#\n# time of an iteration, in us, mean over iterations\n# %-28s %10s "
             "%10s %6s",
             "stage and phase", "mean rank", "slowest", "rank");
    for (uint32_t r = 0; r < s->ranks && s->ranks <= COLUMNS; r++)
        text_add(s->out, "    rank %u", r);
    text_add(s->out, "\n");
    for (uint32_t i = 0; i < s->rows; i++) {
        const struct row *row = &s->row[i];

        if (row->stage[0] != '\0')
            continue;
        print_row(s, row, "");
        for (uint32_t k = 0; k < s->rows; k++) {
            if (strcmp(s->row[k].stage, row->name) == 0)
                print_row(s, &s->row[k], "  ");
        }
    }
}

/* ---- waits ---- */

/* A barrier is left when the last has come: all waited for that one. */
static void sum_barrier(struct summing *s, const struct path_round *r, uint32_t which)
{
    const struct trace_item **at = calloc(s->ranks, sizeof(struct trace_item *));
    const struct trace_item *last = NULL;
    uint32_t *seen = calloc(s->ranks, sizeof(*seen)), n = 0;

    for (size_t k = 0; k < r->n && at != NULL && seen != NULL; k++) {
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
        if (at[rank] != NULL && at[rank] != last && last->ts_ns < end_of(at[rank]))
            s->wait[(size_t)rank * s->ranks + last->pid].ns +=
                (double)(last->ts_ns - at[rank]->ts_ns);
    }
    free((void *)at);
    free(seen);
}

/* The slice that a flow ends in. */
static const struct trace_item *wait_around(const struct path_round *r,
                                            const struct trace_item *flow)
{
    const struct trace_item *in = NULL;

    for (size_t k = 0; k < r->n; k++) {
        const struct trace_item *i = r->item[k];

        if (i->ph == 'X' && i->pid == flow->pid && i->tid == flow->tid && i->ts_ns <= flow->ts_ns &&
            end_of(i) >= flow->ts_ns && (in == NULL || i->dur_ns < in->dur_ns))
            in = i;
    }
    return in;
}

static void sum_waits(struct summing *s)
{
    for (size_t k = 0; k < s->rounds; k++) {
        const struct path_round *r = &s->round[k];
        uint32_t most = 0;

        for (size_t j = 0; j < r->n; j++) {
            const struct trace_item *i = r->item[j], *wait;

            most += i->ph == 'X' && i->pid == r->item[0]->pid && strcmp(i->name, "barrier") == 0;
            wait = i->ph == 'f' ? wait_around(r, i) : NULL;
            if (wait != NULL && i->from >= 0 && i->from < s->ranks)
                s->wait[(size_t)i->pid * s->ranks + (size_t)i->from].ns += (double)wait->dur_ns;
        }
        for (uint32_t which = 0; which < most; which++)
            sum_barrier(s, r, which);
    }
}

static int by_ns(const void *left, const void *right)
{
    const struct pair *a = left, *b = right;

    return a->ns > b->ns ? -1 : a->ns < b->ns;
}

static void print_waits(struct summing *s)
{
    size_t n = (size_t)s->ranks * s->ranks;

    for (size_t k = 0; k < n; k++) {
        s->wait[k].a = (uint32_t)(k / s->ranks);
        s->wait[k].b = (uint32_t)(k % s->ranks);
    }
    qsort(s->wait, n, sizeof(*s->wait), by_ns);
    text_add(s->out, "#\n# who waited for whom, in us an iteration, barriers included\n");
    for (size_t k = 0; k < n && k < TOP && s->wait[k].ns > 0; k++)
        text_add(s->out, "  rank %-3u for rank %-3u %10.2f\n", s->wait[k].a, s->wait[k].b,
                 s->wait[k].ns / (double)s->rounds / 1e3);
}

/* ---- critical paths ---- */

static void add_to_path(struct summing *s, const struct path_step *step)
{
    uint32_t i = 0;

    while (i < s->paths && (s->path[i].a != step->rank || s->path[i].b != step->from ||
                            strcmp(s->path[i].name, step->name) != 0))
        i++;
    s->on_paths += (double)step->ns;
    if (i == NAMES * 8)
        return;
    if (i == s->paths)
        s->path[s->paths++] = (struct pair){step->rank, step->from, step->name, 0};
    s->path[i].ns += (double)step->ns;
}

/* The stages of an iteration, each as long as its slowest rank. */
static double length_of(struct summing *s, const struct path_round *r, struct path *p)
{
    double ns = 0;

    for (uint32_t i = 0; i < s->stages; i++) {
        if (path_find(r, s->stage[i], p))
            ns += (double)p->stage->dur_ns;
    }
    return ns;
}

static void print_path(struct summing *s, const struct path *p)
{
    const char *before = "";
    uint32_t at = UINT32_MAX;
    size_t line = s->out->bytes;

    text_add(s->out, "    %s, %.2f us, last on rank %u: ", p->stage->name,
             (double)p->stage->dur_ns / 1e3, p->stage->pid);
    for (uint32_t i = 0; i < p->n; i++) {
        const struct path_step *step = &p->step[i];
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

struct timed {
    size_t round;
    double ns;
};

static int by_length(const void *left, const void *right)
{
    const struct timed *a = left, *b = right;

    return a->ns > b->ns ? -1 : a->ns < b->ns;
}

static void print_slowest(struct summing *s, const struct timed *timed, struct path *p)
{
    text_add(s->out, "#\n# critical path of the slowest iterations\n");
    for (size_t k = 0; k < s->rounds && k < SLOWEST; k++) {
        const struct path_round *r = &s->round[timed[k].round];

        text_add(s->out, "  iteration %lld: %.2f us\n", (long long)r->iteration, timed[k].ns / 1e3);
        for (uint32_t i = 0; i < s->stages; i++) {
            if (path_find(r, s->stage[i], p))
                print_path(s, p);
        }
    }
}

static void print_bound(struct summing *s)
{
    qsort(s->path, s->paths, sizeof(*s->path), by_ns);
    text_add(s->out,
             "#\n# what bounded the run: parts of the critical paths of all %zu "
             "iterations\n",
             s->rounds);
    for (uint32_t i = 0; i < s->paths && i < TOP; i++) {
        const struct pair *p = &s->path[i];
        char who[48];

        if (p->a == p->b)
            snprintf(who, sizeof(who), "rank %u", p->a);
        else
            snprintf(who, sizeof(who), "signal from rank %u to %u", p->b, p->a);
        text_add(s->out, "  %5.1f %%  %-26s %s\n", 100 * p->ns / s->on_paths, who, p->name);
    }
}

static bool sum_paths(struct summing *s)
{
    struct timed *timed = calloc(s->rounds + 1, sizeof(*timed));
    struct path *p = malloc(sizeof(*p));
    bool ok = timed != NULL && p != NULL;

    for (size_t k = 0; ok && k < s->rounds; k++) {
        timed[k] = (struct timed){k, length_of(s, &s->round[k], p)};
        for (uint32_t i = 0; i < s->stages; i++) {
            if (!path_find(&s->round[k], s->stage[i], p))
                continue;
            for (uint32_t j = 0; j < p->n; j++)
                add_to_path(s, &p->step[j]);
        }
    }
    if (ok) {
        qsort(timed, s->rounds, sizeof(*timed), by_length);
        print_bound(s);
        print_slowest(s, timed, p);
    }
    free(timed);
    free(p);
    return ok;
}

/* ---- all of it ---- */

static void print_head(struct summing *s)
{
    const char *key[] = {"name", "algorithm", "transport", "status"};

    text_add(s->out, "# %s:", s->f->path);
    for (size_t i = 0; i < sizeof(key) / sizeof(key[0]); i++)
        text_add(s->out, "%s %s", i == 0 ? "" : ",", trace_text(s->f, key[i]));
    text_add(s->out, "; %u rank%s, %zu iterations", s->ranks, s->ranks == 1 ? "" : "s", s->rounds);
    if (s->rounds > 0)
        text_add(s->out, " from %lld to %lld", (long long)s->round[0].iteration,
                 (long long)s->round[s->rounds - 1].iteration);
    text_add(s->out, ", %.0f dropped\n", trace_number(s->f, "dropped", 0));
}

static bool summing_init(struct summing *s)
{
    s->item = calloc(s->f->n + 1, sizeof(struct trace_item *));
    s->round = calloc(s->f->n + 1, sizeof(*s->round));
    s->path = calloc(NAMES * 8, sizeof(*s->path));
    if (s->item == NULL || s->round == NULL || s->path == NULL)
        return false;
    find_rounds(s);
    s->wait = calloc((size_t)s->ranks * s->ranks + 1, sizeof(*s->wait));
    return s->wait != NULL;
}

static void summing_finish(struct summing *s)
{
    for (uint32_t i = 0; i < s->rows; i++)
        free(s->row[i].ns);
    free((void *)s->item);
    free(s->round);
    free(s->path);
    free(s->wait);
}

enum epa_status trace_summary(const struct trace_file *f, struct text *out, struct epa_error *err)
{
    struct summing s = {.f = f, .out = out};
    bool ok = summing_init(&s);

    if (ok && s.rounds == 0 && !f->ours) {
        summing_finish(&s);
        return trace_phases(f, out, err);
    }
    if (ok)
        print_head(&s);
    if (ok && s.rounds > 0) {
        sum_phases(&s);
        print_phases(&s);
        sum_waits(&s);
        print_waits(&s);
        ok = sum_paths(&s);
    }
    summing_finish(&s);
    return ok ? EPA_OK : epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for its summary", f->path);
}

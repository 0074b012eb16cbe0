/* The model of `epa2a predict`: its fit, its link, and the report. */
#include "report/predict.h"

#include "base/memory.h"
#include "report/table.h"
#include "report/lines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "options/value.h"

/* ---- the fit ---- */

enum { SWEEPS = 500000 };            /* 20 ms: for terms that are nearly proportional */
static const double settled = 1e-13; /* fraction of a term's part in the time */

double predict_local(const double cost[PREDICT_TERMS], const struct predict_point *p)
{
    double ns = 0;

    for (uint32_t t = 0; t < PREDICT_TERMS; t++)
        ns += cost[t] * p->term[t];
    return ns * p->share;
}

/* Non-negative least squares by coordinate descent: each cost in turn takes its best value for the
 * current others, and at least 0. Of collinear terms the first receives the whole cost. */
void predict_fit(const struct predict_point *p, uint32_t n, double cost[PREDICT_TERMS])
{
    double unit[PREDICT_TERMS] = {0}, a[PREDICT_TERMS][PREDICT_TERMS] = {{0}};
    double b[PREDICT_TERMS] = {0}, change = 1;

    for (uint32_t t = 0; t < PREDICT_TERMS; t++)
        for (uint32_t i = 0; i < n; i++)
            unit[t] = fmax(unit[t], p[i].weight * p[i].share * p[i].term[t] / p[i].ns);
    for (uint32_t i = 0; i < n; i++) {
        double part[PREDICT_TERMS] = {0};

        for (uint32_t t = 0; t < PREDICT_TERMS; t++)
            if (unit[t] > 0)
                part[t] = p[i].weight * p[i].share * p[i].term[t] / p[i].ns / unit[t];
        for (uint32_t r = 0; r < PREDICT_TERMS; r++) {
            b[r] += p[i].weight * part[r];
            for (uint32_t c = 0; c < PREDICT_TERMS; c++)
                a[r][c] += part[r] * part[c];
        }
    }
    memset(cost, 0, PREDICT_TERMS * sizeof(*cost));
    for (uint32_t sweep = 0; sweep < SWEEPS && change > settled; sweep++) {
        change = 0;
        for (uint32_t t = 0; t < PREDICT_TERMS; t++) {
            double rest = b[t], before = cost[t];

            for (uint32_t k = 0; k < PREDICT_TERMS; k++)
                rest -= a[t][k] * cost[k];
            if (unit[t] > 0)
                cost[t] = fmax(0, before + rest / a[t][t]);
            change = fmax(change, fabs(cost[t] - before));
        }
    }
    for (uint32_t t = 0; t < PREDICT_TERMS; t++)
        cost[t] = unit[t] > 0 ? cost[t] / unit[t] : 0;
}

/* ---- the link ---- */

enum epa_status predict_link_read(const char *text, struct predict_link *out, struct epa_error *err)
{
    static const struct {
        const char *name;
        double bytes_per_ns;
    } units[] = {{"TB/s", 1e3},     {"GB/s", 1},          {"MB/s", 1e-3},
                 {"Gbit/s", 0.125}, {"Mbit/s", 0.125e-3}, {NULL, 0}};
    struct predict_link link = {0};
    struct value_error why = {"", ""};
    char word[32] = "", *end;
    uint64_t ns[2] = {0, 0};
    uint32_t given = 0;
    double rate = strtod(text, &end);
    size_t unit = strcspn(end, ",");

    for (uint32_t i = 0; units[i].name != NULL; i++)
        if (strlen(units[i].name) == unit && memcmp(units[i].name, end, unit) == 0)
            link.bytes_per_ns = rate * units[i].bytes_per_ns;
    if (!(link.bytes_per_ns > 0) || !isfinite(link.bytes_per_ns))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--link %s: a rate is expected first, in TB/s, GB/s, MB/s, Gbit/s or "
                        "Mbit/s: --link 50GB/s,2us",
                        text);
    for (const char *at = end + unit; *at == ','; at += 1 + strcspn(at + 1, ",")) {
        snprintf(word, sizeof(word), "%.*s", (int)strcspn(at + 1, ","), at + 1);
        if (strcmp(word, "node") == 0) {
            link.node = true;
            continue;
        }
        if (given == 2 || !value_duration(word, &ns[given], &why))
            return epa_fail(err, EPA_ERR_CONFIG,
                            "--link %s: '%s' %s; behind the rate are the latency, the time between "
                            "two messages, and 'node': --link 400GB/s,2us,10ns,node",
                            text, word, given == 2 ? "is one too many" : why.what);
        given++;
    }
    link.latency_ns = (double)ns[0];
    link.message_ns = (double)ns[1];
    *out = link;
    return EPA_OK;
}

struct predict_time predict_time(double local_ns, const struct op_load *load,
                                 const struct predict_link *link, double signal_ns)
{
    struct predict_time t = {.ns = local_ns, .local_ns = local_ns, .bound = PREDICT_LOCAL};

    if (link == NULL)
        return t;
    t.bytes_ns = (link->node ? load->node_bytes : load->rank_bytes) / link->bytes_per_ns;
    t.messages_ns = load->messages * link->message_ns;
    t.latency_ns = PREDICT_LATENCIES * fmax(link->latency_ns - signal_ns, 0);
    if (t.bytes_ns > t.ns)
        t.bound = PREDICT_BYTES;
    t.ns = fmax(t.ns, t.bytes_ns);
    if (t.messages_ns > t.ns)
        t.bound = PREDICT_MESSAGES;
    t.ns = fmax(t.ns, t.messages_ns);
    if (t.latency_ns > t.ns)
        t.bound = PREDICT_LATENCY;
    t.ns += t.latency_ns;
    return t;
}

const char *predict_bound_name(enum predict_bound bound)
{
    static const char *const name[] = {[PREDICT_LOCAL] = "local copy",
                                       [PREDICT_BYTES] = "link bandwidth",
                                       [PREDICT_MESSAGES] = "link messages",
                                       [PREDICT_LATENCY] = "link latency"};

    return name[bound];
}

/* ---- report ---- */

static const struct table_column stages[] = {{"name", "stage", .width = 0, .digits = 10},
                                             {"ns", "time", "us", 1e3, 1, 10},
                                             {"low_ns", "from", "us", 1e3, 1, 10},
                                             {"high_ns", "to", "us", 1e3, 1, 10},
                                             {"local_ns", "local", "us", 1e3, 1, 10},
                                             {"bytes_ns", "link", "us", 1e3, 1, 10},
                                             {"messages_ns", "messages", "us", 1e3, 1, 9},
                                             {"link_bytes", "bytes", "MB", 1e6, 2, 9},
                                             {"bound", "bound", .width = 0},
                                             {0}};
static const struct table_column worlds[] = {{"ranks", "ranks", NULL, 0, 0, 6},
                                             {"nodes", "nodes", NULL, 0, 0, 6},
                                             {"total.ns", "time", "us", 1e3, 1, 10},
                                             {"total.low_ns", "from", "us", 1e3, 1, 10},
                                             {"total.high_ns", "to", "us", 1e3, 1, 10},
                                             {"times", "times", NULL, 0, 2, 6},
                                             {"tokens_per_s", "tokens", "M/s", 1e6, 2, 8},
                                             {"total.link_bytes", "bytes", "MB", 1e6, 2, 8},
                                             {"memory_bytes", "memory", "MiB", 1048576, 0, 7},
                                             {"total.bound", "bound", .width = 0},
                                             {0}};

/* Columns of CSV; the names contain the units. */
static const struct table_column values[] = {{"ranks", "ranks", NULL, 0, 0, 9},
                                             {"nodes", "nodes", NULL, 0, 0, 9},
                                             {"stage.name", "stage", .width = 0},
                                             {"stage.ns", "ns", NULL, 0, 0, 20},
                                             {"stage.low_ns", "low_ns", NULL, 0, 0, 20},
                                             {"stage.high_ns", "high_ns", NULL, 0, 0, 20},
                                             {"stage.local_ns", "local_ns", NULL, 0, 0, 20},
                                             {"stage.bytes_ns", "link_ns", NULL, 0, 0, 20},
                                             {"stage.messages_ns", "messages_ns", NULL, 0, 0, 20},
                                             {"stage.latency_ns", "latency_ns", NULL, 0, 0, 20},
                                             {"stage.link_bytes", "link_bytes", NULL, 0, 0, 20},
                                             {"stage.bound", "bound", .width = 0},
                                             {"memory_bytes", "memory_bytes", NULL, 0, 0, 20},
                                             {"why", "refused", .width = 0},
                                             {0}};

/* Returns the requested world; of a sweep the largest possible one. NULL: none is possible. */
static const struct predict_world *requested_world(const struct predict_report *d)
{
    const struct predict_world *last = NULL;

    for (uint32_t i = 0; i < d->n_worlds; i++)
        last = d->world[i].why == NULL ? &d->world[i] : last;
    return last;
}

/* Adds "256 ranks, 32 nodes of 8". */
static void add_world(struct text *out, const struct predict_world *world)
{
    if (world == NULL)
        return;
    text_add(out, "%u rank%s, ", world->ranks, world->ranks == 1 ? "" : "s");
    if (world->nodes == 1)
        text_add(out, "one node");
    else
        text_add(out, "%u nodes of %.0f", world->nodes, (double)world->ranks / world->nodes);
}

static void add_head(struct text *out, const struct predict_report *d)
{
    text_add(out, "epa2a predict: %s: ", d->file);
    add_world(out, requested_world(d));
    if (d->sweep)
        text_add(out, ", and as few as %u", d->world[0].ranks);
    if (d->link != NULL)
        text_add(out, "; link %.4g GB/s, %.4g us%s, of a %s", d->link->bytes_per_ns,
                 round(d->link->latency_ns) / 1e3,
                 round(d->link->message_ns) > 0 ? " and a time between messages" : "",
                 d->link->node ? "node" : "rank");
}

static void add_answer(struct text *out, const struct predict_report *d)
{
    const struct predict_world *world = requested_world(d);

    add_world(out, world);
    if (world != NULL)
        text_add(out, ": %.1f us, %.1f to %.1f", world->total.time.ns / 1e3,
                 world->total.low_ns / 1e3, world->total.high_ns / 1e3);
    for (uint32_t i = 0; world != NULL && i < world->n_stages; i++) {
        const struct predict_stage *stage = &world->stage[i];

        text_add(out, "%s%s %.1f us by %s", i == 0 ? ": " : ", ", stage->name, stage->time.ns / 1e3,
                 predict_bound_name(stage->time.bound));
    }
    text_add(out, "; %s", d->scales);
}

static void print_notes(FILE *file, const struct predict_report *d)
{
    const struct predict_world *world = requested_world(d);
    char memory[32], heap[32];

    if (!d->sweep && world != NULL && world->memory_bytes > 0)
        text_comment(file, "memory of a rank: %s, of which the heap is %s",
                     text_size(memory, sizeof(memory), world->memory_bytes),
                     text_size(heap, sizeof(heap), world->heap_bytes));
    for (uint32_t i = 0; d->sweep && i < d->n_worlds; i++)
        if (d->world[i].why != NULL)
            text_comment(file, "%u ranks: %s", d->world[i].ranks, d->world[i].why);
    text_comment(file, "measured here: %s", d->measured);
    for (uint32_t i = 0; i < d->n_notes; i++)
        text_comment(file, "%s", d->note[i]);
    for (uint32_t i = 0; i < d->n_checks; i++) {
        const struct predict_check *check = &d->check[i];

        if (isfinite(check->predicted_ns) && isfinite(check->measured_ns) && isfinite(check->ratio))
            text_comment(file, "check: %s: predicted %.1f us, measured %.1f us: %.2f", check->name,
                         check->predicted_ns / 1e3, check->measured_ns / 1e3, check->ratio);
    }
    text_comment(file, "error: %s", d->error);
}

/* ---- tables ---- */

enum { CELLS = 16 };

/* Rows of a table and their cells. */
struct predict_rows {
    struct table_cell (*cell)[CELLS];
    struct table_row *row;
    uint32_t n;
};

static struct predict_rows create_rows(uint32_t room)
{
    struct predict_rows rows = {memory_alloc(room, sizeof(*rows.cell)),
                                memory_alloc(room, sizeof(*rows.row)), 0};

    for (uint32_t i = 0; i < room; i++) {
        for (uint32_t k = 0; k < CELLS; k++)
            rows.cell[i][k].text = "";
        rows.row[i].cell = rows.cell[i];
    }
    return rows;
}

static void free_rows(struct predict_rows *rows)
{
    free(rows->row);
    free(rows->cell);
}

static struct table_cell number_cell(double number)
{
    return (struct table_cell){NULL, number};
}

static void add_stage_row(struct predict_rows *rows, const struct predict_stage *stage)
{
    struct table_cell *cell = rows->cell[rows->n++];

    *cell++ = (struct table_cell){stage->name, NAN};
    *cell++ = number_cell(stage->time.ns);
    *cell++ = number_cell(stage->low_ns);
    *cell++ = number_cell(stage->high_ns);
    *cell++ = number_cell(stage->time.local_ns);
    *cell++ = number_cell(stage->time.bytes_ns);
    *cell++ = number_cell(stage->time.messages_ns);
    *cell++ = number_cell(stage->link_bytes);
    *cell = (struct table_cell){predict_bound_name(stage->time.bound), NAN};
}

/* A world that is not possible has no figures. */
static void add_world_row(struct predict_rows *rows, const struct predict_world *world)
{
    struct table_cell *cell = rows->cell[rows->n++];

    cell[0] = number_cell(world->ranks);
    cell[1] = number_cell(world->nodes);
    cell[5] = number_cell(world->times);
    if (world->why != NULL)
        return;
    cell[2] = number_cell(world->total.time.ns);
    cell[3] = number_cell(world->total.low_ns);
    cell[4] = number_cell(world->total.high_ns);
    cell[6] = number_cell(world->tokens_per_s);
    cell[7] = number_cell(world->total.link_bytes);
    cell[8] = number_cell((double)world->memory_bytes);
    cell[9].text = predict_bound_name(world->total.time.bound);
}

/* Adds a line of CSV: a stage of a world, or a world that is not possible (stage NULL). */
static void add_values_row(struct predict_rows *rows, const struct predict_world *world,
                           const struct predict_stage *stage)
{
    struct table_cell *cell = rows->cell[rows->n++];

    cell[0] = number_cell(world->ranks);
    cell[1] = number_cell(world->nodes);
    if (stage == NULL) {
        cell[13].text = world->why;
        return;
    }
    cell[2].text = stage->name;
    cell[3] = number_cell(stage->time.ns);
    cell[4] = number_cell(stage->low_ns);
    cell[5] = number_cell(stage->high_ns);
    cell[6] = number_cell(stage->time.local_ns);
    cell[7] = number_cell(stage->time.bytes_ns);
    cell[8] = number_cell(stage->time.messages_ns);
    cell[9] = number_cell(stage->time.latency_ns);
    cell[10] = number_cell(stage->link_bytes);
    cell[11].text = predict_bound_name(stage->time.bound);
    cell[12] = number_cell((double)world->memory_bytes);
}

/* Returns a row for each world of a sweep, or for each stage of a single world that is possible. */
static struct predict_rows table_rows(const struct predict_report *d)
{
    const struct predict_world *world = requested_world(d);
    struct predict_rows rows = create_rows(d->n_worlds + OP_PHASES + 1);

    for (uint32_t i = 0; d->sweep && i < d->n_worlds; i++)
        add_world_row(&rows, &d->world[i]);
    for (uint32_t i = 0; !d->sweep && world != NULL && i < world->n_stages; i++)
        add_stage_row(&rows, &world->stage[i]);
    if (!d->sweep && world != NULL)
        add_stage_row(&rows, &world->total);
    return rows;
}

void predict_text(FILE *file, const struct predict_report *d)
{
    text_auto head = {0}, answer = {0};
    struct predict_rows rows = table_rows(d);

    add_answer(&answer, d);
    add_head(&head, d);
    text_comment(file, "%s", answer.data);
    text_comment(file, "%s", head.data);
    if (rows.n > 0)
        table_text(file, d->sweep ? worlds : stages, rows.row, rows.n);
    print_notes(file, d);
    free_rows(&rows);
}

void predict_markdown(struct text *out, const struct predict_report *d)
{
    text_auto answer = {0};
    struct predict_rows rows = table_rows(d);

    add_answer(&answer, d);
    text_add_markdown(out, answer.data);
    text_add(out, "\n\n");
    if (rows.n > 0)
        table_add(out, TABLE_MARKDOWN, d->sweep ? worlds : stages, rows.row, rows.n);
    text_add(out, "\nerror: ");
    text_add_markdown(out, d->error);
    text_add(out, "\n");
    free_rows(&rows);
}

void predict_csv(struct text *out, const struct predict_report *d)
{
    struct predict_rows rows = create_rows(d->n_worlds * (OP_PHASES + 1));

    for (uint32_t i = 0; i < d->n_worlds; i++) {
        const struct predict_world *world = &d->world[i];

        for (uint32_t k = 0; world->why == NULL && k < world->n_stages; k++)
            add_values_row(&rows, world, &world->stage[k]);
        add_values_row(&rows, world, world->why == NULL ? &world->total : NULL);
    }
    table_add(out, TABLE_CSV, values, rows.row, rows.n);
    free_rows(&rows);
}

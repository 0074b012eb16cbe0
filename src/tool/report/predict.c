/* The model of `epa2a predict`: its fit, its link, and the report. */
#include "report/predict.h"

#include "base/memory.h"
#include "report/table_json.h"
#include "report/fill.h"
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

/* Returns the requested world; of a sweep the largest possible one. */
static const json_t *requested_world(const json_t *d)
{
    const json_t *last = NULL;

    for (struct json_walk world = {json_object_get(d, "worlds")}; json_next(&world);)
        last = json_object_get(world.value, "total") != NULL ? world.value : last;
    return last;
}

static bool is_sweep(const json_t *d)
{
    return json_is_true(json_object_get(d, "sweep"));
}

/* Adds "256 ranks, 32 nodes of 8". */
static void add_world(struct text *out, const json_t *world)
{
    (void)fill_add(out,
                   "{ranks%.0f} rank{ranks?s}, "
                   "[{nodes=1}one node|{nodes%.0f} nodes of {ranks/nodes%.0f}]",
                   world, NULL);
}

static void add_head(struct text *out, const json_t *d)
{
    text_add(out, "epa2a predict: %s: ", json_text_at(d, "file"));
    add_world(out, requested_world(d));
    (void)fill_add(out,
                   "[{sweep=true}, and as few as {worlds.0.ranks%.0f}]"
                   "[; link {link.rate%.4g} GB/s, {link.latency_ns/1e3%.4g} us"
                   "[{link.message_ns>0} and a time between messages], of a {link.of}]",
                   d, NULL);
}

static void add_answer(struct text *out, const json_t *d)
{
    const json_t *world = requested_world(d);

    add_world(out, world);
    (void)fill_add(out,
                   ": {total.ns/1e3%.1f} us, {total.low_ns/1e3%.1f} to {total.high_ns/1e3%.1f}",
                   world, NULL);
    for (struct json_walk stage = {json_object_get(world, "stages")}; json_next(&stage);) {
        text_add(out, stage.n == 1 ? ": " : ", ");
        (void)fill_add(out, "{name} {ns/1e3%.1f} us by {bound}", stage.value, NULL);
    }
    text_add(out, "; %s", json_text_at(d, "scales.text"));
}

/* Returns the rows of a single world, with the total. */
static json_t *stage_rows(const json_t *world)
{
    json_t *rows = json_deep_copy(json_object_get(world, "stages"));

    if (rows != NULL)
        json_array_append_new(rows, json_deep_copy(json_object_get(world, "total")));
    return rows;
}

static void print_notes(FILE *file, const json_t *d)
{
    if (!is_sweep(d))
        fill_comment(file,
                     "{memory_bytes>0}memory of a rank: {memory_bytes%size}, of which the heap is "
                     "{heap_bytes%size}",
                     requested_world(d));
    for (struct json_walk row = {is_sweep(d) ? json_object_get(d, "worlds") : NULL};
         json_next(&row);)
        fill_comment(file, "{ranks%.0f} ranks: {why}", row.value);
    fill_comment(file, "measured here: {measured_text}", d);
    for (struct json_walk row = {json_object_get(d, "notes")}; json_next(&row);)
        text_comment(file, "%s", json_string_value(row.value));
    for (struct json_walk row = {json_object_get(d, "check")}; json_next(&row);)
        fill_comment(file,
                     "check: {name}: predicted {predicted_ns/1e3%.1f} us, measured "
                     "{measured_ns/1e3%.1f} us: {ratio%.2f}",
                     row.value);
    fill_comment(file, "error: {error.text}", d);
}

/* Returns a row for each world of a sweep, or for each stage of a single world that is possible. */
static json_t *table_rows(const json_t *d)
{
    return is_sweep(d) ? json_deep_copy(json_object_get(d, "worlds"))
                       : stage_rows(requested_world(d));
}

void predict_text(FILE *file, const json_t *d)
{
    text_auto head = {0}, answer = {0};
    json_auto_t *rows = table_rows(d);

    add_answer(&answer, d);
    add_head(&head, d);
    text_comment(file, "%s", answer.data);
    text_comment(file, "%s", head.data);
    if (rows != NULL)
        table_json_text(file, is_sweep(d) ? worlds : stages, rows);
    print_notes(file, d);
}

void predict_markdown(struct text *out, const json_t *d)
{
    text_auto answer = {0};
    json_auto_t *rows = table_rows(d);

    add_answer(&answer, d);
    text_add_markdown(out, answer.data);
    text_add(out, "\n\n");
    if (rows != NULL)
        table_json_add(out, TABLE_MARKDOWN, is_sweep(d) ? worlds : stages, rows);
    text_add(out, "\nerror: ");
    text_add_markdown(out, json_text_at(d, "error.text"));
    text_add(out, "\n");
}

void predict_csv(struct text *out, const json_t *d)
{
    json_auto_t *lines = json_array();

    for (struct json_walk world = {json_object_get(d, "worlds")}; json_next(&world);) {
        json_auto_t *rows = stage_rows(world.value);

        if (rows == NULL)
            json_array_append(lines, world.value);
        for (struct json_walk stage = {rows}; json_next(&stage);) {
            json_t *line = json_copy(world.value);

            json_object_set(line, "stage", stage.value);
            json_array_append_new(lines, line);
        }
    }
    table_json_add(out, TABLE_CSV, values, lines);
}

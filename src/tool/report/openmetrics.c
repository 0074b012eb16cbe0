/* OpenMetrics text: percentiles and rates of all stages. */
#include "report/openmetrics.h"

#include <math.h>

#include "base/memory.h"
#include "base/text.h"
#include "result/figures.h"
#include "report/results.h"

static void add_label(struct text *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\n')
            text_add(out, "\\n");
        else if (*text == '"' || *text == '\\')
            text_add(out, "\\%c", *text);
        else
            text_add_bytes(out, text, 1);
    }
}

/* Adds the labels of a run, which distinguish runs; unknown values are left out. */
static void add_labels(struct text *out, const struct results_run *run)
{
    const struct {
        const char *name, *value;
    } labels[] = {{"file", run->file},
                  {"run", run->label},
                  {"id", run->id},
                  {"algorithm", results_value(run, "algorithm", "name")},
                  {"transport", results_value(run, "transport", "name")},
                  {"host", run->machine.host}};

    for (size_t i = 0; i < sizeof(labels) / sizeof(labels[0]); i++) {
        text_add(out, "%s%s=\"", i > 0 ? "," : "", labels[i].name);
        add_label(out, labels[i].value != NULL ? labels[i].value : "");
        text_add(out, "\"");
    }
}

/* Families with a sample for each figure of this kind of each stage. */
static const struct family {
    const char *head, *name, *label;
    enum figure_kind kind;
    double unit; /* in units of JSON */
} stage_families[] = {
    {"# TYPE epa2a_stage_seconds summary\n# UNIT epa2a_stage_seconds seconds\n"
     "# HELP epa2a_stage_seconds Time of a stage on the slowest rank of each iteration.\n",
     "epa2a_stage_seconds", "quantile", FIGURE_NS, 1e9},
    {"# TYPE epa2a_stage_rate_bytes_per_second gauge\n"
     "# UNIT epa2a_stage_rate_bytes_per_second bytes_per_second\n"
     "# HELP epa2a_stage_rate_bytes_per_second Bytes of a stage over its median.\n",
     "epa2a_stage_rate_bytes_per_second", "rate", FIGURE_RATE, 1e-9},
};

/* Adds "NAME{LABELS,stage="total"" without the end of the braces. */
static void begin_sample(struct text *out, const char *name, const char *labels, const char *stage)
{
    text_add(out, "%s{%s,stage=\"", name, labels);
    add_label(out, stage);
    text_add(out, "\"");
}

static void add_stage(struct text *out, const struct family *family, const char *labels,
                      const struct run_stage *stage)
{
    const struct stats *ns = &stage->figures.ns;

    for (const struct figure *f = figures; f->path != NULL; f++) {
        double value = figure_value(f, &stage->figures) / family->unit;

        if (f->kind != family->kind || f->label == NULL || !isfinite(value))
            continue;
        begin_sample(out, family->name, labels, stage->name);
        text_add(out, ",%s=\"%s\"} %.9g\n", family->label, f->label, value);
    }
    if (family->kind != FIGURE_NS || ns->n == 0)
        return;
    begin_sample(out, "epa2a_stage_seconds_count", labels, stage->name);
    text_add(out, "} %.9g\n", (double)ns->n);
    begin_sample(out, "epa2a_stage_seconds_sum", labels, stage->name);
    text_add(out, "} %.9g\n", ns->mean * (double)ns->n / 1e9);
}

/* Adds a family with a value of each run. */
static void add_family(struct text *out, const char *name, const char *help,
                       const struct results *results, double (*value)(const struct run_figures *))
{
    text_add(out, "# TYPE %s gauge\n# HELP %s %s\n", name, name, help);
    for (uint32_t i = 0; i < results->n; i++) {
        text_add(out, "%s{", name);
        add_labels(out, &results->run[i]);
        text_add(out, "} %.9g\n", value(&results->run[i].figures));
    }
}

static double compared_of(const struct run_figures *f)
{
    return (double)f->verify.compared;
}

static double wrong_of(const struct run_figures *f)
{
    return (double)f->verify.wrong;
}

static double exit_code_of(const struct run_figures *f)
{
    return f->exit_code;
}

void export_openmetrics(struct text *out, const struct results *results)
{
    for (size_t f = 0; f < sizeof(stage_families) / sizeof(stage_families[0]); f++) {
        text_add(out, "%s", stage_families[f].head);
        for (uint32_t i = 0; i < results->n; i++) {
            text_auto labels = {0};

            add_labels(&labels, &results->run[i]);
            for (uint32_t k = 0; k < results->run[i].n_stages; k++)
                add_stage(out, &stage_families[f], labels.data, &results->run[i].stage[k]);
        }
    }
    add_family(out, "epa2a_verify_compared_elements", "Elements that were compared.", results,
               compared_of);
    add_family(out, "epa2a_verify_wrong_elements", "Elements that were wrong.", results, wrong_of);
    add_family(out, "epa2a_run_exit_code", "0: the run ended well.", results, exit_code_of);
    text_add(out, "# EOF\n");
}

/* OpenMetrics text: percentiles and rates of all stages. */
#include "report/openmetrics.h"

#include "base/memory.h"
#include "base/text.h"
#include "report/figures.h"
#include "report/fill.h"
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

/* Labels of a sample, which distinguish runs; unknown values are left out. */
#define RUN \
    "file=\"[{file}]\",run=\"[{label}]\",id=\"[{id}]\",algorithm=\"" \
    "[{experiment.algorithm.name}]\",transport=\"[{experiment.transport.name}]\",host=\"" \
    "[{machine.host}]\""
#define STAGE RUN ",stage=\"{stage.name}\""
/* Families with a sample for each figure of this kind of each stage. */
static const struct {
    const char *head;
    enum figure_kind kind;
    const char *form; /* of the label and the path of a figure */
} stage_families[] = {
    {"# TYPE epa2a_stage_seconds summary\n# UNIT epa2a_stage_seconds seconds\n"
     "# HELP epa2a_stage_seconds Time of a stage on the slowest rank of each iteration.\n",
     FIGURE_NS, "epa2a_stage_seconds{{" STAGE ",quantile=\"%s\"} {stage.%s/1e9%%.9g}\n"},
    {"# TYPE epa2a_stage_rate_bytes_per_second gauge\n"
     "# UNIT epa2a_stage_rate_bytes_per_second bytes_per_second\n"
     "# HELP epa2a_stage_rate_bytes_per_second Bytes of a stage over its median.\n",
     FIGURE_RATE,
     "epa2a_stage_rate_bytes_per_second{{" STAGE ",rate=\"%s\"} {stage.%s/1e-9%%.9g}\n"},
};
static const char counts[] =
    "{stage.ns.n>0}epa2a_stage_seconds_count{{" STAGE "} {stage.ns.n%.9g}\n";
static const char sums[] = "epa2a_stage_seconds_sum{{" STAGE "} {sum_ns/1e9%.9g}\n";

/* Families with a sample for each run. */
static const struct {
    const char *name, *path, *help;
} run_families[] = {
    {"epa2a_verify_compared_elements", "verify.compared", "Elements that were compared."},
    {"epa2a_verify_wrong_elements", "verify.wrong", "Elements that were wrong."},
    {"epa2a_run_exit_code", "exit_code", "0: the run ended well."},
};

/* Adds the samples of all stages of a result. */
static void add_stages(struct text *out, const json_t *result, enum figure_kind kind,
                       const char *form)
{
    json_auto_t *facts = json_copy((json_t *)result);

    for (struct json_walk stage = {json_object_get(result, "stages")}; json_next(&stage);) {
        json_object_set(facts, "stage", stage.value);
        json_object_set_new(facts, "sum_ns",
                            json_number(json_number_at(stage.value, "ns.mean") *
                                        json_number_at(stage.value, "ns.n")));
        for (const struct figure *f = figures; f->path != NULL; f++) {
            text_auto sample = {0};

            if (f->kind != kind || f->label == NULL)
                continue;
            text_add(&sample, form, f->label, f->path);
            fill_add(out, sample.data, facts, add_label);
        }
        if (kind == FIGURE_NS) {
            fill_add(out, counts, facts, add_label);
            fill_add(out, sums, facts, add_label);
        }
    }
}

void export_openmetrics(struct text *out, const json_t *results)
{
    for (size_t f = 0; f < sizeof(stage_families) / sizeof(stage_families[0]); f++) {
        text_add(out, "%s", stage_families[f].head);
        for (struct json_walk result = {results}; json_next(&result);)
            add_stages(out, result.value, stage_families[f].kind, stage_families[f].form);
    }
    for (size_t f = 0; f < sizeof(run_families) / sizeof(run_families[0]); f++) {
        const char *name = run_families[f].name;
        text_auto form = {0};

        text_add(out, "# TYPE %s gauge\n# HELP %s %s\n", name, name, run_families[f].help);
        text_add(&form, "%s{{" RUN "} {%s%%.9g}\n", name, run_families[f].path);
        for (struct json_walk result = {results}; json_next(&result);)
            fill_add(out, form.data, result.value, add_label);
    }
    text_add(out, "# EOF\n");
}

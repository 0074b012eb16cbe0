/* OpenMetrics text: percentiles and rates of all stages. */
#include "report/openmetrics.h"

#include "base/memory.h"
#include "base/text.h"
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
#define SECONDS(quantile, key) \
    "epa2a_stage_seconds{{" STAGE ",quantile=\"" quantile "\"} {stage.ns." key "/1e9%.9g}\n"
#define RATE(key) \
    "epa2a_stage_rate_bytes_per_second{{" STAGE ",rate=\"" key "\"} {stage.rate." key "/1e-9%.9g}\n"
#define FIGURE(name, path, help) \
    { \
        "# TYPE " name " gauge\n# HELP " name " " help "\n", false, \
        { \
            name "{{" RUN "} {" path "%.9g}\n" \
        } \
    }

static const struct {
    const char *head;
    bool stages; /* one sample for each stage of a run */
    const char *sample[9];
} families[] = {
    {"# TYPE epa2a_stage_seconds summary\n# UNIT epa2a_stage_seconds seconds\n"
     "# HELP epa2a_stage_seconds Time of a stage on the slowest rank of each iteration.\n",
     true,
     {SECONDS("0", "min"), SECONDS("0.5", "median"), SECONDS("0.95", "p95"), SECONDS("0.99", "p99"),
      SECONDS("0.999", "p999"), SECONDS("1", "max"),
      "{stage.ns.n>0}epa2a_stage_seconds_count{{" STAGE "} {stage.ns.n%.9g}\n",
      "epa2a_stage_seconds_sum{{" STAGE "} {sum_ns/1e9%.9g}\n"}},
    {"# TYPE epa2a_stage_rate_bytes_per_second gauge\n"
     "# UNIT epa2a_stage_rate_bytes_per_second bytes_per_second\n"
     "# HELP epa2a_stage_rate_bytes_per_second Bytes of a stage over its median.\n",
     true,
     {RATE("goodput"), RATE("wire"), RATE("bottleneck")}},
    FIGURE("epa2a_verify_compared_elements", "verify.compared", "Elements that were compared."),
    FIGURE("epa2a_verify_wrong_elements", "verify.wrong", "Elements that were wrong."),
    FIGURE("epa2a_run_exit_code", "exit_code", "0: the run ended well."),
};

void export_openmetrics(struct text *out, const json_t *results)
{
    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
        text_add(out, "%s", families[f].head);
        for (struct json_walk result = {results}; json_next(&result);) {
            json_auto_t *facts = json_copy(result.value);
            json_auto_t *once = json_pack("[{}]");

            for (struct json_walk stage = {families[f].stages ? json_object_get(facts, "stages")
                                                              : once};
                 json_next(&stage);) {
                json_object_set(facts, "stage", stage.value);
                json_object_set_new(facts, "sum_ns",
                                    json_number(json_number_at(stage.value, "ns.mean") *
                                                json_number_at(stage.value, "ns.n")));
                for (const char *const *form = families[f].sample; *form != NULL; form++)
                    fill_add(out, *form, facts, add_label);
            }
        }
    }
    text_add(out, "# EOF\n");
}

/* Fuzzes files of other programs with arbitrary bytes: routing and hidden states, traces,
 * results. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "fuzz.h"
#include "op/moe/routing.h"
#include "op/moe/routing_file.h"
#include "report/best_json.h"
#include "result/figures.h"
#include "report/results_json.h"
#include "report/results_names.h"
#include "trace/trace.h"
#include "trace/read.h"
#include "trace/summary.h"

/* ---- routing in JSON lines; routing and hidden states in .npy ---- */

static const struct routing_shape fuzz_shapes[] = {
    {.topk = 2, .experts = 8, .layer = UINT32_MAX},
    {.topk = 2, .experts = 8, .layer = 1},
};

/* The input is refused with a message that begins with the file name, or its rows are valid. */
static void fuzz_tables(bool npy, const uint8_t *data, size_t bytes)
{
    for (size_t s = 0; s < sizeof(fuzz_shapes) / sizeof(*fuzz_shapes); s++) {
        const struct routing_shape *shape = &fuzz_shapes[s];
        struct epa_error err = {EPA_OK, ""};
        struct routing_table t;
        enum epa_status status =
            npy ? routing_parse_npy("f", data, bytes, shape, &t, &err)
                : routing_parse_jsonl("f", (const char *)data, bytes, shape, &t, &err);
        uint32_t topk = shape->topk;

        if (status != EPA_OK) {
            demand(err.status == status && err.text[0] == 'f' && err.text[1] == ':');
            continue;
        }
        demand(t.tokens != 0);
        for (uint64_t i = 0; i < t.tokens * topk; i++) {
            demand(t.expert[i] >= -1 && t.expert[i] < (int32_t)shape->experts);
            demand(t.weight[i] >= 0 && t.weight[i] <= 1e6f);
            for (uint64_t j = i - i % topk; j < i && t.expert[i] >= 0; j++)
                demand(t.expert[j] != t.expert[i]);
        }
        free(t.expert);
        free(t.weight);
    }
}

void fuzz_jsonl(const uint8_t *data, size_t bytes)
{
    fuzz_tables(false, data, bytes);
}

static void hidden(const unsigned char *data, size_t bytes, bool f16)
{
    const struct routing_shape shape = {.hidden = 4, .f16 = f16};
    struct epa_error err = {EPA_OK, ""};
    struct hidden_table t;

    if (hidden_parse_npy("f", data, bytes, &shape, &t, &err) != EPA_OK) {
        demand(err.text[0] == 'f' && err.text[1] == ':');
        return;
    }
    demand(t.tokens != 0);
    for (uint64_t i = 0; i < t.tokens * 4; i++)
        demand((t.x[i] & 0x7fff) < (f16 ? 0x7c00 : 0x7f80));
    free(t.x);
}

void fuzz_npy(const uint8_t *data, size_t bytes)
{
    fuzz_tables(true, data, bytes);
    hidden(data, bytes, false);
    hidden(data, bytes, true);
}

/* ---- a trace is read, summarised and merged with itself ---- */

static void use_trace(struct trace_file *f)
{
    struct trace_file twice[2] = {*f, *f};
    struct epa_error err = {EPA_OK, ""};
    struct text out = {0};

    for (size_t i = 0; i < f->n; i++)
        demand(f->item[i].name != NULL && f->item[i].cat != NULL && f->item[i].id != NULL &&
               (i == 0 || f->item[i].ts_ns >= f->item[i - 1].ts_ns));
    trace_summary(f, &out);
    (void)trace_merge(f, 1, NULL, &out, &err);
    (void)trace_merge(twice, 2, NULL, &out, &err);
    text_free(&out);
}

void fuzz_trace(const uint8_t *data, size_t bytes)
{
    struct epa_error err = {EPA_OK, ""};
    struct trace_file f;

    if (trace_read(fuzz_file(data, bytes), &f, &err) == EPA_OK)
        use_trace(&f);
    trace_free(&f);
}

/* ---- result files and all their uses: bytes up to a 0 are the first file, the rest is a second
 * one for comparisons. Input that does not begin with { is output of another program and is
 * imported. Accepted files are drawn, ranked and compared; the number of bytes selects the chart.
 * ---- */

static void look_at_results(const struct results *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const struct results_run *run = &r->run[i], *other = &r->run[(i + 1) % r->n];
        const struct run_stage *total = results_total(run);
        struct results_question question;
        struct text text = {0};
        char what[100];

        demand(results_label_bytes(run->label) <= strlen(run->label));
        for (uint64_t s = 0; total != NULL && s < total->n; s++)
            demand(total->sample[s] > 0);
        demand(run->size >= 0 && run->operation != NULL);
        for (enum results_part part = RESULTS_SHAPE; part <= RESULTS_MACHINE; part++)
            if (results_differ(run, other, part, what, sizeof(what)))
                demand(strnlen(what, sizeof(what)) < sizeof(what));
        results_ask(run, NULL, 0, r->arena, &question);
        demand(results_same_question(&question, &question));
        keys_add_nested(&text, run->key, run->n_keys, 0);
        text_free(&text);
    }
}

static void name_all(const struct results *r)
{
    struct results_names names = {0};

    for (uint32_t i = 0; i < r->n; i++)
        results_names_add(&names, &r->run[i]);
    for (uint32_t i = 0; i < r->n; i++) {
        struct text text = {0};

        results_name(&names, &r->run[i], &text);
        text_free(&text);
    }
    results_names_free(&names);
}

static void rank_results(struct results *r, size_t turn)
{
    struct epa_error err = {EPA_OK, ""};
    const char *const across[] = {"unknown"};
    struct best_wish wish = {.close = 0.01, .across = across, .n_across = r->n % 2};
    const char *name = turn % 2 == 0 ? NULL : figure_name(&figures[turn / 2 % figures_count()]);
    struct text text = {0};
    struct best *best;
    FILE *file;

    if (figure_select(name, &wish.figure, &err) != EPA_OK ||
        best_create(r, &wish, &best, &err) != EPA_OK)
        return;
    file = fopen("/dev/null", "we");
    if (file != NULL) {
        best_text(file, best);
        fclose(file);
    }
    best_markdown(&text, best);
    json_decref(best_json(best));
    text_free(&text);
    best_destroy(best);
}

void fuzz_results(const uint8_t *data, size_t bytes)
{
    const uint8_t *end = memchr(data, 0, bytes);
    size_t first = end != NULL ? (size_t)(end - data) : bytes;
    size_t second = end != NULL ? bytes - first - 1 : 0;
    struct results r = {0};
    bool good = true;

    for (uint32_t i = 0; i < 2 && (i == 0 || end != NULL); i++) {
        struct epa_error err = {EPA_OK, ""};
        const char *path = fuzz_file(i == 0 ? data : end + 1, i == 0 ? first : second);

        good = good && results_read(path, &r, &err) == EPA_OK;
        r.path = "file";
        for (uint32_t k = 0; k < r.n; k++)
            r.run[k].path = "file";
    }
    if (good) {
        look_at_results(&r);
        name_all(&r);
        rank_results(&r, bytes);
    }
    results_free(&r);
}

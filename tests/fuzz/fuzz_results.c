/* Any bytes as a file of results, and all that is done with one: the bytes up to a 0 are the
 * first file, the rest is a second one, so that two are compared. What begins with no { is what
 * another program printed, and is imported. What is accepted is drawn, ranked and compared; charts
 * are made in turn, by the number of bytes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "report/best.h"
#include "report/import.h"
#include "report/plot.h"
#include "report/results.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

static void look_at(const struct results *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const struct results_run *run = &r->run[i], *other = &r->run[(i + 1) % r->n];
        const struct results_stage *total = results_total(run);
        struct text text = {0};
        char what[100];

        demand(results_label_bytes(run->label) <= strlen(run->label));
        for (uint64_t s = 0; total != NULL && s < total->n; s++)
            demand(total->sample[s] > 0);
        demand(run->size >= 0 && run->operation != NULL);
        for (enum results_part part = RESULTS_SHAPE; part <= RESULTS_MACHINE; part++)
            if (results_differ(run, other, part, what, sizeof(what)))
                demand(strnlen(what, sizeof(what)) < sizeof(what));
        results_question(run, NULL, 0, &text);
        results_context(run, &text);
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

static void draw(struct results *r, size_t turn)
{
    const struct plot_wish wish = {.kind = (enum plot_kind)(turn % (PLOT_STAGES + 1)),
                                   .form = (enum plot_form)(turn / 8 % (PLOT_PNG + 1))};
    struct epa_error err = {EPA_OK, ""};
    struct text text = {0};

    demand(plot_script(r, &wish, &text, &err) == err.status);
    text_free(&text);
}

static void rank(struct results *r)
{
    struct epa_error err = {EPA_OK, ""};
    const char *const across[] = {"unknown"};
    struct best_wish wish = {.close = 0.01, .across = across, .n_across = r->n % 2};
    struct text text = {0};
    struct best *best;
    FILE *file;

    if (best_create(r, &wish, &best, &err) != EPA_OK)
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

static bool import(const uint8_t *data, size_t bytes, struct results *r)
{
    static const char *const set[] = {"moe.hidden=7168"};
    struct epa_error err = {EPA_OK, ""};
    struct text text = {0};
    json_t *results = json_array();
    bool good;

    text_add_bytes(&text, (const char *)data, bytes);
    text_add(&text, "%s", "");
    good = import_text("file", text.data, set, bytes % 2, results, &err) == EPA_OK;
    demand(good == (json_array_size(results) > 0) && good == (err.text[0] == '\0'));
    text_free(&text);
    return results_of(
               "file",
               json_pack("{s:i, s:s, s:o}", "schema", 1, "program", "epa2a", "results", results), r,
               &err) == EPA_OK &&
           good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *end = memchr(data, 0, bytes);
    size_t first = end != NULL ? (size_t)(end - data) : bytes;
    size_t second = end != NULL ? bytes - first - 1 : 0;
    struct results r = {0};
    bool good = true;

    if (bytes > 0 && *data != '{') {
        good = import(data, first, &r);
        end = NULL;
    }
    for (uint32_t i = 0; i < 2 && (i == 0 || end != NULL) && r.root == NULL; i++) {
        struct epa_error err = {EPA_OK, ""};
        int fd = memfd_create("results", MFD_CLOEXEC);
        char path[32];

        demand(fd >= 0);
        demand(write(fd, i == 0 ? data : end + 1, i == 0 ? first : second) >= 0);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        good = good && results_read(path, &r, &err) == EPA_OK;
        r.path = "file";
        for (uint32_t k = 0; k < r.n; k++)
            r.run[k].path = "file";
        close(fd);
    }
    if (good) {
        look_at(&r);
        name_all(&r);
        draw(&r, bytes);
        rank(&r);
    }
    results_free(&r);
    return 0;
}

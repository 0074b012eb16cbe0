/* `epa2a tune` over several tasks, such as models x tokens: one table, one document and one file
 * with a run for each task. The tasks are searched one after the other. */
#include "cli/tune_tasks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cli/tune.h"
#include "cli/tune_json.h"
#include "cli/tune_report.h"
#include "report/table.h"
#include "report/lines.h"
#include "report/summary.h"

const char *tune_task_name(struct arena *arena, const char *label, size_t bytes)
{
    static const char *const means[] = {"algorithm", "transport", "backend", "launcher"};
    text_auto out = {0};
    size_t end;

    for (size_t at = 0; at < bytes; at = end + 1) {
        bool plugin = false;
        int depth = 0;

        for (end = at; end < bytes && (label[end] != ' ' || depth > 0); end++)
            depth +=
                (label[end] == '{' || label[end] == '[') - (label[end] == '}' || label[end] == ']');
        for (size_t i = 0; i < sizeof(means) / sizeof(means[0]); i++) {
            size_t n = strlen(means[i]);

            plugin = plugin || (end - at > n && strncmp(label + at, means[i], n) == 0 &&
                                (label[at + n] == '=' || label[at + n] == '.'));
        }
        if (!plugin)
            text_add(&out, "%s%.*s", out.bytes > 0 ? " " : "", (int)(end - at), label + at);
    }
    return out.bytes > 0 ? arena_strndup(arena, out.data, out.bytes)
                         : arena_strndup(arena, label, bytes);
}

void tune_tasks_add(struct tune_tasks *all, const struct tune *t, const char *task,
                    const struct text *yaml, const char *failed)
{
    struct tune_searched *row = &all->row[all->n++];
    text_auto verdict = {0};

    *row = (struct tune_searched){task, t, failed, NAN, NAN};
    all->spent_ns += t->spent_ns;
    all->turns += t->turns;
    all->settings += t->n;
    if (failed == NULL) {
        row->file_ns = t->rounds > 0 ? t->last.a : tune_median(t->setting[0]);
        row->best_ns = t->is_better ? t->last.b : row->file_ns;
        tune_verdict(t, &verdict);
    }
    if (yaml->bytes == 0)
        return;
    all->finished++;
    text_add(&all->runs, "  # %s\n  ", text_clean(verdict.data));
    tune_json_name(task, &all->runs);
    text_add(&all->runs, ":\n");
    for (const char *line = yaml->data, *end; *line != '\0'; line = end + 1) {
        end = strchr(line, '\n');
        if (strncmp(line, "version: ", 9) != 0) /* the file has it at the top */
            text_add(&all->runs, "    %.*s\n", (int)(end - line), line);
    }
}

static void add_task_summary(const struct tune_tasks *all, struct text *out)
{
    text_add(out, "%u tasks, %u settings in %u turns, %.1f s of %.1f s", all->n, all->settings,
             all->turns, (double)all->spent_ns / 1e9, (double)all->budget_ns / 1e9);
}

/* Returns the best settings of a task, or the reason why they are unknown. */
static const char *describe_best(const struct tune_searched *one)
{
    if (one->failed != NULL)
        return one->failed;
    if (one->search->is_better)
        return one->search->best->name;
    return isnan(one->file_ns) ? "no turn: a larger --budget is needed" : "the file's settings";
}

void tune_tasks_print(FILE *file, const struct tune_tasks *all, const char *from)
{
    enum { TASK_COLUMNS = 5 };
    static const struct table_column columns[] = {{"task", "run", .width = 0},
                                                  {"file_ns", "file", "us", 1e3, 2, 10},
                                                  {"best_ns", "best", "us", 1e3, 2, 10},
                                                  {"ratio", "ratio", NULL, 0, 3, 7},
                                                  {"best", "", .width = 0},
                                                  {0}};
    struct table_cell(*cell)[TASK_COLUMNS] = memory_alloc(all->n, sizeof(*cell));
    struct table_row *row = memory_alloc(all->n, sizeof(*row));
    text_auto head = {0};

    for (uint32_t i = 0; i < all->n; i++) {
        const struct tune_searched *one = &all->row[i];

        cell[i][0].text = one->task;
        cell[i][1].number = round(one->file_ns);
        cell[i][2].number = round(one->best_ns);
        cell[i][3].number = one->best_ns / one->file_ns;
        cell[i][4].text = describe_best(one);
        row[i].cell = cell[i];
    }
    add_task_summary(all, &head);
    text_comment(file, "epa2a tune: %s: %s", from, head.data);
    text_comment(file, "file: the file's settings; best: the fastest settings, confirmed in turns");
    table_text(file, columns, row, all->n);
    free(row);
    free(cell);
}

void tune_tasks_yaml(const struct tune_tasks *all, const struct machine_facts *machine,
                     const char *from, struct text *out)
{
    text_auto head = {0};

    add_task_summary(all, &head);
    tune_origin("Tuned", machine, from, head.data, out);
    if (all->finished < all->tasks)
        text_add(out, "# %u of %u tasks: the search of the others failed or was interrupted\n",
                 all->finished, all->tasks);
    text_add(out, "version: 1\nruns:\n%s", all->runs.data);
}

/* `epa2a import FILE...`: results from the output of other programs. */
#include "cli/cmd_import.h"

#include <stdio.h>

#include "base/exit_code.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "report/table_json.h"
#include "report/lines.h"
#include "report/import.h"
#include "report/results.h"
#include "report/summary_json.h"

static void print_imported(const json_t *results)
{
    static const struct table_column columns[] = {{"name", "run", .width = 0},
                                                  {"size", "size", NULL, 0, 0, 11},
                                                  {"dispatch", "dispatch", "us", 1e3, 2, 10},
                                                  {"combine", "combine", "us", 1e3, 2, 10},
                                                  {"total", "total", "us", 1e3, 2, 10},
                                                  {"at", "", .width = 0},
                                                  {0}};
    json_auto_t *rows = json_array();

    for (struct json_walk run = {results}; json_next(&run);) {
        double bytes = json_number_at(run.value, "experiment.collective.bytes");
        double size = bytes > 0 ? bytes : json_number_at(run.value, "experiment.moe.max_tokens");
        json_t *row = json_object_of("name", json_text(json_text_at(run.value, "label")), "size",
                                     json_number(size), "at",
                                     json_sprintf("%s:%.0f", json_text_at(run.value, "file"),
                                                  json_number_at(run.value, "source.line")),
                                     NULL);

        for (struct json_walk stage = {json_object_get(run.value, "stages")}; json_next(&stage);)
            json_object_set_new(row, json_text_at(stage.value, "name"),
                                json_number(json_number_at(stage.value, "samples_ns.0")));
        json_array_append_new(rows, row);
    }
    text_comment(stdout, "epa2a import: %zu results; size: bytes, or tokens of a rank",
                 json_array_size(results));
    table_json_text(stdout, columns, rows);
}

int cmd_import(const struct cli *cli)
{
    json_auto_t *results = json_array();
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < cli->n_args && status == EPA_OK; i++) {
        text_auto text = {0}, unread = {0};

        status = file_read_text(cli->arg[i], FILE_MOST, &text, &err);
        text_add(&text, "%s", ""); /* makes text.data a string if the file is empty */
        if (status == EPA_OK)
            status =
                import_text(cli->arg[i], text.data, cli->set, cli->n_sets, results, &unread, &err);
        if (unread.bytes > 0)
            text_warn("%s", unread.data);
    }
    if (status == EPA_OK && !cli_has_stdout(cli))
        print_imported(results);
    if (status == EPA_OK)
        status = cli_write_json(cli, report_document(json_incref(results), NULL), &err);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}

/* The ending of a chart's file selects its form. "-" is text on standard output. */
#include "cli/chart_file.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "cli/python_command.h"

enum epa_status chart_file_check(const char *path, struct epa_error *err)
{
    static const char *const endings[] = {".svg", ".png", ".pdf", ".txt"};
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
        if (dot != NULL && dot > slash && strcasecmp(dot, endings[i]) == 0)
            return EPA_OK;
    if (strcmp(path, "-") == 0)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_CONFIG,
                    "--out %s: a chart ends in .svg, .png, .pdf or .txt, or is - for standard "
                    "output",
                    path);
}

enum epa_status chart_file_prepare(const char *path, struct epa_error *err)
{
    struct python_words words = {0};
    text_auto input = {0}, out = {0};

    python_add(&words, "plot");
    python_add(&words, "--check");
    python_add_value(&words, "--out", path);
    return python_call(&words, &input, &out, err);
}

enum epa_status chart_file_write(const struct cli *cli, const struct text *document,
                                 struct epa_error *err)
{
    struct python_words words = {0};
    text_auto out = {0};
    enum epa_status status;

    python_add(&words, "plot");
    python_add_common(&words, cli);
    python_add_value(&words, "--out", cli->out);
    if (file_is_stdout(cli->out))
        python_add_number(&words, "--columns", terminal_columns());
    python_add(&words, "-"); /* standard input */
    status = python_call(&words, document, &out, err);
    if (status == EPA_OK && out.bytes > 0)
        status = file_write("--out", "-", cli->force, &out, err);
    return status;
}

/* `epa2a list configs`: installed configurations by name, each with the first sentence of the
 * comment at the top of its file. */
#include "cli/list_configs.h"

#include <limits.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/file.h"
#include "base/fold.h"
#include "base/memory.h"
#include "base/program_data.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/config_name.h"
#include "cli/documents.h"
#include "cli/list_json.h"

enum { FILE_BYTES = 1 << 20, NAME_COLUMNS = 24 };

/* Adds the first sentence of the comment lines at the start of `text`. */
static void add_first_sentence(const char *text, struct text *out)
{
    while (*text == '#') {
        size_t bytes = strcspn(text, "\n");
        const char *line = text + strspn(text, "# ");
        const char *end = strstr(line, ". ");

        if (end != NULL && end < text + bytes)
            bytes = (size_t)(end + 1 - text);
        text_add(out, "%s%.*s", out->bytes > 0 ? " " : "", (int)(text + bytes - line), line);
        if (out->bytes > 0 && out->data[out->bytes - 1] == '.')
            return;
        text += bytes + (text[bytes] == '\n');
    }
}

static void read_config(struct arena *arena, const char *name, struct listed_config *out)
{
    char file[PATH_MAX], path[PATH_MAX];
    struct epa_error ignored = {EPA_OK, ""};
    text_auto text = {0}, about = {0};

    *out = (struct listed_config){.name = name, .about = ""};
    snprintf(file, sizeof(file), "configs/%s.yaml", name);
    if (!program_data_find(file, path, sizeof(path)) ||
        file_read(path, FILE_BYTES, &text, &ignored) != EPA_OK)
        return;
    add_first_sentence(text.data != NULL ? text.data : "", &about);
    out->file = arena_printf(arena, "%s", path);
    if (about.bytes > 0)
        out->about = arena_strndup(arena, about.data, about.bytes);
}

int list_configs(const struct cli *cli)
{
    struct arena *arena = arena_create();
    struct epa_error err = {EPA_OK, ""};
    text_auto table = {0};
    const char **names;
    uint32_t n = config_names(arena, &names);
    struct listed_config *configs = arena_alloc(arena, n * sizeof(*configs));
    int code = EXIT_OK;

    for (uint32_t i = 0; i < n; i++) {
        read_config(arena, names[i], &configs[i]);
        text_add(&table, "  %-*s  %s\n", NAME_COLUMNS, names[i], configs[i].about);
    }
    if (n > 0 && !cli_has_stdout(cli))
        fold_print(stdout, table.data, FOLD_LINES);
    if (n == 0) {
        fprintf(stderr, "epa2a: no configurations: the folder configs of the installation is "
                        "missing or empty\n");
        code = EXIT_RESOURCE;
    }
    if (cli_write_json(cli, list_configs_json(configs, n), &err) != EPA_OK)
        code = cli_fail(&err);
    arena_destroy(arena);
    return code;
}

/* `epa2a --version`: the version of the program, its build and its formats. */
#include "cli/cmd_version.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <epa2a/plugin.h>

#include "base/exit_code.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "config/experiment.h"
#include "registry/registry.h"
#include "report/origin_json.h"
#include "report/result_parts.h"

/* Converts EPA2A_WITH ("hwloc ucx ...") to an object of booleans. */
static json_t *features_json(void)
{
    static const char *const name[] = {"cuda", "hwloc", "mpi", "ucx", "verbs"};
    json_t *o = json_object();

    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
        const char *at = strstr(EPA2A_WITH, name[i]);

        json_object_set_new(o, name[i], json_boolean(at != NULL));
    }
    return o;
}

static json_t *version_json(void)
{
    struct build_facts build = build_facts();
    json_t *out = build_json(&build);
    char folder[PATH_MAX];

    registry_installed_folder(folder, sizeof(folder));
    json_object_del(out, "isa_refused");
    json_object_set_new(out, "program", json_text("epa2a"));
    json_object_set_new(out, "experiment_version", json_integer(EXPERIMENT_VERSION));
    json_object_set_new(out, "result_schema", json_integer(RESULT_SCHEMA));
    json_object_set_new(out, "plugin_folder", json_text(folder));
    json_object_set_new(out, "with", features_json());
    return out;
}

int cmd_version(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};

    if (cli->json == NULL) {
        printf("epa2a %s (plugin ABI %u)\n", EPA2A_RELEASE, EPA_ABI);
        return EXIT_OK;
    }
    return cli_write_json(cli, version_json(), &err) == EPA_OK ? EXIT_OK : cli_fail(&err);
}

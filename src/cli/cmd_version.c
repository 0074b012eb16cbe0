/* epa2a --version: the version; with --json all that says which program this is. */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <epa2a/plugin.h>

#include "base/text.h"
#include "cli/cli.h"
#include "config/experiment.h"
#include "plugin/registry.h"
#include "report/facts.h"
#include "report/report.h"
#include "base/file.h"

/* "hwloc ucx ..." as the build has it, to an object of yes and no. */
static json_t *with(void)
{
    static const char *const name[] = {"cuda", "hwloc", "mpi", "ucx", "verbs"};
    json_t *o = json_object();

    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
        const char *at = strstr(EPA2A_WITH, name[i]);

        json_object_set_new(o, name[i], json_boolean(at != NULL));
    }
    return o;
}

static enum epa_status write_json(const struct cli *cli, struct epa_error *err)
{
    struct facts f;
    json_t *o;
    struct text out = {0};
    char *dump, folder[PATH_MAX];
    enum epa_status status;

    facts_collect(&f);
    registry_installed_folder(folder, sizeof(folder));
    o = json_pack("{ss ss so si si si ss ss ss ss sb ss ss so}", "program", "epa2a", "version",
                  EPA2A_VERSION, "git", f.git[0] == '\0' ? json_null() : json_string(f.git),
                  "plugin_abi", EPA_ABI, "experiment_version", EXPERIMENT_VERSION, "result_schema",
                  REPORT_SCHEMA, "compiler", f.compiler, "libc", f.libc, "type", f.build_type,
                  "sanitizers", f.sanitizers, "debug", f.debug_build, "isa", f.isa, "plugin_folder",
                  folder, "with", with());
    dump = json_dumps(o, JSON_INDENT(1));
    json_decref(o);
    facts_finish(&f);
    if (dump == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the version as JSON");
    text_add(&out, "%s\n", dump);
    free(dump);
    status = file_write("--json", cli->json, cli->force, &out, err);
    text_free(&out);
    return status;
}

int cmd_version(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};

    if (cli->json == NULL) {
        printf("epa2a %s (plugin ABI %u)\n", EPA2A_VERSION, EPA_ABI);
        return EXIT_OK;
    }
    if (file_check("--json", cli->json, cli->force, &err) == EPA_OK &&
        write_json(cli, &err) == EPA_OK)
        return EXIT_OK;
    fprintf(stderr, "epa2a: %s\n", err.text);
    return exit_code(err.status, 0);
}

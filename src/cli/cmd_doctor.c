/* `epa2a doctor`: what is told goes to standard output, as a table or, with --json -, as JSON.
 * It ends well where ranks of this host can talk, whatever else is missing. */
#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "doctor/doctor.h"
#include "base/file.h"

static enum epa_status write_json(const struct cli *cli, const struct doctor *d,
                                  struct epa_error *err)
{
    struct text text = {0};
    enum epa_status status = doctor_json(d, &text, err);

    if (status == EPA_OK)
        status = file_write("--json", cli->json, cli->force, &text, err);
    text_free(&text);
    return status;
}

static int fail(const struct epa_error *err)
{
    fprintf(stderr, "epa2a: %s\n", err->text);
    return exit_code(err->status, SIGINT);
}

int cmd_doctor(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};
    const struct doctor_plugin *shm;
    struct doctor *d;
    enum epa_status status = EPA_OK;
    int code;

    if (cli->json != NULL)
        status = file_check("--json", cli->json, cli->force, &err);
    if (status == EPA_OK)
        status = doctor_examine(cli->plugin_path, cli->quick, &d, &err);
    if (status != EPA_OK)
        return fail(&err);
    if (cli->json == NULL || strcmp(cli->json, "-") != 0)
        doctor_print(stdout, d);
    if (cli->json != NULL)
        status = write_json(cli, d, &err);
    shm = doctor_plugin(d, EPA_PLUGIN_TRANSPORT, "shm");
    if (status == EPA_OK && d->shm != EPA_OK)
        (void)epa_fail(&err, d->shm, "transport shm cannot be used: %s",
                       shm != NULL           ? shm->text
                       : d->empty[0] != '\0' ? d->empty
                                             : "there is no such plugin");
    code = err.status != EPA_OK ? fail(&err) : EXIT_OK;
    doctor_destroy(d);
    return code;
}

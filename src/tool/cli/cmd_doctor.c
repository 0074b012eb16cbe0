/* `epa2a doctor`: hardware, usable plugins and link peak of this machine. */
#include "cli/cmd_doctor.h"

#include <stdio.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "doctor/doctor.h"
#include "doctor/doctor_json.h"

/* Succeeds if the transport shm works, whatever else is missing. */
int cmd_doctor(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""}, shm = {EPA_OK, ""};
    struct arena *arena = arena_create();
    struct doctor doctor;
    enum epa_status status =
        doctor_examine(cli->plugin_path, cli->doctor.quick, arena, &doctor, &shm, &err);

    if (status == EPA_OK && !cli_has_stdout(cli))
        doctor_print(stdout, &doctor);
    if (status == EPA_OK)
        status = cli_write_json(cli, doctor_json(&doctor), &err);
    arena_destroy(arena);
    if (status == EPA_OK && shm.status != EPA_OK)
        (void)epa_fail(&err, shm.status, "transport shm cannot be used: %s", shm.text);
    return err.status != EPA_OK ? cli_fail(&err) : EXIT_OK;
}

/* `epa2a routing stats FILE`: describes a captured routing. */
#include "cli/cmd_routing.h"

#include <stdio.h>

#include "base/exit_code.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "op/moe/routing_log_json.h"

int cmd_routing(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};
    text_auto out = {0};
    struct routing_log *log = NULL;
    enum epa_status status =
        routing_log_read(cli->arg[1], cli->routing.layer, cli->routing.experts, &log, &err);

    if (status == EPA_OK && !cli_has_stdout(cli)) {
        routing_log_describe(log, &out);
        fputs(out.data, stdout);
    }
    if (status == EPA_OK)
        status = cli_write_json(cli, routing_log_json(log), &err);
    routing_log_destroy(log);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}

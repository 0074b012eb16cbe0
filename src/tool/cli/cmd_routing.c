/* `epa2a routing stats FILE`: describes a captured routing. */
#include "cli/cmd_routing.h"

#include <stdio.h>

#include "base/exit_code.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "op/moe/routing_log.h"

int cmd_routing(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};
    text_auto out = {0};
    json_t *json = NULL;
    enum epa_status status = op_describe_routing(cli->arg[1], cli->routing.layer,
                                                 cli->routing.experts, &out, &json, &err);

    if (status == EPA_OK && !cli_has_stdout(cli))
        fputs(out.data, stdout);
    if (status == EPA_OK)
        status = cli_write_json(cli, json, &err);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}

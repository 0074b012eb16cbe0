/* Prints errors with the remedy for a limit of the process. */
#include "cli/cli_fail.h"

#include <signal.h>

#include "base/exit_code.h"
#include "base/text.h"

static void print_error(const char *before, struct epa_error err)
{
    error_add_remedy(&err);
    fprintf(stderr, "%s%s\n", before, err.text);
}

void cli_report_error(const struct epa_error *err)
{
    print_error("epa2a: error: ", *err);
}

int cli_fail(const struct epa_error *err)
{
    print_error("epa2a: ", *err);
    return exit_code(err->status, SIGINT);
}

/* Prints the error of a command. */
#include "cli/cli_fail.h"

#include <signal.h>

#include "base/exit_code.h"
#include "base/text.h"

int cli_fail(const struct epa_error *err)
{
    fprintf(stderr, "epa2a: %s%s\n", err->text, text_remedy(err->text));
    return exit_code(err->status, SIGINT);
}

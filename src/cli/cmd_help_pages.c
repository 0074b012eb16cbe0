/* Prose: what the three bandwidths are and what the exit codes mean. */
#include "cli/cmd_help_pages.h"

#include <stddef.h>

static const char bandwidth[] =
    "Bandwidths. Each is bytes of one iteration (the mean, where iterations differ),\n"
    "divided by the median time of the stage; a sample is one iteration of the slowest\n"
    "rank. 1 GB/s is 1e9 bytes a second.\n"
    "\n"
    "  goodput = mean over ranks of N(r) / time\n"
    "      N(r): token bytes that rank r needed moved. Each choice of an expert that was\n"
    "      not dropped counts once, those that stay on the rank too:\n"
    "          N(r) = choices(r) * bytes of one token as it is sent\n"
    "      No scales, padding, counts or flags are in it. It does not depend on how\n"
    "      clever the algorithm is, so it compares algorithms that send tokens of one\n"
    "      type.\n"
    "\n"
    "  wire = mean over ranks of W(r) / time\n"
    "      W(r): all bytes that leave rank r for other ranks: whole messages with\n"
    "      metadata, scales and padding, then counts, indices and flags. What stays on\n"
    "      the rank is not in it. A token sent once to a rank for several of its experts\n"
    "      counts once.\n"
    "\n"
    "  bus = max over ranks of max(W(r), R(r)) / time\n"
    "      R(r): all bytes that come to rank r from other ranks. The largest of all\n"
    "      ranks' outgoing or incoming bytes: what the busiest link had to carry.\n"
    "      Compare this one with the limit of the hardware.\n"
    "\n"
    "Example: 8 ranks, 128 tokens each, top-8, 256 experts, hidden 7168, FP8: 1024\n"
    "choices a rank make N(r) = 1024 * 7168 bytes = 7.34 MB; in 50 us that is 146.8 GB/s\n"
    "of goodput. With uniform routing 7/8 of the choices leave the rank, so that wire is\n"
    "near 7/8 of it, and more for scales and metadata.\n";

static const char exit_codes[] =
    "Exit codes.\n"
    "    0  all is well\n"
    "    1  the data is wrong\n"
    "    2  the command line or a configuration cannot be\n"
    "    3  a resource is missing: memory, a plugin's library, a file that cannot be made\n"
    "    4  timeout: a rank waited longer than the experiment allows\n"
    "    5  a rank died\n"
    "    6  an internal error: please report it\n"
    "  130  stopped by SIGINT; results so far were written\n"
    "  143  stopped by SIGTERM; results so far were written\n"
    "With several files the first code that is not 0 counts.\n";

const struct help_page help_pages[] = {
    {"bandwidth", bandwidth},
    {"exit-codes", exit_codes},
    {0},
};

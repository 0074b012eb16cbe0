/* Prose: what the three bandwidths are, how GPUs are timed, what the exit codes mean. */
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
    "near 7/8 of it, and more for scales and metadata.\n"
    "\n"
    "  limit = (max over ranks of max(A(r), B(r))) / rate + latency\n"
    "      The least time that any algorithm could take on these links, where the transport\n"
    "      measures them before the benchmark: rate is bytes a rank sends while every rank\n"
    "      sends to all others, latency that of one signal. A(r) is the fewest bytes that\n"
    "      must leave rank r: each token once to each other rank that wants it, as many\n"
    "      bytes as it and its scales have on the wire, and nothing else; B(r) those that\n"
    "      must come. The total has the sum of both stages' limits. `of limit` is the limit\n"
    "      divided by the median. The rate is measured in the same run, and as uncertain.\n";

static const char clocks[] =
    "How `epa2a bench` takes times (bench.clock).\n"
    "\n"
    "  host, events\n"
    "      A mark before and one after each stage: the host's clock, or an event on the\n"
    "      GPU's stream. The experts' stand-in runs between the stages and is not timed;\n"
    "      total is the sum of the stages. A mark is not free on a GPU: events add a few\n"
    "      microseconds to a stage of tens.\n"
    "\n"
    "  graph\n"
    "      bench.calls dispatches and combines are recorded as one graph; a sample is the\n"
    "      time of one launch between two events, divided by the calls, and that is the row\n"
    "      total: a pair as measured, not a sum. Graphs of dispatches alone and of combines\n"
    "      alone give the other rows, where the algorithm allows that. Call j uses inputs\n"
    "      j % bench.inputs. The experts do not run in graphs: their answers are left in\n"
    "      place by iterations before. With expert.answer: apart each pair copies them, if\n"
    "      the algorithm has to; combines alone repeat one, which may have them by then: the\n"
    "      copy is then in the row total and not in the row combine.\n"
    "      Before each sample an untimed launch of the same graph hides the start of the\n"
    "      timed one and brings the ranks to the same point; with cadence back_to_back only\n"
    "      before each block. Samples are taken in turn, in blocks of 8: pairs, combines,\n"
    "      dispatches. bench.warmup counts samples of each.\n"
    "\n"
    "  bench.cache: cold\n"
    "      More memory than L2 holds is written before each sample, between its untimed\n"
    "      launch and its mark. One call a launch, since the next would find a warm cache;\n"
    "      two graphs of one call take turns, one for each buffer set.\n"
    "\n"
    "After the last sample `out` is overwritten with NaN, one more iteration (or launch) runs\n"
    "and every element is compared (bench.check); a wrong one ends bench with exit code 1. By\n"
    "graph this needs bench.inputs to be no more than the dispatches that the algorithm can\n"
    "have open (1 always is; with ll_v2, up to algorithm.buffers), else their answers are gone.\n";

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
    {"clocks", clocks},
    {"exit-codes", exit_codes},
    {0},
};

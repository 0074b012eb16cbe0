/* Prose: what the three bandwidths are, how GPUs are timed, what the exit codes mean. */
#include "cli/cmd_help_pages.h"

#include "base/exit_code.h"
#include "cli/topics.h"

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
    "      divided by the median. The rate is measured in the same run, and as uncertain.\n"
    "      On shm the rate is that of stores: all ranks store into all others' memory at\n"
    "      once, from a source in L1, by memcpy, by stores that stay in caches and by stores\n"
    "      past them, 64 KiB and up to 1 MiB a rank; the fastest counts. What peers stored is\n"
    "      read before it is overwritten, as an algorithm's rows are. `epa2a doctor` measures\n"
    "      the same for every transport that runs.\n";

static const char batches[] =
    "Several runs from one file, or from several: run, bench and verify take them all.\n"
    "\n"
    "  include: base.yaml                    another file's keys are the base of this one's\n"
    "  runs:                                 named runs, in order; what they leave out is\n"
    "    plain: {}                           as in the file\n"
    "    few: {moe.max_tokens: 8}\n"
    "    few_bf16: {from: few, algorithm: {wire: dtype}}\n"
    "  matrix:                               a run for each combination, last list fastest\n"
    "    algorithm: [ll_v1, ll_v2]\n"
    "    moe.max_tokens: [1, 8, 128]\n"
    "    exclude: [{algorithm: ll_v1, moe.max_tokens: 128}]\n"
    "    include: [{algorithm: ll_v2, moe.max_tokens: 512}]\n"
    "  zip:                                  lists of one length, taken together\n"
    "    ranks: [2, 4]\n"
    "    moe.experts: [64, 128]\n"
    "  repeat: 3                             each of them so often\n"
    "\n"
    "With more than one of these, each named run is done with each combination of the matrix\n"
    "and each of the zip. A map laid over a section is merged with it key by key; one that\n"
    "has `name` or `kind` stands for the whole section, as a bare value does. `exclude` is\n"
    "done before `include`. --set reaches into every run, and into lists as in\n"
    "--set matrix.algorithm=[ll_v1] or --set repeat=5.\n"
    "\n"
    "A run has a label (`few algorithm=ll_v2 #2`) and an id, which is a hash of the resolved\n"
    "experiment: the same on every machine, for each repetition, and whatever its name. Traces\n"
    "of the third run of a file with profile: out/run are out/run-3.json and so on.\n"
    "  --dry-run           checks all and lists ids and labels\n"
    "  --only GLOB         only runs of that label or id: --only '*ll_v2*'\n"
    "  --shuffle SEED      another order, so that slow changes of a machine hit all alike\n"
    "  --fail-fast         the first run that fails is the last\n"
    "  --max-runs N        a file may ask for more than 4096\n"
    "  --markdown, --csv   the summary as a file; --json has it beside the results\n"
    "`epa2a config show FILE --run LABEL` prints one of them as it is resolved.\n"
    "\n"
    "A run that fails does not stop the others; the first exit code that is not 0 counts.\n"
    "Where a plugin of a run cannot be loaded here, or its transport or backend finds no\n"
    "device, the run is skipped, and the exit code stays 0. A file that makes no sense is\n"
    "refused before the first run. SIGINT ends the run that goes on and the command; files\n"
    "are written again after runs, and hold what was measured whatever ends it.\n";

static const char traces[] =
    "Traces: what each rank did when, in the last iterations of a run.\n"
    "\n"
    "  profile: out/run            in the file, or --set profile=out/run\n"
    "  profile: {file: out/run, iterations: 50}\n"
    "\n"
    "writes out/run.json with all ranks, and out/run.RANK.json with one each, as Chrome traces:\n"
    "stages, an algorithm's phases, waits with the rank that was waited for, experts, barriers,\n"
    "arrows from a signal to the wait that it ended, and counters. Runs of one file have their\n"
    "id in the name. Files that exist are kept, unless --force is given; they are written\n"
    "whatever ends the run. Any viewer of Chrome traces opens them (ui.perfetto.dev).\n"
    "\n"
    "  epa2a trace check FILE...               all that must hold of a trace; exit code 1 if not\n"
    "  epa2a trace summary FILE...             phases, who waited for whom, critical paths\n"
    "  epa2a trace view FILE --out PAGE.html   a timeline for any browser, without network\n"
    "  epa2a trace merge FILE... --out FILE    files of several ranks of one run as one\n"
    "  epa2a trace pack FILE... --out A.tar    those files with a manifest for Perfetto\n"
    "\n"
    "Ranks of one host have one clock. Between hosts clocks are compared before the first and\n"
    "after the last iteration; all times are on that of rank 0, and the file and the report say\n"
    "how far they may be off. A slice takes some 40 ns to note: nothing beside milliseconds, and\n"
    "a seventh of a stage of 10 us. The report says how often that was done, and times of a\n"
    "profiled run are with it. What does not fit is counted as dropped.\n"
    "\n"
    "profile has what hosts do. For what runs in kernels of a GPU see algorithm.profile.\n";

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
    "  wall_cold\n"
    "      One figure, the row wall: how long a layer takes on the clock on the wall when it\n"
    "      is called now and then. For each sample every rank writes caches over, on hosts\n"
    "      twice the L2 of a core by each worker, on GPUs more than L2 holds, and waits for\n"
    "      all others in a barrier; rank 0 reads its clock; dispatch, the experts' stand-in\n"
    "      and combine run, then each rank's work is waited for, and all ranks in one more\n"
    "      barrier; rank 0 reads its clock again. Launches, skew and that barrier are in it.\n"
    "      GPU MODE's contest for all2all was timed this way, mean of its samples, and its\n"
    "      results are geometric means over shapes. Sample j uses inputs j % bench.inputs.\n"
    "      On GPUs the stand-in runs on the host, so that only an algorithm that does the\n"
    "      experts' work itself can be timed so. L3 of a host is left as it is.\n"
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

static void add_exit_codes(struct text *out)
{
    for (const struct exit_meaning *m = exit_meanings; m->help != NULL; m++)
        text_add(out, "  %3d  %s\n", (int)m->code, m->help);
    text_add(out, "With several runs the first code that is not 0 counts.\n");
}

static void add_environment(struct text *out)
{
    for (const struct variable *v = environment; v->name != NULL; v++)
        text_add(out, "  %-18s %s\n", v->name, v->help);
    text_add(out, "A variable EPA2A_... that is none of these gets a warning.\n");
}

const struct help_page help_pages[] = {
    {"bandwidth", bandwidth},
    {"batches", batches},
    {"clocks", clocks},
    {"environment", "Variables of the environment.\n", add_environment},
    {"exit-codes", "Exit codes.\n", add_exit_codes},
    {"traces", traces},
    {0},
};

void help_page_add(const struct help_page *page, struct text *out)
{
    text_add(out, "%s", page->text);
    if (page->add != NULL)
        page->add(out);
}

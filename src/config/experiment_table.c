/* Keys, types, bounds, defaults and their help, once: the reader, `config show`, `help` and
 * the checks all go by these tables. Defaults are one literal of struct experiment. */
#include "config/experiment_table.h"

#include <string.h>

#include "config/expect.h"
#include "config/fault.h"
#include "config/node.h"
#include "config/options.h"

static const struct experiment defaults = {
    .version = EXPERIMENT_VERSION,
    .ranks = 2,
    .ranks_per_node = 0,
    .timeout_ns = 5000000000,
    .seed = 1,
    .moe = {.max_tokens = 128,
            .hidden = 7168,
            .experts = 256,
            .topk = 8,
            .fp8_group_size = 128,
            .dtype = EPA_BF16,
            .input_dtype = MOE_INPUT_NATIVE},
    .routing = {.kind = ROUTING_UNIFORM,
                .exponent = 1.0,
                .sigma = 1.0,
                .share = 0.5,
                .violation = 1.0,
                .layer = UINT32_MAX,
                .weights = WEIGHTS_SUM_TO_ONE},
    .tokens = {.kind = TOKENS_FULL},
    .expert = {.kind = EXPERT_SCALE,
               .output = OUTPUT_IN_PLACE,
               .ffn = 2048,
               .activation = EPA_ACTIVATION_SWIGLU,
               .weights = EXPERT_WEIGHTS_NATIVE,
               .fp8_group_size = 128,
               .values = EXPERT_VALUES_RANDOM},
    .allgather = {.max_rows = 128, .row_bytes = 14336},
    .gemm = {.m = 1024, .n = 4096, .k = 2048, .dtype = EPA_BF16, .values = GEMM_INTEGERS},
    .run = {.iterations = 10},
    .verify = {.iterations = 50,
               .order = ORDER_LOCKSTEP,
               .check_every = 1,
               .tolerance = TOLERANCE_EXACT,
               .rtol = 1e-2,
               .atol = 5e-3},
    .bench = {.warmup = 20,
              .iterations = 200,
              .input_sets = 1,
              .barrier = true,
              .clock = CLOCK_AUTO,
              .calls_per_graph = 20,
              .cache = CACHE_WARM,
              .check = true,
              .min_iterations = 50},
    .expect = {.wrong = UINT32_MAX},
    .fault = {.for_ns = 10000000},
    .profile = {.iterations = 10},
};

static const struct epa_option top[] = {
    {.name = "version",
     EPA_U32(struct experiment, version),
     .min = 1,
     .help = "version of the file format; required, and must be 1"},
    {.name = "name",
     EPA_STRING(struct experiment, name),
     .help = "name of the experiment in reports; the default is the file's name"},
    {.name = "ranks",
     EPA_U32(struct experiment, ranks),
     .min = 1,
     .max = 64,
     .help = "number of ranks; omit it where an external launcher starts them"},
    {.name = "ranks_per_node",
     EPA_U32(struct experiment, ranks_per_node),
     .min = 0,
     .max = 64,
     .help = "number of ranks per node; 0: all ranks are one node"},
    {.name = "timeout",
     EPA_DURATION(struct experiment, timeout_ns),
     .min = 1000000,
     .max = 3600000000000,
     .help = "longest wait of a rank for another rank"},
    {.name = "seed", EPA_U64(struct experiment, seed), .help = "seed of all generated inputs"},
    {0},
};

static const struct epa_choice dtypes[] = {
    {"bf16", EPA_BF16, "16 bits, the exponent of float32"},
    {"f16", EPA_F16, "IEEE half: 3 bits more, up to 65504"},
    {0},
};
static const struct epa_choice inputs[] = {
    {"native", MOE_INPUT_NATIVE, "rows in dtype"},
    {"fp8", MOE_INPUT_FP8, "quantised rows with their scales"},
    {0},
};
static const struct epa_option moe[] = {
    {.name = "max_tokens",
     EPA_U32(struct moe_options, max_tokens),
     .min = 1,
     .max = 32768,
     .help = "maximum number of tokens per rank and iteration"},
    {.name = "hidden",
     EPA_U32(struct moe_options, hidden),
     .min = 16,
     .max = 131072,
     .help = "number of channels of a token; a multiple of 16"},
    {.name = "experts",
     EPA_U32(struct moe_options, experts),
     .min = 1,
     .max = EXPERIMENT_EXPERTS_MAX,
     .help = "number of experts of all ranks; a multiple of ranks"},
    {.name = "topk",
     EPA_U32(struct moe_options, topk),
     .min = 1,
     .max = 32,
     .help = "number of experts per token"},
    {.name = "fp8_group_size",
     EPA_U32(struct moe_options, fp8_group_size),
     .min = 1,
     .max = 131072,
     .help = "number of channels per FP8 scale"},
    {.name = "dtype",
     EPA_CHOICE(struct moe_options, dtype),
     .choices = dtypes,
     .help = "data type of tokens and expert outputs"},
    {.name = "input_dtype",
     EPA_CHOICE(struct moe_options, input_dtype),
     .choices = inputs,
     .help = "data type of dispatch's input"},
    {0},
};

static const struct epa_choice routings[] = {
    {"uniform", ROUTING_UNIFORM, "distinct experts of equal probability"},
    {"zipf", ROUTING_ZIPF, "the i-th most popular expert drawn by i^-exponent"},
    {"lognormal", ROUTING_LOGNORMAL, "popularity exp(sigma * normal)"},
    {"hot", ROUTING_HOT,
     "`share` of the tokens choose expert 0 first; all other "
     "choices are uniform"},
    {"masked", ROUTING_MASKED, "uniform, each choice dropped with probability `share`"},
    {"maxvio", ROUTING_MAXVIO, "one expert has 1 + `violation` times the mean, exactly"},
    {"file", ROUTING_FILE, "from `path`"},
    {0},
};
static const struct epa_choice routing_weights[] = {
    {"sum_to_one", WEIGHTS_SUM_TO_ONE, "weights of a token sum to 1"},
    {"uniform", WEIGHTS_UNIFORM, "each weight in [0, 1), any sum"},
    {0},
};
static const struct epa_option routing[] = {
    {.name = "kind",
     EPA_CHOICE(struct routing_options, kind),
     .choices = routings,
     .help = "distribution of the experts that tokens choose"},
    {.name = "exponent",
     EPA_REAL(struct routing_options, exponent),
     .least = 0.0,
     .most = 10.0,
     .help = "zipf: exponent; 0 is uniform"},
    {.name = "sigma",
     EPA_REAL(struct routing_options, sigma),
     .least = 0.0,
     .most = 10.0,
     .help = "lognormal: standard deviation; 0 is uniform"},
    {.name = "share",
     EPA_REAL(struct routing_options, share),
     .least = 0.0,
     .most = 1.0,
     .help = "hot: fraction of the tokens; masked: fraction of the choices"},
    {.name = "violation",
     EPA_REAL(struct routing_options, violation),
     .least = 0.0,
     .most = 4095.0,
     .help = "maxvio: (most loaded expert - mean) / mean; at most experts / topk - 1"},
    {.name = "path",
     EPA_STRING(struct routing_options, path),
     .help = "file: captured routing, .npy or .jsonl; the path is relative to the "
             "experiment's folder"},
    {.name = "layer",
     EPA_U32(struct routing_options, layer),
     .max = 65535,
     .help = "file: index of the layer in a file of several layers"},
    {.name = "skip",
     EPA_U32(struct routing_options, skip),
     .help = "file: number of tokens to skip at the start of path and hidden_states, "
             "such as a server's warm-up"},
    {.name = "weights",
     EPA_CHOICE(struct routing_options, weights),
     .choices = routing_weights,
     .help = "weights of the choices; with kind: file, those of the file"},
    {.name = "hidden_states",
     EPA_STRING(struct routing_options, hidden_states),
     .help = ".npy file [tokens][hidden] with the values of tokens; the default is "
             "generated values"},
    {0},
};

static const struct epa_option allgather[] = {
    {.name = "max_rows",
     EPA_U32(struct allgather_options, max_rows),
     .min = 1,
     .max = 65536,
     .help = "maximum number of rows per rank and iteration; `tokens` sets the number"},
    {.name = "row_bytes",
     EPA_U32(struct allgather_options, row_bytes),
     .min = 16,
     .max = 1048576,
     .help = "bytes of a row; a multiple of 16"},
    {0},
};

static const struct epa_choice gemm_dtypes[] = {
    {"bf16", EPA_BF16, "16 bits, the exponent of float32"},
    {"f16", EPA_F16, "IEEE half"},
    {"fp8", EPA_FP8_E4M3, "e4m3; a scale for 128 of a row of A and for 128 x 128 of B"},
    {0},
};
static const struct epa_choice gemm_values[] = {
    {"integers", GEMM_INTEGERS, "A is sparse and all sums are exact: C is compared to the bit"},
    {"random", GEMM_RANDOM, "dense, compared with float64 within a proved bound"},
    {0},
};
static const struct epa_option gemm[] = {
    {.name = "m",
     EPA_U32(struct gemm_options, m),
     .min = 1,
     .max = 1048576,
     .help = "number of rows of A on all ranks; divided among them, unless `tokens` says how "
             "many each has"},
    {.name = "n",
     EPA_U32(struct gemm_options, n),
     .min = 1,
     .max = 1048576,
     .help = "number of columns of C on all ranks; a multiple of ranks"},
    {.name = "k",
     EPA_U32(struct gemm_options, k),
     .min = 8,
     .max = 1048576,
     .help = "length of the products; a multiple of 8"},
    {.name = "dtype",
     EPA_CHOICE(struct gemm_options, dtype),
     .choices = gemm_dtypes,
     .help = "data type of A and B; C is bf16, or f16 where they are"},
    {.name = "bias", EPA_BOOL(struct gemm_options, bias), .help = "add a number to each column"},
    {.name = "values",
     EPA_CHOICE(struct gemm_options, values),
     .choices = gemm_values,
     .help = "what A and B hold, and how C is checked"},
    {0},
};

static const struct epa_choice token_kinds[] = {
    {"full", TOKENS_FULL, "moe.max_tokens, allgather.max_rows or an even share of gemm.m"},
    {"random", TOKENS_RANDOM,
     "uniform in `min` to that maximum, drawn for each "
     "iteration"},
    {"list", TOKENS_LIST, "numbers in `per_rank`; `tokens: [128, 0]` is the short form"},
    {0},
};
static const struct epa_option tokens[] = {
    {.name = "kind",
     EPA_CHOICE(struct tokens_options, kind),
     .choices = token_kinds,
     .help = "number of tokens per rank and iteration, or of rows of A or for an AllGather"},
    {.name = "min",
     EPA_U32(struct tokens_options, min),
     .min = 0,
     .max = 65536,
     .help = "random: minimum number per rank"},
    {.name = "per_rank",
     EPA_U32_LIST(struct tokens_options, per_rank),
     .min = 0,
     .max = 65536,
     .help = "list: number of each rank"},
    {0},
};

static const struct epa_choice expert_kinds[] = {
    {"scale", EXPERT_SCALE, "multiply by a factor that depends on the expert"},
    {"rank", EXPERT_RANK, "multiply by 1 + the rank of the expert"},
    {"mlp", EXPERT_MLP, "real experts: up projection, activation, down projection"},
    {0},
};
static const struct epa_choice outputs[] = {
    {"in_place", OUTPUT_IN_PLACE, "buffer of the algorithm: no copy"},
    {"separate", OUTPUT_SEPARATE, "separate buffer, from which combine copies"},
    {0},
};
static const struct epa_choice activations[] = {
    {"swiglu", EPA_ACTIVATION_SWIGLU,
     "gate / (1 + exp(-gate)) * up: two rows of weights a channel"},
    {"none", EPA_ACTIVATION_NONE, "the up projection as it is"},
    {0},
};
static const struct epa_choice expert_weights[] = {
    {"native", EXPERT_WEIGHTS_NATIVE, "as moe.dtype"},
    {"bf16", EXPERT_WEIGHTS_BF16, "with moe.dtype: bf16"},
    {"f16", EXPERT_WEIGHTS_F16, "with moe.dtype: f16"},
    {"fp8", EXPERT_WEIGHTS_FP8, "e4m3 with a scale per 128 x 128 block; rows are quantised"},
    {0},
};
static const struct epa_choice expert_values[] = {
    {"random", EXPERT_VALUES_RANDOM, "dense; outputs are checked within a proved bound"},
    {"integers", EXPERT_VALUES_INTEGERS,
     "16 small integers per row of weights: all sums are exact, every output is checked"},
    {0},
};
static const struct epa_choice expert_libraries[] = {
    {"auto", EXPERT_LIBRARY_AUTO, "the faster one: own, on all machines measured so far"},
    {"own", EXPERT_LIBRARY_OWN, "epa2a's kernels for the CPU's instruction set"},
    {"onednn", EXPERT_LIBRARY_ONEDNN, "oneDNN 2 or 3; bf16 weights"},
    {0},
};
static const struct epa_option expert[] = {
    {.name = "kind",
     EPA_CHOICE(struct expert_options, kind),
     .choices = expert_kinds,
     .help = "what an expert computes: synthetic, or a real MLP"},
    {.name = "output",
     EPA_CHOICE(struct expert_options, output),
     .choices = outputs,
     .help = "location of expert outputs"},
    {.name = "ffn",
     EPA_U32(struct expert_options, ffn),
     .min = 128,
     .max = 131072,
     .help = "mlp: channels of the intermediate; a multiple of 128, as moe.hidden is then"},
    {.name = "activation",
     EPA_CHOICE(struct expert_options, activation),
     .choices = activations,
     .help = "mlp: between the two projections"},
    {.name = "weights",
     EPA_CHOICE(struct expert_options, weights),
     .choices = expert_weights,
     .help = "mlp: data type of weights"},
    {.name = "fp8_group_size",
     EPA_U32(struct expert_options, fp8_group_size),
     .min = 64,
     .max = 128,
     .help = "mlp, weights: fp8: channels per scale of the intermediate, 128 or 64"},
    {.name = "values",
     EPA_CHOICE(struct expert_options, values),
     .choices = expert_values,
     .help = "mlp: values of weights and tokens"},
    {.name = "library",
     EPA_CHOICE(struct expert_options, library),
     .choices = expert_libraries,
     .help = "mlp: matrix products of experts that hosts compute between dispatch and combine"},
    {0},
};

static const struct epa_option run[] = {
    {.name = "iterations",
     EPA_U32(struct run_options, iterations),
     .min = 1,
     .max = 1000000,
     .help = "number of iterations of `epa2a run`; the first and the last are checked"},
    {0},
};

static const struct epa_choice orders[] = {
    {"lockstep", ORDER_LOCKSTEP, "dispatch, then its combine"},
    {"pipelined", ORDER_PIPELINED, "the next dispatch before the combine"},
    {0},
};
static const struct epa_choice references[] = {
    {"exact", TOLERANCE_EXACT, "bit-exact to the algorithm's definition"},
    {"allclose", TOLERANCE_ALLCLOSE,
     "as in GPU MODE's all2all: rtol, atol; needs "
     "dispatch_dtype: native"},
    {0},
};
static const struct epa_option verify[] = {
    {.name = "iterations",
     EPA_U32(struct verify_options, iterations),
     .min = 1,
     .max = 10000000,
     .help = "number of iterations of `epa2a verify`, each with new inputs"},
    {.name = "order",
     EPA_CHOICE(struct verify_options, order),
     .choices = orders,
     .help = "order of the stages"},
    {.name = "check_every",
     EPA_U32(struct verify_options, check_every),
     .min = 1,
     .max = 10000000,
     .help = "interval of checked iterations; others run at full speed"},
    {.name = "straggle",
     EPA_DURATION(struct verify_options, straggle_ns),
     .max = 10000000000,
     .help = "maximum random sleep of a rank before some stages; 0: none"},
    {.name = "tolerance",
     EPA_CHOICE(struct verify_options, tolerance),
     .choices = references,
     .help = "comparison of outputs with the reference; exact is the stricter"},
    {.name = "rtol",
     EPA_REAL(struct verify_options, rtol),
     .least = 0.0,
     .most = 1.0,
     .help = "allclose: relative tolerance"},
    {.name = "atol",
     EPA_REAL(struct verify_options, atol),
     .least = 0.0,
     .most = 1.0,
     .help = "allclose: absolute tolerance"},
    {0},
};

static const struct epa_option profile[] = {
    {.name = "file",
     EPA_STRING(struct profile_options, file),
     .help = "Chrome traces: FILE.json of all ranks, FILE.RANK.json of each rank; measured "
             "times include the tracing overhead, which the report states"},
    {.name = "iterations",
     EPA_U32(struct profile_options, iterations),
     .min = 1,
     .max = 10000,
     .help = "number of iterations in the trace, the last of the run; bench excludes "
             "the checked one"},
    {0},
};

const struct epa_options experiment_options = {top, sizeof(struct experiment), &defaults};

const struct section experiment_sections[] = {
    {.name = "launcher",
     .help = "starts the ranks; auto: mpi or env if an external launcher started "
             "several processes, else fork",
     .main = "name",
     .offset = offsetof(struct experiment, launcher),
     .plugin = true,
     .kind = EPA_PLUGIN_LAUNCHER,
     .chosen = "auto"},
    {.name = "backend",
     .help = "memory and execution: host or GPU",
     .main = "name",
     .offset = offsetof(struct experiment, backend),
     .plugin = true,
     .kind = EPA_PLUGIN_BACKEND,
     .chosen = "host"},
    {.name = "transport",
     .help = "moves data between ranks",
     .main = "name",
     .offset = offsetof(struct experiment, transport),
     .plugin = true,
     .kind = EPA_PLUGIN_TRANSPORT,
     .chosen = "shm"},
    {.name = "algorithm",
     .help = "implements dispatch and combine, AllGather, or AllGather and GEMM",
     .main = "name",
     .offset = offsetof(struct experiment, algorithm),
     .plugin = true,
     .kind = EPA_PLUGIN_ALGORITHM,
     .chosen = "ll_v2"},
    {.name = "moe",
     .ops = 1u << EPA_OP_MOE,
     .help = "shape of the layer",
     .offset = offsetof(struct experiment, moe),
     .options = {moe, sizeof(struct moe_options), &defaults.moe}},
    {.name = "routing",
     .ops = 1u << EPA_OP_MOE,
     .help = "distribution of the experts that tokens choose",
     .main = "kind",
     .offset = offsetof(struct experiment, routing),
     .options = {routing, sizeof(struct routing_options), &defaults.routing}},
    {.name = "tokens",
     .ops = 1u << EPA_OP_MOE | 1u << EPA_OP_ALLGATHER | 1u << EPA_OP_AG_GEMM,
     .help = "number of tokens, or rows, per rank",
     .main = "kind",
     .offset = offsetof(struct experiment, tokens),
     .options = {tokens, sizeof(struct tokens_options), &defaults.tokens}},
    {.name = "expert",
     .ops = 1u << EPA_OP_MOE,
     .help = "the experts: synthetic, or real",
     .main = "kind",
     .offset = offsetof(struct experiment, expert),
     .options = {expert, sizeof(struct expert_options), &defaults.expert}},
    {.name = "allgather",
     .ops = 1u << EPA_OP_ALLGATHER,
     .help = "shape of an AllGather",
     .offset = offsetof(struct experiment, allgather),
     .options = {allgather, sizeof(struct allgather_options), &defaults.allgather}},
    {.name = "gemm",
     .ops = 1u << EPA_OP_AG_GEMM,
     .help = "shape of an AllGather and GEMM",
     .offset = offsetof(struct experiment, gemm),
     .options = {gemm, sizeof(struct gemm_options), &defaults.gemm}},
    {.name = "run",
     .help = "options of `epa2a run`",
     .offset = offsetof(struct experiment, run),
     .options = {run, sizeof(struct run_options), &defaults.run}},
    {.name = "verify",
     .help = "options of `epa2a verify`",
     .offset = offsetof(struct experiment, verify),
     .options = {verify, sizeof(struct verify_options), &defaults.verify}},
    {.name = "bench",
     .help = "options of `epa2a bench`",
     .offset = offsetof(struct experiment, bench),
     .options = {bench_table, sizeof(struct bench_options), &defaults.bench}},
    {.name = "expect",
     .help = "bounds that `epa2a bench` and `run` check; a result outside ends with "
             "exit code 1; `epa2a help expectations`",
     .offset = offsetof(struct experiment, expect),
     .options = {expect_table, sizeof(struct expect_options), &defaults.expect}},
    {.name = "fault",
     .help = "injects a fault; `epa2a help faults`",
     .main = "kind",
     .offset = offsetof(struct experiment, fault),
     .options = {fault_table, sizeof(struct fault_options), &defaults.fault}},
    {.name = "profile",
     .help = "records a timeline of all ranks for `epa2a trace` and any viewer of Chrome "
             "traces",
     .main = "file",
     .offset = offsetof(struct experiment, profile),
     .options = {profile, sizeof(struct profile_options), &defaults.profile}},
    {0},
};

const struct section *section_find(const char *name)
{
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        if (strcmp(s->name, name) == 0)
            return s;
    return NULL;
}

bool section_is_for(const struct section *section, const struct epa_algorithm_plugin *algorithm)
{
    return section->ops == 0 || algorithm == NULL ||
           (section->ops >> (uint32_t)algorithm->op & 1) != 0;
}

bool section_applies(const struct section *section, const struct experiment *x)
{
    return section_is_for(section, (const void *)x->algorithm.plugin);
}

const struct node *origin_find(const struct experiment *x, const char *key)
{
    const char *dot = strchr(key, '.');
    char section[64];

    if (x->origins == NULL) /* made by hand, not read */
        return NULL;
    if (dot == NULL)
        return node_find(x->origins->root, key);
    snprintf(section, sizeof(section), "%.*s", (int)(dot - key), key);
    return node_find(node_find(x->origins->root, section), dot + 1);
}

const struct epa_options *section_options(const struct section *section, const struct experiment *x)
{
    const struct chosen *chosen = (const void *)((const char *)x + section->offset);

    return section->plugin ? &chosen->plugin->options : &section->options;
}

const void *section_values(const struct section *section, const struct experiment *x)
{
    const void *at = (const char *)x + section->offset;

    return section->plugin ? ((const struct chosen *)at)->config : at;
}

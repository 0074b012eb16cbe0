/* The option tables of an experiment: keys, types, bounds, defaults and help, declared once. The
 * YAML reader, `config show`, help, man pages, schema and completion all use them. Defaults are one
 * literal of struct experiment. Rules follow the tables, for options that have an effect only with
 * certain values of others. */
#include "config/experiment.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "config/option_text.h"
#include "options/option.h"

static const struct experiment defaults = {
    .version = EXPERIMENT_VERSION,
    .timeout_ns = 5000000000,
    .problem =
        {
            .ranks = 2,
            .ranks_per_node = 0,
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
                       .values = EXPERT_VALUES_AUTO},
            .allgather = {.max_rows = 128, .row_bytes = 14336},
            .gemm = {.m = 1024, .n = 4096, .k = 2048, .dtype = EPA_BF16, .values = GEMM_INTEGERS},
        },
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
    .expect = {.last = EXPECT_ANY, .wrong = UINT32_MAX},
    .fault = {.for_ns = 10000000},
    .profile = {.iterations = 10},
};

/* Rows of a table: the key, struct and field, bounds or choices, help. */
#define NUMBER(type, key, of, field, lo, hi, what) \
    { \
        .name = key, EPA_##type(struct of, field), .min = lo, .max = hi, .help = what \
    }
/* A NUMBER that does not change the measured work (epa2a/plugin.h, `measures`). */
#define LENGTH(type, key, of, field, lo, hi, what) \
    { \
        .name = key, EPA_##type(struct of, field), .min = lo, .max = hi, .help = what, \
        .measures = true \
    }
#define REAL(key, of, field, lo, hi, what) \
    { \
        .name = key, EPA_REAL(struct of, field), .least = lo, .most = hi, .help = what \
    }
#define CHOICE(key, of, field, list, what) \
    { \
        .name = key, EPA_CHOICE(struct of, field), .choices = list, .help = what \
    }
#define OTHER(type, key, of, field, what) \
    { \
        .name = key, EPA_##type(struct of, field), .help = what \
    }

static const struct epa_choice apis[] = {
    {"none", API_NONE, "the program calls the stages of the algorithm"},
    {"calls", API_CALLS, "dispatch and combine, ag_gemm, or the layer of a fused algorithm"},
    {"layer", API_LAYER, "a complete layer with any algorithm; needs expert.kind: mlp"},
    {0},
};
static const struct epa_option top[] = {
    NUMBER(U32, "version", experiment, version, 1, 0,
           "version of the file format; required, and must be 1"),
    {.name = "name",
     EPA_STRING(struct experiment, name),
     .help = "name of the experiment in reports; the default is the file's name",
     .measures = true},
    NUMBER(U32, "ranks", experiment, problem.ranks, 1, PROBLEM_RANKS_MAX,
           "number of ranks; omit it where an external launcher starts them"),
    NUMBER(U32, "ranks_per_node", experiment, problem.ranks_per_node, 0, PROBLEM_RANKS_MAX,
           "number of ranks per node; 0: all ranks are one node"),
    LENGTH(DURATION, "timeout", experiment, timeout_ns, 1000000, 3600000000000,
           "longest wait of a rank for another rank; pauses of the run do not count; 3 s at least "
           "in set-up"),
    LENGTH(U64, "seed", experiment, problem.seed, 0, 0, "seed of all generated inputs"),
    CHOICE("api", experiment, api, apis,
           "calls of the public interface epa2a.h in place of direct calls; `epa2a help calling`"),
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
    NUMBER(U32, "max_tokens", moe_options, max_tokens, 1, 32768,
           "maximum number of tokens per rank and iteration"),
    NUMBER(U32, "hidden", moe_options, hidden, 16, 131072,
           "number of channels of a token; a multiple of 16, with expert.kind: mlp of 32"),
    NUMBER(U32, "experts", moe_options, experts, 1, PROBLEM_EXPERTS_MAX,
           "number of experts of all ranks; a multiple of ranks"),
    NUMBER(U32, "topk", moe_options, topk, 1, 32, "number of experts per token"),
    NUMBER(U32, "fp8_group_size", moe_options, fp8_group_size, 1, 131072,
           "number of channels per FP8 scale; with expert.weights: fp8, 64 or 128"),
    CHOICE("dtype", moe_options, dtype, dtypes, "data type of tokens and expert outputs"),
    CHOICE("input_dtype", moe_options, input_dtype, inputs, "data type of dispatch's input"),
    {0},
};

static const struct epa_option model[] = {
    OTHER(STRING, "name", model_options, name, "name of the model in reports"),
    OTHER(STRING, "source", model_options, source, "address of the model's config.json"),
    NUMBER(U32, "layers", model_options, layers, 1, 4096, "number of layers of the model"),
    NUMBER(U32, "moe_layers", model_options, moe_layers, 1, 4096,
           "number of layers with routed experts; reports give the time of all"),
    NUMBER(U32, "shared_experts", model_options, shared_experts, 0, 64,
           "number of experts that compute every token; epa2a does not run them"),
    NUMBER(U32, "shared_ffn", model_options, shared_ffn, 16, 131072,
           "channels of the intermediate of a shared expert"),
    OTHER(STRING, "checkpoint", model_options, checkpoint,
          "data type of weights of experts in the checkpoint"),
    {0},
};

static const struct epa_choice routings[] = {
    {"uniform", ROUTING_UNIFORM, "distinct experts of equal probability"},
    {"zipf", ROUTING_ZIPF, "the i-th most popular expert drawn by i^-exponent"},
    {"lognormal", ROUTING_LOGNORMAL, "popularity exp(sigma * normal)"},
    {"hot", ROUTING_HOT,
     "`share` of the tokens choose expert 0 first; all other choices are uniform"},
    {"masked", ROUTING_MASKED, "uniform, each choice dropped with probability `share`"},
    {"maxvio", ROUTING_MAXVIO, "one expert has 1 + `violation` times the mean, exactly"},
    {"file", ROUTING_FILE, "from `path`"},
    {0},
};
static const struct epa_choice routing_skips[] = {
    {"auto", -1, "windows of 64 tokens with mostly equal tokens, found by routing stats"},
    {0},
};
static const struct epa_choice routing_weights[] = {
    {"sum_to_one", WEIGHTS_SUM_TO_ONE, "weights of a token sum to 1"},
    {"uniform", WEIGHTS_UNIFORM, "each weight in [0, 1), any sum"},
    {"signed", WEIGHTS_SIGNED, "each weight from -4 to 4, any sum"},
    {0},
};
static const struct epa_option routing[] = {
    CHOICE("kind", routing_options, kind, routings,
           "distribution of the experts that tokens choose"),
    REAL("exponent", routing_options, exponent, 0.0, 10.0, "zipf: exponent; 0 is uniform"),
    REAL("sigma", routing_options, sigma, 0.0, 10.0, "lognormal: standard deviation; 0 is uniform"),
    REAL("share", routing_options, share, 0.0, 1.0,
         "hot: fraction of the tokens; masked: fraction of the choices"),
    REAL("violation", routing_options, violation, 0.0, 4095.0,
         "maxvio: (most loaded expert - mean) / mean; at most experts / topk - 1"),
    OTHER(
        STRING, "path", routing_options, path,
        "file: captured routing, .npy or .jsonl; the path is relative to the experiment's folder"),
    NUMBER(U32, "layer", routing_options, layer, 0, 65535,
           "file: index of the layer in a file of several layers"),
    {.name = "skip",
     EPA_U32(struct routing_options, skip),
     .choices = routing_skips,
     .help = "file: number of tokens to skip at the start of path and hidden_states, such as a "
             "server's warm-up"},
    CHOICE("weights", routing_options, weights, routing_weights,
           "weights of the choices; with kind: file, those of the file"),
    OTHER(STRING, "hidden_states", routing_options, hidden_states,
          ".npy file [tokens][hidden] with the values of tokens; the default is generated values"),
    {0},
};

static const struct epa_option allgather[] = {
    NUMBER(U32, "max_rows", allgather_options, max_rows, 1, 65536,
           "maximum number of rows per rank and iteration; `tokens` sets the number"),
    NUMBER(U32, "row_bytes", allgather_options, row_bytes, 16, 1048576,
           "bytes of a row; a multiple of 16"),
    {0},
};

static const struct epa_choice gemm_dtypes[] = {
    {"bf16", EPA_BF16, "16 bits, the exponent of float32"},
    {"f16", EPA_F16, "IEEE half"},
    {"fp8", EPA_FP8_E4M3, "e4m3; a scale for 128 of a row of A and for 128 x 128 of B"},
    {0},
};
static const struct epa_choice gemm_out_dtypes[] = {
    {"auto", 0, "bf16, or f16 if gemm.dtype is f16"},
    {"fp8", EPA_FP8_E4M3, "e4m3; a scale for 128 columns of a row"},
    {0},
};
static const struct epa_choice gemm_values[] = {
    {"integers", GEMM_INTEGERS, "A is sparse and all sums are exact: C is compared to the bit"},
    {"random", GEMM_RANDOM, "dense, compared with float64 within a proved bound"},
    {0},
};
static const struct epa_option gemm[] = {
    NUMBER(U32, "m", gemm_options, m, 1, 1048576,
           "number of rows of A on all ranks; divided among them, unless `tokens` sets the "
           "number of each rank"),
    NUMBER(U32, "n", gemm_options, n, 1, 1048576,
           "number of columns of C on all ranks; each rank has n / ranks, rounded up, and the last "
           "rank has the rest"),
    NUMBER(U32, "k", gemm_options, k, 8, 1048576, "length of the products; a multiple of 8"),
    CHOICE("dtype", gemm_options, dtype, gemm_dtypes, "data type of A and B"),
    CHOICE("out_dtype", gemm_options, out_dtype, gemm_out_dtypes, "data type of C"),
    OTHER(BOOL, "bias", gemm_options, bias, "add a number to each column"),
    CHOICE("values", gemm_options, values, gemm_values, "contents of A and B, and the check of C"),
    {0},
};

static const struct epa_choice token_kinds[] = {
    {"full", TOKENS_FULL, "moe.max_tokens, allgather.max_rows or an even share of gemm.m"},
    {"random", TOKENS_RANDOM, "uniform in `min` to that maximum, drawn for each iteration"},
    {"list", TOKENS_LIST, "numbers in `per_rank`; `tokens: [128, 0]` is the short form"},
    {0},
};
static const struct epa_option tokens[] = {
    CHOICE("kind", tokens_options, kind, token_kinds,
           "number of tokens per rank and iteration, or of rows of A or for an AllGather"),
    NUMBER(U32, "min", tokens_options, min, 0, 65536, "random: minimum number per rank"),
    NUMBER(U32_LIST, "per_rank", tokens_options, per_rank, 0, 65536, "list: number of each rank"),
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
    {"none", EPA_ACTIVATION_NONE, "the up projection without activation"},
    {0},
};
static const struct epa_choice expert_weights[] = {
    {"native", EXPERT_WEIGHTS_NATIVE, "as moe.dtype"},
    {"bf16", EXPERT_WEIGHTS_BF16, "with moe.dtype: bf16"},
    {"f16", EXPERT_WEIGHTS_F16, "with moe.dtype: f16"},
    {"fp8", EXPERT_WEIGHTS_FP8, "e4m3 with a scale per 128 x 128 block; rows are quantised"},
    {"int8", EXPERT_WEIGHTS_INT8,
     "hosts: 8 bits with a scale per row of weights; rows are quantised with a scale per row"},
    {0},
};
static const struct epa_choice expert_values[] = {
    {"auto", EXPERT_VALUES_AUTO, "verify: integers; other commands, and hidden_states: random"},
    {"random", EXPERT_VALUES_RANDOM, "dense; a sample of outputs is checked within a proved bound"},
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
    CHOICE("kind", expert_options, kind, expert_kinds,
           "computation of an expert: synthetic, or a real MLP"),
    CHOICE("output", expert_options, output, outputs, "location of expert outputs"),
    NUMBER(U32, "ffn", expert_options, ffn, 32, 131072,
           "mlp: channels of the intermediate; a multiple of 32"),
    CHOICE("activation", expert_options, activation, activations,
           "mlp: between the two projections"),
    CHOICE("weights", expert_options, weights, expert_weights, "mlp: data type of weights"),
    NUMBER(U32, "fp8_group_size", expert_options, fp8_group_size, 64, 128,
           "mlp, weights: fp8: channels per scale of the intermediate, 128 or 64; divides ffn"),
    CHOICE("values", expert_options, values, expert_values, "mlp: values of weights and tokens"),
    CHOICE("library", expert_options, library, expert_libraries,
           "mlp: matrix products of experts that hosts compute between dispatch and combine"),
    {0},
};

static const struct epa_option run[] = {
    NUMBER(U32, "iterations", run_options, iterations, 1, 1000000,
           "number of iterations of `epa2a run`; the first and the last are checked"),
    {0},
};

static const struct epa_choice orders[] = {
    {"lockstep", ORDER_LOCKSTEP, "dispatch, then its combine"},
    {"pipelined", ORDER_PIPELINED, "the next dispatch before the combine"},
    {"discard", ORDER_DISCARD, "a dispatch that is discarded, then lockstep"},
    {"again", ORDER_AGAIN, "lockstep, and the combine once more"},
    {0},
};
static const struct epa_choice references[] = {
    {"exact", TOLERANCE_EXACT, "bit-exact to the algorithm's definition"},
    {"allclose", TOLERANCE_ALLCLOSE,
     "as in GPU MODE's all2all: rtol, atol; needs dispatch_dtype: native"},
    {0},
};
static const struct epa_choice stops[] = {
    {"none", STOP_NONE, "no rank stops"},
    {"first", STOP_FIRST, "before the first stage, such as dispatch"},
    {"last", STOP_LAST, "before the last stage, such as combine"},
    {0},
};
static const struct epa_option verify[] = {
    NUMBER(U32, "iterations", verify_options, iterations, 1, 10000000,
           "number of iterations of `epa2a verify`, each with new inputs"),
    CHOICE("order", verify_options, order, orders, "order of the stages"),
    NUMBER(U32, "check_every", verify_options, check_every, 1, 10000000,
           "interval of checked iterations; others run at full speed"),
    NUMBER(DURATION, "straggle", verify_options, straggle_ns, 0, 10000000000,
           "maximum random sleep of a rank before some stages; 0: none"),
    CHOICE("tolerance", verify_options, tolerance, references,
           "comparison of outputs with the reference; exact is the stricter"),
    REAL("rtol", verify_options, rtol, 0.0, 1.0, "allclose: relative tolerance"),
    REAL("atol", verify_options, atol, 0.0, 1.0, "allclose: absolute tolerance"),
    OTHER(BOOL, "guard", verify_options, guard,
          "look at the memory before and behind the heap and behind inputs and outputs"),
    NUMBER(U64, "epoch", verify_options, epoch, 0, INT64_MAX,
           "calls that the algorithm counts as made before the first; for wrap-around"),
    CHOICE("stop", verify_options, stop, stops,
           "one iteration more, in which the last rank stops: waits must end by a time-out"),
    OTHER(BOOL, "nonfinite", verify_options, nonfinite,
          "half of the tokens have a NaN channel and an infinite channel; synthetic experts"),
    {0},
};

static const struct epa_choice clocks[] = {
    {"auto", CLOCK_AUTO, "graph on GPUs, else host"},
    {"host", CLOCK_HOST, "the host's clock, read before and after each stage"},
    {"events", CLOCK_EVENTS, "on GPUs: events before and after each stage"},
    {"graph", CLOCK_GRAPH, "on GPUs: calls_per_graph dispatches and combines in one launch"},
    {"end_to_end", CLOCK_END_TO_END, "rank 0's clock from barrier to barrier, experts included"},
    {0},
};
static const struct epa_choice arrivals[] = {
    {"closed", ARRIVALS_CLOSED, "closed loop: an iteration begins when the previous one has ended"},
    {"constant", ARRIVALS_CONSTANT, "open loop: constant intervals"},
    {"poisson", ARRIVALS_POISSON, "open loop: Poisson process, generated from seed"},
    {0},
};
static const struct epa_choice caches[] = {
    {"warm", CACHE_WARM, "as left by the previous call"},
    {"cold", CACHE_COLD,
     "flushed before each sample, untimed: L2 of GPUs; hosts with clock: end_to_end"},
    {0},
};
static const struct epa_option bench[] = {
    LENGTH(U32, "warmup", bench_options, warmup, 0, 1000000,
           "number of untimed iterations before the first sample"),
    LENGTH(U32, "iterations", bench_options, iterations, 1, 1000000,
           "number of samples; with ci95 or max_time, the maximum"),
    {.name = "ci95",
     EPA_REAL(struct bench_options, ci95),
     .least = 0.001,
     .most = 1000.0,
     .help = "stop when the 95 % confidence interval of the median is no wider than this fraction "
             "of it, such as 1%; `epa2a help stopping`",
     .measures = true},
    LENGTH(U32, "min_iterations", bench_options, min_iterations, 1, 1000000,
           "ci95: minimum number of samples"),
    LENGTH(DURATION, "min_time", bench_options, min_time_ns, 1, 3600000000000,
           "ci95: minimum sampling time"),
    LENGTH(DURATION, "max_time", bench_options, max_time_ns, 1, 86400000000000,
           "maximum sampling time, without warm-up"),
    NUMBER(U32, "input_sets", bench_options, input_sets, 1, 64,
           "number of input sets, generated in advance and used in turn"),
    OTHER(BOOL, "barrier", bench_options, barrier,
          "barrier before each stage or graph launch; false: back to back"),
    CHOICE("clock", bench_options, clock, clocks,
           "clock that measures the stages; `epa2a help clocks`"),
    CHOICE("arrivals", bench_options, arrivals, arrivals,
           "hosts: arrival process of iterations; `epa2a help arrivals`"),
    REAL("load", bench_options, load, 0.01, 10.0,
         "open loop: arrival rate as a fraction of the closed-loop rate measured in warm-up"),
    REAL("rate", bench_options, rate, 0.01, 10000000.0, "open loop: arrivals per second"),
    NUMBER(
        U32, "calls_per_graph", bench_options, calls_per_graph, 2, 1000,
        "clock: graph: even number of calls of each stage per graph launch; one with cache: cold"),
    CHOICE("cache", bench_options, cache, caches, "cache state at the start of a sample"),
    {.name = "check",
     EPA_BOOL(struct bench_options, check),
     .help = "compare every element of one additional iteration; with clock: graph, of at most as "
             "many inputs as the algorithm has buffer sets",
     .measures = true},
    {0},
};

static const struct epa_choice fault_kinds[] = {
    {"none", FAULT_NONE, "no fault"},
    {"kill", FAULT_KILL, "the rank kills itself with SIGKILL"},
    {"stop", FAULT_STOP, "the rank's process is stopped with SIGSTOP and continued after `for`"},
    {"straggle", FAULT_STRAGGLE, "the rank sleeps"},
    {0},
};

static const struct epa_option fault[] = {
    CHOICE("kind", fault_options, kind, fault_kinds,
           "kind of the injected fault; `epa2a help faults`"),
    NUMBER(U32, "rank", fault_options, rank, 0, 63, "rank of the fault"),
    OTHER(STRING, "stage", fault_options, stage,
          "stage before which the fault occurs, such as combine; the default is the first"),
    NUMBER(U32, "iteration", fault_options, iteration, 0, 100000000,
           "iteration of the fault, counted from 0 and including warm-up"),
    NUMBER(DURATION, "for", fault_options, for_ns, 1000, 3600000000000, "stop, straggle: duration"),
    NUMBER(U32, "every", fault_options, every, 0, 1000000,
           "stop, straggle: interval of repetition in iterations; 0: a single fault"),
    {0},
};

static const struct epa_option profile[] = {
    OTHER(STRING, "file", profile_options, file,
          "Chrome traces: FILE.json of all ranks, FILE.RANK.json of each rank; measured times "
          "include the tracing overhead, which the report states"),
    NUMBER(
        U32, "iterations", profile_options, iterations, 1, 10000,
        "number of iterations in the trace, the last of the run; bench excludes the checked one"),
    {0},
};

/* The table of `expect`: bounds of figures by name, for the last row of a result or for the row
 * that a key or a map names. */

enum { DAY_S = 86400 };

#define MOST(figure, what) \
    { \
        .name = #figure, EPA_DURATION(struct expect_options, last.figure), \
        .max = (uint64_t)DAY_S * 1000000000, .help = "upper bound of " what \
    }
#define LEAST(figure, limit, what) \
    { \
        .name = #figure, EPA_REAL(struct expect_options, last.figure), .most = limit, \
        .help = "lower bound " what \
    }

const struct epa_option expect_table[] = {
    {.name = "wrong",
     EPA_U32(struct expect_options, wrong),
     .max = 1000000000,
     .help = "maximum number of wrong elements; elements must have been compared; the only bound "
             "that verify checks"},
    MOST(min, "the shortest sample; as median"),
    MOST(median, "the median: 120us of the total, or of a row by expect.dispatch.median"),
    MOST(p95, "the 95th percentile; as median"),
    MOST(p99, "the 99th percentile; as median"),
    MOST(p999, "the 99.9th percentile, which needs 1000 samples; as median"),
    MOST(max, "the longest sample; as median"),
    MOST(mean, "the mean; as median"),
    LEAST(goodput, 1e9, "in GB/s, of the total or of a row, as median; `epa2a help bandwidth`"),
    LEAST(wire, 1e9, "in GB/s; as goodput"),
    LEAST(bottleneck, 1e9, "in GB/s; as goodput"),
    LEAST(of_peak, 1, "of the percentage of peak, by the median: 50%"),
    {0},
};
const struct epa_option *const expect_figures = &expect_table[1];

const struct epa_options experiment_options = {top, sizeof(struct experiment), &defaults};

#define PLUGIN(section, of, usual, what) \
    { \
        .name = #section, .main = "name", .offset = offsetof(struct experiment, section), \
        .plugin = true, .kind = EPA_PLUGIN_##of, .chosen = usual, .help = what \
    }
#define SECTION(section, key, of, table, what) \
    { \
        .name = #section, .main = key, .ops = of, .offset = offsetof(struct experiment, section), \
        .options = {table, sizeof(defaults.section), &defaults.section}, .help = what \
    }
/* A section of struct problem_params. */
#define PROBLEM(section, key, of, table, what) \
    { \
        .name = #section, .main = key, .ops = of, \
        .offset = offsetof(struct experiment, problem.section), \
        .options = {table, sizeof(defaults.problem.section), &defaults.problem.section}, \
        .help = what \
    }
/* A section whose values do not change the measured work. */
#define MEASURES(section, key, of, table, what) \
    { \
        .name = #section, .main = key, .ops = of, .offset = offsetof(struct experiment, section), \
        .options = {table, sizeof(defaults.section), &defaults.section}, .help = what, \
        .measures = true \
    }

enum { MOE = 1u << EPA_OP_MOE, ALLGATHER = 1u << EPA_OP_ALLGATHER, AG_GEMM = 1u << EPA_OP_AG_GEMM };

static const struct section between_nodes = {
    .name = "transport.between_nodes",
    .main = "name",
    .offset = offsetof(struct experiment, between),
    .plugin = true,
    .kind = EPA_PLUGIN_TRANSPORT,
    .help = "moves data between ranks of different nodes for another transport",
};

const struct section experiment_sections[] = {
    PLUGIN(launcher, LAUNCHER, "auto",
           "starts the ranks; auto: mpi or env if an external launcher started several processes, "
           "else fork"),
    PLUGIN(backend, BACKEND, "host", "memory and execution: host or GPU"),
    {.name = "transport",
     .main = "name",
     .offset = offsetof(struct experiment, transport),
     .plugin = true,
     .kind = EPA_PLUGIN_TRANSPORT,
     .chosen = "shm",
     .help = "moves data between ranks",
     .nested = &between_nodes},
    PLUGIN(algorithm, ALGORITHM, "ll_v2",
           "implements dispatch and combine, AllGather, or AllGather and GEMM"),
    MEASURES(model, "name", MOE, model, "model whose shape the layer has; `epa2a help models`"),
    PROBLEM(moe, NULL, MOE, moe, "shape of the layer"),
    PROBLEM(routing, "kind", MOE, routing, "distribution of the experts that tokens choose"),
    PROBLEM(tokens, "kind", MOE | ALLGATHER | AG_GEMM, tokens,
            "number of tokens, or rows, per rank"),
    PROBLEM(expert, "kind", MOE, expert, "the experts: synthetic, or real"),
    PROBLEM(allgather, NULL, ALLGATHER, allgather, "shape of an AllGather"),
    PROBLEM(gemm, NULL, AG_GEMM, gemm, "shape of an AllGather and GEMM"),
    MEASURES(run, NULL, 0, run, "options of `epa2a run`"),
    MEASURES(verify, NULL, 0, verify, "options of `epa2a verify`"),
    SECTION(bench, NULL, 0, bench, "options of `epa2a bench`"),
    MEASURES(expect, NULL, 0, expect_table,
             "bounds that `epa2a bench` and `run` check; a result outside ends with exit code 1; "
             "`epa2a help expectations`"),
    SECTION(fault, "kind", 0, fault, "injects a fault; `epa2a help faults`"),
    MEASURES(profile, "file", 0, profile,
             "records a timeline of all ranks for `epa2a trace` and any viewer of Chrome traces"),
    {0},
};

const struct section *section_find(const char *name)
{
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        if (strcmp(s->name, name) == 0)
            return s;
    return NULL;
}

const struct section *section_find_path(const char *path)
{
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        if (s->nested != NULL && strcmp(s->nested->name, path) == 0)
            return s->nested;
    return section_find(path);
}

bool section_takes(const struct section *nested, const struct epa_plugin *plugin)
{
    struct epa_error ignored = {EPA_OK, ""};

    return plugin->kind == nested->kind &&
           selection_check_between((const void *)plugin, &ignored) == EPA_OK;
}

const char *section_key(const struct section *section)
{
    const char *dot = strrchr(section->name, '.');

    return dot != NULL ? dot + 1 : section->name;
}

bool section_is_for(const struct section *section, const struct epa_algorithm_plugin *algorithm)
{
    return section->ops == 0 || algorithm == NULL ||
           (section->ops >> (uint32_t)algorithm->op & 1) != 0;
}

enum key_role key_role_of(const char *path)
{
    char name[64];
    size_t bytes = strcspn(path, ".");
    const struct section *section;
    const struct epa_option *option;

    snprintf(name, sizeof(name), "%.*s", (int)bytes, path);
    section = section_find(name);
    if (section != NULL && section->plugin)
        return KEY_MEANS;
    if (section != NULL && section->measures)
        return KEY_MEASURES;
    if (section == NULL && strcmp(name, "api") == 0)
        return KEY_MEANS;
    option = section == NULL    ? option_find(&experiment_options, name)
             : path[bytes] == 0 ? NULL
                                : option_find(&section->options, path + bytes + 1);
    return option != NULL && option->measures ? KEY_MEASURES : KEY_TASK;
}

/* ---- options that depend on other options ---- */

#define ALL_BUT(kind) ~(1u << (kind))
enum { LASTS = 1u << FAULT_STOP | 1u << FAULT_STRAGGLE, MLP = 1u << EXPERT_MLP };
enum { OPEN = 1u << ARRIVALS_CONSTANT | 1u << ARRIVALS_POISSON };

const struct option_rule option_rules[] = {
    {"routing", "exponent", "kind", 1u << ROUTING_ZIPF, "kind: zipf"},
    {"routing", "sigma", "kind", 1u << ROUTING_LOGNORMAL, "kind: lognormal"},
    {"routing", "share", "kind", 1u << ROUTING_HOT | 1u << ROUTING_MASKED, "kind: hot or masked"},
    {"routing", "violation", "kind", 1u << ROUTING_MAXVIO, "kind: maxvio"},
    {"routing", "path", "kind", 1u << ROUTING_FILE, "kind: file"},
    {"routing", "layer", "kind", 1u << ROUTING_FILE, "kind: file"},
    {"routing", "skip", "kind", 1u << ROUTING_FILE, "kind: file"},
    {"routing", "weights", "kind", ALL_BUT(ROUTING_FILE),
     "a kind other than file, which has weights"},
    {"fault", "rank", "kind", ALL_BUT(FAULT_NONE), "a kind other than none"},
    {"fault", "stage", "kind", ALL_BUT(FAULT_NONE), "a kind other than none"},
    {"fault", "iteration", "kind", ALL_BUT(FAULT_NONE), "a kind other than none"},
    {"fault", "for", "kind", LASTS, "kind: stop or straggle"},
    {"fault", "every", "kind", LASTS, "kind: stop or straggle"},
    {"tokens", "min", "kind", 1u << TOKENS_RANDOM, "kind: random"},
    {"tokens", "per_rank", "kind", 1u << TOKENS_LIST, "kind: list"},
    {"expert", "ffn", "kind", MLP, "kind: mlp"},
    {"expert", "activation", "kind", MLP, "kind: mlp"},
    {"expert", "weights", "kind", MLP, "kind: mlp"},
    {"expert", "fp8_group_size", "kind", MLP, "kind: mlp and weights: fp8"},
    {"expert", "fp8_group_size", "weights", 1u << EXPERT_WEIGHTS_FP8, "kind: mlp and weights: fp8"},
    {"expert", "values", "kind", MLP, "kind: mlp"},
    {"expert", "library", "kind", MLP, "kind: mlp"},
    {"verify", "rtol", "tolerance", 1u << TOLERANCE_ALLCLOSE, "tolerance: allclose"},
    {"verify", "atol", "tolerance", 1u << TOLERANCE_ALLCLOSE, "tolerance: allclose"},
    {"bench", "barrier", "clock", ALL_BUT(CLOCK_END_TO_END),
     "a clock other than end_to_end, which contains barriers"},
    {"bench", "barrier", "arrivals", 1u << ARRIVALS_CLOSED,
     "arrivals: closed; an open loop has no barriers"},
    {"bench", "load", "arrivals", OPEN, "arrivals: constant or poisson"},
    {"bench", "rate", "arrivals", OPEN, "arrivals: constant or poisson"},
    {"bench", "min_iterations", "ci95", 0, "ci95, such as 1%, which may stop earlier"},
    {"bench", "min_time", "ci95", 0, "ci95, such as 1%, which may stop earlier"},
    {"profile", "iterations", "file", 0, "profile.file, such as trace"},
    {0},
};

bool option_rule_holds(const struct option_rule *rule, const struct experiment *x)
{
    const struct section *section = section_find(rule->section);
    const struct epa_option *other = option_find(&section->options, rule->other);
    const char *at = (const char *)x + section->offset;

    if (rule->values == 0)
        return option_is_set(other, at);
    return (rule->values >> *(const int *)(const void *)(at + other->offset) & 1u) != 0;
}

/* A graph may hold several warm calls, but one cold call only; hosts have no graphs. */
static bool calls_apply(const struct experiment *x)
{
    const struct bench_options *b = &x->bench;
    bool host = backend_of(x) != NULL && is_on_hosts(x);

    return b->cache == CACHE_WARM && (b->clock == CLOCK_GRAPH || (b->clock == CLOCK_AUTO && !host));
}

bool option_applies(const struct experiment *x, const struct section *section, const char *option)
{
    for (const struct option_rule *r = option_rules; r->section != NULL; r++)
        if (strcmp(r->section, section->name) == 0 && strcmp(r->option, option) == 0 &&
            !option_rule_holds(r, x))
            return false;
    return strcmp(option, "calls_per_graph") != 0 || strcmp(section->name, "bench") != 0 ||
           calls_apply(x);
}

/* ---- faults ---- */

bool fault_is_planted(const struct experiment *x)
{
    return x->fault.kind != FAULT_NONE;
}

const char *fault_name(const struct fault_options *f)
{
    return fault_kinds[f->kind].name;
}

void fault_describe(const struct fault_options *f, struct text *out)
{
    char time[64];

    value_duration_text(time, sizeof(time), f->for_ns);
    text_add(out, "rank %u ", f->rank);
    if (f->kind == FAULT_KILL)
        text_add(out, "is killed");
    else
        text_add(out, "%s for %s", f->kind == FAULT_STOP ? "is stopped" : "sleeps", time);
    text_add(out, " before %s of iteration %u", f->stage != NULL ? f->stage : "the first stage",
             f->iteration);
    if (f->kind != FAULT_KILL && f->every == 1)
        text_add(out, " and each after it");
    else if (f->kind != FAULT_KILL && f->every > 1)
        text_add(out, " and each %u after it", f->every);
}

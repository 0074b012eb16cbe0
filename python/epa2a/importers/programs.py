"""Programs whose logs are read line by line: forms of their lines.

{STAGE} is a time in us, {STAGE+} a part of one; .min, .max and .rate are figures printed with it.
{rank} is the printing rank; {rows%s}, {outputs%s} and {layout%s} describe the output; any other field
is a key of the experiment. The variant "rows" stands for the word of this field."""

from dataclasses import dataclass

from .forms import Form

STAGES = ("dispatch", "combine", "total")


@dataclass(frozen=True)
class Program:
    """`banner` begins the first line of the output; without one, lines are valid anywhere. `layout`
    and `outputs` describe the output if the program does not print them."""

    id: str
    name: str
    layout: str
    outputs: str
    statistic: str
    rates: str
    forms: tuple
    banner: str = None


_BEST = "[tuning] Best "


def _v2(mark, what, stage, then):
    return (
        f" {mark} EP: {{rank}}/{{ranks}} | {what}: {{}} GB/s (SO), {{{stage}.rate}} GB/s (SU), {{{stage}+}} us, {{}} bytes"
        f" | {then}: {{}} GB/s, {{{stage}+}} us"
    )


LOW_LATENCY = Program(
    "deepep_low_latency", "DeepEP, or UCCL-EP, test_low_latency.py", "expert", "unknown",
    "mean of iterations of the slowest rank: dispatch and combine are kernels, total is by events",
    "selections of a rank, its own included, with scales",
    (
        Form("[rank {rank}] Dispatch + combine bandwidth: {total.rate} GB/s, avg_t={total} us, min_t={total.min} us, "
             "max_t={total.max} us"),
        Form("[rank {rank}] Dispatch bandwidth: {dispatch.rate} GB/s, avg_t={dispatch} us | Combine bandwidth: "
             "{combine.rate} GB/s, avg_t={combine} us"),
        Form("[rank {rank}] Dispatch send/recv time: *"),
    ),
)  # fmt: skip

NORMAL = Program(
    "deepep_normal", "DeepEP, or UCCL-EP, test_intranode.py and test_internode.py", "rank", "bf16",
    "mean of iterations of rank 0 with the best chunk sizes; between nodes with notify",
    "bytes over NVLink; between nodes over RDMA",
    (
        Form("[config] num_tokens={moe.max_tokens}, hidden={moe.hidden}, num_topk={moe.topk}", ""),
        Form("[config] num_tokens={moe.max_tokens}, hidden={moe.hidden}, num_topk_groups={moe.groups}, num_topk={moe.topk}", ""),
        Form(_BEST + "dispatch ({rows%s}): SMs {}, NVL chunk {}, {dispatch.rate} GB/s (NVL), t: {dispatch} us", "rows"),
        Form(_BEST + "dispatch ({rows%s}): SMs {}, NVL chunk {}, RDMA chunk {}: {dispatch+} + {dispatch+} us, "
             "{dispatch.rate} GB/s (RDMA), {} GB/s (NVL)", "rows, nodes"),
        Form(_BEST + "dispatch ({rows%s}): SMs {}, NVL chunk {}, RDMA chunk {}, transmit: {dispatch+} us, notify: "
             "{dispatch+} us, BW: {dispatch.rate} GB/s (RDMA), {} GB/s (NVL)", "rows, nodes"),
        Form(_BEST + "combine: SMs {}, NVL chunk {}: {combine.rate} GB/s (NVL), t: {combine} us"),
        Form(_BEST + "combine: SMs {}, NVL chunk {}, RDMA chunk {}, {combine+} + {combine+} us, {combine.rate} GB/s (RDMA), "
             "{} GB/s (NVL)"),
        Form(_BEST + "combine: SMs {}, NVL chunk {}, RDMA chunk {}, transmit: {combine+} us, notify: {combine+} us, BW: "
             "{combine.rate} GB/s (RDMA), {} GB/s (NVL)"),
    ),
)  # fmt: skip

V2 = Program(
    "deepep_v2", "DeepEP V2 test_ep.py", "unknown", "bf16",
    "mean of iterations of the slowest rank: the kernel and its copy or reduction",
    "bytes of a rank over the links that scale up",
    (
        Form("> Ranks: {ranks} x {ranks}", ""),
        Form("> Experts: {moe.topk}/{moe.experts}", ""),
        Form("> Tokens: {} (max: {moe.max_tokens}), hidden: {moe.hidden}", ""),
        Form("> Testing with do_handle_copy={}, expert_alignment={}, use_fp8_dispatch={rows%s}, *", ""),
        Form(_v2("*", "dispatch", "dispatch", "copy"), "rank-major", "rank"),
        Form(_v2("-", "expanded dispatch", "dispatch", "copy"), "expanded", "expert"),
        Form(_v2("@", "combine", "combine", "reduce"), "rank-major", "rank"),
        Form(_v2("+", "reduced combine", "combine", "reduce"), "expanded", "expert"),
    ),
    banner="Config:",
)  # fmt: skip

_TIMES = (
    Form("Dispatch ({rows%s}): avg={dispatch} us, min={dispatch.min} us, max={dispatch.max} us"),
    Form("Combine ({outputs%s}): avg={combine} us, min={combine.min} us, max={combine.max} us"),
    Form("Dispatch: avg={dispatch} us, min={dispatch.min} us, max={dispatch.max} us"),
    Form("Combine: avg={combine} us, min={combine.min} us, max={combine.max} us"),
    Form("Total (D+C): avg={total} us, min={total.min} us, max={total.max} us"),
)

EP_BENCH = Program(
    "nccl_ep", "NCCL EP ep_bench", "unknown", "unknown",
    "mean of iterations and of ranks", "selections of a rank, its own included",
    (
        Form("Layout: {layout%s}", ""),
        Form("Output layout: {layout%s} *", ""),
        Form("Ranks: {ranks}", ""),
        Form("Tokens: {moe.max_tokens}", ""),
        Form("Sub-test: {tokens.kind%s} *", ""),
        Form("Hidden: {moe.hidden}", ""),
        Form("Top-k: {moe.topk}", ""),
        Form("Experts: {moe.experts} *", ""),
        Form("Dispatch dtype: {rows%s}", ""),
        Form("--- Host-observed performance ---", "host"),
        Form("--- Kernel-only performance ---", "kernels"),
        Form("--- BW based on total time ---", "host"),
        Form("--- BW based on kernel time ---", "kernels"),
        *_TIMES,
        Form("Dispatch: total={dispatch} us (min={dispatch.min}, max={dispatch.max})"),
        Form("Combine: total={combine} us (min={combine.min}, max={combine.max})"),
        # Since 2026 the kernels before and after have lines of their own.
        Form("Dispatch: kernel={dispatch} us"),
        Form("Combine: kernel={combine} us"),
        Form("Total (D+C): kernel={total} us"),
    ),
    banner="=== NCCL EP Performance Benchmark ===",
)  # fmt: skip

MSCCLPP = Program(
    "mscclpp_ep", "MSCCL++ run_ep_bench_python.py", "unknown", "unknown",
    "mean of iterations and of ranks", "selections of a rank, its own included",
    (
        Form("=== Summary [{backend%s}] (Low Latency, across {ranks} ranks) ===", ""),
        Form("--- Host-observed performance ---", "host"),
        Form("--- Kernel-only performance *", "kernels"),
        *_TIMES,
        Form("Dispatch: avg={dispatch} us, min={dispatch.min} us (representative), max={dispatch.max} us *"),
        Form("Total (D+C): avg={total} us (dispatch avg + combine avg), floor={} us *"),
    ),
    banner="=== Summary [",
)  # fmt: skip

MOONCAKE_NATIVE = Program(
    "mooncake_native", "Mooncake legacy_buffer_perf.py", "expert", "bf16",
    "mean of iterations of the slowest rank, dispatch and combine together", "selections of a rank, twice",
    (
        Form("[rank {rank}] Native dispatch + combine: {total.rate} GB/s, avg_t={total} us, min_t={total.min} us, "
             "max_t={total.max} us"),
    ),
)  # fmt: skip

MOONCAKE_ELASTIC = Program(
    "mooncake_elastic", "Mooncake elastic_buffer_perf.py", "unknown", "bf16",
    "mean over iterations of the slowest rank", "received tokens of a rank",
    (
        Form("MOONCAKE_ELASTIC_PERF_OK world={ranks} route={} transport={} reuse_handle={} tokens={moe.max_tokens} "
             "hidden={moe.hidden} topk={moe.topk} scaleout={} scaleup={} dispatch_avg_ms={} combine_avg_ms={} e2e_avg_ms={} "
             "dispatch_critical_ms={dispatch*1000} combine_critical_ms={combine*1000} e2e_critical_ms={total*1000} *", "all"),
    ),
)  # fmt: skip

PROGRAMS = (LOW_LATENCY, NORMAL, V2, EP_BENCH, MSCCLPP, MOONCAKE_NATIVE, MOONCAKE_ELASTIC)

NCCL_TESTS = Program(
    "nccl_tests", "nccl-tests", None, None,
    "mean of iterations; -a selects the ranks, by default their mean", "algbw: bytes by time", (),
)  # fmt: skip

# Words of programs, and words of results.
WORDS = {
    "FP8": "fp8", "fp8": "fp8", "fp8e4m3": "fp8", "True": "fp8", "1": "fp8", "BF16": "bf16", "bf16": "bf16",
    "False": "bf16", "0": "bf16", "fp16": "f16", "FP16": "f16", "fp32": "f32", "FP32": "f32",
    "rank-major": "rank", "expert-major": "expert", "flat": "flat",
}  # fmt: skip

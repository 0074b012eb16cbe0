"""Input of pairs.py for GPUs, and for kernels on CPUs. axes.py describes the format."""

from axes import (PROMISES, ORDERS, GIVEN_UP, WIRES, DTYPES, TOKEN_FLAG_WAYS, TOKEN_FLAG_NEVER, FUSED_WAYS)

GPU_UNQUANTISED = ["a width of 16", "48 channels", "an odd width"]
GPU_ALSO = {"room for twice the even share": "algorithm.capacity: 2"} | GIVEN_UP
GPU_NEVER = [(GPU_UNQUANTISED, ["as FP8"]), (["input is quantised already"], ["as it is"])]
# Axes of kernels. The last values have more rows or channels than a block handles at a time, sent
# by expert and not picked.
MANY_LAYER_TOKENS = "moe.max_tokens: 300, moe.topk: 16, moe.hidden: 128, algorithm.capacity: 64, verify.iterations: 2"
GPU_PROMISES = {name: PROMISES[name] for name in (
    "counts change with every iteration", "one rank is a world", "three ranks", "one expert gets everything",
    "most want one expert", "popularity is skewed", "choices are dropped", "all choices are dropped",
    "all tokens there is room for", "one token", "one choice", "32 choices", "every expert is chosen",
    "small groups", "input is quantised already", "the caller places expert outputs", "a width of 16",
    "an odd width")} | {
    "ranks straggle": "verify.straggle: 1ms, verify.iterations: 30",
    "full speed, few iterations checked":
        "moe.hidden: 128, moe.max_tokens: 4, verify.iterations: 300, verify.check_every: 37",
    "four ranks": "ranks: 4",
    "4 experts": "moe.experts: 4, moe.topk: 2",
    "one token or none": "moe.max_tokens: 1, verify.iterations: 40",
    "48 channels": "moe.hidden: 48",
    "groups of 32": "moe.fp8_group_size: 32, moe.hidden: 288",
    "groups of 64": "moe.fp8_group_size: 64, moe.hidden: 320",
    "groups of 256": "moe.fp8_group_size: 256, moe.hidden: 768",
    "4096 experts": "moe.experts: 4096, moe.topk: 8, verify.iterations: 3",
    "1000 tokens": "moe.max_tokens: 1000, moe.hidden: 128, verify.iterations: 2",
    "4096 tokens": "moe.max_tokens: 4096, moe.hidden: 128, moe.topk: 2, tokens: full, verify.iterations: 2",
    "7168 channels": "moe.hidden: 7168, verify.iterations: 3",
    "20480 channels": "moe.hidden: 20480, moe.max_tokens: 4, verify.iterations: 3",
}

FILES = {
    "gpu_ll_v2": {
        # Two ranks with more than 32 slots for tokens: few tokens have other kernels.
        "base": ["ranks: 2", "launcher: thread", "algorithm: ll_v2", "moe: {max_tokens: 20}"],
        "axes": [
            GPU_PROMISES | {"few tokens": "moe.max_tokens: 7, verify.iterations: 20",
                            "few tokens, 4096 experts": "moe.max_tokens: 3, moe.experts: 4096, moe.topk: 32"},
            {"by expert": "", "by rank": "algorithm.layout: rank", "dedup": "algorithm.dedup: true",
             "dedup of dispatch": "algorithm.dedup: true, algorithm.combine_dedup: false",
             "by rank in order": "algorithm.layout: rank, algorithm.row_order: packed",
             "by rank in order with gaps": "algorithm.layout: rank, algorithm.row_order: padded"},
            {"auto": "", "pulled": "algorithm.combine_mode: pull", "pushed": "algorithm.combine_mode: push"},
            ORDERS,
            WIRES,
            DTYPES,
            {"packed": "", "padded": "algorithm.recv_layout: padded"},
            {"outputs as they are": "", "FP8 outputs": "algorithm.combine_dtype: fp8"},
            {"separate experts": "", "fused": "algorithm.fuse_expert: true"},
            {"whole": "", "split": "algorithm.split_phase: true"},
            {"all blocks": "", "few blocks": "algorithm.blocks: 3", "no early launch": "algorithm.pdl: false"},
        ],
        "never": GPU_NEVER + [
            (GPU_UNQUANTISED, ["FP8 outputs"]),
            (["dedup", "dedup of dispatch", "FP8 outputs"], ["pulled", "pushed"]),
            (["fused"], ["by rank", "by rank in order", "by rank in order with gaps", "FP8 outputs",
                         "dedup of dispatch", "the caller places expert outputs"]),
        ],
        "always": [
            ["dedup", "padded", "FP8 outputs", "pipelined"],
            ["by rank", "padded", "FP8 outputs", "pipelined"],
            ["by expert", "padded", "FP8 outputs"],
            *[[dtype, wire, *values] for dtype in DTYPES for wire in WIRES for values in (
                ["by expert", "pulled", "fused"], ["by expert", "pushed", "fused"], ["dedup", "fused"],
                ["by expert", "FP8 outputs"], ["dedup", "FP8 outputs"], ["dedup of dispatch", "FP8 outputs"],
                ["dedup of dispatch", "outputs as they are"], ["by rank", "FP8 outputs"])],
            ["dedup of dispatch", "split", "pipelined", "padded"],
            *[["few tokens", dtype, wire, way] for dtype in DTYPES for wire in WIRES for way in ("dedup", "by rank")],
            *[["few tokens", *values] for values in (
                ["by rank", "pulled"], ["by rank", "FP8 outputs"], ["dedup", "FP8 outputs"], ["dedup", "fused"],
                ["dedup", "split", "pipelined"], ["by rank", "split", "few blocks"], ["dedup of dispatch", "padded"])],
            ["by rank", "split", "pipelined"],
            *[["by rank in order", *values] for values in (
                ["pulled", "three ranks"], ["pushed", "three ranks"], ["1000 tokens", "pulled"], ["split", "pipelined"])],
            ["by expert", "split", "pipelined"],
        ],
        "also": GPU_ALSO | {
            f"real experts, {name}, {way}": f"expert: {{kind: mlp, {expert}}}, verify.iterations: 4, {more}{settings}"
            for way, settings in {
                "by expert": "algorithm.layout: expert",
                "padded, outputs elsewhere": "algorithm.recv_layout: padded, expert.output: separate",
                "by rank, outputs elsewhere": "algorithm.layout: rank, expert.output: separate",
                "by rank in order": "algorithm.layout: rank, algorithm.row_order: packed",
            }.items() for name, (expert, more) in {
                "FP8": ("weights: fp8, ffn: 256", ""),
                "FP8, few rows more than a tile": ("weights: fp8, ffn: 256",
                                                   "moe.max_tokens: 136, moe.experts: 8, moe.topk: 4, tokens: full, "),
                "FP8 of native rows": ("weights: fp8, ffn: 128", "algorithm.dispatch_dtype: native, "),
                "bf16": ("ffn: 256", "algorithm.dispatch_dtype: native, "),
                "bf16, channels in 32s": ("ffn: 160", "algorithm.dispatch_dtype: native, moe.hidden: 96, "),
                "f16, channels in 32s": ("ffn: 32, activation: none, values: integers", "moe.dtype: f16, moe.hidden: 352, "
                                         "algorithm.dispatch_dtype: native, moe.max_tokens: 150, moe.experts: 4, "),
                "FP8, channels in 64s": ("weights: fp8, fp8_group_size: 64, ffn: 320",
                                         "moe.hidden: 192, moe.fp8_group_size: 64, "),
                "FP8 of native rows, channels in 64s, more than 64 rows": (
                    "weights: fp8, ffn: 128, values: integers",
                    "moe.hidden: 320, moe.fp8_group_size: 64, algorithm.dispatch_dtype: native, "
                    "moe.max_tokens: 150, moe.experts: 4, "),
                "f16": ("ffn: 256", "moe.dtype: f16, algorithm.dispatch_dtype: native, "),
                "f16 of FP8 rows": ("ffn: 384, activation: none, values: integers", "moe.dtype: f16, "),
                "scales of 64, more than 64 rows": ("weights: fp8, fp8_group_size: 64, ffn: 384",
                                                    "moe.max_tokens: 150, moe.experts: 4, "),
            }.items()},
    },
    "gpu_ll_v1": {
        "base": ["ranks: 2", "launcher: thread", "algorithm: ll_v1"],
        "axes": [
            GPU_PROMISES | {"5 choices": "moe.topk: 5, moe.experts: 12", "600 experts": "moe.experts: 600, "
                                "moe.topk: 8, verify.iterations: 3", "1152 channels": "moe.hidden: 1152",
                            "groups of 16 in parts": "moe.fp8_group_size: 16, moe.hidden: 1040"},
            {"auto": "", "pulled": "algorithm.exchange: pull", "pushed": "algorithm.exchange: push"},
            ORDERS,
            WIRES,
            DTYPES,
            {"all blocks": "", "one block": "algorithm.blocks: 1", "few blocks": "algorithm.blocks: 3"},
            {"early launch": "", "no early launch": "algorithm.pdl: false"},
        ],
        "never": GPU_NEVER,
        "always": [[way, dtype, wire] for way in ("pulled", "pushed") for dtype in DTYPES for wire in WIRES],
        "also": GPU_ALSO,
    },
    "gpu_token_flag": {
        "base": ["ranks: 2", "launcher: thread", "algorithm: token_flag"],
        "axes": [
            GPU_PROMISES,
            {"a flag a token": "", "a flag a rank": "algorithm.flag_granularity: rank"},
            ORDERS,
            {"as it is": "algorithm.dispatch_dtype: native", "as FP8": "algorithm.dispatch_dtype: fp8"},
            DTYPES,
            *TOKEN_FLAG_WAYS,
            {"all blocks": "", "one block": "algorithm.blocks: 1", "few blocks": "algorithm.blocks: 3"},
        ],
        "never": GPU_NEVER + TOKEN_FLAG_NEVER,
        "always": [
            ["a flag a rank", "reset by memset", "divided by source"],
            ["a flag a rank", "reset by memset", "divided by source", "pipelined"],
            ["fused", "divided by source", "one buffer set", "few blocks"],
            ["as FP8", "fused", "in 3 chunks", "pipelined"],
            ["in 3 chunks", "divided by source", "reset by memset"],
            *[[experts, dtype, wire] for experts in ("separate experts", "fused")
              for dtype in DTYPES for wire in WIRES],
        ],
        "also": {"discarded dispatches": "verify.order: discard"},
    },
    "gpu_token_flag_layer": {
        "base": ["ranks: 2", "launcher: thread", "algorithm: {name: token_flag, parts: 3}",
                 "expert: {kind: mlp, ffn: 128, values: integers}", "moe: {hidden: 256}", "verify: {iterations: 3}"],
        "axes": [
            {"counts change with every iteration": "",
             "one rank is a world": "ranks: 1",
             "three ranks": "ranks: 3, moe.experts: 15",
             "one expert gets everything": "routing: {kind: hot, share: 1}, moe.topk: 1",
             "choices are dropped": "routing: {kind: masked, share: 0.5}",
             "nobody has tokens": "tokens: [0, 0]",
             "one rank has no tokens": "tokens: [0, 16]",
             "one token or none": "moe.max_tokens: 1, verify.iterations: 12",
             "ranks straggle": "verify.straggle: 1ms, verify.iterations: 8, moe.hidden: 128"},
            {"three parts": "", "one part": "algorithm.parts: 1", "two parts": "algorithm.parts: 2",
             "more parts than tokens": "algorithm.parts: 1000"},
            {"in 16 bits": "", "FP8": "algorithm.dispatch_dtype: fp8, expert.weights: fp8",
             "16 bits from FP8 rows": "algorithm.dispatch_dtype: fp8", "FP8 from rows in 16 bits": "expert.weights: fp8"},
            {"a flag a token": "", "a flag a rank": "algorithm.flag_granularity: rank"},
            {"inline reset": "", "reset by memset": "algorithm.counter_reset: memset"},
            {"in one": "", "in 3 chunks": "algorithm.chunks: 3"},
            {"all blocks": "", "few blocks": "algorithm.blocks: 3"},
            {"SwiGLU": "", "no activation": "expert.activation: none"},
            DTYPES,
        ],
        "never": [(["a flag a rank"], ["in 3 chunks"])],
        "also": {"synthetic experts": "expert: {kind: rank}, algorithm.fuse_expert: true"},
    },
    "gpu_allgather": {
        "base": ["ranks: 2", "launcher: thread"],
        "axes": [
            {"counts change with every iteration": "", "all rows there is room for": "tokens: full",
             "rows of 16 bytes": "allgather.row_bytes: 16", "one row": "allgather.max_rows: 1, tokens: full",
             "no rows": "tokens: [0, 0]", "some ranks have no rows": "ranks: 3, tokens: [13, 0, 1]",
             "one rank is a world": "ranks: 1", "three ranks": "ranks: 3", "four ranks": "ranks: 4",
             "300 rows": "allgather.max_rows: 300",
             "ranks straggle": "verify.straggle: 2ms, verify.iterations: 30"},
            {"pushed": "", "pulled": "algorithm.mode: pull"},
            {"one chunk": "algorithm.chunks: 1", "3 chunks": "algorithm.chunks: 3", "7 chunks": "algorithm.chunks: 7",
             "a chunk a row": "algorithm.chunks: 1024"},
            {"all blocks": "", "one block": "algorithm.blocks: 1", "few blocks": "algorithm.blocks: 3"},
        ],
    },
    "gpu_ag_gemm": {
        "base": ["backend: cuda", "transport: nvlink", "launcher: thread", "ranks: 3", "gemm: {m: 420, n: 399}",
                 "algorithm: {name: ag_gemm_2d, panel: 2}", "timeout: 60s", "verify: {iterations: 6}"],
        "axes": [
            {"rows change with every iteration": "",
             "straddling tiles": "ranks: 4, gemm: {m: 100, n: 64, k: 72}, verify.iterations: 12",
             "random values": "gemm.values: random",
             "several groups, whole tiles": "gemm: {m: 384, n: 768, k: 512}, tokens: full",
             "whole tiles": "gemm: {m: 384, n: 1536, k: 128}, tokens: full",
             "one rank": "ranks: 1, gemm.m: 300", "no rank has rows": "tokens: [0, 0, 0]",
             "some ranks have no rows": "tokens: [130, 0, 3]",
             "one row of all ranks": "tokens: full, gemm.m: 1", "k of one step": "gemm: {k: 8, n: 3}",
             "columns that ranks do not divide": "gemm.n: 781", "one rank has columns": "gemm.n: 1",
             "two nodes of two": "ranks: 4, gemm.n: 255, ranks_per_node: 2",
             "ranks straggle": "verify: {straggle: 2ms, iterations: 20}, gemm.k: 72",
             "full speed, few iterations checked":
                 "ranks: 2, gemm: {m: 40, n: 64, k: 64}, verify: {iterations: 200, check_every: 19}"},
            {"sm": "algorithm.mover: sm", "copy engines": "algorithm.mover: copy_engine",
             "pulled": "algorithm: {mover: sm, mode: pull}"},
            {"bf16": "", "f16": "gemm.dtype: f16", "fp8": "gemm: {dtype: fp8, k: 336}"},
            {"C in 16 bits": "", "C in FP8": "gemm.out_dtype: fp8"},
            {"no bias": "", "bias": "gemm.bias: true"},
            {"across ranks": "", "each rank's rows begin a tile": "algorithm.across_ranks: false"},
            {"in order": "", "order none": "algorithm.order: none", "swizzle": "algorithm.order: swizzle"},
            {"some chunks": "", "one chunk": "algorithm.chunks: 1", "64 chunks": "algorithm.chunks: 64"},
            {"wide tiles": "", "narrow tiles": "algorithm.tile_cols: 128", "clusters": "algorithm.cluster: 2"},
            {"all blocks": "", "one block": "algorithm.blocks: 1", "a block for communication": "algorithm.comm_blocks: 1"},
            {"panels of two tiles": "", "panels of one": "algorithm.panel: 1", "large panels": "algorithm.panel: 64"},
        ],
        "never": [(["straddling tiles", "several groups, whole tiles", "whole tiles", "k of one step", "ranks straggle",
                    "full speed, few iterations checked"], ["fp8"]),
                  (["clusters"], ["one block", "a block for communication"])],
        "also": {
            "clusters, blocks for communication, two nodes of two":
                "ranks: 4, gemm.n: 400, ranks_per_node: 2, algorithm: {cluster: 2, comm_blocks: 2}",
            "clusters, tiles of one block of k": "gemm: {m: 1200, n: 1536, k: 64}, algorithm.cluster: 2",
            "clusters take themselves": "ranks: 1, gemm: {m: 512, n: 512, k: 4096}, verify.iterations: 1",
            "two nodes of two, each to all, pulled within":
                "ranks: 4, gemm.n: 400, ranks_per_node: 2, algorithm: {mode: pull, gather: 1d}",
            "four nodes of one": "ranks: 4, gemm.n: 400, ranks_per_node: 1",
            **{f"two nodes of two, forwarded by copy engines{name}":
                f"ranks: 4, gemm.n: 255, ranks_per_node: 2, algorithm: {{forward: copy_engine{more}}}{other}" for name, more, other in (
                    ("", "", ""), (", ranks straggle", "", ", verify.straggle: 2ms"),
                    (", all rows, fp8", ", mover: copy_engine", ", gemm: {dtype: fp8, k: 336}"),
                    (", 64 chunks, a block for communication", ", chunks: 64, comm_blocks: 1", ""))},
            "one node, nothing to forward": "ranks: 2, algorithm.forward: copy_engine",
            "several groups, whole tiles, fp8": "gemm: {dtype: fp8, m: 384, n: 768, k: 512}, tokens: full",
            **{f"products by cuBLASLt{name}": f"algorithm: {{product: library{more}}}, gemm.n: {n}{other}" for name, n, more, other in (
                ("", 384, "", ""), (", all rows, bias", 384, "", ", tokens: full, gemm.bias: true"),
                (", f16, random values", 384, "", ", gemm.dtype: f16, gemm.values: random"),
                (", some ranks have no rows", 384, "", ", tokens: [0, 130, 3]"),
                (", no rank has rows", 384, "", ", tokens: [0, 0, 0]"),
                (", one rank", 384, "", ", ranks: 1"), (", 64 chunks", 384, ", chunks: 64", ""),
                (", many rows", 120, "", ", gemm.m: 2500, gemm.k: 8"),
                (", fp8", 384, "", ", gemm.dtype: fp8, gemm.k: 336"),
                (", fp8, all rows, bias", 1536, "", ", gemm.dtype: fp8, gemm.k: 128, gemm.bias: true, tokens: full"),
                (", fp8, random values", 384, "", ", gemm.dtype: fp8, gemm.k: 256, gemm.values: random"),
                (", ranks straggle", 384, "", ", verify: {straggle: 2ms, iterations: 20}"),
                (", full speed, few iterations checked", 64, "",
                 ", ranks: 2, gemm.m: 40, gemm.k: 64, verify: {iterations: 200, check_every: 19}"))},
            **{f"the baseline{name}": f"algorithm: {{name: ag_then_gemm{library}}}{more}" for name, library, more in (
                ("", "", ""), (", own kernels", ", library: kernels", ""),
                (", bias, threads straggle", "", ", gemm.bias: true, verify.straggle: 2ms"),
                (", f16, some ranks have no rows", "", ", gemm: {dtype: f16, values: random}, tokens: [0, 130, 3]"),
                (", one rank", "", ", ranks: 1, gemm.m: 130"),
                (", C in FP8", "", ", gemm.out_dtype: fp8"),
                (", columns that ranks do not divide", "", ", gemm: {n: 46, bias: true}"),
                (", the last ranks have no columns", "", ", ranks: 4, gemm.n: 2"),
                (", two nodes", "", ", ranks: 4, gemm.n: 400, ranks_per_node: 2"),
                (", fp8, bias, two nodes", "", ", ranks: 4, ranks_per_node: 2, "
                    "gemm: {n: 400, dtype: fp8, k: 336, bias: true}"))},
        },
    },
    "gpu_fused": {
        "base": ["ranks: 2", "launcher: thread", "algorithm: fused",
                 "expert: {kind: mlp, ffn: 128, values: integers}", "moe: {hidden: 256}", "verify: {iterations: 3}"],
        "axes": [
            {"counts change with every iteration": "",
             "many tokens": MANY_LAYER_TOKENS,
             "many tokens in waves": MANY_LAYER_TOKENS + ", algorithm.waves: 3",
             "one rank, many tokens": MANY_LAYER_TOKENS + ", ranks: 1",
             "three ranks": "ranks: 3, moe.experts: 15",
             "popularity is skewed": "routing: {kind: zipf, exponent: 1.5}",
             "one expert gets everything": "routing: {kind: hot, share: 1}, moe.topk: 1",
             "choices are dropped": "routing: {kind: masked, share: 0.5}",
             "all choices are dropped": "routing: {kind: masked, share: 1}",
             "32 choices": "moe.topk: 32, moe.experts: 64",
             "600 experts": "moe.experts: 600, moe.topk: 8, verify.iterations: 2",
             "one token or none": "moe.max_tokens: 1, verify.iterations: 12",
             "more tokens than few": "moe.max_tokens: 40, verify.iterations: 2",
             "640 channels, 384 within": "moe.hidden: 640, expert.ffn: 384, verify.iterations: 2",
             "160 channels, 96 within": "moe.hidden: 160, expert.ffn: 96, verify.iterations: 2",
             "320 channels in 64s, 192 within": "moe.hidden: 320, moe.fp8_group_size: 64, expert.ffn: 192, verify.iterations: 2",
             "192 channels in 64s": "moe.hidden: 192, moe.fp8_group_size: 64, verify.iterations: 2",
             "320 within": "expert.ffn: 320, verify.iterations: 2",
             "ranks straggle": "verify.straggle: 1ms, verify.iterations: 8, moe.hidden: 128"},
            {"in 16 bits": "", "FP8": "algorithm.dispatch_dtype: fp8, expert.weights: fp8",
             "16 bits from FP8 rows": "algorithm.dispatch_dtype: fp8",
             "groups of 64": "algorithm.dispatch_dtype: fp8, expert.weights: fp8, expert.fp8_group_size: 64"},
            *FUSED_WAYS,
            {"one stage": "", "tail": "algorithm.tail: true",
             "blocks for each role": "algorithm.tail: true, algorithm.dispatch_workers: 2, "
                 "algorithm.tail_workers: 1, algorithm.combine_workers: 3",
             "blocks that only add up": "algorithm.dispatch_workers: 3, algorithm.combine_workers: 1, algorithm.reduce_workers: 2"},
            {"all blocks": "", "few blocks": "algorithm.blocks: 1, algorithm.lag: 1"},
            {"SwiGLU": "", "no activation": "expert.activation: none"},
            {"integers": "", "dense": "expert.values: random"},
            DTYPES,
        ],
        "never": [(["160 channels, 96 within"], ["FP8", "16 bits from FP8 rows", "groups of 64"]),
                  (["320 channels in 64s, 192 within", "320 within"], ["FP8"])],
        "also": {
            "usual kernels": "",
            "a block that only adds up, all others combine": "algorithm.reduce_workers: 1, tokens: full",
            "usual kernels, FP8": "algorithm.dispatch_dtype: fp8, expert.weights: fp8",
            "usual kernels, more tokens than few": "moe.max_tokens: 40",
            "usual kernels, FP8, more tokens than few":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, moe.max_tokens: 40",
            "usual kernels, 300 tokens": "moe.max_tokens: 300, verify.iterations: 2",
            "usual kernels, 160 channels, 96 within": "moe.hidden: 160, expert.ffn: 96",
            "usual kernels, 160 channels, 96 within, more tokens than few": "moe.hidden: 160, expert.ffn: 96, moe.max_tokens: 40",
            "usual kernels, f16, 1376 channels, 288 within, one rank":
                "moe.dtype: f16, moe.hidden: 1376, expert.ffn: 288, ranks: 1, expert.activation: none",
            "usual kernels, 352 channels, 160 within, 300 tokens":
                "moe.hidden: 352, expert.ffn: 160, moe.max_tokens: 300, moe.experts: 4, verify.iterations: 2",
            "usual kernels, 352 channels, 160 within, many tokens":
                MANY_LAYER_TOKENS.replace("moe.hidden: 128", "moe.hidden: 352") + ", expert.ffn: 160",
            **{f"channels in 64s, {name}": f"moe.fp8_group_size: 64, expert.weights: fp8, {more}" for name, more in {
                # Rows and scales that end within a piece, a sweep and a tile.
                "2112 channels, many tokens":
                    "expert: {ffn: 64, fp8_group_size: 64}, algorithm: {dispatch_dtype: fp8, waves: 3}, " +
                    MANY_LAYER_TOKENS.replace("moe.hidden: 128", "moe.hidden: 2112"),
                "2112 channels, many tokens, one wave":
                    "expert: {ffn: 64, fp8_group_size: 64}, algorithm: {dispatch_dtype: fp8, waves: 1}, " +
                    MANY_LAYER_TOKENS.replace("moe.hidden: 128", "moe.hidden: 2112"),
                "more than 64 rows":
                    "moe: {hidden: 832, max_tokens: 150, experts: 4}, expert: {ffn: 576, fp8_group_size: 64}, "
                    "algorithm.dispatch_dtype: fp8, verify.iterations: 2",
                "f16, more than 64 rows, no activation":
                    "moe: {hidden: 576, max_tokens: 150, experts: 4, dtype: f16}, algorithm.dispatch_dtype: fp8, "
                    "expert: {ffn: 320, fp8_group_size: 64, activation: none, values: random}, verify.iterations: 2",
                "f16, 384 within, more than 64 rows":
                    "moe: {hidden: 448, max_tokens: 150, experts: 4, dtype: f16}, expert.ffn: 384, "
                    "algorithm.dispatch_dtype: fp8, verify.iterations: 2",
                "2880 channels, 2880 within":
                    "moe: {hidden: 2880, max_tokens: 20, experts: 4}, expert: {ffn: 2880, fp8_group_size: 64}, "
                    "algorithm.dispatch_dtype: fp8, verify.iterations: 1",
            }.items()},
            "usual kernels, rows are counted": "algorithm.capacity: 64",
            "usual kernels, 300 tokens, rows are counted": "moe.max_tokens: 300, algorithm.capacity: 64, verify.iterations: 2",
            "usual kernels, few blocks, which warps watch alone":
                "moe.max_tokens: 300, moe.experts: 2, moe.topk: 1, algorithm.capacity: 64, verify.iterations: 3",
            "usual kernels, FP8, 600 tokens, two warps add up one":
                "algorithm: {dispatch_dtype: fp8, capacity: 64}, expert.weights: fp8, moe.max_tokens: 600, moe.hidden: 640, "
                "expert.ffn: 128, moe.experts: 4, verify.iterations: 2",
            "usual kernels, FP8, rows are counted":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, algorithm.capacity: 64",
            "usual kernels, FP8, rows are picked, ranks straggle, skewed":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, moe.max_tokens: 100, verify.straggle: 1ms, "
                "routing: {kind: zipf, exponent: 1.5}",
            "usual kernels, FP8, rows are picked, one expert gets everything":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, moe.max_tokens: 128, moe.topk: 1, "
                "routing: {kind: hot, share: 1}",
            "usual kernels, rows are picked, one rank": "ranks: 1, moe.max_tokens: 250, routing: {kind: masked, share: 0.5}",
            "usual kernels, f16, rows are picked, one block": "moe.dtype: f16, algorithm.blocks: 1, moe.max_tokens: 50",
            "usual kernels, FP8, rows are picked, long ones, two blocks":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, algorithm.blocks: 2, moe.max_tokens: 40, "
                "moe.hidden: 4224, expert.ffn: 128, moe.experts: 64, verify.iterations: 2",
            "usual kernels, FP8, rows are picked, three ranks, 640 channels":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, ranks: 3, moe.experts: 15, "
                "moe.max_tokens: 80, moe.hidden: 640, expert.ffn: 384, verify.iterations: 2",
            "usual kernels, FP8, rows are picked, four ranks, 512 tokens, seven choices":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, ranks: 4, moe.experts: 16, moe.topk: 7, "
                "moe.max_tokens: 128, verify.iterations: 2",
            "usual kernels, FP8, rows are picked, 500 tokens a rank, 32 choices":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, moe.max_tokens: 500, moe.experts: 64, "
                "moe.topk: 32, verify.iterations: 2",
            "usual kernels, FP8, rows are picked, 1000 tokens a rank, of one expert more than a unit":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, moe.max_tokens: 1000, moe.hidden: 128, "
                "expert.ffn: 128, moe.experts: 4, moe.topk: 2, routing: {kind: zipf, exponent: 2}, verify.iterations: 2",
            "usual kernels, FP8, rows are picked, parts of 1024 channels":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, moe.max_tokens: 500, moe.hidden: 1152, "
                "expert.ffn: 128, moe.experts: 6, moe.topk: 3, verify.iterations: 2",
            "usual kernels, FP8, masks of 300 tokens have no room":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, moe.max_tokens: 300, moe.experts: 600, "
                "verify.iterations: 2",
            "usual kernels, few tokens, ranks straggle": "moe.max_tokens: 4, verify.straggle: 1ms, verify.iterations: 8",
            "usual kernels, few tokens, one block": "algorithm.blocks: 1, moe.max_tokens: 4",
            "usual kernels, few tokens, one rank": "ranks: 1, routing: {kind: masked, share: 0.5}",
            "usual kernels, FP8, few tokens, three ranks, 640 channels":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, ranks: 3, moe.experts: 15, "
                "moe.max_tokens: 10, moe.hidden: 640, expert.ffn: 384",
            "usual kernels, f16, FP8, many tokens":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, moe.dtype: f16, " + MANY_LAYER_TOKENS,
            "usual kernels, f16, not sorted, many tokens":
                "moe.dtype: f16, algorithm.sort: false, " + MANY_LAYER_TOKENS,
            "usual kernels, FP8, blocks of 144 rows":
                "algorithm: {dispatch_dtype: fp8, block_rows: 144, capacity: 64}, expert.weights: fp8, "
                "moe.max_tokens: 136, moe.experts: 8, moe.topk: 4, tokens: full, verify.iterations: 4",
            "usual kernels, FP8, blocks of 144 rows, three ranks, skewed, few blocks":
                "algorithm: {dispatch_dtype: fp8, block_rows: 144, capacity: 64, blocks: 3}, expert.weights: fp8, "
                "ranks: 3, moe.max_tokens: 140, moe.experts: 9, routing: {kind: zipf, exponent: 1}, verify.iterations: 3",
            "usual kernels, f16, FP8, blocks of 144 rows, many tokens":
                "algorithm: {dispatch_dtype: fp8, block_rows: 144, capacity: 64}, expert.weights: fp8, moe.dtype: f16, "
                "expert.values: random, moe.max_tokens: 530, moe.experts: 8, moe.hidden: 128, verify.iterations: 2",
            "usual kernels, FP8, the input is quantised already, blocks of 144 rows":
                "algorithm: {dispatch_dtype: fp8, block_rows: 144, capacity: 64}, expert.weights: fp8, "
                "moe.input_dtype: fp8, ranks: 1, moe.max_tokens: 400, moe.experts: 6, expert.ffn: 384",
            "usual kernels, FP8, the input is quantised already":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, moe.input_dtype: fp8",
        },
    },
}

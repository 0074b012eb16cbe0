"""Input of pairs.py: for each matrix file its axes and rules.

An axis is a list of values: a name, and its settings for a run. The first value of an axis is the
usual one. `never` names pairs that an algorithm refuses, or that have no effect. `always`
are combinations of more than two values that must occur; other axes are free in them. `also` are
runs for settings that do not combine.
"""

PROMISES = {
    "counts change with every iteration": "",
    "one rank is a world": "ranks: 1",
    "two ranks": "ranks: 2",
    "three ranks": "ranks: 3, moe.experts: 15",
    "seven ranks": "ranks: 7, moe.experts: 14",
    "eight ranks": "ranks: 8, verify.iterations: 20",
    "as many experts as ranks": "moe.experts: 4",
    "one expert gets everything": "moe.topk: 1, routing: {kind: hot, share: 1}",
    "most want one expert": "routing: {kind: hot, share: 0.9}",
    "popularity is skewed": "routing: {kind: zipf, exponent: 1.5}",
    "popularity is lognormal": "routing: {kind: lognormal, sigma: 2}",
    "choices are dropped": "routing: {kind: masked, share: 0.5}",
    "all choices are dropped": "routing: {kind: masked, share: 1}",
    "nobody has tokens": "tokens: [0, 0, 0, 0]",
    "some ranks have no tokens": "tokens: [16, 0, 3, 0]",
    "all tokens there is room for": "tokens: full",
    "one token": "moe.max_tokens: 1, tokens: full",
    "one choice": "moe.topk: 1",
    "32 choices": "moe.topk: 32, moe.experts: 64, verify.iterations: 10",
    "every expert is chosen": "moe.topk: 16",
    "small groups": "moe.fp8_group_size: 16, moe.hidden: 272",
    "one group a row": "moe.fp8_group_size: 384, moe.hidden: 384",
    "groups of 96": "moe.fp8_group_size: 96, moe.hidden: 480",
    "the real width": "moe.hidden: 7168, verify.iterations: 4",
    "many tokens": "moe.max_tokens: 512, verify.iterations: 2, tokens: full",
    "input is quantised already": "moe.input_dtype: fp8",
    "the caller places expert outputs": "expert.output: separate",
    "experts differ by rank, weights add up to anything":
        "expert.kind: rank, routing.weights: uniform, tokens.min: 1",
    "ranks straggle": "verify.straggle: 2ms, verify.iterations: 60",
    "a thousand iterations at full speed": "ranks: 3, moe.experts: 15, moe.hidden: 128, "
        "moe.max_tokens: 4, verify.iterations: 1000",
    "full speed, few iterations checked": "ranks: 2, moe.hidden: 128, moe.max_tokens: 4, "
        "verify.iterations: 1500, verify.check_every: 97",
    "two workers a rank": "backend.workers: 2, ranks: 2",
    "three workers a rank": "backend.workers: 3, ranks: 2",
    # Unquantised rows; the first three widths do not permit groups of 128.
    "a width of 16": "moe.hidden: 16",
    "an odd width": "moe.hidden: 1040",
    "tolerance of a contest": "expert.kind: rank, routing.weights: uniform, "
        "verify.tolerance: allclose, verify.rtol: 0.03",
}
UNQUANTISED = ["a width of 16", "an odd width", "tolerance of a contest"]

TRANSPORTS = {
    "shm": "transport: shm",
    "reorder": "transport: reorder",
    "reorder to half": "transport: reorder, transport.peers: pair",
}
ORDERS = {
    "in turn": "",
    "pipelined": "verify.order: pipelined",
    "one buffer set": "algorithm.buffers: 1",
}
GIVEN_UP = {
    "discarded dispatches": "verify.order: discard",
    "combines again": "verify.order: again",
}
LAUNCHERS = {"processes": "", "threads": "launcher: thread"}
WIRES = {"as FP8": "algorithm.dispatch_dtype: fp8", "as it is": "algorithm.dispatch_dtype: native"}
DTYPES = {"bf16": "", "f16": "moe.dtype: f16"}
DTYPES_OF_GEMM = {"bf16": "", "f16": "gemm.dtype: f16", "fp8": "gemm.dtype: fp8"}
STORES = {
    "stores by size": "",
    "cached stores": "algorithm.nontemporal: off",
    "streaming stores": "algorithm.nontemporal: on",
}
# Promises that depend on UCX, for each of its links.
UCX_PROMISES = ["counts change with every iteration", "eight ranks", "some ranks have no tokens",
                "the real width", "ranks straggle", "full speed, few iterations checked"]

MANY_RANKS = "ranks: 64, moe.experts: 64, verify.iterations: 3, moe.max_tokens: 4"
MANY_TOKENS = "ranks: 2, moe.max_tokens: 4096, moe.hidden: 128, moe.topk: 2, verify.iterations: 2"
NODES = "transport: reorder, transport.peers: node"
TWO_NODES = "ranks_per_node: 2, " + NODES
THREE_NODES = "ranks: 6, moe.experts: 12, ranks_per_node: 2, " + NODES
ONE_PUT = "transport: reorder, transport.room: 1, moe.max_tokens: 64, tokens: full, " \
    "verify.iterations: 4"
SLICES = "transport: reorder, moe.max_tokens: 512, moe.hidden: 1024, tokens: full, " \
    "verify.iterations: 2"
HOST_ALSO = {
    "64 ranks": MANY_RANKS,
    "the largest width": "moe.hidden: 131072, moe.max_tokens: 2, verify.iterations: 1",
    "four ranks of two nodes, pipelined": TWO_NODES + ", verify.order: pipelined",
    "room for one put at a time": ONE_PUT,
    "4096 tokens": MANY_TOKENS,
}

# Real experts need multiples of 32 channels; the layer is one stage.
CHANNELS_IN_32S = "moe.hidden: 96, expert.ffn: 160, moe.fp8_group_size: 32"
CHANNELS_IN_64S = "moe.hidden: 192, expert.ffn: 320, moe.fp8_group_size: 64"
FP8_BY_64 = "expert.weights: fp8, expert.fp8_group_size: 64"
MLP_PROMISES = {name: text for name, text in PROMISES.items()
                if name not in UNQUANTISED + ["small groups", "groups of 96",
                                              "a thousand iterations at full speed",
                                              "the caller places expert outputs",
                                              "experts differ by rank, weights add up to anything"]}
MLP_PROMISES |= {
    "groups of 32": "moe.fp8_group_size: 32",
    "weights add up to anything": "routing.weights: uniform, tokens.min: 1",
    "a wide intermediate": "expert.ffn: 640, verify.iterations: 5",
    "channels in 32s": CHANNELS_IN_32S,
    "channels in 64s": CHANNELS_IN_64S,
    "eight ranks": "ranks: 8, verify.iterations: 6",
    "32 choices": "moe.topk: 32, moe.experts: 64, verify.iterations: 4",
    "ranks straggle": "verify.straggle: 2ms, verify.iterations: 10",
    "the real width": "moe.hidden: 7168, verify.iterations: 2, moe.max_tokens: 4",
    "many tokens": "moe.max_tokens: 256, verify.iterations: 2, tokens: full",
    "full speed, few iterations checked": "ranks: 2, moe.hidden: 128, moe.max_tokens: 4, "
        "verify.iterations: 1000, verify.check_every: 97",
}
ROLES = "algorithm: {tail: true, dispatch_workers: 1, tail_workers: 1, combine_workers: 1}, "
SOME_RANKS = ROLES + "backend.workers: 4, ranks: 2"

NEVER_QUANTISED = [(UNQUANTISED, ["as FP8"]), (["input is quantised already"], ["as it is"])]

TOKEN_FLAG_WAYS = [
    {"inline reset": "", "reset by memset": "algorithm.counter_reset: memset"},
    {"divided evenly": "", "divided by source": "algorithm.work_partition: by_source"},
    {"separate experts": "", "fused": "algorithm.fuse_expert: true"},
    {"in one": "", "in 3 chunks": "algorithm.chunks: 3", "in 1024 chunks": "algorithm.chunks: 1024"},
]
TOKEN_FLAG_NEVER = [(["the caller places expert outputs"], ["fused"]),
                    (["a flag a rank"], ["in 3 chunks", "in 1024 chunks"])]
FUSED_WAYS = [
    {"dedup": "", "no dedup": "algorithm.dedup: false"},
    {"sorted": "", "not sorted": "algorithm.sort: false"},
    {"scatter": "", "gather": "algorithm.combine_mode: gather", "serial": "algorithm.combine_mode: serial"},
    {"ready by block": "", "ready by expert": "algorithm.ready: expert"},
    {"one launch": "", "two launches": "algorithm.launches: two"},
    {"dynamic": "", "static": "algorithm.queue: static"},
]
FUSED_TILES = {"tiles of 128 columns": "", "wide tiles": "algorithm.tile_cols: 256", "tiles of 128 k": "algorithm.tile_k: 128"}
FUSED_RETURNS = {"rows return whole": "", "rows return in parts": "algorithm.combine_cols: 256"}
FUSED_GROUPS = {"groups of two blocks": "algorithm.group_blocks: 2, algorithm.column_splits: 2",
                "groups of all blocks": "algorithm.group_blocks: 64, algorithm.column_splits: 2"}

FILES = {
    "ll_v2": {
        "base": ["algorithm: ll_v2"],
        "axes": [
            PROMISES,
            TRANSPORTS,
            {"by expert": "", "by rank": "algorithm.layout: rank", "dedup": "algorithm.dedup: true"},
            ORDERS,
            WIRES,
            DTYPES,
            STORES,
            {"packed": "", "padded": "algorithm.recv_layout: padded"},
            {"outputs as they are": "", "FP8 outputs": "algorithm.combine_dtype: fp8"},
            LAUNCHERS,
        ],
        "never": NEVER_QUANTISED + [
            (UNQUANTISED, ["FP8 outputs"]),
        ],
        "always": [[transport, *values] for values in (
            ["by expert"],
            ["by expert", "pipelined"],
            ["by expert", "one buffer set"],
            ["by rank", "pipelined"],
            ["dedup", "pipelined", "FP8 outputs"],
            ["padded", "FP8 outputs"],
            ["dedup", "padded", "FP8 outputs", "one buffer set"],
            ["by rank", "padded", "FP8 outputs", "pipelined"],
        ) for transport in TRANSPORTS] + [
            ["dedup", "FP8 outputs", "one buffer set", "as it is", "bf16"],
            ["dedup", "FP8 outputs", "one buffer set", "as it is", "f16"],
            ["dedup", "as it is", "f16", "small groups"],
            ["dedup", "FP8 outputs", "streaming stores"],
            ["dedup", "FP8 outputs", "threads", "reorder"],
            ["as it is", "f16", "tolerance of a contest"],
            ["dedup", "padded", "tolerance of a contest", "as it is", "f16"],
            ["streaming stores", "three workers a rank"],
            ["dedup", "reorder", "three workers a rank"],
        ],
        "also": HOST_ALSO | {
            "tokens in parts of whole groups of 96, all ways of storing": # while auto tries them
                "moe.fp8_group_size: 96, moe.hidden: 2016, verify.iterations: 40",
            "room for twice the even share": "algorithm.capacity: 2",
            "room for twice the even share, by rank, reorder, pipelined":
                "algorithm.capacity: 2, algorithm.layout: rank, transport: reorder, "
                "verify.order: pipelined",
            "room for twice the even share, dedup, reorder, pipelined":
                "algorithm.capacity: 2, algorithm.dedup: true, transport: reorder, "
                "verify.order: pipelined",
            "64 ranks, dedup, FP8 outputs": MANY_RANKS.replace("experts: 64", "experts: 128") +
                ", algorithm.dedup: true, algorithm.combine_dtype: fp8",
            "six ranks of two nodes, by rank":
                THREE_NODES.replace("per_node: 2", "per_node: 3") + ", algorithm.layout: rank",
            "six ranks of three nodes, dedup, FP8 outputs":
                THREE_NODES + ", algorithm.dedup: true, algorithm.combine_dtype: fp8",
            "room for one put at a time, dedup": ONE_PUT + ", algorithm.dedup: true",
            "slices of many tokens, reorder to half, dedup":
                SLICES + ", transport.peers: pair, algorithm.dedup: true",
        },
    },
    "ll_v1": {
        "base": ["algorithm: ll_v1"],
        "axes": [
            PROMISES,
            TRANSPORTS,
            {"pulled": "", "pushed": "algorithm.exchange: push"},
            ORDERS,
            WIRES,
            DTYPES,
            STORES,
            LAUNCHERS,
        ],
        "never": NEVER_QUANTISED,
        "always": [[transport, *values] for values in (
            ["pulled", "in turn"],
            ["pulled", "pipelined"],
            ["pushed", "one buffer set"],
            ["pushed", "pipelined"],
        ) for transport in TRANSPORTS] + [
            ["reorder to half", "pushed", "pipelined", "the caller places expert outputs"],
            ["pushed", "streaming stores"],
            ["pushed", "three workers a rank"],
            ["reorder", "threads", "pipelined"],
        ],
        "also": HOST_ALSO | {
            f"{order}, {way}, {transport}": f"{more}, algorithm.exchange: {way}, {over}, verify.iterations: 100"
            for order, more in GIVEN_UP.items() for way in ("pull", "push") for transport, over in TRANSPORTS.items()
        } | {
            "room for four times the even share": "algorithm.capacity: 4",
            "room for four times the even share, reorder, pipelined":
                "algorithm.capacity: 4, transport: reorder, verify.order: pipelined",
            "six ranks of three nodes, pushed": THREE_NODES + ", algorithm.exchange: push",
            "slices of blocks": SLICES,
            "slices of blocks, reorder to half": SLICES + ", transport.peers: pair",
        },
    },
    "token_flag": {
        "base": ["algorithm: token_flag"],
        "axes": [
            PROMISES,
            TRANSPORTS,
            {"a flag a token": "", "a flag a rank": "algorithm.flag_granularity: rank"},
            ORDERS,
            WIRES,
            DTYPES,
            *TOKEN_FLAG_WAYS,
            {"cached stores": "", "streaming stores": "algorithm.nontemporal: on"},
            LAUNCHERS,
        ],
        "never": NEVER_QUANTISED + TOKEN_FLAG_NEVER,
        "always": [[transport, *values] for values in (
            ["as it is", "bf16"],
            ["as it is", "bf16", "pipelined"],
            ["a flag a rank", "reset by memset", "divided by source"],
            ["a flag a rank", "reset by memset", "divided by source", "one buffer set"],
            ["fused", "pipelined"],
            ["fused", "as FP8", "bf16", "in 3 chunks", "one buffer set"],
            ["in 3 chunks", "reset by memset", "divided by source", "pipelined"],
            *[["three workers a rank", divided, flag] for flag in ("a flag a rank", "a flag a token")
              for divided in ("divided evenly", "divided by source")],
            *[[experts, wire, "f16"] for experts in ("fused", "separate experts") for wire in WIRES],
        ) for transport in TRANSPORTS] + [
            ["a flag a rank", "reset by memset", "divided by source", "streaming stores"],
            ["streaming stores", "fused", "reorder to half"],
            ["in 1024 chunks", "reorder to half"],
            ["in 3 chunks", "reorder", "threads"],
            ["two workers a rank", "fused", "threads"],
        ],
        "also": HOST_ALSO | {
            "5 chunks, two workers a rank, reorder to half":
                "algorithm.chunks: 5, backend.workers: 2, moe.max_tokens: 64, transport: reorder, "
                "transport.peers: pair",
            "5 chunks, ranks straggle": "algorithm.chunks: 5, verify.straggle: 2ms, moe.max_tokens: 64",
            "six ranks of three nodes, a flag a rank, reset by memset, divided by source":
                THREE_NODES + ", algorithm.flag_granularity: rank, algorithm.counter_reset: memset, "
                "algorithm.work_partition: by_source",
            "slices of many tokens": SLICES,
        },
    },
    # Layers of token_flag in parts of the tokens.
    "token_flag_layer": {
        "base": ["algorithm: {name: token_flag, parts: 3}", "expert: {kind: mlp, ffn: 128}", "verify: {iterations: 4}"],
        "axes": [
            MLP_PROMISES,
            TRANSPORTS,
            {"three parts": "", "one part": "algorithm.parts: 1", "two parts": "algorithm.parts: 2",
             "more parts than tokens": "algorithm.parts: 1000"},
            {"a flag a token": "", "a flag a rank": "algorithm.flag_granularity: rank"},
            {"inline reset": "", "reset by memset": "algorithm.counter_reset: memset"},
            {"divided evenly": "", "divided by source": "algorithm.work_partition: by_source"},
            {"in one": "", "in 3 chunks": "algorithm.chunks: 3"},
            {"as it is": "", "as FP8": "algorithm.dispatch_dtype: fp8"},
            {"weights as rows": "", "FP8 weights": "expert.weights: fp8", "FP8 weights, groups of 64": FP8_BY_64,
             "INT8 weights": "expert.weights: int8"},
            {"SwiGLU": "", "no activation": "expert.activation: none"},
            {"dense": "expert.values: random", "integers": "expert.values: integers"},
            DTYPES,
            LAUNCHERS,
        ],
        "never": [
            (["input is quantised already"], ["as it is"]),
            (["groups of 32", "one group a row", "channels in 32s"], ["FP8 weights", "FP8 weights, groups of 64"]),
            (["channels in 64s"], ["FP8 weights"]),
            (["a flag a rank"], ["in 3 chunks"]),
        ],
        "always": [[transport, *values] for values in (
            ["ranks straggle", "three parts"],
            ["some ranks have no tokens", "more parts than tokens"],
            ["nobody has tokens", "two parts"],
            ["three workers a rank", "three parts", "threads"],
            ["a flag a rank", "reset by memset", "three parts"],
            ["all tokens there is room for", "more parts than tokens"],
        ) for transport in TRANSPORTS],
        "also": {
            f"synthetic experts, {name}": f"expert: {{kind: rank}}, algorithm.fuse_expert: true, {settings}"
            for name, settings in {
                "shm": "algorithm.parts: 5", "reorder": "transport: reorder",
                "reorder to half, as FP8": "transport: reorder, transport.peers: pair, algorithm.dispatch_dtype: fp8",
            }.items()
        } | {
            "64 ranks": MANY_RANKS,
            "six ranks of three nodes": THREE_NODES,
            "room for one put at a time": ONE_PUT + ", moe.hidden: 256",
            "2048 tokens in 7 parts": MANY_TOKENS.replace("4096", "2048") + ", algorithm.parts: 7",
        },
    },
    "fused": {
        "base": ["algorithm: fused", "expert: {kind: mlp, ffn: 128}", "verify: {iterations: 4}"],
        "axes": [
            MLP_PROMISES,
            TRANSPORTS,
            *FUSED_WAYS,
            {"one stage": "", "tail": "algorithm.tail: true"},
            {"padded": "", "packed": "algorithm.recv_layout: packed"},
            {"blocks of 128": "", "blocks of 32": "algorithm.block_rows: 32",
             "columns in three": "algorithm.column_splits: 3", **FUSED_GROUPS},
            FUSED_TILES,
            FUSED_RETURNS,
            {"as it is": "", "as FP8": "algorithm.dispatch_dtype: fp8"},
            {"weights as rows": "", "FP8 weights": "expert.weights: fp8", "FP8 weights, groups of 64": FP8_BY_64,
             "INT8 weights": "expert.weights: int8"},
            {"SwiGLU": "", "no activation": "expert.activation: none"},
            {"dense": "expert.values: random", "integers": "expert.values: integers"},
            DTYPES,
            LAUNCHERS,
        ],
        "never": [
            (["input is quantised already"], ["as it is"]),
            (["groups of 32", "one group a row", "channels in 32s"], ["FP8 weights", "FP8 weights, groups of 64"]),
            (["channels in 64s"], ["FP8 weights"]),
        ],
        "always": [[transport, *values] for values in (
            ["three workers a rank", "packed"],
            ["three workers a rank", "gather", "no dedup"],
            ["two workers a rank", "threads", "ready by expert"],
            ["ranks straggle", "static"],
        ) for transport in TRANSPORTS],
        "also": {
            "workers of each role": SOME_RANKS,
            "workers of each role, static, reorder":
                SOME_RANKS + ", algorithm.queue: static, transport: reorder",
            "workers of each role, reorder to half, threads":
                SOME_RANKS + ", transport: reorder, transport.peers: pair, launcher: thread",
            "room for twice the even share": "algorithm.capacity: 2",
            "room for twice the even share, packed, reorder":
                "algorithm.capacity: 2, algorithm.recv_layout: packed, transport: reorder",
            "64 ranks": MANY_RANKS,
            "six ranks of three nodes": THREE_NODES,
            "room for one put at a time": ONE_PUT + ", moe.hidden: 256",
            "2048 tokens": MANY_TOKENS.replace("4096", "2048"),
        },
    },
    "ucx": {
        "axes": [
            {name: PROMISES[name] for name in UCX_PROMISES},
            {"posix": "transport.tls: 'posix,self'",
             "posix by puts": "transport.tls: 'posix,self', transport.direct: false",
             "tcp": "transport.tls: 'tcp,self'",
             "two nodes": "ranks_per_node: 2"},
            {"ll_v2": "algorithm: ll_v2",
             "ll_v2 by rank, pipelined": "algorithm: ll_v2, algorithm.layout: rank, verify.order: pipelined",
             "ll_v2 dedup, FP8 outputs, pipelined": "algorithm: ll_v2, algorithm.dedup: true, "
                 "algorithm.combine_dtype: fp8, verify.order: pipelined",
             "ll_v1": "algorithm: ll_v1",
             "ll_v1 pushed, pipelined": "algorithm: ll_v1, algorithm.exchange: push, verify.order: pipelined",
             "token_flag": "algorithm: token_flag",
             "token_flag by rank and source, pipelined": "algorithm: token_flag, "
                 "algorithm.flag_granularity: rank, algorithm.counter_reset: memset, algorithm.work_partition: by_source, "
                 "verify.order: pipelined",
             "token_flag fused, FP8, in 3 chunks": "algorithm: token_flag, "
                 "algorithm.fuse_expert: true, algorithm.dispatch_dtype: fp8, algorithm.chunks: 3",
             "token_flag, a layer in 3 parts": "algorithm: token_flag, algorithm.parts: 3, expert.kind: mlp, expert.ffn: 128",
             "fused": "algorithm: fused, expert.kind: mlp, expert.ffn: 128",
             "fused, ready by expert, packed, FP8": "algorithm: fused, algorithm.ready: expert, "
                 "algorithm.recv_layout: packed, algorithm.dispatch_dtype: fp8, "
                 "expert.kind: mlp, expert.ffn: 128, expert.weights: fp8"},
        ],
        "base": ["transport: ucx"],
        # GEMMs dominate the time there; the runs of fused cover reorder.
        "never": [(["the real width", "ranks straggle"],
                   ["token_flag, a layer in 3 parts", "fused", "fused, ready by expert, packed, FP8"])],
        "also": {"one rank is a world, ll_v2": "algorithm: ll_v2, ranks: 1"},
    },
    # Experts that the core computes between the stages.
    "experts": {
        "base": ["ranks: 2", "moe: {hidden: 256}", "expert: {kind: mlp, ffn: 256}", "verify: {iterations: 2}"],
        "axes": [
            {"counts change with every iteration": "",
             "one rank is a world": "ranks: 1",
             "seven ranks": "ranks: 7, moe.experts: 14",
             "choices are dropped": "routing: {kind: masked, share: 0.5}",
             "most want one expert": "routing: {kind: hot, share: 0.9}",
             "some ranks have no tokens": "ranks: 4, tokens: [16, 0, 3, 0]",
             "nobody has tokens": "tokens: [0, 0]",
             "32 choices": "moe.topk: 32, moe.experts: 64, moe.max_tokens: 4",
             "the fewest channels": "moe.hidden: 32, expert.ffn: 32, moe.fp8_group_size: 32",
             "channels in 32s": CHANNELS_IN_32S,
             "channels in 64s": CHANNELS_IN_64S,
             "more rows than a task": "moe.max_tokens: 300, moe.experts: 4, moe.topk: 2, "
                 "tokens: full, moe.hidden: 128, expert.ffn: 128, verify.iterations: 1",
             "three workers a rank": "backend.workers: 3",
             "any weights": "routing.weights: uniform",
             "the caller places expert outputs": "expert.output: separate"},
            {"ll_v2": "algorithm: ll_v2",
             "ll_v2 by rank": "algorithm: ll_v2, algorithm.layout: rank",
             "ll_v2 by rank, FP8 outputs":
                 "algorithm: ll_v2, algorithm.layout: rank, algorithm.combine_dtype: fp8",
             "ll_v2 dedup, padded": "algorithm: ll_v2, algorithm.dedup: true, algorithm.recv_layout: padded",
             "ll_v2, FP8 outputs": "algorithm: ll_v2, algorithm.combine_dtype: fp8",
             "ll_v1": "algorithm: ll_v1",
             "token_flag": "algorithm: token_flag"},
            {"native": "", "FP8 weights": "expert.weights: fp8",
             "FP8 weights, groups of 64": FP8_BY_64, "INT8 weights": "expert.weights: int8"},
            {"swiglu": "", "no activation": "expert.activation: none"},
            {"random": "expert.values: random", "integers": "expert.values: integers"},
            DTYPES,
            WIRES,
            TRANSPORTS,
            {"in turn": "", "pipelined": "verify.order: pipelined"},
        ],
        "never": [
            (["the fewest channels", "channels in 32s"], ["FP8 weights", "FP8 weights, groups of 64"]),
            (["channels in 64s"], ["FP8 weights"]),
        ],
    },
    "experts_onednn": {
        "base": ["ranks: 2", "moe: {hidden: 256}",
                 "expert: {kind: mlp, ffn: 384, library: onednn}", "verify: {iterations: 2}"],
        "axes": [
            {"counts change with every iteration": "",
             "seven ranks": "ranks: 7, moe.experts: 14",
             "nobody has tokens": "tokens: [0, 0]",
             "more rows than a task": "moe.max_tokens: 300, moe.experts: 4, moe.topk: 2, "
                 "tokens: full, verify.iterations: 1",
             "channels in 32s": CHANNELS_IN_32S,
             "three workers a rank": "backend.workers: 3"},
            {"ll_v2": "algorithm: ll_v2",
             "ll_v2 by rank": "algorithm: ll_v2, algorithm.layout: rank",
             "token_flag": "algorithm: token_flag"},
            {"swiglu": "", "no activation": "expert.activation: none"},
            {"random": "expert.values: random", "integers": "expert.values: integers"},
            WIRES,
            LAUNCHERS,
        ],
    },
    # The fused layer with experts of small integers; each element is compared to the bit.
    "fused_layer": {
        "base": ["ranks: 3", "algorithm: {name: fused, block_rows: 32}", "seed: 5",
                 "moe: {max_tokens: 40, hidden: 512, experts: 9}",
                 "expert: {kind: mlp, ffn: 128, activation: none, values: integers}",
                 "routing: {kind: masked, share: 0.2, weights: uniform}", "verify: {iterations: 12}",
                 "bench: {warmup: 0, iterations: 3}"],
        "axes": [
            {"one worker": "", "two workers": "backend.workers: 2", "three workers": "backend.workers: 3"},
            *FUSED_WAYS,
            {"one stage": "", "tail": "algorithm.tail: true"},
            {"padded": "", "packed": "algorithm.recv_layout: packed"},
            {"columns in one": "", "columns in three": "algorithm.column_splits: 3", **FUSED_GROUPS},
            FUSED_TILES,
            FUSED_RETURNS,
            {"as it is": "", "as FP8": "algorithm.dispatch_dtype: fp8"},
            {"weights as rows": "", "FP8 weights": "expert.weights: fp8", "INT8 weights": "expert.weights: int8"},
        ],
        "also": {
            "a worker for each role": ROLES + "backend.workers: 5",
            "a worker for each role, static": ROLES + "backend.workers: 4, algorithm.queue: static",
            "worker 0 combines": "algorithm.combine_workers: 1, backend.workers: 2",
            "room for 2.5 times the even share": "algorithm.capacity: 2.5, algorithm.recv_layout: packed",
        },
    },
    "allgather": {
        "base": [],
        "axes": [
            {"counts change with every iteration": "", "one rank": "ranks: 1", "two ranks": "ranks: 2",
             "eight ranks": "ranks: 8, verify.iterations: 20", "no rank has rows": "tokens: [0, 0, 0, 0]",
             "some ranks have no rows": "tokens: [16, 0, 3, 0]", "all rows there is room for": "tokens: full",
             "one row": "allgather.max_rows: 1, tokens: full",
             "rows of 16 bytes": "allgather.row_bytes: 16, allgather.max_rows: 100",
             "rows of lines": "allgather.row_bytes: 14336, verify.iterations: 10",
             "many rows": "allgather.max_rows: 2000, allgather.row_bytes: 256, verify.iterations: 5",
             "ranks straggle": "verify.straggle: 2ms, verify.iterations: 60",
             "three workers a rank": "backend.workers: 3, ranks: 2, allgather.max_rows: 100",
             "full speed, few iterations checked":
                 "ranks: 2, allgather.max_rows: 4, verify.iterations: 2000, verify.check_every: 97"},
            TRANSPORTS,
            {"pushed": "", "pulled": "algorithm.mode: pull"},
            {"one chunk": "", "in 3 chunks": "algorithm.chunks: 3", "in 1024 chunks": "algorithm.chunks: 1024"},
            {"stores by size": "", "streaming stores": "algorithm.nontemporal: on"},
            LAUNCHERS,
        ],
        "never": [(["pulled"], ["reorder", "reorder to half"])],
        "also": {
            "64 ranks": "ranks: 64, verify.iterations: 3, allgather.max_rows: 4",
            "two nodes": TWO_NODES,
            "three nodes, in chunks": "ranks: 6, algorithm.chunks: 4, " + TWO_NODES,
            "room for one put at a time": "transport: reorder, transport.room: 1, algorithm.chunks: 16",
        },
    },
    "ag_gemm_2d": {
        "base": ["algorithm: {name: ag_gemm_2d, tile_rows: 32, tile_cols: 64}"],
        "axes": [
            {"rows change with every iteration": "", "random values": "gemm.values: random",
             "too many to compare each":
                 "gemm: {values: random, m: 600, n: 800, k: 1096}, ranks: 2, verify.iterations: 3",
             "whole tiles": "gemm: {m: 256, n: 512, k: 256}, tokens: full", "one rank": "ranks: 1",
             "two ranks, three workers each": "ranks: 2, backend.workers: 3, gemm.m: 700",
             "a worker for communication":
                 "ranks: 2, backend.workers: 2, algorithm.comm_worker: true, gemm.m: 300",
             "eight ranks, straddling tiles": "ranks: 8, gemm: {m: 50, n: 64, k: 8}",
             "sixteen ranks": "ranks: 16, gemm: {m: 100, n: 80, k: 72}, verify.iterations: 5",
             "no rank has rows": "tokens: [0, 0, 0, 0]", "some ranks have no rows": "tokens: [61, 0, 3, 0]",
             "rows that ranks do not divide": "tokens: full, gemm.m: 131",
             "columns that ranks do not divide": "gemm.n: 255", "one rank has columns": "gemm.n: 1",
             "one row of all ranks": "tokens: full, gemm.m: 1", "k of one step": "gemm: {k: 8, n: 4}",
             "ranks straggle": "verify.straggle: 2ms, verify.iterations: 40",
             "full speed, few iterations checked": "ranks: 2, gemm: {m: 40, n: 64, k: 64}, "
                 "verify.iterations: 1000, verify.check_every: 97"},
            TRANSPORTS | {"two nodes": TWO_NODES},
            {"pushed": "", "pulled": "algorithm.mode: pull"},
            DTYPES_OF_GEMM,
            {"no bias": "", "bias": "gemm.bias: true"},
            {"across ranks": "", "each rank's rows begin a tile": "algorithm.across_ranks: false"},
            {"in order": "", "order none": "algorithm.order: none", "swizzle": "algorithm.order: swizzle"},
            {"some chunks": "", "one chunk": "algorithm.chunks: 1", "64 chunks": "algorithm.chunks: 64"},
            {"small tiles": "", "large tiles": "algorithm: {tile_rows: 4096, tile_cols: 4096}",
             "C in FP8": "gemm.out_dtype: fp8, algorithm.tile_cols: 128",
             "C in FP8, large tiles": "gemm.out_dtype: fp8, algorithm: {tile_rows: 4096, tile_cols: 4096}"},
            LAUNCHERS,
        ],
        "never": [(["pulled"], ["reorder"]), (["one rank"], ["two nodes"])],
        "also": {
            "two nodes, each to all": TWO_NODES + ", algorithm.gather: 1d",
            "three nodes, in chunks": "ranks: 6, gemm.n: 396, algorithm.chunks: 7, " + TWO_NODES,
            "three nodes of three, swizzle": "ranks: 9, gemm.n: 396, ranks_per_node: 3, algorithm.order: swizzle, "
                "verify.iterations: 10, " + NODES,
            "four nodes of one rank": "ranks_per_node: 1, transport: reorder",
            "two nodes, puts within, fp8": "ranks_per_node: 2, transport: reorder, gemm.dtype: fp8",
            "room for one put at a time": "transport: reorder, transport.room: 1, algorithm.chunks: 16",
        },
    },
    "alltoallv": {
        "base": ["launcher: mpi", "algorithm: alltoallv"],
        "axes": [
            PROMISES,
            {"messages": "algorithm.mode: messages", "shared": "algorithm.mode: shared"},
            WIRES,
            DTYPES,
            {"cached stores": "", "streaming stores": "algorithm.nontemporal: on"},
        ],
        "by_ranks": True,
        "never": NEVER_QUANTISED,
        "also": {f"{name}, {mode}": f"{settings}, algorithm.mode: {mode}"
                 for mode in ("messages", "shared") for name, settings in {
                     "room for twice the even share": "algorithm.capacity: 2",
                     "the caller places expert outputs, three workers a rank":
                         "expert.output: separate, backend.workers: 3, ranks: 2",
                     "real experts": "expert: {kind: mlp, ffn: 256}, moe.hidden: 256, "
                         "verify.iterations: 3",
                     "real experts, integers, FP8": "expert: {kind: mlp, ffn: 256, weights: fp8, "
                         "activation: none, values: integers}, verify.iterations: 3",
                     "16 ranks": "ranks: 16, moe.experts: 32, verify.iterations: 3",
                     "4096 tokens": MANY_TOKENS,
                 }.items()},
    },
}

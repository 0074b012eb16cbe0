"""What pairs.py combines: for each matrix file its axes, and what belongs to them.

An axis is a list of values: a name, and what it adds to a run. The first value of an axis is the
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
    # Of rows as they are; the first three cannot be quantised in groups of 128.
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
STORES = {
    "stores by size": "",
    "cached stores": "algorithm.nontemporal: off",
    "streaming stores": "algorithm.nontemporal: on",
}
# What UCX has a part in, over each of its ways.
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

# Of real experts, whose rows are multiples of 128 channels; the layer is one stage.
MLP_PROMISES = {name: text for name, text in PROMISES.items()
                if name not in UNQUANTISED + ["small groups", "groups of 96",
                                              "a thousand iterations at full speed",
                                              "the caller places expert outputs",
                                              "experts differ by rank, weights add up to anything"]}
MLP_PROMISES |= {
    "groups of 32": "moe.fp8_group_size: 32",
    "weights add up to anything": "routing.weights: uniform, tokens.min: 1",
    "a wide intermediate": "expert.ffn: 640, verify.iterations: 5",
    "eight ranks": "ranks: 8, verify.iterations: 6",
    "32 choices": "moe.topk: 32, moe.experts: 64, verify.iterations: 4",
    "ranks straggle": "verify.straggle: 2ms, verify.iterations: 10",
    "the real width": "moe.hidden: 7168, verify.iterations: 2, moe.max_tokens: 4",
    "many tokens": "moe.max_tokens: 256, verify.iterations: 2, tokens: full",
    "full speed, few iterations checked": "ranks: 2, moe.hidden: 128, moe.max_tokens: 4, "
        "verify.iterations: 1000, verify.check_every: 97",
}
SOME_RANKS = "backend.workers: 4, ranks: 2, algorithm.dispatch_workers: 1, algorithm.tail: true, " \
    "algorithm.tail_workers: 1, algorithm.combine_workers: 1"

GPU_UNQUANTISED = ["a width of 16", "48 channels", "an odd width"]
GPU_ALSO = {"room for twice the even share": "algorithm.capacity: 2"} | GIVEN_UP
GPU_NEVER = [(GPU_UNQUANTISED, ["as FP8"]), (["input is quantised already"], ["as it is"])]
# Of kernels; those that have more rows or channels than a block takes at a time are the last.
MANY_LAYER_TOKENS = "moe.max_tokens: 300, moe.topk: 16, moe.hidden: 128, verify.iterations: 2"
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
    "fused": {
        "base": ["algorithm: fused", "expert: {kind: mlp, ffn: 128}", "verify: {iterations: 4}"],
        "axes": [
            MLP_PROMISES,
            TRANSPORTS,
            *FUSED_WAYS,
            {"one stage": "", "tail": "algorithm.tail: true"},
            {"padded": "", "packed": "algorithm.recv_layout: packed"},
            {"blocks of 128": "", "blocks of 32": "algorithm.block_rows: 32",
             "columns in three": "algorithm.column_splits: 3"},
            {"as it is": "", "as FP8": "algorithm.dispatch_dtype: fp8"},
            {"weights as rows": "", "FP8 weights": "expert.weights: fp8"},
            {"SwiGLU": "", "no activation": "expert.activation: none"},
            {"dense": "", "integers": "expert.values: integers"},
            DTYPES,
            LAUNCHERS,
        ],
        "never": [
            (["input is quantised already"], ["as it is"]),
            (["groups of 32", "one group a row"], ["FP8 weights"]),
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
             "fused": "algorithm: fused, expert.kind: mlp, expert.ffn: 128",
             "fused, ready by expert, packed, FP8": "algorithm: fused, algorithm.ready: expert, "
                 "algorithm.recv_layout: packed, algorithm.dispatch_dtype: fp8, "
                 "expert.kind: mlp, expert.ffn: 128, expert.weights: fp8"},
        ],
        "base": ["transport: ucx"],
        # GEMMs take longer there than all the rest; the runs of fused have it by reorder.
        "never": [(["the real width", "ranks straggle"],
                   ["fused", "fused, ready by expert, packed, FP8"])],
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
             "the fewest channels": "moe.hidden: 128, expert.ffn: 128",
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
             "FP8 weights, groups of 64": "expert.weights: fp8, expert.fp8_group_size: 64"},
            {"swiglu": "", "no activation": "expert.activation: none"},
            {"random": "", "integers": "expert.values: integers"},
            DTYPES,
            WIRES,
            TRANSPORTS,
            {"in turn": "", "pipelined": "verify.order: pipelined"},
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
             "three workers a rank": "backend.workers: 3"},
            {"ll_v2": "algorithm: ll_v2",
             "ll_v2 by rank": "algorithm: ll_v2, algorithm.layout: rank",
             "token_flag": "algorithm: token_flag"},
            {"swiglu": "", "no activation": "expert.activation: none"},
            {"random": "", "integers": "expert.values: integers"},
            WIRES,
            LAUNCHERS,
        ],
    },
    # On GPUs, of tests/gpu/verify.yaml; also where kernels run on CPUs.
    "gpu_ll_v2": {
        "base": ["ranks: 2", "launcher: thread", "algorithm: ll_v2"],
        "axes": [
            GPU_PROMISES,
            {"by expert": "", "by rank": "algorithm.layout: rank", "dedup": "algorithm.dedup: true"},
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
            (["dedup", "FP8 outputs"], ["pulled", "pushed"]),
            (["fused"], ["by rank", "FP8 outputs", "the caller places expert outputs"]),
        ],
        "always": [
            ["dedup", "padded", "FP8 outputs", "pipelined"],
            ["by rank", "padded", "FP8 outputs", "pipelined"],
            ["by expert", "padded", "FP8 outputs"],
            *[[dtype, wire, *values] for dtype in DTYPES for wire in WIRES for values in (
                ["by expert", "pulled", "fused"], ["by expert", "pushed", "fused"], ["dedup", "fused"],
                ["by expert", "FP8 outputs"], ["dedup", "FP8 outputs"], ["by rank", "FP8 outputs"])],
            ["by rank", "split", "pipelined"],
            ["by expert", "split", "pipelined"],
        ],
        "also": GPU_ALSO | {
            f"real experts, {name}, {way}": f"expert: {{kind: mlp, {expert}}}, verify.iterations: 4, {more}{settings}"
            for way, settings in {
                "by expert": "algorithm.layout: expert",
                "padded, outputs elsewhere": "algorithm.recv_layout: padded, expert.output: separate",
                "by rank, outputs elsewhere": "algorithm.layout: rank, expert.output: separate",
            }.items() for name, (expert, more) in {
                "FP8": ("weights: fp8, ffn: 256", ""),
                "FP8 of native rows": ("weights: fp8, ffn: 128", "algorithm.dispatch_dtype: native, "),
                "bf16": ("ffn: 256", "algorithm.dispatch_dtype: native, "),
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
             "ranks straggle": "verify.straggle: 1ms, verify.iterations: 8, moe.hidden: 128"},
            {"in 16 bits": "", "FP8": "algorithm.dispatch_dtype: fp8, expert.weights: fp8",
             "16 bits from FP8 rows": "algorithm.dispatch_dtype: fp8",
             "groups of 64": "algorithm.dispatch_dtype: fp8, expert.weights: fp8, expert.fp8_group_size: 64"},
            *FUSED_WAYS,
            {"one stage": "", "tail": "algorithm.tail: true",
             "blocks for each role": "algorithm.tail: true, algorithm.dispatch_workers: 2, "
                 "algorithm.tail_workers: 1, algorithm.combine_workers: 3"},
            {"all blocks": "", "few blocks": "algorithm.blocks: 1, algorithm.lag: 1"},
            {"SwiGLU": "", "no activation": "expert.activation: none"},
            {"integers": "", "dense": "expert.values: random"},
            DTYPES,
        ],
        "also": {
            "usual kernels": "",
            "usual kernels, FP8": "algorithm.dispatch_dtype: fp8, expert.weights: fp8",
            "usual kernels, more tokens than few": "moe.max_tokens: 40",
            "usual kernels, FP8, more tokens than few":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, moe.max_tokens: 40",
            "usual kernels, 200 tokens": "moe.max_tokens: 200, verify.iterations: 2",
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
            "usual kernels, FP8, the input is quantised already":
                "algorithm.dispatch_dtype: fp8, expert.weights: fp8, moe.input_dtype: fp8",
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

/* What verify.c tries of token_flag: its ways, and the problems that they must solve. */
#ifndef VERIFY_TOKEN_FLAG_H
#define VERIFY_TOKEN_FLAG_H

/* token_flag: each value of each option, and the steps of its worklog. */
#define FLAG_OF_A_RANK "algorithm.flag_granularity=rank"
static const struct entry token_flag_ways[] = {
    {"as it is", {0}, .core = true},
    {"as it began",
     {FLAG_OF_A_RANK, "algorithm.counter_reset=memset", "algorithm.work_partition=by_source"}},
    {"as it began, pipelined",
     {FLAG_OF_A_RANK, "algorithm.counter_reset=memset", "algorithm.work_partition=by_source",
      "verify.order=pipelined"},
     .core = true},
    {"pipelined", {"verify.order=pipelined"}},
    {"one set", {"algorithm.buffers=1"}},
    {"fused, f16", {"algorithm.fuse_expert=true", "moe.dtype=f16"}},
    {"fused, by source, one set, few blocks",
     {"algorithm.fuse_expert=true", "algorithm.work_partition=by_source", "algorithm.buffers=1",
      "algorithm.blocks=3"}},
    {"FP8, f16", {"algorithm.dispatch_dtype=fp8", "moe.dtype=f16"}},
    {"FP8, fused, in chunks, pipelined",
     {"algorithm.dispatch_dtype=fp8", "algorithm.fuse_expert=true", "algorithm.chunks=3",
      "verify.order=pipelined"},
     .core = true},
    {"FP8, fused, f16, flag of a rank",
     {"algorithm.dispatch_dtype=fp8", "algorithm.fuse_expert=true", "moe.dtype=f16",
      FLAG_OF_A_RANK}},
    {"in chunks, by source, memset",
     {"algorithm.chunks=4", "algorithm.work_partition=by_source",
      "algorithm.counter_reset=memset"}},
    {"more chunks than rows", {"algorithm.chunks=1024"}},
    {"one block", {"algorithm.blocks=1", "algorithm.chunks=2"}},
    {0},
};

static const struct entry token_flag_problems[] = {
    {"counts change", {"verify.iterations=40"}},
    {"all tokens there is room for", {"tokens=full"}},
    {"most want one expert", {"routing.kind=hot", "routing.share=0.9"}},
    {"half the choices dropped", {"routing.kind=masked", "routing.share=0.5"}},
    {"all choices dropped", {"routing.kind=masked", "routing.share=1", "verify.iterations=4"}},
    {"one choice", {"moe.topk=1"}},
    {"32 choices", {"moe.topk=32", "moe.experts=64", "verify.iterations=4"}},
    {"4 experts", {"moe.experts=4", "moe.topk=2"}},
    {"4096 experts", {"moe.experts=4096", "moe.topk=8", "verify.iterations=3"}},
    {"one token or none", {"moe.max_tokens=1", "verify.iterations=40"}},
    {"1000 tokens", {"moe.max_tokens=1000", "moe.hidden=128", "verify.iterations=2"}},
    {"4096 tokens",
     {"moe.max_tokens=4096", "moe.hidden=128", "moe.topk=2", "tokens=full", "verify.iterations=2"}},
    {"128 channels", {"moe.hidden=128"}},
    {"7168 channels", {"moe.hidden=7168", "verify.iterations=3"}},
    {"groups of 16", {"moe.fp8_group_size=16", "moe.hidden=272"}},
    {"groups of 256", {"moe.fp8_group_size=256", "moe.hidden=768"}},
    {"ranks straggle", {"verify.straggle=1ms", "verify.iterations=40"}},
    {"full speed, looked at now and then",
     {"moe.hidden=128", "moe.max_tokens=4", "verify.iterations=600", "verify.check_every=37"}},
    {0},
};

static const struct entry token_flag_plain[] = {{"as it is", {0}}, {0}};
static const struct entry token_flag_some[] = {
    {"16 channels", {"moe.hidden=16"}},
    {"48 channels", {"moe.hidden=48"}},
    {"1040 channels", {"moe.hidden=1040"}},
    {"20480 channels", {"moe.hidden=20480", "moe.max_tokens=4", "verify.iterations=3"}},
    {"expert outputs stand elsewhere", {"expert.output=separate"}},
    {"input quantised already", {"moe.input_dtype=fp8", "algorithm.dispatch_dtype=fp8"}},
    {"input quantised already in small groups",
     {"moe.input_dtype=fp8", "algorithm.dispatch_dtype=fp8", "moe.fp8_group_size=16",
      "moe.hidden=272"}},
    {"10000 iterations with stragglers",
     {"verify.iterations=10000", "verify.straggle=100us", "moe.hidden=128", "moe.max_tokens=4",
      "moe.topk=2"},
     .on_gpus = true},
    {0},
};

#endif

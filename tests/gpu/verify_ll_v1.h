/* What verify.c tries of ll_v1: its ways, and the problems that they must solve. */
#ifndef VERIFY_LL_V1_H
#define VERIFY_LL_V1_H

static const struct entry ll_v1_ways[] = {
    {"pushed", {"algorithm.exchange=push"}, .core = true},
    {"pipelined", {"verify.order=pipelined"}},
    {"pulled, pipelined", {"algorithm.exchange=pull", "verify.order=pipelined"}, .core = true},
    {"pulled, one set", {"algorithm.exchange=pull", "algorithm.buffers=1"}},
    {"one set", {"algorithm.buffers=1"}},
    {"as the tokens are", {"algorithm.dispatch_dtype=native"}},
    {"f16, pipelined", {"moe.dtype=f16", "verify.order=pipelined"}, .core = true},
    {"f16, pulled, as the tokens are",
     {"moe.dtype=f16", "algorithm.exchange=pull", "algorithm.dispatch_dtype=native"}},
    {"f16, pulled", {"moe.dtype=f16", "algorithm.exchange=pull"}},
    {"one block", {"algorithm.blocks=1"}},
    {"one block, pulled", {"algorithm.blocks=1", "algorithm.exchange=pull"}},
    {"few blocks, no early launch", {"algorithm.blocks=3", "algorithm.pdl=false"}, .on_gpus = true},
    {0},
};

static const struct entry ll_v1_problems[] = {
    {"all tokens there is room for", {"tokens=full"}},
    {"popularity is skewed", {"routing.kind=zipf", "routing.exponent=1.5"}},
    {"most want one expert", {"routing.kind=hot", "routing.share=0.9"}},
    {"one expert gets everything", {"routing.kind=hot", "routing.share=1", "moe.topk=1"}},
    {"half the choices dropped", {"routing.kind=masked", "routing.share=0.5"}},
    {"all choices dropped", {"routing.kind=masked", "routing.share=1", "verify.iterations=4"}},
    {"one choice", {"moe.topk=1"}},
    {"5 choices", {"moe.topk=5", "moe.experts=12"}},
    {"32 choices", {"moe.topk=32", "moe.experts=64", "verify.iterations=4"}},
    {"every expert is chosen", {"moe.topk=16"}},
    {"4 experts", {"moe.experts=4", "moe.topk=2"}},
    {"600 experts", {"moe.experts=600", "moe.topk=8", "verify.iterations=3"}},
    {"4096 experts", {"moe.experts=4096", "moe.topk=8", "verify.iterations=3"}},
    {"one token", {"moe.max_tokens=1", "tokens=full"}},
    {"one token or none", {"moe.max_tokens=1", "verify.iterations=40"}},
    {"1000 tokens", {"moe.max_tokens=1000", "moe.hidden=128", "verify.iterations=2"}},
    {"4096 tokens",
     {"moe.max_tokens=4096", "moe.hidden=128", "moe.topk=2", "tokens=full", "verify.iterations=2"}},
    {"128 channels", {"moe.hidden=128"}},
    {"1152 channels", {"moe.hidden=1152"}},
    {"7168 channels", {"moe.hidden=7168", "verify.iterations=3"}},
    {"20480 channels", {"moe.hidden=20480", "moe.max_tokens=4", "verify.iterations=3"}},
    {"groups of 16", {"moe.fp8_group_size=16", "moe.hidden=272"}},
    {"groups of 16 in parts", {"moe.fp8_group_size=16", "moe.hidden=1040"}},
    {"groups of 32", {"moe.fp8_group_size=32", "moe.hidden=288"}},
    {"groups of 64", {"moe.fp8_group_size=64", "moe.hidden=320"}},
    {"groups of 256", {"moe.fp8_group_size=256", "moe.hidden=768"}},
    {"16 channels", {"moe.hidden=16", "algorithm.dispatch_dtype=native"}},
    {"48 channels", {"moe.hidden=48", "algorithm.dispatch_dtype=native"}},
    {"1040 channels", {"moe.hidden=1040", "algorithm.dispatch_dtype=native"}},
    {"input quantised already", {"moe.input_dtype=fp8"}},
    {"expert outputs stand elsewhere", {"expert.output=separate"}},
    {"room for twice the even share", {"algorithm.capacity=2"}},
    {"ranks straggle", {"verify.straggle=1ms", "verify.iterations=40"}},
    {"full speed, looked at now and then",
     {"moe.hidden=128", "moe.max_tokens=4", "verify.iterations=600", "verify.check_every=37"}},
    {0},
};

static const struct entry ll_v1_straggling_ways[] = {
    {"pushed, pipelined", {"algorithm.exchange=push", "verify.order=pipelined"}},
    {"pulled", {"algorithm.exchange=pull"}},
    {0},
};

static const struct entry ll_v1_crowded_ways[] = {
    {"FP8", {0}},
    {"as the tokens are", {"algorithm.dispatch_dtype=native"}},
    {0},
};

#endif

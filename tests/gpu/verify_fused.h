/* What verify.c tries of fused (verify_fused.yaml): its ways, and the problems that they must
 * solve. */
#ifndef VERIFY_FUSED_H
#define VERIFY_FUSED_H

#define LAYER_FP8 "algorithm.dispatch_dtype=fp8", "expert.weights=fp8"

static const struct entry layer_ways[] = {
    {"bf16", {"algorithm.queue=dynamic"}, .core = true},
    {"FP8", {LAYER_FP8}, .core = true},
    {"FP8, static", {LAYER_FP8, "algorithm.queue=static"}},
    {"bf16, no activation, random", {"expert.activation=none", "expert.values=random"}},
    {"FP8, no activation", {LAYER_FP8, "expert.activation=none"}},
    {"FP8, random", {LAYER_FP8, "expert.values=random"}},
    {"f16, few blocks", {"moe.dtype=f16", "algorithm.blocks=1", "algorithm.lag=1"}},
    {"f16, FP8, random", {LAYER_FP8, "moe.dtype=f16", "expert.values=random"}},
    {0},
};

/* Switches that the kernels of fused_ways.cu have. */
#define LAYER_SMALL "moe.hidden=256", "expert.ffn=128"
#define LAYER_PLAIN \
    "algorithm.launches=two", "algorithm.queue=static", "algorithm.dedup=false", \
        "algorithm.ready=expert", "algorithm.combine_mode=serial"

static const struct entry layer_switches[] = {
    {"saving", {"algorithm.tail=true"}, .core = true},
    {"saving, FP8, by expert",
     {LAYER_FP8, "algorithm.tail=true", "algorithm.ready=expert", "algorithm.queue=static"}},
    {"two launches, serial, nothing saved", {LAYER_PLAIN}, .core = true},
    {"two launches, saving, FP8",
     {LAYER_FP8, "algorithm.launches=two", "algorithm.tail=true", "algorithm.lag=1"}},
    {"gather", {"algorithm.combine_mode=gather", "moe.dtype=f16"}},
    {"gather, outputs apart", {"algorithm.combine_mode=gather", "algorithm.dedup=false"}},
    {"16 bits from FP8 rows", {"algorithm.dispatch_dtype=fp8"}, .core = true},
    {"16 bits from FP8 rows, f16, nothing saved",
     {"algorithm.dispatch_dtype=fp8", "moe.dtype=f16", "algorithm.dedup=false"}},
    {"FP8, groups of 64", {LAYER_FP8, "expert.fp8_group_size=64"}, .core = true},
    {"FP8, groups of 64, random", {LAYER_FP8, "expert.fp8_group_size=64", "expert.values=random"}},
    {"some blocks for each role",
     {"algorithm.tail=true", "algorithm.dispatch_workers=2", "algorithm.tail_workers=1",
      "algorithm.combine_workers=3"},
     .core = true},
    {0},
};

static const struct entry layer_switched[] = {
    {"random tokens", {LAYER_SMALL, "tokens=random", "verify.iterations=3"}},
    {0},
};

/* Tiles of 128 rows, and tokens that are sent by expert. */
#define LAYER_MANY \
    "moe.max_tokens=300", "moe.topk=16", "moe.hidden=128", "expert.ffn=128", "verify.iterations=2"

static const struct entry layer_base[] = {
    {"random tokens", {"tokens=random"}, .quick = true},
    {0},
};

static const struct entry layer_quick[] = {
    {"random tokens", {"tokens=random", "verify.iterations=4"}},
    {0},
};

static const struct entry layer_problems[] = {
    {"many tokens", {LAYER_MANY}, .quick = true},
    {"many tokens in waves", {LAYER_MANY, "algorithm.waves=3"}, .quick = true},
    {"many tokens, one after the other", {LAYER_MANY, "algorithm.sort=false"}},
    {"popularity is skewed", {"routing.kind=zipf", "routing.exponent=1.5"}},
    {"one expert gets everything", {"routing.kind=hot", "routing.share=1", "moe.topk=1"}},
    {"half the choices dropped",
     {"routing.kind=masked", "routing.share=0.5", "verify.iterations=4"},
     .quick = true},
    {"all choices dropped",
     {"routing.kind=masked", "routing.share=1", "verify.iterations=4"},
     .quick = true},
    {"32 choices", {"moe.topk=32", "moe.experts=64", "verify.iterations=4"}},
    {"600 experts", {"moe.experts=600", "moe.topk=8", "expert.ffn=128", "verify.iterations=3"}},
    {"one token or none", {"moe.max_tokens=1", "verify.iterations=12"}},
    {"640 channels, 384 within",
     {"moe.hidden=640", "expert.ffn=384", "verify.iterations=2"},
     .quick = true},
    {"7168 channels", {"moe.hidden=7168", "verify.iterations=3"}},
    {"3000 tokens", {"moe.max_tokens=3000", "moe.topk=8", "verify.iterations=3"}, .on_gpus = true},
    {"ranks straggle",
     {"verify.straggle=1ms", "verify.iterations=8", "moe.hidden=128", "expert.ffn=128"},
     .quick = true},
    {0},
};

static const struct entry layer_switches_problems[] = {
    {"many tokens", {LAYER_MANY}, .quick = true},
    {"many tokens in waves", {LAYER_MANY, "algorithm.waves=3"}, .quick = true},
    {"many tokens, one after the other", {LAYER_MANY, "algorithm.sort=false"}, .quick = true},
    {"half the choices dropped",
     {LAYER_SMALL, "routing.kind=masked", "routing.share=0.5", "verify.iterations=3"},
     .quick = true},
    {"all choices dropped",
     {LAYER_SMALL, "routing.kind=masked", "routing.share=1", "verify.iterations=2"}},
    {"one expert gets everything",
     {LAYER_SMALL, "routing.kind=hot", "routing.share=1", "moe.topk=1"}},
    {"popularity is skewed", {LAYER_SMALL, "routing.kind=zipf", "routing.exponent=1.5"}},
    {"32 choices", {LAYER_SMALL, "moe.topk=32", "moe.experts=64", "verify.iterations=3"}},
    {"600 experts", {"moe.experts=600", "moe.topk=8", LAYER_SMALL, "verify.iterations=2"}},
    {"ranks straggle", {LAYER_SMALL, "verify.straggle=1ms", "verify.iterations=6"}, .quick = true},
    {0},
};

/* The input may be quantised already. */
static const struct entry layer_given[] = {{"FP8", {LAYER_FP8, "moe.input_dtype=fp8"}}, {0}};

/* A capacity is found too small before a row is sent. */
static const struct entry layer_crowded_ways[] = {
    {"too little room", {"algorithm.capacity=0.25", "tokens=full", "moe.max_tokens=600"}}, {0}};

#endif

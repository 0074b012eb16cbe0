/* What verify.c tries of allgather, with verify_allgather.yaml. */
#ifndef VERIFY_ALLGATHER_H
#define VERIFY_ALLGATHER_H

static const struct entry allgather_ways[] = {
    {"pushed", {0}, .core = true},
    {"pushed, in chunks", {"algorithm.chunks=3"}, .core = true},
    {"pushed, a chunk a row", {"algorithm.chunks=1024"}},
    {"pushed, one block", {"algorithm.blocks=1", "algorithm.chunks=2"}},
    {"pulled", {"algorithm.mode=pull"}, .core = true},
    {"pulled, in chunks, few blocks",
     {"algorithm.mode=pull", "algorithm.chunks=5", "algorithm.blocks=3"}},
    {0},
};

static const struct entry allgather_problems[] = {
    {"counts change", {"verify.iterations=40"}},
    {"all rows there is room for", {"tokens=full"}},
    {"rows of 16 bytes", {"allgather.row_bytes=16"}},
    {"one row", {"allgather.max_rows=1", "tokens=full"}},
    {"many rows",
     {"allgather.max_rows=2000", "allgather.row_bytes=14336", "verify.iterations=4"},
     .on_gpus = true},
    {"a thousand iterations",
     {"allgather.max_rows=4", "verify.iterations=1000", "verify.check_every=97"},
     .on_gpus = true},
    {"stragglers", {"verify.straggle=2ms", "verify.iterations=60"}},
    {0},
};

#endif

/* Random numbers by position: value i of a stream is a hash of (key, i), so that any rank can
 * generate any part of any other rank's inputs, in any order and without state. A key names a
 * stream: hash of (seed, purpose, rank, iteration). Not for secrets. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

/* The purpose of a stream; streams of one seed are independent. */
enum random_use {
    RANDOM_X = 1,
    RANDOM_HARD,
    RANDOM_ROUTE,
    RANDOM_TOKENS,
    RANDOM_POPULARITY,
    RANDOM_STRAGGLE,
    RANDOM_ARRIVALS,
    RANDOM_WEIGHTS,
    RANDOM_BLOCKS, /* scales of weight blocks */
    RANDOM_PILOTS,
    RANDOM_CHECK,
    RANDOM_SIGNED, /* weights of the routing */
    RANDOM_FACTOR, /* factors of synthetic experts */
    RANDOM_NONFINITE,
};

/* A stream and the next position in it. */
struct random {
    uint64_t key, at;
};

/* The finalizer of splitmix64: a bijection in which each input bit changes half of the
 * output. */
static inline uint64_t random_mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline uint64_t random_at(uint64_t key, uint64_t i)
{
    return random_mix(key + (i + 1) * UINT64_C(0x9e3779b97f4a7c15));
}

static inline uint64_t random_key(uint64_t seed, enum random_use use, uint32_t rank,
                                  uint64_t iteration)
{
    uint64_t key = random_at(random_mix(seed), (uint64_t)use << 32 | rank);

    return random_at(key, iteration);
}

static inline uint64_t random_next(struct random *r)
{
    return random_at(r->key, r->at++);
}

/* Returns a digest of bytes that changes if any single word changes. Four lanes, so that
 * multiplications overlap. */
static inline uint64_t random_digest(uint64_t seed, const void *bytes, size_t n)
{
    uint64_t lane[4] = {seed ^ n, seed + 1, seed + 2, seed + 3}, word[4];
    const char *p = bytes;

    for (; n >= sizeof(word); p += sizeof(word), n -= sizeof(word)) {
        memcpy(word, p, sizeof(word));
        for (int i = 0; i < 4; i++)
            lane[i] = (lane[i] ^ word[i]) * UINT64_C(0x9e3779b97f4a7c15);
    }
    memset(word, 0, sizeof(word));
    memcpy(word, p, n);
    for (int i = 0; i < 4; i++)
        lane[i] = random_mix(lane[i] ^ word[i]);
    return random_mix(lane[0] + 3 * lane[1]) ^ random_mix(5 * lane[2] + 7 * lane[3]);
}

/* Returns 0 to n - 1; the bias is below n / 2^32. */
static inline uint32_t random_below(struct random *r, uint32_t n)
{
    return (uint32_t)((random_next(r) >> 32) * n >> 32);
}

/* Returns a number in [0, 1) in steps of 2^-53. */
static inline double random_unit(struct random *r)
{
    return (double)(random_next(r) >> 11) * 0x1p-53;
}

/* Writes n approximately normal values (sums of three uniform values: mean 0, deviation 1, within
 * +-3) in bf16, or f16. Value i depends on key and i alone. Two loops over a block, so that the
 * compiler vectorises the second. */
static inline void random_words(uint64_t key, uint32_t n, bool f16, uint16_t *out)
{
    enum { BLOCK = 64 };
    uint64_t bits[BLOCK / 2];
    uint32_t word[BLOCK];
    uint16_t value[BLOCK];

    for (uint32_t done = 0; done < n; done += BLOCK) {
        uint32_t take = n - done < BLOCK ? n - done : BLOCK;

        for (uint32_t i = 0; i < BLOCK / 4; i++) {
            uint64_t z = random_at(key, done / 4 + i);
            uint64_t more = z * UINT64_C(0xd6e8feb86659fd93);

            bits[2 * i] = z;
            bits[2 * i + 1] = more ^ more >> 32; /* upper bits depend on all of z */
        }
        memcpy(word, bits, sizeof(word));
        for (uint32_t i = 0; i < BLOCK; i++) {
            uint32_t w = word[i];
            int32_t sum = (int32_t)((w >> 21) + (w >> 10 & 2047u) + (w & 1023u) * 2);

            value[i] = word_of_float(f16, (float)(sum - 3070) * 0x1p-10f);
        }
        memcpy(out + done, value, take * sizeof(*out));
    }
}

#endif

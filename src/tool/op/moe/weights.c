#include "op/moe/weights.h"

#include <string.h>

#include "base/dtype.h"
#include "base/random.h"
#include "epa2a/gemm.h"

/* integers, FP8: entry of a pilot row before its block's scale. */
static const float pilot_product = 128;

struct epa_mlp weights_shape(const struct problem_params *x)
{
    const struct expert_options *e = &x->expert;

    if (e->kind != EXPERT_MLP)
        return (struct epa_mlp){0};
    return (struct epa_mlp){.ffn = e->ffn,
                            .activation = e->activation,
                            .dtype = e->weights == EXPERT_WEIGHTS_FP8    ? (int)EPA_FP8_E4M3
                                     : e->weights == EXPERT_WEIGHTS_INT8 ? (int)EPA_INT8
                                                                         : x->moe.dtype,
                            .fp8_group_size = e->fp8_group_size};
}

/* Returns the group size of tokens of integers, a divisor of hidden. */
static uint32_t x_group_of(const struct problem_params *x)
{
    uint32_t hidden = x->moe.hidden, group = x->moe.fp8_group_size;

    if (hidden % group == 0)
        return group;
    return hidden % MLP_BLOCK == 0 ? MLP_BLOCK : EPA_GEMM_STEP;
}

void weights_init(const struct problem_params *x, struct weights *out)
{
    bool fp8 = x->expert.weights == EXPERT_WEIGHTS_FP8;
    bool integers = x->expert.values == EXPERT_VALUES_INTEGERS;

    *out =
        (struct weights){.seed = x->seed,
                         .shape = {.hidden = x->moe.hidden, .mlp = weights_shape(x)},
                         .integers = integers,
                         .pilots = integers && fp8 && x->expert.activation == EPA_ACTIVATION_NONE,
                         .x_group = x_group_of(x)};
}

uint64_t weights_bytes(const struct weights *w, uint32_t experts)
{
    uint64_t bytes = 0;

    for (enum mlp_matrix m = MLP_UP; m < MLP_MATRICES; m++) {
        bytes +=
            (uint64_t)mlp_rows(&w->shape, m) * mlp_columns(&w->shape, m) * mlp_element(&w->shape);
        bytes += mlp_scales(&w->shape, m) * sizeof(float);
    }
    return experts * bytes;
}

static uint64_t row_key(const struct weights *w, uint32_t expert, enum mlp_matrix m, uint32_t row)
{
    return random_at(random_key(w->seed, RANDOM_WEIGHTS, (uint32_t)m, expert), row);
}

/* Returns the least e with 2^e >= sqrt(n). */
static int root_exponent(uint32_t n)
{
    int bits = 0;

    while (bits < 32 && (UINT64_C(1) << bits) < n)
        bits++;
    return (bits + 1) / 2;
}

/* ---- random ---- */

/* Fills n bytes, a multiple of 8: the bits of a hash in `mask`, plus `base`. */
static void fill_masked(uint64_t key, uint64_t mask, uint64_t base, size_t n, char *out)
{
    for (size_t i = 0; i < n / 8; i++) {
        uint64_t z = (random_at(key, i) & mask) + base;

        memcpy(out + i * 8, &z, sizeof(z));
    }
}

/* INT8: fills n bytes, a multiple of 8, with -127 to 127. */
static void fill_bytes(uint64_t key, size_t n, int8_t *out)
{
    fill_masked(key, UINT64_MAX, 0, n, (char *)out);
    for (size_t i = 0; i < n; i++)
        out[i] = out[i] == -128 ? 0 : out[i];
}

/* Fills a row with magnitudes from 1 to 16 times 2^e, with root mean square 7 * 2^e: e makes it about
 * 1 / sqrt(columns). */
static void fill_dense(const struct weights *w, uint64_t key, uint32_t columns, void *out)
{
    const uint64_t words = UINT64_C(0x0001000100010001), bytes = UINT64_C(0x0101010101010101);
    int e = -3 - root_exponent(columns);

    switch (w->shape.mlp.dtype) {
    case EPA_INT8: /* all values of a byte but -128 */
        fill_bytes(key, columns, out);
        break;
    case EPA_FP8_E4M3: /* 16 to 240; the block's scale provides the rest of the factor */
        fill_masked(key, 0x9f * bytes, 0x58 * bytes, columns, out);
        break;
    case EPA_F16:
        fill_masked(key, 0x8fff * words, ((uint64_t)(e + 15) << 10) * words, columns * 2, out);
        break;
    default:
        fill_masked(key, 0x81ff * words, ((uint64_t)(e + 127) << 7) * words, columns * 2, out);
        break;
    }
}

/* ---- integers ---- */

/* Returns the channel of the pilot of group g. */
static uint32_t x_pilot(const struct weights *w, uint32_t g)
{
    return (uint32_t)(random_key(w->seed, RANDOM_PILOTS, 0, g) >> 32) % w->x_group;
}

static uint32_t ffn_pilot(const struct weights *w, uint32_t expert, uint32_t g)
{
    return (uint32_t)(random_key(w->seed, RANDOM_PILOTS, 1 + expert, g) >> 32) %
           w->shape.mlp.fp8_group_size;
}

/* integers, FP8: returns 1, 2 or 4 quarters of the largest permitted scale of a block. */
static float block_scale(uint64_t z, enum mlp_matrix m)
{
    return (float)(1u << (z >> 32) % 3) *
           (m == MLP_UP ? (float)WEIGHTS_UNIT_UP : (float)WEIGHTS_UNIT_DOWN);
}

static float scale_of_block(const struct weights *w, uint32_t expert, enum mlp_matrix m,
                            uint32_t row, uint32_t column)
{
    uint64_t key = random_key(w->seed, RANDOM_BLOCKS, (uint32_t)m, expert);

    return block_scale(random_at(random_at(key, row / MLP_BLOCK), column / MLP_BLOCK), m);
}

static uint32_t pilot_entry(const struct weights *w, uint32_t expert, uint32_t row, uint64_t key,
                            uint32_t *column, float *value)
{
    uint32_t g = (uint32_t)(random_at(key, 0) >> 32) % (w->shape.hidden / w->x_group);

    *column = g * w->x_group + x_pilot(w, g);
    *value =
        pilot_product * (float)WEIGHTS_UNIT_UP / scale_of_block(w, expert, MLP_UP, row, *column);
    return 1;
}

/* Draws the entry from one sixteenth of a row, `room` columns: a column, and an integer from 1 to `most`
 * with a sign. */
static inline __attribute__((always_inline)) float draw_entry(uint64_t z, uint32_t room,
                                                              uint32_t most, uint32_t *column)
{
    uint32_t n = 1 + ((uint32_t)z >> 8 & 0xffff) % most;

    *column = (uint32_t)((z >> 32) * room >> 32);
    return (float)n * ((z & 1) != 0 ? -1.0f : 1.0f);
}

static inline __attribute__((always_inline)) void
draw_entries(uint64_t key, uint32_t room, uint32_t most, float unit, uint32_t *column, float *value)
{
    for (uint32_t i = 0; i < WEIGHTS_ENTRIES; i++) {
        value[i] = unit * draw_entry(random_at(key, i), room, most, &column[i]);
        column[i] += i * room;
    }
}

uint32_t weights_entries(const struct weights *w, uint32_t expert, enum mlp_matrix m, uint32_t row,
                         uint32_t column[WEIGHTS_ENTRIES], float value[WEIGHTS_ENTRIES])
{
    uint32_t room = mlp_columns(&w->shape, m) / WEIGHTS_ENTRIES, n = 0,
             group = w->shape.mlp.fp8_group_size;
    bool fp8 = w->shape.mlp.dtype == EPA_FP8_E4M3, up = m == MLP_UP;
    bool codes = mlp_has_scales(&w->shape);
    uint32_t most = !fp8 ? 7 : up ? 1 : 2;
    float unit = codes ? 1 : up ? (float)WEIGHTS_UNIT_UP : (float)WEIGHTS_UNIT_DOWN;
    uint64_t key = row_key(w, expert, m, row);

    if (w->pilots && up && row % group == ffn_pilot(w, expert, row / group))
        return pilot_entry(w, expert, row, key, column, value);
    /* A division by a constant is a multiplication. */
    if (most == 7)
        draw_entries(key, room, 7, unit, column, value);
    else if (most == 2)
        draw_entries(key, room, 2, unit, column, value);
    else
        draw_entries(key, room, 1, unit, column, value);
    if (!w->pilots || !up)
        return WEIGHTS_ENTRIES;
    for (uint32_t i = 0; i < WEIGHTS_ENTRIES; i++)
        if (column[i] % w->x_group != x_pilot(w, column[i] / w->x_group)) {
            column[n] = column[i];
            value[n++] = value[i];
        }
    return n;
}

static void fill_sparse(const struct weights *w, uint32_t expert, enum mlp_matrix m, uint32_t row,
                        void *out)
{
    uint32_t column[WEIGHTS_ENTRIES], n;
    float value[WEIGHTS_ENTRIES];

    memset(out, 0, mlp_columns(&w->shape, m) * mlp_element(&w->shape));
    n = weights_entries(w, expert, m, row, column, value);
    for (uint32_t i = 0; i < n; i++)
        if (w->shape.mlp.dtype == EPA_INT8)
            ((int8_t *)out)[column[i]] = (int8_t)value[i];
        else if (w->shape.mlp.dtype == EPA_FP8_E4M3)
            ((uint8_t *)out)[column[i]] = e4m3_of_float(value[i]);
        else
            ((uint16_t *)out)[column[i]] = word_of_float(w->shape.mlp.dtype == EPA_F16, value[i]);
}

/* ---- both ---- */

void weights_row(const struct weights *w, uint32_t expert, enum mlp_matrix m, uint32_t row,
                 void *out)
{
    if (w->integers)
        fill_sparse(w, expert, m, row, out);
    else
        fill_dense(w, row_key(w, expert, m, row), mlp_columns(&w->shape, m), out);
}

void weights_scales(const struct weights *w, uint32_t expert, enum mlp_matrix m, uint32_t block,
                    float *out)
{
    uint32_t columns = mlp_columns(&w->shape, m),
             n = (uint32_t)(mlp_scale_at(&w->shape, m, block + 1) -
                            mlp_scale_at(&w->shape, m, block));
    uint64_t key = random_at(random_key(w->seed, RANDOM_BLOCKS, (uint32_t)m, expert), block);
    /* Scales are 1 to 2 times this value; codes of FP8 have a root mean square of 113, of INT8 of 74. */
    float least = float_of_bits((uint32_t)(127 - 7 - root_exponent(columns)) << 23);

    for (uint32_t i = 0; i < n; i++) {
        uint64_t z = random_at(key, i);

        out[i] = w->integers ? block_scale(z, m)
                             : least * float_of_bits(127u << 23 | (uint32_t)(z >> 41));
    }
}

void weights_token(const struct weights *w, uint64_t key, bool f16, uint16_t *out)
{
    uint32_t group = w->x_group;

    for (uint32_t g = 0; g < w->shape.hidden / group; g++) {
        uint64_t own = random_at(key, g);
        uint32_t pilot = x_pilot(w, g);
        float unit = (float)WEIGHTS_UNIT_X * (float)(1 + (own & 1));

        for (uint32_t i = 0; i < group; i++) {
            int32_t n = (int32_t)((random_at(own, i) >> 32) % 15) - 7;

            if (i == pilot)
                n = (own & 2) != 0 ? 7 : -7;
            out[g * group + i] = word_of_float(f16, (float)n * unit);
        }
    }
}

/* Program of the build: writes the tables of the AVX-512 sets, from the definitions in dtype.h.
 *
 * bf16: the scale of a group depends on amax, a bf16. The mantissas of amax and x have 128 values
 * each. A table holds the rounded quotient of two mantissas; exponents then need a subtraction
 * only. Rows of the table are mantissas of amax, columns mantissas of x. */
#include <stdio.h>

#include "base/dtype.h"

/* Returns a quotient of two bf16 with a biased exponent at which no value is denormal. */
static float quotient(uint32_t amax_mantissa, uint32_t x_mantissa, uint32_t octaves_below)
{
    float amax = float_of_bf16((uint16_t)(140u << 7 | amax_mantissa));
    float x = float_of_bf16((uint16_t)((140u - octaves_below) << 7 | x_mantissa));

    return x / (amax * (1.0f / 448.0f));
}

/* Returns 128 minus the code of x one octave below amax. 128 - 8 d then represents x d octaves
 * further down, as long as that is a normal number. */
static uint32_t below_top(uint32_t amax_mantissa, uint32_t x_mantissa)
{
    return 128u - e4m3_of_float(quotient(amax_mantissa, x_mantissa, 1));
}

/* For x 14 octaves below amax: returns the quotient in halves of the smallest e4m3 number,
 * truncated. Adding one half then rounds, here and after a shift in any lower octave, except for
 * ties. A tie exists in one octave at most, the octave of the lowest bit. If this tie has to round
 * down to even, the function returns slightly less than the quotient, which truncates to one half
 * fewer. */
static uint32_t halves(uint32_t amax_mantissa, uint32_t x_mantissa)
{
    double exact = (double)quotient(amax_mantissa, x_mantissa, 14) * 1024.0;
    uint32_t cut = (uint32_t)exact, lowest = cut & (0u - cut);

    if ((double)cut == exact && (cut & lowest << 1) == 0)
        cut--;
    return cut;
}

static void print_square(const char *name, uint32_t (*value)(uint32_t, uint32_t))
{
    printf("static const uint8_t %s[128][128] __attribute__((aligned(64))) = {\n", name);
    for (uint32_t a = 0; a < 128; a++) {
        printf("{");
        for (uint32_t x = 0; x < 128; x++)
            printf("%u,", value(a, x));
        printf("},\n");
    }
    printf("};\n");
}

/* Prints one byte of e4m3 without its sign as bf16, which holds each value exactly. */
static void print_bf16(const char *name, uint32_t shift)
{
    printf("static const uint8_t %s[128] __attribute__((aligned(64))) = {\n", name);
    for (uint32_t q = 0; q < 128; q++)
        printf("%u,", bf16_of_float(float_of_e4m3((uint8_t)q)) >> shift & 0xffu);
    printf("};\n");
}

/* f16: returns the code of x `octaves` octaves below amax, up to 19. */
static uint32_t code_f16(uint32_t amax_mantissa, uint32_t x_mantissa, uint32_t octaves)
{
    float amax = float_of_f16((uint16_t)(20u << 10 | amax_mantissa));
    float x = float_of_f16((uint16_t)((20u - octaves) << 10 | x_mantissa));

    return e4m3_of_float(x / (amax * (1.0f / 448.0f)));
}

/* Returns the step of x one octave below amax, at 16 steps per octave: 2 * code - 1, or 2 * code if
 * the quotient is past the number of the code. Between normal codes both are equivalent. 13 to 18
 * octaves further down, where fewer codes are left, they differ for each number in one octave:
 * there the function evaluates the side of the tie. */
static int32_t step_f16(uint32_t amax_mantissa, uint32_t x_mantissa)
{
    static const struct {
        uint32_t octaves, code; /* below 2^-7, and the first code past it */
    } lower[8] = {{3, 1}, {0, 5}, {1, 3}, {0, 6}, {2, 2}, {0, 7}, {1, 4}, {0, 8}};
    uint32_t code = code_f16(amax_mantissa, x_mantissa, 1), i = code & 7u;
    uint32_t octaves = 1 + (code >> 3) + lower[i].octaves;
    bool past = code_f16(amax_mantissa, x_mantissa, octaves) >= lower[i].code;

    return (int32_t)(2 * code) - 1 + past;
}

/* Computes the value to add to the bits of any x in one of 32 parts of that octave, so that the
 * code of x begins at bit 7, and the step above, plus 1, at bit 6. Returns false if no value
 * exists. */
static bool addend_f16(uint32_t amax_mantissa, uint32_t part, int32_t *addend)
{
    int32_t first = (int32_t)(19u << 10 | part << 5), end = first + 32, x = first;
    int32_t step = step_f16(amax_mantissa, (uint32_t)x & 1023u);

    while (x < end && step_f16(amax_mantissa, (uint32_t)x & 1023u) == step)
        x++;
    /* The next step begins at x. If it begins in another part, any value is correct that keeps the
     * whole part between two steps. */
    *addend = x < end ? (step + 2) * 64 - x : (step + 1) * 64 + 16 - first;
    for (x = first; x < end; x++)
        if ((x + *addend) >> 6 != step_f16(amax_mantissa, (uint32_t)x & 1023u) + 1 ||
            (x + *addend) >> 7 != (int32_t)code_f16(amax_mantissa, (uint32_t)x & 1023u, 1))
            return false;
    return true;
}

static bool print_addends_f16(void)
{
    printf("static const int16_t table_f16_addend[1024][32] "
           "__attribute__((aligned(64))) = {\n");
    for (uint32_t a = 0; a < 1024; a++) {
        printf("{");
        for (uint32_t part = 0; part < 32; part++) {
            int32_t addend;

            if (!addend_f16(a, part, &addend))
                return false;
            printf("%d,", addend);
        }
        printf("},\n");
    }
    printf("};\n");
    return true;
}

/* Prints the codes of numbers that are not normal, by the steps from 49 below 2^-7 on. */
static void print_small_f16(void)
{
    static const int32_t from[8] = {-48, -24, -12, -4, 2, 6, 10, 14};

    printf("static const uint8_t table_f16_small[64] __attribute__((aligned(64))) = {\n");
    for (int32_t step = -49; step < 15; step++) {
        uint32_t code = 0;

        while (code < 8 && from[code] <= step)
            code++;
        printf("%u,", code);
    }
    printf("};\n");
}

int main(void)
{
    printf("#include <stdint.h>\n");
    print_square("table_below_top", below_top);
    print_square("table_halves", halves);
    print_bf16("table_bf16_low", 0);
    print_bf16("table_bf16_high", 8);
    print_small_f16();
    if (!print_addends_f16())
        return 1;
    return ferror(stdout) || fflush(stdout) != 0;
}

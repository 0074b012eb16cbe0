/* Run by the build: writes the tables of the AVX-512 set, from the definitions in dtype.h.
 *
 * The scale of a group depends on amax, a bf16: its mantissa takes 128 values only, and so
 * does that of x. What the quotient of two mantissas rounds to is looked up; exponents are
 * then a subtraction. Rows are by amax's mantissa, columns by that of x. */
#include <stdio.h>

#include "base/dtype.h"

/* Bits of a bf16 with this biased exponent: any in which nothing is denormal do. */
static float quotient(uint32_t amax_mantissa, uint32_t x_mantissa, uint32_t octaves_below)
{
    float amax = float_of_bf16((uint16_t)(140u << 7 | amax_mantissa));
    float x = float_of_bf16((uint16_t)((140u - octaves_below) << 7 | x_mantissa));

    return x / (amax * (1.0f / 448.0f));
}

/* The code of x one octave below amax, taken from 128; 128 - 8 d is then what stands for x
 * d octaves further down, as long as that is a normal number. */
static uint32_t below_top(uint32_t amax_mantissa, uint32_t x_mantissa)
{
    return 128u - e4m3_of_float(quotient(amax_mantissa, x_mantissa, 1));
}

/* For x 14 octaves below amax: the quotient in halves of the smallest e4m3 number, cut off.
 * Adding one half then rounds, here and after a shift in any lower octave, but for ties:
 * there is one in one octave at most, that of the lowest bit. If it has to round down to
 * be even, something less than the quotient stands here, which cuts to one half fewer. */
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

/* e4m3 without its sign as bf16, which holds each value exactly: one byte of it. */
static void print_bf16(const char *name, uint32_t shift)
{
    printf("static const uint8_t %s[128] __attribute__((aligned(64))) = {\n", name);
    for (uint32_t q = 0; q < 128; q++)
        printf("%u,", bf16_of_float(float_of_e4m3((uint8_t)q)) >> shift & 0xffu);
    printf("};\n");
}

int main(void)
{
    printf("#include <stdint.h>\n");
    print_square("table_below_top", below_top);
    print_square("table_halves", halves);
    print_bf16("table_bf16_low", 0);
    print_bf16("table_bf16_high", 8);
    return ferror(stdout) || fflush(stdout) != 0;
}

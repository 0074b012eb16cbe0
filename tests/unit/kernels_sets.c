/* The sets of kernels: how one is chosen, what all have, and the copying that does not depend
 * on a type. */
#include "test.h"

#include "epa2a/gemm.h"
#include "epa2a/quant.h"

static const char *const isas[] = {"scalar", "avx2", "avx512"};
static const enum epa_dtype dtypes[] = {EPA_BF16, EPA_F16};

enum { ISAS = LENGTH(isas) };

static void hold_spread(const struct epa_kernels *set, uint32_t n, size_t bytes,
                        enum epa_store store)
{
    enum { SLOT = 7424 + 64 };
    char *from = aligned_alloc(64, SLOT), *space = aligned_alloc(64, SLOT * 9);
    void *to[9];

    assert_non_null(from);
    assert_non_null(space);
    memset(space, 0x33, SLOT * 9);
    for (size_t i = 0; i < SLOT; i++)
        from[i] = (char)(i * 7 + i / 256);
    for (uint32_t i = 0; i < n; i++)
        to[i] = space + SLOT * (size_t)((i * 4) % 9); /* not in order */
    set->spread(to, n, from, bytes, store);
    epa_store_drain();
    for (uint32_t i = 0; i < n; i++) {
        const char *got = to[i];

        assert_memory_equal(got, from, bytes);
        for (size_t b = bytes; b < SLOT; b++)
            assert_int_equal(got[b], 0x33);
    }
    for (uint32_t i = n; i < 9; i++)
        assert_int_equal(space[SLOT * (size_t)((i * 4) % 9)], 0x33);
    free(space);
    free(from);
}

TEST(spread_copies_to_each_and_no_further)
{
    static const size_t sizes[] = {0, 64, 128, 192, 256, 320, 1024, 7360, 7424};

    for (uint32_t k = 0; k < 2 * ISAS; k++) {
        const struct epa_kernels *set = epa_kernels_by_name(isas[k / 2], dtypes[k % 2]);

        for (size_t s = 0; set != NULL && s < LENGTH(sizes); s++) {
            for (uint32_t n = 0; n <= 9; n++) {
                hold_spread(set, n, sizes[s], EPA_STORE_CACHED);
                hold_spread(set, n, sizes[s], EPA_STORE_NONTEMPORAL);
            }
        }
    }
}

static void choose(enum epa_dtype dtype)
{
    const char *refused = "before";
    const struct epa_kernels *best;

    unsetenv("EPA2A_ISA");
    best = epa_kernels_get(dtype, &refused);
    assert_int_equal(best->dtype, dtype);
    assert_null(refused);
    setenv("EPA2A_ISA", "scalar", 1);
    assert_string_equal(epa_kernels_get(dtype, &refused)->isa, "scalar");
    assert_int_equal(epa_kernels_get(dtype, &refused)->dtype, dtype);
    assert_null(refused);
    setenv("EPA2A_ISA", "sse9", 1);
    assert_ptr_equal(epa_kernels_get(dtype, &refused), best);
    assert_string_equal(refused, "sse9");
    assert_ptr_equal(epa_kernels_get(dtype, NULL), best);
    setenv("EPA2A_ISA", "", 1);
    assert_ptr_equal(epa_kernels_get(dtype, &refused), best);
    assert_null(refused);
    unsetenv("EPA2A_ISA");
}

TEST(environment_chooses_a_set_and_a_wrong_one_is_named)
{
    choose(EPA_BF16);
    choose(EPA_F16);
}

TEST(sets_that_only_multiply_stand_for_the_best_below_them)
{
    static const char *const names[] = {"avx512_bf16", "amx"};
    const char *refused;

    for (size_t i = 0; i < LENGTH(names); i++) {
        bool usable = epa_gemm_by_name(names[i], EPA_BF16) != NULL;

        setenv("EPA2A_ISA", names[i], 1);
        assert_null(epa_kernels_by_name(names[i], EPA_BF16));
        if (usable)
            assert_string_equal(epa_kernels_get(EPA_BF16, &refused)->isa, "avx512");
        else
            assert_non_null(epa_kernels_get(EPA_BF16, &refused));
        assert_int_equal(refused == NULL, usable);
        if (usable)
            assert_string_equal(epa_gemm_get(EPA_F16, &refused)->isa, "avx512");
    }
    unsetenv("EPA2A_ISA");
}

TEST(every_set_carries_its_name_and_all_kernels)
{
    assert_non_null(epa_kernels_by_name("scalar", EPA_BF16));
    assert_non_null(epa_kernels_by_name("scalar", EPA_F16));
    assert_null(epa_kernels_by_name("scalar", EPA_FP8_E4M3));
    assert_null(epa_kernels_by_name("avx", EPA_BF16));
    for (uint32_t k = 0; k < 2 * ISAS; k++) {
        const struct epa_kernels *set = epa_kernels_by_name(isas[k / 2], dtypes[k % 2]);

        if (set == NULL)
            continue;
        assert_string_equal(set->isa, isas[k / 2]);
        assert_int_equal(set->dtype, dtypes[k % 2]);
        assert_true(set->quantise != NULL && set->spread != NULL && set->reduce != NULL);
        assert_non_null(set->reduce_fp8);
        assert_true(set->output_fp8 != NULL && set->output != NULL);
    }
}

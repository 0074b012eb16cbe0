/* What is wrong in a kernel is said, and ends the process: each probe runs in one of its own.
 * And a wait whose time is up looks once more, as its kernel may not have run for that long. Tiles are
 * as on Hopper: products equal plain sums, boxes stand where the documentation of PTX has them, and a
 * kernel that does not wait or fence as it must is found out: by what it says at its end, or by wrong
 * results. */
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "../../unit/test.h"
#include "probe.h"

enum { PROBE_SAID = 8192 };

/* In a process of its own; what it says on standard error is in `said`. */
static int probe_status(void (*probe)(void), char said[PROBE_SAID])
{
    size_t n = 0;
    ssize_t got;
    int fd[2], status;
    pid_t child;

    assert_int_equal(pipe(fd), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)dup2(fd[1], STDERR_FILENO);
        probe();
        _exit(0);
    }
    close(fd[1]);
    while (n < PROBE_SAID - 1 && (got = read(fd[0], said + n, PROBE_SAID - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = '\0';
    close(fd[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

/* It ends in failure, and says so. */
static void probe_expect(void (*probe)(void), const char *words)
{
    static char said[PROBE_SAID];
    int status = probe_status(probe, said);

    if (strstr(said, words) == NULL)
        fail_msg("expected \"%s\", it says: %s", words, said);
    assert_int_not_equal(status, 0);
}

TEST(a_kernel_that_is_right_passes)
{
    static char said[PROBE_SAID];

    assert_int_equal(probe_status(probe_nothing, said), 0);
    assert_string_equal(said, "");
}

TEST(a_barrier_that_not_all_reach_is_found)
{
    probe_expect(probe_lost_barrier, "its threads wait for each other in vain");
}

TEST(two_kinds_of_barrier_are_found)
{
    probe_expect(probe_other_barrier, "its threads are at different kinds of __syncthreads");
}

TEST(a_lane_that_takes_no_part_is_found)
{
    probe_expect(probe_foreign_lane, "which is not in its mask");
}

TEST(a_crooked_store_is_found)
{
    probe_expect(probe_crooked_store, "stores 16 bytes at");
}

TEST(a_store_behind_memory_is_found_by_asan)
{
#ifdef __SANITIZE_ADDRESS__
    probe_expect(probe_behind_memory, "AddressSanitizer");
#else
    skip();
#endif
}

/* ---- tiles ---- */

enum { M = 128, N = 256, K_BYTES = 1024, E4M3_BITS = 13 };

/* ---- numbers ---- */

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525 + 1013904223;
    return *seed >> 8;
}

static double value_of(enum tiles_type type, uint32_t code)
{
    uint32_t fraction_bits = type == TILES_BF16 ? 7 : type == TILES_F16 ? 10 : 3;
    uint32_t exponent_bits = type == TILES_BF16 ? 8 : type == TILES_F16 ? 5 : 4;
    uint32_t fraction = code & ((1u << fraction_bits) - 1);
    uint32_t exponent = code >> fraction_bits & ((1u << exponent_bits) - 1);
    int bias = (1 << (exponent_bits - 1)) - 1;
    double v = ldexp(fraction + (exponent > 0 ? 1u << fraction_bits : 0),
                     (int)(exponent > 0 ? exponent : 1) - bias - (int)fraction_bits);

    return code >> (fraction_bits + exponent_bits) & 1 ? -v : v;
}

/* Any number below 2 in magnitude: of 16 bits not too small, of FP8 all there are. */
static uint32_t any_code(enum tiles_type type, uint32_t *seed)
{
    uint32_t r = next(seed), sign = r >> 15 & 1;

    return type == TILES_E4M3  ? sign << 7 | r % 64
           : type == TILES_F16 ? sign << 15 | (10 + r % 6) << 10 | (r >> 4 & 0x3ff)
                               : sign << 15 | (120 + r % 8) << 7 | (r >> 4 & 0x7f);
}

/* An integer from -4 to 4. */
static uint32_t integer_code(enum tiles_type type, uint32_t *seed)
{
    static const uint16_t codes[][5] = {[TILES_BF16] = {0, 0x3f80, 0x4000, 0x4040, 0x4080},
                                        [TILES_F16] = {0, 0x3c00, 0x4000, 0x4200, 0x4400},
                                        [TILES_E4M3] = {0, 0x38, 0x40, 0x44, 0x48}};
    uint32_t r = next(seed), sign = type == TILES_E4M3 ? 0x80 : 0x8000;

    return codes[type][r % 5] | (r >> 8 & 1 ? sign : 0);
}

/* ---- products ---- */

static struct problem {
    struct tiles_product p;
    unsigned char a[M * K_BYTES], b[N * K_BYTES];
    float value_a[M * K_BYTES], value_b[N * K_BYTES], c[M * N];
} problem;

static void fill(enum tiles_type type, unsigned char *to, float *value, size_t n, bool integers,
                 uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t code = integers ? integer_code(type, &seed) : any_code(type, &seed);

        value[i] = (float)value_of(type, code);
        if (type == TILES_E4M3) {
            to[i] = (unsigned char)code;
        } else {
            to[2 * i] = (unsigned char)code;
            to[2 * i + 1] = (unsigned char)(code >> 8);
        }
    }
}

static void problem_init(struct problem *x, enum tiles_type type, bool integers)
{
    uint32_t k = type == TILES_E4M3 ? K_BYTES : K_BYTES / 2;

    x->p = (struct tiles_product){
        .type = type, .m = M, .n = N, .k = k, .columns = 128, .a = x->a, .b = x->b, .c = x->c};
    fill(type, x->a, x->value_a, (size_t)M * k, integers, 1);
    fill(type, x->b, x->value_b, (size_t)N * k, integers, 2);
    memset(x->c, 0xff, sizeof(x->c));
}

/* Exact. */
static float product_at(const struct problem *x, uint32_t row, uint32_t column, uint32_t k)
{
    return x->value_a[(size_t)row * x->p.k + k] * x->value_b[(size_t)column * x->p.k + k];
}

/* In float32, in order of K. */
static float sum_at(const struct problem *x, uint32_t row, uint32_t column)
{
    float sum = 0;

    for (uint32_t k = 0; k < x->p.k; k++)
        sum += product_at(x, row, column, k);
    return sum;
}

/* Of a code: those below 2^-6 have that of 2^-6. */
static int code_exponent(float v)
{
    return ilogbf(fmaxf(fabsf(v), 0x1p-6f));
}

static double cut_to(double v, double unit)
{
    return trunc(v / unit) * unit;
}

/* As an H200 adds up FP8: 32 products and the sum so far are cut below 2^-13 of the power of two of
 * the largest, which for a product is that of its codes; then their sum below 2^-13 of its own. */
static float cut_sum_at(const struct problem *x, uint32_t row, uint32_t column)
{
    double sum = 0;

    for (uint32_t first = 0; first < x->p.k; first += 32) {
        int most = sum == 0 ? -60 : ilogb(sum);
        double unit;

        for (uint32_t k = 0; k < 32; k++) {
            int exponent = code_exponent(x->value_a[(size_t)row * x->p.k + first + k]) +
                           code_exponent(x->value_b[(size_t)column * x->p.k + first + k]);

            if (product_at(x, row, column, first + k) != 0 && exponent > most)
                most = exponent;
        }
        unit = ldexp(1, most - E4M3_BITS);
        sum = cut_to(sum, unit);
        for (uint32_t k = 0; k < 32; k++)
            sum += cut_to(product_at(x, row, column, first + k), unit);
        sum = sum == 0 ? 0 : cut_to(sum, ldexp(1, ilogb(sum) - E4M3_BITS));
    }
    return (float)sum;
}

static uint32_t wrong(const struct problem *x,
                      float (*expected)(const struct problem *, uint32_t, uint32_t))
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < x->p.m; i++)
        for (uint32_t j = 0; j < x->p.n; j++) {
            float sum = expected(x, i, j);

            n += memcmp(&sum, &x->c[(size_t)i * x->p.n + j], sizeof(sum)) != 0;
        }
    return n;
}

static void multiply_cut(bool integers)
{
    setenv("EPA2A_SIMT_FP8_BITS", "13", 1);
    problem_init(&problem, TILES_E4M3, integers);
    if (!tiles_multiply(&problem.p) || wrong(&problem, cut_sum_at) != 0 ||
        (wrong(&problem, sum_at) == 0) != integers)
        _exit(1);
}

static void multiply_any_cut(void)
{
    multiply_cut(false);
}

static void multiply_integers_cut(void)
{
    multiply_cut(true);
}

TEST(fp8_is_cut_as_in_tensor_cores)
{
    static char said[PROBE_SAID];

    assert_int_equal(probe_status(multiply_any_cut, said), 0);
    assert_int_equal(probe_status(multiply_integers_cut, said), 0);
}

/* ---- faults ---- */

static enum tiles_fault fault;

static void multiply_with_fault(void)
{
    problem_init(&problem, TILES_BF16, true);
    problem.p.fault = fault;
    if (fault == TILES_NO_FULL)
        problem.p.k = 64; /* else phases of later blocks of K go wrong, too */
    (void)tiles_multiply(&problem.p);
}

TEST(faults_are_said)
{
    static const struct {
        enum tiles_fault fault;
        const char *words;
    } faults[] = {
        {TILES_NO_FULL, "none of its threads has waited for"},
        {TILES_PARITY, "phase of parity 0, which misses 4 arrivals and 0 bytes"},
        {TILES_BYTES, "misses 0 arrivals and 16 bytes"},
        {TILES_NO_FENCE, "without a fence to the async proxy"},
        {TILES_EARLY_FENCE, "without a fence to the async proxy"},
        {TILES_NO_WGMMA_FENCE, "wgmma without wgmma.fence"},
        {TILES_NO_STORE_WAIT, "its bulk stores may still read shared memory"},
        {TILES_NO_INIT_FENCE, "without fence.mbarrier_init"},
        {TILES_ODD_LANE, "wgmma of its warpgroup"},
        {TILES_OTHER_DESCRIPTOR, "issues another wgmma than the first lane"},
        {TILES_NAMED, "named barrier 1 is of 96 threads"},
        {TILES_REGISTERS, "its threads have 75776 registers, and were launched with 64512"},
        {TILES_ODD_REGISTERS, "has not the registers of all of its warpgroup"},
        {TILES_CROOKED, "only tiles at multiples of 1024 bytes"},
    };

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        fault = faults[i].fault;
        probe_expect(multiply_with_fault, faults[i].words);
    }
}

/* From here on kernels run in this process, which no probe is forked of then. */
TEST(products_equal_plain_sums)
{
    for (int type = TILES_BF16; type <= TILES_E4M3; type++)
        for (int shape = 0; shape < 3; shape++) {
            problem_init(&problem, (enum tiles_type)type, shape == 2);
            problem.p.columns = shape == 1 ? 8 : 128;
            assert_true(tiles_multiply(&problem.p));
            assert_int_equal(wrong(&problem, sum_at), 0);
        }
}

TEST(faults_spoil_results)
{
    static const enum tiles_fault faults[] = {TILES_EARLY_SUM, TILES_EARLY_RELEASE,
                                              TILES_NO_READ_WAIT};

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        fault = faults[i];
        multiply_with_fault();
        assert_int_not_equal(wrong(&problem, sum_at), 0);
    }
}

/* ---- boxes ---- */

enum { COLUMNS = 72, ROWS = 20, BOX_WORDS = 4096 };

static uint16_t tensor[ROWS * COLUMNS], box_out[BOX_WORDS];

/* Pieces of 16 bytes change places within the span, by the number of the line of 128 bytes. */
static uint32_t place_of(const struct tiles_box *b, uint32_t row, uint32_t column)
{
    uint32_t at = (row * b->width + column) * 2, pieces = b->swizzle_bytes / 16;

    if (pieces > 0)
        at ^= at / 128 % pieces * 16;
    return at / 2;
}

TEST(boxes_stand_as_documented)
{
    static const struct tiles_box boxes[] = {
        {.width = 64, .height = 16, .swizzle_bytes = 128},
        {.width = 64, .height = 8, .x = 32, .y = 15, .swizzle_bytes = 128},
        {.width = 64, .height = 8, .x = -5, .y = -3, .swizzle_bytes = 128},
        {.width = 32, .height = 9, .x = 50, .y = 3, .swizzle_bytes = 64},
        {.width = 16, .height = 20, .x = 8, .swizzle_bytes = 32},
        {.width = 72, .height = 20},
        {.width = 8, .height = 3, .x = 100, .y = 1},
    };

    for (size_t i = 0; i < sizeof(tensor) / sizeof(tensor[0]); i++)
        tensor[i] = (uint16_t)(i + 1);
    for (size_t i = 0; i < sizeof(boxes) / sizeof(boxes[0]); i++) {
        struct tiles_box b = boxes[i];

        b.columns = COLUMNS, b.rows = ROWS;
        b.from = tensor, b.out = box_out;
        assert_true(tiles_copy(&b));
        for (uint32_t row = 0; row < b.height; row++)
            for (uint32_t column = 0; column < b.width; column++) {
                int32_t x = b.x + (int32_t)column, y = b.y + (int32_t)row;
                bool inside = x >= 0 && y >= 0 && x < COLUMNS && y < ROWS;

                assert_int_equal(box_out[place_of(&b, row, column)],
                                 inside ? tensor[y * COLUMNS + x] : 0);
            }
    }
}

/* ---- maps ---- */

struct map {
    CUtensorMapDataType type;
    uint32_t rank, box[3], steps[3], swizzle;
    uint64_t dims[3], strides[2];
    size_t off, map_off;
};

typedef CUresult encode(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                        const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                        CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                        CUtensorMapFloatOOBfill);

static CUresult encode_map(const struct map *m)
{
    static CUtensorMap maps[2];
    static _Alignas(16) char memory[32];
    enum cudaDriverEntryPointQueryResult found;
    encode *call;
    void *entry;

    assert_int_equal(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                      cudaEnableDefault, &found),
                     cudaSuccess);
    memcpy(&call, &entry, sizeof(call));
    return call((CUtensorMap *)(void *)((char *)maps + m->map_off), m->type, m->rank,
                memory + m->off, m->dims, m->strides, m->box, m->steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, (CUtensorMapSwizzle)m->swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

TEST(maps_are_refused_as_documented)
{
    const struct map good = {.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                             .rank = 3,
                             .box = {64, 256, 1},
                             .steps = {1, 1, 1},
                             .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                             .dims = {100, 1000, 10},
                             .strides = {208, 208000}};
    struct map bad[12];

    assert_int_equal(encode_map(&good), CUDA_SUCCESS);
    for (int i = 0; i < 12; i++)
        bad[i] = good;
    bad[0].map_off = 16;
    bad[1].off = 8;
    bad[2].rank = 0;
    bad[3].rank = 6;
    bad[4].dims[1] = 0;
    bad[5].strides[0] = 200;
    bad[6].strides[1] = 1ull << 40;
    bad[7].box[1] = 257;
    bad[8].box[0] = 0;
    bad[9].box[0] = 60;
    bad[10].box[0] = 128; /* beyond the swizzle's span */
    bad[11].steps[1] = 9;
    for (int i = 0; i < 12; i++)
        assert_int_equal(encode_map(&bad[i]), CUDA_ERROR_INVALID_VALUE);
}

TEST(a_matrix_is_transposed)
{
    uint16_t from[64], out[64];

    for (int i = 0; i < 64; i++)
        from[i] = (uint16_t)(i * 1021);
    assert_true(tiles_transpose(from, out));
    for (int i = 0; i < 64; i++)
        assert_int_equal(out[i], from[i % 8 * 8 + i / 8]);
}

/* ---- waits ---- */

/* Who was stopped for long finds what came meanwhile: after the clock there is one more look. */
TEST(a_row_that_came_before_the_last_look_is_found)
{
    assert_int_not_equal(probe_late_row(false), 0);
    assert_int_not_equal(probe_late_row(true), 0);
}

TEST(lanes_of_a_line_see_it_at_one_time)
{
    assert_int_equal(probe_torn_line(), 0);
}

/* One poll beyond that at which the clock is looked at, not as many as between two looks. */
TEST(a_word_that_never_came_is_given_up)
{
    assert_int_equal(probe_late_word() % 32, 1);
}

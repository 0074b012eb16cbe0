/* Emulation of wgmma. Instructions are queued when lanes issue them. They run when a lane waits for
 * them: as late as possible, and after others had a turn. The sums of a chain of instructions are
 * stored here meanwhile, so that a tile's sum that is read too early is NaN; an operand that is
 * overwritten too early gives a wrong sum.
 *
 * Products and sums are in float32, in order of K, except FP8 with EPA2A_SIMT_FP8_BITS=13 in the
 * environment. Then, as in the tensor cores of Hopper, the products of an instruction and the
 * current sum are aligned to the largest of their exponents, cut to this number of fraction bits,
 * and added; the sum is cut to the same number of fraction bits of its own. The exponent of a
 * product is the sum of the exponents of its codes. An H200 gave the same bits for 262,144 sums of
 * 32 and of 128 random products. */
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "block.h"

enum {
    GROUPS = SIMT_THREADS / SIMT_WARPGROUP,
    QUEUE = 64,   /* instructions of a warpgroup in the queue */
    BATCHES = 64, /* committed groups of instructions */
    CHAINS = 8,
    ROWS = 64,
    MOST_N = 256,
    K_BYTES = 32, /* bytes of K per instruction */
    MOST_K = 32,
    TILE_ROW = 128,
    PIECE = 16,
    MOST_ROUNDS = 3, /* rounds that a warpgroup may take to multiply */
    MOST_BITS = 23,
};

/* Instructions that add to the same sums, from the first issue of a lane until it gets its
 * registers back. */
struct chain {
    uint32_t n, last;                 /* number of its last instruction */
    uint32_t lanes;                   /* number of lanes whose sums are here */
    float *registers[SIMT_WARPGROUP]; /* registers of each lane; NULL: not handed over */
    float sum[ROWS][MOST_N];
};

struct instruction {
    struct simt_product what;
    uint32_t lanes; /* number of lanes that issued it */
    struct chain *chain;
};

struct group {
    struct instruction queue[QUEUE]; /* indexed by instruction number */
    uint32_t known, done;            /* issued instructions; executed instructions */
    uint32_t batch_end[BATCHES];     /* number of the first instruction after each group */
    uint32_t batches;                /* number of committed groups */
    bool runs;                       /* a lane is about to run instructions */
    uint32_t issued[SIMT_WARPGROUP], committed[SIMT_WARPGROUP];
    bool fenced[SIMT_WARPGROUP]; /* wgmma.fence since the lane last owned its registers */
    struct chain *chain[CHAINS];
};

/* Operand that was checked last, and its turn. */
struct operand {
    uint64_t turn;
    uint32_t tile, rows;
};

struct matrix {
    struct operand last_a, last_b;
    struct group group[GROUPS];
    float a[ROWS][MOST_K], b[MOST_K][MOST_N];
    float e4m3[256];
    int bits; /* 0: sums in float32 */
};

/* ---- operands ---- */

/* Returns the address of the 32 bytes of a row. The emulator supports one kind of descriptor:
 * 128-byte swizzle, K-major. */
static uint32_t take_descriptor(struct worker *w, uint64_t descriptor, uint32_t rows)
{
    uint32_t address = (descriptor & 0x3fff) * PIECE, stride = (descriptor >> 32 & 0x3fff) * PIECE;
    uint32_t tile = address & ~(TILE_ROW - 1u);

    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0 || stride != 8 * TILE_ROW ||
        tile % (8 * TILE_ROW) != 0 || address % TILE_ROW % K_BYTES != 0)
        simt_die(w,
                 "thread %u: a descriptor of what is not emulated: %#llx (only tiles at multiples "
                 "of 1024 bytes, with swizzle of 128 bytes)",
                 w->now->number, (unsigned long long)descriptor);
    if (tile < SIMT_SHARED_BASE || tile - SIMT_SHARED_BASE + rows * TILE_ROW > w->shared_bytes)
        simt_die(w, "thread %u: a descriptor of a tile beyond shared memory: %#x, %u rows",
                 w->now->number, address, rows);
    return address;
}

/* Returns the address of piece `i` of row `row`. */
static const unsigned char *piece_of(const struct worker *w, uint32_t address, uint32_t row,
                                     uint32_t i)
{
    uint32_t at = address + row * TILE_ROW + i * PIECE;

    return (const unsigned char *)w->shared + (at ^ (at >> 7 & 7) * PIECE) - SIMT_SHARED_BASE;
}

/* Converts 16 bytes to floats, `step` floats apart. */
static void decode(const struct matrix *m, enum simt_type type, const unsigned char *from,
                   float *to, size_t step)
{
    uint16_t half[PIECE / 2];
    uint32_t bits;

    if (type == SIMT_E4M3) {
        for (uint32_t i = 0; i < PIECE; i++)
            to[i * step] = m->e4m3[from[i]];
        return;
    }
    memcpy(half, from, sizeof(half));
    for (uint32_t i = 0; i < PIECE / 2; i++) {
        bits = (uint32_t)half[i] << 16;
        if (type == SIMT_BF16)
            memcpy(&to[i * step], &bits, sizeof(bits));
        else
            to[i * step] = float_of_f16(half[i]);
    }
}

static uint32_t values_of(enum simt_type type)
{
    return type == SIMT_E4M3 ? K_BYTES : K_BYTES / 2;
}

/* ---- products ---- */

typedef float floats __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t words __attribute__((vector_size(32), aligned(4), may_alias));
enum { WIDE = sizeof(floats) / 4, HIGH = 4 };

/* Multiplies HIGH rows with WIDE * `wide` columns. Products of 8-bit or 16-bit values are exact. */
static inline __attribute__((always_inline)) void multiply_block(float (*sum)[MOST_N],
                                                                 float (*a)[MOST_K],
                                                                 float (*b)[MOST_N], uint32_t k,
                                                                 const uint32_t wide)
{
    floats s[HIGH][2];

    for (uint32_t i = 0; i < HIGH; i++)
        for (uint32_t j = 0; j < wide; j++)
            s[i][j] = *(const floats *)&sum[i][j * WIDE];
    for (uint32_t at = 0; at < k; at++)
        for (uint32_t i = 0; i < HIGH; i++)
            for (uint32_t j = 0; j < wide; j++)
                s[i][j] += a[i][at] * *(const floats *)&b[at][j * WIDE];
    for (uint32_t i = 0; i < HIGH; i++)
        for (uint32_t j = 0; j < wide; j++)
            *(floats *)&sum[i][j * WIDE] = s[i][j];
}

static inline __attribute__((always_inline)) void
multiply(float (*sum)[MOST_N], float (*a)[MOST_K], float (*b)[MOST_N], uint32_t n, uint32_t k)
{
    for (uint32_t i = 0; i < ROWS; i += HIGH) {
        uint32_t j = 0;

        for (; j + 2 * WIDE <= n; j += 2 * WIDE)
            multiply_block((float(*)[MOST_N]) & sum[i][j], &a[i], (float(*)[MOST_N]) & b[0][j], k,
                           2);
        if (j < n)
            multiply_block((float(*)[MOST_N]) & sum[i][j], &a[i], (float(*)[MOST_N]) & b[0][j], k,
                           1);
    }
}

/* Extracts the exponents of FP8 codes in place; codes below 2^-6 have exponent -6. */
static inline __attribute__((always_inline)) void code_exponent(const floats *v, words *out)
{
    const words exponent = (words){0} + 0x7f800000, least = (words){0} + ((127 - 6) << 23);
    words e = (words)*v & exponent, less = e < least;

    *out = (less & least) | (~less & e);
}

/* Multiplies with cut addends. The unit is 2^-bits of the power of two of the largest addend. */
static inline __attribute__((always_inline)) void multiply_cut(float (*sum)[MOST_N],
                                                               float (*a)[MOST_K],
                                                               float (*b)[MOST_N], uint32_t n,
                                                               uint32_t k, int bits)
{
    const words least = (words){0} + ((127 - 60) << 23), exponent = (words){0} + 0x7f800000;
    const words kept = (words){0} + ~((1 << (23 - bits)) - 1);

    for (uint32_t i = 0; i < ROWS; i++) {
        for (uint32_t j = 0; j < n; j += WIDE) {
            floats s = *(const floats *)&sum[i][j], f;
            words most = (words)s & exponent, word, other, all, bigger = most > least;

            most = (bigger & most) | (~bigger & least);
            for (uint32_t at = 0; at < k; at++) {
                f = (floats){0} + a[i][at];
                code_exponent(&f, &word);
                code_exponent((const floats *)&b[at][j], &other);
                word += other - (127 << 23);
                bigger = (f * *(const floats *)&b[at][j] != 0) & (word > most);
                most = (bigger & word) | (~bigger & most);
            }
            word = (254 << 23) - most + (bits << 23);
            f = (floats)word;
            all = __builtin_convertvector(s * f, words);
            for (uint32_t at = 0; at < k; at++)
                all += __builtin_convertvector(a[i][at] * *(const floats *)&b[at][j] * f, words);
            word = most - (bits << 23);
            f = __builtin_convertvector(all, floats) * (floats)word;
            *(words *)&sum[i][j] = (words)f & kept;
        }
    }
}

static void product_plain(float (*sum)[MOST_N], float (*a)[MOST_K], float (*b)[MOST_N], uint32_t n,
                          uint32_t k, int bits)
{
    if (bits == 0)
        multiply(sum, a, b, n, k);
    else
        multiply_cut(sum, a, b, n, k, bits);
}

#ifdef __x86_64__
static __attribute__((target("avx2,fma"))) void product_avx2(float (*sum)[MOST_N],
                                                             float (*a)[MOST_K], float (*b)[MOST_N],
                                                             uint32_t n, uint32_t k, int bits)
{
    if (bits == 0)
        multiply(sum, a, b, n, k);
    else
        multiply_cut(sum, a, b, n, k, bits);
}
#endif

static void product(float (*sum)[MOST_N], float (*a)[MOST_K], float (*b)[MOST_N], uint32_t n,
                    uint32_t k, int bits)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        product_avx2(sum, a, b, n, k, bits);
        return;
    }
#endif
    product_plain(sum, a, b, n, k, bits);
}

static void run_instruction(struct worker *w, const struct instruction *in)
{
    struct matrix *m = w->matrix;
    const struct simt_product *p = &in->what;
    uint32_t a = take_descriptor(w, p->a, ROWS), b = take_descriptor(w, p->b, p->n);
    uint32_t values = PIECE * values_of(p->type) / K_BYTES;

    for (uint32_t piece = 0; piece < 2; piece++) {
        for (uint32_t i = 0; i < ROWS; i++)
            decode(m, p->type, piece_of(w, a, i, piece), &m->a[i][piece * values], 1);
        for (uint32_t i = 0; i < p->n; i++)
            decode(m, p->type, piece_of(w, b, i, piece), &m->b[piece * values][i], MOST_N);
    }
    if (p->sum == 0)
        for (uint32_t i = 0; i < ROWS; i++)
            memset(in->chain->sum[i], 0, p->n * sizeof(float));
    product(in->chain->sum, m->a, m->b, p->n, values_of(p->type),
            p->type == SIMT_E4M3 ? m->bits : 0);
}

/* ---- registers ---- */

/* Returns the address of element `i` of a lane in the sum. */
static float *element_of(struct chain *c, uint32_t lane, uint32_t i)
{
    return &c->sum[lane / 32 * 16 + lane % 32 / 4 + (i / 2 % 2) * 8]
                  [i / 4 * 8 + lane % 4 * 2 + i % 2];
}

/* Hands the registers of the lane over to the chain. They contain NaN until take_back(). */
static void hand_over(struct chain *c, uint32_t lane, float *d, bool sum)
{
    for (uint32_t i = 0; sum && i < c->n / 2; i += 2)
        memcpy(element_of(c, lane, i), d + i, 2 * sizeof(*d));
    memset(d, 0xff, c->n / 2 * sizeof(*d));
    c->registers[lane] = d;
    c->lanes++;
}

static void take_back(struct chain *c, uint32_t lane)
{
    for (uint32_t i = 0; i < c->n / 2; i += 2)
        memcpy(c->registers[lane] + i, element_of(c, lane, i), 2 * sizeof(float));
    c->registers[lane] = NULL;
    c->lanes--;
}

static struct chain *chain_of(struct worker *w, struct group *g, uint32_t lane, float *d,
                              const struct instruction *in)
{
    struct chain *unused = NULL;

    for (uint32_t i = 0; i < CHAINS; i++) {
        if (g->chain[i] == NULL)
            g->chain[i] = simt_alloc(sizeof(*g->chain[i]));
        if (g->chain[i]->registers[lane] == d)
            return g->chain[i];
        if (g->chain[i]->lanes == 0)
            unused = g->chain[i];
    }
    if (unused == NULL)
        simt_die(w, "thread %u has more than %d sums in flight", w->now->number, CHAINS);
    unused->n = in->what.n;
    return unused;
}

/* ---- instructions ---- */

struct matrix *simt_matrix_create(void)
{
    struct matrix *m = simt_alloc(sizeof(*m));
    const char *bits = getenv("EPA2A_SIMT_FP8_BITS");

    for (uint32_t i = 0; i < 256; i++)
        m->e4m3[i] = float_of_e4m3((uint8_t)i);
    m->bits = bits == NULL ? 0 : atoi(bits);
    if (m->bits < 0 || m->bits > MOST_BITS)
        abort();
    return m;
}

static struct group *group_of(struct worker *w)
{
    if (w->lanes - w->now->number / SIMT_WARPGROUP * SIMT_WARPGROUP < SIMT_WARPGROUP)
        simt_die(w, "thread %u is in no whole warpgroup", w->now->number);
    return &w->matrix->group[w->now->number / SIMT_WARPGROUP];
}

void simt_wgmma_begin(void)
{
    struct worker *w = simt_place()->worker;

    group_of(w)->fenced[w->now->number % SIMT_WARPGROUP] = true;
}

static bool is_in_group(const struct lane *lane, const void *group)
{
    return lane->number / SIMT_WARPGROUP == *(const uint32_t *)group;
}

static void wake_group(struct worker *w)
{
    uint32_t number = w->now->number / SIMT_WARPGROUP;

    w->idle = 0;
    (void)simt_wake(w, LANE_IN_WGMMA, is_in_group, &number);
}

/* Consecutive instructions mostly read the same rows, 32 bytes of each: the check runs once per
 * tile and turn. */
static void check_operand(struct worker *w, uint64_t descriptor, uint32_t rows,
                          struct operand *last)
{
    uint32_t tile = take_descriptor(w, descriptor, rows) & ~(TILE_ROW - 1u);

    if (last->turn == w->turn && last->tile == tile && last->rows == rows)
        return;
    *last = (struct operand){w->turn, tile, rows};
    simt_async_check(w, tile - SIMT_SHARED_BASE, rows * TILE_ROW, "wgmma");
}

/* Compares field by field, since padding has random contents. */
static bool is_same(const struct simt_product *a, const struct simt_product *b)
{
    return a->a == b->a && a->b == b->b && a->n == b->n && a->type == b->type && a->sum == b->sum;
}

/* The first lane defines the instruction; the others must issue the same. */
static struct instruction *instruction_of(struct worker *w, struct group *g, float *d,
                                          const struct simt_product *what)
{
    uint32_t lane = w->now->number % SIMT_WARPGROUP, number = g->issued[lane]++;
    struct instruction *in = &g->queue[number % QUEUE];

    if (number - g->done >= QUEUE)
        simt_die(w, "more than %d wgmma of a warpgroup without a wait are not emulated", QUEUE);
    if (number == g->known) {
        check_operand(w, what->a, ROWS, &w->matrix->last_a);
        check_operand(w, what->b, what->n, &w->matrix->last_b);
        *in = (struct instruction){.what = *what};
        in->chain = chain_of(w, g, lane, d, in);
        in->chain->last = number;
        g->known++;
    } else if (!is_same(&in->what, what)) {
        simt_die(w, "thread %u issues another wgmma than the first lane of its warpgroup",
                 w->now->number);
    }
    if (in->chain->n != what->n ||
        (in->chain->registers[lane] != d && in->chain->registers[lane] != NULL))
        simt_die(w,
                 "thread %u has its sums elsewhere than other lanes of its warpgroup, or of "
                 "another shape than before",
                 w->now->number);
    return in;
}

void simt_wgmma(float *d, const struct simt_product *what)
{
    struct worker *w = simt_place()->worker;
    struct group *g = group_of(w);
    uint32_t lane = w->now->number % SIMT_WARPGROUP;
    struct instruction *in = instruction_of(w, g, d, what);

    if (in->chain->registers[lane] == NULL) {
        if (!g->fenced[lane])
            simt_die(w, "thread %u: wgmma without wgmma.fence since its sums were its own",
                     w->now->number);
        hand_over(in->chain, lane, d, what->sum != 0);
    }
    if (++in->lanes == SIMT_WARPGROUP)
        wake_group(w);
}

void simt_wgmma_commit(void)
{
    struct worker *w = simt_place()->worker;
    struct group *g = group_of(w);
    uint32_t lane = w->now->number % SIMT_WARPGROUP, batch = g->committed[lane]++;

    if (batch == g->batches) {
        g->batch_end[batch % BATCHES] = g->issued[lane];
        g->batches++;
    } else if (g->batch_end[batch % BATCHES] != g->issued[lane]) {
        simt_die(w, "thread %u commits another number of wgmma than its warpgroup", w->now->number);
    }
}

/* Runs all instructions before `end`, which all lanes have issued, unless another lane is running
 * them. */
static void run_until(struct worker *w, struct group *g, uint32_t end)
{
    while (g->runs)
        simt_wait(w, LANE_IN_WGMMA, 0, __builtin_return_address(0));
    if (g->done >= end)
        return;
    g->runs = true;
    for (uint32_t i = simt_random(w, MOST_ROUNDS); i > 0; i--)
        simt_pass(w);
    for (; g->done < end; g->done++)
        run_instruction(w, &g->queue[g->done % QUEUE]);
    g->runs = false;
    wake_group(w);
}

void simt_wgmma_wait(uint32_t pending)
{
    struct worker *w = simt_place()->worker;
    struct group *g = group_of(w);
    uint32_t lane = w->now->number % SIMT_WARPGROUP, end;

    if (g->committed[lane] <= pending)
        return;
    end = g->batch_end[(g->committed[lane] - pending - 1) % BATCHES];
    while (g->done < end && g->queue[(end - 1) % QUEUE].lanes < SIMT_WARPGROUP)
        simt_wait(w, LANE_IN_WGMMA, 0, __builtin_return_address(0));
    if (g->done < end)
        run_until(w, g, end);
    for (uint32_t i = 0; i < CHAINS; i++) {
        struct chain *c = g->chain[i];

        if (c == NULL || c->registers[lane] == NULL || c->last >= end)
            continue;
        take_back(c, lane);
        g->fenced[lane] = false;
    }
}

/* ---- blocks ---- */

void simt_matrix_begin(struct worker *w)
{
    for (uint32_t i = 0; i < GROUPS; i++) {
        struct group *g = &w->matrix->group[i];

        g->known = g->done = g->batches = 0;
        g->runs = false;
        memset(g->issued, 0, sizeof(g->issued));
        memset(g->committed, 0, sizeof(g->committed));
        memset(g->fenced, 0, sizeof(g->fenced));
    }
}

void simt_matrix_end(struct worker *w)
{
    for (uint32_t i = 0; i < w->lanes / SIMT_WARPGROUP; i++) {
        const struct group *g = &w->matrix->group[i];

        for (uint32_t j = 0; j < CHAINS; j++)
            if (g->chain[j] != NULL && g->chain[j]->lanes != 0)
                simt_die(w,
                         "warpgroup %u has ended, and %u threads of it have not waited for wgmma",
                         i, g->chain[j]->lanes);
        if (g->done != g->known)
            simt_die(w, "warpgroup %u has ended with %u wgmma that it did not wait for", i,
                     g->known - g->done);
    }
}

/* Conversions between the structs of epa2a.h and an algorithm: places of rows, and forms of
 * scales. */
#include "test.h"

#include "api/moe_deliver.h"
#include "base/dtype.h"

enum {
    RANKS = 3,
    LOCAL = 4,
    TOKENS = 5,
    TOPK = 3,
    HIDDEN = 64,
    GROUP = 16,
    GROUPS = HIDDEN / GROUP
};
enum { EXPERTS = RANKS * LOCAL, MOST = RANKS * TOKENS * TOPK };

/* ---- places ---- */

/* A dispatch to one rank: choices of all tokens, and a view in a random order. */
struct view {
    struct epa_moe m;
    bool chosen[RANKS][TOKENS][LOCAL];
    uint32_t count[LOCAL], row[MOST];
    uint64_t start[LOCAL];
    uint8_t k[MOST];
    float weight[MOST];
    struct epa_origin origin[MOST];
    uint16_t x[MOST][HIDDEN];
    uint32_t source[RANKS * LOCAL]; /* recv_source */
};

static float weight_of(uint32_t rank, uint32_t token, uint32_t e)
{
    return (float)(rank * 100 + token * 10 + e) + 0.5f;
}

/* Index of local expert e among the choices of a token. */
static uint32_t k_of(const struct view *v, uint32_t rank, uint32_t token, uint32_t e)
{
    uint32_t k = 0;

    for (uint32_t i = 0; i < e; i++)
        k += v->chosen[rank][token][i];
    return k;
}

static void swap_rows(struct view *v, uint64_t *random, uint64_t first, uint64_t n)
{
    for (uint64_t i = n; i > 1; i--) {
        uint64_t a = first + i - 1, b = first + next_random(random) % i;
        struct epa_origin origin = v->origin[a];

        v->origin[a] = v->origin[b];
        v->origin[b] = origin;
    }
}

/* Makes a view; `shuffled`: rows in the order of arrival. */
static void make_view(struct view *v, bool by_rank, bool shuffled, uint64_t *random)
{
    uint64_t rows = 0;

    memset(v, 0, sizeof(*v));
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t t = 0; t < TOKENS; t++)
            for (uint32_t n = next_random(random) % (TOPK + 1); n > 0; n--)
                v->chosen[r][t][next_random(random) % LOCAL] = true;
    for (uint32_t e = 0, entry = 0; e < LOCAL; e++) {
        v->start[e] = entry;
        for (uint32_t r = 0; r < RANKS; r++)
            for (uint32_t t = 0; t < TOKENS; t++)
                if (v->chosen[r][t][e])
                    v->origin[entry++] = (struct epa_origin){r, t};
        v->count[e] = entry - (uint32_t)v->start[e];
        rows = entry;
        if (shuffled && !by_rank)
            swap_rows(v, random, v->start[e], v->count[e]);
    }
    v->m = (struct epa_moe){.hidden = HIDDEN,
                            .topk = TOPK,
                            .recv_count = v->count,
                            .recv_start = v->start,
                            .recv_entries = rows,
                            .recv = v->x,
                            .recv_stride = sizeof(v->x[0]),
                            .origin = v->origin,
                            .origin_stride = sizeof(v->origin[0])};
    if (by_rank) {
        struct epa_origin entry[MOST];

        memcpy(entry, v->origin, sizeof(entry));
        rows = 0;
        for (uint32_t r = 0; r < RANKS; r++)
            for (uint32_t t = 0; t < TOKENS; t++)
                if (k_of(v, r, t, LOCAL) != 0)
                    v->origin[rows++] = (struct epa_origin){r, t};
        if (shuffled)
            swap_rows(v, random, 0, rows);
        for (uint32_t e = 0; e < LOCAL; e++)
            for (uint64_t i = v->start[e]; i < v->start[e] + v->count[e]; i++) {
                while (v->origin[v->row[i]].rank != entry[i].rank ||
                       v->origin[v->row[i]].token != entry[i].token)
                    v->row[i]++;
                v->k[i] = (uint8_t)k_of(v, entry[i].rank, entry[i].token, e);
                v->weight[i] = weight_of(entry[i].rank, entry[i].token, e);
            }
        v->m.recv_row = v->row;
        v->m.recv_weight = v->weight;
        v->m.recv_k = v->k;
    }
    v->m.recv_rows = rows;
    for (uint64_t i = 0; i < rows; i++)
        for (uint32_t h = 0; h < HIDDEN; h++)
            v->x[i][h] = (uint16_t)(v->origin[i].rank * 1000 + v->origin[i].token * 100 + h);
}

/* Adds the counts of each source to a view in the order of sources. */
static void add_sources(struct view *v, bool by_rank)
{
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t t = 0; t < TOKENS; t++)
            if (by_rank)
                v->source[r] += k_of(v, r, t, LOCAL) != 0;
            else
                for (uint32_t e = 0; e < LOCAL; e++)
                    v->source[r * LOCAL + e] += v->chosen[r][t][e];
    v->m.recv_source = v->source;
}

static struct moe_layout layout_of(enum epa2a_layout layout)
{
    struct moe_layout l = {.layout = layout,
                           .ranks = RANKS,
                           .local = LOCAL,
                           .max_tokens = TOKENS,
                           .rows = RANKS * TOKENS,
                           .entries = MOST,
                           .most = MOST};

    if (layout == EPA2A_EXPERT_PADDED)
        l.rows = l.entries = RANKS * TOKENS * LOCAL;
    if (layout == EPA2A_EXPERT_PACKED)
        l.rows = MOST;
    return l;
}

/* Lists and rows of a dispatch in the layout. */
struct got {
    uint32_t count[LOCAL], row[MOST], host_count[LOCAL + 1];
    uint64_t start[LOCAL];
    int32_t topk_idx[MOST * LOCAL][TOPK], token[MOST * LOCAL], seen[LOCAL];
    float topk_weight[MOST * LOCAL][TOPK];
    int64_t range[LOCAL * RANKS];
    uint16_t x[MOST * LOCAL][HIDDEN];
};

static void assert_row(const struct got *g, uint64_t row, uint32_t rank, uint32_t token)
{
    assert_int_equal(g->token[row], token);
    assert_int_equal(g->x[row][HIDDEN - 1], rank * 1000 + token * 100 + HIDDEN - 1);
}

static void assert_experts(const struct view *v, const struct got *g, bool padded)
{
    uint64_t row = 0;

    for (uint32_t e = 0; e < LOCAL; e++) {
        uint64_t begin = row = padded ? (uint64_t)e * RANKS * TOKENS : row;

        assert_int_equal(g->start[e], begin);
        for (uint32_t r = 0; r < RANKS; r++) {
            uint64_t first = row;

            for (uint32_t t = 0; t < TOKENS; t++)
                if (v->chosen[r][t][e])
                    assert_row(g, row++, r, t);
            assert_int_equal(g->range[e * RANKS + r], (first - begin) << 32 | (row - first));
        }
        assert_int_equal(g->count[e], row - begin);
        assert_int_equal(g->host_count[e], g->count[e]);
        assert_int_equal(g->seen[e], 7 + g->count[e]);
    }
}

static void assert_ranks(const struct view *v, const struct got *g, bool padded)
{
    uint32_t next[LOCAL] = {0};
    uint64_t row = 0, rows = 0;

    for (uint32_t r = 0; r < RANKS; r++) {
        uint64_t first = row = padded ? (uint64_t)r * TOKENS : row;

        for (uint32_t t = 0; t < TOKENS; t++) {
            if (k_of(v, r, t, LOCAL) == 0)
                continue;
            assert_row(g, row, r, t);
            for (uint32_t k = k_of(v, r, t, LOCAL); k < TOPK; k++) {
                assert_int_equal(g->topk_idx[row][k], -1);
                assert_true(g->topk_weight[row][k] == 0);
            }
            for (uint32_t e = 0; e < LOCAL; e++) {
                uint32_t k = k_of(v, r, t, e);

                if (!v->chosen[r][t][e])
                    continue;
                assert_int_equal(g->topk_idx[row][k], e);
                assert_true(g->topk_weight[row][k] == weight_of(r, t, e));
                if (next[e] < g->count[e] && g->row[g->start[e] + next[e]] == row)
                    next[e]++;
            }
            row++;
            rows++;
        }
        assert_int_equal(g->range[r], first << 32 | (row - first));
    }
    for (uint32_t e = 0; e < LOCAL; e++) {
        assert_int_equal(g->count[e], v->count[e]);
        assert_int_equal(next[e], v->count[e]);
    }
    assert_int_equal(g->host_count[LOCAL], rows);
}

TEST(rows_have_the_order_of_the_layout_whatever_the_order_of_arrival)
{
    static const struct moe_form form = {.hidden = HIDDEN, .group = GROUP, .topk = TOPK};
    uint64_t random = 1;

    for (int i = 0; i < 400; i++) {
        enum epa2a_layout layout = (enum epa2a_layout)(i % 4);
        struct moe_layout l = layout_of(layout);
        bool by_rank = moe_layout_is_rank(&l), shuffled = i / 4 % 2 != 0, counted = i % 3 == 0;
        struct moe_places p;
        struct view v;
        struct got g = {.seen = {7, 7, 7, 7}};
        uint16_t back[MOST][HIDDEN];

        make_view(&v, by_rank, shuffled, &random);
        if (counted && !shuffled)
            add_sources(&v, by_rank);
        assert_status(moe_places_init(&p, &l, test_error()), EPA_OK, "");
        assert_status(moe_places_find(&p, &v.m, test_error()), EPA_OK, "");
        assert_status(moe_places_list(&p, &v.m, test_error()), EPA_OK, "");
        moe_deliver_lists(&p, &form, &v.m,
                          &(struct moe_lists){.count = g.count,
                                              .start = g.start,
                                              .row = g.row,
                                              .topk_idx = g.topk_idx[0],
                                              .topk_weight = g.topk_weight[0],
                                              .source_token = g.token,
                                              .source_range = g.range,
                                              .host_count = g.host_count,
                                              .seen = g.seen});
        assert_status(moe_deliver_rows(&p, &form, &v.m, g.x, NULL, NULL, test_error()), EPA_OK, "");
        if (by_rank)
            assert_ranks(&v, &g, layout == EPA2A_RANK_PADDED);
        else
            assert_experts(&v, &g, layout == EPA2A_EXPERT_PADDED);
        if (!shuffled && (layout == EPA2A_EXPERT_PACKED || layout == EPA2A_RANK_PACKED))
            assert_true(p.same);
        moe_gather_outputs(&p, HIDDEN, g.x, back);
        assert_memory_equal(back, v.x, v.m.recv_rows * sizeof(back[0]));
        moe_places_finish(&p);
    }
}

TEST(a_row_of_an_unknown_token_is_an_error)
{
    struct moe_layout l = layout_of(EPA2A_EXPERT_PACKED);
    uint64_t random = 1;
    struct moe_places p;
    struct view v;

    make_view(&v, false, false, &random);
    v.origin[1].token = TOKENS;
    assert_status(moe_places_init(&p, &l, test_error()), EPA_OK, "");
    assert_status(moe_places_find(&p, &v.m, test_error()), EPA_ERR_SYSTEM, "row 1 .. token 5");
    v.origin[1] = (struct epa_origin){RANKS, 0};
    assert_status(moe_places_find(&p, &v.m, test_error()), EPA_ERR_SYSTEM, "row 1 .. rank 3");
    v.count[0] = MOST + 1;
    assert_status(moe_places_find(&p, &v.m, test_error()), EPA_ERR_SYSTEM, "room for 45");
    moe_places_finish(&p);
}

TEST(counts_of_sources_replace_the_origins_of_rows)
{
    struct moe_layout l = layout_of(EPA2A_EXPERT_PACKED);
    uint64_t random = 1, rows = 0;
    struct moe_places p;
    struct view v;

    make_view(&v, false, false, &random);
    add_sources(&v, false);
    v.m.origin = NULL;
    assert_status(moe_places_init(&p, &l, test_error()), EPA_OK, "");
    assert_status(moe_places_find(&p, &v.m, test_error()), EPA_OK, "");
    assert_true(p.same && !p.listed);
    assert_status(moe_places_list(&p, &v.m, test_error()), EPA_OK, "");
    for (uint32_t e = 0; e < LOCAL; e++)
        rows += v.count[e];
    assert_int_equal(p.rows, rows);
    for (uint64_t i = 0; i < rows; i++)
        assert_true(p.row[i] == i && p.view[i] == i);
    v.source[0]++;
    assert_status(moe_places_find(&p, &v.m, test_error()), EPA_OK, "");
    assert_status(moe_places_list(&p, &v.m, test_error()), EPA_ERR_SYSTEM, "sources of a list");
    v.source[0] = TOKENS + 1;
    assert_status(moe_places_find(&p, &v.m, test_error()), EPA_OK, "");
    assert_status(moe_places_list(&p, &v.m, test_error()), EPA_ERR_SYSTEM, "6 rows of rank 0");
    moe_places_finish(&p);
}

TEST(rows_of_the_rank_layouts_are_listed_only_if_they_are_copied)
{
    struct moe_layout l = layout_of(EPA2A_RANK_PACKED);
    uint64_t random = 1;
    struct moe_places p;
    struct view v;

    make_view(&v, true, false, &random);
    add_sources(&v, true);
    v.m.origin = NULL;
    assert_status(moe_places_init(&p, &l, test_error()), EPA_OK, "");
    assert_status(moe_places_find(&p, &v.m, test_error()), EPA_OK, "");
    assert_true(p.same && !p.listed);
    assert_int_equal(p.rows, v.m.recv_rows);
    assert_status(moe_places_list(&p, &v.m, test_error()), EPA_OK, "");
    assert_true(p.listed);
    assert_int_equal(p.rows, v.m.recv_rows);
    for (uint64_t i = 0; i < p.rows; i++)
        assert_true(p.row[i] == i && p.view[i] == i && p.at[i] == i);
    moe_places_finish(&p);
    l = layout_of(EPA2A_RANK_PADDED);
    assert_status(moe_places_init(&p, &l, test_error()), EPA_OK, "");
    assert_status(moe_places_find(&p, &v.m, test_error()), EPA_OK, "");
    assert_true(!p.same && p.listed);
    moe_places_finish(&p);
}

/* ---- forms ---- */

static enum epa_status select_form(enum epa_dtype sent, int32_t recv, uint32_t flags,
                                   bool fp8_input, struct moe_form *out)
{
    const struct epa_moe m = {
        .hidden = HIDDEN, .topk = TOPK, .fp8_group_size = GROUP, .dtype = EPA_BF16};

    return moe_form_select(&m, sent, recv, flags, fp8_input, "ll_x", out, test_error());
}

TEST(forms_that_are_not_exact_are_refused_with_a_remedy)
{
    const enum epa_dtype fp8 = EPA_FP8_E4M3;
    struct moe_form f;

    assert_status(select_form(fp8, EPA2A_FP8_E4M3, EPA2A_RECV_NATIVE, false, &f),
                  EPA_ERR_UNSUPPORTED, "ll_x .. recv_dtype .. EPA2A_RECV_FP8");
    assert_status(select_form(EPA_BF16, EPA2A_BF16, EPA2A_RECV_FP8, true, &f), EPA_ERR_UNSUPPORTED,
                  "ll_x .. x_scale .. recv_dtype");
    assert_status(select_form(EPA_BF16, EPA2A_BF16, EPA2A_SCALE_POW2, false, &f), EPA_ERR_CONFIG,
                  "EPA2A_RECV_FP8");
    assert_status(select_form(EPA_BF16, EPA2A_BF16, 3, false, &f), EPA_ERR_CONFIG, "exclude");
    assert_status(select_form(EPA_BF16, EPA2A_BF16, 64, false, &f), EPA_ERR_CONFIG, "0x40");
    assert_status(select_form(fp8, EPA2A_FP8_E4M3, EPA2A_SCALE_UE8M0, true, &f), EPA_OK, "");
    assert_true(f.fp8 && f.pow2 && f.ue8m0 && !f.by_group);
}

/* Returns the least power of two that is not below v. */
static float power_above(float v)
{
    int exponent;
    float mantissa = frexpf(v, &exponent);

    return ldexpf(1, mantissa == 0.5f ? exponent - 1 : exponent);
}

TEST(scales_round_up_to_powers_of_two)
{
    const float v[] = {1, 1.5f, 0.75f, 3e-30f, 448, 0x1p-126f, 0x1.8p-126f, 0x1p126f};

    for (size_t i = 0; i < LENGTH(v); i++)
        assert_true(moe_form_pow2(v[i]) == power_above(v[i]));
    assert_true(moe_form_pow2(0x1p-140f) == 0x1p-126f);
}

TEST(delivered_scales_have_the_form_and_order_of_the_flags)
{
    uint64_t random = 9;

    for (int i = 0; i < 64; i++) {
        enum epa2a_layout layout = i % 2 != 0 ? EPA2A_EXPERT_PADDED : EPA2A_EXPERT_PACKED;
        struct moe_layout l = layout_of(layout);
        uint64_t major = layout == EPA2A_EXPERT_PADDED ? RANKS * TOKENS : l.rows;
        uint32_t flags = EPA2A_RECV_FP8 | (uint32_t)(i / 2 % 8) << 2;
        struct moe_places p;
        struct moe_form f;
        struct view v;
        float work[2 * GROUPS];
        static uint32_t scale[MOST * LOCAL * GROUPS];
        static uint8_t x[MOST * LOCAL][HIDDEN];

        assert_status(select_form(EPA_BF16, EPA2A_BF16, flags, false, &f), EPA_OK, "");
        make_view(&v, false, true, &random);
        for (uint64_t r = 0; r < v.m.recv_rows; r++)
            for (uint32_t h = 0; h < HIDDEN; h++)
                v.x[r][h] = (uint16_t)(0x3f80 + (v.x[r][h] * 37u + h * 11u) % 512);
        memset(v.x[0], 0, sizeof(v.x[0]));
        assert_status(moe_places_init(&p, &l, test_error()), EPA_OK, "");
        assert_status(moe_places_find(&p, &v.m, test_error()), EPA_OK, "");
        assert_status(moe_deliver_rows(&p, &f, &v.m, x, scale, work, test_error()), EPA_OK, "");
        for (uint64_t n = 0; n < p.rows; n++) {
            uint32_t row = p.row[n], words = f.ue8m0 ? GROUPS / 4 : GROUPS;

            for (uint32_t g = 0; g < GROUPS; g++) {
                const uint16_t *from = v.x[p.view[n]] + g * GROUP;
                uint8_t q[GROUP];
                float want = e4m3_group_of(false, from, GROUP, q);
                uint32_t w = f.ue8m0 ? g / 4 : g, bits;
                uint64_t at = f.by_group ? (row / major * words + w) * major + row % major
                                         : (uint64_t)row * words + w;

                if (f.pow2) {
                    want = want == 1.0f ? want : power_above(want);
                    for (uint32_t h = 0; h < GROUP; h++)
                        q[h] = e4m3_of_float(float_of_bf16(from[h]) / want);
                }
                memcpy(&bits, &want, sizeof(bits));
                if (f.ue8m0)
                    assert_int_equal(scale[at] >> g % 4 * 8 & 255, bits >> 23);
                else
                    assert_int_equal(scale[at], bits);
                assert_memory_equal(x[row] + g * GROUP, q, GROUP);
            }
        }
        moe_places_finish(&p);
    }
}

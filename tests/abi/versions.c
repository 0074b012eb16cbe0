/* Passes each struct of epa2a.h to the library. The test builds this program with epa2a.h and with a
 * later version of epa2a.h, whose structs have one more field, and runs it with a library that was
 * built with the other header. One rank on hosts. */
#include <epa2a.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { TOKENS = 3, HIDDEN = 128, EXPERTS = 2, TOPK = 2, FFN = 128, ROWS = 4, COLUMNS = 16 };

static uint16_t x[TOKENS][HIDDEN], out[TOKENS][HIDDEN], c[ROWS][COLUMNS];
static uint16_t weights[EXPERTS][2 * FFN][HIDDEN];
static const int32_t choice[TOKENS][TOPK] = {{0, 1}, {1, 0}, {0, -1}};
static const float factor[TOKENS][TOPK] = {{0.5f, 0.5f}, {1, 2}, {1, 0}};
static int failures;

/* A struct of this header, and bytes that the library must not write. */
enum { MARKS = 64, MARK = 0xA5 };
#define MARKED(type, name) \
    struct { \
        struct type s; \
        unsigned char mark[MARKS]; \
    } name = {.s.size = sizeof(struct type)}; \
    memset(name.mark, MARK, MARKS)

static void check(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "%s: %s\n", what, epa2a_last_error());
    failures++;
}

static void check_marks(const unsigned char *mark, const char *what)
{
    bool same = true;

    for (int i = 0; i < MARKS; i++)
        same = same && mark[i] == MARK;
    check(same, what);
}

/* A library that does not know the field must refuse a value other than 0, and name the struct. */
#ifdef EPA2A_HAS_NEXT_FIELD
#define REFUSES_NEXT_FIELD(name, call) \
    do { \
        (name).s.next_field = 1; \
        check((call) == EPA2A_ERR_CONFIG && strstr(epa2a_last_error(), "behind") != NULL, \
              "a value in next_field: " #call); \
        (name).s.next_field = 0; \
    } while (0)
#else
#define REFUSES_NEXT_FIELD(name, call) (void)0
#endif

static struct epa2a_comm *make_comm(void)
{
    struct epa2a_comm *comm = NULL;
    MARKED(epa2a_comm_params, p);

    p.s.version = EPA2A_VERSION;
    p.s.ranks = 1;
    p.s.device = EPA2A_HOST;
    REFUSES_NEXT_FIELD(p, epa2a_comm_create(&p.s, &comm));
    check(epa2a_comm_create(&p.s, &comm) == EPA2A_OK, "comm");
    check_marks(p.mark, "epa2a_comm_params");
    return comm;
}

static void use_moe(struct epa2a_comm *comm)
{
    struct epa2a_moe *moe = NULL;
    MARKED(epa2a_moe_shape, shape);
    MARKED(epa2a_need, need);
    MARKED(epa2a_tokens, in);
    MARKED(epa2a_received, got);
    MARKED(epa2a_outputs, back);

    shape.s.max_tokens = TOKENS;
    shape.s.hidden = HIDDEN;
    shape.s.experts = EXPERTS;
    shape.s.topk = TOPK;
    in.s.tokens = TOKENS;
    in.s.x = x;
    in.s.topk_idx = choice;
    in.s.topk_idx_bytes = sizeof(choice[0][0]);
    in.s.topk_weight = factor[0];
    back.s.out = out;
    REFUSES_NEXT_FIELD(shape, epa2a_moe_create(comm, &shape.s, &moe));
    REFUSES_NEXT_FIELD(need, epa2a_moe_need(comm, 0, 0, &shape.s, &need.s));
    check(epa2a_moe_need(comm, 0, 0, &shape.s, &need.s) == EPA2A_OK && need.s.rows >= TOKENS &&
              need.s.algorithm != NULL,
          "need");
    check(epa2a_moe_create(comm, &shape.s, &moe) == EPA2A_OK, "moe");
    if (moe == NULL)
        return;
    REFUSES_NEXT_FIELD(in, epa2a_dispatch(moe, &in.s, &got.s, NULL));
    REFUSES_NEXT_FIELD(got, epa2a_dispatch(moe, &in.s, &got.s, NULL));
    check(epa2a_dispatch(moe, &in.s, &got.s, NULL) == EPA2A_OK && got.s.id == 1 &&
              got.s.count[0] == 3 && got.s.count[1] == 2 && got.s.y != NULL &&
              got.s.host_count == NULL && got.s.routing == NULL,
          "dispatch");
    for (uint64_t e = 0; e < EXPERTS; e++) /* experts that copy their rows */
        for (uint64_t row = got.s.start[e]; row < got.s.start[e] + got.s.count[e]; row++)
            memcpy((char *)got.s.y + row * sizeof(x[0]), (char *)got.s.x + row * got.s.x_stride,
                   sizeof(x[0]));
    REFUSES_NEXT_FIELD(back, epa2a_combine(moe, &got.s, &back.s, NULL));
    check(epa2a_combine(moe, &got.s, &back.s, NULL) == EPA2A_OK, "combine");
    check(out[0][0] == x[0][0] && out[2][HIDDEN - 1] == x[2][HIDDEN - 1], "sums");
    epa2a_moe_destroy(moe);
    check_marks(shape.mark, "epa2a_moe_shape");
    check_marks(need.mark, "epa2a_need");
    check_marks(in.mark, "epa2a_tokens");
    check_marks(got.mark, "epa2a_received");
    check_marks(back.mark, "epa2a_outputs");
}

static void use_layer(struct epa2a_comm *comm)
{
    struct epa2a_layer *layer = NULL;
    MARKED(epa2a_moe_shape, shape);
    MARKED(epa2a_experts, e);
    MARKED(epa2a_tokens, in);

    shape.s.max_tokens = TOKENS;
    shape.s.hidden = HIDDEN;
    shape.s.experts = EXPERTS;
    shape.s.topk = TOPK;
    e.s.ffn = FFN;
    e.s.activation = 1;
    e.s.up = e.s.down = weights;
    in.s.tokens = TOKENS;
    in.s.x = x;
    in.s.topk_idx = choice;
    in.s.topk_idx_bytes = sizeof(choice[0][0]);
    in.s.topk_weight = factor[0];
    REFUSES_NEXT_FIELD(e, epa2a_layer_create(comm, &shape.s, &e.s, &layer));
    check(epa2a_layer_create(comm, &shape.s, &e.s, &layer) == EPA2A_OK, "layer");
    if (layer == NULL)
        return;
    memset(out, 1, sizeof(out));
    REFUSES_NEXT_FIELD(in, epa2a_layer_run(layer, &in.s, out, NULL));
    check(epa2a_layer_run(layer, &in.s, out, NULL) == EPA2A_OK && out[0][0] == 0, "layer");
    epa2a_layer_destroy(layer);
    check_marks(e.mark, "epa2a_experts");
}

static void use_ag_gemm(struct epa2a_comm *comm)
{
    static const uint32_t rows[1] = {ROWS - 1};
    struct epa2a_ag_gemm *gemm = NULL;
    MARKED(epa2a_ag_gemm_params, p);

    p.s.max_rows = ROWS;
    p.s.n = COLUMNS;
    p.s.k = HIDDEN;
    p.s.b = weights;
    REFUSES_NEXT_FIELD(p, epa2a_ag_gemm_create(comm, &p.s, &gemm));
    check(epa2a_ag_gemm_create(comm, &p.s, &gemm) == EPA2A_OK, "ag_gemm");
    if (gemm == NULL)
        return;
    memset(c, 1, sizeof(c));
    check(epa2a_ag_gemm_run(gemm, rows, x, NULL, c, NULL) == EPA2A_OK && c[0][0] == 0 &&
              c[ROWS - 1][0] != 0,
          "product");
    epa2a_ag_gemm_destroy(gemm);
    check_marks(p.mark, "epa2a_ag_gemm_params");
}

int main(void)
{
    struct epa2a_comm *comm = make_comm();

    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HIDDEN; h++)
            x[t][h] = (uint16_t)(0x3F80 + t); /* BF16: 1 and above */
    if (comm != NULL) {
        use_moe(comm);
        use_layer(comm);
        use_ag_gemm(comm);
        epa2a_comm_destroy(comm);
    }
    printf("epa2a_version() %x, EPA2A_VERSION %x, %d failures\n", (unsigned)epa2a_version(),
           (unsigned)EPA2A_VERSION, failures);
    return failures != 0 || comm == NULL || epa2a_version() == EPA2A_VERSION;
}

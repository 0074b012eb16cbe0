/* Tensors at addresses that kernels cannot read are refused by name, before any data are sent. Tensors
 * at the smallest multiple of the documented alignment are accepted by all algorithms.
 *
 * lib-alignment: memory of the host. gpu-lib-alignment, simt-lib-alignment: memory of a CUDA device */
#include <epa2a.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "room.h"

enum {
    TOKENS = 5,
    HIDDEN = 128,
    EXPERTS = 4,
    TOPK = 3,
    FFN = 128,
    GROUP = 16,
    N = 40,
    K = 64,
    GAP = 64,
    TENSORS = 32
};

static struct epa2a_comm *comm;
static void *stream;
static const char *what;
static unsigned failures;

static bool claim(bool good, const char *name, const char *problem)
{
    if (!good) {
        fprintf(stderr, "failed: %s, %s: %s\n", what, name, problem);
        failures++;
    }
    return good;
}

static bool works(const char *name, int status)
{
    return claim(status == EPA2A_OK, name, epa2a_last_error());
}

/* ---- tensors ---- */

/* Tensors of a call. `field` holds the address that the call reads. */
static struct tensor {
    const char *name;
    const void **field;
    char *memory;
    size_t alignment;
} tensor[TENSORS];
static unsigned tensors;

static size_t rows_of(size_t element)
{
    return room_is_device() ? 16 : element;
}

/* Gives a field memory at the smallest multiple of the alignment, with the data, or with 0. */
static void place(const char *name, const void *field, const void *data, size_t bytes,
                  size_t alignment)
{
    struct tensor *t = &tensor[tensors++];
    void *zeros = calloc(1, bytes);

    *t = (struct tensor){.name = name,
                         .field = (const void **)(uintptr_t)field,
                         .memory = room_alloc(bytes + GAP),
                         .alignment = alignment};
    room_copy(t->memory + alignment, data != NULL ? data : zeros, bytes, stream);
    *t->field = t->memory + alignment;
    free(zeros);
}

static void free_tensors(void)
{
    while (tensors > 0)
        room_free(tensor[--tensors].memory);
}

/* Repeats a call with each of the tensors from `first` on at a wrong address. */
static void refuse(unsigned first, int (*call)(void))
{
    for (unsigned i = first; i < tensors; i++) {
        struct tensor *t = &tensor[i];
        const void *right = *t->field;
        char want[128];
        int status;

        if (t->alignment == 1)
            continue;
        *t->field = t->memory + t->alignment / 2;
        snprintf(want, sizeof(want), "%s is at %p; the address must be a multiple of %zu bytes",
                 t->name, *t->field, t->alignment);
        status = call();
        (void)claim(status == EPA2A_ERR_CONFIG && strstr(epa2a_last_error(), want) != NULL, want,
                    status == EPA2A_OK ? "accepted" : epa2a_last_error());
        *t->field = right;
    }
}

/* ---- dispatch and combine ---- */

static struct epa2a_moe *moe;
static struct epa2a_tokens in;
static struct epa2a_received got;
static struct epa2a_outputs back;

static int call_dispatch(void)
{
    return epa2a_dispatch(moe, &in, &got, stream);
}

static int call_combine(void)
{
    return epa2a_combine(moe, &got, &back, stream);
}

static void place_tokens(bool fp8, int32_t index_bytes)
{
    static const int32_t expert[TOKENS][TOPK] = {
        {0, 1, 2}, {3, 2, 1}, {1, 0, 3}, {2, 3, 0}, {0, 2, 3}};
    int64_t wide[TOKENS][TOPK];
    float one[TOKENS * HIDDEN];

    for (unsigned i = 0; i < TOKENS * HIDDEN; i++)
        one[i] = 1;
    for (unsigned i = 0; i < TOKENS * TOPK; i++)
        wide[i / TOPK][i % TOPK] = expert[i / TOPK][i % TOPK];
    in = (struct epa2a_tokens){.size = sizeof(in), .tokens = TOKENS, .topk_idx_bytes = index_bytes};
    place("x", &in.x, NULL, (size_t)TOKENS * HIDDEN * 2, rows_of(fp8 ? 1 : 2));
    if (fp8)
        place("x_scale", &in.x_scale, one, TOKENS * HIDDEN / GROUP * sizeof(float), 4);
    place("topk_idx", &in.topk_idx, index_bytes == 8 ? (const void *)wide : expert,
          (size_t)TOKENS * TOPK * (size_t)index_bytes, (size_t)index_bytes);
    place("topk_weight", &in.topk_weight, one, TOKENS * TOPK * sizeof(float), 4);
}

static void place_received(const struct epa2a_need *need, bool by_rank)
{
    size_t rows = need->rows;

    got = (struct epa2a_received){.size = sizeof(got)};
    place("x", &got.x, NULL, rows * HIDDEN * 2, rows_of(1));
    place("x_scale", &got.x_scale, NULL, rows * HIDDEN / GROUP * sizeof(float), 4);
    place("count", &got.count, NULL, EXPERTS * sizeof(*got.count), 4);
    place("start", &got.start, NULL, EXPERTS * sizeof(*got.start), 8);
    if (by_rank) {
        place("row", &got.row, NULL, need->entries * sizeof(*got.row), 4);
        place("topk_idx", &got.topk_idx, NULL, rows * TOPK * sizeof(*got.topk_idx), 4);
        place("topk_weight", &got.topk_weight, NULL, rows * TOPK * sizeof(*got.topk_weight), 4);
    }
    place("source_token", &got.source_token, NULL, rows * sizeof(*got.source_token), 4);
    place("source_range", &got.source_range, NULL, EXPERTS * sizeof(*got.source_range), 8);
    place("y", &got.y, NULL, rows * HIDDEN * 2, rows_of(2));
    place("routing", &got.routing, NULL, need->routing_bytes, 8);
}

/* `late`: combine may have weights of its own. */
static void place_outputs(const struct epa2a_need *need, bool by_rank, bool late)
{
    size_t bias = room_is_device() ? 4 : 2;

    back = (struct epa2a_outputs){.size = sizeof(back)};
    place("y", &back.y, NULL, need->rows * HIDDEN * 2, rows_of(2));
    place("bias[0]", &back.bias[0], NULL, (size_t)TOKENS * HIDDEN * 2, bias);
    place("bias[1]", &back.bias[1], NULL, (size_t)TOKENS * HIDDEN * 2, bias);
    place("out", &back.out, NULL, (size_t)TOKENS * HIDDEN * 2, rows_of(2));
    if (late)
        place("topk_weight", &back.topk_weight, NULL, need->rows * TOPK * sizeof(float), 4);
    if (by_rank)
        place("out_weight", &back.out_weight, NULL, TOKENS * TOPK * sizeof(float), 4);
}

static void check_moe(const char *options, int32_t layout, bool fp8, int32_t index_bytes)
{
    bool by_rank = layout >= EPA2A_RANK_PACKED;
    EPA2A_STRUCT(epa2a_moe_shape, shape);
    EPA2A_STRUCT(epa2a_need, need);
    unsigned first;

    what = options;
    shape.max_tokens = TOKENS;
    shape.hidden = HIDDEN;
    shape.experts = EXPERTS;
    shape.topk = TOPK;
    shape.dtype = EPA2A_BF16;
    shape.recv_dtype = fp8 ? EPA2A_FP8_E4M3 : EPA2A_BF16;
    shape.layout = layout;
    shape.fp8_group = GROUP;
    shape.options = options;
    if (!works("need", epa2a_moe_need(comm, 0, 0, &shape, &need)) ||
        !works("create", epa2a_moe_create(comm, &shape, &moe)))
        return;
    place_tokens(fp8, index_bytes);
    place("seen", &in.seen, NULL, EXPERTS * sizeof(*in.seen), 4);
    place_received(&need, by_rank);
    refuse(0, call_dispatch);
    (void)works("dispatch", call_dispatch());
    first = tensors;
    place_outputs(&need, by_rank, strstr(options, "dedup") == NULL);
    refuse(first, call_combine);
    (void)works("combine", call_combine());
    (void)works("kernels", epa2a_comm_sync(comm, stream));
    epa2a_moe_destroy(moe);
    free_tensors();
}

/* ---- a layer ---- */

static struct epa2a_experts experts;
static struct epa2a_moe_shape layer_shape;
static struct epa2a_layer *layer;
static void *layer_out;

static int call_create_layer(void)
{
    return epa2a_layer_create(comm, &layer_shape, &experts, &layer);
}

static int call_layer(void)
{
    return epa2a_layer_run(layer, &in, layer_out, stream);
}

static void check_layer(const char *options, bool fp8)
{
    const size_t weight = fp8 ? 1 : 2, matrix = (size_t)EXPERTS * HIDDEN * FFN * weight;

    what = options;
    experts = (struct epa2a_experts){.size = sizeof(experts),
                                     .ffn = FFN,
                                     .activation = 1,
                                     .dtype = fp8 ? EPA2A_FP8_E4M3 : EPA2A_BF16};
    layer_shape = (struct epa2a_moe_shape){.size = sizeof(layer_shape),
                                           .max_tokens = TOKENS,
                                           .hidden = HIDDEN,
                                           .experts = EXPERTS,
                                           .topk = TOPK,
                                           .dtype = EPA2A_BF16,
                                           .recv_dtype = fp8 ? EPA2A_FP8_E4M3 : EPA2A_BF16,
                                           .options = options};
    place("up", &experts.up, NULL, 2 * matrix, rows_of(weight));
    place("down", &experts.down, NULL, matrix, rows_of(weight));
    if (fp8) {
        place("up_scale", &experts.up_scale, NULL, 2 * EXPERTS * sizeof(float), 4);
        place("down_scale", &experts.down_scale, NULL, EXPERTS * sizeof(float), 4);
    }
    refuse(0, call_create_layer);
    if (works("create", call_create_layer())) {
        unsigned first = tensors;

        place_tokens(false, 4);
        place("out", &layer_out, NULL, (size_t)TOKENS * HIDDEN * 2, rows_of(2));
        refuse(first, call_layer);
        (void)works("run", call_layer());
        (void)works("kernels", epa2a_comm_sync(comm, stream));
        epa2a_layer_destroy(layer);
    }
    free_tensors();
}

/* ---- AllGather and matrix product ---- */

static struct epa2a_ag_gemm_params params;
static struct epa2a_ag_gemm *gemm;
static struct {
    const uint32_t *rows;
    const void *a;
    const float *a_scale;
    void *c;
    float *c_scale;
} product;

static int call_create_gemm(void)
{
    return epa2a_ag_gemm_create(comm, &params, &gemm);
}

static int call_gemm(void)
{
    return product.c_scale != NULL
               ? epa2a_ag_gemm_run_fp8(gemm, product.rows, product.a, product.a_scale, product.c,
                                       product.c_scale, stream)
               : epa2a_ag_gemm_run(gemm, product.rows, product.a, product.a_scale, product.c,
                                   stream);
}

static void check_gemm(const char *options, bool fp8)
{
    static const uint32_t rows = TOKENS;
    const size_t element = fp8 ? 1 : 2;

    what = options;
    params = (struct epa2a_ag_gemm_params){.size = sizeof(params),
                                           .max_rows = TOKENS,
                                           .n = N,
                                           .k = K,
                                           .dtype = fp8 ? EPA2A_FP8_E4M3 : EPA2A_BF16,
                                           .out_dtype = fp8 ? EPA2A_FP8_E4M3 : 0,
                                           .options = options};
    memset(&product, 0, sizeof(product));
    place("b", &params.b, NULL, (size_t)N * K * element, rows_of(element));
    place("bias", &params.bias, NULL, N * sizeof(float), 4);
    if (fp8)
        place("b_scale", &params.b_scale, NULL, sizeof(float), 4);
    refuse(0, call_create_gemm);
    if (works("create", call_create_gemm())) {
        unsigned first = tensors;

        place("rows", &product.rows, &rows, sizeof(rows), 4);
        place("a", &product.a, NULL, (size_t)TOKENS * K * element, rows_of(element));
        place("c", &product.c, NULL, (size_t)TOKENS * N * element, rows_of(element));
        if (fp8) {
            place("a_scale", &product.a_scale, NULL, TOKENS * sizeof(float), 4);
            place("c_scale", &product.c_scale, NULL, TOKENS * sizeof(float), 4);
        }
        refuse(first, call_gemm);
        (void)works("run", call_gemm());
        (void)works("kernels", epa2a_comm_sync(comm, stream));
        epa2a_ag_gemm_destroy(gemm);
    }
    free_tensors();
}

int main(void)
{
    EPA2A_STRUCT(epa2a_comm_params, p);

    if (room_missing())
        return 77;
    stream = room_stream(0);
    p.version = EPA2A_VERSION;
    p.ranks = 1;
    p.device = room_device(0);
    if (!works("comm", epa2a_comm_create(&p, &comm)))
        return 1;
    for (int fp8 = 0; fp8 < 2; fp8++) {
        check_moe("algorithm=ll_v2", EPA2A_EXPERT_PADDED, fp8, 4);
        check_moe("algorithm=ll_v2", EPA2A_RANK_PACKED, fp8, 8);
        check_moe("algorithm=ll_v2, dedup=true", EPA2A_EXPERT_PACKED, fp8, 8);
        check_moe("algorithm=ll_v1", EPA2A_EXPERT_PACKED, fp8, 4);
        check_moe("algorithm=token_flag", EPA2A_EXPERT_PACKED, fp8, 4);
        check_layer("algorithm=ll_v2", fp8);
        check_layer("algorithm=fused", fp8);
        check_gemm("algorithm=ag_gemm_2d", fp8);
        check_gemm("algorithm=ag_then_gemm, library=kernels", fp8);
    }
    epa2a_comm_destroy(comm);
    if (room_is_device())
        room_stream_end(stream);
    return failures != 0;
}

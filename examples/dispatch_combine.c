/* Dispatch and combine of a mixture-of-experts layer: each token goes to 2 of 8 experts, and the
 * outputs return with weights. The ranks connect by the variables of torchrun.
 *
 *     cc dispatch_combine.c -o dispatch_combine $(pkg-config --cflags --libs epa2a)
 *     export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
 *     RANK=1 ./dispatch_combine & RANK=0 ./dispatch_combine; wait */
#include <epa2a.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 4, HIDDEN = 64, EXPERTS = 8, TOPK = 2 };

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, epa2a_last_error());
    return 1;
}

static int number(const char *variable)
{
    const char *value = getenv(variable);

    return value != NULL ? atoi(value) : 0;
}

/* bfloat16 is the upper half of a float. */
static uint16_t bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

static float float_of(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Expert e multiplies by e + 1. */
static void run_expert(uint32_t e, const uint16_t *x, uint16_t *y)
{
    for (uint32_t h = 0; h < HIDDEN; h++)
        y[h] = bf16(float_of(x[h]) * (float)(e + 1));
}

int main(void)
{
    static uint16_t x[TOKENS][HIDDEN], out[TOKENS][HIDDEN];
    int32_t experts[TOKENS][TOPK];
    float weights[TOKENS][TOPK];
    struct epa2a_comm *comm;
    struct epa2a_moe *moe;
    int rank = number("RANK"), ranks = number("WORLD_SIZE"), wrong = 0;
    uint32_t local = ranks > 0 ? EXPERTS / (uint32_t)ranks : 0;
    EPA2A_STRUCT(epa2a_comm_params, params);
    EPA2A_STRUCT(epa2a_moe_shape, shape);
    EPA2A_STRUCT(epa2a_tokens, in);
    EPA2A_STRUCT(epa2a_received, got);
    EPA2A_STRUCT(epa2a_outputs, back);

    for (int t = 0; t < TOKENS; t++) {
        for (int h = 0; h < HIDDEN; h++)
            x[t][h] = bf16((float)(t + 1));
        for (int k = 0; k < TOPK; k++) {
            experts[t][k] = (rank + t + 3 * k) % EXPERTS;
            weights[t][k] = 0.5f;
        }
    }
    params.version = EPA2A_VERSION;
    params.device = EPA2A_HOST;
    shape.max_tokens = TOKENS;
    shape.hidden = HIDDEN;
    shape.experts = EXPERTS;
    shape.topk = TOPK;
    shape.dtype = EPA2A_BF16;
    shape.layout = EPA2A_EXPERT_PACKED;
    if (epa2a_comm_create(&params, &comm) != EPA2A_OK)
        return fail("epa2a_comm_create");
    if (epa2a_moe_create(comm, &shape, &moe) != EPA2A_OK)
        return fail("epa2a_moe_create");
    in.tokens = TOKENS;
    in.x = x;
    in.topk_idx = experts;
    in.topk_idx_bytes = sizeof(experts[0][0]);
    in.topk_weight = weights[0];
    if (epa2a_dispatch(moe, &in, &got, NULL) != EPA2A_OK)
        return fail("epa2a_dispatch");
    for (uint32_t e = 0; e < local; e++)
        for (uint64_t row = got.start[e]; row < got.start[e] + got.count[e]; row++)
            run_expert((uint32_t)rank * local + e,
                       (const uint16_t *)(const void *)((const char *)got.x + row * got.x_stride),
                       (uint16_t *)got.y + row * HIDDEN);
    back.out = out;
    if (epa2a_combine(moe, &got, &back, NULL) != EPA2A_OK)
        return fail("epa2a_combine");
    for (int t = 0; t < TOKENS; t++) {
        float want = 0.5f * (float)(t + 1) * (float)(experts[t][0] + experts[t][1] + 2);

        wrong += float_of(out[t][0]) != want;
    }
    printf("rank %d: %d tokens, %d wrong\n", rank, TOKENS, wrong);
    epa2a_moe_destroy(moe);
    epa2a_comm_destroy(comm);
    return wrong != 0;
}

/* The layer of moe_layer.c with the ranks of mpirun: MPI_Allgather connects the ranks, on one host or
 * on several. The number of ranks is 1, 2, 4 or 8.
 *
 *     mpicc moe_layer_mpi.c -o moe_layer_mpi $(pkg-config --cflags --libs epa2a)
 *     mpirun -np 2 ./moe_layer_mpi */
#include <epa2a.h>
#include <mpi.h>
#include <stdio.h>

enum { TOKENS = 4, HIDDEN = 256, EXPERTS = 8, TOPK = 2 };

static int allgather(void *arg, const void *mine, size_t bytes, void *all)
{
    return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm *)arg);
}

/* Returns the number of wrong outputs, or the negative status of a failed call. */
static int run_layer(struct epa2a_moe *moe, int ranks)
{
    static uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN];
    int32_t expert[TOKENS][TOPK] = {{0, 7}, {1, 6}, {2, 5}, {3, 4}};
    float weight[TOKENS][TOPK] = {{.25f, .75f}, {.25f, .75f}, {.25f, .75f}, {.25f, .75f}};
    EPA2A_STRUCT(epa2a_received, got);
    struct epa2a_outputs back = {.size = sizeof(back), .out = out};
    struct epa2a_tokens in = {.size = sizeof(in),
                              .tokens = TOKENS,
                              .x = x,
                              .topk_idx = expert,
                              .topk_idx_bytes = 4,
                              .topk_weight = weight[0]};
    int status, wrong = 0;

    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = 0x3f80; /* 1 in bfloat16 */
    status = epa2a_dispatch(moe, &in, &got, NULL);
    if (status != EPA2A_OK)
        return status;
    for (uint32_t e = 0; e < (uint32_t)(EXPERTS / ranks); e++)
        for (uint64_t row = got.start[e]; row < got.start[e] + got.count[e]; row++)
            for (int i = 0; i < HIDDEN; i++) { /* the exponent of bfloat16 begins at bit 7 */
                const uint16_t *token = (const void *)((char *)got.x + row * got.x_stride);

                ((uint16_t *)got.y)[row * HIDDEN + i] = token[i] + (1 << 7);
            }
    status = epa2a_combine(moe, &got, &back, NULL);
    for (int i = 0; status == EPA2A_OK && i < TOKENS * HIDDEN; i++)
        wrong += out[i] != 0x4000; /* 2 */
    return status != EPA2A_OK ? status : wrong;
}

int main(int argc, char **argv)
{
    MPI_Comm world = MPI_COMM_WORLD;
    struct epa2a_comm_params params = {.size = sizeof(params),
                                       .version = EPA2A_VERSION,
                                       .allgather = allgather,
                                       .arg = &world,
                                       .device = EPA2A_HOST};
    struct epa2a_moe_shape shape = {.size = sizeof(shape),
                                    .max_tokens = TOKENS,
                                    .hidden = HIDDEN,
                                    .experts = EXPERTS,
                                    .topk = TOPK,
                                    .dtype = EPA2A_BF16,
                                    .recv_dtype = EPA2A_BF16,
                                    .layout = EPA2A_EXPERT_PACKED};
    struct epa2a_comm *comm;
    struct epa2a_moe *moe;
    int rank, ranks, wrong = -1;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    params.rank = (uint32_t)rank;
    params.ranks = (uint32_t)ranks;
    if (epa2a_comm_create(&params, &comm) != EPA2A_OK ||
        epa2a_moe_create(comm, &shape, &moe) != EPA2A_OK || (wrong = run_layer(moe, ranks)) < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, epa2a_last_error());
        MPI_Abort(world, 1);
        return 1;
    }
    epa2a_moe_destroy(moe);
    epa2a_comm_destroy(comm);
    printf("rank %d: %d tokens, %d wrong outputs\n", rank, TOKENS, wrong);
    MPI_Finalize();
    return wrong != 0;
}

/* A mixture-of-experts layer of two ranks on this host: each rank dispatches its tokens to the
 * experts of both ranks, the experts double their rows, and combine returns the weighted sums. The
 * weights of a token add up to 1, so each output is twice its token.
 *
 *     cc moe_layer.c -o moe_layer $(pkg-config --cflags --libs epa2a) && ./moe_layer */
#include <epa2a.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, TOKENS = 4, HIDDEN = 256, EXPERTS = 8, TOPK = 2 };

/* Exchanges the contributions of the two ranks over the socket at `arg`. */
static int allgather(void *arg, const void *mine, size_t bytes, void *all)
{
    const int *socket = arg, rank = socket[1];

    memcpy((char *)all + rank * bytes, mine, bytes);
    return send(*socket, mine, bytes, MSG_NOSIGNAL) != (ssize_t)bytes ||
           recv(*socket, (char *)all + !rank * bytes, bytes, MSG_WAITALL) != (ssize_t)bytes;
}

/* Returns the number of wrong outputs, or the negative status of a failed call. */
static int run_layer(struct epa2a_moe *moe)
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
    for (uint32_t e = 0; e < EXPERTS / RANKS; e++)
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

int main(void)
{
    struct epa2a_comm_params params = {.size = sizeof(params),
                                       .version = EPA2A_VERSION,
                                       .ranks = RANKS,
                                       .allgather = allgather,
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
    int pair[2], child, wrong = -1;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || (child = fork()) < 0)
        return 1;
    params.rank = child == 0;
    params.arg = (int[]){pair[params.rank], (int)params.rank};
    if (epa2a_comm_create(&params, &comm) != EPA2A_OK ||
        epa2a_moe_create(comm, &shape, &moe) != EPA2A_OK || (wrong = run_layer(moe)) < 0)
        return fprintf(stderr, "rank %u: %s\n", params.rank, epa2a_last_error()), 1;
    epa2a_moe_destroy(moe);
    epa2a_comm_destroy(comm);
    printf("rank %u: %d tokens, %d wrong outputs\n", params.rank, TOKENS, wrong);
    return (child != 0 && (wait(&child) < 0 || child != 0)) || wrong != 0;
}

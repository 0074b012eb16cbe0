/* A mixture-of-experts layer of two ranks on this host. The experts double their rows, and the weights
 * of a token add up to 1, so each output is twice its token. Build and run:
 *     cc moe_layer.c -o moe_layer $(pkg-config --cflags --libs epa2a) && ./moe_layer */
#include <epa2a.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS = 4, HIDDEN = 256, EXPERTS = 8, ONE = 0x3f80 };

/* Exchanges the contributions of the two ranks over the socket at `arg`. */
static int allgather(void *arg, const void *mine, size_t bytes, void *all)
{
    const int *socket = arg, rank = socket[1];

    memcpy((char *)all + rank * bytes, mine, bytes);
    return send(*socket, mine, bytes, MSG_NOSIGNAL) != (ssize_t)bytes ||
           recv(*socket, (char *)all + !rank * bytes, bytes, MSG_WAITALL) != (ssize_t)bytes;
}

int main(void)
{
    /* All in bfloat16. Each of the 4 experts of a rank has room for the tokens of both ranks. */
    uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN], rows[EXPERTS * TOKENS][HIDDEN];
    int32_t expert[TOKENS][2] = {{0, 7}, {1, 6}, {2, 5}, {3, 4}};
    float weight[TOKENS][2] = {{.25f, .75f}, {.25f, .75f}, {.25f, .75f}, {.25f, .75f}};
    struct epa2a_comm_params p = {
        .size = sizeof(p), .version = EPA2A_VERSION, .ranks = 2, .allgather = allgather};
    struct epa2a_moe_shape s = {
        .size = sizeof(s), .max_tokens = TOKENS, .hidden = HIDDEN, .experts = EXPERTS, .topk = 2};
    struct epa2a_tokens in = {
        .size = sizeof(in), .tokens = TOKENS, .x = x, .topk_idx = expert, .topk_idx_bytes = 4};
    struct epa2a_received got = {.size = sizeof(got), .x = rows};
    struct epa2a_outputs to = {.size = sizeof(to), .y = rows, .topk_weight = *weight, .out = out};
    struct epa2a_comm *comm;
    struct epa2a_moe *moe;
    int pair[2], errors, child = socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 ? fork() : -1;

    p.rank = child == 0;
    p.arg = (int[]){pair[p.rank], (int)p.rank};
    p.device = EPA2A_HOST;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = ONE;
    errors = child < 0 || epa2a_comm_create(&p, &comm) || epa2a_moe_create(comm, &s, &moe) ||
             epa2a_dispatch(moe, &in, &got, NULL);
    for (int e = 0; !errors && e < EXPERTS / 2; e++)
        for (uint64_t row = got.start[e]; row < got.start[e] + got.count[e]; row++)
            for (int i = 0; i < HIDDEN; i++)
                rows[row][i] += 0x80; /* doubles: the exponent of bfloat16 begins at bit 7 */
    if (errors || epa2a_combine(moe, &got, &to, NULL))
        return fprintf(stderr, "rank %u: %s\n", p.rank, epa2a_last_error()), 1;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        errors += out[i] != ONE + 0x80;
    epa2a_moe_destroy(moe);
    epa2a_comm_destroy(comm);
    printf("rank %u: %d tokens, %d wrong outputs\n", p.rank, TOKENS, errors);
    return (child != 0 && (wait(&child) < 0 || child != 0)) || errors != 0;
}

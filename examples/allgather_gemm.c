/* AllGather and matrix product of 2 ranks on one host: each rank has rows of A and some columns of the
 * result. The program starts the ranks with fork().
 *
 *     cc allgather_gemm.c -o allgather_gemm $(pkg-config --cflags --libs epa2a) -lpthread
 *     ./allgather_gemm */
#include <epa2a.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, MAX_ROWS = 96, N = 64, K = 128, SLOT = 65536 };

/* Memory that the ranks share. A program with MPI uses its allgather instead. */
struct shared {
    pthread_barrier_t barrier;
    char slot[RANKS][SLOT];
};

struct rank {
    struct shared *shared;
    uint32_t number;
};

static int allgather(void *arg, const void *mine, size_t bytes, void *all)
{
    struct rank *r = arg;

    memcpy(r->shared->slot[r->number], mine, bytes);
    pthread_barrier_wait(&r->shared->barrier);
    for (uint32_t i = 0; i < RANKS; i++)
        memcpy((char *)all + i * bytes, r->shared->slot[i], bytes);
    pthread_barrier_wait(&r->shared->barrier);
    return 0;
}

/* bfloat16 is the upper half of a float. */
static uint16_t bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

static float a_value(uint32_t rank, uint32_t row, uint32_t k)
{
    return (float)((rank + row + k) % 3) - 1;
}

static float b_value(uint32_t rank, uint32_t column, uint32_t k)
{
    return (float)((rank + 2 * column + k) % 5 == 0);
}

static int run(struct rank *r)
{
    static uint16_t a[MAX_ROWS][K], b[N][K], c[RANKS * MAX_ROWS][N];
    const uint32_t rows[RANKS] = {96, 40};
    struct epa2a_comm *comm = NULL;
    struct epa2a_ag_gemm *gemm = NULL;
    uint32_t wrong = 0, at = 0;
    EPA2A_STRUCT(epa2a_comm_params, p);
    EPA2A_STRUCT(epa2a_ag_gemm_params, g);

    for (uint32_t k = 0; k < K; k++) {
        for (uint32_t i = 0; i < rows[r->number]; i++)
            a[i][k] = bf16(a_value(r->number, i, k));
        for (uint32_t j = 0; j < N; j++)
            b[j][k] = bf16(b_value(r->number, j, k));
    }
    p.version = EPA2A_VERSION;
    p.rank = r->number;
    p.ranks = RANKS;
    p.allgather = allgather;
    p.arg = r;
    p.device = EPA2A_HOST;
    g.max_rows = MAX_ROWS;
    g.n = N;
    g.k = K;
    g.b = b;
    if (epa2a_comm_create(&p, &comm) != EPA2A_OK ||
        epa2a_ag_gemm_create(comm, &g, &gemm) != EPA2A_OK ||
        epa2a_ag_gemm_run(gemm, rows, a, NULL, c, NULL) != EPA2A_OK) {
        fprintf(stderr, "rank %u: %s\n", r->number, epa2a_last_error());
        return 1;
    }
    for (uint32_t source = 0; source < RANKS; source++)
        for (uint32_t i = 0; i < rows[source]; i++, at++)
            for (uint32_t j = 0; j < N; j++) {
                float sum = 0;

                for (uint32_t k = 0; k < K; k++)
                    sum += a_value(source, i, k) * b_value(r->number, j, k);
                wrong += c[at][j] != bf16(sum);
            }
    printf("rank %u: %u rows of %u columns, %u wrong\n", r->number, at, N, wrong);
    epa2a_ag_gemm_destroy(gemm);
    epa2a_comm_destroy(comm);
    return wrong != 0;
}

int main(void)
{
    struct shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attr;
    int failed = 0, status;

    if (shared == MAP_FAILED)
        return perror("mmap"), 1;
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attr, RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        if (fork() == 0)
            exit(run(&(struct rank){shared, i}));
    for (uint32_t i = 0; i < RANKS; i++)
        failed |= wait(&status) < 0 || status != 0;
    return failed;
}

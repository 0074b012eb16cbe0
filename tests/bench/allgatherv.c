/* MPI_Allgatherv beside `epa2a bench configs/allgather-shm.yaml`: the same rows, a barrier before
 * each sample, and the slowest rank's time counts.
 *
 *     mpicc -O2 allgatherv.c -o allgatherv && mpirun -n 2 --bind-to core ./allgatherv [ROWS BYTES]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARMUP = 20, SAMPLES = 200 };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int rows = argc > 1 ? atoi(argv[1]) : 128, row_bytes = argc > 2 ? atoi(argv[2]) : 14336;
    int rank, size, *count, *start;
    double sample[SAMPLES];
    char *in, *out[2];
    size_t bytes = (size_t)rows * (size_t)row_bytes;
    MPI_Datatype row;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Type_contiguous(row_bytes, MPI_BYTE, &row);
    MPI_Type_commit(&row);
    in = malloc(bytes);
    count = malloc((size_t)size * sizeof(*count));
    start = malloc((size_t)size * sizeof(*start));
    for (int i = 0; i < 2; i++) {
        out[i] = malloc((size_t)size * bytes);
        memset(out[i], 0, (size_t)size * bytes);
    }
    memset(in, rank + 1, bytes);
    for (int i = 0; i < size; i++) {
        count[i] = rows;
        start[i] = i * rows;
    }
    for (int i = -WARMUP; i < SAMPLES; i++) {
        double begin, ns;

        MPI_Barrier(MPI_COMM_WORLD);
        begin = MPI_Wtime();
        MPI_Allgatherv(in, rows, row, out[i & 1], count, start, row, MPI_COMM_WORLD);
        ns = (MPI_Wtime() - begin) * 1e9;
        MPI_Allreduce(MPI_IN_PLACE, &ns, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (i >= 0)
            sample[i] = ns;
    }
    qsort(sample, SAMPLES, sizeof(*sample), by_size);
    if (rank == 0)
        printf("MPI_Allgatherv, %d ranks of %d rows of %d B: min %.1f, median %.1f us\n", size,
               rows, row_bytes, sample[0] * 1e-3, sample[SAMPLES / 2] * 1e-3);
    for (int r = 0; r < size; r++)
        if (rows > 0 && out[1][(size_t)r * bytes] != (char)(r + 1))
            MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}

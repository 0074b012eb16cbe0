/* Loaded into ranks of mpirun before MPI: rank 1 stops in the call that would connect it to rank 0, and rank 0
 * reports that MPI_Init is over. */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int is_rank(const char *number)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");

    return rank != NULL && strcmp(rank, number) == 0;
}

/* Returns true for a call of the program or of its plugins, rather than of MPI. */
static int is_own_code(const void *caller)
{
    Dl_info info;

    return dladdr(caller, &info) != 0 && strstr(info.dli_fname, "epa2a") != NULL;
}

/* A datagram socket finds the address of an interface before MPI_Init. */
static int is_stream(int fd)
{
    int type = 0;
    socklen_t bytes = sizeof(type);

    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_STREAM;
}

/* glibc declares connect() with a union. */
__attribute__((visibility("default"))) int connect_or_stop(int fd, const struct sockaddr *at,
                                                           socklen_t bytes) __asm__("connect");

int connect_or_stop(int fd, const struct sockaddr *at, socklen_t bytes)
{
    int (*next)(int, const struct sockaddr *, socklen_t) = NULL;

    if (is_rank("1") && is_stream(fd) && is_own_code(__builtin_return_address(0))) {
        fprintf(stderr, "rank 1 stops\n");
        while (1)
            pause();
    }
    *(void **)&next = dlsym(RTLD_NEXT, "connect");
    return next(fd, at, bytes);
}

int MPI_Bcast(void *data, int n, MPI_Datatype type, int root, MPI_Comm comm)
{
    int (*broadcast)(void *, int, MPI_Datatype, int, MPI_Comm) = NULL;
    int code;

    *(void **)&broadcast = dlsym(RTLD_DEFAULT, "PMPI_Bcast");
    code = broadcast(data, n, type, root, comm);
    if (is_rank("0"))
        fprintf(stderr, "rank 0 has sent its address\n");
    return code;
}

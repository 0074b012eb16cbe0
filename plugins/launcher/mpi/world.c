/* All that this plugin wants of MPI: MPI-3, and no word of whose MPI it is. */
#include "world.h"

#include <dlfcn.h>
#include <mpi.h>

/* A plugin is loaded with RTLD_LOCAL, and so is the MPI library that it links. Open MPI
 * loads parts of itself as plugins that look for its symbols among the global ones. */
static enum epa_status make_global(struct epa_error *err)
{
    Dl_info info;

    if (dladdr((void *)(uintptr_t)MPI_Init_thread, &info) == 0 ||
        dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM, "mpi: dlopen of the MPI library: %s", dlerror());
    return EPA_OK;
}

static enum epa_status check(int code, const char *what, struct epa_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (code == MPI_SUCCESS)
        return EPA_OK;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof(text), "MPI error %d", code);
    return epa_fail(err, EPA_ERR_SYSTEM, "mpi: %s: %s", what, text);
}

static enum epa_status check_place(const struct epa_process_id *place, struct epa_error *err)
{
    int rank = -1, size = -1;
    enum epa_status status = check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank", err);

    if (status == EPA_OK)
        status = check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size", err);
    if (status == EPA_OK && ((uint32_t)rank != place->rank || (uint32_t)size != place->size))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "mpi: MPI says rank %d of %d, and the environment %s: its variables "
                        "are of another job, or epa2a was built with another MPI than the "
                        "one whose mpirun started it",
                        rank, size, place->source);
    return status;
}

enum epa_status mpi_world_join(const struct epa_process_id *place, struct epa_error *err)
{
    int given = MPI_THREAD_SINGLE;
    enum epa_status status = make_global(err);

    /* Serialized: an algorithm that uses MPI may do so in any thread, one at a time. */
    if (status == EPA_OK)
        status = check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given),
                       "MPI_Init_thread", err);
    if (status == EPA_OK)
        status = check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
                       "MPI_Comm_set_errhandler", err);
    if (status == EPA_OK && given < MPI_THREAD_FUNNELED)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "mpi: this MPI library was built without support for threads, and "
                        "ranks run several");
    return status == EPA_OK ? check_place(place, err) : status;
}

enum epa_status mpi_world_report(void *bytes, size_t n, struct epa_error *err)
{
    return check(MPI_Bcast(bytes, (int)n, MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast", err);
}

void mpi_world_leave(void)
{
    int on = 0, off = 0;

    if (MPI_Initialized(&on) == MPI_SUCCESS && on && MPI_Finalized(&off) == MPI_SUCCESS && !off)
        MPI_Finalize();
}

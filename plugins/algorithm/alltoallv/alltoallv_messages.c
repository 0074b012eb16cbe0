/* mode messages. Dispatch: MPI_Alltoall of counts during the packing of rows by expert, MPI_Alltoallv
 * of rows, and a copy that groups the received rows by expert, since they arrive by source. Combine:
 * the reverse copy, MPI_Alltoallv in the other direction, and the weighted sum. */
#include "alltoallv.h"

#include <string.h>

/* A copy between rows by source and rows by expert. */
struct regroup {
    const struct av *a;
    const char *from;
    char *to;
    bool back; /* direction: from rows by expert to rows by source */
    size_t row_bytes;
};

/* Copies the worker's part of each block (expert, source). */
static void regroup(void *arg, uint32_t worker, uint32_t workers)
{
    const struct regroup *g = arg;
    const struct av *a = g->a;
    const struct algo_set *set = a->h.set[0];
    uint32_t last = a->s.local - 1;
    uint64_t rows = set->recv_start[last] + set->recv_count[last];
    uint64_t first = rows * worker / workers, end = rows * (worker + 1) / workers, at = 0;

    for (uint32_t e = 0; e < a->s.local; e++) {
        for (uint32_t source = 0; source < a->s.size; source++) {
            uint64_t n = (uint64_t)av_counts_of(a, source)[e];
            uint64_t by_expert = at > first ? at : first;
            uint64_t stop = at + n < end ? at + n : end;
            uint64_t by_source = a->msg.block[source * a->s.local + e] + by_expert - at;

            at += n;
            if (by_expert >= stop)
                continue;
            memcpy(g->to + (g->back ? by_source : by_expert) * g->row_bytes,
                   g->from + (g->back ? by_expert : by_source) * g->row_bytes,
                   (stop - by_expert) * g->row_bytes);
        }
    }
}

static enum epa_status all_to_all_v(struct av *a, const char *call, MPI_Datatype type,
                                    const char *from, const int *rows_from, const int *from_at,
                                    char *to, const int *rows_to, const int *to_at)
{
    MPI_Request request = MPI_REQUEST_NULL;
    enum epa_status status = av_check(a, call,
                                      MPI_Ialltoallv(from, rows_from, from_at, type, to, rows_to,
                                                     to_at, type, a->comm, &request));

    return status == EPA_OK ? av_finish(a, call, &request) : status;
}

/* Orders sent rows by expert, and thus by rank. */
static void lay_out_sent(struct av *a)
{
    uint32_t end = 0;

    for (uint32_t r = 0; r < a->s.size; r++) {
        a->msg.at_out[r] = (int)end;
        for (uint32_t e = r * a->s.local; e < (r + 1) * a->s.local; e++) {
            a->next[e] = end;
            end += (uint32_t)a->count[e];
        }
        a->msg.rows_out[r] = (int)end - a->msg.at_out[r];
    }
}

static enum epa_status lay_out_received(struct av *a)
{
    uint64_t rows = av_lay_out(a);
    uint32_t end = 0;

    if (rows > a->s.entries)
        return algo_too_full(&a->h, a->h.world.rank, rows, a->s.entries);
    for (uint32_t source = 0; source < a->s.size; source++) {
        a->msg.at_in[source] = (int)end;
        for (uint32_t e = 0; e < a->s.local; e++) {
            a->msg.block[source * a->s.local + e] = end;
            end += (uint32_t)av_counts_of(a, source)[e];
        }
        a->msg.rows_in[source] = (int)end - a->msg.at_in[source];
    }
    return EPA_OK;
}

/* Starts the exchange of counts, which overlaps the packing of rows. */
static enum epa_status place_messages(struct av *a)
{
    int local = (int)a->s.local;
    enum epa_status status;

    lay_out_sent(a);
    status = av_check(a, "MPI_Ialltoall of counts",
                      MPI_Ialltoall(a->count, local, MPI_INT, a->counts, local, MPI_INT, a->comm,
                                    &a->msg.counting));
    a->pending = status == EPA_OK;
    return status;
}

static enum epa_status deliver_messages(struct av *a, const char **recv, char **y)
{
    struct av_messages *g = &a->msg;
    struct regroup task = {a, g->received, g->grouped, false, a->s.message_bytes};
    enum epa_status status = av_finish(a, "MPI_Ialltoall of counts", &g->counting);

    if (status == EPA_OK)
        status = lay_out_received(a);
    if (status == EPA_OK)
        status = all_to_all_v(a, "MPI_Ialltoallv of rows", g->message, g->sent, g->rows_out,
                              g->at_out, g->received, g->rows_in, g->at_in);
    *recv = g->grouped;
    *y = g->y;
    return status == EPA_OK ? av_parallel(a, "regroup", regroup, &task) : status;
}

static enum epa_status return_messages(struct av *a, struct epa_moe *m)
{
    struct av_messages *g = &a->msg;
    struct regroup task = {a, m->y, g->outputs_sent, true, a->s.output_bytes};
    enum epa_status status = av_parallel(a, "regroup", regroup, &task);

    return status == EPA_OK
               ? all_to_all_v(a, "MPI_Ialltoallv of expert outputs", g->output, g->outputs_sent,
                              g->rows_in, g->at_in, g->outputs_received, g->rows_out, g->at_out)
               : status;
}

static enum epa_status make_type(struct av *a, size_t bytes, MPI_Datatype *out)
{
    MPI_Datatype type = MPI_DATATYPE_NULL;
    enum epa_status status =
        av_check(a, "MPI_Type_contiguous", MPI_Type_contiguous((int)bytes, MPI_BYTE, &type));

    if (status == EPA_OK) {
        *out = type;
        status = av_check(a, "MPI_Type_commit", MPI_Type_commit(out));
    }
    return status;
}

/* Allocates one block of whole huge pages for all buffers: MPI copies between processes page by page,
 * and small pages cost 10 % of the time. */
static enum epa_status alloc_buffers(struct av *a, struct epa_error *err)
{
    struct av_messages *g = &a->msg;
    const struct {
        uint64_t bytes;
        char **out;
    } buffer[] = {
        {a->s.choices * a->s.message_bytes, &g->sent},
        {a->s.entries * a->s.message_bytes, &g->received},
        {a->s.entries * a->s.message_bytes, &g->grouped},
        {a->s.entries * a->s.output_bytes, &g->y},
        {a->s.entries * a->s.output_bytes, &g->outputs_sent},
        {a->s.choices * a->s.output_bytes, &g->outputs_received},
    };
    enum { BUFFERS = sizeof(buffer) / sizeof(*buffer) };
    uint64_t at[BUFFERS], end = 0;
    enum epa_status status;

    for (size_t i = 0; i < BUFFERS; i++) {
        at[i] = end;
        end += epa_round_up(buffer[i].bytes, ALGO_PAGE);
    }
    end = epa_round_up(end, AV_HUGE_PAGE);
    status = a->h.backend->ops->alloc(a->h.backend, end, &g->memory);
    if (status != EPA_OK) {
        a->h.backend->ops->explain(a->h.backend, err);
        return epa_fail(err, status, "alltoallv: no memory for rows: %llu bytes",
                        (unsigned long long)end);
    }
    for (size_t i = 0; i < BUFFERS; i++)
        *buffer[i].out = (char *)g->memory + at[i];
    return EPA_OK;
}

static enum epa_status create_messages(struct av *a, struct epa_error *err)
{
    struct av_messages *g = &a->msg;
    size_t size = a->s.size;
    enum epa_status status;

    g->rows_out = algo_alloc(&a->h, 4 * size, sizeof(*g->rows_out));
    g->block = algo_alloc(&a->h, a->s.experts, sizeof(*g->block));
    if (g->rows_out == NULL || g->block == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "alltoallv: no memory for counts");
    g->at_out = g->rows_out + size;
    g->rows_in = g->at_out + size;
    g->at_in = g->rows_in + size;
    status = alloc_buffers(a, err);
    if (status != EPA_OK)
        return status;
    status = make_type(a, a->s.message_bytes, &g->message);
    if (status == EPA_OK)
        status = make_type(a, a->s.output_bytes, &g->output);
    if (status != EPA_OK)
        return epa_fail(err, status, "alltoallv: %s", a->h.last.text);
    for (uint32_t r = 0; r < a->s.size; r++) {
        a->into[r] = g->sent;
        a->from[r] = g->outputs_received;
    }
    return EPA_OK;
}

static void destroy_messages(struct av *a)
{
    struct av_messages *g = &a->msg;

    if (g->message != MPI_DATATYPE_NULL)
        MPI_Type_free(&g->message);
    if (g->output != MPI_DATATYPE_NULL)
        MPI_Type_free(&g->output);
    if (g->memory != NULL)
        a->h.backend->ops->free(a->h.backend, g->memory);
}

const struct av_way av_messages = {place_messages, deliver_messages, return_messages, create_messages,
                                   destroy_messages};

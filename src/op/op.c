/* The operations this program knows. A new one adds its line here, a section to
 * config/experiment.c, and a member to the unions of problem.h and algorithm.h. */
#include "op/op.h"

#include <stdlib.h>

#include "base/random.h"
#include "op/moe/moe.h"

static const struct operation *const operations[] = {&op_moe, &op_allgather, &op_ag_gemm, NULL};

const struct operation *operation_at(uint32_t i)
{
    return operations[i];
}

const struct operation *operation_of(enum epa_op op)
{
    for (uint32_t i = 0; operations[i] != NULL; i++)
        if (operations[i]->op == op)
            return operations[i];
    return NULL;
}

const struct operation *operation_of_experiment(const struct experiment *x)
{
    const struct epa_algorithm_plugin *algorithm = (const void *)x->algorithm.plugin;

    return algorithm != NULL ? operation_of(algorithm->op) : NULL;
}

void operation_names(uint32_t ops, struct text *out)
{
    for (uint32_t i = 0; operations[i] != NULL; i++)
        if ((ops >> (uint32_t)operations[i]->op & 1) != 0)
            text_add(out, "%s%s", out->bytes == 0 ? "" : ", ", operations[i]->name);
}

struct epa_problem operation_problem(const struct experiment *x)
{
    struct epa_problem problem;

    operation_of_experiment(x)->shape(x, &problem);
    return problem;
}

uint32_t op_tokens_of(const struct experiment *x, uint32_t most, uint32_t rank, uint64_t iteration)
{
    struct random r = {.key = random_key(x->seed, RANDOM_TOKENS, rank, iteration)};
    uint32_t least = x->tokens.min, tokens;

    switch (x->tokens.kind) {
    case TOKENS_RANDOM: /* the edges more often than chance would have it */
        switch (random_below(&r, 8)) {
        case 0:
            return least;
        case 1:
            return most;
        default:
            return least + random_below(&r, most - least + 1);
        }
    case TOKENS_LIST:
        tokens = x->tokens.per_rank.item[rank];
        return tokens < most ? tokens : most;
    default:
        return most;
    }
}

void op_wrong(struct op_finding *f, const char *fmt, ...)
{
    char text[400];
    va_list args;

    f->wrong++;
    if (f->err == NULL || f->err->status != EPA_OK)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    (void)epa_fail(f->err, EPA_ERR_MISMATCH, "rank %u, iteration %llu, %s: %s%s%s", f->rank,
                   (unsigned long long)f->iteration, f->stage, f->where,
                   f->where[0] != 0 ? ": " : "", text);
}

enum epa_status op_finding_end(const struct op_finding *f, uint64_t *compared, uint64_t *wrong)
{
    *compared += f->compared;
    *wrong += f->wrong;
    return f->wrong == 0 ? EPA_OK : EPA_ERR_MISMATCH;
}

enum epa_status op_backend_done(struct epa_backend *b, enum epa_status status,
                                struct epa_error *err, const char *fmt, ...)
{
    char text[200];
    va_list args;

    if (status == EPA_OK)
        return EPA_OK;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    b->ops->explain(b, err);
    return epa_fail(err, status, "%s", text);
}

enum epa_status op_alloc(struct epa_backend *b, const char *what, uint64_t bytes, void **out,
                         struct epa_error *err)
{
    return op_backend_done(b, b->ops->alloc(b, bytes + OP_SPARE, out), err,
                           "no memory for %s: %llu bytes", what, (unsigned long long)bytes);
}

enum epa_status op_buffer_alloc(struct epa_backend *b, const char *what, uint64_t bytes,
                                struct op_buffer *out, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    *out = (struct op_buffer){0};
    if (bytes != 0)
        status = op_alloc(b, what, bytes, &out->there, err);
    if (status != EPA_OK || bytes == 0)
        return status;
    out->here = b->memory == EPA_MEMORY_HOST ? out->there : malloc(bytes);
    return out->here != NULL ? EPA_OK
                             : epa_fail(err, EPA_ERR_NOMEM, "no memory for %s: %llu bytes", what,
                                        (unsigned long long)bytes);
}

void op_buffer_free(struct epa_backend *b, struct op_buffer *buffer)
{
    if (buffer->here != buffer->there)
        free(buffer->here);
    if (buffer->there != NULL)
        b->ops->free(b, buffer->there);
}

enum epa_status op_buffer_send(struct epa_backend *b, const struct op_buffer *buffer,
                               uint64_t bytes)
{
    return buffer->here == buffer->there || bytes == 0
               ? EPA_OK
               : b->ops->write(b, buffer->there, buffer->here, bytes);
}

enum epa_status op_buffer_read(struct epa_backend *b, const struct op_buffer *buffer,
                               uint64_t bytes)
{
    return buffer->here == buffer->there || bytes == 0
               ? EPA_OK
               : b->ops->read(b, buffer->here, buffer->there, bytes);
}

enum epa_status op_arrays_alloc(struct epa_backend *b, const struct op_array *array, uint32_t n,
                                struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < n && status == EPA_OK; i++)
        status = op_buffer_alloc(b, array[i].what, array[i].bytes, array[i].buffer, err);
    return status;
}

enum epa_status op_arrays_send(struct epa_backend *b, const struct op_array *array, uint32_t n)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < n && status == EPA_OK; i++)
        status = op_buffer_send(b, array[i].buffer, array[i].bytes);
    return status;
}

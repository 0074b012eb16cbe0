/* oneDNN 2.x: the weights are put in the order it asks for, once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#include "gemm_peer.h"

enum { MOST = 16 };

struct peer {
    uint32_t weights;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t matmul;
    dnnl_memory_t a, b[MOST], c;
};

static void must(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return;
    fprintf(stderr, "oneDNN: %s: status %d\n", what, (int)status);
    exit(3);
}

static dnnl_memory_desc_t plain(uint32_t rows, uint32_t cols, dnnl_data_type_t type,
                                dnnl_format_tag_t tag)
{
    dnnl_dims_t dims = {rows, cols};
    dnnl_memory_desc_t d;

    must(dnnl_memory_desc_init_by_tag(&d, 2, dims, type, tag), "memory descriptor");
    return d;
}

/* [n][k] as the kernels here get it, that is, k x n by columns, to oneDNN's order. */
static dnnl_memory_t packed_weights(struct peer *p, uint32_t n, uint32_t k,
                                    const dnnl_memory_desc_t *order)
{
    dnnl_memory_desc_t from_desc = plain(k, n, dnnl_bf16, dnnl_ba);
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t reorder;
    dnnl_memory_t from, to;
    uint16_t *words;
    uint32_t state = 12345;

    must(dnnl_memory_create(&from, &from_desc, p->engine, DNNL_MEMORY_ALLOCATE), "memory");
    must(dnnl_memory_create(&to, order, p->engine, DNNL_MEMORY_ALLOCATE), "memory");
    must(dnnl_memory_get_data_handle(from, (void **)&words), "memory");
    for (size_t i = 0; i < (size_t)n * k; i++) {
        state = state * 1664525u + 1013904223u;
        words[i] = (uint16_t)((state >> 16 & 0x807fu) | (124u + (state >> 8 & 3u)) << 7);
    }
    must(dnnl_reorder_primitive_desc_create(&desc, &from_desc, p->engine, order, p->engine, NULL),
         "reorder");
    must(dnnl_primitive_create(&reorder, desc), "reorder");
    must(dnnl_primitive_execute(reorder, p->stream, 2,
                                (dnnl_exec_arg_t[]){{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}),
         "reorder");
    must(dnnl_stream_wait(p->stream), "reorder");
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(desc);
    dnnl_memory_destroy(from);
    return to;
}

struct peer *peer_create(uint32_t m, uint32_t n, uint32_t k, uint32_t weights)
{
    struct peer *p = calloc(1, sizeof(*p));
    dnnl_memory_desc_t a = plain(m, k, dnnl_bf16, dnnl_ab), c = plain(m, n, dnnl_f32, dnnl_ab);
    dnnl_memory_desc_t b = plain(k, n, dnnl_bf16, dnnl_format_tag_any);
    dnnl_matmul_desc_t op;
    dnnl_primitive_desc_t desc;

    must(p != NULL ? dnnl_success : dnnl_out_of_memory, "peer");
    p->weights = weights;
    must(dnnl_engine_create(&p->engine, dnnl_cpu, 0), "engine");
    must(dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags), "stream");
    must(dnnl_matmul_desc_init(&op, &a, &b, NULL, &c), "matmul");
    if (dnnl_primitive_desc_create(&desc, &op, NULL, p->engine, NULL) != dnnl_success) {
        dnnl_stream_destroy(p->stream);
        dnnl_engine_destroy(p->engine);
        free(p);
        return NULL;
    }
    must(dnnl_primitive_create(&p->matmul, desc), "matmul");
    must(dnnl_memory_create(&p->a, &a, p->engine, DNNL_MEMORY_NONE), "memory");
    must(dnnl_memory_create(&p->c, &c, p->engine, DNNL_MEMORY_NONE), "memory");
    for (uint32_t i = 0; i < weights; i++)
        p->b[i] =
            packed_weights(p, n, k, dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0));
    dnnl_primitive_desc_destroy(desc);
    return p;
}

void peer_multiply(struct peer *p, const void *a, uint32_t which, float *c)
{
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->b[which]}, {DNNL_ARG_DST, p->c}};

    must(dnnl_memory_set_data_handle(p->a, (void *)a), "memory");
    must(dnnl_memory_set_data_handle(p->c, c), "memory");
    must(dnnl_primitive_execute(p->matmul, p->stream, 3, args), "matmul");
    must(dnnl_stream_wait(p->stream), "matmul");
}

void peer_destroy(struct peer *p)
{
    if (p == NULL)
        return;
    for (uint32_t i = 0; i < p->weights; i++)
        dnnl_memory_destroy(p->b[i]);
    dnnl_memory_destroy(p->a);
    dnnl_memory_destroy(p->c);
    dnnl_primitive_destroy(p->matmul);
    dnnl_stream_destroy(p->stream);
    dnnl_engine_destroy(p->engine);
    free(p);
}

const char *peer_version(void)
{
    static char text[16];
    const dnnl_version_t *v = dnnl_version();

    snprintf(text, sizeof(text), "%d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

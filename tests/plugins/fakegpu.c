/* A GPU for tests in host memory. Queued work runs when a caller waits for it and not before; it
 * can be recorded as a graph and launched again. Reading memory while work is queued is an error.
 * Operations for which a driver would wait without a limit (freeing while work is queued) end the
 * process. This reveals missing waits and graphs that differ from the recorded calls, without a
 * GPU. */
#include "fakegpu.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <math.h>

#include <epa2a/wait.h>
#include "base/dtype.h"

enum { MARKS = 16 };

struct config {
    uint32_t fail_launch, fail_write;
    uint32_t read_s; /* time of a read in seconds */
    bool graphs;
};

struct work {
    struct work *next;
    enum epa_status (*run)(void *arg);
    size_t bytes;
    max_align_t arg[];
};

struct list {
    struct work *first, *last;
    uint32_t n;
};

struct epa_graph {
    struct list list;
};

struct gpu {
    struct epa_backend base; /* first member */
    struct fakegpu_stream stream;
    const struct config *config;
    const struct epa_bootstrap *boot;
    struct list queue, recorded;
    bool recording;
    enum epa_status failed; /* status of the work since the last sync */
    struct epa_fault device_fault;
    uint64_t mark[MARKS];
    uint32_t launches, writes, flushes;
    struct epa_backend_ops ops; /* without graphs if the option says so */
    struct epa_error last;      /* last failure, for explain() */
};

/* Arguments of work that the backend itself queues. */
struct own {
    struct gpu *gpu;
    uint32_t mark;
};

static struct gpu *gpu_of(struct epa_backend *base)
{
    return (struct gpu *)base;
}

static struct epa_error *fresh(struct gpu *gpu)
{
    gpu->last.status = EPA_OK;
    return &gpu->last;
}

static enum epa_status append(struct list *list, enum epa_status (*run)(void *), const void *arg,
                              size_t bytes)
{
    struct work *work = fakegpu_alloc(sizeof(*work) + bytes);

    *work = (struct work){.run = run, .bytes = bytes};
    memcpy(work->arg, arg, bytes);
    if (list->last != NULL)
        list->last->next = work;
    else
        list->first = work;
    list->last = work;
    list->n++;
    return EPA_OK;
}

static void clear(struct list *list)
{
    while (list->first != NULL) {
        struct work *next = list->first->next;

        free(list->first);
        list->first = next;
    }
    *list = (struct list){0};
}

static enum epa_status push(struct fakegpu_stream *stream, enum epa_status (*run)(void *),
                            const void *arg, size_t bytes)
{
    struct gpu *gpu = (struct gpu *)((char *)stream - offsetof(struct gpu, stream));

    return append(gpu->recording ? &gpu->recorded : &gpu->queue, run, arg, bytes);
}

static void run_all(struct gpu *gpu)
{
    for (struct work *w = gpu->queue.first; w != NULL && gpu->failed == EPA_OK; w = w->next) {
        gpu->failed = w->run(w->arg);
        if (gpu->failed == EPA_OK && epa_aborted(gpu->boot))
            gpu->failed = EPA_ERR_ABORTED;
    }
    clear(&gpu->queue);
}

static enum epa_status while_recording(struct gpu *gpu, const char *what)
{
    return epa_fail(fresh(gpu), EPA_ERR_SYSTEM, "fakegpu: %s while a graph is recorded", what);
}

static enum epa_status gpu_alloc(struct epa_backend *base, size_t bytes, void **out)
{
    if (gpu_of(base)->recording)
        return while_recording(gpu_of(base), "alloc");
    *out = fakegpu_alloc(bytes + 1);
    return EPA_OK;
}

static void refuse_to_hang(const struct gpu *gpu, const char *what)
{
    if (gpu->queue.n == 0)
        return;
    fprintf(stderr, "fakegpu: %s while %u calls are queued\n", what, gpu->queue.n);
    abort();
}

static void gpu_free(struct epa_backend *base, void *memory)
{
    refuse_to_hang(gpu_of(base), "memory is freed");
    free(memory);
}

static enum epa_status gpu_write(struct epa_backend *base, void *to, const void *host, size_t bytes)
{
    struct gpu *gpu = gpu_of(base);

    if (gpu->recording)
        return while_recording(gpu, "write");
    if (++gpu->writes == gpu->config->fail_write)
        return epa_fail(fresh(gpu), EPA_ERR_SYSTEM, "fakegpu: write %u fails as configured",
                        gpu->writes);
    run_all(gpu);
    if (bytes > 0)
        memcpy(to, host, bytes);
    return EPA_OK;
}

static enum epa_status gpu_read(struct epa_backend *base, void *host, const void *from,
                                size_t bytes)
{
    struct gpu *gpu = gpu_of(base);

    if (gpu->queue.n != 0 || gpu->recording)
        return epa_fail(fresh(gpu), EPA_ERR_SYSTEM,
                        "fakegpu: memory is read while %u calls are queued", gpu->queue.n);
    if (gpu->config->read_s > 0)
        (void)sleep(gpu->config->read_s);
    if (bytes > 0)
        memcpy(host, from, bytes);
    return EPA_OK;
}

static enum epa_status gpu_fill(struct epa_backend *base, void *to, int byte, size_t bytes)
{
    struct gpu *gpu = gpu_of(base);

    if (gpu->recording)
        return while_recording(gpu, "fill");
    run_all(gpu);
    if (bytes > 0)
        memset(to, byte, bytes);
    return EPA_OK;
}

static enum epa_status gpu_sync(struct epa_backend *base)
{
    struct gpu *gpu = gpu_of(base);
    enum epa_status status;

    if (gpu->recording)
        return while_recording(gpu, "sync");
    run_all(gpu);
    status = gpu->failed;
    gpu->failed = EPA_OK;
    base->fault = gpu->device_fault;
    if (status == EPA_OK && epa_aborted(gpu->boot))
        status = EPA_ERR_ABORTED;
    if (status != EPA_OK && base->fault.status == EPA_OK)
        return epa_fail(fresh(gpu), status, "fakegpu: queued work has failed");
    return status;
}

static enum epa_status gpu_parallel(struct epa_backend *base,
                                    void (*fn)(void *, uint32_t, uint32_t), void *arg)
{
    return epa_fail(fresh(gpu_of(base)), EPA_ERR_UNSUPPORTED, "fakegpu: no workers");
}

static enum epa_status run_mark(void *arg)
{
    const struct own *own = arg;

    own->gpu->mark[own->mark] = epa_now_ns();
    return EPA_OK;
}

static enum epa_status gpu_mark(struct epa_backend *base, uint32_t i)
{
    struct gpu *gpu = gpu_of(base);

    if (gpu->recording)
        return while_recording(gpu, "mark");
    if (i >= MARKS)
        return epa_fail(fresh(gpu), EPA_ERR_UNSUPPORTED, "fakegpu: mark %u of %d", i, MARKS);
    return push(&gpu->stream, run_mark, &(struct own){gpu, i}, sizeof(struct own));
}

static enum epa_status gpu_elapsed(struct epa_backend *base, uint32_t i, uint32_t j, double *ns)
{
    struct gpu *gpu = gpu_of(base);

    if (gpu->queue.n != 0)
        return epa_fail(fresh(gpu), EPA_ERR_SYSTEM, "fakegpu: elapsed() while %u calls are queued",
                        gpu->queue.n);
    *ns = (double)(int64_t)(gpu->mark[j] - gpu->mark[i]);
    return EPA_OK;
}

static enum epa_status gpu_capture_begin(struct epa_backend *base)
{
    struct gpu *gpu = gpu_of(base);

    if (gpu->recording)
        return while_recording(gpu, "capture_begin");
    gpu->recording = true;
    return EPA_OK;
}

static enum epa_status gpu_capture_end(struct epa_backend *base, struct epa_graph **out)
{
    struct gpu *gpu = gpu_of(base);
    struct epa_graph *graph = fakegpu_alloc(sizeof(*graph));

    gpu->recording = false;
    graph->list = gpu->recorded;
    gpu->recorded = (struct list){0};
    *out = graph;
    return EPA_OK;
}

static enum epa_status gpu_graph_launch(struct epa_backend *base, struct epa_graph *graph)
{
    struct gpu *gpu = gpu_of(base);
    enum epa_status status = EPA_OK;

    if (++gpu->launches == gpu->config->fail_launch)
        return epa_fail(fresh(gpu), EPA_ERR_SYSTEM, "fakegpu: launch %u fails as configured",
                        gpu->launches);
    for (struct work *w = graph->list.first; w != NULL && status == EPA_OK; w = w->next)
        status = append(&gpu->queue, w->run, w->arg, w->bytes);
    return status;
}

static void gpu_graph_destroy(struct epa_backend *base, struct epa_graph *graph)
{
    refuse_to_hang(gpu_of(base), "a graph is destroyed");
    clear(&graph->list);
    free(graph);
}

static enum epa_status run_flush(void *arg)
{
    const struct own *own = arg;

    own->gpu->flushes++;
    return EPA_OK;
}

static enum epa_status gpu_flush_cache(struct epa_backend *base)
{
    struct gpu *gpu = gpu_of(base);

    return push(&gpu->stream, run_flush, &(struct own){gpu, 0}, sizeof(struct own));
}

/* ---- experts: bf16, layout expert, plain loops ---- */

struct epa_experts {
    struct gpu *gpu;
    struct epa_experts_params p;
    struct epa_moe moe;
};

struct experts_call {
    const struct epa_experts *x;
    struct epa_moe moe;
    uint16_t *y;
};

static float dot(const uint16_t *w, const float *x, uint32_t n)
{
    float sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += float_of_bf16(w[i]) * x[i];
    return sum;
}

static enum epa_status run_synthetic(void *arg)
{
    const struct experts_call *c = arg;

    fakegpu_experts(&c->moe, c->x->p.experts, c->x->p.factor, c->y);
    return EPA_OK;
}

static enum epa_status run_real(void *arg)
{
    const struct experts_call *c = arg;
    const struct epa_mlp *m = &c->x->moe.mlp;
    uint32_t hidden = c->moe.hidden, ffn = m->ffn, rows = epa_mlp_up_rows(m);
    float *v = fakegpu_alloc((hidden + ffn) * sizeof(*v)), *a = v + hidden;

    for (uint32_t e = 0; e < c->x->p.experts; e++) {
        const uint16_t *up = (const uint16_t *)m->up + (size_t)e * rows * hidden;
        const uint16_t *down = (const uint16_t *)m->down + (size_t)e * hidden * ffn;

        for (uint64_t i = 0; i < c->moe.recv_count[e]; i++) {
            uint64_t at = c->moe.recv_start[e] + i;
            const uint16_t *x = (const void *)((const char *)c->moe.recv + at * c->moe.recv_stride);

            for (uint32_t h = 0; h < hidden; h++)
                v[h] = float_of_bf16(x[h]);
            for (uint32_t k = 0; k < ffn; k++) {
                float g = dot(up + (size_t)k * hidden, v, hidden);

                if (m->activation == EPA_ACTIVATION_SWIGLU)
                    g = g / (1 + expf(-g)) * dot(up + (size_t)(ffn + k) * hidden, v, hidden);
                a[k] = float_of_bf16(bf16_of_float(g));
            }
            for (uint32_t h = 0; h < hidden; h++)
                c->y[at * hidden + h] = bf16_of_float(dot(down + (size_t)h * ffn, a, ffn));
        }
    }
    free(v);
    return EPA_OK;
}

static enum epa_status gpu_experts_create(struct epa_backend *base,
                                          const struct epa_experts_params *p,
                                          struct epa_experts **out, struct epa_error *err)
{
    struct epa_experts *x = fakegpu_alloc(sizeof(*x));

    *x = (struct epa_experts){gpu_of(base), *p, *p->moe};
    *out = x;
    return EPA_OK;
}

static enum epa_status gpu_experts_run(struct epa_experts *x, const struct epa_moe *moe, void *y)
{
    return push(&x->gpu->stream, x->p.factor != NULL ? run_synthetic : run_real,
                &(struct experts_call){x, *moe, y}, sizeof(struct experts_call));
}

static const char *gpu_experts_name(const struct epa_experts *x)
{
    return "one loop in another";
}

static void gpu_experts_destroy(struct epa_experts *x)
{
    free(x);
}

/* Memory of 8 bytes a nanosecond. */
static enum epa_status gpu_peaks(struct epa_backend *base, enum epa_dtype dtype,
                                 double *flops_per_ns, double *bytes_per_ns)
{
    if (flops_per_ns != NULL)
        *flops_per_ns = 0;
    *bytes_per_ns = 8;
    return EPA_OK;
}

static void gpu_describe(struct epa_backend *base,
                         void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    struct gpu *gpu = gpu_of(base);
    char text[32];

    say(arg, "device", "no GPU at all");
    snprintf(text, sizeof(text), "%u", base->device);
    say(arg, "place", text);
    snprintf(text, sizeof(text), "%u", gpu->launches);
    say(arg, "launches", text);
    snprintf(text, sizeof(text), "%u", gpu->flushes);
    say(arg, "flushes", text);
}

static void gpu_explain(struct epa_backend *base, struct epa_error *err)
{
    const struct gpu *gpu = gpu_of(base);

    if (gpu->last.status != EPA_OK)
        epa_fail(err, gpu->last.status, "%s", gpu->last.text);
}

static void gpu_close(struct epa_backend *base)
{
    struct gpu *gpu = gpu_of(base);

    refuse_to_hang(gpu, "it is closed");
    clear(&gpu->recorded);
    free(gpu);
}

static const struct epa_backend_ops ops = {
    .alloc = gpu_alloc,
    .free = gpu_free,
    .write = gpu_write,
    .read = gpu_read,
    .fill = gpu_fill,
    .sync = gpu_sync,
    .parallel = gpu_parallel,
    .mark = gpu_mark,
    .elapsed = gpu_elapsed,
    .capture_begin = gpu_capture_begin,
    .capture_end = gpu_capture_end,
    .graph_launch = gpu_graph_launch,
    .graph_destroy = gpu_graph_destroy,
    .flush_cache = gpu_flush_cache,
    .experts_create = gpu_experts_create,
    .experts_run = gpu_experts_run,
    .experts_name = gpu_experts_name,
    .experts_destroy = gpu_experts_destroy,
    .peaks = gpu_peaks,
    .describe = gpu_describe,
    .explain = gpu_explain,
    .close = gpu_close,
};

static enum epa_status gpu_open(const void *config, struct epa_bootstrap *boot,
                                struct epa_backend **out, struct epa_error *err)
{
    struct gpu *gpu = fakegpu_alloc(sizeof(*gpu));

    gpu->stream.push = push;
    gpu->config = config;
    gpu->boot = boot;
    gpu->ops = ops;
    if (!gpu->config->graphs)
        gpu->ops.capture_begin = NULL;
    gpu->base = (struct epa_backend){.ops = &gpu->ops,
                                     .memory = EPA_MEMORY_CUDA,
                                     .device = (int)boot->world.local_rank,
                                     .stream = &gpu->stream,
                                     .stop = boot->aborted,
                                     .free_bytes = 1ull << 30,
                                     .cache_bytes = 256,
                                     .device_fault = &gpu->device_fault,
                                     .multiprocessors = 1};
    *out = &gpu->base;
    return EPA_OK;
}

static uint32_t gpu_threads(const void *config)
{
    return 1;
}

static const struct config defaults = {.graphs = true};

static const struct epa_option options[] = {
    {.name = "fail_launch",
     EPA_U32(struct config, fail_launch),
     .help = "launch that fails; 0: none"},
    {.name = "fail_write", EPA_U32(struct config, fail_write), .help = "write that fails; 0: none"},
    {.name = "read_s", EPA_U32(struct config, read_s), .help = "seconds that a read takes"},
    {.name = "graphs", EPA_BOOL(struct config, graphs), .help = "whether it has graphs"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_backend_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_BACKEND, struct epa_backend_plugin), .name = "fakegpu",
               .summary = "a queue of calls that is run when it is waited for",
               .options = {options, sizeof(struct config), &defaults}},
    .memory = EPA_MEMORY_CUDA,
    .threads = gpu_threads,
    .open = gpu_open,
};

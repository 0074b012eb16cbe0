/* Finds third-party libraries, and calls oneDNN 2 and 3. Each worker has its own primitives: a
 * reorder for each product, and a matmul for each of the last numbers of rows, created at first
 * use. OpenMP, if the library uses it, runs with one thread. */
#include "kernels/libraries.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef EPA2A_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <oneapi/dnnl/dnnl_version.h>
#define TEXT(a) #a
#define TEXT_OF(a) TEXT(a)
#define ONEDNN_FILE "libdnnl.so." TEXT_OF(DNNL_VERSION_MAJOR)
#else
#define ONEDNN_FILE NULL
#endif

enum { FILES = 4 };

/* Formats the version: 130002 or 120900. */
static void read_cublaslt_version(void *function, char *out, size_t room)
{
    size_t (*version)(void), n;

    memcpy(&version, &function, sizeof(version));
    n = version();
    snprintf(out, room, "%zu.%zu.%zu", n / 10000, n / 100 % 100, n % 100);
}

/* Formats the version from a struct that begins with three numbers. */
static void read_onednn_version(void *function, char *out, size_t room)
{
    const int *(*version)(void), *n;

    memcpy(&version, &function, sizeof(version));
    n = version();
    snprintf(out, room, "%d.%d.%d", n[0], n[1], n[2]);
}

static const struct library {
    const char *name, *use, *file[FILES], *version;
    void (*read_version)(void *function, char *out, size_t room);
} libraries[LIBRARY_IDS] = {
    [LIBRARY_ID_CUBLASLT] =
        {
            .name = "cuBLASLt",
            .use = "for algorithm.product of ag_gemm_2d, algorithm.library of ag_then_gemm",
            .file = {"libcublasLt.so.13", "libcublasLt.so.12",
                     "/usr/local/cuda/lib64/libcublasLt.so.13",
                     "/usr/local/cuda/lib64/libcublasLt.so.12"},
            .version = "cublasLtGetVersion",
            .read_version = read_cublaslt_version,
        },
    [LIBRARY_ID_ONEDNN] =
        {
            .name = "oneDNN",
            .use = "for expert.library, and algorithm.library of ag_then_gemm",
            .file = {ONEDNN_FILE},
            .version = "dnnl_version",
            .read_version = read_onednn_version,
        },
};

/* Opens the first file that exists. `why`: message of dlopen() for the first file. */
static void *open_first(const struct library *l, const char **file, char *why, size_t room)
{
    void *open = NULL;

    for (int i = 0; i < FILES && l->file[i] != NULL && open == NULL; i++) {
        *file = l->file[i];
        open = dlopen(l->file[i], RTLD_NOW | RTLD_LOCAL);
        if (open == NULL && i == 0)
            snprintf(why, room, "%s", dlerror());
    }
    return open;
}

void *library_load(enum library_id id, const struct library_function *function, size_t n, void *out,
                   struct epa_error *err)
{
    const struct library *l = &libraries[id];
    const char *file = NULL;
    char why[256] = "this program was built without";
    void *open = open_first(l, &file, why, sizeof(why)), *at;

    if (open == NULL)
        (void)epa_fail(err, EPA_ERR_UNSUPPORTED,
                       "there is no %s: %s (set LD_LIBRARY_PATH to its folder)", l->name, why);
    for (size_t i = 0; i < n && open != NULL; i++) {
        at = dlsym(open, function[i].name);
        memcpy((char *)out + function[i].offset, &at, sizeof(at));
        if (at == NULL) {
            (void)epa_fail(err, EPA_ERR_UNSUPPORTED, "%s has no %s", file, function[i].name);
            return NULL;
        }
    }
    return open;
}

bool library_find(enum library_id id, struct library_found *out)
{
    const struct library *l = &libraries[id];
    char why[2];
    void *open = open_first(l, &out->file, why, sizeof(why));
    void *version = open != NULL ? dlsym(open, l->version) : NULL;

    if (version == NULL)
        return false;
    out->name = l->name;
    out->use = l->use;
    l->read_version(version, out->version, sizeof(out->version));
    return true;
}

/* ---- oneDNN ---- */

#ifdef EPA2A_ONEDNN
enum { KEPT = 8 /* matmuls of a worker and product */ };

/* Differences between the two versions of oneDNN's API. */
/* clang-format off */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t desc_ref;
#define FUNCTIONS_OF_VERSION(X)                                                                    \
    X(memory_desc_create_with_strides) X(memory_desc_create_with_tag) X(memory_desc_destroy)       \
    X(matmul_primitive_desc_create)
#else
typedef const dnnl_memory_desc_t *desc_ref;
#define FUNCTIONS_OF_VERSION(X)                                                                    \
    X(memory_desc_init_by_strides) X(memory_desc_init_by_tag) X(matmul_desc_init)                  \
    X(primitive_desc_create)
#endif
#define FUNCTIONS(X)                                                                               \
    X(engine_create) X(engine_destroy) X(stream_create) X(stream_destroy) X(stream_wait)           \
    X(memory_create) X(memory_destroy) X(memory_set_data_handle) X(memory_get_memory_desc)         \
    X(memory_desc_get_size) X(primitive_create) X(primitive_destroy) X(primitive_execute)          \
    X(primitive_desc_destroy) X(primitive_desc_query_md) X(reorder_primitive_desc_create)          \
    X(primitive_attr_create) X(primitive_attr_destroy) X(primitive_attr_set_scratchpad_mode)       \
    X(version) X(status2str) FUNCTIONS_OF_VERSION(X)
/* clang-format on */

/* Functions of the library. */
struct api {
#define MEMBER(name) __typeof__(&dnnl_##name) name;
    FUNCTIONS(MEMBER)
    void (*omp_set_num_threads)(int); /* NULL: the library runs without OpenMP */
};

/* Operands of a primitive. */
enum { SRC, WEIGHTS, DST, SCRATCH, MEMORIES };

struct primitive {
    uint32_t rows; /* of a matmul; 0: no primitive exists */
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[MEMORIES]; /* a reorder has no WEIGHTS */
};

struct worker {
    dnnl_stream_t stream;
    struct primitive reorder[ONEDNN_PRODUCTS]; /* packs B */
    struct primitive matmul[ONEDNN_PRODUCTS][KEPT];
};

struct onednn {
    struct api api;
    char name[32];
    dnnl_engine_t engine;
    /* Scratch memory is the caller's: the library's belongs to a thread. */
    dnnl_primitive_attr_t attr;
    struct onednn_product product[ONEDNN_PRODUCTS];
    dnnl_memory_t bias[ONEDNN_PRODUCTS]; /* NULL: none */
    uint32_t products, workers;
    struct worker *worker;
};

/* ---- the library ---- */

static enum epa_status load_library_functions(struct api *out, struct epa_error *err)
{
    static const struct library_function function[] = {
#define ROW(name) {"dnnl_" #name, offsetof(struct api, name)},
        FUNCTIONS(ROW)};
    void *library =
        library_load(LIBRARY_ID_ONEDNN, function, sizeof(function) / sizeof(*function), out, err);
    void *at = library != NULL ? dlsym(library, "omp_set_num_threads") : NULL;

    memcpy(&out->omp_set_num_threads, &at, sizeof(at));
    return library != NULL ? EPA_OK : EPA_ERR_UNSUPPORTED;
}

#if DNNL_VERSION_MAJOR >= 3
static dnnl_status_t desc_init(const struct api *d, dnnl_memory_desc_t *out, uint32_t rows,
                               uint32_t columns, dnnl_data_type_t type, const dnnl_dims_t strides)
{
    const dnnl_dims_t dims = {rows, columns};

    return strides != NULL
               ? d->memory_desc_create_with_strides(out, 2, dims, type, strides)
               : d->memory_desc_create_with_tag(out, 2, dims, type, dnnl_format_tag_any);
}

static desc_ref ref_of(const dnnl_memory_desc_t *desc)
{
    return *desc;
}

static void desc_finish(const struct api *d, dnnl_memory_desc_t *desc)
{
    (void)d->memory_desc_destroy(*desc);
}

static dnnl_status_t plan_matmul(const struct onednn *o, desc_ref a, desc_ref b, desc_ref bias,
                                 desc_ref c, dnnl_primitive_desc_t *out)
{
    return o->api.matmul_primitive_desc_create(out, o->engine, a, b, bias, c, o->attr);
}
#else
static dnnl_status_t desc_init(const struct api *d, dnnl_memory_desc_t *out, uint32_t rows,
                               uint32_t columns, dnnl_data_type_t type, const dnnl_dims_t strides)
{
    const dnnl_dims_t dims = {rows, columns};

    return strides != NULL ? d->memory_desc_init_by_strides(out, 2, dims, type, strides)
                           : d->memory_desc_init_by_tag(out, 2, dims, type, dnnl_format_tag_any);
}

static desc_ref ref_of(const dnnl_memory_desc_t *desc)
{
    return desc;
}

static void desc_finish(const struct api *d, dnnl_memory_desc_t *desc)
{
    (void)d;
    (void)desc;
}

static dnnl_status_t plan_matmul(const struct onednn *o, desc_ref a, desc_ref b, desc_ref bias,
                                 desc_ref c, dnnl_primitive_desc_t *out)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = o->api.matmul_desc_init(&desc, a, b, bias, c);

    return status == dnnl_success
               ? o->api.primitive_desc_create(out, &desc, o->attr, o->engine, NULL)
               : status;
}
#endif

/* ---- primitives of a worker ---- */

/* Plans a matmul. b NULL: in the format that the library prefers. */
static dnnl_status_t plan_rows(const struct onednn *o, uint32_t product, uint32_t rows, desc_ref b,
                               dnnl_primitive_desc_t *out)
{
    const struct api *d = &o->api;
    const struct onednn_product *p = &o->product[product];
    enum { A, B, BIAS, C, DESCS };
    const uint32_t shape[DESCS][2] = {{rows, p->k}, {p->k, p->n}, {1, p->n}, {rows, p->n}};
    const dnnl_dims_t strides[DESCS] = {{p->k, 1}, {0}, {p->n, 1}, {p->ldc, 1}};
    const dnnl_data_type_t type[DESCS] = {dnnl_bf16, dnnl_bf16, dnnl_f32,
                                          p->f32 ? dnnl_f32 : dnnl_bf16};
    dnnl_memory_desc_t desc[DESCS];
    dnnl_status_t status = dnnl_success;
    uint32_t n = 0;

    for (uint32_t i = 0; i < DESCS && status == dnnl_success; i++) {
        status =
            desc_init(d, &desc[i], shape[i][0], shape[i][1], type[i], i == B ? NULL : strides[i]);
        n += status == dnnl_success;
    }
    if (status == dnnl_success)
        status = plan_matmul(o, ref_of(&desc[A]), b != NULL ? b : ref_of(&desc[B]),
                             p->bias != NULL ? ref_of(&desc[BIAS]) : NULL, ref_of(&desc[C]), out);
    while (n > 0)
        desc_finish(d, &desc[--n]);
    return status;
}

static void destroy_primitive(const struct api *d, struct primitive *p)
{
    (void)d->primitive_destroy(p->primitive);
    for (uint32_t i = 0; i < MEMORIES; i++)
        (void)d->memory_destroy(p->memory[i]);
    *p = (struct primitive){0};
}

/* Creates the primitive of a plan and destroys the plan. */
static dnnl_status_t create_primitive(const struct onednn *o, dnnl_primitive_desc_t plan,
                                      bool weights, struct primitive *out)
{
    static const dnnl_query_t query[MEMORIES] = {dnnl_query_src_md, dnnl_query_weights_md,
                                                 dnnl_query_dst_md, dnnl_query_scratchpad_md};
    const struct api *d = &o->api;
    dnnl_status_t status = d->primitive_create(&out->primitive, plan);

    for (uint32_t i = 0; i < MEMORIES && status == dnnl_success; i++)
        if (i != WEIGHTS || weights)
            status =
                d->memory_create(&out->memory[i], d->primitive_desc_query_md(plan, query[i], 0),
                                 o->engine, i == SCRATCH ? DNNL_MEMORY_ALLOCATE : DNNL_MEMORY_NONE);
    (void)d->primitive_desc_destroy(plan);
    return status;
}

/* Creates the reorder from [n][k], that is, k x n by columns, to the format that the library
 * prefers for these rows; all numbers of rows share it. */
static dnnl_status_t make_reorder(const struct onednn *o, uint32_t product, struct primitive *out)
{
    const struct api *d = &o->api;
    uint32_t k = o->product[product].k, n = o->product[product].n;
    dnnl_primitive_desc_t rows, plan;
    dnnl_memory_desc_t given;
    dnnl_status_t status = desc_init(d, &given, k, n, dnnl_bf16, (dnnl_dims_t){1, k});

    if (status != dnnl_success)
        return status;
    status = plan_rows(o, product, o->product[product].rows, NULL, &rows);
    if (status == dnnl_success) {
        status = d->reorder_primitive_desc_create(
            &plan, ref_of(&given), o->engine,
            d->primitive_desc_query_md(rows, dnnl_query_weights_md, 0), o->engine, o->attr);
        if (status == dnnl_success)
            status = create_primitive(o, plan, false, out);
        (void)d->primitive_desc_destroy(rows);
    }
    desc_finish(d, &given);
    return status;
}

static dnnl_status_t make_matmul(struct onednn *o, struct worker *w, uint32_t product,
                                 uint32_t rows, struct primitive *out)
{
    const struct api *d = &o->api;
    dnnl_primitive_desc_t plan;
    desc_ref b;
    dnnl_status_t status;

    destroy_primitive(d, out);
    status = d->memory_get_memory_desc(w->reorder[product].memory[DST], &b);
    if (status == dnnl_success)
        status = plan_rows(o, product, rows, b, &plan);
    if (status == dnnl_success)
        status = create_primitive(o, plan, true, out);
    out->rows = status == dnnl_success ? rows : 0;
    return status;
}

static dnnl_status_t make_worker(struct onednn *o, struct worker *w)
{
    dnnl_status_t status = o->api.stream_create(&w->stream, o->engine, dnnl_stream_default_flags);

    for (uint32_t i = 0; i < o->products && status == dnnl_success; i++)
        status = make_reorder(o, i, &w->reorder[i]);
    return status;
}

static void destroy_worker(const struct api *d, struct worker *w)
{
    for (uint32_t i = 0; i < ONEDNN_PRODUCTS; i++) {
        destroy_primitive(d, &w->reorder[i]);
        for (uint32_t k = 0; k < KEPT; k++)
            destroy_primitive(d, &w->matmul[i][k]);
    }
    (void)d->stream_destroy(w->stream);
}

/* ---- all workers ---- */

static dnnl_status_t make_bias(struct onednn *o, uint32_t product)
{
    const struct onednn_product *p = &o->product[product];
    dnnl_memory_desc_t desc;
    dnnl_status_t status;

    if (p->bias == NULL)
        return dnnl_success;
    status = desc_init(&o->api, &desc, 1, p->n, dnnl_f32, (dnnl_dims_t){p->n, 1});
    if (status != dnnl_success)
        return status;
    status = o->api.memory_create(&o->bias[product], ref_of(&desc), o->engine,
                                  (void *)(uintptr_t)p->bias);
    desc_finish(&o->api, &desc);
    return status;
}

/* Loads the library and creates the objects that all workers share. */
static dnnl_status_t load_onednn(struct onednn *o, const struct onednn_product *product, uint32_t n)
{
    dnnl_status_t status = o->api.engine_create(&o->engine, dnnl_cpu, 0);

    snprintf(o->name, sizeof(o->name), "oneDNN %d.%d.%d", o->api.version()->major,
             o->api.version()->minor, o->api.version()->patch);
    memcpy(o->product, product, n * sizeof(*product));
    o->products = n;
    if (status == dnnl_success)
        status = o->api.primitive_attr_create(&o->attr);
    if (status == dnnl_success)
        status = o->api.primitive_attr_set_scratchpad_mode(o->attr, dnnl_scratchpad_mode_user);
    for (uint32_t i = 0; i < n && status == dnnl_success; i++)
        status = make_bias(o, i);
    return status;
}

bool onednn_knows(const struct onednn_product *product)
{
    struct onednn *o = calloc(1, sizeof(*o));
    dnnl_primitive_desc_t plan;
    dnnl_status_t status = dnnl_out_of_memory;

    if (o != NULL && load_library_functions(&o->api, NULL) == EPA_OK) {
        status = load_onednn(o, product, 1);
        if (status == dnnl_success)
            status = plan_rows(o, 0, 1, NULL, &plan);
        if (status == dnnl_success)
            (void)o->api.primitive_desc_destroy(plan);
        onednn_destroy(o);
    } else {
        free(o);
    }
    return status == dnnl_success;
}

enum epa_status onednn_create(const struct onednn_product *product, uint32_t products,
                              uint32_t workers, struct onednn **out, struct epa_error *err)
{
    struct onednn *o = calloc(1, sizeof(*o));
    enum epa_status status = o != NULL ? load_library_functions(&o->api, err)
                                       : epa_fail(err, EPA_ERR_NOMEM, "oneDNN: no memory");
    dnnl_status_t done;

    if (status != EPA_OK) {
        free(o);
        return status;
    }
    o->workers = workers;
    o->worker = calloc(workers, sizeof(*o->worker));
    done = o->worker != NULL ? load_onednn(o, product, products) : dnnl_out_of_memory;
    for (uint32_t i = 0; i < workers && done == dnnl_success; i++)
        done = make_worker(o, &o->worker[i]);
    if (done != dnnl_success) {
        status = epa_fail(err,
                          done == dnnl_unimplemented   ? EPA_ERR_UNSUPPORTED
                          : done == dnnl_out_of_memory ? EPA_ERR_NOMEM
                                                       : EPA_ERR_SYSTEM,
                          "library: onednn: %s cannot multiply bf16 here: %s", o->name,
                          o->api.status2str(done));
        onednn_destroy(o);
        return status;
    }
    *out = o;
    return EPA_OK;
}

void onednn_destroy(struct onednn *o)
{
    if (o == NULL)
        return;
    for (uint32_t i = 0; i < o->workers && o->worker != NULL; i++)
        destroy_worker(&o->api, &o->worker[i]);
    for (uint32_t i = 0; i < o->products; i++)
        (void)o->api.memory_destroy(o->bias[i]);
    (void)o->api.primitive_attr_destroy(o->attr);
    (void)o->api.engine_destroy(o->engine);
    free(o->worker);
    free(o);
}

const char *onednn_name(const struct onednn *o)
{
    return o->name;
}

static enum epa_status run_primitive(const struct onednn *o, const struct worker *w,
                                     const struct primitive *p, void *const data[SCRATCH],
                                     dnnl_memory_t bias)
{
    static const int name[MEMORIES] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                       DNNL_ARG_SCRATCHPAD};
    dnnl_exec_arg_t arg[MEMORIES + 1];
    dnnl_status_t status = dnnl_success;
    int n = 0;

    for (uint32_t i = 0; i < MEMORIES && status == dnnl_success; i++) {
        if (p->memory[i] == NULL)
            continue;
        arg[n++] = (dnnl_exec_arg_t){name[i], p->memory[i]};
        if (i < SCRATCH)
            status = o->api.memory_set_data_handle(p->memory[i], data[i]);
    }
    if (bias != NULL)
        arg[n++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, bias};
    if (o->api.omp_set_num_threads != NULL)
        o->api.omp_set_num_threads(1); /* for this thread */
    if (status == dnnl_success)
        status = o->api.primitive_execute(p->primitive, w->stream, n, arg);
    if (status == dnnl_success)
        status = o->api.stream_wait(w->stream);
    return status == dnnl_success ? EPA_OK : EPA_ERR_SYSTEM;
}

size_t onednn_packed_bytes(const struct onednn *o, uint32_t product)
{
    desc_ref packed;

    return o->api.memory_get_memory_desc(o->worker[0].reorder[product].memory[DST], &packed) ==
                   dnnl_success
               ? o->api.memory_desc_get_size(packed)
               : 0;
}

enum epa_status onednn_pack(struct onednn *o, uint32_t worker, uint32_t product, const void *b,
                            void *out)
{
    const struct worker *mine = &o->worker[worker];

    return run_primitive(o, mine, &mine->reorder[product],
                         (void *[SCRATCH]){[SRC] = (void *)(uintptr_t)b, [DST] = out}, NULL);
}

enum epa_status onednn_multiply(struct onednn *o, uint32_t worker, uint32_t product, const void *a,
                                uint32_t m, const void *packed, void *c)
{
    struct worker *mine = &o->worker[worker];
    uint32_t step = o->product[product].step, steps = (m + step - 1) / step;
    struct primitive *p = &mine->matmul[product][steps % KEPT];

    if (m == 0)
        return EPA_OK;
    if (p->rows != steps * step && make_matmul(o, mine, product, steps * step, p) != dnnl_success)
        return EPA_ERR_SYSTEM;
    return run_primitive(o, mine, p,
                         (void *[SCRATCH]){(void *)(uintptr_t)a, (void *)(uintptr_t)packed, c},
                         o->bias[product]);
}
#else
bool onednn_knows(const struct onednn_product *product)
{
    (void)product;
    return false;
}

enum epa_status onednn_create(const struct onednn_product *product, uint32_t products,
                              uint32_t workers, struct onednn **out, struct epa_error *err)
{
    (void)product, (void)products, (void)workers, (void)out;
    return epa_fail(err, EPA_ERR_UNSUPPORTED,
                    "library: onednn: epa2a was built without oneDNN (Debian: libdnnl-dev)");
}

void onednn_destroy(struct onednn *o)
{
    (void)o;
}

const char *onednn_name(const struct onednn *o)
{
    (void)o;
    return "oneDNN";
}

size_t onednn_packed_bytes(const struct onednn *o, uint32_t product)
{
    (void)o, (void)product;
    return 0;
}

enum epa_status onednn_pack(struct onednn *o, uint32_t worker, uint32_t product, const void *b,
                            void *out)
{
    (void)o, (void)worker, (void)product, (void)b, (void)out;
    return EPA_ERR_UNSUPPORTED;
}

enum epa_status onednn_multiply(struct onednn *o, uint32_t worker, uint32_t product, const void *a,
                                uint32_t m, const void *packed, void *c)
{
    (void)o, (void)worker, (void)product, (void)a, (void)m, (void)packed, (void)c;
    return EPA_ERR_UNSUPPORTED;
}
#endif

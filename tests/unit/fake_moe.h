/* A dispatch and combine in plain C, for tests of op_moe: all ranks of a small world in one
 * process, their rows copied from one to another by looking, in both layouts; and a device
 * whose memory the host cannot follow, which counts what is copied. */
#ifndef FAKE_MOE_H
#define FAKE_MOE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "config/experiment.h"
#include "op/moe/moe.h"

#ifndef FAKE_HIDDEN /* a test may want wider tokens */
#define FAKE_HIDDEN 64
#define FAKE_GROUP 32
#endif
enum { RANKS = 3, TOKENS = 6, EXPERTS = 6, TOPK = 3, SLOTS = 2 };
enum { HIDDEN = FAKE_HIDDEN, GROUP = FAKE_GROUP };
enum { LOCAL = EXPERTS / RANKS, ROWS = LOCAL * RANKS * TOKENS };

/* A message, as algorithms send it: parts of one row beside each other. */
struct message {
    struct epa_origin origin;
    uint32_t unused[2];
    uint16_t data[HIDDEN]; /* bf16, or bytes */
    float scale[HIDDEN / GROUP];
};

/* What one rank received in one slot, and the expert outputs. */
struct received {
    uint32_t count[LOCAL];
    uint64_t start[LOCAL];
    uint32_t row[ROWS];
    float weight[ROWS];
    struct message message[ROWS];
    uint16_t y[ROWS][HIDDEN];
    float scale[ROWS][HIDDEN / GROUP]; /* where `apart`, and so is the next */
    struct epa_origin origin[ROWS];
};

/* How a combine adds up. */
enum fake_way {
    RIGHT,
    BACKWARDS,         /* the last term first */
    EXPERTS_ASCENDING, /* within a rank, not k */
    ONE_STEP,          /* as if no sum were by rank */
    PART_NOT_ROUNDED,  /* a rank's answer stays float32 */
    NOT_QUANTISED,
    EACH_QUANTISED, /* experts' expert outputs, not that of their rank */
    SCALE_BIT,      /* of an expert output that is quantised; so the next */
    CODE_BIT,
};

enum fake_rows {
    FAKE_AS_EVER, /* layout expert: evenly spaced; layout rank: one after the other */
    FAKE_COMPACT, /* layout expert: one expert after the other; there is room for more */
    FAKE_HOLES,   /* layout rank: row = source * TOKENS + token, entries evenly spaced */
};

struct fake {
    enum fake_rows rows;
    bool apart; /* scales and origins in arrays of their own */
    struct {
        uint64_t allocs, reads, read_bytes, writes, write_bytes;
        bool fail;
    } device;
    struct experiment x;
    struct epa_footprint footprint;
    struct epa_backend backend;
    struct op_rank *op[RANKS];
    struct epa_moe *moe[RANKS][SLOTS];
    struct received *received[RANKS][SLOTS];
};

/* A pointer of the device that no one here can follow, unless the backend is the host. */
static inline void *fake_there(const struct fake *f, void *here)
{
    uintptr_t hide = f->backend.memory == EPA_MEMORY_HOST ? 0 : (uintptr_t)1 << 62;

    return here == NULL ? NULL : (void *)((uintptr_t)here ^ hide);
}

static inline void *fake_here(const struct fake *f, const void *there)
{
    return fake_there(f, (void *)(uintptr_t)there);
}

static inline void *fake_hide(struct epa_backend *b, const void *p)
{
    uintptr_t hide = b->memory == EPA_MEMORY_HOST ? 0 : (uintptr_t)1 << 62;

    return (void *)((uintptr_t)p ^ hide);
}

static inline struct fake *fake_of_backend(struct epa_backend *b)
{
    return (struct fake *)(void *)((char *)b - offsetof(struct fake, backend));
}

static inline enum epa_status fake_alloc(struct epa_backend *b, size_t bytes, void **out)
{
    fake_of_backend(b)->device.allocs++;
    *out = fake_hide(b, malloc(bytes));
    return EPA_OK;
}

static inline void fake_free(struct epa_backend *b, void *p)
{
    free(fake_hide(b, p));
}

static inline void fake_explain(struct epa_backend *b, struct epa_error *err)
{
    (void)b;
    epa_fail(err, EPA_ERR_SYSTEM, "fake: the device is gone");
}

static inline enum epa_status fake_write(struct epa_backend *b, void *to, const void *host,
                                         size_t bytes)
{
    struct fake *f = fake_of_backend(b);

    if (f->device.fail)
        return EPA_ERR_SYSTEM;
    f->device.writes++;
    f->device.write_bytes += bytes;
    memcpy(fake_hide(b, to), host, bytes);
    return EPA_OK;
}

static inline enum epa_status fake_read(struct epa_backend *b, void *host, const void *from,
                                        size_t bytes)
{
    struct fake *f = fake_of_backend(b);

    if (f->device.fail)
        return EPA_ERR_SYSTEM;
    f->device.reads++;
    f->device.read_bytes += bytes;
    memcpy(host, fake_hide(b, from), bytes);
    return EPA_OK;
}

static inline enum epa_status fake_fill(struct epa_backend *b, void *to, int byte, size_t bytes)
{
    memset(fake_hide(b, to), byte, bytes);
    return EPA_OK;
}

/* Two workers, one after the other. */
static inline enum epa_status
fake_parallel(struct epa_backend *b, void (*fn)(void *arg, uint32_t worker, uint32_t workers),
              void *arg)
{
    (void)b;
    for (uint32_t i = 0; i < 2; i++)
        fn(arg, i, 2);
    return EPA_OK;
}

static const struct epa_backend_ops fake_ops = {
    .alloc = fake_alloc,
    .free = fake_free,
    .write = fake_write,
    .read = fake_read,
    .fill = fake_fill,
    .parallel = fake_parallel,
    .explain = fake_explain,
};

/* Defaults for a test to change before fake_open(). */
static inline struct fake fake_of(enum epa_layout layout, enum epa_dtype wire)
{
    return (struct fake){
        .x = {.ranks = RANKS,
              .seed = 5,
              .moe = {.max_tokens = TOKENS,
                      .hidden = HIDDEN,
                      .experts = EXPERTS,
                      .topk = TOPK,
                      .fp8_group_size = GROUP,
                      .dtype = EPA_BF16},
              .routing = {.kind = ROUTING_UNIFORM, .layer = UINT32_MAX}},
        .footprint = {.u.moe.recv_rows = ROWS,
                      .u.moe.recv_entries = ROWS,
                      .u.moe.layout = layout,
                      .u.moe.recv_dtype = wire,
                      .u.moe.sum = EPA_SUM_ORDERED,
                      .u.moe.output_dtype = EPA_BF16,
                      .in_flight = 2,
                      .u.moe.dispatch_row_bytes = sizeof(struct message),
                      .u.moe.dispatch_token_bytes = wire == EPA_BF16 ? 2 * HIDDEN : HIDDEN,
                      .u.moe.combine_row_bytes = 2 * HIDDEN + 16,
                      .u.moe.combine_token_bytes = 2 * HIDDEN,
                      .u.moe.control_bytes = 100},
        .backend = {.ops = &fake_ops, .memory = EPA_MEMORY_HOST, .device = -1},
    };
}

/* The same in f16: what is bf16 becomes that. */
static inline void fake_to_f16(struct fake *f)
{
    f->x.moe.dtype = EPA_F16;
    if (f->footprint.u.moe.recv_dtype == EPA_BF16)
        f->footprint.u.moe.recv_dtype = EPA_F16;
    if (f->footprint.u.moe.output_dtype == EPA_BF16)
        f->footprint.u.moe.output_dtype = EPA_F16;
}

static inline enum epa_status fake_open(struct fake *f, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t r = 0; r < RANKS && status == EPA_OK; r++) {
        struct epa_world world = {.rank = r, .size = RANKS};

        status = op_moe.create(
            &(struct op_params){&f->x, &world, &f->footprint, NULL, &f->backend, SLOTS, false},
            &f->op[r], err);
        for (uint32_t s = 0; s < SLOTS; s++)
            f->received[r][s] = calloc(1, sizeof(struct received));
    }
    return status;
}

static inline void fake_close(struct fake *f)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        op_moe_destroy(f->op[r]);
        for (uint32_t s = 0; s < SLOTS; s++)
            free(f->received[r][s]);
    }
}

static inline void fake_inputs(struct fake *f, uint32_t slot, uint64_t iteration)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(op_moe_inputs(f->op[r], slot, iteration), EPA_OK);
        f->moe[r][slot] = &op_moe_problem(f->op[r], slot)->u.moe;
    }
}

static inline void fake_pack(const struct fake *f, const struct epa_moe *from, uint32_t rank,
                             uint32_t token, struct message *to)
{
    const uint16_t *x = fake_here(f, from->x);
    const uint8_t *q = fake_here(f, from->x_fp8);
    const float *scale = fake_here(f, from->x_scale);

    to->origin = (struct epa_origin){.rank = rank, .token = token};
    if (q != NULL) {
        memcpy(to->data, q + (size_t)token * HIDDEN, HIDDEN);
        memcpy(to->scale, scale + (size_t)token * (HIDDEN / GROUP), sizeof(to->scale));
    } else if (f->footprint.u.moe.recv_dtype != EPA_FP8_E4M3) {
        memcpy(to->data, x + (size_t)token * HIDDEN, sizeof(to->data));
    } else {
        for (uint32_t g = 0; g < HIDDEN / GROUP; g++)
            to->scale[g] =
                e4m3_group_of(f->x.moe.dtype == EPA_F16, x + (size_t)token * HIDDEN + g * GROUP,
                              GROUP, (uint8_t *)to->data + g * GROUP);
    }
}

/* Where a token's choice k is among the entries of its expert; UINT64_MAX: dropped. */
static inline uint64_t fake_entry(const struct fake *f, uint32_t slot, uint32_t rank,
                                  uint32_t token, uint32_t k, uint32_t *owner)
{
    const int32_t *expert = fake_here(f, f->moe[rank][slot]->expert);
    int32_t e = expert[token * TOPK + k];
    const struct received *got;

    if (e < 0)
        return UINT64_MAX;
    *owner = (uint32_t)e / LOCAL;
    got = f->received[*owner][slot];
    for (uint64_t i = got->start[e % LOCAL];; i++) {
        uint64_t row = f->footprint.u.moe.layout == EPA_LAYOUT_RANK ? got->row[i] : i;

        if (got->message[row].origin.rank == rank && got->message[row].origin.token == token)
            return i;
    }
}

/* Nothing is where nothing arrived: bytes that look like no row, no origin, no expert output. */
static inline void fake_forget(struct received *got)
{
    memset(got, 0xa5, sizeof(*got));
    memset(got->count, 0, sizeof(got->count));
}

static inline void fake_views(struct fake *f, uint32_t slot, uint32_t me, uint32_t rows,
                              uint32_t entries)
{
    struct received *got = f->received[me][slot];
    struct epa_moe *m = f->moe[me][slot];
    bool by_rank = f->footprint.u.moe.layout == EPA_LAYOUT_RANK;

    m->recv_rows = !by_rank ? ROWS : f->rows == FAKE_HOLES ? RANKS * TOKENS : rows;
    m->recv_entries = by_rank && f->rows != FAKE_HOLES ? entries : ROWS;
    m->recv_count = fake_there(f, got->count);
    m->recv_start = fake_there(f, got->start);
    m->recv_row = by_rank ? fake_there(f, got->row) : NULL;
    m->recv_weight = by_rank ? fake_there(f, got->weight) : NULL;
    m->recv = fake_there(f, got->message[0].data);
    m->recv_scale = fake_there(f, got->message[0].scale);
    m->origin = fake_there(f, &got->message[0].origin);
    m->recv_stride = m->scale_stride = m->origin_stride = sizeof(struct message);
    m->y_space = fake_there(f, got->y);
    if (!f->apart)
        return;
    for (uint32_t i = 0; i < ROWS; i++) {
        memcpy(got->scale[i], got->message[i].scale, sizeof(got->scale[i]));
        got->origin[i] = got->message[i].origin;
    }
    m->recv_scale = fake_there(f, got->scale);
    m->origin = fake_there(f, got->origin);
    m->scale_stride = sizeof(got->scale[0]);
    m->origin_stride = sizeof(got->origin[0]);
}

static inline void fake_receive(struct fake *f, uint32_t slot, uint32_t me)
{
    struct received *got = f->received[me][slot];
    bool by_rank = f->footprint.u.moe.layout == EPA_LAYOUT_RANK;
    bool compact = f->rows == FAKE_COMPACT || (by_rank && f->rows != FAKE_HOLES);
    uint32_t row_of[RANKS][TOKENS], rows = 0, entries = 0;

    memset(row_of, 0xff, sizeof(row_of));
    fake_forget(got);
    for (uint32_t e = 0; e < LOCAL; e++) {
        got->start[e] = compact ? entries : (uint64_t)e * RANKS * TOKENS;
        for (uint32_t r = 0; r < RANKS; r++) {
            const struct epa_moe *from = f->moe[r][slot];
            const int32_t *expert = fake_here(f, from->expert);
            const float *weight = fake_here(f, from->weight);

            for (uint32_t i = 0; i < from->tokens * TOPK; i++) {
                uint64_t entry = got->start[e] + got->count[e], row = entry;

                if (expert[i] != (int32_t)(me * LOCAL + e))
                    continue;
                if (by_rank && row_of[r][i / TOPK] == UINT32_MAX)
                    row_of[r][i / TOPK] = f->rows == FAKE_HOLES ? r * TOKENS + i / TOPK : rows++;
                if (by_rank)
                    row = row_of[r][i / TOPK];
                got->row[entry] = (uint32_t)row;
                got->weight[entry] = weight[i];
                fake_pack(f, from, r, i / TOPK, &got->message[row]);
                got->count[e]++;
                entries++;
            }
        }
    }
    fake_views(f, slot, me, rows, entries);
}

static inline void fake_dispatch(struct fake *f, uint32_t slot)
{
    for (uint32_t r = 0; r < RANKS; r++)
        fake_receive(f, slot, r);
}

static inline enum epa_status fake_experts(struct fake *f, uint32_t slot, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t r = 0; r < RANKS && status == EPA_OK; r++)
        status = op_moe_experts(f->op[r], slot, err);
    return status;
}

/* The answers to a token in the order in which they are added. */
struct fake_term {
    uint32_t owner, expert;
    float weight;
    const uint16_t *y;
};

struct fake_terms {
    uint32_t n;
    struct fake_term at[TOPK];
};

static inline void fake_sort(struct fake_terms *t, enum fake_way way)
{
    struct fake_term was;

    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t j = i + 1; j < t->n; j++)
            if (way == BACKWARDS || t->at[j].expert < t->at[i].expert) {
                was = t->at[i];
                t->at[i] = t->at[j];
                t->at[j] = was;
            }
}

/* Ascending k; ascending ranks, once each, in layout rank. */
static inline struct fake_terms fake_find(const struct fake *f, uint32_t slot, uint32_t rank,
                                          uint32_t token, enum fake_way way)
{
    const float *weight = fake_here(f, f->moe[rank][slot]->weight);
    const int32_t *expert = fake_here(f, f->moe[rank][slot]->expert);
    bool by_rank = f->footprint.u.moe.layout == EPA_LAYOUT_RANK;
    struct fake_terms t = {0};

    for (uint32_t r = 0; r < (by_rank ? RANKS : 1); r++)
        for (uint32_t k = 0; k < TOPK; k++) {
            uint32_t owner = 0;
            uint64_t entry = fake_entry(f, slot, rank, token, k, &owner);
            const uint16_t *y;

            if (entry == UINT64_MAX || (by_rank && owner != r))
                continue;
            y = fake_here(f, f->moe[owner][slot]->y);
            if (by_rank)
                entry = f->received[owner][slot]->row[entry];
            t.at[t.n++] = (struct fake_term){.owner = owner,
                                             .expert = (uint32_t)expert[token * TOPK + k],
                                             .weight = by_rank ? 1 : weight[token * TOPK + k],
                                             .y = y + entry * HIDDEN};
            if (by_rank)
                break;
        }
    if (way == BACKWARDS || way == EXPERTS_ASCENDING)
        fake_sort(&t, way);
    return t;
}

/* What an expert output in dtype counts as. */
static inline void fake_arrive(const struct fake *f, const uint16_t *y, enum fake_way way,
                               float *out)
{
    bool fp8 = f->footprint.u.moe.output_dtype == EPA_FP8_E4M3 && way != NOT_QUANTISED;
    uint8_t q[GROUP];

    for (uint32_t g = 0; g < HIDDEN; g += GROUP) {
        float scale = e4m3_group_of(f->x.moe.dtype == EPA_F16, y + g, GROUP, q);

        if (way == SCALE_BIT && g != 0)
            scale = float_of_bits(bits_of_float(scale) ^ 1u << 18);
        if (way == CODE_BIT && g != 0)
            q[GROUP - 1] ^= 1;
        for (uint32_t i = 0; i < GROUP; i++)
            out[g + i] = fp8 ? float_of_e4m3(q[i]) * scale
                             : float_of_word(f->x.moe.dtype == EPA_F16, y[g + i]);
    }
}

static inline void fake_add(float weight, const float *v, float *acc)
{
    for (uint32_t h = 0; h < HIDDEN; h++)
        acc[h] = fmaf(weight, v[h], acc[h]);
}

/* Sums by rank: the answer of one rank, where it arrives; false: it has none. */
static inline bool fake_part(const struct fake *f, const struct fake_terms *t, uint32_t rank,
                             enum fake_way way, float *out)
{
    float part[HIDDEN] = {0}, v[HIDDEN];
    uint16_t sent[HIDDEN];
    bool any = false;

    for (uint32_t i = 0; i < t->n; i++) {
        if (t->at[i].owner != rank)
            continue;
        fake_arrive(f, t->at[i].y, way == EACH_QUANTISED ? way : NOT_QUANTISED, v);
        fake_add(t->at[i].weight, v, part);
        any = true;
    }
    for (uint32_t h = 0; h < HIDDEN; h++)
        sent[h] = word_of_float(f->x.moe.dtype == EPA_F16, part[h]);
    fake_arrive(f, sent, way == EACH_QUANTISED ? NOT_QUANTISED : way, out);
    if (way == PART_NOT_ROUNDED)
        memcpy(out, part, sizeof(part));
    return any;
}

static inline void fake_reduce(struct fake *f, uint32_t slot, uint32_t rank, uint32_t token,
                               enum fake_way way)
{
    struct fake_terms t = fake_find(f, slot, rank, token, way);
    uint16_t *out = (uint16_t *)fake_here(f, f->moe[rank][slot]->out) + (size_t)token * HIDDEN;
    bool two_steps = f->footprint.u.moe.layout == EPA_LAYOUT_EXPERT &&
                     f->footprint.u.moe.sum == EPA_SUM_BY_RANK && way != ONE_STEP;
    float acc[HIDDEN] = {0}, v[HIDDEN];

    for (uint32_t i = 0; i < (two_steps ? RANKS : t.n); i++) {
        if (!two_steps) {
            fake_arrive(f, t.at[i].y, way, v);
            fake_add(t.at[i].weight, v, acc);
        } else if (fake_part(f, &t, way == BACKWARDS ? RANKS - 1 - i : i, way, v)) {
            fake_add(1, v, acc);
        }
    }
    for (uint32_t h = 0; h < HIDDEN; h++)
        out[h] = word_of_float(f->x.moe.dtype == EPA_F16, acc[h]);
}

static inline void fake_combine(struct fake *f, uint32_t slot, enum fake_way way)
{
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t t = 0; t < f->moe[r][slot]->tokens; t++)
            fake_reduce(f, slot, r, t, way);
}

#endif

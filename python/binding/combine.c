/* Combine: reads the expert outputs and the weights, creates the sums, and makes the call. */
#include "calls.h"

/* Arguments of calls_combine(). */
enum combine_argument {
    C_FUNCTION,
    C_MOE,
    C_RECEIVED,
    C_Y,
    C_TOPK_WEIGHTS,
    C_TOPK_IDX,
    C_OUT,
    C_STREAM,
    C_ARGUMENTS
};

/* Reads the arrays except `out`, and packs the struct. y may be None, and is then received.y. */
static enum form read_outputs(const struct calls *c, const struct received *r, PyObject *y,
                              PyObject *const *args, struct epa2a_outputs *out)
{
    const Py_ssize_t choices[] = {(Py_ssize_t)r->tokens, c->topk};
    const Py_ssize_t weights_shape[] = {c->weight_rows != 0 ? c->weight_rows : choices[0], c->topk};
    struct array rows = {0}, idx = {0}, weights = {0};
    enum form form = USUAL;

    if (y != NULL)
        form = array_read(&c->argument[Y], y, c->device, &rows);
    if (form != USUAL)
        return form;
    if (y != NULL && (rows.n == 2 ? memcmp(rows.length, c->flat_shape, sizeof(c->flat_shape)) != 0
                                  : rows.n != c->y_n ||
                                        memcmp(rows.length, c->y_shape, sizeof(c->y_shape)) != 0))
        return OTHER;
    form = array_read_shaped(&c->argument[TOPK_WEIGHTS], args[C_TOPK_WEIGHTS], c->device, 2,
                             weights_shape, &weights);
    if (form == USUAL)
        form = array_read_shaped(&c->argument[TOPK_IDX], args[C_TOPK_IDX], c->device, 2, choices,
                                 &idx);
    *out = (struct epa2a_outputs){.size = sizeof(*out),
                                  .y = rows.address,
                                  .topk_idx = idx.address,
                                  .topk_idx_bytes = (int32_t)idx.bytes,
                                  .topk_weight = weights.address};
    return form;
}

/* Creates a tensor for sums. The function that does so is kept for the next call with as many tokens. */
static PyObject *new_out(struct calls *c, const struct received *r)
{
    if (r->framework != array_framework(true))
        return PyObject_CallMethod(r->moe, "_new_out", "O", r);
    if (c->out_maker == NULL || c->out_tokens != r->tokens) {
        Py_XDECREF(c->out_maker);
        c->out_maker = PyObject_CallMethod(r->moe, "_out_maker", "I", r->tokens);
        c->out_tokens = r->tokens;
    }
    return c->out_maker != NULL ? PyObject_CallNoArgs(c->out_maker) : NULL;
}

/* Reads `out`, or creates it. *result is a new reference. */
static enum form read_out(struct calls *c, const struct received *r, PyObject *given,
                          struct epa2a_outputs *outputs, PyObject **result)
{
    const Py_ssize_t shape[] = {(Py_ssize_t)r->tokens, c->hidden};
    struct array out;
    enum form form;

    *result = given != Py_None ? Py_NewRef(given) : new_out(c, r);
    if (*result == NULL)
        return ERROR;
    form = array_read_shaped(&c->argument[OUT], *result, c->device, 2, shape, &out);
    outputs->out = out.address;
    if (form != USUAL)
        Py_CLEAR(*result);
    return form;
}

PyObject *calls_combine(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    struct calls *c = (struct calls *)self;
    struct received *r = n == C_ARGUMENTS ? (struct received *)args[C_RECEIVED] : NULL;
    struct call call = {.moe = c->handle};
    PyObject *y, *out;
    enum form form;
    long function;

    if (r == NULL || (function = call_function(args[C_FUNCTION], COMBINE)) < 0)
        return PyErr_Format(PyExc_TypeError, "combine: wrong arguments");
    if (Py_TYPE(r) != c->received || r->moe != args[C_MOE] || is_set(r->half) ||
        (args[C_Y] == Py_None && !is_set(r->y)))
        Py_RETURN_NONE;
    y = args[C_Y] != Py_None ? args[C_Y] : r->views ? NULL : r->y;
    memcpy(&call.combine, &c->function[function], sizeof(call.combine));
    call.rows = &r->rows;
    form = read_outputs(c, r, y, args, &call.outputs);
    if (form == USUAL)
        form = read_out(c, r, args[C_OUT], &call.outputs, &out);
    if (form == OTHER)
        Py_RETURN_NONE;
    if (form == ERROR)
        return NULL;
    if (!call_read_stream(c, args[C_STREAM], r->framework, &call.stream) || !call_make(c, &call))
        Py_CLEAR(out);
    return out;
}

/* Dispatch: reads the tokens, prepares the outputs, and makes the call. */
#include "calls.h"

/* Arguments of calls_dispatch(). */
enum dispatch_argument {
    D_FUNCTION,
    D_MOE,
    D_X,
    D_TOPK_IDX,
    D_TOPK_WEIGHTS,
    D_X_SCALE,
    D_FORM, /* recv, pow2_scales, ue8m0, scales_by_group, sources, keep_routes */
    D_INTO = D_FORM + FORM,
    D_VIEWS,
    D_HOST_COUNTS,
    D_SEEN,
    D_STREAM,
    D_ARGUMENTS
};
/* Reads the tokens and packs the struct. *torch: x is a tensor. */
static enum form read_tokens(const struct calls *c, PyObject *const *args, struct epa2a_tokens *out,
                             bool *torch)
{
    const Py_ssize_t local[] = {c->local};
    struct array x = {0}, idx = {0}, weights = {0}, seen = {0};
    enum form form = array_read(&c->argument[X], args[D_X], c->device, &x);
    Py_ssize_t choices[2];

    if (form != USUAL)
        return form;
    if (x.n != 2 || x.length[1] != c->hidden || x.length[0] > UINT32_MAX)
        return OTHER;
    choices[0] = x.length[0];
    choices[1] = c->topk;
    form = array_read_shaped(&c->argument[TOPK_IDX], args[D_TOPK_IDX], c->device, 2, choices, &idx);
    if (form == USUAL)
        form = array_read_shaped(&c->argument[TOPK_WEIGHTS], args[D_TOPK_WEIGHTS], c->device, 2,
                                 choices, &weights);
    if (form == USUAL)
        form = array_read_shaped(&c->argument[SEEN], args[D_SEEN], c->device, 1, local, &seen);
    if (form != USUAL)
        return form;
    *out = (struct epa2a_tokens){.size = sizeof(*out),
                                 .tokens = (uint32_t)x.length[0],
                                 .flags = c->plan.flags,
                                 .x = x.address,
                                 .topk_idx = idx.address,
                                 .topk_idx_bytes = (int32_t)idx.bytes,
                                 .topk_weight = weights.address,
                                 .seen = seen.address};
    *torch = x.is_tensor;
    return USUAL;
}

/* Reads a plan that moe.py has made. */
static bool read_plan(PyObject *outputs, PyObject *const *form, struct plan *out)
{
    PyObject *flags = PyObject_GetAttrString(outputs, "flags");
    PyObject *owns = PyObject_GetAttrString(outputs, "owns");

    if (flags != NULL && owns != NULL) {
        out->flags = (uint32_t)PyLong_AsUnsignedLong(flags);
        out->owns = owns == Py_True;
        for (int i = 0; i < FORM; i++)
            out->form[i] = Py_NewRef(form[i]);
        out->outputs = Py_NewRef(outputs);
    }
    Py_XDECREF(flags);
    Py_XDECREF(owns);
    return PyErr_Occurred() == NULL;
}

/* Finds the plan of the outputs. OTHER: it is not in use yet. */
static enum form find_plan(struct calls *c, PyObject *const *given)
{
    PyObject *key, *outputs, *form[FORM];

    memcpy(form, given, sizeof(form));
    if (form[SOURCES] == Py_None)
        form[SOURCES] = c->device < 0 ? Py_True : Py_False;
    if (c->plan.outputs != NULL && memcmp(c->plan.form, form, sizeof(c->plan.form)) == 0)
        return USUAL;
    key = PyTuple_New(FORM);
    if (key == NULL)
        return ERROR;
    for (Py_ssize_t i = 0; i < FORM; i++)
        PyTuple_SetItem(key, i, Py_NewRef(form[i]));
    outputs = PyDict_GetItemWithError(c->plans, key);
    Py_XINCREF(outputs);
    Py_DECREF(key);
    if (PyErr_Occurred() != NULL) /* an argument that cannot be a key */
        PyErr_Clear();
    if (outputs == NULL)
        return OTHER;
    plan_clear(&c->plan);
    if (!read_plan(outputs, form, &c->plan)) {
        Py_DECREF(outputs);
        return ERROR;
    }
    Py_DECREF(outputs);
    return USUAL;
}

/* Lets the rows refer to the memory of `into`, rows of a complete dispatch with the same plan, whose
 * pointers were checked. Routes would be of the earlier dispatch. */
static bool reuse_rows(const struct calls *c, struct received *r, PyObject *into)
{
    const struct received *from = (const struct received *)into;

    if (Py_TYPE(into) != c->received || from->moe != r->moe || from->plan != r->plan ||
        from->views || is_set(from->half) || from->rows.routing != NULL)
        return false;
    r->rows = from->rows;
    r->rows.host_count = NULL;
    r->block = Py_XNewRef(from->block);
    r->arrays = Py_XNewRef(from->arrays);
    r->y = Py_XNewRef(from->y);
    return true;
}

/* Stores an address in a field of the struct. */
static void set_field(struct received *r, PyObject *offset, void *address)
{
    size_t at = PyLong_AsSize_t(offset);

    if (at <= sizeof(r->rows) - sizeof(address))
        memcpy((char *)&r->rows + at, &address, sizeof(address));
}

/* Creates the tensors of the outputs: a block, with the places of its parts, and tensors that most
 * callers use, since a part of a block takes longer than a tensor. */
static bool allocate_tensors(struct calls *c, struct received *r)
{
    PyObject *list, *item;
    char *block;

    if (c->plan.places == NULL)
        c->plan.places = PyObject_CallMethod(c->plan.outputs, "tensors", "O", c->device_number);
    if (c->plan.places == NULL)
        return false;
    r->block = PyObject_CallNoArgs(PyTuple_GetItem(c->plan.places, 0));
    block = r->block != NULL ? array_address(r->block) : NULL;
    list = PyTuple_GetItem(c->plan.places, 1); /* (field, offset in the block) */
    for (Py_ssize_t i = 0; PyErr_Occurred() == NULL && i < PyTuple_Size(list); i++) {
        item = PyTuple_GetItem(list, i);
        set_field(r, PyTuple_GetItem(item, 0), block + PyLong_AsSize_t(PyTuple_GetItem(item, 1)));
    }
    list = PyTuple_GetItem(c->plan.places, 2); /* (field, name, function that creates the tensor) */
    for (Py_ssize_t i = 0; PyErr_Occurred() == NULL && i < PyTuple_Size(list); i++) {
        PyObject *tensor;

        item = PyTuple_GetItem(list, i);
        tensor = PyObject_CallNoArgs(PyTuple_GetItem(item, 2));
        if (tensor != NULL && PyDict_SetItem(r->arrays, PyTuple_GetItem(item, 1), tensor) == 0)
            set_field(r, PyTuple_GetItem(item, 0), array_address(tensor));
        Py_XDECREF(tensor);
    }
    return PyErr_Occurred() == NULL;
}

/* Sets the pointers of the outputs. */
static bool prepare_outputs(struct calls *c, struct received *r, PyObject *into, bool torch)
{
    PyObject *done;

    if (!r->views && reuse_rows(c, r, into))
        return true;
    r->arrays = PyDict_New();
    if (r->arrays == NULL)
        return false;
    if (r->views && !c->plan.owns)
        return true;
    if (!r->views && torch && into == Py_None)
        return allocate_tensors(c, r);
    done = r->views ? PyObject_CallMethod(r->moe, "_allocate_own", "O", r)
                    : PyObject_CallMethod(r->moe, "_receive", "OO", r, into);
    Py_XDECREF(done);
    return done != NULL;
}

/* Keeps the inputs until the rows are freed, since kernels may read them until then. */
static bool keep_inputs(const struct calls *c, struct received *r, PyObject *const *args)
{
    if (c->device < 0)
        return true;
    r->keep = PyTuple_Pack(4, args[D_X], args[D_TOPK_IDX], args[D_TOPK_WEIGHTS], args[D_SEEN]);
    return r->keep != NULL;
}

/* Makes a dispatch with checked tokens. Returns its rows. */
static PyObject *dispatch_tokens(struct calls *c, PyObject *const *args, struct call *call,
                                 bool torch)
{
    struct received *r = received_create(c->received);

    if (r == NULL)
        return NULL;
    r->moe = Py_NewRef(args[D_MOE]);
    r->framework = Py_NewRef(array_framework(torch));
    r->plan = Py_NewRef(c->plan.outputs);
    r->tokens = call->tokens.tokens;
    r->views = args[D_VIEWS] == Py_True;
    call->rows = &r->rows;
    if (!prepare_outputs(c, r, args[D_INTO], torch) || !keep_inputs(c, r, args) ||
        !call_read_stream(c, args[D_STREAM], r->framework, &call->stream) || !call_make(c, call))
        Py_CLEAR(r);
    return (PyObject *)r;
}

PyObject *calls_dispatch(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    struct calls *c = (struct calls *)self;
    struct call call = {.moe = c->handle};
    enum form form;
    long function;
    bool torch = false;

    if (n != D_ARGUMENTS || (function = call_function(args[D_FUNCTION], DISPATCH)) < 0)
        return PyErr_Format(PyExc_TypeError, "dispatch: wrong arguments");
    if (args[D_X_SCALE] != Py_None || args[D_TOPK_IDX] == Py_None ||
        args[D_HOST_COUNTS] != Py_False ||
        (args[D_VIEWS] != Py_False && (args[D_VIEWS] != Py_True || args[D_INTO] != Py_None)))
        Py_RETURN_NONE;
    form = find_plan(c, args + D_FORM);
    if (form == USUAL)
        form = read_tokens(c, args, &call.tokens, &torch);
    if (form == OTHER)
        Py_RETURN_NONE;
    if (form == ERROR)
        return NULL;
    memcpy(&call.dispatch, &c->function[function], sizeof(call.dispatch));
    return dispatch_tokens(c, args, &call, torch);
}

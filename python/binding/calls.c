/* Creation of Calls, and calls of libepa2a, whose functions are addresses that Python passes. */
#include "calls.h"

/* ---- calls ---- */

static int run(const struct call *call)
{
    PyThreadState *state = PyEval_SaveThread();
    int status = call->combine != NULL
                     ? call->combine(call->moe, call->rows, &call->outputs, call->stream)
                     : call->dispatch(call->moe, &call->tokens, call->rows, call->stream);

    PyEval_RestoreThread(state);
    return status;
}

/* The function for `guard`. `bytes` holds a struct call. */
static PyObject *run_bytes(PyObject *bytes, PyObject *unused)
{
    struct call call;

    (void)unused;
    memcpy(&call, PyBytes_AsString(bytes), sizeof(call));
    return PyLong_FromLong(run(&call));
}

static PyMethodDef run_definition = {"run", run_bytes, METH_NOARGS, NULL};

bool call_make(const struct calls *c, const struct call *call)
{
    PyObject *bytes, *function = NULL, *result = NULL;
    int status;

    if (c->guard == Py_None) {
        status = run(call);
        if (status >= 0)
            return true;
        result = PyObject_CallFunction(c->check, "i", status);
    } else {
        bytes = PyBytes_FromStringAndSize((const char *)call, sizeof(*call));
        if (bytes != NULL)
            function = PyCFunction_New(&run_definition, bytes);
        if (function != NULL)
            result = PyObject_CallFunctionObjArgs(c->guard, function, NULL);
        Py_XDECREF(function);
        Py_XDECREF(bytes);
    }
    Py_XDECREF(result);
    return result != NULL;
}

bool call_read_stream(const struct calls *c, PyObject *stream, PyObject *framework, void **out)
{
    PyObject *handle;

    *out = NULL;
    if (c->device < 0)
        return true;
    handle = stream == Py_None && framework == array_framework(true)
                 ? array_stream(c->device_number)
                 : Py_NewRef(Py_None);
    if (handle == Py_None) {
        Py_DECREF(handle);
        handle = PyObject_CallFunctionObjArgs(c->stream_handle, stream, framework, c->device_number,
                                              NULL);
    }
    if (handle != NULL && handle != Py_None) {
        *out = PyLong_AsVoidPtr(handle);
        if (*out == NULL) /* the default stream is cudaStreamLegacy */
            *out = (void *)1;
    }
    Py_XDECREF(handle);
    return PyErr_Occurred() == NULL;
}

long call_function(PyObject *number, enum function first)
{
    long function = PyLong_AsLong(number);

    return function == first || function == first + 1 ? function : -1;
}

void plan_clear(struct plan *plan)
{
    for (int i = 0; i < FORM; i++)
        Py_CLEAR(plan->form[i]);
    Py_CLEAR(plan->outputs);
    Py_CLEAR(plan->places);
}

/* ---- creation ---- */

/* Reads the addresses of the functions, the arguments and the shape of y. */
static bool read_lists(struct calls *c, PyObject *functions, PyObject *arguments, PyObject *shape)
{
    for (Py_ssize_t i = 0; i < FUNCTIONS; i++)
        c->function[i] = PyLong_AsVoidPtr(PyTuple_GetItem(functions, i));
    for (Py_ssize_t i = 0; i < ARGUMENTS; i++) {
        c->argument[i].sizes = Py_NewRef(PyTuple_GetItem(arguments, i));
        c->argument[i].writable = i == SEEN || i == OUT;
    }
    c->y_n = PyTuple_Size(shape);
    for (Py_ssize_t i = 0; i < c->y_n && i < MOST_DIMENSIONS; i++)
        c->y_shape[i] = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
    return PyErr_Occurred() == NULL;
}

static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"device", "handle",        "functions", "arguments",
                            "hidden", "topk",          "local",     "weight_rows",
                            "rows",   "y_shape",       "received",  "plans",
                            "check",  "stream_handle", "guard",     NULL};
    struct calls *c = (struct calls *)PyType_GenericAlloc(type, 0);
    PyObject *handle, *functions, *arguments, *shape;
    bool good;

    if (c == NULL)
        return NULL;
    good = PyArg_ParseTupleAndKeywords(
        args, keywords, "iOO!O!nnnnnO!OO!OOO", names, &c->device, &handle, &PyTuple_Type,
        &functions, &PyTuple_Type, &arguments, &c->hidden, &c->topk, &c->local, &c->weight_rows,
        &c->flat_shape[0], &PyTuple_Type, &shape, &c->received, &PyDict_Type, &c->plans, &c->check,
        &c->stream_handle, &c->guard);
    Py_XINCREF(c->received);
    Py_XINCREF(c->plans);
    Py_XINCREF(c->check);
    Py_XINCREF(c->stream_handle);
    Py_XINCREF(c->guard);
    if (!good) {
        Py_DECREF(c);
        return NULL;
    }
    c->handle = PyLong_AsVoidPtr(handle);
    c->flat_shape[1] = c->hidden;
    c->device_number = PyLong_FromLong(c->device);
    if (!read_lists(c, functions, arguments, shape))
        Py_CLEAR(c);
    return (PyObject *)c;
}

static void calls_free(PyObject *self)
{
    struct calls *c = (struct calls *)self;
    PyTypeObject *type = Py_TYPE(self);

    plan_clear(&c->plan);
    for (int i = 0; i < ARGUMENTS; i++)
        Py_XDECREF(c->argument[i].sizes);
    Py_XDECREF(c->received);
    Py_XDECREF(c->plans);
    Py_XDECREF(c->check);
    Py_XDECREF(c->stream_handle);
    Py_XDECREF(c->guard);
    Py_XDECREF(c->device_number);
    Py_XDECREF(c->out_maker);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef calls_methods[] = {
    {"dispatch", (PyCFunction)(void (*)(void))calls_dispatch, METH_FASTCALL, NULL},
    {"combine", (PyCFunction)(void (*)(void))calls_combine, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot calls_slots[] = {
    {Py_tp_new, calls_new},
    {Py_tp_dealloc, calls_free},
    {Py_tp_methods, calls_methods},
    {0, NULL},
};
PyType_Spec calls_spec = {
    .name = "epa2a._binding.Calls",
    .basicsize = sizeof(struct calls),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = calls_slots,
};

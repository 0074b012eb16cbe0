/* Class Calls: the calls of a moe. */
#ifndef BINDING_CALLS_H
#define BINDING_CALLS_H

#include "arrays.h"
#include "received.h"

enum argument_name { X, TOPK_IDX, TOPK_WEIGHTS, SEEN, Y, OUT, ARGUMENTS };

/* A function of libepa2a for each name in `calls` of moe.py. */
enum function { DISPATCH, DISPATCH_SEND, COMBINE, COMBINE_SEND, FUNCTIONS };

enum { FORM = 6, SOURCES = 4 }; /* arguments that select the outputs; the position of `sources` */

struct calls {
    PyObject_HEAD int device;
    void *handle;
    void *function[FUNCTIONS];
    struct argument argument[ARGUMENTS];
    Py_ssize_t hidden, topk, local, weight_rows; /* weight_rows: 0: the number of tokens */
    Py_ssize_t y_n, y_shape[MOST_DIMENSIONS], flat_shape[2];
    PyTypeObject *received;
    PyObject *plans, *check, *stream_handle; /* dict of moe.Plan; functions of Python */
    PyObject *guard; /* calls a function that waits for peers; None: the call queues work */
    PyObject *device_number;
    PyObject *out_maker; /* creates a tensor for the sums of out_tokens tokens; or NULL */
    unsigned out_tokens;
    struct plan {
        PyObject *form[FORM]; /* arguments that select the plan */
        PyObject *outputs;    /* moe.Plan; NULL: no dispatch so far */
        uint32_t flags;
        bool owns;        /* has outputs that are never views */
        PyObject *places; /* of new tensors: Plan.tensors(); NULL: unknown so far */
    } plan;               /* of the last dispatch */
};

extern PyType_Spec calls_spec;

/* Frees a plan. */
void plan_clear(struct plan *);

/* A call of libepa2a. */
struct call {
    int (*dispatch)(struct epa2a_moe *, const struct epa2a_tokens *, struct epa2a_received *,
                    void *);
    int (*combine)(struct epa2a_moe *, const struct epa2a_received *, const struct epa2a_outputs *,
                   void *); /* NULL: a dispatch */
    struct epa2a_moe *moe;
    struct epa2a_received *rows;
    void *stream;
    struct epa2a_tokens tokens;
    struct epa2a_outputs outputs;
};

/* Makes the call. Returns false with an exception of Python. */
bool call_make(const struct calls *, const struct call *);

/* Reads the stream: None is the current stream of the framework. Returns false with an exception of
 * Python. */
bool call_read_stream(const struct calls *, PyObject *stream, PyObject *framework, void **out);

/* Returns the number of a function: `first` or the next one; -1: an error. */
long call_function(PyObject *number, enum function first);

/* Methods of Calls. Both return None if the Python code has to make the call. */
PyObject *calls_dispatch(PyObject *calls, PyObject *const *args, Py_ssize_t n);
PyObject *calls_combine(PyObject *calls, PyObject *const *args, Py_ssize_t n);

#endif

/* Dense arrays of torch and NumPy. */
#ifndef BINDING_ARRAYS_H
#define BINDING_ARRAYS_H

#include "stable_abi.h"

enum { MOST_DIMENSIONS = 3 };

/* A dense array. */
struct array {
    void *address;
    Py_ssize_t n, length[MOST_DIMENSIONS];
    long bytes; /* of an element */
    bool is_tensor;
};

/* An argument of a call: the dtypes that arrays.Argument has accepted, with the size of an element. */
struct argument {
    PyObject *sizes;
    bool writable;
};

/* Reads an array on a device; -1 is the host. OTHER: an array of another type, device, dtype or memory
 * order. */
enum form array_read(const struct argument *, PyObject *x, int device, struct array *out);

/* The same for an argument that may be None, with a number of dimensions and their lengths. */
enum form array_read_shaped(const struct argument *, PyObject *x, int device, Py_ssize_t n,
                            const Py_ssize_t *length, struct array *out);

/* Returns the address of a tensor; NULL: see PyErr_Occurred(). */
void *array_address(PyObject *tensor);

/* Returns the current stream of torch as a new reference; Py_None: unknown. */
PyObject *array_stream(PyObject *device_number);

/* Returns the name of a framework, a borrowed reference. */
PyObject *array_framework(bool torch);

/* Functions of the module: arrays.py calls them at the first array of a framework. */
PyObject *array_use_torch(PyObject *module, PyObject *arguments);
PyObject *array_use_numpy(PyObject *module, PyObject *arguments);

/* Creates the names of attributes. Returns false with an exception of Python. */
bool array_make_names(void);

#endif

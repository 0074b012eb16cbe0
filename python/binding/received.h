/* Base class of epa2a.Received. */
#ifndef BINDING_RECEIVED_H
#define BINDING_RECEIVED_H

#include "stable_abi.h"

struct received {
    PyObject_HEAD PyObject *moe, *framework, *plan, *block, *arrays, *counts, *y, *keep, *half;
    unsigned tokens;
    char views;
    struct epa2a_received rows;
};

extern PyType_Spec received_spec;

/* Returns a new object of the class or of a subclass. */
struct received *received_create(PyTypeObject *);

#endif

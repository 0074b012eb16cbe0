/* Python's stable ABI. Py_LIMITED_API of the compiler selects its version. */
#ifndef BINDING_STABLE_ABI_H
#define BINDING_STABLE_ABI_H

#include <Python.h>

#include <structmember.h>

#include <stdbool.h>
#include <string.h>

#include <epa2a.h>

/* Result of a function that reads an argument. OTHER: the Python code has to read it. ERROR: with an
 * exception of Python. */
enum form { USUAL, OTHER, ERROR };

/* Returns true for a member that Python has not set to None. */
static inline bool is_set(const PyObject *member)
{
    return member != NULL && member != Py_None;
}

#endif

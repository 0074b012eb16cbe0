/* Compiled part of the Python package: the calls of a moe whose arguments have the usual form. A call of
 * Moe takes the function of Calls first. The function returns None if an argument has another form, an
 * unknown dtype or an error; the Python code then makes the call, or raises the exception. The module links
 * no library.
 *
 * The module uses the stable ABI: one file serves Python 3.10 and all later versions. */
#include "calls.h"

static PyMethodDef methods[] = {
    {"use_torch", array_use_torch, METH_VARARGS,
     "Sets the class of tensors, their dense layout, and a function."},
    {"use_numpy", array_use_numpy, METH_VARARGS,
     "Sets the class of arrays, and the place of their address."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "epa2a._binding",
    .m_size = -1,
    .m_methods = methods,
};

static bool add_type(PyObject *module, const char *type_name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    bool good = type != NULL && PyModule_AddObjectRef(module, type_name, type) == 0;

    Py_XDECREF(type);
    return good;
}

PyMODINIT_FUNC PyInit__binding(void);

PyMODINIT_FUNC PyInit__binding(void)
{
    PyObject *module = array_make_names() ? PyModule_Create(&definition) : NULL;

    if (module != NULL &&
        (!add_type(module, "Received", &received_spec) || !add_type(module, "Calls", &calls_spec)))
        Py_CLEAR(module);
    return module;
}

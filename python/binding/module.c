/* Compiled part of the Python package. The module links no library.
 *
 * The module uses the stable ABI: one file serves Python 3.10 and all later versions. */
#include "received.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "epa2a._binding",
    .m_size = -1,
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
    PyObject *module = PyModule_Create(&definition);

    if (module != NULL && !add_type(module, "Received", &received_spec))
        Py_CLEAR(module);
    return module;
}

/* Reads arrays by their attributes, like arrays.Argument of the package. */
#include "arrays.h"

/* ---- objects of the frameworks ---- */

/* Set by arrays.py at the first array of a framework; NULL: the framework is not in use. */
static struct {
    PyObject *tensor, *strided, *raw_stream; /* torch */
    PyObject *data_ptr, *is_contiguous, *get_device;
    PyObject *ndarray; /* NumPy, whose address follows the header of the object */
    Py_ssize_t header;
} frameworks;

/* Names of attributes. */
static struct {
    PyObject *dtype, *shape, *layout, *is_cpu, *flags, *c_contiguous, *writeable, *torch, *numpy;
} name;

PyObject *array_use_torch(PyObject *module, PyObject *args)
{
    PyObject *tensor, *strided, *raw_stream;

    (void)module;
    if (!PyArg_ParseTuple(args, "OOO", &tensor, &strided, &raw_stream))
        return NULL;
    frameworks.data_ptr = PyObject_GetAttrString(tensor, "data_ptr");
    frameworks.is_contiguous = PyObject_GetAttrString(tensor, "is_contiguous");
    frameworks.get_device = PyObject_GetAttrString(tensor, "get_device");
    if (frameworks.data_ptr == NULL || frameworks.is_contiguous == NULL ||
        frameworks.get_device == NULL)
        return NULL;
    frameworks.tensor = Py_NewRef(tensor);
    frameworks.strided = Py_NewRef(strided);
    frameworks.raw_stream = raw_stream == Py_None ? NULL : Py_NewRef(raw_stream);
    Py_RETURN_NONE;
}

PyObject *array_use_numpy(PyObject *module, PyObject *args)
{
    PyObject *ndarray;

    (void)module;
    if (!PyArg_ParseTuple(args, "On", &ndarray, &frameworks.header))
        return NULL;
    frameworks.ndarray = Py_NewRef(ndarray);
    Py_RETURN_NONE;
}

bool array_make_names(void)
{
    const struct {
        PyObject **to;
        const char *text;
    } list[] = {{&name.dtype, "dtype"},         {&name.shape, "shape"},
                {&name.layout, "layout"},       {&name.is_cpu, "is_cpu"},
                {&name.flags, "flags"},         {&name.c_contiguous, "c_contiguous"},
                {&name.writeable, "writeable"}, {&name.torch, "torch"},
                {&name.numpy, "numpy"}};

    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        *list[i].to = PyUnicode_InternFromString(list[i].text);
        if (*list[i].to == NULL)
            return false;
    }
    return true;
}

PyObject *array_framework(bool torch)
{
    return torch ? name.torch : name.numpy;
}

PyObject *array_stream(PyObject *device_number)
{
    return frameworks.raw_stream == NULL
               ? Py_NewRef(Py_None)
               : PyObject_CallFunctionObjArgs(frameworks.raw_stream, device_number, NULL);
}

void *array_address(PyObject *tensor)
{
    PyObject *number = PyObject_CallFunctionObjArgs(frameworks.data_ptr, tensor, NULL);
    void *address = number != NULL ? PyLong_AsVoidPtr(number) : NULL;

    Py_XDECREF(number);
    return address;
}

/* ---- reading ---- */

static bool is_true(PyObject *object) /* steals the reference */
{
    bool is = object == Py_True;

    Py_XDECREF(object);
    return is;
}

static enum form read_shape(PyObject *x, struct array *out)
{
    PyObject *shape = PyObject_GetAttr(x, name.shape);
    enum form form = USUAL;

    if (shape == NULL)
        return ERROR;
    out->n = PyTuple_Size(shape);
    if (out->n < 0)
        form = ERROR;
    else if (out->n > MOST_DIMENSIONS)
        form = OTHER;
    for (Py_ssize_t i = 0; form == USUAL && i < out->n; i++)
        out->length[i] = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
    Py_DECREF(shape);
    return PyErr_Occurred() != NULL ? ERROR : form;
}

/* Reads the size of an element from `sizes`, a dict of the accepted dtypes. */
static enum form read_dtype(PyObject *x, PyObject *sizes, struct array *out)
{
    PyObject *dtype = PyObject_GetAttr(x, name.dtype), *bytes;

    if (dtype == NULL)
        return ERROR;
    bytes = PyDict_GetItemWithError(sizes, dtype);
    Py_DECREF(dtype);
    if (bytes == NULL)
        return PyErr_Occurred() != NULL ? ERROR : OTHER;
    out->bytes = PyLong_AsLong(bytes);
    return USUAL;
}

/* Returns the number of the device, -1 for the host; or an error and -2. */
static long device_of_tensor(PyObject *x)
{
    PyObject *number = PyObject_CallFunctionObjArgs(frameworks.get_device, x, NULL);
    long device = number != NULL ? PyLong_AsLong(number) : -2;

    Py_XDECREF(number);
    return device;
}

static enum form read_tensor(PyObject *x, int device, struct array *out)
{
    PyObject *layout = PyObject_GetAttr(x, name.layout), *address;
    bool strided = layout == frameworks.strided;
    long found;

    Py_XDECREF(layout);
    if (!strided || !is_true(PyObject_CallFunctionObjArgs(frameworks.is_contiguous, x, NULL)))
        return PyErr_Occurred() != NULL ? ERROR : OTHER;
    found = device_of_tensor(x);
    if (found == -2)
        return ERROR;
    if (found != device || (device < 0 && !is_true(PyObject_GetAttr(x, name.is_cpu))))
        return PyErr_Occurred() != NULL ? ERROR : OTHER;
    address = PyObject_CallFunctionObjArgs(frameworks.data_ptr, x, NULL);
    if (address == NULL)
        return ERROR;
    out->address = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    out->is_tensor = true;
    return PyErr_Occurred() != NULL ? ERROR : USUAL;
}

static enum form read_ndarray(PyObject *x, bool writable, struct array *out)
{
    PyObject *flags = PyObject_GetAttr(x, name.flags);
    bool usual;

    if (flags == NULL)
        return ERROR;
    usual = is_true(PyObject_GetAttr(flags, name.c_contiguous)) &&
            (!writable || is_true(PyObject_GetAttr(flags, name.writeable)));
    Py_DECREF(flags);
    memcpy(&out->address, (const char *)x + frameworks.header, sizeof(out->address));
    out->is_tensor = false;
    return PyErr_Occurred() != NULL ? ERROR : usual ? USUAL : OTHER;
}

enum form array_read(const struct argument *argument, PyObject *x, int device, struct array *out)
{
    PyObject *type = (PyObject *)Py_TYPE(x);
    bool is_tensor = type == frameworks.tensor;
    enum form form;

    if (!is_tensor && (type != frameworks.ndarray || device >= 0))
        return OTHER;
    form = read_dtype(x, argument->sizes, out);
    if (form == USUAL)
        form = read_shape(x, out);
    if (form == USUAL)
        form = is_tensor ? read_tensor(x, device, out) : read_ndarray(x, argument->writable, out);
    if (form == USUAL && (uintptr_t)out->address % (uintptr_t)out->bytes != 0)
        form = OTHER;
    return form;
}

enum form array_read_shaped(const struct argument *argument, PyObject *x, int device, Py_ssize_t n,
                            const Py_ssize_t *length, struct array *out)
{
    enum form form;

    *out = (struct array){.bytes = 4};
    if (x == Py_None)
        return USUAL;
    form = array_read(argument, x, device, out);
    if (form != USUAL)
        return form;
    return out->n == n && memcmp(out->length, length, (size_t)n * sizeof(*length)) == 0 ? USUAL
                                                                                        : OTHER;
}

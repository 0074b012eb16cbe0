/* The members have the names that moe.py uses. The struct of libepa2a is part of the object. */
#include "received.h"

struct received *received_create(PyTypeObject *type)
{
    struct received *r = (struct received *)PyType_GenericAlloc(type, 0);

    if (r != NULL)
        r->rows.size = sizeof(r->rows);
    return r;
}

static PyObject *received_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    (void)args;
    (void)keywords;
    return (PyObject *)received_create(type);
}

static int received_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct received *r = (struct received *)self;

    Py_VISIT(Py_TYPE(self));
    Py_VISIT(r->moe);
    Py_VISIT(r->plan);
    Py_VISIT(r->block);
    Py_VISIT(r->arrays);
    Py_VISIT(r->y);
    Py_VISIT(r->keep);
    return 0;
}

static int received_clear(PyObject *self)
{
    struct received *r = (struct received *)self;

    Py_CLEAR(r->moe);
    Py_CLEAR(r->framework);
    Py_CLEAR(r->plan);
    Py_CLEAR(r->block);
    Py_CLEAR(r->arrays);
    Py_CLEAR(r->counts);
    Py_CLEAR(r->y);
    Py_CLEAR(r->keep);
    Py_CLEAR(r->half);
    return 0;
}

static void received_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_GC_UnTrack(self);
    (void)received_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *received_address(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromVoidPtr(&((struct received *)self)->rows);
}

#define OBJECT(field) T_OBJECT, offsetof(struct received, field), 0, NULL
static PyMemberDef received_members[] = {
    {"moe", OBJECT(moe)},
    {"framework", OBJECT(framework)},
    {"tokens", T_UINT, offsetof(struct received, tokens), 0, NULL},
    {"_plan", OBJECT(plan)},
    {"_block", OBJECT(block)},
    {"_arrays", OBJECT(arrays)},
    {"_counts", OBJECT(counts)},
    {"_y", OBJECT(y)},
    {"_keep", OBJECT(keep)},
    {"_half", OBJECT(half)},
    {"_views", T_BOOL, offsetof(struct received, views), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef received_getters[] = {
    {"_address", received_address, NULL, "Address of the struct epa2a_received.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot received_slots[] = {
    {Py_tp_new, received_new},
    {Py_tp_traverse, received_traverse},
    {Py_tp_clear, received_clear},
    {Py_tp_dealloc, received_free},
    {Py_tp_members, received_members},
    {Py_tp_getset, received_getters},
    {0, NULL},
};
PyType_Spec received_spec = {
    .name = "epa2a._binding.Received",
    .basicsize = sizeof(struct received),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = received_slots,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.c: icms._icms itself: its functions, the tables of errors and misses, exceptions.
 *
 * Single-phase initialisation: the types are static, so a process has them once.
 */
#include "module.h"

#include <string.h>

PyObject *module_text(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

PyObject *module_raise(icms_err err, const char *why)
{
    PyObject *errors = PyImport_ImportModule("icms.errors");
    PyObject *error = NULL;

    if (errors != NULL)
        error = PyObject_CallMethod(errors, "error_of", "iN", (int)err,
                                    module_text(why == NULL ? "" : why));
    Py_XDECREF(errors);
    if (error == NULL)
        return NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return NULL;
}

PyObject *module_raise_miss(icms_err err, enum icms_miss reason)
{
    PyObject *errors = PyImport_ImportModule("icms.errors");
    PyObject *error = NULL;

    if (errors != NULL)
        error = PyObject_CallMethod(errors, "error_of", "isi", (int)err, "", (int)reason);
    Py_XDECREF(errors);
    if (error == NULL)
        return NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return NULL;
}

static int number_convert(PyObject *object, unsigned long long most, unsigned long long *out_number)
{
    PyObject *index = PyNumber_Index(object);
    unsigned long long number;

    if (index == NULL)
        return 0;
    number = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    if (PyErr_Occurred() != NULL) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return 0;
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%R is not from 0 to %llu", object, most);
        return 0;
    }
    if (number > most) {
        PyErr_Format(PyExc_ValueError, "%R is not from 0 to %llu", object, most);
        return 0;
    }
    *out_number = number;
    return 1;
}

int module_number_u32(PyObject *object, void *out_number)
{
    unsigned long long number;

    if (number_convert(object, UINT32_MAX, &number) == 0)
        return 0;
    *(uint32_t *)out_number = (uint32_t)number;
    return 1;
}

int module_number_u64(PyObject *object, void *out_number)
{
    unsigned long long number;

    if (number_convert(object, UINT64_MAX, &number) == 0)
        return 0;
    *(uint64_t *)out_number = number;
    return 1;
}

bool module_type_make(PyType_Spec *spec, PyTypeObject **out_type)
{
    *out_type = (PyTypeObject *)PyType_FromSpec(spec);
    return *out_type != NULL;
}

void module_object_free(void *object)
{
    PyTypeObject *type = Py_TYPE((PyObject *)object);

    PyObject_Free(object);
    Py_DECREF(type);
}

/* Appends a row to a list and lets go of the row; false with an exception. */
static bool table_add(PyObject *table, PyObject *row)
{
    bool added = row != NULL && PyList_Append(table, row) == 0;

    Py_XDECREF(row);
    return added;
}

/* The tables as this module was compiled with them: [(name, number, text, retry)]. */
static PyObject *table_errors(void)
{
    PyObject *table = PyList_New(0);

    if (table == NULL)
        return NULL;
#define XX(name, number, text, retry, nvme)                                                        \
    if (!table_add(table, Py_BuildValue("(sisi)", #name, number, text, retry))) {                  \
        Py_DECREF(table);                                                                          \
        return NULL;                                                                               \
    }
    ICMS_ERR_MAP(XX)
#undef XX
    return table;
}

/* [(name, number, text)] */
static PyObject *table_misses(void)
{
    PyObject *table = PyList_New(0);

    if (table == NULL)
        return NULL;
#define XX(name, number, text)                                                                     \
    if (!table_add(table, Py_BuildValue("(sis)", #name, number, text))) {                          \
        Py_DECREF(table);                                                                          \
        return NULL;                                                                               \
    }
    ICMS_MISS_MAP(XX)
#undef XX
    return table;
}

static PyObject *module_tables(PyObject *module, PyObject *none)
{
    return Py_BuildValue("(NN)", table_errors(), table_misses());
}

static PyObject *module_version(PyObject *module, PyObject *none)
{
    return PyUnicode_FromString(icms_version());
}

static PyMethodDef module_methods[] = {
    {"open", handle_open, METH_VARARGS, "A handle on a tier."},
    {"close_all", handle_close_all, METH_NOARGS, "Closes every handle that can be closed."},
    {"key_from_name", chain_key_from_name, METH_O, "A key from a name of any length."},
    {"tables", module_tables, METH_NOARGS, "The tables of errors and of misses."},
    {"version", module_version, METH_NOARGS, "The version of the library inside."},
    {0},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "icms._icms",
    .m_doc = "The layer between the package icms and libicms; use the package.",
    .m_size = -1,
    .m_methods = module_methods,
};

static const struct {
    const char *name;
    long number;
} module_constants[] = {
    {"KEY_BYTES", MODULE_KEY_BYTES},
    {"RUN_BYTES", ICMS_RUN_BYTES},
    {"BATCH_MAX", ICMS_BATCH_MAX},
    {"LEASES_MAX", ICMS_LEASES_MAX},
    {"PUT", BATCH_PUT},
    {"GET", BATCH_GET},
    {"EXISTS", BATCH_EXISTS},
    {"REMOVE", BATCH_REMOVE},
    {"FLUSH", BATCH_FLUSH},
    {"ON_FLASH", BATCH_ON_FLASH},
    {"IF_ABSENT", BATCH_IF_ABSENT},
    {"PRESTAGE", BATCH_PRESTAGE},
    {"ONCE", BATCH_ONCE},
};

PyMODINIT_FUNC PyInit__icms(void);

PyMODINIT_FUNC PyInit__icms(void)
{
    PyObject *module;

    if (!handle_types_make() || !volume_types_make() || !request_types_make() ||
        !region_types_make() || !memory_types_make() || !chain_types_make())
        return NULL;
    module = PyModule_Create(&module_def);
    if (module == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof(module_constants) / sizeof(module_constants[0]); i++) {
        if (PyModule_AddIntConstant(module, module_constants[i].name, module_constants[i].number) !=
            0) {
            Py_DECREF(module);
            return NULL;
        }
    }
    return module;
}

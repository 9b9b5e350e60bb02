// Argument checks and error reports shared by all launchers of a generated `cuda_extension` module.
//
// Compiled with CUDA_AGENT_EMULATED for the emulated device, where tensors lie on the CPU and each call is bracketed
// so that the device knows which memory a kernel may touch. Nothing here includes torch or CUDA headers.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cmath>
#include <cstdint>
#include <structmember.h>

extern "C" {
int cudaGetLastError(void);
const char *cudaGetErrorName(int);
const char *cudaGetErrorString(int);
int cudaGetDevice(int *);
int cudaSetDevice(int);
}
#ifdef CUDA_AGENT_EMULATED
#include "host_api.h"
#endif

namespace {

PyObject *tensor_type;
#ifndef CUDA_AGENT_EMULATED
PyObject *raw_stream, *current_device;
#endif
PyObject *name_dtype, *name_is_contiguous, *name_data_ptr, *name_get_device, *name_numel, *name_element_size, *name_size, *name_stride;

// strided(t) marks a tensor whose strides the kernel takes care of.
struct Strided {
    PyObject_HEAD
    PyObject *tensor;
};
PyTypeObject *strided_type;

void strided_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(reinterpret_cast<Strided *>(self)->tensor);
    type->tp_free(self);
    Py_DECREF(type);
}
PyMemberDef strided_members[] = {{"tensor", T_OBJECT_EX, offsetof(Strided, tensor), READONLY, "the marked tensor"}, {nullptr, 0, 0, 0, nullptr}};
PyType_Slot strided_slots[] = {{Py_tp_dealloc, reinterpret_cast<void *>(strided_dealloc)}, {Py_tp_members, strided_members}, {0, nullptr}};
PyType_Spec strided_spec = {"cuda_extension.Strided", sizeof(Strided), 0, Py_TPFLAGS_DEFAULT, strided_slots};

PyObject *make_strided(PyObject *, PyObject *tensor) {
    int is = PyObject_IsInstance(tensor, tensor_type);
    if (is < 0) return nullptr;
    if (!is) return PyErr_Format(PyExc_TypeError, "strided(): expected a torch.Tensor, got %s", Py_TYPE(tensor)->tp_name);
    PyObject *self = PyType_GenericAlloc(strided_type, 0);
    if (!self) return nullptr;
    Py_INCREF(tensor);
    reinterpret_cast<Strided *>(self)->tensor = tensor;
    return self;
}
#define STRIDED_METHOD \
    { "strided", make_strided, METH_O, "strided(tensor)\n\nPass a non-contiguous tensor on purpose: the kernel handles its strides." }

// __half and __nv_bfloat16 as the calling convention sees them.
struct Bits16 {
    unsigned short bits;
};

// Round to a 16-bit float, to nearest and ties to even; what is too large becomes infinity.
Bits16 narrow(double value, int fraction_bits, int bias) {
    const unsigned short sign = std::signbit(value) ? 0x8000 : 0;
    const double infinity = (2 * bias + 1) << fraction_bits;
    double code = 0x7fff;
    if (value == 0 || std::isinf(value)) {
        code = value == 0 ? 0 : infinity;
    } else if (value == value) {
        int exponent;
        std::frexp(value, &exponent);
        exponent = exponent > 2 - bias ? exponent - 1 : 1 - bias;  // below it, subnormals share the least exponent
        const double steps = std::nearbyint(std::ldexp(std::fabs(value), fraction_bits - exponent));
        code = std::ldexp(exponent + bias - 1, fraction_bits) + steps;
        if (code > infinity) code = infinity;
    }
    return {static_cast<unsigned short>(sign | static_cast<unsigned short>(code))};
}

bool as_integer(PyObject *object, PyObject *method, long long *value) {
    PyObject *result = PyObject_CallMethodNoArgs(object, method);
    if (!result) return false;
    *value = PyLong_AsLongLong(result);
    Py_DECREF(result);
    return !(*value == -1 && PyErr_Occurred());
}

// One call of one launcher: converts arguments, then brackets the launch.
class Call {
   public:
    Call(const char *launcher, const char *signature) : launcher_(launcher), signature_(signature) {
#ifdef CUDA_AGENT_EMULATED
        cuda_agent_begin_call(launcher);
#endif
    }
    ~Call() {
#ifdef CUDA_AGENT_EMULATED
        if (!finished_) cuda_agent_end_call();
#else
        if (restore_ >= 0) cudaSetDevice(restore_);
#endif
    }

    PyObject *wrong_count(Py_ssize_t got, int wanted) {
        return PyErr_Format(PyExc_TypeError, "%s() takes %d argument%s, got %zd. Its signature is %s; the stream is supplied.", launcher_,
                            wanted, wanted == 1 ? "" : "s", got, signature_);
    }

    bool tensor(PyObject *object, int number, const char *name, const char *ctype, PyObject *dtype, const char *dtype_name,
                bool read_only, void **out) {
        *out = nullptr;
        if (object == Py_None) return true;
        bool strided = Py_TYPE(object) == strided_type;
        if (strided) object = reinterpret_cast<Strided *>(object)->tensor;
        if (reinterpret_cast<PyObject *>(Py_TYPE(object)) != tensor_type) {
            int is = PyObject_IsInstance(object, tensor_type);
            if (is < 0) return false;
            if (!is) return refuse(PyExc_TypeError, number, name, ctype, "must be a torch.Tensor or None", Py_TYPE(object)->tp_name);
        }
        if (dtype) {
            PyObject *actual = PyObject_GetAttr(object, name_dtype);
            if (!actual) return false;
            bool same = actual == dtype;
            if (!same) {
                PyErr_Format(PyExc_TypeError, "%s(): argument %d '%s' must be a %s tensor (%s), got %S", launcher_, number, name, dtype_name,
                             ctype, actual);
            }
            Py_DECREF(actual);
            if (!same) return false;
        }
        if (!device(object, number, name)) return false;
        if (!strided) {
            PyObject *contiguous = PyObject_CallMethodNoArgs(object, name_is_contiguous);
            if (!contiguous) return false;
            bool is = contiguous == Py_True;
            Py_DECREF(contiguous);
            if (!is) {
                PyErr_Format(PyExc_ValueError,
                             "%s(): argument %d '%s' is not contiguous. Pass %s.contiguous(), or cuda_extension.strided(%s) when the "
                             "kernel handles its strides",
                             launcher_, number, name, name, name);
                return false;
            }
        }
        PyObject *pointer = PyObject_CallMethodNoArgs(object, name_data_ptr);
        if (!pointer) return false;
        *out = PyLong_AsVoidPtr(pointer);
        Py_DECREF(pointer);
        if (PyErr_Occurred()) return false;
#ifdef CUDA_AGENT_EMULATED
        return announce(object, name, *out, read_only, strided);
#else
        (void)read_only;
        return true;
#endif
    }

    bool boolean(PyObject *object, int number, const char *name, const char *ctype, bool *out) {
        if (!PyBool_Check(object) && !PyLong_Check(object))
            return refuse(PyExc_TypeError, number, name, ctype, "must be a bool", Py_TYPE(object)->tp_name);
        int value = PyObject_IsTrue(object);
        *out = value > 0;
        return value >= 0;
    }

    bool integer(PyObject *object, int number, const char *name, const char *ctype, long long low, long long high, long long *out) {
        PyObject *index = as_index(object, number, name, ctype);
        if (!index) return false;
        int overflow = 0;
        *out = PyLong_AsLongLongAndOverflow(index, &overflow);
        bool fits = !overflow && *out >= low && *out <= high;
        if (!fits)
            PyErr_Format(PyExc_OverflowError, "%s(): argument %d '%s' is %S, outside the range of %s (%lld to %lld)", launcher_, number, name,
                         index, ctype, low, high);
        Py_DECREF(index);
        return fits;
    }

    bool unsigned_integer(PyObject *object, int number, const char *name, const char *ctype, unsigned long long *out) {
        PyObject *index = as_index(object, number, name, ctype);
        if (!index) return false;
        *out = PyLong_AsUnsignedLongLong(index);
        bool fits = !PyErr_Occurred();
        if (!fits) {
            PyErr_Clear();
            PyErr_Format(PyExc_OverflowError, "%s(): argument %d '%s' is %S, outside the range of %s (0 to 2^64 - 1)", launcher_, number, name,
                         index, ctype);
        }
        Py_DECREF(index);
        return fits;
    }

    bool number(PyObject *object, int number, const char *name, const char *ctype, double *out) {
        if (PyObject_IsInstance(object, tensor_type) == 1)
            return refuse(PyExc_TypeError, number, name, ctype, "must be a Python number; use .item() for the value of", "a tensor");
        *out = PyFloat_AsDouble(object);
        if (*out == -1.0 && PyErr_Occurred()) {
            PyErr_Clear();
            return refuse(PyExc_TypeError, number, name, ctype, "must be a number", Py_TYPE(object)->tp_name);
        }
        return true;
    }

    bool use_current_device() {
#ifndef CUDA_AGENT_EMULATED
        PyObject *index = PyObject_CallNoArgs(current_device);
        if (!index) return false;
        device_ = static_cast<int>(PyLong_AsLong(index));
        Py_DECREF(index);
#endif
        return true;
    }

    bool begin() {
#ifndef CUDA_AGENT_EMULATED
        if (device_ < 0 && !use_current_device()) return false;
        int now = -1;
        if (cudaGetDevice(&now) == 0 && now != device_) {
            cudaSetDevice(device_);
            restore_ = now;
        }
        PyObject *index = PyLong_FromLong(device_);
        PyObject *handle = index ? PyObject_CallOneArg(raw_stream, index) : nullptr;
        Py_XDECREF(index);
        if (!handle) return false;
        stream_ = PyLong_AsVoidPtr(handle);
        Py_DECREF(handle);
        if (PyErr_Occurred()) return false;
#endif
        cudaGetLastError();  // an earlier call's error is not this launcher's
        return true;
    }

    void *stream() const { return stream_; }

    PyObject *finish(int status) {
        finished_ = true;
        int error = cudaGetLastError();
#ifdef CUDA_AGENT_EMULATED
        const char *fault = cuda_agent_end_call();
        if (fault) return PyErr_Format(PyExc_RuntimeError, "%s(): %s", launcher_, fault);
#endif
        if (status != 0)
            return PyErr_Format(PyExc_RuntimeError, "%s() returned %d (%s: %s)", launcher_, status, cudaGetErrorName(status),
                                cudaGetErrorString(status));
        if (error != 0)
            return PyErr_Format(PyExc_RuntimeError, "%s(): a launch failed with %s: %s", launcher_, cudaGetErrorName(error),
                                cudaGetErrorString(error));
        Py_RETURN_NONE;
    }

   private:
    bool refuse(PyObject *kind, int number, const char *name, const char *ctype, const char *what, const char *got) {
        PyErr_Format(kind, "%s(): argument %d '%s' (%s) %s, got %s", launcher_, number, name, ctype, what, got);
        return false;
    }

    PyObject *as_index(PyObject *object, int number, const char *name, const char *ctype) {
        if (PyObject_IsInstance(object, tensor_type) == 1) {
            refuse(PyExc_TypeError, number, name, ctype, "must be a Python integer; use .item() for the value of", "a tensor");
            return nullptr;
        }
        PyObject *index = PyNumber_Index(object);
        if (!index) {
            PyErr_Clear();
            refuse(PyExc_TypeError, number, name, ctype, "must be an integer", Py_TYPE(object)->tp_name);
        }
        return index;
    }

    bool device(PyObject *object, int number, const char *name) {
        long long index;
        if (!as_integer(object, name_get_device, &index)) return false;
#ifdef CUDA_AGENT_EMULATED
        if (index >= 0) {
            PyErr_Format(PyExc_ValueError, "%s(): argument %d '%s' lies on cuda:%lld; on the emulated device tensors lie on the CPU", launcher_,
                         number, name, index);
            return false;
        }
#else
        if (index < 0) {
            PyErr_Format(PyExc_ValueError, "%s(): argument %d '%s' lies on the CPU; the kernel needs it on a CUDA device", launcher_, number, name);
            return false;
        }
        if (device_ >= 0 && device_ != index) {
            PyErr_Format(PyExc_ValueError, "%s(): argument %d '%s' lies on cuda:%lld and an earlier one on cuda:%d", launcher_, number, name,
                         index, device_);
            return false;
        }
        device_ = static_cast<int>(index);
#endif
        return true;
    }

#ifdef CUDA_AGENT_EMULATED
    // Tell the device which bytes belong to the tensor.
    bool announce(PyObject *object, const char *name, void *data, bool read_only, bool strided) {
        long long elements, size;
        if (!as_integer(object, name_numel, &elements) || !as_integer(object, name_element_size, &size)) return false;
        if (strided && elements > 0) {
            PyObject *sizes = PyObject_CallMethodNoArgs(object, name_size), *strides = PyObject_CallMethodNoArgs(object, name_stride);
            elements = 1;
            if (sizes && strides)
                for (Py_ssize_t k = 0; k < PySequence_Size(sizes); ++k) {
                    PyObject *n = PySequence_GetItem(sizes, k), *step = PySequence_GetItem(strides, k);
                    elements += (PyLong_AsLongLong(n) - 1) * PyLong_AsLongLong(step);
                    Py_XDECREF(n);
                    Py_XDECREF(step);
                }
            Py_XDECREF(sizes);
            Py_XDECREF(strides);
            if (PyErr_Occurred()) return false;
        }
        cuda_agent_register_tensor(name, data, static_cast<unsigned long long>(elements * size), read_only);
        return true;
    }
#endif

    const char *launcher_, *signature_;
    void *stream_ = nullptr;
    int device_ = -1, restore_ = -1;
    bool finished_ = false;
};

bool load_torch(PyObject *module, bool (*load_dtypes)(PyObject *)) {
    PyObject *torch = PyImport_ImportModule("torch");
    if (!torch) return false;
    tensor_type = PyObject_GetAttrString(torch, "Tensor");
    struct {
        PyObject **to;
        const char *text;
    } names[] = {{&name_dtype, "dtype"}, {&name_is_contiguous, "is_contiguous"}, {&name_data_ptr, "data_ptr"}, {&name_get_device, "get_device"},
                 {&name_numel, "numel"}, {&name_element_size, "element_size"}, {&name_size, "size"}, {&name_stride, "stride"}};
    for (auto &n : names)
        if (!(*n.to = PyUnicode_InternFromString(n.text))) return false;
#ifndef CUDA_AGENT_EMULATED
    PyObject *inner = PyObject_GetAttrString(torch, "_C");
    if (!inner) return false;
    raw_stream = PyObject_GetAttrString(inner, "_cuda_getCurrentRawStream");
    current_device = PyObject_GetAttrString(inner, "_cuda_getDevice");
    Py_DECREF(inner);
    if (!raw_stream || !current_device) {
        PyErr_SetString(PyExc_ImportError, "the installed torch is a CPU build; these kernels need one built for CUDA");
        return false;
    }
#endif
    strided_type = reinterpret_cast<PyTypeObject *>(PyType_FromSpec(&strided_spec));
    bool ok = tensor_type && strided_type && load_dtypes(torch) && PyModule_AddObjectRef(module, "Strided", reinterpret_cast<PyObject *>(strided_type)) == 0;
    Py_DECREF(torch);
    return ok;
}

}  // namespace

#define BINDING_MODULE(methods, load_dtypes)                                                                                         \
    static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "cuda_extension", "Launchers of this candidate.", -1, methods, nullptr, \
                                     nullptr, nullptr, nullptr};                                                                    \
    PyMODINIT_FUNC PyInit_cuda_extension(void) {                                                                                    \
        PyObject *module = PyModule_Create(&definition);                                                                            \
        if (module && !load_torch(module, load_dtypes)) {                                                                           \
            Py_DECREF(module);                                                                                                      \
            return nullptr;                                                                                                         \
        }                                                                                                                           \
        return module;                                                                                                              \
    }

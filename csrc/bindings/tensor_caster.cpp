#include "bindings/tensor_caster.h"

namespace quire {

const TorchNames& TorchNames::get() {
  // Never destroyed: these objects must not be released after the interpreter is gone.
  static const TorchNames* names = [] {
    const pybind11::module_ torch = pybind11::module_::import("torch");
    const auto dtype = [&](const char* name) {
      return torch.attr(name).cast<pybind11::object>().release().ptr();
    };
    return new TorchNames{PyUnicode_InternFromString("data_ptr"),
                          PyUnicode_InternFromString("shape"),
                          PyUnicode_InternFromString("stride"),
                          PyUnicode_InternFromString("dtype"),
                          PyUnicode_InternFromString("is_cpu"),
                          PyUnicode_InternFromString("is_cuda"),
                          {{dtype("float32"), DType::kFloat32},
                           {dtype("bfloat16"), DType::kBFloat16},
                           {dtype("float16"), DType::kFloat16},
                           {dtype("float64"), DType::kFloat64},
                           {dtype("float8_e4m3fn"), DType::kFloat8E4M3},
                           {dtype("int8"), DType::kInt8},
                           {dtype("int32"), DType::kInt32},
                           {dtype("int64"), DType::kInt64},
                           {dtype("bool"), DType::kBool}}};
  }();
  return *names;
}

}  // namespace quire

namespace pybind11::detail {
namespace {

object checked(PyObject* result) {
  if (result == nullptr) throw error_already_set();
  return reinterpret_steal<object>(result);
}

void copy_sizes(const object& sizes, int ndim, int64_t* out) {
  for (int i = 0; i < ndim; ++i) {
    out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes.ptr(), i));
    if (out[i] == -1 && PyErr_Occurred() != nullptr) throw error_already_set();
  }
}

quire::Device device_of(handle tensor, const quire::TorchNames& names) {
  if (checked(PyObject_GetAttr(tensor.ptr(), names.is_cpu)).ptr() == Py_True)
    return quire::Device::kCpu;
  if (checked(PyObject_GetAttr(tensor.ptr(), names.is_cuda)).ptr() == Py_True)
    return quire::Device::kCuda;
  throw value_error("tensor: must be on the CPU or a GPU, got one on " +
                    str(tensor.attr("device")).cast<std::string>());
}

quire::DType dtype_of(handle tensor, const quire::TorchNames& names) {
  const object dtype = checked(PyObject_GetAttr(tensor.ptr(), names.dtype));
  for (const auto& known : names.dtypes) {
    if (dtype.ptr() == known.object) return known.dtype;
  }
  throw value_error("tensor: must have a dtype that kernels take, got " +
                    str(dtype).cast<std::string>());
}

}  // namespace

bool type_caster<quire::Tensor>::load(handle src, bool) {
  const quire::TorchNames& names = quire::TorchNames::get();
  const object shape = reinterpret_steal<object>(PyObject_GetAttr(src.ptr(), names.shape));
  if (!shape || !PyTuple_Check(shape.ptr())) {
    PyErr_Clear();
    return false;  // not a tensor: pybind11 raises TypeError with the signature
  }
  const object stride = checked(PyObject_CallMethodNoArgs(src.ptr(), names.stride));
  const object data = checked(PyObject_CallMethodNoArgs(src.ptr(), names.data_ptr));
  const auto ndim = PyTuple_GET_SIZE(shape.ptr());
  if (ndim > quire::kMaxDims) {
    throw value_error("tensor: must have at most " + std::to_string(quire::kMaxDims) +
                      " dimensions, got " + std::to_string(ndim));
  }
  value.data = PyLong_AsVoidPtr(data.ptr());
  value.dtype = dtype_of(src, names);
  value.device = device_of(src, names);
  value.ndim = static_cast<int>(ndim);
  copy_sizes(shape, value.ndim, value.shape);
  copy_sizes(stride, value.ndim, value.stride);
  return true;
}

}  // namespace pybind11::detail

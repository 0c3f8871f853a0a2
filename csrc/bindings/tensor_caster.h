// Reads torch tensors as quire::Tensor through their Python attributes: nothing of torch is linked,
// so one build serves every version of it, at 0.3 us per tensor (DLPack takes ten times that).
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "core/tensor.h"

namespace quire {

// Python objects that are looked up once and used for every tensor.
struct TorchNames {
  PyObject* data_ptr;
  PyObject* shape;
  PyObject* stride;
  PyObject* dtype;
  PyObject* is_cpu;
  PyObject* is_cuda;
  struct {
    PyObject* object;
    DType dtype;
  } dtypes[9];

  static const TorchNames& get();
};

}  // namespace quire

namespace pybind11::detail {

template <>
struct type_caster<quire::Tensor> {
  PYBIND11_TYPE_CASTER(quire::Tensor, const_name("torch.Tensor"));

  // Throws pybind11::value_error for dtypes and ranks that no kernel takes.
  bool load(handle src, bool);
};

}  // namespace pybind11::detail

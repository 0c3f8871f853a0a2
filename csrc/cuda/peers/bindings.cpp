#include "cuda/peers/bindings.h"

#include <pybind11/stl.h>

#include "bindings/tensor_caster.h"
#include "cuda/peers/peer_memory.h"

namespace py = pybind11;

namespace quire {
namespace {

using cuda::PeerMemory;

std::vector<std::string> strings(const std::vector<py::bytes>& all) {
  return {all.begin(), all.end()};
}

}  // namespace

void bind_peers(py::module_& module, void (*follow_stream)()) {
  py::class_<PeerMemory>(module, "PeerMemory")
      .def(py::init<int, int, double>())
      .def("ticket", [](const PeerMemory& self) { return py::bytes(self.ticket()); })
      .def("open",
           [](PeerMemory& self, const std::vector<py::bytes>& tickets) {
             return self.open(strings(tickets));
           })
      .def("max_bytes", &PeerMemory::max_bytes)
      .def("abandon", &PeerMemory::abandon)
      .def("close", &PeerMemory::close, py::call_guard<py::gil_scoped_release>())
      .def("free", &PeerMemory::free, py::call_guard<py::gil_scoped_release>());
  module.def("peer_process",
             [](const py::bytes& ticket) { return py::bytes(cuda::process_of(ticket)); });
  module.def("peer_sum",
             [follow_stream](const PeerMemory& memory, const Tensor& out, const Tensor& x) {
               follow_stream();
               const py::gil_scoped_release released;
               cuda::peer_sum(memory, out, x);
             });
  module.def("peer_failure", [follow_stream](const PeerMemory& memory, const Tensor& out) {
    follow_stream();
    const py::gil_scoped_release released;
    cuda::peer_failure(memory, out);
  });
}

}  // namespace quire

// The Python module worker_svc._C: the operations of ops.def and functions about the machine.
// worker_svc/ops documents their arguments; bindings/_C.pyi.in lists what is not an operation.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/tensor_caster.h"
#include "core/check.h"
#include "core/recording.h"
#include "cpu/cpu_backend.h"
#include "cpu/isa.h"
#include "ops/ops.h"
#if defined(QUIRE_WITH_CUDA) || defined(QUIRE_EMULATED_CUDA)
#include "cuda/cuda_backend.h"
#include "cuda/host.h"
#include "cuda/peers/bindings.h"
#include "seed/bindings.h"
#endif
#if defined(QUIRE_EMULATED_CUDA)
#include <tuple>

#include "device_profile.h"
#include "machine.h"
#endif

namespace py = pybind11;

namespace {

// Lives as long as the process: worker threads must not be joined while the interpreter shuts down.
quire::cpu::CpuBackend& backend() {
  static auto* instance = new quire::cpu::CpuBackend;
  return *instance;
}

#if defined(QUIRE_WITH_CUDA) || defined(QUIRE_EMULATED_CUDA)
quire::cuda::CudaBackend& cuda_backend() {
  static auto* instance = new quire::cuda::CudaBackend;
  return *instance;
}
#else
quire::Backend& cuda_backend() {
  quire::fail("this build has no CUDA kernels");
}
#endif

#if defined(QUIRE_EMULATED_CUDA)
// The emulator's device memory is the host's, so that its backend can take the CPU's place.
constexpr const char* kEmulated = "cuda";
bool is_emulating = false;

void set_emulator_order(int order, unsigned seed) {
  quire::check_range("order", order, 0, 3);
  emu::Machine::order = static_cast<emu::Order>(order);
  emu::Machine::seed = seed;
}

// The name, capability (major and minor) and multiprocessors of the card that the emulator plays.
std::tuple<std::string, int, int, int> emulated_card() {
  const emu::DeviceProfile& device = emu::device();
  return {device.name, device.capability_major, device.capability_minor,
          device.num_multiprocessors};
}
#endif

bool is_on_gpu(const quire::Tensor& tensor) {
  return tensor.device == quire::Device::kCuda;
}

bool is_on_gpu(const std::vector<quire::Tensor>& tensors) {
  return !tensors.empty() && is_on_gpu(tensors.front());
}

template <typename T>
bool is_on_gpu(const T&) {
  return false;
}

// Keeps the operations of the calling thread on the CPU, while it is not null.
thread_local quire::Recording* recording = nullptr;

void start_recording(quire::Recording& self) {
  if (recording != nullptr) quire::fail("recording: must be the only one of this thread");
  recording = &self;
}

void stop_recording(quire::Recording&) {
  recording = nullptr;
}

// Whether any operand of an operation is on the GPU.
template <typename... Args>
bool runs_on_gpu(const Args&... args) {
#if defined(QUIRE_EMULATED_CUDA)
  if (is_emulating) return true;
#endif
  return (is_on_gpu(args) || ...);
}

// The backend for the operands of an operation.
template <typename... Args>
quire::Backend& backend_for(const Args&... args) {
  if (runs_on_gpu(args...)) return cuda_backend();
  if (recording != nullptr) return *recording;
  return backend();
}

#if defined(QUIRE_WITH_CUDA) || defined(QUIRE_EMULATED_CUDA)
// Returns the stream that torch's work of the calling thread goes to; null for the default one.
// Lives as long as the process: the interpreter is gone before it.
py::object& stream_source() {
  static auto* source = new py::object;
  return *source;
}

// `source` returns a cudaStream_t; None ends that: operations run on the default stream.
void follow_streams(py::object source) {
  if (source.is_none()) quire::cuda::CudaBackend::set_stream(0);
  stream_source() = source.is_none() ? py::object() : std::move(source);
}

// Has operations of the GPU run on that stream. Needs the GIL.
void follow_stream() {
  if (py::object& source = stream_source())
    quire::cuda::CudaBackend::set_stream(source().cast<uintptr_t>());
}
#else
void follow_stream() {}
#endif

// Binds an operation to the backend of its operands and releases the GIL while it runs.
template <typename... Args>
void define(py::module_& module, const char* name, void (*op)(quire::Backend&, Args...)) {
  module.def(name, [op](Args... args) {
    if (runs_on_gpu(args...)) follow_stream();
    const py::gil_scoped_release released;
    op(backend_for(args...), args...);
  });
}

std::shared_ptr<quire::AttentionPlan> plan_attention(
    const quire::Tensor& query, const quire::Tensor& key_cache, const quire::Tensor& value_cache,
    const quire::Tensor& seq_lens, const quire::Tensor& query_start_loc,
    const std::optional<quire::Tensor>& block_tables,
    const std::optional<quire::Tensor>& table_rows, std::optional<int64_t> sliding_window,
    std::optional<int64_t> max_seq_len, int64_t max_query_len,
    std::shared_ptr<quire::AttentionPlan> earlier) {
  if (runs_on_gpu(query)) follow_stream();
  const py::gil_scoped_release released;
  return quire::ops::plan_attention(backend_for(query), query, key_cache, value_cache, seq_lens,
                                    query_start_loc, block_tables, table_rows, sliding_window,
                                    max_seq_len, max_query_len, std::move(earlier));
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const auto* table : quire::cpu::available_kernel_tables()) names.emplace_back(table->name);
#if defined(QUIRE_EMULATED_CUDA)
  names.emplace_back(kEmulated);
#endif
  return names;
}

std::string isa() {
#if defined(QUIRE_EMULATED_CUDA)
  if (is_emulating) return kEmulated;
#endif
  return backend().kernels().name;
}

void set_isa(const std::string& name) {
#if defined(QUIRE_EMULATED_CUDA)
  is_emulating = name == kEmulated;
  if (is_emulating) return;
#endif
  backend().set_isa(name);
}

void set_num_threads(int num_threads) {
  quire::check_range("num_threads", num_threads, 1, 257);
  backend().set_num_threads(num_threads);
}

int64_t contiguous_bytes(const quire::Tensor& tensor) {
  quire::check_contiguous("tensor", tensor);
  quire::check_device("tensor", tensor, quire::Device::kCpu);
  int64_t bytes = quire::element_size(tensor.dtype);
  for (int i = 0; i < tensor.ndim; ++i) bytes *= tensor.shape[i];
  return bytes;
}

uint64_t stream_read(const quire::Tensor& tensor) {
  return backend().stream_read(tensor.data, contiguous_bytes(tensor));
}

void advise_huge_pages(const quire::Tensor& tensor) {
  quire::cpu::CpuBackend::advise_huge_pages(tensor.data, contiguous_bytes(tensor));
}

std::vector<uint32_t> philox4x32(const std::array<uint32_t, 4>& counter,
                                 const std::array<uint32_t, 2>& key) {
  std::vector<uint32_t> words(4);
  backend().kernels().philox4x32(counter.data(), key.data(), words.data());
  return words;
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  backend();  // a wrong QUIRE_ISA is reported at import
  py::class_<quire::AttentionPlan, std::shared_ptr<quire::AttentionPlan>>(module, "AttentionPlan")
      .def_property_readonly("shared_blocks", &quire::AttentionPlan::shared_blocks)
      .def_property_readonly("launches", &quire::AttentionPlan::launches);
#define QUIRE_OP(name, Params, ...) define(module, #name, quire::ops::name);
#include "ops.def"

  py::class_<quire::Recording>(module, "Recording")
      .def(py::init([] { return std::make_unique<quire::Recording>(backend()); }))
      .def("start", start_recording)
      .def("stop", stop_recording)
      .def("replay", &quire::Recording::replay, py::call_guard<py::gil_scoped_release>())
      .def("replay_timed", &quire::Recording::replay_timed,
           py::call_guard<py::gil_scoped_release>())
      .def("__len__", &quire::Recording::size);
  module.def("plan_attention", plan_attention);
  module.def("isa", isa);
  module.def("available_isas", available_isas);
  module.def("set_isa", set_isa);
  module.def("set_num_threads", set_num_threads);
  module.def("advise_huge_pages", advise_huge_pages);
  module.def("stream_read", stream_read, py::call_guard<py::gil_scoped_release>());
  module.def("philox4x32", philox4x32);
#if defined(QUIRE_WITH_CUDA) || defined(QUIRE_EMULATED_CUDA)
  module.def("follow_streams", follow_streams);
  module.def("driver_problem", quire::cuda::driver_problem);
  module.def("launch_problem", quire::cuda::launch_problem,
             py::call_guard<py::gil_scoped_release>());
  module.def("pin_host_memory", quire::cuda::pin_host_memory,
             py::call_guard<py::gil_scoped_release>());
  module.def("unpin_host_memory", quire::cuda::unpin_host_memory,
             py::call_guard<py::gil_scoped_release>());
  quire::bind_peers(module, follow_stream);
  quire::bind_seed(module, follow_stream);
#endif
#if defined(QUIRE_EMULATED_CUDA)
  module.def("set_emulator_order", set_emulator_order);
  module.def("emulated_card", emulated_card);
#endif
}

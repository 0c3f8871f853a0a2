#include <atomic>
#include <cstring>
#include <fstream>
#include <random>

#include "core/check.h"
#include "cuda/launch.h"
#include "cuda/peers/peer_memory.h"

namespace quire::cuda {
namespace {

constexpr size_t kNameBytes = 48;

// What another process needs to know; both are of one build.
struct Ticket {
  char machine[kNameBytes];  // of this start of the system
  char device[kNameBytes];   // on the bus
  uint64_t process[2];
  uint64_t address;  // in that process
  cudaIpcMemHandle_t handle;
};
static_assert(sizeof(Ticket) == 184, "PEER_TICKET_BYTES of worker_svc/ops/peers.py");

// Numbers that no other process has.
const uint64_t* own_process() {
  static const struct Numbers {
    uint64_t values[2];
    Numbers() {
      std::random_device random;
      for (uint64_t& value : values) value = uint64_t{random()} << 32 | random();
    }
  } numbers;
  return numbers.values;
}

void copy_name(const std::string& name, char (&into)[kNameBytes]) {
  name.copy(into, kNameBytes - 1);
}

std::string own_machine() {
  std::string name;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> name;
  return name;
}

Ticket read_ticket(const std::string& bytes) {
  Ticket ticket;
  if (bytes.size() != sizeof ticket) {
    fail("ticket: must be " + std::to_string(sizeof ticket) + " bytes, got " +
         std::to_string(bytes.size()));
  }
  memcpy(&ticket, bytes.data(), sizeof ticket);
  ticket.machine[kNameBytes - 1] = ticket.device[kNameBytes - 1] = '\0';
  return ticket;
}

bool is_own_process(const Ticket& ticket) {
  return memcmp(ticket.process, own_process(), sizeof ticket.process) == 0;
}

// Why this process's device cannot reach that of a ticket; "" if it can.
std::string device_problem(const Ticket& ticket) {
  int own = 0;
  int other = 0;
  check(cudaGetDevice(&own), "device");
  if (cudaDeviceGetByPCIBusId(&other, ticket.device) != cudaSuccess) {
    cudaGetLastError();
    return std::string("its GPU ") + ticket.device + " is not visible here";
  }
  if (is_own_process(ticket) != (other == own))
    return other == own ? "it shares this rank's GPU" : "it is in this process, with another GPU";
  if (other == own) return "";
  int can_access = 0;
  check(cudaDeviceCanAccessPeer(&can_access, own, other), "peer access");
  return can_access != 0 ? "" : std::string("there is no peer access to its GPU ") + ticket.device;
}

}  // namespace

PeerMemory::PeerMemory(int rank, int size, double timeout_s) {
  if (size != 2 && size != 4 && size != 8)
    fail("size: must be 2, 4 or 8, got " + std::to_string(size));
  check_range("rank", rank, 0, size);
#if defined(__CUDACC__)  // blocks of the emulator come one after the other, on all ranks alike
  if (kPeerBlocksOfMultiprocessor * num_multiprocessors() < kPeerBlocks)
    throw std::runtime_error("the GPU does not run " + std::to_string(kPeerBlocks) +
                             " blocks at once");
#endif
  void* memory = nullptr;
  check(cudaMalloc(&memory, kPeerBytes), "peer memory");
  own_ = static_cast<char*>(memory);
  check(cudaMemsetAsync(own_, 0, kPeerBytes, nullptr), "peer memory");
  constexpr size_t kCounterBytes = kPeerBlocks * sizeof(uint32_t);
  check(cudaMalloc(&memory, kCounterBytes), "peer memory");
  counters_ = static_cast<uint32_t*>(memory);
  check(cudaMemsetAsync(counters_, 0, kCounterBytes, nullptr), "peer memory");
  check(cudaMallocHost(&memory, sizeof(uint32_t)), "peer memory");
  abandoned_ = static_cast<uint32_t*>(memory);
  check(cudaMemsetAsync(abandoned_, 0, sizeof(uint32_t), nullptr), "peer memory");
  // No other rank writes here before this has been set to zero: it has no ticket yet.
  check(cudaStreamSynchronize(nullptr), "peer memory");
  view_.calls = counters_;
  view_.abandoned = abandoned_;
  view_.timeout_ns = static_cast<uint64_t>(timeout_s * 1e9);
  view_.rank = rank;
  view_.size = size;
}

std::string PeerMemory::ticket() const {
  Ticket ticket{};
  int device = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetPCIBusId(ticket.device, kNameBytes, device), "device");
  copy_name(own_machine(), ticket.machine);
  memcpy(ticket.process, own_process(), sizeof ticket.process);
  ticket.address = reinterpret_cast<uintptr_t>(own_);
  check(cudaIpcGetMemHandle(&ticket.handle, own_), "peer memory");
  return {reinterpret_cast<const char*>(&ticket), sizeof ticket};
}

std::string PeerMemory::open(const std::vector<std::string>& tickets) {
  check_range("tickets", static_cast<int64_t>(tickets.size()), view_.size, view_.size + 1);
  // All before the first is opened: an error leaves less behind.
  for (int rank = 0; rank < view_.size; ++rank) {
    if (rank == view_.rank) continue;
    const Ticket ticket = read_ticket(tickets[static_cast<size_t>(rank)]);
    const std::string who = "rank " + std::to_string(rank) + ": ";
    if (ticket.machine != own_machine() || own_machine().empty())
      return who + "it is on another machine";
    if (const std::string problem = device_problem(ticket); !problem.empty()) return who + problem;
  }
  for (int rank = 0; rank < view_.size; ++rank) {
    const Ticket ticket = read_ticket(tickets[static_cast<size_t>(rank)]);
    void* memory = own_;
    if (rank != view_.rank && is_own_process(ticket)) {
      memory = reinterpret_cast<void*>(ticket.address);
    } else if (rank != view_.rank) {
      const cudaError_t error =
          cudaIpcOpenMemHandle(&memory, ticket.handle, cudaIpcMemLazyEnablePeerAccess);
      if (error != cudaSuccess) {
        cudaGetLastError();
        return "rank " + std::to_string(rank) + ": " + cudaGetErrorString(error);
      }
      mapped_.push_back(memory);
    }
    view_.of_rank[rank] = static_cast<char*>(memory);
  }
  is_open_ = true;
  return "";
}

void PeerMemory::abandon() {
  // Read by the device while this thread writes.
  if (abandoned_ != nullptr) reinterpret_cast<std::atomic<uint32_t>*>(abandoned_)->store(1);
}

void PeerMemory::close() {
  if (is_open_) check(cudaDeviceSynchronize(), "peer memory");
  is_open_ = false;
  for (void* memory : mapped_) check(cudaIpcCloseMemHandle(memory), "peer memory");
  mapped_.clear();
}

void PeerMemory::free() {
  close();
  check(cudaFree(own_), "peer memory");
  check(cudaFree(counters_), "peer memory");
  check(cudaFreeHost(abandoned_), "peer memory");
  own_ = nullptr;
  counters_ = abandoned_ = nullptr;
}

const PeerView& PeerMemory::view() const {
  if (!is_open_) throw std::runtime_error("peer memory: must be open");
  return view_;
}

std::string process_of(const std::string& ticket) {
  const Ticket read = read_ticket(ticket);
  return {reinterpret_cast<const char*>(read.process), sizeof read.process};
}

}  // namespace quire::cuda

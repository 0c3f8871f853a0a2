// Uploads step after step, and takes memory for each, in the emulated runtime. Mutants of upload.h
// and workspace.h are compiled with this (test_upload_mutants.py): exits with 0 if all is as their
// comments have it, 1 if not.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cuda/upload.h"
#include "cuda/workspace.h"

namespace {

using namespace quire::cuda;

char stream_addresses[2];
const auto stream = reinterpret_cast<cudaStream_t>(&stream_addresses[0]);
const auto other_stream = reinterpret_cast<cudaStream_t>(&stream_addresses[1]);

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

// Calls `body` as a thread that captures; what it throws goes through.
template <typename Body>
void capture(const Body& body) {
  emu::StreamCapture::begin();
  try {
    body();
  } catch (...) {
    emu::StreamCapture::end();
    throw;
  }
  require(emu::StreamCapture::end() == nullptr, "a capture makes a call that it must not");
}

template <typename Error, typename Body>
void require_refused(const Body& body, const char* what) {
  try {
    body();
  } catch (const Error&) {
    return;
  }
  throw std::logic_error(what);
}

// Sends `bytes` of a value, and looks at what has come.
void upload(UploadBuffer& buffer, char* device, size_t bytes, char value, cudaStream_t where) {
  char* const host = buffer.begin(bytes);
  emu::RuntimeMemory::get().check_bounds(host, bytes);
  memset(host, value, bytes);
  buffer.send(device, bytes, where);
  require(std::vector<char>(device, device + bytes) == std::vector<char>(bytes, value),
          "what was uploaded has not come");
}

void check_uploads() {
  constexpr size_t kMost = 1 << 16;
  std::vector<char> device(kMost);
  UploadBuffer buffer;
  require_refused<std::runtime_error>([&] { capture([&] { buffer.begin(64); }); },
                                      "a capture allocates host memory");
  char value = 0;
  for (const size_t bytes : {100, 64, 200, 201, 1, 5000, 9000, 10001, 300})
    upload(buffer, device.data(), bytes, ++value, stream);
  upload(buffer, device.data(), kMost, ++value, other_stream);
  require_refused<std::runtime_error>([&] { capture([&] { buffer.begin(64); }); },
                                      "a capture waits for a copy");
  upload(buffer, device.data(), 64, ++value, stream);
}

// That the emulator sees what upload.h rules out, where the event is waited for all the same.
void check_writes() {
  char device[64];
  UploadBuffer buffer;
  upload(buffer, device, 64, 1, stream);
  char* const host = buffer.begin(64);
  buffer.send(device, 64, stream);
  host[63] = 2;
  require_refused<emu::KernelError>([&] { buffer.begin(64); },
                                    "memory is written that a copy may still read");
}

// Pieces of several sizes, each filled with a number of its own.
void fill_pieces(Workspace& workspace, size_t count) {
  constexpr size_t kPieces = 3;
  workspace.begin(kPieces * Workspace::piece_bytes<double>(count), stream);
  double* pieces[kPieces];
  for (size_t i = 0; i < kPieces; ++i) {
    pieces[i] = workspace.take<double>(count);
    require(reinterpret_cast<uintptr_t>(pieces[i]) % 256 ==
                reinterpret_cast<uintptr_t>(pieces[0]) % 256,
            "pieces are not aligned alike");
    check(cudaMemsetAsync(pieces[i], static_cast<int>(i), count * sizeof(double), stream), "fill");
  }
  for (size_t i = 0; i < kPieces; ++i) {
    const auto* bytes = reinterpret_cast<const char*>(pieces[i]);
    for (size_t j = 0; j < count * sizeof(double); ++j)
      require(bytes[j] == static_cast<char>(i), "pieces overlap");
  }
  require_refused<std::logic_error>([&] { workspace.take<char>(1); },
                                    "a piece is taken that was not asked for");
}

char* first_piece(Workspace& workspace, size_t bytes) {
  workspace.begin(bytes, stream);
  return workspace.take<char>(bytes);
}

void check_workspace() {
  Workspace workspace;
  for (const size_t count : {1, 33, 20, 500, 31, 4000, 700}) fill_pieces(workspace, count);
  // A tenth of what it has room for is asked for: that alone may be taken.
  workspace.begin(1024, stream);
  require_refused<std::logic_error>([&] { workspace.take<char>(1025); },
                                    "a piece is taken that was not asked for");
}

void check_growth() {
  Workspace workspace;
  char* const piece = first_piece(workspace, 1024);
  // Half as much again needs no other memory, which a graph could not have.
  capture([&] { require(first_piece(workspace, 1536) == piece, "memory with room has moved"); });
  require_refused<std::runtime_error>([&] { capture([&] { workspace.begin(1537, stream); }); },
                                      "a capture allocates memory");
  require(first_piece(workspace, 1536) == piece, "memory has moved that has not grown");
  constexpr size_t kTooMuch = (size_t{1} << 60) + 1000;
  require_refused<std::runtime_error>([&] { workspace.begin(kTooMuch, stream); },
                                      "more memory is there than can be");
  fill_pieces(workspace, 10);
  // The old memory goes while it may be written.
  UploadBuffer buffer;
  upload(buffer, first_piece(workspace, 512), 512, 7, stream);
  workspace.begin(1 << 20, stream);
}

void check_fixed() {
  constexpr size_t kBytes = 4096;
  // One of them, as in a program.
  static FixedMemory<kBytes> memory;
  require_refused<std::runtime_error>([&] { capture([&] { memory.get<char>(); }); },
                                      "a capture allocates memory");
  char* const first = memory.get<char>();
  check(cudaMemsetAsync(first, 1, kBytes, stream), "fill");
  capture([&] { require(memory.get<char>() == first, "fixed memory has moved"); });
}

void check_streams() {
  struct Number {
    int value = 0;
  };
  Number& own = of_stream<Number>(stream);
  require(&own != &of_stream<Number>(other_stream), "streams share what is of one");
  bool is_same = false;
  std::thread([&] { is_same = &of_stream<Number>(stream) == &own; }).join();
  require(is_same, "a stream has something else in another thread");
}

}  // namespace

int main() {
  try {
    for (const auto body : {check_uploads, check_writes, check_workspace, check_growth}) {
      body();
      require(emu::RuntimeMemory::get().bytes() == 0, "memory is left behind");
    }
    check_fixed();
    check_streams();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

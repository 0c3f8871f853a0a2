#include "stream_capture.h"

namespace emu {
namespace {

thread_local bool captures = false;
thread_local const char* refused = nullptr;

}  // namespace

void StreamCapture::begin() {
  captures = true;
  refused = nullptr;
}

const char* StreamCapture::end() {
  captures = false;
  return refused;
}

bool StreamCapture::is_active() {
  return captures;
}

bool StreamCapture::refuses(const char* call) {
  if (captures && refused == nullptr) refused = call;
  return captures;
}

}  // namespace emu

// For tests in Python.
extern "C" __attribute__((visibility("default"))) void quire_emulated_begin_capture() {
  emu::StreamCapture::begin();
}

extern "C" __attribute__((visibility("default"))) const char* quire_emulated_end_capture() {
  return emu::StreamCapture::end();
}

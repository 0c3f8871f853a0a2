// What CUDA refuses a thread that captures a graph: to allocate, to free, and to wait.
#pragma once

namespace emu {

// Of the calling thread, as in CUDA's mode that is local to a thread.
class StreamCapture {
 public:
  static void begin();

  // Returns the first call that was refused since `begin`, which has made the graph unusable even
  // if the caller did not look at its error; null if there was none.
  static const char* end();

  static bool is_active();

  // Whether a call is refused now.
  static bool refuses(const char* call);
};

}  // namespace emu

#include "block.h"

#include <algorithm>
#include <numeric>

namespace ptx {

Block::Block(const Launch& launch)
    : launch_(launch),
      shared_(launch.program.static_shared_bytes + launch.dynamic_shared_bytes,
              launch.program.granule, static_cast<int>(launch.threads.count())),
      random_(launch.order.seed) {
  const uint64_t threads = launch.threads.count();
  for (uint64_t first = 0; first < threads; first += kWarpSize)
    warps_.push_back(std::make_unique<Warp>(*this, static_cast<int>(warps_.size())));
}

void Block::run(Size index, uint32_t number) {
  index_ = index;
  number_ = number;
  ++epoch_;
  shared_.begin_block();
  warpgroups_.begin_block(warps_.size());
  const uint64_t threads = launch_.threads.count();
  for (size_t i = 0; i < warps_.size(); ++i) {
    const uint64_t rest = threads - i * kWarpSize;
    warps_[i]->begin(rest >= kWarpSize ? kAllLanes : (1u << rest) - 1);
  }
  while (take_turns()) {
  }
  const int behind = warpgroups_.left_behind();
  if (behind >= 0)
    throw KernelError("warp " + std::to_string(behind) +
                      " leaves out what others of its warpgroup perform, in " +
                      launch_.program.name);
}

// Gives each warp that can go on a turn. Returns whether any is left.
bool Block::take_turns() {
  std::vector<size_t> turns(warps_.size());
  std::iota(turns.begin(), turns.end(), size_t{0});
  const Order& order = launch_.order;
  if (order.is_reverse) std::reverse(turns.begin(), turns.end());
  if (order.is_shuffled) std::shuffle(turns.begin(), turns.end(), random_);
  for (const size_t turn : turns) {
    constexpr uint64_t kAtOnce = 200;
    if (warps_[turn]->state() == Warp::State::kReady)
      warps_[turn]->run(order.is_shuffled ? 1 + random_() % kAtOnce : ~uint64_t{0});
  }
  bool any_ready = false;
  bool any_waits = false;
  for (const auto& warp : warps_) {
    any_ready = any_ready || warp->state() == Warp::State::kReady;
    any_waits = any_waits || warp->state() == Warp::State::kAtBarrier;
  }
  if (any_ready) return true;
  if (!any_waits) return false;
  // The barrier does not wait for warps that have ended.
  ++epoch_;
  for (const auto& warp : warps_) {
    if (warp->state() == Warp::State::kAtBarrier) warp->release();
  }
  return true;
}

}  // namespace ptx

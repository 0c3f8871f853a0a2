// When threads of a block have made what they wrote to shared memory ready for products of
// warpgroups, which read it by another way than loads do: by fence.proxy.async, with a barrier
// between the fence and the product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ptx {

class ProxyFences {
 public:
  // Forgets all fences.
  void begin_block() {
    now_ = 0;
    threads_.clear();
  }

  // A moment: fences that follow it are later.
  uint32_t now() const { return now_; }

  // Args:
  //   epoch: barriers that the block has passed.
  void fence(int thread, uint32_t epoch) {
    const auto number = static_cast<size_t>(thread);
    if (number >= threads_.size()) threads_.resize(number + 1);
    Last& own = threads_[number];
    if (own.epoch != epoch) own.before_epoch = own.at;
    own.epoch = epoch;
    own.at = ++now_;
  }

  // Whether a thread has fenced what it wrote at a moment, and passed a barrier behind it.
  bool has_passed(int thread, uint32_t moment, uint32_t epoch) const {
    const auto number = static_cast<size_t>(thread);
    if (number >= threads_.size()) return false;
    const Last& own = threads_[number];
    return (own.epoch < epoch ? own.at : own.before_epoch) > moment;
  }

  // Whether all of so many threads have.
  bool all_have_passed(int num_threads, uint32_t moment, uint32_t epoch) const {
    for (int thread = 0; thread < num_threads; ++thread) {
      if (!has_passed(thread, moment, epoch)) return false;
    }
    return true;
  }

 private:
  // The last fence of a thread, and the last one before that one's epoch.
  struct Last {
    uint32_t at = 0;
    uint32_t epoch = 0;
    uint32_t before_epoch = 0;
  };

  uint32_t now_ = 0;
  std::vector<Last> threads_;
};

}  // namespace ptx

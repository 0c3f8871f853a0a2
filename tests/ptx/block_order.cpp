#include "block_order.h"

#include <algorithm>

namespace ptx {

BlockOrder::BlockState& BlockOrder::state(uint32_t block) {
  BlockState& found = blocks_[block];
  if (found.threads.empty()) found.threads.resize(num_threads_);
  return found;
}

void BlockOrder::join(View* into, const View& other) {
  for (const auto& [block, seen] : other) {
    auto& own = (*into)[block];
    if (own == nullptr) {
      own = seen;
    } else if (own != seen) {
      Seen both = *own;
      for (size_t i = 0; i < both.fences.size(); ++i)
        both.fences[i] = std::max(both.fences[i], seen->fences[i]);
      both.all_before = std::max(both.all_before, seen->all_before);
      own = std::make_shared<const Seen>(std::move(both));
    }
  }
}

bool BlockOrder::covers(const View& view, const WordWriter& word) {
  const auto seen = view.find(word.block);
  if (seen == view.end()) return false;
  return word.epoch < seen->second->all_before || word.fences < seen->second->fences[word.thread];
}

void BlockOrder::fence(const Who& who) {
  BlockState& block = state(who.block);
  Thread& own = block.threads[who.thread];
  if (own.fence_epoch != who.epoch) own.fences_before_epoch = own.fences;
  ++own.fences;
  own.fence_epoch = who.epoch;
  for (const Reading& each : block.readings) {
    if (each.thread != who.thread && each.epoch >= who.epoch) continue;
    join(&own.known, each.view);
    own.known_epoch = who.epoch;
  }
}

// What an atomic of a thread shows of its block's writes.
BlockOrder::Seen BlockOrder::seen_now(const Who& who, const BlockState& block) const {
  Seen seen;
  for (size_t i = 0; i < block.threads.size(); ++i) {
    const Thread& each = block.threads[i];
    const bool is_before = i == who.thread || each.fence_epoch < who.epoch;
    seen.fences.push_back(is_before ? each.fences : each.fences_before_epoch);
    if (is_before && each.fences > 0) seen.all_before = std::max(seen.all_before, each.fence_epoch);
  }
  return seen;
}

void BlockOrder::atomic(const Who& who, uint64_t address) {
  BlockState& block = state(who.block);
  View& released = released_[address];
  block.readings.push_back({who.epoch, who.thread, released});
  const Thread& own = block.threads[who.thread];
  View shown = own.known;
  shown[who.block] = std::make_shared<const Seen>(seen_now(who, block));
  join(&released, shown);
}

WordWriter BlockOrder::writer(const Who& who) const {
  const auto found = blocks_.find(who.block);
  const uint32_t fences = found == blocks_.end() ? 0 : found->second.threads[who.thread].fences;
  return {launch_, who.block, who.epoch, fences, who.thread};
}

bool BlockOrder::is_visible(const Who& who, const WordWriter& word) const {
  if (word.launch != launch_ || word.block == who.block) return true;
  const auto found = blocks_.find(who.block);
  if (found == blocks_.end()) return false;
  const std::vector<Thread>& threads = found->second.threads;
  if (covers(threads[who.thread].known, word)) return true;
  return std::any_of(threads.begin(), threads.end(), [&](const Thread& each) {
    return each.known_epoch < who.epoch && covers(each.known, word);
  });
}

}  // namespace ptx

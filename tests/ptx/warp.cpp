#include "warp.h"

#include <algorithm>
#include <climits>

#include "block.h"

namespace ptx {
namespace {

// Coordinate `axis` of number `index` in a row-major box.
uint32_t coordinate(const Size& size, uint32_t index, char axis) {
  if (axis == 'x') return index % size.x;
  if (axis == 'y') return index / size.x % size.y;
  return index / (size.x * size.y);
}

uint32_t along(const Size& size, char axis) {
  return axis == 'x' ? size.x : axis == 'y' ? size.y : size.z;
}

uint32_t special_value(const std::string& name, const Block& block, uint32_t thread) {
  const char axis = name.back();
  if (name == "%laneid") return thread % kWarpSize;
  if (name.rfind("%tid.", 0) == 0) return coordinate(block.threads(), thread, axis);
  if (name.rfind("%ntid.", 0) == 0) return along(block.threads(), axis);
  if (name.rfind("%ctaid.", 0) == 0) return along(block.index(), axis);
  return along(block.grid(), axis);
}

}  // namespace

Warp::Warp(Block& block, int number)
    : block_(block),
      program_(block.program()),
      number_(number),
      registers_(program_.registers.size()),
      defined_(program_.registers.size()) {
  for (size_t i = 0; i < registers_.size(); ++i) {
    const Register& each = program_.registers[i];
    if (!each.is_constant || each.name[0] == '%') continue;
    const auto register_number = static_cast<uint16_t>(i);
    defined_[i] = kAllLanes;
    if (each.type == Type::kPred) {
      predicate(register_number) = each.value != 0 ? kAllLanes : 0;
      continue;
    }
    for (int lane = 0; lane < kWarpSize; ++lane) {
      switch (size_of(each.type)) {
        case 1:
          values<uint8_t>(register_number)[lane] = static_cast<uint8_t>(each.value);
          break;
        case 2:
          values<uint16_t>(register_number)[lane] = static_cast<uint16_t>(each.value);
          break;
        case 4:
          values<uint32_t>(register_number)[lane] = static_cast<uint32_t>(each.value);
          break;
        default:
          values<uint64_t>(register_number)[lane] = each.value;
      }
    }
  }
}

void Warp::begin(uint32_t lanes) {
  state_ = State::kReady;
  all_ = live_ = active_ = lanes;
  waiting_ = 0;
  place_ = 0;
  next_parked_ = INT_MAX;
  performed_ = 1;
  performed_at_retry_ = 0;
  after_earlier = program_.awaits_earlier ? 0 : kAllLanes;
  copies.clear();
  for (int& groups : copy_groups) groups = 0;
  if (program_.has_products) products.begin_kernel(registers_.size());
  for (size_t i = 0; i < registers_.size(); ++i) {
    const Register& each = program_.registers[i];
    if (!each.is_constant) {
      defined_[i] = 0;
    } else if (each.name[0] == '%') {
      defined_[i] = kAllLanes;
      for (int lane = 0; lane < kWarpSize; ++lane) {
        const auto thread = static_cast<uint32_t>(number_ * kWarpSize + lane);
        values<uint32_t>(static_cast<uint16_t>(i))[lane] = special_value(each.name, block_, thread);
      }
    }
  }
}

void Warp::release() {
  ++epoch;
  state_ = State::kReady;
}

const Instruction& Warp::instruction() const {
  return program_.instructions[static_cast<size_t>(place_)];
}

void Warp::run(uint64_t max_instructions) {
  for (uint64_t i = 0; i < max_instructions && state_ == State::kReady; ++i) {
    const bool meets_others = active_ == 0 || place_ >= next_parked_;
    if (meets_others && !choose_lanes()) {
      state_ = State::kDone;
      return;
    }
    if (static_cast<size_t>(place_) >= program_.instructions.size()) {
      live_ &= ~active_;
      active_ = 0;
      continue;
    }
    perform(program_.instructions[static_cast<size_t>(place_)]);
  }
}

// Parks the active lanes and makes those of the lowest place active. Returns whether any is live.
bool Warp::choose_lanes() {
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((active_ >> lane & 1) != 0) places_[lane] = place_;
  }
  active_ = 0;
  if (live_ == 0) return false;
  if ((live_ & ~waiting_) == 0) {
    // Those that wait may all be there by now, since others have ended; they try again once.
    if (performed_ == performed_at_retry_) {
      const int lane = __builtin_ctz(waiting_);
      place_ = places_[lane];
      fail("deadlock: lanes wait for others of their warp that never come", lane);
    }
    performed_at_retry_ = performed_;
    waiting_ = 0;
  }
  place_ = INT_MAX;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const bool may_go = ((live_ & ~waiting_) >> lane & 1) != 0;
    if (may_go) place_ = std::min(place_, places_[lane]);
  }
  // Where the active lanes meet others, which may wait for them, they are chosen anew.
  next_parked_ = INT_MAX;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((live_ >> lane & 1) == 0) continue;
    if (places_[lane] == place_) {
      active_ |= 1u << lane;
    } else if (places_[lane] > place_) {
      next_parked_ = std::min(next_parked_, places_[lane]);
    }
  }
  waiting_ &= ~active_;
  return true;
}

void Warp::go_to(uint32_t lanes, int place) {
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((lanes >> lane & 1) != 0) places_[lane] = place;
  }
  active_ &= ~lanes;
  if (place < next_parked_) next_parked_ = place;
}

void Warp::perform(const Instruction& instruction) {
  uint32_t lanes = active_;
  if (instruction.is_guarded) {
    if ((defined_[instruction.guard] & lanes) != lanes)
      fail("a guard that was never written", __builtin_ctz(lanes & ~defined_[instruction.guard]));
    const uint32_t guard = predicate(instruction.guard);
    lanes &= instruction.guard_is_negated ? ~guard : guard;
  }
  switch (instruction.kind) {
    case Instruction::Kind::kBranch:
      block_.count(instruction);
      ++performed_;
      if (lanes == active_) {
        // Behind a branch back the others may be ahead again.
        if (instruction.target <= place_ && active_ != live_) next_parked_ = 0;
        place_ = instruction.target;
      } else {
        if (lanes != 0) go_to(lanes, instruction.target);
        ++place_;
      }
      return;
    case Instruction::Kind::kExit:
      block_.count(instruction);
      check_copies(lanes);
      ++performed_;
      live_ &= ~lanes;
      active_ &= ~lanes;
      ++place_;
      return;
    case Instruction::Kind::kPlain:
      break;
    default:
      if (lanes != 0 && !may_begin(instruction)) {
        waiting_ |= active_;
        for (int lane = 0; lane < kWarpSize; ++lane)
          if ((active_ >> lane & 1) != 0) places_[lane] = place_;
        active_ = 0;
        return;
      }
  }
  ++performed_;
  if (lanes != 0) {
    block_.count(instruction);
    check_defined(instruction, lanes);
    if (program_.has_products) check_lent(instruction);
    if (instruction.kind == Instruction::Kind::kBlockBarrier) {
      state_ = State::kAtBarrier;
    } else {
      instruction.run(*this, instruction, lanes);
    }
    for (int i = 0; i < instruction.num_written; ++i) defined_[instruction.operands[i]] |= lanes;
  }
  ++place_;
}

// Whether all lanes are there that an instruction of several needs.
bool Warp::may_begin(const Instruction& instruction) {
  if (instruction.is_guarded) fail("a guard of an instruction that lanes perform together", 0);
  if (instruction.kind == Instruction::Kind::kBlockBarrier) return active_ == live_;
  if (instruction.kind == Instruction::Kind::kAligned) return active_ == all_;
  const uint16_t mask_number = instruction.operands[instruction.num_operands - 1];
  check_defined(instruction, active_);
  const auto* masks = values<uint32_t>(mask_number);
  uint32_t wanted = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((active_ >> lane & 1) == 0) continue;
    if ((masks[lane] >> lane & 1) == 0)
      fail("a warp collective is called by a lane that its mask leaves out", lane);
    wanted |= masks[lane];
  }
  if ((wanted & all_ & ~live_) != 0)
    fail("a warp collective waits for lanes that have ended", __builtin_ctz(active_));
  return (active_ & wanted & all_) == (wanted & all_);
}

void Warp::check_defined(const Instruction& instruction, uint32_t lanes) {
  for (int i = instruction.num_written; i < instruction.num_operands; ++i)
    check_defined(instruction.operands[i], lanes);
}

void Warp::check_defined(uint16_t number, uint32_t lanes) const {
  const uint32_t missing = lanes & ~defined_[number];
  if (missing == 0) return;
  fail("a read of register " + program_.registers[number].name + ", which nothing has written",
       __builtin_ctz(missing));
}

void Warp::define(const std::vector<uint16_t>& numbers) {
  for (const uint16_t number : numbers) defined_[number] = kAllLanes;
}

// Refuses to touch what products add to, or read.
void Warp::check_lent(const Instruction& instruction) {
  for (int i = 0; i < instruction.num_operands; ++i) {
    const uint16_t number = instruction.operands[i];
    if (products.is_lent(number))
      fail("a race: register " + program_.registers[number].name +
               ", which a product of the warpgroup adds to",
           0);
    if (products.is_read(number))
      fail("a race: register " + program_.registers[number].name +
               ", which a product of the warpgroup may yet read",
           0);
    if (instruction.sums.empty()) products.touch(number, performed_);
  }
}

// A block's shared memory may be another's once it has ended: copies must not be on their way then.
void Warp::check_copies(uint32_t lanes) const {
  for (const AsyncCopy& each : copies) {
    if ((lanes >> each.lane & 1) != 0) fail("a thread ends while copies are under way", each.lane);
  }
  if (!products.under_way.empty()) fail("a thread ends while products are under way", 0);
}

void Warp::fail(const std::string& what, int lane) const {
  const Instruction& at = instruction();
  const Size& index = block_.index();
  throw KernelError(what + " (thread " + std::to_string(number_ * kWarpSize + lane) +
                    " of block (" + std::to_string(index.x) + ", " + std::to_string(index.y) +
                    ", " + std::to_string(index.z) + "), " + at.source + ": " + at.text + ", in " +
                    program_.name + ")");
}

}  // namespace ptx

// Products of warpgroups that a warp has begun (wgmma), and whose registers those are meanwhile.
//
// The registers that a product adds to belong to nobody from where it begins until its group has
// been waited for, but for products of the same shape that add to the same ones; nor do those of
// its first operand. What threads did with them before must be behind a wgmma.fence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program.h"

namespace ptx {

struct Product {
  const Instruction* instruction;
  int group;   // by number
  uint64_t a;  // descriptors of operands; 0 of one in registers
  uint64_t b;
  bool adds;  // to what the registers hold
  bool is_done;
};

class Products {
 public:
  void begin_kernel(size_t num_registers) {
    under_way.clear();
    num_groups = 0;
    fenced_at_ = 0;
    touched_at_.assign(num_registers, 0);
    lent_.assign(num_registers, nullptr);
    num_readers_.assign(num_registers, 0);
  }

  // At a moment, which counts instructions from 1, the warp touches a register; or it fences.
  void touch(uint16_t number, uint64_t moment) { touched_at_[number] = moment; }
  void fence(uint64_t moment) { fenced_at_ = moment; }

  bool is_lent(uint16_t number) const { return !under_way.empty() && lent_[number] != nullptr; }
  void lend(const Instruction& product) {
    for (const uint16_t number : product.sums) lent_[number] = &product;
  }
  void give_back(const Instruction& product) {
    for (const uint16_t number : product.sums) lent_[number] = nullptr;
  }

  // A product begins to read a register, and ends.
  void begin_read(uint16_t number) { ++num_readers_[number]; }
  void end_read(uint16_t number) { --num_readers_[number]; }
  bool is_read(uint16_t number) const { return !under_way.empty() && num_readers_[number] != 0; }

  // Whether a product may add to its registers beside those under way, which have all of them or
  // none.
  bool fit(const Instruction& product) const {
    for (size_t i = 0; i < product.sums.size(); ++i) {
      const Instruction* other = lent_[product.sums[i]];
      const bool is_first_lent = lent_[product.sums[0]] != nullptr;
      if ((other != nullptr) != is_first_lent) return false;
      if (other != nullptr && (other->name != product.name || other->sums != product.sums))
        return false;
    }
    return true;
  }

  // Whether a fence follows what was done with a register, and one is there at all.
  bool is_fenced(uint16_t number) const {
    return fenced_at_ != 0 && touched_at_[number] <= fenced_at_;
  }

  std::vector<Product> under_way;
  int num_groups = 0;  // that are closed

 private:
  uint64_t fenced_at_ = 0;
  std::vector<uint64_t> touched_at_;      // by register
  std::vector<const Instruction*> lent_;  // the last product that adds to a register
  std::vector<uint16_t> num_readers_;     // products whose operand a register is
};

}  // namespace ptx

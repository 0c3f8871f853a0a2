#include "counters.h"

#include <algorithm>

#include "program.h"

namespace ptx {

void count_wavefronts(const uint32_t* addresses, int count, int bytes, Counters* counters) {
  // 128 bytes are asked for at a time: by 8 lanes of 16 bytes, 16 of 8, 32 of fewer.
  const int lanes_at_once = bytes == 16 ? 8 : bytes == 8 ? 16 : 32;
  for (int first = 0; first < count; first += lanes_at_once) {
    uint32_t words[kWarpSize];
    int in_bank[kWarpSize] = {};
    int num_words = 0;
    int most = 1;
    const int end = std::min(count, first + lanes_at_once);
    for (int i = first; i < end; ++i) {
      for (int part = 0; part < std::max(bytes, 4); part += 4) {
        const uint32_t word = addresses[i] / 4 + static_cast<uint32_t>(part) / 4;
        if (std::find(words, words + num_words, word) != words + num_words) continue;
        words[num_words++] = word;
        most = std::max(most, ++in_bank[word % 32]);
      }
    }
    counters->shared_wavefronts += static_cast<uint64_t>(most);
    ++counters->shared_ideal;
  }
}

void count_sectors(const uint64_t* addresses, int count, int bytes, Counters* counters) {
  constexpr uint64_t kSectorBytes = 32;
  uint64_t sectors[kWarpSize];
  uint64_t distinct[kWarpSize];
  int num_sectors = 0;
  int num_distinct = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t sector = addresses[i] / kSectorBytes;
    // Neighbours share most of them.
    if (std::find(sectors, sectors + num_sectors, sector) == sectors + num_sectors)
      sectors[num_sectors++] = sector;
    if (std::find(distinct, distinct + num_distinct, addresses[i]) == distinct + num_distinct)
      distinct[num_distinct++] = addresses[i];
  }
  const auto wanted = static_cast<uint64_t>(num_distinct) * static_cast<uint64_t>(bytes);
  counters->global_sectors += static_cast<uint64_t>(num_sectors);
  counters->global_ideal += (wanted + kSectorBytes - 1) / kSectorBytes;
}

}  // namespace ptx

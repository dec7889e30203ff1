// Kernels that keep the weights for all steps, and the tables in which the families have them. No torch headers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/kernel.h"

namespace rnnkern::cuda {

// The kinds of kernels, by where they keep the weights, and their names.
enum class KernelKind { stepwise, block, cluster, grid };
constexpr const char* kernel_kinds[] = {"stepwise", "block", "cluster", "grid"};

// A kernel that keeps the weights, and the resources that it needs.
struct Resident {
  const Kernel* kernel = nullptr;  // null if there is none for this cell and size
  int64_t shared_bytes = 0;        // of a block
  int cluster = 1;                 // blocks that share sequences
  int columns = 0;                 // sequences of a block or of a cluster
  GridSize grid{};                 // without members unless this is a grid kernel
  int64_t words = 0;               // that all blocks of a grid exchange
  const Kernel* pack = nullptr;    // runs first and packs the weights; or null
  int pack_blocks = 0;

  int64_t packed_floats() const { return pack ? int64_t(pack_blocks) * pack->threads * 4 : 0; }

  Launch launch(int64_t batch, int64_t heads = 1) const {
    if (grid.members) return {.blocks = grid.blocks(), .shared_bytes = shared_bytes, .cooperative = true};
    return {
        .blocks = (batch + columns - 1) / columns * heads * cluster, .shared_bytes = shared_bytes, .cluster = cluster};
  }
};

struct Residents {
  Resident forward, backward;
  int padded = 0;  // the size for which they are compiled

  explicit operator bool() const { return forward.kernel; }
  int64_t shared_bytes() const { return std::max(forward.shared_bytes, backward.shared_bytes); }
};

// The kernels of a cell and dtype that keep the weights: functions that find those of the smallest size that holds a
// number of units, given what else their resources depend on. They are null if there are no such kernels.
template <class... Needs>
struct KernelTable {
  Residents (*block)(int64_t units, Needs...);
  Residents (*cluster)(int64_t units, Needs...);
  Residents (*grid)(const GridSize& size);
};

// Sizes that kernels are compiled for, in ascending order.
template <int... sizes>
struct Sizes {
  // The kernels of the smallest size that holds n units and for which f(std::integral_constant<int, size>()) has any.
  template <class F>
  static Residents least(int64_t n, F f) {
    Residents found;
    const auto is_found = [&](auto size) {
      if (size() < n) return false;
      found = f(size);
      found.padded = found ? size() : 0;
      return bool(found);
    };
    static_cast<void>((is_found(std::integral_constant<int, sizes>()) || ...));
    return found;
  }
};

}  // namespace rnnkern::cuda

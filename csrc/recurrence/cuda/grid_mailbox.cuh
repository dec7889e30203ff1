// How the blocks of a grid kernel pass values on: words of 128 bits in global memory, written and read whole, of which
// the last 32 bits are the step's tag. A reader tries until the tag is its step's; there is no flag and no fence.
//
// A member is a block with its slice of units, 32 bytes of every column. It writes 8 columns of 3 words: of the 8
// 32-bit cells of a column, word l has cells l, l + 4 and, l = 0 and 1 alone, 3 and 7. A warp reads them with one load,
// so that lane 4 c + l ends with cells l and l + 4 of column c: what `mma` wants of its second operand.
//
// Tags. Words are zero when the kernel starts, by a fill that runs before it on its stream, and step k has tag k + 1.
// So no tag of an earlier launch is there to be taken for one of this.
//
// Rewriting. Step k uses buffer k % 2. A block writes its words of step k + 1 over those of step k - 1 after it has
// read every member's words of step k, and met its own threads at a barrier. A member writes its words of step k after
// its threads have read all words of step k - 1, used them, and met at a barrier. So nobody still reads step k - 1.
#pragma once

#include "recurrence/cuda/problem.h"

namespace rnnkern {

constexpr int grid_threads = 256, grid_warps = grid_threads / device::warp_size, member_words = 24;

// Units of a member.
template <class S>
constexpr int grid_units = units_of_member(sizeof(S));

// The pointwise part: the first 8 * units threads have one unit of one column each. Two columns lie side by side, then
// the units, so that cells lie in a warp as `publish` takes them.
template <class S>
struct GridThread {
  static constexpr int units = grid_units<S>, count = grid_columns * units;

  RNNKERN_DEVICE static bool has() { return device::thread() < count; }
  RNNKERN_DEVICE static int unit() { return device::thread() / 2 % units; }
  RNNKERN_DEVICE static int column() { return 2 * (device::thread() / (2 * units)) + device::thread() % 2; }
};

RNNKERN_DEVICE uint32_t cell_of(float own) {
  uint32_t bits;
  std::memcpy(&bits, &own, 4);
  return bits;
}

// Two units: of this thread and of its neighbour.
template <class S>
RNNKERN_DEVICE uint32_t cell_of(S own) {
  const uint32_t bits = own.bits, other = device::shuffle_xor(bits, 2);
  return device::lane() & 2 ? other | bits << 16 : bits | other << 16;
}

// This member's words, from every thread that has a value, whole warps.
template <class S>
RNNKERN_DEVICE void publish(device::Word16* to, S own, uint32_t tag) {
  constexpr int apart = grid_units<S> / 4;  // lanes from one cell of a column to the next
  const int lane = device::lane(), word = lane / apart % 8;
  const uint32_t cell = cell_of(own), low = device::shuffle(cell, lane + 4 * apart);
  const uint32_t extra = device::shuffle(cell, lane + ((word == 0 ? 3 : 7) - word) * apart);
  const bool first = apart == 2 || (lane & 2) == 0;  // of the lanes that have this cell
  if (word < 3 && first) device::store_relaxed(to + 3 * GridThread<S>::column() + word, {cell, low, extra, tag});
}

// A warp's share of the words of a step: of members warp, warp + 8 and so on, `flight` at a time.
template <int flight>
struct GridReader {
  const device::Word16* from;  // this lane's, of the warp's first member
  uint32_t tag;
  device::Word16 words[flight];

  RNNKERN_DEVICE GridReader(const device::Word16* first, uint32_t tag)
      : from(first + device::warp() * member_words + device::lane() / 4 * 3 + device::lane() % 4 % 3), tag(tag) {}

  // Those from the n-th on, of `count` in all. Loads alone: nothing waits yet.
  RNNKERN_DEVICE void request(int n, int count) {
    RNNKERN_UNROLL
    for (int f = 0; f < flight; ++f) {
      words[f] = {};
      if (n + f < count) words[f] = device::load_relaxed(from + (n + f) * grid_warps * member_words);
    }
  }

  // Tries all that are missing at once, so that they come together. Cells of those beyond `count` are zero.
  RNNKERN_DEVICE void receive(int n, int count, uint32_t (&cells)[flight][2]) {
    device::spin_until([&] {
      bool all = true;
      RNNKERN_UNROLL
      for (int f = 0; f < flight; ++f) {
        if (n + f < count && words[f].w != tag) {
          words[f] = device::load_relaxed(from + (n + f) * grid_warps * member_words);
          all = false;
        }
      }
      return all;
    });
    const int lane = device::lane(), last = lane % 4 == 3;
    RNNKERN_UNROLL
    for (int f = 0; f < flight; ++f) {
      const uint32_t seventh = device::shuffle(words[f].z, lane / 4 * 4 + 1);
      cells[f][0] = last ? words[f].z : words[f].x;
      cells[f][1] = last ? seventh : words[f].y;
    }
  }
};

}  // namespace rnnkern

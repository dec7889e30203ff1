// How the blocks of a grid kernel exchange values: in 128-bit words in global memory, each written and read at once, of
// which the last 32 bits are the tag of the step. A reader repeats its load until the tag is that of its step; no flags
// or fences are needed.
//
// A member is a block that owns a slice of units, 32 bytes of every column. It writes 3 words for each of 8 columns. Of
// the eight 32-bit cells of a column, word l has cells l and l + 4; word 0 also has cell 3, and word 1 cell 7. A warp
// reads them with one load, after which lane 4 c + l has cells l and l + 4 of column c, the layout of the second
// operand of `mma`.
//
// Tags: words are zeroed before the kernel starts, on the same stream, and step k has tag k + 1. So a tag of an earlier
// launch cannot be mistaken for one of this launch.
//
// Reuse: step k uses buffer k % 2. A block overwrites its words of step k - 1 with those of step k + 1 after it has
// read every member's words of step k and passed a block barrier. Every member writes its words of step k after its
// threads have read all words of step k - 1 and passed a block barrier. So no thread still reads step k - 1.
#pragma once

#include "recurrence/cuda/block_tile.cuh"

namespace rnnkern {

constexpr int grid_threads = 256, grid_warps = grid_threads / device::warp_size, member_words = 24;

// Units per member.
template <class S>
constexpr int grid_units = units_of_member(sizeof(S));

// The threads of the pointwise part: the first 8 * units threads have one unit of one column each. Threads are ordered
// by pair of columns, then unit, then column of the pair, as `publish` needs the cells in a warp.
template <class S>
struct GridThread {
  static constexpr int units = grid_units<S>, count = grid_columns * units;

  RNNKERN_DEVICE static bool has() { return device::thread() < count; }
  RNNKERN_DEVICE static int unit() { return device::thread() / 2 % units; }
  RNNKERN_DEVICE static int column() { return 2 * (device::thread() / (2 * units)) + device::thread() % 2; }
};

// Writes the words of this member; called by all threads that have a value, in whole warps.
template <class S>
RNNKERN_DEVICE void publish(device::Word16* to, S own, uint32_t tag) {
  constexpr int apart = grid_units<S> / 4;  // distance in lanes between consecutive cells of a column
  const int lane = device::lane(), word = lane / apart % 8;
  // In 16-bit types a cell has two units: this thread's and that of its neighbour.
  const uint32_t cell = sizeof(S) == 4 ? bits_of(own) : pair_of_lanes(bits_of(own), 2);
  const uint32_t low = device::shuffle(cell, lane + 4 * apart);
  const uint32_t extra = device::shuffle(cell, lane + ((word == 0 ? 3 : 7) - word) * apart);
  const bool first = apart == 2 || (lane & 2) == 0;  // the first of the lanes that have this cell
  if (word < 3 && first) device::store_relaxed(to + 3 * GridThread<S>::column() + word, {cell, low, extra, tag});
}

// Reads a warp's part of the words of a step: those of members warp, warp + 8 and so on, `flight` at a time.
template <int flight>
struct GridReader {
  const device::Word16* from;  // for this lane, in the words of the warp's first member
  uint32_t tag;
  device::Word16 words[flight];

  RNNKERN_DEVICE GridReader(const device::Word16* first, uint32_t tag)
      : from(first + device::warp() * member_words + device::lane() / 4 * 3 + device::lane() % 4 % 3), tag(tag) {}

  // Loads words n, n + 1, ... of `count`, without waiting.
  RNNKERN_DEVICE void request(int n, int count) {
    RNNKERN_UNROLL
    for (int f = 0; f < flight; ++f) {
      words[f] = {};
      if (n + f < count) words[f] = device::load_relaxed(from + (n + f) * grid_warps * member_words);
    }
  }

  // Waits until the requested words have arrived, retrying all missing ones together. Cells beyond `count` are zero.
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

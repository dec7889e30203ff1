// The kernels of one sample per block, of one storage of weights, by cell and padded n. Included by sample_*.cu alone.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "device/launch.h"
#include "relevancy/cells.h"
#include "relevancy/cuda_kernels.h"
#include "relevancy/sample_backward.h"
#include "relevancy/sample_forward.h"

namespace rnnkern::relevancy {
namespace {

// What there is for a cell and P, or nothing; `packed`: floats of packed weights.
struct SampleEntry {
  int64_t forward_packed = 0, backward_packed = 0, backward_bytes = 0;
  int64_t (*forward_bytes)(int64_t slots, int64_t relevant_size) = nullptr;
  int (*forward)(const SampleForward& problem, void* stream) = nullptr;
  int (*backward)(const SampleBackward& problem, void* stream) = nullptr;
};

// 16 bits serve where float does not, or not well: where it streams an LSTM's weights.
template <class Cell, class W>
constexpr bool has_sample(int P) {
  return sizeof(W) == 4 ? P <= 128 : P == (Cell::gates > 1 ? 128 : 256);
}

template <class Whole>
constexpr int64_t packed_floats = int64_t(Whole::packed) * sample_threads * 4;

// After the weights are packed, where the kernel takes them so.
template <class Kernel, int P, class W>
int sample_launch(const typename Kernel::Problem& p, const Rows& rows, bool transposed, int64_t bytes, void* stream) {
  using Whole = Kernel::Whole;
  if constexpr (Whole::packs) {
    const typename PackKernel<P, W>::Problem pack{rows.hidden, transposed,          p.V,     p.W_a,
                                                  p.U_a,       Whole::matrices - 1, p.packed};
    if (const int error = device::launch<PackKernel<P, W>>({.blocks = Whole::packed}, pack, stream)) return error;
  }
  return device::launch<Kernel>({.blocks = rows.batch, .shared_bytes = bytes}, p, stream);
}

template <class Cell, class W, int P>
constexpr SampleEntry sample_entry() {
  if constexpr (has_sample<Cell, W>(P)) {
    using Forward = SampleForwardKernel<Cell, P, W>;
    using Backward = SampleBackwardKernel<Cell, P, W>;
    using Memory = SampleMemory<Cell, P, W>;
    return {packed_floats<typename Forward::Whole>,
            packed_floats<typename Backward::Whole>,
            Backward::Room::bytes(),
            &Memory::bytes,
            [](const SampleForward& p, void* stream) {
              const int64_t bytes = Memory::bytes(p.memory.slots, p.memory.relevant_size);
              return sample_launch<Forward, P, W>(p, p.rows, false, bytes, stream);
            },
            [](const SampleBackward& p, void* stream) {
              const int64_t bytes = Backward::Room::bytes();
              return sample_launch<Backward, P, W>(p, p.cell.rows, true, bytes, stream);
            }};
  } else {
    return {};
  }
}

using SampleEntries = std::array<SampleEntry, std::size(sample_sizes)>;

template <class Cell, class W, int... places>
SampleEntries sample_entries(std::integer_sequence<int, places...>) {
  return {sample_entry<Cell, W, sample_sizes[places]>()...};
}

template <class W>
const SampleEntry& sample_kernel(int place, int padded) {
  using Sizes = std::make_integer_sequence<int, int(std::size(sample_sizes))>;
#define RNNKERN_ENTRIES(Cell) sample_entries<Cell, W>(Sizes()),
  static const SampleEntries entries[] = {RNNKERN_RELEVANCY_CELLS(RNNKERN_ENTRIES)};
#undef RNNKERN_ENTRIES
  return entries[place][std::find(std::begin(sample_sizes), std::end(sample_sizes), padded) - sample_sizes];
}

}  // namespace

template <class W>
bool SampleKernels<W>::has(int place, int padded) {
  return sample_kernel<W>(place, padded).forward != nullptr;
}

template <class W>
int64_t SampleKernels<W>::forward_bytes(int place, int padded, int64_t slots, int64_t relevant_size) {
  return sample_kernel<W>(place, padded).forward_bytes(slots, relevant_size);
}

template <class W>
int64_t SampleKernels<W>::backward_bytes(int place, int padded) {
  return sample_kernel<W>(place, padded).backward_bytes;
}

template <class W>
int64_t SampleKernels<W>::forward_packed(int place, int padded) {
  return sample_kernel<W>(place, padded).forward_packed;
}

template <class W>
int64_t SampleKernels<W>::backward_packed(int place, int padded) {
  return sample_kernel<W>(place, padded).backward_packed;
}

template <class W>
int SampleKernels<W>::forward(const SampleForward& problem, int place, int padded, void* stream) {
  return sample_kernel<W>(place, padded).forward(problem, stream);
}

template <class W>
int SampleKernels<W>::backward(const SampleBackward& problem, int place, int padded, void* stream) {
  return sample_kernel<W>(place, padded).backward(problem, stream);
}

}  // namespace rnnkern::relevancy

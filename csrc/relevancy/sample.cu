#include "device/launch.h"
#include "relevancy/cells.h"
#include "relevancy/cuda_kernels.h"
#include "relevancy/sample_backward.h"
#include "relevancy/sample_forward.h"

namespace rnnkern::relevancy {
namespace {

// What there is for a cell and P; `packed`: floats that are streamed.
struct Entry {
  int64_t forward_packed, backward_packed, backward_bytes;
  int64_t (*forward_bytes)(int64_t slots, int64_t relevant_size);
  int (*forward)(const SampleForward& problem, void* stream);
  int (*backward)(const SampleBackward& problem, void* stream);
};

template <class Whole>
constexpr int64_t packed_floats = int64_t(Whole::matrices) * Whole::packed * sample_threads * 4;

// After the weights that it streams, if any, are packed.
template <class Kernel, class Whole, int P>
int launch(const typename Kernel::Problem& p, const Rows& rows, bool transposed, int64_t bytes, void* stream) {
  if constexpr (constexpr int count = Whole::packed; count > 0) {
    const typename PackKernel<P>::Problem pack{rows.hidden,         transposed,          p.V,   p.W_a,
                                               Whole::matrices - 1, Whole::first_packed, count, p.packed};
    if (const int error = device::launch<PackKernel<P>>({.blocks = Whole::matrices * count}, pack, stream))
      return error;
  }
  return device::launch<Kernel>({.blocks = rows.batch, .shared_bytes = bytes}, p, stream);
}

template <class Cell, int P>
Entry entry() {
  using Forward = SampleForwardKernel<Cell, P>;
  using Backward = SampleBackwardKernel<Cell, P>;
  using Memory = SampleMemory<Cell, P>;
  return {packed_floats<typename Forward::Whole>,
          packed_floats<typename Backward::Whole>,
          Backward::Room::bytes(),
          &Memory::bytes,
          [](const SampleForward& p, void* stream) {
            const int64_t bytes = Memory::bytes(p.memory.slots, p.memory.relevant_size);
            return launch<Forward, typename Forward::Whole, P>(p, p.rows, false, bytes, stream);
          },
          [](const SampleBackward& p, void* stream) {
            return launch<Backward, typename Backward::Whole, P>(p, p.cell.rows, true, Backward::Room::bytes(), stream);
          }};
}

Entry find(int place, int padded) {
#define RNNKERN_ENTRIES(Cell) {entry<Cell, sample_sizes[0]>(), entry<Cell, sample_sizes[1]>()},
  static const Entry entries[][std::size(sample_sizes)] = {RNNKERN_RELEVANCY_CELLS(RNNKERN_ENTRIES)};
#undef RNNKERN_ENTRIES
  return entries[place][padded == sample_sizes[0] ? 0 : 1];
}

}  // namespace

int64_t SampleKernels::forward_bytes(int place, int padded, int64_t slots, int64_t relevant_size) {
  return find(place, padded).forward_bytes(slots, relevant_size);
}

int64_t SampleKernels::backward_bytes(int place, int padded) { return find(place, padded).backward_bytes; }

int64_t SampleKernels::forward_packed(int place, int padded) { return find(place, padded).forward_packed; }
int64_t SampleKernels::backward_packed(int place, int padded) { return find(place, padded).backward_packed; }

int SampleKernels::forward(const SampleForward& problem, int place, int padded, void* stream) {
  return find(place, padded).forward(problem, stream);
}

int SampleKernels::backward(const SampleBackward& problem, int place, int padded, void* stream) {
  return find(place, padded).backward(problem, stream);
}

}  // namespace rnnkern::relevancy

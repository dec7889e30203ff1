#include "device/launch.h"
#include "relevancy/cells.h"
#include "relevancy/cuda_kernels.h"
#include "relevancy/sample_backward.h"
#include "relevancy/sample_forward.h"

namespace rnnkern::relevancy {
namespace {

// What there is for a cell and P. The weights of four gates and 128 units outgrow the registers; backward the compiler
// spills those of four gates, and for sm_100 those of 128 units.
struct Entry {
  int64_t backward_bytes;
  int (*forward)(const SampleForward& problem, void* stream);
  int (*backward)(const SampleBackward& problem, void* stream);
};

template <class Cell, int P>
Entry entry() {
  if constexpr ((Cell::gates + 1) * P > sample_rows) {
    return {};
  } else {
    Entry made{};
    made.forward = [](const SampleForward& p, void* stream) {
      const int64_t bytes = SampleMemory<P>::bytes(p.memory.slots, p.memory.relevant_size);
      return device::launch<SampleForwardKernel<Cell, P>>({.blocks = p.rows.batch, .shared_bytes = bytes}, p, stream);
    };
    if constexpr (Cell::gates == 1 && P == 64) {
      made.backward_bytes = SampleBackwardKernel<Cell, P>::Room::bytes();
      made.backward = [](const SampleBackward& p, void* stream) {
        const int64_t bytes = SampleBackwardKernel<Cell, P>::Room::bytes();
        return device::launch<SampleBackwardKernel<Cell, P>>({.blocks = p.cell.rows.batch, .shared_bytes = bytes}, p,
                                                             stream);
      };
    }
    return made;
  }
}

Entry find(int place, int padded) {
#define RNNKERN_ENTRIES(Cell) {entry<Cell, sample_sizes[0]>(), entry<Cell, sample_sizes[1]>()},
  static const Entry entries[][std::size(sample_sizes)] = {RNNKERN_RELEVANCY_CELLS(RNNKERN_ENTRIES)};
#undef RNNKERN_ENTRIES
  return entries[place][padded == sample_sizes[0] ? 0 : 1];
}

}  // namespace

int64_t SampleKernels::forward_bytes(int padded, int64_t slots, int64_t relevant_size) {
  return padded == sample_sizes[0] ? SampleMemory<sample_sizes[0]>::bytes(slots, relevant_size)
                                   : SampleMemory<sample_sizes[1]>::bytes(slots, relevant_size);
}

int64_t SampleKernels::backward_bytes(int place, int padded) { return find(place, padded).backward_bytes; }

bool SampleKernels::has_forward(int place, int padded) { return find(place, padded).forward; }
bool SampleKernels::has_backward(int place, int padded) { return find(place, padded).backward; }

int SampleKernels::forward(const SampleForward& problem, int place, int padded, void* stream) {
  return find(place, padded).forward(problem, stream);
}

int SampleKernels::backward(const SampleBackward& problem, int place, int padded, void* stream) {
  return find(place, padded).backward(problem, stream);
}

}  // namespace rnnkern::relevancy

#include "relevancy/cells.h"
#include "relevancy/cuda/kernels.h"
#include "relevancy/cuda/per_sequence_backward.cuh"
#include "relevancy/cuda/per_sequence_forward.cuh"

namespace rnnkern::relevancy {
namespace {

// 16-bit weights are used where float weights do not fit, or would be streamed: an LSTM of 128 units.
template <class Cell, class W>
constexpr bool has_sample(int P) {
  return sizeof(W) == 4 ? P <= 128 : P == (Cell::gates > 1 ? 128 : 256);
}

template <class Kernel, int P, class W>
Resident of_sample(int64_t shared_bytes) {
  Resident found{&cuda::kernel<Kernel>, shared_bytes};
  if (Kernel::Whole::packs) {
    found.pack = &cuda::kernel<PackKernel<P, W>>;
    found.pack_blocks = Kernel::Whole::packed;
  }
  return found;
}

}  // namespace

template <class W>
Residents PerSequenceKernels<W>::of(int cell_id, int padded, int64_t slots, int64_t relevant_size) {
  return visit_cell(cell_id, [&]<class Cell>(CellType<Cell>) {
    return PerSequenceSizes::visit(padded, [&](auto size) {
      constexpr int P = size();
      if constexpr (has_sample<Cell, W>(P)) {
        using Forward = PerSequenceForwardKernel<Cell, P, W>;
        using Backward = PerSequenceBackwardKernel<Cell, P, W>;
        return Residents{of_sample<Forward, P, W>(Forward::Memory::bytes(slots, relevant_size)),
                         of_sample<Backward, P, W>(Backward::SharedLayout::bytes())};
      } else {
        return Residents{};
      }
    });
  });
}

// The interpreter compiles this file once per type, because it compiles the kernels' code too.
#if defined(RNNKERN_KERNELS_OF)
template struct PerSequenceKernels<RNNKERN_KERNELS_OF>;
#else
template struct PerSequenceKernels<float>;
template struct PerSequenceKernels<device::bfloat16>;
template struct PerSequenceKernels<device::float16>;
#endif

}  // namespace rnnkern::relevancy

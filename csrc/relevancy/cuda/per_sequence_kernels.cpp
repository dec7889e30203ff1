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
  using Whole = typename Kernel::Whole;
  const cuda::Kernel* const pack = Whole::packs ? &cuda::kernel<PackKernel<P, W>> : nullptr;
  return {&cuda::kernel<Kernel>, shared_bytes, 1, pack, Whole::packed};
}

}  // namespace

template <class W>
Residents per_sequence_kernels(int cell_id, int padded, int64_t slots, int64_t relevant_size) {
  return visit_cell(cell_id, [&]<class Cell>(CellType<Cell>) {
    return PerSequenceSizes::visit(padded, [&](auto size) -> Residents {
      constexpr int P = size();
      if constexpr (has_sample<Cell, W>(P)) {
        using Forward = PerSequenceForwardKernel<Cell, P, W>;
        using Backward = PerSequenceBackwardKernel<Cell, P, W>;
        return {of_sample<Forward, P, W>(Forward::Memory::bytes(slots, relevant_size)),
                of_sample<Backward, P, W>(Backward::SharedLayout::bytes())};
      }
      return {};
    });
  });
}

// The interpreter compiles this file once per type, because it compiles the kernels' code too.
#if defined(RNNKERN_KERNELS_OF)
template Residents per_sequence_kernels<RNNKERN_KERNELS_OF>(int, int, int64_t, int64_t);
#else
template Residents per_sequence_kernels<float>(int, int, int64_t, int64_t);
template Residents per_sequence_kernels<device::bfloat16>(int, int, int64_t, int64_t);
template Residents per_sequence_kernels<device::float16>(int, int, int64_t, int64_t);
#endif

}  // namespace rnnkern::relevancy

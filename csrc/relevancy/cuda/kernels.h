// Tables of the CUDA kernels of a cell of the relevancy recurrence.
#pragma once

#include "cuda/kernels.h"
#include "relevancy/cuda/problem.h"

namespace rnnkern::relevancy {

using cuda::Resident, cuda::Residents;

// The kernels of a cell; those that keep the weights also depend on L and rho. Clusters keep float32 alone.
struct KernelTable : cuda::KernelTable<int64_t, int64_t> {
  const cuda::Kernel *forward, *backward;  // of one step of the cell; null for 16-bit weights
};

// The table for the type in which V, W_a and U_a are kept on the chip: float, double, or a 16-bit type if their values
// have 16 bits. `cell_id` is the cell's index in relevancy/cells.h.
template <class W>
const KernelTable& table_of(int cell_id);

}  // namespace rnnkern::relevancy

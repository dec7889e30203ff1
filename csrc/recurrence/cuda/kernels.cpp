#include "recurrence/cuda/kernels.h"

#include "recurrence/cells.h"
#include "recurrence/cuda/resident_table.h"

namespace rnnkern {

template <class M>
const ResidentTable& BuiltIn<M>::resident(int cell_id) {
  return *visit_resident_cell(cell_id, []<class Cell>(CellType<Cell>) { return &resident_table<Cell, M>; });
}

// The interpreter compiles this file once per type, because it compiles the kernels' code too.
#if defined(RNNKERN_KERNELS_OF)
template struct BuiltIn<RNNKERN_KERNELS_OF>;
#else
template struct BuiltIn<float>;
template struct BuiltIn<device::bfloat16>;
template struct BuiltIn<device::float16>;
template struct BuiltIn<device::tfloat32>;
#endif

}  // namespace rnnkern

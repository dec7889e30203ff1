#include "recurrence/cuda/kernels.h"

#include "recurrence/cells.h"
#include "recurrence/cuda/kernel_table.h"

namespace rnnkern {

template <class T>
const KernelTable& table_of(const KnownCell& cell) {
  constexpr int index = std::is_same_v<T, float>              ? 0
                        : std::is_same_v<T, device::bfloat16> ? 1
                        : std::is_same_v<T, device::float16>  ? 2
                        : std::is_same_v<T, device::tfloat32> ? 3
                                                              : 4;
  if (cell.kernels) return cell.kernels->tables[index];
  return *visit_cell(cell.cell_id, []<class Cell>(CellType<Cell>) { return &kernel_table<Cell, T>; });
}

// The interpreter compiles this file once per type, because it compiles the kernels' code too.
#if defined(RNNKERN_KERNELS_OF)
template const KernelTable& table_of<RNNKERN_KERNELS_OF>(const KnownCell&);
#else
template const KernelTable& table_of<float>(const KnownCell&);
template const KernelTable& table_of<device::bfloat16>(const KnownCell&);
template const KernelTable& table_of<device::float16>(const KnownCell&);
template const KernelTable& table_of<device::tfloat32>(const KnownCell&);
template const KernelTable& table_of<double>(const KnownCell&);
#endif

}  // namespace rnnkern

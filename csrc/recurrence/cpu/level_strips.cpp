// The strips of every cell of cells/list.h at one SIMD level.
#include "recurrence/cpu/includes.h"

#include "common/simd_target.h"

#include "cells/list.h"
#include "recurrence/cpu/cell.h"

namespace rnnkern {

template <class T, SimdLevel>
Strips<T> strips_at(int cell_id) {
#define RNNKERN_STRIPS(Cell) strips_of<T, Cell>(),
  static constexpr Strips<T> all[] = {RNNKERN_ALL_CELLS(RNNKERN_STRIPS)};
#undef RNNKERN_STRIPS
  return all[cell_id];
}

template Strips<float> strips_at<float, SimdLevel::RNNKERN_SIMD_LEVEL>(int);
template Strips<double> strips_at<double, SimdLevel::RNNKERN_SIMD_LEVEL>(int);

}  // namespace rnnkern

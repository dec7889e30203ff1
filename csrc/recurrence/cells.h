// The facts of every cell at run time: of those in the list, and of those that were compiled at run time.
#pragma once

#include <atomic>
#include <iterator>
#include <string>

#include "cells/list.h"
#include "cells/strip.h"
#include "cells/visit.h"

namespace rnnkern {

struct CellInfo : CellNumbers {
  const char* name;

  // Tensors of the cell's own: where h is projected, that weight is one of them.
  int tensors() const { return params + projected; }
};

#define RNNKERN_INFO(Cell) {numbers_of<Cell>, Cell::name},
constexpr CellInfo cell_list[] = {RNNKERN_ALL_CELLS(RNNKERN_INFO)};
#undef RNNKERN_INFO

#define RNNKERN_ONE(Cell) +1
constexpr int resident_cells = RNNKERN_CELLS(RNNKERN_ONE);  // the first of the list: those that a GPU keeps R for
#undef RNNKERN_ONE

RNNKERN_CELL_VISITOR(visit_cell, RNNKERN_ALL_CELLS)
RNNKERN_CELL_VISITOR(visit_resident_cell, RNNKERN_CELLS)

// Its place in the list, or -1.
inline int find_cell(const std::string& name) {
  int place = 0;
  for (const CellInfo& cell : cell_list) {
    if (name == cell.name) return place;
    ++place;
  }
  return -1;
}

constexpr int compiled_place = int(std::size(cell_list));  // of all cells that were compiled at run time

// A cell that was compiled at run time, for one SIMD level.
struct RegisteredCell {
  std::string name;
  const CompiledCell* compiled;
  const RegisteredCell* next;
};

// Finds the cell of a name for the SIMD level in use, or null. Set once such a cell is registered
// (recurrence/cpu/registered.cpp): what never registers one does not need the CPU kernels.
inline std::atomic<const RegisteredCell* (*)(const std::string&)> find_registered = nullptr;

}  // namespace rnnkern

// The properties of cells at run time: built-in ones, and those compiled at run time.
#pragma once

#include <atomic>
#include <iterator>
#include <string>

#include "cells/list.h"
#include "cells/visit.h"

namespace rnnkern {

constexpr CellInfo cell_list[] = {RNNKERN_ALL_CELLS(RNNKERN_CELL_INFO)};

#define RNNKERN_ONE(Cell) +1
constexpr int resident_cells =
    RNNKERN_CELLS(RNNKERN_ONE);  // the first cells of the list, which have CUDA kernels that keep R
#undef RNNKERN_ONE

RNNKERN_CELL_VISITOR(visit_cell, RNNKERN_ALL_CELLS)

constexpr int compiled_cell_id = int(std::size(cell_list));  // stands for every cell compiled at run time

// A cell that was compiled at run time, for one SIMD level or for CUDA.
struct RegisteredCell {
  std::string name;
  const CompiledCell* cell;
  const RegisteredCell* next;
};

// Finds the cell of a name for a SIMD level or for CUDA, or null. Set once such a cell is registered
// (recurrence/registered.cpp), because programs that never register one are built without that file.
inline std::atomic<const RegisteredCell* (*)(const std::string&, int vector_bytes)> find_registered = nullptr;

// What a call needs of a cell.
struct KnownCell {
  int cell_id = -1;  // in cells/list.h, or compiled_cell_id; -1 if there is no such cell
  CellInfo info{};
  const CompiledStrips* strips = nullptr;    // of a cell compiled at run time, or null
  const CompiledKernels* kernels = nullptr;  // likewise
};

inline KnownCell known_cell(const std::string& name, int vector_bytes) {
  if (const int cell_id = find_cell(cell_list, name); cell_id >= 0) return {cell_id, cell_list[cell_id]};
  const auto find = find_registered.load(std::memory_order_acquire);
  const RegisteredCell* found = find ? find(name, vector_bytes) : nullptr;
  if (!found) return {};
  const CompiledCell& cell = *found->cell;
  return {compiled_cell_id, {cell.numbers, found->name.c_str()}, cell.strips, cell.kernels};
}

}  // namespace rnnkern

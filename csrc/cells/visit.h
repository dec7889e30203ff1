// A cell of a list, found at run time.
#pragma once

#include "cells/strip.h"

namespace rnnkern {

struct CellInfo : CellNumbers {
  const char* name;

  // Number of the cell's own tensors, including the weight that projects h.
  int tensors() const { return params + projected; }
};

#define RNNKERN_CELL_INFO(Cell) {numbers_of<Cell>, Cell::name},

// The index of the cell with that name in a list, or -1.
template <int cells, class String>
int find_cell(const CellInfo (&list)[cells], const String& name) {
  for (int cell_id = 0; cell_id < cells; ++cell_id)
    if (name == list[cell_id].name) return cell_id;
  return -1;
}

template <class Cell>
struct CellType {};

// Defines name(cell_id, f), which returns f(CellType<Cell>()) of the cell at this cell_id of a list.
#define RNNKERN_CELL_VISITOR(name, LIST)                                        \
  template <class F>                                                            \
  auto name(int cell_id, F f) {                                                 \
    using Result = decltype(f(CellType<Tanh>()));                               \
    static constexpr Result (*cases[])(F&) = {LIST(RNNKERN_CELL_VISITOR_CASE)}; \
    return cases[cell_id](f);                                                   \
  }
#define RNNKERN_CELL_VISITOR_CASE(Cell) [](F& f) -> Result { return f(CellType<Cell>()); },

}  // namespace rnnkern

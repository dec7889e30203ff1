// A cell of a list, found at run time.
#pragma once

namespace rnnkern {

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

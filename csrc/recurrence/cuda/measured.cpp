#include <sstream>
#include <tuple>

#include "recurrence/cells.h"
#include "recurrence/cuda/measured.h"

namespace rnnkern {
namespace {

constexpr const char* table = ""
#include "recurrence/cuda/measured_table.h"
    ;

}  // namespace

std::vector<Measured> read_measured(const std::string& text) {
  std::vector<Measured> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    Measured row{};
    std::string cell, dtype;
    std::istringstream words(line);
    words >> row.major >> cell >> dtype >> row.hidden >> row.batch >> row.kernel >> row.forward >> row.both;
    row.cell_id = find_cell(cell);
    row.dtype = scalar_type(dtype);
    STD_TORCH_CHECK(words && row.cell_id >= 0,
                    "a measured row must be 'major cell dtype H B kernel forward both', got '", line, "'");
    rows.push_back(row);
  }
  return rows;
}

const std::vector<Measured>& measured() {
  static const std::vector<Measured> rows = read_measured(table);
  return rows;
}

const Measured* find_measured(const std::vector<Measured>& rows, int major, int cell_id, ScalarType dtype,
                              int64_t hidden, int64_t batch) {
  const Measured* found = nullptr;
  for (const Measured& row : rows) {
    if (std::tie(row.major, row.cell_id, row.dtype) != std::tie(major, cell_id, dtype)) continue;
    if (row.hidden < hidden || row.batch < batch) continue;
    if (!found || std::tie(row.hidden, row.batch) < std::tie(found->hidden, found->batch)) found = &row;
  }
  return found;
}

}  // namespace rnnkern

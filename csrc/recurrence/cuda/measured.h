// Measurements by `make gpu` of dense layers of one direction, as far as plans use them: the fastest of our kernels,
// and its speed relative to torch.nn. perf/gpu/measured.py writes the rows to measured_table.h.
#pragma once

#include <string>
#include <vector>

#include "common/tensor.h"

namespace rnnkern {

struct Measured {
  int major, cell_id;  // the device's compute capability; the cell's index in cells/list.h
  ScalarType dtype;    // float32 means exact float32
  int64_t hidden, batch;
  std::string kernel;    // "block", "cluster", "grid" or "stepwise"
  double forward, both;  // speed relative to torch.nn, without and with the backward; 0 if torch.nn lacks the cell
};

// Parses one row per line, with words in the order of Measured: "9 lstm bfloat16 768 16 cluster 1.3 1.1".
std::vector<Measured> read_measured(const std::string& text);

// The rows of measured_table.h.
const std::vector<Measured>& measured();

// The row with the smallest H, and then the smallest B, that are not below those of the call; or null.
const Measured* find_measured(const std::vector<Measured>& rows, int major, int cell_id, ScalarType dtype,
                              int64_t hidden, int64_t batch);

}  // namespace rnnkern

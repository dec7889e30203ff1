// What `make gpu` measured of dense layers of one direction, as far as a plan asks for it: which kernel of ours was the
// fastest, and how it stands to torch.nn. perf/gpu_plan.py writes the rows, measured_table.h.
#pragma once

#include <string>
#include <vector>

#include "common/tensor.h"

namespace rnnkern {

struct Measured {
  int major, place;  // the device's compute capability; the cell's place in cells/list.h
  ScalarType dtype;  // float32 exact
  int64_t hidden, batch;
  std::string kernel;    // "block", "cluster", "grid" or "stepwise"
  double forward, both;  // times faster than torch.nn: forward, and with the backward; 0 where it has not the cell
};

// A line per row, words in the order of Measured: "9 lstm bfloat16 768 16 cluster 1.3 1.1".
std::vector<Measured> read_measured(const std::string& text);

// The rows of measured_table.h.
const std::vector<Measured>& measured();

// The row of the least H, and of these of the least B, that are not below a call's; or null.
const Measured* find_measured(const std::vector<Measured>& rows, int major, int place, ScalarType dtype, int64_t hidden,
                              int64_t batch);

}  // namespace rnnkern

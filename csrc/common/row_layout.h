// Maps steps and sequences to rows of the tensors of a call. The only code that reads `batch_sizes`.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// Layout of a padded tensor (T, B, C), or of a packed tensor (rows, C) with `batch_sizes` (T,). Packed sequences are
// sorted by decreasing length, and row b of a step belongs to sequence b.
struct RowLayout {
  int64_t steps = 0, batch = 0, rows = 0;
  // For packed rows only (null for a padded tensor). CPU memory, owned by this object and its copies.
  const int64_t* offsets = nullptr;  // (T + 1,): first row of each step, then the number of rows
  const int64_t* lengths = nullptr;  // (B,): number of steps of each sequence

  RowLayout() = default;
  // Throws if the sizes do not match. `op` (the operator) and `name` (the argument `x`) are for the error message.
  RowLayout(const char* op, const char* name, const Tensor& x, int64_t batch, const OptionalTensor& batch_sizes);

  bool packed() const { return offsets; }
  int64_t alive(int64_t step) const { return offsets ? offsets[step + 1] - offsets[step] : batch; }
  int64_t first_row(int64_t step) const { return offsets ? offsets[step] : step * batch; }
  int64_t length(int64_t sequence) const { return lengths ? lengths[sequence] : steps; }

  // Copies `offsets`, followed by `lengths`, to the device of `like`. For packed rows only. Throws during CUDA graph
  // capture: the graph would record a copy from host memory that is freed before the graph replays.
  Tensor on_device_of(const Tensor& like, const char* op, bool captured) const;

 private:
  OptionalTensor table_;
};

}  // namespace rnnkern

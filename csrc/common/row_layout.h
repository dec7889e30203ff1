// Which rows of a call's tensors belong to which step and sequence: the one place that reads `batch_sizes`.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

// Of a tensor (T, B, C), or packed (rows, C) with `batch_sizes` (T,): sequences are sorted by length, longest first,
// and row b of a step is sequence b.
struct RowLayout {
  int64_t steps = 0, batch = 0, rows = 0;
  // Of packed rows, on the CPU for as long as this or a copy of it lives; null where every step has B rows.
  const int64_t* offsets = nullptr;  // (T + 1,): the first row of each step, then the number of rows
  const int64_t* lengths = nullptr;  // (B,): steps of each sequence

  RowLayout() = default;
  // Throws unless the sizes fit. `op` and `name` are the operator and the argument `x`, for the message.
  RowLayout(const char* op, const char* name, const Tensor& x, int64_t batch, const OptionalTensor& batch_sizes);

  bool packed() const { return offsets; }
  int64_t alive(int64_t step) const { return offsets ? offsets[step + 1] - offsets[step] : batch; }
  int64_t first_row(int64_t step) const { return offsets ? offsets[step] : step * batch; }
  int64_t length(int64_t sequence) const { return lengths ? lengths[sequence] : steps; }

  // `offsets`, followed by `lengths`, on the device of `like`. Of packed rows only. Throws while a CUDA graph captures
  // the stream: it would record the copy from memory that is free again when it replays.
  Tensor on_device_of(const Tensor& like, const char* op, bool captured) const;

 private:
  OptionalTensor table_;
};

}  // namespace rnnkern

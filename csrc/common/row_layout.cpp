#include "common/row_layout.h"

namespace rnnkern {

RowLayout::RowLayout(const char* op, const char* name, const Tensor& x, int64_t batch,
                     const OptionalTensor& batch_sizes)
    : batch(batch) {
  STD_TORCH_CHECK(x.dim() == (batch_sizes ? 2 : 3), op, ": `", name,
                  "` must be (T, B, C), or (rows, C) with `batch_sizes`; it has ", x.dim(), " dimensions");
  if (!batch_sizes) {
    steps = x.size(0);
    rows = steps * batch;
    STD_TORCH_CHECK(x.size(1) == batch, op, ": `", name, "` must have B = ", batch, " like the state, got ", x.size(1));
    return;
  }
  STD_TORCH_CHECK(batch_sizes->scalar_type() == ScalarType::Long && batch_sizes->dim() == 1 && !batch_sizes->is_cuda(),
                  op, ": `batch_sizes` must be (T,) int64, on the CPU");
  const Tensor sizes = dense(*batch_sizes);
  steps = sizes.numel();
  table_ = empty_int64(sizes, steps + 1 + batch);
  int64_t* const first_rows = write<int64_t>(*table_);
  int64_t* const ends = first_rows + steps + 1;
  int64_t before = batch;
  for (int64_t t = 0; t < steps; ++t) {
    const int64_t now = read<int64_t>(sizes)[t];
    STD_TORCH_CHECK(0 <= now && now <= before, op, ": `batch_sizes` must not increase from B = ", batch,
                    " or be negative, got ", now, " at ", t);
    for (int64_t b = now; b < before; ++b) ends[b] = t;
    first_rows[t] = rows;
    rows += before = now;
  }
  for (int64_t b = 0; b < before; ++b) ends[b] = steps;
  first_rows[steps] = rows;
  STD_TORCH_CHECK(rows == x.size(0), op, ": `batch_sizes` must sum to the rows of `", name, "`, ", x.size(0),
                  ", got a sum of ", rows);
  offsets = first_rows;
  lengths = ends;
}

Tensor RowLayout::on_device_of(const Tensor& like, const char* op, bool captured) const {
  STD_TORCH_CHECK(!captured, op,
                  ": packed input cannot be captured in a CUDA graph, since `batch_sizes` are read on the CPU; capture "
                  "a call with padded input (T, B, ...) instead, or leave this one out of the graph");
  const Tensor table = empty(like, {table_->numel()}, ScalarType::Long);
  copy(table, *table_);
  return table;
}

}  // namespace rnnkern

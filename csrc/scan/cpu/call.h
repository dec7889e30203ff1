// Shared by the CPU drivers of this family: the rows of a call, allocation, and the number of threads.
#pragma once

#include <vector>

#include "common/row_layout.h"
#include "cpu/levels.h"
#include "cpu/run.h"
#include "scan/cpu/problem.h"

namespace rnnkern {

constexpr int64_t worth_sharing = 32768;  // reals per thread

// The operator's name, and the names of the arguments that have its rows and its state.
struct ScanNames {
  const char *op, *rows, *state;
};

// The checks needed for memory safety, the sizes for the kernels, and the tensors that these sizes point into.
struct ScanRows {
  ScanNames names;
  OptionalTensor reset;
  std::vector<int64_t> state;  // (B, C)
  RowLayout layout;
  ScanSizes sizes;

  // `x` is any tensor with the sizes of the rows; `initial` is an initial state, which has the same B.
  ScanRows(ScanNames names_, const Tensor& x, const OptionalTensor& initial, const OptionalTensor& batch_sizes,
           const OptionalTensor& reset_, bool reverse, int64_t reals = 1)
      : names(names_), reset(reset_) {
    require(initial || !batch_sizes, names.state, "must be there where `batch_sizes` is");
    layout = RowLayout(names.op, names.rows, x, initial ? initial->size(0) : x.size(1), batch_sizes);
    const int64_t channels = x.size(x.dim() - 1), steps = layout.steps, batch = layout.batch;
    require(!reset || (reset->scalar_type() == ScalarType::Bool && reset->numel() == steps * batch), "reset",
            "must be (T, B) bool");
    state = {batch, channels};
    const bool apart = batch_sizes || reset;
    sizes.steps = steps;
    sizes.groups = apart ? batch : 1;
    sizes.width = reals * channels * (apart ? 1 : batch);
    if (reset) reset = dense(*reset);
    sizes.offsets = layout.offsets;
    sizes.lengths = layout.lengths;
    sizes.reset = read<bool>(reset);
    sizes.complex = reals == 2;
    sizes.per_step = false;
    sizes.reverse = reverse;
  }
  ScanRows(const ScanRows&) = delete;

  void require(bool holds, const char* argument, const char* must) const {
    STD_TORCH_CHECK(holds, names.op, ": `", argument, "` ", must);
  }

  int64_t reals_of_state() const { return sizes.groups * sizes.width; }

  // Checks optional arguments and makes them contiguous.
  OptionalTensor like_state(const OptionalTensor& given, const char* argument, ScalarType dtype) const {
    if (!given) return given;
    const bool fits = given->dim() == 2 && given->size(0) == state[0] && given->size(1) == state[1];
    require(fits && given->scalar_type() == dtype, argument, "must be (B, C), of the dtype that states have");
    return dense(*given);
  }
  OptionalTensor like_rows(const OptionalTensor& given, const char* argument, const Tensor& x) const {
    if (!given) return given;
    require(given->numel() == x.numel() && given->scalar_type() == x.scalar_type(), argument,
            "must be of the sizes and the dtype of the rows");
    return dense(*given);
  }
};

template <class Problem>
void run(void (*kernel)(const Problem&, ThreadContext), const Problem& problem, int64_t reals) {
  in_team(at_most_all(1 + reals / worth_sharing), problem, kernel);
}

inline void begin_with(const Tensor& to, const OptionalTensor& from) {
  if (from)
    copy(to, *from);
  else
    fill_zero(to);
}

}  // namespace rnnkern

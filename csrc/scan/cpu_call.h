// What the drivers of this family share on a CPU: the rows of a call, what is allocated for them, and how many threads
// take them.
#pragma once

#include <omp.h>

#include <vector>

#include "common/levels.h"
#include "common/reuse.h"
#include "scan/problem.h"

namespace rnnkern {

constexpr int64_t worth_sharing = 32768;  // reals

template <class T>
ScanKernels<T> scan_kernels_in_use() {
  return at_level_in_use([]<SimdLevel level>() { return scan_kernels_at<T, level>(); });
}

// What a call is about: its operator, and the arguments that have its rows and its states.
struct ScanNames {
  const char *op, *rows, *state;
};

// What is checked for the sake of memory, what the kernels are told of it, and what they read there.
struct ScanRows {
  ScanNames names;
  OptionalTensor reset;
  std::vector<int64_t> state;  // (B, C)
  std::vector<int64_t> begins, lengths;
  ScanSizes sizes;

  // Of any tensor that has the sizes of the rows; B is also that of an initial state.
  ScanRows(ScanNames names_, const Tensor& x, const OptionalTensor& initial, const OptionalTensor& batch_sizes,
           const OptionalTensor& reset_, bool reverse, int64_t reals = 1)
      : names(names_), reset(reset_) {
    const int64_t rank = batch_sizes ? 2 : 3;
    require(x.dim() == rank, names.rows, "must be (T, B, C), or (rows, C) beside `batch_sizes`");
    require(initial || !batch_sizes, names.state, "must be there where `batch_sizes` is");
    const int64_t channels = x.size(rank - 1), batch = initial ? initial->size(0) : x.size(1);
    const int64_t steps = batch_sizes ? batch_sizes->numel() : x.size(0);
    require(batch_sizes || x.size(1) == batch, names.state, "has another B than the rows");
    require(!reset || (reset->scalar_type() == ScalarType::Bool && reset->numel() == steps * batch), "reset",
            "must be (T, B) bool");
    state = {batch, channels};
    const bool apart = batch_sizes || reset;
    sizes.steps = steps;
    sizes.groups = apart ? batch : 1;
    sizes.width = reals * channels * (apart ? 1 : batch);
    if (batch_sizes) read_lengths(*batch_sizes, x.size(0), reals * channels);
    if (reset) reset = dense(*reset);
    sizes.rows = batch_sizes ? begins.data() : nullptr;
    sizes.lengths = batch_sizes ? lengths.data() : nullptr;
    sizes.reset = reset ? read<bool>(*reset) : nullptr;
    sizes.complex = reals == 2;
    sizes.per_step = false;
    sizes.reverse = reverse;
  }
  ScanRows(const ScanRows&) = delete;

  void require(bool holds, const char* argument, const char* must) const {
    STD_TORCH_CHECK(holds, names.op, ": `", argument, "` ", must);
  }

  void read_lengths(const Tensor& batch_sizes, int64_t total, int64_t width) {
    require(batch_sizes.scalar_type() == ScalarType::Long, "batch_sizes", "must be int64");
    const Tensor values = dense(batch_sizes);
    int64_t before = state[0], sum = 0;
    lengths.assign(before, 0);
    for (int64_t t = 0; t < sizes.steps; ++t) {
      const int64_t now = read<int64_t>(values)[t];
      require(0 <= now && now <= before, "batch_sizes", "must never grow, begin with at most B and not be negative");
      begins.push_back(sum * width);
      for (int64_t b = now; b < before; ++b) lengths[b] = t;
      sum += before = now;
    }
    for (int64_t b = 0; b < before; ++b) lengths[b] = sizes.steps;
    require(sum == total, "batch_sizes", "must sum to the rows");
  }

  int64_t reals_of_state() const { return sizes.groups * sizes.width; }

  // Arguments that may be missing, dense.
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

// Of the sizes of `x`, kept for the next call.
inline Tensor rows_like(const Tensor& x, std::optional<ScalarType> dtype = {}) {
  const auto sizes = x.sizes();
  return reusable(x, {sizes.begin(), sizes.end()}, dtype.value_or(x.scalar_type()));
}

template <class Problem>
void run(void (*kernel)(const Problem&, Member), const Problem& problem, int64_t reals) {
  const int64_t all = omp_in_parallel() ? 1 : get_num_threads(), worth = 1 + reals / worth_sharing;
  const int threads = int(worth < all ? worth : all);
  if (threads == 1) return kernel(problem, Member{0, 1, nullptr});
#pragma omp parallel num_threads(threads)
  kernel(problem, Member{omp_get_thread_num(), omp_get_num_threads(), nullptr});
}

template <class T>
const T* read_or_null(const OptionalTensor& x) {
  return x ? read<T>(*x) : nullptr;
}

inline void begin_with(const Tensor& to, const OptionalTensor& from) {
  if (from)
    copy(to, *from);
  else
    fill_zero(to);
}

}  // namespace rnnkern

// The operator `linear` on a CPU: the checks needed for memory safety, allocation, and the number of threads.
#include "recurrence/cpu/linear.h"

#include "cpu/levels.h"
#include "recurrence/cpu/team.h"

namespace rnnkern {
namespace {

constexpr int64_t held = int64_t(1) << 18;  // elements of x that a core's cache holds

// y = x W^T + b for x (..., K), weight (N, K) and bias (N,). The bits of a row of y depend neither on the other rows
// nor on the number of threads.
Tensor linear_cpu(Tensor x, Tensor weight, OptionalTensor bias) {
  STD_TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && weight.size(1) == x.size(x.dim() - 1) &&
                      weight.scalar_type() == x.scalar_type(),
                  "linear: `weight` must be (N, K), of the dtype of `x`, which is (..., K)");
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  STD_TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == outputs && bias->scalar_type() == x.scalar_type()),
                  "linear: `bias` must be (N,), of the dtype of `x`");
  return by_float_or_double(x, "linear: `x` must be float32 or float64", [&](auto zero) {
    using T = decltype(zero);
    const Tensor y = empty(x, sizes_with(x, 1, {outputs}));
    if (!y.numel()) return y;
    if (!inputs) {
      bias ? copy(y, *bias) : fill_zero(y);
      return y;
    }
    x = dense(x), weight = dense(weight);
    if (bias) bias = dense(*bias);
    const int64_t rows = x.numel() / inputs;
    const int threads = at_most_all(1 + rows * weight.numel() / worth_waking);
    const bool by_rows = threads > 1 && rows >= int64_t(chunk_rows) * threads;
    const bool at_once = !by_rows && (rows <= chunk_rows || (rows <= 4 * chunk_rows && x.numel() <= held));
    const Matrix<T> matrix{read<T>(weight), read<T>(bias), 1, 1, outputs, inputs};
    Linear<T> p{matrix, rows, by_rows, at_once, read<T>(x), write<T>(y), nullptr};
    const auto kernel = at_level_in_use([]<SimdLevel level>() { return linear_at<T, level>(); });
    const Workspace<T> workspace(kernel.workspace(p, threads), x);
    p.workspace = workspace.begin;
    in_team(threads, p, kernel.run);
    return y;
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CPU, m) { m.impl("linear", TORCH_BOX(&linear_cpu)); }

}  // namespace rnnkern

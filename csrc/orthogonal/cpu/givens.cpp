// Products with layers of Givens rotations on a CPU: the checks needed for memory safety, and allocation.
#include "orthogonal/givens.h"

#include "orthogonal/cpu/givens_call.h"

namespace rnnkern {
namespace {

constexpr const char* dtypes = "givens_product: `angles` must be float32 or float64";

// Makes the arguments contiguous, and checks that their dtypes and sizes match.
GivensSizes check(Tensor& angles, Tensor& x, bool columns, bool butterfly) {
  STD_TORCH_CHECK(angles.dim() >= 2 && x.dim() == angles.dim(),
                  "givens_product: `angles` must be (..., L, N / 2), `x` (..., R, N) or (..., N, R)");
  STD_TORCH_CHECK(x.scalar_type() == angles.scalar_type(), "givens_product: `x` must be of the dtype of `angles`");
  GivensSizes sizes{.count = 1,
                    .vectors = x.size(columns ? -1 : -2),
                    .size = x.size(columns ? -2 : -1),
                    .layers = angles.size(-2),
                    .columns = columns,
                    .butterfly = butterfly};
  bool fit = angles.size(-1) == sizes.size / 2;
  for (int64_t k = 0; k < angles.dim() - 2; ++k) {
    fit = fit && x.size(k) == angles.size(k);
    sizes.count *= angles.size(k);
  }
  STD_TORCH_CHECK(fit, "givens_product: `angles` must be (..., L, N / 2) for the N and the batch of `x`");
  STD_TORCH_CHECK(!butterfly || (sizes.size & (sizes.size - 1)) == 0, "givens_product: N must be a power of two");
  angles = dense(angles);
  x = dense(x);
  return sizes;
}

int64_t rotations(const GivensSizes& sizes) { return sizes.count * sizes.vectors * sizes.angles(); }

}  // namespace

Tensor givens_product_cpu(Tensor angles, Tensor x, bool columns, bool butterfly) {
  const GivensSizes sizes = check(angles, x, columns, butterfly);
  return by_float_or_double(angles, dtypes, [&](auto zero) {
    using T = decltype(zero);
    const Tensor y = empty_of_sizes(x, x);
    if (!y.numel()) return y;
    count_kernel("givens_product/cpu", "forward", angles);
    const GivensForward<T> problem{.sizes = sizes, .angles = read<T>(angles), .x = read<T>(x), .y = write<T>(y)};
    run(kernels_in_use<GivensKernels<T>>().forward, problem, threads_for(rotations(sizes)), angles);
    return y;
  });
}

Tensors givens_product_backward_cpu(Tensor grad, Tensor angles, Tensor y, bool columns, bool butterfly, bool needs_x) {
  const GivensSizes sizes = check(angles, y, columns, butterfly);
  STD_TORCH_CHECK(grad.numel() == y.numel() && grad.scalar_type() == y.scalar_type(),
                  "givens_product_backward: `grad` must be of the size and dtype of `y`");
  grad = dense(grad);
  return by_float_or_double(angles, dtypes, [&](auto zero) {
    using T = decltype(zero);
    Tensors results = {empty_of_sizes(angles, angles)};
    if (needs_x) results.push_back(empty_of_sizes(y, y));
    if (!y.numel()) {
      fill_zero(results[0]);
      return results;
    }
    count_kernel("givens_product/cpu", "backward", angles);
    const GivensBackward<T> problem{.sizes = sizes,
                                    .angles = read<T>(angles),
                                    .y = read<T>(y),
                                    .grad = read<T>(grad),
                                    .grad_angles = write<T>(results[0]),
                                    .grad_x = needs_x ? write<T>(results[1]) : nullptr};
    run(kernels_in_use<GivensKernels<T>>().backward, problem, threads_for(rotations(sizes)), angles);
    return results;
  });
}

}  // namespace rnnkern

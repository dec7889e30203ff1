// skew_exp on a CPU: the checks needed for memory safety, and allocation.
#include "orthogonal/cpu/call.h"

namespace rnnkern {

Tensors skew_exp_cpu(Tensor A, bool minus_identity, bool training) {
  STD_TORCH_CHECK(A.dim() >= 2 && A.size(-1) == A.size(-2), "skew_exp: `A` must be (..., N, N)");
  A = dense(A);
  return by_float_or_double(A, dtypes, [&](auto zero) {
    using T = decltype(zero);
    const int64_t n = A.size(-1), count = n ? A.numel() / (n * n) : 0;
    Tensors results = {empty_of_sizes(A, A)};
    SkewForward<T> problem{.size = n, .minus_identity = minus_identity};
    if (training) {
      const int64_t products = in_lanes<T>(n) ? 0 : kept_products<T>;
      results.push_back(cached_empty(A, sizes_with(A, 2, {products, n, n}), A.scalar_type()));
      results.push_back(empty(A, sizes_with(A, 2, {plan_size}), ScalarType::Long));
      problem.kept = write<T>(results[1]);
      problem.plan = write<int64_t>(results[2]);
    }
    if (!count) return results;
    problem.A = read<T>(A);
    problem.result = write<T>(results[0]);
    count_kernel("skew_exp/cpu", "forward", A);
    run_matrices(kernels_in_use<OrthogonalKernels<T>>().skew_forward, problem, count, A);
    return results;
  });
}

Tensor skew_exp_backward_cpu(Tensor grad, Tensor A, Tensor kept, Tensor plan) {
  A = dense(A);
  grad = dense(grad);
  kept = dense(kept);
  plan = dense(plan);
  return by_float_or_double(A, dtypes, [&](auto zero) {
    using T = decltype(zero);
    const Tensor result = empty_of_sizes(A, A);
    if (!A.numel()) return result;
    const int64_t n = A.size(-1), count = A.numel() / (n * n);
    STD_TORCH_CHECK(grad.numel() == A.numel() && grad.scalar_type() == A.scalar_type() &&
                        kept.numel() == (in_lanes<T>(n) ? 0 : kept_products<T>)*A.numel() &&
                        kept.scalar_type() == A.scalar_type() && plan.numel() == plan_size * count &&
                        plan.scalar_type() == ScalarType::Long,
                    "skew_exp_backward: `grad`, `kept` and `plan` must be as the forward made them");
    const int64_t* plans = read<int64_t>(plan);
    int64_t squarings = 0;
    for (int64_t m = 0; m < count; ++m) {
      const int64_t scheme = plans[m * plan_size], times = plans[m * plan_size + 1];
      STD_TORCH_CHECK(scheme >= 0 && scheme < scheme_count<T> && times >= 0,
                      "skew_exp_backward: `plan` must be as the forward made it");
      if (times > squarings) squarings = times;
    }
    count_kernel("skew_exp/cpu", "backward", A);
    const SkewBackward<T> problem{.size = n,
                                  .squarings = squarings,
                                  .A = read<T>(A),
                                  .kept = read<T>(kept),
                                  .grad = read<T>(grad),
                                  .plan = plans,
                                  .grad_A = write<T>(result)};
    run_matrices(kernels_in_use<OrthogonalKernels<T>>().skew_backward, problem, count, A);
    return result;
  });
}

}  // namespace rnnkern

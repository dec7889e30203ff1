// skew_exp on a CPU: what is checked for the sake of memory, and what is allocated.
#include "orthogonal/cpu_call.h"

namespace rnnkern {

Tensors skew_exp_cpu(Tensor A, bool minus_identity, bool training) {
  STD_TORCH_CHECK(A.dim() >= 2 && A.size(-1) == A.size(-2), "skew_exp: `A` must be (..., N, N)");
  A = dense(A);
  return by_dtype(A, [&](auto zero) {
    using T = decltype(zero);
    const int64_t n = A.size(-1);
    Tensors results = {empty_of_sizes(A, A)};
    SkewForward<T> problem{.size = n, .count = n ? A.numel() / (n * n) : 0, .minus_identity = minus_identity};
    if (training) {
      results.push_back(reusable(A, with(A, 2, {kept_products<T>, n, n}), A.scalar_type()));
      results.push_back(empty(A, with(A, 2, {plan_size}), ScalarType::Long));
      problem.kept = write<T>(results[1]);
      problem.plan = write<int64_t>(results[2]);
    }
    if (!problem.count) return results;
    problem.A = read<T>(A);
    problem.result = write<T>(results[0]);
    count_kernel("skew_exp/cpu", "forward", A);
    run(kernels<T>().skew_forward, problem, A, [n](SkewForward<T> part, int64_t first, int64_t count) {
      part.count = count;
      part.A += first * n * n;
      part.result += first * n * n;
      if (part.kept) part.kept += first * kept_products<T> * n * n;
      if (part.plan) part.plan += first * plan_size;
      return part;
    });
    return results;
  });
}

Tensor skew_exp_backward_cpu(Tensor grad, Tensor A, Tensor kept, Tensor plan) {
  A = dense(A);
  grad = dense(grad);
  kept = dense(kept);
  plan = dense(plan);
  return by_dtype(A, [&](auto zero) {
    using T = decltype(zero);
    const Tensor result = empty_of_sizes(A, A);
    if (!A.numel()) return result;
    const int64_t n = A.size(-1), count = A.numel() / (n * n);
    STD_TORCH_CHECK(grad.numel() == A.numel() && grad.scalar_type() == A.scalar_type() &&
                        kept.numel() == kept_products<T> * A.numel() && kept.scalar_type() == A.scalar_type() &&
                        plan.numel() == plan_size * count && plan.scalar_type() == ScalarType::Long,
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
                                  .count = count,
                                  .squarings = squarings,
                                  .A = read<T>(A),
                                  .kept = read<T>(kept),
                                  .grad = read<T>(grad),
                                  .plan = plans,
                                  .grad_A = write<T>(result)};
    run(kernels<T>().skew_backward, problem, A, [n](SkewBackward<T> part, int64_t first, int64_t count) {
      part.count = count;
      part.A += first * n * n;
      part.kept += first * kept_products<T> * n * n;
      part.grad += first * n * n;
      part.plan += first * plan_size;
      part.grad_A += first * n * n;
      return part;
    });
    return result;
  });
}

}  // namespace rnnkern

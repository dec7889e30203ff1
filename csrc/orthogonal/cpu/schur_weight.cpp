// schur_weight on a CPU: the checks needed for memory safety, and allocation.
#include "orthogonal/cpu/call.h"

namespace rnnkern {
namespace {

// Makes the arguments contiguous, and checks that their dtypes and sizes match; returns the number of matrices.
int64_t check(Tensor& P, Tensor& theta, Tensor& gamma, Tensor& T) {
  STD_TORCH_CHECK(P.dim() >= 2 && P.size(-1) == P.size(-2), "schur_weight: `P` must be (..., N, N)");
  const int64_t n = P.size(-1), count = n ? P.numel() / (n * n) : 0;
  for (const Tensor* x : {&theta, &gamma, &T})
    STD_TORCH_CHECK(x->scalar_type() == P.scalar_type(), "schur_weight: all tensors must be of the dtype of `P`");
  STD_TORCH_CHECK(theta.numel() == count * (n / 2) && gamma.numel() == count * ((n + 1) / 2) && T.numel() == P.numel(),
                  "schur_weight: `theta` must be (..., N // 2), `gamma` (..., (N + 1) // 2), `T` (..., N, N)");
  for (Tensor* x : {&P, &theta, &gamma, &T}) *x = dense(*x);
  return count;
}

}  // namespace

Tensors schur_weight_cpu(Tensor P, Tensor theta, Tensor gamma, Tensor T, bool training) {
  const int64_t count = check(P, theta, gamma, T), n = P.size(-1);
  return by_float_or_double(P, dtypes, [&](auto zero) {
    using F = decltype(zero);
    Tensors results = {empty_of_sizes(P, P)};
    if (training) results.push_back(reusable_like(P));
    if (!count) return results;
    count_kernel("schur_weight/cpu", "forward", P);
    const SchurForward<F> problem{.size = n,
                                  .P = read<F>(P),
                                  .theta = read<F>(theta),
                                  .gamma = read<F>(gamma),
                                  .lower = read<F>(T),
                                  .result = write<F>(results[0]),
                                  .half = training ? write<F>(results[1]) : nullptr};
    run_matrices(kernels_in_use<OrthogonalKernels<F>>().schur_forward, problem, count, P);
    return results;
  });
}

Tensors schur_weight_backward_cpu(Tensor grad, Tensor P, Tensor theta, Tensor gamma, Tensor T, Tensor half) {
  const int64_t count = check(P, theta, gamma, T), n = P.size(-1);
  for (const Tensor* x : {&grad, &half})
    STD_TORCH_CHECK(x->numel() == P.numel() && x->scalar_type() == P.scalar_type(),
                    "schur_weight_backward: `grad` and `half` must be as the forward made them");
  grad = dense(grad);
  half = dense(half);
  return by_float_or_double(P, dtypes, [&](auto zero) {
    using F = decltype(zero);
    Tensors results;
    for (const Tensor* x : {&P, &theta, &gamma, &T}) results.push_back(empty_of_sizes(P, *x));
    if (!count) return results;
    count_kernel("schur_weight/cpu", "backward", P);
    const SchurBackward<F> problem{.size = n,
                                   .P = read<F>(P),
                                   .theta = read<F>(theta),
                                   .gamma = read<F>(gamma),
                                   .lower = read<F>(T),
                                   .half = read<F>(half),
                                   .grad = read<F>(grad),
                                   .grad_P = write<F>(results[0]),
                                   .grad_theta = write<F>(results[1]),
                                   .grad_gamma = write<F>(results[2]),
                                   .grad_lower = write<F>(results[3])};
    run_matrices(kernels_in_use<OrthogonalKernels<F>>().schur_backward, problem, count, P);
    return results;
  });
}

}  // namespace rnnkern

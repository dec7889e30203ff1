// skew_exp and schur_weight on a CPU: the checks needed for memory safety, allocation, and the number of threads.
#include "cpu/levels.h"
#include "cpu/run.h"
#include "orthogonal/cpu/problem.h"

namespace rnnkern {
namespace {

constexpr const char* dtypes = "rnnkern: orthogonal weights must be float32 or float64";

constexpr int64_t own_matrix = 160;  // rows; with larger matrices, the working set of one matrix exceeds a core's cache
constexpr int64_t worth_sharing = 131072;  // multiplications of a product, per thread

// Checks that A is (..., N, N), and returns the number of matrices.
int64_t check_square(const Tensor& A, const char* must) {
  STD_TORCH_CHECK(A.dim() >= 2 && A.size(-1) == A.size(-2), must);
  const int64_t n = A.size(-1);
  return n ? A.numel() / (n * n) : 0;
}

bool like(const Tensor& x, const Tensor& wanted) {
  return x.numel() == wanted.numel() && x.scalar_type() == wanted.scalar_type();
}

// Threads take separate matrices if there are several small ones.
template <class Problem>
void run(KernelOfParts<Problem> kernel, const Problem& problem, int64_t count, const Tensor& like) {
  const int64_t n = problem.size, work = n * n * n;
  const bool apart = count > 1 && n <= own_matrix;
  run_parts(kernel, problem, count, apart, at_most_all(1 + (apart ? count : 1) * work / worth_sharing), like);
}

// Makes the arguments of schur_weight contiguous, and checks that their dtypes and sizes match; returns the number of
// matrices.
int64_t check_schur(Tensor& P, Tensor& theta, Tensor& gamma, Tensor& T) {
  const int64_t count = check_square(P, "schur_weight: `P` must be (..., N, N)"), n = P.size(-1);
  for (const Tensor* x : {&theta, &gamma, &T})
    STD_TORCH_CHECK(x->scalar_type() == P.scalar_type(), "schur_weight: all tensors must be of the dtype of `P`");
  STD_TORCH_CHECK(theta.numel() == count * (n / 2) && gamma.numel() == count * ((n + 1) / 2) && T.numel() == P.numel(),
                  "schur_weight: `theta` must be (..., N // 2), `gamma` (..., (N + 1) // 2), `T` (..., N, N)");
  for (Tensor* x : {&P, &theta, &gamma, &T}) *x = dense(*x);
  return count;
}

// The largest number of squarings in a plan of the forward.
template <class T>
int64_t check_plan(const int64_t* plan, int64_t count) {
  int64_t most = 0;
  for (int64_t m = 0; m < count; ++m) {
    const int64_t scheme = plan[m * plan_size], squarings = plan[m * plan_size + 1];
    STD_TORCH_CHECK(scheme >= 0 && scheme < scheme_count<T> && squarings >= 0,
                    "skew_exp_backward: `plan` must be as the forward made it");
    if (squarings > most) most = squarings;
  }
  return most;
}

// Returns [result, and when training: kept (..., K, N, N), plan (..., 2)]: the saved products, and for each matrix the
// scheme (schemes.h) and the number of squarings.
Tensors skew_exp_cpu(Tensor A, bool minus_identity, bool training) {
  const int64_t count = check_square(A, "skew_exp: `A` must be (..., N, N)"), n = A.size(-1);
  A = dense(A);
  return by_float_or_double(A, dtypes, [&](auto zero) {
    using T = decltype(zero);
    Tensors results = {empty_of_sizes(A, A)};
    if (training) {
      const int64_t products = in_lanes<T>(n) ? 0 : kept_products<T>;
      results.push_back(cached_empty(A, sizes_with(A, 2, {products, n, n}), A.scalar_type()));
      results.push_back(empty(A, sizes_with(A, 2, {plan_size}), ScalarType::Long));
    }
    if (!count) return results;
    count_kernel("skew_exp/cpu", "forward", A);
    const SkewForward<T> problem{.size = n,
                                 .minus_identity = minus_identity,
                                 .A = read<T>(A),
                                 .result = write<T>(results[0]),
                                 .kept = training ? write<T>(results[1]) : nullptr,
                                 .plan = training ? write<int64_t>(results[2]) : nullptr};
    run(kernels_in_use<OrthogonalKernels<T>>().skew_forward, problem, count, A);
    return results;
  });
}

// The gradient of A, given that of the result; zero where A is not read.
Tensor skew_exp_backward_cpu(Tensor grad, Tensor A, Tensor kept, Tensor plan) {
  for (Tensor* x : {&A, &grad, &kept, &plan}) *x = dense(*x);
  return by_float_or_double(A, dtypes, [&](auto zero) {
    using T = decltype(zero);
    const Tensor result = empty_of_sizes(A, A);
    if (!A.numel()) return result;
    const int64_t n = A.size(-1), count = A.numel() / (n * n);
    STD_TORCH_CHECK(like(grad, A) && kept.numel() == (in_lanes<T>(n) ? 0 : kept_products<T>)*A.numel() &&
                        kept.scalar_type() == A.scalar_type() && plan.numel() == plan_size * count &&
                        plan.scalar_type() == ScalarType::Long,
                    "skew_exp_backward: `grad`, `kept` and `plan` must be as the forward made them");
    const int64_t squarings = check_plan<T>(read<int64_t>(plan), count);
    count_kernel("skew_exp/cpu", "backward", A);
    const SkewBackward<T> problem{.size = n,
                                  .squarings = squarings,
                                  .A = read<T>(A),
                                  .kept = read<T>(kept),
                                  .grad = read<T>(grad),
                                  .plan = read<int64_t>(plan),
                                  .grad_A = write<T>(result)};
    run(kernels_in_use<OrthogonalKernels<T>>().skew_backward, problem, count, A);
    return result;
  });
}

// Returns [result, and when training: P (Lambda + T)].
Tensors schur_weight_cpu(Tensor P, Tensor theta, Tensor gamma, Tensor T, bool training) {
  const int64_t count = check_schur(P, theta, gamma, T), n = P.size(-1);
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
    run(kernels_in_use<OrthogonalKernels<F>>().schur_forward, problem, count, P);
    return results;
  });
}

// Returns [dP, dtheta, dgamma, dT]; `half` is the P (Lambda + T) of the forward.
Tensors schur_weight_backward_cpu(Tensor grad, Tensor P, Tensor theta, Tensor gamma, Tensor T, Tensor half) {
  const int64_t count = check_schur(P, theta, gamma, T), n = P.size(-1);
  for (const Tensor* x : {&grad, &half})
    STD_TORCH_CHECK(like(*x, P), "schur_weight_backward: `grad` and `half` must be as the forward made them");
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
    run(kernels_in_use<OrthogonalKernels<F>>().schur_backward, problem, count, P);
    return results;
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CPU, m) {
  m.impl("skew_exp", TORCH_BOX(&skew_exp_cpu));
  m.impl("skew_exp_backward", TORCH_BOX(&skew_exp_backward_cpu));
  m.impl("schur_weight", TORCH_BOX(&schur_weight_cpu));
  m.impl("schur_weight_backward", TORCH_BOX(&schur_weight_backward_cpu));
}

}  // namespace rnnkern

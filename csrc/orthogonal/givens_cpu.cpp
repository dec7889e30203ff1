// Layers of rotations on a CPU: what is checked for the sake of memory, what is allocated, and how many threads take
// it.
#include "orthogonal/givens.h"

#include <omp.h>

#include "common/counters.h"
#include "common/levels.h"
#include "common/reuse.h"
#include "orthogonal/givens_problem.h"

namespace rnnkern {
namespace {

constexpr int64_t worth_sharing = 32768;  // rotations of one vector

template <class T>
const GivensKernels<T>& kernels() {
  static const GivensLevel levels[] = {
      givens_level_plain(),
#if defined(__x86_64__)
      givens_level_avx2(),
      givens_level_avx512(),
#endif
  };
  return kernels_in_use<T>(levels);
}

template <class F>
auto by_dtype(const Tensor& x, F f) {
  return by_float_or_double(x, "givens_product: `angles` must be float32 or float64", f);
}

void count_kernel(const char* direction, const Tensor& x) {
  const char* dtype = x.scalar_type() == ScalarType::Double ? "float64" : "float32";
  count("givens_product/cpu", direction, dtype, name(simd_level()));
}

// Dense, of one dtype and of sizes that belong together.
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

template <class Problem>
void run(GivensKernel<Problem> kernel, Problem problem, const Tensor& like) {
  const GivensSizes& sizes = problem.sizes;
  const int64_t all = omp_in_parallel() ? 1 : get_num_threads();
  const int64_t worth = 1 + sizes.count * sizes.vectors * sizes.angles() / worth_sharing;
  const int threads = int(worth < all ? worth : all);
  const Tensor memory = reusable(like, {kernel.room(problem, threads)}, like.scalar_type());
  problem.room = write<std::remove_reference_t<decltype(*problem.room)>>(memory);
  if (threads == 1) return kernel.run(problem, Member{0, 1, nullptr});
  Barrier barrier;
#pragma omp parallel num_threads(threads)
  kernel.run(problem, Member{omp_get_thread_num(), omp_get_num_threads(), &barrier});
}

}  // namespace

Tensor givens_product_cpu(Tensor angles, Tensor x, bool columns, bool butterfly) {
  const GivensSizes sizes = check(angles, x, columns, butterfly);
  return by_dtype(angles, [&](auto zero) {
    using T = decltype(zero);
    const Tensor y = empty_of_sizes(x, x);
    if (!y.numel()) return y;
    count_kernel("forward", angles);
    const GivensForward<T> problem{.sizes = sizes, .angles = read<T>(angles), .x = read<T>(x), .y = write<T>(y)};
    run(kernels<T>().forward, problem, angles);
    return y;
  });
}

Tensors givens_product_backward_cpu(Tensor grad, Tensor angles, Tensor y, bool columns, bool butterfly, bool needs_x) {
  const GivensSizes sizes = check(angles, y, columns, butterfly);
  STD_TORCH_CHECK(grad.numel() == y.numel() && grad.scalar_type() == y.scalar_type(),
                  "givens_product_backward: `grad` must be of the size and dtype of `y`");
  grad = dense(grad);
  return by_dtype(angles, [&](auto zero) {
    using T = decltype(zero);
    Tensors results = {empty_of_sizes(angles, angles)};
    if (needs_x) results.push_back(empty_of_sizes(y, y));
    if (!y.numel()) {
      fill_zero(results[0]);
      return results;
    }
    count_kernel("backward", angles);
    const GivensBackward<T> problem{.sizes = sizes,
                                    .angles = read<T>(angles),
                                    .y = read<T>(y),
                                    .grad = read<T>(grad),
                                    .grad_angles = write<T>(results[0]),
                                    .grad_x = needs_x ? write<T>(results[1]) : nullptr};
    run(kernels<T>().backward, problem, angles);
    return results;
  });
}

}  // namespace rnnkern

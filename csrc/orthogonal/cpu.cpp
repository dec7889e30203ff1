// skew_exp on a CPU: what is allocated, and who runs what.
#include <omp.h>

#include "common/counters.h"
#include "common/reuse.h"
#include "common/simd_level.h"
#include "orthogonal/orthogonal.h"
#include "orthogonal/problem.h"

namespace rnnkern {
namespace {

template <class T>
const SkewKernels<T>& kernels() {
  static const SkewLevel levels[] = {
      skew_level_plain(),
#if defined(__x86_64__)
      skew_level_avx2(),
      skew_level_avx512(),
#endif
  };
  const int at = simd_level() > SimdLevel::avx512 ? int(SimdLevel::avx512) : int(simd_level());
  if constexpr (sizeof(T) == 8)
    return levels[at].of_double;
  else
    return levels[at].of_float;
}

void count_kernel(const char* direction, const Tensor& A) {
  count("skew_exp/cpu", direction, A.scalar_type() == ScalarType::Double ? "float64" : "float32", name(simd_level()));
}

template <class F>
auto by_dtype(const Tensor& A, F f) {
  if (A.scalar_type() == ScalarType::Double) return f(double());
  STD_TORCH_CHECK(A.scalar_type() == ScalarType::Float, "skew_exp: `A` must be float32 or float64");
  return f(float());
}

std::vector<int64_t> with(const Tensor& A, std::initializer_list<int64_t> last, int64_t dropped) {
  const auto sizes = A.sizes();
  std::vector<int64_t> found(sizes.begin(), sizes.end() - dropped);
  found.insert(found.end(), last);
  return found;
}

template <class Problem>
struct Job {
  void (*run)(const Problem&, Member);
  int64_t (*room)(const Problem&, int team);
};

constexpr int64_t own_matrix = 160;        // rows: of larger ones a core's cache does not hold all that is at work
constexpr int64_t worth_sharing = 131072;  // multiplications of a product

int at_most_all(int64_t threads) {
  const int64_t most = omp_in_parallel() ? 1 : get_num_threads();
  return int(threads < most ? threads : most);
}

// Members take matrices of their own where there are enough that are small; else they share out each one. part(problem,
// first, count) is the problem of some of its matrices.
template <class T, class Problem, class Part>
void run(Job<Problem> job, Problem problem, const Tensor& like, Part part) {
  const int64_t n = problem.size, work = n * n * n;
  const bool apart = problem.count > 1 && n <= own_matrix;
  const int threads = at_most_all(apart ? 1 + problem.count * work / worth_sharing : 1 + work / worth_sharing);
  const int64_t room = apart ? job.room(problem, 1) : job.room(problem, threads);
  const ScalarType dtype = sizeof(T) == 8 ? ScalarType::Double : ScalarType::Float;
  const Tensor memory = reusable(like, {room * (apart ? threads : 1)}, dtype);
  problem.room = write<T>(memory);
  if (threads == 1) return job.run(problem, Member{0, 1, nullptr});
  Barrier barrier;
#pragma omp parallel num_threads(threads)
  {
    const int rank = omp_get_thread_num(), size = omp_get_num_threads();
    if (apart) {
      const int64_t first = problem.count * rank / size, last = problem.count * (rank + 1) / size;
      Problem mine = part(problem, first, last - first);
      mine.room += rank * room;
      job.run(mine, Member{0, 1, nullptr});
    } else {
      job.run(problem, Member{rank, size, &barrier});
    }
  }
}

}  // namespace

Tensors skew_exp_cpu(Tensor A, bool minus_identity, bool training) {
  STD_TORCH_CHECK(A.dim() >= 2 && A.size(-1) == A.size(-2), "skew_exp: `A` must be (..., N, N)");
  A = dense(A);
  return by_dtype(A, [&](auto zero) {
    using T = decltype(zero);
    const int64_t n = A.size(-1);
    Tensors results = {empty_of_sizes(A, A)};
    SkewForward<T> problem{.size = n, .count = n ? A.numel() / (n * n) : 0, .minus_identity = minus_identity};
    if (training) {
      results.push_back(reusable(A, with(A, {kept_products<T>, n, n}, 2), A.scalar_type()));
      results.push_back(empty(A, with(A, {plan_size}, 2), ScalarType::Long));
      problem.kept = write<T>(results[1]);
      problem.plan = write<int64_t>(results[2]);
    }
    if (!problem.count) return results;
    problem.A = read<T>(A);
    problem.result = write<T>(results[0]);
    count_kernel("forward", A);
    const SkewKernels<T>& chosen = kernels<T>();
    run<T>(Job<SkewForward<T>>{chosen.forward, chosen.forward_room}, problem, A,
           [n](SkewForward<T> part, int64_t first, int64_t count) {
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
    count_kernel("backward", A);
    const SkewKernels<T>& chosen = kernels<T>();
    const SkewBackward<T> problem{n,     count,           squarings, read<T>(A), read<T>(kept), read<T>(grad),
                                  plans, write<T>(result)};
    run<T>(Job<SkewBackward<T>>{chosen.backward, chosen.backward_room}, problem, A,
           [n](SkewBackward<T> part, int64_t first, int64_t count) {
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

// Runs a CPU kernel on a team of threads, with a workspace.
#pragma once

#include <omp.h>

#include <type_traits>
#include <vector>

#include "common/caching_allocator.h"
#include "common/team.h"
#include "cpu/subnormals.h"

namespace rnnkern {

inline int at_most_all(int64_t threads) {
  const int64_t most = omp_in_parallel() ? 1 : get_num_threads();
  return int(threads < most ? threads : most);
}

// Calls f(problem, member) on each thread of a team, which takes subnormal numbers for zero unless T is double.
template <template <class> class Problem, class T, class F>
void in_team(int threads, const Problem<T>& problem, F f) {
  const auto member = [&](ThreadContext me) {
    const FlushSubnormals<T> flushed;
    f(problem, me);
  };
  if (threads == 1) return member({0, 1, nullptr});
  Barrier barrier;
#pragma omp parallel num_threads(threads)
  member({omp_get_thread_num(), omp_get_num_threads(), &barrier});
}

// Allocates the workspace of a problem. It lives as long as the returned tensor.
template <class Problem>
Tensor make_workspace(Problem& problem, int64_t elements, const Tensor& like) {
  const Tensor memory = cached_empty(like, {elements}, like.scalar_type());
  problem.workspace = write<std::remove_pointer_t<decltype(problem.workspace)>>(memory);
  return memory;
}

template <class Problem>
void run(Kernel<Problem> kernel, Problem problem, int threads, const Tensor& like) {
  const Tensor memory = make_workspace(problem, kernel.workspace(problem, threads), like);
  in_team(threads, problem, kernel.run);
}

// If `apart`, each thread takes its own parts with a workspace of its own; otherwise the whole team shares every part.
template <class Problem>
void run_parts(KernelOfParts<Problem> kernel, Problem problem, int64_t parts, bool apart, int threads,
               const Tensor& like) {
  const int64_t workspace = kernel.workspace(problem, apart ? 1 : threads);
  const Tensor memory = make_workspace(problem, workspace * (apart ? threads : 1), like);
  in_team(threads, problem, [&](const Problem& all, ThreadContext me) {
    if (!apart) return kernel.run(all, {0, parts}, me);
    Problem mine = all;
    mine.workspace += me.rank * workspace;
    kernel.run(mine, me.share(parts), ThreadContext{0, 1, nullptr});
  });
}

// to (width,) = the sum over `count` rows, in their order, so that it does not depend on the number of threads.
template <class Sum, class T>
void sum_rows(const T* rows, int64_t count, int64_t width, T* to) {
  std::vector<Sum> sums(width, 0);
  for (int64_t row = 0; row < count; ++row)
    for (int64_t k = 0; k < width; ++k) sums[k] += rows[row * width + k];
  for (int64_t k = 0; k < width; ++k) to[k] = T(sums[k]);
}

}  // namespace rnnkern

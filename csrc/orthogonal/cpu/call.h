// How a call runs on a CPU: the number of threads, and what they divide. Included by the drivers.
#pragma once

#include "cpu/levels.h"
#include "cpu/run.h"
#include "orthogonal/cpu/problem.h"
#include "orthogonal/orthogonal.h"

namespace rnnkern {
namespace {

constexpr const char* dtypes = "rnnkern: orthogonal weights must be float32 or float64";

constexpr int64_t own_matrix = 160;  // rows; with larger matrices, the working set of one matrix exceeds a core's cache
constexpr int64_t worth_sharing = 131072;  // multiplications of a product, per thread

// Threads take separate matrices if there are several small ones.
template <class Problem>
void run_matrices(KernelOfParts<Problem> kernel, const Problem& problem, int64_t count, const Tensor& like) {
  const int64_t n = problem.size, work = n * n * n;
  const bool apart = count > 1 && n <= own_matrix;
  run_parts(kernel, problem, count, apart, at_most_all(1 + (apart ? count : 1) * work / worth_sharing), like);
}

}  // namespace
}  // namespace rnnkern

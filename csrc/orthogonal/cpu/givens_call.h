// The number of threads of the kernels for layers of Givens rotations.
#pragma once

#include "cpu/levels.h"
#include "cpu/run.h"
#include "orthogonal/cpu/givens_problem.h"

namespace rnnkern {

// `rotations` is the amount of work.
inline int threads_for(int64_t rotations) {
  constexpr int64_t worth_sharing = 32768;
  return at_most_all(1 + rotations / worth_sharing);
}

}  // namespace rnnkern

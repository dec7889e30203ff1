// What the drivers of layers of rotations share: by how many threads they run a kernel.
#pragma once

#include "cpu/levels.h"
#include "cpu/run.h"
#include "orthogonal/cpu/givens_problem.h"

namespace rnnkern {

// `rotations` is the work, which decides how many threads are worth their while.
inline int threads_for(int64_t rotations) {
  constexpr int64_t worth_sharing = 32768;
  return at_most_all(1 + rotations / worth_sharing);
}

}  // namespace rnnkern

// Selects the CUDA kernels of a call. A pure function.
#pragma once

#include "cuda/plan.h"
#include "relevancy/call.h"
#include "relevancy/cuda/kernels.h"

namespace rnnkern::relevancy {

using cuda::KernelKind, cuda::Plan;

struct Sizes {
  int64_t steps, batch, hidden, buffer_size, relevant_size;  // T, B, n, nu, rho
  // L of the call. Only the size of shared memory depends on it: the chunks of a sequence use the same kernels.
  int64_t slots;
};

// What a plan depends on. `dtype` is the caller's; 16-bit types are computed in float32.
struct Request {
  cuda::Facts facts;
  int cell_id;
  ScalarType dtype;
  Sizes sizes;
};

Plan plan_relevancy(const Request& request);

}  // namespace rnnkern::relevancy

// Starts the CUDA kernels of the recurrence through layers of rotations, on a stream. They return a cudaError_t; 0 is
// success.
#pragma once

#include "orthogonal/givens_cuda_problem.h"

namespace rnnkern::givens {

// T is float or double.
template <class T>
struct Kernels {
  static int turn(const TurnProblem<T>& problem, void* stream);
  static int sum(const SumProblem<T>& problem, void* stream);
  static int forward(const ForwardProblem<T>& problem, int64_t blocks, void* stream);
  static int backward(const BackwardProblem<T>& problem, int64_t blocks, void* stream);
  // Of shared memory, with so many sums in it.
  static int64_t backward_bytes(const Packing& packing, int64_t sums);
};

}  // namespace rnnkern::givens

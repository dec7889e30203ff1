// Starts the CUDA kernels of the recurrence, on a stream. `place` is the cell's in cells/list.h, `padded` the head size
// that a block kernel is compiled for. They return a cudaError_t; 0 is success.
#pragma once

#include "device/launch.h"
#include "recurrence/cuda_problem.h"

namespace rnnkern {

constexpr int block_sizes[] = {32, 64, 128};
constexpr int cluster_sizes[] = {256, 384, 512, 640, 768, 1024};

// What one block takes.
struct BlockShape {
  int columns, threads;  // sequences; threads
  int64_t shared_bytes;
  int cluster = 1;  // blocks that share the sequences
};

// S is float, bfloat16 or float16.
template <class S>
struct BlockKernels {
  static BlockShape forward_shape(int place, int padded);
  static BlockShape backward_shape(int place, int padded);
  static int forward(const BlockForward<S>& problem, int place, int padded, void* stream);
  static int backward(const BlockBackward<S>& problem, int place, int padded, void* stream);
};

// Problem is ClusterForward or ClusterBackward, M float, tfloat32, bfloat16 or float16; `padded` is H.
template <template <class> class Problem, class M>
struct ClusterKernels {
  static BlockShape shape(int place, int padded);  // no columns where there is none of this cell and size
  static int launch(const Problem<Stored<M>>& problem, int place, int padded, void* stream);
};

// S is float, double, bfloat16 or float16.
template <class S>
struct StepKernels {
  static int forward(const StepForward<S>& problem, int place, void* stream);
  static int backward(const StepBackward<S>& problem, int place, void* stream);
  static int projected(const StepProjected<S>& problem, void* stream);
  static int projected_backward(const StepBackward<S>& problem, void* stream);
  static int previous(const Previous<S>& problem, void* stream);
  static int mask(const Mask<S>& problem, void* stream);
  static int drop(const Drop<S>& problem, void* stream);
  static int accumulate(const Accumulate<S>& problem, void* stream);
};

}  // namespace rnnkern

// Starts the CUDA kernels of the relevancy recurrence, on a stream. `place` is the cell's in relevancy/cells.h. They
// return a cudaError_t; 0 is success.
#pragma once

#include <iterator>

#include "relevancy/cuda_problem.h"

namespace rnnkern::relevancy {

// T is float or double.
template <class T>
struct AttendKernels {
  static int remember(const Remember<T>& problem, void* stream);
  static int cell_forward(const CellForward<T>& problem, int place, void* stream);
  static int attend_forward(const AttendForward<T>& problem, void* stream);
  static int leave(const Leave<T>& problem, void* stream);
  static int previous(const Previous<T>& problem, void* stream);
  static int attend_backward(const AttendBackward<T>& problem, void* stream);
  static int cell_backward(const CellBackward<T>& problem, int place, void* stream);
  static int add(const Add<T>& problem, void* stream);
};

constexpr int sample_sizes[] = {64, 128, 256};  // n that a kernel of one sample per block is compiled for

// `padded` is one of them. W is how the chip holds V, W_a and U_a: float, or 16 bits where they have no more.
template <class W>
struct SampleKernels {
  static bool has(int place, int padded);
  static int64_t forward_bytes(int place, int padded, int64_t slots, int64_t relevant_size);  // of shared memory
  static int64_t backward_bytes(int place, int padded);
  static int64_t forward_packed(int place, int padded);  // floats in the `packed` of a problem
  static int64_t backward_packed(int place, int padded);
  static int forward(const SampleForward& problem, int place, int padded, void* stream);
  static int backward(const SampleBackward& problem, int place, int padded, void* stream);
};

constexpr int cluster_sizes[] = {128, 256, 384, 512};  // n that a kernel of one sample per cluster is compiled for

// `padded` is one of them.
struct ClusterKernels {
  static int blocks(int place, int padded);  // of a cluster; none where there is no kernel of this cell and size
  static int64_t forward_bytes(int place, int padded, int64_t slots, int64_t relevant_size);  // of shared memory
  static int64_t backward_bytes(int place, int padded, int64_t slots, int64_t relevant_size);
  static int forward(const SampleForward& problem, int place, int padded, void* stream);
  static int backward(const SampleBackward& problem, int place, int padded, void* stream);
};

int remember_history(const History& history, void* stream);

}  // namespace rnnkern::relevancy

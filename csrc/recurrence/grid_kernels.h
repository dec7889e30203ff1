// Starts the grid kernels: the blocks of a group, its members, share out the units of a dense R, and keep their slices
// for all steps; groups have copies of R, and share out the batch by 8 columns.
#pragma once

#include "device/launch.h"
#include "recurrence/cuda_problem.h"

namespace rnnkern {

struct GridSize {
  int members, groups;
  int sets;  // of 8 columns, of the group that has most

  RNNKERN_HOST_DEVICE int blocks() const { return members * groups; }
};

template <class S>
struct GridForward {
  BlockForward<S> call;  // one head
  GridSize size;
  device::Word16* words;  // zero
};

template <class S>
struct GridBackward {
  BlockBackward<S> call;
  GridSize size;
  device::Word16* words;
};

// What a grid kernel takes.
struct GridShape {
  int threads;
  int64_t shared_bytes, words;  // of a block; of all
};

constexpr int grid_columns = 8, most_grid_sets = 8;

// Units of a member in elements of this many bytes: 32 bytes of a column.
constexpr int units_of_member(int bytes) { return 32 / bytes; }

// S is float, bfloat16 or float16. They return a cudaError_t; 0 is success.
template <class S>
struct GridKernels {
  static GridShape forward_shape(int place, const GridSize& size);
  static GridShape backward_shape(int place, const GridSize& size);
  static int forward(const GridForward<S>& problem, int place, void* stream);
  static int backward(const GridBackward<S>& problem, int place, void* stream);
};

}  // namespace rnnkern

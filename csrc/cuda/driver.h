// What the drivers of all families share: the device, stream and plan of a call. Everything runs on the current stream
// and allocates through PyTorch; nothing waits for the device.
#pragma once

#include "common/counters.h"
#include "common/row_layout.h"
#include "cuda/current.h"
#include "cuda/plan.h"

namespace rnnkern::cuda {

// The elements of an array from `first` on; null if there is no array.
template <class T>
T* from(T* array, int64_t first) {
  return array ? array + first : nullptr;
}

struct Driver {
  CurrentDevice current;
  void* stream;
  Plan plan;
  Tensor table;  // offsets and lengths of packed rows, on the device

  explicit Driver(const Tensor& x) : current(x), stream(current.stream()) {}

  // Sets the arrays by which kernels find packed rows; those of a padded tensor stay null.
  void set_rows(const RowLayout& layout, const Tensor& like, const char* op, const int64_t*& offsets,
                const int64_t*& lengths) {
    if (!layout.packed()) return;
    table = layout.on_device_of(like, op, capturing(stream));
    offsets = read<int64_t>(table);
    lengths = offsets + layout.steps + 1;
  }

  template <class Problem>
  void start(const Resident& resident, const Problem& problem, int64_t batch, int64_t heads = 1) const {
    cuda::start(*resident.kernel, resident.launch(batch, heads), &problem, stream);
  }
};

}  // namespace rnnkern::cuda

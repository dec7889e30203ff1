// The current device and stream of a CUDA tensor, by torch's C shim, and what PyTorch's settings say of kernels there.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include "common/tensor.h"

#if defined(RNNKERN_WITH_CUDA) || defined(RNNKERN_INTERPRET)

namespace rnnkern {

// Whether PyTorch's own recurrent layers may multiply float32 in TF32, at this moment. Its C shim does not tell: the
// operator is Python's.
inline bool allows_tf32() {
  StableIValue stack[1];
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("rnnkern::allows_tf32", "", stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<bool>(stack[0]);
}

// What the host computed of packed sequences, (n,) int64, on the device of `like`. A CUDA graph would record the copy
// from memory that is free again when it replays.
inline Tensor move_packing(const char* op, const Tensor& host, const Tensor& like, bool captured) {
  STD_TORCH_CHECK(
      !captured, op,
      ": packed input cannot be captured in a CUDA graph, since `batch_sizes` are read on the CPU; capture a "
      "call with padded input (T, B, ...) instead, or leave this one out of the graph");
  const Tensor made = empty(like, {host.numel()}, ScalarType::Long);
  copy(made, host);
  return made;
}

}  // namespace rnnkern

#endif

#if defined(RNNKERN_WITH_CUDA)

// Weak: a PyTorch without CUDA does not have it, and must still load this library.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);

namespace rnnkern {

// Makes the device of a tensor the current one for as long as this lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(const Tensor& x) : index_(x.get_device_index()), guard_(index_) {}

  void* stream() const {
    STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream, "rnnkern: this PyTorch does not tell its current CUDA stream");
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index_, &stream));
    return stream;
  }

 private:
  int32_t index_;
  torch::stable::accelerator::DeviceGuard guard_;
};

}  // namespace rnnkern

#elif defined(RNNKERN_INTERPRET)

namespace rnnkern {

// On the host there is neither.
class CurrentDevice {
 public:
  explicit CurrentDevice(const Tensor&) {}
  void* stream() const { return nullptr; }
};

}  // namespace rnnkern

#endif

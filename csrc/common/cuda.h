// The current device and stream of a CUDA tensor, by torch's C shim.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include "common/tensor.h"

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
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index_, &stream));
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

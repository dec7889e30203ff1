// The current device and stream of a CUDA tensor, through torch's C shim, and PyTorch settings that affect kernels.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include "common/tensor.h"
#include "cuda/libcuda.h"

// Weak, because a PyTorch without CUDA does not define it and must still load this library.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);

namespace rnnkern {

// Whether PyTorch's recurrent layers may currently use TF32 for float32. An operator in Python answers, because the C
// shim does not expose the setting.
inline bool allows_tf32() {
  StableIValue stack[1];
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("rnnkern::allows_tf32", "", stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<bool>(stack[0]);
}

// Makes a tensor's device the current one during its lifetime. Tensors of tests are on the host and have no stream.
class CurrentDevice {
 public:
  explicit CurrentDevice(const Tensor& x) : CurrentDevice(x.is_cuda() ? x.get_device_index() : -1) {}
  explicit CurrentDevice(int32_t index) : index_(index) {
    if (index < 0) return;
    guard_.emplace(index);
    cuda::enter(index);
  }

  void* stream() const {
    if (index_ < 0) return nullptr;
    STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream, "rnnkern: this PyTorch does not tell its current CUDA stream");
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index_, &stream));
    return stream;
  }

 private:
  int32_t index_;
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

}  // namespace rnnkern

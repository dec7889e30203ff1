// The current device and stream of a CUDA tensor, by torch's C shim, and what PyTorch's settings say of kernels there.
#pragma once

#include <torch/csrc/stable/accelerator.h>

#include "common/tensor.h"
#include "cuda/driver.h"

// Weak: a PyTorch without CUDA does not have it, and must still load this library.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);

namespace rnnkern {

// Whether PyTorch's own recurrent layers may multiply float32 in TF32, at this moment. Its C shim does not tell: the
// operator is Python's.
inline bool allows_tf32() {
  StableIValue stack[1];
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("rnnkern::allows_tf32", "", stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<bool>(stack[0]);
}

// Makes the device of a tensor the current one for as long as this lives. In tests tensors are the host's, and have
// neither device nor stream.
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

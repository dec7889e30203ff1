// Cosines and sines of all elements, computed by ATen.
#pragma once

#include "common/tensor.h"

namespace rnnkern {

inline Tensor elementwise(const char* aten, const Tensor& x) {
  StableIValue stack[] = {torch::stable::detail::from(x)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(aten, "", stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

inline Tensor cosines(const Tensor& x) { return elementwise("aten::cos", x); }
inline Tensor sines(const Tensor& x) { return elementwise("aten::sin", x); }

}  // namespace rnnkern

#include "common/tensor.h"

#include <array>

namespace rnnkern {

void multiply(const Tensor& a, const Tensor& b, Tensor out) {
  std::array<StableIValue, 3> stack{torch::stable::detail::from(a), torch::stable::detail::from(b),
                                    torch::stable::detail::from(out)};
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher(a.dim() == 2 ? "aten::mm" : "aten::bmm", "out", stack.data(), TORCH_ABI_VERSION));
  torch::stable::detail::to<Tensor>(stack[0]);  // takes back the reference that the call returned
}

void multiply_twice(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d, Tensor out) {
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch__mm_plus_mm_out(out.get(), a.get(), b.get(), c.get(), d.get()));
}

}  // namespace rnnkern

#include "common/tensor.h"

#include <stdexcept>

// Weak, because PyTorch before 2.13 does not define it and this library must still load there.
extern "C" __attribute__((weak)) const char* torch_exception_get_what_without_backtrace();

namespace rnnkern {

void fail_to_allocate(torch::headeronly::IntHeaderOnlyArrayRef sizes) {
  std::string text = "rnnkern: can't allocate memory for a tensor of sizes (";
  for (size_t k = 0; k < sizes.size(); ++k) text += (k ? ", " : "") + std::to_string(sizes[k]);
  text += ")";
  if (torch_exception_get_what_without_backtrace) {
    text += std::string(": ") + torch_exception_get_what_without_backtrace();
  }
  throw std::runtime_error(text);
}

ScalarType scalar_type(const std::string& name) {
  return name == "float32"    ? ScalarType::Float
         : name == "float64"  ? ScalarType::Double
         : name == "bfloat16" ? ScalarType::BFloat16
                              : ScalarType::Half;
}

}  // namespace rnnkern

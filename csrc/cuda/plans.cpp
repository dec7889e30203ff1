#include "cuda/plans.h"

#include "common/tensor.h"

namespace rnnkern::cuda {

Facts facts_from(const char* op, const std::vector<int64_t>& numbers) {
  STD_TORCH_CHECK(numbers.size() == 4 || numbers.size() == 6, op,
                  ": `facts` must be (major, minor, multiprocessors, bytes of shared memory[, clusters of 8 and of 16 "
                  "blocks that run at once]), got ",
                  numbers.size(), " numbers");
  Facts facts{int(numbers[0]), int(numbers[1]), int(numbers[2]), numbers[3], {}};
  for (size_t i = 4; i < numbers.size(); ++i) facts.clusters[i - 4] = int(numbers[i]);
  return facts;
}

std::string programs_of(const std::vector<const Kernel*>& kernels) {
  std::string json = "[";
  for (const Kernel* kernel : kernels) {
    json += json.size() > 1 ? ", " : "";
    json += std::string("[\"") + kernel->header + "\", \"" + std::string(kernel->type) + "\"]";
  }
  return json + "]";
}

}  // namespace rnnkern::cuda

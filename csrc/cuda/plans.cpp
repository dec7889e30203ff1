#include "cuda/plans.h"

#include <cstdlib>
#include <sstream>

namespace rnnkern::cuda {

const char* name(KernelKind kind) {
  constexpr const char* names[] = {"stepwise", "block", "cluster", "grid"};
  return names[int(kind)];
}

std::string kernel_filter(KernelKind kind) {
  const char* list = std::getenv("RNNKERN_CUDA_KERNELS");
  if (!list) return "";
  bool named = false;
  std::istringstream names(list);
  for (std::string word; std::getline(names, word, ',');) {
    STD_TORCH_CHECK(word == "block" || word == "cluster" || word == "grid" || word == "stepwise",
                    "RNNKERN_CUDA_KERNELS must be a list of block, cluster, grid and stepwise, got '", list, "'");
    named = named || word == name(kind);
  }
  return named ? "" : std::string("RNNKERN_CUDA_KERNELS leaves out the ") + name(kind) + " kernel";
}

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

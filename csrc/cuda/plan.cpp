#include "cuda/plan.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>

namespace rnnkern::cuda {

std::string kernel_filter(KernelKind kind) {
  const char* list = std::getenv("RNNKERN_CUDA_KERNELS");
  if (!list) return "";
  const std::string name = kernel_kinds[int(kind)];
  std::string all = kernel_kinds[1];
  for (size_t k = 2; k < std::size(kernel_kinds); ++k) all += text(", ", kernel_kinds[k]);
  bool named = false;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const bool known = std::find(std::begin(kernel_kinds), std::end(kernel_kinds), word) != std::end(kernel_kinds);
    STD_TORCH_CHECK(known, "RNNKERN_CUDA_KERNELS must be a list of ", all, " and ", kernel_kinds[0], ", got '", list,
                    "'");
    named = named || word == name;
  }
  return named ? "" : text("RNNKERN_CUDA_KERNELS leaves out the ", name, " kernel");
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
    json += text(json.size() > 1 ? ", " : "", "[\"", kernel->header, "\", \"", kernel->type, "\"]");
  }
  return json + "]";
}

}  // namespace rnnkern::cuda

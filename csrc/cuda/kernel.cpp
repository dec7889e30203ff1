#include "cuda/kernel.h"

#include "common/tensor.h"
#include "cuda/libcuda.h"
#include "cuda/modules.h"

namespace rnnkern::cuda {
namespace {

constexpr int64_t shared_bytes_unasked = 48 * 1024;
constexpr int cluster_unasked = 8;

// Blocks that wait for each other would hang unless all of them run at once.
void require_resident(const Kernel& kernel, const Launch& shape, void* function) {
  int each = 0;
  libcuda().cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel.type, &each, function, kernel.threads,
                                                        size_t(shape.shared_bytes));
  const int64_t most = int64_t(each) * attribute_of_current_device(DeviceAttribute::multiprocessors);
  STD_TORCH_CHECK(shape.blocks <= most, "rnnkern: ", std::string(kernel.type), " needs ", shape.blocks,
                  " blocks at once, and this device runs ", most);
}

}  // namespace

void start(const Kernel& kernel, const Launch& shape, const void* problem, void* stream) {
  if (shape.blocks == 0) return;
  STD_TORCH_CHECK(shape.blocks <= INT32_MAX, "rnnkern: ", std::string(kernel.type), " would need ", shape.blocks,
                  " blocks, more than a CUDA grid can have");
  void* const function = function_of(kernel, stream);
  const auto set = [&](FunctionAttribute what, int64_t value) {
    libcuda().cuFuncSetAttribute(kernel.type, function, what, int(value));
  };
  if (shape.shared_bytes > shared_bytes_unasked) set(FunctionAttribute::shared_bytes, shape.shared_bytes);
  if (shape.cluster > cluster_unasked) set(FunctionAttribute::clusters_above_8, 1);
  if (shape.cooperative) require_resident(kernel, shape, function);
  LaunchAttribute attributes[2];
  LaunchConfig config{{unsigned(shape.blocks), 1, 1},
                      {unsigned(kernel.threads), 1, 1},
                      unsigned(shape.shared_bytes),
                      stream,
                      attributes,
                      0};
  if (shape.cluster > 1)
    attributes[config.attribute_count++] = {
        LaunchAttribute::cluster_dimension, {}, {.sizes = {unsigned(shape.cluster), 1, 1}}};
  if (shape.cooperative) attributes[config.attribute_count++] = {LaunchAttribute::cooperative, {}, {.on = 1}};
  void* arguments[] = {const_cast<void*>(problem)};
  libcuda().cuLaunchKernelEx(kernel.type, &config, function, arguments, nullptr);
}

}  // namespace rnnkern::cuda

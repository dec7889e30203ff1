#include "cuda/modules.h"

#include <map>
#include <string>
#include <utility>

#include "common/fork.h"
#include "cuda/current.h"
#include "cuda/libcuda.h"

namespace rnnkern::cuda {
namespace {

struct Compiled {
  Tensor cubin;
  std::string symbol;
};

// Calls rnnkern/_compiler.py, which caches on disk. `again`: the cached kernel does not load.
Compiled compile(const Kernel& kernel, bool again) {
  const int major = attribute_of_current_device(DeviceAttribute::major);
  const int minor = attribute_of_current_device(DeviceAttribute::minor);
  StableIValue stack[] = {torch::stable::detail::from(std::string(kernel.header)),
                          torch::stable::detail::from(std::string(kernel.type)),
                          torch::stable::detail::from("sm_" + std::to_string(major) + std::to_string(minor)),
                          torch::stable::detail::from(again)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("rnnkern::compile_kernel", "", stack, TORCH_ABI_VERSION));
  const auto found = torch::stable::detail::to<Tensors>(stack[0]);
  const Compiled compiled{found[0], std::string(read<char>(found[1]), found[1].numel())};
  STD_TORCH_CHECK(compiled.cubin.numel() > 0, compiled.symbol);
  return compiled;
}

void* load(const Kernel& kernel) {
  void *module = nullptr, *function = nullptr;
  Compiled compiled = compile(kernel, false);
  if (libcuda().cuModuleLoadData.attempt(&module, compiled.cubin.const_data_ptr())) {
    compiled = compile(kernel, true);
    libcuda().cuModuleLoadData(kernel.type, &module, compiled.cubin.const_data_ptr());
  }
  libcuda().cuModuleGetFunction(kernel.type, &function, module, compiled.symbol.c_str());
  return function;
}

void* current_context() {
  void* context = nullptr;
  libcuda().cuCtxGetCurrent("this thread", &context);
  return context;
}

// By context and type. Kernels stay loaded until the process ends. The lock is never held during a call of Python,
// which compiles.
ForkSafeMutex mutex;
std::map<std::pair<void*, std::string>, void*> loaded;

void* find(void* context, const Kernel& kernel) {
  const std::lock_guard lock(mutex);
  const auto found = loaded.find({context, std::string(kernel.type)});
  return found == loaded.end() ? nullptr : found->second;
}

void* keep(void* context, const Kernel& kernel, void* function) {
  const std::lock_guard lock(mutex);
  return loaded.emplace(std::pair(context, std::string(kernel.type)), function).first->second;
}

}  // namespace

void* function_of(const Kernel& kernel, void* stream) {
  thread_local std::map<std::pair<void*, const Kernel*>, void*> known;  // avoids the lock
  void* const context = current_context();
  void*& function = known[{context, &kernel}];
  if (!function) function = find(context, kernel);
  if (function) return function;
  STD_TORCH_CHECK(
      !capturing(stream), "rnnkern: a CUDA graph is being captured, and the kernel ", std::string(kernel.type),
      " is not loaded yet: call rnnkern.precompile, or the layer once with these sizes, before the capture");
  return function = keep(context, kernel, load(kernel));
}

}  // namespace rnnkern::cuda

namespace rnnkern {

void load_kernel(std::string header, std::string type, int64_t device) {
  const CurrentDevice current(static_cast<int32_t>(device));
  const cuda::Kernel kernel{type, header.c_str(), 0};
  void* const context = cuda::current_context();
  if (!cuda::find(context, kernel)) cuda::keep(context, kernel, cuda::load(kernel));
}

}  // namespace rnnkern

#include "cuda/modules.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "common/tensor.h"
#include "cuda/driver.h"

namespace rnnkern::cuda {
namespace {

using Key = std::pair<void*, const Kernel*>;  // the context comes first

struct Compiled {
  Tensor cubin;
  std::string symbol;
};

// By rnnkern/cuda.py, which keeps what it compiles on disk. `again`: what is there does not load.
Compiled compile(const Kernel& kernel, bool again) {
  int device = 0, major = 0, minor = 0;
  driver().cuCtxGetDevice("the current context", &device);
  driver().cuDeviceGetAttribute("a device", &major, DeviceAttribute::major, device);
  driver().cuDeviceGetAttribute("a device", &minor, DeviceAttribute::minor, device);
  StableIValue stack[] = {torch::stable::detail::from(std::string(kernel.header)),
                          torch::stable::detail::from(std::string(kernel.type)),
                          torch::stable::detail::from("sm_" + std::to_string(major) + std::to_string(minor)),
                          torch::stable::detail::from(again)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("rnnkern::compile_kernel", "", stack, TORCH_ABI_VERSION));
  const Compiled compiled{torch::stable::detail::to<Tensor>(stack[0]), torch::stable::detail::to<std::string>(stack[1])};
  STD_TORCH_CHECK(compiled.cubin.numel() > 0, compiled.symbol);
  return compiled;
}

void* load(const Kernel& kernel) {
  void *module = nullptr, *function = nullptr;
  Compiled compiled = compile(kernel, false);
  if (driver().cuModuleLoadData.attempt(&module, compiled.cubin.const_data_ptr())) {
    compiled = compile(kernel, true);
    driver().cuModuleLoadData(kernel.type, &module, compiled.cubin.const_data_ptr());
  }
  driver().cuModuleGetFunction(kernel.type, &function, module, compiled.symbol.c_str());
  return function;
}

// Kernels stay loaded for as long as the process lives. Python, which compiles, is never called with the lock held.
std::mutex mutex;
std::map<Key, void*> loaded;

}  // namespace

void* function_of(const Kernel& kernel, void* stream) {
  thread_local std::map<Key, void*> known;  // a launch takes no lock
  Key key{nullptr, &kernel};
  driver().cuCtxGetCurrent("this thread", &key.first);
  void*& function = known[key];
  if (function) return function;
  {
    const std::lock_guard lock(mutex);
    function = loaded[key];
  }
  if (function) return function;
  STD_TORCH_CHECK(!capturing(stream), "rnnkern: a CUDA graph is being captured, and the kernel ", std::string(kernel.type),
                  " is not loaded yet: call the layer once before the capture, with these sizes");
  void* const made = load(kernel);
  const std::lock_guard lock(mutex);
  return function = loaded.emplace(key, made).first->second;
}

}  // namespace rnnkern::cuda

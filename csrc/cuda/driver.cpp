#include "cuda/driver.h"

#include <dlfcn.h>

#include "common/tensor.h"

namespace rnnkern::cuda {
namespace {

void* open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  STD_TORCH_CHECK(library, "rnnkern: the CUDA driver does not open: ", dlerror());
  return library;
}

}  // namespace

template <class... Arguments>
Function<Arguments...>::Function(void* library, const char* name)
    : name_(name), entry_(reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name))) {
  STD_TORCH_CHECK(entry_, "rnnkern: the CUDA driver has no ", name, ": it is too old for CUDA 13");
}

#define RNNKERN_FIND(name) name(library, #name)
Driver::Driver(void* library)
    : RNNKERN_FIND(cuGetErrorName),
      RNNKERN_FIND(cuGetErrorString),
      RNNKERN_FIND(cuDeviceGet),
      RNNKERN_FIND(cuDeviceGetAttribute),
      RNNKERN_FIND(cuCtxGetCurrent),
      RNNKERN_FIND(cuCtxGetDevice),
      RNNKERN_FIND(cuDevicePrimaryCtxRetain),
      RNNKERN_FIND(cuCtxSetCurrent),
      RNNKERN_FIND(cuModuleLoadData),
      RNNKERN_FIND(cuModuleGetFunction),
      RNNKERN_FIND(cuFuncSetAttribute),
      RNNKERN_FIND(cuOccupancyMaxActiveBlocksPerMultiprocessor),
      RNNKERN_FIND(cuOccupancyMaxActiveClusters),
      RNNKERN_FIND(cuStreamIsCapturing),
      RNNKERN_FIND(cuLaunchKernelEx) {}
#undef RNNKERN_FIND

const Driver& driver() {
  static const Driver opened(open());
  return opened;
}

void fail(const char* function, std::string_view what, int error) {
  const char *name = nullptr, *text = nullptr;  // null for errors that the driver does not know
  driver().cuGetErrorName.attempt(error, &name);
  driver().cuGetErrorString.attempt(error, &text);
  STD_TORCH_CHECK(false, "rnnkern: ", function, " of ", std::string(what), ": ", text ? text : "an unknown error", " (",
                  name ? name : std::to_string(error).c_str(), ")");
}

void enter(int device) {
  void* context = nullptr;
  driver().cuCtxGetCurrent("this thread", &context);
  if (context) return;
  int handle = 0;
  driver().cuDeviceGet("a device", &handle, device);
  driver().cuDevicePrimaryCtxRetain("a device", &context, handle);
  driver().cuCtxSetCurrent("this thread", context);
}

bool capturing(void* stream) {
  int status = 0;
  driver().cuStreamIsCapturing("a stream", stream, &status);
  return status != 0;
}

}  // namespace rnnkern::cuda

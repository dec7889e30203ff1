#include "cuda/libcuda.h"

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

void* symbol_of(void* library, const char* name) {
  void* const function = dlsym(library, name);
  STD_TORCH_CHECK(function, "rnnkern: the CUDA driver has no ", name, ": it is too old for CUDA 13");
  return function;
}

const Libcuda& libcuda() {
  static const Libcuda opened{open()};
  return opened;
}

void fail(const char* function, std::string_view what, int error) {
  const char *name = nullptr, *text = nullptr;  // null for errors that the driver does not know
  libcuda().cuGetErrorName.attempt(error, &name);
  libcuda().cuGetErrorString.attempt(error, &text);
  STD_TORCH_CHECK(false, "rnnkern: ", function, " of ", std::string(what), ": ", text ? text : "an unknown error", " (",
                  name ? name : std::to_string(error).c_str(), ")");
}

int current_device() {
  int device = 0;
  libcuda().cuCtxGetDevice("the current context", &device);
  return device;
}

int attribute_of_current_device(DeviceAttribute attribute) {
  int value = 0;
  libcuda().cuDeviceGetAttribute("a device", &value, attribute, current_device());
  return value;
}

void enter(int device) {
  void* context = nullptr;
  libcuda().cuCtxGetCurrent("this thread", &context);
  if (context) return;
  int handle = 0;
  libcuda().cuDeviceGet("a device", &handle, device);
  libcuda().cuDevicePrimaryCtxRetain("a device", &context, handle);
  libcuda().cuCtxSetCurrent("this thread", context);
}

bool capturing(void* stream) {
  int status = 0;
  libcuda().cuStreamIsCapturing("a stream", stream, &status);
  return status != 0;
}

}  // namespace rnnkern::cuda

// The CUDA driver, libcuda.so.1, opened at its first use. The library does not link with it, and compiles without a
// CUDA toolkit.
#pragma once

#include <cstddef>
#include <string_view>

namespace rnnkern::cuda {

// As in cuda.h, which a test checks.
struct alignas(8) LaunchAttribute {
  static constexpr int cooperative = 2, cluster_dimension = 4;

  int id;
  char padding[4];
  union {
    int on;
    unsigned sizes[3];
    char all[64];
  };
};

struct LaunchConfig {
  unsigned blocks[3], threads[3], shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

enum class DeviceAttribute : int { multiprocessors = 16, major = 75, minor = 76, shared_bytes_per_block = 97 };
enum class FunctionAttribute : int { shared_bytes = 8, clusters_above_8 = 14 };

// The address of a function in the library.
void* symbol_of(void* library, const char* name);

// Raises "<function> of <what>: <the driver's error message>".
[[noreturn]] void fail(const char* function, std::string_view what, int error);

// A function of the driver. If it fails, the error message contains `what` it was called for.
template <class... Arguments>
class Function {
 public:
  Function(void* library, const char* name)
      : name_(name), entry_(reinterpret_cast<int (*)(Arguments...)>(symbol_of(library, name))) {}

  void operator()(std::string_view what, Arguments... arguments) const {
    if (const int error = entry_(arguments...)) fail(name_, what, error);
  }
  // Returns the CUresult, for callers that handle errors.
  int attempt(Arguments... arguments) const { return entry_(arguments...); }

 private:
  const char* name_;
  int (*entry_)(Arguments...);
};

struct Libcuda {
  void* library;

  Function<int, const char**> cuGetErrorName{library, "cuGetErrorName"};
  Function<int, const char**> cuGetErrorString{library, "cuGetErrorString"};
  Function<int*, int> cuDeviceGet{library, "cuDeviceGet"};
  Function<int*, DeviceAttribute, int> cuDeviceGetAttribute{library, "cuDeviceGetAttribute"};
  Function<void**> cuCtxGetCurrent{library, "cuCtxGetCurrent"};
  Function<int*> cuCtxGetDevice{library, "cuCtxGetDevice"};
  Function<void**, int> cuDevicePrimaryCtxRetain{library, "cuDevicePrimaryCtxRetain"};
  Function<void*> cuCtxSetCurrent{library, "cuCtxSetCurrent"};
  Function<void**, const void*> cuModuleLoadData{library, "cuModuleLoadData"};
  Function<void**, void*, const char*> cuModuleGetFunction{library, "cuModuleGetFunction"};
  Function<void*, FunctionAttribute, int> cuFuncSetAttribute{library, "cuFuncSetAttribute"};
  Function<int*, void*, int, size_t> cuOccupancyMaxActiveBlocksPerMultiprocessor{
      library, "cuOccupancyMaxActiveBlocksPerMultiprocessor"};
  Function<int*, void*, const LaunchConfig*> cuOccupancyMaxActiveClusters{library, "cuOccupancyMaxActiveClusters"};
  Function<void*, int*> cuStreamIsCapturing{library, "cuStreamIsCapturing"};
  Function<const LaunchConfig*, void*, void**, void**> cuLaunchKernelEx{library, "cuLaunchKernelEx"};
};

const Libcuda& libcuda();

// The device of the current context, and an attribute of it.
int current_device();
int attribute_of_current_device(DeviceAttribute attribute);

// Makes PyTorch's context of a device current in this thread, if no context is. PyTorch regards device 0 as current in
// new threads, including those of autograd, but has the context set by the first call of the CUDA runtime, which may
// come later.
void enter(int device);

// Whether a CUDA graph is being captured on the stream.
bool capturing(void* stream);

}  // namespace rnnkern::cuda

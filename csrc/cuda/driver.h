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

// Raises "<function> of <what>: <the driver's error message>".
[[noreturn]] void fail(const char* function, std::string_view what, int error);

// A function of the driver. If it fails, the error message contains `what` it was called for.
template <class... Arguments>
class Function {
 public:
  Function(void* library, const char* name);

  void operator()(std::string_view what, Arguments... arguments) const {
    if (const int error = entry_(arguments...)) fail(name_, what, error);
  }
  // Returns the CUresult, for callers that handle errors.
  int attempt(Arguments... arguments) const { return entry_(arguments...); }

 private:
  const char* name_;
  int (*entry_)(Arguments...);
};

struct Driver {
  explicit Driver(void* library);

  Function<int, const char**> cuGetErrorName, cuGetErrorString;
  Function<int*, int> cuDeviceGet;
  Function<int*, DeviceAttribute, int> cuDeviceGetAttribute;
  Function<void**> cuCtxGetCurrent;
  Function<int*> cuCtxGetDevice;
  Function<void**, int> cuDevicePrimaryCtxRetain;
  Function<void*> cuCtxSetCurrent;
  Function<void**, const void*> cuModuleLoadData;
  Function<void**, void*, const char*> cuModuleGetFunction;
  Function<void*, FunctionAttribute, int> cuFuncSetAttribute;
  Function<int*, void*, int, size_t> cuOccupancyMaxActiveBlocksPerMultiprocessor;
  Function<int*, void*, const LaunchConfig*> cuOccupancyMaxActiveClusters;
  Function<void*, int*> cuStreamIsCapturing;
  Function<const LaunchConfig*, void*, void**, void**> cuLaunchKernelEx;
};

const Driver& driver();

// Makes PyTorch's context of a device current in this thread, if no context is. PyTorch regards device 0 as current in
// new threads, including those of autograd, but has the context set by the first call of the CUDA runtime, which may
// come later.
void enter(int device);

// Whether a CUDA graph is being captured on the stream.
bool capturing(void* stream);

}  // namespace rnnkern::cuda

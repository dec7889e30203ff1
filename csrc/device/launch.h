// How a kernel starts. A kernel is a type with a Problem, `threads`, and `run(problem)` written against
// device/device.h:
//
//   struct Copy {
//     struct Problem { const float* from; float* to; };
//     static constexpr int threads = 128;
//     RNNKERN_DEVICE static void run(const Problem& p) { ... }
//   };
//   int error = device::launch<Copy>({.blocks = 4}, problem, stream);   // a cudaError_t; 0 is success
//
// Left to itself the compiler may spill to have two blocks on a multiprocessor. `least_blocks = 1` in a kernel gives
// its threads all the registers that one block can have.
#pragma once

#include <cstdint>

#include "device/device.h"

#if defined(__CUDACC__)
#include <cuda_runtime_api.h>
#endif

namespace rnnkern::device {

struct Launch {
  int64_t blocks;
  int64_t shared_bytes = 0;
  int cluster = 1;           // blocks that share their shared memory
  bool cooperative = false;  // all blocks run at once, or none does
};

#if defined(__CUDACC__)

// The error of a call, which the runtime forgets: whoever asks it for the last one, PyTorch after its next kernel,
// would take it for its own.
inline int reported(cudaError_t error) {
  if (error) cudaGetLastError();
  return error;
}

// 0 says nothing.
template <class Kernel>
constexpr int least_blocks() {
  if constexpr (requires { Kernel::least_blocks; }) {
    return Kernel::least_blocks;
  } else {
    return 0;
  }
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::threads, least_blocks<Kernel>())
    entry(const __grid_constant__ typename Kernel::Problem problem) {
  Kernel::run(problem);
}

// Blocks that wait for each other would wait for ever, did not all of them run: success says that the current device
// holds them at once.
template <class Kernel>
cudaError_t prove_resident(const Launch& shape) {
  int index, multiprocessors, each;
  if (const auto error = cudaGetDevice(&index)) return error;
  if (const auto error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, index)) return error;
  const auto kernel = reinterpret_cast<const void*>(entry<Kernel>);
  const auto bytes = size_t(shape.shared_bytes);
  if (const auto error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, Kernel::threads, bytes))
    return error;
  return shape.blocks <= int64_t(each) * multiprocessors ? cudaSuccess : cudaErrorCooperativeLaunchTooLarge;
}

template <class Kernel>
cudaError_t start(const Launch& shape, const typename Kernel::Problem& problem, void* stream) {
  if (shape.blocks == 0) return cudaSuccess;
  if (shape.blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  const auto kernel = entry<Kernel>;
  const auto set = [&](cudaFuncAttribute what, int64_t value) {
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), what, int(value));
  };
  if (shape.shared_bytes > 48 * 1024) {
    if (const auto error = set(cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes)) return error;
  }
  if (shape.cluster > 8) {
    if (const auto error = set(cudaFuncAttributeNonPortableClusterSizeAllowed, 1)) return error;
  }
  if (shape.cooperative) {
    if (const auto error = prove_resident<Kernel>(shape)) return error;
  }
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(shape.blocks));
  config.blockDim = dim3(Kernel::threads);
  config.dynamicSmemBytes = size_t(shape.shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {unsigned(shape.cluster), 1, 1};
  }
  if (shape.cooperative) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  }
  void* arguments[] = {const_cast<typename Kernel::Problem*>(&problem)};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), arguments);
}

template <class Kernel>
int launch(const Launch& shape, const typename Kernel::Problem& problem, void* stream) {
  return reported(start<Kernel>(shape, problem, stream));
}

#else

template <class Kernel>
int launch(const Launch& shape, const typename Kernel::Problem& problem, void*) {
  interpret({shape.blocks, shape.shared_bytes, shape.cluster, shape.cooperative, Kernel::threads},
            [&problem] { Kernel::run(problem); });
  return 0;
}

#endif

}  // namespace rnnkern::device

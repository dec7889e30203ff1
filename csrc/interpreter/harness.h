// How a test library offers kernels over Words by name, for ctypes.
#pragma once

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "device/launch.h"
#include "interpreter/conformance.h"

namespace rnnkern::device {

struct Named {
  const char* name;
  int (*start)(const conformance::Words& words);
};

template <class Kernel>
int start(const conformance::Words& words) {
  return launch<Kernel>(Kernel::shape, words, nullptr);
}

// Runs the kernel of this name on copies of `in` and `out` where kernels can reach them; 0, or `said` tells why not.
template <size_t count>
int run_named(const Named (&kernels)[count], const char* name, const uint32_t* in, int64_t in_words, uint32_t* out,
              int64_t out_words, char* said, int64_t said_bytes) {
  const auto failed = [&](const char* why) {
    std::snprintf(said, size_t(said_bytes), "%s", why);
    return 1;
  };
  for (const Named& kernel : kernels) {
    if (std::strcmp(kernel.name, name)) continue;
#if defined(__CUDACC__)
    uint32_t* memory = nullptr;
    const size_t in_bytes = size_t(in_words + 31) / 32 * 128, out_bytes = 4 * size_t(out_words);
    int error = cudaMalloc(&memory, in_bytes + out_bytes);
    uint32_t* const on_device = memory + in_bytes / 4;
    if (!error) error = cudaMemcpy(memory, in, 4 * size_t(in_words), cudaMemcpyHostToDevice);
    if (!error) error = cudaMemcpy(on_device, out, out_bytes, cudaMemcpyHostToDevice);
    if (!error) error = kernel.start({memory, on_device});
    if (!error) error = cudaDeviceSynchronize();
    if (!error) error = cudaMemcpy(out, on_device, out_bytes, cudaMemcpyDeviceToHost);
    cudaFree(memory);
    return error ? failed(cudaGetErrorString(cudaError_t(error))) : 0;
#else
    try {
      // Exactly as large as said, so that the address sanitizer sees what lies outside.
      std::vector<uint32_t> input(in, in + in_words), output(out, out + out_words);
      kernel.start({input.data(), output.data()});
      std::copy(output.begin(), output.end(), out);
      return 0;
    } catch (const std::exception& error) {
      return failed(error.what());
    }
#endif
  }
  return failed("no such kernel");
}

}  // namespace rnnkern::device

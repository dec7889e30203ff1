#include "device/facts.h"

#include <cuda_runtime_api.h>

namespace rnnkern::device {

int facts_of(int index, Facts& facts) {
  int shared_bytes = 0;
  const auto ask = [index](int* value, cudaDeviceAttr what) { return cudaDeviceGetAttribute(value, what, index); };
  if (const auto error = ask(&facts.major, cudaDevAttrComputeCapabilityMajor)) return error;
  if (const auto error = ask(&facts.minor, cudaDevAttrComputeCapabilityMinor)) return error;
  if (const auto error = ask(&facts.multiprocessors, cudaDevAttrMultiProcessorCount)) return error;
  if (const auto error = ask(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin)) return error;
  facts.shared_bytes = shared_bytes;
  return cudaSuccess;
}

const char* error_name(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }

}  // namespace rnnkern::device

#include "device/facts.h"

#include <map>

#include "device/launch.h"

namespace rnnkern::device {
namespace {

// Leaves no room on its multiprocessor for a second block, as kernels do that keep all they can on the chip.
__global__ void __launch_bounds__(256) alone() {}

// How many clusters of so many of these blocks run at once on the current device.
int resident(int blocks, int64_t shared_bytes) {
  const auto kernel = reinterpret_cast<const void*>(alone);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));
  if (blocks > 8) cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(256);
  config.dynamicSmemBytes = size_t(shared_bytes);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int found = 0;
  if (cudaOccupancyMaxActiveClusters(&found, kernel, &config)) found = 0;
  cudaGetLastError();  // a device that refuses such clusters runs none of them
  return found;
}

cudaError_t ask(int index, Facts& facts) {
  int shared_bytes = 0;
  const auto ask = [index](int* value, cudaDeviceAttr what) { return cudaDeviceGetAttribute(value, what, index); };
  if (const auto error = ask(&facts.major, cudaDevAttrComputeCapabilityMajor)) return error;
  if (const auto error = ask(&facts.minor, cudaDevAttrComputeCapabilityMinor)) return error;
  if (const auto error = ask(&facts.multiprocessors, cudaDevAttrMultiProcessorCount)) return error;
  if (const auto error = ask(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin)) return error;
  facts.shared_bytes = shared_bytes;
  if (facts.major < 9) return cudaSuccess;
  int current = 0;
  if (const auto error = cudaGetDevice(&current)) return error;
  if (const auto error = cudaSetDevice(index)) return error;
  facts.clusters[0] = resident(8, shared_bytes);
  facts.clusters[1] = resident(16, shared_bytes);
  return cudaSetDevice(current);
}

}  // namespace

int facts_of(int index, Facts& facts) {
  thread_local std::map<int, Facts> known;
  const auto found = known.find(index);
  if (found != known.end()) {
    facts = found->second;
    return cudaSuccess;
  }
  facts = {};
  const int error = reported(ask(index, facts));
  if (!error) known[index] = facts;
  return error;
}

int capturing(void* stream, bool& captures) {
  auto status = cudaStreamCaptureStatusNone;
  const int error = reported(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
  captures = status != cudaStreamCaptureStatusNone;
  return error;
}

const char* error_name(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }

}  // namespace rnnkern::device

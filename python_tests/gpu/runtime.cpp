// A CUDA runtime without a device: every call succeeds but the one that it was told to fail, and it remembers the last
// error until that is asked for, as the real one does.
#include <cuda_runtime_api.h>

#include <string>

namespace {

std::string failing;
cudaError_t last = cudaSuccess;

cudaError_t done(const char* call) {
  if (failing == call) last = cudaErrorInvalidValue;
  return failing == call ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace

extern "C" {

void fail_at(const char* call) { failing = call; }
void leave_error() { last = cudaErrorInvalidValue; }
int remembered() { return last; }

cudaError_t cudaGetLastError() {
  const cudaError_t error = last;
  last = cudaSuccess;
  return error;
}

cudaError_t cudaGetDevice(int* index) {
  *index = 0;
  return done("cudaGetDevice");
}

cudaError_t cudaSetDevice(int) { return done("cudaSetDevice"); }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 16;
  return done("cudaDeviceGetAttribute");
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return done("cudaFuncSetAttribute"); }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 1;
  return done("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = 1;
  return done("cudaOccupancyMaxActiveClusters");
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return done("cudaStreamIsCapturing");
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) { return done("cudaLaunchKernelExC"); }

const char* cudaGetErrorName(cudaError_t) { return "an error"; }

// What code that nvcc compiled calls when it is loaded, and in stubs that nothing here enters.
void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, cudaStream_t) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaSuccess; }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { return cudaSuccess; }
}

// The pointwise stage on a CUDA device: a thread per unit.
#include <cuda_runtime_api.h>

#include "recurrence/pointwise.h"

namespace rnnkern {
namespace {

constexpr int threads = 256;

template <class Cell, class T>
__global__ void __launch_bounds__(threads) pointwise(Pointwise<T> p) {
  const int64_t index = int64_t(blockIdx.x) * threads + threadIdx.x;
  if (index < p.batch * p.hidden) pointwise_unit<Cell>(p, index);
}

template <class T>
int launch(const Pointwise<T>& p, int place, void* stream) {
  const int64_t units = p.batch * p.hidden;
  if (units == 0) return cudaSuccess;
  const int64_t blocks = (units + threads - 1) / threads;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
#define RNNKERN_POINTWISE(Cell) pointwise<Cell, T>,
  constexpr void (*kernels[])(Pointwise<T>) = {RNNKERN_CELLS(RNNKERN_POINTWISE)};
  kernels[place]<<<unsigned(blocks), threads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return cudaGetLastError();
}

}  // namespace

int pointwise_cuda(const Pointwise<float>& problem, int place, void* stream) { return launch(problem, place, stream); }
int pointwise_cuda(const Pointwise<double>& problem, int place, void* stream) { return launch(problem, place, stream); }
const char* cuda_error_name(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }

}  // namespace rnnkern

// Times one cluster kernel, an LSTM of 512 units in bfloat16, forward, as it was compiled: with the RNNKERN_WAIT_SCOPE
// that the compiler was given. Prints microseconds per step, the median of 20 launches, and a hash of h.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "device/launch.h"
#include "recurrence/cuda/cluster_forward.cuh"

namespace rnnkern {
namespace {

using S = device::bfloat16;
constexpr int hidden = 512, gates = Lstm::gates, steps = 1024, batch = 8, warm_ups = 3, launches = 20;
using Kernel = ClusterForwardKernel<Lstm, S, hidden>;

void succeed(int error, const char* what) {
  if (!error) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(cudaError_t(error)));
  std::exit(1);
}

// Of so many elements, drawn by a counter in +-scale.
S* drawn(int64_t count, float scale) {
  std::vector<S> host(static_cast<size_t>(count));
  uint32_t state = 1;
  for (S& x : host) {
    state = state * 1664525u + 1013904223u;
    const float value = scale * (float(state >> 8) / float(1 << 23) - 1);
    x.bits = uint16_t(std::bit_cast<uint32_t>(value) >> 16);
  }
  void* made;
  succeed(cudaMalloc(&made, host.size() * sizeof(S)), "cudaMalloc");
  succeed(cudaMemcpy(made, host.data(), host.size() * sizeof(S), cudaMemcpyHostToDevice), "cudaMemcpy");
  return static_cast<S*>(made);
}

int run() {
  ClusterForward<S> p{};
  p.sequence = {steps, batch, hidden, 1, nullptr, nullptr, nullptr, false};
  p.columns = std::min(batch, Kernel::columns);
  p.u = drawn(int64_t(steps) * batch * gates * hidden, 1);
  p.R = drawn(int64_t(gates) * hidden * hidden, 0.04f);
  for (int s = 0; s < Lstm::states; ++s) {
    p.state[s] = drawn(batch * hidden, 1);
    p.final_state[s] = drawn(batch * hidden, 1);
  }
  p.h = drawn(int64_t(steps) * batch * hidden, 1);
  const int64_t clusters = (batch + p.columns - 1) / p.columns;
  const device::Launch shape{
      .blocks = clusters * Kernel::cluster, .shared_bytes = Kernel::shared_size, .cluster = Kernel::cluster};
  cudaEvent_t begin, end;
  succeed(cudaEventCreate(&begin), "cudaEventCreate");
  succeed(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int k = 0; k < warm_ups + launches; ++k) {
    succeed(cudaEventRecord(begin), "cudaEventRecord");
    succeed(device::launch<Kernel>(shape, p, nullptr), "launch");
    succeed(cudaEventRecord(end), "cudaEventRecord");
    succeed(cudaEventSynchronize(end), "the kernel");
    float ms;
    succeed(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    if (k >= warm_ups) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  std::vector<uint16_t> h(size_t(steps) * batch * hidden);
  succeed(cudaMemcpy(h.data(), p.h, h.size() * sizeof(S), cudaMemcpyDeviceToHost), "cudaMemcpy");
  uint64_t hash = 14695981039346656037u;
  for (const uint16_t x : h) hash = (hash ^ x) * 1099511628211u;
  std::printf("%.4f %016llx\n", 1e3 * double(times[times.size() / 2]) / steps, static_cast<unsigned long long>(hash));
  return 0;
}

}  // namespace
}  // namespace rnnkern

int main() { return rnnkern::run(); }

// The block kernels' last head of so many that an int does not count the elements of R before it. Memory that is never
// written costs nothing, so that R may be of several GB.
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "recurrence/cuda/block_backward.cuh"
#include "recurrence/cuda/block_forward.cuh"

namespace {

using namespace rnnkern;
using S = device::bfloat16;
using A = Arithmetic<S>;
constexpr int d = 128, states = Lstm::states, gates = Lstm::gates;

// Tensors of one call, zero but for the last head's share.
class Memory {
 public:
  Memory() = default;
  ~Memory() {
    for (const auto& [memory, bytes] : all_) munmap(memory, bytes);
  }

  // The first of `count` elements, of which the last are `values`. As many again lie before the first.
  template <class T>
  T* with(int64_t count, const std::vector<float>& values) {
    const size_t bytes = 2 * size_t(count) * sizeof(T);
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no address space");
    all_.push_back({memory, bytes});
    T* const first = static_cast<T*>(memory) + count;
    for (size_t k = 0; k < values.size(); ++k) first[count - int64_t(values.size() - k)] = device::narrow<T>(values[k]);
    return first;
  }

 private:
  std::vector<std::pair<void*, size_t>> all_;
};

std::vector<float> some(int64_t count, float scale) {
  std::vector<float> values;
  for (int64_t k = 0; k < count; ++k) values.push_back(scale * float(k * 37 % 64 - 31) / 32);
  return values;
}

// Runs the block of the last head alone.
template <class Kernel>
void run_last(int64_t heads, const typename Kernel::Problem& problem) {
  device::interpret({heads, Kernel::shared_size, 1, false, Kernel::threads}, [&] {
    if (device::block() == heads - 1) Kernel::run(problem);
  });
}

// Of one step of one sequence: h, and dL/dh0 of dL/dh, of the last head.
std::vector<float> last_of(int64_t heads, bool backward) {
  Memory memory;
  const int64_t hidden = heads * d;
  const Sequence sequence{{1, 1, hidden, nullptr, nullptr, nullptr}, heads, false};
  const S* const R = memory.with<S>(heads * gates * d * d, some(gates * d * d, 0.1f));
  const S* const h0 = memory.with<S>(hidden, some(d, 1));
  std::vector<float> found;
  if (backward) {
    BlockBackward<S> p{};
    p.sequence = sequence;
    p.steps = p.rows = 1;
    p.R = R;
    p.cell_state[1] = p.h = p.previous = h0;
    p.grad_h = h0;
    p.cells[1] = memory.with<A>(hidden, some(d, 1));
    p.saved = memory.with<A>(hidden * Lstm::saved, {});
    for (int gate = 0; gate < Lstm::saved; ++gate) {
      for (int k = 0; k < d; ++k) const_cast<A*>(p.saved)[(gate + 1) * hidden - d + k] = 0.25f + float(k) / 256;
    }
    for (int s = 0; s < states; ++s) p.carry[s] = memory.with<A>(hidden, {});
    p.du = memory.with<S>(hidden * gates, {});
    run_last<BlockBackwardKernel<Lstm, S, d>>(heads, p);
    for (int k = 0; k < d; ++k) found.push_back(p.carry[0][hidden - d + k]);
  } else {
    BlockForward<S> p{};
    p.sequence = sequence;
    p.R = R;
    p.u = memory.with<S>(hidden * gates, {});
    for (int s = 0; s < states; ++s) {
      p.state[s] = h0;
      p.final_state[s] = memory.with<S>(hidden, {});
    }
    p.h = memory.with<S>(hidden, {});
    run_last<BlockForwardKernel<Lstm, S, d>>(heads, p);
    for (int k = 0; k < d; ++k) found.push_back(device::widen(p.h[hidden - d + k]));
  }
  return found;
}

}  // namespace

extern "C" void last_head(int64_t heads, bool backward, float* out) {
  const std::vector<float> found = last_of(heads, backward);
  std::memcpy(out, found.data(), found.size() * sizeof(float));
}

#include "common/caching_allocator.h"

#include <chrono>
#include <list>

#include <torch/headeronly/core/DeviceType.h>

#include "common/fork.h"

namespace rnnkern {
namespace {

constexpr int64_t least = int64_t(1) << 20;  // bytes; malloc serves smaller blocks without page faults

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds longest_idle{10};

struct Block {
  Tensor memory;  // dtype uint8
  int64_t size;
  Clock::time_point since;  // when it became idle
};

struct Pool {
  ForkSafeMutex mutex;
  std::list<Block> idle;  // oldest first
  int64_t idle_bytes = 0, used_bytes = 0, most_used = 0;

  // Reuses an idle block of at least `size` and at most 5/4 `size` bytes, or allocates a new one.
  Block alloc(const Tensor& like, int64_t size) {
    std::list<Block> given_back, found;
    {
      const std::lock_guard lock(mutex);
      auto best = idle.end();
      for (auto at = idle.begin(); at != idle.end(); ++at) {
        const bool fits = at->size >= size && at->size <= size + size / 4;
        if (fits && (best == idle.end() || at->size < best->size)) best = at;
      }
      if (best != idle.end()) {
        size = best->size;
        idle_bytes -= size;
        found.splice(found.end(), idle, best);
      }
      used_bytes += size;
      if (used_bytes > most_used) most_used = used_bytes;
      shrink(most_used - used_bytes, given_back);
    }
    if (!found.empty()) return found.front();
    given_back.clear();  // free memory before allocating more
    try {
      return {empty(like, {size}, ScalarType::Byte), size, {}};
    } catch (...) {  // out of memory: free all idle blocks
      const std::lock_guard lock(mutex);
      used_bytes -= size;
      most_used = used_bytes;
      shrink(0, given_back);
      throw;
    }
  }

  void give(Block block) {
    std::list<Block> given_back;
    const std::lock_guard lock(mutex);
    used_bytes -= block.size;
    idle_bytes += block.size;
    block.since = Clock::now();
    idle.push_back(block);
    shrink(idle_bytes, given_back);
  }

  void shrink(int64_t bytes, std::list<Block>& given_back) {
    const Clock::time_point oldest = Clock::now() - longest_idle;
    while (!idle.empty() && (idle_bytes > bytes || idle.front().since < oldest)) {
      idle_bytes -= idle.front().size;
      given_back.splice(given_back.end(), idle, idle.begin());
    }
  }
};

// Never destroyed, since tensors may outlive all static objects.
Pool& pool = *new Pool;

}  // namespace

Tensor cached_empty(const Tensor& like, const std::vector<int64_t>& sizes, ScalarType dtype) {
  int64_t size = dtype == ScalarType::ComplexDouble                                 ? 16
                 : dtype == ScalarType::Double || dtype == ScalarType::ComplexFloat ? 8
                                                                                    : 4;
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = dim + 1 < sizes.size() ? strides[dim + 1] * sizes[dim + 1] : 1;
    size *= sizes[dim];
  }
  if (size < least) return empty(like, sizes, dtype);
  const Block block = pool.alloc(like, size);
  return torch::stable::from_blob(
      write<char>(block.memory), {sizes.data(), sizes.size()}, {strides.data(), strides.size()},
      torch::stable::Device(torch::headeronly::DeviceType::CPU), dtype, [block](void*) { pool.give(block); });
}

int64_t release_memory() {
  std::list<Block> given_back;
  const std::lock_guard lock(pool.mutex);
  const int64_t bytes = pool.idle_bytes;
  pool.shrink(0, given_back);
  pool.most_used = pool.used_bytes;
  return bytes;
}

}  // namespace rnnkern

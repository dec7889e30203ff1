#include "common/counters.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>

namespace rnnkern {
namespace {

using Name = std::array<const char*, 4>;

struct Counter {
  Name name;
  Counter* next;
  std::atomic<int64_t> times{0};
};

// Append-only lists, hashed by the addresses of the name parts, so that a call neither builds a string nor takes a
// lock. A kernel may have several counters: the same text may have several addresses, and two threads may insert the
// first count at the same time. kernel_counts() adds them up.
std::atomic<Counter*> lists[64];

Counter& counter(const Name& name) {
  uint64_t hash = 0;
  for (const char* part : name) hash = (hash ^ reinterpret_cast<uintptr_t>(part)) * 0x9E3779B97F4A7C15u;
  std::atomic<Counter*>& first = lists[hash >> 58];
  Counter* const known = first.load(std::memory_order_acquire);
  for (Counter* found = known; found; found = found->next)
    if (found->name == name) return *found;
  Counter* const made = new Counter{name, known};
  while (!first.compare_exchange_weak(made->next, made, std::memory_order_release, std::memory_order_relaxed)) {
  }
  return *made;
}

}  // namespace

void count(const char* family, const char* direction, const char* cell, const char* variant) {
  counter({family, direction, cell, variant}).times.fetch_add(1, std::memory_order_relaxed);
}

std::string kernel_counts() {
  std::map<std::string, int64_t> named;
  for (const std::atomic<Counter*>& first : lists) {
    for (const Counter* found = first.load(std::memory_order_acquire); found; found = found->next) {
      const auto& [family, direction, cell, variant] = found->name;
      named[std::string(family) + "/" + direction + "/" + cell + "/" + variant] += found->times;
    }
  }
  std::string text = "{";
  for (const auto& [kernel, times] : named) {
    if (text.size() > 1) text += ", ";
    text += '"' + kernel + "\": " + std::to_string(times);
  }
  return text + "}";
}

}  // namespace rnnkern

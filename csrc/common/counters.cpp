#include "common/counters.h"

#include <cstdint>
#include <map>
#include <mutex>

namespace rnnkern {
namespace {

std::mutex mutex;

std::map<std::string, int64_t>& counts() {
  static std::map<std::string, int64_t> all;
  return all;
}

}  // namespace

void count(const std::string& kernel) {
  const std::lock_guard<std::mutex> lock(mutex);
  ++counts()[kernel];
}

std::string kernel_counts() {
  const std::lock_guard<std::mutex> lock(mutex);
  std::string text = "{";
  for (const auto& [kernel, times] : counts()) {
    if (text.size() > 1) text += ", ";
    text += '"' + kernel + "\": " + std::to_string(times);
  }
  return text + "}";
}

}  // namespace rnnkern

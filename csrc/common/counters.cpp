#include "common/counters.h"

#include <array>
#include <cstdint>
#include <map>
#include <mutex>

namespace rnnkern {
namespace {

std::mutex mutex;

using Name = std::array<const char*, 4>;

// By the addresses of the parts: a call is not to build a string. The same part may have several addresses.
std::map<Name, int64_t>& counts() {
  static std::map<Name, int64_t> all;
  return all;
}

}  // namespace

void count(const char* family, const char* direction, const char* cell, const char* variant) {
  const std::lock_guard<std::mutex> lock(mutex);
  ++counts()[{family, direction, cell, variant}];
}

std::string kernel_counts() {
  const std::lock_guard<std::mutex> lock(mutex);
  std::map<std::string, int64_t> named;
  for (const auto& [name, times] : counts()) {
    named[std::string(name[0]) + "/" + name[1] + "/" + name[2] + "/" + name[3]] += times;
  }
  std::string text = "{";
  for (const auto& [kernel, times] : named) {
    if (text.size() > 1) text += ", ";
    text += '"' + kernel + "\": " + std::to_string(times);
  }
  return text + "}";
}

}  // namespace rnnkern

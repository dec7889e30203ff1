// Test libraries offer kernels over Words by the name of their type.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <regex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/kernel.h"
#include "interpreter/conformance.h"

namespace rnnkern::device {

struct Named {
  const cuda::Kernel* kernel;
  cuda::Launch shape;

  // The name of the type without namespaces, as in "Mma<bfloat16>".
  std::string name() const { return std::regex_replace(std::string(kernel->type), std::regex("[^<>]*::"), ""); }
};

template <class... K>
constexpr std::array<Named, sizeof...(K)> named{{{&cuda::kernel<K>, K::shape}...}};

inline void start(std::span<const Named> kernels, std::string_view name, const conformance::Words& words,
                  void* stream) {
  const auto found = std::ranges::find(kernels, name, &Named::name);
  if (found == kernels.end()) throw std::runtime_error("no such kernel");
  cuda::start(*found->kernel, found->shape, &words, stream);
}

#if defined(RNNKERN_INTERPRET)

// For ctypes: runs the named kernel on copies of `in` and `out`. Returns 0; on an error 1, with the message in `said`.
inline int run_named(std::span<const Named> kernels, const char* name, const uint32_t* in, int64_t in_words,
                     uint32_t* out, int64_t out_words, uint64_t seed, char* said, int64_t said_bytes) {
  set_seed(seed);
  try {
    // Exact sizes, so that the address sanitizer finds accesses outside.
    std::vector<uint32_t> input(in, in + in_words), output(out, out + out_words);
    start(kernels, name, {input.data(), output.data()}, nullptr);
    std::copy(output.begin(), output.end(), out);
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(said, size_t(said_bytes), "%s", error.what());
    return 1;
  }
}

#endif

}  // namespace rnnkern::device

// A CUDA kernel as the host sees it, and its launch. A kernel is a type with a Problem, `threads`, `header` and
// `run(problem)`, written against device/device.h:
//
//   struct CopyKernel {
//     struct Problem { const float* from; float* to; };
//     static constexpr char header[] = "family/cuda/copy.cuh";  // the file that defines it
//     static constexpr int threads = 128;
//     RNNKERN_DEVICE static void run(const Problem& p) { ... }
//   };
//   cuda::launch<CopyKernel>({.blocks = 4}, problem, stream);
//
// The host compiler does not compile `run`: the kernel is compiled for the device when it is first started, by the name
// of its type. With RNNKERN_INTERPRET, `run` is compiled for the host and runs there.
#pragma once

#include <cstdint>
#include <string_view>

#include "cuda/launch.h"
#include "device/device.h"

namespace rnnkern::cuda {

struct Kernel {
  std::string_view type;  // as spelled in C++, with all template arguments
  const char* header;
  int threads;  // per block
#if defined(RNNKERN_INTERPRET)
  void (*run)(const void* problem);
#endif
};

// GCC omits the name of the enclosing namespace. None of the kernels are in this one, so all names are complete.
namespace spelled {

// The name of K, from "... [with K = name; ...]" of GCC or "... [K = name]" of Clang.
template <class K>
constexpr std::string_view type_name() {
  const std::string_view signature = __PRETTY_FUNCTION__;
  const size_t first = signature.find("K = ") + 4;
  return signature.substr(first, signature.find_first_of(";]", first) - first);
}

}  // namespace spelled

template <class K>
inline constexpr Kernel kernel{
    spelled::type_name<K>(),
    K::header,
    K::threads,
#if defined(RNNKERN_INTERPRET)
    [](const void* problem) { K::run(*static_cast<const typename K::Problem*>(problem)); },
#endif
};

// Starts a kernel on a stream of the current device. Errors of the compiler or the driver are raised by this call.
#if defined(RNNKERN_INTERPRET)
inline void start(const Kernel& kernel, const Launch& shape, const void* problem, void*) {
  device::interpret({shape.blocks, shape.shared_bytes, shape.cluster, shape.cooperative, kernel.threads},
                    [&] { kernel.run(problem); });
}
#else
void start(const Kernel& kernel, const Launch& shape, const void* problem, void* stream);
#endif

template <class K>
void launch(const Launch& shape, const typename K::Problem& problem, void* stream) {
  start(kernel<K>, shape, &problem, stream);
}

// Starts one thread per element.
template <class Problem>
void start_elements(const Kernel& kernel, int64_t elements, const Problem& problem, void* stream) {
  start(kernel, {.blocks = (elements + kernel.threads - 1) / kernel.threads}, &problem, stream);
}

template <class K>
void launch_elements(int64_t elements, const typename K::Problem& problem, void* stream) {
  start_elements(kernel<K>, elements, problem, stream);
}

}  // namespace rnnkern::cuda

#include <exception>

#include "common/simd_level.h"
#include "recurrence/cells.h"

// Whether a cell of that name is registered for CUDA, or for the SIMD level in use.
extern "C" [[gnu::visibility("default")]] int rnnkern_has_cell(const char* name, int on_cuda) try {
  const auto find = rnnkern::find_registered.load(std::memory_order_acquire);
  return find && find(name, on_cuda ? 0 : rnnkern::simd_vector_bytes());
} catch (const std::exception&) {  // RNNKERN_SIMD is not the name of a level; the next operator says so
  return 0;
}

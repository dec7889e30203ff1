// Cells that rnnkern compiles at run time. Python calls these two by ctypes: no tracer is to see them, as it would see
// operators.
#include <dlfcn.h>

#include <exception>

#include "common/simd_level.h"
#include "recurrence/cells.h"

// Whether a cell of that name is known for the SIMD level in use.
extern "C" [[gnu::visibility("default")]] int rnnkern_has_cell(const char* name) try {
  return rnnkern::find_registered(name, rnnkern::simd_vector_bytes()) != nullptr;
} catch (const std::exception&) {  // RNNKERN_SIMD names no level, as the next operator says
  return 0;
}

// Makes the cell known that a library exports (cells/strip.h), which stays loaded. Returns null, or what is wrong.
extern "C" [[gnu::visibility("default")]] const char* rnnkern_register_cell(const char* name, const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  const void* symbol = handle ? dlsym(handle, "rnnkern_cell") : nullptr;
  if (!symbol) return dlerror();
  auto* cell = new rnnkern::RegisteredCell{name, static_cast<const rnnkern::CompiledCell*>(symbol),
                                           rnnkern::registered_cells.load(std::memory_order_relaxed)};
  while (!rnnkern::registered_cells.compare_exchange_weak(cell->next, cell, std::memory_order_release)) continue;
  return nullptr;
}

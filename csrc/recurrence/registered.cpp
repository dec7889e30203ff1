// Cells that rnnkern compiles at run time. Python calls the C functions with ctypes, because a tracer would record an
// operator.
#include <dlfcn.h>

#include "recurrence/cells.h"

namespace rnnkern {
namespace {

// No cell is ever removed, so reading the list takes no lock.
std::atomic<const RegisteredCell*> registered = nullptr;

const RegisteredCell* find(const std::string& name, int vector_bytes) {
  const RegisteredCell* cell = registered.load(std::memory_order_acquire);
  while (cell && (cell->cell->vector_bytes != vector_bytes || cell->name != name)) cell = cell->next;
  return cell;
}

}  // namespace
}  // namespace rnnkern

// Registers the cell that a library exports (cells/strip.h). The library stays loaded. Returns null or an error
// message.
extern "C" [[gnu::visibility("default")]] const char* rnnkern_register_cell(const char* name, const char* library) {
  using namespace rnnkern;
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  const void* symbol = handle ? dlsym(handle, "rnnkern_cell") : nullptr;
  if (!symbol) return dlerror();
  auto* cell = new RegisteredCell{name, static_cast<const CompiledCell*>(symbol), registered.load()};
  while (!registered.compare_exchange_weak(cell->next, cell, std::memory_order_release)) continue;
  find_registered.store(&find, std::memory_order_release);
  return nullptr;
}

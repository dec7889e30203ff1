#include "common/simd_level.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <torch/headeronly/util/Exception.h>

#include "build_levels.h"

namespace rnnkern {
namespace {

#if defined(__x86_64__)
// Whether the processor has the tiles of AMX and the kernel lets this process use them.
bool has_tiles() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  unsigned a, b, c, d = 0;
  constexpr unsigned bfloat16 = 1 << 22, tiles = 1 << 24;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bfloat16) && (d & tiles) &&
         syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

SimdLevel highest_of_processor() {
  SimdLevel highest = SimdLevel::plain;
#if defined(__x86_64__)
  __builtin_cpu_init();
#define HAS(feature) __builtin_cpu_supports(feature)
#define RNNKERN_TRY(name, bytes, macro, has) \
  if (!(has)) return highest;                \
  highest = SimdLevel::name;
  RNNKERN_SIMD_LEVELS(RNNKERN_TRY)
#undef RNNKERN_TRY
#undef HAS
#endif
  return highest;
}

bool was_built(SimdLevel level) {
#define RNNKERN_IS(built) || level == SimdLevel::built
  return false RNNKERN_BUILT_LEVELS(RNNKERN_IS);
#undef RNNKERN_IS
}

SimdLevel parse(const char* wanted, const char* asker) {
  std::string names;
  for (SimdLevel level : supported_simd_levels()) {
    if (std::strcmp(wanted, name(level)) == 0) return level;
    names += names.empty() ? name(level) : std::string(", ") + name(level);
  }
  STD_TORCH_CHECK(false, asker, ": `", wanted,
                  "` is not a level that this processor has and that was built; those are: ", names);
  return SimdLevel::plain;
}

std::atomic<SimdLevel>& current() {
  static std::atomic<SimdLevel> level = [] {
    if (const char* wanted = std::getenv("RNNKERN_SIMD")) return parse(wanted, "RNNKERN_SIMD");
    const std::vector<SimdLevel> levels = supported_simd_levels();
    STD_TORCH_CHECK(!levels.empty(), "rnnkern was built only for SIMD levels that this processor lacks");
    return levels.back();
  }();
  return level;
}

}  // namespace

const char* name(SimdLevel level) {
#define RNNKERN_NAME(name, ...) #name,
  constexpr const char* names[] = {RNNKERN_SIMD_LEVELS(RNNKERN_NAME)};
#undef RNNKERN_NAME
  return names[static_cast<int>(level)];
}

std::vector<SimdLevel> supported_simd_levels() {
  std::vector<SimdLevel> levels;
  for (int level = 0; level <= static_cast<int>(processor_simd_level()); ++level)
    if (was_built(SimdLevel(level))) levels.push_back(SimdLevel(level));
  return levels;
}

SimdLevel processor_simd_level() {
  static const SimdLevel level = highest_of_processor();
  return level;
}

SimdLevel simd_level() { return current().load(std::memory_order_relaxed); }

int simd_vector_bytes() {
#define RNNKERN_BYTES(name, bytes, ...) bytes,
  constexpr int bytes_of[] = {RNNKERN_SIMD_LEVELS(RNNKERN_BYTES)};
#undef RNNKERN_BYTES
  return bytes_of[static_cast<int>(simd_level())];
}

const char* set_simd_level(const char* wanted) { return name(current().exchange(parse(wanted, "set_simd_level"))); }

}  // namespace rnnkern

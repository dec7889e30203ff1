#include "common/build_info.h"

#include "build_facts.h"  // written by setup.py: RNNKERN_BUILD_FACTS, the opening of a JSON object
#include "common/simd_level.h"

namespace rnnkern {

std::string build_info() {
  std::string levels;
  for (SimdLevel level : supported_simd_levels()) {
    levels += std::string(levels.empty() ? "\"" : ", \"") + name(level) + '"';
  }
  return std::string(RNNKERN_BUILD_FACTS) + ", \"cxx\": \"" __VERSION__ "\", \"openmp\": " + std::to_string(_OPENMP) +
         ", \"simd_levels\": [" + levels + "], \"simd_level\": \"" + name(simd_level()) +
         "\", \"processor_simd_level\": \"" + name(processor_simd_level()) + "\"}";
}

}  // namespace rnnkern

#pragma once

#include <string>

namespace rnnkern {

// Build options of this library and the SIMD level in use, as a JSON object for rnnkern.build_info().
std::string build_info();

}  // namespace rnnkern

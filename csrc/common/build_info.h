#pragma once

#include <string>

namespace rnnkern {

// How this library was built and which SIMD level is in use, as JSON for rnnkern.build_info().
std::string build_info();

}  // namespace rnnkern

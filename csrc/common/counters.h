// How often each kernel was entered: what `explain` says is held to this by tests.
#pragma once

#include <string>

namespace rnnkern {

void count(const std::string& kernel);

// {"recurrence/cpu/forward/lstm/avx512": 3, ...} as JSON, since the library was loaded.
std::string kernel_counts();

}  // namespace rnnkern

// How often each kernel was entered: what `explain` says is held to this by tests.
#pragma once

#include <string>

namespace rnnkern {

// Entered once more: the kernel's name, in parts that live as long as the library.
void count(const char* family, const char* direction, const char* cell, const char* variant);

// {"recurrence/cpu/forward/lstm/avx512": 3, ...} as JSON, since the library was loaded.
std::string kernel_counts();

}  // namespace rnnkern

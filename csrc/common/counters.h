// Counts the calls of each kernel. Tests compare the counts with what `explain` reports.
#pragma once

#include <string>

namespace rnnkern {

// Increments the counter of a kernel. The parts of its name must outlive the library (string literals).
void count(const char* family, const char* direction, const char* cell, const char* variant);

// The counts since the library was loaded, as JSON: {"recurrence/cpu/forward/lstm/avx512": 3, ...}.
std::string kernel_counts();

}  // namespace rnnkern

// What a launch plan knows of a device.
#pragma once

#include <cstdint>

namespace rnnkern::device {

struct Facts {
  int major, minor;  // compute capability
  int multiprocessors;
  int64_t shared_bytes;  // that a block can have
};

// Of the device with this index. Returns a cudaError_t; 0 is success.
int facts_of(int index, Facts& facts);

const char* error_name(int error);

}  // namespace rnnkern::device

// What a launch plan knows of a device.
#pragma once

#include <cstdint>

namespace rnnkern::device {

struct Facts {
  int major, minor;  // compute capability
  int multiprocessors;
  int64_t shared_bytes;  // that a block can have
  int clusters[2];       // of 8 and of 16 such blocks that run at once; none before 9.0

  int resident(int blocks) const { return blocks <= 8 ? clusters[0] : clusters[1]; }
};

// Of the device with this index; asked of the driver once. Returns a cudaError_t; 0 is success.
int facts_of(int index, Facts& facts);

// Whether a CUDA graph records what is given to the stream. Returns a cudaError_t.
int capturing(void* stream, bool& captures);

const char* error_name(int error);

}  // namespace rnnkern::device

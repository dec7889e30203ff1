// What the program that is compiled for a device needs of a kernel beside its own header.
#pragma once

namespace rnnkern::device {

// Left to itself the compiler may spill to have two blocks on a multiprocessor. `least_blocks = 1` in a kernel gives
// its threads all the registers that one block can have; 0 says nothing.
template <class Kernel>
constexpr int least_blocks() {
  if constexpr (requires { Kernel::least_blocks; }) {
    return Kernel::least_blocks;
  } else {
    return 0;
  }
}

}  // namespace rnnkern::device

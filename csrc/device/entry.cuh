// Included by the program that is compiled for a device, after the kernel's own header.
#pragma once

namespace rnnkern::device {

// By default the compiler may spill registers so that two blocks fit on a multiprocessor. `least_blocks = 1` in a
// kernel gives its threads all registers that one block can have; 0 sets no minimum.
template <class Kernel>
constexpr int least_blocks() {
  if constexpr (requires { Kernel::least_blocks; }) {
    return Kernel::least_blocks;
  } else {
    return 0;
  }
}

}  // namespace rnnkern::device

// Fork safety: only the forking thread exists in the child process, so no mutex may stay locked by another thread.
#pragma once

#include <mutex>

namespace rnnkern {

// The only mutex type of this library. A fork first locks all instances, so that none is left locked in the child.
// Instances are constructed while the library is loaded and are never destroyed; a thread holds at most one.
class ForkSafeMutex : public std::mutex {
 public:
  ForkSafeMutex();

 private:
  ForkSafeMutex* next_;

  static void lock_all();
  static void unlock_all();
};

}  // namespace rnnkern

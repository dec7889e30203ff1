// Forks: the child has one thread, whatever the others held or were waiting for.
#pragma once

#include <mutex>

namespace rnnkern {

// The library's only kind of mutex: a fork waits until it has all of them, and so leaves none locked in the child. They
// are made while the library is loaded and never destroyed; no thread holds two.
class ForkSafeMutex : public std::mutex {
 public:
  ForkSafeMutex();

 private:
  ForkSafeMutex* next_;

  static void lock_all();
  static void unlock_all();
};

}  // namespace rnnkern

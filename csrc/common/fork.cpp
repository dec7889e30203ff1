#include "common/fork.h"

#include <omp.h>
#include <pthread.h>

namespace rnnkern {
namespace {

ForkSafeMutex* first = nullptr;

// libgomp keeps a thread team for each thread that has started a parallel region. If a forked child inherited a team,
// it would wait forever for threads that do not exist, in PyTorch's operators too. The team therefore ends before the
// fork, and the next parallel region on either side starts a new one. In a process that uses one thread there is no
// team, or, if it was itself forked without this library, none that could be ended.
void end_team() {
  if (omp_get_max_threads() > 1) omp_pause_resource_all(omp_pause_soft);
}

}  // namespace

ForkSafeMutex::ForkSafeMutex() : next_(first) {
  if (!first) pthread_atfork(lock_all, unlock_all, unlock_all);
  first = this;
}

void ForkSafeMutex::lock_all() {
  for (ForkSafeMutex* mutex = first; mutex; mutex = mutex->next_) mutex->lock();
}

void ForkSafeMutex::unlock_all() {
  for (ForkSafeMutex* mutex = first; mutex; mutex = mutex->next_) mutex->unlock();
}

namespace {

const int registered = pthread_atfork(end_team, nullptr, nullptr);

}  // namespace
}  // namespace rnnkern

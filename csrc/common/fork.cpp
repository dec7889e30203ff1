#include "common/fork.h"

#include <omp.h>
#include <pthread.h>

namespace rnnkern {
namespace {

ForkSafeMutex* first = nullptr;

// libgomp keeps a team for each thread that began a parallel region. A child whose thread has its parent's team would
// wait for it for ever, so it ends before the fork, and the next region on either side starts one, of PyTorch's
// operators too. In a process that is told to use one thread there is none, or, after a fork without this library, none
// that could end.
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

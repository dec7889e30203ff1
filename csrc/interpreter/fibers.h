// The machine that the interpreter's primitives run on: fibers, the blocks and warps that they form, and the scheduler.
#pragma once

#include <ucontext.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace rnnkern::device {

struct Copy {
  char* to;
  const char* from;
  int bytes, commit;
};

struct Block;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Block* block;
  int thread;
  bool done, starved;
  const char* waits_for;            // null while it can run
  Place place;                      // of what it waits for
  std::function<bool()> condition;  // of suspend_until
  std::deque<Copy> copies;          // cp.async that has not been waited for
  int commits;                      // of copies, so far
};

// Those who have come to a convergence point.
struct Gathering {
  std::vector<Fiber*> came;
  void* given[warp_size];
};

struct Block {
  int64_t index;
  int rank;  // in its cluster
  struct Cluster* cluster;
  std::unique_ptr<char[]> memory;
  char* shared;  // in `memory`, aligned
  Gathering barrier;
  std::vector<Gathering> warps;
  int exited;
};

struct Store {
  char* to;
  char value[16];
  int bytes;
  Mbarrier* on;
};

struct Cluster {
  std::vector<Block*> blocks;
  Gathering barrier;
  std::vector<Store> stores;  // store_async that has not arrived
};

class Machine {
 public:
  void run(const Shape& shape, const std::function<void()>& kernel);

  Fiber& fiber() { return *current_; }
  const Shape& shape() const { return shape_; }
  void seed(uint64_t seed) { seed_ = seed; }
  uint64_t random(uint64_t below);

  void suspend(const char* what, Place place, std::function<bool()> condition);
  void converge(Gathering& gathering, size_t all, const char* what, Place place, void* mine,
                void (*together)(void* const*));
  [[noreturn]] void fail(const std::string& what, Place place);
  bool inside_shared(const Block& block, const void* pointer, int64_t bytes) const;

 private:
  static void enter();
  void run_together(int64_t first, int64_t count);
  void loop(std::vector<Fiber*>& fibers);
  bool deliver_one();
  void wake(Fiber* fiber);
  void back_to_scheduler();
  std::string who(const Fiber& fiber) const;

  Shape shape_{};
  const std::function<void()>* kernel_ = nullptr;
  uint64_t seed_ = 0, state_ = 1;
  Fiber* current_ = nullptr;
  ucontext_t scheduler_{};
  std::vector<std::unique_ptr<Fiber>> pool_;  // with their stacks, kept from launch to launch
  std::vector<Fiber*> ready_, ready_starved_, polling_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::string failure_;
};

Machine& machine();

}  // namespace rnnkern::device

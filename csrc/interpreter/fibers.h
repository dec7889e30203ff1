// The machine that the interpreter's primitives run on: fibers, the blocks and warps that they form, and the scheduler.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "interpreter/context.h"

namespace rnnkern::device {

struct Copy {
  char* to;
  const char* from;
  int bytes, commit;
};

struct Block;

struct Fiber {
  Context context;
  std::unique_ptr<char[]> stack;
  Block* block;
  int thread;
  bool done, starved;
  const char* waits_for;    // null while it can run
  Place place;              // of what it waits for
  const Mbarrier* barrier;  // that it waits for, if any
  int tries;                // of the spin_until that it is in
  std::deque<Copy> copies;  // cp.async that has not been waited for
  int commits;              // of copies, so far
};

// Those who have come to a convergence point.
struct Gathering {
  std::vector<Fiber*> came;
  void* given[warp_size];
};

struct Freed {
  void operator()(char* memory) const;
};

struct Block {
  int64_t index;
  int rank;  // in its cluster
  struct Cluster* cluster;
  std::unique_ptr<char[], Freed> memory;
  char* shared;  // all of `memory`
  Gathering barrier;
  std::vector<Gathering> warps;
  std::vector<Fiber*> waiting;  // for mbarriers
  int exited;
};

struct Store {
  char* to;
  char value[16];
  int bytes;
  Mbarrier* on;
  Block* holder;  // of both
  Place place;
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
  bool copies_at_once() const { return copies_at_once_; }

  void pause_spin(Place place);
  void end_spin() { current_->tries = 0; }
  void stored() { fruitless_ = 0; }
  void wait(const Mbarrier* barrier, int parity, Place place);
  void converge(Gathering& gathering, size_t all, const char* what, Place place, void* mine,
                void (*together)(void* const*));
  void send(const Store& store);
  // Ends the phase if nothing is left to come.
  void settle(Mbarrier* barrier, Block& holder);
  [[noreturn]] void fail(const std::string& what, Place place);
  bool inside_shared(const Block& block, const void* pointer, int64_t bytes) const;

 private:
  static void enter();
  void run_together(int64_t first, int64_t count);
  void start(Block& block, bool starved_block, size_t starved_warp);
  void loop();
  Fiber* next();
  bool deliver_one();
  void wake(Fiber* fiber);
  void back_to_scheduler();
  uint64_t random(uint64_t below);
  Fiber* any_of(std::vector<Fiber*>& fibers);
  std::string deadlock() const;

  Shape shape_{};
  const std::function<void()>* kernel_ = nullptr;
  uint64_t seed_ = 0, state_ = 1;
  // Of this launch, by its seed: about one turn in how many a store arrives, and what comes first when nothing else
  // can.
  uint64_t delay_ = 1;
  bool copies_at_once_ = false, stores_before_starved_ = false;
  Fiber* current_ = nullptr;
  Context scheduler_;
  std::vector<std::unique_ptr<Fiber>> pool_;  // with their stacks, kept from launch to launch
  std::vector<Fiber*> fibers_;                // of the blocks that are alive
  std::vector<Fiber*> ready_, ready_starved_;
  std::deque<Fiber*> spinning_, spinning_starved_;
  size_t fruitless_ = 0;  // tries of spin_until since a word or flag was stored
  bool ran_ = false;      // somebody did something else since all were tried
  std::vector<std::unique_ptr<Cluster>> clusters_;
  size_t stores_ = 0;  // under way, in all clusters
  std::string failure_;
};

Machine& machine();

}  // namespace rnnkern::device

// The machine that runs the interpreter's primitives: fibers, the blocks and warps that they form, and the scheduler.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "interpreter/context.h"
#include "interpreter/races.h"

namespace rnnkern::device {

struct Copy {
  char* to;
  const char* from;
  int bytes, commit;
};

struct Block;

struct Fiber {
  races::Thread seen;  // by the thread sanitizer
  Context context;
  std::unique_ptr<char[]> stack;
  Block* block;
  int thread;
  bool done, starved;
  const char* waits_for;               // null while the fiber can run
  Place place;                         // of the wait
  const Mbarrier* barrier;             // that the fiber waits for, or null
  int tries;                           // attempts of the current spin_until
  std::deque<Copy> copies;             // cp.async operations that have not been waited for
  int commits;                         // number of groups of copies so far
  std::vector<Mbarrier*> initialised;  // since its last init_fence
};

// The fibers that have reached a convergence point.
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
  char* shared;  // points to `memory`
  Gathering barrier;
  std::vector<Gathering> warps;
  std::vector<Fiber*> waiting;  // for mbarriers
  int exited;
};

struct Store {
  char* to;
  char value[16];
  int bytes;
  Mbarrier* on;   // null for store_relaxed
  Block* holder;  // of `to` and `on`
  Place place;
};

struct Cluster {
  std::vector<Block*> blocks;
  Gathering barrier;
  std::vector<Store> stores;                      // store_async and store_relaxed operations that have not arrived
  std::unordered_map<const void*, size_t> words;  // places of the latter in `stores`, by address
  std::vector<Mbarrier*> fenced;                  // since the last cluster_barrier
};

class Machine {
 public:
  void run(const Shape& shape, const std::function<void()>& kernel);

  Fiber& fiber() { return *current_; }
  const Shape& shape() const { return shape_; }
  void seed(uint64_t seed) { seed_ = seed; }
  bool copies_at_once() const { return copies_at_once_; }
  const races::Host& host() const { return *host_; }
  int64_t bank_conflicts = 0;

  void pause_spin(Place place);
  void end_spin() { current_->tries = 0; }
  void stored() { fruitless_ = 0; }
  void wait(const Mbarrier* barrier, int parity, Place place);
  // `ordering`: whether what the threads did before is visible to all of them after it.
  void converge(Gathering& gathering, size_t all, const char* what, Place place, void* mine,
                void (*together)(void* const*), bool ordering);
  void send(const Store& store);
  // Delivers the store to a word that this cluster has sent, if there is one, or all of them: nothing that the cluster
  // reads, or that follows a release, is older.
  void deliver_word(const void* word);
  void deliver_words();
  // Ends the phase if no arrivals and no bytes are missing.
  void settle(Mbarrier* barrier, Block& holder);
  [[noreturn]] void fail(const std::string& what, Place place);
  bool inside_shared(const Block& block, const void* pointer, int64_t bytes) const;

 private:
  static void enter();
  void run_together(const int64_t* clusters, size_t count);
  void start(Block& block, bool starved_block, size_t starved_warp);
  void loop();
  Fiber* next();
  bool deliver_one();
  void deliver(Cluster& cluster, size_t which);
  void wake(Fiber* fiber);
  void back_to_scheduler();
  uint64_t random(uint64_t below);
  Fiber* any_of(std::vector<Fiber*>& fibers);

  Shape shape_{};
  const std::function<void()>* kernel_ = nullptr;
  uint64_t seed_ = 0, state_ = 1;
  // Chosen by the seed for each launch: how seldom a store arrives, once in `delay_` choices of the next fiber on
  // average; and what comes first when no other fiber can run.
  uint64_t delay_ = 1;
  bool copies_at_once_ = false, stores_before_starved_ = false;
  Fiber* current_ = nullptr;
  Context scheduler_;
  const races::Host* host_ = nullptr;         // during a launch
  std::vector<std::unique_ptr<Fiber>> pool_;  // with their stacks, reused by later launches
  size_t used_ = 0;                           // of the pool
  std::vector<Fiber*> fibers_;                // of the running blocks
  struct Queue {
    std::vector<Fiber*> ready;
    std::deque<Fiber*> spinning;  // whose condition was false
  };
  Queue queues_[2];       // of the fibers that do not starve, then of those that do
  size_t fruitless_ = 0;  // attempts of spin_until since a word or flag was stored
  int idle_ = 0;          // how often all conditions have been tested since another fiber has run
  std::vector<std::unique_ptr<Cluster>> clusters_;
  size_t stores_ = 0;  // not delivered yet, in all clusters
  std::string failure_;
  char begun_ = 0, ended_ = 0;  // what threads acquire at their start, and release at their end
};

// Inside of a primitive the thread sanitizer sees the host's thread, called from where the primitive is called.
class Inside {
 public:
  explicit Inside(void* caller = __builtin_return_address(0));
  ~Inside();
  Inside(const Inside&) = delete;
};

Machine& machine();

}  // namespace rnnkern::device

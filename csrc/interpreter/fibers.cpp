// The scheduler. Compiled into every test library that interprets kernels, without the thread sanitizer (races.h).
#include "interpreter/fibers.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "interpreter/launch_check.h"
#include "interpreter/report.h"

namespace rnnkern::device {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t stack_bytes = 256 * 1024;
#else
constexpr size_t stack_bytes = 64 * 1024;
#endif
constexpr size_t watched_stack_bytes = 256 * 1024;
constexpr std::align_val_t shared_alignment{128};
// Blocks of an ordinary grid run in groups of up to so many clusters, with at most so many threads.
constexpr int64_t most_clusters = 4, most_threads = 2048;
// Blocks that run one after another can still race. The thread sanitizer therefore sees their threads as different
// fibers, up to this number, after which fibers are used again; it supports 8,128.
constexpr size_t most_watched = 1024;

}  // namespace

void Freed::operator()(char* memory) const { ::operator delete[](memory, shared_alignment); }

cuda::Facts& pretended() {
  static cuda::Facts facts{9, 0, 132, 227 * 1024, {16, 8}};
  return facts;
}

Machine& machine() {
  static thread_local Machine machine;
  return machine;
}

uint64_t Machine::random(uint64_t below) {
  state_ += 0x9e3779b97f4a7c15u;  // splitmix64
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (z ^ (z >> 31)) % below;
}

bool Machine::inside_shared(const Block& block, const void* pointer, int64_t bytes) const {
  const char* p = static_cast<const char*>(pointer);
  return p >= block.shared && p + bytes <= block.shared + shape_.shared_bytes;
}

// ---- fibers

void Machine::enter() {
  Machine& m = machine();
  Context::entered_from(m.scheduler_);
  Fiber& fiber = m.fiber();
  fiber.seen.enter();
  (*m.kernel_)();
  races::Thread::leave(*m.host_);
  fiber.done = true;
  ++fiber.block->exited;
  m.back_to_scheduler();
}

void Machine::back_to_scheduler() { current_->context.go_to(scheduler_); }

void Machine::fail(const std::string& what, Place place) {
  if (!current_) throw std::runtime_error("interpret: " + what + ", outside of a kernel, " + at(place));
  if (failure_.empty()) failure_ = what + ", " + who(*current_) + ", " + at(place);
  current_->done = true;
  back_to_scheduler();
  std::abort();  // a fiber that failed is not resumed
}

void Machine::wake(Fiber* fiber) {
  fiber->waits_for = nullptr;
  fiber->barrier = nullptr;
  queues_[fiber->starved].ready.push_back(fiber);
}

// Fibers test their conditions themselves when they run, because a condition may become false again before that. After
// a failed test they try again when a word or flag has been stored, and before a deadlock is reported.
void Machine::pause_spin(Place place) {
  Fiber& fiber = *current_;
  fiber.waits_for = "spin_until";
  fiber.place = place;
  Queue& queue = queues_[fiber.starved];
  if (fiber.tries++) {
    ++fruitless_;
    queue.spinning.push_back(&fiber);
  } else {
    queue.ready.push_back(&fiber);
  }
  back_to_scheduler();
}

void Machine::wait(const Mbarrier* barrier, int parity, Place place) {
  Fiber& fiber = *current_;
  do {
    if (int(barrier->phase) == parity) {
      fiber.waits_for = "wait";
      fiber.place = place;
      fiber.barrier = barrier;
      fiber.block->waiting.push_back(&fiber);
    } else {
      wake(&fiber);
    }
    back_to_scheduler();
  } while (int(barrier->phase) == parity);  // it may have missed two phases
}

void Machine::settle(Mbarrier* barrier, Block& holder) {
  if (barrier->pending || barrier->bytes) return;
  barrier->phase ^= 1;
  barrier->pending = barrier->arrivals;
  std::erase_if(holder.waiting, [&](Fiber* fiber) {
    const bool mine = fiber->barrier == barrier;
    if (mine) wake(fiber);
    return mine;
  });
}

void Machine::converge(Gathering& gathering, size_t all, const char* what, Place place, void* mine,
                       void (*together)(void* const*), bool ordering) {
  Fiber& fiber = *current_;
  const Fiber& first = gathering.came.empty() ? fiber : *gathering.came.front();
  if (&first != &fiber && !same(first.place, place)) {
    fail(std::string("divergence: ") + first.waits_for + " of " + who(first) + " at " + at(first.place) + " meets " +
             what,
         place);
  }
  fiber.waits_for = what;
  fiber.place = place;
  if (mine) gathering.given[fiber.thread % warp_size] = mine;
  gathering.came.push_back(&fiber);
  if (gathering.came.size() == all) {
    if (together) together(gathering.given);
    if (ordering) {
      for (const Fiber* other : gathering.came) other->seen.releases(&gathering);
      for (const Fiber* other : gathering.came) other->seen.acquires(&gathering);
    }
    for (Fiber* other : gathering.came) wake(other);
    gathering.came.clear();
  }
  back_to_scheduler();
}

void Machine::send(const Store& store) {
  Cluster& cluster = *current_->block->cluster;
  if (!store.on) cluster.words[store.to] = cluster.stores.size();
  cluster.stores.push_back(store);
  ++stores_;
}

void Machine::deliver_word(const void* word) {
  Cluster& cluster = *current_->block->cluster;
  const auto sent = cluster.words.find(word);
  if (sent != cluster.words.end()) deliver(cluster, sent->second);
}

void Machine::deliver_words() {
  Cluster& cluster = *current_->block->cluster;
  while (!cluster.words.empty()) deliver(cluster, cluster.words.begin()->second);
}

Inside::Inside(void* caller) {
  if (!races::watched()) return;
  __tsan_func_entry(caller);
  races::Thread::leave(machine().host());
}

Inside::~Inside() {
  if (!races::watched()) return;
  machine().fiber().seen.enter();
  __tsan_func_exit();
}

// ---- scheduler

bool Machine::deliver_one() {
  if (stores_ == 0) return false;
  uint64_t which = random(stores_);
  auto cluster = clusters_.begin();
  for (; which >= (*cluster)->stores.size(); ++cluster) which -= (*cluster)->stores.size();
  deliver(**cluster, which);
  return true;
}

void Machine::deliver(Cluster& cluster, size_t which) {
  const Store store = cluster.stores[which];
  if (!store.on) cluster.words.erase(store.to);
  cluster.stores[which] = cluster.stores.back();
  cluster.stores.pop_back();
  if (which < cluster.stores.size() && !cluster.stores[which].on) cluster.words[cluster.stores[which].to] = which;
  --stores_;
  fruitless_ = 0;
  if (!store.on) {
    std::memcpy(store.to, store.value, size_t(store.bytes));
    return;
  }
  if (store.holder->exited) {
    failure_ = "store_async: block " + std::to_string(store.holder->index) +
               " had threads that ended when the store arrived, sent at " + at(store.place);
    return;
  }
  std::memcpy(store.to, store.value, size_t(store.bytes));
  if (store.on->bytes - store.bytes <= -most_bytes) {
    const std::string bytes = std::to_string(most_bytes) + " bytes";
    failure_ = "store_async: " + bytes + " that the phase did not expect, sent at " + at(store.place);
    return;
  }
  store.on->bytes -= store.bytes;
  settle(store.on, *store.holder);
}

Fiber* Machine::any_of(std::vector<Fiber*>& fibers) {
  std::swap(fibers[random(fibers.size())], fibers.back());
  Fiber* fiber = fibers.back();
  fibers.pop_back();
  return fiber;
}

// The fiber that runs next; null if none can.
Fiber* Machine::next() {
  const auto first_of = [](std::deque<Fiber*>& fibers) {
    Fiber* fiber = fibers.front();
    fibers.pop_front();
    return fiber;
  };
  auto& [fed, starved] = queues_;
  for (;;) {
    if (stores_ && random(delay_) == 0) deliver_one();
    if (!failure_.empty()) return nullptr;
    const bool try_spinning = fruitless_ < fed.spinning.size();
    if (!fed.ready.empty() && !(try_spinning && random(8) == 0)) return any_of(fed.ready);
    if (try_spinning) return first_of(fed.spinning);
    if (stores_before_starved_ && deliver_one()) continue;
    if (!starved.ready.empty()) return any_of(starved.ready);
    const size_t spinning = fed.spinning.size() + starved.spinning.size();
    if (!starved.spinning.empty() && fruitless_ < spinning) return first_of(starved.spinning);
    if (deliver_one()) continue;
    if (idle_++ == 2) return nullptr;  // a condition that loads a word sees it at the next test
    fruitless_ = 0;
  }
}

void Machine::loop() {
  for (size_t running = fibers_.size(); running;) {
    current_ = next();
    if (!current_) {
      if (failure_.empty()) failure_ = deadlock(fibers_);
      return;
    }
    if (current_->tries == 0) idle_ = 0;
    scheduler_.go_to(current_->context);
    running -= current_->done;
    current_ = nullptr;
    if (!failure_.empty()) return;
  }
  while (stores_ && failure_.empty()) deliver_one();  // reports a store_async that no thread waited for
}

void Machine::start(Block& block, bool starved_block, size_t starved_warp) {
  for (int t = 0; t < shape_.threads; ++t) {
    const size_t bytes = races::watched() ? watched_stack_bytes : stack_bytes;
    if (used_ == pool_.size()) {
      pool_.push_back(std::make_unique<Fiber>());
      pool_.back()->stack = std::make_unique_for_overwrite<char[]>(bytes);
    }
    Fiber& fiber = *pool_[used_++];
    fiber.seen.acquires(&begun_);
    fiber.block = &block;
    fiber.thread = t;
    if (races::watched()) fiber.seen.is(who(fiber));
    fiber.done = false;
    fiber.starved = starved_block || size_t(t / warp_size) == starved_warp;
    fiber.tries = 0;
    fiber.copies.clear();
    fiber.commits = 0;
    fiber.initialised.clear();
    fiber.context.prepare(fiber.stack.get(), bytes, &Machine::enter);
    fibers_.push_back(&fiber);
    wake(&fiber);
  }
}

void Machine::run_together(const int64_t* clusters, size_t count) {
  std::vector<std::unique_ptr<Block>> alive;
  fibers_.clear();
  clusters_.clear();
  for (Queue& queue : queues_) queue = {};
  fruitless_ = stores_ = 0;
  const size_t warps = size_t(shape_.threads / warp_size);
  const size_t blocks = count * size_t(shape_.cluster);
  if (!races::watched() || used_ + blocks * size_t(shape_.threads) > most_watched) used_ = 0;
  const bool starve_block = blocks > 1 && random(2);
  const size_t starved_block = starve_block ? random(blocks) : blocks;
  const size_t starved_warp = starve_block ? warps : random(warps);
  constexpr uint64_t delays[] = {2, 64, uint64_t(1) << 40};
  delay_ = delays[random(3)];
  copies_at_once_ = random(3) == 0;
  stores_before_starved_ = random(2);
  for (size_t k = 0; k < blocks; ++k) {
    auto block = std::make_unique<Block>();
    block->rank = int(k) % shape_.cluster;
    block->index = clusters[k / size_t(shape_.cluster)] * shape_.cluster + block->rank;
    if (block->rank == 0) clusters_.push_back(std::make_unique<Cluster>());
    block->cluster = clusters_.back().get();
    block->cluster->blocks.push_back(block.get());
    // No padding, so that the address sanitizer finds accesses outside.
    block->memory.reset(new (shared_alignment) char[size_t(std::max<int64_t>(shape_.shared_bytes, 1))]);
    block->shared = block->memory.get();
    std::memset(block->shared, 0xff, size_t(shape_.shared_bytes));  // NaN in every format
    block->warps.resize(warps);
    block->exited = 0;
    start(*block, k == starved_block, starved_warp);
    alive.push_back(std::move(block));
  }
  loop();
  for (const Fiber* fiber : fibers_) fiber->seen.releases(&ended_);
}

void Machine::run(const Shape& shape, const std::function<void()>& kernel) {
  if (current_) throw std::runtime_error("interpret: a kernel cannot launch another");
  check_launch(shape);
  shape_ = shape;
  kernel_ = &kernel;
  state_ = seed_;
  failure_.clear();
  const races::Host host;
  host_ = &host;
  host.releases(&begun_);
  used_ = 0;
  std::vector<int64_t> clusters(size_t(shape.blocks / shape.cluster));
  std::iota(clusters.begin(), clusters.end(), 0);
  if (!shape.cooperative) {
    for (size_t k = clusters.size(); k > 1; --k) std::swap(clusters[k - 1], clusters[random(k)]);
  }
  const int64_t most = std::clamp<int64_t>(most_threads / (shape.threads * shape.cluster), 1, most_clusters);
  for (size_t first = 0; first < clusters.size() && failure_.empty();) {
    const size_t left = clusters.size() - first;
    const size_t count = shape.cooperative ? left : std::min(left, size_t(1 + random(uint64_t(most))));
    run_together(&clusters[first], count);
    first += count;
  }
  host.acquires(&ended_);
  if (failure_.empty()) return;
  if (races::watched()) pool_.clear();  // the sanitizer has the stacks of threads that did not end
  throw std::runtime_error("interpret: " + failure_);
}

}  // namespace rnnkern::device

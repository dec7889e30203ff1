#include "interpreter/fibers.h"

#include <algorithm>
#include <stdexcept>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace rnnkern::device {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t stack_bytes = 256 * 1024;
#else
constexpr size_t stack_bytes = 64 * 1024;
#endif
constexpr int64_t shared_alignment = 128;

std::string at(Place place) {
  return std::string(place.file_name()) + ":" + std::to_string(place.line()) + ":" + std::to_string(place.column());
}

bool same(Place a, Place b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

}  // namespace

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

std::string Machine::who(const Fiber& fiber) const {
  return "block " + std::to_string(fiber.block->index) + " thread " + std::to_string(fiber.thread);
}

bool Machine::inside_shared(const Block& block, const void* pointer, int64_t bytes) const {
  const char* p = static_cast<const char*>(pointer);
  return p >= block.shared && p + bytes <= block.shared + shape_.shared_bytes;
}

// ---- fibers

void Machine::enter() {
  Machine& m = machine();
  (*m.kernel_)();
  Fiber& fiber = m.fiber();
  fiber.done = true;
  ++fiber.block->exited;
  m.back_to_scheduler();
}

void Machine::back_to_scheduler() { swapcontext(&current_->context, &scheduler_); }

void Machine::fail(const std::string& what, Place place) {
  if (failure_.empty()) failure_ = what + ", " + (current_ ? who(*current_) + ", " : "") + at(place);
  if (!current_) throw std::runtime_error("interpret: " + failure_);
  current_->done = true;
  back_to_scheduler();
  std::abort();  // a fiber that failed is not resumed
}

void Machine::wake(Fiber* fiber) {
  fiber->waits_for = nullptr;
  (fiber->starved ? ready_starved_ : ready_).push_back(fiber);
}

void Machine::suspend(const char* what, Place place, std::function<bool()> condition) {
  Fiber& fiber = *current_;
  fiber.waits_for = what;
  fiber.place = place;
  fiber.condition = std::move(condition);
  polling_.push_back(&fiber);
  back_to_scheduler();
}

void Machine::converge(Gathering& gathering, size_t all, const char* what, Place place, void* mine,
                       void (*together)(void* const*)) {
  Fiber& fiber = *current_;
  if (!gathering.came.empty()) {
    const Fiber& first = *gathering.came.front();
    if (!same(first.place, place)) {
      fail(std::string("divergence: ") + first.waits_for + " of " + who(first) + " at " + at(first.place) + " meets " +
               what,
           place);
    }
  }
  fiber.waits_for = what;
  fiber.place = place;
  if (together) gathering.given[fiber.thread % warp_size] = mine;
  gathering.came.push_back(&fiber);
  if (gathering.came.size() == all) {
    if (together) together(gathering.given);
    for (Fiber* other : gathering.came) wake(other);
    gathering.came.clear();
  }
  back_to_scheduler();
}

// ---- scheduler

bool Machine::deliver_one() {
  std::vector<Cluster*> waiting;
  for (auto& cluster : clusters_) {
    if (!cluster->stores.empty()) waiting.push_back(cluster.get());
  }
  if (waiting.empty()) return false;
  auto& stores = waiting[random(waiting.size())]->stores;
  std::swap(stores[random(stores.size())], stores.back());
  const Store store = stores.back();
  stores.pop_back();
  std::memcpy(store.to, store.value, size_t(store.bytes));
  store.on->bytes -= store.bytes;
  if (store.on->pending == 0 && store.on->bytes == 0) {
    store.on->phase ^= 1;
    store.on->pending = store.on->arrivals;
  }
  return true;
}

void Machine::loop(std::vector<Fiber*>& fibers) {
  size_t running = fibers.size();
  while (running) {
    if (random(64) == 0) deliver_one();
    if ((ready_.empty() && ready_starved_.empty()) || random(256) == 0) {
      std::erase_if(polling_, [&](Fiber* fiber) {
        const bool holds = fiber->condition();
        if (holds) wake(fiber);
        return holds;
      });
    }
    auto& from = ready_.empty() ? ready_starved_ : ready_;
    if (from.empty()) {
      if (deliver_one()) continue;
      const auto stuck = std::find_if(fibers.begin(), fibers.end(), [](Fiber* f) { return !f->done; });
      std::string report = "deadlock:";
      std::vector<const Fiber*> told;
      for (const Fiber* fiber : fibers) {
        const auto known = [&](const Fiber* other) {
          return other->waits_for == fiber->waits_for && same(other->place, fiber->place);
        };
        if (fiber->done || told.size() == 8 || std::any_of(told.begin(), told.end(), known)) continue;
        told.push_back(fiber);
        report += " " + std::string(fiber->waits_for) + " of " + who(*fiber) + " at " + at(fiber->place) + ";";
      }
      const size_t gone = size_t(std::count_if(fibers.begin(), fibers.end(), [](Fiber* f) { return f->done; }));
      failure_ = report + " " + std::to_string(gone) + " of " + std::to_string(fibers.size()) +
                 " threads have ended, first stuck: " + who(**stuck);
      return;
    }
    std::swap(from[random(from.size())], from.back());
    current_ = from.back();
    from.pop_back();
    swapcontext(&scheduler_, &current_->context);
    running -= current_->done;
    current_ = nullptr;
    if (!failure_.empty()) return;
  }
}

void Machine::run_together(int64_t first, int64_t count) {
  std::vector<std::unique_ptr<Block>> alive;
  std::vector<Fiber*> fibers;
  clusters_.clear();
  const size_t warps = size_t(shape_.threads / warp_size);
  const int64_t starved_block = int64_t(random(uint64_t(count)));
  const size_t starved_warp = random(warps);
  const bool starve_whole_block = count > 1 && random(2);
  for (int64_t k = 0; k < count; ++k) {
    auto block = std::make_unique<Block>();
    block->index = first + k;
    block->rank = int(k % shape_.cluster);
    if (block->rank == 0) clusters_.push_back(std::make_unique<Cluster>());
    block->cluster = clusters_.back().get();
    block->cluster->blocks.push_back(block.get());
    block->memory = std::make_unique<char[]>(size_t(shape_.shared_bytes + shared_alignment));
    const auto address = reinterpret_cast<uintptr_t>(block->memory.get());
    // At the end of what is allocated, as far as alignment allows: reading past it is seen by the address sanitizer.
    block->shared = block->memory.get() + (shared_alignment - address % shared_alignment) % shared_alignment;
    std::memset(block->shared, 0xff, size_t(shape_.shared_bytes));  // NaN in every format
    block->warps.resize(warps);
    block->exited = 0;
    for (int t = 0; t < shape_.threads; ++t) {
      const size_t place = fibers.size();
      if (place == pool_.size()) {
        pool_.push_back(std::make_unique<Fiber>());
        pool_.back()->stack = std::make_unique_for_overwrite<char[]>(stack_bytes);
      }
      Fiber& fiber = *pool_[place];
      fiber.block = block.get();
      fiber.thread = t;
      fiber.done = false;
      fiber.starved = starve_whole_block ? k == starved_block : size_t(t / warp_size) == starved_warp;
      fiber.copies.clear();
      fiber.commits = 0;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = stack_bytes;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, &Machine::enter, 0);
      fibers.push_back(&fiber);
    }
    alive.push_back(std::move(block));
  }
  ready_.clear();
  ready_starved_.clear();
  polling_.clear();
  for (Fiber* fiber : fibers) wake(fiber);
  loop(fibers);
}

void Machine::run(const Shape& shape, const std::function<void()>& kernel) {
  if (current_) throw std::runtime_error("interpret: a kernel cannot launch another");
  if (shape.threads <= 0 || shape.threads > 1024 || shape.threads % warp_size) {
    throw std::runtime_error("interpret: a block has whole warps and at most 1024 threads, not " +
                             std::to_string(shape.threads));
  }
  if (shape.cluster < 1 || shape.blocks % shape.cluster) {
    throw std::runtime_error("interpret: " + std::to_string(shape.blocks) + " blocks are not clusters of " +
                             std::to_string(shape.cluster));
  }
  shape_ = shape;
  kernel_ = &kernel;
  state_ = seed_;
  failure_.clear();
  const int64_t together = shape.cooperative ? shape.blocks : shape.cluster;
  for (int64_t first = 0; first < shape.blocks && failure_.empty(); first += together) run_together(first, together);
  if (!failure_.empty()) throw std::runtime_error("interpret: " + failure_);
}

}  // namespace rnnkern::device

// The number of threads of a call on a CPU, how they share the work, and where their workspace is.
#pragma once

#include <optional>

#include "cpu/run.h"
#include "recurrence/call.h"

namespace rnnkern {
namespace {

// The number of weight elements that each step multiplies by.
int64_t step_weights(const Call& call) { return call.R.numel() + (call.cell.projected ? call.params[0].numel() : 0); }

// Threads divide the sequences if there are enough of them, because they then never synchronize. If R does not fit a
// core's cache and few sequences reuse what is loaded, they divide the hidden units instead, and R with them. They also
// do so if a copy of dR per thread would take too much memory.
bool split_hidden(const Call& call, int threads) {
  const int64_t bytes = step_weights(call) * int64_t(call.R.element_size()), batch = call.steps.batch;
  return batch < 4 * threads || call.steps.count == 1 || (bytes > (int64_t(1) << 20) && batch < 64 * threads) ||
         bytes * threads > (int64_t(1) << 28);
}

// Multiplications per sequence and step.
int64_t row_work(const Call& call) { return step_weights(call) + (call.W ? call.W->numel() : 0); }

constexpr int64_t worth_waking = 131072;  // multiplications

// One thread per 32,768 multiplications of a step: dividing less work takes longer than doing it. A call of one step
// also has to wake the threads.
int64_t useful_threads(const Call& call) {
  const int64_t least = call.steps.count == 1 ? worth_waking : 32768;
  return 1 + call.steps.batch * row_work(call) / least;
}

int team_size(const Call& call) { return at_most_all(useful_threads(call)); }

// The same for two calls at once. The two halves of the team do not synchronize with each other, so the work of all
// steps counts.
int team_size_of_both(const Call& call) {
  return call.rows * row_work(call) * 2 < worth_waking ? 1 : at_most_all(2 * useful_threads(call));
}

// The workspace of a small call is on the stack, because an allocation would take a large part of its time.
constexpr int64_t small_workspace = 1 << 16;  // bytes
alignas(64) thread_local char small_memory[small_workspace];

template <class T>
struct Workspace {
  std::optional<Tensor> memory;
  T* begin;

  Workspace(int64_t elements, const Tensor& like) {
    if (elements * int64_t(sizeof(T)) <= small_workspace) {
      begin = reinterpret_cast<T*>(small_memory);
    } else {
      memory = cached_empty(like, {elements}, sizeof(T) == 8 ? ScalarType::Double : ScalarType::Float);
      begin = write<T>(*memory);
    }
  }
};

template <class Problem>
void run(Kernel<Problem> kernel, Problem& problem, const Call& call) {
  const int threads = team_size(call);
  problem.split_hidden = split_hidden(call, threads);
  const Workspace<typename Problem::T> workspace(kernel.workspace(problem, threads), call.u);
  problem.workspace = workspace.begin;
  in_team(threads, problem, kernel.run);
}

// Runs two problems, each by half of the team.
template <class Problem>
void run_halves(Kernel<Problem> kernel, Problem& first, Problem& second, const Call& call, int threads) {
  Problem* const problems[] = {&first, &second};
  int64_t sizes[2];
  for (const int half : {0, 1}) sizes[half] = kernel.workspace(*problems[half], half_size(threads, half));
  const Workspace<typename Problem::T> workspace(sizes[0] + sizes[1], call.u);
  first.workspace = workspace.begin;
  second.workspace = workspace.begin + sizes[0];
  Barrier barriers[2];
#pragma omp parallel num_threads(threads)
  in_halves(omp_get_thread_num(), omp_get_num_threads(), barriers, [&](int half, ThreadContext me) {
    const FlushSubnormals<typename Problem::T> flushed;
    kernel.run(*problems[half], me);
  });
}

// Two problems of the same sizes run at the same time, each by half of the team. An odd number of threads runs them one
// after the other, because it divides sequences more evenly than two problems.
template <class Problem>
void run_both(Kernel<Problem> kernel, Problem& first, Problem& second, const Call& call) {
  const int threads = team_size_of_both(call);
  if (threads == 1 || (threads % 2 && !split_hidden(call, threads))) {
    run(kernel, first, call);
    run(kernel, second, call);
    return;
  }
  const int half = half_size(threads, 0), other = half_size(threads, 1);
  first.split_hidden = split_hidden(call, half);
  second.split_hidden = split_hidden(call, other);
  run_halves(kernel, first, second, call, threads);
}

// Whether two layers are faster if each is run by half of the team than one after the other by the whole team: if there
// are too few sequences to divide, a core's cache holds the weights of a whole layer, and there is work to overlap.
bool worth_in_turn(const Call& call, int threads) {
  const int64_t bytes = step_weights(call) * int64_t(call.R.element_size());
  return threads % 2 == 0 && call.steps.batch < 4 * threads && call.steps.count >= 4 * min_pipeline_chunks &&
         bytes <= (int64_t(1) << 18) && call.rows * row_work(call) >= (int64_t(1) << 21);
}

// Two problems of the same sizes. The second reads the results of the first and waits for them at `input`.
template <class Problem>
void run_in_turn(Kernel<Problem> kernel, Problem& first, Problem& second, const Progress* Problem::* input,
                 const Call& call) {
  const int threads = team_size_of_both(call);
  if (!worth_in_turn(call, threads)) {
    run(kernel, first, call);
    run(kernel, second, call);
    return;
  }
  Progress progress;
  first.progress = &progress;
  second.*input = &progress;
  first.split_hidden = second.split_hidden = true;
  run_halves(kernel, first, second, call, threads);
}

}  // namespace
}  // namespace rnnkern

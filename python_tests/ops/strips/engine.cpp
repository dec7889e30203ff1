// The engine without torch, for float64 and any cell, behind one C function; teams are threads that share out units.
#include <thread>
#include <vector>

#include "recurrence/cpu/includes.h"

#include "common/simd_target.h"

#include "recurrence/cpu/kernels.h"

using namespace rnnkern;

namespace {

template <class Problem>
void run(void (*kernel)(const Problem&, ThreadContext), int64_t (*workspace_size)(const Problem&, int),
         Problem& problem, int team) {
  std::vector<double> workspace(workspace_size(problem, team));
  problem.workspace = workspace.data();
  Barrier barrier;
  std::vector<std::thread> others;
  for (int rank = 1; rank < team; ++rank)
    others.emplace_back([&, rank] { kernel(problem, ThreadContext{rank, team, &barrier}); });
  kernel(problem, ThreadContext{0, team, &barrier});
  for (std::thread& other : others) other.join();
}

}  // namespace

// Forward and backward of steps x batch rows. Lists of pointers have one for each of the state's tensors, `zoneout` a
// rate for each, in the mean; gradients are of h and of the final state.
extern "C" void run_cell(const CellNumbers* cell, const Strips<double>* strips, int team, int64_t steps, int64_t batch,
                         int64_t hidden, const double* u, const double* R, const double* bias, const double* param,
                         const double* const* state, const bool* reset, const double* zoneout, const double* grad_h,
                         const double* const* grad_state, double* h, double* const* final_state, double* du, double* dR,
                         double* dbias, double* dbias_ih, double* dparam, double* const* dstate) {
  std::vector<double> kept[most_states], saved(steps * batch * hidden * cell->saved);
  std::vector<double> candidates(steps * batch * hidden);
  Forward<double> f{};
  f.cell = *cell;
  f.strips = *strips;
  f.steps = {steps, batch, nullptr, false};
  f.weights.hidden = f.weights.width = hidden;
  f.weights.R = {R, bias, cell->recurrent, 1, hidden, hidden};
  f.weights.params[0] = param;
  f.split_hidden = team > 1;
  f.u = u;
  f.reset = reset;
  f.h = h;
  f.saved = cell->saved ? saved.data() : nullptr;
  Backward<double> b{};
  for (int s = 0; s < cell->states; ++s) {
    kept[s].resize(steps * batch * hidden);
    f.noise.zoneout[s] = zoneout[s];
    f.state[s] = b.state[s] = state[s];
    f.final_state[s] = final_state[s];
    f.states[s] = s ? kept[s].data() : nullptr;
    b.states[s] = f.states[s];
    b.grad_state[s] = grad_state[s];
    b.dstate[s] = dstate[s];
  }
  if (!cell->saved && zoneout[0] > 0) f.candidates = candidates.data();
  run(forward<double, StripCell<double>>, forward_workspace<double>, f, team);
  b.cell = f.cell;
  b.strips = f.strips;
  b.steps = f.steps;
  b.weights = f.weights;
  b.split_hidden = f.split_hidden;
  b.noise = f.noise;
  b.u = u;
  b.h0 = state[0];
  b.reset = reset;
  b.h = h;
  b.saved = f.saved;
  b.candidates = f.candidates;
  b.grad_h = grad_h;
  b.du = du;
  b.dR = cell->recurrent ? dR : nullptr;
  b.dbias = cell->recurrent ? dbias : nullptr;
  b.dbias_ih = dbias_ih;
  b.dparams[0] = dparam;
  run(backward<double, StripCell<double>>, backward_workspace<double>, b, team);
}

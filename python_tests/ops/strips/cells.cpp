// Two cells as another library would bring them: plain loops, and of rnnkern the contract alone.
#include <cmath>

#include "cells/strip.h"

using namespace rnnkern;

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double product(const ForwardStrip<double>& s, int gate, int64_t unit) {
  const int64_t i = unit - s.begin;
  return s.r[i / s.lanes * s.r_vector + gate * s.r_gate + i % s.lanes];
}

// Three states and a gate that R does not see: m' = m / 2 + u_k,  c' = f c + (1 - f) n + m',  h' = p tanh(c').
void forward(const ForwardStrip<double>& s) {
  for (int64_t i = s.begin; i < s.end; ++i) {
    const double f = sigmoid(s.u[i] + product(s, 0, i)), n = std::tanh(s.u[s.hidden + i] + product(s, 1, i));
    const double m = s.old[2][i] / 2 + s.u[2 * s.hidden + i], c = f * s.old[1][i] + (1 - f) * n + m;
    s.next[0][i] = s.params[0][i] * std::tanh(c);
    s.next[1][i] = c;
    s.next[2][i] = m;
    if (s.saved) s.saved[i] = f, s.saved[s.hidden + i] = n, s.saved[2 * s.hidden + i] = std::tanh(c);
  }
}

void backward(const BackwardStrip<double>& s) {
  for (int64_t i = s.begin; i < s.end; ++i) {
    const double f = s.saved[i], n = s.saved[s.hidden + i], t = s.saved[2 * s.hidden + i];
    const double dh = s.grad[0][i] + (s.grad_h ? s.grad_h[i] : 0);
    const double dc = s.grad[1][i] + dh * s.params[0][i] * (1 - t * t), dm = s.grad[2][i] + dc;
    const double du[] = {dc * (s.old[1][i] - n) * f * (1 - f), dc * (1 - f) * (1 - n * n), dm};
    s.dparams[0][i] += dh * t;
    for (int g = 0; g < 3; ++g) {
      s.du[g * s.hidden + i] = du[g];
      if (s.du_sum) s.du_sum[g * s.hidden + i] += du[g];
      if (g == 2) continue;
      s.dr[g * s.hidden + i] = du[g];
      if (s.dr_sum) s.dr_sum[g * s.hidden + i] += du[g];
    }
    s.grad[0][i] = 0;
    s.grad[1][i] = dc * f;
    s.grad[2][i] = dm / 2;
  }
}

// No R at all: h' = h / 2 + tanh(u).
void alone(const ForwardStrip<double>& s) {
  for (int64_t i = s.begin; i < s.end; ++i) s.next[0][i] = s.old[0][i] / 2 + std::tanh(s.u[i]);
}

void alone_backward(const BackwardStrip<double>& s) {
  for (int64_t i = s.begin; i < s.end; ++i) {
    const double dh = s.grad[0][i] + (s.grad_h ? s.grad_h[i] : 0), t = s.next[0][i] - s.old[0][i] / 2;
    s.du[i] = dh * (1 - t * t);
    if (s.du_sum) s.du_sum[i] += s.du[i];
    s.grad[0][i] = dh / 2;
  }
}

}  // namespace

extern "C" void describe(int which, CellNumbers* numbers, Strips<double>* strips) {
  *strips = {};
  if (which == 0) {
    *numbers = {2, 3, 2, 3, 1, 3, false, false, false};
    strips->forward = forward, strips->backward = backward;
  } else {
    *numbers = {0, 1, 0, 1, 0, 0, false, false, false};
    strips->forward = alone, strips->backward = alone_backward;
  }
}

// Schemas of all operators, whose semantics are in rnnkern/ops. An operator of a family is registered by the file that
// implements it: one of the files *operators.cpp for a CPU, one of <family>/cuda for CUDA.
#include <Python.h>

#include <string>

#include <torch/csrc/stable/library.h>

#include "common/build_info.h"
#include "common/caching_allocator.h"
#include "common/counters.h"
#include "common/simd_level.h"
#include "cuda/modules.h"
#include "cuda/plan.h"

namespace rnnkern {
namespace {

std::string set_level(std::string level) { return set_simd_level(level.c_str()); }

}  // namespace

STABLE_TORCH_LIBRARY(rnnkern, m) {
  m.def("build_info() -> str");
  m.def("set_simd_level(str level) -> str");  // returns the level that was in use
  m.def("kernel_counts() -> str");
  m.def("release_memory() -> int");

  m.def("recurrence_cells() -> str");
  // `params` is optional because AOTInductor passes an empty list as None.
  m.def(
      "recurrence(str cell, Tensor u, Tensor R, Tensor[] state, Tensor? bias, Tensor[]? params, Tensor? batch_sizes, "
      "Tensor? reset, bool reverse, bool training, bool save_gates, Tensor? weight_ih=None, Tensor? bias_ih=None, "
      "float[]? zoneout=None, float dropout=0., Tensor? seed=None, Tensor? keep=None, int bfloat16_parts=0) -> "
      "Tensor[]");
  m.def(
      "recurrence_backward(str cell, Tensor? grad_h, Tensor[] grad_state, Tensor u, Tensor R, Tensor[] state, "
      "Tensor? bias, Tensor[] params, Tensor? batch_sizes, Tensor? reset, bool reverse, Tensor? grad_scale, Tensor h, "
      "Tensor[] saved, bool needs_R, bool needs_bias, Tensor? weight_ih, Tensor? bias_ih, bool needs_u, "
      "bool needs_weight_ih, bool needs_bias_ih, float[]? zoneout, float dropout, Tensor? seed, Tensor? keep, "
      "bool needs_h, bool needs_params, int bfloat16_parts) -> Tensor[]");
  m.def(
      "recurrence_tangent(str cell, Tensor u, Tensor R, Tensor[] state, Tensor[] tangents, Tensor? bias, "
      "Tensor[]? params, Tensor? batch_sizes, Tensor? reset, bool reverse, Tensor h, Tensor[] saved, "
      "Tensor? u_tangent, Tensor? r_tangent, Tensor[]? params_tangent, int every, "
      "bool sequence, float[]? zoneout, float dropout, Tensor? seed, Tensor? keep=None) -> Tensor[]");
  // Each list holds the tensors of the first recurrence, followed by those of the second.
  m.def(
      "recurrence_pair(str cell, bool stacked, Tensor u, Tensor[] R, Tensor[] state, Tensor[]? bias, Tensor[]? params, "
      "Tensor? batch_sizes, Tensor[]? reset, bool training, bool save_gates, Tensor[] weight_ih, Tensor[]? bias_ih, "
      "int bfloat16_parts=0) -> Tensor[]");
  m.def(
      "recurrence_pair_backward(str cell, bool stacked, Tensor? grad_h, Tensor? grad_h_second, Tensor[] grad_state, "
      "Tensor u, Tensor[] R, Tensor[] state, Tensor[]? bias, Tensor[]? params, Tensor? batch_sizes, Tensor[]? reset, "
      "Tensor[] h, Tensor[] saved, Tensor[] weight_ih, Tensor[]? bias_ih, bool needs_u, bool needs_R, bool needs_bias, "
      "bool needs_weight_ih, bool needs_bias_ih, int bfloat16_parts=0) -> Tensor[]");
  // The weights of one or more stacked layers, for streams, which have a state; lists as above, layer by layer.
  m.def(
      "recurrence_pack(str cell, Tensor x, Tensor[] R, Tensor[] state, Tensor[]? bias, Tensor[]? params, "
      "Tensor[] weight_ih, Tensor[]? bias_ih, float[]? zoneout=None, int bfloat16_parts=0) -> Tensor");
  m.def("recurrence_stream(Tensor pack) -> Tensor");
  m.def("recurrence_stream_step(Tensor(a!) stream, Tensor pack, Tensor x) -> Tensor");
  m.def("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  m.def("device_facts(int index) -> str");
  m.def("load_kernel(str header, str type, int device) -> ()");
  // Implemented in Python, in rnnkern/_compiler.py and rnnkern/_extension.py.
  m.def("compile_kernel(str header, str type, str arch, bool again) -> Tensor[]");
  m.def("allows_tf32() -> bool");
  m.def("recurrence_plan(str cell, str dtype, int[] sizes, int[] facts, bool noisy=False, bool tf32=False) -> str");

  m.def(
      "relevancy_recurrence(str cell, Tensor u, Tensor[] weights, Tensor[] state, Tensor[]? params, "
      "Tensor? batch_sizes, Tensor? reset, Tensor? scores, int buffer_size, float mix, bool dot, str dtype, "
      "bool training, bool maps) -> Tensor[]");
  m.def(
      "relevancy_recurrence_backward(str cell, Tensor? grad_h, Tensor? grad_s, Tensor[]? grad_state, Tensor[] weights, "
      "Tensor[] state, Tensor[]? params, Tensor? batch_sizes, Tensor? reset, Tensor? scores, int buffer_size, "
      "float mix, bool dot, str dtype, Tensor h, Tensor s, Tensor[] saved) -> Tensor[]");
  m.def("relevancy_plan(str cell, str dtype, int[] sizes, int[] facts) -> str");

  m.def("skew_exp(Tensor A, bool minus_identity, bool training) -> Tensor[]");
  m.def("skew_exp_backward(Tensor grad, Tensor A, Tensor kept, Tensor plan) -> Tensor");
  m.def("schur_weight(Tensor P, Tensor theta, Tensor gamma, Tensor T, bool training) -> Tensor[]");
  m.def("schur_weight_backward(Tensor grad, Tensor P, Tensor theta, Tensor gamma, Tensor T, Tensor half) -> Tensor[]");
  // Implemented with ATen matrix products and triangular solves in rnnkern/ops/_orthogonal/householder.py.
  m.def("householder_product(Tensor V, bool training) -> Tensor[]");
  m.def("householder_product_backward(Tensor grad, Tensor V, Tensor W, Tensor S, Tensor norm) -> Tensor");
  m.def("givens_product(Tensor angles, Tensor x, bool columns, bool butterfly) -> Tensor");
  m.def(
      "givens_product_backward(Tensor grad, Tensor angles, Tensor y, bool columns, bool butterfly, bool needs_x) -> "
      "Tensor[]");
  m.def(
      "givens_recurrence(Tensor u, Tensor angles, Tensor? phases, Tensor? diagonal, Tensor bias, Tensor h0, "
      "Tensor? batch_sizes, Tensor? reset, bool reverse, bool butterfly) -> Tensor[]");
  m.def(
      "givens_recurrence_backward(Tensor? grad_h, Tensor? grad_last, Tensor u, Tensor angles, Tensor? phases, "
      "Tensor? diagonal, Tensor bias, Tensor h0, Tensor h, Tensor? batch_sizes, Tensor? reset, bool reverse, "
      "bool butterfly) -> Tensor[]");
  m.def("givens_programs(str dtype, bool is_complex, int size) -> str");

  m.def(
      "sab_recurrence(Tensor u, Tensor R, Tensor? bias, Tensor[] attention, Tensor[] state, Tensor? batch_sizes, "
      "Tensor? reset, int steps, int top_k, int attend_every, int truncation, bool training) -> Tensor[]");
  m.def(
      "sab_recurrence_backward(Tensor? grad_out, Tensor[] grad_state, Tensor u, Tensor R, Tensor? bias, "
      "Tensor[] attention, Tensor[] state, Tensor? batch_sizes, Tensor? reset, int steps, int top_k, "
      "int attend_every, int truncation, Tensor out, Tensor[] saved) -> Tensor[]");
  m.def(
      "gather_attention(Tensor q, Tensor u, Tensor h, Tensor idx, Tensor v, bool dot, bool training, bool weights) -> "
      "Tensor[]");
  m.def(
      "gather_attention_backward(Tensor grad, Tensor q, Tensor u, Tensor h, Tensor idx, Tensor v, Tensor lse, "
      "bool dot) -> Tensor[]");

  m.def(
      "similarity(Tensor x, Tensor? y, Tensor? weight, Tensor? bias, Tensor? values, Tensor? lengths, int[] segments, "
      "str norm, float eps, str mask, float scale, bool packed, bool scores) -> Tensor[]");
  m.def(
      "similarity_backward(Tensor? grad_R, Tensor? grad_scores, Tensor? grad_product, Tensor x, Tensor? y, "
      "Tensor? weight, Tensor? bias, Tensor? values, Tensor? lengths, Tensor R, int[] segments, str norm, float eps, "
      "str mask, float scale, bool packed) -> Tensor[]");

  m.def(
      "linear_scan(Tensor a, Tensor x, Tensor? h0, Tensor? batch_sizes, Tensor? reset, bool reverse, bool sequence) -> "
      "Tensor[]");
  m.def(
      "linear_scan_backward(Tensor? grad_h, Tensor? grad_last, Tensor a, Tensor? h0, Tensor h, Tensor? batch_sizes, "
      "Tensor? reset, bool reverse, bool needs_a) -> Tensor[]");
  m.def(
      "moment_filter(Tensor u, Tensor? v0, Tensor? q0, Tensor? batch_sizes, Tensor? reset, bool reverse, float mu, "
      "float s, float? beta, float eps, int every) -> Tensor[]");
  m.def(
      "moment_filter_backward(Tensor? grad_y, Tensor? grad_v, Tensor? grad_q, Tensor u, Tensor? v0, Tensor? q0, "
      "Tensor? kept, Tensor? batch_sizes, Tensor? reset, bool reverse, float mu, float s, float? beta, float eps, "
      "int every) -> Tensor[]");
}

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CompositeExplicitAutograd, m) {
  m.impl("build_info", TORCH_BOX(&build_info));
  m.impl("set_simd_level", TORCH_BOX(&set_level));
  m.impl("kernel_counts", TORCH_BOX(&kernel_counts));
  m.impl("release_memory", TORCH_BOX(&release_memory));
  m.impl("device_facts", TORCH_BOX(&device_facts));
  m.impl("load_kernel", TORCH_BOX(&load_kernel));
}

}  // namespace rnnkern

// All registrations run when the module is imported. The module itself is empty.
PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}

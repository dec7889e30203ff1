// torch's C++ types and the few operators of ATen that drivers call; the only header that names them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

namespace rnnkern {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Tensors = std::vector<Tensor>;

// Uninitialised, of the dtype and on the device of `like`.
inline Tensor empty(const Tensor& like, std::initializer_list<int64_t> sizes) {
  return torch::stable::new_empty(like, {sizes.begin(), sizes.size()});
}

inline Tensor empty_int64(const Tensor& like, int64_t size) {
  return torch::stable::new_empty(like, {&size, 1}, ScalarType::Long);
}

inline Tensor empty_like(const Tensor& like) { return torch::stable::empty_like(like); }

inline Tensor zeros(const Tensor& like, int64_t size) { return torch::stable::new_zeros(like, {&size, 1}); }

inline Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }

inline Tensor shaped(const Tensor& x, std::initializer_list<int64_t> sizes) {
  return torch::stable::view(x, {sizes.begin(), sizes.size()});
}

inline Tensor part(Tensor x, int64_t dim, int64_t start, int64_t length) {
  return torch::stable::narrow(x, dim, start, length);
}

// Sum over the first dimension.
inline Tensor sum_rows(const Tensor& x) {
  const int64_t dim = 0;
  return torch::stable::sum(x, std::optional<torch::headeronly::IntHeaderOnlyArrayRef>({&dim, 1}));
}

// As torch.get_num_threads() has it.
inline int64_t get_num_threads() { return torch::stable::get_num_threads(); }

template <class T>
const T* read(const Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}

template <class T>
T* write(const Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

// f(float()) or f(double()), by the dtype of x.
template <class F>
auto by_dtype(const char* operation, const Tensor& x, F f) {
  const bool is_float = x.scalar_type() == ScalarType::Float;
  STD_TORCH_CHECK(is_float || x.scalar_type() == ScalarType::Double, operation, ": the CPU kernel takes float32 and ",
                  "float64");
  return is_float ? f(float()) : f(double());
}

}  // namespace rnnkern

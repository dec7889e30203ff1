// Every operator of the package: the table of contents.
#include <Python.h>

#include <string>

#include <torch/csrc/stable/library.h>

#include "common/build_info.h"
#include "common/simd_level.h"

namespace rnnkern {
namespace {

std::string set_level(std::string level) { return set_simd_level(level.c_str()); }

}  // namespace

STABLE_TORCH_LIBRARY(rnnkern, m) {
  m.def("build_info() -> str");
  m.def("set_simd_level(str level) -> str");  // returns the level that was in use
}

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CompositeExplicitAutograd, m) {
  m.impl("build_info", TORCH_BOX(&build_info));
  m.impl("set_simd_level", TORCH_BOX(&set_level));
}

}  // namespace rnnkern

// Importing the module runs the registrations above; it holds nothing itself.
PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  return PyModule_Create(&module);
}

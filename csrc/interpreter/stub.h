// A stand-in for the device, with properties set by tests. Included by the file that registers operators in a library
// of interpreted drivers.
#pragma once

#include "cuda/libcuda.h"
#include "cuda/facts.h"
#include "interpreter/primitives.h"

namespace rnnkern::cuda {
namespace {

bool pretends_capture = false;

void set_facts(int64_t major, int64_t minor, int64_t multiprocessors, int64_t shared_bytes, int64_t clusters_of_8,
               int64_t clusters_of_16) {
  device::pretended() = {
      int(major), int(minor), int(multiprocessors), shared_bytes, {int(clusters_of_8), int(clusters_of_16)}};
}

void set_capturing(bool captures) { pretends_capture = captures; }

void set_seed_of(int64_t seed) { device::set_seed(uint64_t(seed)); }

int64_t count_bank_conflicts() { return device::bank_conflicts(); }

}  // namespace

Facts facts_of_current(void*) { return device::pretended(); }

bool capturing(void*) { return pretends_capture; }

void enter(int) {}

}  // namespace rnnkern::cuda

// What setup.py compiles first: a compiler that takes this takes the rest.
#include <Python.h>
#include <omp.h>

#define RNNKERN_SIMD_LEVEL plain
#include "common/simd.h"
#include "common/simd_target.h"

void probe(rnnkern::Vec<float>* v) { rnnkern::transpose(v); }

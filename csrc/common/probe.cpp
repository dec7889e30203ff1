// setup.py compiles this file first: a compiler that accepts it accepts the rest of the sources.
#include <Python.h>
#include <omp.h>

#define RNNKERN_SIMD_LEVEL plain
#include "common/simd.h"
#include "common/simd_target.h"

void probe(rnnkern::Vec<float>* v) { rnnkern::transpose(v); }

// Common includes of the CPU kernels of all operator families. Compiled once per SIMD level.
#pragma once

#include "cpu/level_includes.h"

#include "common/simd.h"
#include "common/simd_math.h"
#include "cpu/vectors.h"
#include "cpu/workspace.h"

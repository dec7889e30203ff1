// All that the level files need from outside their own code. It stands before their `#pragma GCC target`, so that
// nothing of the standard library is compiled for a processor that may not be there.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "cells/math.h"
#include "recurrence/problem.h"

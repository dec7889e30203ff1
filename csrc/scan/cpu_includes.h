// All that the level files need from outside their own code; it stands before their `#pragma GCC target`.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "scan/problem.h"

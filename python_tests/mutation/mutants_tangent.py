"""Ways to break forward mode, the orthonormalization of tangents, and the gradient of h of every step."""

from python_tests.mutation.mutant import Mutant, named

FILE = "python_tests/ops/test_recurrence_tangent.py"
TANGENT, ORTHONORMAL = "recurrence/cpu/tangent.h", "recurrence/cpu/orthonormal.h"
VALUES = named("references and lstm-", FILE)
TWO_PRODUCTS = named("references and gru_reset_before-", FILE)
EXPONENTS = named("determinants or qr_decomposition", FILE)
LOST = named("lost", FILE)
ADJOINT = "python_tests/ops/test_recurrence_adjoint.py"

TANGENTS = [
    Mutant(TANGENT, "sum = sum + coefficient(j) * V::load(from.old[j]",
           "sum = sum - coefficient(j) * V::load(from.old[j]", "the sign of the old state's part", VALUES),
    Mutant(TANGENT, "strip.doperand = plan.ones;", "strip.doperand = plan.zeros;",
           "the gates of a second product's operand", TWO_PRODUCTS),
    Mutant(TANGENT, "p.strips.prepare_backward(strip);",
           "p.strips.prepare_backward(strip), clear(strip.grad[0] + units.begin, units.end - units.begin);",
           "the old h in a second product's operand", TWO_PRODUCTS),
    Mutant(TANGENT, "if (added) r[g] = r[g] + V::load(added + g * hidden + unit, lanes);",
           "if (added) r[g] = r[g] + V(2) * V::load(added + g * hidden + unit, lanes);", "forcing counts twice",
           named("references and gru-", FILE)),
    Mutant(TANGENT, "return now.h.is_reset(i / count) ? plan.zeros : tangent_of(i, state);",
           "return tangent_of(i, state);", "a reset is ignored", named("references and lstm-packed-reset", FILE)),
    Mutant(TANGENT, "mix(V::load(old_tangent(now, i, state) + unit, lanes), next, i / count",
           "mix(next, V::load(old_tangent(now, i, state) + unit, lanes), i / count", "zoneout's mask is inverted",
           named("references and lstm-zoneout", FILE)),
    Mutant(TANGENT, "p.log_r + (k / p.every * p.steps.batch + b) * count, p.lost",
           "p.log_r + (k / p.every * p.steps.batch) * count, p.lost", "the logarithms of another sequence", EXPONENTS),
    Mutant(TANGENT, "TangentRows<T> rows{cell.states, count, {}, {}};", "TangentRows<T> rows{1, count, {}, {}};",
           "c is not orthonormalized", EXPONENTS),
    Mutant(ORTHONORMAL, "log_r[s] = std::log(double(length));", "log_r[s] = std::log2(double(length));",
           "the natural logarithm", EXPONENTS),
    Mutant(ORTHONORMAL, "log_r[s] = std::log(double(length));",
           "log_r[rows.count - 1 - s] = std::log(double(length));", "the logarithms of other tangents", EXPONENTS),
    Mutant(ORTHONORMAL, "reject_and_measure(s, s, before)", "reject_and_measure(s, s > 0 ? s - 1 : 0, before)",
           "the last projection", EXPONENTS),
    Mutant(ORTHONORMAL, "if (first + j >= last || first + j == row)", "if (first + j == row)",
           "rows beyond the last of a block", EXPONENTS),
    Mutant(ORTHONORMAL, "if (once > T(0.7) * before) return once;", "return once;",
           "the second pass of Gram-Schmidt", named("lost or nearly_dependent", FILE)),
    Mutant(ORTHONORMAL, "if (length <= least * before) {", "if (length <= 0) {",
           "a rank that is lost to rounding", LOST),
    Mutant("recurrence/cpu/normalised.h", "load_if(s.params_tangent[i], value)", "load_if(s.params_tangent[i], 0)",
           "the tangents of a norm's weights", named("references and gru_layer_norm", FILE)),
    Mutant("recurrence/cpu/backward.h", "if (strip.grad_h) add_row(strip.grad_h, strip, plan.dh_row);", "",
           "the adjoint of h: what the output of the step contributes", named("references and gru-", ADJOINT)),
    Mutant("recurrence/cpu/backward.h", "columns, p.dh.from(at));", "columns, p.dh.from(now.row * width));",
           "the adjoint of a projected h: its row", named("references and lstm_projected-", ADJOINT)),
]  # fmt: skip

"""Numbers of the theory, from computations that share no code with rnnkern: quadrature on 24,001 points, and integers
of 700 bits for table 5. A number is a string and is right to its last digit. Tests and pictures use them."""

from decimal import Decimal

FIXED_POINTS = {
    "gru_reset_before": {
        # (a_h, a_r): pairs of C_h and rho_0
        (3.0, 0.1): [("0.352918002", "1.06798588")],
        (3.0, 1.0): [("0.379890859", "1.11858079")],
        (3.0, 2.0): [("0.427970668", "1.21350929")],
        (3.0, 10.0): [("0.531803436", "1.68197685")],
        (2.5, 1.0): [("0.230385908", "1.05392238")],
        (1.8, 10.0): [("0.022201770", "1.11674"), ("0.123863535", "1.25951")],
        (1.8, 1.0): [],
        (1.3, 50.0): [],
    },
    "gru": {
        (3.0, 1.0): [("0.335336", "1.090164")],
        (3.0, 10.0): [("0.283901", "1.465019")],
        (2.5, 1.0): [("0.206002", "1.040557")],
        (1.8, 10.0): [],
    },
}
"""Fixed points of GRUs without biases."""

BIFURCATIONS = {
    "gru_reset_before": {
        1.5: "74.433", 1.6: "24.477", 1.7: "13.030", 1.8: "8.1570", 1.9: "5.3810", 1.95: "4.2981", 1.99: "3.3555",
    },
    "gru": {1.6: "34.56", 1.7: "18.11", 1.8: "10.995", 1.9: "6.834", 1.95: "5.161"},
}  # fmt: skip
"""The smallest a_r with nonzero fixed points, by a_h."""

MARGINAL = {2.5: "6.9789", 3.0: "4.6977", 3.5: "3.3023", 4.0: "2.3872"}
"""a_r with rho_0 = sqrt(2), by a_h."""

EDGES = {5.0: "1.551562e-2", 10.0: "1.696512e-3", 20.0: "1.099823e-5", 40.0: "3.693168e-10"}
"""Spectral radius minus 1 at the fixed point with a_h = 3, a_r = 1, by a_z."""

INTERCEPTS = {0.0: "0.3437313", 5.0: "0.1452900", 10.0: "0.0423671", 20.0: "2.234828e-3", 40.0: "5.143e-6"}
"""Imaginary part of the boundary at real part 1, at the fixed point with a_h = 3, a_r = 2, by a_z."""

CORRELATIONS = {
    # a_r: C_h(0), C_h(1), C_h(5), C_phi(0), correlation time, rho
    1.0: ("0.33874", "0.33393", "0.24546", "0.35802", "9.093", "1.13658"),
    2.0: ("0.34892", "0.33959", "0.19726", "0.38623", "6.521", "1.24067"),
    5.0: ("0.35799", "0.33910", "0.13491", "0.43358", "4.735", "1.48102"),
    10.0: ("0.3520", "0.3267", "0.1098", "0.4531", "4.223", "1.7399"),
}
"""The steady state of a GRU with a_h = 3, a_z = 0."""

RADII = {1.0: "1.0683", 2.0: "1.1203", 5.0: "1.2405", 10.0: "1.3700", 20.0: "1.5594", 40.0: "1.848"}
"""The spectral radius in this steady state, by a_r."""

SLOW = {
    3.0: {0.0: 0.006, 2.0: 0.022, 5.0: 0.153, 10.0: 0.302, 20.0: 0.396},
    4.0: {0.0: 0.006, 2.0: 0.024, 5.0: 0.206, 10.0: 0.332, 20.0: 0.420},
}
"""By a_h and a_z, the share of eigenvalues within .05 of 1: means over four GRUs of 256 units with a_r = .1."""

TABLE_5 = {
    # (alpha, beta): J_tot for d = 0 and d = 0.2
    (0.95, 0.0): ("3.0327", "11.9394"),
    (1.0, 0.0): ("5.1874", "16.2982"),
    (1.05, 0.0): ("12.0873", "20.8371"),
    (0.95, 0.005): ("3.1758", "12.0895"),
    (1.0, 0.005): ("5.3014", "16.3910"),
    (1.05, 0.005): ("12.0865", "20.8847"),
}
"""Table 5 of Kerg 2022, with 100 units."""

PRINTED_TABLE_5 = {
    (0.95, 0.0): ("3.03", "12.0"),
    (1.0, 0.0): ("5.19", "16.2"),
    (1.05, 0.0): ("12.1", "20.5"),
    (0.95, 0.005): ("3.18", "12.1"),
    (1.0, 0.005): ("5.30", "16.3"),
    (1.05, 0.005): ("12.1", "20.4"),
}
"""The same as the thesis prints it."""


def interval(number: str) -> tuple[float, float]:
    """All values that round to this number."""
    exact = Decimal(number)
    half = Decimal((0, (5,), exact.as_tuple().exponent - 1))
    return float(exact - half), float(exact + half)


def agrees(value: float, number: str) -> bool:
    """Whether a value equals the number to its last digit."""
    least, most = interval(number)
    return least <= value <= most

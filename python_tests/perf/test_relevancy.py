import pytest
import torch

from perf import harness, record, relevancy, relevancy_peers
from rnnkern import _extension, reference
from rnnkern.ops import use

pytestmark = pytest.mark.skipif(not _extension.available, reason="the compiled part is missing: nothing to measure")

CPU = torch.device("cpu")
CELLS = ("modrelu", "lstm")
SHAPE = (12, 3, 8, 3, 2)


@pytest.mark.parametrize("cell", relevancy.RELEVANCY_CELLS)
@pytest.mark.parametrize("peer", [relevancy_peers.cached_keys, relevancy_peers.recomputed_keys])
def test_peers_are_the_reference(cell, peer):
    problem = relevancy.problem_of(cell, SHAPE, torch.float64, 0)
    (name,) = [name for name, function in relevancy.PEERS.items() if function is peer]
    found, truth = problem.calls["forward+backward"][name](), problem.naive()
    for key, value in truth.items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-11)


def test_peers_replace_what_is_relevant():
    """What is compared is not the window alone."""
    cell, u, weights, state = "tanh", *_inputs()
    _, last = reference.relevancy_recurrence(cell, u, weights, state, buffer_size=3, relevant_size=2)
    assert (last.ids > 1).any()


def _inputs():
    torch.manual_seed(0)
    weights = tuple(torch.randn(shape) for shape in ((8, 8), (8, 8), (8, 8), (8,)))
    return torch.randn(12, 3, 8), weights, (torch.zeros(3, 8),)


@pytest.mark.parametrize("relevant_size", [0, 2])
def test_full_attention_holds_memory_that_is_linear_in_time(relevant_size):
    """With all that a call has at once, its work space too."""

    def held(steps):
        problem = relevancy.problem_of("tanh", (steps, 2, 8, steps, relevant_size), torch.float32, 0)
        return harness.peak_bytes(problem.calls["forward+backward"]["rnnkern"], CPU)

    assert held(1000) <= 2.1 * held(500)


def test_every_peer_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(relevancy, "PROOF", (8, 2))
    options = ["--shapes", "12x3x8x3x2", "--seconds", "0", "--threads", "1"]
    relevancy.main(["--cells", *CELLS, *options, "--out", str(tmp_path)])
    rows = record.read(tmp_path / "relevancy.csv")
    for cell in CELLS:
        for direction in ("forward", "forward+backward"):
            found = {row["provider"] for row in rows if (row["cell"], row["direction"]) == (cell, direction)}
            assert found == {"rnnkern", *relevancy.PEERS}


def test_what_is_wrong_is_not_timed(monkeypatch):
    right = relevancy.relevancy_recurrence
    monkeypatch.setattr(relevancy, "relevancy_recurrence", lambda *a, **k: [1.001 * x for x in right(*a, **k)[:1]])
    monkeypatch.setattr(relevancy, "explain", lambda *_, **__: type("Choice", (), {"implementation": "cpu"}))
    outcome = harness.attempt(relevancy.cases(["tanh"], [SHAPE], "float32"), None, CPU, "", harness.Effort(0.0, 1, 1))
    assert outcome.rows == []
    assert "rnnkern, forward: h" in outcome.refused[0]


def test_the_reference_is_not_timed():
    with use("reference"):
        outcome = harness.attempt(relevancy.cases(["tanh"], [SHAPE], "float32"), None, CPU, "",
                                  harness.Effort(0.0, 1, 1))  # fmt: skip
    assert outcome.rows == []
    assert "no kernel to measure" in outcome.left_out[0][1]

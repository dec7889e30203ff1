"""The floor: every product, each right, each by the fastest way."""

import time

import pytest
import torch

from perf import floors

onednn = pytest.mark.skipif(not floors.has_onednn(torch.float32), reason="PyTorch is without oneDNN's products")


def drawn() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(12, 5), torch.randn(12, 4)), (torch.randn(12, 8), torch.randn(12, 4))]


def calls(job) -> int:
    with torch.profiler.profile() as profile:
        job()
    names = ("aten::mm", "mkldnn::_linear_pointwise")
    return sum(event.count for event in profile.key_averages() if event.key in names)


@pytest.mark.parametrize("sizes", [[3] * 7, [3, 3, 2, 1]])
def test_the_floor_makes_every_product_of_every_layer(sizes):
    found = floors.floors(drawn(), sizes)
    assert calls(found["forward"]) == 2 * (len(sizes) + 1)
    assert calls(found["forward+backward"]) == 2 * (2 * len(sizes) + 4)


@pytest.mark.parametrize("rows", [1, 5, floors.ROWS + 3])
@pytest.mark.parametrize("constant", [False, True])
def test_every_way_is_the_product(rows, constant):
    torch.manual_seed(0)
    a, b = torch.randn(rows, 6), torch.randn(6, 7)
    laid = floors.lay_out(b, rows) if constant else b.t()
    mm, *others = floors.ways(a, b, laid, torch.empty(rows, 7))
    (out,) = (job() for job in mm)
    torch.testing.assert_close(out, a @ b)
    assert len(others) == (2 if floors.has_onednn(torch.float32) else 0)
    for blocks, transposed in [others] if others else []:
        torch.testing.assert_close(torch.cat([job() for job in blocks]), a @ b)
        torch.testing.assert_close(transposed[0]().t(), a @ b)


@onednn
def test_a_large_result_is_made_in_blocks():
    a, b = torch.randn(2 * floors.ROWS + 1, 4), torch.randn(4, 3)
    _, blocks, _ = floors.ways(a, b, b.t(), torch.empty(len(a), 3))
    assert len(blocks) == 3


def test_other_dtypes_are_products_of_pytorch_alone():
    a, b = torch.randn(3, 4).double(), torch.randn(4, 5).double()
    assert len(floors.ways(a, b, floors.lay_out(b, 3), a.new_empty(3, 5))) == 1


def test_the_fastest_way_is_taken():
    def slow():
        time.sleep(2e-3)

    def fast():
        pass

    assert floors.least([[slow], [fast], [slow, fast]]) == 1


def test_each_number_of_rows_has_its_own_way(monkeypatch):
    asked = []
    monkeypatch.setattr(floors, "least", lambda found: asked.append(found) or 0)
    a, b = torch.randn(9, 4), torch.randn(4, 5)
    assert len(floors.products(a, b, [3, 3, 2, 1])) == 4
    assert len(asked) == 3

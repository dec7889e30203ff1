"""The drivers reject packed input during the capture of a CUDA graph, because the host memory that they copy to the
device is gone at replay. The interpreter simulates the capture."""

import pytest
import torch

from python_tests.gpu import givens_recurrences, recurrences, relevancies
from python_tests.ops.relevancy_sample import call_of
from python_tests.samples import givens_recurrence_sample, recurrence_sample

pytestmark = pytest.mark.skipif(bool(recurrences.lacks("interpret")), reason=recurrences.lacks("interpret"))


def of_recurrence(packed):
    place = recurrences.Place("interpret", "block")
    sample = recurrence_sample("lstm", 3, 2, 5, packed=packed, dtype=torch.float32)
    return recurrences.routed(place), lambda: place(*sample.args, **sample.kwargs)


def of_relevancy(packed):
    place = relevancies.Place("interpret", "block")
    call = call_of("tanh", 3, 2, 5, packed=packed).to(torch.float32)
    return relevancies.routed(place), lambda: place(*call.args, **call.kwargs)


def of_givens(packed):
    place = givens_recurrences.Place("interpret")
    sample = givens_recurrence_sample(3, 2, 6, 2, packed=packed, dtype=torch.float32)
    return givens_recurrences.routed(place), lambda: place(**sample.leaves(), **sample.kwargs)


@pytest.mark.parametrize("family", [of_recurrence, of_relevancy, of_givens])
def test_packed_input_is_refused_with_the_remedy(family):
    for packed in (False, True):
        routed, call = family(packed)
        with routed as place:
            call()
            place.operators.set_capturing(True)
            try:
                if packed:
                    with pytest.raises(RuntimeError, match="packed input cannot be captured"):
                        call()
                else:
                    call()
            finally:
                place.operators.set_capturing(False)

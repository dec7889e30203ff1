"""Wrong options and arguments of every layer in the table are errors that name the argument and what came.

Where torch.nn has the layer, test_parity.py compares its errors.
"""

import inspect

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence

from python_tests.samples import layers as table
from rnnkern import nn
from rnnkern.nn import ContextNorm, CoRelNet, HeavyBallODE, NeuralODE
from rnnkern.nn.filters import NAG, Adam, Momentum, RMSprop

T, B, I, H = 7, 4, table.INPUT_SIZE, table.HIDDEN_SIZE  # noqa: E741
F64 = torch.float64
RATES = r"in \[0, 1\)"
BOTH_RATES = rf"zoneout must be {RATES}, or 2 such numbers, one for each state"
GRAD_RATE = r"recurrent_grad_dropout must be in \[0, 1\]"

OPTIONS = [
    ("LSTM", {"num_heads": 3}, ValueError, "num_heads must be positive and divide hidden_size = 8, got 3"),
    ("GRU", {"num_heads": 0}, ValueError, "num_heads .* got 0"),
    ("RNN", {"num_heads": 2.0}, TypeError, "num_heads should be of type int, got: float"),
    ("RNN", {"num_heads": True}, TypeError, "num_heads should be of type int, got: bool"),
    ("LSTM", {"num_heads": 2, "proj_size": 4}, ValueError, "num_heads must be 1 with proj_size = 4 > 0, got 2"),
    ("GRU", {"reset_gate": "Before"}, ValueError, "reset_gate must be 'after' or 'before', got 'Before'"),
    ("RNN", {"nonlinearity": "gelu"}, ValueError, "Unknown nonlinearity 'gelu'. Select from .*'modrelu'"),
    ("LSTM", {"nonlinearity": "tanh"}, TypeError, "nonlinearity"),
    ("LSTM", {"reset_gate": "after"}, TypeError, "reset_gate"),
    ("LSTM", {"layer_norm": 1}, TypeError, "layer_norm should be of type bool, got: int"),
    ("GRU", {"layer_norm": None}, TypeError, "layer_norm should be of type bool, got: NoneType"),
    ("LSTM projected", {"layer_norm": True}, ValueError, "layer_norm must be False with proj_size = 3, got True"),
    ("LSTM heads", {"layer_norm": True}, ValueError, "layer_norm must be False with num_heads = 2, got True"),
    ("LSTM Adam", {"layer_norm": True}, ValueError, "must be False with a filter"),
    ("GRU heads", {"layer_norm": True}, ValueError, "layer_norm must be False with num_heads = 2, got True"),
    ("GRU before", {"layer_norm": True}, ValueError, "layer_norm must be False with reset_gate = 'before', got True"),
    ("RNN", {"layer_norm": True}, TypeError, "layer_norm"),
    ("RNN", {"zoneout": 1.0}, ValueError, rf"zoneout must be {RATES}, got 1.0"),
    ("GRU", {"zoneout": (0.1, 0.1)}, TypeError, "zoneout should be of type float, got: tuple"),
    ("LSTM", {"zoneout": (0.1,) * 3}, ValueError, BOTH_RATES),
    ("LSTM", {"zoneout": (0.1, 2)}, ValueError, rf"{BOTH_RATES}, got \(0.1, 2\)"),
    ("LSTM", {"recurrent_dropout": -0.1}, ValueError, rf"recurrent_dropout must be {RATES}, got -0.1"),
    ("LSTM", {"recurrent_dropout": True}, TypeError, "recurrent_dropout should be of type float, got: bool"),
    ("LSTM", {"recurrent_grad_dropout": -0.1}, ValueError, GRAD_RATE),
    ("LSTM", {"recurrent_grad_dropout": 1.1}, ValueError, GRAD_RATE),
    ("LSTM", {"recurrent_grad_dropout": True}, TypeError, "recurrent_grad_dropout should be of type float"),
    ("LSTM", {"filter": (0.9, 1.0)}, TypeError, r"filter must be a filter of rnnkern.nn.filters, got \(0.9"),
    *(
        row
        for name in ("ExpRNN", "CayleyRNN", "NonNormalRNN", "HouseholderRNN", "EURNN", "SpectralRNN")
        for row in (
            (name, {"init": "zeros"}, ValueError, "`init` must be one of .*, got 'zeros'"),
            (name, {"nonlinearity": "cube"}, ValueError, "Unknown nonlinearity"),
        )
    ),
    ("OrthogonalInitRNN", {"init": "zeros"}, ValueError, "`init` must be one of .*, got 'zeros'"),
    ("HouseholderRNN", {"reflections": 9}, ValueError, "`reflections` must be an integer from 1 to N = 8, got 9"),
    ("SpectralRNN", {"margin": 1.5}, ValueError, r"`margin` must be a number from 0 to 1, got 1\.5"),
    ("NonNormalRNN", {"gamma": -1.0}, ValueError, "schur: `gamma` must be"),
    ("NonNormalRNN", {"gamma": "1"}, TypeError, "schur: `gamma` must be"),
    ("HenaffRNN", {"input_nonlinearity": "sin"}, ValueError, "`input_nonlinearity` must be one of .* got 'sin'"),
    ("GORU", {"base": "moving"}, ValueError, "`base` must be one of"),
    ("UnitaryRNN", {"num_layers": 0}, ValueError, "num_layers must be at least 1, got 0"),
    ("UnitaryRNN", {"num_layers": 4.0}, TypeError, "num_layers should be of type int, got: float"),
    ("UnitaryRNN", {"unitary_map": "log"}, ValueError, "unitary_map must be one of"),
    ("UnitaryRNN free", {"base": "dynamic"}, ValueError, "do not apply to the map 'free'"),
    ("UnitaryRNN", {"style": "butterfly"}, ValueError, "`style` applies only to the map 'givens', got 'butterfly'"),
    ("UnitaryRNN", {"fused": True}, ValueError, "`fused` applies only to the map 'givens', got True"),
    ("UnitaryRNN givens", {"fused": 1}, TypeError, "`fused` must be True, False or None, got 1"),
    ("EURNN", {"fused": 1}, TypeError, "`fused` must be True, False or None, got 1"),
    ("LRU", {"r_min": -0.1}, ValueError, "r_min and r_max must satisfy .* got -0.1 and 1.0"),
    ("LRU", {"r_min": 0.9, "r_max": 0.8}, ValueError, "got 0.9 and 0.8"),
    ("LRU", {"r_min": 1.0}, ValueError, "not both 0 or 1, got 1.0 and 1.0"),
    ("LRU", {"max_phase": 7}, ValueError, "max_phase must be in"),
    ("LRU", {"output_size": 0}, ValueError, "output_size must be at least 1, got 0"),
    ("LRU", {"dtype": torch.bfloat16}, TypeError, "LRU supports float32 and float64, got torch.bfloat16"),
    ("ContinuousRNN", {"dt": 0}, ValueError, "dt must be positive, got 0"),
    ("ContinuousRNN", {"dt": "fast"}, TypeError, "dt should be of type float, got: str"),
    ("ContinuousRNN", {"steps": 0}, ValueError, "steps must be at least 1, got 0"),
    ("ContinuousRNN", {"method": "rk4"}, ValueError, r"method must be one of \('euler', 'adams'\), got 'rk4'"),
    ("ContinuousRNN linear", {"method": "adams"}, ValueError, "`method` and `steps` must be .* got 'adams' and 1"),
    ("ContinuousRNN", {"nonlinearity": "relu"}, ValueError, "nonlinearity must be one of .* got 'relu'"),
    ("ContinuousRNN", {"stable_map": "relu"}, ValueError, "stable: `stable_map` must be one of"),
    ("RelRNN", {"buffer_size": 0}, ValueError, "buffer_size must be at least 1, got 0"),
    ("RelRNN", {"relevant_size": -1}, ValueError, "relevant_size must be at least 0, got -1"),
    ("RelRNN", {"buffer_size": 2.0}, TypeError, "buffer_size should be of type int, got: float"),
    ("RelRNN", {"num_heads": 3}, ValueError, "num_heads must divide hidden_size = 8, got 3"),
    ("RelRNN", {"num_heads": 0}, ValueError, "num_heads must be at least 1, got 0"),
    ("RelRNN", {"nonlinearity": "gelu"}, ValueError, "nonlinearity must be one of .*, got 'gelu'"),
    ("RelLSTM", {"combine": "mean"}, ValueError, "combine must be one of .*, got 'mean'"),
    ("RelLSTM", {"nonlinearity": "relu"}, TypeError, "nonlinearity"),
    ("MemRNN", {"buffer_size": 5}, TypeError, "MemRNN: unknown argument `buffer_size`"),
    ("SABLSTM", {"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
    ("SABLSTM", {"attend_every": 1.0}, TypeError, "attend_every should be of type int, got: float"),
    ("SABLSTM", {"truncation": -1}, ValueError, "truncation must be at least 1, got -1"),
    ("SABLSTM", {"alignment": "dot"}, ValueError, "alignment must be one of .*, got 'dot'"),
    ("NeuralODE", {"steps": 0}, ValueError, "steps must be at least 1, got 0"),
    ("NeuralODE", {"steps": 1.5}, TypeError, "steps should be of type int, got: float"),
    ("NeuralODE", {"time": 0}, ValueError, "time must be positive, got 0"),
    ("NeuralODE", {"method": "rk4"}, ValueError, r"method must be one of \('adams', 'euler'\)"),
    ("HeavyBallODE", {"gamma": -1}, ValueError, "gamma must be at least 0, got -1"),
    ("HeavyBallODE", {"gamma": "a"}, TypeError, "gamma should be of type float, got: str"),
    ("ContextNorm", {"unbiased": None}, TypeError, "ContextNorm: `unbiased` must be a bool"),
    ("ContextNorm", {"eps": -1.0}, ValueError, "ContextNorm: `eps` must not be negative"),
    ("Similarity", {"mask": "past"}, ValueError, "Similarity: `mask` must be one of"),
    ("Similarity", {"mask": "full", "packed": True}, ValueError, "Similarity: `packed` must be False"),
    ("CoRelNet", {"rule": "mix"}, ValueError, "CoRelNet: `rule` must be one of"),
    ("CoRelNet difference", {"decoder": "transformer"}, ValueError, "`decoder` must be 'mlp'"),
    ("CoRelNet difference", {"norm": None}, ValueError, "`norm` must not be None"),
]


@pytest.mark.parametrize(("name", "wrong", "error", "said"), OPTIONS, ids=str)
def test_a_wrong_option(name, wrong, error, said):
    with pytest.raises(error, match=said):
        table.layer(name, **wrong)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: Momentum(0.9, "s"), TypeError, "Momentum: `s` must be a number, got 's'"),
        (lambda: Momentum(True, 1.0), TypeError, "Momentum: `mu` must be a number, got True"),
        (lambda: Momentum(1.0, 1.0), ValueError, rf"Momentum: `mu` must be {RATES}, got 1.0"),
        (lambda: NAG(1.0, 2.5), TypeError, "NAG: `restart_every` must be an int, got 2.5"),
        (lambda: NAG(1.0, 0), ValueError, "NAG: `restart_every` must be at least 1, got 0"),
        (lambda: Adam(0.5, 1.0, 1.0), ValueError, rf"Adam: `beta` must be {RATES}, got 1.0"),
        (lambda: RMSprop(0.0, 0.9), ValueError, "RMSprop: `s` must be positive, got 0.0"),
        (lambda: nn.UnitaryRNN(0, H), ValueError, "input_size must be at least 1, got 0"),
        (lambda: nn.EURNN(I, 6, style="butterfly"), ValueError, "N must be a power of two for .* 'butterfly', got 6"),
        (lambda: NeuralODE(2, None, steps=1), TypeError, "hidden_size should be of type int"),
        (lambda: HeavyBallODE(2, 3, steps=1, generalized=True), ValueError, "`hidden_size` must be None .* got 3"),
        (lambda: ContextNorm(0), ValueError, "ContextNorm: `d` must be at least 1, got 0"),
        (lambda: ContextNorm("d"), TypeError, "ContextNorm: `d` must be an int, got 'd'"),
        (lambda: nn.ESBN(4, 0), ValueError, "ESBN: `outputs` must be at least 1, got 0"),
        (lambda: ContextNorm(4)(torch.zeros(2, 3)), ValueError, r"`x` must be \(B, T, d\) = \(B, T, 4\), got \(2, 3\)"),
        (lambda: ContextNorm(4, (2, 2))(torch.zeros(2, 3, 4)), ValueError, "`segments` must sum to T = 3"),
        (lambda: CoRelNet(4, 3, 2)(torch.zeros(2, 4, 4)), ValueError, r"T = 3, got \(2, 4, 4\)"),
        (lambda: NeuralODE(2, 3, steps=1)(torch.zeros(4, 3)), ValueError, r"`h` must be \(B, 2\), got \(4, 3\)"),
        (lambda: NeuralODE(2, 3, steps=1)(torch.zeros(4, 2, dtype=F64)), TypeError, "`h` must have the dtype"),
        (lambda: table.layer("HeavyBallODE")([1.0]), TypeError, "`h` must be a tensor, got list"),
        (lambda: table.layer("HeavyBallODE")(torch.zeros(4, I), torch.zeros(3, I)), ValueError, r"`m` must .*\(4, 4\)"),
    ],
)
def test_a_wrong_size_filter_or_call(make, error, said):
    with pytest.raises(error, match=said):
        make()


# ---- keywords and signatures


@pytest.mark.parametrize("name", table.NAMES)
def test_an_unknown_option_is_named_with_the_nearest_ones(name):
    parameters = inspect.signature(table.class_of(name)).parameters
    assert not [p for p in parameters.values() if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    sizes = {"d"} if name in ("ContextNorm", "Similarity", "CoRelNet", "ESBN") else {"input_size", "hidden_size"}
    assert sizes <= parameters.keys()
    with pytest.raises(TypeError, match=f"^{name}: unknown argument `dtypee`; did you mean `dtype`"):
        table.layer(name, dtypee=None)
    with pytest.raises(TypeError, match=f"^{name}: unknown argument `zzz`; available: {next(iter(parameters))}, "):
        table.layer(name, zzz=None)


@pytest.mark.parametrize("name", [name for name in table.NAMES if name not in table.RELATIONAL + table.ODES])
@pytest.mark.parametrize("word", ["mask", "lengths"])
def test_an_unknown_keyword_of_a_call_is_named_with_the_remedy(name, word):
    module, x = table.layer(name), torch.zeros(1, 2, I)
    remedy = "" if name in table.CELLS else ", reset.*; pass sequences .*pack_padded_sequence.*`reset`"
    with pytest.raises(TypeError, match=f"^{name}: unknown argument `{word}`; available: input, hx{remedy}"):
        module(x, **{word: None})
    with torch.no_grad(), pytest.raises(TypeError, match=f"^{name}: unknown argument"):
        module(x, torch.zeros(1, 2, H), **{word: None})


BOUNDED = {"buffer_size", "relevant_size", "relevance"}


@pytest.mark.parametrize(
    ("base", "names", "without"),
    [
        (nn.RNN, ("ExpRNN", "HouseholderRNN", "EURNN", "SpectralRNN", "OrthogonalInitRNN"), set()),
        (nn.RNN, ("HenaffRNN",), {"nonlinearity", "filter"}),
        (nn.ExpRNN, ("CayleyRNN", "NonNormalRNN"), set()),
        (nn.RelRNN, ("MemRNN",), BOUNDED),
        (nn.RelRNN, ("RelLSTM",), {"nonlinearity"}),
        (nn.RelRNN, ("MemLSTM",), {"nonlinearity", *BOUNDED}),
    ],
)
def test_a_layer_has_the_options_of_its_base(base, names, without):
    for name in names:
        given = inspect.signature(getattr(nn, name)).parameters
        assert inspect.signature(base).parameters.keys() - given.keys() == without, name


# ---- arguments of a call

OWN = [
    name for name in table.NAMES if name in table.SEQUENCES and not issubclass(table.class_of(name), torch.nn.RNNBase)
]
COMPLEX = ("UnitaryRNN", "LRU")


@pytest.mark.parametrize("name", OWN)
def test_a_wrong_input_or_state(name):
    module, x, dtype = table.layer(name), torch.zeros(T, B, I), torch.complex64 if name in COMPLEX else torch.float32
    narrow = pack_sequence([torch.zeros(2, 2), torch.zeros(1, 2)])
    for args, error, said in (
        (([1.0],), TypeError, "`input` must be a tensor or a PackedSequence, got list"),
        ((x.double(),), TypeError, "dtype of the parameters, torch.float32, got torch.float64"),
        ((x[..., :2],), ValueError, r"`input` must be \(T, B, 4\), or without B, got \(7, 4, 2\)"),
        ((narrow,), ValueError, r"`input` must be packed with 4 columns, got \(3, 2\)"),
        ((x, [1.0]), TypeError, "`hx` must be a .*, got (list|float)"),
        ((x, torch.zeros(B, 2, dtype=dtype)), ValueError, r"`hx` must be \(.*8\), got \(4, 2\)"),
        ((x[:, 0], torch.zeros(B, H, dtype=dtype)), ValueError, r"`hx` must be \(.*8,?\), got \(4, 8\)"),
    ):
        with pytest.raises(error, match=f"{name}: .*{said}"):
            module(*args)


@pytest.mark.parametrize(
    ("name", "hx", "error", "said"),
    [
        ("UnitaryRNN", torch.zeros(1, B, H), TypeError, "`hx` must be of dtype torch.complex64"),
        ("LRU", torch.zeros(B, H), TypeError, "LRU: `hx` must be of dtype torch.complex64, got .*float32"),
        ("SABLSTM", (torch.zeros(B, H),), ValueError, r"`state` must be \(h0, c0\)"),
        ("ContinuousRNN", (1,), TypeError, "ContinuousRNN: `hx` must be a tensor, got tuple"),
        ("RNN momentum", (torch.zeros(1, B, H),) * 3, ValueError, "hx must have 1 or 2 tensors, got 3"),
        ("RNN momentum", (torch.zeros(1, B, H), torch.zeros(1, B, 3)), RuntimeError, r"Expected v .* got \[1, 4, 3\]"),
    ],
)
def test_a_wrong_state_of_one_layer(name, hx, error, said):
    with pytest.raises(error, match=said):
        table.layer(name)(torch.zeros(T, B, I), hx)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", [name for name in table.NAMES if name in table.SEQUENCES])
def test_a_wrong_mask_of_resets(name, packed):
    x, bool_ = torch.zeros(T, B, I), {"dtype": torch.bool}
    given = pack_padded_sequence(x, torch.tensor([2, 7, 3, 7]), enforce_sorted=False) if packed else x
    wrong = [
        ([[True]], TypeError, "`reset` must be a bool tensor, got list"),
        (torch.zeros(T, B), TypeError, "`reset` must be a bool tensor, got torch.float32"),
        (torch.zeros(T, B, device="meta", **bool_), TypeError, "`reset` must be on cpu.*got meta"),
        (torch.zeros(B, T, **bool_), ValueError, r"`reset` must be \(T, B\) = \(7, 4\), got \(4, 7\)"),
        (torch.zeros(T, **bool_), ValueError, r"`reset` must be \(T, B\) = \(7, 4\), got \(7,\)"),
        (torch.zeros(T, 1, **bool_), ValueError, r"`reset` must be \(T, B\) = \(7, 4\), got \(7, 1\)"),
    ]
    for reset, error, said in wrong:
        with pytest.raises(error, match=f"^{name}: {said}"):
            table.layer(name)(given, reset=reset)
    first, said = table.layer(name, batch_first=True), rf"^{name}: `reset` must be "
    with pytest.raises(ValueError, match=rf"{said}\(B, T\) = \(4, 7\), got \(7, 4\)"):
        first(x.transpose(0, 1), reset=torch.zeros(T, B, **bool_))
    with pytest.raises(ValueError, match=rf"{said}\(T,\) = \(7,\), got \(7, 1\)"):
        first(x[:, 0], reset=torch.zeros(T, 1, **bool_))

"""Recurrent layers and relational models hold parameters and call rnnkern.ops; some replace layers of torch.nn."""

from rnnkern.nn import init as init
from rnnkern.nn.cells import GRUCell, LSTMCell, RNNCell
from rnnkern.nn.continuous import ContinuousRNN
from rnnkern.nn.eurnn import EURNN
from rnnkern.nn.gru import GORU, GRU
from rnnkern.nn.lru import LRU
from rnnkern.nn.lstm import LSTM
from rnnkern.nn.neural_ode import HeavyBallODE, NeuralODE
from rnnkern.nn.of_cell import Recurrent
from rnnkern.nn.orthogonal import (
    CayleyRNN,
    ExpRNN,
    HenaffRNN,
    HouseholderRNN,
    NonNormalRNN,
    OrthogonalInitRNN,
    SpectralRNN,
    orthogonal_penalty,
)
from rnnkern.nn.relational import ESBN, ContextNorm, CoRelNet, Similarity
from rnnkern.nn.relevancy import MemLSTM, MemRNN, RelLSTM, RelRNN
from rnnkern.nn.rnn import RNN
from rnnkern.nn.sab import SABLSTM
from rnnkern.nn.stream import Stream
from rnnkern.nn.unitary import UnitaryRNN
from rnnkern.parametrizations._schur import schur_penalty

__all__ = [
    "ESBN", "EURNN", "GORU", "GRU", "LRU", "LSTM", "RNN", "SABLSTM", "CayleyRNN", "CoRelNet", "ContextNorm",
    "ContinuousRNN", "ExpRNN", "GRUCell", "HeavyBallODE", "HenaffRNN", "HouseholderRNN", "LSTMCell", "MemLSTM",
    "MemRNN", "NeuralODE", "NonNormalRNN", "OrthogonalInitRNN", "RNNCell", "Recurrent",
    "RelLSTM", "RelRNN", "Similarity", "SpectralRNN", "Stream", "UnitaryRNN", "orthogonal_penalty", "schur_penalty",
]  # fmt: skip

# Made by `python benchmarks/public_names.py`. Do not edit.

from recombine.basics.errors import InputError as InputError
from recombine.parts.diagnostics.bayes_ceiling import BayesCeiling as BayesCeiling
from recombine.parts.diagnostics.compression import Compression as Compression
from recombine.parts.diagnostics.distance import Distance as Distance
from recombine.parts.diagnostics.error_propagation import ErrorPropagation as ErrorPropagation
from recombine.parts.diagnostics.factorization import Factorization as Factorization
from recombine.parts.diagnostics.linear_decodability import LinearDecodability as LinearDecodability
from recombine.parts.diagnostics.module_scores import ModuleScores as ModuleScores
from recombine.parts.diagnostics.shuffled_decodability import (
    ShuffledDecodability as ShuffledDecodability,
)
from recombine.parts.diagnostics.subgraph_frequency import SubgraphFrequency as SubgraphFrequency
from recombine.parts.diagnostics.supervision_steps import SupervisionSteps as SupervisionSteps
from recombine.parts.diagnostics.task_information import TaskInformation as TaskInformation
from recombine.parts.encodings.few_shot import FewShot as FewShot
from recombine.parts.encodings.hidden import Hidden as Hidden
from recombine.parts.encodings.identity import Identity as Identity
from recombine.parts.encodings.interval_shuffle import IntervalShuffle as IntervalShuffle
from recombine.parts.encodings.invertible_nn import InvertibleNN as InvertibleNN
from recombine.parts.encodings.language import Language as Language
from recombine.parts.encodings.orthogonal import Orthogonal as Orthogonal
from recombine.parts.families.chain import Chain as Chain
from recombine.parts.families.goal_grid import GoalGrid as GoalGrid
from recombine.parts.families.hyperteacher import Hyperteacher as Hyperteacher
from recombine.parts.families.preference_grid import PreferenceGrid as PreferenceGrid
from recombine.parts.families.subsequence import Subsequence as Subsequence
from recombine.parts.families.sudoku import Sudoku as Sudoku
from recombine.parts.families.two_hop import TwoHop as TwoHop
from recombine.parts.families.unrelated import Unrelated as Unrelated
from recombine.parts.field_checks import Knob as Knob
from recombine.parts.models.built import Built as Built
from recombine.parts.models.executor import Executor as Executor
from recombine.parts.models.hypernetwork import Hypernetwork as Hypernetwork
from recombine.parts.models.mlp import MLP as MLP
from recombine.parts.models.modular_oracle import ModularOracle as ModularOracle
from recombine.parts.models.recursive import Recursive as Recursive
from recombine.parts.models.sequence_transformer import SequenceTransformer as SequenceTransformer
from recombine.parts.models.transformer import Transformer as Transformer
from recombine.parts.recipes.fast import Fast as Fast
from recombine.parts.recipes.paper import Paper as Paper
from recombine.parts.supports.balanced import Balanced as Balanced
from recombine.parts.supports.disconnected import Disconnected as Disconnected
from recombine.parts.supports.growing import Growing as Growing
from recombine.parts.supports.held_out_features import HeldOutFeatures as HeldOutFeatures
from recombine.parts.supports.held_out_kinds import HeldOutKinds as HeldOutKinds
from recombine.parts.supports.held_out_lengths import HeldOutLengths as HeldOutLengths
from recombine.parts.supports.held_out_sequences import HeldOutSequences as HeldOutSequences
from recombine.parts.supports.listed import Listed as Listed
from recombine.parts.supports.missing_module import MissingModule as MissingModule
from recombine.parts.supports.popular import Popular as Popular
from recombine.parts.supports.random import Random as Random
from recombine.parts.supports.unpopular import Unpopular as Unpopular
from recombine.storage.table import Table as Table
from recombine.sweeps.run import Run as Run
from recombine.sweeps.run import paper as paper
from recombine.sweeps.run import paper_fast as paper_fast
from recombine.sweeps.run import sweep as sweep
from recombine.training.fitted import Fitted as Fitted
from recombine.training.scheduler import fit as fit
from recombine.training.scheduler import train as train

__version__: str

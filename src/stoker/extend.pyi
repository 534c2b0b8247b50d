# The names of `stoker.extend`, and the module of each: the only list. To add a name, add its line here, a line in
# `docs/reference/extend.md`, and keep it: other packages rely on it.

from stoker._engine.serialize.unpicklable import pickled_size as pickled_size
from stoker._engine.timings import BatchTimings as BatchTimings
from stoker._engine.timings import StackCount as StackCount
from stoker._engine.timings import StepSums as StepSums
from stoker._engine.timings import TimingSink as TimingSink
from stoker._engine.timings import UnitTimings as UnitTimings
from stoker.collate.registry import register_collate_fn as register_collate_fn
from stoker.datasets.gather import Gathers as Gathers
from stoker.datasets.gather import Indices as Indices
from stoker.datasets.gather import copy_rows as copy_rows
from stoker.datasets.gather import describe as describe
from stoker.datasets.gather import row_layout as row_layout
from stoker.datasets.shards import ShardProgress as ShardProgress
from stoker.datasets.shards import share_of as share_of
from stoker.datasets.shards import torchs_part as torchs_part
from stoker.datasets.stream import State as State
from stoker.datasets.stream import resume as resume
from stoker.datasets.worker_share import OfWorker as OfWorker
from stoker.loader._accounting.observer import Observer as Observer
from stoker.loader._accounting.observer import observe as observe
from stoker.loader._accounting.report import copies_in_words as copies_in_words
from stoker.loader._accounting.report import machines_in_words as machines_in_words
from stoker.loader._autotune.hint import HAND_OVER_SECONDS as HAND_OVER_SECONDS
from stoker.loader._autotune.hint import NEGLIGIBLE_SHARE as NEGLIGIBLE_SHARE
from stoker.loader._autotune.hint import WAITING_SHARE as WAITING_SHARE
from stoker.loader._autotune.hint import workers_for as workers_for
from stoker.loader._job.timed_steps import StepTimes as StepTimes
from stoker.loader._random.find_generators import find_generators as find_generators
from stoker.loader._random.sample_rng import sample_rng as sample_rng
from stoker.loader._state.merging import merge_states as merge_states
from stoker.loader._state.schema import join_states as join_states
from stoker.loader._state.schema import state_for_all_ranks as state_for_all_ranks
from stoker.loader._state.schema import states_by_rank as states_by_rank
from stoker.loader.record import time_batches as time_batches

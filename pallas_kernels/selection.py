"""What the routing kernels are compiled for: the router's rule and how survivors are selected."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float, Int


@runtime_checkable
class RowScores(Protocol):
    """What the kernels' references need of ``lynx_jax.routers.RouterScores``."""

    @property
    def choice(self) -> Array: ...
    @property
    def confidence(self) -> Array: ...
    @property
    def weight(self) -> Array: ...


@runtime_checkable
class RouterRule(Protocol):
    """What the kernels and their references need of ``lynx_jax.routers.Router``; no kernel scores
    by sparsemixer.
    """

    @property
    def score(self) -> Literal["softmax", "sigmoid", "sparsemixer"]: ...
    @property
    def weights(self) -> Literal["renormalize", "keep_sum", "own"]: ...
    @property
    def scale(self) -> float: ...
    @property
    def groups(self) -> int: ...
    @property
    def kept_groups(self) -> int: ...
    @property
    def group_score(self) -> Literal["max", "top2"]: ...

    def scores(self, logits: Array, bias: Array | None = None) -> RowScores: ...
    def weigh(self, weight: Array, ids: Array, top_ids: Array, damping: float) -> Array: ...


@dataclass(frozen=True)
class TopKSelection:
    """Every expert survives."""


@dataclass(frozen=True)
class LynxSelection:
    """The union of the rows' best k by binned confidence and popularity (arXiv 2411.08982)."""

    alpha: float
    beta: int
    floor: int


@dataclass(frozen=True)
class OEASelection:
    """The union of the rows' first k0 (arXiv 2511.02237)."""

    k0: int


@dataclass(frozen=True)
class XShareSelection:
    """The rows' first k0, then by summed score, up to a budget (arXiv 2602.07265)."""

    budget: int
    k0: int


# Of a row's top-k weights an expert of them has at least this share, so that the power of the share
# does not vanish.
LEAST_SHARE = 1e-4


@dataclass(frozen=True)
class DemandSelection:
    """The rows' first, and by the power mean of the rows' shares the k largest and all that reach
    the threshold; each row's shares times its top-k sum, over the batch's mean, to the
    ``row_power``.
    """

    threshold: float
    power: float
    row_power: float = 0.0


type Selection = TopKSelection | LynxSelection | OEASelection | XShareSelection | DemandSelection


class RoutedRows(NamedTuple):
    """A batch of routed rows, as the kernels leave it.

    Attributes:
      ids: int32, k distinct experts a row, best first; arbitrary in rows that are not live.
      combine: float32 weight of every expert in every row; 0 where not chosen or not live.
      active: int32 ids of the distinct experts in use, ascending, padded with 0.
      num_active: int32, how many entries of ``active`` hold.
      num_active_topk: int32, how many plain top-k would have used.
    """

    ids: Int[Array, "rows k"]
    combine: Float[Array, "rows experts"]
    active: Int[Array, " experts"]
    num_active: Int[Array, ""]
    num_active_topk: Int[Array, ""]

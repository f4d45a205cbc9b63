"""What a verifier has learned of its drafters, and what it makes of their proposals. Engine thread only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from outrider.core.rounds import Proposal
from outrider.core.trees import TokenTree
from outrider.verifying.fusion.confidence import Calibration
from outrider.verifying.fusion.merge import Opinion, accepted_of, merge
from outrider.verifying.fusion.worth import SharedWorth, Worth

_FIRST_STEP_S = 0.03
_SMOOTHING = 0.1  # weight of the newest step


class Council:
    """Confidences against the truth, accepted tokens, and the time of a step."""

    def __init__(self, *, nodes: int, least: float) -> None:
        """Args:
        nodes: most nodes of a merged tree.
        least: nodes less likely than this to be accepted are left out of it.
        """
        self._nodes = nodes
        self._least = least
        self._calibrations: defaultdict[str, Calibration] = defaultdict(Calibration)
        self._shared = SharedWorth()
        self._step_s = _FIRST_STEP_S

    def stepped(self, seconds: float) -> None:
        """A step of the target without prompts took so long."""
        self._step_s += _SMOOTHING * (seconds - self._step_s)

    def begin(self) -> Worth:
        """A session with several drafters begins."""
        return Worth(self._shared)

    def best(self, waits: Mapping[str, float]) -> str:
        """The one drafter of these, with their usual latencies, that brings most; the first one at first."""
        return self._shared.best(waits, self._step_s)

    def choose(self, worth: Worth, waits: Mapping[str, float]) -> frozenset[str]:
        """Whom of these, with their usual latencies in seconds, a session asks next."""
        return worth.choose(waits, self._step_s)

    def draft(self, proposals: Mapping[str, Proposal], *, nodes: int, depth: int) -> TokenTree:
        """One tree of several proposals: at most `nodes` nodes, `depth` deep."""
        opinions = [
            Opinion(one.tree, self._calibrations[name].of(one.tree)) for name, one in proposals.items()
        ]
        return merge(opinions, nodes=min(nodes, self._nodes), depth=depth, least=self._least)

    def learn(
        self,
        worth: Worth | None,
        asked: Mapping[str, Proposal | None],
        token_ids: Sequence[int],
        *,
        everybody: bool,
    ) -> dict[str, int]:
        """A round committed `token_ids`: how many of these, from the start, each drafter had proposed.

        Args:
            worth: of a session with several drafters.
            asked: the drafters that were asked, with what came in time.
            token_ids: committed tokens.
            everybody: all drafters that could be asked were.
        """
        proposals = {name: one for name, one in asked.items() if one is not None}
        if worth is None and not proposals:
            return {}
        # Who is waited for in vain costs time and brings nothing.
        sample = {name: accepted_of(one.tree, token_ids) if one else 0 for name, one in asked.items()}
        if worth is not None:
            for name, one in proposals.items():
                self._calibrations[name].learn(one.tree, token_ids)
            worth.learn(sample, everybody=everybody)
        return sample

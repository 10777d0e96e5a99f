"""Rewards by late scores, as far as sealers have written these as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.schemas.events import ServedScore
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.blobs import Blobs
from rollstream.store.scores import FiledScores, filed_scores


class ScoredRewards:
    """The files of an environment's scores are read once, when it is first asked about.

    Args:
        sampler: whose ``scorer`` and ``score_version`` count; None: those that all configured
            samplers have, else none.
    """

    def __init__(self, store: Blobs, config: RollstreamConfig, sampler: str | None) -> None:
        section = config.samplers.get(sampler or "")
        sections = list(config.samplers.values()) if section is None else [section]
        rules = {(one.scorer, one.score_version) for one in sections}
        self._scorer, self._version = rules.pop() if len(rules) == 1 else ("", None)
        self._store = store
        self._newest: dict[tuple[str, int], FiledScores | None] = {}

    def of(
        self, address: PartitionAddress, group_id: str, uid: str, *, is_late: bool
    ) -> ServedScore | None:
        """What a rollout has instead of its reward; ``is_late``: it was published with none."""
        newest = self._newest_of(address)
        if newest is None:
            return None
        return newest.in_effect(group_id, uid, self._scorer, is_late=is_late)

    def rewards(
        self,
        address: PartitionAddress,
        columns: Mapping[str, Any],
        names: Callable[[], tuple[Sequence[str], Sequence[str]]],
    ) -> NDArray[np.float64]:
        """float64 [rows] what the segments of a file earned; the last one of a rollout by its score
        where it has one.

        Args:
            columns: ``reward`` and ``segment_idx`` of the rows.
            names: reads the ids of their groups, and their uids; called only where they may matter.
        """
        rewards = np.asarray(columns["reward"], np.float64)
        begins = np.asarray(columns["segment_idx"]) == 0
        lasts = np.append(begins[1:], True)
        late = np.isnan(rewards)
        rows = np.flatnonzero(lasts if self._scorer else lasts & late)
        newest = self._newest_of(address) if len(rows) else None
        if newest is None:
            return rewards
        groups, uids = ([texts[row] for row in rows.tolist()] for texts in names())
        scored = newest.rewards(groups, uids, self._scorer, late[rows])
        rewards = rewards.copy()
        rewards[rows] = np.where(np.isnan(scored), rewards[rows], scored)
        return rewards

    def _newest_of(self, address: PartitionAddress) -> FiledScores | None:
        key = address.environment, address.generation
        if key not in self._newest:
            self._newest[key] = filed_scores(self._store, *key, wanted=self._version)
        return self._newest[key]

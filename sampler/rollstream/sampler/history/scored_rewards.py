"""Rewards by late scores, as far as sealers have written these as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.schemas.events import ServedScore
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.scoring import NewestVersions
from rollstream.store.blobs import Blobs
from rollstream.store.scores import newest_scores


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
        self._newest: dict[tuple[str, int], NewestVersions | None] = {}

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
        rows = np.flatnonzero(lasts if self._scorer else lasts & late).tolist()
        if not rows or self._newest_of(address) is None:
            return rewards
        groups, uids = names()
        rewards = rewards.copy()
        for row in rows:
            score = self.of(address, groups[row], uids[row], is_late=bool(late[row]))
            if score is not None:
                rewards[row] = score.reward
        return rewards

    def _newest_of(self, address: PartitionAddress) -> NewestVersions | None:
        key = address.environment, address.generation
        if key not in self._newest:
            self._newest[key] = newest_scores(self._store, *key, wanted=self._version)
        return self._newest[key]

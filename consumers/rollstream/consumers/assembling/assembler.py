"""The state machine that turns one source partition into decisions.

It decides by the log alone: the same entries in the same order give the same decisions, however
they are cut into records and polls, and whenever they are flushed. (But for ``max_pending_bytes``,
which counts whole records.) Time is log time, the running maximum of the records' LogAppendTime;
``tick`` moves it on where nothing arrives.

Rules of its own, where several would do:

- A group's members are trajectories (distinct ``rollout_uid``); a member is complete when its last
  segment and every one before it were read. A group's rows are all segments of its complete
  members.
- An appended member makes a pending group one larger; it begins none.

``Outcomes`` has those of what becomes of groups and trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice, repeat
from operator import attrgetter, itemgetter

from rollstream.consumers.assembling.decisions import (
    NO_SEGMENT,
    DueGroup,
    Kept,
    Plan,
    SealDecision,
    Settlement,
    UnreadRange,
    segments_of,
)
from rollstream.consumers.assembling.held import HeldRecord, Keep
from rollstream.consumers.assembling.in_flight import ProducersInFlight
from rollstream.consumers.assembling.outcomes import Outcomes
from rollstream.consumers.assembling.pending import (
    Chain,
    PendingEntry,
    PendingGroup,
    PendingKey,
    StepUids,
    names_of,
)
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.ids import SegmentId, prompt_id, segment_id
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.ingest.record import IngestRecord
from rollstream.schemas.reasons import SealReason, SettleReason
from rollstream.streams.folds.entries import Stretch

_LOST_AT_ONCE = 1_024  # Lost entries in one decision, so that a flush stays within its bounds.
_, _DISPATCHED, _FAILED, _ALIVE, _ENDED, _APPENDED, _STEP, _ = (kind.value for kind in EntryKind)
_shared_values = itemgetter("group_size", "policy_version", "split", "lineage", "replica_id")


class Assembler(Outcomes):
    """Decides what becomes of every entry of one source partition, each exactly once.

    Args:
        environment: of the partition.
        config: how its rollouts become groups.
        seen_among: the indexes of segments that were settled before, within the dedupe horizon.
        watermark: where reading begins: every offset below it is settled.
        keep: asked for each record that is held; no decision depends on the answer.

    Attributes:
        position: the next offset to be read.
        pending: what is not decided.
        held: the records that hold it.
        decided: what is decided and not committed, and the watermark.
        in_flight: how the producers stand that said something.
    """

    def __init__(
        self,
        environment: str,
        config: EnvironmentConfig,
        seen_among: Callable[[Sequence[SegmentId]], Collection[int]],
        *,
        watermark: int = 0,
        keep: Keep = attrgetter("size"),
    ) -> None:
        super().__init__(environment, config, watermark, keep)
        self.position = watermark
        self.in_flight = ProducersInFlight()
        self._strict = config.grouping == "strict"
        self._cap = config.max_per_replica
        accepted = config.accept_policy_versions
        self._accepted = None if accepted is None else frozenset(accepted)
        self._seen_among = seen_among

    @property
    def memory(self) -> int:
        """Bytes in memory of the records that are pending, or decided and not committed."""
        return self.held.memory + self.decided.held.memory

    def add(
        self,
        offset: int,
        timestamp_us: int,
        record: IngestRecord,
        *,
        settled: Collection[int] = (),
        unreadable: Collection[int] = (),
    ) -> None:
        """The next record: its entries in their order, besides those that an earlier owner
        ``settled``. Those that are ``unreadable`` are settled as such."""
        if record.count == 1 and record.kinds[0] == _ALIVE and not (settled or unreadable):
            self._add_alive(offset, timestamp_us, record)
            return
        self._begin_offset(offset, timestamp_us, record.count, len(settled))
        held = self.held.hold(record, offset)
        self._add_entries(held, settled, unreadable)
        while self.held.crowded():
            if not self.held.copy_out():
                self.expire_oldest()

    def _add_alive(self, offset: int, timestamp_us: int, record: IngestRecord) -> None:
        """Its only entry says that a producer lives: while nothing is generated, all do."""
        assert offset == self.position, (offset, self.position)
        self.position = offset + 1
        self.entries += 1
        self.decided.alive()
        self.tick(timestamp_us)
        if record.producer is not None:
            self.in_flight.tell(record.producer, self.now_us)

    def unreadable(self, offset: int, timestamp_us: int) -> None:
        """The next record cannot be read: it counts as one entry."""
        self._begin_offset(offset, timestamp_us, 1)
        self.entries += 1
        self.decide([Settlement(SettleReason.UNREADABLE, offset, 0)])

    def skip(self, offset: int, timestamp_us: int, count: int) -> None:
        """The next record, of ``count`` entries, was settled by an earlier owner: it only advances
        log time."""
        self._begin_offset(offset, timestamp_us, count, count)
        self.entries += count

    def unread(self, stretches: Iterable[Stretch], reason: SettleReason) -> None:
        """There is no record, or none any more, at the offsets from the position on that these
        ``stretches`` have; what an earlier owner did not settle of them is settled for that reason,
        as ranges where nobody knows how many entries there were."""
        for first, stop, count, settled in stretches:
            assert first == self.position, (first, self.position)
            self.position = stop
            if count == 0:
                self.decided.begin_unread(stop)
                stretch = UnreadRange(reason, first, stop)
                self.decided.append(SealDecision(None, (), (), 1, 0, stretch))
            elif len(settled) == count:
                self.decided.pass_over(stop)
            else:
                assert stop == first + 1, "an offset of which the entries are known stands alone"
                self.decided.begin(first, count, len(settled))
                self.entries += count
                left = (entry for entry in range(count) if entry not in settled)
                while entries := list(islice(left, _LOST_AT_ONCE)):
                    self.decide([Settlement(reason, first, entry) for entry in entries])

    def add_imported(self, group: DueGroup, size: int) -> bool:
        """Decides a group that did not come through the log; False, and nothing: a segment of it is
        pending or decided, or was settled within the dedupe horizon.

        Args:
            size: bytes of its records, which are kept for it alone.
        """
        decision = SealDecision(group, (), (), len(group.rows), size)
        segments = [*segments_of(decision)]
        rows = segments[: len(group.rows)]
        if not self.uncommitted.isdisjoint(rows) or self._seen_among(rows):
            return False
        self.uncommitted.update(segments)
        self.decided.append(decision, Kept(size, size))
        return True

    def commit(self, plan: Plan) -> None:
        """The plan is confirmed in the seal log; from now on ``seen`` is true for its segments."""
        self.decided.commit(plan)
        for decision in plan.decisions:
            self.uncommitted.difference_update(segments_of(decision))
        self.in_flight.commit(plan)

    # --- entries ---

    def _begin_offset(self, offset: int, timestamp_us: int, count: int, settled: int = 0) -> None:
        assert offset == self.position, (offset, self.position)
        self.position = offset + 1
        self.decided.begin(offset, count, settled)
        self.tick(timestamp_us)

    def _add_entries(
        self, held: HeldRecord, settled: Collection[int], unreadable: Collection[int]
    ) -> None:
        record, pending, accepted = held.record, self.pending, self._accepted
        uncommitted, by_key = self.uncommitted, pending.by_key
        strict, passed = self._strict, bool(settled or unreadable)
        plain = self._cap is None and not record.token_arrays
        continues = record.texts.get("continuation_of")
        shared = [(*_shared_values(one), names_of(one)) for one in record.header["shared"]]
        again = frozenset(self._seen_among(_segments_of(record)))
        each = enumerate(_each_of(record))
        for entry, (kind, uid, group_uid, example_id, idx, is_last, of) in each:
            self.entries += 1
            if passed and (entry in settled or entry in unreadable):
                row = PendingEntry(held, entry)
                self.pass_over(row, SettleReason.UNREADABLE, entry in settled)
                continue
            group_size, version, split, lineage, replica_id, names = shared[of]
            counts_as_another = kind and kind != _APPENDED
            if counts_as_another:
                uid, idx = self._counts_as(PendingEntry(held, entry, uid, idx), kind)  # noqa: PLW2901
            segment = (uid, idx) if idx else uid  # As `segment_id`, without a call for each.
            if uid:
                if segment in uncommitted or (
                    self._seen_among([segment]) if counts_as_another else entry in again
                ):
                    self.pass_over(PendingEntry(held, entry, uid, idx), SettleReason.DUPLICATE)
                    continue
                uncommitted.add(segment)
            prior = continues[entry] if continues else ""
            chain = pending.trajectory(uid, prior) if pending.chains else None
            key: PendingKey = (group_uid, example_id)
            if not group_uid:
                key = ("", example_id, version if strict else "", split, lineage)
            if (kind or (accepted is not None and version not in accepted)) and self._takes_no_row(
                PendingEntry(held, entry, uid, idx), chain, key, group_size
            ):
                continue
            group = by_key.get(key) if chain is None else chain.group
            if group is None:
                group = self.begin(key, group_size)
            if group.failed_uids or continues or not plain:
                row = PendingEntry(held, entry, uid, idx)
                if not self._admits(row, group, chain, replica_id):
                    continue
            group.size = max(group.size, group_size)
            if split != "train":
                group.split = split
            group.entries += 1
            pending.entries += 1
            if chain is None and is_last and not idx:
                group.rows.append((held, entry))
                group.names.add(names)
                group.members += 1
            else:
                row = PendingEntry(held, entry, uid, idx)
                self.extend(row, is_last, group, chain, replica_id)
            if group.overdue or group.members + group.failed >= group.size:
                self.close_if_due(group)
            if pending.entries > pending.entries_max:
                self.expire_oldest()

    def _counts_as(self, entry: PendingEntry, kind: int) -> tuple[str, int]:
        """The uid and the segment by which dedupe knows an entry that is no plain segment."""
        if kind >= _STEP:
            return self._step_uid(entry), entry.segment_idx
        return entry.uid if kind == _FAILED else "", NO_SEGMENT

    def _step_uid(self, step: PendingEntry) -> str:
        """The uid under which a step counts; its record has it from now on."""
        given, prompt_uid = step.step_uids(), step.value("group_uid")
        key = prompt_uid, step.value("example_id")
        group = self.pending.prompts.get(prompt_uid) or self.pending.by_key.get(key)
        begun = None if group is None else group.begun_as(given)
        if begun is None and self._is_repeated(step, given, prompt_uid):
            return given.trajectory_uid or given.digest(prompt_uid)
        if begun is None or begun == given:
            return step.uid
        step.held.record.rename(step.entry, *begun)
        return begun.rollout_uid

    def _is_repeated(self, step: PendingEntry, given: StepUids, prompt_uid: str) -> bool:
        """Whether the same step came under the other name of its trajectory, and its prompt was
        sealed. Trajectories of other prompts may have the uid that older writers name it by."""
        idx = step.segment_idx
        if not given.trajectory_uid:
            return self._is_known(segment_id(given.digest(prompt_uid), idx))
        return self._is_known(segment_id(given.trajectory_uid, idx)) and any(
            self._is_known(prompt_id(prompt_uid, how)) for how in (SealReason.FULL, SealReason.IDLE)
        )

    def _admits(
        self, segment: PendingEntry, group: PendingGroup, chain: Chain | None, replica_id: str
    ) -> bool:
        """Whether the segment may be in the group; else it is settled."""
        failed, prior = group.failed_uids, segment.value("continuation_of")
        if not segment.segment_idx and prior not in ("", segment.uid):
            self.fail_member(segment, group, chain, SettleReason.BROKEN_CHAIN)
            return False
        reason = failed.get(segment.uid) or (failed.get(prior) if prior else None)
        if reason is not None:
            failed.setdefault(segment.uid, reason)  # Nor does anything that continues it.
            self.settle_with(group, segment, reason)
            return False
        cap = self._cap if chain is None else None
        taken = group.replicas.get(replica_id, 0)
        if cap is not None and taken >= cap:
            group.size -= segment.kind == _APPENDED  # It was to be larger by this one.
            self.pass_over(segment, SettleReason.REPLICA_CAP)
            return False
        if not group.agrees(segment):
            self.fail_member(segment, group, chain, SettleReason.ARRAY_MISMATCH)
            return False
        if cap is not None:
            group.replicas[replica_id] = taken + 1
        return True

    def _takes_no_row(
        self, entry: PendingEntry, chain: Chain | None, key: PendingKey, group_size: int
    ) -> bool:
        """Settles what is no segment, or a rejected one, or of no pending prompt; an appended one
        makes its group larger."""
        kind = entry.kind
        if kind >= _STEP and self._settles_step(entry, chain, key, group_size):
            return True
        if kind == _APPENDED:
            group = self.pending.by_key.get(key) if chain is None else chain.group
            if group is None:
                self.pass_over(entry, SettleReason.GROUP_SEALED)
                return True
            group.size += chain is None and entry.uid not in group.failed_uids
        if kind >= _APPENDED and (
            self._accepted is None or entry.value("policy_version") in self._accepted
        ):
            return False
        self._add_rowless(entry, chain, key, group_size)
        return True

    def _settles_step(
        self, step: PendingEntry, chain: Chain | None, key: PendingKey, group_size: int
    ) -> bool:
        """Settles a step of another example than its prompt's, or of a trajectory that begins once
        the prompt has all of its own, or was sealed; else its prompt, and trajectory, may begin."""
        prompt = self.pending.prompts.get(key[0]) if chain is None else chain.group
        if prompt is None:
            if self._is_known(prompt_id(key[0], SealReason.FULL)):
                reason = SettleReason.BEYOND_SIZE
            elif self._is_known(prompt_id(key[0], SealReason.IDLE)):
                reason = SettleReason.LATE
            else:
                group = self.pending.by_key.get(key)
                group = group or self.begin(key, group_size, is_prompt=True)
                group.remember(step)
                return False
        elif prompt.key != key:
            self.fail_member(step, prompt, chain, SettleReason.EXAMPLE_MISMATCH)
            return True
        elif chain is not None or step.uid in prompt.failed_uids:
            return False
        elif 0 < max(prompt.size, group_size) <= prompt.begun:
            reason = SettleReason.BEYOND_SIZE
        else:
            self.pending.begin_trajectory(prompt, self.now_us)
            prompt.remember(step)
            return False
        self.pass_over(step, reason)
        return True

    def _is_known(self, segment: SegmentId) -> bool:
        return segment in self.uncommitted or bool(self._seen_among([segment]))

    def _add_rowless(
        self, entry: PendingEntry, chain: Chain | None, key: PendingKey, group_size: int
    ) -> None:
        """A dispatch, a failure, or a segment whose policy version is not accepted: settled with
        the group of its trajectory, or the one that the producer named, which may begin now. That a
        producer lives is of no group; that a trajectory has ended begins none."""
        producer, kind = entry.held.record.producer, entry.kind
        if producer is not None and kind in (_DISPATCHED, _ALIVE):
            self.in_flight.tell(producer, self.now_us)
        if kind == _ALIVE:
            self.pass_over(entry, SettleReason.ALIVE)
            return
        if kind == _ENDED:
            self.end(entry)
            return
        failure = entry.held.record.failures.get(entry.entry)
        reason, failed = SettleReason.VERSION_REJECTED, 1
        if failure is not None:
            reason, failed = SettleReason.FAILED, failure.count
        elif not entry.uid:
            reason, failed = SettleReason.DISPATCHED, 0
        group = None
        if chain is not None:
            group = chain.group
        elif key[0]:
            group = self.pending.by_key.get(key) or self.begin(key, group_size)
        if group is None:
            self.pass_over(entry, reason)  # Its inferred group is unknown.
            return
        group.size = max(group.size, group_size)
        if failed:
            given = failure.reason if failure else ""
            self.fail_member(entry, group, chain, reason, failed, given)
        else:
            if not group.dispatched:  # By the first of them.
                group.dispatched = True
                self.pending.unnamed[group] = entry.settlement(reason)
            if producer is not None and entry.value("split") != "eval":
                group.producer_id = self.in_flight.begin(producer.producer_id, group.producer_id)
            self.settle_with(group, entry, reason)


def _each_of(record: IngestRecord) -> Iterator[tuple[int, str, str, str, int, bool, int]]:
    """Of each entry what its group depends on."""
    header, texts = record.header, record.texts
    # What each entry has the default of is no list; the others are as long as the kinds.
    return zip(
        record.kinds,
        texts.get("rollout_uid") or repeat(""),
        texts.get("group_uid") or repeat(""),
        texts.get("example_id") or repeat(""),
        record.values("segment_idx") if header["segment_idx"] else repeat(0),
        record.values("is_last_segment") if header["is_last_segment"] else repeat(True),
        record.shared_indexes,
        strict=False,
    )


def _segments_of(record: IngestRecord) -> Sequence[SegmentId]:
    """What its entries are, but for steps and failures; none where no entry has a uid."""
    uids = record.texts.get("rollout_uid", ())
    if not (uids and record.header["segment_idx"]):
        return uids
    return [*map(segment_id, uids, record.values("segment_idx"))]

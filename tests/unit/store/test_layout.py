"""What paths say of the files that they lead to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollstream.schemas.ids import MIXED_POLICY
from rollstream.store.layout import GROUPS, policy_version_of, rows_path


@given(
    version=st.text(st.characters(exclude_categories=["Cs"]), max_size=12), environment=st.text()
)
def test_the_policy_version_of_rows_is_read_back_from_their_path(
    version: str, environment: str
) -> None:
    environment = environment.encode(errors="ignore").decode()
    assert policy_version_of(rows_path(GROUPS, environment, version, 0, 7, "a")) == version


def test_the_path_of_rows_of_several_policies_says_so() -> None:
    assert policy_version_of(rows_path(GROUPS, "math", MIXED_POLICY, 0, 7, "a")) == MIXED_POLICY

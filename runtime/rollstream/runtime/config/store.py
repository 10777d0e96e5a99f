"""The section that says where files are."""

from __future__ import annotations

from pydantic import Field, field_validator

from rollstream.runtime.addresses import check_no_secret, root_of
from rollstream.runtime.config.section import Section


class StoreConfig(Section):
    """Says where the files of sealed rollouts are."""

    root: str = Field(min_length=1)
    """A local folder, `file:///an/absolute/folder`, or a place in an object store:
    `s3://bucket/prefix`, `gs://bucket/prefix`. Each namespace has its own. Credentials come from
    where other programs of that store take them: variables, files, or the machine's role."""
    endpoint: str = ""
    """Address of an S3 server other than Amazon's, for example `http://minio:9000`. Empty: as
    `AWS_ENDPOINT_URL` says."""
    region: str = ""
    """Region of the S3 bucket. Empty: as `AWS_REGION` or the profile says."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Longest time of a request to an object store, with all its attempts, and of a command's call
    of a folder."""
    hang_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds after which a sealer gives its partitions back and ends, if a call of the store has
    not ended. `rollstream status` tells of such a call after 8 seconds."""

    @field_validator("root")
    @classmethod
    def _is_supported(cls, root: str) -> str:
        root_of(root)
        return root

    @field_validator("endpoint")
    @classmethod
    def _has_no_secret(cls, endpoint: str) -> str:
        check_no_secret(endpoint)
        return endpoint

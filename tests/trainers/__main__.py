"""``python -m trainers``, in ``tests/``: whether what `make test-torch` covers is as it was when it
last passed; with ``--passed`` notes that it has. Needs the standard library alone."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("verified.txt")
COVERED = (
    "constraints.txt",
    "sampler/rollstream/sampler/batch/**/*.py",
    "sampler/rollstream/sampler/training/**/*.py",
    "trainers/**/*.py",
    "tests/trainers/*.py",
    "tests/harness/ready_packs_rank.py",
    "examples/grpo_torch/**/*.py",
)


def digest() -> str:
    """Of every file that is covered, names and bytes."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in COVERED for path in ROOT.glob(pattern)):
        found.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def main() -> int:
    line = f"sha256 {digest()}\n"
    if sys.argv[1:] == ["--passed"]:
        RECORD.write_text(line, encoding="utf-8")
        return 0
    if RECORD.read_text(encoding="utf-8") == line:
        print("make test-torch: skipped, since nothing that it covers changed after it passed")
        return 0
    print("make test-torch: what it covers has changed after it passed")
    return 1


if __name__ == "__main__":
    sys.exit(main())

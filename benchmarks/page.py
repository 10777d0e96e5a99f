"""How long does the page of a long run take, from files alone?

    python -m benchmarks.page [--steps 10000] [--folder FOLDER]

Writes a run's files (100 rollouts a step), starts ``rollstream page --from-files``, opens it in a
headless Chromium and measures until the charts and the table are drawn, then searches. A folder
that has a run is used as it is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
from playwright.sync_api import sync_playwright

from harness.browser import chromium
from rollstream.runtime.config.load import load_config
from rollstream.schemas.columns import Columns, Ragged, offsets_of
from rollstream.schemas.digest import row_digests
from rollstream.schemas.events import (
    Flushed,
    SealedFile,
    SealedGroup,
    SealedGroupColumns,
    SealedSegments,
    TouchedOffsets,
)
from rollstream.schemas.fields import scalar_fields
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs, FileGroup, Provenance, encode_rows, open_store
from rollstream.store.layout import GROUPS, batch_path, rows_path
from rollstream.store.manifests import project

GROUP, FLUSH_GROUPS, STEP_GROUPS, TOKENS = 10, 100, 10, 8
ADDRESS = PartitionAddress("math", 1, 0)
SAMPLER = "trainer-a"
STEP_US, START_US = 10_000_000, 1_700_000_000_000_000
CONFIG = """[kafka]
bootstrap = "127.0.0.1:9"
[store]
root = "file://{root}"
[environments.math]
[samplers.trainer-a]
environments = ["math"]
"""


def write_run(store: Blobs, steps: int) -> None:
    """Row files, manifests and batches, as sealers and a sampler write them."""
    for flush in range(steps * STEP_GROUPS // FLUSH_GROUPS):
        _write_flush(store, flush)
    for step in range(steps):
        _write_batch(store, step)


def _write_flush(store: Blobs, flush: int) -> None:
    rows, first = FLUSH_GROUPS * GROUP, flush * FLUSH_GROUPS
    step = first // STEP_GROUPS
    version, random = f"step-{step}", np.random.default_rng(flush)
    texts = {"environment": "math", "replica_id": "replica-0", "split": "train"}
    texts |= {"policy_version": version, "stop_reason": "stop"}
    scalars: dict[str, Any] = {}
    for field in scalar_fields():
        if field.dtype:
            default = np.nan if field.default is None else field.default
            scalars[field.name] = np.full(rows, default, field.dtype)
        else:
            scalars[field.name] = [texts.get(field.name, field.default)] * rows
    ids = [f"{first + row // GROUP:032x}" for row in range(rows)]
    sealed_us = START_US + step * STEP_US
    scalars["rollout_uid"] = [f"{first:012x}-{row:x}" for row in range(rows)]
    scalars["group_uid"] = ids
    scalars["example_id"] = [f"example-{int(one, 16) % 5_000}" for one in ids]
    scalars["reward"] = np.clip(random.normal(step / 10_000, 0.3, rows), 0, 1)
    scalars["weight_step"][:] = step
    scalars["prompt_count"][:] = scalars["token_count"][:] = TOKENS
    scalars["created_ts"][:] = sealed_us - random.integers(0, 30_000_000, rows)
    tokens = Ragged(random.integers(0, 9, rows * TOKENS).astype(np.int32), _offsets(rows))
    logprobs = Ragged(-random.random(rows * TOKENS, np.float32), _offsets(rows))
    arrays = {"prompt_tokens": tokens, "output_tokens": tokens, "logprobs": logprobs}
    columns = Columns(rows, scalars, arrays, {})
    starts = list(range(0, rows, GROUP))
    digests = row_digests(columns, starts)
    zeros, offsets = np.zeros(rows, np.int32), np.arange(rows) + flush * rows
    data = encode_rows(
        columns,
        Provenance(ids, ADDRESS, 0, offsets, zeros),
        groups=[FileGroup(GROUP, digest) for digest in digests],
        compression="none",
    )
    path = rows_path(GROUPS, "math", version, 0, 0, f"g1-p0-{flush}")
    store.create(path, data)
    lengths = random.integers(1, 4_000, rows).astype(np.int32)
    event = Flushed(
        epoch=0,
        nonce="",
        now_ts=sealed_us,
        watermark=(flush + 1) * rows,
        files=(SealedFile(path=path, size=data.size, rows=rows, checksum=data.checksum()),),
        groups=SealedGroupColumns.of(
            SealedGroup(
                group_id=ids[start],
                group_uid=ids[start],
                example_id=scalars["example_id"][start],
                lineage="",
                policy_version=version,
                policy_epoch=0,
                weight_step=step,
                segment_idx=0,
                split="train",
                seal_reason="full",
                failed_members=0,
                file=0,
                row_start=start,
                rows=GROUP,
                digest=digest,
            )
            for start, digest in zip(starts, digests, strict=True)
        ),
        segments=SealedSegments(
            offsets=offsets,
            entries=zeros,
            uids=tuple(scalars["rollout_uid"]),
            segment_idxs=zeros,
            weight_steps=scalars["weight_step"],
            policy_epochs=zeros,
            prompt_counts=scalars["prompt_count"],
            token_counts=lengths,
            rewards=scalars["reward"],
            created_ts=scalars["created_ts"],
            replicas=("replica-0",),
            replica_idxs=zeros,
            stop_reasons=("stop",),
            stop_reason_idxs=zeros,
        ),
        settled=(),
        touched=TouchedOffsets(offsets=offsets, counts=np.ones(rows, np.int32)),
        incomplete=(),
    )
    project(store, ADDRESS, flush, event)


def _offsets(rows: int) -> Any:
    return offsets_of(np.full(rows, TOKENS))


def _write_batch(store: Blobs, step: int) -> None:
    groups = range(step * STEP_GROUPS, (step + 1) * STEP_GROUPS)
    content = {
        **{"sampler": SAMPLER, "trainer_epoch": 0, "step": step, "batch_id": f"batch-{step}"},
        **{"ts": START_US + step * STEP_US + 5_000_000, "seed": 0, "request": {"groups": 10}},
        **{"policy_step": step, "current_step": None, "replacements": 0, "digest": f"{step:032x}"},
        "cursor": [],
        "groups": [
            {
                **ADDRESS._asdict(),
                **{"offset": one // FLUSH_GROUPS, "index": one % FLUSH_GROUPS},
                **{"group_id": f"{one:032x}", "digest": f"{one:032x}", "row_mask": None},
                **{"path": "groups/" + "x" * 90, "row_start": 0, "rows": GROUP, "scores": []},
            }
            for one in groups
        ],
    }
    store.create(batch_path(SAMPLER, 0, step), orjson.dumps(content))


def measure_page(config: Path) -> dict[str, float]:
    """Seconds: from the start of the command to the page, of another opening, and of a search."""
    found: dict[str, float] = {}
    with sync_playwright() as playwright, chromium(playwright) as browser:
        browser.new_page().goto("about:blank")  # A person's browser runs already.
        begun = time.monotonic()
        command = [sys.executable, "-m", "rollstream.console.entry", "page", "--port", "0"]
        command += ["--sampler", SAMPLER, "--from-files", "--config", str(config)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            page = browser.new_page()
            page.goto(url)
            page.wait_for_selector("#rows tr")
            found["start_to_page_s"] = time.monotonic() - begun
            usage = psutil.Process(server.pid).cpu_times()
            found["processor_to_page_s"] = usage.user + usage.system
            page.wait_for_selector("html[data-unread='0']", state="attached")
            found["start_to_all_of_it_s"] = time.monotonic() - begun
            usage = psutil.Process(server.pid).cpu_times()
            found["processor_s"] = usage.user + usage.system
            begun = time.monotonic()
            page.goto("about:blank")
            page.goto(url)
            page.wait_for_selector("#rows tr")
            found["page_again_s"] = time.monotonic() - begun
            uid = page.evaluate("document.querySelector('#rows a').textContent")[:8]
            begun = time.monotonic()
            url_of_search = f"{url}api/rollouts?text=0000{uid[-4:]}"
            page.evaluate("(url) => fetch(url).then((one) => one.json())", url_of_search)
            found["search_s"] = time.monotonic() - begun
            begun = time.monotonic()
            page.click("#rows a")
            page.wait_for_selector("#rollout .tokens span")
            found["rollout_s"] = time.monotonic() - begun
        finally:
            server.terminate()
            server.wait(30)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, default=Path("runs/page"))
    chosen = parser.parse_args()
    config = chosen.folder / "rollstream.toml"
    if not config.exists():
        chosen.folder.mkdir(parents=True)
        root = (chosen.folder / "store").absolute()
        text = CONFIG.format(root=root)
        (chosen.folder / "writing.toml").write_text(text)
        write_run(open_store(load_config(chosen.folder / "writing.toml").store), chosen.steps)
        config.write_text(text)
    print(json.dumps({name: round(one, 2) for name, one in measure_page(config).items()}))


if __name__ == "__main__":
    main()

"""``rollstream up``"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rollstream.console.broker import BrokerDidNotStart, EmbeddedKafka
from rollstream.console.fetching import Fetching
from rollstream.console.services import services_of
from rollstream.runtime.config.load import load_config

DATA = Path("rollstream-data/kafka")
PORT = 9092
LOCAL_HOSTS = ("localhost", "127.0.0.1")


def up(
    context: typer.Context,
    data: Annotated[
        Path, typer.Option(help="Folder of its data; kept for later starts.", metavar="FOLDER")
    ] = DATA,
    port: Annotated[
        int | None,
        typer.Option(
            help="Where clients connect, on 127.0.0.1; without it the port of kafka.bootstrap "
            f"where --config is given and names this machine, else {PORT}.",
            min=1,
            max=65535,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="Its kafka.bootstrap names the port; read only if given.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Runs a real Kafka on this machine, without Docker or an installed Java."""
    if port is None and config is not None:
        port = _port_of(load_config(config).kafka.bootstrap)
    console = Console()
    stopping = services_of(context).stopping()
    with Fetching(console) as fetching:
        kafka = EmbeddedKafka(data, port=port or PORT, on_progress=fetching).start()
    with kafka:
        console.print(f'bootstrap = "{kafka.bootstrap}"   data in {data}; Ctrl-C stops it')
        threading.Thread(target=_stop_at_end, args=(kafka, stopping), daemon=True).start()
        stopping.wait()
        code = kafka.wait(0)
        if code is not None:
            raise BrokerDidNotStart(
                f"Kafka ended by itself with exit code {code}; its log is {data}/broker.log"
            )
        console.print("stopping Kafka; its data stays")


def _port_of(bootstrap: str) -> int | None:
    host, _, port = bootstrap.rpartition(":")
    return int(port) if host in LOCAL_HOSTS and port.isdigit() else None


def _stop_at_end(kafka: EmbeddedKafka, stopping: threading.Event) -> None:
    kafka.wait()
    stopping.set()

"""Memory of a session in each drafter.

    python bench/drafter_memory.py --config STACK.yaml --tokens 1024 --sessions 8 --out bench/out/memory.json

Each drafter of the configuration runs alone, as a process. Resident memory is read before the first session
and with all of them open (each with its own prompt of random ids, drafted for once); the difference divided
by the sessions is told. KV pools are taken at the start and touched as they fill, so pages of KV count once
they are used; the share of the pool that the drafter says to be in use is told beside it. Features are not
sent: heads that need them are only opened, which costs them no KV.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from grpc import aio

from outrider.benchmark.provenance import provenance
from outrider.benchmark.stack import overrides_for
from outrider.cli.stack import child_env, with_ports
from outrider.config import dump_config, load_config
from outrider.core.params import SamplingParams
from outrider.core.rounds import Proposal
from outrider.wire import channels, services
from outrider.wire.convert.drafter import command_to_proto, event_from_proto
from outrider.wire.messages import DrafterLoad, OpenDraft, Stale
from outrider.wire.v1 import drafter_pb2 as pb

START_S = 300.0
ANSWER_S = 300.0


async def connected(address: str) -> tuple[Any, Any]:
    """A channel to a drafter that serves, and a client."""
    deadline = time.monotonic() + START_S
    while True:
        channel = channels.open_channel(address)
        client = services.drafter_client(channel)
        try:
            await client.GetInfo(pb.DrafterGetInfoRequest(protocol_version=1))
            return channel, client
        except aio.AioRpcError:
            await channel.close()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the drafter at {address} did not start") from None
            await asyncio.sleep(0.5)


async def fill(address: str, process: psutil.Process, options: argparse.Namespace) -> dict[str, Any]:
    """Open the sessions; what that took."""
    channel, client = await connected(address)
    source = random.Random(0)
    call = client.Draft()
    usage = 0.0
    answered: set[str] = set()

    async def open_one(name: str, tokens: int) -> None:
        nonlocal usage
        ids = tuple(source.randrange(10, 40000) for _ in range(tokens))
        command = OpenDraft(name, 1, ids, SamplingParams(temperature=0.0), 4, prompt_len=tokens)
        await call.write(pb.DraftRequest(commands=[command_to_proto(command)]))
        while name not in answered:
            response = await asyncio.wait_for(call.read(), ANSWER_S)
            for event in map(event_from_proto, response.events):
                if isinstance(event, DrafterLoad):
                    usage = max(usage, event.kv_usage)
                elif isinstance(event, Proposal | Stale):
                    answered.add(event.session_id)

    await open_one("first", 16)  # what is made once, with the first session
    before = process.memory_info().rss
    for index in range(options.sessions):
        await open_one(str(index), options.tokens)
    await asyncio.sleep(1.0)  # for the next word about the load
    await open_one("last", 16)
    taken = process.memory_info().rss - before
    call.cancel()
    await channel.close()
    return {
        "sessions": options.sessions,
        "tokens": options.tokens,
        "resident_mib": round(before / 2**20, 1),
        "kib_per_session": round(taken / options.sessions / 1024, 1),
        "bytes_per_token": round(taken / options.sessions / options.tokens, 1),
        "pool_in_use": round(usage, 4),
    }


def main() -> int:
    """Measure one drafter after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, help="configuration with the drafters; default: the demo's")
    parser.add_argument("--drafters", type=lambda text: text.split(","), help="default: all of it")
    parser.add_argument("--tokens", type=int, default=1024, help="of each session")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    config = with_ports(load_config(options.config, overrides_for(options.config, ())))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stack.yaml"
        path.write_text(dump_config(config))
        for name in options.drafters or list(config.drafters):
            own = config.drafters[name]
            command = [sys.executable, "-m", "outrider.cli.main", "drafter", name, "--config", str(path)]
            child = subprocess.Popen(command, env=child_env(), stdout=subprocess.DEVNULL)
            try:
                row = asyncio.run(fill(f"{own.host}:{own.port}", psutil.Process(child.pid), options))
            finally:
                child.terminate()
                child.wait(60)
            rows.append({"drafter": name, "method": own.method, **row})
            print(json.dumps(rows[-1]))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"rows": rows, "provenance": provenance()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

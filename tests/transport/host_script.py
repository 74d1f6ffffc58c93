"""A host that is going to be killed: spawns children under a guardian, says who they are, and waits.

Run as a script with one JSON argument: `children` (Python sources), `untold` (spawn without telling the guardian),
`paths` (files for the guardian) and optionally `run_dir` with `sockets` (write a run file).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio

from capdag.transport.guardian import new_run_id, open_guardian
from capdag.transport.process import child_environment, spawn
from capdag.transport.runs import write_run_file
from tests.transport.children import PYTHON, read_line


async def main() -> None:
    order = json.loads(sys.argv[1])
    async with open_guardian(new_run_id()) as guardian:
        if "run_dir" in order:
            write_run_file(Path(order["run_dir"]), guardian, [Path(path) for path in order["sockets"]])
        for path in order.get("paths", ()):
            guardian.add_path(Path(path))
        env = child_environment({}, guardian.run_id)
        told = None if order.get("untold") else guardian
        children = [spawn([*PYTHON, source], env=env, guardian=told) for source in order["children"]]
        lines = [await read_line(child) for child in children]
        grandchildren = [int(line) for line in lines if line.isdigit()]
        pids = [child.pid for child in children]
        print(
            json.dumps({"guardian": guardian.pid, "run_id": guardian.run_id, "left": pids + grandchildren}), flush=True
        )
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)

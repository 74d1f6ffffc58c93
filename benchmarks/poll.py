"""The least a router in Python can do: a poll loop that passes bytes on and parses nothing.

`python -m benchmarks.poll SOCKET_FD CHILDREN WINDOW MAX_CHUNK`: what the socket brings goes to every child.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys


def main() -> None:
    """Pass bytes on until the socket ends."""
    sock, children, *limits = sys.argv[1:]
    commands = [[sys.executable, "-m", "benchmarks.lean", str(number), *limits] for number in range(int(children))]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for command in commands]
    relay = int(sock)
    inputs = [process.stdin.fileno() for process in processes if process.stdin]
    poll = select.poll()
    for fd in (relay, *(process.stdout.fileno() for process in processes if process.stdout)):
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            data = os.read(fd, 65_536)
            if not data:
                for process in processes:
                    process.kill()
                    process.wait()
                return
            for target in inputs if fd == relay else [relay]:
                os.write(target, data)


main()

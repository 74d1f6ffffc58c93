"""Job objects: how Windows ends a process together with everything it has started (contracts: Processes).

Without one, ending a process leaves what it has started: launchers such as `python.exe` of a venv, `cmd /c`, helpers
of engines. The job is killed with its last handle, so that nothing outlives a host that was killed either. The process
is made suspended and runs only once it is in the job: nothing can be started outside of it before.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    import ctypes
    import subprocess
    from collections.abc import Mapping, Sequence
    from ctypes import wintypes
    from os import PathLike
    from typing import IO

    _KILL_ON_JOB_CLOSE = 0x2000
    _EXTENDED_LIMITS = 9  # JobObjectExtendedLimitInformation
    _CREATE_SUSPENDED = 0x4
    _KILLED = 1  # the exit status of what a job ends

    class _BasicLimits(ctypes.Structure):
        _fields_ = [
            ("PerProcessUserTimeLimit", ctypes.c_int64),
            ("PerJobUserTimeLimit", ctypes.c_int64),
            ("LimitFlags", wintypes.DWORD),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", wintypes.DWORD),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", wintypes.DWORD),
            ("SchedulingClass", wintypes.DWORD),
        ]

    class _ExtendedLimits(ctypes.Structure):
        _fields_ = [
            ("BasicLimitInformation", _BasicLimits),
            ("IoInfo", ctypes.c_uint64 * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        ]

    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel.CreateJobObjectW.restype = wintypes.HANDLE
    _kernel.CreateJobObjectW.argtypes = [ctypes.c_void_p, wintypes.LPCWSTR]
    _kernel.SetInformationJobObject.argtypes = [wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD]
    _kernel.AssignProcessToJobObject.argtypes = [wintypes.HANDLE, wintypes.HANDLE]
    _kernel.TerminateJobObject.argtypes = [wintypes.HANDLE, wintypes.UINT]
    _kernel.CloseHandle.argtypes = [wintypes.HANDLE]
    _resume = ctypes.WinDLL("ntdll").NtResumeProcess
    _resume.argtypes = [wintypes.HANDLE]

    class Job:
        """A process and all that it starts. Made by `start_in_job`."""

        def __init__(self) -> None:
            self._handle = _kernel.CreateJobObjectW(None, None)
            _check(self._handle)
            limits = _ExtendedLimits()
            limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
            size = ctypes.sizeof(limits)
            _check(_kernel.SetInformationJobObject(self._handle, _EXTENDED_LIMITS, ctypes.byref(limits), size))

        def _take(self, process: subprocess.Popen[bytes]) -> None:
            handle = int(process._handle)  # type: ignore[attr-defined]
            _check(_kernel.AssignProcessToJobObject(self._handle, handle))
            if _resume(handle) < 0:
                raise OSError("a new process could not be resumed")

        def kill(self) -> None:
            """End all of its processes; a second call is free."""
            if self._handle:
                _kernel.TerminateJobObject(self._handle, _KILLED)

        def close(self) -> None:
            """Give the handle back, which ends what is left, once."""
            handle, self._handle = self._handle, None
            if handle:
                _kernel.CloseHandle(handle)

    def start_in_job(
        command: Sequence[str], *, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes], env: Mapping[str, str],
        cwd: str | PathLike[str] | None,
    ) -> tuple[subprocess.Popen[bytes], Job]:  # fmt: skip
        """Start a process in a job of its own. Raises OSError; nothing of the process is left then."""
        job = Job()
        try:
            process = subprocess.Popen(
                command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd, close_fds=True,
                creationflags=_CREATE_SUSPENDED | subprocess.CREATE_NO_WINDOW,
            )  # fmt: skip
            try:
                job._take(process)
            except OSError:
                process.kill()
                process.wait()
                raise
        except OSError:
            job.close()
            raise
        return process, job

    def _check(done: int) -> None:
        if not done:
            raise ctypes.WinError(ctypes.get_last_error())

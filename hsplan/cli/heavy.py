"""Libraries that take seconds to import and can be missing or broken: loaded here, with their faults as our errors."""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Iterator

from hsplan.errors import CannotRunError, Problem, shown

# Something that each library has; what lacks it is not that library.
PROBES = {"torch": "Tensor", "triton": "jit", "numpy": "ndarray"}


def load(*names: str, extra: str) -> None:
    """Import the libraries of an extra; raises CannotRunError with the reason when one cannot be used."""
    with interrupts_held():
        for name in names:
            reason = _fault_of(name)
            if reason:
                what = f"{name} cannot be imported: {shown(reason)}"
                raise CannotRunError(Problem(what=what, remedy=f'pip install "hsplan[{extra}]"'))


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Raise a Ctrl-C at the end: inside a library that is being imported it is swallowed, or breaks the library."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _fault_of(name: str) -> str:
    """Why the library cannot be used; empty when it can."""
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a broken installation can raise anything
        return f"{type(error).__name__}: {error}"
    return "" if hasattr(module, PROBES[name]) else f"it has no {PROBES[name]}"

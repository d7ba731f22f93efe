"""Calls in another process, as far as the tests of NVML do not show them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from perfgate.machine.forked import Forked, NoAnswerError


class Crashing:
    """Its process ends in a call, as a driver's library may have it."""

    def crash(self) -> None:
        """Never return."""
        os._exit(1)

    def pid(self) -> int:
        """Where it is."""
        return os.getpid()


@pytest.fixture
def there() -> Iterator[Forked]:
    """An object in a process of its own."""
    forked = Forked(Crashing())
    yield forked
    forked.close()


def test_a_call_that_ends_the_process(there: Forked) -> None:
    """It is said so at once, by this call and later ones, and not that the time is over."""
    assert there.call("pid", (), {}, 10.0) != os.getpid()

    for _ in range(2):
        with pytest.raises(NoAnswerError, match="crash ended its process"):
            there.call("crash", (), {}, 10.0)

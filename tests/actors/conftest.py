"""What every test of actors begins with."""

import threading

import pytest

from actors import random_graphs


@pytest.fixture(autouse=True)
def _threads_of_others() -> None:
    """Threads that other tests in this process have left are not the test's own."""
    random_graphs.OTHERS.clear()
    random_graphs.OTHERS.update(threading.enumerate())

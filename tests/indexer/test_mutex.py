"""Tests of the lock of Python and of compiled code: mutual exclusion, and no endless wait."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import njit

from indexer.jit.mutex import Mutex
from indexer.jit.mutex_kernels import ALREADY_LOCKED, keep_mutex, lock_mutex, unlock_mutex

DEADLINE_S = 60.0


@njit(nogil=True)
def add_waiting(address: int, counter: Any, times: int) -> None:
    """Increment the counter `times` times without the interpreter lock."""
    for _ in range(times):
        thread = lock_mutex(address)
        seen = counter[0]
        counter[1] = (seen * 7919) % 104729
        counter[0] = seen + 1
        unlock_mutex(address, thread)


@njit
def add_entering(address: int, counter: Any, times: int) -> int:
    """Increment the counter with the interpreter lock, and return the number of waits."""
    waited = 0
    for _ in range(times):
        thread = lock_mutex(address)
        counter[0] += 1
        unlock_mutex(address, thread)
        waited += thread not in (0, ALREADY_LOCKED)
    return waited


@njit
def add_and_stay(address: int, counter: Any) -> None:
    """Increment the counter, and leave the mutex to the caller."""
    thread = lock_mutex(address)
    counter[0] += 1
    keep_mutex(thread)


def warm_up(counter: Any) -> None:
    """Compile all kernels of these tests."""
    mutex = Mutex()
    add_waiting(mutex.address, counter, 0)
    add_entering(mutex.address, counter, 0)
    add_and_stay(mutex.address, counter)
    mutex.release()
    counter[:] = 0


def in_threads(*works: Callable[[], None]) -> None:
    """Run functions in threads; each must end without an exception."""
    done: list[int] = []

    def run(number: int, work: Callable[[], None]) -> None:
        work()
        done.append(number)

    threads = [
        threading.Thread(target=run, args=(number, work), daemon=True)
        for number, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(done) == list(range(len(works)))


def test_threads_of_python_and_of_kernels_count_behind_it() -> None:
    mutex, counter = Mutex(), np.zeros(2, np.int64)
    times = 20_000
    warm_up(counter)

    def in_bytecode() -> None:
        for _ in range(times):
            with mutex:
                counter[0] += 1

    def in_kernels() -> None:
        for _ in range(10):
            add_waiting(mutex.address, counter, 10 * times)

    def in_short_kernels() -> None:
        for _ in range(times):
            add_waiting(mutex.address, counter, 1)

    def entering() -> None:
        for _ in range(times):
            add_entering(mutex.address, counter, 1)

    def staying() -> None:
        for _ in range(times):
            add_and_stay(mutex.address, counter)
            counter[0] += 1
            mutex.release()

    in_threads(in_bytecode, in_kernels, in_short_kernels, entering, entering, staying)
    assert counter[0] == (1 + 100 + 1 + 2 + 2) * times


def test_a_kernel_that_must_wait_lets_the_interpreter_go() -> None:
    """The holder needs the interpreter lock before its release of the mutex."""
    mutex, counter = Mutex(), np.zeros(2, np.int64)
    warm_up(counter)
    is_held, waited = threading.Event(), []

    def hold() -> None:
        with mutex:
            is_held.set()
            while not counter[1]:  # set by a thread that runs while the others wait
                pass

    def enter_meanwhile() -> None:
        assert is_held.wait(DEADLINE_S)
        waited.append(add_entering(mutex.address, counter, 1))

    def let_go() -> None:
        assert is_held.wait(DEADLINE_S)
        counter[1] = 1

    in_threads(hold, enter_meanwhile, enter_meanwhile, let_go)
    assert counter[0] == 2
    assert len(waited) == 2


def test_a_kernel_may_enter_a_mutex_of_its_caller() -> None:
    mutex, counter = Mutex(), np.zeros(2, np.int64)
    with mutex:
        assert add_entering(mutex.address, counter, 3) == 0
        add_and_stay(mutex.address, counter)
    assert counter[0] == 4


def test_waiting_leaves_the_interpreter_to_the_holder() -> None:
    """The same holds for kernels without the interpreter lock, and for Python."""
    mutex, counter = Mutex(), np.zeros(2, np.int64)
    warm_up(counter)
    is_held, waits = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:
            is_held.set()
            assert waits.wait(DEADLINE_S)
            for _ in range(10_000):
                counter[0] += 1

    def wait_in_kernel() -> None:
        assert is_held.wait(DEADLINE_S)
        waits.set()
        add_waiting(mutex.address, counter, 1)

    def wait_in_python() -> None:
        assert is_held.wait(DEADLINE_S)
        with mutex:
            counter[0] += 1

    in_threads(hold, wait_in_kernel, wait_in_python)
    assert counter[0] == 10_002


def test_an_exception_gives_it_back() -> None:
    mutex = Mutex()
    with pytest.raises(ZeroDivisionError), mutex:
        raise ZeroDivisionError
    with mutex:
        pass


def test_taking_it_twice_is_an_error_and_no_standstill() -> None:
    mutex = Mutex()
    with mutex, pytest.raises(RuntimeError, match="holds the mutex already"), mutex:
        pytest.fail("it was taken twice")
    with mutex:
        pass


def test_only_the_holder_releases_the_mutex() -> None:
    mutex = Mutex()
    with pytest.raises(RuntimeError, match="does not hold the mutex"):
        mutex.__exit__(None, None, None)
    refused: list[bool] = []

    def give_back() -> None:
        try:
            mutex.__exit__(None, None, None)
        except RuntimeError:
            refused.append(True)

    with mutex:
        in_threads(give_back)
    assert refused


def test_without_an_address_there_is_no_lock() -> None:
    counter = np.zeros(2, np.int64)
    assert add_entering(0, counter, 2) == 0
    add_waiting(0, counter, 2)
    add_and_stay(0, counter)
    assert counter[0] == 5


def test_mutexes_are_independent() -> None:
    first, second = Mutex(), Mutex()
    assert first.address != second.address
    with first, second:
        pass

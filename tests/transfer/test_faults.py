"""Tests faults of the CUDA driver: no driver, no device, an old driver, no memory, a failing launch, a
lost context.

A process searches for its driver only once, and a lost context remains lost. So each case runs in a
separate process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.transfer.fake_cuda.driver import FakeCuda

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = '''
import ctypes
import os
import kvpool
from kvpool import errors
from kvpool.transfer import BlockStore, PlanExecutor, TransferEngine, cuda_driver_version
from tests.transfer.fake_cuda.driver import Driver, FakeCuda

def raises(error, call):
    try:
        call()
    except error as caught:
        return caught
    raise AssertionError(f"no {error.__name__}")

def zeros(size):
    # Not numpy's: a process would take longer to import that than for all else.
    return (ctypes.c_uint8 * size)()

def plain(blocks=8):
    memory = zeros(512 * blocks)
    memory[:] = os.urandom(512 * blocks)
    return BlockStore.from_regions([(ctypes.addressof(memory), 512, 512)], blocks, keep_alive=memory)

def stores(blocks=8):
    cpu = plain(blocks)
    device = BlockStore.from_regions(cpu.regions, blocks, device="cuda:0", keep_alive=cpu)
    return cpu, device, BlockStore.host(blocks, like=device)

def calls():
    """The driver's own calls, with the device's context current; some engine has started the driver."""
    driver = Driver(os.environ["KVPOOL_LIBCUDA"])
    context = driver.get_value(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", 0)
    assert driver.call("cuCtxSetCurrent", context) == 0
    return driver

PAIRS = [(i, 7 - i) for i in range(6)]
'''


def run(script: str, fake: FakeCuda, /, **settings: int) -> None:
    run_with(str(fake.path), script, **settings)


def run_with(library: str, script: str, **settings: int) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}{os.pathsep}{ROOT}"}
    environment |= {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()}
    environment["KVPOOL_LIBCUDA"] = library
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(script)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


NO_CUDA = """
error = raises(errors.CudaUnavailableError, lambda: TransferEngine("cuda"))
assert isinstance(error, RuntimeError) and EXPECTED in str(error), error
assert str(raises(errors.CudaUnavailableError, cuda_driver_version)) == str(error)
raises(errors.CudaUnavailableError, lambda: BlockStore.from_regions([(4096, 8, 8)], 2, device="cuda:0"))
# All that needs no device works.
a, b = plain(), plain()
with TransferEngine() as engine:
    engine.submit(a, b, [(2, 0)]).wait()
assert a.read_block(2) == b.read_block(0)
"""


@pytest.mark.parametrize(
    ("library", "expected", "settings"),
    [
        ("", "CUDA_ERROR_NO_DEVICE", {"no_device": 1}),
        ("", "CUDA_ERROR_UNKNOWN", {"fail_init": 999}),
        ("", "version 11.8", {"driver_version": 11080}),
        ("/nowhere/libcuda.so.1", "/nowhere/libcuda.so.1", {}),
        ("libm.so.6", "lacks cuInit", {}),
    ],
    ids=["no device", "no start", "too old", "no driver", "no driver's library"],
)
def test_a_driver_that_is_of_no_use(
    library: str, expected: str, settings: dict[str, int], fake_library: FakeCuda
) -> None:
    run_with(library or str(fake_library.path), f"EXPECTED = {expected!r}" + NO_CUDA, **settings)


def test_no_such_device(fake_library: FakeCuda) -> None:
    script = """
    error = raises(errors.CudaUnavailableError, lambda: TransferEngine("cuda:3"))
    assert "there is no cuda:3" in str(error), error
    TransferEngine("cuda:0").close()
    """
    run(script, fake_library)


def test_kernels_that_the_device_cannot_run(fake_library: FakeCuda) -> None:
    script = """
    error = raises(errors.CudaError, lambda: TransferEngine("cuda:0"))
    assert (error.code, error.call) == (209, "cuLibraryLoadData"), error
    """
    run(script, fake_library, fail_library=209)


def test_a_driver_without_batched_copies(fake_library: FakeCuda) -> None:
    script = """
    cpu, device, host = stores()
    engine = TransferEngine("cuda:0")
    error = raises(errors.InvalidArgumentError, lambda: \
engine.submit(device, host, PAIRS, after=None, method="batch"))
    assert "older than 12.8" in str(error), error
    for method in ("auto", "kernel", "staged", "memcpy"):
        engine.submit(device, host, PAIRS, after=None, method=method).wait()
        assert all(host.read_block(dst) == cpu.read_block(src) for src, dst in PAIRS)
        engine.submit(host, device, [(dst, src) for src, dst in PAIRS], after=None, method=method).wait()
    """
    run(script, fake_library, has_batch=0)


@pytest.mark.parametrize("setting", ["host_alias", "coherent"])
def test_other_kinds_of_host_memory(setting: str, fake_library: FakeCuda) -> None:
    """Two other kinds of host memory: registered memory with a different address on the device
    (sglang#40232), and memory on a coherent link.
    """
    script = f"""
    cpu, device, host = stores()
    engine = TransferEngine("cuda:0")
    for method in ("auto", "kernel", "batch", "staged", "memcpy"):
        out = engine.submit(device, host, PAIRS, after=None, method=method)
        out.wait()
        assert all(host.read_block(dst) == cpu.read_block(src) for src, dst in PAIRS), method
        back = engine.submit(host, device, [(dst, src) for src, dst in PAIRS], after=None, method=method)
        back.wait()
        if method == "auto" and {setting!r} == "coherent":
            assert out.method == back.method == "kernel"
    pageable = BlockStore.host(8, like=device, pinned=False)
    engine.submit(device, pageable, PAIRS, after=None).wait()
    assert all(pageable.read_block(dst) == cpu.read_block(src) for src, dst in PAIRS)
    fake = FakeCuda(os.environ["KVPOOL_LIBCUDA"])
    assert fake.count("violations") == 0, fake.violation
    """
    run(script, fake_library, **{setting: 1})


def test_one_registration_where_addresses_differ(fake_library: FakeCuda) -> None:
    script = """
    cpu, device, host = stores(64)
    pool = BlockStore.host(64, like=device, registration_limit=8192)
    assert not pool.pinned and "one registration" in pool.why_pageable, pool.why_pageable
    """
    run(script, fake_library, host_alias=1)


@pytest.mark.parametrize("code", [1, 2, 801])
def test_memory_that_cannot_be_pinned(code: int, fake_library: FakeCuda) -> None:
    script = f"""
    cpu, device, host = stores()
    assert not host.pinned and "cuMemHostRegister" in host.why_pageable, host.why_pageable
    error = raises(errors.PinningError, lambda: BlockStore.host(8, like=device, pinned=True))
    assert isinstance(error, MemoryError) and "({code})" in str(error), error
    engine = TransferEngine("cuda:0")
    error = raises(errors.InvalidArgumentError, lambda: \
engine.submit(device, host, PAIRS, after=None, method="kernel"))
    assert "not pinned" in str(error), error
    engine.submit(device, host, PAIRS, after=None).wait()
    assert all(host.read_block(dst) == cpu.read_block(src) for src, dst in PAIRS)
    """
    run(script, fake_library, fail_register=code)


def test_out_of_memory_refuses_and_passes(fake_library: FakeCuda) -> None:
    """Each allocation fails in turn. Afterwards no work is running, nothing has changed, and the next
    call succeeds.
    """
    script = """
    fake = FakeCuda(os.environ["KVPOOL_LIBCUDA"])
    for pinned in (True, False):
        for nth in range(1, 30):
            engine = TransferEngine("cuda:0")
            cpu, device, _ = stores()
            host = BlockStore.host(8, like=device, pinned=pinned)
            before = [host.read_block(i) for i in range(8)]
            fake.set(fail_alloc=nth)
            failed = False
            try:
                engine.submit(device, host, PAIRS, after=None, method="staged").wait()
            except errors.CudaError as error:
                assert (error.code, error.name) == (2, "CUDA_ERROR_OUT_OF_MEMORY"), error
                failed = True
                assert [host.read_block(i) for i in range(8)] == before
            fake.set(fail_alloc=0)
            assert engine.in_flight == 0
            engine.submit(device, host, PAIRS, after=None, method="staged").wait()
            assert all(host.read_block(dst) == cpu.read_block(src) for src, dst in PAIRS)
            engine.close()
            if not failed:
                break
        assert nth > 2
    assert fake.count("violations") == 0, fake.violation
    """
    run(script, fake_library)


LOST = """
error = raises(errors.CudaError, lambda: engine.submit(device, host, PAIRS, after=None, method="memcpy"))
assert "takes no more work since an earlier failure" in str(error) and error.code == CODE, error
raises(errors.CudaError, lambda: engine.copy(device, device, [(1, 2)], stream=None))
engine.close()
# The CPU engine still works.
other = plain()
with TransferEngine() as twin:
    twin.submit(cpu, other, [(1, 1)]).wait()
assert other.read_block(1) == cpu.read_block(1)
"""


def test_a_launch_that_fails(fake_library: FakeCuda) -> None:
    script = """
    CODE = 719
    cpu, device, host = stores()
    engine = TransferEngine("cuda:0")
    FakeCuda(os.environ["KVPOOL_LIBCUDA"]).set(fail_launch=1)
    error = raises(errors.CudaError, lambda: engine.submit(device, host, PAIRS, after=None, method="kernel"))
    assert (error.code, error.name, error.call) == (719, "CUDA_ERROR_LAUNCH_FAILED", "cuLaunchKernel"), error
    """
    run(textwrap.dedent(script) + LOST, fake_library)


@pytest.mark.parametrize("method", ["kernel", "batch", "staged", "memcpy"])
def test_work_that_fails_when_it_is_executed(method: str, fake_library: FakeCuda) -> None:
    script = f"""
    CODE = 700
    cpu, device, host = stores()
    engine = TransferEngine("cuda:0")
    engine.submit(device, host, PAIRS, after=None, method={method!r}).wait()  # tables and buffers are there
    fake = FakeCuda(os.environ["KVPOOL_LIBCUDA"])
    fake.set(lazy=1, fail_execution=1, fail_execution_code=700)
    transfer = engine.submit(device, host, PAIRS, after=None, method={method!r})
    fake.run_all()
    assert [one.id for one in engine.poll()] == [transfer.id]
    assert transfer.done() and transfer.seconds is None
    assert isinstance(transfer.error, errors.CudaError) and transfer.error.code == 700, transfer.error
    error = raises(errors.CudaError, lambda: transfer.wait())
    """
    run(textwrap.dedent(script) + LOST, fake_library)


def test_a_pageable_copy_that_fails(fake_library: FakeCuda) -> None:
    script = """
    CODE = 700
    cpu, device, _ = stores()
    host = BlockStore.host(8, like=device, pinned=False)
    engine = TransferEngine("cuda:0", staging_bytes=4096)
    engine.submit(device, host, PAIRS, after=None).wait()
    fake = FakeCuda(os.environ["KVPOOL_LIBCUDA"])
    fake.set(fail_execution=2, fail_execution_code=700)
    transfer = engine.submit(device, host, PAIRS, after=None)
    assert raises(errors.CudaError, lambda: transfer.wait()).code == 700
    assert transfer.error.code == 700
    """
    run(textwrap.dedent(script) + LOST, fake_library)


@pytest.mark.parametrize("setting", ["fail_launch", "fail_memcpy", "fail_execution"])
def test_a_swap_with_failed_copies_is_aborted(setting: str, fake_library: FakeCuda) -> None:
    """The request continues as if no swap had begun. No block leaks, and none is freed twice."""
    script = f"""
    cpu, device, host = stores()
    engine = TransferEngine("cuda:0")
    manager = kvpool.CacheManager(num_blocks=8, block_size=4, host_blocks=8)
    executor = PlanExecutor(manager, engine, [device, host])
    manager.admit("a", range(12))
    blocks = manager.block_ids("a")
    FakeCuda(os.environ["KVPOOL_LIBCUDA"]).set({setting}=1)
    executor.run([manager.swaps.begin_out(["a"])], stream=None)
    (finished,) = executor.wait()
    assert isinstance(finished.error, errors.CudaError) and finished.blocks == {{}}, finished
    assert executor.in_flight == 0
    assert manager.block_ids("a") == blocks
    manager.diagnose.check_invariants()
    manager.release("a")
    manager.diagnose.check_invariants()
    """
    # With a coherent link, the engine uses kernels. If the driver has no batched copies, it makes one
    # call per piece.
    run(script, fake_library, **({"coherent": 1} if setting == "fail_launch" else {"has_batch": 0}))


def test_a_copy_on_write_that_fails_is_raised(fake_library: FakeCuda) -> None:
    """The step must not run, because its blocks do not have the expected content."""
    script = """
    cpu, device, host = stores()
    engine = TransferEngine("cuda:0")
    manager = kvpool.CacheManager(num_blocks=8, block_size=4, host_blocks=8)
    executor = PlanExecutor(manager, engine, [device, host])
    manager.admit("a", range(6))
    manager.commit("a", 6)
    manager.fork("a", "b")
    manager.append(["a"], [7])
    FakeCuda(os.environ["KVPOOL_LIBCUDA"]).set(fail_launch=1)
    swap = manager.swaps.begin_out(["b"])
    error = raises(errors.CudaError, lambda: executor.run([swap], stream=None))
    (finished,) = executor.poll()
    assert finished.swap == swap and finished.error is not None
    manager.diagnose.check_invariants()
    """
    run(script, fake_library)

"""Tests of defects that a review has found. Each test failed before the defect was repaired."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from tests.transfer.test_faults import PRELUDE
from tests.transfer.test_faults import run as run_script

if TYPE_CHECKING:
    from pathlib import Path

    from tests.transfer.fake_cuda.driver import FakeCuda


def run_here(script: str, fake: FakeCuda) -> None:
    """Runs a script in this process, and resets the settings that it has changed. Afterwards the driver
    must still work.
    """
    try:
        exec(compile(PRELUDE + textwrap.dedent(script), "<script>", "exec"), {})
    finally:
        fake.set(lazy=0, event_queries=0, fail_event=0, fail_memcpy=0, fail_memcpy_code=700)


@pytest.mark.parametrize("code", [711, 712, 713])
def test_a_refused_registration_does_not_lose_the_device(code: int, fake_library: FakeCuda) -> None:
    """Errors 712 (already registered) and 713 (not registered) only concern the call. The context
    remains usable.
    """
    script = """
    cpu, device, host = stores()
    assert not host.pinned
    engine = TransferEngine("cuda:0")
    engine.submit(device, host, PAIRS, after=None).wait()
    assert all(host.read_block(dst) == cpu.read_block(src) for src, dst in PAIRS)
    """
    run_script(script, fake_library, fail_register=code)


DESTRUCTOR = """
import threading, time, gc, faulthandler
faulthandler.dump_traceback_later(300, exit=True)
engine = TransferEngine("cuda:0")
fake = FakeCuda(os.environ["KVPOOL_LIBCUDA"])
like = stores()[1]
host = BlockStore.host(8, like=like)
class Owner:
    def __init__(self, memory): self.memory = memory
    def __del__(self):
        ACTION
memory = zeros(512 * 8)
owner = Owner(memory)
device = BlockStore.from_regions([(ctypes.addressof(memory), 512, 512)], 8, device="cuda:0", keep_alive=owner)
del owner
fake.set(lazy=1)
transfer = engine.submit(device, host, PAIRS, after=None)
del device
fake.run_all()
fake.set(lazy=0)
"""


LOOKS = ["transfer.done()", "engine.in_flight", "transfer.seconds", "transfer.error", "repr(transfer)"]


@pytest.mark.parametrize("look", LOOKS)
def test_an_owner_whose_end_asks_the_transfer(look: str, fake_library: FakeCuda) -> None:
    """When a store is freed, it drops the object that it has kept alive. The destructor of this object
    asks the transfer, whose lock is held at that time.
    """
    run_script(DESTRUCTOR.replace("ACTION", "transfer.done()") + look + "\n", fake_library)


def test_an_owner_whose_end_lets_other_threads_run(fake_library: FakeCuda) -> None:
    """One thread must not hold the transfer's lock and wait for the interpreter, while another one
    holds the interpreter and waits for the lock.
    """
    script = """
began, looked = threading.Event(), threading.Event()
def look():
    began.wait()
    transfer.done()
    looked.set()
thread = threading.Thread(target=look)
thread.start()
transfer.done()
thread.join()
"""
    run_script(DESTRUCTOR.replace("ACTION", "began.set(); looked.wait()") + script, fake_library)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_store_that_needs_too_much_staging_leaves_the_engine_usable(pinned: bool, fake: FakeCuda) -> None:
    script = f"""
    cpu, device, host = stores()
    engine = TransferEngine("cuda:0")
    one = zeros(512)
    wide = BlockStore.from_regions([(ctypes.addressof(one), 1 << 40, 512)], 1, \
pinned={pinned}, keep_alive=one)
    try:
        engine.submit(device, wide, [(0, 0)], after=None, method="staged").wait()
    except kvpool.errors.CudaError as error:
        assert error.code == 2
    engine.submit(device, host, PAIRS, after=None, method="staged").wait()
    assert all(host.read_block(dst) == cpu.read_block(src) for src, dst in PAIRS)
    """
    run_here(script, fake)


def test_a_pageable_copy_that_fails_halfway_holds_its_stores(fake: FakeCuda) -> None:
    script = """
    import gc
    engine = TransferEngine("cuda:0", staging_bytes=4096)
    fake = FakeCuda(os.environ["KVPOOL_LIBCUDA"])
    cpu, device, _ = stores()
    host = BlockStore.host(8, like=device, pinned=False)
    engine.submit(device, host, PAIRS, after=None).wait()
    base = device.regions[0][0]
    fake.watch(base, 8 * 512)
    fake.set(lazy=1, fail_memcpy=1, fail_memcpy_code=1)
    transfer = engine.submit(device, host, PAIRS, after=None)
    error = raises(kvpool.errors.CudaError, lambda: transfer.wait())
    assert error.code == 1, error
    assert fake.count("queued") == 0, fake.count("queued")
    del cpu, device
    fake.unwatch(base)
    assert fake.count("violations") == 0, fake.violation
    """
    run_here(script, fake)


def test_after_a_transfer_that_failed(fake: FakeCuda) -> None:
    """If a copy waits for a copy that fails, it fails, too. Otherwise it would read data that was never
    written.
    """
    script = """
    engine = TransferEngine("cuda:0", staging_bytes=4096)
    fake = FakeCuda(os.environ["KVPOOL_LIBCUDA"])
    cpu, device, pinned = stores()
    host = BlockStore.host(8, like=device, pinned=False)
    engine.submit(device, host, [(0, 0)], after=None).wait()
    fake.set(fail_memcpy=1, fail_memcpy_code=1)
    first = engine.submit(device, host, PAIRS, after=None)
    raises(kvpool.errors.CudaError, lambda: first.wait())
    before = cpu.read_block(7)
    def follow():
        engine.submit(host, device, [(7, 7)], after=first).wait()
    raises(kvpool.errors.CudaError, follow)
    assert cpu.read_block(7) == before
    """
    run_here(script, fake)


def test_a_copy_on_the_cpu_waits_for_the_event_as_it_is_now(fake: FakeCuda) -> None:
    script = """
    engine = TransferEngine("cuda:0")
    driver = calls()
    a, b = plain(20000), plain(20000)
    class Event:
        cuda_event = driver.event()
    busy = [engine.submit(a, b, [(i, i) for i in range(20000)], after=None) for _ in range(5)]
    stream = driver.stream()
    assert driver.call("cuEventRecord", Event.cuda_event, stream) == 0
    transfer = engine.submit(a, b, [(1, 2)], after=Event)
    assert driver.call("cuEventDestroy_v2", Event.cuda_event) == 0
    transfer.wait()
    """
    run_here(script, fake)


@pytest.mark.parametrize("what", ["copy", "submit"])
def test_host_copies_and_captures(what: str, fake: FakeCuda) -> None:
    script = f"""
    engine = TransferEngine("cuda:0")
    driver = calls()
    a, b = plain(), plain()
    stream = driver.stream()
    assert driver.call("cuStreamBeginCapture_v2", stream, 2) == 0
    if {what!r} == "copy":
        raises(kvpool.errors.CaptureError, lambda: engine.copy(a, b, [(1, 2)], stream=stream))
    else:
        raises(kvpool.errors.CaptureError, lambda: engine.submit(a, b, [(1, 2)], after=stream).wait())
    driver.end_capture(stream)
    """
    run_here(script, fake)


def test_after_an_event_of_a_capture(fake: FakeCuda) -> None:
    """The event belongs to a capture. The engine's stream must not become a part of this capture."""
    script = """
    engine = TransferEngine("cuda:0")
    driver = calls()
    cpu, device, host = stores()
    class Event:
        cuda_event = driver.event()
    stream = driver.stream()
    assert driver.call("cuStreamBeginCapture_v2", stream, 2) == 0
    assert driver.call("cuEventRecord", Event.cuda_event, stream) == 0
    raises(kvpool.KvpoolError, lambda: engine.submit(device, host, PAIRS, after=Event, method="kernel"))
    engine.submit(device, host, PAIRS, after=None, method="kernel").wait(300)
    result, graph = driver.end_capture(stream)
    assert (result, bool(graph)) == (0, True), result
    """
    run_here(script, fake)


def test_wait_on_a_stream_that_is_captured(fake: FakeCuda) -> None:
    script = """
    engine = TransferEngine("cuda:0")
    driver = calls()
    cpu, device, host = stores()
    stream = driver.stream()
    driver.set(lazy=1)
    transfer = engine.submit(device, host, PAIRS, after=None, method="kernel")
    assert driver.call("cuStreamBeginCapture_v2", stream, 2) == 0
    raises(kvpool.errors.CaptureError, lambda: transfer.wait_on(stream))
    result, graph = driver.end_capture(stream)
    assert (result, bool(graph)) == (0, True), result
    """
    run_here(script, fake)


def test_a_swap_of_a_later_round_reads_what_copy_on_write_read(fake: FakeCuda) -> None:
    script = """
    engine = TransferEngine("cuda:0")
    driver = calls()
    cpu, device, host = stores()
    before = cpu.read_block(1)
    stream = driver.stream()
    plan = kvpool.TransferPlan([((0, 1), (0, 2)), ((1, 4), (0, 5)), ((0, 1), (1, 4))])
    driver.set(lazy=1)
    transfers = engine.execute(plan, [device, host], stream=stream)
    # The step that follows writes block 1, which copy-on-write has left.
    assert driver.call("cuMemsetD8Async", device.regions[0][0] + 512, 7, 512, stream) == 0
    assert driver.call("cuStreamSynchronize", stream) == 0
    driver.run_all()
    for transfer in transfers:
        transfer.wait()
    assert host.read_block(4) == before
    """
    run_here(script, fake)


def test_a_calibration_without_thread_blocks(tmp_path: Path, fake: FakeCuda) -> None:
    script = f"""
    import json, pathlib
    path = pathlib.Path({str(tmp_path / "c.json")!r})
    name, pci, version = TransferEngine("cuda:0").card
    rows = [{{"descriptors": 0, "bytes": 4096}}]
    def load(ctas):
        thresholds = {{"to_device": rows, "to_host": rows, "link_ctas": ctas}}
        card = {{"name": name, "pci": pci, "driver": version}}
        one = {{"card": card, "thresholds": thresholds, "measurements": []}}
        path.write_text(json.dumps({{f"{{name}} at {{pci}}, driver {{version}}": one}}))
        return TransferEngine("cuda:0", calibration=path)
    for wrong in (0, 65_536, 1 << 31):
        error = raises(errors.InvalidArgumentError, lambda: load(wrong))
        assert f"link_ctas is {{wrong}}: it is 1 to 65535" in str(error), error
    for right in (1, 65_535):
        cpu, device, host = stores()
        load(right).submit(device, host, PAIRS, after=None, method="kernel").wait()
        assert all(host.read_block(dst) == cpu.read_block(src) for src, dst in PAIRS)
    """
    run_here(script, fake)


def test_a_calibration_that_fails_changes_nothing(tmp_path: Path, fake_library: FakeCuda) -> None:
    """The calibration fills the memory of a small device, so an allocation fails. Afterwards the engine
    is as before.
    """
    path = tmp_path / "c.json"
    script = f"""
    engine = TransferEngine("cuda:0", staging_bytes=1 << 20)
    fake = FakeCuda(os.environ["KVPOOL_LIBCUDA"])
    cpu, device, host = stores(32)
    pairs = [(i, 31 - i) for i in range(24)]  # small, and too many for the copy engine: thresholds decide
    def method():
        transfer = engine.submit(device, host, pairs, after=None)
        transfer.wait()
        assert all(host.read_block(dst) == cpu.read_block(src) for src, dst in pairs)
        return transfer.method
    before, left = method(), []
    assert before != "batch"
    for _ in range(2):
        error = raises(kvpool.errors.CudaError, lambda: engine.calibrate(save={str(path)!r}))
        assert error.code == 2, error
        assert fake.count("launches") > 50, "nothing was measured"
        assert method() == before
        left.append(fake.count("live_allocs"))
    assert left[0] == left[1]
    """
    run_script(script, fake_library, total_memory=16 << 20)
    assert not path.exists()


@pytest.mark.slow
def test_a_calibration_is_loaded_as_it_was_saved(tmp_path: Path, fake_library: FakeCuda) -> None:
    """The calibration of an engine copies 9 GB. That takes some seconds on a GPU, and longer without one."""
    script = f"""
    import json
    path = {str(tmp_path / "c.json")!r}
    result = TransferEngine("cuda:0").calibrate(save=path)
    assert list(json.load(open(path)).values()) == [result]
    thresholds = result["thresholds"]
    assert thresholds["link_ctas"] in {{one["ctas"] for one in result["measurements"]}}
    assert [[row["descriptors"] for row in thresholds[to]] for to in ("to_device", "to_host")] \
== 2 * [[0, 1024]]
    assert len(result["measurements"]) == 4 + 2 * 7 * 4
    cpu, device, host = stores()
    TransferEngine("cuda:0", calibration=path).submit(device, host, PAIRS, after=None).wait()
    assert all(host.read_block(dst) == cpu.read_block(src) for src, dst in PAIRS)
    """
    run_script(script, fake_library)


def test_a_mapping_on_another_device(fake_library: FakeCuda) -> None:
    script = """
    import sys, types
    sys.modules["torch"] = None  # seconds to import: a tensor of somebody else's will do
    engine = TransferEngine("cuda:0")
    driver = calls()
    cpu, device, host = stores()
    class Mapping:
        dtype, shape, device, is_cpu = "int64", (1, 2), types.SimpleNamespace(type="cuda", index=1), False
        address = driver.alloc(64)
        def data_ptr(self): return self.address
        def stride(self): return (2, 1)
    error = raises(errors.LayoutMismatchError, lambda: engine.copy(device, device, Mapping(), stream=None))
    assert "cuda:1" in str(error), error
    """
    run_script(script, fake_library)


def test_pinned_state_is_part_of_the_geometry(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from kvpool.transfer import ops

    class Host:
        """A host tensor that is registered later (cudaHostRegister), or is unregistered later."""

        pinned = True
        is_cpu, dtype, device, shape = True, torch.uint8, torch.device("cpu"), torch.Size([4, 64])
        memory = torch.zeros(4, 64, dtype=torch.uint8)

        def data_ptr(self) -> int:
            return self.memory.data_ptr()

        def stride(self) -> tuple[int, int]:
            return (64, 1)

        def element_size(self) -> int:
            return 1

        def is_pinned(self) -> bool:
            return self.pinned

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    one: Any = Host()
    assert ops._store_of(ops._Tensors([one]), 0).pinned
    one.pinned = False
    assert not ops._store_of(ops._Tensors([one]), 0).pinned


def test_host_copies_of_a_device_engine_let_other_threads_run(fake: FakeCuda) -> None:
    """A copy between host stores waits for running transfers. Meanwhile another Python thread must be
    able to run.
    """
    script = """
    import threading
    engine, twin = TransferEngine("cuda:0"), TransferEngine(threads=1)
    size = 1 << 20
    big = [zeros(size * 64) for _ in range(2)]
    bigs = [BlockStore.from_regions([(ctypes.addressof(one), size, size)], 64, keep_alive=one) for one in big]
    a, b = plain(), plain()
    count, stop = 0, False
    def counts():
        global count
        while not stop:
            count += 1
    thread = threading.Thread(target=counts)
    thread.start()
    waited = False
    while not waited:
        for _ in range(20):
            last = twin.submit(*bigs, [(i, i) for i in range(64)])
        engine.submit(a, b, [(0, 0)], after=last)
        waited = not last.done()
        before = count
        engine.copy(a, b, [(1, 1)], stream=None)
        after = count
    stop = True
    thread.join()
    assert after > before
    """
    run_here(script, fake)


def test_unordered_copies_and_another_store_over_a_pool(fake: FakeCuda) -> None:
    script = """
    engine = TransferEngine("cuda:0")
    driver = calls()
    cpu, device, host = stores()
    alias = BlockStore.from_regions(host.regions, 8, pinned=True, keep_alive=host)
    stream = driver.stream()
    expected = cpu.read_block(1)
    driver.set(lazy=1)
    engine.copy(device, alias, [(1, 3)], stream=stream)
    engine.submit(host, device, [(3, 6)], after=stream, method="batch")
    driver.run_all()
    assert cpu.read_block(6) == expected
    assert driver.count("violations") == 0, driver.violation
    """
    run_here(script, fake)


def test_an_event_that_was_never_recorded(fake: FakeCuda) -> None:
    """torch makes the handle of an event when the event is recorded first. If an event was never
    recorded, torch's own waits for it do nothing.
    """
    script = """
    cpu, device, host = stores()
    engine = TransferEngine("cuda:0")
    class Event:
        cuda_event = 0
    engine.submit(device, host, PAIRS, after=Event).wait()
    """
    run_here(script, fake)


def test_blocks_far_apart_are_staged_without_what_lies_between(fake: FakeCuda) -> None:
    """If a store has one layer of a cross-layer tensor in pageable memory, only the bytes of this layer
    are copied between host and device.
    """
    script = """
    memory = zeros(8 * 65536)
    wide = BlockStore.from_regions([(ctypes.addressof(memory), 65536, 512)], 8, keep_alive=memory)
    cpu, device, _ = stores()
    fake = FakeCuda(os.environ["KVPOOL_LIBCUDA"])
    engine = TransferEngine("cuda:0")
    before = fake.count("bytes")
    engine.submit(device, wide, PAIRS, after=None).wait()
    moved = fake.count("bytes") - before
    assert moved <= 4 * 512 * len(PAIRS), moved
    """
    run_here(script, fake)


def test_a_huge_pool_is_refused() -> None:
    import kvpool
    from kvpool.transfer import BlockStore

    stride = 512 * ((2**55 - 2) // 3)
    like = BlockStore.from_regions([(4096, stride, stride)], 1)
    with pytest.raises(kvpool.KvpoolError):
        BlockStore.host(3, like=like, hugepages=True)
    two = BlockStore.from_regions([(16, 1, 2**63 - 16), (2**63, 1, 2**63 - 20)], 1)
    with pytest.raises(kvpool.KvpoolError):
        BlockStore.host(1, like=two)


@pytest.mark.parametrize("what", ["submit", "copy", "pageable"])
def test_an_event_that_cannot_be_made_leaves_nothing_under_way(what: str, fake: FakeCuda) -> None:
    """Uses the setting fail_event of the fake driver: the nth cuEventCreate is refused."""
    script = f"""
    what = {what!r}
    fake = FakeCuda(os.environ["KVPOOL_LIBCUDA"])
    bad = []
    for nth in range(1, 30):
        engine = TransferEngine("cuda:0", staging_bytes=4096)
        cpu, device, host = stores()
        if what == "pageable":
            host = BlockStore.host(8, like=device, pinned=False)
        fake.set(lazy=1, event_queries=2, fail_event=nth)
        failed = False
        try:
            if what == "copy":
                engine.copy(device, host, PAIRS, stream=None, method="memcpy")
            elif what == "submit":
                engine.submit(device, host, PAIRS, after=None, method="memcpy")
            else:
                engine.submit(device, host, PAIRS, after=None, method="staged").wait()
        except kvpool.errors.CudaError:
            failed = True
        fake.set(fail_event=0)
        if failed and fake.count("queued"):
            # The stores are held no longer: unregistering the pool now is a violation.
            del host
            bad.append((nth, fake.violation))
        fake.run_all()
        fake.set(lazy=0)
        engine.close()
        if not failed:
            break
    assert nth > 2 and not bad, bad
    """
    run_here(script, fake)


@pytest.mark.parametrize("out", [True, False])
def test_staging_overlaps(out: bool, fake: FakeCuda) -> None:
    """While the copy engine copies one staging buffer, a kernel works on the other one.

    So in some order that the driver allows, the first halves of two copies finish before any second
    half.
    """
    script = f"""
    import random
    fake = FakeCuda(os.environ["KVPOOL_LIBCUDA"])
    most = 0
    def look(store, block):  # as a device sees it, without waiting for the copy
        pieces = [ctypes.string_at(base + block * stride, nbytes) for base, stride, nbytes in store.regions]
        return b"".join(pieces)
    for seed in range(60):
        rng = random.Random(seed)
        cpu, device, host = stores(24)
        engine = TransferEngine("cuda:0", staging_bytes=4096)  # three parts
        for i in range(24):
            host.write_block(i, os.urandom(512))
        pairs = [(i, i) for i in range(24)]
        source, target = (device, host) if {out} else (host, device)
        engine.submit(source, target, pairs, after=None, method="staged").wait()
        for i in range(24):
            (host.write_block if {out} else cpu.write_block)(i, bytes(512))
        fake.set(lazy=1)
        before = fake.count("bytes")
        engine.submit(source, target, pairs, after=None, method="staged")
        while fake.run_pick(rng.randrange(1 << 30)):
            halves = (fake.count("bytes") - before) // 4096
            seconds = sum(look(host if {out} else cpu, i) != bytes(512) for i in (0, 8, 16))
            most = max(most, halves - 2 * seconds)
        fake.set(lazy=0)
        engine.close()
    assert most >= 2, most
    """
    run_here(script, fake)

"""The host pool: exact sizes, pieces that split no row, and memory given back on every way out."""

import ctypes
import gc
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hsplan_kernels import host_pool, memory
from hsplan_kernels.host_pool import HostPool, registration_pieces
from hsplan_kernels.memory import HostLimits, HostMemoryError, host_limits, pointer_table

MIB = 2**20


class Pins:
    """Stands in for the driver: notes what is registered, refuses the `fails_at`-th piece with `error`."""

    def __init__(self):
        self.live, self.calls, self.undone = {}, 0, []
        self.fails_at, self.error = None, HostMemoryError("no", "try less")

    def register(self, address, size):
        self.calls += 1
        if self.calls == self.fails_at:
            raise self.error
        self.live[address] = size

    def unregister(self, address):
        self.undone.append(address)
        self.live.pop(address, None)


@pytest.fixture
def pins(monkeypatch):
    stand_in = Pins()
    monkeypatch.setattr(host_pool, "cuda_present", lambda: True)
    monkeypatch.setattr(host_pool, "register", stand_in.register)
    monkeypatch.setattr(host_pool, "unregister", stand_in.unregister)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return stand_in


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.fixture
def mappings(monkeypatch):
    """Weak references to what pools map: dead when it is unmapped."""
    seen, original = [], host_pool._map

    def note(size):
        mapping = original(size)
        seen.append(weakref.ref(mapping))
        return mapping

    monkeypatch.setattr(host_pool, "_map", note)
    return seen


@pytest.mark.parametrize(
    ("num_layers", "rows", "row_bytes", "wanted"),
    [
        (1, 1, 16, 4096),
        (3, 100, 656, 3 * 17 * 4096),  # 100 · 656 = 65,600 = 16 · 4096 + 64
        (2, 64, 1152, 2 * 18 * 4096),  # 64 · 1152 = 18 · 4096
        (5, 1000, 576, 5 * 141 * 4096),
        (1, 65_537, 1040, 16_641 * 4096),  # 65,536 · 1040 = 16,640 · 4096
    ],
)
def test_the_pool_takes_its_rows_and_no_power_of_two(num_layers, rows, row_bytes, wanted):
    with HostPool(num_layers, rows, row_bytes) as pool:
        assert pool.bytes == wanted
        assert [layer.shape for layer in pool.layers] == [(rows, row_bytes)] * num_layers
        starts = [layer.data_ptr() for layer in pool.layers]
        assert [start - starts[0] for start in starts] == [layer * wanted // num_layers for layer in range(num_layers)]
        assert not any(start % 4096 for start in starts)
        assert pool.piece_rows == rows


def test_layers_are_one_piece_of_zeroed_writable_memory():
    with HostPool(3, 7, 656) as pool:
        assert not any(layer.any() for layer in pool.layers)
        for number, layer in enumerate(pool.layers, 1):
            layer.fill_(number)
        whole = ctypes.string_at(pool.layers[0].data_ptr(), pool.bytes)
        assert whole == b"".join(bytes([number]) * 4592 + bytes(8192 - 4592) for number in (1, 2, 3))


def test_memory_is_pinned_where_there_is_a_gpu(device):
    with HostPool(2, 100, 656) as pool:
        assert pool.registered == (device == "cuda")
        assert all(layer.is_pinned() == pool.registered for layer in pool.layers)


def test_all_pages_are_there_from_the_start():
    before = resident_bytes()
    with HostPool(2, 32_769, 1152):  # 72 MiB
        assert resident_bytes() - before >= 70 * MIB


def test_without_huge_pages_the_kernel_is_not_advised(monkeypatch):
    monkeypatch.setattr(host_pool, "_advise_huge", lambda _: pytest.fail("advised"))
    with HostPool(1, 1, 16, huge_pages=False) as pool:
        assert not pool.huge_pages


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 1, 16), "num_layers 0: give a whole number from 1 on"),
        ((-1, 1, 16), "num_layers -1: give"),
        ((1, 0, 16), "rows 0: give"),
        ((1, -5, 16), "rows -5: give"),
        ((1, 10.0, 16), r"rows 10\.0: give"),
        ((1, 1, 0), "rows of 0 bytes: give a multiple of 16"),
        ((1, 1, 24), "rows of 24 bytes: give"),
        ((1, 1, 32.0), r"rows of 32\.0 bytes: give"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        HostPool(*sizes)
    with pytest.raises(ValueError, match=message):
        registration_pieces(*sizes, 4096)


@pytest.mark.parametrize("piece_bytes", [0, -1])
def test_pieces_of_no_bytes_are_refused(piece_bytes):
    with pytest.raises(ValueError, match=f"piece_bytes {piece_bytes}: give"):
        HostPool(1, 1, 16, piece_bytes=piece_bytes)


def test_closing_gives_the_memory_back_and_a_second_time_does_nothing(pins, mappings):
    pool = HostPool(3, 100, 656)
    start = pool.layers[0].data_ptr()
    assert pins.live == {start: pool.bytes}
    pool.close()
    pool.close()
    assert pins.undone == [start]
    assert pool.layers == []
    assert mappings[-1]() is None


def test_a_view_that_outlives_the_pool_reads_zeros_and_holds_no_memory(mappings):
    HostPool(1, 1, 16).close()  # a GPU's context takes memory of its own
    before = resident_bytes()
    with HostPool(1, 65_536, 1152) as pool:  # 72 MiB
        pool.layers[0].fill_(7)
        view = pool.layers[0]
        assert resident_bytes() - before >= 70 * MIB
    assert resident_bytes() - before < 10 * MIB
    assert not view[:10].any()
    del view
    assert mappings[-1]() is None


def test_an_exception_in_the_block_frees_the_pool(pins):
    with pytest.raises(KeyError), HostPool(1, 10, 656):
        raise KeyError
    assert not pins.live


def test_a_forgotten_pool_is_freed_with_its_last_reference(pins, mappings):
    pool = HostPool(2, 10, 656)
    start = pool.layers[0].data_ptr()
    del pool
    gc.collect()
    assert pins.undone == [start]
    assert mappings[-1]() is None


@pytest.mark.parametrize("error", [HostMemoryError("no", "try less"), KeyboardInterrupt()], ids=["refused", "ctrl-c"])
def test_a_piece_that_fails_undoes_the_pieces_before_it(pins, error):
    pins.fails_at, pins.error = 3, error
    with pytest.raises(type(error)):
        HostPool(5, 100, 656, piece_bytes=17 * 4096)
    assert pins.calls == 3
    assert not pins.live
    assert len(pins.undone) == (2 if isinstance(error, HostMemoryError) else 3), "after Ctrl-C the state is not known"


def test_ctrl_c_while_pages_are_touched_frees_them(pins, monkeypatch):
    before = resident_bytes()

    def touch(mapping):
        mapping[: 64 * MIB] = bytes(64 * MIB)
        raise KeyboardInterrupt

    monkeypatch.setattr(host_pool, "_touch", touch)
    with pytest.raises(KeyboardInterrupt):
        HostPool(1, 65_536, 1152)
    gc.collect()
    assert not pins.calls
    assert resident_bytes() - before < 10 * MIB


def test_an_unregistration_that_fails_still_frees_the_rest(pins, mappings, monkeypatch):
    def unregister(address):
        pins.unregister(address)
        raise HostMemoryError("no", "end this process")

    monkeypatch.setattr(host_pool, "unregister", unregister)
    pool = HostPool(4, 100, 656, piece_bytes=17 * 4096)
    with pytest.raises(HostMemoryError):
        pool.close()
    assert not pins.live
    gc.collect()
    assert mappings[-1]() is None


@pytest.mark.parametrize("ending", ["", "raise KeyboardInterrupt"], ids=["its end", "ctrl-c"])
def test_the_end_of_the_interpreter_unregisters_an_open_pool(ending):
    code = f"""
import torch
from hsplan_kernels import host_pool
host_pool.cuda_present = lambda: True
host_pool.register = lambda address, size: None
host_pool.unregister = lambda address: print("unregistered", flush=True)
torch.cuda.synchronize = lambda: None
pool = host_pool.HostPool(1, 10, 656)
{ending}
"""
    paths = {
        "PYTHONPATH": os.pathsep.join([str(Path(host_pool.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | paths, timeout=60
    )
    assert done.stdout == "unregistered\n", done.stderr


def test_pieces_hold_whole_layers_where_they_can():
    layer = 17 * 4096  # 100 rows of 656 bytes
    assert registration_pieces(5, 100, 656, 2 * layer) == [(0, 2 * layer), (2 * layer, 2 * layer), (4 * layer, layer)]
    assert registration_pieces(5, 100, 656, 5 * layer) == [(0, 5 * layer)]
    assert registration_pieces(78, 4_000_000, 656, 64 * 2**30)[0] == (0, 26 * 640_625 * 4096)


def test_a_layer_above_a_piece_is_cut_where_rows_and_pages_meet():
    group = 41 * 4096  # 256 rows of 656 bytes
    assert registration_pieces(1, 600, 656, group) == [(0, group), (group, group), (2 * group, 15 * 4096)]
    with HostPool(2, 600, 656, piece_bytes=group) as pool:
        assert pool.piece_rows == 256


def test_a_piece_too_small_for_rows_and_pages_to_meet_is_refused():
    with pytest.raises(ValueError, match="need at least 167936"):
        registration_pieces(1, 600, 656, 41 * 4096 - 1)


@given(st.integers(1, 9), st.integers(1, 3000), st.integers(1, 80), st.integers(1, 400))
def test_pieces_cover_the_pool_once_and_never_split_a_row(num_layers, rows, units, pages):
    row_bytes, piece_bytes = 16 * units, 4096 * pages
    stride = -(-rows * row_bytes // 4096) * 4096
    try:
        pieces = registration_pieces(num_layers, rows, row_bytes, piece_bytes)
    except ValueError:
        assert piece_bytes < min(stride, row_bytes * 256)
        return
    end = 0
    for start, size in pieces:
        assert start == end
        assert 0 < size <= piece_bytes
        assert start % 4096 == 0
        assert start % stride % row_bytes == 0
        end = start + size
    assert end == num_layers * stride


def test_a_pool_above_the_cgroups_limit_is_refused_before_it_is_mapped(monkeypatch):
    limits = HostLimits(
        memlock_bytes=None, cgroup_limit_bytes=300 * MIB, cgroup_used_bytes=299 * MIB, available_bytes=None
    )
    monkeypatch.setattr(host_pool, "host_limits", lambda: limits)
    with pytest.raises(HostMemoryError, match="the cgroup grants 314572800, 1048576 of them free; raise"):
        HostPool(1, 1025, 1024)
    HostPool(1, 1024, 1024).close()


@pytest.mark.parametrize("rows", [2**50, 2**60])
def test_a_pool_that_cannot_be_mapped_says_so(rows, monkeypatch):
    unlimited = HostLimits(memlock_bytes=None, cgroup_limit_bytes=None, cgroup_used_bytes=None, available_bytes=None)
    monkeypatch.setattr(host_pool, "host_limits", lambda: unlimited)
    with pytest.raises(HostMemoryError, match="cannot be mapped") as caught:
        HostPool(1, rows, 16)
    assert "plan a smaller host pool" in caught.value.remedy


class Driver:
    """The four calls of the CUDA driver, which answer with given codes and see memory `shift` bytes further on."""

    def __init__(self, *, register=0, unregister=0, shift=0):
        self.codes, self.shift, self.calls = {"register": register, "unregister": unregister}, shift, []

    def cuMemHostRegister_v2(self, address, size, flags):  # noqa: N802
        self.calls.append(("register", address.value, size.value, flags))
        return self.codes["register"]

    def cuMemHostUnregister(self, address):  # noqa: N802
        self.calls.append(("unregister", address.value))
        return self.codes["unregister"]

    def cuMemHostGetDevicePointer_v2(self, seen, address, _flags):  # noqa: N802
        seen._obj.value = address.value + self.shift
        return 0

    def cuGetErrorName(self, _code, name):  # noqa: N802
        name._obj.value = b"CUDA_ERROR_OF_TEST"
        return 0


@pytest.fixture
def driver(monkeypatch):
    def answer(**codes):
        stand_in = Driver(**codes)
        monkeypatch.setattr(memory, "_driver", lambda: stand_in)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        return stand_in

    return answer


def test_memory_is_registered_for_all_gpus_and_mapped(driver):
    calls = driver().calls
    memory.register(2**40 + 4096, 64 * 2**30)
    memory.unregister(2**40 + 4096)
    assert calls == [("register", 2**40 + 4096, 64 * 2**30, 1 | 2), ("unregister", 2**40 + 4096)]


def test_a_refused_registration_names_the_error_and_the_limit(driver, monkeypatch):
    driver(register=2)
    monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (8 * MIB, 8 * MIB))
    with pytest.raises(
        HostMemoryError, match=r"cannot pin 9437184 bytes: CUDA_ERROR_OF_TEST \(2\); memlock is 8388608"
    ):
        memory.register(4096, 9 * MIB)
    with pytest.raises(HostMemoryError, match="plan a smaller host pool"):
        memory.register(4096, 8 * MIB)


def test_memory_that_the_gpu_sees_elsewhere_is_refused_and_unregistered(driver):
    calls = driver(shift=64).calls
    with pytest.raises(HostMemoryError, match="the GPU sees host memory 0x1000 at 0x1040"):
        memory.register(4096, 4096)
    assert calls[-1] == ("unregister", 4096)


def test_unregistering_what_is_not_registered_is_no_error_but_a_broken_device_is(driver):
    driver(unregister=713)
    memory.unregister(4096)
    driver(unregister=700)
    with pytest.raises(HostMemoryError, match="cannot unpin 0x1000"):
        memory.unregister(4096)


def nodes(monkeypatch, folder, *numbers):
    for number in numbers:
        (folder / f"node{number}").mkdir()
    monkeypatch.setattr(host_pool, "NODES", folder)


def test_one_numa_node_needs_no_binding(monkeypatch, tmp_path):
    nodes(monkeypatch, tmp_path, 0)
    HostPool(1, 1, 16, numa_node=0).close()


def test_a_machine_that_shows_no_nodes_has_nothing_to_bind_to(monkeypatch, tmp_path):
    nodes(monkeypatch, tmp_path)
    HostPool(1, 1, 16, numa_node=0).close()


@pytest.mark.parametrize("there", [(0,), (0, 1)], ids=str)
@pytest.mark.parametrize("node", [-1, 7, 99])
def test_an_unknown_numa_node_is_refused_before_memory_is_taken(monkeypatch, tmp_path, mappings, there, node):
    nodes(monkeypatch, tmp_path, *there)
    with pytest.raises(ValueError, match=re.escape(f"no NUMA node {node}: choose one of {list(there)}")):
        HostPool(1, 1, 16, numa_node=node)
    assert not mappings


def test_a_binding_that_the_kernel_refuses_is_an_error(monkeypatch, tmp_path):
    nodes(monkeypatch, tmp_path, 0, 999)
    with pytest.raises(HostMemoryError, match="mbind to NUMA node 999 fails with errno"):
        HostPool(1, 1, 16, numa_node=999)


def test_a_binding_to_a_node_that_is_there_holds(monkeypatch, tmp_path):
    nodes(monkeypatch, tmp_path, 0, 1)
    try:
        pool = HostPool(1, 100, 656, numa_node=0)
    except HostMemoryError as error:
        assert "errno 1" in error.cause  # a container that forbids mbind  # noqa: PT017
        return
    start = f"{pool.layers[0].data_ptr():x}"
    assert any(line.startswith(f"{start} bind:0") for line in Path("/proc/self/numa_maps").read_text().splitlines())
    pool.close()


def system(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return host_limits(root)


def test_the_tightest_cgroup_above_the_process_counts(tmp_path):
    limits = system(
        tmp_path,
        **{
            "proc__self__cgroup": "0::/pod/box\n",
            "proc__meminfo": "MemTotal: 9 kB\nMemAvailable:   1000 kB\n",
            "sys__fs__cgroup__pod__memory.max": "5000",
            "sys__fs__cgroup__pod__memory.current": "4500",
            "sys__fs__cgroup__pod__memory.stat": "anon 4000\ninactive_file 300\nactive_file 100\n",
            "sys__fs__cgroup__pod__box__memory.max": "max",
            "sys__fs__cgroup__pod__box__memory.current": "4500",
            "sys__fs__cgroup__memory.max": "90000",
            "sys__fs__cgroup__memory.current": "4500",
        },
    )
    assert (limits.cgroup_limit_bytes, limits.cgroup_used_bytes, limits.cgroup_left_bytes) == (5000, 4100, 900)
    assert limits.available_bytes == 1_024_000


def test_cgroups_of_the_first_version_are_read_too(tmp_path):
    limits = system(
        tmp_path,
        **{
            "proc__self__cgroup": "4:cpu,memory:/docker/abc\n0::/\n",
            "sys__fs__cgroup__memory__memory.limit_in_bytes": "4096",
            "sys__fs__cgroup__memory__memory.usage_in_bytes": "5000",
            "sys__fs__cgroup__memory__memory.stat": "total_inactive_file 100\n",
        },
    )
    assert (limits.cgroup_limit_bytes, limits.cgroup_used_bytes, limits.cgroup_left_bytes) == (4096, 4900, 0)


@pytest.mark.parametrize("limit", ["9223372036854771712", ""])
def test_no_limit_is_none(tmp_path, limit):
    files = {"sys__fs__cgroup__memory__memory.limit_in_bytes": limit, "proc__self__cgroup": "4:memory:/\n"}
    limits = system(tmp_path, **files, **{"sys__fs__cgroup__memory__memory.usage_in_bytes": "5000"})
    assert (limits.cgroup_limit_bytes, limits.cgroup_left_bytes, limits.available_bytes) == (None, None, None)


def test_a_pointer_table_holds_addresses_and_0_for_elided_layers():
    layers = [torch.zeros(4, 16), torch.zeros(0, 8448), torch.zeros(2, 8)]
    table = pointer_table(layers)
    assert table.tolist() == [layers[0].data_ptr(), 0, layers[2].data_ptr()]
    assert table.dtype == torch.int64


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "no tensors"),
        ([torch.zeros(4, 32)[:, ::2]], "layer 0 is not contiguous"),
        ([torch.zeros(16), torch.zeros(16)[1:]], "layer 1 starts at .*aligned to 16"),
    ],
)
def test_a_pointer_table_refuses_what_kernels_cannot_address(layers, message):
    with pytest.raises(ValueError, match=message):
        pointer_table(layers)

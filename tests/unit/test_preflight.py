"""What a GPU machine is found to be: refusals, warnings, and host memory, all on a machine made of files and fakes."""

from types import SimpleNamespace

import msgspec
import pytest

from hsplan.errors import CannotRunError

pytest.importorskip("torch")
pytest.importorskip("triton")

from hsplan.gpu import preflight, touch
from hsplan.gpu.group import ALONE, Alone
from hsplan.gpu.nvml import Card
from hsplan_kernels import memory
from hsplan_kernels.memory import HostMemoryError

GIB, MIB, KIB = 2**30, 2**20, 2**10
BEST = Card(driver="580.1", generation=5, width=16, max_generation=5, max_width=16)
WITHOUT_GPU = "`hsplan validate SPEC` without --gpu runs the kernels in Triton's interpreter"


def quiet(done, total):
    del done, total


class TorchVersion(str):
    """As torch's own: a str that is none to msgspec."""

    __slots__ = ()


@pytest.fixture
def torch(monkeypatch):
    """A torch that sees one H200; a test changes what it is about."""
    properties = SimpleNamespace(name="NVIDIA H200", uuid="1234", major=9, minor=0)
    fake = SimpleNamespace(
        __version__=TorchVersion("2.11.0+cu130"),
        version=SimpleNamespace(hip=None, cuda="13.0"),
        cuda=SimpleNamespace(
            init=lambda: None,
            current_device=lambda: 0,
            get_device_properties=lambda _: properties,
            mem_get_info=lambda: (140 * GIB, 141 * GIB),
        ),
        properties=properties,
    )
    monkeypatch.setattr(preflight, "torch", fake)
    monkeypatch.setattr(preflight, "_card_under_load", lambda _: BEST)
    monkeypatch.setattr(touch, "time", SimpleNamespace(sleep=lambda _: None))
    return fake


@pytest.fixture
def check(torch, tmp_path, monkeypatch):
    """Run the preflight on a machine of so many bytes available, cgroup bytes left and bytes that may be locked."""
    del torch

    def run(
        *, needed=MIB, host_memory=None, available=8 * GIB, cgroup_left=None, memlock=-1, progress=quiet, group=ALONE
    ):
        monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (memlock, memlock))
        (tmp_path / "proc").mkdir()
        if available is not None:
            (tmp_path / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available // KIB} kB\n")
        if cgroup_left is not None:
            cgroup = tmp_path / "sys/fs/cgroup"
            cgroup.mkdir(parents=True)
            (cgroup / "memory.max").write_text(f"{cgroup_left + 1000}\n")
            (cgroup / "memory.current").write_text("1000\n")
        return preflight.preflight(
            host_memory=host_memory, needed_host_bytes=needed, progress=progress, group=group, root=tmp_path
        )

    return run


def test_a_machine_without_flaws_is_described_without_warnings(check):
    machine = check()
    assert (machine.gpu, machine.free_bytes, machine.memory_bytes) == ("NVIDIA H200", 140 * GIB, 141 * GIB)
    assert (machine.driver, machine.link_generation, machine.link_width) == ("580.1", 5, 16)
    assert machine.torch == "2.11.0+cu130"
    assert machine.host_bytes == MIB
    assert machine.warnings == ()
    assert b'"torch":"2.11.0+cu130"' in msgspec.json.encode(machine)


def refusal(run, *arguments):
    with pytest.raises(CannotRunError) as caught:
        run(*arguments)
    assert caught.value.exit_code == 4
    (problem,) = caught.value.problems
    return problem.what, problem.remedy


def failing(error):
    def call(*_):
        raise error

    return call


def test_a_torch_for_rocm_is_refused(check, torch):
    torch.version.hip, torch.version.cuda, torch.__version__ = "6.4", None, "2.11.0+rocm6.4"
    assert refusal(check) == ("torch 2.11.0+rocm6.4 is built for ROCm, the kernels are checked on CUDA", WITHOUT_GPU)


def test_a_torch_without_cuda_is_refused(check, torch):
    torch.version.cuda, torch.__version__ = None, "2.13.0+cpu"
    assert refusal(check) == (
        "no GPU here: torch 2.13.0+cpu is built without CUDA",
        f"install a CUDA build of torch; {WITHOUT_GPU}",
    )


def test_a_machine_without_a_card_is_refused(check, torch):
    torch.cuda.init = failing(RuntimeError("Found no NVIDIA driver on your system.\nPlease check …"))
    assert refusal(check) == ("no GPU here: Found no NVIDIA driver on your system.", WITHOUT_GPU)


def test_a_card_older_than_triton_is_refused(check, torch):
    torch.properties.name, torch.properties.major, torch.properties.minor = "Tesla P100", 6, 0
    assert refusal(check) == ("Tesla P100 has compute capability 6.0, Triton needs 7.0 or more", WITHOUT_GPU)


def test_the_oldest_card_that_triton_knows_will_do(check, torch):
    torch.properties.major, torch.properties.minor = 7, 0
    assert check().gpu == "NVIDIA H200"


def test_a_driver_that_fails_is_a_refusal_and_no_traceback(check, torch):
    torch.cuda.mem_get_info = failing(RuntimeError("CUDA error: an illegal state\nCompile with …"))
    what, remedy = refusal(check)
    assert what == "the CUDA driver fails: CUDA error: an illegal state"
    assert remedy == f"see what nvidia-smi says; {WITHOUT_GPU}"


def test_an_error_without_words_is_named(check, torch):
    torch.cuda.mem_get_info = failing(RuntimeError())
    assert refusal(check)[0] == "the CUDA driver fails: RuntimeError"


def test_host_memory_that_cannot_be_pinned_is_a_refusal(check, monkeypatch):
    monkeypatch.setattr(preflight, "_card_under_load", failing(HostMemoryError("cannot pin", "raise memlock")))
    assert refusal(check) == ("cannot pin", "raise memlock")


def test_memory_as_given_is_believed_and_not_tested(check, monkeypatch):
    monkeypatch.setattr(preflight, "touchable_bytes", lambda *_, **__: pytest.fail("tested"))
    assert check(needed=5 * GIB, host_memory=3 * GIB).host_bytes == 3 * GIB


def test_the_pool_gets_no_more_than_the_cgroup_has_left_less_a_twentieth(check):
    assert check(needed=3_000_000, cgroup_left=2_000_000).host_bytes == 1_900_000


def test_the_touch_test_tells_how_far_it_is(check):
    seen = []
    check(progress=lambda done, total: seen.append((done, total)))
    assert seen == [(MIB, MIB)]


def test_memory_that_leaves_too_little_is_not_granted(check):
    machine = check(available=2 * GIB - MIB)
    assert machine.host_bytes == 0
    assert machine.warnings == ()


@pytest.mark.parametrize(("cgroup_left", "host_bytes"), [(None, None), (2_000_000, 1_900_000)])
def test_a_system_that_does_not_tell_its_free_memory_is_not_tested(check, monkeypatch, cgroup_left, host_bytes):
    monkeypatch.setattr(preflight, "touchable_bytes", lambda *_, **__: pytest.fail("tested"))
    machine = check(needed=GIB, available=None, cgroup_left=cgroup_left)
    assert machine.host_bytes == host_bytes
    assert machine.warnings == ("This system does not tell its free memory: the host pool may not fit.",)


def test_a_pool_larger_than_what_is_available_is_warned_of(check, monkeypatch):
    monkeypatch.setattr(preflight, "touchable_bytes", lambda wanted, *_, **__: wanted)  # a machine that grows
    machine = check(needed=40 * GIB, available=31 * GIB)
    assert machine.host_bytes == 40 * GIB
    assert machine.warnings == ("The host pool wants 40.00 GiB, 31.00 GiB were available at the start.",)


def test_what_the_user_allows_is_what_the_pool_wants(check):
    machine = check(needed=40 * GIB, host_memory=7 * GIB, memlock=8 * MIB)
    assert machine.warnings == ("memlock is 8.00 MiB, the host pool wants 7.00 GiB: see ulimit -l.",)


def test_a_limit_on_locked_memory_is_warned_of(check):
    assert check(memlock=64 * KIB).warnings == ("memlock is 64.00 KiB, the host pool wants 1.00 MiB: see ulimit -l.",)


@pytest.mark.parametrize(
    ("generation", "width", "warnings"),
    [
        (5, 16, ()),
        (4, 16, ("The link runs at PCIe generation 4 x16, card and slot could do 5 x16.",)),
        (5, 8, ("The link runs at PCIe generation 5 x8, card and slot could do 5 x16.",)),
        (None, None, ()),
    ],
)
def test_a_link_below_its_best_is_warned_of(check, monkeypatch, generation, width, warnings):
    card = Card(generation=generation, width=width, max_generation=5, max_width=16)
    monkeypatch.setattr(preflight, "_card_under_load", lambda _: card)
    assert check().warnings == warnings


class FourRanks(Alone):
    """One of four ranks of a machine; `told` is what the first of them was told, itself if None."""

    local_size = 4

    def __init__(self, told=None):
        self.told = told

    def once_a_node(self, ask):
        return ask() if self.told is None else self.told


def test_ranks_share_the_memory_of_their_machine_which_is_tested_for_all_of_them(check, monkeypatch):
    asked = []

    def touch(wanted, available, progress, *, spare_bytes):
        del available, progress
        asked.append((wanted, spare_bytes))
        return 30 * GIB

    monkeypatch.setattr(preflight, "touchable_bytes", touch)
    machine = check(needed=10 * GIB, available=64 * GIB, group=FourRanks())
    assert asked == [(40 * GIB, 8 * GIB)]
    assert machine.host_bytes == 7.5 * GIB


def test_a_rank_that_does_not_test_takes_the_share_of_what_was_found(check, monkeypatch):
    monkeypatch.setattr(preflight, "touchable_bytes", lambda *_, **__: pytest.fail("tested"))
    assert check(needed=10 * GIB, group=FourRanks(told=8 * GIB)).host_bytes == 2 * GIB


def test_memory_as_given_is_that_of_the_machine(check):
    machine = check(needed=40 * GIB, host_memory=100 * GIB, available=64 * GIB, group=FourRanks())
    assert machine.host_bytes == 25 * GIB
    assert machine.warnings == ("The host pools of 4 ranks want 100.00 GiB, 64.00 GiB were available at the start.",)


def test_memory_that_may_be_locked_is_that_of_each_process_and_enough_for_one_pool_is_enough(check, monkeypatch):
    monkeypatch.setattr(preflight, "touchable_bytes", lambda wanted, *_, **__: wanted)
    machine = check(needed=GIB, memlock=GIB // 2, group=FourRanks())
    assert machine.warnings == ("memlock is 512.00 MiB, the host pool wants 1.00 GiB: see ulimit -l.",)

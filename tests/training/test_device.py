"""The machine that programs run on: memory, threads and the program cache."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from recombine.basics.errors import InputError
from recombine.training import device

CHILD = """
import recombine as rc
run = rc.Run(
    family=rc.Hyperteacher(num_modules=6, num_hot=2, d_input=4, d_hidden=4, num_outputs=3),
    model=rc.MLP(widths=(8, 8)), diagnostics=(), num_steps=20, num_evals=2,
    num_tasks=8, num_points=4, num_eval_tasks=16, num_eval_points=4,
)
print(rc.train(run)["test/loss"].map(float.hex).tolist())
"""


@pytest.fixture
def no_jax_cache():
    """JAX's cache settings as in a new process. They are restored afterwards."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def write(folder, name, size, age):
    path = folder / name
    path.write_bytes(b"x" * size)
    os.utime(path, (1e9 - age, 1e9 - age))


def test_the_least_recently_used_programs_are_deleted_first(tmp_path):
    for name, age in (("jit_c", 3), ("jit_a", 1), ("jit_d", 4), ("jit_b", 2)):
        write(tmp_path, name, 100, age)
    write(tmp_path, "mine.txt", 10_000, 9)
    (tmp_path / "jit_folder").mkdir()
    device.prune_cache(tmp_path, 250)
    assert {path.name for path in tmp_path.iterdir()} == {
        "jit_a",
        "jit_b",
        "mine.txt",
        "jit_folder",
    }


def test_an_old_program_that_was_recently_read_is_kept(tmp_path):
    write(tmp_path, "jit_old", 100, 50)
    write(tmp_path, "jit_new", 100, 10)
    os.utime(tmp_path / "jit_old", (1e9, 1e9 - 50))  # read now, written long ago
    device.prune_cache(tmp_path, 100)
    assert [path.name for path in tmp_path.iterdir()] == ["jit_old"]


def test_a_small_cache_is_not_pruned(tmp_path):
    device.prune_cache(tmp_path, 0)  # an empty folder
    for i in range(3):
        write(tmp_path, f"jit_{i}", 100, i)
    device.prune_cache(tmp_path, 300)
    assert len(list(tmp_path.iterdir())) == 3
    device.prune_cache(tmp_path, 0)
    assert not list(tmp_path.iterdir())


def test_programs_are_cached_in_the_chosen_folder(no_jax_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "deep" / "cache"))
    monkeypatch.setattr(device, "MAX_CACHE_BYTES", 100)
    (tmp_path / "deep" / "cache").mkdir(parents=True)
    write(tmp_path / "deep" / "cache", "jit_old", 101, 1)
    assert device.enable_program_cache.__wrapped__() == tmp_path / "deep" / "cache"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "deep" / "cache")
    assert not list((tmp_path / "deep" / "cache").iterdir()), "too large, and so pruned"


def test_by_default_programs_are_cached_in_the_users_cache_folder(
    no_jax_cache, monkeypatch, tmp_path
):
    monkeypatch.delenv("RECOMBINE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert device.enable_program_cache.__wrapped__() == tmp_path / "xdg" / "recombine"
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert device.enable_program_cache.__wrapped__() == tmp_path / ".cache" / "recombine"
    assert (tmp_path / ".cache" / "recombine").is_dir()


def test_the_cache_can_be_switched_off(no_jax_cache, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("RECOMBINE_CACHE", "off")
    assert device.enable_program_cache.__wrapped__() is None
    assert jax.config.jax_compilation_cache_dir is None
    assert not list(tmp_path.iterdir())


def test_there_is_no_cache_if_the_users_cache_folder_cannot_be_used(
    no_jax_cache, monkeypatch, tmp_path
):
    monkeypatch.delenv("RECOMBINE_CACHE")
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        assert device.enable_program_cache.__wrapped__() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # A real folder would not do: root may write to every folder.
    monkeypatch.setattr(device.os, "access", lambda path, mode: False)
    assert device.enable_program_cache.__wrapped__() is None
    assert jax.config.jax_compilation_cache_dir is None


def test_a_chosen_folder_that_cannot_be_used_is_an_error(no_jax_cache, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("RECOMBINE_CACHE", str(folder))
        with pytest.raises(InputError, match=r"RECOMBINE_CACHE=[^ ]+ cannot be used"):
            device.enable_program_cache.__wrapped__()
    assert jax.config.jax_compilation_cache_dir is None


def test_a_folder_chosen_in_jax_is_used(no_jax_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "ours"))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    assert device.enable_program_cache.__wrapped__() is None
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "theirs")
    assert not (tmp_path / "ours").exists()


def test_a_second_process_uses_the_programs_of_the_first(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    environment["RECOMBINE_CACHE"] = str(tmp_path)

    def process():
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, {
            path.name for path in tmp_path.iterdir() if not path.name.endswith("-atime")
        }

    first_output, first_files = process()
    for function in ("start", "advance", "evaluate"):
        assert any(function in name for name in first_files), function
    second_output, second_files = process()
    assert second_files == first_files, "nothing was compiled again"
    assert first_output == second_output
    assert first_output.count("0x") == 2


@pytest.mark.parametrize("num_threads", [1, 2])
def test_results_have_the_order_of_the_items(monkeypatch, num_threads):
    monkeypatch.setattr(device, "num_threads", lambda: num_threads)
    last = threading.Event()

    def slow_first(i):
        if i == 0 and num_threads > 1:
            assert last.wait(10)
        if i == 4:
            last.set()
        return i * i

    assert device.map_parallel(slow_first, range(5)) == [0, 1, 4, 9, 16]
    assert device.map_parallel(slow_first, []) == []


def test_two_calls_run_in_parallel(monkeypatch):
    monkeypatch.setattr(device, "num_threads", lambda: 2)
    barrier = threading.Barrier(2)
    assert sorted(device.map_parallel(lambda _: barrier.wait(10), range(2))) == [0, 1]


def test_one_call_at_a_time_stays_in_this_thread(monkeypatch):
    monkeypatch.setattr(device, "num_threads", lambda: 1)
    names = device.map_parallel(lambda _: threading.current_thread().name, range(3))
    assert set(names) == {threading.current_thread().name}


@pytest.mark.parametrize("num_threads", [1, 2])
def test_an_error_in_a_call_is_raised(monkeypatch, num_threads):
    monkeypatch.setattr(device, "num_threads", lambda: num_threads)
    with pytest.raises(ZeroDivisionError):
        device.map_parallel(lambda i: 1 / (i - 1), range(3))


def test_a_gpu_takes_all_runs_in_one_call_and_a_cpu_one(monkeypatch):
    monkeypatch.setattr(device, "num_cores", lambda: 8)
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    assert (device.lane_width(16), device.num_threads(), device.num_compilers()) == (1, 8, 2)
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    assert (device.lane_width(16), device.num_threads(), device.num_compilers()) == (16, 1, 4)


def test_autotuning_is_off_on_a_gpu(monkeypatch):
    assert device.compiler_options() == {}, "the tests run on a CPU"
    monkeypatch.setattr(device.jax, "default_backend", lambda: "gpu")
    assert device.compiler_options() == {
        "xla_gpu_autotune_level": 0,
        "xla_gpu_enable_triton_gemm": False,
    }


def test_a_program_needs_its_arguments_and_results():
    x = jnp.zeros(1000)
    plain = jax.jit(lambda x: x + 1).lower(x).compile()
    donated = jax.jit(lambda x: x + 1, donate_argnums=0).lower(x).compile()
    assert device.needed_bytes(plain) >= 8000
    assert device.needed_bytes(plain) - device.needed_bytes(donated) == 4000, (
        "a donated argument is counted once"
    )
    assert device.needed_bytes(SimpleNamespace(memory_analysis=lambda: None)) == 0


def compiled(arguments, results, temporaries, shared):
    sizes = SimpleNamespace(
        argument_size_in_bytes=arguments,
        output_size_in_bytes=results,
        temp_size_in_bytes=temporaries,
        alias_size_in_bytes=shared,
    )
    return SimpleNamespace(memory_analysis=lambda: sizes)


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        ({"bytes_limit": 1000}, True),  # 900 of them may be filled
        ({"bytes_limit": 998}, False),
        ({"bytes_in_use": 5}, True),
        ({}, True),
        (None, True),
    ],
)
def test_a_program_fits_in_nine_tenths_of_the_memory_or_if_that_is_unknown(
    monkeypatch, stats, expected
):
    monkeypatch.setattr(
        device.jax, "local_devices", lambda: [SimpleNamespace(memory_stats=lambda: stats)]
    )
    assert device.fits(compiled(500, 300, 200, 100)) is expected


def test_out_of_memory_errors_are_recognized():
    assert device.is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Failed to allocate 80 GiB"))
    assert device.is_out_of_memory(ValueError("Out of memory while trying to allocate"))
    assert not device.is_out_of_memory(RuntimeError("INVALID_ARGUMENT: shapes"))


def test_only_cores_that_this_process_may_use_are_counted(monkeypatch):
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert device.num_cores() == 3
    monkeypatch.delattr(device.os, "sched_getaffinity")
    monkeypatch.setattr(device.os, "cpu_count", lambda: 7)
    assert device.num_cores() == 7
    monkeypatch.setattr(device.os, "cpu_count", lambda: None)
    assert device.num_cores() == 1

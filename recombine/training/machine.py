"""The machine, as far as numbers depend on it: its CPU, its devices, XLA's flags, the libraries.

The same run on another kind of CPU, or with other flags, gives slightly other numbers: XLA compiles
for the CPU's instructions, and rounding differs. Unstable students amplify the difference. So these
values are in the rows (columns `meta/…`) and in the key of a checkpoint.
"""

import functools
import hashlib
import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from recombine.training import device

# What numbers depend on -> the column that has it. The words are used in messages.
COLUMNS = {
    "device": "meta/device",
    "number of devices": "meta/num_devices",
    "CPU": "meta/cpu",
    "set of XLA flags": "meta/xla_flags",
    "set of JAX settings": "meta/settings",
    "JAX": "meta/jax",
    "set of library versions": "meta/libraries",
}
LIBRARIES = ("equinox", "jaxlib", "numpy", "optax", "scikit-learn", "scipy")
CPU_INFO = Path("/proc/cpuinfo")
CPU_NAME_FIELDS = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
# Instruction sets for which XLA and the libraries have code of their own.
CPU_FEATURES = re.compile(r"(sse|ssse|avx|fma|f16c|amx|fp|asimd|neon|sve|sme)")
CPU_LEVELS = ("sve2", "sve", "asimd", "avx512f", "avx2", "avx", "sse4_2")  # the best one is named
FLAG_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
OTHER_VARIABLES = ("NVIDIA_TF32_OVERRIDE",)
HARMLESS_FLAGS = re.compile(r"--xla_(dump_|hlo_profile|gpu_force_compilation_parallelism)")


def columns() -> dict[str, Any]:
    """The columns `meta/…` that describe this machine."""
    return {
        "meta/device": jax.devices()[0].device_kind,
        "meta/num_devices": device.num_devices(),
        "meta/cpu": cpu(),
        "meta/xla_flags": xla_flags(),
        "meta/settings": settings(),
        "meta/jax": jax.__version__,
        "meta/libraries": libraries(),
    }


def key() -> list[Any]:
    """The values that a checkpoint depends on. On a GPU the CPU does not matter."""
    return [value for name, value in columns().items() if name != "meta/cpu" or device.on_cpu()]


def differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What differs between two machines, in words. A value that is not known does not differ."""
    names = []
    for word, column in COLUMNS.items():
        values = (first.get(column), other.get(column))
        is_known = not any(value is None or value != value for value in values)  # NaN: not known
        on_cpu = first.get("meta/device") == "cpu" == other.get("meta/device")
        if is_known and values[0] != values[1] and (column != "meta/cpu" or on_cpu):
            names.append(f"{word} ({values[0]}; {values[1]})")
    return names


@functools.cache
def cpu() -> str:
    """The CPU: its best instruction set, and a hash of its model and of all its instruction sets.

    `x86_64 avx512f 1f3a5c7e`. CPUs with one text get the same code from XLA.
    """
    try:
        fields = _cpu_fields(CPU_INFO.read_text())
    except OSError:  # not Linux
        fields = {"processor": platform.processor()}
    words = set(" ".join((fields.get("flags", ""), fields.get("Features", ""))).split())
    features = sorted(word for word in words if CPU_FEATURES.match(word))
    names = [fields.get(name, "") for name in (*CPU_NAME_FIELDS, "processor")]
    digest = hashlib.sha256(repr((names, features)).encode()).hexdigest()[:8]
    levels = [level for level in CPU_LEVELS if level in features][:1]
    return " ".join([platform.machine(), *levels, digest])


def _cpu_fields(text: str) -> dict[str, str]:
    """The fields of the first CPU in `/proc/cpuinfo`, without its number."""
    first, _, _ = text.partition("\n\n")
    pairs = [line.partition(":") for line in first.splitlines()]
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip() != "processor"}


def xla_flags() -> str:
    """XLA's flags in a fixed order, and other variables that change numbers; `none` without any."""
    flags: set[str] = set()
    for name in FLAG_VARIABLES:
        flags |= set(_flag_text(os.environ.get(name, "")).split())
    flags = {flag for flag in flags if not HARMLESS_FLAGS.match(flag)}
    flags |= {f"{name}={os.environ[name]}" for name in OTHER_VARIABLES if os.environ.get(name)}
    return " ".join(sorted(flags)) or "none"


def _flag_text(text: str) -> str:
    """The flags of a variable. XLA takes a text without a dash as the name of a file."""
    if text.strip().startswith("-") or not text.strip():
        return text
    try:
        return Path(text.strip()).read_text()
    except OSError:
        return text


def settings() -> str:
    """JAX's settings that change numbers, where they differ from the default; else `default`."""
    changed = []
    defaults = device.NUMERIC_SETTINGS.items()
    for (name, default), value in zip(defaults, device.numeric_settings(), strict=True):
        if value != default:
            changed.append(f"{name}={value}")
    return " ".join(changed) or "default"


@functools.cache
def libraries() -> str:
    """The versions of the libraries that compute numbers, and of a GPU's own."""
    versions = [f"{name} {_version(name)}" for name in LIBRARIES]
    if not device.on_cpu():
        versions.append(jax.devices()[0].client.platform_version.split("\n")[0])
    return ", ".join(versions)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"

"""The names that the fake cannot know: whether the bindings have them.

Planted faults show that the checks notice them.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import harness.driver
from fakes.driver import FakeDriver

PACKAGE = Path(harness.driver.__file__).parent


def names_used(source: str) -> tuple[set[str], set[tuple[str, str]]]:
    """Names that must exist in the bindings, and (enum, member) pairs."""
    names: set[str] = set()
    members: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.isidentifier() and node.value.startswith("cu") and node.value[2:3].isupper():
                names.add(node.value)
            for enum in ("CUdevice_attribute", "CUfunction_attribute"):  # read by getattr
                prefix = {"CUdevice_attribute": "CU_DEVICE_ATTRIBUTE_"}.get(enum, "CU_FUNC_ATTRIBUTE_")
                if node.value.startswith(prefix) and node.value != prefix:
                    members.add((enum, node.value))
        if isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else ""
            if node.attr.startswith("CU_FUNC_ATTRIBUTE_"):
                members.add(("CUfunction_attribute", node.attr))
            elif owner.startswith("CU"):
                members.add((owner, node.attr))
            elif node.attr.startswith("CU_EVENT_"):
                members.add(("CUevent_flags", node.attr))
            elif node.attr.startswith("CU") or (node.attr.startswith("cu") and node.attr[2:3].isupper()):
                names.add(node.attr)
    return names, members


def missing(source: str) -> list[str]:
    driver = pytest.importorskip("cuda.bindings.driver")
    names, members = names_used(source)
    gone = [name for name in sorted(names) if not hasattr(driver, name)]
    gone += [f"{enum}.{name}" for enum, name in sorted(members) if not hasattr(getattr(driver, enum), name)]
    return gone


def test_every_name_exists_in_the_bindings():
    source = "\n".join(
        path.read_text().replace("from __future__ import annotations", "") for path in PACKAGE.glob("*.py")
    )
    names, members = names_used(source)
    assert {"cuMemAlloc", "cuLaunchKernelEx", "CUlaunchConfig"} <= names
    assert len(names) > 40 and len(members) > 20
    assert missing(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "call('cuMemAllok', 1)",
        "bindings().cuLaunchKernul",
        "d.CUstream_flags.CU_STREAM_NON_BLOKING",
        "read('CU_FUNC_ATTRIBUTE_NUM_REG')",
        "flags.CU_EVENT_DEFAULTS",
        "d.CUlaunchConfigs()",
    ],
)
def test_the_name_check_notices_a_wrong_name(source: str):
    assert len(missing(source)) == 1


def test_the_fake_answers_every_function_used():
    source = "\n".join(path.read_text() for path in PACKAGE.glob("*.py")).replace("from __future__", "#")
    names, _ = names_used(source)
    functions = {name for name in names if name.startswith("cu")}
    assert [name for name in sorted(functions) if not hasattr(FakeDriver, "_" + name)] == []


def test_launch_config_of_the_real_bindings_takes_cooperation():
    driver = pytest.importorskip("cuda.bindings.driver")
    attribute, config = driver.CUlaunchAttribute(), driver.CUlaunchConfig()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    attribute.value.cooperative = 1
    config.attrs = [attribute]
    config.numAttrs = 1
    assert config.attrs[0].value.cooperative == 1


def test_launch_config_of_the_real_bindings_takes_the_cluster():
    driver = pytest.importorskip("cuda.bindings.driver")
    attribute, config = driver.CUlaunchAttribute(), driver.CUlaunchConfig()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = 2, 3, 4
    config.attrs = [attribute]
    config.numAttrs = 1
    stored = config.attrs[0].value.clusterDim
    assert (stored.x, stored.y, stored.z) == (2, 3, 4)

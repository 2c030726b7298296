"""deploy/kubernetes/kserve-runtime.yaml by KServe's own description of its resources.

That is generated from its schema and comes in its wheel on PyPI. It is read, not imported: what the
package depends on would change half of this environment.
"""

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import loaded

pytestmark = pytest.mark.slow
KSERVE = "kserve==0.21.0"
RUNTIME = loaded("kubernetes", "kserve-runtime.yaml")
SCALARS = {"str": str, "bool": bool, "int": int}


@dataclass(frozen=True)
class Kind:
    """What one resource has: the type of each key, and the keys that it must have."""

    types: Mapping[str, str]
    required: frozenset[str]


def kind_in(source: str) -> Kind:
    """Return what a module of generated code describes."""
    tables = {
        target.id: ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    keys = tables["attribute_map"]
    must = re.findall(r"Invalid value for `(\w+)`, must not be `None`", source)
    types = {keys[name]: kind for name, kind in tables["openapi_types"].items()}
    return Kind(types, frozenset(keys[name] for name in must))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    """KServe's resources by the names of their classes."""
    folder = tmp_path_factory.mktemp("kserve")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "-d",
        str(folder),
        KSERVE,
    ]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip(f"{KSERVE} is not to be had")
    (wheel,) = Path(folder).glob("*.whl")
    found = {}
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if re.search(r"/models/v1alpha1_\w+\.py$", name):
                source = files.read(name).decode()
                (title,) = re.findall(r"^class (\w+)\(object\)", source, re.MULTILINE)
                found[title] = kind_in(source)
    return found


def faults(kinds: Mapping[str, Kind], kind: str, value: Any, at: str) -> Iterator[str]:
    """Yield what is wrong with ``value``; Kubernetes' own kinds are looked at elsewhere."""
    if of := re.fullmatch(r"list\[(\w+)\]", kind):
        if not isinstance(value, list):
            yield f"{at} is no list"
            return
        for number, item in enumerate(value):
            yield from faults(kinds, of[1], item, f"{at}[{number}]")
    elif kind in SCALARS and not isinstance(value, SCALARS[kind]):
        yield f"{at} is no {kind}"
    elif kind in kinds:
        yield from (f"{at}.{key} is missing" for key in kinds[kind].required - {*value})
        yield from (f"{at}.{key} is unknown" for key in {*value} - {*kinds[kind].types})
        for key, type_ in kinds[kind].types.items():
            if key in value:
                yield from faults(kinds, type_, value[key], f"{at}.{key}")


def faults_of(kinds: Mapping[str, Kind], runtime: Any) -> list[str]:
    """Return what is wrong with a ClusterServingRuntime."""
    return sorted(faults(kinds, "V1alpha1ClusterServingRuntime", runtime, "runtime"))


def test_the_runtime_is_as_kserve_describes_it(kinds: Mapping[str, Kind]) -> None:
    assert faults_of(kinds, RUNTIME) == []


def test_what_is_wrong_would_be_found(kinds: Mapping[str, Kind]) -> None:
    wrong = deepcopy(RUNTIME)
    wrong["spec"]["multiModel"] = "no"
    wrong["spec"]["supportedModelFormats"][0]["autoselect"] = True
    wrong["spec"]["protocolVersions"] = "v2"
    del wrong["spec"]["containers"]
    assert faults_of(kinds, wrong) == [
        "runtime.spec.containers is missing",
        "runtime.spec.multiModel is no bool",
        "runtime.spec.protocolVersions is no list",
        "runtime.spec.supportedModelFormats[0].autoselect is unknown",
    ]

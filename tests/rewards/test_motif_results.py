"""Published curves: any nesting is understood, and nothing in the file is ever run."""

from __future__ import annotations

import collections
import json
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_agents.errors import UserError
from llm_agents.rewards import motif_results
from llm_agents.rewards.motif_results import (
    PublishedCurve,
    read_motif_results,
    read_plain_pickle,
    write_motif_results,
)

STEPS = [0.0, 1e6, 2e6]
TWO = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
EXPECTED = [
    PublishedCurve("NetHackScore-v1", "motif", seed, tuple(STEPS), tuple(TWO[seed]))
    for seed in range(2)
]


def store(folder: Path, value: Any, protocol: int = 4) -> Path:
    path = folder / "motif_results.pkl"
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    value = {
        "list": [1, 2.5, None, True, "text", b"bytes", (1, 2)],
        "floats": np.linspace(0, 1, 7, dtype=np.float32).reshape(7, 1),
        "ints": np.arange(6).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(3, dtype=">f8"),
        "empty": np.zeros((0, 3)),
        "scalar": np.float64(2.5),
        "integer": np.int32(7),
        "text": np.array(["ab", "c"]),
        "objects": np.array([[1, 2], [3]], dtype=object),
        "ordered": collections.OrderedDict(a=1),
        "default": collections.defaultdict(list, b=[np.arange(2)]),
    }
    found = read_plain_pickle(store(tmp_path, value, protocol))
    assert found["list"] == [1, 2.5, None, True, "text", b"bytes", [1, 2]]
    for key in ("floats", "ints", "fortran", "big", "empty", "text"):
        np.testing.assert_array_equal(found[key], value[key])
        assert found[key].dtype == value[key].dtype
    assert (found["scalar"], found["integer"]) == (2.5, 7)
    assert found["objects"] == [[1, 2], [3]]
    assert found["ordered"] == {"a": 1}
    assert found["default"]["b"][0].tolist() == [0, 1]


class Touch:
    """What a hostile pickle does: run a command when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"
    path = store(tmp_path, {"NetHackScore-v1": Touch(mark)}, protocol)
    with pytest.raises(UserError, match=r"asks for `posix\.system`; it was not read"):
        read_motif_results(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "value",
    [print, eval, getattr, np.array, np.load, np.frombuffer, collections.deque, Path, {1}],
    ids=lambda value: getattr(value, "__name__", "set"),
)
def test_every_other_name_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UserError, match="more than numbers, lists, dictionaries and arrays"):
        read_plain_pickle(store(tmp_path, [value], 2))


def with_state(dtype: str, content: object, shape: tuple[int, ...]) -> bytes:
    """Return a pickle of an array whose parts don't belong together."""

    class Forged:
        def __reduce__(self) -> Any:
            array = np.zeros(shape, dtype)
            make, arguments, state = array.__reduce__()  # type: ignore[misc]
            return make, arguments, (*state[:4], content)

    return pickle.dumps(Forged(), protocol=2)


@pytest.mark.parametrize(
    ("dtype", "content", "shape"),
    [
        ("f8", b"\0" * 8, (2,)),
        ("f8", [1.0, 2.0], (2,)),
        ("O", b"\x41" * 16, (2,)),  # pointers of the writer's choice
        ("O", [1], (2,)),
        ("f8,i4", b"\0" * 12, (1,)),
        ("M8[s]", b"\0" * 8, (1,)),
    ],
)
def test_an_array_whose_parts_disagree_is_refused(
    tmp_path: Path, dtype: str, content: object, shape: tuple[int, ...]
) -> None:
    path = tmp_path / "motif_results.pkl"
    path.write_bytes(with_state(dtype, content, shape))
    with pytest.raises(UserError, match="it was not read"):
        read_plain_pickle(path)


def test_values_within_themselves_and_beyond_number_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UserError, match="nested more than 12 deep"):
        read_plain_pickle(store(tmp_path, loop))
    many: list[Any] = [0] * 1000
    for _ in range(4):  # a few kilobytes that stand for 10¹⁵ values
        many = [many] * 1000
    assert motif_results._MOST_VALUES == 10_000_000
    monkeypatch.setattr(motif_results, "_MOST_VALUES", 10_000)
    with pytest.raises(UserError, match="more than 10,000 values"):
        read_plain_pickle(store(tmp_path, many))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = store(tmp_path, {"a": np.arange(100.0)})
    whole = path.read_bytes()
    for length in (0, 1, 30, len(whole) - 2):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="no whole pickle"):
            read_plain_pickle(path)
    path.write_bytes(b"PK\x03\x04 not a pickle")
    with pytest.raises(UserError, match="no whole pickle"):
        read_plain_pickle(path)
    path.write_bytes(pickle.PERSID + b"7\n.")
    with pytest.raises(UserError, match="refers to '7' outside the file"):
        read_plain_pickle(path)
    with pytest.raises(UserError, match="found none at"):
        read_motif_results(tmp_path / "absent.pkl")
    (tmp_path / "bad.json").write_text("{", "utf8")
    with pytest.raises(UserError, match="is not JSON"):
        read_motif_results(tmp_path / "bad.json")


@pytest.mark.parametrize(
    "value",
    [
        {"NetHackScore-v1": {"motif": {"timesteps": [STEPS, STEPS], "returns": TWO}}},
        {"NetHackScore-v1": {"motif": {"steps": STEPS, "average_returns": TWO}}},
        {"NetHackScore-v1": {"motif": {"env_steps": np.array(STEPS), "return": np.array(TWO)}}},
        {"NetHackScore-v1": {"timesteps": STEPS, "returns": {"motif": TWO}}},
        {"NetHackScore-v1": {"timesteps": {"motif": STEPS}, "returns": {"motif": np.array(TWO)}}},
        {"NetHackScore-v1": {"motif": [{"frames": STEPS, "score": row} for row in TWO]}},
        {"NetHackScore-v1": {"motif": (STEPS, TWO)}},
        {"NetHackScore-v1": {"motif": [(STEPS, row) for row in TWO]}},
        {"NetHackScore-v1": {"motif": {"x": STEPS, "y": np.array(TWO, dtype=object)}}},
    ],
)
def test_any_nesting_is_understood(tmp_path: Path, value: Any) -> None:
    assert list(read_motif_results(store(tmp_path, value))) == EXPECTED


def test_tasks_without_methods_are_understood(tmp_path: Path) -> None:
    value = {"oracle": {"timesteps": STEPS, "returns": TWO[0]}}
    found = read_motif_results(store(tmp_path, value))
    assert found == (PublishedCurve("oracle", "", 0, tuple(STEPS), tuple(TWO[0])),)


def test_a_file_without_curves_is_sketched(tmp_path: Path) -> None:
    value = {"a": {"b": np.zeros((2, 3)), "c": [1, 2]}}
    with pytest.raises(UserError, match=r"it holds \{'a': \{'b': array \(2, 3\), 'c': list of 2"):
        read_motif_results(store(tmp_path, value))


def test_our_own_form_comes_back(tmp_path: Path) -> None:
    curves = [*EXPECTED, PublishedCurve("oracle", "extrinsic", 0, (1.0,), (0.5,))]
    write_motif_results(tmp_path / "curves.json", curves)
    assert list(read_motif_results(tmp_path / "curves.json")) == curves
    tree = json.loads((tmp_path / "curves.json").read_text("utf8"))
    assert tree["NetHackScore-v1"]["motif"]["returns"] == TWO
    assert [path.name for path in tmp_path.iterdir()] == ["curves.json"]


def test_what_the_stand_ins_know_is_all_that_numpy_writes() -> None:
    """Names in a pickle of arrays by this NumPy: a new one would be refused by every reader."""
    names = set()
    for protocol in (2, 5):
        data = pickle.dumps([np.zeros(2), np.float64(1)], protocol=protocol)
        names |= {
            str(argument)
            for opcode, argument, _ in pickletools.genops(data)
            if opcode.name in ("GLOBAL", "SHORT_BINUNICODE") and "numpy" in str(argument)
        }
    assert names  # else the format has changed

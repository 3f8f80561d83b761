"""The replay page in a real browser, without a network: keys, buttons, what each step shows."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llm_agents.evaluation.replay_frames import EpisodeRecord, Frame, Span
from llm_agents.evaluation.replay_page import PageWriter
from llm_agents.evaluation.replay_text import Moment, Token, text_frames

BROWSER = next(
    (found for name in ("chromium", "google-chrome", "chrome") if (found := shutil.which(name))),
    None,
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no headless browser on this machine")

PRESS = """
<script>
{
const pressed = %s;
const seen = [];
const note = () => seen.push([
  document.getElementById("heading").textContent,
  document.getElementById("screen").textContent.trim(),
  document.getElementById("side").textContent,
  [...document.querySelectorAll("#side span")].map((s) => s.style.backgroundColor).filter(Boolean),
]);
note();
for (const key of pressed) {
  document.dispatchEvent(new KeyboardEvent("keydown", {key: key, bubbles: true}));
  note();
}
const out = document.createElement("pre");
out.id = "found";
out.textContent = JSON.stringify(seen);
document.body.append(out);
}
</script>
"""


def write_page(path: Path) -> None:
    writer = PageWriter(path, 0.1, "a <b>POAD</b> agent")
    for episode in (1, 2):
        moments = [
            Moment(
                prompt=f"You see a chest <i>here</i>, step {step} of episode {episode}.",
                actions=("open the chest", "go away"),
                probabilities=(0.75, 0.25),
                chosen=step % 2,
                value=0.5,
                reward=float(step),
                tokens=(Token("open", 1.0), Token(" the", 0.0), Token(" chest", -0.5)),
            )
            for step in range(3)
        ]
        for frame in text_frames(episode, moments, "The end.", is_complete=True):
            writer.add(frame)
        writer.end_episode(EpisodeRecord(episode, {"return": 3.0}))
    writer.close()


def pressed(page: Path, keys: Sequence[str], folder: Path) -> list[Any]:
    """Return what the page shows before any key and after each."""
    probe = folder / "probe.html"
    text = page.read_text(encoding="utf8")
    script = PRESS % json.dumps(list(keys))
    probe.write_text(text.replace("</body>", f"{script}</body>"), encoding="utf8")
    dom = browse(folder, "--dump-dom", probe.as_uri())
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert found is not None, dom[-500:]
    seen = json.loads(html.unescape(found[1]))
    assert isinstance(seen, list)
    return seen


def browse(folder: Path, *words: str) -> str:
    assert BROWSER is not None
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += [f"--user-data-dir={folder / 'browser'}", "--host-resolver-rules=MAP * ~NOTFOUND"]
    done = subprocess.run(
        [BROWSER, *options, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "HOME": str(folder)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@needs_browser
def test_keys_step_through_the_page(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    write_page(page)
    keys = ["ArrowRight", "ArrowLeft", "]", "[", "End", "Home", "PageDown", "q"]
    seen = pressed(page, keys, tmp_path)
    steps = [entry[0].partition(" · value")[0].partition(" · return")[0] for entry in seen]
    assert steps == [
        "episode 1 · step 0",
        "episode 1 · step 1",
        "episode 1 · step 0",
        "episode 2 · step 0",
        "episode 1 · step 0",
        "episode 2 · step 3",
        "episode 1 · step 0",
        "episode 2 · step 3",
        "episode 2 · step 3",
    ]
    _, screen, side, colors = seen[1]
    assert screen == "You see a chest <i>here</i>, step 1 of episode 1."  # shown, not obeyed
    assert re.search(r"^  0\.750 █+░+ open the chest$", side, re.MULTILINE)
    assert re.search(r"^→ 0\.250 █+░+ go away$", side, re.MULTILINE)
    assert "reward +1.000" in side
    assert len(colors) == 3
    best, none, worst = ([int(part) for part in re.findall(r"\d+", c)] for c in colors)
    assert best[1] > best[0]  # green for a gain
    assert worst[0] > worst[1]  # red for a loss
    assert max(none) - min(none) < 10


@needs_browser
def test_the_page_asks_for_nothing_and_draws_itself(tmp_path: Path) -> None:
    page, picture = tmp_path / "a.html", tmp_path / "a.png"
    write_page(page)
    browse(tmp_path, f"--screenshot={picture}", "--window-size=1400,900", page.as_uri())
    assert picture.stat().st_size > 10_000
    assert page.stat().st_size < 40_000
    assert not re.search(r"(src|href)=|https?://", page.read_text(encoding="utf8"))


def write_repeats(path: Path) -> None:
    """Two episodes in which messages 1 and 2, or 1 to 4, only repeat message 0."""
    writer = PageWriter(path, 0.1, "a Motif agent")
    for episode, repeats in ((1, {1, 2}), (2, {1, 2, 3, 4})):
        for step in range(5):
            text = ((Span(f"step {step}"),),)
            writer.add(Frame(episode, step, (), text, (), is_repeat=step in repeats))
        writer.end_episode(EpisodeRecord(episode, {"return": 0.0}))
    writer.close()


PASS_OVER = 'document.getElementById("pass").checked = true;'


@needs_browser
def test_steps_that_repeat_a_message_can_be_passed_over(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    write_repeats(page)
    forward = ["ArrowRight"] * 4
    plain = [entry[0] for entry in pressed(page, forward, tmp_path)]
    assert plain == [f"episode 1 · step {step}" for step in range(5)]
    text = page.read_text(encoding="utf8")
    page.write_text(text.replace("show(0);\n</script>", f"show(0);\n{PASS_OVER}\n</script>"))
    keys = [*forward, "ArrowLeft", "ArrowLeft", "ArrowLeft"]
    seen = [
        entry[0].replace("episode ", "").replace(" · step ", ".")
        for entry in pressed(page, keys, tmp_path)
    ]
    assert seen == ["1.0", "1.3", "1.4", "2.0", "2.4", "2.0", "1.4", "1.3"]


def test_only_a_page_with_repeats_offers_to_pass_over_them(tmp_path: Path) -> None:
    write_page(tmp_path / "a.html")
    write_repeats(tmp_path / "b.html")
    marks = [(tmp_path / name).read_text().count('"repeat":true') for name in ("a.html", "b.html")]
    assert marks == [0, 6]

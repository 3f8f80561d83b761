"""Replays: one kind of frame, written as terminal text, recording, picture, video and page."""

from __future__ import annotations

import io
import json
import re
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from llm_agents.errors import UserError
from llm_agents.evaluation.replay_frames import (
    COLUMNS,
    ROWS,
    SCREEN_COLUMNS,
    EpisodeRecord,
    Frame,
    Line,
    MessageRow,
    Span,
    Writers,
    fitted,
    laid_out,
    width,
)
from llm_agents.evaluation.replay_nethack import (
    INKS,
    MessageTally,
    MessageWorth,
    screen_of,
    side_of,
)
from llm_agents.evaluation.replay_page import PageWriter
from llm_agents.evaluation.replay_pictures import PAPER, GifWriter, Mp4Writer, Painter, find_encoder
from llm_agents.evaluation.replay_records import RecordWriter, facts_line, message_table
from llm_agents.evaluation.replay_terminal import CastWriter, TerminalWriter, ansi, drawn
from llm_agents.evaluation.replay_text import Moment, Token, decision_lines, text_frames, wrapped

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
RED = Span("red", "#ff0000")


def text_of(line: Line) -> str:
    return "".join(span.text for span in line)


def frame(step: int, screen: str = "abc", side: str = "side") -> Frame:
    return Frame(1, step, (("reward", "0.50"),), ((Span(screen), RED),), ((Span(side),),))


RECORD = EpisodeRecord(
    1, {"score": 7, "return": 1.23456, "success": True}, (MessageRow("a", 2, 1.0, 1.125, 3.0, 1.0),)
)


# --- frames ---------------------------------------------------------------------------------------


def test_a_laid_out_frame_has_its_size_whatever_is_in_it() -> None:
    long = tuple((Span("x" * 200),) for _ in range(ROWS + 5))
    for shown in (frame(0), Frame(3, 1, (), long, long), Frame(1, 1, (), (), ())):
        lines = laid_out(shown)
        assert len(lines) == ROWS
        assert {width(line) for line in lines} == {COLUMNS}
    assert text_of(laid_out(Frame(1, 1, (), long, ()))[-1]).startswith("… 7 more lines ")
    assert text_of(laid_out(frame(4))[0]).rstrip() == "episode 1 · step 4 · reward 0.50"
    assert text_of(laid_out(frame(4))[1])[: SCREEN_COLUMNS + 7] == "abcred".ljust(80) + " │ side"


def test_a_line_is_cut_inside_a_span() -> None:
    assert fitted((Span("ab"), RED), 3) == (Span("ab"), Span("r", "#ff0000"))
    assert fitted((), 2) == (Span("  "),)


# --- terminal and recording -----------------------------------------------------------------------


def test_styles_become_escape_sequences_and_end() -> None:
    line = (Span("a"), Span("b", "#010203", "#0a0b0c", bold=True))
    assert ansi(line) == "a\x1b[1;38;2;1;2;3;48;2;10;11;12mb\x1b[0m"


def test_a_world_cannot_steer_the_terminal() -> None:
    assert ansi((Span("a\x1b]0;title\x07\x9b2J"),)) == "a·]0;title··2J"


def test_the_terminal_shows_each_frame_over_the_one_before() -> None:
    stream = io.StringIO()
    writer = TerminalWriter(stream, 0.0)
    for step in range(2):
        writer.add(frame(step))
    writer.end_episode(RECORD)
    said = stream.getvalue()
    assert said.startswith("\x1b[?25l\x1b[2J\x1b[H")
    assert said.count("\x1b[2J") == 1
    assert said.count("\x1b[H") == 2
    assert said.endswith(f"\x1b[?25h\x1b[{ROWS + 1};1H\n")  # the cursor is back, below the frame
    writer.close()
    assert stream.getvalue() == said


def test_a_recording_is_asciinema_of_version_2(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.cast"
    writer = CastWriter(path, 0.25, "title")
    for step in range(3):
        writer.add(frame(step))
    assert not path.exists()  # unfinished: under another name
    writer.close()
    header, *events = [json.loads(line) for line in path.read_text().splitlines()]
    assert (header["version"], header["width"], header["height"]) == (2, COLUMNS, ROWS)
    assert header["title"] == "title"
    assert [event[:2] for event in events] == [[0.0, "o"], [0.25, "o"], [0.5, "o"]]
    for step, event in enumerate(events):
        shown = ESCAPE.sub("", event[2]).split("\r\n")
        expected = [text_of(line).rstrip() for line in laid_out(frame(step))]
        assert [line.rstrip() for line in shown] == expected
    assert list(path.parent.iterdir()) == [path]


def test_what_went_wrong_leaves_no_file(tmp_path: Path) -> None:
    writers = Writers(
        [
            CastWriter(tmp_path / "a.cast", 0.1, "t"),
            GifWriter(tmp_path / "a.gif", 0.1),
            PageWriter(tmp_path / "a.html", 0.1, "t"),
            RecordWriter(tmp_path / "a.json", "t"),
        ]
    )
    writers.add(frame(0))
    writers.discard()
    assert list(tmp_path.iterdir()) == []


# --- pictures -------------------------------------------------------------------------------------


def test_a_picture_shows_letters_in_their_cells_and_colors() -> None:
    painter = Painter()
    shown = Frame(1, 0, (), ((Span("M", "#ff0000", "#0000ff"),),), ())
    picture = painter.paint(shown)
    wide, high = painter.cell
    assert picture.size == painter.size
    assert all(side % 2 == 0 for side in picture.size)
    cell = {picture.getpixel((x, y)) for x in range(wide) for y in range(high, 2 * high)}
    assert (255, 0, 0) in cell
    assert (0, 0, 255) in cell
    paper = tuple(int(PAPER[place : place + 2], 16) for place in (1, 3, 5))
    assert picture.getpixel((wide + 2, high + 2)) == paper


def test_a_gif_has_a_picture_a_frame_and_pauses_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    writer = GifWriter(path, 0.1)
    for step in range(3):
        writer.add(frame(step))
    writer.end_episode(RECORD)
    writer.close()
    with Image.open(path) as picture:
        assert picture.n_frames == 3
        durations = []
        for number in range(3):
            picture.seek(number)
            durations.append(picture.info["duration"])
        assert durations == [100, 100, 2100]
        assert picture.info["loop"] == 0


@pytest.mark.parametrize("writer", [GifWriter, lambda path, s: PageWriter(path, s, "t")])
def test_a_replay_without_a_frame_is_refused(writer: type[GifWriter], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no frame was recorded"):
        writer(tmp_path / "a", 0.1).close()
    assert list(tmp_path.iterdir()) == []


ENCODER = """\
#!{python}
import sys
pixels = sys.stdin.buffer.read()
if b"fail" in sys.argv[-1].encode():
    sys.exit("no space left")
open(sys.argv[-1], "w").write(" ".join([str(len(pixels)), *sys.argv[1:]]))
"""


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program called ffmpeg on the path that writes down what it was given."""
    program = tmp_path / "bin" / "ffmpeg"
    program.parent.mkdir()
    program.write_text(ENCODER.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


def test_a_video_hands_every_pixel_to_the_encoder(encoder: Path, tmp_path: Path) -> None:
    assert find_encoder() == str(encoder)
    path = tmp_path / "out" / "a.mp4"
    writer = Mp4Writer(path, 0.125)
    for step in range(2):
        writer.add(frame(step))
    writer.close()
    wide, high = Painter().size
    count, *options = path.read_text().split()
    assert int(count) == 2 * 3 * wide * high
    assert options[options.index("-s") + 1] == f"{wide}x{high}"
    assert options[options.index("-r") + 1] == "8"
    assert list(path.parent.iterdir()) == [path]


def test_a_video_that_fails_says_why_and_leaves_no_file(encoder: Path, tmp_path: Path) -> None:
    del encoder
    writer = Mp4Writer(tmp_path / "fail.mp4", 0.125)
    writer.add(frame(0))
    with pytest.raises(UserError, match=r"could not write .*fail\.mp4: no space left"):
        writer.close()
    assert not list(tmp_path.glob("*.mp4"))
    assert not list(tmp_path.glob(".*"))


def test_without_an_encoder_a_video_is_refused_with_a_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setattr("llm_agents.evaluation.replay_pictures.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"no `ffmpeg` on the path: install it, or"):
        Mp4Writer(tmp_path / "a.mp4", 0.1)


# --- page -----------------------------------------------------------------------------------------


def written_page(tmp_path: Path, *frames: Frame, title: str = "t") -> str:
    path = tmp_path / "a.html"
    writer = PageWriter(path, 0.125, title)
    for each in frames:
        writer.add(each)
    writer.end_episode(RECORD)
    writer.close()
    return path.read_text(encoding="utf8")


def content_of(page: str) -> dict[str, object]:
    found = re.search(r'<script id="replay" type="application/json">(.*?)</script>', page, re.S)
    assert found is not None
    content = json.loads(found[1])
    assert isinstance(content, dict)
    return content


def test_a_page_holds_every_frame_and_each_line_once(tmp_path: Path) -> None:
    frames = [frame(step, screen="same", side=f"side {step % 2}") for step in range(40)]
    content = content_of(written_page(tmp_path, *frames))
    lines, styles = content["lines"], content["styles"]
    assert isinstance(lines, list)
    assert isinstance(styles, list)
    assert len(lines) == 3
    shown = content["frames"]
    assert isinstance(shown, list)
    assert len(shown) == 40
    for wanted, entry in zip(frames, shown, strict=True):
        for half in ("screen", "side"):
            found = [
                tuple(Span(text, *styles[style]) for style, text in lines[number])
                for number in entry[half]
            ]
            assert found == list(getattr(wanted, half))
        assert entry["heading"] == wanted.heading
    (record,) = content["episodes"]  # type: ignore[misc]
    assert record["messages"][0]["total"] == 1.125
    assert record["line"] == facts_line(RECORD)


def test_a_page_asks_for_nothing_and_runs_nothing_that_a_world_said(tmp_path: Path) -> None:
    nasty = "</script><img src=http://x.example/a onerror=alert(1)>"
    page = written_page(tmp_path, frame(0, screen=nasty), title="<b>&")
    assert nasty not in page
    assert content_of(page)["lines"][0][0][1].startswith(nasty)  # type: ignore[index]
    assert "<title>&lt;b&gt;&amp;</title>" in page
    without_data = re.sub(r'<script id="replay".*?</script>', "", page, flags=re.S)
    assert "http" not in without_data.replace("http-equiv", "")
    assert not re.search(r"\b(src|href)=|@import|url\(", without_data)
    assert "default-src 'none'" in page
    assert page.count("<script") == page.count("</script>") == 2


def test_a_page_can_be_stepped_through_by_keys(tmp_path: Path) -> None:
    page = written_page(tmp_path, frame(0))
    for key in ("ArrowLeft", "ArrowRight", "PageUp", "PageDown", "Home", "End", '"["', '"]"'):
        assert f"{key}: () => " in page
    assert '" ": toggle' in page


# --- what came of the episodes --------------------------------------------------------------------


def test_records_are_kept_as_json(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "a.json", "t")
    writer.end_episode(RECORD)
    writer.close()
    values = json.loads((tmp_path / "a.json").read_text())
    assert values["title"] == "t"
    assert values["episodes"][0]["facts"] == {"score": 7, "return": 1.23456, "success": True}
    assert values["episodes"][0]["messages"] == [
        {"message": "a", "times": 2, "first": 1.0, "total": 1.125, "raw": 3.0, "normalized": 1.0}
    ]


def test_facts_and_messages_are_shown_in_the_terminal() -> None:
    assert facts_line(RECORD) == "episode 1 · score 7 · return 1.235 · success yes"
    table = message_table([MessageRow("[red]", 1)] * 30)
    assert [str(column.header) for column in table.columns] == ["times", "message"]
    assert table.row_count == 25
    assert table.caption == "and 5 more messages"
    assert next(iter(table.columns[1].cells)) == r"\[red]"  # no markup of a world's is obeyed


# --- NetHack --------------------------------------------------------------------------------------


def test_the_terminal_of_the_game_keeps_characters_and_colors() -> None:
    chars = np.full((24, 80), 32, np.uint8)
    colors = np.zeros((24, 80), np.int8)
    chars[1, 2:5] = list(b"@@.")
    colors[1, 2:5] = [15, 15, 16 + 7]  # a bit above the color's four
    chars[0, :3] = [27, 0, 150]
    lines = screen_of(chars, colors, np.array([1, 4], np.uint8))
    assert len(lines) == 24
    assert lines[1] == (Span("  "), Span("@@", INKS[15]), Span(".", INKS[7], "#505050"))
    assert lines[2] == ()
    assert ansi(lines[0]).count("·") == 2
    assert len(drawn(Frame(1, 0, (), lines, ())).split("\r\n")) == ROWS


WORTHS = {b"a": (4.0, 2.0, 2.0), b"b": (1.0, 0.25, 0.0), b"": (-1.0, -0.5, 0.0)}


def tally_of(messages: list[bytes], *, has_reward: bool = True) -> MessageTally:
    worth = (lambda message: MessageWorth(*WORTHS[message])) if has_reward else None
    tally = MessageTally(worth)
    for message in messages:
        tally.see(message)
    return tally


def test_each_occurrence_of_a_message_pays_less() -> None:
    # counts 1, 1, 2, 3, 2, 1 → factors 1, 1, 1/8, 1/27, 1/8, 1
    tally = tally_of([])
    paid = [tally.see(message) for message in (b"a", b"", b"a", b"a", b"", b"b")]
    assert paid == pytest.approx([2.0, 0.0, 2 / 8, 2 / 27, 0.0, 0.0])
    assert tally.total == pytest.approx(2 + 2 / 8 + 2 / 27)


def test_messages_are_told_apart_by_their_bytes() -> None:
    tally = MessageTally(lambda message: MessageWorth(1.0, 1.0, 1.0))
    assert [tally.see(message) for message in (b"ab", b"a\0b", b"ab\0")] == [1.0, 1.0, 1.0]
    assert [row.message for row in tally.rows("times")] == ["ab", "ab", "ab"]


@pytest.mark.parametrize(
    ("order", "expected"), [("reward", "ab "), ("total", "ab "), ("times", " ba")]
)
def test_messages_are_sorted_as_asked(order: str, expected: str) -> None:
    tally = tally_of([b"a", b"b", b"b", b"", b"", b""])
    rows = tally.rows(order)  # type: ignore[arg-type]
    assert "".join(row.message or " " for row in rows) == expected


def test_the_side_shows_what_messages_pay_and_marks_the_present_one() -> None:
    lines = side_of(tally_of([b"a", b"a", b"b"]), "reward", 30)
    assert [text_of(line).rstrip() for line in lines] == [
        "  first ×times  total  message",
        "   2.00 ×2      2.25  a",
        "   0.00 ×1      0.00  b",
    ]
    assert lines[2][-1] == Span("b", "#ffff66", None, bold=True)
    plain = side_of(tally_of([b"a"], has_reward=False), "reward", 30)
    assert [text_of(line) for line in plain] == ["times  message", "    1  a"]
    assert len(side_of(tally_of([b"a", b"b", b""]), "times", 2)) == 2


# --- text worlds ----------------------------------------------------------------------------------

MOMENT = Moment(
    prompt="You see a chest. You",
    actions=("open the chest", "wait"),
    probabilities=(0.25, 0.75),
    chosen=0,
    value=0.5,
    reward=1.0,
    tokens=(Token(" open", 0.5), Token(" the chest", -0.25)),
)


def test_a_decision_shows_chances_choice_reward_and_the_credit_of_tokens() -> None:
    lines = decision_lines(MOMENT, limit=0.5)
    assert [text_of(line).rstrip() for line in lines] == [
        "actions",
        "  0.750 ████████░░ wait",
        "→ 0.250 ██░░░░░░░░ open the chest",
        "",
        "reward +1.000",
        "",
        "advantage of each part",
        "  +0.5000  open",
        "  -0.2500  the chest",
    ]
    gain, loss = lines[-2][1].background, lines[-1][1].background
    assert gain == "#28963c"  # all the way
    assert loss is not None
    red, green, _ = (int(loss[place : place + 2], 16) for place in (1, 3, 5))
    assert red > green  # half-way from the paper to red


def test_an_agent_without_chances_shows_its_actions_in_their_order() -> None:
    lines = decision_lines(Moment("p", ("a", "b"), None, 1, 0.0, 0.0), limit=1.0)
    assert [text_of(line) for line in lines[1:3]] == ["  a", "→ b"]


def test_an_episode_of_a_text_world_is_a_frame_a_decision_and_its_end() -> None:
    frames = text_frames(2, [MOMENT, MOMENT], "The chest is open.", is_complete=True)
    assert [shown.heading for shown in frames] == [
        "episode 2 · step 0 · value 0.500 · return so far 0.000",
        "episode 2 · step 1 · value 0.500 · return so far 1.000",
        "episode 2 · step 2 · return 2.000 · end",
    ]
    assert text_of(frames[-1].screen[0]) == "The chest is open."


def test_long_prompts_are_wrapped_and_keep_their_own_lines() -> None:
    lines = [text_of(line) for line in wrapped(f"{'word ' * 30}\n\nend", 20)]
    assert all(len(line) <= 20 for line in lines)
    assert lines[-2:] == ["", "end"]
    assert wrapped("") == ((),)


def test_a_tally_knows_what_only_repeats() -> None:
    """The kitten that is swapped with again and again."""
    tally = tally_of([b"You swap places with kitten."], has_reward=False)
    assert tally.last_times == 1
    assert tally.most_repeated() is None
    for message in (b"", b"", b"You swap places with kitten.", b"You see here a coin."):
        tally.see(message)
    assert tally.last_times == 1  # of the coin
    tally.see(b"You swap places with kitten.")
    assert tally.last_times == 3
    most = tally.most_repeated()
    assert most is not None
    assert (most.message, most.times) == ("You swap places with kitten.", 3)
    tally.see(b"")
    assert tally.last_times == 0  # nothing is said, which repeats nothing

"""Replays as pictures: an animated GIF, or MP4 where there is an encoder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from llm_agents.errors import UserError
from llm_agents.evaluation.replay_frames import (
    COLUMNS,
    ROWS,
    EpisodeRecord,
    Frame,
    ReplayWriter,
    laid_out,
)

if TYPE_CHECKING:
    from PIL import Image, ImageFont

INK, PAPER = "#c8c8c8", "#101014"
_FONT_SIZE = 13


class Painter:
    """Draws frames with a monospace font that matplotlib brings along."""

    @cached_property
    def font(self) -> ImageFont.FreeTypeFont:
        """Return the font."""
        import matplotlib
        from PIL import ImageFont

        path = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSansMono.ttf")
        return ImageFont.truetype(str(path), _FONT_SIZE)

    @cached_property
    def cell(self) -> tuple[int, int]:
        """Return width and height of a character in pixels."""
        ascent, descent = self.font.getmetrics()
        return round(self.font.getlength("M")), ascent + descent

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height of a picture: even numbers, which video formats want."""
        wide, high = self.cell
        return 2 * -(-COLUMNS * wide // 2), 2 * -(-ROWS * high // 2)

    def paint(self, frame: Frame) -> Image.Image:
        """Return the picture of a frame."""
        from PIL import Image, ImageDraw

        picture = Image.new("RGB", self.size, PAPER)
        draw = ImageDraw.Draw(picture)
        wide, high = self.cell
        for row, line in enumerate(laid_out(frame)):
            column = 0
            for span in line:
                x, y = column * wide, row * high
                column += len(span.text)
                if span.background:
                    draw.rectangle((x, y, column * wide - 1, y + high - 1), fill=span.background)
                if span.text.strip():  # each in its cell, whatever the font makes of a run
                    for place, letter in enumerate(span.text):
                        ink = span.color or INK
                        draw.text((x + place * wide, y), letter, fill=ink, font=self.font)
        return picture


class GifWriter(ReplayWriter):
    """Writes an animated GIF; pauses at the end of an episode.

    Args:
        path: File to write.
        seconds: Between frames; viewers show at least 0.02.
    """

    _PAUSE = 2.0

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.seconds = path, max(0.02, seconds)
        self._painter = Painter()
        self._frames: list[Frame] = []  # as text: thousands of pictures would fill the memory
        self._durations: list[int] = []

    def add(self, frame: Frame) -> None:
        """Keep a frame."""
        self._frames.append(frame)
        self._durations.append(round(1000 * self.seconds))

    def end_episode(self, record: EpisodeRecord) -> None:
        """Let the last frame stand for a while."""
        del record
        if self._durations:
            self._durations[-1] += round(1000 * self._PAUSE)

    def close(self) -> None:
        """Paint the frames and write the file."""
        if not self._frames:
            raise UserError(f"no frame was recorded: {self.path} is not written")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{os.getpid()}.{self.path.name}")
        pictures = self._pictures()
        next(pictures).save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=pictures,
            duration=self._durations,
            loop=0,
        )
        temporary.replace(self.path)

    def discard(self) -> None:
        """Leave nothing behind: there is no file before the end."""
        self._frames.clear()

    def _pictures(self) -> Iterator[Image.Image]:
        """Yield the frames as pictures of few colors."""
        from PIL import Image

        for frame in self._frames:
            picture = self._painter.paint(frame)
            yield picture.quantize(64, method=Image.Quantize.FASTOCTREE)


def find_encoder() -> str:
    """Return the path of ffmpeg: of this machine, or of the package ``imageio-ffmpeg``.

    Raises:
        UserError: There is none.
    """
    found = shutil.which("ffmpeg")
    if found is None and find_spec("imageio_ffmpeg") is not None:
        found = str(import_module("imageio_ffmpeg").get_ffmpeg_exe())
    if found is None:
        raise UserError(
            "expected an encoder for MP4, but there is no `ffmpeg` on the path: install it, or "
            "`pip install imageio-ffmpeg`, or write `--gif`, `--cast` or `--html` instead"
        )
    return found


class Mp4Writer(ReplayWriter):
    """Hands pictures to ffmpeg.

    Args:
        path: File to write.
        seconds: Between frames.

    Raises:
        UserError: There is no encoder.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        encoder = find_encoder()
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._painter = Painter()
        self._temporary = path.with_name(f".{os.getpid()}.{path.name}")
        wide, high = self._painter.size
        command = [encoder, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
        command += ["-s", f"{wide}x{high}", "-r", f"{1 / max(seconds, 0.01):.6g}", "-i", "-"]
        command += ["-pix_fmt", "yuv420p", "-f", "mp4", str(self._temporary)]
        self._encoder = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)

    def add(self, frame: Frame) -> None:
        """Encode a frame."""
        assert self._encoder.stdin is not None
        try:
            self._encoder.stdin.write(self._painter.paint(frame).tobytes())
        except BrokenPipeError as error:
            raise self._fault() from error

    def close(self) -> None:
        """Write the file.

        Raises:
            UserError: The encoder failed.
        """
        _, said = self._encoder.communicate()
        if self._encoder.returncode:
            raise self._fault(said)
        self._temporary.replace(self.path)

    def discard(self) -> None:
        """Stop the encoder and remove its file."""
        self._encoder.kill()
        self._encoder.communicate()
        self._temporary.unlink(missing_ok=True)

    def _fault(self, said: bytes | None = None) -> UserError:
        """Return what the encoder complains of."""
        if said is None and self._encoder.stderr is not None:
            said = self._encoder.stderr.read()
        text = (said or b"").decode(errors="replace").strip()
        self._temporary.unlink(missing_ok=True)
        return UserError(f"ffmpeg could not write {self.path}: {text or 'it gave no reason'}")

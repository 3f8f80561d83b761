from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.image import imread

from llm_agents.errors import UserError
from llm_agents.evaluation import (
    CreditPicture,
    Curve,
    DecisionPicture,
    plot_credit,
    plot_curves,
    plot_decisions,
    read_curve,
)
from llm_agents.evaluation.intervals import BootstrapConfig
from llm_agents.evaluation.pictures import band
from llm_agents.evaluation.suite_pictures import ProbeCurves, plot_probes


def test_a_curve_is_read_from_the_rows_in_which_episodes_ended() -> None:
    rows = [
        {"step": 10.0, "rollout/episodes": 0.0},
        {"step": 20.0, "rollout/episodes": 1.0, "rollout/return_mean": 0.0},
        {"step": 30.0, "rollout/episodes": 3.0, "rollout/return_mean": 0.4},
    ]
    curve = read_curve(rows)
    assert curve == Curve((20, 30), (0, 0.4), (1, 3))
    assert read_curve(rows, value="train/loss") == Curve((), (), ())


def test_smoothing_weighs_by_episodes_and_looks_back_only() -> None:
    curve = Curve((10, 20, 30, 40), (0.0, 1.0, 2.0, 3.0), (1, 3, 1, 1))
    assert curve.smoothed(20).values == pytest.approx((0, 0.75, 1.25, 2.5))
    assert curve.smoothed(1).values == curve.values


def test_a_band_covers_the_steps_that_all_runs_have() -> None:
    first = Curve((0, 50, 100), (0.0, 0.5, 1.0), (1, 1, 1))
    second = Curve((20, 80), (0.2, 0.6), (1, 1))
    steps, means, lows, highs = band([first, second], BootstrapConfig())
    assert (steps[0], steps[-1]) == (20, 80)
    assert means[0] == pytest.approx(0.1)
    assert means[-1] == pytest.approx(0.55)
    assert all(low <= mean <= high for low, mean, high in zip(lows, means, highs, strict=True))


def painted(path: Path) -> bool:
    pixels = imread(path)
    return bool(pixels[..., :3].min() < 0.5 and pixels.shape[0] > 100)


def test_pictures_of_curves(tmp_path: Path) -> None:
    one = Curve((128, 256, 384), (0.0, 0.3, 0.6), (1, 2, 3))
    two = Curve((128, 256, 512), (0.1, 0.2, 0.9), (1, 2, 3))
    path = plot_curves(
        {"poad": [one, two], "twosome": [two], "empty": [Curve((), (), ())]},
        tmp_path / "in" / "curves.png",
        lines={"optimum": 0.77, "random": 0.003},
        title="food preparation",
        window=128,
    )
    assert painted(path)
    assert [file.name for file in path.parent.iterdir()] == ["curves.png"]
    with pytest.raises(UserError, match="expected a run in which an episode ended"):
        plot_curves({"none": [Curve((), (), ())]}, path)


def blue_pixels(path: Path) -> int:
    pixels = 255 * imread(path)[..., :3]
    upper = pixels[: int(0.8 * len(pixels))]  # without the legend
    return int((abs(upper - [31, 119, 180]).max(-1) < 8).sum())


@pytest.mark.parametrize(
    "curves",
    [
        [Curve((128,), (0.3,), (1,))],
        [Curve((128,), (0.3,), (1,)), Curve((128,), (0.5,), (1,))],
        [Curve((128, 256), (0.3, 0.4), (1, 1)), Curve((256,), (0.5,), (1,))],  # one step in common
    ],
    ids=["one run", "two runs", "one place in common"],
)
def test_a_curve_of_one_point_can_be_seen(tmp_path: Path, curves: list[Curve]) -> None:
    path = plot_curves({"motif": curves}, tmp_path / "one.png")
    assert blue_pixels(path) > 50


def test_probes_of_one_step_can_be_seen(tmp_path: Path) -> None:
    once = ProbeCurves((0.0,), {"ball": {"turn left": (0.4,), "go forward": (0.6,)}})
    path = plot_probes([once], ["go to the ball"], tmp_path / "probes.png", title="glam")
    assert blue_pixels(path) > 50


def test_pictures_of_decisions(tmp_path: Path) -> None:
    entries = [
        DecisionPicture(
            f"{step}: You are in the kitchen.\nYour next step is to",
            ("open the microwave", "wait", "walk to the bedroom"),
            {"trained": (0.9, 0.05, 0.05), "zero-shot": (0.2, 0.5, 0.3)},
            0,
        )
        for step in range(20)
    ]
    assert painted(plot_decisions(entries, tmp_path / "actions.png"))
    with pytest.raises(UserError, match="at least one decision"):
        plot_decisions([], tmp_path / "actions.png")


def test_pictures_of_credit(tmp_path: Path) -> None:
    entries = [
        CreditPicture("step 1", ("open", " the", " micro", "wave"), (0.3, 0.0, -0.01, 0.0)),
        CreditPicture("step 2", ("wait",), (-0.2,)),
        CreditPicture("whole", ("walk to the bath",), (0.1,)),
    ]
    assert painted(plot_credit(entries, tmp_path / "credit.png"))
    assert painted(plot_credit([CreditPicture("zero", ("a",), (0.0,))], tmp_path / "zero.png"))
    with pytest.raises(UserError, match="at least one action"):
        plot_credit([], tmp_path / "credit.png")

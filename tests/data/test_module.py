"""The data module by itself and under a real trainer: layouts, sampling, resume, processes."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict
from jsonargparse import ArgumentParser
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from llm_agents.data import HHAData, OfflineDataModule, PromptSplit, RowRules
from llm_agents.errors import UserError
from llm_agents.policies.text import TextCodec
from llm_agents.policies.tiny import tiny_tokenizer
from llm_agents.types import PromptBatch, RankedBatch, ScoredBatch


class Codec(TextCodec):
    """A tiny model's tokenizer with its window."""

    def __init__(self) -> None:
        super().__init__(tiny_tokenizer("llama"), is_encoder_decoder=False)
        self.context_length: int | None = 1024


class Recorder(LightningModule):
    """Trains one number and writes down the rows it was given."""

    def __init__(self, layout: str = "scored", weights: torch.Tensor | None = None) -> None:
        super().__init__()
        self.policy = Codec()
        self.batch_layout = layout
        self.weights = weights
        self.number = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []

    def on_fit_start(self) -> None:
        if self.weights is not None:
            self.trainer.datamodule.set_sampling(self.weights, 8)

    def training_step(self, batch: ScoredBatch | RankedBatch, batch_idx: int) -> torch.Tensor:
        self.seen.append(batch.tokens.rows.tolist())
        return self.number * len(batch.tokens)

    def validation_step(self, batch: PromptBatch, batch_idx: int) -> None:
        assert isinstance(batch, PromptBatch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def rows(count: int = 11, *, start: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"question {i} " + "and more " * (i % 5),
            "responses": [f"good {i}" * (1 + i % 3), f"bad {i}"],
            "rewards": [1.0 + i / 10, -1.0],
        }
        for i in range(start, start + count)
    ]


def write(path: Path, data: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in data))
    return str(path)


def module(
    folder: Path, data: list[dict[str, Any]] | None = None, **options: Any
) -> OfflineDataModule:
    train = write(folder / "train.jsonl", rows() if data is None else data)
    options = {"template": "alol", "batch_size": 2, "seed": 7, **options}
    return OfflineDataModule(train, **options)


def connected(data: OfflineDataModule, *layouts: Any) -> OfflineDataModule:
    data.connect(Codec(), *layouts)
    data.setup()
    return data


def test_scored_batches_hold_the_preferred_responses_and_their_rewards(tmp_path: Path) -> None:
    data = connected(module(tmp_path, reward_transform="sigmoid", reward_range=(0, 1)))
    loader = data.train_dataloader()
    assert len(loader) == 6
    seen = []
    for batch in loader:
        assert isinstance(batch, ScoredBatch)
        table_rows = batch.tokens.rows
        seen += table_rows.tolist()
        assert torch.equal(batch.rewards, data.table_rewards()[table_rows])
        texts = [data.table_texts()[1][row] for row in table_rows]
        decoded = [
            Codec().decode(ids[mask].tolist())
            for ids, mask in zip(batch.tokens.response_ids, batch.tokens.response_mask, strict=True)
        ]
        assert decoded == texts
    assert sorted(set(seen)) == list(range(0, 22, 2))
    first = torch.sigmoid(torch.tensor([1.0, -1.0]))
    assert torch.allclose(data.table_rewards()[:2], first)


def test_all_responses_can_be_drawn_uniformly_and_by_weight(tmp_path: Path) -> None:
    everything = connected(module(tmp_path, rules=RowRules(train_on="all")))
    seen = {row for batch in everything.train_dataloader() for row in batch.tokens.rows.tolist()}
    assert seen == set(range(22))
    data = connected(module(tmp_path))
    weights = torch.zeros(22)
    weights[[3, 8]] = 1.0
    data.set_sampling(weights, 40)
    loader = data.train_dataloader()
    assert len(loader) == 40
    drawn = [row for batch in loader for row in batch.tokens.rows.tolist()]
    assert set(drawn) == {3, 8}
    assert len(drawn) == 80
    rejected = next(b for b in data.train_dataloader() if 3 in b.tokens.rows.tolist())
    at = rejected.tokens.rows.tolist().index(3)
    assert rejected.rewards[at] == -1.0  # the rejected response keeps its own reward


def test_ranked_batches_hold_all_responses_and_raw_rewards(tmp_path: Path) -> None:
    data = connected(module(tmp_path, reward_transform="sigmoid"), "ranked")
    prompts = []
    for batch in data.train_dataloader():
        assert isinstance(batch, RankedBatch)
        assert batch.num_responses == 2
        assert len(batch.tokens) == 4
        first = batch.tokens.rows[::2]
        assert torch.equal(batch.tokens.rows[1::2], first + 1)
        assert torch.allclose(batch.rewards[:, 0], 1.0 + first / 2 / 10)
        assert (batch.rewards[:, 1] == -1.0).all()
        prompts += (first // 2).tolist()
    assert set(prompts) == set(range(11))
    data.set_sampling(torch.eye(11)[4], 3)
    drawn = [batch.tokens.rows.tolist() for batch in data.train_dataloader()]
    assert drawn == [[8, 9, 8, 9]] * 3


def test_data_without_rewards_have_nan(tmp_path: Path) -> None:
    plain = [{key: row[key] for key in ("prompt", "responses")} for row in rows()]
    data = connected(module(tmp_path, plain, reward_range=(0, 1)), "ranked")
    assert data.table_rewards().isnan().all()
    assert next(iter(data.train_dataloader())).rewards.isnan().all()


@pytest.mark.parametrize("layout", ["scored", "ranked"])
def test_a_data_set_of_one_row_trains(tmp_path: Path, layout: str) -> None:
    data = connected(module(tmp_path, rows(1)), layout)
    (batch,) = data.train_dataloader()
    assert len(batch.tokens) == (2 if layout == "scored" else 4)


def test_different_numbers_of_responses_cannot_be_ranked(tmp_path: Path) -> None:
    data = rows(3)
    data[1]["responses"].append("third")
    data[1]["rewards"].append(0.0)
    one = module(tmp_path, data)
    with pytest.raises(UserError, match=r"equally many responses .* got \[2, 3\]"):
        connected(one, "ranked")
    assert connected(one, "scored").table_size() == 7


def test_unscaled_logits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"from 0 to 1 .* got -1.0000 to 2.0000: set data.reward_tr"
    ):
        connected(module(tmp_path, reward_range=(0, 1)))


def test_nothing_left_of_the_training_data_says_why(tmp_path: Path) -> None:
    data = [{"prompt": "q", "responses": ["a:", "b"]}]
    with pytest.raises(UserError, match=r"no row is left: 0 of 1 .*1 dropped \(a response ends"):
        connected(module(tmp_path, data, drop_colon=True))


def test_long_rows_can_be_left_out(tmp_path: Path) -> None:
    data = rows(4)
    data[2]["responses"][1] = "too long " * 40
    data[3]["prompt"] = "too long " * 100
    options = {"max_prompt_tokens": 300, "max_response_tokens": 64}
    kept = connected(module(tmp_path, data, rules=RowRules(too_long="drop"), **options))
    assert kept.table_size() == 4
    report = kept.reports["train"]
    assert report.dropped == {"longer than the limits": 2}
    assert not report.changed
    cut = connected(module(tmp_path, data, **options))
    assert cut.table_size() == 8
    assert cut.reports["train"].changed == {
        "prompts truncated": 1,
        "responses truncated (no end token)": 1,
    }


def test_held_out_prompts_are_validated_and_tested_and_never_trained(tmp_path: Path) -> None:
    data = connected(
        module(
            tmp_path,
            rows(60),
            validation="held_out",
            test=["held_out", write(tmp_path / "other.jsonl", rows(3, start=90))],
            split_by_prompt=PromptSplit(seed=1, held_out=0.4),
            rules=RowRules(max_validation=5, max_train=20),
        )
    )
    trained = set(data.table_texts()[0])
    tested = {e.prompt for e in data.test_sets["held_out"].examples}
    validated = {p for batch in data.validation_batches(2) for p in batch.prompts}
    assert data.test_names == ["held_out", "other"]
    assert len(trained) == 20
    assert len(validated) == 5
    assert validated <= tested
    assert not trained & tested
    assert data.reports["train"].dropped["held out"] == len(tested)
    split = PromptSplit(seed=1, held_out=0.0)
    with pytest.raises(
        UserError, match=r"held-out prompts of .*train\.jsonl for validation, got no"
    ):
        connected(module(tmp_path, validation="held_out", split_by_prompt=split))


def test_test_sets_can_be_read_with_their_responses(tmp_path: Path) -> None:
    path = write(tmp_path / "other.jsonl", rows(3))
    split = PromptSplit(seed=1, held_out=0.4)
    data = module(tmp_path, rows(40), test=["held_out", path, path], split_by_prompt=split)
    found = data.read_test_examples()
    assert list(found) == connected(data).test_names == ["held_out", "other", "other-again"]
    assert [e.responses[1] for e in found["other"]] == ["bad 0", "bad 1", "bad 2"]
    assert found["held_out"] == list(data.test_sets["held_out"].examples)


def test_reports_are_logged_and_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="llm_agents.data"):
        data = connected(module(tmp_path, validation="sample", test="sample"))
    assert "train: 11 of 11 rows kept" in caplog.text
    data.save_report(tmp_path / "new" / "report.json")
    saved = json.loads((tmp_path / "new" / "report.json").read_text())
    assert list(saved) == ["train", "validation", "test/sample"]
    assert saved["train"] == {"rows": 11, "kept": 11, "dropped": {}, "changed": {}} | {
        "layouts": {"responses (prompt, responses, rewards)": 11}
    }


def test_validation_may_be_prompts_or_responses(tmp_path: Path) -> None:
    data = module(tmp_path, validation=write(tmp_path / "v.jsonl", rows(5)), eval_batch_size=2)
    prompts = list(connected(data).val_dataloader())
    assert [batch.rows.tolist() for batch in prompts] == [[0, 1], [2, 3], [4]]
    scored = list(connected(data, "scored", "scored").val_dataloader())
    assert [len(batch.tokens) for batch in scored] == [2, 2, 1]
    assert scored[0].tokens.rows.tolist() == [-1, -1]
    assert scored[0].rewards.tolist() == pytest.approx([1.0, 1.1])
    ranked = list(connected(data, "scored", "ranked").val_dataloader())
    assert [batch.rewards.shape for batch in ranked] == [(2, 2), (2, 2), (1, 2)]
    assert connected(module(tmp_path)).val_dataloader() == []


def test_validation_rows_without_responses_can_only_be_answered(tmp_path: Path) -> None:
    bare = write(tmp_path / "v.jsonl", [{"prompt": "q"}])
    data = module(tmp_path, validation=bare)
    assert len(connected(data).val_dataloader()) == 1
    with pytest.raises(UserError, match=r"responses in the validation data.*1 dropped \(no resp"):
        connected(data, "scored", "scored")


def test_what_is_not_set_up_says_so(tmp_path: Path) -> None:
    data = module(tmp_path)
    with pytest.raises(ValueError, match=r"connect\(policy\) before setup"):
        data.setup("fit")
    with pytest.raises(ValueError, match=r'setup\("fit"\)'):
        data.table_size()
    with pytest.raises(ValueError, match=r'setup\("test"\)'):
        _ = data.test_names


def test_table_and_prompt_batches_hold_everything_once(tmp_path: Path) -> None:
    data = connected(module(tmp_path, validation=write(tmp_path / "v.jsonl", rows(5))))
    found = [row for batch in data.table_batches(400) for row in batch.rows.tolist()]
    assert sorted(found) == list(range(22))
    assert [b.rows.tolist() for b in data.validation_batches(3)] == [[0, 1, 2], [3, 4]]
    assert data.table_preferred().tolist() == [True, False] * 11
    assert data.table_prompts().tolist() == [i // 2 for i in range(22)]
    assert data.fingerprint() == connected(module(tmp_path)).fingerprint()
    assert data.fingerprint() != connected(module(tmp_path, rows(10))).fingerprint()


def test_hha_data_have_the_release_settings(tmp_path: Path) -> None:
    data = HHAData(seed=1)
    connected(data)
    rewards = data.table_rewards()
    assert data.limits.max_prompt_tokens == 640
    assert data.limits.max_response_tokens == 128
    assert data.limits.template == "alol"
    assert 0 < float(rewards.min()) < float(rewards.max()) < 1
    assert data.clean_response(" Yes. ### Human: no") == "Yes."
    assert data.test_names == ["sample"]


def test_the_seed_is_the_runs_unless_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "41")
    assert module(tmp_path, seed=None).seed == 41
    assert module(tmp_path).seed == 7
    monkeypatch.delenv("PL_GLOBAL_SEED")
    assert module(tmp_path, seed=None).seed == 0


def test_a_recipe_builds_the_data_with_their_nested_settings(tmp_path: Path) -> None:
    parser = ArgumentParser()
    parser.add_argument("--data", type=LightningDataModule)
    path = write(tmp_path / "train.jsonl", rows(30))
    settings = {
        "train": [path],
        "validation": "held_out",
        "split_by_prompt": {"seed": 3, "held_out": 0.5},
        "rules": {"on_malformed": "skip", "rank_by": "reward", "max_train": 7},
        "truncation": "turns",
    }
    text = json.dumps({"class_path": "llm_agents.data.HHAData", "init_args": settings})
    data = parser.instantiate(parser.parse_args([f"--data={text}"])).data
    assert isinstance(data, HHAData)
    assert data.rules == RowRules(on_malformed="skip", rank_by="reward", max_train=7)
    assert data.split == PromptSplit(seed=3, held_out=0.5)
    assert connected(data).table_size() == 14
    assert data.drop_colon


# --- under a trainer


def trainer(folder: Path, **options: Any) -> Trainer:
    options = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": str(folder),
        "accumulate_grad_batches": 2,
        **options,
    }
    return Trainer(**options)


def test_a_trainer_takes_whole_steps_sorted_by_length(tmp_path: Path) -> None:
    recorder, data = Recorder(), module(tmp_path, validation="sample", eval_batch_size=64)
    trainer(tmp_path, max_steps=3).fit(recorder, datamodule=data)
    assert [len(found) for found in recorder.seen] == [2] * 6
    lengths = [int(data._training().lengths[found].max()) for found in recorder.seen]
    assert all(a >= b for a, b in zip(lengths[::2], lengths[1::2], strict=True))
    assert {row for found in recorder.seen for row in found} == set(range(0, 22, 2))
    assert 0 < data.padding_share < 0.5


def test_the_module_in_training_chooses_the_layout(tmp_path: Path) -> None:
    recorder = Recorder("ranked")
    trainer(tmp_path, max_steps=1).fit(recorder, datamodule=module(tmp_path))
    assert [len(found) for found in recorder.seen] == [4, 4]
    assert all(found[1::2] == [row + 1 for row in found[::2]] for found in recorder.seen)


WEIGHTS = torch.arange(22) % 4 / 3


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_a_run_resumed_from_any_step_sees_the_rows_of_the_unbroken_one(
    tmp_path: Path, weights: torch.Tensor | None
) -> None:
    """Steps 1 to 10 span the ends of rounds (3 or 4 steps of two batches)."""

    def run(steps: int, checkpoint: Path | None = None, save: bool = False) -> Recorder:
        recorder = Recorder(weights=weights)
        options: dict[str, Any] = {"max_steps": steps}
        if save:
            saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
            options |= {"callbacks": [saver], "enable_checkpointing": True}
        one = trainer(tmp_path, **options)
        one.fit(recorder, datamodule=module(tmp_path), ckpt_path=checkpoint)
        return recorder

    unbroken = run(10, save=True).seen
    assert len(unbroken) == 20
    for step in range(1, 10):
        resumed = run(10, tmp_path / f"step={step}.ckpt").seen
        assert resumed == unbroken[2 * step :], f"resumed from step {step}"


def test_a_run_with_other_data_is_not_resumed(tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1)
    one = trainer(tmp_path, max_steps=1, callbacks=[saver], enable_checkpointing=True)
    one.fit(Recorder(), datamodule=module(tmp_path))
    again = trainer(tmp_path, max_steps=2)
    with pytest.raises(UserError, match="the training data of the interrupted run"):
        again.fit(
            Recorder(), datamodule=module(tmp_path, rows(9)), ckpt_path=tmp_path / "step=1.ckpt"
        )


class RankRecorder(Recorder):
    """Leaves what each process saw in a file."""

    def on_train_end(self) -> None:
        path = Path(self.trainer.default_root_dir) / f"seen-{self.global_rank}.json"
        path.write_text(json.dumps(self.seen))


@pytest.mark.slow
def test_two_processes_share_each_step(tmp_path: Path) -> None:
    data = module(tmp_path, validation="sample", eval_batch_size=8)
    one = trainer(tmp_path, max_steps=3, devices=2, strategy="ddp_spawn")
    one.fit(RankRecorder(), datamodule=data)
    seen = [json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in range(2)]
    alone = Recorder()
    trainer(tmp_path, max_steps=3, accumulate_grad_batches=4).fit(
        alone, datamodule=module(tmp_path)
    )
    assert list(itertools.chain(*zip(*seen, strict=True))) == alone.seen


def test_rows_in_memory_are_data_like_a_file(tmp_path: Path) -> None:
    split = PromptSplit(1, 0.3)
    on_disk = connected(module(tmp_path, validation="held_out", split_by_prompt=split))
    options: dict[str, Any] = {"template": "alol", "split_by_prompt": split}
    both = DatasetDict(train=Dataset.from_list(rows()), test=Dataset.from_list(rows(3)))
    for source in (rows(), Dataset.from_list(rows()), both):
        data = OfflineDataModule(source, "held_out", rows(2), **options)
        found = connected(data)
        assert found.fingerprint() == on_disk.fingerprint()
        assert len(found.val_dataloader()) == len(on_disk.val_dataloader()) == 1
        assert found.test_names == ["rows"]
    listed = OfflineDataModule([rows(3), Dataset.from_list(rows(4))], test=[rows(1), both])
    assert connected(listed).table_size() == 14
    assert {name: len(prompts) for name, prompts in listed.test_sets.items()} == {
        "rows": 1,
        "rows-again": 3,
    }


def test_faults_of_rows_in_memory_name_the_row() -> None:
    with pytest.raises(UserError, match=r"^rows\[1\]: expected .* got 'x'; .*data\.rules\.on_mal"):
        connected(OfflineDataModule([*rows(1), "x"]))
    with pytest.raises(UserError, match=r"the split 'validation' in the data set given for vali.*"):
        connected(OfflineDataModule(rows(), DatasetDict(train=Dataset.from_list(rows()))))
    with pytest.raises(UserError, match="rows: expected at least one row, got none"):
        connected(OfflineDataModule(Dataset.from_list([])))
    with pytest.raises(UserError, match="expected training data in rows in memory, but no row"):
        connected(OfflineDataModule([{"prompt": "q"}]))


def split_of(data: OfflineDataModule) -> dict[str, set[str]]:
    """Return the prompts of every part as text."""
    connected(data)
    tables = {"train": data._training(), "validation": data._validated(), **data._tested()}
    prompts = {name: getattr(table, "prompts", table) for name, table in tables.items()}
    return {name: {e.prompt[0].text for e in table.examples} for name, table in prompts.items()}


def test_own_data_without_own_validation_are_held_out_and_never_taken_from_the_sample(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    doubled = [*rows(60), *rows(60)]
    path = write(tmp_path / "mine.jsonl", doubled)
    with caplog.at_level(logging.INFO, logger="llm_agents.data"):
        parts = split_of(HHAData(path))
    assert list(parts) == ["train", "validation", "held_out"]
    assert set.union(*parts.values()) == {row["prompt"] for row in doubled}
    assert sum(len(part) for part in parts.values()) == 60  # no prompt is on two sides
    assert 1 <= len(parts["validation"]) <= 14
    assert 1 <= len(parts["held_out"]) <= 14
    assert "validation: no data of your own are named, so some prompts of" in caplog.text
    assert (
        f"120 rows of {path}, all rows of a prompt together: {2 * len(parts['validation'])} for val"
        in caplog.text
    )
    assert "mine.jsonl" in caplog.text
    assert "data.validation" in caplog.text
    assert parts == split_of(HHAData(path, seed=5))  # every seed of a run is validated on the same
    assert (
        split_of(HHAData(path, "sample", None))["validation"]
        == split_of(HHAData(path, test=None))["validation"]
    )


def test_own_validation_the_bundled_one_by_name_and_none_are_taken_as_they_are(
    tmp_path: Path,
) -> None:
    path, other = (
        write(tmp_path / "a.jsonl", rows(9)),
        write(tmp_path / "b.jsonl", rows(3, start=50)),
    )
    own = split_of(HHAData(path, other, [other]))
    assert [len(part) for part in own.values()] == [9, 3, 3]
    bundled = split_of(HHAData(path, "sample:hha", ["sample:hha"]))
    assert len(bundled["train"]) == 9
    assert list(bundled) == ["train", "validation", "sample-hha"]
    assert [len(part) for part in split_of(HHAData(path, None, None)).values()] == [9, 0]
    mixed = split_of(HHAData([path, "sample"]))
    assert "held_out" not in mixed


@pytest.mark.parametrize("count", [3, 4, 7])
def test_a_few_rows_still_give_each_part_that_is_asked_for_a_prompt(count: int) -> None:
    parts = split_of(OfflineDataModule(rows(count), "held_out", "held_out"))
    assert [len(part) > 0 for part in parts.values()] == [True] * 3
    assert sum(len(part) for part in parts.values()) == count


def test_too_few_different_prompts_name_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "mine.jsonl", rows(1) * 5)
    with pytest.raises(UserError, match=r"more than 2 different prompts in .*mine\.jsonl .* got 1"):
        connected(OfflineDataModule(path, "held_out", "held_out"))
    with pytest.raises(UserError, match=r"more than 1 .* a file with data\.validation, or null"):
        connected(OfflineDataModule(path, "held_out"))
    with caplog.at_level(logging.INFO, logger="llm_agents.data"):
        few = split_of(HHAData(path))
    assert list(few) == ["train", "validation", "sample"]
    assert len(few["train"]) == 1
    assert "mine.jsonl has too few different prompts (1) to hold some out" in caplog.text
    assert "the bundled sample `hha` is taken" in caplog.text


def test_rewards_out_of_range_name_the_file_that_holds_them(tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", [{"prompt": "q", "response": "a", "reward": 0.5}])
    bad = write(tmp_path / "bad.jsonl", [{"prompt": "r", "response": "a", "reward": 7.25}])
    options: dict[str, Any] = {"reward_range": (0.0, 1.0), "template": "alol"}
    data = OfflineDataModule([good, bad], **options)
    with pytest.raises(UserError, match=r"in .*bad\.jsonl, got 7\.2500 to 7\.2500: set data\.rew"):
        connected(data)
    data = OfflineDataModule(good, bad, **options)
    with pytest.raises(UserError, match=r"in .*bad\.jsonl, got 7\.2500"):
        connected(data, "scored", "scored")
    sample = OfflineDataModule(good, "sample", **options)
    with pytest.raises(UserError, match=r"in .*samples/hha_validation\.jsonl, got "):
        connected(sample, "scored", "scored")

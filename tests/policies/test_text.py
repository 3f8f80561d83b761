"""Text and ids: begin tokens, boundaries, end tokens, truncation, layouts."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from llm_agents.errors import UserError
from llm_agents.policies.text import ALOL_SYSTEM, TextCodec
from llm_agents.policies.tiny import tiny_tokenizer
from llm_agents.types import Turn

DIALOGUE = (Turn("user", "Hi"), Turn("assistant", "Hello"), Turn("user", "Bye "))
CAUSAL = ("llama", "qwen2", "gpt2", "neox", "opt")


def codec(family):
    return TextCodec(tiny_tokenizer(family), is_encoder_decoder=family == "t5")


def metaspace_codec(*, eos_appended=False):
    """A tokenizer that puts a blank before every text by itself, as Llama's does."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=[chr(c) for c in range(33, 127)] + ["\n"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["Sure thing, I can go there."] * 9, trainer)
    end = " </s>" if eos_appended else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"<s> $A{end}", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return TextCodec(
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
        ),
        is_encoder_decoder=False,
    )


def test_alol_layout_is_the_release_s():
    text = codec("gpt2").render(DIALOGUE, "alol")
    expected = f"{ALOL_SYSTEM}\n### Human: Hi ### Assistant: Hello ### Human: Bye  ### Assistant:"
    assert text == expected


def test_a_system_turn_replaces_alol_s_sentence():
    text = codec("gpt2").render((Turn("system", "Be brief."), Turn("user", "Hi")), "alol")
    assert text == "Be brief.\n### Human: Hi ### Assistant:"


def test_plain_layout_is_the_text_alone():
    assert codec("gpt2").render((Turn("user", "Once upon "),), "plain") == "Once upon"


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("template", ["alol", "chat", "plain"])
def test_prompt_begins_once_with_what_the_tokenizer_adds(family, template):
    text = codec(family)
    ids = text.encode_prompt(DIALOGUE, template=template)
    begin = text.begin_ids
    assert begin == ([text.tokenizer.bos_token_id] if family in ("llama", "opt") else [])
    assert ids[: len(begin)] == begin
    if begin:
        assert ids[1] != begin[0]


def test_a_begin_token_written_by_the_chat_template_is_not_doubled():
    text = codec("llama")
    text.tokenizer.chat_template = "{{ bos_token + messages[0]['content'] }}"
    ids = text.encode_prompt((Turn("user", "Hi"),), template="chat")
    assert ids.count(text.tokenizer.bos_token_id) == 1
    assert ids[0] == text.tokenizer.bos_token_id


def test_a_tokenizer_that_appends_the_end_token_does_not_end_prompts():
    text = metaspace_codec(eos_appended=True)
    ids = text.encode_text("Sure", begin=True)
    assert ids[0] == 1
    assert text.end_id not in ids


def test_an_encoder_gets_the_end_token():
    ids = codec("t5").encode_prompt(DIALOGUE)
    assert ids[-1] == codec("t5").end_id
    assert ids.count(ids[-1]) == 1


@pytest.mark.parametrize("family", [*CAUSAL, "t5"])
def test_left_truncation_keeps_begin_and_end(family):
    text = codec(family)
    whole = text.encode_prompt(DIALOGUE)
    cut = text.encode_prompt(DIALOGUE, max_tokens=10)
    assert len(cut) == 10
    assert cut[: len(text.begin_ids)] == text.begin_ids
    kept = cut[len(text.begin_ids) :]
    assert whole[-len(kept) :] == kept
    with pytest.raises(ValueError, match="max_tokens"):
        text.encode_prompt(DIALOGUE, max_tokens=len(text.begin_ids) + len(text.prompt_end_ids))


@pytest.mark.parametrize("family", CAUSAL)
def test_prompt_and_response_ids_joined_are_those_of_the_joint_text(family):
    text = codec(family)
    prompt = text.encode_prompt(DIALOGUE)
    response = text.encode_response("I can help you")
    joint = text.encode_text(text.render(DIALOGUE, "alol") + " I can help you", begin=True)
    assert [*prompt, *response] == [*joint, text.end_id]


def test_metaspace_tokenizers_get_no_second_blank():
    text = metaspace_codec()
    assert text.adds_blank
    assert text.encode_response("Sure")[:-1] == text.encode_text("Sure", begin=False)
    joint = text.encode_text("go Sure", begin=True)
    assert text.encode_prompt((Turn("user", "go"),), template="plain") + text.encode_response(
        "Sure", template="plain"
    ) == [*joint, text.end_id]


def test_metaspace_tokenizers_get_no_blank_after_a_line_break():
    text = metaspace_codec()
    text.tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + '\n' + m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}"
    )
    ids = text.encode_response("Sure", template="chat")[:-1]
    assert not str(text.tokenizer.convert_ids_to_tokens(ids[0])).startswith("▁")
    assert text.tokenizer.decode(ids).strip() == "Sure"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ 'A:' }}{{ messages[1]['content'] if messages|length > 1 else '' }}", ""),
        ("{{ 'A:' }}{{ ' ' + messages[1]['content'] if messages|length > 1 else '' }}", " "),
        ("{{ 'A:\n' }}{{ messages[1]['content'] if messages|length > 1 else '' }}", ""),
    ],
)
def test_the_chat_template_says_what_stands_before_the_answer(template, expected):
    text = codec("gpt2")
    text.tokenizer.chat_template = template
    assert text.separator("chat") == expected


def test_an_empty_prompt_still_has_a_token_to_predict_from():
    assert codec("gpt2").encode_text("", begin=True) == [codec("gpt2").tokenizer.bos_token_id]
    assert codec("qwen2").encode_text("", begin=True) == [codec("qwen2").end_id]


def test_responses_end_unless_truncation_took_the_end():
    text = codec("gpt2")
    long = text.encode_response("word " * 200, max_tokens=128)
    assert len(long) == 128
    assert long[-1] != text.end_id
    assert text.encode_response("") == [text.end_id]
    assert text.encode_response("  \n") == [text.end_id]
    assert text.encode_response("ok")[-1] == text.end_id


@pytest.mark.parametrize("family", [*CAUSAL, "t5"])
def test_decoding_gives_the_text_without_specials_and_blanks(family):
    text = codec(family)
    assert text.decode(text.encode_response("Yes, I can. ")) == "Yes, I can."


def test_missing_chat_template_and_missing_end_token_are_named():
    text = codec("gpt2")
    text.tokenizer.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        text.encode_prompt(DIALOGUE, template="chat")
    tokenizer = tiny_tokenizer("gpt2")
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="no end token"):
        TextCodec(tokenizer, is_encoder_decoder=False)


NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "turns", "expected"),
    [
        (
            NO_SYSTEM,
            (Turn("system", "Knowledge: the sky is blue."), Turn("user", "Why?")),
            r"begins 'Knowledge: the sky is blue\.' \(turns: system, user\): System role not",
        ),
        (ALTERNATING, (Turn("user", "a"), Turn("user", "b")), "Roles must alternate"),
        (ALTERNATING, (Turn("assistant", "a"),), "Roles must alternate"),
        ("{{ messages[5].content }}", (Turn("user", "a"),), "refuses the dialogue"),
        ("{% if %}", (Turn("user", "a"),), "refuses the dialogue"),
    ],
)
def test_a_template_that_refuses_a_dialogue_is_an_error_with_the_cure(
    make_policy, template, turns, expected
):
    policy = make_policy("llama", trainable=False)
    before = policy.tokenizer.chat_template
    policy.tokenizer.chat_template = template
    try:
        with pytest.raises(UserError, match=expected) as caught:
            policy.encode_prompt(turns, template="chat")
        assert "Use the template `alol` or `plain`" in str(caught.value)
    finally:
        policy.tokenizer.chat_template = before


def test_a_template_without_system_turns_serves_all_others(make_policy):
    policy = make_policy("llama", trainable=False)
    before = policy.tokenizer.chat_template
    policy.tokenizer.chat_template = NO_SYSTEM
    try:
        text = policy.text.render((Turn("user", "Why?"),), "chat")
        assert text == "<user>Why?<end><assistant>"
    finally:
        policy.tokenizer.chat_template = before

"""Chat templates give what `transformers` gives."""

import json

import pytest
from transformers import PreTrainedTokenizerFast

from outrider.core.errors import ConfigError, InvalidRequestError
from outrider.gateway.chat_template import ChatTemplate, load_chat_template
from outrider.wire.messages import ChatTurn
from tests.unit.gateway import tokenizers_zoo as zoo

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
    "Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
    " + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WITH_EVERYTHING = """{%- if tools is not none %}tools{% endif %}
{{- bos_token }}
{%- set ns = namespace(count=0) %}
    {% for message in messages %}
        {% if message.role == 'system' %}{% continue %}{% endif %}
{{ message | tojson }} {{ message.content | trim | tojson(indent=2) }}
        {% set ns.count = ns.count + 1 %}
        {% generation %}{{ message['content'] }}{% endgeneration %}
        {% if ns.count > 2 %}{% break %}{% endif %}
    {% endfor %}
{{ ns.count }}{{ strftime_now('%Y') }}{{ eos_token }}{% if add_generation_prompt %}>{% endif %}
"""
CHATS = [
    [ChatTurn("user", "What is the capital of France?")],
    [
        ChatTurn("system", "Be brief."),
        ChatTurn("user", " <b>\"hé\" & '日本'</b>\n"),
        ChatTurn("assistant", ""),
    ],
    [ChatTurn("user", "{{ 1 + 1 }} {% raw %}"), ChatTurn("assistant", "<|im_end|>"), ChatTurn("user", "x")]
    * 2,
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("source", [SMOLLM2, WITH_EVERYTHING], ids=["smollm2", "everything"])
@pytest.mark.parametrize("chat", CHATS)
def test_same_text_as_transformers(source, chat):
    theirs = PreTrainedTokenizerFast(tokenizer_object=zoo.byte_level(), chat_template=source, **TOKENS)
    messages = [{"role": turn.role, "content": turn.content} for turn in chat]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert ChatTemplate(source, TOKENS).render(chat) == expected


def test_a_template_can_refuse():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        template.render(CHATS[0])
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "source", ["{{ messages.pop() }}", "{{ ''.__class__.__mro__ }}{{ missing.attribute }}"]
)
def test_a_template_cannot_reach_out_of_its_sandbox(source):
    with pytest.raises(InvalidRequestError):
        ChatTemplate(source, {}).render(CHATS[0])


def test_a_broken_template_is_a_configuration_error():
    with pytest.raises(ConfigError, match="line 1"):
        ChatTemplate("{% for %}", {})


def test_where_a_template_is_found(tmp_path):
    assert load_chat_template(tmp_path) is None
    config = {
        "bos_token": {"content": "<s>"},
        "chat_template": [{"name": "default", "template": "{{ bos_token }}a"}],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_chat_template(tmp_path).render(CHATS[0]) == "<s>a"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}b")
    assert load_chat_template(tmp_path).render(CHATS[0]) == "<s>b"
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json"):
        load_chat_template(tmp_path)

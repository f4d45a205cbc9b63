"""Chat templates give what `transformers` gives."""

import json

import pytest
from transformers import PreTrainedTokenizerFast

from outrider.core.errors import ConfigError, InvalidRequestError
from outrider.gateway import template_sandbox
from outrider.gateway.chat_template import ChatTemplate, load_chat_template
from outrider.gateway.tool_calls import ToolFormat
from outrider.wire.messages import Conversation
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


def said(*turns):
    return tuple({"role": role, "content": content} for role, content in turns)


CHATS = [
    said(("user", "What is the capital of France?")),
    said(("system", "Be brief."), ("user", " <b>\"hé\" & '日本'</b>\n"), ("assistant", "")),
    said(("user", "{{ 1 + 1 }} {% raw %}"), ("assistant", "<|im_end|>"), ("user", "x")) * 2,
]
ONE = Conversation(CHATS[0])
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("source", [SMOLLM2, WITH_EVERYTHING], ids=["smollm2", "everything"])
@pytest.mark.parametrize("chat", CHATS)
def test_same_text_as_transformers(source, chat):
    theirs = PreTrainedTokenizerFast(tokenizer_object=zoo.byte_level(), chat_template=source, **TOKENS)
    expected = theirs.apply_chat_template(list(chat), add_generation_prompt=True, tokenize=False)
    assert ChatTemplate(source, TOKENS).render(Conversation(chat)) == expected


def test_a_template_can_refuse():
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        template.render(ONE)
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "source", ["{{ messages.pop() }}", "{{ ''.__class__.__mro__ }}{{ missing.attribute }}"]
)
def test_a_template_cannot_reach_out_of_its_sandbox(source):
    with pytest.raises(InvalidRequestError):
        ChatTemplate(source, {}).render(ONE)


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
    assert load_chat_template(tmp_path).render(ONE) == "<s>a"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}b")
    assert load_chat_template(tmp_path).render(ONE) == "<s>b"
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json"):
        load_chat_template(tmp_path)


TOOLS = (
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "g", "description": "<é>"}},
)
HERMES = """{%- if tools %}<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools> <tool_call></tool_call>
{% endif %}
{%- for message in messages %}
{{ '<' + message.role + '>' + (message.content or '') }}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
<tool_call>{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</tool_call>
{%- endfor %}
{%- endif %}
{%- endfor %}
{%- if documents %}{{ documents | map(attribute='text') | join(' ') }}{% endif %}
{%- if thinking is defined %}{{ thinking }}{% endif %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
CALLED = (
    {"role": "user", "content": "f?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "<é>"}}}],
    },
    {"role": "tool", "content": "4", "tool_call_id": "1", "name": "f"},
)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": TOOLS},
        {"tools": TOOLS, "documents": ({"title": "t", "text": "x"},)},
        {"template_kwargs": {"thinking": False}},
        {"add_generation_prompt": False},
    ],
)
@pytest.mark.parametrize("chat", [*CHATS, CALLED])
def test_tools_documents_and_variables_as_in_transformers(chat, more):
    theirs = PreTrainedTokenizerFast(tokenizer_object=zoo.byte_level(), chat_template=HERMES, **TOKENS)
    told = {"add_generation_prompt": True, **more}
    variables = told.pop("template_kwargs", {})
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}
    expected = theirs.apply_chat_template(list(chat), tokenize=False, **listed, **variables)
    assert ChatTemplate(HERMES, TOKENS).render(Conversation(chat, **more)) == expected


TRIMS = "{% for message in messages %}<{{ message.content | trim }}>{% endfor %}"


@pytest.mark.parametrize("source", [SMOLLM2, HERMES, TRIMS])
@pytest.mark.parametrize("end", ["Paris is", "Paris is \n", "", "a" * 40])
def test_a_message_that_goes_on_as_in_transformers(source, end):
    chat = (*CHATS[0], {"role": "assistant", "content": end})
    theirs = PreTrainedTokenizerFast(tokenizer_object=zoo.byte_level(), chat_template=source, **TOKENS)
    expected = theirs.apply_chat_template(list(chat), tokenize=False, continue_final_message=True)
    continued = Conversation(chat, add_generation_prompt=False, continue_final_message=True)
    assert ChatTemplate(source, TOKENS).render(continued) == expected


def test_a_message_that_is_not_shown_cannot_go_on():
    continued = Conversation(CHATS[0], continue_final_message=True)
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate("{{ messages[0].role }}", {}).render(continued)
    assert caught.value.field == "continue_final_message"


@pytest.mark.parametrize(
    ("conversation", "field"),
    [
        (Conversation(CHATS[0], tools=TOOLS), "tools"),
        (Conversation(CHATS[0], documents=({"text": "x"},)), "documents"),
        (Conversation(CALLED), "messages[1].tool_calls"),
    ],
)
def test_what_a_template_would_leave_out_is_refused(conversation, field):
    with pytest.raises(InvalidRequestError, match="no place for") as caught:
        ChatTemplate(SMOLLM2, TOKENS).render(conversation)
    assert caught.value.field == field


def test_developers_are_what_the_template_knows():
    chat = Conversation(said(("developer", "x")))
    assert ChatTemplate("{{ messages[0].role }}", {}).render(chat) == "system"
    assert ChatTemplate("{{ messages[0].role }}{# developer #}", {}).render(chat) == "developer"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(2000) %}{% for b in range(2000) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_does_not_run_for_ever(source, monkeypatch):
    monkeypatch.setattr(template_sandbox, "MOST_STEPS", 10_000)
    with pytest.raises(InvalidRequestError, match=r"steps|recursion"):
        ChatTemplate(source, {}).render(ONE)


def test_a_template_does_not_write_for_ever(monkeypatch):
    monkeypatch.setattr(template_sandbox, "MOST_CHARACTERS", 10_000)
    with pytest.raises(InvalidRequestError, match="characters"):
        ChatTemplate("{% for a in range(2000) %}{{ messages }}{% endfor %}", {}).render(ONE)


@pytest.mark.parametrize(
    "source", ["{{ messages.x.y }}", "{{ 1 // 0 }}", "{{ messages[0]['content'].find }}{{ [][1:].x() }}"]
)
def test_whatever_a_template_raises_is_a_refusal(source):
    with pytest.raises(InvalidRequestError):
        ChatTemplate(source, {}).render(ONE)


def test_half_a_surrogate_pair_is_a_refusal():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "\ud800"}}}
    said_so = Conversation(({"role": "assistant", "content": "", "tool_calls": [call]},))
    with pytest.raises(InvalidRequestError, match="surrogates"):
        ChatTemplate(HERMES, {}).render(said_so)


def test_what_a_template_says_is_cut():
    chat = Conversation(said(("user", "x" * 10_000)))
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate("{{ raise_exception(messages[0].content) }}", {}).render(chat)
    assert len(str(caught.value)) < 600


def test_another_template_for_conversations_with_tools(tmp_path):
    config = {
        "bos_token": "<s>",
        "chat_template": [
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "{{ bos_token }}{{ tools | length }}[TOOL_CALLS]"},
        ],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = load_chat_template(tmp_path)
    assert template.render(ONE) == "plain"
    assert template.render(Conversation(CHATS[0], tools=TOOLS)) == "<s>2[TOOL_CALLS]"
    assert template.tool_format is ToolFormat.MISTRAL


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SMOLLM2, None),
        (HERMES, ToolFormat.HERMES),
        ("<tool_call><function=f>", None),
        ("{{ '<|python_tag|>' }}", ToolFormat.LLAMA3_JSON),
        ('{"name": function name, "parameters": dictionary of argument name', ToolFormat.LLAMA3_JSON),
        ("{{ '[TOOL_CALLS]' }}", ToolFormat.MISTRAL),
    ],
)
def test_the_format_of_calls_is_what_the_template_asks_for(source, expected):
    assert ChatTemplate(source, {}).tool_format is expected


def test_a_replaced_template_keeps_the_models_tokens():
    template = ChatTemplate(SMOLLM2, TOKENS)
    assert template.replaced("{{ bos_token }}!").render(ONE) == "<s>!"
    with pytest.raises(InvalidRequestError) as caught:
        template.replaced("{% for %}")
    assert caught.value.field == "chat_template"

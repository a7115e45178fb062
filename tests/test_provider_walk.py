"""The simulated model walks an organisation chart through a tool, and never says it is done."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest

from project.provider import Provider

CHART = {"Ada Park": ["Ben Ito", "Cleo Diaz"], "Ben Ito": ["Dara Kim"]}


@pytest.fixture
def provider():
    with Provider() as started:
        yield started


@pytest.fixture
def gpt(provider):
    with openai.OpenAI(base_url=provider.openai_url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(provider):
    url = provider.anthropic_url
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_openai_agent_walks_the_chart_breadth_first_for_ever(gpt, stream):
    tool = {"type": "function", "function": {"name": "direct_reports", "parameters": {}}}
    options = {"model": "gpt-5-mini", "tools": [tool]}
    messages, asked = [{"role": "user", "content": "Who works here?"}], []
    for _ in range(6):
        if stream:
            with gpt.chat.completions.stream(messages=messages, **options) as events:
                choice = events.get_final_completion().choices[0]
        else:
            choice = gpt.chat.completions.create(messages=messages, **options).choices[0]
        assert choice.finish_reason == "tool_calls"
        call = choice.message.tool_calls[0]
        asked.append(json.loads(call.function.arguments)["name"])
        sent = {"id": call.id, "type": "function", "function": call.function.model_dump()}
        result = json.dumps(CHART.get(asked[-1], []))
        messages += [
            {"role": "assistant", "tool_calls": [sent]},
            {"role": "tool", "tool_call_id": call.id, "content": result},
        ]
    assert asked == ["Ada Park", "Ben Ito", "Cleo Diaz", "Dara Kim", "Ada Park", "Ben Ito"]


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_agent_walks_the_same_chart(claude, stream):
    tools = [{"name": "direct_reports", "input_schema": {"type": "object"}}]
    options = {"model": "claude-haiku-4-5", "max_tokens": 500, "tools": tools}
    messages, asked = [{"role": "user", "content": "Who works here?"}], []
    for _ in range(4):
        if stream:
            with claude.messages.stream(messages=messages, **options) as events:
                answer = events.get_final_message()
        else:
            answer = claude.messages.create(messages=messages, **options)
        assert answer.stop_reason == "tool_use"
        (call,) = answer.content
        asked.append(call.input["name"])
        content = json.dumps([{"name": name} for name in CHART.get(asked[-1], [])])
        use = {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}
        result = {"type": "tool_result", "tool_use_id": call.id, "content": content}
        messages += [
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
    assert asked == ["Ada Park", "Ben Ito", "Cleo Diaz", "Dara Kim"]

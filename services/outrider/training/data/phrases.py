"""Beginnings of user messages, and tasks about texts: what the target's own inventions are started from."""

from __future__ import annotations

from typing import NamedTuple

STEMS = (
    "Write", "Explain", "What is", "How do", "Why", "Give me", "Can you", "Summarize", "Translate", "Solve",
    "Write a Python function", "Write a program", "Describe", "List", "Compare", "Who", "When",
    "Imagine you are", "Act as", "Write an email", "Write a short story", "Write a poem", "Calculate", "If a",
    "A train", "What are the", "Create", "Design", "Suggest", "Rewrite", "Extract", "Identify", "Classify",
    "In the", "Given the following", "Read the passage", "Discuss", "Tell me", "Help me", "I have", "Which",
    "Is it", "Prove", "Find the", "Implement", "Draft", "Compose", "Evaluate", "Analyze", "Define",
    "Question:", "def ", "Consider",
)  # fmt: skip
LANGUAGES = ("German", "French", "Spanish", "Italian", "Portuguese", "Dutch")


class Task(NamedTuple):
    """A kind of prompt about texts."""

    category: str
    share: float  # of all tasks
    templates: tuple[str, ...]
    texts: tuple[int, int] = (1, 1)  # how many texts stand for {texts}, at least and at most
    tokens: tuple[int, int] = (0, 0)  # of each of them


TASKS = (
    Task(
        "summarization",
        0.30,
        (
            "Summarize: {texts}",
            "Summarize the following article:\n\n{texts}",
            "{texts}\n\nTL;DR",
            "Write a short summary of this text.\n\n{texts}",
            "{texts}\n\nSummarize the text above in three sentences.",
            "What are the main points of the following text?\n{texts}",
        ),
        tokens=(150, 600),
    ),
    Task(
        "translation",
        0.20,
        (
            "Translate English to {language}: {sentence}",
            "Translate {language} to English: {sentence}",
            "Translate the following sentence from English into {language}:\n{sentence}",
            "How do you say this in {language}? {sentence}",
        ),
    ),
    Task(
        "rag",
        0.25,
        (
            "Answer the question with the help of these passages.\n\n{texts}\n\n{question}",
            "{texts}\n\n{question}\nAnswer:",
            "Document:\n{texts}\n\n{question}",
        ),
        (2, 5),
        (60, 130),
    ),
    Task(
        "editing",
        0.13,
        (
            "Rewrite this text in simpler words:\n{texts}",
            "Correct the grammar of the following text:\n{texts}",
            "Extract the key facts from the following text as a list:\n{texts}",
            "Turn the following text into JSON:\n{texts}",
            "Continue this text:\n{texts}",
            "Ask three questions about this text and answer them:\n{texts}",
            "Paraphrase:\n{texts}",
        ),
        tokens=(60, 250),
    ),
    Task(
        "qa",
        0.12,
        (
            "What is {fragment}?", "Who {fragment}?", "When did {fragment}?", "Why is {fragment}?",
            "Where {fragment}?",
        ),
    ),
)  # fmt: skip
QUESTIONS = (
    "What do the passages say about this: {sentence}",
    "Based on the passages, explain: {sentence}",
    'Question: what is known about "{sentence}"?',
    "Answer the question using the passages: is it true that {sentence}",
)

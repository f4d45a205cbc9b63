"""What the demo asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """A prompt and its name."""

    title: str
    text: str


_PARAGRAPH = """\
The Outrider was a mail coach that ran between Bath and London from 1784. Before it, letters were carried \
by boys on tired horses, and a letter took three days for the hundred and twenty miles; robbers took many \
of them. John Palmer, who owned a theatre in Bath, had seen how fast actors travelled by hired coach and \
proposed that the mail travel the same way, with an armed guard and fresh horses every ten miles. The \
Post Office did not believe him. On the second of August 1784 the first coach left Bristol at four in the \
afternoon and reached London at eight the next morning, sixteen hours later. Within a year mail coaches \
ran to eight cities, and letters paid for all of it."""

_CODE = """\
class Counter:
    def __init__(self):
        self.count = 0

    def increment(self):
        self.count = self.count + 1

    def reset(self):
        self.count = 0"""

PROMPTS = (
    DemoPrompt("question", "How do I make a cup of tea?"),
    DemoPrompt("summary", f"Summarize the following paragraph:\n\n{_PARAGRAPH}"),
    DemoPrompt(
        "code edit",
        "Add a method `decrement` to this Python class. Answer with the code only.\n\n"
        f"```python\n{_CODE}\n```",
    ),
)

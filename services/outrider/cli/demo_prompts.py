"""What the demo asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """A prompt, and the drafter that the streamed answer shows."""

    title: str
    text: str
    drafter: str


_PARAGRAPH = """\
The Outrider was a mail coach that ran between Bath and London from 1784. Before it, letters were carried \
by boys on tired horses, and a letter took three days for the hundred and twenty miles; robbers took many \
of them. John Palmer, who owned a theatre in Bath, had seen how fast actors travelled by hired coach and \
proposed that the mail travel the same way, with an armed guard and fresh horses every ten miles. The \
Post Office did not believe him. On the second of August 1784 the first coach left Bristol at four in the \
afternoon and reached London at eight the next morning, sixteen hours later. Within a year mail coaches \
ran to eight cities, and letters paid for all of it."""

_CODE = """\
def total_price(items, tax_rate):
    total = 0
    for item in items:
        price = item["price"]
        quantity = item["quantity"]
        total = total + price * quantity
    total_with_tax = total + total * tax_rate
    return total_with_tax"""

PROMPTS = (
    DemoPrompt("question", "Why is the sky blue, and why is it red in the evening?", "draft_model"),
    DemoPrompt("summary", f"Summarize the following paragraph:\n\n{_PARAGRAPH}", "prompt_lookup"),
    DemoPrompt(
        "code edit",
        f"Rename the variable total_with_tax to result in this function and repeat the whole "
        f"function:\n\n```python\n{_CODE}\n```",
        "prompt_lookup",
    ),
)

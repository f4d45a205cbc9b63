"""Training drafters for a target: the target writes the data, a small network learns to foretell it.

`data` writes texts with the hidden states that training needs, `students` are the networks that learn,
`trainer` runs them, `evaluation` measures what came out with the drafting methods that serve.
"""

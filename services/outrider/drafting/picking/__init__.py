"""From draft logits to draft tokens: edits, grammars, draft vocabulary, draws."""

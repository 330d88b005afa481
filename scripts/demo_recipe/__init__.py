"""The parts of the demo model's recipe: text, tokenizer, batches, training and export."""

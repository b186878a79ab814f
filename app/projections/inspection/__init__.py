"""Projections of turns for those who look at them: summaries, steps, prompts, readings by the other APIs."""

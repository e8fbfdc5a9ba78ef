"""Doors to libraries that decide and compare: BoTorch, pools of scikit-learn, skpro, probly and ScoringBench."""

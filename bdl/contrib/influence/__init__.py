"""Which training items made a posterior say what it says."""

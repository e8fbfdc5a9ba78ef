"""Settings found for a network and its data: batch size, step size, friction, burn-in and prior; steps from a time.

`find_settings` tells the story. Each setting has a file of its own, whose functions say where its rule comes from.
"""

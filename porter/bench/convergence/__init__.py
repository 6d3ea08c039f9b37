"""Does training a patched model go where training the plain one goes? Losses, log-probabilities, layers and updates."""

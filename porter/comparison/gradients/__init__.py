"""Are the gradients right? One unit at a time, backwards from the loss, each side on golden's input and upstream.

lanes      a side whose units run forwards and backwards
measure    one gradient of three sides
stage      the sides in lock-step from the head to the embedding
run        all prompts of a run
"""

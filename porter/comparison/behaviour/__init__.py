"""Does the port behave like the reference on every path: decoding, chunks, padding, packing, greedy text?

routes    one text, fed in several ways
lanes     a side that takes all routes through one layer before it loads the next
walk      the sides in lock-step, and what is measured after each layer
checks    what each check compares, and what is made of it
greedy    the port's own text, scored by the reference
stage     all of it
"""

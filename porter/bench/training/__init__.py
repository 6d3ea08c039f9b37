"""Training steps of whole models: HuggingFace's code as it is, compiled, with peers' patches and with porter's."""

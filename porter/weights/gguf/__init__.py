"""GGUF files: read, and converted to a HuggingFace-layout folder."""

from porter.weights.gguf.convert import CONVERTER_VERSION, convert_gguf
from porter.weights.gguf.reader import GgufFile, GgufTensor, read_gguf

__all__ = ["CONVERTER_VERSION", "GgufFile", "GgufTensor", "convert_gguf", "read_gguf"]

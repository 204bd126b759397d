"""leadline finds how deep an LLM inference service can speculate before it runs aground."""

__version__ = "0.1.0"

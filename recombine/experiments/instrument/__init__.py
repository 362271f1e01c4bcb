"""The instrument itself on trial: predicted failures, advice on data, language models."""

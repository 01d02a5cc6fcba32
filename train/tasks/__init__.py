"""Tasks say what is fed to a model, what is read from it, and what it is worth."""

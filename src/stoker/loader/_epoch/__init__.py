"""An epoch, decided when it begins: its number, its order, its plan, and its progress."""

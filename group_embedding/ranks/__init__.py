"""Training on several ranks: how bytes travel, which rank owns a row, and the strategy above."""

"""Training on several ranks: how bytes travel, who has which row, and the strategy above both."""

"""Which rank has which row of a table, and lookups of tables whose rows are spread over ranks."""

"""The lookups of one call: arguments, tables, ids, groups that one op serves, results."""

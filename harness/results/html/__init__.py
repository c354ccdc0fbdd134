"""Record files shown as a single HTML page, with charts, tables and a card for each rung."""

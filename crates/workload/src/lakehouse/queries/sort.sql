-- All line items by price: larger than memory, so the engine sorts in runs on disk.
SELECT * FROM lineitem ORDER BY l_price, l_order, l_line

-- TPC-H query 18: a group for each order, whose hash table does not fit in memory, joined with two tables.
SELECT c_customer, o_order, o_date, quantity
FROM (SELECT l_order, SUM(l_quantity) AS quantity FROM lineitem GROUP BY l_order) AS totals
JOIN orders ON l_order = o_order
JOIN customer ON o_customer = c_customer
WHERE quantity > 190
ORDER BY quantity DESC, o_order
LIMIT 100

-- TPC-H query 1: one pass over the line items, a handful of groups.
SELECT l_flag, l_status,
       SUM(l_quantity) AS quantity,
       SUM(l_price) AS price,
       SUM(l_price * (1 - l_discount)) AS discounted,
       SUM(l_price * (1 - l_discount) * (1 + l_tax)) AS charge,
       AVG(l_discount) AS discount,
       COUNT(*) AS lines
FROM lineitem
WHERE l_shipped <= CAST('2024-09-02' AS DATE)
GROUP BY l_flag, l_status
ORDER BY l_flag, l_status
